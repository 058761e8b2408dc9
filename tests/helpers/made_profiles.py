"""Timelines with known answers, made by hand: what a test of profiles needs, without recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from made_results import ENVIRONMENT
from tritium.perf.records.environment import Level, Limits
from tritium.see.trace.timeline import Counter, Samples, Timeline, What, timeline

# 100 GFLOP/s, 400 int8 GOP/s; 32 KiB at 100 GB/s, then memory at 10 GB/s.
LIMITS = Limits(2, 100e9, 400e9, (Level("L1", 32768, 100e9), Level("DRAM", None, 10e9)))
MACHINE = replace(ENVIRONMENT, limits=LIMITS)

MATMUL = What(
    "matmul", "op", "avx512", "cpu", "f32[8,8], f32[8,8] -> f32[8,8]", 2_000_000, 8000, 2000
)  # 20 µs at least
ADD = What("add", "op", "avx512", "cpu", "f32[9] -> f32[9]", 100_000, 800_000, 200_000)  # 100 µs at least, by memory
TINY = What("relu", "op", "avx512", "cpu", "f32[4] -> f32[4]", 4, 16, 16)
SCOPE, PROGRAM = What("step", "scope", device=""), What("f", "program", device="", detail="2 steps")


def made(*spans: tuple[What, int, int] | tuple[What, int, int, int], total: int = 1_000_000, **about: Any) -> Timeline:
    """A timeline of (what, start, elapsed[, lane]) in ns."""
    rows = [(s[0], s[1], s[2], s[3] if len(s) > 3 else 0) for s in spans]
    lanes = [f"thread {i}" for i in range(max((r[3] for r in rows), default=0) + 1)]
    return timeline(rows, lanes, total, **({"environment": MACHINE} | about))


def everything() -> Timeline:
    """A timeline that uses every field."""
    counters = (
        Counter("pool", "B", np.array([0, 100_000]), np.array([0.0, 4096.5])),
        Counter("power", "W", np.zeros(0, np.int64), np.zeros(0), "not measured: virtual_machine: none is shown"),
    )
    samples = Samples(
        ("main (a.py:1)", "f (a.py:7)"), ((0,), (0, 1)), np.array([10, 20, 30]), np.array([0, 0, 1]), np.array([0, 1, 0]), 10
    )  # fmt: skip
    return made(
        (SCOPE, 0, 500_000), (MATMUL, 0, 200_000), (ADD, 200_000, 300_000), (PROGRAM, 600_000, 100_000), (TINY, 650_000, 9),
        (MATMUL, 5, 100, 1), began="2026-01-31T12:00:00+00:00", name="a profile", counters=counters, samples=samples,
        dropped=3, event_cost_ns=61.5, scope_cost_ns=900.5, notes=("a note",),
    )  # fmt: skip


def repetitions(
    seed: int, n: int, times: dict[str, tuple[int, float]], noise: float = 0.01, gap: int = 500
) -> list[Timeline]:
    """Profiles of one run: for each name so many calls of about so many ns, one after another, with gaps between."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        at, spans = 0, []
        level = np.exp(rng.normal(0, noise))
        for name, (calls, ns) in times.items():
            for _ in range(calls):
                took = max(1, int(ns * level * np.exp(rng.normal(0, noise))))
                spans.append((What(name, "op", "avx512"), at, took))
                at += took + gap
        out.append(made(*spans, total=at))
    return out
