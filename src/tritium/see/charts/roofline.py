"""The roofline: achieved rates of ops under the ceilings of the machine, both axes logarithmic.

Sloped roofs are memory levels, flat ones arithmetic; an op's dot is as large as its share of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tritium.perf.records.environment import Ceiling
from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.scale import Scale, amount, finite, log
from tritium.see.charts.svg import series

NAMED = 12  # dots that are labelled, where there is room
SMALLEST, LARGEST = 3.5, 11.0  # px: radii of dots
APART = 13.0  # px between the names of roofs
STEP = 12  # px by which a roof's label is moved until no dot covers it
UNITS = {"flops": "FLOP/s", "int_ops": "OP/s", "bytes": "B/s"}  # by the kind of a ceiling


class Box(NamedTuple):
    """A rectangle in px."""

    left: float
    top: float
    right: float
    bottom: float


class Segment(NamedTuple):
    """A straight line from one end to the other, in px."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Roof:
    """A ceiling of the machine: operations a second, or bytes a second."""

    name: str
    value: float
    kind: str = "compute"  # or "memory"
    main: bool = True
    unit: str = ""  # of its value; "": the chart's, or bytes a second


@dataclass(frozen=True)
class Dot:
    """An op: operations for each byte moved, and operations a second. `weight`: its share of the time."""

    name: str
    intensity: float
    rate: float
    group: str = ""
    weight: float = 1.0
    note: str = ""


@dataclass(frozen=True)
class Roofline:
    """Ops under the roofs of one machine."""

    title: str
    roofs: tuple[Roof, ...]
    points: tuple[Dot, ...]
    unit: str = "FLOP/s"
    subtitle: str = ""
    note: str = ""
    absent: str = ""


def roofs_of(ceilings: Sequence[Ceiling], integer: bool) -> tuple[Roof, ...]:
    """Return the ceilings of a machine as roofs: the farthest memory is the main slope, int8 is included if `integer`."""
    last = max((i for i, c in enumerate(ceilings) if c.kind == "bytes"), default=-1)
    return tuple(
        Roof(
            c.name, c.rate, "memory" if c.kind == "bytes" else "compute", c.kind == "flops" or i == last, UNITS[c.kind]
        )
        for i, c in enumerate(ceilings)
        if c.kind != "int_ops" or integer
    )


def draw(chart: Roofline, width: float) -> svg.Drawing:
    """Draw the roofs, then the dots, the heaviest first so that small ones stay visible."""
    dots = [(i, d) for i, d in enumerate(chart.points) if _is_positive(d.intensity) and _is_positive(d.rate)]
    roofs = [r for r in chart.roofs if _is_positive(r.value)]
    if not dots and not roofs:
        return layout.empty(width, chart.absent or layout.EMPTY)
    groups = list(dict.fromkeys(d.group for d in chart.points))
    keys, top = layout.key(0, 12, width, groups, lambda i, x, y: svg.path(svg.circle(x, y, 4.5), f"k{series(i)}"))
    top += 30
    bottom = top + (300.0 if width < layout.NARROW else 360.0)
    xs, ys = _reach(dots, roofs)
    y = log(ys, bottom, top, count=7)
    left = layout.margin(y, chart.unit)
    p = layout.Plot(left, width - 12, top, bottom)
    x = log(xs, p.left, p.right, count=max(int(p.width / 90), 3))
    placed = _place_dots(dots, x, y)
    boxes = [Box(d.x - d.radius, d.y - d.radius, d.x + d.radius, d.y + d.radius) for d in placed]
    intensity = f"{chart.unit.removesuffix('/s')} for each byte moved · both axes log"
    parts = [
        keys,
        svg.text(0, top - 16, svg.fit(f"{chart.unit} reached", width, 11), "t"),
        layout.draw_vertical_axis(p, y, chart.unit),
        layout.draw_horizontal_axis(p, x, "", width, lines=True),
        svg.text(p.right, bottom + 32, svg.fit(intensity, p.width, 11), "t r"),
        _under(roofs, p, x, y),
        _roofs(roofs, p, x, y, chart.unit, boxes),
        _dots(placed, groups, p, chart.unit, boxes, _lines(roofs, p, x, y)),
    ]
    for i, line in enumerate(svg.wrap(chart.absent, p.width - 16) if chart.absent else ()):
        parts.append(svg.text(p.left + 8, top + 16 + 16 * i, line, "x"))
    return svg.Drawing(width, bottom + 40, "".join(parts))


