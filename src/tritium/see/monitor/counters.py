"""Counters of the runtime while monitoring is on: operations, their mean time, GFLOP/s, hit rates.

Operations come from a recorder that is drained at every poll; the other counters are those of `tt.stats()`, and rates
are over the time between two polls. There is no single figure of efficiency: each is named after what it counts.
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

KNOWN = 4096  # distinct calls whose cost is cached
Figures = Mapping[str, Mapping[str, Any]]  # as tt.stats() returns them
Key = tuple[str, str]  # op, device


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
        """Return the sum of these counts and further calls."""
        return OpCount(
            self.name, self.device, self.count + count, self.total_ns + total_ns, self.flops + flops, self.moved + moved
        )


# ---- counting spans


class Tally:
    """Sums of spans by op. A call's object is shared by its spans, so that each distinct call is looked up once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Key | None, int, int]] = {}  # holds the object, so that its id is not reused

    def count(self, whats: Sequence[Any], spans: np.ndarray[Any, Any]) -> dict[Key, OpCount]:
        """Return the counts of the operations among these spans; scopes, programs and transfers are not counted."""
        if not len(whats):
            return {}
        ids = np.fromiter(map(id, whats), np.int64, len(whats))
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        counts_ = np.bincount(which, minlength=len(first)).tolist()
        times = np.bincount(which, weights=np.asarray(spans)[:, 1], minlength=len(first)).tolist()
        out: dict[Key, OpCount] = {}
        for index, calls, ns in zip(first.tolist(), counts_, times, strict=True):
            key, flops, moved = self._describe(whats[index])
            if key is not None:
                out[key] = out.get(key, OpCount(*key)).plus(calls, int(ns), calls * flops, calls * moved)
        return out

    def _describe(self, what: Any) -> tuple[Key | None, int, int]:
        """Return the op and device of a call, its FLOPs and its bytes; None for what is not an op."""
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


# ---- rates between two polls


def _rate(before: Figures, now: Figures, part: str, good: str, bad: str, event: str) -> Value:
    """Return the share of `good` among the events between two polls."""
    hits, misses = (now[part][name] - before[part][name] for name in (good, bad))
    if hits < 0 or misses < 0:
        return Absent("counter_reset", f"the counters of {part} were reset", "tt.stats")
    return hits / (hits + misses) if hits + misses else Absent("window_too_short", f"no {event} in between", "tt.stats")


def _fusion_rate(before: Figures, now: Figures) -> Value:
    candidates, applied = (now["fusion"][name] - before["fusion"][name] for name in ("found", "applied"))
    return (
        applied / candidates
        if candidates > 0
        else Absent("window_too_short", "nothing was compiled in between", "tt.stats")
    )


def _growth(before: Figures, now: Figures, part: str, name: str) -> Value:
    growth = now[part][name] - before[part][name]
    return float(growth) if growth >= 0 else Absent("counter_reset", f"the counters of {part} were reset", "tt.stats")


def _gauge(now: Figures, part: str, name: str, event: str) -> Value:
    value = now[part][name]
    return Absent("window_too_short", f"{event} so far", "tt.stats") if value is None else float(value)


RATES: dict[str, Callable[[Figures, Figures], Value]] = {
    "pool_hit_rate": lambda a, b: _rate(a, b, "pool", "hits", "misses", "allocation"),
    "program_hit_rate": lambda a, b: _rate(a, b, "programs", "hits", "misses", "call of a compiled function"),
    "tensor_pool_hit_rate": lambda a, b: _rate(a, b, "tensor_pools", "hits", "misses", "tensor of a TensorPool"),
    "cache_hit_rate": lambda a, b: _rate(a, b, "caches", "hits", "misses", "lookup in a TensorCache"),
    "pool_utilization": lambda a, b: _gauge(b, "pool", "utilization", "no memory is held"),
    "tensor_pool_utilization": lambda a, b: _gauge(b, "tensor_pools", "utilization", "no TensorPool holds a tensor"),
    "cache_utilization": lambda a, b: _gauge(b, "caches", "utilization", "there is no TensorCache"),
    "fusion_rate": _fusion_rate,
    "hidden_copies": lambda a, b: _growth(a, b, "copies", "hidden"),
    "transfers": lambda a, b: _growth(a, b, "transfers", "count"),
    "replays": lambda a, b: _growth(a, b, "decisions", "replays"),
}


