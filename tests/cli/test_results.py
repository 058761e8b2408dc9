"""The commands for files of results, called as a person calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from measured import HOSTILE, hostile, results
from tritium.cli.results import results_group
from tritium.cli.root import cli
from tritium.errors import TritiumError
from tritium.perf.formats import exports, imports
from tritium.perf.store import results as store

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return store.save(results(), tmp_path / "results.json")


def run(*args: Any) -> Any:
    return CliRunner().invoke(results_group, [str(a) for a in args])


def told(*args: Any) -> str:
    found = run(*args)
    assert isinstance(found.exception, TritiumError), found.output
    return str(found.exception)


@pytest.mark.parametrize("to", exports.FORMATS)
def test_convert_writes_every_format(to: str, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = run("convert", file, "--to", to, "-o", out)
    assert (found.exit_code, found.output) == (0, f"written: {out}\n")
    assert out.read_bytes().decode() == exports.export_metrics(results(), to)
    assert run("convert", file, "--to", to).stdout_bytes.decode() == exports.export_metrics(results(), to)


def test_convert_reads_what_it_wrote(file: Path, tmp_path: Path) -> None:
    run("convert", file, "--to", "csv", "-o", tmp_path / "a.csv")
    run("convert", tmp_path / "a.csv", "--to", "pytest-benchmark", "-o", tmp_path / "b.json")
    run("convert", tmp_path / "b.json", "--to", "json", "-o", tmp_path / "c.json")
    assert store.load(tmp_path / "c.json") == results()


def test_convert_lists_what_it_reads_and_writes() -> None:
    found = run("convert", "--list").output
    assert all(name in found for name in [*exports.FORMATS, *imports.FORMATS])


def test_convert_says_what_it_needs(file: Path) -> None:
    found = run("convert", file)
    assert found.exit_code == 2
    assert "--to FORMAT are needed" in found.output
    assert "Did you mean 'bencher'" in told("convert", file, "--to", "benchr")
    assert "Did you mean 'pyperf'" in told("convert", file, "--to", "csv", "--from", "pyprf")


def test_the_guard_against_formulas_can_be_left_out(tmp_path: Path) -> None:
    file = store.save(hostile("=1+1"), tmp_path / "r.json")
    assert '"\'=1+1"' in run("convert", file, "--to", "csv").stdout
    assert '"=1+1"' in run("convert", file, "--to", "csv", "--no-guard").stdout


@pytest.mark.parametrize("name", ["pytest_benchmark", "pyperf", "llama_bench"])
def test_import_makes_a_file_of_ours(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    found = run("import", GOLDEN / f"{name}.json", "-o", out)
    assert found.exit_code == 0
    assert f"from {name.replace('_', '-')}" in found.output
    assert store.load(out) == imports.load(GOLDEN / f"{name}.json")
    assert "--overwrite" in told("import", GOLDEN / f"{name}.json", "-o", out)
    assert run("import", GOLDEN / f"{name}.json", "-o", out, "--overwrite").exit_code == 0


@pytest.mark.parametrize("name", ["pytest_benchmark", "pyperf", "llama_bench"])
def test_show_prints_a_table_of_anybodys_results(name: str) -> None:
    found = run("show", GOLDEN / f"{name}.json")
    assert found.exit_code == 0, found.exception
    assert imports.load(GOLDEN / f"{name}.json").cases[0] in found.output


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_show_prints_nothing_a_terminal_obeys(name: str, tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text(exports.csv(hostile(name)))
    found = run("show", file)
    assert found.exit_code == 0, found.exception
    assert all(c.isprintable() or c == "\n" for c in found.output)
    for line in found.output.splitlines():
        assert not line.lstrip().startswith("::"), "a command to GitHub"
        assert "##[" not in line


def test_a_damaged_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps({"results": {}, "schema": 1, "sha256": "0"}))
    done = subprocess.run(
        [sys.executable, "-m", "tritium", "results", "show", str(file)], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_compare_shows_how_files_of_other_tools_differ() -> None:
    file = str(GOLDEN / "google_benchmark.json")
    found = CliRunner().invoke(cli, ["compare", file, file])
    assert found.exit_code == 0, found.output
    assert "BM_sum/64" in found.output or "EQUIVALENT" in found.output
    assert "exit code" not in found.output
    assert "one was given" in CliRunner().invoke(cli, ["compare", file]).output
    assert "--threads" in CliRunner().invoke(cli, ["compare", file, file, "--threads", "1"]).output
