"""Products with ternary weights as custom ops of PyTorch: torch.compile sees one call with a known result, not what is inside.

A layer is kept under a name, which is what an op takes: kernels hold the weights in an order of their own. On a GPU that is what
`torch.ops.tritium.ternary_linear` runs on, so calls can be captured; on a CPU it is a layer of `tritium.nn`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tritium import interop, nn, ops
from tritium.errors import ArgumentError, DeviceError
from tritium.nn.linear import BitLinear
from tritium.torch.formulas import dequantised, pack, unpack
from tritium.torch.ops import Packed

_layers: dict[str, BitLinear | Packed] = {}


def keep(name: str, weights: torch.Tensor, scale: torch.Tensor, group: int, activations: str) -> None:
    """Make a layer of int8 weights [rows, columns] and f32 scales of rows or groups, where they are, for ops to find by its name."""
    if weights.device.type not in ("cpu", "cuda"):
        raise DeviceError(f"tritium.vllm: runs on CPUs and on NVIDIA GPUs; {name} is on {weights.device}.")
    if weights.is_cuda:
        scales = scale.half() if group else scale.float()
        _layers[name] = Packed(pack(weights), scales, None, weights.shape[1], group, activations)
        return
    numbers = np.ascontiguousarray(scale.numpy())
    _layers[name] = BitLinear.from_ternary(weights.numpy(), scale=numbers, group=group, activations=activations)


def find_layer(name: str) -> Any:
    """Return a layer by its name: that of the device it was made on."""
    if name not in _layers:
        raise ArgumentError(f"tritium.vllm: no weights were loaded for {name!r}.")
    return _layers[name]


def forget() -> None:
    """Drop all layers."""
    _layers.clear()


def _call(fn: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return interop.to_torch(fn(interop.from_torch(x.contiguous()))).to(dtype)


@torch.library.custom_op("tritium_vllm::bit_linear", mutates_args=(), device_types="cpu")
def bit_linear(x: torch.Tensor, name: str, rows: int) -> torch.Tensor:
    """Return x times the ternary weights of a layer."""
    return _call(find_layer(name), x.float(), x.dtype)


@bit_linear.register_kernel("cuda")
def _on_gpu(x: torch.Tensor, name: str, rows: int) -> torch.Tensor:
    layer: Packed = find_layer(name)
    return layer.run(x.contiguous())


@bit_linear.register_fake
def _(x: torch.Tensor, name: str, rows: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.custom_op("tritium_vllm::take_rows", mutates_args=(), device_types="cpu")
def take_rows(ids: torch.Tensor, name: str, columns: int, like: torch.Tensor) -> torch.Tensor:
    """Return rows of a ternary table, in the dtype of `like`."""
    table = nn.QuantEmbedding(find_layer(name))
    return _call(table, ids, like.dtype)


@take_rows.register_kernel("cuda")
def _rows_on_gpu(ids: torch.Tensor, name: str, columns: int, like: torch.Tensor) -> torch.Tensor:
    return dequantised_rows(find_layer(name), ids).to(like.dtype)


def dequantised_rows(table: Packed, ids: torch.Tensor) -> torch.Tensor:
    """Return rows of packed weights in f32, by indices of any shape."""
    which = ids.flatten()
    t = unpack(table.codes[which], table.columns)
    return dequantised(t, table.scale[which].float(), table.group).view(*ids.shape, table.columns)


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
