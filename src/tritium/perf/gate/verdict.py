"""Verdicts of a comparison: one for every case and metric, and one for the whole suite with its exit code.

Defines the exit codes of every command that measures: those of a gate, and those of a measurement that judges nothing.

The words are defined here once; pages for people use them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from tritium.arguments import checked_class
from tritium.errors import ArgumentError, nearest
from tritium.perf.amounts import verb
from tritium.perf.records.run import EXCUSED, STEADY, Results, Run
from tritium.perf.work.canary import is_canary

Outcome = Literal["SLOWER", "MISSING", "NOT COMPARABLE", "INCONCLUSIVE", "CHANGED-SMALL", "FASTER", "EQUIVALENT"]
Status = Literal["AllPass", "HasRegressions", "HasCriticalRegressions", "Inconclusive", "NotComparable", "NoBaseline"]
Level = Literal["", "warning", "critical"]
Interval = tuple[float, float]

OUTCOMES: tuple[Outcome, ...] = (
    "SLOWER", "MISSING", "NOT COMPARABLE", "INCONCLUSIVE", "CHANGED-SMALL", "FASTER", "EQUIVALENT",
)  # fmt: skip
DECIDED: tuple[Outcome, ...] = ("SLOWER", "CHANGED-SMALL", "FASTER", "EQUIVALENT")
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
    sensitivity: float | None = (
        None  # the slow-down that must be found nine times in ten; None: any will do, and is said
    )
    separate: float = 1.0  # how much further separate runs of equal code lie apart here than their processes tell
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
    sensitivity: float | None = None  # the slow-down that such a measurement finds nine times in ten; None: not any
    processes: int | None = None  # that find the one asked for, or twice the margin; None: more do not help

    @property
    def is_open(self) -> bool:
        """Return True if more processes may show that it is slower."""
        high = self.interval90[1] if self.interval90 is not None else math.inf
        return self.outcome == "INCONCLUSIVE" and self.more_generations is not None and high >= 1 + self.margin

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
    noise: str = ""  # how noisy the machine was, in a sentence
    sensitivity: float | None = None  # the slow-down of any case that would have been found nine times in ten
    usual_sensitivity: float | None = None  # the same of half of the cases
    target: float | None = None  # the slow-down that had to be found, or else twice the margin
    must_reach: bool = False  # the target decides the exit code
    processes: int | None = None  # that would find it; None: more do not help
    process_s: float = 0.0  # seconds for one more process of every contender, all cases in it; 0: unknown

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
    timed = [v for v in verdicts if v.interval95 is not None]
    noise = noise_text((v.interval95 for v in timed), sum(v.outcome in DECIDED for v in timed), len(timed))
    listed = sorted(verdicts, key=lambda v: (OUTCOMES.index(v.outcome), -abs(v.change or 0), v.case, v.metric))
    status = status_of(listed, gates)
    counts = {o: sum(v.outcome == o for v in listed) for o in OUTCOMES}
    return Suite(tuple(listed), status, EXIT_CODES[status], counts, gates=gates, **{"noise": noise} | fields)  # type: ignore[arg-type]


def sensitivity_of(verdicts: Iterable[Verdict], rules: Rules) -> dict[str, Any]:
    """Return the fields of a suite on what it would have found: by the times that are not slower."""
    timed = [
        v for v in verdicts if v.metric == "wall" and not v.exact and v.ratio is not None and v.outcome != "SLOWER"
    ]
    if not timed:
        return {}
    each = [math.inf if v.sensitivity is None else v.sensitivity for v in timed]
    needed = [v.processes for v in timed]
    return {
        "sensitivity": max(each) if math.isfinite(max(each)) else None,
        "usual_sensitivity": median(each) if math.isfinite(median(each)) else None,
        "must_reach": rules.sensitivity is not None,
        "target": rules.sensitivity if rules.sensitivity is not None else 2 * rules.margin("wall"),
        "processes": None if None in needed else max(n for n in needed if n is not None),
    }


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


# ---- noise


def noise_text(intervals: Iterable[Interval | None], decided: int = 0, comparisons: int = 0) -> str:
    """Return how noisy a machine is by these intervals, and how many comparisons they decide; "" where there is none."""
    widths = [half_width(interval) for interval in intervals if interval is not None and told_apart(interval)]
    if not widths:
        return ""
    width, noisy = 100 * median(widths), median(widths) > STEADY
    text = f"ntervals are ±{width:.{int(width < 9.95)}f} % wide at the median"
    text = f"This machine is noisy: i{text}" if noisy else f"I{text}"
    if not comparisons:
        return text
    same = " all the same" if noisy and decided else ""
    if comparisons == 1:
        return f"{text}; the comparison is {'' if decided else 'not '}decided{same}"
    return f"{text}; {decided} of {comparisons:,} comparisons {verb(decided, 'is', 'are')} decided{same}"


def told_apart(interval: Interval | None) -> Interval | None:
    """Return the interval unless it is a single point: one round has no interval."""
    return None if interval is None or interval[0] == interval[1] else interval


def half_width(interval: Interval) -> float:
    """Return half the width of a ratio's interval, relative to its geometric middle: 0.05 is ±5 %."""
    low, high = interval
    return math.sqrt(high / low) - 1 if low > 0 else math.inf
