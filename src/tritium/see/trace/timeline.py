"""The data of a profile: spans on lanes, counters, and sampled stacks, in immutable columns.

A span is on one lane (a thread, or a device's queue); two spans of a lane are disjoint or nested: scopes that
overlap get lanes of their own. Times are ns since the profile began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tritium.errors import ArgumentError
from tritium.perf.records.environment import Environment

Kind = Literal["op", "transfer", "scope", "program", "kernel"]  # kernel: work of a GPU on one of its streams
Column = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class What:
    """The kind of a span: shared by all calls of the same kernel on the same specs, or by all spans of a scope."""

    name: str  # of the op, or of the scope
    kind: Kind = "op"
    kernel: str = ""
    device: str = "cpu"
    detail: str = ""  # the specs, after the name of a step: "mlp/up: f32[8,512], tern2_r64[512,512] -> f32[8,512]"
    flops: int = 0
    read: int = 0
    written: int = 0
    integer: bool = False  # int8 products

    @property
    def moved(self) -> int:
        return self.read + self.written

    @property
    def layer(self) -> str:
        """Return the scopes and the layer of a call in a compiled function, which stand before its specs; "" without a name."""
        return self.detail.rpartition(": ")[0]


@dataclass(frozen=True, eq=False)
class Counter:
    """A quantity over time, on the clock of the spans; or the reason for its absence."""

    name: str  # "pool", "rss", "power" …
    unit: str  # "B", "W", "°C", "%"
    at_ns: Column
    values: Floats
    absent: str = ""  # "not measured: why"


@dataclass(frozen=True, eq=False)
class Samples:
    """Sampled Python stacks: frames outermost first."""

    frames: tuple[str, ...]  # "function (file:line)"
    stacks: tuple[tuple[int, ...], ...]  # indexes of frames
    at_ns: Column
    lane: Column
    stack: Column  # index into stacks of each sample
    every_ns: int
    process: Column | None = None  # that each sample is of, where there are several: each has its own moments

    @cached_property
    def weight_ns(self) -> Column:
        """Return the time each sample represents: since the moment before it, or the beginning of the profile.

        So the weights of a thread sum to the time it was sampled in, however late the samples were.
        """
        out = np.zeros(len(self.at_ns), np.int64)
        process = np.zeros(len(out), np.int64) if self.process is None else self.process
        for number in np.unique(process).tolist():
            rows = np.flatnonzero(process == number)
            moments, moment = np.unique(self.at_ns[rows], return_inverse=True)
            # Of several processes, the first moment of each counts as one interval: its profile began later than 0.
            before = min(0, int(moments[0])) if self.process is None else max(0, int(moments[0]) - self.every_ns)
            out[rows] = np.diff(moments, prepend=before)[moment]
        return out

    @cached_property
    def late_ns(self) -> Column:
        """Return the part of each weight beyond the interval, of samples that were more than one interval late.

        Stacks are read when the GIL is free: a native call held it meanwhile, or the sampler had no CPU.
        """
        return np.where(self.weight_ns > 2 * self.every_ns, self.weight_ns - self.every_ns, 0)


@dataclass(frozen=True, eq=False)
class Timeline:
    """A complete profile. The columns of spans have one length, ordered by lane, then start, then the longer first."""

    whats: tuple[What, ...]
    what: Column  # index into whats of each span
    start_ns: Column
    elapsed_ns: Column
    lane: Column
    lanes: tuple[str, ...]  # their names: "MainThread", "cuda:0 stream 0" …
    elapsed_total_ns: int  # duration of the profile
    began: str = ""  # UTC, ISO 8601
    name: str = ""
    counters: tuple[Counter, ...] = ()
    samples: Samples | None = None
    dropped: int = 0  # spans beyond the capacity
    event_cost_ns: float | None = None  # overhead of one recorded span, measured at the start
    environment: Environment | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)
    apart: int = 0  # number of lanes at the end that are not threads, but scopes that overlapped others of their thread
    scope_cost_ns: float | None = None  # overhead of one scope, measured at the start
    after: tuple[
        tuple[int, int], ...
    ] = ()  # spans of which the later waited for the earlier: work that was handed over
    began_ns: int = 0  # time of day at the beginning, ns since 1970; 0: unknown
    launches: tuple[tuple[int, int], ...] = ()  # spans of calls and of the kernels they launched

    def __len__(self) -> int:
        return len(self.what)

    @cached_property
    def end_ns(self) -> Column:
        return self.start_ns + self.elapsed_ns

    def kind(self, *kinds: Kind) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return a mask of the spans of these kinds."""
        mask = np.array([w.kind in kinds for w in self.whats], bool)
        return mask[self.what] if len(self.what) else np.zeros(0, bool)


def timeline(
    spans: Iterable[tuple[What, int, int, int]], lanes: Sequence[str], elapsed_total_ns: int, **fields: Any
) -> Timeline:
    """Return a timeline of (what, start_ns, elapsed_ns, lane) in any order."""
    whats: dict[What, int] = {}
    rows = [(whats.setdefault(w, len(whats)), start, elapsed, lane) for w, start, elapsed, lane in spans]
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return ordered(
        tuple(whats), columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3], lanes, elapsed_total_ns, **fields
    )


def ordered(
    whats: Sequence[What], what: Column, start_ns: Column, elapsed_ns: Column, lane: Column,
    lanes: Sequence[str], elapsed_total_ns: int, *, after: Sequence[tuple[int, int]] = (),
    launches: Sequence[tuple[int, int]] = (), **fields: Any,
) -> Timeline:  # fmt: skip
    """Return a timeline of columns in any order; ArgumentError if they are inconsistent. `after`, `launches`: pairs of their rows."""
    if len({len(c) for c in (what, start_ns, elapsed_ns, lane)}) != 1:
        raise ArgumentError("timeline: the columns must be of one length.")
    if len(elapsed_ns) and (elapsed_ns.min() < 0 or lane.min() < 0 or lane.max() >= len(lanes)):
        raise ArgumentError("timeline: a span has a negative length, or a lane without a name.")
    order = np.lexsort((-elapsed_ns, start_ns, lane))
    index = np.argsort(order) if after or launches else order
    for name, pairs in (("after", after), ("launches", launches)):
        if pairs:
            fields[name] = tuple(sorted((int(index[a]), int(index[b])) for a, b in pairs))
    return Timeline(
        tuple(whats), what[order], start_ns[order], elapsed_ns[order], lane[order], tuple(lanes), elapsed_total_ns, **fields
    )  # fmt: skip
