"""The table of operations: calls, times, rates, and the share of this machine's ceiling.

Rates count the work the op table states: every byte once, however often it is read; and one operation for an exp or a
tanh, which takes many. `share` is of the time of all active lanes: with one thread, of the run. `total` is the time in
which at least one call of the row was open: recursion is not counted again at every level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from tritium.errors import ArgumentError, nearest
from tritium.perf.records.environment import OVER
from tritium.see.trace.timeline import Column, Kind, Timeline, What
from tritium.see.trace.tree import own_ns as own_times

Bound = Literal["", "compute", "memory", "latency", "overhead", "first"]
By = Literal["name", "kernel", "layer", "specs"]
CALLS: tuple[Kind, ...] = ("op", "transfer")
PARTS: tuple[Kind, ...] = ("scope", "program")
KEYS: dict[str, Callable[[What], tuple[str, ...]]] = {
    "name": lambda w: (w.kind, w.name, "", w.device, ""),
    "kernel": lambda w: (w.kind, w.name, w.kernel, w.device, ""),
    "layer": lambda w: (w.kind, w.name, "", w.device, w.layer),
    "specs": lambda w: (w.kind, w.name, w.kernel, w.device, w.detail),
}
DETAILS: dict[str, Callable[[What], str]] = {"layer": lambda w: w.layer, "specs": lambda w: w.detail}
MERGED = ("name", "layer")  # that merge the kernels of a row
SMALL_NS = 2_000  # below, the call itself dominates: checking arguments, waking threads, returning results
FAR = 2.0  # times the least: only then is a small call latency-bound
COLD_NS = 50_000  # no warm call has such overhead: it starts threads, allocates memory, loads code
COLD_TIMES = 10  # times the median of its other calls: then the first call of a row is a cold one
OVERSTATED = "more than this machine can: the counted work overstates what was done"
UNCOVERED = 0.5  # own share of a scope's time above which the code between its calls bounds it


class Timelined(Protocol):
    """Anything with a timeline, such as a profile."""

    @property
    def timeline(self) -> Timeline: ...


@dataclass(frozen=True)
class OpRow:
    """All calls of one kernel (or of one name, of one layer, or on the same specs); or all entries of one scope."""

    name: str
    kernel: str
    device: str
    kind: Kind
    detail: str  # the specs or the layer, where rows are grouped by them
    count: int
    total_ns: int
    own_ns: int  # without what ran inside
    mean_ns: float
    p50_ns: float
    p95_ns: float
    p99_ns: float
    min_ns: int
    max_ns: int
    share: float  # own time, of the time of all active lanes
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
        """Return the least possible time by the actual one; 1 is the ceiling. None: unknown, or the work is overstated."""
        if self.least_ns is None or not self.own_ns or self.overstated:
            return None
        return min(self.least_ns / self.own_ns, 1.0)

    @property
    def overstated(self) -> bool:
        """Return True if the counted work would need clearly more time than it took, so not all of it was done."""
        return self.least_ns is not None and bool(self.own_ns) and self.least_ns > OVER * self.own_ns

    @property
    def label(self) -> str:
        """Return the name for display, with the kernel and the device."""
        where = f" on {self.device}" if self.device not in ("", "cpu") else ""
        return f"{self.name}{f' [{self.kernel}]' if self.kernel else ''}{where}"


def used_lanes(t: Timeline) -> Column:
    """Return the active lanes of threads: without those of a GPU's streams, and those that only hold separated scopes."""
    used = np.unique(t.lane[~t.kind("kernel")])
    return used[used < len(t.lanes) - t.apart]


def lane_time_ns(t: Timeline) -> int:
    """Return the time of all active lanes, the denominator of shares."""
    return t.elapsed_total_ns * max(1, len(used_lanes(t)))


def rows(
    t: Timeline, *, by: By = "kernel", kinds: Sequence[Kind] = CALLS, own: Column | None = None
) -> tuple[OpRow, ...]:
    """Return a row for each kernel (`by` may be "name", "layer" or "specs"), the longest first. `own`: own times, if already computed."""
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
    groups_of_spans = group_of[t.what]
    order = np.argsort(groups_of_spans, kind="stable")
    edges = np.searchsorted(groups_of_spans[order], np.arange(len(groups) + 1))
    lane_ns = lane_time_ns(t)
    out = []
    for number, members in enumerate(groups.values()):
        spans = order[edges[number] : edges[number + 1]]
        if len(spans):
            out.append(_row(t, by, members, spans, own, lane_ns))
    return tuple(sorted(out, key=lambda r: (-r.own_ns, r.name, r.kernel, r.device, r.detail)))


