"""A training step of a layer on the CPU's kernels: weights are packed for each step, and their product is tritium's.

Values and gradients have the bits of torch's operations: sums of the product are whole numbers below 2**24, and the backward pass
multiplies in the order in which autograd would. Kept for it are the tokens, which the caller has, and two bits a weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tritium import interop, nn as native, quant
from tritium.torch.formulas import absmax, absmean, round_activations, rounded, spread


def in_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None) -> torch.Tensor:
    """Return the layer's result in torch's operations, differentiable: f32, int8 by token, absmean scales of the tensor or its rows."""
    q, a = round_activations(x, 0, "token")
    g = absmean(weight, axis)
    t = rounded(weight * (1 / spread(g, 0)), 1.0, most=1)
    y = functional.linear(q, t) * (a * g)
    return y if bias is None else y + bias


class PackedStep(torch.autograd.Function):
    """The same on kernels. Gradients of gradients are those of torch's operations."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None) -> torch.Tensor:  # fmt: skip
        packed = quant.ternary(interop.from_torch(weight.detach()), axis=axis)
        layer = native.BitLinear(packed, None if bias is None else interop.from_torch(bias.detach()))
        ctx.save_for_backward(x, weight, bias)
        ctx.packed, ctx.axis = packed, axis
        return interop.to_torch(layer(interop.from_torch(x.detach().contiguous())))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (dy,) = gradients
        x, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradients are to have gradients
            chosen = [t for t, need in zip((x, weight, bias), needed, strict=True) if need]
            parts = iter(torch.autograd.grad(in_torch(x, weight, bias, ctx.axis), chosen, dy, create_graph=True))
            return *(next(parts) if need else None for need in needed), None
        amax = absmax(x)
        most = torch.full_like(amax, 127)
        step = most / amax
        g = interop.to_torch(ctx.packed.scale)
        scaled = (dy * ((amax / most) * g)).reshape(-1, len(weight))
        dx = dw = None
        if needed[0]:
            t = interop.to_torch(ctx.packed.dequantize()).sign_()
            dx = (scaled @ t).view(x.shape) * step
        if needed[1]:
            dw = (scaled.t() @ (x * step).round_().reshape(-1, x.shape[-1])) * (1 / spread(g, 0))
        db = dy.sum_to_size(len(weight)) if needed[2] else None
        return dx, dw, db, None
