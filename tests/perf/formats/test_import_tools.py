"""Results of criterion, Google Benchmark, hyperfine, asv, NVBench, k6 and locust, and verdicts on them."""

from __future__ import annotations

import json
import random
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tritium.errors import FormatError
from tritium.perf.formats import fields, imports
from tritium.perf.formats.fields import SUMMARY_ONLY
from tritium.perf.gate.regression import regression_check
from tritium.perf.records.run import Results

GOLDEN = Path(__file__).parents[2] / "golden"


def written(folder: Path, data: Any, name: str = "file.json") -> Path:
    file = folder / name
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


def refused(path: Path) -> str:
    with pytest.raises(FormatError) as told:
        imports.load(path)
    return str(told.value)


def times(results: Results) -> dict[str, tuple[float, ...]]:
    return {run.case: run.series[0].flat for run in results}


# ---- criterion


def test_a_folder_of_criterion_has_the_newest_run_of_every_benchmark() -> None:
    results = imports.load(GOLDEN / "criterion")
    assert results.cases == ("fibonacci/recursive/10", "fibonacci/recursive/15", "sum 100")
    sample = json.loads((GOLDEN / "criterion" / "sum 100" / "new" / "sample.json").read_text())
    assert times(results)["sum 100"] == pytest.approx(
        [1e-9 * t / n for t, n in zip(sample["times"], sample["iters"], strict=True)]
    )
    assert results.runs[0].work.item == "element"  # its throughput is declared


def test_a_baseline_kept_beside_the_newest_run_is_not_mixed_in(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "criterion", tmp_path / "criterion")
    shutil.copytree(tmp_path / "criterion" / "sum 100" / "new", tmp_path / "criterion" / "sum 100" / "base")
    assert len(imports.load(tmp_path / "criterion").runs) == 3


def test_a_folder_without_benchmarks_is_refused(tmp_path: Path) -> None:
    assert "target/criterion" in refused(tmp_path)


def test_samples_that_do_not_fit_their_times_are_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "criterion" / "sum 100", tmp_path / "sum")
    (tmp_path / "sum" / "new" / "sample.json").write_text('{"iters": [1.0], "times": [1.0, 2.0]}')
    assert "2 times of 1 samples" in refused(tmp_path)


def test_a_time_of_an_iteration_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "criterion" / "sum 100", tmp_path / "sum")
    (tmp_path / "sum" / "new" / "sample.json").write_text('{"iters": [5e-324], "times": [1e300]}')
    assert "no finite number" in refused(tmp_path)


@pytest.mark.parametrize(
    "empty",
    [
        {"context": {}, "benchmarks": []},
        {"meta": {}, "devices": [], "benchmarks": []},
        {"metadata": {}, "version": "1.0", "benchmarks": []},
    ],
)
def test_a_file_without_a_benchmark_is_refused(tmp_path: Path, empty: dict[str, Any]) -> None:
    assert "holds no benchmark" in refused(written(tmp_path, empty))


def test_messages_of_cargo_criterion_are_read(tmp_path: Path) -> None:
    done = {
        "reason": "benchmark-complete", "id": "group/f", "iteration_count": [1, 2], "measured_values": [10.0, 18.0],
        "unit": "ns", "throughput": [{"per_iteration": 64, "unit": "bytes"}],
    }  # fmt: skip
    lines = [done, {"reason": "group-complete", "group_name": "group"}]
    (run,) = imports.load(written(tmp_path, "\n".join(map(json.dumps, lines))))
    assert run.case == "group/f"
    assert run.series[0].flat == pytest.approx((1e-8, 9e-9))
    assert run.work.moved == 64


# ---- Google Benchmark


def test_repetitions_of_google_benchmark_are_rounds() -> None:
    results = imports.load(GOLDEN / "google_benchmark.json")
    assert results.cases == ("BM_sum/64", "BM_sum/1024")
    first = results.runs[0]
    raw = [
        b
        for b in json.loads((GOLDEN / "google_benchmark.json").read_text())["benchmarks"]
        if b["run_type"] == "iteration"
    ]
    assert first.series[0].flat == pytest.approx([b["real_time"] * 1e-9 for b in raw if b["run_name"] == "BM_sum/64"])
    assert first.of("cpu") is not None
    assert (first.work.items, first.work.moved) == (64, 256)
    assert "debugging" in results.notes[0]


