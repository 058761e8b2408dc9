"""Escape text for the place where it appears: a terminal, Markdown, HTML, SVG, JSON, CSV, a file name.

Each function is for one place: what is harmless in a CSV cell is not in a Markdown table. What people see goes through
`visible` first: no control character, no change of direction, one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable
from hashlib import sha256
from typing import Any

from tritium.errors import ArgumentError

LIMIT = 200  # characters of a name that people see
FORMULA = "=+-@＝＋－＠"  # a spreadsheet takes a cell for a formula when it begins with one of these
AFTER_SEPARATOR = re.compile(rf";(?=[\s\"']*[{re.escape(FORMULA)}])")  # where `;` parts cells, what follows begins one
HTML = str.maketrans({"<": "‹", ">": "›", "&": "＆", "`": "′", "|": "¦", '"': "″", "'": "′", "\\": "⧵"})
ANNOTATION = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY = ANNOTATION | {":": "%3A", ",": "%2C"}
LOGGED = ("##[", "#\\x23[")  # a command anywhere in GitHub's logs, and its escaped form
PLAIN = re.compile(r"[\w .,:;×±%~…/()+\-→·='?°µ›]*")  # characters of a sentence that Markdown leaves alone, mostly
ACTS = re.compile(
    r"(?i)://|www\.|~\S|:\w+:|(?<![a-z0-9])_|_(?![a-z0-9])|^([-+=]|\d+[.)])\s|^::"
)  # links, struck text, emoji, emphasis, lists, commands in GitHub's logs
TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
QUOTED = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "`": "&#96;", "=": "&#61;"}
)
# What would end a script element or begin a comment in it; the rest of a JSON text means nothing to HTML.
IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def visible(text: str, limit: int | None = LIMIT) -> str:
    """Return text on one line, with control, invisible and direction-changing characters escaped."""
    shown = text if limit is None else text[:limit]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else _spelled(c) for c in shown)
    return shown if limit is None or len(text) <= limit else shown + "…"


def _spelled(c: str) -> str:
    return c.encode("unicode_escape", "surrogatepass").decode("ascii")


def terminal(text: str, limit: int | None = LIMIT) -> str:
    """Escape for a terminal or a log: no control sequences. GitHub reads commands from logs: `::` before all else, `##[` anywhere."""
    shown = visible(text, limit).replace(*LOGGED)
    bare = shown.lstrip()
    return shown[: len(shown) - len(bare)] + "\\x3a" + bare[1:] if bare.startswith("::") else shown


def markdown(text: str, limit: int | None = LIMIT) -> str:
    """Escape for a Markdown table or line: a code span, in which HTML, links, mentions and emphasis mean nothing; nor in a log."""
    shown = visible(text, limit).strip().replace(*LOGGED)
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def prose(text: str, limit: int | None = LIMIT) -> str:
    """Escape for a sentence or a table cell in Markdown: as it is where nothing in it could act, else a code span."""
    shown = visible(text, limit).strip()
    return shown if PLAIN.fullmatch(shown) and not ACTS.search(shown) else markdown(shown, None)


def csv(text: str, guard: bool = True) -> str:
    """Escape for a CSV cell: one line, never a formula. `from_csv` restores the text."""
    plain = visible(text.replace("\\", "\\\\"), None)
    if guard:
        plain = AFTER_SEPARATOR.sub(r"\\x3b", plain)
    first = plain.lstrip()[:1]
    return f"'{plain}" if first == "'" or (guard and first and first in FORMULA) else plain


def from_csv(cell: str) -> str:
    """Return the text of a cell that `csv` wrote."""
    plain = cell[1:] if cell.startswith("'") else cell
    return re.sub(r"\\(\\|[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", _unspelled, plain)


def _unspelled(match: re.Match[str]) -> str:
    code = match[1]
    named = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
    return named[code] if code in named else chr(min(int(code[1:], 16), 0x10FFFF))


def label(text: str, limit: int = LIMIT) -> str:
    """Escape for programs with unknown rendering: without characters that HTML, Markdown or a shell interprets.

    A name that had to change gets a hash of the whole: different names stay different.
    """
    shown = re.sub(r"@(?=\w)", "＠", visible(text, None).translate(HTML)).replace("://", ":⧸⧸")
    if shown == text and len(shown) <= limit:
        return text
    return f"{shown[: limit - 9]} {_hash(text)}"


def prometheus(text: str) -> str:
    """Escape for the value of a Prometheus label, without the quotes around it."""
    return visible(text, None).replace("\\", "\\\\").replace('"', '\\"')  # whole: two series must not meet


def prometheus_name(text: str) -> str:
    """Return the name of a Prometheus metric."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return name if name and not name[0].isdigit() else f"_{name}"


def annotation(text: str, limit: int | None = 4000) -> str:
    """Escape for the message of a GitHub annotation; its lines stay lines."""
    lines = [visible(line, None) for line in text.splitlines()]
    joined = "\n".join(lines)
    return _replaced(joined if limit is None else joined[:limit], ANNOTATION)


def annotation_property(text: str) -> str:
    """Escape for file=, line= and title= of a GitHub annotation."""
    return _replaced(visible(text), PROPERTY)


def _replaced(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(c, c) for c in text)


def file_name(text: str, suffix: str = "") -> str:
    """Return a file name on every system: letters, digits, `-` and `_`, and a hash, so that no two names meet."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", text)[:60].strip("-") or "case"
    return f"{stem}-{_hash(text)}{suffix}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


# ---- pages


def html(text: str, limit: int | None = LIMIT) -> str:
    """Escape for the text of an HTML element (not of script or style)."""
    return visible(text, limit).translate(TEXT)


def html_table(
    heads: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    title: str = "",
    right: Container[str] = (),
    below: Iterable[str] = (),
) -> str:
    """Return a table as HTML for a notebook, every cell escaped; columns named in `right` hold numbers."""
    heads = list(heads)
    styles = [' style="text-align:right"' if head in right else ' style="text-align:left"' for head in heads]

    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}{s}>{html(c)}</{tag}>" for c, s in zip(cells, styles, strict=True)) + "</tr>"

    caption = f"<caption>{html(title)}</caption>" if title else ""
    head = f"<thead>{line(heads, 'th')}</thead>" if any(heads) else ""
    body = "".join(line(row, "td") for row in rows)
    notes = "".join(f"<div>{html(note)}</div>" for note in below if note)
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>{notes}"


def attribute(text: str, limit: int | None = LIMIT) -> str:
    """Escape for the value of an attribute, HTML's or SVG's, between quotes. Not for addresses: a name is none."""
    return visible(text, limit).translate(QUOTED)


def svg(text: str, limit: int | None = LIMIT) -> str:
    """Escape for the text of an SVG element: what XML has no character for is spelled out."""
    return visible(text, limit).translate(TEXT)


def json_text(text: str, limit: int | None = LIMIT) -> str:
    """Return a name as a JSON string, quotes and all, for files that other programs show: it is visible, and ASCII."""
    return json.dumps(visible(text, limit)).translate(IN_SCRIPT)


def script_json(value: Any) -> str:
    """Return any value as JSON for <script type="application/json">. The data is exact: the code that shows a text of it must escape it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(IN_SCRIPT)
    except ValueError as error:
        raise ArgumentError(f"JSON has no infinity and no NaN: {error}. Leave the value out and say why.") from None
