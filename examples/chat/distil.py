"""Distils SmolLM2-135M-Instruct to ternary weights on conversations that sample.py wrote, and exports one GGUF file.

    python examples/chat/distil.py SmolLM2-135M-Instruct.Q4_1.gguf texts/tokens.npz --seconds 380 --out chat
    python examples/chat/distil.py … --steps 4000 --until 2000 --out chat      # half of it; the same command goes on from chat/run.pt

The student has the teacher's layers but for some that it does best without, the vocabulary of vocabulary.py, and begins at the
teacher's weights; each group of 64 columns has a learned scale, which begins where the squared error is least. Activations are not
rounded in training. The loss is the KL divergence from the teacher's distribution, and the squared distance of what the layers pass on from
what the teacher's do, as a share of its square. One conversation in a hundred is held out. With --seconds the number of steps follows
from the speed of the first ones. Writes model.gguf (Q2_0, the embedding in Q4_0) and log.json; half.pt, from which files.py makes the
same, at half of the steps.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from files import GROUP, keep, write_model
from network import Llama, network_of
from torch import nn
from torch.nn import functional
from vocabulary import cut, files, tokenizer_of

import tritium
from tritium.torch import Recipe, Schedule, Training, bit_linears, prepare
from tritium.torch.formulas import absmean, spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stories"))
from weights import read_weights

RATE = Schedule(((0.0, 0.0), (0.03, 1.0), (0.6, 0.5), (1.0, 0.0)))


class Conversations:
    """Batches of windows [batch, length + 1] as a function of the step; each begins where a conversation begins."""

    def __init__(self, tokens: torch.Tensor, starts: torch.Tensor, *, length: int, batch: int, seed: int = 0) -> None:
        self.tokens, self.length, self.batch, self.seed = tokens, length, batch, seed
        self.starts = starts[starts < len(tokens) - length]
        self.orders: dict[int, torch.Tensor] = {}

    def order(self, epoch: int) -> torch.Tensor:
        """Return the windows' starts in the order of an epoch."""
        if epoch not in self.orders:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self.orders[epoch] = self.starts[torch.randperm(len(self.starts), generator=generator)]
        return self.orders[epoch]

    def __call__(self, step: int) -> torch.Tensor:
        places = torch.arange(step * self.batch, (step + 1) * self.batch)
        epochs, within = places // len(self.starts), places % len(self.starts)
        starts = torch.cat([self.order(int(e))[within[epochs == e]] for e in epochs.unique()])
        return self.tokens[(starts[:, None] + torch.arange(self.length + 1)).to(self.tokens.device)].long()


@torch.no_grad()
def fit_scales(student: nn.Module) -> None:
    """Set every learned scale to the multiple of the mean magnitude with the least squared error."""
    for layer in bit_linears(student).values():
        mean, w = absmean(layer.weight, None, GROUP), layer.weight.unflatten(-1, (-1, GROUP))
        best, least = mean, torch.full_like(mean, math.inf)
        for factor in torch.linspace(1.0, 2.0, 21).tolist():
            g = spread(mean * factor, GROUP).unflatten(-1, (-1, GROUP))
            error = ((w / g).round().clamp(-1, 1) * g - w).square().sum(-1)
            best, least = torch.where(error < least, mean * factor, best), torch.minimum(error, least)
        assert layer.scale is not None
        layer.scale.copy_(best)


