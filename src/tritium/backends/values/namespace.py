"""One small namespace of functions that MLX and torch have in common, and the casts and indices that ops over it need.

`elements` writes rows once over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tritium import dtype as dt
from tritium.backends.reference.packed import Packed
from tritium.dtype import DType
from tritium.errors import BoundsError, TritiumError
from tritium.layout import Layout, Shape
from tritium.op import Spec

Value = Any  # what the library calls an array
Fn = Callable[..., Any]
Axes = tuple[int, ...]
HALF = (dt.f16, dt.bf16)


class Namespace(Protocol):
    """Functions of a library over its values. Operators (+ - * / // % & | ^ << >> == < ~) and x[...] with ints and slices of
    positive step are the values' own. Axes are never negative, except -1 where it says so."""

    # -- dtypes and constants
    @property
    def has_f64(self) -> bool: ...
    def dtype_of(self, x: Value) -> DType: ...
    def astype(self, x: Value, t: DType) -> Value:
        """The library's own cast, between values that both dtypes hold (or integers, which wrap); itself if it is one."""
        ...

    def view(self, x: Value, t: DType) -> Value:
        """The bits of elements as another dtype of the same size."""
        ...

    def array(self, data: np.ndarray[Any, Any]) -> Value:
        """A copy of a NumPy array, of the same dtype: f64 stays f64."""
        ...

    def full(self, shape: Shape, number: bool | int | float, t: DType) -> Value: ...
    def arange(self, n: int, t: DType) -> Value: ...

    # -- element by element, exact where IEEE is; exp, log, sin and cos are within 4 ulps of their dtype, f64 included
    def where(self, condition: Value, x: Value, y: Value) -> Value: ...
    def abs(self, x: Value) -> Value: ...
    def maximum(self, x: Value, y: Value) -> Value: ...  # NaN wins; both are values of one dtype
    def minimum(self, x: Value, y: Value) -> Value: ...
    def rint(self, x: Value) -> Value: ...
    def trunc(self, x: Value) -> Value: ...
    def sqrt(self, x: Value) -> Value: ...
    def exp(self, x: Value) -> Value: ...
    def log(self, x: Value) -> Value: ...
    def sin(self, x: Value) -> Value: ...
    def cos(self, x: Value) -> Value: ...
    def isfinite(self, x: Value) -> Value: ...

    # -- along axes; the dtype stays, except that sums of integers may come wider
    def sum(self, x: Value, axis: Axes, keepdims: bool = False) -> Value: ...
    def max(self, x: Value, axis: Axes, keepdims: bool = False) -> Value: ...  # NaN wins; no axis is empty
    def min(self, x: Value, axis: Axes, keepdims: bool = False) -> Value: ...
    def cumsum(self, x: Value, axis: int) -> Value: ...
    def cumprod(self, x: Value, axis: int) -> Value: ...
    def matmul(self, x: Value, y: Value) -> Value:
        """Of floats, in their dtype: at least two axes each, leading axes broadcast."""
        ...

    # -- moving
    def reshape(self, x: Value, shape: Shape) -> Value: ...
    def broadcast_to(self, x: Value, shape: Shape) -> Value: ...
    def transpose(self, x: Value, axes: Axes) -> Value: ...
    def concat(self, xs: Sequence[Value], axis: int) -> Value: ...
    def stack(self, xs: Sequence[Value], axis: int) -> Value: ...  # axis -1: a new last one
    def pad(self, x: Value, after: Shape, number: int) -> Value:
        """More elements of a number, so many after the last along each axis."""
        ...

    def take(self, x: Value, indices: Value, axis: int) -> Value:
        """Slices along an axis; the indices are legal and not negative, i32 or i64, of any shape."""
        ...

    def take_along_axis(
        self, x: Value, indices: Value, axis: int
    ) -> Value: ...  # as take; equal shapes but for the axis
    def put(self, x: Value, indices: Value, rows: Value) -> Value:
        """x with rows x[indices[i]] replaced, `indices` of one axis; the last of equals wins."""
        ...

    def add_at(self, x: Value, indices: Value, rows: Value) -> Value:
        """x with rows added to x[indices[i]], each of equals once, in order where floats are."""
        ...

    # -- beyond the library
    def doubt(self, bad: Value, message: str, error: type[TritiumError] = BoundsError) -> None:
        """Raise error(message) if any of `bad` is true; while a compiler traces, when the program has run."""
        ...

    def in_double(self, fn: Fn) -> Fn:
        """The function carried out where f64 exists: on a device without, elsewhere in the same memory."""
        ...

    def ternary_dot(self, q: Value, w: Packed) -> Value | None:
        """q @ w.T exactly, as i32, for int8 q [M, K] and ternary w [N, K] by the library's own product of packed weights;
        None: it has none for this packing."""
        ...


# ---- functions that native code calls without a frame of Python


@dataclass(frozen=True)
class Bound:
    """A function of a library, and what it is given after the operands."""

    fn: Fn
    after: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    together: bool = False  # it takes the operands as one tuple

    def __call__(self, *xs: Value) -> Any:
        return self.fn(xs, *self.after, **self.named) if self.together else self.fn(*xs, *self.after, **self.named)


class Fitted:
    """A function that is another for other operands. Of a call that is repeated the choice is made once."""

    def __init__(self, xp: Any, choose: Callable[..., Fn]) -> None:
        self.xp, self.choose = xp, choose  # choose(*specs) -> what those operands are given to

    def __call__(self, *xs: Value | None) -> Any:
        dtype_of = self.xp.dtype_of
        specs = (None if x is None else Spec(tuple(int(n) for n in x.shape), dtype_of(x)) for x in xs)
        return self.choose(*specs)(*xs)


def size_of(shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64))


