"""Recorded spans in, the columns of a timeline out: what each call was, and which lane it ran on.

Knows nothing of how spans are recorded or shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tritium import launch, recording
from tritium.cost import INTEGER
from tritium.fragment import Fragment, spec_text
from tritium.op import exact
from tritium.see.timeline import Column, What

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
