"""Results written for others: the fields they expect, numbers in full, and names that do nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import tritium as tt
from measured import HOSTILE, WALL, hostile, results, run
from tritium import escape
from tritium.errors import ArgumentError
from tritium.perf.formats import exports, imports
from tritium.perf.records.run import Results, Series
from tritium.perf.store import results as store
from tritium.perf.work.canary import COMPUTE

FLAT = [v for generation in WALL for rounds in generation for v in rounds]
GOLDEN = Path(__file__).parents[2] / "golden"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


# ---- the fields others read


def test_pytest_benchmark_gets_every_field_its_own_files_have() -> None:
    ours = json.loads(exports.pytest_benchmark(results()))
    theirs = json.loads((GOLDEN / "pytest_benchmark.json").read_text())
    assert set(theirs) <= set(ours)
    assert set(theirs["commit_info"]) <= set(ours["commit_info"])
    first = ours["benchmarks"][0]
    assert set(theirs["benchmarks"][0]) == set(first)
    assert set(theirs["benchmarks"][0]["stats"]) == set(first["stats"])
    assert first["stats"]["data"] == FLAT
    assert first["stats"]["median"] == statistics.median(FLAT)
    assert first["extra_info"]["tritium"]["context"]["operation"] == "matmul"


def test_pytest_benchmark_is_not_given_what_failed() -> None:
    ours = json.loads(exports.pytest_benchmark(results()))
    assert [b["name"] for b in ours["benchmarks"]] == ["matmul 64x64 f32 · tritium", "matmul 64x64 f32 · numpy"]
    assert [(r["case"], r["status"]) for r in ours["tritium"]["runs"]] == [("gelu 9 f32", "timed out")]


@pytest.mark.parametrize(
    "row", json.loads((GOLDEN / "pytest_benchmark.json").read_text())["benchmarks"], ids=lambda r: r["name"]
)
def test_the_figures_are_those_pytest_benchmark_computes(row: dict[str, Any]) -> None:
    ours = exports.benchmark_stats(row["stats"]["data"])
    for key, value in ours.items():
        assert row["stats"][key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-12)), key


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30))
def test_the_figures_exist_for_any_sample(data: list[float]) -> None:
    found = exports.benchmark_stats(data)
    assert found["min"] <= found["q1"] <= found["q3"] <= found["max"]
    assert found["ld15iqr"] in data
    assert found["hd15iqr"] in data


def test_github_action_benchmark_gets_name_unit_value_range_extra() -> None:
    found = json.loads(exports.github_action_benchmark(results()))
    assert all(set(r) == {"name", "unit", "value", "range", "extra"} for r in found)
    wall = found[0]
    assert (wall["name"], wall["unit"]) == ("matmul 64x64 f32 · tritium · wall", "ns")
    assert wall["value"] == pytest.approx(statistics.median(FLAT) * 1e9)
    assert "shape: 64x64" in wall["extra"]
    assert "optimisation: avx512vnni" in wall["extra"]


def test_only_measured_metrics_that_are_better_when_smaller_are_charted() -> None:
    found = {r["name"].rpartition(" · ")[2] for r in json.loads(exports.github_action_benchmark(results()))}
    assert found == {"wall", "peak_bytes"}, "no estimate, no temperature, nothing that was not measured"


def test_bencher_gets_latency_in_nanoseconds_with_bounds() -> None:
    found = json.loads(exports.bencher(results()))["matmul 64x64 f32 · tritium"]
    assert found["latency"]["value"] == pytest.approx(statistics.median(FLAT) * 1e9)
    assert found["latency"]["lower_value"] <= found["latency"]["value"] <= found["latency"]["upper_value"]
    assert found["throughput"]["value"] == pytest.approx(3 / statistics.median(FLAT))
    assert "energy" not in found, "an estimate is not measured"


def test_bencher_is_not_given_what_has_no_values() -> None:
    assert json.loads(exports.bencher(results(run(series=())))) == {}
    only = run(series=(Series("peak_bytes", "B", (((5.0,),),)),))
    assert json.loads(exports.bencher(results(only))) == {
        "matmul 64x64 f32 · tritium": {"peak-bytes": {"value": 5.0, "lower_value": 5.0, "upper_value": 5.0}}
    }


def test_canaries_are_kept_in_files_and_not_in_charts_and_tables() -> None:
    made = results(run(), run(COMPUTE))
    for to in ("github-action-benchmark", "bencher", "markdown"):
        assert COMPUTE not in exports.export_metrics(made, to)
    for to in ("csv", "json", "pytest-benchmark", "prometheus", "otava"):
        assert COMPUTE in exports.export_metrics(made, to)


def test_a_name_does_not_mute_the_alerts_of_bencher() -> None:
    found = json.loads(exports.bencher(results(run("x", "a-bencher-ignore"))))
    assert not any(name.endswith("-bencher-ignore") for name in found)


def test_otava_gets_a_point_in_time() -> None:
    (point,) = json.loads(exports.otava(results()))
    assert point["timestamp"] == 1794745800
    assert point["attributes"]["git_commit"].startswith("c0ffee")
    assert {"branch", "git_repo"} <= set(point["attributes"])
    assert point["metrics"][0] == {
        "name": "matmul 64x64 f32 · tritium · wall",
        "unit": "s",
        "value": statistics.median(FLAT),
    }


def test_a_date_nobody_can_read_is_no_date() -> None:
    assert json.loads(exports.otava(results(created="yesterday")))[0]["timestamp"] == 0


# ---- Prometheus

SAMPLE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+-]+)')


def test_prometheus_has_base_units_quantiles_sum_and_count() -> None:
    text = exports.prometheus(results(run()))
    assert (
        '# TYPE tritium_wall_seconds summary\ntritium_wall_seconds{case="matmul 64x64 f32",arm="tritium",quantile="0.05"}'
        in text
    )
    assert 'tritium_wall_seconds_count{case="matmul 64x64 f32",arm="tritium"} 8.0' in text
    assert "tritium_peak_bytes{" in text
    assert "tritium_temperature_celsius{" in text
    assert "tritium_energy_estimate_joules{" in text, "an estimate has a name of its own"
    assert 'metric="instructions",reason="no_permission' in text
    assert 'tritium_case_info{case="matmul 64x64 f32",arm="tritium",operation="matmul",shape="64x64"' in text


def test_prometheus_says_what_failed() -> None:
    assert 'tritium_run_ok{case="gelu 9 f32",arm="tritium",status="timed out"} 0.0' in exports.prometheus(results())


def test_the_reader_of_prometheus_itself_understands_the_text() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    families = {f.name: f for f in parser.text_string_to_metric_families(exports.prometheus(results()))}
    assert families["tritium_wall_seconds"].type == "summary"
    for name in HOSTILE.values():
        list(parser.text_string_to_metric_families(exports.prometheus(hostile(name))))


# ---- CSV


def test_csv_times_below_a_millisecond_are_not_rounded_to_nothing() -> None:
    first = rows(exports.csv(results()))[0]
    assert float(first["median"]) == statistics.median(FLAT)
    assert float(first["min"]) == min(FLAT)


def test_csv_has_the_context_and_the_figures_of_every_row() -> None:
    first = rows(exports.csv(results()))[0]
    wanted = {
        "operation": "matmul",
        "shape": "64x64",
        "batch": "4",
        "sequence_length": "512",
        "threads": "2",
        "metric": "wall",
        "n": "8",
    }
    assert {k: first[k] for k in wanted} == wanted
    assert all(first[k] for k in ("median", "mean", "stdev", "low", "high", "p95", "p99", "gflops", "items_per_s"))


def test_csv_writes_numbers_as_numbers_so_negative_ones_survive() -> None:
    text = exports.csv(results())
    assert any(float(r["min"]) == -3.5 for r in rows(text) if r["metric"] == "temperature")
    assert ",-3.5," in text
    assert "'-3.5," not in text


def test_csv_cells_are_formulas_only_when_asked() -> None:
    made = results(run("=1+1"))
    assert rows(exports.csv(made))[0]["case"] == "'=1+1"
    assert rows(exports.csv(made, guard=False))[0]["case"] == "=1+1"
    assert rows(exports.export_metrics(made, "csv", guard=False))[0]["case"] == "=1+1"


def test_every_field_of_a_run_is_in_the_csv_file() -> None:
    heads = set(rows(exports.csv(results()))[0])
    fields = {f"{r}.{f}" for r in ("run", "context", "series", "work") for f in exports.RECORDS[r].__dataclass_fields__}
    held = {f"{c.record}.{c.field}" for c in exports.COLUMNS if c.head in heads}
    assert fields - held == {"run.context", "run.work", "run.series", "series.values"}


# ---- Markdown


def test_markdown_is_a_table_with_the_machine_below() -> None:
    text = exports.markdown(results())
    lines = text.splitlines()
    assert lines[0].startswith("| case | contender | time of a call | 95 % |")
    assert lines[2].startswith(
        "| `matmul 64x64 f32` | `tritium` | 769 ns | 712 ns … 812 ns | 8 | 682 GFLOP/s | 16 KiB |"
    )
    assert "timed out: `no answer within 60 s`" in lines[4]
    assert "`A CPU, 2 threads, Python 3.11.7" in text


# ---- all of them


def test_there_is_no_other_format() -> None:
    with pytest.raises(ArgumentError, match=r"no format 'cvs'.*Did you mean 'csv'"):
        exports.export_metrics(results(), "cvs")


def test_the_package_has_both_directions_at_hand(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_bytes(tt.perf.export_metrics(results(), "csv").encode())
    assert tt.perf.load(tmp_path / "r.csv") == results()


def test_our_own_format_is_the_file_the_store_reads(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(exports.export_metrics(results()))
    assert store.load(tmp_path / "r.json") == results()


@pytest.mark.parametrize("to", exports.FORMATS)
def test_results_without_runs_can_be_written(to: str) -> None:
    empty = results().__class__(**{f: getattr(results(), f) for f in results().__dataclass_fields__} | {"runs": ()})
    exports.export_metrics(empty, to).encode()


def check_json(text: str, name: str) -> None:
    assert text.isascii(), "nothing a terminal obeys, and no lone surrogate"
    assert not {"<", ">", "&"} & set(text), "inside a page it ends no script"
    assert all(c.isprintable() or c == "\n" for c in text)
    json.loads(text)


def check_csv(text: str, name: str) -> None:
    for line in csv.reader(io.StringIO(text, newline="")):
        for cell in line:
            assert cell.isprintable()
            if cell.lstrip()[:1] in tuple(escape.FORMULA):
                float(cell)  # a number, not a formula


def check_prometheus(text: str, name: str) -> None:
    for line in text.removesuffix("\n").split("\n"):
        assert line.isprintable()
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line


def check_markdown(text: str, name: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in text)
    for line in text.splitlines():
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)
        assert not set("<>`@[]*#\\") & set(outside), line
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 9, line


CHECKS = {
    "csv": check_csv, "prometheus": check_prometheus, "openmetrics": check_prometheus, "markdown": check_markdown,
}  # fmt: skip


@pytest.mark.parametrize("to", [f for f in exports.FORMATS if f != "json"])
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_in_every_field_takes_no_effect(name: str, to: str) -> None:
    made = hostile(name)
    text = exports.export_metrics(made, to)
    text.encode("utf-8")
    CHECKS.get(to, check_json)(text, name)
    if to in ("github-action-benchmark", "otava", "bencher"):
        shown = json.dumps(json.loads(text), ensure_ascii=False)
        assert not {"<", ">", "`", "|"} & set(shown), "who shows these puts them into pages and tables as they are"


@pytest.mark.parametrize("to", ["csv", "pytest-benchmark", "json"])
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_read_back_as_it_was(name: str, to: str, tmp_path: Path) -> None:
    made = hostile(name)
    file = tmp_path / "file"
    file.write_bytes(exports.export_metrics(made, to).encode("utf-8", "backslashreplace"))
    found = imports.load(file)
    assert {r.key for r in found} == {r.key for r in made}


def test_different_hostile_names_stay_different_in_files_others_read() -> None:
    made = Results(
        **{f: getattr(results(), f) for f in results().__dataclass_fields__}
        | {"runs": (run("a<b"), run("a‹b"), run("a>b"))}
    )
    assert len({r["name"] for r in json.loads(exports.github_action_benchmark(made))}) == 6
    assert len(json.loads(exports.bencher(made))) == 3


def test_a_series_of_one_value_is_written_everywhere() -> None:
    one = run(series=(Series("wall", "s", (((2e-9,),),)),))
    for to in exports.FORMATS:
        assert "2e-09" in exports.export_metrics(results(one), to) or to not in ("csv", "json", "prometheus")
