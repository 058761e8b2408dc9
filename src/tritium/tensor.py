"""Tensor: a spec and a value, which is memory, or a node while tracing. Every op that takes a tensor is a method of it.

Knows nothing of graphs: a traced tensor is one whose storage has no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tritium import backends, dtype as dt, launch, layout as lay, ops
from tritium.backends import Device
from tritium.buffer import Array
from tritium.errors import ArgumentError, DTypeError, ShapeError, TraceError, nearest, shown
from tritium.layout import Layout
from tritium.op import OPS, SCALARS, Kind, Op, Spec, interpreter, plain


class Tensor(Array):
    """An n-dimensional array on a device. Its operations are the rows of `tritium.ops`; views share its memory."""

    __slots__ = ()
    __array_priority__ = 1000.0  # so that numpy_array + tensor comes to us

    if TYPE_CHECKING:  # the rows attached below

        def __getattr__(self, name: str) -> Any: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __getitem__(self, key: Any) -> Tensor: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...

        __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = __add__
        __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __lt__ = __le__ = __gt__ = __ge__ = __add__
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rmatmul__ = __add__
        __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = __add__
        __pos__ = __abs__ = __invert__ = __neg__

    # -- what it is

    @property
    def device(self) -> Device:
        """Return the device of the memory."""
        return self._memory("device").device

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)

    @property
    def layout(self) -> Layout:
        return Layout(self.shape, self.strides, self.offset)

    @property
    def itemsize(self) -> int:
        return self.dtype.nbytes

    @property
    def data_ptr(self) -> int:
        """Return the address of the first element. Reading it counts as a write, since code that has the address may write."""
        address = int(self._memory("data_ptr").export())
        return address + self.offset // (self.dtype.rows * self.dtype.block) * self.dtype.nbytes

    @property
    def acceleration_backend(self) -> str:
        """Return the kernels that compute on this tensor: the instruction set of native kernels, or 'numpy'."""
        kernel = self.device.backend.choose(ops.add, (self.spec, self.spec), {}, (self.layout, self.layout))
        return kernel.name if kernel else "none"

    @property
    def sharers(self) -> int:
        """Return the number of clones that share this memory until one of them is written; 1 when it is this tensor's alone."""
        return int(self._memory("sharers").sharers)

    @property
    def is_traced(self) -> bool:
        return self.storage.device is None

    def _memory(self, what: str) -> Any:
        """Return the storage; raise for a traced tensor, which has none."""
        if self.storage.device is None:
            raise TraceError(
                f"{what} of a traced tensor {self.spec} was asked, but it has no memory while the graph is written "
                f"down; {self.storage.remedy}."
            )
        return self.storage

    def is_contiguous(self) -> bool:  # type: ignore[override]
        """Return True if the elements are row-major without gaps (in a packed dtype: except for padding)."""
        if self.dtype.is_packed:
            return self.strides == self.spec.strides
        return lay.is_contiguous(self.shape, self.strides)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len() of a 0-d tensor: it has no first axis.")
        return self.shape[0]

    def __repr__(self) -> str:
        suffix = f"dtype={self.dtype}, shape={self.shape}"
        if self.is_traced:
            return f"Tensor(traced, {suffix})"
        with np.printoptions(threshold=200, edgeitems=3, precision=5):
            values = np.array2string(self._host(), separator=", ", prefix="Tensor(")
        return f"Tensor({values}, {suffix}, device={str(self.device)!r})"

    def __hash__(self) -> int:
        return id(self)

    # -- values out

    def _host(self) -> np.ndarray[Any, Any]:
        """Return the elements on the host, for reading; of a packed dtype, its integers."""
        x = ops.repack(self, dt.i8) if self.dtype.is_packed else self
        return x._memory("The value").device.backend.download(x)

    def item(self) -> bool | int | float:
        """Return the one element as a Python number."""
        if self.size != 1:
            raise ArgumentError(f"item: one element is needed, given {self.spec}; index one, or use all() or any().")
        return self._host().reshape(()).item()

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        return self._host().tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise DTypeError(f"An index must be an integer, given {self.spec}.")
        return int(self.item())

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self))) if len(self) < 64 else iter(rows(self))

    def __contains__(self, value: Any) -> bool:
        return bool(ops.any(ops.equal(self, value)))

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        if self.size != 1:
            raise ArgumentError(
                f"format: {spec!r} formats one number, given {self.spec}; index one element, format each of x.tolist(), or leave "
                f"the format out."
            )
        try:
            return format(self.item(), spec)
        except ValueError as error:
            raise ArgumentError(f"format: {spec!r} does not format a number of {self.dtype}: {error}.") from None

    # -- memory

    def materialize(self) -> Tensor:
        """Return the value of a tensor made under `lazy()`, computed now if it was not yet; any other tensor is itself."""
        if not self.is_traced:
            return self
        trace = self.storage.cell.trace
        if not hasattr(trace, "materialize"):
            self._memory("materialize()")
        value: Tensor = trace.materialize(self)
        return value

    def clone(self) -> Tensor:
        """Return an independent tensor that shares memory until either side is written.

        A view that shows less than half of its memory, or repeats it, is copied instead: sharing would keep all of it.
        """
        if interpreter.get() is not None and not self.is_traced:  # memory from outside, met while tracing
            return ops.copy(self)
        if 2 * self.nbytes < self.storage.nbytes or 0 in self.strides:
            return ops.copy(self)
        return Tensor(self.storage.clone(), self.dtype, self.shape, self.strides, self.offset)

    def __copy__(self) -> Tensor:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = out = ops.copy(self)
        return out

    def contiguous(self) -> Tensor:
        """Return this tensor if it is contiguous, else a contiguous copy."""
        return self if self.is_contiguous() else ops.copy(self)

    def to(self, *where: Any, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
        """Convert to another dtype and/or device, in any order: x.to('f16'), x.to('cuda'), x.to('cpu', 'f32')."""
        for target in where:
            if isinstance(target, Device) or (isinstance(target, str) and backends.is_device_name(target)):
                if device is not None:
                    raise ArgumentError(_twice("device", device, target))
                device = target
            elif isinstance(target, str) and not dt.is_name(target):
                raise ArgumentError(
                    f"to: {target!r} is neither a dtype nor a device.{nearest(target, dt.names())} "
                    f"Dtypes: {', '.join(t.name for t in dt.ALL)}. Devices: {', '.join(backends.device_names())}."
                )
            elif dtype is not None:
                raise ArgumentError(_twice("dtype", dtype, target))
            else:
                dtype = dt.dtype(target)
        out = self
        if dtype is not None and dt.dtype(dtype) is not out.dtype:
            if copy is False:
                raise ArgumentError(
                    f"to: {out.spec} cannot become {dt.dtype(dtype)} without a copy; leave copy=False out."
                )
            out = ops.astype(out, dtype)
        if device is not None and (there := backends.device(device)) is not out.device:
            out = out._shared(there) if copy is False else wrap(launch.transfer(out, there.backend))
        return ops.copy(self) if copy and out is self else out

    to_dtype = to

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """Move to a device: the array API standard's name for .to(device)."""
        if stream is not None:
            raise ArgumentError("to_device: streams are not used here; leave stream out.")
        return self.to(device=device)

    def slice(self, dim: int, start: int | None = None, end: int | None = None) -> Tensor:
        """Return the part from start to end along one dimension: a view."""
        along = lay.axis_of(dim, self.ndim, "slice")
        return self[(slice(None),) * along + (slice(start, end),)]

    # -- views under the names people know

    def view(self, *shape: Any) -> Tensor:
        """Return the same memory in another shape; raises where `reshape` would copy."""
        if len(shape) == 1 and not isinstance(shape[0], int) and _names_dtype(shape[0]):
            raise ArgumentError(
                f"view: sizes are needed, given the dtype {shown(shape[0])}. Convert the values with .to({dt.dtype(shape[0]).name!r}); "
                f"to read the same bytes as another dtype, use x.numpy().view(…)."
            )
        new = _spread(shape)
        if not self.is_traced:
            lay.view(self.layout, new)
        return ops.reshape(self, new)

    def reshape(self, *shape: Any) -> Tensor:
        """Return the tensor in another shape; a view where the layout allows, else a copy (counted)."""
        return ops.reshape(self, _spread(shape))

    def permute(self, *axes: Any) -> Tensor:
        """Return a view with the axes in another order."""
        return ops.permute_dims(self, _spread(axes))

    def transpose(self, dim0: int = -2, dim1: int = -1) -> Tensor:
        """Return a view with two axes exchanged."""
        order = list(range(self.ndim))
        a, b = lay.axis_of(dim0, self.ndim, "transpose"), lay.axis_of(dim1, self.ndim, "transpose")
        order[a], order[b] = b, a
        return ops.permute_dims(self, tuple(order))

    def expand(self, *shape: Any) -> Tensor:
        """Broadcast to a larger shape without copying; -1 keeps a size."""
        new = lay.sizes_of(_spread(shape), "expand")
        lead = len(new) - self.ndim
        if -1 in new[: max(lead, 0)]:
            raise ShapeError(
                f"expand: {lay.text(new)} keeps (-1) an axis that {self.spec} does not have; give its size."
            )
        return ops.broadcast_to(self, tuple(self.shape[d - lead] if n == -1 else n for d, n in enumerate(new)))

    def flatten(self) -> Tensor:
        return ops.reshape(self, (-1,))

    @property
    def T(self) -> Tensor:
        """Return a transposed view of a matrix. For more axes use mT, permute or transpose."""
        if self.ndim != 2:
            raise ArgumentError(
                f"T needs 2 dimensions, given {self.spec}; use mT, permute(…) or transpose(dim0, dim1)."
            )
        return ops.matrix_transpose(self)

    @property
    def mT(self) -> Tensor:
        """Return a view with the last two axes exchanged."""
        return ops.matrix_transpose(self)

    # -- in place

    def copy_(self, value: Any) -> Tensor:
        """Write value, broadcast, into this tensor's memory."""
        ops.copy(ops.broadcast_to(like(value, self), self.shape), out=self)
        return self

    fill_ = copy_

    def zero_(self) -> Tensor:
        return self.copy_(0)

    # -- equality needs care: anything may stand on the other side

    def __eq__(self, other: Any) -> Any:
        return _equal(self, other) if isinstance(other, _OPERANDS) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return _not_equal(self, other) if isinstance(other, _OPERANDS) else NotImplemented


_OPERANDS = (*SCALARS, Array, np.ndarray, np.generic, list, tuple)
_equal, _not_equal = ops.equal, ops.not_equal


def _spread(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Return sizes that were passed one by one or as one tuple."""
    return plain(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list, np.ndarray)) else sizes)


def _twice(kind: str, first: Any, second: Any) -> str:
    a, b = (shown(getattr(value, "name", value)) for value in (first, second))
    return f"to: two {kind}s were given, {a} and {b}; give one {kind}, and one of each at most."


def _names_dtype(value: Any) -> bool:
    if isinstance(value, (dt.DType, np.dtype, type)):
        return True
    return isinstance(value, str) and dt.is_name(value)


def wrap(a: Array) -> Tensor:
    """Return the tensor of an array."""
    return Tensor(a.storage, a.dtype, a.shape, a.strides, a.offset)


def rows(x: Tensor) -> list[Tensor]:
    """Return the slices along the first axis: views. Many indices in turn would each be remembered as a call of their own."""
    if x.is_traced or x.dtype.is_packed:
        return [x[i] for i in range(x.shape[0])]
    shape, strides, step = x.shape[1:], x.strides[1:], x.strides[0]
    return [Tensor(x.storage, x.dtype, shape, strides, x.offset + i * step) for i in range(x.shape[0])]


def like(value: Any, x: Tensor) -> Any:
    """Return a number as a tensor of x's dtype, where its kind allows; tensors and arrays as they are."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, SCALARS):
        return value
    return ops.full((), value, x.dtype, None if x.is_traced else x.device)


# ---- operators and methods: each is a row

_COMPARISONS = ("lt", "le", "gt", "ge")  # which Python reflects by themselves: x < y is y > x


def _reflected(row: Op) -> Callable[[Any, Any], Any]:
    return lambda self, other: row(other, self)


def _in_place(row: Op) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **attrs: Any) -> Tensor:
        return row(self, *args, out=self, **attrs)

    method.__name__, method.__doc__ = f"{row.name}_", f"{row.doc} Written into this tensor's memory."
    return method


def _attach() -> None:
    rows = [o for o in OPS.values() if o.inputs and o.kind is not Kind.SOURCE and o is not ops.item]
    for row in rows:
        if row.operator:
            setattr(Tensor, f"__{row.operator}__", row)
            if row.arity == 2 and row.operator not in _COMPARISONS:
                setattr(Tensor, f"__r{row.operator}__", _reflected(row))
                if row is not ops.divmod:
                    setattr(Tensor, f"__i{row.operator}__", _in_place(row))
    methods = {o.name: o for o in rows} | {name: o for o in rows for name in o.aliases}
    for name, row in methods.items():
        if name not in vars(Tensor):
            setattr(Tensor, name, row)
        if row.inplace:
            setattr(Tensor, f"{name}_", _in_place(row))


_attach()
