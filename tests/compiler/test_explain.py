"""Opportunities and plans: bytes counted, times estimated, and said to be estimates."""

from __future__ import annotations

from typing import Any

import pytest

import tritium as tt
from tritium import buffer
from tritium.compiler import cost
from tritium.op import Cost

M = tt.Spec((64, 256))
native = pytest.mark.skipif(buffer.native is None, reason="needs the native library: without it nothing fuses")


@pytest.fixture(autouse=True)
def _ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of round numbers: 100 GFLOP/s, 1 TOP/s, 10 GB/s beyond 1 MB and 100 GB/s below, 100 ns a call."""
    levels = (cost.Level("L2", 1e6, 1e11), cost.Level("DRAM", float("inf"), 1e10))
    monkeypatch.setattr(cost, "model", lambda _: cost.Model(2, 1e11, 1e12, 1e-7, levels))


def test_time_is_the_longer_of_computing_and_moving() -> None:
    m = cost.model(2)
    assert m.seconds(Cost(10**9, 0, 0)) == pytest.approx(1e-2 + 1e-7)
    assert m.seconds(Cost(10**9, 0, 0), integer=True) == pytest.approx(1e-3 + 1e-7)
    assert m.seconds(Cost(0, 10**9, 0)) == pytest.approx(0.1 + 1e-7)
    assert m.seconds(Cost(0, 10**5, 0)) == pytest.approx(1e-6 + 1e-7)
    assert [m.bound(c) for c in (Cost(10**9, 8, 8), Cost(10, 10**9, 0), Cost(1, 8, 8))] == ["compute", "memory", "call"]


@native
def test_opportunities_have_bytes_and_an_estimated_gain() -> None:
    graph = tt.trace(lambda x, y: tt.relu(x * y + x).sum(axis=0), M, M)
    (found,) = graph.find_fusion_opportunities()
    assert found.pattern == "multiply+add+relu"
    assert found.bytes_saved == (3 + 3 + 2 - 3) * M.nbytes
    assert found.estimated_speedup > 2
    assert found.applied
    assert "less to move, estimated" in str(found)
    assert [n.op.name for n in found.nodes] == ["multiply", "add", "relu"]


@native
def test_the_largest_gain_comes_first() -> None:
    def fn(x: Any, small: Any) -> Any:
        return tt.relu(x * 2.0 + 1.0).sum(axis=0), tt.relu(small * 2.0 + 1.0).sum(axis=0)

    gains = [o.estimated_gain_s for o in tt.trace(fn, M, tt.Spec((2, 2))).find_fusion_opportunities()]
    assert gains == sorted(gains, reverse=True)
    assert len(gains) == 2


def test_what_cannot_be_fused_is_no_opportunity() -> None:
    assert tt.trace(lambda x: tt.sort(x), M).find_fusion_opportunities() == []


def test_a_plan_has_steps_memory_and_an_estimate() -> None:
    graph = tt.trace(lambda x, w: tt.softmax(tt.cumulative_sum(x @ w, axis=0)).sum(axis=0), M, tt.Spec((256, 256)))
    plan = graph.generate_execution_plan()
    assert plan.measured_s is None
    assert plan.error is None
    assert plan.estimated_execution_time == pytest.approx(sum(s.estimated_s for s in plan.steps))
    assert plan.estimated_bytes == sum(s.nbytes for s in plan.steps)
    matmul = plan.steps[0]
    assert (matmul.name, matmul.flops) == ("matmul", 2 * 64 * 256 * 256)
    assert matmul.estimated_s == pytest.approx(2 * 64 * 256 * 256 / 1e11 + 1e-7)
    assert f"{len(plan.steps)} steps" in str(plan)


@native
def test_a_plan_says_how_far_the_last_run_was_from_it() -> None:
    fn = tt.compile(lambda x: tt.relu(x * 2.0) @ x.mT)
    x = tt.ones((64, 256))
    fn(x)
    plan = fn.generate_execution_plan(x)
    assert [o.pattern for o in fn.find_fusion_opportunities(x)] == [o.pattern for o in plan.fusion_opportunities]
    assert plan.measured_s is not None
    assert plan.measured_s > 0
    assert plan.error == pytest.approx(plan.measured_s / plan.estimated_execution_time - 1)
    assert "last run" in str(plan)


@native
def test_memory_groups_are_results_that_share_bytes() -> None:
    def fn(x: Any) -> Any:
        for _ in range(5):
            x = tt.cumulative_sum(x @ x, axis=0)
        return x

    plan = tt.trace(fn, tt.Spec((64, 64))).generate_execution_plan()
    assert any(len(g) > 1 for g in plan.memory_groups)
    assert plan.estimated_memory_usage < plan.naive_memory_usage
