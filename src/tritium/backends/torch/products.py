"""Products by torch: of floats, and of int8 activations with integer weights, whose int32 sums are exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from tritium import dtype as dt, ops
from tritium.backends.reference.packed import Packed
from tritium.backends.reference.quantized import TINY
from tritium.backends.torch.space import Space, Value
from tritium.backends.values.namespace import Fitted
from tritium.backends.values.packed import decode
from tritium.backends.values.quantized import by_groups, grouped_sums, largest, plain_dot, scaled, tokens
from tritium.op import Op, Spec

Fn = Callable[..., Any]


def steady(space: Space, fn: Fn) -> Fn:
    """Under torch.autocast products would be carried out in half floats: not ours."""
    kind = space.device.type

    def run(*xs: Any) -> Any:
        if not torch.is_autocast_enabled(kind):
            return fn(*xs)
        with torch.autocast(kind, enabled=False):
            return fn(*xs)

    return run


# ---- floats


# Whether any device casts: torch's own question of one device costs more than the answer is worth to a small product.
_may_cast: Fn = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def _product(space: Space, fn: Fn) -> Fn:
    may_cast, otherwise = _may_cast, steady(space, fn)

    def run(a: Value, b: Value) -> Value:
        return otherwise(a, b) if may_cast() else fn(a, b)

    return run


def _matmul(space: Space) -> Fn:
    matrices, others = _product(space, torch.mm), _product(space, torch.matmul)

    def choose(a: Spec, b: Spec) -> Fn:
        return matrices if a.ndim == b.ndim == 2 else others

    return lambda out, algorithm: Fitted(space, choose)


def _linear(space: Space) -> Fn:
    def maker(out: Spec) -> Fn:
        to = space.twin(out.dtype)
        return steady(space, lambda x, w, bias: functional.linear(x.float(), w.float(), bias).to(to))

    return maker


# ---- integers


@cache
def int8_is_exact() -> bool:
    """Return True if torch's own product of int8 matrices is there and adds without saturating, as some processors do."""
    try:
        for a, b in ((-128, -128), (-128, 127), (127, 127)):
            x, y = (torch.full((3, 515), n, dtype=torch.int8, device="cpu") for n in (a, b))
            if not bool((torch._int_mm(x, y.T) == a * b * 515).all()):
                return False
    except (RuntimeError, AttributeError):
        return False
    return True


def integers(space: Space, w: Any) -> Value:
    """Weights as int8 [N, K]. Unpacked once for each value: they stay with it, until it is written."""
    if not isinstance(w, Packed):
        return w
    data: Any = w.data
    if data.is_inference() or getattr(data, "exported", False):  # not all of its writes are counted
        return decode(space, w, checked=False)
    known = getattr(data, "unpacked", None)
    if known is None or known[:2] != (data._version, w[1:]):
        known = data.unpacked = (data._version, w[1:], decode(space, w, checked=False).contiguous())
    weights: Value = known[2]
    return weights


def _row_by_row(x: Value) -> Value:
    """A matrix whose strides say so too where a size is 1: torch's product of int8 reads them even then."""
    x = x.contiguous()
    return x if x.stride(0) == x.shape[1] else torch.as_strided(x, x.shape, (x.shape[1], 1))


def _dot(space: Space, q: Value, t: Value, most: int) -> Value:
    """q [M, K] @ t [N, K].T as int32."""
    if not (q.numel() and t.numel()):
        return torch.zeros((q.shape[0], t.shape[0]), dtype=torch.int32, device=space.device)
    if space.on_host and q.shape[1] > 1 and int8_is_exact():  # of one column it is wrong
        return torch._int_mm(_row_by_row(q), _row_by_row(t).T)
    sums: Value = plain_dot(space, q, t, most)
    return sums


def _tokens(space: Space) -> Fn:
    """(q, scale [..., 1]) of `quantized.tokens`, in as few passes as torch allows."""
    levels = torch.full((), 127.0, dtype=torch.float32, device=space.device)
    tiny = float(TINY)

    def run(x: Value) -> tuple[Value, Value]:
        if not x.shape[-1]:
            q, scale, _ = tokens(space, x)
            return q, scale[..., None]
        x = x.float()
        size = torch.amax(torch.abs(x), -1, keepdim=True)
        whole = torch.isfinite(size)
        most = torch.where(whole, size, 0.0).clamp_min_(tiny)
        steps = torch.where(whole, x, 0.0).mul_(levels / most).round_().clamp_(-128, 127)
        return steps.to(torch.int8), torch.where(whole, most / levels, float("nan"))

    return run


def _most(w: Any) -> int:
    return largest(w.dtype if isinstance(w, Packed) else dt.i8)


def _integer_matmul(space: Space) -> Fn:
    def run(q: Value, w: Any) -> Value:
        lead = q.shape[:-1]
        sums = _dot(space, q.reshape(lead.numel(), q.shape[-1]), integers(space, w), _most(w))
        return sums.reshape(*lead, w.shape[0])

    return lambda out: steady(space, run)


def _quantized_matmul(space: Space) -> Fn:
    """The steps of `quantized`, one rounding each."""
    quantise = _tokens(space)

    def group_dots(q: Value, w: Any, group: int) -> list[Value]:
        t, most = integers(space, w), _most(w)
        parts = (slice(start, start + group) for start in range(0, q.shape[1], group))
        return [_dot(space, q[:, part], t[:, part], most).float() for part in parts]

    def maker(out: Spec, group: int, activations: str) -> Fn:
        to = space.twin(out.dtype)

        def run(x: Value, w: Any, scale: Value, bias: Value | None) -> Value:
            lead, k, n = x.shape[:-1], x.shape[-1], w.shape[0]
            if activations == "float" or not (x.numel() and n):
                return scaled(space, x, w, scale, bias, group, activations).to(to)
            scale = scale.float()
            if activations == "group":
                q, by = by_groups(space, x.reshape(lead.numel(), k), group)
                y = grouped_sums(space, group_dots(q, w, group), scale, group, by).reshape(*lead, n)
            else:
                q, token_scale = quantise(x)
                rows = q.reshape(lead.numel(), k)
                if group:
                    dots = group_dots(rows, w, group)
                    y = grouped_sums(space, dots, scale, group, None).reshape(*lead, n) * token_scale
                else:
                    sums = _dot(space, rows, integers(space, w), _most(w)).float()
                    y = sums.reshape(*lead, n) * (token_scale * scale)
            return (y if bias is None else y + bias).to(to)

        return steady(space, run)

    return maker


def makers(space: Space) -> dict[Op, Fn]:
    return {
        ops.matmul: _matmul(space),
        ops.linear: _linear(space),
        ops.integer_matmul: _integer_matmul(space),
        ops.quantized_matmul: _quantized_matmul(space),
    }
