"""The layout that charts share. Of rows: names, plot and figures, the axis above, the colour key, rows not measured.
Of two axes: the plot area, grid lines and labels of both, downsampling.

Wide: name, plot and figure are side by side. Narrow: name and figure are above the plot, which has the full width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

from tritium.see.charts import svg
from tritium.see.charts.scale import Scale, spaced, tick_texts
from tritium.see.charts.svg import series

T = TypeVar("T")
R = TypeVar("R", bound="Named")
NARROW = 560  # px; below, names are above their rows
NAMES = 0.30  # largest share of the width for names
ROW, BAR, HEAD = 24.0, 12.0, 17.0  # px: a row, a bar in it, and in the narrow layout the line of names above it
PITCH, GAP = 14.0, 10.0  # px between the bars of one name, and between names
LONG = 600.0  # px; a longer chart has its ticks at the foot too
AXIS = 22.0  # px for the texts of ticks
TICK = 11.0  # px of such a text
UNDER = 22.0  # px for the texts below a plot
TOGETHER = 3  # more rows than these, absent for one reason, are merged into one line
FAULTS = ("failed", "wrong", "timed out", "crashed", "out of memory")  # shown in red; other reasons mean not measured
EMPTY = "nothing to show"


class Named(Protocol):
    """A row of a chart."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Frame:
    """The horizontal layout: the plot is between left and right."""

    width: float
    left: float
    right: float
    narrow: bool
    above: bool = False  # figures are above their rows

    @property
    def plot(self) -> float:
        return self.right - self.left

    @property
    def head(self) -> float:
        """Return the height that a row needs above its bars."""
        return HEAD if self.narrow else 0.0


def frame(width: float, names: Iterable[str], figures: Iterable[str], *, several: bool = False) -> Frame:
    """Return a layout with room for these names and figures. `several`: a row may have more than one figure."""
    beside = max((svg.text_width(f) for f in figures), default=0.0) + 14
    if width < NARROW:
        return Frame(width, 1.0, width - beside if several else width - 1.0, True, not several)
    widest = max((svg.text_width(svg.fit(n, width)) for n in names), default=0.0)
    return Frame(width, min(widest, NAMES * width) + 14, width - beside, False)


def name(f: Frame, y: float, height: float, label: str, kind: str = "") -> str:
    """Draw a row's name beside its bars, which begin at y; above them in the narrow layout."""
    room = (f.width * 0.66 if f.above else f.width) if f.narrow else f.left - 14
    return svg.text(
        0,
        y - 5 if f.narrow else y + height / 2 + 4,
        svg.fit(label, max(room, 40)),
        f"{kind} l".strip() if f.narrow else kind,
    )


def figure(f: Frame, y: float, label: str, kind: str = "") -> str:
    """Draw a bar's figure, at the right."""
    return svg.text(f.width, y - 5 if f.above else y + 10, label, f"{kind} {'l r' if f.above else 'r'}".strip())


def backdrop(f: Frame, y: float, height: float) -> str:
    """Draw the background of a whole row, so that the pointer can be anywhere in it."""
    return svg.path(svg.box(0, y, f.width, height), "b")


def axis(f: Frame, scale: Scale, unit: str, y: float, bottom: float, *, foot: bool = False) -> str:
    """Draw light lines down from the ticks, and their labels at the top; at the foot too where that is far away."""
    texts = tick_texts(scale, unit)
    positions = [scale.position(t) for t in scale.ticks]
    widths = [svg.text_width(t, TICK) for t in texts]
    centres = [min(max(p, w / 2), f.width - w / 2) for p, w in zip(positions, widths, strict=True)]
    labelled_ticks = spaced(centres, widths)
    parts = [svg.path("".join(svg.line(p, y, p, bottom) for p in positions), "g")]
    for i in labelled_ticks:
        parts.append(svg.text(centres[i], y - 7, texts[i], "t c"))
        if foot:
            parts.append(svg.text(centres[i], bottom + 15, texts[i], "t c"))
    return "".join(parts)


