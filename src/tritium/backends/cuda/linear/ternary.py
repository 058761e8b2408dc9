"""Linear layers of ternary or int8 weights on a GPU: quantise tokens, multiply exactly, scale. Runs the kernels of
`cuda.linear`.

Everything can be captured by CUDA graphs: once kernels are compiled nothing waits for the device, and only results and
partial sums are allocated. On CPU tensors Triton's interpreter runs the plain kernels.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from tritium.backends.cuda.capability import HOPPER
from tritium.backends.cuda.counts import counters
from tritium.backends.cuda.gpu import Gpu, current, gpu, has_gluon
from tritium.backends.cuda.linear import choice as tuned
from tritium.backends.cuda.linear.choice import Case, Choice
from tritium.backends.cuda.linear.replay import launch, scratch
from tritium.backends.cuda.linear.spread import Spread, spread, tensors
from tritium.backends.cuda.linear.weights import Value, Weights
from tritium.backends.reference.quantized import COLUMNS
from tritium.errors import ArgumentError
from tritium.machine.tuned import remembered

ONE_PASS = 32768  # columns of a row that one CTA holds in registers
COPIED = 32768  # columns of one token that CTAs copy to shared memory; longer ones are read from global memory
LINED = 64, 128  # columns of a group for which there are kernels that read 2 bits
GROUP_COLUMNS = 4096  # that one CTA quantises by groups
GEMV_TOKENS = 7  # up to which each has CTAs of its own, which hold all weights of their rows
GEMV_LEVELS = 2  # doublings of 1,024 columns whose terms a thread holds
GEMV_WORDS = 4096  # of weights that a CTA holds
GROUP_FEW = 2  # tokens up to which products with groups have CTAs for each token on Hopper too
GROUP_TIMES = {
    16: 1.425,
    32: 1.756,
    64: 2.639,
    128: 6.342,
}  # µs of 1,024 columns of a tile of 128 rows, by its tokens, on an H200
BY_TOKENS = 64  # of such a tile where tokens have scales by group
GROUP_ENDS = 3.674  # µs of the start and the end of a tile
GROUP_SHARED = 0.789, 0.00681  # µs where CTAs share the blocks of a tile: once, and for each block and token of a tile
PIECES_COLUMNS = 32768  # the sums of whose blocks fit in shared memory
PIECES_TOKENS = 32  # up to which `cuda.linear.fragments` multiplies with groups on Hopper
PIECES_ONCE = 16  # of them that read weights once; more only where all warps run at once
PIECES_WARPS = 20  # that run at once on a multiprocessor
ALONE = (
    3  # CTAs on each multiprocessor up to which each quantises the token for itself: of more, a launch before is faster
)


# ---- launches


def _options(g: Gpu, warps: int, *, early: bool = False, **others: Any) -> dict[str, Any]:
    """Return launch options: one rounding for each float operation.

    early: it may start before the kernel in front of it is done, where the GPU supports it. Only kernels do whose every
    thread waits before it reads what that one wrote; they read weights at once, so those must have been there before.
    """
    pdl = {"launch_pdl": True} if early and g.early else {}
    return {"num_warps": warps, "enable_fp_fusion": False} | pdl | others


# ---- tokens


class Tokens(NamedTuple):
    """Quantised tokens: q int8 [m, wide], scale f32 [m], total int32 [m] (the sums of q), and the k columns that count.

    Those of `quantise_lines` have a scale for each group of columns, [m, wide / group], and no sums. tiled: q has whole
    eights of rows, side by side in pieces of 64 bytes, as `cuda.linear.fragments` reads them best.
    """

    q: Value
    scale: Value
    total: Value
    k: int
    tiled: bool = False

    @property
    def m(self) -> int:
        return self.total.shape[0]

    def straight(self) -> Tokens:
        """Return the tokens row by row, for the other kernels."""
        if not self.tiled:
            return self
        pieces = self.q.view(self.q.shape[0] // 8, -1, 8, 64).transpose(1, 2)
        return self._replace(q=pieces.reshape(self.q.shape)[: self.m], tiled=False)


class Norm(NamedTuple):
    """A root-mean-square norm before the quantiser; without a weight the plain one."""

    weight: Value | None
    eps: float


def _norm(norm: Norm | None, x: Value) -> tuple[int, Value, float]:
    """Return the kind of the norm, its weight and eps as kernels take them; without a weight x stands for it,
    unread.
    """
    if norm is None:
        return 0, x, 0.0
    return (1, x, norm.eps) if norm.weight is None else (2, norm.weight.contiguous(), norm.eps)


def _readable(x: Value) -> Value:
    return (x if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x.float()).contiguous()


def _cut(columns: int, alone: bool = False) -> tuple[int, int, int]:
    """Return (block, passes, warps) of a row; more warps where it has a multiprocessor alone, and all wait for it."""
    block = min(max(1 << (columns - 1).bit_length(), 128), ONE_PASS)
    return block, -(-columns // block), min(max(block // (256 if alone else 1024), 1), 16)


def quantise(x: Value, norm: Norm | None = None, tiled: bool = False) -> Tokens:
    """Return x [m, k] of floats as int8, by the steps of `quantized.tokens`; tiled as `Tokens` says."""
    from tritium.backends.cuda.linear import quantise as cuda_quantise

    m, k = x.shape
    x = _readable(x)
    wide, g = tuned.wide(k), gpu(x.device)
    q = scratch((_rows(m, tiled), wide), torch.int8, x.device)
    scale, total = scratch((m,), torch.float32, x.device), scratch((m,), torch.int32, x.device)
    block, passes, warps = _cut(wide, m <= g.processors)
    kind, weight, eps = _norm(norm, x)
    if m:
        with current(x):
            launch(
            cuda_quantise.tokens, (m,),
                x, weight, q, scale, total, wide, K=k, EPS=eps, BLOCK=block, PASSES=passes,
                NORM=kind, TILED=tiled, **g.starting, **_options(g, warps),
            )  # fmt: skip
    return Tokens(q, scale, total, k, tiled)


def quantise_groups(x: Value, group: int) -> Tokens:
    """Return x [m, k] of floats as int8 with a scale for each group of columns.

    Rows of q and scale are groups, the last of each token padded with zeros; k is that of a token.
    """
    m, k = x.shape
    group = min(group, k)
    groups = -(-k // group)
    if short := groups * group - k:
        x = torch.nn.functional.pad(x, (0, short))
    return quantise(x.reshape(m * groups, group))._replace(k=k)


def norms_groups(k: int, group: int) -> bool:
    """Return True if `quantise_lines` norms tokens of k columns: one CTA must hold a whole token."""
    return group in LINED and 0 < tuned.wide(k) <= GROUP_COLUMNS


def _group_scales(m: int, groups: int, across: bool, device: torch.device) -> Value:
    """Return memory for the scales of m tokens, [m, groups]; across: those of a group beside each other, for whole tiles."""
    if not across:
        return scratch((m, groups), torch.float32, device)
    return scratch((groups, -(-m // BY_TOKENS) * BY_TOKENS), torch.float32, device).t()[:m]


def quantise_lines(x: Value, group: int, norm: Norm | None = None, across: bool = False) -> Tokens:
    """Return x [m, k] of floats as int8 with a scale for each group of columns, for `cuda.linear.grouped`.

    norm: of the tokens before, where `norms_groups` is true. across: the scales of a group are beside each other, as
    `cuda.linear.group_tiles` reads them.
    """
    from tritium.backends.cuda.linear import quantise as cuda_quantise

    m, k = x.shape
    x = _readable(x)
    wide, g = tuned.wide(k), gpu(x.device)
    q, scale = scratch((m, wide), torch.int8, x.device), _group_scales(m, wide // group, across, x.device)
    block = min(max(1 << (wide - 1).bit_length(), 128), GROUP_COLUMNS)
    kind, weight, eps = _norm(norm, x)
    if m:
        with current(x):
            launch(
                cuda_quantise.groups, (m, -(-wide // block)),
                x, weight, q, scale, wide, scale.stride(1), K=k, EPS=eps, BLOCK=block, GROUP=group, NORM=kind, ACROSS=across,
                **g.starting, **_options(g, max(block // (256 if kind and m <= g.processors else 1024), 1)),
            )  # fmt: skip
    return Tokens(q, scale, scale, k)


def _rows(m: int, tiled: bool) -> int:
    return -(-m // 8) * 8 if tiled else m


def integers(q: Value, tiled: bool = False) -> Tokens:
    """Return int8 [m, k] as tokens without scales: padded where a row is no whole number of blocks, and summed."""
    from tritium.backends.cuda.linear import quantise as cuda_quantise

    m, k = q.shape
    q, wide, g = q.contiguous(), tuned.wide(k), gpu(q.device)
    total = torch.empty(m, dtype=torch.int32, device=q.device)
    copy = tiled or wide != k or q.data_ptr() % 16 != 0
    padded = torch.empty((_rows(m, tiled), wide), dtype=torch.int8, device=q.device) if copy else q
    block, passes, warps = _cut(wide)
    if m:
        with current(q):
            launch(
            cuda_quantise.sums, (m,),
                q, total, k, wide, padded, BLOCK=block, PASSES=passes, COPY=copy, TILED=tiled, **g.starting,
                **_options(g, warps),
            )  # fmt: skip
    return Tokens(padded, total, total, k, tiled)


# ---- products


class _Job(NamedTuple):
    """The arguments of a kernel; scale and bias are placeholders where there are none."""

    tokens: Tokens
    w: Weights
    scale: Value
    bias: Value
    out: Value
    rows: bool
    biases: int  # 0: none, 1: one for each row, 2: for each result

    @property
    def flags(self) -> dict[str, Any]:
        return {"ROWS": self.rows, "BIAS": self.biases}

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.tokens.total, self.tokens.scale, self.scale, self.bias, self.out

    def shared(self, split: int, sums: int, counts: int) -> tuple[Value, Value]:
        """Return memory for the partial sums of `split` CTAs a tile, uninitialised, and counters, which are zero."""
        if split == 1:
            return self.out, self.out
        device = self.out.device
        return scratch((split * sums,), torch.int32, device), counters(device).some(counts)


def choose(n: int, k: int, m: int, capability: tuple[int, int] | None = None, *, codes: bool = True) -> Choice:
    """Return the kernel that multiplies m tokens of k columns with n rows, with its tile config."""
    g = Gpu(capability, 132, has_gluon()) if capability else gpu(torch.device("cuda", torch.cuda.current_device()))
    return _choose(g, Case(n, k, m, codes))


@remembered
def _choose(g: Gpu, case: Case) -> Choice:
    return tuned.choose(case, g.capability if g.has_gluon else (0, 0), g.processors)


def use(choices: dict[Case, Choice]) -> None:
    """Prefer these choices, as `cuda.linear.choice.use`."""
    tuned.use(choices)
    _choose.cache_clear()


def _gemv(job: _Job, c: Choice, g: Gpu) -> None:
    from tritium.backends.cuda.linear import gemv as cuda_gemv

    m, wide = job.tokens.m, job.tokens.q.shape[1]
    n, codes = job.w.shape[0], job.w.ternary
    weights = (job.w.planes() if codes else job.w.straight()).view(torch.int32)
    early = job.w.keeps("planes" if codes else "straight")
    reach = _reach(weights, c) if m == 1 and wide <= COPIED else 0
    launch(
            cuda_gemv.gemv, (-(-n // c.get("rows")),),
        weights, job.tokens.q.view(torch.int32), *job.ends[:2], job.out, job.out, *job.ends[2:], n, K=wide, KW=weights.shape[1],
        WIDE=reach, BN=c.get("rows"), TK=c.get("lanes"), WK=c.get("across"), M=m, CODES=codes, FLOATS=False, EPS=0.0, NORM=0,
        GATED=False, **job.flags, **_options(g, c.get("warps"), early=early),
    )  # fmt: skip


def _reach(weights: Value, c: Choice) -> int:
    """Return the words of a row of weights, with those behind them that a CTA also takes."""
    step = c.get("lanes") * 4 * c.get("across")
    return -(-weights.shape[1] // step) * step


def _gemv_plain(job: _Job, c: Choice, g: Gpu) -> None:
    from tritium.backends.cuda.linear import plain as cuda_plain

    m, n, codes = job.tokens.m, job.w.shape[0], job.w.ternary
    weights = (job.w.planes() if codes else job.w.straight()).view(torch.int32)
    launch(
            cuda_plain.gemv, (-(-n // c.get("rows")), m),
        weights, job.tokens.q.view(torch.int32), *job.ends, m, n, weights.shape[1], BN=c.get("rows"), BK=c.get("words"),
        CODES=codes, ASM=g.capability > (0, 0), **g.starting, **job.flags, **_options(g, c.get("warps")),
    )  # fmt: skip


def _fragments(job: _Job, c: Choice, g: Gpu) -> None:
    from tritium.backends.cuda.linear import fragments as cuda_fragments

    m, n = job.tokens.m, job.w.shape[0]
    weights = job.w.fragments()
    early = job.w.keeps("fragments")
    tiles, groups = c.get("tiles") * c.get("beside"), c.get("groups")
    launch(
            cuda_fragments.fragments, (-(-weights.shape[0] // tiles), -(-m // (8 * groups))),
        weights, job.tokens.q.view(torch.int32), *job.ends, m, n, weights.shape[0], BLOCKS=weights.shape[1],
        NT=c.get("tiles"), WK=c.get("across"), WN=c.get("beside"), TG=groups, AHEAD=c.get("ahead"),
        TILED=job.tokens.tiled, **job.flags, **_options(g, c.get("across") * c.get("beside"), early=early),
    )  # fmt: skip


def _gemm_plain(job: _Job, c: Choice, g: Gpu) -> None:
    from tritium.backends.cuda.linear import plain as cuda_plain

    m, n, codes = job.tokens.m, job.w.shape[0], job.w.ternary
    weights = job.w.planes() if codes else job.w.straight()
    rows, tokens, step, split = (c.get(name) for name in ("rows", "tokens", "bytes", "split"))
    tiles = -(-n // rows) * -(-m // tokens)
    space = job.shared(split, tiles * rows * tokens, tiles)
    launch(
            cuda_plain.gemm, (tiles, split),
        weights, job.tokens.q, *job.ends, *space, m, n, weights.shape[1], BN=rows, BM=tokens, BK=step, SPLIT=split, GROUP=8,
        CODES=codes, EVEN=weights.shape[1] % step == 0, ASM=g.capability > (0, 0), BYTES=g.bytes, **g.starting,
        **job.flags, **_options(g, c.get("warps"), num_stages=c.get("stages")),
    )  # fmt: skip


class _Tile(NamedTuple):
    """The arguments of a launch of `cuda.linear.wgmma` but its tensors: none depends on them."""

    spread: Spread
    sums: int  # partial ones of a CTA of a shared tile, over all of these
    counts: int
    part: int  # rows of a tile that a warpgroup takes
    high: tuple[int, ...]  # tokens of the tensors of a tile, two of them
    boxed: bool
    layouts: tuple[Any, Any, Any]  # of weights, tokens and results in shared memory
    constants: dict[str, Any]


@lru_cache(maxsize=1024)
def _tile(c: Choice, n: int, m: int, columns: int, codes: bool, box: torch.dtype | None, processors: int) -> _Tile:
    """Return how a product is launched. box: the dtype of results that the copy engine may store."""
    from triton.experimental.gluon import language as gl

    rows, tokens, step, turns = (c.get(name) for name in ("rows", "tokens", "bytes", "turns"))
    nbytes, room = step * (rows + tokens * (4 if codes else 1)), tuned.ROOM - 2 * rows * tokens
    boxed = box is not None and room // nbytes >= tuned.FEWEST_STAGES
    stages = min(c.get("stages"), room // nbytes) if boxed else _stages(c, nbytes)
    tiles, part = -(-n // rows) * -(-m // tokens), rows if turns else rows // 2
    dealt = spread(c.get("spread"), tiles, -(-columns // step), tokens, processors)
    shared = tiles - dealt.whole if dealt.parts > 1 else tiles
    high = (*tensors(tokens), 0)[:2] if dealt.pieces == 1 else (tokens, tokens // dealt.pieces)
    layout = gl.NVMMASharedLayout.get_default_for
    of_out = layout([high[0], part], gl.bfloat16 if box is torch.bfloat16 else gl.float16) if boxed else None
    layouts = layout([part, step], gl.uint8 if codes else gl.int8), layout([high[0], step], gl.int8), of_out
    constants = {
        "BN": rows, "BM": tokens, "BK": step, "TURNS": bool(turns), "STAGES": stages, "GROUP": 8, "SPLIT": dealt.split,
        "PIECES": 0 if dealt.parts > 1 else dealt.pieces, "CODES": codes, "REGISTERS": c.get("most"),
    }  # fmt: skip
    return _Tile(dealt, shared * rows * tokens, 2 * shared, part, high, boxed, layouts, constants)


def _wgmma(job: _Job, c: Choice, g: Gpu) -> None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from tritium.backends.cuda.linear import wgmma as cuda_wgmma

    _enter()
    m, n, codes = job.tokens.m, job.w.shape[0], job.w.ternary
    weights = job.w.planes() if codes else job.w.straight()
    early = job.w.keeps("planes" if codes else "straight")
    box = job.out.dtype if _is_boxed(job.out, job.biases) else None
    t = _tile(c, n, m, weights.shape[1], codes, box, g.processors)
    dealt, step = t.spread, t.constants["BK"]
    space = job.shared(dealt.parts if dealt.parts > 1 else dealt.split, t.sums, t.counts)
    boxes = [(job.tokens.q, h, step, t.layouts[1]) for h in t.high]
    boxes += [(job.out, h * t.boxed, t.part, t.layouts[2]) for h in t.high]
    parts = [TensorDescriptor.from_tensor(x, [h, wide], layout) if h else None for x, h, wide, layout in boxes]
    launch(
            cuda_wgmma.wgmma, (dealt.programs,),
        TensorDescriptor.from_tensor(weights, [t.part, step], t.layouts[0]), *parts[:2], *job.ends, *parts[2:], *space,
        m, n, weights.shape[1], dealt.whole, dealt.parts,
        **t.constants, **job.flags, **_options(g, 4, early=early, maxnreg=c.get("registers")),
    )  # fmt: skip


def _enter() -> None:
    """Register this thread with CUDA: one that has launched nothing yet could make no descriptor."""
    if not getattr(_thread, "known", False) and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().query()
        _thread.known = True


_thread = threading.local()


def _stages(c: Choice, nbytes: int) -> int:
    """Return the stages of so many bytes that fit beside results in registers; as chosen where two CTAs must fit."""
    most = tuned.SHARED // nbytes
    return min(c.get("stages") if tuned.is_beside(c) else tuned.MOST_STAGES, most)


def _is_boxed(out: Value, biases: int) -> bool:
    """Return True if results can be stored by the copy engine: two bytes each, rows of whole 16 bytes, no bias for
    each.
    """
    return out.element_size() == 2 and biases < 2 and out.shape[1] % 8 == 0 and out.data_ptr() % 16 == 0


_KERNELS = {
    "gemv": _gemv, "gemv_plain": _gemv_plain, "fragments": _fragments, "gemm_plain": _gemm_plain, "wgmma": _wgmma,
}  # fmt: skip


def _multiply(job: _Job, picked: Choice | None) -> Value:
    g = gpu(job.out.device)
    m, n = job.tokens.m, job.w.shape[0]
    if m and n:
        c = picked or _choose(g, Case(n, job.tokens.k, m, job.w.ternary))
        if c.kernel != "fragments":
            job = job._replace(tokens=job.tokens.straight())
        with current(job.out):
            _KERNELS[c.kernel](job, c, g)
    return job.out


def integer_product(q: Value | Tokens, w: Weights, *, choice: Choice | None = None) -> Value:
    """Return q [m, k] of int8 times w.T as int32 [m, n], exactly."""
    k = q.k if isinstance(q, Tokens) else q.shape[1]
    _same(k, w)
    t = (
        q
        if isinstance(q, Tokens)
        else integers(q, _tiled(gpu(q.device), Case(w.shape[0], k, q.shape[0], w.ternary), choice))
    )
    out = torch.empty((t.m, w.shape[0]), dtype=torch.int32, device=t.q.device)
    return _multiply(_Job(t, w, out, out, out, False, 0), choice)


def product(
    t: Tokens, w: Weights, scale: Value, bias: Value | None = None, out_dtype: torch.dtype = torch.float32, group: int = 0,
    *, by_group: bool = False, choice: Choice | None = None,
) -> Value:  # fmt: skip
    """Return quantised tokens times w.T, scaled: float(sums) * (token scale * scale) + bias, one rounding each, as [m,
    n].

    scale: one number, one for each row [n], or, with group, one for each so many columns of each row [n, groups]. bias:
    one for each row [n], or whatever is to be added to the results [m, n]. by_group: tokens are those of
    `quantise_groups`.
    """
    _same(t.k, w)
    lined = group in LINED and w.ternary and t.k > 0 and by_group == (t.scale.ndim == 2)
    m = t.m // scale.shape[1] if by_group and not lined else t.m
    out = torch.empty((m, w.shape[0]), dtype=out_dtype, device=t.q.device)
    if group:
        scale = (scale if scale.dtype is torch.float16 else scale.float()).contiguous()
        if lined:
            return _lined(t, w, scale, bias, out, group, by_group)
        return _grouped(t, w, scale, bias, out, group, by_group)
    scale = scale.float().contiguous()
    job = _Job(t, w, scale, _bias(bias, out), out, scale.ndim > 0, _biases(bias))
    return _multiply(job, choice)


def _biases(bias: Value | None) -> int:
    """Return the kind of bias as kernels take it: 0 none, 1 one for each row, 2 for each result."""
    return 0 if bias is None else bias.ndim


def _bias(bias: Value | None, out: Value) -> Value:
    """Return the bias as kernels take it; without one the result stands for it, unread."""
    return out if bias is None else bias.contiguous()


def _grouped(t: Tokens, w: Weights, scale: Value, bias: Value | None, out: Value, group: int, by_group: bool) -> Value:
    from tritium.backends.cuda.linear import plain as cuda_plain

    g, (m, n), groups = gpu(out.device), out.shape, scale.shape[1]
    wide = t.q.shape[1]
    row, apart = (groups * wide, wide) if by_group else (wide, group)
    if not (m and n):
        return out
    rows, tokens = 64, min(max(1 << (m - 1).bit_length(), 16), 64)
    with current(out):
        launch(
            cuda_plain.grouped, (-(-n // rows) * -(-m // tokens),),
            w.straight(), t.straight().q, t.scale, scale, _bias(bias, out), out, m, n, t.k, w.wide, row, apart, group, groups,
            max(COLUMNS // group, 1), BN=rows, BM=tokens, BK=128 if group >= 128 else 64 if group >= 64 else 32,
            BIAS=_biases(bias), BY=by_group, BYTES=g.bytes, **g.starting, **_options(g, 4),
        )  # fmt: skip
    return out


class Lines(NamedTuple):
    """The tile config of `cuda.linear.grouped`: rows and tokens of a CTA, warps, stages, CTAs for each tile.

    0 tokens: each token has CTAs of its own, which multiply by dp4a.
    """

    rows: int
    tokens: int
    warps: int
    stages: int = 1
    split: int = 1


def lines_for(n: int, k: int, m: int, processors: int) -> Lines:
    """Return the tile config of a product with groups: the fastest at 1, 16, 64, 256 and 2,048 tokens on an H200.

    Where one kernel takes over from the other, between 1 and 8, was not measured. For 8 tokens CTAs for each take longer than tensor cores
    for 64: 82 beside 56 µs for 24576×4096 in a decode step.
    """
    blocks = -(-tuned.wide(k) // COLUMNS)
    if m <= GEMV_TOKENS:
        words = COLUMNS // 16 << (blocks - 1).bit_length()
        return Lines(max(min(8, GEMV_WORDS // words), 1), 0, 4 if blocks <= 1 << GEMV_LEVELS else 2)
    if m <= 64:
        rows, tokens, warps = (128, 16, 4) if m <= 16 else (128, 32, 8)
    else:
        rows, tokens, warps = (128, 128, 8) if -(-n // 128) * -(-m // 128) >= processors else (64, 128, 4)
    tiles = -(-n // rows) * -(-m // tokens)
    split = 1 if tiles >= processors else min(4 if m <= 64 else 2, blocks, max(4 * processors // max(tiles, 1), 1))
    return Lines(rows, tokens, warps, 3, split)


class Tiles(NamedTuple):
    """The tile config of `cuda.linear.group_tiles`: tokens of a tile, and the CTAs that share its blocks."""

    tokens: int
    split: int


def group_tiles_for(n: int, k: int, m: int, processors: int, by_group: bool = False) -> Tiles:
    """Return the tile config of a product with groups on Hopper: the least time by a model.

    Scales of tokens by group leave registers for fewer of them.
    """
    blocks = -(-k // COLUMNS)
    most = min(2 * m, BY_TOKENS + 1) if by_group else 2 * m
    sizes = [t for t in GROUP_TIMES if t == min(GROUP_TIMES) or t < most]
    cuts = [Tiles(tokens, split) for tokens in sizes for split in range(1, blocks + 1)]
    return min(cuts, key=lambda c: _group_us(n, k, m, c, processors))


def _group_us(n: int, k: int, m: int, c: Tiles, processors: int) -> float:
    """Return about how many µs a product with groups takes: rounds of steps of 1,024 columns, and what shared blocks cost."""
    blocks = -(-k // COLUMNS)
    tiles = -(-n // 128) * -(-m // c.tokens)
    rounds = -(-tiles * c.split // processors)
    us = rounds * (-(-blocks // c.split) * GROUP_TIMES[c.tokens] + GROUP_ENDS)
    return us + (0 if c.split == 1 else GROUP_SHARED[0] + GROUP_SHARED[1] * blocks * c.tokens)


def _group_stages(c: Tiles, group: int, boxed: bool) -> tuple[int, int]:
    """Return the stages of weights and of tokens that fit in shared memory."""
    sums = 2 * 64 * c.tokens * ((4 if c.tokens > 64 and c.split == 1 else 0) + (2 if boxed else 0))
    units = 2 if c.tokens > 64 else 4
    room = (tuned.ROOM if boxed else tuned.SHARED) - sums - units * 128 * group
    return units, min(room // (c.tokens * group), 12)


def _group_tiles(
    t: Tokens, w: Weights, scale: Value, bias: Value | None, out: Value, group: int, by_group: bool, c: Tiles
) -> Value:
    """Return the product with groups by `cuda.linear.group_tiles`; by_group as in `_lined`."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from tritium.backends.cuda.linear import group_tiles as cuda_group_tiles

    g, (m, n), groups = gpu(out.device), out.shape, scale.shape[1]
    weights, q = w.units(group), t.straight().q
    early = w.keeps(f"units of {group}")
    blocks, tiles = -(-groups // (COLUMNS // group)), -(-n // 128) * -(-m // c.tokens)
    c = c._replace(split=min(c.split, blocks))
    of_tokens = t.scale
    if by_group and (of_tokens.stride(0) != 1 or of_tokens.stride(1) % BY_TOKENS):  # they were made for another kernel
        of_tokens = _group_scales(m, of_tokens.shape[1], True, out.device).copy_(of_tokens)
    boxed = _is_boxed(out, _biases(bias))
    units, stages = _group_stages(c, group, boxed)
    space = (out, out)
    if c.split > 1:
        sums = scratch((tiles * blocks * 128 * c.tokens,), torch.int32, out.device)
        space = sums, counters(out.device).some(2 * tiles)
    half = c.tokens // 2 if c.tokens > 64 else c.tokens
    kind = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}.get(out.dtype)
    boxes = [(weights, [64, group], gl.uint8), (q, [c.tokens, group], gl.int8), (out, [half, 64], kind)][: 2 + boxed]
    w_box, x_box, *of_out = (
        TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, element))
        for x, block, element in boxes
    )
    _enter()
    with current(out):
        launch(
            cuda_group_tiles.group_tiles, (min(tiles * c.split, g.processors),),
            w_box, x_box, of_tokens, scale, _bias(bias, out), out, of_out[0] if of_out else None, *space, m, n, groups, of_tokens.stride(-1),
            BM=c.tokens, GROUP=group, WIDE=units, STAGES=stages, SPLIT=c.split, BIAS=_biases(bias), BY=by_group, REGISTERS=240,
            **_options(g, 4, early=early, maxnreg=168),
        )  # fmt: skip
    return out


