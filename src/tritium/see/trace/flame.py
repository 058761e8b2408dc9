"""Flame graphs as SVG: a file of its own that needs no script to be read, and the same for a page.

Knows nothing of timelines. A file carries the stylesheet and the script of `see.trace.flame_look`; a page brings them once and calls
`flameGraph(svg)` for every `svg.flame`.
"""

from __future__ import annotations

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
    layout,
    pane,
    said,
    share,
    top,
)
from tritium.see.trace.flame_look import MARGIN, PAGE_MARGIN, ROW, of_name
from tritium.see.trace.tree import Node

__all__ = ["diff_inline", "diff_svg", "inline", "svg"]

NARROWEST = 320  # px
TOLD = 5  # names that the words list
HINT = "Wider is longer. A bar lies under what called it; what has nothing below it is its own time."


def svg(
    node: Node, title: str = "Flame graph", unit: str = "ns", *, width: int = 1200, interactive: bool = True
) -> str:
    """A file of its own: all colours, tips and figures inside; with `interactive` also zoom and search."""
    return _drawn(node, title, unit, width, LEAST_PX, alone=True, interactive=interactive)


def inline(node: Node, title: str = "Flame graph", unit: str = "ns", *, width: int = 1200, key: str = "flame") -> str:
    """The same for a page that has the stylesheet and the script; `key`: what its permalink is called there."""
    return _drawn(node, title, unit, width, 5 * LEAST_PX, alone=False, interactive=False, key=key)


def _drawn(
    node: Node,
    title: str,
    unit: str,
    width: int,
    least_px: float,
    *,
    alone: bool,
    interactive: bool,
    key: str = "flame",
) -> str:
    if width < NARROWEST:
        raise ArgumentError(f"a flame graph of {width} px shows nothing; give at least {NARROWEST}.")
    full, margin = node.total_ns, MARGIN if alone else PAGE_MARGIN
    room = Room(margin, width - 2 * margin, full, least_px)
    frames = layout(node, room)
    deep = f" · deeper than {DEEPEST} levels is not drawn" if depth(frames) > DEEPEST else ""
    seen = len({below.name for _, below in node.walk()})
    info = (
        f"{said(full, unit)} in all · {seen} {'name' if seen == 1 else 'names'}{deep}"
        if full
        else "nothing was recorded"
    )
    above, y = top(title, info, HINT, room, alone)
    body = above + pane(frames, room, y, lambda f: _look(f, full, unit))
    page = Page(
        width, y + ROW * depth(frames) + MARGIN, title, _words(node, unit), alone, interactive, NARROWEST, margin, key
    )  # fmt: skip
    return page.around(body)


def _look(f: Frame, full: int, unit: str) -> Look:
    total = f"{said(f.total, unit)} · {share(f.total, full)} of all"
    tip = (" · ".join(filter(None, (total, calls(f.called)))), f"own {said(f.own, unit)} · {share(f.own, full)}")
    return Look("root" if f.depth == 0 else "same" if f.more else of_name(f.name), tip[: 1 if f.more else 2])


def _words(root: Node, unit: str) -> str:
    """The picture in a sentence: where most of it goes."""
    own: dict[str, int] = {}
    for _, node in root.walk():
        own[node.name] = own.get(node.name, 0) + node.own_ns
    most = sorted(((v, k) for k, v in own.items() if v), key=lambda pair: (-pair[0], pair[1]))[:TOLD]
    listed = ", ".join(f"{name} {said(value, unit)} ({share(value, root.total_ns)})" for value, name in most)
    return f"{said(root.total_ns, unit)} in all. Most own time: {listed}." if listed else "Nothing was recorded."
