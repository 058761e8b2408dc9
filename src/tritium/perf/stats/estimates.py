"""Numbers in, estimates, intervals and chances out: all the statistics of comparing.

Knows nothing of runs, files or verdicts. Everything is on the scale it is given; ratios are given as logarithms. The same
data gives the same answer to the last bit: what is drawn at random is seeded by the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from tritium.errors import ArgumentError
from tritium.perf.stats.resample import (
    NORMAL,
    Floats,
    beta_share,
    bits,
    rank_sum_tail,
    ranked_differences,
    ranked_walsh,
    seed_of,
    signed_rank_tail,
    student_beyond,
)

Interval = tuple[float, float]
Intervals = dict[float, Interval]
Generations = Sequence[Sequence[float]]

CONFIDENCE = (0.95, 0.90)
EXACT_FLIPS = 36  # values up to which every choice of signs is counted
DRAWN_FLIPS = 1000  # and up to which they are drawn
FLIPS = 100_000
PLANNING = 14.9  # (z(0.995) + z(0.9))^2: 1 % two-sided, found 9 times of 10
EXACT_SIGNS = 500  # values up to which the interval of a median is counted
MODES = 2.8  # an mvalue above it: probably more than one mode


def _checked(x: ArrayLike, what: str = "values") -> Floats:
    values = np.asarray(x, np.float64)
    if values.ndim != 1 or not len(values):
        raise ArgumentError(f"{what}: one row of at least one number is needed, given shape {values.shape}.")
    if not np.isfinite(values).all():
        raise ArgumentError(f"{what}: a value is not finite; leave out what was not measured.")
    return values


def _shares(confidence: Sequence[float]) -> tuple[float, ...]:
    for c in confidence:
        if not 0 < c < 1:
            raise ArgumentError(f"confidence is {c}; a share between 0 and 1 is needed, as 0.95.")
    return tuple(confidence)


# Estimates and tests of one row of numbers


def hodges_lehmann(x: ArrayLike) -> float:
    """The median of the averages of every two values: nearly as sharp as the mean, nearly as sturdy as the median."""
    values = _checked(x)
    pairs = len(values) * (len(values) + 1) // 2
    low, high = ranked_walsh(values, ((pairs - 1) // 2, pairs // 2))
    return (low + high) / 2


def walsh_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """The exact interval of the Hodges-Lehmann estimate: what the signed-rank test does not reject.

    It covers the centre of any symmetric distribution with at least this chance. Too few values for that give the widest
    interval there is, from the least to the greatest: its chance is 1 - 2^(1 - n), which is 0.94 for 5 values.
    """
    return walsh_intervals(x, [confidence])[confidence]


def walsh_intervals(x: ArrayLike, confidence: Sequence[float] = CONFIDENCE) -> Intervals:
    """The same for several confidences at once."""
    values = _checked(x)
    pairs = len(values) * (len(values) + 1) // 2
    cuts = [_cut(signed_rank_tail(len(values), (1 - c) / 2), pairs) for c in _shares(confidence)]
    ends = ranked_walsh(values, (*cuts, *(pairs - 1 - cut for cut in cuts)))
    return dict(zip(confidence, zip(ends[: len(cuts)], ends[len(cuts) :], strict=True), strict=True))


def _cut(tail: int, count: int) -> int:
    """The place of the lower end among `count` ordered values; the upper end is as far from the other side."""
    return min(max(tail, 1), (count + 1) // 2) - 1


def sign_flip_p(d: ArrayLike) -> float:
    """The chance of a mean this far from 0, if every value could as well have had the other sign. Two-sided.

    Exact up to 36 values: the sums of two halves are listed and matched. Beyond, 100,000 flips that follow from the data;
    beyond 1,000 values, the normal curve that their sum then follows.
    """
    values = _checked(d)
    reach = abs(float(values.sum())) - 1e-12 * float(np.abs(values).sum())
    if reach <= 0:
        return 1.0
    if len(values) > DRAWN_FLIPS:
        return 2 * NORMAL.cdf(-reach / math.sqrt(float(values @ values)))
    if len(values) > EXACT_FLIPS:
        return _drawn_flips(values, reach)
    half = len(values) // 2
    ours, theirs = _sums(values[:half]), np.sort(_sums(values[half:]))
    above = len(theirs) - np.searchsorted(theirs, reach - ours, "left")
    return min(1.0, 2 * int(above.sum()) / 2 ** len(values))


def _sums(values: Floats) -> Floats:
    """The sums of the values under every choice of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _drawn_flips(values: Floats, reach: float) -> float:
    """Signs are bits of random bytes: each byte looks up the sum of its eight values."""
    groups = [_sums(values[k : k + 8]) for k in range(0, len(values), 8)]
    raw = bits(seed_of(values)).random_raw(FLIPS * -(-len(groups) // 8)).astype("<u8").view(np.uint8).reshape(FLIPS, -1)
    sums = np.zeros(FLIPS)
    for k, group in enumerate(groups):
        sums += group[raw[:, k] & (len(group) - 1)]
    return (int((np.abs(sums) >= reach).sum()) + 1) / (FLIPS + 1)


# Intervals of ratios


def ratio_intervals(generations: Generations, confidence: Sequence[float] = CONFIDENCE) -> Intervals:
    """Exact intervals of the Hodges-Lehmann estimate of the generations' values. Log in, log out.

    A generation is one value: it holds the noise of its rounds already, and rounds of one process are not independent.
    One generation only: the interval of its rounds, which knows nothing of other processes.
    """
    if len(generations) == 1:
        return walsh_intervals(generations[0], confidence)
    return walsh_intervals(generation_values(generations), confidence)


def generation_values(generations: Generations) -> Floats:
    """One value of each generation: the median of its rounds, since other work on the machine spoils a few of them at times."""
    if len({len(g) for g in generations}) == 1:
        return np.median(np.asarray(generations, np.float64), axis=1)
    return np.array([np.median(_checked(g, "a generation")) for g in generations])


@dataclass(frozen=True)
class Unpaired:
    """Two samples that were not measured side by side: how far the second lies from the first, on the scale given."""

    difference: float
    intervals: Intervals
    p: float  # Brunner-Munzel, two-sided

    @property
    def ratio(self) -> float:
        """Second to first, where logarithms were given."""
        return math.exp(self.difference)


def unpaired(
    a_generations: Generations, b_generations: Generations, confidence: Sequence[float] = CONFIDENCE
) -> Unpaired:
    """The shift from a to b, by generation means: the median of all differences, its exact rank-sum interval, and a test.

    Log in, log out. The interval is what the Mann-Whitney test does not reject: exact where the two vary alike. Too few
    generations give the widest interval there is, whose chance is then less than asked: with 3 and 3 generations 0.9.
    """
    _shares(confidence)
    a, b = (
        _checked(generation_values(a_generations), "generations"),
        _checked(generation_values(b_generations), "generations"),
    )
    count = len(a) * len(b)
    cuts = [_cut(rank_sum_tail(len(a), len(b), (1 - c) / 2), count) for c in confidence]
    lower, upper, *ends = ranked_differences(
        a, b, ((count - 1) // 2, count // 2, *cuts, *(count - 1 - cut for cut in cuts))
    )
    intervals = dict(zip(confidence, zip(ends[: len(cuts)], ends[len(cuts) :], strict=True), strict=True))
    return Unpaired((lower + upper) / 2, intervals, brunner_munzel_p(a, b))


def brunner_munzel_p(a: ArrayLike, b: ArrayLike) -> float:
    """The chance of ranks this far apart if neither sample tends to larger values. Two-sided; spreads may differ.

    Samples that do not overlap get the chance of that arrangement, 2 / C(n + m, n): no test of ranks can say less. By
    Student's t, which makes small chances too small: where it says 0.001, 15 values each have 0.002 and 8 have 0.006.
    """
    x, y = _checked(a), _checked(b)
    n, m = len(x), len(y)
    least = min(1.0, 2 / math.comb(n + m, n))
    both = _ranks(np.concatenate([x, y]))
    in_x, in_y = both[:n], both[n:]
    if min(n, m) < 2:
        return 1.0
    s_x = float(((in_x - _ranks(x) - in_x.mean() + (n + 1) / 2) ** 2).sum()) / (n - 1)
    s_y = float(((in_y - _ranks(y) - in_y.mean() + (m + 1) / 2) ** 2).sum()) / (m - 1)
    apart = float(in_y.mean() - in_x.mean())
    spread = n * s_x + m * s_y
    if spread == 0:
        return least if apart else 1.0
    t = n * m * apart / ((n + m) * math.sqrt(spread))
    df = spread**2 / ((n * s_x) ** 2 / (n - 1) + (m * s_y) ** 2 / (m - 1))
    return max(least, student_beyond(abs(t), df))


def _ranks(x: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    ordered = np.sort(x)
    return (np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right") + 1) / 2


# Many tests at once


def _chances(p: ArrayLike) -> Floats:
    values = np.asarray(p, np.float64)
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise ArgumentError("p: one row of numbers from 0 to 1 is needed.")
    return values


def holm(p: ArrayLike) -> list[float]:
    """Adjusted p: reject where it is below alpha, and the chance of any false rejection among all is below alpha."""
    values = _chances(p)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    out = np.empty(len(values))
    out[order] = np.minimum(stepped, 1)
    return [float(v) for v in out]


def benjamini_hochberg(p: ArrayLike) -> list[float]:
    """Adjusted p: reject where it is below q, and the expected share of false rejections among them is below q."""
    values = _chances(p)
    order = np.argsort(values, kind="stable")[::-1]
    stepped = np.minimum.accumulate(values[order] * len(values) / np.arange(len(values), 0, -1))
    out = np.empty(len(values))
    out[order] = np.minimum(stepped, 1)
    return [float(v) for v in out]


# Planning


def more_generations(sd: float, delta: float, n: int) -> int:
    """How many generations more than n to find a change of delta 9 times of 10 at 1 %; sd: of a generation's log ratio."""
    if delta <= 0:
        raise ArgumentError(f"delta is {delta}; the smallest change that matters is needed, as 0.03.")
    return max(0, math.ceil(PLANNING * (sd / delta) ** 2) - n)


def least_generations(tests: int, alpha: float = 0.01) -> int:
    """Below this number of generations no difference, however clear, passes Holm's strictest step of so many tests.

    The smallest chance n sign flips can give is 2^(1 - n).
    """
    return math.ceil(1 + math.log2(max(tests, 1) / alpha))


# The shape of a sample


def mvalue(x: ArrayLike) -> float:
    """How many modes a histogram shows: 2 for one, 4 for two alike; above 2.8 look twice (Gregg's measure).

    The bins are as wide as Scott's rule says and wider, never narrower: narrow bins show modes that are noise.
    """
    values = np.sort(_checked(x))
    reach = float(values[-1] - values[0])
    # The spread of the middle, lest one outlier hides two modes in a bin.
    spread = min(float(values.std()), float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / 1.349) or float(
        values.std()
    )
    if reach == 0 or len(values) < 8:
        return 2.0
    width, most = 3.49 * spread / len(values) ** (1 / 3), 2.0
    while width < reach:
        counts = np.bincount(((values - values[0]) / width).astype(np.intp))
        climbs = np.abs(np.diff(counts, prepend=0, append=0)).sum()
        most = max(most, float(climbs / counts.max()))
        width *= 1.5
    return most


def steady(times: ArrayLike, window: int = 8, tolerance: float = 0.01, doubt: float = 0.0) -> int | None:
    """How many batches had been run when two windows in a row first had medians within the tolerance; None: never.

    With a doubt of 2 a difference is not seen either where it is below two of its own standard errors: on a busy machine
    medians of eight differ by more than a per cent though nothing changes.
    """
    values = np.asarray(times, np.float64)
    if len(values) < 2 * window:
        return None
    windows = sliding_window_view(values, window)
    medians = np.median(windows, axis=1)
    before, after = medians[:-window], medians[window:]
    allowed = tolerance * np.minimum(before, after)
    if doubt:
        apart = np.median(np.abs(windows - medians[:, None]), axis=1)
        error = 1.2533 * 1.4826 / math.sqrt(window) * np.hypot(apart[:-window], apart[window:])  # of normal values
        allowed = np.maximum(allowed, doubt * error)
    settled = np.abs(after - before) < allowed
    return int(np.argmax(settled)) + 2 * window if settled.any() else None


@dataclass(frozen=True)
class Summary:
    """A sample in the figures a person reads."""

    n: int
    median: float
    mean: float
    stdev: float  # of the sample; 0 for one value
    mad: float  # median distance from the median
    iqr: float
    q1: float
    q3: float
    p5: float
    p95: float
    p99: float
    min: float
    max: float
    cv: float  # stdev / mean
    outliers_mild: int  # beyond 1.5 iqr from the quartiles, and not severe
    outliers_severe: int  # beyond 3 iqr
    interval: Interval  # of the median, exact, at least 95 % where the sample is large enough


def describe(x: ArrayLike) -> Summary:
    """All figures of a sample."""
    values = np.sort(_checked(x))
    q1, middle, q3, p5, p95, p99 = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75, 0.05, 0.95, 0.99]))
    mean, stdev = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
    beyond = np.maximum(q1 - values, values - q3)
    severe = int((beyond > 3 * (q3 - q1)).sum())
    return Summary(
        n=len(values), median=middle, mean=mean, stdev=stdev, mad=float(np.median(np.abs(values - middle))),
        iqr=q3 - q1, q1=q1, q3=q3, p5=p5, p95=p95, p99=p99, min=float(values[0]), max=float(values[-1]),
        cv=stdev / mean if mean else 0.0,
        outliers_mild=int((beyond > 1.5 * (q3 - q1)).sum()) - severe, outliers_severe=severe,
        interval=median_interval(values),
    )  # fmt: skip


def median_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """The exact interval of the median, between two of the values; too few values give the least and the greatest."""
    values = np.sort(_checked(x))
    _shares([confidence])
    n, share = len(values), (1 - confidence) / 2
    if n > EXACT_SIGNS:
        cut = math.floor(n / 2 + NORMAL.inv_cdf(share) * math.sqrt(n) / 2)
    else:
        seen, cut = 1, 0  # ways that none, one, two ... of n values lie below the median
        while seen <= share * 2**n:
            cut += 1
            seen += math.comb(n, cut)
    cut = _cut(cut, n)
    return float(values[cut]), float(values[-1 - cut])


def share_interval(found: int, of: int, confidence: float = 0.95) -> Interval:
    """The exact interval of a share of which `found` of `of` were seen (Clopper and Pearson)."""
    if not 0 <= found <= of or of < 1:
        raise ArgumentError(f"{found} of {of} is no share; give a count and a larger or equal whole.")
    _shares([confidence])
    tail = (1 - confidence) / 2

    def solved(share: float, k: int) -> float:
        """The chance of one at which k or more are seen with this chance."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if beta_share(k, of - k + 1, middle) >= share else (middle, high)
        return (low + high) / 2

    return (0.0 if found == 0 else solved(tail, found)), (1.0 if found == of else solved(1 - tail, found + 1))
