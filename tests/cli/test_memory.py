"""`tritium memory`: the page it prints, the files it writes, and the exit code of the script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tritium.cli.root import cli
from tritium.errors import ArgumentError
from tritium.see.memory.file import events_csv, load

SCRIPT = """import sys
import tritium as tt
import keeper

x = tt.ones(1000)
keeper.kept.append(x + x)
print("said", sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keeper.py").write_text("kept = []")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.delitem(__import__("sys").modules, "keeper", raising=False)
    return tmp_path / "script.py"


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, ["memory", *map(str, args)])


def test_the_page_follows_what_the_script_said(script: Path) -> None:
    done = run("script.py", "--leaks", "-x")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("said ['--leaks', '-x']\nMemory of script.py: ")
    assert "script.py:6" in done.output
    assert "Still alive at the end: 3.91 KiB" in done.output


def test_the_exit_code_passes_through(script: Path) -> None:
    script.write_text(SCRIPT + "sys.exit(7)\n")
    done = run("--leaks", script)
    assert done.exit_code == 7
    assert "Memory of" in done.output


def test_a_script_that_fails_still_gets_its_page(script: Path) -> None:
    script.write_text(SCRIPT + "1 / 0\n")
    done = run(script)
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.output
    assert "Memory of" in done.output


def test_leaks_are_an_exit_code_where_asked_for(script: Path) -> None:
    assert run("--leaks", script).exit_code == 1
    script.write_text("import tritium as tt\nx = tt.ones(10)\n")
    assert run("--leaks", script).exit_code == 0  # its own variables end with it


def test_files_hold_all_that_was_seen(script: Path, tmp_path: Path) -> None:
    done = run("--output", "m.json", "--output", "m.csv", "--top", 1, script)
    assert done.exit_code == 0
    found = load(tmp_path / "m.json")
    assert found.name == str(script)
    assert [a.nbytes for a in found.leaks] == [4000]
    assert (tmp_path / "m.csv").read_text() == events_csv(found.events)


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (["m.xml"], "known are .json, .csv"),
        (["script.json"], "that is the script"),
        (["link.json"], "that is the script"),
        (["hard.json"], "that is the script"),
        (["m.json", "m.csv", "./m.json"], "named twice"),
        (["new/m.json"], "there is no such folder"),
    ],
)
def test_an_output_that_cannot_be_or_would_destroy_is_refused_before_the_script_runs(
    script: Path, tmp_path: Path, outputs: list[str], says: str
) -> None:
    named = script.rename(tmp_path / "script.json")
    (tmp_path / "link.json").symlink_to(named)
    (tmp_path / "hard.json").hardlink_to(named)
    before = sorted(tmp_path.iterdir())
    done = run(*(word for path in outputs for word in ("--output", path)), named)
    assert done.exit_code != 0
    assert says in done.output + str(done.exception)
    assert "said" not in done.output
    assert (named.read_text(), sorted(tmp_path.iterdir())) == (SCRIPT, before)


def test_a_file_is_written_where_it_was_named_though_the_script_goes_elsewhere(script: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script.write_text("import os\nos.chdir('sub')\n")
    assert run("--output", "m.json", script).exit_code == 0
    assert (tmp_path / "m.json").exists()


def test_an_option_that_is_none_is_not_taken_for_a_script(script: Path) -> None:
    done = run("--jsn", "m.json", script)
    assert done.exit_code == 2
    assert re.search("No such option:? .?--jsn", done.output)  # click words it in two ways


def test_a_module_is_run(script: Path) -> None:
    done = run("-m", "script", "a")
    assert done.exit_code == 0
    assert "said ['a']" in done.output
    assert "Memory of script: " in done.output


def test_a_workload_is_tracked() -> None:
    done = run("--workload", "decode")
    assert done.exit_code == 0, done.output
    assert "Memory of decode: " in done.output
    assert "tritium/" in done.output


def test_a_name_cannot_command_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred.py"
    path.write_text("import tritium as tt\nx = tt.ones(1000)\n")
    done = run(path)
    assert done.exit_code == 0
    assert "\x1b" not in done.output


def test_what_cannot_be_run_is_an_error() -> None:
    assert isinstance(run("nothing.py").exception, ArgumentError)
    assert run().exit_code == 2
