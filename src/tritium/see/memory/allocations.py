"""Memory tracking: `with track_memory() as m:` records every allocation, free, reuse, copy and transfer.

The log of events is bounded and counts those it dropped; live allocations, current bytes, the peak and the sums
by line of code are exact regardless.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tritium import backends, memory
from tritium.arguments import checked, checked_class, checked_except
from tritium.errors import ArgumentError, DeviceError, nearest, shown
from tritium.perf.records.json_io import utc_now
from tritium.see.memory import file as memory_file, hub, page as memory_page, pressure as memory_pressure, records
from tritium.see.memory.accounts import CPU, Accounts
from tritium.see.memory.advice import Observations, advice as make_advice
from tritium.see.memory.file import Memory
from tritium.see.memory.leaks import LeakError, addresses, complaint
from tritium.see.memory.pressure import Pressure
from tritium.see.memory.python import Traced
from tritium.see.memory.records import Advice, Allocation, AtPeak, DeviceUse, Event, Idle, Moved, PythonUse, SiteUse
from tritium.see.trace.timeline import Counter

T = TypeVar("T")
CAPACITY = 100_000
MOST = 1 << 62  # bytes of a manually tracked buffer
UNADVISED = "there is no advice on the peak; pass a larger capacity="


class Surroundings(NamedTuple):
    """Memory figures of the system and the devices at one moment."""

    pressure: Pressure
    resident: int
    limits: dict[str, tuple[int | None, int | None]]  # by device: bytes in use, total bytes


@checked_class
class MemoryTracker:
    """A tracker of memory between `start()` and `stop()`, or inside a `with` block. Several may run at once."""

    def __init__(self, name: str = "", *, sites: bool = True, capacity: int = CAPACITY, python: bool = False) -> None:
        if type(capacity) is not int or capacity < 1:
            raise ArgumentError(
                f"track_memory: capacity is {shown(capacity)}; a whole number of events from 1 is needed."
            )
        self.name, self.sites, self.capacity = name, sites, capacity
        self._accounts = Accounts(capacity)
        self._traced = Traced() if python else None
        self._retained: set[int] = set()
        self._began_utc, self._ended_ns = "", 0
        self._before = self._after = memory.stats()
        self._surrounding: Surroundings | None = None

    # ---- start and stop

    def start(self) -> None:
        """Start tracking; discards an earlier record. Garbage is collected first, so that none of before is freed inside."""
        if self.enabled:
            return
        gc.collect()
        self._accounts, self._retained, self._ended_ns, self._surrounding = Accounts(self.capacity), set(), 0, None
        self._began_utc = utc_now()
        if self._traced is not None:
            self._traced.start()
        hub.attach(self)

    def stop(self) -> None:
        """Stop tracking; the record stays. Garbage is collected first, so that only referenced memory counts as alive."""
        if not self.enabled:
            return
        self._collect()
        self._ended_ns = perf_counter_ns()
        hub.detach(self)
        self._after, self._surrounding = memory.stats(), read_surroundings(self._accounts.devices)
        if self._traced is not None:
            self._traced.stop()

    def set_tracking_enabled(self, enabled: bool) -> None:
        """Start or stop tracking."""
        (self.start if enabled else self.stop)()

    @property
    def enabled(self) -> bool:
        return hub.is_attached(self)

    def begin(self) -> None:
        """Read the figures at the start of tracking. Called by the hub."""
        self._before = memory.stats()
        self._accounts.begin(self._before.current_bytes, perf_counter_ns())

    def take(self, batch: Sequence[hub.Raw]) -> None:
        """Add events to the accounts. Called by the hub."""
        self._accounts.take(batch)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _collect(self) -> None:
        if self.enabled and self._read(lambda: bool(self._accounts.live)):
            gc.collect()

    def _read(self, query: Callable[[], T]) -> T:
        """Return the result of a query while nothing changes the accounts, with every event so far processed."""
        if not self._began_utc:
            raise ArgumentError(
                "track_memory: nothing was tracked yet; use it inside or after the block `with tt.track_memory() as m:`, or after start()."
            )
        return hub.read(query)

    def _now_ns(self) -> int:
        return self._ended_ns or perf_counter_ns()

    # ---- bytes

    @property
    def current(self) -> dict[str, int]:
        """Return the live bytes by device, including those from before the start."""
        return self._read(lambda: {d: a.current for d, a in self._accounts.devices.items()})

    @property
    def peak(self) -> dict[str, int]:
        """Return the peak of live bytes by device."""
        return self._read(lambda: {d: a.peak for d, a in self._accounts.devices.items()})

    @property
    def net(self) -> dict[str, int]:
        """Return the growth of live bytes since the start by device."""
        return self._read(lambda: {d: a.current - a.start for d, a in self._accounts.devices.items()})

    @property
    def allocations(self) -> int:
        """Return the number of allocations on all devices."""
        return self._read(lambda: sum(self._accounts.account(d).allocations for d in self._accounts.devices))

    def devices(self) -> tuple[DeviceUse, ...]:
        """Return the account of every device, with the figures the device itself reports."""
        return self._uses(self._surroundings())

    def _uses(self, around: Surroundings) -> tuple[DeviceUse, ...]:
        return self._read(lambda: tuple(self._use(d, around) for d in self._accounts.devices))

    def _use(self, device: str, around: Surroundings) -> DeviceUse:
        a = self._accounts.account(device)
        used, limit = around.limits.get(device, (None, None))
        return DeviceUse(
            device, a.start, a.current, a.peak, max(0, a.peak_ns - self._accounts.began_ns), a.allocations, a.frees,
            a.reused, a.allocated, used, limit,
        )  # fmt: skip

    def _surroundings(self) -> Surroundings:
        """Return the current figures, or those at the end. Read once, and not while the accounts are locked."""
        return self._surrounding or read_surroundings(self._read(lambda: tuple(self._accounts.devices)))

    def timeline(self, device: Any = CPU) -> Counter:
        """Return the live bytes over time (ns since the start), as far back as the log reaches."""
        name = str(device)
        return self._read(
            lambda: records.timeline(
                self._accounts.events(), self._accounts.account(name).current, name, whole=not self._accounts.dropped
            )
        )

    # ---- events, lines of code, what is alive

    @property
    def events(self) -> tuple[Event, ...]:
        """Return the events in the log, the oldest first."""
        return self._read(lambda: tuple(self._accounts.events()))

    @checked_except("kind", "op")
    def get_events(self, *, kind: str | None = None, op: str | None = None, device: Any = None) -> tuple[Event, ...]:
        """Return the events of a kind, an op or a device."""
        if kind is not None and not (isinstance(kind, str) and kind in records.EVENT_KINDS):
            close = nearest(kind, records.EVENT_KINDS) if isinstance(kind, str) else ""
            raise ArgumentError(
                f"get_events: kind={shown(kind)} is no kind of event; there are {', '.join(records.EVENT_KINDS)}.{close}"
            )
        if op is not None and not isinstance(op, str):
            raise ArgumentError(f'get_events: op={shown(op)} is not a name; give the name of an op, such as "add".')
        where = None if device is None else str(device)
        return tuple(
            e for e in self.events
            if (kind is None or e.kind == kind) and (op is None or e.op == op) and (where is None or where in (e.device, e.to))
        )  # fmt: skip

    @property
    def dropped(self) -> int:
        """Return the number of events the log dropped."""
        return self._read(lambda: self._accounts.dropped)

    @property
    def unknown_frees(self) -> tuple[str, ...]:
        """Return the ids freed manually without an allocation, at most 1000; the report has the number of the others."""
        return self._read(lambda: tuple(self._accounts.unknown.ids))

    @property
    def repeated_ids(self) -> tuple[str, ...]:
        """Return the ids allocated manually while alive, at most 1000; the older buffer counts as freed."""
        return self._read(lambda: tuple(self._accounts.repeated.ids))

    @property
    def transfers(self) -> tuple[Moved, ...]:
        """Return the sums of transfers by source and target."""
        return self._read(lambda: self._accounts.transfers())

    def top_sites(self, n: int = 10) -> tuple[SiteUse, ...]:
        """Return the ops and lines of code that allocated most, counting all events."""
        return tuple(self._read(lambda: self._accounts.sites())[:n])

    def live_at_peak(self, device: Any = CPU) -> AtPeak:
        """Return the allocations alive at the peak, and the bytes not among them."""
        return self._read(lambda: self._accounts.at_peak(str(device)))

    @property
    def idle(self) -> Idle:
        """Return the free blocks of the pool at the end of tracking, or now while it runs."""
        return records.idle(self._stats())

    @property
    def fragmentation(self) -> float:
        """Return 1 - largest free block / all idle bytes: 0 if idle memory is one block."""
        return self.idle.fragmentation

    def _stats(self) -> memory.Stats:
        return memory.stats() if self.enabled else self._after

    # ---- leaks

    def keep(self, value: T) -> T:
        """Declare that memory reachable from a value is meant to stay, and return it: `return m.keep(result)`."""
        self._retained |= addresses(value)
        return value

    def leaks(self, keep: Any = None) -> tuple[Allocation, ...]:
        """Return the allocations made inside the block that are alive at its end, or now while it runs, the largest first.

        Garbage is collected first. Memory reachable from `keep`, or passed to `keep()`, is left out.
        """
        self._collect()
        excluded = self._retained | (addresses(keep) if keep is not None else set())
        now = self._now_ns()
        held = self._read(
            lambda: [self._accounts.allocation(e, now) for e in self._accounts.held() if e[1][1] not in excluded]
        )
        return tuple(sorted(held, key=lambda a: (-a.nbytes, a.at_ns)))

    def assert_no_leaks(self, keep: Any = None) -> None:
        """Raise LeakError, an AssertionError, if there are leaks, with op, line, size and age of each."""
        if leaks := self.leaks(keep):
            raise LeakError(complaint(leaks, self.name or "track_memory"))

    # ---- results

    def advice(self, model: Any = None) -> tuple[Advice, ...]:
        """Return advice on saving memory, with bytes. `model`: an object whose float weights are examined too."""
        return make_advice(self._read(self._observations), model)

    def _observations(self) -> Observations:
        a = self._accounts
        changes, base = a.changes()
        cpu = a.devices[CPU]
        return Observations(
            a.lives(), a.first, changes, base, cpu.peak, cpu.peak_at, tuple(a.events()), self._before, self._stats(),
            {name: d.peak for name, d in a.devices.items()},
        )  # fmt: skip

    def python_memory(self) -> PythonUse | None:
        """Return the memory of Python's own objects by tracemalloc; None without python=True."""
        return self._traced.use() if self._traced is not None else None

    def get_memory_pressure(self, device: Any = CPU) -> Pressure:
        """Return how close the memory of a device is to its limit now."""
        return memory_pressure.pressure(device)

    def generate_optimizations(self, device: Any = CPU) -> tuple[Advice, ...]:
        """Return the advice for a device: all of it for the CPU, round trips for any other device."""
        advice = self.advice()
        return (
            advice
            if str(device) == CPU
            else tuple(a for a in advice if a.kind == "round trips" and str(device) in a.description)
        )

    def record(self, model: Any = None, keep: Any = None) -> Memory:
        """Return an immutable record of everything tracked."""
        leaks, around, lost = self.leaks(keep), self._surroundings(), self.dropped
        unknown, repeated = self._read(lambda: (self._accounts.unknown.unlisted, self._accounts.repeated.unlisted))
        notes = (
            *([f"the log has the last {self.capacity} events; {lost} older ones are only in the sums: {UNADVISED}"] if lost else ()),
            *([f"{unknown} more ids were freed manually without an allocation; they are not listed"] if unknown else ()),
            *([f"{repeated} more ids were allocated manually while alive; they are not listed"] if repeated else ()),
        )  # fmt: skip
        return Memory(
            self.name, self._began_utc, max(0, self._now_ns() - self._accounts.began_ns), self._uses(around), self.top_sites(1000),
            self.live_at_peak(), leaks, self.idle, self.transfers, self.advice(model), around.pressure,
            around.resident, self.events, lost, self.unknown_frees, self.python_memory(), notes, self.repeated_ids,
        )  # fmt: skip

    def report(self, top: int = 10) -> str:
        """Return the report for a terminal."""
        return memory_page.text(self.record(), top)

    def _repr_html_(self) -> str:
        return memory_page.html(self.record())

    generate_report = report

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        return memory_file.as_dict(self.record())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page (.html), the whole record (.json), which `tt.see.load_memory` reads, or the events alone (.csv)."""
        return memory_file.writer(path)(self.record(), path)

    # ---- manual tracking

    @checked_except("nbytes")
    def track_allocation(self, id: str, nbytes: int, device: Any = CPU, op: str = "") -> None:
        """Record the allocation of a user's buffer. An id that is alive gets the new size and is flagged: `repeated_ids`."""
        self._note(_allocation_event(id, nbytes, device, op, sys._getframe(1)))

    def track_deallocation(self, id: str, device: Any = CPU, op: str = "") -> None:
        """Record the free of a user's buffer. An id that is not allocated is flagged: `unknown_frees`, and in the report."""
        self._note(_free_event(id, device, op, sys._getframe(1)))

    @checked_except("nbytes")
    def track_transfer(self, id: str, nbytes: int, source: Any, target: Any, op: str = "") -> None:
        """Record a transfer of a user's buffer from one device to another."""
        self._note(_transfer_event(id, nbytes, source, target, op, sys._getframe(1)))

    def _note(self, raw: hub.Raw) -> None:
        if self.enabled:
            hub.deliver(self, raw)


