"""The gate's commands as a shell sees them: every exit code through a real process, and under make."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from made_results import ENVIRONMENT, results, without
from tritium.cli.root import cli
from tritium.errors import SaveError
from tritium.perf.gate.verdict import Suite
from tritium.perf.records import json_io as records
from tritium.perf.records.run import PLANS, Results
from tritium.perf.store import baseline, results as store
from tritium.perf.store.history import History

CASES = {"matmul": 1e-3, "add": 1e-4, "softmax": 5e-4, "bitlinear": 2e-3, "sum": 3e-5}
OTHER = replace(ENVIRONMENT, hard=replace(ENVIRONMENT.hard, cpu="another"))
FILES = {
    "old": lambda: results(CASES, seed=1),
    "same": lambda: results(CASES, seed=2),
    "slow": lambda: results(CASES | {"add": 1.2e-4}, seed=2),
    "less": lambda: without(results(CASES, seed=2), "add"),
    "noisy": lambda: results(CASES, seed=2, sd=0.1),
    "other": lambda: replace(results(CASES, seed=2), environment=OTHER),
    "quick": lambda: replace(results(CASES, seed=2), plan=PLANS["quick"]),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of results of each kind; data and cache lie in it too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path / "cache"))
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@cache
def saved(name: str) -> bytes:
    store.save(FILES[name](), f"{name}.json")
    return Path(f"{name}.json").read_bytes()


def written(*names: str) -> None:
    for name in names:
        Path(f"{name}.json").write_bytes(saved(name))


def called(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def check(current: str, *more: str, base: str = "old.json") -> Result:
    written("old", current)
    return called("regression-check", "--baseline", base, "--current", f"{current}.json", "--threshold", "0.05", *more)


def verdict(path: str = "verdict.json") -> Suite:
    return records.read(Suite, json.loads(Path(path).read_text()), path)


# ---- exit codes

CODES = [
    ("same", (), 0), ("slow", (), 1), ("less", (), 1), ("noisy", (), 0), ("other", (), 5), ("quick", (), 4),
    ("noisy", ("--sensitivity", "10%"), 4), ("noisy", ("--sensitivity", "80%"), 0), ("slow", ("--sensitivity", "5%"), 1),
    ("noisy", ("--sensitivity", "0.1", "--allow-inconclusive"), 0),
    ("other", ("--allow-not-comparable",), 0), ("slow", ("--allow-inconclusive",), 1),
]  # fmt: skip


@pytest.mark.parametrize(("current", "more", "code"), CODES)
def test_every_state_has_its_exit_code_and_its_verdict_file(current: str, more: tuple[str, ...], code: int) -> None:
    done = check(current, *more)
    assert done.exit_code == code, done.output
    assert verdict().exit_code == code
    assert f"exit code {code}" in done.output


@pytest.mark.parametrize(("more", "code"), [((), 3), (("--allow-missing-baseline",), 0)])
def test_no_baseline_is_3_unless_allowed(more: tuple[str, ...], code: int) -> None:
    done = check("same", *more, base="absent.json")
    assert done.exit_code == code
    assert verdict().overall_status == "NoBaseline"
    assert "absent.json" in done.output


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tritium", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables, timeout=120)


EXPECTED = {"same": 0, "slow": 1, "broken": 2, "absent": 3, "noisy": 4, "other": 5}


@pytest.fixture
def commands() -> dict[str, list[str]]:
    """A command for each exit code."""
    written("old", "same", "slow", "noisy", "other")
    Path("broken.json").write_text("{")
    out = {
        n: ["--baseline", "old.json", "--current", f"{n}.json"] for n in ("same", "slow", "broken", "noisy", "other")
    }
    out["noisy"] += ["--sensitivity", "10%"]
    out["absent"] = ["--baseline", "absent.json", "--current", "same.json"]
    return {name: ["regression-check", *more, "--threshold", "0.05"] for name, more in out.items()}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_process_leaves_with_the_exit_code(commands: dict[str, list[str]], name: str) -> None:
    done = process(*commands[name])
    assert done.returncode == EXPECTED[name], done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_fails_for_an_exit_code_that_is_not_0(commands: dict[str, list[str]]) -> None:
    lines = []
    for name, arguments in commands.items():
        lines += [f"{name}:", f"\t{sys.executable} -m tritium {' '.join(arguments)} --verdict {name}-verdict.json", ""]
    Path("Makefile").write_text("\n".join(lines))
    for name in ("same", "slow", "other"):
        code = EXPECTED[name]
        done = subprocess.run(["make", name], capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
        if code:
            assert f"Error {code}" in done.stderr


def test_hundreds_of_regressions_are_exit_code_1() -> None:
    many = {f"case {i}": 1e-3 for i in range(300)}
    store.save(results(many, seed=1, generations=4), "old.json")
    store.save(replace(results({"case 0": 1e-3}, seed=2, generations=4), name="few"), "new.json")
    done = called("regression-check", "--baseline", "old.json", "--current", "new.json")
    assert done.exit_code == 1
    assert verdict().counts["MISSING"] == 299


# ---- what is said


@pytest.mark.parametrize(
    ("given", "read"), [("0.05", "5 %"), ("5", "5 %"), ("10.0", "10 %"), ("0.1", "10 %"), ("100", "100 %")]
)  # fmt: skip
def test_how_a_threshold_was_read_is_said(given: str, read: str) -> None:
    written("old", "same")
    done = called("regression-check", "--baseline", "old.json", "--current", "same.json", "--threshold", given)
    assert f"--threshold {given} is read as {read}" in done.output


def test_a_percent_sign_needs_no_explanation() -> None:
    written("old", "same")
    done = called("regression-check", "--baseline", "old.json", "--current", "same.json", "--threshold", "5%")
    assert "is read as" not in done.output
    assert verdict().verdicts[0].margin == pytest.approx(0.05)


@pytest.mark.parametrize("given", ["x", "-1", "0", "nan"])
def test_a_threshold_that_means_nothing_is_explained(given: str) -> None:
    written("old", "same")
    done = called("regression-check", "--baseline", "old.json", "--current", "same.json", "--threshold", given)
    assert done.exit_code == 2
    assert "0.05" in done.output


def test_json_and_markdown_are_printed_alone_on_stdout() -> None:
    done = check("slow", "--output-format", "json")
    assert json.loads(done.stdout)["overall_status"] == "HasCriticalRegressions"
    assert check("slow", "--output-format", "markdown").stdout.startswith("### ❌ 1 SLOWER")


def test_an_output_file_gets_the_report_and_the_terminal_the_page() -> None:
    done = check("slow", "--output-format", "json", "--output-file", "report.json", "--verdict", "v.json")
    assert verdict("report.json") == verdict("v.json")
    assert done.stdout.startswith("1 SLOWER")


def test_a_verdict_that_cannot_be_written_is_an_error_not_a_pass() -> None:
    written("old", "same")
    done = process(
        "regression-check", "--baseline", "old.json", "--current", "same.json", "--verdict", "folder/none/v.json"
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "folder/none" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_baseline_that_may_not_be_read_is_an_error_not_a_missing_one() -> None:
    written("old", "same")
    Path("old.json").chmod(0)
    done = process("regression-check", "--baseline", "old.json", "--current", "same.json")
    assert done.returncode == 2
    assert "old.json" in done.stderr


def test_a_current_file_that_is_absent_is_a_usage_error() -> None:
    done = called("regression-check", "--baseline", "a.json", "--current", "none.json")
    assert done.exit_code == 2
    assert "none.json" in done.output


def test_without_a_baseline_the_command_says_what_it_needs() -> None:
    written("same")
    done = called("regression-check", "--current", "same.json")
    assert done.exit_code == 2
    assert "--baseline is needed" in done.output


GUIDE = {
    "baseline_file": "old.json", "regression_threshold": 0.05, "minimum_samples": 10, "confidence_level": 0.95,
    "alert_thresholds": {"warning": 0.05, "critical": 0.15}, "auto_update_baseline": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "current", "code", "status"),
    [
        ("baseline_file", "old.json", "slow", 1, "HasCriticalRegressions"),
        ("baseline_file", "absent.json", "slow", 3, "NoBaseline"),
        ("regression_threshold", 0.5, "slow", 0, "AllPass"),
        ("minimum_samples", 100, "same", 4, "Inconclusive"),
        ("alert_thresholds", {"warning": 0.05, "critical": 0.5}, "slow", 1, "HasRegressions"),
    ],
)
def test_every_key_of_the_guides_file_has_its_effect(
    key: str, value: Any, current: str, code: int, status: str
) -> None:
    written("old", current)
    Path("regression.json").write_text(json.dumps(GUIDE | {key: value}))
    done = called("regression-check", "--current", f"{current}.json", "--config", "regression.json")
    assert (done.exit_code, verdict().overall_status) == (code, status), done.output


def test_the_confidence_level_widens_the_interval() -> None:
    written("old", "same")
    widths = []
    for level in (0.8, 0.99):
        Path("regression.json").write_text(json.dumps(GUIDE | {"confidence_level": level}))
        called("regression-check", "--current", "same.json", "--config", "regression.json")
        low, high = next(v.interval for v in verdict().verdicts if v.interval)
        widths.append(high - low)
    assert widths[0] < widths[1]


def test_github_gets_annotations_and_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "::error title=SLOWER::add" in check("slow", "--github").output
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert "::error title=SLOWER::add" in check("slow").output
    assert "1 SLOWER" in Path("summary.md").read_text()


@pytest.mark.parametrize("command", ["regression-check", "regression-test"])
def test_the_help_states_units_and_exit_codes(command: str) -> None:
    said = " ".join(called(command, "--help").output.split())
    assert "0.05 or 5% is 5 %; above 1 it is percent, 10.0 is 10 %" in said
    assert "1 regression or missing case" in said
    assert "3 no baseline" in said


# ---- measuring now


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """The engine replaced by results of the asked cases, with these factors."""

    def install(factor: float = 1.0, complete: bool = True) -> list[list[str]]:
        calls: list[list[str]] = []

        def measure(cases: Any, arms: Any, plan: Any, **about: Any) -> Results:
            calls.append([c.name for c in cases])
            times = {c.name: 1e-3 * (factor if i == 0 else 1.0) for i, c in enumerate(cases)}
            made = results(times, seed=len(calls) + 10, arms={a.name: 1.0 for a in arms})
            return replace(made, plan=plan, suite=about["suite"], complete=complete)

        monkeypatch.setattr(import_module("tritium.perf.engine.measuring"), "measure", measure)
        monkeypatch.setattr(
            import_module("tritium.perf.gate.regression"), "this_environment", lambda *_, **__: ENVIRONMENT
        )
        return calls

    return install


def test_a_baseline_is_measured_kept_and_tested_against(measured: Callable[..., list[list[str]]]) -> None:
    measured()
    assert called("baseline", "create", "v1", "--description", "first").exit_code == 0
    done = called(
        "regression-test",
        "--baseline",
        "v1",
        "--threshold",
        "10.0",
        "--output-format",
        "json",
        "--output-file",
        "f.json",
    )
    assert done.exit_code == 0, done.output
    assert verdict("f.json").overall_status == "AllPass"
    with History() as kept:
        assert len(kept.runs()) == 1


def test_a_slow_down_is_confirmed_and_both_runs_are_kept(measured: Callable[..., list[list[str]]]) -> None:
    measured()
    called("baseline", "create", "v1")
    calls = measured(1.3)
    done = called(
        "regression-test", "--baseline", "v1", "--threshold", "10.0", "--results", "r.json", "--update-baseline"
    )
    assert done.exit_code == 1, done.output
    assert len(calls) == 2
    assert "confirmed" in done.output
    assert "the baseline stays as it is" in done.output
    assert len(store.load("r-confirmation.json").runs) < len(store.load("r.json").runs)
    with History() as kept:
        assert len(kept.runs()) == 2
    assert len(baseline.show("v1")) == 1


def test_a_pass_updates_the_baseline_when_asked(measured: Callable[..., list[list[str]]]) -> None:
    measured()
    called("baseline", "create", "v1")
    done = called("regression-test", "--baseline", "v1", "--update-baseline")
    assert done.exit_code == 0, done.output
    assert [v.label for v in baseline.show("v1")] == ["v1@1", "v1@2"]


def test_a_baseline_that_is_absent_is_found_out_before_measuring(measured: Callable[..., list[list[str]]]) -> None:
    calls = measured()
    done = called("regression-test", "--baseline", "nobody")
    assert done.exit_code == 3
    assert calls == []
    assert "tritium baseline create nobody" in done.output


def test_a_baseline_of_another_machine_is_found_out_before_measuring(measured: Callable[..., list[list[str]]]) -> None:
    calls = measured()
    store.save(replace(results({"add 512x512 f32": 1e-4}), environment=OTHER), "other.json")
    done = called("regression-test", "--baseline", "other.json")
    assert (done.exit_code, calls) == (5, []), done.output
    assert "cpu: another → a cpu" in done.output


def test_what_is_measured_is_what_the_baseline_holds(measured: Callable[..., list[list[str]]]) -> None:
    calls = measured()
    made = [called("baseline", "create", "v1").exit_code, calls.pop()]
    kept = baseline.load("v1")
    store.save(replace(kept, runs=tuple(r for r in kept if "add" in r.case or "canary" in r.case)), "part.json")
    done = called("regression-test", "--baseline", "part.json", "--looks", "1")
    assert done.exit_code == 0, done.output
    assert calls[0] == [name for name in made[1] if "add" in name]


def test_a_verdict_that_cannot_be_written_loses_neither_the_page_nor_the_run(
    measured: Callable[..., list[list[str]]],
) -> None:
    measured()
    called("baseline", "create", "v1")
    Path("taken").write_text("")
    done = called("regression-test", "--baseline", "v1", "--verdict", "taken/verdict.json")
    assert "no regression: exit code 0" in done.output
    assert isinstance(done.exception, SaveError)  # exit code 2 by the way every command ends
    with History() as kept:
        assert len(kept.runs()) == 1


@pytest.mark.parametrize(("current", "replaced"), [("same", True), ("slow", False)])
def test_a_check_updates_the_baseline_when_the_file_of_settings_asks(current: str, replaced: bool) -> None:
    written("old", current)
    Path("regression.json").write_text(json.dumps(GUIDE | {"auto_update_baseline": True}))
    done = called("regression-check", "--current", f"{current}.json", "--config", "regression.json")
    assert ("is now this run" if replaced else "stays as it is") in done.output
    assert (store.load("old.json").runs == store.load(f"{current}.json").runs) is replaced


def test_an_interrupted_test_is_exit_code_130(measured: Callable[..., list[list[str]]]) -> None:
    measured()
    called("baseline", "create", "v1")
    measured(complete=False)
    assert called("regression-test", "--baseline", "v1").exit_code == 130
    assert Path("verdict.json").exists()


def test_against_measures_both_revisions_side_by_side(
    measured: Callable[..., list[list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from contextlib import contextmanager

    from tritium.perf.gate import against
    from tritium.perf.gate.verdict import Verdict
    from tritium.see.profile import attribution

    @contextmanager
    def revisions(revision: str, report: Any) -> Any:
        report(f"building {revision}")
        yield against.Built(tmp_path / "base", "0" * 40), against.Built(tmp_path / "head", "")

    def attributed(suite: Any, cases: Any, *arms: Any, progress: Any) -> Any:
        progress(cases[0].name)
        yield Verdict(cases[0].name, "wall", arms[0].name, arms[1].name, "SLOWER", 2.0), "softmax: +3.1 ms"

    monkeypatch.setattr(against, "revisions", revisions)
    monkeypatch.setattr(attribution, "attributed", attributed)
    calls = measured()
    done = called("regression-test", "--against", "main", "--threads", "1")
    assert done.exit_code == 0, done.output
    assert "main (base) → head, side by side" in done.output
    assert verdict().paired
    first = calls[0][0]
    assert f"profiling both revisions: {first} …" in done.stderr
    assert f"{first}: softmax: +3.1 ms" in verdict().notes


def test_a_history_that_cannot_be_written_is_said_and_changes_no_verdict(
    measured: Callable[..., list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured()
    called("baseline", "create", "v1")
    store.save(baseline.load("v1"), "kept.json")
    Path("file").write_text("")
    monkeypatch.setenv("TRITIUM_DATA", "file")
    done = called("regression-test", "--baseline", "kept.json")
    assert done.exit_code == 0, done.output
    assert "not kept in the history" in done.output


def test_baseline_and_against_exclude_each_other() -> None:
    done = called("regression-test", "--baseline", "a", "--against", "b")
    assert done.exit_code == 2
    assert "choose one" in done.output


def test_a_suite_that_does_not_exist_is_explained(measured: Callable[..., list[list[str]]]) -> None:
    measured()
    called("baseline", "create", "v1")
    done = process("regression-test", "--baseline", "v1", "--suite", "regresion")
    assert done.returncode == 2
    assert "Did you mean 'regression'?" in done.stderr


# ---- baselines and history


def test_baselines_are_listed_shown_and_promoted() -> None:
    written("old", "same")
    assert "no baselines yet" in called("baseline", "list").output
    assert called("baseline", "create", "v1", "old.json", "--description", "the first").exit_code == 0
    assert called("baseline", "create", "v1", "same.json", "--force").exit_code == 0
    assert "v1@2" in called("baseline", "list").output
    assert "the first" in called("baseline", "show", "v1").output
    assert "stable@1" in called("baseline", "promote", "v1@1").output
    assert "stable" in called("baseline", "list").output


def test_a_taken_name_needs_force() -> None:
    written("old")
    called("baseline", "create", "v1", "old.json")
    done = process("baseline", "create", "v1", "old.json")
    assert done.returncode == 2
    assert "--force" in done.stderr


def test_a_baseline_of_quick_results_is_warned_about() -> None:
    written("quick")
    assert "quick results" in called("baseline", "create", "v1", "quick.json").output


def test_history_lists_runs_and_shows_a_case_over_time() -> None:
    assert "no runs yet" in called("history").output
    with History() as kept:
        for day in range(1, 21):
            seconds = 1e-4 if day < 11 else 1.3e-4
            kept.add(replace(results(CASES | {"add": seconds}, seed=day), created=f"2026-01-{day:02}T00:00:00Z"))
    written("old")
    called("history", "--add", "old.json")
    assert "21 runs of" in called("history").output
    done = called("history", "add")
    assert done.exit_code == 0, done.output
    assert "+30" in done.output or "+29" in done.output
    assert json.loads(called("history", "add", "--json").stdout)["points"]
    assert len(json.loads(called("history", "--json").stdout)) == 21
    assert "21 runs indexed" in called("history", "--rebuild").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("ad",), "Did you mean 'add'?"), (("add", "--metric", "energy"), "there is wall on tritium")],
)  # fmt: skip
def test_history_explains_what_it_does_not_have(arguments: tuple[str, ...], said: str) -> None:
    written("old")
    called("history", "--add", "old.json")
    done = called("history", *arguments)
    assert done.exit_code == 2
    assert said in done.output