def kernel_rows(t: Timeline, own: Column | None = None) -> tuple[OpRow, ...]:
    """Return a row for each kernel of a GPU, the longest first; shares are of the run."""
    table = rows(t, by="name", kinds=("kernel",), own=own) if t.kind("kernel").any() else ()
    return tuple(replace(row, share=row.own_ns / max(1, t.elapsed_total_ns)) for row in table)


def _row(t: Timeline, by: str, members: list[int], spans: Column, own: Column, lane_ns: int) -> OpRow:
    w = t.whats[members[0]]
    times, counts = t.elapsed_ns[spans], np.bincount(t.what[spans], minlength=len(t.whats))
    p50, p95, p99 = (float(q) for q in np.quantile(times, (0.5, 0.95, 0.99)))
    total, own_total = _open_ns(t, spans), int(own[spans].sum())
    calls = [(t.whats[i], int(counts[i])) for i in members if counts[i]]
    flops, moved = (sum(getattr(what, field) * n for what, n in calls) for field in ("flops", "moved"))
    least, bound, unknown = _least(t, calls, own_total)
    if bound and _is_cold(t, spans, own, own_total, bound):
        bound = "first"
    if w.kind in PARTS and total and own_total > UNCOVERED * total:
        bound = "overhead"
    return OpRow(
        w.name, w.kernel if by not in MERGED else _join_kernels(what.kernel for what, _ in calls), w.device, w.kind,
        DETAILS[by](w) if by in DETAILS else "", len(spans), total, own_total, float(times.mean()), p50, p95, p99,
        int(times.min()), int(times.max()), own_total / lane_ns if lane_ns else 0.0,
        flops / own_total if own_total and flops else None, moved / own_total if own_total and moved else None,
        any(what.integer for what, _ in calls), flops / moved if flops and moved else None, least, bound, unknown,
    )  # fmt: skip


def _open_ns(t: Timeline, spans: Column) -> int:
    """Return the time, lane by lane, in which at least one of these spans was open; they are in timeline order."""
    lanes = t.lane[spans]
    return sum(covered_ns(t.start_ns[on], t.end_ns[on]) for on in np.split(spans, np.flatnonzero(np.diff(lanes)) + 1))


def covered_ns(starts: Column, ends: Column) -> int:
    """Return the length of the union of intervals ordered by their start."""
    if not len(starts):
        return 0
    reached = np.maximum.accumulate(ends)
    begins = np.maximum(starts[1:], reached[:-1])
    return int(ends[0] - starts[0] + np.maximum(reached[1:] - begins, 0).sum())


def _is_cold(t: Timeline, spans: Column, own: Column, own_total: int, bound: Bound) -> bool:
    """Return True if most of a row's time went into its first call because it was the first.

    It is compared with the other calls alike; a single call counts as cold if its work is small (latency-bound).
    """
    first = spans[np.argmin(t.start_ns[spans])]
    first_ns = int(own[first])
    if first_ns < COLD_NS or 2 * first_ns < own_total:
        return False
    others = spans[(t.what[spans] == t.what[first]) & (spans != first)]
    return first_ns > COLD_TIMES * float(np.median(own[others])) if len(others) else bound == "latency"


def _join_kernels(kernels: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(kernels))


def _least(t: Timeline, calls: list[tuple[What, int]], own_total: int) -> tuple[float | None, Bound, str]:
    """Return the least time of these calls, their bound, and why that is unknown."""
    first = calls[0][0]
    if first.kind != "op":
        return None, "", "it is no kernel call"
    limits = t.environment.limits if t.environment is not None else None
    if limits is None:
        return None, "", "this machine's ceilings were not measured"
    if first.device != "cpu":
        return None, "", f"the ceilings of {first.device} were not measured"
    if not any(w.flops or w.moved for w, _ in calls):
        return None, "", "its work is not counted"
    least = by_arithmetic = 0.0
    for w, n in calls:
        least_s = limits.least_s(w.flops, w.moved, w.integer)
        if least_s is None:
            return None, "", "the speed of the cache that holds its data could not be measured"
        least += least_s * n
        by_arithmetic += least_s * n if w.flops / limits.rate(w.integer) >= least_s else 0.0
    if least * 1e9 > OVER * own_total and own_total:
        return least * 1e9, "", OVERSTATED
    count = sum(n for _, n in calls)
    if least * 1e9 < SMALL_NS * count and own_total > FAR * least * 1e9:
        return least * 1e9, "latency", ""
    return least * 1e9, "compute" if by_arithmetic >= least / 2 else "memory", ""
