"""Attention of one new token a sequence, in Gluon: f64 without tensor cores, whose operands would have to pass through
shared memory; threads share only scores and weights there.

Heads have 128 elements, caches hold half floats. A CTA takes a share of the keys of one kv head, as
`cuda.attention.shares` divides them; `cuda.attention.attend` says how shares are joined. Keys: sixteen lanes along
each. Values: a thread for each element of a head, which adds up all keys by itself.

A token may come fresh: the heads of Q, K and V as their product gave them. CTAs then rotate what they need of it by
themselves, step by step as `rope_kernel` does, and the one whose share holds the new key writes it and its value to the
cache. No CTA reads what another writes: of sequences in one slot each computes the others' new keys anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda.attention.shares import Lines, block_of, company, everyone, offset_of, place, share_of
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.gemv import ask, barrier, may_start, wait_for_inputs

KEYS = gl.constexpr(16)  # that a CTA takes together
LANES = gl.constexpr(32)
SIZE = gl.constexpr(128)  # of a head; as many threads
HALF = gl.constexpr(64)  # pairs of a head, and how far apart the elements of a pair are
WARPS = 4
JOINED = gl.constexpr(
    64
)  # sums of shares that a thread loads together, of several sequences half as many: what registers hold

# A thread holds parts of two keys: of each two runs of four elements, so far apart that both elements of a rotary pair are its own.
LK = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 64], [1, 0]], [[0, 4], [0, 8], [0, 16], [0, 32], [2, 0]], [[4, 0], [8, 0]], [], [16, 128]
    )
)
LH = gl.constexpr(gl.DistributedLinearLayout([[1], [2]], [[4], [8], [16], [32], [0]], [[0], [0]], [], [64]))
LV = gl.constexpr(gl.BlockedLayout([16, 1], [1, 32], [1, 4], [0, 1]))
LS = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))  # scores: a warp for each query
LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


def registers(batch: int, parts: int) -> int:
    """Return the registers of a thread: three CTAs fit a multiprocessor; of several sequences with joined shares,
    two.
    """
    return 200 if batch > 1 and parts > 1 else 168


# ---- arguments that belong together


class Tokens(NamedTuple):
    """One token of each sequence: heads [batch, heads, SIZE], and cosines and sines of the pairs of a head [batch,
    HALF].

    Fresh tokens hold the heads of Q, K and V, none of them rotated; others those of Q, and the angles are not read.
    """

    heads: Any
    cos: Any
    sin: Any


class TokenStrides(NamedTuple):
    """Strides from one sequence to the next, of its heads, and of its angles."""

    batch: Any
    head: Any
    cos: Any
    sin: Any


class SlotStrides(NamedTuple):
    """Strides of keys or values [slots, kv heads, capacity, SIZE], of a paged cache [blocks, kv heads, BLOCK, SIZE];
    that from one key to the next is TOKEN, a constant.
    """

    slot: Any
    head: Any


class OutStrides(NamedTuple):
    """Strides of the attention [batch, heads, SIZE]."""

    batch: Any
    head: Any


class Ranges(NamedTuple):
    """Indices of queries [USED] and keys [KEYS] in the layout of scores, and of the elements of a key and a value
    [SIZE].
    """

    query: Any
    key: Any
    of_key: Any
    of_value: Any


@gluon.jit
def _ranges(USED: gl.constexpr):
    query = gl.arange(0, USED, layout=gl.SliceLayout(1, LS))
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(0, LS))
    of_key = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LK))
    return Ranges(query, key, of_key, gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV)))


@gluon.jit
def _inverse(total):
    """Return the factor of sums of values, given the sums of weights; of no keys it is zero."""
    none = total == 0.0
    return gl.where(none, 0.0, 1.0 / gl.where(none, 1.0, total))


@gluon.jit
def _element(shared, j: gl.constexpr, USED: gl.constexpr):
    """Return element j of shared memory, for every thread."""
    ALL: gl.constexpr = gl.BlockedLayout([USED], [32], [gl.num_warps()], [0])
    values = shared.load(ALL)
    return gl.sum(gl.where(gl.arange(0, USED, layout=ALL) == j, values, 0.0), 0)


# ---- keys and values of a sequence


@gluon.jit
def _ask_for_share(
    k, v, places, b, g, p, slots, capacity, k_strides, v_strides, PARTS: gl.constexpr, TOKEN: gl.constexpr,
    PLACED: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Prefetch the first keys and values of share p, where each sequence has PARTS: two lines each.

    The places may still change, but any address of the cache can be prefetched.
    """
    slot, last = place(places, b, slots, capacity, PLACED, BLOCK)
    i = gl.arange(0, 4 * KEYS, layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    share = gl.maximum((last + (PARTS * KEYS - 1)) // (PARTS * KEYS), 1) * KEYS
    key = gl.minimum(p * share + i // 4, capacity - 1)
    lines = lines_of(k, v, places, b, g, slot, slots, k_strides, v_strides)
    ask_for(lines, block_of(lines, key, BLOCK), key, i, TOKEN, BLOCK)


@gluon.jit
def ask_for(lines, block, key, i, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Prefetch keys and values: line i % 2 of the keys where i % 4 < 2, else of the values."""
    of_k = lines.k + offset_of(lines, block, lines.k_stride, key, TOKEN, BLOCK) + i % 2 * (SIZE // 2)
    of_v = lines.v + offset_of(lines, block, lines.v_stride, key, TOKEN, BLOCK) + i % 2 * (SIZE // 2)
    ask(gl.where(i // 2 % 2 == 0, of_k.to(gl.int64), of_v.to(gl.int64)))


@gluon.jit
def lines_of(k, v, places, b, g, slot, slots, k_strides, v_strides):
    """Return where the keys and values of kv head g of sequence b are."""
    k += g.to(gl.int64) * k_strides.head
    v += g.to(gl.int64) * v_strides.head
    return Lines(k, v, k_strides.slot, v_strides.slot, places, b, slot, slots)


@gluon.jit
def _keys(lines, block, offset, end, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Load keys from `offset` on, all in one block; those from `end` on are zero."""
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    along = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LK))
    cells = gl.expand_dims(near * TOKEN, 1) + gl.expand_dims(along, 0)
    k = lines.k + offset_of(lines, block, lines.k_stride, offset, TOKEN, BLOCK)
    return gl.load(k + cells, mask=gl.expand_dims(offset + near < end, 1), other=0.0, cache_modifier=".cg")


@gluon.jit
def _values(lines, block, offset, end, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Load values from `offset` on, as `_keys`."""
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    cells = gl.expand_dims(far * TOKEN, 1) + gl.expand_dims(d, 0)
    v = lines.v + offset_of(lines, block, lines.v_stride, offset, TOKEN, BLOCK)
    return gl.load(v + cells, mask=gl.expand_dims(offset + far < end, 1), other=0.0, cache_modifier=".cg")


# ---- a fresh token


@gluon.jit
def _times(a, b):
    """Return a product that is rounded before anything is added to it."""
    return gl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _angles(x, b, strides):
    """Return cosine and sine [HALF] of each pair of a head of sequence b."""
    i = gl.arange(0, HALF, layout=LH)
    return gl.load(x.cos + b.to(gl.int64) * strides.cos + i), gl.load(x.sin + b.to(gl.int64) * strides.sin + i)


@gluon.jit
def _turned(x, c, s, upto):
    """Return a head with its pairs rotated; only the first pairs are read."""
    i = gl.arange(0, HALF, layout=LH)
    a, z = gl.load(x + i, mask=i < upto, other=0.0), gl.load(x + HALF + i, mask=i < upto, other=0.0)
    pairs = gl.join(_times(a, c) - _times(z, s), _times(z, c) + _times(a, s))
    return gl.convert_layout(pairs.permute((1, 0)).reshape([SIZE]), gl.SliceLayout(0, LK))


@gluon.jit
def _new_row(x, c, s, b, g, strides, upto, like, PER: gl.constexpr):
    """Return the new key and the new value [SIZE] of a sequence in the cache's dtype: their first elements."""
    shared = gl.num_programs(1)
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    heads = x.heads + b.to(gl.int64) * strides.batch
    key = _turned(heads + (shared * PER + g) * strides.head, c, s, upto)
    value = gl.load(heads + (shared * (PER + 1) + g) * strides.head + d, mask=d < upto, other=0.0)
    return key.to(like.dtype.element_ty), value.to(like.dtype.element_ty)


@gluon.jit
def _with_row(keys, values, key, value, place, offset):
    """Return keys and values from `offset` on, with a row inserted at its place if it is among them."""
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    keys = gl.where(gl.expand_dims(offset + near == place, 1), gl.expand_dims(key, 0), keys)
    values = gl.where(gl.expand_dims(offset + far == place, 1), gl.expand_dims(value, 0), values)
    return keys, values


@gluon.jit
def _with_all(keys, values, x, strides, lines, g, offset, batch, PER: gl.constexpr):
    """Return keys and values from `offset` on of a slot, with the rows that all sequences write there.

    Of several at one place the last counts; nothing is written if that one is out of range.
    """
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    old_keys, old_values = keys, values
    for o in range(batch):
        row = lines.places.rows + o * lines.places.stride
        o_slot = gl.load(row, cache_modifier=".cg")
        start = gl.load(row + 1, cache_modifier=".cg")
        count = gl.load(row + 2, cache_modifier=".cg")
        if (o_slot == lines.slot) & (start < offset + KEYS) & (offset < start + count):
            c, s = _angles(x, o, strides)
            key, value = _new_row(x, c, s, o, g, strides, SIZE, lines.k, PER)
            k_covered = gl.expand_dims((offset + near >= start) & (offset + near < start + count), 1)
            v_covered = gl.expand_dims((offset + far >= start) & (offset + far < start + count), 1)
            keys, values = gl.where(k_covered, old_keys, keys), gl.where(v_covered, old_values, values)
            place = gl.where((count == 1) & (start >= 0), start, -1)
            keys, values = _with_row(keys, values, key, value, place, offset)
    return keys, values


# ---- attention


@gluon.jit
def _side_by_side(s, USED: gl.constexpr):
    """Return the scores of all queries as [keys, queries]: one store of them needs no barrier between queries."""
    if USED == 1:
        result = gl.expand_dims(s[0], 1)
    elif USED == 2:
        result = gl.join(s[0], s[1])
    else:
        result = gl.join(gl.join(s[0], s[2]), gl.join(s[1], s[3 if len(s) > 3 else 0])).reshape([KEYS, USED])
    return result


@gluon.jit
def _queries(x, angles, b, g, strides, of_key, PER: gl.constexpr, FRESH: gl.constexpr, FACTOR: gl.constexpr):
    """Return the PER queries [SIZE] of a kv head of sequence b, scaled, in f64; fresh ones are rotated by the
    angles.
    """
    queries = ()
    for j in gl.static_range(PER):
        head = x.heads + b.to(gl.int64) * strides.batch + (g * PER + j) * strides.head
        query = _turned(head, angles[0], angles[1], SIZE) if FRESH else gl.load(head + of_key)
        queries = queries + (query.to(gl.float64) * FACTOR,)
    return queries


@gluon.jit
def _write_row(lines, block, key, value, place, upto, of_key, of_value, TOKEN: gl.constexpr, BLOCK: gl.constexpr):
    """Store the first elements of a new key and its value [SIZE] at a place of their kv head, in a block."""
    k = lines.k + offset_of(lines, block, lines.k_stride, place, TOKEN, BLOCK)
    v = lines.v + offset_of(lines, block, lines.v_stride, place, TOKEN, BLOCK)
    gl.store(k + of_key, key, mask=of_key < upto)
    gl.store(v + of_value, value, mask=of_value < upto)


@gluon.jit
def _score(keys, queries, scores, PER: gl.constexpr, USED: gl.constexpr):
    """Write the scores of queries against keys [KEYS, SIZE] to shared memory, as [KEYS, USED]."""
    keys = keys.to(gl.float32).to(gl.float64)
    each = ()
    for j in gl.static_range(PER):
        each = each + (gl.sum(keys * gl.expand_dims(queries[j], 0), 1),)
    scores.reshape([KEYS, USED]).store(_side_by_side(each, USED))


@gluon.jit
def _weigh(top, scores, weights, fades, ranges, offset, end, PER: gl.constexpr, USED: gl.constexpr):
    """Write weights [USED, KEYS] and the factors of older sums [USED] to shared memory; return the largest scores.

    Both are relative to the largest scores; `top` [USED] are those so far. The scores are of keys from `offset` on;
    those from `end` on do not count.
    """
    s = scores.reshape([KEYS, USED]).permute((1, 0)).load(LS)
    s = gl.where(gl.expand_dims(ranges.query < PER, 1) & gl.expand_dims(offset + ranges.key < end, 0), s, float("-inf"))
    most = gl.maximum(top, gl.max(s, 1))
    base = gl.where(most == float("-inf"), 0.0, most)
    weights.reshape([USED, KEYS]).store(gl.exp(s - gl.expand_dims(base, 1)))
    fades.store(gl.exp(top - base))
    return most


@gluon.jit
def _mix(values, mixed, total, weights, fades, PER: gl.constexpr, USED: gl.constexpr):
    """Return the sums of weighted values [SIZE] and of weights of each query, with those of values [KEYS, SIZE]
    added.
    """
    values = values.to(gl.float32).to(gl.float64)
    more = ()
    summed = ()
    for j in gl.static_range(PER):
        w = weights.slice(j * KEYS, KEYS).load(gl.SliceLayout(1, LV))
        fade = _element(fades, j, USED)
        more = more + (mixed[j] * fade + gl.sum(values * gl.expand_dims(w, 1), 0),)
        summed = summed + (total[j] * fade + gl.sum(w, 0),)
    return more, summed


@gluon.jit
def _walk(
    keys, values, queries, lines, block, ranges, first, end, x, strides, g, company, batch, PER: gl.constexpr, USED: gl.constexpr,
    TOKEN: gl.constexpr, BLOCK: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    """Attend from queries to keys `first` to `end` of their kv head; the first KEYS and their values [KEYS, SIZE] are
    loaded, and the block of the next.

    SHARED: other sequences of the batch may write among these keys, and do if there is `company`. Returns the largest
    scores [USED], and of each query the sums of weights and of weighted values [SIZE]; both sums are relative to the
    largest score.
    """
    top = gl.full((USED,), float("-inf"), gl.float64, gl.SliceLayout(1, LS))
    mixed = ()
    total = ()
    for _ in gl.static_range(PER):
        mixed = mixed + (gl.zeros((SIZE,), gl.float64, gl.SliceLayout(0, LV)),)
        total = total + (gl.to_tensor(0.0).to(gl.float64),)
    scores = gl.allocate_shared_memory(gl.float64, [KEYS * USED], LINE)
    weights = gl.allocate_shared_memory(gl.float64, [USED * KEYS], LINE)  # a line for each query
    fades = gl.allocate_shared_memory(gl.float64, [USED], LINE)
    final = gl.maximum(end - 1, 0)
    for offset in range(first, end, KEYS):
        near, far = keys, values
        after = block_of(lines, gl.minimum(offset + 2 * KEYS, final), BLOCK)
        if SHARED:
            others = gl.where(company > 0, batch, 0)
            near, far = _with_all(near, far, x, strides, lines, g, offset, others, PER)
        _score(near, queries, scores, PER, USED)
        barrier()
        keys = _keys(
            lines, block, offset + KEYS, end, TOKEN, BLOCK
        )  # after a barrier: a new key among them has been written
        top = _weigh(top, scores, weights, fades, ranges, offset, end, PER, USED)
        barrier()
        mixed, total = _mix(far, mixed, total, weights, fades, PER, USED)
        values = _values(lines, block, offset + KEYS, end, TOKEN, BLOCK)
        block = after
    return top, total, mixed


@gluon.jit
def _give(out, head, total, mixed, d, PER: gl.constexpr):
    """Write the attention of each query, which has one share only; `out` is that of the first, and the next is `head` further."""
    for j in gl.static_range(PER):
        by = _inverse(total[j])
        y = gl.where(by == 0.0, 0.0, mixed[j] * by)
        gl.store(out + j * head + d, y.to(out.dtype.element_ty))


@gluon.jit
def _leave(part, tops, totals, p, top, total, mixed, row, d, PER: gl.constexpr, USED: gl.constexpr):
    """Write what share p says of each query: the largest score, the sum of weights, and that of weighted values [SIZE]."""
    gl.store(tops + p * USED + row, top, mask=row < PER, cache_modifier=".cg")
    for j in gl.static_range(PER):
        y = gl.where(total[j] == 0.0, 0.0, mixed[j])
        gl.store(part + (p * USED + j) * SIZE + d, y, cache_modifier=".cg")
        gl.store(totals + p * USED + j, total[j], cache_modifier=".cg")


@gluon.jit
def _sums(part, offset, parts, j: gl.constexpr, USED: gl.constexpr, TOGETHER: gl.constexpr):
    """Return the sums of some shares for a query, for each element of its head."""
    LJ: gl.constexpr = gl.BlockedLayout([TOGETHER, 1], [1, 32], [1, 4], [0, 1])
    p = offset + gl.arange(0, TOGETHER, layout=gl.SliceLayout(1, LJ))
    e = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LJ))
    cells = gl.expand_dims((p * USED + j) * SIZE, 1) + gl.expand_dims(e, 0)
    return gl.load(part + cells, mask=gl.expand_dims(p < parts, 1), other=0.0, cache_modifier=".cg")


@gluon.jit
def _join(part, tops, totals, out, head, parts, row, d, PER: gl.constexpr, MOST: gl.constexpr, TOGETHER: gl.constexpr):
    """Write the attention of each query, as `_give`: the sums of all shares, each by how much it counts; those of no keys count
    nothing."""
    USED: gl.constexpr = row.shape[0]
    LJ: gl.constexpr = gl.BlockedLayout([TOGETHER, 1], [1, 32], [1, 4], [0, 1])
    lane = gl.arange(0, LANES, layout=gl.SliceLayout(0, LS))
    line = gl.expand_dims(row, 1) + gl.expand_dims(lane * USED, 0)
    counted = gl.expand_dims(row < PER, 1) & gl.expand_dims(lane < parts, 0)
    top = gl.load(tops + line, mask=counted, other=float("-inf"), cache_modifier=".cg")
    total = gl.load(totals + line, mask=counted, other=0.0, cache_modifier=".cg")
    sums = ()
    y = ()
    for j in gl.static_range(PER):
        sums = sums + (_sums(part, 0, parts, j, USED, TOGETHER),)
        y = y + (gl.zeros((SIZE,), gl.float64, gl.SliceLayout(0, LJ)),)
    most = gl.max(top, 1)
    fade = gl.exp(top - gl.expand_dims(gl.where(most == float("-inf"), 0.0, most), 1))
    by = fade * gl.expand_dims(_inverse(gl.sum(total * fade, 1)), 1)
    weights = gl.allocate_shared_memory(gl.float64, [USED * LANES], LINE)
    weights.reshape([USED, LANES]).store(gl.where(total == 0.0, 0.0, by))
    barrier()
    for offset in gl.static_range(0, MOST, TOGETHER):
        if offset < parts:
            more = ()
            for j in gl.static_range(PER):
                w = gl.expand_dims(weights.slice(j * LANES + offset, TOGETHER).load(gl.SliceLayout(1, LJ)), 1)
                more = more + (y[j] + gl.sum(sums[j] * w, 0),)
            y = more
            if offset + TOGETHER < MOST:
                sums = ()
                for j in gl.static_range(PER):
                    sums = sums + (_sums(part, offset + TOGETHER, parts, j, USED, TOGETHER),)
    for j in gl.static_range(PER):
        gl.store(out + j * head + d, gl.convert_layout(y[j], d.type.layout).to(out.dtype.element_ty))


@gluon.jit
def _join_if_last(
    part, tops, totals, out, head, count, parts, ranges, PER: gl.constexpr, MOST: gl.constexpr, TOGETHER: gl.constexpr
):
    """Count this CTA; the last of a kv head to arrive joins all shares, TOGETHER of them at a time, and leaves the count zero for the
    next launch."""
    barrier()  # and the atomic's release: the last to count sees what all threads wrote
    if gl.atomic_add(count, 1, sem="acq_rel") == parts - 1:
        gl.store(count, 0)
        _join(part, tops, totals, out, head, parts, ranges.query, ranges.of_value, PER, MOST, TOGETHER)


@gluon.jit
def _of_shares(sums, share, batch, g, USED: gl.constexpr, PARTS: gl.constexpr):
    """Return what the shares of a kv head leave to be joined, from the first on: sums of values, largest scores, sums of weights."""
    line = (g * (batch * PARTS) + share.item).to(gl.int64) * USED
    return sums.mixed + line * SIZE, sums.tops + line, sums.totals + line


@gluon.jit
def _write_new(
    x,
    angles,
    lines,
    block,
    g,
    first,
    end,
    last,
    company,
    strides,
    ranges,
    PER: gl.constexpr,
    TOKEN: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """Return the new key and value of a sequence, which are stored in a block if this share has their place and no later sequence
    writes there."""
    mine = (first < last) & (end == last)
    key, value = _new_row(x, angles[0], angles[1], lines.b, g, strides, gl.where(mine, SIZE, 0), lines.k, PER)
    written = gl.where(mine & (company < 2), SIZE, 0)
    _write_row(lines, block, key, value, last - 1, written, ranges.of_key, ranges.of_value, TOKEN, BLOCK)
    return key, value


@gluon.jit
def _attend_share(
    x, keys, values, queries, lines, block, out, sums, counts, share, g, first, end, company, batch, strides, o_strides, ranges,
    PER: gl.constexpr, USED: gl.constexpr, PARTS: gl.constexpr, MOST: gl.constexpr, TOGETHER: gl.constexpr, TOKEN: gl.constexpr,
    BLOCK: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    """Attend to keys `first` to `end`, of which the first are loaded, and the block of the next: those of a `Share` of kv head g."""
    top, total, mixed = _walk(
        keys, values, queries, lines, block, ranges, first, end, x, strides, g, company, batch, PER, USED, TOKEN, BLOCK, SHARED
    )  # fmt: skip
    out += share.b.to(gl.int64) * o_strides.batch + g * PER * o_strides.head
    if (PARTS == 1) | (share.keys >= share.last):
        _give(out, o_strides.head, total, mixed, ranges.of_value, PER)
    elif PARTS > 1:
        parts = (share.last + share.keys - 1) // share.keys
        part, tops, totals = _of_shares(sums, share, batch, g, USED, PARTS)
        _leave(part, tops, totals, share.p, top, total, mixed, ranges.query, ranges.of_value, PER, USED)
        count = counts + g * batch + share.b
        _join_if_last(part, tops, totals, out, o_strides.head, count, parts, ranges, PER, MOST, TOGETHER)


@gluon.jit
def decode(
    x, k, v, places, out, sums, counts, batch, slots, capacity, x_strides, k_strides, v_strides, o_strides, PER: gl.constexpr,
    USED: gl.constexpr, PARTS: gl.constexpr, MOST: gl.constexpr, TOKEN: gl.constexpr, BLOCK: gl.constexpr, BATCH: gl.constexpr,
    PLACED: gl.constexpr, FRESH: gl.constexpr, SETTLED: gl.constexpr, FACTOR: gl.constexpr,
):  # fmt: skip
    """Attend from PER queries of one kv head to a share of its keys; the last CTA of a head to arrive joins all shares.

    x: `Tokens`; places: `Places`; sums: `PartSums` of `cuda.attention.attend`. FRESH: the tokens are fresh; k and v are written.
    SETTLED: no kernel that may still be running writes the places or older keys and values, so they are read before the wait. There
    are batch * PARTS shares, at most MOST of a sequence.
    """
    may_start()
    item, g = gl.program_id(0), gl.program_id(1)
    ranges = _ranges(USED)
    if not SETTLED:
        _ask_for_share(
            k, v, places, item // PARTS, g, item % PARTS, slots, capacity, k_strides, v_strides, PARTS, TOKEN, PLACED, BLOCK
        )  # fmt: skip
        wait_for_inputs()
    SHARED: gl.constexpr = FRESH and BATCH > 1
    AT_ONCE: gl.constexpr = JOINED // USED if BATCH == 1 else JOINED // (2 * USED)
    TOGETHER: gl.constexpr = MOST if MOST <= AT_ONCE else AT_ONCE
    all_places = everyone(places, batch, capacity, BATCH, PLACED)
    share = share_of(
        all_places, item, places, batch, slots, capacity, PARTS, MOST, KEYS, KEYS, BATCH, PLACED, BLOCK
    )  # fmt: skip
    if share.b < batch:
        first = share.p * share.keys
        end = gl.minimum(first + share.keys, share.last)
        lines = lines_of(k, v, places, share.b, g, share.slot, slots, k_strides, v_strides)
        final = gl.maximum(share.last - 1, 0)
        block, newest = block_of(lines, gl.minimum(first, final), BLOCK), block_of(lines, final, BLOCK)
        second = block_of(lines, gl.minimum(first + KEYS, final), BLOCK)
        keys, values = _keys(lines, block, first, end, TOKEN, BLOCK), _values(lines, block, first, end, TOKEN, BLOCK)
        others = 0
        if SHARED:
            others = company(all_places, share.b, share.slot, share.last, BATCH)
        if SETTLED:
            wait_for_inputs()
        angles = _angles(x, share.b, x_strides) if FRESH else ()
        queries = _queries(x, angles, share.b, g, x_strides, ranges.of_key, PER, FRESH, FACTOR)
        if FRESH:
            key, value = _write_new(
                x, angles, lines, newest, g, first, end, share.last, others, x_strides, ranges, PER, TOKEN, BLOCK
            )  # fmt: skip
            keys, values = _with_row(keys, values, key, value, gl.where(others == 0, share.last - 1, -1), first)
        _attend_share(
            x, keys, values, queries, lines, second, out, sums, counts, share, g, first, end, others, batch, x_strides, o_strides, ranges,
            PER, USED, PARTS, MOST, TOGETHER, TOKEN, BLOCK, SHARED,
        )  # fmt: skip


fix_cache_keys(globals())
