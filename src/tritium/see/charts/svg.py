"""SVG elements: short numbers, escaped and fitted text, marks with a tooltip, whole documents; and colours.

Every text is escaped. Where an id is needed the body contains ID, a character no text can contain; the document
replaces it with a hash of its content, so that the same content gives the same bytes.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise

from tritium import escape
from tritium.errors import ArgumentError, nearest

ID = "\x00"
TIP = 600  # characters of a line of a tooltip
LINK = re.compile(r"#[A-Za-z0-9_-]+")
SIZE = 12.0  # px of a text without a size
# Widths in em, at the upper end of the common system fonts.
CHARACTERS = {c: w for w, characters in (
    (0.27, "iljI.,:;'|!´`"), (0.37, "ftr()[]{}/\\-\" °·"), (0.9, "mM%"), (1.0, "W@"), (0.78, "wGOQDHNU&"), (0.6, "0123456789+=<>~"),
) for c in characters}  # fmt: skip
LOWER, UPPER, OTHER, WIDE = 0.57, 0.7, 0.68, 1.05


@dataclass(frozen=True)
class Drawing:
    """A drawn chart: its size in px and its elements."""

    width: float
    height: float
    body: str


def number(x: float) -> str:
    """Return a coordinate as text: rounded to 0.1, without a trailing zero."""
    rounded = round(x, 1)
    return f"{rounded:.1f}".removesuffix(".0") if rounded else "0"


def points(pairs: Iterable[tuple[float, float]]) -> str:
    """Return the path through these points, in relative steps; rounded first, so that errors do not add up."""
    tenths = [(round(10 * x), round(10 * y)) for x, y in pairs]
    if not tenths:
        return ""
    path_data = f"M{number(tenths[0][0] / 10)} {number(tenths[0][1] / 10)}"
    steps = [f"{_tenths(b[0] - a[0])} {_tenths(b[1] - a[1])}" for a, b in pairwise(tenths) if a != b]
    return path_data + ("l" + " ".join(steps).replace(" -", "-") if steps else "")


def dots(pairs: Iterable[tuple[float, float]]) -> str:
    """Return a path of separate points in whole px: lines of no length, which round caps make dots."""
    path_data, last = "", (0, 0)
    for pair in pairs:
        x, y = round(pair[0]), round(pair[1])
        path_data += f"m{x - last[0]} {y - last[1]}h0".replace(" -", "-")
        last = (x, y)
    return path_data


def _tenths(n: int) -> str:
    return number(n / 10).replace("0.", ".", 1) if abs(n) < 10 else number(n / 10)


# ---- text


@lru_cache(maxsize=4096)
def _em(c: str) -> float:
    width = CHARACTERS.get(c)
    if width is not None:
        return width
    if "a" <= c <= "z":
        return LOWER
    if "A" <= c <= "Z":
        return UPPER
    if unicodedata.combining(c):
        return 0.0
    return WIDE if unicodedata.east_asian_width(c) in "WF" or ord(c) > 0x1F000 else OTHER


def text_width(text: str, size: float = SIZE) -> float:
    """Return an estimate of a text's width, rather too large than too small."""
    return sum(map(_em, text)) * size


def fit(name: str, room: float, size: float = SIZE) -> str:
    """Return the text as displayed, shortened in the middle where it has no room, since both ends distinguish names."""
    visible = escape.visible(name, 4 * escape.LIMIT)
    if text_width(visible, size) <= room:
        return visible
    remaining = max(room - text_width("…", size), 0.0)
    head = _prefix(visible, remaining * 0.6, size)
    tail = _prefix(visible[: len(head) - 1 if head else None : -1], remaining - text_width(head, size), size)[::-1]
    return f"{head.rstrip()}…{tail.lstrip()}"


def _prefix(text: str, room: float, size: float) -> str:
    used = 0.0
    for i, c in enumerate(text):
        used += _em(c) * size
        if used > room:
            return text[:i]
    return text


def wrap(content: str, room: float, size: float = SIZE) -> list[str]:
    """Return lines of words that fit; a word that does not fit is shortened."""
    lines: list[str] = []
    for word in escape.visible(content, None).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(fit(word, room, size))
    return lines


# ---- elements


def text(x: float, y: float, content: str, kind: str = "") -> str:
    """Return a text element whose content already fits; `kind`: its classes."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}"{classes}>{escape.svg(content, None)}</text>'


def path(d: str, kind: str, more: str = "") -> str:
    """Return a path element; "" for an empty path."""
    return f'<path class="{kind}" d="{d}"{more}/>' if d else ""


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return path data: a straight line."""
    if round(y1, 1) == round(y2, 1):
        return f"M{number(x1)} {number(y1)}H{number(x2)}"
    if round(x1, 1) == round(x2, 1):
        return f"M{number(x1)} {number(y1)}V{number(y2)}"
    return f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"


def box(x: float, y: float, width: float, height: float) -> str:
    """Return path data: a rectangle."""
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"


