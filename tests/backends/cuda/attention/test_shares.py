"""Kernels for one token a sequence, computed in NumPy: shares cover all keys once, and attention has the bits of the reference.

A GPU is not needed, and Triton neither: `gluon_numpy` says what stands in for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gluon_numpy import Kernels, Pointer, Value
from tritium.backends.reference import kernels as reference
from tritium.ops import attention, rope, update_cache

SIZE, BLOCK, MOST = 128, 64, 32
LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 600)


@cache
def kernels() -> Kernels:
    return Kernels()


class Step(NamedTuple):
    """The operands of a decode step: heads of new tokens, angles, a cache of slots, and places."""

    x: np.ndarray[Any, Any]
    cos: np.ndarray[Any, Any]
    sin: np.ndarray[Any, Any]
    cache: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]


class Sums(NamedTuple):
    """What shares leave to be joined."""

    mixed: Any
    tops: Any
    totals: Any


def made(rng: np.random.Generator, starts: list[int], per: int, shared: int, capacity: int) -> Step:
    batch = len(starts)
    x = rng.standard_normal((batch, 1, (per + 2) * shared, SIZE)).astype(np.float32)
    cos, sin = (rng.standard_normal((batch, 1, SIZE // 2)).astype(np.float32) for _ in range(2))
    cache = rng.standard_normal((batch + 1, 2 * shared, capacity, SIZE)).astype(np.float16)
    places = np.stack([rng.permutation(batch + 1)[:batch], starts, np.ones(batch)], 1).astype(np.int32)
    return Step(x, cos, sin, cache, places)


def by_reference(s: Step, per: int, shared: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the attention, and the cache as it is then."""
    heads, turned, written = per * shared, np.empty_like(s.x), s.cache.copy()
    reference.KERNELS[rope](s.x, s.cos, s.sin, out=turned, **(rope.defaults | {"heads": heads + shared}))
    reference.KERNELS[update_cache](s.cache, turned[:, :, heads:], s.places, out=written)
    out = np.empty_like(turned[:, :, :heads])
    reference.KERNELS[attention](
        turned[:, :, :heads], written[:, :shared], written[:, shared:], s.places, out=out, **attention.defaults
    )
    return out, written


