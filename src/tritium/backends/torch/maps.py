"""Rows that torch carries out element by element, casts among them.

Where torch's own function is not what the row says (the nearest number, the sign of a zero, a division by zero), it is put
right here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tritium import dtype as dt, ops
from tritium.backends.torch.space import HALF, TWINS, Space, Value
from tritium.backends.values.namespace import Bound, Fitted
from tritium.dtype import DType
from tritium.op import OPS, Op, Spec, outputs

Fn = Callable[..., Any]
Maker = Callable[..., Fn]


def same(fn: Fn) -> Maker:
    """A row that is a function of torch."""
    return lambda out: fn


def wide(maker: Maker) -> Maker:
    """f16 and bf16 are computed in f32 and rounded once, at the end."""

    def make(out: Any, **attrs: Any) -> Fn:
        fn = maker(out, **attrs)
        if outputs(out)[0].dtype not in (dt.f16, dt.bf16):
            return fn
        to, several = TWINS[outputs(out)[0].dtype], not isinstance(out, Spec)

        def run(*xs: Value | None) -> Any:
            result = fn(*(x.float() if x is not None and x.dtype in HALF else x for x in xs))
            return tuple(f.to(to) for f in result) if several else result.to(to)

        return run

    return make


# ---- element by element


def _either(of_floats: Fn, of_integers: Fn) -> Maker:
    return lambda out: of_floats if out.dtype.is_float else of_integers


def _whole_quotient(a: Value, b: Value) -> Value:
    """An integer divided by 0 gives 0; dividing by -1 is a change of sign, which processors trap at the lowest number."""
    special = (b == 0) | (b == -1) if b.is_signed() else b == 0
    quotient = torch.floor_divide(a, torch.where(special, 1, b))
    turned = torch.where(b == 0, 0, -a)
    return torch.where(special, turned.to(a.dtype), quotient)


def _whole_remainder(a: Value, b: Value) -> Value:
    special = (b == 0) | (b == -1) if b.is_signed() else b == 0
    return torch.where(special, 0, torch.remainder(a, torch.where(special, 1, b)))


def _quotient(a: Value, b: Value) -> Value:
    """With one infinity it is the quotient itself."""
    return torch.where(torch.isinf(a) != torch.isinf(b), a / b, torch.floor_divide(a, b))


def _remainder(space: Space) -> Fn:
    """torch's fmod gives NaN where the quotient is too large for the dtype: f32 goes by way of f64, f64 by NumPy."""

    def remainder(a: Value, b: Value) -> Value:
        wide_b = b.to(space.widest)
        there = by_numpy(np.fmod) if a.dtype is torch.float64 and space.on_host else torch.fmod
        left = there(a.to(space.widest), wide_b)
        left = torch.where((left != 0) & ((left < 0) != (wide_b < 0)), left + wide_b, left)
        return torch.where(left == 0, torch.copysign(left, wide_b), left).to(a.dtype)

    return remainder


def _divmod(space: Space) -> Maker:
    remainder = _remainder(space)
    return lambda out: (
        (lambda a, b: (_quotient(a, b), remainder(a, b)))
        if out[0].dtype.is_float
        else (lambda a, b: (_whole_quotient(a, b), _whole_remainder(a, b)))
    )


def _pow(space: Space) -> Maker:
    message = "pow: an integer to a negative power is not an integer; cast to a float dtype first: x.to('f32')."

    def whole(a: Value, b: Value) -> Value:
        if b.is_signed():
            space.doubt(b < 0, message)
        return torch.pow(a, b)

    return _either(torch.pow, whole)


