"""Functions composed of several ops: creating tensors, shapes, sums of products.

Knows nothing of graphs: these functions can be traced like any user's function.
"""

from __future__ import annotations

import builtins
import operator
import os
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tritium import backends, buffer, dtype as dt, layout as lay, ops
from tritium.backends import Device
from tritium.backends.reference.cast import cast
from tritium.dtype import DType
from tritium.errors import (
    CONVERTERS,
    WAYS_TO,
    ArgumentError,
    DTypeError,
    OutOfMemoryError,
    ShapeError,
    TraceError,
    checked,
    checked_except,
)
from tritium.interop import from_dlpack, from_numpy, read_array
from tritium.op import SCALARS, Spec, check_dtype, interpreter
from tritium.tensor import Tensor, wrap


def _operand(value: Any) -> Tensor | None:
    """Return an array or a number as a tensor, as the ops of the table do; None for anything else."""
    if (
        isinstance(value, (np.ndarray, np.generic))
        and value.dtype.kind not in "biuf"
        and value.dtype.name != "bfloat16"
    ):
        return None
    return asarray(value) if isinstance(value, (np.ndarray, np.generic, *SCALARS)) else None


CONVERTERS[Tensor] = _operand
WAYS_TO[Tensor] = "tritium.asarray(…) makes one"

# ---- creating tensors


@checked
def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor of anything: a tensor, a NumPy array (viewed in place where possible), a scalar, nested lists,
    or an object with DLPack or the buffer protocol."""
    kind = None if dtype is None else dt.dtype(dtype)
    there = None if device is None else backends.device(device)
    if isinstance(obj, Tensor):
        return _as(obj, kind, there, copy)
    if isinstance(obj, SCALARS):
        if copy is False:
            raise ArgumentError("asarray: a Python number cannot become a tensor without a copy; leave copy=False out.")
        return ops.full((), obj, dtype=kind, device=there)
    if not isinstance(obj, (np.ndarray, np.generic, list, tuple)) and hasattr(obj, "__dlpack__"):
        return _as(from_dlpack(obj, copy=copy), kind, there, None)
    if isinstance(obj, (list, tuple)):
        if copy is False:
            raise ArgumentError("asarray: a list cannot become a tensor without a copy; leave copy=False out.")
        return _as(_of_sequence(obj, kind, there), kind, there, None)
    data = obj if isinstance(obj, np.ndarray) else read_array(obj, "asarray")
    result = from_numpy(data, copy=bool(copy) or isinstance(obj, np.generic))
    if copy is False and (isinstance(obj, np.generic) or not result.storage.imported):
        raise ArgumentError("asarray: this array cannot be looked at in place (empty, byte-swapped or oddly strided); "
                            "leave copy=False out.")  # fmt: skip
    return _as(result, kind, there, None if copy else copy)


@checked
def tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a new tensor with a copy of the data."""
    return asarray(data, dtype=dtype, device=device, copy=True)


def _as(x: Tensor, kind: DType | None, there: Device | None, copy: bool | None) -> Tensor:
    changed = (kind is not None and kind is not x.dtype) or (there is not None and there is not x.device)
    if changed and copy is False:
        raise ArgumentError(f"asarray: {x.spec} cannot become {kind or x.dtype} without a copy; leave copy=False out.")
    if changed:
        return x.to(dtype=kind, device=there)
    return ops.copy(x) if copy else x


