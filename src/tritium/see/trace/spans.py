"""Conversion of recorded spans to the columns of a timeline: the kind of each call and its lane."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from tritium import launch, recording
from tritium.compiler.cost import INTEGER
from tritium.fragment import Fragment, spec_text
from tritium.op import exact
from tritium.see.trace.timeline import Column, What

NAMED = 4  # ops of a fusion group that its name lists


def describe(recorded: Any) -> What:
    """Return the What of a recorded object: a scope, a program, a transfer or a kernel call."""
    if isinstance(recorded, recording.Scope | recording.Stage):
        return What(recorded.name, "scope", device="")
    if isinstance(recorded, launch.Ran):
        return What(recorded.name or "program", "program", device="", detail=f"{recorded.steps} steps")
    cost = recorded.cost
    ins = ", ".join("none" if spec is None else str(spec) for spec in recorded.inputs)
    where = str(recorded.where)
    detail = f"{where}{': ' if where else ''}{ins} -> {spec_text(recorded.out)}"
    if recorded.op is None:
        return What(
            "transfer", "transfer", recorded.kernel, str(recorded.device), detail, cost.flops, cost.read, cost.written
        )
    name, integer = _op_name(recorded.op, recorded.attrs)
    return What(name, "op", recorded.kernel, str(recorded.device), detail, cost.flops, cost.read, cost.written, integer)


def _op_name(op: Any, attrs: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the name of an op, or of the ops of a fusion group, and True if it multiplies int8."""
    fragment = attrs.get("body")
    if not isinstance(fragment, Fragment):
        return op.name, op in INTEGER
    names = fragment.names
    suffix = f"+… ({len(names)} rows)" if len(names) > NAMED else ""
    return f"{op.name} {'+'.join(names[:NAMED])}{suffix}", any(step.op in INTEGER for step in fragment.steps)


def number_events(recorded: Sequence[Any]) -> tuple[tuple[What, ...], Column]:
    """Return the distinct kinds of calls, and for each span the index of its kind.

    Equal calls mostly share one object: objects are compared by identity first, then by content, and only then is their
    work computed.
    """
    ids = list(map(id, recorded))
    by_key: dict[Any, int] = {}
    kinds: dict[What, int] = {}
    number: dict[int, int] = {}
    for ident, event in dict(zip(ids, recorded, strict=True)).items():
        key = _key(event)
        if key not in by_key:
            by_key[key] = kinds.setdefault(describe(event), len(kinds))
        number[ident] = by_key[key]
    return tuple(kinds), np.fromiter(map(number.__getitem__, ids), np.int64, len(ids))


def _key(event: Any) -> Any:
    """Return the key by which recorded objects are equal."""
    attrs = getattr(event, "attrs", None)
    return type(event), *(v for v in event if v is not attrs), exact(tuple((attrs or {}).items()))


def lanes(threads: Iterable[int], names: Mapping[int, str]) -> tuple[tuple[str, ...], dict[int, int]]:
    """Return unique lane names for the threads, in order, and the lane number by the thread's identity."""
    number: dict[int, int] = {}
    out: list[str] = []
    for ident in threads:
        if ident in number:
            continue
        number[ident] = len(out)
        name = names.get(ident) or f"thread {len(out) + 1}"
        twins = sum(other == name or other.rpartition(" #")[0] == name for other in out)
        out.append(f"{name} #{twins + 1}" if twins else name)
    return tuple(out), number


class Threads:
    """Holders of thread identities over time: an identity is reused once its thread has ended.

    Later holders, distinguished by the names they had in scopes, get identities of their own, below 0.
    """

    def __init__(self, named: Mapping[int, Sequence[tuple[int, str]]], names: Mapping[int, str]) -> None:
        self.names = dict(names)
        self._held: dict[int, tuple[list[int], list[int]]] = {}  # start times, and holders
        fresh = count(-1, -1)
        for ident, periods in named.items():
            holders = [ident, *(next(fresh) for _ in periods[1:])]
            self.names |= {holder: name for holder, (_, name) in zip(holders, periods, strict=True)}
            if len(holders) > 1:
                self._held[ident] = ([time for time, _ in periods], holders)

    def holder(self, ident: int, at_ns: int) -> int:
        """Return the holder of an identity at a time."""
        since, holders = self._held.get(ident, ([], [ident]))
        return holders[max(0, bisect_right(since, at_ns) - 1)]

    def holders(self, ident: Column, at_ns: Column) -> Column:
        """Return the holders for columns of identities and times."""
        out = ident.copy()
        for thread, (since, holders) in self._held.items():
            rows = np.flatnonzero(ident == thread)
            number = np.searchsorted(np.array(since), at_ns[rows], side="right") - 1
            out[rows] = np.array(holders)[np.maximum(number, 0)]
        return out


