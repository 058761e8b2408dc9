"""Advice on saving memory: ops, tensors and lines of code, with the bytes each would save, computed from the tracked events.

A saving of the peak is the peak minus the peak of the same events without the saved blocks. Without savings there is
no advice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt
from tritium.buffer import host
from tritium.machine.facts import bytes_text
from tritium.memory import Stats
from tritium.op import OPS, Kind, Spec
from tritium.quant import scale_of
from tritium.see.memory.leaks import tensors_in
from tritium.see.memory.records import Advice, Event, Priority

MOST = 10  # items of a kind
LEAST = 1 << 10  # bytes; smaller savings are not reported
LEAST_IDLE = 1 << 20
OFTEN = 3  # allocations of a size at a line that count as repeated
FLOATS = (dt.f64, dt.f32, dt.f16, dt.bf16)
Column = np.ndarray[Any, np.dtype[np.int64]]


class Life(NamedTuple):
    """The lifetime of a block, as numbers of the events that allocated and freed it."""

    nbytes: int
    op: str
    site: str
    thread: str
    reused: bool
    born: int
    died: int | None  # None: alive
    died_site: str = ""
    died_thread: str = ""


@dataclass(frozen=True, eq=False)
class Observations:
    """The input of all advice: lifetimes and changes on the CPU since the oldest event in the log."""

    lives: Sequence[Life]
    first: int  # number of the oldest event in the log
    changes: Column  # change of the live bytes by each event since then
    base: int  # bytes alive before that event
    peak: int
    peak_at: int  # number of the event that reached it
    events: Sequence[Event]
    before: Stats
    after: Stats
    devices_bytes: Mapping[str, int]  # peak of every device

    @property
    def complete(self) -> bool:
        """Return True if no event was dropped, without which the peak cannot be recomputed."""
        return self.first <= 1


def advice(seen: Observations, model: Any = None) -> tuple[Advice, ...]:
    """Return all advice, the largest saving first. `model`: an object whose float weights are examined too."""
    items = [
        *temporaries(seen), *repeated(seen), *hidden_copies(seen), *round_trips(seen), *idle(seen),
        *(ternary(model, seen.peak) if model is not None else ()),
    ]  # fmt: skip
    return tuple(sorted(items, key=lambda a: (-a.potential_savings, a.description)))


def priority(nbytes: int, total: int) -> Priority:
    """Return the priority of a saving by its share of the total."""
    share = nbytes / total if total else 1.0
    return "high" if share >= 0.2 else "medium" if share >= 0.05 else "low"


# ---- the peak


def temporaries(seen: Observations) -> list[Advice]:
    """Advise on tensors freed on a line of elementwise ops while that line's next result of their size is alive.

    Only lines that lower the peak notably are listed.
    """
    if not seen.complete:
        return []
    groups = _overlaps(seen)
    relief = {key: _relief(seen, overlaps) for key, overlaps in groups.items()}
    least = _peak_with(seen, relief.values())
    saved = seen.peak - least
    if saved < LEAST:
        return []
    for key in sorted(
        relief, key=lambda k: k[1] * len(groups[k])
    ):  # the smallest first: those that hardly lower the peak are dropped
        without = _peak_with(seen, [v for k, v in relief.items() if k != key])
        if without - least <= max(LEAST, saved // 20):
            del relief[key]
    least = _peak_with(seen, relief.values())
    saved = seen.peak - least
    descriptions = [_describe_overlaps(seen, site, nbytes, groups[site, nbytes]) for site, nbytes in relief]
    return [
        Advice(
            "temporaries",
            f"{'; '.join(sorted(descriptions)[:MOST])}: alive together, and all but one die on that line. Written in place (out=, +=, "
            f"relu_()) or inside tt.compile, the peak would be {bytes_text(least)} instead of {bytes_text(seen.peak)}.",
            saved,
            "the peak",
            priority(saved, seen.peak),
        )
    ]


class Overlap(NamedTuple):
    """A block that in-place or fused ops would not need beside the one allocated at event `after`."""

    life: Life
    after: int
    op: str


def _overlaps(seen: Observations) -> dict[tuple[str, int], list[Overlap]]:
    """Return the overlaps by line and size; the largest sums only.

    A result of the line itself would not be needed from the next allocation on that line: fused ops only write the last
    result. A tensor from elsewhere would be overwritten by the last allocation on that line before it is freed.
    """
    births: dict[tuple[str, str, int], list[Life]] = defaultdict(list)
    for life in sorted(seen.lives, key=lambda x: x.born):
        if life.site and life.nbytes >= LEAST and _is_elementwise(life.op):
            births[life.site, life.thread, life.nbytes].append(life)
    groups: dict[tuple[str, int], list[Overlap]] = defaultdict(list)
    for life in seen.lives:
        candidates = births.get((life.died_site, life.died_thread, life.nbytes), [])
        if life.died is None or not candidates:
            continue
        same_line = life.site == life.died_site and _is_elementwise(life.op)
        index = (
            bisect_right(candidates, life.born, key=_born)
            if same_line
            else bisect_left(candidates, life.died, key=_born) - 1
        )
        if 0 <= index < len(candidates) and life.born < candidates[index].born < life.died:
            groups[life.died_site, life.nbytes].append(Overlap(life, candidates[index].born, candidates[index].op))
    largest = sorted(groups, key=lambda k: -k[1] * len(groups[k]))[: 2 * MOST]
    return {k: groups[k] for k in largest}


def _born(life: Life) -> int:
    return life.born


def _is_elementwise(op: str) -> bool:
    entry = OPS.get(op)
    return entry is not None and entry.kind is Kind.MAP


def _relief(seen: Observations, overlaps: Iterable[Overlap], unit: int | None = None) -> Column:
    """Return the change of live bytes at each event without these overlaps; `unit`: count this for each block, not its bytes."""
    result = np.zeros(len(seen.changes), np.int64)
    for life, after, _ in overlaps:
        assert life.died is not None
        result[after - seen.first] -= unit or life.nbytes
        result[life.died - seen.first] += unit or life.nbytes
    return result


def _peak_with(seen: Observations, relief: Iterable[Column]) -> int:
    course = seen.base + np.cumsum(sum(relief, start=seen.changes))
    return int(max(seen.base, course.max(initial=0)))


def _describe_overlaps(seen: Observations, site: str, nbytes: int, overlaps: Sequence[Overlap]) -> str:
    """Return a text such as "3 tensors of 4 MiB at model.py:12 (add, multiply)"."""
    count = 1 - int(np.cumsum(_relief(seen, overlaps, 1)).min(initial=0))
    return f"{count} tensors of {bytes_text(nbytes)} at {site} ({', '.join(sorted({o.op for o in overlaps}))})"


# ---- avoidable work


def repeated(seen: Observations) -> list[Advice]:
    """Advise on sizes repeatedly allocated from the system because the pool does not cache such large or so many blocks."""
    groups: dict[tuple[str, str, int], list[Life]] = defaultdict(list)
    for life in seen.lives:
        if not life.reused and life.nbytes >= LEAST:
            groups[life.op, life.site, life.nbytes].append(life)
    items = []
    for (op, site, nbytes), lives in groups.items():
        count = _count_repeats(lives)
        if count < OFTEN:
            continue
        saved, limit = count * nbytes, seen.after.limit
        if nbytes > limit:
            why = f"a block of {bytes_text(nbytes)} is larger than the pool's limit of {bytes_text(limit)}"
            remedy = f"pass out= to the op, or let the pool cache it: memory.configure(limit={nbytes * 2})"
        else:
            why = f"the pool, limited to {bytes_text(limit)}, had returned the block"
            remedy = "pass out= to the op, or raise memory.configure(limit=…)"
        items.append(
            Advice(
                "repeated",
                f"{count} of {len(lives)} allocations of {bytes_text(nbytes)} {_by(op)}at {site or 'an unknown line'} came from the "
                f"system although a block of that size had just been freed: {why}; {remedy}.",
                saved,
                "memory mapped again",
                priority(nbytes, seen.peak),
            )
        )
    return sorted(items, key=lambda a: -a.potential_savings)[:MOST]


def _count_repeats(lives: Sequence[Life]) -> int:
    """Return the number of allocations made after an earlier one was freed, each free counted once."""
    ends = sorted(life.died for life in lives if life.died is not None)
    count = 0
    for life in sorted(lives, key=lambda x: x.born):
        if count < len(ends) and ends[count] < life.born:
            count += 1
    return count


def hidden_copies(seen: Observations) -> list[Advice]:
    """Advise on view ops that had to copy, by line."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for e in seen.events:
        if e.kind == "hidden":
            groups[e.op, e.site].append(e.nbytes)
    items = []
    for (op, site), sizes in groups.items():
        total = sum(sizes)
        times = f"{len(sizes)} times, {bytes_text(total)} in total" if len(sizes) > 1 else f"{bytes_text(total)}"
        items.append(
            Advice(
                "hidden copies",
                f"{op or 'a view'} at {site or 'an unknown line'} had to copy {times}: its input is not contiguous "
                f"(transposed or sliced). Call contiguous() once before, or reshape before the transpose.",
                total,
                "copies",
                priority(max(sizes), seen.peak),
            )
        )
    return sorted(items, key=lambda a: -a.potential_savings)[:MOST]


