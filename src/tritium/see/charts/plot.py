"""What charts with two axes share: the plot's place, lines and texts of both axes, which samples are drawn of very many.

Knows nothing of what is plotted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritium.see.charts import svg
from tritium.see.charts.scale import Scale, spaced, tick_texts

TICK = 11.0  # px of a tick's text
UNDER = 22.0  # px for the texts below a plot


@dataclass(frozen=True)
class Plot:
    """Where the axes meet: left and bottom are the axes' places."""

    left: float
    right: float
    top: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


def margin(scale: Scale, unit: str) -> float:
    """The room that the texts of an upright axis need."""
    return max(svg.text_width(t, TICK) for t in tick_texts(scale, unit)) + 8


def upright(p: Plot, scale: Scale, unit: str) -> str:
    """Lines across from the ticks of the upright axis, and their texts at the left."""
    texts = tick_texts(scale, unit)
    places = [scale.at(t) for t in scale.ticks]
    kept = set(spaced(places, [TICK] * len(places), 4))
    lines = svg.path("".join(svg.line(p.left, y, p.right, y) for y in places), "g")
    return lines + "".join(
        svg.text(p.left - 8, places[i] + 4, texts[i], "t r") for i in range(len(places)) if i in kept
    )


def flat(p: Plot, scale: Scale, unit: str, width: float, *, lines: bool = False) -> str:
    """The texts of the axis below; lines up from its ticks where they are wanted."""
    return labelled(p, [scale.at(t) for t in scale.ticks], tick_texts(scale, unit), width) + (
        svg.path("".join(svg.line(scale.at(t), p.top, scale.at(t), p.bottom) for t in scale.ticks), "g")
        if lines
        else ""
    )


def labelled(p: Plot, places: Sequence[float], texts: Sequence[str], width: float) -> str:
    """Texts below the plot, as many as have room."""
    widths = [svg.text_width(t, TICK) for t in texts]
    centres = [min(max(x, w / 2), width - w / 2) for x, w in zip(places, widths, strict=True)]
    axis = svg.path(svg.line(p.left, p.bottom, p.right, p.bottom), "a")
    return axis + "".join(svg.text(centres[i], p.bottom + 15, texts[i], "t c") for i in spaced(centres, widths, 12))


def some(count: int, most: int) -> list[int]:
    """At most so many indexes of a longer row, evenly spread, the last among them."""
    if count <= most:
        return list(range(count))
    every = -(-(count - 1) // max(most - 1, 1))
    kept = list(range(0, count, every))
    return kept if kept[-1] == count - 1 else [*kept, count - 1]


def extremes(values: Sequence[float], most: int) -> list[int]:
    """At most about so many indexes of a longer row: of each stretch the least and the greatest, so that no peak is lost."""
    if len(values) <= most:
        return list(range(len(values)))
    width = -(-2 * len(values) // most)
    kept = {0, len(values) - 1}
    for start in range(0, len(values), width):
        stretch = range(start, min(start + width, len(values)))
        kept |= {min(stretch, key=lambda i: values[i]), max(stretch, key=lambda i: values[i])}
    return sorted(kept)
