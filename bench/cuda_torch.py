"""Ternary layers inside PyTorch, of bench/cuda.py: what a call costs the host, and a stack of blocks beside `nn.Linear` in bf16.

The stack is two Llama-like blocks in eval; `replace_linears` is all that is done to it. It is timed as it is, and compiled whole
with CUDA graphs (`torch.compile(fullgraph=True, mode="reduce-overhead")`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from cuda_report import HOST_TIMES_MM, Goal, Options, Samples, Shown, Taken, share, text, times
from cuda_timing import host_in_turn, in_turn
from torch import nn
from torch.nn import functional

from tritium.perf.tables.table import Table
from tritium.torch import BitLinear, replace_linears

WIDTH, INNER, HEADS, BLOCKS = 2048, 5632, 16, 2
TOKENS, QUICK_TOKENS = (1, 128, 8192), (1, 128)
HOST_TOKENS = (1, 16, 128)
HOST_WIDTH = 4096
CALLS = 1000
LINEAR, OURS = "nn.Linear, bf16", "tritium"


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).view(1, -1, 3 * HEADS, WIDTH // HEADS).transpose(1, 2).chunk(3, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        h = self.second(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def stack(ternary: bool, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS))).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    return replace_linears(model).eval() if ternary else model


def _raw(taken: dict[str, Taken]) -> dict[str, Any]:
    return {name: t.us if isinstance(t, Samples) else t for name, t in taken.items()}


def stacks(options: Options) -> Iterator[Shown]:
    """The stack at some batches, eager and compiled."""
    models = {LINEAR: stack(False, options.seed), OURS: stack(True, options.seed)}
    rows, goals, record = [], list[Goal](), {}
    for way in ("eager", "compiled"):
        for tokens in QUICK_TOKENS if options.quick or way == "compiled" else TOKENS:
            x = torch.randn((tokens, WIDTH), device="cuda").bfloat16()
            run = models
            if way == "compiled":
                torch._dynamo.reset()
                run = {name: torch.compile(m, fullgraph=True, mode="reduce-overhead") for name, m in models.items()}
            with torch.inference_mode():
                for model in run.values():
                    for _ in range(4):
                        model(x)
                taken = in_turn({name: partial(model, x) for name, model in run.items()}, options.rounds)
            found = list(
                times(f"torch stack, {way}, {tokens} tokens: times nn.Linear", taken[LINEAR], taken[OURS], 1.0)
            )
            goals += found
            rows.append((way, str(tokens), text(taken[LINEAR]), text(taken[OURS]), f"{found[0].value:.2f}"))
            record[f"{way}, {tokens} tokens"] = _raw(taken)
    heads = ("way", "tokens", LINEAR, OURS, "times")
    yield Shown(
        Table(f"A stack of {BLOCKS} blocks in PyTorch: µs", heads, tuple(rows), frozenset(heads[1:])),
        tuple(goals),
        record,
    )


def host(options: Options) -> Iterator[Shown]:
    """What the host spends on a call that is not waited for."""
    torch.manual_seed(options.seed)
    plain = nn.Linear(HOST_WIDTH, HOST_WIDTH, bias=False).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    ours = BitLinear(HOST_WIDTH, HOST_WIDTH).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    w = plain.weight.t()
    rows, goals, record = [], list[Goal](), {}
    for tokens in HOST_TOKENS:
        x = torch.randn((tokens, HOST_WIDTH), device="cuda").bfloat16()
        calls = {
            "torch.mm": partial(torch.mm, x, w),
            LINEAR: partial(plain, x),
            OURS: partial(ours, x),
            "torch.ops.tritium": partial(torch.ops.tritium.bit_linear, x, ours.weight, None, None, 0, "token"),
        }
        with torch.inference_mode():
            taken = host_in_turn(calls, options.rounds, CALLS // 5)
        found = list(share(f"host, {tokens} tokens: times torch.mm", taken[OURS], taken["torch.mm"], HOST_TIMES_MM))
        goals += found
        rows.append((str(tokens), *(text(taken[name]) for name in calls), f"{found[0].value:.2f}"))
        record[f"{tokens} tokens"] = _raw(taken)
    heads = ("tokens", *calls, "times torch.mm")
    yield Shown(
        Table(f"Host time of a call, {HOST_WIDTH}×{HOST_WIDTH}: µs", heads, tuple(rows), frozenset(heads)),
        tuple(goals),
        record,
    )


def inside(options: Options) -> Iterator[Shown]:
    """Both parts."""
    yield from host(options)
    yield from stacks(options)
