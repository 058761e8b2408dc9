"""The quantising rows over values of a library: bit for bit what `backends.reference.quantized` says.

Every float step is one f32 operation (means are summed in f64) in a fixed order; the sums of products are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tritium import dtype as dt, ops
from tritium.backends.reference.packed import Packed
from tritium.backends.reference.quantized import BLOCK, TINY, blocks_of
from tritium.backends.values.namespace import Namespace, Value, cast, legal, size_of
from tritium.backends.values.packed import decode, encode
from tritium.dtype import DType
from tritium.errors import QuantError
from tritium.layout import Shape
from tritium.op import Op, Spec

Fn = Callable[..., Any]
Scales = Callable[[Value], Value]
EXACT = 2**24  # f32 holds every integer up to here


# ---- activations and products


def tokens(xp: Namespace, x: Value) -> tuple[Value, Value, Value]:
    """(q, scale, sum) of each token, as `quantized.tokens` says."""
    x = xp.astype(x, dt.f32)
    last = len(x.shape) - 1
    zero, tiny = xp.full((), 0.0, dt.f32), xp.full((), float(TINY), dt.f32)
    size = xp.max(xp.abs(x), (last,)) if x.shape[last] else xp.full(tuple(x.shape[:-1]), 0.0, dt.f32)
    whole = xp.isfinite(size)
    amax = xp.maximum(xp.where(whole, size, zero), tiny)
    most = xp.full((), 127.0, dt.f32)  # a value: a library may divide by a Python number by way of its reciprocal
    steps = xp.where(whole[..., None], x, zero) * (most / amax)[..., None]
    low, high = (xp.full((), n, dt.f32) for n in (-128.0, 127.0))
    q = xp.minimum(xp.maximum(xp.rint(steps), low), high)
    scale = xp.where(whole, amax / most, xp.full((), float("nan"), dt.f32))
    total = xp.sum(xp.astype(q, dt.i32), (last,))
    return xp.astype(q, dt.i8), scale, xp.astype(total, dt.i32)


def largest(t: DType) -> int:
    """The largest size of a weight of this dtype."""
    return 128 if t is dt.i8 else max(-t.values[0], t.values[1])


def dot(xp: Namespace, q: Value, w: Packed | Value) -> Value:
    """q @ w.T exactly, as i32, for int8 q [..., K] and weights [N, K]."""
    lead, k = tuple(q.shape[:-1]), int(q.shape[-1])
    n = int(w.shape[0])
    rows = xp.reshape(q, (size_of(lead), k))
    if not k or not n or not size_of(lead):
        return xp.full((*lead, n), 0, dt.i32)
    sums = xp.ternary_dot(rows, w) if isinstance(w, Packed) and w.dtype.is_ternary else None
    if sums is None:
        most = largest(w.dtype if isinstance(w, Packed) else dt.i8)
        sums = plain_dot(xp, rows, decode(xp, w, checked=False), most)
    return xp.reshape(sums, (*lead, n))


def plain_dot(xp: Namespace, q: Value, t: Value, most: int) -> Value:
    """By a product of f32: with weights up to `most`, sums of EXACT / (128 * most) columns are integers that f32 holds,
    whatever the order; more columns are split and added as i32."""
    step = EXACT // (128 * most)
    k = int(q.shape[-1])
    a, b = xp.astype(q, dt.f32), xp.transpose(xp.astype(t, dt.f32), (1, 0))
    total = None
    for start in range(0, k, step):
        part = xp.astype(xp.matmul(a[:, start : start + step], b[start : start + step, :]), dt.i32)
        total = part if total is None else total + part
    return total


def _group_dots(xp: Namespace, q: Value, w: Packed | Value, group: int) -> list[Value]:
    """The dot products of each group of columns, as f32."""
    t = decode(xp, w, checked=False)
    most = largest(w.dtype if isinstance(w, Packed) else dt.i8)
    k = int(q.shape[-1])
    parts = (slice(start, min(start + group, k)) for start in range(0, k, group))
    return [xp.astype(plain_dot(xp, q[:, part], t[:, part], most), dt.f32) for part in parts]


def by_groups(xp: Namespace, x: Value, group: int) -> tuple[Value, Value]:
    """(q, scale) of each group of columns of tokens [M, K], K not 0: groups are tokens of their own, the last filled up with 0."""
    m, k = (int(s) for s in x.shape)
    group = min(group, k)
    groups = -(-k // group)
    padded = xp.pad(xp.astype(x, dt.f32), (0, groups * group - k), 0) if k % group else x
    q, scale, _ = tokens(xp, xp.reshape(padded, (m * groups, group)))
    return xp.reshape(q, (m, groups * group))[:, :k], xp.reshape(scale, (m, groups))


def grouped_sums(xp: Namespace, dots: list[Value], scale: Value, group: int, by: Value | None) -> Value:
    """The sum of dots[j] * scale[:, j] (* by[:, j]): in order within a block, then block after block."""
    total = None
    for groups in blocks_of(len(dots), group):
        block = xp.full(tuple(dots[0].shape), 0.0, dt.f32)
        for j in groups:
            term = dots[j] * scale[:, j]
            block = block + (term if by is None else term * by[:, j][:, None])
        total = block if total is None else total + block
    return total


def _float_sums(xp: Namespace, x: Value, w: Packed | Value, scale: Value, group: int) -> Value:
    """x [M, K] times the scaled weights in f32, without quantising x."""
    weights = xp.astype(decode(xp, w, checked=False), dt.f32) * _spread(xp, scale, group, int(w.shape[1]))
    return xp.matmul(xp.astype(x, dt.f32), xp.transpose(weights, (1, 0)))


def scaled(
    xp: Namespace, x: Value, w: Packed | Value, scale: Value, bias: Value | None, group: int, activations: str
) -> Value:
    """The row quantized_matmul in f32."""
    lead, k, n = tuple(x.shape[:-1]), int(x.shape[-1]), int(w.shape[0])
    rows, scale = xp.reshape(x, (size_of(lead), k)), xp.astype(scale, dt.f32)
    if not (k and n and rows.shape[0]):
        y = xp.full((size_of(lead), n), 0.0, dt.f32)
    elif activations == "float":
        y = _float_sums(xp, rows, w, scale, group)
    elif activations == "group":
        q, by = by_groups(xp, rows, group)
        y = grouped_sums(xp, _group_dots(xp, q, w, group), scale, group, by)
    else:
        q, token_scale, _ = tokens(xp, rows)
        if group:
            y = grouped_sums(xp, _group_dots(xp, q, w, group), scale, group, None) * token_scale[:, None]
        else:
            y = xp.astype(dot(xp, q, w), dt.f32) * (token_scale[:, None] * scale)
    y = xp.reshape(y, (*lead, n))
    return y if bias is None else y + bias


# ---- weights


def _spread(xp: Namespace, of_groups: Value, group: int, k: int) -> Value:
    """One number for each row or group of columns, as [N, K] sees it."""
    if group:
        *lead, groups = (int(s) for s in of_groups.shape)
        step = min(group, k)
        wide = xp.broadcast_to(of_groups[..., None], (*lead, groups, step))
        return xp.reshape(wide, (*lead, groups * step))[..., :k]
    return of_groups[..., None] if len(of_groups.shape) else of_groups


def _grouped(xp: Namespace, x: Value, how: Scales, scales: Shape, group: int) -> Value:
    """how(x), along the last axis, over the whole matrix, each row, or each group of columns (the last may be shorter)."""
    n, k = (int(s) for s in x.shape)
    if not group:
        return how(x) if scales else how(xp.reshape(how(x), (n,)))
    if k and k % group == 0:
        return how(xp.reshape(x, (*scales, group)))
    parts = [how(x[:, start : min(start + group, k)]) for start in range(0, k, group)]
    return xp.stack(parts, 1) if parts else xp.full(scales, 0.0, xp.dtype_of(x))


def _sum(xp: Namespace, x: Value) -> Value:
    """The sum along the last axis in f64, in the order of `quantized._sum`."""
    *lead, k = (int(s) for s in x.shape)
    block = min(BLOCK, 1 << max(k - 1, 0).bit_length())
    count = max(-(-k // block), 1)
    x = xp.astype(x, dt.f64)
    if count * block > k:
        x = xp.pad(x, (*(0 for _ in lead), count * block - k), 0)
    blocks = xp.reshape(x, (*lead, count, block))
    while (half := int(blocks.shape[-1]) // 2) > 0:
        blocks = blocks[..., :half] + blocks[..., half:]
    total = blocks[..., 0, 0]
    for i in range(1, count):
        total = total + blocks[..., i, 0]
    return total


def _means(xp: Namespace, x: Value, scales: Shape, group: int) -> Value:
    """The mean over the whole matrix, each row, or each group of columns, in f64."""
    n, k = (int(s) for s in x.shape)
    if group:
        return _grouped(xp, x, lambda part: _over(xp, _sum(xp, part), int(part.shape[-1])), scales, group)
    rows = _sum(xp, x)
    return _over(xp, rows, k) if scales else _over(xp, _sum(xp, rows), n * k)


def _over(xp: Namespace, x: Value, n: int) -> Value:
    """x / n, or x of nothing. GPUs multiply by 1 / n where n is no value of theirs."""
    return x / xp.full((), float(max(n, 1)), xp.dtype_of(x))


def _extreme(xp: Namespace, fn: Fn, other: Fn) -> Scales:
    """The largest (or smallest) along the last axis, or 0 if that is larger."""

    def how(x: Value) -> Value:
        zero = xp.full((), 0.0, xp.dtype_of(x))
        last = len(x.shape) - 1
        return other(fn(x, (last,)), zero) if x.shape[last] else xp.full(tuple(x.shape[:-1]), 0.0, xp.dtype_of(x))

    return how


def _finite(xp: Namespace, w: Value, what: str) -> None:
    xp.doubt(
        ~xp.isfinite(w),
        f"{what}: an element is NaN or infinite; quantisation needs finite numbers. Find where it comes from, or replace it "
        f"with where(isfinite(x), x, 0).",
        QuantError,
    )


def _step(xp: Namespace, span: Value, levels: int) -> Value:
    """The width of a level as f32; 1 where there is nothing to divide, and never too small to divide by. A quotient of two
    f32 numbers is the same whether it is rounded by way of f64 or not."""
    step = xp.maximum(xp.astype(_over(xp, span, levels), dt.f32), xp.full((), float(np.finfo(np.float32).tiny), dt.f32))
    return xp.where(span > 0, step, xp.full((), 1.0, dt.f32))


def _clipped(xp: Namespace, x: Value, low: int, high: int) -> Value:
    t = xp.dtype_of(x)
    return xp.minimum(xp.maximum(x, xp.full((), float(low), t)), xp.full((), float(high), t))


def _levels(xp: Namespace, w: Value, scale: Value, group: int, low: int, high: int) -> Value:
    """rint(w / scale), held to a range, as int8. What is not finite raises elsewhere, and counts as 0."""
    steps = _clipped(xp, xp.rint(w / _spread(xp, scale, group, int(w.shape[1]))), low, high)
    return xp.astype(xp.where(steps == steps, steps, xp.full((), 0.0, dt.f32)), dt.i8)


def _ternary(xp: Namespace, w: Value, scales: Shape, group: int, dtype: DType) -> tuple[Packed, Value]:
    _finite(xp, w, "quantize_ternary")
    means = _means(xp, xp.abs(w), scales, group)
    scale = xp.astype(xp.maximum(means, xp.full((), float(TINY), dt.f64)), dt.f32)
    return encode(xp, _levels(xp, w, scale, group, -1, 1), dtype, checked=False), scale


def _symmetric(xp: Namespace, w: Value, scales: Shape, group: int) -> tuple[Value, Value]:
    """(levels, scale) of int8 with the largest size at 127."""
    _finite(xp, w, "quantize_int8")
    scale = _step(xp, _grouped(xp, xp.abs(w), _extreme(xp, xp.max, xp.maximum), scales, group), 127)
    return _levels(xp, w, scale, group, -127, 127), scale


def _symmetric_int4(xp: Namespace, w: Value, scales: Shape, group: int) -> tuple[Value, Value]:
    """(levels, scale): the smallest scale with which all numbers are between -8 and 7."""
    _finite(xp, w, "quantize_int4")
    highest = _extreme(xp, xp.max, xp.maximum)
    above, below = (_grouped(xp, side, highest, scales, group) for side in (w, -w))
    zero, one = (xp.full((), number, dt.f32) for number in (0.0, 1.0))
    widths = (xp.where(side > 0, _step(xp, side, n), zero) for side, n in ((above, 7), (below, 8)))
    width = xp.maximum(*widths)
    scale = xp.where(width > 0, width, one)
    return _levels(xp, w, scale, group, -8, 7), scale


def _asymmetric(
    xp: Namespace, w: Value, scales: Shape, group: int, what: str, least: int, most: int
) -> tuple[Value, Value, Value]:
    """(levels, scale, zero): the levels from `least` to `most` between the smallest and the largest number."""
    _finite(xp, w, what)
    wide = xp.astype(w, dt.f64)
    low = _grouped(xp, wide, _extreme(xp, xp.min, xp.minimum), scales, group)
    high = _grouped(xp, wide, _extreme(xp, xp.max, xp.maximum), scales, group)
    scale = _step(xp, high - low, most - least)
    zero = _clipped(xp, xp.rint(float(least) - low / xp.astype(scale, dt.f64)), least, most)
    zero = xp.where(zero == zero, zero, xp.full((), 0.0, dt.f64))
    return _codes(xp, w, scale, xp.astype(zero, dt.i32), group, least, most), scale, xp.astype(zero, dt.i32)


def _codes(xp: Namespace, x: Value, scale: Value, zero: Value | None, group: int, low: int, high: int) -> Value:
    """rint(x / scale) + zero, held to a range, as int8. What is not finite raises elsewhere, and counts as 0."""
    k = int(x.shape[-1]) if len(x.shape) else 1
    q = xp.rint(x / _spread(xp, scale, group, k))
    if zero is not None:
        q = q + xp.astype(_spread(xp, zero, group, k), dt.f32)
    q = _clipped(xp, q, low, high)
    return xp.astype(xp.where(q == q, q, xp.full((), 0.0, dt.f32)), dt.i8)


def _quantized(xp: Namespace, x: Value, scale: Value, zero: Value | None, group: int, dtype: DType) -> Packed | Value:
    """The row quantize: scales and zero points are given."""
    low, high = dtype.values if dtype.is_packed else (-128, 127)
    if size_of(tuple(x.shape)):
        wrong = ~((scale > 0) & xp.isfinite(scale))
        xp.doubt(wrong, "quantize: a scale is not finite or not above 0; scales must be both.", QuantError)
        if zero is not None:
            bounds = f"quantize: a zero point is not one of the codes, {low} to {high}."
            xp.doubt((zero < low) | (zero > high), bounds, QuantError)
        _finite(xp, x, "quantize")
    codes = _codes(xp, x, scale, zero, group, low, high)
    return encode(xp, codes, dtype, checked=False) if dtype.is_packed else codes


def _dequantized(xp: Namespace, w: Packed | Value, scale: Value, zero: Value | None, group: int) -> Value:
    t = decode(xp, w, checked=True)
    k = int(t.shape[-1]) if len(t.shape) else 1
    near = xp.astype(t, dt.f32)
    if zero is not None:
        near = near - xp.astype(_spread(xp, zero, group, k), dt.f32)
    return near * _spread(xp, scale, group, k)


def _gathered(xp: Namespace, w: Packed | Value, indices: Value) -> Value:
    """The integers of the rows at these indices, [n, K]; of tiles, whole tiles of rows are read."""
    n, k = (int(s) for s in w.shape)
    if not isinstance(w, Packed):
        return xp.take(w, indices, 0)
    rows, count = w.dtype.rows, int(indices.shape[0])
    if rows == 1:
        return decode(xp, Packed(xp.take(w.data, indices, 0), w.dtype, (count, k)), checked=True)
    tiles = xp.reshape(w.data, (-(-n // rows), -1))
    near = decode(
        xp, Packed(xp.reshape(xp.take(tiles, indices // rows, 0), (-1,)), w.dtype, (count * rows, k)), checked=False
    )
    first = xp.astype(xp.array(np.arange(count) * rows), xp.dtype_of(indices))
    return xp.take(near, first + indices % rows, 0)


def _taken(xp: Namespace, w: Packed | Value, scale: Value, indices: Value, group: int) -> Value:
    shape, k = tuple(indices.shape), int(w.shape[1])
    if not size_of(shape) or not k:
        return xp.full((*shape, k), 0.0, dt.f32)
    rows = xp.reshape(legal(xp, indices, int(w.shape[0]), "take_rows"), (size_of(shape),))
    steps = xp.astype(xp.take(scale, rows, 0) if len(scale.shape) else scale, dt.f32)
    near = xp.astype(_gathered(xp, w, rows), dt.f32) * _spread(xp, steps, group, k)
    return xp.reshape(near, (*shape, k))


# ---- makers


def makers(xp: Namespace) -> dict[Op, Fn]:
    """The rows of quantised weights and products."""

    def quantize_activations(out: tuple[Spec, ...]) -> Fn:
        return lambda x: tokens(xp, x)

    def integer_matmul(out: Spec) -> Fn:
        return lambda q, w: dot(xp, q, w)

    def quantized_matmul(out: Spec, group: int, activations: str) -> Fn:
        return lambda x, w, scale, bias: cast(xp, scaled(xp, x, w, scale, bias, group, activations), out.dtype)

    def repack(out: Spec, dtype: DType) -> Fn:
        if dtype is dt.i8:
            return lambda w: decode(xp, w, checked=True)
        return lambda w: encode(xp, decode(xp, w, checked=True), dtype, checked=not isinstance(w, Packed))

    rows: dict[Op, Fn] = {
        ops.quantize_activations: quantize_activations,
        ops.integer_matmul: integer_matmul,
        ops.quantized_matmul: quantized_matmul,
        ops.repack: repack,
    }
    return rows | _weight_makers(xp)


def _weight_makers(xp: Namespace) -> dict[Op, Fn]:
    def quantize(out: Spec, group: int, dtype: DType) -> Fn:
        return lambda x, scale, zero: _quantized(xp, x, scale, zero, group, dtype)

    def dequantize(out: Spec, group: int, dtype: DType) -> Fn:
        return lambda w, scale, zero: cast(xp, _dequantized(xp, w, scale, zero, group), dtype)

    def take_rows(out: Spec, group: int) -> Fn:
        return lambda w, scale, indices: _taken(xp, w, scale, indices, group)

    def quantize_ternary(out: tuple[Spec, ...], axis: int | None, group: int, dtype: DType) -> Fn:
        return xp.in_double(lambda w: _ternary(xp, w, out[1].shape, group, dtype))

    def quantize_int8(out: tuple[Spec, ...], axis: int | None, group: int, symmetric: bool) -> Fn:
        scales = out[1].shape
        if not symmetric:
            return xp.in_double(lambda w: _asymmetric(xp, w, scales, group, "quantize_int8", -128, 127))

        def run(w: Value) -> tuple[Value, ...]:
            return *_symmetric(xp, w, scales, group), xp.full(scales, 0, dt.i32)

        return run

    def quantize_int4(out: tuple[Spec, ...], axis: int | None, group: int, symmetric: bool) -> Fn:
        scales = out[1].shape

        def run(w: Value) -> tuple[Packed | Value, ...]:
            if symmetric:
                levels, *steps = _symmetric_int4(xp, w, scales, group)
            else:
                levels, *steps = _asymmetric(xp, w, scales, group, "quantize_int4", -8, 7)
            return encode(xp, levels, dt.i4, checked=False), *steps

        return run if symmetric else xp.in_double(run)

    return {
        ops.quantize: quantize,
        ops.dequantize: dequantize,
        ops.take_rows: take_rows,
        ops.quantize_ternary: quantize_ternary,
        ops.quantize_int8: quantize_int8,
        ops.quantize_int4: quantize_int4,
    }
