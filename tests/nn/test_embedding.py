"""Embeddings whose table stays packed: the rows of the dequantised table, bit for bit, and one table for a tied head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.errors import ArgumentError, BoundsError, DTypeError, ShapeError


def table(n: int = 90, k: int = 256, *, group: int = 128, dtype: str = "tern2", seed: int = 0) -> tt.nn.BitLinear:
    return tt.nn.BitLinear(tt.quant.ternary(tt.randn((n, k), seed=seed), group=group, dtype=dtype))


@pytest.mark.parametrize("dtype", ["tern2", "tern5"])
@pytest.mark.parametrize("group", [0, 32, 128])
def test_rows_are_those_of_the_dequantised_table(group: int, dtype: str) -> None:
    weight = table(group=group, dtype=dtype)
    ids = tt.tensor([[0, 89, -1], [7, 7, -90]])
    rows = tt.nn.QuantEmbedding(weight)(ids)
    assert rows.dtype is tt.f32
    assert np.array_equal(rows.numpy(), weight.dequantize().numpy()[ids.numpy()])


@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 150)), group=st.sampled_from([0, 1, 7, 64]), rows=st.booleans(),
    tiled=st.booleans(), kind=st.sampled_from(["tern2", "tern5", "i4", "i8"]), half=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_take_rows_is_a_take_of_dequantised_rows(
    shape: Any, group: int, rows: bool, tiled: bool, kind: str, half: bool, seed: int
) -> None:
    rng, (n, k) = np.random.default_rng(seed), shape
    low, high = (-1, 2) if kind.startswith("tern") else (-8, 8)
    scales = (n, -(-k // group)) if group else (n,) if rows else ()
    scale = rng.uniform(0.5, 2, scales).astype(np.float16).astype(np.float32)
    integers = rng.integers(low, high, shape).astype(np.int8)
    q = tt.quant.from_integers(integers, scale, group=group, dtype=kind)
    q = q.tiled() if tiled else q
    ids = rng.integers(-n, n, rng.integers(0, 9, int(rng.integers(0, 3))))
    spread = np.repeat(scale, min(group, k), axis=1)[:, :k] if group else scale[..., None] if scales else scale
    got = tt.take_rows(q.data, q.scale.to(tt.f16) if half else q.scale, tt.asarray(ids), q.group)
    assert np.array_equal(got.numpy(), (integers.astype(np.float32) * spread)[ids])


def test_a_tied_head_shares_the_table() -> None:
    weight = table()
    embedding = tt.nn.QuantEmbedding(weight)
    assert embedding.weight is weight
    x = embedding(tt.tensor([[3, 5]]))
    head = tt.nn.Head(tt.nn.RMSNorm(tt.ones(256)), embedding.weight)
    assert head(x).shape == (1, 2, 90)
    assert weight.nbytes < 90 * 256 * 2  # a quarter of a byte a weight, in whole tiles, and scales


def test_it_is_traced_compiled_and_batched() -> None:
    embedding = tt.nn.QuantEmbedding(table())
    ids = tt.tensor([[1, 2, 3], [4, 5, 6]])
    wanted = embedding(ids).numpy()
    run = tt.compile(lambda i: embedding(i) * 2.0)
    assert np.array_equal(run(ids).numpy(), wanted * 2)
    assert np.array_equal(tt.vmap(embedding)(ids).numpy(), wanted)
    out = tt.empty((2, 3, 256))
    q = embedding.weight.weight
    tt.take_rows(q.data, q.scale, ids, q.group, out=out)
    assert np.array_equal(out.numpy(), wanted)


@pytest.mark.parametrize("index", [90, -91, 2**40])
def test_tokens_outside_the_vocabulary_are_refused(index: int) -> None:
    with pytest.raises(BoundsError, match=rf"take_rows: index {index} is outside an axis of size 90"):
        tt.nn.QuantEmbedding(table())(tt.tensor([0, index]))


def test_wrong_arguments_are_refused_by_name() -> None:
    q = tt.quant.ternary(tt.randn((9, 64), seed=0), group=32)
    with pytest.raises(DTypeError, match="take_rows: indices must be integers"):
        tt.take_rows(q.data, q.scale, tt.tensor([0.5]), 32)
    with pytest.raises(ShapeError, match=r"take_rows: scale must have shape \[9,4\]"):
        tt.take_rows(q.data, q.scale, tt.tensor([0]), 16)
    with pytest.raises(DTypeError, match="take_rows: the weights must be a matrix"):
        tt.take_rows(tt.ones((3, 4)), tt.tensor(1.0), tt.tensor([0]))
    with pytest.raises((ArgumentError, TypeError)):
        tt.nn.QuantEmbedding(tt.ones((3, 4)))  # type: ignore[arg-type]


def test_another_device_has_the_same_bits() -> None:
    pytest.importorskip("torch", reason="needs torch")
    weight = table(group=64)
    ids = tt.tensor([[0, 89], [-1, 3]])
    wanted = tt.nn.QuantEmbedding(weight)(ids).numpy()
    moved = tt.nn.QuantEmbedding(weight).to("torch")
    assert np.array_equal(moved(ids.to(device="torch")).to("cpu").numpy(), wanted)
