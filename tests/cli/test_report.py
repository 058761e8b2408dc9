"""tritium report, and the pages other commands write beside their results: what they read, write, refuse and exit with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import made_report
from fake_engine import ENGINE, Engine
from tritium.cli.report import name_beside, write_beside
from tritium.cli.root import cli
from tritium.errors import TritiumError
from tritium.perf.records import json_io as records
from tritium.perf.store import results as store
from tritium.perf.store.history import History

RESULTS = made_report.many(4)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    store.save(RESULTS, "results.json")
    return tmp_path


def called(*args: str) -> Any:
    return CliRunner().invoke(cli, ["report", *args])


def passed(*args: str) -> Any:
    found = called(*args)
    assert found.exit_code == 0, found.output
    return found


def refused(*args: str) -> str:
    """What is said to wrong arguments; the exit code is 2, and nothing is written."""
    before = sorted(Path().rglob("*"))
    found = called(*args)
    assert sorted(Path().rglob("*")) == before
    if isinstance(found.exception, TritiumError):  # `main` makes it one line and exit code 2
        assert "\n" not in str(found.exception)
        return str(found.exception)
    assert found.exit_code == 2, found.output
    return str(found.output)


# ---- what it writes


def test_a_page_is_made_from_the_file_alone() -> None:
    found = passed("--input", "results.json", "--output", "page.html")
    assert "written: page.html" in found.output
    assert Path("page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_is_called_report_where_nobody_names_it() -> None:
    passed("--input", "results.json")
    assert Path("report.html").exists()


@pytest.mark.parametrize(("form", "name"), [("markdown", "r.md"), ("text", "r.txt"), ("json", "r.json")])
def test_the_name_chooses_the_form_and_the_option_comes_first(form: str, name: str) -> None:
    passed("--input", "results.json", "--output", name)
    passed("--input", "results.json", "--output", "same.out", "--format", form)
    assert Path("same.out").read_bytes() == Path(name).read_bytes()


def test_text_and_markdown_go_to_the_terminal() -> None:
    assert "as fast as numpy" in passed("--input", "results.json", "--format", "text").output
    assert passed("--input", "results.json", "--format", "markdown").output.startswith("# ")
    assert sorted(p.name for p in Path().iterdir()) == ["results.json"]


def test_every_chart_is_written_as_svg() -> None:
    found = passed("--input", "results.json", "--charts", "charts")
    files = sorted(p.name for p in Path("charts").iterdir())
    assert f"written: {len(files)} charts in charts" in found.output
    assert {"forest.svg", "speedup.svg", "memory.svg", "roofline.svg", "devices.svg"} <= set(files)
    assert all((Path("charts") / f).read_text(encoding="utf-8").startswith("<svg") for f in files)
    assert not Path("report.html").exists()


def test_charts_and_page_can_be_had_at_once() -> None:
    passed("--input", "results.json", "--charts", "charts", "--output", "r.html")
    assert Path("r.html").exists()
    assert Path("charts/speedup.svg").exists()


def test_a_verdict_a_baseline_a_profile_and_a_selftest_are_read() -> None:
    made, suite = made_report.verdicts()
    store.save(made, "both.json")
    Path("verdict.json").write_text(records.dumps(suite))
    made_report.profile().save("p.json")
    made_report.profile(2).save("p0.json")
    Path("self.json").write_text(records.dumps(made_report.selftest()))
    args = (
        "--verdict",
        "verdict.json",
        "--profile",
        "p.json",
        "--before",
        "p0.json",
        "--selftest",
        "self.json",
        "--format",
        "text",
    )
    text = passed("--input", "both.json", *args).output
    assert text.startswith("! 1 slower")
    assert "ternary_matmul" in text
    assert "0 of 10 suites" in text
    text = passed("--input", "results.json", "--baseline", "results.json", "--format", "text").output
    assert "baseline of 2026-01-31 → now, separate runs" in text


def test_the_history_of_the_machine_is_shown_when_asked() -> None:
    with History() as kept:
        for day in range(1, 5):
            kept.add(replace(RESULTS, created=f"2026-01-0{day}T12:00:00Z", elapsed_s=float(day)))
    assert "HISTORY" in passed("--input", "results.json", "--history", "--format", "text").output
    assert "HISTORY" not in passed("--input", "results.json", "--format", "text").output


def test_a_history_that_is_empty_is_said_to_be() -> None:
    text = passed("--input", "results.json", "--history", "--format", "text").output
    assert "no runs are stored on this machine" in " ".join(text.split())


def test_the_hash_on_the_page_is_that_of_the_file() -> None:
    store.save(replace(RESULTS, elapsed_s=74), "whole.json")
    sealed = json.loads(Path("whole.json").read_text())["sha256"]
    passed("--input", "whole.json")
    assert sealed in Path("report.html").read_text(encoding="utf-8")
    write_beside(Path("whole.json"), RESULTS)
    assert sealed in Path("whole_report.html").read_text(encoding="utf-8")


# ---- what it refuses


def test_an_earlier_profile_without_a_later_one() -> None:
    made_report.profile().save("p0.json")
    assert "--profile FILE" in refused("--input", "results.json", "--before", "p0.json")


def test_a_file_that_is_not_there() -> None:
    assert "there is no file nowhere.json" in refused("--input", "nowhere.json")
    assert "there is no file v.json" in refused("--input", "results.json", "--verdict", "v.json")


def test_a_file_that_holds_no_results() -> None:
    Path("x.json").write_text("{}")
    assert "x.json" in refused("--input", "x.json")
    Path("y.json").write_text("not json")
    assert "y.json" in refused("--input", "y.json")
    assert "x.json" in refused("--input", "results.json", "--verdict", "x.json")


def test_a_form_that_does_not_exist() -> None:
    assert "docx" in refused("--input", "results.json", "--format", "docx")
    assert "html, markdown, text, json" in refused("--input", "results.json", "--output", "r.docx")


def test_pictures_without_a_folder() -> None:
    assert "--charts DIR" in refused("--input", "results.json", "--format", "png")


def test_a_place_that_cannot_be_written() -> None:
    assert "not saved" in refused("--input", "results.json", "--output", "no/such/folder/r.html")


def test_the_input_is_never_replaced() -> None:
    before = Path("results.json").read_bytes()
    assert "is the input" in refused("--input", "results.json", "--output", "results.json", "--format", "html")
    assert Path("results.json").read_bytes() == before


def test_an_error_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tritium", "report", "--input", "no.json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "error: there is no file no.json.\n"
    assert done.stdout == ""


# ---- beside other results


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured: compare and bench get made-up times."""
    monkeypatch.setattr(ENGINE, "measure", Engine())


