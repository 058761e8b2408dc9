"""NVIDIA GPUs as their driver tells of them (NVML): energy, power, temperature, clocks, why they slow down, who uses them.

Knows nothing of windows or of what is measured. The driver's library is called directly; no package is needed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from tritium.perf.meters.absent import Absent
from tritium.perf.meters.sensors import PROC, SYS, Sensor, Thermal, text

SOURCE = "NVML"
LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
NO_FUNCTION = 13
CODES = {  # nvmlReturn_t: why, and in words
    3: ("unsupported", "this GPU does not tell"),
    4: ("no_permission", "the driver does not let this user ask"),
    6: ("no_device", "the GPU is not there"),
    9: ("no_driver", "the driver is not loaded; as root: modprobe nvidia"),
    NO_FUNCTION: ("unsupported", "this driver is too old to tell"),
    15: ("no_device", "the GPU fell off the bus"),
    18: ("no_driver", "the driver and its library are of different versions; restart the machine"),
}
SLOWDOWNS = {  # nvmlClocksThrottleReasons
    0x04: "the power cap",
    0x08: "a hardware slowdown",
    0x20: "heat (by the driver)",
    0x40: "heat (by the hardware)",
    0x80: "the power supply",
}


class NvmlError(Exception):
    """What a call of the library answered."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code

    def absent(self, what: str = "") -> Absent:
        code, says = CODES.get(self.code, ("unsupported", f"the driver answered with error {self.code}"))
        return Absent(code, f"{what}: {says}" if what else says, SOURCE, "gpu")


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # percent of the last stretch of time


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The library, opened; numbers of the GPUs in its own units."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._ask("nvmlInit_v2")
        self._handles: dict[int, ctypes.c_void_p] = {}

    def _ask(self, function: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise NvmlError(NO_FUNCTION) from None
        if code:
            raise NvmlError(int(code))

    def _handle(self, gpu: int) -> ctypes.c_void_p:
        if gpu not in self._handles:
            handle = ctypes.c_void_p()
            self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(gpu), ctypes.byref(handle))
            self._handles[gpu] = handle
        return self._handles[gpu]

    def _number(self, function: str, gpu: int, kind: Any, *before: Any) -> int:
        out = kind()
        self._ask(function, self._handle(gpu), *before, ctypes.byref(out))
        return int(out.value)

    def count(self) -> int:
        out = ctypes.c_uint()
        self._ask("nvmlDeviceGetCount_v2", ctypes.byref(out))
        return int(out.value)

    def energy_mj(self, gpu: int) -> int:
        return self._number("nvmlDeviceGetTotalEnergyConsumption", gpu, ctypes.c_ulonglong)

    def power_mw(self, gpu: int) -> int:
        return self._number("nvmlDeviceGetPowerUsage", gpu, ctypes.c_uint)

    def temperature_c(self, gpu: int) -> int:
        return self._number("nvmlDeviceGetTemperature", gpu, ctypes.c_uint, ctypes.c_uint(0))

    def clock_mhz(self, gpu: int) -> int:
        return self._number("nvmlDeviceGetClockInfo", gpu, ctypes.c_uint, ctypes.c_uint(1))

    def slowdowns(self, gpu: int) -> int:
        return self._number("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, ctypes.c_ulonglong)

    def busy_percent(self, gpu: int) -> int:
        """The share of the last stretch of time in which a kernel ran."""
        out = _Utilization()
        self._ask("nvmlDeviceGetUtilizationRates", self._handle(gpu), ctypes.byref(out))
        return int(out.gpu)

    def memory_bytes(self, gpu: int) -> int:
        """What all processes together hold on it."""
        out = _Memory()
        self._ask("nvmlDeviceGetMemoryInfo", self._handle(gpu), ctypes.byref(out))
        return int(out.used)

    def partitioned(self, gpu: int) -> bool:
        """Whether the GPU is cut into instances (MIG)."""
        now, later = ctypes.c_uint(), ctypes.c_uint()
        self._ask("nvmlDeviceGetMigMode", self._handle(gpu), ctypes.byref(now), ctypes.byref(later))
        return bool(now.value)

    def processes(self, gpu: int) -> list[int]:
        """Who computes on it."""
        count, found = ctypes.c_uint(256), (_Process * 256)()
        self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle(gpu), ctypes.byref(count), found)
        return [found[i].pid for i in range(count.value)]


