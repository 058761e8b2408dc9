"""Scales: they cover their data, have round ticks, and can be read backwards; amounts have the unit that suits."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from tritium.errors import ArgumentError
from tritium.see.charts import scale
from tritium.see.charts.scale import (
    MINUS,
    Scale,
    amount,
    change_text,
    linear,
    log,
    nice,
    ratio,
    ratio_text,
    spaced,
    tick_texts,
)

values = st.lists(st.floats(-1e290, 1e290, allow_nan=False), min_size=1, max_size=20)
amounts = st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=20)
ratios = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


def is_round(x: float) -> bool:
    """Whether x is 1, 2 or 5 times a power of ten."""
    share = x / 10.0 ** math.floor(math.log10(x) + 1e-9)
    return any(math.isclose(share, m, rel_tol=1e-6) for m in (1, 2, 5, 10))


@given(values, st.booleans(), st.integers(1, 12))
def test_the_ticks_of_a_linear_scale_cover_the_data(known: list[float], zero: bool, count: int) -> None:
    s = linear(known, 0, 100, count=count, zero=zero)
    room = 1e-6 * max(abs(s.low), abs(s.high))
    assert s.ticks[0] - room <= max(min(known), -scale.MOST)
    assert s.ticks[-1] + room >= min(max(known), scale.MOST)
    assert all(a < b for a, b in pairwise(s.ticks))
    assert 2 <= len(s.ticks) <= 2 * count + 4


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20))
def test_the_steps_of_a_linear_scale_are_round(known: list[float]) -> None:
    s = linear(known, 0, 100, unit="W")
    one = 10.0 ** round(math.log10(s.ticks[1] - s.ticks[0]))
    assert is_round((s.ticks[1] - s.ticks[0]) / one)


@given(values)
def test_a_scale_from_zero_has_zero(known: list[float]) -> None:
    s = linear(known, 0, 100)
    assert s.low <= 0 <= s.high


@given(amounts, st.integers(2, 12))
def test_a_log_scale_covers_the_data_and_has_round_ticks(known: list[float], count: int) -> None:
    s = log(known, 0, 100, count=count)
    assert s.low <= min(known) * (1 + 1e-6)
    assert s.high >= max(known) * (1 - 1e-6)
    assert len(s.ticks) >= 2
    assert all(s.low * (1 - 1e-6) <= t <= s.high * (1 + 1e-6) for t in s.ticks)
    assert all(is_round(t) or is_round(t / 3) for t in s.ticks)


@given(ratios)
def test_a_scale_of_ratios_covers_them_and_has_a_tick_at_one(known: list[float]) -> None:
    s = ratio(known, 0, 100)
    assert s.low <= min(*known, 1) * (1 + 1e-6)
    assert s.high >= max(*known, 1) * (1 - 1e-6)
    assert any(math.isclose(t, 1) for t in s.ticks)


@given(amounts, st.floats(0, 1))
def test_a_scale_reads_backwards(known: list[float], share: float) -> None:
    for s in (linear(known, 10, 210), log(known, 10, 210), ratio(known, 210, 10)):
        value = s.value(s.start + share * (s.end - s.start))
        assert math.isclose(s.position(value), s.start + share * (s.end - s.start), abs_tol=1e-6)


@given(values, st.floats(allow_nan=False))
def test_every_value_has_a_place_between_the_ends(known: list[float], value: float) -> None:
    for s in (linear(known, 0, 100), log(known, 0, 100)):
        assert 0 <= s.position(value) <= 100


@given(st.floats(1e-200, 1e200))
def test_nice_is_round_and_not_below(raw: float) -> None:
    assert is_round(nice(raw))
    assert nice(raw) >= raw * (1 - 1e-6)


def test_the_ticks_of_bytes_are_round_in_their_unit() -> None:
    s = linear([0, 1.5 * 2**30], 0, 100, unit="B")
    assert tick_texts(s, "B") == ("0", "0.5 GiB", "1.0 GiB", "1.5 GiB")


def test_a_linear_axis_has_one_unit_and_a_log_axis_suits_each() -> None:
    assert tick_texts(linear([0, 8e-3], 0, 100, count=4), "s") == ("0", "2 ms", "4 ms", "6 ms", "8 ms")
    assert tick_texts(log([1e-6, 1.0], 0, 100, count=8), "s")[0] == "1 µs"
    assert tick_texts(log([1e-6, 1.0], 0, 100, count=8), "s")[-1] == "1 s"


def test_a_log_axis_of_bytes_has_powers_of_two() -> None:
    assert tick_texts(log([3000, 200_000], 0, 100, unit="B"), "B") == ("4 KiB", "16 KiB", "64 KiB", "256 KiB")
    assert tick_texts(log([900, 9000], 0, 100, unit="B"), "B") == (
        "512 B",
        "1 KiB",
        "2 KiB",
        "4 KiB",
        "8 KiB",
        "16 KiB",
    )
    assert tick_texts(log([1000.0, 5e9], 0, 100, unit="B"), "B") == (
        "4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "4 GiB",
    )  # fmt: skip


@given(amounts, st.integers(2, 8))
def test_a_log_scale_of_bytes_covers_the_data(known: list[float], count: int) -> None:
    s = log(known, 0, 100, count=count, unit="B")
    assert s.low <= min(known) * (1 + 1e-6)
    assert s.high >= max(known) * (1 - 1e-6)
    assert 2 <= len(s.ticks) <= count + 1
    assert all(s.low <= t <= s.high and math.frexp(t)[0] == 0.5 for t in s.ticks)


def test_ratios_near_one_are_told_in_per_cent_and_far_ones_as_multiples() -> None:
    near = tick_texts(ratio([0.95, 1.05], 0, 100, count=5), "change")
    assert "0" in near
    assert f"{MINUS}5 %" in near or f"{MINUS}4 %" in near
    assert "10×" in tick_texts(ratio([0.1, 10], 0, 100), "change")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.94e-3, "s", "1.94 ms"),
        (0, "s", "0 s"),
        (1536, "B", "1.5 KiB"),
        (-1.5, "s", f"{MINUS}1.5 s"),
        (2.5e9, "FLOP/s", "2.5 GFLOP/s"),
        (0.0349, "J", "34.9 mJ"),
        (41.2, "%", "41.2 %"),
        (1500, "", "1.5k"),
        (12.3456, "W", "12.3 W"),
        (0, "B", "0 B"),
        (71, "°C", "71 °C"),
    ],
)
def test_an_amount_has_the_unit_that_suits(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["s", "J", "B", "W", "FLOP/s", "", "%", "×"]))
def test_an_amount_is_short_and_has_a_digit(value: float, unit: str) -> None:
    told = amount(value, unit)
    assert len(told) < 24
    assert any(c.isdigit() for c in told)


def test_a_change_far_from_one_is_a_multiple() -> None:
    assert change_text(1.032) == "+3.2 %"
    assert change_text(0.9) == f"{MINUS}10.0 %"
    assert change_text(1.0) == "±0.0 %"
    assert change_text(12.0) == "12×"
    assert ratio_text(0.001) == "0.001×"
    assert ratio_text(1e9) == "1e9×"


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(1, 80)), max_size=40))
def test_labels_that_stand_do_not_touch(given_: list[tuple[float, float]]) -> None:
    kept = spaced([p for p, _ in given_], [w for _, w in given_], 4)
    ends = [(given_[i][0] - given_[i][1] / 2, given_[i][0] + given_[i][1] / 2) for i in kept]
    assert all(b[0] >= a[1] + 4 - 1e-9 for a, b in pairwise(ends))
    assert bool(kept) == bool(given_)


def test_places_and_widths_must_be_as_many() -> None:
    with pytest.raises(ArgumentError, match="width"):
        spaced([1.0], [])


def test_what_is_no_number_is_none() -> None:
    assert scale.finite(math.nan) is None
    assert scale.finite(math.inf) is None
    assert scale.finite(None) is None
    assert scale.finite_all([1, None, math.nan, 2]) == [1.0, 2.0]


def test_a_log_scale_gives_what_is_not_above_zero_its_start() -> None:
    assert log([1, 100], 0, 50).position(0) == 0
    assert Scale(1, 100, 0, 50, (1, 100), log=True).position(-3) == 0
