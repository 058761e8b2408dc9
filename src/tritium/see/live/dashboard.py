"""The dashboard: a page of one file that asks its own server, on this machine, for the view once a second.

Listens on the loopback address alone and answers only to its names (see `Endpoint`).
"""

from __future__ import annotations

import base64
from functools import cache
from hashlib import sha256
from importlib import resources

from tritium.perf.formats.telemetry import openmetrics
from tritium.perf.records.json_io import dumps
from tritium.see.charts.charts import variables
from tritium.see.live.viewer import Viewer, families
from tritium.see.monitor.endpoint import Endpoint, Served

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
NOBODY = "No process publishes. Start one with TRITIUM_LIVE=1, as in: TRITIUM_LIVE=1 tritium serve"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@cache
def _file(name: str) -> str:
    return resources.files("tritium.see.live").joinpath(name).read_text("utf-8")


def page() -> str:
    """Return the page: style and script inside, nothing fetched from elsewhere."""
    themes = [";".join(f"{k}:{v}" for k, v in variables(theme).items()) for theme in ("light", "dark")]
    colours = f":root{{{themes[0]}}}@media (prefers-color-scheme:dark){{:root{{{themes[1]}}}}}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Tritium, live</title><style>{colours}{_file("dashboard.css")}</style></head>
<body><header><h1>Tritium, live</h1><span id="state" class="quiet" role="status">looking …</span></header>
<main><div id="machine" class="tiles" aria-label="this machine"></div><div id="processes"></div><p id="absent" class="quiet"></p>
<p id="none" hidden>{NOBODY}</p><noscript>This page needs its script; tritium top shows the same in a terminal.</noscript></main>
<script>{_file("dashboard.js")}</script></body></html>
"""


def policy() -> str:
    """Return the content security policy of the page: its own script, and requests to its own server."""
    return POLICY.format(base64.b64encode(sha256(_file("dashboard.js").encode()).digest()).decode())


def dashboard(viewer: Viewer, port: int = 0) -> Endpoint:
    """Return the server of the page at /, the view at /view.json and OpenMetrics at /metrics; `start` it or use `with`."""
    html = Served(
        page, "text/html; charset=utf-8", {"Content-Security-Policy": policy(), "Referrer-Policy": "no-referrer"}
    )
    view = Served(lambda: dumps(viewer.look(), ascii_only=True), "application/json")
    metrics = Served(lambda: openmetrics(families(viewer.look())), OPENMETRICS)
    return Endpoint(metrics.text, port, pages={"/": html, "/view.json": view, "/metrics": metrics})
