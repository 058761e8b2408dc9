"""Ratios around 1 on a log axis: speed-ups as bars from 1, comparisons as a forest of intervals with a margin band.

Twice as fast and half as fast are equally far from 1. An interval that leaves the axis ends in an arrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.scale import Scale, change_text, finite, finite_all, ratio, ratio_text
from tritium.see.charts.svg import series

Placed = tuple[int, "Ratio"]


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval, or why there is none."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    outcome: str = ""  # one of OUTCOMES, or none
    group: str = ""
    absent: str = ""
    note: str = ""
    link: str = ""
    margin: float | None = None  # None: the chart's


@dataclass(frozen=True)
class Speedup:
    """Speed-ups: above 1 is faster."""

    title: str
    rows: tuple[Ratio, ...]
    base: str = ""
    subtitle: str = ""
    note: str = ""


@dataclass(frozen=True)
class Forest:
    """Ratios of new to old: below 1 is less (faster). `total`: the pooled ratio, a rhombus at the foot."""

    title: str
    rows: tuple[Ratio, ...]
    margin: float = 0.05
    total: Ratio | None = None
    subtitle: str = ""
    note: str = ""


# An outcome's colour, and its shape, which identifies it without colour.
OUTCOMES = {
    "SLOWER": ("bad", "up"),
    "MISSING": ("bad", "ring"),
    "NOT COMPARABLE": ("unsure", "ring"),
    "INCONCLUSIVE": ("unsure", "ring"),
    "CHANGED-SMALL": ("unsure", "diamond"),
    "FASTER": ("good", "down"),
    "EQUIVALENT": ("fine", "disc"),
    "": ("1", "disc"),
}


def _shape(outcome: str, x: float, y: float, size: float = 4.5) -> str:
    colour, shape = OUTCOMES.get(outcome, OUTCOMES[""])
    if shape == "ring":
        return svg.path(svg.circle(x, y, size - 0.8), f"bg j s{colour}")
    path_data = {
        "up": svg.triangle(x, y, size, True),
        "down": svg.triangle(x, y, size, False),
        "diamond": svg.diamond(x, y, size, size + 1),
        "disc": svg.circle(x, y, size - 0.5),
    }[shape]
    return svg.path(path_data, f"k{colour} i")


def why(r: Ratio) -> str:
    """Return why there is no ratio; "" where there is one."""
    value = finite(r.value)
    if value is not None and value > 0:
        return ""
    return r.absent or (r.outcome.lower() if r.outcome else "not measured" if r.value is None else "not a ratio")


def _interval_ends(r: Ratio) -> list[float]:
    """Return the ends of the interval where both are known and above 0."""
    ends = [v for v in finite_all((r.low, r.high)) if v > 0]
    return ends if len(ends) == 2 else []


def _interval(r: Ratio) -> str:
    ends = _interval_ends(r)
    return f"{ratio_text(ends[0])} … {ratio_text(ends[1])}" if ends else ""


def _scale(ratios: Sequence[Ratio], f: layout.Frame, always: Sequence[float] = ()) -> Scale:
    """Return an axis for all ratios, and for their intervals as far as these do not flatten the rest."""
    values = [*finite_all(r.value for r in ratios if not why(r)), *always, 1.0]
    low, high = math.log(min(values)), math.log(max(values))
    room = max(high - low, 0.04)
    ends = [math.log(v) for r in ratios if not why(r) for v in _interval_ends(r)]
    reached = [math.exp(min(max(e, low - room), high + room)) for e in ends]
    return ratio([*values, *reached], f.left + 6, f.right - 6, count=max(int(f.plot / 60), 2))


def _arrows(scale: Scale, ends: Sequence[float], y: float) -> str:
    """Draw an interval; an arrow where it goes on beyond the axis."""
    low, high = scale.position(ends[0]), scale.position(ends[1])
    shape = svg.whisker(low, high, y, 0)
    if ends[0] < scale.low * 0.999:
        shape += f"M{svg.number(low + 5)} {svg.number(y - 3)}l-5 3l5 3"
    if ends[1] > scale.high * 1.001:
        shape += f"M{svg.number(high - 5)} {svg.number(y - 3)}l5 3l-5 3"
    return shape


def _directions(f: layout.Frame, scale: Scale, y: float, left: str, right: str, kinds: tuple[str, str]) -> str:
    """Draw the meaning of either side of 1."""
    centre = scale.position(1.0)
    texts = ""
    if left and centre - svg.text_width(f"← {left}", layout.TICK) - 8 >= 0:
        texts += svg.text(centre - 8, y, f"← {left}", f"t r {kinds[0]}")
    if right and centre + svg.text_width(f"{right} →", layout.TICK) + 8 <= f.width:
        texts += svg.text(centre + 8, y, f"{right} →", f"t {kinds[1]}")
    return texts


# ---- speed-ups


def draw_speedup(chart: Speedup, width: float) -> svg.Drawing:
    """Draw bars from 1 to either side; rows without a ratio as text."""
    if not chart.rows:
        return layout.empty(width)
    blocks, reasons = layout.blocks(chart.rows, why)
    visible = [r for block in blocks for _, r in block]
    groups = list(dict.fromkeys(r.group for r in chart.rows))
    figures = [ratio_text(r.value or 0.0) for r in visible if not why(r)]
    f = layout.frame(width, (r.name for r in visible), figures, several=any(len(b) > 1 for b in blocks))
    keys, top = layout.key(0, 12, width, groups, layout.swatch, {r.group for r in chart.rows if not why(r)})
    parts = [keys]
    if blocks:
        scale = _scale(visible, f)
        parts.append(_directions(f, scale, top + 10, "slower", "faster", ("kbad", "kgood")))
        top += 16 + layout.AXIS
        heights = layout.heights(f, blocks)
        bottom = top + sum(heights)
        parts.append(layout.axis(f, scale, "×", top, bottom, foot=bottom > layout.LONG))
        parts.append(svg.path(svg.line(scale.position(1), top, scale.position(1), bottom), "z"))
        for block, height in zip(blocks, heights, strict=True):
            parts += _speedups(f, scale, block, top, groups, chart.base)
            top += height
        top += layout.AXIS if bottom > layout.LONG else 4
    notes, notes_height = layout.draw_reasons(f, top, reasons, [r.name for r in chart.rows])
    return svg.Drawing(width, top + notes_height, "".join(parts) + notes)


def _state(r: Ratio) -> str:
    """Return the state of a speed-up: good or bad where its interval excludes 1."""
    value, ends = r.value or 1.0, _interval_ends(r)
    if ends and ends[0] <= 1 <= ends[1]:
        return "fine"
    return "good" if value > 1 else "bad" if value < 1 else "fine"


def _speedups(
    f: layout.Frame, scale: Scale, block: Sequence[Placed], top: float, groups: Sequence[str], base: str
) -> list[str]:
    marks = []
    for index, r, y, elements in layout.place_rows(f, top, block):
        if reason := why(r):
            elements.append(layout.absence(f, y + 10, reason))
            description = reason
        else:
            elements.append(
                _speedup(f, scale, r, y, f"{series(groups.index(r.group))}" if len(groups) > 1 else _state(r))
            )
            interval = _interval(r)
            description = f"{ratio_text(r.value or 0.0)}" + (f" ({interval}, 95 %)" if interval else "")
            description += f" as fast as {base}" if base else ""
        tip = (r.name, (f"{r.group}: " if r.group else "") + description, r.note)
        marks.append(svg.mark(tip, *elements, row=index, link=r.link))
    return marks


def _speedup(f: layout.Frame, scale: Scale, r: Ratio, y: float, colour: str) -> str:
    start, end = scale.position(1), scale.position(r.value or 1.0)
    shapes = svg.path(svg.box(min(start, end), y, max(abs(end - start), 0.5), layout.BAR), f"k{colour}")
    if ends := _interval_ends(r):
        shapes += svg.path(_arrows(scale, ends, y + layout.BAR / 2), "e")
    return shapes + layout.figure(f, y, ratio_text(r.value or 0.0))


# ---- forests


def draw_forest(chart: Forest, width: float) -> svg.Drawing:
    """Draw an interval and its centre for each row, over the band within which a change does not matter."""
    if not chart.rows:
        return layout.empty(width)
    hidden, reasons = layout.merge_absent(chart.rows, why)
    visible = [(i, r) for i, r in enumerate(chart.rows) if i not in hidden]
    ratios = [r for _, r in visible] + ([chart.total] if chart.total else [])
    f = layout.frame(width, (_label(chart, r) for r in ratios), (_figure(r, width) for r in ratios))
    outcomes = [o for o in OUTCOMES if any(r.outcome == o for r in chart.rows) and o]
    labels = [f"{sum(r.outcome == o for r in chart.rows)} {o.lower()}" for o in outcomes]
    keys, top = layout.key(0, 12, width, labels, lambda i, x, y: _shape(outcomes[i], x, y))
    parts = [keys]
    if ratios:
        rows, top = _forest(chart, f, visible, ratios, top)
        parts.append(rows)
    notes, notes_height = layout.draw_reasons(f, top, reasons, [r.name for r in chart.rows])
    return svg.Drawing(width, top + notes_height, "".join(parts) + notes)


def _forest(
    chart: Forest, f: layout.Frame, visible: Sequence[Placed], ratios: Sequence[Ratio], top: float
) -> tuple[str, float]:
    """Draw the axis with its band, the rows and their total; return them and the bottom."""
    margins = sorted({_margin(chart, r) for _, r in visible})
    scale = _scale(ratios, f, [1 + m for m in margins] + [1 / (1 + m) for m in margins])
    parts = [_directions(f, scale, top + 10, "faster", "slower", ("kgood", "kbad"))]
    top += 16 + layout.AXIS
    height = layout.ROW + f.head
    bottom = top + height * len(ratios) + (8 if chart.total else 0)
    if len(margins) == 1:
        parts.append(_band(scale, margins[0], top, bottom - top))
    parts.append(layout.axis(f, scale, "change", top, bottom, foot=bottom > layout.LONG))
    parts.append(svg.path(svg.line(scale.position(1), top, scale.position(1), bottom), "z"))
    for n, (index, r) in enumerate(visible):
        y = top + height * n
        band = _band(scale, _margin(chart, r), y + f.head + 3, layout.ROW - 6) if len(margins) > 1 else ""
        parts.append(_row(f, scale, replace(r, name=_label(chart, r)), y, height, band, index))
    if chart.total:
        parts.append(_total(f, scale, chart.total, bottom - height, height))
    return "".join(parts), bottom + (layout.AXIS if bottom > layout.LONG else 4)


def _label(chart: Forest, r: Ratio) -> str:
    """Return the name, with the contender where there are several."""
    return f"{r.name} · {r.group}" if r.group and len({o.group for o in chart.rows}) > 1 else r.name


def _margin(chart: Forest, r: Ratio) -> float:
    return max(finite(chart.margin if r.margin is None else r.margin) or 0.0, 0.0)


def _figure(r: Ratio, width: float) -> str:
    if why(r):
        return ""
    ends = _interval_ends(r)
    change = change_text(r.value or 1.0)
    if not ends or width < layout.NARROW:
        return change
    changes = [change_text(v) for v in (r.value or 1.0, *ends)]
    if not all(t.endswith("%") for t in changes):
        return f"{ratio_text(r.value or 1.0)}  ({_interval(r)})"
    return f"{change}  ({changes[1].removesuffix(' %')} … {changes[2].removesuffix(' %')})"


def _band(scale: Scale, margin: float, y: float, height: float) -> str:
    low, high = scale.position(1 / (1 + margin)), scale.position(1 + margin)
    return svg.path(svg.box(low, y, high - low, height), "y")


def _row(f: layout.Frame, scale: Scale, r: Ratio, top: float, height: float, band: str, index: int) -> str:
    y = top + f.head + (layout.ROW - layout.BAR) / 2
    elements = [layout.backdrop(f, top, height), band, layout.name(f, y, layout.BAR, r.name)]
    if reason := why(r):
        elements.append(layout.absence(f, y + 10, reason))
        return svg.mark((r.name, r.outcome.lower(), reason, r.note), *elements, row=index, link=r.link)
    colour = OUTCOMES.get(r.outcome, OUTCOMES[""])[0]
    middle = y + layout.BAR / 2
    if ends := _interval_ends(r):
        elements.append(svg.path(_arrows(scale, ends, middle), f"j s{colour}"))
    elements += [_shape(r.outcome, scale.position(r.value or 1.0), middle), layout.figure(f, y, _figure(r, f.width))]
    interval = _interval(r)
    description = f"{ratio_text(r.value or 1.0)}, {change_text(r.value or 1.0)}" + (
        f" ({interval}, 95 %)" if interval else ""
    )
    return svg.mark((r.name, r.outcome.lower(), description, r.absent, r.note), *elements, row=index, link=r.link)


def _total(f: layout.Frame, scale: Scale, r: Ratio, top: float, height: float) -> str:
    y = top + f.head + (layout.ROW - layout.BAR) / 2
    elements = [
        svg.path(svg.line(0, top - 4, f.width, top - 4), "g"),
        layout.backdrop(f, top, height),
        layout.name(f, y, layout.BAR, r.name, "o"),
    ]
    if reason := why(r):
        return svg.mark((r.name, reason), *elements, layout.absence(f, y + 10, reason))
    centre, middle = scale.position(r.value or 1.0), y + layout.BAR / 2
    ends = _interval_ends(r) or [r.value or 1.0, r.value or 1.0]
    low, high = min(scale.position(ends[0]), centre - 3), max(scale.position(ends[1]), centre + 3)
    shape = svg.points([(low, middle), (centre, middle - 6), (high, middle), (centre, middle + 6)]) + "z"
    elements += [svg.path(shape, "k8 i"), layout.figure(f, y, _figure(r, f.width), "o")]
    return svg.mark((r.name, _figure(r, layout.NARROW), r.note), *elements)


# ---- tables


def table(chart: Speedup | Forest) -> Table:
    """Return all ratios as a table."""
    ratios = chart.rows + ((chart.total,) if isinstance(chart, Forest) and chart.total else ())
    grouped = any(r.group for r in ratios)
    heads = ("case", *(("contender",) if grouped else ()), "ratio", "95 % interval", "outcome", "remark")
    body = [
        (
            r.name, *((r.group,) if grouped else ()), "-" if why(r) else ratio_text(r.value or 0.0), _interval(r),
            r.outcome.lower(), "; ".join(s for s in (why(r), r.note) if s),
        )
        for r in ratios
    ]  # fmt: skip
    return Table(chart.title, heads, tuple(body), frozenset({"ratio", "95 % interval"}))
