"""Sensors, and those Linux has for every processor: energy counters, temperatures, clocks.

A sensor reads one number; two readings give watts; nothing here adds up. `probe` lists all sensors of a machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tritium.perf.meters.absent import Absent

SYS, PROC, CGROUPS = Path("/sys"), Path("/proc"), Path("/sys/fs/cgroup")
X86 = ("GenuineIntel", "AuthenticAMD", "HygonGenuine")
IMPLAUSIBLE = 10.0  # times the largest step seen beside it: then the counter began anew, it did not run over
STUCK_S = 10.0  # a counter that did not move for so long is stuck


@dataclass(frozen=True)
class Thermal:
    """Temperature, clock and throttling; None: no sensor here."""

    temperature_c: float | None = None
    throttle_events: int | None = None
    frequency_mhz: float | None = None
    slowed: tuple[str, ...] | None = None  # what a driver says of this moment


@dataclass(frozen=True)
class Sensor:
    """One number of the machine that tells energy: a counter of joules, or a gauge of watts."""

    source: str
    domain: str
    scope: Literal["package", "device", "module", "machine"]
    group: Literal["cpu", "gpu", "machine"]
    read: Callable[[], float | Absent]
    unit: Literal["J", "W"] = "J"
    range_j: float | None = None  # where a counter begins again at 0
    part_of: str = ""  # the domain that holds this one: never added to it
    others: Callable[[], str] | None = None  # who else uses the device now; "" where nobody
    state: Callable[[], Thermal] | None = None  # of the device; None: the processor's
    capacity_wh: float | None = None  # of a battery


class Watts:
    """Watts of a sensor at each call: its own figure, or what its counter of joules gained since it last moved."""

    def __init__(self, sensor: Sensor, clock: Callable[[], float] = time.monotonic) -> None:
        self.sensor, self.clock = sensor, clock
        self._moved: tuple[float, float] | None = None  # when the counter last moved, and where it stood
        self._most = 0.0  # W so far

    def __call__(self) -> float | Absent:
        value, now = self.sensor.read(), self.clock()
        if isinstance(value, Absent) or self.sensor.unit == "W":
            return value
        before = self._moved
        if before is None or value != before[1]:
            self._moved = now, value
        if before is None or now <= before[0]:
            return self._absent("window_too_short", "was looked at once; a rate needs two looks")
        elapsed, step = now - before[0], value - before[1]
        if step < 0:
            step += self.sensor.range_j or 0.0  # it ran over, if what it gained then is like what it gained before
            if not 0 <= step <= IMPLAUSIBLE * self._most * elapsed:
                return self._absent("counter_reset", "began anew")
        if step:
            self._most = max(self._most, step / elapsed)
            return step / elapsed
        if elapsed >= STUCK_S:
            return self._absent("counter_stuck", f"did not move since {elapsed:.2g} s")
        return self._absent("window_too_short", f"has not moved yet since {elapsed:.2g} s")  # 0 W would be invented

    def _absent(self, code: str, says: str) -> Absent:
        return Absent(code, f"{self.sensor.domain} {says}", self.sensor.source, self.sensor.group)


def text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):  # ValueError: the path itself cannot be
        return ""


def number(path: Path) -> float | None:
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def groups(controller: str, proc: Path = PROC, mount: Path = CGROUPS) -> tuple[list[Path], bool]:
    """The folders of the control groups that limit this process, its own first, and whether they are of version 2.

    A container often sees its own group as the root, so the root is always among them.
    """
    root, path, unified = mount, "", True
    for line in text(proc / "self/cgroup").splitlines():
        _, names, where = [*line.split(":", 2), "", "", ""][:3]
        if controller in names.split(","):  # version 1: a hierarchy of its own, perhaps shared as "cpu,cpuacct"
            root = mount / names if (mount / names).exists() else mount / controller
            path, unified = where, False
            break
        if not names:
            path = path or where
    parts = [p for p in path.split("/") if p and p != ".."]
    return [root.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)], unified


def resident() -> float | Absent:
    """Bytes of this process that are in memory now."""
    from tritium.memory import resident_bytes  # not for a comparison, which reads other sensors

    resident = resident_bytes()
    if resident is None:
        return Absent("unsupported", "this system does not tell the resident memory of a process")
    return float(resident)


# ---- RAPL


def rapl(root: Path = SYS, proc: Path = PROC) -> list[Sensor | Absent]:
    """The counters of the processor's packages and their parts, of Intel and AMD alike."""
    zones = [p for p in sorted((root / "class/powercap").glob("intel-rapl:*")) if (p / "energy_uj").exists()]
    names = {p.name: text(p / "name") or p.name for p in zones}
    return [_zone(p, names) for p in zones] or _amd_energy(root) or [_no_rapl(proc)]


