"""The rows of the table as MLX has them: one function each where that is exact enough, a few otherwise.

Longer rows are in `elements`; these go before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from tritium import dtype as dt, ops
from tritium.backends.mlx.space import BLOCK, TO_MLX, Space, concatenated, cos, erf, in_f64, sin
from tritium.backends.values import elements
from tritium.backends.values.namespace import HALF, Bound, Fitted, Fn, Value, cast, wide
from tritium.dtype import DType
from tritium.errors import BoundsError
from tritium.layout import axes_of, axis_of
from tritium.op import OPS, Op, Spec

Maker = Callable[..., Fn]

SIGN_OF = {2: mx.int16, 4: mx.int32, 8: mx.int64}  # integers that hold the bits of floats, by size


def same(fn: Fn) -> Maker:
    """The library's function itself, whatever comes out."""
    return lambda out: fn


def in_f32(fn: Fn) -> Maker:
    """The function, by way of f32 for half floats: they are rounded once."""

    def maker(out: Spec) -> Fn:
        if out.dtype not in HALF:
            return fn
        kind = TO_MLX[out.dtype]
        return lambda *xs: fn(*(x.astype(mx.float32) for x in xs)).astype(kind)

    return maker


def of_kind(floats: Fn, integers: Fn) -> Maker:
    """One function for floats, another for integers."""
    return lambda out: in_f32(floats)(out) if out.dtype.is_float else integers


def itself(x: Value) -> Value:
    return x


# ---- element by element


def _copysign(x: Value, y: Value) -> Value:
    """By bits, so that the sign of NaN counts too."""
    kind = SIGN_OF[x.dtype.size]
    least = mx.array(-(2 ** (8 * x.dtype.size - 1)), kind)
    return ((x.view(kind) & ~least) | (y.view(kind) & least)).view(x.dtype)


def _signbit(x: Value) -> Value:
    return x.view(SIGN_OF[x.dtype.size]) < 0


def _nextafter(x: Value, y: Value) -> Value:
    """One step in the order of bits; from 0 to the smallest number on the side of y."""
    x, y = mx.broadcast_arrays(x, y)
    kind = SIGN_OF[x.dtype.size]
    bits = x.view(kind)
    away = (y > x) == (x > 0)
    stepped = mx.where(away, bits + 1, bits - 1).view(x.dtype)
    least = _copysign(mx.broadcast_to(mx.array(1, kind), x.shape).view(x.dtype), y)
    neighbour = mx.where(x == 0, least, stepped)
    return mx.where(x == y, y, mx.where((x != x) | (y != y), x + y, neighbour))


def _sign(x: Value) -> Value:
    return mx.where(x != x, x, mx.sign(x))


def _remainder(x: Value, y: Value) -> Value:
    """MLX's, but what leaves nothing has the sign of the divisor."""
    left = mx.remainder(x, y)
    return mx.where(left == 0, _copysign(mx.zeros_like(left), mx.broadcast_to(y, left.shape)), left)


def _floor_divide(x: Value, y: Value) -> Value:
    """NumPy's: from what is left, so that no rounding of the quotient shows; with one infinity the quotient itself."""
    quotient = x / y
    left = mx.remainder(mx.abs(x), mx.abs(y))
    left = mx.where(x < 0, -left, left)
    whole = (x - left) / y
    whole = mx.where((left != 0) & ((y < 0) != (left < 0)), whole - 1, whole)
    down = mx.floor(whole)
    down = mx.where(whole - down > 0.5, down + 1, down)
    down = mx.where(whole == 0, _copysign(mx.zeros_like(down), quotient), down)
    return mx.where((y == 0) | (mx.isinf(x) != mx.isinf(y)), quotient, down)


def _safe(y: Value) -> Value:
    """A divisor the processor can divide by: neither 0 nor -1, whose quotient may not fit."""
    return mx.where((y == 0) | (y == -1) if _signed(y) else y == 0, mx.array(1, y.dtype), y)


def _signed(x: Value) -> bool:
    return mx.issubdtype(x.dtype, mx.signedinteger)


