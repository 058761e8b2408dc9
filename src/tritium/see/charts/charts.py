"""All charts: described once, frozen; drawn as SVG for a page, a file or a picture; told as a table.

Knows nothing of results or reports. A chart is drawn the same from the same description, byte for byte.
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
    from tritium.see.charts.ratios import Forest, Ratio, Speedup
    from tritium.see.charts.roofline import Dot, Roof, Roofline
    from tritium.see.charts.stacks import Part, Stack, Stacks
    from tritium.see.charts.time import Layer, OverTime, Track
    from tritium.see.charts.trend import Trend, TrendLevel, TrendPoint, TrendStep

__all__ = [
    "Bar", "Bars", "Cell", "Chart", "Distribution", "Dot", "Forest", "Heat", "Layer", "OverTime", "Part", "Ratio", "Roof",
    "Roofline", "Speedup", "Stack", "Stacks", "Strip", "Track", "Trend", "TrendLevel", "TrendPoint", "TrendStep", "css",
    "responsive", "svg", "table", "variables",
]  # fmt: skip

WIDE, NARROW = 920, 360  # px of the two layouts of a page
LEAST, MOST = 280, 2000  # px
PAD = 28.0  # px around a chart in a file of its own


class Chart(Protocol):
    """What the description of every kind of chart has."""

    @property
    def title(self) -> str: ...
    @property
    def subtitle(self) -> str: ...
    @property
    def note(self) -> str: ...


class Kind(NamedTuple):
    """Where a kind of chart is drawn: a module of this package, imported when the first such chart is made."""

    module: str
    parts: str = ""  # what its description is made of, by name
    draw: str = "draw"
    table: str = "table"


KINDS: dict[str, Kind] = {  # by the class that describes the chart
    "Bars": Kind("bars", "Bar"),
    "Speedup": Kind("ratios", "Ratio", draw="draw_speedup"),
    "Forest": Kind("ratios", draw="draw_forest"),
    "Stacks": Kind("stacks", "Part Stack"),
    "Trend": Kind("trend", "TrendLevel TrendPoint TrendStep"),
    "Distribution": Kind("distribution", "Strip"),
    "Roofline": Kind("roofline", "Dot Roof"),
    "Heat": Kind("heat", "Cell"),
    "OverTime": Kind("time", "Layer Track"),
}


def __getattr__(name: str) -> Any:
    for described, kind in KINDS.items():
        if name == described or name in kind.parts.split():
            value = globals()[name] = getattr(_module(kind), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def svg(chart: Chart, *, width: float = WIDE, standalone: bool = True, theme: str | None = None, key: str = "") -> str:
    """The chart as SVG. Standalone: a whole file, with title and style; else for a page that has `css()`.

    theme: "light" or "dark", in plain colours, for a file; None: as the reader's system is.
    """
    draw, _ = _functions(chart)
    if not LEAST <= width <= MOST:
        raise ArgumentError(f"svg: a width of {LEAST} to {MOST} px is needed; {width!r} was given.")
    if theme is not None and not standalone:
        raise ArgumentError("svg: inside a page the page's theme holds; leave theme out, or standalone.")
    said = " ".join(part for part in (chart.subtitle, chart.note) if part)
    if not standalone:
        return paper.document(_noted(draw(chart, width), chart.note), chart.title, said, name=key)
    inner = _noted(draw(chart, width - 2 * PAD), chart.note)
    return paper.document(_framed(inner, chart), chart.title, said, css=paper.file_css(theme), name=key)


def responsive(chart: Chart, *, key: str = "") -> str:
    """Both layouts for a page; its width shows one of them."""
    wide, narrow = (svg(chart, width=w, standalone=False, key=f"{key}{w}") for w in (WIDE, NARROW))
    return f'<div class="chart-wide">{wide}</div><div class="chart-narrow">{narrow}</div>'


def table(chart: Chart) -> Table:
    """The chart's data as text: all of it, for those who do not see the picture."""
    _, tabulate = _functions(chart)
    return tabulate(chart)


def css() -> str:
    """What a page needs once in its style: colours of both themes, and the rules of all charts."""
    return paper.page_css()


def variables(theme: str) -> dict[str, str]:
    """The colours of a theme as CSS custom properties."""
    return paper.variables(theme)


def _module(kind: Kind) -> Any:
    return import_module(f"tritium.see.charts.{kind.module}")


def _functions(chart: Chart) -> tuple[Callable[[Any, float], paper.Drawing], Callable[[Any], Table]]:
    """Return how a chart is drawn, and how its data become a table."""
    kind = KINDS.get(type(chart).__name__)
    module = None if kind is None else _module(kind)
    if kind is None or getattr(module, type(chart).__name__) is not type(chart):
        raise ArgumentError(f"A chart is needed ({', '.join(KINDS)}); {type(chart).__name__} was given.")
    return getattr(module, kind.draw), getattr(module, kind.table)


def _noted(drawing: paper.Drawing, note: str) -> paper.Drawing:
    """The drawing with its small print below."""
    lines = paper.wrapped(note, drawing.width, 11) if note else []
    drawn = [paper.text(0, drawing.height + 20 + 15 * i, said, "n") for i, said in enumerate(lines)]
    more = 15.0 * len(lines) + 12 if lines else 0.0
    return paper.Drawing(drawing.width, drawing.height + more, drawing.body + "".join(drawn))


def _framed(drawing: paper.Drawing, chart: Chart) -> paper.Drawing:
    """The drawing on paper of its own, under its title."""
    width = drawing.width + 2 * PAD
    titles = paper.wrapped(chart.title, drawing.width, 17)
    lines = paper.wrapped(chart.subtitle, drawing.width, 13)
    at = PAD + 6
    parts = []
    for said in titles:
        parts.append(paper.text(PAD, at + 6, said, "h"))
        at += 22
    for said in lines:
        parts.append(paper.text(PAD, at + 4, said, "d"))
        at += 18
    at += 10 if titles or lines else 0
    height = float(math.ceil(at + drawing.height + PAD))
    ground = paper.path(paper.box(0, 0, width, height), "bg")
    moved = f'<g transform="translate({paper.number(PAD)} {paper.number(at)})">{drawing.body}</g>'
    return paper.Drawing(width, height, ground + "".join(parts) + moved)
