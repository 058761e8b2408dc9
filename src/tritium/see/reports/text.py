"""A report as text for a terminal and as Markdown for a pull request, from the same sections as the page.

Charts are left out where a table has the same; every text is escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tritium import escape
from tritium.perf.tables.table import Table
from tritium.see.charts import charts
from tritium.see.reports.blocks import (
    Banner,
    Card,
    Cell,
    Code,
    Contents,
    Drawing,
    Embed,
    Facts,
    Fold,
    Grid,
    Line,
    Lines,
    Picture,
)

WIDTH = 110
MOST_ROWS = 60  # of a table in Markdown: comments have a limit
MARKS = {"good": "+", "bad": "!", "unsure": "?", "fine": "=", "quiet": "·", "": "-"}
EMOJI = {"good": "✅", "bad": "❌", "unsure": "⚠️", "fine": "➖", "quiet": "", "": ""}
PICTURED = ("overview", "data")  # only charts and downloads of the page
BRIEF = ("verdict", "summary", "environment", "ratios", "history", "advice", "noise", "reproduce")  # of a pull request


def text(sections: Sequence[Contents]) -> str:
    """Return all sections for a terminal."""
    return "\n\n".join(section_text(s) for s in sections if s.id not in PICTURED) + "\n"


def markdown(sections: Sequence[Contents]) -> str:
    """Return the deciding sections for a pull request; every case only where there are no ratios."""
    ids = BRIEF if any(s.id == "ratios" for s in sections) else (*BRIEF, "cases")
    return "\n\n".join(section_markdown(s) for s in sections if s.id in ids) + "\n"


# ---- text


def section_text(section: Contents) -> str:
    blocks = [part for b in section.blocks if (part := TEXT[type(b)](b))]
    if section.id == "verdict":
        return "\n\n".join(blocks)
    body = [escape.terminal(section.absent, None)] if section.absent else blocks
    return "\n".join([escape.terminal(section.title).upper(), *body])


def _fill(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        escape.terminal(text, None), WIDTH, initial_indent=first, subsequent_indent=rest or " " * len(first),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _banner_text(b: Banner) -> str:
    counts = " · ".join(f"{n:,} {word}" for n, word, _ in b.counts)
    facts = " · ".join(escape.terminal(a) for a in b.about)
    lines = [f"{MARKS[b.tone]} {escape.terminal(b.headline)}", facts, counts]
    lines += [_fill(t) for t in (b.lede, b.command, b.exit_code) if t]
    return "\n".join([*lines, *(_fill(note, "note: ") for note in b.notes)])


def _line_text(line: Line) -> str:
    return _fill(line.text, f"  {MARKS[line.tone]} ")


def _lines_text(block: Lines) -> str:
    marks = (f"  {i}. " if block.numbered else f"  {MARKS[line.tone]} " for i, line in enumerate(block.lines, 1))
    return "\n".join(_fill(line.text, mark) for mark, line in zip(marks, block.lines, strict=True))


def _facts_text(block: Facts) -> str:
    width = max((len(escape.terminal(k)) for k, _ in block.rows), default=0)
    return "\n".join(_fill(cell.text, f"  {escape.terminal(k):<{width}}  ") for k, cell in block.rows)


def _table(grid: Grid) -> Table:
    columns = [i for i, _ in enumerate(grid.heads) if any(row[i].text for row in grid.rows)]
    heads = tuple(grid.heads[i] for i in columns)
    rows = tuple(tuple(row[i].text for i in columns) for row in grid.rows)
    return Table("", heads, rows, grid.right)


def _grid_text(grid: Grid) -> str:
    if not grid.rows:
        return ""
    title = [f"  {escape.terminal(grid.caption)}"] if grid.caption else []
    return "\n".join([*title, *(f"  {line}" for line in _table(grid).text().splitlines())])


def _card_text(card: Card) -> str:
    """Return a card as one line; its table and charts are in the page only."""
    return f"  {escape.terminal(card.title):<44} {escape.terminal(card.brief):<28} {escape.terminal(card.mark.text)}".rstrip()


def _code_text(block: Code) -> str:
    return "\n".join(f"    {escape.terminal(line, None)}" for line in block.text.split("\n"))


def _drawing_text(block: Drawing) -> str:
    return "\n".join([f"  {escape.terminal(block.title)}", *(_fill(line, "  - ") for line in block.lines)])


def _embed_text(block: Embed) -> str:
    return "\n".join(_fill(line, "  - ") for line in block.lines)


def _fold_text(fold: Fold) -> str:
    inner = [part for b in fold.blocks if (part := TEXT[type(b)](b))]
    return "\n".join([f"  {escape.terminal(fold.title)}", *inner]) if inner else ""


def _picture_text(picture: Picture) -> str:
    if not picture.told:
        return ""
    table = charts.table(picture.chart)
    title = escape.terminal(table.title or picture.chart.title)
    return "\n".join([f"  {title}", *(f"  {line}" for line in replace(table, title="").text().splitlines())])


TEXT: dict[type, Callable[[Any], str]] = {
    Banner: _banner_text, Line: _line_text, Lines: _lines_text, Facts: _facts_text, Grid: _grid_text, Card: _card_text,
    Code: _code_text, Drawing: _drawing_text, Embed: _embed_text, Fold: _fold_text, Picture: _picture_text,
}  # fmt: skip


# ---- Markdown


def section_markdown(section: Contents) -> str:
    cards = [b for b in section.blocks if isinstance(b, Card)]
    ordered = [_cards(cards), *(b for b in section.blocks if not isinstance(b, Card))] if cards else section.blocks
    blocks = [part for b in ordered if (part := MARKDOWN[type(b)](b))]
    if section.id == "verdict":
        return "\n\n".join(blocks)
    body = [_prose(section.absent)] if section.absent else blocks
    return "\n\n".join([f"## {_prose(section.title)}", *body])


def _prose(text: str) -> str:
    return escape.prose(text, None)


def _banner_markdown(b: Banner) -> str:
    counts = " · ".join(f"**{n:,}** {word}" for n, word, _ in b.counts)
    lines = [f"# {EMOJI[b.tone]} {_prose(b.headline)}".replace("  ", " "), counts]
    lines += [_prose(t) for t in (b.lede, " · ".join(b.about)) if t]
    if b.command:
        lines.append(escape.markdown(b.command, None))
    if b.exit_code:
        lines.append(escape.markdown(b.exit_code, None))
    return "\n\n".join([*lines, *(f"- {escape.markdown(note, None)}" for note in b.notes)])


def _line_markdown(line: Line) -> str:
    return f"{EMOJI[line.tone]} {_prose(line.text)}".strip()


def _lines_markdown(block: Lines) -> str:
    marks: Iterator[str] = (f"{i}." if block.numbered else "-" for i, _ in enumerate(block.lines, 1))
    return "\n".join(f"{mark} {_line_markdown(line)}" for mark, line in zip(marks, block.lines, strict=True))


def _facts_markdown(block: Facts) -> str:
    rows = tuple((k, cell.text) for k, cell in block.rows)
    return Table("", ("what", "value"), rows).markdown()


def _grid_markdown(grid: Grid) -> str:
    if not grid.rows:
        return ""
    table = _table(grid)
    rows = replace(table, rows=table.rows[:MOST_ROWS]).markdown()
    hidden = len(table.rows) - MOST_ROWS
    title = f"**{_prose(grid.caption)}**\n\n" if grid.caption else ""
    return title + rows + (f"\n\n… and {hidden} more rows in the page." if hidden > 0 else "")


def _code_markdown(block: Code) -> str:
    code = "\n".join(escape.visible(line, None) for line in block.text.split("\n"))
    fence = "```"
    while fence in code:
        fence += "`"
    return f"{fence}\n{code}\n{fence}"


def _drawing_markdown(block: Drawing) -> str:
    return "\n".join([f"**{_prose(block.title)}**", "", *(f"- {_prose(line)}" for line in block.lines)])


def _embed_markdown(block: Embed) -> str:
    return "\n".join(f"- {_prose(line)}" for line in block.lines)


def _fold_markdown(fold: Fold) -> str:
    return "\n\n".join(part for b in fold.blocks if (part := MARKDOWN[type(b)](b)))


def _picture_markdown(picture: Picture) -> str:
    if not picture.told:
        return ""
    table = charts.table(picture.chart)
    return f"**{_prose(picture.chart.title)}**\n\n" + replace(table, title="").markdown()


def _cards(cards: Sequence[Card]) -> Grid:
    """Return cards as a table, a case to a row."""
    return Grid(("case", "time", "result"), tuple((Cell(c.title), Cell(c.brief), c.mark) for c in cards))


MARKDOWN: dict[type, Callable[[Any], str]] = {
    Banner: _banner_markdown, Line: _line_markdown, Lines: _lines_markdown, Facts: _facts_markdown, Grid: _grid_markdown,
    Code: _code_markdown, Drawing: _drawing_markdown, Embed: _embed_markdown, Fold: _fold_markdown, Picture: _picture_markdown,
}  # fmt: skip
