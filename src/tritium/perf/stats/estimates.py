"""Statistics of comparing: numbers in; estimates, intervals and p-values out.

Results are on the scale of the input; ratios are passed as logarithms. The same data produce the same answer to the last
bit: random draws are seeded by the data.
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
    rank_sum_share,
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
EXACT_FLIPS = 36  # values up to which every choice of signs is enumerated
DRAWN_FLIPS = 1000  # values up to which signs are sampled
FLIPS = 100_000
PLANNING = 14.9  # (z(0.995) + z(0.9))^2: 1 % two-sided, detected 9 times in 10
EXACT_SIGNS = 500  # values up to which the interval of a median is exact by counting
MODES = 2.8  # an mvalue above it: probably more than one mode


def _checked(x: ArrayLike, name: str = "values") -> Floats:
    """Return the values as a finite 1-D array, or raise ArgumentError."""
    values = np.asarray(x, np.float64)
    if values.ndim != 1 or not len(values):
        raise ArgumentError(f"{name}: a 1-D array of at least one number is needed, given shape {values.shape}.")
    if not np.isfinite(values).all():
        raise ArgumentError(f"{name}: a value is not finite; leave out what was not measured.")
    return values


def _shares(confidence: Sequence[float]) -> tuple[float, ...]:
    """Return the confidences, or raise ArgumentError unless each is between 0 and 1."""
    for c in confidence:
        if not 0 < c < 1:
            raise ArgumentError(f"confidence is {c}; a share between 0 and 1 is needed, as 0.95.")
    return tuple(confidence)


# Estimates and tests of one sample


def hodges_lehmann(x: ArrayLike) -> float:
    """Return the median of the averages of every two values: nearly as sharp as the mean, nearly as robust as the median."""
    values = _checked(x)
    pairs = len(values) * (len(values) + 1) // 2
    low, high = ranked_walsh(values, ((pairs - 1) // 2, pairs // 2))
    return (low + high) / 2


def walsh_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the exact interval of the Hodges-Lehmann estimate: all centres that the signed-rank test does not reject.

    It covers the centre of any symmetric distribution with at least this probability. With too few values for that it is the
    widest interval there is, from the minimum to the maximum: its coverage is 1 - 2^(1 - n), which is 0.94 for 5 values.
    """
    return walsh_intervals(x, [confidence])[confidence]


def walsh_intervals(x: ArrayLike, confidence: Sequence[float] = CONFIDENCE) -> Intervals:
    """Return the same intervals for several confidences at once."""
    values = _checked(x)
    pairs = len(values) * (len(values) + 1) // 2
    cuts = [_cut(signed_rank_tail(len(values), (1 - c) / 2), pairs) for c in _shares(confidence)]
    ends = ranked_walsh(values, (*cuts, *(pairs - 1 - cut for cut in cuts)))
    return dict(zip(confidence, zip(ends[: len(cuts)], ends[len(cuts) :], strict=True), strict=True))


