"""The roofline: what ops reach over what the machine allows, both axes logarithmic.

Knows nothing of kernels. Slanting roofs are memory levels, level ones arithmetic; an op's dot is as large as its share of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tritium.perf.records.environment import Ceiling
from tritium.perf.tables.table import Table
from tritium.see.charts import layout, svg
from tritium.see.charts.scale import Scale, amount, finite, log
from tritium.see.charts.svg import series

NAMED = 12  # dots that get their name beside them, where there is room
SMALLEST, LARGEST = 3.5, 11.0  # px: radii of dots
APART = 13.0  # px between the names of roofs
STEP = 12  # px by which a roof's name is moved until no dot covers it
UNITS = {"flops": "FLOP/s", "int_ops": "OP/s", "bytes": "B/s"}  # by the kind of a ceiling
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Roof:
    """A limit of the machine: operations a second, or bytes a second."""

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
    """Return the ceilings of a machine as roofs: the farthest memory is the main slope, int8 is there if `integer`."""
    last = max((i for i, c in enumerate(ceilings) if c.kind == "bytes"), default=-1)
    return tuple(
        Roof(
            c.name, c.rate, "memory" if c.kind == "bytes" else "compute", c.kind == "flops" or i == last, UNITS[c.kind]
        )
        for i, c in enumerate(ceilings)
        if c.kind != "int_ops" or integer
    )


def draw(chart: Roofline, width: float) -> svg.Drawing:
    """Roofs, then dots, the heaviest first so that small ones stay in sight."""
    dots = [(i, d) for i, d in enumerate(chart.points) if _above(d.intensity) and _above(d.rate)]
    roofs = [r for r in chart.roofs if _above(r.value)]
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
    placed = _placed(dots, x, y)
    boxes: list[Box] = [(at - r, up - r, at + r, up + r) for _, _, at, up, r in placed]
    per = f"{chart.unit.removesuffix('/s')} for each byte moved · both axes log"
    parts = [
        keys,
        svg.text(0, top - 16, svg.fit(f"{chart.unit} reached", width, 11), "t"),
        layout.upright(p, y, chart.unit),
        layout.flat(p, x, "", width, lines=True),
        svg.text(p.right, bottom + 32, svg.fit(per, p.width, 11), "t r"),
        _under(roofs, p, x, y),
        _roofs(roofs, p, x, y, chart.unit, boxes),
        _dots(placed, groups, p, chart.unit, boxes, _lines(roofs, p, x, y)),
    ]
    for i, said in enumerate(svg.wrapped(chart.absent, p.width - 16) if chart.absent else ()):
        parts.append(svg.text(p.left + 8, top + 16 + 16 * i, said, "x"))
    return svg.Drawing(width, bottom + 40, "".join(parts))


def _above(value: float) -> bool:
    known = finite(value)
    return known is not None and known > 0


def _kinds(roofs: Sequence[Roof], kind: str) -> list[Roof]:
    return sorted((r for r in roofs if r.kind == kind), key=lambda r: -r.value)


def _reach(dots: Sequence[tuple[int, Dot]], roofs: Sequence[Roof]) -> tuple[list[float], list[float]]:
    """What both axes must show: the dots, and where the roofs meet, with room around."""
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
    """What lies under the main roofs, shaded: the machine can be there."""
    tops = [r for r in _kinds(roofs, "compute") if r.main]
    slopes = [r for r in _kinds(roofs, "memory") if r.main]
    if not tops or not slopes:
        return ""
    slope, flat = slopes[-1].value, tops[0].value
    ridge = flat / slope
    outline = [(p.left, p.bottom)]
    start = max(x.low, y.low / slope)
    outline += [
        (x.at(start), y.at(slope * start)),
        (x.at(ridge), y.at(flat)),
        (p.right, y.at(flat)),
        (p.right, p.bottom),
    ]
    return svg.path(svg.points(outline) + "z", "y f")


def _roofs(roofs: Sequence[Roof], p: layout.Plot, x: Scale, y: Scale, unit: str, boxes: list[Box]) -> str:
    """The lines with their names, the main ones first; `boxes` knows the dots, and learns where the names stand."""
    tops, slopes = _kinds(roofs, "compute"), _kinds(roofs, "memory")
    fastest = slopes[0].value if slopes else math.inf
    highest = tops[0].value if tops else math.inf
    parts: list[str] = []
    taken: list[float] = []
    for r in sorted(tops, key=lambda r: not r.main):
        start, at = x.at(r.value / fastest), y.at(r.value)
        inside = [svg.path(svg.line(start, at, p.right, at), "e" if r.main else "z")]
        if all(abs(at - other) >= APART for other in taken):
            inside.append(_level(r, start, at, p, unit, boxes))
            taken.append(at)
        parts.append(svg.mark((r.name, amount(r.value, r.unit or unit)), *inside))
    named: list[float] = []
    for r in sorted(slopes, key=lambda r: not r.main):
        ends = _ends(r, x, y, highest)
        if ends is None:
            continue
        inside = [svg.path(svg.line(*ends), "e" if r.main else "z")]
        along = math.log10(r.value) * _slope(y)  # parallel lines: how high this one lies
        below = r is slopes[-1]  # nothing lies under the last: its name cannot meet another line
        free = below or all(abs(along - other) >= APART * 1.3 for other in named)
        if free and math.hypot(ends[2] - ends[0], ends[3] - ends[1]) > 70:
            inside.append(_along(r, ends, boxes, below))
            named += [] if below else [along]
        parts.append(svg.mark((r.name, amount(r.value, "B/s")), *inside))
    return "".join(parts)


def _ends(r: Roof, x: Scale, y: Scale, highest: float) -> Box | None:
    """Where a slanting roof begins and where it meets the highest level one."""
    first, last = max(x.low, y.low / r.value), min(x.high, highest / r.value, y.high / r.value)
    return (x.at(first), y.at(r.value * first), x.at(last), y.at(r.value * last)) if last > first else None


def _lines(roofs: Sequence[Roof], p: layout.Plot, x: Scale, y: Scale) -> list[Box]:
    """Boxes along all roofs: a dot's name stands on none of them if it can."""
    tops, slopes = _kinds(roofs, "compute"), _kinds(roofs, "memory")
    fastest = slopes[0].value if slopes else math.inf
    out: list[Box] = [(x.at(r.value / fastest), y.at(r.value) - 1, p.right, y.at(r.value) + 1) for r in tops]
    for r in slopes:
        if (ends := _ends(r, x, y, tops[0].value if tops else math.inf)) is None:
            continue
        count = max(int((ends[2] - ends[0]) / 6), 1)
        shares = [(i / count, (i + 1) / count) for i in range(count)]
        across, up = ends[2] - ends[0], ends[1] - ends[3]
        out += [(ends[0] + a * across, ends[1] - b * up, ends[0] + b * across, ends[1] - a * up) for a, b in shares]
    return out


