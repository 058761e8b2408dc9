"""Drift of the machine between runs of different days, and the change of a case after it is subtracted.

Numbers below are from pairs of unchanged runs on shared machines (docs/measuring.md).

A machine drifts in two ways that have little to do with each other: how fast it computes and how fast it moves memory. So
every run measures two canaries, one of each kind. A case that fits into the core's own caches follows the first. One that
moves more bytes follows somewhere between the two: the middle is subtracted, and the distance is uncertainty.

Worse than drift is a neighbour that takes half of the core for some seconds: everything then takes 1.4 to 1.65 times as long,
and medians of two unchanged runs differ by 20 %. It only ever makes a call slower, so the fastest batch of a process, averaged
over the fastest processes, hardly changes: it stays within 1 % or so for compute-bound cases. The speed of the undisturbed
core comes from the clock probes that every round takes. A probe is a thousandth of a batch: where the compute canary, whose
batches are as long as any, moved differently from the clock, a run had no undisturbed batch, and a case may have moved as far
as either. That distance is uncertainty too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tritium.perf.gate.judge import Estimate, levels
from tritium.perf.gate.verdict import Rules
from tritium.perf.records.run import Results, Run, Series
from tritium.perf.stats.resample import Floats, bits, draws, seed_of, student_beyond, student_quantile
from tritium.perf.work.canary import COMPUTE, MEMORY, is_canary

OTHERS = ("numpy", "torch", "torch.compile", "jax", "mlx", "reference")  # contenders whose speed is not Tritium's
FASTER = 5  # the fastest process of every so many counts
RESAMPLES = 2000
MOST_DRAWN = 20_000_000  # values in all resamples: a file of another tool may hold very many processes
QUICKEST = 0.002  # quantile of all clock probes: the undisturbed CPU
CLOCK_SD = 0.002  # of that quantile, between runs that both had the CPU undisturbed
# The share of a call's time that copying its bytes takes: up to the first it follows compute, from the second on memory.
FOLLOWS = (0.2, 1.0)
FLOOR = 0.004  # sd of the residual between unchanged runs without drift
UNIFORM = 1 / math.sqrt(12)  # sd of a uniform value between two ends, relative to their distance
UNKNOWN = 0.03  # without canaries: sd of the machine's own drift
ENOUGH = 8  # cases needed before their own spread is used
LIMIT = 0.25  # beyond this drift the machine is not comparable


def clock(results: Results) -> float | None:
    """Return the seconds of a clock probe on an undisturbed CPU, as far as the run had one; None without probes."""
    probes = [v for run in results if (series := run.of("clock")) is not None for v in series.flat]
    return float(np.quantile(probes, QUICKEST)) if probes else None


def speeds(series: Series) -> Floats:
    """Return the logarithm of the fastest batch of each process."""
    fastest = [min((v for batches in process for v in batches), default=0.0) for process in series.values]
    return np.log([v for v in fastest if v > 0])


def pace(values: Floats) -> Floats:
    """Return the mean of the faster processes, along the last axis."""
    counted = max(values.shape[-1] // FASTER, min(2, values.shape[-1]))
    return np.asarray(np.partition(values, counted - 1, axis=-1)[..., :counted].mean(axis=-1))


@dataclass(frozen=True)
class Shift:
    """A change of a series between two runs (log), and its standard deviation."""

    log: float
    sd: float
    generations: int
    old: float  # the figures compared, in the unit of the series
    new: float


def shift(old: Series, new: Series) -> Shift | None:
    """Return how far a series moved between two runs; None where either has no value above 0."""
    a, b = speeds(old), speeds(new)
    if not len(a) or not len(b):
        return None
    old_pace, new_pace = float(pace(a)), float(pace(b))
    return Shift(
        new_pace - old_pace,
        math.hypot(_sd(a), _sd(b)),
        min(len(a), len(b)),
        math.exp(old_pace),
        math.exp(new_pace),
    )


def _sd(values: Floats) -> float:
    """Return the bootstrap standard deviation of the pace over processes."""
    if len(values) < 2:
        return UNKNOWN
    picked = values[draws(bits(seed_of(values)), max(min(RESAMPLES, MOST_DRAWN // len(values)), 100), len(values))]
    return float(pace(picked).std())


@dataclass(frozen=True)
class Drift:
    """Drift of the machine between two runs, as log ratios of time; None: not measured."""

    compute: Shift | None
    memory: Shift | None
    copy_s_per_byte: float = 0.0
    core_bytes: float = 0.0  # capacity of the caches of one core
    unseen: float = 0.0  # how much further the compute canary moved than the clock: no batch was undisturbed
    usual_sd: float = UNKNOWN  # of a median case: all of them ran on the same machine
    left: float = 0.0  # sd of what the canaries do not explain, from Tritium's own cases

    @property
    def known(self) -> bool:
        return self.compute is not None and self.memory is not None

    @property
    def worst(self) -> float:
        """Return the larger of the two drifts as a ratio of time."""
        logs = [s.log for s in (self.compute, self.memory) if s is not None]
        return math.exp(max(logs, key=abs, default=0.0))

    @property
    def too_much(self) -> bool:
        return abs(math.log(self.worst)) > math.log1p(LIMIT)

    def correction(self, memory_share: float) -> tuple[float, float, float]:
        """Return the drift of a case that follows memory by this share: its log, its sd by chance, the sd of the unexplained rest."""
        if self.compute is None or self.memory is None:
            return 0.0, 0.0, UNKNOWN
        c, m, w = self.compute, self.memory, memory_share
        apart = w * (m.log - c.log)
        left = math.hypot(FLOOR, apart * UNIFORM, self.unseen * UNIFORM, self.left)
        return c.log + apart / 2, math.hypot(c.sd, w * m.sd / 2), left


Both = tuple[Run, Shift]


def drift(baseline: Results, current: Results, metric: str) -> Drift:
    """Return the drift of a metric between two runs: its canaries on every contender both have, checked against all other cases."""
    shifts = list(_both(baseline, current, metric))
    canaries = {kind: [(r, s) for r, s in shifts if r.case == kind] for kind in (COMPUTE, MEMORY)}
    copy = min((s.old / r.work.moved for r, s in canaries[MEMORY] if r.work.moved), default=0.0)
    canary = _mean(canaries[COMPUTE])
    compute = _clocks(baseline, current, canary)
    unseen = 0.0 if canary is None or compute is None else canary.log - compute.log
    result = Drift(compute, _mean(canaries[MEMORY]), copy, _core_bytes(baseline), unseen)
    rest = [(r, s) for r, s in shifts if not is_canary(r.case) and r.arm not in OTHERS]
    usual = float(np.median([s.sd for _, s in rest] or [UNKNOWN]))
    return replace(result, usual_sd=usual, left=_left(rest, result, usual) if result.known else 0.0)


def _both(baseline: Results, current: Results, metric: str) -> Iterator[Both]:
    """Yield every run that both results have, with its shift."""
    for run in baseline:
        other = current.of(*run.key)
        if other is None or run.status != "ok" or other.status != "ok":
            continue
        old, new = run.of(metric), other.of(metric)
        moved = shift(old, new) if old is not None and new is not None else None
        if moved is not None:
            yield run, moved


def _mean(canaries: Sequence[Both]) -> Shift | None:
    """Return the mean shift of the canaries of all contenders."""
    shifts = [s for _, s in canaries]
    if not shifts:
        return None
    n = len(shifts)
    sd = math.sqrt(sum(s.sd**2 for s in shifts)) / n
    return replace(shifts[0], log=sum(s.log for s in shifts) / n, sd=sd, generations=min(s.generations for s in shifts))


def _clocks(baseline: Results, current: Results, canary: Shift | None) -> Shift | None:
    """Return the shift of the core by its clock probes, which are many; the canary's where there are none."""
    old, new = clock(baseline), clock(current)
    if canary is None or old is None or new is None:
        return canary
    return replace(canary, log=math.log(new / old), sd=CLOCK_SD, old=old, new=new)