def circle(x: float, y: float, radius: float) -> str:
    """Return path data: a disc."""
    r = number(radius)
    return (
        f"M{number(x - radius)} {number(y)}a{r} {r} 0 1 0 {number(2 * radius)} 0a{r} {r} 0 1 0 {number(-2 * radius)} 0z"
    )


def diamond(x: float, y: float, across: float, high: float) -> str:
    """Return path data: a rhombus."""
    return f"M{number(x - across)} {number(y)}L{number(x)} {number(y - high)}L{number(x + across)} {number(y)}L{number(x)} {number(y + high)}z"


def triangle(x: float, y: float, size: float, up: bool) -> str:
    """Return path data: a triangle that points up or down."""
    sign = -1 if up else 1
    return f"M{number(x - size)} {number(y - sign * size * 0.75)}H{number(x + size)}L{number(x)} {number(y + sign * size)}z"


def whisker(low: float, high: float, y: float, cap: float = 3.0) -> str:
    """Return path data: a horizontal interval, with its ends."""
    ends = f"M{number(low)} {number(y - cap)}v{number(2 * cap)}M{number(high)} {number(y - cap)}v{number(2 * cap)}"
    return f"M{number(low)} {number(y)}H{number(high)}{ends if cap else ''}"


def mark(tip: Sequence[str], *inside: str, row: int | None = None, link: str = "") -> str:
    """Return a group with a tooltip: the tooltip's lines, then the elements."""
    title = "\n".join(escape.svg(part, TIP) for part in tip if part)
    index = "" if row is None else f' data-r="{row}"'
    group = f'<g class="m"{index}><title>{title}</title>{"".join(inside)}</g>'
    if not link:
        return group
    if not LINK.fullmatch(link):
        raise ArgumentError(f"link: {link!r} is not a link inside the page; # and letters, digits, - or _ are needed.")
    return (
        f'<a href="{link}" tabindex="-1">{group}</a>'  # hundreds of tab stops would make the rest of a page unreachable
    )


def hatch(colour: str) -> tuple[str, str]:
    """Return a hatched fill of a colour's class ("k1"): its definition, and the attribute that uses it."""
    definition = (
        f'<pattern id="{ID}{colour}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<path class="{colour} p" d="M0 0h5v5h-5z"/><path class="{colour}" d="M0 0h2v5h-2z"/></pattern>'
    )
    return definition, f' fill="url(#{ID}{colour})"'


# ---- documents


def document(drawing: Drawing, title: str, description: str, *, css: str = "", name: str = "") -> str:
    """Return the whole SVG: sized, named for screen readers, with its own style where there is one."""
    width, height = number(drawing.width), number(math.ceil(drawing.height))
    head = f"{title}\n{description}\n{name}\n{width}\n{drawing.body}"
    prefix = "c" + sha256(head.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    if css:
        name_attribute = f'aria-labelledby="{ID}t {ID}d"'
        header = f'<style>{css}</style><title id="{ID}t">{escape.svg(title)}</title><desc id="{ID}d">{escape.svg(description, None)}</desc>'
    else:  # a <title> of the whole chart would pop up over every part of it
        name_attribute, header = (
            f'aria-label="{escape.attribute(title)}. {escape.attribute(description, None)}"',
            "",
        )
    role = "group" if "<a " in drawing.body else "img"  # role img hides the links inside
    element = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="{role}" {name_attribute}>{header}{drawing.body}</svg>'
    )
    return element.replace(ID, prefix)


# ---- the colours of charts and pages, light and dark, and the one stylesheet that uses them
#
# The eight series colours are distinguishable with the three common kinds of colour blindness and on both backgrounds; a
# state (better, worse, unsure) is never shown by its colour alone.

FONT = (
    '-apple-system,BlinkMacSystemFont,"Segoe UI",Roboto,Ubuntu,Cantarell,"Noto Sans","Liberation Sans","Helvetica Neue",Arial,'
    "system-ui,sans-serif"
)  # system-ui comes late: on Linux it is often the widest font
NARROW = 640  # px; a page that is narrower shows the narrow layout

THEMES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff", "panel": "#f6f7f8", "hover": "#f1f3f5", "ink": "#1a2027", "muted": "#59636e", "faint": "#8a939d",
        "grid": "#e8ebee", "axis": "#b3bac2",
        "c1": "#1e62ba", "c2": "#f0841c", "c3": "#2fb37f", "c4": "#a3608f", "c5": "#8aa2e6", "c6": "#6b1270", "c7": "#a02a0c",
        "c8": "#4e4a50",
        "good": "#0c7d68", "bad": "#c33f17", "unsure": "#b98900", "fine": "#7d8893", "band": "#edf0f3",
        "heat0": "#aedccf", "heat1": "#cbe8df", "heat2": "#e6f2ee", "heat3": "#f5f0e8", "heat4": "#f9e3d0", "heat5": "#f6cfb1",
        "heat6": "#f0b78d",
    },
    "dark": {
        "paper": "#14181d", "panel": "#1b2027", "hover": "#1f262e", "ink": "#e7ebef", "muted": "#a0abb6", "faint": "#75808b",
        "grid": "#272e36", "axis": "#4a545f",
        "c1": "#3f8ee8", "c2": "#f5a742", "c3": "#4cc993", "c4": "#fbd0f0", "c5": "#aab6ff", "c6": "#9460ae", "c7": "#d65f38",
        "c8": "#737880",
        "good": "#3cc8a8", "bad": "#ff8057", "unsure": "#e2b23e", "fine": "#7f8b97", "band": "#222932",
        "heat0": "#0f5c4d", "heat1": "#134a42", "heat2": "#1b3836", "heat3": "#322f29", "heat4": "#4a3626", "heat5": "#633c21",
        "heat6": "#7d431e",
    },
}  # fmt: skip
SERIES = 8  # colours c1 … c8
STATES = ("good", "bad", "unsure", "fine")