def _integer_floor_divide(x: Value, y: Value) -> Value:
    quotient = mx.floor_divide(x, _safe(y))
    quotient = mx.where(y == -1, -x, quotient) if _signed(y) else quotient
    return mx.where(y == 0, mx.array(0, x.dtype), quotient)


def _integer_remainder(x: Value, y: Value) -> Value:
    remainder = mx.remainder(x, _safe(y))
    return mx.where((y == 0) | (y == -1) if _signed(y) else y == 0, mx.array(0, x.dtype), remainder)


def _hypot(x: Value, y: Value) -> Value:
    a, b = mx.abs(x), mx.abs(y)
    large, small = mx.maximum(a, b), mx.minimum(a, b)
    ratio = small / mx.where(large == 0, mx.ones_like(large), large)
    length = mx.where(large == 0, large, large * mx.sqrt(1 + ratio * ratio))
    return mx.where(mx.isinf(x) | mx.isinf(y), mx.array(math.inf, x.dtype), length)


def _relu(xp: Space) -> Maker:
    def maker(out: Spec) -> Fn:
        zero = mx.array(0, TO_MLX[out.dtype])
        if xp.on_cpu:  # of equals it gives the second, so -0 becomes 0
            return Bound(mx.maximum, (zero,))
        return lambda x: mx.maximum(x, zero) + zero

    return maker


def _relu2(out: Spec) -> Fn:
    zero = mx.array(0, TO_MLX[out.dtype])
    return lambda x: mx.square(mx.maximum(x, zero))


def _clip(out: Spec) -> Fn:
    def run(x: Value, low: Value | None, high: Value | None) -> Value:
        x = x if low is None else mx.maximum(x, low)
        return x if high is None else mx.minimum(x, high)

    return run


def _shift(fn: Fn, beyond: Callable[[Value], Value]) -> Fn:
    def run(x: Value, y: Value) -> Value:
        inside = (y < x.dtype.size * 8) & (y >= 0)
        return mx.where(inside, fn(x, mx.where(inside, y, mx.array(0, y.dtype))), beyond(x))

    return run


def _gelu(xp: Space, x: Value, *, approximate: str) -> Value:
    if approximate == "none":
        inner = erf(x * math.sqrt(0.5))
    else:
        inner = mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))
    return 0.5 * x * (1 + inner)


def _sigmoid(xp: Space, x: Value) -> Value:
    e = xp.exp(-mx.abs(x))
    return mx.where(x >= 0, mx.array(1, x.dtype), e) / (1 + e)


def _logaddexp(xp: Space, x: Value, y: Value) -> Value:
    apart = mx.where(x == y, mx.array(0, x.dtype), -mx.abs(x - y))
    return mx.maximum(x, y) + mx.log1p(xp.exp(apart))


def _pow(xp: Space) -> Maker:
    def integers(x: Value, y: Value) -> Value:
        if _signed(y):
            xp.doubt(
                y < 0,
                "pow: an integer to a negative power is not an integer; cast to a float dtype first: x.to('f32').",
            )
            y = mx.maximum(y, mx.array(0, y.dtype))
        return mx.power(x, y)

    return of_kind(mx.power, integers)


