"""Track memory: `with track_memory() as m:` hears every allocation, free, reuse, copy and transfer, and tells what they mean.

Knows nothing of how events are heard or drawn. The log of events is bounded and says how many it lost; what is alive, the
current bytes, the peak and the sums by line of code stay exact whatever the log lost.
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
from tritium.errors import ArgumentError, DeviceError
from tritium.perf.records.json_io import utc_now
from tritium.see.memory import file as memory_file, hub, page as memory_page, pressure as memory_pressure, records
from tritium.see.memory.accounts import CPU, Accounts
from tritium.see.memory.advice import Seen, advice as advised
from tritium.see.memory.file import Memory
from tritium.see.memory.leaks import LeakError, addresses, complaint
from tritium.see.memory.pressure import Pressure
from tritium.see.memory.python import Traced
from tritium.see.memory.records import Advice, Allocation, AtPeak, DeviceUse, Event, Idle, Moved, PythonUse, SiteUse
from tritium.see.trace.timeline import Counter

T = TypeVar("T")
CAPACITY = 100_000
MOST = 1 << 62  # bytes of a buffer told by hand
UNADVISED = "no advice is given on the peak, ask for a larger capacity"


class Surroundings(NamedTuple):
    """What the system and the devices tell of memory at one moment."""

    pressure: Pressure
    resident: int
    limits: dict[str, tuple[int | None, int | None]]  # of each device: in use, and in all


class MemoryTracker:
    """What happens to memory between `start()` and `stop()`, or inside a `with` block. Several may track at once."""

    def __init__(self, name: str = "", *, sites: bool = True, capacity: int = CAPACITY, python: bool = False) -> None:
        if type(capacity) is not int or capacity < 1:
            raise ArgumentError(f"track_memory: capacity is {capacity!r}; a whole number of events from 1 is needed.")
        self.name, self.sites, self.capacity = name, sites, capacity
        self._accounts = Accounts(capacity)
        self._traced = Traced() if python else None
        self._kept: set[int] = set()
        self._began_utc, self._ended_ns = "", 0
        self._before = self._after = memory.stats()
        self._around: Surroundings | None = None

    # ---- when it tracks

    def start(self) -> None:
        """Begin, or begin anew."""
        if self.enabled:
            return
        self._accounts, self._kept, self._ended_ns, self._around = Accounts(self.capacity), set(), 0, None
        self._began_utc = utc_now()
        if self._traced is not None:
            self._traced.start()
        hub.attach(self)

    def stop(self) -> None:
        """End; what was seen stays. Garbage is collected first, so that only what someone holds counts as alive."""
        if not self.enabled:
            return
        self._collect()
        self._ended_ns = perf_counter_ns()
        hub.detach(self)
        self._after, self._around = memory.stats(), surroundings(self._accounts.devices)
        if self._traced is not None:
            self._traced.stop()

    def set_tracking_enabled(self, enabled: bool) -> None:
        """Start, or stop."""
        (self.start if enabled else self.stop)()

    @property
    def enabled(self) -> bool:
        return hub.listening(self)

    def begin(self) -> None:
        """The figures of the moment tracking begins. Called by the hub."""
        self._before = memory.stats()
        self._accounts.begin(self._before.current_bytes, perf_counter_ns())

    def take(self, batch: Sequence[hub.Raw]) -> None:
        """Events into the accounts. Called by the hub."""
        self._accounts.take(batch)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _collect(self) -> None:
        if self.enabled and self._read(lambda: bool(self._accounts.live)):
            gc.collect()

    def _read(self, look: Callable[[], T]) -> T:
        """A look at the accounts while nothing changes them, with every event until now in them."""
        if not self._began_utc:
            raise ArgumentError(
                "track_memory: nothing was tracked yet; ask inside or after the block `with tt.track_memory() as m:`, or after start()."
            )
        return hub.read(look)

    def _now_ns(self) -> int:
        return self._ended_ns or perf_counter_ns()

    # ---- bytes

    @property
    def current(self) -> dict[str, int]:
        """Bytes alive by device, those from before the start among them."""
        return self._read(lambda: {d: a.current for d, a in self._accounts.devices.items()})

    @property
    def peak(self) -> dict[str, int]:
        """The most bytes that were alive by device."""
        return self._read(lambda: {d: a.peak for d, a in self._accounts.devices.items()})

    @property
    def net(self) -> dict[str, int]:
        """Bytes alive by device that were not at the start."""
        return self._read(lambda: {d: a.current - a.start for d, a in self._accounts.devices.items()})

    @property
    def allocations(self) -> int:
        """How many there were, on all devices."""
        return self._read(lambda: sum(self._accounts.account(d).allocations for d in self._accounts.devices))

    def devices(self) -> tuple[DeviceUse, ...]:
        """The account of every device, beside what the device itself tells."""
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
        """As they are, or were at the end. The system is asked once, and not while the accounts are held."""
        return self._around or surroundings(self._read(lambda: tuple(self._accounts.devices)))

    def timeline(self, device: Any = CPU) -> Counter:
        """Bytes alive over time (ns since the start), as far back as the log reaches."""
        name = str(device)
        return self._read(
            lambda: records.timeline(
                self._accounts.events(), self._accounts.account(name).current, name, whole=not self._accounts.dropped
            )
        )

    # ---- events, lines of code, what is alive

    @property
    def events(self) -> tuple[Event, ...]:
        """The events the log still holds, the oldest first."""
        return self._read(lambda: tuple(self._accounts.events()))

    def get_events(self, *, kind: str | None = None, op: str | None = None, device: Any = None) -> tuple[Event, ...]:
        """The events of a kind, an op, a device."""
        where = None if device is None else str(device)
        return tuple(
            e for e in self.events
            if (kind is None or e.kind == kind) and (op is None or e.op == op) and (where is None or where in (e.device, e.to))
        )  # fmt: skip

    @property
    def dropped(self) -> int:
        """Events that no longer fitted the log."""
        return self._read(lambda: self._accounts.dropped)

    @property
    def unknown_frees(self) -> tuple[str, ...]:
        """Ids freed by hand that nobody had allocated, the first 1000 of them; the report says how many more there were."""
        return self._read(lambda: tuple(self._accounts.unknown.ids))

    @property
    def repeated_ids(self) -> tuple[str, ...]:
        """Ids allocated by hand while they were alive, the first 1000 of them; the older buffer is taken as gone."""
        return self._read(lambda: tuple(self._accounts.repeated.ids))

    @property
    def transfers(self) -> tuple[Moved, ...]:
        """Bytes moved from device to device."""
        return self._read(lambda: self._accounts.transfers())

    def top_sites(self, n: int = 10) -> tuple[SiteUse, ...]:
        """The ops and lines of code that asked for most, all events counted."""
        return tuple(self._read(lambda: self._accounts.sites())[:n])

    def live_at_peak(self, device: Any = CPU) -> AtPeak:
        """What was alive when the most was: the allocations, one after the other, and what is not among them."""
        return self._read(lambda: self._accounts.at_peak(str(device)))

    @property
    def idle(self) -> Idle:
        """The pool's real free blocks: at the end of the block, or now while it runs."""
        return records.idle(self._stats())

    @property
    def fragmentation(self) -> float:
        """1 - largest free block / all idle bytes: 0 when idle memory is one piece."""
        return self.idle.fragmentation

    def _stats(self) -> memory.Stats:
        return memory.stats() if self.enabled else self._after

    # ---- leaks

    def keep(self, value: T) -> T:
        """Say that what is reachable from a value is meant to stay; the value. As in `return m.keep(result)`."""
        self._kept |= addresses(value)
        return value

    def leaks(self, keep: Any = None) -> tuple[Allocation, ...]:
        """What was allocated inside the block and is still alive, the largest first: at its end, or now while it runs.

        Garbage is collected first. What is reachable from `keep`, or was given to `keep()`, is left out.
        """
        self._collect()
        meant = self._kept | (addresses(keep) if keep is not None else set())
        now = self._now_ns()
        held = self._read(
            lambda: [self._accounts.allocation(e, now) for e in self._accounts.held() if e[1][1] not in meant]
        )
        return tuple(sorted(held, key=lambda a: (-a.nbytes, a.at_ns)))

    def assert_no_leaks(self, keep: Any = None) -> None:
        """LeakError, an AssertionError, where something leaked: op, line, size and age of each."""
        if found := self.leaks(keep):
            raise LeakError(complaint(found, self.name or "track_memory"))

    # ---- what it means

    def advice(self, model: Any = None) -> tuple[Advice, ...]:
        """What would save memory, and how much. `model`: an object whose float weights are looked at too."""
        return advised(self._read(self._advised), model)

    def _advised(self) -> Seen:
        a = self._accounts
        changes, base = a.changes()
        cpu = a.devices[CPU]
        return Seen(
            a.lives(), a.first, changes, base, cpu.peak, cpu.peak_at, tuple(a.events()), self._before, self._stats(),
            {name: d.peak for name, d in a.devices.items()},
        )  # fmt: skip

    def python_memory(self) -> PythonUse | None:
        """Python's own objects over the same stretch, by tracemalloc; None unless python=True was asked for."""
        return self._traced.use() if self._traced is not None else None

    def get_memory_pressure(self, device: Any = CPU) -> Pressure:
        """How close the memory of a device is to its limit now."""
        return memory_pressure.pressure(device)

    def generate_optimizations(self, device: Any = CPU) -> tuple[Advice, ...]:
        """The advice; all of it is about the CPU's pool, and transfers to and from other devices."""
        found = self.advice()
        return (
            found
            if str(device) == CPU
            else tuple(a for a in found if a.kind == "round trips" and str(device) in a.description)
        )

    def record(self, model: Any = None, keep: Any = None) -> Memory:
        """All of it, frozen."""
        leaks, around, lost = self.leaks(keep), self._surroundings(), self.dropped
        unknown, repeated = self._read(lambda: (self._accounts.unknown.unlisted, self._accounts.repeated.unlisted))
        notes = (
            *([f"the log kept the last {self.capacity} events; {lost} older ones are only in the sums: {UNADVISED}"] if lost else ()),
            *([f"{unknown} more were freed by hand that nobody had allocated; they are not listed"] if unknown else ()),
            *([f"{repeated} more ids were allocated by hand while alive; they are not listed"] if repeated else ()),
        )  # fmt: skip
        return Memory(
            self.name, self._began_utc, max(0, self._now_ns() - self._accounts.began_ns), self._uses(around), self.top_sites(1000),
            self.live_at_peak(), leaks, self.idle, self.transfers, self.advice(model), around.pressure,
            around.resident, self.events, lost, self.unknown_frees, self.python_memory(), notes, self.repeated_ids,
        )  # fmt: skip

    def report(self, top: int = 10) -> str:
        """A page for a terminal."""
        return memory_page.text(self.record(), top)

    generate_report = report

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return memory_file.as_dict(self.record())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all of it (.json), which `tt.see.load_memory` reads, or the events alone (.csv)."""
        return memory_file.writer(path)(self.record(), path)

    # ---- told by hand

    def track_allocation(self, id: str, nbytes: int, device: Any = CPU, op: str = "") -> None:
        """A buffer of the user's own came to be. An id that is alive already has a new size, and is flagged: `repeated_ids`."""
        self._note(_allocated(id, nbytes, device, op, sys._getframe(1)))

    def track_deallocation(self, id: str, device: Any = CPU, op: str = "") -> None:
        """A buffer of the user's own is gone. An id nobody allocated is flagged: `unknown_frees`, and in the report."""
        self._note(_freed(id, device, op, sys._getframe(1)))

    def track_transfer(self, id: str, nbytes: int, source: Any, target: Any, op: str = "") -> None:
        """Bytes of the user's own went from one device to another."""
        self._note(_transferred(id, nbytes, source, target, op, sys._getframe(1)))

    def _note(self, raw: hub.Raw) -> None:
        if self.enabled:
            hub.alone(self, raw)


