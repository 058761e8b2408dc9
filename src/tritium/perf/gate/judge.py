"""Log ratios in, outcomes out: slower, faster, equivalent, or not yet decided.

Knows nothing of results, cases or files; `bench/simulate.py` calls it in bulk. Every test of a suite is judged at once,
because the false-alarm rate is that of the whole suite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tritium.perf.gate.verdict import Outcome, Rules
from tritium.perf.stats import estimates as stats
from tritium.perf.stats.estimates import Generations, Interval

NORMAL = NormalDist()
NINE_OF_TEN = NORMAL.inv_cdf(0.9)
NEVER = (-math.inf, math.inf)  # the interval where so few processes are certain of nothing


@dataclass(frozen=True)
class Tail:
    """The distance of the fastest processes, which must agree with that of all of them."""

    log: float
    sd: float


@dataclass(frozen=True)
class Estimate:
    """The distance of new from old as a logarithm, with its uncertainty."""

    log: float
    intervals: dict[float, Interval]  # by confidence
    p: float  # of no difference, two-sided
    sd: float  # of a process's value
    generations: int
    floor: float = 0.0  # sd that more processes cannot reduce
    tail: Tail | None = None  # of runs measured apart

    def sensitivity(self, edge: float, certainty: float) -> float:
        """Return the log ratio that nine of ten such measurements find, where a test needs so much certainty."""
        reach = max(self.log - self.intervals[certainty][0], edge) + self._found_z * self.error
        return reach if self.tail is None else max(reach, edge + self._found_z * self.tail.sd)

    def processes(self, edge: float, certainty: float, target: float) -> int | None:
        """Return the processes that find a log ratio of `target` nine times in ten; None: more do not help."""
        z = NORMAL.inv_cdf((1 + certainty) / 2)
        reach = self.log - self.intervals[certainty][0]
        if math.isinf(reach):
            return None
        share = 0.0  # of these processes that it takes
        for drawn, fixed, room in (
            (math.sqrt(max(reach**2 - (z * self.floor) ** 2, 0)) + self._found_z * self.drawn, (z + self._found_z) * self.floor, target),
            (self._found_z * self.drawn, self._found_z * self.floor, target - edge),
            (self._found_z * self.tail.sd if self.tail else 0.0, 0.0, target - edge),
        ):  # fmt: skip
            if room <= fixed:
                return None
            share = max(share, drawn**2 / (room**2 - fixed**2))
        return math.ceil(self.generations * share)

    @property
    def _found_z(self) -> float:
        """Return the standard errors by which a change must lie beyond each limit: of several limits, each is missed less often."""
        return NINE_OF_TEN if self.tail is None else NORMAL.inv_cdf(0.95)

    @property
    def error(self) -> float:
        """Return the standard deviation that the 95 % interval stands for, on the side of what is faster."""
        return (self.log - self.intervals[0.95][0]) / NORMAL.inv_cdf(0.975)

    @property
    def drawn(self) -> float:
        """Return the part of the standard deviation that more processes reduce."""
        return math.sqrt(max(self.error**2 - self.floor**2, 0))


@dataclass(frozen=True)
class Judged:
    """One test with its outcome; the intervals are ratios."""

    outcome: Outcome
    ratio: float
    interval: Interval
    interval95: Interval
    interval90: Interval
    p: float
    p_adjusted: float
    q: float
    more_generations: int | None = None
    reason: str = ""
    passes: bool = True
    sensitivity: float | None = None  # the slow-down that nine of ten such measurements find; None: not any
    processes: int | None = None  # that find what the rules ask for; None: more do not help


def levels(rules: Rules, tests: int) -> tuple[float, ...]:
    """Return the confidences whose intervals a judgement of so many tests needs."""
    return tuple(dict.fromkeys((rules.confidence, rules.inner, 0.95, 0.90, certainty(rules, tests))))


def certainty(rules: Rules, tests: int) -> float:
    """Return the confidence that one of so many tests needs, so that all of them keep the false-alarm rate of the suite."""
    return 1 - rules.look_alpha / max(tests, 1)


def estimate(generations: Generations, rules: Rules, tests: int) -> Estimate:
    """Return the estimate of pairs measured side by side, from the log ratios of rounds by process."""
    values = stats.generation_values(generations)
    sd = float(values.std(ddof=1)) if len(values) > 1 else float(np.std(generations[0]))
    intervals = stats.ratio_intervals(generations, levels(rules, tests))
    if len(values) < stats.least_generations(tests, rules.look_alpha):
        intervals[certainty(rules, tests)] = NEVER
    return Estimate(
        stats.hodges_lehmann(values if len(values) > 1 else generations[0]),
        intervals,
        stats.sign_flip_p(values),
        sd,
        len(values),
    )


def judge(tests: Sequence[Generations], margins: float | Sequence[float], rules: Rules = Rules()) -> list[Judged]:
    """Return the outcome of every test of a suite; a test is the log ratios of its rounds, by process."""
    widths = [margins] * len(tests) if isinstance(margins, float) else list(margins)
    return decide([estimate(t, rules, len(tests)) for t in tests], widths, rules)


def decide(estimates: Sequence[Estimate], margins: Sequence[float], rules: Rules) -> list[Judged]:
    """Return outcomes from estimates, with Holm's correction over all of them."""
    if not estimates:
        return []
    p = [e.p for e in estimates]
    adjusted, q = stats.holm(p), stats.benjamini_hochberg(p)
    least = stats.least_generations(len(estimates), rules.look_alpha) if rules.paired else 0  # only pairs flip signs
    needs = certainty(rules, len(estimates))
    return [_decide(*row, least, needs, rules) for row in zip(estimates, margins, adjusted, q, strict=True)]


