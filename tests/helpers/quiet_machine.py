"""Readings of a machine on which nothing is wrong."""

from __future__ import annotations

from typing import Any

from tritium.machine.ceilings import Ceiling, Ceilings
from tritium.machine.facts import Machine
from tritium.perf.meters.sensors import Thermal
from tritium.perf.tune.racing import Drift
from tritium.see.doctor.readings import Blas, Gpu, Isa, Native, Product, Siblings, Threads, TunedFile, Watch
from tritium.see.memory.pressure import Pressure

WATCH = Watch(1.0, 0.2, 3, 0.01, 0.0, (1.0e-6, 1.0e-6, 1.01e-6), Thermal(50.0, 2), Thermal(51.0, 2))

BOX = Machine("a CPU", "f", 4, 4, "0-3", 8.0, "Linux 6", "native")

PRODUCT = Product(512, 100.0, 100.0, "openblas", 0.9, 150e9)


def ceilings(*samples: tuple[float, ...], quick: bool = False) -> Ceilings:
    rows = tuple(Ceiling(f"row {i}", "f32", 1, "", s) for i, s in enumerate(samples))
    return Ceilings(BOX, (), rows, quick, "2026-01-01T00:00:00Z", 1.0)


def drifted(now_s: float, holds: bool) -> Drift:
    return Drift("kernel/add", "'avx2'", 1e-6, now_s, (now_s, now_s), "'portable'", 2e-6, holds, None)  # type: ignore[arg-type]


QUIET: dict[str, Any] = {
    "environment": None,
    "cpus": 4,
    "governor": {"performance": 4},
    "turbo": False,
    "watch": WATCH,
    "stolen": 0.0,
    "others": 0.01,
    "timings": WATCH.timings,
    "heat before": Thermal(50.0, 0),
    "heat after": Thermal(51.0, 0),
    "quota": None,
    "throttled": 0,
    "siblings": Siblings(2, ((0,), (1,)), ()),
    "power": "mains",
    "virtual": "",
    "noise": 0.004,
    "pressure": Pressure("cpu", "low", 1, 10, "process", "this process uses 1 B of 10 B (10%)"),
    "gpus": (Gpu("gpu-0", (), ""),),
    "native": Native("", False),
    "isa": Isa("avx512", ("portable", "avx2", "avx512"), "", ""),
    "blas": Blas("openblas 0.3"),
    "product": PRODUCT,
    "threads": Threads(4, 4, {}, (("openblas (libopenblas)", 4),)),
    "ceilings": ceilings((1.0, 1.0, 1.01)),
    "tuned": TunedFile("kept", "", 3, "exact", "2026-01-01", 5),
    "drift": (drifted(1e-6, True),),
}
