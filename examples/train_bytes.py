"""Trains a byte-level BitNet b1.58 model of 3.2 million parameters on one text, and exports it.

Knows nothing of a tokenizer: a token is a byte, and byte 0 stands before each chapter.

    apt-get install bible-kjv bible-kjv-text                 # the King James Bible, public domain, 4.4 MB
    python examples/train_bytes.py --out kjv                 # trains, prints samples, writes kjv/
    python examples/train_bytes.py --float                   # the same network with plain f32 layers, to compare
    python examples/train_bytes.py --group 128 --activations float --out g128    # weight-only: a scale for each 128 columns
    python examples/train_bytes.py --text book.txt --out x   # any other text
    python examples/train_bytes.py --teacher kjv --out y     # learns from a network that this script wrote, and from the text

The recipe is `Recipe.from_scratch`, BitNet b1.58's: latent weights in f32, straight-through estimators, AdamW with betas 0.9 and 0.95, no
moving average of weights, and two stages: the learning rate falls from its peak to a half; at half-time it drops to a third and
falls to nothing, and weight decay goes from 0.1 to 0. With a teacher, the target is a mixture of the next byte and the teacher's
distribution of it, which is computed once for each byte of the text.

The last 5 % of the text are never trained on. Bits per byte are measured there: windows of the context's length, half of
it apart, and each byte is judged once, with at least half a context before it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import tritium
from tritium.torch import (
    BitLinear,
    Distillation,
    Recipe,
    Schedule,
    apply_schedules,
    byte_tokenizer,
    export,
    logit_loss,
    make_optimizer,
)

BREAK = b"\0"  # stands before each chapter, and tells the model that the one before has ended
HELD_OUT = 0.05
PROMPTS = ("In the beginning", "And he said unto them,", "Blessed are", "The LORD is my")
GET_TEXT = "Install it (apt-get install bible-kjv bible-kjv-text), or give a file with --text."

# ---- the text

BOOKS = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|1 Samuel|2 Samuel|1 Kings|2 Kings|1 Chronicles|"
    "2 Chronicles|Ezra|Nehemiah|Esther|Job|Psalm|Proverbs|Ecclesiastes|Song of Solomon|Isaiah|Jeremiah|Lamentations|"
    "Ezekiel|Daniel|Hosea|Joel|Amos|Obadiah|Jonah|Micah|Nahum|Habakkuk|Zephaniah|Haggai|Zechariah|Malachi|Matthew|Mark|"
    "Luke|John|Acts|Romans|1 Corinthians|2 Corinthians|Galatians|Ephesians|Philippians|Colossians|1 Thessalonians|"
    "2 Thessalonians|1 Timothy|2 Timothy|Titus|Philemon|Hebrews|James|1 Peter|2 Peter|1 John|2 John|3 John|Jude|Revelation"
).split("|")
VERSE = re.compile(r"([1-3]?[A-Za-z]+)(\d+):(\d+) (.*)")


def chapters(lines: list[str]) -> str:
    """The output of `bible -f` as chapters: a line of the book's name and the chapter's number, then one line a verse."""
    out: list[str] = []
    book, last = -1, ("", "")
    for line in lines:
        found = VERSE.fullmatch(line.rstrip())
        if found is None:
            raise SystemExit(f"The line {line[:60]!r} is no verse as `bible -f` prints them.")
        short, chapter, _, verse = found.groups()
        book += short != last[0]
        if (short, chapter) != last:
            out.append(f"\0{BOOKS[book]} {chapter}")
        last = short, chapter
        out.append(verse)
    return "\n".join(out) + "\n"


def read_text(file: Path | None) -> bytes:
    """The bytes to learn: the file as it is, or the Bible of Debian's package; lines of `bible -f` become chapters."""
    if file is None:
        program = shutil.which("bible")
        if program is None:
            raise SystemExit(f"The text, Debian's package bible-kjv-text, is not here. {GET_TEXT}")
        text = subprocess.run([program, "-f", "Gen1:1-Rev22:21"], capture_output=True, text=True, check=True).stdout
    else:
        text = file.read_text(encoding="utf-8")
    if text.startswith("Ge1:1 "):
        text = chapters(text.splitlines())
    return (text if text.startswith("\0") else "\0" + text.replace("\0", "")).encode()


