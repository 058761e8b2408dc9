"""Trace and Graph: the same calls written down. What is equal is one node, what is not needed is not there."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import ops
from tritium.buffer import native
from tritium.errors import ArgumentError, ShapeError, TraceError
from tritium.graph.graph import Node, plain_order
from tritium.op import interpreter

V = tt.Spec((3,))
M = tt.Spec((2, 3))


def names(graph: tt.Graph) -> list[str]:
    return [n.op.name for n in graph.order()]


def vector(*values: float) -> tt.Tensor:
    return tt.tensor([float(v) for v in values])


def test_a_graph_prints_line_by_line() -> None:
    graph = tt.trace(lambda x, y: tt.softmax(x @ y.T * 2.0, axis=0), M, M)
    assert str(graph) == (
        "%0: f32[2,3] = given(index=0, spec=f32[2,3])\n"
        "%1: f32[2,3] = given(index=1, spec=f32[2,3])\n"
        "%2: f32[3,2] = matrix_transpose(%1)\n"
        "%3: f32[2,2] = matmul(%0, %2, algorithm='blas')\n"
        "%4: f32[] = const(value=2.0, dtype=f32)\n"
        "%5: f32[2,2] = multiply(%3, %4)\n"
        "%6: f32[2,2] = softmax(%5, axis=0)\n"
        "return %6"
    )


def test_missing_inputs_and_several_outputs_print() -> None:
    text = str(tt.trace(lambda x: tt.divmod(tt.clip(x, None, 2.0), 3.0), V))
    assert "clip(%0, none, %1)" in text
    assert "(f32[3], f32[3]) = divmod(" in text
    assert "item(" in text
    assert text.splitlines()[-1].count("%") == 2


def test_a_cast_is_a_node() -> None:
    graph = tt.trace(lambda x, y: x + y, V, tt.Spec((3,), tt.i8))
    assert names(graph) == ["given", "given", "astype", "add"]


# ---- equal calls are one node


def test_a_repeated_expression_is_one_node() -> None:
    graph = tt.trace(lambda x: tt.exp(x + 1.0) * tt.exp(x + 1.0), V)
    assert names(graph) == ["given", "const", "add", "exp", "multiply"]


def test_order_of_operands_matters() -> None:
    graph = tt.trace(lambda a, b: (a - b) * (b - a), V, V)
    assert names(graph).count("subtract") == 2
    assert graph(vector(1, 2, 3), vector(3, 2, 1)).tolist() == [-4, 0, -4]


def constants(fn: Callable[..., Any], spec: tt.Spec = V) -> list[Any]:
    return [dict(n.attrs)["value"] for n in tt.trace(fn, spec).order() if n.op.name == "const"]


def test_zeros_of_two_signs_stay_apart() -> None:
    graph = tt.trace(lambda x: tt.stack([tt.copysign(x, 0.0), tt.copysign(x, -0.0)]), V)
    assert graph(vector(1, 2, 3)).tolist() == [[1, 2, 3], [-1, -2, -3]]


def test_one_and_one_point_zero_and_true_stay_apart() -> None:
    kinds = {type(v) for v in constants(lambda x: x + 1 + (x + 1.0) + tt.where(x > 0, True, x))}
    assert kinds == {int, float, bool}


def test_attributes_of_two_types_stay_apart() -> None:
    graph = tt.trace(lambda x: tt.var(x, correction=0) + tt.var(x, correction=0.0) + tt.var(x, correction=1), V)
    assert names(graph).count("var") == 3


def test_random_numbers_of_one_seed_are_one_node() -> None:
    graph = tt.trace(lambda x: x + tt.rand(3, seed=1) + tt.rand(3, seed=1) + tt.rand(3, seed=2), V)
    assert names(graph).count("random_uniform") == 2


def test_what_no_output_needs_is_not_there() -> None:
    def fn(x: Any, y: Any) -> Any:
        tt.exp(y) @ tt.sin(y)
        return x * 2.0

    assert names(tt.trace(fn, V, V)) == ["given", "const", "multiply"]


# ---- captured tensors


def test_a_weight_is_one_input_however_often_it_is_used() -> None:
    w = vector(1, 2, 3)
    graph = tt.trace(lambda x: x * w + w, V)
    assert [t is w for t in graph.captured.values()] == [True]
    assert graph(vector(1, 1, 1)).tolist() == [2, 4, 6]


def test_equal_weights_are_two_inputs() -> None:
    a, b = vector(1, 2, 3), vector(1, 2, 3)
    assert len(tt.trace(lambda x: x * a + b, V).captured) == 2


def test_a_captured_weight_is_read_when_the_graph_runs() -> None:
    w = vector(1, 2, 3)
    graph = tt.trace(lambda x: x + w, V)
    w *= 10
    assert graph(vector(0, 0, 0)).tolist() == [10, 20, 30]


def test_a_weight_made_and_dropped_while_tracing_stays_itself() -> None:
    def fn(x: Any) -> Any:
        for i in range(20):
            x = x + np.full(3, i, np.float32)
        return x

    assert tt.trace(fn, V)(vector(0, 0, 0)).tolist() == [190, 190, 190]


def test_numpy_numbers_and_arrays_are_operands_as_in_eager() -> None:
    def fn(x: Any) -> Any:
        return x * np.float64(2) + np.arange(3, dtype=np.float32) + np.int64(1)

    x = vector(1, 2, 3)
    got = tt.trace(fn, V)(x)
    assert got.dtype is fn(x).dtype
    assert got.tolist() == fn(x).tolist() == [3, 6, 9]


# ---- several outputs, and arguments


def test_a_function_may_return_several_tensors() -> None:
    a, b = tt.trace(lambda x: (x + 1.0, x * 2.0), V)(vector(1, 2, 3))
    assert (a.tolist(), b.tolist()) == ([2, 3, 4], [2, 4, 6])


def test_a_tuple_of_one_stays_a_tuple() -> None:
    got = tt.trace(lambda x: (x + 1.0,), V)(vector(1, 2, 3))
    assert isinstance(got, tuple)
    assert got[0].tolist() == [2, 3, 4]


def test_divmod_is_one_node_read_twice() -> None:
    graph = tt.trace(lambda x: tt.divmod(x, 2.0), V)
    assert names(graph).count("divmod") == 1
    assert names(graph).count("item") == 2
    q, r = graph(vector(5, -5, 4))
    assert (q.tolist(), r.tolist()) == ([2, -3, 2], [1, 1, 0])


def test_a_graph_may_take_no_argument() -> None:
    assert tt.trace(lambda: tt.arange(3) + tt.ones(3, dtype="i64"))().tolist() == [1, 2, 3]


def test_a_graph_may_return_its_argument() -> None:
    x = vector(1, 2, 3)
    assert tt.trace(lambda x: x, V)(x).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "takes 1 tensors, 0 were given"),
        ((tt.ones(4),), r"Argument 0 must be f32\[3\], given f32\[4\]"),
        ((tt.ones(3, dtype="f64"),), r"f32\[3\], given f64\[3\]"),
    ],
)
def test_arguments_of_another_kind_are_refused(args: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.trace(lambda x: x + 1.0, V)(*args)


def test_a_tensor_stands_for_its_spec() -> None:
    assert tt.trace(lambda x: x, tt.ones(3)).inputs[0].spec == V


def test_a_graph_reads_any_layout() -> None:
    graph = tt.trace(lambda x: x.reshape(6) * 2.0, M)
    x = tt.arange(6, dtype="f32").reshape(3, 2).T
    assert graph(x).tolist() == [0, 4, 8, 2, 6, 10]


# ---- writes


def both(fn: Callable[..., Any], *args: tt.Tensor) -> Any:
    """What a graph of fn gives, checked against eager, which must leave its arguments alone."""
    eager = fn(*args)
    traced = tt.trace(fn, *args)(*args)
    for e, t in zip(*(r if isinstance(r, tuple) else (r,) for r in (eager, traced)), strict=True):
        assert e.spec == t.spec
        np.testing.assert_array_equal(e.numpy(), t.numpy())
    return traced


def test_a_view_taken_before_a_write_sees_it() -> None:
    def fn(x: Any) -> Any:
        y = x.clone()
        view = y[0]
        y += 1.0
        return view * 2.0

    assert both(fn, tt.arange(6, dtype="f32").reshape(2, 3)).tolist() == [2, 4, 6]


def test_a_write_through_a_view_is_seen_by_base_and_other_views() -> None:
    def fn(x: Any) -> Any:
        y = x.clone()
        rows, columns = y[::-1], y.T
        columns[1] += 10.0
        rows[0, 2] = -1.0
        return y, rows, columns.reshape(-1)

    base, _, _ = both(fn, tt.arange(6, dtype="f32").reshape(2, 3))
    assert base.tolist() == [[0, 11, 2], [3, 14, -1]]


def test_a_clone_is_independent() -> None:
    def fn(x: Any) -> Any:
        a = x + 0.0
        b = a.clone()
        a *= 3.0
        return a - b

    assert both(fn, vector(1, 2, 3)).tolist() == [2, 4, 6]


def test_the_transpose_added_in_place() -> None:
    def fn(x: Any) -> Any:
        y = x.clone()
        y += y.T
        return y

    assert both(fn, tt.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[2, 5], [5, 8]]


def test_out_masks_and_index_tensors_are_writes() -> None:
    def fn(x: Any) -> Any:
        y = tt.zeros(3)
        tt.exp(x, out=y)
        y[x > 1.5] = 0.0
        y[tt.tensor([0])] = 9.0
        q, r = tt.zeros(3), tt.zeros(3)
        tt.divmod(x, 2.0, out=(q, r))
        return y, q, r

    both(fn, vector(1, 2, 3))


def test_a_write_keeps_the_dtype_of_what_is_written() -> None:
    def fn(x: Any) -> Any:
        y = tt.zeros(3, dtype="f16")
        y += x
        return y

    assert both(fn, vector(1, 2, 3)).dtype is tt.f16


def test_a_loop_of_writes() -> None:
    def fn(x: Any) -> Any:
        y = tt.zeros((4, 3))
        for i in range(4):
            y[i] = x * float(i)
            y[:, 1] += 1.0
        return y.sum(axis=0)

    both(fn, vector(1, 2, 3))


# ---- what cannot be written down


def into(x: Any) -> Any:
    x += 1.0
    return x


def into_view(x: Any) -> Any:
    x[0] = 1.0
    return x


OUTSIDE = tt.ones(3)


def into_outside(x: Any) -> Any:
    OUTSIDE.add_(x)
    return x


def into_view_of_outside(x: Any) -> Any:
    OUTSIDE[1:].zero_()
    return x


REFUSED: list[tuple[Any, str]] = [
    (lambda x: x if x.sum() > 0 else -x, r"The value of a traced tensor bool\[\].*use where"),
    (lambda x: x * int(x[0]), r"The value of a traced tensor f32\[\]"),
    (lambda x: x * float(x.max()), "traced tensor"),
    (lambda x: x.numpy(), r"numpy\(\) of a traced tensor f32\[3\]"),
    (lambda x: np.asarray(x), "traced tensor"),
    (lambda x: x.tolist(), "traced tensor"),
    (lambda x: x.data_ptr, "data_ptr of a traced tensor"),
    (lambda x: x.device, "device of a traced tensor"),
    (
        lambda x: x[x > 0],
        r"masked of f32\[3\]: the size of the result depends on values.*Use where.*outside the traced function",
    ),
    (tt.nonzero, "nonzero.*depends on values"),
    (
        into,
        r"add: the traced function writes to an argument \(f32\[3\]\)\. Write to a copy: y = x\.clone\(\)\. Or let it be written: compile",
    ),
    (into_view, "writes to an argument"),
    (into_outside, "writes to a tensor from outside"),
    (into_view_of_outside, "writes to a tensor that was captured"),
    (lambda x: x + tt.rand(3), r"rand without a seed cannot be written down.*Pass seed"),
    (lambda x: x + tt.randn(3), "randn without a seed"),
    (lambda x: x + tt.randint(0, 2, 3), "randint without a seed"),
    (lambda x: [x], "returned list; return a tensor or a tuple"),
    (lambda x: None, "returned NoneType"),
]


@pytest.mark.parametrize(("fn", "says"), REFUSED)
def test_what_needs_values_is_refused_with_a_remedy(fn: Any, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        tt.trace(fn, V)
    assert interpreter.get() is None
    assert (tt.ones(2) + 1).tolist() == [2, 2]


def test_nothing_outside_was_written() -> None:
    assert OUTSIDE.tolist() == [1, 1, 1]


def test_a_shape_error_is_the_same_as_in_eager() -> None:
    with pytest.raises(ShapeError) as traced:
        tt.trace(lambda x: x + tt.ones(4), V)
    with pytest.raises(ShapeError) as eager:
        tt.ones(3) + tt.ones(4)
    assert str(traced.value) == str(eager.value)


def test_a_number_that_does_not_fit_is_refused_at_its_line() -> None:
    with pytest.raises(OverflowError, match="300 is outside i8"):
        tt.trace(lambda x: x + 300, tt.Spec((3,), tt.i8))


def test_trace_takes_specs() -> None:
    with pytest.raises(ArgumentError, match=r"\(3,\) is not a Spec.*Spec\(\(2, 3\), f32\)"):
        tt.trace(lambda x: x, (3,))  # type: ignore[arg-type]


# ---- size


def test_five_thousand_nodes_deep() -> None:
    def fn(x: Any) -> Any:
        for i in range(5000):
            x = x + float(i % 7)
        return x

    graph = tt.trace(fn, V)
    assert len(graph.order()) == 5000 + 8
    assert graph(vector(0, 0, 0)).tolist() == [sum(i % 7 for i in range(5000))] * 3
    assert str(graph).count("\n") == 5008
    assert repr(graph.outputs[0]) == "<node add: f32[3]>"


def test_a_shared_subexpression_is_walked_once() -> None:
    def fn(x: Any) -> Any:
        for _ in range(200):
            x = x + x  # a tree of 2^200 leaves, a graph of 201 nodes
        return x

    assert len(tt.trace(fn, V).order()) == 201


# ---- traced equals eager equals NumPy


LEAVES = st.sampled_from(("x", "y", "w")) | st.integers(-3, 3) | st.sampled_from((0.5, -0.0, 2.0, True))
UNARY: list[tuple[Any, Any]] = [
    (tt.negative, np.negative),
    (tt.abs, np.abs),
    (tt.square, np.square),
    (tt.floor, np.floor),
]
BINARY: list[tuple[Any, Any]] = [
    (operator.add, operator.add),
    (operator.sub, operator.sub),
    (operator.mul, operator.mul),
    (tt.maximum, np.maximum),
    (tt.minimum, np.minimum),
]
SHAPING: list[tuple[Any, Any]] = [
    (lambda t: t.flip(axis=0), lambda m: m[::-1]),
    (lambda t: t[..., ::2], lambda m: m[..., ::2]),
    (lambda t: t.mT.mT, lambda m: m),
    (lambda t: t.reshape(-1)[:3], lambda m: m.reshape(-1)[:3]),
    (lambda t: t.sum(axis=0), lambda m: m.sum(axis=0)),
    (lambda t: tt.concat([t, t]).max(axis=0), lambda m: m.max(axis=0)),
    (lambda t: t.expand_dims(axis=0), lambda m: m[None]),
]
trees = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.sampled_from(UNARY), inner)
        | st.tuples(st.sampled_from(BINARY), inner, inner)
        | st.tuples(st.sampled_from(SHAPING), inner)
    ),
    max_leaves=12,
)


def evaluate(tree: Any, env: dict[str, Any], side: int) -> Any:
    if isinstance(tree, str):
        return env[tree]
    if not isinstance(tree, tuple):
        return tree
    act, *args = tree
    values = [evaluate(a, env, side) for a in args]
    if not any(hasattr(v, "shape") for v in values):
        values[0] = env["x"] * 0.0 + values[0]
    if act in SHAPING and getattr(values[0], "ndim", 0) < 2:
        return values[0]
    try:
        np.broadcast_shapes(*(getattr(v, "shape", ()) for v in values))
    except ValueError:
        return values[0]
    return act[side](*values)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_random_expressions_are_the_same_traced_eager_and_in_numpy(tree: Any) -> None:
    rng = np.random.default_rng(0)
    data = {n: rng.integers(-4, 4, (2, 3)).astype(np.float32) for n in "xyw"}
    w = tt.tensor(data["w"])

    def fn(x: Any, y: Any) -> Any:
        got = evaluate(tree, {"x": x, "y": y, "w": w}, 0)
        return got + x[:1, :1] * 0.0 if isinstance(got, tt.Tensor) else x * 0.0 + got

    x, y = tt.tensor(data["x"]), tt.tensor(data["y"])
    eager, graph = fn(x, y), tt.trace(fn, M, M)
    traced = graph(x, y)
    want = evaluate(tree, data, 1)
    want = want + data["x"][:1, :1] * 0 if isinstance(want, np.ndarray) else data["x"] * 0 + want
    np.testing.assert_array_equal(traced.numpy(), eager.numpy())
    np.testing.assert_allclose(eager.numpy(), want, rtol=1e-6)
    assert traced.spec == eager.spec == graph.outputs[0].spec
    assert len({(n.op, n.inputs, repr(n.attrs)) for n in graph.order()}) == len(graph.order())


def test_results_are_the_callers_own() -> None:
    x = tt.ones(3)
    copy = tt.trace(lambda a: a.clone(), x)(x)
    copy += 1
    assert x.tolist() == [1, 1, 1]
    first, second = tt.trace(lambda a: (a + 1, a + 1), x)(x)
    first += 1
    assert second.tolist() == [2, 2, 2]


def test_a_tensor_of_another_trace_is_refused() -> None:
    x = tt.ones(3)

    def outer(a: tt.Tensor) -> tt.Tensor:
        return tt.trace(lambda b: b * 2 + a, x.spec)(x)

    with pytest.raises(TraceError, match="of another trace"):
        tt.trace(outer, x.spec)


def test_specs_may_name_their_dtype() -> None:
    assert tt.trace(lambda a: a + 1, tt.Spec((2,), "f16"))(tt.ones(2, "f16")).dtype is tt.f16


def test_rows_pickle_by_name() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(tt.add)) is tt.add


# ---- the order of nodes


@st.composite
def node_graphs(draw: st.DrawFn) -> tuple[tuple[Node, ...], frozenset[Node]]:
    nodes: list[Node] = []
    for _ in range(draw(st.integers(0, 25))):
        inputs = draw(st.lists(st.sampled_from([None, *nodes]), max_size=4))
        nodes.append(Node(ops.add, tuple(inputs), (), V))
    some = st.lists(st.sampled_from(nodes), max_size=4) if nodes else st.just([])
    return tuple(draw(some)), frozenset(draw(some))


@settings(max_examples=60, deadline=None)
@given(node_graphs())
def test_native_code_orders_nodes_as_python_does(graph: tuple[tuple[Node, ...], frozenset[Node]]) -> None:
    roots, known = graph
    order = plain_order(roots, known)
    place = {n: i for i, n in enumerate(order)}
    assert len(place) == len(order)
    assert all(i is None or place[i] < place[n] for n in order if n not in known for i in n.inputs)
    assert tt.Graph((), roots, {}, False).order(known) == order


@pytest.mark.skipif(native is None, reason="there is no native library")
def test_native_code_refuses_what_are_no_nodes() -> None:
    with pytest.raises(TypeError, match="a tuple of nodes and a set"):
        native.order_nodes([], frozenset())
    with pytest.raises(AttributeError):
        native.order_nodes((1,), frozenset())
    with pytest.raises(TypeError, match="must be a tuple"):
        native.order_nodes((Node(ops.add, [], (), V),), frozenset())  # type: ignore[arg-type]


def test_the_nodes_of_a_graph_are_those_of_its_roots() -> None:
    graph = tt.trace(lambda x: (tt.exp(x), tt.sin(x)), V)
    order = graph.order()
    order.clear()  # the caller's own
    assert names(graph) == ["given", "exp", "sin"]
    assert names(graph._replace(outputs=graph.outputs[1:])) == ["given", "sin"]
    assert names(graph._replace(single=False)) == ["given", "exp", "sin"]
    with pytest.raises(TypeError, match="Graph has no roots"):
        graph._replace(roots=())


def test_a_trace_ends_without_the_garbage_collector() -> None:
    traces: list[Any] = []
    weight = vector(1, 2, 3)

    def fn(x: tt.Tensor) -> tt.Tensor:
        traces.append(weakref.ref(interpreter.get()))  # type: ignore[arg-type]
        return x * weight + weight

    gc.disable()
    try:
        graph = tt.trace(fn, V)
        assert traces[0]() is None
    finally:
        gc.enable()
    assert graph(vector(1, 1, 1)).tolist() == [2, 4, 6]
