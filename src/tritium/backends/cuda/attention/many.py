"""Attention of one new token of each of many sequences, in Gluon: f64 on tensor cores, whose operands threads load where they need them.

Heads have 128 elements, caches hold half floats. Every warp takes 16 keys at a time by itself, with a largest score and sums of its own, so
that no warp waits for another; at the end of a share the warps join. Columns of a product are queries: eight, of which at most four differ.

The fragments of mma.m16n8k16 for lane 4 g + t: A has rows g and g + 8 at columns t, t + 4, t + 8, t + 12; B the same of its rows at column g;
C rows g and g + 8 at columns 2 t and 2 t + 1. Which element of a head stands for which column of A is free, as long as B agrees, so lanes
load 16 bytes that follow each other.
"""

from __future__ import annotations

from triton import next_power_of_2
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda.attention import decode as one
from tritium.backends.cuda.attention.shares import block_of, company, everyone, offset_of, share_of
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.gemv import barrier, may_start, wait_for_inputs

LEAST = 256  # keys of a share, of which others get none: to join shares takes as long as to attend to some hundred keys

WARP_KEYS = gl.constexpr(16)
STEP = gl.constexpr(64)  # keys of all warps
SIZE = gl.constexpr(128)
TILES = gl.constexpr(8)  # of 16 elements of a head

L2 = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))  # a value of each thread: [warps, lanes]
L3 = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 32, 1], [4, 1, 1], [2, 1, 0]))  # eight elements of each
L4 = gl.constexpr(gl.BlockedLayout([1, 1, 4, 2], [1, 32, 1, 1], [4, 1, 1, 1], [3, 2, 1, 0]))  # as pairs
LJ = gl.constexpr(
    gl.BlockedLayout([4, 1, 1, 8, 1], [1, 1, 1, 1, 32], [1, 2, 2, 1, 1], [3, 0, 4, 2, 1])
)  # sums, to join warps
LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
JOINED = gl.constexpr(8)  # shares that a CTA joins at a time: what registers hold


def registers(groups: int, processors: int) -> int:
    """Return the registers of a thread: all it needs, or fewer, with some spilled, where three CTAs for each multiprocessor take all
    kv heads at once and two would not."""
    return 168 if 2 * processors < groups <= 3 * processors else 255


MMA = gl.constexpr(
    "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {$0, $1, $2, $3}, {$4, $5, $6, $7, $8, $9, $10, $11}, "
    "{$12, $13, $14, $15}, {$16, $17, $18, $19};"
)
SHUFFLE = gl.constexpr("""{
    .reg .b32 low, high;
    mov.b64 {low, high}, $1;
    shfl.sync.idx.b32 low, low, $2, 31, 0xffffffff;
    shfl.sync.idx.b32 high, high, $2, 31, 0xffffffff;
    mov.b64 $0, {low, high};
}""")


# ---- what a thread has


@gluon.jit
def _lane():
    return gl.expand_dims(gl.arange(0, 32, layout=gl.SliceLayout(0, L2)), 0)


@gluon.jit
def _warp():
    return gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(1, L2)), 1)


@gluon.jit
def _eight_of():
    """Return warp, lane and number of eight elements of each thread."""
    warp = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3)))
    lane = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3)))
    e = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, L3)))
    warp = gl.expand_dims(gl.expand_dims(warp, 1), 2)
    lane = gl.expand_dims(gl.expand_dims(lane, 0), 2)
    return warp, lane, gl.expand_dims(gl.expand_dims(e, 0), 1)


@gluon.jit
def _apart(v):
    """Return eight elements of each thread [warps, lanes, 8] as eight values [warps, lanes]."""
    a, b = gl.split(gl.reshape(v, [4, 32, 2, 2, 2]))
    a0, a1 = gl.split(a)
    b0, b1 = gl.split(b)
    e0, e4 = gl.split(a0)
    e2, e6 = gl.split(a1)
    e1, e5 = gl.split(b0)
    e3, e7 = gl.split(b1)
    each = (e0, e1, e2, e3, e4, e5, e6, e7)
    plain = ()
    for i in gl.static_range(8):
        plain = plain + (gl.convert_layout(each[i], L2, assert_trivial=True),)
    return plain