def track_memory(
    name: str = "", *, sites: bool = True, capacity: int = CAPACITY, python: bool = False
) -> MemoryTracker:  # fmt: skip
    """`with track_memory() as m:` … then m.peak, m.net, m.leaks(), m.top_sites(), m.report() …

    `sites=False`: without lines of code, which is cheaper. `capacity`: events the log keeps. `python=True`: Python's own
    objects too, by tracemalloc, which is slow.
    """
    return MemoryTracker(name, sites=sites, capacity=capacity, python=python)


def load_memory(path: str | os.PathLike[str]) -> Memory:
    """What a tracker saved."""
    return memory_file.load(path)


# ---- told by hand, to everybody who tracks


def track_allocation(id: str, nbytes: int, device: Any = CPU, op: str = "") -> None:
    """Tell every tracker of a buffer of one's own; nothing happens where none is at work."""
    hub.tell(_allocated(id, nbytes, device, op, sys._getframe(1)))


def track_deallocation(id: str, device: Any = CPU, op: str = "") -> None:
    """Tell every tracker that it is gone."""
    hub.tell(_freed(id, device, op, sys._getframe(1)))


def track_transfer(id: str, nbytes: int, source: Any, target: Any, op: str = "") -> None:
    """Tell every tracker of bytes that went from one device to another."""
    hub.tell(_transferred(id, nbytes, source, target, op, sys._getframe(1)))


