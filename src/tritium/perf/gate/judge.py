"""Log ratios in, outcomes out: slower, faster, equivalent, or not yet decided.

Knows nothing of results, cases or files; `bench/simulate.py` calls it in bulk. Every test of a suite is judged at once,
because the false-alarm rate is that of the whole suite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tritium.perf.gate.verdict import Outcome, Rules
from tritium.perf.stats import estimates as stats
from tritium.perf.stats.estimates import Generations, Interval


@dataclass(frozen=True)
class Estimate:
    """The distance of new from old as a logarithm, with its uncertainty."""

    log: float
    intervals: dict[float, Interval]  # by confidence
    p: float  # of no difference, two-sided
    sd: float  # of a process's value
    generations: int
    floor: float = 0.0  # sd that more processes cannot reduce


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


def levels(rules: Rules) -> tuple[float, ...]:
    """Return the confidences whose intervals a judgement needs."""
    return tuple(dict.fromkeys((rules.confidence, rules.inner, 0.95, 0.90)))


def estimate(generations: Generations, rules: Rules) -> Estimate:
    """Return the estimate of pairs measured side by side, from the log ratios of rounds by process."""
    values = stats.generation_values(generations)
    sd = float(values.std(ddof=1)) if len(values) > 1 else float(np.std(generations[0]))
    return Estimate(
        stats.hodges_lehmann(values if len(values) > 1 else generations[0]),
        stats.ratio_intervals(generations, levels(rules)),
        stats.sign_flip_p(values),
        sd,
        len(values),
    )


def judge(tests: Sequence[Generations], margins: float | Sequence[float], rules: Rules = Rules()) -> list[Judged]:
    """Return the outcome of every test of a suite; a test is the log ratios of its rounds, by process."""
    widths = [margins] * len(tests) if isinstance(margins, float) else list(margins)
    return decide([estimate(t, rules) for t in tests], widths, rules)


def decide(estimates: Sequence[Estimate], margins: Sequence[float], rules: Rules) -> list[Judged]:
    """Return outcomes from estimates, with Holm's correction over all of them."""
    if not estimates:
        return []
    p = [e.p for e in estimates]
    adjusted, q = stats.holm(p), stats.benjamini_hochberg(p)
    least = stats.least_generations(len(estimates), rules.look_alpha) if rules.paired else 0  # only pairs flip signs
    return [_decide(*row, least, rules) for row in zip(estimates, margins, adjusted, q, strict=True)]


def _decide(e: Estimate, margin: float, adjusted: float, q: float, least: int, rules: Rules) -> Judged:
    """Return the outcome of one test from its estimate and its adjusted p."""
    edge = math.log1p(margin)
    low, high = e.intervals[rules.confidence]
    inner = e.intervals[rules.inner]
    certain = adjusted < rules.look_alpha
    few = max(enough(rules) - e.generations, 0)
    inside = -edge < inner[0] and inner[1] < edge and not few
    outcome: Outcome
    if certain and low > 0 and e.log >= edge:
        outcome = "SLOWER"
    elif certain and high < 0 and e.log <= -edge:
        outcome = "FASTER"
    elif inside and not certain:
        outcome = "EQUIVALENT"
    elif (low > 0 or high < 0) and abs(e.log) < edge and not few:
        outcome = "CHANGED-SMALL"
    else:
        outcome = "EQUIVALENT" if inside else "INCONCLUSIVE"
    undecided = outcome == "INCONCLUSIVE"
    not_slower = inner[1] < edge and not few
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
        reason=_reason(e, edge, not_slower, few) if undecided else "",
        passes=outcome != "SLOWER" and (not undecided or not_slower),
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


def _reason(e: Estimate, edge: float, not_slower: bool, few: int) -> str:
    """Return why a test is inconclusive."""
    if few:
        return f"{e.generations} process{'es' * (e.generations != 1)}; {e.generations + few} are needed"
    if not_slower:
        return "not slower than the margin; may be faster"
    if needed(e, edge) is None:
        return "the machine itself changed too much between the two runs to tell"
    return "slower so far, not yet certain" if e.log >= edge else "the interval reaches beyond the margin"