def test_aggregates_of_google_benchmark_are_summaries() -> None:
    run = imports.load(GOLDEN / "google_benchmark_aggregates.json").runs[0]
    assert run.flags == (SUMMARY_ONLY,)
    assert run.series[0].details["samples"] == 12
    assert run.series[0].details["stdev"] > 0


def test_a_benchmark_that_reported_an_error_failed(tmp_path: Path) -> None:
    row = {"name": "f", "run_name": "f", "error_occurred": True, "error_message": "no file"}
    (run,) = imports.load(written(tmp_path, {"context": {}, "benchmarks": [row]}))
    assert (run.status, run.reason) == ("failed", "no file")


# ---- hyperfine, asv


def test_every_run_of_hyperfine_is_a_process() -> None:
    results = imports.load(GOLDEN / "hyperfine.json")
    assert results.cases == ("true", "sleep 0.001")
    assert [len(run.series[0].values) for run in results] == [30, 30]


def test_exit_codes_of_hyperfine_are_flagged(tmp_path: Path) -> None:
    row = {"command": "false", "mean": 1.0, "times": [1.0, 1.1], "exit_codes": [1, 0]}
    (run,) = imports.load(written(tmp_path, {"results": [row]}))
    assert run.flags == ("1 of 2 runs ended with an exit code other than 0",)


def test_every_combination_of_parameters_of_asv_is_a_case() -> None:
    results = imports.load(GOLDEN / "asv.json")
    assert results.cases[:2] == ("b.Suite.time_sort(10)", "b.Suite.time_sort(1000)")
    assert len(times(results)["b.time_sum"]) == 24
    memory = {run.case: run.series[0] for run in results}["b.peakmem_list"]
    assert (memory.metric, memory.unit) == ("peak_rss", "B")
    assert results.environment.commit.startswith("44c11388")


def test_asv_without_samples_is_a_summary_and_a_failure_is_one(tmp_path: Path) -> None:
    data = json.loads((GOLDEN / "asv.json").read_text())
    data["results"]["b.time_sum"] = data["results"]["b.time_sum"][:-1]
    data["results"]["b.time_broken"] = [[None], [], "x"]
    runs = {run.case: run for run in imports.load(written(tmp_path, data))}
    assert runs["b.time_sum"].flags == (SUMMARY_ONLY,)
    assert runs["b.time_sum"].series[0].details["samples"] == 24
    assert runs["b.time_broken"].status == "failed"


# ---- NVBench: no GPU here; files as its json_printer writes them


def nvbench(mean: list[float], noise: float, samples: int = 800) -> dict[str, Any]:
    """Return a file of NVBench with a state for each mean; its numbers are text."""

    def figure(tag: str, value: object, kind: str = "float64") -> dict[str, Any]:
        return {"tag": tag, "name": tag, "data": [{"name": "value", "type": kind, "value": str(value)}]}

    states = [
        {
            "name": f"Device=0 Elements=2^{16 + i}", "device": 0, "is_skipped": False,
            "summaries": [
                figure("nv/cold/sample_size", samples, "int64"), figure("nv/cold/time/gpu/mean", m),
                figure("nv/cold/time/gpu/stdev/absolute", m * noise), figure("nv/cold/time/gpu/stdev/relative", noise),
            ],
        }
        for i, m in enumerate(mean)
    ]  # fmt: skip
    version = {"json": {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}}
    devices = [{"id": 0, "name": "NVIDIA H200", "sm_version": 900}]
    return {
        "meta": {"argv": ["bench"], "version": version},
        "devices": devices,
        "benchmarks": [{"name": "copy", "states": states}],
    }


def test_two_files_of_nvbench_of_the_same_code_are_equivalent(tmp_path: Path) -> None:
    """nvbench_compare calls these SLOW and FAST: every difference is above the smaller noise (NVIDIA/nvbench 313, 316)."""
    before = [6.278e-06, 253.092e-06, 371.395e-06, 116.646e-06]
    moves = [1.0204, 1.0241, 1.008, 0.975]
    a = written(tmp_path, nvbench(before, 0.0042), "a.json")
    b = written(tmp_path, nvbench([t * m for t, m in zip(before, moves, strict=True)], 0.0035), "b.json")
    assert all(abs(m - 1) > 0.0035 for m in moves)
    suite = regression_check(a, b)
    assert [v.outcome for v in suite.verdicts] == ["EQUIVALENT"] * 4
    assert suite.exit_code == 0
    assert any("is assumed" in note for note in suite.notes)


