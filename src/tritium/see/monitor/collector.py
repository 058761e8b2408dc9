"""A background thread that looks at the machine again and again: CPU, memory, GPU, temperature, power. Bounded, and cheap.

Knows nothing of files or of what runs. Each value is what a sensor said or `Absent` with the reason; a sensor that fails
costs its own columns and no other. What looking costs is measured and told.

    with tt.see.Collector(interval="100ms") as seen:
        work()
    print(seen.metrics().last, seen.cpu_share)
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from math import isfinite
from typing import Any

from tritium import escape, memory, settings
from tritium.errors import ArgumentError
from tritium.perf.meters import sensors
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.nvidia import NvmlError, opened
from tritium.perf.records.context import Context
from tritium.perf.records.json_io import utc_now
from tritium.perf.suites.config import count_from, duration
from tritium.see.monitor.metrics_file import Column, Metrics, Operation, Row, Value

LEAST_S = 0.001  # between two rows
SLOW_S = 1.0  # what is slow to read is read once in so long
END_S = 5.0  # that stopping waits for a sensor that hangs
TICK_S = 0.01  # by which Linux and macOS count the CPU time of all processes
WINDOW_S = 10 * TICK_S  # below which a count of ticks is no share
FIRST = Absent("window_too_short", "the first look; a rate needs two")
TOO_SHORT = Absent(
    "window_too_short", f"less than {WINDOW_S:g} s since the start; the system counts in ticks of {TICK_S:g} s"
)


class Source(ABC):
    """Something that can be looked at again and again: one value for each of its columns."""

    columns: tuple[Column, ...] = ()

    def start(self) -> None:  # noqa: B027 (a source may have nothing to do there)
        """Called before the first look."""

    @abstractmethod
    def read(self) -> Sequence[Value]:
        """What the columns say now."""

    def stop(self) -> None:  # noqa: B027
        """Called after the last look."""


# ---- the processor


class Processor(Source):
    """CPU time: of this process as a share of one CPU, of the machine as a share of all.

    The system counts that of the machine in ticks. So it is a share of at least ten of them; a look in between repeats the last.
    """

    columns = (Column("cpu_process", "%"), Column("cpu_machine", "%"))

    def __init__(
        self, *, cpu: Callable[[], float] = time.process_time, busy: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic, cpus: int | None = None,
    ) -> None:  # fmt: skip
        self.cpu, self.clock = cpu, clock
        self.busy = busy or (_busy_of_macos if sys.platform == "darwin" else sensors.busy_s)
        self.cpus = cpus or os.cpu_count() or 1
        self._before: tuple[float, float] | None = None  # moment, CPU seconds of the process
        self._counted: tuple[float, float | None] | None = None  # moment, CPU seconds of the machine
        self._machine: Value = FIRST

    def start(self) -> None:
        now = self.clock()
        self._before, self._counted, self._machine = (now, self.cpu()), (now, self.busy()), TOO_SHORT

    def read(self) -> Sequence[Value]:
        now = self.clock()
        return self._own(now), self._all(now)

    def _own(self, now: float) -> Value:
        before, self._before = self._before, (now, self.cpu())
        if before is None or now <= before[0]:
            return FIRST
        return 100 * max(self._before[1] - before[1], 0.0) / (now - before[0])

    def _all(self, now: float) -> Value:
        if self._counted is not None and now - self._counted[0] < WINDOW_S:
            return self._machine
        before, self._counted = self._counted, (now, self.busy())
        if before is None:
            return FIRST
        if before[1] is None or self._counted[1] is None:
            self._machine = Absent(
                "unsupported", "the system does not tell the CPU time of all processes", "/proc/stat"
            )
        else:
            share = (self._counted[1] - before[1]) / (now - before[0]) / self.cpus
            self._machine = 100 * min(max(share, 0.0), 1.0)  # a tick at either end may belong to the time beyond it
        return self._machine


@cache
def _mach() -> tuple[Any, int]:
    """macOS: the system library, and the port of this host. Not yet run on a Mac."""
    library = ctypes.CDLL(None)
    return library, int(library.mach_host_self())


def _busy_of_macos() -> float | None:
    """CPU seconds all processes together have used: HOST_CPU_LOAD_INFO in ticks of 10 ms."""
    library, host = _mach()
    ticks, size = (ctypes.c_uint * 4)(), ctypes.c_uint(4)
    if library.host_statistics(host, 3, ticks, ctypes.byref(size)):
        return None
    user, system, _, nice = ticks
    return (user + system + nice) / 100


# ---- memory


class Memory(Source):
    """What the process holds, and what of it Tritium's pool has alive and idle."""

    columns = (Column("rss", "B"), Column("pool", "B"), Column("pool_idle", "B"))

    def __init__(self, resident: Callable[[], Value] = sensors.resident) -> None:
        self.resident = resident

    def read(self) -> Sequence[Value]:
        pool = memory.stats()
        return self.resident(), float(pool.current_bytes), float(pool.pooled_bytes)


