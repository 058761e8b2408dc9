"""Products of a few tokens by tensor cores (mma.sync m16n8k32), in Gluon: weights are stored in the order in which
lanes need them.

Words w [N / 16][KP / 128][lane 32][4]: word r, byte b, field p of a lane hold the code of row 16 t + lane // 4 + 8 (r %
2) and, with j = 2 p + r // 2, column 128 c + 64 (j // 4) + 16 (lane % 4) + 4 (j % 4) + b: so a lane reads its tokens in
place, 16 bytes at a time, and nothing passes through shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.gemv import barrier, may_start, wait_for_inputs


def _assembly() -> str:
    """Return PTX of four products, one for each field, masked in place.

    16 sums out, 4 words of weights, 8 of tokens, 16 sums in.
    """
    lines = ["{ .reg .b32 a0, a1, a2, a3;"]
    for p, mask in enumerate(("0x03030303", "0x0c0c0c0c", "0x30303030", "0xc0c0c0c0")):
        lines += [f"and.b32 a{r}, ${16 + r}, {mask};" for r in range(4)]
        sums, before = (",".join(f"${first + 4 * p + r}" for r in range(4)) for first in (0, 28))
        lines.append(
            f"mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {{{sums}}}, {{a0,a1,a2,a3}}, "
            f"{{${20 + 2 * p},${21 + 2 * p}}}, {{{before}}};"
        )
    return "\n".join([*lines, "}"])


PRODUCTS = gl.constexpr(_assembly())
REGISTERS = gl.constexpr(",".join(["=&r"] * 16 + ["r"] * 28))


@gluon.jit
def _multiply(w, b0, b1, c0, c1, c2, c3):
    return gl.inline_asm_elementwise(
        PRODUCTS, REGISTERS, [w, b0, b1, c0, c1, c2, c3],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def _words(w, k, i: gl.constexpr, WK: gl.constexpr, BLOCKS: gl.constexpr):
    """Load block i of each warp; behind the last there are zeros."""
    if (i + 1) * WK <= BLOCKS:
        return gl.load(w + i * WK * 128, eviction_policy="evict_first")
    inside = gl.expand_dims(k + i * WK < BLOCKS, 1)
    return gl.load(w + i * WK * 128, mask=inside, other=0, eviction_policy="evict_first")


@gluon.jit
def _group(x, first, M, k, e, BLOCKS: gl.constexpr, TILED: gl.constexpr):
    """Return the address where each warp starts to read eight tokens.

    Behind the last tokens TILED ones are read again: their results are not stored.
    """
    if TILED:
        near = gl.minimum(first // 8, (M - 1) // 8)
        return x + near.to(gl.int64) * (BLOCKS * 256) + k * 256 + e
    return x + (first + e // 16).to(gl.int64) * (BLOCKS * 32) + k * 32 + e % 16


@gluon.jit
def _tokens(
    group, half: gl.constexpr, k, inside, i: gl.constexpr, WK: gl.constexpr, BLOCKS: gl.constexpr, TILED: gl.constexpr
):
    """Load half of block i of each warp: 64 columns of eight tokens."""
    cells = group + (i * WK * 256 + half * 128 if TILED else i * WK * 32 + half * 16)
    if TILED and (i + 1) * WK <= BLOCKS:
        return gl.load(cells)
    in_row = k + i * WK < BLOCKS
    return gl.load(cells, mask=in_row if TILED else inside & in_row, other=0)


@gluon.jit
def _of_tokens(x, m, M, none):
    """Load one number of each token; `none` behind the last."""
    return gl.expand_dims(gl.load(x + m, mask=m < M, other=none), 0)


@gluon.jit
def _token(first, e):
    """Return the token of element e of a tile: that of lane e // 4, register e % 4."""
    return first + 2 * (e // 4 % 4) + e % 2


@gluon.jit
def _store(r, m, tile, e, total, of_token, scale, bias, out, M, N, ROWS: gl.constexpr, BIAS: gl.constexpr):
    """Store r [tiles, 128] of tokens m, less their totals, scaled; an out of int32 takes the integers.

    BIAS: 0 none, 1 one for each row, 2 for each result.
    """
    n = gl.expand_dims(tile * 16, 1) + gl.expand_dims(e // 16 + 8 * (e % 4 // 2), 0)
    inside = gl.expand_dims(m < M, 0) & (n < N)
    to = gl.expand_dims(m.to(gl.int64), 0) * N + n
    r = r - total
    if out.dtype.element_ty == gl.int32:
        y = r
    else:
        if ROWS:
            by = of_token * gl.load(scale + n, mask=inside, other=0.0)
        else:
            by = of_token * scale
        y = r.to(gl.float32) * by
        if BIAS == 1:
            y = y + gl.load(bias + n, mask=inside, other=0.0).to(gl.float32)
        elif BIAS == 2:
            y = y + gl.load(bias + to, mask=inside, other=0.0).to(gl.float32)
    gl.store(out + to, y.to(out.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["M"])
def fragments(
    w, x, total, token_scale, scale, bias, out, M, N, TILES, BLOCKS: gl.constexpr, NT: gl.constexpr, WK: gl.constexpr,
    WN: gl.constexpr, TG: gl.constexpr, AHEAD: gl.constexpr, TILED: gl.constexpr, ROWS: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    """Multiply NT WN tiles of 16 rows with TG groups of 8 tokens a CTA; WK warps share the BLOCKS of 128 columns.

    AHEAD blocks of weights are in flight at a time. x [M, 32 BLOCKS] as words, row by row, or TILED: eight rows side by
    side in pieces of 16 words, so that the lanes of a warp read adjacent words.
    """
    L: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [WK, WN, 1], [2, 1, 0])
    LX: gl.constexpr = gl.SliceLayout(1, L)
    WIDE: gl.constexpr = NT * WN
    COUNT: gl.constexpr = (BLOCKS + WK - 1) // WK
    may_start()
    first = gl.program_id(1) * (8 * TG)
    k = gl.expand_dims(gl.arange(0, WK, layout=gl.SliceLayout(1, LX)), 1)
    e = gl.expand_dims(gl.arange(0, 128, layout=gl.SliceLayout(0, LX)), 0)
    tile = gl.program_id(0) * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    near = gl.minimum(tile, TILES - 1).to(gl.int64)
    from_w = w + gl.expand_dims(gl.expand_dims(near, 0), 2) * (BLOCKS * 128) + gl.expand_dims(k * 128 + e, 1)
    token = first + e // 16
    groups = ()
    for t in gl.static_range(TG):
        groups = groups + (_group(x, first + 8 * t, M, k, e, BLOCKS, TILED),)
    zero = gl.zeros((WK, WIDE, 128), gl.int32, L)
    acc = ()
    for _ in gl.static_range(4 * TG):
        acc = acc + (zero,)
    ws = ()
    for i in gl.static_range(min(AHEAD, COUNT)):
        ws = ws + (_words(from_w, k, i, WK, BLOCKS),)
    wait_for_inputs()
    to = gl.arange(0, 128, layout=gl.SliceLayout(0, gl.SliceLayout(0, L)))
    totals = ()
    of_tokens = ()
    for t in gl.static_range(TG):  # loaded now: at the end they would stall
        m = _token(first + 8 * t, to)
        totals = totals + (_of_tokens(total, m, M, 0),)
        if out.dtype.element_ty == gl.int32:
            of_tokens = of_tokens + (0.0,)
        else:
            of_tokens = of_tokens + (_of_tokens(token_scale, m, M, 0.0),)
    if not ROWS and out.dtype.element_ty != gl.int32:
        scale = gl.load(scale)
    for i in gl.static_range(COUNT):
        if i + AHEAD < COUNT:
            ws = ws + (_words(from_w, k, i + AHEAD, WK, BLOCKS),)
        sums = ()
        for t in gl.static_range(TG):
            inside = token + 8 * t < M
            b0 = gl.expand_dims(_tokens(groups[t], 0, k, inside, i, WK, BLOCKS, TILED), 1)
            b1 = gl.expand_dims(_tokens(groups[t], 1, k, inside, i, WK, BLOCKS, TILED), 1)
            sums = sums + _multiply(ws[i], b0, b1, acc[4 * t], acc[4 * t + 1], acc[4 * t + 2], acc[4 * t + 3])
        acc = sums
    for t in gl.static_range(TG):
        r = acc[4 * t] + (acc[4 * t + 1] >> 2) + (acc[4 * t + 2] >> 4) + (acc[4 * t + 3] >> 6)
        r = gl.sum(r, 0)
        rows = gl.program_id(0) * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(1, r.type.layout))
        m = _token(first + 8 * t, to)
        _store(r, m, rows, to, totals[t], of_tokens[t], scale, bias, out, M, N, ROWS, BIAS)


# ---- weights with a scale for each group of columns

# A nibble is the code of a weight of one field and of one of the next: a permutation of bytes selects both by it, each
# from a table of eight. There are nine such pairs: that of two zeros has the code of two ones with the highest bit, which
# takes the sign alone.
TABLES = gl.constexpr((0x00FFFFFF, -0x00FEFF01))  # the first four of each table; the others are immediate
# Bit 31 of the lanes below this one is never set.
OPAQUE = gl.constexpr("{ .reg .b32 t; mov.u32 t, %lanemask_lt; shr.u32 t, t, 31; xor.b32 $0, $1, t; }")
# Sums begin with the bits of 1.5 * 2**23, which plus an integer below 2**22 are that float plus the integer: conversions
# have an eighth of the rate of additions.
PLUS_FUSED = gl.constexpr("{ .reg .b32 t; fma.rn.f32 t, $2, $3, $4; add.rn.f32 $0, $1, t; }")
PLUS_TERM = gl.constexpr("{ .reg .b32 t; sub.rn.f32 t, $2, 0f4b400000; mul.rn.f32 t, t, $3; add.rn.f32 $0, $1, t; }")
MAGIC = gl.constexpr(12582912.0)
HALVES_OF = (
    "{ .reg .b16 h<4>; mov.b64 {h0, h1, h2, h3}, $1; cvt.f32.f16 $0, h%d; }",
    "{ .reg .b16 h<2>; mov.b32 {h0, h1}, $1; cvt.f32.f16 $0, h%d; }",
)
HALF_OF_FOUR = gl.constexpr(tuple(HALVES_OF[0] % p for p in range(4)))
HALF_OF_TWO = gl.constexpr(tuple(HALVES_OF[1] % p for p in range(2)))
PLUS_FUSED_BY = gl.constexpr("{ .reg .b32 t; fma.rn.f32 t, $2, $3, $4; mul.rn.f32 t, t, $5; add.rn.f32 $0, $1, t; }")
PLUS_TERM_BY = gl.constexpr(
    "{ .reg .b32 t; sub.rn.f32 t, $2, 0f4b400000; mul.rn.f32 t, t, $3; mul.rn.f32 t, t, $4; add.rn.f32 $0, $1, t; }"
)
DECODED = gl.constexpr("""{
    .reg .b32 t;
    prmt.b32 $0, $5, 0x01010100, $4;
    prmt.b32 $1, $6, 0x0100ff01, $4;
    shr.u32 t, $4, 16;
    prmt.b32 $2, $5, 0x01010100, t;
    prmt.b32 $3, $6, 0x0100ff01, t;
}""")


def _sums_of(fields: int) -> str:
    """Return PTX of the sums of 128 columns, or of each half of them, that begin with the bits of 1.5 * 2**23."""
    lines = ["{ .reg .b32 m; mov.b32 m, 0x4b400000;"]
    first = 16 // fields
    for p in range(4):
        to = 4 * (p // fields)
        sums = ",".join(f"${to + r}" for r in range(4))
        left = ",".join(f"${first + 4 * p + r}" for r in range(4))
        lines.append(
            f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {{{sums}}}, {{{left}}}, "
            f"{{${first + 16 + 2 * p},${first + 17 + 2 * p}}}, {{{sums if p % fields else 'm,m,m,m'}}};"
        )
    return "\n".join([*lines, "}"])


SUMS, HALF_SUMS = gl.constexpr(_sums_of(4)), gl.constexpr(_sums_of(2))
OF_SUMS, OF_HALVES = (gl.constexpr(",".join(["=&r"] * count + ["r"] * 24)) for count in (4, 8))


@gluon.constexpr_function
def _of_load(kind):
    """Return how many scales are loaded at once as an element of this kind."""
    return 4 if kind == gl.int64 else 2 if kind == gl.int32 else 1


@gluon.jit
def _scale_of(by, p: gl.constexpr):
    """Return scale p of those that were loaded, as f32."""
    EACH: gl.constexpr = _of_load(by[0].dtype)
    if EACH == 1:
        return by[p].to(gl.float32)
    return gl.inline_asm_elementwise(
        HALF_OF_FOUR[p % 4] if EACH == 4 else HALF_OF_TWO[p % 2], "=r,l" if EACH == 4 else "=r,r", [by[p // EACH]],
        dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _plus_term(block, acc, by, HALF: gl.constexpr):
    """Return block plus acc, sums plus the bits of MAGIC, times by, one rounding each. HALF: by are numbers of f16.

    As assembly that is not pure, it stays where it is: later, sums of all groups of a block would take registers at
    once. A number of f16 times 1.5 * 2**23 is exact, so that one multiply-add subtracts it and rounds the product once.
    """
    _, scales = gl.broadcast(acc, by)
    if HALF:
        _, less = gl.broadcast(acc, by * -MAGIC)
        return gl.inline_asm_elementwise(
            PLUS_FUSED, "=r,r,r,r,r", [block, acc, scales, less], dtype=gl.float32, is_pure=False, pack=1
        )
    return gl.inline_asm_elementwise(
        PLUS_TERM, "=r,r,r,r", [block, acc, scales], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def _register(like, value: gl.constexpr):
    """Return a value in a register that differs between lanes by all that the assembler knows.

    It would copy a constant, or a register that is the same for all lanes, once for each use.
    """
    constant = gl.full(like.shape, value, gl.int32, like.type.layout)
    return gl.inline_asm_elementwise(OPAQUE, "=r,r", [constant], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _weights(w, tables):
    """Return the weights of the four fields of words, four bytes each."""
    return gl.inline_asm_elementwise(
        DECODED, "=&r,=&r,=&r,=&r,r,r,r", [w, tables[0], tables[1]],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _sums(a, b0, b1, HALVES: gl.constexpr):
    """Return the sums of 128 columns, or those of their halves."""
    operands = a + (b0, b1)
    if HALVES == 2:
        result = gl.inline_asm_elementwise(
            HALF_SUMS, OF_HALVES, operands, dtype=(gl.int32, gl.int32), is_pure=True, pack=4
        )
    else:
        result = (gl.inline_asm_elementwise(SUMS, OF_SUMS, operands, dtype=gl.int32, is_pure=True, pack=4),)
    return result


@gluon.jit
def _rows_of(first, Q: gl.constexpr, WK: gl.constexpr, WIDE: gl.constexpr):
    """Return the warp and the row of each scale that a lane needs, [WK, WIDE, 8, 2]: those of registers 0 and 2."""
    Y: gl.constexpr = gl.SliceLayout(3, Q)
    X: gl.constexpr = gl.SliceLayout(2, Y)
    k = gl.expand_dims(gl.arange(0, WK, layout=gl.SliceLayout(1, X)), 1)
    tile = first + gl.expand_dims(gl.arange(0, WIDE, layout=gl.SliceLayout(0, X)), 0)
    lane = gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, Y))), 0)
    half = gl.expand_dims(gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, Q)))), 0)
    row = gl.expand_dims(tile * 16, 2) + gl.expand_dims(lane, 1)
    row = gl.expand_dims(row, 3) + 8 * gl.expand_dims(gl.expand_dims(half, 1), 2)
    return gl.expand_dims(gl.expand_dims(k, 2), 3), row


@gluon.jit
def _scales(of_scale, k, r: gl.constexpr, GROUPS, WK: gl.constexpr, GROUP: gl.constexpr):
    """Load the scales of rows for the groups of block r of each warp.

    They are 0 behind the last group: what is multiplied there adds nothing.
    """
    EACH: gl.constexpr = _of_load(of_scale.dtype.element_ty)
    COUNT: gl.constexpr = 1024 // GROUP // EACH
    result = ()
    for p in gl.static_range(COUNT):
        index = (k + r * WK) * COUNT + p
        loaded = gl.load(of_scale + index, mask=index < GROUPS // EACH, other=0)
        result += (gl.expand_dims(gl.expand_dims(loaded, 3), 5),)
    return result


@gluon.jit
def _ahead(cells, c, i: gl.constexpr, SIZE: gl.constexpr, FAR: gl.constexpr, BLOCKS: gl.constexpr):
    """Return where piece i of those from c on is, SIZE words each; behind the last of a row, where that is.

    Loads without masks are issued long before their use. FAR: how far behind the first warp's piece that of the last
    is.
    """
    if i + FAR < BLOCKS:
        result = cells + i * SIZE
    else:
        result = cells + gl.minimum(i, BLOCKS - 1 - c) * SIZE
    return result


@gluon.jit
def _piece(cells, c, i: gl.constexpr, FAR: gl.constexpr, BLOCKS: gl.constexpr):
    """Load piece i of the weights of rows."""
    return gl.load(_ahead(cells, c, i, 128, FAR, BLOCKS), eviction_policy="evict_first")


@gluon.jit
def _eight(x, first, M, c, e, BLOCKS: gl.constexpr, TILED: gl.constexpr):
    """Return the address where each warp starts to read eight tokens.

    Behind the last token it is that of the last again; its results are not stored.
    """
    if TILED:
        near = gl.minimum(first // 8, (M - 1) // 8)
        return x + near.to(gl.int64) * (BLOCKS * 256) + c * 256 + e
    return x + gl.minimum(first + e // 16, M - 1).to(gl.int64) * (BLOCKS * 32) + c * 32 + e % 16


@gluon.jit
def _of_piece(cells, c, i: gl.constexpr, FAR: gl.constexpr, BLOCKS: gl.constexpr, TILED: gl.constexpr):
    """Load both halves of piece i of eight tokens."""
    b0 = _ahead(cells, c, i, 256 if TILED else 32, FAR, BLOCKS)
    return gl.load(b0), gl.load(b0 + (128 if TILED else 16))


@gluon.jit
def _by_token(token_scale, first, M, SCALES, P: gl.constexpr, WK: gl.constexpr):
    """Return the address of the first scale of each token that a lane has sums of, [WK, 4, 2], and the warp."""
    Q: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(4, P)))
    k = gl.expand_dims(gl.arange(0, WK, layout=gl.SliceLayout(1, gl.SliceLayout(2, Q))), 1)
    lane = gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, Q))), 0)
    odd = gl.expand_dims(gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, Q))), 0)
    token = first + 2 * gl.expand_dims(lane, 2) + gl.expand_dims(odd, 1)
    return token_scale + gl.minimum(token, M - 1) * SCALES, gl.expand_dims(k, 2)


