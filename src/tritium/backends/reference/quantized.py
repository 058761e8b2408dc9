"""The quantising ops in NumPy: part of the reference, apart because packed operands come as `Packed`.

Every float step is one f32 operation (means are summed in f64) in a fixed order, so that every kernel on every device
gives the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tritium import ops
from tritium.backends.reference import packed
from tritium.backends.reference.cast import cast
from tritium.backends.reference.packed import Packed
from tritium.errors import BoundsError, QuantError
from tritium.op import Op

Arr = np.ndarray[Any, Any]
Weight = Arr | Packed

TINY = np.float32(1e-5)  # below this a token counts as silence, a tensor as empty: scales never become 0
COLUMNS = 1024  # of a block: its groups are added before blocks are added to each other
BLOCK = 256  # elements whose sum is taken by halves


def integers(w: Weight) -> Arr:
    return packed.decode(w) if isinstance(w, Packed) else w


def _finite(x: Arr, what: str) -> None:
    """NaN and infinity have no integer: an error naming the first."""
    bad = ~np.isfinite(x)
    if bad.any():
        index = [int(i) for i in np.argwhere(bad)[0]]
        raise QuantError(
            f"{what}: element {index} is {x[tuple(index)]}; quantisation needs finite numbers. Find where it comes from, or "
            f"replace it with where(isfinite(x), x, 0)."
        )


# ---- activations


def tokens(x: Arr) -> tuple[Arr, Arr, Arr]:
    """(q, scale, sum) of each token: amax = max(|x|, 1e-5), q = rint(x * (127 / amax)), scale = amax / 127."""
    x = x.astype(np.float32)
    size = np.abs(x).max(axis=-1, initial=0)
    whole = np.isfinite(size)
    amax = np.maximum(np.where(whole, size, 0), TINY).astype(np.float32)
    steps = np.where(whole[..., None], x, 0) * (np.float32(127) / amax)[..., None]
    q = np.clip(np.rint(steps), -128, 127).astype(np.int8)
    scale = np.where(whole, amax / np.float32(127), np.float32(np.nan)).astype(np.float32)
    return q, scale, q.sum(axis=-1, dtype=np.int32)


def by_groups(x: Arr, group: int) -> tuple[Arr, Arr]:
    """(q [..., K], scale [..., groups]) of each group of columns of each token, as `tokens` makes them of a whole one."""
    parts = [tokens(x[..., start : start + group])[:2] for start in range(0, x.shape[-1], group)]
    if not parts:
        return x.astype(np.int8), np.zeros((*x.shape[:-1], 0), np.float32)
    return np.concatenate([q for q, _ in parts], axis=-1), np.stack([scale for _, scale in parts], axis=-1)


def _quantize_activations(x: Arr, *, out: tuple[Arr, Arr, Arr]) -> None:
    with np.errstate(invalid="ignore"):
        for result, o in zip(tokens(x), out, strict=True):
            o[...] = result


# ---- products


def dot(q: Arr, t: Arr) -> Arr:
    """q @ t.T, exactly: products of small integers are exact in f64, and BLAS adds them fast."""
    return np.matmul(q.astype(np.float64), t.T.astype(np.float64)).astype(np.int32)


def _integer_matmul(q: Arr, w: Weight, *, out: Arr) -> None:
    out[...] = dot(q, integers(w))


def blocks_of(groups: int, group: int) -> list[range]:
    """Return the groups of each block of columns: what is added to each other first."""
    each = max(COLUMNS // group, 1)
    return [range(start, min(start + each, groups)) for start in range(0, groups, each)]


def _grouped_sums(q: Arr, t: Arr, scale: Arr, group: int, by: Arr | None) -> Arr:
    """The sum of acc[j] * scale[j] (* by[j]) over the groups: in order within a block, then block after block."""
    total = None
    for groups in blocks_of(scale.shape[1], group):
        block = np.zeros((*q.shape[:-1], t.shape[0]), np.float32)
        for j in groups:
            part = slice(j * group, (j + 1) * group)
            term = dot(q[..., part], t[:, part]).astype(np.float32) * scale[:, j]
            block = block + (term if by is None else term * by[..., j, None])
        total = block if total is None else total + block
    return np.zeros((*q.shape[:-1], t.shape[0]), np.float32) if total is None else total


def _float_sums(x: Arr, t: Arr, scale: Arr, group: int) -> Arr:
    """x times the scaled weights, without quantising x: products of f32 numbers, summed in f64 and rounded once."""
    weights = t.astype(np.float32) * _spread(scale, group, t.shape[1])
    return np.matmul(x.astype(np.float64), weights.T.astype(np.float64)).astype(np.float32)


def _quantized_matmul(
    x: Arr, w: Weight, scale: Arr, bias: Arr | None, *, group: int, activations: str = "token", out: Arr
) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        t, scale = integers(w), scale.astype(np.float32)
        if activations == "float":
            y = _float_sums(x, t, scale, group)
        elif activations == "group":
            q, by = by_groups(x, group)
            y = _grouped_sums(q, t, scale, group, by)
        else:
            q, token_scale, _ = tokens(x)
            if group:
                y = _grouped_sums(q, t, scale, group, None) * token_scale[..., None]
            else:
                y = dot(q, t).astype(np.float32) * (token_scale[..., None] * scale)
        if bias is not None:
            y = y + bias
    cast(y, out=out)


# ---- weights


def _repack(w: Weight, *, dtype: Any, out: Weight) -> None:
    values = integers(w)
    if isinstance(out, Packed):
        packed.encode(values, out)
    else:
        out[...] = values


def _spread(of_groups: Arr, group: int, k: int) -> Arr:
    """One number for each row or group of columns, as [N, K] sees it."""
    if group:
        return np.repeat(of_groups, min(group, k), axis=-1)[..., :k]
    return of_groups[..., None] if of_groups.ndim else of_groups


def _dequantize(w: Weight, scale: Arr, zero: Arr | None, *, group: int, dtype: Any, out: Arr) -> None:
    t = integers(w)
    if t.ndim != 2:
        _dequantize_all(t, scale, zero, group, out)
        return
    n, k = t.shape
    rows = max((1 << 18) // max(k, 1), 1)
    for r in range(0, n, rows):  # a few rows at a time, so that they stay in the cache
        part = slice(r, r + rows)
        steps, zeros = (None if s is None else s[part] if s.ndim else s for s in (scale, zero))
        _dequantize_all(t[part], steps, zeros, group, out[part])


def _dequantize_all(t: Arr, scale: Any, zero: Any, group: int, out: Arr) -> None:
    k = t.shape[-1] if t.ndim else 1
    near = t.astype(np.float32)
    if zero is not None:
        near = near - _spread(zero, group, k).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        cast(np.asarray(near * _spread(scale, group, k)), out=out)


def _take_rows(w: Weight, scale: Arr, indices: Arr, *, group: int, out: Arr) -> None:
    n, k = w.shape
    bad = (indices < -n) | (indices >= n)
    if bad.any():
        raise BoundsError(f"take_rows: index {indices[bad].flat[0]} is outside an axis of size {n}.")
    if isinstance(w, Packed) and w.dtype.rows == 1:  # the other rows need not be read
        rows = integers(Packed(w.data[indices], w.dtype, (*indices.shape, k)))
    else:
        rows = integers(w)[indices]
    steps = (scale[indices] if scale.ndim else scale).astype(np.float32)
    _dequantize_all(rows, steps, None, group, out)


def _check_steps(scale: Arr, zero: Arr | None, axes: int, low: int, high: int) -> None:
    """Scales that are given must be finite and above 0, zero points must be codes."""
    bad = ~((scale > 0) & np.isfinite(scale))
    if bad.any():
        value, place = _first(scale, bad, axes)
        raise QuantError(f"quantize: a scale is {value:g} ({place}); scales must be finite and above 0.")
    if zero is not None and (bad := (zero < low) | (zero > high)).any():
        value, place = _first(zero, bad, axes)
        raise QuantError(f"quantize: a zero point is {value} ({place}); it must be one of the codes, {low} to {high}.")


def _first(x: Arr, bad: Arr, axes: int) -> tuple[Any, str]:
    """The first bad number of those of the rows or groups of a tensor with so many axes, and whose it is."""
    groups = x.shape[-1] if x.ndim == axes and axes else 1
    row, group = divmod(int(np.flatnonzero(bad)[0]), groups)
    return x.reshape(-1, groups)[row, group], f"row {row}, group {group}"


def _quantize(x: Arr, scale: Arr, zero: Arr | None, *, group: int, dtype: Any, out: Weight) -> None:
    low, high = dtype.values if dtype.is_packed else (-128, 127)
    if not x.size:
        return
    _check_steps(scale, zero, x.ndim, low, high)
    _finite(x, "quantize")
    k = x.shape[-1] if x.ndim else 1
    with np.errstate(over="ignore"):
        codes = np.rint(x / _spread(scale, group, k))
    if zero is not None:
        codes = codes + _spread(zero, group, k).astype(np.float32)
    codes = np.clip(codes, low, high).astype(np.int8)
    if isinstance(out, Packed):
        packed.encode(codes, out)
    else:
        out[...] = codes


def _reduced(x: Arr, how: Any, scales: tuple[int, ...], group: int) -> Arr:
    """how(x, axis) over the whole matrix, each row, or each group of columns (the last may be shorter)."""
    if group and x.size and x.shape[1] % group == 0:
        return np.asarray(how(x.reshape(*scales, group), 2))
    if group:
        parts = [how(x[:, g * group : (g + 1) * group], 1) for g in range(scales[1])]
        return np.stack(parts, axis=1) if parts else np.empty(scales)
    return np.asarray(how(x, 1 if scales else None))


def _sum(x: Arr) -> Arr:
    """The sum along the last axis in f64, in an order of our own: NumPy's depends on its version and on the layout.

    Blocks of 256 are folded by halves, the second added to the first; what is short is filled up with zeros. The sums of
    the blocks are added in order.
    """
    *lead, k = x.shape
    block = min(BLOCK, 1 << max(k - 1, 0).bit_length())
    count = max(-(-k // block), 1)
    rows = x.reshape(math.prod(lead), k)
    out = np.empty(len(rows))
    step = max((1 << 15) // (count * block), 1)
    buffer = np.empty((min(step, len(rows)), count * block))
    for r in range(0, len(rows), step):  # a few rows at a time, so that they stay in the cache
        part = rows[r : r + step]
        padded = buffer[: len(part)]
        padded[:, :k] = part
        padded[:, k:] = 0
        blocks = padded.reshape(len(part) * count, block)
        while (half := blocks.shape[1] // 2) > 0:
            blocks = blocks[:, :half] + blocks[:, half:]
        out[r : r + step] = np.add.accumulate(blocks.reshape(len(part), count), axis=1)[:, -1]
    return out.reshape(lead)


def _mean(x: Arr, axis: int | None) -> Arr:
    """Along the last axis; axis=None: over all, the sums of the rows being summed likewise."""
    total = _sum(x)
    return _sum(total) / max(x.size, 1) if axis is None else total / max(x.shape[axis], 1)


def _max(x: Arr, axis: int | None) -> Arr:
    return np.asarray(x.max(axis=axis, initial=0))


def _min(x: Arr, axis: int | None) -> Arr:
    return np.asarray(x.min(axis=axis, initial=0))


def _levels(w: Arr, scale: Arr, group: int, low: int, high: int) -> Arr:
    """rint(w / scale), held to a range, as int8; a few rows at a time, so that they stay in the cache."""
    n, k = w.shape
    out = np.empty((n, k), np.int8)
    rows = max((1 << 18) // max(k, 1), 1)
    for r in range(0, n, rows):
        part = slice(r, r + rows)
        steps = w[part] / _spread(scale[part] if scale.ndim else scale, group, k)
        np.clip(np.rint(steps, out=steps), low, high, out=steps)
        out[part] = steps
    return out


def _quantize_ternary(w: Arr, *, axis: int | None, group: int, dtype: Any, out: tuple[Packed, Arr]) -> None:
    data, scale = out
    means = _reduced(np.abs(w), _mean, scale.shape, group)
    if not np.isfinite(means).all():  # no sum of f32 numbers is too large for f64
        _finite(w, "quantize_ternary")
    scale[...] = np.maximum(means, TINY)
    packed.encode(_levels(w, scale, group, -1, 1), data)


def _step(span: Arr, levels: int) -> Arr:
    """The width of a level; 1 where there is nothing to divide, and never too small to divide by."""
    with np.errstate(over="ignore"):
        step = (span / levels).astype(np.float32)
    return np.where(span > 0, np.maximum(step, np.finfo(np.float32).tiny), 1).astype(np.float32)


def _asymmetric(w: Arr, scales: tuple[int, ...], group: int, low: int, high: int) -> tuple[Arr, Arr, Arr]:
    """(codes, scale, zero): the levels from `low` to `high` between the smallest and the largest number; 0 is one of them."""
    wide = w.astype(np.float64)  # no span of f32 numbers is too large for f64
    least, most = (_reduced(wide, f, scales, group) for f in (_min, _max))
    scale = _step(most - least, high - low)
    zero = np.clip(np.rint(low - least / scale), low, high)
    k = w.shape[1]
    steps = np.rint(w / _spread(scale, group, k)) + _spread(zero, group, k).astype(np.float32)
    return np.clip(steps, low, high).astype(np.int8), scale, zero


def _quantize_int8(
    w: Arr, *, axis: int | None, group: int, symmetric: bool, out: tuple[Arr, Arr, Arr]
) -> None:  # fmt: skip
    _finite(w, "quantize_int8")
    q, scale, zero = out
    if not symmetric:
        q[...], scale[...], zero[...] = _asymmetric(w, scale.shape, group, -128, 127)
        return
    scale[...] = _step(_reduced(np.abs(w).astype(np.float64), _max, scale.shape, group), 127)
    zero[...] = 0
    q[...] = _levels(w, scale, group, -127, 127)


def _quantize_int4(
    w: Arr, *, axis: int | None, group: int, symmetric: bool, out: tuple[Packed, Arr] | tuple[Packed, Arr, Arr]
) -> None:
    """Symmetric: the smallest scale with which all numbers are between -8 and 7."""
    _finite(w, "quantize_int4")
    data, scale = out[:2]
    if not symmetric:
        codes, scale[...], out[-1][...] = _asymmetric(w, scale.shape, group, -8, 7)
        packed.encode(codes, data)
        return
    below, above = (_reduced(side, _max, scale.shape, group) for side in (-w.astype(np.float64), w.astype(np.float64)))
    widths = np.where(above > 0, _step(above, 7), 0), np.where(below > 0, _step(below, 8), 0)
    scale[...] = np.where((above > 0) | (below > 0), np.maximum(*widths), 1)
    packed.encode(_levels(w, scale, group, -8, 7), data)


def _copy(x: Weight, *, out: Weight) -> None:
    to, source = (a.data if isinstance(a, Packed) else a for a in (out, x))
    to[...] = source


KERNELS: dict[Op, Any] = {
    ops.copy: _copy,
    ops.quantize_activations: _quantize_activations,
    ops.integer_matmul: _integer_matmul,
    ops.quantized_matmul: _quantized_matmul,
    ops.repack: _repack,
    ops.dequantize: _dequantize,
    ops.take_rows: _take_rows,
    ops.quantize: _quantize,
    ops.quantize_ternary: _quantize_ternary,
    ops.quantize_int8: _quantize_int8,
    ops.quantize_int4: _quantize_int4,
}
