"""Hostile names: spelled out, escaped, and never obeyed, wherever they appear."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from measured import HOSTILE
from tritium import escape

texts = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from("=+-@|`\\\"';,:%#[]<>&\t\r\n\x1b\u202e")), max_size=40
)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_visible_name_is_printable_and_on_one_line(text: str) -> None:
    for shown in (
        escape.visible(text),
        escape.terminal(text),
        escape.markdown(text),
        escape.csv(text),
        escape.label(text),
    ):
        assert shown.isprintable()
        shown.encode("utf-8")


@given(texts)
def test_nothing_a_terminal_or_a_log_obeys_is_left(text: str) -> None:
    shown = escape.terminal(text)
    assert shown.isprintable()
    assert not shown.lstrip().startswith("::")
    assert "##[" not in shown


def test_a_harmless_name_stays_as_it_is_everywhere_but_in_a_code_span() -> None:
    name = "matmul 1024×1024 f32, größer"
    plain = (escape.visible, escape.terminal, escape.csv, escape.label, escape.prometheus, escape.annotation)
    assert {f(name) for f in plain} == {name}
    assert escape.markdown(name) == f"`{name}`"


@given(texts)
def test_markdown_is_one_code_span_that_nothing_inside_closes(text: str) -> None:
    shown = escape.markdown(text)
    if not shown:
        return
    assert not re.search(r"(?<!\\)\|", shown), "a pipe would begin another cell"
    fence = re.match("`+", shown)
    assert fence
    inside = shown[len(fence[0]) : -len(fence[0])]
    assert shown.endswith(fence[0])
    assert fence[0] not in re.findall("`+", inside)
    assert not inside.startswith("`")
    assert not inside.endswith("`")


@pytest.mark.parametrize(
    "text",
    [
        "matmul 64x64 f32 reaches 9 % of its ceiling; 3.2 µs (3.1…3.3)",
        "Half the interval, größer",
        "v1.0 (base) → head, side by side",
        "snake_case_name",
        "-",
        "1.00× ~",
    ],
)
def test_a_plain_sentence_stays_as_it_is(text: str) -> None:
    assert escape.prose(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "https://evil.example", "www.evil.example", "_emphasis_", "~~struck~~", ":smile: x", "- a list", "1. a list", "<b>", "[a](b)",
        "@someone", "#12", "a|b", "a & b", "*x*", "![x](y)", "::error::x", " ::stop::x", "a__b",
    ],
)  # fmt: skip
def test_a_sentence_that_could_act_is_a_code_span(text: str) -> None:
    assert re.fullmatch(r"(`+)[^`]*\1", escape.prose(text))


@given(texts)
def test_no_sentence_acts(text: str) -> None:
    shown = escape.prose(text)
    assert shown.isprintable()
    if not shown.startswith("`"):
        assert not re.search(r"[<>\[\]*`|@#!&\\]|://", shown)


@pytest.mark.parametrize("write", [escape.terminal, escape.markdown, escape.prose])
def test_no_name_is_a_command_in_a_log(write: Callable[[str], str]) -> None:
    assert "##[" not in write("x ##[error]boom")
    assert not write("::error::x").lstrip().startswith("::")


def test_a_markdown_name_without_characters_is_no_lonely_fence() -> None:
    assert escape.markdown("") == escape.markdown("   ") == ""


@given(texts, st.booleans())
def test_a_csv_cell_is_read_back_as_it_was(text: str, guard: bool) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerow([escape.csv(text, guard)])
    (row,) = csv.reader(io.StringIO(out.getvalue(), newline=""))
    assert escape.from_csv(row[0]) == text


@given(texts)
def test_a_guarded_cell_never_begins_a_formula(text: str) -> None:
    cell = escape.csv(text)
    assert cell.lstrip()[:1] not in tuple(escape.FORMULA)
    assert not re.search(r";[\s\"']*[=+\-@＝＋－＠]", cell), "where ; parts cells, this would begin a formula"


def test_the_guard_can_be_left_out() -> None:
    assert escape.csv("=1+1", guard=False) == "=1+1"


def test_an_escape_no_writer_makes_is_not_an_error() -> None:
    assert escape.from_csv("\\Uffffffff") == "\U0010ffff"
    assert escape.from_csv("\\q") == "\\q"


@given(texts)
def test_a_label_has_nothing_that_html_or_markdown_act_on(text: str) -> None:
    shown = escape.label(text)
    assert not set("<>&`|\"'") & set(shown)
    assert len(shown) <= escape.LIMIT


def test_labels_of_different_names_differ() -> None:
    assert escape.label("a<b") != escape.label("a‹b")
    assert escape.label("n" * 300 + "a") != escape.label("n" * 300 + "b")


@given(texts)
def test_a_prometheus_label_ends_where_it_should(text: str) -> None:
    assert re.fullmatch(r'(?:[^"\\\n]|\\["\\n])*', escape.prometheus(text))


@pytest.mark.parametrize(
    ("given_name", "name"), [("peak bytes", "peak_bytes"), ("9lives", "_9lives"), ("", "_"), ("é", "_")]
)
def test_a_prometheus_name_has_only_what_prometheus_takes(given_name: str, name: str) -> None:
    assert escape.prometheus_name(given_name) == name


@given(texts)
def test_an_annotation_is_one_line_whatever_it_says(text: str) -> None:
    assert "\n" not in escape.annotation(text)
    assert "\r" not in escape.annotation(text)
    assert not {":", ",", "\n", "\r"} & set(escape.annotation_property(text))


def test_the_lines_of_an_annotation_stay_lines() -> None:
    assert escape.annotation("50 % slower\nthan before") == "50 %25 slower%0Athan before"


@given(texts)
def test_a_file_name_is_one_on_every_system(text: str) -> None:
    name = escape.file_name(text, ".json")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*-[0-9a-f]{8}\.json", name)
    assert len(name) < 100


def test_file_names_of_different_names_differ_even_without_case() -> None:
    made = {escape.file_name(n).lower() for n in ("a/b", "a b", "A/b", "a-b", "CON", "con", "")}
    assert len(made) == 7
