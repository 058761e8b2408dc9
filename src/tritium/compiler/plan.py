"""The memory planner: from lifetimes of temporaries to offsets in the arena."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from tritium.errors import ArgumentError

TRIES = 50  # greedy orders, at most
WORK = 30_000  # visits to neighbours that all greedy orders after the first may cost
BLOCK_COST = 8  # the cost of placing a block, in visits
DENSE = 400_000  # pairs of blocks alive together; above this, only the sweeps run, which do not look at pairs


class Block(NamedTuple):
    """A temporary: its bytes, the step that writes it and the last step that reads it, both inclusive."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """The offset of each block in the arena. Byte counts are of blocks rounded up to the alignment."""

    offsets: tuple[int, ...]
    peak_bytes: int  # the size of the arena
    naive_bytes: int  # without sharing: the sum of all blocks
    lower_bound_bytes: int  # the most bytes alive at one step; no plan needs less

    def __str__(self) -> str:
        return (
            f"arena of {self.peak_bytes} bytes for {len(self.offsets)} blocks of {self.naive_bytes} bytes; "
            f"at least {self.lower_bound_bytes} are alive together"
        )


def plan(blocks: Iterable[Block], alignment: int = 64, *, shared: bool = True) -> Plan:
    """Return offsets such that no two blocks alive together overlap: the smallest arena of several tries, deterministic.

    Without `shared`, no two blocks overlap at all.
    """
    blocks = tuple(blocks)
    _check(blocks, alignment)
    sizes = [-(-b.size // alignment) for b in blocks]  # counted in units of the alignment: small numbers sort faster
    real = [i for i, size in enumerate(sizes) if size]
    spans = _spans([sizes[i] for i in real], [blocks[i].first for i in real], [blocks[i].last for i in real])
    least, pairs = _load(spans)
    ends = _place(spans, least, pairs) if shared else list(accumulate(sizes[i] for i in real))
    offsets = [0] * len(blocks)
    for i, end in zip(real, ends, strict=True):
        offsets[i] = (end - sizes[i]) * alignment
    return Plan(tuple(offsets), max(ends, default=0) * alignment, sum(sizes) * alignment, least * alignment)


def memory_groups(blocks: Sequence[Block], plan: Plan) -> list[list[int]]:
    """Return groups of block indices whose addresses overlap, directly or through others; lowest address first."""
    groups: list[list[int]] = []
    end = 0
    for i in sorted((i for i, b in enumerate(blocks) if b.size), key=lambda i: (plan.offsets[i], i)):
        if not groups or plan.offsets[i] >= end:
            groups.append([])
        groups[-1].append(i)
        end = max(end, plan.offsets[i] + blocks[i].size)
    return [sorted(g) for g in groups]


def blocks_below(blocks: Sequence[Block], plan: Plan, *, shared: bool = True) -> list[tuple[int, list[int]]]:
    """Return the blocks from the lowest up, each with those that must end before it: alive at the same time, and below it.

    Whatever the sizes of the blocks are, offsets that begin where the highest of those ends are a plan.
    """
    order = sorted(range(len(blocks)), key=lambda i: (plan.offsets[i], i))
    result: list[tuple[int, list[int]]] = []
    for place, j in enumerate(order):
        first, last = blocks[j].first, blocks[j].last
        below = [i for i in order[:place] if not shared or (blocks[i].first <= last and first <= blocks[i].last)]
        result.append((j, below))
    return result


def _check(blocks: Sequence[Block], alignment: int) -> None:
    if alignment < 1:
        raise ArgumentError(f"plan: alignment={alignment} must be 1 or more.")
    for i, b in enumerate(blocks):
        if b.size < 0 or b.last < b.first:
            raise ArgumentError(f"plan: block {i} is {b}; it needs size >= 0 and first <= last.")


class _Spans(NamedTuple):
    """Blocks as columns, and their indices ordered by first and by last step."""

    sizes: list[int]
    firsts: list[int]
    lasts: list[int]
    by_first: list[int]
    by_last: list[int]


def _spans(sizes: list[int], firsts: list[int], lasts: list[int]) -> _Spans:
    # Sorting is stable: of blocks with the same first step, the largest comes first.
    numbers = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    return _Spans(sizes, firsts, lasts, sorted(numbers, key=firsts.__getitem__), sorted(numbers, key=lasts.__getitem__))


def _load(spans: _Spans) -> tuple[int, int]:
    """Return the most units alive at one step, and the number of pairs of blocks alive together."""
    sizes, firsts, lasts, by_first, by_last = spans
    live = most = ended = pairs = 0
    for begun, i in enumerate(by_first):
        first = firsts[i]
        while lasts[by_last[ended]] < first:
            live -= sizes[by_last[ended]]
            ended += 1
        pairs += begun - ended
        live += sizes[i]
        most = max(most, live)
    return most, pairs


def _place(spans: _Spans, least: int, pairs: int) -> list[int]:
    """Return the end of each block: the best of two sweeps and, within the work limit, of successive greedy orders."""
    best = _sweep(spans)
    if max(best, default=0) > least:
        sizes, firsts, lasts, _, _ = spans
        best = min(best, _sweep(_spans(sizes, [-t for t in lasts], [-t for t in firsts])), key=max)
    if max(best, default=0) == least or pairs > DENSE:
        return best
    near = _neighbours(spans)
    cost = 2 * pairs + BLOCK_COST * len(best)
    orders = _orders(spans)
    for _ in range(1 + min(TRIES, WORK // cost)):
        order = orders.pop()
        ends, highest = _greedy(order, spans.sizes, near, max(best))
        best = ends or best
        if max(best) == least:
            break
        if not orders:  # the block with the highest end goes first next time
            orders.append([highest, *(i for i in order if i != highest)])
    return best


# ---- one pass over time


def _sweep(spans: _Spans) -> list[int]:
    """Place each block at its first step in the tightest free gap (best fit); return the ends."""
    sizes, firsts, lasts, by_first, by_last = spans
    ends = [0] * len(sizes)
    below: dict[int, int] = {}  # end of a gap -> its size
    above: dict[int, int] = {}  # start of a gap -> its size
    gaps: list[tuple[int, int]] = []  # (size, start), sorted
    top = ended = 0  # above the top, all memory is free
    for i in by_first:
        size, first = sizes[i], firsts[i]
        while lasts[by_last[ended]] < first:
            end = ends[by_last[ended]]
            start = end - sizes[by_last[ended]]
            ended += 1
            if length := below.pop(start, 0):
                start -= length
                del above[start], gaps[bisect_left(gaps, (length, start))]
            if length := above.pop(end, 0):
                del below[end + length], gaps[bisect_left(gaps, (length, end))]
                end += length
            if end == top:
                top = start
            else:
                below[end] = above[start] = end - start
                insort(gaps, (end - start, start))
        index = bisect_left(gaps, (size, -1))
        if index == len(gaps):
            top += size
            ends[i] = top
            continue
        length, start = gaps.pop(index)
        ends[i] = start + size
        del above[start], below[start + length]
        if length > size:
            above[start + size] = below[start + length] = length - size
            insort(gaps, (length - size, start + size))
    return ends


# ---- one block after another, in any order


def _neighbours(spans: _Spans) -> list[list[int]]:
    """Return, for each block, the blocks that are alive together with it."""
    _, firsts, lasts, by_first, by_last = spans
    near: list[list[int]] = [[] for _ in firsts]
    live: dict[int, None] = {}
    ended = 0
    for i in by_first:
        while lasts[by_last[ended]] < firsts[i]:
            del live[by_last[ended]]
            ended += 1
        near[i] = list(live)
        for j in live:
            near[j].append(i)
        live[i] = None
    return near


def _orders(spans: _Spans) -> list[list[int]]:
    """Return greedy orders: by duration, by size times duration, by size. The last is tried first."""
    sizes, firsts, lasts, by_first, _ = spans
    duration = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    area = [size * steps for size, steps in zip(sizes, duration, strict=True)]
    return [sorted(by_first, key=key.__getitem__, reverse=True) for key in (duration, area, sizes)]


def _greedy(
    order: Sequence[int], sizes: Sequence[int], near: Sequence[Sequence[int]], limit: int
) -> tuple[list[int] | None, int]:
    """Place each block in the tightest gap its neighbours leave; return the ends and the block with the highest.

    Return None instead of the ends as soon as a block would end at the limit or above.
    """
    starts = [0] * len(sizes)
    ends = [0] * len(sizes)  # 0: not placed yet
    for i in order:
        size = sizes[i]
        free, tightest, start = 0, limit, -1
        for j in sorted(filter(ends.__getitem__, near[i]), key=starts.__getitem__):
            gap = starts[j] - free
            if size <= gap < tightest:
                tightest, start = gap, free
            if ends[j] > free:
                free = ends[j]
        if start < 0:
            start = free
            if start + size >= limit:
                return None, i
        starts[i], ends[i] = start, start + size
    return ends, max(order, key=ends.__getitem__)
