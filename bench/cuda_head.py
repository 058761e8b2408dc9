"""The greedy token of an output head on a GPU: of half floats as a whole, through an int8 copy with bounds, and of int8 alone.

    python bench/cuda_head.py --tokens 1 8 64 --rounds 7

Each is a CUDA graph that is replayed; ratios are to the whole head. Heads are random: `normal` is as it says, `scaled` has rows of
unequal length and a few large columns, and inputs that resemble one of its rows, so that one logit stands out as in a trained
model. Prints how many rows of the head were read for a token, and whether tokens and logits are those of the whole head, bit by bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from cuda_report import Samples
from cuda_timing import captured, in_turn

import tritium as tt
from tritium.backends.cuda.head import certified, halves
from tritium.backends.cuda.head.argmax import argmax
from tritium.backends.cuda.linear import ternary, weights
from tritium.nn.certified import CertifiedHead, certify

KINDS = ("normal", "scaled")
WHOLE, COPY, CERTIFIED = "f16", "int8", "certified"
Greedy = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def make_head(kind: str, rows: int, columns: int, seed: int) -> tuple[torch.Tensor, CertifiedHead]:
    """Return a table of f16 on the GPU, and the same with its copy on the host."""
    draw = torch.Generator("cuda").manual_seed(seed)
    table = torch.randn((rows, columns), device="cuda", generator=draw) * columns**-0.5
    if kind == "scaled":
        table *= torch.exp(0.3 * torch.randn((rows, 1), device="cuda", generator=draw))
        table[:, torch.randperm(columns, device="cuda", generator=draw)[:8]] *= 4
    halved = table.half()
    head = certify(tt.from_numpy(halved.cpu().numpy()), threads=torch.get_num_threads())
    assert head is not None
    return halved, head


def inputs(kind: str, tokens: int, table: torch.Tensor, seed: int) -> torch.Tensor:
    """Return inputs of the head."""
    draw = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn((tokens, table.shape[1]), device="cuda", generator=draw)
    if kind == "scaled":
        chosen = torch.randint(0, table.shape[0], (tokens,), device="cuda", generator=draw)
        x += 10 * table[chosen].float() / table[chosen].float().norm(dim=1, keepdim=True)
    return x


def contenders(table: torch.Tensor, head: CertifiedHead) -> dict[str, Greedy]:
    """Return what picks a token and its logit, by name."""
    weight = head.copy.weight.plain()
    assert weight.scale is not None
    there = [torch.from_numpy(t.numpy()).cuda() for t in (weight.data, weight.scale, head.error, head.norm)]
    copy = weights.int8(there[0])

    def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        index = argmax(logits)
        return index, logits.gather(1, index[:, None])[:, 0]

    return {
        WHOLE: lambda x: best(halves.linear(x, table, None, torch.float32)),
        COPY: lambda x: best(ternary.linear(x, copy, there[1], None, torch.float32)),
        CERTIFIED: lambda x: certified.largest(x, table, certified.Copy(*there)),
    }


def measure(kind: str, ways: dict[str, Greedy], table: torch.Tensor, tokens: int, rounds: int) -> dict[str, Any]:
    """Return times, rows that were read and whether tokens are equal."""
    x = inputs(kind, tokens, table, tokens)
    index, value = ways[WHOLE](x)
    ours: Any = ways[CERTIFIED](x)
    equal = bool(torch.equal(ours[0], index) and torch.equal(ours[1].view(torch.int32), value.view(torch.int32)))
    taken = in_turn({name: captured([lambda way=way: way(x)]) for name, way in ways.items()}, rounds)
    times = {name: t.us for name, t in taken.items() if isinstance(t, Samples)}
    return {"kind": kind, "tokens": tokens, "us": times, "rows": ours[2].tolist(), "equal": equal}


def line(result: dict[str, Any]) -> str:
    """Return a result as text."""
    us = {name: Samples(tuple(t)) for name, t in result["us"].items()}
    rows = result["rows"]
    cells = "  ".join(f"{name} {us[name]!s:>26} µs" for name in (WHOLE, COPY, CERTIFIED))
    times = us[WHOLE].median / us[CERTIFIED].median
    said = "equal bits" if result["equal"] else "OTHER BITS"
    return f"{result['kind']:<7} {result['tokens']:>3}  {cells}  {times:.2f} x  rows {sum(rows) / len(rows):.1f}, most {max(rows)}  {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128256)
    parser.add_argument("--columns", type=int, default=2560)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, head {args.rows} x {args.columns}, {args.rounds} rounds", flush=True)
    results = []
    for kind in args.kind or KINDS:
        table, head = make_head(kind, args.rows, args.columns, 1)
        ways = contenders(table, head)
        for tokens in args.tokens:
            results.append(measure(kind, ways, table, tokens, args.rounds))
            print(line(results[-1]), flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(
                {"gpu": torch.cuda.get_device_name(), "shape": [args.rows, args.columns], "results": results}, file
            )


if __name__ == "__main__":
    main()
