"""The page in a real browser: what it draws, how it behaves, that it asks nothing of a network, and that no name acts.

Needs Playwright and the system's Chromium; no browser is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import made_report
from hostile import NAMES
from tritium.perf.store import results as store
from tritium.see.reports.report import report

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page is tried in a browser by Playwright: pip install playwright"
)
CHROMIUM = os.environ.get("TRITIUM_CHROMIUM") or next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
WIDTHS = (390, 1024, 1600)


class Watched:
    """A page, and everything it did that it should not have."""

    def __init__(self, context: Any, address: str) -> None:
        self.trouble: list[str] = []
        self.page = context.new_page()
        self.page.on(
            "console", lambda m: self.trouble.append(f"console: {m.text}") if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda e: self.trouble.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.trouble.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on(
            "request",
            lambda r: None if r.url.split("#")[0] == address.split("#")[0] else self.trouble.append(r.url[:200]),
        )
        self.page.goto(address)

    def ask(self, code: str) -> Any:
        return self.page.evaluate(code)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def results() -> Any:
    return made_report.failing(made_report.many(12))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, results: Any) -> str:
    made = report(
        results, history=made_report.trends(results), profile=made_report.profile(), before=made_report.profile(2),
        selftest=made_report.selftest(),
    )  # fmt: skip
    return made.save(tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Any]:
    """Opens a page; whatever it should not have done fails the test."""
    contexts, pages = [], []

    def made(hash_: str = "", *, width: int = 1200, **how: Any) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **how)
        contexts.append(context)
        pages.append(Watched(context, address + hash_))
        return pages[-1]

    yield made
    trouble = [t for page in pages for t in page.trouble]
    for context in contexts:
        context.close()
    assert not trouble


# ---- what is there


def test_every_chart_is_drawn(opened: Any) -> None:
    page = opened()
    sizes = page.ask(
        "[...document.querySelectorAll('.figure .chart-wide svg.chart')].map(s => s.getBoundingClientRect().height)"
    )
    assert len(sizes) >= 5
    shown = page.ask(
        "[...document.querySelectorAll('.figure .chart-wide svg.chart')].filter(s => s.checkVisibility()).length"
    )
    assert shown >= 4
    assert page.ask("document.querySelectorAll('svg.flame').length") == 2
    assert page.ask("[...document.querySelectorAll('svg.chart, svg.flame')].every(s => s.getAttribute('aria-label'))")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scripts", [True, False], ids=["script", "no script"])
def test_nothing_is_wider_than_the_window(opened: Any, width: int, scripts: bool) -> None:
    page = opened(width=width, java_script_enabled=scripts).page
    if scripts:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = "e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll') && !e.closest('svg') && !e.closest('.skip')"
        assert (
            page.evaluate(
                f"[...document.body.querySelectorAll('*')].filter({wide}).map(e => e.tagName + '.' + e.className)"
            )
            == []
        )
    else:
        box = page.locator("body").bounding_box()
        assert box["width"] <= width


def test_without_script_everything_can_be_read(opened: Any) -> None:
    page = opened(java_script_enabled=False).page
    assert page.locator("h1").inner_text().endswith("as fast as numpy")
    assert page.locator("#filter").is_hidden()
    assert page.locator("#ratios table tbody tr").count() == 24
    first = page.locator("details.card").first
    assert not first.locator(".body").is_visible()
    first.locator("summary").click()
    assert first.locator(".body table").is_visible()
    assert first.locator("svg.chart").is_visible()
    assert page.locator("noscript").count() == 1


# ---- how it behaves


def test_a_click_on_a_head_sorts_and_a_second_one_turns_it_round(opened: Any) -> None:
    page = opened().page
    head = page.locator("#ratios thead button", has_text="times as fast")
    values = "[...document.querySelectorAll('#ratios tbody tr')].map(r => +r.cells[2].dataset.s)"
    head.click()
    up = page.evaluate(values)
    assert up == sorted(up)
    assert page.locator("#ratios th[aria-sort=ascending]").count() == 1
    head.click()
    assert page.evaluate(values) == sorted(up, reverse=True)
    assert "sort=" in page.url


def test_the_filter_hides_rows_and_cards_and_is_remembered_in_the_address(opened: Any) -> None:
    page = opened().page
    page.locator("#filter").fill("MATMUL 64")
    assert page.locator("details.card:visible").count() == 1
    assert page.locator("#ratios tbody tr:visible").count() == 2
    assert page.locator("#count").inner_text() == "1 of 12 cases"
    dimmed = page.evaluate(
        "[...document.querySelectorAll('#overview .chart-wide [data-r]')].map(m => m.classList.contains('off'))"
    )
    assert True in dimmed
    assert False in dimmed
    assert "filter=MATMUL%2064" in page.url
    again = opened("#" + page.url.partition("#")[2]).page
    assert again.locator("#filter").input_value() == "MATMUL 64"
    assert again.locator("details.card:visible").count() == 1


def test_a_filter_without_a_match_says_so(opened: Any) -> None:
    page = opened("#&filter=zzzz").page
    assert page.locator("#ratios .none").is_visible()
    assert page.locator("#count").inner_text() == "No case matches."
    page.locator("#filter").fill("matmul")
    assert page.locator("#ratios .none").is_hidden()


def test_on_a_phone_the_plot_of_every_ratio_is_in_sight(opened: Any) -> None:
    page = opened(width=390)
    wide = page.ask("[...document.querySelectorAll('#ratios .span')].map(s => s.getBoundingClientRect().right)")
    assert len(wide) > 10
    assert max(wide) <= 390
    at = page.ask(
        "[...document.querySelectorAll('#ratios svg.axis, #ratios .span')].map(s => s.getBoundingClientRect().left)"
    )
    assert max(at) - min(at) < 1  # the axis stands over what it measures


def test_a_phone_has_the_contents_in_a_menu_that_closes(opened: Any) -> None:
    page = opened(width=390).page
    assert page.locator(".toc").is_hidden()
    menu = page.locator(".menu")
    menu.locator("summary").click()
    assert menu.locator("a").all_inner_texts() == page.locator(".toc a").evaluate_all(
        "all => all.map(a => a.textContent)"
    )
    menu.locator("a", has_text="History").click()
    assert menu.get_attribute("open") is None
    assert page.url.endswith("#history")
    menu.locator("summary").click()
    page.keyboard.press("Escape")
    assert menu.get_attribute("open") is None
    assert opened(width=1600).page.locator(".menu").is_hidden()


def test_on_a_phone_a_row_of_a_wide_table_is_whole_and_names_its_figures(opened: Any) -> None:
    page = opened("#profile", width=390).page
    table = page.locator("#profile table.wide").first
    cells = "[...document.querySelectorAll('#profile table.wide tbody td')].filter(c => c.checkVisibility())"
    assert table.locator("tbody tr").count() >= 3
    assert page.evaluate(f"Math.max(...{cells}.map(c => c.getBoundingClientRect().right))") <= 390
    assert page.evaluate(f"{cells}.every(c => getComputedStyle(c, '::before').content.length > 2)")
    assert page.evaluate(f"{cells}.every(c => c.textContent !== '-')")


def test_a_link_to_a_case_opens_it(opened: Any, results: Any) -> None:
    page = opened().page
    page.locator("#ratios tbody th a").nth(4).click()
    place = page.evaluate("document.activeElement.closest('details').id")
    assert page.locator(f"#{place}").get_attribute("open") is not None
    assert page.url.endswith(f"#{place}")
    again = opened(f"#{place}").page
    assert again.locator(f"#{place} .body").is_visible()
    top = again.evaluate(f"document.getElementById('{place}').getBoundingClientRect().top")
    assert 0 <= top < 300


def test_the_theme_goes_from_the_systems_to_light_to_dark(opened: Any) -> None:
    page = opened(color_scheme="dark").page
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    button = page.locator("#theme")
    button.click()
    light = page.evaluate(colour)
    assert light != dark
    assert button.inner_text() == "light"
    assert "theme=light" in page.url
    assert opened("#" + page.url.partition("#")[2], color_scheme="dark").ask(colour) == light
    button.click()
    assert page.evaluate(colour) == dark
    button.click()
    assert "theme" not in page.url


def test_tips_show_by_pointer_by_focus_and_by_arrow_keys(opened: Any) -> None:
    page = opened().page
    mark = page.locator("#overview .chart-wide svg.chart .m").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    assert page.locator(".tip").is_visible()
    assert "vs tritium portable: 2." in page.locator(".tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()
    page.mouse.move(1, 1)  # away from the charts, which scroll under the pointer
    page.locator("#noise td[data-tip]").first.focus()
    assert "processes" in page.locator(".tip").inner_text()
    page.locator("#overview .chart-wide svg.chart").first.focus()
    page.keyboard.press("ArrowDown")
    first = page.locator(".tip").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator(".tip").inner_text() != first
    page.keyboard.press("Enter")
    assert "#case-" in page.url


def test_the_first_tab_is_the_skip_link(opened: Any) -> None:
    page = opened().page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_results_inside_can_be_saved_and_loaded(opened: Any, results: Any, tmp_path: Path) -> None:
    page = opened().page
    with page.expect_download() as found:
        page.locator("button[data-save=json]").click()
    found.value.save_as(tmp_path / "r.json")
    assert found.value.suggested_filename == "compare-results.json"
    assert store.load(tmp_path / "r.json") == results
    with page.expect_download() as found:
        page.locator("button[data-save=csv]").click()
    found.value.save_as(tmp_path / "f.csv")
    assert (tmp_path / "f.csv").read_text().startswith('"case"')


def test_a_flame_graph_finds_and_remembers_a_name(opened: Any) -> None:
    page = opened("#profile").page
    page.locator("#profile input").first.fill("matmul")
    assert page.evaluate("document.querySelectorAll('svg.flame .hit').length") >= 3
    assert page.url.partition("#")[2].startswith("profile&flame=")


def test_print_opens_every_card_and_is_white(opened: Any) -> None:
    page = opened("#theme=dark").page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".bar").is_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.card[open]").count() == 0


# ---- hostile names


def test_no_hostile_name_acts_in_a_browser(browser: Any, tmp_path: Path) -> None:
    for number, start in enumerate(range(0, len(NAMES), 120)):
        made = report(made_report.hostile(NAMES[start : start + 120], arms=3))
        path = made.save(tmp_path / f"{number}.html")
        context = browser.new_context(viewport={"width": 1024, "height": 900})
        found = Watched(context, path.as_uri())
        found.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        found.page.locator("#filter").fill("<script>")
        for mark in found.page.locator(".chart-wide svg.chart .m").all()[:5]:
            mark.dispatch_event("pointerover")
        assert found.ask("window.owned") is None
        assert (
            found.ask("document.querySelectorAll('img, iframe, object, embed, form, base, video, audio').length") == 0
        )
        assert found.ask("document.scripts.length") == 2
        assert found.ask("document.documentElement.scrollWidth") <= 1024
        assert found.trouble == []
        context.close()


def test_no_hostile_name_acts_in_a_chart_of_its_own(browser: Any, tmp_path: Path) -> None:
    made = report(made_report.hostile(NAMES[:40], arms=3))
    for path in made.charts(tmp_path)[:6]:
        context = browser.new_context()
        found = Watched(context, path.as_uri())
        assert found.ask("window.owned") is None
        assert found.trouble == []
        context.close()


def test_a_link_in_the_address_that_is_no_place_does_nothing(opened: Any) -> None:
    for hash_ in ("#%", "#nowhere", "#<img src=x onerror=window.owned=1>", "#a&filter=%", "#&&=&theme=x&sort=9.9.d"):
        assert opened(hash_).ask("window.owned") is None


def test_the_script_reads_json_and_nothing_else(opened: Any) -> None:
    assert json.loads(opened().ask("document.getElementById('inside').textContent"))["name"] == "compare"
