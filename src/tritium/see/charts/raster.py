"""A map of rows over time: the depth of one colour is a row's value at each time.

Values decades apart are on a log scale. Of more times than there are columns, each column shows the largest value of its interval, so
that no peak is lost; of very many rows some are drawn, and a line says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tritium.errors import ArgumentError
from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.scale import Scale, amount, finite, finite_all, linear, log, spaced

DEPTHS = (0.12, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)  # opacity of each level
COLUMNS, COLUMNS_NARROW = 120, 60
MOST_ROWS = 280  # drawn
FEW = 40  # rows, or fewer, have their full height
PITCH, TALL = 14.0, 560.0  # px: of a row where there are few, of all rows where there are many
LEAST = 3.0  # px of a row
NAMES_NARROW = 0.4  # share of a narrow layout for names
NAME = 14.0  # px of a name
FAR = 20.0  # times the smallest value: from here on the scale is logarithmic
NEAR = 2.0  # times the smallest value: up to here a linear scale does not begin at 0
KEY = 34.0  # px for the colours and their bounds


@dataclass(frozen=True)
class Raster:
    """Rows of values, one for each time, at least 0; NaN: a gap."""

    title: str
    rows: tuple[str, ...]
    times: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    unit: str = ""
    clock: str = "s"  # unit of the times
    subtitle: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.values) != len(self.rows) or any(len(row) != len(self.times) for row in self.values):
            raise ArgumentError(
                f"Raster: {len(self.rows)} rows of {len(self.times)} values are needed; "
                f"{len(self.values)} rows of {sorted({len(row) for row in self.values})} were given."
            )


def draw(chart: Raster, width: float) -> svg.Drawing:
    """Draw the key, the rows below each other, and the times below them."""
    values = finite_all(v for row in chart.values for v in row)
    if not values:
        return layout.empty(width)
    narrow = width < layout.NARROW
    chosen = layout.sample_evenly(len(chart.rows), MOST_ROWS)
    room = width * (NAMES_NARROW if narrow else layout.NAMES)
    left = min(max(svg.text_width(svg.fit(chart.rows[i], width)) for i in chosen), room) + 10
    scale = _depths([v for v in values if v > 0])
    parts = [_key(left, width - left - 8, scale, chart.unit)]
    top = KEY
    if len(chosen) < len(chart.rows):
        text = f"{len(chosen)} of {len(chart.rows)} rows, evenly chosen"
        parts.append(svg.text(left, top + 8, svg.fit(text, width - left, layout.TICK), "n"))
        top += 16
    columns = _intervals(len(chart.times), COLUMNS_NARROW if narrow else COLUMNS)
    pitch = PITCH if len(chosen) <= FEW else max(TALL // len(chosen), LEAST)
    plot = layout.Plot(left, width - 8, top, top + pitch * len(chosen))
    named = set(spaced([pitch * n for n in range(len(chosen))], [NAME] * len(chosen), 0.0))
    for n, i in enumerate(chosen):
        y = top + pitch * n
        label = svg.text(0, y + pitch / 2 + 4, svg.fit(chart.rows[i], left - 10), "") if n in named else ""
        cells = _row(chart.values[i], columns, scale, plot, y, pitch)
        ground = svg.path(svg.box(left, y, plot.width, pitch), "b")
        parts.append(svg.mark((chart.rows[i], *_tip(chart, i)), ground, label, cells))
    each = plot.width / len(columns)
    starts = [plot.left + each * (n + 0.5) for n in range(len(columns))]
    parts.append(layout.draw_labels(plot, starts, [_time(chart, c[0]) for c in columns], width))
    return svg.Drawing(width, plot.bottom + layout.UNDER, "".join(parts))


def _depths(values: Sequence[float]) -> Scale:
    """Return the scale from values above 0 to depths 0 … 1: of logarithms where they are far apart, not from 0 where they are near."""
    if values and max(values) > FAR * min(values):
        return log(values, 0.0, 1.0)
    return linear(values, 0.0, 1.0, zero=not values or max(values) > NEAR * min(values))


def _intervals(count: int, most: int) -> list[range]:
    """Return the columns: consecutive times, each about as many."""
    columns = min(count, most)
    edges = [count * n // columns for n in range(columns + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _level(value: float, scale: Scale) -> int:
    """Return the depth of a value above 0; -1 for 0."""
    return min(int(scale.position(value) * len(DEPTHS)), len(DEPTHS) - 1) if value > 0 else -1


def _row(
    values: Sequence[float], columns: Sequence[range], scale: Scale, p: layout.Plot, y: float, pitch: float
) -> str:
    """Draw the cells of a row as lines as thick as it is high, those of one depth as one path."""
    levels: list[int | None] = []
    for column in columns:
        present = finite_all(values[i] for i in column)
        levels.append(_level(max(present), scale) if present else None)
    each, middle, start = p.width / len(columns), y + pitch / 2, 0
    lines: dict[int, str] = {}
    for level, run in groupby(levels):
        count = len(list(run))
        if level is not None:
            a, b = p.left + each * start, p.left + each * (start + count)
            lines[level] = lines.get(level, "") + svg.line(a, middle, b, middle)
        start += count
    thick = f' stroke-width="{svg.number(max(pitch - 1, LEAST))}" shape-rendering="crispEdges"'
    return "".join(
        svg.path(path, "g" if level < 0 else "s1", thick + ("" if level < 0 else f' stroke-opacity="{DEPTHS[level]}"'))
        for level, path in sorted(lines.items())
    )


def _key(x: float, width: float, scale: Scale, unit: str) -> str:
    """Draw the depths in order, with the values at their bounds."""
    each = min(width / len(DEPTHS), 76.0)
    parts = [
        svg.path(svg.box(x + each * i, 2, each, 8), "k1", f' fill-opacity="{depth}"') for i, depth in enumerate(DEPTHS)
    ]
    texts = [amount(scale.value(i / len(DEPTHS)), unit) for i in range(len(DEPTHS) + 1)]
    widths = [svg.text_width(t, layout.TICK) for t in texts]
    centres = [min(x + each * i, x + width + 8 - w / 2) for i, w in enumerate(widths)]
    return "".join(parts) + "".join(svg.text(centres[i], 23, texts[i], "t c") for i in spaced(centres, widths))


def _tip(chart: Raster, i: int) -> tuple[str, ...]:
    present = [j for j, value in enumerate(chart.values[i]) if finite(value) is not None]
    if not present:
        return ("not measured",)
    peak = max(present, key=lambda j: chart.values[i][j])
    first, last, most = (amount(chart.values[i][j], chart.unit) for j in (present[0], present[-1], peak))
    return (f"first {first}, last {last}", f"most {most} at {_time(chart, peak)}")


def _time(chart: Raster, j: int) -> str:
    time = finite(chart.times[j])
    return "unknown" if time is None else amount(time, chart.clock)


def table(chart: Raster) -> Table:
    """Return the figures of each row as a table."""
    body = []
    for name, values in zip(chart.rows, chart.values, strict=True):
        present = finite_all(values)
        figures = (present[0], present[-1], min(present), max(present)) if present else ()
        body.append((name, str(len(present)), *(amount(v, chart.unit) for v in figures), *["-"] * (4 - len(figures))))
    heads = ("row", "samples", "first", "last", "minimum", "maximum")
    return Table(chart.title, heads, tuple(body), frozenset(heads[1:]))