@gluon.jit
def _token_scale(cells, k, g: gl.constexpr, SCALES, GROUP: gl.constexpr):
    """Load the scale of each token for group g of those of the first warp's block; behind the last any."""
    one = gl.load(cells + gl.minimum(k * (1024 // GROUP) + g, SCALES - 1))
    return gl.expand_dims(gl.expand_dims(gl.expand_dims(one, 1), 2), 4)


@gluon.jit
def _plus(block, sums, by, of_token, HALF: gl.constexpr):
    """Return block plus sums times by times the scales of tokens, one rounding each."""
    _, scales = gl.broadcast(sums, by)
    _, last = gl.broadcast(sums, of_token)
    if HALF:
        _, less = gl.broadcast(sums, by * -MAGIC)
        return gl.inline_asm_elementwise(
            PLUS_FUSED_BY, "=r,r,r,r,r,r", [block, sums, scales, less, last], dtype=gl.float32, is_pure=False, pack=1
        )
    return gl.inline_asm_elementwise(
        PLUS_TERM_BY, "=r,r,r,r,r", [block, sums, scales, last], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def _block(ws, from_w, groups, c, tables, by, of_tokens, SCALES, r: gl.constexpr, ROUNDS: gl.constexpr, BLOCKS: gl.constexpr,
           P: gl.constexpr, WK: gl.constexpr, TILED: gl.constexpr, GROUP: gl.constexpr, BY: gl.constexpr):  # fmt: skip
    """Return the sums of block r of each warp for each eight tokens, and the weights of its next block if there is one."""
    HALVES: gl.constexpr = 128 // GROUP
    FAR: gl.constexpr = (WK - 1) * 8
    WIDE: gl.constexpr = ws[0].shape[1]
    block = ()
    for _ in gl.static_range(len(groups)):
        block = block + (gl.zeros([WK, WIDE, 8, 4, 2, 2], gl.float32, P),)
    following = ()
    for i in gl.static_range(8):
        a = _weights(ws[i], tables)
        if r + 1 < ROUNDS:
            following = following + (_piece(from_w, c, (r + 1) * WK * 8 + i, FAR, BLOCKS),)
        late = ()
        for t in gl.static_range(len(groups)):
            b0, b1 = _of_piece(groups[t], c, r * WK * 8 + i, FAR, BLOCKS, TILED)
            sums = _sums(a, b0, b1, HALVES)
            total = block[t]
            for h in gl.static_range(HALVES):
                six = gl.convert_layout(gl.reshape(sums[h], total.shape), P, assert_trivial=True)
                of_rows = _scale_of(by, i * HALVES + h)
                if BY:
                    cells, k = of_tokens[t]
                    of_token = _token_scale(cells, k, (r * WK * 8 + i) * HALVES + h, SCALES, GROUP)
                    total = _plus(total, six, of_rows, of_token, by[0].dtype != gl.float32)
                else:
                    total = _plus_term(total, six, of_rows, by[0].dtype != gl.float32)
            late = late + (total,)
        block = late
    return block, following


@gluon.jit
def _in_order(
    parts,
    t: gl.constexpr,
    COUNT: gl.constexpr,
    WK: gl.constexpr,
    WIDE: gl.constexpr,
    ROUNDS: gl.constexpr,
    L: gl.constexpr,
):
    """Return the sums of blocks that warps left in shared memory, added in order."""
    y = parts.index(t * ROUNDS).slice(0, WIDE).load(L)
    for b in gl.static_range(1, COUNT):
        y = y + parts.index(t * ROUNDS + b // WK).slice(b % WK * WIDE, WIDE).load(L)
    return y


@gluon.jit
def _finish(parts, first, token_scale, bias, out, M, N, BLOCKS: gl.constexpr, WK: gl.constexpr, WIDE: gl.constexpr, ROUNDS: gl.constexpr,
            TG: gl.constexpr, BIAS: gl.constexpr, BY: gl.constexpr):  # fmt: skip
    """Add the sums of blocks in order, scale them by those of tokens if these have one, add the bias and store them."""
    WARPS: gl.constexpr = gl.num_warps()
    L: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [max(WARPS // 4, 1), min(WARPS, 4)], [1, 0])
    row = gl.program_id(0) * (16 * WIDE) + 16 * gl.arange(0, WIDE, layout=gl.SliceLayout(1, L))
    to = gl.arange(0, 128, layout=gl.SliceLayout(0, L))
    n = gl.expand_dims(row, 1) + gl.expand_dims(to // 16 + 8 * (to % 4 // 2), 0)
    for t in gl.static_range(TG):
        y = _in_order(parts, t, (BLOCKS + 7) // 8, WK, WIDE, ROUNDS, L)
        m = gl.expand_dims(_token(first + 8 * t, to), 0)
        inside = (m < M) & (n < N)
        place = m.to(gl.int64) * N + n
        if not BY:
            y = y * gl.load(token_scale + m, mask=m < M, other=0.0)
        if BIAS > 0:
            y = y + gl.load(bias + (n if BIAS == 1 else place), mask=inside, other=0.0).to(gl.float32)
        gl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["M"])
def group_fragments(
    w, x, token_scale, scale, bias, out, M, N, TILES, GROUPS, SCALES, BLOCKS: gl.constexpr, NT: gl.constexpr, WK: gl.constexpr,
    WN: gl.constexpr, TG: gl.constexpr, TILED: gl.constexpr, GROUP: gl.constexpr, BIAS: gl.constexpr, BY: gl.constexpr,
):  # fmt: skip
    """Multiply as `fragments` does with weights that have a scale for each GROUP of columns: words are in pairs.

    A warp takes whole blocks of 1,024 columns; their sums meet in shared memory. BY: tokens have SCALES by group too.
    """
    L: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [WK, WN, 1], [2, 1, 0])
    LX: gl.constexpr = gl.SliceLayout(1, L)
    P: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 2, 2], [1, 1, 8, 4, 1, 1], [WK, WN, 1, 1, 1, 1], [5, 4, 3, 2, 1, 0])
    WIDE: gl.constexpr = NT * WN
    ROUNDS: gl.constexpr = (BLOCKS + 8 * WK - 1) // (8 * WK)
    may_start()
    first = gl.program_id(1) * (8 * TG)
    k = gl.expand_dims(gl.arange(0, WK, layout=gl.SliceLayout(1, LX)), 1)
    e = gl.expand_dims(gl.arange(0, 128, layout=gl.SliceLayout(0, LX)), 0)
    tile = gl.program_id(0) * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    near = gl.minimum(tile, TILES - 1).to(gl.int64)
    from_w = w + gl.expand_dims(gl.expand_dims(near, 0), 2) * (BLOCKS * 128) + gl.expand_dims(k * 1024 + e, 1)
    c = gl.expand_dims(k * 8, 1)
    ws = ()
    for i in gl.static_range(8):
        ws = ws + (_piece(from_w, c, i, (WK - 1) * 8, BLOCKS),)
    groups = ()
    of_tokens = ()
    for t in gl.static_range(TG):
        groups = groups + (gl.expand_dims(_eight(x, first + 8 * t, M, k * 8, e, BLOCKS, TILED), 1),)
        of_tokens = of_tokens + (_by_token(token_scale, first + 8 * t, M, SCALES, P, WK),)
    tables = _register(ws[0], TABLES[0]), _register(ws[0], TABLES[1])
    warp, row = _rows_of(gl.program_id(0) * WIDE, gl.SliceLayout(3, gl.SliceLayout(5, P)), WK, WIDE)
    of_scale = scale + gl.minimum(row, N - 1) * (GROUPS // _of_load(scale.dtype.element_ty))
    parts = gl.allocate_shared_memory(
        gl.float32, [TG * ROUNDS, WK * WIDE, 128], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    wait_for_inputs()
    for r in gl.static_range(ROUNDS):
        by = _scales(of_scale, warp, r, GROUPS, WK, GROUP)
        block, ws = _block(
            ws, from_w, groups, c, tables, by, of_tokens, SCALES, r, ROUNDS, BLOCKS, P, WK, TILED, GROUP, BY
        )
        for t in gl.static_range(TG):
            flat = gl.convert_layout(gl.reshape(block[t], [WK, WIDE, 128]), L, assert_trivial=True)
            parts.index(t * ROUNDS + r).store(gl.reshape(flat, [WK * WIDE, 128]))
    barrier()
    _finish(parts, first, token_scale, bias, out, M, N, BLOCKS, WK, WIDE, ROUNDS, TG, BIAS, BY)


fix_cache_keys(globals())