@gluon.jit
def _wide(v):
    """Return half floats as f64."""
    if v.dtype == gl.float16:
        bits = v.to(gl.int16, bitcast=True)
        w = gl.inline_asm_elementwise("cvt.f64.f16 $0, $1;", "=d,h", [bits], dtype=gl.float64, is_pure=True, pack=1)
    else:
        w = v.to(gl.float32).to(gl.float64)
    return w


@gluon.jit
def _wide_all(parts):
    wide = ()
    for i in gl.static_range(len(parts)):
        wide = wide + (_wide(parts[i]),)
    return wide


@gluon.jit
def _multiply(a, b, c):
    """Return C + A B of one warp each: eight, four and four values of a thread."""
    return gl.inline_asm_elementwise(
        MMA, "=d,=d,=d,=d,d,d,d,d,d,d,d,d,d,d,d,d,d,d,d,d",
        [a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3]],
        dtype=(gl.float64, gl.float64, gl.float64, gl.float64), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _from(v, lane):
    """Return the value of another lane of the same warp."""
    v, lane = gl.broadcast(v, lane)
    return gl.inline_asm_elementwise(SHUFFLE, "=d,d,r", [v, lane], dtype=gl.float64, is_pure=True, pack=1)


@gluon.jit
def _largest(v, lane):
    """Return the largest value of the lanes with the same t."""
    v = gl.maximum(v, _from(v, lane ^ 4))
    v = gl.maximum(v, _from(v, lane ^ 8))
    return gl.maximum(v, _from(v, lane ^ 16))


@gluon.jit
def _sum(v, lane):
    """Return the sum of the lanes that have the same queries."""
    v += _from(v, lane ^ 2)
    v += _from(v, lane ^ 4)
    v += _from(v, lane ^ 8)
    return v + _from(v, lane ^ 16)


# ---- queries, keys and values


