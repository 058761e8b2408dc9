"""The two arms of a case profiled in processes of their own: the operation that became slower is named."""

from __future__ import annotations

import sys

import pytest

from tritium.errors import ArgumentError, TritiumError
from tritium.perf.case import Arm, Case, Recipe
from tritium.perf.context import Context
from tritium.perf.selftest_cases import ARMS, cases
from tritium.see.attribution import attribute


def test_the_seeded_slow_operation_of_the_selftest_is_named() -> None:
    (case,) = [c for c in cases("add", 19.0) if c.name == "add"]
    found = attribute(case, *ARMS, repeats=5, calls=10)
    assert found.repetitions == (5, 5)
    assert found.culprit is not None, found.text()
    assert found.culprit.name == "add"
    assert found.culprit.count_before == found.culprit.count_after == 10


def test_an_arm_that_fails_is_named_with_what_it_said() -> None:
    case = Case("broken", Recipe("tritium.perf.selftest_cases:none"), Context("none"))
    with pytest.raises(TritiumError, match="attribute: base failed: AttributeError"):
        attribute(case, *ARMS, repeats=2)
    with pytest.raises(TritiumError, match="could not be started"):
        attribute(case, Arm("gone", python=sys.executable + "-none"), ARMS[1], repeats=2)


def test_one_repetition_is_too_few() -> None:
    with pytest.raises(ArgumentError, match="at least 2"):
        attribute(cases()[0], *ARMS, repeats=1)
