"""The table of operations: how often, how long, how fast, and how near to what this machine can.

Knows nothing of drawing or of scores. Rates count the work the table of rows states: every byte once, however often it
is read; and one operation for an exp or a tanh, which takes many. `share` is of the time of all lanes that did something:
with one thread, of the run. `total` is the time in which at least one call of the row was open: what calls itself is not
counted again at every level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from tritium.errors import ArgumentError, nearest
from tritium.perf.records.environment import OVER
from tritium.see.trace.timeline import Column, Kind, Timeline, What
from tritium.see.trace.tree import own_ns as own_times

Bound = Literal["", "compute", "memory", "latency", "overhead", "first"]
By = Literal["name", "kernel", "specs"]
CALLS: tuple[Kind, ...] = ("op", "transfer")
PARTS: tuple[Kind, ...] = ("scope", "program")
KEYS: dict[str, Callable[[What], tuple[str, ...]]] = {
    "name": lambda w: (w.kind, w.name, "", w.device, ""),
    "kernel": lambda w: (w.kind, w.name, w.kernel, w.device, ""),
    "specs": lambda w: (w.kind, w.name, w.kernel, w.device, w.detail),
}
SMALL_NS = (
    2_000  # a call whose work needs less is mostly the call: arguments checked, threads woken, results handed back
)
FAR = 2.0  # times the least: only then is a small call bound by being called
COLD_NS = 50_000  # no call costs as much by being called: one that does starts threads, takes memory, loads code
COLD_TIMES = 10  # the others like it: then the first call of a row is a cold one
OVERSTATED = "more than this machine can: the counted work overstates what was done"
UNCOVERED = 0.5  # of a scope's own time: then what stands between its calls bounds it


class Timelined(Protocol):
    """Whatever has a timeline: a profile."""

    @property
    def timeline(self) -> Timeline: ...


@dataclass(frozen=True)
class OpRow:
    """All calls of one kernel (or of one name, or on the same specs); or all times through one scope."""

    name: str
    kernel: str
    device: str
    kind: Kind
    detail: str  # the specs, where rows are told apart by them
    count: int
    total_ns: int
    own_ns: int  # without what ran inside
    mean_ns: float
    p50_ns: float
    p95_ns: float
    p99_ns: float
    min_ns: int
    max_ns: int
    share: float  # own time, of the time of all lanes that did something
    gflops: float | None = None  # 1e9 operations a second; int8 ones where `integer`
    gbs: float | None = None
    integer: bool = False
    intensity: float | None = None  # operations a byte
    least_ns: float | None = None  # what all its calls need at least, by this machine's ceilings
    bound: Bound = ""
    unknown: str = ""  # why least_ns is not known
    score: float | None = None  # 0 to 100: see hotspots
    why: str = ""

    @property
    def ceiling_share(self) -> float | None:
        """Least possible to actual time: 1 is the ceiling. None where it is not known, or the work is overstated."""
        if self.least_ns is None or not self.own_ns or self.overstated:
            return None
        return min(self.least_ns / self.own_ns, 1.0)

    @property
    def overstated(self) -> bool:
        """Its counted work would need clearly more time than it took, so it was not all done."""
        return self.least_ns is not None and bool(self.own_ns) and self.least_ns > OVER * self.own_ns

    @property
    def label(self) -> str:
        """What a person calls it."""
        where = f" on {self.device}" if self.device not in ("", "cpu") else ""
        return f"{self.name}{f' [{self.kernel}]' if self.kernel else ''}{where}"


def used_lanes(t: Timeline) -> Column:
    """The lanes that did something, without those that only hold scopes put apart."""
    used = np.unique(t.lane)
    return used[used < len(t.lanes) - t.apart]


def lane_time_ns(t: Timeline) -> int:
    """The time of all lanes that did something: what shares are shares of."""
    return t.elapsed_total_ns * max(1, len(used_lanes(t)))


def rows(
    t: Timeline, *, by: By = "kernel", kinds: Sequence[Kind] = CALLS, own: Column | None = None
) -> tuple[OpRow, ...]:
    """A row for each kernel (`by` may be "name" or "specs"), the longest first. `own`: own times, if they are at hand."""
    if by not in KEYS:
        raise ArgumentError(f"ops: by={by!r} is not known; there are {', '.join(KEYS)}.{nearest(str(by), KEYS)}")
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, w in enumerate(t.whats):
        if w.kind in kinds:
            groups.setdefault(KEYS[by](w), []).append(i)
    if not groups or not len(t):
        return ()
    own = own_times(t) if own is None else own
    group_of = np.full(len(t.whats), -1, np.int64)
    for number, members in enumerate(groups.values()):
        group_of[members] = number
    mine = group_of[t.what]
    order = np.argsort(mine, kind="stable")
    edges = np.searchsorted(mine[order], np.arange(len(groups) + 1))
    whole = lane_time_ns(t)
    out = []
    for number, members in enumerate(groups.values()):
        at = order[edges[number] : edges[number + 1]]
        if len(at):
            out.append(_row(t, by, members, at, own, whole))
    return tuple(sorted(out, key=lambda r: (-r.own_ns, r.name, r.kernel, r.device, r.detail)))


def _row(t: Timeline, by: str, members: list[int], at: Column, own: Column, whole: int) -> OpRow:
    w = t.whats[members[0]]
    taken, counts = t.elapsed_ns[at], np.bincount(t.what[at], minlength=len(t.whats))
    p50, p95, p99 = (float(q) for q in np.quantile(taken, (0.5, 0.95, 0.99)))
    total, mine = _open_ns(t, at), int(own[at].sum())
    called = [(t.whats[i], int(counts[i])) for i in members if counts[i]]
    flops, moved = (sum(getattr(what, field) * n for what, n in called) for field in ("flops", "moved"))
    least, bound, unknown = _least(t, called, mine)
    if bound and _cold(t, at, own, mine, bound):
        bound = "first"
    if w.kind in PARTS and total and mine > UNCOVERED * total:
        bound = "overhead"
    return OpRow(
        w.name, w.kernel if by != "name" else _one(what.kernel for what, _ in called), w.device, w.kind,
        w.detail if by == "specs" else "", len(at), total, mine, float(taken.mean()), p50, p95, p99,
        int(taken.min()), int(taken.max()), mine / whole if whole else 0.0,
        flops / mine if mine and flops else None, moved / mine if mine and moved else None,
        any(what.integer for what, _ in called), flops / moved if flops and moved else None, least, bound, unknown,
    )  # fmt: skip


def _open_ns(t: Timeline, at: Column) -> int:
    """The time in which at least one of these spans, in the order of the timeline, was open; lane by lane."""
    lanes = t.lane[at]
    return sum(covered_ns(t.start_ns[on], t.end_ns[on]) for on in np.split(at, np.flatnonzero(np.diff(lanes)) + 1))


def covered_ns(starts: Column, ends: Column) -> int:
    """The time that intervals ordered by their start cover together."""
    if not len(starts):
        return 0
    reached = np.maximum.accumulate(ends)
    begins = np.maximum(starts[1:], reached[:-1])
    return int(ends[0] - starts[0] + np.maximum(reached[1:] - begins, 0).sum())


def _cold(t: Timeline, at: Column, own: Column, mine: int, bound: Bound) -> bool:
    """Whether most of a row's time went into its first call, and that for being the first.

    Of several calls alike the others show it; of one alone, that its work is small and no call costs so much.
    """
    first = at[np.argmin(t.start_ns[at])]
    took = int(own[first])
    if took < COLD_NS or 2 * took < mine:
        return False
    alike = at[(t.what[at] == t.what[first]) & (at != first)]
    return took > COLD_TIMES * float(np.median(own[alike])) if len(alike) else bound == "latency"


def _one(kernels: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(kernels))


def _least(t: Timeline, called: list[tuple[What, int]], mine: int) -> tuple[float | None, Bound, str]:
    """The least time of these calls, what bounds them, and why that is not known."""
    first = called[0][0]
    if first.kind != "op":
        return None, "", "it is no kernel call"
    limits = t.environment.limits if t.environment is not None else None
    if limits is None:
        return None, "", "this machine's ceilings were not measured"
    if first.device != "cpu":
        return None, "", f"the ceilings of {first.device} were not measured"
    if not any(w.flops or w.moved for w, _ in called):
        return None, "", "its work is not counted"
    least = by_arithmetic = 0.0
    for w, n in called:
        one = limits.least_s(w.flops, w.moved, w.integer)
        if one is None:
            return None, "", "the speed of the cache that holds its data could not be measured"
        least += one * n
        by_arithmetic += one * n if w.flops / limits.rate(w.integer) >= one else 0.0
    if least * 1e9 > OVER * mine and mine:
        return least * 1e9, "", OVERSTATED
    calls = sum(n for _, n in called)
    if least * 1e9 < SMALL_NS * calls and mine > FAR * least * 1e9:
        return least * 1e9, "latency", ""
    return least * 1e9, "compute" if by_arithmetic >= least / 2 else "memory", ""
