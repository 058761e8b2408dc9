"""What would decide a verdict: how many processes, how long they take, and what to do where that is too many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritium.perf.gate.page import QUIETER, advice, deciding, joint_advice, mark, more_processes
from tritium.perf.gate.verdict import Verdict, suite_of

MORE = "more processes would be needed"
OPEN = Verdict("a", "wall", "x", "x", "INCONCLUSIVE", 1.02, (0.9, 1.1), passes=False, generations=15)


@pytest.mark.parametrize(
    ("count", "each_s", "text"),
    [
        (1, 0.0, "1 more process"), (12, 0.0, "12 more processes"), (12, 4.9, "12 more processes (59 s)"),
        (12, 5.0, "12 more processes (60 s)"), (12, 7.6, "12 more processes (91 s)"), (2, 0.1, "2 more processes (1 s)"),
    ],
)  # fmt: skip
def test_more_processes_are_told_with_the_time_they_take(count: int, each_s: float, text: str) -> None:
    assert more_processes(count, each_s) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""), (1, "about 1 more process (7 s) would decide"), (100, "about 100 more processes (12 min) would decide"),
        (101, f"more than 100 more processes would be needed: {QUIETER}"),
    ],
)  # fmt: skip
def test_more_than_a_hundred_processes_are_not_counted(count: int | None, text: str) -> None:
    assert deciding(count, 7.0) == text


@pytest.mark.parametrize(
    ("needed", "text"),
    [
        ((), ""), ((None,), ""), ((1,), "about 1 more process (6 s) would decide it"),
        ((7, 100), "about 100 more processes (10 min) would decide all of them"),
        ((7, None), "about 7 more processes (42 s) would decide 1 of them"),
        ((7, 3629), f"about 7 more processes (42 s) would decide 1 of them; more than 100 {MORE} for 1 of them: {QUIETER}"),
        ((3629, 101), f"more than 100 {MORE} for all of them: {QUIETER}"),
        ((101,), f"more than 100 {MORE} for it: {QUIETER}"),
    ],
)  # fmt: skip
def test_several_verdicts_are_decided_by_the_most_that_one_of_them_needs(
    needed: tuple[int | None, ...], text: str
) -> None:
    assert joint_advice([replace(OPEN, more_generations=n) for n in needed], 6.0) == text


def test_the_advice_on_a_verdict_names_the_option_and_the_time() -> None:
    v = replace(OPEN, more_generations=12)
    assert advice(v, suite_of([v], process_s=10.0)) == "about 12 more processes (2 min): --processes 27"
    assert (
        advice(v, suite_of([v], process_s=2.0, paired=False))
        == "about 12 more processes (24 s) in both runs: --processes 27"
    )
    assert advice(v, suite_of([v])) == "about 12 more processes: --processes 27"
    assert advice(replace(v, more_generations=101), suite_of([v])) == deciding(101)
    assert advice(replace(v, more_generations=None), suite_of([v])) == ""


def test_the_sign_of_a_suite_is_that_of_its_status_and_not_of_its_noise() -> None:
    noisy = suite_of([replace(OPEN, outcome="EQUIVALENT", interval95=(0.5, 2.0))])
    assert "noisy" in noisy.noise
    signs = [mark(noisy), mark(suite_of([OPEN])), mark(replace(suite_of([OPEN]), exit_code=0))]
    assert signs == ["✅", "❌", "⚠️"]
