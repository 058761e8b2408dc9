"""The custom ops of the vLLM plugin at the shapes of decoders, of bench/cuda.py: exact, compiled whole, captured, and timed.

Every result of a call, of the compiled call and of the replayed graph is compared with the integer product of torch, scaled by the
formula. Timed are graphs over enough copies of a weight that it is cold, beside bf16 products.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from cuda_report import BF16, OURS, Goal, Options, Samples, Shown, text, times
from cuda_timing import captured, copies, in_turn, tried
from scale import SHAPES

from tritium.perf.tables.table import Table
from tritium.torch.formulas import round_activations
from tritium.vllm import products

MODELS = ("8B", "27B")
BATCHES, QUICK_BATCHES = (1, 16, 128, 2048), (1, 128)
PRODUCTS = ("Q, K and V", "out", "gate and up", "down")
FEWEST = 17  # rows that `_int_mm` takes
MOST_COPIES = 32


def wanted(x: torch.Tensor, t: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the layer's result by the formula, its sums by torch's integer product."""
    q, by = round_activations(x.float(), 0, "token")
    filled = torch.zeros((max(len(x), FEWEST), x.shape[1]), dtype=torch.int8, device="cuda")
    filled[: len(x)] = q
    sums = torch._int_mm(filled, t.t())[: len(x)]
    return (sums.float() * (by * scale)).to(x.dtype)


def mismatches(x: torch.Tensor, t: torch.Tensor, scale: torch.Tensor, name: str) -> int:
    """Return how many results of a call, of the compiled call and of the captured one have other bits than the formula's."""
    call = partial(products.bit_linear, name=name, rows=len(t))
    torch._dynamo.reset()
    results = [call(x), torch.compile(call, fullgraph=True)(x)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results.append(call(x))
    results[-1].zero_()
    graph.replay()
    right = wanted(x, t, scale)
    return sum(int((y != right).sum()) for y in results)


def cell(n: int, k: int, m: int, options: Options) -> dict[str, Any]:
    """Return the times of one product at one batch, and what was compared."""
    random = torch.Generator("cuda").manual_seed(options.seed)
    count = min(copies(n * k // 4), MOST_COPIES)
    scale = torch.rand(n, device="cuda", generator=random) + 0.5
    x = torch.randn((m, k), device="cuda", generator=random).bfloat16()
    names = [f"{n}x{k}, {i}" for i in range(count)]
    for name in names:
        t = torch.randint(-1, 2, (n, k), dtype=torch.int8, device="cuda", generator=random)
        products.keep(name, t, scale, 0, "token")
    plain = [
        torch.randn((n, k), device="cuda", generator=random).bfloat16() for _ in range(min(copies(2 * n * k), count))
    ]
    with torch.inference_mode():
        wrong = mismatches(x, t, scale, names[-1])
        arms = {
            BF16: tried(lambda: captured([partial(torch.mm, x, w.t()) for w in plain])),
            OURS: tried(lambda: captured([partial(products.bit_linear, x, name, n) for name in names])),
        }
        taken = in_turn(arms, options.rounds)
    us = {name: one.us if isinstance(one, Samples) else one for name, one in taken.items()}
    return {"n": n, "k": k, "tokens": m, "us": us, "checked": 3 * n * m, "wrong": wrong, "taken": taken}


def custom_ops(options: Options) -> Iterator[Shown]:
    """A table for each model."""
    for model in MODELS:
        rows, goals, record = [], list[Goal](), []
        for what, (n, k) in zip(PRODUCTS, SHAPES[model].matrices, strict=True):
            for m in QUICK_BATCHES if options.quick else BATCHES:
                found = cell(n, k, m, options)
                taken = found.pop("taken")
                beside = list(times(f"{model}, {what}, {m} tokens: times bf16", taken[BF16], taken[OURS], 1.0))
                goals += beside
                faster = f"{beside[0].value:.2f}" if beside else ""
                shown = (text(taken[BF16]), text(taken[OURS]), faster, str(found["wrong"]))
                rows.append((what, f"{n}×{k}", str(m), *shown))
                record.append(found | {"model": model, "what": what})
                products.forget()
                torch.cuda.empty_cache()
        wrong = float(sum(one["wrong"] for one in record))
        goals.append(Goal(f"{model}: wrong results of custom ops", wrong, wrong, wrong, 0.0, lower=True))
        heads = ("product", "n × k", "tokens", BF16, OURS, "times", "wrong")
        title = f"Custom ops of the vLLM plugin, {model}, quantiser included: µs"
        yield Shown(Table(title, heads, tuple(rows), frozenset(heads[2:])), tuple(goals), record)
