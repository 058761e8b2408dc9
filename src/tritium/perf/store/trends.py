"""A metric over time: machines joined by their canaries, steps of its level, and where it stands against its best.

A point is a run's value, a logarithm with its interval; a segment is a stretch between two steps. A machine with another
fingerprint begins an epoch: times of an older one are shown in the newest one's units, by the ratio of their canaries;
without canaries, the older epoch is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from tritium.escape import terminal
from tritium.perf.records.run import STEADY, disturbed_rounds
from tritium.perf.stats import estimates as stats
from tritium.perf.stats.changes import change_points

BEST_OF_DAYS = 90
LEAST_RUNS = 12  # fewer have too few orders for the strict test of a change point
LEAST_CHANGE = 0.02
TIMES = ("wall", "cpu")  # what a canary speaks for
MACHINE_FREE = ("peak_bytes", "allocated_bytes")  # the same on every machine


@dataclass(frozen=True)
class Point:
    """One run's value of a metric: natural logarithms of the median and of its 95 % interval."""

    run: str
    created: str  # UTC, ISO 8601
    commit: str
    fingerprint: str
    threads: int
    canary: float | None  # the machine's own speed in this run: log seconds
    unit: str
    log_median: float
    low: float
    high: float
    n: int  # generations, or rounds where there was one generation
    flags: tuple[str, ...] = ()  # of the cell
    spread: float = 0.0  # of the worst canary of the run, between processes

    @property
    def value(self) -> float:
        return math.exp(self.log_median)


@dataclass(frozen=True)
class Step:
    """From this point on the level is another."""

    index: int
    point: Point
    ratio: float  # after to before; above 1: more time, bytes or energy
    p: float
    new_machine: bool  # the fingerprint changed there: the canaries may explain it badly


@dataclass(frozen=True)
class Segment:
    """Points of one level: the median of their logarithms, with its interval."""

    first: Point
    last: Point
    points: int
    level: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return math.exp(self.level)


@dataclass(frozen=True)
class Ratio:
    """The last level to an earlier one, with its 95 % interval; above 1: worse."""

    ratio: float
    low: float
    high: float
    other_machine: bool  # joined by canaries


@dataclass(frozen=True)
class Trend:
    """A metric over time: its levels, beside the best and a release."""

    points: tuple[Point, ...]  # in the newest machine's units
    left_out: int  # of machines that cannot be joined
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    best: Segment  # of the last 90 days
    against_best: Ratio
    against_release: Ratio | None

    @property
    def last(self) -> Segment:
        return self.segments[-1]


def joined(points: Sequence[Point], metric: str, to: str | None = None) -> tuple[Point, ...]:
    """The points in the units of one machine, by default the newest's; those that cannot be are left out."""
    to = to if to is not None else points[-1].fingerprint
    canaries = defaultdict(list)
    for p in points:
        if p.canary is not None:
            canaries[p.fingerprint].append(p.canary)
    speed = {fingerprint: median(values) for fingerprint, values in canaries.items()}
    out = []
    for p in points:
        if p.fingerprint == to or metric in MACHINE_FREE:
            out.append(p)
        elif metric in TIMES and to in speed and p.fingerprint in speed:
            by = speed[to] - speed[p.fingerprint]
            out.append(replace(p, log_median=p.log_median + by, low=p.low + by, high=p.high + by))
    return tuple(out)


def steps(points: Sequence[Point]) -> tuple[Step, ...]:
    """The steps of a joined series: at least 2 % and twice the half width of a run's interval."""
    if not points:
        return ()
    weights = [1 / h for h in _half_widths(points)]
    changes = change_points([p.log_median for p in points], weights, least_change=least_step(points))
    borders = {i for i, (a, b) in enumerate(pairwise(points), 1) if a.fingerprint != b.fingerprint}
    return tuple(
        Step(c.index, points[c.index], c.ratio, c.p, bool(borders & {c.index - 1, c.index, c.index + 1}))
        for c in changes
    )


def least_step(points: Sequence[Point]) -> float:
    """Return the smallest step that is shown among these points, as a share."""
    return max(LEAST_CHANGE, math.expm1(2 * median(_half_widths(points))))


