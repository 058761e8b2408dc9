"""Products of vectors, diagonals and norms.

Knows nothing of factorisations, but for the norms that are singular values.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from tritium import dtype as dt, ops
from tritium.arguments import checked
from tritium.errors import ArgumentError, DTypeError, ShapeError
from tritium.functions import asarray
from tritium.linalg.factorisations import svdvals
from tritium.tensor import Tensor


@checked
def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the vectors perpendicular to pairs of vectors of three elements along an axis; the other axes broadcast."""
    if not -min(x1.ndim, x2.ndim) <= axis < max(x1.ndim, x2.ndim):
        raise ShapeError(f"cross: axis {axis} does not exist in both {x1.spec} and {x2.spec}.")
    a, b = ops.moveaxis(x1, axis, -1), ops.moveaxis(x2, axis, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise ShapeError(f"cross: axis {axis} must have 3 elements, given {x1.spec} and {x2.spec}.")
    (p, q, r), (u, v, w) = ([x[..., i] for i in range(3)] for x in (a, b))
    parts = [
        ops.subtract(ops.multiply(one, last), ops.multiply(other, first))
        for one, last, other, first in ((q, w, r, v), (r, u, p, w), (p, v, q, u))
    ]
    return ops.moveaxis(ops.stack(parts, axis=-1), -1, axis)


@checked
def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return the products of every element of one vector with every element of another."""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"outer: two vectors are needed, given {x1.spec} and {x2.spec}; flatten() them first.")
    return ops.multiply(ops.expand_dims(x1, axis=1), ops.expand_dims(x2, axis=0))


@checked
def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Return the diagonals of matrices, as a copy; `offset` counts them from the main one upwards."""
    if x.ndim < 2:
        raise ShapeError(f"diagonal: matrices [..., M, N] are needed, given {x.spec}.")
    rows, columns = x.shape[-2:]
    first_row, first_column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - first_row, columns - first_column), 0)
    device = None if x.is_traced else x.device
    steps = np.arange(count)
    along, down = (asarray(steps + start, device=device) for start in (first_column, first_row)) if count else (
        asarray(steps, device=device),) * 2  # fmt: skip
    return x[..., down, along]


@checked
def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Return the sums along the diagonals of matrices."""
    return ops.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def _sizes(x: Tensor) -> Tensor:
    """Return the sizes of numbers in the float dtype in which a norm is computed."""
    if x.dtype is dt.bool_ or x.dtype.is_packed:
        raise DTypeError(f"A norm is of numbers, given {x.spec}; cast with .to('f32').")
    return ops.abs(x if x.dtype.is_float or x.dtype.is_complex else ops.astype(x, dt.f32))


@checked
def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """Return the norms of vectors along axes (None: of all elements as one vector): (sum |x|^ord)^(1/ord).

    ord=inf is the largest size, -inf the smallest, 0 the number of elements that are not 0.
    """
    size = _sizes(x)
    if ord in (inf, -inf):
        return (ops.max if ord > 0 else ops.min)(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return ops.astype(ops.count_nonzero(size, axis=axis, keepdims=keepdims), size.dtype)
    if ord == 1:
        return ops.sum(size, axis=axis, keepdims=keepdims)
    if ord == 2:
        return ops.sqrt(ops.sum(ops.square(size), axis=axis, keepdims=keepdims))
    return ops.pow(ops.sum(ops.pow(size, float(ord)), axis=axis, keepdims=keepdims), 1.0 / ord)


@checked
def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Tensor:
    """Return the norms of matrices: 'fro' (None), 'nuc', 1, 2, inf, and -1, -2, -inf for the smallest in place of the largest."""
    if x.ndim < 2:
        raise ShapeError(f"matrix_norm: matrices [..., M, N] are needed, given {x.spec}; use vector_norm.")
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        reduce = ops.sum if ord == "nuc" else ops.max if ord == 2 else ops.min
        result = reduce(values, axis=-1, keepdims=keepdims)
        return ops.expand_dims(result, axis=-1) if keepdims else result
    if ord not in (1, -1, inf, -inf):
        raise ArgumentError(f"matrix_norm: ord={ord!r} is unknown; use 'fro', 'nuc', 1, 2, inf, -1, -2 or -inf.")
    along = -2 if ord in (1, -1) else -1
    sums = ops.sum(_sizes(x), axis=along, keepdims=True)
    return (ops.max if float(ord) > 0 else ops.min)(sums, axis=(-2, -1), keepdims=keepdims)
