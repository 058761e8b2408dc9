"""The statistics beside scipy's: two implementations that share no code must agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from tritium.perf.stats import estimates, resample
from tritium.perf.stats.changes import change_points

scipy = pytest.importorskip("scipy", reason="scipy is the oracle: pip install scipy")
special: Any = pytest.importorskip("scipy.special", reason="scipy is the oracle: pip install scipy")
stats: Any = pytest.importorskip("scipy.stats", reason="scipy is the oracle: pip install scipy")

VALUE = st.integers(-(10**6), 10**6).map(lambda n: n / 1000)
SAMPLE = st.lists(VALUE, min_size=2, max_size=25)
DISTINCT = st.lists(VALUE, min_size=2, max_size=12, unique=True)
CONFIDENCE = st.sampled_from([0.8, 0.9, 0.95, 0.99])
DEGREES = st.floats(1, 500)


# ---- distributions


@given(st.floats(0.05, 200), st.floats(0.05, 200), st.floats(0, 1))
def test_the_incomplete_beta_function(a: float, b: float, x: float) -> None:
    assert resample.beta_share(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-10)


@given(st.floats(0, 60), DEGREES)
def test_the_tail_of_student_s_t(t: float, df: float) -> None:
    assert resample.student_beyond(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-7, abs=1e-12)


@given(st.floats(0.51, 0.9995), DEGREES)
def test_the_quantiles_of_student_s_t(share: float, df: float) -> None:
    assert resample.student_quantile(share, df) == pytest.approx(stats.t.ppf(share, df), rel=1e-6, abs=1e-9)


@given(st.floats(1e-6, 1 - 1e-6))
def test_the_quantiles_of_the_normal_distribution(share: float) -> None:
    assert resample.NORMAL.inv_cdf(share) == pytest.approx(stats.norm.ppf(share), rel=1e-9, abs=1e-9)


# ---- figures of a sample


@given(SAMPLE)
def test_quantiles_and_moments(x: list[float]) -> None:
    seen = estimates.describe(x)
    quantiles = [seen.p5, seen.q1, seen.median, seen.q3, seen.p95, seen.p99]
    assert quantiles == pytest.approx(stats.mstats.mquantiles(x, [0.05, 0.25, 0.5, 0.75, 0.95, 0.99], 1, 1), abs=1e-9)
    assert seen.mad == pytest.approx(stats.median_abs_deviation(x), abs=1e-9)
    assert seen.iqr == pytest.approx(stats.iqr(x), abs=1e-9)
    assert (seen.mean, seen.stdev) == pytest.approx((stats.tmean(x), stats.tstd(x)), abs=1e-6)


@given(st.integers(6, 80), CONFIDENCE)
def test_the_interval_of_a_median_is_that_of_the_sign_test(n: int, confidence: float) -> None:
    low, high = estimates.median_interval(range(n), confidence)
    cut = round(low)
    assert high == n - 1 - cut
    tail = (1 - confidence) / 2
    assert cut == 0 or stats.binom.cdf(cut, n, 0.5) <= tail * (1 + 1e-9)  # so many below the median are rare enough
    assert stats.binom.cdf(cut + 1, n, 0.5) > tail * (1 - 1e-9)  # and one more would not be


@given(st.data(), st.integers(1, 200), CONFIDENCE)
def test_the_interval_of_a_share(data: st.DataObject, total: int, confidence: float) -> None:
    count = data.draw(st.integers(0, total))
    exact = stats.binomtest(count, total).proportion_ci(confidence, method="exact")
    assert estimates.share_interval(count, total, confidence) == pytest.approx((exact.low, exact.high), abs=1e-7)


# ---- tests of ranks and signs


@given(DISTINCT, CONFIDENCE)
def test_the_walsh_interval_is_what_the_signed_rank_test_does_not_reject(x: list[float], confidence: float) -> None:
    low, high = estimates.walsh_interval(x, confidence)
    alpha = 1 - confidence
    assume(2 * 0.5 ** len(x) <= alpha)  # otherwise no value can be rejected
    for inside in (low + 1e-7, high - 1e-7):
        if low + 1e-6 < high:
            assert stats.wilcoxon(np.array(x) - inside, method="exact").pvalue > alpha * (1 - 1e-9)
    for outside in (low - 1e-7, high + 1e-7):
        assert stats.wilcoxon(np.array(x) - outside, method="exact").pvalue <= alpha * (1 + 1e-9)


@given(st.integers(2, 10), st.integers(2, 10), CONFIDENCE)
def test_the_tail_of_the_rank_sum_is_that_of_mann_and_whitney(n: int, m: int, confidence: float) -> None:
    share = (1 - confidence) / 2
    cut = resample.rank_sum_tail(n, m, share)

    def chance(count: int) -> float:
        """Return the chance of a Mann-Whitney count this small or smaller, from a pair of samples that has it."""
        full, rest = divmod(count, m)
        a = [m + 1.0] * full + ([rest + 0.5] if rest else []) + [0.0] * (n - full - bool(rest))
        a = [value + i * 1e-6 for i, value in enumerate(a)]
        return float(stats.mannwhitneyu(a, range(1, m + 1), alternative="less", method="exact").pvalue)

    assert cut == 0 or chance(cut - 1) <= share * (1 + 1e-9)
    assert chance(cut) > share * (1 - 1e-9)


@given(SAMPLE, SAMPLE)
def test_the_test_of_brunner_and_munzel(a: list[float], b: list[float]) -> None:
    assume(max(a) >= min(b) and max(b) >= min(a))  # apart, ours is the chance of that order, and scipy's 0
    ours = estimates.brunner_munzel_p(a, b)
    with np.errstate(all="ignore"):
        theirs = float(stats.brunnermunzel(a, b).pvalue)
    least = min(1.0, 2 / math.comb(len(a) + len(b), len(a)))
    if math.isfinite(theirs):
        assert ours == pytest.approx(max(theirs, least), rel=1e-7, abs=1e-9)


@settings(max_examples=40)
@given(st.lists(VALUE, min_size=2, max_size=10))
def test_the_test_of_flipped_signs_is_a_permutation_test(x: list[float]) -> None:
    exact = stats.permutation_test(
        (np.array(x),), lambda values, axis: np.sum(values, axis=axis), permutation_type="samples", vectorized=True,
        n_resamples=np.inf,
    )  # fmt: skip
    assert estimates.sign_flip_p(x) == pytest.approx(exact.pvalue, rel=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_correction_of_benjamini_and_hochberg(p: list[float]) -> None:
    assert estimates.benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p), abs=1e-12)


@given(SAMPLE)
def test_the_estimate_of_hodges_and_lehmann(x: list[float]) -> None:
    averages = [(a + b) / 2 for i, a in enumerate(x) for b in x[i:]]
    assert estimates.hodges_lehmann(x) == pytest.approx(stats.scoreatpercentile(averages, 50), abs=1e-9)


# ---- changes


@settings(max_examples=30, deadline=None)
@given(st.integers(8, 25), st.integers(8, 25), st.floats(0.2, 1), st.integers(0, 2**32 - 1))
def test_a_step_that_is_found_is_one_for_the_t_test_too(before: int, after: int, step: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.02, before + after)
    values = noise + np.repeat([0.0, step], [before, after])
    changes = change_points(values)
    assert before in [change.index for change in changes]  # noise alone makes another one now and then
    ends = [0, *(change.index for change in changes), len(values)]
    for change, low, high in zip(changes, ends, ends[2:], strict=False):
        left, right = values[low : change.index], values[change.index : high]
        assert stats.ttest_ind(left, right, equal_var=False).pvalue < 0.05
        assert change.ratio == pytest.approx(math.exp(right.mean() - left.mean()))
