"""What reports are made from: standings, shares and anchors."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import made_report
from tritium.perf.gate.verdict import Verdict
from tritium.see.reports import summary as section_summary
from tritium.see.reports.inputs import Inputs, anchor, outcome_beside, share


@pytest.mark.parametrize(
    ("ratio", "interval", "q", "word"),
    [
        (0.5, (0.4, 0.6), 0.01, "FASTER"),
        (2.0, (1.8, 2.2), 0.01, "SLOWER"),
        (1.1, (0.9, 1.3), 0.5, "INCONCLUSIVE"),
        (2.0, (1.8, 2.2), 0.2, "INCONCLUSIVE"),
        (2.0, (1.8, 2.2), None, "SLOWER"),
        (2.0, (2.0, 2.0), 0.01, "INCONCLUSIVE"),
        (2.0, None, None, "INCONCLUSIVE"),
    ],
)
def test_a_difference_is_named_only_where_interval_and_false_share_allow_it(
    ratio: float, interval: tuple[float, float] | None, q: float | None, word: str
) -> None:
    assert outcome_beside(Verdict("a", "wall", "x", "y", "EQUIVALENT", ratio, interval95=interval, q=q)) == word


def test_no_verdict_is_no_standing() -> None:
    assert outcome_beside(None) == ""
    assert outcome_beside(Verdict("a", "wall", "x", "y", "MISSING")) == "MISSING"


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
