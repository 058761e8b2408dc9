"""Results made from chosen speeds and a seeded noise: what a test of verdicts needs, without measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.run import Plan, Results, Run, Series
from tritium.perf.work.canary import COMPUTE, MEMORY

HARD = Hard("a cpu", "f00d", 2, 2, "x86_64", "Linux", "native", 2)
ENVIRONMENT = Environment(
    HARD,
    "3.12.0",
    "0.1.0",
    "0123456789abcdef",
    False,
    {"numpy": "2.4"},
    "6.1",
    8.0,
    "",
    "performance",
    "mains",
    0.1,
    None,
)
COPIED = 32 << 20  # bytes the memory canary moves


def series(
    seconds: float, rng: np.random.Generator, *, generations: int = 15, rounds: int = 3, sd: float = 0.01
) -> Series:
    """Wall times around a value, log-normal from generation to generation and from batch to batch."""
    values = tuple(
        tuple(tuple(seconds * np.exp(level + rng.normal(0, sd / 2, 3))) for _ in range(rounds))
        for level in rng.normal(0, sd, generations)
    )
    return Series("wall", "s", tuple(tuple(tuple(map(float, b)) for b in g) for g in values))


def run(
    case: str, arm: str, seconds: float, rng: np.random.Generator, work: Work = Work(10**6, 1000, 1000), **how: Any
) -> Run:
    return Run(case, arm, Context(case.split()[0]), work, series=(series(seconds, rng, **how),))


def results(
    cases: Mapping[str, float],
    *,
    seed: int = 0,
    arms: Mapping[str, float] | None = None,
    canary: bool = True,
    canary_sd: float | None = None,
    compute: float = 1.0,
    memory: float = 1.0,
    plan: Plan = Plan(),
    **how: Any,
) -> Results:
    """Seconds of cases, each on every arm (times the arm's factor); the machine's own factors slow cases and canaries.

    `canary_sd`: the noise of the canaries, where it is not that of the cases.
    """
    rng = np.random.default_rng(seed)
    factors = arms or {"tritium": 1.0}
    steady = how if canary_sd is None else how | {"sd": canary_sd}
    runs = []
    for arm, factor in factors.items():
        runs += [run(case, arm, s * factor * compute, rng, **how) for case, s in cases.items()]
        if canary:
            runs.append(run(COMPUTE, arm, 1e-6 * compute, rng, **steady))
            runs.append(run(MEMORY, arm, 1e-3 * memory, rng, Work(0, COPIED // 2, COPIED // 2), **steady))
    return Results(
        "bench", "regression", "2026-01-31T12:00:00Z", "tritium bench", plan, ENVIRONMENT, tuple(factors), tuple(runs)
    )


def changed(given: Results, case: str, arm: str | None = None, **fields: Any) -> Results:
    """The same results with other fields in one case's runs."""
    runs = (replace(r, **fields) if r.case == case and arm in (None, r.arm) else r for r in given)
    return replace(given, runs=tuple(runs))


def without(given: Results, case: str, arm: str | None = None) -> Results:
    return replace(given, runs=tuple(r for r in given if not (r.case == case and arm in (None, r.arm))))
