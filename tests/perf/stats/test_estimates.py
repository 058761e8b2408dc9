"""The statistics: numbers worked out by hand, properties, and another library's answers where it is installed."""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from tritium.errors import ArgumentError
from tritium.perf.stats import estimates as stats, resample

NUMBERS = st.floats(-1e3, 1e3).map(lambda v: round(v, 3))
SAMPLES = st.lists(NUMBERS, min_size=1, max_size=12)
CHANCES = st.lists(st.floats(0, 1), max_size=12)


def library() -> Any:
    return pytest.importorskip("scipy.stats", reason="scipy gives the answers to compare with")


def sample(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, n)


# The estimate and its interval


def test_hodges_lehmann_by_hand() -> None:
    assert stats.hodges_lehmann([1, 2, 9]) == 3.5  # averages 1 1.5 2 5 5.5 9


@given(SAMPLES)
def test_hodges_lehmann_is_the_median_of_all_averages_of_two(x: list[float]) -> None:
    averages = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(x, 2)]
    assert stats.hodges_lehmann(x) == pytest.approx(median(averages), abs=1e-12)


@given(SAMPLES, NUMBERS)
def test_the_interval_moves_with_the_sample(x: list[float], by: float) -> None:
    low, high = stats.walsh_interval(x)
    moved = stats.walsh_interval([v + by for v in x])
    assert moved == pytest.approx((low + by, high + by), abs=1e-9)


@given(SAMPLES)
def test_a_mirrored_sample_has_the_mirrored_interval(x: list[float]) -> None:
    low, high = stats.walsh_interval(x)
    assert stats.walsh_interval([-v for v in x]) == (-high, -low)


@given(SAMPLES)
def test_more_confidence_is_a_wider_interval_around_the_estimate(x: list[float]) -> None:
    found = stats.walsh_intervals(x, (0.99, 0.95, 0.9, 0.5))
    ends = [*found.values()]
    assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in itertools.pairwise(ends))
    assert ends[-1][0] <= stats.hodges_lehmann(x) <= ends[-1][1]


@pytest.mark.parametrize(("n", "left_out"), [(6, 1), (8, 4), (15, 26), (20, 53), (28, 117)])
def test_the_interval_leaves_out_what_the_signed_rank_table_says(n: int, left_out: int) -> None:
    assert resample.signed_rank_tail(n, 0.025) == left_out


def test_too_few_values_give_the_widest_interval() -> None:
    assert stats.walsh_interval([3, 1, 2]) == (1, 3)


def test_one_value_is_its_own_interval() -> None:
    assert stats.walsh_interval([2.0]) == (2.0, 2.0)


def test_the_interval_is_what_the_signed_rank_test_does_not_reject() -> None:
    scipy = library()
    x = sample(15, 3)
    low, high = stats.walsh_interval(x)
    inside = [scipy.wilcoxon(x - at, mode="exact").pvalue for at in (low + 1e-9, high - 1e-9)]
    outside = [scipy.wilcoxon(x - at, mode="exact").pvalue for at in (low - 1e-9, high + 1e-9)]
    assert min(inside) > 0.05 >= max(outside)


def test_a_large_sample_is_bisected_to_the_same_averages() -> None:
    x = sample(1100, 5)
    averages = np.sort(resample.walsh(x))
    ranks = (0, 5, 300_000, len(averages) - 1)
    assert resample.ranked_walsh(x, ranks) == pytest.approx([averages[r] for r in ranks], abs=1e-12)


def test_a_large_sample_uses_the_normal_curve_where_it_hardly_differs() -> None:
    exact = resample.signed_rank_tail(resample.EXACT_RANKS, 0.025)
    n = resample.EXACT_RANKS
    curve = n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    assert abs(exact - curve) < 3


def test_generations_count_once_however_many_rounds_they_have() -> None:
    means = sample(15, 7)
    rounds = [[m - 1, m, m + 1] for m in means]
    assert stats.ratio_intervals(rounds)[0.95] == pytest.approx(stats.walsh_interval(means), abs=1e-12)


def test_one_generation_gives_the_interval_of_its_rounds() -> None:
    rounds = sample(12, 8)
    assert stats.ratio_intervals([rounds])[0.95] == stats.walsh_interval(rounds)


# Sign flips


