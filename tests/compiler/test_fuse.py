"""fuse: which nodes become one, which must not, and that the graph computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import programs
import tritium as tt
from tritium import ops
from tritium.buffer import native
from tritium.compiler.fuse import MAX_INPUTS, fuse, pattern, saved_bytes
from tritium.compiler.passes import simplify

M = tt.Spec((6, 8))
V = tt.Spec((8,))
TERN = tt.Spec((16, 8), tt.tern2)


def takes_all(_: Any) -> None:
    return None


def rows(fn: Any, *specs: Any, refuses: Any = takes_all) -> list[str]:
    """What is left to call: names, and patterns of fused nodes."""
    graph = fuse(simplify(tt.trace(fn, *specs)).graph, refuses).graph
    hidden = (ops.given, ops.const, ops.item)
    return [
        pattern(dict(n.attrs)["body"]) if n.op is ops.fused else n.op.name for n in graph.order() if n.op not in hidden
    ]


def rms(x: Any) -> Any:
    return x * tt.rsqrt(tt.mean(tt.square(x), axis=-1, keepdims=True) + 1e-5)


CASES: list[tuple[str, Any, tuple[Any, ...], list[str]]] = [
    ("a chain", lambda x: tt.relu(x * 2.0 + 1.0), (M,), ["multiply+add+relu"]),
    ("a diamond", lambda x: tt.exp(x) * tt.silu(tt.exp(x)), (M,), ["exp+silu+multiply"]),
    ("a bias", lambda x, b: tt.relu(x + b), (M, V), ["add+relu"]),
    ("casts", lambda x: (x.to("f16") * 2.0).to("f32") + 1.0, (M,), ["astype+multiply+astype+add"]),
    ("one call stays", lambda x: x * 2.0, (M,), ["multiply"]),
    ("softmax", lambda x, m: tt.softmax(x * 0.125 + m), (M, M), ["multiply+add+softmax"]),
    ("softmax by hand", lambda x: tt.exp(x - x.max(axis=-1, keepdims=True)), (M,), ["max+subtract+exp"]),
    ("rms_norm by hand", rms, (M,), ["square+mean+add+rsqrt+multiply"]),
    ("a sum of products", lambda x, y: (x * y).sum(axis=-1), (M, M), ["multiply+sum"]),
    ("without keepdims", lambda x: x - x.mean(axis=1).expand_dims(axis=1), (M,), ["mean+expand_dims+subtract"]),
    ("a row number with None", lambda x: x - x.mean(axis=1)[:, None], (M,), ["mean+expand_dims+subtract"]),
    ("norm and quantise", lambda x: tt.quantize_activations(tt.rms_norm(x)), (M,), ["rms_norm+quantize_activations"]),
    ("a product", lambda x, w, b: tt.gelu(x @ w + b), (M, tt.Spec((8, 5)), tt.Spec((5,))), ["matmul+add+gelu"]),
    (
        "a product with residual",
        lambda x, w: tt.relu(x @ w) + x,
        (M, tt.Spec((8, 8))),
        ["matmul+relu+add"],
    ),
    (
        "a ternary product",
        lambda x, w, s, r: tt.relu2(tt.quantized_matmul(tt.rms_norm(x), w, s)) * r,
        (M, TERN, tt.Spec(()), tt.Spec((6, 16))),
        ["rms_norm+quantized_matmul+relu2+multiply"],
    ),
    (
        "maps, a norm and a ternary product",
        lambda x, w, s, r: tt.quantized_matmul(tt.rms_norm(tt.relu2(x[:, :8]) * x[:, 8:]), w, s) + r,
        (tt.Spec((6, 16)), TERN, tt.Spec(()), tt.Spec((6, 16))),
        ["index", "index", "relu2+multiply+rms_norm+quantized_matmul+add"],
    ),
    (
        "maps and a ternary product",
        lambda x, w, s: tt.relu(tt.quantized_matmul(tt.silu(x) * 2.0, w, s)),
        (M, TERN, tt.Spec(())),
        ["silu+multiply+quantized_matmul+relu"],
    ),
    (
        "maps between two products follow the first",
        lambda x, w, v, s: tt.quantized_matmul(tt.rms_norm(tt.gelu(tt.quantized_matmul(x, w, s)) * 2.0), v, s),
        (M, TERN, tt.Spec((8, 16), tt.tern2), tt.Spec(())),
        ["quantized_matmul+gelu+multiply", "rms_norm+quantized_matmul"],
    ),
    (
        "maps of a softmax stay with it",
        lambda x, w, s: tt.quantized_matmul(tt.softmax(x) * 2.0, w, s),
        (M, TERN, tt.Spec(())),
        ["softmax+multiply", "quantized_matmul"],
    ),
    ("a map before a matrix product stays", lambda x, w: tt.exp(x) @ w, (M, tt.Spec((8, 8))), ["exp", "matmul"]),
    ("over the first axis stays", lambda x: (x * 2.0).sum(axis=0), (M,), ["multiply", "sum"]),
    ("a view between", lambda x: tt.relu((x * 2.0).mT), (M,), ["multiply", "matrix_transpose", "relu"]),
    ("two shapes", lambda x, b: x + tt.exp(b), (M, V), ["exp", "add"]),
    ("a sort between", lambda x: tt.sort(x + 1.0) * 2.0 - 1.0, (M,), ["add", "sort", "multiply+subtract"]),
]


@pytest.mark.parametrize(("name", "fn", "specs", "left"), CASES, ids=[c[0] for c in CASES])
def test_what_becomes_one(name: str, fn: Any, specs: tuple[Any, ...], left: list[str]) -> None:
    assert rows(fn, *specs) == left


def test_what_two_others_read_is_computed_once() -> None:
    def fn(x: Any) -> Any:
        y = tt.exp(x) * 2.0
        return tt.relu(y + 1.0).sum(axis=0), y.mT @ y

    assert rows(fn, M)[0] == "exp+multiply"


def test_a_value_that_is_read_through_a_view_does_not_wait_for_itself() -> None:
    def fn(x: Any) -> Any:
        y = tt.exp(x)
        return y * (y @ y.mT @ y) + 1.0

    assert rows(fn, M) == ["exp", "matrix_transpose", "matmul", "matmul+multiply+add"]


def test_results_inside_a_group_come_out_of_it() -> None:
    def fn(x: Any) -> Any:
        a = x * 2.0
        b = tt.exp(a)
        return a, b + 1.0, b

    graph = fuse(simplify(tt.trace(fn, M)).graph, takes_all).graph
    assert [n.op.name for n in graph.order()] == ["given", "fused", "item", "item", "item"]


def quantised_by_hand(x: Any) -> Any:
    y = rms(x)
    top = tt.maximum(tt.abs(y).max(axis=-1, keepdims=True), 1e-5)
    return tt.round(y * (127.0 / top)).to("i8"), top / 127.0


def test_results_that_share_what_they_are_made_of_come_out_of_one_group() -> None:
    assert len(rows(quantised_by_hand, M)) == 1
    assert rows(lambda x: (tt.exp(x) + 1.0, tt.exp(x) * 2.0), M) == ["exp+add+multiply"]
    assert rows(lambda x: (tt.exp(x) + 1.0, (tt.exp(x) * 2.0).sum(axis=0)), M) == ["exp+add+multiply", "sum"]


def test_results_of_which_one_waits_for_the_other_stay_apart() -> None:
    def fn(x: Any) -> Any:
        y = tt.exp(x)
        a = y + 1.0
        return a, (y * (a.mT @ a)[:6, :8] if x.shape[0] >= 8 else y * (a @ a.mT)[:, :1])

    fused = rows(fn, M)
    assert "matmul" in "".join(fused)
    x = tt.randn((6, 8), seed=1)
    done = fuse(simplify(tt.trace(fn, M)).graph, takes_all).graph
    for got, want in zip(done(x), fn(x), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)


def test_a_merged_group_does_not_hold_up_who_reads_of_it() -> None:
    def fn(x: Any) -> Any:
        t, e = x + x, tt.exp(x * 0.1)
        return tt.exp(t * 0.1) + e, e, tt.cumulative_sum(t + t, axis=0), tt.exp(e * 0.1)

    x = tt.randn(5, seed=1)
    done = fuse(simplify(tt.trace(fn, x)).graph, takes_all).graph
    for got, want in zip(done(x), fn(x), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_at_most_so_many_inputs() -> None:
    def fn(*xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    graph = fuse(tt.trace(fn, *[M] * 40), takes_all).graph
    bodies = [dict(n.attrs)["body"] for n in graph.order() if n.op is ops.fused]
    assert len(bodies) == 3
    assert all(len(b.inputs) <= MAX_INPUTS for b in bodies)


def test_a_map_the_runner_does_not_know_stays_apart() -> None:
    def refuses(body: Any) -> str | None:
        return "no erf" if any(s.op is ops.erf for s in body.steps) else None

    assert rows(lambda x: tt.relu(tt.erf(x * 2.0 + 1.0) - 1.0), M, refuses=refuses) == [
        "multiply+add",
        "erf",
        "subtract+relu",
    ]


def test_a_refused_group_of_rows_is_tried_without_its_rows() -> None:
    def refuses(body: Any) -> str | None:
        return "no rows" if any(s.op is ops.softmax for s in body.steps) else None

    def fn(x: Any) -> Any:
        return tt.relu(tt.softmax(x * 2.0 + 1.0) - 0.5)

    assert rows(fn, M, refuses=refuses) == ["multiply+add", "softmax", "subtract+relu"]
    found = fuse(simplify(tt.trace(fn, M)).graph, refuses).opportunities
    assert [o.reason for o in found] == ["no rows", "", ""]


SQUARE = tt.Spec((8, 8), tt.tern2)
READ_TWICE: dict[str, Any] = {
    "by a result of the product": lambda x, w, s: tt.quantized_matmul(y := tt.exp(x), w, s) + y,
    "by a norm and after the product": lambda x, w, s: tt.quantized_matmul(tt.rms_norm(y := tt.exp(x)), w, s) * y,
    "by another call": lambda x, w, s: (tt.quantized_matmul(y := tt.exp(x), w, s), tt.sort(y)),
    "by another product": lambda x, w, s: (
        tt.quantized_matmul(y := tt.exp(x), w, s) @ tt.quantized_matmul(y, w, s * 2.0).mT
    ),
    "as a result": lambda x, w, s: (tt.quantized_matmul(y := tt.exp(x), w, s) * 2.0, y),
    "through a view": lambda x, w, s: tt.quantized_matmul(y := tt.exp(x), w, s)[:, :6] + (y @ y.mT)[:, :6],
}


@pytest.mark.parametrize("who", READ_TWICE)
def test_a_map_that_others_read_too_does_not_stand_before_a_product(who: str) -> None:
    left = rows(READ_TWICE[who], M, SQUARE, tt.Spec(()))
    assert not any("exp+" in name and "quantized_matmul" in name for name in left)


def test_a_norm_that_is_a_result_too_leaves_its_product_to_the_maps_after_it() -> None:
    def fn(x: Any, w: Any, s: Any) -> Any:
        y = tt.rms_norm(x)
        return y, tt.relu(tt.quantized_matmul(y, w, s))

    assert rows(fn, M, TERN, tt.Spec(())) == ["rms_norm", "quantized_matmul+relu"]


def test_a_product_whose_maps_before_are_refused_is_tried_without_them() -> None:
    def refuses(body: Any) -> str | None:
        kinds = [s.op for s in body.steps]
        return "no maps before" if ops.quantized_matmul in kinds and ops.relu2 in kinds else None

    def fn(a: Any, b: Any, w: Any, s: Any, r: Any) -> Any:
        return tt.quantized_matmul(tt.rms_norm(tt.relu2(a) * b), w, s) + r

    specs = (M, M, TERN, tt.Spec(()), tt.Spec((6, 16)))
    assert rows(fn, *specs, refuses=refuses) == ["relu2+multiply", "rms_norm+quantized_matmul+add"]
    found = fuse(simplify(tt.trace(fn, *specs)).graph, refuses).opportunities
    assert [(pattern(o.fragment), o.reason) for o in found] == [
        ("relu2+multiply+rms_norm+quantized_matmul+add", "no maps before"),
        ("rms_norm+quantized_matmul+add", ""),
        ("relu2+multiply", ""),
    ]


def test_the_bytes_that_are_saved() -> None:
    found = fuse(simplify(tt.trace(lambda x: tt.relu(x * x + x), M)).graph, takes_all).opportunities
    nbytes = M.nbytes
    assert saved_bytes(found[0].fragment) == (3 + 3 + 2 - 2) * nbytes


@settings(max_examples=40, deadline=None)
@given(programs.lines)
def test_a_fused_graph_computes_the_same(code: list[programs.Line]) -> None:
    x, y = (np.arange(24, dtype=np.float32).reshape(4, 6) % 7 - 3), np.arange(6, dtype=np.float32) - 2
    a, b = tt.asarray(x), tt.asarray(y)
    graph = tt.trace(lambda *args: programs.run(code, programs.OnTensors, *args), a, b)
    done = fuse(simplify(graph).graph, takes_all).graph
    for got, want in zip(done(a, b), programs.run(code, programs.OnNumpy, x, y), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


# ---- products among maps


K = 24  # of square weights: what stands before a product has the shape of what stands after it
WEIGHTS = [ops.quantize_ternary(tt.randn((K, K), seed=i))[0] for i in range(2)]
TWO = {"add": ops.add, "subtract": ops.subtract, "multiply": ops.multiply, "maximum": ops.maximum}
ONE = {"relu2": ops.relu2, "abs": ops.abs, "norm": ops.rms_norm, "flip": lambda x: x[:, ::-1], "silu": ops.silu}
SCALE = tt.tensor(0.01)
LAYERS = {f"product {i}": lambda x, w=w: ops.quantized_matmul(x, w, SCALE) for i, w in enumerate(WEIGHTS)}
CALLS = {**{name: (fn, 2) for name, fn in TWO.items()}, **{name: (fn, 1) for name, fn in (ONE | LAYERS).items()}}
calls = st.lists(st.tuples(st.sampled_from(list(CALLS)), st.integers(1, 4), st.integers(1, 4)), min_size=3, max_size=14)


def network(code: list[tuple[str, int, int]], results: set[int], x: Any, y: Any) -> Any:
    """Each call reads values that stand so far back; the last one is always a result."""
    made = [x, y]
    for name, *back in code:
        fn, takes = CALLS[name]
        made.append(fn(*(made[-min(b, len(made))] for b in back[:takes])))
    return tuple(v for i, v in enumerate(made[2:], 1) if i in results or i == len(code))


@pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")
@settings(max_examples=60, deadline=None)
@given(calls, st.sets(st.integers(1, 14), max_size=2), st.integers(1, 5), st.integers(0, 7))
def test_products_among_maps_keep_their_bits(
    code: list[tuple[str, int, int]], results: set[int], m: int, refused: int
) -> None:
    x, y = tt.randn((m, K), seed=m), tt.randn((m, K), seed=m + 1)

    def refuses(body: Any) -> str | None:
        unlucky = refused and len(body.names) > 1 and len(body.steps) % 8 == refused
        return "so many steps are refused" if unlucky else tt.device("cpu").backend.refuses(body)

    graph = fuse(simplify(tt.trace(lambda *xs: network(code, results, *xs), x, y)).graph, refuses).graph
    found, wanted = graph(x, y), network(code, results, x, y)
    for got, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_equal_groups_have_one_fragment() -> None:
    def steps(x: Any) -> Any:
        for _ in range(4):
            x = tt.tanh(tt.sort(x) * 2.0 + 1.0)
        return x

    graph = fuse(simplify(tt.trace(steps, V)).graph, takes_all).graph
    bodies = [dict(n.attrs)["body"] for n in graph.order() if n.op is ops.fused]
    assert len(bodies) == 4
    assert len({id(b) for b in bodies}) == 1