def _cut(tail: int, count: int) -> int:
    """Return the index of the lower end among `count` ordered values; the upper end is as far from the other side."""
    return min(max(tail, 1), (count + 1) // 2) - 1


def sign_flip_p(d: ArrayLike) -> float:
    """Return the two-sided p of the mean: its probability if every value could as well have had the other sign.

    Exact up to 36 values: the sums of two halves are enumerated and matched. Beyond, 100,000 sampled flips, seeded by the data;
    beyond 1,000 values, the normal approximation of their sum.
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
    first, second = _sums(values[:half]), np.sort(_sums(values[half:]))
    above = len(second) - np.searchsorted(second, reach - first, "left")
    return min(1.0, 2 * int(above.sum()) / 2 ** len(values))


def _sums(values: Floats) -> Floats:
    """Return the sums of the values under every choice of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _drawn_flips(values: Floats, reach: float) -> float:
    """Return the p of sampled sign flips; signs are bits of random bytes, and each byte looks up the sum of its eight values."""
    groups = [_sums(values[k : k + 8]) for k in range(0, len(values), 8)]
    raw = bits(seed_of(values)).random_raw(FLIPS * -(-len(groups) // 8)).astype("<u8").view(np.uint8).reshape(FLIPS, -1)
    sums = np.zeros(FLIPS)
    for k, group in enumerate(groups):
        sums += group[raw[:, k] & (len(group) - 1)]
    return (int((np.abs(sums) >= reach).sum()) + 1) / (FLIPS + 1)


# Intervals of ratios


def ratio_intervals(generations: Generations, confidence: Sequence[float] = CONFIDENCE) -> Intervals:
    """Return exact intervals of the Hodges-Lehmann estimate of the processes' values. Log in, log out.

    A generation is a fresh process and counts as one value: it has the noise of its rounds already, and rounds of one process
    are not independent. With one process only: the interval of its rounds, without the variance between processes.
    """
    if len(generations) == 1:
        return walsh_intervals(generations[0], confidence)
    return walsh_intervals(generation_values(generations), confidence)


def generation_values(generations: Generations) -> Floats:
    """Return one value for each process: the median of its rounds, because other load spoils a few of them at times."""
    if len({len(g) for g in generations}) == 1:
        return np.median(np.asarray(generations, np.float64), axis=1)
    return np.array([np.median(_checked(g, "a generation")) for g in generations])


@dataclass(frozen=True)
class Unpaired:
    """Two samples that were not measured side by side: the shift from the first to the second, on the scale of the input."""

    difference: float
    intervals: Intervals
    p: float  # Brunner-Munzel, two-sided

    @property
    def ratio(self) -> float:
        """Return second to first, if the input was logarithms."""
        return math.exp(self.difference)


def unpaired(
    a_generations: Generations, b_generations: Generations, confidence: Sequence[float] = CONFIDENCE
) -> Unpaired:
    """Return the shift from a to b by process: the median of all differences, its exact rank-sum interval, and a test.

    Log in, log out. The interval holds all shifts that the Mann-Whitney test does not reject: exact if both have the same spread.
    With too few processes it is the widest interval there is, with less than the requested coverage: 0.9 for 3 and 3 processes.
    """
    a, b = (
        _checked(generation_values(a_generations), "generations"),
        _checked(generation_values(b_generations), "generations"),
    )
    difference, intervals = shift(a, b, confidence)
    return Unpaired(difference, intervals, brunner_munzel_p(a, b))


def shift(a: Floats, b: Floats, confidence: Sequence[float] = CONFIDENCE) -> tuple[float, Intervals]:
    """Return the median of all differences b - a, and its exact rank-sum intervals."""
    count = len(a) * len(b)
    cuts = [_cut(rank_sum_tail(len(a), len(b), (1 - c) / 2), count) for c in _shares(confidence)]
    lower, upper, *ends = ranked_differences(
        a, b, ((count - 1) // 2, count // 2, *cuts, *(count - 1 - cut for cut in cuts))
    )
    intervals = dict(zip(confidence, zip(ends[: len(cuts)], ends[len(cuts) :], strict=True), strict=True))
    return (lower + upper) / 2, intervals


def rank_sum_p(a: Floats, b: Floats) -> float:
    """Return the two-sided p of the Mann-Whitney test: exact for few values; equal ones count half."""
    greater = np.searchsorted(np.sort(a), b, "left") + np.searchsorted(np.sort(a), b, "right")
    above = float(greater.sum()) / 2  # pairs in which b is the larger
    return min(1.0, 2 * rank_sum_share(len(a), len(b), min(above, len(a) * len(b) - above)))


def brunner_munzel_p(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sided p of ranks this far apart if neither sample tends to larger values; spreads may differ.

    Samples that do not overlap get the probability of that order, 2 / C(n + m, n): no rank test can go below it. Uses Student's
    t, whose small p are too small: where it returns 0.001, the true p is 0.002 for 15 values each and 0.006 for 8.
    """
    x, y = _checked(a), _checked(b)
    n, m = len(x), len(y)
    least = min(1.0, 2 / math.comb(n + m, n))
    ranks = _ranks(np.concatenate([x, y]))
    in_x, in_y = ranks[:n], ranks[n:]
    if min(n, m) < 2:
        return 1.0
    s_x = float(((in_x - _ranks(x) - in_x.mean() + (n + 1) / 2) ** 2).sum()) / (n - 1)
    s_y = float(((in_y - _ranks(y) - in_y.mean() + (m + 1) / 2) ** 2).sum()) / (m - 1)
    distance = float(in_y.mean() - in_x.mean())
    spread = n * s_x + m * s_y
    if spread == 0:
        return least if distance else 1.0
    t = n * m * distance / ((n + m) * math.sqrt(spread))
    df = spread**2 / ((n * s_x) ** 2 / (n - 1) + (m * s_y) ** 2 / (m - 1))
    return max(least, student_beyond(abs(t), df))


def _ranks(x: Floats) -> Floats:
    """Return ranks from 1; equal values share the mean of theirs."""
    ordered = np.sort(x)
    return (np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right") + 1) / 2


# Many tests at once


def _probabilities(p: ArrayLike) -> Floats:
    """Return p-values as an array, or raise ArgumentError."""
    values = np.asarray(p, np.float64)
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise ArgumentError("p: a 1-D array of numbers from 0 to 1 is needed.")
    return values


def holm(p: ArrayLike) -> list[float]:
    """Return adjusted p: reject below alpha, and the probability of any false rejection among all is below alpha."""
    values = _probabilities(p)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    out = np.empty(len(values))
    out[order] = np.minimum(stepped, 1)
    return [float(v) for v in out]


def benjamini_hochberg(p: ArrayLike) -> list[float]:
    """Return adjusted p: reject below q, and the expected share of false rejections among them is below q."""
    values = _probabilities(p)
    order = np.argsort(values, kind="stable")[::-1]
    stepped = np.minimum.accumulate(values[order] * len(values) / np.arange(len(values), 0, -1))
    out = np.empty(len(values))
    out[order] = np.minimum(stepped, 1)
    return [float(v) for v in out]


def rate_above(hits: int, total: int, others: int, others_total: int, tests: int = 1) -> bool:
    """Return True if a rate is more than twice that of the others, and not by chance: 5 % in all of so many tests.

    If the rates were equal, its share of all hits would be that of its total: an exact binomial test.
    """
    if not others_total or hits * others_total <= 2 * others * total:
        return False
    return beta_share(hits, others + 1, total / (total + others_total)) < 0.05 / tests


# Planning


def more_generations(sd: float, delta: float, n: int) -> int:
    """Return how many more than n processes detect a change of delta 9 times in 10 at 1 %; sd: of a process's log ratio."""
    if delta <= 0:
        raise ArgumentError(f"delta is {delta}; the smallest change that matters is needed, as 0.03.")
    return max(0, math.ceil(PLANNING * (sd / delta) ** 2) - n)


def least_generations(tests: int, alpha: float = 0.01) -> int:
    """Return the number of processes below which no difference, however clear, passes Holm's strictest step of so many tests.

    The smallest p of n sign flips is 2^(1 - n).
    """
    return math.ceil(1 + math.log2(max(tests, 1) / alpha))


# The shape of a sample


def mvalue(x: ArrayLike) -> float:
    """Return Gregg's measure of modes in a histogram: 2 for one mode, 4 for two of equal height; above 2.8 look twice.

    Bins have the width of Scott's rule or more, never less: narrow bins show modes that are noise.
    """
    values = np.sort(_checked(x))
    reach = float(values[-1] - values[0])
    # The spread of the middle half, so that one outlier does not hide two modes in a bin.
    spread = min(float(values.std()), float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / 1.349) or float(
        values.std()
    )
    if reach == 0 or len(values) < 8:
        return 2.0
    width, largest = 3.49 * spread / len(values) ** (1 / 3), 2.0
    while width < reach:
        counts = np.bincount(((values - values[0]) / width).astype(np.intp))
        climbs = np.abs(np.diff(counts, prepend=0, append=0)).sum()
        largest = max(largest, float(climbs / counts.max()))
        width *= 1.5
    return largest


def steady(times: ArrayLike, window: int = 8, tolerance: float = 0.01, doubt: float = 0.0) -> int | None:
    """Return how many batches had run when two consecutive windows first had medians within the tolerance; None: never.

    With a doubt of 2 a difference below two of its own standard errors is ignored too: on a busy machine medians of eight differ
    by more than 1 % though nothing changes.
    """
    values = np.asarray(times, np.float64)
    if len(values) < 2 * window:
        return None
    windows = sliding_window_view(values, window)
    medians = np.median(windows, axis=1)
    before, after = medians[:-window], medians[window:]
    allowed = tolerance * np.minimum(before, after)
    if doubt:
        deviation = np.median(np.abs(windows - medians[:, None]), axis=1)
        error = (
            1.2533 * 1.4826 / math.sqrt(window) * np.hypot(deviation[:-window], deviation[window:])
        )  # of normal values
        allowed = np.maximum(allowed, doubt * error)
    settled = np.abs(after - before) < allowed
    return int(np.argmax(settled)) + 2 * window if settled.any() else None


@dataclass(frozen=True)
class Summary:
    """Descriptive statistics of a sample."""

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
    """Return the descriptive statistics of a sample."""
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
    """Return the exact interval of the median, between two of the values; with too few values, minimum and maximum."""
    values = np.sort(_checked(x))
    _shares([confidence])
    n, share = len(values), (1 - confidence) / 2
    if n > EXACT_SIGNS:
        cut = math.floor(n / 2 + NORMAL.inv_cdf(share) * math.sqrt(n) / 2)
    else:
        ways, cut = 1, 0  # ways that none, one, two ... of n values are below the median
        while ways <= share * 2**n:
            cut += 1
            ways += math.comb(n, cut)
    cut = _cut(cut, n)
    return float(values[cut]), float(values[-1 - cut])


def share_interval(hits: int, total: int, confidence: float = 0.95) -> Interval:
    """Return the exact interval of a proportion of which `hits` of `total` were observed (Clopper and Pearson)."""
    if not 0 <= hits <= total or total < 1:
        raise ArgumentError(f"{hits} of {total} is no proportion; pass a count and a total that is at least as large.")
    _shares([confidence])
    tail = (1 - confidence) / 2

    def solve(share: float, k: int) -> float:
        """Return the probability at which k or more are observed with this chance."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if beta_share(k, total - k + 1, middle) >= share else (middle, high)
        return (low + high) / 2

    return (0.0 if hits == 0 else solve(tail, hits)), (1.0 if hits == total else solve(1 - tail, hits + 1))
