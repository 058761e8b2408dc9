"""The gate tested on itself: what is counted, what is kept, and that it goes on where it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tritium.cli.root import cli
from tritium.errors import ArgumentError
from tritium.perf.gate import noise, regression, selftest
from tritium.perf.gate.selftest import Selftest, Trial
from tritium.perf.gate.selftest_cases import ARMS, SHAPES, cases, work
from tritium.perf.gate.verdict import Verdict, suite_of
from tritium.perf.records.run import Plan


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path / "cache"))


def verdict(case: str, outcome: Any, ratio: float) -> Verdict:
    return Verdict(case, "wall", "base", "head", outcome, ratio, interval90=(ratio / 1.01, ratio * 1.01))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """A gate that finds extra work always, and calls everything else equal; the plans it was asked for."""
    asked: list[Plan] = []

    def gated(listed: Any, arms: Any, *, plan: Plan, **_: Any) -> Any:
        asked.append(plan)
        more = {c.name: c.recipe.arguments["extra"] for c in listed}
        said = [verdict(n, "SLOWER" if e else "EQUIVALENT", 1.002 + e) for n, e in more.items()]
        return SimpleNamespace(suite=suite_of(said), results=SimpleNamespace(complete=True))

    monkeypatch.setattr(regression, "regression_test", gated)
    return asked


def trial(number: int = 0, extra: float = 0.0, slower: str = "", code: int = 0, **outcomes: str) -> Trial:
    return Trial(
        number, slower, extra, code, outcomes, dict.fromkeys(outcomes, 1.01), dict.fromkeys(outcomes, 0.01), 10.0
    )


def test_false_alarms_are_suites_that_fail_the_gate() -> None:
    found = Selftest((trial(add="EQUIVALENT"), trial(code=1, add="SLOWER"), trial(code=4, add="INCONCLUSIVE")), 0.03)
    assert found.false_alarms == (1, 3)
    assert found.share_of("EQUIVALENT") == (1, 3)


def test_found_is_the_case_that_had_extra_work() -> None:
    right, wrong = trial(0, 0.1, "add", 1, add="SLOWER"), trial(1, 0.1, "add", 1, matmul="SLOWER", add="EQUIVALENT")
    assert Selftest((right, wrong), 0.03).detected(0.1) == (1, 2)


def test_the_floor_grows_with_the_spread_of_equal_code() -> None:
    found = Selftest((trial(add="EQUIVALENT", matmul="EQUIVALENT"),), 0.03)
    assert found.floor == pytest.approx(1.01**1.96 - 1)
    assert found.detected_nine_of_ten == pytest.approx(1.03 * 1.01**1.2816 - 1)


def test_every_suite_has_a_seed_of_its_own(gate: list[Plan]) -> None:
    selftest.selftest(3)
    assert len({p.seed for p in gate}) == 3
    assert {p.threads for p in gate} == {1}


def test_it_goes_on_where_it_ended(gate: list[Plan], tmp_path: Path) -> None:
    journal = tmp_path / "suites"
    selftest.selftest(2, journal=journal)
    found = selftest.selftest(5, journal=journal)
    assert (len(gate), len(found.trials)) == (5, 5)
    assert [t.number for t in found.trials] == [0, 1, 2, 3, 4]
    both = selftest.selftest(2, extra=0.1, journal=journal)
    assert both.detected(0.1) == (2, 2)
    assert both.false_alarms == (0, 5)


def test_half_a_suite_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    half = SimpleNamespace(suite=suite_of([]), results=SimpleNamespace(complete=False))
    monkeypatch.setattr(regression, "regression_test", lambda *a, **k: half)
    found = selftest.selftest(3)
    assert found.trials == ()
    assert "interrupted after 0 of 3" in found.notes[0]


@pytest.mark.parametrize(("suites", "extra"), [(0, 0.0), (1, -0.1), (1, 10.0)])
def test_what_cannot_be_run_is_refused(suites: int, extra: float) -> None:
    with pytest.raises(ArgumentError, match="cannot be run"):
        selftest.selftest(suites, extra=extra)


@pytest.mark.parametrize("operation", SHAPES)
def test_every_case_can_be_made_and_has_more_work_for_the_second_arm(operation: str) -> None:
    for arm in ARMS:
        made = work(arm.candidate, operation=operation, extra=0.1)
        rows = made.call().shape[1 if operation == "bitlinear" else 0]
        assert rows == round(SHAPES[operation][0] * (1.1 if arm.name == "head" else 1))


def test_only_one_case_has_extra_work() -> None:
    assert [c.name for c in cases("add", 0.1) if c.recipe.arguments["extra"]] == ["add"]
    assert not any(c.recipe.arguments["extra"] for c in cases())


# ---- the noise floor


def test_without_a_selftest_the_floor_is_nothing() -> None:
    assert noise.known().floor == 0.0


def test_a_floor_that_was_kept_is_read() -> None:
    noise.keep(0.021, suites=5, cases=25, plan="default")
    assert noise.known().floor == 0.021


@pytest.mark.parametrize("text", ["", "{}", '{"floor": 1e999}', "[1]"])
def test_a_damaged_floor_is_not_used(text: str) -> None:
    noise.path().parent.mkdir(parents=True)
    noise.path().write_text(text)
    assert noise.known().floor == 0.0


# ---- the command


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["selftest", *arguments])


def test_the_command_must_be_told_what_to_test() -> None:
    said = ask()
    assert said.exit_code == 2
    assert "--aa" in said.output


def test_enough_suites_keep_the_floor(gate: list[Plan]) -> None:
    said = ask("--aa", "--suites", "5", "--extra", "0.1")
    assert said.exit_code == 0
    assert "0 of 5 suites failed the gate" in said.output
    assert "10% extra work in one case: detected in 5 of 5" in said.output
    assert noise.known().floor == pytest.approx(1.002**1.96 - 1)


@pytest.mark.parametrize("arguments", [["--suites", "2"], ["--suites", "5", "--generations", "3"]])
def test_too_little_keeps_no_floor(gate: list[Plan], arguments: list[str]) -> None:
    assert "not kept" in ask("--aa", *arguments).output
    assert noise.known().floor == 0.0


@pytest.mark.slow
def test_a_real_suite_goes_through_the_gate() -> None:
    plan = replace(selftest.PLAN, generations=2, rounds=2, batches=1, canary=False)
    found = selftest.selftest(1, plan)
    assert set(found.trials[0].outcomes) == set(SHAPES)
    assert found.trials[0].exit_code != 2
