"""What can be looked at again and again: CPU, memory, GPUs, temperature, power.

Knows nothing of threads, files or of what runs. Each value is what a sensor said or `Absent` with the reason.
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

SLOW_S = 1.0  # what is slow to read is read once in so long
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
        listed = probe() if found is None else found
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
