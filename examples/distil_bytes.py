"""Makes a float byte-level network ternary in two ways, by fine-tuning alone and by distillation, and compares them on held-out text.

Knows nothing of files of models. Both ways begin at the same float weights and take the same number of steps over the same text; each is
run from several seeds, which draw other batches.

    python examples/distil_bytes.py --text book.txt --out distil.json
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

from tritium.torch import Distillation, Recipe, Windows, distil, fit, prepare

sys.path.insert(0, str(Path(__file__).parent))
from train_bytes import Network, Shape, bits_per_byte, read_text, split, tensor_of

JUDGED = 1 << 15  # bytes of the held-out text, in pieces spread evenly


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--text", type=Path, help="a UTF-8 text file (default: what Debian's bible-kjv-text holds)")
    add("--out", type=Path, help="write the results here, as JSON")
    add("--seeds", type=int, default=3, help="runs of each way (3)")
    add("--teacher-steps", type=int, default=400, help="steps in floats (400)")
    add("--steps", type=int, default=200, help="steps of each way (200)")
    add("--lr", type=float, default=1e-3, help="peak of the learning rate of both ways (0.001)")
    add("--batch", type=int, default=16, help="windows in a step (16)")
    add("--device", default="cpu")
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


def run_both(
    args: argparse.Namespace, teacher: Network, learn: torch.Tensor, held: torch.Tensor, seed: int
) -> dict[str, float]:
    """Return bits per byte on held-out text after fine-tuning alone and after distillation."""
    context = teacher.config["max_position_embeddings"]
    batches = Windows(learn, length=context, batch=args.batch, seed=seed + 1)
    changes: dict[str, Any] = {"learning_rate": args.lr}
    recipes = {
        "fine-tuned": Recipe.fine_tune(args.steps, **changes),
        "distilled": Recipe.fine_tune(args.steps, distillation=Distillation(), **changes),
    }
    bits = {}
    for name, recipe in recipes.items():
        torch.manual_seed(seed)
        student = prepare(copy.deepcopy(teacher), recipe)
        if recipe.distillation is None:
            fit(student, batches, recipe)
        else:
            distil(teacher, student, batches, recipe)
        bits[name] = bits_per_byte(student, held, context, most=JUDGED)
    return bits


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    args = options(arguments)
    learn, held = (tensor_of(part, args.device) for part in split(read_text(args.text)))
    shape = Shape(args.hidden, args.intermediate, args.layers, args.heads, args.kv_heads, args.context)
    start = time.perf_counter()
    teacher = train_teacher(args, shape, learn)
    results: dict[str, Any] = {"teacher": bits_per_byte(teacher, held, shape.context, most=JUDGED), "runs": []}
    print(json.dumps({"teacher": results["teacher"]}), flush=True)
    for seed in range(args.seeds):
        results["runs"].append(run_both(args, teacher, learn, held, seed))
        print(json.dumps(results["runs"][-1]), flush=True)
    for name in ("fine-tuned", "distilled"):
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
