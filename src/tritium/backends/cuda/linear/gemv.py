"""Products of one to eight tokens with all weights by dp4a, in Gluon: every thread streams 16 bytes of a row at a time.

Ternary codes are in four planes as in `cuda.linear.plain`; int8 weights row by row. Fields are masked in place, each
in an accumulator of its own, and shifted once at the end. One token may come as floats: every CTA then quantises it
for itself, step by step as `cuda.linear.quantise` does.
"""

from __future__ import annotations

from triton import next_power_of_2
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda.functions import ROUND
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.plain import MASKED
from tritium.backends.cuda.linear.quantise import INFINITE, MOST, SMALLEST

barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # its name from Triton 3.7 on

PACKED = gl.constexpr("""{
    .reg .b32 t0, t1;
    prmt.b32 t0, $1, $2, 0x0040;
    prmt.b32 t1, $3, $4, 0x0040;
    prmt.b32 $0, t0, t1, 0x5410;
}""")  # the integers nearest to four numbers, to which ROUND was added, as bytes: they are the lowest of each


def _two_sums() -> str:
    """Return PTX of the sums of 64 columns: those of the first two planes of four words, and those of the others; then zeros."""
    lines = ["{ .reg .b32 t, c<4>;"]
    for s, mask in enumerate(("0x03030303", "0x0c0c0c0c", "0x30303030", "0xc0c0c0c0")):
        for word in range(4):
            lines.append(f"and.b32 t, ${8 + word}, {mask};")
            lines.append(f"dp4a.u32.s32 c{s}, t, ${12 + 4 * s + word}, {f'c{s}' if word else 0};")
    lines += ["shr.s32 c1, c1, 2; add.s32 $0, c0, c1;", "shr.s32 c2, c2, 4; shr.s32 c3, c3, 6; add.s32 $4, c2, c3;"]
    return " ".join([*lines, *(f"mov.u32 ${i}, 0;" for i in (1, 2, 3, 5, 6, 7)), "}"])