def brute_force(d: list[float]) -> float:
    sums = [sum(s * v for s, v in zip(signs, d, strict=True)) for signs in itertools.product((1, -1), repeat=len(d))]
    reach = abs(sum(d)) - 1e-12 * sum(map(abs, d))
    return sum(abs(s) >= reach for s in sums) / len(sums)


@given(st.lists(NUMBERS, min_size=1, max_size=9))
@settings(max_examples=60)
def test_sign_flips_are_counted_exactly(d: list[float]) -> None:
    assert stats.sign_flip_p(d) == pytest.approx(brute_force(d), abs=1e-12)


@pytest.mark.parametrize("n", [1, 8, 14, 15, 28, 36])
def test_all_of_one_sign_gives_the_smallest_chance_there_is(n: int) -> None:
    assert stats.sign_flip_p(np.arange(1, n + 1)) == 2.0 ** (1 - n)


def test_no_difference_at_all_is_certain_chance() -> None:
    assert stats.sign_flip_p([0.0] * 15) == 1.0


def test_beyond_the_exact_range_flips_are_drawn_and_agree() -> None:
    d = sample(37, 1) + 0.3
    exact = stats._sums(d[:18]), np.sort(stats._sums(d[18:]))
    above = len(exact[1]) - np.searchsorted(exact[1], d.sum() - exact[0])
    wanted = 2 * above.sum() / 2.0**37
    assert stats.sign_flip_p(d) == pytest.approx(wanted, abs=4 * math.sqrt(wanted / stats.FLIPS))


def test_drawn_flips_are_never_zero_and_the_same_each_time() -> None:
    d = np.ones(70)
    assert stats.sign_flip_p(d) == stats.sign_flip_p(d) == 1 / (stats.FLIPS + 1)


def test_flips_of_many_values_follow_the_normal_curve() -> None:
    d = sample(stats.DRAWN_FLIPS, 4) + 0.08
    drawn = stats.sign_flip_p(d)
    assert stats.sign_flip_p(np.append(d, 0.0)) == pytest.approx(drawn, abs=4 * math.sqrt(drawn / stats.FLIPS))


# Unpaired samples


def test_the_shift_of_two_samples_by_hand() -> None:
    found = stats.unpaired([[1.0], [2.0]], [[4.0], [7.0]])
    assert found.difference == 4.0  # of 3, 6, 2, 5
    assert found.intervals[0.95] == (2.0, 6.0)


def test_the_ratio_of_two_samples_is_of_their_logarithms() -> None:
    found = stats.unpaired([[math.log(2)]] * 3, [[math.log(3)]] * 3)
    assert found.ratio == pytest.approx(1.5)


@pytest.mark.parametrize(("n", "m", "left_out"), [(5, 5, 3), (8, 8, 14), (15, 12, 50), (15, 15, 65)])
def test_the_interval_leaves_out_what_the_rank_sum_table_says(n: int, m: int, left_out: int) -> None:
    assert resample.rank_sum_tail(n, m, 0.025) == left_out


def test_differences_of_large_samples_are_bisected_to_the_same() -> None:
    a, b = sample(900, 1), sample(1200, 2) + 1
    differences = np.sort(np.subtract.outer(b, a).ravel())
    ranks = (0, 7, 500_000, len(differences) - 1)
    assert resample.ranked_differences(a, b, ranks) == pytest.approx([differences[r] for r in ranks], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_brunner_munzel_agrees(seed: int) -> None:
    a, b = np.round(sample(15, seed), 1), np.round(sample(11, seed + 50, 2) + 0.4, 1)
    assert stats.brunner_munzel_p(a, b) == pytest.approx(library().brunnermunzel(a, b).pvalue, rel=1e-9)


def test_samples_that_do_not_overlap_get_the_chance_of_that() -> None:
    assert stats.brunner_munzel_p([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20)


def test_equal_samples_do_not_differ() -> None:
    assert stats.brunner_munzel_p([1, 1], [1, 1]) == 1.0
    assert stats.brunner_munzel_p([1], [2]) == 1.0


# Many tests


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_benjamini_hochberg_by_hand() -> None:
    assert stats.benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


def test_no_tests_have_no_adjusted_chances() -> None:
    assert stats.holm([]) == stats.benjamini_hochberg([]) == []


@given(CHANCES)
def test_adjusting_keeps_the_order_and_never_lowers(p: list[float]) -> None:
    family, share = stats.holm(p), stats.benjamini_hochberg(p)
    assert all(a <= s + 1e-12 and s <= f + 1e-12 <= 1 + 1e-12 for a, s, f in zip(p, share, family, strict=True))
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(family)[order]) >= 0).all()
    assert (np.diff(np.array(share)[order]) >= -1e-15).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=30)
