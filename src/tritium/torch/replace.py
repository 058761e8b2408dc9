"""BitLinear in the place of the linear layers of a model: those of torch, and transformers' own ternary ones.

`set_lambda` sets how far all layers of a model are quantised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tritium.errors import ArgumentError
from tritium.torch.formulas import TINY, absmean, magnitude
from tritium.torch.layer import BitLinear, bit_linears

HEADS = ("lm_head", "embed_out", "score", "classifier")  # what common models call the layer that is not made ternary

USUAL = (256, 128, 64, 32)  # groups that files have

AUTO = "transformers.integrations.bitnet.AutoBitLinear"
PACKED = "transformers.integrations.bitnet.BitLinear"

log = logging.getLogger("tritium")


def replace_linears(
    model: nn.Module,
    *,
    skip: Iterable[str] = HEADS,
    filter: Callable[[str, nn.Module], bool] | None = None,
    axis: int | None = None,
    group: int = 0,
    scales: str = "absmean",
    activations: str = "token",
    gradients: str = "bf16",
    scale_dtype: str | None = None,
) -> nn.Module:
    """Put a BitLinear in the place of every linear layer, in the model itself; weights and biases stay the same tensors.

    Left alone: layers with a name of `skip` in their path, those whose weight is an embedding's, those `filter(name, layer)`
    says no to, and subclasses of nn.Linear whose owner may read the weight itself. transformers' own AutoBitLinear and BitLinear
    are replaced too; where they hold ternary weights alone, masters are made that give the same weights and scale. What was
    done is logged (logger "tritium", level info); `bit_linears(model)` lists it. `axis`, `group`, `scales`, `activations`,
    `gradients` and `scale_dtype` are those of `BitLinear`.
    """
    form = {
        "axis": axis, "group": group, "scales": scales, "activations": activations, "gradients": gradients, "scale_dtype": scale_dtype,
    }  # fmt: skip
    skipped = tuple(skip)
    tied = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    replacements: dict[int, BitLinear] = {}  # a layer that has two names stays one layer
    done, left = [], []
    for name, old in list(model.named_modules(remove_duplicate=False)):
        make = _MAKERS.get(f"{type(old).__module__}.{type(old).__name__}")
        if make is None:
            continue
        parts = name.split(".")
        if any(s in parts for s in skipped) or id(old.weight) in tied or (filter is not None and not filter(name, old)):
            left.append(name)
            continue
        if not name:
            raise ArgumentError("replace_linears: the model is itself a linear layer; put it into an nn.Sequential.")
        new = replacements.get(id(old)) or replacements.setdefault(id(old), make(old, form).train(old.training))
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, parts[-1], new)
        if isinstance(owner, nn.TransformerEncoderLayer):
            owner.activation_relu_or_gelu = 0  # its fast path reads the weights of its linear layers, not the layers
        done.append(name)
    if not done and not bit_linears(model):
        raise ArgumentError(
            f"replace_linears: there is no linear layer to replace; left alone: {left or 'none found'}."
        )
    log.info("replace_linears: %d replaced (%s); left alone: %s", len(done), ", ".join(done), ", ".join(left) or "none")
    return model


def _empty(old: Any, shape: torch.Size, form: dict[str, Any]) -> BitLinear:
    """Return a layer without numbers, for those of another."""
    n, k = shape
    norm = getattr(old, "rms_norm", None)
    new = BitLinear(k, n, bias=False, norm="rms" if norm is not None else None, device="meta", **form)
    if norm is not None:
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None)) or 1e-6
        new.rms_norm = nn.RMSNorm(k, eps=eps, device="meta")
        new.rms_norm.weight = norm.weight
    return new


def _from_linear(old: Any, form: dict[str, Any]) -> BitLinear:
    _check_scales_stay(old.weight, form)
    return _from_masters(old, form)


def _check_scales_stay(weight: torch.Tensor, form: dict[str, Any]) -> None:
    """Raise for weights that are ternary already and would be so with other scales."""
    columns = weight.shape[-1]
    rows = [(0, 0)] if columns > 1 else []  # a row of one weight has one magnitude, whatever it is
    shapes = [(None, 0), *rows, *((None, group) for group in USUAL if columns % group == 0)]
    form_of_scales = form["axis"], form["group"]
    axis, group = next(
        (s for s in dict.fromkeys((form_of_scales, *shapes)) if magnitude(weight, *s) is not None), (None, -1)
    )
    if group < 0:
        return
    if (axis, group) == form_of_scales:
        size, mean = magnitude(weight, axis, group), absmean(weight, axis, group)
        assert size is not None
        if form["scales"] == "learned" or torch.allclose(size.clamp_min(TINY), mean, rtol=1e-3):
            return
        why = f"the mean magnitude would change a scale of {size.max().item():.4g} to {mean.max().item():.4g}"
    else:
        why = f"axis={form['axis']} and group={form['group']} have no room for their scales"
    raise ArgumentError(
        f"replace_linears: the weights [{weight.shape[0]}, {columns}] of a layer are ternary already, and {why}. Keep them with "
        f"axis={axis}, group={group}, scales='learned'; tritium.torch.load and load_ternary do so for files."
    )


def _from_masters(old: Any, form: dict[str, Any]) -> BitLinear:
    new = _empty(old, old.weight.shape, form)
    new.weight, new.bias = old.weight, old.bias
    new.reset_scale()
    return new


def held_ternary(old: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return (t, scale) of a layer of transformers that holds ternary weights: int8 and f32; None for any other layer."""
    kind = f"{type(old).__module__}.{type(old).__name__}"
    if kind == PACKED:  # four rows in a byte, and a scale that divides
        codes = torch.cat([(old.weight >> 2 * i) & 3 for i in range(4)])
        return codes.to(torch.int8) - 1, 1 / old.weight_scale.float()
    if kind == AUTO and getattr(old, "weight_scale", None) is not None:
        return old.weight.detach().to(torch.int8), old.weight_scale.float()
    return None


