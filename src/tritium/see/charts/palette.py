"""The colours of charts and pages, light and dark, and the one stylesheet that uses them.

Knows nothing of what is drawn. The eight series colours stay apart for the three common kinds of colour blindness and on
both papers; a state (better, worse, unsure) is never told by its colour alone.
"""

from __future__ import annotations

import re

from tritium.errors import ArgumentError, nearest

FONT = (
    '-apple-system,BlinkMacSystemFont,"Segoe UI",Roboto,Ubuntu,Cantarell,"Noto Sans","Liberation Sans","Helvetica Neue",Arial,'
    "system-ui,sans-serif"
)  # system-ui comes late: on Linux it is often the widest font there is
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
    f"{','.join(f'.chart {part}'.rstrip() for part in of.split(','))}{{{said}}}\n"
    for of, said in (SHARED | COLOURED).items()
)
PAGE_RULES = (
    "svg.chart{width:100%;height:auto}.chart-narrow{display:none}"
    f"@media (max-width:{NARROW}px){{.chart-wide{{display:none}}.chart-narrow{{display:block}}}}\n"
)


def theme(name: str) -> dict[str, str]:
    """The colours of "light" or "dark"."""
    if name not in THEMES:
        raise ArgumentError(f"theme: {name!r} is none; light and dark are.{nearest(name, THEMES)}")
    return THEMES[name]


def variables(name: str) -> dict[str, str]:
    """The colours as CSS custom properties."""
    return {f"--{key}": value for key, value in theme(name).items()}


def _declared(name: str) -> str:
    return "".join(f"{key}:{value};" for key, value in variables(name).items())


def page_css() -> str:
    """For a page: the variables at its root (a theme the reader chose comes before the system's), and the rules."""
    light, dark = _declared("light"), _declared("dark")
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
        f':root[data-theme="light"]{{color-scheme:light;{light}}}\n'
        f':root[data-theme="dark"]{{color-scheme:dark;{dark}}}\n'
        "@media print{:root,:root[data-theme]{color-scheme:light;" + light + "}}\n" + RULES + PAGE_RULES
    )


def file_css(name: str | None = None) -> str:
    """For a file of its own. A theme's name: plain colours, for readers that know no variables."""
    if name is not None:
        of = theme(name)
        return re.sub(r"var\(--([a-z0-9]+)\)", lambda found: of[found[1]], RULES)
    return (
        f"svg.chart{{{_declared('light')}}}\n@media (prefers-color-scheme:dark){{svg.chart{{{_declared('dark')}}}}}\n"
        + RULES
    )


def series(index: int) -> int:
    """The number of a series' colour: the eight come round again."""
    return index % SERIES + 1
