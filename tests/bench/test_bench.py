"""The benchmarks of the compiler and of devices on their smallest sizes: they run, refuse wrong answers, and judge their goals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritium import buffer

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _from_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def ns(**times: float) -> dict[str, list[float]]:
    return {name.replace("_", " "): [t, t] for name, t in times.items()}


@pytest.mark.slow
@pytest.mark.skipif(
    buffer.native is None, reason="the benchmark times native programs, which the pure build has none of"
)
def test_a_small_run_prints_tables_and_keeps_raw_values(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "compile.py"), "--quick", "--threads", "1", "--libs", "tritium,numpy"]
    command += ["--cases", "growth,chains", "--sizes", "1024", "--lengths", "2", "--nodes", "100"]
    done = subprocess.run([*command, "--json", str(tmp_path / "out.json")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "cheap chains" in done.stdout
    kept = json.loads((tmp_path / "out.json").read_text())
    cells = kept["runs"][0]["cells"]
    assert [c["section"] for c in cells] == ["growth", "chains", "chains"]
    assert set(cells[1]["ns"]) == {"tritium", "tritium compiled", "numpy"}


@pytest.mark.parametrize("length", [1, 2, 7, 20])
@pytest.mark.parametrize("kind", ["cheap", "smooth"])
def test_a_chain_has_as_many_rows_as_it_says(kind: str, length: int) -> None:
    import compile_words
    from compile_models import facts

    import tritium as tt

    fn = tt.compile(compile_words.CHAINS[kind](compile_words.use_tritium(1), length))
    x = tt.ones((8,))
    assert facts(fn.program(x, x))["rows"] == length


def test_a_wrong_answer_is_refused() -> None:
    import compile as bench

    right = [np.ones(3)]
    assert bench.wrong([np.ones(3, np.float32)], right, 1e-5) == ""
    assert "off by" in bench.wrong([np.array([1, 1, 1.1])], right, 1e-5)
    assert "off by" in bench.wrong([np.array([1, np.nan, 1])], right, 1e-5)
    assert "shape" in bench.wrong([np.ones(4)], right, 1e-5)


def chain(size: int, **times: float) -> dict[str, Any]:
    return {"section": "chains", "title": "a chain", "size": size, "ns": ns(**times)}


def test_a_chain_behind_any_peer_fails_the_goal() -> None:
    from compile_report import goals

    ahead = chain(1 << 20, tritium_compiled=1, tritium=9, numpy=2, torch=3)
    behind = chain(1 << 20, tritium_compiled=2, tritium=9, numpy=3, torch=1)
    small = chain(1 << 10, tritium_compiled=2, tritium=9, torch=1)
    (met,) = goals([{"threads": 1, "cells": [ahead, small]}])
    (failed,) = goals([{"threads": 1, "cells": [ahead, behind]}])
    assert met.startswith("met")
    assert failed.startswith("NOT met")
    assert "torch 0.50x" in failed


@pytest.mark.parametrize(
    ("per_node", "met"), [((10, 10), (True, True)), ((10, 30), (True, False)), ((200, 200), (False, True))]
)
def test_compile_time_is_judged_by_its_height_and_its_growth(per_node: tuple[int, int], met: tuple[bool, bool]) -> None:
    from compile_report import goals

    cells = [
        {"section": "growth", "title": f"{n} nodes", "nodes": n, "ns": {"total": n * us * 1000}}
        for n, us in zip((1000, 20_000), per_node, strict=True)
    ]
    assert tuple(line.startswith("met") for line in goals([{"threads": 1, "cells": cells}])) == met


def test_a_step_costs_what_the_longer_program_takes_more() -> None:
    from compile_report import slope_ns

    cells = [{"count": n, "ns": {"tritium compiled": [1000 + 50 * n]}} for n in (1, 10, 100)]
    assert slope_ns(cells) == 50


# ---- devices


@pytest.mark.slow
def test_a_short_look_at_devices_writes_results_and_a_page(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "devices.py"), "--quick", "--devices", "cpu", "--sizes", "16,32"]
    command += ["--only", "compare", "--threads", "1", "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Device selection guide" in done.stdout
    kept = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert {r["context"]["operation"] for r in kept["results"]["runs"]} >= {"matmul", "add", "softmax", "bitlinear"}
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_tritium_adds_is_judged_by_its_whole_interval() -> None:
    from devices import Limit

    def verdict(ratio: float, low: float, high: float) -> str:
        return Limit("add", "1 µs", "1 µs", ratio, (low, high), 1.5).verdict

    assert [verdict(1.2, 1.1, 1.3), verdict(1.4, 1.2, 1.6), verdict(1.8, 1.6, 2.0)] == ["met", "unsure", "MISSED"]
    assert Limit("add", "1 µs", "1 µs", 9.0, (8.0, 10.0), 1.5, judged=False).verdict.startswith("not judged")


def test_the_dispatch_of_a_call_is_a_share_of_a_large_one() -> None:
    from devices import dispatch_limits

    from made_results import results as made

    times = {"add 1000x1000 f32": 1e-4, "matmul 1000x1000 f32": 1e-2, "add 1 f32": 5e-7}
    found = list(dispatch_limits(made(times, arms={"tritium": 1.0, "numpy": 1.0}, sd=1e-4)))
    assert [f.case.partition(":")[0] for f in found] == [
        "add 1000x1000 f32", "matmul 1000x1000 f32", "dispatch of add 1000x1000", "dispatch of matmul 1000x1000",
    ]  # fmt: skip
    assert [round(f.ratio, 5) for f in found[2:]] == [0.005, 0.00005]
    assert {f.verdict for f in found} == {"met"}


@pytest.mark.parametrize("library", ["torch", "mlx"])
def test_a_small_operation_is_the_same_on_a_device_and_in_its_library(library: str) -> None:
    pytest.importorskip("mlx.core" if library == "mlx" else library, reason=f"the bench extra has {library}")
    from devices import OPS, small

    from tritium.perf.engine.worker import checked

    for op in OPS:
        for candidate in (library, f"tritium:{library}:cpu"):
            made = small(candidate, op=op, size=8, evaluated=True)
            result = made.call()
            assert made.wait is not None
            made.wait(result)
            assert "status" not in checked(made, result), (op, candidate)
