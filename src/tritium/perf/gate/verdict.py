"""Verdicts of a comparison: one for every case and metric, and one for the whole suite with its exit code.

Defines the exit codes of every command that measures: those of a gate, and those of a measurement that judges nothing.

The words are defined here once; pages for people use them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from tritium.arguments import checked_class
from tritium.errors import ArgumentError, nearest
from tritium.perf.records.run import EXCUSED, Results, Run, process_spread
from tritium.perf.work.canary import is_canary

Outcome = Literal["SLOWER", "MISSING", "NOT COMPARABLE", "INCONCLUSIVE", "CHANGED-SMALL", "FASTER", "EQUIVALENT"]
Status = Literal["AllPass", "HasRegressions", "HasCriticalRegressions", "Inconclusive", "NotComparable", "NoBaseline"]
Level = Literal["", "warning", "critical"]
Interval = tuple[float, float]

OUTCOMES: tuple[Outcome, ...] = (
    "SLOWER", "MISSING", "NOT COMPARABLE", "INCONCLUSIVE", "CHANGED-SMALL", "FASTER", "EQUIVALENT",
)  # fmt: skip
BASE, HEAD = "base", "head"  # the arms of two revisions in one measurement
PASS, REGRESSION, USAGE, NO_BASELINE, INCONCLUSIVE, NOT_COMPARABLE = range(6)
EXIT_CODES: dict[Status, int] = {
    "AllPass": PASS,
    "HasRegressions": REGRESSION,
    "HasCriticalRegressions": REGRESSION,
    "NoBaseline": NO_BASELINE,
    "Inconclusive": INCONCLUSIVE,
    "NotComparable": NOT_COMPARABLE,
}
# Of compare and bench, which judge nothing: 0 where every cell was measured, skipped or stopped as too slow, and
FAILED_CELLS = REGRESSION  # some cell failed: its measurement is lost, as in a gate
NOTHING_MEASURED = USAGE  # not one cell was measured: this command cannot work here
ALLOWED: dict[str, Status] = {
    "inconclusive": "Inconclusive", "not-comparable": "NotComparable", "missing-baseline": "NoBaseline",
}  # fmt: skip


def is_counted(metric: str) -> bool:
    """Return True for metrics that are counted, not timed: their margins do not follow the threshold of time."""
    return metric.endswith("_bytes") or metric == "instructions"


@checked_class
@dataclass(frozen=True)
class Rules:
    """Rules by which a difference is judged. Margins are shares: 0.03 is 3 %."""

    margins: dict[str, float] = field(
        default_factory=lambda: {"wall": 0.03, "cpu": 0.03, "energy": 0.05, "peak_bytes": 0.02, "instructions": 0.01}
    )
    noise_floor: float = 0.0  # of this machine, from A/A runs; no margin is below twice it
    alpha: float = 0.01  # false-alarm rate of a whole suite
    confidence: float = 0.95
    minimum_samples: int = 10  # rounds on either side
    warning: float = 0.05
    critical: float = 0.15
    looks: int = 1  # planned tests; 3: each has 0.44 of alpha (Pocock)
    paired: bool = True
    metrics: tuple[str, ...] = (  # CPU time is left out: spinning threads distort it
        "wall", "peak_bytes", "energy", "instructions",
    )  # fmt: skip

    def margin(self, metric: str) -> float:
        """Return the margin of a metric, at least twice the noise floor for what is timed; what is counted has no noise."""
        requested = self.margins.get(metric, self.margins["wall"])
        return requested if is_counted(metric) else max(requested, 2 * self.noise_floor)

    @property
    def look_alpha(self) -> float:
        """Return the alpha of one look."""
        return self.alpha * (0.44 if self.looks > 1 else 1.0)

    @property
    def inner(self) -> float:
        """Return the confidence of the interval that must be inside the margin: two one-sided tests."""
        return max(round(2 * self.confidence - 1, 9), 0.5)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one case in one metric. A ratio is new to old: above 1 is slower, or more."""

    case: str
    metric: str
    base_arm: str
    arm: str
    outcome: Outcome
    ratio: float | None = None
    interval: Interval | None = None  # at the confidence of the rules
    interval95: Interval | None = None
    interval90: Interval | None = None
    p: float | None = None
    p_adjusted: float | None = None  # Holm, over the suite
    q: float | None = None  # Benjamini-Hochberg, for colours
    margin: float = 0.0
    generations: int = 0
    more_generations: int | None = None
    reason: str = ""
    level: Level = ""
    exact: bool = False
    passes: bool = True  # the gate lets it pass
    raw_ratio: float | None = None  # of a stored baseline: before the drift of the machine was subtracted
    old: float | None = None  # medians, in the unit of the metric
    new: float | None = None
    unit: str = ""

    @property
    def change(self) -> float | None:
        """Return the share by which it grew: 0.1 is 10 % slower."""
        return None if self.ratio is None else self.ratio - 1

    @property
    def severity(self) -> float | None:
        """Return the change divided by its own noise, half the width of its 95 % interval; None where there is none.

        Both are logarithms. At 1 the interval ends at no change; a change that is counted exactly has no noise.
        """
        if self.ratio is None or self.ratio <= 0:
            return None
        low, high = self.interval95 or (self.ratio, self.ratio)
        noise = math.log(high / low) / 2 if low > 0 else math.inf
        size = abs(math.log(self.ratio))
        return size / noise if noise > 0 else math.inf if size > 0 else 0.0