def close_scopes(
    recorded: list[Any], times: Column, unfinished: Iterable[tuple[Any, int, int]], began_ns: int, ended_ns: int
) -> tuple[list[Any], Column, int]:
    """Return the spans with those of scopes still open at the end, which end there, and the number of these."""
    added = [
        (what, start, thread)
        for what, start, thread in unfinished
        if start >= began_ns and not ((times[:, 0] == start) & (times[:, 2] == thread)).any()  # it was closed meanwhile
    ]
    rows = np.array([(start, ended_ns - start, thread) for _, start, thread in added], np.int64).reshape(-1, 3)
    return [*recorded, *(what for what, _, _ in added)], np.concatenate([times, rows]), len(added)


def find_crossing(start_ns: Column, end_ns: Column, lane: Column) -> Column:
    """Return the indices of spans that overlap another of their lane without one being inside the other."""
    order = np.lexsort((-end_ns, start_ns, lane))
    crossing: set[int] = set()
    current, open_ = -1, list[tuple[int, int]]()  # end and index
    rows = zip(order.tolist(), *(c[order].tolist() for c in (start_ns, end_ns, lane)), strict=True)
    for i, start, end, lane_number in rows:
        open_ = [o for o in open_ if o[0] > start] if lane_number == current else []
        current = lane_number
        crossed = [j for ends, j in open_ if ends < end]
        if crossed:
            crossing.update(crossed, (i,))
        open_.append((end, i))
    return np.array(sorted(crossing), np.int64)


def separate_scopes(
    whats: Sequence[What], what: Column, start_ns: Column, elapsed_ns: Column, lane: Column, lanes: Sequence[str]
) -> tuple[Column, tuple[str, ...], int]:
    """Return the lanes with every scope that crosses another on a lane of its own, and the number of these scopes.

    Interleaved tasks of a thread cause this. The calls meanwhile cannot be assigned to a task: they stay on their lane,
    inside no such scope.
    """
    rank = np.array([RANKS.get(w.kind, 2) for w in whats], np.int64)[what] if len(what) else what
    parts = np.flatnonzero(rank < 2)
    end_ns = start_ns + elapsed_ns
    crossing = parts[find_crossing(start_ns[parts], end_ns[parts], lane[parts])]
    moved = crossing[rank[crossing] == RANKS["scope"]]
    out, names = lane.copy(), list(lanes)
    free: dict[int, list[tuple[int, int]]] = {}  # by lane: end time and number of each lane added to it
    for i in moved[np.argsort(start_ns[moved], kind="stable")].tolist():
        added = free.setdefault(int(lane[i]), [])
        index = next((k for k, (until, _) in enumerate(added) if until <= start_ns[i]), len(added))
        if index == len(added):
            added.append((0, len(names)))
            names.append(f"{lanes[lane[i]]}, overlapping{f' {index + 1}' if index else ''}")
        out[i] = added[index][1]
        added[index] = (int(end_ns[i]), added[index][1])
    return out, tuple(names), len(moved)


def handovers(recorded: Sequence[Any]) -> list[tuple[int, int]]:
    """Return pairs of spans of which the later takes over the item of the earlier: neighbouring stages of a pipeline."""
    stages = {(w.run, w.number, w.item): i for i, w in enumerate(recorded) if isinstance(w, recording.Stage)}
    pairs = (((run, number - 1, item), i) for (run, number, item), i in stages.items())
    return [(stages[before], i) for before, i in pairs if before in stages]


def renumber(pairs: Iterable[tuple[int, int]], order: Column) -> list[tuple[int, int]]:
    """Return pairs of rows as they are numbered after the rows were put in this order."""
    index = np.argsort(order)
    return [(int(index[a]), int(index[b])) for a, b in pairs]


def clip_times(start_ns: Column, elapsed_ns: Column, began_ns: int) -> tuple[Column, Column]:
    """Return times since the profile began, with earlier starts clipped to 0."""
    start = start_ns - began_ns
    before = np.minimum(start, 0)
    return start - before, np.maximum(elapsed_ns + before, 0)


def order_outer_first(whats: Sequence[What], what: Column) -> Column:
    """Return the order in which, of spans with equal start and end, the outer comes first.

    Scopes come first, the one recorded last (it ended last) before the others; then programs; then calls.
    """
    rank = np.array([RANKS.get(w.kind, 2) for w in whats], np.int64)[what] if len(what) else what
    return np.lexsort((-np.arange(len(what)), rank))


RANKS = {"scope": 0, "program": 1}
