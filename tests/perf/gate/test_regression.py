"""The gate: stored and side by side, planned looks, one confirmation, and a baseline that is replaced only on a pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from made_results import results, without
from tritium.errors import ArgumentError, BuildError
from tritium.perf.gate import against, regression
from tritium.perf.gate.noise import QUIET
from tritium.perf.gate.regression import (
    Gated,
    create_baseline,
    merged,
    regression_check,
    regression_test,
    rules_of,
    run_regression_tests,
    update_baseline,
)
from tritium.perf.gate.verdict import Suite
from tritium.perf.records import json_io as records
from tritium.perf.records.case import Arm, Case, Context, Recipe
from tritium.perf.records.run import Plan, Results
from tritium.perf.store import baseline, results as store
from tritium.perf.suites.config import Alerts, RegressionConfig

CASES = {"matmul": 1e-3, "add": 1e-4, "softmax": 5e-4, "bitlinear": 2e-3, "sum": 3e-5}
LISTED = [Case(name, Recipe("none:none"), Context(name)) for name in CASES]
ARMS = [Arm("base"), Arm("head")]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path / "cache"))


Script = Callable[[int, Sequence[Case]], Results]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], list[list[str]]]:
    """Replaces the engine by a script; gives the cases of every measurement."""

    def install(script: Script) -> list[list[str]]:
        calls: list[list[str]] = []

        def measure(cases: Sequence[Case], arms: Sequence[Arm], plan: Plan, **about: Any) -> Results:
            calls.append([c.name for c in cases])
            made = script(len(calls) - 1, cases)
            return replace(made, kind=about["kind"], suite=about["suite"], plan=plan)

        monkeypatch.setattr(import_module("tritium.perf.engine.measuring"), "measure", measure)
        return calls

    return install


def side_by_side(
    cases: Sequence[Case], seed: int, slower: dict[str, float] | None = None, sd: float = 0.005
) -> Results:
    times = {c.name: CASES[c.name] for c in cases}
    both = results(times, arms={"base": 1.0, "head": 1.0}, seed=seed, sd=sd)
    if slower:
        other = results(
            {n: t * slower.get(n, 1.0) for n, t in times.items()},
            arms={"base": 1.0, "head": 1.0},
            seed=seed + 50,
            sd=sd,
        )
        both = replace(
            both, runs=tuple(o if o.arm == "head" and o.case in slower else b for b, o in zip(both, other, strict=True))
        )
    return both


# ---- rules


def test_a_threshold_is_the_margin_of_time_and_energy_and_not_of_bytes() -> None:
    rules = rules_of("7%", paired=True)
    assert (rules.margin("wall"), rules.margin("energy"), rules.margin("peak_bytes")) == (0.07, 0.07, 0.02)


def test_separate_runs_have_a_wider_margin_than_pairs() -> None:
    assert rules_of(paired=False).margin("wall") == 0.10
    assert rules_of(paired=True).margin("wall") == 0.03


def test_every_key_of_the_settings_counts() -> None:
    config = RegressionConfig(
        regression_threshold=0.08, minimum_samples=7, confidence_level=0.99, alert_thresholds=Alerts(0.06, 0.3)
    )
    rules = rules_of(config=config, paired=False)
    assert (rules.margin("wall"), rules.minimum_samples, rules.confidence) == (0.08, 7, 0.99)
    assert (rules.warning, rules.critical) == (0.06, 0.3)
    assert rules_of(0.2, config, paired=False).margin("wall") == 0.2


def test_no_margin_is_below_twice_the_noise_floor() -> None:
    assert rules_of("3%", paired=True, known=replace(QUIET, floor=0.04)).margin("wall") == 0.08


def test_bytes_are_counted_and_have_no_noise() -> None:
    assert rules_of("3%", paired=True, known=replace(QUIET, floor=0.04)).margin("peak_bytes") == 0.02


def test_a_margin_that_the_noise_floor_widened_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = results(CASES, seed=1), results(CASES, seed=2)
    assert not any("noise floor" in note for note in regression_check(old, new, "5%").notes)
    monkeypatch.setattr(import_module("tritium.perf.gate.noise"), "known", lambda: replace(QUIET, floor=0.04))
    assert "the margin is 8.0% and not 5.0%" in " ".join(regression_check(old, new, "5%").notes)


# ---- files


def test_a_check_of_files_finds_a_slow_down(tmp_path: Path) -> None:
    store.save(results(CASES, seed=1), tmp_path / "a.json")
    store.save(results(CASES | {"add": 1.1e-4}, seed=2), tmp_path / "b.json")
    suite = regression_check(tmp_path / "a.json", tmp_path / "b.json", 0.05)
    assert suite.exit_code == 1
    assert [v.case for v in suite.regressions_detected] == ["add"]
    assert str(tmp_path / "a.json") in suite.base


def test_a_check_takes_the_name_of_a_baseline() -> None:
    baseline.create("v1", results(CASES, seed=1))
    assert regression_check("v1", results(CASES, seed=2), 0.05).exit_code == 0


@pytest.mark.parametrize("name", ["nobody", "no/such/file.json"])
def test_a_check_without_a_baseline_says_so(name: str) -> None:
    suite = regression_check(name, results(CASES))
    assert suite.exit_code == 3
    assert "tritium baseline create" in suite.notes[0]


# ---- measuring


def test_equal_arms_pass_at_the_first_look(measured: Callable[[Script], list[list[str]]]) -> None:
    calls = measured(lambda call, cases: side_by_side(cases, call))
    tested = regression_test(LISTED, ARMS)
    assert tested.suite.exit_code == 0
    assert calls == [list(CASES)]
    assert tested.confirmation is None


def test_what_is_slower_is_measured_once_more_with_fresh_processes(
    measured: Callable[[Script], list[list[str]]],
) -> None:
    calls = measured(lambda call, cases: side_by_side(cases, call, {"add": 1.2}))
    tested = regression_test(LISTED, ARMS)
    assert calls == [list(CASES), ["add"]]
    assert tested.suite.exit_code == 1
    assert tested.confirmation is not None
    assert "confirmed" in tested.suite.verdicts[0].reason


def test_what_is_slower_only_once_does_not_fail(measured: Callable[[Script], list[list[str]]]) -> None:
    measured(lambda call, cases: side_by_side(cases, call, {"add": 1.2} if call == 0 else None))
    tested = regression_test(LISTED, ARMS)
    assert tested.suite.exit_code == 0
    assert tested.first is not None
    assert tested.first.exit_code == 1
    found = next(v for v in tested.suite.verdicts if v.case == "add" and v.metric == "wall")
    assert "slower in the first run" in found.reason


def test_what_is_inconclusive_gets_at_most_two_more_looks(measured: Callable[[Script], list[list[str]]]) -> None:
    calls = measured(lambda call, cases: side_by_side(cases, call, sd=0.2))
    tested = regression_test(LISTED, ARMS)
    assert len(calls) == 3
    assert tested.suite.exit_code == 0
    run = tested.results.of(calls[2][0], "head")
    assert run is not None
    assert len(run.series[0].values) == 45


def test_looks_can_be_left_out(measured: Callable[[Script], list[list[str]]]) -> None:
    calls = measured(lambda call, cases: side_by_side(cases, call, sd=0.2))
    regression_test(LISTED, ARMS, extra_looks=0)
    assert len(calls) == 1


def test_a_quick_plan_is_looked_at_once(measured: Callable[[Script], list[list[str]]]) -> None:
    calls = measured(lambda call, cases: side_by_side(cases, call, sd=0.2))
    tested = regression_test(LISTED, ARMS, plan=Plan(gates=False))
    assert len(calls) == 1
    assert tested.suite.exit_code == 4


def test_an_interrupted_measurement_is_not_confirmed(measured: Callable[[Script], list[list[str]]]) -> None:
    calls = measured(lambda call, cases: replace(side_by_side(cases, call, {"add": 1.2}), complete=False))
    assert not regression_test(LISTED, ARMS).results.complete
    assert len(calls) == 1


def test_measured_now_beside_a_stored_baseline(measured: Callable[[Script], list[list[str]]]) -> None:
    slow = CASES | {"softmax": 5.6e-4}
    calls = measured(lambda call, cases: results({c.name: slow[c.name] for c in cases}, seed=call + 5))
    tested = regression_test(LISTED, [Arm("tritium")], baseline=results(CASES, seed=1), threshold=5.0)
    assert calls == [list(CASES), ["softmax"]]
    assert tested.suite.exit_code == 1
    assert not tested.suite.counts["MISSING"]


def test_a_case_the_suite_no_longer_has_is_missing(measured: Callable[[Script], list[list[str]]]) -> None:
    measured(lambda call, cases: without(results(CASES, seed=call + 5), "sum"))
    tested = regression_test(LISTED, [Arm("tritium")], baseline=results(CASES, seed=1), threshold=5.0)
    assert [v.case for v in tested.suite.of("MISSING")] == ["sum"]


def test_the_names_of_the_guide_measure_keep_and_compare(measured: Callable[[Script], list[list[str]]]) -> None:
    calls = measured(lambda call, cases: results({c.name: 1e-3 for c in cases}, seed=call))
    kept = create_baseline("v1.0.0", "the first release")
    assert (kept.label, kept.description) == ("v1.0.0@1", "the first release")
    found = run_regression_tests("v1.0.0", threshold=5.0)
    assert found.overall_status == "AllPass"
    assert found.regressions_detected == ()
    assert calls[0] == calls[1]


def test_a_baseline_can_be_made_of_results_that_are_there() -> None:
    assert create_baseline("v1", results=results(CASES)).runs == len(CASES) + 2


def test_side_by_side_needs_two_arms() -> None:
    with pytest.raises(ArgumentError, match="two contenders"):
        regression_test(LISTED, [Arm("one")])


def test_merged_results_keep_every_generation_in_order() -> None:
    first, more = results(CASES, seed=1, generations=3), without(results(CASES, seed=2, generations=2), "add")
    both = merged(first, more)
    a, b, c = first.of("sum", "tritium"), more.of("sum", "tritium"), both.of("sum", "tritium")
    assert a is not None
    assert b is not None
    assert c is not None
    assert c.series[0].values == a.series[0].values + b.series[0].values
    assert both.of("add", "tritium") == first.of("add", "tritium")


def test_a_case_that_fails_at_a_later_look_has_failed() -> None:
    first, more = results(CASES, seed=1), results(CASES, seed=2)
    more = replace(more, runs=tuple(replace(r, status="crashed", series=()) if r.case == "add" else r for r in more))
    run = merged(first, more).of("add", "tritium")
    assert run is not None
    assert run.status == "crashed"


# ---- the baseline


def gated(suite_code: int) -> Gated:
    status = {0: "AllPass", 1: "HasRegressions", 4: "Inconclusive"}[suite_code]
    return Gated(Suite((), status, suite_code, {}), results(CASES))  # type: ignore[arg-type]


def test_a_baseline_is_replaced_only_when_asked() -> None:
    assert update_baseline(gated(0), "v1", requested=False) == ""
    assert not baseline.list()


@pytest.mark.parametrize("code", [1, 4])
def test_a_baseline_is_never_replaced_without_a_pass(code: int) -> None:
    baseline.create("v1", results(CASES))
    assert "stays as it is" in update_baseline(gated(code), "v1", requested=True)
    assert len(baseline.show("v1")) == 1


def test_a_pass_adds_a_version_and_keeps_the_older(tmp_path: Path) -> None:
    baseline.create("v1", results(CASES))
    assert "v1@2" in update_baseline(gated(0), "v1", requested=True)
    assert len(baseline.show("v1")) == 2
    update_baseline(gated(0), str(tmp_path / "kept.json"), requested=True)
    assert store.load(tmp_path / "kept.json").kind == "baseline"


def test_a_file_that_is_replaced_is_kept_under_its_time(tmp_path: Path) -> None:
    path = store.save(results(CASES, seed=7), tmp_path / "kept")
    assert "kept-20260131T120000Z keeps the one before" in update_baseline(gated(0), str(path), requested=True)
    assert store.load(tmp_path / "kept-20260131T120000Z") == results(CASES, seed=7)
    assert not baseline.list()


def test_an_interrupted_pass_replaces_nothing() -> None:
    baseline.create("v1", results(CASES))
    half = replace(gated(0), results=replace(gated(0).results, complete=False))
    assert "interrupted" in update_baseline(half, "v1", requested=True)
    assert len(baseline.show("v1")) == 1


def test_a_version_that_is_named_gets_a_younger_one() -> None:
    baseline.create("v1", results(CASES))
    assert "v1@2" in update_baseline(gated(0), "v1@1", requested=True)


def test_the_record_of_a_test_is_plain_json(measured: Callable[[Script], list[list[str]]]) -> None:
    measured(lambda call, cases: side_by_side(cases, call, {"add": 1.2}))
    suite = regression_test(LISTED, ARMS).suite
    assert records.read(Suite, records.loads(records.dumps(suite), "v"), "v") == suite


# ---- other revisions


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose package is a file that says which revision it is."""
    root = tmp_path / "checkout"
    package = root / "src" / "tritium"
    package.mkdir(parents=True)
    git(tmp_path, "init", "-q", str(root))
    for text in ("old", "new"):
        (package / "__init__.py").write_text(f"WHICH = {text!r}\n")
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", text)
    (package / "__init__.py").write_text("WHICH = 'not committed'\n")
    return root