def _two_totals() -> str:
    """Return PTX of the sums of the tokens of those columns."""
    lines = []
    for s in range(4):
        for word in range(4):
            to = 4 * (s // 2)
            before = f"${to}" if s % 2 or word else 0
            lines.append(f"dp4a.s32.s32 ${to}, ${8 + 4 * s + word}, 0x01010101, {before};")
    return " ".join([*lines, *(f"mov.u32 ${i}, 0;" for i in (1, 2, 3, 5, 6, 7))])


TWO_SUMS, TWO_TOTALS = gl.constexpr(_two_sums()), gl.constexpr(_two_totals())
OF_SUMS, OF_TOTALS = (gl.constexpr(",".join(["=&r"] * 8 + ["r"] * count)) for count in (20, 16))


@gluon.jit
def may_start():
    """Allow the next kernel of the stream to launch; it waits for this one where it needs its results."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait_for_inputs():
    """Wait until the kernels before have ended. Only weights, which no kernel writes, are read before."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def ask(x):
    """Prefetch what x points at. Nothing is read, so it may come before the wait."""
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [x.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _masked(w, a0, a1, a2, a3, c0, c1, c2, c3):
    return gl.inline_asm_elementwise(
        MASKED, "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r", [w, a0, a1, a2, a3, c0, c1, c2, c3],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _signed(w, a, c):
    return gl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [w, a, c], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _words(x, rk, i: gl.constexpr, KW: gl.constexpr, BK: gl.constexpr):
    """Load words i * BK on of a plane of tokens, as one row."""
    if (i + 1) * BK <= KW:
        return gl.expand_dims(gl.load(x + i * BK + rk), 0)
    return gl.expand_dims(gl.load(x + i * BK + rk, mask=rk + i * BK < KW, other=0), 0)


@gluon.jit
def _shared(words, rk, plane: gl.constexpr, i: gl.constexpr, WIDE: gl.constexpr, BK: gl.constexpr):
    return gl.expand_dims(words.slice(plane * WIDE + i * BK, BK).load(rk.type.layout), 0)


@gluon.jit
def _fours(v):
    """Split elements in four: the first, second, third and last of each word. Threads have whole words."""
    even, odd = gl.split(gl.reshape(v, [v.shape[0], 2, 2]))
    first, third = gl.split(even)
    second, last = gl.split(odd)
    return first, second, third, last


@gluon.jit
def _squares(v):
    """Return the sum of the squares of each word."""
    a, b, c, d = _fours(v.to(gl.float64))
    return (a * a + b * b) + (c * c + d * d)


@gluon.jit
def _sizes(v):
    """Return the bits of the largest magnitude of each word, which are ordered as the magnitudes are."""
    a, b, c, d = _fours(v.to(gl.int32, bitcast=True) & MOST)
    return gl.maximum(gl.maximum(a, b), gl.maximum(c, d))


@gluon.jit
def _line(dtype: gl.constexpr, size: gl.constexpr):
    return gl.allocate_shared_memory(dtype, [size], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _of_all(v, shared, LARGEST: gl.constexpr):
    """Return to every thread the largest or the sum of one value of each thread.

    Warps leave theirs in shared memory and each thread reads all: behind one barrier, where Triton's reduction has two,
    and every layer waits for them.
    """
    WARPS: gl.constexpr = gl.num_warps()
    EACH: gl.constexpr = gl.BlockedLayout([WARPS], [32], [WARPS], [0])
    v = gl.reshape(v, [WARPS, 32])
    shared.store(gl.max(v, 1) if LARGEST else gl.sum(v, 1))
    barrier()
    values = shared.load(EACH)
    return gl.max(values, 0) if LARGEST else gl.sum(values, 0)


@gluon.jit
def _one_after_another(parts):
    """Concatenate tensors of one size, padded to a power of two of them: one store has no barriers in between."""
    COUNT: gl.constexpr = next_power_of_2(len(parts))
    SIZE: gl.constexpr = parts[0].shape[0]
    for _ in gl.static_range(COUNT - len(parts)):
        parts = parts + (gl.zeros_like(parts[0]),)
    for _ in gl.static_range(COUNT.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts) // 2):
            halves = halves + (gl.join(parts[i], parts[i + len(parts) // 2]),)
        parts = halves
    return parts[0].reshape([SIZE, COUNT]).permute((1, 0)).reshape([SIZE * COUNT])


@gluon.jit
def _read(x, column, inside):
    return gl.load(x + column, mask=inside, other=0.0).to(gl.float32)


@gluon.jit
def _normed(v, by, shared, K: gl.constexpr, EPS: gl.constexpr, NORM: gl.constexpr):
    """Return the parts of a token divided by their root mean square, times `by` where NORM is 2."""
    squares = _squares(v[0])
    for i in gl.static_range(1, len(v)):
        squares += _squares(v[i])
    norm = gl.rsqrt(_of_all(squares, shared, False) * (gl.to_tensor(1.0).to(gl.float64) / K) + EPS).to(gl.float32)
    result = ()
    for i in gl.static_range(len(v)):
        result = result + ((v[i] * norm * by[i] if NORM == 2 else v[i] * norm),)
    return result


@gluon.jit
def _packed(v, steps, L: gl.constexpr):
    """Return the integers nearest to v times steps, the four of a row as one word."""
    a, b, c, d = _fours(v * steps + ROUND)
    words = gl.inline_asm_elementwise(PACKED, "=r,r,r,r,r", [a, b, c, d], dtype=gl.int32, is_pure=True, pack=1)
    return gl.convert_layout(words, gl.SliceLayout(1, L), assert_trivial=True)


@gluon.jit
def _quantised(x, gated, weight, K: gl.constexpr, KW: gl.constexpr, WIDE: gl.constexpr, PLANES: gl.constexpr,
               EPS: gl.constexpr, NORM: gl.constexpr, GATED: gl.constexpr, LINED: gl.constexpr):  # fmt: skip
    """Write a token as words of int8 to shared memory, WIDE a plane; return them, its sum and its scale.

    GATED: it is relu2(x) * gated. NORM: 0 none, 1 plain, 2 weighted. LINED: in planes of `cuda.linear.grouped`."""
    PART: gl.constexpr = 32 * gl.num_warps()
    PARTS: gl.constexpr = (PLANES * WIDE + PART - 1) // PART
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [gl.num_warps(), 1], [1, 0])
    thread = gl.arange(0, PART, layout=gl.SliceLayout(1, L))
    of_word = gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, L)), 0)
    of_squares, of_sizes = _line(gl.float64, gl.num_warps()), _line(gl.int32, gl.num_warps())
    of_sums, words = _line(gl.int32, gl.num_warps()), _line(gl.int32, next_power_of_2(PARTS) * PART)
    v = ()
    other = ()
    by = ()
    for i in gl.static_range(PARTS):  # all loads are issued together
        plane, j = (thread + i * PART) // WIDE, (thread + i * PART) % WIDE
        column = gl.expand_dims(j // 8 * 32 + plane * 8 + j % 8 if LINED else plane * KW + j, 1) * 4 + of_word
        inside = gl.expand_dims((plane < PLANES) & (j < KW), 1) & (column < K)
        v = v + (_read(x, column, inside),)
        if GATED:
            other = other + (_read(gated, column, inside),)
        if NORM == 2:
            by = by + (_read(weight, column, inside),)
    if GATED:
        rest = v
        v = ()
        for i in gl.static_range(PARTS):
            positive = gl.where(rest[i] < 0.0, 0.0, rest[i])
            v = v + (positive * positive * other[i],)
    if NORM > 0:
        v = _normed(v, by, of_squares, K, EPS, NORM)
    sizes = _sizes(v[0])
    for i in gl.static_range(1, PARTS):
        sizes = gl.maximum(sizes, _sizes(v[i]))
    bits = _of_all(sizes, of_sizes, True)
    whole = bits < INFINITE  # else the scale is no number, and neither is any result
    largest = gl.maximum(gl.where(whole, bits, 0).to(gl.float32, bitcast=True), SMALLEST)
    steps = gl.div_rn(127.0, largest)
    packed = ()
    summed = gl.zeros([PART], gl.int32, gl.SliceLayout(1, L))
    for i in gl.static_range(PARTS):
        packed = packed + (_packed(v[i], steps, L),)
        summed = _signed(packed[i], gl.full_like(packed[i], 0x01010101), summed)
    words.store(_one_after_another(packed))
    summed = _of_all(summed, of_sums, False)
    of_squares._keep_alive()  # each has memory of its own: overlapping ones would need another barrier
    of_sizes._keep_alive()
    return words, summed, gl.where(whole, gl.div_rn(largest, 127.0), float("nan"))


@gluon.jit
def _quantised_by_groups(
    x, weight, K: gl.constexpr, LINES: gl.constexpr, GROUP: gl.constexpr, EPS: gl.constexpr, NORM: gl.constexpr
):
    """Write a token as words of int8 to shared memory, in planes of `cuda.linear.grouped`, of each at least LINES lines of 128 columns.

    Return them, and the scales of all lines, or those of their first halves, then of the second. A warp has whole lines.
    """
    WARPS: gl.constexpr = gl.num_warps()
    PART: gl.constexpr = 32 * WARPS
    PARTS: gl.constexpr = (LINES + WARPS - 1) // WARPS
    WIDE: gl.constexpr = next_power_of_2(PARTS) * WARPS
    HALVES: gl.constexpr = 128 // GROUP
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])
    thread = gl.arange(0, PART, layout=gl.SliceLayout(1, L))
    of_word = gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, L)), 0)
    of_squares, words = _line(gl.float64, WARPS), _line(gl.int32, WIDE * 32)
    v = ()
    by = ()
    for i in gl.static_range(PARTS):  # all loads are issued together
        column = gl.expand_dims(thread + i * PART, 1) * 4 + of_word
        v = v + (_read(x, column, column < K),)
        if NORM == 2:
            by = by + (_read(weight, column, column < K),)
    if NORM > 0:
        v = _normed(v, by, of_squares, K, EPS, NORM)
    packed = ()
    scales = ()
    for i in gl.static_range(PARTS):
        sizes = gl.reshape(_sizes(v[i]), [WARPS, HALVES, 32 // HALVES])
        bits = gl.max(sizes, 2)
        whole = bits < INFINITE  # else the scale is no number, and neither is any result
        largest = gl.maximum(gl.where(whole, bits, 0).to(gl.float32, bitcast=True), SMALLEST)
        _, steps = gl.broadcast(sizes, gl.expand_dims(gl.div_rn(127.0, largest), 2))
        steps = gl.convert_layout(gl.reshape(steps, [PART]), gl.SliceLayout(1, L), assert_trivial=True)
        packed = packed + (_packed(v[i], gl.expand_dims(steps, 1), L),)
        scales = scales + (gl.reshape(gl.where(whole, gl.div_rn(largest, 127.0), float("nan")), [WARPS * HALVES]),)
    planes = gl.permute(gl.reshape(_one_after_another(packed), [WIDE, 4, 8]), (1, 0, 2))
    words.store(gl.reshape(planes, [WIDE * 32]))
    halves = gl.permute(gl.reshape(_one_after_another(scales), [WIDE, HALVES]), (1, 0))
    of_groups = _line(gl.float32, HALVES * WIDE)
    of_groups.store(gl.reshape(halves, [HALVES * WIDE]))
    barrier()
    of_squares._keep_alive()  # it has memory of its own: what overlaps would need another barrier
    return words, of_groups


@gluon.jit
def _copied(x, KW: gl.constexpr, WIDE: gl.constexpr, LINES: gl.constexpr):
    """Copy lines of KW words of int8 to shared memory, WIDE each: what many threads need is loaded once."""
    PART: gl.constexpr = 32 * gl.num_warps()
    PARTS: gl.constexpr = (LINES * WIDE + PART - 1) // PART
    thread = gl.arange(0, PART, layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    words = _line(gl.int32, next_power_of_2(PARTS) * PART)
    parts = ()
    for i in gl.static_range(PARTS):
        line, j = (thread + i * PART) // WIDE, (thread + i * PART) % WIDE
        parts = parts + (gl.load(x + line * KW + j, mask=(line < LINES) & (j < KW), other=0),)
    words.store(_one_after_another(parts))
    barrier()
    return words


@gluon.jit
def _of_rows(scale, bias, out, rn, N, ROWS: gl.constexpr, BIAS: gl.constexpr):
    """Return the scale and the bias of the results of some rows; with several tokens, the bias of the first."""
    by = 0.0
    added = 0.0
    if out.dtype.element_ty != gl.int32:
        by = gl.load(scale + rn, mask=rn < N, other=0.0) if ROWS else gl.load(scale)
        if BIAS > 0:
            added = gl.load(bias + rn, mask=rn < N, other=0.0).to(gl.float32)
    return by, added


@gluon.jit
def _of_token(total, token_scale, out, CODES: gl.constexpr):
    """Return the sum that is subtracted from the results of a token, and its scale."""
    return gl.load(total) if CODES else 0, gl.load(token_scale) if out.dtype.element_ty != gl.int32 else 0.0


@gluon.jit
def _store(r, total, of_token, by, added, out, rn, N, BIAS: gl.constexpr):
    """Store the results of one token: r less the sum of the token, scaled; an out of int32 takes the integers."""
    r = r - total
    if out.dtype.element_ty == gl.int32:
        y = r
    else:
        y = r.to(gl.float32) * (of_token * by)
        if BIAS:
            y = y + added
    gl.store(out + rn, y.to(out.dtype.element_ty), mask=rn < N)


@gluon.jit
def gemv(
    w, x, total, token_scale, gated, weight, scale, bias, out, N, K: gl.constexpr, KW: gl.constexpr, WIDE: gl.constexpr,
    BN: gl.constexpr, TK: gl.constexpr, WK: gl.constexpr, M: gl.constexpr, CODES: gl.constexpr, FLOATS: gl.constexpr,
    EPS: gl.constexpr, NORM: gl.constexpr, GATED: gl.constexpr, ROWS: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    """Multiply BN rows a CTA: TK lanes and WK warps along a row of KW words. FLOATS: x is one token for `_quantised`.
    WIDE: words of a plane of tokens in shared memory; 0: none. BIAS: 0 none, 1 one for each row, 2 for each result."""
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32 // TK, TK], [gl.num_warps() // WK, WK], [1, 0])
    BK: gl.constexpr = TK * 4 * WK
    COUNT: gl.constexpr = (KW + BK - 1) // BK
    PLANES: gl.constexpr = 4 if CODES else 1
    may_start()
    rn = gl.program_id(0) * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, L))
    rk = gl.arange(0, BK, layout=gl.SliceLayout(0, L))
    row = w + gl.expand_dims(gl.minimum(rn, N - 1).to(gl.int64), 1) * KW + gl.expand_dims(rk, 0)
    ws = ()
    for i in gl.static_range(COUNT):
        if (i + 1) * BK <= KW:
            words = gl.load(row + i * BK, eviction_policy="evict_first")
        else:
            words = gl.load(
                row + i * BK, mask=gl.expand_dims(rk + i * BK < KW, 0), other=0, eviction_policy="evict_first"
            )
        ws = ws + (words,)
    if FLOATS and NORM == 2 and gl.program_id(0) == 0:  # one for all: lines that all ask for are handed out one by one
        ask(
            weight + gl.minimum(gl.arange(0, next_power_of_2(max(K // 32, 1)), layout=gl.SliceLayout(0, L)) * 32, K - 1)
        )
    wait_for_inputs()
    by, added = _of_rows(scale, bias, out, rn, N, ROWS, BIAS)
    if FLOATS:
        words, summed, of_token = _quantised(x, gated, weight, K, KW, WIDE, PLANES, EPS, NORM, GATED, False)
    else:
        summed, of_token = _of_token(total, token_scale, out, CODES)
        if WIDE > 0:
            words = _copied(x, KW, WIDE, M * PLANES)
    for m in gl.static_range(M):
        if m > 0:
            summed, of_token = _of_token(total + m, token_scale + m, out, CODES)
            if BIAS == 2 and out.dtype.element_ty != gl.int32:
                added = gl.load(bias + m * N + rn, mask=rn < N, other=0.0).to(gl.float32)
        token = x + m * PLANES * KW
        c0 = gl.zeros((BN, BK), gl.int32, L)
        c1 = c0
        c2 = c0
        c3 = c0
        for i in gl.static_range(COUNT):
            a = ()
            for s in gl.static_range(PLANES):
                if WIDE > 0:
                    a = a + (_shared(words, rk, m * PLANES + s, i, WIDE, BK),)
                else:
                    a = a + (_words(token + s * KW, rk, i, KW, BK),)
            if CODES:
                c0, c1, c2, c3 = _masked(ws[i], a[0], a[1], a[2], a[3], c0, c1, c2, c3)
            else:
                c0 = _signed(ws[i], a[0], c0)
        r = gl.sum(c0 + (c1 >> 2) + (c2 >> 4) + (c3 >> 6), 1)
        _store(r, summed if CODES else 0, of_token, by, added, out + m * N, rn, N, BIAS)


@gluon.jit
def _line_sums(part):
    """Return the sums of the words of each line of 128 columns: those of two lanes."""
    return gl.sum(gl.reshape(part, [part.shape[0], part.shape[1] // 8, 8]), 2)


@gluon.jit
def _terms(w, a, by, of_token):
    """Return the terms of groups of columns, [rows, groups]: a lane has half of the columns of 128.

    by: the scales of these, or those of their halves; of_token: the same of the token, or none.
    """
    totals = gl.inline_asm_elementwise(TWO_TOTALS, OF_TOTALS, a, dtype=(gl.int32, gl.int32), is_pure=True, pack=4)
    sums = gl.inline_asm_elementwise(
        TWO_SUMS, OF_SUMS, [w, a[0], a[1], a[2], a[3]], dtype=(gl.int32, gl.int32), is_pure=True, pack=4
    )
    low, high = sums[0] - totals[0], sums[1] - totals[1]
    if len(by) == 1:
        result = _scaled(low + high, by, of_token, 0)
    else:
        halves = gl.join(_scaled(low, by, of_token, 0), _scaled(high, by, of_token, 1))
        result = gl.reshape(halves, [w.shape[0], w.shape[1] // 4])
    return result


@gluon.jit
def _scaled(part, by, of_token, h: gl.constexpr):
    """Return the sums of lines times the scales of half h of them."""
    result = _line_sums(part).to(gl.float32) * by[h]
    if len(of_token) > 0:
        result = result * of_token[h]
    return result


@gluon.jit
def _of_lines(of_groups, first: gl.constexpr, COUNT: gl.constexpr, HALVES: gl.constexpr, G: gl.constexpr):
    """Load the scales of a token for COUNT lines from the first on, or those of both halves of these."""
    WIDE: gl.constexpr = of_groups.shape[0] // HALVES
    result = ()
    for h in gl.static_range(HALVES):
        result = result + (gl.expand_dims(of_groups.slice(h * WIDE + first, COUNT).load(gl.SliceLayout(0, G)), 0),)
    return result


@gluon.jit
def _scales_of(scale, line, rows, N, GROUPS, HALVES: gl.constexpr):
    """Load the scales of lines of rows, or those of their halves; 0 behind the last."""
    result = ()
    for h in gl.static_range(HALVES):
        g = gl.expand_dims(line * HALVES + h, 0)
        from_row = scale + gl.expand_dims(gl.minimum(rows, N - 1) * GROUPS, 1)
        result = result + (gl.load(from_row + g, mask=g < GROUPS, other=0.0),)
    return result


@gluon.jit
def _as_floats(by):
    result = ()
    for h in gl.static_range(len(by)):
        result = result + (by[h].to(gl.float32),)
    return result


@gluon.jit
def _beside(parts):
    """Return tensors [rows, n], a power of two of them, beside each other."""
    COUNT: gl.constexpr = len(parts)
    ROWS: gl.constexpr = parts[0].shape[0]
    EACH: gl.constexpr = parts[0].shape[1]
    for _ in gl.static_range(COUNT.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts) // 2):
            halves = halves + (gl.join(parts[i], parts[i + len(parts) // 2]),)
        parts = halves
    return parts[0].reshape([ROWS, EACH, COUNT]).permute((0, 2, 1)).reshape([ROWS, EACH * COUNT])


@gluon.jit
def _columns(t):
    """Split [rows, n], all n of which a thread has, into its columns, in order."""
    parts = (t,)
    for _ in gl.static_range(t.shape[1].bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts)):
            one = parts[i]
            halves = halves + gl.split(one.reshape([one.shape[0], 2, one.shape[1] // 2]).permute((0, 2, 1)))
        parts = halves
    return parts


@gluon.jit
def _in_order(terms, KW: gl.constexpr, GROUP: gl.constexpr):
    """Return the sum of the terms of each row: those of a block one after another, then the sums of blocks. One thread has those of a row."""
    for _ in gl.static_range(next_power_of_2(len(terms)) - len(terms)):
        terms = terms + (gl.zeros_like(terms[0]),)
    ALL: gl.constexpr = terms[0].shape[1] * len(terms)
    TO: gl.constexpr = gl.BlockedLayout([1, ALL], [32, 1], [gl.num_warps(), 1], [1, 0])
    each = _columns(gl.convert_layout(_beside(terms), TO))
    y = gl.zeros_like(each[0])
    for b in gl.static_range((KW + 63) // 64):
        block = each[b * (1024 // GROUP)]
        for i in gl.static_range(1, 1024 // GROUP):
            block = block + each[b * (1024 // GROUP) + i]
        y = y + block
    return gl.reshape(y, [y.shape[0]])


@gluon.jit
def group_gemv(
    w, x, weight, scale, bias, out, N, GROUPS, K: gl.constexpr, KW: gl.constexpr, BN: gl.constexpr, TK: gl.constexpr,
    GROUP: gl.constexpr, BY: gl.constexpr, EPS: gl.constexpr, NORM: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    """Multiply one token of floats, as `gemv` does, with BN rows a CTA whose weights have a scale for each GROUP of columns.

    w: lines as in `cuda.linear.grouped`. BY: the token has a scale for each group too. TK lanes, 16 or 32, along a row:
    one or two blocks of 1,024 columns at a time. Terms meet in one thread for each row, which adds them in order.
    """
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32 // TK, TK], [gl.num_warps(), 1], [1, 0])
    BK: gl.constexpr = TK * 4
    COUNT: gl.constexpr = (KW + BK - 1) // BK
    may_start()
    rn = gl.minimum(gl.program_id(0) * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, L)), N - 1)
    rk = gl.arange(0, BK, layout=gl.SliceLayout(0, L))
    row = w + gl.expand_dims(rn.to(gl.int64), 1) * KW + gl.expand_dims(rk, 0)
    ws = ()
    for i in gl.static_range(COUNT):
        inside = gl.expand_dims(rk + i * BK < KW, 0)
        ws = ws + (gl.load(row + i * BK, mask=inside, other=0, eviction_policy="evict_first"),)
    wait_for_inputs()
    G: gl.constexpr = gl.SliceLayout(
        2, gl.BlockedLayout([1, 1, 4], [32 // TK, TK // 2, 2], [gl.num_warps(), 1, 1], [2, 1, 0])
    )
    near = gl.program_id(0) * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, G))
    line = gl.arange(0, BK // 8, layout=gl.SliceLayout(0, G))
    by = ()
    for i in gl.static_range(COUNT):
        by = by + (_scales_of(scale, i * (BK // 8) + line, near, N, GROUPS, 128 // GROUP),)
    WIDE: gl.constexpr = COUNT * BK
    if BY:
        words, of_groups = _quantised_by_groups(x, weight, K, WIDE // 8, GROUP, EPS, NORM)
    else:
        words, _, of_token = _quantised(x, x, weight, K, KW, WIDE, 4, EPS, NORM, False, True)
    PLANE: gl.constexpr = words.shape[0] // 4 if BY else WIDE
    terms = ()
    for i in gl.static_range(COUNT):
        a = ()
        for s in gl.static_range(4):
            a = a + (_shared(words, rk, s, i, PLANE, BK),)
        of_lines = ()
        if BY:
            of_lines = _of_lines(of_groups, i * (BK // 8), BK // 8, 128 // GROUP, G)
        terms = terms + (_terms(ws[i], a, _as_floats(by[i]), of_lines),)
    y = _in_order(terms, KW, GROUP)
    if not BY:
        y = y * of_token
    to = gl.program_id(0) * BN + gl.arange(0, BN, layout=y.type.layout)
    if BIAS > 0:
        y = y + gl.load(bias + to, mask=to < N, other=0.0).to(gl.float32)
    gl.store(out + to, y.to(out.dtype.element_ty), mask=to < N)


fix_cache_keys(globals())
