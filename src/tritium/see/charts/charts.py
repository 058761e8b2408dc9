"""All charts: one frozen description each, drawn as SVG for a page, a file or an image, or listed as a table.

The same description always gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tritium.errors import ArgumentError
from tritium.perf.tables.table import Table
from tritium.see.charts import svg as paper

if TYPE_CHECKING:
    from tritium.see.charts.bars import Bar, Bars
    from tritium.see.charts.distribution import Distribution, Strip
    from tritium.see.charts.heat import Cell, Heat
    from tritium.see.charts.raster import Raster
    from tritium.see.charts.ratios import Forest, Ratio, Speedup
    from tritium.see.charts.roofline import Dot, Roof, Roofline
    from tritium.see.charts.stacks import Part, Stack, Stacks
    from tritium.see.charts.time import Layer, OverTime, Track
    from tritium.see.charts.trend import Trend, TrendLevel, TrendPoint, TrendStep

__all__ = [
    "Bar", "Bars", "Cell", "Chart", "Distribution", "Dot", "Forest", "Heat", "Layer", "OverTime", "Part", "Raster", "Ratio", "Roof",
    "Roofline", "Speedup", "Stack", "Stacks", "Strip", "Track", "Trend", "TrendLevel", "TrendPoint", "TrendStep", "css",
    "responsive", "svg", "table", "variables",
]  # fmt: skip

WIDE, NARROW = 920, 360  # px of the two layouts of a page
LEAST, MOST = 280, 2000  # px
PAD = 28.0  # px around a chart in a file of its own


class Chart(Protocol):
    """The attributes that the description of every kind of chart has."""

    @property
    def title(self) -> str: ...
    @property
    def subtitle(self) -> str: ...
    @property
    def note(self) -> str: ...


class Kind(NamedTuple):
    """The drawing code of a kind of chart: a module of this package, imported on first use."""

    module: str
    parts: str = ""  # names of the classes its description consists of
    draw: str = "draw"
    table: str = "table"


KINDS: dict[str, Kind] = {  # by the class of the description
    "Bars": Kind("bars", "Bar"),
    "Speedup": Kind("ratios", "Ratio", draw="draw_speedup"),
    "Forest": Kind("ratios", draw="draw_forest"),
    "Stacks": Kind("stacks", "Part Stack"),
    "Trend": Kind("trend", "TrendLevel TrendPoint TrendStep"),
    "Distribution": Kind("distribution", "Strip"),
    "Roofline": Kind("roofline", "Dot Roof"),
    "Heat": Kind("heat", "Cell"),
    "OverTime": Kind("time", "Layer Track"),
    "Raster": Kind("raster"),
}


def __getattr__(name: str) -> Any:
    for described, kind in KINDS.items():
        if name == described or name in kind.parts.split():
            value = globals()[name] = getattr(_module(kind), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def svg(chart: Chart, *, width: float = WIDE, standalone: bool = True, theme: str | None = None, key: str = "") -> str:
    """Return the chart as SVG. Standalone: a whole file, with title and style; else for a page that has `css()`.

    theme: "light" or "dark", in plain colours, for a file; None: follow the reader's system.
    """
    draw, _ = _functions(chart)
    if not LEAST <= width <= MOST:
        raise ArgumentError(f"svg: a width of {LEAST} to {MOST} px is needed; {width!r} was given.")
    if theme is not None and not standalone:
        raise ArgumentError("svg: a chart inside a page uses the page's theme; omit theme=, or draw it standalone.")
    description = " ".join(part for part in (chart.subtitle, chart.note) if part)
    if not standalone:
        return paper.document(_add_note(draw(chart, width), chart.note), chart.title, description, name=key)
    inner = _add_note(draw(chart, width - 2 * PAD), chart.note)
    return paper.document(_add_frame(inner, chart), chart.title, description, css=paper.file_css(theme), name=key)


def responsive(chart: Chart, *, key: str = "") -> str:
    """Return both layouts for a page, which shows one of them by its width."""
    wide, narrow = (svg(chart, width=w, standalone=False, key=f"{key}{w}") for w in (WIDE, NARROW))
    return f'<div class="chart-wide">{wide}</div><div class="chart-narrow">{narrow}</div>'


def table(chart: Chart) -> Table:
    """Return the chart's data as a table: all of it, for readers who do not see the image."""
    _, tabulate = _functions(chart)
    return tabulate(chart)


def css() -> str:
    """Return the style that a page needs once: colours of both themes, and the rules of all charts."""
    return paper.page_css()


def variables(theme: str) -> dict[str, str]:
    """Return the colours of a theme as CSS custom properties."""
    return paper.variables(theme)


def _module(kind: Kind) -> Any:
    return import_module(f"tritium.see.charts.{kind.module}")


def _functions(chart: Chart) -> tuple[Callable[[Any, float], paper.Drawing], Callable[[Any], Table]]:
    """Return the functions that draw a chart and tabulate its data."""
    kind = KINDS.get(type(chart).__name__)
    module = None if kind is None else _module(kind)
    if kind is None or getattr(module, type(chart).__name__) is not type(chart):
        raise ArgumentError(f"A chart is needed ({', '.join(KINDS)}); {type(chart).__name__} was given.")
    return getattr(module, kind.draw), getattr(module, kind.table)


def _add_note(drawing: paper.Drawing, note: str) -> paper.Drawing:
    """Return the drawing with its note below."""
    lines = paper.wrap(note, drawing.width, 11) if note else []
    texts = [paper.text(0, drawing.height + 20 + 15 * i, line, "n") for i, line in enumerate(lines)]
    note_height = 15.0 * len(lines) + 12 if lines else 0.0
    return paper.Drawing(drawing.width, drawing.height + note_height, drawing.body + "".join(texts))


def _add_frame(drawing: paper.Drawing, chart: Chart) -> paper.Drawing:
    """Return the drawing on a background of its own, under its title."""
    width = drawing.width + 2 * PAD
    titles = paper.wrap(chart.title, drawing.width, 17)
    lines = paper.wrap(chart.subtitle, drawing.width, 13)
    y = PAD + 6
    parts = []
    for line in titles:
        parts.append(paper.text(PAD, y + 6, line, "h"))
        y += 22
    for line in lines:
        parts.append(paper.text(PAD, y + 4, line, "d"))
        y += 18
    y += 10 if titles or lines else 0
    height = float(math.ceil(y + drawing.height + PAD))
    ground = paper.path(paper.box(0, 0, width, height), "bg")
    moved = f'<g transform="translate({paper.number(PAD)} {paper.number(y)})">{drawing.body}</g>'
    return paper.Drawing(width, height, ground + "".join(parts) + moved)
