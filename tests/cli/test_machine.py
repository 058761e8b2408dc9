"""`tritium doctor` and `tritium targets`: what they print, what is the script's, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from made_results import ENVIRONMENT
from quiet_machine import QUIET
from tritium.cli.root import cli
from tritium.errors import ArgumentError, FormatError
from tritium.see.doctor import diagnosis as doctor
from tritium.see.targets import file as targets_file, targets
from tritium.see.targets.targets import Figure, Reached, Target


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A quiet machine; what a test changes in it is seen."""
    readings = dict(QUIET)
    monkeypatch.setattr(doctor, "READERS", {name: (lambda of, name=name: readings[name]) for name in QUIET})
    return readings


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


def test_a_fine_machine_is_told_shortly() -> None:
    done = run("doctor", "--strict")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0].startswith("this machine: 20 fine")
    assert "\n  BLAS " in done.output


def test_a_warning_has_evidence_and_remedy_and_exit_code_0(machine: dict[str, Any]) -> None:
    machine["power"] = "battery"
    done = run("doctor")
    assert done.exit_code == 0
    at = done.output.splitlines().index("warning  power: on battery: most systems lower their clocks")
    assert done.output.splitlines()[at + 1 : at + 3] == [
        "  seen   power_supply: no mains is online",
        "  do     plug it in",
    ]


def test_strict_fails_with_a_warning_but_not_with_a_note(machine: dict[str, Any]) -> None:
    machine["noise"] = 0.0
    assert run("doctor", "--strict").exit_code == 0
    machine["power"] = "battery"
    assert run("doctor", "--strict").exit_code == 1


def test_json_is_json(machine: dict[str, Any]) -> None:
    machine["power"] = "battery"
    done = run("doctor", "--json", "--strict")
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert (told["ok"], told["counts"]["warning"]) == (False, 1)


