"""Trains LoRA over the packed weights of a small byte-level model on another text, and measures what a merge keeps.

The default text is Python's argparse.py, the default model the one of the package, which knows the Bible. Bits per byte are measured on
4,096 bytes of the text's end, which are not trained on, in windows of 128: before training, with the adapters, after their merge to f32, and
after that sum is rounded to ternary values again with the scales it had.

    python examples/lora_bytes.py
    python examples/lora_bytes.py --model model.gguf --text notes.txt --steps 200 --out lora.json
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tritium
from tritium.models.load import SHIPPED, shipped
from tritium.torch import (
    PackedLinear,
    Recipe,
    Schedule,
    Windows,
    add_adapters,
    fit,
    flips_of_rounding,
    load,
    lora_linears,
    merge_adapters,
    next_token_loss,
    save_adapters,
    ternarise,
)

WINDOW = 128
HELD_OUT = 32 * (WINDOW + 1)  # bytes, of each window all but the first are judged


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", default=SHIPPED[0], help=f"a ternary file whose tokens are bytes, or {', '.join(SHIPPED)} (kjv)")
    add("--text", type=Path, default=Path(argparse.__file__), help="what is learned (Python's argparse.py)")
    add("--steps", type=int, default=60, help="training steps (60)")
    add("--batch", type=int, default=4, help="windows in a step (4)")
    add("--lr", type=float, default=0.01, help="peak of the learning rate (0.01)")
    add("--rank", type=int, default=8, help="of the adapters (8)")
    add("--seed", type=int, default=0, help="of adapters and batches (0)")
    add("--adapter", type=Path, help="write the adapters here, as PEFT's files")
    add("--out", type=Path, help="write the results here, as JSON")
    return parser.parse_args(arguments)


@torch.no_grad()
def bits_per_byte(model: nn.Module, held: torch.Tensor) -> float:
    """Return the bits of a byte, in windows that know nothing of each other."""
    return next_token_loss(model.eval(), held.view(-1, WINDOW + 1)).item() / math.log(2)


def round_again(model: nn.Module) -> nn.Module:
    """Return a copy with adapters rounded into the ternary weights: another network, which nobody trained."""
    model = copy.deepcopy(model)
    for name, layer in lora_linears(model).items():
        base = layer.base
        t, g = ternarise(layer.dense(), group=base.group, scale=base.ternary()[1])
        model.set_submodule(name, PackedLinear(t, g, base.bias, group=base.group, activations=base.activations))
    return model


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    args = options(arguments)
    text = args.text.read_bytes()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    learn, held = tokens[:-HELD_OUT], tokens[-HELD_OUT:]
    torch.manual_seed(args.seed)
    model = load(shipped(args.model) if args.model in SHIPPED else args.model)
    bits = {"the model": bits_per_byte(model, held)}
    add_adapters(model, rank=args.rank)
    layers = lora_linears(model).values()
    results: dict[str, Any] = {
        "packed_bytes": sum(layer.base.codes.numel() for layer in layers),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }
    recipe = Recipe.fine_tune(args.steps, learning_rate=args.lr, lambda_=Schedule.constant(1.0))
    start, cpu = time.perf_counter(), time.process_time()
    fit(model, Windows(learn, length=WINDOW, batch=args.batch, seed=args.seed), recipe)
    results |= {"seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    if args.adapter:
        save_adapters(model, args.adapter)
    bits["with adapters"] = bits_per_byte(model, held)
    bits["merged and rounded again"] = bits_per_byte(round_again(model), held)
    sizes = {name: layer.base.in_features * layer.base.out_features for name, layer in lora_linears(model).items()}
    flips = flips_of_rounding(model)
    results["flips"] = sum(flips[name] * size for name, size in sizes.items()) / sum(sizes.values())
    results["exact_merge"] = merge_adapters(model).exact
    bits["merged to f32"] = bits_per_byte(model, held)
    results["bits_per_byte"] = bits
    results["text"] = {"name": args.text.name, "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    results["settings"] = {k: v for k, v in vars(args).items() if k not in ("text", "out", "adapter")}
    versions = {"python": platform.python_version(), "torch": torch.__version__, "tritium": tritium.__version__}
    results["versions"] = versions | {"threads": torch.get_num_threads()}
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
