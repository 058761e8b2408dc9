"""LoRA over frozen packed weights: two bits a weight in memory, and small trained matrices beside them.

Knows nothing of files; `tritium.torch.files.peft` reads and writes PEFT's. A layer computes, as PEFT's do,

    y = base(x) + (alpha / rank) * B (A dropout(x))

where base is the ternary product with its rounded activations, and A takes the x that the layer of an exported model takes: a norm
before some layers of a model is a module of its own there, BitNet's sub-norm, and A takes what it returns; norms before all of them are
inside the layers, and A takes what they are given. Gradients pass the base as they pass BitLinear: dx = dy @ (g t). The unpacked weights
of one layer exist during its product and are not kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tritium.buffer import native
from tritium.errors import ArgumentError
from tritium.torch.formulas import check_activations, dequantised, pack, round_activations, ternarise, unpack
from tritium.torch.layer import BitLinear, has_sub_norms
from tritium.torch.ops import is_watched
from tritium.torch.replace import AUTO, held_ternary

PIECE = 1 << 22  # weights that are unpacked at a time


class _Product(torch.autograd.Function):
    """The product with packed weights: keeps the packed ones alone for the backward pass, and unpacks some of them at a time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, group: int, activations: str) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(codes, scale)
        ctx.group = group
        kind = x.dtype if x.dtype in (torch.bfloat16, torch.float64) else torch.float32
        q, a = round_activations(x.float(), group, activations)
        q = (q * a).flatten(-2).to(kind) if group else q.to(kind)
        y = torch.empty((*x.shape[:-1], codes.shape[0]), dtype=x.dtype, device=x.device)
        for rows in _pieces(codes.shape[0], x.shape[-1]):
            g = scale[rows] if scale.ndim else scale
            part = functional.linear(q, _dense(codes[rows], g, group, x.shape[-1], kind))
            y[..., rows] = part if group else part * (a * g)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        codes, scale = ctx.saved_tensors
        group, rows = ctx.group, codes.shape[0]
        columns = scale.shape[-1] * group if group else codes.shape[-1] * 4
        dy = dy if group else (dy * scale).to(dy.dtype)  # scales of rows multiply what is small
        dx = torch.empty((*dy.shape[:-1], columns), dtype=dy.dtype, device=dy.device)
        for part in _pieces(columns, rows, group or 4):
            bytes_ = slice(part.start // 4, -(-part.stop // 4))
            g = scale[:, part.start // group : part.stop // group] if group else scale
            dx[..., part] = dy @ _dense(codes[:, bytes_], g, group, part.stop - part.start, dy.dtype)
        return dx, None, None, None, None


def _pieces(length: int, width: int, whole: int = 1) -> Iterator[slice]:
    """Yield the parts of an axis, multiples of `whole`, that have at most PIECE weights of the other axis each."""
    each = max(PIECE // max(width, 1) // whole, 1) * whole
    for start in range(0, length, each):
        yield slice(start, min(start + each, length))


def _dense(codes: torch.Tensor, scale: torch.Tensor, group: int, columns: int, kind: torch.dtype) -> torch.Tensor:
    """Return packed weights as floats; those of groups times their scales."""
    return dequantised(unpack(codes, columns), scale, group).to(kind) if group else unpack(codes, columns, kind)


def _stored(scale: torch.Tensor, group: int) -> torch.Tensor:
    """Return scales as they are kept: those of groups in f16, which files have, unless that would round one."""
    half = scale.half()
    return half if group and torch.equal(half.float(), scale) else scale


class PackedLinear(nn.Module):
    """A frozen ternary layer: four weights a byte, its scales, a bias. It computes what the BitLinear it was made of does.

    `sub_norm`: its norm is BitNet's sub-norm, and an adapter takes what the norm returns.
    """

    sub_norm = False

    def __init__(
        self, t: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, *, group: int = 0, activations: str = "token",
        norm: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_activations(activations, group)
        self.out_features, self.in_features = t.shape
        self.group, self.activations, self.rms_norm = group, activations, norm
        self.register_buffer("codes", pack(t))
        self.register_buffer("scale", _stored(scale.detach().float(), group))
        self.register_buffer("bias", None if bias is None else bias.detach())

    @classmethod
    def from_layer(cls, layer: BitLinear) -> PackedLinear:
        """Return a BitLinear packed and frozen, at lambda 1."""
        t, g = layer.ternary()
        new = cls(t, g, layer.bias, group=layer.group, activations=layer.activations, norm=layer.rms_norm)
        return new.requires_grad_(False).train(layer.training)

    def ternary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (t, g): int8 weights and f32 scales."""
        return unpack(self.codes, self.in_features), self.scale.float()

    def forward(self, x: torch.Tensor, *, normed: bool = False) -> torch.Tensor:
        """Compute the layer; `normed` x has passed its norm."""
        x = x if self.rms_norm is None or normed else self.rms_norm(x)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        with torch.autocast(x.device.type, enabled=False):
            if self._through_kernels(x):
                return torch.ops.tritium.ternary_linear(x, self.codes, self.scale, self.bias, 0, self.activations)
            y: torch.Tensor = _Product.apply(self._padded(x), self.codes, self._wide(), self.group, self.activations)
            return y if self.bias is None else (y.float() + self.bias.float()).to(y.dtype)

    def _through_kernels(self, x: torch.Tensor) -> bool:
        """Return True where tritium's kernels give the bits of torch's operations: on the CPU, in f32, without groups."""
        plain = type(x) in (torch.Tensor, nn.Parameter) and x.is_cpu and x.dtype is torch.float32
        return plain and native and not self.group and self.activations == "token" and not is_watched()

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with as many columns as the codes have; groups divide the columns, and zeros add nothing."""
        missing = 0 if self.group else self.codes.shape[-1] * 4 - x.shape[-1]
        return functional.pad(x, (0, missing)) if missing else x

    def _wide(self) -> torch.Tensor:
        """Return the scales in f32, in the shape that the product takes."""
        return self.scale.float()

    def extra_repr(self) -> str:
        group = f", group={self.group}" if self.group else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}{group}, activations={self.activations!r}"
        )


class LoraLinear(nn.Module):
    """A packed layer with an adapter: A [rank, columns] and B [rows, rank], B zero at the start."""

    def __init__(
        self, base: PackedLinear, rank: int, alpha: float, *, dropout: float = 0.0, rank_stabilised: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__()
        place = {"device": base.codes.device, "dtype": dtype}
        self.base, self.rank, self.alpha, self.rank_stabilised = base, rank, alpha, rank_stabilised
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, **place)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, **place)
        self.dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    @property
    def scaling(self) -> float:
        """Return the factor of B A: alpha / rank, or alpha / √rank where it is rank-stabilised."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.base.rms_norm if self.base.sub_norm else None
        x = x if norm is None else norm(x)
        y = self.base(x, normed=norm is not None)
        beside = self.lora_B(self.lora_A(self.dropout(x).to(self.lora_A.weight.dtype)))
        return y + (beside * self.scaling).to(y.dtype)

    @torch.no_grad()
    def dense(self) -> torch.Tensor:
        """Return g t + scaling B A, in f32."""
        t, g = self.base.ternary()
        return dequantised(t, g, self.base.group) + self.scaling * (
            self.lora_B.weight.float() @ self.lora_A.weight.float()
        )


def lora_linears(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers of a model that have an adapter, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LoraLinear)}


def pack_linears(model: nn.Module) -> nn.Module:
    """Put a frozen PackedLinear in the place of every BitLinear and of transformers' ternary layers, one after the other."""
    packed: dict[int, PackedLinear] = {}  # a layer that has two names stays one layer
    for name, old in list(model.named_modules(remove_duplicate=False)):
        new = packed.get(id(old)) or _packed(old)
        if new is None:
            continue
        if not name:
            raise ArgumentError("pack_linears: the model is itself a linear layer; put it into an nn.Sequential.")
        packed[id(old)] = new
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, new)
    layers = [m for m in model.modules() if isinstance(m, PackedLinear)]
    sub_norms = has_sub_norms(layers)
    for layer in layers if packed else ():
        layer.sub_norm = sub_norms and layer.rms_norm is not None
    if not layers:
        raise ArgumentError("pack_linears: the model has no BitLinear; call prepare or replace_linears first.")
    return model


