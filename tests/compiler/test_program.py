"""Program: one call for all steps, its memory, its report, many inputs at once, and the check of every node."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import programs
import tritium as tt
from own_ops import registered
from tritium import buffer, launch, ops
from tritium.compiler.program import GAIN, TRIALS, Inputs, Program, compare_tensors, sized
from tritium.compiler.steps import Memory, build
from tritium.errors import ArgumentError, VerifyError
from tritium.graph.text import parse
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


def test_what_the_pure_build_or_an_op_without_a_kernel_runs_node_by_node_is_told() -> None:
    def unknown(x: tt.Spec, /) -> tt.Spec:
        """An op that no device computes."""
        return x

    with registered(unknown, None) as row:
        p = program(lambda x: row(x * 2.0), X)
        assert p.native is None
        assert "unknown" in p.why_not_native or buffer.native is None
        assert f"runs node by node: {p.why_not_native}" in p.explain()
        with pytest.raises(tt.errors.DeviceError, match="unknown has no kernel on cpu"):
            p(X)


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


def stack_always(fn: Any, n: int, *args: Any) -> None:
    """Let run_many stack n such inputs, whatever is faster."""
    stacking = fn.program(*args).stacking(n)
    assert stacking.compile()
    stacking._close("")


def test_many_inputs_at_once_equal_the_loop() -> None:
    w = tt.randn((300, 300), seed=9)
    fn = tt.compile(lambda x: tt.softmax(tt.relu(x * 2.0 + 1.0)) - x.mean() + w.sum(axis=0)[:5])
    xs = [tt.randn((3, 5), seed=i) for i in range(7)]
    stack_always(fn, 7, xs[0])
    assert fn.program(xs[0]).why_not_stacked(7) == ""
    for got, x in zip(fn.run_many(xs), xs, strict=True):
        np.testing.assert_array_equal(got.numpy(), fn(x).numpy())


@pytest.mark.parametrize("stacked", [False, True])
def test_many_inputs_of_several_arguments_and_results(stacked: bool) -> None:
    fn = tt.compile(lambda x, y: (x @ y, x.sum(axis=0)))
    pairs = [(tt.randn((3, 5), seed=i), tt.randn((5, 2), seed=i + 50)) for i in range(4)]
    if stacked:
        stack_always(fn, 4, *pairs[0])
    for (a, b), (x, y) in zip(fn.run_many(pairs), pairs, strict=True):
        np.testing.assert_allclose(a.numpy(), (x @ y).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(b.numpy(), x.sum(axis=0).numpy())


def test_many_inputs_of_nested_arguments_and_results() -> None:
    fn = tt.compile(lambda d, k: {"sum": d["a"] + d["b"][0] * k, "both": [d["a"], d["b"][0]]})
    inputs = [({"a": tt.full((3,), float(i)), "b": (tt.ones(3),)}, 2) for i in range(5)]
    stack_always(fn, 5, *inputs[0])
    for result, (d, _) in zip(fn.run_many(inputs), inputs, strict=True):
        assert result["sum"].tolist() == (d["a"] + 2.0).tolist()
        assert result["both"][0].tolist() == d["a"].tolist()


def test_many_inputs_that_differ_run_one_by_one_even_where_stacking_pays() -> None:
    fn = tt.compile(lambda x: x * 2)
    first = [tt.ones(3), tt.ones(3)]
    stack_always(fn, 2, first[0])
    assert len({id(x.storage) for x in fn.run_many(first)}) == 1  # parts of one block
    for other in (tt.ones(4), tt.ones((1, 3)), tt.ones(3, dtype="f16"), tt.ones(3, dtype="i32"), np.ones(3, "f4")):
        results = fn.run_many([tt.ones(3), other])
        assert [r.numpy().dtype for r in results] == [np.float32, np.asarray(other).dtype]
        assert [r.tolist() for r in results] == [[2.0] * 3, (np.asarray(other) * 2).tolist()]
    assert fn.run_many(x for x in first)[1].tolist() == [2.0] * 3
    assert fn.run_many([tt.arange(6.0)[::-2], tt.ones(3)])[0].tolist() == [10.0, 6.0, 2.0]


RUNS = 90  # and no time is taken again


class Clock:
    """Inputs whose two ways take fixed times, by a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loop_s: float, stacked_s: float, n: int) -> None:
        self.now, self.loop_s, self.stacked_s, self.n = 0.0, loop_s, stacked_s, n
        self.runs: list[str] = []
        monkeypatch.setattr("tritium.compiler.program.perf_counter", lambda: self.now)
        self.program = program(lambda x: x + 1.0, tt.zeros(2))
        self.program.compile_s = 0.01

    def calls(self) -> Any:
        self.runs.append("loop")
        for _ in range(self.n):
            self.now += self.loop_s / self.n
            yield 1

    def stack(self) -> Any:
        self.runs.append("stacked")
        self.now += self.stacked_s
        return [tt.zeros((self.n, 2))]

    def run(self) -> None:
        self.program.stacking(self.n).run(Inputs(self.calls, self.stack))


