"""The formulas of BitNet in torch's operations: scales, rounded weights and activations, packed codes.

Knows nothing of layers, kernels or gradients of its own: what is rounded here has the gradient of what it was.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tritium.errors import ArgumentError, QuantError

ACTIVATIONS = ("token", "group", "float")
SCALE_DTYPES = (None, "f16")
TINY = 1e-5  # the least mean and the least maximum: zeros must not divide
TINIEST = 1e-30  # the least maximum of gradients, which are small numbers


def absmean(
    w: torch.Tensor, axis: int | None = None, group: int = 0, scale_dtype: str | None = None
) -> torch.Tensor:  # fmt: skip
    """Return g, the mean magnitude of the weights, in f32: of the tensor, of each row (axis 0) or of each group of columns.

    It is summed in f64, so that it does not depend on the device, and rounded as `stored` says."""
    size = w.detach().abs()
    if group:
        g = mean_of(size.unflatten(-1, (-1, group)).sum(-1, dtype=torch.float64), group)
    elif axis is None:
        g = mean_of(size.sum(dtype=torch.float64), size.numel())
    else:
        g = mean_of(size.sum(1, dtype=torch.float64), size.shape[1])
    return stored(g, group, scale_dtype)


def stored(g: torch.Tensor, group: int, scale_dtype: str | None) -> torch.Tensor:
    """Return scales in f32 as files store them: those of groups are f16 in every file, others where `scale_dtype` is "f16"."""
    return g.half().float() if group or scale_dtype == "f16" else g


def mean_of(total: torch.Tensor, count: int) -> torch.Tensor:
    """Return total / count in f32, at least TINY.

    It is divided by a tensor: by a number, a GPU multiplies with the reciprocal, which takes halves of f32 another way."""
    return (total / torch.full_like(total, count)).float().clamp_min(TINY)


def magnitude(w: torch.Tensor, axis: int | None = None, group: int = 0) -> torch.Tensor | None:
    """Return the scales of weights that are ternary already, 0 and ± one number in each tensor, row (axis 0) or group of columns, in f32;
    None where they are not, or have no numbers yet."""
    if w.is_meta or not w.numel():
        return None
    size = w.detach().abs()
    if len(size[:1, : group or 16].unique()) > 2:  # a glance: most weights are told by it
        return None
    units = size.unflatten(-1, (-1, group)) if group else size if axis is not None else size.flatten()
    largest = units.amax(-1, keepdim=True)
    if not ((units == largest) | (units == 0)).all():
        return None
    return largest.squeeze(-1).float()


def absmax(x: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude along the last axis: of each token, or of each of its groups."""
    return x.detach().abs().amax(-1, keepdim=True).clamp_min(TINY)


def rounded(x: torch.Tensor, lambda_: float, most: float | None = None) -> torch.Tensor:
    """Return x rounded to whole numbers (within ±most), or a part of the way there; its gradient is that of x.

    x + (round(x) - x) is exact: both are multiples of the last place of x.
    """
    still = x.detach()  # not no_grad(), through which forward derivatives pass
    near = still.round()
    step = (near if most is None else near.clamp(-most, most)).sub_(still)
    return x + (step if lambda_ == 1 else step.mul_(lambda_))


