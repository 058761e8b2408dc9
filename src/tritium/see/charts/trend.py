"""A metric over runs: points with intervals, levels between change points, other machines, and the canary below.

Runs are evenly spaced, oldest first. The vertical axis need not start at 0; its caption says where it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.bars import interval_text
from tritium.see.charts.scale import Scale, amount, change_text, finite, finite_all, linear, log, quantity

FAR = 50.0  # values farther apart than this are on a log axis
TIPS = 240  # points with a tooltip; beyond, some are only dots
CANARY = 42.0  # px


@dataclass(frozen=True)
class TrendPoint:
    """The value of one run."""

    label: str  # a short commit or a date
    value: float | None
    low: float | None = None
    high: float | None = None
    time: str = ""
    note: str = ""


@dataclass(frozen=True)
class TrendStep:
    """A change of level at point `index`."""

    index: int
    ratio: float
    bad: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class TrendLevel:
    """An interval of one level, from its first to its last point."""

    first: int
    last: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Trend:
    """A metric's history. `epochs`: first points on another machine. `canary`: the machine's own speed at each point."""

    title: str
    points: tuple[TrendPoint, ...]
    unit: str
    steps: tuple[TrendStep, ...] = ()
    levels: tuple[TrendLevel, ...] = ()
    epochs: tuple[int, ...] = ()
    canary: tuple[float | None, ...] = ()
    subtitle: str = ""
    note: str = ""
    better: str = "lower"


def draw(chart: Trend, width: float) -> svg.Drawing:
    """Draw the points over the levels, steps labelled above them."""
    values = finite_all(v for p in chart.points for v in (p.value, p.low, p.high))
    if not finite_all(p.value for p in chart.points):
        return layout.empty(width, "no run has a value" if chart.points else layout.EMPTY)
    height = 170.0 if width < layout.NARROW else 220.0
    top = 40.0 if chart.steps or chart.epochs else 24.0
    bottom = top + height
    positive = min(values) > 0
    if positive and max(values) / min(values) > FAR:
        y = log(values, bottom, top, count=5, unit=chart.unit)
    else:
        y = linear(values, bottom, top, count=4, unit=chart.unit, zero=False)
    last = next(v for v in (finite(p.value) for p in reversed(chart.points)) if v is not None)
    right = width - svg.text_width(amount(last, chart.unit)) - 12
    p = layout.Plot(layout.margin(y, chart.unit), right, top, bottom)
    x = _Positions(p, len(chart.points))
    parts = [
        svg.text(0, 10, svg.fit(_caption(chart, y), width, layout.TICK), "t"),
        layout.draw_vertical_axis(p, y, chart.unit),
        layout.draw_labels(
            p, [x(i) for i in range(len(chart.points))], [svg.fit(q.label, 90, 11) for q in chart.points], width
        ),
        _epochs(chart, p, x),
        _levels(chart, p, x, y),
        _line(chart, x, y),
        _points(chart, p, x, y),
        _steps(chart, p, x),
        svg.text(p.right + 8, y.position(last) + 4, amount(last, chart.unit), "o"),
    ]
    foot = bottom + layout.UNDER
    if finite_all(chart.canary):
        parts.append(_canary(chart, p, x, foot + 8))
        foot += CANARY + 12
    return svg.Drawing(width, foot, "".join(parts))


@dataclass(frozen=True)
class _Positions:
    """The x positions of points, by index."""

    plot: layout.Plot
    count: int

    def __call__(self, index: float) -> float:
        if self.count < 2:
            return (self.plot.left + self.plot.right) / 2
        inset = min(12.0, self.plot.width / 8)
        share = min(max(index / (self.count - 1), 0.0), 1.0)
        return self.plot.left + inset + share * (self.plot.width - 2 * inset)

    @property
    def step(self) -> float:
        return self.plot.width / max(self.count, 1)


def _caption(chart: Trend, y: Scale) -> str:
    start = "" if y.log or y.low == 0 else f"axis from {amount(y.low, chart.unit)}"
    better = {"lower": "↓ less is better", "higher": "↑ more is better"}.get(chart.better, "")
    return " · ".join(s for s in (quantity(chart.unit), "log scale" if y.log else start, better) if s)


def _line(chart: Trend, x: _Positions, y: Scale) -> str:
    """Draw the line through neighbours; a point without a value breaks it."""
    path_data = ""
    values = [(i, finite(q.value)) for i, q in enumerate(chart.points)]
    for present, run in groupby(values, key=lambda pair: pair[1] is not None):
        vertices = [(x(i), y.position(v)) for i, v in run if v is not None]
        path_data += svg.points(vertices) if present and len(vertices) > 1 else ""
    return svg.path(path_data, "j s1", ' stroke-opacity=".35"')


def _points(chart: Trend, p: layout.Plot, x: _Positions, y: Scale) -> str:
    parts = []
    tips = set(layout.sample_evenly(len(chart.points), TIPS)) | {s.index for s in chart.steps}
    half, radius = p.width / max(len(tips), 1) / 2, 2.8 if len(chart.points) <= 120 else 1.8
    plain: list[tuple[float, float]] = []
    for i, q in enumerate(chart.points):
        value, low, high = finite(q.value), finite(q.low), finite(q.high)
        if value is None:
            continue
        spread = ""
        if low is not None and high is not None:
            spread = svg.path(svg.line(x(i), y.position(low), x(i), y.position(high)), "j s1 p", ' stroke-opacity=".5"')
        if i not in tips:
            plain.append((x(i), y.position(value)))
            continue
        interval = interval_text(low, high, chart.unit)
        tip = (q.label, amount(value, chart.unit) + (f" ({interval}, 95 %)" if interval else ""), q.time, q.note)
        hit = svg.path(svg.box(x(i) - half, p.top, 2 * half, p.height), "b")
        parts.append(svg.mark(tip, hit, spread, svg.path(svg.circle(x(i), y.position(value), radius), "k1"), row=i))
    return svg.path(svg.dots(plain), "dots s1") + "".join(parts)


def _levels(chart: Trend, p: layout.Plot, x: _Positions, y: Scale) -> str:
    lines, bands = "", ""
    for level in chart.levels:
        value, low, high = finite(level.value), finite(level.low), finite(level.high)
        if value is None or not 0 <= level.first <= level.last < len(chart.points):
            continue
        start, end = x(level.first) - x.step / 3, x(level.last) + x.step / 3
        start, end = max(start, p.left), min(end, p.right)
        lines += svg.line(start, y.position(value), end, y.position(value))
        if low is not None and high is not None:
            bands += svg.box(start, y.position(high), end - start, y.position(low) - y.position(high))
    return svg.path(bands, "k8 p") + svg.path(lines, "e")


def _steps(chart: Trend, p: layout.Plot, x: _Positions) -> str:
    """Draw each change: a dashed line before its first point, the change above it; colliding texts are left to the tips."""
    parts, occupied = [], -1e9
    for s in sorted(chart.steps, key=lambda s: s.index):
        ratio = finite(s.ratio)
        if ratio is None or not 0 <= s.index < len(chart.points):
            continue
        bad = s.bad if s.bad is not None else (ratio > 1) == (chart.better != "higher")
        colour, step_x = "bad" if bad else "good", x(s.index - 0.5)
        label = change_text(ratio)
        width = svg.text_width(label, 12) + 14
        elements = [svg.path(svg.line(step_x, p.top - 6, step_x, p.bottom), f"q s{colour}"),
                  svg.path(svg.triangle(step_x, p.top - 12, 4, ratio > 1), f"k{colour}")]  # fmt: skip
        if step_x - 6 >= occupied and step_x + width <= p.right + 40:
            elements.append(svg.text(step_x + 8, p.top - 8, label, f"o k{colour}"))
            occupied = step_x + width
        where = chart.points[s.index].label
        parts.append(svg.mark((f"{label} from {where} on", "worse" if bad else "better", s.note), *elements))
    return "".join(parts)


def _epochs(chart: Trend, p: layout.Plot, x: _Positions) -> str:
    parts = []
    for index in chart.epochs:
        if 0 < index < len(chart.points):
            epoch_x, label = x(index - 0.5), "other machine"
            room = epoch_x + 4 + svg.text_width(label, 11) <= p.right
            text = svg.text(epoch_x + 4 if room else epoch_x - 4, p.bottom - 5, label, "t l" if room else "t l r")
            shapes = svg.path(svg.line(epoch_x, p.top - 6, epoch_x, p.bottom), "a") + text
            parts.append(svg.mark(("another machine from here on", chart.points[index].label), shapes))
    return "".join(parts)


def _canary(chart: Trend, p: layout.Plot, x: _Positions, top: float) -> str:
    """Draw the machine's own speed, on an axis of its own."""
    values = [finite(v) for v in chart.canary[: len(chart.points)]]
    present_values = finite_all(values)
    if not present_values:
        return ""
    y = linear(present_values, top + CANARY, top + 16, count=2, zero=False)
    path_data = ""
    for present, run in groupby(enumerate(values), key=lambda pair: pair[1] is not None):
        vertices = [(x(i), y.position(v)) for i, v in run if v is not None]
        path_data += (
            svg.points(vertices) if present and len(vertices) > 1 else "".join(svg.circle(a, b, 1) for a, b in vertices)
        )
    spread = max(present_values) / min(present_values) - 1 if min(present_values) > 0 else None
    label = "the machine itself (canary)" + (f": within {100 * spread:.1f} %" if spread is not None else "")
    base = svg.path(svg.line(p.left, top + CANARY + 2, p.right, top + CANARY + 2), "g")
    return base + svg.mark((label,), svg.text(p.left, top + 9, label, "t"), svg.path(path_data, "j s8"))


def table(chart: Trend) -> Table:
    """Return all points, and the steps beside them, as a table."""
    steps: dict[int, Sequence[str]] = {s.index: (change_text(s.ratio), s.note) for s in chart.steps if finite(s.ratio)}
    body = []
    for i, q in enumerate(chart.points):
        value = finite(q.value)
        body.append((
            q.label, q.time, "-" if value is None else amount(value, chart.unit), interval_text(q.low, q.high, chart.unit),
            " ".join(s for s in steps.get(i, ()) if s), q.note,
        ))  # fmt: skip
    heads = ("run", "when", quantity(chart.unit) or "value", "95 % interval", "change", "remark")
    return Table(chart.title, heads, tuple(body), frozenset({heads[2], "95 % interval", "change"}))
