"""The page of a timeline in a real browser: it draws, zooms, searches and sums; asks no network; and no name acts.

Needs Playwright and the system's Chromium; no browser is downloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostile import NAMES
from made_timelines import named, op, scope
from tritium.see.profile.profile import Profile
from tritium.see.trace.timeline import Timeline, What, ordered, timeline

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page is tried in a browser by Playwright: pip install playwright"
)
CHROMIUM = os.environ.get("TRITIUM_CHROMIUM") or next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
MS = 1_000_000


def stages() -> Timeline:
    """Return two threads that hand items over, with calls inside."""
    spans = []
    for i in range(4):
        spans += [(scope("load"), 20 * i * MS, 10 * MS, 0), (scope("run"), (12 + 20 * i) * MS, 10 * MS, 1)]
        spans += [(op("matmul"), (14 + 20 * i) * MS, 5 * MS, 1)]
    return timeline(spans, ("first", "second"), 100 * MS, name="stages", after=[(3 * i, 3 * i + 1) for i in range(4)])


def many(count: int) -> Timeline:
    """Return that many short spans on one lane."""
    start = np.arange(count, dtype=np.int64) * 1000
    zeros = np.zeros(count, np.int64)
    return ordered([What("add")], zeros, start, zeros + 600, zeros, ["MainThread"], 1000 * count, name="many")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        launched = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open the page of a timeline; whatever it should not have done fails the test."""
    trouble: list[str] = []
    contexts = []

    def open_page(t: Timeline, width: int = 1200, place: str = "#timeline", **options: Any) -> Any:
        address = Profile(t).export(tmp_path / f"{len(contexts)}.html").as_uri()
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda e: trouble.append(f"error: {e}"))
        page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
        page.on("dialog", lambda d: (trouble.append(d.message), d.dismiss()))
        page.on("request", lambda r: None if r.url.split("#")[0] == address else trouble.append(r.url[:200]))
        page.goto(address + place)
        page.wait_for_selector(".tl[data-ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def wait_until(page: Any, expression: str) -> None:
    """Wait until an expression is true on the page, whose policy forbids to wait by its text there."""
    for _ in range(100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression[:80]}")


PIXELS = """() => { const c = document.querySelector('.tl-main'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size; }"""


@pytest.mark.parametrize("width", [390, 1200])
def test_the_timeline_is_drawn_and_fits_the_window(opened: Callable[..., Any], width: int) -> None:
    page = opened(stages(), width)
    wait_until(page, f"({PIXELS})() > 8")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".tl-state").inner_text() == "12 spans in 100 ms; shown: 100 ms"


def test_a_click_tells_of_a_span_and_whom_it_waited_for(opened: Callable[..., Any]) -> None:
    page = opened(stages())
    page.locator(".tl input").fill("run")
    assert page.locator(".tl-state").inner_text() == "4 spans, 40 ms"
    page.keyboard.press("Enter")
    panel = page.locator(".tl-panel")
    assert panel.locator("h3").inner_text() == "run"
    assert "10 ms, own 5 ms, from 12 ms on second" in panel.inner_text()
    panel.get_by_text("It waited for load on first").click()
    assert panel.locator("h3").inner_text() == "load"
    assert "It handed over to run on second" in panel.inner_text()


def test_a_selected_range_is_summed(opened: Callable[..., Any]) -> None:
    page = opened(stages())
    page.locator("[data-act=range]").click()
    box = page.locator(".tl-main").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 60)  # the first pixel beside the names
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 60, steps=3)
    page.mouse.up()
    panel = page.locator(".tl-panel")
    assert "selected, from" in panel.locator("h3").inner_text()
    rows = {r.split("\t")[0]: r.split("\t")[1:] for r in panel.locator("table").first.inner_text().splitlines()[1:]}
    assert rows["matmul"][:3] == ["4", "20 ms", "20 ms"]
    assert rows["run"][:3] == ["4", "40 ms", "20 ms"]
    assert "second: waits for an item of load on first" in panel.inner_text()


def test_zoom_is_in_the_address_and_links_of_gaps_lead_there(opened: Callable[..., Any]) -> None:
    page = opened(stages())
    page.locator("[data-act=in]").click()
    wait_until(page, "location.hash.includes('tl=')")
    assert page.locator(".tl-state").inner_text().endswith("shown: 50 ms")
    page.locator("#gaps tbody a").first.click()
    wait_until(page, "location.hash.startsWith('#timeline&tl=')")
    page.locator("[data-act=all]").click()
    assert page.locator(".tl-state").inner_text().endswith("shown: 100 ms")
    again = opened(stages(), place="#timeline&tl=0~20000000")
    assert again.locator(".tl-state").inner_text().endswith("shown: 20 ms")


def test_ctrl_and_wheel_zoom_at_the_pointer_and_the_wheel_alone_scrolls_the_page(opened: Callable[..., Any]) -> None:
    page = opened(stages())
    box = page.locator(".tl-main").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 100)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    wait_until(page, "location.hash.includes('tl=')")
    first, last = map(int, page.url.partition("tl=")[2].split("~"))
    assert last - first < 90 * MS
    assert last > 99 * MS  # what was under the pointer stays there
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 200)
    wait_until(page, f"scrollY > {before}")


def test_two_fingers_zoom_and_one_moves(opened: Callable[..., Any]) -> None:
    page = opened(stages(), 390, has_touch=True, is_mobile=True)
    box = page.locator(".tl-main").bounding_box()
    y = box["y"] + 60
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *xs: float) -> None:
        points = [{"x": x, "y": y, "id": i} for i, x in enumerate(xs)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 150)
    touch("touchStart", 150, 250)
    for spread in (20, 50, 80):
        touch("touchMove", 150 - spread, 250 + spread)
    touch("touchEnd")
    within = "(([first, last]) => last - first)(location.hash.split('tl=').at(-1).split('~').map(Number))"
    # Each move is drawn in a frame of its own.
    wait_until(page, f"location.hash.includes('tl=') && {within} < {60 * MS}")
    first, last = map(int, page.url.partition("tl=")[2].split("~"))
    touch("touchStart", 300)
    for x in (260, 200, 150):
        touch("touchMove", x)
    touch("touchEnd")
    wait_until(page, f"!location.hash.endsWith('tl={first}~{last}')")
    assert int(page.url.partition("tl=")[2].split("~")[0]) > first


def test_a_hundred_thousand_spans_are_drawn_found_and_summed(opened: Callable[..., Any]) -> None:
    page = opened(many(100_000))
    wait_until(page, f"({PIXELS})() > 2")
    page.locator(".tl input").fill("add")
    assert page.locator(".tl-state").inner_text() == "100,000 spans, 60 ms"
    for _ in range(12):
        page.locator("[data-act=in]").click()
    page.locator(".tl-main").press("ArrowRight")
    assert page.locator(".tl-state").inner_text() == "100,000 spans, 60 ms"


def test_no_hostile_name_acts(opened: Callable[..., Any]) -> None:
    page = opened(named(NAMES[:150]))
    page.locator(".tl input").fill("<script>")
    page.keyboard.press("Enter")
    assert page.evaluate("window.owned") is None
    assert page.locator("img, iframe, object, embed, form, base").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200


def test_without_script_the_tables_are_readable(browser: Any, tmp_path: Path) -> None:
    address = Profile(stages()).export(tmp_path / "x.html").as_uri()
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 900})
    page = context.new_page()
    page.goto(address)
    assert "x.timeline.svg" in page.locator(".tl noscript").inner_text()
    assert page.locator("#operations table").first.locator("tbody tr").count() == 1
    page.locator(".menu summary").click()
    assert page.locator(".menu a", has_text="Critical path").is_visible()
    context.close()