@checked
def track_memory(
    name: str = "", *, sites: bool = True, capacity: int = CAPACITY, python: bool = False
) -> MemoryTracker:  # fmt: skip
    """Return a tracker: `with track_memory() as m:` … then m.peak, m.net, m.leaks(), m.top_sites(), m.report() …

    `sites=False`: without lines of code, which is cheaper. `capacity`: size of the log in events. `python=True`: Python's own
    objects too, by tracemalloc, which is slow.
    """
    return MemoryTracker(name, sites=sites, capacity=capacity, python=python)


@checked
def load_memory(path: str | os.PathLike[str]) -> Memory:
    """Read a record that a tracker saved."""
    return memory_file.load(path)


# ---- manual tracking, for all trackers


@checked_except("nbytes")
def track_allocation(id: str, nbytes: int, device: Any = CPU, op: str = "") -> None:
    """Record the allocation of a user's buffer in every running tracker; without any, do nothing."""
    hub.publish(_allocation_event(id, nbytes, device, op, sys._getframe(1)))


@checked
def track_deallocation(id: str, device: Any = CPU, op: str = "") -> None:
    """Record the free of a user's buffer in every running tracker."""
    hub.publish(_free_event(id, device, op, sys._getframe(1)))


@checked_except("nbytes")
def track_transfer(id: str, nbytes: int, source: Any, target: Any, op: str = "") -> None:
    """Record a transfer between devices in every running tracker."""
    hub.publish(_transfer_event(id, nbytes, source, target, op, sys._getframe(1)))


