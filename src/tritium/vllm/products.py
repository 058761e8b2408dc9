"""Products with ternary weights as custom ops of PyTorch: torch.compile sees one call with a known result, not what is inside.

Knows nothing of vLLM. A layer is kept under a name, which is what an op takes: kernels hold the weights in an order of their own.
"""

from __future__ import annotations

from typing import Any

import torch

from tritium import interop, nn, ops
from tritium.errors import ArgumentError
from tritium.nn.linear import BitLinear

_layers: dict[str, BitLinear] = {}


def keep(name: str, layer: BitLinear) -> None:
    """Keep a layer under a name that ops know it by."""
    _layers[name] = layer


def find_layer(name: str) -> BitLinear:
    """Return a layer by its name."""
    if name not in _layers:
        raise ArgumentError(f"tritium.vllm: no weights were loaded for {name!r}.")
    return _layers[name]


def _call(fn: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return interop.to_torch(fn(interop.from_torch(x.contiguous()))).to(dtype)


@torch.library.custom_op("tritium_vllm::bit_linear", mutates_args=())
def bit_linear(x: torch.Tensor, name: str, rows: int) -> torch.Tensor:
    """Return x times the ternary weights of a layer."""
    return _call(find_layer(name), x.float(), x.dtype)


@bit_linear.register_fake
def _(x: torch.Tensor, name: str, rows: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.custom_op("tritium_vllm::take_rows", mutates_args=())
def take_rows(ids: torch.Tensor, name: str, columns: int, like: torch.Tensor) -> torch.Tensor:
    """Return rows of a ternary table, in the dtype of `like`."""
    table = nn.QuantEmbedding(find_layer(name))
    return _call(table, ids, like.dtype)


@take_rows.register_fake
def _(ids: torch.Tensor, name: str, columns: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty((*ids.shape, columns))


@torch.library.custom_op("tritium_vllm::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the RMS norm of x as Tritium computes it: squares are added in f64."""
    scale = interop.from_torch(weight.float().contiguous())
    return _call(lambda t: ops.rms_norm(t, scale, eps=eps), x.float(), x.dtype)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x)
