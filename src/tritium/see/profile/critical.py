"""The critical path: the longest chain of work in which each piece had to wait for the one before.

A piece is an interval in which one span is the innermost of its lane. It depends on the piece before it on its lane,
since a lane does one thing at a time; and on pieces of other lanes only where that is known: `after` lists pairs
(earlier, later) of spans of which the later could not begin before the earlier had ended, as the stages of a
`tt.Pipeline` record them, and calls with their work on a device. Gaps between spans are waiting and do not count. So the
critical path of a single thread is its busy time; that of lanes without a known dependency is the busy time of the
busiest; and no path is longer than the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tritium import escape
from tritium.errors import ArgumentError
from tritium.machine.facts import seconds_text
from tritium.see.profile.hotspots import percent
from tritium.see.profile.op_table import used_lanes
from tritium.see.trace.chrome import flows
from tritium.see.trace.timeline import Column, Timeline
from tritium.see.trace.tree import own_ns as own_times

SHOWN = 5
MOST_LANES = 6  # that are listed


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of dependent work: its length, its lanes and its parts."""

    total_ns: int
    lanes: tuple[str, ...]  # in the order in which the path is on them
    parts: tuple[tuple[str, int], ...]  # name and ns, the longest first; they sum to total_ns
    elapsed_ns: int  # of the profile
    known: int  # number of known dependencies between lanes
    several: bool = False  # the profile has several lanes

    @property
    def share(self) -> float:
        """Return the path's share of the run; the rest is waiting or was not recorded."""
        return self.total_ns / self.elapsed_ns if self.elapsed_ns else 0.0

    def lines(self) -> list[str]:
        """Return the path for a terminal: its length and lanes, then its longest parts."""
        if not self.total_ns:
            return ["nothing was recorded"]
        where = " → ".join(self.lanes[:MOST_LANES])
        if len(self.lanes) > MOST_LANES:
            changes = len(self.lanes) - 1
            where += f" → … ({changes} handovers between {len(set(self.lanes))} lanes)"
        out = [f"{seconds_text(self.total_ns * 1e-9)}, {percent(self.share)} of the run, on {escape.terminal(where)}"]
        out += [
            f"{percent(ns / self.total_ns):>6}  {escape.terminal(name)}  {seconds_text(ns * 1e-9)}"
            for name, ns in self.parts[:SHOWN]
        ]
        if len(self.parts) > SHOWN:
            rest = sum(ns for _, ns in self.parts[SHOWN:])
            out.append(f"{percent(rest / self.total_ns):>6}  {len(self.parts) - SHOWN} more")
        if self.several and not self.known:
            out.append("no dependency between lanes is known: this is the busiest one")
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines())


def critical_path(
    t: Timeline, after: Sequence[tuple[int, int]] | None = None, own: Column | None = None
) -> CriticalPath:
    """Return the critical path of a timeline.

    `after`: known dependencies; by default the handovers that were recorded, and the calls of a device's work. `own`: own
    times of its spans, if already computed.
    """
    after = dependencies(t) if after is None else after
    several = len(used_lanes(t)) > 1
    if not len(t):
        return CriticalPath(0, (), (), t.elapsed_total_ns, 0)
    if after:
        pieces = _find_longest(t, after)
        times = [(t.whats[t.what[span]].name, end - start) for span, start, end in pieces]
        lanes = [t.lanes[t.lane[span]] for span, _, _ in pieces]
    else:
        own = own_times(t) if own is None else own
        sums = np.bincount(t.lane, own, len(t.lanes)).astype(np.int64)
        lanes_used = used_lanes(t)
        lane = int(lanes_used[np.argmax(sums[lanes_used])]) if len(lanes_used) else int(np.argmax(sums))
        on_lane = t.lane == lane
        by_what = np.bincount(t.what[on_lane], own[on_lane], len(t.whats)).astype(np.int64)
        times = [(w.name, int(ns)) for w, ns in zip(t.whats, by_what, strict=True) if ns]
        lanes = [t.lanes[lane]]
    parts: dict[str, int] = {}
    for name, ns in times:
        parts[name] = parts.get(name, 0) + ns
    ordered_parts = tuple(sorted(parts.items(), key=lambda p: (-p[1], p[0])))
    in_order = tuple(name for i, name in enumerate(lanes) if i == 0 or lanes[i - 1] != name)
    return CriticalPath(sum(parts.values()), in_order, ordered_parts, t.elapsed_total_ns, len(after), several)


