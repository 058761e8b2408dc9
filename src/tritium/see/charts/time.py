"""Quantities over time on one clock: a plot for each, layers stacked where there are several.

Many samples are reduced to the minimum and maximum of each interval, so that no peak is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tritium.errors import ArgumentError
from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.scale import Scale, amount, finite, finite_all, linear
from tritium.see.charts.svg import series

SAMPLES = 360  # drawn of one layer
TIPS = 40  # times of a track that have a tooltip
TRACK, TRACK_NARROW = 110.0, 90.0  # px
HEAD = 32.0  # px for a track's name
FAR = 4.0  # times the maximum: a limit beyond would flatten the track


@dataclass(frozen=True)
class Layer:
    """One part of a quantity; NaN: a gap."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Track:
    """A quantity over time, as one layer or as several that add up; or why there is none."""

    name: str
    unit: str
    at_s: tuple[float, ...]
    layers: tuple[Layer, ...]
    shape: str = "line"  # or "step": a value holds until the next
    limit: float | None = None
    limit_name: str = ""
    absent: str = ""

    def __post_init__(self) -> None:
        if any(len(layer.values) != len(self.at_s) for layer in self.layers):
            raise ArgumentError(
                f"Track {self.name!r}: each layer needs a value for each of its {len(self.at_s)} times."
            )


@dataclass(frozen=True)
class OverTime:
    """Tracks on one clock."""

    title: str
    tracks: tuple[Track, ...]
    end_s: float | None = None
    subtitle: str = ""
    note: str = ""
    unit: str = "s"  # of the clock: seconds, or what takes their place, such as steps of a training


def draw(chart: OverTime, width: float) -> svg.Drawing:
    """Draw the tracks below each other, then the time axis."""
    if not chart.tracks:
        return layout.empty(width)
    ends = finite_all(t for track in chart.tracks for t in track.at_s)
    end = finite(chart.end_s) or max(ends, default=1.0) or 1.0
    start = min([0.0, *ends])
    height = TRACK_NARROW if width < layout.NARROW else TRACK
    scales = [_vertical_scale(t, height) for t in chart.tracks]
    left = max((layout.margin(y, t.unit) for y, t in zip(scales, chart.tracks, strict=True) if y), default=40.0)
    p = layout.Plot(left, width - 8, 0, 0)
    round_ = linear([start, end], p.left, p.right, count=min(max(int(p.width / 70), 2), 8), unit=chart.unit).ticks
    ticks = tuple(t for t in round_ if start <= t <= end)
    x = Scale(start, end, p.left, p.right, ticks if len(ticks) > 1 else (start, end))
    parts, top = [], 0.0
    for track, y in zip(chart.tracks, scales, strict=True):
        plot, top = _track(track, y, layout.Plot(p.left, p.right, top, top), x, width, height, chart.unit)
        parts.append(plot)
    foot = layout.Plot(p.left, p.right, top, top)
    parts.append(layout.draw_horizontal_axis(foot, x, chart.unit, width))
    return svg.Drawing(width, top + layout.UNDER, "".join(parts))


def _totals(track: Track) -> list[float]:
    return (
        [sum(values) for values in zip(*(layer.values for layer in track.layers), strict=True)] if track.layers else []
    )


def _vertical_scale(track: Track, height: float) -> Scale | None:
    """Return the scale of the vertical axis, from 0 to the height; None: there is nothing to plot."""
    values = finite_all(_totals(track))
    if track.absent or not values:
        return None
    limit = finite(track.limit)
    if limit is not None and limit <= FAR * max(values):
        values.append(limit)
    return linear(values, height, 0, count=3, unit=track.unit)


def _track(
    track: Track, y: Scale | None, p: layout.Plot, x: Scale, width: float, height: float, clock: str
) -> tuple[str, float]:  # fmt: skip
    """Draw one plot with its head; return it and its bottom."""
    names = [layer.name for layer in track.layers]
    head = svg.text(0, p.top + 16, svg.fit(track.name, width / 2), "o")
    if y is None:
        reason = track.absent or "no samples"
        texts = [head + svg.text(0, p.top + 33 + 15 * i, line, "x") for i, line in enumerate(svg.wrap(reason, width))]
        return "".join(texts), p.top + 30 + 15 * len(texts)
    totals = _totals(track)
    values = finite_all(totals)
    maximum = f"maximum {amount(max(values), track.unit)}"
    head += svg.text(width - 8, p.top + 16, maximum, "t r")
    keys, key_height = layout.key(0, p.top + HEAD + 12, width, names, layout.swatch)
    top = p.top + HEAD + key_height
    area = layout.Plot(p.left, p.right, top, top + height)
    scale = Scale(y.low, y.high, top + height, top, y.ticks)
    indexes = [i for i in layout.sample_extremes([t if math.isfinite(t) else 0.0 for t in totals], SAMPLES)
            if finite(track.at_s[i]) is not None]  # fmt: skip
    parts = [head, keys, layout.draw_vertical_axis(area, scale, track.unit), _areas(track, indexes, totals, x, scale)]
    parts.append(_limit(track, area, scale))
    parts.append(svg.path(svg.line(area.left, area.bottom, area.right, area.bottom), "a"))
    parts.append(_tips(track, clock, area, x))
    return "".join(parts), area.bottom + 10


