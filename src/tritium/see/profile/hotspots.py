"""Hotspots and bottlenecks: a score for each operation with its reason, the few that take most time, the gaps between.

The score of an operation is its share of the time, times its distance to the ceiling, from 0 to 100: the per cent of the run
that would be saved if it ran as fast as this machine can. Where no ceiling was measured there is no score.

The bound of a call: `compute` or `memory`, whichever takes longer at this machine's measured speed; `latency` where its
work needs less than 2 µs and it takes more than twice as long: the call costs more than the work; `first` where most of
the time went into a first call, which starts threads and allocates memory. Time between calls on a lane is `overhead`:
Python, other libraries, waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tritium import escape
from tritium.arguments import checked_class
from tritium.machine.facts import seconds_text
from tritium.see.profile.op_table import (
    CALLS,
    OVERSTATED,
    OpRow,
    Timelined,
    covered_ns,
    lane_time_ns,
    rows,
    used_lanes,
)
from tritium.see.trace.timeline import Timeline

MOST = 0.8  # of the time of all calls, taken by the vital few
BOUNDS = ("compute", "memory", "latency", "first", "overhead", "unknown", "idle")
MEANING = {
    "compute": "bound by arithmetic",
    "memory": "bound by memory",
    "latency": "too small: the call costs more than its work",
    "first": "in first calls: threads started, memory allocated, code loaded",
    "overhead": "between calls: Python, other libraries, waiting",
    "unknown": "in calls whose ceiling is not known",
    "idle": "before the first call and after the last",
}
REMEDIES = {
    "compute": "do less arithmetic (ternary or int8 weights, tt.nn.BitLinear), or use more threads",
    "memory": "move fewer bytes: compile, so that neighbours are fused; smaller dtypes; contiguous inputs",
    "latency": "make fewer, larger calls: batches, or tt.compile, which runs all steps as one call",
    "first": "first calls take the most; profile a longer run, or call once before",
    "overhead": "compile the code between the calls (tt.compile)",
    "idle": "imports, start-up and other libraries; little can be gained in operations",
}
MOSTLY = {  # all others read "mostly memory-bound: …"
    "first": "mostly first calls",
    "unknown": "mostly in calls whose ceiling is not known",
    "idle": "mostly outside the calls",
}
UNSEEN = ("overhead", "idle")  # sampled stacks show more of these


def percent(share: float) -> str:
    """Return a share as text: 32 %, 0.4 %, <0.1 %."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.2g} %"


# ---- the score


def score_rows(table: Iterable[OpRow]) -> tuple[OpRow, ...]:
    """Return the rows, each with its score and the reason for it."""
    return tuple(replace(row, score=_score(row), why=_why(row)) for row in table)


def _score(row: OpRow) -> float | None:
    reached = row.ceiling_share
    return None if reached is None else 100 * min(row.share, 1.0) * (1 - min(reached, 1.0))


def _time(ns: float) -> str:
    return seconds_text(ns * 1e-9)


def _why(row: OpRow) -> str:
    text = f"{percent(row.share)} of the time"
    reached, score = row.ceiling_share, _score(row)
    if row.bound == "overhead":
        return f"{text}, {percent(row.own_ns / row.total_ns)} of it between the calls inside"
    if row.bound == "first":
        usual = f"; the usual one took {_time(row.p50_ns)}" if row.count > 1 else ""
        return f"{text}, most of it in its first call ({_time(row.max_ns)}), which starts threads and allocates memory{usual}"
    if row.overstated:
        return f"{text}; {row.unknown or OVERSTATED}"
    if reached is None or score is None:
        return f"{text}; how far it is from the ceiling is not known: {row.unknown}"
    if reached >= 1:
        return f"{text}, as fast as this machine can"
    if row.bound == "latency":
        each, took = _time((row.least_ns or 0) / row.count), _time(row.own_ns / row.count)
        text += f", a call takes {took} for work of {each}"
    return f"{text}, at {percent(reached)} of what this machine can: up to {percent(score / 100)} of the run could be saved"


def hotspots(table: Sequence[OpRow], n: int = 10) -> tuple[OpRow, ...]:
    """Return the rows with the most to gain, the best first; rows without a score come last, by share."""
    return tuple(sorted(table, key=lambda r: (r.score is None, -(r.score or 0.0), -r.share, r.label))[:n])


