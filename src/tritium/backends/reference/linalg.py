"""Factorisations of matrices, in NumPy (LAPACK): f16 and bf16 are computed in f32 and rounded once, at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tritium.backends.reference.cast import HALF
from tritium.errors import ArgumentError

Arr = np.ndarray[Any, Any]


class LinAlgError(ArgumentError, np.linalg.LinAlgError):
    """A matrix that has no such factorisation: singular, not positive definite, or one whose iteration does not converge."""


def _cholesky(x: Arr, *, upper: bool) -> Arr:
    return np.asarray(np.linalg.cholesky(x, upper=upper))


def _svd(x: Arr, *, full_matrices: bool) -> Any:
    return np.linalg.svd(x, full_matrices=full_matrices)


def _solve(a: Arr, b: Arr) -> Arr:
    """One vector, or matrices of columns: a stack of vectors is not guessed."""
    return np.asarray(np.linalg.solve(a, b[:, None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b))


_METHODS: dict[str, Callable[..., Any]] = {
    "cholesky": _cholesky,
    "det": np.linalg.det,
    "eigh": np.linalg.eigh,
    "eigvalsh": np.linalg.eigvalsh,
    "inv": np.linalg.inv,
    "qr": lambda x, *, mode: np.linalg.qr(x, mode=mode),
    "slogdet": np.linalg.slogdet,
    "solve": _solve,
    "svd": _svd,
    "svdvals": lambda x: np.linalg.svd(x, compute_uv=False),
}

_REMEDIES = {
    "cholesky": "it must be symmetric (Hermitian) and positive definite; add a little to its diagonal",
    "inv": "it is singular; use linalg.pinv(x)",
    "solve": "it is singular; use linalg.pinv(x1) @ x2",
}


def factorize(*xs: Arr, out: Any, method: str, options: tuple[tuple[str, Any], ...]) -> None:
    wider = [x.astype(np.float32) if x.dtype in HALF else x for x in xs]
    try:
        results = _METHODS[method](*wider, **dict(options))
    except np.linalg.LinAlgError as error:
        remedy = _REMEDIES.get(method, "look for NaN, infinities or extreme values in it")
        raise LinAlgError(f"{method}: a matrix has no such factorisation ({error}): {remedy}.") from None
    if not isinstance(out, tuple):
        out, results = (out,), (results,)
    for target, result in zip(out, results, strict=True):
        target[...] = result.astype(target.dtype)
