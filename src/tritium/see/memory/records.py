"""What a memory tracker saw, frozen: events, allocations, uses of devices and lines, transfers, idle blocks, advice.

Knows nothing of how it was heard, kept or drawn. Bytes are what was asked for; times are ns since tracking began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tritium.memory import Stats
from tritium.see.memory.pressure import Pressure
from tritium.see.trace.timeline import Counter

Kind = Literal["alloc", "reuse", "cow", "free", "import", "release", "transfer", "hidden", "manual"]
GROWS = ("alloc", "reuse", "cow", "manual")  # the kinds by which live bytes grow; "free" is how they shrink
Priority = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Event:
    """One thing that happened to memory.

    "reuse": an allocation from an idle block. "cow": the copy that clone() had put off. "import" and "release": memory of
    someone else, seen and let go. "hidden": a copy made because a view was impossible. "manual": a buffer of the user's.
    """

    kind: Kind
    at_ns: int
    nbytes: int
    address: int
    op: str  # what was being carried out; "" where it was no op
    site: str  # "file:line"
    thread: str
    device: str = "cpu"  # of a transfer: where the bytes came from
    to: str = ""  # of a transfer: where they went
    id: str = ""  # of a buffer of the user's
    known: bool = True  # False: freed, but its allocation was never told


@dataclass(frozen=True)
class Allocation:
    """Memory that was alive: who asked for it, where and when."""

    nbytes: int
    op: str
    site: str
    thread: str
    device: str
    at_ns: int
    age_ns: int  # when it was looked at
    id: str = ""


@dataclass(frozen=True)
class DeviceUse:
    """What a stretch of code did to the memory of one device."""

    device: str
    start: int  # bytes alive when tracking began
    current: int
    peak: int
    peak_ns: int  # when it was reached first
    allocations: int
    frees: int
    reused: int  # allocations from idle blocks
    allocated: int  # bytes of all allocations
    used: int | None = None  # of the device, by everybody, as it tells itself
    limit: int | None = None  # what the device has in all; of the CPU: what this process may use

    @property
    def net(self) -> int:
        """Bytes alive at the end that were not at the start."""
        return self.current - self.start


@dataclass(frozen=True)
class SiteUse:
    """What one op at one line of code asked for."""

    site: str
    op: str
    count: int
    nbytes: int  # of all of them together
    reused: int
    live: int  # bytes still alive

    @property
    def mean(self) -> float:
        return self.nbytes / self.count if self.count else 0.0


@dataclass(frozen=True)
class AtPeak:
    """What was alive when the most was: allocations, the largest first. They and the two sums below add up to the peak."""

    nbytes: int  # the peak
    allocations: tuple[Allocation, ...]
    earlier: int  # bytes alive since before tracking began
    missing: int = 0  # bytes whose events are not in the log
    lost: int = 0  # events that no longer fitted the log

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self.allocations)

    def __len__(self) -> int:
        return len(self.allocations)

    @property
    def note(self) -> str:
        """Openly, what the list lacks; "" where it is whole."""
        if not self.missing:
            return ""
        why = (
            "their events no longer fitted; ask for a larger capacity"
            if self.lost
            else "their allocation was not heard"
        )
        return f"{self.missing} bytes of the peak are not listed: {why}."


@dataclass(frozen=True)
class Moved:
    """Bytes that went from one device to another."""

    source: str
    target: str
    count: int
    nbytes: int
    elapsed_ns: int  # 0: told by hand, not timed

    @property
    def rate(self) -> float | None:
        """Bytes a second; None where they were not timed."""
        return 1e9 * self.nbytes / self.elapsed_ns if self.elapsed_ns else None


@dataclass(frozen=True)
class Idle:
    """The pool's real free blocks."""

    nbytes: int  # idle in all
    largest: int
    blocks: int
    classes: tuple[tuple[int, int], ...]  # size and number of idle blocks; size 0: large ones, of any size
    limit: int  # what the pool keeps at most

    @property
    def fragmentation(self) -> float:
        """1 - largest idle block / all idle bytes: 0 when idle memory is one piece, or there is none."""
        return 1 - self.largest / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class Advice:
    """Something to do: what it is about, and the bytes it would save, computed from what was seen."""

    kind: Literal["temporaries", "repeated", "hidden copies", "ternary", "idle", "round trips"]
    description: str
    potential_savings: int  # bytes
    of: str  # what they are bytes of: "the peak", "copies", "idle memory" …
    priority: Priority


@dataclass(frozen=True)
class PythonSite:
    """A line of Python code and what it holds of Python's own memory, by tracemalloc."""

    site: str
    nbytes: int  # more than when tracking began
    count: int


@dataclass(frozen=True)
class PythonUse:
    """Python's own objects, which are not in Tritium's pool: tracemalloc's figures of the same stretch."""

    current: int
    peak: int
    sites: tuple[PythonSite, ...]


@dataclass(frozen=True)
class Record:
    """All of it; `Memory` adds what can be done with it."""

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
    resident: int  # bytes of the process in memory when this was made; 0: the system does not tell
    events: tuple[Event, ...]
    dropped: int  # older events that no longer fitted
    unknown_frees: tuple[str, ...] = ()  # ids freed by hand that nobody had allocated
    python: PythonUse | None = None
    notes: tuple[str, ...] = ()
    repeated_ids: tuple[str, ...] = ()  # allocated by hand while still alive

    def use(self, device: str = "cpu") -> DeviceUse | None:
        return next((d for d in self.devices if d.device == device), None)

    def timeline(self, device: str = "cpu") -> Counter:
        """Live bytes of a device over time, as far back as the log reaches."""
        use = self.use(device)
        return timeline(self.events, use.current if use is not None else 0, device, whole=not self.dropped)


def idle(stats: Stats) -> Idle:
    """The free blocks among the pool's figures."""
    classes = tuple((c.size, c.free) for c in stats.classes if c.free)
    return Idle(stats.pooled_bytes, stats.largest_free_bytes, sum(n for _, n in classes), classes, stats.limit)


def change(e: Event) -> int:
    """Bytes by which live memory grew."""
    return e.nbytes if e.kind in GROWS else -e.nbytes if e.kind == "free" else 0


def timeline(events: Iterable[Event], current: int, device: str, *, whole: bool = True) -> Counter:
    """Live bytes after every event that changed them, so that the last is `current`; where these are `whole`, from the start on."""
    seen = [(e.at_ns, change(e)) for e in events if e.device == device and change(e)]
    columns = np.array([(0, 0)] * whole + seen, np.int64).reshape(-1, 2)
    values = np.cumsum(columns[:, 1])
    values = values + (current - values[-1]) if len(values) else values
    return Counter(f"memory of {device}", "B", columns[:, 0], values.astype(np.float64))
