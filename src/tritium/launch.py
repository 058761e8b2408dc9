"""The one place where kernels are launched, and watchers and recorders notified.

Calls seen before on the CPU are replayed by native code, which replaces this module while there are no watchers;
it records the same spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from tritium import buffer, dtype as dt, recording, settings
from tritium.backends import Backend, Device, Kernel
from tritium.buffer import Array
from tritium.dtype import DType
from tritium.errors import ArgumentError, OutOfMemoryError
from tritium.layout import Shape
from tritium.op import Cost, Op, Spec, Specs, exact


class Launched(NamedTuple):
    """The description in the span of a kernel launch, or of a transfer (op is None)."""

    op: Op | None
    kernel: str
    device: Device
    inputs: Specs
    out: Any  # Spec, or a tuple of Spec
    attrs: dict[str, Any]
    where: Any = ""  # str(where) is the name of the step in its function: its scopes and its layer

    @property
    def cost(self) -> Cost:
        """Return the work and bytes of such a call; 0 where they depend on values (attention over a part of a cache)."""
        if self.op is None:
            return Cost(0, self.out.nbytes, self.out.nbytes)
        if not self.op.tells_cost(self.inputs):
            return Cost(0, 0, 0)
        return self.op.cost(self.out, *self.inputs, **self.attrs)


class Ran(NamedTuple):
    """The description in the span of a whole program, which encloses those of its steps."""

    name: str  # of the function it was compiled from
    steps: int


Seen = tuple[tuple[Shape, DType] | None, ...]  # specs, or their fields, which are faster to collect
_known: dict[Any, Launched] = {}
_KNOWN_LIMIT = 4096
_knowing = Lock()


def launched(op: Op | None, kernel: str, device: Device, ins: Seen, outs: Seen, attrs: dict[str, Any]) -> Launched:
    """Return the description of a call: one object for all equal calls, so that a million spans do not need a million objects."""
    key = (op, kernel, device, ins, outs, exact(tuple(attrs.values())))
    known = _known.get(key)
    if known is not None:
        return known
    specs, results = (tuple(None if s is None else Spec(*s) for s in seen) for seen in (ins, outs))
    new = Launched(op, kernel, device, specs, results if len(results) > 1 else results[0], attrs)
    with _knowing:
        while len(_known) >= _KNOWN_LIMIT:
            del _known[next(iter(_known))]  # the oldest
        return _known.setdefault(key, new)


class Event(NamedTuple):
    """One kernel call, or one transfer (op is None)."""

    op: Op | None
    kernel: str
    device: Device
    inputs: Specs
    out: Any
    start_ns: int
    elapsed_ns: int
    cost: Cost


Watcher = Callable[[Event], None]
watchers: tuple[Watcher, ...] = ()


class Counters:
    """Counters of hidden copies and transfers between devices: cheap sums, always on.

    `heard(kind, nbytes, where, elapsed_ns)`, where it is set, is called for each: a "hidden" copy, or a "transfer".
    """

    heard: Callable[[str, int, str, int], None] | None = None

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.hidden_copies = self.hidden_copy_bytes = 0
        self.transfers = self.transfer_bytes = self.transfer_ns = 0

    def hidden(self, nbytes: int) -> None:
        self.hidden_copies += 1
        self.hidden_copy_bytes += nbytes
        if (log := settings.listener("memory")) is not None:
            log.debug("a view needs a hidden copy of %d bytes: its layout allows no view", nbytes)
        if self.heard is not None:
            self.heard("hidden", nbytes, "", 0)


counters = Counters()


def watch(watcher: Watcher) -> Watcher:
    """Call `watcher(event)` after every kernel; native replay pauses while someone watches."""
    global watchers
    if not callable(watcher):
        raise ArgumentError(
            f"watch: a function of one event is needed, given {watcher!r}; write watch(print) or watch(lambda event: …)."
        )
    watchers = (*watchers, watcher)
    _tell_native()
    return watcher


def unwatch(watcher: Watcher) -> None:
    global watchers
    watchers = tuple(w for w in watchers if w != watcher)
    _tell_native()


def _tell_native() -> None:
    if buffer.native is not None:
        buffer.native.set_fast(not watchers)


def is_recorded() -> bool:
    """Return True if a recorder is active."""
    return bool(recording.active)


def launch(
    backend: Backend, kernel: Kernel, op: Op, out: Any, ins: tuple[Array | None, ...], attrs: dict[str, Any]
) -> None:
    """Run a kernel on memory. `out` is one array, or a tuple for rows of several outputs."""
    outs = out if isinstance(out, tuple) else (out,)
    try:
        if not watchers and not recording.active:
            backend.run(kernel, out, ins, attrs)
            return
        backend.settle([x for x in ins if x is not None])
        start, stop = time.perf_counter_ns(), backend.timer()
        backend.run(kernel, out, ins, attrs)
        backend.settle(outs)
    except MemoryError as error:
        raise _no_memory(op, error) from error
    elapsed = stop()
    _tell(launched(op, kernel.name, backend.device, _seen(ins), _seen(outs), attrs), start, elapsed)


class PythonKernel:
    """A kernel that a native program calls from Python, as one of its steps."""

    def __init__(self, backend: Backend, op: Op, kernel: Kernel) -> None:
        self.backend, self.op, self.kernel = backend, op, kernel
        self.isa = kernel.name  # as native kernels name theirs

    def __call__(self, *ins: Array | None, out: Any, **attrs: Any) -> None:
        try:
            self.backend.run(self.kernel, out, ins, attrs)
        except MemoryError as error:
            raise _no_memory(self.op, error) from error


def launch_dynamic(backend: Backend, op: Op, ins: tuple[Array | None, ...], attrs: dict[str, Any]) -> Any:
    """Run a kernel that allocates its own memory, and return its result."""
    fn = backend.dynamic[op]
    arrays = [backend.array(x) for x in ins if x is not None]
    try:
        if not watchers and not recording.active:
            return fn(*arrays, **attrs)
        start, stop = time.perf_counter_ns(), backend.timer()
        result = fn(*arrays, **attrs)
    except MemoryError as error:
        raise _no_memory(op, error) from error
    elapsed = stop()
    several = result if isinstance(result, tuple) else (result,)
    specs = tuple(made_of(f, backend) for f in several)
    name = "numpy" if isinstance(several[0], np.ndarray) else backend.device.type
    _tell(launched(op, name, backend.device, _seen(ins), specs, attrs), start, elapsed)
    return result


def _no_memory(op: Op, error: MemoryError) -> OutOfMemoryError:
    """Return the package's own error for a kernel that could not allocate: NumPy and other libraries raise theirs."""
    if isinstance(error, OutOfMemoryError):
        return error
    return OutOfMemoryError(
        f"{op.name}: a temporary array of its kernel does not fit in memory ({error}). Free tensors (del), or work in "
        f"smaller batches."
    )


