"""Growth: the lines of code whose memory rises until the end, as that of a leak does.

Time is counted in events and calls of ops, so that the same program has the same lines on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tritium.machine.facts import bytes_text
from tritium.see.memory.records import Growth

Line = tuple[str, str]  # of code: the device of what it makes, and "file:line"
PARTS = 4
LEAST_STEPS = 8  # fewer are not judged
LEAST_BYTES = 1 << 10  # a smaller rise is not reported


class Change(NamedTuple):
    """A block that a line of code made, or that was made there and is freed."""

    clock: int
    nbytes: int  # negative: freed
    op: str
    where: Any  # the instruction that made it: a line may have several


def growing(
    changes: Mapping[Line, Sequence[Change]], alive: Mapping[Line, Sequence[int]], end: int
) -> tuple[Growth, ...]:
    """Return the lines whose bytes rise until the end, the most bytes first. `alive`: the sizes of their blocks."""
    rising = []
    for (device, site), course in changes.items():
        blocks = alive.get((device, site), ())
        steps = max(Counter(c.where for c in course if c.nbytes > 0).values(), default=0)
        if (
            site
            and steps >= LEAST_STEPS
            and rises([c.clock for c in course], [c.nbytes for c in course], sum(blocks), end)
        ):
            by_op = Counter[str]()
            for c in course:
                by_op[c.op] += c.nbytes
            rate = _rate(course) or f"{bytes_text(by_op.total() / steps)} more each step"
            rising.append(
                Growth(site, max(by_op, key=by_op.__getitem__), device, len(blocks), sum(blocks), by_op.total(), rate)
            )
    return tuple(sorted(rising, key=lambda g: (-g.nbytes, g.site, g.device)))


def rises(clock: Sequence[int], change: Sequence[int], alive: int, end: int) -> bool:
    """Return True if the bytes of a line rise in each quarter of the time from its first change to the end.

    A quarter counts by the least that was alive in it: what comes and goes does not rise. In the last quarter the rise is at
    least half of the average: what was filled before, such as a cache, does not rise.
    """
    times, changes = np.maximum.accumulate(clock), np.asarray(change)
    levels = alive - changes.sum() + changes.cumsum()
    bounds = times[0] + (end - times[0]) * np.arange(1, PARTS) // PARTS
    starts = np.searchsorted(times, bounds, side="right") - 1  # the last change before a quarter begins
    quarters = zip([0, *starts], [*starts, len(levels)], strict=True)
    rise = np.diff([*(levels[first : last + 1].min() for first, last in quarters), alive])
    return bool((rise > 0).all() and rise[-1] * 2 * PARTS >= rise.sum() >= LEAST_BYTES)


def _rate(changes: Sequence[Change]) -> str:
    """Return how many blocks a step adds, by the later half, since a first step may be unlike; "" if there are not more."""
    runs, more = Counter[Any](), Counter[Any]()
    for c in changes[len(changes) // 2 :]:
        runs[c.where] += c.nbytes > 0
        more[c.where] += 1 if c.nbytes > 0 else -1
    steps, blocks = max(runs.values()) or 1, sum(n for n in more.values() if n > 1)
    each = f"{blocks / steps:.1f}".removesuffix(".0")
    if blocks and blocks < steps and each != "1":
        every = steps / blocks
        return f"one more every {round(every) if every >= 2 else f'{every:.1f}'} steps"
    return f"{'one' if each == '1' else each} more each step" if blocks else ""
