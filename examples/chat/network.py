"""SmolLM2 as a network of PyTorch, with the module names of transformers' Llama: the teacher, and the student before it is prepared.

Knows nothing of training. The vocabulary is cut to the rows that a list names; ids are then places in this list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

HEAD_DIM = 64


@dataclass(frozen=True)
class Sizes:
    """The sizes of SmolLM2-135M but for the vocabulary and the layers, which are cut."""

    vocab: int
    layers: int = 30
    hidden: int = 576
    intermediate: int = 1536
    heads: int = 9
    kv_heads: int = 3
    context: int = 8192
    theta: float = 100000.0

    def config(self) -> dict[str, Any]:
        """Return config.json in the words of transformers."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": self.vocab,
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "rms_norm_eps": 1e-5, "head_dim": HEAD_DIM,
            "max_position_embeddings": self.context, "rope_theta": self.theta, "tie_word_embeddings": True,
            "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
        }  # fmt: skip


class Attention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.q_proj = nn.Linear(s.hidden, s.heads * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(s.heads * HEAD_DIM, s.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (rotate(part, cos, sin).to(v.dtype) for part in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.intermediate, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.intermediate, bias=False)
        self.down_proj = nn.Linear(s.intermediate, s.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden, eps=1e-5)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden, eps=1e-5)
        self.mlp = MLP(s)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Tokens [batch, time] in, logits [batch, time, vocab] out; `states` returns what layers pass on as well."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.sizes, self.config = s, s.config()
        self.kept: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(s.vocab, s.hidden),
            "layers": nn.ModuleList(Layer(s) for _ in range(s.layers)),
            "norm": nn.RMSNorm(s.hidden, eps=1e-5),
        })  # fmt: skip

    def angles(self, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of RoPE's angles [length, half of a head]."""
        if (length, device) not in self.kept:
            turn = self.sizes.theta ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
            angles = torch.outer(torch.arange(length, dtype=torch.float64), turn)
            self.kept[length, device] = angles.cos().float().to(device), angles.sin().float().to(device)
        return self.kept[length, device]

    def states(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the last states, normed, and what each layer passes on."""
        x = functional.embedding(ids, self.model["embed_tokens"].weight).float()
        cos, sin = self.angles(ids.shape[1], ids.device)
        passed = []
        for layer in self.model["layers"]:
            x = layer(x, cos, sin)
            passed.append(x)
        return self.model["norm"](x), passed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.states(ids)[0], self.model["embed_tokens"].weight)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply RoPE, the halves of a head as pairs."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@torch.no_grad()
def network_of(weights: dict[str, torch.Tensor], rows: Sequence[int], layers: Sequence[int]) -> Llama:
    """Return the network of some rows of the vocabulary and some layers of SmolLM2's weights, in f32."""
    network = Llama(Sizes(vocab=len(rows), layers=len(layers))).to(weights["model.norm.weight"].device)
    for name, parameter in network.named_parameters():
        parts = name.split(".")
        if parts[1] == "layers":
            parts[2] = str(layers[int(parts[2])])
        numbers = weights[".".join(parts)]
        parameter.copy_(numbers[torch.tensor(rows, device=numbers.device)] if "embed_tokens" in name else numbers)
    return network
