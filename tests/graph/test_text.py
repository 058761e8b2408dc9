"""Graph text: what is printed is read back as the same graph, and what is not a graph is refused by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

import tritium as tt
from tritium import dtype as dt, ops
from tritium.errors import ArgumentError, FormatError, TritiumError
from tritium.fragment import Fragment, Step, value_text
from tritium.graph import text as graph_text
from tritium.graph.graph import Graph, Trace
from tritium.op import OPS, Kind, Op, Spec

V = Spec((3,))
M = Spec((2, 3))


def again(graph: Graph) -> Graph:
    """The graph read from its own text, which must be the same text."""
    text = str(graph)
    found = graph_text.parse(text, list(graph.captured.values()))
    assert str(found) == text
    assert [n.spec for n in found.order()] == [n.spec for n in graph.order()]
    return found


def same(graph: Graph, *args: tt.Tensor) -> None:
    """The graph and what its text says compute the same bits."""
    want, got = (g(*args) for g in (graph, again(graph)))
    assert isinstance(want, tuple) is isinstance(got, tuple)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (want, got)), strict=True):
        assert a.spec == b.spec
        assert a.numpy().tobytes() == b.numpy().tobytes()


def node_graph(op: Op, inputs: tuple[Spec | None, ...], attrs: dict[str, Any]) -> Graph:
    """A graph of one call whose inputs are arguments already in the dtypes the row computes in."""
    decision = op.decide(inputs, attrs)
    t = Trace()
    ready = [s for s in decision.inputs if s is not None]
    args = [t.read(t.argument(i, s)) for i, s in enumerate(ready)]
    left = iter(args)
    node = t.node(op, tuple(None if s is None else next(left) for s in decision.inputs), decision.out, attrs)
    several = () if isinstance(decision.out, Spec) else decision.out
    outs = tuple(t.node(ops.item, (node,), s, {"index": i}) for i, s in enumerate(several)) or (node,)
    return Graph(tuple(args), outs, {}, not several)


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.kind is not Kind.DYNAMIC], ids=lambda o: o.name)
def test_every_row_is_read_back_in_every_sample(op: Op) -> None:
    for s in op.samples:
        attrs = op.bind(tuple(object() for _ in s.inputs) or (), dict(s.attrs))[1]
        attrs.pop("device", None)
        again(node_graph(op, tuple(None if d is None else d.spec for d in s.inputs), attrs))


@pytest.mark.parametrize("kind", [*dt.ALL, *dt.PACKED], ids=str)
def test_a_spec_of_every_dtype_is_read_back(kind: dt.DType) -> None:
    graph = tt.trace(lambda x: x, Spec((4, 70), kind))
    assert again(graph).inputs[0].spec == Spec((4, 70), kind)


# ---- attributes


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 1e-5, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"), 0.1])
def test_a_float_comes_back_bit_by_bit(value: float) -> None:
    found = again(tt.trace(lambda x: x * value, Spec((3,), tt.f64)))
    (const,) = [n for n in found.order() if n.op is ops.const]
    got = dict(const.attrs)["value"]
    assert type(got) is float
    assert got.hex() == value.hex()


@pytest.mark.parametrize(("value", "kind"), [(1, int), (True, bool), (1.0, float), (-7, int)])
def test_ints_bools_and_floats_stay_apart(value: Any, kind: type) -> None:
    (const,) = [n for n in again(tt.trace(lambda x: tt.where(x > 0, value, x), V)).order() if n.op is ops.const and
                n.attrs[0][1] != 0]  # fmt: skip
    assert type(dict(const.attrs)["value"]) is kind


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*dt.ALL, *dt.PACKED, Spec((2, 3)), Spec((), tt.i8)]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_attribute_is_read_back(value: Any) -> None:
    text = value_text(value)
    got = graph_text._value(graph_text.Reader(text, 1), ())
    assert value_text(got) == text
    assert type(got) is type(value)
    assert "\n" not in text


def test_a_layout_is_read_back_and_writes_the_same_part() -> None:
    def fn(x: Any) -> Any:
        y = x.clone()
        y[::-1, 1:] += 10.0
        y.T[0] = -1.0
        return y

    same(tt.trace(fn, M), tt.arange(6, dtype="f32").reshape(2, 3))


def test_a_device_is_read_back_by_its_name() -> None:
    graph = tt.trace(lambda x: x + tt.ones(3, device=tt.device("cpu")), V)
    assert "device='cpu'" in str(graph)
    same(graph, tt.ones(3))


def test_a_fragment_is_read_back_and_computes_the_same() -> None:
    steps = (
        Step(ops.add, (0, 1), (), M),
        Step(ops.const, (), (("value", -0.0), ("dtype", tt.f32)), Spec(())),
        Step(ops.clip, (2, None, 3), (), M),
        Step(ops.divmod, (4, 0), (), (M, M)),
        Step(ops.item, (5,), (("index", 1),), M),
        Step(ops.sum, (6,), (("axis", -1), ("dtype", None), ("keepdims", True)), Spec((2, 1))),
        Step(ops.squeeze, (7,), (("axis", -1),), Spec((2,))),
    )
    body = Fragment((M, V), steps, (4, 8))
    graph = node_graph(ops.fused, (M, V), {"body": body})
    text = str(graph)
    assert f"body={body})" in text
    same(graph, tt.arange(6, dtype="f32").reshape(2, 3) - 3.5, tt.tensor([1.0, 2.0, -3.0]))
    assert dict(again(graph).order()[2].attrs)["body"] == body


# ---- graphs


def test_an_argument_that_nothing_reads_has_a_line() -> None:
    graph = tt.trace(lambda x, y, z: y * 2.0, V, M, V)
    assert len(again(graph).inputs) == 3
    same(graph, tt.ones(3), tt.ones((2, 3)), tt.ones(3))


def test_a_tuple_of_one_stays_a_tuple() -> None:
    assert str(tt.trace(lambda x: (x + x,), V)).endswith("return %1,")
    same(tt.trace(lambda x: (x + x,), V), tt.ones(3))


def test_a_graph_may_return_nothing() -> None:
    assert again(tt.trace(lambda x: (), V)).outputs == ()


def test_several_results_and_repeated_ones() -> None:
    same(tt.trace(lambda x: (x + 1.0, x, x + 1.0, *tt.divmod(x, 2.0)), V), tt.tensor([1.0, 5.0, -3.0]))


def test_captured_tensors_come_in_order() -> None:
    a, b = tt.tensor([1.0, 2.0, 3.0]), tt.tensor([10.0, 20.0, 30.0])
    graph = tt.trace(lambda x: x * a - b, V)
    same(graph, tt.ones(3))
    swapped = graph_text.parse(str(graph), [b, a])
    assert swapped(tt.ones(3)).tolist() == [9, 18, 27]


def test_missing_captured_tensors_are_listed_with_their_specs() -> None:
    a, b = tt.ones(3), tt.ones((2, 3), dtype="i8")
    text = str(tt.trace(lambda x: x * a - b, V))
    with pytest.raises(ArgumentError, match=r"2 captured tensors \(-1: f32\[3\], -2: i8\[2,3\]\), 0 were given"):
        graph_text.parse(text)
    with pytest.raises(ArgumentError, match=r"tensor -2 must be a tensor i8\[2,3\], given f32\[3\]"):
        graph_text.parse(text, [a, a])
    with pytest.raises(ArgumentError, match="given ndarray"):
        graph_text.parse(text, [np.ones(3), b])  # type: ignore[list-item]


def test_packed_weights_of_a_layer() -> None:
    layer = tt.nn.BitLinear.from_float(tt.randn((8, 16), seed=1), tt.ones(8), norm=tt.ones(16))
    same(tt.trace(layer, Spec((2, 16))), tt.randn((2, 16), seed=2))


def test_donated_arguments_are_written_back() -> None:
    def fn(cache: Any, x: Any) -> Any:
        cache[1] = x
        return x * 2.0

    graph = tt.trace(fn, M, V, donate=[0])
    assert "write 0 = %" in str(graph)
    cache = tt.zeros((2, 3))
    again(graph)(cache, tt.ones(3))
    assert cache.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_names_are_comments_and_comments_are_skipped() -> None:
    graph = tt.trace(lambda x: tt.exp(x), V)
    text = graph.text({graph.outputs[0]: "y # '(' \\"})
    assert text.splitlines()[1] == "%1: f32[3] = exp(%0)  # y # '(' \\"
    assert str(graph_text.parse(f"# by hand\n\n{text}  # the end\n\n")) == str(graph)


def test_a_text_by_hand_may_leave_out_defaults_and_use_any_numbers() -> None:
    text = "%7: f32[2,3] = given(index=0, spec=f32[2,3])\n%3: f32[2,3] = softmax(%7)\nreturn %3"
    assert "softmax(%0, axis=-1)" in str(graph_text.parse(text))


@pytest.mark.slow
def test_twenty_thousand_lines() -> None:
    def fn(x: Any) -> Any:
        for i in range(10_000):
            x = x + float(i)
        return x

    assert len(again(tt.trace(fn, V)).order()) == 20_001


# ---- what is not a graph

X = "%0: f32[2,3] = given(index=0, spec=f32[2,3])\n"
Y = "%1: i32[3] = given(index=1, spec=i32[3])\n"
BAD = [
    ("", "line 1: expected 'return %n' at the end"),
    (X, "line 2: expected 'return %n'"),
    ("hello", "line 1: expected a line '%n: spec = op(…)'.*found 'hello' (column 1)"),
    (X + "return", None),
    (X + "return %4", "line 2: %4 is never defined"),
    (X + "return %0 %0", "line 2: expected ',' or the end of the line, found '%0'"),
    (X + "return %0\nreturn %0", "line 3: expected nothing after 'return', found 'return'"),
    (X + "return %0\n%1: f32[2,3] = exp(%0)", "line 3: expected nothing after 'return'"),
    (X + "%1: f32[2,3] = exp(%0) x\nreturn %1", "line 2: expected the end of the line, found 'x'"),
    (X + "%1: f32[2,3] = sofmax(%0)\nreturn %1", "expected the name of an op (did you mean 'softmax'?), found 'sofmax'"),
    (X + "%1: f32[2,3] = exp(%1)\nreturn %1", "line 2: %1 is used before line 2, where it is defined.*no cycles"),
    (X + "%1: f32[2,3] = exp(%2)\n%2: f32[2,3] = exp(%1)\nreturn %1", "line 2: %2 is used before line 3"),
    (X + "%0: f32[2,3] = exp(%0)\nreturn %0", "line 2: %0 was defined before, at line 1"),
    (X + "%1: f32[3,2] = exp(%0)\nreturn %1", "line 2: exp returns f32[2,3] here, the text says f32[3,2]"),
    (X + "%1: f64[2,3] = exp(%0)\nreturn %1", "exp returns f32[2,3] here, the text says f64[2,3]"),
    (X + "%1: f32[2,3] = exp(%0, %0)\nreturn %1", "exp takes 1 inputs (x), given 2"),
    (X + "%1: f32[2,3] = add(%0)\nreturn %1", "add takes 2 inputs (x1, x2), given 1"),
    (X + "%1: f32[2,3] = add(%0, none)\nreturn %1", "add cannot do without x2, given none"),
    (X + "%1: f32[2,3] = concat()\nreturn %1", "concat takes at least one input, given 0"),
    (X + "%1: f32[2,2] = matmul(%0, %0)\nreturn %1", "line 2: matmul: inner sizes differ"),
    (X + Y + "%2: f32[2,3] = add(%0, %1)\nreturn %2", "add computes with f32[3] here, given i32[3]; cast it"),
    (X + "%1: f32[2,3] = softmax(%0, dim=0)\nreturn %1", "dim is not an attribute of softmax"),
    (X + "%1: f32[2,3] = softmax(%0, axes=0)\nreturn %1", "(did you mean 'axis'?)"),
    (X + "%1: f32[2,3] = softmax(%0, axis=0, axis=1)\nreturn %1", "axis is given twice"),
    (X + "%1: f32[2,3] = softmax(%0, axis=2)\nreturn %1", "line 2: softmax: axis 2 does not exist"),
    (X + "%1: f32[2,3] = softmax(%0, axis='a')\nreturn %1", "line 2: softmax: axis must be one integer"),
    (X + "%1: f32[2,3] = softmax(axis=0, %0)\nreturn %1", "expected an attribute 'name=…', found '%0'"),
    (X + "%1: f32[2,3] = softmax(%0, axis=0\nreturn %1", "expected ',' or ')' after an argument, found the end of the line"),
    (X + "%1: f32[2,3] = astype(%0)\nreturn %1", "astype needs dtype"),
    (X + "%1: f32[2,3] = astype(%0, dtype='f32')\nreturn %1", "dtype of astype must be a DType, given 'f32'"),
    (X + "%1: f32[2,3] = roll(%0, shift=f16)\nreturn %1", "shift of roll cannot be a DType, given f16"),
    (X + "%1: f32[2,3] = astype(%0, dtype=f31)\nreturn %1", "expected a value (did you mean"),
    (X + "%1: f32[6] = reshape(%0, shape=(6))\nreturn %1", "a tuple of one value ends in ',)'"),
    (X + "%1: f32[6] = reshape(%0, shape=('6',))\nreturn %1", "line 2: reshape"),
    (X + "%1: f32[6 = reshape(%0, shape=(6,))\nreturn %1", "expected ',' or ']' after a size, found '='"),
    (X + "%1: f32 = exp(%0)\nreturn %1", "expected '[' and the sizes of f32"),
    (X + "%1: g32[2] = exp(%0)\nreturn %1", "expected a spec such as f32[2,3]"),
    (X + "%1: f32[-2] = exp(%0)\nreturn %1", "a size is below 0"),
    (X + "%1: f32[2,3] = exp(%0) = 3\nreturn %1", "expected the end of the line, found '='"),
    (X + "%1: f32[2,3] = exp(%0)$\nreturn %1", r"found '\$'"),
    (X + "%1: (f32[2,3], f32[2,3]) = divmod(%0, %0)\nreturn %1", "return takes single results"),
    (X + "%1: (f32[2,3], f32[2,3]) = divmod(%0, %0)\n%2: f32[2,3] = exp(%1)\nreturn %2", "exp reads one result"),
    (X + "%1: (f32[2,3], f32[2,3]) = divmod(%0, %0)\n%2: f32[2,3] = item(%1, index=2)\nreturn %2", "item takes index=0"),
    (X + "%1: f32[2,3] = item(%0, index=0)\nreturn %1", "item takes index=0 … of a node of several results"),
    (X + "%1: f32[3] = index(%0, key=(2, (0, 3, 1)))\nreturn %1", "is outside f32[2,3]"),
    (X + "%1: f32[4] = index(%0, key=(1, (0, 4, 1)))\nreturn %1", "is outside f32[2,3]"),
    (X + "%1: f32[] = index(%0, key=(1,))\nreturn %1", "does not name the axes of f32[2,3]"),
    (X + "%1: f32[3] = index(%0, key=(-1, (0, 3, 1)))\nreturn %1", "is outside"),
    (
        X + "%1: f32[] = const(value=1.0, dtype=f32)\n"
        "%2: f32[2,3] = update(%0, %1, layout=Layout(shape=(2,), strides=(6,), offset=0))\nreturn %2",
        "line 3: update: Layout.*is outside f32[2,3]",
    ),
    (X + "%1: f32[] = const(value='a', dtype=f32)\nreturn %1", "a number is needed, given 'a'"),
    (X + "%1: i8[] = const(value=300, dtype=i8)\nreturn %1", "line 2: const: 300 is outside i8"),
    (X + "%1: i64[2] = nonzero(%0)\nreturn %1", "the size of the result of nonzero depends on values"),
    (X + "%1: f32[2,3] = given(index=0, spec=f32[2,3])\nreturn %1", "index=0 must be an integer of its own"),
    ("%0: f32[3] = given(index=1, spec=f32[3])\nreturn %0", "argument 0 has no line"),
    ("%0: f32[3] = given(index=1.0, spec=f32[3])\nreturn %0", "index=1.0 must be an integer"),
    (X + "write 1 = %0\nreturn %0", "write 1 needs an argument 1 of spec f32[2,3]"),
    (X + "write x\nreturn %0", "expected the number of an argument, found 'x'"),
    (X + "%1: f32[2,3] = fused(%0, body={%2 = exp(%0); return %2})\nreturn %1", "%2 of the body must be %1"),
    (X + "%1: f32[2,3] = fused(%0, body={%1 = exp(%1); return %1})\nreturn %1", "%1 is not a value of the body"),
    (X + "%1: f32[2,3] = fused(%0, body={%1 = exp(%0) return %1})\nreturn %1", "expected ';' after a step"),
    (X + "%1: f32[2,3] = fused(%0, body={%1 = flip(%0, axis=0); return %1})\nreturn %1", "flip cannot be a step"),
    (X + "%1: f32[2,3] = fused(%0, body={return })\nreturn %1", "returns at least one value"),
    (X + f"%1: f32[2,3] = softmax(%0, axis={'(' * 50}{')' * 50})\nreturn %1", "nested more than 32 deep"),
    (X + f"%1: f32[2,3] = softmax(%0, axis={'9' * 6000})\nreturn %1", "at most 40 digits"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), BAD)
def test_a_bad_text_is_refused_by_line_and_reason(text: str, says: str | None) -> None:
    if says is None:
        assert graph_text.parse(text).outputs == ()
        return
    with pytest.raises(FormatError) as caught:
        graph_text.parse(text)
    message = str(caught.value)
    assert message.startswith("parse: line ")
    for part in says.replace(r"\$", "$").split(".*"):
        assert part in message


REAL = str(
    tt.trace(lambda x, y: (tt.softmax(x @ y.T * 2.0, axis=0), *tt.divmod(tt.clip(x[1:], None, 2.0), 3.0)), M, M)
).replace("return", "%20: f32[2,3] = fused(%0, body={%1 = exp(%0); %2 = relu(%1); return %2})\nreturn %20,")
again(graph_text.parse(REAL))
PIECES = [
    "%0",
    "%1",
    "none",
    "(",
    ")",
    ",",
    "f32[2,3]",
    "i8",
    "-1",
    "3",
    "1e9",
    "'a'",
    "=",
    "{",
    "}",
    "\n",
    "exp",
    "[",
    "]",
    ";",
]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(REAL)), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=3)
)
def test_a_damaged_text_is_refused_or_is_another_graph(cuts: list[tuple[int, int, str]]) -> None:
    text = REAL
    for at, length, put in cuts:
        text = text[:at] + put + text[at + length :]
    try:
        graph = graph_text.parse(text)
    except TritiumError:
        return
    again(graph)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_refused_without_another_error(text: str) -> None:
    assume(text.strip() != "return")  # a graph of nothing
    with pytest.raises(FormatError):
        graph_text.parse(text)


def test_the_shortest_text_is_a_graph_of_nothing() -> None:
    assert graph_text.parse("return")() == ()


def test_an_optimised_graph_takes_its_captured_tensors_in_order() -> None:
    w = tt.full((4,), 3.0)
    graph = tt.compile(lambda x: tt.sin(tt.arange(4, dtype="f32")) * x - w).graph(tt.ones(4))
    again = graph_text.parse(str(graph), captured=list(graph.captured.values()))
    x = tt.randn(4, seed=1)
    assert again(x).tolist() == graph(x).tolist()


# ---- lines like earlier ones

REPEATED = """%0: f32[2,3] = given(index=0, spec=f32[2,3])
%1: f32[3,2] = given(index=1, spec=f32[3,2])
%2: f32[2,3] = add(%0, %0)
%3: f32[2,3] = add(%2, %0)
{}
return %4"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%4: f32[2,3] = add(%2, %9)", "line 5: %9 is never defined"),
        ("%4: f32[2,3] = add(%4, %0)", "line 5: %4 is used before line 5"),
        ("%3: f32[2,3] = add(%2, %0)", "line 5: %3 was defined before, at line 4"),
        ("%4: f32[2,3] = add(%2, none)", "line 5: add cannot do without"),
        ("%4: f32[2,3] = add(%2)", "line 5: add takes 2 inputs"),
        ("%4: f32[2,3] = add(%2, %0, %0)", "line 5: add takes 2 inputs"),
        ("%4: f32[2,3] = add(%2, %1)", "line 5: add"),
        ("%4: f32[2,2] = add(%2, %0)", "line 5: add returns f32[2,3] here, the text says f32[2,2]"),
        ("%4: f32[2,3] = add(%2, %0) %0", "line 5: expected the end of the line"),
        ("%4: f32[2,3] = given(index=1, spec=f32[2,3])", "line 5: given: index=1 must be an integer of its own"),
        ("%3: f32[2,3] = given(index=2, spec=f32[2,3])", "line 5: %3 was defined before, at line 4"),
        ("%4: f32[2,3] = given(index=2, spec=f32[3,2])", "line 5: given returns f32[3,2] here, the text says f32[2,3]"),
        ("%4: f32[2,3] = given(%0, index=2, spec=f32[2,3])", "line 5: given takes 0 inputs"),
    ],
)
def test_a_line_like_an_earlier_one_is_checked_as_the_first_was(line: str, message: str) -> None:
    with pytest.raises(FormatError) as error:
        graph_text.parse(REPEATED.format(line))
    assert message in str(error.value)


def test_lines_that_differ_in_their_operands_alone_are_the_calls_that_were_printed() -> None:
    def fn(x: Any, y: Any) -> Any:
        for i in range(6):
            x, y = tt.clip(x + y, -9.0, 9.0) * 2.0, tt.softmax(y - x) if i % 2 else y[::-1] + x[..., :1]
            lows, highs = tt.divmod(x, y + 20.0)
            x = x + lows - highs
        return x, y

    args = tt.randn((4, 6), seed=1), tt.randn((4, 6), seed=2)
    same(tt.trace(fn, *args), *args)


def test_a_value_alone_is_read_and_nothing_after_it() -> None:
    assert graph_text.parse_value("(1, 'x', None, f32, -inf)") == (1, "x", None, tt.f32, float("-inf"))
    for text in ("1 2", "", "(1", "x", "{return %0}"):
        with pytest.raises(FormatError):
            graph_text.parse_value(text)
