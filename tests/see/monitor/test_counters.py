"""Counters of operations: what a recorder saw, added up; rates between two looks; on and off."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritium import backends, launch, recording
from tritium.errors import ArgumentError
from tritium.op import OPS, Spec
from tritium.perf.meters.absent import Absent
from tritium.see.monitor import counters
from tritium.see.monitor.counters import OpCount, Operations, Tally

CPU = backends.device("cpu")
A, B = Spec((4, 8)), Spec((8, 2))
MATMUL = launch.Launched(OPS["matmul"], "fake", CPU, (A, B), Spec((4, 2)), {})
ADD = launch.Launched(OPS["add"], "fake", CPU, (A, A), A, {})
MOVED = launch.Launched(None, "cpu->cuda", CPU, (A,), A, {})


class Recorder:
    """Spans that a test gives."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, int]] = []
        self.dropped = 0
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def take(self) -> tuple[list[Any], Any]:
        taken, self.spans = self.spans, []
        return [w for w, _ in taken], np.array([(0, ns, 1) for _, ns in taken], np.int64).reshape(-1, 3)


FIGURES: dict[str, dict[str, Any]] = {
    "pool": {"hits": 10, "misses": 10, "utilization": None}, "tensor_pools": {"hits": 1, "misses": 1, "utilization": None},
    "caches": {"hits": 0, "misses": 0, "utilization": None}, "programs": {"hits": 5, "misses": 1}, "fusion": {"found": 4, "applied": 3},
    "copies": {"hidden": 1}, "transfers": {"count": 0}, "decisions": {"replays": 100},
}  # fmt: skip


def source() -> tuple[Operations, Recorder, dict[str, dict[str, Any]], list[float]]:
    recorder, figures, clock = Recorder(), copy.deepcopy(FIGURES), [0.0]
    made = Operations(3, recorder=recorder, figures=lambda: copy.deepcopy(figures), clock=lambda: clock[0])
    return made, recorder, figures, clock


def named(values: Any) -> dict[str, Any]:
    return {c.name: v for c, v in zip(Operations.columns, values, strict=True)}


# ---- adding up


def test_spans_are_added_up_by_operation_and_device() -> None:
    whats = [MATMUL, ADD, MATMUL, recording.Scope("x"), launch.Ran("f", 2), MOVED]
    spans = np.array([(0, ns, 1) for ns in (100, 10, 300, 999, 999, 999)], np.int64)
    found = Tally().count(whats, spans)
    assert found == {
        ("matmul", "cpu"): OpCount("matmul", "cpu", 2, 400, 2 * MATMUL.cost.flops, 2 * sum(MATMUL.cost[1:])),
        ("add", "cpu"): OpCount("add", "cpu", 1, 10, ADD.cost.flops, sum(ADD.cost[1:])),
    }
    counted = found["matmul", "cpu"]
    assert (counted.mean_ms, counted.gflops) == (0.0002, counted.flops / 400)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 10**9)), max_size=200))
def test_adding_up_loses_no_span_and_no_nanosecond(given_: list[tuple[int, int]]) -> None:
    whats = [(MATMUL, ADD, launch.Launched(*ADD))[i] for i, _ in given_]
    found = Tally().count(whats, np.array([(0, ns, 1) for _, ns in given_], np.int64).reshape(-1, 3))
    assert sum(c.count for c in found.values()) == len(given_)
    assert sum(c.total_ns for c in found.values()) == sum(ns for _, ns in given_)
    matmul = found.get(("matmul", "cpu"), OpCount("matmul", "cpu"))
    assert matmul.total_ns == sum(ns for i, ns in given_ if i == 0)


def test_what_is_remembered_of_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "KNOWN", 4)
    tally = Tally()
    whats = [launch.Launched(*ADD) for _ in range(50)]
    found = tally.count(whats, np.ones((50, 3), np.int64))
    assert found["add", "cpu"].count == 50
    assert len(tally._known) <= 4


# ---- looks


def test_a_look_tells_what_happened_since_the_last() -> None:
    made, recorder, figures, clock = source()
    made.start()
    assert recorder.running
    recorder.spans = [(MATMUL, 1000), (ADD, 3000)]
    figures["pool"] = {"hits": 13, "misses": 11, "utilization": 0.8}
    figures["tensor_pools"] = {"hits": 10, "misses": 2, "utilization": 0.25}
    figures["caches"] = {"hits": 1, "misses": 3, "utilization": 0.5}
    figures["fusion"] = {"found": 6, "applied": 4}
    figures["decisions"]["replays"] = 107
    clock[0] = 1.0
    seen = named(made.read())
    assert seen["operations"] == 2
    assert seen["operation_time"] == 2e-6
    assert seen["gflops"] == (MATMUL.cost.flops + ADD.cost.flops) / 4000
    assert (seen["pool_hit_rate"], seen["fusion_rate"], seen["replays"]) == (0.75, 0.5, 7.0)
    assert (seen["tensor_pool_hit_rate"], seen["cache_hit_rate"]) == (0.9, 0.25)
    assert [seen[f"{part}_utilization"] for part in ("pool", "tensor_pool", "cache")] == [0.8, 0.25, 0.5]
    assert isinstance(seen["program_hit_rate"], Absent)
    again = named(made.read())
    assert again["operations"] == 0
    assert {n for n, v in again.items() if isinstance(v, Absent)} == {
        "operation_time", "gflops", "pool_hit_rate", "program_hit_rate", "tensor_pool_hit_rate", "cache_hit_rate",
        "fusion_rate",
    }  # fmt: skip
    assert made.rate("pool_hit_rate") == 0.75


def test_what_nothing_uses_has_no_utilisation() -> None:
    made, _, _, _ = source()
    made.start()
    seen = named(made.read())
    for part in ("pool", "tensor_pool", "cache"):
        assert isinstance(seen[f"{part}_utilization"], Absent)
        assert made.rate(f"{part}_utilization") is None


def test_counters_that_were_set_back_give_no_rate() -> None:
    made, _, figures, _ = source()
    made.start()
    figures["pool"] = {"hits": 0, "misses": 0, "utilization": None}
    found = named(made.read())["pool_hit_rate"]
    assert isinstance(found, Absent)
    assert found.code == "counter_reset"


def test_operations_that_no_longer_fitted_are_told() -> None:
    made, recorder, _, _ = source()
    recorder.dropped = 5
    made.start()
    recorder.dropped = 12
    assert named(made.read())["dropped"] == 7
    assert made.dropped == 7


def test_a_source_that_was_not_started_has_nothing_to_tell() -> None:
    assert all(isinstance(v, Absent) for v in source()[0].read())


def test_an_operation_has_a_series_of_its_own_and_old_looks_are_forgotten() -> None:
    made, recorder, _, clock = source()
    made.start()
    for n in range(1, 6):
        recorder.spans = [(ADD, 1000)] * n + [(MATMUL, 500)]
        clock[0] = float(n)
        made.read()
    adds = made.series("add")
    assert [row.at_s for row in adds.rows] == [3.0, 4.0, 5.0]
    assert adds.of("operations") == (3.0, 4.0, 5.0)
    assert made.series().of("operations") == (4.0, 5.0, 6.0)
    assert made.series("matmul").of("operation_time") == (5e-07,) * 3
    with pytest.raises(ArgumentError, match="Did you mean 'matmul'"):
        made.series("matmull")