@pytest.mark.usefixtures("engine")
def test_compare_and_bench_write_a_page_beside_their_results() -> None:
    asked = ["--quick", "--peers", "numpy", "--operations", "add", "--sizes", "8"]
    found = CliRunner().invoke(cli, ["compare", *asked])
    assert "written: report.html" in found.stdout
    assert "add 8x8 f32" in Path("report.html").read_text(encoding="utf-8")
    found = CliRunner().invoke(cli, ["bench", "memory", "--quick", "--format", "json"])
    assert "written: memory_report.html" in found.stderr
    CliRunner().invoke(cli, ["compare", *asked, "--output", "now.json"])
    assert Path("now_report.html").exists()


@pytest.mark.usefixtures("engine")
def test_no_report_leaves_the_page_out() -> None:
    found = CliRunner().invoke(cli, ["compare", "--quick", "--peers", "none", "--operations", "add", "--no-report"])
    assert found.exit_code == 0
    assert "report" not in found.stdout
    assert not Path("report.html").exists()


@pytest.mark.parametrize(
    ("results", "page"),
    [
        ("results.json", "report.html"),
        ("memory_results.json", "memory_report.html"),
        ("verdict.json", "regression_report.html"),
        ("here/now.json", "here/now_report.html"),
    ],
)
def test_a_page_is_named_after_its_results(results: str, page: str) -> None:
    assert name_beside(Path(results)) == Path(page)


def test_a_page_that_cannot_be_written_is_said_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("report.html").mkdir()
    write_beside(Path("results.json"), RESULTS)
    assert "no report was written" in capsys.readouterr().err


def test_a_device_has_nothing_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_beside(Path("/dev/stdout"), RESULTS)
    assert capsys.readouterr().out == ""
    assert not Path("/dev/stdout_report.html").exists()


def test_a_regression_check_writes_its_page_unless_told_not_to() -> None:
    store.save(RESULTS, "old.json")
    gate = ["regression-check", "--baseline", "old.json", "--current", "results.json"]
    CliRunner().invoke(cli, [*gate, "--no-report"])
    assert not Path("regression_report.html").exists()
    found = CliRunner().invoke(cli, gate)
    assert "written: regression_report.html" in found.output
    assert json.loads(Path("verdict.json").read_text())["counts"]
    assert "exit code" in Path("regression_report.html").read_text(encoding="utf-8")


def test_results_json_is_the_default_input() -> None:
    passed()
    assert Path("report.html").read_bytes() == passed_page("--input", "results.json")
    Path("results.json").unlink()
    missing = called()
    assert missing.exit_code == 2
    assert "there is no ./results.json here: measure first (tritium compare --quick)" in missing.output


def passed_page(*args: str) -> bytes:
    passed(*args, "--output", "other.html")
    return Path("other.html").read_bytes()
