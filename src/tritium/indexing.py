"""x[key] and x[key] = value: plain keys are views, tensors of integers gather and put, masks pick and choose.

Knows nothing of graphs: every case is an op, so all of it can be traced.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt, layout as lay, ops
from tritium.buffer import Array, Row, native
from tritium.errors import BoundsError, shown
from tritium.functions import asarray
from tritium.interop import adopt_foreign, is_foreign
from tritium.op import interpreter
from tritium.tensor import Tensor, like

READS, WRITES, NONZERO, TAKES, TAKES_ALONG = range(1, 6)  # what native code does at once: Row.indexes

if native is not None:
    ops.nonzero.indexes, ops.take.indexes, ops.take_along_axis.indexes = NONZERO, TAKES, TAKES_ALONG


ARRAYS = (Array, np.ndarray, list, bool, np.bool_)  # a bool is a mask without axes, as in NumPy
PLAIN = (int, slice, type(None), type(Ellipsis))


class Selection(NamedTuple):
    """The elements that a key with index tensors selects: a view of x, and a tensor for each axis marked 'at' in the key."""

    view: Tensor
    key: lay.Key
    tensors: list[Tensor]
    axes: list[int]  # of x, one for each tensor


def _read_key(x: Tensor, key: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Return the parts of a key with 'at' for each index tensor and mask, and those tensors."""
    parts: list[Any] = []
    tensors: list[Tensor] = []
    for p in key if isinstance(key, tuple) else (key,):
        if isinstance(p, str):
            raise BoundsError(
                f"{shown(p)} is not an index; use integers, slices, None, ... or tensors of integers or bools."
            )
        if not isinstance(p, ARRAYS) and (isinstance(p, PLAIN) or not is_foreign(p)):
            parts.append(p)
            continue
        t = as_index(p, x)
        if t.ndim == 0 and t.dtype.is_integer and not t.is_traced:
            parts.append(int(t))
            continue
        if not t.dtype.is_integer and t.dtype is not dt.bool_:
            raise BoundsError(f"An index tensor must hold integers or bools, given {t.spec}; cast with .to('i64').")
        tensors.append(t)
        parts.append(lay.AT)
    return tuple(parts), tensors


def _is_mask_alone(parts: tuple[Any, ...], tensors: list[Tensor]) -> bool:
    return len(parts) == 1 and tensors[0].dtype is dt.bool_


def _replace_masks(
    x: Tensor, parts: tuple[Any, ...], tensors: list[Tensor]
) -> tuple[Tensor, tuple[Any, ...], list[Tensor]]:
    """Replace masks by the indices of their true elements; a mask without axes indexes a new axis of size 1 in x."""
    if not any(t.dtype is dt.bool_ for t in tensors):
        return x, parts, tensors
    used = sum(p is not None and p is not Ellipsis and p is not lay.AT for p in parts)
    used += sum(t.ndim if t.dtype is dt.bool_ else 1 for t in tensors)
    rest = iter(tensors)
    replaced: list[Any] = []
    indices: list[Tensor] = []
    new_axes: list[int] = []
    axis = 0
    for p in parts:
        t = next(rest) if p is lay.AT else None
        if t is None:
            axis += max(x.ndim - used, 0) if p is Ellipsis else int(p is not None)
            replaced.append(p)
        elif t.dtype is not dt.bool_:
            axis += 1
            replaced.append(p)
            indices.append(t)
        elif t.ndim == 0:
            new_axes.append(axis + len(new_axes))
            replaced.append(p)
            indices += ops.nonzero(ops.reshape(t, (1,)))
        else:
            if t.shape != x.shape[axis : axis + t.ndim]:
                covered = lay.text(x.shape[axis : axis + t.ndim])
                raise BoundsError(
                    f"masked: the mask {t.spec} must have the sizes {covered} of the axes of {x.spec} it indexes."
                )
            axis += t.ndim
            replaced += [p] * t.ndim
            indices += ops.nonzero(t)
    return (ops.expand_dims(x, axis=tuple(new_axes)) if new_axes else x), tuple(replaced), indices


def _select(x: Tensor, parts: tuple[Any, ...], tensors: list[Tensor]) -> Selection:
    """Split a key into a view by its plain parts, and a key that marks the indexed axes among whole ones.

    Where index tensors, and ints beside them, are not adjacent, the indexed axes come first, as in NumPy.
    """
    x, parts, tensors = _replace_masks(x, parts, tensors)
    key = lay.normal_key(parts, x.shape)
    picks = [p is lay.AT or not (p is None or p is Ellipsis or isinstance(p, slice)) for p in parts]
    apart = not all(picks[picks.index(True) : len(picks) - picks[::-1].index(True)])
    axes = [d for d, p in enumerate(p for p in key if p is not None) if p == lay.AT]
    sizes = iter(x.shape)
    plain = tuple(p if p is None else (p, next(sizes))[0] if p != lay.AT else (0, next(sizes), 1) for p in key)
    view = x if plain == tuple((0, n, 1) for n in x.shape) else ops.index(x, key=plain)
    marks = [p == lay.AT for p in key if not isinstance(p, int)]
    if apart:
        order = sorted(range(len(marks)), key=lambda d: not marks[d])
        view, marks = ops.permute_dims(view, tuple(order)), [marks[d] for d in order]
    whole = tuple(lay.AT if m else (0, n, 1) for m, n in zip(marks, view.shape, strict=True))
    return Selection(view, whole, tensors, axes)


