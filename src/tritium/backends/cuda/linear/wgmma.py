"""Products of many tokens by Hopper's warpgroup tensor cores, in Gluon: one warp fetches tiles, two warpgroups
multiply.

Ternary codes are in four planes as in `cuda.linear.plain` and become the left operand in registers; int8 weights are
multiplied out of shared memory. CTAs take tiles in turns. Where SPLIT CTAs share the columns of each, all but the last
to arrive leave their sums in `partial`, and the last adds them up and finishes. Tiles from `whole` on, which are fewer
than CTAs, are shared so by `parts` CTAs each (PIECES 0), or cut into PIECES of their tokens, one for a CTA, which
share no sums. Tensors have a power of two tokens: a tile of more has the rest in others, which are multiplied with the
same weights. Tuples hold one element for each tensor.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.gemv import barrier, may_start, wait_for_inputs
from tritium.backends.cuda.linear.plain import FIELD

# Names of Triton before 3.9, and from then on.
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

# Steps without a pause between: products of decoded codes that run on while a loop goes round would be compiled one by one.
AT_ONCE = gl.constexpr(2)
LEFT = gl.constexpr(1 << 16)  # what a count grows by where the sums of a part have been left
# Four sums at a time, those that a thread has side by side.
LEAVE = gl.constexpr("st.global.cg.v4.s32 [$8], {$4, $5, $6, $7}; // $0 $1 $2 $3")
ADD = gl.constexpr("""{
    .reg .s32 t0, t1, t2, t3;
    ld.global.cg.v4.s32 {t0, t1, t2, t3}, [$8];
    add.s32 $0, $4, t0;
    add.s32 $1, $5, t1;
    add.s32 $2, $6, t2;
    add.s32 $3, $7, t3;
}""")
TAKE = gl.constexpr("""{
    .reg .pred first;
    setp.eq.s32 first, $1, 0;
    mov.u32 $0, 0;
    @first atom.global.relaxed.gpu.add.u32 $0, [$2], 1;
}""")
AWAIT = gl.constexpr("""{
    .reg .pred less;
    again: ld.acquire.gpu.global.u32 $0, [$1];
    setp.lt.u32 less, $0, $2;
    @less bra again;
}""")


@gluon.jit
def _field(w, S: gl.constexpr):
    """Return the codes of plane S of bytes, four at a time."""
    return gl.inline_asm_elementwise(FIELD[S], "=r,r", [w], dtype=gl.int8, is_pure=True, pack=4)


@gluon.jit
def _part(t, tiles, steps, parts):
    """Return the tile, the part of the columns, the first step and the number of steps of job t of shared tiles.

    The first parts of all tiles come first, then the second ones.
    """
    part = t // tiles
    first = part * steps // parts
    return t % tiles, part, first, (part + 1) * steps // parts - first


@gluon.jit
def _job(t, whole, steps, SPLIT: gl.constexpr):
    """Return job t of the tiles that are whole, as `_part`."""
    if SPLIT == 1:
        return t, 0, 0, steps
    return _part(t, whole, steps, SPLIT)


@gluon.jit
def _piece(t, whole, PIECES: gl.constexpr):
    """Return the tile and the piece of the tokens of job t, from `whole` on."""
    return whole + (t - whole) // PIECES, (t - whole) % PIECES


@gluon.jit
def _jobs(whole, tiles, PIECES: gl.constexpr):
    return whole + (tiles - whole) * PIECES


@gluon.jit
def place_of(tile, M, N, BN: gl.constexpr, BM: gl.constexpr, GROUP: gl.constexpr):
    """Return the first row and token of a tile: GROUP columns of tiles are adjacent, so that their weights stay in
    L2.
    """
    across = gl.cdiv(N, BN)
    down = gl.cdiv(M, BM)
    first = tile // (GROUP * down) * GROUP
    width = gl.minimum(across - first, GROUP)
    rest = tile % (GROUP * down)
    return (first + rest % width) * BN, rest // width * BM


@gluon.jit
def _finish(acc, off_n, off_m, less, of_token, scale, bias, out, box, y_buf, M, N,
            CODES: gl.constexpr, ROWS: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    """Store acc [rows, tokens] less the sums of tokens, scaled, as out [M, N]; an out of int32 takes the integers.

    BIAS: 0 none, 1 one for each row, 2 for each result. With a box, a descriptor of out, results go to y_buf in shared
    memory, from where they are copied while the next tile is multiplied. Else they stay within their warp, so that no
    warp waits for another.
    """
    BN: gl.constexpr = acc.shape[0]
    L: gl.constexpr = acc.type.layout
    if CODES:
        acc = acc - gl.expand_dims(gl.convert_layout(less, gl.SliceLayout(0, L)), 0)
    if out.dtype.element_ty == gl.int32:
        y = acc
    else:
        rn = off_n + gl.arange(0, BN, layout=gl.SliceLayout(1, L))
        if ROWS:
            of_row = gl.load(scale + rn, mask=rn < N, other=0.0)
            by = gl.expand_dims(gl.convert_layout(of_token, gl.SliceLayout(0, L)), 0) * gl.expand_dims(of_row, 1)
        else:
            by = gl.expand_dims(gl.convert_layout(of_token * gl.load(scale), gl.SliceLayout(0, L)), 0)
        y = acc.to(gl.float32) * by
        if BIAS == 1:
            y = y + gl.expand_dims(gl.load(bias + rn, mask=rn < N, other=0.0).to(gl.float32), 1)
    store_results(y, off_n, off_m, bias, out, box, y_buf, M, N, BIAS if out.dtype.element_ty != gl.int32 else 0)


@gluon.jit
def store_results(y, off_n, off_m, bias, out, box, y_buf, M, N, BIAS: gl.constexpr):
    """Store y [rows, tokens] as out [M, N], by a box as `_finish` says. BIAS 2: add the bias of each result before."""
    BN: gl.constexpr = y.shape[0]
    BM: gl.constexpr = y.shape[1]
    if box is not None:
        tma.store_wait(pendings=0)  # of the tile before
        barrier()
        y_buf.permute((1, 0)).store(y.to(out.dtype.element_ty))
        fence_async_shared()
        barrier()
        store(box, [off_m, off_n], y_buf)
        return
    to: gl.constexpr = gl.BlockedLayout([8, 1], [2, 16], [4, 1], [0, 1])
    n = gl.expand_dims(off_n + gl.arange(0, BN, layout=gl.SliceLayout(1, to)), 1)
    m = gl.expand_dims(off_m + gl.arange(0, BM, layout=gl.SliceLayout(0, to)), 0)
    cells, inside = m.to(gl.int64) * N + n, (m < M) & (n < N)
    if BIAS == 2:
        y = gl.convert_layout(y, to) + gl.load(bias + cells, mask=inside, other=0.0).to(gl.float32)
    gl.store(out + cells, gl.convert_layout(y.to(out.dtype.element_ty), to), mask=inside)


@gluon.jit
def threads():
    return gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _come(count):
    """Count this warpgroup at the end of its part of a tile; return how many came before, in its first thread.

    The others get 0. It is issued some steps early, and nothing waits for the answer here.
    """
    thread = threads()
    return gl.inline_asm_elementwise(
        TAKE, "=&r,r,l", [thread, count + thread * 0], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _await(count, least):
    """Wait until a count is so large. Every thread polls for itself, and then sees what was written before it grew."""
    thread = threads()
    gl.inline_asm_elementwise(
        AWAIT, "=&r,l,r", [count + thread * 0, thread * 0 + least], dtype=gl.int32, is_pure=False, pack=1
    )
    barrier()  # before anybody clears it


@gluon.jit
def sums_at(acc, partial):
    """Return the addresses of the sums of a part: the first of each four of a thread, so that warps write coalesced."""
    L: gl.constexpr = acc.type.layout
    BM: gl.constexpr = acc.shape[1]
    r = gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, L))
    c = gl.arange(0, BM, layout=gl.SliceLayout(0, L))
    row = r // 64 * (64 * BM) + r % 64 // 16 * 128 + r % 8 * 16
    column = c // 8 * 512 + c % 8 // 2 * 4
    return partial + gl.expand_dims(row, 1) + gl.expand_dims(column, 0)


@gluon.jit
def leave(accs, partial):
    """Store the sums of all tensors of a part, one after another."""
    for h in gl.static_range(len(accs)):
        cells = sums_at(accs[h], partial)
        gl.inline_asm_elementwise(
            LEAVE, "=r,=r,=r,=r,r,r,r,r,l,l,l,l", [accs[h], cells], dtype=gl.int32, is_pure=False, pack=4
        )
        partial += accs[h].shape[0] * accs[h].shape[1]


@gluon.jit
def _plus(accs, partial):
    """Return accs plus the sums in memory, added as they arrive: not all that are read need a register at once."""
    result = ()
    for h in gl.static_range(len(accs)):
        cells = sums_at(accs[h], partial)
        result += (
            gl.inline_asm_elementwise(
                ADD, "=&r,=&r,=&r,=&r,r,r,r,r,l,l,l,l", [accs[h], cells], dtype=gl.int32, is_pure=False, pack=4
            ),
        )
        partial += accs[h].shape[0] * accs[h].shape[1]
    return result


@gluon.jit
def _join(accs, partial, count, before, part, parts, SIZE: gl.constexpr, SPLIT: gl.constexpr):
    """Leave the SIZE sums of a part of a tile; or, in the last of `parts` to arrive by `before`, add up those of all.

    Returns whether it is the last, and the sums. SPLIT: the number of parts where it is a constant, else 0.

    The last waits for others. They have arrived before, so they are running, and wait for nobody: shared tiles are the
    last job of a CTA. Every part has memory of its own, written once by a launch and read only after all have written,
    so nothing must be zero before and only the count is cleared.
    """
    last = gl.sum(before, 0) % LEFT == parts - 1
    if last:
        _await(count, (parts - 1) * LEFT + parts)
        # sums of several parts at once would not fit in registers
        if SPLIT == 0 or (SIZE > 64 * 32 and SIZE * (SPLIT - 1) > 128 * 64):
            for _ in range(1, parts):
                part = gl.where(part == parts - 1, 0, part + 1)
                accs = _plus(accs, partial + part * SIZE)
        else:
            for _ in gl.static_range(1, SPLIT):
                part = gl.where(part == SPLIT - 1, 0, part + 1)
                accs = _plus(accs, partial + part * SIZE)
        gl.store(count, 0)
    else:
        leave(accs, partial + part * SIZE)
        barrier()
        gl.atomic_add(count, LEFT, sem="release")  # of the first thread, for all threads before the barrier
    return last, accs


@gluon.jit
def _times(accs, w, x_bufs, i, TOKENS: gl.constexpr):
    """Return accs plus the products of w with the TOKENS of stage i, which still run."""
    result = ()
    for h in gl.static_range(len(accs)):
        right = x_bufs[h].index(i).slice(0, min(TOKENS, x_bufs[h].shape[1])).permute((1, 0))
        result += (warpgroup_mma(w, right, accs[h], is_async=True),)
    return result


@gluon.jit
def _wait(accs, running: gl.constexpr):
    """Wait until no more than so many products of all tokens run."""
    result = warpgroup_mma_wait(num_outstanding=running * len(accs), deps=accs)
    return (result,) if len(accs) == 1 else result


@gluon.jit
def _decoded(accs, ready, free, w_bufs, x_bufs, it, TOKENS: gl.constexpr, W: gl.constexpr, PARTS: gl.constexpr,
             STAGES: gl.constexpr, COUNT: gl.constexpr):  # fmt: skip
    """Multiply COUNT steps of codes.

    A plane is decoded while the products of the one before run, and those of the last plane of a step run while the
    next step starts: its stage is free after the first plane of that. Where sums, codes and four planes would fill all
    registers, products of two planes at most run at once.
    """
    FULL: gl.constexpr = w_bufs.shape[1] * TOKENS // 128 + 5 * w_bufs.shape[1] * w_bufs.shape[2] // 512 > 224
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=accs[0].type.layout, k_width=4)
    for step in gl.static_range(COUNT):
        s = it % STAGES
        mbarrier.wait(ready.index(s), (it // STAGES) & 1)
        codes = w_bufs.index(s * PARTS + W).load(left)
        for plane in gl.static_range(4):
            decoded = _field(codes, plane)
            accs = _times(accs, decoded, x_bufs, s * 4 + plane, TOKENS)
            if (plane == 0 and step > 0) or (plane > 0 and FULL):
                accs = _wait(accs, 1)
            if plane == 0 and step > 0:
                mbarrier.arrive(free.index((it + STAGES - 1) % STAGES), count=1)
        accs = _wait(accs, 0 if step == COUNT - 1 else 1)
        it += 1
    mbarrier.arrive(free.index((it + STAGES - 1) % STAGES), count=1)
    return accs, it


@gluon.jit
def _run_on(accs):
    """Return sums whose products may run across iterations of a loop."""
    result = ()
    for h in gl.static_range(len(accs)):
        result += (warpgroup_mma_init(accs[h]),)
    return result


@gluon.jit
def _straight(accs, ready, free, w_bufs, x_bufs, it, n, TOKENS: gl.constexpr, W: gl.constexpr, PARTS: gl.constexpr,
              STAGES: gl.constexpr):  # fmt: skip
    """Multiply n steps of int8 weights. Products of a step run while the next one starts: a stage is free a step
    later.
    """
    accs = _run_on(accs)
    for i in range(n):
        s = it % STAGES
        mbarrier.wait(ready.index(s), (it // STAGES) & 1)
        accs = _times(accs, w_bufs.index(s * PARTS + W), x_bufs, s, TOKENS)
        accs = _run_on(_wait(accs, 1))
        mbarrier.arrive(free.index((it + STAGES - 1) % STAGES), count=1, pred=i > 0)
        it += 1
    accs = _wait(accs, 0)
    mbarrier.arrive(free.index((it + STAGES - 1) % STAGES), count=1)
    return accs, it


@gluon.jit
def _begin(total, token_scale, off_m, M, PART: gl.constexpr, TOKENS: gl.constexpr):
    """Load the sums and scales of tokens from off_m on early, while products run; return them and zero accumulators."""
    L: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, min(TOKENS, 128), 32]
    )
    rm = off_m + gl.arange(0, TOKENS, layout=gl.BlockedLayout([1], [32], [4], [0]))
    less = gl.load(total + rm, mask=rm < M, other=0)
    of_token = gl.load(token_scale + rm, mask=rm < M, other=0)
    return less, of_token, gl.zeros((PART, TOKENS), gl.int32, L)


@gluon.jit
def _multiply(ready, free, turn, w_bufs, x_bufs, total, token_scale, scale, bias, out, box, box_fewer, y_bufs,
              partial, counts, M, N, place, off_n, off_m, part, parts, it, j, n,
              PART: gl.constexpr, TOKENS: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr, STAGES: gl.constexpr,
              SPLIT: gl.constexpr, CODES: gl.constexpr, ROWS: gl.constexpr, BIAS: gl.constexpr, W: gl.constexpr):  # fmt: skip
    """Run job j of a CTA, n steps from `it` on, of rows from off_n and tokens from off_m on; return the step behind
    them.

    SPLIT: 1 where a tile is one job, else as `_join` takes it; place: the index of the shared sums.
    """
    HALF: gl.constexpr = (PARTS - 1) * W
    COUNT: gl.constexpr = len(x_bufs) if x_bufs[0].shape[1] < TOKENS else 1
    less = ()
    of_token = ()
    accs = ()
    token = off_m
    for h in gl.static_range(COUNT):
        one, two, acc = _begin(total, token_scale, token, M, PART, min(TOKENS, x_bufs[h].shape[1]))
        less += (one,)
        of_token += (two,)
        accs += (acc,)
        token += x_bufs[h].shape[1]
    if TURNS:
        mbarrier.wait(turn.index(W), (j // 2 + 1 - W) & 1)
    early = 0
    if SPLIT != 1 and CODES:  # some steps are left to hide the latency of the count
        early = gl.maximum(n - 1, 0) // AT_ONCE
        for _ in range(early):
            accs, it = _decoded(accs, ready, free, w_bufs, x_bufs, it, TOKENS, HALF, PARTS, STAGES, AT_ONCE)
    if SPLIT != 1:
        before = _come(counts + place)
    if CODES:
        for _ in range(n // AT_ONCE - early):
            accs, it = _decoded(accs, ready, free, w_bufs, x_bufs, it, TOKENS, HALF, PARTS, STAGES, AT_ONCE)
        for _ in range(n % AT_ONCE):
            accs, it = _decoded(accs, ready, free, w_bufs, x_bufs, it, TOKENS, HALF, PARTS, STAGES, 1)
    else:
        accs, it = _straight(accs, ready, free, w_bufs, x_bufs, it, n, TOKENS, HALF, PARTS, STAGES)
    if TURNS:
        mbarrier.arrive(turn.index(1 - W), count=1)
    complete = True
    if SPLIT != 1:
        own = partial + place.to(gl.int64) * (parts * (PART * TOKENS))
        complete, accs = _join(accs, own, counts + place, before, part, parts, PART * TOKENS, SPLIT)
    if complete:
        for h in gl.static_range(COUNT - 1, -1, -1):  # the smallest first: then those registers are free for the others
            to = off_m
            for g in gl.static_range(h):
                to += x_bufs[g].shape[1]
            if h == 1 or x_bufs[0].shape[1] > TOKENS:
                _finish(accs[h], off_n, to, less[h], of_token[h], scale, bias, out, box_fewer,
                        y_bufs[h].index(W).slice(0, accs[h].shape[1]), M, N, CODES, ROWS, BIAS)  # fmt: skip
            else:
                _finish(accs[h], off_n, to, less[h], of_token[h], scale, bias, out, box, y_bufs[h].index(W), M, N,
                        CODES, ROWS, BIAS)  # fmt: skip
    return it


@gluon.jit
def _is_mine(j, TURNS: gl.constexpr, W: gl.constexpr):
    return (j % 2 == W) if TURNS else (j >= 0)


@gluon.jit
def _consume(ready, free, turn, w_bufs, x_bufs, total, token_scale, scale, bias, out, box, box_fewer, y_bufs, partial,
             counts, M, N, whole, parts, tiles, steps,
             BN: gl.constexpr, BM: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr, STAGES: gl.constexpr,
             GROUP: gl.constexpr, SPLIT: gl.constexpr, PIECES: gl.constexpr, CODES: gl.constexpr,
             ROWS: gl.constexpr, BIAS: gl.constexpr, W: gl.constexpr):  # fmt: skip
    """Multiply in warpgroup W: its part of the rows of every tile, or, in TURNS, every other tile.

    A barrier distinguishes only odd phases from even ones. So a warpgroup may not wait for the steps of its tile before
    the other has had all of those before them: it waits for its turn.
    """
    PART: gl.constexpr = BN // PARTS
    HALF: gl.constexpr = (PARTS - 1) * W
    wait_for_inputs()
    it = 0
    for t in range(gl.program_id(0), whole * SPLIT, gl.num_programs(0)):
        tile, part, _, n = _job(t, whole, steps, SPLIT)
        j = t // gl.num_programs(0)
        if _is_mine(j, TURNS, W):
            off_n, off_m = place_of(tile, M, N, BN, BM, GROUP)
            it = _multiply(ready, free, turn, w_bufs, x_bufs, total, token_scale, scale, bias, out, box, box_fewer, y_bufs,
                           partial, counts, M, N, tile * PARTS + HALF, off_n + HALF * PART, off_m, part, SPLIT, it, j, n,
                           PART, BM, PARTS, TURNS, STAGES, SPLIT, CODES, ROWS, BIAS, W)  # fmt: skip
        else:
            it += n
    if PIECES == 0:
        for t in range(whole + gl.program_id(0), whole + (tiles - whole) * parts, gl.num_programs(0)):
            tile, part, _, n = _part(t - whole, tiles - whole, steps, parts)
            j = t // gl.num_programs(0)
            if _is_mine(j, TURNS, W):
                off_n, off_m = place_of(whole + tile, M, N, BN, BM, GROUP)
                it = _multiply(ready, free, turn, w_bufs, x_bufs, total, token_scale, scale, bias, out, box, box_fewer,
                               y_bufs, partial, counts, M, N, tile * PARTS + HALF, off_n + HALF * PART, off_m, part, parts, it, j, n,
                               PART, BM, PARTS, TURNS, STAGES, 0, CODES, ROWS, BIAS, W)  # fmt: skip
            else:
                it += n
    if PIECES > 1:
        TOKENS: gl.constexpr = BM // PIECES
        for t in range(whole + gl.program_id(0), _jobs(whole, tiles, PIECES), gl.num_programs(0)):
            tile, piece = _piece(t, whole, PIECES)
            j = t // gl.num_programs(0)
            if _is_mine(j, TURNS, W):
                off_n, off_m = place_of(tile, M, N, BN, BM, GROUP)
                it = _multiply(ready, free, turn, w_bufs, x_bufs, total, token_scale, scale, bias, out, box, box_fewer,
                               y_bufs, partial, counts, M, N, 0, off_n + HALF * PART, off_m + piece * TOKENS, 0, 1, it, j, steps,
                               PART, TOKENS, PARTS, TURNS, STAGES, 1, CODES, ROWS, BIAS, W)  # fmt: skip
            else:
                it += steps
    if box is not None:
        tma.store_wait(pendings=0)  # shared memory is theirs until they have read it


@gluon.jit
def _first(ready, free, turn, w_bufs, x_bufs, w, x, x_fewer, total, token_scale, scale, bias, out, box, box_fewer, y_bufs, partial, counts,
           M, N, KB, whole, parts, tiles, steps,
           BN: gl.constexpr, BM: gl.constexpr, BK: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr,
           STAGES: gl.constexpr, GROUP: gl.constexpr, SPLIT: gl.constexpr, PIECES: gl.constexpr, CODES: gl.constexpr,
           ROWS: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    _consume(ready, free, turn, w_bufs, x_bufs, total, token_scale, scale, bias, out, box, box_fewer, y_bufs, partial,
             counts, M, N, whole, parts, tiles, steps,
             BN, BM, PARTS, TURNS, STAGES, GROUP, SPLIT, PIECES, CODES, ROWS, BIAS, 0)  # fmt: skip


@gluon.jit
def _second(ready, free, turn, w_bufs, x_bufs, w, x, x_fewer, total, token_scale, scale, bias, out, box, box_fewer, y_bufs, partial, counts,
            M, N, KB, whole, parts, tiles, steps,
            BN: gl.constexpr, BM: gl.constexpr, BK: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr,
            STAGES: gl.constexpr, GROUP: gl.constexpr, SPLIT: gl.constexpr, PIECES: gl.constexpr, CODES: gl.constexpr,
            ROWS: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    _consume(ready, free, turn, w_bufs, x_bufs, total, token_scale, scale, bias, out, box, box_fewer, y_bufs, partial,
             counts, M, N, whole, parts, tiles, steps,
             BN, BM, PARTS, TURNS, STAGES, GROUP, SPLIT, PIECES, CODES, ROWS, BIAS, 1)  # fmt: skip


@gluon.jit
def _fetch_weights(w, w_bufs, bar, off_n, k, s, pred, PART: gl.constexpr, PARTS: gl.constexpr):
    for h in gl.static_range(PARTS):
        load(w, [off_n + h * PART, k], bar, w_bufs.index(s * PARTS + h), pred=pred)


@gluon.jit
def _fetch(ready, free, w_bufs, x_bufs, w, xs, off_n, off_m, KB, k, n, it, early, TOKENS: gl.constexpr,
           BK: gl.constexpr, PART: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, PLANES: gl.constexpr):  # fmt: skip
    """Fetch n steps from step k of a row on: all rows of a tile, and TOKENS; return the step behind them.

    Weights of the first `early` steps of a CTA were fetched before.
    """
    for i in range(k, k + n):
        s = it % STAGES
        bar = ready.index(s)
        mbarrier.wait(free.index(s), ((it // STAGES) & 1) ^ 1)
        mbarrier.expect(bar, (PARTS * PART + PLANES * TOKENS) * BK, pred=it >= early)
        _fetch_weights(w, w_bufs, bar, off_n, i * BK, s, it >= early, PART, PARTS)
        for p in gl.static_range(PLANES):
            token = off_m
            for h in gl.static_range(len(xs)):
                to = x_bufs[h].index(s * PLANES + p).slice(0, xs[h].block_shape[0])
                load(xs[h], [token, p * KB + i * BK], bar, to)
                token += xs[h].block_shape[0]
        it += 1
    return it


@gluon.jit
def _produce(ready, free, turn, w_bufs, x_bufs, w, x, x_fewer, total, token_scale, scale, bias, out, box, box_fewer, y_bufs, partial, counts,
             M, N, KB, whole, parts, tiles, steps,
             BN: gl.constexpr, BM: gl.constexpr, BK: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr,
             STAGES: gl.constexpr, GROUP: gl.constexpr, SPLIT: gl.constexpr, PIECES: gl.constexpr, CODES: gl.constexpr,
             ROWS: gl.constexpr, BIAS: gl.constexpr):  # fmt: skip
    """Fetch the tiles of every step, STAGES ahead; the first weights before the tokens are there."""
    PLANES: gl.constexpr = 4 if CODES else 1
    PART: gl.constexpr = BN // PARTS
    tile, _, k, n = _job(gl.program_id(0), whole, steps, SPLIT)
    off_n, off_m = place_of(tile, M, N, BN, BM, GROUP)
    early = gl.minimum(n, STAGES)
    for i in range(early):
        mbarrier.expect(ready.index(i), (BN + PLANES * BM) * BK)
        _fetch_weights(w, w_bufs, ready.index(i), off_n, (k + i) * BK, i, True, PART, PARTS)
    wait_for_inputs()
    it = 0
    xs = (x,) if len(x_bufs) == 1 else (x, x_fewer)
    for t in range(gl.program_id(0), whole * SPLIT, gl.num_programs(0)):
        tile, _, k, n = _job(t, whole, steps, SPLIT)
        off_n, off_m = place_of(tile, M, N, BN, BM, GROUP)
        it = _fetch(
            ready, free, w_bufs, x_bufs, w, xs, off_n, off_m, KB, k, n, it, early, BM, BK, PART, PARTS, STAGES, PLANES
        )
    if PIECES == 0:
        for t in range(whole + gl.program_id(0), whole + (tiles - whole) * parts, gl.num_programs(0)):
            tile, _, k, n = _part(t - whole, tiles - whole, steps, parts)
            off_n, off_m = place_of(whole + tile, M, N, BN, BM, GROUP)
            it = _fetch(
                ready,
                free,
                w_bufs,
                x_bufs,
                w,
                xs,
                off_n,
                off_m,
                KB,
                k,
                n,
                it,
                early,
                BM,
                BK,
                PART,
                PARTS,
                STAGES,
                PLANES,
            )
    if PIECES > 1:
        for t in range(whole + gl.program_id(0), _jobs(whole, tiles, PIECES), gl.num_programs(0)):
            tile, piece = _piece(t, whole, PIECES)
            off_n, off_m = place_of(tile, M, N, BN, BM, GROUP)
            off_m += piece * (BM // PIECES)
            it = _fetch(ready, free, w_bufs, x_bufs, w, (x_fewer,), off_n, off_m, KB, 0, steps, it, early,
                        BM // PIECES, BK, PART, PARTS, STAGES, PLANES)  # fmt: skip


@gluon.jit(do_not_specialize=["M", "whole", "parts"])
def wgmma(
    w, x, x_fewer, total, token_scale, scale, bias, out, box, box_fewer, partial, counts, M, N, KB, whole, parts,
    BN: gl.constexpr, BM: gl.constexpr, BK: gl.constexpr, TURNS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    SPLIT: gl.constexpr, PIECES: gl.constexpr, CODES: gl.constexpr, ROWS: gl.constexpr, BIAS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Multiply tiles [BN, BM] of out.T in steps of BK bytes of a row of weights.

    w and x are descriptors, KB the bytes of a row of w. x takes the largest power of two tokens of a tile, x_fewer
    those of a piece, or those that a tile has beyond x: such tiles are not cut. Where there are neither it is None. box
    and box_fewer take as many tokens of the results, where these are stored through shared memory; else they are None.
    """
    PLANES: gl.constexpr = 4 if CODES else 1
    PARTS: gl.constexpr = 1 if TURNS else 2
    may_start()
    tiles = gl.cdiv(N, BN) * gl.cdiv(M, BM)
    steps = gl.cdiv(KB, BK)
    w_bufs = gl.allocate_shared_memory(w.dtype, [STAGES * PARTS, BN // PARTS, BK], w.layout)
    x_bufs = (gl.allocate_shared_memory(gl.int8, [STAGES * PLANES, x.block_shape[0], BK], x.layout),)
    if x.block_shape[0] < BM:
        gl.static_assert(PIECES < 2, "tiles of two tensors of tokens are not cut into pieces")
        gl.static_assert(
            x.block_shape[0] + x_fewer.block_shape[0] == BM, "x and x_fewer do not hold the tokens of a tile"
        )
        x_bufs += (gl.allocate_shared_memory(gl.int8, [STAGES * PLANES, x_fewer.block_shape[0], BK], x_fewer.layout),)
    y_bufs = x_bufs
    if box is not None:
        y_bufs = (gl.allocate_shared_memory(box.dtype, [2, box.block_shape[0], box.block_shape[1]], box.layout),)
        if len(x_bufs) > 1:
            y_bufs += (
                gl.allocate_shared_memory(box.dtype, [2, box_fewer.block_shape[0], box.block_shape[1]], box.layout),
            )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = free
    if TURNS:  # an unused barrier would be overwritten by results on their way out
        turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(2):
            mbarrier.init(turn.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=PARTS)
    fence_async_shared()  # copies look at barriers in a way of their own
    gl.warp_specialize(  # a tuple with a name would lose its constants
        [
            (_first, (ready, free, turn, w_bufs, x_bufs, w, x, x_fewer, total, token_scale, scale, bias, out, box, box_fewer,
                y_bufs, partial, counts, M, N, KB, whole, parts, tiles, steps, BN, BM, BK,
                PARTS, TURNS, STAGES, GROUP, SPLIT, PIECES, CODES, ROWS, BIAS)),
            (_second, (ready, free, turn, w_bufs, x_bufs, w, x, x_fewer, total, token_scale, scale, bias, out, box, box_fewer,
                y_bufs, partial, counts, M, N, KB, whole, parts, tiles, steps, BN, BM, BK,
                PARTS, TURNS, STAGES, GROUP, SPLIT, PIECES, CODES, ROWS, BIAS)),
            (_produce, (ready, free, turn, w_bufs, x_bufs, w, x, x_fewer, total, token_scale, scale, bias, out, box, box_fewer,
                y_bufs, partial, counts, M, N, KB, whole, parts, tiles, steps, BN, BM, BK,
                PARTS, TURNS, STAGES, GROUP, SPLIT, PIECES, CODES, ROWS, BIAS)),
        ],
        [4, 1], [REGISTERS, 24],
    )  # fmt: skip


fix_cache_keys(globals())
