"""A training step of a ternary layer as operators of PyTorch: `torch.ops.tritium.train_linear`, and its gradients.

Forward: latent weights are ternarised and tokens quantised in each call, multiplied as int8 with exact sums, scaled and rounded once.
Backward, roundings count as the identity; int8 tokens and codes of two bits are saved for it. On a GPU the kernels of `cuda.train` run,
elsewhere torch's operations with the same results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tritium.backends.cuda.train.rounded import MOST_TOKENS, Rounded
from tritium.errors import ArgumentError
from tritium.torch.formulas import (
    absmean,
    from_planes,
    int8_columns,
    int8_rows,
    padded,
    planes,
    round_activations,
    spread,
)

GRADIENTS = ("bf16", "int8")
Tensors = tuple[torch.Tensor, torch.Tensor]


def reference_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, dtype: torch.dtype
) -> tuple[torch.Tensor, Rounded]:  # fmt: skip
    """Compute the forward pass in torch's operations."""
    g = absmean(weight, axis)
    t = (weight.float() * (1 / spread(g, 0))).round_().clamp_(-1, 1)
    q, a = round_activations(x.float(), 0, "token")
    assert isinstance(a, torch.Tensor)
    y = functional.linear(q, t) * (a * g)
    y = y if bias is None else y + bias.float()
    columns = q.shape[1]
    whole = functional.pad(q.to(torch.int8), (0, padded(columns) - columns))
    return y.to(dtype), Rounded(whole, a[:, 0].contiguous(), planes(t.to(torch.int8)), g)


