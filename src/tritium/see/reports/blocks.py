"""Blocks of a report: text, facts, tables, charts, cards, and what a section has of them.

Knows nothing of results, HTML, Markdown or terminals: the same blocks give all three. Text in a block is as it was given;
whoever writes it down escapes it for that place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["", "good", "bad", "unsure", "fine", "quiet"]


@dataclass(frozen=True)
class Span:
    """A ratio and its interval, drawn on the scale its column shares; `margin`: the band that means no change."""

    ratio: float
    low: float | None = None
    high: float | None = None
    margin: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One place of a table."""

    text: str
    tone: Tone = ""
    sort: float | None = None  # what it is ordered by; None: its text
    tip: str = ""
    link: str = ""  # an anchor of the page
    span: Span | None = None
    heat: float | None = None  # 0: the best of its row, 1: the worst that is told apart
    badge: bool = False


@dataclass(frozen=True)
class Line:
    """A sentence or two. A link leads to the number it speaks of."""

    text: str
    tone: Tone = ""
    link: str = ""
    link_text: str = ""


@dataclass(frozen=True)
class Lines:
    """Sentences one below the other; numbered where their order matters."""

    lines: tuple[Line, ...]
    numbered: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    rows: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted; `filtered`: its rows obey the page's filter, by their first cell."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[str] = frozenset()
    caption: str = ""
    filtered: bool = False
    ends: tuple[str, str] = ("", "")  # what lies left and right of 1 in a column of spans


@dataclass(frozen=True)
class Picture:
    """A chart of `see.charts.charts`; `shown` False: only for export, the page tells the same by a table."""

    name: str  # of the file it is exported to
    chart: Any
    shown: bool = True
    small: bool = False  # for a card
    told: bool = False  # where there are no pictures, its numbers stand as a table


@dataclass(frozen=True)
class Drawing:
    """Finished SVG (a flame graph), its lines for places without pictures, and what is in the file of its own."""

    name: str
    title: str
    svg: str
    lines: tuple[str, ...]
    file: str = ""  # standalone SVG


@dataclass(frozen=True)
class Code:
    """Something to type, or as it was typed."""

    text: str


@dataclass(frozen=True)
class Card:
    """One case: closed, a line; open, everything known of it."""

    id: str
    title: str
    mark: Cell
    brief: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Fold:
    """Blocks that open on demand."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Banner:
    """What it comes to, at a glance."""

    headline: str
    tone: Tone
    lede: str
    counts: tuple[tuple[int, str, Tone], ...]
    about: tuple[str, ...]  # suite, date, machine
    command: str
    exit_code: str
    notes: tuple[str, ...] = ()


Block = Banner | Line | Lines | Facts | Grid | Picture | Drawing | Code | Card | Fold


@dataclass(frozen=True)
class Contents:
    """What a section has in it; `Section` adds the forms it can be written in."""

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    lede: str = ""
    absent: str = ""  # why there is nothing in it, and how to get it
