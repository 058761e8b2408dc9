"""Trains a ternary network of 24 million weights on texts, with a vocabulary of its own, and exports it.

    python examples/stories/train.py texts/stories.txt --seconds 240 --out stories     # texts are separated by byte 0

The network is that of examples/train_bytes.py, larger; the recipe is `Recipe.from_scratch`, with as many steps as the time allows.
One text in a hundred is held out. Writes model.gguf (I2_S, the embedding in f16), tokenizer.json and log.json, at 60 and
85 % of the steps and at the end: a run that is stopped leaves a model.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional

import tritium
from tritium.torch import Recipe, apply_schedules, export, make_optimizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from train_bytes import Network, Shape

END = "<|end|>"
CHECKPOINTS = (0.6, 0.85)


def learn_vocabulary(texts: list[str], size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer whose token 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokens_of(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return all texts as one row of tokens, an end before each and after the last."""
    parts: list[Any] = [[0]]
    for i in range(0, len(texts), 20000):
        parts += [[*e.ids, 0] for e in tokenizer.encode_batch_fast(texts[i : i + 20000])]
    return np.concatenate([np.array(p, np.uint16) for p in parts])


def windows(data: torch.Tensor, length: int, batch: int) -> torch.Tensor:
    starts = torch.randint(len(data) - length - 1, (batch, 1), device=data.device)
    return data[starts + torch.arange(length + 1, device=data.device)].long()


def loss_of(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, data: torch.Tensor, args: argparse.Namespace, most: int = 24) -> float:
    """Return the mean cross-entropy in nats over windows after each other, at most so many batches of them."""
    count = min((len(data) - 1) // args.context, most * args.batch)
    ids = torch.stack([data[i * args.context : (i + 1) * args.context + 1] for i in range(count)]).long()
    losses = []
    for part in ids.split(args.batch):
        with torch.autocast(data.device.type, torch.bfloat16, enabled=data.is_cuda):
            logits = model(part[:, :-1])
        losses.append(functional.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten(), reduction="none"))
    return torch.cat(losses).mean().item()


def train(
    model: Network,
    learn: torch.Tensor,
    held: torch.Tensor,
    args: argparse.Namespace,
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Train in place for as many steps as `--seconds` allow, by the speed of the first ones; return the log."""
    judge = torch.compile(loss_of) if learn.is_cuda else loss_of
    if learn.is_cuda:
        for layer in model.model["layers"]:  # one at a time: all have the same code, which is compiled once
            layer.compile()
    recipe = Recipe.from_scratch(steps=1000, learning_rate=args.lr)
    optimizer = make_optimizer(model, recipe, fused=learn.is_cuda)
    curve: list[dict[str, float]] = []

    def step(share: float) -> torch.Tensor:
        apply_schedules(model, optimizer, recipe, share)
        ids = windows(learn, args.context, args.batch)
        with torch.autocast(learn.device.type, torch.bfloat16, enabled=learn.is_cuda):
            logits = model(ids[:, :-1])
        loss = judge(logits, ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    begin = time.perf_counter()
    for _ in range(3):
        step(0.0).item()
    print(json.dumps({"compiled in": round(time.perf_counter() - begin, 1)}), flush=True)
    warm, probes = time.perf_counter(), 20 if learn.is_cuda else 1
    for _ in range(probes):
        loss = step(0.0)
    loss.item()
    each = (time.perf_counter() - warm) / probes
    steps = args.steps or max(int((args.seconds - (time.perf_counter() - begin)) / each * 0.97), 10)
    recipe = Recipe.from_scratch(steps=steps, learning_rate=args.lr)
    print(
        json.dumps({"seconds a step": each, "tokens/s": int(args.batch * args.context / each), "steps": steps}),
        flush=True,
    )
    start, every = time.perf_counter(), max(steps // 40, 1)
    for i in range(steps):
        loss = step(i / steps)
        if (i + 1) % every == 0 or i + 1 == steps:
            row = {"step": i + 1, "loss": round(loss.item(), 4), "seconds": round(time.perf_counter() - start, 1)}
            if (i + 1) % (4 * every) == 0:
                row["held_out"] = round(held_out_loss(model, held, args, 3), 4)
            curve.append(row)
            print(json.dumps(row), flush=True)
        if i + 1 in [int(share * steps) for share in CHECKPOINTS]:
            save({"stopped_after": i + 1, "steps": steps, "curve": curve})
    seconds = time.perf_counter() - start
    return {
        "steps": steps, "seconds": round(seconds, 1), "tokens_seen": steps * args.batch * args.context,
        "tokens_per_second": int(steps * args.batch * args.context / seconds), "recipe": json.loads(recipe.to_json()), "curve": curve,
    }  # fmt: skip


def options(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    for name, value in {"seconds": 240.0, "steps": 0, "batch": 256, "lr": 1.5e-3, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    shape = Shape(hidden=512, intermediate=1536, layers=7, heads=8, kv_heads=4, context=384, vocab=4096)
    for name, size in asdict(shape).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(size), default=size)
    return parser.parse_args(given)


def shape_of(args: argparse.Namespace) -> Shape:
    return Shape(**{name: getattr(args, name) for name in asdict(Shape())})


def main(given: list[str] | None = None) -> None:
    args, start = options(given), time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    texts = args.texts.read_text(encoding="ascii").split("\0")
    tokenizer = learn_vocabulary(texts[:20_000], args.vocab)
    cut = max(len(texts) // 100, 1)
    learn, held = (torch.from_numpy(tokens_of(tokenizer, part)).to(device) for part in (texts[cut:], texts[:cut]))
    learn, held = learn.to(torch.int32), held.to(torch.int32)
    model = Network(shape_of(args)).to(device)
    held_bytes = sum(map(len, texts[:cut])) + cut
    counts = {
        "texts": len(texts), "tokens": len(learn), "held_out_tokens": len(held), "bytes_per_token": round(held_bytes / len(held), 3),
        "parameters": sum(p.numel() for p in model.parameters()), "prepared_s": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    print(json.dumps(counts), flush=True)
    log = counts | train(model, learn, held, args, lambda log: write(args, model, tokenizer, log))
    log |= {
        "settings": {k: v for k, v in vars(args).items() if k not in ("texts", "out")},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "tritium": tritium.__version__},
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
    }  # fmt: skip
    write(args, model, tokenizer, log)
    loss = held_out_loss(model, held, args)
    log |= {"held_out_loss": round(loss, 4), "bits_per_byte": round(loss / math.log(2) * len(held) / held_bytes, 4)}
    print(json.dumps({k: log[k] for k in ("held_out_loss", "bits_per_byte", "tokens_per_second")}), flush=True)
    (args.out / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def write(args: argparse.Namespace, model: Network, tokenizer: Tokenizer, log: dict[str, Any]) -> None:
    """Write the log and the model; the one in training stays as it is."""
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    copy = Network(shape_of(args))
    copy.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    copy.model["embed_tokens"].half()  # half the bytes; the layers compute in f32 as before
    side = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "add_bos_token": True}
    files = {"tokenizer.json": json.loads(tokenizer.to_str()), "tokenizer_config.json": side}
    export(copy, args.out / "model.gguf", format="i2_s", tokenizer=files, overwrite=True)


if __name__ == "__main__":
    main()