@pytest.mark.parametrize(
    ("loop_s", "stacked_s", "is_stacked"),
    [
        (1.0, 0.1, True),
        (1.0, 0.8, True),
        (1.0, 0.95, False),
        (1.0, 9.0, False),
        (4e-3, 1e-4, True),
        (4e-3, 1e-2, False),
    ],
)
def test_many_inputs_are_stacked_only_where_it_was_faster(
    monkeypatch: pytest.MonkeyPatch, loop_s: float, stacked_s: float, is_stacked: bool
) -> None:
    clock = Clock(monkeypatch, loop_s, stacked_s, 32)
    for _ in range(RUNS):
        clock.run()
    stacking = clock.program.stacking(32)
    assert not stacking.is_open
    assert (stacking.reason == "") is is_stacked
    assert clock.runs[-40:] == ["stacked" if is_stacked else "loop"] * 40
    lost = {"stacked": stacked_s, "loop": loop_s}["loop" if is_stacked else "stacked"] * (TRIALS + 1)
    best = RUNS * min(loop_s, stacked_s / GAIN)
    assert clock.now <= best + lost + 2 * clock.program.compile_s + loop_s


def test_a_choice_that_was_disturbed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1.0, 5.0, 32)
    for _ in range(20):
        clock.run()
    assert "longer than it saves" in clock.program.stacking(32).reason
    clock.stacked_s = 0.1
    for _ in range(600):
        clock.run()
    assert clock.runs[-50:] == ["stacked"] * 50
    assert clock.runs[600:].count("loop") < 10
    clock.stacked_s = 3.0
    for _ in range(600):
        clock.run()
    assert clock.runs[-50:] == ["loop"] * 50


def test_inputs_that_run_for_a_short_time_wait_for_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1e-5, 1e-9, 4)
    for _ in range(1000):
        clock.run()
    assert set(clock.runs) == {"loop"}
    assert clock.program.stacking(4).many is None


def test_why_inputs_are_not_stacked() -> None:
    x = tt.ones(4)
    assert "donated" in tt.compile(lambda x: x.add_(1.0), donate=0).program(x).why_not_stacked()
    p = program(lambda x: x + 1.0, x)
    assert p.why_not_stacked(1) == "there is one input"
    reason = p.why_not_stacked(3)
    assert reason == p.why_not_stacked(3)
    assert reason == "" or "longer than it saves" in reason


def test_a_stack_that_memory_does_not_hold_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.compiler.program.free_memory", lambda: 1 << 20)
    p = program(lambda x: x + 1.0, tt.zeros(1 << 18))
    assert "of 1.0 MB that are free" in p.why_not_stacked(1000)


def test_a_program_that_runs_node_by_node_can_be_stacked() -> None:
    fn = tt.compile(lambda x: tt.argsort(tt.sort(x)))
    xs = [tt.randn((8,), seed=i) for i in range(70)]
    stack_always(fn, 70, xs[0])
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


# ---- names


class Layer:
    """A layer with a weight."""

    def __init__(self, seed: int) -> None:
        self.weight = tt.randn((8, 8), seed=seed)

    def __call__(self, x: Any) -> Any:
        return x @ self.weight


class Pair:
    """Two layers, one of them in a list."""

    def __init__(self) -> None:
        self.first, self.rest = Layer(1), [Layer(2)]

    @tt.compile
    def run(self, x: Any, options: dict[str, Any], rate: float = 0.5) -> Any:
        with tt.scope("outer"), tt.scope("inner"):
            y = self.first(x)
        return self.rest[0](y) * options["gain"] - (1 - rate)


def test_arguments_weights_layers_and_scopes_keep_their_names() -> None:
    pair, x = Pair(), tt.randn((3, 8), seed=0)
    for rate in (0.1, 0.2, 0.3, 0.4, 0.5):
        pair.run(x, {"gain": x}, rate)
    program = pair.run.program(x, {"gain": x}, 0.5)
    names = program.source.names
    assert [names[n] for n in program.source.inputs] == ["x", "options['gain']", "1 - rate"]
    assert [names[n] for n in program.source.captured] == ["self.first.weight", "self.rest[0].weight"]
    products = [names[n] for n in program.source.calls() if n.op is tt.ops.matmul]
    assert products == ["outer/inner/self.first", "self.rest[0]"]
    for text in (str(program.graph), program.graph.svg()):
        assert "outer/inner/self.first" in text
        assert "self.rest[0].weight" in text
    assert "self.rest[0]" in str(pair.run.generate_execution_plan(x, {"gain": x}, 0.5))
    assert str(parse(str(program.graph), list(program.graph.captured.values()))) == program.graph.text(
        {}
    )  # names are comments


def test_free_variables_and_globals_name_captured_tensors() -> None:
    gain, layer = tt.ones(8), Layer(3)

    def helper(x: Any) -> Any:
        return x * gain + X[:1, :8]

    program = tt.compile(lambda x: layer(helper(x))).program(tt.ones((2, 8)))
    assert {"gain", "layer.weight"} <= set(program.source.names.values())


def test_names_do_not_keep_a_program_or_its_tensors_alive() -> None:
    def make() -> weakref.ref[Any]:
        pair = Pair()
        pair.run(tt.ones((2, 8)), {"gain": tt.ones(8)})
        return weakref.ref(pair)

    gc.collect()
    gc.disable()
    try:
        assert make()() is None
    finally:
        gc.enable()


def test_profiles_tell_layers_of_one_kernel_apart() -> None:
    layers = [Layer(seed) for seed in range(3)]
    run = tt.compile(lambda x: layers[2](layers[1](layers[0](x))))
    x = tt.ones((2, 8))
    run(x)
    with tt.profile() as profile:
        run(x)
    details = {row.detail.partition(":")[0] for row in profile.ops(by="specs")}
    if run.program(x).native is not None:
        assert details == {"layers[0]", "layers[1]", "layers[2]"}
