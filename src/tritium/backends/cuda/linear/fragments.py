"""Products of a few tokens by tensor cores (mma.sync m16n8k32), in Gluon: weights are stored in the order in which
lanes need them.

Knows nothing of torch or of tile configs. Words w [N / 16][KP / 128][lane 32][4]: word r, byte b, field p of a lane
hold the code of row 16 t + lane // 4 + 8 (r % 2) and, with j = 2 p + r // 2, column 128 c + 64 (j // 4) + 16 (lane % 4)
+ 4 (j % 4) + b: so a lane reads its tokens in place, 16 bytes at a time, and nothing passes through shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.gemv import may_start, wait_for_inputs


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


fix_cache_keys(globals())