def in_blocks(s: Step, rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the cache in blocks, in any order, and places that name those that a sequence needs; others are outside."""
    slots, heads, capacity, _ = s.cache.shape
    n = capacity // BLOCK
    table = rng.permutation(slots * n + 1)[: slots * n].reshape(slots, n)
    pool = np.full((slots * n + 1, heads, BLOCK, SIZE), np.nan, np.float16)
    pool[table] = s.cache.reshape(slots, heads, n, BLOCK, SIZE).swapaxes(1, 2)
    used = np.arange(n) * BLOCK <= s.places[:, 1:2]
    rows = np.where(used, table[np.clip(s.places[:, 0], 0, slots - 1)], -7)
    return pool, np.concatenate([s.places, rows], 1).astype(np.int32)


def launched(
    s: Step, cache: Any, places: Any, rng: np.random.Generator, per: int, shared: int, parts: int, many: bool
) -> Any:
    """Return the attention by a kernel; the cache is written."""
    k, batch = kernels(), len(s.places)
    paged = places.shape[1] > 3
    capacity = cache.shape[2] * (places.shape[1] - 3 if paged else 1)
    used, heads = 1 << (per - 1).bit_length(), per * shared
    out = np.full((batch, heads, SIZE), np.nan, np.float32)
    lines = batch * shared * parts * used
    sums = (np.full(lines * SIZE, np.nan), np.full(lines, np.nan), np.full(lines, np.nan))
    counts, flat = np.zeros(batch * shared, np.int32), cache.reshape(-1)
    head = cache.shape[2] * SIZE
    strides = k.decode.SlotStrides(2 * shared * head, head)
    options: dict[str, Any] = {
        "PER": per, "USED": used, "PARTS": parts, "MOST": parts if batch == 1 else MOST, "TOKEN": SIZE, "BLOCK": BLOCK if paged else 0,
        "BATCH": 1 if batch == 1 else max(1 << (batch - 1).bit_length(), 32), "FACTOR": SIZE**-0.5, "SETTLED": True,
    }  # fmt: skip
    options |= {"SHARE": k.many.LEAST} if many else {"PLACED": True, "FRESH": True}
    k.launch(
        k.many.decode_many if many else k.decode.decode, (batch * parts, shared), rng,
        k.decode.Tokens(*(Pointer(a.reshape(-1)) for a in (s.x, s.cos, s.sin))), Pointer(flat), Pointer(flat, shared * head),
        k.shares.Places(Pointer(places.reshape(-1)), places.shape[1]), Pointer(out.reshape(-1)),
        Sums(*map(Pointer, sums)), Pointer(counts), batch, cache.shape[0], capacity,
        k.decode.TokenStrides((per + 2) * shared * SIZE, SIZE, SIZE // 2, SIZE // 2), strides, strides,
        k.decode.OutStrides(heads * SIZE, SIZE), **options,
    )  # fmt: skip
    assert not counts.any()
    return out[:, None]


@given(
    lengths=st.lists(st.sampled_from([*LENGTHS, 1000, 5000, 40000]), min_size=2, max_size=90), parts=st.sampled_from([2, 4, 8, 32]),
    many=st.booleans(),
)  # fmt: skip
@settings(max_examples=60)
def test_shares_cover_all_keys_once(lengths: list[int], parts: int, many: bool) -> None:
    """There are shares enough for all sequences, at most MOST of one, and none is much longer than others can be."""
    k, batch = kernels(), len(lengths)
    step, least = (k.many.STEP, k.many.LEAST) if many else (k.decode.KEYS, k.decode.KEYS)
    size = max(1 << (batch - 1).bit_length(), 32)
    rows = np.array([(i, n - 1, 1) if n else (0, 0, 0) for i, n in enumerate(lengths)], np.int32)
    places, capacity = k.shares.Places(Pointer(rows.reshape(-1)), 3), max(*lengths, 1)
    everyone = k.shares.everyone(places, batch, capacity, size, True)
    seen: list[list[int]] = [[] for _ in lengths]
    for item in range(batch * parts):
        share = k.shares.share_of(
            everyone, Value(np.int32(item)), places, batch, batch, capacity, parts, MOST, step, least, size, True, 0
        )
        b, p, keys = int(share.b), int(share.p), int(share.keys)
        if b == batch:
            continue
        assert int(share.last) == lengths[b]
        assert int(share.item) == item - p
        assert keys % step == 0
        assert keys >= least
        assert p < MOST
        assert p * keys < lengths[b] or p == 0
        seen[b] += range(p * keys, min((p + 1) * keys, lengths[b]))
        most = max(-(-sum(lengths) // (batch * (parts - 1))), -(-lengths[b] // MOST), least)
        assert keys <= most + 2 * step
    assert seen == [list(range(n)) for n in lengths]


@settings(max_examples=8, deadline=None)
@given(
    starts=st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=5), per=st.integers(1, 4), seed=st.integers(0, 2**32),
    parts=st.sampled_from([1, 2, 4]), many=st.booleans(), paged=st.booleans(),
)  # fmt: skip
def test_new_tokens_have_the_bits_of_the_reference(
    starts: list[int], per: int, seed: int, parts: int, many: bool, paged: bool
) -> None:
    """Rotated, written and attended to; what nobody has written is not read."""
    rng, shared = np.random.default_rng(seed), 2
    s = made(rng, starts, per, shared, 640)
    for slot, start, _ in s.places:
        s.cache[slot, :, start:] = np.nan
    want, written = by_reference(s, per, shared)
    cache, places = in_blocks(s, rng) if paged else (s.cache.copy(), s.places)
    got = launched(s, cache, places, rng, per, shared, parts, many)
    np.testing.assert_array_equal(got, want)
    for row, (slot, start, _) in zip(places, s.places, strict=True):
        own = cache[slot] if not paged else cache[row[3:]].swapaxes(0, 1).reshape(2 * shared, -1, SIZE)
        np.testing.assert_array_equal(own[:, : start + 1], written[slot, :, : start + 1])


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("paged", [False, True])
def test_sequences_in_one_slot_see_each_other(many: bool, paged: bool) -> None:
    """Some at one place, one outside, one that counts nothing."""
    rng, per, shared = np.random.default_rng(5), 3, 1
    s = made(rng, [3, 3, 70, 4, 20, 9], per, shared, 128)
    s.places[:, 0] = [1, 1, 1, 2, -1, 2]
    s.places[5, 2] = 0
    inside = s._replace(
        places=s.places[[0, 1, 2, 3, 5]], x=s.x[[0, 1, 2, 3, 5]], cos=s.cos[[0, 1, 2, 3, 5]], sin=s.sin[[0, 1, 2, 3, 5]]
    )
    want, _ = by_reference(inside, per, shared)
    cache, places = in_blocks(s, rng) if paged else (s.cache.copy(), s.places)
    if paged:
        places[:3, 3:] = places[2, 3:]
    got = launched(s, cache, places, rng, per, shared, 2, many)
    np.testing.assert_array_equal(got[[0, 1, 2, 3, 5]], want)
    assert not got[4].any()
