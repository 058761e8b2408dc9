"""Attention of one new token a sequence, in Gluon: f64 without tensor cores, whose operands would have to pass through shared
memory; what threads share there are scores and weights alone.

Knows nothing of torch or of choices. Heads have 128 elements, caches hold half floats. A program takes a share of the keys of
one kv head; `cuda.attention.attend` says how shares are joined. Keys: sixteen lanes along each. Values: a thread for each element of
a head, which adds up all keys by itself.

A token may come fresh: the heads of Q, K and V as their product gave them. Programs then turn what they need of it by themselves,
step by step as `rope_kernel` does, and the one whose share holds the new key writes it and its value to the cache. No program reads
what another writes: of sequences in one slot each makes the others' new keys anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda.linear.gemv import ask, may_start, wait_for_inputs

KEYS = gl.constexpr(16)  # that a program looks at together
LANES = gl.constexpr(32)
SIZE = gl.constexpr(128)  # of a head; as many threads
HALF = gl.constexpr(64)  # pairs of a head, and how far apart the elements of a pair are
WARPS = 4
JOINED = gl.constexpr(64)  # sums of shares that a thread loads together: what registers hold

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
    """Of a thread: three programs fit a multiprocessor; of several sequences whose shares are joined, two."""
    return 200 if batch > 1 and parts > 1 else 168


# ---- arguments that belong together


class Tokens(NamedTuple):
    """Of each sequence one: heads [batch, heads, SIZE], and cosines and sines of the pairs of a head [batch, HALF].

    Fresh tokens hold the heads of Q, K and V, none of them turned; others those of Q, and nobody looks at the angles.
    """

    heads: Any
    cos: Any
    sin: Any


class TokenStrides(NamedTuple):
    """From one sequence to the next, and of its heads from one to the next; then from one sequence's angles to the next's."""

    batch: Any
    head: Any
    cos: Any
    sin: Any


class SlotStrides(NamedTuple):
    """Of keys or values [slots, kv heads, capacity, SIZE]; from one key to the next it is TOKEN, a constant."""

    slot: Any
    head: Any


class OutStrides(NamedTuple):
    """Of the attention [batch, heads, SIZE]."""

    batch: Any
    head: Any


class Ranges(NamedTuple):
    """What numbers queries [USED] and keys [KEYS] where scores are, and elements of a key [SIZE] and of a value [SIZE]."""

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
    """By what sums of values are multiplied, given those of the weights; of no keys it is zero."""
    none = total == 0.0
    return gl.where(none, 0.0, 1.0 / gl.where(none, 1.0, total))


@gluon.jit
def _told(shared, j: gl.constexpr, USED: gl.constexpr):
    """Number j of those that lie in shared memory, for every thread."""
    ALL: gl.constexpr = gl.BlockedLayout([USED], [32], [gl.num_warps()], [0])
    found = shared.load(ALL)
    return gl.sum(gl.where(gl.arange(0, USED, layout=ALL) == j, found, 0.0), 0)


# ---- where a sequence lies


@gluon.jit
def _place(places, b, slots, capacity, PLACED: gl.constexpr):
    """The slot of a sequence, and how many keys its token sees: none where it lies outside of the cache."""
    slot = b
    last = capacity
    if PLACED:
        slot = gl.load(places + b * 3, cache_modifier=".cg")
        start = gl.load(places + b * 3 + 1, cache_modifier=".cg")
        count = gl.load(places + b * 3 + 2, cache_modifier=".cg")
        inside = (slot >= 0) & (slot < slots) & (start >= 0) & (start < capacity) & (count == 1)
        slot, last = gl.where(inside, slot, 0), gl.where(inside, start + 1, 0)
    return slot, last


@gluon.jit
def _company(places, b, slot, last, batch, BATCH: gl.constexpr):
    """Who else writes among the keys of a sequence: 0 nobody, 1 someone, 2 a later one where its own new key stands."""
    PAIR: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])  # every warp sees all
    o = gl.arange(0, BATCH, layout=gl.SliceLayout(0, PAIR))
    meant = o < batch
    o_slot = gl.load(places + o * 3, mask=meant, other=-1, cache_modifier=".cg")
    start = gl.load(places + o * 3 + 1, mask=meant, other=0, cache_modifier=".cg")
    count = gl.load(places + o * 3 + 2, mask=meant, other=0, cache_modifier=".cg")
    among = (o_slot == slot) & (o != b) & (start < last) & (count > 0)
    covers = among & (o > b) & (last - 1 < start + count)
    return gl.max(among.to(gl.int32) + covers.to(gl.int32), 0)


@gluon.jit
def _share(last, PARTS: gl.constexpr):
    """How many of so many keys a program takes."""
    return gl.maximum((last + (PARTS * KEYS - 1)) // (PARTS * KEYS), 1) * KEYS


@gluon.jit
def _ask_for_share(
    k, v, places, b, g, p, slots, capacity, k_strides, v_strides, PARTS: gl.constexpr, TOKEN: gl.constexpr,
    PLACED: gl.constexpr,
):  # fmt: skip
    """Have the first keys and values of a share brought near: two lines each. The places may yet change, but any of the cache
    can be asked for."""
    slot, last = _place(places, b, slots, capacity, PLACED)
    i = gl.arange(0, 4 * KEYS, layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    key = gl.minimum(p * _share(last, PARTS) + i // 4, capacity - 1).to(gl.int64)
    of_k = k + slot.to(gl.int64) * k_strides.slot + g.to(gl.int64) * k_strides.head + key * TOKEN + i % 2 * (SIZE // 2)
    of_v = v + slot.to(gl.int64) * v_strides.slot + g.to(gl.int64) * v_strides.head + key * TOKEN + i % 2 * (SIZE // 2)
    ask(gl.where(i // 2 % 2 == 0, of_k.to(gl.int64), of_v.to(gl.int64)))


@gluon.jit
def _keys(k, at, end, TOKEN: gl.constexpr):
    """Keys `at` on, as they lie; those from `end` on are zero."""
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    along = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LK))
    lie = gl.expand_dims(near * TOKEN, 1) + gl.expand_dims(along, 0)
    k += at.to(gl.int64) * TOKEN
    return gl.load(k + lie, mask=gl.expand_dims(at + near < end, 1), other=0.0, cache_modifier=".cg")


@gluon.jit
def _values(v, at, end, TOKEN: gl.constexpr):
    """Values `at` on, as `_keys`."""
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    lie = gl.expand_dims(far * TOKEN, 1) + gl.expand_dims(d, 0)
    v += at.to(gl.int64) * TOKEN
    return gl.load(v + lie, mask=gl.expand_dims(at + far < end, 1), other=0.0, cache_modifier=".cg")


# ---- a fresh token


@gluon.jit
def _times(a, b):
    """A product that is rounded before anything is added to it."""
    return gl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _angles(x, b, strides):
    """Cosine and sine [HALF] of each pair of a head of sequence b."""
    i = gl.arange(0, HALF, layout=LH)
    return gl.load(x.cos + b.to(gl.int64) * strides.cos + i), gl.load(x.sin + b.to(gl.int64) * strides.sin + i)


@gluon.jit
def _turned(x, c, s, upto):
    """A head whose pairs are turned; only the first pairs are looked at."""
    i = gl.arange(0, HALF, layout=LH)
    a, z = gl.load(x + i, mask=i < upto, other=0.0), gl.load(x + HALF + i, mask=i < upto, other=0.0)
    pairs = gl.join(_times(a, c) - _times(z, s), _times(z, c) + _times(a, s))
    return gl.convert_layout(pairs.permute((1, 0)).reshape([SIZE]), gl.SliceLayout(0, LK))


@gluon.jit
def _new_row(x, c, s, b, g, strides, upto, like, PER: gl.constexpr):
    """The new key and the new value [SIZE] of a sequence as the cache keeps them: their first elements."""
    shared = gl.num_programs(1)
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    heads = x.heads + b.to(gl.int64) * strides.batch
    key = _turned(heads + (shared * PER + g) * strides.head, c, s, upto)
    value = gl.load(heads + (shared * (PER + 1) + g) * strides.head + d, mask=d < upto, other=0.0)
    return key.to(like.dtype.element_ty), value.to(like.dtype.element_ty)


@gluon.jit
def _with_row(keys, values, key, value, place, at):
    """Keys and values `at` on, with a row in its place among them; those of another place stay."""
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    keys = gl.where(gl.expand_dims(at + near == place, 1), gl.expand_dims(key, 0), keys)
    values = gl.where(gl.expand_dims(at + far == place, 1), gl.expand_dims(value, 0), values)
    return keys, values


@gluon.jit
def _with_all(keys, values, x, strides, places, g, at, slot, batch, like, PER: gl.constexpr):
    """Keys and values `at` on of a slot, with the rows that all sequences write there: of several at one place the last; nothing,
    if that one lies outside."""
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    old_keys, old_values = keys, values
    for o in range(batch):
        o_slot = gl.load(places + o * 3, cache_modifier=".cg")
        start = gl.load(places + o * 3 + 1, cache_modifier=".cg")
        count = gl.load(places + o * 3 + 2, cache_modifier=".cg")
        if (o_slot == slot) & (start < at + KEYS) & (at < start + count):
            c, s = _angles(x, o, strides)
            key, value = _new_row(x, c, s, o, g, strides, SIZE, like, PER)
            k_covered = gl.expand_dims((at + near >= start) & (at + near < start + count), 1)
            v_covered = gl.expand_dims((at + far >= start) & (at + far < start + count), 1)
            keys, values = gl.where(k_covered, old_keys, keys), gl.where(v_covered, old_values, values)
            place = gl.where((count == 1) & (start >= 0), start, -1)
            keys, values = _with_row(keys, values, key, value, place, at)
    return keys, values


# ---- attention


@gluon.jit
def _side_by_side(s, USED: gl.constexpr):
    """The scores of all queries as [keys, queries]: one store of them needs no wait between queries."""
    if USED == 1:
        found = gl.expand_dims(s[0], 1)
    elif USED == 2:
        found = gl.join(s[0], s[1])
    else:
        found = gl.join(gl.join(s[0], s[2]), gl.join(s[1], s[3 if len(s) > 3 else 0])).reshape([KEYS, USED])
    return found


@gluon.jit
def _queries(x, angles, b, g, strides, of_key, PER: gl.constexpr, FRESH: gl.constexpr, FACTOR: gl.constexpr):
    """The PER queries [SIZE] of a kv head of sequence b, scaled, in f64; fresh ones are turned by the angles."""
    queries = ()
    for j in gl.static_range(PER):
        head = x.heads + b.to(gl.int64) * strides.batch + (g * PER + j) * strides.head
        query = _turned(head, angles[0], angles[1], SIZE) if FRESH else gl.load(head + of_key)
        queries = queries + (query.to(gl.float64) * FACTOR,)
    return queries


@gluon.jit
def _write_row(k, v, key, value, place, upto, of_key, of_value, TOKEN: gl.constexpr):
    """The first elements of a new key and its value [SIZE] to a place of their kv head."""
    gl.store(k + place.to(gl.int64) * TOKEN + of_key, key, mask=of_key < upto)
    gl.store(v + place.to(gl.int64) * TOKEN + of_value, value, mask=of_value < upto)


@gluon.jit
def _score(keys, queries, scores, PER: gl.constexpr, USED: gl.constexpr):
    """Leave the scores of queries against keys [KEYS, SIZE] in shared memory, as [KEYS, USED]."""
    keys = keys.to(gl.float32).to(gl.float64)
    each = ()
    for j in gl.static_range(PER):
        each = each + (gl.sum(keys * gl.expand_dims(queries[j], 0), 1),)
    scores.reshape([KEYS, USED]).store(_side_by_side(each, USED))


@gluon.jit
def _weigh(top, scores, weights, fades, ranges, at, end, PER: gl.constexpr, USED: gl.constexpr):
    """Leave weights [USED, KEYS] and by how much older sums fade [USED] in shared memory, against the largest scores, which are
    returned; `top` [USED] are those so far. The scores are of keys `at` on; those from `end` on do not count."""
    s = scores.reshape([KEYS, USED]).permute((1, 0)).load(LS)
    s = gl.where(gl.expand_dims(ranges.query < PER, 1) & gl.expand_dims(at + ranges.key < end, 0), s, float("-inf"))
    most = gl.maximum(top, gl.max(s, 1))
    base = gl.where(most == float("-inf"), 0.0, most)
    weights.reshape([USED, KEYS]).store(gl.exp(s - gl.expand_dims(base, 1)))
    fades.store(gl.exp(top - base))
    return most


@gluon.jit
def _mix(values, mixed, total, weights, fades, PER: gl.constexpr, USED: gl.constexpr):
    """Sums of weighted values [SIZE] and of weights of each query, with those of values [KEYS, SIZE]."""
    values = values.to(gl.float32).to(gl.float64)
    more = ()
    summed = ()
    for j in gl.static_range(PER):
        w = weights.slice(j * KEYS, KEYS).load(gl.SliceLayout(1, LV))
        fade = _told(fades, j, USED)
        more = more + (mixed[j] * fade + gl.sum(values * gl.expand_dims(w, 1), 0),)
        summed = summed + (total[j] * fade + gl.sum(w, 0),)
    return more, summed


@gluon.jit
def _walk(
    keys, values, queries, k, v, ranges, first, end, x, strides, places, g, slot, company, batch, PER: gl.constexpr, USED: gl.constexpr,
    TOKEN: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    """Queries against keys `first` to `end` of their kv head, of which the first KEYS and their values [KEYS, SIZE] are there.

    SHARED: others of the batch may write among these keys, and do if there is `company`. Returns the largest scores [USED], and of
    each query the sums of weights and of weighted values [SIZE]; both sums are against the largest score."""
    top = gl.full((USED,), float("-inf"), gl.float64, gl.SliceLayout(1, LS))
    mixed = ()
    total = ()
    for _ in gl.static_range(PER):
        mixed = mixed + (gl.zeros((SIZE,), gl.float64, gl.SliceLayout(0, LV)),)
        total = total + (gl.to_tensor(0.0).to(gl.float64),)
    scores = gl.allocate_shared_memory(gl.float64, [KEYS * USED], LINE)
    weights = gl.allocate_shared_memory(gl.float64, [USED * KEYS], LINE)  # a line for each query
    fades = gl.allocate_shared_memory(gl.float64, [USED], LINE)
    for at in range(first, end, KEYS):
        near, far = keys, values
        if SHARED:
            others = gl.where(company > 0, batch, 0)
            near, far = _with_all(near, far, x, strides, places, g, at, slot, others, k, PER)
        _score(near, queries, scores, PER, USED)
        gl.thread_barrier()
        keys = _keys(k, at + KEYS, end, TOKEN)  # after a barrier: a new key that stands there has been written
        top = _weigh(top, scores, weights, fades, ranges, at, end, PER, USED)
        gl.thread_barrier()
        mixed, total = _mix(far, mixed, total, weights, fades, PER, USED)
        values = _values(v, at + KEYS, end, TOKEN)
    return top, total, mixed


@gluon.jit
def _give(out, head, total, mixed, d, PER: gl.constexpr):
    """Write the attention of each query, which has one share only; `out` is that of the first, and the next is `head` further."""
    for j in gl.static_range(PER):
        by = _inverse(total[j])
        y = gl.where(by == 0.0, 0.0, mixed[j] * by)
        gl.store(out + j * head + d, y.to(out.dtype.element_ty))


@gluon.jit
def _leave(part, tops, totals, p, top, total, mixed, row, d, PER: gl.constexpr, PARTS: gl.constexpr):
    """Write what share p says of each query: the largest score, the sum of weights, and that of weighted values [SIZE]."""
    gl.store(tops + row * PARTS + p, top, mask=row < PER, cache_modifier=".cg")
    for j in gl.static_range(PER):
        y = gl.where(total[j] == 0.0, 0.0, mixed[j])
        gl.store(part + (j * PARTS + p) * SIZE + d, y, cache_modifier=".cg")
        gl.store(totals + j * PARTS + p, total[j], cache_modifier=".cg")


@gluon.jit
def _sums(part, at, parts, j: gl.constexpr, PARTS: gl.constexpr, TOGETHER: gl.constexpr):
    """What some shares say of a query, for each element of its head."""
    LJ: gl.constexpr = gl.BlockedLayout([TOGETHER, 1], [1, 32], [1, 4], [0, 1])
    p = at + gl.arange(0, TOGETHER, layout=gl.SliceLayout(1, LJ))
    e = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LJ))
    lies = gl.expand_dims((j * PARTS + p) * SIZE, 1) + gl.expand_dims(e, 0)
    return gl.load(part + lies, mask=gl.expand_dims(p < parts, 1), other=0.0, cache_modifier=".cg")


@gluon.jit
def _join(part, tops, totals, out, head, parts, row, d, PER: gl.constexpr, PARTS: gl.constexpr):
    """Write the attention of each query, as `_give`: the sums of all shares, each by how much it counts; those of no keys count
    nothing."""
    USED: gl.constexpr = row.shape[0]
    TOGETHER: gl.constexpr = PARTS if PARTS * USED <= JOINED else JOINED // USED
    LJ: gl.constexpr = gl.BlockedLayout([TOGETHER, 1], [1, 32], [1, 4], [0, 1])
    lane = gl.arange(0, LANES, layout=gl.SliceLayout(0, LS))
    line = gl.expand_dims(row * PARTS, 1) + gl.expand_dims(lane, 0)
    counted = gl.expand_dims(row < PER, 1) & gl.expand_dims(lane < parts, 0)
    top = gl.load(tops + line, mask=counted, other=float("-inf"), cache_modifier=".cg")
    total = gl.load(totals + line, mask=counted, other=0.0, cache_modifier=".cg")
    sums = ()
    y = ()
    for j in gl.static_range(PER):
        sums = sums + (_sums(part, 0, parts, j, PARTS, TOGETHER),)
        y = y + (gl.zeros((SIZE,), gl.float64, gl.SliceLayout(0, LJ)),)
    most = gl.max(top, 1)
    fade = gl.exp(top - gl.expand_dims(gl.where(most == float("-inf"), 0.0, most), 1))
    by = fade * gl.expand_dims(_inverse(gl.sum(total * fade, 1)), 1)
    weights = gl.allocate_shared_memory(gl.float64, [USED * LANES], LINE)
    weights.reshape([USED, LANES]).store(gl.where(total == 0.0, 0.0, by))
    gl.thread_barrier()
    for at in gl.static_range(0, PARTS, TOGETHER):
        if at < parts:
            more = ()
            for j in gl.static_range(PER):
                w = gl.expand_dims(weights.slice(j * LANES + at, TOGETHER).load(gl.SliceLayout(1, LJ)), 1)
                more = more + (y[j] + gl.sum(sums[j] * w, 0),)
            y = more
            if at + TOGETHER < PARTS:
                sums = ()
                for j in gl.static_range(PER):
                    sums = sums + (_sums(part, at + TOGETHER, parts, j, PARTS, TOGETHER),)
    for j in gl.static_range(PER):
        gl.store(out + j * head + d, gl.convert_layout(y[j], d.type.layout).to(out.dtype.element_ty))


@gluon.jit
def decode(
    x, k, v, places, out, sums, counts, batch, slots, capacity, x_strides, k_strides, v_strides, o_strides, PER: gl.constexpr,
    USED: gl.constexpr, PARTS: gl.constexpr, TOKEN: gl.constexpr, BATCH: gl.constexpr, PLACED: gl.constexpr, FRESH: gl.constexpr,
    SETTLED: gl.constexpr, FACTOR: gl.constexpr,
):  # fmt: skip
    """PER queries of one kv head against a share of its keys; the last program of a head to arrive joins all shares.

    x: `Tokens`; sums: `PartSums` of `cuda.attention.attend`. FRESH: the tokens are fresh; k and v are written. SETTLED: no kernel
    that may still be running writes the places or older keys and values, so they are read before the wait."""
    may_start()
    b, g, p = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    ranges = _ranges(USED)
    if not SETTLED:
        _ask_for_share(k, v, places, b, g, p, slots, capacity, k_strides, v_strides, PARTS, TOKEN, PLACED)
        wait_for_inputs()
    slot, last = _place(places, b, slots, capacity, PLACED)
    SHARED: gl.constexpr = FRESH and BATCH > 1
    company = 0
    if SHARED:
        company = _company(places, b, slot, last, batch, BATCH)
    share = _share(last, PARTS)
    first = p * share
    if (first < last) | (p == 0):
        end = gl.minimum(first + share, last)
        k += slot.to(gl.int64) * k_strides.slot + g.to(gl.int64) * k_strides.head
        v += slot.to(gl.int64) * v_strides.slot + g.to(gl.int64) * v_strides.head
        keys, values = _keys(k, first, end, TOKEN), _values(v, first, end, TOKEN)
        if SETTLED:
            wait_for_inputs()
        angles = _angles(x, b, x_strides) if FRESH else ()
        queries = _queries(x, angles, b, g, x_strides, ranges.of_key, PER, FRESH, FACTOR)
        if FRESH:
            mine = (first < last) & (end == last)
            key, value = _new_row(x, angles[0], angles[1], b, g, x_strides, gl.where(mine, SIZE, 0), k, PER)
            written = gl.where(mine & (company < 2), SIZE, 0)
            _write_row(k, v, key, value, last - 1, written, ranges.of_key, ranges.of_value, TOKEN)
            keys, values = _with_row(keys, values, key, value, gl.where(company == 0, last - 1, -1), first)
        top, total, mixed = _walk(
            keys, values, queries, k, v, ranges, first, end, x, x_strides, places, g, slot, company, batch, PER, USED, TOKEN, SHARED
        )  # fmt: skip
        out += b.to(gl.int64) * o_strides.batch + g * PER * o_strides.head
        if (PARTS == 1) | (share >= last):
            _give(out, o_strides.head, total, mixed, ranges.of_value, PER)
        elif PARTS > 1:
            parts = (last + share - 1) // share
            group = b * gl.num_programs(1) + g
            line = group.to(gl.int64) * (USED * PARTS)
            tops, totals, part = sums.tops + line, sums.totals + line, sums.mixed + line * SIZE
            _leave(part, tops, totals, p, top, total, mixed, ranges.query, ranges.of_value, PER, PARTS)
            gl.thread_barrier()  # and the atomic's release: what all threads wrote is seen by who counts last
            if gl.atomic_add(counts + group, 1, sem="acq_rel") == parts - 1:
                gl.store(counts + group, 0)
                _join(part, tops, totals, out, o_strides.head, parts, ranges.query, ranges.of_value, PER, PARTS)
