"""fuse: which nodes become one, which must not, and that the graph computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import programs
import tritium as tt
from tritium import ops
from tritium.fuse import MAX_INPUTS, fuse, pattern, saved_bytes
from tritium.passes import simplify

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