def path_pieces(t: Timeline) -> list[tuple[int, int, int]]:
    """Return the critical path as (lane, start, end), in order of time."""
    if not len(t):
        return []
    if after := dependencies(t):
        return [(int(t.lane[p.span]), p.start, p.end) for p in _find_longest(t, after)]
    (name,) = critical_path(t).lanes
    lane = t.lanes.index(name)
    return [(lane, p.start, p.end) for p in _pieces(t, lane)]


def dependencies(t: Timeline) -> tuple[tuple[int, int], ...]:
    """Return the known pairs of spans of which the later waited for the end of the earlier."""
    launched = ((call, work) for call, work in flows(t) if t.end_ns[call] <= t.start_ns[work])
    return (*t.after, *launched)


class Piece(NamedTuple):
    """The interval in which a span is the innermost of its lane."""

    span: int
    start: int
    end: int


def _find_longest(t: Timeline, after: Iterable[tuple[int, int]]) -> list[Piece]:
    """Return the pieces of the longest chain, in order of time."""
    edges = list(after)
    _check(t, edges)
    starts, ends = t.start_ns.tolist(), t.end_ns.tolist()
    cuts: dict[int, set[int]] = {}
    for early, late in edges:
        cuts.setdefault(int(t.lane[early]), set()).add(ends[early])
        cuts.setdefault(int(t.lane[late]), set()).add(starts[late])
    lanes = {int(lane): _split(_pieces(t, int(lane)), cuts.get(int(lane), set())) for lane in np.unique(t.lane)}
    begins = {lane: [p.start for p in pieces] for lane, pieces in lanes.items()}
    finishes = {lane: [p.end for p in pieces] for lane, pieces in lanes.items()}
    waits: dict[tuple[int, int], list[tuple[int, int]]] = {}  # a piece, and the ends (lane, time) it waits for
    for early, late in edges:
        lane = int(t.lane[late])
        first = bisect_right(begins[lane], starts[late] - 1)  # the first piece not before the later span
        if first < len(begins[lane]):
            waits.setdefault((lane, first), []).append((int(t.lane[early]), ends[early]))
    order = sorted((p.start, p.end, lane, i) for lane, pieces in lanes.items() for i, p in enumerate(pieces))
    best: dict[tuple[int, int], tuple[int, tuple[int, int] | None]] = {}
    for start, end, lane, i in order:
        chains: list[tuple[int, tuple[int, int] | None]] = [(0, None)]
        if i:
            chains.append((best[lane, i - 1][0], (lane, i - 1)))
        for other, until in waits.get((lane, i), ()):
            last = bisect_right(finishes[other], until) - 1
            if last >= 0:
                chains.append((best[other, last][0], (other, last)))
        length, previous = max(chains, key=lambda w: (w[0], w[1] is not None))
        best[lane, i] = (length + end - start, previous)
    piece: tuple[int, int] | None = max(best, key=lambda key: best[key][0])
    out = []
    while piece is not None:
        out.append(lanes[piece[0]][piece[1]])
        piece = best[piece][1]
    return out[::-1]


def _check(t: Timeline, edges: Iterable[tuple[int, int]]) -> None:
    """Raise ArgumentError unless all spans exist and no later one began before the earlier had ended."""
    for early, late in edges:
        if not (0 <= early < len(t) and 0 <= late < len(t)):
            raise ArgumentError(
                f"critical_path: there are {len(t)} spans, numbered from 0; {early} → {late} is out of range."
            )
        if t.end_ns[early] > t.start_ns[late]:
            raise ArgumentError(
                f"critical_path: span {late} began before span {early} had ended; it cannot have waited for it."
            )


def _pieces(t: Timeline, lane: int) -> list[Piece]:
    """Return a lane as consecutive pieces, each with its innermost span."""
    out: list[Piece] = []
    open_: list[tuple[int, int]] = []  # span and its end
    now = 0

    def advance(time_ns: int) -> None:
        nonlocal now
        while open_ and now < time_ns:
            span, end = open_[-1]
            stop = min(end, time_ns)
            if stop > now:
                out.append(Piece(span, now, stop))
                now = stop
            if end <= now:
                open_.pop()
        now = max(now, time_ns)

    for i in np.flatnonzero(t.lane == lane).tolist():
        advance(int(t.start_ns[i]))
        open_.append((i, int(t.end_ns[i])))
    if open_:
        advance(max(end for _, end in open_))
    return out


def _split(pieces: list[Piece], times: set[int]) -> list[Piece]:
    """Return the pieces, split where a dependency begins or ends."""
    if not times:
        return pieces
    ordered, out = sorted(times), []
    for span, start, end in pieces:
        inside = ordered[bisect_right(ordered, start) : bisect_right(ordered, end - 1)]
        bounds = [start, *inside, end]
        out += [Piece(span, a, b) for a, b in pairwise(bounds)]
    return out
