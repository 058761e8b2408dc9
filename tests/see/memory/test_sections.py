"""The page of tracked memory: all that a terminal shows, one file, and names that cannot act."""

from __future__ import annotations

from pathlib import Path

import made_report
import memories
from hostile import NAMES
from html_pages import ALLOWED, Page
from tritium.see.memory import file, page
from tritium.see.memory.sections import blocks, sections
from tritium.see.reports.blocks import Grid


def test_the_page_has_every_cell_of_the_terminal() -> None:
    tracked = made_report.tracked()
    seen = Page(tracked.html()).seen
    for part in page.parts(tracked, 100):
        if part.title.startswith(page.COURSE):
            continue  # the chart has it
        cells = [c for row in part.rows for c in row] + list(part.below) if isinstance(part, page.Table) else part.lines
        assert all(" ".join(cell.split()) in " ".join(seen.split()) for cell in cells)
        assert part.title in seen


def test_a_row_begins_with_its_line_and_figures_are_sorted_by_their_amount() -> None:
    grid = next(b for b in blocks(memories.record()) if isinstance(b, Grid) and "mean size" in b.heads)
    assert grid.heads[:2] == ("line", "op")
    at = grid.heads.index("bytes")
    amounts = [row[at].sort for row in grid.rows]
    assert amounts == sorted(amounts, reverse=True)


def test_the_suffix_html_writes_the_page(tmp_path: Path) -> None:
    tracked = made_report.tracked()
    path = file.writer("x.html")(tracked, tmp_path / "x.html")
    text = path.read_text()
    assert text == tracked.html()
    ids = Page(text).values("id")
    assert len(ids) == len(set(ids))
    assert [s.id for s in sections(tracked)][:2] == ["memory", "time"]


def test_hostile_names_are_only_text() -> None:
    for name in NAMES[:60]:
        parsed = Page(memories.record(name).html())
        assert {tag for tag, _ in parsed.elements} <= ALLOWED
        assert not [key for _, attrs in parsed.elements for key in attrs if key.startswith("on")]
