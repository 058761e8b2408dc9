"""Every sensor of energy that this machine has: the processor's, the GPUs', the battery's; each found, or absent with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path

from tritium.perf.meters.absent import Absent
from tritium.perf.meters.apple import apple, battery_of_macos
from tritium.perf.meters.nvidia import nvidia
from tritium.perf.meters.sensors import PROC, SYS, Sensor, number, rapl, text

# ---- the battery


def battery(root: Path = SYS, system: str = sys.platform) -> list[Sensor | Absent]:
    """The draw of the whole machine, where a battery tells it."""
    if system == "darwin":
        return battery_of_macos()
    folders = sorted((root / "class/power_supply").glob("*"))
    own = [p for p in folders if text(p / "type") == "Battery" and text(p / "scope") != "Device"]  # not a mouse's
    return [_battery(p) for p in own] or [Absent("no_device", "there is no battery", "power_supply", "machine")]


def _battery(folder: Path) -> Sensor | Absent:
    name = f"battery {folder.name}"

    def draw() -> float | Absent:
        status = text(folder / "status")
        if status != "Discharging":
            says = f"{name} is {status.lower() or 'in an unknown state'}; it tells the draw only while it discharges"
            return Absent("unsupported", says, "power_supply", "machine")
        watts = _product(folder, ("power_now",), ("current_now", "voltage_now"))
        return (
            Absent("unsupported", f"{name} does not tell its power", "power_supply", "machine")
            if watts is None
            else watts
        )

    if _product(folder, ("power_now",), ("current_now", "voltage_now")) is None:
        return Absent("unsupported", f"{name} does not tell its power", "power_supply", "machine")
    capacity = _product(folder, ("energy_full",), ("charge_full", "voltage_min_design"), ("charge_full", "voltage_now"))
    return Sensor("power_supply", name, "machine", "machine", draw, "W", capacity_wh=capacity)


def _product(folder: Path, *ways: tuple[str, ...]) -> float | None:
    """Watts or watt hours: the first way of which all files tell a number, in millionths each. A sign tells direction only."""
    for names in ways:
        values = [number(folder / name) for name in names]
        if None not in values:
            return abs(prod(v / 1e6 for v in values if v is not None))
    return None


# ---- all of them


def probe(
    *, intel_cpu: bool = True, apple_silicon: bool = True, nvidia_gpu: bool = True, battery_monitoring: bool = True,
    root: Path = SYS, proc: Path = PROC, system: str = sys.platform,
) -> list[Sensor | Absent]:  # fmt: skip
    """Every sensor of energy of this machine that is wanted, or why there is none."""
    linux = system != "darwin"
    rows: tuple[tuple[str, bool, bool, str, str, Callable[[], list[Sensor | Absent]]], ...] = (
        ("intel_cpu", intel_cpu, linux, "RAPL", "cpu", partial(rapl, root, proc)),
        ("apple_silicon", apple_silicon, not linux, "IOReport", "cpu", partial(apple, system)),
        ("nvidia_gpu", nvidia_gpu, linux, "NVML", "gpu", partial(nvidia, root, proc)),
        ("battery_monitoring", battery_monitoring, True, "power_supply", "machine", partial(battery, root, system)),
    )
    sensors_here: list[Sensor | Absent] = []
    for key, enabled, here, source, group, look in rows:
        if not here:
            continue  # the other system's: nothing to say of this machine
        if enabled:
            sensors_here += look()
        else:
            sensors_here.append(Absent("unsupported", f"turned off by {key}", source, group))
    return sensors_here