def _at_once(scale: Value) -> Value:
    """Return scales of f16 as integers of four or two of them, where each row has whole ones."""
    for count, kind in ((4, torch.int64), (2, torch.int32)):
        if scale.dtype is torch.float16 and scale.shape[1] % count == 0 and scale.data_ptr() % (2 * count) == 0:
            return scale.view(kind)
    return scale


class Pieces(NamedTuple):
    """The tile config of `cuda.linear.fragments.group_fragments`.

    Tiles of 16 rows of a warp, warps along a row, warps with rows of their own, eights of tokens.
    """

    tiles: int
    across: int
    beside: int
    groups: int


@lru_cache(maxsize=4096)
def group_config(n: int, k: int, m: int, processors: int, by_group: bool = False) -> Tiles | Pieces | None:
    """Return the kernel for Hopper and its tile config that multiplies with groups; None where plain ones do."""
    if m <= PIECES_TOKENS and k <= PIECES_COLUMNS:
        c = pieces_for(n, k, m, processors)
        warps = -(-n // (16 * c.tiles)) * -(-m // (8 * c.groups)) * c.across
        if m <= PIECES_ONCE or by_group or warps <= PIECES_WARPS * processors:
            return c
    return None if m <= GROUP_FEW else group_tiles_for(n, k, m, processors, by_group)


def pieces_for(n: int, k: int, m: int, processors: int) -> Pieces:
    """Return as many warps along a row as it has blocks of 1,024 columns, up to eight.

    They have two tiles of rows each where that leaves enough CTAs.
    """
    blocks = -(-tuned.wide(k) // COLUMNS)
    across = min(1 << (blocks - 1).bit_length(), 8)
    tiles = 2 if 4 * -(-n // 32) >= 3 * processors else 1
    return Pieces(tiles, across, 1, 1 if m <= 8 else 2)


def _group_choice(g: Gpu, w: Weights, m: int, by_group: bool) -> Tiles | Pieces | None:
    """Return `group_config` where there is Hopper's Gluon."""
    return group_config(*w.shape, m, g.processors, by_group) if g.capability == HOPPER and g.has_gluon else None


def reads_across(w: Weights, m: int) -> bool:
    """Return True if the kernel that will multiply m tokens with scales by group reads those of a group beside each other."""
    return bool(m and w.shape[0]) and isinstance(_group_choice(gpu(w.data.device), w, m, True), Tiles)


def _group_tiled(x: Value, w: Weights, group: int) -> bool:
    """Return True if the kernel that will multiply x with weights that have groups reads tiled tokens."""
    lined = group in LINED and w.ternary and bool(x.shape[0] and w.shape[0] and w.shape[1])
    return lined and isinstance(_group_choice(gpu(x.device), w, x.shape[0], False), Pieces)


def _group_fragments(
    t: Tokens, w: Weights, scale: Value, bias: Value | None, out: Value, group: int, by_group: bool, c: Pieces
) -> Value:
    """Return the product with groups by `cuda.linear.fragments`; by_group as in `_lined`."""
    from tritium.backends.cuda.linear import fragments as cuda_fragments

    g, (m, n) = gpu(out.device), out.shape
    weights, tiles = w.pairs(), c.tiles * c.beside
    early = w.keeps("pairs")
    with current(out):
        launch(
            cuda_fragments.group_fragments, (-(-weights.shape[0] // tiles), -(-m // (8 * c.groups))),
            weights, t.q.view(torch.int32), t.scale.contiguous(), _at_once(scale), _bias(bias, out), out, m, n,
            weights.shape[0], scale.shape[1], w.wide // group,
            BLOCKS=weights.shape[1], NT=c.tiles, WK=c.across, WN=c.beside, TG=c.groups, TILED=t.tiled,
            GROUP=group, BIAS=_biases(bias), BY=by_group, **_options(g, c.across * c.beside, early=early),
        )  # fmt: skip
    return out


def _lined(t: Tokens, w: Weights, scale: Value, bias: Value | None, out: Value, group: int, by_group: bool) -> Value:
    """Return the product with groups by `cuda.linear.grouped`; by_group: of tokens of `quantise_lines`."""
    from tritium.backends.cuda.linear import grouped as cuda_grouped

    g, (m, n), groups = gpu(out.device), out.shape, scale.shape[1]
    if not (m and n):
        return out
    cut = _group_choice(g, w, m, by_group)
    if isinstance(cut, Pieces):
        return _group_fragments(t, w, scale, bias, out, group, by_group, cut)
    if cut is not None:
        return _group_tiles(t, w, scale, bias, out, group, by_group, cut)
    c, ready = lines_for(n, t.k, m, g.processors), w.keeps("lines")
    weights, asm = w.lines(), g.capability > (0, 0)
    q = t.straight().q
    ends = t.scale.contiguous(), scale, _bias(bias, out), out
    sizes = groups, w.wide // group
    flags = {"GROUP": group, "BIAS": _biases(bias), "BY": by_group, "ASM": asm, **g.starting}
    with current(out):
        if not c.tokens:
            words, levels = weights.view(torch.int32), min((-(-t.k // COLUMNS) - 1).bit_length(), GEMV_LEVELS)
            launch(
                cuda_grouped.gemv, (m, -(-n // c.rows)),
                words, q.view(torch.int32), *ends, n, *sizes, KW=words.shape[1], BN=c.rows,
                LEVELS=levels, PARTS=-(-t.k // (COLUMNS << levels)), READY=ready, **flags, **_options(g, c.warps),
            )  # fmt: skip
            return out
        tiles, blocks = -(-n // c.rows) * -(-m // c.tokens), -(-groups // (COLUMNS // group))
        split, space = min(c.split, blocks), (out, out)
        if split > 1:
            sums = scratch((tiles * blocks * c.rows * c.tokens,), torch.float32, out.device)
            space = sums, counters(out.device).some(tiles)
        launch(
            cuda_grouped.gemm, (tiles, split),
            weights, q, *ends, *space, m, n, weights.shape[1], *sizes, BN=c.rows, BM=c.tokens, SPLIT=split,
            WIDE=8, BYTES=g.bytes, **flags, **_options(g, c.warps, num_stages=c.stages),
        )  # fmt: skip
    return out


def linear(
    x: Value, w: Weights, scale: Value, bias: Value | None = None, out_dtype: torch.dtype | None = None, group: int = 0,
    norm: Norm | None = None, *, by_group: bool = False, choice: Choice | None = None,
) -> Value:  # fmt: skip
    """Return x [..., k] of floats through the layer, [..., n]: normed if asked, quantised, multiplied, scaled, with
    bias.

    by_group: activations have a scale for each group of columns; a norm of ternary layers where `norms_groups` is true.
    """
    lead, k = x.shape[:-1], x.shape[-1]
    _same(k, w)
    flat, to = x.reshape(lead.numel(), k), out_dtype or x.dtype
    alone = None if group else alone_on(flat, w, choice)
    if alone is not None:
        return fused(flat, w, scale, bias, to, norm, choice=alone).reshape(*lead, w.shape[0])
    lone = group_alone_on(flat, w, group, by_group)
    if lone is not None:
        return fused_groups(flat, w, scale, bias, to, norm, group, lone, by_group).reshape(*lead, w.shape[0])
    if by_group and not k:
        return torch.zeros((*lead, w.shape[0]), dtype=to, device=x.device) + (0 if bias is None else bias.to(to))
    if by_group:
        lined = group in LINED and w.ternary
        tokens = (
            quantise_lines(flat, group, norm, reads_across(w, flat.shape[0])) if lined else quantise_groups(flat, group)
        )
    elif group:
        tokens = quantise(flat, norm, _group_tiled(flat, w, group))
    else:
        tokens = quantise_for(w, flat, norm, choice)
    y = product(tokens, w, scale, bias, to, group, by_group=by_group, choice=choice)
    return y.reshape(*lead, w.shape[0])


def alone_on(x: Value, w: Weights, picked: Choice | None = None) -> Choice | None:
    """Return the choice of the kernel that norms and quantises x [m, k] of floats by itself, or None where there is
    none.
    """
    g, case = gpu(x.device), Case(w.shape[0], w.shape[1], x.shape[0], w.ternary, floats=True)
    if case.m != 1 or not case.n or g.capability != HOPPER or not g.has_gluon:
        return None
    c = picked or _choose(g, case)
    if c.kernel != "gemv" or not tuned.fits(case, c):
        return None
    return c if -(-case.n // c.get("rows")) <= ALONE * g.processors else None


class Lone(NamedTuple):
    """The tile config of `cuda.linear.gemv.group_gemv`: rows of a CTA, lanes along a row, warps."""

    rows: int
    lanes: int
    warps: int


LONE_LANES, LONE_WARPS = 32, 8
LONE_ROWS = 16, 32, 64
LONE_WEIGHTS = 256  # rows times blocks of 1,024 columns, up to which a CTA holds all weights of its rows
LONE_TERMS = 128  # of a row, up to which one thread adds them
LONE_CTAS, MOST_LONE_CTAS = 2, 4  # on each multiprocessor: as it is fastest, and at most


def group_alone_on(x: Value, w: Weights, group: int, by_group: bool = False) -> Lone | None:
    """Return the tile config of the kernel that norms and quantises one token by itself and multiplies with groups.

    None where there is none.
    """
    g, (n, k) = gpu(x.device), w.shape
    if (
        x.shape[0] != 1
        or not n
        or not k
        or g.capability != HOPPER
        or not g.has_gluon
        or not w.ternary
        or group not in LINED
    ):
        return None
    return lone_for(n, k, group, g.processors, by_group)


def lone_for(n: int, k: int, group: int, processors: int, by_group: bool = False) -> Lone | None:
    """Return the fewest rows of a CTA of which two are on each multiprocessor; where their weights do not fit in registers, fewer.

    Each CTA quantises the token for itself: where there would be many, or one thread had to add many terms, there is none. By group a launch
    before takes less, and fragments are faster from fewer CTAs on: 24576×4096 takes 11.6 µs with them and 14.1 alone.
    """
    blocks = -(-tuned.wide(k) // COLUMNS)
    sizes = [rows for rows in LONE_ROWS if rows * blocks <= LONE_WEIGHTS]
    if not sizes or (COLUMNS // group) << (blocks - 1).bit_length() > LONE_TERMS:
        return None
    rows = next((rows for rows in sizes if -(-n // rows) <= LONE_CTAS * processors), sizes[-1])
    most = LONE_CTAS if by_group else MOST_LONE_CTAS
    return Lone(rows, LONE_LANES, LONE_WARPS) if -(-n // rows) <= most * processors else None


def fused_groups(
    x: Value, w: Weights, scale: Value, bias: Value | None, to: torch.dtype, norm: Norm | None, group: int, c: Lone,
    by_group: bool = False,
) -> Value:  # fmt: skip
    """Multiply one token [1, k] of floats with weights that have groups, in one launch, as `fused` does."""
    from tritium.backends.cuda.linear import gemv as cuda_gemv

    x, g, (n, k) = _readable(x), gpu(x.device), w.shape
    out = torch.empty((1, n), dtype=to, device=x.device)
    weights, early = w.lines().view(torch.int32), w.keeps("lines")
    kind, weight, eps = _norm(norm, x)
    scale = (scale if scale.dtype is torch.float16 else scale.float()).contiguous()
    with current(out):
        launch(
            cuda_gemv.group_gemv, (-(-n // c.rows),), weights, x, weight, scale, _bias(bias, out), out, n, scale.shape[1],
            K=k, KW=weights.shape[1], BN=c.rows, TK=c.lanes, GROUP=group, BY=by_group, EPS=eps, NORM=kind, BIAS=_biases(bias),
            **_options(g, c.warps, early=early),
        )  # fmt: skip
    return out


def quantise_for(w: Weights, x: Value, norm: Norm | None = None, picked: Choice | None = None) -> Tokens:
    """Return x quantised in the order that the kernel reads best that will multiply it with w."""
    return quantise(x, norm, _tiled(gpu(x.device), Case(w.shape[0], w.shape[1], x.shape[0], w.ternary), picked))


def _tiled(g: Gpu, case: Case, picked: Choice | None) -> bool:
    """Return True if the kernel that will multiply reads tiled tokens."""
    return bool(case.m and case.n) and (picked or _choose(g, case)).kernel == "fragments"


def fused(
    x: Value, w: Weights, scale: Value, bias: Value | None, to: torch.dtype, norm: Norm | None, gated: Value | None = None,
    *, choice: Choice,
) -> Value:  # fmt: skip
    """Multiply one token [1, k] of floats in one launch, or relu2 of it times `gated`: every CTA norms and quantises
    it itself.
    """
    from tritium.backends.cuda.linear import gemv as cuda_gemv

    x, c, g = _readable(x), choice, gpu(x.device)
    out = torch.empty((1, w.shape[0]), dtype=to, device=x.device)
    weights = (w.planes() if w.ternary else w.straight()).view(torch.int32)
    kind, weight, eps = _norm(norm, x)
    scale = scale.float().contiguous()
    early = w.keeps("planes" if w.ternary else "straight")
    with current(out):
        launch(
            cuda_gemv.gemv, (-(-w.shape[0] // c.get("rows")),),
            weights, x, out, out, x if gated is None else _readable(gated), weight, scale, _bias(bias, out), out, w.shape[0],
            K=x.shape[1], KW=weights.shape[1], WIDE=_reach(weights, c), BN=c.get("rows"), TK=c.get("lanes"),
            WK=c.get("across"), M=1, CODES=w.ternary, FLOATS=True, EPS=eps, NORM=kind, GATED=gated is not None,
            ROWS=scale.ndim > 0, BIAS=_biases(bias), **_options(g, c.get("warps"), early=early),
        )  # fmt: skip
    return out


def _same(k: int, w: Weights) -> None:
    if k != w.shape[1]:
        raise ArgumentError(
            f"tokens have {k} columns and weights {w.shape[1]}; the layer takes tokens of {w.shape[1]} columns."
        )
