"""Programs of others against the server: each script of examples/clients prints what docs/clients.md says, and Open WebUI's requests work."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import call
from tritium.models.load import load
from tritium.serve.server import Server

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "clients").glob("*_client.py"))
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
NEEDS = {
    "langchain": ("langchain_openai",),
    "instructor": ("instructor", "llguidance"),
    "outlines": ("outlines", "llguidance"),
}
NEEDS |= {"openai": ("openai", "llguidance")}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    template = (ROOT / "examples" / "clients" / "plain.jinja").read_text(encoding="utf-8")
    with Server(load(), port=0, grace_s=2.0, chat_template=template) as s:
        yield s


def name_of(script: Path) -> str:
    return script.stem.removesuffix("_client")


def shown(script: Path) -> tuple[str, str]:
    """Return the program and the output that the page shows of a script."""
    found = re.search(
        rf"clients/{script.name} is run by a test -->\n\n```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL
    )
    assert found is not None
    return found[1], found[2]


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_page_shows_the_script(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    end = ast.parse(source).body[0].end_lineno
    assert shown(script)[0].strip() == "\n".join(source.splitlines()[end:]).strip()


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_prints_what_the_page_says(script: Path, server: Server) -> None:
    for package in NEEDS.get(name_of(script), (name_of(script),)):
        if find_spec(package) is None:
            pytest.skip(f"needs the package {package!r}")
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would ask the network for prices
    done = subprocess.run(
        [sys.executable, str(script), server.url],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown(script)[1]


def test_the_requests_of_open_webui(server: Server) -> None:
    headers = {
        "Content_Type": "application/json", "Authorization": "Bearer any", "X_OpenWebUI_User_Name": "Ada", "X_OpenWebUI_User_Id": "1",
        "X_OpenWebUI_User_Email": "ada@example.org", "X_OpenWebUI_User_Role": "admin", "X_OpenWebUI_Chat_Id": "7",
    }  # fmt: skip
    status, _, models = call(server, "GET", "/v1/models", **headers)
    assert (status, models["data"][0]["id"]) == (200, server.name)
    chat = {
        "stream": True,
        "model": server.name,
        "messages": [{"role": "user", "content": "And God"}],
        "max_tokens": 20,
    }
    status, kind, text = call(
        server,
        "POST",
        "/v1/chat/completions",
        {**chat, "stream_options": {"include_usage": True}, "tools": []},
        **headers,
    )
    assert (status, kind["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert text.endswith("data: [DONE]\n\n")
    assert '"completion_tokens": 20' in text or '"completion_tokens":20' in text
    title = {"model": server.name, "messages": chat["messages"], "stream": False, "max_completion_tokens": 30}
    assert call(server, "POST", "/v1/chat/completions", title, **headers)[0] == 200
    again = {**chat, "continue_final_message": True, "add_generation_prompt": False}
    status, _, refused = call(server, "POST", "/v1/chat/completions", again, **headers)
    assert (status, refused["error"]["code"]) == (400, "unsupported_parameter")