def test_benjamini_hochberg_agrees(p: list[float]) -> None:
    assert stats.benjamini_hochberg(p) == pytest.approx(list(library().false_discovery_control(p)), abs=1e-12)


# Planning


def test_the_planning_formula() -> None:
    assert stats.more_generations(sd=0.02, delta=0.02, n=0) == 15
    assert stats.more_generations(sd=0.03, delta=0.03, n=10) == 5
    assert stats.more_generations(sd=0.001, delta=0.03, n=15) == 0


def test_fewer_generations_than_the_least_can_never_alarm() -> None:
    least = stats.least_generations(50, 0.0044)
    assert least == 15
    assert stats.holm([stats.sign_flip_p([1.0] * least)] + [1.0] * 49)[0] < 0.0044
    assert stats.holm([stats.sign_flip_p([1.0] * (least - 1))] + [1.0] * 49)[0] > 0.0044


# The shape of a sample


def test_one_mode_is_told_from_two() -> None:
    one = sample(135, 2)
    two = one + 8 * (np.arange(135) % 2)
    assert stats.mvalue(one) < stats.MODES < stats.mvalue(two)


def test_a_constant_has_one_mode() -> None:
    assert stats.mvalue([3.0] * 50) == 2.0


def test_steady_counts_the_batches_until_two_windows_agree() -> None:
    assert stats.steady([1.0] * 16) == 16
    assert stats.steady([5, 4, 3, 2] + [1.0] * 20) == 17  # the first window's median must have left the slow ones
    assert stats.steady([1.0] * 15) is None
    assert stats.steady([1.05**i for i in range(40)]) is None


def test_describe_by_hand() -> None:
    found = stats.describe([1, 2, 3, 4, 100])
    assert (found.n, found.median, found.mean, found.mad) == (5, 3, 22, 1)
    assert (found.q1, found.q3, found.iqr, found.min, found.max) == (2, 4, 2, 1, 100)
    assert (found.outliers_mild, found.outliers_severe) == (0, 1)
    assert found.stdev == pytest.approx(43.6176, abs=1e-4)
    assert found.cv == pytest.approx(43.6176 / 22, abs=1e-5)
    assert found.interval == (1, 100)


def test_describe_one_value() -> None:
    found = stats.describe([7.0])
    assert (found.median, found.stdev, found.cv, found.interval) == (7.0, 0.0, 0.0, (7.0, 7.0))


@given(SAMPLES)
def test_describe_is_in_order(x: list[float]) -> None:
    found = stats.describe(x)
    figures = [found.min, found.p5, found.q1, found.median, found.q3, found.p95, found.p99, found.max]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(figures))
    assert found.interval[0] <= found.median <= found.interval[1]


@pytest.mark.parametrize(("n", "place"), [(5, 1), (6, 1), (20, 6), (45, 16), (100, 40)])
def test_the_interval_of_the_median_by_the_binomial_table(n: int, place: int) -> None:
    assert stats.median_interval(np.arange(1, n + 1)) == (place, n + 1 - place)


def test_the_interval_of_a_median_of_many() -> None:
    low, high = stats.median_interval(np.arange(10_000))
    assert (low, high) == pytest.approx((4901, 5098), abs=1)


@pytest.mark.parametrize(("found", "of"), [(0, 200), (3, 200), (50, 50), (123, 50_000)])
def test_the_interval_of_a_share_agrees(found: int, of: int) -> None:
    wanted = library().binomtest(found, of).proportion_ci()
    assert stats.share_interval(found, of) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_the_interval_of_a_share_by_hand() -> None:
    assert stats.share_interval(0, 1000)[1] == pytest.approx(1 - 0.025 ** (1 / 1000), abs=1e-12)
    with pytest.raises(ArgumentError, match="no proportion"):
        stats.share_interval(3, 2)


