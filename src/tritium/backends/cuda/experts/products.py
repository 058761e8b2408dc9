"""Products of tokens with the weights of the experts they chose, and the choice of experts, as ops of a GPU.

Everything can be captured by CUDA graphs: which experts are chosen is known on the device alone, and the shapes of all launches depend on
the number of pairs only. On CPU tensors Triton's interpreter runs the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch

from tritium import ops
from tritium.backends.cuda.gpu import Gpu, current, gpu
from tritium.backends.cuda.linear import products as cuda_products, ternary as cuda_ternary
from tritium.backends.cuda.linear.ternary import GEMV_LEVELS, GEMV_WORDS, LINED, Tokens
from tritium.backends.cuda.linear.weights import Weights
from tritium.backends.reference.quantized import COLUMNS
from tritium.backends.torch.space import Space, Value
from tritium.op import Op, Spec

Fn = Callable[..., Any]

FEW = (
    64  # pairs up to which each has CTAs of its own: of more, experts that several tokens chose are worth reading once
)
HELD, HELD_WARPS = 2048, 8  # words of weights that a CTA holds, eight a thread
SORTED = 4096  # pairs that a CTA looks at together to find those of its expert
SMALL, LARGE = (
    16,
    32,
)  # pairs of a tile: the fewest that tensor cores take, and those that leave registers for decoded weights


class Config(NamedTuple):
    """The tile config of many pairs: rows of weights, pairs, bytes of a row in a step, warps and stages."""

    rows: int
    pairs: int
    bytes: int
    warps: int
    stages: int


class Chosen(NamedTuple):
    """The experts of pairs: their numbers, contiguous, how many there are, and the pairs in a row that have the same token."""

    numbers: Value
    experts: int
    share: int

    @property
    def pairs(self) -> int:
        return self.numbers.numel()


class Tiles(NamedTuple):
    """Pairs sorted by expert, and tiles that belong to one expert each, as `arrange` writes them."""

    order: Value
    tiles: Value
    outside: Value  # one flag: an expert does not exist

    @property
    def places(self) -> int:
        """Return the number of tiles, empty ones included."""
        return self.tiles.shape[0]


def _kernels() -> Any:
    return import_module("tritium.backends.cuda.experts.kernels")


def _options(g: Gpu, warps: int, **others: Any) -> dict[str, Any]:
    """Return launch options: one rounding for each float operation."""
    return {"num_warps": warps, "enable_fp_fusion": False, **g.starting, **others}


def config(pairs: int, experts: int, codes: bool) -> Config:
    """Return the tile config of so many pairs: small tiles while an expert has no more than one of them on average.

    On an H200 at the shape of Maple, small tiles were the fastest up to 16 pairs an expert, and large ones at 64, where tiles of 64
    took 1.5 and 1.7 times as long; between and beyond nothing was measured.
    """
    return Config(128, SMALL if pairs <= SMALL * experts else LARGE, 64 if codes else 128, 4, 3)


def arrange(chosen: Chosen, size: int) -> Tiles:
    """Return the pairs sorted by expert, in tiles of so many."""
    device, pairs = chosen.numbers.device, chosen.pairs
    count = pairs // size + chosen.experts
    sorted_pairs, tiles = (torch.empty(shape, dtype=torch.int32, device=device) for shape in ((pairs,), (count, 3)))
    outside = torch.empty(1, dtype=torch.bool, device=device)
    block, g = min(max(1 << (pairs - 1).bit_length(), 128), SORTED), gpu(device)
    _kernels().arrange[(chosen.experts,)](
        chosen.numbers, sorted_pairs, tiles, outside, pairs, BM=size, BLOCK_P=block, **_options(g, max(block // 512, 1))
    )
    return Tiles(sorted_pairs, tiles, outside)


# ---- launches


def _kind(scale: Value) -> int:
    """Return what scales are for, as kernels take it: 0 all, 1 an expert, 2 a row, 3 a group of columns."""
    return scale.ndim


def _by_pairs(t: Tokens, w: Weights, scale: Value, chosen: Chosen, out: Value) -> Value:
    """Multiply few pairs; return flags of those whose expert does not exist."""
    g, (n, codes) = gpu(out.device), (out.shape[1], w.ternary)
    weights = (w.planes() if codes else w.straight()).view(torch.int32)
    outside = torch.empty(chosen.pairs, dtype=torch.bool, device=out.device)
    step = min(1 << (weights.shape[1] - 1).bit_length(), 128)
    rows = max(min(HELD // step, 64), 1)
    _kernels().pairs[(chosen.pairs, -(-n // rows))](
        weights, t.q.view(torch.int32), t.total, t.scale, scale, chosen.numbers, out, outside, chosen.experts, n,
        weights.shape[1], chosen.share, BN=rows, BK=step, CODES=codes, BY=_kind(scale), ASM=g.capability > (0, 0),
        **_options(g, HELD_WARPS),
    )  # fmt: skip
    return outside


def _by_pairs_grouped(t: Tokens, w: Weights, scale: Value, chosen: Chosen, out: Value, group: int) -> Value:
    g, n, groups = gpu(out.device), out.shape[1], scale.shape[-1]
    words, blocks = w.lines().view(torch.int32), -(-w.shape[1] // COLUMNS)
    outside = torch.empty(chosen.pairs, dtype=torch.bool, device=out.device)
    levels = min((blocks - 1).bit_length(), GEMV_LEVELS)
    rows = max(min(16, GEMV_WORDS // (COLUMNS // 16 << levels)), 1)
    _kernels().pairs_grouped[(chosen.pairs, -(-n // rows))](
        words, t.q.view(torch.int32), t.scale, scale, chosen.numbers, out, outside, chosen.experts, n, chosen.share, groups,
        w.wide // group, KW=words.shape[1], BN=rows, LEVELS=levels, PARTS=-(-w.shape[1] // (COLUMNS << levels)), GROUP=group,
        BY=t.scale.ndim == 2, ASM=g.capability > (0, 0), **_options(g, 4),
    )  # fmt: skip
    return outside


def _by_tiles(t: Tokens, w: Weights, scale: Value, chosen: Chosen, tiles: Tiles, out: Value, c: Config) -> None:
    g, (n, codes) = gpu(out.device), (out.shape[1], w.ternary)
    weights = w.planes() if codes else w.straight()
    _kernels().multiply_tiles[(tiles.places * -(-n // c.rows),)](
        weights, t.q, t.total, t.scale, scale, tiles.order, tiles.tiles, out, n, weights.shape[1], chosen.share,
        BN=c.rows, BM=c.pairs, BK=c.bytes, CODES=codes, BY=_kind(scale), EVEN=weights.shape[1] % c.bytes == 0,
        ASM=g.capability > (0, 0), BYTES=g.bytes, **_options(g, c.warps, num_stages=c.stages),
    )  # fmt: skip


def _by_tiles_grouped(
    t: Tokens, w: Weights, scale: Value, chosen: Chosen, tiles: Tiles, out: Value, c: Config, group: int
) -> None:
    g, n, groups = gpu(out.device), out.shape[1], scale.shape[-1]
    _kernels().multiply_tiles_grouped[(tiles.places * -(-n // c.rows),)](
        w.lines(), t.q, t.scale, scale, tiles.order, tiles.tiles, out, n, w.wide // 4, chosen.share, groups, w.wide // group,
        BN=c.rows, BM=c.pairs, GROUP=group, BY=t.scale.ndim == 2, ASM=g.capability > (0, 0), BYTES=g.bytes,
        **_options(g, c.warps, num_stages=c.stages),
    )  # fmt: skip


def _by_tiles_of_any_group(
    t: Tokens, w: Weights, scale: Value, chosen: Chosen, tiles: Tiles, out: Value, c: Config, group: int, by_group: bool
) -> None:
    g, n, groups, wide = gpu(out.device), out.shape[1], scale.shape[-1], t.q.shape[1]
    row, apart = (groups * wide, wide) if by_group else (wide, group)
    _kernels().multiply_tiles_of_any_group[(tiles.places * -(-n // 64),)](
        w.straight(), t.q, t.scale, scale, tiles.order, tiles.tiles, out, n, w.shape[1], w.wide, chosen.share, row, apart,
        group, groups, max(COLUMNS // group, 1), BN=64, BM=c.pairs, BK=128 if group >= 128 else 64 if group >= 64 else 32,
        BY=by_group, BYTES=g.bytes, **_options(g, 4),
    )  # fmt: skip


def _by_floats(x: Value, w: Weights, scale: Value, chosen: Chosen, out: Value, group: int) -> Value:
    """Multiply pairs whose tokens are not quantised; return flags of those whose expert does not exist."""
    g, n = gpu(out.device), out.shape[1]
    outside = torch.empty(chosen.pairs, dtype=torch.bool, device=out.device)
    _kernels().pairs_float[(chosen.pairs, -(-n // 16))](
        w.straight(), x, scale, chosen.numbers, out, outside, chosen.experts, n, w.shape[1], w.wide, chosen.share,
        scale.shape[-1] if group else 1, group or 1, BN=16, BK=128, BY=_kind(scale), **_options(g, 4),
    )  # fmt: skip
    return outside


# ---- products


def product(
    x: Value, w: Weights, scale: Value, chosen: Chosen, to: torch.dtype, group: int = 0, activations: str = "token",
    *, sort: Callable[[Chosen, int], Tiles] = arrange, picked: Config | None = None,
) -> tuple[Value, Value]:  # fmt: skip
    """Return x [tokens, k] times the weights of the experts of each pair, as [pairs, n], and flags that show experts that do not exist.

    w: those of all experts below each other. scale: one number, one for each expert, for each row of each [experts, n], or with
    group for each so many columns [experts, n, groups]. activations: 'token', 'group' or 'float'.
    """
    n = w.shape[0] // chosen.experts
    out = torch.empty((chosen.pairs, n), dtype=to, device=x.device)
    scale = (scale if scale.dtype is torch.float16 else scale.float()).contiguous()
    with current(x):
        if activations == "float":
            return out, _by_floats(x.contiguous(), w, scale, chosen, out, group)
        by_group, lined = activations == "group", group in LINED and w.ternary
        if by_group:
            t = (cuda_ternary.quantise_lines if lined else cuda_ternary.quantise_groups)(x, group)
        else:
            t = cuda_ternary.quantise(x)
        if chosen.pairs <= FEW and picked is None and (lined or not group):
            few = _by_pairs_grouped(t, w, scale, chosen, out, group) if group else _by_pairs(t, w, scale, chosen, out)
            return out, few
        c = picked or config(chosen.pairs, chosen.experts, w.ternary)
        tiles = sort(chosen, c.pairs)
        if not group:
            _by_tiles(t, w, scale, chosen, tiles, out, c)
        elif lined:
            _by_tiles_grouped(t, w, scale, chosen, tiles, out, c, group)
        else:
            _by_tiles_of_any_group(t, w, scale, chosen, tiles, out, c, group, by_group)
    return out, tiles.outside


def _expert_matmul(space: Any) -> Fn:
    def maker(out: Spec, group: int, activations: str) -> Fn:
        to = space.twin(out.dtype)

        def run(x: Value, w: Any, scale: Value, experts: Value) -> Value:
            count, _, k = w.shape
            if not (out.size and k and count):
                return torch.zeros(out.shape, dtype=to, device=x.device)
            share = 1 if x.ndim > experts.ndim else experts.shape[-1]
            chosen = Chosen(experts.contiguous().view(-1), count, share)
            orders = _orders(space, experts)
            y, outside = product(
                x.reshape(-1, k),
                cuda_products.weights(space, w),
                scale,
                chosen,
                to,
                group,
                activations,
                sort=orders.arrange,
            )
            if orders.is_new(count):
                space.doubt(outside, f"expert_matmul: an index is outside an axis of size {count}.")
            return y.reshape(out.shape)

        return run

    return maker


class Orders:
    """The orders of the pairs of one value of experts, and the numbers of experts that it was checked against."""

    def __init__(self) -> None:
        self._tiles: dict[tuple[int, int], Tiles] = {}
        self._checked: set[int] = set()

    def arrange(self, chosen: Chosen, size: int) -> Tiles:
        """Return the pairs sorted by expert, in tiles of so many; sorted once."""
        key = (chosen.experts, size)
        if key not in self._tiles:
            self._tiles[key] = arrange(chosen, size)
        return self._tiles[key]

    def is_new(self, count: int) -> bool:
        """Return True the first time that the value is to be checked against so many experts."""
        new = count not in self._checked
        self._checked.add(count)
        return new


def _orders(space: Any, experts: Any) -> Orders:
    """Return the orders of a value of experts: shared by all products of a program, where nothing writes it between them."""
    now = space.tracing()
    if now is None:
        return Orders()
    version = None if experts.is_inference() else experts._version
    program, written, orders = getattr(experts, "orders", (None, None, None))
    if program is not now or written != version or orders is None:
        orders = Orders()
        experts.orders = (now, version, orders)
    return orders


ROWS: dict[Op, Callable[[Space], Fn]] = {ops.expert_matmul: _expert_matmul}
