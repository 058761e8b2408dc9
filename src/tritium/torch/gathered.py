"""Weights that FSDP2 gathers as two bits: latent ones that are divided over processes, and the packed ones that come of them.

FSDP2 asks a local tensor what to gather (`fsdp_pre_all_gather`) and what is made of it (`fsdp_post_all_gather`): ternary codes, four a
byte, and scales. The gathered weight has the shape and the gradient of the latent one, and no values in floats.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from tritium.errors import ArgumentError
from tritium.torch.formulas import absmean, pack, spread, stored, unpack

aten = torch.ops.aten
KEPT = frozenset({  # what returns latent weights again: FSDP2 and DTensor make shards of them by these
    aten.t.default, aten.detach.default, aten.empty_like.default, aten.new_zeros.default, aten.slice.Tensor, aten.view.default,
    aten.as_strided.default, aten._to_copy.default, aten._pin_memory.default, aten.split.Tensor, aten.clone.default, aten.alias.default,
})  # fmt: skip


class LatentWeight(torch.Tensor):
    """A rank's rows of latent weights. Any op computes with its floats; FSDP2 gathers its codes.

    `mean` is the mean magnitude of the whole tensor, which all ranks compute together before a forward pass; None after a write.
    """

    inner: torch.Tensor
    mean: torch.Tensor | None

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> LatentWeight:
        weight: LatentWeight = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype, device=inner.device,
            requires_grad=inner.requires_grad,
        )  # fmt: skip
        return weight

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner, self.mean = inner, None

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, torch.Tensor], _: Any, size: Any = None, stride: Any = None) -> Self:
        return cls(parts["inner"])

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"LatentWeight({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wrapped = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, cls)]
        args, kwargs = pytree.tree_map_only(cls, lambda x: x.inner, (args, kwargs or {}))
        if func._schema.is_mutable:
            for x in wrapped:
                x.mean = None
        out = func(*args, **kwargs)
        if func in KEPT:
            return pytree.tree_map_only(torch.Tensor, cls, out)
        written = {id(x.inner): x for x in wrapped}  # an op in place returns the tensor that it was called with
        return pytree.tree_map_only(torch.Tensor, lambda x: written.get(id(x), x), out)

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
        """Return what is gathered of this rank's rows: codes, and scales where rows or groups have some; and what the ranks know."""
        if module.lambda_ != 1:
            raise ArgumentError(
                f"shard: weights at lambda {module.lambda_} are not ternary and cannot be gathered as two bits; divide the model with "
                "packed=False until lambda is 1."
            )
        if self.mean is None:
            raise ArgumentError(
                "shard: a layer was called alone after its weights were written; call the model that was divided, which computes the scales "
                "of all layers first."
            )
        weight, own = self.inner.detach(), module.axis is not None or module.group > 0
        g = absmean(weight, module.axis, module.group) if own else self.mean
        g = stored(g, module.group, module.scale_dtype)
        t = (weight.float() * (1 / spread(g, module.group))).round_().clamp_(-1, 1).to(torch.int8)
        scales = (g.half() if module.group else g,) if own else ()
        return (pack(t), *scales), (g, own, module.group, weight.shape[-1])

    def fsdp_post_all_gather(
        self, outputs: tuple[torch.Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:  # fmt: skip
        """Return the gathered weight and the memory that is freed with it; into `out` where one is there already."""
        g, own, group, columns = metadata
        scale = outputs[1] if own else g
        if out is None:
            return GatheredWeight(outputs[0], scale, columns, group, param_dtype), outputs
        assert isinstance(out, GatheredWeight)
        out.scale = out.scale if own else scale  # gathered ones are in the memory that `out` has
        return None


class GatheredWeight(torch.Tensor):
    """All rows of a ternary weight as they were gathered. It has no floats: `multiply` is what a layer does with it."""

    codes: torch.Tensor
    scale: torch.Tensor
    group: int

    @staticmethod
    def __new__(
        cls, codes: torch.Tensor, scale: torch.Tensor, columns: int, group: int, dtype: torch.dtype
    ) -> GatheredWeight:
        shape = (codes.shape[0], columns)
        weight: GatheredWeight = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=codes.device)
        return weight

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, columns: int, group: int, dtype: torch.dtype) -> None:
        self.codes, self.scale, self.group = codes, scale, group

    def __tensor_flatten__(self) -> tuple[list[str], tuple[int, int, torch.dtype]]:
        return ["codes", "scale"], (self.shape[-1], self.group, self.dtype)

    @classmethod
    def __tensor_unflatten__(
        cls, parts: dict[str, torch.Tensor], form: Any, size: Any = None, stride: Any = None
    ) -> Self:
        return cls(parts["codes"], parts["scale"], *form)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"GatheredWeight({tuple(self.shape)}, codes {tuple(self.codes.shape)}, scale {tuple(self.scale.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.detach.default, aten.as_strided.default, aten.alias.default):  # FSDP2 makes a parameter of it
            w = args[0]
            return cls(w.codes.detach(), w.scale.detach(), w.shape[-1], w.group, w.dtype)
        raise ArgumentError(
            f"{func}: gathered ternary weights have no floats; a layer multiplies by them. Read weights of the divided model between "
            "steps, or divide it with packed=False."
        )

    def scales(self) -> torch.Tensor:
        """Return the scales in f32."""
        return self.scale.float()

    def multiply(self, x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """Return x times the ternary values (with groups times their scales too), in a dtype; the gradient is that of latent weights."""
        y: torch.Tensor = _Multiply.apply(x, self, kind)
        return y


class _Multiply(torch.autograd.Function):
    """The product: keeps codes alone for the backward pass, in memory that FSDP2 frees and gathers again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: GatheredWeight, kind: torch.dtype) -> torch.Tensor:
        ctx.save_for_backward(x, weight.codes, weight.scale)
        ctx.group, ctx.kind = weight.group, kind
        return functional.linear(x.to(kind), _dense(weight.codes, weight.scale, weight.group, x.shape[-1], kind))

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, codes, scale = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = (dy @ _dense(codes, scale, ctx.group, x.shape[-1], ctx.kind)).to(x.dtype)
        if ctx.needs_input_grad[1]:
            g = spread(scale.float(), ctx.group)
            dw = (dy.flatten(0, -2).t() @ x.flatten(0, -2).to(ctx.kind)).float()
            dw = (dw * g if ctx.group else dw) * (1 / g)
        return dx, dw, None


def _dense(codes: torch.Tensor, scale: torch.Tensor, group: int, columns: int, kind: torch.dtype) -> torch.Tensor:
    t = unpack(codes, columns)
    return (t * spread(scale.float(), group)).to(kind) if group else t.to(kind)