def _allocated(id: str, nbytes: int, device: Any, op: str, frame: FrameType) -> hub.Raw:
    return hub.noted("manual", _id(id), _size(nbytes), str(device), op, frame)


def _freed(id: str, device: Any, op: str, frame: FrameType) -> hub.Raw:
    return hub.noted("manual free", _id(id), 0, str(device), op, frame)


def _transferred(id: str, nbytes: int, source: Any, target: Any, op: str, frame: FrameType) -> hub.Raw:
    return hub.noted("transfer", _id(id), _size(nbytes), (str(source), str(target)), op, frame)


def _id(given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ArgumentError(f"track: an id is a text that is not empty, given {given!r}.")
    return given


def _size(nbytes: Any) -> int:
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or not 0 <= nbytes <= MOST:
        raise ArgumentError(f"track: bytes must be a whole number from 0, given {nbytes!r}.")
    return nbytes


def surroundings(devices: Iterable[str]) -> Surroundings:
    pressure = memory_pressure.pressure()
    process: tuple[int | None, int | None] = next(
        ((r.used, r.limit) for r in pressure.readings if r.which == "process"), (None, None)
    )
    return Surroundings(
        pressure, memory.resident_bytes() or 0, {d: process if d == CPU else _limits(d) for d in devices}
    )


def _limits(device: str) -> tuple[int | None, int | None]:
    """What a device tells of its memory: in use and in all; nothing where the name is only the user's own."""
    if not backends.is_device_name(device):
        return None, None
    try:
        return backends.device(device).backend.memory() or (None, None)
    except DeviceError:
        return None, None
