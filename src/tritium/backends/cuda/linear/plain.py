"""Products of int8 tokens with weights in plain Triton, for every GPU it supports; the interpreter runs these kernels
too.

Ternary codes are w + 1 in four planes: byte j of a row holds those of columns j, j + KB, j + 2 KB and j + 3 KB,
and the sum of the token is subtracted once. ASM=False spells the integer steps out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin

MASK = tl.constexpr(0x03030303)
MASKED = tl.constexpr("""{
    .reg .b32 t0, t1, t2, t3;
    and.b32 t0, $4, 0x03030303;
    and.b32 t1, $4, 0x0c0c0c0c;
    and.b32 t2, $4, 0x30303030;
    and.b32 t3, $4, 0xc0c0c0c0;
    dp4a.u32.s32 $0, t0, $5, $9;
    dp4a.u32.s32 $1, t1, $6, $10;
    dp4a.u32.s32 $2, t2, $7, $11;
    dp4a.u32.s32 $3, t3, $8, $12;
}""")  # codes masked in place: the sum of plane s is 4**s times too large
FIELD = tl.constexpr(
    ("and.b32 $0, $1, 0x03030303;",)
    + tuple(f"{{ .reg .b32 t; shr.b32 t, $1, {n}; and.b32 $0, t, 0x03030303; }}" for n in (2, 4, 6))
)


@triton.jit
def field(w, S: tl.constexpr, ASM: tl.constexpr):
    """Return the codes of plane S of bytes, as int8: with ASM four at a time."""
    if ASM:
        return tl.inline_asm_elementwise(FIELD[S], "=r,r", [w], dtype=tl.int8, is_pure=True, pack=4)
    return ((w >> (2 * S)) & 3).to(tl.int8)


@triton.jit
def fence(ASM: tl.constexpr):
    """Make earlier writes of this thread visible on the whole GPU before its later ones."""
    if ASM:
        tl.inline_asm_elementwise("fence.acq_rel.gpu; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def dot4(w, x, c, ASM: tl.constexpr):
    """Return c + the product of four signed bytes of w with four of x."""
    if ASM:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [w, x, c], dtype=tl.int32, is_pure=True, pack=1
        )
    for i in tl.static_range(4):
        c += ((w << (24 - 8 * i)) >> 24) * ((x << (24 - 8 * i)) >> 24)
    return c


@triton.jit
def times(a, b, acc, BYTES: tl.constexpr):
    """Return acc + a times b of int8 by tensor cores.

    Not BYTES: as f16, for a GPU whose int8 Triton does not multiply; a step has so few columns that f32 holds each of
    its sums.
    """
    if BYTES:
        return tl.dot(a, b, acc, out_dtype=tl.int32)
    return acc + tl.dot(a.to(tl.float16), b.to(tl.float16)).to(tl.int32)


@triton.jit
def add_bias(y, bias, rn, rm, M, N, BIAS: tl.constexpr):
    """Return y [BN, BM] plus bias. BIAS: 0 none, 1 one for each row, 2 for each result."""
    if BIAS == 1:
        y = y + tl.load(bias + rn, mask=rn < N, other=0.0).to(tl.float32)[:, None]
    elif BIAS == 2:
        cells = bias + rm[:, None].to(tl.int64) * N + rn[None, :]
        y = y + tl.trans(tl.load(cells, mask=(rm < M)[:, None] & (rn < N)[None, :], other=0.0).to(tl.float32))
    return y


@triton.jit
def finish(acc, rn, rm, total, token_scale, scale, bias, out, M, N,
           CODES: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """Store acc [BN, BM] less the sums of tokens, scaled, as out [M, N]; an out of int32 takes the integers."""
    inside = rm < M
    if CODES:
        acc = acc - tl.load(total + rm, mask=inside, other=0)[None, :]
    if out.dtype.element_ty == tl.int32:
        y = acc
    else:
        of_token = tl.load(token_scale + rm, mask=inside, other=0.0)
        if ROWS:
            by = of_token[None, :] * tl.load(scale + rn, mask=rn < N, other=0.0)[:, None]
        else:
            by = (of_token * tl.load(scale))[None, :]
        y = add_bias(acc.to(tl.float32) * by, bias, rn, rm, M, N, BIAS)
    place = out + rm[:, None].to(tl.int64) * N + rn[None, :]
    tl.store(place, tl.trans(y.to(out.dtype.element_ty)), mask=inside[:, None] & (rn < N)[None, :])


@triton.jit(do_not_specialize=["M"])
def gemv(
    w, x, total, token_scale, scale, bias, out, M, N, KW,
    BN: tl.constexpr, BK: tl.constexpr, CODES: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr,
    ASM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply one token with BN rows a CTA.

    w and x are 32-bit words: KW a row of w; a row of x has 4 KW of them if CODES.
    """
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1)
    rk = tl.arange(0, BK)
    row = w + tl.minimum(rn, N - 1).to(tl.int64)[:, None] * KW
    begin(EARLY)
    x += m.to(tl.int64) * KW * (4 if CODES else 1)
    acc = tl.zeros((BN, BK), tl.int32)
    for k in range(0, KW, BK):
        inside = k + rk < KW
        words = tl.load(row + k + rk[None, :], mask=inside[None, :], other=0, eviction_policy="evict_first")
        if CODES:
            for s in tl.static_range(4):
                part = tl.load(x + s * KW + k + rk, mask=inside, other=0)
                acc = dot4((words >> (2 * s)) & MASK, part[None, :], acc, ASM)
        else:
            acc = dot4(words, tl.load(x + k + rk, mask=inside, other=0)[None, :], acc, ASM)
    rm = m + tl.arange(0, 1)
    finish(tl.sum(acc, 1)[:, None], rn, rm, total, token_scale, scale, bias, out, M, N, CODES, ROWS, BIAS)


