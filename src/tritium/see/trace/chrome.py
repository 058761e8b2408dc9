"""A timeline as a Chrome trace: what Perfetto (ui.perfetto.dev) and chrome://tracing open.

Knows nothing of recording. The object form: names of processes and threads, spans nested on every thread, counters, and
arrows from a call on the host to its work on a device. Times are µs with three decimals: whole ns, never rounded. Beyond
the cap the spans that began last are left out, and the trace says how many.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tritium.errors import ArgumentError
from tritium.escape import json_text
from tritium.perf import files
from tritium.see.trace import tracks
from tritium.see.trace.timeline import Column, Timeline, What
from tritium.see.trace.tracks import CAP_BYTES

PID = 1
CHUNK = 16384  # spans rendered at a time
LEAST_CAP = 100_000  # bytes; below, not even the names of the threads would fit for certain
NOTES = 20  # of a timeline's that are said
ARROW_BYTES = 130  # at most, of one end of an arrow


def write(t: Timeline, path: str | os.PathLike[str], cap_bytes: int = CAP_BYTES) -> Path:
    """Write the trace to a file; gzipped where its name ends with .gz. The cap is on the text within."""
    return files.write_chunks(path, chunks(t, cap_bytes))


def chunks(t: Timeline, cap_bytes: int = CAP_BYTES) -> Iterator[str]:
    """The trace, piece by piece: a million spans never stand in memory as text all at once."""
    trace = _Trace(t, cap_bytes)
    yield '{"displayTimeUnit":"ns","traceEvents":[\n'
    yield ",\n".join(trace.names)
    yield from trace.spans()
    yield "".join(f",\n{event}" for event in (*trace.counters, *trace.arrows()))
    yield f'\n],"otherData":{trace.about(trace.left_out)}}}\n'


class _Trace:
    """What is the same for all chunks, made once: tracks, rendered names, and which spans fit."""

    def __init__(self, t: Timeline, cap_bytes: int) -> None:
        if cap_bytes < LEAST_CAP:
            raise ArgumentError(f"a trace of {cap_bytes} bytes holds nothing; give at least {LEAST_CAP}.")
        self.t, self.cap_bytes = t, cap_bytes
        self.track, tids = tracks.tracks(t)
        self.zero = min(0, *(int(c.min()) for c in (t.start_ns, *(k.at_ns for k in t.counters)) if len(c)), 0)
        self.names = list(_names(t, tids))
        self.heads = [f',\n{{"ph":"X","pid":{PID},"tid":{i + 1},"ts":' for i in range(len(tids))]
        self.tails = [_tail(w) for w in t.whats]
        self.flows = flows(t)
        self.counters, self.counts_left_out = _bounded(list(self._counters()), cap_bytes // 4)
        taken = sum(len(e) + 2 for e in (*self.names, *self.counters)) + len(self.about(len(t))) + 100
        budget = cap_bytes - taken - 2 * ARROW_BYTES * len(self.flows)
        self.kept = tracks.earliest(t.start_ns, self._sizes(), budget)
        self.left_out = len(t) - int(self.kept.sum())

    def _sizes(self) -> Column:
        """The bytes of every span's event: all of it is ASCII."""
        if not len(self.t):
            return np.zeros(0, np.int64)
        heads = np.array([len(h) for h in self.heads], np.int64)[self.track]
        tails = np.array([len(x) for x in self.tails], np.int64)[self.t.what]
        starts, lengths = (self.t.start_ns - self.zero) // 1000, self.t.elapsed_ns // 1000
        return heads + tails + tracks.digits(starts) + tracks.digits(lengths) + len('.000,"dur":.000')

    def spans(self) -> Iterator[str]:
        """One event for every span that fits, a track after the other, each in order of time."""
        rows = np.flatnonzero(self.kept)
        rows = rows[np.lexsort((rows, self.track[rows]))]
        for at in range(0, len(rows), CHUNK):
            yield self._rendered(rows[at : at + CHUNK])

    def _rendered(self, rows: Column) -> str:
        heads, tails = self.heads, self.tails
        starts, lengths = np.divmod(self.t.start_ns[rows] - self.zero, 1000), np.divmod(self.t.elapsed_ns[rows], 1000)
        columns = (self.track[rows], *starts, *lengths, self.t.what[rows])
        return "".join([
            f'{heads[tid]}{us}.{ns:03d},"dur":{dur_us}.{dur_ns:03d}{tails[what]}'
            for tid, us, ns, dur_us, dur_ns, what in zip(*(c.tolist() for c in columns), strict=True)
        ])  # fmt: skip

    def _counters(self) -> Iterator[str]:
        for counter in self.t.counters:
            shown = f"{counter.name} ({counter.unit})" if counter.unit else counter.name
            head = f'{{"ph":"C","pid":{PID},"tid":0,"name":{json_text(shown)},"ts":'
            for at, value in zip(counter.at_ns.tolist(), counter.values.tolist(), strict=True):
                if math.isfinite(value):  # a gap: JSON has no NaN
                    yield f'{head}{self._us(at)},"args":{{"value":{value!r}}}}}'

    def arrows(self) -> Iterator[str]:
        """From the call on the host to the work on the device, where both were kept."""
        for n, (source, target) in enumerate(self.flows):
            if self.kept[source] and self.kept[target]:
                for phase, i in (('"s"', source), ('"f","bp":"e"', target)):
                    yield (
                        f'{{"ph":{phase},"id":{n + 1},"name":"launch","cat":"launch","pid":{PID},'
                        f'"tid":{self.track[i] + 1},"ts":{self._us(int(self.t.start_ns[i]))}}}'
                    )

    def _us(self, ns: int) -> str:
        return "{}.{:03d}".format(*divmod(ns - self.zero, 1000))

    def about(self, left_out: int) -> str:
        """What the viewer shows as the trace's own data: words."""
        t = self.t
        said = {"exporter": "tritium", "name": t.name, "began": t.began}
        if (here := t.environment) is not None:
            said |= {"tritium": here.tritium, "python": here.python, "cpu": here.hard.cpu, "commit": here.commit or ""}
        if t.event_cost_ns is not None:
            said["recording one span cost"] = f"{t.event_cost_ns:.0f} ns"
        said |= {f"counter {c.name}": c.absent for c in t.counters if c.absent}
        said |= {f"note {i + 1}": note for i, note in enumerate(t.notes[:NOTES])}
        if left_out:
            said["truncated"] = f"the last {left_out} of {len(t)} spans are left out: the cap is {self.cap_bytes} bytes"
        if self.counts_left_out:
            said["counters truncated"] = f"the last {self.counts_left_out} values are left out"
        if t.dropped:
            said["dropped"] = f"{t.dropped} spans did not fit while recording"
        shown = {json_text(k): json_text(v) for k, v in said.items() if v}  # names may look alike: a key stands once
        return "{" + ",".join(f"{k}:{v}" for k, v in shown.items()) + "}"