def test_a_real_slow_down_in_a_file_of_nvbench_fails(tmp_path: Path) -> None:
    a, b = (written(tmp_path, nvbench([t], 0.004), name) for t, name in ((1e-4, "a.json"), (1.3e-4, "b.json")))
    suite = regression_check(a, b)
    assert suite.verdicts[0].outcome == "SLOWER"
    assert suite.exit_code == 1


def test_few_samples_of_nvbench_decide_nothing(tmp_path: Path) -> None:
    a, b = (written(tmp_path, nvbench([1e-4], 0.004, 3), name) for name in ("a.json", "b.json"))
    (verdict,) = regression_check(a, b).verdicts
    assert (verdict.outcome, verdict.more_generations) == ("INCONCLUSIVE", None)


def test_samples_beside_a_file_of_nvbench_are_read(tmp_path: Path) -> None:
    data = nvbench([1e-4], 0.01, 4)
    entry = {
        "tag": "nv/json/bin:nv/cold/sample_times",
        "data": [{"name": "filename", "value": "elsewhere/r.json-bin/0.bin"}, {"name": "size", "value": "4"}],
    }
    data["benchmarks"][0]["states"][0]["summaries"].append(entry)
    path = written(tmp_path, data, "r.json")
    assert imports.load(path).runs[0].flags == (SUMMARY_ONLY,)  # they were left behind
    (tmp_path / "r.json-bin").mkdir()
    (tmp_path / "r.json-bin" / "0.bin").write_bytes(struct.pack("<4f", 1e-4, 2e-4, 3e-4, 4e-4))
    assert imports.load(path).runs[0].series[0].flat == pytest.approx((1e-4, 2e-4, 3e-4, 4e-4))
    (tmp_path / "r.json-bin" / "0.bin").write_bytes(b"123")
    assert "3 bytes; 4 samples of 4" in refused(path)
    entry["data"][0]["value"] = "../secret"  # type: ignore[index]
    assert "no such file" in refused(written(tmp_path, data, "r.json"))


def test_a_skipped_state_of_nvbench_is_skipped(tmp_path: Path) -> None:
    data = nvbench([1e-4], 0.01)
    data["benchmarks"][0]["states"][0] |= {"is_skipped": True, "skip_reason": "too little memory"}
    (run,) = imports.load(written(tmp_path, data))
    assert (run.status, run.reason) == ("skipped", "too little memory")


# ---- k6 and locust


def point(metric: str, value: float, name: str = "http://host/a") -> str:
    tags = {"method": "GET", "name": name, "status": "200"}
    return json.dumps(
        {"type": "Point", "metric": metric, "data": {"time": "2026-01-01T00:00:00Z", "value": value, "tags": tags}}
    )


def test_points_of_k6_are_latencies_by_request(tmp_path: Path) -> None:
    lines = [
        json.dumps({"type": "Metric", "metric": "http_req_duration", "data": {"type": "trend", "contains": "time"}}),
        point("http_reqs", 1), point("http_req_duration", 12.5), point("http_req_failed", 1),
        point("http_req_duration", 3.0, "http://host/b"),
    ]  # fmt: skip
    results = imports.load(written(tmp_path, "\n".join(lines)))
    assert times(results) == {"GET http://host/a": (0.0125,), "GET http://host/b": (0.003,)}
    assert results.runs[0].flags == ("1 of 1 requests failed",)
    assert results.created.startswith("2026")


@pytest.mark.parametrize("nested", [True, False])
def test_summaries_of_k6_have_the_median_of_all_requests(tmp_path: Path, nested: bool) -> None:
    figures: dict[str, Any] = {
        "http_req_duration": {"avg": 20.0, "med": 15.0},
        "http_reqs": {"count": 180, "rate": 4.4},
    }
    metrics = {name: {"type": "trend", "values": v} if nested else v for name, v in figures.items()}
    (run,) = imports.load(written(tmp_path, {"metrics": metrics, "root_group": {}}))
    assert (run.seconds, run.series[0].details["samples"]) == (0.015, 180)


def test_histograms_of_locust_become_values() -> None:
    results = imports.load(GOLDEN / "locust.json")
    raw = json.loads((GOLDEN / "locust.json").read_text())
    assert results.cases == ("GET /", "GET /missing")
    assert [len(run.series[0].flat) for run in results] == [r["num_requests"] for r in raw]
    assert results.runs[1].flags == ("613 of 613 requests failed",)