@dataclass(frozen=True)
class Suite:
    """The verdicts of a whole suite, and their meaning for a gate."""

    verdicts: tuple[Verdict, ...]
    overall_status: Status
    exit_code: int
    counts: dict[str, int]
    geomean: float | None = None  # of all wall ratios; information only
    geomean_interval: Interval | None = None
    base: str = ""  # the two sides: a name, a file, a revision
    head: str = ""
    paired: bool = True
    gates: bool = True  # False: a quick plan, which never gates
    new_cases: tuple[str, ...] = ()
    hard: dict[str, tuple[str, str]] = field(default_factory=dict)  # fields that forbid a comparison
    soft: dict[str, tuple[str, str]] = field(default_factory=dict)  # fields worth knowing
    notes: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()  # statuses that the caller lets pass
    drift: float | None = None  # stored baselines: drift of the machine, as a ratio of time
    command: str = ""
    created: str = ""
    noise: str = ""  # what disturbed the runs, where they are too noisy to tell

    def of(self, outcome: str) -> tuple[Verdict, ...]:
        """Return the verdicts with this outcome."""
        return tuple(v for v in self.verdicts if v.outcome == outcome)

    @property
    def regressions_detected(self) -> tuple[Verdict, ...]:
        """Return the verdicts that are slower or missing."""
        return tuple(v for v in self.verdicts if v.outcome in ("SLOWER", "MISSING"))


def status_of(verdicts: Iterable[Verdict], gates: bool = True) -> Status:
    """Return the worst status among verdicts: a regression, then not comparable, then inconclusive."""
    judged = list(verdicts)
    if not gates:
        return "Inconclusive"
    if any(v.outcome in ("SLOWER", "MISSING") for v in judged):
        return "HasCriticalRegressions" if any(v.level == "critical" for v in judged) else "HasRegressions"
    if any(v.outcome == "NOT COMPARABLE" for v in judged):
        return "NotComparable"
    if not judged or any(v.outcome == "INCONCLUSIVE" and not v.passes for v in judged):
        return "Inconclusive"
    return "AllPass"


def suite_of(verdicts: Sequence[Verdict], *, gates: bool = True, **fields: object) -> Suite:
    """Return a suite of verdicts: worst first, counted, with status and exit code."""
    listed = sorted(verdicts, key=lambda v: (OUTCOMES.index(v.outcome), -abs(v.change or 0), v.case, v.metric))
    status = status_of(listed, gates)
    counts = {o: sum(v.outcome == o for v in listed) for o in OUTCOMES}
    return Suite(tuple(listed), status, EXIT_CODES[status], counts, gates=gates, **fields)  # type: ignore[arg-type]


def no_baseline(base: str, why: str, **fields: object) -> Suite:
    """Return the suite of a comparison without a baseline."""
    counts = dict.fromkeys(map(str, OUTCOMES), 0)
    return Suite((), "NoBaseline", NO_BASELINE, counts, base=base, notes=(why,), **fields)  # type: ignore[arg-type]