@torch.no_grad()
def ternarise(
    weight: torch.Tensor, *, axis: int | None = None, group: int = 0, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (t, g): the weights as -1, 0 and 1 in int8, and the f32 scales that multiply them.

    One scale for the tensor, one for each row (axis=0), or one for each `group` of columns, [rows, columns / group]: the mean
    magnitude of the weights, or `scale` where it was learned."""
    if not torch.isfinite(weight).all():
        raise QuantError("ternarise: the weights hold NaN or infinity; the training diverged.")
    check_scales(axis, group, weight.shape[-1])
    g = absmean(weight, axis, group) if scale is None else scale.detach()
    if not torch.isfinite(g).all():
        raise QuantError("ternarise: the scales hold NaN or infinity; the training diverged.")
    return (weight.float() * (1 / spread(g, group))).round_().clamp_(-1, 1).to(torch.int8), g


def spread(g: torch.Tensor, group: int) -> torch.Tensor:
    """Return scales in a shape that broadcasts against the weights [rows, columns]."""
    return g.repeat_interleave(group, -1) if group else g[:, None] if g.ndim else g


def check_scales(axis: int | None, group: int, columns: int) -> None:
    """Raise unless the scales are those of a tensor, of its rows, or of groups that divide its columns."""
    if axis not in (None, 0) or isinstance(axis, bool):
        raise ArgumentError(f"axis is None (a scale for the tensor) or 0 (one for each row), given {axis!r}.")
    if isinstance(group, bool) or not isinstance(group, int) or group < 0 or (group and columns % group):
        raise ArgumentError(f"group: columns that share a scale must divide the {columns} columns, given {group!r}.")
    if group and axis is not None:
        raise ArgumentError(
            f"axis={axis} and group={group} were given: scales are those of rows or of groups; give one."
        )


def check_activations(activations: str, group: int) -> None:
    """Raise unless activations are rounded in one of the ways there are: by groups only where the weights have them."""
    if activations not in ACTIVATIONS or (activations == "group" and not group):
        raise ArgumentError(
            f"activations are 'token', 'group' (with a group) or 'float', given {activations!r} and group={group}."
        )


def round_activations(
    x: torch.Tensor, group: int, activations: str, lambda_: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Return activations and what multiplies them: integers by token or group, or the floats; with groups [..., groups, group]."""
    grouped = x.unflatten(-1, (-1, group)) if group else x
    if activations == "float":
        return grouped, 1.0
    amax = absmax(grouped if activations == "group" else x)
    amax = amax[..., None] if group and activations == "token" else amax
    most = torch.full_like(
        amax, 127
    )  # a number would be divided by its reciprocal, and that of amax multiplied: one rounding more
    return rounded(grouped * (most / amax), lambda_), amax / most


def int8_rows(dy: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients [m, n] as whole numbers within 127 and their size [m, 1], for the product with ternary weights.

    Where rows of weights have scales g [n] of their own, gradients are multiplied by them before."""
    wide = dy.float() * g if g.ndim else dy.float()
    return _in_steps(wide, wide.abs().amax(-1, keepdim=True))


def int8_columns(dy: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients [m, n] times the scales of tokens [m] as whole numbers within 127 and their size [n], for int8 tokens."""
    wide = dy.float() * a[:, None]
    return _in_steps(wide, wide.abs().amax(0))


def _in_steps(x: torch.Tensor, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x rounded to the steps of int8 for a largest magnitude, and the size of a step."""
    amax = amax.clamp_min(TINIEST)
    most = torch.full_like(amax, 127)
    return (x * (most / amax)).round(), amax / most


def learned(scale: torch.Tensor, group: int, scale_dtype: str | None = None) -> torch.Tensor:
    """Return a learned scale as the layer multiplies with it, in f32 and above zero, rounded as `stored` says.

    The gradient passes both; its value is added to a zero, since x + (y - x) need not be y."""
    still = scale.detach().float()
    g = still.clamp_min(TINY)
    return stored(g, group, scale_dtype) + (scale.float() - still)


def dequantised(t: torch.Tensor, g: torch.Tensor, group: int) -> torch.Tensor:
    """Return ternary weights times their scales, in f32."""
    return t.float() * spread(g, group)


# ---- packed codes


def pack(t: torch.Tensor) -> torch.Tensor:
    """Return int8 weights [n, k] of -1, 0 and 1 as uint8 [n, k / 4]: four columns a byte, w + 1 in two bits, the first lowest."""
    codes = functional.pad((t + 1).to(torch.uint8), (0, -t.shape[-1] % 4), value=1)
    c0, c1, c2, c3 = codes.unflatten(-1, (-1, 4)).unbind(-1)
    return c0 | c1 << 2 | c2 << 4 | c3 << 6


def unpack(codes: torch.Tensor, columns: int, kind: torch.dtype = torch.int8) -> torch.Tensor:
    """Return packed weights as [n, columns] of a dtype; nothing else is as large while they are made."""
    each = torch.empty((*codes.shape, 4), dtype=kind, device=codes.device)
    for i in range(4):
        each[..., i] = (codes >> (2 * i)) & 3
    return each.flatten(-2).sub_(1)[..., :columns].contiguous()


def padded(columns: int) -> int:
    """Return the columns of int8 tokens and of planes as the kernels of a GPU read them: whole blocks of 128, at least one."""
    return max(-(-columns // 128), 1) * 128


def planes(t: torch.Tensor) -> torch.Tensor:
    """Return int8 weights [n, k] of -1, 0 and 1 as uint8 [n, padded(k) / 4]: w + 1 in two bits, columns of a byte a quarter of a row apart."""
    codes = functional.pad((t + 1).to(torch.uint8), (0, padded(t.shape[-1]) - t.shape[-1]))
    c0, c1, c2, c3 = codes.unflatten(-1, (4, -1)).unbind(-2)
    return c0 | c1 << 2 | c2 << 4 | c3 << 6


def from_planes(codes: torch.Tensor, columns: int) -> torch.Tensor:
    """Return codes in planes as int8 [n, columns]."""
    each = torch.cat([(codes >> (2 * i)) & 3 for i in range(4)], -1)[..., :columns]
    return each.to(torch.int8) - 1
