"""One results file shows one time everywhere: compare, regression-check, the report and the pytest plugin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_results import results
from tritium.perf import plugin
from tritium.perf.amounts import seconds_text
from tritium.perf.formats import imports
from tritium.perf.gate.compare import compare_stored
from tritium.perf.gate.page import figure
from tritium.perf.records.run import Results, Run, Series
from tritium.perf.tables import pages, tables
from tritium.see.reports.report import report


def skewed(values: Results) -> Results:
    """The same with batches of which a third are twice as slow: fastest, mean and median differ clearly."""

    def slow(series: Series) -> Series:
        if series.metric != "wall":
            return series
        factors = (1.0, 2.0, 1.6)
        changed = tuple(
            tuple(tuple(v * factors[(i + j) % 3] for j, v in enumerate(batches)) for i, batches in enumerate(process))
            for process in series.values
        )
        return replace(series, values=changed)

    runs = tuple(replace(r, series=tuple(map(slow, r.series)), facts={"pytest": {"name": r.case}}) for r in values)
    return replace(values, runs=runs)


def check_all(values: Results, run: Run) -> None:
    """The text of the time in the four places, and in the page of a comparison."""
    assert run.seconds is not None
    text = seconds_text(run.seconds)
    verdict = next(v for v in compare_stored(values, values).verdicts if (v.case, v.metric) == (run.case, "wall"))
    assert tables.time_text(run).split(" (")[0] == text
    assert figure(verdict).split("  ")[0] == f"{text} → {text}"
    cells = next(line for line in plugin.page(replace(values, runs=(run,)), values) if run.case in line)
    assert cells.count(text) >= 2  # now, and was
    assert text in pages.page(values, 120)


def test_a_file_of_tritium_shows_one_time() -> None:
    values = skewed(results({"add": 1.234e-4, "matmul": 5e-3}, sd=0.02))
    run = values.of("add", "tritium")
    assert run is not None
    fastest = min(run.series[0].flat)
    assert run.seconds is not None
    assert seconds_text(fastest) != seconds_text(run.seconds)
    check_all(values, run)
    assert seconds_text(run.seconds) in report(values).html()


def test_an_imported_file_shows_one_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = sorted(3.18e-4 * (1 + rng.exponential(1.0, 301)))  # a median of more than the minimum
    stats = {"data": data, "iterations": 1, "median": float(np.median(data)), "min": data[0], "rounds": len(data)}
    row = {
        "name": "test_x",
        "fullname": "t.py::test_x",
        "stats": stats,
        "group": None,
        "params": None,
        "extra_info": {},
    }
    path = tmp_path / "b.json"
    path.write_text(
        json.dumps({"benchmarks": [row], "machine_info": {}, "commit_info": {}, "datetime": "", "version": "5"})
    )
    values = imports.load(path)
    run = values.runs[0]
    assert run.seconds == pytest.approx(float(np.median(data)))
    check_all(values, run)
