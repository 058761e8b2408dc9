"""A decoder of BitNet-2B's shape in the manner of gpt-fast, of bench/cuda.py: bf16 and int4 weight-only beside ours, one token.

The rivals have a static KV cache, are compiled by torch.compile with the settings of gpt-fast and replayed as one CUDA graph; the
layers share one compilation, which takes minutes less: no kernel spans two of them. Weights are random. int4 is `_weight_int4pack_mm`
with groups of 128 columns for every product, the head included, as gpt-fast has it: half of the bytes of our int8 head. The same token
is decoded at the same context again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from cuda_models import decode_step, random_model
from cuda_report import OURS, Options, Samples, Shown, ratio_text, text
from cuda_timing import Replay, captured, in_turn, tried
from make_model import PRESETS, Shape
from torch.nn import functional

from tritium.perf.tables.table import Table

HELD = 128  # tokens of context
GROUP, INNER = 128, 8  # of int4
EPS = 1e-5
BF16, INT4 = "gpt-fast's way, bf16", "gpt-fast's way, int4"


class Dense(torch.nn.Module):
    """A product with weights of bf16."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.register_buffer(
            "weight", torch.randn((rows, columns), device="cuda", dtype=torch.bfloat16) * columns**-0.5
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class Int4(torch.nn.Module):
    """A product with weights of 4 bits and a scale and a zero point for each GROUP of columns."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        nibbles = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device="cuda")
        self.rows = rows
        self.register_buffer("weight", torch.ops.aten._convert_weight_to_int4pack(nibbles, INNER))
        scales = torch.full((columns // GROUP, rows, 2), 0.2 * columns**-0.5, dtype=torch.bfloat16, device="cuda")
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        y = torch.ops.aten._weight_int4pack_mm(flat, self.weight, GROUP, self.scales)
        return y.reshape(*x.shape[:-1], self.rows)


class Norm(torch.nn.Module):
    """A root-mean-square norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(size, device="cuda", dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS)).type_as(x) * self.weight


class Block(torch.nn.Module):
    """A layer: attention over a static cache, and an MLP with a gate of relu²; a norm before every product."""

    def __init__(self, s: Shape, linear: Callable[[int, int], torch.nn.Module]) -> None:
        super().__init__()
        self.s = s
        self.qkv = linear((s.heads + 2 * s.kv_heads) * s.head, s.hidden)
        self.out, self.down = linear(s.hidden, s.heads * s.head), linear(s.hidden, s.intermediate)
        self.gate_up = linear(2 * s.intermediate, s.hidden)
        self.norms = torch.nn.ModuleList(map(Norm, (s.hidden, s.heads * s.head, s.hidden, s.intermediate)))
        cache = torch.zeros((2, 1, s.kv_heads, HELD + 1, s.head), device="cuda", dtype=torch.bfloat16)
        self.register_buffer("cache", cache)

    def forward(self, x: torch.Tensor, position: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        s = self.s
        joined = self.qkv(self.norms[0](x)).view(1, 1, -1, s.head).transpose(1, 2)
        q, k, v = joined.split((s.heads, s.kv_heads, s.kv_heads), 1)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        self.cache[0].index_copy_(2, position, k)
        self.cache[1].index_copy_(2, position, v)
        sees = (torch.arange(HELD + 1, device="cuda") <= position)[None, None, None]
        y = functional.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=sees, enable_gqa=True)
        x = x + self.out(self.norms[1](y.transpose(1, 2).reshape(1, 1, -1)))
        gate, up = self.gate_up(self.norms[2](x)).chunk(2, -1)
        return x + self.down(self.norms[3](functional.relu(gate).square() * up))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return heads with their pairs rotated."""
    a, z = x.float().chunk(2, -1)
    return torch.cat((a * cos - z * sin, z * cos + a * sin), -1).type_as(x)


class Last(torch.nn.Module):
    """The last norm and the head; returns the likeliest token."""

    def __init__(self, s: Shape, linear: Callable[[int, int], torch.nn.Module]) -> None:
        super().__init__()
        self.norm, self.head = Norm(s.hidden), linear(s.vocab, s.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))[:, -1].argmax(-1)


class Decoder(torch.nn.Module):
    """The embedding, all layers and the head."""

    def __init__(self, s: Shape, linear: Callable[[int, int], torch.nn.Module]) -> None:
        super().__init__()
        table = torch.randn((s.vocab, s.hidden), device="cuda", dtype=torch.bfloat16)
        self.register_buffer("embedding", table)
        self.blocks = torch.nn.ModuleList(Block(s, linear) for _ in range(s.layers))
        self.last = Last(s, linear)
        steps = torch.arange(s.head // 2, device="cuda") / (s.head // 2)
        angles = torch.outer(torch.arange(HELD + 1, device="cuda").float(), 500000.0**-steps)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.embedding[token][:, None]
        cos, sin = self.cos[position], self.sin[position]
        for block in self.blocks:
            x = block(x, position, cos, sin)
        return self.last(x)


def rival(s: Shape, linear: Callable[[int, int], torch.nn.Module]) -> Replay:
    """Return a compiled decode step of one token as a graph."""
    inductor = torch._inductor.config
    inductor.coordinate_descent_tuning, inductor.triton.unique_kernel_names = True, True
    with torch.inference_mode():
        step = Decoder(s, linear)
        for part in (*step.blocks, step.last):
            part.compile(fullgraph=True, dynamic=False)
        token = torch.ones(1, dtype=torch.int64, device="cuda")
        position = torch.full((1,), HELD, dtype=torch.int64, device="cuda")
        return captured([lambda: step(token, position)])


def rivals(options: Options) -> Iterator[Shown]:
    shape = PRESETS["bitnet-2b-4t"].shape
    ours = random_model("bitnet-2b-4t", options.seed)
    arms: dict[str, Any] = {OURS: decode_step(ours, 1, HELD)}
    for name, linear in ((BF16, Dense), (INT4, Int4)):
        arms[name] = tried(lambda linear=linear: rival(shape, linear))
    taken = in_turn(arms, options.rounds)
    rows = tuple((name, text(t), ratio_text(t, taken[OURS])) for name, t in taken.items())
    heads = ("way", "µs a token", "× tritium")
    below = (
        "",
        f"One token at {HELD} tokens of context, by the device's events. Heads: ours int8, the others as their products.",
    )
    table = Table("A decode step of BitNet-2B's shape", heads, rows, frozenset(heads[1:]), below)
    yield Shown(table, (), {name: t.us if isinstance(t, Samples) else t for name, t in taken.items()})
