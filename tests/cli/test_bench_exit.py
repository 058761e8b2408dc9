"""What compare and bench exit with when cells fail: one rule, whatever the failure and the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_engine import ENGINE, QUICK, Engine, called, passed
from tritium.cli import bench as cli_bench
from tritium.errors import ArgumentError
from tritium.perf.store import baseline, results as store
from tritium.perf.work import registry

COMMANDS = {
    "compare": ("compare", "--devices", "cpu", "--peers", "numpy", "--operations", "add,relu", "--sizes", "16", "--dtypes", "f32"),
    "devices": ("compare", "--devices", "cpu,cpu:reference", "--peers", "none", "--operations", "add,relu", "--sizes", "16"),
    "bench": ("bench", "quantization", "--devices", "cpu", "--peers", "numpy"),
}  # fmt: skip


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    replacement = Engine()
    monkeypatch.setattr(ENGINE, "measure", replacement)
    monkeypatch.chdir(tmp_path)
    return replacement


FAILURES = ("failed", "wrong", "timed out", "crashed", "out of memory")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("status", FAILURES)
def test_a_run_in_which_every_cell_failed_exits_with_2_though_its_canaries_ran(
    engine: Engine, status: str, command: str
) -> None:
    engine.status, engine.canary = status, True
    result = called(*COMMANDS[command], "--output", "out.json", "--no-report")
    assert result.exit_code == 2
    assert "nothing could be measured" in result.stderr
    assert f"{engine.names[0]} [tritium] {status}" in result.stderr
    assert "baseline create" not in result.output
    with pytest.raises(ArgumentError, match="no case of these results was measured"):
        baseline.create("v1", store.load("out.json"), root=Path("kept"))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("status", FAILURES)
def test_one_cell_that_failed_is_named_exits_with_1_and_is_no_baseline(
    engine: Engine, status: str, command: str
) -> None:
    called(*COMMANDS[command], "--no-report")
    engine.canary = True
    engine.statuses = {(engine.names[-1], engine.arms[-1]): status}
    result = called(*COMMANDS[command], "--output", "out.json", "--no-report")
    assert result.exit_code == 1
    cells = len(engine.names) * len(engine.arms)
    assert f"1 of {cells} cells failed: {engine.names[-1]} [{engine.arms[-1]}] {status}" in result.stderr
    assert "baseline create" not in result.output
    assert "nothing could be measured" not in result.stderr
    assert store.load("out.json").complete


@pytest.mark.parametrize("command", COMMANDS)
def test_a_skipped_cell_fails_nothing_and_a_baseline_is_proposed(engine: Engine, command: str) -> None:
    called(*COMMANDS[command], "--no-report")
    engine.canary = True
    engine.statuses = {(name, engine.arms[-1]): "skipped" for name in engine.names}
    result = passed(*COMMANDS[command], "--no-report")
    assert "baseline create" in result.stdout
    assert "failed" not in result.stderr


# ---- what is too slow, and what there was no time for

ADD = ("compare", "--operations", "add", "--sizes", "16,32", "--dtypes", "f32", "--no-report")
FILE = '{"devices": ["cpu", "cpu:reference"], "operations": ["add"], "tensor_sizes": [[16, 16], [32, 32]], "data_types": ["f32"]}'


@pytest.mark.parametrize(
    ("args", "slow", "code"),
    [
        (("--devices", "cpu"), {"numpy"}, 0),  # there because it is installed
        (("--peers", "numpy"), set(), 0),
        (("--peers", "numpy"), {"numpy"}, 1),
        (("--peers", "np"), {"numpy"}, 1),
        (("--peers", "portable,numpy"), {"tritium portable"}, 1),
        (("--peers", "all"), {"reference"}, 1),
        (("--peers", "none", "--devices", "cpu,cpu:reference"), {"reference"}, 1),
        (("--peers", "reference", "--devices", "cpu"), {"numpy"}, 0),  # that is not measured
        (("--config", "bench.json"), {"reference"}, 1),
        (("--config", "bench.json"), {"numpy"}, 0),
    ],
)
def test_too_slow_is_no_failure_unless_it_is_all_there_is_of_what_was_requested(
    engine: Engine, args: tuple[str, ...], slow: set[str], code: int
) -> None:
    Path("bench.json").write_text(FILE)
    called(*ADD[: 1 if "--config" in args else None], "--no-report", *args)
    first, second = engine.names[:2]
    engine.canary = True
    engine.statuses = {(name, arm): "too slow" for name in engine.names for arm in slow}
    result = called(*ADD[: 1 if "--config" in args else None], "--no-report", *args)
    assert result.exit_code == code, result.output
    for arm in slow & set(engine.arms):
        assert f"{arm}: too slow: {first}, {second}: it is so" in result.stdout
        assert ("2 of " in result.stderr and f"{first} [{arm}] too slow" in result.stderr) == (code == 1)
    engine.statuses = {(first, arm): "too slow" for arm in slow}  # one of two
    assert called(*ADD[: 1 if "--config" in args else None], "--no-report", *args).exit_code == 0


def test_a_requested_contender_that_has_no_such_operation_is_skipped_and_that_is_no_failure(engine: Engine) -> None:
    called(*ADD, "--peers", "numpy")
    engine.statuses = {(name, "numpy"): "skipped" for name in engine.names}
    assert called(*ADD, "--peers", "numpy").exit_code == 0


def test_cells_that_the_time_did_not_suffice_for_are_failures_and_are_named(engine: Engine) -> None:
    called(*QUICK)
    engine.statuses = {(engine.names[0], "numpy"): "interrupted"}
    result = called(*QUICK, "--no-report")
    assert result.exit_code == 1
    assert f"1 of 26 cells failed: {engine.names[0]} [numpy] interrupted" in result.stderr
    engine.complete = False  # by Ctrl-C, which has an exit code of its own
    assert called(*QUICK, "--no-report").exit_code == 130


def test_nothing_but_what_is_too_slow_is_nothing_measured(engine: Engine) -> None:
    engine.status = "too slow"
    assert called(*QUICK, "--no-report").exit_code == 2


def test_very_many_failed_cells_are_counted(engine: Engine) -> None:
    engine.statuses = {(name, "numpy"): "wrong" for name in passed_names(engine)}
    result = called(*QUICK)
    assert result.exit_code == 1
    assert f" and {len(engine.names) - cli_bench.MOST_NAMED} more" in result.stderr


def passed_names(engine: Engine) -> list[str]:
    passed(*QUICK)
    return engine.names


# ---- the real thing

BROKEN = """
import ctypes

