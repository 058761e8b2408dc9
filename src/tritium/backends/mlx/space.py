"""MLX as the namespace that `elements` writes its rows over, with what its own functions lack in f64.

Imports mlx, so only the MLX backend imports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from tritium import dtype as dt
from tritium.backends.mlx import metal as mlx_metal
from tritium.backends.reference.cast import number
from tritium.backends.reference.packed import Packed
from tritium.backends.values.namespace import Axes, Fn, Value
from tritium.dtype import DType
from tritium.layout import Shape

TO_MLX: dict[DType, Any] = {
    dt.bool_: mx.bool_, dt.i8: mx.int8, dt.i16: mx.int16, dt.i32: mx.int32, dt.i64: mx.int64, dt.u8: mx.uint8,
    dt.u16: mx.uint16, dt.u32: mx.uint32, dt.u64: mx.uint64, dt.f16: mx.float16, dt.bf16: mx.bfloat16,
    dt.f32: mx.float32, dt.f64: mx.float64,
}  # fmt: skip
FROM_MLX = {m: t for t, m in TO_MLX.items()}
BLOCK = 64  # elements that the CPU sums one after another: more would cost digits
EXACT_COLUMNS = 65536


@lru_cache(maxsize=2)
def stream_of(unit: Any) -> Any:
    """The stream of a unit that every thread may use; before MLX had one for each thread, its default was that."""
    return getattr(mx, "new_thread_unsafe_stream", mx.default_stream)(unit)


def to_mlx(data: np.ndarray[Any, Any], t: DType, unit: Any = None) -> Value:
    """A copy of a NumPy array. MLX makes f64 of it only when told, and knows no bfloat16 of NumPy's."""
    data = np.array(data, order="C").reshape(-1).reshape(data.shape)  # axes of size 1 may have negative strides
    if t is dt.bf16:
        return mx.view(mx.array(data.view(np.uint16)), mx.bfloat16, stream=unit)
    return mx.array(data, dtype=TO_MLX[t])


def to_numpy(x: Value, t: DType, unit: Any = None) -> np.ndarray[Any, Any]:
    """The elements of a value, for reading, in the value's own memory."""
    if t is dt.bf16:
        seen = np.array(mx.view(x, mx.uint16, stream=unit), copy=False).view(ml_dtypes.bfloat16)
    else:
        seen = np.array(x, copy=False)
    seen.flags.writeable = False
    return seen


# ---- functions that MLX computes in f32 even for f64, or with too few digits


_E = mx.array(math.e, dtype=mx.float64)


def exp(x: Value) -> Value:
    """MLX's own exp loses |x| / 2 ulps of f32 and has no f64. f32 is a power in f64, which the CPU computes with all digits;
    f64 comes by expm1."""
    if x.dtype == mx.float32:
        return mx.power(_E, x.astype(mx.float64)).astype(mx.float32)
    e = mx.expm1(mx.abs(x)) + 1
    return mx.where(x < 0, mx.reciprocal(e), e)


def sin(x: Value) -> Value:
    """f64 by the tangent of half the angle."""
    if x.dtype != mx.float64:
        return mx.sin(x)
    t = mx.tan(x * 0.5)
    return (t + t) / (1 + t * t)


def cos(x: Value) -> Value:
    """f64 by the tangent of half the angle; where that would cancel, by sin / tan."""
    if x.dtype != mx.float64:
        return mx.cos(x)
    t = mx.tan(x * 0.5)
    s = t * t
    return mx.where(mx.abs(x) < 1, (1 - s) / (1 + s), (t + t) / (1 + s) / mx.tan(x))


_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_FAR = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1)


def erf(x: Value) -> Value:
    """x times a polynomial near 0, 1 - exp(polynomial) beyond."""
    if x.dtype == mx.float64:
        return _erf64(x)
    s, t = x * x, mx.minimum(mx.abs(x), 10.0)  # from 4 on it is 1
    near = mx.array(_NEAR[0], mx.float32)
    for c in _NEAR[1:]:
        near = near * s + c
    far = mx.array(_FAR[0], mx.float32)
    for c in _FAR[1:]:
        far = far * t + c
    far = -mx.expm1(far * t - t)
    return mx.where(t > 0.927734375, mx.where(x < 0, -far, far), near * x + x)


