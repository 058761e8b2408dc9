"""Products of many tokens with weights that have a scale for each 64 or 128 columns, by Hopper's warpgroup tensor cores, in Gluon.

Weights are in units of four groups: byte i of a unit belongs to column i of each, and four bytes hold 16 codes w + 1 so that a
permutation of bytes decodes one group of them: nibble b has those of the first and the third group, nibble b + 4 those of the
second and the fourth. One warp fetches units of weights and groups of tokens, two warpgroups of 64 rows each multiply: while the
tensor cores compute one group, or half of its tokens, the sums of the one before are scaled and added in f32, in order: in blocks
of 1,024 columns, then block after block. Where SPLIT CTAs share the blocks of a tile, each leaves the sums of its blocks, and the
last to arrive adds all of them in order.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.gemv import barrier, may_start, wait_for_inputs
from tritium.backends.cuda.linear.wgmma import leave, load, place_of, store_results, sums_at, threads

ROWS = gl.constexpr(64)  # of a warpgroup
BLOCK = gl.constexpr(1024)  # columns whose terms are added to each other first: quantized.COLUMNS
TABLE = "0x000100ff"  # -1, 0 and 1 as bytes, by code
SIGNED = gl.constexpr(
    (f"{{ .reg .b32 t; and.b32 t, $1, 0x3333; prmt.b32 $0, {TABLE}, 0, t; }}",)
    + tuple(
        f"{{ .reg .b32 t; shr.u32 t, $1, {n}; and.b32 t, t, 0x3333; prmt.b32 $0, {TABLE}, 0, t; }}" for n in (16, 2, 18)
    )
)
ARRIVE = gl.constexpr("""{
    .reg .pred first;
    setp.eq.s32 first, $1, 0;
    mov.u32 $0, 0;
    @first atom.global.acq_rel.gpu.add.u32 $0, [$2], 1;
}""")
# An integer below 2**22 plus the bits of 1.5 * 2**23 is that float plus the integer: conversions have an eighth of the rate of additions.
_FLOAT = "sub.rn.f32 t, t, 0f4b400000; mul.rn.f32 t, t, $3;"
PLUS = gl.constexpr(
    tuple(
        f"{{ .reg .b32 t; add.s32 t, $2, 0x4b400000; {scaled} add.rn.f32 $0, $1, t; }}"
        for scaled in (
            _FLOAT, f"{_FLOAT} mul.rn.f32 t, t, $4;", "fma.rn.f32 t, t, $3, $4;", "fma.rn.f32 t, t, $3, $4; mul.rn.f32 t, t, $5;"
        )
    )
)  # fmt: skip
OF_PLUS = gl.constexpr(("=r,r,r,r", "=r,r,r,r,r", "=r,r,r,r,r", "=r,r,r,r,r,r"))
MAGIC = gl.constexpr(12582912.0)
FETCH = gl.constexpr("ld.global.cg.v4.s32 {$0, $1, $2, $3}, [$4];")


@gluon.jit
def _weights(codes, S: gl.constexpr):
    """Return the weights of group S of a unit as int8, four at a time."""
    return gl.inline_asm_elementwise(SIGNED[S], "=r,r", [codes], dtype=gl.int8, is_pure=True, pack=4)


@gluon.jit
def _job(t, tiles, blocks, SPLIT: gl.constexpr):
    """Return the tile of job t, and the first and the last of its blocks, exclusively."""
    part = t // tiles
    return t % tiles, part * blocks // SPLIT, (part + 1) * blocks // SPLIT


@gluon.jit
def _units(first, last, units, GROUP: gl.constexpr):
    """Return the first unit of blocks and how many they have."""
    begin = first * (BLOCK // (4 * GROUP))
    return begin, gl.minimum(last * (BLOCK // (4 * GROUP)), units) - begin


@gluon.jit
def _scales(of_scale, unit, GROUPS):
    """Return the scales of rows for the four groups of a unit; 0 behind the last group."""
    result = ()
    for p in gl.static_range(4):
        g = unit * 4 + p
        result += (gl.load(of_scale + gl.minimum(g, GROUPS - 1)),)
    return result


@gluon.jit
def _plus_term(block, acc, by, of_token, BY: gl.constexpr):
    """Return block plus acc times the scales of rows, with BY times those of tokens too, one rounding each.

    As assembly that is not pure, it stays where it is: later, sums of all groups of a unit would take registers at once. A scale of
    f16 times 1.5 * 2**23 is exact, so that one multiply-add subtracts it and rounds the product once.
    """
    of_rows = gl.expand_dims(by.to(gl.float32), 1)
    _, scales = gl.broadcast(acc, of_rows)
    operands = (block, acc, scales)
    if by.dtype == gl.float16:
        _, less = gl.broadcast(acc, of_rows * -MAGIC)
        operands = operands + (less,)
    if BY:
        _, last = gl.broadcast(acc, gl.expand_dims(of_token, 0))
        operands = operands + (last,)
    WAY: gl.constexpr = (2 if by.dtype == gl.float16 else 0) + (1 if BY else 0)
    return gl.inline_asm_elementwise(PLUS[WAY], OF_PLUS[WAY], operands, dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def _zeros(HALVES: gl.constexpr, TOKENS: gl.constexpr, kind: gl.constexpr):
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TOKENS, 32])
    result = ()
    for _ in gl.static_range(HALVES):
        result += (gl.zeros((ROWS, TOKENS), kind, L),)
    return result


@gluon.jit
def _times(weights, x_bufs, s, h: gl.constexpr, acc):
    """Return weights times the tokens of half h of stage s, which still run."""
    TOKENS: gl.constexpr = acc.type.shape[1]
    right = x_bufs.index(s).slice(h * TOKENS, TOKENS).permute((1, 0))
    return warpgroup_mma(weights, right, acc, use_acc=False, is_async=True)


@gluon.jit
def _unit_by_halves(block, codes, by, ready, free, x_bufs, it, STAGES: gl.constexpr):
    """Add the terms of a unit to block, two tensors of half of the tokens each: one is scaled while the other is multiplied."""
    zero = _zeros(2, block[0].shape[1], gl.int32)
    mbarrier.wait(ready.index(it % STAGES), (it // STAGES) & 1)
    weights = _weights(codes, 0)
    first = _times(weights, x_bufs, it % STAGES, 0, zero[0])
    second = _times(weights, x_bufs, it % STAGES, 1, zero[1])
    left, right = block
    for p in gl.static_range(4):
        if p < 3:
            following = _weights(codes, p + 1)
            mbarrier.wait(ready.index((it + 1) % STAGES), ((it + 1) // STAGES) & 1)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=[first])
        left = _plus_term(left, acc, by[p], 0, False)
        if p < 3:
            first = _times(following, x_bufs, (it + 1) % STAGES, 0, acc)
        acc = warpgroup_mma_wait(num_outstanding=1 if p < 3 else 0, deps=[second])
        mbarrier.arrive(free.index(it % STAGES), count=1)
        right = _plus_term(right, acc, by[p], 0, False)
        if p < 3:
            second = _times(following, x_bufs, (it + 1) % STAGES, 1, acc)
        it += 1
    return (left, right), it


@gluon.jit
def _unit_in_turns(
    block, codes, by, cells, g, GROUPS, APART, ready, free, x_bufs, it, STAGES: gl.constexpr, BY: gl.constexpr
):
    """Add the terms of a unit to block, whose one tensor has all tokens: a group is scaled while the next is multiplied.

    BY: tokens have scales too, which begin at cells; its first group is g.
    """
    zero = _zeros(1, block[0].shape[1], gl.int32)
    mbarrier.wait(ready.index(it % STAGES), (it // STAGES) & 1)
    running = _times(_weights(codes, 0), x_bufs, it % STAGES, 0, zero[0])
    (total,) = block
    for p in gl.static_range(4):
        if p < 3:
            mbarrier.wait(ready.index((it + 1) % STAGES), ((it + 1) // STAGES) & 1)
            following = _times(_weights(codes, p + 1), x_bufs, (it + 1) % STAGES, 0, zero[0])
        of_token = by[p]
        if BY:
            of_token = gl.load(cells + gl.minimum(g + p, GROUPS - 1) * APART)  # behind the last any
        acc = warpgroup_mma_wait(num_outstanding=1 if p < 3 else 0, deps=[running])
        mbarrier.arrive(free.index(it % STAGES), count=1)
        total = _plus_term(total, acc, by[p], of_token, BY)
        if p < 3:
            running = following
        it += 1
    return (total,), it


@gluon.jit
def _block(of_scale, by, cells, ready_w, free_w, ready, free, w_bufs, x_bufs, unit, count, units, GROUPS, APART, it_w, it,
           HALVES: gl.constexpr, TOKENS: gl.constexpr, W: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr,
           BY: gl.constexpr):  # fmt: skip
    """Return the sums of a block of so many units, the scales of the unit behind it, and the next steps."""
    block = _zeros(HALVES, TOKENS, gl.float32)
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=block[0].type.layout, k_width=4)
    for u in range(unit, unit + count):
        s = it_w % WIDE
        mbarrier.wait(ready_w.index(s), (it_w // WIDE) & 1)
        codes = w_bufs.index(s * 2 + W).load(left)
        late = _scales(of_scale, gl.minimum(u + 1, units - 1), GROUPS)
        if HALVES == 2:
            block, it = _unit_by_halves(block, codes, by, ready, free, x_bufs, it, STAGES)
        else:
            block, it = _unit_in_turns(
                block, codes, by, cells, u * 4, GROUPS, APART, ready, free, x_bufs, it, STAGES, BY
            )
        mbarrier.arrive(free_w.index(s), count=1)
        by = late
        it_w += 1
    return block, by, it_w, it


@gluon.jit
def _arrive(count):
    """Count this warpgroup at a tile; return to all threads how many came before it."""
    barrier()
    thread = threads()
    before = gl.inline_asm_elementwise(
        ARRIVE, "=&r,r,l", [thread, count + thread * 0], dtype=gl.int32, is_pure=False, pack=1
    )
    return gl.sum(before, 0)


@gluon.jit
def _plus_left(y, partial):
    """Return y plus sums that were left in memory."""
    result = ()
    for h in gl.static_range(len(y)):
        cells = sums_at(y[h], partial)
        left = gl.inline_asm_elementwise(FETCH, "=r,=r,=r,=r,l,l,l,l", [cells], dtype=gl.int32, is_pure=False, pack=4)
        result += (y[h] + left.to(gl.float32, bitcast=True),)
        partial += y[h].shape[0] * y[h].shape[1]
    return result


@gluon.jit
def _as_bits(y):
    result = ()
    for h in gl.static_range(len(y)):
        result += (y[h].to(gl.int32, bitcast=True),)
    return result


@gluon.jit
def _plus(y, block):
    result = ()
    for h in gl.static_range(len(y)):
        result += (y[h] + block[h],)
    return result


@gluon.jit
def _sums_in(y_bufs, W: gl.constexpr, L: gl.constexpr):
    result = ()
    for h in gl.static_range(2):
        result += (y_bufs.index(W * 2 + h).load(L),)
    return result


@gluon.jit
def _finish(y, off_n, off_m, token_scale, bias, out, box, o_bufs, M, N, BIAS: gl.constexpr, BY: gl.constexpr,
            W: gl.constexpr):  # fmt: skip
    """Scale the sums of a tile by those of tokens if these have one, add the bias and store them."""
    L: gl.constexpr = y[0].type.layout
    TOKENS: gl.constexpr = y[0].shape[1]
    for h in gl.static_range(len(y)):
        to = off_m + h * TOKENS
        rm = to + gl.arange(0, TOKENS, layout=gl.SliceLayout(0, L))
        value = y[h]
        if not BY:
            value = value * gl.expand_dims(gl.load(token_scale + rm, mask=rm < M, other=0.0), 0)
        if BIAS == 1:
            rn = off_n + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
            value = value + gl.expand_dims(gl.load(bias + rn, mask=rn < N, other=0.0).to(gl.float32), 1)
        store_results(value, off_n, to, bias, out, box, o_bufs.index(W * len(y) + h), M, N, BIAS)


@gluon.jit
def _consume(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, APART, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, HALVES: gl.constexpr, WIDE: gl.constexpr,
             STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr, BY: gl.constexpr, W: gl.constexpr):  # fmt: skip
    """Multiply in warpgroup W its half of the rows of every tile."""
    TOKENS: gl.constexpr = BM // HALVES
    EACH: gl.constexpr = BLOCK // (4 * GROUP)
    SIZE: gl.constexpr = ROWS * BM
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TOKENS, 32])
    wait_for_inputs()
    it_w = 0
    it = 0
    for t in range(gl.program_id(0), tiles * SPLIT, gl.num_programs(0)):
        tile, first, last = _job(t, tiles, blocks, SPLIT)
        off_n, off_m = place_of(tile, M, N, 2 * ROWS, BM, 8)
        off_n += W * ROWS
        rn = gl.minimum(off_n + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L)), N - 1)
        of_scale = scale + rn * GROUPS
        by = _scales(of_scale, first * EACH, GROUPS)
        cells = token_scale
        if BY:
            cells = token_scale + (off_m + gl.arange(0, TOKENS, layout=gl.SliceLayout(0, L)))
        own = partial + (tile * 2 + W).to(gl.int64) * (blocks * SIZE)
        y = _zeros(HALVES, TOKENS, gl.float32)
        for b in range(first, last):
            count = gl.minimum(units - b * EACH, EACH)
            block, by, it_w, it = _block(
                of_scale, by, cells, ready_w, free_w, ready, free, w_bufs, x_bufs, b * EACH, count, units, GROUPS, APART,
                it_w, it, HALVES, TOKENS, W, WIDE, STAGES, BY
            )  # fmt: skip
            if SPLIT > 1:
                leave(_as_bits(block), own + b * SIZE)
            elif HALVES == 1:
                y = _plus(y, block)
            else:
                if b > 0:
                    block = _plus(_sums_in(y_bufs, W, L), block)
                for h in gl.static_range(HALVES):
                    y_bufs.index(W * 2 + h).store(block[h])
        if SPLIT > 1:
            if _arrive(counts + tile * 2 + W) == SPLIT - 1:
                gl.store(counts + tile * 2 + W, 0)
                for b in range(blocks):
                    y = _plus_left(y, own + b * SIZE)
                _finish(y, off_n, off_m, token_scale, bias, out, box, o_bufs, M, N, BIAS, BY, W)
        else:
            if HALVES == 2:
                y = _sums_in(y_bufs, W, L)
            _finish(y, off_n, off_m, token_scale, bias, out, box, o_bufs, M, N, BIAS, BY, W)
    if box is not None:
        tma.store_wait(pendings=0)  # shared memory is theirs until they have read it


@gluon.jit
def _first(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box, partial, counts,
           M, N, GROUPS, APART, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, HALVES: gl.constexpr, WIDE: gl.constexpr,
           STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr, BY: gl.constexpr):  # fmt: skip
    _consume(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, APART, tiles, blocks, units, BM, GROUP, HALVES, WIDE, STAGES, SPLIT, BIAS, BY, 0)  # fmt: skip


@gluon.jit
def _second(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box, partial, counts,
            M, N, GROUPS, APART, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, HALVES: gl.constexpr, WIDE: gl.constexpr,
            STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr, BY: gl.constexpr):  # fmt: skip
    _consume(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, APART, tiles, blocks, units, BM, GROUP, HALVES, WIDE, STAGES, SPLIT, BIAS, BY, 1)  # fmt: skip


@gluon.jit
def _fetch_weights(w, w_bufs, bar, off_n, unit, s, pred, GROUP: gl.constexpr):
    for h in gl.static_range(2):
        load(w, [off_n + h * ROWS, unit * GROUP], bar, w_bufs.index(s * 2 + h), pred=pred)


@gluon.jit
def _produce(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, APART, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, HALVES: gl.constexpr, WIDE: gl.constexpr,
             STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr, BY: gl.constexpr):  # fmt: skip
    """Fetch units of weights WIDE ahead and groups of tokens STAGES ahead; the first weights before the tokens are there."""
    tile, first, last = _job(gl.program_id(0), tiles, blocks, SPLIT)
    off_n, off_m = place_of(tile, M, N, 2 * ROWS, BM, 8)
    begin, count = _units(first, last, units, GROUP)
    early = gl.minimum(count, WIDE)
    for i in range(early):
        mbarrier.expect(ready_w.index(i), 2 * ROWS * GROUP)
        _fetch_weights(w, w_bufs, ready_w.index(i), off_n, begin + i, i, True, GROUP)
    wait_for_inputs()
    it_w = 0
    it = 0
    for t in range(gl.program_id(0), tiles * SPLIT, gl.num_programs(0)):
        tile, first, last = _job(t, tiles, blocks, SPLIT)
        off_n, off_m = place_of(tile, M, N, 2 * ROWS, BM, 8)
        begin, count = _units(first, last, units, GROUP)
        for u in range(begin, begin + count):
            s = it_w % WIDE
            mbarrier.wait(free_w.index(s), ((it_w // WIDE) & 1) ^ 1)
            mbarrier.expect(ready_w.index(s), 2 * ROWS * GROUP, pred=it_w >= early)
            _fetch_weights(w, w_bufs, ready_w.index(s), off_n, u, s, it_w >= early, GROUP)
            it_w += 1
            for p in range(4):
                i = it % STAGES
                mbarrier.wait(free.index(i), ((it // STAGES) & 1) ^ 1)
                mbarrier.expect(ready.index(i), BM * GROUP)
                load(x, [off_m, (u * 4 + p) * GROUP], ready.index(i), x_bufs.index(i))
                it += 1


@gluon.jit(do_not_specialize=["M"])
def group_tiles(
    w, x, token_scale, scale, bias, out, box, partial, counts, M, N, GROUPS, APART, BM: gl.constexpr, GROUP: gl.constexpr,
    WIDE: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr, BY: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Multiply tiles [128, BM] of out.T. w, x: descriptors of units of 64 rows, and of groups of BM tokens.

    BY: tokens, up to 64 of a tile, have scales by group too, those of a group beside each other and of the next APART behind them.
    box: a descriptor of 64 rows and the tokens of a tensor of the results, where these are stored through shared memory; else None.
    """
    HALVES: gl.constexpr = 2 if BM > 64 else 1
    may_start()
    tiles = gl.cdiv(N, 2 * ROWS) * gl.cdiv(M, BM)
    blocks = gl.cdiv(GROUPS, BLOCK // GROUP)
    units = gl.cdiv(GROUPS, 4)
    w_bufs = gl.allocate_shared_memory(w.dtype, [2 * WIDE, ROWS, GROUP], w.layout)
    x_bufs = gl.allocate_shared_memory(gl.int8, [STAGES, BM, GROUP], x.layout)
    y_bufs = x_bufs
    if HALVES == 2 and SPLIT == 1:  # beside sums of a block and of two halves, those of all would not fit in registers
        y_bufs = gl.allocate_shared_memory(
            gl.float32, [2 * HALVES, ROWS, BM // HALVES], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
        )
    o_bufs = x_bufs
    if box is not None:
        o_bufs = gl.allocate_shared_memory(box.dtype, [2 * HALVES, BM // HALVES, ROWS], box.layout)
    ready_w = gl.allocate_shared_memory(gl.int64, [WIDE, 1], mbarrier.MBarrierLayout())
    free_w = gl.allocate_shared_memory(gl.int64, [WIDE, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(WIDE):
        mbarrier.init(ready_w.index(i), count=1)
        mbarrier.init(free_w.index(i), count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    fence_async_shared()  # copies look at barriers in a way of their own
    gl.warp_specialize(  # a tuple with a name would lose its constants
        [
            (_first, (ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box,
                partial, counts, M, N, GROUPS, APART, tiles, blocks, units, BM, GROUP, HALVES, WIDE, STAGES, SPLIT, BIAS, BY)),
            (_second, (ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box,
                partial, counts, M, N, GROUPS, APART, tiles, blocks, units, BM, GROUP, HALVES, WIDE, STAGES, SPLIT, BIAS, BY)),
            (_produce, (ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box,
                partial, counts, M, N, GROUPS, APART, tiles, blocks, units, BM, GROUP, HALVES, WIDE, STAGES, SPLIT, BIAS, BY)),
        ],
        [4, 1], [REGISTERS, 24],
    )  # fmt: skip


fix_cache_keys(globals())
