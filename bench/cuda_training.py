"""Training steps of ternary layers, of bench/cuda.py: forward and backward of a 2B-shaped layer beside `nn.Linear`, and losses.

Products are those of BitNet 2B-4T: Q, K and V together, out, gate and up together, down. Each way is compiled whole, forward and
backward are captured as one CUDA graph, ways take turns. Forward results are compared with the formulas. Losses are those of a
small transformer over its first steps, trained in several ways from the same weights on the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from cuda_report import Goal, Options, Samples, Shown, Taken, ratio_text, text, times
from cuda_timing import captured, in_turn, tried
from torch import nn
from torch.nn import functional

import tritium as tt
from tritium.perf.tables.table import Table
from tritium.torch import BitLinear, bit_linears, replace_linears
from tritium.torch.steps import reference_forward

PRODUCTS = {"Q, K, V": (3840, 2560), "out": (2560, 2560), "gate, up": (13824, 2560), "down": (2560, 6912)}
TOKENS, QUICK_TOKENS = (4096, 8192), (4096,)
LINEAR, PLAIN, OURS, INT8 = "nn.Linear, bf16", "formulas in torch", "tritium", "tritium, int8 gradients"
LEAST = {OURS: 1.1, INT8: 1.3}  # times nn.Linear, of all four products together
WHOLE, MASTERS = "all four", "all four, f32 weights"
STEPS, QUICK_STEPS, SPAN = 200, 100, 50  # of the losses, and how many are averaged
VOCABULARY, WIDTH, INNER, HEADS, BLOCKS, LENGTH, BATCH = 256, 512, 1536, 8, 4, 256, 32
Autocast = Callable[[], AbstractContextManager[Any]]


# ---- times


class Products(nn.Module):
    """Some linear layers beside each other, each with tokens of its own."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]], way: str, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.parts = nn.ModuleList(nn.Linear(k, n, bias=False, device="cuda", dtype=dtype) for n, k in shapes.values())
        if way != LINEAR:
            replace_linears(self, gradients="int8" if way == INT8 else "bf16")
            for layer in bit_linears(self).values():
                layer.kernels = way != PLAIN

    def forward(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [part(x) for part, x in zip(self.parts, xs, strict=True)]


def step_of(model: Products, xs: list[torch.Tensor], dys: list[torch.Tensor], autocast: Autocast) -> Callable[[], None]:
    """Return a call that runs a compiled model forward and backward, with gradients of weights and tokens."""
    compiled = torch.compile(model, fullgraph=True, dynamic=False)

    def run() -> None:
        for tensor in (*model.parameters(), *xs):
            tensor.grad = None
        with autocast():
            ys = compiled(xs)
        torch.autograd.backward(ys, dys)

    return run


def timed(
    shapes: Mapping[str, tuple[int, int]], tokens: int, masters: bool, ways: tuple[str, ...], options: Options
) -> dict[str, Taken]:
    """Return microseconds of a training step of some products, each way."""
    torch._dynamo.reset()
    make = torch.Generator("cuda").manual_seed(options.seed)
    xs = [
        torch.randn((tokens, k), device="cuda", generator=make).bfloat16().requires_grad_() for _, k in shapes.values()
    ]
    dys = [torch.randn((tokens, n), device="cuda", generator=make).bfloat16() for n, _ in shapes.values()]
    autocast: Autocast = (lambda: torch.autocast("cuda", torch.bfloat16)) if masters else nullcontext
    dtype = torch.float32 if masters else torch.bfloat16
    arms = {}
    for way in ways:
        run = step_of(Products(shapes, way, dtype, options.seed), xs, dys, autocast)
        arms[way] = tried(lambda run=run: captured([run]))
    return in_turn(arms, options.rounds)


def wrong(n: int, k: int, tokens: int, seed: int) -> tuple[int, int]:
    """Return how many results of a forward pass were compared with the formulas in f32, and how many differ."""
    torch.manual_seed(seed)
    layer = BitLinear(k, n, device="cuda", dtype=torch.bfloat16)
    x = torch.randn((tokens, k), device="cuda").bfloat16()
    expected, _ = reference_forward(x, layer.weight.detach(), None, None, torch.bfloat16)
    y = layer(x).detach()
    return y.numel(), int((y != expected).sum())


def layers(options: Options) -> Iterator[Shown]:
    """The four products together, in bf16, and with weights in f32 under autocast; with the fewest tokens also each alone."""
    for tokens in QUICK_TOKENS if options.quick else TOKENS:
        cells, goals = [], list[Goal]()
        cases = {name: ({name: shape}, False) for name, shape in PRODUCTS.items()}
        together = {WHOLE: (PRODUCTS, False), MASTERS: (PRODUCTS, True)}
        for name, (shapes, masters) in (cases | together if tokens == TOKENS[0] else together).items():
            ways = (LINEAR, PLAIN, OURS, INT8) if name in (WHOLE, MASTERS) else (LINEAR, OURS, INT8)
            taken = timed(shapes, tokens, masters, ways, options)
            checks = [wrong(n, k, tokens, options.seed) for n, k in shapes.values()] if name in PRODUCTS else []
            checked, different = (sum(check[i] for check in checks) for i in (0, 1))
            if name == WHOLE:
                for way, least in LEAST.items():
                    goals += times(
                        f"training, {tokens} tokens, {way}: times nn.Linear", taken[LINEAR], taken[way], least
                    )
            goals += [
                Goal(f"training, {name}, {tokens} tokens: wrong", different, different, different, 0, lower=True)
            ] * bool(checks)
            us = {way: t.us if isinstance(t, Samples) else t for way, t in taken.items()}
            cells.append({"tokens": tokens, "case": _case(name), "us": us, "checked": checked, "wrong": different})
            torch.cuda.empty_cache()
        yield Shown(_table(tokens, cells), tuple(goals), {"cells": cells})


def _case(name: str) -> str:
    return f"{name}, {PRODUCTS[name][0]}×{PRODUCTS[name][1]}" if name in PRODUCTS else name


def _table(tokens: int, cells: list[dict[str, Any]]) -> Table:
    ways = (LINEAR, PLAIN, OURS, INT8)
    heads = ("product", *ways, "times", "times, int8")
    rows = []
    for cell in cells:
        taken: dict[str, Taken] = {way: t if isinstance(t, str) else Samples(tuple(t)) for way, t in cell["us"].items()}
        ratios = (ratio_text(taken[LINEAR], taken[way]) for way in (OURS, INT8))
        rows.append((cell["case"], *(text(taken.get(way, "-")) for way in ways), *ratios))
    return Table(f"Forward and backward, {tokens} tokens: µs", heads, tuple(rows), frozenset(heads[1:]))


# ---- losses


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up, self.down = nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.qkv(self.first(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.second(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    body = [Block() for _ in range(BLOCKS)]
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *body, nn.RMSNorm(WIDTH), head).cuda()


def source() -> torch.Tensor:
    """Return the bytes of the package's own files as text that is always there."""
    files = sorted(Path(tt.__file__).parent.rglob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long().cuda()


def losses(model: nn.Module, data: torch.Tensor, steps: int, seed: int, autocast: Autocast) -> list[float]:
    """Return the loss of every step of AdamW."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 20, 1.0))
    found = []
    for _ in range(steps):
        starts = torch.randint(data.numel() - LENGTH - 1, (BATCH,), generator=draw).tolist()
        batch = torch.stack([data[i : i + LENGTH + 1] for i in starts])
        with autocast():
            logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        found.append(loss.detach())
    return torch.stack(found).tolist()


def curves(options: Options) -> Iterator[Shown]:
    """Losses of the same network: linear layers, formulas in torch in bf16 and in f32, and the kernels."""
    start, data, steps = network(options.seed), source(), QUICK_STEPS if options.quick else STEPS
    in_bf16: Autocast = lambda: torch.autocast("cuda", torch.bfloat16)
    in_f32 = f"{PLAIN}, f32"
    found = {}
    for way in (LINEAR, PLAIN, in_f32, OURS, INT8):
        model = copy.deepcopy(start)
        if way != LINEAR:
            head = str(len(model) - 1)
            replace_linears(model, skip=(head,), gradients="int8" if way == INT8 else "bf16")
            for layer in bit_linears(model).values():
                layer.kernels = way in (OURS, INT8)
        found[way] = losses(model, data, steps, options.seed, nullcontext if way == in_f32 else in_bf16)
    rows = [
        (f"{low + 1}–{low + SPAN}", *(f"{fmean(loss[low : low + SPAN]):.4f}" for loss in found.values()))
        for low in range(0, steps, SPAN)
    ]
    heads = ("steps", *found)
    title = f"Losses of a transformer of {BLOCKS} blocks of {WIDTH}, {BATCH * LENGTH} tokens a step, in nats a byte"
    yield Shown(Table(title, heads, tuple(rows), frozenset(heads)), (), {"losses": found, "span": SPAN})


def training(options: Options) -> Iterator[Shown]:
    """Both parts."""
    yield from layers(options)
    yield from curves(options)
