"""How much of the package a command imports: what it does not use is put off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tritium.cli.root import LATER, cli

COMPARE, MEASURE, HELP = (
    82,
    63,
    7,
)  # modules, NumPy among them, at most: with the page, without it, of the list of commands
# Run a command and list the modules of the package it imported, but for packages that hold a docstring alone.
SCRIPT = """
import ast, atexit, sys
from pathlib import Path

def holds_code(module):
    path = Path(module.__file__)
    if path.suffix != ".py":
        return True
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in body)

def listed():
    loaded = [m for n, m in sys.modules.items() if n.partition(".")[0] == "tritium"]
    Path("modules.txt").write_text("\\n".join(sorted(m.__name__ for m in loaded if holds_code(m))), encoding="utf-8")

atexit.register(listed)
from tritium_cli import main
main()
"""
ONE_CASE = "compare --quick --peers none --operations add --sizes 8 --generations 1".split()


def imported(folder: Path, *command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "modules.txt").read_text(encoding="utf-8").split()


def test_a_comparison_of_one_case_imports_what_it_uses(tmp_path: Path) -> None:
    modules = imported(tmp_path, *ONE_CASE)
    assert (tmp_path / "results.json").exists()
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(modules) <= COMPARE, "\n".join(modules)
    assert {"tritium.perf.engine.measuring", "tritium.see.reports.html"} <= set(modules)


def test_a_comparison_without_its_page_imports_nothing_that_shows(tmp_path: Path) -> None:
    modules = imported(tmp_path, *ONE_CASE, "--no-report")
    assert (tmp_path / "results.json").exists()
    assert not (tmp_path / "report.html").exists()
    assert len(modules) <= MEASURE, "\n".join(modules)
    assert not [m for m in modules if m.startswith("tritium.see")]


def test_the_list_of_commands_imports_none_of_them(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--help")
    assert len(modules) <= HELP, "\n".join(modules)
    assert not [m for m in modules if m.startswith(("tritium.perf", "tritium.see"))]
    assert "numpy" not in modules
    commands = {f"tritium.cli.{row.target.partition(':')[0]}" for row in LATER.values()}
    assert not commands & set(modules)


def completed(folder: Path, words: str, shown: str) -> list[str]:
    """Return the modules that bash's completion of these words imports, and see that it offers `shown`."""
    variables = {"_TRITIUM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    script = SCRIPT.replace("main()", "sys.argv[0] = 'tritium'; main()")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown in done.stdout.split(), done.stderr
    return (folder / "modules.txt").read_text(encoding="utf-8").split()


def test_the_name_of_a_command_is_completed_without_an_import_of_any(tmp_path: Path) -> None:
    modules = completed(tmp_path, "tritium regr", "plain,regression-test")
    assert modules == imported(tmp_path, "--help")
    assert modules == completed(tmp_path, "tritium ", "plain,chat")


@pytest.mark.parametrize(
    "name", sorted(LATER.keys() - {"bench", "lm-eval"})
)  # it lists its suites; options of another program
def test_options_of_a_command_are_completed_without_the_runtime(tmp_path: Path, name: str) -> None:
    modules = completed(tmp_path, f"tritium {name} --he", "plain,--help")
    assert not {"numpy", "tritium.eager", "tritium._native"} & set(modules)


@pytest.mark.parametrize("name", LATER)
def test_a_command_that_is_imported_later_has_the_help_that_is_listed(name: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    assert command.name == name
    for limit in (40, 80, 200):
        assert click.Command(name, help=LATER[name].help).get_short_help_str(limit) == command.get_short_help_str(limit)


def test_every_command_is_listed_once() -> None:
    names = cli.list_commands(click.Context(cli))
    assert names == sorted({*names})
    assert {"compare", "devices", "generate", "regression-test"} <= set(names)


def test_the_package_imports_no_library_of_records_or_of_the_terminal() -> None:
    code = "import sys, tritium; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"msgspec", "rich", "pynvml", "click"} & set(done.stdout.split())
