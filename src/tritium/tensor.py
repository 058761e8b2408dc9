"""Tensor: a spec and a value, which is memory, or a node while tracing. Every op that takes a tensor is a method of it.

Knows nothing of graphs: a traced tensor is one whose storage has no device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tritium import backends, dtype as dt, launch, layout as lay, ops
from tritium.backends import Device
from tritium.buffer import Array, native, quick
from tritium.errors import (
    HINTS,
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    TraceError,
    ViewError,
    missing_name,
    nearest,
    shown,
)
from tritium.layout import Layout
from tritium.op import OPS, SCALARS, Kind, Op, Spec, interpreter, plain

if TYPE_CHECKING:
    from tritium._table import Methods  # an Array with the methods attached below, written by tools/stubs.py
else:
    Methods = Array


class Tensor(Methods):
    """An n-dimensional array on a device. Its operations are the rows of `tritium.ops`; views share its memory."""

    __slots__ = ()
    __array_priority__ = 1000.0  # so that numpy_array + tensor comes to us

    # -- what it is

    @property
    def device(self) -> Device:
        """Return the device of the memory."""
        here: Device = self._computed("device").storage.device
        return here

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

    @property
    def _is_lazy(self) -> bool:
        """Return True if the tensor was made under `lazy()`: reading its value computes it."""
        return self.is_traced and hasattr(self.storage.cell.trace, "materialize")

    def _computed(self, what: str) -> Tensor:
        """Return a tensor with memory: this one, or the value of a lazy one; raise for another traced tensor."""
        if self.storage.device is not None:
            return self
        if not self._is_lazy:
            self._memory(what)
        return self.materialize()

    @quick("is_contiguous")
    def is_contiguous(self) -> bool:  # type: ignore[override]
        """Return True if the elements are row-major without gaps (in a packed dtype: except for padding)."""
        if self.dtype.is_packed:
            return self.strides == self.spec.strides
        return lay.is_contiguous(self.shape, self.strides)

    @quick("length")
    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len() of a 0-d tensor: it has no first axis.")
        return self.shape[0]

    def __repr__(self) -> str:
        suffix = f"dtype={self.dtype}, shape={self.shape}"
        if self._is_lazy:
            return repr(self.materialize())
        if self.is_traced:
            return f"Tensor(traced, {suffix})"
        with np.printoptions(threshold=200, edgeitems=3, precision=5):
            values = np.array2string(self._host(), separator=", ", prefix="Tensor(")
        return f"Tensor({values}, {suffix}, device={str(self.device)!r})"

    def _repr_html_(self) -> str:
        """Return the tensor for a notebook: its spec, and the elements at its edges as a table, or as text beyond two axes."""
        from tritium import escape  # few programs are notebooks

        if self.is_traced:
            return f"<code>{escape.html(repr(self))}</code>"
        title = f"{self.spec} on {self.device}, {self.nbytes:,} bytes"
        if self.ndim > 2 or not self.size:
            return f"<div>{escape.html(title)}</div><pre>{escape.html(repr(self), None)}</pre>"
        data = np.atleast_2d(self._host())
        rows, columns = (_edges(n) for n in data.shape)
        picked = [[None if i is None or j is None else data[i, j].item() for j in columns] for i in rows]
        cells = [["…" if v is None else f"{v:.5g}" if isinstance(v, float) else str(v) for v in row] for row in picked]
        heads = ["…" if j is None else str(j) for j in columns]
        return escape.html_table(heads, cells, title=title, right=heads)

    def __hash__(self) -> int:
        return id(self)

    def __dir__(self) -> list[str]:
        kind = type(self)
        return [name for name in super().__dir__() if not isinstance(inspect.getattr_static(kind, name, None), Hint)]

    # -- values out

    def _host(self) -> np.ndarray[Any, Any]:
        """Return the elements on the host, for reading; of a packed dtype, its integers."""
        x = self._computed("The value")
        x = ops.repack(x, dt.i8) if x.dtype.is_packed else x
        return x.device.backend.download(x)

    @quick("item")
    def item(self) -> bool | int | float | complex:
        """Return the one element as a Python number."""
        if self.size != 1:
            raise ArgumentError(f"item: one element is needed, given {self.spec}; index one, or use all() or any().")
        value: bool | int | float | None = self.number()
        return self._host().reshape(()).item() if value is None else value

    @quick("tolist")
    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        return self._host().tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        value = self.number()
        return value if type(value) is int else int(self._real_item("int"))

    def __float__(self) -> float:
        value = self.number()
        return value if type(value) is float else float(self._real_item("float"))

    def _real_item(self, what: str) -> Any:
        """Return the one element; raise for a complex one, which is no real number."""
        if self.dtype.is_complex:
            raise DTypeError(f"{what}() needs a real number, given {self.spec}; take x.real, x.imag or abs(x) first.")
        return self.item()

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise DTypeError(f"An index must be an integer, given {self.spec}.")
        return int(self)

    @quick("iterate")
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

    @quick("clone")
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
        if dtype is device is copy is None and len(where) == 1 and type(where[0]) is str and where[0] in _DTYPES:
            kind = _DTYPES[where[0]]
            return self if kind is self.dtype else ops.astype(self, kind)
        for target in where:
            if isinstance(target, Device) or (isinstance(target, str) and backends.is_device_name(target)):
                if device is not None:
                    raise ArgumentError(_twice("device", device, target))
                device = target
            elif isinstance(target, str) and not dt.is_name(target):
                raise ArgumentError(
                    f"to: {target!r} is neither a dtype nor a device.{nearest(target, dt.names())} "
                    f"Dtypes: {', '.join(t.name for t in (*dt.ALL, *dt.COMPLEX))}. Devices: {', '.join(backends.device_names())}."
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
        if device is not None and (there := backends.device(device)) is not (out := out._computed("to")).device:
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

    @quick("reshape")
    def view(self, *shape: Any, dtype: Any = None) -> Tensor:
        """Return the same memory in another shape, or read as another dtype; raises where only a copy would do.

        As another dtype, the bytes of the last axis are shared out anew, as NumPy does: f32 [2, 3] is u8 [2, 12] or i32 [2, 3].
        """
        sizes = shape[0] if len(shape) == 1 and type(shape[0]) is not int else shape
        if dtype is None and type(sizes) is tuple:  # no dtype, and nothing to convert
            if not _is_contiguous(self) and not self.is_traced:
                lay.view(self.layout, plain(sizes))
            return ops.reshape(self, sizes)
        named = len(shape) == 1 and not isinstance(shape[0], int) and _names_dtype(shape[0])
        if dtype is not None or named:
            if shape and not (named and dtype is None):
                raise ArgumentError(
                    "view: a shape and a dtype were given; view one after the other: x.view(dtype).view(shape)."
                )
            return self._view_bytes(dt.dtype(shape[0] if named else dtype))
        new = _spread(shape)
        if not _is_contiguous(self) and not self.is_traced:
            lay.view(self.layout, new)
        return ops.reshape(self, new)

    def _view_bytes(self, kind: dt.DType) -> Tensor:
        """Return the bytes of this tensor read as another dtype."""
        storage = self._memory("view(dtype)")
        if kind is self.dtype:
            return self.view(self.shape)
        if storage.device.type != "cpu":
            raise DeviceError(
                f"view: {self.spec} is on {storage.device}, whose library owns the memory; use .to('cpu') first."
            )
        if self.dtype.is_packed or kind.is_packed or kind is dt.bool_:
            raise DTypeError(
                f"view: the bytes of {self.spec} cannot be read as {kind}: packed elements share bytes, and not every byte is a "
                f"bool; convert the values with .to(…), repack(…) or a comparison."
            )
        old, new = self.dtype.nbytes, kind.nbytes
        if old == new:
            return Tensor(storage, kind, self.shape, self.strides, self.offset)
        if not self.shape or (self.strides[-1] != 1 and self.shape[-1] > 1) or self.shape[-1] * old % new:
            raise ViewError(
                f"view: {self.spec} with strides {self.strides} cannot be read as {kind}: the last axis must be contiguous, and "
                f"its bytes a multiple of {new}. Copy with contiguous(), or convert the values with .to({kind.name!r})."
            )
        steps = (*self.strides[:-1], self.offset)
        if any(n * old % new for n in steps):
            raise ViewError(
                f"view: {self.spec} starts or steps at bytes that are no multiple of {new}, so it cannot be read as {kind}; "
                f"copy it with clone() or contiguous() first."
            )
        if storage.address % new:
            raise ViewError(
                f"view: the memory of {self.spec} comes from outside and is not aligned to {new} bytes; copy it with clone() first."
            )
        *strides, offset = (n * old // new for n in steps)
        return Tensor(storage, kind, (*self.shape[:-1], self.shape[-1] * old // new), (*strides, 1), offset)

    @quick("reshape")
    def reshape(self, *shape: Any) -> Tensor:
        """Return the tensor in another shape; a view where the layout allows, else a copy (counted)."""
        if len(shape) == 1 and type(shape[0]) is tuple:
            return ops.reshape(self, shape[0])
        return ops.reshape(self, _spread(shape))

    @quick("permute")
    def permute(self, *axes: Any) -> Tensor:
        """Return a view with the axes in another order."""
        return ops.permute_dims(self, _spread(axes))

    @quick("transpose")
    def transpose(self, dim0: Any = -2, dim1: int = -1) -> Tensor:
        """Return a view with two axes exchanged, or with all axes in the order of a tuple, as NumPy spells it."""
        if isinstance(dim0, (tuple, list)):
            return ops.permute_dims(self, tuple(dim0))
        order = list(range(self.ndim))
        a, b = lay.axis_of(dim0, self.ndim, "transpose"), lay.axis_of(dim1, self.ndim, "transpose")
        order[a], order[b] = b, a
        return ops.permute_dims(self, tuple(order))

    @quick("swapaxes")
    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Return a view with two axes exchanged."""
        return self.transpose(axis1, axis2)

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
    @quick("T")
    def T(self) -> Tensor:
        """Return a transposed view of a matrix. For more axes use mT, permute or transpose."""
        if self.ndim != 2:
            raise ArgumentError(
                f"T needs 2 dimensions, given {self.spec}; use mT, permute(…) or transpose(dim0, dim1)."
            )
        return ops.matrix_transpose(self)

    @property
    @quick("matrix_transpose")
    def mT(self) -> Tensor:
        """Return a view with the last two axes exchanged."""
        return ops.matrix_transpose(self)

    @property
    @quick("real")
    def real(self) -> Tensor:
        """Return the real part; of real numbers, a clone."""
        return ops.real(self)

    @property
    def imag(self) -> Tensor:
        """Return the imaginary part; of real numbers, zeros."""
        return ops.imag(self)

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
        return _equal(self, other) if isinstance(other, _OPERANDS) or hasattr(other, "__dlpack__") else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return (
            _not_equal(self, other) if isinstance(other, _OPERANDS) or hasattr(other, "__dlpack__") else NotImplemented
        )