@triton.jit
def multiply_steps(w, x, acc, first, last, KB, BK: tl.constexpr, CODES: tl.constexpr, EVEN: tl.constexpr,
                   ASM: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    """Return acc [BN, BM] plus the products of the columns of steps first to last."""
    rk = tl.arange(0, BK)
    for i in range(first, last):
        column = i * BK + rk
        inside = column < KB
        if EVEN:
            codes = tl.load(w + column[None, :])
        else:
            codes = tl.load(w + column[None, :], mask=inside[None, :], other=0)
        if CODES:
            for s in tl.static_range(4):
                if EVEN:
                    part = tl.load(x + s * KB + column[:, None])
                else:
                    part = tl.load(x + s * KB + column[:, None], mask=inside[:, None], other=0)
                acc = times(field(codes, s, ASM), part, acc, BYTES)
        else:
            part = tl.load(x + column[:, None], mask=inside[:, None], other=0)
            acc = times(codes, part, acc, BYTES)
    return acc


@triton.jit
def tile_places(tile, M, N, BN: tl.constexpr, BM: tl.constexpr, WIDE: tl.constexpr):
    """Return the rows of weights and the tokens of a tile [BN, BM]; tiles go WIDE rows of tiles at a time."""
    across = tl.cdiv(N, BN)
    down = tl.cdiv(M, BM)
    first = tile // (WIDE * down) * WIDE
    width = tl.minimum(across - first, WIDE)
    rest = tile % (WIDE * down)
    return (first + rest % width) * BN + tl.arange(0, BN), rest // width * BM + tl.arange(0, BM)


@triton.jit(do_not_specialize=["M"])
def gemm(
    w, x, total, token_scale, scale, bias, out, partial, counts, M, N, KB,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr, GROUP: tl.constexpr,
    CODES: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr, EVEN: tl.constexpr, ASM: tl.constexpr, BYTES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute a tile [BN, BM] of out.T, weights on the left so that decoded ones stay in registers; SPLIT CTAs share
    its columns.

    Each CTA of a tile leaves its sums in memory of its own; the last to arrive, by `counts`, adds them up, finishes,
    and leaves the count zero for the next launch on the stream.
    """
    tile = tl.program_id(0)
    rn, rm = tile_places(tile, M, N, BN, BM, GROUP)
    steps = tl.cdiv(KB, BK)
    part = tl.program_id(1)
    low = part * steps // SPLIT
    high = (part + 1) * steps // SPLIT
    wide = KB * (4 if CODES else 1)
    begin(EARLY)
    from_w = w + tl.minimum(rn, N - 1).to(tl.int64)[:, None] * KB
    from_x = x + tl.minimum(rm, M - 1).to(tl.int64)[None, :] * wide
    acc = multiply_steps(from_w, from_x, tl.zeros((BN, BM), tl.int32), low, high, KB, BK, CODES, EVEN, ASM, BYTES)
    if SPLIT == 1:
        finish(acc, rn, rm, total, token_scale, scale, bias, out, M, N, CODES, ROWS, BIAS)
    else:
        place = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        partial += tile.to(tl.int64) * (SPLIT * BN * BM)
        tl.store(partial + part * (BN * BM) + place, acc, cache_modifier=".cg")
        fence(ASM)
        tl.debug_barrier()
        if tl.atomic_add(counts + tile, 1, sem="acq_rel") == SPLIT - 1:
            fence(ASM)
            for other in range(1, SPLIT):  # not unrolled: sums of several parts do not fit in registers
                acc += tl.load(partial + (part + other) % SPLIT * (BN * BM) + place, cache_modifier=".cg")
            tl.store(counts + tile, 0)
            finish(acc, rn, rm, total, token_scale, scale, bias, out, M, N, CODES, ROWS, BIAS)


@triton.jit
def grouped_sums(w, x, of_token, of_scale, K, APART, LENGTH, GROUPS, EACH, BN: tl.constexpr, BM: tl.constexpr,
                 BK: tl.constexpr, BY: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    """Return [BN, BM]: the sum of each group of LENGTH columns, scaled and added in f32, in order.

    EACH groups are added to a block, then the blocks. Rows of w, x and the scales are given by their addresses; groups
    of x are APART from each other. BY: each of these has a scale of its own.
    """
    rk = tl.arange(0, BK)
    y = tl.zeros((BN, BM), tl.float32)
    for first in range(0, GROUPS, EACH):
        block = tl.zeros((BN, BM), tl.float32)
        for g in range(first, tl.minimum(first + EACH, GROUPS)):
            end = tl.minimum((g + 1) * LENGTH, K)
            acc = tl.zeros((BN, BM), tl.int32)
            for k in range(g * LENGTH, end, BK):
                column = k + rk
                inside = column < end
                a = tl.load(w + column[None, :], mask=inside[None, :], other=0)
                b = tl.load(x + (column + g * (APART - LENGTH))[:, None], mask=inside[:, None], other=0)
                acc = times(a, b, acc, BYTES)
            term = acc.to(tl.float32) * tl.load(of_scale + g).to(tl.float32)[:, None]
            if BY:
                term = term * tl.load(of_token + g)[None, :]
            block = block + term
        y = y + block
    return y


@triton.jit(do_not_specialize=["M"])
def grouped(
    w, x, token_scale, scale, bias, out, M, N, K, WIDE, ROW, APART, LENGTH, GROUPS, EACH,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr, BY: tl.constexpr, BYTES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply int8 weights that have a scale for each LENGTH columns, as `grouped_sums` adds them.

    Rows of w are WIDE bytes, those of x are ROW.
    """
    across = tl.cdiv(N, BN)
    rn = tl.program_id(0) % across * BN + tl.arange(0, BN)
    rm = tl.program_id(0) // across * BM + tl.arange(0, BM)
    begin(EARLY)
    near = tl.minimum(rn, N - 1)
    from_w = w + near.to(tl.int64)[:, None] * WIDE
    near_x = tl.minimum(rm, M - 1).to(tl.int64)
    from_x = x + near_x[None, :] * ROW
    y = grouped_sums(
        from_w, from_x, token_scale + near_x * GROUPS, scale + near * GROUPS, K, APART, LENGTH, GROUPS, EACH,
        BN, BM, BK, BY, BYTES,
    )  # fmt: skip
    if not BY:
        y = y * tl.load(token_scale + rm, mask=rm < M, other=0.0)[None, :]
    y = add_bias(y, bias, rn, rm, M, N, BIAS)
    place = out + rm[:, None].to(tl.int64) * N + rn[None, :]
    tl.store(place, tl.trans(y.to(out.dtype.element_ty)), mask=(rm < M)[:, None] & (rn < N)[None, :])


fix_cache_keys(globals())
