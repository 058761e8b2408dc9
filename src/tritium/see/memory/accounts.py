"""Accounts of memory events: live allocations, current and peak bytes by device, sums by line of code, a bounded log.

The log drops its oldest events, and beyond a limit lines of code and flagged ids are only counted; everything else
stays exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritium.see.memory import advice, hub
from tritium.see.memory.records import Allocation, AtPeak, Event, Kind, Moved, SiteUse, change

MOST_SITES = 10_000  # with sums of their own; all further lines share one entry
MOST_FLAGGED = 1000  # ids that are listed; further ones are only counted
CPU = "cpu"
KINDS: dict[str, Kind] = {
    "alloc": "alloc", "copy": "cow", "free": "free", "wrap": "import", "unwrap": "release", "hidden": "hidden",
    "transfer": "transfer", "manual": "manual", "manual free": "free",
}  # fmt: skip


class Flagged:
    """Ids of manually tracked buffers that were reported wrongly: the first of them, and their number."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.seen = 0

    def add(self, id: str) -> None:
        self.seen += 1
        if len(self.ids) < MOST_FLAGGED:
            self.ids.append(id)

    @property
    def unlisted(self) -> int:
        return self.seen - len(self.ids)


Entry = tuple[int, hub.Raw, Any]  # number of the event, the event, and for a free the entry of its allocation


@dataclass
class Account:
    """The bytes of one device."""

    start: int = 0
    current: int = 0
    peak: int = 0
    peak_at: int = 0  # number of the event that reached the peak; 0: the start of tracking
    peak_ns: int = 0
    earlier: int = 0  # alive since before tracking began
    earlier_at_peak: int = 0
    allocations: int = 0
    frees: int = 0
    allocated: int = 0  # bytes of all allocations
    reused: int = 0

    @classmethod
    def with_bytes(cls, nbytes: int, now_ns: int) -> Account:
        """Return an account that starts with bytes already alive."""
        return cls(nbytes, nbytes, nbytes, 0, now_ns, nbytes, nbytes)


