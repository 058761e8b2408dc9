"""Random stacks of matrices, and how close a result of linear algebra is to NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import tritium as tt

kinds = st.sampled_from(("float32", "float64", "complex64", "complex128"))
seeds = st.integers(0, 2**32)


def matrices(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) + (1j * rng.normal(size=shape) if "complex" in kind else 0)
    return np.asarray(x.astype(kind))


def close(got: tt.Tensor, want: Any) -> None:
    """Raise unless shape and dtype are the same, and the numbers agree to most digits."""
    want = np.asarray(want)
    assert got.numpy().dtype == want.dtype
    assert got.shape == want.shape
    limit = 1e-3 if want.dtype in (np.float32, np.complex64) else 1e-9
    np.testing.assert_allclose(got.numpy(), want, rtol=limit, atol=limit)
