"""Stacked bars: memory by what holds it.

Parts are stacked from 0; a limit is a line through all bars.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.scale import MOST, Scale, amount, finite, finite_all, linear, quantity
from tritium.see.charts.svg import series


@dataclass(frozen=True)
class Part:
    """A part of a stack."""

    name: str
    value: float


@dataclass(frozen=True)
class Stack:
    """The parts of one bar; or why they are unknown."""

    name: str
    parts: tuple[Part, ...] = ()
    absent: str = ""

    @property
    def total(self) -> float:
        return min(sum(max(v, 0.0) for v in finite_all(p.value for p in self.parts)), MOST)


@dataclass(frozen=True)
class Stacks:
    """Amounts of one unit by their parts."""

    title: str
    rows: tuple[Stack, ...]
    unit: str
    limit: float | None = None
    subtitle: str = ""
    note: str = ""


def draw(chart: Stacks, width: float) -> svg.Drawing:
    """Draw a row for each stack; those of unknown size as text."""
    if not chart.rows:
        return layout.empty(width)
    kinds = list(dict.fromkeys(p.name for r in chart.rows for p in r.parts))
    f = layout.frame(width, (r.name for r in chart.rows), (_figure(r, chart.unit) for r in chart.rows))
    keys, top = layout.key(0, 12, width, kinds, layout.swatch)
    totals = [r.total for r in chart.rows]
    limit = finite(chart.limit)
    near = limit is not None and limit <= 4 * max(totals)  # a distant limit would flatten the bars
    reach = [*totals, limit] if near and limit is not None else totals
    scale = linear(reach, f.left, f.right, count=min(max(int(f.plot / 75), 2), 6), unit=chart.unit)
    parts = [keys, layout.caption(f, top + 10, _caption(chart, near))]
    top += 16 + layout.AXIS
    height = layout.ROW + f.head
    bottom = top + height * len(chart.rows)
    parts.append(layout.axis(f, scale, chart.unit, top, bottom))
    parts.append(svg.path(svg.line(scale.position(0), top, scale.position(0), bottom), "a"))
    if near and limit is not None:
        parts.append(svg.path(svg.line(scale.position(limit), top - 3, scale.position(limit), bottom), "j sbad"))
    for n, r in enumerate(chart.rows):
        parts.append(_stack(f, scale, r, n, top + height * n, kinds, chart.unit))
    return svg.Drawing(width, bottom + 4, "".join(parts))


def _why(r: Stack) -> str:
    return "" if r.parts else r.absent or "not measured"


def _figure(r: Stack, unit: str) -> str:
    return "" if _why(r) else amount(r.total, unit)


def _caption(chart: Stacks, near: bool) -> str:
    label, limit = quantity(chart.unit), finite(chart.limit)
    if limit is None:
        return label
    return f"{label} · limit {amount(limit, chart.unit)} ({'red line' if near else 'beyond the axis'})"


def _stack(f: layout.Frame, scale: Scale, r: Stack, index: int, top: float, kinds: list[str], unit: str) -> str:
    y = top + f.head + (layout.ROW - layout.BAR) / 2
    elements = [layout.backdrop(f, top, layout.ROW + f.head), layout.name(f, y, layout.BAR, r.name)]
    tip = [r.name]
    if why := _why(r):
        return svg.mark((r.name, why), *elements, layout.absence(f, y + 10, why), row=index)
    base = 0.0
    for p in r.parts:
        value = max(finite(p.value) or 0.0, 0.0)
        start, end = scale.position(base), scale.position(base + value)
        elements.append(svg.path(svg.box(start, y, end - start, layout.BAR), f"k{series(kinds.index(p.name))}"))
        tip.append(f"{p.name}: {amount(value, unit)}")
        base += value
    return svg.mark(tip, *elements, layout.figure(f, y, _figure(r, unit)), row=index)


def table(chart: Stacks) -> Table:
    """Return all parts of all rows as a table."""
    kinds = tuple(dict.fromkeys(p.name for r in chart.rows for p in r.parts))
    body = []
    for r in chart.rows:
        texts = {p.name: amount(p.value, chart.unit) for p in r.parts if finite(p.value) is not None}
        body.append((r.name, *(texts.get(k, "-") for k in kinds), _figure(r, chart.unit) or "-", _why(r)))
    return Table(chart.title, ("", *kinds, "total", "remark"), tuple(body), frozenset({*kinds, "total"}))
