"""Trains a ternary byte-level network on the text alone and by distillation, and compares them on held-out text.

All ways begin at the same weights and take the same number of steps over the same text; each is run from several seeds, which draw
other batches. Without --shipped the teacher is a float network that is trained first, and its copy is made ternary. With it the
teacher is the model of the package, which was trained to its end, and a smaller network is trained from scratch; a third way then
adds the relations of the last attention. The network has BitNet's sub-norms in each.

    python examples/distil_bytes.py --text book.txt --out distil.json
    python examples/distil_bytes.py --shipped --steps 500
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tritium.models.load import shipped
from tritium.torch import BitLinear, Distillation, Recipe, Windows, distil, fit, load_ternary, prepare

sys.path.insert(0, str(Path(__file__).parent))
from train_bytes import Network, Shape, bits_per_byte, read_text, split, tensor_of

JUDGED = 1 << 15  # bytes of the held-out text, in pieces spread evenly


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--text", type=Path, help="a UTF-8 text file (default: what Debian's bible-kjv-text holds)")
    add("--out", type=Path, help="write the results here, as JSON")
    add("--seeds", type=int, default=3, help="runs of each way (3)")
    add(
        "--shipped",
        action="store_true",
        help="the model of the package is the teacher, and students begin from scratch",
    )
    add("--teacher-steps", type=int, default=400, help="steps in floats (400)")
    add("--steps", type=int, default=200, help="steps of each way (200)")
    add("--lr", type=float, default=1e-3, help="peak of the learning rate of both ways (0.001)")
    add("--batch", type=int, default=16, help="windows in a step (16)")
    add("--device", default="cpu")
    add("--text-weight", type=float, default=1.0, help="of the loss on the text in distillation (1)")
    add("--temperature", type=float, default=2.0, help="of both distributions in distillation (2)")
    for name, size in {
        "hidden": 128,
        "intermediate": 384,
        "layers": 2,
        "heads": 2,
        "kv-heads": 1,
        "context": 128,
    }.items():
        add(f"--{name}", type=int, default=size, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def train_teacher(args: argparse.Namespace, shape: Shape, learn: torch.Tensor) -> Network:
    """Return the network trained in floats."""
    torch.manual_seed(0)
    teacher = Network(shape, linear=nn.Linear).to(args.device)
    fit(
        teacher,
        Windows(learn, length=shape.context, batch=args.batch),
        Recipe.from_scratch(args.teacher_steps, learning_rate=2e-3),
    )
    return teacher


def shipped_teacher(device: str) -> Network:
    """Return the model of the package as a network of PyTorch, frozen."""
    network = load_ternary(Network(Shape()), shipped()).to(device)
    assert isinstance(network, Network)
    return network


def recipes_of(args: argparse.Namespace) -> dict[str, Recipe]:
    """Return the recipe of each way: they differ in what the teacher adds to the text, and in nothing else."""
    options: dict[str, Any] = {"text": args.text_weight, "temperature": args.temperature}
    if not args.shipped:
        plain = Recipe.fine_tune(args.steps, learning_rate=args.lr)
        return {"fine-tuned": plain, "distilled": plain.with_(distillation=Distillation(**options))}
    plain = Recipe.from_scratch(args.steps, learning_rate=args.lr)
    logits, both = (plain.with_(distillation=Distillation(**options, relations=r)) for r in (0.0, 1.0))
    return {"from scratch": plain, "distilled": logits, "distilled, with relations": both}


def run_all(
    args: argparse.Namespace, teacher: Network, shape: Shape, learn: torch.Tensor, held: torch.Tensor, seed: int
) -> dict[str, float]:
    """Return bits per byte on held-out text after training in each way."""
    batches = Windows(learn, length=shape.context, batch=args.batch, seed=seed + 1)
    bits = {}
    for name, recipe in recipes_of(args).items():
        torch.manual_seed(seed)
        start = Network(shape, linear=BitLinear).to(args.device) if args.shipped else copy.deepcopy(teacher)
        student = prepare(start, recipe)
        if recipe.distillation is None:
            fit(student, batches, recipe)
        else:
            distil(teacher, student, batches, recipe)
        bits[name] = bits_per_byte(student, held, shape.context, most=JUDGED)
    return bits


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    args = options(arguments)
    learn, held = (tensor_of(part, args.device) for part in split(read_text(args.text)))
    shape = Shape(args.hidden, args.intermediate, args.layers, args.heads, args.kv_heads, args.context)
    start = time.perf_counter()
    teacher = shipped_teacher(args.device) if args.shipped else train_teacher(args, shape, learn)
    results: dict[str, Any] = {"teacher": bits_per_byte(teacher, held, shape.context, most=JUDGED), "runs": []}
    print(json.dumps({"teacher": results["teacher"]}), flush=True)
    for seed in range(args.seeds):
        results["runs"].append(run_all(args, teacher, shape, learn, held, seed))
        print(json.dumps(results["runs"][-1]), flush=True)
    for name in recipes_of(args):
        values = [run[name] for run in results["runs"]]
        results[name] = {"mean": statistics.fmean(values), "spread": max(values) - min(values)}
    results["settings"] = {
        k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("text", "out")
    }
    results["seconds"] = round(time.perf_counter() - start, 1)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    print(json.dumps({k: v for k, v in main().items() if k != "settings"}))
