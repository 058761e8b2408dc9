"""Distils SmolLM2-135M-Instruct to ternary weights on conversations that sample.py wrote, and exports one GGUF file.

    python examples/chat/distil.py SmolLM2-135M-Instruct.Q4_1.gguf texts/tokens.npz --seconds 300 --out chat
    python examples/chat/distil.py … --steps 8000 --seconds 300 --out chat      # again and again: each run goes on from chat/run.pt

The student has the teacher's layers but for some that it does best without, the vocabulary of vocabulary.py, and begins at the
teacher's weights; each group of 64 columns has a learned scale, which begins where the squared error is least. Activations are not
rounded in training. The loss is the KL divergence from the teacher's distribution, and the squared distance of what the layers pass on from
what the teacher's do, as a share of its square. One conversation in a hundred is held out.

With --steps a training is the same whether it was interrupted or not. Without, it takes as many steps as --seconds allow: the number is
planned anew from the speed of the last steps, and every plan is in the log. Writes model.gguf (Q2_0, the embedding in Q4_0) and log.json; at
half of the steps and at 85 % of them also run.pt, from which the same command goes on, and the files of that state, in another process.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from files import FORM, GROUP, keep, write_model
from network import Llama, network_of
from torch import nn
from torch.nn import functional
from vocabulary import cut, files, tokenizer_of

import tritium
from tritium.torch import Recipe, Schedule, Training, bit_linears, prepare
from tritium.torch.formulas import absmean, spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stories"))
from weights import read_weights

FEW, MANY = (
    5,
    1 << 30,
)  # steps before the first plan; steps where there is no plan yet: the learning rate is as good as 0
SHARES = (0.5, 0.85)  # of a training after which its state is written
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

    def weights(self) -> dict[str, dict[str, float]]:
        """Return what the losses are multiplied with, and the temperature of the divergence."""
        return {"kl": {"weight": 1.0, "temperature": 1.0}, "distance": {"weight": self.share}}

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


class Plan:
    """How many steps a training takes: those of its recipe, or as many as there is time for by the speed of the last ones."""

    def __init__(self, training: Training, end: float, *, fixed: bool) -> None:
        self.training, self.end, self.fixed = training, end, fixed
        self.times: deque[float] = deque(maxlen=20)
        self.rows: list[list[int]] = []

    @property
    def share(self) -> float:
        return self.training.done / self.training.recipe.steps

    def step(self, batch: torch.Tensor) -> None:
        """Train on a batch; plan again now and then."""
        start = time.perf_counter()
        self.training.step(batch)
        self.times.append(time.perf_counter() - start)
        done = self.training.done
        if not self.fixed and (done % 25 == 0 or len(self.times) == FEW or time.perf_counter() > self.end):
            left = 0.97 * (self.end - time.perf_counter()) / median(self.times)
            steps = max(done + int(left), done)
            self.training.recipe = self.training.recipe.with_(steps=max(steps, 1))
            self.rows.append([done, steps])

    def over(self) -> bool:
        """Return True at the end of the recipe, and at the end of the time."""
        return self.share >= 1 or (self.fixed and time.perf_counter() > self.end)


def recipe_of(args: argparse.Namespace, steps: int) -> Recipe:
    """Return the recipe; it has no distillation, since the losses are this script's own (`Loss`)."""
    return Recipe(steps, learning_rate=args.lr, rate=RATE, betas=(0.9, 0.95), **FORM)


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
        "seconds": 300.0, "steps": 0, "until": 0, "batch": 48, "length": 512, "lr": 8e-4, "share": 1.0, "seed": 0, "vocab": 10_240,
        "judged": 192, "log_every": 50, "most_layers": 0,
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


def train(args: argparse.Namespace, plan: Plan, batches: Conversations, judged: Any, leave: Any) -> dict[str, Any]:
    """Train to the end, or to `--until`; return the log. `leave` writes the state at some shares of the training."""
    training, curve, start = plan.training, [], time.perf_counter()
    first, shares = training.done, [share for share in SHARES if share > plan.share or not plan.fixed]
    while not plan.over() and not (args.until and training.done >= args.until):
        plan.step(batches(training.done))
        if training.done % args.log_every == 0 or plan.over():
            mean = float(np.mean(training.losses[-args.log_every :]))
            row = {"step": training.done, "loss": round(mean, 4), "seconds": round(time.perf_counter() - start, 1)}
            row |= judged() if training.done % (4 * args.log_every) == 0 else {}
            curve.append(row)
            print(json.dumps(row | {"steps": training.recipe.steps}), flush=True)
        if shares and plan.share >= shares[0]:
            leave(f"at{round(100 * shares.pop(0))}", {"stopped_after": training.done, "curve": curve})
    seconds, taken = time.perf_counter() - start, (training.done - first) * args.batch * args.length
    return {
        "steps": training.recipe.steps, "done": training.done, "plans": plan.rows, "seconds": round(seconds, 1), "tokens_seen": taken,
        "tokens_per_second": int(taken / max(seconds, 1e-9)), "recipe": json.loads(training.recipe.to_json()), "curve": curve,
    }  # fmt: skip