ONE_CALL = """add subtract multiply divide maximum minimum equal not_equal less less_equal greater greater_equal
logical_and logical_or bitwise_and bitwise_or bitwise_xor abs negative square sqrt isnan isinf isfinite logical_not
bitwise_invert where""".split()
BY_F32 = {
    "rsqrt": mx.rsqrt, "expm1": mx.expm1, "log": mx.log, "log1p": mx.log1p, "log2": mx.log2, "log10": mx.log10, "sin": sin,
    "cos": cos, "tan": mx.tan, "asin": mx.arcsin, "acos": mx.arccos, "atan": mx.arctan, "sinh": mx.sinh, "cosh": mx.cosh,
    "tanh": mx.tanh, "asinh": mx.arcsinh, "acosh": mx.arccosh, "atanh": mx.arctanh, "erf": erf, "atan2": mx.arctan2,
    "hypot": _hypot, "reciprocal": lambda x: 1 / x,
}  # fmt: skip
BY_KIND = {
    "floor_divide": (_floor_divide, _integer_floor_divide), "remainder": (_remainder, _integer_remainder),
    "sign": (_sign, mx.sign), "ceil": (mx.ceil, itself), "floor": (mx.floor, itself), "trunc": (mx.trunc, itself),
    "round": (mx.round, itself),
}  # fmt: skip
OTHER = {
    ops.logical_xor: mx.not_equal, ops.positive: itself, ops.copy: itself,
    ops.copysign: _copysign, ops.nextafter: _nextafter, ops.signbit: _signbit,
    ops.bitwise_left_shift: _shift(mx.left_shift, mx.zeros_like),
    ops.bitwise_right_shift: _shift(
        mx.right_shift, lambda x: mx.where(x < 0, mx.array(-1 if _signed(x) else 0, x.dtype), mx.array(0, x.dtype))
    ),
}  # fmt: skip


def _maps(xp: Space) -> dict[Op, Maker]:
    def divmod_(out: tuple[Spec, ...]) -> Fn:
        both = [rows[r](out[0]) for r in (ops.floor_divide, ops.remainder)]
        return lambda x, y: tuple(fn(x, y) for fn in both)

    def silu(x: Value) -> Value:
        return x / (1 + xp.exp(-x))

    rows: dict[Op, Maker] = {OPS[n]: same(getattr(mx, n)) for n in ONE_CALL}
    rows |= {OPS[n]: in_f32(fn) for n, fn in BY_F32.items()}
    rows |= {OPS[n]: of_kind(*both) for n, both in BY_KIND.items()}
    rows |= {row: same(fn) for row, fn in OTHER.items()}
    rows |= {
        ops.exp: in_f32(xp.exp),
        ops.sigmoid: in_f32(lambda x: _sigmoid(xp, x)),
        ops.silu: in_f32(in_f64(silu) if xp.on_cpu else silu),
        ops.gelu: wide(xp, lambda x, approximate: _gelu(xp, x, approximate=approximate)),
        ops.logaddexp: in_f32(lambda x, y: _logaddexp(xp, x, y)),
        ops.pow: _pow(xp),
        ops.relu: _relu(xp),
        ops.relu2: _relu2,
        ops.clip: _clip,
        ops.divmod: divmod_,
    }
    return rows


# ---- along axes


def _axes(axis: Any, x: Value) -> tuple[int, ...]:
    return axes_of(axis, x.ndim, "reduce")


def _summing(fn: Fn, of_bools: Fn) -> Maker:
    """Sums and products: bools by logic, half floats in f32, integers in what comes out."""

    def maker(out: Spec, axis: Any, dtype: DType | None, keepdims: bool) -> Fn:
        if out.dtype is dt.bool_:
            return lambda x: of_bools(x, axis=axis, keepdims=keepdims)
        kind = TO_MLX[out.dtype]
        inside = mx.float32 if out.dtype in HALF else kind
        if inside is kind and out.dtype.is_float:
            return lambda x: fn(x, _axes(axis, x), keepdims)
        return lambda x: fn(x.astype(inside), _axes(axis, x), keepdims).astype(kind)

    return maker


def _sum(xp: Space) -> Maker:
    """MLX's own sum where it is short enough to keep its digits."""
    general = _summing(xp.sum, mx.any)

    def maker(out: Spec, axis: Any, dtype: DType | None, keepdims: bool) -> Fn:
        def choose(x: Spec) -> Fn:
            axes = axes_of(axis, x.ndim, "sum")
            if x.dtype is out.dtype and out.dtype in (dt.f32, dt.f64) and (not xp.on_cpu or _is_short(x, axes)):
                return Bound(mx.sum, (axes, keepdims))
            return general(out, axis=axis, dtype=dtype, keepdims=keepdims)

        return Fitted(xp, choose)

    return maker


