"""The page to chat in: its headers, and in a real browser streaming, stop, copy, clear, settings, keys, and that no text acts.

The browser needs Playwright and the system's Chromium; no browser is downloaded.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import call
from hostile import NAMES
from markov import Model
from tritium.models.load import load
from tritium.serve.page import chat_page
from tritium.serve.server import Server

CHROMIUM = os.environ.get("TRITIUM_CHROMIUM") or next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>\u202e"


def make(
    step_s: float = 0.0, says: dict[str, str] | None = None, template: str | None = TEMPLATE, **options: Any
) -> Server:
    return Server(Model(template=template, says=says or {}, step_s=step_s, logit=40), port=0, grace_s=2.0, **options)  # type: ignore[arg-type]


def test_the_page_is_one_file_and_its_policy_names_what_is_inside() -> None:
    with make(api_key="secret") as server:
        status, headers, text = call(server, "GET", "/")
    assert (status, text.encode()) == (200, chat_page())
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:,)""", text)
    for kind in ("style", "script"):
        inside = re.search(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        assert inside is not None
        digest = base64.b64encode(sha256(inside[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(("host", "origin", "status"), [
    ("localhost:8080", "http://localhost:8080", 200),
    ("localhost:8080", "https://localhost:8080", 200),
    ("localhost:8080", "http://localhost:8081", 403),
    ("localhost:8080", "http://localhost:8080.evil.example", 403),
    ("evil.example", "http://evil.example", 403),
    ("localhost:8080", "null", 403),
])  # fmt: skip
def test_the_servers_own_page_may_call_it(host: str, origin: str, status: int) -> None:
    with make() as server:
        assert call(server, "GET", "/v1/models", host=host, origin=origin)[0] == status


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the page is tried in a browser by Playwright: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as p:
        launched = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Page:
    """A page and what went wrong on it."""

    def __init__(self, browser: Any, server: Server, width: int = 1280, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, **context)
        self.page, self.trouble = self.context.new_page(), list[str]()
        self.page.on("console", lambda m: self.trouble.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.trouble.append(str(e)))
        self.page.on("dialog", lambda d: (self.trouble.append(d.message), d.dismiss()))
        self.page.on("request", lambda r: None if r.url.startswith(server.url) else self.trouble.append(r.url))
        self.page.goto(server.url)

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")

    def answer(self, text: str) -> str:
        """Send, and return the whole answer."""
        self.say(text)
        self.page.wait_for_selector("#send:visible")
        return str(self.page.locator("article.assistant .text").last.text_content())

    def wait_for_text(self, index: int, more_than: int) -> None:
        """Wait until so much of an answer is shown; the page's policy forbids to wait by a script."""
        text, end = self.page.locator("article.assistant .text").nth(index), time.monotonic() + 15
        while len(text.text_content()) <= more_than and time.monotonic() < end:
            time.sleep(0.02)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.trouble == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_conversation_is_streamed_stopped_copied_and_cleared(browser: Any, width: int) -> None:
    first = "user: hi\nassistant:"
    says = {first: "Hello you", "user: hi\nassistant: Hello you\nuser: more\nassistant:": "x" * 400}
    with (
        make(step_s=0.02, says=says) as server,
        Page(browser, server, width, permissions=["clipboard-read", "clipboard-write"]) as p,
    ):
        p.page.wait_for_selector("h1:has-text('markov')")
        assert p.answer("hi") == "Hello you"
        assert "10 tokens" in p.page.inner_text("article.assistant footer")
        p.say("more")
        p.wait_for_text(1, 3)
        assert p.page.locator("#stop").is_visible()  # it is not over: what is shown was streamed
        p.page.click("#stop")
        p.page.wait_for_selector("footer:has-text('stopped')")
        said = p.page.locator("article.assistant .text").last.text_content()
        assert said
        assert 3 < len(said) < 400
        assert set(said) == {"x"}
        end = time.monotonic() + 10
        while server.scheduler.running and time.monotonic() < end:
            time.sleep(0.01)
        assert server.scheduler.running == 0
        p.page.locator("article.assistant button").first.click()
        p.page.wait_for_selector("button:has-text('Copied')")
        assert p.page.evaluate("navigator.clipboard.readText()") == "Hello you"
        assert p.page.evaluate("document.documentElement.scrollWidth") <= width
        p.page.click("#clear")
        assert p.page.locator("article").count() == 0
        assert p.answer("hi") == "Hello you"  # the earlier messages are gone


def test_escape_stops_and_a_line_break_does_not_send(browser: Any) -> None:
    with make(step_s=0.02, says={"user: a\nb\nassistant:": "y" * 400}) as server, Page(browser, server) as p:
        p.page.fill("#text", "a")
        p.page.press("#text", "Shift+Enter")
        p.page.keyboard.type("b")
        assert p.page.locator("article").count() == 0
        p.page.press("#text", "Enter")
        p.wait_for_text(0, 2)
        p.page.keyboard.press("Escape")
        p.page.wait_for_selector("footer:has-text('stopped')")
        assert p.page.evaluate("document.activeElement.id") == "text"


def test_no_text_acts(browser: Any) -> None:
    says = {f"user: {HOSTILE}\nassistant:": HOSTILE}
    with make(says=says, name=str(next(iter(NAMES)))[:60]) as server, Page(browser, server) as p:
        assert p.answer(HOSTILE) == HOSTILE
        assert p.page.locator(".text *, h1 *, h2 *").count() == 0


def test_settings_are_sent_and_kept(browser: Any) -> None:
    says = {"system: Be brief.\nuser: hi\nassistant:": "Yes, and no"}
    with make(says=says) as server, Page(browser, server) as p:
        p.page.click("#open")
        p.page.fill("#system", "Be brief.")
        p.page.fill("#temperature", "0")
        p.page.fill("#most", "3")
        assert p.answer("hi") == "Yes"
        assert "cut at the limit" in p.page.inner_text("article.assistant footer")
        p.page.reload()
        p.page.click("#open")
        assert [p.page.input_value(f"#{i}") for i in ("system", "temperature", "most")] == ["Be brief.", "0", "3"]


def test_a_key_is_asked_for_and_not_stored(browser: Any) -> None:
    with make(says={"user: hi\nassistant:": "Hello"}, api_key="secret") as server:
        p = Page(browser, server)
        p.page.wait_for_selector("text=needs an API key")
        p.page.fill("#key", "secret")
        p.page.press("#key", "Tab")
        p.page.wait_for_selector("h1:has-text('markov')")
        assert p.answer("hi") == "Hello"
        assert "secret" not in p.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
        p.context.close()


def test_an_error_is_shown_and_the_question_not_kept(browser: Any) -> None:
    with make(says={"user: b\nassistant:": "fine"}) as server, Page(browser, server) as p:
        p.say("a?")  # the model fails to read a question mark
        p.page.wait_for_selector("article.error")
        assert p.answer("b") == "fine"


def test_a_model_without_a_template_continues_text(browser: Any) -> None:
    with Server(load(), port=0, grace_s=2.0) as server, Page(browser, server, color_scheme="dark") as p:
        p.page.wait_for_selector("text=no chat template")
        assert len(p.answer("In the beginning God")) > 20
        assert p.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
