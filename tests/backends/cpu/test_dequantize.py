"""dequantize: the bits of the reference for every format, scale, zero point and length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.testing import expected

VALUES = {"i8": (-128, 127), "i4": (-8, 7), "tern2": (-1, 1), "tern5": (-1, 1)}


@settings(max_examples=80)
@given(
    st.sampled_from(sorted(VALUES)), st.integers(0, 9), st.integers(0, 40), st.sampled_from([0, 1, 2]), st.booleans(),
    st.sampled_from([1, 3, 5, 16]), st.sampled_from(["f32", "f16", "bf16", "f64"]), st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_dequantize_is_that_of_the_reference(
    kind: str, n: int, k: int, rank: int, has_zero: bool, group: int, dtype: str, seed: int, large: bool
) -> None:
    n = n * 30 if large else n  # enough for a table of scaled weights
    rng = np.random.default_rng(seed)
    low, high = VALUES[kind]
    integers = tt.asarray(rng.integers(low, high, (n, k), endpoint=True).astype(np.int8))
    w = integers if kind == "i8" else tt.repack(integers, kind)
    shape = ((), (n,), (n, -(-k // group)))[rank]
    scale = tt.asarray(np.asarray(rng.uniform(0.1, 3, shape), np.float32))
    zero = tt.asarray(np.asarray(rng.integers(-9, 9, shape), np.int32)) if has_zero else None
    attrs: dict[str, Any] = {"group": group if rank == 2 else 0, "dtype": tt.dtype.dtype(dtype)}
    result = tt.dequantize(w, scale, zero, **attrs)
    floats = integers.numpy().astype(np.float32)
    wide = [None if x is None else x.numpy() for x in (scale, zero)]
    if rank == 1:
        wide = [None if x is None else x[:, None] for x in wide]
    if rank == 2:
        wide = [None if x is None else np.repeat(x, group, axis=1)[:, :k] for x in wide]
    want = (floats if wide[1] is None else floats - wide[1].astype(np.float32)) * wide[0]
    np.testing.assert_array_equal(result.to("f64").numpy(), tt.asarray(want).to(dtype).to("f64").numpy())


def test_bytes_that_are_no_code_are_found_wherever_they_are() -> None:
    for k in (5, 41, 200):
        for place in (0, k // 5 - 1):
            packed = tt.repack(tt.zeros((3, k), dtype="i8"), "tern5")
            packed_bytes = packed.storage
            view = np.ndarray((packed_bytes.nbytes,), np.uint8, packed_bytes.memory)
            view[2 * -(-k // 5) + place] = 243
            with pytest.raises(tt.errors.QuantError, match=rf"2, {5 * place}|\[2\]"):
                tt.dequantize(packed, 1.0)


def test_the_reference_agrees_with_the_formula() -> None:
    data = [np.arange(-6, 6, dtype=np.int8).reshape(3, 4), np.float32(0.5), None]
    want = expected(tt.dequantize, data, {})
    np.testing.assert_array_equal(want, data[0].astype(np.float32) * np.float32(0.5))
