"""Products on MLX: sums of integers are exact for every packing, shape and extreme; the scaled ones have the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import ops
from tritium.testing import values

pytest.importorskip("mlx.core", reason="MLX is not installed: pip install mlx", exc_type=ImportError)

HERE = tt.device("mlx:cpu")


def there(x: Any) -> Any:
    return None if x is None else tt.tensor(x).to(HERE)


def integers(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int, how: str) -> Any:
    """Small integers: drawn, or all as large as they go, on either side."""
    if how == "drawn":
        return rng.integers(low, high + 1, shape).astype(np.int8)
    return np.full(shape, low if how == "low" else high, np.int8)


EXTREMES = st.sampled_from(["drawn", "low", "high"])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([tt.i8, *tt.dtype.PACKED]), st.lists(st.integers(0, 4), max_size=2), st.integers(1, 90),
       st.integers(1, 300), EXTREMES, EXTREMES, st.integers(0, 2**32))  # fmt: skip
def test_integer_products_are_exact(t: Any, lead: list[int], n: int, k: int, q_how: str, w_how: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = t.values if t.is_packed else (-128, 127)
    q = integers(rng, (*lead, k), -128, 127, q_how)
    w = integers(rng, (n, k), low, high, w_how)
    weights = tt.tensor(w) if t is tt.i8 else ops.repack(tt.tensor(w), t)
    got = values(ops.integer_matmul(there(q), weights.to(HERE)))
    np.testing.assert_array_equal(got, (q.astype(np.int64) @ w.T.astype(np.int64)).astype(np.int32))


@pytest.mark.parametrize("k", [65_536, 65_537, 131_072 + 3])
@pytest.mark.parametrize("q", [-128, 127])
@pytest.mark.parametrize("t", [-1, 1])
def test_ternary_sums_are_exact_for_many_columns(k: int, q: int, t: int) -> None:
    w = np.full((3, k), t, np.int8)
    w[1, ::2] = 0
    x = np.full((2, k), q, np.int8)
    x[1, ::3] = -1
    weights = ops.repack(tt.tensor(w), "tern2").to(HERE)
    got = values(ops.integer_matmul(there(x), weights))
    np.testing.assert_array_equal(got, x.astype(np.int64) @ w.T.astype(np.int64))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([tt.i8, *tt.dtype.PACKED]), st.integers(1, 5), st.integers(1, 80), st.integers(1, 200),
       st.sampled_from([0, 1, 7, 64, 2**40]), st.booleans(), st.booleans(), st.integers(0, 2**32))  # fmt: skip
def test_quantized_products_have_the_bits_of_the_reference(
    t: Any, m: int, n: int, k: int, group: int, with_bias: bool, by_group: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)).astype(np.float32)
    w = integers(rng, (n, k), *(t.values if t.is_packed else (-128, 127)), "drawn")
    scale = rng.uniform(0.1, 2, (n, -(-k // group)) if group else (n,)).astype(np.float16 if seed % 2 else np.float32)
    bias = rng.standard_normal(n).astype(np.float32) if with_bias else None
    how = {"group": group, "activations": "group" if group and by_group else "token"}
    weights = tt.tensor(w) if t is tt.i8 else ops.repack(tt.tensor(w), t)
    want = ops.quantized_matmul(
        tt.tensor(x), weights, tt.tensor(scale), None if bias is None else tt.tensor(bias), **how
    )
    got = ops.quantized_matmul(there(x), weights.to(HERE), there(scale), there(bias), **how)
    np.testing.assert_array_equal(values(got), values(want))


def test_rows_of_packed_weights_can_be_looked_at() -> None:
    rng = np.random.default_rng(0)
    w, q = integers(rng, (9, 37), -1, 1, "drawn"), integers(rng, (2, 37), -128, 127, "drawn")
    there_w = ops.repack(tt.tensor(w), "tern2").to(HERE)
    np.testing.assert_array_equal(
        values(ops.integer_matmul(there(q), there_w[2:7])), q.astype(int) @ w[2:7].T.astype(int)
    )


def test_weights_are_repacked_once_to_what_mlx_reads() -> None:
    assert HERE.backend.tiling(tt.dtype.tern5_r80) is tt.dtype.tern2
    assert HERE.backend.tiling(tt.dtype.i4) is tt.dtype.i4
