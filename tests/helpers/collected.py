"""For tests of collectors and their sources: a clock, and absent values as their codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritium.perf.meters.absent import Absent
from tritium.see.monitor.metrics_file import Value


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def codes(values: Sequence[Value]) -> list[Any]:
    return [v.code if isinstance(v, Absent) else v for v in values]