def _of_sequence(data: Sequence[Any], kind: DType | None, there: Device | None) -> Tensor:
    """Return a tensor of nested lists; Python numbers take the default dtype of their highest kind."""
    if _holds_tensors(data):
        return ops.stack([asarray(d, device=there) for d in data])
    try:
        values = _exact(np.asarray(data), data, kind)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"asarray: the nested lists do not fit in memory ({error}); give fewer numbers."
        ) from None
    except (TypeError, RuntimeError) as error:  # an element's own methods
        raise DTypeError(f"Nested lists must hold numbers or bools; an element cannot be read ({error}).") from error
    except ValueError as error:
        raise ShapeError(
            f"The nested lists are ragged: every list at one depth needs the same length ({error})."
        ) from None
    if values.dtype.kind not in "biuf":
        raise DTypeError(f"Nested lists must hold numbers or bools, given {values.dtype}.")
    if kind is None:
        kind = {"b": dt.bool_, "i": dt.i64, "u": dt.u64, "f": dt.f32}[values.dtype.kind]
        kind = dt.f32 if values.size == 0 else kind
    if kind.is_integer and values.size and values.dtype.kind in "iu":
        dt.check_fits(builtins.int(values.min()), kind)
        dt.check_fits(builtins.int(values.max()), kind)
    backend = (there or backends.device_for(None, values.size)).backend
    array = backend.new(Spec(values.shape, kind))
    backend.upload(_cast(values, kind), array)
    return wrap(array)


def _exact(values: np.ndarray[Any, Any], data: Sequence[Any], kind: DType | None) -> np.ndarray[Any, Any]:
    """Return integers on both sides of 2^63 as u64: NumPy reads such lists as floats, and rounds."""
    if values.dtype.kind != "f" or (kind is not None and kind.is_float) or not np.any(values >= 2.0**63):
        return values
    whole = np.asarray(data, object)
    if not all(isinstance(v, builtins.int) for v in whole.flat):
        return values
    dt.check_fits(min(whole.flat), dt.u64)
    return whole.astype(np.uint64)


def _holds_tensors(data: Sequence[Any], depth: int = 1) -> bool:
    if depth > buffer.MAX_DIMS:
        raise ShapeError(
            f"The lists are nested more than {buffer.MAX_DIMS} deep; at most as many dimensions are possible."
        )
    return any(isinstance(d, Tensor) or (isinstance(d, (list, tuple)) and _holds_tensors(d, depth + 1)) for d in data)


def _cast(values: np.ndarray[Any, Any], kind: DType) -> np.ndarray[Any, Any]:
    out = np.empty(values.shape, kind.numpy)
    cast(values, out=out)
    return out


empty, full, arange, linspace, eye = ops.empty, ops.full, ops.arange, ops.linspace, ops.eye


@checked
def zeros(shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of zeros."""
    check_dtype("zeros", shape, dtype, device)
    return ops.full(shape, 0, dtype=dt.f32 if dtype is None else dtype, device=device)


@checked
def ones(shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of ones."""
    check_dtype("ones", shape, dtype, device)
    return ops.full(shape, 1, dtype=dt.f32 if dtype is None else dtype, device=device)


def _where(x: Tensor, device: Any) -> Any:
    return device if device is not None else (None if x.is_traced else x.device)


@checked
def empty_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return uninitialised memory of the shape, dtype and device of x."""
    return ops.empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=_where(x, device))


@checked
def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor like x in which every element is `fill_value`."""
    return ops.full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=_where(x, device))


@checked
def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of zeros like x."""
    return full_like(x, 0, dtype=dtype, device=device)


@checked
def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of ones like x."""
    return full_like(x, 1, dtype=dtype, device=device)


# ---- random numbers: a seed gives the same numbers on every device


def _seed(seed: int | None, name: str) -> int:
    if seed is None:
        if interpreter.get() is not None:
            raise TraceError(f"{name} without a seed cannot be written down: every run would repeat it. Pass seed=….")
        return int.from_bytes(os.urandom(8)) >> 1
    if not 0 <= seed < 2**63:
        raise ArgumentError(f"{name}: seed={seed} must lie in 0 … 2^63 - 1.")
    return seed


@checked
def rand(shape: Any, dtype: Any = None, device: Any = None, *, seed: int | None = None) -> Tensor:
    """Return uniform numbers in [0, 1); without a seed they differ at every call."""
    check_dtype("rand", shape, dtype, device)
    return ops.random_uniform(shape, seed=_seed(seed, "rand"), dtype=dtype, device=device)


