"""The page as a file: its policy, its landmarks, and 500 hostile names in every text of it, of Markdown, text, CSV and SVG."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from dataclasses import replace
from hashlib import sha256
from xml.etree import ElementTree

import pytest

import made_report
import memories
from hostile import NAMES
from html_pages import ALLOWED, Page
from made_timelines import named
from tritium import escape
from tritium.see.charts import charts
from tritium.see.profile.profile import Profile
from tritium.see.reports.blocks import Span
from tritium.see.reports.html import _scale, _x
from tritium.see.reports.report import Report, _file, report

CHUNK = 30  # names on one page
CHUNKS = [NAMES[i : i + CHUNK] for i in range(0, len(NAMES), CHUNK)]


@pytest.fixture(scope="module")
def full() -> Report:
    given = made_report.failing(made_report.many(12))
    return report(
        given, history=made_report.trends(given), profile=made_report.profile(), before=made_report.profile(2),
        selftest=made_report.selftest(), baseline=given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(full: Report) -> Page:
    return Page(full.html())


# ---- the file


def test_the_policy_names_the_hash_of_the_only_script_that_runs(full: Report, page: Page) -> None:
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    kinds = [a.get("type", "") for t, a in page.elements if t == "script"]
    assert kinds == ["application/json", ""]
    code = base64.b64encode(sha256(page.scripts[1].encode()).digest()).decode()
    assert f"'sha256-{code}'" in policy


def test_the_script_makes_no_markup_and_no_code_of_text(page: Page) -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "localStorage",
        "fetch(",
    ):
        assert word not in page.scripts[1]


def test_nothing_is_asked_of_a_network(full: Report, page: Page) -> None:
    assert not page.values("src")
    assert [h for h in page.values("href") if not h.startswith("#")] == ["data:,"]
    assert not re.findall(r"url\((?!#)|@import", full.html())


def test_ids_are_unique_and_links_lead_to_them(page: Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {h[1:] for h in page.values("href") if h.startswith("#")} <= set(ids)
    assert set(page.values("aria-labelledby")) <= set(ids)


def test_the_page_has_landmarks_a_skip_link_and_one_first_heading(page: Page) -> None:
    tags = [t for t, _ in page.elements]
    assert [tags.count(t) for t in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    labels = [a["aria-label"] for t, a in page.elements if t == "nav"]
    assert labels == ["Contents, as a menu", "Contents"]
    assert next(a for t, a in page.elements if t == "a")["href"] == "#main"
    assert all(a.get("aria-label") or a.get("aria-hidden") for t, a in page.elements if t == "svg")
    assert all(a.get("aria-label") for t, a in page.elements if a.get("role") == "region")


def test_every_table_has_heads_with_a_scope(page: Page) -> None:
    assert all(a.get("scope") in ("col", "row") for t, a in page.elements if t == "th")


def test_controls_that_need_the_script_are_hidden_until_it_runs(page: Page) -> None:
    tools = [a for t, a in page.elements if a.get("class") == "tools"]
    assert tools
    assert all("hidden" in a for a in tools)


def test_the_data_is_json_that_ends_no_script(page: Page) -> None:
    data = json.loads(page.scripts[0])
    assert set(data) == {"name", "gzip", "csv"}
    assert "<" not in page.scripts[0]


def test_both_themes_and_paper_have_their_colours(full: Report) -> None:
    html = full.html()
    for part in ("prefers-color-scheme: dark", '[data-theme="dark"]', "@media print", "prefers-reduced-motion"):
        assert part.replace(" ", "") in html.replace(" ", "")


# ---- spans


def test_on_a_narrow_screen_the_plot_of_a_ratio_stands_below_its_figures(full: Report) -> None:
    table = next(s for s in full.sections if s.id == "ratios").html()
    assert '<table class="grid filtered spans">' in table
    assert table.count('class="plot"') + table.count(' plot"') == table.count("<table") + table.count('class="span"')
    narrow = re.findall(r"@media screen and \(max-width:720px\)\{(.*?)\n\}", full.html(), re.S)
    assert any(".grid.spans tbody th,.grid.spans .plot{flex:1 0 100%}" in rules for rules in narrow)


def test_a_filter_without_a_match_says_so(page: Page) -> None:
    assert 'const nothing = "No " + box.dataset.noun + " matches.";' in page.scripts[-1]
    assert [given["data-noun"] for tag, given in page.elements if tag == "input"] == ["case"]


def test_a_span_is_drawn_inside_its_column() -> None:
    scale = _scale([Span(1.2, 1.1, 1.3, 0.03), Span(0.5, 0.4, 0.6, 0.03)])
    assert scale[0] < 0.4
    assert scale[1] > 1.3
    assert 0 < _x(0.4, scale) < _x(1.0, scale) < _x(1.3, scale) < 220
    assert _x(1e-9, scale) == 0
    assert _x(1e9, scale) == 220


# ---- hostile names


@pytest.fixture(
    scope="module", params=[pytest.param(i, marks=[pytest.mark.slow] * (i % 4 > 0)) for i in range(len(CHUNKS))]
)
def owned(request: pytest.FixtureRequest) -> Report:
    listed = CHUNKS[request.param]
    made = made_report.hostile(listed)
    odd = listed[request.param % len(listed)]
    return report(
        made, baseline=replace(made, environment=replace(made.environment, kernel=listed[-1])),
        profile=Profile(named(listed)), before=Profile(named(listed[::-1])), memory=memories.record(odd),
        history=made_report.hostile_trends(made, listed), selftest=made_report.hostile_selftest(listed),
    )  # fmt: skip


def test_there_are_500_names() -> None:
    assert len(NAMES) >= 500


def test_no_name_is_markup_in_the_page(owned: Report) -> None:
    found = Page(owned.html())
    assert {t for t, _ in found.elements} <= ALLOWED
    assert len(found.scripts) == 2
    assert not [k for _, attrs in found.elements for k in attrs if k.startswith("on")]
    assert all(h.startswith("#") or h == "data:," for h in found.values("href"))
    assert not found.values("src")
    assert not found.values("style")
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert all(c.isprintable() or c == "\n" for c in found.seen)
    shown = [escape.visible(case) for case in owned.inputs.cases]
    assert all(text in found.seen for text in shown), "every name can be read"


def test_no_name_moves_a_terminal_or_commands_a_log(owned: Report) -> None:
    for line in owned.text().splitlines():
        assert line.isprintable(), ascii(line)
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


SPAN = re.compile(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)")


def test_no_name_is_obeyed_by_markdown(owned: Report) -> None:
    text = owned.markdown()
    assert all(c.isprintable() or c == "\n" for c in text)
    outside = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", text)
    for line in outside.splitlines():
        left = SPAN.sub("", re.sub(r"^#+ ", "", line))
        assert not re.search(r"[<>\[\]@`!&#\\]|://|www\.", left), ascii(line)
        assert left.count("|") in (0, line.count(" | ") + 2), ascii(line)


def test_no_cell_is_a_formula(owned: Report) -> None:
    rows = list(csv.reader(io.StringIO(owned.data.figures)))
    assert all(len(row) == len(rows[0]) for row in rows)
    for row in rows:
        for cell in row[:7]:
            assert not cell.lstrip().startswith(tuple(escape.FORMULA)), ascii(cell)


def test_no_name_is_markup_in_a_chart(owned: Report) -> None:
    for picture in owned.pictures[:6]:
        root = ElementTree.fromstring(charts.svg(picture.chart))
        for element in root.iter():
            assert element.tag.rpartition("}")[2].lower() in ALLOWED
            assert not [k for k in element.attrib if k.lower().startswith("on")]
            assert all(v.startswith("#") for k, v in element.attrib.items() if k.rpartition("}")[2] == "href")


def test_no_name_leads_out_of_a_folder(owned: Report) -> None:
    for picture in owned.pictures:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,80}", _file(picture.name))
