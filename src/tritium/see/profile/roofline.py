"""A profile under the roofline of its machine: operations a byte and a second, beside the measured ceilings.

Knows nothing of drawing: `plot` only describes the chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritium.perf.records.environment import Ceiling
from tritium.see.profile.hotspots import percent
from tritium.see.profile.op_table import OpRow, Timelined, rows
from tritium.see.trace.timeline import Timeline

if TYPE_CHECKING:
    from tritium.see.charts import charts


@dataclass(frozen=True)
class Point:
    """One operation of the plot."""

    name: str
    kernel: str
    intensity: float  # operations a byte
    rate: float  # operations a second
    share: float  # of the time
    integer: bool  # int8 operations: under the int8 ceiling
    bound: str
    ceiling_share: float | None


@dataclass(frozen=True)
class Roofline:
    """The points of a profile and the ceilings over them; or why there are none."""

    points: tuple[Point, ...]
    roofs: tuple[Ceiling, ...]
    threads: int | None
    absent: str = ""  # "not measured: why"


def points(profile: Timelined | Timeline, operations: Sequence[OpRow] | None = None) -> Roofline:
    """Return the points of all operations that compute and move bytes, and the ceilings of their machine."""
    t = profile if isinstance(profile, Timeline) else profile.timeline
    table = operations if operations is not None else rows(t)
    dots = tuple(
        Point(r.name, r.kernel, r.intensity, r.gflops * 1e9, r.share, r.integer, r.bound, r.ceiling_share)
        for r in table
        if r.intensity and r.gflops and r.device == "cpu"
    )
    limits = t.environment.limits if t.environment is not None else None
    if limits is None:
        return Roofline(dots, (), None, "not measured: the ceilings of this machine were not requested")
    return Roofline(dots, limits.ceilings, limits.threads)


def plot(roofline: Roofline, title: str) -> charts.Roofline:
    """Return the chart: a dot for each operation, as heavy as its share of the time."""
    from tritium.see.charts import charts
    from tritium.see.charts.roofline import roofs_of

    integer = any(p.integer for p in roofline.points)
    dots = tuple(charts.Dot(p.name, p.intensity, p.rate, p.kernel, p.share, _note(p)) for p in roofline.points)
    threads = f"at {roofline.threads} thread{'s' * (roofline.threads != 1)}" if roofline.threads else ""
    subtitle = f"operations under the measured ceilings of this machine {threads}" if threads else roofline.absent
    return charts.Roofline(title, roofs_of(roofline.roofs, integer), dots, "OP/s" if integer else "FLOP/s", subtitle)


def _note(p: Point) -> str:
    reached = "" if p.ceiling_share is None else f", {percent(p.ceiling_share)} of its ceiling"
    return f"{percent(p.share)} of the time{reached}{', ' + p.bound if p.bound else ''}"
