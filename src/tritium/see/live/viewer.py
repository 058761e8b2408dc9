"""The view: rates of the processes that publish, their recent past, and the machine's own sensors.

Rates are differences of two snapshots of one process; without a second one there is none.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritium.perf.formats.telemetry import Family, Sample
from tritium.perf.meters.absent import Absent
from tritium.see.live.snapshot import Snapshot, snapshots
from tritium.see.monitor.collector import Collector
from tritium.see.monitor.sources import Gpus, Heat, Power, Processor, Source

HISTORY = 120  # looks that are kept of a process
TOP_OPS = 8
LEAST_S = 0.2  # between two looks; a second viewer gets the last one
KEPT = ("ops_per_s", "tokens_per_s", "rss", "running")  # of which the past is kept


@dataclass(frozen=True)
class Row:
    """One process as it is shown. A rate is None until it was seen twice."""

    pid: int
    name: str
    uptime_s: float
    age_s: float  # of the figures
    cpu_percent: float | None
    rss: int
    pool: int
    pool_idle: int
    ops_per_s: float | None
    tokens_per_s: float | None  # decoded
    prefill_per_s: float | None
    decode_tokens: int
    running: int
    waiting: int
    requests_done: int
    requests_failed: int
    overhead: float  # share of one CPU that publishing takes
    top_ops: tuple[tuple[str, float], ...] = ()  # calls per second
    past: dict[str, tuple[float | None, ...]] | None = None


@dataclass(frozen=True)
class Sensor:
    """One sensor of the machine: its value, or why there is none."""

    name: str
    unit: str
    value: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class View:
    """All that is shown at one moment."""

    time_s: float
    machine: tuple[Sensor, ...]
    processes: tuple[Row, ...]
    faults: tuple[str, ...] = ()
    joules: float | None = None  # since the viewer started, of all domains that have a sensor
    tokens_per_joule: float | None = None


def machine_sources() -> list[Source]:
    """Return the sensors of the machine as a whole."""
    return [Processor(), Gpus(), Heat(), Power()]


class Viewer:
    """Looks at what is published. One object serves any number of readers."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        sources: Sequence[Source] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self.clock = folder, clock
        self._collector = Collector(1.0, 2, sources=machine_sources() if sources is None else sources)
        self._before: dict[int, Snapshot] = {}
        self._rows: dict[int, Row] = {}
        self._past: dict[int, dict[str, deque[float | None]]] = {}
        self._joules: float | None = None
        self._lock = threading.Lock()
        self._last: View | None = None

    def look(self) -> View:
        """Return the present state; at most a few times a second it is read anew."""
        with self._lock:
            now = self.clock()
            if self._last is None or not 0 <= now - self._last.time_s < LEAST_S:
                self._last = self._look(now)
            return self._last

    def _look(self, now: float) -> View:
        published, faults = snapshots(self.folder)
        rows = [self._row(s, now) for s in published]
        for ended in self._before.keys() - {s.pid for s in published}:
            del self._before[ended]
            self._rows.pop(ended, None)
            self._past.pop(ended, None)
        machine = self._machine()
        watts = [s.value for s in machine if s.unit == "W" and s.value is not None]
        if watts and self._last is not None:
            self._joules = (self._joules or 0.0) + sum(watts) * max(now - self._last.time_s, 0.0)
        rate = sum(r.tokens_per_s or 0.0 for r in rows)
        per_joule = rate / sum(watts) if watts and sum(watts) > 0 and rate else None
        return View(now, machine, tuple(rows), tuple(faults), self._joules, per_joule)

    def _machine(self) -> tuple[Sensor, ...]:
        row = self._collector.flush()
        return tuple(
            Sensor(c.name, c.unit, reason=v.says) if isinstance(v, Absent) else Sensor(c.name, c.unit, v)
            for c, v in zip(self._collector.columns, row.values, strict=True)
            if c.name != "cpu_process"
        )

    def _row(self, s: Snapshot, now: float) -> Row:
        before = self._before.get(s.pid)
        if before is not None and before.started_s == s.started_s and s.time_s == before.time_s and s.pid in self._rows:
            return self._rows[s.pid]  # nothing new was published
        self._before[s.pid] = s
        elapsed = s.time_s - before.time_s if before is not None and before.started_s == s.started_s else 0.0

        def rate(new: float, old: Callable[[Snapshot], float]) -> float | None:
            return max(new - old(before), 0.0) / elapsed if before is not None and elapsed > 0 else None

        ops = {k: rate(v, lambda b, k=k: b.ops.get(k, 0)) for k, v in s.ops.items()}  # type: ignore[misc]
        cpu = rate(s.cpu_s, lambda b: b.cpu_s)
        row = Row(
            s.pid, s.name, now - s.started_s, max(now - s.time_s, 0.0), None if cpu is None else 100 * cpu, s.rss, s.pool, s.pool_idle,
            rate(sum(s.ops.values()), lambda b: sum(b.ops.values())) if s.ops else None, rate(s.decode_tokens, lambda b: b.decode_tokens),
            rate(s.prefill_tokens, lambda b: b.prefill_tokens), s.decode_tokens, s.running, s.waiting, s.requests_done,
            s.requests_failed, s.publish_s / max(s.time_s - s.started_s, s.interval_s),
            tuple(sorted(((k, v) for k, v in ops.items() if v), key=lambda item: -item[1])[:TOP_OPS]),
        )  # fmt: skip
        past = self._past.setdefault(s.pid, {name: deque(maxlen=HISTORY) for name in KEPT})
        for name, values in past.items():
            values.append(getattr(row, name))
        self._rows[s.pid] = Row(**(vars(row) | {"past": {name: tuple(values) for name, values in past.items()}}))
        return self._rows[s.pid]


def families(view: View) -> list[Family]:
    """Return the view as families of metrics, for Prometheus and OpenMetrics."""
    each: list[tuple[str, str, Callable[[Row], Any]]] = [
        ("tritium_process_resident_memory_bytes", "Resident memory.", lambda r: r.rss),
        ("tritium_process_pool_bytes", "Memory of the pool in use.", lambda r: r.pool),
        ("tritium_process_ops_per_second", "Ops called per second.", lambda r: r.ops_per_s),
        ("tritium_process_tokens_per_second", "Tokens decoded per second.", lambda r: r.tokens_per_s),
        ("tritium_process_requests_running", "Requests that run.", lambda r: r.running),
        ("tritium_process_requests_waiting", "Requests that wait.", lambda r: r.waiting),
    ]
    out = []
    for name, text, read in each:
        labelled = [(read(r), {"pid": str(r.pid), "name": r.name}) for r in view.processes]
        out.append(Family(name, text, [Sample(float(v), labels) for v, labels in labelled if v is not None]))
    sensors = [Sample(s.value, {"sensor": s.name, "unit": s.unit}) for s in view.machine if s.value is not None]
    return [*out, Family("tritium_machine_sensor", "Sensors of the machine.", sensors)]
