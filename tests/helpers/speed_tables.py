"""Results files made up for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tritium.perf.records import speed
from tritium.perf.records.speed import Column, Entry, Figure, Host, SpeedTable

TABLE = SpeedTable(
    "small", "A small table", speed.MEASURED, "2026-01-02", ("bench/dense.py", "--quick"), 1.5, Host("A CPU", 2, 2),
    {"tritium": "0.1", "numpy": "2.4"}, ("case", "threads"),
    (
        Column("tritium", "µs", "time of a call"),
        Column("numpy", "µs", "time of a call"),
        Column("× numpy", "×", "numpy / tritium", "ratio"),
    ),
    (
        Entry(("add", "1"), {"tritium": Figure(10.0, 9.9, 10.1), "numpy": Figure(20.0), "× numpy": Figure(2.0, 1.9, 2.1)}),
        Entry(("add", "2"), {"tritium": Figure(5.0, 4.0, 6.0), "× numpy": Figure(4.0, 3.0, 5.0)}),
        Entry(("mul", "1"), {"tritium": Figure(12.0, 11.9, 12.1), "× numpy": Figure(3.0)}),
    ),
)  # fmt: skip


def speed_table(**changes: Any) -> SpeedTable:
    """Return the small table with some fields changed."""
    return replace(TABLE, **changes)
