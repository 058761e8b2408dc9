"""The columns of a timeline's page: spans by row and level, gaps, path, counters and samples, packed for the browser.

A row is a thread's lane, or the calls that a thread made on a device. Spans of one row and level are disjoint and in order,
so that a browser finds those of a pixel by bisection. Everything is counted first: of more spans than fit the longest stay,
which keeps every span inside its callers, and the page names the number left out.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from tritium import escape
from tritium.perf.records.json_io import dumps
from tritium.see.timelines.gaps import Gap
from tritium.see.trace.flame_look import WARM
from tritium.see.trace.timeline import Column, Counter, Samples, Timeline, What, ordered
from tritium.see.trace.tracks import tracks

MOST_SPANS = 300_000
MOST_GAPS = 20_000
MOST_LINKS = 20_000  # handovers
MOST_STACKS = 4_000  # distinct ones with all their frames; others have the innermost alone
MOST_FRAMES = 24  # of a stack, the innermost
MOST_READINGS = 4_000  # of a counter
TEXT_CHARS = 4_000_000  # of all names and details together
LONGEST = 200  # characters of a name
HOST = ("", "cpu")
CALLS = ("op", "transfer")


class Row(NamedTuple):
    """A row of the page: its name, its lane of the timeline, and how deep its spans are nested."""

    name: str
    lane: int
    levels: int


@dataclass(frozen=True)
class Placed:
    """Spans in the order of the page, with the row and the level of each."""

    timeline: Timeline
    rows: tuple[Row, ...]
    row: Column
    level: Column
    order: Column  # index into the timeline's spans of each one
    left_out: int


def place(t: Timeline) -> Placed:
    """Return the spans that are drawn, by row, level and time."""
    t, left_out = _longest(_by_device(t))
    track, names = tracks(t)
    level = _levels(t, track)
    order = np.lexsort((t.start_ns, level, track))
    used = np.unique(track)
    number = np.full(len(names), -1, np.int64)
    number[used] = np.arange(len(used))
    rows = tuple(
        Row(names[i], int(t.lane[track == i][0]), int(level[track == i].max()) + 1) for i in used.tolist()
    )  # fmt: skip
    return Placed(t, rows, number[track[order]], level[order], order, left_out)


def _by_device(t: Timeline) -> Timeline:
    """Return the timeline with the calls on devices on lanes of their own, one for each thread and device.

    A device that has lanes of its own, such as streams, keeps them, and the calls stay with their threads.
    """
    recorded = {w.device for w in t.whats for lane in t.lanes if lane == w.device or lane.startswith(f"{w.device} ")}
    device = np.array([w.device not in (*HOST, *recorded) and w.kind in CALLS for w in t.whats], bool)
    if not len(t) or not device.any():
        return t
    lane, lanes, added = t.lane.copy(), list(t.lanes), dict[tuple[int, str], int]()
    for i in np.flatnonzero(device[t.what]).tolist():
        name, thread = t.whats[t.what[i]].device, int(t.lane[i])
        if (thread, name) not in added:
            added[thread, name] = len(lanes)
            lanes.append(f"{name}, called by {t.lanes[thread]}")
        lane[i] = added[thread, name]
    return ordered(t.whats, t.what, t.start_ns, t.elapsed_ns, lane, lanes, t.elapsed_total_ns, after=t.after,
                   launches=t.launches, samples=t.samples, counters=t.counters, apart=t.apart)  # fmt: skip


def _longest(t: Timeline) -> tuple[Timeline, int]:
    """Return the timeline with as many of its longest spans as are drawn, and the number left out."""
    if len(t) <= MOST_SPANS:
        return t, 0
    rows = np.sort(np.argsort(-t.elapsed_ns, kind="stable")[:MOST_SPANS])
    number = np.full(len(t), -1, np.int64)
    number[rows] = np.arange(len(rows))
    after, launches = (
        tuple((int(number[a]), int(number[b])) for a, b in pairs if number[a] >= 0 and number[b] >= 0)
        for pairs in (t.after, t.launches)
    )
    what, start_ns, elapsed_ns, lane = (c[rows] for c in (t.what, t.start_ns, t.elapsed_ns, t.lane))
    selected = replace(
        t, what=what, start_ns=start_ns, elapsed_ns=elapsed_ns, lane=lane, after=after, launches=launches
    )
    return selected, len(t) - len(rows)


def _levels(t: Timeline, track: Column) -> Column:
    """Return how deep every span is nested in those of its track; the timeline is ordered by lane and time."""
    out = np.zeros(len(t), np.int64)
    open_: dict[int, list[int]] = {}  # by track: the ends of the open spans
    rows = zip(track.tolist(), t.start_ns.tolist(), t.end_ns.tolist(), strict=True)
    for i, (number, start, end) in enumerate(rows):
        ends = open_.setdefault(number, [])
        while ends and ends[-1] <= start:
            ends.pop()
        out[i] = len(ends)
        ends.append(end)
    return out


# ---- texts


class _Texts:
    """Names and details as the page shows them, until their budget is spent."""

    def __init__(self, left: int = TEXT_CHARS) -> None:
        self.left = left

    def take(self, text: str, most: int = LONGEST) -> str:
        """Return a text, cut where it is too long; "" when no more fit."""
        out = escape.visible(text[: 4 * most], most)[: max(0, self.left)]
        self.left -= len(out)
        return out


def colour(name: str) -> int:
    """Return the number of a name's colour, the same as in a flame graph."""
    return crc32(name.encode("utf-8", "surrogatepass")) % WARM


