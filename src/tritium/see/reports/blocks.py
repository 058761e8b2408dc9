"""Blocks of a report: text, facts, tables, charts, cards, and the contents of a section.

Knows nothing of results, HTML, Markdown or terminals: all three are written from the same blocks. Text in a block is not
escaped; every writer escapes it for its format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["", "good", "bad", "unsure", "fine", "quiet"]


@dataclass(frozen=True)
class Span:
    """A ratio and its interval, drawn on the scale of its column; `margin`: the band that means no change."""

    ratio: float
    low: float | None = None
    high: float | None = None
    margin: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    tone: Tone = ""
    sort: float | None = None  # sort key; None: its text
    tip: str = ""
    link: str = ""  # an anchor of the page
    page: str = ""  # another page of the same folder
    span: Span | None = None
    heat: float | None = None  # 0: the best of its row, 1: the end of the colour scale
    badge: bool = False


AMOUNT = re.compile(r"([+-]?[0-9.]+) ?([KkMGTmµn]i?(?=[A-Za-z ]))?")
PREFIXES = {
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "µ": 1e-6, "n": 1e-9,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip


def figure_cell(text: str) -> Cell:
    """Return a cell of a figure with its unit, such as "71.3 µs (61…86)" or "64 KiB", sorted by its amount."""
    amount = AMOUNT.match(text)
    return Cell(text, sort=None if amount is None else float(amount[1]) * PREFIXES.get(amount[2] or "", 1.0))


@dataclass(frozen=True)
class Line:
    """A sentence or two, with a link to the number it is about."""

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
    """A sortable table; `filtered`: the page's filter applies to its rows, by their first cell."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[str] = frozenset()
    caption: str = ""
    filtered: bool = False
    ends: tuple[str, str] = ("", "")  # meaning of left and right of 1 in a column of spans


@dataclass(frozen=True)
class Picture:
    """A chart of `see.charts.charts`; `shown` False: for export only, the page has the same as a table."""

    name: str  # of its exported file
    chart: Any
    shown: bool = True
    small: bool = False  # for a card
    told: bool = False  # formats without images have its numbers as a table


@dataclass(frozen=True)
class Drawing:
    """Finished SVG (a flame graph), its lines for formats without images, and its standalone file."""

    name: str
    title: str
    svg: str
    lines: tuple[str, ...]
    file: str = ""  # standalone SVG


@dataclass(frozen=True)
class Embed:
    """Finished HTML with a style and a script of its own, and its lines for formats without them."""

    html: str
    style: str
    script: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Code:
    """A command, or several."""

    text: str


@dataclass(frozen=True)
class Card:
    """One case: closed, a line; open, all its details."""

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
    """The verdict at a glance."""

    headline: str
    tone: Tone
    lede: str
    counts: tuple[tuple[int, str, Tone], ...]
    about: tuple[str, ...]  # suite, date, machine
    command: str
    exit_code: str
    notes: tuple[str, ...] = ()


Block = Banner | Line | Lines | Facts | Grid | Picture | Drawing | Embed | Code | Card | Fold


@dataclass(frozen=True)
class Contents:
    """The contents of a section; `Section` adds the formats it can be written in."""

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    lede: str = ""
    absent: str = ""  # why it is empty, and how to fill it
