"""What the runtime did, counted and timed while monitoring is on: operations, their mean time, GFLOP/s, hit rates.

Knows nothing of files or servers. Operations come from a recorder that is drained at every look; the other counters are
those of `tt.stats()`, and two looks give the rates between them. There is no one number of efficiency: each figure is
named for what it is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritium import counts, launch, recording
from tritium.errors import ArgumentError, nearest
from tritium.op import OPS, Kind
from tritium.perf.meters.absent import Absent
from tritium.see.monitor.metrics_file import Column, Metrics, Row, Value
from tritium.see.monitor.sources import Source

KNOWN = 4096  # distinct calls whose cost is remembered
Figures = Mapping[str, Mapping[str, Any]]  # as tt.stats() gives them
Key = tuple[str, str]  # row of the table, device


@dataclass(frozen=True)
class OpCount:
    """All calls of one operation on one device."""

    name: str
    device: str
    count: int = 0
    total_ns: int = 0
    flops: int = 0
    moved: int = 0  # bytes that had to be read or written at least once

    @property
    def mean_ms(self) -> float | None:
        return self.total_ns / self.count / 1e6 if self.count else None

    @property
    def gflops(self) -> float | None:
        return self.flops / self.total_ns if self.total_ns else None

    @property
    def gbs(self) -> float | None:
        return self.moved / self.total_ns if self.total_ns else None

    def plus(self, count: int, total_ns: int, flops: int, moved: int) -> OpCount:
        return OpCount(
            self.name, self.device, self.count + count, self.total_ns + total_ns, self.flops + flops, self.moved + moved
        )


# ---- spans in, counts out


class Tally:
    """Adds up spans by what they did. A call seen before costs no Python: spans of one call share one object."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Key | None, int, int]] = {}  # the object is held, so its id stays its own

    def of(self, whats: Sequence[Any], spans: np.ndarray[Any, Any]) -> dict[Key, OpCount]:
        """The operations among these spans; scopes, programs and transfers are no operations."""
        if not len(whats):
            return {}
        ids = np.fromiter(map(id, whats), np.int64, len(whats))
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        counts_ = np.bincount(which, minlength=len(first)).tolist()
        times = np.bincount(which, weights=np.asarray(spans)[:, 1], minlength=len(first)).tolist()
        out: dict[Key, OpCount] = {}
        for at, count, ns in zip(first.tolist(), counts_, times, strict=True):
            key, flops, moved = self._about(whats[at])
            if key is not None:
                out[key] = out.get(key, OpCount(*key)).plus(count, int(ns), count * flops, count * moved)
        return out

    def _about(self, what: Any) -> tuple[Key | None, int, int]:
        known = self._known.get(id(what))
        if known is not None:
            return known[1:]
        key, flops, moved = None, 0, 0
        if isinstance(what, launch.Launched) and what.op is not None:
            key, cost = (what.op.name, str(what.device)), what.cost
            flops, moved = cost.flops, cost.read + cost.written
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[id(what)] = what, key, flops, moved
        return key, flops, moved


# ---- rates between two looks


def _rate(before: Figures, now: Figures, part: str, good: str, bad: str, what: str) -> Value:
    """The share of `good` among what happened between two looks."""
    hits, misses = (now[part][name] - before[part][name] for name in (good, bad))
    if hits < 0 or misses < 0:
        return Absent("counter_reset", f"the counters of {part} were set back", "tt.stats")
    return hits / (hits + misses) if hits + misses else Absent("window_too_short", f"no {what} meanwhile", "tt.stats")


def _fused(before: Figures, now: Figures) -> Value:
    found, applied = (now["fusion"][name] - before["fusion"][name] for name in ("found", "applied"))
    return applied / found if found > 0 else Absent("window_too_short", "nothing was compiled meanwhile", "tt.stats")


def _grown(before: Figures, now: Figures, part: str, name: str) -> Value:
    more = now[part][name] - before[part][name]
    return float(more) if more >= 0 else Absent("counter_reset", f"the counters of {part} were set back", "tt.stats")


RATES: dict[str, Callable[[Figures, Figures], Value]] = {
    "pool_hit_rate": lambda a, b: _rate(a, b, "pool", "hits", "misses", "allocation"),
    "program_hit_rate": lambda a, b: _rate(a, b, "programs", "hits", "misses", "call of a compiled function"),
    "fusion_rate": _fused,
    "hidden_copies": lambda a, b: _grown(a, b, "copies", "hidden"),
    "transfers": lambda a, b: _grown(a, b, "transfers", "count"),
    "replays": lambda a, b: _grown(a, b, "decisions", "replays"),
}


