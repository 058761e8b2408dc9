"""The layout that charts share: of rows, the place of names, plot and figures, the axis above, the key of colours, rows not
measured; of two axes, the plot's place, lines and texts of both, which samples are drawn of very many.

Knows nothing of what is shown. Wide: name, plot and figure stand beside each other. Narrow: name and figure stand above
the plot, which has the whole width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

from tritium.see.charts import svg
from tritium.see.charts.scale import Scale, spaced, tick_texts
from tritium.see.charts.svg import series

T = TypeVar("T")
R = TypeVar("R", bound="Named")
NARROW = 560  # px; below, names stand above
NAMES = 0.30  # the most of the width that names take
ROW, BAR, HEAD = 24.0, 12.0, 17.0  # px: a row, a bar in it, and the line of names above it where it is narrow
PITCH, GAP = 14.0, 10.0  # px between the bars of one name, and between names
LONG = 600.0  # px; a longer chart has its ticks at the foot too
AXIS = 22.0  # px for the texts of ticks
TICK = 11.0  # px of such a text
UNDER = 22.0  # px for the texts below a plot
TOGETHER = 3  # more rows than these, absent for one reason, are told in one line
FAULTS = ("failed", "wrong", "timed out", "crashed", "out of memory")  # what is red; the rest was not measured
EMPTY = "nothing to show"


class Named(Protocol):
    """A row of a chart."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Frame:
    """Where things stand: the plot lies between left and right."""

    width: float
    left: float
    right: float
    narrow: bool
    above: bool = False  # figures stand above their rows

    @property
    def plot(self) -> float:
        return self.right - self.left

    @property
    def head(self) -> float:
        """What a row needs above its bars."""
        return HEAD if self.narrow else 0.0


def frame(width: float, names: Iterable[str], figures: Iterable[str], *, several: bool = False) -> Frame:
    """Room for these names and figures; the plot gets the rest. `several`: a row may have more than one figure."""
    beside = max((svg.text_width(f) for f in figures), default=0.0) + 14
    if width < NARROW:
        return Frame(width, 1.0, width - beside if several else width - 1.0, True, not several)
    widest = max((svg.text_width(svg.fit(n, width)) for n in names), default=0.0)
    return Frame(width, min(widest, NAMES * width) + 14, width - beside, False)


def name(f: Frame, y: float, height: float, said: str, kind: str = "") -> str:
    """A row's name, beside its bars, which begin at y; above them where it is narrow."""
    room = (f.width * 0.66 if f.above else f.width) if f.narrow else f.left - 14
    return svg.text(
        0,
        y - 5 if f.narrow else y + height / 2 + 4,
        svg.fit(said, max(room, 40)),
        f"{kind} l".strip() if f.narrow else kind,
    )


def figure(f: Frame, y: float, said: str, kind: str = "") -> str:
    """A bar's figure, at the right."""
    return svg.text(f.width, y - 5 if f.above else y + 10, said, f"{kind} {'l r' if f.above else 'r'}".strip())


def backdrop(f: Frame, y: float, height: float) -> str:
    """The whole row, so that one can point anywhere in it."""
    return svg.path(svg.box(0, y, f.width, height), "b")


def axis(f: Frame, scale: Scale, unit: str, y: float, bottom: float, *, foot: bool = False) -> str:
    """Light lines down from the ticks, and their texts at the top; at the foot too where that is far away."""
    texts = tick_texts(scale, unit)
    places = [scale.at(t) for t in scale.ticks]
    widths = [svg.text_width(t, TICK) for t in texts]
    centres = [min(max(p, w / 2), f.width - w / 2) for p, w in zip(places, widths, strict=True)]
    kept = spaced(centres, widths)
    parts = [svg.path("".join(svg.line(p, y, p, bottom) for p in places), "g")]
    for i in kept:
        parts.append(svg.text(centres[i], y - 7, texts[i], "t c"))
        if foot:
            parts.append(svg.text(centres[i], bottom + 15, texts[i], "t c"))
    return "".join(parts)


def caption(f: Frame, y: float, said: str) -> str:
    """What the axis shows, above it."""
    return svg.text(f.left, y, svg.fit(said, f.width - f.left, TICK), "t")


def key(
    x: float, y: float, width: float, names: Sequence[str], shape: Callable[[int, float, float], str]
) -> tuple[str, float]:
    """Names with their colours in one line or more, and the height they take. Nothing for one name or none."""
    if len(names) < 2:
        return "", 0.0
    parts, at, row = [], x, 0
    for i, said in enumerate(names):
        shown = svg.fit(said or "(no name)", min(width - 20, 220))
        needed = svg.text_width(shown) + 34
        if at > x and at + needed - 16 > x + width:
            at, row = x, row + 1
        parts += [shape(i, at + 5, y + 18 * row - 4), svg.text(at + 14, y + 18 * row, shown, "u")]
        at += needed
    return "".join(parts), 18.0 * (row + 1) + 8


def swatch(i: int, x: float, y: float) -> str:
    """A square of a series' colour."""
    return svg.path(svg.box(x - 5, y - 5, 10, 10), f"k{series(i)}")


def absence(f: Frame, y: float, why: str) -> str:
    """Words in the place of a bar."""
    said = why or "not measured"
    room = f.width - f.left - 4
    if is_fault(said):
        cross = svg.path(f"M{svg.number(f.left + 1)} {svg.number(y - 7)}l6 6m0 -6l-6 6", "e sbad")
        return cross + svg.text(f.left + 13, y, svg.fit(said, room - 13), "w")
    return svg.text(f.left + 1, y, svg.fit(said, room), "x")


def is_fault(why: str) -> bool:
    return why.startswith(FAULTS)


