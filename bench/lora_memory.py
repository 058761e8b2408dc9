"""Counts the memory that training LoRA over packed ternary weights takes: every tensor that is alive, at its largest moment.

The network has random weights and the shape of BitNet b1.58 2B4T unless told otherwise: ternary layers of two bits a weight, one bf16
table that is embedding and head, adapters and the optimiser's state in bf16, blocks that are computed again in the backward pass, and a
head whose logits exist for some tokens at a time. Without --real no number is computed: tensors have sizes alone.

    python bench/lora_memory.py                    computed, in seconds
    python bench/lora_memory.py --real             one step on the CPU, with the peak of the process beside it
    python bench/lora_memory.py --real --device cuda
"""

from __future__ import annotations

import argparse
import contextlib
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tritium.torch import PackedLinear, Recipe, add_adapters, checkpoint_blocks, head_loss, make_optimizer

SHAPE = {
    "layers": 30, "hidden": 2560, "intermediate": 6912, "heads": 20, "kv_heads": 5, "vocab": 128256, "rank": 8, "tokens": 512, "chunk": 64,
}  # fmt: skip
BF16 = torch.bfloat16


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that are alive, and their largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def packed(rows: int, columns: int) -> PackedLinear:
    """Return a layer of random ternary weights."""
    t = torch.randint(-1, 2, (rows, columns), dtype=torch.int8)
    return PackedLinear(t, torch.tensor(1.0 / columns**0.5)).requires_grad_(False)


class Attention(nn.Module):
    def __init__(self, s: argparse.Namespace) -> None:
        super().__init__()
        self.size = s.hidden // s.heads
        self.q_proj, self.o_proj = packed(s.hidden, s.hidden), packed(s.hidden, s.hidden)
        self.k_proj, self.v_proj = (packed(s.kv_heads * self.size, s.hidden) for _ in range(2))
        self.attn_sub_norm = nn.RMSNorm(s.hidden, eps=1e-5, dtype=BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(self.attn_sub_norm(y.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    def __init__(self, s: argparse.Namespace) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (packed(s.intermediate, s.hidden) for _ in range(2))
        self.down_proj = packed(s.hidden, s.intermediate)
        self.ffn_sub_norm = nn.RMSNorm(s.intermediate, eps=1e-5, dtype=BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.ffn_sub_norm(functional.relu(self.gate_proj(x)).square() * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, s: argparse.Namespace) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.RMSNorm(s.hidden, eps=1e-5, dtype=BF16), Attention(s)
        self.post_attention_layernorm, self.mlp = nn.RMSNorm(s.hidden, eps=1e-5, dtype=BF16), MLP(s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Network(nn.Module):
    """Hidden states of tokens; the head is the table of the embedding. Rotary positions take no memory that counts and are left out."""

    def __init__(self, s: argparse.Namespace) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden, dtype=BF16)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, eps=1e-5, dtype=BF16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def resident(name: str) -> int:
    """Return the memory of this process that is in use now (VmRSS) or was at most (VmHWM), as Linux counts it; elsewhere 0."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def reset_resident() -> int:
    """Forget the largest memory of this process so far, where Linux can; return what is in use."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return resident("VmRSS")


def held(tensors: Iterator[torch.Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def measure(s: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes of each kind of tensor, and the most that were alive during two steps."""
    fake = contextlib.nullcontext() if s.real else FakeTensorMode()
    with fake, torch.device(s.device), LiveBytes() as live:
        model = checkpoint_blocks(add_adapters(Network(s), rank=s.rank, alpha=16, dtype=BF16))
        optimizer = make_optimizer(model, Recipe.fine_tune(2))
        loaded, live.most = live.now, live.now
        before = reset_resident() if s.real else 0
        head = lambda x: functional.linear(x, model.embed_tokens.weight)
        for _ in range(2):
            ids = torch.randint(s.vocab, (1, s.tokens + 1))
            head_loss(model(ids[:, :-1]), head, ids[:, 1:], chunk=s.chunk).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        adapters = [p for p in model.parameters() if p.requires_grad]
        states = (t for state in optimizer.state.values() for t in state.values())
        result: dict[str, Any] = {
            "packed": held(b for n, b in model.named_buffers() if n.endswith("codes")), "table": model.embed_tokens.weight.nbytes,
            "adapters": held(iter(adapters)), "optimizer": held(states), "loaded": loaded, "peak": live.most,
        }  # fmt: skip
    if s.real and s.device == "cuda":
        result["allocated"] = torch.cuda.max_memory_allocated()
    if s.real:
        result |= {"resident before": before, "resident": resident("VmHWM")}
    return result


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--real", action="store_true", help="compute, instead of counting sizes alone")
    parser.add_argument("--device", default="cpu")
    for name, size in SHAPE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size, help=f"({size})")
    args = parser.parse_args(arguments)
    result = measure(args)
    print(json.dumps({"settings": vars(args)} | result))
    for name, size in result.items():
        print(f"{name:16} {size / 1e9:7.3f} GB")
    return result


if __name__ == "__main__":
    main()
