"""Memory pressure: bytes used over their limits, a level with its evidence, and callbacks when the level changes.

A limit that cannot be read is left out, never guessed. No thread runs without `every`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from tritium import backends, memory, settings
from tritium.arguments import checked, read_duration
from tritium.errors import ArgumentError, shown
from tritium.machine.facts import bytes_text, installed_memory
from tritium.perf.meters.sensors import CGROUPS, PROC, groups, number, text
from tritium.perf.suites.config import fraction

Level = Literal["low", "medium", "high", "critical"]
LEVELS: tuple[Level, ...] = ("low", "medium", "high", "critical")


@dataclass(frozen=True)
class Thresholds:
    """Shares of a limit at which each level begins."""

    medium: float = 0.60
    high: float = 0.80
    critical: float = 0.95

    def level(self, share: float) -> Level:
        return LEVELS[sum(share >= t for t in (self.medium, self.high, self.critical))]


@dataclass(frozen=True)
class Reading:
    """Bytes used and the limit they may reach."""

    which: str  # "process": resident bytes; "cgroup": of the control group; "machine": of all processes; or a device
    used: int
    limit: int

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 0.0

    def __str__(self) -> str:
        return f"{WORDS.get(self.which, self.which)} {bytes_text(self.used)} of {bytes_text(self.limit)} ({self.share:.0%})"


WORDS = {
    "process": "this process uses",
    "cgroup": "its control group uses",
    "machine": "the machine uses",
}


@dataclass(frozen=True)
class Pressure:
    """The level of the reading that is closest to its limit, and all readings."""

    device: str
    level: Level
    used: int
    limit: int
    which: str
    evidence: str
    readings: tuple[Reading, ...] = ()

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 0.0

    def __str__(self) -> str:
        return f"memory pressure of {self.device} is {self.level}: {self.evidence}"


def thresholds(medium: Any = None, high: Any = None, critical: Any = None) -> Thresholds:
    """Parse thresholds: 0.8, "80%" or 80; None: the default."""
    shipped = Thresholds()
    result = Thresholds(
        *(
            getattr(shipped, name) if value is None else fraction(value, name)
            for name, value in (("medium", medium), ("high", high), ("critical", critical))
        )
    )
    if not result.medium <= result.high <= result.critical:
        raise ArgumentError(
            f"pressure: thresholds must not fall: medium {result.medium:.0%}, high {result.high:.0%}, "
            f"critical {result.critical:.0%}."
        )
    return result


@checked
def pressure(device: Any = "cpu", *, medium: Any = None, high: Any = None, critical: Any = None) -> Pressure:
    """Return how close this process, its control group and the machine, or a device, are to their limits."""
    return measure(device, thresholds(medium, high, critical))


def measure(device: Any, limits: Thresholds) -> Pressure:
    target = backends.device(device)
    own = target.backend.memory()
    measured = (Reading(str(target), *own),) if own is not None else readings()
    if not measured:
        return Pressure(str(target), "low", 0, 0, "", "not measured: this system reports neither use nor limits", ())
    worst = max(measured, key=lambda r: r.share)
    evidence = "; ".join(str(r) for r in sorted(measured, key=lambda r: -r.share))
    if own is None and (idle := memory.stats().pooled_bytes):
        evidence += f"; {bytes_text(idle)} of it are idle in the pool and can be released by memory.trim()"
    return Pressure(str(target), limits.level(worst.share), worst.used, worst.limit, worst.which, evidence, measured)


# ---- readings of the system


def readings(proc: Path = PROC, cgroups: Path = CGROUPS) -> tuple[Reading, ...]:
    """Return readings of the process, its control group and the machine, as far as the system reports them."""
    total, available = installed_memory(proc)
    group = _group(proc, cgroups)
    own = memory.resident_bytes(proc / "self/statm")
    limits = [n for n in (total, group[1] if group else 0) if n]
    result = []
    if own and limits:
        result.append(Reading("process", own, min(limits)))
    if group is not None:
        result.append(Reading("cgroup", *group))
    if total and available is not None:
        result.append(Reading("machine", max(0, total - available), total))
    return tuple(result)


def _group(proc: Path, cgroups: Path) -> tuple[int, int] | None:
    """Return use and limit of the control group that is closest to its limit; None: there is no limit.

    Inactive file pages do not count as used: the kernel reclaims them first.
    """
    candidates = []
    folders, unified = groups("memory", proc, cgroups)
    for folder in folders:
        limit = number(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        used = number(folder / ("memory.current" if unified else "memory.usage_in_bytes"))
        if limit is None or used is None or limit >= 1 << 60:  # version 1 writes a huge number for "none"
            continue
        name = "inactive_file" if unified else "total_inactive_file"
        rows = (line.split() for line in text(folder / "memory.stat").splitlines())
        cached = next((int(r[1]) for r in rows if len(r) == 2 and r[0] == name and r[1].isdigit()), 0)
        candidates.append((max(0, int(used) - cached), int(limit)))
    return max(candidates, key=lambda g: g[0] / g[1] if g[1] else 0.0, default=None)


# ---- callbacks

Callback = Callable[[Pressure, Level], Any]


class Watch:
    """A watch that calls back when the level changes: at `check()`, and periodically with `every_s`."""

    def __init__(self, callback: Callback, device: Any, thresholds: Thresholds, every_s: float | None) -> None:
        self.callback, self.device, self.thresholds = callback, device, thresholds
        self.last = measure(device, thresholds)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if every_s is not None:
            self._thread = threading.Thread(target=self._run, args=(every_s,), name="tritium pressure", daemon=True)
            self._thread.start()

    def check(self) -> Pressure:
        """Return the pressure now; if its level changed, call back with it and the previous level."""
        now = measure(self.device, self.thresholds)
        with self._lock:
            before, self.last = self.last.level, now
        if now.level != before:
            self.callback(now, before)
        return now

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, every_s: float) -> None:
        while not self._stop.wait(every_s):
            try:
                self.check()
            except Exception:
                settings.log.exception("on_pressure: the callback failed; it will be called again at the next change")

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


@checked
def on_pressure(
    callback: Callback, *, device: Any = "cpu", medium: Any = None, high: Any = None, critical: Any = None, every: Any = None
) -> Watch:  # fmt: skip
    """Call `callback(pressure, level_before)` when the level of a device changes.

    Without `every` no thread runs: call `check()`. With every="1s" a thread checks at that interval until `stop()`, or the
    end of the `with` block.
    """
    if not callable(callback):
        raise ArgumentError(f"on_pressure: a function (pressure, level_before) is needed, given {shown(callback)}.")
    limits = thresholds(medium, high, critical)
    return Watch(callback, device, limits, None if every is None else read_duration(every, "every"))
