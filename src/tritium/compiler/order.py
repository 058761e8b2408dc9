"""The scheduler: the order of steps with the lowest peak memory.

Knows nothing of tensors, ops or devices: a step is its inputs and the bytes of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tritium.compiler.plan import Block
from tritium.errors import ArgumentError

WINDOW = 10  # items whose orders are searched exhaustively
ROUNDS = 10  # of that search, at most; fewer for long orders
STEPS = 20_000  # items that all rounds together may visit
PEAKS = 8  # positions of the highest peak at which the least memory is searched for
NEAR = 64  # items before and after such a position that the search may visit


class Item(NamedTuple):
    """A step: the indices of earlier items that it reads, and the bytes of its result.

    Bytes are 0 for memory outside the arena (arguments, constants, captured tensors). Those of an alias do not count.
    """

    inputs: tuple[int, ...]
    nbytes: int
    alias: int | None = None  # the item whose memory this one shares: a view, or a result in place
    after: tuple[
        int, ...
    ] = ()  # items that must run before for another reason: readers of memory that this item overwrites


class _Steps(NamedTuple):
    """Items as columns. A memory is identified by the item that owns it, which is no alias."""

    needs: list[set[int]]  # items that must run before
    users: list[list[int]]  # items that must run after
    owner: list[int]  # the item whose memory holds the result
    makes: list[int]  # bytes allocated for the result
    reads: list[set[int]]  # memories that must be alive besides the item's own
    readers: list[list[int]]  # of each memory
    pinned: set[int]  # memories alive to the end


def order(items: Sequence[Item], keep: frozenset[int]) -> list[int]:
    """Return a topological order: of several candidates the one with the lowest peak, or the original if none is lower."""
    steps = _steps(items, keep)
    best = list(range(len(items)))
    profile = _profile(steps, best)
    lowest = max(profile, default=0)
    is_least = lowest == _least(steps) or _is_forced(steps, best, profile, lowest)
    for candidate in (_depth_first, _forward, _backward, _smooth):
        if is_least:
            break
        numbers = candidate(steps, best)
        profile = _profile(steps, numbers)
        if (candidate_peak := max(profile)) < lowest:
            best, lowest = numbers, candidate_peak
            is_least = lowest == _least(steps) or _is_forced(steps, best, profile, lowest)
    return best


def peak(items: Sequence[Item], keep: frozenset[int], order: Sequence[int]) -> int:
    """Return the most bytes alive at one step. Inputs and result of an item are alive together; those in `keep` to the end."""
    return max(_profile(_steps(items, keep), order), default=0)


def lifetimes(items: Sequence[Item], keep: frozenset[int], order: Sequence[int]) -> list[Block | None]:
    """Return the bytes of each memory of the arena, and its first and last position in the order; aliases count as uses.

    None for an item without memory in the arena: it is outside, it is an alias, or it or an alias of it is in `keep`.
    """
    steps = _steps(items, keep)
    last = _last_uses(steps, order)
    blocks: list[Block | None] = [None] * len(items)
    for position, i in enumerate(order):
        if steps.makes[i] and i not in steps.pinned:
            blocks[i] = Block(steps.makes[i], position, last[i])
    return blocks


def _steps(items: Sequence[Item], keep: frozenset[int]) -> _Steps:
    if outside := [k for k in keep if not 0 <= k < len(items)]:
        raise ArgumentError(f"order: keep names item {outside[0]}; there are {len(items)} items.")
    owner: list[int] = []
    makes: list[int] = []
    needs: list[set[int]] = []
    reads: list[set[int]] = []
    users: list[list[int]] = [[] for _ in items]
    readers: list[list[int]] = [[] for _ in items]
    for i, (inputs, nbytes, alias, after) in enumerate(items):
        sources = inputs if alias is None or alias in inputs else (*inputs, alias)
        need = {*sources, *after} if after else set(sources)
        for j in need:
            if not 0 <= j < i:
                raise ArgumentError(
                    f"order: item {i} needs items {sorted(need)}; items come after what they need, from 0 on."
                )
            users[j].append(i)
        if nbytes < 0:
            raise ArgumentError(f"order: item {i} makes {nbytes} bytes; it needs 0 or more.")
        owner.append(i if alias is None else owner[alias])
        makes.append(nbytes if alias is None else 0)
        needs.append(need)
        read = {owner[j] for j in sources if makes[owner[j]]}
        reads.append(read)
        for r in read:
            readers[r].append(i)
    return _Steps(needs, users, owner, makes, reads, readers, {owner[k] for k in keep})


def _last_uses(steps: _Steps, order: Sequence[int]) -> list[int]:
    """Return the last position in the order at which each memory is used."""
    last = [0] * len(order)
    for position, i in enumerate(order):
        last[i] = position
        for r in steps.reads[i]:
            last[r] = position
    return last


def _profile(steps: _Steps, order: Sequence[int]) -> list[int]:
    """Return the bytes alive at each position of an order."""
    last = _last_uses(steps, order)
    makes, reads, pinned = steps.makes, steps.reads, steps.pinned
    profile: list[int] = []
    live = 0
    for position, i in enumerate(order):
        live += makes[i]
        profile.append(live)
        if last[i] == position and i not in pinned:
            live -= makes[i]
        for r in reads[i]:
            if last[r] == position and r not in pinned:
                live -= makes[r]
    return profile


def _least(steps: _Steps) -> int:
    """Return a lower bound of the peak: the step that uses most memory, or all pinned memory."""
    makes = steps.makes
    touched = max((n + sum([makes[r] for r in read]) for n, read in zip(makes, steps.reads, strict=True)), default=0)
    return max(touched, sum(makes[r] for r in steps.pinned))


def _is_forced(steps: _Steps, order: Sequence[int], profile: Sequence[int], most: int) -> bool:
    """Return True if as many bytes as at the peak are alive at one of its items in every order, so that none is better."""
    position = -1
    for _ in range(PEAKS):
        try:
            position = profile.index(most, position + 1)
        except ValueError:
            return False
        if _alive_with(steps, order[position]) == most:
            return True
    return False


def _alive_with(steps: _Steps, item: int) -> int:
    """Return bytes that are alive when an item runs, in any order: made before it, and read by it or after it."""
    makes, owner, pinned = steps.makes, steps.owner, steps.pinned
    later = _near(item, steps.users)
    before = {owner[i] for i in _near(item, steps.needs)}
    alive = {r for r in before if r in pinned or not later.isdisjoint(steps.readers[r])}
    return sum(makes[r] for r in alive | {owner[item]} | steps.reads[item])


def _near(item: int, links: Sequence[Collection[int]]) -> set[int]:
    """Return an item and those nearest to it along its links, in one direction."""
    near = {item}
    waiting = [item]
    for i in waiting:
        if len(near) > NEAR:
            break
        new = [j for j in links[i] if j not in near]
        near.update(new)
        waiting += new
    return near


# ---- candidates: each takes the best order so far


def _depth_first(steps: _Steps, _: list[int]) -> list[int]:
    """Return a depth-first order; of several inputs, the one with the most scratch memory comes first (Sethi, Ullman)."""
    users, owner, makes = steps.users, steps.owner, steps.makes
    count = len(makes)
    leaves = [makes[r] for r in owner]
    spare = [0] * count  # scratch bytes: those needed to compute an item beyond its result, as if nothing were shared
    ordered: list[list[int]] = []
    for i, need in enumerate(steps.needs):
        ordered.append(sorted(need, key=lambda j: (spare[j], -j)))
        held = most = 0
        for j in reversed(ordered[i]):
            most = max(most, held + leaves[j] + spare[j])
            held += leaves[j]
        spare[i] = max(most, held + makes[i]) - leaves[i]
    stack = sorted((i for i in range(count) if not users[i]), key=lambda i: (spare[i], -i))
    opened = [False] * count
    done = [False] * count
    result: list[int] = []
    while stack:
        i = stack[-1]
        if not opened[i]:
            opened[i] = True
            stack += ordered[i]
            continue
        stack.pop()
        if not done[i]:
            done[i] = True
            result.append(i)
    return result


def _forward(steps: _Steps, _: list[int]) -> list[int]:
    """Schedule from the beginning: always the ready item that raises the live bytes least."""
    makes, reads, pinned = steps.makes, steps.reads, steps.pinned
    unread = [len(r) for r in steps.readers]
    rest = [sum(r) for r in steps.readers]  # sum of the indices of readers left: with one reader left, its index
    change = [n if steps.readers[i] or i in pinned else 0 for i, n in enumerate(makes)]
    for r, n in enumerate(unread):
        if n == 1 and r not in pinned:
            change[rest[r]] -= makes[r]

    def place(i: int) -> list[int]:
        moved: list[int] = []
        for r in reads[i]:
            unread[r] -= 1
            rest[r] -= i
            if unread[r] == 1 and r not in pinned:
                change[rest[r]] -= makes[r]
                moved.append(rest[r])
        return moved

    return _schedule(steps.needs, steps.users, change, place, 1)


def _backward(steps: _Steps, _: list[int]) -> list[int]:
    """Schedule from the end: always the item without unscheduled users that makes the fewest new bytes alive."""
    makes, reads, readers = steps.makes, steps.reads, steps.readers
    live = set(steps.pinned)
    change = [sum(makes[r] for r in read if r not in live) for read in reads]
    for i, n in enumerate(makes):
        change[i] -= n if readers[i] or i in live else 0

    def place(i: int) -> list[int]:
        moved: list[int] = []
        for r in reads[i]:
            if r not in live:
                live.add(r)
                moved += readers[r]
                for j in readers[r]:
                    change[j] -= makes[r]
        return moved

    return _schedule(steps.users, steps.needs, change, place, -1)[::-1]


def _schedule(
    needs: Sequence[Collection[int]],
    users: Sequence[Collection[int]],
    change: list[int],
    place: Callable[[int], list[int]],
    sign: int,
) -> list[int]:
    """Schedule items: the ready one with the least change, then the lowest sign * index.

    `place` updates `change` for a scheduled item and returns the items whose change fell.
    """
    waiting = [len(n) for n in needs]
    ready = [(change[i], sign * i) for i, n in enumerate(waiting) if not n]
    heapify(ready)
    done = [False] * len(waiting)
    result: list[int] = []
    while ready:
        i = sign * heappop(ready)[1]
        if done[i]:  # a stale entry: the one with the lower change came first
            continue
        done[i] = True
        result.append(i)
        for j in place(i):
            if not waiting[j] and not done[j]:
                heappush(ready, (change[j], sign * j))
        for j in users[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heappush(ready, (change[j], sign * j))
    return result


# ---- exhaustive search around the peak


def _smooth(steps: _Steps, best: list[int]) -> list[int]:
    """Reorder the items around the peak of the best order so far optimally; repeat while that lowers the peak."""
    order = best
    for _ in range(max(1, min(ROUNDS, STEPS // len(order)))):
        profile = _profile(steps, order)
        most = max(profile)
        begin = max(0, min(profile.index(most) - WINDOW // 2, len(order) - WINDOW))
        end = min(begin + WINDOW, len(order))
        window = order[begin:end]
        last = _last_uses(steps, order)
        dying = {r for i in window for r in (i, *steps.reads[i]) if last[r] < end and r not in steps.pinned}
        reordered = _search(steps, window, dying, profile[begin] - steps.makes[order[begin]], most)
        if not reordered:
            break
        order = [*order[:begin], *reordered, *order[end:]]
    return order


def _search(steps: _Steps, window: list[int], dying: set[int], live: int, limit: int) -> list[int] | None:
    """Return the order of the window with the lowest peak, from the bytes alive before it; None if none is below the limit.

    Dynamic programming over the sets of items that may come first, smaller sets before larger.
    """
    bit = {i: 1 << k for k, i in enumerate(window)}
    needs = {i: sum(bit[j] for j in steps.needs[i] if j in bit) for i in window}
    # A memory is freed once its owner and all its readers are done; only those freed in the window are listed.
    touch = {r: sum(bit[j] for j in {r, *steps.readers[r]} if j in bit) for r in dying}
    frees = {i: [(touch[r], steps.makes[r]) for r in {i, *steps.reads[i]} if r in touch] for i in window}
    # Bit set of the items done -> their peak, the bytes alive after them, their order.
    states: dict[int, tuple[int, int, list[int]]] = {0: (0, live, [])}
    for _ in window:
        extended: dict[int, tuple[int, int, list[int]]] = {}
        for done, (peak, before, path) in states.items():
            for i in window:
                if done & bit[i] or needs[i] & ~done:
                    continue
                after = before + steps.makes[i]
                highest = max(peak, after)
                after_item = done | bit[i]
                if highest < min(limit, extended[after_item][0] if after_item in extended else limit):
                    after -= sum(size for touched, size in frees[i] if not touched & ~after_item)
                    extended[after_item] = highest, after, [*path, i]
        states = extended
    return next((path for _, _, path in states.values()), None)