def _allocation_event(id: str, nbytes: int, device: Any, op: str, frame: FrameType) -> hub.Raw:
    return hub.make_event("manual", _check_id(id), _check_size(nbytes), str(device), op, frame)


def _free_event(id: str, device: Any, op: str, frame: FrameType) -> hub.Raw:
    return hub.make_event("manual free", _check_id(id), 0, str(device), op, frame)


def _transfer_event(id: str, nbytes: int, source: Any, target: Any, op: str, frame: FrameType) -> hub.Raw:
    return hub.make_event("transfer", _check_id(id), _check_size(nbytes), (str(source), str(target)), op, frame)


def _check_id(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"track: an id must be a non-empty string, given {shown(value)}.")
    return value


def _check_size(nbytes: Any) -> int:
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or not 0 <= nbytes <= MOST:
        raise ArgumentError(f"track: bytes must be a whole number from 0, given {shown(nbytes)}.")
    return nbytes


def read_surroundings(devices: Iterable[str]) -> Surroundings:
    pressure = memory_pressure.pressure()
    process: tuple[int | None, int | None] = next(
        ((r.used, r.limit) for r in pressure.readings if r.which == "process"), (None, None)
    )
    return Surroundings(
        pressure, memory.resident_bytes() or 0, {d: process if d == CPU else _read_limits(d) for d in devices}
    )


def _read_limits(device: str) -> tuple[int | None, int | None]:
    """Return the bytes in use and in total that a device reports; (None, None) for a name that is not a device."""
    if not backends.is_device_name(device):
        return None, None
    try:
        return backends.device(device).backend.memory() or (None, None)
    except DeviceError:
        return None, None