@lru_cache(maxsize=1)
def _erf_table() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(Taylor coefficients of erf(x) / x - 1 in x squared, those of erf around 1.125, 1.375, … 5.875)."""
    root = 2 / math.sqrt(math.pi)
    near = np.array([root * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(20)])
    near[0] -= 1
    centres = 1.125 + 0.25 * np.arange(20)
    hermite = [
        np.ones(20),
        2 * centres,
    ]  # the n-th derivative of erf is e^-x² times the (n - 1)-th of these, in turn + and -
    for n in range(1, 14):
        hermite.append(2 * centres * hermite[-1] - 2 * n * hermite[-2])
    slope = root * np.exp(-centres * centres)
    terms = [slope * (-1) ** n * h / math.factorial(n + 1) for n, h in enumerate(hermite)]
    return near, np.array([[math.erf(c) for c in centres], *terms])


def _erf64(x: Value) -> Value:
    near_of, far_of = _erf_table()
    s, t = x * x, mx.abs(x)
    near = mx.full(x.shape, near_of[-1], dtype=mx.float64)
    for c in near_of[-2::-1]:
        near = near * s + float(c)
    which = mx.where(t < 6, mx.maximum((t - 1) * 4, 0.0), 0.0).astype(mx.int32)
    h = t - (which.astype(mx.float64) * 0.25 + 1.125)
    far = mx.zeros(x.shape, dtype=mx.float64)
    for row in far_of[::-1]:
        far = far * h + mx.take(to_mlx(row, dt.f64), which)
    far = mx.where(t >= 6, mx.ones_like(far), far)
    return mx.where(t < 1, near * x + x, mx.where(x != x, x, mx.where(x < 0, -far, far)))


def in_f64(fn: Fn) -> Fn:
    """f32 by way of f64, where one rounding after another would cost digits."""

    def run(x: Value, *args: Any, **named: Any) -> Value:
        if x.dtype != mx.float32:
            return fn(x, *args, **named)
        return fn(x.astype(mx.float64), *args, **named).astype(mx.float32)

    return run


def blocked_sum(x: Value, axes: Axes, keepdims: bool) -> Value:
    """A sum by blocks of blocks: MLX's CPU adds all elements of an axis to a few sums, one after another."""
    if len(axes) == x.ndim and x.ndim > 1:
        total = blocked_sum(x.reshape(-1), (0,), False)
        return total.reshape((1,) * x.ndim) if keepdims else total
    for a in axes:
        while x.shape[a] > BLOCK:
            whole = x.shape[a] // BLOCK * BLOCK
            lead = (slice(None),) * a
            split = x[(*lead, slice(0, whole))].reshape(*x.shape[:a], whole // BLOCK, BLOCK, *x.shape[a + 1 :])
            parts = mx.sum(split, axis=a + 1)
            rest = x[(*lead, slice(whole, None))]
            x = mx.concatenate([parts, rest], axis=a) if rest.size else parts
    return mx.sum(x, axis=axes, keepdims=keepdims)


@lru_cache(maxsize=32)
def _ones(rows: int, groups: int) -> tuple[Value, Value]:
    """The scales and biases of MLX's quantised weights that make code - 1 of a code."""
    one = np.ones((rows, groups), np.float32)
    return mx.array(one), mx.array(-one)


def words(w: Packed) -> tuple[Value, int]:
    """The bytes of tern2 weights as MLX's own 2-bit layout, 16 codes in a word, and the columns it then has."""
    n, size = w.data.shape
    short = -size % 8  # groups have at least 32 columns
    data = w.data
    if short:
        data = mx.concatenate([data, mx.full((n, short), 0x55, dtype=mx.uint8)], axis=1)  # four codes of the weight 0
    return data.view(mx.uint32), (size + short) * 4


def ternary_product(q: Value, w: Packed) -> Value:
    """q @ w.T for int8 q [M, K] and tern2 w [N, K], as i32, by mx.quantized_matmul with scale 1 and bias -1.

    It adds q * code (codes are 0 to 2) and takes away the sum of q, or adds q * (code - 1), in f32 and in any order. All
    partial sums are integers of at most 2 * 128 * K, exact up to 2**24: K of 65,536. Metal's kernels leave codes where they
    lie in the byte and divide q by 4, 16 or 64 instead, which changes exponents only. More columns are split."""
    packed_words, columns = words(w)
    k = int(q.shape[1])
    x = q.astype(mx.float32)
    if columns > k:
        x = mx.pad(x, [(0, 0), (0, columns - k)])
    total = None
    for start in range(0, columns, EXACT_COLUMNS):
        some = min(EXACT_COLUMNS, columns - start)
        size = next(g for g in (128, 64, 32) if some % g == 0)
        scale, bias = _ones(int(w.data.shape[0]), some // size)
        part = mx.quantized_matmul(
            x[:, start : start + some],
            packed_words[:, start // 16 : (start + some) // 16],
            scale,
            bias,
            group_size=size,
            bits=2,
        ).astype(mx.int32)
        total = part if total is None else total + part
    return total


class Space:
    """The namespace of one unit."""

    def __init__(self, unit: str, doubt: Callable[..., None], at_hand: Callable[[Value], Any] = lambda x: None) -> None:
        self.on_cpu = self.has_f64 = unit == "cpu"
        self.metal = not self.on_cpu and not mlx_metal.refusal()
        self.doubt = doubt
        self.at_hand = at_hand  # the elements of a value, for the host to read now; None: a compiler traces
        self.where, self.abs, self.trunc, self.sqrt, self.log = mx.where, mx.abs, mx.trunc, mx.sqrt, mx.log
        self.maximum, self.minimum, self.rint, self.isfinite = mx.maximum, mx.minimum, mx.round, mx.isfinite
        self.matmul, self.reshape, self.broadcast_to = mx.matmul, mx.reshape, mx.broadcast_to
        self.transpose, self.take, self.take_along_axis = mx.transpose, mx.take, mx.take_along_axis
        self.concat, self.stack = mx.concatenate, mx.stack
        self.sin, self.cos = sin, cos
        self.cumsum, self.cumprod = (in_f64(f) if self.on_cpu else f for f in (mx.cumsum, mx.cumprod))
        self.exp = exp if self.on_cpu else mx.exp

    def dtype_of(self, x: Value) -> DType:
        return FROM_MLX[x.dtype]

    def astype(self, x: Value, t: DType) -> Value:
        return x.astype(TO_MLX[t])

    def view(self, x: Value, t: DType) -> Value:
        return x.view(TO_MLX[t])

    def array(self, data: np.ndarray[Any, Any]) -> Value:
        return to_mlx(data, dt.dtype(data.dtype))

    def full(self, shape: Shape, value: bool | int | float, t: DType) -> Value:
        return mx.broadcast_to(to_mlx(number(value, t), t), shape)

    def arange(self, n: int, t: DType) -> Value:
        return mx.arange(n, dtype=TO_MLX[t])

    def sum(self, x: Value, axis: Axes, keepdims: bool = False) -> Value:
        if self.on_cpu and x.size > BLOCK and x.dtype in (mx.float32, mx.float64):
            return blocked_sum(x, axis, keepdims)
        return mx.sum(x, axis=axis, keepdims=keepdims)

    def prod(self, x: Value, axis: Axes, keepdims: bool = False) -> Value:
        return (in_f64(mx.prod) if self.on_cpu else mx.prod)(x, axis=axis, keepdims=keepdims)

    def max(self, x: Value, axis: Axes, keepdims: bool = False) -> Value:
        return mx.max(x, axis=axis, keepdims=keepdims)

    def min(self, x: Value, axis: Axes, keepdims: bool = False) -> Value:
        return mx.min(x, axis=axis, keepdims=keepdims)

    def pad(self, x: Value, after: Shape, value: int) -> Value:
        return mx.pad(x, [(0, n) for n in after], constant_values=mx.array(value, x.dtype))

    def put(self, x: Value, indices: Value, rows: Value) -> Value:
        """MLX's CPU writes one after another, so the last of equals wins; its GPU may write them in any order, so there the
        last is found first."""
        if self.on_cpu:
            copy = x.__copy__()
            copy[indices] = rows
            return copy
        count = int(indices.shape[0])
        order = mx.full((x.shape[0],), -1, dtype=mx.int32).at[indices].maximum(mx.arange(count, dtype=mx.int32))
        shown = order.reshape(-1, *(1 for _ in x.shape[1:]))
        return mx.where(shown >= 0, mx.take(rows, mx.maximum(order, 0), axis=0), x)

    def add_at(self, x: Value, indices: Value, rows: Value) -> Value:
        return x.at[indices].add(rows)

    def in_double(self, fn: Fn) -> Fn:
        """Metal has no f64. The CPU sees the same memory, so its stream does the work without a copy."""
        if self.on_cpu:
            return fn

        def run(*xs: Value) -> Any:
            with mx.stream(stream_of(mx.cpu)):
                return fn(*xs)

        return run

    def ternary_dot(self, q: Value, w: Packed) -> Value | None:
        if w.dtype is not dt.tern2:
            return None
        if self.metal and mlx_metal.fits(q.shape, w.data.shape):
            return mlx_metal.ternary_dot(q, w.data)
        return ternary_product(q, w)


def concatenated(xs: Sequence[Value], axis: int | None) -> Value:
    return mx.concatenate([x.reshape(-1) for x in xs] if axis is None else list(xs), axis=axis or 0)