@cache
def opened() -> Nvml | Absent:
    """The library of this machine's driver, opened once."""
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        try:
            return Nvml(library)
        except NvmlError as error:
            return error.absent()
    return Absent("no_driver", "the driver's library (libnvidia-ml) is not installed", SOURCE, "gpu")


def nvidia(root: Path = SYS, proc: Path = PROC, open_library: Callable[[], Any] = opened) -> list[Sensor | Absent]:
    """A sensor for each GPU: its counter of joules, else its gauge of watts."""
    nvml = open_library()
    if isinstance(nvml, Absent):
        return [nvml if _listed(root, proc) else Absent("no_device", "there is no NVIDIA GPU", SOURCE, "gpu")]
    try:
        count = nvml.count()
    except NvmlError as error:
        return [error.absent()]
    if not count:
        return [Absent("no_device", "the driver lists no GPU", SOURCE, "gpu")]
    return [_sensor(nvml, gpu) for gpu in range(count)]


def _listed(root: Path, proc: Path) -> bool:
    """Whether the bus or the driver shows a GPU of this maker."""
    if any((proc / "driver/nvidia/gpus").glob("*")):
        return True
    devices = (root / "bus/pci/devices").glob("*")
    return any(text(d / "vendor") == "0x10de" and text(d / "class").startswith("0x03") for d in devices)


def _sensor(nvml: Any, gpu: int) -> Sensor | Absent:
    domain = f"gpu-{gpu}"
    if _or(partial(nvml.partitioned, gpu), False):
        return Absent(
            "shared_device", f"{domain} is cut into instances (MIG); its energy is of all of them", SOURCE, "gpu"
        )
    first: NvmlError | None = None
    for ask, unit in ((nvml.energy_mj, "J"), (nvml.power_mw, "W")):
        try:
            ask(gpu)
        except NvmlError as error:
            first = first or error
            continue
        return Sensor(
            source=SOURCE,
            domain=domain,
            scope="device",
            group="gpu",
            read=partial(_thousandth, ask, gpu, domain),
            unit="J" if unit == "J" else "W",
            others=partial(others, nvml, gpu),
            state=partial(state, nvml, gpu),
        )
    return (first or NvmlError(3)).absent(domain)


def _thousandth(ask: Callable[[int], int], gpu: int, domain: str) -> float | Absent:
    try:
        return ask(gpu) / 1000
    except NvmlError as error:
        return error.absent(domain)


def _or(ask: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return ask()
    except NvmlError:
        return otherwise


def state(nvml: Any, gpu: int) -> Thermal:
    """How warm and how fast it is now, and why it is slowed down."""
    mask = _or(partial(nvml.slowdowns, gpu), None)
    return Thermal(
        temperature_c=_or(partial(nvml.temperature_c, gpu), None),
        frequency_mhz=_or(partial(nvml.clock_mhz, gpu), None),
        slowed=None if mask is None else tuple(f"slowed by {why}" for bit, why in SLOWDOWNS.items() if mask & bit),
    )


def others(nvml: Any, gpu: int, proc: Path = PROC, me: int | None = None) -> str:
    """Who else computes on it; "" where nobody does.

    In a container the driver shows this process under a number of the host: one unknown process alone is taken for us.
    """
    me = os.getpid() if me is None else me
    listed = _or(partial(nvml.processes, gpu), [])
    foreign = [p for p in listed if p != me]
    if me not in listed and len(foreign) == 1 and not (proc / str(foreign[0])).exists():
        return ""
    return f"{len(foreign)} other process{'es' * (len(foreign) > 1)} computed on gpu-{gpu}" if foreign else ""
