"""Attention of one new token a sequence, in Gluon: f64 without tensor cores, whose operands would have to pass through shared
memory; what threads share there are scores and weights alone.

Knows nothing of torch or of choices. Heads have 128 elements, caches hold half floats. A program takes a share of the keys of
one kv head; `cuda_attention` says how shares are joined. Keys: sixteen lanes along each. Values:
a thread for each element of a head, which adds up all keys by itself.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritium.backends.cuda_gemv import ask, may_start, wait_for_inputs

KEYS = gl.constexpr(16)  # that a program looks at together
LANES = gl.constexpr(32)
SIZE = gl.constexpr(128)  # of a head; as many threads
WARPS = 4


@gluon.jit
def _wide(x):
    """Half floats as f64."""
    return x.to(gl.float32).to(gl.float64)


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


@gluon.jit
def _place(places, b, slots, capacity, PLACED: gl.constexpr):
    """The slot of a sequence, and how many keys its token sees: none where it lies outside of the cache."""
    slot = b
    last = capacity
    if PLACED:
        slot = gl.load(places + b * 3)
        start = gl.load(places + b * 3 + 1)
        count = gl.load(places + b * 3 + 2)
        inside = (slot >= 0) & (slot < slots) & (start >= 0) & (start < capacity) & (count == 1)
        slot, last = gl.where(inside, slot, 0), gl.where(inside, start + 1, 0)
    return slot, last


@gluon.jit
def _share(last, PARTS: gl.constexpr):
    """How many of so many keys a program takes."""
    return gl.maximum((last + (PARTS * KEYS - 1)) // (PARTS * KEYS), 1) * KEYS


@gluon.jit
def _ask_for_share(
    k, v, places, b, g, p, slots, capacity, k_slot, k_head, k_token, v_slot, v_head, v_token, PARTS: gl.constexpr,
    PLACED: gl.constexpr,
):  # fmt: skip
    """Have the first keys and values of a share brought near: two lines each. The places may yet change, but any of the cache
    can be asked for."""
    slot, last = _place(places, b, slots, capacity, PLACED)
    i = gl.arange(0, 4 * KEYS, layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    key = gl.minimum(p * _share(last, PARTS) + i // 4, capacity - 1).to(gl.int64)
    of_k = k + slot.to(gl.int64) * k_slot + g.to(gl.int64) * k_head + key * k_token + i % 2 * (SIZE // 2)
    of_v = v + slot.to(gl.int64) * v_slot + g.to(gl.int64) * v_head + key * v_token + i % 2 * (SIZE // 2)
    ask(gl.where(i // 2 % 2 == 0, of_k.to(gl.int64), of_v.to(gl.int64)))


@gluon.jit
def decode(
    q, k, v, places, out, part, tops, totals, counts, slots, capacity, q_batch, q_head, k_slot, k_head, k_token, v_slot, v_head,
    v_token, o_batch, o_head, PER: gl.constexpr, USED: gl.constexpr, PARTS: gl.constexpr, PLACED: gl.constexpr,
    FACTOR: gl.constexpr,
):  # fmt: skip
    """PER queries of one kv head against a share of its keys; the last program of a head to arrive joins all shares."""
    LK: gl.constexpr = gl.BlockedLayout([2, 8], [2, 16], [4, 1], [1, 0])
    LV: gl.constexpr = gl.BlockedLayout([KEYS, 1], [1, 32], [1, 4], [0, 1])
    LS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    may_start()
    b, g, p = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    row = gl.arange(0, USED, layout=gl.SliceLayout(1, LS))
    lane = gl.arange(0, KEYS, layout=gl.SliceLayout(0, LS))
    near = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LK))
    along = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LK))
    far = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LV))
    d = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LV))
    scores = gl.allocate_shared_memory(gl.float64, [USED * KEYS], LINE)  # a line for each query
    weights = gl.allocate_shared_memory(gl.float64, [USED * KEYS], LINE)
    fades = gl.allocate_shared_memory(gl.float64, [USED], LINE)
    _ask_for_share(
        k, v, places, b, g, p, slots, capacity, k_slot, k_head, k_token, v_slot, v_head, v_token, PARTS, PLACED
    )
    wait_for_inputs()
    slot, last = _place(places, b, slots, capacity, PLACED)
    queries = ()
    for j in gl.static_range(PER):
        x = gl.load(q + b.to(gl.int64) * q_batch + (g * PER + j) * q_head + along)
        queries = queries + (x.to(gl.float64) * FACTOR,)
    share = _share(last, PARTS)
    first = p * share
    if (first < last) | (p == 0):
        end = gl.minimum(first + share, last)
        k_base = k + slot.to(gl.int64) * k_slot + g.to(gl.int64) * k_head
        v_base = v + slot.to(gl.int64) * v_slot + g.to(gl.int64) * v_head
        top = gl.full((USED,), float("-inf"), gl.float64, gl.SliceLayout(1, LS))
        total = gl.zeros((USED,), gl.float64, gl.SliceLayout(1, LS))
        mixed = ()
        for _ in gl.static_range(PER):
            mixed = mixed + (gl.zeros((SIZE,), gl.float64, gl.SliceLayout(0, LV)),)
        for at in range(first, end, KEYS):
            of_k = gl.expand_dims((at + near).to(gl.int64) * k_token, 1) + gl.expand_dims(along, 0)
            of_v = gl.expand_dims((at + far).to(gl.int64) * v_token, 1) + gl.expand_dims(d, 0)
            keys = gl.load(k_base + of_k, mask=gl.expand_dims(at + near < end, 1), other=0.0)
            values = gl.load(v_base + of_v, mask=gl.expand_dims(at + far < end, 1), other=0.0)
            keys = _wide(keys)
            for j in gl.static_range(PER):
                scores.slice(j * KEYS, KEYS).store(gl.sum(keys * gl.expand_dims(queries[j], 0), 1))
            gl.thread_barrier()
            s = scores.reshape([USED, KEYS]).load(LS)
            s = gl.where(gl.expand_dims(row < PER, 1) & gl.expand_dims(at + lane < end, 0), s, float("-inf"))
            most = gl.maximum(top, gl.max(s, 1))
            base = gl.where(most == float("-inf"), 0.0, most)
            w = gl.exp(s - gl.expand_dims(base, 1))
            fade = gl.exp(top - base)
            total = total * fade + gl.sum(w, 1)
            top = most
            weights.reshape([USED, KEYS]).store(w)
            fades.store(fade)
            gl.thread_barrier()
            values = _wide(values)
            added = ()
            for j in gl.static_range(PER):
                w = gl.expand_dims(weights.slice(j * KEYS, KEYS).load(gl.SliceLayout(1, LV)), 1)
                added = added + (mixed[j] * _told(fades, j, USED) + gl.sum(values * w, 0),)
            mixed = added
        out += b.to(gl.int64) * o_batch + g * PER * o_head
        if (PARTS == 1) | (share >= last):
            gl.thread_barrier()
            fades.store(_inverse(total))
            gl.thread_barrier()
            for j in gl.static_range(PER):
                by = _told(fades, j, USED)
                y = gl.where(by == 0.0, 0.0, mixed[j] * by)
                gl.store(out + j * o_head + d, y.to(out.dtype.element_ty))
        elif PARTS > 1:
            parts = (last + share - 1) // share
            group = b * gl.num_programs(1) + g
            tops += group.to(gl.int64) * (USED * PARTS)
            totals += group.to(gl.int64) * (USED * PARTS)
            part += group.to(gl.int64) * (USED * PARTS * SIZE)
            gl.store(tops + row * PARTS + p, top, mask=row < PER, cache_modifier=".cg")
            gl.store(totals + row * PARTS + p, total, mask=row < PER, cache_modifier=".cg")
            for j in gl.static_range(PER):
                gl.store(part + (j * PARTS + p) * SIZE + d, mixed[j], cache_modifier=".cg")
            gl.thread_barrier()  # and the atomic's release: what all threads wrote is seen by who counts last
            if gl.atomic_add(counts + group, 1, sem="acq_rel") == parts - 1:
                gl.store(counts + group, 0)
                _join(part, tops, totals, out, o_head, parts, row, d, LS, PER, PARTS)


@gluon.jit
def _join(part, tops, totals, out, o_head, parts, row, d, LS: gl.constexpr, PER: gl.constexpr, PARTS: gl.constexpr):
    """The attention of each query: the sums of all shares, each by how much it counts; those of no keys count nothing."""
    LJ: gl.constexpr = gl.BlockedLayout([PARTS, 1], [1, 32], [1, 4], [0, 1])
    TOGETHER: gl.constexpr = PER * PARTS <= 64  # what registers hold
    lane = gl.arange(0, LANES, layout=gl.SliceLayout(0, LS))
    p = gl.arange(0, PARTS, layout=gl.SliceLayout(1, LJ))
    e = gl.arange(0, SIZE, layout=gl.SliceLayout(0, LJ))
    lies = gl.expand_dims(p * SIZE, 1) + gl.expand_dims(e, 0)
    there = gl.expand_dims(p < parts, 1)
    line = gl.expand_dims(row * PARTS, 1) + gl.expand_dims(lane, 0)
    counted = gl.expand_dims(row < PER, 1) & gl.expand_dims(lane < parts, 0)
    top = gl.load(tops + line, mask=counted, other=float("-inf"), cache_modifier=".cg")
    total = gl.load(totals + line, mask=counted, other=0.0, cache_modifier=".cg")
    sums = ()
    if TOGETHER:
        for j in gl.static_range(PER):
            sums = sums + (gl.load(part + j * PARTS * SIZE + lies, mask=there, other=0.0, cache_modifier=".cg"),)
    most = gl.max(top, 1)
    fade = gl.exp(top - gl.expand_dims(gl.where(most == float("-inf"), 0.0, most), 1))
    by = fade * gl.expand_dims(_inverse(gl.sum(total * fade, 1)), 1)
    weights = gl.allocate_shared_memory(gl.float64, [row.shape[0] * LANES], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    weights.reshape([row.shape[0], LANES]).store(gl.where(total == 0.0, 0.0, by))
    gl.thread_barrier()
    for j in gl.static_range(PER):
        if TOGETHER:
            x = sums[j]
        else:
            x = gl.load(part + j * PARTS * SIZE + lies, mask=there, other=0.0, cache_modifier=".cg")
        w = gl.expand_dims(weights.slice(j * LANES, PARTS).load(gl.SliceLayout(1, LJ)), 1)
        y = gl.convert_layout(gl.sum(gl.where(w == 0.0, 0.0, x * w), 0), d.type.layout)
        gl.store(out + j * o_head + d, y.to(out.dtype.element_ty))
