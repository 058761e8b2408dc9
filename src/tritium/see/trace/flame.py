"""Flame graphs as SVG: a standalone file that is readable without script, and the same for a page.

A file includes the stylesheet and the script of `see.trace.flame_look`; a page has them once and calls `flameGraph(svg)` for every
`svg.flame`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tritium.errors import ArgumentError
from tritium.see.trace.flame_diff import diff_inline, diff_svg
from tritium.see.trace.flame_frames import (
    DEEPEST,
    LEAST_PX,
    Frame,
    Look,
    Page,
    Room,
    calls,
    depth,
    format_value,
    layout,
    pane,
    share,
    top,
)
from tritium.see.trace.flame_look import MARGIN, PAGE_MARGIN, ROW, name_class
from tritium.see.trace.tree import Node

__all__ = ["diff_inline", "diff_svg", "inline", "svg"]

NARROWEST = 320  # px
LISTED = 5  # names listed in the description
HINT = "Width is time. A bar is below its caller; the part without a bar below it is own time."


Wholes = Sequence[tuple[str, int]]  # what shares are of: a name and an amount in the tree's unit


def svg(
    node: Node, title: str = "Flame graph", unit: str = "ns", *, width: int = 1200, interactive: bool = True,
    wholes: Wholes = (),
) -> str:  # fmt: skip
    """Return a standalone file with all colours, tooltips and values; with `interactive` also zoom and search.

    `wholes`: what the shares in the tooltips are of; by default all of the graph.
    """
    return _draw(node, title, unit, width, LEAST_PX, alone=True, interactive=interactive, wholes=wholes)


def inline(
    node: Node, title: str = "Flame graph", unit: str = "ns", *, width: int = 1200, key: str = "flame",
    wholes: Wholes = (),
) -> str:  # fmt: skip
    """Return the graph for a page that has the stylesheet and the script; `key`: name of its permalink there."""
    return _draw(node, title, unit, width, 5 * LEAST_PX, alone=False, interactive=False, key=key, wholes=wholes)


def _draw(
    node: Node, title: str, unit: str, width: int, least_px: float, *, alone: bool, interactive: bool,
    key: str = "flame", wholes: Wholes = (),
) -> str:  # fmt: skip
    if width < NARROWEST:
        raise ArgumentError(f"a flame graph of {width} px is too narrow; pass at least {NARROWEST}.")
    full, margin = node.total_ns, MARGIN if alone else PAGE_MARGIN
    room = Room(margin, width - 2 * margin, full, least_px)
    frames = layout(node, room)
    note = f" · levels below {DEEPEST} are not drawn" if depth(frames) > DEEPEST else ""
    count = len({below.name for _, below in node.walk()})
    info = (
        f"{format_value(full, unit)} in total · {count} {'name' if count == 1 else 'names'}{note}"
        if full
        else "nothing was recorded"
    )
    above, y = top(title, info, HINT, room, alone)
    body = above + pane(frames, room, y, lambda f: _look(f, wholes or [("all", full)], unit))
    page = Page(
        width, y + ROW * depth(frames) + MARGIN, title, _describe(node, unit), alone, interactive, NARROWEST, margin, key
    )  # fmt: skip
    return page.around(body)


def _look(f: Frame, wholes: Wholes, unit: str) -> Look:
    shares = (f"{share(f.total, whole)} of {name}" for name, whole in wholes)
    tip = (
        " · ".join(filter(None, (format_value(f.total, unit), *shares, calls(f.called)))),
        f"own {format_value(f.own, unit)} · {share(f.own, wholes[0][1])}",
    )
    return Look("root" if f.depth == 0 else "same" if f.more else name_class(f.name), tip[: 1 if f.more else 2])


def _describe(root: Node, unit: str) -> str:
    """Return the description of the picture: the names with most own time."""
    own: dict[str, int] = {}
    for _, node in root.walk():
        own[node.name] = own.get(node.name, 0) + node.own_ns
    most = sorted(((v, k) for k, v in own.items() if v), key=lambda pair: (-pair[0], pair[1]))[:LISTED]
    listed = ", ".join(f"{name} {format_value(value, unit)} ({share(value, root.total_ns)})" for value, name in most)
    return (
        f"{format_value(root.total_ns, unit)} in total. Most own time: {listed}." if listed else "Nothing was recorded."
    )
