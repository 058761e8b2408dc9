"""Training over several processes: models divided by FSDP2 or copied by DDP, gradients and losses that are those of one process.

What is divided are latent weights and the state of the optimiser; what FSDP2 gathers for a layer are its ternary codes
(`tritium.torch.gathered`), an eighth of the bytes of 16-bit weights.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tritium.errors import ArgumentError, PackageError, QuantError
from tritium.torch.adapters import lora_linears
from tritium.torch.formulas import absmean, learned, mean_of, stored, ternarise
from tritium.torch.gathered import LatentWeight
from tritium.torch.layer import BitLinear, bit_linears


def is_divided(x: Any) -> bool:
    """Return True for a DTensor. There is none before its module was imported, which takes a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def is_sharded(model: nn.Module) -> bool:
    """Return True for a model that FSDP2 divides."""
    module = sys.modules.get("torch.distributed.fsdp")
    return module is not None and isinstance(model, module.FSDPModule)


@dataclass(frozen=True)
class Processes:
    """The processes that train one model: this one's number, how many there are, and their group; None for one process."""

    rank: int = 0
    count: int = 1
    group: Any = None

    @classmethod
    def from_model(cls, model: nn.Module) -> Processes:
        """Return those over which a model is divided (FSDP2) or copied (DDP); one process for any other model."""
        if isinstance(model, DistributedDataParallel):
            return cls(
                dist.get_rank(model.process_group), dist.get_world_size(model.process_group), model.process_group
            )
        meshes = {p.device_mesh for p in model.parameters() if is_divided(p)}
        if not meshes:
            return cls()
        mesh = meshes.pop()
        if meshes or mesh.ndim != 1:
            raise ArgumentError(
                "Training: parameters are divided over several meshes or axes; one mesh with one axis is needed, as `shard` makes it."
            )
        return cls(mesh.get_local_rank(), mesh.size(), mesh.get_group())

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all processes."""
        total = values.clone()
        if self.count > 1:
            dist.all_reduce(total, group=self.group)
        return total

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all processes, each an object that pickle can write."""
        if self.count == 1:
            return [value]
        values = [None] * self.count
        dist.all_gather_object(values, value, group=self.group)
        return values

    def wait(self) -> None:
        """Wait for all others."""
        if self.count > 1:
            dist.barrier(group=self.group)

    def pieces(self, batch: Any, count: int) -> Iterator[Any]:
        """Yield this process's pieces of a batch, which has `count` for each process, along the first axis of its tensors."""
        whole = count * self.count
        sizes = {len(x) for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor)}
        if whole == 1:
            yield batch
            return
        if len(sizes) != 1 or next(iter(sizes)) % whole:
            raise ArgumentError(
                f"Training: a batch is divided into {whole} pieces ({count} for each of {self.count} processes), so its tensors need "
                f"one length that is a multiple of it; given {sorted(sizes) or 'no tensor'}."
            )
        size = next(iter(sizes)) // whole
        for i in range(self.rank * count, (self.rank + 1) * count):
            yield pytree.tree_map_only(torch.Tensor, lambda x, index=i: x[index * size : (index + 1) * size], batch)


# ---- dividing a model


def shard(
    model: nn.Module,
    mesh: Any = None,
    *,
    blocks: Iterable[nn.Module] | None = None,
    packed: bool = True,
    **options: Any,
) -> nn.Module:
    """Divide a prepared model over processes by FSDP2, in the model itself; layers are gathered when they are called.

    `mesh` is a DeviceMesh of one axis; without it, all processes of torch.distributed. `blocks` are gathered as a whole, one after
    the other: by default what the model's lists of modules hold. `packed` gathers ternary codes, two bits a weight, for which lambda
    must be 1; False gathers floats. Other options are those of `torch.distributed.fsdp.fully_shard`: mp_policy,
    reshard_after_forward, offload_policy. PyTorch 2.6 or newer is needed.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "shard: torch.distributed is not initialised; start the program with torchrun and call torch.distributed.init_process_group."
        )
    from torch.distributed.device_mesh import init_device_mesh

    fully_shard = _fully_shard()
    layers = bit_linears(model)
    if lora_linears(model):
        raise ArgumentError(
            "shard: the model has adapters; its packed weights are buffers of two bits, which FSDP2 does not divide. Copy it: "
            "DistributedDataParallel(model, broadcast_buffers=False)."
        )
    if not layers:
        raise ArgumentError("shard: the model has no BitLinear; call prepare(model, recipe) first.")
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),)) if mesh is None else mesh
    if mesh.ndim != 1:
        raise ArgumentError(
            f"shard: a mesh of one axis is needed, given one of {mesh.ndim}; mesh['name'] is one axis of it."
        )
    if packed:
        _make_latent(layers, mesh.size())
    for block in _lists(model) if blocks is None else blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if packed:
        model.register_forward_pre_hook(_set_means, prepend=True)  # before FSDP2's own, which gathers
    return model


def _fully_shard() -> Any:
    """Return FSDP2's function; raise where this PyTorch is older than it."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise PackageError(
            f"shard: FSDP2 needs PyTorch 2.6 or newer, this is {torch.__version__}; pip install -U torch."
        ) from None
    return fully_shard


