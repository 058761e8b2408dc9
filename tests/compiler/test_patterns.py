"""Fusions of a user: found in graphs, checked on first use, refused when they are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import buffer, ops
from tritium.compiler import patterns
from tritium.errors import ArgumentError, VerifyError
from tritium.op import Kind

X = tt.randn((4, 8), seed=1)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for p in patterns.patterns():
        tt.remove_pattern(p.name)


calls: list[str] = []


def swish_by_silu(x: Any) -> Any:
    calls.append("swish")
    return tt.silu(x)


def used(fn: Any, *args: Any) -> list[str]:
    program = tt.compile(fn).program(*args)
    return [n.node for n in program.notes if n.what == "pattern" and n.applied]


def test_a_chain_in_a_graph_becomes_the_implementation() -> None:
    tt.add_pattern(tt.FusionPattern("negated", ("negative", "exp", "reciprocal"), lambda x: tt.exp(x)))
    fn = tt.compile(lambda x: tt.reciprocal(tt.exp(-x)) + 1.0)
    np.testing.assert_allclose(fn(X).numpy(), tt.exp(X).numpy() + 1, rtol=1e-5)
    names = [n.op.name for n in fn.graph(X).order()]
    assert "reciprocal" not in str(names)
    assert used(lambda x: tt.reciprocal(tt.exp(-x)), X) == ["negated"]


def test_operands_come_in_the_order_of_the_chain() -> None:
    tt.add_pattern(tt.FusionPattern("axpy", ("multiply", "add"), lambda a, b, c: tt.add(tt.multiply(a, b), c)))
    fn = tt.compile(lambda a, b, c: c + a * b)
    a, b, c = (tt.randn(5, seed=i) for i in range(3))
    np.testing.assert_array_equal(fn(a, b, c).numpy(), (c + a * b).numpy())
    assert used(lambda a, b, c: c + a * b, a, b, c) == ["axpy"]


def test_what_others_read_stays() -> None:
    tt.add_pattern(tt.FusionPattern("axpy", ("multiply", "add"), lambda a, b, c: a * b + c))
    assert used(lambda a: (a * a + 1.0, a * a), X) == []


def test_the_order_of_operands_that_do_not_commute_counts() -> None:
    tt.add_pattern(tt.FusionPattern("less", ("multiply", "subtract"), lambda a, b, c: a * b - c))
    assert used(lambda a, c: c - a * a, X, X) == []
    assert used(lambda a, c: a * a - c, X, X) == ["less"]


def test_a_wrong_implementation_is_noticed_on_first_use() -> None:
    tt.add_pattern(tt.FusionPattern("wrong", ("multiply", "add"), lambda a, b, c: a * b - c))
    fn = tt.compile(lambda a: a * a + a)
    with pytest.raises(VerifyError, match="The pattern wrong does not compute what its ops do"):
        fn(X)


def test_an_implementation_of_another_spec_is_refused() -> None:
    tt.add_pattern(tt.FusionPattern("short", ("multiply", "add"), lambda a, b, c: (a * b + c)[0]))
    with pytest.raises(
        ArgumentError, match=r"'short': its implementation returned f32\[8\], but multiply\+add returns f32\[4,8\]"
    ):
        tt.compile(lambda a: a * a + a)(X)


def test_an_implementation_that_needs_values_is_left_to_try_fuse() -> None:
    def by_numpy(a: Any, b: Any, c: Any) -> Any:
        return tt.asarray(a.numpy() * b.numpy() + c.numpy())

    tt.add_pattern(tt.FusionPattern("host", ("multiply", "add"), by_numpy))
    program = tt.compile(lambda a: a * a + a).program(X)
    assert next(n.why for n in program.notes if n.what == "pattern").startswith("its implementation cannot be traced")
    got = tt.try_fuse(["multiply", "add"], [X, X, X])
    np.testing.assert_array_equal(got.numpy(), (X * X + X).numpy())


def test_try_fuse_checks_an_implementation_once() -> None:
    tt.add_pattern(tt.FusionPattern("swish", ("sigmoid", "multiply"), lambda x, y: swish_by_silu(x)))
    calls.clear()
    for _ in range(3):
        np.testing.assert_allclose(tt.try_fuse(["sigmoid", "multiply"], [X, X]).numpy(), tt.silu(X).numpy(), rtol=1e-5)
    assert len(calls) == 3


def test_a_pattern_is_checked_anew_where_attributes_differ() -> None:
    tt.add_pattern(tt.FusionPattern("rows", ("softmax", "multiply"), lambda x, y: tt.softmax(x, axis=-1) * y))
    right = tt.compile(lambda x: tt.softmax(x, axis=-1) * x)
    np.testing.assert_array_equal(right(X).numpy(), (tt.softmax(X, axis=-1) * X).numpy())
    with pytest.raises(VerifyError, match="rows"):
        tt.compile(lambda x: tt.softmax(x, axis=0) * x)(X)
    assert tt.try_fuse([("softmax", {"axis": -1}), "multiply"], [X, X]) is not None
    with pytest.raises(VerifyError, match="rows"):
        tt.try_fuse([("softmax", {"axis": 0}), "multiply"], [X, X])


def test_an_implementation_that_fails_while_it_is_written_down_is_named() -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no luck")

    tt.add_pattern(tt.FusionPattern("fails", ("multiply", "add"), fails))
    with pytest.raises(RuntimeError, match="pattern 'fails' failed: no luck"):
        tt.compile(lambda a: a * a + a)(X)


def test_try_fuse_raises_what_an_implementation_raises() -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no luck")

    tt.add_pattern(tt.FusionPattern("fails", ("multiply", "add"), fails))
    with pytest.raises(RuntimeError, match="no luck"):
        tt.try_fuse(["multiply", "add"], [X, X, X])


def test_try_fuse_refuses_a_wrong_result() -> None:
    tt.add_pattern(tt.FusionPattern("wrong", ("multiply", "add"), lambda a, b, c: a))
    with pytest.raises(VerifyError, match="'wrong' differs"):
        tt.try_fuse(["multiply", "add"], [X, X, X])


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ("add", "list or tuple of strings"),
        ((), "names of ops"),
        (("ad",), "Did you mean 'add'"),
        (("zeros_like",), "no op"),
        (("full",), "computes nothing"),
    ],
)
def test_a_pattern_names_rows(operations: tuple[str, ...], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.FusionPattern("p", operations, lambda x: x)


def test_programs_made_before_are_made_anew() -> None:
    fn = tt.compile(lambda a: a * a + a)
    fn(X)
    tt.add_pattern(tt.FusionPattern("axpy", ("multiply", "add"), lambda a, b, c: a * b + c))
    assert [n.node for n in fn.program(X).notes if n.what == "pattern"] == ["axpy"]


def test_an_unknown_pattern_cannot_be_removed() -> None:
    with pytest.raises(ArgumentError, match="no pattern 'x'"):
        tt.remove_pattern("x")


def test_the_longest_pattern_wins() -> None:
    tt.add_pattern(tt.FusionPattern("two", ("multiply", "add"), lambda a, b, c: a * b + c))
    tt.add_pattern(tt.FusionPattern("three", ("multiply", "add", "relu"), lambda a, b, c: ops.relu(a * b + c)))
    assert used(lambda a: tt.relu(a * a + a), X) == ["three"]


def test_a_pattern_is_used_from_the_next_call_on_and_no_longer_than_it_is_there() -> None:
    calls.clear()
    fn = tt.compile(lambda x: tt.exp(tt.negative(x)))
    fn(X), fn(X)
    tt.add_pattern(tt.FusionPattern("decay", ("negative", "exp"), lambda x: (calls.append("traced"), tt.exp(-x))[1]))
    fn(X)
    assert calls == ["traced"]
    tt.remove_pattern("decay")
    assert not [n for n in fn.program(X).notes if n.what == "pattern"]


@pytest.mark.skipif(buffer.native is None, reason="the pair is one call of native code")
@pytest.mark.parametrize(
    ("chain", "operands"),
    [
        (["quantize_int8", "dequantize"], 0),
        ([("quantize_int8", {"symmetric": False, "axis": 0}), "dequantize"], 0),
        (["quantize_int4", "dequantize"], 0),
        ([("quantize_int4", {"group": 3, "symmetric": False}), ("dequantize", {"dtype": "f16"})], 0),
        (["quantize_ternary", "dequantize"], 0),
        (["quantize_activations", "dequantize"], 0),
        (["quantize", "dequantize"], 2),
    ],
    ids=str,
)
def test_quantising_and_dequantising_fuse(chain: Any, operands: int) -> None:
    x = tt.randn((4, 32), seed=1)
    rows = [(o, {}) if isinstance(o, str) else o for o in chain]
    first = tt.__dict__[rows[0][0]](x, *([0.1] if operands else []), **rows[0][1])
    parts = first if isinstance(first, tuple) else (first, 0.1)
    zero = parts[2] if len(parts) > 2 and rows[0][0] != "quantize_activations" else None
    group = ops.OPS[rows[0][0]].complete(rows[0][1]).get("group", 0)
    want = tt.dequantize(parts[0], parts[1], zero, group, **rows[1][1])
    fused = tt.try_fuse(chain, [x, *[0.1] * operands])
    assert fused is not None
    np.testing.assert_array_equal(fused.numpy(), want.numpy())
    with pytest.raises(ArgumentError, match=f"read {operands + 1} operands"):
        tt.try_fuse(chain, [x, *[0.1] * operands, x])


# ---- attention in blocks


def masked(scores: Any) -> Any:
    return tt.where(tt.tril(tt.ones(scores.shape[-2:])) > 0, scores, -1e9)


def softmax_by_hand(s: Any) -> Any:
    e = tt.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


SPELLINGS: dict[str, Any] = {
    "plain": lambda q, k, v: tt.softmax(q @ k.mT) @ v,
    "scaled": lambda q, k, v: tt.softmax((q * 0.25) @ k.mT / 2.0, axis=-1) @ v,
    "masked": lambda q, k, v: tt.softmax(masked(q @ k.mT * 0.125)) @ v,
    "added mask": lambda q, k, v: tt.softmax(q @ k.mT + tt.triu(tt.full((q.shape[-2], k.shape[-2]), -1e9), k=1)) @ v,
    "positions": lambda q, k, v: (
        tt.softmax(tt.where(tt.arange(q.shape[-2])[:, None] >= tt.arange(k.shape[-2]), q @ k.mT, -1e9)) @ v
    ),
    "last axis": lambda q, k, v: tt.softmax(q @ k.mT, axis=q.ndim - 1) @ v,
    "by hand": lambda q, k, v: softmax_by_hand(q @ k.mT * 0.5) @ v,
    "two scores": lambda q, k, v: tt.softmax(q @ k.mT + (q * 2) @ (k + 1).mT) @ v,
    "einsum": lambda q, k, v: tt.einsum("...qk,...kd->...qd", tt.softmax(tt.einsum("...qd,...kd->...qk", q, k)), v),
    "twice": lambda q, k, v: tt.softmax((tt.softmax(q @ k.mT) @ v) @ k.mT) @ v,
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SCORES_BYTES", 1), ("BLOCK_BYTES", 256), ("MIN_ROWS", 3)):
        monkeypatch.setattr(patterns, name, value)


def blocks(program: Any) -> list[str]:
    return [n.why for n in program.notes if n.what == "attention"]


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (1, 2)], ids=str)
def test_attention_in_plain_ops_is_computed_in_blocks(small_blocks: None, name: str, lead: tuple[int, ...]) -> None:
    q, k, v = (tt.randn((*lead, n, 8), seed=i) for i, n in enumerate((11, 13, 13)))
    fn = SPELLINGS[name]
    compiled = tt.compile(fn, verify=True)
    np.testing.assert_allclose(compiled(q, k, v).numpy(), fn(q, k, v).numpy(), rtol=1e-5, atol=1e-6)
    program = compiled.program(q, k, v)
    assert len(blocks(program)) == (2 if name == "twice" else 1)
    assert all(n.spec.shape[-2:] != (11, 13) or n.op.kind is not Kind.CONTRACT for n in program.graph.order())


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(4, 2), (6, 1), (2, 2)])
def test_grouped_heads_and_shared_keys_are_computed_in_blocks(small_blocks: None, q_heads: int, kv_heads: int) -> None:
    q = tt.randn((2, q_heads, 9, 4), seed=1)
    k, v = (tt.randn((2, kv_heads, 7, 4), seed=i) for i in (2, 3))
    bias = tt.randn((q_heads, 9, 1), seed=4)

    def repeated(q: Any, k: Any, v: Any) -> Any:
        keys, values = (tt.repeat(x, q_heads // kv_heads, axis=1) for x in (k, v))
        return tt.softmax(q @ keys.mT + bias) @ values

    def grouped(q: Any, k: Any, v: Any) -> Any:
        groups = q.reshape(2, kv_heads, -1, 9, 4)
        return (tt.softmax(groups @ k[:, :, None].mT) @ v[:, :, None]).reshape(q.shape)

    for fn in (repeated, grouped, lambda q, k, v: tt.softmax(q @ k[0, 0].mT) @ v[0, 0]):
        compiled = tt.compile(fn)
        np.testing.assert_allclose(compiled(q, k, v).numpy(), fn(q, k, v).numpy(), rtol=1e-5, atol=1e-6)
        assert blocks(compiled.program(q, k, v))


NOT_ATTENTION: dict[str, Any] = {
    "scores are a result": lambda q, k, v: ((s := tt.softmax(q @ k.mT)) @ v, s),
    "scores are read elsewhere": lambda q, k, v: (tt.softmax(s := q @ k.mT) @ v) + s.sum(),
    "rows depend on each other": lambda q, k, v: tt.softmax(q @ k.mT, axis=-2) @ v,
    "a network": lambda q, k, v: tt.relu(q @ k.mT) @ v,
    "no scores": lambda q, k, v: tt.softmax(q) @ k.mT,
    "more leading axes": lambda q, k, v: tt.softmax(q @ k.mT) @ tt.stack([v, v]),
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_only_looks_like_attention_is_left_as_it_is(small_blocks: None, name: str) -> None:
    q, k, v = (tt.randn((9, 8), seed=i) for i in range(3))
    compiled = tt.compile(NOT_ATTENTION[name])
    got, want = compiled(q, k, v), NOT_ATTENTION[name](q, k, v)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)
    assert not blocks(compiled.program(q, k, v))


@pytest.mark.skipif(buffer.native is None, reason="needs the native library: without it nothing is planned")
def test_large_attention_takes_little_memory() -> None:
    q, k, v = (tt.randn((2, 1100, 16), seed=i) for i in range(3))
    fn = SPELLINGS["masked"]
    compiled = tt.compile(fn)
    program = compiled.program(q, k, v)
    assert program.arena_bytes < 2 * 1100 * 1100 * 4
    np.testing.assert_allclose(compiled(q, k, v).numpy(), fn(q, k, v).numpy(), rtol=1e-5, atol=1e-6)
    assert "attention: " in compiled.explain(q, k, v)
