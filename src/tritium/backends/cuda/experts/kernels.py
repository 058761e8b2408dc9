"""Products of int8 tokens with the weights of the experts they chose, in plain Triton, for every GPU it supports.

A pair is a token and one of its experts: pairs of few tokens have CTAs of their own, which read the weights of their expert alone; of
many, `arrange` sorts them by expert into tiles that belong to one expert each. Weights of expert e are rows e N … of one matrix, in
the layouts of `cuda.linear`. SHARE pairs in a row have the same token. The number of an expert that does not exist is marked in
`outside`; its pair gets the results of another expert, or none.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.grouped import BLOCK, group_sums, in_order, sum_blocks
from tritium.backends.cuda.linear.plain import MASK, MASKED, dot4, grouped_sums, multiply_steps
from tritium.backends.cuda.order import begin

TILE = tl.constexpr(
    3
)  # numbers of a tile: its expert (-1: an empty tile), its first pair, and the end of the expert's pairs
SOME = tl.constexpr(64)  # tiles that are written together


@triton.jit
def _dot_planes(words, x, KW, inside, sums, ASM: tl.constexpr):
    """Return the sums of four planes plus the products of words [BN, BK] of codes with tokens, whose planes are KW apart."""
    p0 = tl.load(x, mask=inside, other=0)[None, :]
    p1 = tl.load(x + KW, mask=inside, other=0)[None, :]
    p2 = tl.load(x + 2 * KW, mask=inside, other=0)[None, :]
    p3 = tl.load(x + 3 * KW, mask=inside, other=0)[None, :]
    if ASM:
        return tl.inline_asm_elementwise(
            MASKED, "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r", [words, p0, p1, p2, p3, sums[0], sums[1], sums[2], sums[3]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    s0 = dot4(words & MASK, p0, sums[0], ASM)
    s1 = dot4((words >> 2) & MASK, p1, sums[1], ASM)
    s2 = dot4((words >> 4) & MASK, p2, sums[2], ASM)
    s3 = dot4((words >> 6) & MASK, p3, sums[3], ASM)
    return s0, s1, s2, s3


@triton.jit
def _joined(sums, ASM: tl.constexpr):
    """Return the sum of all planes."""
    if ASM:
        return sums[0] + (sums[1] >> 2) + (sums[2] >> 4) + (sums[3] >> 6)
    return sums[0] + sums[1] + sums[2] + sums[3]


@triton.jit
def _chosen(experts, pair, outside, E):
    """Return the expert of a pair, held to those that exist, and mark the pair where it did not."""
    e = tl.load(experts + pair)
    near = tl.minimum(tl.maximum(e, 0), E - 1)
    if tl.program_id(1) == 0:
        tl.store(outside + pair, e != near)
    return near.to(tl.int64)


@triton.jit
def _scales(scale, e, rn, N, BY: tl.constexpr):
    """Return the scales of rows rn of expert e. BY: 0 one for all, 1 one for each expert, 2 for each row."""
    if BY == 2:
        return tl.load(scale + e * N + rn, mask=rn < N, other=0.0).to(tl.float32)
    return tl.full(rn.shape, tl.load(scale + (e if BY == 1 else 0)).to(tl.float32), tl.float32)


@triton.jit
def pairs(
    w, x, total, token_scale, scale, experts, out, outside, E, N, KW, SHARE, BN: tl.constexpr, BK: tl.constexpr,
    CODES: tl.constexpr, BY: tl.constexpr, ASM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply the token of one pair with BN rows of its expert by dp4a.

    w and x are 32-bit words: KW a row of w; a row of x has 4 KW of them if CODES.
    """
    pair = tl.program_id(0)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    begin(EARLY)
    e = _chosen(experts, pair, outside, E)
    token = (pair // SHARE).to(tl.int64)
    row = w + (e * N + tl.minimum(rn, N - 1))[:, None] * KW
    x += token * KW * (4 if CODES else 1)
    zero = tl.zeros((BN, BK), tl.int32)
    sums = (zero, zero, zero, zero)
    acc = zero
    for k in range(0, KW, BK):
        inside = k + rk < KW
        words = tl.load(row + k + rk[None, :], mask=inside[None, :], other=0)
        if CODES:
            sums = _dot_planes(words, x + k + rk, KW, inside, sums, ASM)
        else:
            acc = dot4(words, tl.load(x + k + rk, mask=inside, other=0)[None, :], acc, ASM)
    if CODES:
        acc = _joined(sums, ASM)
    y = tl.sum(acc, 1)
    if CODES:
        y = y - tl.load(total + token)
    by = tl.load(token_scale + token) * _scales(scale, e, rn, N, BY)
    y = y.to(tl.float32) * by
    tl.store(out + pair.to(tl.int64) * N + rn, y.to(out.dtype.element_ty), mask=rn < N)


@triton.jit
def pairs_grouped(
    w, x, token_scale, scale, experts, out, outside, E, N, SHARE, GROUPS, SCALES, KW: tl.constexpr, BN: tl.constexpr,
    LEVELS: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr, BY: tl.constexpr, ASM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply the token of one pair with BN rows of its expert that have a scale for each GROUP columns.

    Codes are in lines, as in `cuda.linear.grouped`; a row has PARTS of 2**LEVELS blocks. BY: tokens have such scales too.
    """
    WORDS: tl.constexpr = (BLOCK // 16) << LEVELS
    COUNT: tl.constexpr = (BLOCK // GROUP) << LEVELS
    pair = tl.program_id(0)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, WORDS)
    begin(EARLY)
    e = _chosen(experts, pair, outside, E)
    token = (pair // SHARE).to(tl.int64)
    near = e * N + tl.minimum(rn, N - 1)
    row = w + near[:, None] * KW + rk[None, :]
    x += token * (4 * KW)
    y = tl.zeros((BN,), tl.float32)
    for i in tl.static_range(PARTS):
        word = i * WORDS + rk
        words = tl.load(row + i * WORDS, mask=(word < KW)[None, :], other=0)
        g = i * COUNT + tl.arange(0, COUNT)
        there = g < GROUPS
        by = tl.load(scale + near[:, None] * GROUPS + g[None, :], mask=there[None, :], other=0.0).to(tl.float32)
        sums = group_sums(words, x, word // 8 * 32 + word % 8, word < KW, BN, WORDS, GROUP, ASM)
        terms = sums.to(tl.float32) * by
        if BY:
            terms = terms * tl.load(token_scale + token * SCALES + g, mask=there, other=0.0)[None, :]
        y = in_order(y, terms, BN, LEVELS, GROUP)
    if not BY:
        y = y * tl.load(token_scale + token)
    tl.store(out + pair.to(tl.int64) * N + rn, y.to(out.dtype.element_ty), mask=rn < N)


@triton.jit
def pairs_float(
    w, x, scale, experts, out, outside, E, N, K, WIDE, SHARE, GROUPS, LENGTH,
    BN: tl.constexpr, BK: tl.constexpr, BY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply the token of one pair, which stays as it is, with BN rows of its expert.

    Rows of w are WIDE bytes of int8. Weights times scales are f32; their products with x are added in f64, in one order. BY: as of
    `_scales`, or 3 for a scale for each LENGTH columns.
    """
    pair = tl.program_id(0)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    begin(EARLY)
    e = _chosen(experts, pair, outside, E)
    near = e * N + tl.minimum(rn, N - 1)
    x += (pair // SHARE).to(tl.int64) * K
    acc = tl.zeros((BN, BK), tl.float64)
    for k in range(0, K, BK):
        column = k + rk
        inside = column < K
        t = tl.load(w + near[:, None] * WIDE + column[None, :], mask=inside[None, :], other=0).to(tl.float32)
        if BY == 3:
            cells = near[:, None] * GROUPS + (column // LENGTH)[None, :]
            t = t * tl.load(scale + cells, mask=inside[None, :], other=0.0).to(tl.float32)
        else:
            t = t * _scales(scale, e, rn, N, BY)[:, None]
        v = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        acc += t.to(tl.float64) * v.to(tl.float64)[None, :]
    y = tl.sum(acc, 1).to(tl.float32)
    tl.store(out + pair.to(tl.int64) * N + rn, y.to(out.dtype.element_ty), mask=rn < N)


# ---- many tokens


@triton.jit(do_not_specialize=["P"])
def arrange(experts, order, tiles, outside, P, BM: tl.constexpr, BLOCK_P: tl.constexpr, EARLY: tl.constexpr):
    """Write the pairs of expert e, its CTA's number, to `order`, behind those of the experts before, and its tiles of BM pairs.

    With `start` pairs before them, its tiles begin at start // BM + e: all that may come before fit there, whatever the pairs are, so
    that no CTA waits for another. A place that stays free is marked as empty.
    """
    e, E = tl.program_id(0), tl.num_programs(0)
    o = tl.arange(0, BLOCK_P)
    begin(EARLY)
    before = tl.zeros((BLOCK_P,), tl.int32)
    own = tl.zeros((BLOCK_P,), tl.int32)
    wrong = tl.zeros((BLOCK_P,), tl.int32)
    for first in range(0, P, BLOCK_P):
        there = first + o < P
        number = tl.load(experts + first + o, mask=there, other=-1)
        before += ((number >= 0) & (number < e)).to(tl.int32)
        own += (number == e).to(tl.int32)
        wrong += (there & ((number < 0) | (number >= E))).to(tl.int32)
    start = tl.sum(before, 0)
    count = tl.sum(own, 0)
    if e == 0:
        tl.store(outside, tl.sum(wrong, 0) > 0)
    place = start
    for first in range(0, P, BLOCK_P):
        mine = tl.load(experts + first + o, mask=first + o < P, other=-1) == e
        rank = tl.cumsum(mine.to(tl.int32), 0)
        tl.store(order + place + rank - 1, first + o, mask=mine)
        place += tl.sum(mine.to(tl.int32), 0)
    slot = start // BM + e
    used = tl.cdiv(count, BM)
    end = (start + count) // BM + e + 1
    end = tl.where(e == E - 1, P // BM + E, end)
    for first in range(0, end - slot, SOME):
        i = first + tl.arange(0, SOME)
        to = tiles + (slot + i) * TILE
        inside = slot + i < end
        tl.store(to, tl.where(i < used, e, -1), mask=inside)
        tl.store(to + 1, start + i * BM, mask=inside)
        tl.store(to + 2, start + count + tl.zeros_like(i), mask=inside)


@triton.jit
def _place(tiles, N, BN: tl.constexpr, EARLY: tl.constexpr):
    """Return of a CTA: the place of its tile, its BN rows, and the tile's expert (-1: an empty tile)."""
    across = tl.cdiv(N, BN)
    slot = tl.program_id(0) // across
    rn = tl.program_id(0) % across * BN + tl.arange(0, BN)
    begin(EARLY)
    return slot, rn, tl.load(tiles + slot * TILE).to(tl.int64)


@triton.jit
def _tile(tiles, order, slot, SHARE, BM: tl.constexpr):
    """Return of a tile that is not empty: its pairs, which of them there are, and their tokens; others are those of pair 0."""
    place = tl.load(tiles + slot * TILE + 1) + tl.arange(0, BM)
    there = place < tl.load(tiles + slot * TILE + 2)
    pair = tl.load(order + place, mask=there, other=0)
    return pair.to(tl.int64), there, (pair // SHARE).to(tl.int64)


@triton.jit
def _store(y, out, pair, there, rn, N):
    """Store y [BN, BM] as rows `pair` of out."""
    to = out + pair[:, None] * N + rn[None, :]
    tl.store(to, tl.trans(y.to(out.dtype.element_ty)), mask=there[:, None] & (rn < N)[None, :])


@triton.jit
def multiply_tiles(
    w, x, total, token_scale, scale, order, tiles, out, N, KB, SHARE,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, CODES: tl.constexpr, BY: tl.constexpr, EVEN: tl.constexpr,
    ASM: tl.constexpr, BYTES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply the tokens of a tile of BM pairs with BN rows of its expert by tensor cores. KB: bytes of a row of w."""
    slot, rn, e = _place(tiles, N, BN, EARLY)
    if e >= 0:
        pair, there, token = _tile(tiles, order, slot, SHARE, BM)
        from_w = w + (e * N + tl.minimum(rn, N - 1))[:, None] * KB
        from_x = x + token[None, :] * (KB * (4 if CODES else 1))
        acc = tl.zeros((BN, BM), tl.int32)
        acc = multiply_steps(from_w, from_x, acc, 0, tl.cdiv(KB, BK), KB, BK, CODES, EVEN, ASM, BYTES)
        if CODES:
            acc = acc - tl.load(total + token)[None, :]
        by = tl.load(token_scale + token)[None, :] * _scales(scale, e, rn, N, BY)[:, None]
        _store(acc.to(tl.float32) * by, out, pair, there, rn, N)


@triton.jit
def multiply_tiles_grouped(
    w, x, token_scale, scale, order, tiles, out, N, KB, SHARE, GROUPS, SCALES,
    BN: tl.constexpr, BM: tl.constexpr, GROUP: tl.constexpr, BY: tl.constexpr, ASM: tl.constexpr, BYTES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply as `multiply_tiles` with a scale for each GROUP columns; codes are in lines, as in `cuda.linear.grouped`."""
    slot, rn, e = _place(tiles, N, BN, EARLY)
    rk = tl.arange(0, 32)
    if e >= 0:
        pair, there, token = _tile(tiles, order, slot, SHARE, BM)
        near = e * N + tl.minimum(rn, N - 1)
        y = sum_blocks(
            w + near[:, None] * KB + rk[None, :], x + token[None, :] * (4 * KB) + rk[:, None],
            token_scale + token * SCALES, scale + near * GROUPS, out, 0, tl.cdiv(GROUPS, BLOCK // GROUP), GROUPS,
            BN, BM, False, GROUP, BY, ASM, BYTES,
        )  # fmt: skip
        if not BY:
            y = y * tl.load(token_scale + token)[None, :]
        _store(y, out, pair, there, rn, N)


@triton.jit
def multiply_tiles_of_any_group(
    w, x, token_scale, scale, order, tiles, out, N, K, WIDE, SHARE, ROW, APART, LENGTH, GROUPS, EACH,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BY: tl.constexpr, BYTES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply as `multiply_tiles` with int8 weights and a scale for each LENGTH columns, as `grouped_sums` adds them."""
    slot, rn, e = _place(tiles, N, BN, EARLY)
    if e >= 0:
        pair, there, token = _tile(tiles, order, slot, SHARE, BM)
        near = e * N + tl.minimum(rn, N - 1)
        y = grouped_sums(
            w + near[:, None] * WIDE, x + token[None, :] * ROW, token_scale + token * GROUPS, scale + near * GROUPS, K, APART,
            LENGTH, GROUPS, EACH, BN, BM, BK, BY, BYTES,
        )  # fmt: skip
        if not BY:
            y = y * tl.load(token_scale + token)[None, :]
        _store(y, out, pair, there, rn, N)


fix_cache_keys(globals())
