"""x[key] and x[key] = value: plain keys are views, tensors of integers gather and put, masks pick and choose.

Knows nothing of graphs: every case is an op, so all of it can be traced.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from tritium import dtype as dt, layout as lay, ops
from tritium.buffer import Array, Row
from tritium.errors import BoundsError
from tritium.functions import asarray
from tritium.tensor import Tensor, like


def _read_key(x: Tensor, key: Any) -> tuple[lay.Key, list[Tensor]]:
    """Parse a key into a normal key with 'at' for each index tensor, and those tensors."""
    parts = key if isinstance(key, tuple) else (key,)
    tensors: list[Tensor] = []
    plain: list[Any] = []
    for p in parts:
        if isinstance(p, str):
            raise BoundsError(
                f"{p!r} is not an index; use integers, slices, None, ... or tensors of integers or bools."
            )
        if not isinstance(p, (Array, np.ndarray, list, bool, np.bool_)):  # a bool is a mask without axes, as in NumPy
            plain.append(p)
            continue
        t = as_index(p, x)
        if t.ndim == 0 and t.dtype.is_integer and not t.is_traced:
            plain.append(int(t))
            continue
        if not t.dtype.is_integer and t.dtype is not dt.bool_:
            raise BoundsError(f"An index tensor must hold integers or bools, given {t.spec}; cast with .to('i64').")
        tensors.append(t)
        plain.append(lay.AT)
    if any(t.dtype is dt.bool_ for t in tensors):
        if len(parts) != 1:
            raise BoundsError("A mask must be the only index; combine it with others in two steps: x[mask][:, 0].")
        return (), tensors
    return lay.normal_key(tuple(plain), x.shape), tensors


class GetItem(Row):
    """x[key] by ops: a view, a masked selection, or a gather by index tensors. The native library computes views of plain keys itself."""

    __slots__ = ()

    def __init__(self) -> None:
        self.arity, self.inplace, self.indexes = 1, False, True

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.call)

    def call(self, x: Tensor, key: Any) -> Tensor:
        plain, tensors = _read_key(x, key)
        if tensors:
            mask = tensors[0].dtype is dt.bool_
            return ops.masked(x, tensors[0]) if mask else ops.gather([x, *tensors], key=plain)
        part = ops.index(x, key=plain)
        if not x.is_traced:
            self.remember_view((x, key), {}, part)
        return part


def as_index(key: Any, x: Tensor) -> Tensor:
    if isinstance(key, Tensor):
        return key
    data = np.asarray(key)
    return asarray(data if data.size else data.astype(np.int64), device=None if x.is_traced else x.device)


def _write_masked(x: Tensor, mask: Tensor, value: Any) -> None:
    ops.check_mask(mask.spec, x.spec)
    if mask.ndim == 0:  # selects all of x or nothing, along a new first axis
        x, mask = x[None], mask[None]
    if mask.size == 0:
        return
    tail = x.shape[mask.ndim :]
    value = like(value, x)
    if value.ndim <= len(tail):
        wide = ops.reshape(mask, mask.shape + (1,) * len(tail))
        ops.where(wide, value, x, out=x)
        return
    indices = ops.nonzero(mask)
    ops.put([x, value, *indices], key=(lay.AT,) * mask.ndim + tuple((0, n, 1) for n in tail), out=x)


def _kind_for(value: Any, x: Tensor) -> dt.DType | None:
    """Return x's dtype where it can hold numbers of the list's kind (each is then checked to fit), else the list's own."""
    rank = {"b": 0, "i": 1, "u": 1, "f": 2}.get(np.asarray(value).dtype.kind, 3)
    return x.dtype if rank <= dt.RANK[x.dtype.kind] or (x.dtype is dt.bool_ and rank == 1) else None


def set_item(x: Tensor, key: Any, value: Any) -> None:
    """Write value, broadcast, where the key points; lists are taken as tensors."""
    if isinstance(value, (list, tuple)):
        value = asarray(value, dtype=_kind_for(value, x), device=None if x.is_traced else x.device)
    plain, tensors = _read_key(x, key)
    if not tensors:
        ops.index(x, key=plain).copy_(value)
    elif tensors[0].dtype is dt.bool_:
        _write_masked(x, tensors[0], value)
    else:
        ops.put([x, value, *tensors], key=plain, out=x)


Tensor.__getitem__ = GetItem()  # type: ignore[method-assign]
Tensor.__setitem__ = set_item  # type: ignore[method-assign]
