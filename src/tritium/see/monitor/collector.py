"""A background thread that polls sources at an interval, with bounded memory and measured cost.

A source that fails loses its own columns and no other. The CPU share of polling is reported.

    with tt.see.Collector(interval="100ms") as collector:
        work()
    print(collector.metrics().last, collector.cpu_share)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import isfinite
from numbers import Real
from typing import Any

from tritium import escape, settings
from tritium.arguments import checked_class, checked_except, read_duration
from tritium.errors import ArgumentError, shown
from tritium.perf.meters.absent import Absent
from tritium.perf.records.case import Context
from tritium.perf.records.json_io import utc_now
from tritium.perf.suites.config import count_from
from tritium.see.monitor.counters import Operations
from tritium.see.monitor.metrics_file import Metrics, Operation, Row, Value
from tritium.see.monitor.sources import Source, default_sources

LEAST_S = 0.001  # between two rows
END_S = 5.0  # for which stopping waits for a sensor that hangs


@checked_class
class Collector:
    """Rows of all sources at an interval, the newest `history` of them; from `start` to `stop`, or in a `with`."""

    def __init__(
        self,
        interval: float | str = "100ms",
        history: int = 10_000,
        *,
        sources: Sequence[Source] | None = None,
        operations: bool = False,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self.interval_s = read_duration(interval, "interval")
        if self.interval_s < LEAST_S:
            raise ArgumentError(f"interval: at least {LEAST_S:g} s are needed between two rows, given {interval!r}.")
        self.history = count_from(1)(history, "history")
        self.sources = default_sources() if sources is None else list(sources)
        if operations:
            self.sources.append(Operations())
        self.columns = tuple(c for s in self.sources for c in s.columns)
        Metrics(self.columns)  # duplicate column names raise here, not in the thread
        self.looks = 0  # rows taken so far, including those dropped from the history
        self._clock, self._cpu = clock, cpu
        self._rows: deque[Row] = deque(maxlen=self.history)
        self._operations: deque[Operation] = deque(maxlen=self.history)
        self._operation_count = 0
        self._switching, self._reading, self._keeping = threading.RLock(), threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._origin: float | None = None
        self._began = ""
        self._failed: set[int] = set()  # sources whose failure was logged
        self._cost: tuple[float, float] | None = None  # CPU seconds of the thread, and its elapsed seconds

    # public methods

    def start(self) -> Collector:
        """Start, or resume after a stop. No effect on a running collector."""
        with self._switching:
            if not self.running:
                self._set_origin()
                for source in self.sources:
                    self._call_guarded(source.start, source)
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._ended,), daemon=True, name="tritium collector"
                )
                self._thread.start()
        return self

    def stop(self) -> Collector:
        """Take a last row and end the thread; the rows stay."""
        with self._switching:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._ended.set()
                thread.join(END_S)
                if not thread.is_alive():  # flush would wait for the same hanging sensor
                    self.flush()
                for source in self.sources:
                    self._call_guarded(source.stop, source)
        return self

    def flush(self) -> Row:
        """Take a row now, up to the present."""
        with self._reading:
            return self._take()

    def __enter__(self) -> Collector:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()  # a forked process has no thread

    @property
    def rows(self) -> tuple[Row, ...]:
        with self._keeping:
            return tuple(self._rows)

    @property
    def cpu_share(self) -> float | None:
        """Return the share of one CPU that the thread has used; None before its first row."""
        cost = self._cost
        return None if cost is None or cost[1] <= 0 else cost[0] / cost[1]

    @checked_except("elapsed_s")
    def collect_operation_metrics(
        self,
        operation: str,
        device: str = "cpu",
        elapsed_s: float = 0.0,
        shapes: Sequence[Sequence[int]] = (),
        context: Context | None = None,
    ) -> Operation:
        """Record one operation of the caller's own beside the rows: its duration and context."""
        seconds: Any = elapsed_s
        if not isinstance(seconds, Real) or not isfinite(seconds) or seconds < 0:
            raise ArgumentError(f"{operation}: elapsed_s is seconds, 0 or more, given {shown(elapsed_s)}.")
        sizes = tuple(tuple(int(n) for n in shape) for shape in shapes)
        full_context = context or Context(operation, sizes[0] if sizes else (), device=str(device))
        record = Operation(self._now(), float(elapsed_s), full_context, sizes)
        with self._keeping:
            self._operations.append(record)
            self._operation_count += 1
        return record

    def metrics(self) -> Metrics:
        """Return all recorded rows and operations, as a table that can be written and read back."""
        with self._keeping:
            rows, operations = tuple(self._rows), tuple(self._operations)
            dropped = ((self.looks - len(rows), "rows"), (self._operation_count - len(operations), "operations"))
        notes = [f"the oldest {n} {what} were dropped" for n, what in dropped if n]
        share = self.cpu_share
        if share is not None:
            notes.append(f"collecting took {100 * share:.2g} % of one CPU")
        return Metrics(self.columns, rows, self._began, self.interval_s, operations, tuple(notes))

    def export_metrics(self, to: str = "json") -> str:
        """Return the table as text: json, csv or prometheus."""
        return self.metrics().text(to)

    start_collection, stop_collection = start, stop

    # the thread

    def _set_origin(self) -> None:
        if self._origin is None:
            self._origin = self._clock()
            self._began = utc_now("milliseconds")

    def _now(self) -> float:
        return 0.0 if self._origin is None else self._clock() - self._origin

    def _run(self, stop: threading.Event) -> None:
        start_s, start_cpu_s = self._clock(), self._cpu()
        next_s = start_s + self.interval_s
        while not stop.wait(max(next_s - self._clock(), 0.0)):
            with self._reading:
                if stop.is_set():
                    return
                self._take()
            now = self._clock()
            self._cost = self._cpu() - start_cpu_s, now - start_s
            next_s += self.interval_s * max(1, -(-(now - next_s) // self.interval_s))  # missed rows are skipped

    def _take(self) -> Row:
        self._set_origin()
        values = tuple(v for i, source in enumerate(self.sources) for v in self._read(i, source))
        row = Row(self._now(), values)
        with self._keeping:
            self._rows.append(row)
            self.looks += 1
        return row

    def _read(self, index: int, source: Source) -> Sequence[Value]:
        """Return the values of one source; where it fails, the reason in each of them."""
        try:
            values = [v if isinstance(v, Absent) else float(v) for v in source.read()]
            if len(values) != len(source.columns):
                raise ArgumentError(f"{len(values)} values for {len(source.columns)} columns")
        except Exception as error:  # a sensor must not end the collector
            return [self._failure(index, source, error)] * len(source.columns)
        self._failed.discard(index)
        not_finite = Absent("unsupported", "the sensor returned no finite number", type(source).__name__)
        return [v if isinstance(v, Absent) or isfinite(v) else not_finite for v in values]

    def _failure(self, index: int, source: Source, error: Exception) -> Absent:
        reason = escape.visible(f"{type(error).__name__}: {error}")
        if index not in self._failed:
            self._failed.add(index)
            settings.log.warning("collector: %s cannot be read: %s", type(source).__name__, reason)
        return Absent("unsupported", reason, type(source).__name__)

    def _call_guarded(self, action: Callable[[], None], source: Source) -> None:
        """Start or stop a source; a failure is logged, and the other sources go on."""
        try:
            action()
        except Exception as error:
            self._failure(self.sources.index(source), source, error)


MetricsCollector = Collector  # the guides' name
