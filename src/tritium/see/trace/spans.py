"""Recorded spans in, the columns of a timeline out: what each call was, and which lane it ran on.

Knows nothing of how spans are recorded or shown.
"""

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

NAMED = 4  # rows of a fused group that its name lists


def what_of(recorded: Any) -> What:
    """What a recorded object says: a scope, a program, a transfer or a kernel call."""
    if isinstance(recorded, recording.Scope):
        return What(recorded.name, "scope", device="")
    if isinstance(recorded, launch.Ran):
        return What(recorded.name or "program", "program", device="", detail=f"{recorded.steps} steps")
    cost = recorded.cost
    ins = ", ".join("none" if spec is None else str(spec) for spec in recorded.inputs)
    detail = f"{ins} -> {spec_text(recorded.out)}"
    if recorded.op is None:
        return What(
            "transfer", "transfer", recorded.kernel, str(recorded.device), detail, cost.flops, cost.read, cost.written
        )
    name, integer = _row(recorded.op, recorded.attrs)
    return What(name, "op", recorded.kernel, str(recorded.device), detail, cost.flops, cost.read, cost.written, integer)


def _row(op: Any, attrs: Mapping[str, Any]) -> tuple[str, bool]:
    """The name of a row, and whether it multiplies int8; of a fused group, its rows."""
    body = attrs.get("body")
    if not isinstance(body, Fragment):
        return op.name, op in INTEGER
    listed = body.names
    more = f"+… ({len(listed)} rows)" if len(listed) > NAMED else ""
    return f"{op.name} {'+'.join(listed[:NAMED])}{more}", any(step.op in INTEGER for step in body.steps)


def numbered(recorded: Sequence[Any]) -> tuple[tuple[What, ...], Column]:
    """The distinct things that were done, and for each span the number of its own.

    Calls alike mostly share one object: objects are told apart first by what they are, then by what they hold, and only
    then is their work computed.
    """
    ids = list(map(id, recorded))
    by_key: dict[Any, int] = {}
    found: dict[What, int] = {}
    number: dict[int, int] = {}
    for which, one in dict(zip(ids, recorded, strict=True)).items():
        key = _key(one)
        if key not in by_key:
            by_key[key] = found.setdefault(what_of(one), len(found))
        number[which] = by_key[key]
    return tuple(found), np.fromiter(map(number.__getitem__, ids), np.int64, len(ids))


def _key(one: Any) -> Any:
    """What tells two recorded objects apart."""
    attrs = getattr(one, "attrs", None)
    return type(one), *(v for v in one if v is not attrs), exact(tuple((attrs or {}).items()))


def lanes(threads: Iterable[int], names: Mapping[int, str]) -> tuple[tuple[str, ...], dict[int, int]]:
    """A lane for each thread, in the order given: its name (no two alike), and its number by the thread's identity."""
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
    """Who held the identity of a thread when: it is used again once its thread has ended.

    Later holders, told apart by the names they had in scopes, get identities of their own, below 0.
    """

    def __init__(self, named: Mapping[int, Sequence[tuple[int, str]]], names: Mapping[int, str]) -> None:
        self.names = dict(names)
        self._held: dict[int, tuple[list[int], list[int]]] = {}  # since when, and who
        fresh = count(-1, -1)
        for ident, since in named.items():
            held = [ident, *(next(fresh) for _ in since[1:])]
            self.names |= {who: name for who, (_, name) in zip(held, since, strict=True)}
            if len(held) > 1:
                self._held[ident] = ([at for at, _ in since], held)

    def whose(self, ident: int, at_ns: int) -> int:
        """Who held an identity at a moment."""
        since, held = self._held.get(ident, ([], [ident]))
        return held[max(0, bisect_right(since, at_ns) - 1)]

    def all_of(self, ident: Column, at_ns: Column) -> Column:
        """The same for columns."""
        out = ident.copy()
        for one, (since, held) in self._held.items():
            on = np.flatnonzero(ident == one)
            number = np.searchsorted(np.array(since), at_ns[on], side="right") - 1
            out[on] = np.array(held)[np.maximum(number, 0)]
        return out