# Distributions


@pytest.mark.parametrize(("t", "df"), [(0.1, 1), (2.5, 7.3), (30, 14), (1e-9, 3), (5, 1000)])
def test_students_chance_agrees(t: float, df: float) -> None:
    assert resample.student_beyond(t, df) == pytest.approx(2 * library().t.sf(t, df), rel=1e-9)


@pytest.mark.parametrize("df", [1, 7, 14, 27])
def test_students_quantile_turns_its_chance_round(df: int) -> None:
    for share in (0.9, 0.975, 0.9999):
        assert resample.student_beyond(resample.student_quantile(share, df), df) / 2 == pytest.approx(1 - share)


def test_draws_follow_from_the_data_and_are_even() -> None:
    seed = resample.seed_of(np.array([1.0, 2.0]), np.array([3.0]))
    assert seed != resample.seed_of(np.array([1.0]), np.array([2.0, 3.0]))
    drawn = resample.draws(resample.bits(seed), 1000, 15)
    assert (drawn == resample.draws(resample.bits(seed), 1000, 15)).all()
    assert drawn.min() == 0
    assert drawn.max() == 14
    assert np.bincount(drawn.ravel()).std() < 100


# What is refused


@pytest.mark.parametrize("call", [stats.hodges_lehmann, stats.walsh_interval, stats.sign_flip_p, stats.describe])
@pytest.mark.parametrize("wrong", [[], [1.0, math.nan], [math.inf], [[1.0]]])
def test_no_values_and_values_that_are_none_are_refused(call: Any, wrong: Any) -> None:
    with pytest.raises(ArgumentError):
        call(wrong)


def test_a_confidence_in_percent_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"0\.95"):
        stats.walsh_interval([1.0, 2.0], 95)


def test_chances_beyond_one_are_refused() -> None:
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        stats.holm([0.5, 1.5])


def test_a_change_of_nothing_cannot_be_planned_for() -> None:
    with pytest.raises(ArgumentError, match="delta"):
        stats.more_generations(0.01, 0, 15)


def test_windows_that_differ_by_their_own_noise_are_steady_with_doubt() -> None:
    swings = [0.9, 1.1, 0.92, 1.08, 0.94, 1.06, 0.96, 1.04]
    noisy = [*swings, *(1.02 * v for v in swings)]
    assert stats.steady(noisy, window=8) is None
    assert stats.steady(noisy, window=8, doubt=2.0) == 16


def test_a_warm_up_is_not_hidden_by_doubt() -> None:
    falling = [2.0 - 0.05 * i + 0.001 * (i % 3) for i in range(16)]
    assert stats.steady(falling, window=8, doubt=2.0) is None


# ---- rates


@given(st.integers(0, 40), st.integers(0, 200), st.integers(1, 60), st.integers(1, 400), st.integers(1, 30))
def test_a_rate_above_the_others_is_that_of_the_binomial_sum(
    hits: int, others: int, total: int, others_total: int, tests: int
) -> None:
    share, every = total / (total + others_total), hits + others
    chance = math.fsum(math.comb(every, k) * share**k * (1 - share) ** (every - k) for k in range(hits, every + 1))
    assume(abs(chance * tests - 0.05) > 1e-9)
    twice = hits / total > 2 * others / others_total + 1e-12
    assert stats.rate_above(hits, total, others, others_total, tests) == (twice and chance < 0.05 / tests)


@pytest.mark.parametrize(
    ("numbers", "above"),
    [
        ((6, 30, 6, 150), True),  # 20 % beside 4 %, one of six cases
        ((3, 30, 3, 150), False),  # 10 % beside 2 % of few: chance
        ((20, 100, 100, 1000), False),  # exactly twice
        ((21, 100, 100, 1000), True),
        ((45, 45, 432, 450), False),  # where all are disturbed none is
        ((5, 10, 0, 0), False), ((0, 10, 0, 100), False), ((0, 0, 5, 100), False),  # nothing to compare with, nothing to see
    ],
)  # fmt: skip
def test_a_rate_is_above_the_others_from_twice_of_it_on_where_chance_is_excluded(
    numbers: tuple[int, int, int, int], above: bool
) -> None:
    assert stats.rate_above(*numbers, tests=6 if numbers[3] == 150 else 1) == above