def split(text: bytes) -> tuple[bytes, bytes]:
    """What is learned, and the last 5 %, from the start of a chapter (or of a line) on."""
    near = int(len(text) * (1 - HELD_OUT))
    for mark in (BREAK, b"\n"):
        at = text.find(mark, near)
        if 0 < at < len(text) - 1:
            near = at
            break
    return text[:near], text[near:]


# ---- the network; its modules have the names of transformers' BitNetForCausalLM, so that export and every reader know them


@dataclass(frozen=True)
class Shape:
    """The sizes. Rows of all weights are multiples of 256, which every ternary format can hold."""

    hidden: int = 256
    intermediate: int = 768
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    context: int = 256
    rope_theta: float = 10000.0
    vocab: int = 256

    def config(self) -> dict[str, Any]:
        """config.json, in the words of transformers."""
        return {
            "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2", "vocab_size": self.vocab,
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "rms_norm_eps": 1e-5,
            "max_position_embeddings": self.context, "rope_theta": self.rope_theta, "tie_word_embeddings": True,
            "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float32",
        }  # fmt: skip


class Attention(nn.Module):
    def __init__(self, s: Shape, linear: Callable[..., nn.Linear]) -> None:
        super().__init__()
        self.size = s.hidden // s.heads
        self.q_proj = linear(s.hidden, s.hidden, bias=False)
        self.k_proj = linear(s.hidden, s.kv_heads * self.size, bias=False)
        self.v_proj = linear(s.hidden, s.kv_heads * self.size, bias=False)
        self.o_proj = linear(s.hidden, s.hidden, bias=False)
        self.attn_sub_norm = nn.RMSNorm(s.hidden, eps=1e-5)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True, enable_gqa=True)
        return self.o_proj(self.attn_sub_norm(y.transpose(1, 2).flatten(2).float()))


