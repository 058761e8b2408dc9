"""Products of many tokens with weights that have a scale for each 64 or 128 columns, by Hopper's warpgroup tensor cores, in Gluon.

Knows nothing of torch or of tile configs. Weights are in units of four groups: byte i of a unit belongs to column i of each, and
four bytes hold 16 weights, a nibble for each two: nibble b those of the first and the second group, nibble b + 4 those of the third
and the fourth. One warp fetches units of weights and PER groups of tokens at a time, two warpgroups of 64 rows each multiply; sums are
scaled and added in f32, in order: in blocks of 1,024 columns, then block after block. Meanwhile the tensor cores compute the other
warpgroup's. Sums begin with the bits of a float, which the tensor cores add to: no instruction converts them. Where SPLIT CTAs share
the blocks of a tile, each leaves the sums of its blocks, and the last to arrive adds all of them in order.
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
LARGE = gl.constexpr(
    64
)  # tokens of a tile from which on shared memory has the sums of all blocks: registers have those of one
BLOCK = gl.constexpr(1024)  # columns whose terms are added to each other first: quantized.COLUMNS
# A nibble is the code of a weight of one group and of one of the next: a permutation of bytes selects both by it, each from a table of
# eight. There are nine such pairs: that of two zeros has the code of two ones with the highest bit, which takes the sign alone.
PAIR = gl.constexpr(
    tuple(
        f"{{ .reg .b32 t; shr.u32 t, $2, {n}; prmt.b32 $0, $3, 0x01010100, t; prmt.b32 $1, $7, 0x0100ff01, t; }}"
        for n in (0, 16)
    )
)
TABLES = gl.constexpr((0x00FFFFFF, -0x00FEFF01))  # the first four of each table; the others are immediate
# Bit 31 of the lanes below this one is never set.
OPAQUE = gl.constexpr("{ .reg .b32 t; mov.u32 t, %lanemask_lt; shr.u32 t, t, 31; xor.b32 $0, $1, t; }")
ARRIVE = gl.constexpr("""{
    .reg .pred first;
    setp.eq.s32 first, $1, 0;
    mov.u32 $0, 0;
    @first atom.global.acq_rel.gpu.add.u32 $0, [$2], 1;
}""")
# Sums begin with the bits of 1.5 * 2**23, which plus an integer below 2**22 are that float plus the integer: conversions have an eighth
# of the rate of additions.
PLUS_FUSED = gl.constexpr("{ .reg .b32 t; fma.rn.f32 t, $2, $3, $4; add.rn.f32 $0, $1, t; }")
PLUS_TERM = gl.constexpr("{ .reg .b32 t; sub.rn.f32 t, $2, 0f4b400000; mul.rn.f32 t, t, $3; add.rn.f32 $0, $1, t; }")
MAGIC, MAGIC_BITS = gl.constexpr(12582912.0), gl.constexpr(0x4B400000)
RESET = gl.constexpr("""{
    .reg .f64 a, b, c;
    mov.b64 a, {$2, $3};
    mov.b64 b, {$4, $4};
    mov.b64 c, {$6, $6};
    fma.rn.f64 a, a, b, c;
    mov.b64 {$0, $1}, a;
}""")
HALVES_OF = (
    "{ .reg .b16 h<4>; mov.b64 {h0, h1, h2, h3}, $1; cvt.f32.f16 $0, h%d; }",
    "{ .reg .b16 h<2>; mov.b32 {h0, h1}, $1; cvt.f32.f16 $0, h%d; }",
)
HALF_OF_FOUR = gl.constexpr(tuple(HALVES_OF[0] % p for p in range(4)))
HALF_OF_TWO = gl.constexpr(tuple(HALVES_OF[1] % p for p in range(2)))
FETCH = gl.constexpr("ld.global.cg.v4.s32 {$0, $1, $2, $3}, [$4];")


@gluon.jit
def _table(i: gl.constexpr, GROUP: gl.constexpr, L: gl.constexpr):
    """Return the first four of a table in a register that differs between lanes by all that the assembler knows.

    It would copy a constant, or a register that is the same for all lanes, once for each use.
    """
    constant = gl.full((ROWS, GROUP), TABLES[i], gl.int32, gl.DotOperandLayout(operand_index=0, parent=L, k_width=4))
    return gl.inline_asm_elementwise(OPAQUE, "=r,r", [constant], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _pair(codes, tables, S: gl.constexpr):
    """Return the weights of groups 2 S and 2 S + 1 of a unit as int8, four at a time."""
    return gl.inline_asm_elementwise(
        PAIR[S],
        "=&r,=&r,r,r,r,r,r,r,r,r,r",
        [codes, tables[0], tables[1]],
        dtype=(gl.int8, gl.int8),
        is_pure=True,
        pack=4,
    )


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


@gluon.constexpr_function
def of_load(kind):
    """Return how many scales are loaded at once as an element of this kind."""
    return 4 if kind == gl.int64 else 2 if kind == gl.int32 else 1


@gluon.jit
def _scales(of_scale, unit, GROUPS):
    """Load the scales of rows for the four groups of a unit, several at once where they are int64 or int32; behind the last any."""
    EACH: gl.constexpr = of_load(of_scale.dtype.element_ty)
    result = ()
    for p in gl.static_range(4 // EACH):
        result += (gl.load(of_scale + gl.minimum(unit * (4 // EACH) + p, GROUPS // EACH - 1)),)
    return result


@gluon.jit
def scale_of(by, p: gl.constexpr):
    """Return scale p of those that were loaded, as f32."""
    EACH: gl.constexpr = of_load(by[0].dtype)
    if EACH == 1:
        return by[p].to(gl.float32)
    return gl.inline_asm_elementwise(
        HALF_OF_FOUR[p % 4] if EACH == 4 else HALF_OF_TWO[p % 2], "=r,l" if EACH == 4 else "=r,r", [by[p // EACH]],
        dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def plus_term(block, acc, by, HALF: gl.constexpr):
    """Return block plus acc, sums plus the bits of MAGIC, times by, one rounding each. HALF: by are numbers of f16.

    As assembly that is not pure, it stays where it is: later, sums of all groups of a unit would take registers at once. A number of
    f16 times 1.5 * 2**23 is exact, so that one multiply-add subtracts it and rounds the product once.
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
def register(like, value: gl.constexpr):
    """Return a value in a register as `_table` does."""
    constant = gl.full(like.shape, value, gl.int32, like.type.layout)
    return gl.inline_asm_elementwise(OPAQUE, "=r,r", [constant], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _restarted(acc, zero, magic):
    """Return magic for each sum, two by one multiply-add of doubles: 0 times any two sums, which are a number, plus twice magic."""
    return gl.inline_asm_elementwise(
        RESET, "=r,=r,r,r,r,r,r,r", [acc, zero, magic], dtype=gl.int32, is_pure=False, pack=2
    )


@gluon.jit
def _after(s, phase, STAGES: gl.constexpr):
    """Return the stage behind s, and its phase."""
    last = s == STAGES - 1
    return gl.where(last, 0, s + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _unit(
    acc, zero, magic, total, codes, tables, by, ready, free, x_bufs, s, phase, PER: gl.constexpr, STAGES: gl.constexpr
):
    """Add the terms of a unit to total; acc begins and ends with magic."""
    weights = _pair(codes, tables, 0)
    mbarrier.wait(ready.index(s), phase)
    for p in gl.static_range(4):
        right = x_bufs.index(s * PER + p % PER).permute((1, 0))
        running = warpgroup_mma(weights[p % 2], right, acc, use_acc=True, is_async=True)
        if p == 1:
            weights = _pair(codes, tables, 1)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=[running])
        if (p + 1) % PER == 0:
            mbarrier.arrive(free.index(s), count=1)
            s, phase = _after(s, phase, STAGES)
            if p < 3:
                mbarrier.wait(ready.index(s), phase)
        total = plus_term(total, acc, gl.expand_dims(scale_of(by, p), 1), by[0].dtype != gl.float32)
        acc = _restarted(acc, zero, magic)
    return acc, total, s, phase


@gluon.jit
def _block(of_scale, tables, by, ready_w, free_w, ready, free, w_bufs, x_bufs, unit, count, units, GROUPS, s_w, phase_w, s, phase,
           L: gl.constexpr, BM: gl.constexpr, W: gl.constexpr, WIDE: gl.constexpr, PER: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Return the sums of a block of so many units, the scales of the unit behind it, and the next stages."""
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=L, k_width=4)
    total = gl.zeros((ROWS, BM), gl.float32, L)
    acc = gl.full((ROWS, BM), MAGIC_BITS, gl.int32, L)
    zero = register(acc, 0)
    magic = register(acc, MAGIC_BITS)
    for u in range(unit, unit + count):
        mbarrier.wait(ready_w.index(s_w), phase_w)
        codes = w_bufs.index(s_w * 2 + W).load(left)
        mbarrier.arrive(free_w.index(s_w), count=1)
        late = _scales(of_scale, gl.minimum(u + 1, units - 1), GROUPS)
        acc, total, s, phase = _unit(
            acc, zero, magic, total, codes, tables, by, ready, free, x_bufs, s, phase, PER, STAGES
        )
        by = late
        s_w, phase_w = _after(s_w, phase_w, WIDE)
    return total, by, s_w, phase_w, s, phase


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
    cells = sums_at(y, partial)
    left = gl.inline_asm_elementwise(FETCH, "=r,=r,=r,=r,l,l,l,l", [cells], dtype=gl.int32, is_pure=False, pack=4)
    return y + left.to(gl.float32, bitcast=True)


@gluon.jit
def _finish(y, off_n, off_m, token_scale, bias, out, box, o_bufs, M, N, BIAS: gl.constexpr, W: gl.constexpr):
    """Scale the sums of a tile by those of tokens, add the bias and store them."""
    L: gl.constexpr = y.type.layout
    rm = off_m + gl.arange(0, y.shape[1], layout=gl.SliceLayout(0, L))
    value = y * gl.expand_dims(gl.load(token_scale + rm, mask=rm < M, other=0.0), 0)
    if BIAS == 1:
        rn = off_n + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
        value = value + gl.expand_dims(gl.load(bias + rn, mask=rn < N, other=0.0).to(gl.float32), 1)
    store_results(value, off_n, off_m, bias, out, box, o_bufs.index(W), M, N, BIAS)


@gluon.jit
def _consume(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, WIDE: gl.constexpr, PER: gl.constexpr,
             STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr, W: gl.constexpr):  # fmt: skip
    """Multiply in warpgroup W its half of the rows of every tile."""
    EACH: gl.constexpr = BLOCK // (4 * GROUP)
    SIZE: gl.constexpr = ROWS * BM
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 32])
    tables = _table(0, GROUP, L), _table(1, GROUP, L)
    wait_for_inputs()
    s_w = 0
    phase_w = 0
    s = 0
    phase = 0
    for t in range(gl.program_id(0), tiles * SPLIT, gl.num_programs(0)):
        tile, first, last = _job(t, tiles, blocks, SPLIT)
        off_n, off_m = place_of(tile, M, N, 2 * ROWS, BM, 8)
        off_n += W * ROWS
        rn = gl.minimum(off_n + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L)), N - 1)
        of_scale = scale + rn * (GROUPS // of_load(scale.dtype.element_ty))
        by = _scales(of_scale, first * EACH, GROUPS)
        own = partial + (tile * 2 + W).to(gl.int64) * (blocks * SIZE)
        y = gl.zeros((ROWS, BM), gl.float32, L)
        for b in range(first, last):
            count = gl.minimum(units - b * EACH, EACH)
            block, by, s_w, phase_w, s, phase = _block(of_scale, tables, by, ready_w, free_w, ready, free, w_bufs, x_bufs, b * EACH, count,
                                                       units, GROUPS, s_w, phase_w, s, phase, L, BM, W, WIDE, PER, STAGES)  # fmt: skip
            if SPLIT > 1:
                leave((block.to(gl.int32, bitcast=True),), own + b * SIZE)
            elif BM < LARGE:
                y = y + block
            else:
                if b > 0:
                    block = y_bufs.index(W).load(L) + block
                y_bufs.index(W).store(block)
        if SPLIT > 1:
            if _arrive(counts + tile * 2 + W) == SPLIT - 1:
                gl.store(counts + tile * 2 + W, 0)
                for b in range(blocks):
                    y = _plus_left(y, own + b * SIZE)
                _finish(y, off_n, off_m, token_scale, bias, out, box, o_bufs, M, N, BIAS, W)
        else:
            if BM >= LARGE:
                y = y_bufs.index(W).load(L)
            _finish(y, off_n, off_m, token_scale, bias, out, box, o_bufs, M, N, BIAS, W)
    if box is not None:
        tma.store_wait(pendings=0)  # shared memory is theirs until they have read it


@gluon.jit
def _first(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box, partial, counts,
           M, N, GROUPS, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, WIDE: gl.constexpr, PER: gl.constexpr,
           STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    _consume(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, tiles, blocks, units, BM, GROUP, WIDE, PER, STAGES, SPLIT, BIAS, 0)  # fmt: skip


@gluon.jit
def _second(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box, partial, counts,
            M, N, GROUPS, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, WIDE: gl.constexpr, PER: gl.constexpr,
            STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    _consume(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, tiles, blocks, units, BM, GROUP, WIDE, PER, STAGES, SPLIT, BIAS, 1)  # fmt: skip


@gluon.jit
def _fetch_weights(w, w_bufs, bar, off_n, unit, s, pred, GROUP: gl.constexpr):
    for h in gl.static_range(2):
        load(w, [off_n + h * ROWS, unit * GROUP], bar, w_bufs.index(s * 2 + h), pred=pred)


@gluon.jit
def _produce(ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box, partial, counts,
             M, N, GROUPS, tiles, blocks, units, BM: gl.constexpr, GROUP: gl.constexpr, WIDE: gl.constexpr, PER: gl.constexpr,
             STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
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
            for _ in range(4 // PER):
                i = it % STAGES
                mbarrier.wait(free.index(i), ((it // STAGES) & 1) ^ 1)
                mbarrier.expect(ready.index(i), BM * GROUP * PER)
                for p in gl.static_range(PER):
                    load(
                        x,
                        [off_m, (it % (4 // PER) * PER + p + u * 4) * GROUP],
                        ready.index(i),
                        x_bufs.index(i * PER + p),
                    )
                it += 1


@gluon.jit(do_not_specialize=["M"])
def group_tiles(
    w, x, token_scale, scale, bias, out, box, partial, counts, M, N, GROUPS, BM: gl.constexpr, GROUP: gl.constexpr,
    WIDE: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr, BIAS: gl.constexpr, PER: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Multiply tiles [128, BM] of out.T. w, x: descriptors of units of 64 rows, and of groups of BM tokens.

    box: a descriptor of 64 rows and BM tokens of the results, where these are stored through shared memory; else None.
    """
    may_start()
    tiles = gl.cdiv(N, 2 * ROWS) * gl.cdiv(M, BM)
    blocks = gl.cdiv(GROUPS, BLOCK // GROUP)
    units = gl.cdiv(GROUPS, 4)
    w_bufs = gl.allocate_shared_memory(w.dtype, [2 * WIDE, ROWS, GROUP], w.layout)
    x_bufs = gl.allocate_shared_memory(gl.int8, [STAGES * PER, BM, GROUP], x.layout)
    y_bufs = x_bufs
    if BM >= LARGE and SPLIT == 1:
        y_bufs = gl.allocate_shared_memory(gl.float32, [2, ROWS, BM], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
    o_bufs = x_bufs
    if box is not None:
        o_bufs = gl.allocate_shared_memory(box.dtype, [2, BM, ROWS], box.layout)
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
                partial, counts, M, N, GROUPS, tiles, blocks, units, BM, GROUP, WIDE, PER, STAGES, SPLIT, BIAS)),
            (_second, (ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box,
                partial, counts, M, N, GROUPS, tiles, blocks, units, BM, GROUP, WIDE, PER, STAGES, SPLIT, BIAS)),
            (_produce, (ready_w, free_w, ready, free, w_bufs, x_bufs, y_bufs, o_bufs, w, x, token_scale, scale, bias, out, box,
                partial, counts, M, N, GROUPS, tiles, blocks, units, BM, GROUP, WIDE, PER, STAGES, SPLIT, BIAS)),
        ],
        [4, 1], [REGISTERS, 24],
    )  # fmt: skip


fix_cache_keys(globals())
