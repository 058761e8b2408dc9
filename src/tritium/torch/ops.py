"""Ternary layers as operators of PyTorch: `torch.ops.tritium.bit_linear` and `torch.ops.tritium.ternary_linear`.

Both have a fake, so that `torch.compile(fullgraph=True)` and `torch.export` take them whole, and a gradient: roundings count as the
identity. `bit_linear` takes latent weights, which are packed once and again after every write that torch counts; `ternary_linear`
takes packed ones, as `pack` makes them. On a GPU they run on the kernels of `cuda.linear`, whose launches are replayed; elsewhere on
those of the device's backend.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from tritium import interop, nn as native
from tritium.backends.cuda.gpu import make_apart
from tritium.errors import ArgumentError
from tritium.torch.formulas import (
    absmean,
    check_activations,
    dequantised,
    learned,
    pack,
    round_activations,
    ternarise,
    unpack,
)

_kept: Any = WeakTensorKeyDictionary()  # of weights or codes: what was made of them, by the options of the layer


class Packed:
    """A layer made ready for the kernels of its device."""

    def __init__(
        self, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, columns: int, group: int, activations: str
    ) -> None:  # fmt: skip
        self.codes, self.scale, self.bias = codes, scale, bias
        self.columns, self.group, self.activations = columns, group, activations
        self.made_of: tuple[Any, ...] | None = None
        self.alive: tuple[
            torch.Tensor, ...
        ] = ()  # keeps the memory, so that an address cannot come back with other numbers

    def is_of(self, *tensors: torch.Tensor | None) -> bool:
        """Return True if it was made of these tensors, and torch counted no write to them since."""
        return self.made_of == _state_of(tensors)

    @cached_property
    def layer(self) -> native.BitLinear:
        """Return the layer as tritium's own, on the device of the codes."""
        bias = None if self.bias is None else self.bias.cpu().numpy()
        scale = self.scale.cpu().numpy()
        t = unpack(self.codes, self.columns).cpu().numpy()
        layer = native.BitLinear.from_ternary(t, bias, scale=scale, group=self.group, activations=self.activations)
        return layer if self.codes.is_cpu else layer.to(str(self.codes.device))

    @cached_property
    def _on_gpu(self) -> Callable[[torch.Tensor], torch.Tensor]:
        from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights

        w = cuda_weights.ternary(self.codes, (self.codes.shape[0], self.columns))
        scale, bias = self.scale, self.bias
        by_group = self.activations == "group"
        return lambda x: cuda_ternary.linear(x, w, scale, bias, x.dtype, self.group, by_group=by_group)

    @cached_property
    def replayed(self) -> Any:
        """Return the layer on a GPU by launches that are kept."""
        from tritium.backends.cuda.linear.replay import Plans

        return Plans(self._on_gpu)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's result, of the dtype of x."""
        if x.is_cuda and self.activations != "float":
            y: torch.Tensor = self.replayed(x)
            return y
        return interop.to_torch(self.layer(interop.from_torch(x.detach())))


def quick(
    ready: Packed, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None
) -> Callable[[torch.Tensor, dict[str, Any]], torch.Tensor | None] | None:
    """Return a way for calls of a module in eval that are like those before, as `launcher.quick`; None where there is no faster one."""
    if not ready.codes.is_cuda or ready.activations == "float" or not ready.is_of(weight, bias, scale):
        return None
    from tritium.backends.cuda.launcher import quick as launches

    return launches(ready.codes.device.index, {"weight": weight, "bias": bias, "scale": scale}, ready.replayed.native)


