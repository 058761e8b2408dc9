"""Canaries: work that no version of anything changes, to track the machine itself during a measurement.

Knows nothing of Tritium: NumPy on one thread, once in the first cache and once through memory.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from threading import Barrier
from time import perf_counter_ns
from typing import Any

import numpy as np

from tritium.perf.records.case import Case, Context, Made, Recipe, Work

COMPUTE, MEMORY = "canary compute", "canary memory"
SIZES = {COMPUTE: 4096, MEMORY: 1 << 20}  # floats
LOOKS, PASSES = 3, 10
TEAM_SIZE, TEAM_PASSES, MOST_TEAM = (
    1 << 16,
    5,
    16,
)  # floats of a thread: few calls, since each needs the interpreter's lock


def canary(candidate: str, *, name: str) -> Made:
    """Build a canary; every candidate gets the same."""
    x = ones(SIZES[name])
    if name == COMPUTE:
        return Made(lambda: np.sqrt(x, out=x), facts={"candidate": candidate})
    out = ones(SIZES[name])
    return Made(lambda: np.copyto(out, x), facts={"candidate": candidate})


def ones(n: int) -> np.ndarray[Any, Any]:
    """Return ones on a cache line's boundary: elsewhere the same loop is slower by some per cent."""
    raw = np.empty(n + 16, np.float32)
    start = -(raw.ctypes.data // 4) % 16
    aligned = raw[start : start + n]
    aligned.fill(1)
    return aligned


def clock() -> Callable[[], float]:
    """Return a probe of the CPU's current speed: seconds of a fixed piece of arithmetic in the L1 cache."""
    x = ones(SIZES[COMPUTE])
    return lambda: _fastest(x, PASSES)


def team(threads: int) -> Callable[[], float]:
    """Return a probe of all CPUs at once: seconds of such a piece while each thread runs it, in caches of its own.

    Two threads are slower together where their CPUs are one core, or share its power: one thread alone does not show that.
    """
    count = min(threads, MOST_TEAM)
    arrays, start = [ones(TEAM_SIZE) for _ in range(count)], Barrier(count)
    pool = ThreadPoolExecutor(count)

    def one(x: np.ndarray[Any, Any]) -> float:
        start.wait()
        return _fastest(x, TEAM_PASSES)

    return lambda: max(pool.map(one, arrays))  # the slowest thread is the one that work waits for


def _fastest(x: np.ndarray[Any, Any], passes: int) -> float:
    """Return the seconds of a pass over x, of the fastest of a few looks."""
    best = 1 << 62
    for _ in range(LOOKS):
        start = perf_counter_ns()
        for _ in repeat(None, passes):
            np.sqrt(x, out=x)
        best = min(best, perf_counter_ns() - start)
    return best / passes / 1e9


def canaries() -> list[Case]:
    """Return the cases of the canaries."""
    return [
        Case(
            name,
            Recipe("tritium.perf.work.canary:canary", {"name": name}),
            Context(name, (n,), optimisation="numpy"),
            Work(n, 4 * n, 4 * n, items=n, item="element"),
        )
        for name, n in SIZES.items()
    ]


def is_canary(case: str) -> bool:
    """Return True if a case is a canary."""
    return case in SIZES