def kl_of(ours: torch.Tensor, theirs: torch.Tensor, table: torch.Tensor, their_table: torch.Tensor) -> torch.Tensor:
    """Return the mean of KL(teacher ‖ student) in nats, of last states and the tables that make logits of them."""
    p = functional.log_softmax(functional.linear(theirs, their_table).float(), -1)
    q = functional.log_softmax(functional.linear(ours, table).float(), -1)
    return (p.exp() * (p - q)).sum(-1).mean()


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the mean squared distance of states from the teacher's, as a share of the teacher's square."""
    return ((ours - theirs).square().mean(-1) / theirs.square().mean(-1)).mean()


class Loss:
    """The loss of a batch, from a teacher and the layers of it that a student has."""

    def __init__(self, teacher: Llama, layers: list[int], share: float, *, compiled: bool, halves: bool) -> None:
        self.teacher, self.share = teacher, share
        self.targets = [
            following - 1 for following in [*layers[1:], len(teacher.model["layers"])]
        ]  # what the next one reads
        self.kl, self.apart = (torch.compile(f) if compiled else f for f in (kl_of, apart))
        self.halves = halves

    def parts(self, student: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the divergence and the mean distance of the layers."""
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self.halves):
            with torch.no_grad():
                theirs, goals = self.teacher.states(ids)
            ours, passed = student.states(ids)
            kl = self.kl(ours, theirs, student.model["embed_tokens"].weight, self.teacher.model["embed_tokens"].weight)
        distances = [self.apart(x, goals[i]) for x, i in zip(passed, self.targets, strict=True)]
        return kl, torch.stack(distances).mean()

    def __call__(self, student: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        kl, distance = self.parts(student, ids[:, :-1])
        return kl + self.share * distance


@torch.no_grad()
def judge(model: Llama, loss: Loss, windows: torch.Tensor, lengths: torch.Tensor, batch: int) -> dict[str, float]:
    """Return the divergence and bits a byte of student and teacher on held-out windows; `lengths` are the bytes of each token."""
    rows: list[list[float]] = []
    for ids in windows.split(batch):
        kl, distance = loss.parts(model, ids[:, :-1])
        nats = []
        for network in (model, loss.teacher):
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=loss.halves):
                logits = network(ids[:, :-1])
            nats.append(
                functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
            )
        rows.append(
            [kl.item() * len(ids), distance.item() * len(ids), *nats, lengths[ids[:, 1:]].sum().item(), len(ids)]
        )
    kl, distance, ours, theirs, size, count = np.array(rows).sum(0).tolist()
    bits = {"bits_per_byte": ours / size / math.log(2), "teacher_bits_per_byte": theirs / size / math.log(2)}
    return {k: round(v, 4) for k, v in {"kl": kl / count, "distance": distance / count, **bits}.items()}


def seconds_of(training: Training, batches: Conversations, probes: int) -> float:
    """Return the seconds of a step, by some that change nothing: the learning rate is 0 at the start of a recipe."""
    for i in range(3):
        training.step(batches(i))
    start = time.perf_counter()
    for i in range(probes):
        training.step(batches(i))
    return (time.perf_counter() - start) / probes