def is_watched() -> bool:
    """Return True if vmap, forward derivatives or a tracer would miss what happens outside of torch's operations."""
    return (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def _state_of(tensors: tuple[torch.Tensor | None, ...]) -> tuple[Any, ...] | None:
    """Return where tensors are and how often each was written; None where writes are not counted, as to those of inference mode."""
    try:
        return tuple(None if t is None else (t.data_ptr(), t._version) for t in tensors)
    except RuntimeError:  # what torch raises for the version of a tensor of inference mode
        return None


def packed(
    weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, group: int, activations: str,
    scale: torch.Tensor | None = None, scale_dtype: str | None = None,
) -> Packed:  # fmt: skip
    """Return latent weights made ready, again when torch counted a write to them, to the bias or to a learned scale."""
    make = lambda: _made_of(weight, bias, axis, group, activations, scale, scale_dtype)
    return _keep((weight, bias, scale), (axis, group, activations, scale_dtype), make)


def _keep(tensors: tuple[torch.Tensor | None, ...], key: tuple[Any, ...], make: Callable[[], Packed]) -> Packed:
    """Return what is kept with the first of some tensors, made again when one is another tensor or was written."""
    owner = tensors[0]
    assert owner is not None
    known = _kept.setdefault(owner, {})
    entry = known.get(key)
    if entry is None or not entry.is_of(*tensors):
        made_of = _state_of(tensors)
        entry = make_apart(make, owner.device)
        entry.made_of = (object(),) if made_of is None else made_of
        entry.alive = tuple(t.detach() for t in tensors if t is not None)
        known[key] = entry
    return entry


def _made_of(
    weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, group: int, activations: str, scale: torch.Tensor | None,
    scale_dtype: str | None,
) -> Packed:  # fmt: skip
    g = absmean(weight, axis, group, scale_dtype) if scale is None else learned(scale, group, scale_dtype)
    t, g = ternarise(weight, axis=axis, group=group, scale=g)
    with torch.no_grad():
        bias_copy = None if bias is None else bias.detach().float().clone()
        return Packed(pack(t), g.half() if group else g, bias_copy, weight.shape[1], group, activations)


def forget(weight: torch.Tensor) -> None:
    """Drop what was made of weights: they were written in a way that torch does not count."""
    _kept.pop(weight, None)
    for key in [key for key in _again if key[0] == id(weight)]:
        del _again[key]


def _packed_codes(
    codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, columns: int, group: int, activations: str
) -> Packed:  # fmt: skip
    """Return codes with their scales made ready, again when one of them is another tensor or was written."""
    make = lambda: _made_ready(codes, scale, bias, columns, group, activations)
    return _keep((codes, scale, bias), (columns, group, activations), make)


def _made_ready(
    codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, columns: int, group: int, activations: str
) -> Packed:  # fmt: skip
    with torch.no_grad():
        bias_copy = None if bias is None else bias.detach().float().clone()
        scales = scale.detach().half() if group else scale.detach().float()
        return Packed(codes.detach(), scales.clone(), bias_copy, columns, group, activations)


def _check(x: torch.Tensor, columns: int, group: int, activations: str) -> None:
    check_activations(activations, group)
    if x.shape[-1] != columns:
        raise ArgumentError(
            f"tokens have {x.shape[-1]} columns and weights {columns}; the layer takes tokens of {columns} columns."
        )


# ---- latent weights


@torch.library.custom_op("tritium::bit_linear", mutates_args=())
def bit_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, group: int, activations: str
) -> torch.Tensor:  # fmt: skip
    """Return x [..., k] through a layer of latent weights [n, k], as `tritium.torch.BitLinear` in eval: [..., n] of the dtype of x."""
    _check(x, weight.shape[1], group, activations)
    return packed(weight, bias, axis, group, activations).run(x.contiguous())


class _Kept(NamedTuple):
    """A tensor that was made ready: where it was then, and how often written."""

    tensor: Callable[[], Any]  # a weak reference
    version: int
    address: int

    def is_still(self, tensor: Any) -> bool:
        """Return True if it is this tensor, and torch counted no write to it since."""
        return self.tensor() is tensor and tensor._version == self.version and tensor.data_ptr() == self.address


class _Again(NamedTuple):
    """A call whose weights and bias were made ready, and the native launch of its plans."""

    weight: _Kept
    bias: _Kept | None
    launch: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor | None]

    def is_of(self, weight: Any, bias: Any) -> bool:
        """Return True if weights and bias are those that were made ready, unwritten."""
        (tensor, version, address), of_bias, _ = self  # written out: this is a part of every call
        if tensor() is not weight or weight._version != version or weight.data_ptr() != address:
            return False
        return bias is of_bias is None or (bias is not None and of_bias is not None and of_bias.is_still(bias))


_NOTHING: dict[str, Any] = {}
_again: dict[tuple[Any, ...], _Again] = {}  # by the identity of weights and bias and the options of the layer


def _bit_linear_on_gpu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, axis: int | None, group: int, activations: str
) -> torch.Tensor:  # fmt: skip
    """Compute `bit_linear` on a GPU. A call like one before launches its plan at once: the dispatcher calls this directly."""
    key = id(weight), id(bias), axis, group, activations
    known = _again.get(key)
    if known is not None and known.is_of(weight, bias) and (y := known.launch(x, _NOTHING)) is not None:
        return y
    _check(x, weight.shape[1], group, activations)
    ready = packed(weight, bias, axis, group, activations)
    y = ready.run(x.contiguous())
    _remember(key, ready, weight, bias)
    return y