def closed(
    recorded: list[Any], times: Column, left: Iterable[tuple[Any, int, int]], began_ns: int, ended_ns: int
) -> tuple[list[Any], Column, int]:
    """The spans with those of scopes that were still open at the end, which end there; and how many these are."""
    more = [
        (what, start, thread)
        for what, start, thread in left
        if start >= began_ns and not ((times[:, 0] == start) & (times[:, 2] == thread)).any()  # it ended just then
    ]
    rows = np.array([(start, ended_ns - start, thread) for _, start, thread in more], np.int64).reshape(-1, 3)
    return [*recorded, *(what for what, _, _ in more)], np.concatenate([times, rows]), len(more)


def crosswise(start_ns: Column, end_ns: Column, lane: Column) -> Column:
    """Which spans overlap another of their lane without one being inside the other."""
    order = np.lexsort((-end_ns, start_ns, lane))
    found: set[int] = set()
    on, open_ = -1, list[tuple[int, int]]()  # end and number
    rows = zip(order.tolist(), *(c[order].tolist() for c in (start_ns, end_ns, lane)), strict=True)
    for i, start, end, at in rows:
        open_ = [o for o in open_ if o[0] > start] if at == on else []
        on = at
        crossed = [j for ends, j in open_ if ends < end]
        if crossed:
            found.update(crossed, (i,))
        open_.append((end, i))
    return np.array(sorted(found), np.int64)


def put_apart(
    whats: Sequence[What], what: Column, start_ns: Column, elapsed_ns: Column, lane: Column, lanes: Sequence[str]
) -> tuple[Column, tuple[str, ...], int]:
    """The lanes again, with every scope that overlaps another crosswise on one of its own; and how many scopes these are.

    Tasks that take turns on a thread do that. Nobody knows whose the calls are meanwhile: they stay where they ran, inside
    no such scope.
    """
    rank = np.array([RANKS.get(w.kind, 2) for w in whats], np.int64)[what] if len(what) else what
    parts = np.flatnonzero(rank < 2)
    end_ns = start_ns + elapsed_ns
    found = parts[crosswise(start_ns[parts], end_ns[parts], lane[parts])]
    moved = found[rank[found] == RANKS["scope"]]
    out, named = lane.copy(), list(lanes)
    free: dict[int, list[tuple[int, int]]] = {}  # by lane: when each of those added to it is free, and its number
    for i in moved[np.argsort(start_ns[moved], kind="stable")].tolist():
        added = free.setdefault(int(lane[i]), [])
        at = next((k for k, (until, _) in enumerate(added) if until <= start_ns[i]), len(added))
        if at == len(added):
            added.append((0, len(named)))
            named.append(f"{lanes[lane[i]]}, overlapping{f' {at + 1}' if at else ''}")
        out[i] = added[at][1]
        added[at] = (int(end_ns[i]), added[at][1])
    return out, tuple(named), len(moved)


def clipped(start_ns: Column, elapsed_ns: Column, began_ns: int) -> tuple[Column, Column]:
    """Times since the profile began; what began before it begins with it."""
    start = start_ns - began_ns
    before = np.minimum(start, 0)
    return start - before, np.maximum(elapsed_ns + before, 0)


def outer_first(whats: Sequence[What], what: Column) -> Column:
    """The order in which, of spans that begin and end alike, the outer comes first: scopes, the one recorded last (it
    ended last) before the others; then programs; then calls."""
    rank = np.array([RANKS.get(w.kind, 2) for w in whats], np.int64)[what] if len(what) else what
    return np.lexsort((-np.arange(len(what)), rank))


RANKS = {"scope": 0, "program": 1}