@gluon.jit
def _keep_queries(x, shared, b, g, strides, PER: gl.constexpr, FACTOR: gl.constexpr):
    """Write the rotated and scaled queries of a kv head to shared memory, in f64 and in the order of B: [4 parts, 4 pairs, lanes, 2]."""
    PAIRS: gl.constexpr = gl.SliceLayout(0, L4)
    lane = gl.arange(0, 32, layout=gl.SliceLayout(1, gl.SliceLayout(2, PAIRS)))
    pair = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, PAIRS)))
    of_pair = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, PAIRS)))
    lane = gl.expand_dims(gl.expand_dims(lane, 1), 2)
    along = (
        gl.expand_dims(gl.expand_dims(pair, 0), 2) * 2 + gl.expand_dims(gl.expand_dims(of_pair, 0), 1) + lane % 4 * 8
    )
    head = g * PER + gl.minimum(lane // 4 % 4, PER - 1)
    x_of = x.heads + b.to(gl.int64) * strides.batch + head * strides.head + along
    for part in gl.static_range(2):
        c = gl.load(x.cos + b.to(gl.int64) * strides.cos + part * 32 + along)
        s = gl.load(x.sin + b.to(gl.int64) * strides.sin + part * 32 + along)
        a, z = gl.load(x_of + part * 32), gl.load(x_of + part * 32 + one.HALF)
        low = one._times(a, c) - one._times(z, s)
        high = one._times(z, c) + one._times(a, s)
        for half in gl.static_range(2):
            turned = (low if half == 0 else high).to(gl.float64) * FACTOR
            to = shared.index(2 * half + part).reshape([4, 32, 2]).permute((1, 0, 2))
            to.store(turned)


@gluon.jit
def _queries(shared, part: gl.constexpr):
    """Return 8 elements of a query for each thread."""
    pairs = shared.index(part).reshape([4, 32, 2]).permute((1, 0, 2)).load(gl.SliceLayout(0, L4))
    pairs, _ = gl.broadcast(gl.expand_dims(pairs, 0), gl.zeros([4, 32, 4, 2], gl.float64, L4))
    return _apart(gl.reshape(pairs, [4, 32, 8]))


@gluon.jit
def _load_keys(lines, block, offset, end, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Load rows g and g + 8 of the keys of each warp from `offset` on, all in one block, 8 elements at a time; those from `end` on are zero."""
    warp, lane, e = _eight_of()
    k = lines.k + offset_of(lines, block, lines.k_stride, offset, TOKEN, BLOCK)
    parts = ()
    for part in gl.static_range(4):
        for row in gl.static_range(2):
            near = warp * WARP_KEYS + lane // 4 + row * 8
            cell = k + near * TOKEN + part * 32 + lane % 4 * 8 + e
            parts = parts + (gl.load(cell, mask=offset + near < end, other=0.0, cache_modifier=".cg"),)
    return parts


@gluon.jit
def _load_values(lines, block, offset, end, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Load values t, t + 4, t + 8 and t + 12 of each warp from `offset` on, as `_load_keys`: elements 8 g on, and those 64 further."""
    warp, lane, e = _eight_of()
    v = lines.v + offset_of(lines, block, lines.v_stride, offset, TOKEN, BLOCK)
    parts = ()
    for i in gl.static_range(4):
        for half in gl.static_range(2):
            near = warp * WARP_KEYS + lane % 4 + i * 4
            cell = v + near * TOKEN + half * 64 + lane // 4 * 8 + e
            parts = parts + (gl.load(cell, mask=offset + near < end, other=0.0, cache_modifier=".cg"),)
    return parts


@gluon.jit
def _ask_for_all(lines, first, end, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Prefetch up to 256 keys and values: two lines each. Any address of the cache can be prefetched."""
    i = gl.arange(0, 256, layout=gl.BlockedLayout([1], [32], [4], [0]))
    final = gl.maximum(end - 1, 0)
    for j in gl.static_range(4):
        key = gl.minimum(first + j * STEP + i // 4, final)
        block = block_of(lines, gl.minimum(first + j * STEP, final), BLOCK)
        one.ask_for(lines, block, key, i, TOKEN, BLOCK)


# ---- attention


@gluon.jit
def _scores(keys, shared):
    """Return the scores of each warp's keys: C of 16 keys and 8 queries."""
    zero = gl.zeros([4, 32], gl.float64, L2)
    c = (zero, zero, zero, zero)
    d = c
    for part in gl.static_range(4):
        q = _queries(shared, part)
        low, high = _apart(keys[2 * part]), _apart(keys[2 * part + 1])
        rows = (low[0], high[0], low[1], high[1], low[2], high[2], low[3], high[3])
        c = _multiply(_wide_all(rows), (q[0], q[1], q[2], q[3]), c)
        rows = (low[4], high[4], low[5], high[5], low[6], high[6], low[7], high[7])
        d = _multiply(_wide_all(rows), (q[4], q[5], q[6], q[7]), d)
    return c[0] + d[0], c[1] + d[1], c[2] + d[2], c[3] + d[3]


@gluon.jit
def _weigh(s, tops, offset, end):
    """Return the weights of each warp's keys, the factors of older sums, and the largest scores: of queries 2 t and 2 t + 1, modulo 4.

    Lanes have the weights of keys g where t < 2, else those of keys g + 8. The scores are of keys from `offset` on; those from `end` on
    do not count."""
    lane = _lane()
    key = offset + _warp() * WARP_KEYS + lane // 4
    near, far, first = key < end, key + 8 < end, lane % 4 < 2
    lowest = float("-inf")
    s0, s1 = gl.where(near, s[0], lowest), gl.where(near, s[1], lowest)
    s2, s3 = gl.where(far, s[2], lowest), gl.where(far, s[3], lowest)
    top0 = gl.maximum(tops[0], _largest(gl.maximum(s0, s2), lane))
    top1 = gl.maximum(tops[1], _largest(gl.maximum(s1, s3), lane))
    base0, base1 = gl.where(top0 == lowest, 0.0, top0), gl.where(top1 == lowest, 0.0, top1)
    w0 = gl.exp(gl.where(first, s0, s2) - base0)
    w1 = gl.exp(gl.where(first, s1, s3) - base1)
    fade = gl.exp(
        gl.where(first, tops[0] - base0, tops[1] - base1)
    )  # half of the lanes have those of one query, half of the other
    other = lane // 4 * 4 + lane % 2
    return (w0, w1), (_from(fade, other), _from(fade, other + 2)), (top0, top1)


@gluon.jit
def _turned(w):
    """Return weights in the order of B: of query g modulo 4 those of keys t, t + 4, t + 8 and t + 12."""
    lane = _lane()
    query, t = lane // 4 % 4, lane % 4
    parts = ()
    for i in gl.static_range(4):
        source = (t + i % 2 * 4) * 4 + query // 2 + i // 2 * 2
        parts = parts + (gl.where(query % 2 == 0, _from(w[0], source), _from(w[1], source)),)
    return parts


@gluon.jit
def _mix(values, w, mixed, fades):
    """Return the sums of weighted values, eight tiles of C, with those of each warp's values added."""
    more = ()
    for half in gl.static_range(2):
        a, b = _apart(values[half]), _apart(values[2 + half])
        c, d = _apart(values[4 + half]), _apart(values[6 + half])
        for j in gl.static_range(4):
            old = mixed[4 * half + j]
            faded = (old[0] * fades[0], old[1] * fades[1], old[2] * fades[0], old[3] * fades[1])
            rows = (a[2 * j], a[2 * j + 1], b[2 * j], b[2 * j + 1], c[2 * j], c[2 * j + 1], d[2 * j], d[2 * j + 1])
            more = more + (_multiply(_wide_all(rows), w, faded),)
    return more


@gluon.jit
def _walk(lines, block, shared, first, end, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Attend to keys `first` to `end` of a kv head, the first in a block; return largest scores, sums of weights and of values of each warp."""
    zero = gl.zeros([4, 32], gl.float64, L2)
    lowest = gl.full([4, 32], float("-inf"), gl.float64, L2)
    tops = (lowest, lowest)
    totals = (zero, zero)
    mixed = ()
    for _ in gl.static_range(TILES):
        mixed = mixed + ((zero, zero, zero, zero),)
    final = gl.maximum(end - 1, 0)
    for offset in range(first, end, STEP):
        after = block_of(lines, gl.minimum(offset + STEP, final), BLOCK)
        keys = _load_keys(lines, block, offset, end, TOKEN, BLOCK)
        values = _load_values(lines, block, offset, end, TOKEN, BLOCK)
        s = _scores(keys, shared)
        w, fades, tops = _weigh(s, tops, offset, end)
        totals = (totals[0] * fades[0] + w[0], totals[1] * fades[1] + w[1])
        mixed = _mix(values, _turned(w), mixed, fades)
        block = after
    lane = _lane()
    return tops, (_sum(totals[0], lane), _sum(totals[1], lane)), mixed


@gluon.jit
def _together(parts):
    """Return values [warps, lanes], a power of two of them, as one tensor [warps, number, lanes]."""
    COUNT: gl.constexpr = next_power_of_2(len(parts))
    for _ in gl.static_range(COUNT.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts) // 2):
            halves = halves + (gl.join(parts[i], parts[i + len(parts) // 2]),)
        parts = halves
    return parts[0].reshape([4, 32, COUNT]).permute((0, 2, 1))


@gluon.jit
def _joined(tops, totals, mixed):
    """Return the sums of all warps: largest scores and sums of weights [2 queries, lanes], of values [2 halves, 2 queries, 8, lanes]."""
    SHORT: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, LJ))
    LS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(0, LJ)))
    values = ()
    for half in gl.static_range(2):
        for query in gl.static_range(2):
            for j in gl.static_range(4):
                for row in gl.static_range(2):
                    values = values + (mixed[4 * half + j][2 * row + query],)
    sums = gl.allocate_shared_memory(gl.float64, [4 * 32 * 32], LINE)
    of_tops = gl.allocate_shared_memory(gl.float64, [4 * 2 * 32], LINE)
    of_totals = gl.allocate_shared_memory(gl.float64, [4 * 2 * 32], LINE)
    sums.reshape([4, 32, 32]).store(_together(values))
    of_tops.reshape([4, 2, 32]).store(_together(tops))
    of_totals.reshape([4, 2, 32]).store(_together(totals))
    barrier()
    top, total = of_tops.reshape([4, 2, 32]).load(SHORT), of_totals.reshape([4, 2, 32]).load(SHORT)
    most = gl.max(top, 0)
    base = gl.where(most == float("-inf"), 0.0, most)
    fade = gl.exp(top - gl.expand_dims(base, 0))
    whole = gl.sum(total * fade, 0)
    y = sums.reshape([4, 2, 2, 8, 32]).load(LJ)
    by = gl.where(total == 0.0, 0.0, fade)
    y = gl.sum(y * gl.expand_dims(gl.expand_dims(by, 1), 3), 0)
    return gl.convert_layout(most, LS, assert_trivial=True), gl.convert_layout(whole, LS, assert_trivial=True), y


@gluon.jit
def _cells(head, PER: gl.constexpr):
    """Return offsets of [2 halves, 2 queries, 8, lanes], queries `head` apart, and which of them are meant; and queries of [2, lanes]."""
    LY: gl.constexpr = gl.SliceLayout(0, LJ)
    LS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, LY))
    half = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LY))))
    which = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LY))))
    e = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, LY))))
    lane = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, LY))))
    half = gl.expand_dims(gl.expand_dims(gl.expand_dims(half, 1), 2), 3)
    which = gl.expand_dims(gl.expand_dims(gl.expand_dims(which, 0), 2), 3)
    e = gl.expand_dims(gl.expand_dims(gl.expand_dims(e, 0), 1), 3)
    lane = gl.expand_dims(gl.expand_dims(gl.expand_dims(lane, 0), 1), 2)
    query = lane % 4 * 2 + which
    short_which = gl.expand_dims(gl.arange(0, 2, layout=gl.SliceLayout(1, LS)), 1)
    short_lane = gl.expand_dims(gl.arange(0, 32, layout=gl.SliceLayout(0, LS)), 0)
    short = short_lane % 4 * 2 + short_which
    cells, meant = query * head + half * 64 + lane // 4 * 8 + e, query < PER
    return cells, meant & (e >= 0) & (half >= 0), short, (short < PER) & (short_lane < 4)


@gluon.jit
def _attend(
    lines, block, shared, first, end, out, sums, counts, share, g, batch, o_strides, ranges, PER: gl.constexpr, USED: gl.constexpr,
    PARTS: gl.constexpr, MOST: gl.constexpr, TOKEN: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Attend to keys `first` to `end`: those of a `Share` of kv head g; joined as in `decode`."""
    tops, totals, mixed = _walk(lines, block, shared, first, end, TOKEN, BLOCK)
    most, total, y = _joined(tops, totals, mixed)
    out += share.b.to(gl.int64) * o_strides.batch + g * PER * o_strides.head
    if (PARTS == 1) | (share.keys >= share.last):
        cells, meant, _, _ = _cells(o_strides.head, PER)
        by = gl.expand_dims(gl.expand_dims(one._inverse(total), 0), 2)
        gl.store(out + cells, gl.where(by == 0.0, 0.0, y * by).to(out.dtype.element_ty), mask=meant)
    elif PARTS > 1:
        cells, meant, query, counted = _cells(SIZE, PER)
        part, top_of, total_of = one._of_shares(sums, share, batch, g, USED, PARTS)
        gl.store(top_of + share.p * USED + query, most, mask=counted, cache_modifier=".cg")
        gl.store(total_of + share.p * USED + query, total, mask=counted, cache_modifier=".cg")
        gl.store(part + share.p * (USED * SIZE) + cells, y, mask=meant, cache_modifier=".cg")
        parts = (share.last + share.keys - 1) // share.keys
        count = counts + g * batch + share.b
        one._join_if_last(part, top_of, total_of, out, o_strides.head, count, parts, ranges, PER, MOST, JOINED)


@gluon.jit
def decode_many(
    x, k, v, places, out, sums, counts, batch, slots, capacity, x_strides, k_strides, v_strides, o_strides, PER: gl.constexpr,
    USED: gl.constexpr, PARTS: gl.constexpr, MOST: gl.constexpr, TOKEN: gl.constexpr, BLOCK: gl.constexpr, BATCH: gl.constexpr,
    SHARE: gl.constexpr, SETTLED: gl.constexpr, FACTOR: gl.constexpr,
):  # fmt: skip
    """Do what `decode` does of fresh tokens, with shares of SHARE keys or more."""
    may_start()
    item, g = gl.program_id(0), gl.program_id(1)
    ranges = one._ranges(USED)
    if not SETTLED:
        wait_for_inputs()
    all_places = everyone(places, batch, capacity, BATCH, True)
    share = share_of(all_places, item, places, batch, slots, capacity, PARTS, MOST, STEP, SHARE, BATCH, True, BLOCK)
    if share.b < batch:
        others = company(all_places, share.b, share.slot, share.last, BATCH)
        first = share.p * share.keys
        end = gl.minimum(first + share.keys, share.last)
        lines = one.lines_of(k, v, places, share.b, g, share.slot, slots, k_strides, v_strides)
        final = gl.maximum(share.last - 1, 0)
        block, newest = block_of(lines, gl.minimum(first, final), BLOCK), block_of(lines, final, BLOCK)
        if SETTLED:
            _ask_for_all(lines, first, end, TOKEN, BLOCK)
            wait_for_inputs()
        angles = one._angles(x, share.b, x_strides)
        one._write_new(
            x, angles, lines, newest, g, first, end, share.last, others, x_strides, ranges, PER, TOKEN, BLOCK
        )
        if others == 0:
            shared = gl.allocate_shared_memory(gl.float64, [4, 256], LINE)
            _keep_queries(x, shared, share.b, g, x_strides, PER, FACTOR)
            barrier()  # and the new key and value are written
            _attend(
                lines, block, shared, first, end, out, sums, counts, share, g, batch, o_strides, ranges, PER, USED, PARTS, MOST, TOKEN, BLOCK
            )  # fmt: skip
        else:
            second = block_of(lines, gl.minimum(first + one.KEYS, final), BLOCK)
            keys, values = (
                one._keys(lines, block, first, end, TOKEN, BLOCK),
                one._values(lines, block, first, end, TOKEN, BLOCK),
            )
            queries = one._queries(x, angles, share.b, g, x_strides, ranges.of_key, PER, True, FACTOR)
            one._attend_share(
                x, keys, values, queries, lines, second, out, sums, counts, share, g, first, end, others, batch, x_strides, o_strides, ranges,
                PER, USED, PARTS, MOST, JOINED, TOKEN, BLOCK, True,
            )  # fmt: skip


fix_cache_keys(globals())
