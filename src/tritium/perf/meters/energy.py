"""The arithmetic of energy: readings of sensors in, joules with their provenance out, or the reason there are none.

Knows nothing of files, drivers or benchmarks: sensors are given, and so is the clock. A total is told only when every
part of it was measured; unknown is never 0; what idling costs is a second number beside the first, never taken off it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from tritium.perf.meters.absent import Absent
from tritium.perf.meters.sensors import IMPLAUSIBLE, Sensor, Thermal, busy_s, thermal

LEAST_S = 1.0  # of a window in which a counter is believed
LEAST_UPDATES = 10  # of the counter in it
SHARED = 0.2  # of the busy time of the processor; where others had more, the joules are not ours
QUIET = 0.05  # CPU seconds of others in a second: so little is always there
SLOWED = 0.9  # of its clock at the start: below, the processor was slowed down


@dataclass(frozen=True)
class Energy:
    """Joules of one domain over one window, and where they come from."""

    joules: float | None
    source: str
    domain: str
    scope: str  # "package", "device", "module", "machine", "process"
    kind: Literal["measured", "estimate", "not measured"] = "measured"
    reason: str = ""  # one of absent.REASONS, of "not measured"
    says: str = ""  # the reason in words
    seconds: float | None = None  # None: nobody watched
    calls: int | None = None
    resolution_j: float | None = None  # the smallest step seen
    update_period_s: float | None = None  # between two steps, the median
    n_updates: int | None = None
    idle_baseline_w: float | None = None
    temperature_before_c: float | None = None
    temperature_after_c: float | None = None
    throttled: bool | None = None  # None: nothing here tells
    throttling: str = ""  # what told

    @property
    def watts(self) -> float | None:
        return None if self.joules is None or not self.seconds else self.joules / self.seconds

    @property
    def per_call_j(self) -> float | None:
        return None if self.joules is None or not self.calls else self.joules / self.calls

    @property
    def calls_per_j(self) -> float | None:
        return None if not self.joules or not self.calls else self.calls / self.joules

    @property
    def above_idle_j(self) -> float | None:
        """The second number: joules beyond what idling for as long would have taken."""
        if self.joules is None or self.idle_baseline_w is None:
            return None
        return self.joules - self.idle_baseline_w * (self.seconds or 0.0)

    @property
    def doubt_j(self) -> float | None:
        """An update may be missed at either end: so many joules more or less."""
        if self.watts is None or self.update_period_s is None or self.resolution_j is None:
            return None
        return max(self.watts * self.update_period_s, self.resolution_j)

    @property
    def calls_per_degree(self) -> float | None:
        """Calls for each °C it got warmer; None where it did not, or nobody knows."""
        if self.temperature_before_c is None or self.temperature_after_c is None:
            return None
        risen = self.temperature_after_c - self.temperature_before_c
        return self.calls / risen if risen > 0 and self.calls else None

    def __str__(self) -> str:
        if self.joules is None:
            return f"not measured: {self.reason}: {self.says}"
        doubt = f" ± {self.doubt_j:.2g}" if self.doubt_j is not None else ""
        word = " (estimate)" if self.kind == "estimate" else ""
        return f"{self.joules:.4g}{doubt} J{word}  {self.domain}, {self.source}"


def missing(absent: Absent, domain: str = "", scope: str = "") -> Energy:
    return Energy(None, absent.source, domain or absent.group, scope, "not measured", absent.code, absent.says)


# ---- readings


Points = Sequence[tuple[float, float]]  # when, and what


@dataclass(frozen=True)
class Reading:
    """A reading of a sensor, and its time."""

    at_s: float
    value: float | Absent


def spent(
    sensor: Sensor, readings: Sequence[Reading], *, least_s: float = LEAST_S, least_updates: int = LEAST_UPDATES
) -> Energy:
    """The joules of one sensor over its readings, by the rules: long enough, often enough, neither stuck nor reset."""
    bare = Energy(None, sensor.source, sensor.domain, sensor.scope, "not measured")

    def absent(code: str, says: str, **known: Any) -> Energy:
        return replace(bare, reason=code, says=says, **known)

    for reading in readings:
        if isinstance(reading.value, Absent):
            return absent(reading.value.code, reading.value.says)
    if len(readings) < 2:
        return absent("window_too_short", "it was read less than twice")
    points = [(r.at_s, r.value) for r in readings if not isinstance(r.value, Absent)]
    seconds = points[-1][0] - points[0][0]
    steps = _steps_of_counter(sensor, points) if sensor.unit == "J" else _steps_of_gauge(points)
    if isinstance(steps, Absent):
        return absent(steps.code, steps.says, seconds=seconds)
    moved = [moment for (_, before), (moment, now) in pairwise(points) if now != before]
    period = median(b - a for a, b in pairwise(moved)) if len(moved) > 1 else None
    known: dict[str, Any] = {"seconds": seconds, "n_updates": len(moved), "update_period_s": period}
    if moved:
        known["resolution_j"] = _smallest_step(sensor, points, steps, period or seconds)
    if seconds < least_s:
        return absent("window_too_short", f"{seconds:.2g} s were watched; {least_s:g} s are needed", **known)
    if not moved:
        return absent("counter_stuck", f"{sensor.domain} did not move in {seconds:.2g} s under load", **known)
    if len(moved) < least_updates:
        says = f"{sensor.domain} moved {len(moved)} times in {seconds:.2g} s; {least_updates} are needed: watch longer"
        return absent("window_too_short", says, **known)
    return replace(bare, joules=sum(steps), kind="measured", **known)


def _steps_of_counter(sensor: Sensor, points: Points) -> list[float] | Absent:
    """The joules between readings. A counter that ran over began again at 0; one that was reset did so too early."""
    raw = [(b_at - a_at, b - a) for (a_at, a), (b_at, b) in pairwise(points)]
    rises = [(dt, step) for dt, step in raw if step > 0]
    largest, mean_w = (
        max((step for _, step in rises), default=0.0),
        sum(s for _, s in rises) / (sum(t for t, _ in raw) or 1),
    )
    out = []
    for dt, step in raw:
        if step >= 0:
            out.append(step)
            continue
        if sensor.range_j is None:
            return Absent("counter_reset", f"{sensor.domain} fell, and it has no range to run over")
        over = step + sensor.range_j
        most = IMPLAUSIBLE * max(largest, mean_w * dt) if rises else sensor.range_j / 2
        if not 0 <= over <= most:
            return Absent("counter_reset", f"{sensor.domain} fell far from the end of its range: it began anew")
        out.append(over)
    return out


def _steps_of_gauge(points: Points) -> list[float]:
    return [(b_at - a_at) * (a + b) / 2 for (a_at, a), (b_at, b) in pairwise(points)]


def _smallest_step(sensor: Sensor, points: Points, steps: Sequence[float], period: float) -> float:
    """Of a counter; of a gauge, its smallest change held for one update."""
    if sensor.unit == "J":
        return min(s for s in steps if s)
    return min(abs(b - a) for (_, a), (_, b) in pairwise(points) if a != b) * period


def total(parts: Sequence[Energy]) -> Energy:
    """The sum of domains that do not contain each other; no joules unless all were measured."""
    if not parts:
        return missing(Absent("no_device", "no sensor of this device is known here"))
    gaps = [p for p in parts if p.joules is None]
    first = gaps[0] if gaps else parts[0]
    if len(parts) == 1:
        return first
    together = replace(
        first,
        domain=" + ".join(p.domain for p in parts if p.domain),
        source=", ".join(dict.fromkeys(p.source for p in parts if p.source)),
        n_updates=None if gaps else min(p.n_updates or 0 for p in parts),
        resolution_j=_largest([p.resolution_j for p in parts]),
        update_period_s=_largest([p.update_period_s for p in parts]),
    )
    if gaps:
        says = f"{first.domain or first.source}: {first.says}" + (
            "; the rest alone would be too little" if len(gaps) < len(parts) else ""
        )
        return replace(together, joules=None, kind="not measured", says=says, idle_baseline_w=None)
    idle = [p.idle_baseline_w for p in parts]
    return replace(
        together,
        joules=sum(p.joules or 0.0 for p in parts),
        idle_baseline_w=None if None in idle else sum(w or 0.0 for w in idle),
    )


def _largest(values: Sequence[float | None]) -> float | None:
    """Of all or of nothing: one unknown makes the whole unknown."""
    known = [v for v in values if v is not None]
    return max(known) if known and len(known) == len(values) else None


# ---- what else was going on


def throttled(before: Thermal, after: Thermal) -> tuple[bool | None, str]:
    """Return whether the machine throttled between two states, and the evidence; None where nothing shows it."""
    reasons: list[str] = []
    known = False
    if before.throttle_events is not None and after.throttle_events is not None:
        known = True
        if (more := after.throttle_events - before.throttle_events) > 0:
            reasons.append(f"{more} thermal throttle event{'s' * (more > 1)}")
    if before.frequency_mhz and after.frequency_mhz:
        known = True
        if after.frequency_mhz < SLOWED * before.frequency_mhz:
            reasons.append(f"the clock fell from {before.frequency_mhz:.0f} to {after.frequency_mhz:.0f} MHz")
    if after.slowed is not None:
        known = True
        reasons += dict.fromkeys((*(before.slowed or ()), *after.slowed))
    return (bool(reasons), "; ".join(reasons)) if known else (None, "")


def battery_hours(capacity_wh: float | None, draw: Energy) -> float | Absent:
    """Return how long a full battery lasts at a measured draw of the whole machine."""
    if draw.watts is None:
        return Absent(draw.reason or "unsupported", draw.says or "the draw is not known", draw.source)
    if draw.kind != "measured" or draw.scope != "machine":
        return Absent(
            "unsupported", f"hours need the measured draw of the whole machine; this is {draw.domain}", draw.source
        )
    if capacity_wh is None:
        return Absent("unsupported", "the battery does not tell how much it holds", draw.source)
    return capacity_wh / draw.watts


def estimate(watch: Watch, cpus: int, tdp_w: float | None, calls: int, instead_of: Energy) -> Energy:
    """CPU seconds times the watts the user says the processor is built for. Not a measurement, and named so."""
    source = "estimate: CPU seconds x TDP / CPUs"
    if tdp_w is None:
        text = f"{instead_of.says}; an estimate needs the processor's watts: give --tdp"
        return replace(instead_of, says=text, joules=None, kind="not measured", calls=calls)
    says = f"{watch.cpu_s:.3g} CPU s of {cpus} CPUs at the {tdp_w:g} W given; not measured: {instead_of.says}"
    return replace(
        instead_of, joules=watch.cpu_s * tdp_w / cpus, source=source, domain="processor", scope="process",
        kind="estimate", says=says, seconds=watch.spent_s, calls=calls, resolution_j=None, update_period_s=None,
        n_updates=None, idle_baseline_w=None,
    )  # fmt: skip


def record(energy: Energy) -> dict[str, Any]:
    """Plain values: the fields and the figures made of them."""
    figures = ("watts", "per_call_j", "calls_per_j", "above_idle_j", "doubt_j", "calls_per_degree")
    return asdict(energy) | {name: getattr(energy, name) for name in figures}


# ---- a stretch of time


class Watch:
    """Reads sensors from `begin` to `finish`; a thread reads on while a long call runs."""

    def __init__(
        self, sensors: Sequence[Sensor], *, interval_s: float = 0.02, background: bool = True, heat: bool = True,
        clock: Callable[[], float] = time.perf_counter, busy: Callable[[], float | None] = busy_s,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:  # fmt: skip
        self.sensors, self.interval_s, self.heat = list(sensors), interval_s, heat
        self.clock, self.busy, self.cpu = clock, busy, cpu
        self.readings: list[list[Reading]] = [[] for _ in self.sensors]
        self.moves = [0] * len(self.sensors)
        self.cpu_s = self.spent_s = 0.0  # of this process, and of the clock; known when finished
        self.others_s: float | None = None  # CPU seconds of other processes
        self._background = background and bool(self.sensors)
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._before: list[Thermal] = []
        self._start: tuple[float, float, float | None] = (0.0, 0.0, None)  # clock, CPU of this process, CPU of all

    def begin(self) -> Watch:
        self._before = self._heat()
        self._start = (self.clock(), self.cpu(), self.busy())
        self.sample()
        if self._background:
            self._thread = threading.Thread(target=self._go_on, daemon=True, name="energy")
            self._thread.start()
        return self

    def _heat(self) -> list[Thermal]:
        """The state of each sensor's device; that of the processor is read once."""
        if not self.heat:
            return [Thermal()] * len(self.sensors)
        processor = thermal() if any(s.state is None for s in self.sensors) else Thermal()
        return [processor if s.state is None else s.state() for s in self.sensors]

    def _go_on(self) -> None:
        while not self._ended.wait(self.interval_s):
            self.sample()

    def sample(self) -> None:
        """Read every sensor once."""
        with self._lock:
            for i, (sensor, readings) in enumerate(zip(self.sensors, self.readings, strict=True)):
                value = sensor.read()
                self.moves[i] += bool(readings) and readings[-1].value != value
                readings.append(Reading(self.clock(), value))

    @property
    def seconds(self) -> float:
        return self.clock() - self._start[0]

    def updates(self, group: str) -> int:
        """Return how often the slowest whole domain of a group has changed so far."""
        moves = zip(self.moves, self.sensors, strict=True)
        return min((n for n, s in moves if s.group == group and not s.part_of), default=0)

    def finish(
        self, calls: int, *, least_s: float = LEAST_S, least_updates: int = LEAST_UPDATES,
        idle_w: Mapping[str, float] | None = None,
    ) -> list[Energy]:  # fmt: skip
        """Return the energy each sensor measured, with the thermal state."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.sample()
        begun, cpu, busy = self._start
        self.spent_s, self.cpu_s = self.clock() - begun, self.cpu() - cpu
        now = self.busy()
        self.others_s = None if now is None or busy is None else max(0.0, now - busy - self.cpu_s)
        energies = []
        for sensor, readings, before, after in zip(
            self.sensors, self.readings, self._before, self._heat(), strict=True
        ):
            one = spent(sensor, readings, least_s=least_s, least_updates=least_updates)
            slow, why = throttled(before, after)
            energies.append(
                replace(
                    self._ours(sensor, one), calls=calls, throttled=slow, throttling=why,
                    idle_baseline_w=(idle_w or {}).get(sensor.domain),
                    temperature_before_c=before.temperature_c, temperature_after_c=after.temperature_c,
                )
            )  # fmt: skip
        return energies

    def _ours(self, sensor: Sensor, energy: Energy) -> Energy:
        """The joules, unless others used the device meanwhile: then they are nobody's in particular."""
        who = sensor.others() if sensor.others is not None else ""
        if not who and sensor.group == "cpu" and self.others_s is not None:
            share = self.others_s / (self.others_s + self.cpu_s) if self.others_s else 0.0
            if share > SHARED and self.others_s > QUIET * self.spent_s:
                who = f"other processes had {share:.0%} of the busy time of the processor"
        if not who or energy.joules is None:
            return energy
        return replace(energy, joules=None, kind="not measured", reason="shared_device", says=who)
