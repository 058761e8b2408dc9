"""Results, verdicts, histories, profiles and memory made up for the tests of reports: nothing is measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

import measured
from made_results import changed, results
from tritium.perf.gate.compare import compare_paired
from tritium.perf.gate.selftest import Selftest, Trial
from tritium.perf.gate.verdict import Suite
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Level, Limits
from tritium.perf.records.run import Results, Run, Series, not_measured
from tritium.perf.store.trends import Point, Trend, trend
from tritium.see.memory.file import Memory
from tritium.see.memory.pressure import Pressure
from tritium.see.memory.records import Allocation, AtPeak, DeviceUse, Idle
from tritium.see.profile.profile import Profile
from tritium.see.trace.timeline import What, timeline

LIMITS = Limits(2, 3e11, 7e12, (Level("L1", 98304, 4e11), Level("L2", 4 << 20, 2e11), Level("DRAM", None, 2.7e10)))
ARMS = {"tritium": 1.0, "tritium portable": 2.2, "numpy": 1.6}
OPERATIONS = ("matmul", "add", "softmax", "bitlinear", "quantize")


def many(count: int = 100, arms: dict[str, float] | None = None, **how: Any) -> Results:
    """So many cases on every arm, with work, peaks, first calls, flags and ceilings."""
    sizes = [64, 128, 256, 512, 1024, 2048, 96, 192, 384, 768, 80, 160, 320, 640, 1280, 100, 200, 400, 800, 1600]
    cases = {
        f"{OPERATIONS[i % len(OPERATIONS)]} {n}x{n} f32": 1e-6 * (1 + i % 7) * (n / 64) ** 1.5
        for i in range(count)
        for n in (sizes[i // len(OPERATIONS) % len(sizes)],)
    }
    made = results(cases, arms=ARMS if arms is None else arms, **how)
    runs = tuple(_richer(run, i) for i, run in enumerate(made.runs))
    env = replace(made.environment, limits=LIMITS)
    return replace(
        made, runs=runs, environment=env, suite="compare", kind="compare", command="tritium compare", elapsed_s=74.0
    )


def _richer(run: Run, i: int) -> Run:
    words = run.case.split()
    if words[0] == "canary":
        return run
    n = int(words[1].split("x")[0])
    work = Work(2 * n**3 if words[0] in ("matmul", "bitlinear") else 5 * n * n, 8 * n * n, 4 * n * n)
    peak = Series("peak_bytes", "B", (((float(4 * n * n),),),), exact=True)
    if run.arm == "numpy":
        peak = not_measured("peak_bytes", "B", "unsupported: only Tritium's own memory is counted")
    flags = ("2 rounds repeated: other work or the hypervisor broke in",) if i % 9 == 0 else ()
    return replace(
        run, context=Context(words[0], (n, n)), work=work, series=(*run.series, peak), flags=flags, first_call_s=2e-3,
        checked="equal to NumPy in f64 within 1e-5", iterations=100, warmup=16,
    )  # fmt: skip


def failing(given: Results) -> Results:
    """One case fails, one runs out of memory, one is slower than numpy."""
    first, second, third = given.cases[:3]
    lost = changed(given, first, "numpy", status="failed", reason="ValueError: no such dtype", series=())
    lost = changed(lost, second, "tritium portable", status="out of memory", reason="8 GiB were asked for", series=())
    slow = np.random.default_rng(1)
    from made_results import series

    return changed(lost, third, "numpy", series=(series(1e-7, slow),))


def verdicts(slower: bool = True) -> tuple[Results, Suite]:
    """Two revisions side by side: one case is slower, one faster, the rest equal."""
    cases = {f"{op} 512x512 f32": 1e-4 for op in OPERATIONS}
    both = results(cases, arms={"base": 1.0, "head": 1.0})
    factors = {"matmul 512x512 f32": 1.2 if slower else 1.0, "softmax 512x512 f32": 0.8}
    runs = []
    for run in both.runs:
        by = factors.get(run.case, 1.0) if run.arm == "head" else 1.0
        values = tuple(tuple(tuple(v * by for v in b) for b in g) for g in run.series[0].values)
        runs.append(replace(run, series=(replace(run.series[0], values=values),)))
    made = replace(both, runs=tuple(runs))
    suite = compare_paired(made, "base", "head")
    return made, replace(suite, base="v1.0 (base)", head="head", command="tritium regression-test --against v1.0")


def trends(given: Results, step: float = 1.12) -> dict[tuple[str, str], Trend]:
    """Thirty runs of three cases; the first has a step."""
    rng = np.random.default_rng(5)
    out = {}
    for number, case in enumerate(given.cases[:3]):
        points = []
        for i in range(30):
            level = math.log(1e-4) + (math.log(step) if number == 0 and i >= 18 else 0.0) + rng.normal(0, 0.004)
            day = f"2026-01-{i + 1:02d}T12:00:00Z"
            canary = math.log(1e-6) + rng.normal(0, 0.002)
            about = (f"run{i}", day, f"{i:02d}abcdef", "machine", 2, canary, "s")
            points.append(Point(*about, level, level - 0.006, level + 0.006, 15))
        out[case, given.arms[0]] = trend(points, "wall")
    return out


def selftest() -> Selftest:
    """Ten suites of equal code, no alarm."""
    rng = np.random.default_rng(2)
    names = ("a", "b", "c", "d", "e")
    trials = []
    for i in range(10):
        ratios = {n: float(np.exp(rng.normal(0, 0.005))) for n in names}
        trials.append(
            Trial(i, "", 0.0, 0, dict.fromkeys(names, "EQUIVALENT"), ratios, dict.fromkeys(names, 0.01), 14.0)
        )
    return Selftest(tuple(trials), 0.03)


def profile(slow: int = 1) -> Profile:
    """Three layers of a made-up network."""
    spans = []
    at = 0
    for layer in range(3):
        name = f"layer {layer}"
        parts = [("attention", 40_000), ("ternary_matmul", 90_000 * slow), ("silu", 15_000)]
        spans.append((What(name, "scope"), at, sum(n for _, n in parts), 0))
        for op, elapsed in parts:
            what = What(op, kernel="native", detail="f32[8,512] -> f32[8,512]", flops=10**6, read=10**5, written=10**5)
            spans.append((what, at, elapsed, 0))
            at += elapsed
        at += 5_000
    return Profile(timeline(spans, ["MainThread"], at, name="three layers", began="2026-01-31T12:00:00Z"))


def tracked() -> Memory:
    """A tracked run: eight operations alive at the peak, one of them afterwards too."""
    peak = tuple(Allocation((9 - i) << 20, f"op{i}", f"model.py:{i}", "MainThread", "cpu", i, 0) for i in range(8))
    use = DeviceUse("cpu", 1 << 20, 2 << 20, 50 << 20, 9, 8, 7, 0, 44 << 20, limit=64 << 20)
    at_peak = AtPeak(50 << 20, peak, 1 << 20, 5 << 20)
    pressure = Pressure("cpu", "low", 1, 2, "limit", "half of it")
    idle = Idle(0, 0, 0, (), 0)
    return Memory(
        "decode", "2026-01-31T12:00:00Z", 10, (use,), (), at_peak, peak[:1], idle, (), (), pressure, 0, (), 0
    )  # fmt: skip


def hostile(listed: tuple[str, ...], arms: int = 8) -> Results:
    """Results in which every text there is, is one of these names; each has a run that was measured and one that failed."""
    whole = [measured.hostile(name) for name in listed]
    first = whole[0]
    known = tuple(dict.fromkeys(run.arm for made in whole for run in made.runs))
    runs = {run.key: run for made in whole for run in made.runs}
    env = replace(first.environment, limits=LIMITS)
    return replace(first, runs=tuple(runs.values()), arms=known[:arms], environment=env, notes=listed)


def hostile_trends(given: Results, listed: tuple[str, ...]) -> dict[tuple[str, str], Trend]:
    """The trends of these results, whose every run, commit and machine is one of these names."""
    out = {}
    for number, (key, made) in enumerate(trends(given).items()):
        names = [listed[(number + i) % len(listed)] for i in range(len(made.points))]
        points = [replace(q, run=n, commit=n, fingerprint=names[0]) for q, n in zip(made.points, names, strict=True)]
        out[key] = trend(points, "wall")
    return out


def hostile_selftest(listed: tuple[str, ...]) -> Selftest:
    """The self-test with these names as its cases."""
    cases = dict(zip("abcde", listed, strict=False))

    def renamed(values: dict[str, Any]) -> dict[str, Any]:
        return {cases.get(name, name): value for name, value in values.items()}

    return replace(
        selftest(),
        trials=tuple(
            replace(t, outcomes=renamed(t.outcomes), ratios=renamed(t.ratios), widths=renamed(t.widths))
            for t in selftest().trials
        ),
    )