def read_counters() -> dict[str, dict[str, Any]]:
    """Return `tt.stats()`, and the number of calls replayed from a cached decision."""
    replays = sum(row.hits for row in OPS.values() if row.kind is not Kind.VIEW)
    return counts.stats() | {"decisions": {"replays": replays, "kept": sum(len(row.known) for row in OPS.values())}}


class Operations(Source):
    """The operations since the last poll, and the rates of the runtime's counters."""

    columns = (
        Column("operations", "1"), Column("operation_time", "s"), Column("gflops", "GFLOP/s"),
        *(Column(name, "1") for name in RATES), Column("dropped", "1"),
    )  # fmt: skip

    def __init__(
        self, history: int = 3600, *, capacity: int = 1_000_000, recorder: Any = None,
        figures: Callable[[], Figures] = read_counters, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.recorder = recording.Recorder(capacity) if recorder is None else recorder
        self.figures, self.clock = figures, clock
        self.totals: dict[Key, OpCount] = {}
        self.seconds = 0.0  # monitored so far
        self.dropped = 0  # operations beyond the recorder's capacity between two polls
        self._tally = Tally()
        self._lock = threading.Lock()
        self._polls: deque[tuple[float, dict[Key, OpCount]]] = deque(maxlen=history)
        self._since = 0.0
        self._recording = False
        self._first: Figures | None = None
        self._before: Figures | None = None
        self._last: Figures | None = None
        self._dropped_before = 0

    def start(self) -> None:
        with self._lock:
            self._recording, self._since = True, self.clock()
            self._before = self.figures()
            self._first = self._first or self._before
            self._dropped_before = self.recorder.dropped
            self.recorder.start()

    def stop(self) -> None:
        with self._lock:
            if self._recording:
                self.recorder.stop()
                self._drain()
                self._recording = False

    def read(self) -> Sequence[Value]:
        with self._lock:
            return self._drain()

    def _drain(self) -> Sequence[Value]:
        if not self._recording or self._before is None:
            return [Absent("unsupported", "operations are not being recorded", "recording")] * len(self.columns)
        now, dropped = self.clock(), self.recorder.dropped
        self.seconds, self._since = self.seconds + now - self._since, now
        seen = self._tally.count(*self.recorder.take())
        lost, self._dropped_before = max(dropped - self._dropped_before, 0), dropped
        self.dropped += lost
        for key, c in seen.items():
            self.totals[key] = self.totals.get(key, OpCount(*key)).plus(c.count, c.total_ns, c.flops, c.moved)
        self._polls.append((self.seconds, seen))
        before, self._before = self._before, self.figures()
        self._last = self._before
        rates = [rate(before, self._before) for rate in RATES.values()]
        return [*_figures(seen.values()), *rates, float(lost)]

    def counted(self) -> tuple[OpCount, ...]:
        """Return every operation so far, the longest in total first."""
        with self._lock:
            return tuple(sorted(self.totals.values(), key=lambda c: (-c.total_ns, c.name, c.device)))

    def rate(self, name: str) -> float | None:
        """Return a rate since recording began; None where nothing of its kind happened."""
        with self._lock:
            if self._first is None or self._last is None:
                return None
            value = RATES[name](self._first, self._last)
        return None if isinstance(value, Absent) else value

    def series(self, name: str | None = None) -> Metrics:
        """Return the operations of one name (default: all) over time, a row for each poll."""
        with self._lock:
            polls = list(self._polls)
        names = sorted({key[0] for _, counts_by_op in polls for key in counts_by_op})
        if name is not None and name not in names and name not in OPS:
            raise ArgumentError(f"no operation is called {name!r}.{nearest(name, OPS)}")
        selected = [
            (time_s, [c for key, c in counts_by_op.items() if name in (None, key[0])]) for time_s, counts_by_op in polls
        ]
        return Metrics(self.columns[:3], tuple(Row(time_s, tuple(_figures(c))) for time_s, c in selected))


def _figures(counted: Any) -> list[Value]:
    """Return the number of operations, their mean time, and their arithmetic in that time."""
    listed = list(counted)
    count, ns, flops = (sum(getattr(c, name) for c in listed) for name in ("count", "total_ns", "flops"))
    none = Absent("window_too_short", "no operation in between", "recording")
    return [float(count), ns / count / 1e9 if count else none, flops / ns if ns else none]
