"""Meters: what happened between two moments, in the units of the plan, or why nobody knows.

Loads what it needs when it is asked: a worker that only times imports little. A value is per call. Nothing is invented:
what cannot be measured is `Absent`, with one of nine reasons and a sentence.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tritium.errors import ArgumentError
from tritium.memory import resident_bytes, usage
from tritium.perf.meters.absent import Absent
from tritium.perf.words import nearest

if TYPE_CHECKING:
    from tritium.perf.meters.energy import Energy, Watch
    from tritium.perf.meters.sensors import Sensor

__all__ = ["METERS", "Absent", "Difference", "EnergyMeter", "Level", "Meter", "memory", "meters"]


@runtime_checkable
class Meter(Protocol):
    """Started before a batch of calls, stopped after it."""

    metric: str
    unit: str
    source: str
    exact: bool  # the same work gives the same value

    def start(self) -> None: ...
    def stop(self, calls: int) -> float | Absent: ...


@dataclass
class Difference:
    """Meter of a growing number: its increase per call."""

    metric: str
    unit: str
    source: str
    read: Callable[[], float | Absent]
    exact: bool = False
    before: float | Absent = 0.0

    def start(self) -> None:
        self.before = self.read()

    def stop(self, calls: int) -> float | Absent:
        after = self.read()
        if isinstance(self.before, Absent):
            return self.before
        return after if isinstance(after, Absent) else (after - self.before) / calls


@dataclass
class Level:
    """A number as it stands at the end, however many calls there were."""

    metric: str
    unit: str
    source: str
    read: Callable[[], float | Absent]
    exact: bool = False

    def start(self) -> None:
        pass

    def stop(self, calls: int) -> float | Absent:
        return self.read()


def _counter(name: str) -> Meter:
    from tritium.perf.meters import counters

    return counters.Counter(name)


def _temperature() -> Meter:
    from tritium.perf.meters import sensors

    return Level("temperature", "°C", "warmest of hwmon and thermal zones", sensors.temperature)


METERS: dict[str, Callable[[], Meter]] = {
    "wall": lambda: Difference("wall", "s", "perf_counter", time.perf_counter),
    "cpu": lambda: Difference("cpu", "s", "process_time, all threads", time.process_time),
    "instructions": lambda: _counter("instructions"),
    "cycles": lambda: _counter("cycles"),
    "temperature": _temperature,
}


def meters(names: Sequence[str]) -> list[Meter]:
    """A meter for each name. Energy needs windows of its own (EnergyMeter), memory a call of its own (memory)."""
    for name in names:
        if name not in METERS:
            raise ArgumentError(f"there is no meter {name!r}.{nearest(name, METERS)} There are {', '.join(METERS)}.")
    return [METERS[name]() for name in names]


# ---- memory


def memory(call: Callable[[], Any]) -> dict[str, float | Absent]:
    """Return the memory of one call: peak and remainder of Tritium's pool above the start, and growth of the resident peak."""
    resident, cleared = resident_bytes(), _clear_peak()
    peak_before = _peak() if cleared else _largest()
    with usage() as pool:
        result = call()
    grown = _growth(resident, peak_before, cleared)
    del result
    return {"peak_bytes": pool.peak_above_start, "allocated_bytes": pool.net_bytes, "rss_bytes": grown}


def _growth(resident: int | None, peak_before: int | None, cleared: bool) -> float | Absent:
    """Return how far the resident memory rose above its level before the call."""
    if cleared and resident is not None:
        after = _peak()
        if after is not None:
            return max(0, after - resident)
    after = _largest()
    if peak_before is not None and after > peak_before:
        return after - peak_before  # at least this much: what lay below the earlier peak does not show
    return Absent("unsupported", "the resident peak cannot be reset here, and the call stayed below an earlier one")


