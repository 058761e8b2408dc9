"""The noise of a machine in one sentence, from the intervals that were measured on it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritium.perf.gate.verdict import Verdict, half_width, noise_text, suite_of, told_apart


@given(st.floats(0.01, 100), st.floats(1, 50))
def test_a_half_width_is_relative_to_the_geometric_middle(low: float, factor: float) -> None:
    assert half_width((low, low * factor)) == pytest.approx(math.sqrt(factor) - 1)


def test_an_interval_down_to_nothing_has_no_width() -> None:
    assert half_width((0.0, 2.0)) == math.inf


def of_width(width: float) -> tuple[float, float]:
    return 1 / (1 + width), 1 + width


@pytest.mark.parametrize(
    ("width", "counts", "sentence"),
    [
        (0.0934, (21, 25), "This machine is noisy: intervals are ±9.3 % wide at the median; 21 of 25 comparisons are decided all the same"),
        (0.314, (0, 18), "This machine is noisy: intervals are ±31 % wide at the median; 0 of 18 comparisons are decided"),
        (0.0996, (1, 2), "This machine is noisy: intervals are ±10 % wide at the median; 1 of 2 comparisons is decided all the same"),
        (0.0501, (0, 0), "This machine is noisy: intervals are ±5.0 % wide at the median"),
        (0.0499, (2, 2), "Intervals are ±5.0 % wide at the median; 2 of 2 comparisons are decided"),
        (0.004, (0, 0), "Intervals are ±0.4 % wide at the median"),
        (0.004, (1, 1), "Intervals are ±0.4 % wide at the median; the comparison is decided"),
        (0.14, (1, 1), "This machine is noisy: intervals are ±14 % wide at the median; the comparison is decided all the same"),
        (0.14, (0, 1), "This machine is noisy: intervals are ±14 % wide at the median; the comparison is not decided"),
    ],
)  # fmt: skip
def test_noise_is_a_sentence_with_its_width_and_what_is_decided_all_the_same(
    width: float, counts: tuple[int, int], sentence: str
) -> None:
    assert noise_text([of_width(width)], *counts) == sentence


def test_the_width_is_that_of_the_median_interval_and_one_round_has_none() -> None:
    intervals = [of_width(0.03), None, (0.9, 0.9), of_width(1.0), of_width(0.01)]
    assert noise_text(intervals) == "Intervals are ±3.0 % wide at the median"
    assert noise_text([None, (2.0, 2.0)], 0, 2) == ""
    assert [told_apart(i) for i in ((1.0, 1.2), None, (0.9, 0.9))] == [(1.0, 1.2), None, None]


def verdict(outcome: Any, interval: tuple[float, float] | None = (1.0, 1.0404)) -> Verdict:
    return Verdict("a", "wall", "x", "x", outcome, 1.02, interval95=interval)


@pytest.mark.parametrize("outcome", ["SLOWER", "FASTER", "CHANGED-SMALL", "EQUIVALENT"])
def test_a_suite_counts_the_verdicts_that_are_decided_among_those_with_an_interval(outcome: str) -> None:
    listed = [verdict(outcome), verdict("INCONCLUSIVE"), verdict("NOT COMPARABLE"), verdict("MISSING", None)]
    assert suite_of(listed).noise == "Intervals are ±2.0 % wide at the median; 1 of 3 comparisons is decided"
    assert suite_of([verdict("MISSING", None)]).noise == ""
    assert suite_of(listed, noise="as it was stored").noise == "as it was stored"