def _level(r: Roof, start: float, at: float, p: layout.Plot, unit: str, boxes: list[Box]) -> str:
    """A level roof's name, at its right end or as far left of it as no dot covers it."""
    said = svg.fit(f"{r.name} {amount(r.value, r.unit or unit)}", max(p.right - start - 8, 60), 11)
    wide = svg.text_width(said, 11)
    ends = [p.right - 4 - i for i in range(0, max(int(p.right - 4 - wide - start), 0) + 1, STEP)]
    end = next((e for e in ends if not _covered((e - wide, at - 14, e, at), boxes)), ends[0])
    boxes.append((end - wide, at - 14, end + 4, at))
    return svg.text(end, at - 4, said, "n l r")


def _covered(box: Box, boxes: Sequence[Box]) -> bool:
    return any(a < box[2] and c > box[0] and b < box[3] and d > box[1] for a, b, c, d in boxes)


def _slope(scale: Scale) -> float:
    """px for a decade."""
    return abs(scale.end - scale.start) / math.log10(scale.high / scale.low)


def _along(r: Roof, ends: Box, boxes: list[Box], below: bool) -> str:
    """A roof's name, written along it (above or below) from its lower end, or as far up as no dot covers it."""
    across, up = ends[2] - ends[0], ends[1] - ends[3]
    length = math.hypot(across, up)
    said = svg.fit(f"{r.name} {amount(r.value, 'B/s')}", length - 24, 11)
    wide = svg.text_width(said, 11)

    def under(start: int) -> list[Box]:
        """Boxes along the text: it stands aslant."""
        shares = [(start + 4 + i) / length for i in range(0, int(wide), 8)]
        places = [(ends[0] + share * across, ends[1] - share * up) for share in shares]
        away = 9 if below else -8  # of the text's middle from the line
        middles = [(x + away * up / length, y + away * across / length) for x, y in places]
        return [(x - 6, y - 6, x + 6, y + 6) for x, y in middles]

    starts = list(range(14, max(int(length - wide - 10), 14) + 1, STEP))
    start = min(starts, key=lambda s: sum(_covered(box, boxes) for box in under(s)))
    boxes += under(start)
    place = f"translate({svg.number(ends[0])} {svg.number(ends[1])}) rotate({svg.number(-math.degrees(math.atan2(up, across)))})"
    return f'<g transform="{place}">{svg.text(start, 13 if below else -4, said, "n l")}</g>'


