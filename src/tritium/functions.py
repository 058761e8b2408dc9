"""Functions composed of several ops: creating tensors, shapes, sums of products.

Knows nothing of graphs: these functions can be traced like any user's function.
"""

from __future__ import annotations

import builtins
import operator
import os
import threading
from collections.abc import Callable, Sequence
from inspect import unwrap
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tritium import backends, buffer, dtype as dt, layout as lay, ops
from tritium.arguments import CONVERTERS, WAYS_TO, checked, checked_class, checked_except
from tritium.backends import Device
from tritium.backends.reference.cast import cast
from tritium.buffer import quick
from tritium.dtype import DType
from tritium.errors import ArgumentError, DTypeError, OutOfMemoryError, ShapeError, TraceError, shown
from tritium.interop import adopt_foreign, from_dlpack, is_foreign, read_array, view_array
from tritium.op import SCALARS, Spec, check_dtype, interpreter
from tritium.tensor import Tensor, wrap


def _operand(value: Any) -> Tensor | None:
    """Return an array or a number as a tensor, as the ops of the table do; None for anything else."""
    if (
        isinstance(value, (np.ndarray, np.generic))
        and value.dtype.kind not in "biufc"
        and value.dtype.name != "bfloat16"
    ):
        return None
    if is_foreign(value):
        return adopt_foreign(value)
    return asarray(value) if isinstance(value, (np.ndarray, np.generic, *SCALARS)) else None


CONVERTERS[Tensor] = _operand
WAYS_TO[Tensor] = "tritium.asarray(…) makes one"

# ---- creating tensors


@quick("asarray")
@checked
def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor of anything: a tensor, a NumPy array (viewed in place where possible), a scalar, nested lists,
    or an object with DLPack or the buffer protocol."""
    if type(obj) is np.ndarray and dtype is device is copy is None:
        return view_array(obj, copy=False)
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
        if (tensor := _of_numbers(obj, kind, there)) is not None and copy is not False:
            return tensor
        if copy is False:
            raise ArgumentError("asarray: a list cannot become a tensor without a copy; leave copy=False out.")
        return _as(_of_sequence(obj, kind, there), kind, there, None)
    data = obj if isinstance(obj, np.ndarray) else read_array(obj, "asarray")
    result = view_array(data, copy=bool(copy) or isinstance(obj, np.generic))
    if copy is False and (isinstance(obj, np.generic) or not result.storage.imported):
        raise ArgumentError("asarray: this array cannot be looked at in place (empty, byte-swapped or oddly strided); "
                            "leave copy=False out.")  # fmt: skip
    return _as(result, kind, there, None if copy else copy)


_asarray: Callable[..., Tensor] = unwrap(asarray)  # for callers whose arguments are checked already


@quick("tensor")
@checked
def tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a new tensor with a copy of the data."""
    if type(data) is list and dtype is None and device is None and (new := _of_numbers(data, None, None)) is not None:
        return new
    return _asarray(data, dtype=dtype, device=device, copy=True)


def _as(x: Tensor, kind: DType | None, there: Device | None, copy: bool | None) -> Tensor:
    changed = (kind is not None and kind is not x.dtype) or (there is not None and there is not x.device)
    if changed and copy is False:
        raise ArgumentError(f"asarray: {x.spec} cannot become {kind or x.dtype} without a copy; leave copy=False out.")
    if changed:
        return x.to(dtype=kind, device=there)
    return ops.copy(x) if copy else x


def _of_numbers(data: Sequence[Any], kind: DType | None, there: Device | None) -> Tensor | None:
    """Return a tensor of nested lists by native code; None where they hold more than Python's own numbers, or go elsewhere."""
    if buffer.native is None or interpreter.get() is not None or (there is not None and there.type != "cpu"):
        return None
    tensor: Tensor | None = buffer.native.tensor_of_lists(data, kind, dt.ALL)
    if tensor is None or there is not None or backends.device_for(None, tensor.size).type == "cpu":
        return tensor
    return None


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
    if values.dtype.kind not in "biufc":
        raise DTypeError(f"Nested lists must hold numbers or bools, given {values.dtype}.")
    if kind is None:
        kind = {"b": dt.bool_, "i": dt.i64, "u": dt.u64, "f": dt.f32, "c": dt.c64}[values.dtype.kind]
        kind = dt.f32 if values.size == 0 else kind
    if values.dtype.kind == "c" and not kind.is_complex:
        raise DTypeError(f"asarray: the list holds complex numbers, which {kind} does not store; use 'c64' or 'c128'.")
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


