"""What reports are made from: standings, shares and anchors."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import made_report
from tritium.see.reports import summary as section_summary
from tritium.see.reports.inputs import Inputs, anchor, share


def test_a_row_is_marked_if_one_of_its_cells_was_disturbed_more_than_usual() -> None:
    made = made_report.many(12, {"tritium": 1.0, "numpy": 2.0, "torch": 2.0})
    runs = tuple(replace(r, flags=()) for r in made)
    waited, key = ("waited: the CPU time is 20% of the wall time",), runs[1].key
    given = Inputs(replace(made, runs=tuple(replace(r, flags=waited) if r.key == key else r for r in runs)))
    case, arm = key
    assert given.disturbed == {key}
    marks = [
        given.mark(case, "tritium"),
        given.mark(case, "numpy"),
        given.mark(case, "torch"),
        given.mark(case, *given.results.arms),
    ]
    assert marks == [" !" * (arm == "tritium"), " !" * (arm == "numpy"), " !" * (arm == "torch"), " !"]
    assert given.mark(given.cases[5], *given.results.arms) == ""


@given(st.text(max_size=60), st.text(max_size=60))
def test_an_anchor_is_plain_and_two_cases_have_two(a: str, b: str) -> None:
    assert re.fullmatch(r"case-[A-Za-z0-9_-]+", anchor(a))
    assert (anchor(a) == anchor(b)) == (a == b)


def test_the_share_of_a_ceiling_is_the_least_time_to_the_real_one() -> None:
    results = made_report.many(1, {"tritium": 1.0})
    run = results.runs[0]
    assert run.seconds is not None
    least = made_report.LIMITS.least_s(run.work.flops, run.work.moved)
    assert least is not None
    assert share(run, results) == pytest.approx(least / run.seconds)
    assert share(replace(run, status="failed"), results) is None
    assert share(run, replace(results, environment=replace(results.environment, limits=None))) is None


def test_more_than_a_ceiling_says_that_the_ceiling_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Inputs(made_report.many(2, {"tritium": 1.0}))
    for factor, word, tone in (
        (1.0, "", ""),
        (40.0, "too low, as on a busy machine; run tritium ceilings --refresh.", "unsure"),
    ):
        monkeypatch.setattr(section_summary, "share", lambda run, results, factor=factor: 0.5 * factor)
        (line,) = section_summary._ceiling_lines(given)
        assert line.tone == tone
        assert word in line.text


def test_revisions_are_judged_and_not_compared_as_arms() -> None:
    made, suite = made_report.verdicts()
    assert Inputs(made).comparisons
    assert not Inputs(made, suite).comparisons
