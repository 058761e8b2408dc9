"""Products, diagonals and norms of tritium.linalg beside NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from matrices import close, kinds, matrices, seeds
from tritium import linalg
from tritium.errors import TritiumError


@given(st.sampled_from([(3, 4), (4, 4), (2, 5, 3), (2, 0, 3), (1, 1)]), kinds, seeds, st.integers(-6, 6))
@settings(max_examples=20)
def test_diagonals_and_traces(shape: tuple[int, ...], kind: str, seed: int, offset: int) -> None:
    a = matrices(shape, kind, seed)
    x = tt.asarray(a)
    np.testing.assert_array_equal(linalg.diagonal(x, offset=offset).numpy(), np.linalg.diagonal(a, offset=offset))
    close(linalg.trace(x, offset=offset), np.linalg.trace(a, offset=offset))
    seen = tt.trace(lambda x: linalg.diagonal(x, offset=offset), x.spec)(x)
    np.testing.assert_array_equal(seen.numpy(), np.linalg.diagonal(a, offset=offset))


@given(kinds, seeds, st.sampled_from([0, 1, -1]))
@settings(max_examples=15)
def test_cross_and_outer(kind: str, seed: int, axis: int) -> None:
    a, b = matrices((3, 3), kind, seed), matrices((3, 3), kind, seed + 1)
    np.testing.assert_array_equal(
        linalg.cross(tt.asarray(a), tt.asarray(b), axis=axis).numpy(), np.cross(a, b, axis=axis)
    )
    close(linalg.cross(tt.asarray(a), tt.asarray(b[0])), np.cross(a, b[0]))
    np.testing.assert_array_equal(
        linalg.outer(tt.asarray(a[0]), tt.asarray(b[:, 1])).numpy(), np.multiply.outer(a[0], b[:, 1])
    )


@given(
    kinds,
    seeds,
    st.sampled_from([0, 1, 2, 3, -1, 2.5, np.inf, -np.inf]),
    st.booleans(),
    st.sampled_from([None, 0, -1, (0, 2)]),
)
@settings(max_examples=20)
def test_norms_of_vectors(kind: str, seed: int, ord: Any, keepdims: bool, axis: Any) -> None:
    a = matrices((2, 3, 4), kind, seed)
    close(linalg.vector_norm(tt.asarray(a), ord=ord, axis=axis, keepdims=keepdims),
          np.linalg.vector_norm(a, ord=ord, axis=axis, keepdims=keepdims))  # fmt: skip


@given(kinds, seeds, st.sampled_from(["fro", "nuc", None, 1, -1, 2, -2, np.inf, -np.inf]), st.booleans())
@settings(max_examples=20)
def test_norms_of_matrices(kind: str, seed: int, ord: Any, keepdims: bool) -> None:
    a = matrices((2, 3, 4), kind, seed)
    close(linalg.matrix_norm(tt.asarray(a), ord=ord, keepdims=keepdims),
          np.linalg.matrix_norm(a, ord=ord or "fro", keepdims=keepdims))  # fmt: skip


def test_norms_of_integers_are_floats() -> None:
    norm = linalg.vector_norm(tt.tensor([3, 4]))
    assert (norm.item(), norm.dtype) == (5, tt.f32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: linalg.cross(x, x), "must have 3 elements"),
        (lambda x: linalg.cross(x, x, axis=5), "axis 5 does not exist"),
        (lambda x: linalg.outer(x, x[0]), "two vectors"),
        (lambda x: linalg.diagonal(x[0]), "matrices"),
        (lambda x: linalg.matrix_norm(x[0]), "use vector_norm"),
        (lambda x: linalg.matrix_norm(x, ord=3), "ord=3 is unknown"),
        (lambda x: linalg.matrix_norm(x, ord="max"), "ord='max' is unknown"),
        (lambda x: linalg.vector_norm(x > 0), "norm is of numbers"),
    ],
)
def test_what_has_no_such_product_is_refused(call: Any, words: str) -> None:
    with pytest.raises(TritiumError, match=words):
        call(tt.ones((2, 4)))
