"""A decoder of PyTorch that is small enough to be trained in a test, with the names of transformers' Llama."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

HIDDEN, INNER, HEADS, VOCAB = 32, 64, 2, 32


class Attention(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(hidden, hidden, bias=False))

    def forward(self, x: Any) -> Any:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.self_attn, self.mlp, self.dropout = Attention(hidden), MLP(hidden), nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x)))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Network(nn.Module):
    """Tokens [batch, time] in, logits out; it knows no positions, which these tests do not need."""

    def __init__(self, seed: int = 0, layers: int = 2, dropout: float = 0.0, hidden: int = HIDDEN) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(VOCAB, hidden), "layers": nn.ModuleList(Layer(hidden, dropout) for _ in range(layers)),
            "norm": nn.RMSNorm(hidden),
        })  # fmt: skip
        self.lm_head = nn.Linear(hidden, VOCAB, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.model["embed_tokens"](ids)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))


def text(seed: int = 0, length: int = 4000) -> Any:
    """Return tokens of a chain in which each is followed by one of three."""
    generator = torch.Generator().manual_seed(seed)
    ways = torch.randint(VOCAB, (VOCAB, 3), generator=torch.Generator().manual_seed(7))
    picks, tokens = torch.randint(3, (length,), generator=generator).tolist(), [0]
    for pick in picks:
        tokens.append(int(ways[tokens[-1], pick]))
    return torch.tensor(tokens)