def copied(source: Path, target: Path) -> Path:
    import shutil

    shutil.copytree(source / "src", target)
    against.check(target)
    return target


def test_both_revisions_are_built_and_the_checkout_is_left_alone(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "build", copied)
    said: list[str] = []
    with against.revisions("HEAD~1", checkout, said.append) as (base, head):
        assert (base.folder / "tritium" / "__init__.py").read_text() == "WHICH = 'old'\n"
        assert "not committed" in (head.folder / "tritium" / "__init__.py").read_text()
        arm = base.arm("base")
        which = "import tritium, sys; sys.stdout.write(tritium.WHICH)"
        done = subprocess.run(
            [sys.executable, "-P", "-c", which], env=arm.variables(), capture_output=True, text=True, check=True
        )
        assert done.stdout == "old"
        place = base.folder
    assert not place.exists()
    assert len(git(checkout, "worktree", "list").splitlines()) == 1
    assert said[0].startswith("building HEAD~1")
    assert "not committed" in (checkout / "src" / "tritium" / "__init__.py").read_text()


def test_a_revision_that_cannot_be_built_is_explained_and_leaves_no_worktree(checkout: Path) -> None:
    with pytest.raises(BuildError, match="could not be built with pip"), against.revisions("HEAD", checkout):
        pass
    assert len(git(checkout, "worktree", "list").splitlines()) == 1