def _outside(x: Tensor, selection: Selection, error: BoundsError) -> BoundsError:
    """Return the error for an index outside its axis, which kernels know by its size only, with the axis of x."""
    for t, axis in zip(selection.tensors, selection.axes, strict=True):
        values, size = t._host(), x.shape[axis] if axis < x.ndim else 1
        bad = (values < -size) | (values >= size)
        if bad.any():
            return BoundsError(
                f"index {values[bad].flat[0]} is outside an axis of size {size}: axis {axis} of {lay.text(x.shape)}."
            )
    return error


def _gather(x: Tensor, parts: tuple[Any, ...], tensors: list[Tensor]) -> Tensor:
    selection = _select(x, parts, tensors)
    try:
        return ops.gather([selection.view, *selection.tensors], key=selection.key)
    except BoundsError as error:
        raise _outside(x, selection, error) from None


class GetItem(Row):
    """x[key] by ops: a view, a masked selection, or a gather by index tensors. The native library does the same at once on the CPU."""

    __slots__ = ()

    def __init__(self) -> None:
        self.arity, self.inplace, self.indexes = 1, False, READS

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.call)

    def call(self, x: Tensor, key: Any) -> Tensor:
        parts, tensors = _read_key(x, key)
        if tensors:
            return ops.masked(x, tensors[0]) if _is_mask_alone(parts, tensors) else _gather(x, parts, tensors)
        normal = lay.normal_key(parts, x.shape)
        if x.is_traced and (trace := interpreter.get()) is not None:
            traced: Tensor = trace.emit(ops.index, (x,), {"key": normal}, None, None)  # a normal key needs no checks
            return traced
        part = ops.index(x, key=normal)
        if not x.is_traced:
            self.remember_view((x, key), {}, part)
        return part


def as_index(key: Any, x: Tensor) -> Tensor:
    if isinstance(key, Tensor):
        return key
    there = None if x.is_traced else x.device
    if is_foreign(key):  # one in host memory goes where x is, as an array of NumPy does
        index = adopt_foreign(key, there)
        return index if there is None or index.device.type != "cpu" else index.to(device=there)
    data = np.asarray(key)
    empty = data.size == 0 and data.dtype.kind not in "biu"  # of a list, NumPy cannot know
    return asarray(data.astype(np.int64) if empty else data, device=there)


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
    else:
        _put(x, (lay.AT,), [mask], value, strips=mask.ndim < x.ndim)


def _put(x: Tensor, parts: tuple[Any, ...], tensors: list[Tensor], value: Any, strips: bool = True) -> None:
    selection = _select(x, parts, tensors)
    shape = ops.gathered(selection.view.shape, tuple(t.shape for t in selection.tensors), selection.key)
    value = _without_ones(value, len(shape)) if strips else value
    try:
        ops.put([selection.view, value, *selection.tensors], key=selection.key, out=selection.view)
    except BoundsError as error:
        raise _outside(x, selection, error) from None


def _without_ones(value: Any, ndim: int) -> Any:
    """Return a value without the axes of size 1 in front that exceed the axes it is written to, as NumPy takes it."""
    shape = getattr(value, "shape", ())
    extra = len(shape) - ndim
    return ops.reshape(value, shape[extra:]) if extra > 0 and set(shape[:extra]) == {1} else value


def _kind_for(value: Any, x: Tensor) -> dt.DType | None:
    """Return x's dtype where it can hold numbers of the list's kind (each is then checked to fit), else the list's own."""
    rank = {"b": 0, "i": 1, "u": 1, "f": 2}.get(np.asarray(value).dtype.kind, 3)
    return x.dtype if rank <= dt.RANK[x.dtype.kind] or (x.dtype is dt.bool_ and rank == 1) else None


class SetItem(Row):
    """x[key] = value by ops, broadcast; lists are taken as tensors. The native library does the same at once on the CPU."""

    __slots__ = ()

    def __init__(self) -> None:
        self.arity, self.inplace, self.indexes = 1, False, WRITES

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.call)

    def call(self, x: Tensor, key: Any, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            value = asarray(value, dtype=_kind_for(value, x), device=None if x.is_traced else x.device)
        elif not isinstance(value, (Tensor, np.ndarray)) and is_foreign(value):
            value = adopt_foreign(value, None if x.is_traced else x.device)
        parts, tensors = _read_key(x, key)
        if not tensors:
            part = ops.index(x, key=lay.normal_key(parts, x.shape))
            one = part.ndim == 0 and Ellipsis not in parts  # an element, which takes a number
            part.copy_(value if one else _without_ones(value, part.ndim))
        elif _is_mask_alone(parts, tensors):
            _write_masked(x, tensors[0], value)
        else:
            _put(x, parts, tensors, value)


Tensor.__getitem__ = GetItem()  # type: ignore[method-assign]
Tensor.__setitem__ = SetItem()  # type: ignore[method-assign]
