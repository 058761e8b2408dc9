"""simplify: what goes, what stays because a bit would change, and what becomes a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import ops
from tritium.compiler.passes import RULES, holds, simplify
from tritium.graph.graph import Node, run_node

V = tt.Spec((3,))
M = tt.Spec((3, 4))


def simple(fn: Any, *specs: Any) -> list[str]:
    """The rows that are left, without arguments and constants."""
    graph = simplify(tt.trace(fn, *specs), evaluate).graph
    return [n.op.name for n in graph.order() if n.op not in (ops.given, ops.const)]


def evaluate(n: Node, xs: list[Any]) -> Any:
    return run_node(n, xs, tt.device("cpu"))


GONE: list[tuple[Any, Any]] = [
    (lambda x: x * 1.0, V),
    (lambda x: 1.0 * x, V),
    (lambda x: x / 1.0, V),
    (lambda x: x - 0.0, V),
    (lambda x: x + -0.0, V),
    (lambda x: x + 0, tt.Spec((3,), tt.i32)),
    (lambda x: -(tt.negative(x)), V),
    (lambda x: ~(~x), tt.Spec((3,), tt.bool)),
    (lambda x: +x, V),
    (lambda x: x.clone(), V),
    (lambda x: tt.copy(x), V),
    (lambda x: tt.clip(x), V),
    (lambda x: tt.where(True, x, x * 2.0), V),
    (lambda x: x.to("f64").to("f32"), V),
    (lambda x: x.to("f32").to("f16"), tt.Spec((3,), tt.f16)),
    (lambda x: x.to("f32").to("i8"), tt.Spec((3,), tt.i8)),
    (lambda x: x.reshape(4, 3).reshape(3, 4), M),
    (lambda x: x.mT.mT, M),
    (lambda x: tt.permute_dims(x.mT, (1, 0)), M),
    (lambda x: tt.broadcast_to(x, (3, 4)), M),
    (lambda x: x[:], M),
    (lambda x: x[:, ...], M),
    (lambda w: tt.repack(tt.repack(w, "i8"), "tern2"), tt.Spec((4, 8), tt.tern2)),
]


@pytest.mark.parametrize(("fn", "spec"), GONE)
def test_what_changes_nothing_goes(fn: Any, spec: Any) -> None:
    assert simple(fn, spec) == []


STAYS: list[tuple[Any, Any, list[str]]] = [
    (lambda x: x + 0.0, V, ["add"]),  # -0.0 becomes 0.0
    (lambda x: x - -0.0, V, ["subtract"]),
    (lambda x: x * 0.0, V, ["multiply"]),
    (lambda x: x - x, V, ["subtract"]),  # infinities
    (lambda x: x.to("f16").to("f32"), V, ["astype", "astype"]),
    (lambda x: x.to("i8").to("f32"), V, ["astype", "astype"]),
    (lambda x: x + tt.zeros((2, 3)), V, ["add"]),  # it gives the shape
    (lambda x: tt.exp(tt.log(x)), V, ["log", "exp"]),
    (lambda x: tt.pow(x, 1.0), V, ["pow"]),
]


@pytest.mark.parametrize(("fn", "spec", "left"), STAYS)
def test_what_could_change_a_bit_stays(fn: Any, spec: Any, left: list[str]) -> None:
    assert simple(fn, spec) == left


def test_dequantising_what_was_quantised_stays_since_it_rounds() -> None:
    def fn(x: Any) -> Any:
        q, scale, _ = tt.quantize_activations(x)
        return tt.dequantize(q, scale)

    assert "quantize_activations" in simple(fn, M)
    notes = simplify(tt.trace(fn, M)).notes
    assert [n.why for n in notes if n.what == "quantise and dequantise"] == [
        "it rounds: the values are not those before"
    ]


def test_equal_calls_are_one_whatever_the_order_of_their_operands() -> None:
    assert simple(lambda a, b: (a + b) * (b + a), V, V) == ["add", "multiply"]
    assert simple(lambda a, b: (a - b) * (b - a), V, V).count("subtract") == 2
    assert simple(lambda a, b: tt.maximum(a, b) - tt.maximum(b, a), V, V).count("maximum") == 2  # 0.0 and -0.0


def test_a_tensor_of_one_number_is_that_number() -> None:
    assert simple(lambda x: (x + tt.ones(3)) * tt.full((1, 3), 2.0)[0], V) == ["add", "multiply"]


def test_constants_are_computed_once_by_the_device_itself() -> None:
    def fn(x: Any) -> Any:
        angle = tt.exp(tt.full((), 1.0)) * 2.0
        return x * tt.sin(tt.arange(3, dtype="f32") * 0.5) + angle

    done = simplify(tt.trace(fn, V), evaluate)
    assert [n.op.name for n in done.graph.order()] == ["given", "given", "multiply", "const", "add"]
    table = next(iter(done.graph.captured.values()))
    np.testing.assert_array_equal(table.numpy(), tt.sin(tt.arange(3, dtype="f32") * 0.5).numpy())
    x = tt.ones(3)
    np.testing.assert_array_equal(done.graph(x).numpy(), fn(x).numpy())


def test_a_large_constant_is_made_at_each_call() -> None:
    assert simple(lambda x: x + tt.arange(3 * 10**6, dtype="f32"), tt.Spec(())) == ["arange", "add"]


def test_weights_are_not_folded() -> None:
    w = tt.ones(3)
    assert simple(lambda x: x + w * 2.0, V) == ["multiply", "add"]


def test_a_copy_made_for_a_product_is_not_made() -> None:
    assert simple(lambda x, y: x @ y.mT.contiguous(), M, M) == ["matrix_transpose", "matmul"]


def test_what_was_left_is_told_with_its_reason() -> None:
    notes = simplify(tt.trace(lambda x: (x + 0.0).to("f16").to("f32"), V)).notes
    assert {(n.what, n.applied) for n in notes} == {("identity", False), ("cast there and back", False)}
    assert "-0.0" in notes[0].why


@pytest.mark.parametrize(
    ("wide", "narrow", "does"),
    [("f32", "f16", True), ("f32", "bf16", True), ("f16", "bf16", False), ("bf16", "f16", False), ("f32", "i16", True),
     ("f32", "i32", False), ("f64", "i32", True), ("i16", "u8", True), ("u16", "i8", False), ("i8", "bool", True),
     ("bool", "i8", False), ("i64", "f32", False)],
)  # fmt: skip
def test_which_dtypes_hold_which(wide: str, narrow: str, does: bool) -> None:
    assert holds(tt.asarray(np.zeros(1)).to(wide).dtype, tt.asarray(np.zeros(1)).to(narrow).dtype) is does


def test_every_rule_is_for_a_row() -> None:
    assert all(isinstance(op, tt.Op) and callable(rule) and name for op, (name, rule) in RULES.items())


def test_twenty_thousand_nodes_deep() -> None:
    def fn(x: Any) -> Any:
        for i in range(10_000):
            x = tt.relu(x * float(i % 3) - 0.0)
        return x

    assert len(simplify(tt.trace(fn, V)).graph.order()) < 20_010


def test_equal_numbers_make_equal_calls_one() -> None:
    def fn(x: Any) -> Any:
        one, two = tt.full((), 2.0) * 3.0, tt.full((), 12.0) / 2.0
        return tt.sort(x) * one, tt.sort(x) * two

    assert simple(fn, V) == ["sort", "multiply"]


def test_calls_that_read_tensors_of_constants_stay_apart() -> None:
    def fn(x: Any) -> Any:
        one, two = tt.ones((3,)) * tt.arange(3), tt.ones((3,)) + tt.arange(3)
        return tt.matmul(x, one), tt.matmul(x, two)

    assert simple(fn, V) == ["matmul", "matmul"]
