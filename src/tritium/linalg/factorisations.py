"""Factorisations of matrices, and what follows from them: determinants, inverses, solutions, rank, powers.

Knows nothing of LAPACK: a factorisation is one op, the rest is composed of ops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tritium import dtype as dt, ops
from tritium.arguments import checked
from tritium.errors import ShapeError
from tritium.tensor import Tensor


class EighResult(NamedTuple):
    """The eigenvalues, ascending, and the eigenvectors, one a column."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """Orthonormal columns, and the upper triangle."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """The sign of a determinant (of complex matrices its phase), and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """Left singular vectors, singular values in descending order, and the adjoint of the right singular vectors."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _factor(method: str, *xs: Tensor, **options: Any) -> Any:
    return ops.factorize(list(xs), method=method, options=tuple(options.items()))


@checked
def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Return the triangle L of L @ L^H = x (or U of U^H @ U = x) of symmetric (Hermitian) positive definite matrices."""
    return _factor("cholesky", x, upper=upper)


@checked
def det(x: Tensor, /) -> Tensor:
    """Return the determinants of square matrices."""
    return _factor("det", x)


@checked
def eigh(x: Tensor, /) -> EighResult:
    """Return the eigenvalues, ascending, and eigenvectors of symmetric (Hermitian) matrices; the lower triangle is read."""
    return EighResult(*_factor("eigh", x))


@checked
def eigvalsh(x: Tensor, /) -> Tensor:
    """Return the eigenvalues, ascending, of symmetric (Hermitian) matrices; the lower triangle is read."""
    return _factor("eigvalsh", x)


@checked
def inv(x: Tensor, /) -> Tensor:
    """Return the inverses of square matrices."""
    return _factor("inv", x)


@checked
def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """Return Q, of orthonormal columns, and R, an upper triangle, with Q @ R = x; mode='complete' gives a square Q."""
    return QRResult(*_factor("qr", x, mode=mode))


@checked
def slogdet(x: Tensor, /) -> SlogdetResult:
    """Return the sign of the determinants and the logarithm of their size, where the determinants would overflow."""
    return SlogdetResult(*_factor("slogdet", x))


@checked
def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return y with x1 @ y = x2; x2 is one vector, or matrices."""
    return _factor("solve", x1, x2)


@checked
def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Return U, S and Vh with (U * S) @ Vh = x; S descends."""
    return SVDResult(*_factor("svd", x, full_matrices=full_matrices))


@checked
def svdvals(x: Tensor, /) -> Tensor:
    """Return the singular values, descending."""
    return _factor("svdvals", x)


def _cutoff(x: Tensor, values: Tensor, rtol: float | Tensor | None) -> Tensor:
    """Return the size below which a singular value counts as 0: rtol times the largest one."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * dt.finfo(values.dtype).eps
    elif isinstance(rtol, Tensor):
        rtol = ops.expand_dims(rtol, axis=-1)
    return ops.multiply(ops.max(values, axis=-1, keepdims=True), rtol)


@checked
def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Return the number of singular values above rtol times the largest (rtol: the larger size times the dtype's eps)."""
    values = svdvals(x)
    if not values.shape[-1]:
        return ops.count_nonzero(values, axis=-1)
    return ops.count_nonzero(ops.greater(values, _cutoff(x, values, rtol)), axis=-1)


@checked
def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Return the pseudo-inverses; singular values up to rtol times the largest count as 0."""
    left, values, right = svd(x, full_matrices=False)
    if values.shape[-1]:
        large = ops.greater(values, _cutoff(x, values, rtol))
        values = ops.where(large, ops.reciprocal(ops.where(large, values, 1.0)), 0.0)
    adjoint = ops.multiply(ops.expand_dims(values, axis=-1), ops.matrix_transpose(ops.conj(left)))
    return ops.matmul(ops.matrix_transpose(ops.conj(right)), adjoint)


@checked
def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Return the product of n matrices x; of their inverses for a negative n, the identity for 0."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"matrix_power: square matrices [..., N, N] are needed, given {x.spec}.")
    if n == 0:
        device = None if x.is_traced else x.device
        return ops.copy(ops.broadcast_to(ops.eye(x.shape[-1], dtype=x.dtype, device=device), x.shape))
    if n < 0:
        x, n = inv(x), -n
    result: Tensor | None = None
    while True:  # by squares: as many products as n has binary digits, twice at most
        if n % 2:
            result = x if result is None else ops.matmul(result, x)
        n //= 2
        if not n:
            assert result is not None
            return ops.copy(result) if result is x else result
        x = ops.matmul(x, x)
