"""Products of random shapes, of bench/cuda.py --random-shapes: ternary weights beside torch's bf16, fp8 and int4, every sum checked.

Each product is timed in two ways: activations quantised beforehand for both, and with the quantisers of both (a scale
for each token) in the timed call. int4 is weight-only, `_weight_int4pack_mm` with groups of 128 columns (64 where these
do not divide the row), up to 64 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
import triton
import triton.language as tl
from cuda_draws import CLASSES, Draw, draws
from cuda_report import BF16, FP8, FP8_WHOLE, INT4, OURS, WHOLE, Cell, Goal, Options, Shown, random_goals, random_table
from cuda_timing import Replay, captured, copies, in_turn, tried

from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights
from tritium.backends.cuda.linear.ternary import Tokens

ROUNDS, QUICK_ROUNDS = 5, 3
INT_MM_ROWS = 32  # `_int_mm` takes more than 16 rows: fewer tokens are filled up
INT4_TOKENS = 64
MOST_COPIES = 256  # of a matrix: those of the smallest are still more than the second cache holds
FP8_MOST = tl.constexpr(448.0)


# ---- the rivals' quantisers


@triton.jit
def _to_fp8(x, q, scale, K, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """q [M, K] of fp8 and scale [M] of x [M, K]: the largest of each row becomes the largest of fp8."""
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    v = tl.load(x + row * K + o, mask=o < K, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(v), 0), 1e-12)
    tl.store(q + row * K + o, (v * (FP8_MOST / largest)).to(tl.float8e4nv), mask=o < K)
    tl.store(scale + row, largest / FP8_MOST)


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens of fp8 and their scales [m, 1], in one kernel."""
    m, k = x.shape
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty((m, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(k)
    _to_fp8[(m,)](x, q, scale, k, BLOCK=block, num_warps=min(max(block // 1024, 1), 16))
    return q, scale


# ---- one draw


class Operands:
    """Weights and tokens of one draw: random, enough copies of each weight to be cold."""

    def __init__(self, draw: Draw, seed: int) -> None:
        n, k, m = draw
        random = torch.Generator("cuda").manual_seed(seed)
        self.draw = draw
        codes = torch.randint(
            -1, 2, (min(copies(n * k // 4), MOST_COPIES), n, k), dtype=torch.int8, device="cuda", generator=random
        )
        self.first = codes[0].clone()
        self.bf16 = codes[: copies(2 * n * k)].bfloat16()
        self.fp8 = codes[: copies(n * k)].to(torch.float8_e4m3fn)
        self.ternary = [cuda_weights.ternary_of(w) for w in codes]
        self.x = torch.randn((m, k), device="cuda", generator=random).bfloat16()
        self.scale = torch.full((), 0.02, device="cuda")
        self.one = torch.ones((), device="cuda")
        self.rows = torch.ones((1, n), device="cuda")
        self.int4 = self._int4(random) if m <= INT4_TOKENS else ()

    def _int4(self, random: torch.Generator) -> Sequence[tuple[torch.Tensor, int, torch.Tensor]]:
        """Return (weights, group, scales and zeros) of random nibbles, as `_weight_int4pack_mm` takes them."""
        n, k, _ = self.draw
        group, inner = (128, 8) if k % 128 == 0 else (64, 4)
        scales = torch.full((k // group, n, 2), 0.02, dtype=torch.bfloat16, device="cuda")
        packed = []
        for _ in range(min(copies(n * k // 2), MOST_COPIES)):
            nibbles = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=random)
            packed.append((torch.ops.aten._convert_weight_to_int4pack(nibbles, inner), group, scales))
        return packed


def arms(o: Operands) -> tuple[dict[str, Replay | str], int]:
    """Every way to multiply, as a graph over all of its weights; and how many sums were compared with the reference."""
    x, tokens = o.x, cuda_ternary.quantise_for(o.ternary[0], o.x)
    x8 = x.to(torch.float8_e4m3fn)

    def over(weights: Any, multiply: Callable[[Any], Any]) -> Replay | str:
        return tried(lambda: captured([lambda w=w: multiply(w) for w in weights]))

    def quantised(w: torch.Tensor) -> torch.Tensor:
        q, scale = to_fp8(x)
        return torch._scaled_mm(q, w.t(), scale, o.rows, out_dtype=torch.bfloat16, use_fast_accum=True)

    ready = {
        BF16: over(o.bf16, lambda w: torch.mm(x, w.t())),
        FP8: over(o.fp8, lambda w: torch._scaled_mm(x8, w.t(), o.one, o.one, out_dtype=torch.bfloat16, use_fast_accum=True)),
        FP8_WHOLE: over(o.fp8, quantised),
        OURS: over(o.ternary, lambda w: cuda_ternary.product(tokens, w, o.scale, None, torch.bfloat16)),
        WHOLE: over(o.ternary, lambda w: cuda_ternary.linear(x, w, o.scale, None, torch.bfloat16)),
    }  # fmt: skip
    if o.int4:
        ready[INT4] = over(o.int4, lambda w: torch.ops.aten._weight_int4pack_mm(x, *w))
    wrong = mismatches(o, tokens)
    if any(wrong):
        ready[OURS], ready[WHOLE] = (f"not timed: {count} WRONG" for count in wrong)
    return ready, 2 * o.draw.n * o.draw.m


def mismatches(o: Operands, tokens: Tokens) -> tuple[int, int]:
    """How many results of both ways have other bits than the integer product of torch, scaled by the formulas."""
    _, k, m = o.draw
    filled = torch.zeros((max(m, INT_MM_ROWS), k), dtype=torch.int8, device="cuda")
    filled[:m] = tokens.straight().q[:, :k]
    sums = torch._int_mm(filled, o.first.t())[:m]
    wanted = (sums.float() * (tokens.scale * o.scale)[:, None]).bfloat16()
    results = (
        cuda_ternary.product(tokens, o.ternary[0], o.scale, None, torch.bfloat16),
        cuda_ternary.linear(o.x, o.ternary[0], o.scale, None, torch.bfloat16),
    )
    first, second = (int((y != wanted).sum()) for y in results)
    return first, second


# ---- all draws


def compile_draw(draw: Draw) -> None:
    """Launch all kernels of a draw once, in a process of its own: Triton's cache has them then."""
    n, k, m = draw
    w = cuda_weights.ternary_of(torch.zeros((n, k), dtype=torch.int8, device="cuda"))
    x = torch.ones((m, k), dtype=torch.bfloat16, device="cuda")
    scale = torch.ones((), device="cuda")
    to_fp8(x)
    cuda_ternary.product(cuda_ternary.quantise_for(w, x), w, scale, None, torch.bfloat16)
    cuda_ternary.linear(x, w, scale, None, torch.bfloat16)
    torch.cuda.synchronize()


def compile_all(drawn: Sequence[Draw], jobs: int) -> None:
    """Compile the kernels of all draws, several at a time, in processes: a thread would wait for the others' Python."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        list(pool.map(compile_draw, drawn))


def timed(draw: Draw, options: Options, seed: int) -> tuple[Cell, int]:
    operands = Operands(draw, seed)
    ready, checked = arms(operands)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    cell = Cell(*draw, in_turn(ready, rounds), str(cuda_ternary.choose(*draw)))
    return cell, checked


def random_shapes(options: Options) -> Iterator[Shown]:
    """A table for each class of tokens, slowest beside fp8 first, with the goals of all its draws."""
    drawn = draws(options.random_shapes, options.seed)
    if options.jobs > 1:
        compile_all(sorted(drawn, key=lambda d: -d.k), options.jobs)
    cells: list[Cell] = []
    checked = 0
    for i, draw in enumerate(drawn):
        cell, count = timed(draw, options, options.seed + i)
        cells.append(cell)
        checked += count
        torch.cuda.empty_cache()
    for low, high in CLASSES:
        here = [cell for cell in cells if low <= cell.m <= high]
        if here:
            yield Shown(random_table(low, high, here), tuple(random_goals(low, here)), [cell.record() for cell in here])
    wrong = sum(isinstance(cell.taken[OURS], str) for cell in cells)
    count_goal = Goal("draws with a wrong sum", float(wrong), float(wrong), float(wrong), 0.0, lower=True)
    yield Shown(exact_table(len(cells), checked), (count_goal,), {"checked": checked, "wrong": wrong})


def exact_table(count: int, checked: int) -> Any:
    from tritium.perf.tables.table import Table

    heads = ("draws", "results compared")
    return Table("Exactness", heads, ((str(count), f"{checked:,}"),), frozenset(heads))
