"""Spans as trace viewers want them: tracks on which nothing crosses, and the earliest that fit.

Knows nothing of a format. Viewers draw a span inside whatever encloses it; two that cross would be drawn wrong, so the
later one gets a track of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium.see.trace.timeline import Column, Timeline

CAP_BYTES = 200_000_000  # of a trace: viewers give up beyond
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def tracks(t: Timeline) -> tuple[Column, tuple[str, ...]]:
    """For every span its track, and the tracks' names. The first tracks are the lanes; more follow where spans cross."""
    out = t.lane.copy()
    named = list(t.lanes)
    lane = -1
    first: list[int] = []  # when what is open on the lane's own track ends, the outermost first
    others: dict[int, list[int]] = {}  # the same for the tracks added to this lane
    rows = zip(t.lane.tolist(), t.start_ns.tolist(), t.end_ns.tolist(), strict=True)
    for i, (at, start, end) in enumerate(rows):
        if at != lane:
            lane, first, others = at, [], {}
        if _fits(first, start, end):
            continue
        track = next((k for k, ends in others.items() if _fits(ends, start, end)), None)
        if track is None:
            track = len(named)
            others[track] = [end]
            named.append(f"{t.lanes[at]} ({len(others) + 1})")
        out[i] = track
    return out, tuple(named)


def _fits(ends: list[int], start: int, end: int) -> bool:
    """Whether a span crosses nothing that is open; then it is open too."""
    while ends and ends[-1] <= start:
        ends.pop()
    if ends and end > ends[-1]:
        return False
    ends.append(end)
    return True


def earliest(start_ns: Column, sizes: Column, budget: int) -> Mask:
    """Which spans fit into so many bytes, those that began first before all others: a parent never after its children."""
    if int(sizes.sum()) <= budget:
        return np.ones(len(sizes), bool)
    order = np.argsort(start_ns, kind="stable")
    fits = int(np.searchsorted(np.cumsum(sizes[order]), budget, side="right"))
    out = np.zeros(len(sizes), bool)
    out[order[:fits]] = True
    return out


def digits(values: Column) -> Column:
    """How many digits these whole numbers have, none of them negative."""
    powers = 10 ** np.arange(1, 19, dtype=np.int64)
    return 1 + np.searchsorted(powers, values, side="right")
