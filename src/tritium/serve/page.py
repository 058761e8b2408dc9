"""The page to chat in: one file that talks to its own server and fetches nothing from elsewhere.

The page is for anyone; what it asks for needs the server's key like any other request.
"""

from __future__ import annotations

import base64
from functools import cache
from hashlib import sha256
from importlib import resources

POLICY = (
    "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


@cache
def _file(name: str) -> str:
    return resources.files("tritium.serve").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(sha256(text.encode()).digest()).decode()


@cache
def chat_page() -> bytes:
    """Return the page: style and script inside."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Tritium chat</title><link rel="icon" href="data:,"><style>{_file("chat.css")}</style></head>
<body><header><h1 id="model">Tritium</h1><span id="state" role="status"></span>
<button id="clear" type="button">Clear</button>
<button id="open" type="button" aria-expanded="false" aria-controls="settings">Settings</button></header>
<form id="settings" hidden aria-label="Settings">
<label class="wide">System prompt<textarea id="system" rows="2"></textarea></label>
<label>Temperature<input id="temperature" type="number" min="0" max="2" step="0.1" value="0.7"></label>
<label>Max tokens<input id="most" type="number" min="1" step="1" value="256"></label>
<label>API key<input id="key" type="password" autocomplete="off"></label></form>
<main id="log" aria-live="polite" aria-busy="false" tabindex="-1"><p id="hint"></p></main>
<form id="ask"><textarea id="text" rows="1" aria-label="Message" placeholder="Message" autofocus></textarea>
<button id="send" type="submit">Send</button><button id="stop" type="button" hidden>Stop</button></form>
<noscript>This page needs its script; the API works without it.</noscript>
<script>{_file("chat.js")}</script></body></html>
""".encode()


@cache
def headers() -> dict[str, str]:
    """Return the headers of the page: its own style and script, requests to its own server, and no frames."""
    policy = POLICY.format(_hash(_file("chat.css")), _hash(_file("chat.js")))
    return {
        "content-type": "text/html; charset=utf-8", "content-security-policy": policy, "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }  # fmt: skip
