"""Products of int8 tokens with ternary weights that have a scale for each 64 or 128 columns, in plain Triton.

Codes w + 1 have two bits: of each 128 columns a row has 32 bytes, byte i with the codes of columns i, 32 + i, 64 + i and 96 + i, so
that the planes of a byte belong to one group of 128 columns, or two and two to groups of 64. They become signed bytes, since the sum
of each group of each token, which codes would be too large by, is more to read than that costs. The sum of a group is scaled and
added in f32, in order: in blocks of 1,024 columns, then block after block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.plain import MASK, add_bias, dot4, fence, tile_places, times
from tritium.backends.cuda.order import begin, let_next_start, wait

BLOCK = tl.constexpr(1024)  # columns whose terms are added to each other first: quantized.COLUMNS
HIGH = tl.constexpr(-0x7F7F7F80)  # the highest bit of every byte
ONES = tl.constexpr(0x01010101)
SIGNED = tl.constexpr(
    tuple(
        f"{{ .reg .b32 t; shr.b32 t, $1, {n}; and.b32 t, t, 0x03030303; or.b32 t, t, 0x80808080; sub.u32 t, t, 0x01010101; "
        "xor.b32 $0, t, 0x80808080; }"
        for n in (0, 2, 4, 6)
    )
)
LINE = tl.constexpr(32)  # bytes that hold the codes of 128 columns of a row


@triton.jit
def _weights(w, S: tl.constexpr, ASM: tl.constexpr):
    """Return the weights of plane S of bytes, as int8: with ASM four at a time."""
    if ASM:
        return tl.inline_asm_elementwise(SIGNED[S], "=r,r", [w], dtype=tl.int8, is_pure=True, pack=4)
    return ((w >> (2 * S)) & 3).to(tl.int8) - 1


@triton.jit
def _columns(t, LEVELS: tl.constexpr):
    """Split the last axis of t, of 2**LEVELS elements, into a tuple of tensors, in order."""
    parts = (t,)
    for _ in tl.static_range(LEVELS):
        halves = ()
        for i in tl.static_range(len(parts)):
            p = parts[i]
            if len(p.shape) == 2:
                low, high = tl.split(tl.permute(tl.reshape(p, (p.shape[0], 2, p.shape[1] // 2)), (0, 2, 1)))
            else:
                low, high = tl.split(
                    tl.permute(tl.reshape(p, (p.shape[0], p.shape[1], 2, p.shape[2] // 2)), (0, 1, 3, 2))
                )
            halves = halves + (low, high)
        parts = halves
    return parts


@triton.jit
def in_order(y, terms, BN: tl.constexpr, LEVELS: tl.constexpr, GROUP: tl.constexpr):
    """Return y [BN] plus the terms of each row, [BN, groups of 2**LEVELS blocks].

    Those of a block are added one after another, then the sums of blocks to y. Terms behind the last group are 0.
    """
    BLOCKS: tl.constexpr = 1 << LEVELS
    EACH: tl.constexpr = BLOCK // GROUP
    each = _columns(tl.reshape(terms, (BN, BLOCKS, EACH)), 4 if GROUP == 64 else 3)
    block = tl.reshape(each[0], (BN, BLOCKS))
    for i in tl.static_range(1, EACH):
        block = block + tl.reshape(each[i], (BN, BLOCKS))
    blocks = _columns(block, LEVELS)
    for i in tl.static_range(BLOCKS):
        y = y + tl.reshape(blocks[i], (BN,))
    return y


@triton.jit
def group_sums(words, x, word, inside, BN: tl.constexpr, WORDS: tl.constexpr, GROUP: tl.constexpr, ASM: tl.constexpr):
    """Return the sums of weights times tokens in each group of columns: [BN, groups]."""
    first = tl.zeros((BN, WORDS), tl.int32)
    second = tl.zeros((BN, WORDS), tl.int32)
    for s in tl.static_range(4):
        part = tl.load(x + word + 8 * s, mask=inside, other=0)[None, :]
        codes = ((((words >> (2 * s)) & MASK) | HIGH) - ONES) ^ HIGH
        if GROUP == 64 and s > 1:
            second = dot4(codes, part, second, ASM)
        else:
            first = dot4(codes, part, first, ASM)
    sums = tl.sum(tl.reshape(first, (BN, WORDS // 8, 8)), 2)
    if GROUP == 64:
        others = tl.sum(tl.reshape(second, (BN, WORDS // 8, 8)), 2)
        sums = tl.reshape(tl.join(sums, others), (BN, WORDS // 4))
    return sums


@triton.jit
def gemv(
    w, x, token_scale, scale, bias, out, N, GROUPS, SCALES, KW: tl.constexpr, BN: tl.constexpr,
    LEVELS: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr, BY: tl.constexpr, ASM: tl.constexpr,
    EARLY: tl.constexpr, READY: tl.constexpr,
):  # fmt: skip
    """Multiply one token with BN rows a CTA, whose weights are all in flight at once.

    KW: words of a row, in PARTS of 2**LEVELS blocks. CTAs of the same rows are adjacent. READY: weights were written
    before the kernel in front of this one.
    """
    WORDS: tl.constexpr = (BLOCK // 16) << LEVELS
    COUNT: tl.constexpr = (BLOCK // GROUP) << LEVELS
    m = tl.program_id(0)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, WORDS)
    near = tl.minimum(rn, N - 1).to(tl.int64)
    let_next_start(EARLY)
    if not READY:
        wait(EARLY)
    row = w + near[:, None] * KW + rk[None, :]
    words = ()
    for i in tl.static_range(PARTS):
        inside = (rk + i * WORDS < KW)[None, :]
        words = words + (tl.load(row + i * WORDS, mask=inside, other=0, eviction_policy="evict_first"),)
    if READY:
        wait(EARLY)
    x += m * (4 * KW)
    y = tl.zeros((BN,), tl.float32)
    for i in tl.static_range(PARTS):
        g = i * COUNT + tl.arange(0, COUNT)
        there = g < GROUPS
        by = tl.load(scale + near[:, None] * GROUPS + g[None, :], mask=there[None, :], other=0.0).to(tl.float32)
        word = i * WORDS + rk
        sums = group_sums(words[i], x, word // 8 * 32 + word % 8, word < KW, BN, WORDS, GROUP, ASM)
        terms = sums.to(tl.float32) * by
        if BY:
            terms = terms * tl.load(token_scale + m * SCALES + g, mask=there, other=0.0)[None, :]
        y = in_order(y, terms, BN, LEVELS, GROUP)
    if not BY:
        y = y * tl.load(token_scale + m)
    if BIAS > 0:
        y = y + tl.load(bias + (m * N if BIAS == 2 else 0) + rn, mask=rn < N, other=0.0).to(tl.float32)
    tl.store(out + m * N + rn, y.to(out.dtype.element_ty), mask=rn < N)


@triton.jit
def _group_scales(token_scale, of_scale, g, GROUPS, BY: tl.constexpr):
    """Return the scales of the rows for group g, and those of the tokens where these have groups too."""
    near = tl.minimum(g, GROUPS - 1)
    by = tl.load(of_scale + near).to(tl.float32)
    by_token = by
    if BY:
        by_token = tl.load(token_scale + near)
    return by, by_token


@triton.jit
def _term(acc, by, by_token, BY: tl.constexpr):
    term = acc.to(tl.float32) * by[:, None]
    if BY:
        term = term * by_token[None, :]
    return term


@triton.jit
def _sums(codes, x, S: tl.constexpr, COUNT: tl.constexpr, ASM: tl.constexpr, BYTES: tl.constexpr):
    """Return the products of COUNT planes from plane S on: [BN, BM]. x: the first column of the first plane."""
    acc = tl.zeros((codes.shape[0], x.shape[1]), tl.int32)
    for s in tl.static_range(COUNT):
        acc = times(_weights(codes, S + s, ASM), tl.load(x + (S + s) * LINE), acc, BYTES)
    return acc


@triton.jit
def sum_blocks(from_w, from_x, token_scale, of_scale, partial, first, last, GROUPS, BN: tl.constexpr, BM: tl.constexpr,
               LEAVE: tl.constexpr, GROUP: tl.constexpr, BY: tl.constexpr, ASM: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    """Sum the terms of blocks first to last, each in order, then the sums. LEAVE: store each block's sum in `partial`
    instead.

    It is one loop, so that its loads run ahead over the ends of blocks; the scales of a group are loaded a step before
    they are needed, since only operands of products run ahead by themselves. A block has 8 lines.
    """
    HALVES: tl.constexpr = 128 // GROUP
    y = tl.zeros((BN, BM), tl.float32)
    block = tl.zeros((BN, BM), tl.float32)
    begin = first * 8
    end = tl.minimum(last * 8, tl.cdiv(GROUPS, HALVES))
    by, by_token = _group_scales(token_scale, of_scale, begin * HALVES, GROUPS, BY)
    late_by, late_token = _group_scales(token_scale, of_scale, begin * HALVES + 1, GROUPS, BY)
    for c in range(begin, end):
        codes = tl.load(from_w + c * LINE)
        x = from_x + c * 128
        g = (c + 1) * HALVES
        next_by, next_token = _group_scales(token_scale, of_scale, g, GROUPS, BY)
        block = block + _term(_sums(codes, x, 0, 4 // HALVES, ASM, BYTES), by, by_token, BY)
        by, by_token = next_by, next_token
        if HALVES == 2:
            next_by, next_token = _group_scales(token_scale, of_scale, g + 1, GROUPS, BY)
            term = _term(_sums(codes, x, 2, 2, ASM, BYTES), late_by, late_token, BY)
            block = block + tl.where(g - 1 < GROUPS, term, 0.0)
            late_by, late_token = next_by, next_token
        if (c + 1) % 8 == 0 or c + 1 == end:
            if LEAVE:
                place = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
                tl.store(partial + c // 8 * (BN * BM) + place, block, cache_modifier=".cg")
            else:
                y = y + block
            block = tl.zeros((BN, BM), tl.float32)
    return y


@triton.jit
def _finish(y, rn, rm, near_m, token_scale, bias, out, M, N, BIAS: tl.constexpr, BY: tl.constexpr):
    if not BY:
        y = y * tl.load(token_scale + near_m)[None, :]
    y = add_bias(y, bias, rn, rm, M, N, BIAS)
    place = out + rm[:, None].to(tl.int64) * N + rn[None, :]
    tl.store(place, tl.trans(y.to(out.dtype.element_ty)), mask=(rm < M)[:, None] & (rn < N)[None, :])


@triton.jit(do_not_specialize=["M"])
def gemm(
    w, x, token_scale, scale, bias, out, partial, counts, M, N, KB, GROUPS, SCALES,
    BN: tl.constexpr, BM: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr,
    BY: tl.constexpr, ASM: tl.constexpr, BYTES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute a tile [BN, BM] of out.T. SPLIT CTAs share its blocks of columns.

    Each leaves the sums of its blocks, and the last to arrive, by `counts`, adds all of them in order. KB: bytes of a
    row of w; tiles go WIDE rows of tiles at a time.
    """
    tile = tl.program_id(0)
    rn, rm = tile_places(tile, M, N, BN, BM, WIDE)
    near_n = tl.minimum(rn, N - 1).to(tl.int64)
    near_m = tl.minimum(rm, M - 1).to(tl.int64)
    rk = tl.arange(0, LINE)
    from_w = w + near_n[:, None] * KB + rk[None, :]
    from_x = x + near_m[None, :] * (4 * KB) + rk[:, None]
    of_scale = scale + near_n * GROUPS
    blocks = tl.cdiv(GROUPS, BLOCK // GROUP)
    begin(EARLY)
    by_group = token_scale + near_m * SCALES
    part = tl.program_id(1)
    if SPLIT == 1:
        y = sum_blocks(
            from_w, from_x, by_group, of_scale, partial, 0, blocks, GROUPS, BN, BM, False, GROUP, BY, ASM, BYTES
        )
        _finish(y, rn, rm, near_m, token_scale, bias, out, M, N, BIAS, BY)
    else:
        place = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        partial += tile.to(tl.int64) * blocks * (BN * BM)
        low, high = part * blocks // SPLIT, (part + 1) * blocks // SPLIT
        sum_blocks(from_w, from_x, by_group, of_scale, partial, low, high, GROUPS, BN, BM, True, GROUP, BY, ASM, BYTES)
        fence(ASM)
        tl.debug_barrier()
        if tl.atomic_add(counts + tile, 1, sem="acq_rel") == SPLIT - 1:
            fence(ASM)
            y = tl.zeros((BN, BM), tl.float32)
            for b in range(blocks):
                y = y + tl.load(partial + b * (BN * BM) + place, cache_modifier=".cg")
            tl.store(counts + tile, 0)
            _finish(y, rn, rm, near_m, token_scale, bias, out, M, N, BIAS, BY)


fix_cache_keys(globals())