def _peak(status: Path = Path("/proc/self/status")) -> int | None:
    """The most bytes that were resident since the peak was last reset."""
    try:
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _clear_peak(file: Path = Path("/proc/self/clear_refs")) -> bool:
    """Set the resident peak to what is resident now; False where the system does not let us."""
    try:
        file.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _largest() -> int:
    """The most this process ever had resident."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---- energy

_IDLE: dict[tuple[str, ...], dict[str, float]] = {}  # watts of each domain of this machine, measured once in a process


class EnergyMeter:
    """Repeats a call until the energy counters can be believed, and tells joules a call with their provenance."""

    metric, unit, exact = "energy", "J", False

    def __init__(
        self, *, device: str = "cpu", monitoring_interval_s: float = 0.02, power_measurement_duration_s: float = 1.0,
        idle_s: float = 1.0, thermal_monitoring: bool = True, allow_estimates: bool = False, tdp_w: float | None = None,
        intel_cpu: bool = True, apple_silicon: bool = True, nvidia_gpu: bool = True, battery_monitoring: bool = True,
        sensors: Sequence[Sensor | Absent] | None = None,
        background: bool = True, clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep, busy: Callable[[], float | None] | None = None,
    ) -> None:  # fmt: skip
        from tritium.perf.meters.probe import probe
        from tritium.perf.meters.sensors import busy_s

        self.group = "cpu" if device.partition(":")[0] == "cpu" else "gpu"
        if sensors is None:
            sensors = probe(
                intel_cpu=intel_cpu, apple_silicon=apple_silicon, nvidia_gpu=nvidia_gpu, battery_monitoring=battery_monitoring
            )  # fmt: skip
            self.kept = _IDLE
        else:
            self.kept = {}
        self.sensors = list(sensors)
        self.interval_s, self.least_s, self.idle_s = monitoring_interval_s, power_measurement_duration_s, idle_s
        self.heat, self.background = thermal_monitoring, background
        self.allow_estimates, self.tdp_w = allow_estimates, tdp_w
        self.clock, self.sleep, self.busy = clock, sleep, busy or busy_s

    def window(
        self, call: Callable[[], Any], wait: Callable[[Any], Any] | None = None, least_s: float = 0.0,
        most_s: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Joules of a call: `value` (None where not measured), kind, reason, source, and the provenance in `details`."""
        from tritium.perf.meters.energy import LEAST_S, LEAST_UPDATES

        useful = any(s.group == self.group for s in self.working())
        if not useful and not self.allow_estimates:
            return self.record([])
        idle = self.idle()
        least_s = max(LEAST_S, self.least_s, least_s)
        most_s = least_s + max(4.0, least_s) if most_s is None else most_s
        _calls(call, wait, 1)  # the clock of the processor rises before the window, not in it
        watch = self.watch().begin()
        done, together, sampled = 0, 1, watch.seconds
        while (now := watch.seconds) < least_s or (
            useful and now < most_s and watch.updates(self.group) < LEAST_UPDATES
        ):
            _calls(call, wait, together)
            done += together
            after = watch.seconds
            together *= 2 if after - now < 0.001 else 1  # looking at the clock must cost nothing beside the calls
            if not self.background and after - sampled >= self.interval_s:
                watch.sample()
                sampled = after
        return self.record(watch.finish(done, least_s=least_s, idle_w=idle), watch, done)

    def working(self) -> list[Sensor]:
        return [s for s in self.sensors if not isinstance(s, Absent)]

    def watch(self) -> Watch:
        """The sensors over a stretch of time of the caller's own."""
        from tritium.perf.meters.energy import Watch

        return Watch(
            self.working(), interval_s=self.interval_s, background=self.background, heat=self.heat, clock=self.clock,
            busy=self.busy,
        )  # fmt: skip

    def idle(self) -> Mapping[str, float]:
        """Watts of each domain while this process does nothing; none of those that cannot be told. Measured once."""
        from tritium.perf.meters.energy import LEAST_UPDATES

        key = tuple(s.domain for s in self.working())
        if key not in self.kept and self.idle_s > 0 and key:
            watch = self.watch().begin()
            while (now := watch.seconds) < self.idle_s or (
                now < 5 * self.idle_s and watch.updates(self.group) < LEAST_UPDATES
            ):
                self.sleep(self.interval_s)
                if not self.background:
                    watch.sample()
            energies = watch.finish(0, least_s=self.idle_s)
            self.kept[key] = {e.domain: e.watts for e in energies if e.watts is not None}
        return self.kept.get(key, {})

    def record(self, energies: Sequence[Energy], watch: Watch | None = None, calls: int = 0) -> dict[str, Any]:
        """The domains of the device as one record, all domains beside it."""
        from tritium.perf.meters import energy

        absent = [s for s in self.sensors if isinstance(s, Absent)]
        mine = {s.domain for s in self.working() if s.group == self.group and not s.part_of}
        lacking = [energy.missing(s) for s in absent if s.group == self.group]
        parts = [*(e for e in energies if e.domain in mine), *(e for e in lacking if e.reason != "no_device")]
        main = energy.total(parts or lacking)  # a device that is not there takes no energy
        if main.joules is None and watch is not None and self.allow_estimates and self.group == "cpu":
            main = energy.estimate(watch, os.cpu_count() or 1, self.tdp_w, calls, main)
        domains = [energy.record(e) for e in [*energies, *map(energy.missing, absent)]]
        return {
            "metric": self.metric, "unit": self.unit, "value": main.per_call_j, "kind": main.kind,
            "reason": f"{main.reason}: {main.says}" if main.reason else "", "source": main.source,
            "details": energy.record(main) | {"domains": domains} | self._hours(energies),
        }  # fmt: skip

    def _hours(self, energies: Sequence[Energy]) -> dict[str, Any]:
        """Return how long the battery would last at the draw of the whole machine in this window; nothing without a battery."""
        from tritium.perf.meters.energy import battery_hours

        full = [s.capacity_wh for s in self.working() if s.capacity_wh is not None]
        draws = [e for e in energies if e.scope == "machine"]
        if not full or not draws:
            return {}
        hours = battery_hours(sum(full), next((e for e in draws if e.watts is not None), draws[0]))
        if isinstance(hours, Absent):
            return {"battery_hours": None, "battery_says": hours.reason}
        return {"battery_hours": hours}


def _calls(call: Callable[[], Any], wait: Callable[[Any], Any] | None, times: int) -> None:
    if wait is None:
        for _ in repeat(None, times):
            call()
    else:
        for _ in repeat(None, times):
            wait(call())
