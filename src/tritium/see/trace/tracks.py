"""Tracks of a timeline for trace viewers, on which no spans cross, and the selection of the earliest that fit.

Independent of the format. Viewers draw a span inside the one that encloses it; crossing spans would be drawn wrong, so
the later one gets a track of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium.see.trace.timeline import Column, Timeline

CAP_BYTES = 200_000_000  # of a trace: viewers fail on larger ones
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def tracks(t: Timeline) -> tuple[Column, tuple[str, ...]]:
    """Return the track of every span, and the names of tracks. The first are the lanes; more follow if spans cross."""
    out = t.lane.copy()
    names = list(t.lanes)
    lane = -1
    first: list[int] = []  # ends of the open spans on the lane's own track, the outermost first
    others: dict[int, list[int]] = {}  # the same for the tracks added to this lane
    rows = zip(t.lane.tolist(), t.start_ns.tolist(), t.end_ns.tolist(), strict=True)
    for i, (current, start, end) in enumerate(rows):
        if current != lane:
            lane, first, others = current, [], {}
        if _push_if_nested(first, start, end):
            continue
        track = next((k for k, ends in others.items() if _push_if_nested(ends, start, end)), None)
        if track is None:
            track = len(names)
            others[track] = [end]
            names.append(f"{t.lanes[current]} ({len(others) + 1})")
        out[i] = track
    return out, tuple(names)


def _push_if_nested(ends: list[int], start: int, end: int) -> bool:
    """Return True if a span crosses no open one, and add it to the open ones."""
    while ends and ends[-1] <= start:
        ends.pop()
    if ends and end > ends[-1]:
        return False
    ends.append(end)
    return True


def earliest(start_ns: Column, sizes: Column, budget: int) -> Mask:
    """Return a mask of the spans that fit the budget of bytes, by start time: a parent before its children."""
    if int(sizes.sum()) <= budget:
        return np.ones(len(sizes), bool)
    order = np.argsort(start_ns, kind="stable")
    fits = int(np.searchsorted(np.cumsum(sizes[order]), budget, side="right"))
    out = np.zeros(len(sizes), bool)
    out[order[:fits]] = True
    return out


def digits(values: Column) -> Column:
    """Return the number of digits of non-negative whole numbers."""
    powers = 10 ** np.arange(1, 19, dtype=np.int64)
    return 1 + np.searchsorted(powers, values, side="right")
