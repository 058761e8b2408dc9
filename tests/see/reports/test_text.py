"""Reports as text and as Markdown: nothing in a sentence acts, tables keep their columns, fences hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from tritium.see.reports.blocks import Card, Cell, Code, Facts, Fold, Grid, Line, Lines
from tritium.see.reports.sections import Section
from tritium.see.reports.text import WIDTH, section_markdown, section_text

COMMAND = "::error file=a,line=1::boom"
texts = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from("<>[]()*_`|~@#!&:/\\-+.1 a\n\x1b\u202e")), max_size=40
)


@pytest.mark.parametrize("section", [Section("x", "X", absent=COMMAND), Section("x", "X", (Lines((Line(COMMAND),)),))])
def test_no_line_of_markdown_is_a_command_in_a_log(section: Section) -> None:
    assert not any(line.lstrip().startswith("::") for line in section_markdown(section).splitlines())


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_a_table_has_as_many_cells_in_every_row(rows: list[tuple[str, str]]) -> None:
    cells = tuple((Cell(a), Cell(b or "x")) for a, b in rows)
    shown = section_markdown(Section("x", "X", (Grid(("one", "two"), cells),))).splitlines()[2:]
    parts = [re.sub(r"\\\|", "", line).count("|") for line in shown]
    assert len(shown) == len(rows) + 2
    assert len(set(parts)) == 1


@given(texts)
def test_nothing_closes_a_block_of_code(text: str) -> None:
    shown = section_markdown(Section("x", "X", (Code(f"{text}\n```\nrm"),))).splitlines()[2:]
    assert shown[0] == shown[-1]
    assert not [line for line in shown[1:-1] if line.strip() == shown[0]]


def test_a_section_is_text_with_everything_but_pictures() -> None:
    card = Card("case-x", "add 8", Cell("faster"), "3 µs", (Line("inside"),))
    blocks = (
        Line("one", "bad"),
        Lines((Line("two"),), numbered=True),
        Facts((("a", Cell("b")),)),
        card,
        Fold("more", (Code("ls"),)),
    )
    text = section_text(Section("x", "title", blocks))
    for part in ("TITLE", "! one", "1. two", "a  b", "add 8", "faster", "    ls"):
        assert part in text
    assert "inside" not in text


def test_long_sentences_are_folded() -> None:
    text = section_text(Section("x", "t", (Line("word " * 100),)))
    assert max(map(len, text.splitlines())) <= WIDTH
