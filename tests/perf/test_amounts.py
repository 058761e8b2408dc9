"""Amounts as text can be read back, with the unit a person would choose."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tritium.perf import amounts


@given(st.floats(1e-9, 1e4))
def test_a_time_reads_back_within_half_a_percent(s: float) -> None:
    value, unit = amounts.seconds_text(s).split()
    scale = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60}[unit]
    assert float(value) * scale == pytest.approx(s, rel=6e-3)
    assert "e" not in value


@given(st.floats(1, 1e15), st.sampled_from(["B", "FLOP", "OP", "token"]))
def test_a_rate_reads_back_within_half_a_percent(rate: float, item: str) -> None:
    value, _, unit = amounts.rate_text(rate, item).partition(" ")
    letter = unit.strip()[0] if unit[:1] in "TGMk" else ""
    assert float(value) * {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1}[letter] == pytest.approx(rate, rel=6e-3)


@pytest.mark.parametrize(
    ("joules", "said"), [(0.9996, "1000 mJ"), (2.5, "2.5 J"), (3.2e-5, "32 µJ"), (4e-8, "40 nJ"), (4e-11, "0.04 nJ")]
)
def test_joules_have_the_unit_a_person_would_choose(joules: float, said: str) -> None:
    assert amounts.joules_text(joules) == said
