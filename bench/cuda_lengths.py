"""Attention of a decode step where sequences have different lengths: `python bench/cuda_lengths.py`, on a GPU with Triton.

Heads of the 2B model (20, of which 5 are of keys) in 30 layers, each with a cache of its own; one CUDA graph of all layers, timed by events.
Beside sequences of equal lengths: lengths drawn log-uniformly from 16 to the context. `slots`: a slot of the whole context for each
sequence; `blocks`: blocks of 64 tokens in any order. Prints the median of a layer in microseconds, and the fastest and slowest of all.
With --model, instead: a whole decode step of a model of BitNet-2B's shape with random weights and an int8 head; steps follow each
other without a wait, so that the host's part is seen only where it is the longer one, as without the native library.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tritium.backends.cuda.attention.attend import attend_new

HEADS, SHARED, SIZE, LAYERS, BLOCK = 20, 5, 128, 30, 64


def lengths(kind: str, batch: int, context: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return the tokens that each sequence holds: `mixed`, or a number that all have."""
    if kind == "mixed":
        drawn = np.exp(np.random.default_rng(seed).uniform(np.log(16), np.log(context), batch))
        return np.minimum(drawn.astype(np.int64), context - 1)
    return np.full(batch, int(kind) - 1)


def caches(paged: bool, held: np.ndarray[Any, Any], context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache for all layers and the places of sequences in it."""
    batch = len(held)
    rows = np.stack([np.arange(batch), held, np.ones(batch)], 1)
    shape = (batch, 2 * SHARED, context, SIZE)
    if paged:
        used = -(-(held + 1) // BLOCK)
        numbers = iter(np.random.default_rng(1).permutation(int(used.sum())))
        table = np.zeros((batch, -(-context // BLOCK)))
        for row, count in zip(table, used, strict=True):
            row[:count] = [next(numbers) for _ in range(count)]
        rows, shape = np.concatenate([rows, table], 1), (int(used.sum()), 2 * SHARED, BLOCK, SIZE)
    kv = torch.full((LAYERS, *shape), 0.5, dtype=torch.float16, device="cuda")
    return kv, torch.from_numpy(rows.astype(np.int32)).cuda()


def captured(paged: bool, held: np.ndarray[Any, Any], context: int) -> Callable[[], None]:
    """Return a graph of the attention of all layers, with programmatic launches between them."""
    kv, places = caches(paged, held, context)
    batch = len(held)
    x = torch.randn((batch, 1, HEADS + 2 * SHARED, SIZE), device="cuda")
    angles = [torch.randn((batch, 1, SIZE // 2), device="cuda") for _ in range(2)]

    def run() -> None:
        for layer in kv:
            attend_new(x, *angles, layer, places, SIZE**-0.5, True)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.kept = (kv, places, x, angles)
    return graph.replay


def measure(run: Callable[[], None], rounds: int) -> list[float]:
    """Return microseconds of a layer, of each round."""
    times = []
    for i in range(rounds + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times += [start.elapsed_time(end) * 1e3 / LAYERS] if i >= 3 else []
    return times


def measure_model(kinds: list[str], batches: list[int], context: int, rounds: int) -> None:
    """Print the microseconds of whole decode steps."""
    from cuda_models import random_model, step_us

    model = random_model("bitnet-2b-4t", 0)
    for batch in batches:
        for kind in kinds:
            held = lengths(kind, batch, context)
            times = step_us(model, batch, held.tolist(), rounds, context).us
            print(
                f"batch {batch:3} lengths {kind:6} (mean {held.mean() + 1:6.0f}) step {shown(list(times))}", flush=True
            )
            torch.cuda.empty_cache()


def shown(times: list[float]) -> str:
    """Return the median, the fastest and the slowest."""
    return f"{statistics.median(times):7.2f} ({min(times):.2f} to {max(times):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="64,8,1")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--kinds", default="128,512,1024,4096,mixed")
    parser.add_argument("--forms", default="slots,blocks")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", action="store_true", help="Measure whole steps.")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}; µs: median (fastest to slowest)")
    kinds, batches = args.kinds.split(","), [int(batch) for batch in args.batches.split(",")]
    if args.model:
        measure_model(kinds, batches, args.context, args.rounds)
        return
    for batch in batches:
        for kind in kinds:
            held = lengths(kind, batch, args.context)
            for form in args.forms.split(","):
                times = measure(captured(form == "blocks", held, args.context), args.rounds)
                print(
                    f"batch {batch:3} lengths {kind:6} (mean {held.mean() + 1:6.0f}) {form:7} {shown(times)}",
                    flush=True,
                )
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
