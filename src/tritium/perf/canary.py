"""Work that no version of anything changes: what the machine itself did while something else was measured.

Knows nothing of Tritium: NumPy on one thread, once in the first cache and once through memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium.perf.case import Case, Made, Recipe
from tritium.perf.context import Context, Work

COMPUTE, MEMORY = "canary compute", "canary memory"
SIZES = {COMPUTE: 4096, MEMORY: 1 << 20}  # floats


def canary(candidate: str, *, name: str) -> Made:
    """The recipe; every candidate gets the same."""
    x = np.linspace(0, 1, SIZES[name], dtype=np.float32)
    out = np.empty_like(x)

    def compute() -> Any:
        return np.sqrt(x, out=out)

    def memory() -> Any:
        return np.copyto(out, x)

    return Made(compute if name == COMPUTE else memory, facts={"candidate": candidate})


def canaries() -> list[Case]:
    return [
        Case(
            name,
            Recipe("tritium.perf.canary:canary", {"name": name}),
            Context(name, (n,), optimisation="numpy"),
            Work(n, 4 * n, 4 * n, items=n, item="element"),
        )
        for name, n in SIZES.items()
    ]


def is_canary(case: str) -> bool:
    return case in SIZES
