"""Bars made of parts: memory by what holds it, and call trees by own and total time.

Knows nothing of pools or profiles. Parts are stacked from 0; a peak is a tick on the bar, a limit a line through all bars.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritium.perf.tables import Table
from tritium.see import chart_rows as rows
from tritium.see import svg
from tritium.see.palette import series
from tritium.see.scale import Scale, amount, finite, finite_all, linear, quantity

LONG = 600.0
INDENT = 12.0  # px for a level of a tree
DEEPEST = 12  # levels that are indented


@dataclass(frozen=True)
class Part:
    """A share of a stack."""

    name: str
    value: float


@dataclass(frozen=True)
class Stack:
    """One case's parts, and the most it held at once; or why they are not known."""

    name: str
    parts: tuple[Part, ...] = ()
    peak: float | None = None
    absent: str = ""
    note: str = ""
    link: str = ""

    @property
    def total(self) -> float:
        return sum(finite_all(p.value for p in self.parts))


@dataclass(frozen=True)
class Memory:
    """Memory of cases, by part."""

    title: str
    rows: tuple[Stack, ...]
    unit: str = "B"
    limit: float | None = None
    limit_name: str = ""
    subtitle: str = ""
    note: str = ""


@dataclass(frozen=True)
class Branch:
    """One place of a call tree."""

    name: str
    depth: int
    total: float
    own: float
    note: str = ""


@dataclass(frozen=True)
class TreeBars:
    """A call tree in walk order: total pale, own full."""

    title: str
    rows: tuple[Branch, ...]
    unit: str = "s"
    subtitle: str = ""
    note: str = ""


# ---- memory


def draw_memory(chart: Memory, width: float) -> svg.Drawing:
    """A row for each stack; those of unknown size in words."""
    if not chart.rows:
        return rows.empty(width)
    hidden, told = rows.told_together(chart.rows, _why)
    kept = [(i, r) for i, r in enumerate(chart.rows) if i not in hidden]
    kinds = list(dict.fromkeys(p.name for r in chart.rows for p in r.parts))
    f = rows.frame(width, (r.name for _, r in kept), (_figure(r, chart.unit) for _, r in kept))
    keys, top = rows.key(0, 12, width, kinds, rows.swatch)
    parts = [keys]
    if kept:
        most = [max(r.total, finite(r.peak) or 0.0) for _, r in kept]
        limit = finite(chart.limit)
        near = limit is not None and limit <= 4 * max(most)  # a limit far away would flatten the bars
        reach = [*most, limit] if near and limit is not None else most
        scale = linear(reach, f.left, f.right, count=min(max(int(f.plot / 75), 2), 6), unit=chart.unit)
        parts.append(rows.caption(f, top + 10, _limit_words(chart, near)))
        top += 16 + rows.AXIS
        height = rows.ROW + f.head
        bottom = top + height * len(kept)
        parts.append(rows.axis(f, scale, chart.unit, top, bottom, foot=bottom > LONG))
        parts.append(svg.path(svg.line(scale.at(0), top, scale.at(0), bottom), "a"))
        if near and limit is not None:
            parts.append(svg.path(svg.line(scale.at(limit), top - 3, scale.at(limit), bottom), "j sbad"))
        for n, (index, r) in enumerate(kept):
            parts.append(_stack(f, scale, r, index, top + height * n, height, kinds, chart.unit))
        top = bottom + (rows.AXIS if bottom > LONG else 4)
    said, more = rows.together(f, top, told, [r.name for r in chart.rows])
    return svg.Drawing(width, top + more, "".join(parts) + said)


def _why(r: Stack) -> str:
    known = finite(r.peak) is not None or bool(r.parts)
    return "" if known else r.absent or "not measured"


def _figure(r: Stack, unit: str) -> str:
    if _why(r):
        return ""
    peak = finite(r.peak)
    return amount(r.total if peak is None else peak, unit)


def _limit_words(chart: Memory, near: bool) -> str:
    said = quantity(chart.unit)
    if (limit := finite(chart.limit)) is not None:
        where = "red line" if near else "beyond the axis"
        said += f" · {chart.limit_name or 'limit'} {amount(limit, chart.unit)} ({where})"
    return said + (" · tick: peak" if any(finite(r.peak) is not None and r.parts for r in chart.rows) else "")


