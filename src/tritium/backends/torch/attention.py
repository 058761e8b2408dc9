"""Attention over caches by torch, on its CPU: sequence by sequence, over what is filled and no more.

It reads the places on the host, which costs nothing there; other devices take the rows of `elements`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tritium.backends.reference.attention import checked_blocks, checked_places, factor_of, gathered
from tritium.backends.torch.space import Value, store
from tritium.op import Spec

Fn = Callable[..., Any]
Places = list[tuple[int, int, int]]


def write_places(cache: Value, values: Value, places: Value) -> None:
    """Write values into the cache itself, as `update_cache` says."""
    slots, _, capacity, _ = cache.shape
    if places.shape[1] > 3:
        paged = checked_blocks(places.numpy(), tuple(cache.shape), values.shape[1], "update_cache")
        for b, (start, count, blocks) in enumerate(paged):
            for t in range(count):
                block, within = divmod(start + t, capacity)
                store(cache[int(blocks[block]), :, within], values[b, t])
        return
    sequences = checked_places(places.numpy(), slots, capacity, values.shape[1], "update_cache")
    for b, (slot, start, count) in enumerate(sequences):
        store(cache[slot, :, start : start + count], values[b, :count].transpose(0, 1))


def update_cache(out: Spec) -> Fn:
    def run(cache: Value, values: Value, places: Value) -> Value:
        result = cache.clone(memory_format=torch.contiguous_format)
        write_places(result, values, places)
        return result

    return run


def attention(out: Spec, scale: float | None, window: int | None) -> Fn:
    factor = factor_of(out.shape[-1], scale)

    def run(q: Value, k: Value, v: Value, places: Value | None) -> Value:
        result = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        if places is not None and places.shape[1] > 3:
            paged = checked_blocks(places.numpy(), tuple(k.shape), q.shape[1], "attention")
            sequences = [
                (start, count, [gathered(x, own, start + count) for x in (k, v)]) for start, count, own in paged
            ]
        else:
            sequences = [(start, count, [k[slot], v[slot]]) for slot, start, count in _places(q, k, places)]
        for b, (start, count, caches) in enumerate(sequences):
            if count:
                result[b, :count] = _sequence(q[b], caches, start, count, factor, window)
        return result

    return run


def _places(q: Value, k: Value, places: Value | None) -> Places:
    """(slot, start, count) of each sequence; without any, the last tokens of a slot of its own."""
    batch, tokens = q.shape[:2]
    slots, _, capacity, _ = k.shape
    if places is None:
        return [(b, capacity - tokens, tokens) for b in range(batch)]
    return checked_places(places.numpy(), slots, capacity, tokens, "attention")


def _sequence(q: Value, caches: list[Value], start: int, count: int, factor: float, window: int | None) -> Value:
    """The queries [T, heads, D] of one sequence, with its keys and values: in f64, several heads to each of the cache."""
    _, heads, size = q.shape
    shared, seen = caches[0].shape[0], start + count
    first = 0 if window is None else max(start - window + 1, 0)  # what no query sees is not read
    keys, values = (x[:, first:seen].double().contiguous() for x in caches)
    rows = (q[:count].double() * factor).reshape(count, shared, heads // shared, size).permute(1, 2, 0, 3)
    scores = torch.matmul(rows.reshape(shared, -1, size), keys.transpose(1, 2))
    if count > 1:
        key, last = torch.arange(first, seen, device=q.device), start + torch.arange(count, device=q.device)[:, None]
        hidden = key > last if window is None else (key > last) | (key <= last - window)
        scores = scores.reshape(shared, heads // shared, count, -1).masked_fill_(hidden, float("-inf"))
    mixed = torch.matmul(torch.softmax(scores, -1).reshape(shared, -1, seen - first), values).float()
    return mixed.reshape(shared, heads // shared, count, size).permute(2, 0, 1, 3).reshape(count, heads, size)