@quick("zeros")
@checked
def zeros(shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of zeros."""
    if dtype is not None:
        check_dtype("zeros", shape, dtype, device)
    return ops.full(shape, 0, dt.f32 if dtype is None else dtype, device)


@quick("ones")
@checked
def ones(shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of ones."""
    if dtype is not None:
        check_dtype("ones", shape, dtype, device)
    return ops.full(shape, 1, dt.f32 if dtype is None else dtype, device)


def _where(x: Tensor, device: Any) -> Any:
    return device if device is not None else (None if x.is_traced else x.device)


@quick("empty_like")
@checked
def empty_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return uninitialised memory of the shape, dtype and device of x."""
    return ops.empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=_where(x, device))


@checked
def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor like x in which every element is `fill_value`."""
    return ops.full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=_where(x, device))


@quick("zeros_like")
@checked
def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of zeros like x."""
    return ops.full(x.shape, 0, dtype=x.dtype if dtype is None else dtype, device=_where(x, device))


@quick("ones_like")
@checked
def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of ones like x."""
    return ops.full(x.shape, 1, dtype=x.dtype if dtype is None else dtype, device=_where(x, device))


# ---- random numbers: a seed gives the same numbers on every device


_SEEDS: list[int] = []  # drawn from the system many at a time: one call of it costs more than a small tensor
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SEEDS.clear)


def _fresh_seed() -> int:
    try:
        return _SEEDS.pop()
    except IndexError:
        _SEEDS.extend(value >> 1 for value in np.frombuffer(os.urandom(1024), np.uint64).tolist())
        return _SEEDS.pop()