def _nextafter(a: Value, b: Value) -> Value:
    """One step in the order of the bits, which is that of the numbers."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = torch.broadcast_tensors(a, b)
    a = a.contiguous()
    away = (b > a) == (a > 0)
    step = torch.where(away, 1, -1).to(bits)
    least = torch.copysign(torch.ones_like(step).view(a.dtype), b)
    moved = torch.where(a == 0, least, (a.view(bits) + step).view(a.dtype))
    moved = torch.where(a == b, b, moved)  # of -0 and 0 it shows
    return torch.where(torch.isnan(a) | torch.isnan(b), a + b, moved)


_quietly = np.errstate(all="ignore")


def by_numpy(fn: Fn) -> Fn:
    """A function of NumPy on the memory of torch's CPU, where torch's own is not exact."""

    @_quietly
    def run(*xs: Value) -> Value:
        return torch.from_numpy(np.asarray(fn(*(x.numpy() for x in xs))))

    return run


@_quietly
def _sqrt_by_numpy(x: Value) -> Value:
    return torch.from_numpy(np.sqrt(x.numpy())) if x.ndim else by_numpy(np.sqrt)(x)  # of no axes it gives a number


def _sqrt(space: Space) -> Fn:
    """torch's own is not always the nearest number on the CPU; NumPy's is."""
    return _sqrt_by_numpy if space.on_host else torch.sqrt


def _sign(x: Value) -> Value:
    return torch.where(torch.isnan(x), x, torch.sign(x))


_RELU = Bound(torch.threshold, (0, 0))  # unlike torch.relu it turns -0 into 0


def _relu2(x: Value) -> Value:
    return torch.square(_RELU(x))


def _clip(x: Value, low: Value | None, high: Value | None) -> Value:
    y = x if low is None else torch.maximum(x, low)
    y = y if high is None else torch.minimum(y, high)
    return y.clone() if y is x else y


def _left_shift(out: Spec) -> Fn:
    bits = out.dtype.nbytes * 8

    def shift(a: Value, b: Value) -> Value:
        inside = (b >= 0) & (b < bits)
        return torch.where(inside, torch.bitwise_left_shift(a, torch.where(inside, b, 0)), 0)

    return shift


def _right_shift(out: Spec) -> Fn:
    bits = out.dtype.nbytes * 8

    def shift(a: Value, b: Value) -> Value:
        inside = (b >= 0) & (b < bits)
        far = torch.where(a < 0, -1, 0).to(a.dtype)
        return torch.where(inside, torch.bitwise_right_shift(a, torch.where(inside, b, 0)), far)

    return shift


def _in_widest(space: Space, fn: Fn) -> Fn:
    """torch's f32 erf is off by many ulps near 0, its sinh and cosh are infinite before they must be, and silu has the same
    bits on every device."""
    return lambda x: fn(x.to(space.widest)).to(x.dtype)


def _gelu(space: Space) -> Maker:
    def make(out: Spec, approximate: str) -> Fn:
        fn = Bound(functional.gelu, (), {"approximate": approximate})
        return _in_widest(space, fn) if approximate == "none" else fn

    return make


_SAME = """add multiply not_equal less less_equal greater greater_equal logical_and logical_or logical_xor bitwise_and
    bitwise_or bitwise_xor abs negative square isnan isinf isfinite signbit logical_not where divide"""
_WIDE = """maximum minimum copysign logaddexp atan2 hypot rsqrt reciprocal exp expm1 log log1p log2 log10 sin cos tan asin acos atan tanh
    asinh acosh atanh sigmoid"""


def maps(space: Space) -> dict[Op, Maker]:
    """The rows of elements, casts and copies."""
    rows = {OPS[name]: same(getattr(torch, name)) for name in _SAME.split()}
    rows |= {OPS[name]: wide(same(getattr(torch, name))) for name in _WIDE.split()}
    rows |= {OPS[n]: _either(getattr(torch, n), torch.clone) for n in ("ceil", "floor", "trunc", "round")}
    return rows | {
        ops.subtract: same(torch.sub),
        ops.equal: same(torch.eq),
        ops.bitwise_invert: same(torch.bitwise_not),
        ops.bitwise_left_shift: _left_shift,
        ops.bitwise_right_shift: _right_shift,
        ops.positive: same(torch.clone),
        ops.copy: lambda out: copied,
        ops.sqrt: wide(same(_sqrt(space))),
        ops.sign: _either(_sign, torch.sign),
        ops.floor_divide: wide(_either(_quotient, _whole_quotient)),
        ops.remainder: wide(_either(_remainder(space), _whole_remainder)),
        ops.divmod: wide(_divmod(space)),
        ops.pow: wide(_pow(space)),
        ops.nextafter: same(_nextafter),
        ops.erf: wide(same(_in_widest(space, torch.erf))),
        ops.sinh: wide(same(_in_widest(space, torch.sinh))),
        ops.cosh: wide(same(_in_widest(space, torch.cosh))),
        ops.relu: same(_RELU),
        ops.relu2: wide(same(_relu2)),
        ops.silu: wide(same(_in_widest(space, functional.silu))),
        ops.gelu: wide(_gelu(space)),
        ops.clip: same(_clip),
        ops.astype: lambda out, dtype, copy: Fitted(space, lambda x: _cast(space, x.dtype, dtype)),
    }


def copied(x: Any) -> Any:
    """A value, or packed bytes, row by row in memory of its own."""
    if isinstance(x, torch.Tensor):
        return x.clone(memory_format=torch.contiguous_format)
    return x._replace(data=x.data.clone(memory_format=torch.contiguous_format))


def _cast(space: Space, source: DType, t: DType) -> Fn:
    """Return a function that casts one dtype to another, by the rules of `backends.reference.cast`, into new memory."""
    to = space.twin(t)
    plain = Bound(torch.Tensor.to, (), {"dtype": to, "copy": True})
    if source is t:
        return plain
    if t is dt.bool_:
        return Bound(torch.ne, (0,))
    if (source.is_float and t.is_integer) or (source is dt.f64 and to in HALF):
        return Bound(space.cast, (t,))
    return plain
