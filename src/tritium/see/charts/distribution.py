"""Samples in time order and their density: drift on the left, modes on the right, one axis for both.

Outliers are drawn at the edge and counted there, so that a single one does not flatten the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.bars import FAR, interval_text
from tritium.see.charts.scale import Scale, amount, finite, finite_all, linear, log, quantity
from tritium.see.charts.svg import series

Floats = np.ndarray[Any, np.dtype[np.float64]]
DOTS = 100  # samples drawn in time order; beyond, every n-th
LEVELS = 28  # points of a density
SIDE = 0.17  # the share of the width that densities take
FENCE = 4.0  # quartile ranges: samples farther out are drawn at the edge


@dataclass(frozen=True)
class Strip:
    """Samples in time order. `breaks`: indexes of the first sample of each fresh process. The median has an interval."""

    name: str
    values: tuple[float, ...]
    breaks: tuple[int, ...] = ()
    median: float | None = None
    low: float | None = None
    high: float | None = None
    absent: str = ""


@dataclass(frozen=True)
class Distribution:
    """The samples of one case, of one contender or more."""

    title: str
    strips: tuple[Strip, ...]
    unit: str
    subtitle: str = ""
    note: str = ""


def draw(chart: Distribution, width: float) -> svg.Drawing:
    """Draw the strips over each other, their densities at the side."""
    samples = [np.array(finite_all(s.values), np.float64) for s in chart.strips]
    if not any(len(v) for v in samples):
        reasons = "; ".join(dict.fromkeys(s.absent for s in chart.strips if s.absent))
        return layout.empty(width, reasons or "no samples")
    low, high = _fences(samples)
    drawn = {s.name for s, v in zip(chart.strips, samples, strict=True) if len(v)}
    keys, top = layout.key(0, 12, width, [s.name for s in chart.strips], layout.swatch, drawn)
    top += 8
    bottom = top + (118.0 if width < layout.NARROW else 180.0)
    wide = low > 0 and high / low > FAR
    y = (
        log([low, high], bottom, top, count=3, unit=chart.unit)
        if wide
        else linear([low, high], bottom, top, count=3, unit=chart.unit, zero=False)
    )
    left = layout.margin(y, chart.unit)
    side = SIDE * width
    p = layout.Plot(left, width - side - 10, top, bottom)
    parts = [keys, layout.draw_vertical_axis(layout.Plot(left, width, top, bottom), y, chart.unit)]
    shapes = [_density(v, y) for v in samples]
    tallest = max((float(d.max()) for _, d in shapes if len(d)), default=0.0)
    for i, (strip, values) in enumerate(zip(chart.strips, samples, strict=True)):
        if not len(values):
            continue
        elements = [
            _breaks(strip, p) if i == 0 else "",
            _median(strip, p, y, width, series(i)),
            _dots(values, p, y, series(i)),
        ]
        elements.append(_violin(shapes[i], p.right + 10, side - 2, tallest, y, series(i)))
        parts.append(svg.mark(_tip(strip, values, chart.unit, y), *elements))
    parts.append(_captions(samples, p, y, width, chart.unit))
    return svg.Drawing(width, bottom + layout.UNDER, "".join(parts))


def _fences(samples: Sequence[Floats]) -> tuple[float, float]:
    """Return the ends of the axis, which leave out outliers."""
    low, high = np.inf, -np.inf
    for values in samples:
        if len(values):
            q1, q3 = np.quantile(values, (0.25, 0.75))
            reach = FENCE * max(q3 - q1, 0.01 * abs(q3))
            inside = values[(values >= q1 - reach) & (values <= q3 + reach)]
            low, high = min(low, float(inside.min())), max(high, float(inside.max()))
    return low, high


def _dots(values: Floats, p: layout.Plot, y: Scale, colour: int) -> str:
    """Draw every sample, or every n-th; outliers at the edge."""
    indexes = layout.sample_evenly(len(values), DOTS)
    inset = 5.0
    step = (p.width - 2 * inset) / max(len(values) - 1, 1)
    first = p.left + inset if len(values) > 1 else (p.left + p.right) / 2
    outliers = ""
    for i in np.flatnonzero((values > y.high) | (values < y.low)).tolist():
        up = values[i] > y.high
        outliers += svg.triangle(first + step * i, p.top + 4 if up else p.bottom - 4, 3.5, up)
    positions = [(first + step * i, y.position(float(values[i]))) for i in indexes if y.low <= values[i] <= y.high]
    dots = svg.dots(positions)
    return svg.path(dots, f"dots s{colour}") + svg.path(outliers, f"k{colour}")


def _density(values: Floats, y: Scale) -> tuple[Floats, Floats]:
    """Return points of the axis and the density of the samples there (Gaussian, Silverman's bandwidth).

    On a log axis it is the density of the logarithms, so that the area on the axis is the share of the samples.
    """
    inside = values[(values >= y.low) & (values <= y.high)]
    bottom, top = (math.log(y.low), math.log(y.high)) if y.log else (y.low, y.high)
    inside = np.log(inside) if y.log else inside
    none = np.zeros(0)
    if len(inside) < 4:
        return none, none
    q1, q3 = np.quantile(inside, (0.25, 0.75))
    deviation = float(inside.std())
    spread = min(deviation, float(q3 - q1) / 1.34) or deviation
    bandwidth = max(0.9 * spread * len(inside) ** -0.2, (top - bottom) / 120)
    grid = np.linspace(max(bottom, inside.min() - 2.5 * bandwidth), min(top, inside.max() + 2.5 * bandwidth), LEVELS)
    total = np.zeros(LEVELS)
    for chunk in np.array_split(inside, max(len(inside) // 4096, 1)):
        total += np.exp(-0.5 * ((grid[:, None] - chunk[None, :]) / bandwidth) ** 2).sum(1)
    return np.exp(grid) if y.log else grid, total / (len(inside) * bandwidth)


def _violin(shape: tuple[Floats, Floats], left: float, width: float, tallest: float, y: Scale, colour: int) -> str:
    grid, density = shape
    if not len(grid) or tallest <= 0:
        return ""
    outline = [(left + width * float(d) / tallest, y.position(float(v))) for v, d in zip(grid, density, strict=True)]
    closed = svg.points([(left, outline[0][1]), *outline, (left, outline[-1][1])]) + "z"
    return svg.path(closed, f"k{colour} s{colour} p")


def _median(strip: Strip, p: layout.Plot, y: Scale, width: float, colour: int) -> str:
    median, low, high = finite(strip.median), finite(strip.low), finite(strip.high)
    shapes = ""
    if low is not None and high is not None and high > low:
        shapes = svg.path(
            svg.box(p.left, y.position(high), width - p.left, y.position(low) - y.position(high)), f"k{colour} p"
        )
    if median is not None:
        shapes += svg.path(svg.line(p.left, y.position(median), width, y.position(median)), f"s{colour}")
    return shapes


def _breaks(strip: Strip, p: layout.Plot) -> str:
    """Draw light lines where a fresh process began."""
    step = (p.width - 10) / max(len(strip.values) - 1, 1)
    positions = [p.left + 5 + step * (i - 0.5) for i in strip.breaks if 0 < i < len(strip.values)]
    return svg.path("".join(svg.line(x, p.top, x, p.bottom) for x in positions), "a", ' stroke-opacity=".5"')


def _outside(values: Floats, y: Scale) -> Floats:
    return values[(values > y.high) | (values < y.low)]


def _captions(samples: Sequence[Floats], p: layout.Plot, y: Scale, width: float, unit: str) -> str:
    outliers = np.concatenate([_outside(v, y) for v in samples])
    count = max(len(v) for v in samples)
    every = -(-(count - 1) // (DOTS - 1)) if count > DOTS else 1
    order = "in the order measured →" if every == 1 else f"in the order measured →  (1 of {every} drawn)"
    outlier_text = ""
    if len(outliers):
        edge = float(outliers.max() if outliers.max() > y.high else outliers.min())
        outlier_text = f"{len(outliers)} beyond, {'up' if edge > y.high else 'down'} to {amount(edge, unit)}"
    axis = svg.path(svg.line(p.left, p.bottom, width, p.bottom), "a")
    room = width - p.left - svg.text_width(outlier_text, 11) - 12
    return (
        axis
        + svg.text(p.left, p.bottom + 15, svg.fit(order, room, 11), "t")
        + svg.text(width, p.bottom + 15, outlier_text, "t r")
    )


def _tip(strip: Strip, values: Floats, unit: str, y: Scale) -> tuple[str, ...]:
    median = finite(strip.median)
    middle = float(np.median(values)) if median is None else median
    interval = interval_text(strip.low, strip.high, unit)
    return (
        strip.name,
        f"median {amount(middle, unit)}" + (f" ({interval}, 95 %)" if interval else ""),
        f"{len(values)} samples, {amount(float(values.min()), unit)} … {amount(float(values.max()), unit)}",
        f"{len(strip.breaks) + 1} processes" if strip.breaks else "",
        f"{len(_outside(values, y))} beyond the axis" if len(_outside(values, y)) else "",
    )


def table(chart: Distribution) -> Table:
    """Return the figures of each strip as a table."""
    body = []
    for s in chart.strips:
        values = finite_all(s.values)
        if not values:
            body.append((s.name, "0", "-", "-", "-", "-", s.absent or "no samples"))
            continue
        median = finite(s.median)
        middle = float(np.median(values)) if median is None else median
        body.append((
            s.name, str(len(values)), amount(middle, chart.unit), interval_text(s.low, s.high, chart.unit),
            amount(min(values), chart.unit), amount(max(values), chart.unit), "",
        ))  # fmt: skip
    heads = (
        "contender",
        "samples",
        f"median {quantity(chart.unit)}".strip(),
        "95 % interval",
        "minimum",
        "maximum",
        "remark",
    )
    return Table(chart.title, heads, tuple(body), frozenset(heads[1:6]))