def _amd_energy(root: Path) -> list[Sensor | Absent]:
    """The counters of sockets that older kernels show for AMD beside the temperatures."""
    folders = [p for p in root.glob("class/hwmon/hwmon*") if text(p / "name") == "amd_energy"]
    files = {text(f): f.with_name(f.name.replace("_label", "_input")) for p in folders for f in p.glob("energy*_label")}
    return [
        Sensor("amd_energy (hwmon)", name, "package", "cpu", partial(_microjoules, file, name))
        for name, file in sorted(files.items())
        if name.startswith("Esocket")
    ]


def _zone(folder: Path, names: dict[str, str]) -> Sensor | Absent:
    parent = folder.name.rpartition(":")[0]
    inside = names.get(parent, "")
    name = names[folder.name]
    domain = f"{inside}/{name}" if inside else name
    whole = not inside or name == "dram"  # the figure of the package leaves memory out
    file = folder / "energy_uj"
    if not os.access(file, os.R_OK):
        return Absent("no_permission", f"{domain} may not be read; as root: chmod a+r {file}", "RAPL", "cpu")
    reach = number(folder / "max_energy_range_uj")
    return Sensor(
        source="RAPL",
        domain=domain,
        scope="machine" if name == "psys" else "package",
        group="machine" if name == "psys" else "cpu",
        read=partial(_microjoules, file, domain),
        range_j=reach / 1e6 if reach else None,
        part_of="" if whole else inside,
    )


def _microjoules(file: Path, domain: str) -> float | Absent:
    try:
        return int(file.read_text(encoding="ascii")) / 1e6
    except PermissionError:
        return Absent("no_permission", f"{domain} may not be read; as root: chmod a+r {file}", "RAPL", "cpu")
    except (OSError, ValueError) as error:
        return Absent("unsupported", f"{domain} cannot be read: {error}", "RAPL", "cpu")


def _no_rapl(proc: Path) -> Absent:
    """Return why there is no counter, as far as the system shows it."""
    info = text(proc / "cpuinfo")
    if "hypervisor" in info.split():
        return Absent("virtual_machine", "this virtual machine shows no energy counter (RAPL)", "RAPL", "cpu")
    if not any(vendor in info for vendor in X86):
        return Absent("unsupported", "this processor has no energy counter that Linux shows (RAPL)", "RAPL", "cpu")
    return Absent(
        "no_driver", "the driver of the energy counters is missing; as root: modprobe intel_rapl_msr", "RAPL", "cpu"
    )


# ---- heat


def temperature(root: Path = SYS) -> float | Absent:
    """The warmest sensor, in °C."""
    files = [*root.glob("class/hwmon/hwmon*/temp*_input"), *root.glob("class/thermal/thermal_zone*/temp")]
    degrees = [v / 1000 for v in map(number, files) if v is not None]
    return (
        max(degrees) if degrees else Absent("no_device", "no temperature sensor is shown here", "hwmon, thermal zones")
    )


def thermal(root: Path = SYS) -> Thermal:
    """The state of the processor at this moment."""
    warm = temperature(root)
    cpus = root / "devices/system/cpu"
    clocks = [v for v in map(number, cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")) if v]
    events = [int(v) for v in map(number, cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")) if v is not None]
    return Thermal(
        temperature_c=None if isinstance(warm, Absent) else warm,
        throttle_events=sum(events) if events else None,
        frequency_mhz=max(clocks) / 1000 if clocks else None,
    )


def busy_s(proc: Path = PROC) -> float | None:
    """CPU seconds all processes together have used since the start; None where the system does not tell."""
    first = text(proc / "stat").partition("\n")[0].split()
    if len(first) < 8 or first[0] != "cpu":
        return None
    user, nice, system, _, _, irq, softirq = map(int, first[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