import numpy as np
from tritium.perf.work.registry import benchmark


@benchmark("crashing", sizes=[(4, 4)])
def crashing(shape, candidate):
    yield lambda: ctypes.string_at(0)


@benchmark("wrong", sizes=[(4, 4)], expected=lambda shape: np.full(shape, 2.0))
def wrong(shape, candidate):
    yield lambda: np.ones(shape)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("operations", "code"), [("crashing", 2), ("wrong", 2), ("crashing,wrong,add", 1)])
def test_a_real_comparison_of_broken_cases_says_so(
    operations: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_for_cli.py").write_text(BROKEN, encoding="utf-8")
    args = [
        "--load",
        "broken_for_cli.py",
        "--operations",
        operations,
        "--generations",
        "1",
        "--no-report",
        "--peers",
        "none",
    ]
    try:
        result = called("compare", "--devices", "cpu", "--sizes", "4", "--dtypes", "f32", *args)
    finally:
        for name in ("crashing", "wrong"):
            registry._registered.pop(name, None)
    assert result.exit_code == code, result.output
    statuses = {r.case.split()[0]: r.status for r in store.load("results.json")}
    assert statuses["canary"] == "ok"
    for name in operations.split(","):
        expected = {"crashing": "crashed", "wrong": "wrong", "add": "ok"}[name]
        assert statuses[name] == expected
        assert expected == "ok" or f"[tritium] {expected}" in result.stderr
    assert "baseline create" not in result.output