def vital(table: Sequence[OpRow], share: float = MOST) -> tuple[OpRow, ...]:
    """Return the fewest rows that together take this share of the time of all calls."""
    ordered = sorted(table, key=lambda r: (-r.own_ns, r.label))
    remaining, out = share * sum(r.own_ns for r in ordered), []
    for row in ordered:
        if remaining <= 0:
            break
        out.append(row)
        remaining -= row.own_ns
    return tuple(out)


# ---- what bounds the run


def gaps(t: Timeline) -> tuple[int, int, int]:
    """Return, over all lanes, the time in calls, between calls, and before the first span and after the last."""
    busy = between = 0
    calls = t.kind(*CALLS)
    for lane in used_lanes(t):
        on_lane = t.lane == lane
        starts, ends = t.start_ns[on_lane], t.end_ns[on_lane]
        window = int(ends.max()) - int(starts.min())
        in_calls = covered_ns(starts[calls[on_lane]], ends[calls[on_lane]])
        busy += in_calls
        between += window - in_calls
    return busy, between, max(0, lane_time_ns(t) - busy - between)


@dataclass(frozen=True)
class Bottlenecks:
    """The bounds of a run: shares of the time of its lanes that sum to 1, and the few operations that matter."""

    shares: dict[str, float]  # by BOUNDS
    vital: tuple[OpRow, ...]  # the fewest operations that take 80 % of the time in calls
    operations: int  # number of all operations
    unknown: str = ""  # why ceilings are missing
    sampled: bool = False  # Python stacks were sampled too

    @property
    def main(self) -> str:
        """Return the bound of most of the run, one of BOUNDS; "" for an empty profile."""
        positive = {k: v for k, v in self.shares.items() if v > 0} if self.operations else {}
        return max(positive, key=lambda k: positive[k]) if positive else ""

    @property
    def remedy(self) -> str:
        """Return what to do about the main bound; "" where that is unknown."""
        remedy = REMEDIES.get(self.main, "")
        if self.main not in UNSEEN:
            return remedy
        return remedy + (
            "; the samples of its stacks show which" if self.sampled else "; stacks='10ms' samples what it is"
        )

    def lines(self, brief: bool = False) -> list[str]:
        """Return the shares for a terminal. `brief` leaves out the reasons, where the hotspots are shown as well."""
        if not self.operations and not any(self.shares.values()):
            return ["nothing was recorded"]
        out = [f"{percent(self.shares[b]):>6}  {MEANING[b]}" for b in BOUNDS if self.shares.get(b)]
        if self.vital:
            some, all_ = len(self.vital), self.operations
            out.append(
                f"{some} of {all_} operation{'s' * (all_ != 1)} take{'s' * (some == 1)} {percent(MOST)} of the time in calls:"
            )
            parts = [
                (row.label, row.bound or "bound not known", percent(row.share) if brief else row.why)
                for row in self.vital
            ]
            out += [escape.terminal(f"  {label}: {bound}; {why}", None) for label, bound, why in parts]
        if self.unknown:
            out.append(escape.terminal(f"ceilings: {self.unknown}", None))
        if self.main:
            mostly = MOSTLY.get(self.main, f"mostly {self.main}-bound")
            out.append(f"{mostly}: {self.remedy}" if self.remedy else mostly)
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines())


def bottlenecks(t: Timeline, operations: Sequence[OpRow] | None = None) -> Bottlenecks:
    """Return the bottlenecks of a timeline; `operations`: its scored rows, if already computed."""
    table = score_rows(rows(t)) if operations is None else tuple(operations)
    total_ns = lane_time_ns(t) or 1
    _, between, idle = gaps(t) if len(t) else (0, 0, t.elapsed_total_ns)
    shares = dict.fromkeys(BOUNDS, 0.0)
    for row in table:
        shares[row.bound or "unknown"] += row.own_ns / total_ns
    shares["overhead"] += between / total_ns
    shares["idle"] = idle / total_ns
    unknown = "; ".join(dict.fromkeys(row.unknown for row in table if row.unknown and row.kind == "op"))
    return Bottlenecks(shares, vital(table), len(table), unknown, t.samples is not None)


@checked_class
class BottleneckAnalyzer:
    """The guides' name for `profile.bottlenecks()`."""

    def analyze(self, profile: Timelined) -> Bottlenecks:
        """Return the bottlenecks of a profile; printable."""
        return bottlenecks(profile.timeline)