def failed_cells(results: Results, requested: Sequence[str] = ()) -> tuple[Run, ...]:
    """Return the cells that lack a time they should have: crashed, wrong answer, or not begun in the time of the run.

    Skipped cells are not among them, nor are canaries, nor contenders that are too slow, unless they were requested by name
    and have no time at all.
    """
    cells = [run for run in results if not is_canary(run.case)]
    lost = set(requested) - {run.arm for run in cells if run.status == "ok"}
    passing = {"ok", *EXCUSED} | ({"interrupted"} if not results.complete else set())
    return tuple(r for r in cells if r.status not in passing or (r.status == "too slow" and r.arm in lost))


def measurement_exit_code(results: Results, requested: Sequence[str] = ()) -> int:
    """Return the exit code of compare and bench. A canary runs everywhere, so its times do not count as a measurement."""
    if not any(run.status == "ok" for run in results if not is_canary(run.case)):
        return NOTHING_MEASURED
    return FAILED_CELLS if failed_cells(results, requested) else PASS


def allow(suite: Suite, names: Sequence[str]) -> Suite:
    """Return the suite with exit code 0 if the caller lets its status pass; the status does not change."""
    for name in names:
        if name not in ALLOWED:
            raise ArgumentError(f"{name!r} cannot be allowed; {', '.join(ALLOWED)} can.{nearest(name, ALLOWED)}")
    passes = suite.overall_status in {ALLOWED[name] for name in names}
    return replace(suite, allowed=tuple(names), exit_code=PASS if passes else suite.exit_code)


def level_of(ratio: float, rules: Rules) -> Level:
    """Return the severity of a regression by the alert thresholds."""
    if ratio >= 1 + rules.critical:
        return "critical"
    return "warning" if ratio >= 1 + rules.warning else ""


# ---- runs that are too noisy to tell

DISTURBED = ("broke in", "waited")  # flags of a cell that other load took time from
NOISY = 0.2  # share of disturbed cells above which no headline is green
STEADY = 0.05  # margin of a run without a gate: half-width of a ratio that is quoted, spread of its canaries
TOO_NOISY = "Too noisy to tell"
REMEDY = "Close other programs and measure again; tritium doctor names what disturbs this machine"


class Disturbance(NamedTuple):
    """The noise of a run: its cells that other load disturbed, and the spread of work that never changes."""

    disturbed: int
    cells: int  # measured ones
    spread: float = 0.0  # of the worst canary between processes
    margin: float = STEADY
    noun: str = "cells"  # what is counted: the cells of a run, or the runs of a history

    @property
    def noisy(self) -> bool:
        """Return True if the run cannot tell: more than a fifth of the cells were disturbed, or the canaries spread too far."""
        return self.disturbed > NOISY * self.cells or self.spread > self.margin

    def __str__(self) -> str:
        """Return what disturbed the run; "" for a quiet one."""
        parts = []
        if self.disturbed > NOISY * self.cells:
            verb = "was" if self.disturbed == 1 else "were"
            parts.append(f"{self.disturbed} of {self.cells} {self.noun} {verb} disturbed by other load")
        if self.spread > self.margin:
            parts.append(
                f"canaries, work that never changes, spread by ±{100 * self.spread:.0f} % between processes "
                f"(the margin is ±{100 * self.margin:g} %)"
            )
        return "; ".join(parts)


def disturbance(*runs: Results, margin: float = STEADY) -> Disturbance:
    """Return what disturbed one run, or several that are compared: every headline is decided by it."""
    cells = [run for results in runs for run in results if run.status == "ok"]
    measured = [run for run in cells if not is_canary(run.case)]
    spread = max((process_spread(run) for run in cells if is_canary(run.case)), default=0.0)
    return Disturbance(sum(map(is_disturbed, measured)), len(measured), spread, margin)


def history_disturbance(cells: Iterable[tuple[Sequence[str], float]], noun: str = "runs") -> Disturbance:
    """Return what disturbed the runs of a history, each given by the flags of its cell and the spread of its canaries.

    The rule is that of one run: nothing is certain if more than a fifth was disturbed. Of several cases, `noun` counts cells.
    """
    each = [has_disturbed(flags) or spread > STEADY for flags, spread in cells]
    return Disturbance(sum(each), len(each), noun=noun)


def is_disturbed(run: Run) -> bool:
    """Return True if other load took time from a cell."""
    return has_disturbed(run.flags)


def has_disturbed(flags: Iterable[str]) -> bool:
    """Return True if one of the flags says that other load took time."""
    return any(word in flag for flag in flags for word in DISTURBED)
