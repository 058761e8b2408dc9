"""Shares of the keys of sequences of different lengths, one for each CTA, and the addresses of keys, in Gluon.

A launch has so many CTAs for each kv head, whatever the lengths. Each CTA reads the places of all sequences and finds its own share:
all shares have about as many keys, so a long sequence takes many CTAs and a short one takes one. Lengths are read on the device, so a
CUDA graph serves any.

A row of places is (slot, start, count) of a sequence, and of a paged cache the numbers of its blocks behind them: block i holds keys
i * BLOCK to (i + 1) * BLOCK. BLOCK is 0 where a slot holds all keys of its sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda.keys import fix_cache_keys

TRIES = gl.constexpr(4)  # sizes of a share that are tried, from the least that may do to the one that always does


class Places(NamedTuple):
    """Rows [batch, stride], each the place of a sequence."""

    rows: Any
    stride: Any


class Everyone(NamedTuple):
    """Slots, starts and counts of all sequences [BATCH], in every warp; those that do not exist have slot -1."""

    slots: Any
    starts: Any
    counts: Any


class Share(NamedTuple):
    """The work of a CTA: share p of sequence b, which has `keys` keys like all shares of b but the last.

    item: the number of the first share of b among those of all sequences; slot, last: of b, and how many keys its token sees. Where
    there is no work for a CTA, b is the number of sequences.
    """

    b: Any
    p: Any
    item: Any
    slot: Any
    last: Any
    keys: Any


@gluon.jit
def _numbers(BATCH: gl.constexpr):
    """Return the numbers of all sequences, in every warp."""
    PAIR: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])
    return gl.arange(0, BATCH, layout=gl.SliceLayout(0, PAIR))


@gluon.jit
def everyone(places, batch, capacity, BATCH: gl.constexpr, PLACED: gl.constexpr):
    """Return the places of all sequences; without places each has a slot that is full."""
    o = _numbers(BATCH)
    meant = o < batch
    if PLACED:
        row = places.rows + o * places.stride
        slots = gl.load(row, mask=meant, other=-1, cache_modifier=".cg")
        starts = gl.load(row + 1, mask=meant, other=0, cache_modifier=".cg")
        counts = gl.load(row + 2, mask=meant, other=0, cache_modifier=".cg")
    else:
        slots = gl.where(meant, o, -1)
        starts = gl.where(meant, capacity - 1, 0)
        counts = gl.where(meant, 1, 0)
    return Everyone(slots, starts, counts)


@gluon.jit
def place(places, b, slots, capacity, PLACED: gl.constexpr, BLOCK: gl.constexpr):
    """Return the slot of a sequence, and how many keys its token sees: none where it is outside the cache."""
    slot = b
    last = capacity
    if PLACED:
        row = places.rows + b * places.stride
        slot = gl.load(row, cache_modifier=".cg")
        start = gl.load(row + 1, cache_modifier=".cg")
        count = gl.load(row + 2, cache_modifier=".cg")
        inside = _inside(slot, start, count, slots, capacity, BLOCK)
        slot, last = gl.where(inside, slot, 0), gl.where(inside, start + 1, 0)
    return slot, last


@gluon.jit
def _inside(slot, start, count, slots, capacity, BLOCK: gl.constexpr):
    there = (slot >= 0) & (start >= 0) & (start < capacity) & (count == 1)
    if not BLOCK:
        there = there & (slot < slots)
    return there


@gluon.jit
def company(all_places, b, slot, last, BATCH: gl.constexpr):
    """Return who else writes among the keys of a sequence: 0 nobody, 1 someone, 2 a later one at its own new key."""
    o = _numbers(BATCH)
    among = (all_places.slots == slot) & (o != b) & (all_places.starts < last) & (all_places.counts > 0)
    covers = among & (o > b) & (last - 1 < all_places.starts + all_places.counts)
    return gl.max(among.to(gl.int32) + covers.to(gl.int32), 0)


@gluon.jit
def _sums_up_to(v, o, BATCH: gl.constexpr):
    """Return the sum of v up to each sequence o [BATCH], itself included: by shuffles, then by 32 sequences at a time."""
    sums = v
    for i in gl.static_range(5):
        other = gl.inline_asm_elementwise(
            "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", "=r,r,r", [sums, (o + (32 - (1 << i))) % 32], dtype=gl.int32, is_pure=True, pack=1
        )  # fmt: skip
        sums += gl.where(o % 32 >= 1 << i, other, 0)
    for i in gl.static_range(BATCH // 32 - 1):
        sums += gl.where(o // 32 > i, gl.sum(gl.where(o // 32 == i, v, 0), 0), 0)
    return sums


@gluon.jit
def _cuts(lengths, share, meant):
    """Return into how many shares each sequence is cut; one without keys has one, which says so."""
    return gl.where(meant, gl.maximum((lengths + share - 1) // share, 1), 0)


@gluon.jit
def _steps(lengths, least, batch, items, meant, STEP: gl.constexpr, LEAST: gl.constexpr):
    """Return the steps of a share: of the sizes tried the smallest with which all sequences have at most `items` shares.

    least [BATCH]: steps that a share of a sequence must have. Cut by all keys / (items - batch), which is the last size tried, every
    sequence has at most one share more than its part of items - batch.
    """
    total = (gl.sum(lengths, 0) + STEP - 1) // STEP
    low = gl.maximum((total + items - 1) // items, LEAST // STEP)
    high = gl.maximum((total + items - batch - 1) // (items - batch), low)
    best = high
    for i in gl.static_range(TRIES):
        size = high - (high - low) * (i + 1) // TRIES
        shares = gl.sum(_cuts(lengths, gl.maximum(least, size) * STEP, meant), 0)
        best = gl.where(shares <= items, size, best)
    return best


@gluon.jit
def share_of(
    all_places, item, places, batch, slots, capacity, PARTS: gl.constexpr, MOST: gl.constexpr, STEP: gl.constexpr,
    LEAST: gl.constexpr, BATCH: gl.constexpr, PLACED: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Return the `Share` with this number: of batch * PARTS at most, at most MOST of one sequence.

    Shares but the last of a sequence have a multiple of STEP keys, LEAST or more. BATCH is 1 for one sequence, else 32 or more.
    """
    if PARTS == 1:
        slot, last = place(places, item, slots, capacity, PLACED, BLOCK)
        share = Share(item, 0, item, slot, last, gl.maximum(last, 1))
    elif BATCH == 1:
        slot, last = place(places, 0, slots, capacity, PLACED, BLOCK)
        keys = gl.maximum((last + (PARTS * STEP - 1)) // (PARTS * STEP) * STEP, LEAST)
        share = Share(gl.where((item * keys < last) | (item == 0), 0, batch), item, 0, slot, last, keys)
    else:
        o = _numbers(BATCH)
        meant = o < batch
        inside = _inside(all_places.slots, all_places.starts, all_places.counts, slots, capacity, BLOCK)
        lengths = gl.where(inside, all_places.starts + 1, 0)
        least = (lengths + (MOST * STEP - 1)) // (MOST * STEP)
        keys = gl.maximum(least, _steps(lengths, least, batch, batch * PARTS, meant, STEP, LEAST)) * STEP
        ends = _sums_up_to(_cuts(lengths, keys, meant), o, BATCH)
        before = meant & (ends <= item)
        b = gl.sum(before.to(gl.int32), 0)
        first = gl.max(gl.where(before, ends, 0), 0)
        mine = o == b
        slot = gl.max(gl.where(mine & inside, all_places.slots, 0), 0)
        last = gl.max(gl.where(mine, lengths, 0), 0)
        share = Share(b, item - first, first, slot, last, gl.max(gl.where(mine, keys, 0), 0))
    return share


class Lines(NamedTuple):
    """Addresses of the keys and values of sequence b: those of a kv head in the cache, which has so many `slots` or blocks, strides from
    one of these to the next, and the places that tell which are b's."""

    k: Any
    v: Any
    k_stride: Any
    v_stride: Any
    places: Any
    b: Any
    slot: Any
    slots: Any


@gluon.jit
def block_of(lines, key, BLOCK: gl.constexpr):
    """Return the number of the block of a key, or of keys, in the cache: that of its slot where the cache is not paged.

    Nothing is computed of it here: whoever asks long before it is needed waits for nothing.
    """
    if BLOCK:
        row = lines.places.rows + lines.b * lines.places.stride
        number = gl.load(row + 3 + key // BLOCK, cache_modifier=".cg")
    else:
        number = lines.slot
    return number


@gluon.jit
def offset_of(lines, block, stride, key, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Return the offset of a key among those of its kv head, given its block and the stride from one to the next.

    A number of a block outside the cache, which is reported elsewhere, is replaced by one inside.
    """
    if BLOCK:
        within = key % BLOCK
        block = gl.minimum(gl.maximum(block, 0), lines.slots - 1)
    else:
        within = key
    return block.to(gl.int64) * stride + within.to(gl.int64) * TOKEN


fix_cache_keys(globals())
