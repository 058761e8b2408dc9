"""Text made harmless by the place where it stands: in HTML, in an attribute, in SVG, in JSON, in a script element.

Knows nothing of pages or charts. What people see goes through `names.visible` first: no control character, no change of
direction, one line. What programs read (`script_json`) stays as it was.
"""

from __future__ import annotations

import json
from typing import Any

from tritium.errors import ArgumentError
from tritium.perf import names

TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
QUOTED = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "`": "&#96;", "=": "&#61;"}
)
# What would end a script element or begin a comment in it; the rest of a JSON text means nothing to HTML.
IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def html(text: str, limit: int | None = names.LIMIT) -> str:
    """For the text of an HTML element (not of script or style)."""
    return names.visible(text, limit).translate(TEXT)


def attribute(text: str, limit: int | None = names.LIMIT) -> str:
    """For the value of an attribute, HTML's or SVG's, between quotes. Not for addresses: a name is none."""
    return names.visible(text, limit).translate(QUOTED)


def svg(text: str, limit: int | None = names.LIMIT) -> str:
    """For the text of an SVG element: what XML has no character for is spelled out."""
    return names.visible(text, limit).translate(TEXT)


def json_text(text: str, limit: int | None = names.LIMIT) -> str:
    """A name as a JSON string, quotes and all, for files that other programs show: it is visible, and ASCII."""
    return json.dumps(names.visible(text, limit)).translate(IN_SCRIPT)


def script_json(value: Any) -> str:
    """Any value as JSON for <script type="application/json">. The data is exact: whoever shows a text of it escapes it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(IN_SCRIPT)
    except ValueError as error:
        raise ArgumentError(f"JSON has no infinity and no NaN: {error}. Leave the value out and say why.") from None