Placed = tuple[int, Dot, float, float, float]  # row, dot, centre, radius


def _placed(dots: Sequence[tuple[int, Dot]], x: Scale, y: Scale) -> list[Placed]:
    """Where every dot lies and how large it is, the heaviest first."""
    most = max((d.weight for _, d in dots if _above(d.weight)), default=1.0)
    ordered = sorted(dots, key=lambda at: (-(finite(at[1].weight) or 0.0), at[0]))
    places = []
    for index, d in ordered:
        share = min(max((finite(d.weight) or 0.0) / most, 0.0), 1.0)
        radius = max(LARGEST * math.sqrt(share), SMALLEST) if len(dots) > 1 else 6.0
        places.append((index, d, x.at(d.intensity), y.at(d.rate), radius))
    return places


def _dots(
    places: Sequence[Placed], groups: Sequence[str], p: layout.Plot, unit: str, boxes: list[Box], lines: Sequence[Box]
) -> str:
    """A dot for each op; the heaviest are named where `boxes` leaves room, beside the `lines` if there is any."""
    parts = []
    for n, (index, d, at, up, radius) in enumerate(places):
        shape = svg.path(svg.circle(at, up, radius), f"k{series(groups.index(d.group))} i", ' fill-opacity=".85"')
        label = _label(d.name, at, up, radius, p, boxes, lines) if n < NAMED else ""
        tip = (d.name, f"{amount(d.rate, unit)} at {amount(d.intensity, '')} {unit.removesuffix('/s')}/B",
               f"{d.group}" if d.group else "", d.note)  # fmt: skip
        parts.append(svg.mark(tip, shape, label, row=index))
    return "".join(parts)


def _label(
    name: str, at: float, up: float, radius: float, p: layout.Plot, boxes: list[Box], lines: Sequence[Box]
) -> str:
    """The dot's name beside it, at the first place where it covers nothing; a line if it must."""
    shown = svg.fit(name, 130, 11)
    width = svg.text_width(shown, 11)
    places = (
        (at + radius + 4, up + 4), (at - radius - 4 - width, up + 4), (at - width / 2, up - radius - 5),
        (at - width / 2, up + radius + 12),
    )  # fmt: skip
    for avoided in ((*boxes, *lines), boxes):
        for start, base in places:
            box = (start, base - 9, start + width, base + 2)
            inside = box[0] >= p.left + 2 and box[2] <= p.right and box[1] >= p.top and box[3] <= p.bottom
            if inside and not _covered(box, avoided):
                boxes.append(box)
                return svg.text(start, base, shown, "n l")
    return ""


def table(chart: Roofline) -> Table:
    """Roofs first, then the dots."""
    body = [(r.name, r.kind, "-", amount(r.value, "B/s" if r.kind == "memory" else r.unit or chart.unit), "")
            for r in chart.roofs if _above(r.value)]  # fmt: skip
    for d in chart.points:
        known = _above(d.intensity) and _above(d.rate)
        body.append((
            d.name, d.group or "op", amount(d.intensity, "") if known else "-", amount(d.rate, chart.unit) if known else "-",
            d.note,
        ))  # fmt: skip
    heads = ("name", "kind", f"{chart.unit.removesuffix('/s')}/B", chart.unit, "remark")
    return Table(chart.title, heads, tuple(body), frozenset(heads[2:4]))