class MLP(nn.Module):
    def __init__(self, s: Shape, linear: Callable[..., nn.Linear]) -> None:
        super().__init__()
        self.gate_proj = linear(s.hidden, s.intermediate, bias=False)
        self.up_proj = linear(s.hidden, s.intermediate, bias=False)
        self.down_proj = linear(s.intermediate, s.hidden, bias=False)
        self.ffn_sub_norm = nn.RMSNorm(s.intermediate, eps=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.ffn_sub_norm(functional.relu(self.gate_proj(x).float()).square() * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, s: Shape, linear: Callable[..., nn.Linear], dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden, eps=1e-5)
        self.self_attn = Attention(s, linear)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden, eps=1e-5)
        self.mlp = MLP(s, linear)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Network(nn.Module):
    """Tokens [batch, time] in, logits [batch, time, vocab] out."""

    def __init__(self, s: Shape, *, linear: Callable[..., nn.Linear] = BitLinear, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = s.config()
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(s.vocab, s.hidden),
            "layers": nn.ModuleList(Layer(s, linear, dropout) for _ in range(s.layers)),
            "norm": nn.RMSNorm(s.hidden, eps=1e-5),
        })  # fmt: skip
        turn = s.rope_theta ** (-torch.arange(0, s.hidden // s.heads, 2) / (s.hidden // s.heads))
        angles = torch.outer(torch.arange(s.context), turn)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for m in self.modules():
            if isinstance(m, nn.Linear | nn.Embedding):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        table = self.model["embed_tokens"].weight
        x = functional.embedding(ids, table)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.model["layers"]:
            x = layer(x, cos, sin)
        return functional.linear(self.model["norm"](x), table)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE, the halves of a head as pairs."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


# ---- training


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Return the recipe of a run: `Recipe.from_scratch` with its options, and with a teacher a distillation."""
    rate = Schedule(((0.0, 0.0), (args.warm, 1 - args.warm), (0.5, 0.5), (0.5, 1 / 3), (1.0, 0.0)))
    decay = Schedule(((0.0, args.weight_decay), (0.5, args.weight_decay), (0.5, 0.0)))
    soft = Distillation(text=1 - args.soft, logits=args.soft, temperature=1.0, relations=0.0) if args.teacher else None
    form = {} if args.float else {"group": args.group, "activations": args.activations}
    return Recipe.from_scratch(
        args.steps, learning_rate=args.lr, rate=rate, weight_decay=decay, distillation=soft, **form
    )


def windows(count: int, context: int, batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield where random stretches of a text begin that are one byte longer than the context, for ever."""
    while True:
        yield torch.randint(count - context, (batch, 1), generator=generator)


def loss_of(logits: torch.Tensor, following: torch.Tensor, soft: torch.Tensor | None, recipe: Recipe) -> torch.Tensor:
    """Return the loss of a batch: on the text, and where a teacher has labelled it, on its distributions."""
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())
    if soft is None or recipe.distillation is None:
        return loss
    return recipe.distillation.text * loss + recipe.distillation.logits * logit_loss(logits, soft)


def read_network(folder: Path, device: str) -> Network:
    """Return a network that this script wrote."""
    settings = json.loads((folder / "log.json").read_text(encoding="utf-8"))["settings"]
    shape = Shape(**{name: settings[name] for name in asdict(Shape())})
    ternary = partial(BitLinear, group=settings["group"], activations=settings["activations"])
    network = Network(shape, linear=nn.Linear if settings["float"] else ternary)
    network.load_state_dict(torch.load(folder / "weights.pt", map_location="cpu", weights_only=True))
    return network.to(device).eval()


@torch.no_grad()
def soft_labels(teacher: nn.Module, data: torch.Tensor, context: int, batch: int = 128) -> torch.Tensor:
    """Return the teacher's log-probabilities [bytes, 256] of each byte but the first, after at least half a context where there is one."""
    half = context // 2
    starts = torch.arange(0, len(data) - context, half)
    starts = torch.cat([starts, torch.tensor([len(data) - context - 1])])
    labels = torch.zeros(len(data), 256, dtype=torch.bfloat16, device=data.device)
    for part in starts.split(batch):
        places = (part[:, None] + torch.arange(context + 1)).to(data.device)
        with torch.autocast(data.device.type, torch.bfloat16, enabled=data.is_cuda):
            logits = teacher(data[places[:, :-1]].long())
        logs = logits.float().log_softmax(-1).to(labels.dtype)
        labels[places[:, half + 1 :].flatten()] = logs[:, half:].flatten(0, 1)
        if part[0] == 0:
            labels[1 : half + 1] = logs[0, :half]
    return labels


@torch.no_grad()
def bits_per_byte(model: nn.Module, data: torch.Tensor, context: int, most: int = 0, batch: int = 32) -> float:
    """Over all of the data, or over about `most` bytes of it in pieces spread evenly. Each is judged with half a context."""
    half = context // 2
    starts = torch.arange(0, len(data) - context, half)
    if most and len(starts) * half > most:
        starts = starts[torch.linspace(0, len(starts) - 1, most // half).long()]
    was, total, count = model.training, 0.0, 0
    model.eval()
    for part in starts.split(batch):
        ids = data[(part[:, None] + torch.arange(context + 1)).to(data.device)].long()
        loss = functional.cross_entropy(
            model(ids[:, :-1]).float()[:, half:].flatten(0, 1), ids[:, half + 1 :].flatten(), reduction="sum"
        )
        total, count = total + loss.item(), count + ids[:, half + 1 :].numel()
    model.train(was)
    return total / count / math.log(2)


@torch.no_grad()
def sample(
    model: nn.Module, prompt: str, length: int, context: int, generator: torch.Generator, temperature: float = 0.7
) -> str:
    """What the model writes after a prompt, until a chapter ends."""
    model.eval()
    device = next(model.parameters()).device
    ids = list(prompt.encode())
    for _ in range(length):
        logits = model(torch.tensor([ids[-context:]], device=device))[0, -1].float().cpu()
        picked = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator))
        if picked == BREAK[0]:
            break
        ids.append(picked)
    return bytes(ids).decode(errors="replace")


def gradients_of(
    args: argparse.Namespace, model: Network, learn: torch.Tensor, recipe: Recipe
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what leaves the gradients of windows in the parameters and returns their loss; compiled for CUDA it is one graph."""
    device = learn.device
    run = torch.compile(model) if args.compile else model
    labels = soft_labels(read_network(args.teacher, args.device), learn, args.context) if args.teacher else None
    reach = torch.arange(args.context + 1, device=device)

    def compute(starts: torch.Tensor) -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        places = starts.to(device) + reach
        ids = learn[places].long()
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = run(ids[:, :-1])
        loss = loss_of(logits, ids[:, 1:], None if labels is None else labels[places[:, 1:]], recipe)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        return loss.detach()

    return Captured(compute, args.batch) if args.compile and learn.is_cuda else compute


class Captured:
    """A computation of the gradients as a CUDA graph: the kernels of a small network take less time than their launches."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor], batch: int) -> None:
        self.compute = compute  # stays, with the tensors that the graph reads
        self.starts = torch.zeros(batch, 1, dtype=torch.int64, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and fills what is allocated once
                compute(self.starts)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = compute(self.starts)

    def __call__(self, starts: torch.Tensor) -> torch.Tensor:
        self.starts.copy_(starts.pin_memory(), non_blocking=True)
        self.graph.replay()
        return self.loss


def train(args: argparse.Namespace, model: Network, learn: torch.Tensor, held: torch.Tensor) -> list[dict[str, float]]:
    """Train in place; return the loss curve: a row every `--log-every` steps, with bits per byte at some of them."""
    recipe = recipe_of(args)
    optimizer = make_optimizer(model, recipe, fused=learn.is_cuda)
    apply_schedules(model, optimizer, recipe, 0.0)
    compute = gradients_of(args, model, learn, recipe)
    source = windows(len(learn), args.context, args.batch, torch.Generator().manual_seed(args.seed))
    curve: list[dict[str, float]] = []
    start, mean, done, step = time.perf_counter(), None, 0.0, 0
    while step < args.steps and done < 1:
        elapsed = time.perf_counter() - start
        done = max(step / args.steps, elapsed / (args.minutes * 60) if args.minutes else 0)
        rate = apply_schedules(model, optimizer, recipe, min(done, 1.0))["learning_rate"]
        loss = compute(next(source))
        optimizer.step()
        step += 1
        mean = loss.clone() if mean is None else torch.lerp(mean, loss, 0.05)
        if step % 50 == 0:
            mean.item()  # the clock is the device's
        if step % args.log_every == 0 or step == args.steps or done >= 1:
            row = {"step": step, "loss": round(mean.item(), 4), "lr": round(rate, 6)}
            if step % (args.log_every * args.eval_every) == 0:
                row["val_bits_per_byte"] = round(bits_per_byte(model, held, args.context, most=1 << 15), 4)
            row["seconds"] = round(time.perf_counter() - start, 1)
            curve.append(row)
            print(json.dumps(row), flush=True)
    return curve


# ---- the whole


def options(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="On a GPU the defaults are 4000 steps of 128 windows and take minutes. On a CPU they are 1500 steps of 24 "
        "windows, within an hour on 2 cores; the model is worse then. The same seed gives the same model on the same kind of "
        "device, unless --minutes cuts the training by the clock.",
    )
    add = parser.add_argument
    add("--text", type=Path, help="a UTF-8 text file (default: what Debian's bible-kjv-text holds)")
    add(
        "--out",
        type=Path,
        help="write the model here: hf/, model.i2_s.gguf (with groups model.q2_0.gguf), weights.pt, log.json",
    )
    add("--float", action="store_true", help="plain f32 linear layers; nothing is exported but weights.pt and log.json")
    add("--group", type=int, default=0, help="columns that share a scale; 0 for one scale for each matrix (0)")
    add(
        "--activations",
        choices=("token", "group", "float"),
        default="token",
        help="int8 by token or group, or floats (token)",
    )
    add(
        "--teacher",
        type=Path,
        help="a folder that --out wrote: learn from its network's distributions too; its context is at least as long",
    )
    add("--soft", type=float, default=0.5, help="the weight of the teacher's distributions beside the text (0.5)")
    add("--steps", type=int, help="steps of training")
    add("--batch", type=int, help="windows in a step")
    add(
        "--minutes", type=float, default=0.0, help="end after so long; the schedule follows the clock where it is ahead"
    )
    add("--lr", type=float, help="the peak of the learning rate (0.0007 on a GPU; 0.001 on a CPU and with --float)")
    add("--warm", type=float, default=0.02, help="the share of the training in which the learning rate rises (0.02)")
    add("--weight-decay", type=float, default=0.1, help="in the first half; the second has none (0.1)")
    add(
        "--dropout",
        type=float,
        help="on what attention and MLP add (0.1 on a GPU, where the text is read 30 times; 0 on a CPU)",
    )
    add("--seed", type=int, default=0)
    add("--device", default="auto", help="auto, cpu, cuda or mps")
    add("--compile", action=argparse.BooleanOptionalAction, help="torch.compile the network (on by default on CUDA)")
    add("--bf16", action=argparse.BooleanOptionalAction, help="products in bf16 while training (on by default on CUDA)")
    add("--log-every", type=int, default=50, help="steps between two lines of the log (50)")
    add("--eval-every", type=int, default=4, help="lines of the log between two evaluations (4)")
    add("--samples", type=int, default=300, help="bytes of each sample that is printed; 0 for none (300)")
    for name, size in asdict(Shape()).items():
        add(f"--{name.replace('_', '-')}", type=type(size), default=size, help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    cuda = args.device.startswith("cuda")
    defaults = {
        "steps": 4000 if cuda else 1500, "batch": 128 if cuda else 24, "lr": 7e-4 if cuda and not args.float else 1e-3,
        "dropout": 0.1 if cuda else 0.0, "compile": cuda, "bf16": cuda,
    }  # fmt: skip
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def tensor_of(data: bytes, device: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def main(given: list[str] | None = None) -> dict[str, Any]:
    args = options(given)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")  # TF32 holds whole numbers up to 127: ternary products stay exact
    text = read_text(args.text)
    learn, held = (tensor_of(part, args.device) for part in split(text))
    shape = Shape(**{name: getattr(args, name) for name in asdict(Shape())})
    linear = nn.Linear if args.float else partial(BitLinear, group=args.group, activations=args.activations)
    model = Network(shape, linear=linear, dropout=args.dropout).to(args.device)
    count = sum(p.numel() for p in model.parameters())
    print(
        json.dumps(
            {"parameters": count, "train_bytes": len(learn), "held_out_bytes": len(held), "device": args.device}
        ),
        flush=True,
    )
    start = time.perf_counter()
    curve = train(args, model, learn, held)
    seconds = time.perf_counter() - start
    torch.set_float32_matmul_precision("highest")
    bits = {
        "held_out": bits_per_byte(model, held, args.context),
        "train": bits_per_byte(model, learn, args.context, most=len(held)),
    }
    generator = torch.Generator().manual_seed(args.seed)
    samples = [sample(model, p, args.samples, args.context, generator) for p in PROMPTS if args.samples]
    log = {
        "schema": 1, "kind": "float" if args.float else "ternary", "parameters": count, "bits_per_byte": bits, "seconds": round(seconds, 1),
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("out", "text", "teacher")},
        "recipe": json.loads(recipe_of(args).to_json()), "teacher": args.teacher.name if args.teacher else None,
        "text": {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest(), "train": len(learn), "held_out": len(held)},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "tritium": tritium.__version__},
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.machine(),
        "curve": curve[:: max(len(curve) // 200, 1)], "samples": samples,
    }  # fmt: skip
    print(json.dumps({"bits_per_byte": bits, "seconds": round(seconds, 1)}))
    print("\n\n".join(samples))
    if args.out:
        write(args.out, model, log)
    return log


def write(out: Path, model: Network, log: dict[str, Any]) -> None:
    """The weights first: whatever fails after them, the training is not lost."""
    out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), out / "weights.pt")
    (out / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    if log["kind"] == "ternary":
        grouped = bool(log["settings"]["group"])
        name, form = ("model.q2_0.gguf", "q2_0") if grouped else ("model.i2_s.gguf", "i2_s")
        export(model, out / "hf", format="f16" if grouped else "hf", tokenizer=byte_tokenizer(), overwrite=True)
        export(model, out / name, format=form, tokenizer=byte_tokenizer(), overwrite=True)


if __name__ == "__main__":
    sys.exit(main() and None)
