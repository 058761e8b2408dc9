"""The layer: BitLinear, trained with straight-through estimators in torch, run on tritium's kernels.

`tritium.torch` says which path a call takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, Self

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook

from tritium import buffer, nn as native
from tritium.errors import ArgumentError
from tritium.torch import ops
from tritium.torch.cpu_steps import PackedStep
from tritium.torch.formulas import (
    SCALE_DTYPES,
    TINY,
    absmean,
    check_activations,
    check_scales,
    learned,
    magnitude,
    round_activations,
    rounded,
    spread,
    ternarise,
)
from tritium.torch.gathered import GatheredWeight
from tritium.torch.steps import GRADIENTS

HAS_TRITON = find_spec("triton") is not None
SCALES = ("absmean", "learned")
LARGE_STEP = (
    1 << 33
)  # multiplications and additions from which kernels save more of the GPU's time than they take of the host's
LARGE_MATRIX = (
    1 << 17
)  # weights from which a training step on the CPU's kernels is faster, packing included: bench/torch_steps.py
HALVES_AND_SINGLES = {torch.float32, torch.float16, torch.bfloat16}
PACKED = {torch.float32, torch.float16} | ({torch.bfloat16} if buffer.native else set())  # NumPy hands out no bf16


def _count_fused_writes(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Count the writes of fused optimisers, which torch does not: packed weights are compared by that count."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([p for p in group["params"] if p.grad is not None])


register_optimizer_step_post_hook(_count_fused_writes)


class BitLinear(nn.Linear):
    """A linear layer with ternary weights; its parameters are the latent weights.

    Weights have one scale, one for each row (`axis=0`) or one for each `group` of columns (as Bonsai and BitCPM have them).
    `scales` are the mean magnitude of the weights ("absmean") or a parameter ("learned", from that mean; `reset_scale` sets it
    anew). `scale_dtype="f16"` rounds the scales of a tensor or of its rows to f16, as those of groups are: formats with f16 scales then
    hold them to the bit. `activations` are rounded to int8 by "token" (BitNet) or by "group", or stay "float". `norm="rms"` puts a learned RMS
    norm before the quantisation. `lambda_` is set for a whole model by `set_lambda`. `gradients` are products in "bf16", or in "int8"
    where a training step runs on a GPU's kernels: an approximation. `kernels` says whether training steps run on kernels: True, False (torch's
    operations), or None, where they are large or have int8 gradients.
    """

    scale: nn.Parameter | None
    kernels: bool | None = (
        None  # training steps that can run on kernels do: always, never, or (None) where they are large enough
    )
    gradients: str = "bf16"  # also of layers that were stored before they had it
    scale_dtype: str | None = None
    _quick: Any = None  # `ops.quick` of what was packed

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, *, norm: str | None = None, eps: float = 1e-5,
        axis: int | None = None, group: int = 0, scales: str = "absmean", activations: str = "token", lambda_: float = 1.0,
        gradients: str = "bf16", scale_dtype: str | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if norm not in (None, "rms"):
            raise ArgumentError(f"BitLinear: norm is None or 'rms', given {norm!r}.")
        check_scales(axis, group, in_features)
        if scales not in SCALES:
            raise ArgumentError(f"BitLinear: scales are {' or '.join(map(repr, SCALES))}, given {scales!r}.")
        check_activations(activations, group)
        if gradients not in GRADIENTS:
            raise ArgumentError(f"BitLinear: gradients are {' or '.join(map(repr, GRADIENTS))}, given {gradients!r}.")
        if scale_dtype not in SCALE_DTYPES:
            raise ArgumentError(
                f"BitLinear: scale_dtype is None (f32; f16 with groups) or 'f16', given {scale_dtype!r}."
            )
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.axis, self.group, self.activations, self.gradients = axis, group, activations, gradients
        self.scale_dtype = scale_dtype
        start = nn.Parameter(self._means()) if scales == "learned" else None
        self.register_parameter("scale", start)
        self.rms_norm = nn.RMSNorm(in_features, eps=eps, device=device, dtype=dtype) if norm else None
        self.lambda_ = lambda_
        self._packed: ops.Packed | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.rms_norm is not None:
            x = self.rms_norm(x)
        if self._quick is not None and not (self.training or torch.compiler.is_compiling()) and self.lambda_ == 1:
            y = self._quick(x, self._parameters)
            if y is not None:
                return y
        if self._through_kernels(x):
            return self._run_packed(x)
        if self.lambda_ == 0:
            return functional.linear(x, self.weight, self.bias)
        if self._steps_through_kernels(x):
            return self._step(x)
        if self._steps_on_the_cpu(x):
            stepped: torch.Tensor = PackedStep.apply(x, self.weight, self.bias, self.axis)
            return stepped
        return self._run_torch(x)

    def _through_kernels(self, x: torch.Tensor) -> bool:
        grads = torch.is_grad_enabled() and (
            x.requires_grad or any(p.requires_grad for p in (self.weight, self.bias, self.scale) if p is not None)
        )
        return (
            not (grads or self.training)
            and self.lambda_ == 1
            and x.device == self.weight.device
            and _plain(x)
            and _plain(self.weight)
            and (
                self.scale is None and self.scale_dtype is None
                if torch.compiler.is_compiling()
                else not ops.is_watched()
            )  # the operator takes no scale and no dtype of one
        )

    def _has_a_step(self) -> bool:
        """Return True if kernels have training steps of the layer: int8 by token, a scale that is no parameter, for all or by row, in f32."""
        return (
            self.lambda_ == 1
            and not self.group
            and self.activations == "token"
            and self.scale is None
            and self.scale_dtype is None
        )

    def _steps_through_kernels(self, x: torch.Tensor) -> bool:
        """Return True if a training step runs on kernels of a GPU: in bf16, for a layer that they have."""
        autocast = x.is_cuda and torch.is_autocast_enabled("cuda")
        enabled = self.kernels
        if enabled is None:
            enabled = self.gradients == "int8" or x.numel() * self.out_features >= LARGE_STEP
        return (
            enabled
            and x.is_cuda
            and (torch.get_autocast_dtype("cuda") if autocast else x.dtype) is torch.bfloat16
            and self._has_a_step()
            and x.device == self.weight.device
            and _plain(x)
            and _plain(self.weight)
            and (torch.compiler.is_compiling() or not ops.is_watched())
        )

    def _steps_on_the_cpu(self, x: torch.Tensor) -> bool:
        """Return True if a training step runs on the CPU's kernels: in f32, for a layer that they have."""
        enabled = self.weight.numel() >= LARGE_MATRIX if self.kernels is None else self.kernels
        return (
            enabled
            and buffer.native
            and x.is_cpu
            and x.dtype is self.weight.dtype is torch.float32
            and self._has_a_step()
            and (self.bias is None or self.bias.dtype is torch.float32)
            and x.numel() > 0
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
            and _plain(x)
            and _plain(self.weight)
            and not ops.is_watched()
        )

    def _step(self, x: torch.Tensor) -> torch.Tensor:
        """Run a forward pass of training on kernels, which keeps what its gradients need."""
        args = x, self.weight, self.bias, self.axis, torch.bfloat16, self.gradients
        y: torch.Tensor = torch.ops.tritium.train_linear(*args)[0]
        return y

    def _run_torch(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the formulas of the module in torch's operations, differentiable."""
        autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
        kind = dtype if dtype in (torch.bfloat16, torch.float64) else torch.float32
        with torch.autocast(x.device.type, enabled=False):
            q, a = round_activations(x.float(), self.group, self.activations, self.lambda_)
            g = self._scales()
            if self.group:  # its scales are inside the sum
                y = self._multiply((q * a).flatten(-2), g, kind)
            else:
                y = self._multiply(q, g, kind) * (a * g)
            return (y if self.bias is None else y + self.bias.float()).to(dtype)

    def _multiply(self, x: torch.Tensor, g: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """Return x times the ternary values of the weights, with groups times their scales too."""
        if isinstance(self.weight, GatheredWeight):
            return self.weight.multiply(x, kind)
        t = rounded(self.weight.float() * (1 / spread(g.detach(), self.group)), self.lambda_, most=1)
        return functional.linear(x.to(kind), (t * spread(g, self.group) if self.group else t).to(kind))

    def _scales(self) -> torch.Tensor:
        """Return what multiplies the ternary weights: the mean magnitude of the latent ones, or what was learned."""
        if isinstance(self.weight, GatheredWeight):
            return self.weight.scales()
        return self._means() if self.scale is None else learned(self.scale, self.group, self.scale_dtype)

    def _means(self) -> torch.Tensor:
        """Return the mean magnitude of the latent weights."""
        return absmean(self.weight, self.axis, self.group, self.scale_dtype)

    def ternary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (t, g), the int8 weights and f32 scales that the layer computes with and `export` writes."""
        return ternarise(self.weight, axis=self.axis, group=self.group, scale=self._scales())

    @torch.no_grad()
    def reset_scale(self) -> None:
        """Set a learned scale to the mean magnitude of the weights, or to that of all but zeros where they are ternary already: after they
        were initialised or loaded."""
        if self.scale is not None:
            start = magnitude(self.weight, self.axis, self.group)
            start = self._means() if start is None else start.clamp_min(TINY)
            self.scale = nn.Parameter(start, self.scale.requires_grad)

    def _run_packed(self, x: torch.Tensor) -> torch.Tensor:
        """Run the kernels: a compiler sees one operator; else it is called directly, which takes the host less time."""
        if torch.compiler.is_compiling():
            y = torch.ops.tritium.bit_linear(x, self.weight, self.bias, self.axis, self.group, self.activations)
        else:
            y = self._ready().run(x)
        kind = x.device.type
        return y.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else y

    def _ready(self) -> ops.Packed:
        packed = self._packed
        if packed is None or not packed.is_of(self.weight, self.bias, self.scale):
            packed = self._packed = ops.packed(
                self.weight,
                self.bias,
                self.axis,
                self.group,
                self.activations,
                scale=self.scale,
                scale_dtype=self.scale_dtype,
            )
            self._quick = ops.quick(packed, self.weight, self.bias, self.scale)
        return packed

    def packed(self) -> native.BitLinear:
        """Return the layer that kernels run, packed again when the parameters have changed."""
        return self._ready().layer

    def _forget(self) -> None:
        self._packed = self._quick = None
        ops.forget(self.weight)

    def train(self, mode: bool = True) -> Self:
        self._forget()
        return super().train(mode)

    def _apply(self, *args: Any, **options: Any) -> Self:
        self._forget()  # .to(), .half(), .float(): other numbers, perhaps at the same address
        return super()._apply(*args, **options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None, "_quick": None}

    def extra_repr(self) -> str:
        scales = f", group={self.group}" if self.group else "" if self.axis is None else f", axis={self.axis}"
        scales += "" if self.scale is None else ", scales='learned'"
        scales += "" if self.scale_dtype is None else f", scale_dtype={self.scale_dtype!r}"
        kind = "" if self.activations == "token" else f", activations={self.activations!r}"
        kind += "" if self.gradients == "bf16" else f", gradients={self.gradients!r}"
        return super().extra_repr() + scales + kind + ("" if self.lambda_ == 1 else f", lambda_={self.lambda_}")


def _plain(x: torch.Tensor) -> bool:
    """Return True if tritium can read the memory of x: a tensor of its own, on the CPU or on a GPU that our kernels run on."""
    kinds = (torch.Tensor, nn.Parameter, FakeTensor) if torch.compiler.is_compiling() else (torch.Tensor, nn.Parameter)
    whole = type(x) in kinds and x.layout is torch.strided
    return whole and ((x.is_cpu and x.dtype in PACKED) or (x.is_cuda and x.dtype in HALVES_AND_SINGLES and HAS_TRITON))


def bit_linears(model: nn.Module) -> dict[str, BitLinear]:
    """Return the BitLinear layers of a model by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, BitLinear)}


def has_sub_norms(layers: Iterable[Any]) -> bool:
    """Return True if some ternary layers of a model have a norm and others have none: these norms are sub-norms, which an exported model
    has before its layers; norms of all layers are inside them."""
    return len({layer.rms_norm is None for layer in layers}) > 1
