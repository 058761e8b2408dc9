"""A stand-in for the module pynvml (nvidia-ml-py): what a driver with two GPUs answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar


class FakeError(Exception):
    """An error as pynvml raises it: its code is in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class FakePynvml(ModuleType):
    """The functions the package calls; `codes` are the errors some of them end with."""

    RESULTS: ClassVar[Mapping[str, Any]] = {
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetTotalEnergyConsumption": 1 << 40,
        "nvmlDeviceGetPowerUsage": 70_000,
        "nvmlDeviceGetTemperature": 44,
        "nvmlDeviceGetClockInfo": 1200,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 8,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=42, memory=7),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100 << 30, free=60 << 30, used=40 << 30),
        "nvmlDeviceGetMigMode": (1, 0),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=11), SimpleNamespace(pid=12)],
    }
    NVMLError = FakeError

    def __init__(self, codes: Mapping[str, int] | None = None) -> None:
        super().__init__("pynvml")
        self.codes = codes or {}
        for name in ("nvmlInit", *self.RESULTS):
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            if name in self.codes:
                raise FakeError(self.codes[name])
            return self.RESULTS.get(name)

        return call