def _names(t: Timeline, tids: tuple[str, ...]) -> Iterator[str]:
    def said(name: str, tid: int, args: str) -> str:
        return f'{{"ph":"M","pid":{PID},"tid":{tid},"name":"{name}","args":{{{args}}}}}'

    yield said("process_name", 0, f'"name":{json_text(t.name or "tritium")}')
    for i, name in enumerate(tids):
        yield said("thread_name", i + 1, f'"name":{json_text(name)}')
        yield said("thread_sort_index", i + 1, f'"sort_index":{i}')


def _tail(what: What) -> str:
    """The part of an event that is the same for every span of one kind."""
    words = {"kernel": what.kernel, "specs": what.detail, "device": "" if what.kind == "scope" else what.device}
    args = [f'"{k}":{json_text(v)}' for k, v in words.items() if v]
    args += [f'"{k}":{v}' for k, v in (("flops", what.flops), ("bytes", what.moved)) if v]
    inside = f',"args":{{{",".join(args)}}}' if args else ""
    return f',"name":{json_text(what.name)},"cat":{json_text(what.kind)}{inside}}}'


def _bounded(events: list[str], budget: int) -> tuple[list[str], int]:
    fits = int(np.searchsorted(np.cumsum([len(e) + 2 for e in events]), budget, side="right"))
    return events[:fits], len(events) - fits


def flows(t: Timeline) -> list[tuple[int, int]]:
    """Pairs (span of the call on a host's lane, span of its work on a device's lane), as far as they can be told.

    A device's lane bears the device's name. The n-th call of one kind belongs to the n-th work of that kind; where their
    numbers differ nothing is said.
    """
    devices = {w.device for w in t.whats if w.device not in ("", "cpu")}
    on_device = np.array([any(name == d or name.startswith(f"{d} ") for d in devices) for name in t.lanes], bool)
    if not len(t) or not on_device.any():
        return []
    there = on_device[t.lane]
    pairs: list[tuple[int, int]] = []
    for what in np.unique(t.what[there]).tolist():
        calls, works = (np.flatnonzero((t.what == what) & side) for side in (~there, there))
        if len(calls) == len(works):
            calls, works = (i[np.argsort(t.start_ns[i], kind="stable")] for i in (calls, works))
            both = zip(calls.tolist(), works.tolist(), strict=True)
            pairs += [(call, work) for call, work in both if t.start_ns[call] <= t.start_ns[work]]
    return pairs