def _decide(e: Estimate, margin: float, adjusted: float, q: float, least: int, needs: float, rules: Rules) -> Judged:
    """Return the outcome of one test from its estimate and its adjusted p."""
    edge = math.log1p(margin)
    tail = e.log if e.tail is None else e.tail.log
    low, high = e.intervals[rules.confidence]
    inner = e.intervals[rules.inner]
    certain = adjusted < rules.look_alpha
    few = max(enough(rules) - e.generations, 0)
    inside = -edge < inner[0] and inner[1] < edge and not few
    outcome: Outcome
    if certain and low > 0 and min(e.log, tail) >= edge:
        outcome = "SLOWER"
    elif certain and high < 0 and max(e.log, tail) <= -edge:
        outcome = "FASTER"
    elif inside and not certain:
        outcome = "EQUIVALENT"
    elif (low > 0 or high < 0) and abs(e.log) < edge and not few:
        outcome = "CHANGED-SMALL"
    else:
        outcome = "EQUIVALENT" if inside else "INCONCLUSIVE"
    undecided = outcome == "INCONCLUSIVE"
    not_slower = inner[1] < edge and not few
    sensitivity, target = math.expm1(e.sensitivity(edge, needs)), rules.sensitivity
    return Judged(
        outcome,
        math.exp(e.log),
        _ratios(e.intervals[rules.confidence]),
        _ratios(e.intervals[0.95]),
        _ratios(e.intervals[0.90]),
        e.p,
        adjusted,
        q,
        more_generations=max(needed(e, edge, least) or 0, few) or None if undecided else None,
        reason=_reason(e, edge, tail, not_slower, few) if undecided else "",
        passes=outcome != "SLOWER" and (not undecided or not_slower or target is None or sensitivity <= target),
        sensitivity=sensitivity if math.isfinite(sensitivity) else None,
        processes=e.processes(edge, needs, math.log1p(target if target is not None else 2 * margin)),
    )


def _ratios(interval: Interval) -> Interval:
    return math.exp(interval[0]), math.exp(interval[1])


def needed(e: Estimate, edge: float, least: int = 0) -> int | None:
    """Return about how many more processes would decide, None if more would not help. Below `least` nothing is certain."""
    distance = max(abs(e.log) if abs(e.log) >= edge else edge - abs(e.log), edge / 2)
    if 3 * e.floor >= distance:
        return None
    clear = least - e.generations if abs(e.log) >= edge else 0
    return max(stats.more_generations(e.sd, distance, e.generations), math.ceil(e.generations / 4), clear, 1)


def enough(rules: Rules) -> int:
    """Return the processes from which an interval of pairs has its nominal chance: the widest of n values has 1 - 2^(1 - n)."""
    return math.ceil(1 - math.log2(1 - rules.inner)) if rules.paired else 0


def _reason(e: Estimate, edge: float, tail: float, not_slower: bool, few: int) -> str:
    """Return why a test is inconclusive."""
    if few:
        return f"{e.generations} process{'es' * (e.generations != 1)}; {e.generations + few} are needed"
    if not_slower:
        return "not slower than the margin; may be faster"
    if needed(e, edge) is None:
        return "the machine itself changed too much between the two runs to tell"
    if e.log >= edge > tail:
        return f"the fastest processes are not slower by as much ({100 * math.expm1(tail):+.0f} %)"
    return "slower so far, not yet certain" if e.log >= edge else "the interval reaches beyond the margin"
