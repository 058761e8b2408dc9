"""torch as the namespace that rows are written over (`elements`): dtypes, casts, and the few functions whose names differ.

Nothing here depends on torch's global defaults: dtype and device are always named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch

from tritium import dtype as dt
from tritium.dtype import DType
from tritium.errors import DeviceError, DTypeError
from tritium.layout import Layout, Shape

Value: TypeAlias = torch.Tensor

TWINS: dict[DType, torch.dtype] = {t: getattr(torch, t.long_name) for t in (*dt.ALL, *dt.COMPLEX)}
_OURS = {theirs: t for t, theirs in TWINS.items()}
HALF = (torch.float16, torch.bfloat16)
_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch stores them, and computes little with them
LOWEST = -(2**63)


def dtype_of(x: Value) -> DType:
    """Our dtype of a torch tensor."""
    t = _OURS.get(x.dtype)
    if t is None:
        raise DTypeError(f"{x.dtype} has no dtype here; cast it first: t.to(torch.float32).")
    return t


def signed(x: Value) -> Value:
    """Unsigned integers as int64: the same numbers, but for uint64 the same bits."""
    return x.view(torch.int64) if x.dtype is torch.uint64 else x.to(torch.int64)


def unsigned(x: Value, t: torch.dtype) -> Value:
    """The inverse of `signed`, modulo the range of t."""
    return x.view(t) if t is torch.uint64 else x.to(t)


def traits(device: torch.device) -> tuple[bool, bool]:
    """Return two flags: the host can read the memory of a device at once, and the device has f64."""
    return device.type == "cpu", device.type != "mps"


class Space:
    """torch on one of its devices."""

    def __init__(self, device: torch.device, doubt: Callable[..., None]) -> None:
        self.device, self.doubt = device, doubt
        self.on_host, self.has_f64 = traits(device)
        self.widest = torch.float64 if self.has_f64 else torch.float32  # in which long sums are added

    # -- dtypes

    def twin(self, t: DType) -> torch.dtype:
        """torch's dtype for one of ours; of packed ones that of a byte."""
        if t is dt.f64 and not self.has_f64:
            raise DeviceError(f"torch has no float64 on {self.device.type}; cast on the CPU first: x.to('f32').")
        return torch.uint8 if t.is_packed else TWINS[t]

    def dtype_of(self, x: Value) -> DType:
        return dtype_of(x)

    def astype(self, x: Value, t: DType) -> Value:
        return x.to(self.twin(t))

    def view(self, x: Value, t: DType) -> Value:
        return x.contiguous().view(self.twin(t))

    def cast(self, x: Value, t: DType) -> Value:
        """By the rules of `backends.reference.cast`."""
        to = self.twin(t)
        if t is dt.bool_:
            return x != 0
        if x.is_floating_point() and t.is_integer:
            return self._whole(x, t)
        if x.dtype is torch.float64 and to in HALF:
            return _odd(x).to(to)
        return x.to(to)

    def _whole(self, x: Value, t: DType) -> Value:
        """Floats as integers: towards 0, held to the range; NaN is 0."""
        info = dt.iinfo(t)
        if t.nbytes < 4 or (t.nbytes == 4 and self.has_f64):  # floats that hold the whole range
            inner = torch.float32 if t.nbytes < 4 and x.dtype is not torch.float64 else self.widest
            held = torch.nan_to_num(x.to(inner), nan=0.0).clamp_(info.min, info.max)
            return held.to(torch.int64).to(self.twin(t)) if t in (dt.u16, dt.u32) else held.to(self.twin(t))
        wide = torch.nan_to_num(x.to(self.widest), nan=0.0, posinf=math.inf, neginf=-math.inf)
        end = float(info.max + 1)
        below = math.nextafter(end, 0) if self.has_f64 else float(np.nextafter(np.float32(end), np.float32(0)))
        inside = wide.clamp(float(info.min), below)
        if t is dt.u64:
            high = inside >= 2.0**63
            bits = torch.where(high, inside - 2.0**63, inside).to(torch.int64) ^ (high.to(torch.int64) << 63)
            return torch.where(wide >= end, -1, bits).view(torch.uint64)
        return unsigned(torch.where(wide >= end, info.max, inside.to(torch.int64)), self.twin(t))

    # -- new values

    def array(self, data: np.ndarray[Any, Any]) -> Value:
        """A copy of a NumPy array."""
        self.twin(dt.dtype(data.dtype))
        mine = np.array(data, order="C", copy=True)
        if mine.dtype == ml_dtypes.bfloat16:
            tensor = torch.from_numpy(mine.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(mine)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def full(self, shape: Shape, number: bool | int | float, t: DType) -> Value:
        return torch.full(shape, number, dtype=self.twin(t), device=self.device)

    def arange(self, n: int, t: DType) -> Value:
        return torch.arange(n, dtype=self.twin(t), device=self.device)

    # -- functions

    where = staticmethod(torch.where)
    abs = staticmethod(torch.abs)
    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)
    rint = staticmethod(torch.round)
    trunc = staticmethod(torch.trunc)
    sqrt = staticmethod(torch.sqrt)
    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    sin = staticmethod(torch.sin)
    cos = staticmethod(torch.cos)
    isfinite = staticmethod(torch.isfinite)
    matmul = staticmethod(torch.matmul)
    reshape = staticmethod(torch.reshape)
    broadcast_to = staticmethod(torch.broadcast_to)

    def sum(self, x: Value, axis: tuple[int, ...], keepdims: bool = False) -> Value:
        return torch.sum(x, axis, keepdim=keepdims, dtype=x.dtype) if axis else x

    def max(self, x: Value, axis: tuple[int, ...], keepdims: bool = False) -> Value:
        return torch.amax(x, axis, keepdim=keepdims) if axis else x

    def min(self, x: Value, axis: tuple[int, ...], keepdims: bool = False) -> Value:
        return torch.amin(x, axis, keepdim=keepdims) if axis else x

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        return torch.cat(tuple(xs), axis)

    def stack(self, xs: Sequence[Value], axis: int) -> Value:
        return torch.stack(tuple(xs), axis)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        return x.permute(*axes)

    def pad(self, x: Value, after: Shape, number: int) -> Value:
        return torch.nn.functional.pad(x, [n for size in reversed(after) for n in (0, size)], value=number)

    def take(self, x: Value, indices: Value, axis: int) -> Value:
        rows = torch.index_select(x, axis, indices.reshape(-1))
        return rows.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def take_along_axis(self, x: Value, indices: Value, axis: int) -> Value:
        return torch.gather(x, axis, indices.to(torch.int64))

    def put(self, x: Value, indices: Value, rows: Value) -> Value:
        """torch does not say which of equals wins: all of them are made the last."""
        indices = indices.to(torch.int64)
        order = torch.arange(indices.shape[0], device=self.device)
        last = torch.zeros(x.shape[0], dtype=torch.int64, device=self.device).scatter_reduce(0, indices, order, "amax")
        return torch.index_copy(x, 0, indices, torch.index_select(rows, 0, last[indices]))

    def add_at(self, x: Value, indices: Value, rows: Value) -> Value:
        return torch.index_add(x, 0, indices, rows)

    def cumsum(self, x: Value, axis: int) -> Value:
        return torch.cumsum(x, axis, dtype=x.dtype)

    def cumprod(self, x: Value, axis: int) -> Value:
        return torch.cumprod(x, axis, dtype=x.dtype)

    def in_double(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Itself: where there is no f64, such rows are made over the CPU's namespace as a whole."""
        return fn

    def ternary_dot(self, q: Value, w: Any) -> None:
        """torch has no product of packed weights."""


def _odd(x: Value) -> Value:
    """f64 as f32 rounded to odd, so that rounding once more, to a half float, is as if it were the first time."""
    near = x.to(torch.float32)
    back = near.to(torch.float64)
    bits = near.view(torch.int32) - (back.abs() > x.abs()).to(torch.int32)
    return (bits | (back != x).to(torch.int32)).view(torch.float32)


# ---- values through a layout


def look(value: Value, layout: Layout) -> Value:
    """The elements of a value, which lie row by row, seen through a layout: the same memory, but for reversed axes."""
    flat = value if value.is_contiguous() else value.contiguous()
    if min(layout.strides, default=0) >= 0:
        return torch.as_strided(flat, layout.shape, layout.strides, flat.storage_offset() + layout.offset)
    return _turned(part_of(flat, layout), layout)


def write(value: Value, layout: Layout, part: Value) -> Value:
    """Write where a layout says; the value itself where it lies row by row, else a copy."""
    flat = value.contiguous()
    store(part_of(flat, layout), _turned(part, layout))
    return flat


def part_of(value: Value, layout: Layout) -> Value:
    """The memory that a layout sees, reversed axes in the order of memory: torch has no negative strides."""
    back = sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True) if s < 0)
    start = value.storage_offset() + layout.offset + back
    return torch.as_strided(value, layout.shape, tuple(abs(s) for s in layout.strides), start)


def _turned(x: Value, layout: Layout) -> Value:
    dims = tuple(d for d, s in enumerate(layout.strides) if s < 0)
    if not dims:
        return x
    if x.dtype not in UNSIGNED:
        return torch.flip(x, dims)
    return torch.flip(x.view(_SIGNED[x.itemsize]), dims).view(x.dtype)  # torch turns these around as signed ones only


def store(to: Value, value: Value) -> None:
    """Write into memory; also into that of a tensor made in inference mode, once it is over."""
    if to.is_inference() and not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            to.copy_(value)
    else:
        to.copy_(value)
