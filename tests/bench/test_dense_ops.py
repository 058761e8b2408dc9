"""bench/dense.py --all: calls of any size from the samples of the table, peers by name, and the summary."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tritium import buffer
from tritium.op import OPS, Kind, Trait
from tritium.perf.records import speed

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import dense_ops  # noqa: E402


def test_nearly_every_op_grows_from_its_samples() -> None:
    rows = [o for o in OPS.values() if o.samples and o.kind is not Kind.FUSED and Trait.INTERNAL not in o.traits]
    fixed = [o.name for o in rows if dense_ops.case_of(o, 300) is None]
    assert len(fixed) <= len(rows) // 10, fixed


@pytest.mark.parametrize("name", ["add", "sort", "full", "softmax", "take", "matmul", "concat"])
def test_a_case_has_about_as_many_elements_as_asked(name: str) -> None:
    for elements in dense_ops.SIZES:
        case = dense_ops.case_of(OPS[name], elements)
        assert case is not None
        result = dense_ops.ours(case)()
        assert elements / 4 <= max([result.size, *(x.size for x in case.data if x is not None)]) <= elements


def test_a_peer_is_a_function_that_returns_the_same() -> None:
    for name in ("add", "sort", "arange", "full", "concat"):
        case = dense_ops.case_of(OPS[name], 8)
        assert dense_ops.theirs(case, "numpy") is not None, name
    for name in ("relu", "quantize_int8"):  # NumPy has none
        case = dense_ops.case_of(OPS[name], 8)
        assert dense_ops.theirs(case, "numpy") is None, name


def test_the_summary_names_the_worst() -> None:
    times = {f"op{i} 8": {"tritium": [100.0 * i], "numpy": [100.0], "torch": [400.0]} for i in range(1, 8)}
    text = dense_ops.report(times, ["tritium", "numpy", "torch"], ["a note"])
    assert "median 4.00 of 7 ops; worst: op7 7.00, op6 6.00, op5 5.00, op4 4.00, op3 3.00" in text
    assert "Note: a note." in text


@pytest.mark.skipif(buffer.native is None, reason="times of the pure build are no figures")
def test_a_short_run_writes_its_figures(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "dense.py"), "--all", "--quick", "--threads", "1", "--only", "add,negative"]
    command += ["--libs", "tritium,numpy", "--results", str(tmp_path / "all.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "median" in done.stdout
    table = speed.load(tmp_path / "all.json")
    assert [row.labels for row in table.rows] == [(op, n) for op in ("add", "negative") for n in ("8", "1000000")]
    assert [c.name for c in table.columns] == ["tritium", "numpy", "× numpy"]
