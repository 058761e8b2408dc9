"""A matrix of cases and devices: each cell's figure, coloured by its ratio to the best of its row.

A failed cell has a text on a hatched background; one that was not measured a plain background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritium.errors import ArgumentError
from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.bars import interval_text
from tritium.see.charts.scale import amount, finite, quantity, ratio_text

STEPS = (1.0, 1.1, 1.5, 2.5, 5.0, 15.0)  # times the best: the upper end of each colour; the last colour is beyond
HEIGHT, GAP = 28.0, 2.0
WIDEST = 190.0  # px of a cell
HATCH = (
    f'<defs><pattern id="{svg.ID}f" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="y" d="M0 0h6v6h-6z"/><path class="kbad p" d="M0 0h2v6h-2z"/></pattern></defs>'
)


@dataclass(frozen=True)
class Cell:
    """A figure, or the status instead of one."""

    value: float | None
    status: str = "ok"
    note: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Heat:
    """Rows of cells, one for each column."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    unit: str
    subtitle: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.cells) != len(self.rows) or any(len(row) != len(self.columns) for row in self.cells):
            raise ArgumentError(
                f"Heat: {len(self.rows)} rows of {len(self.columns)} cells are needed; "
                f"{len(self.cells)} rows of {sorted({len(row) for row in self.cells})} were given."
            )


def draw(chart: Heat, width: float) -> svg.Drawing:
    """Draw the column heads, then a row of cells for each name."""
    if not chart.rows or not chart.columns:
        return layout.empty(width)
    f = layout.frame(width, chart.rows, ())
    across = min((width - f.left) / len(chart.columns), WIDEST)
    key, top = _key(f.left, width - f.left) if len(chart.columns) > 1 else ("", 0.0)
    parts = [key]
    for i, name in enumerate(chart.columns):
        parts.append(svg.text(f.left + across * (i + 0.5), top + 12, svg.fit(name, across - 8), "o c"))
    top += 22
    pitch = HEIGHT + GAP + f.head
    for n, (name, cells) in enumerate(zip(chart.rows, chart.cells, strict=True)):
        y = top + pitch * n + f.head
        parts.append(layout.name(f, y, HEIGHT, name))
        ratios = _ratios(cells)
        for i, (cell, ratio) in enumerate(zip(cells, ratios, strict=True)):
            tip = (f"{name} · {chart.columns[i]}", *_tip(cell, ratio, chart.unit))
            parts.append(svg.mark(tip, _cell(f.left + across * i, y, across - GAP, cell, ratio, chart.unit), row=n))
    faulty = any(_value(c) is None and layout.is_fault(c.status) for row in chart.cells for c in row)
    return svg.Drawing(width, top + pitch * len(chart.rows) + 2, "".join(parts) + (HATCH if faulty else ""))


def _value(cell: Cell) -> float | None:
    return finite(cell.value) if cell.status == "ok" else None


def _ratios(cells: Sequence[Cell]) -> list[float | None]:
    """Return each cell's ratio to the best of the row; None where there is nothing to compare with."""
    values = [v for v in map(_value, cells) if v is not None and v > 0]
    if len(values) < 2:
        return [None] * len(cells)
    return [None if v is None or v <= 0 else v / min(values) for v in map(_value, cells)]


def _cell(x: float, y: float, width: float, cell: Cell, ratio: float | None, unit: str) -> str:
    value, base = _value(cell), y + HEIGHT / 2 + 4
    outline = svg.box(x, y, width, HEIGHT)
    if value is None:
        status = cell.status if cell.status != "ok" else "not measured"
        fault = layout.is_fault(status)
        ground = svg.path(outline, "v", f' fill="url(#{svg.ID}f)"') if fault else svg.path(outline, "y")
        return ground + svg.text(x + width / 2, base, svg.fit(status, width - 2, 11), "n w c" if fault else "n x c")
    level = 2 if ratio is None else sum(ratio > s * (1 + 1e-9) for s in STEPS)
    figure = amount(value, unit)
    times = f"{ratio_text(ratio)}" if ratio is not None and level else ""
    ground = svg.path(outline, f"t{level}" if ratio is not None else "y")
    figure_end = width / 2 + 14  # figures are right-aligned here
    if times and svg.text_width(figure) <= figure_end - 4 and figure_end + 10 + svg.text_width(times, 11) <= width:
        return ground + svg.text(x + figure_end, base, figure, "r") + svg.text(x + figure_end + 8, base, times, "n")
    return ground + svg.text(
        x + width / 2, base, svg.fit(figure, width - 4), "o c" if ratio is not None and not level else "c"
    )


def _tip(cell: Cell, ratio: float | None, unit: str) -> tuple[str, ...]:
    value = _value(cell)
    if value is None:
        return (cell.status if cell.status != "ok" else "not measured", cell.note)
    interval = interval_text(cell.low, cell.high, unit)
    comparison = (
        ""
        if ratio is None
        else "the best of its row"
        if ratio <= 1 + 1e-9
        else f"{ratio_text(ratio)} the best of its row"
    )
    return (amount(value, unit) + (f" ({interval}, 95 %)" if interval else ""), comparison, cell.note)


def _key(x: float, width: float) -> tuple[str, float]:
    """Draw the seven colours with their meaning; return them and their height."""
    texts = ["best", *(f"≤ {s:g}×" for s in STEPS[1:]), f"> {STEPS[-1]:g}×"]
    each = min(width / len(texts), 64.0)
    parts = []
    for i, label in enumerate(texts):
        parts.append(svg.path(svg.box(x + each * i, 2, each, 7), f"t{i}"))
        parts.append(svg.text(x + each * (i + 0.5), 22, label, "t c"))
    return "".join(parts), 36.0


def table(chart: Heat) -> Table:
    """Return the matrix as a table; failures as text."""
    body = []
    for name, cells in zip(chart.rows, chart.cells, strict=True):
        texts = []
        for cell in cells:
            value = _value(cell)
            texts.append(_tip(cell, None, chart.unit)[0] if value is None else amount(value, chart.unit))
        body.append((name, *texts))
    return Table(
        f"{chart.title} ({quantity(chart.unit)})", ("case", *chart.columns), tuple(body), frozenset(chart.columns)
    )