def _is_short(x: Spec, axes: tuple[int, ...]) -> bool:
    """Return True if `mlx.space.blocked_sum` would do it at once."""
    return x.size <= BLOCK or (len(axes) < x.ndim and all(x.shape[a] <= BLOCK for a in axes))


def _average(xp: Space) -> Maker:
    """MLX multiplies a sum by 1 / n, which is n's quotient where n is a power of 2."""
    general = wide(xp, lambda x, axis, keepdims: _mean(xp, x, axis, keepdims))

    def maker(out: Spec, axis: Any, keepdims: bool) -> Fn:
        def choose(x: Spec) -> Fn:
            axes = axes_of(axis, x.ndim, "mean")
            count = math.prod(x.shape[a] for a in axes)
            exact = count.bit_count() == 1 and count <= BLOCK and x.dtype in (dt.f32, dt.f64) and axes
            if exact and _is_short(x, axes):
                return Bound(mx.mean, (axes, keepdims))
            return general(out, axis=axis, keepdims=keepdims)

        return Fitted(xp, choose)

    return maker


def _mean(xp: Space, x: Value, axis: Any, keepdims: bool) -> Value:
    axes = _axes(axis, x)
    return xp.sum(x, axes, keepdims) / mx.array(float(math.prod(x.shape[a] for a in axes)), x.dtype)


def _plain(fn: Fn) -> Maker:
    return lambda out, axis, keepdims: Bound(fn, (axis, keepdims))


def _count(out: Spec, axis: Any, keepdims: bool) -> Fn:
    return lambda x: mx.sum((x != 0).astype(mx.int64), axis=axis, keepdims=keepdims)


def _place(fn: Fn) -> Maker:
    """The first of equals; NaN wins, which MLX's own comparison does not know."""

    def maker(out: Spec, axis: int | None, keepdims: bool) -> Fn:
        if not out.size:
            return lambda x: mx.zeros(out.shape, mx.int64)

        def run(x: Value) -> Value:
            flat, along = (x.reshape(-1), 0) if axis is None else (x, axis)
            index = fn(flat, axis=along)
            if mx.issubdtype(x.dtype, mx.floating):
                unknown = flat != flat
                first = mx.argmax(unknown.astype(mx.uint8), axis=along)
                index = mx.where(mx.any(unknown, axis=along), first, index)
            return index.astype(mx.int64).reshape(out.shape)

        return run

    return maker


def _reductions(xp: Space) -> dict[Op, Maker]:
    return {
        ops.sum: _sum(xp),
        ops.prod_: _summing(xp.prod, mx.all),
        ops.mean: _average(xp),
        ops.max: _plain(mx.max),
        ops.min: _plain(mx.min),
        ops.all: _plain(mx.all),
        ops.any: _plain(mx.any),
        ops.count_nonzero: _count,
        ops.argmax: _place(mx.argmax),
        ops.argmin: _place(mx.argmin),
    }


# ---- products and moving


def _integer_product(x: Value, y: Value, kind: Any) -> Value:
    """Modulo 2**bits, by f64 products of 16-bit parts: each sum is an integer below 2**53 for K up to 2**21."""
    bits = kind.size * 8
    parts = [
        [((v.astype(mx.int64) >> shift) & 0xFFFF).astype(mx.float64) for shift in range(0, bits, 16)] for v in (x, y)
    ]
    total: Any = None
    for i, a in enumerate(parts[0]):
        for j, b in enumerate(parts[1][: len(parts[0]) - i]):
            part = mx.matmul(a, b).astype(mx.int64) << (16 * (i + j))
            total = part if total is None else total + part
    return total.astype(kind)


def _matmul(xp: Space) -> Maker:
    def maker(out: Spec, algorithm: str) -> Fn:
        if out.dtype.is_float:
            return in_f32(mx.matmul)(out)
        return xp.in_double(lambda x, y: _integer_product(x, y, TO_MLX[out.dtype]))

    return maker