def _left(cases: Sequence[Both], moved: Drift, usual_sd: float) -> float:
    """Return how far apart cases are after the drift is subtracted, beyond chance. Most are unchanged: the middle half counts."""
    if len(cases) < ENOUGH:
        return 0.0
    rest = np.array([s.log - moved.correction(memory_share(r, s.old, moved))[0] for r, s in cases])
    apart = np.sqrt(np.maximum((rest - np.median(rest)) ** 2 - usual_sd**2, 0))
    return 1.4826 * float(np.median(apart))


def _core_bytes(results: Results) -> float:
    """Return the size of the L2 cache, 0 if unknown."""
    limits = results.environment.limits
    return next((v.nbytes or 0.0 for v in limits.levels if v.name == "L2"), 0.0) if limits is not None else 0.0


def memory_share(run: Run, seconds: float, moved: Drift) -> float:
    """Return how much a case follows the memory canary, 0 to 1, from the share of its time that copying its bytes takes."""
    if run.work.moved <= moved.core_bytes:
        return 0.0
    share = run.work.moved * moved.copy_s_per_byte / seconds if seconds > 0 else 0.0
    low, high = FOLLOWS
    return min(max((share - low) / (high - low), 0.0), 1.0)


def estimate(run: Run, raw: Shift, moved: Drift, rules: Rules) -> Estimate:
    """Estimate how far a case moved beyond the drift of the machine.

    A spread from few processes is itself uncertain; half of it is taken from the other cases (a moderated t, Smyth 2004).
    """
    drifted, chance, floor = moved.correction(memory_share(run, raw.old, moved))
    own = math.sqrt((raw.sd**2 + moved.usual_sd**2) / 2)
    log, sd, df = raw.log - drifted, math.sqrt(own**2 + chance**2 + floor**2), max(2 * (raw.generations - 1), 1)
    wide = {c: student_quantile((1 + c) / 2, df) * sd for c in levels(rules)}
    intervals = {c: (log - w, log + w) for c, w in wide.items()}
    return Estimate(
        log, intervals, student_beyond(abs(log) / sd, df), own * math.sqrt(raw.generations), raw.generations, floor
    )


def geomean(estimates: Iterable[Estimate]) -> tuple[float, tuple[float, float]] | None:
    """Return the geometric mean of ratios and its 95 % interval, as if they were independent."""
    known = list(estimates)
    if not known:
        return None
    n, log = len(known), sum(e.log for e in known) / len(known)
    half = math.sqrt(sum(((e.intervals[0.95][1] - e.intervals[0.95][0]) / 2) ** 2 for e in known)) / n
    return math.exp(log), (math.exp(log - half), math.exp(log + half))