def made_of(value: Any, backend: Any) -> Spec:
    """Return the spec of a kernel's result: a NumPy array, or a value of the device's own library."""
    return Spec(tuple(value.shape), dt.dtype(value.dtype) if isinstance(value, np.ndarray) else backend.dtype_of(value))


def _seen(arrays: tuple[Array | None, ...]) -> Seen:
    return tuple([None if x is None else (x.shape, x.dtype) for x in arrays])


def _tell(description: Launched, start_ns: int, elapsed_ns: int) -> None:
    recording.add(description, start_ns, elapsed_ns)
    if watchers:
        event = Event(*description[:5], start_ns, elapsed_ns, description.cost)
        for watcher in watchers:
            watcher(event)


def transfer(source: Array, target: Backend) -> Array:
    """Copy the elements to another device, counted and timed."""
    spec = Spec(source.shape, source.dtype)
    origin: Backend = source.storage.device.backend
    start, stop = time.perf_counter_ns(), target.timer()
    out = target.new(spec)
    target.upload(np.ascontiguousarray(origin.download(source)), out)
    elapsed = stop()
    counters.transfers += 1
    counters.transfer_bytes += spec.nbytes
    counters.transfer_ns += elapsed
    if (log := settings.listener("transfers")) is not None:
        log.debug(
            "%s from %s to %s: %d bytes in %.3g ms", spec, origin.device, target.device, spec.nbytes, elapsed / 1e6
        )
    if counters.heard is not None:
        counters.heard("transfer", spec.nbytes, f"{origin.device}->{target.device}", elapsed)
    if watchers or recording.active:
        name = f"{origin.device}->{target.device}"
        _tell(launched(None, name, target.device, (spec,), (spec,), {}), start, elapsed)
    return out