def _from_theirs(old: Any, form: dict[str, Any]) -> BitLinear:
    """Replace transformers' layers: masters as they are, or of ternary weights such that have them as values."""
    held = held_ternary(old)
    if held is None:
        return _from_masters(old, form)
    kind = old.weight.dtype if old.weight.is_floating_point() else old.weight_scale.dtype
    return _from_ternary(old, held[0].to(kind), held[1], form)


def _from_ternary(old: Any, t: torch.Tensor, scale: torch.Tensor, form: dict[str, Any]) -> BitLinear:
    """Return a layer with these weights and this scale: as a learned one, or as the mean of the masters, which are the larger the fewer
    weights are not zero."""
    if form["group"] or form["axis"] is not None:
        raise ArgumentError(
            "replace_linears: a layer of transformers holds ternary weights with one scale; rows or groups of them have other means. "
            "Leave axis and group out, or start from the masters."
        )
    wide = t.detach().float()
    size = scale.float() if form["scales"] == "learned" else scale.float() / wide.abs().mean().clamp_min(TINY)
    new = _empty(old, t.shape, form)
    new.weight = nn.Parameter((wide * size).to(t.dtype))
    new.bias = None if old.bias is None else nn.Parameter(old.bias.detach())
    if new.scale is not None:
        new.scale = nn.Parameter(scale.detach().float().reshape(()).clamp_min(TINY))
    return new


_MAKERS: dict[str, Callable[[Any, dict[str, Any]], BitLinear]] = {
    "torch.nn.modules.linear.Linear": _from_linear,
    AUTO: _from_theirs,
    PACKED: _from_theirs,
}


def set_lambda(model: nn.Module, value: float) -> None:
    """Set how far the layers of a model are quantised: from 0, plain linear layers, to 1. Fine-tuning raises it over some
    hundred steps."""
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ArgumentError(f"set_lambda: a number from 0 to 1 is needed, given {value!r}.")
    layers = bit_linears(model)
    if not layers:
        raise ArgumentError("set_lambda: the model has no BitLinear; call replace_linears(model) first.")
    for layer in layers.values():
        layer.lambda_ = value