# Class names are short, since a page has thousands: kN fills, sN strokes with a series colour; kgood … a state's.
SHARED = {
    "": f"font-family:{FONT};font-size:12px;font-variant-numeric:tabular-nums;fill:var(--ink);display:block",
    "text": "stroke:none",
    ".h": "font-size:17px;font-weight:600",
    ".d": "font-size:13px;fill:var(--muted)",
    ".n,.t": "font-size:11px;fill:var(--muted)",
    ".u": "fill:var(--muted)",
    ".x": "fill:var(--muted);font-style:italic",
    ".w": "fill:var(--bad)",
    ".o": "font-weight:600",
    ".r": "text-anchor:end",
    ".c": "text-anchor:middle",
    ".l": "stroke:var(--paper);stroke-width:3px;stroke-linejoin:round;paint-order:stroke",
    ".b": "fill:var(--hover);fill-opacity:0",
    ".g": "stroke:var(--grid);fill:none",
    ".a": "stroke:var(--axis);fill:none",
    ".z": "stroke:var(--muted);fill:none",
    ".q": "stroke:var(--faint);fill:none;stroke-dasharray:3 3",
    ".e": "stroke:var(--ink);stroke-width:1;fill:none",
    ".y": "fill:var(--band)",
    ".i": "stroke:var(--paper);stroke-width:1.2",
    ".p": "fill-opacity:.22",
    ".f": "fill-opacity:.45",
    ".j": "fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round",
    ".bg": "fill:var(--paper)",
    ".dots": "fill:none;stroke-width:3;stroke-linecap:round;stroke-opacity:.75",
    "a": "text-decoration:none",
    ".m:hover .b,.m.on .b": "fill-opacity:.7",
    ".m.off": "opacity:.25",
}
COLOURED = {
    **{f".k{i}": f"fill:var(--c{i})" for i in range(1, SERIES + 1)},
    **{f".s{i}": f"stroke:var(--c{i})" for i in range(1, SERIES + 1)},
    **{f".k{s}": f"fill:var(--{s})" for s in STATES},
    **{f".s{s}": f"stroke:var(--{s})" for s in STATES},
    **{f".t{i}": f"fill:var(--heat{i})" for i in range(7)},
}
RULES = "".join(
    f"{','.join(f'.chart {part}'.rstrip() for part in selectors.split(','))}{{{style}}}\n"
    for selectors, style in (SHARED | COLOURED).items()
)
PAGE_RULES = (
    "svg.chart{width:100%;height:auto}.chart-narrow{display:none}"
    f"@media (max-width:{NARROW}px){{.chart-wide{{display:none}}.chart-narrow{{display:block}}}}\n"
)


def theme(name: str) -> dict[str, str]:
    """Return the colours of "light" or "dark"."""
    if name not in THEMES:
        raise ArgumentError(f"theme: {name!r} is not a theme; use light or dark.{nearest(name, THEMES)}")
    return THEMES[name]


def variables(name: str) -> dict[str, str]:
    """Return the colours as CSS custom properties."""
    return {f"--{key}": value for key, value in theme(name).items()}


def _declarations(name: str) -> str:
    return "".join(f"{key}:{value};" for key, value in variables(name).items())


def page_css() -> str:
    """Return the style of a page: variables at its root (the reader's choice overrides the system's), and the rules."""
    light, dark = _declarations("light"), _declarations("dark")
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
        f':root[data-theme="light"]{{color-scheme:light;{light}}}\n'
        f':root[data-theme="dark"]{{color-scheme:dark;{dark}}}\n'
        "@media print{:root,:root[data-theme]{color-scheme:light;" + light + "}}\n" + RULES + PAGE_RULES
    )


def file_css(name: str | None = None) -> str:
    """Return the style of a standalone file. A theme's name: plain colours, for readers without CSS variables."""
    if name is not None:
        colours = theme(name)
        return re.sub(r"var\(--([a-z0-9]+)\)", lambda match: colours[match[1]], RULES)
    return (
        f"svg.chart{{{_declarations('light')}}}\n@media (prefers-color-scheme:dark){{svg.chart{{{_declarations('dark')}}}}}\n"
        + RULES
    )


def series(index: int) -> int:
    """Return the number of a series' colour; the eight repeat."""
    return index % SERIES + 1
