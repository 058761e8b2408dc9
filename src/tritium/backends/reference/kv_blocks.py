"""The ops of KV caches of integers in NumPy: part of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium import ops
from tritium.backends.reference.attention import attend, checked_places
from tritium.op import Op

Arr = np.ndarray[Any, Any]
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
    sequences = checked_places(places, slots, capacity, values.shape[1], "update_quantized_cache")
    if out.ctypes.data != cache.ctypes.data:  # else it is written in place
        out[...] = cache
    bits = ops.kv_bits(nbytes, values.shape[3], "update_quantized_cache: cache")
    for b, (slot, start, count) in enumerate(sequences):
        out[slot, :, start : start + count] = quantize_blocks(values[b, :count].swapaxes(0, 1), bits)


def _quantized_attention(
    q: Arr, k: Arr, v: Arr, places: Arr, *, out: Arr, scale: float | None, window: int | None
) -> None:
    keys, values = (dequantize_blocks(x, q.shape[3]) for x in (k, v))
    checked_places(places, k.shape[0], k.shape[2], q.shape[1], "quantized_attention")
    attend(q, keys, values, places, out=out, scale=scale, window=window)


KERNELS: dict[Op, Any] = {
    ops.update_quantized_cache: _update_quantized_cache,
    ops.quantized_attention: _quantized_attention,
}
