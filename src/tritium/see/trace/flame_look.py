"""The style of flame graphs: colours of the light and dark theme, sizes, stylesheet, and the script for zoom and search.

Names get warm colours of different lightness, so that neighbours are distinguishable with any colour vision; a colour
only identifies a name. In a comparison blue is less and red is more, and a sign repeats it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from zlib import crc32

ROW = 20  # px from one level to the next
MARGIN = 14  # px beside the bars of a standalone file; a page has its own margins
PAGE_MARGIN = 1  # px; room for the stroke of the outermost bars
CELL = 7.23  # px of a character of the bars' font
LEAST_CELLS = 3  # a shorter label is not drawn

WARM = 12  # colours for names
STEPS = 4  # colours of less, and as many of more
LIGHT = {
    "paper": "#ffffff", "ink": "#1a2027", "muted": "#59636e", "line": "#d5dae0", "on": "#2c1a0c", "root": "#e9e5df",
    "hit": "#a9b8ff", "focus": "#2b4fd8",
    "0": "#f4b394", "1": "#f7c29b", "2": "#f9cfa0", "3": "#fbdca8", "4": "#f6d27e", "5": "#f2c063", "6": "#eeb07a", "7": "#eaa688",
    "8": "#f3bfae", "9": "#fae3bf", "10": "#efcfa4", "11": "#e6b690",
    "m1": "#fbe3db", "m2": "#f8c3b0", "m3": "#f09a80", "m4": "#e8775c", "l1": "#dfebf8", "l2": "#bbd5f1", "l3": "#8db9e8", "l4": "#649ee0",
    "same": "#eceef0",
}  # fmt: skip
DARK = {
    "paper": "#14181d", "ink": "#e7ebef", "muted": "#a0abb6", "line": "#39424c", "on": "#fdf3e8", "root": "#3a3d40",
    "hit": "#4a58c4", "focus": "#9fb2ff",
    "0": "#83472f", "1": "#7c5034", "2": "#775739", "3": "#6c5833", "4": "#695525", "5": "#75531f", "6": "#7f4c22", "7": "#8a452e",
    "8": "#72443b", "9": "#5d4f34", "10": "#654a31", "11": "#73452c",
    "m1": "#3f2f2d", "m2": "#5c352d", "m3": "#84402f", "m4": "#a8452c", "l1": "#29323d", "l2": "#2a4159", "l3": "#2a5682", "l4": "#2b66aa",
    "same": "#2c3238",
}  # fmt: skip
FILLS = ("root", "same", *map(str, range(WARM)), *(f"{side}{i + 1}" for side in "ml" for i in range(STEPS)))


def _declare(colours: dict[str, str]) -> str:
    return "".join(f"--fl-{key}:{value};" for key, value in colours.items())


def variables(*selectors: str) -> str:
    """Return the rules that give these elements the colours of the theme; one chosen on the page takes precedence."""
    light, dark = _declare(LIGHT), _declare(DARK)
    plain, on_light, on_dark, on_any = (
        ",".join(f"{theme}{s}" for s in selectors)
        for theme in ("", "[data-theme=light] ", "[data-theme=dark] ", "[data-theme] ")
    )
    return (
        f"{plain}{{{light}}}\n@media (prefers-color-scheme:dark){{{plain}{{{dark}}}}}\n"
        f"{on_light}{{{light}}}\n{on_dark}{{{dark}}}\n@media print{{{plain},{on_any}{{{light}}}}}\n"
    )


def css() -> str:
    """Return the stylesheet, for a standalone file or a page."""
    return (
        variables("svg.flame", ".fl-box")
        + _asset("flame.css")
        + "".join(
            f"svg.flame .{_class(key)} rect,svg.flame rect.{_class(key)}{{fill:var(--fl-{key})}}\n" for key in FILLS
        )
    )


def _class(key: str) -> str:
    return f"n{key}" if key.isdigit() else key


def name_class(name: str) -> str:
    """Return the CSS class of a name's colour, which is always the same."""
    return f"n{crc32(name.encode('utf-8', 'surrogatepass')) % WARM}"


def script() -> str:
    """Return the script: `flameGraph(svg)` adds zoom, search and keys. It never turns text into code or markup."""
    return _asset("flame.js")


@cache
def _asset(name: str) -> str:
    return files("tritium.see.trace").joinpath(name).read_text(encoding="utf-8")
