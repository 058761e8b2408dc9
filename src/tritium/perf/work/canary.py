"""Canaries: work that no version of anything changes, to track the machine itself during a measurement.

Knows nothing of Tritium: NumPy on one thread, once in the first cache and once through memory.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from time import perf_counter_ns
from typing import Any

import numpy as np

from tritium.perf.records.case import Case, Context, Made, Recipe, Work

COMPUTE, MEMORY = "canary compute", "canary memory"
SIZES = {COMPUTE: 4096, MEMORY: 1 << 20}  # floats
LOOKS, PASSES = 3, 10


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

    def look() -> float:
        best = 1 << 62
        for _ in range(LOOKS):
            start = perf_counter_ns()
            for _ in repeat(None, PASSES):
                np.sqrt(x, out=x)
            best = min(best, perf_counter_ns() - start)
        return best / PASSES / 1e9

    return look


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
