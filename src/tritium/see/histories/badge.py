"""Badges: a small SVG with a label and the state of a history.

Two fields of text; no font, script or picture from elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from tritium.escape import attribute, svg as svg_text
from tritium.perf.store.history import History
from tritium.perf.store.trends import LEAST_RUNS, Trend, least_step
from tritium.perf.work.canary import is_canary

COLOURS = {"good": "#2e7d32", "bad": "#b3261e", "quiet": "#5f6368"}
WIDTH, HEIGHT = 6.4, 20  # px of a character at 11 px, and of the badge
LIMIT = 40  # characters of each field


class State(NamedTuple):
    """The text and the tone of a badge."""

    text: str
    tone: str  # of COLOURS


def state_of(trend: Trend | None) -> State:
    """Return the last level of a case against its best of 90 days."""
    if trend is None or len(trend.points) < 2:
        return State("no history yet", "quiet")
    against = trend.against_best
    if against.low > 1:
        return State(f"{100 * (against.ratio - 1):+.1f} % time", "bad")
    last = trend.steps[-1] if trend.steps else None
    if last is not None and last.ratio < 1:
        return State(f"{100 * (last.ratio - 1):+.1f} % time", "good")
    if len(trend.points) < LEAST_RUNS:
        return State(f"{len(trend.points)} of {LEAST_RUNS} runs", "quiet")
    return State(f"no slow-down above {least_step(trend.points):.0%}", "good")


def overall(history: History, metric: str = "wall") -> State:
    """Return the state of all cases together: how many are slower than their best of 90 days."""
    trends = [history.trend(case, m, arm) for case, m, arm in history.cases() if m == metric and not is_canary(case)]
    states = [state_of(t) for t in trends if t is not None and len(t.points) > 1]
    if not states:
        return State("no history yet", "quiet")
    slower, undecided = (sum(s.tone == tone for s in states) for tone in ("bad", "quiet"))
    if slower:
        return State(f"{slower} of {len(states)} slower", "bad")
    if undecided == len(states):
        return State("too few runs", "quiet")
    return State(f"{len(states)} case{'s' * (len(states) != 1)}, none slower", "good")


def svg(label: str, text: str, tone: str = "quiet") -> str:
    """Return a badge: the label on grey, the text on the colour of its tone."""
    left, right = (round(WIDTH * len(part[:LIMIT]) + 12) for part in (label, text))
    whole, name = left + right, attribute(f"{label}: {text}")
    fields = ((left / 2, label, LIMIT), (left + right / 2, text, LIMIT))
    texts = "".join(f'<text x="{x:g}" y="14">{svg_text(part, limit)}</text>' for x, part, limit in fields)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{HEIGHT}" viewBox="0 0 {whole} {HEIGHT}" role="img" '
        f'aria-label="{name}"><title>{svg_text(f"{label}: {text}")}</title>'
        f'<rect width="{whole}" height="{HEIGHT}" rx="3" fill="#444"/>'
        f'<path d="M{left} 0H{whole - 3}a3 3 0 0 1 3 3V{HEIGHT - 3}a3 3 0 0 1-3 3H{left}z" fill="{COLOURS[tone]}"/>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )
