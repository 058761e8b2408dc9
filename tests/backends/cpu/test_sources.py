"""arange, linspace and eye: the bits of the reference for every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.backends.reference.kernels import KERNELS
from tritium.buffer import native

INTEGERS = [tt.i8, tt.i16, tt.i32, tt.i64, tt.u8, tt.u16, tt.u32, tt.u64]
FLOATS = [tt.f16, tt.bf16, tt.f32, tt.f64]
NUMBERS = st.floats(-300, 300) | st.integers(-300, 300)


def assert_of_reference(op: Any, result: tt.Tensor, **attrs: Any) -> None:
    want = np.empty(result.shape, result.dtype.numpy)
    KERNELS[op](out=want, **attrs)
    size = f"u{want.dtype.itemsize}"
    np.testing.assert_array_equal(result.numpy().view(size), want.view(size))


@settings(max_examples=60)
@given(st.sampled_from(INTEGERS + FLOATS), NUMBERS, NUMBERS | st.none(), NUMBERS.filter(lambda v: abs(v) > 0.3))
def test_arange_counts_as_the_reference(kind: Any, start: Any, stop: Any, step: Any) -> None:
    result = tt.arange(start, stop, step, dtype=kind)
    assert_of_reference(tt.arange, result, start=start, stop=stop, step=step)


def test_arange_counts_down_and_wraps_in_every_integer_dtype() -> None:
    for kind in INTEGERS:
        assert tt.arange(5, 0, -2, dtype=kind).tolist() == [5, 3, 1]
    assert tt.arange(250, 260, 3, dtype=tt.u8).tolist() == [250, 253, 0, 3]
    assert tt.arange(2**63 - 1, 2**63 + 2, dtype=tt.u64).tolist() == [2**63 - 1, 2**63, 2**63 + 1]
    assert int(tt.arange(300_000)[-1]) == 299_999


@settings(max_examples=60)
@given(st.sampled_from(INTEGERS[2:4] + FLOATS), NUMBERS, NUMBERS, st.integers(0, 2500), st.booleans())
def test_linspace_is_that_of_the_reference(kind: Any, start: Any, stop: Any, num: int, endpoint: bool) -> None:
    result = tt.linspace(start, stop, num, dtype=kind, endpoint=endpoint)
    assert_of_reference(tt.linspace, result, start=start, stop=stop, num=num, endpoint=endpoint)


@pytest.mark.parametrize("ends", [(0.0, 5e-324), (-1e308, 1e308), (1.0, 1.0)])
def test_linspace_of_extreme_ends(ends: tuple[float, float]) -> None:
    for num in (1, 2, 7):
        result = tt.linspace(*ends, num, dtype=tt.f64)
        assert_of_reference(tt.linspace, result, start=ends[0], stop=ends[1], num=num, endpoint=True)


@settings(max_examples=40)
@given(
    st.sampled_from([tt.bool, *INTEGERS, *FLOATS]),
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.integers(-12, 12),
)
def test_eye_has_its_diagonal(kind: Any, rows: int, columns: int | None, k: int) -> None:
    want = np.eye(rows, columns, k).astype(kind.numpy)
    np.testing.assert_array_equal(tt.eye(rows, columns, k=k, dtype=kind).numpy(), want)


@pytest.mark.skipif(native is None, reason="calls are replayed by native code")
@pytest.mark.parametrize(
    ("op", "call"),
    [
        (tt.arange, lambda: tt.arange(8)),
        (tt.arange, lambda: tt.arange(0, 4, 0.5, dtype="f16")),
        (tt.linspace, lambda: tt.linspace(0, 1, 5)),
        (tt.eye, lambda: tt.eye(3, dtype="bf16")),
    ],
)
def test_sources_run_natively_and_are_replayed(op: Any, call: Any) -> None:
    call()
    before = op.hits
    call()
    assert op.hits == before + 1