def told_together(rows: Sequence[T], why: Callable[[T], str]) -> tuple[set[int], list[tuple[str, list[int]]]]:
    """Rows absent for a reason that more than a few share: their indexes, and the reasons with theirs."""
    by: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if said := why(row):
            by.setdefault(said, []).append(i)
    many = [(said, of) for said, of in by.items() if len(of) > TOGETHER]
    return {i for _, of in many for i in of}, many


def blocks(rows: Sequence[R], why: Callable[[R], str]) -> tuple[list[list[tuple[int, R]]], list[tuple[str, list[int]]]]:
    """Rows that follow each other under one name, each with its index; and what is told of those left out, see `told_together`."""
    hidden, told = told_together(rows, why)
    kept = ((i, row) for i, row in enumerate(rows) if i not in hidden)
    return [list(of) for _, of in groupby(kept, key=lambda placed: placed[1].name)], told


def heights(f: Frame, found: Iterable[Sequence[object]]) -> list[float]:
    """Of each block."""
    return [f.head + PITCH * len(block) + GAP for block in found]


def placed(f: Frame, top: float, block: Sequence[tuple[int, R]]) -> Iterator[tuple[int, R, float, list[str]]]:
    """The rows of a block: index, row, where its bar begins, and what lies behind it; before the first the name of all."""
    first = top + GAP / 2 + f.head
    for n, (index, row) in enumerate(block):
        y = first + PITCH * n
        if n:
            yield index, row, y, [backdrop(f, y - 1, PITCH)]
        else:
            behind = backdrop(f, top, GAP / 2 + f.head + PITCH - 1)
            yield index, row, y, [behind, name(f, first, PITCH * len(block) - 2, row.name)]


def together(f: Frame, y: float, told: Sequence[tuple[str, list[int]]], names: Sequence[str]) -> tuple[str, float]:
    """One line for each reason that many rows share, and the height of all."""
    parts, at = [], y
    for why, of in told:
        named = list(dict.fromkeys(names[i] for i in of))
        said = f"{len(of)} {'figures' if len(named) < len(of) else 'cases'}: {why}"
        kind = "w" if is_fault(why) else "x"
        lines = svg.wrapped(said, f.width)
        drawn = [svg.text(0, at + 16 + 16 * i, line, kind) for i, line in enumerate(lines)]
        parts.append(svg.mark((said, ", ".join(named)), *drawn))
        at += 16 * len(lines) + 8
    return "".join(parts), at - y


def empty(width: float, said: str = EMPTY) -> svg.Drawing:
    """A panel with the reason why nothing is drawn."""
    lines = svg.wrapped(said or EMPTY, width - 32)
    height = 40.0 + 16 * len(lines)
    drawn = [svg.text(width / 2, 32 + 16 * i, line, "u c") for i, line in enumerate(lines)]
    return svg.Drawing(width, height, svg.path(svg.box(0, 0, width, height), "y") + "".join(drawn))


# ---- two axes


@dataclass(frozen=True)
class Plot:
    """Where the axes meet: left and bottom are the axes' places."""

    left: float
    right: float
    top: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


def margin(scale: Scale, unit: str) -> float:
    """The room that the texts of an upright axis need."""
    return max(svg.text_width(t, TICK) for t in tick_texts(scale, unit)) + 8


def upright(p: Plot, scale: Scale, unit: str) -> str:
    """Lines across from the ticks of the upright axis, and their texts at the left."""
    texts = tick_texts(scale, unit)
    places = [scale.at(t) for t in scale.ticks]
    kept = set(spaced(places, [TICK] * len(places), 4))
    lines = svg.path("".join(svg.line(p.left, y, p.right, y) for y in places), "g")
    return lines + "".join(
        svg.text(p.left - 8, places[i] + 4, texts[i], "t r") for i in range(len(places)) if i in kept
    )


def flat(p: Plot, scale: Scale, unit: str, width: float, *, lines: bool = False) -> str:
    """The texts of the axis below; lines up from its ticks where they are wanted."""
    return labelled(p, [scale.at(t) for t in scale.ticks], tick_texts(scale, unit), width) + (
        svg.path("".join(svg.line(scale.at(t), p.top, scale.at(t), p.bottom) for t in scale.ticks), "g")
        if lines
        else ""
    )


def labelled(p: Plot, places: Sequence[float], texts: Sequence[str], width: float) -> str:
    """Texts below the plot, as many as have room."""
    widths = [svg.text_width(t, TICK) for t in texts]
    centres = [min(max(x, w / 2), width - w / 2) for x, w in zip(places, widths, strict=True)]
    axis = svg.path(svg.line(p.left, p.bottom, p.right, p.bottom), "a")
    return axis + "".join(svg.text(centres[i], p.bottom + 15, texts[i], "t c") for i in spaced(centres, widths, 12))


def some(count: int, most: int) -> list[int]:
    """At most so many indexes of a longer row, evenly spread, the last among them."""
    if count <= most:
        return list(range(count))
    every = -(-(count - 1) // max(most - 1, 1))
    kept = list(range(0, count, every))
    return kept if kept[-1] == count - 1 else [*kept, count - 1]


def extremes(values: Sequence[float], most: int) -> list[int]:
    """At most about so many indexes of a longer row: of each stretch the least and the greatest, so that no peak is lost."""
    if len(values) <= most:
        return list(range(len(values)))
    width = -(-2 * len(values) // most)
    kept = {0, len(values) - 1}
    for start in range(0, len(values), width):
        stretch = range(start, min(start + width, len(values)))
        kept |= {min(stretch, key=lambda i: values[i]), max(stretch, key=lambda i: values[i])}
    return sorted(kept)