def _is_positive(value: float) -> bool:
    number = finite(value)
    return number is not None and number > 0


def _kinds(roofs: Sequence[Roof], kind: str) -> list[Roof]:
    return sorted((r for r in roofs if r.kind == kind), key=lambda r: -r.value)


def _reach(dots: Sequence[tuple[int, Dot]], roofs: Sequence[Roof]) -> tuple[list[float], list[float]]:
    """Return what both axes must show: the dots and the intersections of the roofs, with room around."""
    tops, slopes = _kinds(roofs, "compute"), _kinds(roofs, "memory")
    ridges = [tops[0].value / slopes[-1].value] if tops and slopes else []
    xs = [d.intensity for _, d in dots] + ridges
    if not xs:
        xs = [0.1, 10.0]
    ys = [d.rate for _, d in dots] + [r.value for r in tops]
    if not ys:
        ys = [slopes[0].value * v for v in xs]
    xs = [min(xs) / 3, max(xs) * 4]
    if not dots and slopes:
        ys.append(slopes[-1].value * xs[0])
    return xs, [min(ys) / 2, max(ys) * 2]


def _under(roofs: Sequence[Roof], p: layout.Plot, x: Scale, y: Scale) -> str:
    """Draw the attainable area under the main roofs, shaded."""
    tops = [r for r in _kinds(roofs, "compute") if r.main]
    slopes = [r for r in _kinds(roofs, "memory") if r.main]
    if not tops or not slopes:
        return ""
    slope, flat = slopes[-1].value, tops[0].value
    ridge = flat / slope
    outline = [(p.left, p.bottom)]
    start = max(x.low, y.low / slope)
    outline += [
        (x.position(start), y.position(slope * start)),
        (x.position(ridge), y.position(flat)),
        (p.right, y.position(flat)),
        (p.right, p.bottom),
    ]
    return svg.path(svg.points(outline) + "z", "y f")


def _roofs(roofs: Sequence[Roof], p: layout.Plot, x: Scale, y: Scale, unit: str, boxes: list[Box]) -> str:
    """Draw the roofs with their labels, the main ones first; the boxes of the labels are added to those of the dots."""
    tops, slopes = _kinds(roofs, "compute"), _kinds(roofs, "memory")
    fastest = slopes[0].value if slopes else math.inf
    highest = tops[0].value if tops else math.inf
    parts: list[str] = []
    heights: list[float] = []
    for r in sorted(tops, key=lambda r: not r.main):
        start, height = x.position(r.value / fastest), y.position(r.value)
        elements = [svg.path(svg.line(start, height, p.right, height), "e" if r.main else "z")]
        if all(abs(height - other) >= APART for other in heights):
            elements.append(_label_flat(r, start, height, p, unit, boxes))
            heights.append(height)
        parts.append(svg.mark((r.name, amount(r.value, r.unit or unit)), *elements))
    offsets: list[float] = []
    for r in sorted(slopes, key=lambda r: not r.main):
        ends = _ends(r, x, y, highest)
        if ends is None:
            continue
        elements = [svg.path(svg.line(*ends), "e" if r.main else "z")]
        offset = math.log10(r.value) * _slope(y)  # of this one of the parallel lines
        below = r is slopes[-1]  # no line is under the last one, so its label meets none there
        free = below or all(abs(offset - other) >= APART * 1.3 for other in offsets)
        if free and math.hypot(ends.x2 - ends.x1, ends.y2 - ends.y1) > 70:
            elements.append(_label_slope(r, ends, boxes, below))
            offsets += [] if below else [offset]
        parts.append(svg.mark((r.name, amount(r.value, "B/s")), *elements))
    return "".join(parts)


