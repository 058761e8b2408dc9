"""A memory record, made up and hostile, for the tests of what writes and reads it."""

from __future__ import annotations

from typing import Any

from tritium.see.memory.file import Memory
from tritium.see.memory.pressure import Pressure, Reading
from tritium.see.memory.records import (
    Advice,
    Allocation,
    AtPeak,
    DeviceUse,
    Event,
    Idle,
    Moved,
    PythonSite,
    PythonUse,
    SiteUse,
)

MIB = 1 << 20


def record(name: str = "a run", **more: Any) -> Memory:
    """A record whose every text is `name`, or what a test wants it to be."""
    held = Allocation(4 * MIB, name, f"{name}:3", name, "cpu", 5, 7, name)
    events = (
        Event("alloc", 5, 4 * MIB, 64, name, f"{name}:3", name),
        Event("reuse", 6, MIB, 128, "add", "model.py:4", "MainThread"),
        Event("free", 8, MIB, 128, "", "model.py:5", "MainThread"),
        Event("transfer", 9, MIB, 0, "", "model.py:6", "MainThread", name, f"to {name}", name),
        Event("free", 9, 0, 0, "", "", "MainThread", "cpu", "", name, False),
    )
    made: dict[str, Any] = {
        "name": name, "began": "2026-01-02T03:04:05+00:00", "elapsed_ns": 10, "dropped": 3, "events": events,
        "devices": (
            DeviceUse("cpu", MIB, 5 * MIB, 6 * MIB, 6, 2, 1, 1, 5 * MIB, 70 * MIB, 100 * MIB),
            DeviceUse(name, 0, 0, 0, 0, 0, 0, 0, 0),
        ),
        "sites": (SiteUse(f"{name}:3", name, 1, 4 * MIB, 0, 4 * MIB), SiteUse("model.py:4", "add", 1, MIB, 1, 0)),
        "at_peak": AtPeak(6 * MIB, (held,), MIB, MIB, 3), "leaks": (held,),
        "idle": Idle(3 * MIB, 2 * MIB, 2, ((MIB, 1), (2 * MIB, 1)), 64 * MIB),
        "moved": (Moved(name, f"to {name}", 1, MIB, 500), Moved("cpu", name, 1, MIB, 0)),
        "advice": (Advice("hidden copies", f"{name} had to copy", MIB, "copies", "low"),),
        "pressure": Pressure("cpu", "high", 85, 100, "cgroup", f"evidence {name}", (Reading("cgroup", 85, 100),)),
        "resident": 70 * MIB, "unknown_frees": (name,), "python": PythonUse(10, 20, (PythonSite(f"{name}:9", 5, 1),)),
        "notes": (name,), "repeated_ids": (name, name),
    }  # fmt: skip
    return Memory(**(made | more))
