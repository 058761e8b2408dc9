"""Layout of a call tree as rows of bars, drawn as SVG: shared by plain and differential flame graphs.

The root is at the top, its callees below in the order of their first call. Lengths are in the tree's unit: the value of
a bar is exact, regardless of rounding to pixels. Bars too narrow to see are combined into one with their number.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tritium import escape
from tritium.escape import attribute, svg
from tritium.perf.gate.page import amount
from tritium.see.trace.flame_look import CELL, LEAST_CELLS, MARGIN, ROW, css, script
from tritium.see.trace.tree import Node

DEEPEST = 250  # levels that are drawn
LEAST_PX = 0.1  # narrower bars are combined


class Frame(NamedTuple):
    """One bar: a node of the call tree, or several narrow ones of the same caller."""

    name: str
    nodes: tuple[Node, ...]
    depth: int
    start: int  # in the tree's unit
    length: int  # drawn length: its total, limited by its caller's
    more: bool = False  # combines several nodes

    @property
    def total(self) -> int:
        return sum(n.total_ns for n in self.nodes)

    @property
    def own(self) -> int:
        return self.total if self.more else self.nodes[0].own_ns

    @property
    def called(self) -> int:
        return sum(n.count for n in self.nodes)


class Look(NamedTuple):
    """The style of a bar: its CSS class, the lines of its tooltip, and the text before and after the name in its label."""

    style: str
    tip: tuple[str, ...]
    before: str = ""
    after: str = ""


class Room(NamedTuple):
    """The area of the bars: left edge and width in px, and the total it represents in the tree's unit."""

    left: float
    width: float
    full: int
    least_px: float = LEAST_PX

    @property
    def scale(self) -> float:
        return self.width / max(1, self.full)


def layout(root: Node, room: Room) -> list[Frame]:
    """Return the bars, a caller before its callees."""
    least = room.least_px / room.scale
    out: list[Frame] = []
    todo = [Frame(root.name, (root,), 0, 0, root.total_ns)]
    while todo:
        frame = todo.pop()
        out.append(frame)
        if not frame.more and frame.depth < DEEPEST:
            todo += reversed(list(_children(frame, least)))
    return out


def _children(frame: Frame, least: float) -> Iterator[Frame]:
    children = frame.nodes[0].children.values()
    wide = [c for c in children if c.total_ns >= least]
    narrow = tuple(c for c in children if c.total_ns < least)
    position, end = frame.start, frame.start + frame.length
    for child in wide:
        length = min(child.total_ns, end - position)
        yield Frame(child.name, (child,), frame.depth + 1, position, length)
        position += length
    if narrow and (rest := sum(c.total_ns for c in narrow)):
        yield Frame(f"… {len(narrow)} more", narrow, frame.depth + 1, position, min(rest, end - position), more=True)


def depth(frames: Iterable[Frame]) -> int:
    """Return the number of rows of the bars."""
    return 1 + max(f.depth for f in frames)


def pane(frames: Sequence[Frame], room: Room, y: int, look: Callable[[Frame], Look]) -> str:
    """Return the bars as SVG, starting at height y."""
    bars = "".join(_bar(f, look(f), room, y + ROW * f.depth) for f in frames)
    return f'<g class="pane" data-full="{room.full}">\n{bars}</g>\n'


def _bar(f: Frame, look: Look, room: Room, y: int) -> str:
    x, width = room.left + f.start * room.scale, f.length * room.scale
    extra = "".join(f' data-{key}="{attribute(text)}"' for key, text in (("p", look.before), ("s", look.after)) if text)
    style = f"{look.style} more" if f.more else look.style
    label = svg(clipped(look.before + escape.visible(f.name) + look.after, width), None)
    tip = "\n".join(svg(line, None) for line in (escape.visible(f.name), *look.tip))
    return (
        f'<g class="f {style}" data-d="{f.depth}" data-x="{f.start}" data-w="{f.length}"{extra}><title>{tip}</title>'
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW - 1}" rx="2"/>'
        f'<text x="{x + 4:.1f}" y="{y + 14}">{label}</text></g>\n'
    )


def clipped(text: str, width: float) -> str:
    """Return as much of a label as fits a bar; "" if that is too short to read."""
    room = int((width - 6) / CELL)
    if room < LEAST_CELLS:
        return ""
    used = 0
    for i, c in enumerate(text):
        used += 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        if used > room:
            return f"{text[: max(0, i - 1)]}…"
    return text


def format_value(value: float, unit: str) -> str:
    """Return a value of the tree's unit as text."""
    return amount(value * 1e-9, "s") if unit == "ns" else amount(value, unit)


def share(part: float, whole: float) -> str:
    """Return a part of the whole in percent."""
    percent = 100 * part / whole if whole else 0.0
    return "< 0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def calls(count: int) -> str:
    return "" if count == 0 else "1 call" if count == 1 else f"{count:,} calls".replace(",", " ")


class Page(NamedTuple):
    """The frame of a drawing: its size, its accessible text, and whether it is a standalone file."""

    width: int
    height: int
    title: str
    words: str  # description of the picture for screen readers
    alone: bool = True
    moves: bool = True  # with the script inside; standalone files only
    least: int = 320  # px; in a narrower container it scrolls
    margin: int = MARGIN
    key: str = "flame"  # of the permalink

    def around(self, body: str) -> str:
        """Return the complete SVG: with stylesheet and script inside, or for a page that has both."""
        head = (
            f'class="flame" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{attribute(self.title)}" '
            f'data-key="{attribute(self.key)}" data-least="{self.least}" data-m="{self.margin}"'
        )
        words = f"<desc>{svg(self.words, None)}</desc>\n"
        if not self.alone:
            return f'<div class="fl-box"><svg {head}>{words}{body}</svg></div>\n'
        start = 'document.querySelectorAll("svg.flame").forEach(flameGraph);'
        embedded = f"<script><![CDATA[\n{script()}{start}\n]]></script>\n" if self.moves else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" {head}>\n'
            f"<title>{svg(self.title)}</title>\n{words}<style>\n{css()}</style>\n{body}{embedded}</svg>\n"
        )


def line(style: str, x: float, y: float, text: str, more: str = "") -> str:
    """Return one line of text as SVG, with invisible characters escaped."""
    return f'<text class="{style}" x="{x:g}" y="{y:g}"{more}>{svg(text, None)}</text>\n'


def top(title: str, info: str, hint: str, room: Room, alone: bool) -> tuple[str, int]:
    """Return the lines above the bars (a page has its own heading), and the y at which the bars begin."""
    out = line("fl-title", room.left, 29, clipped(escape.visible(title), 0.75 * room.width)) if alone else ""
    y = 50 if alone else 16
    out += line("fl-info", room.left, y, info)
    out += line("fl-hint", room.left, y + 26, hint, f' data-y="{y + 9}"')
    return out, y + 46
