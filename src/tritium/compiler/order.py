"""Which order of the steps needs least memory.

Knows nothing of tensors, ops or devices: a step is what it reads and how many bytes it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tritium.compiler.plan import Block
from tritium.errors import ArgumentError

WINDOW = 10  # items whose orders are all looked at
ROUNDS = 10  # how often, at most; fewer for long orders
STEPS = 20_000  # what all rounds together may walk over


class Item(NamedTuple):
    """A step. Inputs are numbers of items before it; bytes are those of its result.

    Bytes are 0 for what lives outside (arguments, constants, captured tensors). Those of an alias do not count.
    """

    inputs: tuple[int, ...]
    nbytes: int
    alias: int | None = None  # the item whose memory this one shares: a view, or a result in place
    after: tuple[int, ...] = ()  # what must come before for another reason: readers of memory that this item overwrites


class _Steps(NamedTuple):
    """Items as columns. A memory is named by the item that owns it, which is no alias."""

    needs: list[set[int]]  # what must come before
    users: list[list[int]]  # who comes after
    owner: list[int]  # whose memory holds the result
    makes: list[int]  # bytes that begin to live
    reads: list[set[int]]  # memories that must be alive beside the item's own
    readers: list[list[int]]  # of each memory
    kept: set[int]  # memories alive to the end


def order(items: Sequence[Item], keep: frozenset[int]) -> list[int]:
    """All items, each after what it needs: of several orders the one with the lowest peak; the given one if none is lower."""
    steps = _steps(items, keep)
    best = list(range(len(items)))
    lowest = max(_profile(steps, best), default=0)
    least = _least(steps)
    for candidate in (_depth_first, _forward, _backward, _smooth):
        if lowest == least:
            break
        numbers = candidate(steps, best)
        if (found := max(_profile(steps, numbers))) < lowest:
            best, lowest = numbers, found
    return best


def peak(items: Sequence[Item], keep: frozenset[int], order: Sequence[int]) -> int:
    """Bytes alive at the worst step: an item's inputs and its result are alive together, results that are kept to the end."""
    return max(_profile(_steps(items, keep), order), default=0)


def lifetimes(items: Sequence[Item], keep: frozenset[int], order: Sequence[int]) -> list[Block | None]:
    """When each memory of the arena is alive, in positions of the order, and its bytes; uses through aliases count.

    None for an item without such memory: it lives outside, is an alias, or it or an alias of it is kept.
    """
    steps = _steps(items, keep)
    last = _last_uses(steps, order)
    blocks: list[Block | None] = [None] * len(items)
    for position, i in enumerate(order):
        if steps.makes[i] and i not in steps.kept:
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
        sources = inputs if alias is None else (*inputs, alias)
        need = {*sources, *after}
        if need and not 0 <= min(need) <= max(need) < i:
            raise ArgumentError(
                f"order: item {i} needs items {sorted(need)}; items come after what they need, from 0 on."
            )
        if nbytes < 0:
            raise ArgumentError(f"order: item {i} makes {nbytes} bytes; it needs 0 or more.")
        owner.append(i if alias is None else owner[alias])
        makes.append(nbytes if alias is None else 0)
        needs.append(need)
        reads.append({r for j in sources if makes[r := owner[j]]})
        for j in need:
            users[j].append(i)
        for r in reads[i]:
            readers[r].append(i)
    return _Steps(needs, users, owner, makes, reads, readers, {owner[k] for k in keep})


def _last_uses(steps: _Steps, order: Sequence[int]) -> list[int]:
    """The position of the last step that touches each memory."""
    last = [0] * len(order)
    for position, i in enumerate(order):
        last[i] = position
        for r in steps.reads[i]:
            last[r] = position
    return last


def _profile(steps: _Steps, order: Sequence[int]) -> list[int]:
    """Bytes alive at each position."""
    last = _last_uses(steps, order)
    makes, reads, kept = steps.makes, steps.reads, steps.kept
    profile: list[int] = []
    live = 0
    for position, i in enumerate(order):
        live += makes[i]
        profile.append(live)
        if last[i] == position and i not in kept:
            live -= makes[i]
        for r in reads[i]:
            if last[r] == position and r not in kept:
                live -= makes[r]
    return profile


def _least(steps: _Steps) -> int:
    """No order needs less: the step that touches most, or all that is kept."""
    makes = steps.makes
    touched = max((n + sum(makes[r] for r in read) for n, read in zip(makes, steps.reads, strict=True)), default=0)
    return max(touched, sum(makes[r] for r in steps.kept))


# ---- candidates: each is given the best order so far