def test_statistics_of_locust_are_summaries_without_the_total() -> None:
    results = imports.load(GOLDEN / "locust_stats.csv")
    assert results.cases == ("GET /", "GET /missing")
    assert [run.seconds for run in results] == [0.014, 0.014]


def test_very_many_requests_are_thinned_out(tmp_path: Path) -> None:
    row = {
        "name": "/",
        "method": "GET",
        "num_requests": 10**9,
        "num_failures": 0,
        "response_times": {"10": 9 * 10**8, "20": 10**8},
    }
    (run,) = imports.load(written(tmp_path, [row]))
    assert len(run.series[0].flat) == 100_000
    assert run.series[0].flat.count(0.02) == 10_000


# ---- any size


def test_more_rounds_than_a_hundred_thousand_are_read_and_judged(tmp_path: Path) -> None:
    data = json.loads((GOLDEN / "pytest_benchmark.json").read_text())
    rng = random.Random(1)
    del data["benchmarks"][1:]
    data["benchmarks"][0]["stats"]["data"] = [1e-6 * rng.lognormvariate(0, 0.05) for _ in range(100_500)]
    path = written(tmp_path, data)
    (run,) = imports.load(path)
    assert run.series[0].flat == tuple(data["benchmarks"][0]["stats"]["data"])
    assert len(run.series[0].values[0]) <= fields.ROUNDS
    assert [v.outcome for v in regression_check(path, path).verdicts] == ["EQUIVALENT"]


def test_more_values_than_memory_should_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_VALUES", 3)
    data = json.loads((GOLDEN / "pytest_benchmark.json").read_text())
    assert "at most 3 are read" in refused(written(tmp_path, data))


@pytest.mark.parametrize(
    "name", ["pytest_benchmark.json", "pyperf.json", "google_benchmark.json", "hyperfine.json", "criterion"]
)
def test_a_gate_reads_the_files_of_other_tools(name: str) -> None:
    suite = regression_check(GOLDEN / name, GOLDEN / name)
    assert suite.verdicts
    assert not suite.regressions_detected


def test_a_gate_reads_the_same_whether_it_was_imported_before_or_not(tmp_path: Path) -> None:
    from tritium.perf.store import results as store

    kept = store.save(imports.load(GOLDEN / "criterion"), tmp_path / "kept.json")
    direct, stored = (regression_check(GOLDEN / "criterion", f).verdicts for f in (GOLDEN / "criterion", kept))
    assert direct == stored


# ---- strangers


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data[:2]) if isinstance(data, list) else ()
    return [path, *(p for k, v in inner for p in places(v, (*path, k)))]


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = list(data) if isinstance(data, list) else dict(data)
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy


SUMMARY = {
    "metrics": {
        "http_req_duration": {"med": 15.0, "avg": 2.0},
        "http_reqs": {"count": 180},
        "http_req_failed": {"passes": 1},
    }
}


@pytest.mark.parametrize("data", [nvbench([1e-4], 0.01), SUMMARY], ids=["nvbench", "k6"])
def test_a_wrong_value_anywhere_is_read_or_refused_never_a_crash(data: Any, tmp_path: Path) -> None:
    for path in places(data):
        for value in (None, -1.5, "x", [{}], {"a": 1}, 10**400, True):
            with suppress(FormatError):
                imports.load(written(tmp_path, changed(data, path, value)))


@pytest.mark.parametrize("name", ["benchmark.json", "sample.json"])
def test_a_wrong_value_in_a_folder_of_criterion_is_refused_never_a_crash(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "criterion" / "fibonacci" / "recursive" / "10", tmp_path / "c")
    file = tmp_path / "c" / "new" / name
    data = json.loads(file.read_text())
    for path in places(data):
        for value in (None, -1.5, "x", [{}], {"a": 1}, True):
            file.write_text(json.dumps(changed(data, path, value)))
            with suppress(FormatError):
                imports.load(tmp_path)


@pytest.mark.parametrize("line", ['{"type": "Point", "metric": "http_req_duration"}', "[]", "{"])
def test_wrong_lines_of_k6_are_refused(line: str, tmp_path: Path) -> None:
    refused(written(tmp_path, point("http_req_duration", 1.0) + "\n" + line))