_is_contiguous: Any = vars(Array)["is_contiguous"].__get__
_DTYPES = {kind.name: kind for kind in (*dt.ALL, *dt.COMPLEX)}  # by their own names, which no device has
_OPERANDS = (*SCALARS, Array, np.ndarray, np.generic, list, tuple)
_equal, _not_equal = ops.equal, ops.not_equal


def _edges(n: int) -> list[int | None]:
    """Return the indices a notebook shows: all of a few, else the first and last four around None."""
    return list(range(n)) if n <= 9 else [*range(4), None, *range(n - 4, n)]


def _spread(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Return sizes that were passed one by one or as one tuple."""
    return plain(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list, np.ndarray)) else sizes)


def _twice(kind: str, first: Any, second: Any) -> str:
    a, b = (shown(getattr(value, "name", value)) for value in (first, second))
    return f"to: two {kind}s were given, {a} and {b}; give one {kind}, and one of each at most."


def _names_dtype(value: Any) -> bool:
    if isinstance(value, (tuple, list, int)):
        return False
    if isinstance(value, (dt.DType, np.dtype, type)):
        return True
    return isinstance(value, str) and dt.is_name(value)


def wrap(a: Array) -> Tensor:
    """Return the tensor of an array."""
    return Tensor(a.storage, a.dtype, a.shape, a.strides, a.offset)


@quick("rows")
def rows(x: Tensor) -> list[Tensor]:
    """Return the slices along the first axis: views. Native code computes each from the layout; the pure build is slower at it."""
    if native is not None or x.is_traced or x.dtype.is_packed:
        return list(map(x.__getitem__, range(x.shape[0])))
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


class Hint:
    """A name that tensors of other libraries have: not an attribute here, but its error says what to write instead."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        raise AttributeError(missing_name("A tensor", self.name, ()), name=self.name, obj=instance)


_attach()
for _name in HINTS:
    if not hasattr(Tensor, _name):
        setattr(Tensor, _name, Hint(_name))
