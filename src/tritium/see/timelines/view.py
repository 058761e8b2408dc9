"""The timeline as a part of a page: a canvas with its tools, its columns inside, its style and its script.

Without script the page names the picture that needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

from tritium.escape import script_json
from tritium.see.reports.blocks import Embed
from tritium.see.timelines.columns import content, packed
from tritium.see.timelines.gaps import Gap
from tritium.see.trace import flame_look
from tritium.see.trace.timeline import Timeline

START = 'for (const view of document.querySelectorAll(".tl")) timelineView(view);'
NO_SCRIPT = "The timeline needs script; a picture without: tritium profile show FILE --output x.timeline.svg"
TOOLS = (
    ("in", "+", "Zoom in"), ("out", "−", "Zoom out"), ("all", "All", "Show everything"),
    ("range", "Range", "Select a range of time and sum it"), ("previous", "‹", "Previous match"), ("next", "›", "Next match"),
)  # fmt: skip


@cache
def _asset(name: str) -> str:
    return resources.files("tritium.see.timelines").joinpath(name).read_text(encoding="utf-8")


@cache
def style() -> str:
    """Return the stylesheet, with the colours of names for both themes."""
    return flame_look.variables(".tl") + _asset("timeline.css")


def block(t: Timeline, gaps: Sequence[Gap], path: Iterable[tuple[int, int, int]], lines: Sequence[str] = ()) -> Embed:
    """Return the timeline as a block of a page; `path`: the critical path, `lines`: what formats without script show."""
    buttons = "".join(
        f'<button type="button" data-act="{act}" aria-label="{name}" title="{name}"{_pressed(act)}>{sign}</button>'
        for act, sign, name in TOOLS
    )
    label = "Timeline: a row for each thread and device. Arrow keys move, plus and minus zoom, 0 shows all."
    body = script_json(packed(content(t, gaps, path)))
    sampled = '<span><i class="sample"></i>sampled Python stacks</span>' if t.samples is not None else ""
    html = f"""<div class="tl">
<div class="tl-tools" hidden><input type="search" placeholder="Find spans" aria-label="Find spans by name, kernel or shape" autocomplete="off"
 spellcheck="false">{buttons}<span class="tl-state" role="status"></span></div>
<noscript><p class="quiet">{NO_SCRIPT}</p></noscript>
<canvas class="tl-map" height="46" aria-hidden="true"></canvas>
<div class="tl-box"><canvas class="tl-main" tabindex="0" role="img" aria-label="{label}"></canvas><div class="tl-space"></div></div>
<div class="tl-key"><span><i class="path"></i>critical path</span><span><i class="gap"></i>gap between spans</span>{sampled}</div>
<div class="tl-panel" role="region" aria-label="Details of the selection" aria-live="polite"></div>
<script type="application/json">{body}</script>
</div>"""
    return Embed(html, style(), f"{_asset('timeline.js')}\n{START}\n", tuple(lines))


def _pressed(act: str) -> str:
    return ' aria-pressed="false"' if act == "range" else ""