def _depth_first(steps: _Steps, _: list[int]) -> list[int]:
    """Each result just after what it needs; of those the one first that needs most beyond what it leaves (Sethi, Ullman)."""
    users, owner, makes = steps.users, steps.owner, steps.makes
    count = len(makes)
    leaves = [makes[r] for r in owner]
    spare = [0] * count  # bytes an item needs while it is made, beyond what it leaves; as if nothing were shared
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
    """From the beginning: always the ready item that raises the live bytes least."""
    makes, reads, kept = steps.makes, steps.reads, steps.kept
    unread = [len(r) for r in steps.readers]
    rest = [sum(r) for r in steps.readers]  # when one reader is left, this is its number
    change = [n if steps.readers[i] or i in kept else 0 for i, n in enumerate(makes)]
    for r, n in enumerate(unread):
        if n == 1 and r not in kept:
            change[rest[r]] -= makes[r]

    def place(i: int) -> list[int]:
        moved: list[int] = []
        for r in reads[i]:
            unread[r] -= 1
            rest[r] -= i
            if unread[r] == 1 and r not in kept:
                change[rest[r]] -= makes[r]
                moved.append(rest[r])
        return moved

    return _list(steps.needs, steps.users, change, place, 1)


def _backward(steps: _Steps, _: list[int]) -> list[int]:
    """From the end: always the item, needed by nobody before it, that asks for the fewest bytes not alive yet."""
    makes, reads, readers = steps.makes, steps.reads, steps.readers
    live = set(steps.kept)
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

    return _list(steps.users, steps.needs, change, place, -1)[::-1]


def _list(
    needs: Sequence[Collection[int]],
    users: Sequence[Collection[int]],
    change: list[int],
    place: Callable[[int], list[int]],
    sign: int,
) -> list[int]:
    """List scheduling: the ready item of the least change, then of the lowest sign * number. `place` says whose change fell."""
    waiting = [len(n) for n in needs]
    ready = [(change[i], sign * i) for i, n in enumerate(waiting) if not n]
    heapify(ready)
    done = [False] * len(waiting)
    result: list[int] = []
    while ready:
        i = sign * heappop(ready)[1]
        if done[i]:  # an entry from before its change fell: the newer one came first
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


# ---- the best order of a few items around the worst moment


def _smooth(steps: _Steps, best: list[int]) -> list[int]:
    """The best order so far, with the items around its worst position in the best order of theirs; again while that helps."""
    order = best
    for _ in range(max(1, min(ROUNDS, STEPS // len(order)))):
        profile = _profile(steps, order)
        most = max(profile)
        begin = max(0, min(profile.index(most) - WINDOW // 2, len(order) - WINDOW))
        end = min(begin + WINDOW, len(order))
        window = order[begin:end]
        last = _last_uses(steps, order)
        dying = {r for i in window for r in (i, *steps.reads[i]) if last[r] < end and r not in steps.kept}
        found = _search(steps, window, dying, profile[begin] - steps.makes[order[begin]], most)
        if not found:
            break
        order = [*order[:begin], *found, *order[end:]]
    return order


def _search(steps: _Steps, window: list[int], dying: set[int], live: int, limit: int) -> list[int] | None:
    """The order of the window with the lowest peak, given the bytes alive before it; None if none stays below the limit.

    Every set of items that may come first is looked at once, smaller sets before larger.
    """
    bit = {i: 1 << k for k, i in enumerate(window)}
    needs = {i: sum(bit[j] for j in steps.needs[i] if j in bit) for i in window}
    # A memory dies once its maker and all its readers are done; only those that die in the window are listed.
    touch = {r: sum(bit[j] for j in {r, *steps.readers[r]} if j in bit) for r in dying}
    frees = {i: [(touch[r], steps.makes[r]) for r in {i, *steps.reads[i]} if r in touch] for i in window}
    # The items done -> their peak, the bytes alive after them, their order.
    states: dict[int, tuple[int, int, list[int]]] = {0: (0, live, [])}
    for _ in window:
        grown: dict[int, tuple[int, int, list[int]]] = {}
        for done, (peak, before, path) in states.items():
            for i in window:
                if done & bit[i] or needs[i] & ~done:
                    continue
                after = before + steps.makes[i]
                reached = max(peak, after)
                now = done | bit[i]
                if reached < min(limit, grown[now][0] if now in grown else limit):
                    after -= sum(size for touched, size in frees[i] if not touched & ~now)
                    grown[now] = reached, after, [*path, i]
        states = grown
    return next((path for _, _, path in states.values()), None)