def reference_gradients(
    dy: torch.Tensor, saved: Rounded, columns: int, dtype: torch.dtype, gradients: str, for_x: bool, for_w: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Compute the gradients in torch's operations."""
    t, q, kind = from_planes(saved.codes, columns).float(), saved.q[:, :columns].float(), dy.dtype
    dx = dw = None
    if gradients == "int8":
        near, size = int8_rows(dy, saved.g)
        across, each = int8_columns(dy, saved.a)
        dx = ((near @ t) * (size * (1.0 if saved.g.ndim else saved.g))).to(kind) if for_x else None
        dw = ((across.t().double() @ q.double()).float() * each[:, None]).to(dtype) if for_w else None
        return dx, dw
    dx = dy @ (t * spread(saved.g, 0)).to(kind) if for_x else None
    dw = (dy.t() @ (q * saved.a[:, None]).to(kind)).to(dtype) if for_w else None
    return dx, dw


@torch.library.custom_op("tritium::train_linear", mutates_args=())
def train_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, dtype: torch.dtype, gradients: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return x [..., k] through a layer of latent weights [n, k], [..., n] of a dtype; and what `Rounded` holds.

    axis: None for one scale, 0 for one of each row. gradients: the products of the backward pass, in "bf16" (or what the dtype is) or "int8".
    """
    return _run(reference_forward, x, weight, bias, axis, dtype, gradients)


def _run(
    forward: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, dtype: torch.dtype, gradients: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Check the arguments and run a forward pass of tokens in rows."""
    n, k = weight.shape
    if x.shape[-1] != k or gradients not in GRADIENTS or axis not in (None, 0):
        raise ArgumentError(
            f"train_linear: tokens of {k} columns, axis None or 0 and gradients of {GRADIENTS} are needed, given {tuple(x.shape)}, {axis!r} "
            f"and {gradients!r}."
        )
    y, saved = forward(x.reshape(-1, k), weight, bias, axis, dtype)
    return y.view(*x.shape[:-1], n), *saved


@train_linear.register_fake
def _(x: Any, weight: Any, bias: Any, axis: Any, dtype: Any, gradients: Any) -> tuple[torch.Tensor, ...]:
    n, k = weight.shape
    m = x.numel() // k
    return (
        x.new_empty((*x.shape[:-1], n), dtype=dtype),
        x.new_empty((m, padded(k)), dtype=torch.int8),
        x.new_empty((m,), dtype=torch.float32),
        x.new_empty((n, padded(k) // 4), dtype=torch.uint8),
        x.new_empty(() if axis is None else (n,), dtype=torch.float32),
    )


@torch.library.custom_op("tritium::train_gradients", mutates_args=())
def train_gradients(
    dy: torch.Tensor, q: torch.Tensor, a: torch.Tensor, codes: torch.Tensor, g: torch.Tensor, columns: int, dtype: torch.dtype,
    gradients: str, for_x: bool, for_w: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradients of `train_linear` for dy [m, n]: dx [m, columns] and dw [n, columns] of a dtype; empty where not needed."""
    return _both(reference_gradients(dy, Rounded(q, a, codes, g), columns, dtype, gradients, for_x, for_w), dy, dtype)


def _both(pair: tuple[torch.Tensor | None, torch.Tensor | None], dy: torch.Tensor, dtype: torch.dtype) -> Tensors:
    """Return both gradients, an empty one for one that is not needed."""
    dx, dw = pair
    return dy.new_empty(0) if dx is None else dx, dy.new_empty(0, dtype=dtype) if dw is None else dw


def _gradients_on_gpu(
    dy: torch.Tensor, q: torch.Tensor, a: torch.Tensor, codes: torch.Tensor, g: torch.Tensor, columns: int, dtype: torch.dtype,
    gradients: str, for_x: bool, for_w: bool,
) -> Tensors:  # fmt: skip
    from tritium.backends.cuda.train import step

    in_int8 = gradients == "int8" and 0 < dy.shape[0] <= MOST_TOKENS
    way = step.int8_gradients if in_int8 else step.plain_gradients
    return _both(way(dy.contiguous(), Rounded(q, a, codes, g), columns, dtype, for_x, for_w), dy, dtype)


def _linear_on_gpu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, dtype: torch.dtype, gradients: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    from tritium.backends.cuda.train import step

    return _run(step.forward, x, weight, bias, axis, dtype, gradients)


# The dispatcher calls these directly, which takes the host less time than through `custom_op`.
_on_gpu = torch.library.Library("tritium", "IMPL")
_on_gpu.impl("train_linear", _linear_on_gpu, "CUDA")
_on_gpu.impl("train_gradients", _gradients_on_gpu, "CUDA")


@train_gradients.register_fake
def _(
    dy: Any, q: Any, a: Any, codes: Any, g: Any, columns: Any, dtype: Any, gradients: Any, for_x: bool, for_w: bool
) -> Tensors:  # fmt: skip
    m, n = dy.shape
    return dy.new_empty((m, columns) if for_x else 0), dy.new_empty((n, columns) if for_w else 0, dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weight, bias, _, _, ctx.gradients = inputs
    ctx.shape, ctx.kind, ctx.of_weight = x.shape, x.dtype, weight.dtype
    ctx.of_bias = None if bias is None else bias.dtype
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    """Return dx = dy @ (g t), dW = dy.T @ (q a) and the sum of dy for the bias."""
    if dy is None:
        return None, None, None, None, None, None
    if torch.is_grad_enabled():
        raise ArgumentError(
            "train_linear has no second derivatives: set `kernels = False` on the BitLinear layers, which then compute in torch's operations."
        )
    for_x, for_w, for_bias = ctx.needs_input_grad[:3]
    flat = dy.reshape(-1, dy.shape[-1])
    dx = dw = db = None
    if for_x or for_w:
        saved, of_weight = ctx.saved_tensors, ctx.of_weight
        both = torch.ops.tritium.train_gradients(flat, *saved, ctx.shape[-1], of_weight, ctx.gradients, for_x, for_w)
        dx = both[0].view(ctx.shape).to(ctx.kind) if for_x else None
        dw = both[1] if for_w else None
    if for_bias:
        db = flat.sum(0, dtype=torch.float32).to(ctx.of_bias)
    return dx, dw, db, None, None, None


train_linear.register_autograd(_backward, setup_context=_save)
