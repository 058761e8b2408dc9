"""A timeline with spans of a device, for tests of trace formats."""

from __future__ import annotations

from made_timelines import op, scope
from tritium.see.trace.timeline import Timeline, timeline


def on_device(calls: int = 3, works: int = 3) -> Timeline:
    kernel = op("matmul", device="cuda:0")
    made = [(kernel, 100 * i, 20, 0) for i in range(calls)] + [(kernel, 100 * i + 50, 80, 1) for i in range(works)]
    return timeline([*made, (scope("step"), 0, 1000, 0)], ["MainThread", "cuda:0 stream 7"], 1000)