def _areas(track: Track, indexes: Sequence[int], totals: Sequence[float], x: Scale, y: Scale) -> str:
    """Draw each layer from the sum of those before it; where a value is missing, all have a gap."""
    intervals: list[list[int]] = [[]]
    for i in indexes:
        if math.isfinite(totals[i]):
            intervals[-1].append(i)
        elif intervals[-1]:
            intervals.append([])
    parts = []
    below = [0.0] * len(totals)
    for n, layer in enumerate(track.layers):
        above = [b + v for b, v in zip(below, layer.values, strict=True)]
        fill, edge = "", ""
        for interval in intervals:
            if not interval:
                continue
            outline = _outline(track, interval, above, x, y)
            base = _outline(track, interval, below, x, y)
            fill += svg.points([*outline, *reversed(base)]) + "z"
            edge += svg.points(outline)
        single = len(track.layers) == 1
        parts.append(svg.path(fill, f"k{series(n)} {'p' if single else 'f'}") + svg.path(edge, f"j s{series(n)}"))
        below = above
    return "".join(parts)


def _outline(
    track: Track, interval: Sequence[int], values: Sequence[float], x: Scale, y: Scale
) -> list[tuple[float, float]]:
    """Return the points of an interval; for steps, with their corners."""
    positions = [(x.position(track.at_s[i]), y.position(values[i])) for i in interval]
    if track.shape != "step":
        return positions
    corners = positions[:1]
    for (_, before), (time_x, now) in pairwise(positions):
        corners += [(time_x, before), (time_x, now)]
    return corners


def _limit(track: Track, p: layout.Plot, y: Scale) -> str:
    limit = finite(track.limit)
    if limit is None:
        return ""
    label = f"{track.limit_name or 'limit'} {amount(limit, track.unit)}"
    if limit > y.high:
        return svg.text(p.right, p.top + 11, f"{label}, above the axis", "t r")
    limit_y = y.position(limit)
    return svg.path(svg.line(p.left, limit_y, p.right, limit_y), "q sbad") + svg.text(
        p.right, limit_y + 13, label, "t r kbad"
    )


def _tips(track: Track, clock: str, p: layout.Plot, x: Scale) -> str:
    """Draw vertical stripes, each with the values of its time as a tooltip."""
    indexes = [i for i in layout.sample_evenly(len(track.at_s), TIPS) if finite(track.at_s[i]) is not None]
    if not indexes:
        return ""
    positions = [x.position(track.at_s[i]) for i in indexes]
    edges = [p.left, *((a + b) / 2 for a, b in pairwise(positions)), p.right]
    parts = []
    for n, i in enumerate(indexes):
        lines = [f"{layer.name + ': ' if len(track.layers) > 1 else ''}{_amount(layer.values[i], track.unit)}"
                 for layer in track.layers]  # fmt: skip
        stripe = svg.path(svg.box(edges[n], p.top, max(edges[n + 1] - edges[n], 0), p.height), "b")
        parts.append(svg.mark((track.name, f"at {amount(track.at_s[i], clock)}", *lines), stripe))
    return "".join(parts)


def _amount(value: float, unit: str) -> str:
    number = finite(value)
    return "not measured" if number is None else amount(number, unit)


def table(chart: OverTime) -> Table:
    """Return the figures of each layer as a table."""
    body = []
    for track in chart.tracks:
        for layer in track.layers or (Layer(track.name, ()),):
            name = f"{track.name}: {layer.name}" if len(track.layers) > 1 else track.name
            values = finite_all(layer.values)
            if track.absent or not values:
                body.append((name, "0", "-", "-", "-", track.absent or "no samples"))
                continue
            mean = math.fsum(v / len(values) for v in values)
            least, middle, most = (amount(v, track.unit) for v in (min(values), mean, max(values)))
            body.append((name, str(len(values)), least, middle, most, ""))
    heads = ("quantity", "samples", "minimum", "mean", "maximum", "remark")
    return Table(chart.title, heads, tuple(body), frozenset(heads[1:5]))
