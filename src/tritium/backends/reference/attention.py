"""What the rows of attention mean, in NumPy: part of the reference.

Knows nothing of tensors or other backends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tritium import ops
from tritium.backends.reference.cast import cast
from tritium.errors import BoundsError
from tritium.op import Op

Arr = np.ndarray[Any, Any]


def _linear(x: Arr, w: Arr, bias: Arr | None, *, out: Arr) -> None:
    # Row by row: a product of many rows sums in another order, and a token's bits must not depend on its company.
    y = (x.astype(np.float32)[..., None, :] @ w.astype(np.float32).T)[..., 0, :]
    cast(y if bias is None else y + bias, out=out)


def _rope(x: Arr, cos: Arr, sin: Arr, *, out: Arr, interleaved: bool, heads: int | None, size: int | None) -> None:
    wide, size = x.astype(np.float32), x.shape[-1] if size is None else size
    half = size // 2
    one, two = (slice(0, size, 2), slice(1, size, 2)) if interleaved else (slice(0, half), slice(half, size))
    a, b, c, s = wide[..., one], wide[..., two], cos[..., None, :], sin[..., None, :]
    turned = wide.copy()
    turned[..., one], turned[..., two] = a * c - b * s, b * c + a * s
    if heads is not None:
        turned[..., heads:, :] = wide[..., heads:, :]
    cast(turned, out=out)


def checked_places(places: Arr, slots: int, capacity: int, tokens: int, what: str) -> list[tuple[int, int, int]]:
    """The places of all sequences, or an error naming the first that is outside the cache."""
    found = [(int(slot), int(start), int(count)) for slot, start, count in places]
    for b, (slot, start, count) in enumerate(found):
        if not (0 <= slot < slots and start >= 0 and 0 <= count <= tokens and start + count <= capacity):
            raise BoundsError(
                f"{what}: sequence {b} is at (slot {slot}, start {start}, count {count}), outside {slots} slots of {capacity} "
                f"tokens and the {tokens} tokens given. Make a larger cache, or write fewer tokens."
            )
    return found


def _update_cache(cache: Arr, values: Arr, places: Arr, *, out: Arr) -> None:
    slots, _, capacity, _ = cache.shape
    found = checked_places(places, slots, capacity, values.shape[1], "update_cache")
    if out.ctypes.data != cache.ctypes.data:  # else it is written in place
        out[...] = cache
    for b, (slot, start, count) in enumerate(found):
        cast(values[b, :count].swapaxes(0, 1), out=out[slot, :, start : start + count])


def outside(what: str, slots: int, capacity: int, tokens: int) -> str:
    """What is wrong where some sequence of a device is not inside its cache: which one is not known on the host."""
    return (
        f"{what}: a sequence is at (slot, start, count) outside {slots} slots of {capacity} tokens and the {tokens} tokens "
        f"given. Make a larger cache, or write fewer tokens."
    )


def factor_of(size: int, scale: float | None) -> float:
    """By what attention multiplies its queries."""
    return 1 / math.sqrt(max(size, 1)) if scale is None else scale


def _attention(
    q: Arr, k: Arr, v: Arr, places: Arr | None, *, out: Arr, scale: float | None, window: int | None
) -> None:
    """All of it in f64, rounded to f32 at the end: every device gives the same bits, in whatever order it adds."""
    batch, tokens, heads, size = q.shape
    slots, shared, capacity, _ = k.shape
    if places is None:
        places = np.array([(b, capacity - tokens, tokens) for b in range(batch)]).reshape(batch, 3)
    factor = factor_of(size, scale)
    y = np.zeros(q.shape, np.float64)
    for b, (slot, start, count) in enumerate(checked_places(places, slots, capacity, tokens, "attention")):
        seen = start + count
        first = 0 if window is None else max(start - window + 1, 0)  # what no query sees is not read
        keys, values = (x[slot, :, first:seen].astype(np.float64).repeat(heads // shared, axis=0) for x in (k, v))
        scores = np.einsum("thd,hsd->hts", q[b, :count].astype(np.float64) * factor, keys)
        key, last = np.arange(first, seen), start + np.arange(count)[:, None]
        hidden = (key > last) | (key <= last - (seen if window is None else window))
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        weights /= weights.sum(axis=-1, keepdims=True)
        y[b, :count] = np.einsum("hts,hsd->thd", weights, values)
    cast(y.astype(np.float32), out=out)


SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of the largest element that the largest code may stand for


def _codes(x: Arr, scale: Arr, low: int, high: int) -> tuple[Arr, Arr]:
    """Return x / scale rounded and within limits, and the sums of squared errors, added in the order of the kernels."""
    inverse = np.where(scale == 0, 0.0, 1.0 / scale)
    codes = np.clip(np.rint(x * inverse), low, high)
    lanes = np.square(x - codes * scale).reshape(*x.shape[:-1], 4, 8)
    lanes = ((lanes[..., 0, :] + lanes[..., 1, :]) + lanes[..., 2, :]) + lanes[..., 3, :]
    error = np.zeros(lanes.shape[:-1])
    for j in range(8):
        error = error + lanes[..., j]
    return codes, error[..., None]


def quantize_blocks(values: Arr, bits: int) -> Arr:
    """Return rows [..., D] as blocks of integers with a scale, u8 [..., bytes]; the scale of what is no number is NaN."""
    blocks = values.shape[-1] // ops.KV_BLOCK
    x = values.astype(np.float32).astype(np.float64).reshape(*values.shape[:-1], blocks, ops.KV_BLOCK)
    largest, most = np.abs(x).max(axis=-1, keepdims=True, initial=0), 7 if bits == 4 else 127
    finite = largest <= 65504.0 * most
    x = np.where(finite, x, 0.0)
    best_codes, best_scale, least = np.zeros_like(x), np.zeros_like(largest, np.float16), np.full_like(largest, np.inf)
    for share in SHARES if bits == 4 else SHARES[:1]:
        stored = (np.where(finite, largest, 0.0) / most * share).astype(np.float32).astype(np.float16)
        codes, error = _codes(x, stored.astype(np.float64), -8 if bits == 4 else -127, most)
        better = error < least
        best_codes, best_scale = np.where(better, codes, best_codes), np.where(better, stored, best_scale)
        least = np.where(better, error, least)
    scale = np.where(finite, best_scale, np.float16(np.nan)).astype(np.float16).view(np.uint8)
    integers = best_codes.astype(np.int64)
    if bits == 4:
        packed = (integers[..., :16] + 8) | (integers[..., 16:] + 8) << 4
    else:
        packed = integers & 255
    joined = np.concatenate([scale, packed.astype(np.uint8)], axis=-1)
    return joined.reshape(*values.shape[:-1], blocks * ops.KV_BYTES[bits])


def dequantize_blocks(rows: Arr, size: int) -> Arr:
    """Return blocks of integers u8 [..., bytes] as f64 [..., size]."""
    bits = ops.kv_bits(rows.shape[-1], size, "attention")
    blocks = np.ascontiguousarray(rows).reshape(*rows.shape[:-1], size // ops.KV_BLOCK, ops.KV_BYTES[bits])
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    data = blocks[..., 2:]
    if bits == 4:
        codes = np.concatenate([data & 15, data >> 4], axis=-1).astype(np.float64) - 8
    else:
        codes = np.ascontiguousarray(data).view(np.int8).astype(np.float64)
    widened: Arr = (codes * scale).reshape(*rows.shape[:-1], size)
    return widened


def _update_quantized_cache(cache: Arr, values: Arr, places: Arr, *, out: Arr) -> None:
    slots, _, capacity, nbytes = cache.shape
    found = checked_places(places, slots, capacity, values.shape[1], "update_quantized_cache")
    if out.ctypes.data != cache.ctypes.data:  # else it is written in place
        out[...] = cache
    bits = ops.kv_bits(nbytes, values.shape[3], "update_quantized_cache: cache")
    for b, (slot, start, count) in enumerate(found):
        out[slot, :, start : start + count] = quantize_blocks(values[b, :count].swapaxes(0, 1), bits)


def _quantized_attention(
    q: Arr, k: Arr, v: Arr, places: Arr, *, out: Arr, scale: float | None, window: int | None
) -> None:
    keys, values = (dequantize_blocks(x, q.shape[3]) for x in (k, v))
    checked_places(places, k.shape[0], k.shape[2], q.shape[1], "quantized_attention")
    _attention(q, keys, values, places, out=out, scale=scale, window=window)


KERNELS: dict[Op, Any] = {
    ops.update_quantized_cache: _update_quantized_cache,
    ops.quantized_attention: _quantized_attention,
    ops.linear: _linear,
    ops.rope: _rope,
    ops.update_cache: _update_cache,
    ops.attention: _attention,
}