def index_dtype(count: int) -> DType:
    """Return the dtype that holds an index below count."""
    return dt.i32 if count < 2**31 else dt.i64


# ---- casts


def cast(xp: Namespace, x: Value, t: DType) -> Value:
    """As `backends.reference.cast` says: floats become integers by truncation, held to the range; NaN becomes 0; each rounded once."""
    source = xp.dtype_of(x)
    if source is t:
        return x
    if t is dt.bool_:
        return x != 0
    if source.is_float and t.is_integer:
        return _to_integer(xp, x, t)
    if source is dt.f64 and t in HALF:
        return xp.astype(_odd(xp, x), t)
    if source.is_integer and source.nbytes > 2 and t in HALF:
        return xp.astype(xp.astype(x, dt.f32), t)
    return xp.astype(x, t)


def _to_integer(xp: Namespace, x: Value, t: DType) -> Value:
    if xp.dtype_of(x) in HALF:
        x = xp.astype(x, dt.f32)
    info = dt.iinfo(t)
    y = xp.trunc(x)
    above, below = y >= float(info.max + 1), y < float(info.min)  # both limits are powers of 2, so floats hold them
    inside = xp.astype(xp.where(above | below | (y != y), xp.full((), 0.0, xp.dtype_of(x)), y), t)
    inside = xp.where(above, xp.full((), info.max, t), inside)
    return xp.where(below, xp.full((), info.min, t), inside)


def _odd(xp: Namespace, x: Value) -> Value:
    """f64 as f32 rounded to odd, so that rounding once more, to a half float, is as if it were the first time."""
    near = xp.astype(x, dt.f32)
    back = xp.astype(near, dt.f64)
    bits = xp.view(near, dt.i32)
    bits = xp.where(xp.abs(back) > xp.abs(x), bits - 1, bits)
    return xp.view(xp.where((back != x) & xp.isfinite(x), bits | 1, bits), dt.f32)


def wider(xp: Namespace, x: Value | None) -> Value | None:
    """Half floats as f32; others as they are."""
    return xp.astype(x, dt.f32) if x is not None and xp.dtype_of(x) in HALF else x


def deep(xp: Namespace, fn: Fn) -> Fn:
    """As `wide`, but in f64 where the device has it: rows that subtract or add up what is close."""
    if not xp.has_f64:
        return wide(xp, fn)

    def maker(out: Spec, **attrs: Any) -> Fn:
        def run(*xs: Value | None) -> Value:
            return cast(xp, fn(*(None if x is None else xp.astype(x, dt.f64) for x in xs), **attrs), out.dtype)

        return run

    return maker


def wide(xp: Namespace, fn: Fn) -> Fn:
    """A maker of a row that computes half floats in f32 and rounds once, from a function of values and attributes."""

    def maker(out: Spec, **attrs: Any) -> Fn:
        def run(*xs: Value | None) -> Value:
            return cast(xp, fn(*(wider(xp, x) for x in xs), **attrs), out.dtype)

        return run

    return maker


# ---- indices


def legal(xp: Namespace, indices: Value, size: int, what: str) -> Value:
    """Indices counted from the start and held to the axis; illegal ones raise later."""
    t = xp.dtype_of(indices)
    if t.kind == "unsigned":
        bad = indices >= size if size <= dt.iinfo(t).max else None
    else:
        indices = xp.astype(indices, dt.i64)
        bad = (indices < -size) | (indices >= size)
    if bad is not None:
        xp.doubt(bad, f"{what}: an index is outside an axis of size {size}.")
    positions = xp.astype(indices, index_dtype(size))
    positions = xp.where(positions < 0, positions + size, positions)
    low, high = (xp.full((), n, index_dtype(size)) for n in (0, max(size - 1, 0)))
    return xp.minimum(xp.maximum(positions, low), high)


def places(xp: Namespace, layout: Layout) -> Value:
    """Return the offsets in flat memory of the elements of a layout, in its shape."""
    strides = layout.strides
    reach = layout.offset + sum(max((n - 1) * s, 0) for n, s in zip(layout.shape, strides, strict=True)) + 1
    t = index_dtype(reach)
    offsets = xp.full(layout.shape, layout.offset, t)
    for d, (n, s) in enumerate(zip(layout.shape, strides, strict=True)):
        steps = xp.arange(n, t) * s
        offsets = offsets + xp.reshape(steps, (n, *(1 for _ in layout.shape[d + 1 :])))
    return offsets


def flat(xp: Namespace, x: Value) -> Value:
    return xp.reshape(x, (size_of(tuple(x.shape)),))
