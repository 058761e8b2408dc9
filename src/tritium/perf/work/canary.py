"""Work that no version of anything changes: what the machine itself did while something else was measured.

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
    """The recipe; every candidate gets the same."""
    x = ones(SIZES[name])
    if name == COMPUTE:
        return Made(lambda: np.sqrt(x, out=x), facts={"candidate": candidate})
    out = ones(SIZES[name])
    return Made(lambda: np.copyto(out, x), facts={"candidate": candidate})


def ones(n: int) -> np.ndarray[Any, Any]:
    """On a cache line's boundary: elsewhere the same loop is slower by some per cent, and a canary must not have luck."""
    raw = np.empty(n + 16, np.float32)
    start = -(raw.ctypes.data // 4) % 16
    found = raw[start : start + n]
    found.fill(1)
    return found


def clock() -> Callable[[], float]:
    """A short look at how fast the CPU runs at this moment: seconds of a fixed piece of arithmetic in the first cache."""
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
    return case in SIZES
