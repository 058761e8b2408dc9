"""The greedy token of an output head on a GPU: of half floats as a whole, through an int8 copy with bounds, and of int8 alone.

    python bench/cuda_head.py --tokens 1 8 64 --rounds 7
    python bench/cuda_head.py --model bitnet-2b-4t --tokens 1 8 64

Each is a CUDA graph that is replayed; ratios are to the whole head, which a library multiplies for more than 16 tokens. Heads are
random: `normal` is as it says, `scaled` has rows of unequal length and a few large columns, and inputs that resemble one of its rows,
so that one logit stands out as in a trained model. Prints how many rows of the head were read for a token, and whether tokens and
logits are those of the whole head in the order of sums of one token, bit by bit. With --model: decode steps of a whole model of
random weights that holds 128 tokens a sequence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import results
import torch
from cuda_models import decode_step, random_model
from cuda_report import Samples
from cuda_timing import captured, in_turn

import tritium as tt
from tritium.backends.cuda.head import certified, halves
from tritium.backends.cuda.head.argmax import argmax
from tritium.backends.cuda.linear import ternary, weights
from tritium.models.load import Model
from tritium.models.weights import with_copy
from tritium.nn.certified import CertifiedHead, certify
from tritium.nn.transformer import Head

KINDS = ("normal", "scaled")
WHOLE, COPY, CERTIFIED = "f16", "int8", "certified"
CONTENDERS = (WHOLE, COPY, CERTIFIED)
HELD, PICKED = 128, 24  # tokens of a sequence before a step that is timed; tokens that are compared
ORDER = "f16, in the order of one token"
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

    def whole(x: torch.Tensor) -> torch.Tensor:
        return halves.linear(x, table, None, torch.float32)

    def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        index = argmax(logits)
        return index, logits.gather(1, index[:, None])[:, 0]

    return {
        ORDER: lambda x: best(whole(x)),
        WHOLE: lambda x: best(whole(x) if halves.takes(x, table) else torch.nn.functional.linear(x, table.float())),
        COPY: lambda x: best(ternary.linear(x, copy, there[1], None, torch.float32)),
        CERTIFIED: lambda x: certified.largest(x, table, certified.Copy(*there)),
    }


def measure(kind: str, ways: dict[str, Greedy], table: torch.Tensor, tokens: int, rounds: int) -> dict[str, Any]:
    """Return times, rows that were read and whether tokens are equal."""
    x = inputs(kind, tokens, table, tokens)
    index, value = ways[ORDER](x)
    ours: Any = ways[CERTIFIED](x)
    equal = bool(torch.equal(ours[0], index) and torch.equal(ours[1].view(torch.int32), value.view(torch.int32)))
    taken = in_turn({name: captured([partial(ways[name], x)]) for name in CONTENDERS}, rounds)
    times = {name: t.us for name, t in taken.items() if isinstance(t, Samples)}
    return {"kind": kind, "tokens": tokens, "us": times, "rows": ours[2].tolist(), "equal": equal}


# ---- a model


def variants(name: str, seed: int) -> dict[str, Model]:
    """Return a model of random weights with each of the heads; all other weights are shared."""
    model = random_model(name, seed)
    network, table = model.network, model.network.embedding.weight
    whole = network._replace(
        head=Head(network.head.norm, table, network.head.multiplier), uncertified="it was turned off"
    )
    networks = {WHOLE: whole, COPY: network, CERTIFIED: with_copy(whole, True)}
    return {way: Model(model.config, n, name=f"{name}, {way}", source=None) for way, n in networks.items()}  # type: ignore[arg-type]


def picked(model: Model, tokens: int) -> list[list[int]]:
    """Return greedy tokens of so many sequences, step by step."""
    session = model.session(slots=tokens, context=PICKED + 1)
    ids, texts = [7 * i + 1 for i in range(tokens)], []
    for _ in range(PICKED):
        ids = session.pick(range(tokens), ids, ahead=True).ids
        texts.append(ids)
    return texts


def measure_model(models: dict[str, Model], name: str, tokens: int, rounds: int) -> dict[str, Any]:
    """Return times of decode steps, rows that were read and how many tokens are those of the whole head."""
    one, two = (picked(models[way], tokens) for way in (WHOLE, CERTIFIED))
    same = sum(a == b for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))
    statistics = models[CERTIFIED].head_statistics
    print(f"{name} {tokens}: {same} of {PICKED * tokens} tokens are those of the whole head; {statistics}", flush=True)
    taken = in_turn({way: decode_step(models[way], tokens, HELD) for way in CONTENDERS}, rounds)
    times = {way: t.us for way, t in taken.items() if isinstance(t, Samples)}
    mean = 0 if statistics is None else round(statistics.rows / max(statistics.decided, 1))
    return {"kind": f"step of {name}", "tokens": tokens, "us": times, "rows": [mean], "equal": one == two}


# ---- results


def line(result: dict[str, Any]) -> str:
    """Return a result as text."""
    us = {name: Samples(tuple(t)) for name, t in result["us"].items()}
    rows = result["rows"]
    cells = "  ".join(f"{name} {us[name]!s:>26} µs" for name in CONTENDERS)
    times = us[WHOLE].median / us[CERTIFIED].median
    said = "equal bits" if result["equal"] else "OTHER BITS"
    return f"{result['kind']:<7} {result['tokens']:>3}  {cells}  {times:.2f} x  rows {sum(rows) / len(rows):.1f}, most {max(rows)}  {said}"


def write(path: Any, found: Sequence[dict[str, Any]], shape: Sequence[int]) -> None:
    """Write the results file."""
    rows = [
        results.Entry((f"{r['kind']}", str(r["tokens"])), results.compared(r["us"], CERTIFIED) | {
            "rows": results.value(sum(r["rows"]) / len(r["rows"]))
        })
        for r in found
    ]  # fmt: skip
    columns = results.compared_columns(CONTENDERS, CERTIFIED, "µs", "median time of a token of each sequence")
    columns.append(results.Column("rows", "", "rows of the f16 head that were read for a token, mean"))
    equal = sum(r["equal"] for r in found)
    notes = [
        f"Head {shape[0]} x {shape[1]}; tokens and logits are those of the whole head bit by bit in {equal} of {len(found)} rows."
    ]
    title = "Greedy tokens of an output head on a GPU"
    results.write(
        path, title, ("head", "sequences"), columns, rows, needs=[results.GPU, results.need("torch")], notes=notes
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128256)
    parser.add_argument("--columns", type=int, default=2560)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", help="time decode steps of a model of this shape: a preset of bench/make_model.py")
    parser.add_argument("--json", metavar="FILE")
    results.add_option(parser)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, head {args.rows} x {args.columns}, {args.rounds} rounds", flush=True)
    found = []
    if args.model:
        models = variants(args.model, 1)
        found += [measure_model(models, args.model, tokens, args.rounds) for tokens in args.tokens]
    for kind in () if args.model else args.kind or KINDS:
        table, head = make_head(kind, args.rows, args.columns, 1)
        ways = contenders(table, head)
        found += [measure(kind, ways, table, tokens, args.rounds) for tokens in args.tokens]
    for result in found:
        print(line(result), flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "shape": [args.rows, args.columns], "results": found}, file)
    if args.results:
        write(args.results, found, (args.rows, args.columns))


if __name__ == "__main__":
    main()
