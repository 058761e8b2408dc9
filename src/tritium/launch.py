"""The one place where a kernel is called, and where those who listen hear of it.

Knows nothing of tensors or graphs. Calls seen before on the CPU are replayed by native code, which stands in for this
file while nobody listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tritium import buffer
from tritium.backends import Backend, Device, Kernel
from tritium.buffer import Array
from tritium.op import Cost, Op, Spec, Specs


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
    """What happened behind the caller's back or across devices: cheap sums, kept always."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.hidden_copies = self.hidden_copy_bytes = 0
        self.transfers = self.transfer_bytes = self.transfer_ns = 0

    def hidden(self, nbytes: int) -> None:
        self.hidden_copies += 1
        self.hidden_copy_bytes += nbytes


counters = Counters()


def watch(watcher: Watcher) -> Watcher:
    """Call `watcher(event)` after every kernel; native replay pauses while someone watches."""
    global watchers
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


def launch(
    backend: Backend, kernel: Kernel, op: Op, out: Any, ins: tuple[Array | None, ...], attrs: dict[str, Any]
) -> None:
    """Run a kernel on memory. `out` is one array, or a tuple for rows of several outputs."""
    array = backend.array
    arrays = [None if x is None else array(x) for x in ins]
    target = tuple(array(o) for o in out) if isinstance(out, tuple) else array(out)
    if not watchers:
        kernel.fn(*arrays, out=target, **attrs)
        return
    start, stop = time.perf_counter_ns(), backend.timer()
    kernel.fn(*arrays, out=target, **attrs)
    elapsed = stop()
    specs = tuple(None if x is None else Spec(x.shape, x.dtype) for x in ins)
    made = tuple(Spec(o.shape, o.dtype) for o in out) if isinstance(out, tuple) else Spec(out.shape, out.dtype)
    _tell(Event(op, kernel.name, backend.device, specs, made, start, elapsed, op.cost(made, *specs, **attrs)))


def _tell(event: Event) -> None:
    for watcher in watchers:
        watcher(event)


def transfer(source: Array, target: Backend) -> Array:
    """The same elements on another device: counted and timed."""
    spec = Spec(source.shape, source.dtype)
    origin: Backend = source.storage.device.backend
    start, stop = time.perf_counter_ns(), target.timer()
    out = target.new(spec)
    target.upload(np.ascontiguousarray(origin.download(source)), out)
    elapsed = stop()
    counters.transfers += 1
    counters.transfer_bytes += spec.nbytes
    counters.transfer_ns += elapsed
    if watchers:
        name = f"{origin.device}->{target.device}"
        cost = Cost(0, spec.nbytes, spec.nbytes)
        _tell(Event(None, name, target.device, (spec,), spec, start, elapsed, cost))
    return out
