"""Program: one call for all steps, its memory, its report, many inputs at once, and the check of every node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import programs
import tritium as tt
from tritium import buffer, launch, ops
from tritium.compiler.program import Program, compare_tensors, sized
from tritium.compiler.steps import Memory, build
from tritium.errors import ArgumentError, VerifyError
from tritium.tensor import rows

CPU = tt.device("cpu").backend
native = pytest.mark.skipif(buffer.native is None, reason="needs the native library")


def program(fn: Any, *args: Any) -> Program:
    return tt.compile(fn).program(*args)


X = tt.randn((16, 32), seed=1)
W = tt.randn((32, 32), seed=2)


def mlp(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = tt.gelu(x @ w + 1.0) + x
    return x


@native
def test_it_runs_as_one_native_call() -> None:
    p = program(mlp, X, W)
    assert p.why_not_native == ""
    p(X, W)
    assert p.native.runs >= 1
    assert p.native.steps == p.launches


def test_a_step_without_a_native_kernel_is_told() -> None:
    p = program(lambda x: tt.sort(x * 2.0), X)
    assert p.native is None
    assert "sort" in p.why_not_native or buffer.native is None
    np.testing.assert_array_equal(p(X).numpy(), tt.sort(X * 2.0).numpy())


def test_whoever_watches_hears_every_step() -> None:
    p = program(mlp, X, W)
    heard: list[str] = []
    watcher = launch.watch(lambda e: heard.append(e.op.name if e.op else ""))
    try:
        p(X, W)
    finally:
        launch.unwatch(watcher)
    assert len(heard) == p.launches


def test_arguments_of_another_kind_are_refused() -> None:
    p = program(mlp, X, W)
    with pytest.raises(ArgumentError, match=r"Argument 0 must be f32\[16,32\]"):
        p(tt.ones((2, 32)), W)


# ---- memory


def lives(p: Program) -> list[Memory]:
    assert p.steps is not None
    return p.steps.blocks


def check_no_overlap(blocks: list[Memory]) -> None:
    for i, a in enumerate(blocks):
        for b in blocks[:i]:
            together = a.first <= max(b.first, b.last) and b.first <= max(a.first, a.last)
            apart = a.index + a.nbytes <= b.index or b.index + b.nbytes <= a.index
            assert apart or not together or not a.nbytes or not b.nbytes


@native
def test_temporaries_share_the_arena() -> None:
    p = program(mlp, X, W)
    check_no_overlap(lives(p))
    assert p.lower_bound_bytes <= p.arena_bytes <= p.naive_bytes
    assert p.arena_bytes <= 2 * X.nbytes + 256


@native
@settings(max_examples=30, deadline=None)
@given(programs.lines)
def test_no_two_blocks_that_live_together_overlap(code: list[programs.Line]) -> None:
    graph = tt.trace(lambda *a: programs.run(code, programs.OnTensors, *a), tt.Spec((4, 6)), tt.Spec((6,)))
    p = Program(graph, CPU)
    assert p.steps is not None, p.why_not_native
    check_no_overlap(lives(p))
    assert p.lower_bound_bytes <= p.arena_bytes <= p.naive_bytes


@native
def test_a_chain_is_computed_in_place() -> None:
    graph = tt.trace(lambda x: tt.cumulative_sum(tt.sqrt(tt.cumulative_sum(x, axis=0)), axis=0), tt.Spec((100,)))
    steps = build(graph, CPU, (tt.layout.contiguous((100,)),))
    assert [c.outputs[0].memory for c in steps.calls[:1]] == [c.inputs[0].memory for c in steps.calls[1:2]]  # type: ignore[union-attr]
    assert steps.calls[1].outputs[0].memory is steps.calls[1].inputs[0].memory  # type: ignore[union-attr]


@native
def test_an_order_that_needs_less_memory_is_taken() -> None:
    def fn(x: Any) -> Any:
        wide = [tt.concat([x * float(i)] * 64) for i in range(6)]
        total = wide[0].sum(axis=0)
        for w in wide[1:]:
            total = total + w.sum(axis=0)
        return total

    p = program(fn, tt.ones((4, 64)))
    one = 64 * 4 * 64 * 4
    assert p.arena_bytes < 2 * one


# ---- many inputs


def test_many_inputs_at_once_equal_the_loop() -> None:
    w = tt.randn((300, 300), seed=9)
    fn = tt.compile(lambda x: tt.softmax(tt.relu(x * 2.0 + 1.0)) - x.mean() + w.sum(axis=0)[:5])
    xs = [tt.randn((3, 5), seed=i) for i in range(7)]
    assert fn.program(xs[0]).why_not_stacked() == ""
    for got, x in zip(fn.run_many(xs), xs, strict=True):
        np.testing.assert_array_equal(got.numpy(), fn(x).numpy())


def test_many_inputs_of_several_arguments_and_results() -> None:
    fn = tt.compile(lambda x, y: (x @ y, x.sum(axis=0)))
    pairs = [(tt.randn((3, 5), seed=i), tt.randn((5, 2), seed=i + 50)) for i in range(4)]
    for (a, b), (x, y) in zip(fn.run_many(pairs), pairs, strict=True):
        np.testing.assert_allclose(a.numpy(), (x @ y).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(b.numpy(), x.sum(axis=0).numpy())


@pytest.mark.skipif(buffer.native is None, reason="without native code a program runs node by node, and stacking pays")
def test_many_inputs_are_stacked_only_where_it_pays() -> None:
    w, x = tt.randn((1024, 512), seed=1), tt.ones(1024)
    assert tt.compile(lambda x: tt.relu(x @ w)).program(x).why_not_stacked() == ""
    assert "longer than it saves" in tt.compile(lambda x: x + 1.0).program(x).why_not_stacked()
    assert "donated" in tt.compile(lambda x: x.add_(1.0), donate=0).program(x).why_not_stacked()


def test_a_program_that_runs_node_by_node_is_stacked() -> None:
    fn = tt.compile(lambda x: tt.argsort(tt.sort(x)))
    xs = [tt.randn((8,), seed=i) for i in range(70)]
    p = fn.program(xs[0])
    assert p.native is None
    assert p.why_not_stacked(70) == ""
    for got, x in zip(fn.run_many(xs), xs, strict=True):
        assert got.tolist() == fn(x).tolist()


def test_rows_of_a_tensor_are_views_of_it() -> None:
    x = tt.arange(300).reshape(100, 3)
    for y in (x, x[::-1], x.T, x[5:90:2, 1:], x[:0]):
        assert [r.tolist() for r in rows(y)] == [r.tolist() for r in y] == y.tolist()
    rows(x)[70][1] = -1
    assert x[70, 1].item() == -1


def test_what_cannot_be_stacked_runs_one_by_one() -> None:
    fn = tt.compile(lambda x: tt.searchsorted(x, x))
    xs = [tt.sort(tt.randn(5, seed=i)) for i in range(3)]
    assert "searchsorted" in fn.program(xs[0]).why_not_stacked()
    for got, x in zip(fn.run_many(xs), xs, strict=True):
        np.testing.assert_array_equal(got.numpy(), tt.searchsorted(x, x).numpy())


def test_results_of_many_are_each_their_own() -> None:
    fn = tt.compile(lambda x: x + 1.0)
    a, b = fn.run_many([tt.zeros(2), tt.zeros(2)])
    a += 5.0
    assert b.tolist() == [1, 1]


def test_no_input_at_all() -> None:
    assert tt.compile(lambda x: x).run_many([]) == []


# ---- saying what was done


def test_explain_says_what_was_applied_and_what_was_not() -> None:
    text = tt.compile(lambda x: tt.relu(-(tt.negative(x)) * 1.0 + 0.0)).explain(X)
    assert "double negation" in text
    assert "not applied:" in text
    assert "-0.0" in text
    assert "calls written" in text


def test_sizes_for_a_person() -> None:
    assert [sized(n) for n in (12, 2048, 3 << 20, 5 << 30)] == ["12 B", "2.0 KB", "3.0 MB", "5.00 GB"]


def test_verify_names_the_first_node_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.compiler import passes

    monkeypatch.setitem(passes.RULES, ops.tanh, ("wrong", lambda r, n: r.node(ops.sin, n.inputs)))
    p = program(lambda x: tt.cumulative_sum(tt.tanh(tt.cumulative_sum(x, axis=0)), axis=0) * 2.0, X)
    with pytest.raises(VerifyError, match=r"<node sin: f32\[16,32\]>, which replaces <node tanh"):
        p.verify(X)


def test_verify_passes_what_is_right() -> None:
    program(mlp, X, W).verify(X, W)


def test_tensors_as_close_as_promised_are_equal() -> None:
    a = tt.tensor([1.0, float("nan"), float("inf")])
    compare_tensors(a, a.clone(), "it", 0)
    b = tt.tensor([1.0 + 2e-7, float("nan"), float("inf")])
    compare_tensors(a, b, "it", 4)
    with pytest.raises(VerifyError, match=r"it differs from the ops as written: at \[0\]"):
        compare_tensors(a, b, "it", 0)
    with pytest.raises(VerifyError, match=r"returns f32\[2\] where"):
        compare_tensors(a, a[:2], "it", 0)


@native
def test_a_fused_program_launches_less_and_moves_fewer_bytes_than_its_ops() -> None:
    def fn(x: Any) -> Any:
        return tt.relu(x * 2.0 + 1.0).sum(axis=-1)

    p, graph = program(fn, X), tt.trace(fn, X)
    calls = [n for n in graph.order() if n.op not in (ops.given, ops.const)]
    single = sum(cost.read + cost.written for cost in map(p.cost_of, calls))
    assert (len(calls), p.launches) == (4, 1)
    assert p.bytes_moved == X.nbytes + 16 * 4
    assert single >= 6 * X.nbytes
    with tt.profile(counters=None, ceilings=False) as profile:
        p(X)
    assert [row.count for row in profile.ops()] == [1]
    np.testing.assert_allclose(p(X).numpy(), fn(X).numpy(), rtol=1e-6)