def _packed(old: nn.Module) -> PackedLinear | None:
    """Return a ternary layer, ours or one of transformers, packed and frozen; None for anything else."""
    if isinstance(old, BitLinear):
        return PackedLinear.from_layer(old)
    held = held_ternary(old)
    if held is None and f"{type(old).__module__}.{type(old).__name__}" == AUTO:
        held = ternarise(old.weight)
    if held is None:
        return None
    new = PackedLinear(held[0], held[1].reshape(()), old.bias, norm=getattr(old, "rms_norm", None))
    return new.requires_grad_(False).train(old.training)


def add_adapters(
    model: nn.Module,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Iterable[str] | None = None,
    dropout: float = 0.0,
    rank_stabilised: bool = False,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Freeze a ternary model, pack its weights to two bits, and give layers a trainable adapter each, in the model itself.

    `targets` are names or ends of names (`q_proj`, `layers.0.mlp.up_proj`); without them every ternary layer has one. `dtype` is that
    of the adapters.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ArgumentError(f"add_adapters: rank is at least 1, given {rank!r}.")
    if lora_linears(model):
        raise ArgumentError("add_adapters: the model has adapters already; merge_adapters or remove_adapters first.")
    pack_linears(model).requires_grad_(False)
    ends = None if targets is None else tuple(targets)
    layers = {n: m for n, m in model.named_modules(remove_duplicate=False) if isinstance(m, PackedLinear)}
    chosen = [n for n in layers if ends is None or any(n == e or n.endswith(f".{e}") for e in ends)]
    missing = [e for e in ends or () if not any(n == e or n.endswith(f".{e}") for n in layers)]
    if missing:
        raise ArgumentError(
            f"add_adapters: no ternary layer is named {missing[0]!r}; there are {', '.join(list(layers)[:8])}, …."
        )
    options: Any = {"dropout": dropout, "rank_stabilised": rank_stabilised, "dtype": dtype}
    adapters: dict[int, LoraLinear] = {}
    for name in chosen:
        base = layers[name]
        new = adapters.get(id(base)) or adapters.setdefault(id(base), LoraLinear(base, rank, alpha, **options))
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, new.train(base.training))
    return model


