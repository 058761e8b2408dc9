"""Bars: an amount for each case and contender, with its interval; for times, memory and energy.

A bar starts at 0. Amounts too far apart for that are dots on a log axis. Missing values are text, never a bar of no
length; an estimate is hatched and labelled as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.scale import Scale, amount, finite, finite_all, linear, log, quantity
from tritium.see.charts.svg import series

DECIBEL = "dB"  # a logarithm itself
FAR = 10.0  # amounts farther apart than this are dots on a log axis: the least would be a tenth of the width
NO_NUMBER = "not a number"
Placed = tuple[int, "Bar"]


@dataclass(frozen=True)
class Bar:
    """An amount of one case and contender, or why there is none."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    group: str = ""
    absent: str = ""
    estimate: bool = False
    note: str = ""
    link: str = ""


@dataclass(frozen=True)
class Bars:
    """Amounts of one unit. Consecutive bars of one name form a group."""

    title: str
    rows: tuple[Bar, ...]
    unit: str
    subtitle: str = ""
    note: str = ""
    better: str = "less is better"


def draw(chart: Bars, width: float) -> svg.Drawing:
    """Draw rows of bars or dots, with what was not measured below."""
    if not chart.rows:
        return layout.empty(width)
    blocks, reasons = layout.blocks(chart.rows, _why)
    visible = [r for block in blocks for _, r in block]
    groups = list(dict.fromkeys(r.group for r in chart.rows))
    figures = [_figure(r, chart.unit) for r in visible]
    f = layout.frame(width, (r.name for r in visible), figures, several=any(len(b) > 1 for b in blocks))
    measured = {r.group for r in chart.rows if not _why(r)}
    keys, top = layout.key(0, 12, width, groups, layout.swatch, measured)
    parts = [keys]
    if blocks:
        scale = _scale(chart, visible, f)
        parts.append(layout.caption(f, top + 10, _caption(chart, scale)))
        top += 16 + layout.AXIS
        heights = layout.heights(f, blocks)
        bottom = top + sum(heights)
        parts.append(layout.axis(f, scale, chart.unit, top, bottom, foot=bottom > layout.LONG))
        if not scale.log:
            parts.append(svg.path(svg.line(scale.position(0), top, scale.position(0), bottom), "a"))
        for block, height in zip(blocks, heights, strict=True):
            parts += _block(f, scale, block, top, groups, chart.unit)
            top += height
        top += layout.AXIS if bottom > layout.LONG else 4
    notes, notes_height = layout.draw_reasons(f, top, reasons, [r.name for r in chart.rows])
    return svg.Drawing(width, top + notes_height, "".join(parts) + notes + _hatches(visible, groups))


def table(chart: Bars) -> Table:
    """Return all rows as a table."""
    grouped = any(r.group for r in chart.rows)
    heads = ("case", *(("contender",) if grouped else ()), quantity(chart.unit) or "value", "95 % interval", "remark")
    body = [
        (r.name, *((r.group,) if grouped else ()), _figure(r, chart.unit), _interval(r, chart.unit), _remark(r))
        for r in chart.rows
    ]
    return Table(chart.title, heads, tuple(body), frozenset({heads[-3], "95 % interval"}))


def interval_text(low: float | None, high: float | None, unit: str) -> str:
    """Return both ends of an interval; "" where one is unknown."""
    a, b = finite(low), finite(high)
    return "" if a is None or b is None else f"{amount(a, unit)} … {amount(b, unit)}"


def _why(r: Bar) -> str:
    """Return why there is no amount; "" where there is one."""
    if finite(r.value) is not None:
        return ""
    return r.absent or ("not measured" if r.value is None else NO_NUMBER)


def _figure(r: Bar, unit: str) -> str:
    value = finite(r.value)
    return "" if value is None else amount(value, unit) + (" estimate" if r.estimate else "")


def _interval(r: Bar, unit: str) -> str:
    return interval_text(r.low, r.high, unit)


def _remark(r: Bar) -> str:
    return "; ".join(part for part in (_why(r), "estimate" if r.estimate and not _why(r) else "", r.note) if part)


def _scale(chart: Bars, visible: Sequence[Bar], f: layout.Frame) -> Scale:
    values = finite_all(v for r in visible for v in (r.value, r.low, r.high) if finite(r.value) is not None)
    positive = [v for v in values if v > 0]
    apart = bool(positive) and min(values) >= 0 and max(positive) / min(positive) > FAR
    wide = apart and chart.unit != DECIBEL
    count = min(max(int(f.plot / 75), 2), 6)
    if wide:
        return log(positive, f.left + 8, f.right - 8, count=count, unit=chart.unit)
    return linear(values, f.left, f.right, count=count, unit=chart.unit)


def _caption(chart: Bars, scale: Scale) -> str:
    return " · ".join(part for part in (quantity(chart.unit), "log scale" if scale.log else "", chart.better) if part)


def _block(
    f: layout.Frame, scale: Scale, block: Sequence[Placed], top: float, groups: Sequence[str], unit: str
) -> list[str]:
    """Return the bars of one name."""
    marks = []
    for index, r, y, behind in layout.place_rows(f, top, block):
        bar = _bar(f, scale, r, y, groups.index(r.group), unit)
        contender = f"{r.group}: " if r.group else ""
        interval = _interval(r, unit)
        value = f"{contender}{_figure(r, unit) or _why(r)}" + (f" ({interval}, 95 %)" if interval else "")
        marks.append(svg.mark((r.name, value, "an estimate, not a measurement" if r.estimate else "", r.note), *behind, bar,
                              row=index, link=r.link))  # fmt: skip
    return marks


def _bar(f: layout.Frame, scale: Scale, r: Bar, y: float, group: int, unit: str) -> str:
    """Draw a bar from 0, or a dot, with its interval and figure."""
    value = finite(r.value)
    if value is None:
        return layout.absence(f, y + 10, _why(r))
    colour = series(group)
    low, high = finite(r.low), finite(r.high)
    middle, end = y + layout.BAR / 2, scale.position(value)
    label = layout.figure(f, y, _figure(r, unit))
    if scale.log:
        guide = svg.path(svg.line(f.left, middle, end, middle), "g")
        spread = (
            svg.path(svg.line(scale.position(low), middle, scale.position(high), middle), f"j s{colour}")
            if low is not None and high is not None
            else ""
        )
        dot = svg.path(svg.circle(end, middle, 4), f"bg j s{colour}" if r.estimate else f"k{colour}")
        return guide + spread + (dot if value > 0 else "") + label
    start = scale.position(0)
    shape = svg.box(min(start, end), y, abs(end - start), layout.BAR)
    shapes = svg.path(shape, "v", svg.hatch(f"k{colour}")[1]) if r.estimate else svg.path(shape, f"k{colour}")
    if low is not None and high is not None:
        shapes += svg.path(svg.whisker(scale.position(low), scale.position(high), middle), "e")
    return shapes + label


def _hatches(visible: Sequence[Bar], groups: Sequence[str]) -> str:
    colours = sorted({series(groups.index(r.group)) for r in visible if r.estimate})
    return f"<defs>{''.join(svg.hatch(f'k{i}')[0] for i in colours)}</defs>" if colours else ""
