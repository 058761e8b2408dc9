"""`tritium time`: words after --, command lines, options of hyperfine, exit codes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tritium.cli.projects import time as command
from tritium.cli.projects.time import time
from tritium.perf.projects import programs
from tritium.perf.projects.programs import Outcome, Program
from tritium.perf.store import results as store

CASES = {"fast": 0.01, "slow": 0.02}


@pytest.fixture(autouse=True)
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs are not run: their times are made up from their words; gives what was run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path / "cache"))
    listed: list[str] = []

    def once(program: Program, output: Any = subprocess.DEVNULL, timeout_s: float = 600.0) -> Outcome:
        listed.append(program.text)
        wall = CASES.get(program.words[0], 0.001) * (1 + 0.001 * (len(listed) % 5))
        return Outcome(wall, wall / 2, wall / 4, 1e9, 3 if "fail" in program.text else 0, "why")

    monkeypatch.setattr(programs, "run_once", once)
    return listed


def run(*args: str) -> Result:
    return CliRunner().invoke(time, list(args))


def test_words_after_two_dashes_are_commands_with_vs_between() -> None:
    done = run("-r", "15", "--", "fast", "--runs", "a b", "--vs", "slow", "-x")
    assert done.exit_code == 0, done.output
    assert "fast --runs 'a b'" in done.output
    assert "SLOWER" in done.output
    assert "slow -x takes 1.99" in done.output or "slow -x takes 2.0" in done.output


def test_each_argument_is_a_command_line_and_options_apply_to_each(ran: list[str]) -> None:
    options = ("-r", "2", "-w", "0", "-n", "one", "-L", "X", "1,2", "-P", "Y", "3", "4", "-N", "--prepare", "prep {X}")
    done = run(*options, "fast {X} {Y}")
    assert done.exit_code == 0, done.output
    assert {line for line in ran if line.startswith("fast")} == {f"fast {x} {y}" for x in "12" for y in "34"}
    assert ran.count("prep 1") == ran.count("prep 2") == 4
    assert [line.split()[0] for line in done.output.splitlines() if line.startswith(("one", "fast"))][:2] == [
        "one",
        "fast",
    ]


def test_failures_and_a_threshold_are_exit_codes() -> None:
    assert run("-r", "3", "fast", "fail").exit_code == 1
    assert run("-r", "3", "fail").exit_code == 2
    assert run("-r", "3", "-i", "fail").exit_code == 0
    assert run("-r", "3", "--accept", "3", "fail").exit_code == 0
    assert run("-r", "15", "fast", "slow").exit_code == 0
    assert run("-r", "15", "--threshold", "5%", "fast", "slow").exit_code == 1
    assert run("-r", "15", "--threshold", "5%", "slow", "fast").exit_code == 0
    assert run("-r", "3", "--threshold", "5%", "fast", "slow").exit_code == 4


def test_results_are_exported_as_hyperfine_does_and_as_ours() -> None:
    done = run(
        "-r",
        "15",
        "--export-json",
        "a.json",
        "--export-csv",
        "a.csv",
        "--export-markdown",
        "a.md",
        "--results",
        "r.json",
        "fast",
        "slow",
    )
    assert done.exit_code == 0, done.output
    assert [row["command"] for row in json.loads(Path("a.json").read_text())["results"]] == ["fast", "slow"]
    assert Path("a.csv").read_text().startswith("command,mean,stddev,median,user,system,min,max\nfast,0.01")
    assert "| `slow` | 20.0 ± 0.0 |" in Path("a.md").read_text()
    assert store.load("r.json").arms == ("fast", "slow")
    assert json.loads(run("-r", "2", "--json", "fast").stdout)["results"][0]["command"] == "fast"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "a command is needed"),
        (("--", "a", "--vs"), "a command is needed"),
        (("--setup", "x", "--setup", "y", "a", "b", "c"), "once, or once for each"),
        (("-n", "x", "-n", "y", "a"), "--name was given 2 times"),
        (("-L", "X", "1", "-L", "X", "2", "a"), "twice"),
    ],
)
def test_wrong_arguments_are_explained(args: tuple[str, ...], words: str) -> None:
    done = run(*args)
    assert (done.exit_code, words in done.output) == (2, True), done.output


def test_two_commands_of_one_name_stay_apart() -> None:
    assert "fast (2)" in run("-r", "2", "fast", "fast").output
    assert command.CASE == "time"
