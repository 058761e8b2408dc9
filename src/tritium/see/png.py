"""SVG in, PNG out, by resvg (extra `png`): no browser, no network.

resvg knows no CSS variables: give it a chart with a theme, `charts.svg(chart, theme="light")`.
"""

from __future__ import annotations

import re

from tritium.errors import ArgumentError, FormatError, imported

SIZE = re.compile(r'<svg\b[^>]*?\swidth="(\d+(?:\.\d+)?)"[^>]*?\sheight="(\d+(?:\.\d+)?)"')
MOST_PIXELS = 200_000_000


def render(svg_text: str, scale: float = 2.0) -> bytes:
    """The picture, `scale` pixels for each px of the SVG."""
    found = SIZE.search(svg_text[:2000])
    if found is None:
        raise ArgumentError("png: an SVG with width and height in px is needed; charts.svg makes one.")
    if "var(--" in svg_text:
        raise ArgumentError(
            'png: the SVG has CSS variables, which become black; give charts.svg(chart, theme="light").'
        )
    width, height = (round(float(side) * scale) for side in found.groups())
    if not (scale > 0 and width >= 1 and height >= 1 and width * height <= MOST_PIXELS):
        raise ArgumentError(
            f"png: a scale of {scale!r} makes {width} x {height} pixels; 1 to {MOST_PIXELS} in all are possible."
        )
    try:
        return bytes(imported("PNG", "resvg_py").svg_to_bytes(svg_string=svg_text, width=width, height=height))
    except (ValueError, RuntimeError) as error:
        raise FormatError(f"png: resvg cannot draw this SVG: {error}") from error
