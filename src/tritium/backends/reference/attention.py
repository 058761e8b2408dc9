"""The ops of attention in NumPy: part of the reference."""

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
    """Return (slot, start, count) of all sequences; raise for the first that is outside the cache."""
    result = [(int(slot), int(start), int(count)) for slot, start, count in places]
    for b, (slot, start, count) in enumerate(result):
        if not (0 <= slot < slots and start >= 0 and 0 <= count <= tokens and start + count <= capacity):
            raise BoundsError(
                f"{what}: sequence {b} is at (slot {slot}, start {start}, count {count}), outside {slots} slots of {capacity} "
                f"tokens and the {tokens} tokens given. Make a larger cache, or write fewer tokens."
            )
    return result


def checked_blocks(places: Arr, cache: tuple[int, ...], tokens: int, what: str) -> list[tuple[int, int, Arr]]:
    """Return start, count and blocks of all sequences of a paged cache; raise for the first that is outside it."""
    (blocks, _, size, _), limit = cache, places.shape[1] - 3
    slots = int(places[:, 0].max(initial=0)) + 1  # any: they are names
    sequences = checked_places(places[:, :3], slots, limit * size, tokens, what)
    for b, (_, start, count) in enumerate(sequences):
        used = places[b, 3 : 3 + -(-(start + count) // size)]
        if ((used < 0) | (used >= blocks)).any():
            raise BoundsError(
                f"{what}: sequence {b} has blocks {used.tolist()}, of which some are outside the {blocks} of the cache. Make a larger "
                f"cache, or name others."
            )
    return [(start, count, places[b, 3:]) for b, (_, start, count) in enumerate(sequences)]


def gathered(cache: Arr, blocks: Arr, tokens: int) -> Arr:
    """Return the first tokens of a sequence of a paged cache as [heads, tokens, D]."""
    used = cache[blocks[: -(-tokens // cache.shape[2])]]
    return used.swapaxes(0, 1).reshape(cache.shape[1], -1, cache.shape[3])[:, :tokens]


def _update_blocks(cache: Arr, values: Arr, places: Arr, out: Arr) -> None:
    for b, (start, count, blocks) in enumerate(checked_blocks(places, cache.shape, values.shape[1], "update_cache")):
        position = start + np.arange(count)
        new = np.empty((count, *values.shape[2:]), out.dtype)
        cast(values[b, :count], out=new)
        out[blocks[position // cache.shape[2]], :, position % cache.shape[2]] = new


def _update_cache(cache: Arr, values: Arr, places: Arr, *, out: Arr) -> None:
    slots, _, capacity, _ = cache.shape
    if places.shape[1] > 3:
        if out.ctypes.data != cache.ctypes.data:
            out[...] = cache
        _update_blocks(cache, values, places, out)
        return
    sequences = checked_places(places, slots, capacity, values.shape[1], "update_cache")
    if out.ctypes.data != cache.ctypes.data:  # else it is written in place
        out[...] = cache
    for b, (slot, start, count) in enumerate(sequences):
        cast(values[b, :count].swapaxes(0, 1), out=out[slot, :, start : start + count])


def outside(what: str, slots: int, capacity: int, tokens: int, block: int = 0) -> str:
    """Return the message where some sequence of a device is not inside its cache: which one is not known on the host."""
    if block:
        return (
            f"{what}: a sequence is at (start, count) outside {capacity} tokens and the {tokens} tokens given, or has a block outside "
            f"the {slots} of {block} tokens. Make a larger cache, or write fewer tokens."
        )
    return (
        f"{what}: a sequence is at (slot, start, count) outside {slots} slots of {capacity} tokens and the {tokens} tokens "
        f"given. Make a larger cache, or write fewer tokens."
    )


def factor_of(size: int, scale: float | None) -> float:
    """Return the factor by which attention multiplies its queries."""
    return 1 / math.sqrt(max(size, 1)) if scale is None else scale


def attend(q: Arr, k: Arr, v: Arr, places: Arr | None, *, out: Arr, scale: float | None, window: int | None) -> None:
    """Write the attention of q: all of it in f64, rounded to f32 at the end: every device gives the same bits, in whatever order it adds."""
    batch, tokens, heads, size = q.shape
    slots, shared, capacity, _ = k.shape
    if places is None:
        places = np.array([(b, capacity - tokens, tokens) for b in range(batch)]).reshape(batch, 3)
    factor = factor_of(size, scale)
    y = np.zeros(q.shape, np.float64)
    if places.shape[1] > 3:
        blocks = checked_blocks(places, k.shape, tokens, "attention")
        sequences = [(start, count, [gathered(x, own, start + count) for x in (k, v)]) for start, count, own in blocks]
    else:
        triples = checked_places(places, slots, capacity, tokens, "attention")
        sequences = [(start, count, [x[slot] for x in (k, v)]) for slot, start, count in triples]
    for b, (start, count, caches) in enumerate(sequences):
        seen = start + count
        first = 0 if window is None else max(start - window + 1, 0)  # what no query sees is not read
        keys, values = (x[:, first:seen].astype(np.float64).repeat(heads // shared, axis=0) for x in caches)
        scores = np.einsum("thd,hsd->hts", q[b, :count].astype(np.float64) * factor, keys)
        key, last = np.arange(first, seen), start + np.arange(count)[:, None]
        hidden = (key > last) | (key <= last - (seen if window is None else window))
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        weights /= weights.sum(axis=-1, keepdims=True)
        y[b, :count] = np.einsum("hts,hsd->thd", weights, values)
    cast(y.astype(np.float32), out=out)


KERNELS: dict[Op, Any] = {
    ops.linear: _linear,
    ops.rope: _rope,
    ops.update_cache: _update_cache,
    ops.attention: attend,
}
