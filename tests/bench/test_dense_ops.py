"""bench/dense.py --all and --loops: calls of any size from the samples of the table, peers by name, summaries, and loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tritium as tt
from tritium import buffer
from tritium.op import OPS, Kind, Trait
from tritium.perf.records import speed

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import dense_loops  # noqa: E402
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


@pytest.mark.slow
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


def test_the_figures_say_the_medians_and_the_reasons_of_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_ops, "REASONS", {"op2": "it waits", "op9": "unknown here", "op1": "it is as fast"})
    times = {f"op{i} 8": {"tritium": [100.0 * i], "numpy": [100.0]} for i in (1, 2)}
    assert dense_ops.summaries(times, "tritium") == [
        "8 elements: time of tritium / that of the best peer: median 1.50 of 2 ops, 1 of them above 1",
        "op2: it waits",
    ]


def test_reasons_are_of_ops_that_exist() -> None:
    assert set(dense_ops.REASONS) <= set(OPS)


def test_a_loop_is_timed_by_decades() -> None:
    seen: list[int] = []
    loop = dense_loops.run(seen.append, (20, 100))
    assert seen == list(range(100))
    assert {end: len(parts) for end, parts in loop.ns.items()} == {20: 10, 100: 10}
    assert dense_loops.jump(dense_loops.Loop({10: [9.0], 20: [2.0], 30: [3.0]}, 0)).median == 1.5


def test_loops_compute_the_same_in_both_libraries() -> None:
    rows = np.arange(8000, dtype=np.float32).reshape(2000, 4)
    index = np.arange(8) + np.arange(1000)[:, None]
    theirs = dense_loops.turns(rows.copy(), list(index))
    for name, turn in dense_loops.turns(tt.tensor(rows), [tt.tensor(i) for i in index]).items():
        for i in (0, 7, 999):
            result, expected = turn(i), theirs[name](i)
            assert (result is None) == (expected is None), name
            if result is not None:
                np.testing.assert_allclose(result.numpy(), expected, err_msg=name)


@pytest.mark.slow
@pytest.mark.skipif(buffer.native is None, reason="times of the pure build are no figures")
def test_short_loops_write_their_figures(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCH / "dense.py"),
        "--loops",
        "--quick",
        "--threads",
        "1",
        "--libs",
        "tritium,numpy",
    ]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "loops.json")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    table = speed.load(tmp_path / "loops.json")
    assert {row.labels[1] for row in table.rows} == {"tritium", "numpy"}
    assert [c.name for c in table.columns] == ["to 100", "to 1,000", "to 10,000", "jump", "grown"]