def _what(w: What, texts: _Texts) -> list[Any]:
    shown = [texts.take(w.name), w.kind, texts.take(w.kernel), texts.take(w.device), texts.take(w.detail, 2 * LONGEST)]
    return [*shown, w.flops, w.moved, colour(w.name)]


# ---- packing


def _planes(values: Column) -> tuple[int, bytes]:
    """Return numbers from 0 as their lowest bytes, then the next ones, as many as the largest needs: gzip likes that."""
    if not len(values):
        return 1, b""
    count = max(1, (int(values.max()).bit_length() + 7) // 8)
    raw = np.ascontiguousarray(values.astype("<i8")).view(np.uint8).reshape(-1, 8)
    return count, np.ascontiguousarray(raw[:, :count].T).tobytes()


def _packed(columns: dict[str, Column]) -> dict[str, Any]:
    """Return columns of one table: its length, the bytes of each number, and all of them as base64 of gzip."""
    length = len(next(iter(columns.values())))
    planes = {name: _planes(values) for name, values in columns.items()}
    raw = b"".join(data for _, data in planes.values())
    return {
        "length": length,
        "columns": [[name, count] for name, (count, _) in planes.items()],
        "gzip": base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode(),
    }


def content(t: Timeline, gaps: Sequence[Gap], path: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """Return all that the script draws, as JSON content. `path`: the critical path as (lane, start, end)."""
    p, texts = place(t), _Texts()
    row_of = {row.lane: i for i, row in reversed(list(enumerate(p.rows)))}  # the first row of a lane
    index = np.argsort(p.order)
    pairs = (*p.timeline.after, *p.timeline.launches)
    links = np.array([(index[a], index[b]) for a, b in pairs[:MOST_LINKS]], np.int64).reshape(-1, 2)
    spans = {
        "start": p.timeline.start_ns[p.order], "elapsed": p.timeline.elapsed_ns[p.order],
        "what": p.timeline.what[p.order], "row": p.row, "level": p.level,
    }  # fmt: skip
    total_ns = max(1, t.elapsed_total_ns, int(t.end_ns.max()) if len(t) else 0)
    return {
        "total": total_ns,
        "rows": [[texts.take(r.name), r.levels] for r in p.rows],
        "whats": [_what(w, texts) for w in t.whats],
        "spans": _packed(spans),
        "links": _packed({"early": links[:, 0], "late": links[:, 1]}),
        "path": _packed(_path(path, row_of)),
        "leftOut": p.left_out,
        "dropped": t.dropped,
        **_gap_content(gaps, row_of, texts),
        "samples": None if t.samples is None else _sample_content(t.samples, row_of, texts),
        "counters": [c for c in map(_counter_content, t.counters) if c is not None],
    }  # fmt: skip


def _path(path: Iterable[tuple[int, int, int]], row_of: dict[int, int]) -> dict[str, Column]:
    """Return the path's stretches; those that touch on one row are joined."""
    joined: list[list[int]] = []
    for lane, start, end in path:
        if lane not in row_of:
            continue
        if joined and joined[-1][0] == row_of[lane] and joined[-1][2] == start:
            joined[-1][2] = end
        else:
            joined.append([row_of[lane], start, end])
    table = np.array(joined[:MOST_SPANS], np.int64).reshape(-1, 3)
    return {"row": table[:, 0], "start": table[:, 1], "elapsed": table[:, 2] - table[:, 1]}


def _gap_content(gaps: Sequence[Gap], row_of: dict[int, int], texts: _Texts) -> dict[str, Any]:
    """Return the longest gaps in order, and their distinct reasons."""
    chosen = [g for g in gaps if g.lane in row_of]
    if len(chosen) > MOST_GAPS:
        chosen = sorted(sorted(chosen, key=lambda g: -g.elapsed_ns)[:MOST_GAPS])
    reasons: dict[tuple[str, str], int] = {}
    table = np.array(
        [
            (row_of[g.lane], g.start_ns, g.elapsed_ns, reasons.setdefault((g.kind, g.reason), len(reasons)))
            for g in chosen
        ],
        np.int64,
    ).reshape(-1, 4)
    columns = dict(zip(("row", "start", "elapsed", "reason"), table.T, strict=True))
    return {
        "gaps": _packed(columns),
        "reasons": [[kind, texts.take(reason)] for kind, reason in reasons],
        "gapsLeftOut": len(gaps) - len(chosen),
    }


def _sample_content(s: Samples, row_of: dict[int, int], texts: _Texts) -> dict[str, Any]:
    """Return the samples at their true times: each counts from the one before it to its own moment."""
    rows = np.array([row_of.get(int(lane), -1) for lane in range(int(s.lane.max(initial=-1)) + 1)], np.int64)
    keep = np.flatnonzero(rows[s.lane] >= 0) if len(s.lane) else np.zeros(0, np.int64)
    keep = keep[np.lexsort((s.at_ns[keep], s.lane[keep]))][:MOST_SPANS]
    start = np.maximum(s.at_ns[keep] - s.weight_ns[keep], 0)
    whole = set(np.argsort(-np.bincount(s.stack, s.weight_ns, len(s.stacks)), kind="stable")[:MOST_STACKS].tolist())
    stacks = [list(stack[-MOST_FRAMES:] if i in whole else stack[-1:]) for i, stack in enumerate(s.stacks)]
    columns = {
        "row": rows[s.lane[keep]], "start": start, "elapsed": s.at_ns[keep] - start, "stack": s.stack[keep],
        "late": s.late_ns[keep],
    }  # fmt: skip
    frames = [[texts.take(f), colour(f)] for f in s.frames]
    return {"table": _packed(columns), "frames": frames, "stacks": stacks, "every": s.every_ns}


def _counter_content(c: Counter) -> dict[str, Any] | None:
    """Return a counter's readings, thinned where there are too many; None where there are none."""
    known = np.flatnonzero(np.isfinite(c.values))
    if not len(known):
        return None
    known = known[:: -(-len(known) // MOST_READINGS)]
    name, unit = escape.visible(c.name, 60), escape.visible(c.unit, 20)
    return {"name": name, "unit": unit, "at": c.at_ns[known].tolist(), "values": c.values[known].tolist()}


def packed(body: dict[str, Any]) -> str:
    """Return the content as text for the page: base64 of gzip of JSON."""
    return base64.b64encode(gzip.compress(dumps(body, ascii_only=True).encode(), 6, mtime=0)).decode()