def _stack(
    f: rows.Frame, scale: Scale, r: Stack, index: int, top: float, height: float, kinds: list[str], unit: str
) -> str:
    y = top + f.head + (rows.ROW - rows.BAR) / 2
    inside = [rows.backdrop(f, top, height), rows.name(f, y, rows.BAR, r.name)]
    tip = [r.name]
    if why := _why(r):
        inside.append(rows.absence(f, y + 10, why))
        tip.append(why)
    at = 0.0
    for p in r.parts:
        value = max(finite(p.value) or 0.0, 0.0)
        start, end = scale.at(at), scale.at(at + value)
        inside.append(svg.path(svg.box(start, y, end - start, rows.BAR), f"k{series(kinds.index(p.name))}"))
        tip.append(f"{p.name}: {amount(value, unit)}")
        at += value
    if (peak := finite(r.peak)) is not None:
        x = scale.at(peak)
        if not r.parts:
            inside.append(svg.path(svg.box(scale.at(0), y, x - scale.at(0), rows.BAR), "k1"))
        elif peak > 0:
            inside.append(svg.path(f"M{svg.number(x)} {svg.number(y - 3)}v{svg.number(rows.BAR + 6)}", "e"))
        tip.append(f"peak: {amount(peak, unit)}")
    inside.append(rows.figure(f, y, _figure(r, unit)) if not _why(r) else "")
    return svg.mark((*tip, r.note), *inside, row=index, link=r.link)


def memory_table(chart: Memory) -> Table:
    """All parts of all rows as text."""
    kinds = tuple(dict.fromkeys(p.name for r in chart.rows for p in r.parts))
    body = []
    for r in chart.rows:
        by = {p.name: amount(p.value, chart.unit) for p in r.parts if finite(p.value) is not None}
        peak = finite(r.peak)
        body.append((r.name, *(by.get(k, "-") for k in kinds), "-" if peak is None else amount(peak, chart.unit),
                     "; ".join(s for s in (_why(r), r.note) if s)))  # fmt: skip
    return Table(chart.title, ("case", *kinds, "peak", "remark"), tuple(body), frozenset({*kinds, "peak"}))


# ---- trees


def draw_tree(chart: TreeBars, width: float) -> svg.Drawing:
    """A row for each branch, indented by its depth."""
    if not chart.rows:
        return rows.empty(width)
    names = [f"{'   ' * min(b.depth, DEEPEST)}{b.name}" for b in chart.rows]
    f = rows.frame(width, names, (_times(b, chart.unit) for b in chart.rows))
    scale = linear(
        finite_all(b.total for b in chart.rows),
        f.left,
        f.right,
        count=min(max(int(f.plot / 75), 2), 6),
        unit=chart.unit,
    )
    parts = [rows.caption(f, 10, f"{quantity(chart.unit)} · pale: with what it called · full: its own")]
    top, height = 16 + rows.AXIS, rows.ROW - 3 + f.head
    bottom = top + height * len(chart.rows)
    parts.append(rows.axis(f, scale, chart.unit, top, bottom, foot=bottom > LONG))
    parts.append(svg.path(svg.line(scale.at(0), top, scale.at(0), bottom), "a"))
    for n, b in enumerate(chart.rows):
        at = top + height * n
        y = at + f.head + 4
        zero = scale.at(0)
        bars = [
            svg.path(svg.box(zero, y, scale.at(max(finite(v) or 0.0, 0.0)) - zero, rows.BAR), kind)
            for v, kind in ((b.total, "k1 p"), (b.own, "k1"))
        ]
        label = rows.name(f, y, rows.BAR, b.name, "o" if b.depth == 0 else "", INDENT * min(b.depth, DEEPEST))
        tip = (b.name, f"total {_amount(b.total, chart.unit)}", f"own {_amount(b.own, chart.unit)}", b.note)
        parts.append(
            svg.mark(tip, rows.backdrop(f, at, height), label, *bars, rows.figure(f, y, _times(b, chart.unit)), row=n)
        )
    return svg.Drawing(width, bottom + (rows.AXIS if bottom > LONG else 4), "".join(parts))


def _amount(value: float, unit: str) -> str:
    known = finite(value)
    return "not a number" if known is None else amount(known, unit)


def _times(b: Branch, unit: str) -> str:
    return _amount(b.total, unit)


def tree_table(chart: TreeBars) -> Table:
    """The tree as text, indented."""
    body = tuple(
        (f"{'  ' * b.depth}{b.name}", _amount(b.total, chart.unit), _amount(b.own, chart.unit), b.note)
        for b in chart.rows
    )
    return Table(chart.title, ("name", "total", "own", "remark"), body, frozenset({"total", "own"}))