def remove_adapters(model: nn.Module) -> nn.Module:
    """Put the packed layers back, without their adapters."""
    for name, layer in lora_linears(model).items():
        model.set_submodule(name, layer.base)
    return model


@dataclass(frozen=True)
class Merged:
    """The result of a merge: the layers, and whether their results are the same but for the rounding of sums.

    `exact` is False where activations were int8: the merged layer takes them as they are, and the base's share of the result is
    no longer rounded.
    """

    layers: tuple[str, ...]
    exact: bool


class _NormedLinear(nn.Linear):
    """A plain layer behind a sub-norm, which is kept as it was."""

    def __init__(self, norm: nn.Module, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rms_norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.rms_norm(x))


def merge_adapters(model: nn.Module, *, dtype: torch.dtype = torch.float32) -> Merged:
    """Put an nn.Linear of g t + scaling B A in the place of every layer with an adapter, behind the sub-norm where there is one. The sum
    is not ternary: it takes its dtype's room, and rounding it to ternary values again would be another network (`flips_of_rounding`)."""
    layers = lora_linears(model)
    if not layers:
        raise ArgumentError("merge_adapters: the model has no adapter; add_adapters or load_adapters first.")
    normed = [name for name, layer in layers.items() if layer.base.rms_norm is not None and not layer.base.sub_norm]
    if normed:
        raise ArgumentError(
            f"merge_adapters: {normed[0]} has a norm inside, before its ternary weights, which its adapter does not see; no one matrix "
            "computes both. Keep the adapter, and save it with save_adapters."
        )
    exact = True
    for name, layer in layers.items():
        base = layer.base
        kind = nn.Linear if base.rms_norm is None else partial(_NormedLinear, base.rms_norm)
        new = kind(base.in_features, base.out_features, base.bias is not None, device="meta")
        new.weight = nn.Parameter(layer.dense().to(dtype), requires_grad=False)
        new.bias = None if base.bias is None else nn.Parameter(base.bias.to(dtype), requires_grad=False)
        model.set_submodule(name, new.train(layer.training))
        exact = exact and base.activations == "float" and dtype in (torch.float32, torch.float64)
    return Merged(tuple(layers), exact)


def flips_of_rounding(model: nn.Module) -> dict[str, float]:
    """Return for each layer with an adapter the share of ternary values that rounding its merged weights again would change.

    Where it is 0, such a rounding gives the base back, without the adapter; elsewhere it gives a network that nobody trained.
    """
    shares = {}
    for name, layer in lora_linears(model).items():
        t, g = layer.base.ternary()
        near, _ = ternarise(layer.dense(), group=layer.base.group, scale=g)
        shares[name] = float((near != t).float().mean())
    return shares
