"""The dashboard in a real browser: what it shows while processes run, that it asks only its own server, and that no name acts.

Needs Playwright and the system's Chromium; no browser is downloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostile import NAMES
from tritium.see.live import snapshot
from tritium.see.live.dashboard import dashboard
from tritium.see.live.snapshot import Snapshot
from tritium.see.live.viewer import Viewer

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page is tried in a browser by Playwright: pip install playwright"
)
CHROMIUM = os.environ.get("TRITIUM_CHROMIUM") or next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        launched = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITIUM_RUNTIME", str(tmp_path / "run"))
    return snapshot.folder(make=True)


def made(tokens: int, time_s: float, name: str = "tritium serve") -> Snapshot:
    return Snapshot(
        os.getpid(), name, "1", 100.0, time_s, 1.0, time_s, 1 << 30, 1 << 20, 0, 1 << 20, {"bitlinear": 10 * tokens, "add": tokens},
        decode_tokens=tokens, running=2, waiting=1, requests_done=4,
    )  # fmt: skip


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_follows_a_process(browser: Any, place: Path, width: int) -> None:
    snapshot.write(made(100, 200.0), place)
    with dashboard(Viewer(sources=[])) as endpoint:
        address = f"http://127.0.0.1:{endpoint.port}/"
        trouble: list[str] = []
        opened = browser.new_page(viewport={"width": width, "height": 900})
        opened.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
        opened.on("pageerror", lambda e: trouble.append(str(e)))
        opened.on("request", lambda r: None if r.url.startswith(address) else trouble.append(r.url))
        opened.goto(address)
        opened.wait_for_selector("text=tritium serve")
        snapshot.write(made(350, 201.0), place)
        opened.wait_for_selector("text=250 /s")
        snapshot.write(made(500, 202.0), place)
        opened.wait_for_selector("text=150 /s")
        assert opened.locator(".figure svg polyline").count() >= 2
        assert opened.locator(".ops i").count() == 2
        assert "2, 1 waiting" in opened.inner_text("main")
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        snapshot.remove(os.getpid(), place)
        opened.wait_for_selector("text=No process publishes")
        assert trouble == []
        opened.close()


def test_no_name_acts(browser: Any, place: Path) -> None:
    with dashboard(Viewer(sources=[])) as endpoint:
        dialogs: list[str] = []
        opened = browser.new_page()
        opened.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
        opened.goto(f"http://127.0.0.1:{endpoint.port}/")
        for i, name in enumerate(list(NAMES)[:5]):
            text = str(name)[:200].encode("utf-8", "replace").decode()
            snapshot.write(made(100 + i, 300.0 + i, f"mark{i} {text}"), place)
            opened.wait_for_selector(f"h2:has-text('mark{i}')")
            assert opened.locator("h2 *").count() == 0
        assert dialogs == []
        opened.close()
