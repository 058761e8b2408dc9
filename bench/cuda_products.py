"""The products of bench/cuda.py: ternary weights beside torch's bf16, fp8 and int8, and whether ours are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any

import numpy as np
import torch
from cuda_launches import back_to_back
from cuda_report import BF16, FP8, INT8, OURS, WHOLE, Cell, Goal, Options, Shown, product_goals, product_table
from cuda_timing import Replay, captured, copies, in_turn, tried

from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights
from tritium.backends.cuda.linear.ternary import Tokens
from tritium.backends.cuda.linear.weights import Weights
from tritium.perf.tables.table import Table

INT_MM_ROWS = 32  # `_int_mm` takes more than 16 rows: fewer tokens are filled up
EXACT_S, QUICK_EXACT_S = 30.0, 10.0
COLUMNS, QUICK_COLUMNS = (2560, 6912, 100, 1, 4099, 513, 8192, 31), (2560, 100, 1)
MOST_TOKENS, MOST_ROWS = 4096, 6000
AGAIN = 3  # fresh inputs of the same size


# ---- products


class Buffers:
    """The weights and tokens of one shape, for all arms and batches: random, enough of each to be cold."""

    def __init__(self, n: int, k: int, most: int, seed: int) -> None:
        random = torch.Generator("cuda").manual_seed(seed)
        self.n, self.k = n, k
        count = max(copies(n * k // 4), 1)
        codes = torch.randint(-1, 2, (count, n, k), dtype=torch.int8, device="cuda", generator=random)
        self.int8 = codes[: copies(n * k)]
        self.bf16 = codes[: copies(2 * n * k)].bfloat16()
        self.fp8 = self.int8.to(torch.float8_e4m3fn)
        self.ternary = [cuda_weights.ternary_of(w) for w in codes]
        self.x = torch.randn((most, k), device="cuda", generator=random).bfloat16()
        self.scale = torch.full((), 0.02, device="cuda")
        self.one = torch.ones((), device="cuda")


def arms(b: Buffers, m: int) -> dict[str, Replay | str]:
    """Every way to multiply m tokens, as a graph over all of its weights."""
    x = b.x[:m]
    x8, tokens = x.to(torch.float8_e4m3fn), cuda_ternary.quantise_for(b.ternary[0], x)
    filled = torch.zeros((max(m, INT_MM_ROWS), b.k), dtype=torch.int8, device="cuda")
    filled[:m] = tokens.straight().q[:, : b.k]

    def over(weights: Any, multiply: Callable[[Any], Any]) -> Callable[[], Replay]:
        return lambda: captured([lambda w=w: multiply(w) for w in weights])

    made = {
        BF16: over(b.bf16, lambda w: torch.mm(x, w.t())),
        FP8: over(b.fp8, lambda w: torch._scaled_mm(x8, w.t(), b.one, b.one, out_dtype=torch.bfloat16, use_fast_accum=True)),
        INT8: over(b.int8, lambda w: torch._int_mm(filled, w.t())),
        OURS: over(b.ternary, lambda w: cuda_ternary.product(tokens, w, b.scale, None, torch.bfloat16)),
    }  # fmt: skip
    if m == 1:
        made[WHOLE] = over(b.ternary, lambda w: cuda_ternary.linear(x, w, b.scale, None, torch.bfloat16))
    found = {name: tried(make) for name, make in made.items()}
    if isinstance(found[OURS], Replay) and not exact(tokens, b.ternary[0], b.scale, torch.bfloat16):
        found[OURS] = "not timed: WRONG"
    return found


def compiled(b: Buffers, options: Options) -> None:
    """Kernels of all batches, several at a time: compiling takes far longer than timing."""

    def once(m: int) -> None:
        tokens = cuda_ternary.quantise_for(b.ternary[0], b.x[:m])
        cuda_ternary.product(tokens, b.ternary[0], b.scale, None, torch.bfloat16)

    once(options.batches[0])
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(once, options.batches[1:]))
    torch.cuda.synchronize()


def exact(tokens: Tokens, w: Weights, scale: torch.Tensor, to: torch.dtype) -> bool:
    """Whether a product has the bits of the integer reference."""
    sums = reference(tokens.straight().q[:, : w.shape[1]], w.data)
    wanted = (sums.float() * (tokens.scale * scale)[:, None]).to(to)
    return torch.equal(cuda_ternary.product(tokens, w, scale, None, to), wanted)


def reference(q: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """q [m, k] times w.T [k, n] of int8 as int32: f64 holds every sum."""
    return (q.double() @ w.double().t()).to(torch.int32)


def products(options: Options) -> Iterator[Shown]:
    """A table for each batch; shapes come one after the other, so that the weights of one are made once."""
    cells: list[Cell] = []
    for i, (n, k) in enumerate(options.shapes):
        buffers = Buffers(n, k, max(options.batches), options.seed + i)
        if options.jobs > 1:
            compiled(buffers, options)
        for m in options.batches:
            made = arms(buffers, m)
            kernel = str(cuda_ternary.choose(n, k, m))
            cells.append(Cell(n, k, m, in_turn(made, options.rounds), kernel))
            del made
        del buffers
        torch.cuda.empty_cache()
    for m in options.batches:
        here = [cell for cell in cells if cell.m == m]
        goals = tuple(goal for cell in here for goal in product_goals(cell))
        yield Shown(product_table(m, here), goals, [cell.record() for cell in here])


# ---- exactness


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory is full of NaN and of the largest integers: what a kernel leaves out is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def mismatches(n: int, k: int, m: int, random: torch.Generator, kind: int) -> dict[str, int]:
    """How many results of each way differ from the reference, for fresh weights and tokens."""
    w = torch.randint(-1, 2, (n, k), dtype=torch.int8, device="cuda", generator=random)
    x = torch.randn((m, k), device="cuda", generator=random)
    scale = torch.rand((n,) if kind % 2 else (), device="cuda", generator=random) + 0.01
    bias = torch.randn((n,), device="cuda", generator=random) if kind % 3 == 0 else None
    amax = x.abs().amax(-1).clamp_min(1e-5)
    steps = torch.full_like(amax, 127.0)  # a tensor: torch divides by a number of the host through its inverse
    q = torch.round(x * (steps / amax)[:, None]).to(torch.int8)
    sums = reference(q, w)
    y = sums.float() * ((amax / steps)[:, None] * scale)
    y = y if bias is None else y + bias
    packed = cuda_weights.ternary_of(w)
    with poisoned():
        tokens = cuda_ternary.quantise(x)
        found = {
            "tokens": (tokens.q[:, :k], q),
            "sums": (cuda_ternary.integer_product(q, packed), sums),
            "product": (cuda_ternary.product(tokens, packed, scale, bias), y),
            "linear": (cuda_ternary.linear(x, packed, scale, bias), y),
            "int8 sums": (cuda_ternary.integer_product(q, cuda_weights.int8(w)), sums),
        }
    return {name: int((one != two).sum()) for name, (one, two) in found.items()}


def exactness(options: Options) -> Iterator[Shown]:
    """Single launches of random sizes, then graphs of many."""
    yield singly(options)
    yield from back_to_back(options)


def singly(options: Options) -> Shown:
    """Random sizes until the time is up; every odd size is a kernel that is compiled, so columns come from a list."""
    until = monotonic() + (QUICK_EXACT_S if options.quick else EXACT_S)
    columns = QUICK_COLUMNS if options.quick else COLUMNS
    draw = np.random.default_rng(options.seed)
    random = torch.Generator("cuda").manual_seed(options.seed)
    wrong, cases, kernels = Counter[str](), 0, Counter[str]()
    worst: list[str] = []
    while monotonic() < until or cases == 0:
        k = columns[cases % len(columns)]
        n = int(draw.integers(1, MOST_ROWS))
        m = min(int(2 ** draw.uniform(0, np.log2(MOST_TOKENS) + 0.01)), MOST_TOKENS)
        for i in range(AGAIN):
            found = mismatches(n, k, m, random, cases + i)
            wrong.update(found)
            worst += [f"{n}×{k}, {m} tokens: {found}"] if any(found.values()) else []
        kernels[cuda_ternary.choose(n, k, m).kernel] += AGAIN
        cases += 1
    heads = ("checked", "mismatches")
    rows = tuple((name, str(count)) for name, count in wrong.items())
    ran = ", ".join(f"{name} {count}" for name, count in kernels.most_common())
    below = (
        "",
        f"{cases * AGAIN} random cases of 1 to {MOST_TOKENS} tokens, outputs poisoned; kernels: {ran}.",
        *worst[:8],
    )
    total = float(wrong.total())
    record = {"cases": cases * AGAIN, "mismatches": dict(wrong), "kernels": dict(kernels), "worst": worst[:8]}
    return Shown(
        Table("Exactness against the integer reference", heads, rows, frozenset(heads[1:]), below),
        (Goal("mismatches", total, total, total, 0.0, lower=True),), record,
    )  # fmt: skip
