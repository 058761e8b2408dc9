"""Layers with a scale for each group of columns beside one scale for all, of bench/cuda.py: floats in, quantiser included.

Results are compared with the formula of docs/ternary.md, written in torch's operations, bit by bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from cuda_products import poisoned
from cuda_report import GROUP_FEW, GROUP_TIMES, GROUP_TIMES_MANY, Goal, Options, Samples, Shown, share, text
from cuda_timing import captured, copies, in_turn, tried

from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights
from tritium.perf.tables.table import Table

BATCHES, QUICK_BATCHES = (1, 16, 64, 128, 256, 512, 2048), (1, 16, 256, 2048)
ROUNDS = 5  # of all arms in turn, at most: long calls settle before each value, and there are 28 cells
SHAPES = (4096, 4096), (14336, 4096), (2560, 6912), (8192, 8192)
NONE = "none"
GROUPS = {"group 128": (128, False), "group 64": (64, False), "group 128, activations by group": (128, True)}
BLOCK = 1024  # columns whose terms are added to each other first
MOST_COPIES = 48  # of weights, each in four layouts: four times the second cache
# Of random sizes: every odd number of columns is a kernel that is compiled, so they come from a list.
DRAWS, QUICK_DRAWS = 64, 12
COLUMNS = 1152, 2624, 4096, 6912
MOST_ROWS, MOST_TOKENS = 9000, 4000
KINDS = {  # group, activations by group, type of scales, type of results, with a bias
    "group 128, f16": (128, False, torch.float16, torch.bfloat16, False),
    "group 64, f16, bias": (64, False, torch.float16, torch.bfloat16, True),
    "group 128, f32, bias": (128, False, torch.float32, torch.float32, True),
    "group 128, activations by group": (128, True, torch.float16, torch.bfloat16, False),
}


def by_formula(q: torch.Tensor, by: torch.Tensor, t: torch.Tensor, scale: torch.Tensor, group: int) -> torch.Tensor:
    """Return [m, n]: sums of groups times their scales (and those of tokens where `by` has groups), added in order; f32."""
    total = None
    each = BLOCK // group
    for first in range(0, scale.shape[1], each):
        block = torch.zeros((q.shape[0], t.shape[0]), device=q.device)
        for j in range(first, min(first + each, scale.shape[1])):
            part = slice(j * group, (j + 1) * group)
            term = (
                torch.mm(q[:, part].float(), t[:, part].t().float()) * scale[:, j].float()
            )  # exact, then one rounding
            block = block + (term * by[:, j, None] if by.ndim == 2 else term)
        total = block if total is None else total + block
    assert total is not None
    return total if by.ndim == 2 else total * by[:, None]


def mismatches(x: torch.Tensor, w: Any, t: torch.Tensor, scale: torch.Tensor, group: int, by_group: bool) -> int:
    """Return how many results have other bits than those of the formula."""
    tokens = cuda_ternary.quantise_lines(x, group) if by_group else cuda_ternary.quantise(x)
    wanted = by_formula(tokens.q[:, : x.shape[1]], tokens.scale, t, scale, group).bfloat16()
    found = cuda_ternary.linear(x, w, scale, None, torch.bfloat16, group, by_group=by_group)
    return int((found != wanted).sum())


def copies_of(n: int, k: int, options: Options) -> tuple[torch.Tensor, list[Any]]:
    """Return the codes of a matrix, and the matrix with others of its shape, more bytes than caches hold."""
    random = torch.Generator("cuda").manual_seed(options.seed)
    count = min(copies(n * k // 4), MOST_COPIES)
    codes = torch.randint(-1, 2, (count, n, k), dtype=torch.int8, device="cuda", generator=random)
    return codes[0], [cuda_weights.ternary_of(w) for w in codes]


def cell(m: int, codes: torch.Tensor, weights: list[Any], options: Options) -> dict[str, Any]:
    """Return the times of a matrix at one batch, and what was compared."""
    n, k = codes.shape
    random = torch.Generator("cuda").manual_seed(options.seed + 1)
    x = torch.randn((m, k), device="cuda", generator=random).bfloat16()
    one = torch.full((), 0.02, device="cuda")
    arms, wrong = {}, 0

    def over(scale: torch.Tensor, group: int, by_group: bool) -> Any:
        def call(w: Any) -> Any:
            return lambda: cuda_ternary.linear(x, w, scale, None, torch.bfloat16, group, by_group=by_group)

        return tried(lambda: captured([call(w) for w in weights]))

    arms[NONE] = over(one, 0, False)
    for name, (group, by_group) in GROUPS.items():
        scale = torch.rand((n, -(-k // group)), device="cuda", generator=random).half()
        wrong += mismatches(x, weights[0], codes, scale, group, by_group)
        arms[name] = over(scale, group, by_group)
    taken = in_turn(arms, min(options.rounds, ROUNDS))
    us = {name: t.us if isinstance(t, Samples) else t for name, t in taken.items()}
    return {"n": n, "k": k, "tokens": m, "us": us, "checked": len(GROUPS) * n * m, "wrong": wrong, "taken": taken}


def drawn(options: Options) -> list[tuple[str, int, int, int]]:
    """Return the kind, rows, columns and tokens of products of random sizes; tokens are log-uniform."""
    random = np.random.default_rng(options.seed)
    sizes = []
    for i in range(QUICK_DRAWS if options.quick else DRAWS):
        k = COLUMNS[i // len(KINDS) % len(COLUMNS)]
        n, m = int(random.integers(1, MOST_ROWS)), int(MOST_TOKENS ** random.uniform(0, 1))
        sizes.append((list(KINDS)[i % len(KINDS)], n, k, m))
    return sizes


def differing(kind: str, n: int, k: int, m: int, random: torch.Generator) -> int:
    """Return how many results of a product of these sizes have other bits than those of the formula; memory is poisoned."""
    group, by_group, of_scale, to, biased = KINDS[kind]
    t = torch.randint(-1, 2, (n, k), dtype=torch.int8, device="cuda", generator=random)
    x = torch.randn((m, k), device="cuda", generator=random).bfloat16()
    scale = torch.rand((n, -(-k // group)), device="cuda", generator=random).to(of_scale)
    bias = torch.randn(n, device="cuda", generator=random) if biased else None
    tokens = cuda_ternary.quantise_lines(x, group) if by_group else cuda_ternary.quantise(x)
    wanted = by_formula(tokens.q[:, :k], tokens.scale, t, scale, group)
    wanted = (wanted if bias is None else wanted + bias).to(to)
    with poisoned():
        found = cuda_ternary.linear(x, cuda_weights.ternary_of(t), scale, bias, to, group, by_group=by_group)
    return int((found != wanted).sum())


def of_random_sizes(options: Options) -> Shown:
    """Compare all results of products of random sizes with the formula."""
    random = torch.Generator("cuda").manual_seed(options.seed)
    checked, wrong, worst = Counter[str](), Counter[str](), []
    for kind, n, k, m in drawn(options):
        count = differing(kind, n, k, m, random)
        checked[kind] += n * m
        wrong[kind] += count
        worst += [f"{kind}: {n}×{k}, {m} tokens: {count} wrong"] if count else []
    heads = ("groups", "results", "wrong")
    rows = tuple((kind, f"{checked[kind]:,}", str(wrong[kind])) for kind in KINDS)
    total = float(wrong.total())
    goal = Goal("random sizes: wrong results with groups", total, total, total, 0.0, lower=True)
    record = {"checked": checked.total(), "wrong": wrong.total(), "worst": worst[:8]}
    return Shown(
        Table("Groups of columns, random sizes", heads, rows, frozenset(heads[1:]), ("", *worst[:8])), (goal,), record
    )


def compile_cell(sizes: tuple[int, int, int]) -> None:
    """Launch all kernels of a cell once, in a process of its own: Triton's cache has them then."""
    n, k, m = sizes
    w = cuda_weights.ternary_of(torch.zeros((n, k), dtype=torch.int8, device="cuda"))
    x = torch.ones((m, k), dtype=torch.bfloat16, device="cuda")
    cuda_ternary.linear(x, w, torch.ones((), device="cuda"), None, torch.bfloat16)
    for group, by_group in GROUPS.values():
        scale = torch.ones((n, -(-k // group)), device="cuda").half()
        cuda_ternary.linear(x, w, scale, None, torch.bfloat16, group, by_group=by_group)
    torch.cuda.synchronize()


def groups(options: Options) -> Iterator[Shown]:
    """A table for each shape, with goals for groups of 128, and one of random sizes."""
    shapes = SHAPES[:1] if options.quick else SHAPES
    batches = QUICK_BATCHES if options.quick else BATCHES
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            list(pool.map(compile_cell, [(n, k, m) for n, k in shapes for m in batches]))
    for n, k in shapes:
        rows, goals, record = [], list[Goal](), []
        codes, weights = copies_of(n, k, options)
        for m in batches:
            found = cell(m, codes, weights, options)
            taken = found.pop("taken")
            most = GROUP_TIMES if m <= GROUP_FEW else GROUP_TIMES_MANY
            name = next(iter(GROUPS))
            of_goal = list(share(f"{n}×{k}, {m} tokens: {name} beside none", taken[name], taken[NONE], most))
            goals += of_goal
            times = f"{of_goal[0].value:.2f}" if of_goal else ""
            rows.append((str(m), *(text(taken[arm]) for arm in taken), times, str(found["wrong"])))
            record.append(found)
        del codes, weights
        torch.cuda.empty_cache()
        wrong = float(sum(one["wrong"] for one in record))
        goals.append(Goal(f"{n}×{k}: wrong results with groups", wrong, wrong, wrong, 0.0, lower=True))
        heads = ("tokens", NONE, *GROUPS, "128 / none", "wrong")
        yield Shown(
            Table(f"Groups of columns, {n}×{k}: µs", heads, tuple(rows), frozenset(heads)), tuple(goals), record
        )
    yield of_random_sizes(options)
