"""The rows of attention over values of a library.

Attention is computed in f64 and rounded to f32 at the end, so that the order of its sums does not show; on a device without
f64 in f32, whose last bits may depend on how many tokens are given at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tritium import dtype as dt, ops
from tritium.backends.reference.attention import factor_of, outside
from tritium.backends.values.namespace import Namespace, Value, cast, index_dtype, size_of
from tritium.op import Op, Spec

Fn = Callable[..., Any]
PART = 32


def _linear(xp: Namespace, x: Value, w: Value, bias: Value | None) -> Value:
    lead, k = tuple(x.shape[:-1]), int(x.shape[-1])
    n = int(w.shape[0])
    rows = xp.reshape(xp.astype(x, dt.f32), (size_of(lead), k))
    y = xp.matmul(rows, xp.transpose(xp.astype(w, dt.f32), (1, 0))) if k else xp.full((size_of(lead), n), 0.0, dt.f32)
    y = xp.reshape(y, (*lead, n))
    return y if bias is None else y + bias


def _rope(
    xp: Namespace, x: Value, cos: Value, sin: Value, interleaved: bool, heads: int | None, size: int | None
) -> Value:
    if heads is not None and heads < x.shape[-2]:
        turned = _rope(xp, x[..., :heads, :], cos, sin, interleaved, None, size)
        return xp.concat([turned, xp.astype(x[..., heads:, :], dt.f32)], len(x.shape) - 2)
    if size is not None and size < x.shape[-1]:
        turned = _rope(xp, x[..., :size], cos, sin, interleaved, None, None)
        return xp.concat([turned, xp.astype(x[..., size:], dt.f32)], len(x.shape) - 1)
    shape, wide = tuple(x.shape), xp.astype(x, dt.f32)
    half = shape[-1] // 2
    split = xp.reshape(wide, (*shape[:-1], half, 2) if interleaved else (*shape[:-1], 2, half))
    a, b = (split[..., i] if interleaved else split[..., i, :] for i in (0, 1))
    c, s = cos[..., None, :], sin[..., None, :]
    pairs = [a * c - b * s, b * c + a * s]
    return xp.reshape(xp.stack(pairs, -1), shape) if interleaved else xp.concat(pairs, len(shape) - 1)


def _blocks(xp: Namespace, cache: Value, places: Value, tokens: int, what: str) -> tuple[Value, Value, Value]:
    """Start and count of all sequences of a paged cache, held to it, and their blocks; what is outside raises later."""
    slots, _, size, _ = (int(n) for n in cache.shape)
    n = int(places.shape[1]) - 3
    start, count = places[:, 1], places[:, 2]
    bad = (places[:, 0] < 0) | (start < 0) | (count < 0) | (count > tokens) | (start > n * size - count)
    blocks = places[:, 3:]
    used = xp.arange(n, dt.i32)[None, :] * size < (start + count)[:, None]
    bad = bad | (xp.sum(xp.astype(used & ((blocks < 0) | (blocks >= slots)), dt.i32), (1,), False) > 0)
    xp.doubt(bad, outside(what, slots, n * size, tokens, size))
    zero = xp.full((), 0, dt.i32)
    start, count, blocks = (
        xp.maximum(xp.minimum(x, xp.full((), max(limit, 0), dt.i32)), zero)
        for x, limit in ((start, n * size), (count, tokens), (blocks, slots - 1))
    )
    return start, count, blocks


def _update_blocks(xp: Namespace, cache: Value, values: Value, places: Value) -> Value:
    """Token by token of each sequence; one that is not meant is written as it was."""
    shape = slots, heads, length, size = tuple(int(n) for n in cache.shape)
    batch, tokens = (int(n) for n in values.shape[:2])
    start, count, blocks = _blocks(xp, cache, places, tokens, "update_cache")
    if not (batch and tokens and size_of(shape)):
        return cache
    t = index_dtype(slots * heads * length)
    rows = xp.reshape(cache, (slots * heads * length, size))
    head = xp.arange(heads, t) * length
    new = cast(xp, values, xp.dtype_of(cache))
    most = xp.full((), int(blocks.shape[1]) * length - 1, dt.i32)
    for b in range(batch):
        for i in range(tokens):
            position = xp.minimum(start[b] + xp.full((), i, dt.i32), most)
            block = xp.take(blocks[b], xp.reshape(position // length, (1,)), 0)
            index = xp.astype(block, t) * (heads * length) + head + xp.astype(position % length, t)
            meant = xp.reshape(count[b] > i, (1, 1))
            rows = xp.put(rows, index, xp.where(meant, new[b, i], xp.take(rows, index, 0)))
    return xp.reshape(rows, shape)


def _unpaged(xp: Namespace, cache: Value, blocks: Value) -> Value:
    """The keys or values of all sequences of a paged cache as [batch, heads, capacity, D]."""
    batch, n = (int(i) for i in blocks.shape)
    _, heads, length, size = (int(i) for i in cache.shape)
    used = xp.reshape(xp.take(cache, xp.reshape(blocks, (batch * n,)), 0), (batch, n, heads, length, size))
    return xp.reshape(xp.transpose(used, (0, 2, 1, 3, 4)), (batch, heads, n * length, size))


def _checked(xp: Namespace, places: Value, slots: int, capacity: int, tokens: int, what: str) -> list[Value]:
    """(slot, start, count) of all sequences, held to the cache; what is outside raises later."""
    slot, start, count = (places[:, i] for i in range(3))
    bad = (slot < 0) | (slot >= slots) | (start < 0) | (count < 0) | (count > tokens) | (start > capacity - count)
    xp.doubt(bad, outside(what, slots, capacity, tokens))
    limits = [(slot, slots - 1), (start, capacity), (count, tokens)]
    zero = xp.full((), 0, dt.i32)
    return [xp.maximum(xp.minimum(x, xp.full((), max(n, 0), dt.i32)), zero) for x, n in limits]


def _update_cache(xp: Namespace, cache: Value, values: Value, places: Value) -> Value:
    """Sequence by sequence, so that the last of equals wins: a window of rows is written, and those of it that are not
    meant are written as they were."""
    if int(places.shape[1]) > 3:
        return _update_blocks(xp, cache, values, places)
    shape = slots, heads, capacity, size = tuple(int(n) for n in cache.shape)
    batch, tokens = (int(n) for n in values.shape[:2])
    slot, start, count = _checked(xp, places, slots, capacity, tokens, "update_cache")
    room = min(tokens, capacity)
    if not (batch and room and size_of(shape)):
        return cache
    t = index_dtype(slots * heads * capacity)
    rows = xp.reshape(cache, (slots * heads * capacity, size))
    line = xp.arange(room, t)
    head = xp.arange(heads, t)[:, None] * capacity
    new = cast(xp, xp.transpose(values, (0, 2, 1, 3)), xp.dtype_of(cache))
    for b in range(batch):
        first, behind = xp.astype(start[b], t), xp.full((), capacity - room, t)
        window = xp.minimum(first, behind)
        token = line - (first - window)  # which token each row of the window would hold
        meant = (token >= 0) & (token < xp.astype(count[b], t))
        token = xp.maximum(token, xp.full((), 0, t))
        index = xp.reshape(xp.astype(slot[b], t) * (heads * capacity) + head + (window + line), (heads * room,))
        written = xp.reshape(xp.take(new[b], token, 1), (heads * room, size))
        mask = xp.reshape(xp.broadcast_to(meant[None, :], (heads, room)), (heads * room, 1))
        rows = xp.put(rows, index, xp.where(mask, written, xp.take(rows, index, 0)))
    return xp.reshape(rows, shape)


def _products(xp: Namespace, x: Value, y: Value) -> Value:
    """x @ y; of f32 by parts of PART: exp makes the rounding of a long sum many times larger, and libraries add one by one."""
    size = int(x.shape[-1])
    if xp.has_f64:
        return xp.matmul(x, y)
    parts = [xp.matmul(x[..., start : start + PART], y[..., start : start + PART, :]) for start in range(0, size, PART)]
    while len(parts) > 1:
        joined = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = joined + parts[len(joined) * 2 :]
    return parts[0]


def _attention(
    xp: Namespace, q: Value, k: Value, v: Value, places: Value | None, factor: float, window: int | None
) -> Value:
    batch, tokens, heads, size = (int(n) for n in q.shape)
    slots, shared, capacity, _ = (int(n) for n in k.shape)
    if not (batch and tokens and heads and size and capacity):
        return xp.full((batch, tokens, heads, size), 0.0, dt.f32)
    if places is None:
        start, count = (xp.full((batch,), n, dt.i32) for n in (capacity - tokens, tokens))
    elif int(places.shape[1]) > 3:
        start, count, blocks = _blocks(xp, k, places, tokens, "attention")
        k, v = _unpaged(xp, k, blocks), _unpaged(xp, v, blocks)
        capacity = int(k.shape[2])
    else:
        slot, start, count = _checked(xp, places, slots, capacity, tokens, "attention")
        k, v = xp.take(k, slot, 0), xp.take(v, slot, 0)
    inner = dt.f64 if xp.has_f64 else dt.f32
    keys, values = xp.astype(k, inner), xp.astype(v, inner)
    token, key = xp.arange(tokens, dt.i32), xp.arange(capacity, dt.i32)
    zero = xp.full((), 0.0, inner)
    # What nobody has written may hold anything, NaN too: weights of 0 would not hide it.
    values = xp.where((key[None, :] < (start + count)[:, None])[:, None, :, None], values, zero)
    group = heads // shared
    rows = xp.astype(q, inner) * xp.full((), factor, inner)
    rows = xp.reshape(rows, (batch, tokens, shared, group, size))
    rows = xp.reshape(xp.transpose(rows, (0, 2, 3, 1, 4)), (batch, shared, group * tokens, size))
    scores = _products(xp, rows, xp.transpose(keys, (0, 1, 3, 2)))
    scores = xp.reshape(scores, (batch, shared, group, tokens, capacity))
    last = start[:, None] + token[None, :]
    seen = key[None, None, :] <= last[:, :, None]
    if window is not None:
        seen = seen & (key[None, None, :] > last[:, :, None] - window)
    seen = seen[:, None, None, :, :]
    scores = xp.where(seen, scores, xp.full((), float("-inf"), inner))
    weights = xp.exp(scores - xp.max(scores, (4,), True))
    weights = weights / xp.sum(weights, (4,), True)
    mixed = xp.matmul(xp.reshape(weights, (batch, shared, group * tokens, capacity)), values)
    mixed = xp.reshape(mixed, (batch, shared, group, tokens, size))
    mixed = xp.reshape(xp.transpose(mixed, (0, 3, 1, 2, 4)), (batch, tokens, heads, size))
    meant = (token[None, :] < count[:, None])[:, :, None, None]
    return xp.astype(xp.where(meant, mixed, zero), dt.f32)


def makers(xp: Namespace) -> dict[Op, Fn]:
    """Return the makers of the ops that a transformer needs beside its products."""

    def linear(out: Spec) -> Fn:
        return lambda x, w, bias: cast(xp, _linear(xp, x, w, bias), out.dtype)

    def rope(out: Spec, interleaved: bool, heads: int | None, size: int | None) -> Fn:
        return lambda x, cos, sin: cast(xp, _rope(xp, x, cos, sin, interleaved, heads, size), out.dtype)

    def update_cache(out: Spec) -> Fn:
        return lambda cache, values, places: _update_cache(xp, cache, values, places)

    def attention(out: Spec, scale: float | None, window: int | None) -> Fn:
        factor = factor_of(out.shape[-1], scale)
        return lambda q, k, v, places: cast(xp, _attention(xp, q, k, v, places, factor, window), out.dtype)

    return {ops.linear: linear, ops.rope: rope, ops.update_cache: update_cache, ops.attention: attention}
