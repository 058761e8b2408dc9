"""Cases of the self-test: five ops of Tritium, one of them with extra work for the second contender.

A worker imports this file, so it imports little.
"""

from __future__ import annotations

from typing import Any

import tritium as tt
from tritium.perf.records.case import Arm, Case, Context, Made, Recipe

# Op: rows and columns. Extra work is more rows; of `bitlinear`, more outputs.
SHAPES = {
    "matmul": (200, 256),
    "add": (500, 512),
    "softmax": (200, 512),
    "rms_norm": (50, 2560),
    "bitlinear": (1000, 1024),
}


def work(candidate: str, *, operation: str, extra: float) -> Made:
    """Build one op of Tritium, with more work for the contender "head"."""
    rows, columns = SHAPES[operation]
    rows = round(rows * (1 + (extra if candidate == "head" else 0)))

    def random_tensor(*shape: int) -> Any:
        return tt.rand(shape, seed=0) - 0.5

    if operation == "bitlinear":
        layer, x = tt.nn.BitLinear.from_float(random_tensor(rows, columns)), random_tensor(4, columns)
        return Made(lambda: layer(x))
    a = random_tensor(rows, columns)
    if operation == "matmul":
        b = random_tensor(columns, columns)
        return Made(lambda: tt.matmul(a, b))
    if operation == "add":
        c = random_tensor(rows, columns)
        return Made(lambda: tt.add(a, c))
    function = {"softmax": tt.softmax, "rms_norm": tt.rms_norm}[operation]
    return Made(lambda: function(a))


def cases(slower: str = "", extra: float = 0.0) -> list[Case]:
    """Return the suite: five ops, one of them with extra work in the second contender."""
    return [
        Case(
            name, Recipe("tritium.perf.gate.selftest_cases:work", {"operation": name, "extra": extra if name == slower else 0.0}),
            Context(name, shape),
        )
        for name, shape in SHAPES.items()
    ]  # fmt: skip


ARMS = (Arm("base", "base"), Arm("head", "head"))
