"""The machine and the measurement on a page: what is told of results of others, of versions, of hashes, and how to reproduce."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import made_report
import tritium
from report_sections import FEW, banner, section, unpacked
from tritium.perf.formats import imports
from tritium.perf.records import environment
from tritium.perf.store import results as store
from tritium.see.reports.blocks import Code
from tritium.see.reports.report import Report, report


@pytest.fixture(scope="module")
def few() -> Report:
    return report(FEW)


@pytest.fixture(scope="module")
def full() -> Report:
    return report(FEW, selftest=made_report.selftest())


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a file of pytest-benchmark, which tells neither threads nor a command."""
    stats = {"data": [0.5, 0.51, 0.49], "iterations": 1, "median": 0.5}
    file = {
        "machine_info": {"cpu": {"brand_raw": "a cpu", "count": 4}},
        "commit_info": {},
        "benchmarks": [{"name": "t", "fullname": "a::t", "stats": stats}],
        "datetime": "2026",
    }
    path = tmp_path_factory.mktemp("others") / "p.json"
    path.write_text(json.dumps(file))
    return report(imports.load(path))


def test_nobody_is_told_to_leave_out_an_option_that_others_do_not_have(imported: Report) -> None:
    told = str(section(imported, "advice"))
    assert "--quick" not in told
    assert "processes" not in told  # files of one process are compared with an assumed spread
    quick = report(replace(FEW, plan=replace(FEW.plan, name="quick", gates=False)))
    assert "Measure without --quick" in str(section(quick, "advice"))


def test_threads_nobody_told_of_are_not_none(imported: Report) -> None:
    assert "0 threads" not in imported.text()
    assert "4 CPUs" in str(section(imported, "environment"))
    assert "2 threads" in str(section(report(FEW), "environment"))


def test_the_version_of_tritium_is_told_from_a_checkout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_version", lambda name: "")  # what is not installed has none
    here = environment.this_environment(1, limits=False)
    assert f"Tritium      {tritium.__version__} (" in str(
        section(report(replace(FEW, environment=here)), "environment")
    )


def test_an_import_has_no_command_and_no_seed(imported: Report) -> None:
    part = section(imported, "reproduce")
    assert not [b for b in part.blocks if isinstance(b, Code)]
    assert "Measured by pytest-benchmark, not by Tritium" in str(part)
    assert "seed" not in str(part)
    assert banner(imported).command == ""


def test_how_to_reproduce_names_commit_versions_and_command(few: Report) -> None:
    text = str(section(few, "reproduce"))
    assert "git checkout 0123456789abcdef" in text
    assert "numpy==2.4" in text
    assert "tritium compare" in text


def test_the_false_alarms_of_the_machine_are_told_or_how_to_measure_them(few: Report, full: Report) -> None:
    assert "0 of 10 suites" in str(section(full, "noise"))
    assert "tritium selftest --aa" in str(section(few, "noise"))


def test_the_hash_of_the_file_and_of_the_download_are_named_apart(tmp_path: Path) -> None:
    written = replace(FEW, elapsed_s=74)  # a whole number, which is a double once it was read
    store.save(written, tmp_path / "r.json")
    loaded, sealed = store.load_with_digest(tmp_path / "r.json")
    found = report(loaded, sha256=sealed)
    inside = json.loads(unpacked(found.data.results))["sha256"]
    assert inside != sealed
    text = section(found, "data").text()
    assert f"sha256 of the results file  {sealed}" in text
    assert f"sha256 of the download      {inside}" in text
    assert json.loads(found.json())["sha256"] == sealed
    same = section(report(loaded, sha256=inside), "data").text()
    assert "of the download" not in same


def test_results_of_others_make_a_page(imported: Report) -> None:
    assert "a::t" in imported.html()


def test_markdown_has_the_cases_where_there_are_no_ratios(imported: Report, few: Report) -> None:
    assert "500 ms" in imported.markdown()
    assert "| a::t" in imported.markdown()
    assert "## Cases" not in few.markdown()