@checked_class
class Generator:
    """A sequence of seeds: the same start gives the same numbers. Without a start the operating system provides one."""

    __slots__ = ("_lock", "_next", "_start")

    def __init__(self, seed: int | None = None) -> None:
        self._lock = threading.Lock()
        self.manual_seed(_fresh_seed() if seed is None else seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the sequence again at a seed; return the generator."""
        start = _check_seed(seed, "manual_seed")
        with self._lock:
            self._start, self._next = start, start
        return self

    def initial_seed(self) -> int:
        """Return the seed at which the sequence started."""
        return self._start

    def draw(self) -> int:
        """Return the next seed, in 0 … 2^63 - 1: splitmix64, whose outputs are as good as random for neighbouring states."""
        with self._lock:
            self._next = z = (self._next + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return (z ^ (z >> 31)) >> 1

    def __repr__(self) -> str:
        return f"Generator(seed={self._start})"


_default_generator: list[Generator] = []  # at most one; without it every seed comes from the operating system


@checked
def manual_seed(seed: int) -> Generator:
    """Start the default generator at a seed: from here on, random numbers without a seed of their own repeat from run to run."""
    generator = Generator(_check_seed(seed, "manual_seed"))
    _default_generator[:] = [generator]
    return generator


def _check_seed(seed: Any, name: str) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ArgumentError(f"{name}: seed must be an integer, given {shown(seed)}.")
    if not 0 <= seed < 2**63:
        raise ArgumentError(f"{name}: seed={lay.count_text(int(seed))} must lie in 0 … 2^63 - 1.")
    return int(seed)


def _seed(seed: int | None, name: str, generator: Generator | None = None) -> int:
    """Return the seed of a call: its own, or the next one of its generator or of the default one."""
    if seed is not None:
        if generator is not None:
            raise ArgumentError(f"{name}: seed and generator were both given; give one of them.")
        return _check_seed(seed, name)
    if interpreter.get() is not None:
        raise TraceError(f"{name} without a seed cannot be written down: every run would repeat it. Pass seed=….")
    if generator is not None:
        return generator.draw()
    return _default_generator[0].draw() if _default_generator else _fresh_seed()


@checked
def rand(
    shape: Any, dtype: Any = None, device: Any = None, *, seed: int | None = None, generator: Generator | None = None
) -> Tensor:
    """Return uniform numbers in [0, 1); without a seed they differ at every call, unless `manual_seed` was called."""
    if dtype is not None:
        check_dtype("rand", shape, dtype, device)
    if dtype is device is None:
        return ops.random_uniform(shape, seed=_seed(seed, "rand", generator))
    return ops.random_uniform(shape, seed=_seed(seed, "rand", generator), dtype=dtype, device=device)


@checked
def randn(
    shape: Any, dtype: Any = None, device: Any = None, *, seed: int | None = None, generator: Generator | None = None
) -> Tensor:
    """Return Gaussian numbers of mean 0 and deviation 1; without a seed they differ at every call, unless `manual_seed`
    was called."""
    if dtype is not None:
        check_dtype("randn", shape, dtype, device)
    if dtype is device is None:
        return ops.random_normal(shape, seed=_seed(seed, "randn", generator))
    return ops.random_normal(shape, seed=_seed(seed, "randn", generator), dtype=dtype, device=device)


@checked
def randint(
    low: int, high: int, shape: Any, *, seed: int | None = None, dtype: Any = None, device: Any = None,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Return integers in [low, high); without a seed they differ at every call, unless `manual_seed` was called."""
    return ops.random_integers(low, high, shape, seed=_seed(seed, "randint", generator), dtype=dtype, device=device)


@checked
def randperm(
    n: int, *, seed: int | None = None, dtype: Any = None, device: Any = None, generator: Generator | None = None
) -> Tensor:
    """Return the integers 0 … n - 1 in random order."""
    if n < 0:
        raise ArgumentError(f"randperm: n={lay.count_text(n)} must be 0 or more.")
    kind = ops.integer(dt.i64 if dtype is None else dt.dtype(dtype))
    if n:
        dt.check_fits(n - 1, kind)
    keys = ops.random_integers(-(2**63), 2**63, (n,), seed=_seed(seed, "randperm", generator), device=device)
    order = ops.argsort(keys)
    return order if kind is dt.i64 else ops.astype(order, kind)


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
def unstack(x: Tensor, /, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis, one by one: views."""
    along = lay.axis_of(axis, x.ndim, "unstack")
    return tuple(x[(slice(None),) * along + (i,)] for i in range(x.shape[along]))


@checked
def split(x: Tensor, parts: int | Sequence[int], /, axis: int = 0) -> tuple[Tensor, ...]:
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
def repeat(x: Tensor, repeats: int | Tensor | Sequence[int], /, axis: int | None = None) -> Tensor:
    """Repeat every element (or slice) several times; `repeats` may differ from slice to slice."""
    if buffer.native is not None and (repeated := buffer.native.repeat(x, repeats, axis)) is not None:
        return repeated
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
            raise ArgumentError(f"repeat: repeats must be an integer or a tensor of integers, given {shown(repeats)}.")
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
    try:
        counts = tuple(operator.index(n) for n in lay.listed(repetitions))
    except TraceError:
        raise
    except Exception:  # of an object's own methods, too
        raise ArgumentError(f"tile: repetitions are integers, one for each axis; given {shown(repetitions)}.") from None
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
def vecdot(x1: Tensor, x2: Tensor, /, axis: int = -1) -> Tensor:
    """Return dot products along an axis; the other axes broadcast."""
    if not -min(x1.ndim, x2.ndim) <= axis <= -1:
        raise ShapeError(f"vecdot: axis {axis} must be negative and exist in both {x1.spec} and {x2.spec}.")
    a, b = (x1, x2) if axis == -1 else (ops.moveaxis(x1, axis, -1), ops.moveaxis(x2, axis, -1))
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"vecdot: sizes along axis {axis} differ: {x1.spec} and {x2.spec}.")
    a = ops.conj(a) if a.dtype.is_complex else a
    if a.ndim == b.ndim == 1:
        return ops.matmul(a, b)
    product = ops.matmul(ops.expand_dims(a, axis=-2), ops.expand_dims(b, axis=-1))
    return ops.squeeze(product, (-2, -1))


@checked
def tensordot(x1: Tensor, x2: Tensor, /, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
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
def searchsorted(x1: Tensor, x2: Tensor | float, /, side: str = "left", *, sorter: Tensor | None = None) -> Tensor:
    """Return the index at which each element of x2 would be inserted in the sorted x1 (or x1 sorted by `sorter`)."""
    return ops.searchsorted(x1 if sorter is None else ops.take(x1, sorter), x2, side=side)


@checked
def swish(x: Tensor, /, *, out: Tensor | None = None) -> Tensor:
    """Return silu(x), under its other name."""
    return ops.silu(x, out=out)


# ---- distinct elements


class UniqueAll(NamedTuple):
    """The results of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The results of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The results of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


@checked
def unique_all(x: Tensor, /) -> UniqueAll:
    """Return the distinct elements in ascending order, the index of the first of each, the place of each element of x among
    them, and how often each occurs."""
    return UniqueAll(*_distinct(x, ops.DISTINCT))


@checked
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the distinct elements in ascending order, and how often each occurs."""
    return UniqueCounts(*_distinct(x, ("counts",)))


@checked
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the distinct elements in ascending order, and the place of each element of x among them."""
    return UniqueInverse(*_distinct(x, ("inverse",)))


@checked
def unique_values(x: Tensor, /) -> Tensor:
    """Return the distinct elements in ascending order; NaN differs from every number, itself too."""
    return _distinct(x, ())


def _distinct(x: Tensor, parts: tuple[str, ...]) -> Any:
    """Return what `ops.distinct` does; on the CPU by ops whose kernels are native, from the elements in order."""
    here = None if x.is_traced or interpreter.get() is not None or buffer.native is None else x.device
    if here is None or here.type != "cpu" or x.dtype is dt.bool_ or x.dtype.is_complex or not x.size:
        return ops.distinct(x, parts=parts)
    flat = ops.reshape(x, (-1,))
    if not parts:
        ordered = ops.sort(flat)
        return ordered[_begins(ordered)]
    order = ops.argsort(flat)
    ordered = ops.take(flat, order, axis=0)
    begins = _begins(ordered)
    (starts,) = ops.nonzero(begins)
    results = [ordered[starts]]
    if "indices" in parts:
        results.append(order[starts])
    if "inverse" in parts:
        results.append(_places(begins, order, x.shape))
    if "counts" in parts:
        results.append(ops.subtract(ops.concat([starts[1:], asarray([x.size])]), starts))
    return tuple(results)


def _begins(ordered: Tensor) -> Tensor:
    """Return for each element in order whether it differs from the one before it."""
    begins = ops.empty(ordered.shape, dtype=dt.bool_, device=ordered.device)
    begins[0] = True
    ops.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return begins


def _places(begins: Tensor, order: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the place of each element among the distinct ones, from where those begin in order."""
    places = ops.empty(order.shape, dtype=dt.i64, device=order.device)
    places[order] = ops.subtract(ops.cumulative_sum(ops.astype(begins, dt.i64)), 1)
    return ops.reshape(places, shape)


@checked
def swapaxes(x: Tensor, axis1: int, axis2: int, /) -> Tensor:
    """Return a view with two axes exchanged."""
    return x.swapaxes(axis1, axis2)


@checked
def isclose(x1: Tensor, x2: Tensor, /, rtol: float = 1e-5, atol: float = 1e-8, *, equal_nan: bool = False) -> Tensor:
    """Return whether |x1 - x2| <= atol + rtol * |x2|, element by element; equal infinities are close, NaN is close to NaN with
    equal_nan. Half floats are compared in f32, integers and bools in f64."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value < 0:
            raise ArgumentError(f"isclose: {name}={value} must be 0 or more.")
    a, b = (_wide(x, dt.f64) for x in (x1, x2))
    near = ops.less_equal(ops.abs(ops.subtract(a, b)), ops.add(ops.multiply(ops.abs(b), rtol), atol))
    close = ops.logical_or(ops.logical_and(near, ops.isfinite(b)), ops.equal(a, b))
    return ops.logical_or(close, ops.logical_and(ops.isnan(a), ops.isnan(b))) if equal_nan else close


@checked
def allclose(x1: Tensor, x2: Tensor, /, rtol: float = 1e-5, atol: float = 1e-8, *, equal_nan: bool = False) -> bool:
    """Return True if all elements are close, as `isclose` compares them."""
    return builtins.bool(ops.all(isclose(x1, x2, rtol, atol, equal_nan=equal_nan)))


def _wide(x: Tensor, whole: DType) -> Tensor:
    """Return x in a dtype in which several steps in a row round little: half floats in f32, numbers without a fraction in `whole`."""
    if not x.dtype.is_float:
        return ops.astype(x, whole)
    return ops.astype(x, dt.f32) if x.dtype in (dt.f16, dt.bf16) else x


def _narrow(x: Tensor, original: DType) -> Tensor:
    """Return a result in the float dtype of what it was computed from; of integers and bools as it is."""
    return ops.astype(x, original) if original.is_float and x.dtype is not original else x


@checked
def logsumexp(x: Tensor, /, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over axes, without overflow; over no elements it is -inf."""
    axes = lay.axes_of(axis, x.ndim, "logsumexp")
    wide = _wide(x, dt.f32)
    if not builtins.all(x.shape[d] for d in axes):
        return _narrow(ops.log(ops.sum(wide, axis=axes, keepdims=keepdims)), x.dtype)
    top = ops.max(wide, axis=axes, keepdims=True)
    top = ops.where(ops.isfinite(top), top, 0.0)
    total = ops.log(ops.sum(ops.exp(ops.subtract(wide, top)), axis=axes, keepdims=True))
    result = ops.add(total, top)
    return _narrow(result if keepdims else ops.squeeze(result, axes), x.dtype)


@checked
def median(x: Tensor, /, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Tensor:
    """Return the middle of the sorted elements along axes, of an even count the average of both; NaN wins."""
    return _quantile(x, 0.5, axis, keepdims, "linear", "median")


_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


@checked
def quantile(
    x: Tensor, q: Any, /, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False, method: str = "linear"
) -> Tensor:
    """Return the values below which the parts `q` (in 0 … 1) of the elements along axes are; NaN wins.

    The shape of q leads the result. Between two elements, `method` is 'linear', 'lower', 'higher', 'nearest' or 'midpoint'.
    """
    if method not in _METHODS:
        raise ArgumentError(f"quantile: method={method!r} is unknown; use {', '.join(map(repr, _METHODS))}.")
    return _quantile(x, q, axis, keepdims, method, "quantile")


def _quantile(x: Tensor, q: Any, axis: Any, keepdims: bool, method: str, name: str) -> Tensor:
    parts = np.asarray(q._host() if isinstance(q, Tensor) else read_array(q, name), np.float64)
    if parts.ndim > 1 or not np.all((parts >= 0) & (parts <= 1)):  # NaN is outside too
        raise ArgumentError(f"{name}: q must be one number or a list of numbers, each in 0 … 1; given {shown(q)}.")
    ops.refuse_empty(x.spec, axis, name)
    axes = lay.axes_of(axis, x.ndim, name)
    ordered = ops.sort(_flat_last(_wide(x, dt.f32), axes), axis=-1)
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes)
    if parts.ndim == 0:
        result = _one_quantile(ordered, float(parts), method)
        return _narrow(result if result.shape == shape else ops.reshape(result, shape), x.dtype)
    last = ordered.shape[-1] - 1
    places = parts * last
    below = np.floor(places)
    share = _share(places, method)
    lead = ops.moveaxis(ordered, -1, 0)
    low, high = (
        ops.take(lead, asarray(i.astype(np.int64).reshape(-1), device=_where(x, None)), axis=0)
        for i in (below, np.minimum(below + 1, last))
    )
    share = share.reshape(-1, *(1,) * (low.ndim - 1))
    near = ops.astype(asarray(share, device=_where(x, None)), low.dtype)
    # Where nothing of a neighbour is in the result, it stays out of the sum: an infinity times 0 is NaN.
    step = ops.subtract(high, low)
    between = ops.where(ops.less(near, 0.5), ops.add(low, ops.multiply(step, near)),
                        ops.subtract(high, ops.multiply(step, ops.subtract(1.0, near))))  # fmt: skip
    result = ops.where(ops.equal(near, 0.0), low, ops.where(ops.equal(near, 1.0), high, between))
    top = ops.expand_dims(lead[last], axis=0)
    result = ops.where(ops.isnan(top), top, result)
    return _narrow(ops.reshape(result, (*parts.shape, *shape)), x.dtype)


def _share(places: Any, method: str) -> Any:
    """Return how much of the element above a place between two is in the result."""
    share = places - np.floor(places)
    if method in ("lower", "higher"):
        return np.where(share > 0, 1.0 if method == "higher" else 0.0, 0.0)
    if method == "nearest":
        return np.rint(places) - np.floor(places)
    return np.where(share > 0, 0.5, 0.0) if method == "midpoint" else share


def _one_quantile(ordered: Tensor, part: float, method: str) -> Tensor:
    """Return one quantile along the last axis, whose elements are in order: its numbers are not tensors, as those of many are."""
    last = ordered.shape[-1] - 1
    place = part * last
    number = ordered.dtype.numpy.type
    near = number(_share(place, method))
    low, top = ordered[..., builtins.int(place)], ordered[..., last]
    if near == 0:
        result = low
    else:
        high = ordered[..., min(builtins.int(place) + 1, last)]
        step = ops.subtract(high, low)
        below, above = builtins.float(near), builtins.float(number(1) - near)
        between = (
            ops.add(low, ops.multiply(step, below)) if near < 0.5 else ops.subtract(high, ops.multiply(step, above))
        )
        result = high if near == 1 else between
    return ops.where(ops.isnan(top), top, result)


def _flat_last(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return x with these axes joined into a last one."""
    if len(axes) == x.ndim:
        return ops.reshape(x, (-1,))
    rest = tuple(d for d in range(x.ndim) if d not in axes)
    joined = prod(x.shape[d] for d in axes)
    return ops.reshape(ops.permute_dims(x, (*rest, *axes)), (*(x.shape[d] for d in rest), joined))


_PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


@checked
def pad(x: Tensor, pad_width: Any, /, mode: str = "constant", *, constant_values: float = 0) -> Tensor:
    """Return x with elements added before and after, along each axis: one count for all, (before, after) for all, or a pair for
    each axis. `mode` says which: 'constant' (`constant_values`), 'edge', 'reflect', 'symmetric' or 'wrap'."""
    if mode not in _PAD_MODES:
        raise ArgumentError(f"pad: mode={mode!r} is unknown; use {', '.join(map(repr, _PAD_MODES))}.")
    widths = _pad_widths(pad_width, x)
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths, strict=True))
    lay.check_extent(shape, "pad")
    if mode == "constant":
        out = ops.full(shape, _fill(constant_values, x), dtype=x.dtype, device=_where(x, None))
        key = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths, strict=True))
        out[key] = x
        return out
    for axis, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        if not x.shape[axis]:
            raise ShapeError(f"pad: axis {axis} of {x.spec} is empty, so mode {mode!r} has nothing to repeat.")
        index = np.pad(np.arange(x.shape[axis]), (before, after), mode=mode)  # type: ignore[call-overload]
        x = ops.take(x, asarray(index, device=_where(x, None)), axis=axis)
    return ops.copy(x) if not builtins.any(map(builtins.any, widths)) else x


