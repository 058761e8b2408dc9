"""The two arms of a case profiled in processes of their own: the operation that became slower is named."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tritium.errors import ArgumentError, TritiumError
from tritium.perf.gate.selftest_cases import ARMS, cases
from tritium.perf.gate.verdict import Verdict, suite_of
from tritium.perf.records.case import Arm, Case, Context, Recipe
from tritium.see.profile import attribution
from tritium.see.profile.attribution import attribute, attributed


@pytest.mark.slow
def test_the_seeded_slow_operation_of_the_selftest_is_named() -> None:
    (case,) = [c for c in cases("add", 19.0) if c.name == "add"]
    found = attribute(case, *ARMS, repeats=5, calls=10)
    assert found.repetitions == (5, 5)
    assert found.culprit is not None, found.text()
    assert found.culprit.name == "add"
    assert found.culprit.count_before == found.culprit.count_after == 10


def test_an_arm_that_fails_is_named_with_what_it_said() -> None:
    case = Case("broken", Recipe("tritium.perf.gate.selftest_cases:none"), Context("none"))
    with pytest.raises(TritiumError, match="attribute: base failed: AttributeError"):
        attribute(case, *ARMS, repeats=2)
    with pytest.raises(TritiumError, match="could not be started"):
        attribute(case, Arm("gone", python=sys.executable + "-none"), ARMS[1], repeats=2)


def test_one_repetition_is_too_few() -> None:
    with pytest.raises(ArgumentError, match="at least 2"):
        attribute(cases()[0], *ARMS, repeats=1)


def test_what_is_no_case_or_no_arm_is_told() -> None:
    with pytest.raises(ArgumentError, match="'matmul' is not a case of the benchmarks"):
        attribute("matmul", *ARMS)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'head' is not a contender, such as"):
        attribute(cases()[0], ARMS[0], "head")  # type: ignore[arg-type]


def test_confirmed_regressions_of_time_get_the_operation_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        def sentence(self) -> str:
            return "softmax: +3.1 ms"

    def imitated(case: Case, before: Arm, after: Arm) -> Found:
        if case.name == "b":
            raise TritiumError("base has no recording")
        return Found()

    def verdict(case: str, metric: str = "wall", outcome: Any = "SLOWER") -> Verdict:
        return Verdict(case, metric, "base", "head", outcome, 1.2)

    monkeypatch.setattr(attribution, "attribute", imitated)
    listed = [Case(name, Recipe("x:y"), Context("none")) for name in "abcdef"]
    suite = suite_of([
        verdict("a"), verdict("a", "peak_bytes"), verdict("b"), verdict("c", outcome="EQUIVALENT"), verdict("unknown"),
        verdict("d"), verdict("e"),
    ])  # fmt: skip
    told: list[str] = []
    found = [(v.case, said) for v, said in attributed(suite, listed, *ARMS, progress=told.append)]
    assert found == [
        ("a", "softmax: +3.1 ms"),
        ("b", "not attributed to an operation: base has no recording"),
        ("d", "softmax: +3.1 ms"),
    ]
    assert told == ["a", "b", "d"]
