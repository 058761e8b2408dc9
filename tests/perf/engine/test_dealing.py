"""Dealing of time: when a comparison is decided, and which cells the next processes measure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritium.perf.engine import dealing
from tritium.perf.engine.dealing import MARGIN, deal, process_ratios, processes_needed, seconds_of
from tritium.perf.stats.estimates import walsh_interval

# ---- is it decided?


def test_a_process_has_one_ratio_and_is_left_out_where_one_side_lacks_it() -> None:
    first = [[[1.0, 9.0, 2.0], [4.0]], [], [[2.0]], [[0.0]], [[5.0]]]
    other = [[[4.0], [4.0, 4.0]], [[1.0]], [[1.0]], [[1.0]]]
    # Medians of batches: 4 / 2 and 4 / 4; the median of both rounds. A time of 0 has no logarithm.
    assert process_ratios(first, other) == [pytest.approx(math.log(2) / 2), pytest.approx(-math.log(2))]
    assert process_ratios([], other) == []


@pytest.mark.parametrize(("processes", "needed"), [(0, 3), (1, 2), (2, 1), (3, 3), (4, 2), (5, 1), (6, 0)])
def test_three_processes_come_first_and_six_before_anything_is_decided(processes: int, needed: int) -> None:
    assert processes_needed([0.7] * processes) == needed


def spread(low: float, high: float) -> list[float]:
    """Return six log ratios whose 95 % interval reaches from `low` to `high`: that of six values is their range."""
    values = [low, high, *[(low + high) / 2] * 4]
    assert walsh_interval(values) == (low, high)
    return values


@pytest.mark.parametrize(
    ("low", "high", "needed"),
    [
        (0.2, 0.6, 0),  # twice as wide it is 0.0 … 0.8: the end is no longer above, but not below either
        (-0.6, -0.2, 0),
        (0.19, 0.6, 1),  # -0.015 … 0.805 contains 1: 6 · (0.41 / 0.395)² = 6.46
        (0.1, 0.5, 5),  # 6 · (0.4 / 0.3)² = 10.67
        (0.0, 0.4, 18),  # 6 · (0.4 / 0.2)² = 24
        (-MARGIN / 2, MARGIN / 2, 0),  # within the margin however wide
        (-0.5, 0.5, 6862),  # 6 · (1 / 0.029559)² = 6867.2: nobody waits for that
    ],
)
def test_decided_is_what_an_interval_of_twice_the_width_decides(low: float, high: float, needed: int) -> None:
    assert processes_needed(spread(low, high)) == needed


def false_differences(sd: float, trials: int = 1000, most: int = 28) -> float:
    """Return how often the 95 % interval of equal contenders excludes 1, where it is looked at until it decides."""
    rng, false = np.random.default_rng(1), 0
    for _ in range(trials):
        values = rng.normal(0, sd, most)
        n = next((k for k in range(3, most) if processes_needed(values[:k]) == 0), most)
        low, high = walsh_interval(values[:n])
        false += not low <= 0 <= high
    return false / trials


@pytest.mark.slow
@pytest.mark.parametrize("sd", [0.002, 0.02, 0.15])
def test_looking_after_every_process_finds_no_more_differences_than_looking_once(sd: float) -> None:
    assert false_differences(sd) <= 0.07


@pytest.mark.slow
def test_an_interval_of_its_own_width_would_find_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "WIDER", 1)
    assert false_differences(0.15) > 0.1


# ---- what is measured next?

FIRST = {"a": "tritium", "b": "tritium"}
START_S = {"tritium": 1.0, "numpy": 2.0, "mlx": 4.0}
CELL_S = {("a", "tritium"): 0.5, ("a", "numpy"): 1.0, ("b", "tritium"): 0.5, ("b", "numpy"): 8.0, ("b", "mlx"): 0.25}


def test_the_cost_of_processes_is_that_of_their_cells_and_of_the_longest_series_of_each_contender() -> None:
    processes = {("a", "tritium"): 3, ("b", "tritium"): 1, ("a", "numpy"): 3}
    assert seconds_of(processes, START_S, CELL_S) == 3 * 1 + 3 * 2 + 1.5 + 0.5 + 3
    assert seconds_of({}, START_S, CELL_S) == 0
    assert seconds_of({("new", "torch"): 2}, START_S, CELL_S) == 0  # not seen yet: it is found out


def dealt(left_s: float, **needed: int) -> set[tuple[str, str]]:
    names = {f"{case}_{arm}": (case, arm) for case, arm in CELL_S}
    return deal({names[name]: n for name, n in needed.items()}, FIRST, START_S, CELL_S, left_s)


def test_an_undecided_comparison_is_measured_beside_the_first_contender() -> None:
    assert dealt(100, a_numpy=2, b_numpy=0, b_mlx=0) == {("a", "numpy"), ("a", "tritium")}
    assert dealt(100, a_numpy=0) == set()
    assert deal({("b", "tritium"): 1}, FIRST, START_S, CELL_S, 100) == {("b", "tritium")}  # a lone contender


def test_all_that_is_undecided_is_measured_while_there_is_time() -> None:
    every = {("a", "numpy"), ("a", "tritium"), ("b", "numpy"), ("b", "mlx"), ("b", "tritium")}
    # Three starts of 7, then 2 · 1.5, 0.25 + 0.5, 8: what is needed of the cheap ones, and one process of the dearest.
    assert dealt(1 + 2 + 4 + (1 + 2 + 1.5) + 0.75 + 8 + 1.5, a_numpy=2, b_mlx=1, b_numpy=6) == every


def test_what_is_decided_in_the_least_time_comes_first() -> None:
    # b beside mlx: 1 · 0.75; a beside numpy: 2 · 1.5; b beside numpy: 1 · 8.5.
    assert dealt(5.75, a_numpy=2, b_mlx=1, b_numpy=1) == {("b", "mlx"), ("b", "tritium")}
    assert dealt(5.74, a_numpy=2, b_mlx=1, b_numpy=1) == {("a", "numpy"), ("a", "tritium")}  # the next that fits
    assert dealt(4.4, a_numpy=2, b_mlx=1, b_numpy=1) == set()


def test_a_comparison_waits_until_those_before_it_have_all_they_need() -> None:
    # mlx needs 2 processes: 2 · (1 + 4 + 0.75) = 11.5; a process of numpy beside it: 2 + 1.5 more.
    assert dealt(11.5 + 3.4, b_mlx=2, a_numpy=4) == {("b", "mlx"), ("b", "tritium")}
    assert dealt(11.5 + 3.5, b_mlx=2, a_numpy=4) == {("b", "mlx"), ("b", "tritium"), ("a", "numpy"), ("a", "tritium")}


def test_equal_comparisons_keep_their_order() -> None:
    cells = {("a", "y"): 1, ("a", "x"): 1}
    cell_s = {("a", "x"): 1.0, ("a", "y"): 1.0, ("a", "first"): 1.0}
    assert deal(cells, {"a": "first"}, {"x": 1.0, "y": 1.0, "first": 1.0}, cell_s, 4.5) == {("a", "y"), ("a", "first")}


@given(
    st.dictionaries(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), st.integers(0, 30)),
    st.dictionaries(st.sampled_from("fxyz"), st.floats(0, 5)),
    st.floats(0, 100),
    st.integers(0, 1000),
)
def test_one_process_of_what_is_dealt_never_takes_more_than_the_time_left(
    needed: dict[tuple[str, str], int], start_s: dict[str, float], left_s: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    cell_s = {(case, arm): float(rng.exponential()) for case in "abcd" for arm in "fxyz"}
    cells = deal(needed, dict.fromkeys("abcd", "f"), start_s, cell_s, left_s)
    assert seconds_of(dict.fromkeys(cells, 1), start_s, cell_s) <= left_s
    assert all((case, "f") in cells for case, _ in cells)
    assert all(needed.get(cell, 0) > 0 for cell in cells if cell[1] != "f")