def _ends(r: Roof, x: Scale, y: Scale, highest: float) -> Segment | None:
    """Return a sloped roof from its lower end to the highest flat one; None: outside the plot."""
    first, last = max(x.low, y.low / r.value), min(x.high, highest / r.value, y.high / r.value)
    if last <= first:
        return None
    return Segment(x.position(first), y.position(r.value * first), x.position(last), y.position(r.value * last))


def _lines(roofs: Sequence[Roof], p: layout.Plot, x: Scale, y: Scale) -> list[Box]:
    """Return boxes along all roofs, which labels of dots avoid if they can."""
    tops, slopes = _kinds(roofs, "compute"), _kinds(roofs, "memory")
    fastest = slopes[0].value if slopes else math.inf
    out = [Box(x.position(r.value / fastest), y.position(r.value) - 1, p.right, y.position(r.value) + 1) for r in tops]
    for r in slopes:
        if (ends := _ends(r, x, y, tops[0].value if tops else math.inf)) is None:
            continue
        count = max(int((ends.x2 - ends.x1) / 6), 1)
        shares = [(i / count, (i + 1) / count) for i in range(count)]
        across, up = ends.x2 - ends.x1, ends.y1 - ends.y2
        out += [Box(ends.x1 + a * across, ends.y1 - b * up, ends.x1 + b * across, ends.y1 - a * up) for a, b in shares]
    return out


def _label_flat(r: Roof, start: float, height: float, p: layout.Plot, unit: str, boxes: list[Box]) -> str:
    """Draw a flat roof's label, at its right end or as far left of it as no dot covers it."""
    label = svg.fit(f"{r.name} {amount(r.value, r.unit or unit)}", max(p.right - start - 8, 60), 11)
    width = svg.text_width(label, 11)
    ends = [p.right - 4 - i for i in range(0, max(int(p.right - 4 - width - start), 0) + 1, STEP)]
    end = next((e for e in ends if not _covered(Box(e - width, height - 14, e, height), boxes)), ends[0])
    boxes.append(Box(end - width, height - 14, end + 4, height))
    return svg.text(end, height - 4, label, "n l r")


def _covered(box: Box, boxes: Sequence[Box]) -> bool:
    """Return True if a box overlaps any other."""
    return any(b.left < box.right and b.right > box.left and b.top < box.bottom and b.bottom > box.top for b in boxes)


def _slope(scale: Scale) -> float:
    """Return the px for a decade."""
    return abs(scale.end - scale.start) / math.log10(scale.high / scale.low)


def _label_slope(r: Roof, ends: Segment, boxes: list[Box], below: bool) -> str:
    """Draw a roof's label along it (above or below) from its lower end, or as far up as no dot covers it."""
    across, up = ends.x2 - ends.x1, ends.y1 - ends.y2
    length = math.hypot(across, up)
    label = svg.fit(f"{r.name} {amount(r.value, 'B/s')}", length - 24, 11)
    width = svg.text_width(label, 11)

    def text_boxes(start: int) -> list[Box]:
        """Return boxes along the rotated text."""
        shares = [(start + 4 + i) / length for i in range(0, int(width), 8)]
        positions = [(ends.x1 + share * across, ends.y1 - share * up) for share in shares]
        distance = 9 if below else -8  # from the line to the text's middle
        middles = [(x + distance * up / length, y + distance * across / length) for x, y in positions]
        return [Box(x - 6, y - 6, x + 6, y + 6) for x, y in middles]

    starts = list(range(14, max(int(length - width - 10), 14) + 1, STEP))
    start = min(starts, key=lambda s: sum(_covered(box, boxes) for box in text_boxes(s)))
    boxes += text_boxes(start)
    transform = f"translate({svg.number(ends.x1)} {svg.number(ends.y1)}) rotate({svg.number(-math.degrees(math.atan2(up, across)))})"
    return f'<g transform="{transform}">{svg.text(start, 13 if below else -4, label, "n l")}</g>'