# ---- heat and power


class Heat(Source):
    """The warmest sensor of the processor. Looking for sensors is slow, so it is done once in a while."""

    columns = (Column("temperature", "°C"),)

    def __init__(
        self, read: Callable[[], Value] = sensors.temperature, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._read, self.clock = read, clock
        self._last: tuple[float, Value] | None = None

    def read(self) -> Sequence[Value]:
        now = self.clock()
        if self._last is None or now - self._last[0] >= SLOW_S:
            self._last = now, self._read()
        return (self._last[1],)


class Power(Source):
    """Watts of every sensor of energy there is; counters of joules are differenced. No estimate, and no sum."""

    def __init__(
        self, found: Sequence[sensors.Sensor | Absent] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        listed = sensors.probe() if found is None else found
        self.columns = tuple(Column(name, "W") for name in _distinct(map(_of_power, listed)))
        self._watts = [s if isinstance(s, Absent) else sensors.Watts(s, clock) for s in listed]

    def read(self) -> Sequence[Value]:
        return [w if isinstance(w, Absent) else w() for w in self._watts]


def _of_power(sensor: sensors.Sensor | Absent) -> str:
    return f"power_{sensor.group or sensor.source}" if isinstance(sensor, Absent) else f"power_{sensor.domain}"


def _distinct(wanted: Any) -> list[str]:
    """Names, the second of a kind with a number."""
    out: list[str] = []
    for name in wanted:
        out.append(next(n for i in count(1) if (n := name if i == 1 else f"{name}_{i}") not in out))
    return out


# ---- NVIDIA GPUs

GPU_COLUMNS = (("busy", "%"), ("memory", "B"), ("temperature", "°C"), ("clock", "MHz"))


class Gpus(Source):
    """How busy, full, warm and fast every NVIDIA GPU is, as its driver tells."""

    def __init__(self, open_library: Callable[[], Any] = opened) -> None:
        self._nvml = open_library()
        self._why: Absent | None = self._nvml if isinstance(self._nvml, Absent) else None
        number = 0
        if self._why is None:
            try:
                number = self._nvml.count()
            except NvmlError as error:
                self._why = error.absent()
        if not number and self._why is None:
            self._why = Absent("no_device", "the driver lists no GPU", "NVML", "gpu")
        named = [f"gpu-{i}_{name}" for i in range(number) for name, _ in GPU_COLUMNS] or ["gpu_busy"]
        units = [unit for _ in range(number) for _, unit in GPU_COLUMNS] or ["%"]
        self.columns = tuple(map(Column, named, units))
        asks = ("busy_percent", "memory_bytes", "temperature_c", "clock_mhz")
        self._asks = [partial(getattr(self._nvml, ask), gpu) for gpu in range(number) for ask in asks]

    def read(self) -> Sequence[Value]:
        return [self._why] if self._why is not None else [_asked(ask) for ask in self._asks]


def _asked(ask: Callable[[], int]) -> Value:
    try:
        return float(ask())
    except NvmlError as error:
        return error.absent()


def usual() -> list[Source]:
    """What is looked at where nobody says otherwise."""
    return [Processor(), Memory(), Gpus(), Heat(), Power()]


# ---- the collector


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
        self.interval_s = duration(interval, "interval")
        if self.interval_s < LEAST_S:
            raise ArgumentError(f"interval: at least {LEAST_S:g} s are needed between two rows, given {interval!r}.")
        self.history = count_from(1)(history, "history")
        self.sources = usual() if sources is None else list(sources)
        if operations:
            from tritium.see.monitor.counters import Operations

            self.sources.append(Operations())
        self.columns = tuple(c for s in self.sources for c in s.columns)
        Metrics(self.columns)  # two columns of one name are refused here, not in the thread
        self.looks = 0  # rows taken so far, those forgotten too
        self._clock, self._cpu = clock, cpu
        self._rows: deque[Row] = deque(maxlen=self.history)
        self._operations: deque[Operation] = deque(maxlen=self.history)
        self._told = 0
        self._turning, self._reading, self._keeping = threading.RLock(), threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._origin: float | None = None
        self._began = ""
        self._failed: set[int] = set()  # sources whose failure was logged
        self._cost: tuple[float, float] | None = None  # CPU seconds of the thread, and how long it has run

    # what a person calls

    def start(self) -> Collector:
        """Begin, or go on after a stop. A collector that runs goes on as it is."""
        with self._turning:
            if not self.running:
                self._set_off()
                for source in self.sources:
                    self._quietly(source.start, source)
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._ended,), daemon=True, name="tritium collector"
                )
                self._thread.start()
        return self

    def stop(self) -> Collector:
        """Take a last row and end the thread; the rows stay."""
        with self._turning:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._ended.set()
                thread.join(END_S)
                if not thread.is_alive():  # a sensor that hangs would hang us too
                    self.flush()
                for source in self.sources:
                    self._quietly(source.stop, source)
        return self

    def flush(self) -> Row:
        """Take a row now: what happened until now is in it."""
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
        """What looking costs: the share of one CPU the thread has used; None before its first look."""
        cost = self._cost
        return None if cost is None or cost[1] <= 0 else cost[0] / cost[1]

    def collect_operation_metrics(
        self,
        operation: str,
        device: str = "cpu",
        elapsed_s: float = 0.0,
        shapes: Sequence[Sequence[int]] = (),
        context: Context | None = None,
    ) -> Operation:
        """Keep one operation of the caller's own with the rows: how long it took, on what."""
        if not isfinite(elapsed_s) or elapsed_s < 0:
            raise ArgumentError(f"{operation}: elapsed_s is seconds, 0 or more, given {elapsed_s!r}.")
        sizes = tuple(tuple(int(n) for n in shape) for shape in shapes)
        about = context or Context(operation, sizes[0] if sizes else (), device=str(device))
        made = Operation(self._now(), float(elapsed_s), about, sizes)
        with self._keeping:
            self._operations.append(made)
            self._told += 1
        return made

    def metrics(self) -> Metrics:
        """Everything kept, as a table that can be written and read back."""
        with self._keeping:
            rows, operations = tuple(self._rows), tuple(self._operations)
            forgotten = ((self.looks - len(rows), "rows"), (self._told - len(operations), "operations"))
        notes = [f"the oldest {n} {what} were forgotten" for n, what in forgotten if n]
        share = self.cpu_share
        if share is not None:
            notes.append(f"collecting took {100 * share:.2g} % of one CPU")
        return Metrics(self.columns, rows, self._began, self.interval_s, operations, tuple(notes))

    def export_metrics(self, to: str = "json") -> str:
        """The table as text: json, csv or prometheus."""
        return self.metrics().text(to)

    start_collection, stop_collection = start, stop

    # what the thread does

    def _set_off(self) -> None:
        if self._origin is None:
            self._origin = self._clock()
            self._began = utc_now("milliseconds")

    def _now(self) -> float:
        return 0.0 if self._origin is None else self._clock() - self._origin

    def _run(self, ended: threading.Event) -> None:
        began, used = self._clock(), self._cpu()
        due = began + self.interval_s
        while not ended.wait(max(due - self._clock(), 0.0)):
            with self._reading:
                if ended.is_set():
                    return
                self._take()
            now = self._clock()
            self._cost = self._cpu() - used, now - began
            due += self.interval_s * max(1, -(-(now - due) // self.interval_s))  # moments that were missed stay so

    def _take(self) -> Row:
        self._set_off()
        values = tuple(v for i, source in enumerate(self.sources) for v in self._look(i, source))
        row = Row(self._now(), values)
        with self._keeping:
            self._rows.append(row)
            self.looks += 1
        return row

    def _look(self, index: int, source: Source) -> Sequence[Value]:
        """The values of one source; where it fails, the reason in each of them."""
        try:
            found = [v if isinstance(v, Absent) else float(v) for v in source.read()]
            if len(found) != len(source.columns):
                raise ArgumentError(f"{len(found)} values for {len(source.columns)} columns")
        except Exception as error:  # a sensor must not end the collector
            return [self._failure(index, source, error)] * len(source.columns)
        self._failed.discard(index)
        wrong = Absent("unsupported", "the sensor gave no finite number", type(source).__name__)
        return [v if isinstance(v, Absent) or isfinite(v) else wrong for v in found]

    def _failure(self, index: int, source: Source, error: Exception) -> Absent:
        says = escape.visible(f"{type(error).__name__}: {error}")
        if index not in self._failed:
            self._failed.add(index)
            settings.log.warning("collector: %s cannot be read: %s", type(source).__name__, says)
        return Absent("unsupported", says, type(source).__name__)

    def _quietly(self, act: Callable[[], None], source: Source) -> None:
        """Start or stop a source; one that cannot is told of, and the others go on."""
        try:
            act()
        except Exception as error:
            self._failure(self.sources.index(source), source, error)


MetricsCollector = Collector  # as the guides call it
