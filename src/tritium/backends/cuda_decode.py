"""Attention of one new token a sequence, in Gluon: f64 without tensor cores, whose operands would have to pass through shared
memory; what threads share there are parts of scores, and weights.

Knows nothing of torch or of choices. Heads have 128 elements, caches hold half floats. A program takes a share of the keys of
one kv head; `cuda_attention` says how shares are joined. Keys: sixteen lanes along each. Values: a thread for each element of
a head, which adds up all keys by itself.

A token may come fresh: the heads of Q, K and V as their product gave them. Programs then turn what they need of it by themselves,
step by step as `rope_kernel` does, and the one whose share holds the new key writes it and its value to the cache. No program reads
what another writes: of sequences in one slot each makes the others' new keys anew, and takes them one by one after the older.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda_gemv import ask, may_start, wait_for_inputs

KEYS = gl.constexpr(16)  # that a program looks at together
LANES = gl.constexpr(32)
SIZE = gl.constexpr(128)  # of a head; as many threads
HALF = gl.constexpr(64)  # pairs of a head, and how far apart the elements of a pair are
WARPS = 4
REGISTERS = 168  # of a thread: the most with which a multiprocessor runs three programs at once
BESIDE = 3
COMPLETE = gl.constexpr(1 << 16)  # what all shares of a head count, however many: one each, and the last what is left
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
LINES = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))  # one for each query
TURN = gl.constexpr(gl.SwizzledSharedLayout(2, 1, 8, [1, 0]))  # columns are written and lines read without collisions

LARGEST = gl.constexpr("""{
    .reg .b32 low, high, l, h, sign, rest;
    .reg .pred first;
    mov.b64 {low, high}, $1;
    shr.s32 sign, high, 31;
    and.b32 rest, sign, 0x7fffffff;
    xor.b32 low, low, sign;
    xor.b32 high, high, rest;
    redux.sync.max.s32 h, high, 0xffffffff;
    setp.eq.s32 first, high, h;
    selp.b32 low, low, 0, first;
    redux.sync.max.u32 l, low, 0xffffffff;
    shr.s32 sign, h, 31;
    and.b32 rest, sign, 0x7fffffff;
    xor.b32 l, l, sign;
    xor.b32 h, h, rest;
    mov.b64 $0, {l, h};
}""")  # the halves of a number as integers that stand in the order of numbers: all bits but the sign of a negative one flipped


@gluon.jit
def _largest(x):
    """The largest number that the lanes of a warp hold, one each, for all of them."""
    return gl.inline_asm_elementwise(LARGEST, "=d,d", [x], dtype=gl.float64, is_pure=False, pack=1)


@gluon.jit
def _inverse(total):
    """By what sums of values are multiplied, given those of the weights; of no keys it is zero."""
    none = total == 0.0
    return gl.where(none, 0.0, 1.0 / gl.where(none, 1.0, total))


@gluon.jit
def _told(shared, j: gl.constexpr):
    """The first number of line j of shared memory, for every element of a head."""
    WIDE: gl.constexpr = shared.shape[1]
    return shared.reshape([shared.shape[0] * WIDE]).slice(j * WIDE, 1).load(gl.SliceLayout(0, LV))


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
    ALL: gl.constexpr = BATCH if BATCH > LANES else LANES  # a lane for each: they are known to find the same
    o = gl.arange(0, ALL, layout=gl.SliceLayout(0, PAIR))
    meant = o < batch
    o_slot = gl.load(places + o * 3, mask=meant, other=-1, cache_modifier=".cg")
    start = gl.load(places + o * 3 + 1, mask=meant, other=0, cache_modifier=".cg")
    count = gl.load(places + o * 3 + 2, mask=meant, other=0, cache_modifier=".cg")
    among = (o_slot == slot) & (o != b) & (start < last) & (count > 0)
    covers = among & (o > b) & (last - 1 < start + count)
    return gl.max(among.to(gl.int32) + covers.to(gl.int32), 0)


@gluon.jit
def _brought(places, o, slot, batch, BATCH: gl.constexpr):
    """Where a sequence brings a new key to a slot; -1: it does not, or a later one covers that place."""
    o_slot = gl.load(places + o * 3, cache_modifier=".cg")
    start = gl.load(places + o * 3 + 1, cache_modifier=".cg")
    count = gl.load(places + o * 3 + 2, cache_modifier=".cg")
    covered = _company(places, o, slot, start + 1, batch, BATCH) == 2
    return gl.where((o_slot == slot) & (count == 1) & (not covered), start, -1)


@gluon.jit
def _share(last, PARTS: gl.constexpr):
    """How many of so many keys a program takes."""
    return gl.maximum((last + (PARTS * KEYS - 1)) // (PARTS * KEYS), 1) * KEYS


@gluon.jit
def _ask_for_share(
    k, v, places, b, g, p, slots, capacity, k_slot, k_head, v_slot, v_head, PARTS: gl.constexpr, TOKEN: gl.constexpr,
    PLACED: gl.constexpr,
):  # fmt: skip
    """Have the first keys and values of a share brought near: two lines each. The places may yet change, but any of the cache
    can be asked for."""
    slot, last = _place(places, b, slots, capacity, PLACED)
    i = gl.arange(0, 4 * KEYS, layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    key = gl.minimum(p * _share(last, PARTS) + i // 4, capacity - 1).to(gl.int64)
    of_k = k + slot.to(gl.int64) * k_slot + g.to(gl.int64) * k_head + key * TOKEN + i % 2 * (SIZE // 2)
    of_v = v + slot.to(gl.int64) * v_slot + g.to(gl.int64) * v_head + key * TOKEN + i % 2 * (SIZE // 2)
    ask(gl.where(i // 2 % 2 == 0, of_k.to(gl.int64), of_v.to(gl.int64)))


@gluon.jit
def _live(places, at, end, slot, many):
    """Which keys `at` on are looked at where they lie, a bit for each: those before `end`, less those that one of the first `many`
    sequences brings anew. Of several that cover a key the last counts; one that lies outside brings nothing."""
    anew = 0
    for o in range(many):
        o_slot = gl.load(places + o * 3, cache_modifier=".cg")
        start = gl.load(places + o * 3 + 1, cache_modifier=".cg")
        count = gl.load(places + o * 3 + 2, cache_modifier=".cg")
        covered = gl.where(o_slot == slot, _bits(start + count - at) & ~_bits(start - at), 0)
        anew = gl.where((count == 1) & (start >= 0), anew | covered, anew & ~covered)
    return _bits(end - at) & ~anew


@gluon.jit
def _bits(n):
    """A bit for each of the first n keys of a block."""
    return (1 << gl.minimum(gl.maximum(n, 0), KEYS)) - 1


@gluon.jit
def _is(live, key):
    """Whether a key of a block is among those that live."""
    return (live >> key) & 1 != 0


@gluon.jit
def _keys(k, at, live, TOKEN: gl.constexpr):
    """Keys `at` on, as they lie; those that do not live are zero."""
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    along = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LK))
    lie = gl.expand_dims(near * TOKEN, 1) + gl.expand_dims(along, 0)
    k += at.to(gl.int64) * TOKEN
    return gl.load(k + lie, mask=gl.expand_dims(_is(live, near), 1), other=0.0, cache_modifier=".cg")


@gluon.jit
def _values(v, at, live, TOKEN: gl.constexpr):
    """Values `at` on, as `_keys`."""
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    lie = gl.expand_dims(far * TOKEN, 1) + gl.expand_dims(d, 0)
    v += at.to(gl.int64) * TOKEN
    return gl.load(v + lie, mask=gl.expand_dims(_is(live, far), 1), other=0.0, cache_modifier=".cg")


# ---- a fresh token


@gluon.jit
def _times(a, b):
    """A product that is rounded before anything is added to it."""
    return gl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _angles(cos, sin, b, c_batch, s_batch):
    """Cosine and sine of each pair of a head."""
    i = gl.arange(0, HALF, layout=LH)
    return gl.load(cos + b.to(gl.int64) * c_batch + i), gl.load(sin + b.to(gl.int64) * s_batch + i)


@gluon.jit
def _turned(x, c, s, upto):
    """A head whose pairs are turned; only the first pairs are looked at."""
    i = gl.arange(0, HALF, layout=LH)
    a, z = gl.load(x + i, mask=i < upto, other=0.0), gl.load(x + HALF + i, mask=i < upto, other=0.0)
    pairs = gl.join(_times(a, c) - _times(z, s), _times(z, c) + _times(a, s))
    return gl.convert_layout(pairs.permute((1, 0)).reshape([SIZE]), gl.SliceLayout(0, LK))


@gluon.jit
def _new_row(x, c, s, b, g, x_batch, x_head, upto, like, PER: gl.constexpr):
    """The new key and the new value of a sequence as the cache keeps them: their first elements."""
    shared = gl.num_programs(1)
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    x += b.to(gl.int64) * x_batch
    key = _turned(x + (shared * PER + g) * x_head, c, s, upto)
    value = gl.load(x + (shared * (PER + 1) + g) * x_head + d, mask=d < upto, other=0.0)
    return key.to(like.dtype.element_ty), value.to(like.dtype.element_ty)


@gluon.jit
def _with_row(keys, values, key, value, place, at):
    """Keys and values `at` on, with a row in its place among them; those of another place stay."""
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    keys = gl.where(gl.expand_dims(at + near == place, 1), gl.expand_dims(key, 0), keys)
    values = gl.where(gl.expand_dims(at + far == place, 1), gl.expand_dims(value, 0), values)
    return keys, values


# ---- attention


@gluon.jit
def _runs(near, query):
    """What each of the sixteen threads along a key finds of its score: the sum of its own elements, as [keys, threads]."""
    return gl.sum(gl.sum((near * gl.expand_dims(query, 0)).reshape([KEYS, 2, KEYS, 4]), 3), 1)


@gluon.jit
def _side_by_side(s, USED: gl.constexpr):
    """What threads found for all queries as [queries * threads, keys]: one store of them needs no wait between queries."""
    if USED == 1:
        found = s[0].reshape([KEYS, KEYS, 1])
    elif USED == 2:
        found = gl.join(s[0], s[1])
    else:
        found = gl.join(gl.join(s[0], s[2]), gl.join(s[1], s[3 if len(s) > 3 else 0])).reshape([KEYS, KEYS, USED])
    return found.permute((2, 1, 0)).reshape([USED * KEYS, KEYS])


@gluon.jit
def _score(runs, keys, queries, PER: gl.constexpr, USED: gl.constexpr):
    """Leave what threads find of the scores of a block of keys where all find it."""
    near = keys.to(gl.float32).to(gl.float64)
    found = ()
    for j in gl.static_range(PER):
        found = found + (_runs(near, queries[j]),)
    runs.store(_side_by_side(found, USED))
    gl.thread_barrier()


@gluon.jit
def _mix(runs, weights, fades, values, live, top, mixed, summed, PER: gl.constexpr, USED: gl.constexpr):
    """The largest scores and both sums, with those of a block of whose scores threads have left what they found."""
    WARP: gl.constexpr = [[16, 0] if USED > 1 else [0, 0], [32, 0] if USED > 2 else [0, 0]]
    LR: gl.constexpr = gl.DistributedLinearLayout(
        [[1, 0], [2, 0], [4, 0]], [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]], WARP, [], [USED * KEYS, KEYS]
    )
    row = gl.arange(0, USED, layout=gl.SliceLayout(1, LS))
    lane = gl.arange(0, KEYS, layout=gl.SliceLayout(0, LS))
    s = gl.convert_layout(gl.sum(runs.load(LR).reshape([USED, KEYS, KEYS]), 1), LS, assert_trivial=True)
    s = gl.where(gl.expand_dims(row < PER, 1) & gl.expand_dims(_is(live, lane), 0), s, float("-inf"))
    most = gl.maximum(top, _largest(s))
    base = gl.where(most == float("-inf"), 0.0, most)
    weight, fade = gl.exp(s - base), gl.exp(top - base)
    weights.store(weight)
    fades.store(fade)
    gl.thread_barrier()
    far = values.to(gl.float32).to(gl.float64)
    more = ()
    for j in gl.static_range(PER):
        w = weights.reshape([USED * KEYS]).slice(j * KEYS, KEYS).load(gl.SliceLayout(1, LV))
        more = more + (mixed[j] * _told(fades, j) + gl.sum(far * gl.expand_dims(w, 1), 0),)
    return most, more, summed * fade + weight


@gluon.jit
def decode(
    q, cos, sin, k, v, places, out, part, tops, totals, counts, batch, slots, capacity, q_batch, q_head, c_batch, s_batch, k_slot,
    k_head, v_slot, v_head, o_batch, o_head, PER: gl.constexpr, USED: gl.constexpr, PARTS: gl.constexpr, TOKEN: gl.constexpr,
    BATCH: gl.constexpr, PLACED: gl.constexpr, FRESH: gl.constexpr, SETTLED: gl.constexpr, FACTOR: gl.constexpr,
):  # fmt: skip
    """PER queries of one kv head against a share of its keys; the last program of a head to arrive joins all shares.

    FRESH: q holds the heads of Q, K and V, none of them turned; k and v are written. SETTLED: no kernel that may still be running
    writes the places or older keys and values, so they are read before the wait."""
    may_start()
    b, g, p = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    row = gl.arange(0, USED, layout=gl.SliceLayout(1, LS))
    lane = gl.arange(0, KEYS, layout=gl.SliceLayout(0, LS))
    along = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LK))
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    runs = gl.allocate_shared_memory(gl.float64, [USED * KEYS, KEYS], TURN)
    weights = gl.allocate_shared_memory(gl.float64, [USED, KEYS], LINES)
    fades = gl.allocate_shared_memory(gl.float64, [USED, KEYS], LINES)
    # Those of `_join` and `_give` too: made there, they would lie where others lay, and wait for their readers.
    shares = gl.allocate_shared_memory(gl.float64, [USED, LANES], LINES)
    inverses = gl.allocate_shared_memory(gl.float64, [USED, KEYS], LINES)
    if not SETTLED:
        _ask_for_share(k, v, places, b, g, p, slots, capacity, k_slot, k_head, v_slot, v_head, PARTS, TOKEN, PLACED)
        wait_for_inputs()
    slot, last = _place(places, b, slots, capacity, PLACED)
    company, many = 0, 0
    if FRESH and BATCH > 1:
        company = _company(places, b, slot, last, batch, BATCH)
        many = gl.where(company > 0, batch, 0)
    share = _share(last, PARTS)
    first = p * share
    if (first < last) | (p == 0):
        end = gl.minimum(first + share, last)
        k += slot.to(gl.int64) * k_slot + g.to(gl.int64) * k_head
        v += slot.to(gl.int64) * v_slot + g.to(gl.int64) * v_head
        live = _live(places, first, end, slot, many)
        keys, values = _keys(k, first, live, TOKEN), _values(v, first, live, TOKEN)
        if SETTLED:
            wait_for_inputs()
        queries = ()
        if FRESH:
            turn_c, turn_s = _angles(cos, sin, b, c_batch, s_batch)
        for j in gl.static_range(PER):
            head = q + b.to(gl.int64) * q_batch + (g * PER + j) * q_head
            x = _turned(head, turn_c, turn_s, SIZE) if FRESH else gl.load(head + along)
            queries = queries + (x.to(gl.float64) * FACTOR,)
        if FRESH:
            mine = (first < last) & (end == last)
            key, value = _new_row(q, turn_c, turn_s, b, g, q_batch, q_head, gl.where(mine, SIZE, 0), k, PER)
            written = gl.where(mine & (company < 2), SIZE, 0)
            gl.store(k + (last - 1).to(gl.int64) * TOKEN + along, key, mask=along < written)
            gl.store(v + (last - 1).to(gl.int64) * TOKEN + d, value, mask=d < written)
            keys, values = _with_row(keys, values, key, value, gl.where(company == 0, last - 1, -1), first)
        top = gl.full((USED, KEYS), float("-inf"), gl.float64, LS)
        summed = gl.zeros((USED, KEYS), gl.float64, LS)
        mixed = ()
        for _ in gl.static_range(PER):
            mixed = mixed + (gl.zeros((SIZE,), gl.float64, gl.SliceLayout(0, LV)),)
        for at in range(first, end, KEYS):
            after = _live(places, at + KEYS, end, slot, many)
            _score(runs, keys, queries, PER, USED)
            keys = _keys(k, at + KEYS, after, TOKEN)  # after a barrier: a new key that stands there has been written
            top, mixed, summed = _mix(runs, weights, fades, values, live, top, mixed, summed, PER, USED)
            values = _values(v, at + KEYS, after, TOKEN)
            live = after
        for o in range(many):
            start = _brought(places, o, slot, batch, BATCH)
            if (start >= first) & (start < end):
                o_c, o_s = _angles(cos, sin, o, c_batch, s_batch)
                key, value = _new_row(q, o_c, o_s, o, g, q_batch, q_head, SIZE, k, PER)
                keys, values = _with_row(gl.zeros_like(keys), gl.zeros_like(values), key, value, 0, 0)
                _score(runs, keys, queries, PER, USED)
                top, mixed, summed = _mix(runs, weights, fades, values, 1, top, mixed, summed, PER, USED)
        out += b.to(gl.int64) * o_batch + g * PER * o_head
        if (PARTS == 1) | (share >= last):
            _give(inverses, out, mixed, gl.sum(summed, 1), o_head, PER)
        elif PARTS > 1:
            group = b * gl.num_programs(1) + g
            tops += group.to(gl.int64) * (USED * PARTS)
            totals += group.to(gl.int64) * (USED * PARTS)
            part += group.to(gl.int64) * (USED * PARTS * SIZE)
            for j in gl.static_range(PER):
                gl.store(part + (j * PARTS + p) * SIZE + d, mixed[j], cache_modifier=".cg")
            to = gl.expand_dims(row * PARTS + p, 1) + gl.expand_dims(lane * 0, 0)
            one = gl.expand_dims(row < PER, 1) & gl.expand_dims(lane == 0, 0)  # all lanes hold the same
            gl.store(tops + to, top, mask=one, cache_modifier=".cg")
            gl.store(totals + row * PARTS + p, gl.sum(summed, 1), mask=row < PER, cache_modifier=".cg")
            gl.thread_barrier()  # and the atomic's release: what all threads wrote is seen by who counts last
            worth = gl.where(end == last, COMPLETE - p, 1)
            if gl.atomic_add(counts + group, worth, sem="acq_rel") + worth == COMPLETE:
                gl.store(counts + group, 0)
                _join(shares, inverses, part, tops, totals, out, o_head, share, last, PER, USED, PARTS)


@gluon.jit
def _give(inverses, out, mixed, total, o_head, PER: gl.constexpr):
    """The attention of each query: the sum of its values by that of its weights."""
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    inverses.store(gl.expand_dims(_inverse(total), 1).broadcast_to(inverses.shape))
    gl.thread_barrier()
    for j in gl.static_range(PER):
        by = _told(inverses, j)
        y = gl.where(by == 0.0, 0.0, mixed[j] * by)
        gl.store(out + j * o_head + d, y.to(out.dtype.element_ty))


@gluon.constexpr_function
def _together(parts, used):
    """How many shares are loaded together: all, or what registers hold; a power of two, as arrays are."""
    return min(1 << (parts - 1).bit_length(), JOINED.value // used)


@gluon.jit
def _sums(part, at, share, last, j: gl.constexpr, PARTS: gl.constexpr, TOGETHER: gl.constexpr):
    """What some shares say of a query, for each element of its head."""
    LJ: gl.constexpr = gl.BlockedLayout([TOGETHER, 1], [1, 32], [1, 4], [0, 1])
    p = at + gl.arange(0, TOGETHER, layout=gl.SliceLayout(1, LJ))
    e = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LJ))
    lies = gl.expand_dims((j * PARTS + p) * SIZE, 1) + gl.expand_dims(e, 0)
    return gl.load(part + lies, mask=gl.expand_dims(p * share < last, 1), other=0.0, cache_modifier=".cg")


@gluon.jit
def _join(
    fades, inverses, part, tops, totals, out, o_head, share, last, PER: gl.constexpr, USED: gl.constexpr, PARTS: gl.constexpr
):  # fmt: skip
    """Join the sums of all shares, each by how much it counts; those of no keys count nothing."""
    TOGETHER: gl.constexpr = _together(PARTS, USED)
    row = gl.arange(0, USED, layout=gl.SliceLayout(1, LS))
    lane = gl.arange(0, LANES, layout=gl.SliceLayout(0, LS))
    line = gl.expand_dims(row * PARTS, 1) + gl.expand_dims(lane, 0)
    counted = gl.expand_dims(row < PER, 1) & gl.expand_dims(lane * share < last, 0)
    top = gl.load(tops + line, mask=counted, other=float("-inf"), cache_modifier=".cg")
    total = gl.load(totals + line, mask=counted, other=0.0, cache_modifier=".cg")
    sums = ()
    for j in gl.static_range(PER):
        sums = sums + (_sums(part, 0, share, last, j, PARTS, TOGETHER),)
    most = _largest(top)
    fade = gl.exp(top - gl.where(most == float("-inf"), 0.0, most))
    fades.store(fade)
    gl.thread_barrier()
    mixed = ()
    for j in gl.static_range(PER):
        mixed = mixed + (_faded(fades, 0, sums[j], j),)
    for at in gl.static_range(TOGETHER, PARTS, TOGETHER):
        if at * share < last:
            more = ()
            for j in gl.static_range(PER):
                more = more + (mixed[j] + _faded(fades, at, _sums(part, at, share, last, j, PARTS, TOGETHER), j),)
            mixed = more
    same = ()
    for j in gl.static_range(PER):
        same = same + (gl.convert_layout(mixed[j], gl.SliceLayout(0, LV), assert_trivial=True),)
    _give(inverses, out, same, gl.sum(total * fade, 1), o_head, PER)


@gluon.jit
def _faded(fades, at: gl.constexpr, sums, j: gl.constexpr):
    """The sums of some shares of a query together."""
    line = fades.reshape([fades.shape[0] * LANES])
    w = line.slice(j * LANES + at, sums.shape[0]).load(gl.SliceLayout(1, sums.type.layout))
    return gl.sum(sums * gl.expand_dims(w, 1), 0)
