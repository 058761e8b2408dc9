"""A profile against the roof of its machine: operations a byte and operations a second, beside the measured ceilings.

Knows nothing of drawing: `picture` only says what is to be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritium.see.profile.hotspots import percent
from tritium.see.profile.op_table import OpRow, Timelined, rows
from tritium.see.trace.timeline import Timeline

if TYPE_CHECKING:
    from tritium.perf.records.environment import Limits
    from tritium.see.charts import charts


UNITS = {"flops": "FLOP/s", "int_ops": "OP/s", "bytes": "B/s"}  # by the kind of a ceiling


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
class Roof:
    """One ceiling: of arithmetic (operations a second), or of a memory level (bytes a second)."""

    name: str
    kind: str  # "flops", "int_ops" or "bytes"
    rate: float


@dataclass(frozen=True)
class Roofline:
    """The points of a profile and the ceilings over them; or why there are none."""

    points: tuple[Point, ...]
    roofs: tuple[Roof, ...]
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
    return Roofline(listed, ceilings(limits), limits.threads)


def ceilings(limits: Limits) -> tuple[Roof, ...]:
    """All ceilings of a machine: arithmetic, then memory from near to far."""
    levels = (Roof(level.name, "bytes", level.rate) for level in limits.levels if level.rate is not None)
    return (Roof("f32", "flops", limits.flops), Roof("int8", "int_ops", limits.int_ops), *levels)


def drawn(roofs: Sequence[Roof], integer: bool) -> tuple[charts.Roof, ...]:
    """Ceilings as a plot has them: the farthest memory is the main slope, int8 is there where something is below it."""
    from tritium.see.charts import charts

    last = max((i for i, r in enumerate(roofs) if r.kind == "bytes"), default=-1)
    return tuple(
        charts.Roof(
            r.name, r.rate, "memory" if r.kind == "bytes" else "compute", r.kind == "flops" or i == last, UNITS[r.kind]
        )
        for i, r in enumerate(roofs)
        if r.kind != "int_ops" or integer
    )


def picture(found: Roofline, title: str) -> charts.Roofline:
    """The plot: a dot for each operation, as heavy as its share of the time."""
    from tritium.see.charts import charts

    integer = any(p.integer for p in found.points)
    dots = tuple(charts.Dot(p.name, p.intensity, p.rate, p.kernel, p.share, _note(p)) for p in found.points)
    threads = f"at {found.threads} thread{'s' * (found.threads != 1)}" if found.threads else ""
    said = f"operations under the measured ceilings of this machine {threads}" if threads else found.absent
    return charts.Roofline(title, drawn(found.roofs, integer), dots, "OP/s" if integer else "FLOP/s", said)


def _note(p: Point) -> str:
    reached = "" if p.ceiling_share is None else f", {percent(p.ceiling_share)} of its ceiling"
    return f"{percent(p.share)} of the time{reached}{', ' + p.bound if p.bound else ''}"