def look() -> dict[str, dict[str, Any]]:
    """`tt.stats()`, and how many calls were carried out again as decided before."""
    replays = sum(row.hits for row in OPS.values() if row.kind is not Kind.VIEW)
    return counts.stats() | {"decisions": {"replays": replays, "kept": sum(len(row.known) for row in OPS.values())}}


class Operations(Source):
    """The operations since the last look, and the rates of the runtime's counters."""

    columns = (
        Column("operations", "1"), Column("operation_time", "s"), Column("gflops", "GFLOP/s"),
        *(Column(name, "1") for name in RATES), Column("dropped", "1"),
    )  # fmt: skip

    def __init__(
        self, history: int = 3600, *, capacity: int = 1_000_000, recorder: Any = None,
        figures: Callable[[], Figures] = look, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.recorder = recording.Recorder(capacity) if recorder is None else recorder
        self.figures, self.clock = figures, clock
        self.totals: dict[Key, OpCount] = {}
        self.seconds = 0.0  # listened so far
        self.dropped = 0  # operations that no longer fitted between two looks
        self._tally = Tally()
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, dict[Key, OpCount]]] = deque(maxlen=history)
        self._since = 0.0
        self._listening = False
        self._first: Figures | None = None
        self._before: Figures | None = None
        self._last: Figures | None = None
        self._gone = 0

    def start(self) -> None:
        with self._lock:
            self._listening, self._since = True, self.clock()
            self._before = self.figures()
            self._first = self._first or self._before
            self._gone = self.recorder.dropped
            self.recorder.start()

    def stop(self) -> None:
        with self._lock:
            if self._listening:
                self.recorder.stop()
                self._drain()
                self._listening = False

    def read(self) -> Sequence[Value]:
        with self._lock:
            return self._drain()

    def _drain(self) -> Sequence[Value]:
        if not self._listening or self._before is None:
            return [Absent("unsupported", "nobody listens to operations", "recording")] * len(self.columns)
        now, dropped = self.clock(), self.recorder.dropped
        self.seconds, self._since = self.seconds + now - self._since, now
        seen = self._tally.of(*self.recorder.take())
        lost, self._gone = max(dropped - self._gone, 0), dropped
        self.dropped += lost
        for key, c in seen.items():
            self.totals[key] = self.totals.get(key, OpCount(*key)).plus(c.count, c.total_ns, c.flops, c.moved)
        self._seen.append((self.seconds, seen))
        before, self._before = self._before, self.figures()
        self._last = self._before
        rates = [rate(before, self._before) for rate in RATES.values()]
        return [*_figures(seen.values()), *rates, float(lost)]

    def counted(self) -> tuple[OpCount, ...]:
        """Every operation so far, the longest in total first."""
        with self._lock:
            return tuple(sorted(self.totals.values(), key=lambda c: (-c.total_ns, c.name, c.device)))

    def rate(self, name: str) -> float | None:
        """A rate since listening began; None where nothing of the kind happened."""
        with self._lock:
            if self._first is None or self._last is None:
                return None
            found = RATES[name](self._first, self._last)
        return None if isinstance(found, Absent) else found

    def series(self, name: str | None = None) -> Metrics:
        """Operations of one name (of all, where none is given) over time, a row for each look."""
        with self._lock:
            seen = list(self._seen)
        known = sorted({key[0] for _, counted in seen for key in counted})
        if name is not None and name not in known and name not in OPS:
            raise ArgumentError(f"no operation is called {name!r}.{nearest(name, OPS)}")
        chosen = [(at, [c for key, c in counted.items() if name in (None, key[0])]) for at, counted in seen]
        return Metrics(self.columns[:3], tuple(Row(at, tuple(_figures(c))) for at, c in chosen))


def _figures(counted: Any) -> list[Value]:
    """How many, their mean time, and what they computed in that time."""
    listed = list(counted)
    count, ns, flops = (sum(getattr(c, name) for c in listed) for name in ("count", "total_ns", "flops"))
    none = Absent("window_too_short", "no operation meanwhile", "recording")
    return [float(count), ns / count / 1e9 if count else none, flops / ns if ns else none]
