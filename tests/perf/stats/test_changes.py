"""Change points: steps are found where they are, and noise has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium.errors import ArgumentError
from tritium.perf.stats.changes import _distances, change_points


def noise(n: int, seed: int = 0, sd: float = 0.01) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, sd, n)


def stepped(*parts: tuple[int, float], seed: int = 0) -> np.ndarray:
    levels = np.concatenate([np.full(n, level) for n, level in parts])
    return levels + noise(len(levels), seed)


def test_a_step_is_found_where_it_is() -> None:
    (found,) = change_points(stepped((40, 0.0), (30, 0.05)))
    assert found.index == 40
    assert found.ratio == pytest.approx(math.exp(found.after - found.before))
    assert found.ratio == pytest.approx(1.05, abs=0.01)
    assert found.p < 0.003


def test_several_steps_up_and_down_are_found() -> None:
    found = change_points(stepped((40, 0.0), (30, 0.06), (50, 0.02), (90, -0.03)))
    assert all(abs(c.index - at) <= 1 for c, at in zip(found, (40, 70, 120), strict=True))
    assert [c.ratio > 1 for c in found] == [True, False, False]


def test_five_new_points_are_enough() -> None:
    (found,) = change_points(stepped((95, 0.0), (5, 0.04)))
    assert abs(found.index - 95) <= 1


@pytest.mark.parametrize("n", [0, 1, 5, 6, 30, 400])
def test_noise_has_none(n: int) -> None:
    assert change_points(noise(n, 3)) == []


def test_a_constant_has_none() -> None:
    assert change_points([0.5] * 60) == []


def test_one_outlier_is_no_change() -> None:
    values = noise(60, 4)
    values[30] += 0.5
    assert change_points(values) == []


def test_a_small_step_is_left_out_unless_asked_for() -> None:
    values = stepped((50, 0.0), (50, 0.015))
    assert change_points(values) == []
    assert len(change_points(values, least_change=0.01)) == 1


def test_a_step_of_two_points_is_not_one_of_three() -> None:
    values = np.concatenate([np.zeros(40) + noise(40, 1, 1e-3), [1.0, 1.0]])
    assert all(c.index <= 39 for c in change_points(values))


def test_values_nobody_is_sure_of_count_less() -> None:
    values = stepped((50, 0.0), (6, 0.2))
    weights = np.ones(56)
    weights[50:] = 1e-4
    assert len(change_points(values)) == 1
    assert change_points(values, weights) == []


def test_the_same_series_gives_the_same_answer() -> None:
    values = stepped((30, 0.0), (30, 0.03), seed=9)
    assert change_points(values) == change_points(values.copy())


@given(st.integers(6, 20), st.integers(0, 1000))
@settings(max_examples=40)
def test_the_distance_is_that_of_the_means(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=n), rng.uniform(0.5, 2, n)
    for place, found in enumerate(_distances(x[None], w[None], 3)[0], start=3):
        a, b = w[:place].sum(), w[place:].sum()
        apart = np.average(x[:place], weights=w[:place]) - np.average(x[place:], weights=w[place:])
        assert found == pytest.approx(a * b / (a + b) * apart**2)


@given(st.integers(0, 1000), st.floats(-5, 5))
@settings(max_examples=15, deadline=None)
def test_another_unit_moves_no_point(seed: int, shift: float) -> None:
    values = stepped((25, 0.0), (25, 0.04), seed=seed)
    ours, theirs = change_points(values, p_strong=0.01), change_points(values + shift, p_strong=0.01)
    # The draws follow from the data, so a chance near the limit may fall on either side of it.
    assert {c.index for c in ours} == {c.index for c in theirs} or min(c.p for c in ours + theirs) > 0.002


@pytest.mark.parametrize(
    ("values", "about"),
    [([1.0, math.nan], {}), ([[1.0]], {}), ([1.0, 2.0], {"weights": [1.0]}), ([1.0, 2.0], {"weights": [1.0, 0.0]})],
)
def test_what_is_no_series_is_refused(values: list[float], about: dict[str, list[float]]) -> None:
    with pytest.raises(ArgumentError, match="finite values"):
        change_points(values, **about)


def test_a_window_without_room_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no room"):
        change_points([1.0] * 10, window=4)