class Placed(NamedTuple):
    """A dot with its row in the table, its centre and its radius."""

    row: int
    dot: Dot
    x: float
    y: float
    radius: float


def _place_dots(dots: Sequence[tuple[int, Dot]], x: Scale, y: Scale) -> list[Placed]:
    """Return every dot with its position and radius, the heaviest first."""
    heaviest = max((d.weight for _, d in dots if _is_positive(d.weight)), default=1.0)
    ordered = sorted(dots, key=lambda pair: (-(finite(pair[1].weight) or 0.0), pair[0]))
    placed = []
    for index, d in ordered:
        share = min(max((finite(d.weight) or 0.0) / heaviest, 0.0), 1.0)
        radius = max(LARGEST * math.sqrt(share), SMALLEST) if len(dots) > 1 else 6.0
        placed.append(Placed(index, d, x.position(d.intensity), y.position(d.rate), radius))
    return placed


def _dots(
    placed: Sequence[Placed], groups: Sequence[str], p: layout.Plot, unit: str, boxes: list[Box], lines: Sequence[Box]
) -> str:
    """Draw a dot for each op; the heaviest are labelled where `boxes` leaves room, clear of the `lines` if possible."""
    parts = []
    for n, (index, d, x, y, radius) in enumerate(placed):
        shape = svg.path(svg.circle(x, y, radius), f"k{series(groups.index(d.group))} i", ' fill-opacity=".85"')
        label = _label(d.name, x, y, radius, p, boxes, lines) if n < NAMED else ""
        tip = (d.name, f"{amount(d.rate, unit)} at {amount(d.intensity, '')} {unit.removesuffix('/s')}/B",
               f"{d.group}" if d.group else "", d.note)  # fmt: skip
        parts.append(svg.mark(tip, shape, label, row=index))
    return "".join(parts)


def _label(name: str, x: float, y: float, radius: float, p: layout.Plot, boxes: list[Box], lines: Sequence[Box]) -> str:
    """Draw the dot's label beside it, at the first position where it covers nothing; a line if it must."""
    text = svg.fit(name, 130, 11)
    width = svg.text_width(text, 11)
    positions = (
        (x + radius + 4, y + 4), (x - radius - 4 - width, y + 4), (x - width / 2, y - radius - 5),
        (x - width / 2, y + radius + 12),
    )  # fmt: skip
    for obstacles in ((*boxes, *lines), boxes):
        for start, base in positions:
            box = Box(start, base - 9, start + width, base + 2)
            inside = box.left >= p.left + 2 and box.right <= p.right and box.top >= p.top and box.bottom <= p.bottom
            if inside and not _covered(box, obstacles):
                boxes.append(box)
                return svg.text(start, base, text, "n l")
    return ""


def table(chart: Roofline) -> Table:
    """Return the roofs, then the dots, as a table."""
    body = [(r.name, r.kind, "-", amount(r.value, "B/s" if r.kind == "memory" else r.unit or chart.unit), "")
            for r in chart.roofs if _is_positive(r.value)]  # fmt: skip
    for d in chart.points:
        drawable = _is_positive(d.intensity) and _is_positive(d.rate)
        body.append((
            d.name, d.group or "op", amount(d.intensity, "") if drawable else "-", amount(d.rate, chart.unit) if drawable else "-",
            d.note,
        ))  # fmt: skip
    heads = ("name", "kind", f"{chart.unit.removesuffix('/s')}/B", chart.unit, "remark")
    return Table(chart.title, heads, tuple(body), frozenset(heads[2:4]))