class Run:
    """Networks, vocabulary and loss of a run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        weights, tokens, merges = read_weights(args.weights, self.device)
        rows = cut(tokens, merges, args.vocab)
        self.side = files(tokens, merges, rows, tritium.io.open(args.weights).metadata["tokenizer.chat_template"])
        tokenizer = tokenizer_of(self.side)
        sizes = [len(tokenizer.decode([i], skip_special_tokens=False).encode()) for i in range(len(rows))]
        self.lengths = torch.tensor(sizes, device=self.device)
        self.teacher, self.student, self.layers = make_networks(args, weights, rows)
        cuda = self.device == "cuda"
        self.loss = Loss(self.teacher, self.layers, args.share, compiled=cuda and not args.plain, halves=cuda)

    def training(self, steps: int) -> Training:
        return Training(self.student, recipe_of(self.args, steps), loss=self.loss, fused=self.device == "cuda")

    def judge(self, held: torch.Tensor) -> dict[str, float]:
        return judge(self.student, self.loss, held, self.lengths, self.args.batch)

    def warm(self) -> None:
        """Take some steps on random tokens, which leave compiled code for another process."""
        size = self.args.length
        random = torch.randint(len(self.lengths), (self.args.batch * 4 * size,), device=self.device)
        batches = Conversations(random, torch.arange(0, len(random), size), length=size, batch=self.args.batch)
        training = self.training(MANY)
        for i in range(3):
            training.step(batches(i))
        self.judge(batches(0))

    def leave(self, training: Training, facts: dict[str, Any], name: str, log: dict[str, Any]) -> None:
        """Write a state to go on from, and start a process that writes its model."""
        out = self.args.out
        out.mkdir(parents=True, exist_ok=True)
        training.save(out / "run.pt")
        keep(out / f"{name}.pt", self.student, self.side, facts | log)
        script = str(Path(__file__).with_name("files.py"))
        subprocess.Popen([sys.executable, script, str(out / f"{name}.pt"), "--out", str(out / name)])

    def facts(self, batches: Conversations) -> dict[str, Any]:
        hidden = ("weights", "tokens", "out")
        return {
            "settings": {k: v for k, v in vars(self.args).items() if k not in hidden}, "layers": self.layers,
            "loss": self.loss.weights(), "parameters": sum(p.numel() for p in self.student.parameters()),
            "texts": len(batches.starts), "tokens": len(batches.tokens),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "tritium": tritium.__version__},
            "device": torch.cuda.get_device_name() if self.device == "cuda" else platform.machine(),
        }  # fmt: skip


def main() -> None:
    args, start = options(), time.perf_counter()
    run = Run(args)
    if args.tokens is None:
        run.warm()
        print(json.dumps({"warm after": round(time.perf_counter() - start, 1)}), flush=True)
        return
    batches, held = read_texts(args, run.device)
    facts, checkpoint = run.facts(batches) | {"before": run.judge(held)}, args.out / "run.pt"
    steps = args.steps or MANY
    if checkpoint.exists():
        steps = Recipe.from_json(torch.load(checkpoint, mmap=True, weights_only=True)["recipe"]).steps
    training = run.training(steps)
    if checkpoint.exists():
        training.load(checkpoint)
    facts["prepared_s"] = round(time.perf_counter() - start, 1)
    print(json.dumps({k: facts[k] for k in ("texts", "tokens", "before", "prepared_s")}), flush=True)
    plan = Plan(training, start + args.seconds, fixed=bool(args.steps))
    log = facts | train(args, plan, batches, partial(run.judge, held), partial(run.leave, training, facts))
    if plan.share < 1:
        run.leave(training, facts, "unfinished", log)
        return
    log["after"] = run.judge(held)
    print(json.dumps({k: log[k] for k in ("after", "done", "tokens_per_second", "seconds")}), flush=True)
    write_model(args.out, run.student.sizes, run.student.state_dict(), run.side, log)


if __name__ == "__main__":
    main()