class Accounts:
    """All accounts of one tracker. Not thread-safe: the hub serialises access."""

    def __init__(self, capacity: int) -> None:
        self.devices: dict[str, Account] = {CPU: Account()}
        self.live: dict[int, Entry] = {}  # by address
        self.manual: dict[tuple[str, str], Entry] = {}  # by device and id
        self.log: deque[Entry] = deque(maxlen=capacity)
        self.lines: dict[Any, list[Any]] = {}
        self.moved: dict[tuple[str, str], list[int]] = {}
        self.unknown = Flagged()  # freed and never allocated
        self.repeated = Flagged()  # allocated again while alive
        self.seen = 0
        self.began_ns = 0

    def begin(self, current: int, now_ns: int) -> None:
        self.devices[CPU], self.began_ns = Account.with_bytes(current, now_ns), now_ns

    @property
    def dropped(self) -> int:
        return self.seen - len(self.log)

    @property
    def first(self) -> int:
        """Return the number of the oldest event in the log."""
        return self.log[0][0] if self.log else self.seen + 1

    # ---- events in

    def take(self, batch: Sequence[hub.Raw]) -> None:
        """Add events to the accounts. A hot path: its time is overhead of the tracked program."""
        cpu, live, log, lines = self.devices[CPU], self.live, self.log, self.lines
        number, frees, current, peak = self.seen, 0, cpu.current, cpu.peak
        for raw in batch:
            number += 1
            kind = raw[0]
            if kind == "free":
                born = live.pop(raw[1], None)
                log.append((number, raw, born))
                current -= raw[2]
                frees += 1
                if born is None:
                    cpu.earlier -= raw[2]
            elif kind == "alloc" or kind == "copy":
                live[raw[1]] = entry = (number, raw, None)
                log.append(entry)
                current += raw[2]
                if current > peak:
                    peak = cpu.peak = current
                    cpu.peak_at, cpu.peak_ns, cpu.earlier_at_peak = number, raw[4], cpu.earlier
                key = (id(raw[6]), raw[7], id(raw[5]))
                sums = lines.get(key) or self._line(key, raw)
                sums[0] += 1
                sums[1] += raw[2]
                sums[2] += raw[3]
            else:
                cpu.current = current
                if (
                    kind == "manual" and (raw[3], raw[1]) in self.manual
                ):  # the old buffer is freed first, in the log too
                    self.repeated.add(raw[1])
                    log.append(self._other(number, ("manual free", raw[1], 0, *raw[3:])))
                    number += 1
                log.append(self._other(number, raw))
                current, peak = cpu.current, cpu.peak
        self.seen, cpu.current = number, current
        cpu.frees += frees

    def _line(self, key: Any, raw: hub.Raw) -> list[Any]:
        """Return the sums of an op at a line: count, bytes, reused; and an event, which keeps the objects of the key alive."""
        if len(self.lines) >= MOST_SITES:
            key, raw = None, ("alloc", 0, 0, False, 0, "(more lines)", None, 0, "")
        return self.lines.setdefault(key, [0, 0, 0, raw])

    def _other(self, number: int, raw: hub.Raw) -> Entry:
        """Add an event that is neither an allocation nor a free of the pool, and return its log entry."""
        kind, key, nbytes, detail = raw[:4]
        if kind == "transfer":
            sums = self.moved.setdefault(detail, [0, 0, 0])
            sums[:] = [sums[0] + 1, sums[1] + nbytes, sums[2] + (key if isinstance(key, int) else 0)]
        elif kind == "manual":
            self._grow(detail, nbytes, number, raw[4])
            entry = self.manual[detail, key] = (number, raw, None)
            return entry
        elif kind == "manual free":
            born = self._release(detail, key)
            if born is None:
                self.unknown.add(key)
            return (number, raw, born)
        return (number, raw, None)

    def _grow(self, device: str, nbytes: int, number: int, at_ns: int) -> None:
        a = self.devices.setdefault(device, Account())
        a.allocations += 1
        a.allocated += nbytes
        a.current += nbytes
        if a.current > a.peak:
            a.peak, a.peak_at, a.peak_ns, a.earlier_at_peak = a.current, number, at_ns, a.earlier

    def _release(self, device: str, key: str) -> Entry | None:
        born = self.manual.pop((device, key), None)
        if born is not None:
            self.devices[device].current -= born[1][2]
            self.devices[device].frees += 1
        return born

    # ---- figures out

    def account(self, device: str) -> Account:
        """Return the account of a device; for the CPU, including the sums of all lines."""
        a = self.devices.get(device, Account())
        if device != CPU:
            return a
        count, nbytes, reused = (sum(s[i] for s in self.lines.values()) for i in range(3))
        return replace(a, allocations=a.allocations + count, allocated=a.allocated + nbytes, reused=a.reused + reused)

    def held(self, device: str | None = None) -> list[Entry]:
        """Return the allocations since tracking began that are alive, the oldest first."""
        pool = self.live.values() if device in (None, CPU) else ()
        own = (e for (where, _), e in self.manual.items() if device in (None, where))
        return sorted((*pool, *own), key=lambda e: e[0])

    def at_peak(self, device: str) -> AtPeak:
        """Return the allocations alive at the peak: those alive now or freed since that existed then."""
        a = self.devices.get(device, Account())
        ended = (born for number, raw, born in self.log if born is not None and number > a.peak_at)
        alive = [e for e in (*self.held(device), *ended) if e[0] <= a.peak_at and _device(e[1]) == device]
        listed_bytes = sum(e[1][2] for e in alive)
        listed = sorted((self.allocation(e, a.peak_ns) for e in alive), key=lambda x: (-x.nbytes, x.at_ns))
        return AtPeak(a.peak, tuple(listed), a.earlier_at_peak, a.peak - a.earlier_at_peak - listed_bytes, self.dropped)

    def allocation(self, entry: Entry, now_ns: int) -> Allocation:
        _, key, nbytes, _, at_ns, op, code, offset, thread = entry[1]
        return Allocation(
            nbytes, hub.op_name(op), hub.site(code, offset), thread, _device(entry[1]), at_ns - self.began_ns,
            max(0, now_ns - at_ns), key if isinstance(key, str) else "",
        )  # fmt: skip

    def sites(self) -> list[SiteUse]:
        """Return the sums by op and line of code, the most bytes first."""
        alive: dict[tuple[str, str], int] = {}
        for _, raw, _ in self.live.values():
            name = (hub.site(raw[6], raw[7]), hub.op_name(raw[5]))
            alive[name] = alive.get(name, 0) + raw[2]
        sums: dict[tuple[str, str], list[int]] = {}
        for count, nbytes, reused, raw in self.lines.values():  # an op may occur several times in a line
            totals = sums.setdefault((hub.site(raw[6], raw[7]), hub.op_name(raw[5])), [0, 0, 0])
            totals[:] = [totals[0] + count, totals[1] + nbytes, totals[2] + reused]
        uses = [SiteUse(site, op, s[0], s[1], s[2], alive.get((site, op), 0)) for (site, op), s in sums.items()]
        return sorted(uses, key=lambda s: (-s.nbytes, s.site, s.op))

    def transfers(self) -> tuple[Moved, ...]:
        return tuple(Moved(*way, *sums) for way, sums in sorted(self.moved.items()))

    def events(self) -> Iterator[Event]:
        """Iterate over the events in the log, the oldest first."""
        return (self._event(entry) for entry in self.log)

    def _event(self, entry: Entry) -> Event:
        _, (kind, key, nbytes, detail, at_ns, op, code, offset, thread), born = entry
        shown: Kind = "reuse" if kind == "alloc" and detail else KINDS[kind]
        by_hand = kind in ("manual", "manual free")
        source, target = detail if kind == "transfer" else (detail if by_hand else CPU, "")
        return Event(
            shown, at_ns - self.began_ns, born[1][2] if kind == "manual free" and born is not None else nbytes,
            key if isinstance(key, int) and kind in ADDRESSED else 0, hub.op_name(op), hub.site(code, offset), thread,
            source, target, key if isinstance(key, str) else "", kind != "manual free" or born is not None,
        )  # fmt: skip

    def lives(self) -> list[advice.Life]:
        """Return every allocation of the pool that is alive or whose free is in the log."""
        ended = ((born, number, raw) for number, raw, born in self.log if born is not None and raw[0] == "free")
        alive = ((allocation, None, None) for allocation in self.live.values())
        return [_life(*entry) for entry in (*ended, *alive)]

    def changes(self) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
        """Return the change of live CPU bytes by each event of the log, and the bytes alive before the first."""
        each = np.array([change(e) if e.device == CPU else 0 for e in self.events()], np.int64)
        return each, self.devices[CPU].current - int(each.sum())


ADDRESSED = ("alloc", "copy", "free", "wrap", "unwrap")


def _device(raw: hub.Raw) -> str:
    return str(raw[3]) if raw[0] == "manual" else CPU


def _life(born: Entry, died: int | None, end: hub.Raw | None) -> advice.Life:
    number, (_, _, nbytes, reused, _, op, code, offset, thread), _ = born
    ended = (hub.site(end[6], end[7]), end[8]) if end is not None else ("", "")
    return advice.Life(nbytes, hub.op_name(op), hub.site(code, offset), thread, bool(reused), number, died, *ended)
