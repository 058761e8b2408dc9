"""The passes of a training step around its products, in plain Triton: latent weights to codes and back, int8 tokens back to floats, gradients
to int8.

Codes are those of `cuda.linear.plain`: w + 1 in four planes, byte j of a row holds those of columns j, j + KB, j + 2 KB and j + 3 KB.
Every float step is one rounding: kernels are built without fused multiply-add.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritium.backends.cuda.functions import nearest
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.plain import fence
from tritium.backends.cuda.order import begin

INFINITE = tl.constexpr(
    0x7F800000
)  # the bits of infinity: those of every NaN are larger, those of every number smaller
MOST = tl.constexpr(0x7FFFFFFF)  # all bits but the sign
SMALLEST = tl.constexpr(1e-5)  # of a mean magnitude: formulas.TINY
TINIEST = tl.constexpr(1e-30)  # of the largest gradient: formulas.TINIEST


# ---- weights


@triton.jit
def _eights(v, NARROW: tl.constexpr):
    """Return the sums of eight magnitudes each, in f64. NARROW: of bf16, eight of which f32 holds but for far smaller ones."""
    eights = tl.reshape(tl.abs(v), (v.shape[0] // 8, 8))
    if NARROW:
        return tl.sum(eights, 1).to(tl.float64)
    return tl.sum(eights.to(tl.float64), 1)


@triton.jit
def _at_least(mean):
    """Return a mean in f32, at least SMALLEST; NaN stays."""
    narrow = mean.to(tl.float32)
    return tl.where(narrow < SMALLEST, SMALLEST, narrow)


@triton.jit
def _code(v, inverse):
    """Return w + 1 of latent weights as int32: rint and clip are two comparisons, since a half goes to 0."""
    v = v.to(tl.float32) * inverse
    return 1 + (v > 0.5).to(tl.int32) - (v < -0.5).to(tl.int32)


@triton.jit(do_not_specialize=["elements"])
def magnitudes(
    w, partial, count, g, total, elements,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr, ASM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute g, the mean of |w| over its elements, of which there are `total`; CTAs take blocks in turns.

    The last CTA to arrive, by `count`, adds up what all have left in `partial`, in order, and leaves the count zero.
    """
    begin(EARLY)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    o = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK // 8,), tl.float64)
    for start in range(first, total, tl.num_programs(0) * BLOCK):
        acc += _eights(tl.load(w + start + o, mask=start + o < total, other=0.0).to(tl.float32), NARROW)
    tl.store(partial + tl.program_id(0), tl.sum(acc, 0), cache_modifier=".cg")
    fence(ASM)
    tl.debug_barrier()
    if tl.atomic_add(count, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        fence(ASM)
        parts = tl.arange(0, PARTS)
        each = tl.load(partial + parts, mask=parts < tl.num_programs(0), other=0.0, cache_modifier=".cg")
        tl.store(g, _at_least(tl.sum(each, 0) / elements.to(tl.float64)))
        tl.store(count, 0)


@triton.jit
def tensor_codes(w, g, codes, N, K: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Compute codes [N, KB] of w [N, K] with one scale g. The last come first: they are what the pass before has left in L2."""
    f = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    row = (f // KB).to(tl.int64)
    byte = f % KB
    begin(EARLY)
    inverse = tl.div_rn(1.0, tl.load(g))
    joined = tl.zeros((BLOCK,), tl.int32)
    for s in tl.static_range(4):
        inside = f < N * KB
        if K < 4 * KB:
            inside = inside & (s * KB + byte < K)
        v = tl.load(w + row * K + s * KB + byte, mask=inside, other=0.0)
        joined |= _code(v, inverse) << (2 * s)
    tl.store(codes + f, joined.to(tl.uint8), mask=f < N * KB)


@triton.jit
def _plane(w, byte, S: tl.constexpr, K: tl.constexpr, KB: tl.constexpr):
    """Load the weights of plane S of some bytes of a row."""
    column = S * KB + byte
    return tl.load(w + column, mask=(byte < KB) & (column < K), other=0.0).to(tl.float32)


@triton.jit
def row_codes(
    w, g, codes, K: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr, PASSES: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Compute g [N] and codes [N, KB] of w [N, K], with a scale for each row. A CTA takes a row; one of several passes is read twice."""
    row = tl.program_id(0).to(tl.int64)
    w += row * K
    o = tl.arange(0, BLOCK)
    begin(EARLY)
    acc = tl.zeros((BLOCK // 8,), tl.float64)
    for i in tl.static_range(PASSES):
        v0 = _plane(w, i * BLOCK + o, 0, K, KB)
        v1 = _plane(w, i * BLOCK + o, 1, K, KB)
        v2 = _plane(w, i * BLOCK + o, 2, K, KB)
        v3 = _plane(w, i * BLOCK + o, 3, K, KB)
        acc += (_eights(v0, False) + _eights(v1, False)) + (_eights(v2, False) + _eights(v3, False))
    scale = _at_least(tl.sum(acc, 0) / K)
    tl.store(g + row, scale)
    inverse = tl.div_rn(1.0, scale)
    for i in tl.static_range(PASSES):
        byte = i * BLOCK + o
        if PASSES > 1:
            v0 = _plane(w, byte, 0, K, KB)
            v1 = _plane(w, byte, 1, K, KB)
            v2 = _plane(w, byte, 2, K, KB)
            v3 = _plane(w, byte, 3, K, KB)
        joined = _code(v0, inverse) | _code(v1, inverse) << 2 | _code(v2, inverse) << 4 | _code(v3, inverse) << 6
        tl.store(codes + row * KB + byte, joined.to(tl.uint8), mask=byte < KB)


@triton.jit
def dense(
    codes, g, out, N, K: tl.constexpr, KB: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Compute out [N, K] of codes [N, KB]: ternary values times their scales, rounded once."""
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = (f // KB).to(tl.int64)
    byte = f % KB
    inside = f < N * KB
    begin(EARLY)
    joined = tl.load(codes + f, mask=inside, other=0).to(tl.int32)
    if ROWS:
        by = tl.load(g + row, mask=inside, other=0.0)
    else:
        by = tl.load(g)
    for s in tl.static_range(4):
        stored = inside
        if K < 4 * KB:
            stored = stored & (s * KB + byte < K)
        t = ((joined >> (2 * s)) & 3) - 1
        tl.store(out + row * K + s * KB + byte, (t.to(tl.float32) * by).to(out.dtype.element_ty), mask=stored)


@triton.jit
def _four(codes, j, byte, N, KB: tl.constexpr, NB: tl.constexpr, S: tl.constexpr):
    """Load bytes of four codes, of rows in quarter S."""
    row = S * NB + j
    inside = (j < NB) & (row < N) & (byte < KB)
    return tl.load(codes + row.to(tl.int64) * KB + byte, mask=inside, other=0).to(tl.int32)


@triton.jit
def turned_codes(
    codes, out, N,
    K: tl.constexpr, KB: tl.constexpr, NB: tl.constexpr, ROWS: tl.constexpr, BYTES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute out [K, NB], the codes of the transposed weights, of codes [N, KB]."""
    j = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    byte = tl.program_id(1) * BYTES + tl.arange(0, BYTES)[None, :]
    begin(EARLY)
    c0 = _four(codes, j, byte, N, KB, NB, 0)
    c1 = _four(codes, j, byte, N, KB, NB, 1)
    c2 = _four(codes, j, byte, N, KB, NB, 2)
    c3 = _four(codes, j, byte, N, KB, NB, 3)
    for p in tl.static_range(4):
        low = ((c0 >> (2 * p)) & 3) | ((c1 >> (2 * p)) & 3) << 2
        joined = low | ((c2 >> (2 * p)) & 3) << 4 | ((c3 >> (2 * p)) & 3) << 6
        column = p * KB + byte
        stored = (j < NB) & (byte < KB) & (column < K)
        places = out + tl.trans(column.to(tl.int64) * NB + j)
        tl.store(places, tl.trans(joined.to(tl.uint8)), mask=tl.trans(stored))


# ---- tokens


@triton.jit
def token_floats(q, scale, out, M, K: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Compute out [M, K] of q [M, KP] and scale [M]: int8 times the scale of its token, rounded once."""
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = (f // KP).to(tl.int64)
    column = f % KP
    inside = f < M * KP
    begin(EARLY)
    v = tl.load(q + f, mask=inside, other=0).to(tl.float32) * tl.load(scale + row, mask=inside, other=0.0)
    tl.store(out + row * K + column, v.to(out.dtype.element_ty), mask=inside & (column < K))


@triton.jit(do_not_specialize=["M"])
def turned_bytes(q, out, M, MP, K, KP, BM: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr):
    """Compute out [K, MP], the transpose of q [M, KP] of int8; columns from M to MP become 0."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    inside = (m < M)[:, None] & (k < K)[None, :]
    begin(EARLY)
    v = tl.load(q + m[:, None].to(tl.int64) * KP + k[None, :], mask=inside, other=0)
    stored = (k < K)[:, None] & (m < MP)[None, :]
    tl.store(out + k[:, None].to(tl.int64) * MP + m[None, :], tl.trans(v), mask=stored)


# ---- gradients


@triton.jit
def _gradients(dy, rm, rn, M, N):
    """Load a tile of gradients as f32, zeros outside."""
    inside = (rm < M)[:, None] & (rn < N)[None, :]
    return tl.load(dy + rm[:, None].to(tl.int64) * N + rn[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _by_rows(v, g, rn, N, BY_ROW: tl.constexpr):
    """Return gradients times the scales of the rows of weights, where they have their own."""
    if BY_ROW:
        v = v * tl.load(g + rn, mask=rn < N, other=0.0)[None, :]
    return v


@triton.jit
def _bits(v):
    return v.to(tl.int32, bitcast=True) & MOST


@triton.jit(do_not_specialize=["M"])
def gradient_peaks(
    dy, token_scale, g, rows, columns, M, N,
    BY_ROW: tl.constexpr, FOR_X: tl.constexpr, FOR_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Raise rows [M] and columns [N], the bits of the largest magnitudes: of dy (times g, BY_ROW) and of dy times the scales of tokens."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    begin(EARLY)
    v = _gradients(dy, rm, rn, M, N)
    if FOR_X:
        u = _by_rows(v, g, rn, N, BY_ROW)
        tl.atomic_max(rows + rm, tl.max(_bits(u), 1), mask=rm < M, sem="relaxed")
    if FOR_W:
        u = v * tl.load(token_scale + rm, mask=rm < M, other=0.0)[:, None]
        tl.atomic_max(columns + rn, tl.max(_bits(u), 0), mask=rn < N, sem="relaxed")


@triton.jit
def _steps(bits):
    """Return the steps of int8 and their size for the bits of the largest magnitude: 0 and NaN where that is no number."""
    whole = bits < INFINITE
    largest = tl.maximum(tl.where(whole, bits, 0).to(tl.float32, bitcast=True), TINIEST)
    return tl.where(whole, tl.div_rn(127.0, largest), 0.0), tl.where(whole, tl.div_rn(largest, 127.0), float("nan"))


@triton.jit
def _rounded(v, steps):
    """Return int32 of gradients in steps; those of a row that holds no number, which has no steps, are 0."""
    return nearest(tl.where(steps == 0.0, 0.0, v) * steps)


@triton.jit(do_not_specialize=["M"])
def gradient_bytes(
    dy, token_scale, g, rows, columns, q, scale, total, turned, turned_scale, M, N, NP, MP,
    BY_ROW: tl.constexpr, FOR_X: tl.constexpr, FOR_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute gradients in int8 by the largest magnitudes of `gradient_peaks`.

    FOR_X: q [M, NP], scale [M], and total [M] raised by the sums of q. FOR_W: turned [N, MP], of dy times the scales of tokens, and
    turned_scale [N]. Columns from N to NP and from M to MP become 0.
    """
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    begin(EARLY)
    v = _gradients(dy, rm, rn, M, N)
    if FOR_X:
        u = _by_rows(v, g, rn, N, BY_ROW)
        steps, size = _steps(tl.load(rows + rm, mask=rm < M, other=0))
        near = _rounded(u, steps[:, None])
        tl.atomic_add(total + rm, tl.sum(near, 1), mask=rm < M, sem="relaxed")
        tl.store(
            q + rm[:, None].to(tl.int64) * NP + rn[None, :],
            near.to(tl.int8),
            mask=(rm < M)[:, None] & (rn < NP)[None, :],
        )
        tl.store(scale + rm, size, mask=(rm < M) & (tl.program_id(1) == 0))
    if FOR_W:
        u = v * tl.load(token_scale + rm, mask=rm < M, other=0.0)[:, None]
        steps, size = _steps(tl.load(columns + rn, mask=rn < N, other=0))
        near = _rounded(u, steps[None, :])
        places = turned + rn[:, None].to(tl.int64) * MP + rm[None, :]
        tl.store(places, tl.trans(near.to(tl.int8)), mask=(rn < N)[:, None] & (rm < MP)[None, :])
        tl.store(turned_scale + rn, size, mask=(rn < N) & (tl.program_id(0) == 0))


fix_cache_keys(globals())
