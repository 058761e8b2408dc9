"""GraphBuilder: graphs by name, with errors that name the nodes, and NamedGraph: a dict in, a dict out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from null import Null
from tritium.compiler.builder import GraphBuilder, NamedGraph, NamedNode
from tritium.errors import ArgumentError, BoundsError, DeviceError, DTypeError, ShapeError, TraceError, TritiumError
from tritium.fragment import Fragment, Step
from tritium.graph import text as graph_text
from tritium.op import OPS, Kind, Spec


def rand(*shape: int, seed: int = 0) -> tt.Tensor:
    return tt.randn(shape, seed=seed)


def linear() -> tuple[GraphBuilder, NamedNode]:
    """y = relu(x @ w + bias)"""
    b = GraphBuilder()
    x = b.input("x", (4, 8), tt.f32, "cpu")
    w = b.input("w", (8, 3))
    h = b.matmul(x, w, name="h")
    return b, b.relu(b.add(h, tt.ones(3)), name="y")


# ---- building and running


def test_a_dict_goes_in_and_a_dict_comes_out() -> None:
    b, y = linear()
    b.output("y", y)
    x, w = rand(4, 8), rand(8, 3, seed=1)
    found = b.build().execute({"x": x, "w": w})
    assert list(found) == ["y"]
    np.testing.assert_array_equal(found["y"].numpy(), tt.relu(x @ w + tt.ones(3)).numpy())


def test_an_output_takes_the_name_of_its_node() -> None:
    b, y = linear()
    b.output(y)
    assert b.build().outputs == ("y",)


def test_several_outputs_and_an_input_as_an_output() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))
    b.output("twice", b.multiply(x, 2.0))
    b.output(x)
    found = b.build().execute({"x": tt.tensor([1.0, 2.0, 3.0])})
    assert {k: v.tolist() for k, v in found.items()} == {"twice": [2, 4, 6], "x": [1, 2, 3]}


def test_every_row_that_is_not_the_graphs_own_is_a_method() -> None:
    b = GraphBuilder()
    for name in OPS:
        assert hasattr(b, name) is (name not in ("const", "given", "item"))
    assert {"matmul", "softmax", "input", "build"} <= set(dir(b))
    assert b.matmul.__doc__ == OPS["matmul"].doc


@pytest.mark.parametrize(
    "op", [o for o in OPS.values() if o.kind is not Kind.DYNAMIC and o.samples], ids=lambda o: o.name
)
def test_a_row_gives_the_same_spec_as_the_table_says(op: Any) -> None:
    for s in op.samples:
        b = GraphBuilder()
        xs = [None if d is None else b.input(f"x{i}", d.spec.shape, d.spec.dtype) for i, d in enumerate(s.inputs)]
        said = op.decide(
            tuple(None if d is None else d.spec for d in s.inputs), op.bind(tuple(xs), dict(s.attrs))[1]
        ).out
        found = getattr(b, op.name)(*xs, **dict(s.attrs))
        assert (found.spec if isinstance(found, NamedNode) else tuple(v.spec for v in found)) == said


def test_operands_by_name_in_lists_and_left_out() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    y = b.concat([b.clip(x, max=1.0), b.softmax(x, axis=0)], axis=1)
    b.output("y", y)
    data = rand(2, 3)
    want = tt.concat([tt.clip(data, None, 1.0), tt.softmax(data, axis=0)], axis=1)
    np.testing.assert_array_equal(b.build().execute({"x": data})["y"].numpy(), want.numpy())


def test_arrays_are_taken_as_operands_and_as_inputs() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))
    b.output("y", b.add(x, np.arange(3, dtype=np.float32)))
    assert b.build().execute({"x": np.ones(3, np.float32)})["y"].tolist() == [1, 2, 3]


def test_a_view_is_a_node() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    t = b.matrix_transpose(x, name="t")
    b.output("y", b.reshape(t, (6,)))
    assert "t" in b.build().topological_sort()


def test_rows_of_several_results_give_as_many_nodes() -> None:
    b = GraphBuilder()
    q, r = b.divmod(b.input("x", (3,)), 2.0, name="qr")
    b.output(q)
    b.output(r)
    g = b.build()
    assert g.outputs == ("qr.0", "qr.1")
    assert g.topological_sort() == ["x", "const_1", "qr", "qr.0", "qr.1"]
    found = g.execute({"x": tt.tensor([5.0, -5.0, 4.0])})
    assert found["qr.1"].tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("scheme", "kinds"),
    [("activations", "i8 f32 i32"), ("ternary", "tern2 f32"), ("int8", "i8 f32 i32"), ("int4", "i4 f32")],
)
def test_quantize_goes_by_scheme(scheme: str, kinds: str) -> None:
    b = GraphBuilder()
    parts = b.quantize(b.input("w", (4, 64)), scheme)
    assert " ".join(str(p.dtype) for p in parts) == kinds


def test_quantize_takes_a_scale() -> None:
    data = tt.randn((4, 6), seed=1)
    b = GraphBuilder()
    x, scale = b.input("x", (4, 6), "f32", "cpu"), b.input("scale", ())
    q = b.quantize(x, 0.1, "cpu", name="q")
    b.output("q", q)
    b.output("restored", b.dequantize(q, 0.1))
    b.output("with zero", b.quantize(x, 0.1, 5))
    b.output("by node", b.quantize(x, scale))
    b.output("by tensor", b.quantize(x, tt.full(4, 0.1)))
    graph = b.build()
    for run in (graph, graph.compile(verify=True)):
        got = run.execute({"x": data, "scale": tt.tensor(0.1)})
        want = tt.quantize(data, 0.1).numpy()
        for name in ("q", "by node", "by tensor"):
            np.testing.assert_array_equal(got[name].numpy(), want)
        np.testing.assert_array_equal(got["with zero"].numpy(), want + 5)
        np.testing.assert_array_equal(got["restored"].numpy(), want * np.float32(0.1))


@pytest.mark.parametrize("scale", [0, -0.1, float("nan"), float("inf"), True, None, [0.1]], ids=str)
def test_a_wrong_scale_is_refused_when_the_node_is_made(scale: Any) -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 6))
    with pytest.raises(ArgumentError, match=r"GraphBuilder.quantize: a sc"):
        b.quantize(x, scale)
    with pytest.raises(ArgumentError, match="computes its scale"):
        b.quantize(x, "int8", 5)


def test_quantize_and_dequantize_meet() -> None:
    b = GraphBuilder()
    w = b.input("w", (4, 64))
    b.output("w2", b.dequantize(*b.quantize(w, "ternary", axis=0)))
    data = rand(4, 64)
    got = b.build().execute({"w": data})["w2"]
    np.testing.assert_array_equal(got.numpy(), tt.quant.ternary(data, axis=0).dequantize().numpy())


def test_a_bitlinear_layer_and_its_weights_give_the_same() -> None:
    layer = tt.nn.BitLinear.from_float(rand(8, 16))
    b = GraphBuilder()
    x = b.input("x", (2, 16))
    b.output("a", b.bitlinear(x, layer, name="fc"))
    b.output("b", b.bitlinear(x, (layer.weight.data, layer.weight.scale)))
    g, data = b.build(), rand(2, 16, seed=3)
    found = g.execute({"x": data})
    np.testing.assert_array_equal(found["a"].numpy(), layer(data).numpy())
    np.testing.assert_array_equal(found["b"].numpy(), layer(data).numpy())
    assert "fc" in g.topological_sort()
    with pytest.raises(ArgumentError, match=r"takes a layer, or a pair \(packed weights, scale\), given int"):
        b.bitlinear(x, 3)


def test_call_writes_a_function_into_the_graph() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))

    def spread(t: Any, k: float) -> Any:
        c = t - t.mean()
        return c * k, c.abs().max()

    scaled, peak = b.call(spread, x, 2.0, name="s")
    b.output("scaled", scaled)
    b.output("peak", peak)
    assert (scaled.name, peak.name) == ("s.0", "s.1")
    found = b.build().execute({"x": tt.tensor([1.0, 2.0, 6.0])})
    assert found["scaled"].tolist() == [-4, -2, 6]
    assert found["peak"].tolist() == 3


def test_a_fused_row_is_a_method_too() -> None:
    m = Spec((2, 3))
    body = Fragment((m, m), (Step(OPS["add"], (0, 1), (), m), Step(OPS["relu"], (2,), (), m)), (3,))
    b = GraphBuilder()
    b.output("y", b.fused(b.input("x", (2, 3)), tt.ones((2, 3)), body=body))
    assert b.build().execute({"x": tt.full((2, 3), -3.0)})["y"].tolist() == [[0] * 3] * 2


def test_a_builder_can_go_on_after_it_has_built() -> None:
    b, y = linear()
    b.output("y", y)
    first = b.build()
    b.output("z", b.exp(y))
    assert first.outputs == ("y",)
    assert b.build().outputs == ("y", "z")


# ---- names


def test_names_are_made_by_row_and_number() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))
    b.exp(x, name="exp_2")
    assert [b.exp(x).name, b.exp(b.exp(x)).name, b.abs(x).name] == ["exp_1", "exp_4", "abs_1"]


def test_every_node_of_the_graph_has_a_name_inputs_first() -> None:
    b, y = linear()
    b.output("y", b.multiply(b.astype(y, "f64"), 0.5))
    g = b.build()
    names = g.topological_sort()
    assert names[:2] == ["x", "w"]
    assert len(names) == len(set(names)) == len(g.graph.order())
    assert names == b.build().topological_sort()
    place = {n: i for i, n in enumerate(g.names)}
    assert all(place[i] < place[n] for n in g.names for i in n.inputs if i is not None)


def test_equal_calls_are_one_node_under_the_name_that_was_given() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,))
    b.exp(x)
    b.output("y", b.exp(x, name="e"))
    assert b.build().topological_sort() == ["x", "e"]


def test_what_no_output_needs_is_not_built_but_inputs_stay() -> None:
    b = GraphBuilder()
    x, unused = b.input("x", (3,)), b.input("unused", (2,))
    b.exp(unused, name="lost")
    b.add(x, tt.ones(3), name="also_lost")
    b.output("y", b.exp(x))
    g = b.build()
    assert g.topological_sort() == ["x", "unused", "exp_1"]
    assert not g.graph.captured
    with pytest.raises(ArgumentError, match=r"missing 'unused' \(f32\[2\]\)"):
        g.execute({"x": tt.ones(3)})


def test_the_text_of_a_named_graph_says_the_names_and_is_read_back() -> None:
    b, y = linear()
    b.output("y", y)
    g = b.build()
    assert "= matmul(%0, %1, algorithm='blas')  # h\n" in str(g)
    again = graph_text.parse(str(g), list(g.graph.captured.values()))
    assert str(again) == str(g.graph)
    assert repr(g) == "<graph x, w -> y: 6 nodes>"


def test_values_print_and_copy() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 4), "i8")
    assert (repr(x), x.shape, x.dtype) == ("<'x': i8[3,4]>", (3, 4), tt.i8)
    assert copy.copy(b) is not b


# ---- what is refused


@pytest.fixture
def b() -> GraphBuilder:
    b = GraphBuilder()
    b.input("x", (64, 256))
    b.input("w", (128, 512))
    b.input("i", (3,), "i8")
    return b


def value(b: GraphBuilder, name: str) -> NamedNode:
    return b._names[name]


REFUSED: list[tuple[Callable[[GraphBuilder], Any], type[Exception], str]] = [
    (
        lambda b: b.matmul(value(b, "x"), value(b, "w"), name="h1"),
        ShapeError,
        'GraphBuilder.matmul("h1"): inner sizes differ: f32[64,256] @ f32[128,512] has 256 against 128. Transpose one with '
        ".T? It reads x1 = 'x' f32[64,256], x2 = 'w' f32[128,512].",
    ),
    (
        lambda b: b.add(value(b, "x"), tt.ones(5)),
        ShapeError,
        "It reads x1 = 'x' f32[64,256], x2 = a captured tensor f32[5].",
    ),
    (lambda b: b.concat([value(b, "x"), value(b, "w")]), ShapeError, "It reads 'x' f32[64,256], 'w' f32[128,512]."),
    (lambda b: b.bitwise_and(value(b, "x"), 1), DTypeError, 'GraphBuilder.bitwise_and("bitwise_and_1"): '),
    (lambda b: b.add(value(b, "i"), 300), OverflowError, "300 is outside i8"),
    (lambda b: b.softmax(value(b, "x"), dim=1), ArgumentError, "Did you mean 'axis'?"),
    (lambda b: b.exp(value(b, "x"), out=tt.ones(3)), ArgumentError, "a node has no out="),
    (lambda b: b.exp("x"), ArgumentError, 'GraphBuilder.exp("exp_1"): str is not a tensor or a number'),
    (
        lambda b: b.index(value(b, "i"), key=((0, 4, 1),)),
        BoundsError,
        "key ((0, 4, 1),) is outside i8[3]. It reads 'i'",
    ),
    (lambda b: b.nonzero(value(b, "x")), TraceError, "depends on values"),
    (lambda b: b.matmull(value(b, "x")), AttributeError, "GraphBuilder has no op 'matmull'. Did you mean 'matmul'?"),
    (lambda b: b.given(index=0), AttributeError, "GraphBuilder has no op 'given'"),
    (lambda b: b.exp(value(b, "x"), name="w"), ArgumentError, "the name 'w' is taken by <'w': f32[128,512]>"),
    (lambda b: b.input("x", (3,)), ArgumentError, "the name 'x' is taken"),
    (lambda b: b.input("", (3,)), ArgumentError, "'' is not a name"),
    (lambda b: b.input("a\nb", (3,)), ArgumentError, "is not a name"),
    (lambda b: b.input("y", (3, -1)), ShapeError, "is not a shape"),
    (lambda b: b.input("y", (3,), "f31"), DTypeError, "'f31' is not a dtype"),
    (lambda b: b.input("y", (3,), device="tpu"), DeviceError, "'tpu' is not a device"),
    (lambda b: GraphBuilder().exp(value(b, "x")), ArgumentError, "<'x': f32[64,256]> is a node of another builder"),
    (lambda b: GraphBuilder().output(value(b, "x")), ArgumentError, "is a node of another builder"),
    (lambda b: b.output("y"), ArgumentError, "output takes a name and a node"),
    (lambda b: b.output(value(b, "x"), value(b, "x")), ArgumentError, "output takes a name and a node"),
    (lambda b: (b.output(value(b, "x")), b.output(value(b, "x"))), ArgumentError, "'x' was set before"),
    (lambda b: b.build(), ArgumentError, "no output was set; name one with b.output('y', y)"),
    (lambda b: b.quantize(value(b, "x"), "int5"), ArgumentError, "scheme 'int5' is unknown. Did you mean 'int8'?"),
    (lambda b: b.call(3), ArgumentError, "call takes a function of tensors, given int"),
    (lambda b: b.call(lambda t: 3, value(b, "x")), TraceError, "the function returned int"),
    (lambda b: b.call(lambda t: t.add_(1.0), value(b, "x")), TraceError, "writes to an argument"),
    (lambda b: b.call(lambda t: t @ t, value(b, "x"), name="sq"), ShapeError, 'GraphBuilder.call("sq"): matmul: inner'),
]


@pytest.mark.parametrize(("act", "error", "says"), REFUSED)
def test_a_mistake_is_refused_when_it_is_made(
    b: GraphBuilder, act: Callable[[GraphBuilder], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        act(b)
    assert says in str(caught.value)
    assert isinstance(caught.value, (TritiumError, OverflowError))
    assert tt.ones(2).tolist() == [1, 1]  # calls run again


# ---- execution


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        ({}, "missing 'x' (f32[4,8]), 'w' (f32[8,3])."),
        ({"w": tt.ones((8, 3))}, "missing 'x' (f32[4,8])."),
        (
            {"x": tt.ones((4, 8)), "w": tt.ones((8, 3)), "W": 1},
            "has no input 'W'; it has 'x' (f32[4,8]), 'w' (f32[8,3])",
        ),
        ({"x": tt.ones((4, 8)), "w": tt.ones((8, 4))}, "input 'w' must be f32[8,3], given f32[8,4]."),
        ({"x": np.ones((4, 8)), "w": tt.ones((8, 3))}, "must be f32[4,8], given f64[4,8]; cast it with .to('f32')"),
        ({"x": 3.0, "w": tt.ones((8, 3))}, "input 'x' must be a tensor f32[4,8], given float"),
    ],
)
def test_wrong_inputs_are_named(feeds: dict[str, Any], says: str) -> None:
    b, y = linear()
    b.output("y", y)
    with pytest.raises(ArgumentError) as caught:
        b.build().execute(feeds)
    assert says in str(caught.value)


def test_an_unknown_input_gets_the_nearest_name() -> None:
    b = GraphBuilder()
    b.output("y", b.exp(b.input("tokens", (3,))))
    with pytest.raises(ArgumentError, match=r"no input 'token' \(did you mean 'tokens'\?\)"):
        b.build().execute({"token": tt.ones(3)})


@pytest.fixture
def null() -> Iterator[None]:
    tt.register("null", Null)
    yield
    tt.unregister("null")


def test_inputs_on_two_devices_are_refused_when_built(null: None) -> None:
    b = GraphBuilder()
    b.input("x", (3,), device="null")
    with pytest.raises(DeviceError, match=r"input 'w' is on cpu, input 'x' on null.*Move one with \.to\('null'\)"):
        b.input("w", (3,), device="cpu")
    with pytest.raises(DeviceError, match=r"the captured tensor f32\[3\] is on cpu"):
        b.add(value(b, "x"), tt.ones(3))


def test_a_captured_tensor_inside_a_function_is_checked_when_built(null: None) -> None:
    b = GraphBuilder()
    x, w = b.input("x", (3,), device="null"), tt.ones(3)
    b.output("y", b.call(lambda t: t + w, x))
    with pytest.raises(DeviceError, match=r"GraphBuilder.build: the captured tensor f32\[3\] is on cpu"):
        b.build()


def test_the_device_of_an_input_is_checked_when_run(null: None) -> None:
    b = GraphBuilder()
    b.output("y", b.multiply(b.input("x", (3,), device="null"), 2.0))
    g = b.build()
    with pytest.raises(DeviceError, match=r"input 'x' must be on null, given on cpu; move it with \.to\('null'\)"):
        g.execute({"x": tt.ones(3)})
    assert g.execute({"x": tt.ones(3).to("null")})["y"].device == "null"
    assert g.execute({"x": np.ones(3, np.float32)})["y"].tolist() == [2, 2, 2]


# ---- graphs as data


def test_a_graph_as_data_in_any_order() -> None:
    w = rand(8, 3)
    g = GraphBuilder.from_edges(
        {
            "y": ("softmax", ["h"], {"axis": 0}),
            "h": ("multiply", ["p", 0.5]),
            "p": ("matmul", ["x", w]),
            "x": ("input", [], {"shape": (4, 8), "dtype": "f32"}),
        },
        ["y"],
    ).build()
    assert [n for n in g.topological_sort() if "_" not in n] == ["x", "p", "h", "y"]
    x = rand(4, 8, seed=2)
    np.testing.assert_array_equal(g.execute({"x": x})["y"].numpy(), tt.softmax(x @ w * 0.5, axis=0).numpy())


@given(st.permutations(["x", "a", "b", "y", "z"]))
def test_the_order_of_nodes_does_not_depend_on_that_of_the_data(order: list[str]) -> None:
    nodes: dict[str, Any] = {
        "x": ("input", [], {"shape": (3,)}), "a": ("exp", ["x"]), "b": ("sin", ["x"]), "y": ("add", ["a", "b"]), "z": ("multiply", ["b", "a"]),
    }  # fmt: skip
    graph = GraphBuilder.from_edges({name: nodes[name] for name in order}, ["y", "z"]).build()
    assert graph.topological_sort() == ["x", "a", "b", "y", "z"]


def test_one_of_several_results_is_named_by_its_number() -> None:
    nodes = {"x": ("input", [], {"shape": (3,)}), "d": ("divmod", ["x", 2.0]), "r": ("negative", ["d.1"])}
    g = GraphBuilder.from_edges(nodes, {"out": "r", "q": "d.0"}).build()
    assert {k: v.tolist() for k, v in g.execute({"x": tt.tensor([5.0, 4.0, 3.0])}).items()} == {
        "out": [-1, 0, -1],
        "q": [2, 2, 1],
    }


X = ("input", [], {"shape": (3,)})
BAD: list[tuple[dict[str, Any], list[str], str]] = [
    ({"a": ("relu", ["c"]), "b": ("relu", ["a"]), "c": ("relu", ["b"])}, ["a"], "cycle: a -> b -> c -> a;"),
    ({"x": X, "a": ("add", ["x", "a"])}, ["a"], "cycle: a -> a;"),
    ({"x": X, "y": ("exp", ["x"]), "a": ("add", ["y", "b"]), "b": ("exp", ["a"])}, ["b"], "cycle: a -> b -> a;"),
    (
        {"x": X, "abc": ("relu", ["abd"])},
        ["c"],
        "no node 'abd' (did you mean 'abc'?), read by node 'abc', 'c', read by",
    ),
    ({"x": X, "y": ("sofmax", ["x"])}, ["y"], "node 'y' has no op 'sofmax'. Did you mean 'softmax'?"),
    ({"x": X, "y": "exp"}, ["y"], "node 'y' must be (op, [operands], {attributes}), given 'exp'"),
    ({"x": ("input", [], {"size": 3})}, ["x"], "input 'x' takes shape, dtype and device"),
    ({"x": X, "d": ("divmod", ["x", 2.0]), "y": ("exp", ["d"])}, ["y"], "has 2 results; read one: 'd.0'"),
    ({"x": X, "d": ("divmod", ["x", 2.0])}, ["d"], "<'d': (f32[3], f32[3])> has 2 results; name one of them"),
    ({"x": X, "y": ("matmul", ["x", "x"]), "z": ("add", ["x", tt.ones(4)])}, ["y"], 'GraphBuilder.add("z"): '),
]


@pytest.mark.parametrize(("nodes", "outputs", "says"), BAD)
def test_data_that_is_no_graph_is_refused(nodes: dict[str, Any], outputs: list[str], says: str) -> None:
    with pytest.raises(TritiumError) as caught:
        GraphBuilder.from_edges(nodes, outputs)
    assert says in str(caught.value)


def test_a_long_chain_as_data() -> None:
    nodes: dict[str, Any] = {f"n{i}": ("add", [f"n{i - 1}", 1.0]) for i in range(3000, 0, -1)}
    nodes["n0"] = X
    assert (
        GraphBuilder.from_edges(nodes, ["n3000"]).build().execute({"n0": tt.zeros(3)})["n3000"].tolist() == [3000] * 3
    )
    nodes["n0"] = ("exp", ["n3000"])
    with pytest.raises(ArgumentError, match=r"n3000 -> n0 -> n1 -> n2 -> .* -> n2999 -> n3000;"):
        GraphBuilder.from_edges(nodes, ["n0"])


# ---- random programs

UNARY = ["negative", "abs", "square", "floor", "relu", "exp"]
BINARY = ["add", "subtract", "multiply", "maximum", "copysign"]
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("flip", {"axis": 0}), ("matrix_transpose", {}), ("reshape", {"shape": (9,)}), ("reshape", {"shape": (3, 3)}),
    ("sum", {"axis": 0, "keepdims": True}), ("max", {"axis": -1}), ("softmax", {"axis": -1}), ("astype", {"dtype": "f64"}),
    ("index", {"key": ((0, 2, 1), 1)}), ("expand_dims", {"axis": 0}), ("roll", {"shift": 1}),
]  # fmt: skip
numbers = st.sampled_from([0.5, -0.0, 2, True, float("inf"), 1e-3])
steps = st.lists(
    st.tuples(st.just("u"), st.sampled_from(UNARY), st.integers(0, 50))
    | st.tuples(st.just("b"), st.sampled_from(BINARY), st.integers(0, 50), st.integers(0, 50) | numbers)
    | st.tuples(st.just("s"), st.sampled_from(SHAPES), st.integers(0, 50)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(steps, st.integers(1, 3))
def test_random_programs_are_the_same_built_read_back_and_run_at_once(program: list[Any], results: int) -> None:
    w = tt.tensor(np.arange(9, dtype=np.float32).reshape(3, 3) - 4)
    data = {"x": tt.tensor(np.linspace(-2, 3, 9, dtype=np.float32).reshape(3, 3)), "y": tt.full((3,), 1.5)}
    b = GraphBuilder()
    nodes: list[Any] = [b.input("x", (3, 3)), b.input("y", (3,)), w]
    values: list[tt.Tensor] = [data["x"], data["y"], w]
    for kind, row, at, *rest in program:
        attrs: dict[str, Any] = {}
        if kind == "s":
            row, attrs = row
        if row == "index" and values[at % len(nodes)].shape != (3, 3):
            continue
        ends = [at % len(nodes), *(r % len(nodes) if type(r) is int else r for r in rest)]
        operands = [nodes[e] if type(e) is int else e for e in ends]
        try:
            eager = OPS[row](*(values[e] if type(e) is int else e for e in ends), **attrs)
        except (TritiumError, AssertionError, IndexError, ValueError):
            continue
        nodes.append(getattr(b, row)(*operands, **attrs))
        values.append(eager)
        assert nodes[-1].spec == eager.spec
    picked = [i for i, n in enumerate(nodes) if isinstance(n, NamedNode)][-results:]
    for i in picked:
        b.output(f"out{i}", nodes[i])
    g = b.build()
    again = graph_text.parse(str(g), list(g.graph.captured.values()))
    assert str(again) == str(g.graph)
    read = NamedGraph(again, g.inputs, g.outputs, g.names)
    for found in (g.execute(data), read.execute(data)):
        for i in picked:
            assert found[f"out{i}"].numpy().tobytes() == values[i].numpy().tobytes()


def test_a_compiled_graph_executes_the_same() -> None:
    b = tt.GraphBuilder()
    x = b.input("x", (4, 8))
    b.output("y", b.relu(b.add(b.multiply(x, 2.0), 1.0)))
    graph = b.build()
    feeds = {"x": tt.randn((4, 8), seed=1)}
    fast = graph.compile(verify=True)
    for _ in range(2):
        np.testing.assert_array_equal(fast.execute(feeds)["y"].numpy(), graph.execute(feeds)["y"].numpy())
    assert "calls written" in graph.explain()
    assert graph.topological_sort() == fast.topological_sort()


def test_a_built_graph_tells_what_becomes_of_it() -> None:
    b = tt.GraphBuilder()
    x = b.input("x", (64, 64))
    b.output("y", b.relu(b.add(b.multiply(x, 2.0), 1.0)))
    graph = b.build()
    assert len(graph.generate_execution_plan().steps) <= 3
    assert all(o.bytes_saved > 0 for o in graph.find_fusion_opportunities())