def test_what_follows_the_script_is_its_own(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("import sys, tritium as tt\nprint('given', sys.argv[1:])\ntt.ones((200, 300)).T.reshape(-1)\n")
    done = run("doctor", str(script), "--json", "-x")
    assert done.exit_code == 0, done.output
    assert "given ['--json', '-x']" in done.output
    assert f"reshape makes a hidden copy at {script}:3" in done.output


def test_json_is_not_mixed_with_what_the_script_prints(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("print('loud')\n")
    done = run("doctor", "--json", str(script))
    assert json.loads(done.stdout)["program"] == str(script)
    assert "loud" in done.stderr


def test_a_module_is_run_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looked_at.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    done = run("doctor", "-m", "looked_at", "a", "--b")
    assert "__main__ ['a', '--b']" in done.output
    assert "looked_at: " in done.output


@pytest.mark.parametrize(
    ("ends", "code"), [("sys.exit(7)", 7), ("1 / 0", 1), ("raise KeyboardInterrupt", 130), ("sys.exit('no')", 1)]
)
@pytest.mark.parametrize("option", ["--strict", "--json"])
def test_a_script_that_fails_is_a_problem_still_looked_at_and_its_exit_code_is_ours(
    tmp_path: Path, ends: str, code: int, option: str
) -> None:
    script = tmp_path / "a.py"
    script.write_text(f"import sys\n{ends}\n")
    done = run("doctor", option, str(script))
    assert done.exit_code == code
    assert f"exit code {code}" in done.output
    assert "hidden copies" in done.output


def test_a_script_that_is_not_there_is_an_error() -> None:
    done = run("doctor", "nowhere.py")
    assert done.exit_code != 0
    assert "there is no script nowhere.py" in str(done.exception) + done.output


# ---- targets


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is known already: nothing is measured of it."""
    monkeypatch.setattr(targets_file, "this_environment", lambda threads, limits: ENVIRONMENT)
    monkeypatch.setattr(targets_file, "this_machines_limits", lambda threads: None)


def made(outcome: Any, name: str = "a call") -> Reached:
    target = Target("001", "Performance Targets", name, "cpu", "< 1ms", 1e-3, "s", True, lambda bench, device: "")
    figure = None if outcome == "not measured" else Figure(1e-4, 0.9e-4, 1.1e-4, 0.5e-4, "a made up call\x1b[2J")
    return Reached(target, outcome, figure, "no GPU" if figure is None else "")


def test_targets_are_a_table_with_their_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (made("pass"), made("not measured", "another\x1b[31m"))
    monkeypatch.setattr(targets, "measure_targets", lambda **_: found)
    done = run("targets", "--strict")
    assert done.exit_code == 0, done.output
    assert "100 µs (90 … 110)" in done.output
    assert done.output.splitlines()[0].split()[-2:] == ["outcome", "by"]
    assert "pass          a made up call" in done.output
    assert "not measured (1): no GPU" in done.output
    assert "\x1b" not in done.output


def test_strict_fails_when_a_target_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "measure_targets", lambda **_: (made("not reached"),))
    assert run("targets").exit_code == 0
    assert run("targets", "--strict").exit_code == 1


def test_targets_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(targets, "measure_targets", lambda **given: seen.update(given) or (made("pass"),))
    done = run("targets", "--json", "--quick")
    assert json.loads(done.output)["targets"][0]["outcome"] == "pass"
    assert seen["seconds"] == targets.QUICK_S


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of targets; from now on nothing can be measured."""
    monkeypatch.setattr(
        targets, "measure_targets", lambda **_: (made("pass"), made("not reached"), made("not measured"))
    )
    assert run("targets", "--output", str(tmp_path / "targets.json")).exit_code == 0
    monkeypatch.delattr(targets, "measure_targets")
    return tmp_path / "targets.json"


@pytest.mark.parametrize(
    ("ending", "begins"),
    [("html", "<!doctype html>"), ("HTM", "<!doctype html>"), ("md", "# "), ("txt", "! "), ("json", "{\n")],
)
def test_the_name_of_the_output_chooses_its_form(
    ending: str, begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "measure_targets", lambda **_: (made("not reached"),))
    path = tmp_path / f"targets.{ending}"
    path.write_text("what was there before")
    done = run("targets", "--output", str(path))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == f"written: {path}"
    assert "100 µs (90 … 110)" in done.output
    assert path.read_text(encoding="utf-8").startswith(begins)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["targets.pdf", "targets", "targets.htmll"])
def test_an_ending_that_is_no_form_is_refused_before_anything_is_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(targets, "measure_targets")
    done = run("targets", "--output", str(tmp_path / name))
    assert isinstance(done.exception, ArgumentError)
    assert "name the file .html, .md, .txt or .json" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(targets, "measure_targets")
    done = run("targets", "--output", str(tmp_path / "nowhere" / "targets.html"))
    assert done.exit_code == 2
    assert "there is no such folder" in done.output


def test_the_json_that_is_written_is_the_json_that_is_printed(stored: Path) -> None:
    again = stored.with_name("again.json")
    done = run("targets", "--input", str(stored), "--json", "--output", str(again))
    assert done.stdout == stored.read_text() == again.read_text()
    assert done.stderr == f"written: {again}\n"


def test_a_stored_measurement_is_shown_with_its_own_machine_and_nothing_is_measured(stored: Path) -> None:
    page = stored.with_name("targets.html")
    done = run("targets", "--input", str(stored), "--output", str(page))
    assert done.exit_code == 0, done.output
    assert "1 pass, 1 not reached, 1 not measured" in done.output
    assert ENVIRONMENT.hard.cpu in page.read_text(encoding="utf-8")


def test_strict_judges_the_outcomes_of_the_file(stored: Path) -> None:
    page = stored.with_name("targets.txt")
    assert run("targets", "--input", str(stored), "--strict", "--output", str(page)).exit_code == 1
    assert page.exists()
    stored.write_text(stored.read_text().replace('"not reached"', '"pass"'))
    assert run("targets", "--input", str(stored), "--strict").exit_code == 0


def test_what_cannot_be_asked_together_is_refused(stored: Path) -> None:
    done = run("targets", "--input", str(stored), "--quick")
    assert done.exit_code == 2
    assert "--input measures nothing: leave one of them out" in done.output
    before = stored.read_text()
    done = run("targets", "--input", str(stored), "--output", str(stored))
    assert done.exit_code == 2
    assert "would be written over; name another file" in done.output
    assert stored.read_text() == before


def test_an_input_that_is_not_there_or_is_something_else_is_an_error(tmp_path: Path) -> None:
    done = run("targets", "--input", str(tmp_path / "nowhere.json"))
    assert done.exit_code == 2
    assert "nowhere.json' does not exist" in done.output
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}')
    done = run("targets", "--input", str(other), "--output", str(tmp_path / "a.html"))
    assert isinstance(done.exception, FormatError)
    assert "other.json: not a record of tritium targets" in str(done.exception)
    assert not (tmp_path / "a.html").exists()
