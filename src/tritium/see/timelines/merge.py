"""Several timelines on one clock: profiles of processes that ran at the same time, as the lanes of one timeline.

Each profile has the time of day at which it began; their lanes are named after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tritium.errors import ArgumentError
from tritium.see.trace.timeline import Column, Samples, Timeline, What, ordered

LONGEST_NS = 7 * 86_400 * 10**9  # between the first beginning and the last: profiles of other days are no one run


def merge(timelines: Sequence[Timeline], name: str = "") -> Timeline:
    """Return one timeline with the lanes of all; ArgumentError where their times of day are unknown or far apart."""
    if not timelines:
        raise ArgumentError("merge: no profiles were given; give two or more.")
    if len(timelines) == 1:
        return timelines[0]
    unknown = [t.name or "a profile" for t in timelines if not t.began_ns]
    if unknown:
        raise ArgumentError(f"merge: {unknown[0]} has no time of day in ns; record it again with this version.")
    first = min(t.began_ns for t in timelines)
    shifts = [t.began_ns - first for t in timelines]
    if max(shifts) > LONGEST_NS:
        raise ArgumentError("merge: the profiles began more than 7 days apart; give those of one run.")
    names = _names(timelines)
    whats = {w: i for i, w in enumerate(dict.fromkeys(w for t in timelines for w in t.whats))}
    lanes = _lanes(timelines, names)
    numbers = _numbers(timelines)
    rows = np.cumsum([0, *(len(t) for t in timelines)]).tolist()
    return ordered(
        tuple(whats), _joined(_renumber(t, whats) for t in timelines),
        _joined(t.start_ns + shift for t, shift in zip(timelines, shifts, strict=True)), _joined(t.elapsed_ns for t in timelines),
        _joined(number[t.lane] for t, number in zip(timelines, numbers, strict=True)), lanes,
        max(t.elapsed_total_ns + shift for t, shift in zip(timelines, shifts, strict=True)),
        after=[(a + row, b + row) for t, row in zip(timelines, rows, strict=False) for a, b in t.after],
        launches=[(a + row, b + row) for t, row in zip(timelines, rows, strict=False) for a, b in t.launches],
        began=timelines[shifts.index(0)].began, began_ns=first, name=name or " and ".join(names),
        counters=tuple(
            replace(c, name=f"{name}: {c.name}", at_ns=c.at_ns + shift)
            for t, name, shift in zip(timelines, names, shifts, strict=True) for c in t.counters
        ),
        samples=_samples(timelines, numbers, shifts), dropped=sum(t.dropped for t in timelines),
        environment=timelines[0].environment, apart=sum(t.apart for t in timelines),
        notes=tuple(f"{name}: {note}" for t, name in zip(timelines, names, strict=True) for note in t.notes),
    )  # fmt: skip


def _joined(columns: Iterable[Column]) -> Column:
    return np.concatenate(list(columns)).astype(np.int64)


def _names(timelines: Sequence[Timeline]) -> list[str]:
    """Return a name for each process; equal ones get numbers."""
    names = [t.name or "process" for t in timelines]
    return [f"{name} #{names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _renumber(t: Timeline, whats: dict[What, int]) -> Column:
    return np.array([whats[w] for w in t.whats], np.int64)[t.what] if len(t) else t.what


def _lanes(timelines: Sequence[Timeline], names: Sequence[str]) -> list[str]:
    """Return the lanes: those of threads process by process, then all that only hold scopes that overlapped."""
    pairs = list(zip(timelines, names, strict=True))
    threads = [f"{name}: {lane}" for t, name in pairs for lane in t.lanes[: len(t.lanes) - t.apart]]
    return threads + [f"{name}: {lane}" for t, name in pairs for lane in t.lanes[len(t.lanes) - t.apart :]]


def _numbers(timelines: Sequence[Timeline]) -> list[Column]:
    """Return, for each timeline, the new number of each of its lanes."""
    real = [len(t.lanes) - t.apart for t in timelines]
    out, thread, apart = [], 0, sum(real)
    for t, count in zip(timelines, real, strict=True):
        out.append(np.array([*range(thread, thread + count), *range(apart, apart + t.apart)], np.int64))
        thread, apart = thread + count, apart + t.apart
    return out


def _samples(timelines: Sequence[Timeline], numbers: Sequence[Column], shifts: Sequence[int]) -> Samples | None:
    """Return the samples of all processes; a process without any has none."""
    sampled = [
        (t.samples, number, shift)
        for t, number, shift in zip(timelines, numbers, shifts, strict=True)
        if t.samples is not None
    ]
    if not sampled:
        return None
    frames: dict[str, int] = {}
    stacks: list[tuple[int, ...]] = []
    columns: list[tuple[Column, Column, Column]] = []
    for s, number, shift in sampled:
        index = [frames.setdefault(f, len(frames)) for f in s.frames]
        columns.append((s.at_ns + shift, number[s.lane], s.stack + len(stacks)))
        stacks += [tuple(index[f] for f in stack) for stack in s.stacks]
    times, lane, stack = (_joined(c) for c in zip(*columns, strict=True))
    process = _joined(np.full(len(s.stack), i) for i, (s, _, _) in enumerate(sampled))
    every = max(s.every_ns for s, _, _ in sampled)
    return Samples(tuple(frames), tuple(stacks), times, lane, stack, every, process)