def caption(f: Frame, y: float, label: str) -> str:
    """Draw what the axis shows, above it."""
    return svg.text(f.left, y, svg.fit(label, f.width - f.left, TICK), "t")


def key(
    x: float, y: float, width: float, names: Sequence[str], shape: Callable[[int, float, float], str],
    drawn: Collection[str] | None = None,
) -> tuple[str, float]:  # fmt: skip
    """Draw names with their colours in one line or more; return them and their height. Nothing for fewer than two names.

    `drawn`: the names that have data; others have no colour to explain.
    """
    shown = [(i, label) for i, label in enumerate(names) if drawn is None or label in drawn]
    if len(names) < 2 or not shown:
        return "", 0.0
    parts, left, row = [], x, 0
    for i, label in shown:
        text = svg.fit(label or "(no name)", min(width - 20, 220))
        needed_width = svg.text_width(text) + 34
        if left > x and left + needed_width - 16 > x + width:
            left, row = x, row + 1
        parts += [shape(i, left + 5, y + 18 * row - 4), svg.text(left + 14, y + 18 * row, text, "u")]
        left += needed_width
    return "".join(parts), 18.0 * (row + 1) + 8


def swatch(i: int, x: float, y: float) -> str:
    """Draw a square of a series' colour."""
    return svg.path(svg.box(x - 5, y - 5, 10, 10), f"k{series(i)}")


def absence(f: Frame, y: float, why: str) -> str:
    """Draw the reason in place of a bar."""
    label = why or "not measured"
    room = f.width - f.left - 4
    if is_fault(label):
        cross = svg.path(f"M{svg.number(f.left + 1)} {svg.number(y - 7)}l6 6m0 -6l-6 6", "e sbad")
        return cross + svg.text(f.left + 13, y, svg.fit(label, room - 13), "w")
    return svg.text(f.left + 1, y, svg.fit(label, room), "x")


def is_fault(why: str) -> bool:
    """Return True if a reason is a failure rather than a missing measurement."""
    return why.startswith(FAULTS)


def merge_absent(rows: Sequence[T], why: Callable[[T], str]) -> tuple[set[int], list[tuple[str, list[int]]]]:
    """Return the indexes of rows absent for a reason that many share, and each such reason with its indexes."""
    by_reason: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if reason := why(row):
            by_reason.setdefault(reason, []).append(i)
    shared = [(reason, indexes) for reason, indexes in by_reason.items() if len(indexes) > TOGETHER]
    return {i for _, indexes in shared for i in indexes}, shared


def blocks(rows: Sequence[R], why: Callable[[R], str]) -> tuple[list[list[tuple[int, R]]], list[tuple[str, list[int]]]]:
    """Return consecutive rows of one name as blocks of (index, row); and the reasons of those left out, see `merge_absent`."""
    hidden, reasons = merge_absent(rows, why)
    visible = ((i, row) for i, row in enumerate(rows) if i not in hidden)
    return [list(block) for _, block in groupby(visible, key=lambda pair: pair[1].name)], reasons


def heights(f: Frame, groups: Iterable[Sequence[object]]) -> list[float]:
    """Return the height of each block."""
    return [f.head + PITCH * len(block) + GAP for block in groups]


def place_rows(f: Frame, top: float, block: Sequence[tuple[int, R]]) -> Iterator[tuple[int, R, float, list[str]]]:
    """Yield the rows of a block: index, row, top of its bar, and its background; the first with the name of all."""
    first = top + GAP / 2 + f.head
    for n, (index, row) in enumerate(block):
        y = first + PITCH * n
        if n:
            yield index, row, y, [backdrop(f, y - 1, PITCH)]
        else:
            behind = backdrop(f, top, GAP / 2 + f.head + PITCH - 1)
            yield index, row, y, [behind, name(f, first, PITCH * len(block) - 2, row.name)]