@checked
def randn(shape: Any, dtype: Any = None, device: Any = None, *, seed: int | None = None) -> Tensor:
    """Return Gaussian numbers of mean 0 and deviation 1; without a seed they differ at every call."""
    check_dtype("randn", shape, dtype, device)
    return ops.random_normal(shape, seed=_seed(seed, "randn"), dtype=dtype, device=device)


@checked
def randint(
    low: int, high: int, shape: Any, *, seed: int | None = None, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return integers in [low, high); without a seed they differ at every call."""
    return ops.random_integers(low, high, shape, seed=_seed(seed, "randint"), dtype=dtype, device=device)


# ---- dtypes


@checked
def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Cast to another dtype; a copy even when nothing changes, unless copy=False."""
    if device is not None:
        x = x.to(device=device)
    return x if not copy and dt.dtype(dtype) is x.dtype else ops.astype(x, dtype)


@checked
def can_cast(from_: Any, to: Any, /) -> bool:
    """Return True if one dtype promotes to the other."""
    return dt.can_cast(dt.dtype(getattr(from_, "dtype", from_)), dt.dtype(to))


@checked
def result_type(*operands: Any) -> DType:
    """Return the dtype in which tensors, dtypes and scalars are computed together."""
    kinds = [dt.of_scalar(g) if isinstance(g, SCALARS) else dt.dtype(getattr(g, "dtype", g)) for g in operands]
    return dt.promote(*kinds)


@checked
def isdtype(dtype: Any, kind: Any) -> bool:
    """Return True if a dtype is of a kind: 'bool', 'integral', 'real floating', 'numeric', …"""
    return dt.is_dtype(dt.dtype(dtype), kind)


# ---- shapes


@checked
def reshape(x: Tensor, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """Return x in another shape; a view where the layout allows. copy=True always copies, copy=False never does."""
    if copy is False and not x.is_traced:
        lay.view(x.layout, shape)
    return ops.reshape(ops.copy(x) if copy else x, shape)


@checked
def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return all tensors broadcast to their common shape."""
    shape = lay.broadcast_shapes(*(a.shape for a in arrays), what="broadcast_arrays")
    return [ops.broadcast_to(a, shape) for a in arrays]


@checked
def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return coordinate grids of 1-D tensors."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing={indexing!r} is unknown; use 'xy' or 'ij'.")
    if len({a.dtype for a in arrays}) > 1:
        raise DTypeError("meshgrid: all tensors must have one dtype; cast them first.")
    n = len(arrays)
    swap = {0: 1, 1: 0} if indexing == "xy" and n > 1 else {}
    grid = [ops.reshape(a, tuple(-1 if d == swap.get(i, i) else 1 for d in range(n))) for i, a in enumerate(arrays)]
    return [ops.copy(g) for g in broadcast_arrays(*grid)]


@checked
def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis, one by one: views."""
    along = lay.axis_of(axis, x.ndim, "unstack")
    return tuple(x[(slice(None),) * along + (i,)] for i in range(x.shape[along]))


@checked
def split(x: Tensor, parts: int | Sequence[int], /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Split into `parts` equal pieces along an axis, or pieces of the sizes given: views."""
    along = lay.axis_of(axis, x.ndim, "split")
    size = x.shape[along]
    if isinstance(parts, int):
        if parts < 1 or size % parts:
            raise ShapeError(
                f"split: axis {along} of {x.spec} does not divide into {lay.count_text(parts)} equal parts; give sizes."
            )
        parts = [size // parts] * parts
    if builtins.sum(parts) != size:
        raise ShapeError(f"split: sizes {tuple(parts)} do not add up to the {size} of axis {along} of {x.spec}.")
    ends = np.cumsum([0, *parts]).tolist()
    return tuple(x.slice(along, a, b) for a, b in pairwise(ends))


@checked_except("repeats")
def repeat(x: Tensor, repeats: int | Tensor | Sequence[int], /, *, axis: int | None = None) -> Tensor:
    """Repeat every element (or slice) several times; `repeats` may differ from slice to slice."""
    if axis is None:
        x, axis = ops.reshape(x, (-1,)), 0
    along = lay.axis_of(axis, x.ndim, "repeat")
    before, size, after = x.shape[:along], x.shape[along], x.shape[along + 1 :]
    counts = _repeat_counts(repeats, x, along)
    if isinstance(counts, int):
        lay.check_extent((*before, size, counts, *after), "repeat")
        wide = ops.broadcast_to(ops.expand_dims(x, axis=along + 1), (*before, size, counts, *after))
        return ops.reshape(ops.copy(wide), (*before, size * counts, *after))
    # In f64 a sum of at most MAX_ELEMENTS is exact, and a larger one does not wrap.
    total = int(counts.sum(dtype=np.float64))
    lay.check_extent((*before, total, *after), "repeat")
    try:
        index = np.repeat(np.arange(size), counts.astype(np.int64))
    except MemoryError as error:
        raise OutOfMemoryError(
            f"repeat: an index of {total} elements does not fit in memory ({error}). Repeat fewer times, or in parts."
        ) from None
    return ops.take(x, asarray(index, device=_where(x, None)), axis=along)


def _repeat_counts(repeats: Any, x: Tensor, along: int) -> int | np.ndarray[Any, Any]:
    """Return one count for all slices, or one for each, none below 0."""
    if isinstance(repeats, (int, np.integer)):
        counts: Any = builtins.int(repeats)
        lowest = counts
    else:
        if not isinstance(repeats, (Tensor, np.ndarray, list, tuple)):
            raise ArgumentError(f"repeat: repeats must be an integer or a tensor of integers, given {repeats!r}.")
        requested = asarray(repeats)
        if (requested.dtype.is_float and requested.size) or requested.dtype.is_packed:
            raise DTypeError(f"repeat: repeats must be integers, given {requested.spec}; cast with .to('i64').")
        if requested.ndim > 1 or requested.size not in (1, x.shape[along]):
            raise ShapeError(
                f"repeat: {requested.size} repeats for axis {along} of {x.spec} ({requested.spec}); give one, or one for each."
            )
        counts = requested._host().reshape(-1)  # the size of the result depends on these values
        lowest = builtins.int(counts.min()) if counts.size else 0
        counts = builtins.int(counts[0]) if counts.size == 1 else counts
    if lowest < 0:
        raise ArgumentError(f"repeat: repeats are 0 or more, given {lay.count_text(lowest)}.")
    return counts


def _repetitions(repetitions: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return how often each axis is repeated, as Python's integers."""
    counts: tuple[Any, ...] = tuple(repetitions) if hasattr(repetitions, "__iter__") else (repetitions,)
    try:
        counts = tuple(operator.index(n) for n in counts)
    except TypeError:
        raise ArgumentError(f"tile: repetitions are integers, one for each axis; given {repetitions!r}.") from None
    if builtins.any(n < 0 for n in counts):
        raise ArgumentError(f"tile: repetitions are 0 or more, given {lay.count_text(min(counts))}.")
    return counts


@checked_except("repetitions")
def tile(x: Tensor, repetitions: int | tuple[int, ...], /) -> Tensor:
    """Return the whole tensor repeated along each axis."""
    counts = _repetitions(repetitions)
    lead = len(counts) - x.ndim
    x = ops.reshape(x, (1,) * lead + x.shape) if lead > 0 else x
    times = (1,) * (x.ndim - len(counts)) + counts
    shape = tuple(t * n for t, n in zip(times, x.shape, strict=True))
    lay.check_extent(shape, "tile")
    pairs = [(1, n) for n in x.shape]
    wide = tuple(s for t, n in zip(times, x.shape, strict=True) for s in (t, n))
    spread = ops.broadcast_to(ops.reshape(x, tuple(s for p in pairs for s in p)), wide)
    return ops.reshape(ops.copy(spread), shape)


# ---- sums of products


@checked
def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return dot products along an axis; the other axes broadcast."""
    if not -min(x1.ndim, x2.ndim) <= axis <= -1:
        raise ShapeError(f"vecdot: axis {axis} must be negative and exist in both {x1.spec} and {x2.spec}.")
    a, b = ops.moveaxis(x1, axis, -1), ops.moveaxis(x2, axis, -1)
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"vecdot: sizes along axis {axis} differ: {x1.spec} and {x2.spec}.")
    product = ops.matmul(ops.expand_dims(a, axis=-2), ops.expand_dims(b, axis=-1))
    return ops.squeeze(product, (-2, -1))


@checked
def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Sum products over the last `axes` axes of x1 and the first of x2, or over the pairs named."""
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ShapeError(f"tensordot: axes={axes} but the tensors have {x1.ndim} and {x2.ndim} dimensions.")
        left: Sequence[int] = range(x1.ndim - axes, x1.ndim)
        right: Sequence[int] = range(axes)
    else:
        left, right = (
            lay.axes_of(tuple(axes[0]), x1.ndim, "tensordot"),
            lay.axes_of(tuple(axes[1]), x2.ndim, "tensordot"),
        )
    sizes = [x1.shape[a] for a in left]
    if sizes != [x2.shape[b] for b in right]:
        raise ShapeError(
            f"tensordot: {x1.spec} over axes {tuple(left)} and {x2.spec} over {tuple(right)} differ in size."
        )
    free1 = [d for d in range(x1.ndim) if d not in left]
    free2 = [d for d in range(x2.ndim) if d not in right]
    shape1, shape2 = [x1.shape[d] for d in free1], [x2.shape[d] for d in free2]
    a = ops.reshape(ops.permute_dims(x1, (*free1, *left)), (prod(shape1), prod(sizes)))
    b = ops.reshape(ops.permute_dims(x2, (*right, *free2)), (prod(sizes), prod(shape2)))
    return ops.reshape(ops.matmul(a, b), (*shape1, *shape2))


# ---- functions composed of several ops


@checked
def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Return differences of neighbours along an axis, n times."""
    ends = [t for t in (prepend, x, append) if t is not None]
    x = ops.concat(ends, axis=axis) if len(ends) > 1 else x
    along = lay.axis_of(axis, x.ndim, "diff")
    for _ in range(builtins.min(n, x.shape[along])):  # after that many it is empty, and stays so
        x = ops.subtract(x.slice(along, 1, None), x.slice(along, 0, builtins.max(x.shape[along] - 1, 0)))
    return x


@checked
def searchsorted(x1: Tensor, x2: Tensor | float, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Return the index at which each element of x2 would be inserted in the sorted x1 (or x1 sorted by `sorter`)."""
    return ops.searchsorted(x1 if sorter is None else ops.take(x1, sorter), x2, side=side)


@checked
def swish(x: Tensor, /, *, out: Tensor | None = None) -> Tensor:
    """Return silu(x), under its other name."""
    return ops.silu(x, out=out)


# ---- what is here, for generic code


class _Info:
    """The results of the array API standard's inspection interface."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": buffer.MAX_DIMS}

    def default_device(self) -> Device:
        return backends.default_device().device

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        return {"real floating": dt.f32, "integral": dt.i64, "indexing": dt.i64}

    def devices(self) -> list[Device]:
        return [backends.device(d.name) for d in backends.devices() if d.available]

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's own dtypes that are here: f16 and bf16 are not among its names."""
        return {t.long_name: t for t in dt.ALL if t not in (dt.f16, dt.bf16) and (kind is None or dt.is_dtype(t, kind))}


def __array_namespace_info__() -> _Info:
    return _Info()
