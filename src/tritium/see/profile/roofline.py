"""A profile against the roof of its machine: operations a byte and operations a second, beside the measured ceilings.

Knows nothing of drawing: `picture` only says what is to be drawn.
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
    """One operation."""

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


def points(profile: Timelined | Timeline, found: Sequence[OpRow] | None = None) -> Roofline:
    """The points of all operations that compute and move something, and the ceilings of the machine they ran on."""
    t = profile if isinstance(profile, Timeline) else profile.timeline
    table = found if found is not None else rows(t)
    listed = tuple(
        Point(r.name, r.kernel, r.intensity, r.gflops * 1e9, r.share, r.integer, r.bound, r.ceiling_share)
        for r in table
        if r.intensity and r.gflops and r.device == "cpu"
    )
    limits = t.environment.limits if t.environment is not None else None
    if limits is None:
        return Roofline(listed, (), None, "not measured: the ceilings of this machine were not asked for")
    return Roofline(listed, limits.ceilings, limits.threads)


def picture(found: Roofline, title: str) -> charts.Roofline:
    """The plot: a dot for each operation, as heavy as its share of the time."""
    from tritium.see.charts import charts
    from tritium.see.charts.roofline import roofs_of

    integer = any(p.integer for p in found.points)
    dots = tuple(charts.Dot(p.name, p.intensity, p.rate, p.kernel, p.share, _note(p)) for p in found.points)
    threads = f"at {found.threads} thread{'s' * (found.threads != 1)}" if found.threads else ""
    said = f"operations under the measured ceilings of this machine {threads}" if threads else found.absent
    return charts.Roofline(title, roofs_of(found.roofs, integer), dots, "OP/s" if integer else "FLOP/s", said)


def _note(p: Point) -> str:
    reached = "" if p.ceiling_share is None else f", {percent(p.ceiling_share)} of its ceiling"
    return f"{percent(p.share)} of the time{reached}{', ' + p.bound if p.bound else ''}"
