"""Sources that can be polled: CPU, memory, GPUs, temperature, power.

Each value is a sensor's reading, or `Absent` with the reason.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from typing import Any

from tritium import memory
from tritium.perf.meters import sensors
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.nvidia import NvmlError, opened
from tritium.perf.meters.probe import probe
from tritium.see.monitor.metrics_file import Column, Value

SLOW_S = 1.0  # between two readings of a slow sensor
TICK_S = 0.01  # unit in which Linux and macOS count the CPU time of all processes
WINDOW_S = 10 * TICK_S  # shorter windows are too coarse for a share
FIRST = Absent("window_too_short", "the first reading; a rate needs two")
TOO_SHORT = Absent(
    "window_too_short", f"less than {WINDOW_S:g} s since the start; the system counts in ticks of {TICK_S:g} s"
)


class Source(ABC):
    """Something that can be polled: one value for each of its columns."""

    columns: tuple[Column, ...] = ()

    def start(self) -> None:  # noqa: B027 (a source may have nothing to do there)
        """Prepare for the first reading."""

    @abstractmethod
    def read(self) -> Sequence[Value]:
        """Return the current value of each column."""

    def stop(self) -> None:  # noqa: B027
        """Clean up after the last reading."""


# ---- the processor


class Processor(Source):
    """CPU time: of this process as a share of one CPU, of the machine as a share of all.

    The system counts that of the machine in ticks. So it is a share of at least ten of them; a reading in between repeats
    the last.
    """

    columns = (Column("cpu_process", "%"), Column("cpu_machine", "%"))

    def __init__(
        self, *, cpu: Callable[[], float] = time.process_time, busy: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic, cpus: int | None = None,
    ) -> None:  # fmt: skip
        self.cpu, self.clock = cpu, clock
        self.busy = busy or (_busy_of_macos if sys.platform == "darwin" else sensors.busy_s)
        self.cpus = cpus or os.cpu_count() or 1
        self._before: tuple[float, float] | None = None  # time, CPU seconds of the process
        self._busy_before: tuple[float, float | None] | None = None  # time, CPU seconds of the machine
        self._machine: Value = FIRST

    def start(self) -> None:
        now = self.clock()
        self._before, self._busy_before, self._machine = (now, self.cpu()), (now, self.busy()), TOO_SHORT

    def read(self) -> Sequence[Value]:
        now = self.clock()
        return self._process_share(now), self._machine_share(now)

    def _process_share(self, now: float) -> Value:
        before, self._before = self._before, (now, self.cpu())
        if before is None or now <= before[0]:
            return FIRST
        return 100 * max(self._before[1] - before[1], 0.0) / (now - before[0])

    def _machine_share(self, now: float) -> Value:
        if self._busy_before is not None and now - self._busy_before[0] < WINDOW_S:
            return self._machine
        before, self._busy_before = self._busy_before, (now, self.busy())
        if before is None:
            return FIRST
        if before[1] is None or self._busy_before[1] is None:
            self._machine = Absent(
                "unsupported", "the system does not report the CPU time of all processes", "/proc/stat"
            )
        else:
            share = (self._busy_before[1] - before[1]) / (now - before[0]) / self.cpus
            self._machine = 100 * min(max(share, 0.0), 1.0)  # a tick at either end may belong outside the window
        return self._machine


@cache
def _mach() -> tuple[Any, int]:
    """Return the system library of macOS and the port of this host. Not yet run on a Mac."""
    library = ctypes.CDLL(None)
    return library, int(library.mach_host_self())


def _busy_of_macos() -> float | None:
    """Return the CPU seconds of all processes together: HOST_CPU_LOAD_INFO in ticks of 10 ms."""
    library, host = _mach()
    ticks, size = (ctypes.c_uint * 4)(), ctypes.c_uint(4)
    if library.host_statistics(host, 3, ticks, ctypes.byref(size)):
        return None
    user, system, _, nice = ticks
    return (user + system + nice) / 100


# ---- memory


class Memory(Source):
    """The resident memory of the process, and the live and idle bytes of Tritium's pool."""

    columns = (Column("rss", "B"), Column("pool", "B"), Column("pool_idle", "B"))

    def __init__(self, resident: Callable[[], Value] = sensors.resident) -> None:
        self.resident = resident

    def read(self) -> Sequence[Value]:
        pool = memory.stats()
        return self.resident(), float(pool.current_bytes), float(pool.pooled_bytes)


# ---- heat and power


class Heat(Source):
    """The warmest sensor of the processor. Finding sensors is slow, so it is read at most once a second."""

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
    """Watts of every energy sensor; counters of joules are differenced. No estimate, and no sum."""

    def __init__(
        self, available: Sequence[sensors.Sensor | Absent] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        listed = probe() if available is None else available
        self.columns = tuple(Column(name, "W") for name in _number_duplicates(map(_power_column, listed)))
        self._watts = [s if isinstance(s, Absent) else sensors.Watts(s, clock) for s in listed]

    def read(self) -> Sequence[Value]:
        return [w if isinstance(w, Absent) else w() for w in self._watts]


def _power_column(sensor: sensors.Sensor | Absent) -> str:
    return f"power_{sensor.group or sensor.source}" if isinstance(sensor, Absent) else f"power_{sensor.domain}"


def _number_duplicates(names: Any) -> list[str]:
    """Return the names, duplicates with a number."""
    out: list[str] = []
    for name in names:
        out.append(next(n for i in count(1) if (n := name if i == 1 else f"{name}_{i}") not in out))
    return out


# ---- NVIDIA GPUs

GPU_COLUMNS = (("busy", "%"), ("memory", "B"), ("temperature", "°C"), ("clock", "MHz"))


class Gpus(Source):
    """Utilisation, memory, temperature and clock of every NVIDIA GPU, as reported by its driver."""

    def __init__(self, open_library: Callable[[], Any] = opened) -> None:
        self._nvml = open_library()
        self._why: Absent | None = self._nvml if isinstance(self._nvml, Absent) else None
        gpus = 0
        if self._why is None:
            try:
                gpus = self._nvml.count()
            except NvmlError as error:
                self._why = error.absent()
        if not gpus and self._why is None:
            self._why = Absent("no_device", "the driver lists no GPU", "NVML", "gpu")
        names = [f"gpu-{i}_{name}" for i in range(gpus) for name, _ in GPU_COLUMNS] or ["gpu_busy"]
        units = [unit for _ in range(gpus) for _, unit in GPU_COLUMNS] or ["%"]
        self.columns = tuple(map(Column, names, units))
        queries = ("busy_percent", "memory_bytes", "temperature_c", "clock_mhz")
        self._queries = [partial(getattr(self._nvml, query), gpu) for gpu in range(gpus) for query in queries]

    def read(self) -> Sequence[Value]:
        return [self._why] if self._why is not None else [_call(query) for query in self._queries]


def _call(query: Callable[[], int]) -> Value:
    try:
        return float(query())
    except NvmlError as error:
        return error.absent()


def default_sources() -> list[Source]:
    """Return the sources of a collector that names none."""
    return [Processor(), Memory(), Gpus(), Heat(), Power()]
