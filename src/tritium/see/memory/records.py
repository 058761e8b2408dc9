"""Immutable records of a memory tracker: events, allocations, use by device and line, transfers, idle blocks, advice.

Bytes are requested bytes; times are ns since tracking began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from tritium.memory import Stats
from tritium.see.memory.pressure import Pressure
from tritium.see.trace.timeline import Counter

Kind = Literal["alloc", "reuse", "cow", "free", "import", "release", "transfer", "hidden", "manual"]
EVENT_KINDS: tuple[Kind, ...] = get_args(Kind)
GROWS = ("alloc", "reuse", "cow", "manual")  # kinds that add live bytes; "free" removes them
Priority = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Event:
    """One memory event.

    "reuse": an allocation from an idle block. "cow": the deferred copy of clone(). "import" and "release": foreign
    memory wrapped and released. "hidden": a copy because a view was impossible. "manual": a buffer of the user's.
    """

    kind: Kind
    at_ns: int
    nbytes: int
    address: int
    op: str  # op that was running; "": none
    site: str  # "file:line"
    thread: str
    device: str = "cpu"  # of a transfer: the source
    to: str = ""  # of a transfer: the target
    id: str = ""  # of a buffer of the user's
    known: bool = True  # False: freed without a recorded allocation


@dataclass(frozen=True)
class Allocation:
    """A live allocation with its op, line of code, thread and time."""

    nbytes: int
    op: str
    site: str
    thread: str
    device: str
    at_ns: int
    age_ns: int  # at the time of the record
    id: str = ""


@dataclass(frozen=True)
class DeviceUse:
    """Use of the memory of one device while tracking."""

    device: str
    start: int  # bytes alive when tracking began
    current: int
    peak: int
    peak_ns: int  # time it was first reached
    allocations: int
    frees: int
    reused: int  # allocations from idle blocks
    allocated: int  # bytes of all allocations
    used: int | None = None  # of the device by all processes, as it reports
    limit: int | None = None  # total bytes of the device; for the CPU: what this process may use

    @property
    def net(self) -> int:
        """Return the growth of live bytes since the start."""
        return self.current - self.start


@dataclass(frozen=True)
class SiteUse:
    """Allocations of one op at one line of code."""

    site: str
    op: str
    count: int
    nbytes: int  # of all allocations together
    reused: int
    live: int  # bytes still alive

    @property
    def mean(self) -> float:
        return self.nbytes / self.count if self.count else 0.0


@dataclass(frozen=True)
class AtPeak:
    """Allocations alive at the peak, the largest first; with `earlier` and `missing` they add up to the peak."""

    nbytes: int  # the peak
    allocations: tuple[Allocation, ...]
    earlier: int  # bytes alive since before tracking began
    missing: int = 0  # bytes whose events are not in the log
    lost: int = 0  # events the log dropped

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self.allocations)

    def __len__(self) -> int:
        return len(self.allocations)

    @property
    def note(self) -> str:
        """Return a text on what the list lacks; "" if it is complete."""
        if not self.missing:
            return ""
        why = (
            "the log dropped their events; pass a larger capacity="
            if self.lost
            else "their allocation was not recorded"
        )
        return f"{self.missing} bytes of the peak are not listed: {why}."


@dataclass(frozen=True)
class Moved:
    """Transfers from one device to another."""

    source: str
    target: str
    count: int
    nbytes: int
    elapsed_ns: int  # 0: tracked manually, not timed

    @property
    def rate(self) -> float | None:
        """Return bytes per second; None if not timed."""
        return 1e9 * self.nbytes / self.elapsed_ns if self.elapsed_ns else None


@dataclass(frozen=True)
class Idle:
    """Free blocks of the pool."""

    nbytes: int  # idle in total
    largest: int
    blocks: int
    classes: tuple[tuple[int, int], ...]  # size and number of idle blocks; size 0: large ones, of any size
    limit: int  # most bytes the pool caches

    @property
    def fragmentation(self) -> float:
        """Return 1 - largest idle block / all idle bytes: 0 if idle memory is one block, or there is none."""
        return 1 - self.largest / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class Advice:
    """A recommendation with the bytes it would save, computed from the record."""

    kind: Literal["temporaries", "repeated", "hidden copies", "ternary", "idle", "round trips"]
    description: str
    potential_savings: int  # bytes
    of: str  # what the bytes are a part of: "the peak", "copies", "idle memory" …
    priority: Priority


@dataclass(frozen=True)
class PythonSite:
    """Python memory allocated at a line of code, by tracemalloc."""

    site: str
    nbytes: int  # growth since tracking began
    count: int


@dataclass(frozen=True)
class PythonUse:
    """Python's own objects, which are not in Tritium's pool: tracemalloc's figures while tracking."""

    current: int
    peak: int
    sites: tuple[PythonSite, ...]


@dataclass(frozen=True)
class Record:
    """The complete record; `Memory` adds methods to it."""

    name: str
    began: str  # UTC, ISO 8601
    elapsed_ns: int
    devices: tuple[DeviceUse, ...]
    sites: tuple[SiteUse, ...]
    at_peak: AtPeak
    leaks: tuple[Allocation, ...]
    idle: Idle
    moved: tuple[Moved, ...]
    advice: tuple[Advice, ...]
    pressure: Pressure
    resident: int  # resident bytes of the process at the time of the record; 0: unknown
    events: tuple[Event, ...]
    dropped: int  # older events the log dropped
    unknown_frees: tuple[str, ...] = ()  # ids freed manually without an allocation
    python: PythonUse | None = None
    notes: tuple[str, ...] = ()
    repeated_ids: tuple[str, ...] = ()  # ids allocated manually while alive

    def use(self, device: str = "cpu") -> DeviceUse | None:
        return next((d for d in self.devices if d.device == device), None)

    def timeline(self, device: str = "cpu") -> Counter:
        """Return the live bytes of a device over time, as far back as the log reaches."""
        use = self.use(device)
        return timeline(self.events, use.current if use is not None else 0, device, whole=not self.dropped)


def idle(stats: Stats) -> Idle:
    """Return the free blocks of the pool from its statistics."""
    classes = tuple((c.size, c.free) for c in stats.classes if c.free)
    return Idle(stats.pooled_bytes, stats.largest_free_bytes, sum(n for _, n in classes), classes, stats.limit)


def change(e: Event) -> int:
    """Return the change of live bytes by an event."""
    return e.nbytes if e.kind in GROWS else -e.nbytes if e.kind == "free" else 0


def timeline(events: Iterable[Event], current: int, device: str, *, whole: bool = True) -> Counter:
    """Return the live bytes after every event that changed them, ending at `current`; `whole`: the events start at 0."""
    seen = [(e.at_ns, change(e)) for e in events if e.device == device and change(e)]
    columns = np.array([(0, 0)] * whole + seen, np.int64).reshape(-1, 2)
    values = np.cumsum(columns[:, 1])
    values = values + (current - values[-1]) if len(values) else values
    return Counter(f"memory of {device}", "B", columns[:, 0], values.astype(np.float64))