def _concat(out: Spec, axis: int | None) -> Fn:
    if axis is None:
        return lambda *xs: concatenated(xs, None)
    return Bound(mx.concatenate, (axis,), together=True)


def _cast(xp: Space, source: DType, t: DType) -> Fn:
    """MLX's own cast where it is that of `namespace.cast`."""
    rounds_twice = t in HALF and (source is dt.f64 or (source.is_integer and source.nbytes > 2))
    if t is dt.bool_ or (source.is_float and t.is_integer) or rounds_twice:
        return lambda x: cast(xp, x, t)
    return Bound(mx.array.astype, (TO_MLX[t],))


def _taken(xp: Space, out: Spec, along: int, what: str, otherwise: Fn) -> Fn:
    """The host, which sees the same memory, looks at the indices at once; within a program they are looked at when it ran."""

    def run(x: Value, indices: Value) -> Value:
        seen = xp.at_hand(indices) if out.size else None
        if seen is None:
            return otherwise(x, indices)
        size = x.shape[along]
        if seen.min() < -size or seen.max() >= size:
            raise BoundsError(f"{what}: an index is outside an axis of size {size}.")
        return mx.take(x, indices, along)

    return run


def _take(xp: Space, general: Maker) -> Maker:
    return lambda out, axis: _taken(xp, out, axis or 0, "take", general(out, axis=axis))


def _gather(xp: Space, general: Maker) -> Maker:
    def maker(out: Spec, key: tuple[Any, ...]) -> Fn:
        otherwise = general(out, key=key)

        def choose(x: Spec, *indices: Spec) -> Fn:
            axis = elements.one_axis(x.shape, key)
            return otherwise if axis is None else _taken(xp, out, axis, "index", otherwise)

        return Fitted(xp, choose)

    return maker


def _argsort(out: Spec, axis: int, descending: bool, stable: bool) -> Fn:
    along = axis_of(axis, len(out.shape), "argsort")
    n = out.shape[along]

    def run(x: Value) -> Value:
        if not x.size:
            return mx.zeros(out.shape, dtype=mx.int64)
        if not descending:
            return mx.argsort(x, axis=along).astype(mx.int64)
        order = mx.argsort(_turned(x, along), axis=along).astype(mx.int64)
        return n - 1 - _turned(order, along)

    return run


def _turned(x: Value, axis: int) -> Value:
    return mx.flip(x, axis)


def _sort(out: Spec, axis: int, descending: bool, stable: bool) -> Fn:
    if not descending:
        return lambda x: mx.sort(x, axis=axis) if x.size else x
    order = _argsort(out, axis, descending, stable)
    return lambda x: mx.take_along_axis(x, order(x), axis=axis) if x.size else x


def _topk(out: tuple[Spec, Spec], k: int, axis: int, largest: bool, sorted: bool) -> Fn:
    def run(x: Value) -> tuple[Value, Value]:
        if not x.size or not k:
            return mx.zeros(out[0].shape, dtype=x.dtype), mx.zeros(out[1].shape, dtype=mx.int64)
        order = _argsort(Spec(tuple(x.shape), out[1].dtype), axis, largest, True)(x)
        first = mx.take(order, mx.arange(k), axis=axis)
        return mx.take_along_axis(x, first, axis=axis), first

    return run


def makers(xp: Space) -> dict[Op, Maker]:
    """A maker for each row that runs on MLX."""
    rows: dict[Op, Maker] = elements.makers(xp) | _maps(xp) | _reductions(xp)
    rows |= {
        ops.matmul: _matmul(xp),
        ops.concat: _concat,
        ops.stack: lambda out, axis: Bound(mx.stack, (axis,), together=True),
        ops.astype: lambda out, dtype, copy: Fitted(xp, lambda x: _cast(xp, x.dtype, out.dtype)),
        ops.take: _take(xp, rows[ops.take]),
        ops.gather: _gather(xp, rows[ops.gather]),
        ops.sort: _sort,
        ops.argsort: _argsort,
        ops.topk: _topk,
    }
    rows[ops.fused] = elements.fused(xp, rows)
    return rows