def round_trips(seen: Observations) -> list[Advice]:
    """Advise on transfers of the same size to another device and back, again and again."""
    groups: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    for e in seen.events:
        if e.kind == "transfer":
            groups[e.device, e.to, e.nbytes].append(e)
    items = []
    for (source, target, nbytes), outward in groups.items():
        back = groups.get((target, source, nbytes), [])
        pairs = min(len(outward), len(back))
        if source > target or pairs < 2:  # each pair once; a single round trip is a result being fetched
            continue
        sites = ", ".join(sorted({e.site for e in (*outward, *back) if e.site})[:3])
        saved = 2 * pairs * nbytes
        items.append(
            Advice(
                "round trips",
                f"{bytes_text(nbytes)} went from {source} to {target} and back {pairs} times{f' at {sites}' if sites else ''}: "
                f"keep it on one device until the last op that needs it; this saves {bytes_text(saved)} of transfers.",
                saved,
                "transfers",
                priority(nbytes, max(seen.devices_bytes.values(), default=0)),
            )
        )
    return sorted(items, key=lambda a: -a.potential_savings)[:MOST]


def idle(seen: Observations) -> list[Advice]:
    """Advise on idle blocks of sizes that were not requested while tracking."""
    requests = {c.size: c.hits + c.misses for c in seen.before.classes}
    unused = [c for c in seen.after.classes if c.free and c.hits + c.misses == requests.get(c.size, 0)]
    in_classes = sum(c.size * c.free for c in seen.after.classes)
    large = seen.after.pooled_bytes - in_classes  # blocks of any size are listed under size 0
    saved = sum(c.size * c.free for c in unused) + (large if any(c.size == 0 for c in unused) else 0)
    if saved < LEAST_IDLE:
        return []
    blocks = sum(c.free for c in unused)
    return [
        Advice(
            "idle",
            f"the pool caches {blocks} idle block{'s' * (blocks != 1)} ({bytes_text(saved)}) of sizes that were not requested "
            f"while memory was tracked: memory.trim() returns idle memory to the system.",
            saved,
            "idle memory",
            priority(saved, seen.after.current_block_bytes + seen.after.pooled_bytes),
        )
    ]


# ---- weights


def ternary(model: Any, peak: int) -> list[Advice]:
    """Advise on float matrices that would be smaller with 2 bits per weight, and say if their values would change."""
    items = []
    for path, w in tensors_in(model):
        if w.dtype not in FLOATS or w.ndim != 2 or getattr(w.storage, "device", None) is None:
            continue
        spec = Spec(w.shape, w.dtype)
        packed = Spec(w.shape, dt.tern2).nbytes + 4  # and a scale
        saved = spec.nbytes - packed
        if saved < LEAST:
            continue
        exact = str(w.storage.device) == "cpu" and scale_of(host(w)) is not None
        effect = "its values do not change" if exact else "its values change: train or fine-tune with BitLinear"
        items.append(
            Advice(
                "ternary",
                f"{path or 'the tensor'} {spec} takes {bytes_text(spec.nbytes)}; as tern2 with a scale {bytes_text(packed)}. It contains "
                f"{'only -s, 0 and s' if exact else 'values other than -s, 0 and s'}: {effect}.",
                saved,
                "weights",
                priority(saved, max(peak, spec.nbytes)),
            )
        )
    return sorted(items, key=lambda a: -a.potential_savings)[:MOST]


def _by(op: str) -> str:
    return f"by {op} " if op else ""