def draw_reasons(
    f: Frame, y: float, reasons: Sequence[tuple[str, list[int]]], names: Sequence[str]
) -> tuple[str, float]:
    """Draw one line for each reason that many rows share; return the lines and their height."""
    parts, line_y = [], y
    for why, indexes in reasons:
        distinct = list(dict.fromkeys(names[i] for i in indexes))
        label = f"{len(indexes)} {'figures' if len(distinct) < len(indexes) else 'cases'}: {why}"
        kind = "w" if is_fault(why) else "x"
        lines = svg.wrap(label, f.width)
        texts = [svg.text(0, line_y + 16 + 16 * i, line, kind) for i, line in enumerate(lines)]
        parts.append(svg.mark((label, ", ".join(distinct)), *texts))
        line_y += 16 * len(lines) + 8
    return "".join(parts), line_y - y


def empty(width: float, reason: str = EMPTY) -> svg.Drawing:
    """Return a panel with the reason why nothing is drawn."""
    lines = svg.wrap(reason or EMPTY, width - 32)
    height = 40.0 + 16 * len(lines)
    texts = [svg.text(width / 2, 32 + 16 * i, line, "u c") for i, line in enumerate(lines)]
    return svg.Drawing(width, height, svg.path(svg.box(0, 0, width, height), "y") + "".join(texts))


# ---- two axes


@dataclass(frozen=True)
class Plot:
    """The area of a plot: its axes are at the left and the bottom."""

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
    """Return the width that the labels of a vertical axis need."""
    return max(svg.text_width(t, TICK) for t in tick_texts(scale, unit)) + 8


def draw_vertical_axis(p: Plot, scale: Scale, unit: str) -> str:
    """Draw lines across from the ticks of the vertical axis, and their labels at the left."""
    texts = tick_texts(scale, unit)
    positions = [scale.position(t) for t in scale.ticks]
    visible = set(spaced(positions, [TICK] * len(positions), 4))
    lines = svg.path("".join(svg.line(p.left, y, p.right, y) for y in positions), "g")
    return lines + "".join(
        svg.text(p.left - 8, positions[i] + 4, texts[i], "t r") for i in range(len(positions)) if i in visible
    )


def draw_horizontal_axis(p: Plot, scale: Scale, unit: str, width: float, *, lines: bool = False) -> str:
    """Draw the labels of the axis below; with `lines`, lines up from its ticks."""
    return draw_labels(p, [scale.position(t) for t in scale.ticks], tick_texts(scale, unit), width) + (
        svg.path("".join(svg.line(scale.position(t), p.top, scale.position(t), p.bottom) for t in scale.ticks), "g")
        if lines
        else ""
    )


def draw_labels(p: Plot, positions: Sequence[float], texts: Sequence[str], width: float) -> str:
    """Draw labels below the plot, as many as have room."""
    widths = [svg.text_width(t, TICK) for t in texts]
    centres = [min(max(x, w / 2), width - w / 2) for x, w in zip(positions, widths, strict=True)]
    axis = svg.path(svg.line(p.left, p.bottom, p.right, p.bottom), "a")
    return axis + "".join(svg.text(centres[i], p.bottom + 15, texts[i], "t c") for i in spaced(centres, widths, 12))


def sample_evenly(count: int, most: int) -> list[int]:
    """Return at most `most` indexes of a sequence of `count`, evenly spaced, including the last."""
    if count <= most:
        return list(range(count))
    every = -(-(count - 1) // max(most - 1, 1))
    indexes = list(range(0, count, every))
    return indexes if indexes[-1] == count - 1 else [*indexes, count - 1]


def sample_extremes(values: Sequence[float], most: int) -> list[int]:
    """Return about `most` indexes at most: the minimum and maximum of each interval, so that no peak is lost."""
    if len(values) <= most:
        return list(range(len(values)))
    width = -(-2 * len(values) // most)
    indexes = {0, len(values) - 1}
    for start in range(0, len(values), width):
        interval = range(start, min(start + width, len(values)))
        indexes |= {min(interval, key=lambda i: values[i]), max(interval, key=lambda i: values[i])}
    return sorted(indexes)