def _kept_now(tensor: torch.Tensor, at_end: Callable[[Any], Any] | None = None) -> _Kept | None:
    """Return what tells whether a tensor is written; None where writes to it are not counted."""
    state = _state_of((tensor,))
    return None if state is None else _Kept(weakref.ref(tensor, at_end), state[0][1], state[0][0])


def _remember(key: tuple[Any, ...], ready: Packed, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Keep the native launch of a layer for as long as its weights live."""
    if ready.activations == "float" or (key in _again and _again[key].is_of(weight, bias)):
        return
    of_weight = _kept_now(weight, lambda _: _again.pop(key, None))
    of_bias = None if bias is None else _kept_now(bias)
    if of_weight is None or (of_bias is None and bias is not None):
        return
    from tritium.backends.cuda.launcher import quick as launches

    launch = launches(ready.codes.device.index, {}, ready.replayed.native)
    if launch is not None:
        _again[key] = _Again(of_weight, of_bias, launch)


_on_gpu = torch.library.Library("tritium", "IMPL")
_on_gpu.impl("bit_linear", _bit_linear_on_gpu, "CUDA")


@bit_linear.register_fake
def _(x: Any, weight: Any, bias: Any, axis: Any, group: Any, activations: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _save_latent(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias, ctx.axis, ctx.group, ctx.activations = inputs
    ctx.with_bias = bias is not None
    ctx.save_for_backward(x, weight)


def _latent_gradients(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    """Return dx = dy @ (g t), dW = dy.T @ (q amax / 127), products in the dtype of the layer."""
    x, weight = ctx.saved_tensors
    kind = x.dtype
    dx = dw = None
    if ctx.needs_input_grad[0]:
        t, g = ternarise(weight, axis=ctx.axis, group=ctx.group)
        dx = dy @ dequantised(t, g, ctx.group).to(kind)
    if ctx.needs_input_grad[1]:
        q, a = round_activations(x.float(), ctx.group, ctx.activations)
        rounded = (q * a).reshape(-1, x.shape[-1]).to(kind)
        dw = (dy.reshape(-1, dy.shape[-1]).t() @ rounded).to(weight.dtype)
    db = dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.with_bias and ctx.needs_input_grad[2] else None
    return dx, dw, db, None, None, None


bit_linear.register_autograd(_latent_gradients, setup_context=_save_latent)


# ---- packed weights


@torch.library.custom_op("tritium::ternary_linear", mutates_args=())
def ternary_linear(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, group: int, activations: str
) -> torch.Tensor:  # fmt: skip
    """Return x [..., k] times packed ternary weights [n, k], codes uint8 [n, k / 4] as `pack` makes them: [..., n] of the dtype of x.

    scale: f32, one number, one for each row [n], or with group one for each so many columns [n, k / group].
    """
    columns = x.shape[-1]
    _check(x, columns, group, activations)
    if codes.dtype is not torch.uint8 or codes.shape[-1] != -(-columns // 4):
        raise ArgumentError(
            f"codes are uint8 [rows, {-(-columns // 4)}] for tokens of {columns} columns, four weights a byte; given "
            f"{codes.dtype} {tuple(codes.shape)}. Pack int8 weights with tritium.torch.ops.pack."
        )
    return _packed_codes(codes, scale, bias, columns, group, activations).run(x.contiguous())


@ternary_linear.register_fake
def _(x: Any, codes: Any, scale: Any, bias: Any, group: Any, activations: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


def _save_codes(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, codes, scale, bias, ctx.group, _ = inputs
    ctx.columns, ctx.with_bias = x.shape[-1], bias is not None
    ctx.save_for_backward(codes, scale)


def _code_gradients(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    """Return dx = dy @ (scale t); codes and scales have no gradient."""
    codes, scale = ctx.saved_tensors
    dx = None
    if ctx.needs_input_grad[0]:
        dx = dy @ dequantised(unpack(codes, ctx.columns), scale.float(), ctx.group).to(dy.dtype)
    db = dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.with_bias and ctx.needs_input_grad[3] else None
    return dx, None, None, db, None, None


ternary_linear.register_autograd(_code_gradients, setup_context=_save_codes)
