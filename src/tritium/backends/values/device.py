"""Devices whose own library keeps the memory: a storage holds one of its values, kernels take values and give values.

A write puts another value in place of the old one; only where others see the memory (a tensor of the user's own, on a
library that can write) does it go there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from operator import or_
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from tritium import buffer, dtype as dt
from tritium.backends import Backend, Device, Kernel, Replay
from tritium.backends.reference import packed
from tritium.backends.reference.cast import number
from tritium.backends.reference.packed import Packed
from tritium.backends.values.namespace import Bound, Fitted
from tritium.buffer import Array, Held
from tritium.dtype import DType
from tritium.errors import BoundsError, DeviceError, OutOfMemoryError, TritiumError
from tritium.layout import Layout, Shape, is_contiguous
from tritium.machine.facts import memory_limit
from tritium.op import Op, Spec, Specs, exact, make_room

T = TypeVar("T")
U = TypeVar("U")


class HeadNorms(NamedTuple, Generic[T]):
    """The norms of the heads of Q and of K before they are turned: their weights, and what is added to the mean of squares."""

    of_q: T | None
    of_k: T | None
    q_eps: float
    k_eps: float

    def map(self, to: Callable[[T], U]) -> HeadNorms[U]:
        """Return the same norms with other weights, made of these."""
        of_q, of_k = (None if w is None else to(w) for w in (self.of_q, self.of_k))
        return HeadNorms(of_q, of_k, self.q_eps, self.k_eps)


class Doubt(NamedTuple):
    """A check whose answer is computed with the results."""

    bad: Any
    message: str
    error: type[TritiumError]


class Form(NamedTuple):
    """The arguments and results of a function over values, for the compiler of a device."""

    arguments: int  # its first operands; those after them are the same at each call, unless someone writes them
    written: tuple[int, ...]  # the arguments that it may write
    results: int  # its first results are new; then follow the written arguments, and then what is doubtful
    doubts: Callable[[], list[Doubt]]  # once it has been called
    nbytes: int = 0  # of the new results
    calls: int = 1  # that it makes


class Memory(Held):
    """The handle shared by a tensor and all its views."""

    __slots__ = ()

    def clone(self) -> Any:
        """A handle that shares the value until either side is written; memory that others see is copied."""
        return self.copied() if self.fixed else self.share()

    def copied(self) -> Any:
        """A handle with a value of its own."""
        return self.share()

    def own(self) -> int:
        """Before a write. A value that is replaced needs no more."""
        if not self.writable:
            raise DeviceError("This tensor looks at read-only memory; write to a copy: x.clone().")
        return 0

    @property
    def address(self) -> int:
        raise DeviceError(f"The memory of {self.device} has no address; copy it to the host with .to('cpu').")

    @property
    def begin(self) -> int:
        """Return the address of its first byte, as the device counts: to be compared, not read."""
        return self.address

    def export(self) -> int:
        return self.address


def is_whole(a: Array) -> bool:
    """Return True if an array is all of its storage, row by row."""
    flat = a.strides == Spec(a.shape, a.dtype).strides if a.dtype.is_packed else is_contiguous(a.shape, a.strides)
    return flat and a.offset == 0 and a.nbytes == a.storage.nbytes


def kernels_of(makers: Mapping[Op, Callable[..., Any]], name: str) -> dict[Op, list[Kernel]]:
    """The list of each row, of one kernel each."""
    return {row: [Kernel(name, fn)] for row, fn in makers.items()}


class ValueBackend(Backend):
    """The parts of a backend that MLX and torch have in common. A subclass says how a value is looked at, written and moved."""

    required: ClassVar[tuple[str, ...]] = (
        "blank", "reshape", "strided", "updated", "from_host", "to_host", "is_true"
    )  # fmt: skip
    writes = False
    compiler = ""  # what `compiled` uses, for explanations; "": there is none
    why_not_compiled = ""  # the reason for which it gave None
    writes_arguments = False  # whether a compiled program writes a donated argument where it lies
    storage: type[Memory] = Memory

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._ready: dict[Any, Callable[..., Any]] = {}
        self._thread = threading.local()
        self._numbers: dict[Any, Any] = {}

    # -- what a library must tell

    def _untold(self, what: str) -> DeviceError:
        return DeviceError(f"The backend of {self.device} does not say {what}.")

    def blank(self, shape: Shape, t: DType) -> Any:
        """A value for memory that nobody has written yet."""
        raise self._untold("how to make a value")

    def reshape(self, value: Any, shape: Shape) -> Any:
        raise self._untold("how to reshape a value")

    def strided(self, value: Any, layout: Layout) -> Any:
        """The elements of a value, which lie row by row, seen through a layout."""
        raise self._untold("how to look at a value through strides")

    def updated(self, value: Any, layout: Layout, part: Any) -> Any:
        """The value with other elements where the layout says; memory that others see is written."""
        raise self._untold("how to write a part of a value")

    def overwrite(self, storage: Any, value: Any) -> None:
        """Write all of a storage that others see."""
        raise DeviceError(f"{self.device} cannot write into memory that others see.")

    def to_host(self, value: Any, t: DType) -> np.ndarray[Any, Any]:
        """The elements on the host, for reading: the same memory where the library allows."""
        raise self._untold("how to copy to the host")

    def from_host(self, data: np.ndarray[Any, Any], t: DType) -> Any:
        """A copy of a NumPy array (bytes, of packed dtypes)."""
        raise self._untold("how to copy from the host")

    def is_true(self, value: Any) -> bool:
        """Return True if any element is true; wait for it."""
        raise self._untold("whether a value is true")

    def dtype_of(self, value: Any) -> DType:
        """Our dtype of a value of the library."""
        raise self._untold("the dtype of a value")

    def adopt(self, value: Any) -> Array:
        """An array on a value that the user made with the library, without a copy."""
        spec = Spec(tuple(value.shape), self.dtype_of(value))
        self.check_complex(spec)
        return self.hold(value, spec)

    def handed(self, a: Array) -> Any:
        """Return an array as a value of the library, for the user, without a copy."""
        return self.value(a)

    def exported(self, a: Array) -> Any:
        """Return the value that DLPack hands to other libraries; memory that nobody may write is marked so."""
        return self.handed(a)

    # -- memory

    def allocate(self, nbytes: int) -> Any:
        if nbytes > self.capacity:  # a library may promise memory that nobody has, and the system then ends the process
            raise self.no_room(f"{nbytes / 2**30:.2f} GiB")
        return self.storage(self.device, nbytes)

    def no_room(self, amount: str) -> OutOfMemoryError:
        """Return the error for a tensor that does not fit."""
        return OutOfMemoryError(
            f"{self.device} has no room for {amount}: it has {self.capacity / 2**30:.2f} GiB. Work in smaller batches, or use a "
            f"smaller dtype."
        )

    @cached_property
    def capacity(self) -> int:
        """Bytes of the device; here those of the machine, whose memory it uses."""
        return memory_limit() or sys.maxsize

    def hold(self, value: Any, spec: Spec) -> Array:
        """An array on a value, as it is."""
        stored = self.storage(self.device, spec.nbytes, value, seen_shape(spec))
        return Array(stored, spec.dtype, spec.shape, spec.strides, 0)

    def array(self, a: Array) -> Any:
        """The value of an array: that of its storage where it shows all of it; Packed of a packed dtype."""
        if a.dtype.is_packed:
            return Packed(self.value(buffer.in_bytes(a)), a.dtype, a.shape)
        return self.value(a)

    def value(self, a: Array) -> Any:
        stored = a.storage
        if not a.size:
            return self.blank(a.shape, a.dtype)
        self._fill(a)
        if not is_whole(a):
            return self.strided(stored.value, a_layout(a))
        return stored.value if stored.shape == a.shape else self.reshape(stored.value, a.shape)

    def _fill(self, a: Array) -> None:
        """Memory that nobody has written yet holds something."""
        if a.storage.value is None:
            shape = (a.storage.nbytes // a.dtype.nbytes,)
            a.storage.put(self.blank(shape, a.dtype), shape)

    def put(self, a: Array, value: Any) -> None:
        """Make a value what an array shows."""
        if isinstance(value, Packed):
            a, value = buffer.in_bytes(a), value.data
        stored = a.storage
        if not a.size:
            return
        if is_whole(a) and stored.fixed:
            self.overwrite(stored, self.reshape(value, stored.shape))
        elif is_whole(a):
            stored.put(value, a.shape)
        else:
            self._fill(a)
            new = self.updated(stored.value, a_layout(a), value)
            if new is not stored.value:
                stored.put(new, stored.shape)

    def upload(self, data: np.ndarray[Any, Any], to: Array) -> None:
        target = buffer.in_bytes(to) if to.dtype.is_packed else to
        self.put(target, self.from_host(np.asarray(data).reshape(target.shape), target.dtype))

    def download(self, a: Array) -> np.ndarray[Any, Any]:
        target = buffer.in_bytes(a) if a.dtype.is_packed else a
        return self.to_host(self.value(target), target.dtype)

    # -- calls

    def run(self, kernel: Kernel, out: Any, ins: tuple[Array | None, ...], attrs: Mapping[str, Any]) -> None:
        several = isinstance(out, tuple)
        outs = out if several else (out,)
        specs = tuple(Spec(o.shape, o.dtype) for o in outs)
        fn = self.ready(kernel, specs if several else specs[0], attrs)
        result = fn(*(None if x is None else self.array(x) for x in ins))
        for o, value in zip(outs, result if several else (result,), strict=True):
            self.put(o, value)

    def on_device(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function of values, called on this device."""
        return fn(*args)

    def ready(self, kernel: Kernel, out: Any, attrs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the function of values of a kernel for such a result and such attributes; remembered."""
        key = (kernel, out, exact(tuple(attrs.values())))
        fn = self._ready.get(key)
        if fn is None:
            make_room(self._ready, 4096)
            fn = self._ready[key] = kernel.fn(out, **attrs)
        return fn

    def replay(self, kernel: Kernel, out: Any, ins: Specs, attrs: Mapping[str, Any]) -> Replay | None:
        specs = (out,) if isinstance(out, Spec) else out
        if any(s.dtype.is_packed for s in specs):
            return None
        fn: Any = self.ready(kernel, out, attrs)
        fn = fn.choose(*ins) if isinstance(fn, Fitted) else fn
        fn = fn if isinstance(fn, Bound) else Bound(fn)
        return Replay(fn.fn, self.storage, self.array, self.number, fn.after, dict(fn.named), fn.together)

    def number(self, value: bool | int | float | complex, t: DType) -> Any:
        """A Python number as a value; those given lately are kept. 0.0 and -0.0 stay apart."""
        key = (t, exact(value))
        constant = self._numbers.get(key)
        if constant is None:
            value = bool(value) if t is dt.bool_ else value
            dt.check_fits(value, t)
            make_room(self._numbers, 1024)
            constant = self._numbers[key] = self.from_host(number(value, t), t)
        return constant

    def owned(self, a: Array) -> None:
        """Before a program writes an array where it lies: its value is no clone's."""

    def compiled(self, run: Callable[..., Any], form: Form) -> Callable[..., Any] | None:
        """A function over values of this device, made one call by the device's own compiler; None: it has none. What it gives
        may end before what is doubtful, if the device raises that by itself."""
        return None

    def takes_new(self, x: Spec, cache: Spec, places: Spec, interleaved: bool) -> bool:
        """Return True if `attend_new` takes heads x of new tokens and such a cache and places."""
        return False

    def attend_new(
        self, x: Array, cos: Array, sin: Array, cache: Array, places: Array, scale: float | None, settled: bool,
        norms: HeadNorms[Array] | None = None,
    ) -> Any:  # fmt: skip
        """One new token a sequence, in a program: its heads x [batch, 1, heads + 2 kv heads, D] of Q, K and V are normalised, if
        there are norms, and turned but for V, those of K and V are written to the cache where it lies, and those of Q attend to
        it; the value of the attention. settled: nothing in the program writes the cache or the places before."""
        raise self._untold("how to attend to new tokens in one call")

    # -- checks of values

    @property
    def tracing(self) -> list[list[Doubt]]:
        """The checks of the programs that this thread is compiling."""
        if not hasattr(self._thread, "tracing"):
            self._thread.tracing = []
        checks: list[list[Doubt]] = self._thread.tracing
        return checks

    def any_of(self, bad: list[Any]) -> Any:
        """One value that is true where any of these is, so that one look tells whether all is well; None: nobody will look."""
        return reduce(or_, (b.any() for b in bad))

    def doubt(self, bad: Any, message: str, error: type[TritiumError] = BoundsError) -> None:
        """Raise error(message) if any of `bad` is true, which is waited for; in a program, when it has run."""
        if self.tracing:
            self.tracing[-1].append(Doubt(bad, message, error))
        elif self.is_true(bad):
            raise error(message)


def a_layout(a: Array) -> Layout:
    return Layout(a.shape, a.strides, a.offset)


def seen_shape(spec: Spec) -> Shape:
    """The shape of the value of a storage: of packed dtypes it is bytes."""
    if not spec.dtype.is_packed:
        return spec.shape
    return tuple(packed.empty(spec.shape, spec.dtype).data.shape)
