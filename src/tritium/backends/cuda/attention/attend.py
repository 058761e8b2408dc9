"""Attention over KV caches by Triton kernels: f64 inside, rounded once, so that bits do not depend on the device.

The place of each sequence in its cache is read on the device: nothing waits for the host, and a CUDA graph of it
serves any length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.attention.cache import room
from tritium.backends.cuda.capability import HOPPER
from tritium.backends.cuda.counts import counters
from tritium.backends.cuda.gpu import gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.plain import fence
from tritium.backends.cuda.order import begin

KEYS = 32  # that a CTA takes together
ROWS = 16  # queries of one kv head that it takes, at least: what a product of f64 needs
MOST_ROWS = 64
PROGRAMS = 264  # two for each multiprocessor of a large GPU
PARTS = 32  # that share the keys of some queries, at most
JOINED = 4096  # sums of parts that one CTA joins together: what registers hold
WHOLE = 64  # keys that kernels for one token a sequence take together at most: blocks hold a multiple of them
MANY = 80  # kv heads of all sequences, from which on new tokens have a kernel of their own
MANY_PARTS, MANY_PROGRAMS = (
    8,
    1056,
)  # CTAs that share the keys of one of these at most, and of all: those without keys still start
FEW = 8  # queries of one kv head whose parts one CTA joins; of more, that takes longer than a second launch


# ---- arguments that belong together


class Strides(NamedTuple):
    """Strides of queries or their attention [batch, tokens, heads, size]."""

    batch: Any
    token: Any
    head: Any


class CacheStrides(NamedTuple):
    """Strides of keys or values [slots, kv heads, capacity, size]."""

    slot: Any
    head: Any
    token: Any


class PartSums(NamedTuple):
    """The partial sums that the parts of some queries leave to be joined; a line for each query and part.

    mixed: sums of weighted values [lines, size]; tops: largest scores [lines]; totals: sums of weights [lines].
    """

    mixed: Any
    tops: Any
    totals: Any


# ---- attention
# Pairs of elements come as words of 32 bits: from loads of 16 bits Triton cannot make operands of a product of f64.


@triton.jit
def _wide(half, BRAIN: tl.constexpr):
    """Return the half float in the low bits of a word as f64."""
    if BRAIN:
        x = (half << 16).to(tl.float32, bitcast=True)
    else:
        special = (half & 0x7C00) == 0x7C00
        size = (half & 0x7FFF) << 13
        size = tl.where(special, size | 0x7F800000, size)
        between = tl.where(special, 1.0, 5.192296858534828e33)  # 2**112: between the biases
        x = size.to(tl.float32, bitcast=True) * between
        x = tl.where((half & 0x8000) != 0, -x, x)
    return x.to(tl.float64)


WIDEN = tl.constexpr("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f64.f16 $0, l; cvt.f64.f16 $1, h; }")


@triton.jit
def _fetch(base, pair, there, SINGLE: tl.constexpr):
    """Load elements 2i and 2i + 1: two singles, or twice the word that holds both halves; `pair` counts pairs."""
    if SINGLE:
        one = tl.load(base + 2 * pair, mask=there, other=0.0)
        two = tl.load(base + 2 * pair + 1, mask=there, other=0.0)
    else:
        one = tl.load(base + pair, mask=there, other=0)
        two = one
    return one, two


@triton.jit
def _pairs(one, two, SINGLE: tl.constexpr, BRAIN: tl.constexpr, ASM: tl.constexpr):
    """Return what `_fetch` loaded as f64."""
    if SINGLE:
        one, two = one.to(tl.float64), two.to(tl.float64)
    elif ASM and not BRAIN:
        one, two = tl.inline_asm_elementwise(
            WIDEN, "=d,=d,r", [one], dtype=(tl.float64, tl.float64), is_pure=True, pack=1
        )
    else:
        one, two = _wide(one & 0xFFFF, BRAIN), _wide((two >> 16) & 0xFFFF, BRAIN)
    return one, two


@triton.jit
def _inverse(total):
    """Return the factor of sums of values, given the sums of weights; of no keys it is zero."""
    none = total == 0.0
    return tl.where(none, 0.0, 1.0 / tl.where(none, 1.0, total))


@triton.jit
def _give(out, y, row, d, tokens, g, strides, SIZE: tl.constexpr, PER: tl.constexpr):
    """Store y [rows, elements], the attention of queries `row` of a kv head; `out` is that of their sequence."""
    to = out + (row // PER).to(tl.int64)[:, None] * strides.token + (g * PER + row % PER)[:, None] * strides.head
    to += d[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=(row < tokens * PER)[:, None] & (d < SIZE)[None, :])


@triton.jit
def _from_line(sums, line, WIDTH: tl.constexpr):
    """Return the sums of parts from a line on."""
    tops, totals = sums.tops + line, sums.totals + line
    return PartSums(sums.mixed + line * WIDTH, tops, totals)


@triton.jit
def _join(sums, r, parts, d, PARTS: tl.constexpr):
    """Return the attention [queries, elements] of queries r: the weighted sums of all parts. Parts without keys
    count nothing.
    """
    p = tl.arange(0, PARTS)
    line = r[:, None] * PARTS + p[None, :]
    there = (p < parts)[None, :]
    cells = sums.mixed + line[:, :, None] * d.shape[0] + d[None, None, :]
    mixed = tl.load(cells, mask=there[:, :, None], other=0.0, cache_modifier=".cg")
    top = tl.load(sums.tops + line, mask=there, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(sums.totals + line, mask=there, other=0.0, cache_modifier=".cg")
    most = tl.max(top, 1)
    fade = tl.exp(top - tl.where(most == float("-inf"), 0.0, most)[:, None])
    weight = fade * _inverse(tl.sum(total * fade, 1))[:, None]
    weight = tl.where(total == 0.0, 0.0, weight)[:, :, None]
    return tl.sum(tl.where(weight == 0.0, 0.0, mixed * weight), 1)


@triton.jit
def _extent(
    places, columns, b, block, tokens, slots, capacity, PER: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr,
    PLACED: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Return the place of sequence b, the keys that the queries of a block see, keys of a part, and number of parts.

    The first key is a multiple of KEYS. WINDOW: keys that a query sees at most; 0: all. columns: of a row of places.
    """
    if PLACED:
        row = places + b * columns
        slot, start, count = tl.load(row), tl.load(row + 1), tl.load(row + 2)
        inside = (slot >= 0) & (start >= 0) & (count <= tokens) & (start <= capacity - count)
        if not BLOCK:
            inside &= slot < slots
        slot, start, count = tl.where(inside, slot, 0), tl.where(inside, start, 0), tl.where(inside, count, 0)
    else:
        slot, start, count = b, capacity - tokens, tokens
    last = tl.minimum(start + (block * ROWS + ROWS - 1) // PER + 1, start + count)
    last = tl.where(block * ROWS // PER < count, last, 0)
    first = 0
    if WINDOW:
        first = tl.maximum(start + block * ROWS // PER + 1 - WINDOW, 0) // KEYS * KEYS
        first = tl.minimum(first, last)  # of no keys there is none before the first
    share = tl.maximum(tl.cdiv(tl.cdiv(last - first, PARTS), KEYS), 1) * KEYS
    parts = tl.maximum(tl.cdiv(last - first, share), 1)  # of no keys the first part says so
    return slot, start, count, first, last, share, parts


@triton.jit
def _queries(q, strides, b, token, head, valid, SIZE: tl.constexpr, WIDE: tl.constexpr, FACTOR: tl.constexpr):
    """Return queries of sequence b, scaled, in f64: their even and odd elements [ROWS, WIDE].

    token, head: those of each query [ROWS].
    """
    e = tl.arange(0, 2 * WIDE)
    line = token.to(tl.int64)[:, None] * strides.token + head[:, None] * strides.head + e[None, :]
    there = valid[:, None] & (e < (SIZE + 1) // 2 * 2)[None, :]
    x = tl.load(q + b.to(tl.int64) * strides.batch + line, mask=there, other=0.0)
    return tl.split(tl.reshape(x.to(tl.float64) * FACTOR, (token.shape[0], WIDE, 2)))


@triton.jit
def _block(blocks, slot, offset, end, KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the slot or the blocks of keys from `offset` on: one number where a block holds a multiple of KEYS, else one for each.

    blocks: those of the sequence. Those of keys from `end` on are not read.
    """
    if BLOCK == 0:
        number = slot
    elif BLOCK % KEYS == 0:
        number = tl.load(blocks + offset // BLOCK, mask=offset < end, other=0)
    else:
        key = offset + tl.arange(0, KEYS)
        number = tl.load(blocks + key // BLOCK, mask=key < end, other=0)
    return number


@triton.jit
def _offsets(number, key, slots, strides, BLOCK: tl.constexpr):
    """Return the offsets of keys in their slot or blocks; the number of one outside the cache, which is reported elsewhere, is replaced."""
    within = key
    if BLOCK:
        number, within = tl.minimum(tl.maximum(number, 0), slots - 1), key % BLOCK
    return number.to(tl.int64) * strides.slot + within.to(tl.int64) * strides.token


@triton.jit
def _walk(
    one, two, k, v, k_strides, v_strides, blocks, slot, slots, g, first, end, start, token, live, d, SIZE: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr, BRAIN: tl.constexpr, ASM: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Attend from queries [ROWS, WIDE], even and odd elements, to keys `first` to `end` of their kv head, KEYS at a
    time.

    `d` counts pairs of elements [WIDE]. A query of `token`, if it is live, sees the keys up to start + token, or the
    last WINDOW of them. Returns the largest scores and the sums of weights [ROWS], and the sums of weighted values,
    even and odd elements [ROWS, WIDE]; both sums are relative to the largest score.
    """
    ROWS: tl.constexpr = one.shape[0]
    WIDE: tl.constexpr = one.shape[1]
    fits = d < (SIZE + 1) // 2
    k += g.to(tl.int64) * k_strides.head
    v += g.to(tl.int64) * v_strides.head
    top = tl.full((ROWS,), float("-inf"), tl.float64)
    summed = tl.zeros((ROWS, KEYS), tl.float64)
    mixed_one = tl.zeros((ROWS, WIDE), tl.float64)
    mixed_two = tl.zeros((ROWS, WIDE), tl.float64)
    number = _block(blocks, slot, first, end, KEYS, BLOCK)
    for offset in range(first, end, KEYS):
        key = offset + tl.arange(0, KEYS)
        there = key < end
        after = _block(blocks, slot, offset + KEYS, end, KEYS, BLOCK)  # long before it is needed
        k_line = k + _offsets(number, key, slots, k_strides, BLOCK)[None, :]
        v_line = v + _offsets(number, key, slots, v_strides, BLOCK)[:, None]
        k_one, k_two = _fetch(k_line, d[:, None], there[None, :] & fits[:, None], SINGLE)
        v_one, v_two = _fetch(v_line, d[None, :], there[:, None] & fits[None, :], SINGLE)  # neither waits for the other
        k_one, k_two = _pairs(k_one, k_two, SINGLE, BRAIN, ASM)
        scores = tl.dot(one, k_one, out_dtype=tl.float64)
        scores = tl.dot(two, k_two, scores, out_dtype=tl.float64)
        sees = there[None, :] & (key[None, :] <= (start + token)[:, None]) & live[:, None]
        if WINDOW:
            sees &= key[None, :] > (start + token - WINDOW)[:, None]
        scores = tl.where(sees, scores, float("-inf"))
        most = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(most == float("-inf"), 0.0, most)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(top - base)
        summed = summed * fade[:, None] + weights
        v_one, v_two = _pairs(v_one, v_two, SINGLE, BRAIN, ASM)
        mixed_one = tl.dot(weights, v_one, mixed_one * fade[:, None], out_dtype=tl.float64)
        mixed_two = tl.dot(weights, v_two, mixed_two * fade[:, None], out_dtype=tl.float64)
        top, number = most, after
    return top, tl.sum(summed, 1), mixed_one, mixed_two


@triton.jit
def _leave(sums, p, top, total, mixed_one, mixed_two, valid, PARTS: tl.constexpr):
    """Write the sums of part p of some queries: top and total [ROWS], mixed [ROWS, WIDE]."""
    line = tl.arange(0, top.shape[0]) * PARTS + p
    mixed = tl.interleave(mixed_one, mixed_two)
    e = tl.arange(0, mixed.shape[1])
    tl.store(sums.tops + line, top, mask=valid, cache_modifier=".cg")
    tl.store(sums.totals + line, total, mask=valid, cache_modifier=".cg")
    to = sums.mixed + line[:, None] * mixed.shape[1] + e[None, :]
    tl.store(to, mixed, mask=valid[:, None], cache_modifier=".cg")


@triton.jit
def _arrive(counts, group, ASM: tl.constexpr):
    """Count this CTA and return how many came before it; `_join_all` sees their sums."""
    fence(ASM)
    tl.debug_barrier()
    return tl.atomic_add(counts + group, 1, sem="acq_rel")


@triton.jit
def _join_all(
    sums, counts, group, parts, out, block, tokens, g, strides, SIZE: tl.constexpr, WIDE: tl.constexpr, PER: tl.constexpr,
    ROWS: tl.constexpr, USED: tl.constexpr, PARTS: tl.constexpr, TOGETHER: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Join the parts of all queries of a block, TOGETHER of them at a time, and leave the count zero for the next launch."""
    fence(ASM)
    tl.store(counts + group, 0)
    e = tl.arange(0, 2 * WIDE)
    for some in range(0, USED, TOGETHER):
        r = some + tl.arange(0, TOGETHER)
        y = _join(sums, r, parts, e, PARTS)
        _give(out, y, block * ROWS + r, e, tokens, g, strides, SIZE, PER)


@triton.jit
def attend_kernel(
    q, k, v, places, columns, out, sums, counts, tokens, slots, capacity, q_strides, k_strides, v_strides, o_strides,
    SIZE: tl.constexpr, WIDE: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, USED: tl.constexpr, KEYS: tl.constexpr,
    PARTS: tl.constexpr, TOGETHER: tl.constexpr, LAST: tl.constexpr, PLACED: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr,
    BRAIN: tl.constexpr, FACTOR: tl.constexpr, ASM: tl.constexpr, WINDOW: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attend from some queries of one kv head to a share of the keys: sums of values and of weights.

    Both are relative to the largest score. CTAs without keys end at once. Each of the others leaves its sums in memory
    of its own; if LAST, the last of them to arrive, by `counts`, joins them, and leaves the count zero for the next
    launch.
    """
    begin(EARLY)
    blocks = tl.cdiv(tokens * PER, ROWS)
    b, block, g, p = tl.program_id(0) // blocks, tl.program_id(0) % blocks, tl.program_id(1), tl.program_id(2)
    row = block * ROWS + tl.arange(0, ROWS)
    token, head = row // PER, g * PER + row % PER
    valid = row < tokens * PER
    d, e = tl.arange(0, WIDE), tl.arange(0, 2 * WIDE)
    one, two = _queries(q, q_strides, b, token, head, valid, SIZE, WIDE, FACTOR)
    slot, start, count, first, last, share, parts = _extent(
        places, columns, b, block, tokens, slots, capacity, PER, ROWS, KEYS, PARTS, PLACED, BLOCK, WINDOW
    )
    if p < parts:
        first += p * share
        end = tl.minimum(first + share, last)
        live = (token < count) & valid
        top, total, mixed_one, mixed_two = _walk(
            one, two, k, v, k_strides, v_strides, places + b * columns + 3, slot, slots, g, first, end, start, token, live, d, SIZE,
            KEYS, BLOCK, SINGLE, BRAIN, ASM, WINDOW,
        )  # fmt: skip
        out += b.to(tl.int64) * o_strides.batch
        if parts == 1:
            none, inverse = (total == 0.0)[:, None], _inverse(total)[:, None]
            y_one, y_two = tl.where(none, 0.0, mixed_one * inverse), tl.where(none, 0.0, mixed_two * inverse)
            _give(out, tl.interleave(y_one, y_two), row, e, tokens, g, o_strides, SIZE, PER)
        elif PARTS > 1:
            group = tl.program_id(0) * tl.num_programs(1) + g
            mine = _from_line(sums, group.to(tl.int64) * (ROWS * PARTS), 2 * WIDE)
            _leave(mine, p, top, total, mixed_one, mixed_two, valid, PARTS)
            if LAST:  # noqa: SIM102 (a branch of its own: otherwise `counts` holds no counts, and nobody may add to them)
                if _arrive(counts, group, ASM) == parts - 1:
                    _join_all(
                        mine, counts, group, parts, out, block, tokens, g, o_strides, SIZE, WIDE, PER, ROWS, USED, PARTS, TOGETHER,
                        ASM,
                    )  # fmt: skip


@triton.jit
def join_kernel(
    places, columns, out, sums, tokens, slots, capacity, o_strides, SIZE: tl.constexpr, WIDE: tl.constexpr, PER: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr, PLACED: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Join the parts as the last CTA does for few queries, in a launch of its own with a CTA for each query."""
    begin(EARLY)
    blocks = tl.cdiv(tokens * PER, ROWS)
    b, r, g = tl.program_id(0) // (tokens * PER), tl.program_id(0) % (tokens * PER), tl.program_id(1)
    block = r // ROWS
    _, _, _, _, _, _, parts = _extent(
        places, columns, b, block, tokens, slots, capacity, PER, ROWS, KEYS, PARTS, PLACED, BLOCK, WINDOW
    )
    if parts > 1:
        line = (((b * blocks + block) * tl.num_programs(1) + g).to(tl.int64) * ROWS + r % ROWS) * PARTS
        one, d = tl.arange(0, 1), tl.arange(0, 2 * WIDE)
        y = _join(_from_line(sums, line, 2 * WIDE), one, parts, d, PARTS)
        _give(out + b.to(tl.int64) * o_strides.batch, y, r + one, d, tokens, g, o_strides, SIZE, PER)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor | None, factor: float, window: int | None = None
) -> torch.Tensor:  # fmt: skip
    """Return softmax(q kᵀ factor) v for q [batch, tokens, heads, size] over caches [slots, kv heads, capacity, size].

    Where rows of places name blocks, caches are [blocks, kv heads, tokens of a block, size]. window: keys that a query
    sees at most; the kernel for one token a sequence has no such limit.
    """
    batch, tokens, heads, size = q.shape
    shared, (slots, capacity, block) = k.shape[1], room(k, places)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    if not capacity:
        return out.zero_()
    if tokens == 1 and window is None and _is_decoded(q, k, v, block):
        _decode(q, k, v, places, factor, out)
        return out
    single = k.dtype not in _HALVES or v.dtype is not k.dtype or size % 2 == 1
    caches = [_words(x, single) for x in (k, v)]
    q = _even(q.float())
    q = q if q.stride(-1) == 1 else q.contiguous()
    per, wide = heads // shared, max(triton.next_power_of_2((size + 1) // 2), 16)
    rows = min(max(triton.next_power_of_2(tokens * per), ROWS), MOST_ROWS)
    blocks = triton.cdiv(tokens * per, rows)
    used = min(triton.next_power_of_2(tokens * per), rows)
    groups = batch * blocks * shared
    seen = capacity if window is None else min(capacity, window + KEYS + (rows - 1) // per)
    parts = _parts(groups, seen, KEYS)
    together = min(used, max(JOINED // (parts * 2 * wide), 1))
    few, placement = used <= FEW, _placement(q, places)
    sums, counts = PartSums(out, out, out), out  # unread where there is one part
    if parts > 1:
        sums = _sums_of_parts(groups * parts * rows, 2 * wide, q.device)
        counts = counters(q.device).some(groups) if few else out
    o_strides = Strides(*out.stride()[:3])
    common: dict[str, Any] = {
        "SIZE": size, "WIDE": wide, "PER": per, "ROWS": rows, "KEYS": KEYS, "PARTS": parts,
        "PLACED": places is not None, "BLOCK": block, "WINDOW": min(window or 0, capacity), "num_warps": 4, **gpu(q.device).starting,
    }  # fmt: skip
    attend_kernel[(batch * blocks, shared, parts)](
        q, *caches, *placement, out, sums, counts, tokens, slots, capacity, Strides(*q.stride()[:3]),
        *(CacheStrides(*x.stride()[:3]) for x in caches), o_strides, USED=used, TOGETHER=together, LAST=few, SINGLE=single,
        BRAIN=k.dtype is torch.bfloat16, FACTOR=factor, ASM=_asm(q), **common,
    )  # fmt: skip
    if parts > 1 and not few:
        join_kernel[(batch * tokens * per, shared)](*placement, out, sums, tokens, slots, capacity, o_strides, **common)
    return out


def _placement(q: torch.Tensor, places: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    """Return the places as kernels read them, and the columns of a row; without any, what is not read."""
    return (q, 0) if places is None else (places.contiguous(), places.shape[1])


_HALVES = (torch.float16, torch.bfloat16)


def _parts(groups: int, capacity: int, keys: int) -> int:
    """Return how many CTAs share the keys of some queries, each taking `keys` of them together."""
    return triton.next_power_of_2(max(1, min(PROGRAMS // groups, triton.cdiv(capacity, keys), PARTS)))


def _few_parts(groups: int, capacity: int, keys: int) -> int:
    """Return how many CTAs share the keys of a kv head where there are many, each taking at least `keys` of them."""
    most = min(max(MANY_PROGRAMS // groups, 1), MANY_PARTS)
    return min(triton.next_power_of_2(triton.cdiv(capacity, keys)), 1 << (most.bit_length() - 1))


def _sums_of_parts(lines: int, size: int, device: torch.device) -> PartSums:
    """Allocate the sums that parts leave to be joined."""
    space = torch.empty(lines * (size + 2), dtype=torch.float64, device=device)
    return PartSums(mixed=space[2 * lines :], tops=space[:lines], totals=space[lines : 2 * lines])


def _is_decoded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int) -> bool:
    """Return True if the kernel for one token a sequence takes these tensors."""
    contiguous = k.stride(-1) == v.stride(-1) == 1 and k.stride(2) == v.stride(2)
    return (
        contiguous
        and v.dtype is k.dtype
        and k.dtype in _HALVES
        and decodes(q.device, q.shape[3], q.shape[2], k.shape[1], block)
    )


def decodes(device: torch.device, size: int, heads: int, shared: int, block: int = 0) -> bool:
    """Return True if there is a kernel for one token a sequence with such heads, and blocks of so many tokens."""
    g = gpu(device)
    return g.has_gluon and g.capability == HOPPER and size == 128 and heads <= 4 * shared and block % WHOLE == 0


def _decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor | None, factor: float, out: torch.Tensor
) -> None:
    q = q.float() if q.stride(-1) == 1 else q.float().contiguous()
    _launch_decode(q, q, q, k, v, places, factor, out, FRESH=False, SETTLED=False)


def attend_new(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: torch.Tensor, places: torch.Tensor, factor: float, settled: bool
) -> torch.Tensor:  # fmt: skip
    """Run `rope`, `update_cache` and `attention` for one new token a sequence, in one launch, where `decodes` is true.

    x: f32 [batch, 1, heads + 2 kv heads, size], of which all but the last kv heads, the values, are rotated; cache:
    keys and values [slots, 2 kv heads, capacity, size], or blocks of them as in `attend`, written. settled: the places
    and all older keys and values were there before the kernels that may still be running were launched.
    """
    batch, _, every, size = x.shape
    shared = cache.shape[1] // 2
    out = torch.empty((batch, 1, every - 2 * shared, size), dtype=x.dtype, device=x.device)
    cos, sin = (a.float().expand(batch, 1, size // 2) for a in (cos, sin))
    x, cos, sin = (a if a.stride(-1) == 1 else a.contiguous() for a in (x, cos, sin))
    k, v = cache[:, :shared], cache[:, shared:]
    settled &= places.is_contiguous()
    _launch_decode(x, cos, sin, k, v, places, factor, out, FRESH=True, SETTLED=settled)
    return out


def _launch_decode(
    q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor | None,
    factor: float, out: torch.Tensor, *, FRESH: bool, SETTLED: bool,
) -> None:  # fmt: skip
    from tritium.backends.cuda.attention import decode as cuda_decode, many as cuda_many, shares as cuda_shares

    batch, _, heads, size = out.shape
    shared, (slots, capacity, block) = k.shape[1], room(k, places)
    per, groups, g = heads // shared, batch * shared, gpu(q.device)
    used = triton.next_power_of_2(per)
    options: dict[str, Any]
    if FRESH and groups >= MANY:
        parts = _few_parts(groups, capacity, cuda_many.LEAST)
        kernel = cuda_many.decode_many
        options = {"SHARE": cuda_many.LEAST, "maxnreg": cuda_many.registers(groups, g.processors)}
    else:
        parts = _parts(groups, capacity, cuda_decode.KEYS.value)
        kernel = cuda_decode.decode
        options = {"FRESH": FRESH, "PLACED": places is not None, "maxnreg": cuda_decode.registers(batch, parts)}
    sums, counts = PartSums(out, out, out), out  # unread where there is one part
    if parts > 1:
        sums = _sums_of_parts(groups * parts * used, size, q.device)
        counts = counters(q.device).some(groups)
    early = {"launch_pdl": True} if g.early else {}
    kernel[(batch * parts, shared)](
        cuda_decode.Tokens(q, cos, sin), k, v, cuda_shares.Places(*_placement(q, places)), out, sums, counts, batch, slots, capacity,
        cuda_decode.TokenStrides(q.stride(0), q.stride(2), cos.stride(0), sin.stride(0)),
        cuda_decode.SlotStrides(*k.stride()[:2]), cuda_decode.SlotStrides(*v.stride()[:2]),
        cuda_decode.OutStrides(out.stride(0), out.stride(2)),
        PER=per, USED=used, PARTS=parts, MOST=parts if batch == 1 else PARTS, TOKEN=k.stride(2), BLOCK=block,
        BATCH=1 if batch == 1 else max(triton.next_power_of_2(batch), 32), SETTLED=SETTLED, FACTOR=factor,
        num_warps=cuda_decode.WARPS, **options, **early,
    )  # fmt: skip


def _asm(x: torch.Tensor) -> bool:
    """Return True if kernels may use inline PTX."""
    return gpu(x.device).capability > (0, 0)


def _even(x: torch.Tensor) -> torch.Tensor:
    """Pad each head to an even number of elements: kernels take pairs."""
    return torch.nn.functional.pad(x, (0, 1)) if x.shape[-1] % 2 else x


def _words(x: torch.Tensor, single: bool) -> torch.Tensor:
    """Return a cache as the kernel reads it: f32, or words of two halves. It is copied only where it must be."""
    if single:
        x = _even(x.float())
        return x if x.stride(-1) == 1 else x.contiguous()
    even = x.stride(-1) == 1 and x.data_ptr() % 4 == 0 and not any(s % 2 for s in x.stride()[:-1])
    return (x if even else x.contiguous()).view(torch.int32)


fix_cache_keys(globals())