def recipe_of(args: argparse.Namespace, steps: int) -> Recipe:
    return Recipe.distil(
        steps,
        learning_rate=args.lr,
        rate=RATE,
        group=GROUP,
        scales="learned",
        activations="float",
        norms="none",
        betas=(0.9, 0.95),
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument(
        "tokens", type=Path, nargs="?", help="without it a few steps on random tokens, which leave compiled code"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true", help="do not compile the layers on a GPU")
    parser.add_argument(
        "--drop", type=int, nargs="*", default=[3, 4, 16, 17], help="layers of the teacher that the student has not"
    )
    defaults = {
        "seconds": 380.0, "steps": 0, "until": 0, "batch": 48, "length": 512, "lr": 8e-4, "share": 1.0, "seed": 0, "vocab": 10_240,
        "judged": 192, "most_layers": 0,
    }  # fmt: skip
    for name, value in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def make_networks(
    args: argparse.Namespace, weights: dict[str, torch.Tensor], rows: list[int]
) -> tuple[Llama, Llama, list[int]]:
    """Return teacher, student and the teacher's layers that the student has; on a GPU their layers are compiled."""
    count = args.most_layers or sum(name.endswith(".input_layernorm.weight") for name in weights)
    layers = [i for i in range(count) if i not in args.drop]
    teacher = network_of(weights, rows, range(count)).eval().requires_grad_(False)
    student = prepare(network_of(weights, rows, layers), recipe_of(args, 1))
    assert isinstance(student, Llama)
    fit_scales(student)
    if student.model["norm"].weight.is_cuda:
        for linear in (m for m in teacher.modules() if isinstance(m, nn.Linear)):
            linear.bfloat16()
        for layer in [] if args.plain else [*teacher.model["layers"], *student.model["layers"]]:
            layer.compile()  # all have the same code, which is compiled once
    return teacher, student, layers


def read_texts(args: argparse.Namespace, device: str) -> tuple[Conversations, torch.Tensor]:
    """Return the batches to learn from, and windows that are held out."""
    data = np.load(args.tokens)
    tokens, starts = torch.from_numpy(data["tokens"].astype(np.int32)).to(device), torch.from_numpy(data["starts"])
    held = max(len(starts) // 100, min(args.judged, len(starts) // 2))
    border = int(starts[held])
    some = Conversations(tokens[:border], starts[:held], length=args.length, batch=args.judged)
    learn = Conversations(tokens[border:], starts[held:] - border, length=args.length, batch=args.batch, seed=args.seed)
    return learn, some(0)


def train(
    args: argparse.Namespace, training: Training, batches: Conversations, judged: Any, half: Any
) -> dict[str, Any]:
    """Train to the end, or to `--until`; return the log."""
    steps, curve, start = training.recipe.steps, [], time.perf_counter()
    first, every, end = training.done, max(steps // 40, 1), min(args.until or steps, steps)
    while training.done < end:
        training.step(batches(training.done))
        if training.done % every == 0 or training.done == end:
            mean = float(np.mean(training.losses[-every:]))
            row = {"step": training.done, "loss": round(mean, 4), "seconds": round(time.perf_counter() - start, 1)}
            if training.done % (4 * every) == 0:
                row |= judged()
            curve.append(row)
            print(json.dumps(row), flush=True)
        if training.done == steps // 2:
            half({"stopped_after": training.done, "curve": curve})
    seconds, taken = time.perf_counter() - start, (training.done - first) * args.batch * args.length
    return {
        "seconds": round(seconds, 1),
        "tokens_seen": taken,
        "tokens_per_second": int(taken / max(seconds, 1e-9)),
        "curve": curve,
    }


def main() -> None:
    args, start = options(), time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    weights, tokens, merges = read_weights(args.weights, device)
    template = tritium.io.open(args.weights).metadata["tokenizer.chat_template"]
    rows = cut(tokens, merges, args.vocab)
    side = files(tokens, merges, rows, template)
    tokenizer = tokenizer_of(side)
    lengths = torch.tensor(
        [len(tokenizer.decode([i], skip_special_tokens=False).encode()) for i in range(len(rows))], device=device
    )
    teacher, student, layers = make_networks(args, weights, rows)
    cuda = device == "cuda"
    loss = Loss(teacher, layers, args.share, compiled=cuda and not args.plain, halves=cuda)
    if args.tokens is None:
        random = torch.randint(len(rows), (args.batch * 4 * args.length,), device=device)
        batches = Conversations(random, torch.arange(0, len(random), args.length), length=args.length, batch=args.batch)
        each = seconds_of(Training(student, recipe_of(args, 1 << 30), loss=loss, fused=cuda), batches, 2)
        judge(student, loss, batches(0), lengths, args.batch)
        print(json.dumps({"seconds a step": each, "seconds": round(time.perf_counter() - start, 1)}), flush=True)
        return
    batches, held = read_texts(args, device)
    steps, checkpoint = args.steps, args.out / "run.pt"
    if checkpoint.exists():
        steps = Recipe.from_json(torch.load(checkpoint, mmap=True, weights_only=True)["recipe"]).steps
    if not steps:
        probe = Training(student, recipe_of(args, 1 << 30), loss=loss, fused=cuda)
        each = seconds_of(probe, batches, 20 if cuda else 1)
        steps = max(int((args.seconds - (time.perf_counter() - start)) / each * 0.96), 4)
        print(
            json.dumps({"seconds a step": each, "tokens/s": int(args.batch * args.length / each), "steps": steps}),
            flush=True,
        )
    training = Training(student, recipe_of(args, steps), loss=loss, fused=cuda)
    if checkpoint.exists():
        training.load(checkpoint)
    judged = partial(judge, student, loss, held, lengths, args.batch)
    facts: dict[str, Any] = {
        "settings": {k: v for k, v in vars(args).items() if k not in ("weights", "tokens", "out")}, "steps": steps, "layers": layers,
        "parameters": sum(p.numel() for p in student.parameters()), "texts": len(batches.starts), "tokens": len(batches.tokens),
        "before": judged(), "prepared_s": round(time.perf_counter() - start, 1), "recipe": json.loads(training.recipe.to_json()),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "tritium": tritium.__version__},
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
    }  # fmt: skip
    print(json.dumps({k: facts[k] for k in ("steps", "texts", "tokens", "before", "prepared_s")}), flush=True)
    half = lambda log: keep(args.out / "half.pt", student, side, facts | log)
    log = facts | train(args, training, batches, judged, half)
    if training.done < steps:
        args.out.mkdir(parents=True, exist_ok=True)
        training.save(checkpoint)
    log["after"] = judged()
    print(json.dumps({k: log[k] for k in ("after", "tokens_per_second", "seconds")}), flush=True)
    write_model(args.out, student.sizes, student.state_dict(), side, log)


if __name__ == "__main__":
    main()