def disturbed(points: Sequence[Point]) -> frozenset[int]:
    """Return the points that other load disturbed more than usual in this history.

    That is, in more than twice as many rounds for each process, or with canaries that spread more than twice as much, and widely.
    """
    rounds = [disturbed_rounds(p.flags, p.n)[0] for p in points]
    processes, usual = sum(p.n for p in points), median(p.spread for p in points)
    return frozenset(
        i
        for i, (p, hits) in enumerate(zip(points, rounds, strict=True))
        if p.spread > max(STEADY, 2 * usual)
        or stats.rate_above(hits, p.n, sum(rounds) - hits, processes - p.n, len(points))
    )


def _half_widths(points: Sequence[Point]) -> list[float]:
    """Of the runs' intervals. Fewer than 3 values tell nothing of it, and a lucky narrow one must not outweigh the rest."""
    known = [(p.high - p.low) / 2 for p in points if p.n >= 3]
    typical = max(median(known) if known else 0.0, 1e-6)
    return [max((p.high - p.low) / 2, typical / 3) if p.n >= 3 else typical for p in points]


def segment(points: Sequence[Point]) -> Segment:
    """Points of one level."""
    if len(points) == 1:
        low, high = points[0].low, points[0].high
    else:
        low, high = stats.walsh_interval([p.log_median for p in points])
    level = median(p.log_median for p in points)
    return Segment(points[0], points[-1], len(points), level, min(low, level), max(high, level))


def trend(points: Sequence[Point], metric: str, release: Point | None = None) -> Trend:
    """Steps and segments of a series, and its last level against the best of 90 days and against a release."""
    newest = points[-1].fingerprint
    if release is None:
        together = joined(points, metric, newest)
        marked: tuple[Point, ...] = ()
    else:
        every = joined([*points, release], metric, newest)
        marked = tuple(p for p in every if p.run == release.run)
        together = tuple(p for p in every if p.run != release.run)
    changes = steps(together)
    ends = [0, *(s.index for s in changes), len(together)]
    segments = tuple(segment(together[a:b]) for a, b in pairwise(ends))
    since = datetime.fromisoformat(points[-1].created) - timedelta(days=BEST_OF_DAYS)
    recent = [s for s in segments if datetime.fromisoformat(s.last.created) >= since]
    best = min(recent, key=lambda s: s.level)
    against = _ratio(segments[-1], segment(marked)) if marked else None
    return Trend(
        together, len(points) - len(together), changes, segments, best, _ratio(segments[-1], best), against
    )  # fmt: skip


def _ratio(now: Segment, then: Segment) -> Ratio:
    """Two levels measured apart: the half widths of their intervals add as the sides of a right triangle do."""
    other = now.last.fingerprint != then.last.fingerprint
    if now == then:
        return Ratio(1.0, 1.0, 1.0, other)
    d = now.level - then.level
    below = math.hypot(now.level - now.low, then.high - then.level)
    above = math.hypot(now.high - now.level, then.level - then.low)
    return Ratio(math.exp(d), math.exp(d - below), math.exp(d + above), other)


def describe(trend: Trend) -> list[str]:
    """A trend in sentences."""
    now = trend.last
    lines = [f"{len(trend.points)} runs, {len(trend.segments)} levels; the last one holds since {_place(now.first)}"]
    lines += [
        f"{_percent(s.ratio)} from {_place(s.point)} on (p {s.p:.2g})" + (", another machine" if s.new_machine else "")
        for s in trend.steps
    ]
    if trend.best != now:
        place = f"the best of {BEST_OF_DAYS} days ({_place(trend.best.first)} to {_place(trend.best.last)})"
        lines.append(f"{_against(trend.against_best)} than {place}")
    if trend.against_release is not None:
        lines.append(f"{_against(trend.against_release)} than the last release")
    lines.append(sensitivity([trend]))
    if trend.left_out:
        lines.append(f"{trend.left_out} runs of other machines are left out: nothing joins them")
    return lines


def sensitivity(trends: Sequence[Trend]) -> str:
    """Return how small a step is shown by these histories: the finding that there is none stands above it."""
    least = [least_step(t.points) for t in trends if len(t.points) >= LEAST_RUNS]
    if not least:
        return f"{LEAST_RUNS} runs or more can show a step"
    return f"steps below {100 * median(least):.1f} % are not shown{' in the median case' * (len(trends) > 1)}"


def _place(point: Point) -> str:
    return terminal(f"{point.created[:10]} {point.commit[:10]}".rstrip())


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def _against(r: Ratio) -> str:
    machine = "; joined by canaries" if r.other_machine else ""
    return f"now {_percent(r.ratio)} ({_percent(r.low)} to {_percent(r.high)}, 95 %{machine}): {'more' if r.ratio >= 1 else 'less'}"
