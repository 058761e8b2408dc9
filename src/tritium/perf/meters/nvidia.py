"""NVIDIA GPUs as their driver describes them (NVML): energy, power, temperature, clocks, throttling, processes.

The driver's library is called with nvidia-ml-py (module pynvml).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from tritium.perf.meters.absent import Absent
from tritium.perf.meters.sensors import PROC, SYS, Sensor, Thermal, text

SOURCE = "NVML"
GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
SM_CLOCK = 1  # NVML_CLOCK_SM
NO_FUNCTION = 13
CODES = {  # nvmlReturn_t: why, and in words
    3: ("unsupported", "this GPU does not report it"),
    4: ("no_permission", "the driver does not let this user read it"),
    6: ("no_device", "the GPU is not there"),
    9: ("no_driver", "the driver is not loaded; as root: modprobe nvidia"),
    12: ("no_driver", "the driver's library (libnvidia-ml) is not installed"),
    NO_FUNCTION: ("unsupported", "this driver is too old to report it"),
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
    """An error code of the driver's library."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code

    def absent(self, domain: str = "") -> Absent:
        """Return the error as a reason for a value that was not measured."""
        code, text = CODES.get(self.code, ("unsupported", f"the driver answered with error {self.code}"))
        return Absent(code, f"{domain}: {text}" if domain else text, SOURCE, "gpu")


class Nvml:
    """The driver's library, opened with pynvml; numbers of the GPUs in its own units."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self._call("nvmlInit")
        self._handles: dict[int, Any] = {}

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._pynvml, function)(*arguments)
        except AttributeError:  # an older nvidia-ml-py
            raise NvmlError(NO_FUNCTION) from None
        except self._pynvml.NVMLError as error:
            raise NvmlError(int(error.value)) from None

    def _read(self, function: str, gpu: int, *arguments: Any) -> Any:
        if gpu not in self._handles:
            self._handles[gpu] = self._call("nvmlDeviceGetHandleByIndex", gpu)
        return self._call(function, self._handles[gpu], *arguments)

    def count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def energy_mj(self, gpu: int) -> int:
        return int(self._read("nvmlDeviceGetTotalEnergyConsumption", gpu))

    def power_mw(self, gpu: int) -> int:
        return int(self._read("nvmlDeviceGetPowerUsage", gpu))

    def temperature_c(self, gpu: int) -> int:
        return int(self._read("nvmlDeviceGetTemperature", gpu, GPU_SENSOR))

    def clock_mhz(self, gpu: int) -> int:
        return int(self._read("nvmlDeviceGetClockInfo", gpu, SM_CLOCK))

    def slowdowns(self, gpu: int) -> int:
        return int(self._read("nvmlDeviceGetCurrentClocksThrottleReasons", gpu))

    def busy_percent(self, gpu: int) -> int:
        """Return the share of the last sampling period in which a kernel ran."""
        return int(self._read("nvmlDeviceGetUtilizationRates", gpu).gpu)

    def memory_bytes(self, gpu: int) -> int:
        """Return the bytes all processes together have allocated."""
        return int(self._read("nvmlDeviceGetMemoryInfo", gpu).used)

    def partitioned(self, gpu: int) -> bool:
        """Return True if the GPU is split into instances (MIG)."""
        current, _ = self._read("nvmlDeviceGetMigMode", gpu)
        return bool(current)

    def processes(self, gpu: int) -> list[int]:
        """Return the processes that compute on the GPU."""
        return [int(process.pid) for process in self._read("nvmlDeviceGetComputeRunningProcesses", gpu)]


@cache
def opened() -> Nvml | Absent:
    """Return the library of this machine's driver, opened once; or why it cannot be opened."""
    try:
        import pynvml
    except ImportError:
        return Absent("unsupported", "reading it needs nvidia-ml-py: pip install nvidia-ml-py", SOURCE, "gpu")
    try:
        return Nvml(pynvml)
    except NvmlError as error:
        return error.absent()


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
    """Return True if the bus or the driver lists an NVIDIA GPU."""
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
    """Return temperature, clock and reasons of throttling."""
    mask = _or(partial(nvml.slowdowns, gpu), None)
    return Thermal(
        temperature_c=_or(partial(nvml.temperature_c, gpu), None),
        frequency_mhz=_or(partial(nvml.clock_mhz, gpu), None),
        slowed=None if mask is None else tuple(f"slowed by {why}" for bit, why in SLOWDOWNS.items() if mask & bit),
    )


def others(nvml: Any, gpu: int, proc: Path = PROC, me: int | None = None) -> str:
    """Return a sentence on other processes that compute on the GPU; "" where there are none.

    In a container the driver shows this process under a number of the host: one unknown process alone is taken for us.
    """
    me = os.getpid() if me is None else me
    listed = _or(partial(nvml.processes, gpu), [])
    foreign = [p for p in listed if p != me]
    if me not in listed and len(foreign) == 1 and not (proc / str(foreign[0])).exists():
        return ""
    return f"{len(foreign)} other process{'es' * (len(foreign) > 1)} computed on gpu-{gpu}" if foreign else ""
