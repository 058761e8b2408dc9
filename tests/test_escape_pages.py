"""Escaping by place: every hostile name is text and nothing else, wherever it stands."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, strategies as st

from hostile import GROUPS, NAMES
from tritium import escape
from tritium.errors import ArgumentError


class Seen(HTMLParser):
    """What an HTML reader finds: tags, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.other: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.other.append(data)

    def handle_decl(self, decl: str) -> None:
        self.other.append(decl)

    def unknown_decl(self, data: str) -> None:
        self.other.append(data)

    def handle_pi(self, data: str) -> None:
        self.other.append(data)


def test_there_are_five_hundred_hostile_names_and_no_two_are_the_same() -> None:
    assert len(NAMES) >= 500
    assert len(set(NAMES)) == len(NAMES)
    assert all(len(group) >= 10 for group in GROUPS.values())


def test_html_of_a_hostile_name_is_its_text_and_no_tag() -> None:
    for name in NAMES:
        seen = Seen(f"<td>{escape.html(name)}</td>")
        assert [t for t, _ in seen.tags] == ["td"], name
        assert not seen.other, name
        assert seen.text == escape.visible(name), name


@pytest.mark.parametrize("quote", ['"', "'"])
def test_an_attribute_holds_the_whole_name_and_no_other_attribute_follows(quote: str) -> None:
    for name in NAMES:
        seen = Seen(f"<td title={quote}{escape.attribute(name)}{quote}></td>")
        assert seen.tags == [("td", [("title", escape.visible(name))])], name


def test_svg_of_a_hostile_name_is_read_back_by_a_strict_reader() -> None:
    for name in NAMES:
        read = ET.fromstring(f'<text id="{escape.attribute(name)}">{escape.svg(name)}</text>')
        assert read.text == (escape.visible(name) or None), name
        assert read.attrib == {"id": escape.visible(name)}, name
        assert not list(read), name


def test_json_text_is_ascii_visible_and_has_nothing_a_page_acts_on() -> None:
    for name in NAMES:
        text = escape.json_text(name)
        assert text.isascii()
        assert text.isprintable()
        assert not set("<>&") & set(text)
        assert json.loads(text) == escape.visible(name)


def test_script_json_gives_back_the_very_names_and_never_ends_the_element() -> None:
    text = escape.script_json(NAMES)
    assert json.loads(text) == list(NAMES)
    assert text.isascii()
    assert not set("<>&") & set(text)


@given(st.text(max_size=60))
def test_any_text_is_harmless_in_every_place(text: str) -> None:
    seen = Seen(f'<p title="{escape.attribute(text)}">{escape.html(text)}</p>')
    assert seen.tags == [("p", [("title", escape.visible(text))])]
    assert seen.text == escape.visible(text)
    assert json.loads(escape.script_json({text: text})) == {text: text}
    ET.fromstring(f"<text>{escape.svg(text)}</text>")


def test_a_long_name_is_cut_where_people_see_it_unless_it_must_be_whole() -> None:
    assert len(escape.html("n" * 5000)) == escape.LIMIT + 1
    assert escape.html("n" * 5000, None) == "n" * 5000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, -float("inf")]])
def test_a_number_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="no NaN"):
        escape.script_json(value)
