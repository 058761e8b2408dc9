"""tritium.linalg beside numpy.linalg: values, shapes of stacks and of nothing, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from matrices import close, kinds, matrices, seeds
from tritium import linalg
from tritium.errors import TritiumError

leads = st.sampled_from([(), (2,), (0,), (2, 3)])
sizes = st.integers(0, 5)


def adjoint(x: tt.Tensor) -> tt.Tensor:
    return tt.matrix_transpose(tt.conj(x))


@given(leads, sizes, kinds, seeds)
@settings(max_examples=15)
def test_square_matrices(lead: tuple[int, ...], n: int, kind: str, seed: int) -> None:
    a = matrices((*lead, n, n), kind, seed) + 4 * np.eye(n, dtype=kind)
    x = tt.asarray(a)
    close(linalg.det(x), np.linalg.det(a))
    close(linalg.inv(x), np.linalg.inv(a))
    for got, want in zip(linalg.slogdet(x), np.linalg.slogdet(a), strict=True):
        close(got, want)
    b = matrices((*lead, n, 3), kind, seed + 1)
    close(linalg.solve(x, tt.asarray(b)), np.linalg.solve(a, b))
    vector = matrices((n,), kind, seed + 2)
    close(linalg.solve(x, tt.asarray(vector)), np.linalg.solve(a, vector[:, None])[..., 0])
    for power in (0, 1, 2, 3, 5, -2):
        close(linalg.matrix_power(x, power), np.linalg.matrix_power(a, power)) if power > -1 or n else None
    h = x + adjoint(x)
    values, vectors = linalg.eigh(h)
    close(linalg.eigvalsh(h), np.linalg.eigvalsh(h.numpy()))
    close(vectors * tt.expand_dims(values, axis=-2), (h @ vectors).numpy())
    positive = x @ adjoint(x) + tt.eye(n, dtype=x.dtype)
    close(linalg.cholesky(positive) @ adjoint(linalg.cholesky(positive)), positive.numpy())
    close(linalg.cholesky(positive, upper=True), adjoint(linalg.cholesky(positive)).numpy())


@given(leads, sizes, sizes, kinds, seeds, st.booleans())
@settings(max_examples=15)
def test_matrices(lead: tuple[int, ...], m: int, n: int, kind: str, seed: int, full: bool) -> None:
    a = matrices((*lead, m, n), kind, seed)
    x = tt.asarray(a)
    u, s, vh = linalg.svd(x, full_matrices=full)
    k = min(m, n)
    close(s, np.linalg.svd(a, compute_uv=False))
    close(linalg.svdvals(x), s.numpy())
    assert (u.shape, vh.shape) == ((*lead, m, m if full else k), (*lead, n if full else k, n))
    close((u[..., :k] * tt.expand_dims(s, axis=-2)) @ vh[..., :k, :], a)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(x, mode=mode)
        close(q @ r, a)
        assert q.shape == (*lead, m, m if mode == "complete" else k)
    if m and n:
        close(linalg.pinv(x), np.linalg.pinv(a))
    np.testing.assert_array_equal(
        linalg.matrix_rank(x).numpy(), np.linalg.matrix_rank(a) if m and n else np.zeros(lead)
    )


def test_tolerances_of_rank_and_pseudo_inverse() -> None:
    a = np.diag([4.0, 1.0, 0.1])
    stack = np.stack([a, a])
    assert linalg.matrix_rank(tt.asarray(a), rtol=0.1).item() == 2
    assert linalg.matrix_rank(tt.asarray(stack), rtol=tt.asarray(np.array([0.1, 0.5]))).tolist() == [2, 1]
    np.testing.assert_allclose(linalg.pinv(tt.asarray(a), rtol=0.1).numpy(), np.linalg.pinv(a, rcond=0.1))


def test_integers_and_halves_are_computed_in_f32() -> None:
    assert linalg.det(tt.tensor([[2, 0], [0, 3]])).item() == 6
    assert linalg.det(tt.tensor([[2, 0], [0, 3]])).dtype is tt.f32
    for t in ("f16", "bf16"):
        q, r = linalg.qr(tt.ones((3, 2), dtype=t))
        assert q.dtype.name == r.dtype.name == t


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: linalg.inv(x[:2]), "square matrices"),
        (lambda x: linalg.inv(tt.zeros((3, 3))), "inv: .*singular; use linalg.pinv"),
        (lambda x: linalg.cholesky(-x), "cholesky: .*positive definite"),
        (lambda x: linalg.solve(x, tt.ones(4)), "solve: x2 must be a vector of 3"),
        (lambda x: linalg.solve(x, tt.ones(())), "solve: x2 must be a vector of 3"),
        (lambda x: linalg.qr(x, mode="r"), "mode='r' is unknown"),
        (lambda x: linalg.svd(x[0]), "matrices .* are needed"),
        (lambda x: linalg.matrix_power(x[0], 2), "square matrices"),
        (lambda x: linalg.det("a"), "det: x must be a Tensor"),
        (lambda x: linalg.svdvals(x * tt.nan), "svdvals: .*NaN"),
    ],
)
def test_what_has_no_factorisation_is_refused(call: Any, words: str) -> None:
    with pytest.raises(TritiumError, match=words):
        call(tt.eye(3))


def test_a_singular_matrix_is_numpys_error_too() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        linalg.inv(tt.zeros((2, 2)))
    assert issubclass(linalg.LinAlgError, TritiumError)
