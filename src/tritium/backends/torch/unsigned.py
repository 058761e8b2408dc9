"""u16, u32 and u64 by way of int64: torch keeps them, but computes with few of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tritium import dtype as dt, ops
from tritium.backends import Kernel
from tritium.backends.torch.space import LOWEST, TWINS, UNSIGNED, Value, signed, unsigned
from tritium.dtype import DType
from tritium.op import Op, Spec, Specs, Trait, outputs

Fn = Callable[..., Any]
Maker = Callable[..., Fn]

_UNSIGNED = (dt.u16, dt.u32, dt.u64)
_CASTS = {ops.astype, ops.copy, ops.empty}  # which torch does with every dtype


# ---- what 64 bits without sign mean where the sign of int64 would count


def _reaches(a: Value, b: Value) -> Value:
    """a >= b without signs."""
    return (a ^ LOWEST) >= (b ^ LOWEST)


def _divide(a: Value, b: Value) -> tuple[Value, Value]:
    """Quotient and remainder: half of a has no sign, and twice its quotient is at most one too small."""
    safe = torch.where(b > 0, b, 1)
    half = torch.div((a >> 1) & ~LOWEST, safe, rounding_mode="floor") << 1
    quotient = torch.where(b > 0, half + _reaches(a - half * safe, safe), (b < 0) & _reaches(a, b)).to(torch.int64)
    return quotient, torch.where(b == 0, 0, a - quotient * b)


def _shift(a: Value, b: Value) -> Value:
    """Down, with zeros coming in."""
    inside = (b >= 0) & (b < 64)
    by = torch.where(inside, b, 0)
    mask = torch.where(by > 0, ~(LOWEST >> (by - 1).clamp_min(0)), -1)
    return torch.where(inside, (a >> by) & mask, 0)


def _pow(a: Value, b: Value) -> Value:
    """Bit by bit of the exponent."""
    a, b = torch.broadcast_tensors(a, b)
    power = torch.ones_like(a)
    for bit in range(64):
        power = torch.where(((b >> bit) & 1) == 1, power * a, power)
        a = a * a
    return power


_OF_U64: dict[Op, Fn] = {
    ops.floor_divide: lambda a, b: _divide(a, b)[0],
    ops.remainder: lambda a, b: _divide(a, b)[1],
    ops.divmod: _divide,
    ops.bitwise_right_shift: _shift,
    ops.pow: _pow,
    ops.abs: torch.clone,
    ops.relu: torch.clone,
    ops.relu2: torch.square,
    ops.sign: lambda x: (x != 0).to(torch.int64),
}


# ---- rows by way of int64


def _dtypes(specs: Specs, attrs: Mapping[str, Any]) -> set[DType]:
    dtypes = {s.dtype for s in specs if s is not None}
    result_dtype = attrs.get("dtype")
    return dtypes if result_dtype is None else dtypes | {result_dtype}


def _common(specs: Specs, attrs: Mapping[str, Any], layouts: Any) -> bool:
    return _dtypes(specs, attrs).isdisjoint(_UNSIGNED)


def _not_u64(specs: Specs, attrs: Mapping[str, Any], layouts: Any) -> bool:
    return dt.u64 not in _dtypes(specs, attrs)


def _common_steps(specs: Specs, attrs: Mapping[str, Any], layouts: Any) -> bool:
    steps = attrs["body"].steps
    return all(_common((*specs, *outputs(s.spec)), dict(s.attrs), ()) for s in steps)


def _in_int64(row: Op, maker: Maker) -> Maker:
    """A row of unsigned integers by that of int64; where their order counts, the sign of u64 is turned around."""
    ordered = Trait.ORDERS in row.traits

    def inward(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype not in UNSIGNED:
            return x
        return signed(x) ^ LOWEST if ordered and x.dtype is torch.uint64 else signed(x)

    def outward(x: Any, t: DType) -> Any:
        if t not in _UNSIGNED:
            return x
        return unsigned(x ^ LOWEST if ordered and t is dt.u64 else x, TWINS[t])

    def make(out: Any, **attrs: Any) -> Fn:
        inner = tuple(Spec(s.shape, dt.i64 if s.dtype in _UNSIGNED else s.dtype) for s in outputs(out))
        if attrs.get("dtype") in _UNSIGNED:
            attrs["dtype"] = dt.i64
        if "fill_value" in attrs:
            attrs["fill_value"] = (int(attrs["fill_value"]) - LOWEST) % 2**64 + LOWEST
        several = not isinstance(out, Spec)
        fn = maker(inner if several else inner[0], **attrs)

        def run(*xs: Any) -> Any:
            result = fn(*(inward(x) for x in xs))
            return (
                tuple(outward(f, s.dtype) for f, s in zip(result, out, strict=True))
                if several
                else outward(result, out.dtype)
            )

        return run

    return make


def _by_result(maker: Maker, through: Maker) -> Maker:
    """The row itself, unless what comes out is unsigned where nothing that goes in is: the sum of u8 is u64."""

    def make(out: Any, **attrs: Any) -> Fn:
        wide = any(s.dtype in _UNSIGNED for s in outputs(out))
        return (through if wide else maker)(out, **attrs)

    return make


def kernels(row: Op, maker: Maker) -> list[Kernel]:
    """The kernels of a row: torch's own, then by way of int64."""
    if row in _CASTS:
        return [Kernel("torch", maker)]
    if row is ops.fused:
        return [Kernel("torch", maker, _common_steps)]
    common = [Kernel("torch", _by_result(maker, _in_int64(row, maker)), _common)]
    own = _OF_U64.get(row)
    if own is None:
        return [*common, Kernel("torch int64", _in_int64(row, maker))]
    of_u64 = Kernel("torch int64", _in_int64(row, lambda out: own))
    return [*common, Kernel("torch int64", _in_int64(row, maker), _not_u64), of_u64]
