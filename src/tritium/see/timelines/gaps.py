"""Gaps of a timeline: times in which nothing was recorded on a lane between two spans, and what was waited for.

Reasons are evidence, not guesses: an item that the stage before of a `tt.Pipeline` had not finished, a full queue before the
stage after, a call that had not been made for a device, or the Python line of the samples. What none of them explains is
named so.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from tritium import escape
from tritium.machine.facts import seconds_text
from tritium.see.trace.chrome import flows
from tritium.see.trace.timeline import Column, Timeline

LEAST_NS = 1_000  # shorter gaps are the cost of a call, not waiting
LEAST_QUEUE = 2  # items before a stage for its queue to count as full
SHOWN = 6
Kind = Literal["item", "room", "wake", "launch", "python", "unknown"]
UNKNOWN = "not recorded: Python, another library, or waiting"


class Gap(NamedTuple):
    """A part of a gap with one reason."""

    lane: int
    start_ns: int
    end_ns: int
    kind: Kind
    reason: str

    @property
    def elapsed_ns(self) -> int:
        return self.end_ns - self.start_ns


class _Free(NamedTuple):
    """A gap before it is explained: its lane, its ends, and the outermost spans before and after it."""

    lane: int
    start: int
    end: int
    before: int
    after: int


@dataclass
class _Queue:
    """The items between two lanes: when they were finished, when they were taken, and the most that waited at once."""

    taker: int  # a span of the lane that takes them
    puts: list[int] = field(default_factory=list)
    takes: list[int] = field(default_factory=list)
    most: int = 0

    def waiting(self, at_ns: int) -> int:
        return bisect_right(self.puts, at_ns) - bisect_right(self.takes, at_ns)

    def measure(self) -> None:
        self.puts.sort()
        self.takes.sort()
        self.most = max(map(self.waiting, self.puts))

    def next_take(self, at_ns: int) -> int | None:
        """Return the time of the first item that is taken after a time."""
        index = bisect_right(self.takes, at_ns)
        return self.takes[index] if index < len(self.takes) else None


def find_gaps(t: Timeline, least_ns: int = LEAST_NS) -> list[Gap]:
    """Return the gaps of every lane with their reasons, in order of lane and time; a gap of several reasons is split."""
    free = [gap for lane in range(len(t.lanes) - t.apart) for gap in _free(t, lane, least_ns)]
    sources: dict[int, int] = {}  # a span, and the last of those that it waited for
    for early, late in (*t.after, *flows(t)):
        if late not in sources or t.end_ns[early] > t.end_ns[sources[late]]:
            sources[late] = early
    launches = {late for _, late in flows(t)}
    queues = _queues(t)
    parts = [part for gap in free for part in _explain(t, gap, sources, launches, queues)]
    return _with_lines(t, parts)


def _free(t: Timeline, lane: int, least_ns: int) -> Iterator[_Free]:
    rows = np.flatnonzero(t.lane == lane)
    if len(rows) < 2:
        return
    starts, reached = t.start_ns[rows], np.maximum.accumulate(t.end_ns[rows])
    outer = np.ones(len(rows), bool)
    outer[1:] = starts[1:] >= reached[:-1]
    last_outer = rows[np.maximum.accumulate(np.where(outer, np.arange(len(rows)), 0))]
    for i in np.flatnonzero(starts[1:] - reached[:-1] >= least_ns).tolist():
        yield _Free(lane, int(reached[i]), int(starts[i + 1]), int(last_outer[i]), int(rows[i + 1]))


def _queues(t: Timeline) -> dict[int, _Queue]:
    """Return, for each span that handed an item over, the queue it went through."""
    by_lanes: dict[tuple[int, int], _Queue] = {}
    out = {}
    for early, late in t.after:
        queue = by_lanes.setdefault((int(t.lane[early]), int(t.lane[late])), _Queue(late))
        queue.puts.append(int(t.end_ns[early]))
        queue.takes.append(int(t.start_ns[late]))
        out[early] = queue
    for queue in by_lanes.values():
        queue.measure()
    return out


def _explain(
    t: Timeline, gap: _Free, sources: dict[int, int], launches: set[int], queues: dict[int, _Queue]
) -> Iterator[Gap]:
    """Yield the parts of a gap: first the wait for room, then that for an item or a launch, then what is left."""
    now, queue, source = gap.start, queues.get(gap.before), sources.get(gap.after)
    take = None if queue is None else queue.next_take(gap.start)
    if queue is not None and take is not None and take <= gap.end:
        count = queue.waiting(gap.start)
        if count == queue.most >= LEAST_QUEUE:
            reason = f"waits for room: {count} items wait for {_name(t, queue.taker)}"
            yield Gap(gap.lane, now, take, "room", reason)
            now = take
    if source is not None:
        launched = gap.after in launches
        ready = int(t.start_ns[source] if launched else t.end_ns[source])
        if now < ready <= gap.end:
            reason = f"waits for {'the call' if launched else 'an item'} of {_name(t, source)}"
            yield Gap(gap.lane, now, ready, "launch" if launched else "item", reason)
            now = ready
        if now < gap.end and (now > gap.start or ready <= now):
            within = launched and t.end_ns[source] >= gap.end  # the call goes on: it compiles, or prepares the launch
            reason = (
                f"within the call of {_name(t, source)}, before its launch" if within
                else "the device begins what it was given" if launched
                else "the thread takes its next item"
            )  # fmt: skip
            yield Gap(gap.lane, now, gap.end, "wake", reason)
            return
    if now < gap.end:
        yield Gap(gap.lane, now, gap.end, "unknown", UNKNOWN)


def _name(t: Timeline, span: int) -> str:
    return f"{t.whats[t.what[span]].name} on {t.lanes[t.lane[span]]}"


def _with_lines(t: Timeline, parts: Sequence[Gap]) -> list[Gap]:
    """Return the parts; those without a reason get the Python line that most of their sampled time was in."""
    s = t.samples
    if s is None or not len(s.stack):
        return list(parts)
    order = np.lexsort((s.at_ns, s.lane))
    lanes, times, stacks, weights = (c[order] for c in (s.lane, s.at_ns, s.stack, s.weight_ns))
    edges = np.searchsorted(lanes, np.arange(len(t.lanes) + 1))
    return [_with_line(t, part, times, stacks, weights, edges) if part.kind == "unknown" else part for part in parts]


def _with_line(t: Timeline, gap: Gap, times: Column, stacks: Column, weights: Column, edges: Column) -> Gap:
    first, last = int(edges[gap.lane]), int(edges[gap.lane + 1])
    on_lane = times[first:last]
    a, b = first + bisect_left(on_lane, gap.start_ns), first + bisect_right(on_lane, gap.end_ns)
    if a == b or t.samples is None:
        return gap
    sums: dict[int, int] = {}
    for stack, weight in zip(stacks[a:b].tolist(), weights[a:b].tolist(), strict=True):
        frames = t.samples.stacks[stack]
        if frames:
            sums[frames[-1]] = sums.get(frames[-1], 0) + weight
    if not sums:
        return gap
    return gap._replace(kind="python", reason=f"in {t.samples.frames[max(sums, key=lambda f: sums[f])]}")


# ---- the sum of all gaps


class Wait(NamedTuple):
    """All gaps of a lane with the same reason."""

    lane: int
    kind: Kind
    reason: str
    gaps: int
    total_ns: int
    longest: Gap


def sum_gaps(gaps: Sequence[Gap]) -> list[Wait]:
    """Return the gaps summed by lane and reason, the longest sum first."""
    groups: dict[tuple[int, str, str], list[Gap]] = {}
    for gap in gaps:
        groups.setdefault((gap.lane, gap.kind, gap.reason), []).append(gap)
    out = [
        Wait(
            group[0].lane, group[0].kind, group[0].reason, len(group), sum(g.elapsed_ns for g in group),
            max(group, key=lambda g: g.elapsed_ns),
        )
        for group in groups.values()
    ]  # fmt: skip
    return sorted(out, key=lambda w: (-w.total_ns, w.lane, w.reason))


def gap_lines(t: Timeline, waits: Sequence[Wait], most: int = SHOWN) -> list[str]:
    """Return the longest waits for a terminal, one line each."""
    lines = [
        f"{seconds_text(w.total_ns * 1e-9):>9}  {escape.terminal(t.lanes[w.lane])}: {escape.terminal(w.reason, None)}"
        + (f" ({w.gaps} gaps, the longest {seconds_text(w.longest.elapsed_ns * 1e-9)})" if w.gaps > 1 else "")
        for w in waits[:most]
    ]
    if len(waits) > most:
        rest = sum(w.total_ns for w in waits[most:])
        lines.append(f"{seconds_text(rest * 1e-9):>9}  {len(waits) - most} more reasons")
    if waits and t.samples is None and any(w.kind == "unknown" for w in waits):
        lines.append("sampled stacks name the Python lines of such gaps: stacks='10ms', --stacks 10ms")
    return lines