def test_an_unknown_revision_is_explained(checkout: Path) -> None:
    with pytest.raises(ArgumentError, match="no such commit"):
        against.commit_of(checkout, "nowhere")
    with pytest.raises(ArgumentError, match="no such commit"):
        against.commit_of(checkout, "--help")


def test_the_checkout_is_found_from_a_folder_in_it(checkout: Path) -> None:
    assert against.repository(checkout / "src") == checkout.resolve()


def test_a_build_that_another_installation_hides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="imports tritium from"):
        against.check(tmp_path)


def test_a_build_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tritium").mkdir()
    (tmp_path / "tritium" / "__init__.py").write_text("raise RuntimeError('broken')")
    with pytest.raises(BuildError, match="broken"):
        against.check(tmp_path)


def test_a_name_is_a_file_where_such_a_file_exists(tmp_path: Path) -> None:
    store.save(results(CASES), tmp_path / "plain")
    assert regression.loaded(tmp_path / "plain").suite == "regression"


def test_without_a_checkout_against_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "git", lambda *_, **__: "")
    with pytest.raises(ArgumentError, match="needs a git checkout"):
        against.repository(tmp_path)


def test_a_checkout_of_something_else_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q", str(tmp_path / "other"))
    monkeypatch.setattr(against, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    with pytest.raises(ArgumentError, match="needs a git checkout"):
        against.repository(tmp_path / "other")


def test_a_shallow_checkout_gets_a_hint(checkout: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout}", str(tmp_path / "shallow"))
    with pytest.raises(ArgumentError, match="fetch-depth: 0"):
        against.commit_of(tmp_path / "shallow", "HEAD~1")


def test_without_git_against_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentError, match="git, which is not installed"):
        against.commit_of(tmp_path, "HEAD")


def test_git_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="git worktree failed"):
        against.git(tmp_path, "worktree", "list")


def test_a_build_without_end_is_ended(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(against, "BUILD_S", 0.01)
    with pytest.raises(BuildError, match="took longer"):
        against.build(checkout, tmp_path / "out")


def test_a_package_is_built_by_pip_into_its_own_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[list[str]] = []
    real = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        if "pip" not in command:
            return real(command, **options)
        seen.append(command)
        if "--no-build-isolation" in command:
            return subprocess.CompletedProcess(command, 1, "", "no build tools here")
        copied(checkout, tmp_path / "out")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert against.build(checkout, tmp_path / "out") == tmp_path / "out"
    assert [("--no-build-isolation" in c, "--no-deps" in c) for c in seen] == [(True, True), (False, True)]
