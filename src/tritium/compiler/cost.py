"""A roofline model: the estimated time of a call from its work and this machine's measured ceilings.

An estimate is no measurement and is never reported as one.
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
    """A level of the memory hierarchy: its capacity, and its read bandwidth with all threads."""

    name: str
    nbytes: float
    rate: float  # bytes per second


@dataclass(frozen=True)
class Model:
    """The ceilings that estimates are computed from."""

    threads: int
    flops: float  # f32 operations per second
    int_ops: float  # int8 operations per second
    call_s: float  # seconds of a call on one element: the overhead of a call
    levels: tuple[Level, ...]  # smallest first

    def seconds(self, cost: Cost, integer: bool = False) -> float:
        """Return the estimated time: the overhead of a call plus the longer of compute and memory time."""
        moved = cost.read + cost.written
        return self.call_s + max(cost.flops / (self.int_ops if integer else self.flops), moved / self.rate(moved))

    def rate(self, nbytes: int) -> float:
        """Return the bandwidth in bytes per second of the first level that holds so many bytes."""
        return next((level.rate for level in self.levels if nbytes <= level.nbytes), self.levels[-1].rate)

    def bound(self, cost: Cost, integer: bool = False) -> str:
        """Return the limit of a call: "compute", "memory" or "call" (its overhead)."""
        moved = cost.read + cost.written
        compute = cost.flops / (self.int_ops if integer else self.flops)
        memory = moved / self.rate(moved)
        if max(compute, memory) < self.call_s:
            return "call"
        return "compute" if compute > memory else "memory"


def threads() -> int:
    """Return the current number of threads."""
    return int(native.num_threads()) if native is not None else 1


@cache
def model(count: int) -> Model:
    """Return the model for a number of threads; measure the ceilings if this machine has none stored."""
    measured = ceilings(quick=True, threads=sorted({1, count}))
    flops, int_ops = (measured.peak(kind, count) for kind in ("f32", "int8"))
    best = flops.best if flops is not None else 1e9
    levels = []
    for c in measured.caches:
        rate = _read_rate(measured, f"L{c.level} read", count)
        if rate:
            shared = max(1, getattr(c, "shared_by", 1))
            levels.append(Level(f"L{c.level}", c.nbytes * max(1, count // shared), rate))
    levels.append(Level("DRAM", float("inf"), _read_rate(measured, "DRAM read", count) or 1e10))
    return Model(count, best, int_ops.best if int_ops is not None else best, _call_s(), tuple(levels))


def _call_s() -> float:
    """Measure the overhead of a call: the best time of a kernel on one element."""
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


def _read_rate(measured: Any, name: str, count: int) -> float:
    rows = {(r.name, r.threads): r for r in measured.rows}
    row = rows.get((name, count))
    return row.best if row is not None and row.samples else 0.0


def seconds(op: Op, cost: Cost) -> float:
    """Return the estimated time of one call at the current number of threads."""
    return model(threads()).seconds(cost, integer=op in INTEGER)
