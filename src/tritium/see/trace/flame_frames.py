"""A call tree laid out as rows of bars, and drawn as SVG: what plain and differential flame graphs share.

Knows nothing of colours' meaning. The root is above, its callees below in the order in which they were first called.
Lengths are kept in the tree's own unit: what a bar says is exact, whatever the pixels round. What would be too narrow
to see is drawn as one bar that says how many it stands for.
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
LEAST_PX = 0.1  # a narrower bar is drawn together with its like


class Frame(NamedTuple):
    """One bar: a place of the call tree, or several narrow ones of the same caller."""

    name: str
    nodes: tuple[Node, ...]
    depth: int
    at: int  # where it begins, in the tree's unit
    length: int  # what it is drawn with: its total, but never more than its caller has room for
    more: bool = False  # it stands for several

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
    """What a bar looks like: its class, the lines of its tip, and what its label says before and after the name."""

    style: str
    tip: tuple[str, ...]
    before: str = ""
    after: str = ""


class Room(NamedTuple):
    """Where bars are drawn: the px from left to right, and how much of the tree's unit they stand for."""

    left: float
    width: float
    full: int
    least_px: float = LEAST_PX

    @property
    def scale(self) -> float:
        return self.width / max(1, self.full)


def layout(root: Node, room: Room) -> list[Frame]:
    """The bars, a caller before its callees."""
    least = room.least_px / room.scale
    out: list[Frame] = []
    todo = [Frame(root.name, (root,), 0, 0, root.total_ns)]
    while todo:
        frame = todo.pop()
        out.append(frame)
        if not frame.more and frame.depth < DEEPEST:
            todo += reversed(list(_below(frame, least)))
    return out


def _below(frame: Frame, least: float) -> Iterator[Frame]:
    children = frame.nodes[0].children.values()
    wide = [c for c in children if c.total_ns >= least]
    narrow = tuple(c for c in children if c.total_ns < least)
    at, end = frame.at, frame.at + frame.length
    for child in wide:
        length = min(child.total_ns, end - at)
        yield Frame(child.name, (child,), frame.depth + 1, at, length)
        at += length
    if narrow and (together := sum(c.total_ns for c in narrow)):
        yield Frame(f"… {len(narrow)} more", narrow, frame.depth + 1, at, min(together, end - at), more=True)


def depth(frames: Iterable[Frame]) -> int:
    """How many rows they take."""
    return 1 + max(f.depth for f in frames)


def pane(frames: Sequence[Frame], room: Room, y: int, look: Callable[[Frame], Look]) -> str:
    """The bars as SVG, from a height on downwards."""
    bars = "".join(_bar(f, look(f), room, y + ROW * f.depth) for f in frames)
    return f'<g class="pane" data-full="{room.full}">\n{bars}</g>\n'


def _bar(f: Frame, look: Look, room: Room, y: int) -> str:
    x, width = room.left + f.at * room.scale, f.length * room.scale
    beside = "".join(
        f' data-{key}="{attribute(text)}"' for key, text in (("p", look.before), ("s", look.after)) if text
    )
    style = f"{look.style} more" if f.more else look.style
    label = svg(clipped(look.before + escape.visible(f.name) + look.after, width), None)
    tip = "\n".join(svg(line, None) for line in (escape.visible(f.name), *look.tip))
    return (
        f'<g class="f {style}" data-d="{f.depth}" data-x="{f.at}" data-w="{f.length}"{beside}><title>{tip}</title>'
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW - 1}" rx="2"/>'
        f'<text x="{x + 4:.1f}" y="{y + 14}">{label}</text></g>\n'
    )


def clipped(text: str, width: float) -> str:
    """As much of a label as a bar has room for; nothing where that would say nothing."""
    room = int((width - 6) / CELL)
    if room < LEAST_CELLS:
        return ""
    used = 0
    for i, c in enumerate(text):
        used += 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        if used > room:
            return f"{text[: max(0, i - 1)]}…"
    return text


def said(value: float, unit: str) -> str:
    """A value of the tree's unit, for people."""
    return amount(value * 1e-9, "s") if unit == "ns" else amount(value, unit)


def share(part: float, whole: float) -> str:
    """A part of the whole in percent."""
    percent = 100 * part / whole if whole else 0.0
    return "< 0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def calls(count: int) -> str:
    return "" if count == 0 else "1 call" if count == 1 else f"{count:,} calls".replace(",", " ")


class Page(NamedTuple):
    """A drawing's outside: its size, what it says to those who do not see it, and whether it is a file of its own."""

    width: int
    height: int
    title: str
    words: str  # what the picture shows, in a sentence
    alone: bool = True
    moves: bool = True  # with the script inside; only a file of its own has it
    least: int = 320  # px; narrower, its place scrolls
    margin: int = MARGIN
    key: str = "flame"  # of the permalink

    def around(self, body: str) -> str:
        """The whole SVG: with colours and script inside, or for a page that has both."""
        head = (
            f'class="flame" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{attribute(self.title)}" '
            f'data-key="{attribute(self.key)}" data-least="{self.least}" data-m="{self.margin}"'
        )
        words = f"<desc>{svg(self.words, None)}</desc>\n"
        if not self.alone:
            return f'<div class="fl-box"><svg {head}>{words}{body}</svg></div>\n'
        starts = 'document.querySelectorAll("svg.flame").forEach(flameGraph);'
        moving = f"<script><![CDATA[\n{script()}{starts}\n]]></script>\n" if self.moves else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" {head}>\n'
            f"<title>{svg(self.title)}</title>\n{words}<style>\n{css()}</style>\n{body}{moving}</svg>\n"
        )


def line(style: str, x: float, y: float, text: str, more: str = "") -> str:
    """One line of text; only what is visible of it."""
    return f'<text class="{style}" x="{x:g}" y="{y:g}"{more}>{svg(text, None)}</text>\n'


def top(title: str, info: str, hint: str, room: Room, alone: bool) -> tuple[str, int]:
    """The lines above the bars (a page has a heading of its own), and the height where the bars begin."""
    out = line("fl-title", room.left, 29, clipped(escape.visible(title), 0.75 * room.width)) if alone else ""
    y = 50 if alone else 16
    out += line("fl-info", room.left, y, info)
    out += line("fl-hint", room.left, y + 26, hint, f' data-y="{y + 9}"')
    return out, y + 46
