"""How long a call should take: its work against this machine's measured ceilings.

Knows nothing of kernels. An estimate is no measurement and never stands where one is asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tritium import ops
from tritium.buffer import Array, Storage, native
from tritium.dtype import f32
from tritium.machine.ceilings import ceilings
from tritium.op import Cost, Op

INTEGER = frozenset({ops.integer_matmul, ops.quantized_matmul})


@dataclass(frozen=True)
class Level:
    """A memory level: how much it holds, and how fast it is read at all threads."""

    name: str
    nbytes: float
    rate: float


@dataclass(frozen=True)
class Model:
    """What the estimates stand on."""

    threads: int
    flops: float  # f32 a second
    int_ops: float  # int8 a second
    call_s: float  # of a call with next to nothing to do
    levels: tuple[Level, ...]  # small to large

    def seconds(self, cost: Cost, integer: bool = False) -> float:
        """The longer of computing and moving, and the call itself."""
        moved = cost.read + cost.written
        return self.call_s + max(cost.flops / (self.int_ops if integer else self.flops), moved / self.rate(moved))

    def rate(self, nbytes: int) -> float:
        """Bytes a second of the level that holds so many."""
        return next((level.rate for level in self.levels if nbytes <= level.nbytes), self.levels[-1].rate)

    def bound(self, cost: Cost, integer: bool = False) -> str:
        """What limits the call: arithmetic, memory or the call itself."""
        moved = cost.read + cost.written
        compute = cost.flops / (self.int_ops if integer else self.flops)
        memory = moved / self.rate(moved)
        if max(compute, memory) < self.call_s:
            return "call"
        return "compute" if compute > memory else "memory"


def threads() -> int:
    return int(native.num_threads()) if native is not None else 1


@cache
def model(count: int) -> Model:
    """The model at so many threads; measures the ceilings if that was never done on this machine."""
    found = ceilings(quick=True, threads=sorted({1, count}))
    flops, int_ops = (found.peak(kind, count) for kind in ("f32", "int8"))
    best = flops.best if flops is not None else 1e9
    levels = []
    for c in found.caches:
        row = _row(found, f"L{c.level} read", count)
        if row:
            shared = max(1, getattr(c, "shared_by", 1))
            levels.append(Level(f"L{c.level}", c.nbytes * max(1, count // shared), row))
    levels.append(Level("DRAM", float("inf"), _row(found, "DRAM read", count) or 1e10))
    return Model(count, best, int_ops.best if int_ops is not None else best, _call_s(), tuple(levels))


def _call_s() -> float:
    """The best of some timed calls of a kernel on one element."""
    x: Any = np.zeros(1, np.float32)
    add: Any = np.add
    if native is not None:
        a = Array(Storage(4), f32, (1,), (1,), 0)
        kernel = native.kernel("add")
        add, x = (lambda p, q, out: kernel(p, q, out=out)), a
    times = []
    for _ in range(50):
        start = time.perf_counter_ns()
        for _ in range(10):
            add(x, x, out=x)
        times.append((time.perf_counter_ns() - start) / 10)
    return min(times) * 1e-9


def _row(found: Any, name: str, count: int) -> float:
    names = {(r.name, r.threads): r for r in found.rows}
    row = names.get((name, count))
    return row.best if row is not None and row.samples else 0.0


def seconds(op: Op, cost: Cost) -> float:
    """The estimate of one call at the present number of threads."""
    return model(threads()).seconds(cost, integer=op in INTEGER)