def _lists(model: nn.Module) -> list[nn.Module]:
    """Return the modules that the model's lists hold, of nested lists the outer ones."""
    lists = [name for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    outer = [n for n in lists if not any(n.startswith(f"{other}.") for other in lists)]
    return [child for name in outer for child in model.get_submodule(name)]


def _make_latent(layers: Mapping[str, BitLinear], ranks: int) -> None:
    """Have the weights of layers gathered as codes; raise where that cannot be."""
    for name, layer in layers.items():
        if layer.scale is not None:
            raise ArgumentError(
                f"shard: {name} has a learned scale, whose codes cannot be computed by rows; give packed=False."
            )
        if layer.out_features % ranks:
            raise ArgumentError(
                f"shard: {name} has {layer.out_features} rows, which {ranks} processes cannot share evenly; give packed=False."
            )
    for weight in {id(layer.weight): layer.weight for layer in layers.values()}.values():
        latent = nn.Parameter(LatentWeight(weight.detach()), requires_grad=weight.requires_grad)
        for layer in (m for m in layers.values() if m.weight is weight):
            layer.weight = latent


def _set_means(model: nn.Module, _: Any) -> None:
    """Compute the mean magnitude of every divided weight before a forward pass."""
    layers = {name: layer for name, layer in bit_linears(model).items() if is_divided(layer.weight)}
    for name, mean in _means(layers, Processes.from_model(model)).items():
        layers[name].weight._local_tensor.mean = mean


@torch.no_grad()
def _means(layers: Mapping[str, BitLinear], processes: Processes) -> dict[str, torch.Tensor]:
    """Return the mean magnitude of divided weights, all in one exchange; raise on all processes where one is not finite."""
    if not layers:
        return {}
    parts = [local_part(layer.weight).abs().sum(dtype=torch.float64) for layer in layers.values()]
    means = {}
    for (name, layer), total in zip(layers.items(), processes.sum(torch.stack(parts)), strict=True):
        if not torch.isfinite(total):
            raise QuantError(f"shard: the weights of {name} hold NaN or infinity; the training diverged.")
        means[name] = mean_of(total, layer.weight.numel())
    return means


@torch.no_grad()
def ternary_parts(layers: Mapping[str, BitLinear], processes: Processes) -> dict[str, torch.Tensor]:
    """Return the ternary weights of layers in int8, of divided ones this process's rows; all processes call it."""
    means = _means({name: layer for name, layer in layers.items() if is_divided(layer.weight)}, processes)
    parts = {}
    for name, layer in layers.items():
        weight = local_part(layer.weight)
        if layer.scale is not None:
            scale = learned(local_part(layer.scale), layer.group, layer.scale_dtype)
        elif name in means and layer.axis is None and not layer.group:
            scale = stored(means[name], 0, layer.scale_dtype)
        else:
            scale = absmean(weight, layer.axis, layer.group, layer.scale_dtype)
        parts[name] = ternarise(weight, axis=layer.axis, group=layer.group, scale=scale)[0]
    return parts


def checkpoint_blocks(model: nn.Module, blocks: Iterable[nn.Module] | None = None) -> nn.Module:
    """Have blocks keep their inputs alone for the backward pass and compute the rest again, in the model itself.

    `blocks` are by default what the model's lists of modules hold. Gradients have the same bits; a step takes about a third longer."""
    chosen = _lists(model) if blocks is None else list(blocks)
    if not chosen:
        raise ArgumentError("checkpoint_blocks: the model has no nn.ModuleList; give blocks=, modules of it.")
    for block in chosen:
        block.forward = _checkpointed(block.forward)
    return model


def _checkpointed(forward: Any) -> Any:
    return lambda *args, **options: checkpoint(forward, *args, use_reentrant=False, **options)


# ---- what a loop needs


@torch.no_grad()
def clip_gradients(parameters: Iterable[torch.Tensor], most: float, processes: Processes) -> float:
    """Multiply gradients so that the norm of all is at most this; return the norm. It is added in f64, so that it does not depend on how
    the gradients are divided."""
    grads = [p.grad for p in parameters if p.grad is not None]
    local = [g.to_local() if is_divided(g) else g for g in grads]
    zero = torch.zeros((), dtype=torch.float64)
    shared, whole = zero.clone(), zero.clone()
    for grad, part in zip(grads, local, strict=True):
        square = part.double().square().sum().cpu()
        if is_divided(grad):
            shared += square
        else:
            whole += square
    device = local[0].device if local else "cpu"
    total = math.sqrt(float(processes.sum(shared.to(device)).cpu() + whole)) if local else 0.0
    if total > most:
        for part in local:
            part.mul_(most / total)
    return total


def whole_state(state: Any) -> Any:
    """Return a state of a model or optimiser with every divided tensor whole, on the CPU; all processes call it."""
    return pytree.tree_map_only(torch.Tensor, _whole, state)


def _whole(t: torch.Tensor) -> torch.Tensor:
    if not is_divided(t):
        return t
    full = t.full_tensor()
    return (full.inner if isinstance(full, LatentWeight) else full).cpu()


def local_part(t: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a divided tensor, as floats; any other tensor as it is."""
    part: torch.Tensor = t._local_tensor if is_divided(t) else t
    return part.inner if isinstance(part, LatentWeight) else part.detach()


def divided(part: torch.Tensor, like: Any) -> Any:
    """Return the tensor of which each process has a part, divided as another one is."""
    place = {"shape": like.shape, "stride": like.stride()}
    return type(like).from_local(part, like.device_mesh, like.placements, run_check=False, **place)


def divided_state(state: Any, like: Any) -> Any:
    """Return a whole state with the tensors divided as those of another one are."""
    if is_divided(like):
        rows = torch.chunk(state, like.device_mesh.size(), 0)
        own = like.device_mesh.get_local_rank()
        local = rows[own] if own < len(rows) else state[:0]
        return divided(local.to(like.device), like)
    if isinstance(like, Mapping):
        return {k: divided_state(v, like[k]) if k in like else v for k, v in state.items()}
    return state