def _fill(value: Any, x: Tensor) -> Any:
    """Return a number that x's dtype holds: a bool for bools, an integer for integers where nothing is lost."""
    if x.dtype is dt.bool_ and value in (0, 1):
        return builtins.bool(value)
    return builtins.int(value) if x.dtype.is_integer and value == value // 1 else value


def _pad_widths(widths: Any, x: Tensor) -> list[tuple[int, int]]:
    """Return the counts before and after for each axis, as Python's integers."""
    needed = f"one integer, (before, after), or a pair for each of the {x.ndim} axes of {x.spec}"
    try:
        if not isinstance(widths, (int, np.integer, list, tuple, np.ndarray)):
            raise TypeError
        counts = np.asarray(widths)
        if counts.dtype.kind not in "iu" and counts.size:
            raise ValueError
        pairs = np.broadcast_to(counts if counts.size else np.zeros((0, 2), np.int64), (x.ndim, 2)).tolist()
    except (ValueError, TypeError):
        raise ArgumentError(f"pad: pad_width must be {needed}; given {shown(widths)}.") from None
    if builtins.any(n < 0 for pair in pairs for n in pair):
        raise ArgumentError(f"pad: counts are 0 or more, given {shown(widths)}; slice to make a tensor smaller.")
    return [(before, after) for before, after in pairs]


# ---- what is here, for generic code


class _Info:
    """The results of the array API standard's inspection interface."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": buffer.MAX_DIMS}

    def default_device(self) -> Device:
        return backends.default_device().device

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        return {"real floating": dt.f32, "complex floating": dt.c64, "integral": dt.i64, "indexing": dt.i64}

    def devices(self) -> list[Device]:
        return [backends.device(d.name) for d in backends.devices() if d.available]

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's own dtypes that are here: f16 and bf16 are not among its names."""
        own = [t for t in (*dt.ALL, *dt.COMPLEX) if t not in (dt.f16, dt.bf16)]
        return {t.long_name: t for t in own if kind is None or dt.is_dtype(t, kind)}


def __array_namespace_info__() -> _Info:
    return _Info()
