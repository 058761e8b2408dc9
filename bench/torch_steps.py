"""A training step of one linear layer on the CPU: BitLinear on tritium's kernels and in torch's operations, beside nn.Linear.

A step is the forward pass and the gradients of tokens and weights; BitLinear packs its weights in each.

    python bench/torch_steps.py                         squares of 128 to 2560, 64 to 2048 tokens, one thread
    python bench/torch_steps.py --sizes 1024 --tokens 512 --rounds 9
    python bench/torch_steps.py --json steps.json       every raw value too

Method. The layers take turns in rounds, a random order and then its reverse. What is read is the CPU time of the process, with which other
work on the machine interferes less; the figures are medians. Before anything is timed, values and gradients of both ways of BitLinear are
compared: they must have the same bits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time_ns
from typing import Any

from timing import in_turns, timed

SIZES, TOKENS = (128, 256, 512, 1024, 2560), (64, 256, 1024, 2048)
LOOPED = 1 << 28  # multiplications of a sample, so that small steps are measured many at a time


def make_steps(size: int, tokens: int) -> dict[str, Callable[[], Any]]:
    """Return a step of each contender, on the same weights and tokens."""
    import torch

    from tritium.torch import BitLinear

    torch.manual_seed(0)
    x, dy = torch.randn(tokens, size, requires_grad=True), torch.randn(tokens, size)
    packed, formulas, plain = BitLinear(size, size), BitLinear(size, size), torch.nn.Linear(size, size, bias=False)
    for layer in (formulas, plain):
        layer.weight = packed.weight
    packed.kernels, formulas.kernels = True, False

    def step(layer: Any) -> tuple[Any, ...]:
        y = layer(x)
        return y, *torch.autograd.grad(y, (x, layer.weight), dy)

    return {"kernels": lambda: step(packed), "torch": lambda: step(formulas), "nn.Linear": lambda: step(plain)}


def measure(size: int, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU time of a step of each contender, in ms, one value a round."""
    import torch

    steps = make_steps(size, tokens)
    pairs = zip(steps["kernels"](), steps["torch"](), strict=True)
    if not all(torch.equal(a, b) for a, b in pairs):
        raise SystemExit(f"{size} x {size}, {tokens} tokens: the two ways of BitLinear have other bits")
    steps["nn.Linear"]()
    loops = max(1, LOOPED // (size * size * tokens))
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for name in in_turns(steps, rounds):
        samples[name].append(timed(steps[name], loops, process_time_ns) / loops / 1e6)
    return samples


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rows and columns of a matrix")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="tokens of a step")
    parser.add_argument("--rounds", type=int, default=4, help="rounds, of two samples each (4)")
    parser.add_argument("--threads", type=int, default=1, help="threads (1)")
    parser.add_argument("--json", type=Path, help="write every raw value here")
    args = parser.parse_args(arguments)
    import torch

    import tritium as tt

    torch.set_num_threads(args.threads)
    tt.set_num_threads(args.threads)
    results = []
    print(f"{'matrix':>12} {'tokens':>7} {'kernels':>9} {'torch':>9} {'nn.Linear':>9}   ms of CPU; torch / kernels")
    for size in args.sizes:
        for tokens in args.tokens:
            samples = measure(size, tokens, args.rounds)
            ms = {name: median(values) for name, values in samples.items()}
            figures = " ".join(f"{value:9.2f}" for value in ms.values())
            print(f"{size:>5} x {size:<5}{tokens:>7} {figures}   {ms['torch'] / ms['kernels']:.2f}", flush=True)
            results.append({"size": size, "tokens": tokens, "ms": samples})
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    main()
