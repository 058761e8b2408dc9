"""A timeline as SVG: one file without script, a row for each lane, nested spans below each other, the critical path marked.

Of many spans the longest are drawn, and the picture says how many are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np

from tritium import escape
from tritium.machine.facts import seconds_text
from tritium.see.trace.timeline import Timeline
from tritium.see.trace.tracks import tracks

WIDTH, LEFT, RIGHT, TOP = 1200, 170, 20, 76
ROW, GAP, PATH = 16, 14, 5  # px: of a level, between lanes, of the critical path
MOST_SPANS = 4000
DEEPEST = 8  # levels of a lane
LEAST_PX = 0.4
LETTER = 6.6  # px, of a name inside a span
HUES = 12
STYLE = """
svg{font:11px system-ui,sans-serif;background:#fff;color:#1b232c}text{fill:currentColor}.q{opacity:.65}.h{font-size:17px;font-weight:600}
.g{stroke:currentColor;opacity:.15}.p{fill:#c62828}rect.s{stroke:#fff;stroke-width:.5}.n{fill:#14181d;pointer-events:none}
@media(prefers-color-scheme:dark){svg{background:#14181d;color:#e6eaef}rect.s{stroke:#14181d}.p{fill:#ff7961}}
"""


class Stretch(NamedTuple):
    """A part of the critical path: it is on this lane from start to end."""

    lane: int
    start_ns: int
    end_ns: int


def svg(t: Timeline, title: str = "Timeline", path: Iterable[Stretch] = (), summary: str = "") -> str:
    """Return a standalone file; `path`: the critical path, `summary`: a sentence about it."""
    track, names = tracks(t)
    level = _levels(t, track)
    total_ns = max(1, t.elapsed_total_ns, int(t.end_ns.max()) if len(t) else 0)
    scale = (WIDTH - LEFT - RIGHT) / total_ns
    used = sorted({int(i) for i in track})
    depth = {i: min(DEEPEST, int(level[track == i].max()) + 1) for i in used}
    tops, y = dict[int, int](), TOP
    for i in used:
        tops[i] = y
        y += PATH + ROW * depth[i] + GAP
    height = max(y + 10, TOP + 30)
    drawn = [i for i in _longest(t) if level[i] < DEEPEST and t.elapsed_ns[i] * scale >= LEAST_PX]
    left_out = len(t) - len(drawn)
    note = f"{left_out} of {len(t)} spans are too short or too deep to draw" if left_out else f"{len(t)} spans"
    facts = f"{seconds_text(total_ns * 1e-9)}, {note}. Red: the critical path. {summary}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape.svg(title)}</title><style>{STYLE}</style>",
        f'<text class="h" x="12" y="26">{escape.svg(title)}</text><text class="q" x="12" y="46">{escape.svg(facts, 400)}</text>',
        _axis(total_ns, scale, height),
        *(f'<text x="12" y="{tops[i] + PATH + 12}">{escape.svg(_clipped(names[i], LEFT - 20))}</text>' for i in used),
        *(_span(t, i, tops[int(track[i])] + PATH + ROW * int(level[i]), scale) for i in drawn),
        *(_stretch(s, tops[s.lane], scale) for s in path if s.lane in tops),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _levels(t: Timeline, track: np.ndarray) -> np.ndarray:
    """Return how deep every span is nested in those of its track."""
    out = np.zeros(len(t), np.int64)
    ends = t.end_ns
    for i in np.unique(track).tolist():
        open_: list[int] = []
        for row in np.flatnonzero(track == i).tolist():
            while open_ and ends[open_[-1]] <= t.start_ns[row]:
                open_.pop()
            out[row] = len(open_)
            open_.append(row)
    return out


def _longest(t: Timeline) -> list[int]:
    order = np.argsort(-t.elapsed_ns, kind="stable")[:MOST_SPANS]
    return sorted(order.tolist())


def _axis(total_ns: int, scale: float, height: int) -> str:
    parts = []
    for i in range(6):
        x, time = LEFT + i * total_ns * scale / 5, seconds_text(i * total_ns / 5 * 1e-9)
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 8}"/>')
        parts.append(f'<text class="q" x="{x:.1f}" y="{TOP - 10}" text-anchor="{_anchor(i)}">{escape.svg(time)}</text>')
    return "".join(parts)


def _anchor(i: int) -> str:
    return "start" if i == 0 else "end" if i == 5 else "middle"


def _span(t: Timeline, i: int, y: int, scale: float) -> str:
    what = t.whats[t.what[i]]
    x, width = LEFT + int(t.start_ns[i]) * scale, int(t.elapsed_ns[i]) * scale
    hue = crc32(what.name.encode("utf-8", "backslashreplace")) % HUES * 360 // HUES
    times = f"{seconds_text(int(t.elapsed_ns[i]) * 1e-9)} from {seconds_text(int(t.start_ns[i]) * 1e-9)} on"
    tip = escape.svg(" · ".join(filter(None, (what.name, times, what.kernel, what.detail))), 400)
    name = _clipped(what.name, width - 4)
    inside = f'<text class="n" x="{x + 2:.1f}" y="{y + 11.5}">{escape.svg(name)}</text>' if name else ""
    box = f'x="{x:.2f}" y="{y}" width="{max(width, LEAST_PX):.2f}" height="{ROW - 1}"'
    return f'<g><title>{tip}</title><rect class="s" {box} fill="hsl({hue} 60% 72%)"/>{inside}</g>'


def _stretch(s: Stretch, y: int, scale: float) -> str:
    x, width = LEFT + s.start_ns * scale, (s.end_ns - s.start_ns) * scale
    return f'<rect class="p" x="{x:.2f}" y="{y}" width="{max(width, LEAST_PX):.2f}" height="{PATH - 2}"/>'


def _clipped(name: str, width: float) -> str:
    """Return as much of a name as fits; "" where not three letters do."""
    shown, fits = escape.visible(name), int(width / LETTER)
    if len(shown) <= fits:
        return shown
    return f"{shown[: fits - 1]}…" if fits >= 3 else ""


def join(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the path with stretches that touch on one lane joined."""
    out: list[Stretch] = []
    for s in stretches:
        if out and out[-1].lane == s.lane and out[-1].end_ns == s.start_ns:
            out[-1] = out[-1]._replace(end_ns=s.end_ns)
        else:
            out.append(s)
    return out
