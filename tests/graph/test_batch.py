"""One graph for many samples: its results are those of the single calls stacked, or there is a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from op_cases import by_op
from tritium import ops
from tritium.errors import ArgumentError
from tritium.fragment import Fragment, Step
from tritium.graph.batch import batched, find_rule
from tritium.op import OPS, Kind, Op
from tritium.ops import Sample
from tritium.testing import Integers, arrays, assert_close, call, cases, laid, values

N = 3


def several(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def many(graph: tt.Graph, samples: list[list[tt.Tensor]], which: set[int]) -> Any:
    """What the graph for all samples gives, or its reason. Arguments that are not in `which` are those of the first."""
    graph_of_all = batched(graph, len(samples), which)
    if isinstance(graph_of_all, str):
        return graph_of_all
    first = samples[0]
    args = [tt.stack([s[i] for s in samples]) if i in which else first[i] for i in range(len(first))]
    return several(graph_of_all(*args))


def one_by_one(graph: tt.Graph, samples: list[list[tt.Tensor]], which: set[int]) -> list[tuple[Any, ...]]:
    first = samples[0]
    return [several(graph(*(s[i] if i in which else first[i] for i in range(len(first))))) for s in samples]


# ---- every row and sample


def case(op: Op, sample: Sample) -> tuple[tt.Graph, list[list[tt.Tensor]], list[list[Any]]]:
    attrs = dict(sample.attrs)
    data = [arrays(op, sample, seed) for seed in range(N)]
    here = [x is not None for x in data[0]]

    def fn(*ts: Any) -> Any:
        left = iter(ts)
        return call(op, [next(left) if h else None for h in here], attrs)

    samples = [[laid(x, "contiguous") for x in d if x is not None] for d in data]
    return tt.trace(fn, *(x.spec for x in samples[0])), samples, data


CASES = cases(Kind.VIEW, Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE, Kind.FUSED)
WEIGHTS = {
    "bounded_argmax",
    "dequantize",
    "expert_matmul",
    "take_rows",
    "quantize_ternary",
    "quantize_int8",
    "quantize_int4",
}
SEQUENCES = {
    "attention", "causal_conv1d", "gated_delta_rule", "quantized_attention", "update_cache", "update_quantized_cache",
}  # fmt: skip


@by_op(CASES)
def test_a_row_gives_what_the_single_calls_give_or_a_reason(op: Op, sample: Sample) -> None:
    graph, samples, data = case(op, sample)
    n = len(samples[0])
    choices = [set(range(n)), *({i} for i in range(n) if n > 1)]
    reasons = 0
    for which in choices:
        got = many(graph, samples, which)
        if isinstance(got, str):
            packed = any(graph.inputs[i].spec.dtype.is_packed for i in which)
            assert ("is packed" if packed else f"= {op.name}: ") in got
            reasons += 1
            continue
        for i, want in enumerate(one_by_one(graph, samples, which)):
            mine = tuple(values(g[i]) for g in got)
            theirs = tuple(values(t) for t in want)
            if op.kind is Kind.CONTRACT:
                of_this = [d if j in which else f for j, (d, f) in enumerate(zip(data[i], data[0], strict=True))]
                assert_close(op, mine, theirs, of_this, op.complete(dict(sample.attrs)))
            else:
                for a, b in zip(mine, theirs, strict=True):
                    assert a.dtype == b.dtype
                    np.testing.assert_array_equal(a, b)
    makes_packed = isinstance(graph.outputs[0].spec, tt.Spec) and graph.outputs[0].spec.dtype.is_packed
    if op.name not in WEIGHTS | SEQUENCES and not isinstance(data[0][0], Integers) and not makes_packed:
        assert reasons < len(choices), got


def test_every_row_has_a_rule() -> None:
    without = {ops.const, ops.given, ops.nonzero, ops.masked, ops.distinct} | {
        o for o in OPS.values() if o.kind is Kind.SOURCE
    }
    assert {o for o in OPS.values() if find_rule(o) is None} <= without


@pytest.mark.parametrize(
    ("fn", "specs", "which", "says"),
    [
        (lambda x, w: tt.rms_norm(x + 1.0, w), [(3, 4), (4,)], {1}, r"%4 = rms_norm: weight \(f32\[4\]\) differs"),
        (lambda x, w: tt.layer_norm(x, None, w), [(3, 4), (4,)], None, "layer_norm: bias"),
        (lambda x: tt.quantize_ternary(x)[1], [(3, 4)], None, "quantize_ternary: it works on one matrix of weights"),
        (lambda x, y: tt.searchsorted(x, y), [(3,), (4,)], {0}, r"searchsorted: x1 \(f32\[3\]\) differs"),
    ],
)
def test_a_reason_names_the_node(fn: Any, specs: Any, which: Any, says: str) -> None:
    import re

    got = batched(tt.trace(fn, *(tt.Spec(s) for s in specs)), 2, which)
    assert isinstance(got, str)
    assert re.search(says, got), got


# ---- attributes that mean all axes, axes from the end, missing axes

X = tt.Spec((2, 1, 3))
Y = tt.Spec((3,))


def spread(x: Any, y: Any) -> Any:
    z = tt.zeros((2, 3))
    z[:, 1] = x[:, 0, 2]
    z[0] += y
    return z


def part(key: Any, named: dict[str, Any]) -> Any:
    return tuple(named[k] if isinstance(k, str) else k for k in key)


def with_tensors(key: Any) -> Any:
    """x[key] where "i" and "j" are index tensors made of y, "1" and "2" are shared."""

    def fn(x: Any, y: Any) -> Any:
        whole = tt.astype(tt.abs(y), "i64")
        return x[part(key, {"i": whole % 2, "j": whole[:1] % 3, "1": tt.tensor([1, 0]), "2": tt.tensor([[2], [0]])})]

    return fn


def put_tensors(key: Any, value: Any) -> Any:
    def fn(x: Any, y: Any) -> Any:
        i, z = tt.astype(tt.abs(y), "i64") % 2, x.clone()
        z[part(key, {"i": i, "1": tt.tensor([1, 0, 1]), "2": tt.tensor([[2], [0]])})] = value(x, y)
        return z

    return fn


E = slice(None)
KEYS: list[Any] = [
    ("1",), (E, 0, "2"), ("1", 0), ("1", E, "1"), (0, E, "2"), ("i",), (E, 0, "j"), ("i", E, "j"), ("i", 0, "j"),
    (None, "i", E, 0), (E, None, 0, "j"), ("1", E, "j"), ("i", E, 2),
]  # fmt: skip
SHAPING: list[Any] = [
    lambda x, y: x.sum(),
    lambda x, y: tt.max(x, axis=(0, -1), keepdims=True),
    lambda x, y: tt.argmax(x, keepdims=True) + tt.argmin(x),
    lambda x, y: tt.var(x, axis=None, keepdims=True) + y.mean(),
    lambda x, y: tt.squeeze(x),
    lambda x, y: tt.squeeze(x, axis=-2) * y,
    lambda x, y: tt.squeeze(x[:1], axis=(0, 1)) + y,
    lambda x, y: tt.flip(x) + tt.flip(y),
    lambda x, y: tt.moveaxis(x, (0, -1), (-1, 0)) + tt.permute_dims(x, (-1, 1, 0)),
    lambda x, y: tt.expand_dims(y, axis=(0, -1)) + tt.expand_dims(x, axis=-1),
    lambda x, y: tt.broadcast_to(y, (4, 2, 3)) + tt.reshape(x, (2, -1)),
    lambda x, y: x[..., None, ::-1] + y[None],
    lambda x, y: tt.concat([x, tt.ones((1, 1, 3))]) + tt.concat([x, y], axis=None)[0],
    lambda x, y: tt.stack([y, tt.ones(3), y * 2.0], axis=-1),
    lambda x, y: tt.roll(x, (1, -1), axis=(0, -1)) + tt.roll(x, 2) + tt.roll(y, (1, 1)),
    lambda x, y: tt.cumulative_sum(y) + tt.cumulative_sum(x, axis=0, include_initial=True)[1:],
    lambda x, y: tt.where(y > 0.0, x, 0.0) + tt.clip(x, y, None),
    lambda x, y: (x[0, 0, 0] + y) * tt.where(x.sum() > 0.0, y, 1.0),
    lambda x, y: tt.divmod(x, y + 4.0),
    lambda x, y: tt.sort(x, axis=0) + tt.sort(y, descending=True),
    lambda x, y: (tt.arange(3), x + tt.arange(3), tt.ones(2)),
    lambda x, y: (x, y, x.mean(axis=0)),
    lambda x, y: tt.take(tt.arange(12).reshape(3, 4), tt.astype(tt.abs(y), "i64"), axis=1),
    lambda x, y: tt.take(x, tt.astype(tt.abs(y), "i64").reshape(1, 3), axis=-1),
    lambda x, y: tt.take(y, tt.astype(tt.abs(y), "i64")),
    lambda x, y: tt.scatter(x, tt.tensor([0, 2]), y[:2], axis=-1) + tt.scatter(tt.zeros(3), tt.tensor([1]), y[0], mode="add"),
    lambda x, y: tt.take_along_axis(x, tt.tensor([[[2, 0]]]), axis=2),
    lambda x, y: tt.one_hot(tt.astype(tt.abs(y), "i64"), num_classes=4),
    lambda x, y: x @ y + (y @ y) + (tt.ones((3, 3)) @ y)[0] + (y @ tt.ones((3, 2))).sum(),
    lambda x, y: (x.mT @ x) @ tt.ones((3, 2)) + tt.ones((4, 1, 1, 2)) + (y @ x.mT)[:, :1, None] + (tt.ones((2, 1, 3)) @ y)[..., None],
    lambda x, y: tt.arange(6, dtype="f32").reshape(2, 3) @ y,
    spread,
    *(with_tensors(k) for k in KEYS),
    *(put_tensors(k, v) for k in (("1", 0), (E, 0, "1"), ("i",), ("1", E, "2"), ("i", E, "2"), (E, 0, "i"))
      for v in (lambda x, y: 7.0, lambda x, y: y[0] * 2.0)),
    put_tensors(("1", 0), lambda x, y: y), put_tensors((E, 0, "i"), lambda x, y: y), put_tensors(("i",), lambda x, y: y),
]  # fmt: skip


@pytest.mark.parametrize("which", [{0, 1}, {0}, {1}], ids=str)
@pytest.mark.parametrize("number", range(len(SHAPING)))
def test_shapes_that_need_care(number: int, which: set[int]) -> None:
    graph = tt.trace(SHAPING[number], X, Y)
    rng = np.random.default_rng(number)
    samples = [
        [tt.tensor(rng.integers(-2, 3, s.shape).astype(np.float32)) for s in (X, Y)] for _ in range(N)
    ]  # small integers: sums in any order are the same
    got = many(graph, samples, which)
    assert not isinstance(got, str), got
    for i, want in enumerate(one_by_one(graph, samples, which)):
        for g, t in zip(got, want, strict=True):
            assert g[i].spec == t.spec
            np.testing.assert_array_equal(g[i].numpy(), t.numpy())


def test_one_sample_keeps_its_axis() -> None:
    graph = batched(tt.trace(lambda x: tt.squeeze(x * 2.0), tt.Spec((1, 3))), 1)
    assert isinstance(graph, tt.Graph)
    assert graph(tt.ones((1, 1, 3))).tolist() == [[2, 2, 2]]


def test_samples_are_rows_of_one_product() -> None:
    weight = tt.ones((4, 5))
    graph = batched(tt.trace(lambda x: x @ weight, tt.Spec((4,))), 6)
    assert isinstance(graph, tt.Graph)
    assert [str(n.spec) for n in graph.order() if n.op is ops.matmul] == ["f32[6,5]"]
    assert list(graph.captured.values()) == [weight]


def test_what_depends_on_no_sample_is_computed_once() -> None:
    weight = tt.ones((4, 5))
    graph = batched(tt.trace(lambda x: x + tt.exp(weight).sum(axis=0), tt.Spec((5,))), 6)
    assert isinstance(graph, tt.Graph)
    assert [str(n.spec) for n in graph.order() if n.op is ops.exp] == ["f32[4,5]"]


def test_results_that_depend_on_no_sample_are_repeated_in_memory_of_their_own() -> None:
    graph = batched(tt.trace(lambda x: (x, tt.arange(2)), tt.Spec((2,))), 3)
    assert isinstance(graph, tt.Graph)
    _, second = graph(tt.ones((3, 2)))
    second[0] += 5
    assert second.tolist() == [[5, 6], [0, 1], [0, 1]]


def test_a_ternary_network_is_one_product_for_all_samples() -> None:
    w, scale = tt.quantize_ternary(tt.randn((8, 16), seed=1))
    norm = tt.ones(16)

    def fn(x: Any) -> Any:
        return tt.silu(tt.quantized_matmul(tt.rms_norm(x, norm), w, scale)) + x[..., :8]

    samples = [[tt.randn((2, 16), seed=s)] for s in range(5)]
    graph = tt.trace(fn, samples[0][0].spec)
    (got,) = many(graph, samples, {0})
    for g, (want,) in zip(got, one_by_one(graph, samples, {0}), strict=True):
        np.testing.assert_array_equal(g.numpy(), want.numpy())


def test_a_written_argument_must_be_one_of_the_samples() -> None:
    def fn(x: Any, cache: Any) -> Any:
        cache[0] += x
        return cache.sum()

    graph = tt.trace(fn, tt.Spec((2,)), tt.Spec((3, 2)), donate=(1,))
    assert "argument 1 is written" in str(batched(graph, 2, {0}))
    both = batched(graph, 2)
    assert isinstance(both, tt.Graph)
    x, cache = tt.tensor([[1.0, 2.0], [3.0, 4.0]]), tt.zeros((2, 3, 2))
    assert both(x, cache).tolist() == [3, 7]
    assert cache[:, 0].tolist() == [[1, 2], [3, 4]]


def test_a_fused_call_is_taken_apart_and_both_its_results_are_read() -> None:
    whole = (("axis", None), ("dtype", None), ("keepdims", False))
    steps = (
        Step(ops.add, (0, 1), (), X),
        Step(ops.negative, (1,), (), Y),
        Step(ops.sum, (2,), whole, tt.Spec(())),
    )
    body = Fragment((X, Y), steps, (4, 3))
    graph = tt.trace(lambda x, y: ops.fused(x, y, body=body), X, Y)
    samples = [[tt.full(X.shape, s + 1.0), tt.arange(3, dtype="f32") * float(s)] for s in range(N)]
    for which in ({0, 1}, {0}, {1}):
        got = many(graph, samples, which)
        for i, want in enumerate(one_by_one(graph, samples, which)):
            assert [g[i].tolist() for g in got] == [t.tolist() for t in want]


def test_the_graph_stays_as_it_was() -> None:
    graph = tt.trace(lambda x, y: x @ y, tt.Spec((2, 3)), tt.Spec((3,)))
    before = str(graph)
    batched(graph, 4)
    assert str(graph) == before


@pytest.mark.parametrize(
    ("n", "which", "says"),
    [(0, None, "n must be 1 or more"), (True, None, "n must be"), (2, {0, 3}, "no argument 3; it takes 2")],
)
def test_samples_that_make_no_sense_are_refused(n: Any, which: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        batched(tt.trace(lambda x, y: x + y, Y, Y), n, which)


# ---- random graphs


UNARY = (tt.negative, tt.abs, tt.tanh, tt.relu2, tt.square, tt.silu)
BINARY = (tt.add, tt.subtract, tt.multiply, tt.maximum, tt.hypot)
FOLDS = (tt.sum, tt.mean, tt.max, tt.min, tt.std, tt.any)
ROWS = (tt.softmax, tt.rms_norm, tt.layer_norm, tt.sort, lambda x: tt.cumulative_sum(x, axis=-1), lambda x: tt.concat([x, x], axis=-1),
        lambda x: tt.concat([x, x]), lambda x: x[..., ::-2], lambda x: x[0], lambda x: tt.take(x, tt.tensor([0, -1]), axis=0))  # fmt: skip
ANY = (
    tt.flip, tt.expand_dims, tt.squeeze, tt.copy, lambda x: tt.expand_dims(x, axis=-1), lambda x: x.reshape(-1),
    lambda x: tt.permute_dims(x, tuple(reversed(range(x.ndim)))), lambda x: tt.roll(x, 1), lambda x: tt.stack([x, x + 1.0], axis=-1),
    lambda x: tt.broadcast_to(x, (2, *x.shape)), lambda x: tt.concat([x, x], axis=None), lambda x: tt.where(x > 0.0, x, x.sum()),
)  # fmt: skip
STEP = st.tuples(st.sampled_from("ubfravmw"), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))


def fits(x: Any, y: Any) -> bool:
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return False
    return True


def step(how: str, x: Any, y: Any, p: int) -> Any:
    """One call of a random graph; x itself where the call makes no sense."""
    if how == "u":
        return UNARY[p % len(UNARY)](x)
    if how == "b" and fits(x, y):
        return BINARY[p % len(BINARY)](x, y)
    if how == "f":
        axis = (None, *range(-x.ndim, x.ndim))[p % (2 * x.ndim + 1)]
        return tt.astype(FOLDS[p % len(FOLDS)](x, axis=axis, keepdims=p % 4 > 1), x.dtype)
    if how == "r" and x.ndim:
        return ROWS[p % len(ROWS)](x)
    if how in "av":
        return ANY[p % len(ANY)](x)
    if how == "m" and x.ndim and y.ndim and x.shape[-1] == y.shape[-min(2, y.ndim)] and fits(x[..., 0], y[..., 0]):
        return tt.matmul(x, y)
    if how == "m" and x.ndim:
        return tt.matmul(x, x.mT if x.ndim > 1 else x)
    if how == "w" and x.ndim and y.ndim == 0:
        z = tt.copy(x)
        z[..., p % x.shape[-1] :: 2] = y
        return z
    return x


@settings(max_examples=200)
@given(st.lists(STEP, min_size=1, max_size=14), st.sampled_from(({0, 1}, {0}, {1})))
def test_random_graphs_give_what_the_single_calls_give(steps: list[Any], which: set[int]) -> None:
    product = any(s[0] == "m" for s in steps)
    kind = "f64" if product else "f32"  # sums in another order: differences must stay far below what is compared
    table = tt.randn((3, 3), seed=9, dtype=kind)

    def fn(x: Any, y: Any) -> Any:
        found = [x, y, table]
        for how, a, b, p in steps:
            made = step(how, found[-1 - a % len(found)], found[-1 - b % len(found)], p)
            if 0 < made.size <= 200 and made.ndim <= 5:
                found.append(made)
        return tuple(found[2:][-3:])

    samples = [[tt.randn((2, 3), seed=s, dtype=kind), tt.randn(3, seed=50 + s, dtype=kind)] for s in range(N)]
    graph = tt.trace(fn, *(x.spec for x in samples[0]))
    got = many(graph, samples, which)
    assert not isinstance(got, str), got
    for i, want in enumerate(one_by_one(graph, samples, which)):
        for g, t in zip(got, want, strict=True):
            assert g[i].spec == t.spec
            if product:
                np.testing.assert_allclose(g[i].numpy(), t.numpy(), rtol=1e-6, atol=1e-6)
            else:
                np.testing.assert_array_equal(g[i].numpy(), t.numpy())
