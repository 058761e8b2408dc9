"""Results that others measured: read when they are sound, refused clearly when not."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from measured import results, run
from tritium.errors import ArgumentError, FormatError
from tritium.perf.formats import csv_file, exports, fields, imports
from tritium.perf.records.run import Series
from tritium.perf.store import results as store

GOLDEN = Path(__file__).parents[2] / "golden"
# Made by the tools themselves: criterion 0.3.6, Google Benchmark 1.7.1, hyperfine 1.15, asv 0.6, locust 2.
KINDS = {
    "pytest-benchmark": "pytest_benchmark.json", "pyperf": "pyperf.json", "llama-bench": "llama_bench.json", "asv": "asv.json",
    "google-benchmark": "google_benchmark.json", "hyperfine": "hyperfine.json", "locust": "locust.json",
}  # fmt: skip
DATED = {"pytest-benchmark", "pyperf", "llama-bench", "asv", "google-benchmark"}


def written(folder: Path, data: Any) -> Path:
    file = folder / "file"
    file.write_bytes(
        data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
    )
    return file


def golden(kind: str) -> Any:
    return json.loads((GOLDEN / KINDS[kind]).read_text())


def refused(folder: Path, data: Any, format: str | None = None) -> str:
    with pytest.raises(FormatError) as told:
        imports.load(written(folder, data), format)
    return str(told.value)


# ---- what others wrote


@pytest.mark.parametrize("kind", KINDS)
def test_a_format_is_known_by_its_content(kind: str) -> None:
    found = imports.load(GOLDEN / KINDS[kind])
    assert (found.kind, found.suite) == ("import", kind)
    assert imports.load(GOLDEN / KINDS[kind], kind) == found
    assert found.created.startswith("202") or kind not in DATED
    assert all(r.checked == "not checked: imported" for r in found)
    assert all(r.seconds for r in found if r.of("wall"))


@pytest.mark.parametrize("kind", KINDS)
def test_imported_results_can_be_saved_and_exported(kind: str, tmp_path: Path) -> None:
    found = imports.load(GOLDEN / KINDS[kind])
    store.save(found, tmp_path / "r.json")
    assert imports.load(tmp_path / "r.json") == found
    for to in exports.FORMATS:
        exports.export_metrics(found, to)


def test_pytest_benchmark_keeps_every_round_and_what_the_test_said() -> None:
    found, raw = imports.load(GOLDEN / KINDS["pytest-benchmark"]), golden("pytest-benchmark")["benchmarks"]
    assert found.cases == tuple(b["fullname"] for b in raw)
    assert [list(r.of("wall").flat) for r in found] == [b["stats"]["data"] for b in raw]  # type: ignore[union-attr]
    assert [r.iterations for r in found] == [20, 10, 10]
    assert found.runs[0].facts["pytest"]["extra_info"] == {"size": 100}
    assert found.environment.hard.cpu == "Intel(R) Xeon(R) Processor"


def test_pytest_benchmark_without_raw_values_says_so(tmp_path: Path) -> None:
    data = golden("pytest-benchmark")
    for row in data["benchmarks"]:
        del row["stats"]["data"]
    found = imports.load(written(tmp_path, data))
    assert {r.flags for r in found} == {(fields.SUMMARY_ONLY,)}
    assert found.runs[0].seconds == data["benchmarks"][0]["stats"]["median"]


def test_what_pytest_benchmark_wrote_is_written_again_the_same() -> None:
    raw = golden("pytest-benchmark")
    again = json.loads(exports.pytest_benchmark(imports.load(GOLDEN / KINDS["pytest-benchmark"])))
    for ours, theirs in zip(again["benchmarks"], raw["benchmarks"], strict=True):
        for key in ("name", "fullname", "group", "param", "params"):
            assert ours[key] == theirs[key]
        assert ours["stats"]["data"] == theirs["stats"]["data"]


def test_each_process_of_pyperf_is_a_generation() -> None:
    found = imports.load(GOLDEN / KINDS["pyperf"])
    assert found.cases == ("sort a list", "comprehension")
    first = found.runs[0]
    wall = first.of("wall")
    assert wall is not None
    assert [len(g) for g in wall.values] == [3, 3]
    assert wall.values[0][0] == (4.316042492291672e-07,)
    assert (first.iterations, first.warmup) == (4096, 1)
    assert found.environment.hard.system == "Linux"


@pytest.mark.parametrize(("unit", "metric"), [("byte", "bytes"), ("integer", "count")])
def test_pyperf_also_counts_bytes_and_numbers(unit: str, metric: str, tmp_path: Path) -> None:
    data = golden("pyperf")
    data["metadata"]["unit"] = unit
    assert imports.load(written(tmp_path, data)).runs[0].of(metric)


def test_llama_bench_tests_are_cases_with_tokens_a_second() -> None:
    found = imports.load(GOLDEN / KINDS["llama-bench"])
    prefill, decode = found.runs
    assert prefill.case == "qwen2 7B Q4_K - Medium pp512"
    assert (prefill.context.operation, decode.context.operation) == ("prefill", "decode")
    assert prefill.context.precision == "Q4_K"
    assert prefill.items_per_s == pytest.approx(512 / 0.0717452)
    assert decode.items_per_s == pytest.approx(119, rel=0.01)
    assert found.environment.hard.gpus == ("NVIDIA GeForce RTX 4080",)


def test_llama_bench_lines_are_read_like_an_array(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row) for row in golden("llama-bench"))
    assert imports.load(written(tmp_path, lines)).cases == imports.load(GOLDEN / KINDS["llama-bench"]).cases
    one = json.dumps(golden("llama-bench")[0])
    assert len(imports.load(written(tmp_path, one)).runs) == 1


def test_llama_bench_rows_that_differ_in_a_parameter_have_it_in_their_name(tmp_path: Path) -> None:
    row = golden("llama-bench")[0]
    found = imports.load(written(tmp_path, [row, row | {"n_batch": 128}, row | {"n_batch": 128}]))
    assert [c.partition("pp512")[2] for c in found.cases] == [" n_batch=2048", " n_batch=128", " n_batch=128 (2)"]


def test_llama_bench_without_samples_gives_its_mean_and_says_so(tmp_path: Path) -> None:
    row = golden("llama-bench")[0]
    del row["samples_ns"]
    (found,) = imports.load(written(tmp_path, [row]))
    assert found.seconds == 0.07213564
    assert found.flags == (fields.SUMMARY_ONLY,)


def test_llama_bench_rows_that_differ_in_a_newer_field_keep_their_own_names(tmp_path: Path) -> None:
    row = golden("llama-bench")[0]
    found = imports.load(written(tmp_path, [row | {"n_cpu_moe": 0}, row | {"n_cpu_moe": 4, "avg_ts": 1.0}]))
    assert [c.partition("pp512")[2] for c in found.cases] == [" n_cpu_moe=0", " n_cpu_moe=4"]


# ---- what we wrote


def test_csv_loads_back_whole(tmp_path: Path) -> None:
    made = results()
    found = imports.load(written(tmp_path, exports.csv(made)))
    assert found == made


def test_csv_loads_back_after_a_spreadsheet_saved_it(tmp_path: Path) -> None:
    import csv
    import io

    rows = list(csv.reader(io.StringIO(exports.csv(results()), newline="")))
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_MINIMAL).writerows([[*row, "mine"] for row in rows])
    text = "\ufeff" + out.getvalue().replace("true", "TRUE").replace("false", "FALSE")
    assert imports.load(written(tmp_path, text)) == results()


def test_pytest_benchmark_files_of_ours_load_back_whole(tmp_path: Path) -> None:
    made = results()
    assert imports.load(written(tmp_path, exports.pytest_benchmark(made))) == made


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(st.lists(st.floats(1e-12, 1e6), min_size=1, max_size=3), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_raw_values_come_back_bit_for_bit(tmp_path_factory: Any, values: list[list[list[float]]]) -> None:
    whole = tuple(tuple(tuple(r) for r in g) for g in values)
    made = results(run(series=(Series("wall", "s", whole),)))
    for to in ("csv", "pytest-benchmark"):
        file = written(tmp_path_factory.mktemp("v"), exports.export_metrics(made, to))
        assert imports.load(file).runs[0].series[0].values == whole


def test_csv_with_a_series_longer_than_a_usual_cell_is_read(tmp_path: Path) -> None:
    import csv

    limit = csv.field_size_limit()
    many = run(series=(Series("wall", "s", ((tuple(1e-6 * i for i in range(1, 20_000)),),)),))
    assert imports.load(written(tmp_path, exports.csv(results(many)))) == results(many)
    assert csv.field_size_limit() == limit


# ---- hostile input


def test_an_unknown_format_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no format 'pyprf'.*Did you mean 'pyperf'"):
        imports.load(written(tmp_path, "{}"), "pyprf")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("", "empty"),
        ("hello", "none of the formats"),
        ("{}", "none of the formats"),
        ("[]", "none of the formats"),
        ("[1, 2]", "none of the formats"),
        ('{"benchmarks": []}', "none of the formats"),
        (b"\xff\xfe{}", "UTF-8"),
        (gzip.compress(b"{}", mtime=0), "gunzip"),
        ("[" * 100_000, "nested"),
        ('{"benchmarks": NaN, "machine_info": {}}', "NaN is not JSON"),
        ('{"benchmarks": [], "benchmarks": []}', "twice"),
        ('{"benchmarks": [' + "9" * 5000 + '], "machine_info": {}}', "not JSON"),
        ('{"results": {}, "schema": 99, "sha256": ""}', "newer tritium"),
        ('{"benchmarks": {}, "machine_info": {}}', "an array is needed"),
        ('{"benchmarks": [], "machine_info": []}', "an object is needed"),
        ('{"benchmarks": [1], "machine_info": {}}', "an object is needed"),
        ('{"benchmarks": [{}], "machine_info": {}}', "an object is needed"),
        ('{"benchmarks": [], "machine_info": {}, "tritium": {}}', "missing"),
        ('{"benchmarks": [{"metadata": {}, "runs": []}], "metadata": {}, "version": "1.0"}', "no run with values"),
        (
            '{"benchmarks": [{"metadata": {"unit": "furlong"}, "runs": []}], "metadata": {}, "version": "1.0"}',
            "unit 'furlong'",
        ),
        ("created,suite,case,\n", "columns arm, operation, metric"),
    ],
)
def test_what_is_no_result_is_refused_with_the_reason(data: str | bytes, says: str, tmp_path: Path) -> None:
    assert says in refused(tmp_path, data)


@pytest.mark.parametrize("value", [0, -1e-9, True, "1", None, [], {}, 10**400])
def test_a_time_must_be_a_number_above_zero(value: Any, tmp_path: Path) -> None:
    data = golden("pytest-benchmark")
    data["benchmarks"][1]["stats"]["data"][2] = value
    assert "benchmarks[1].stats.data[2]" in refused(tmp_path, data)
    llama = golden("llama-bench")
    llama[0]["samples_ns"][0] = value
    assert "[0].samples_ns" in refused(tmp_path, llama)


def test_infinity_written_as_a_number_is_refused(tmp_path: Path) -> None:
    text = json.dumps(golden("llama-bench")).replace("74601900", "1e999")
    assert "a number is too large" in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "says"), [(5, "text is needed"), ("n" * 5000, "at most 4096"), ("a\ud800", "half a character")]
)
def test_a_name_must_be_text_of_a_bearable_length(name: Any, says: str, tmp_path: Path) -> None:
    data = golden("pytest-benchmark")
    data["benchmarks"][0]["fullname"] = name
    assert says in refused(tmp_path, data)


def test_rounds_that_do_not_hold_the_values_are_refused(tmp_path: Path) -> None:
    for wrong, says in (
        ([[1]], "do not hold"),
        ([[10**9]], "batches in a round"),
        ([["x"]], "batches in a round"),
        (5, "an array"),
    ):
        data = json.loads(exports.pytest_benchmark(results()))
        data["benchmarks"][0]["extra_info"]["tritium"]["series"][0]["values"] = wrong
        assert says in refused(tmp_path, data)


def test_a_file_of_another_format_than_named_is_refused(tmp_path: Path) -> None:
    assert "not a file of pyperf" in refused(tmp_path, golden("llama-bench"), "pyperf")
    assert "is JSON" in refused(tmp_path, "a,b\n", "pyperf")
    assert "not a file of csv" in refused(tmp_path, "a,b\n", "csv")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"true"', '"perhaps"', "true or false is needed"),
        ("7.25e-07 ", "seven ", "'seven' is not a number"),
        ("7.25e-07 ", "inf ", "no finite number"),
        ('"ok"', '"fine"', "'fine' is not one of ok"),
        ('"64x64"', '"64xy"', "is not a number"),
        ('"wall",', "", "cells; the head has"),
        ('""tile""', '""tile', "not JSON"),
        ('"A CPU"', '"A CPU" x', "not CSV"),
    ],
)
def test_a_damaged_csv_file_is_refused_with_line_and_reason(old: str, new: str, says: str, tmp_path: Path) -> None:
    text = exports.csv(results(run()))
    assert old in text
    assert says in refused(tmp_path, text.replace(old, new, 1))


def test_more_runs_than_anybody_measures_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fields, csv_file):
        monkeypatch.setattr(module, "MAX_RUNS", 1)
    assert "3 entries; at most 1" in refused(tmp_path, golden("pytest-benchmark"))
    assert "more than 1 runs" in refused(tmp_path, exports.csv(results()))


def test_a_csv_file_without_fields_of_a_later_version_is_read(tmp_path: Path) -> None:
    import csv
    import io

    table = list(csv.DictReader(io.StringIO(exports.csv(results()), newline="")))
    out = io.StringIO()
    kept = [h for h in table[0] if h not in ("gates", "flags", "median", "gflops")]
    rows = csv.DictWriter(out, kept, extrasaction="ignore", quoting=csv.QUOTE_ALL)
    rows.writeheader()
    rows.writerows(table)
    found = imports.load(written(tmp_path, out.getvalue()))
    assert found.plan.gates
    assert [r.series for r in found] == [r.series for r in results()]


def test_empty_lines_of_a_csv_file_are_left_out(tmp_path: Path) -> None:
    assert imports.load(written(tmp_path, exports.csv(results()) + "\r\n\r\n")) == results()


def test_a_csv_file_with_a_head_only_is_refused(tmp_path: Path) -> None:
    assert "no row" in refused(tmp_path, exports.csv(replace(results(), runs=())))


KEYS = st.sampled_from(
    "benchmarks machine_info metadata version runs values stats data avg_ns n_prompt n_gen fullname name cpu tritium results "
    "commit_info warmups samples_ns context run_name real_time command mean times states summaries tag devices meta metrics "
    "http_req_duration med response_times num_requests results result_columns commit_hash env_name params".split()
)
LEAVES = st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5)
JSON = st.recursive(LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(KEYS, x, max_size=6), max_leaves=25)


@given(JSON)
def test_any_json_is_read_or_refused_never_a_crash(tmp_path_factory: Any, data: Any) -> None:
    with suppress(FormatError):
        imports.load(written(tmp_path_factory.mktemp("f"), data))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = list(data) if isinstance(data, list) else dict(data)
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data[:2]) if isinstance(data, list) else ()
    return [path, *(p for k, v in inner for p in places(v, (*path, k)))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_value_anywhere_is_read_or_refused_never_a_crash(kind: str, tmp_path: Path) -> None:
    data = golden(kind)
    for path in places(data):
        for value in (None, -1.5, "x", [{}], {"a": 1}):
            with suppress(FormatError):
                imports.load(written(tmp_path, changed(data, path, value)))
