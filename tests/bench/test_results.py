"""What the scripts of bench/ write with --results: figures, ratios, the command, and one schema for all."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritium import buffer
from tritium.perf.gate.selftest import Selftest, Trial
from tritium.perf.records import speed
from tritium.perf.records.speed import Figure, Need

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = "dense compile ternary model devices cuda overhead torch_linears alarms".split()

sys.path.insert(0, str(BENCH))
try:
    import cuda_report
    import cuda_results
    import results
finally:
    sys.path.remove(str(BENCH))

TIMES = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def _from_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


# ---- figures


@given(TIMES)
def test_a_figure_is_inside_its_interval_and_keeps_its_samples(samples: list[float]) -> None:
    made = results.figure(samples)
    assert made.low <= made.median <= made.high
    assert made.samples == pytest.approx(samples, rel=1e-5)


@given(TIMES, st.floats(0.5, 20))
def test_a_ratio_of_paired_samples_is_their_factor(ours: list[float], factor: float) -> None:
    made = results.ratio([factor * value for value in ours], ours)
    assert made.median == pytest.approx(factor, rel=1e-4)
    assert made.spread == pytest.approx(0, abs=1e-4)


@given(TIMES, TIMES)
def test_a_ratio_of_figures_has_the_widest_interval(theirs: list[float], ours: list[float]) -> None:
    one, two = results.figure(theirs), results.figure(ours)
    made = results.ratio_of(one, two)
    assert made.low <= made.median <= made.high
    assert made.low == pytest.approx(one.low / two.high, rel=1e-4)


def test_a_ratio_beside_an_unknown_interval_has_none() -> None:
    assert results.ratio_of(Figure(2.0), Figure(1.0, 0.9, 1.1)) == Figure(2.0)


def test_every_contender_but_the_base_has_a_ratio() -> None:
    made = results.compared({"ours": [1000.0, 1100.0], "theirs": [2000.0, 2200.0]}, "ours", 1e-3)
    assert list(made) == ["ours", "theirs", "× theirs"]
    assert made["ours"].median == pytest.approx(1.05)
    assert made["× theirs"].median == pytest.approx(2.0)


# ---- the command


@pytest.mark.parametrize(
    "words",
    [["--results", "a.json", "--quick"], ["--quick", "--results=a.json"], ["--json", "b", "--quick", "--results", "a"]],
)
def test_the_command_is_kept_without_the_file_it_writes(words: list[str]) -> None:
    assert results.command_line(["/a/folder/bench/dense.py", *words]) == ("bench/dense.py", "--quick")


def test_the_command_names_no_folder_of_the_machine() -> None:
    here = results.ROOT / "bench"
    words = ["--peer", str(here / "ggml_peer.py"), f"--peer={here / 'mlx_peer.py'}", "--model=/models/a b/c.gguf"]
    assert results.command_line(["bench/ternary.py", *words, "--shapes=7x9"]) == (
        "bench/ternary.py", "--peer", "bench/ggml_peer.py", "--peer=bench/mlx_peer.py", "--model=c.gguf", "--shapes=7x9",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["dense", "Dense.json", "a b.json", "dense.txt"])
def test_a_results_file_needs_a_plain_name(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="small letters"):
        results.result_file(text)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_can_write_a_results_file(script: str) -> None:
    text = (BENCH / f"{script}.py").read_text(encoding="utf-8")
    assert "add_option(parser)" in text
    assert "write_results(args" in text


# ---- short runs


@pytest.mark.slow
@pytest.mark.skipif(buffer.native is None, reason="times of the pure build are no figures")
def test_a_short_run_writes_a_results_file(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "dense.py"), "--quick", "--threads", "1", "--only", "call"]
    command += ["--libs", "tritium,numpy", "--results", str(tmp_path / "smoke.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "| µs " in done.stdout
    table = speed.load(tmp_path / "smoke.json")
    assert table.command == ("bench/dense.py", "--quick", "--threads", "1", "--only", "call", "--libs", "tritium,numpy")
    assert table.recorded == speed.MEASURED
    assert {"tritium", "numpy", "python"} <= set(table.versions)
    assert [c.name for c in table.columns] == ["tritium", "numpy", "× numpy"]
    (row,) = table.rows
    assert row.labels == ("add, 8 elements", "1")
    assert len(row.figures["tritium"].samples) == len(row.figures["numpy"].samples) >= 6
    assert row.figures["× numpy"].low is not None


def saved(tmp_path: Path, write: Any, *arguments: Any) -> speed.SpeedTable:
    path = tmp_path / "made.json"
    before, sys.argv = sys.argv, ["bench/dense.py"]
    try:
        write(path, *arguments)
    finally:
        sys.argv = before
    return speed.load(path)


def test_ternary_products_leave_out_the_cpu_path_of_mlx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ternary

    monkeypatch.setattr(ternary.platform, "system", lambda: "Linux")
    cell = {
        "n": 64,
        "k": 32,
        "batch": 4,
        "ns": {"tritium": [10.0, 12.0], "numpy f32": [20.0, 24.0], "mlx 2-bit": [1e4] * 2},
    }
    result = {"threads": 1, "versions": {"numpy": "2"}, "notes": ["mlx 2-bit would take 9 s", "other"], "cells": [cell]}
    table = saved(tmp_path, ternary.write_results, [result])
    assert [c.name for c in table.columns] == ["tritium", "× numpy f32"]
    assert table.rows[0].labels == ("4", "1", "64×32")
    assert table.rows[0].figures["tritium"].median == pytest.approx((1638.4 + 16384 / 12) / 2, rel=1e-4)
    assert table.notes == ("other.",)


def test_compiled_functions_are_compared_with_what_is_not_compiled(tmp_path: Path) -> None:
    import compile as bench

    ns = {"tritium": [30.0] * 3, "tritium compiled": [10.0] * 3, "torch": [20.0] * 3, "kernels in turn": [9.0] * 3}
    cells = [{"section": "chains", "title": "a chain", "ns": ns}, {"section": "growth", "title": "9 nodes", "ns": {}}]
    table = saved(tmp_path, bench.write_results, [{"threads": 2, "versions": {}, "notes": [], "cells": cells}])
    assert [c.name for c in table.columns] == ["tritium compiled", "tritium", "torch", "× tritium", "× torch"]
    assert table.rows[0].figures["× torch"].median == 2.0


def test_whole_models_say_what_they_need(tmp_path: Path) -> None:
    import model

    engines = [model.Engine("tritium", lambda: (1.0, 1.0), [300.0, 310.0, 290.0], [30.0, 31.0, 29.0])]
    engines.append(model.Engine("llama.cpp", lambda: (1.0, 1.0), [100.0, 103.0, 97.0], [15.0, 15.5, 14.5]))
    args = argparse.Namespace(
        rounds=3, prefill=128, decode=64, ours=["2b.tritium"], peer=[["llama.cpp", "llama-bench", "2b.gguf"]], ik=[], litespark=[],
        threads=2, version=[["llama.cpp", "b1"]], results=tmp_path / "made.json",
    )  # fmt: skip
    table = saved(tmp_path, lambda path: model.write_results(args, engines))
    assert table.rows[1].figures["× decode"].median == pytest.approx(2.0, rel=1e-3)
    assert table.columns[0].interval == "smallest and largest of 3 rounds"
    assert {need.name for need in table.needs} == {"2b.tritium", "2b.gguf", "llama-bench"}
    assert table.versions["llama.cpp"] == "b1"


def test_engines_of_one_name_are_refused_before_they_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "model.py"), "--ours", "a.gguf", "--ours", "b/a.gguf", "--results", "m.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--results needs a name for every engine" in done.stderr


def test_the_gate_is_counted_with_exact_intervals(tmp_path: Path) -> None:
    import alarms

    trials = [Trial(i, "", 0.0, 0, {"a": "EQUIVALENT"}, {"a": 1.0}, {"a": 0.01}, 19.0) for i in range(20)]
    table = saved(tmp_path, alarms.write_results, Selftest(tuple(trials), 0.03))
    first = table.rows[0]
    assert first.labels == ("equal code: suites that failed the gate",)
    assert (first.figures["counted"].median, first.figures["of"].median) == (0, 20)
    assert first.figures["share"].high == pytest.approx(16.8, abs=0.1)


def test_the_slowed_copy_of_the_gate_s_measure_is_slower_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import alarms

    package = tmp_path / "package" / "tritium"
    (package / "perf" / "work").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(alarms.tritium, "__file__", str(package / "__init__.py"))
    with pytest.raises(SystemExit, match="slowed copy cannot be made"):
        alarms.slowed_copy(tmp_path / "one")
    (package / "perf" / "work" / "libraries.py").write_text("LIBRARIES = {}\n")
    copy = alarms.slowed_copy(tmp_path / "two")
    assert "_slowed" in (copy / "tritium" / "perf" / "work" / "libraries.py").read_text()


def test_overhead_is_a_share_with_a_limit_for_long_calls(tmp_path: Path) -> None:
    import overhead

    cells = [
        (f"about {us} µs", overhead.Cell("recording on", "add", us, [1e3 * us] * 9, [1.02e3 * us] * 9))
        for us in (5, 50)
    ]
    table = saved(tmp_path, overhead.write_results, cells, [{"never": [300.0], "off": [301.0]}])
    _, short, long = table.rows
    assert long.figures["extra"].median == pytest.approx(2.0)
    assert long.figures["limit"].median == 5
    assert "limit" not in short.figures


def test_what_tritium_adds_is_written_beside_its_limit(tmp_path: Path) -> None:
    import devices

    times = (Figure(10.0, 9.0, 11.0, (), 15), Figure(12.0, 11.0, 13.0, (), 15))
    limits = [
        devices.Limit("add", "", "", 1.2, (1.1, 1.3), 1.5, times=times),
        devices.Limit("dispatch", "", "", 1.2, None, 0.01, times=times),
        devices.Limit("exp", "", "", 1.2, (1.1, 1.3), 1.5, more="in f64", times=times),
    ]
    add, dispatch, exp = saved(tmp_path, devices.write_results, limits, 1).rows
    assert add.figures["tritium / their own"] == Figure(1.2, 1.1, 1.3, (), 15)
    assert dispatch.figures["tritium / their own"].low == pytest.approx(1.0)
    assert "limit" not in exp.figures


# ---- CUDA


def test_products_of_a_gpu_have_ratios_where_both_were_timed(tmp_path: Path) -> None:
    us = {cuda_report.BF16: (6.0, 6.2, 6.1), cuda_report.FP8: "not run: refused", cuda_report.OURS: (1.5, 1.55, 1.525)}
    rows = cuda_results.products([[{"n": 64, "k": 32, "tokens": 1, "kernel": "", "us": us}]])
    (row,) = rows.rows
    assert row.labels == ("1", "64×32")
    assert set(row.figures) == {cuda_report.BF16, cuda_report.OURS, f"× {cuda_report.BF16}"}
    assert row.figures[f"× {cuda_report.BF16}"].median == pytest.approx(4.0, rel=1e-3)


def test_the_other_parts_of_a_gpu_make_rows() -> None:
    energy = {"mj": 120.0}
    chain = cuda_results.chain(
        [{"torch bf16": {"us": (1400.0,) * 3, "energy": energy}, "tritium": {"us": (250.0,) * 3, "energy": {}}}]
    )
    assert chain.rows[0].figures["× tritium"].median == pytest.approx(5.6)
    assert "energy" not in chain.rows[1].figures
    series = {
        "decode": {"samples": (2000.0,) * 3},
        "prefill": {"samples": (4e4,) * 3},
        "decode energy": {"samples": ()},
        "prefill energy": {"samples": (0.002,) * 3},
    }
    model = cuda_results.model([[{"model": "2b shape, random", "rows": series, "batch": 8, "prefill_tokens": 128}]])
    assert model.rows[0].labels == ("2b", "128", "8")
    assert model.rows[0].figures["step"].median == pytest.approx(4000)
    assert model.rows[0].figures["prefill energy"].median == pytest.approx(2)
    assert "decode energy" not in model.rows[0].figures
    rivals = cuda_results.rivals([{"tritium": (500.0,) * 3, "bf16": (1500.0,) * 3, "int4": "not run: refused"}])
    assert [row.labels for row in rivals.rows] == [("tritium",), ("bf16",), ("int4",)]
    assert rivals.rows[1].figures["× tritium"].median == pytest.approx(3)
    assert [set(row.figures) for row in rivals.rows] == [{"time"}, {"time", "× tritium"}, set()]
    host = cuda_results.host(
        [{"add": {"tritium": (6.0,) * 3, "torch": (5.0,) * 3}, "program": {"tritium": (7.0,) * 3}}]
    )
    assert host.rows[0].figures["tritium / torch"].median == pytest.approx(1.2)
    assert set(host.rows[1].figures) == {"tritium"}
    dense = cuda_results.dense(
        [{"read_bytes_per_s": 1e12, "rows": [{"row": "relu", "bytes": 10**6, "us": {"tritium": (2.0,)}}]}]
    )
    assert dense.rows[0].figures["tritium"].median == pytest.approx(50)
    assert math.isclose(dense.rows[0].figures["tritium"].low, 50)
    known = {column.name for rows in (chain, model, host, dense) for column in rows.columns}
    assert {name for rows in (chain, model, host, dense) for row in rows.rows for name in row.figures} <= known


def test_training_makes_rows_of_times_and_notes_of_losses() -> None:
    linear, ours, int8 = "nn.Linear, bf16", cuda_report.OURS, cuda_results.INT8_GRADIENTS
    us = {linear: (1200.0,) * 3, ours: (1000.0,) * 3, int8: "not run: no memory"}
    cell = {"tokens": 4096, "case": "out, 2560×2560", "us": us, "checked": 9, "wrong": 0}
    rows = cuda_results.training([{"cells": [cell]}, {"losses": {linear: [3.0, 1.0, 2.0, 1.0]}, "span": 2}])
    (row,) = rows.rows
    assert row.labels == ("4096", "out, 2560×2560")
    assert row.figures[f"× {linear}"].median == pytest.approx(1.2)
    assert set(row.figures) <= {column.name for column in rows.columns}
    assert rows.notes == (
        "9 results of forward passes compared with the formulas, wrong: 0.",
        f"Loss, {linear}, mean of each 2 steps: 2.0000, 1.5000.",
    )


def test_groups_are_rows_and_random_sizes_a_note() -> None:
    us = {"none": (4.0,) * 3, "group 128": (5.0,) * 3, "group 64": "not run: refused"}
    cell = {"n": 64, "k": 256, "tokens": 8, "us": us, "checked": 1000, "wrong": 0}
    rows = cuda_results.groups([[cell], {"checked": 2000, "wrong": 1, "worst": ["one"]}])
    (row,) = rows.rows
    assert row.labels == ("8", "64×256")
    assert row.figures["group 128 / none"].median == pytest.approx(1.25)
    assert set(row.figures) < {column.name for column in rows.columns}
    assert rows.notes == ("3,000 results compared with the formula, 2,000 of them of random sizes, wrong: 1.",)


def test_products_of_experts_are_rows_and_models_notes() -> None:
    us = {"bf16, loop": (12.0,) * 3, "tritium": (4.0,) * 3, "tritium, group 128": "not run: refused"}
    cell = {"what": "down", "n": 64, "k": 32, "tokens": 8, "us": us, "checked": 1000, "wrong": 0}
    series = {"decode": {"samples": (2000.0,) * 3}, "prefill": {"samples": (4e4,) * 3}}
    run = {"rows": series, "batch": 8, "prefill_tokens": 128, "layers": 4}
    rows = cuda_results.experts([[cell], [run]])
    (row,) = rows.rows
    assert row.labels == ("down, 64×32", "8")
    assert row.figures["× bf16, loop"].median == pytest.approx(3.0)
    assert set(row.figures) < {column.name for column in rows.columns}
    assert rows.notes == (
        "256 experts, 8 for each token; 1,000 results compared with the formula, wrong: 0.",
        "4 layers of a model, 8 sequences: 2000 tokens/s decoded, a prompt of 128 tokens read at 40000 tokens/s.",
    )


def test_a_results_file_of_a_gpu_holds_one_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("bench_cuda", BENCH / "cuda.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.parsed(["--only", "dense", "--results", "cuda-dense.json"]).parts == ("dense",)
    for words in (["--results", "x.json"], ["--only", "exact", "--results", "x.json"]):
        with pytest.raises(SystemExit):
            script.parsed(words)
        assert "--results writes one table" in capsys.readouterr().err


def test_what_a_gpu_script_needs_is_said() -> None:
    assert results.need("torch") == Need("module", "torch", "pip install torch")
    assert results.GPU.kind == "gpu"
