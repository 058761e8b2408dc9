"""Export of a timeline as a Chrome trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

In the object form: names of processes and threads, spans nested on every thread, counters, and arrows from a call on the
host to its work on a device. Times are µs with three decimals: whole ns, never rounded. Beyond the cap the spans that
began last are left out, and the trace has their number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tritium.errors import ArgumentError
from tritium.escape import json_text
from tritium.machine import files
from tritium.see.trace import tracks
from tritium.see.trace.timeline import Column, Timeline, What
from tritium.see.trace.tracks import CAP_BYTES

PID = 1
CHUNK = 16384  # spans rendered at a time
LEAST_CAP = 100_000  # bytes; below, the names of the threads might not fit
NOTES = 20  # most notes of a timeline that are included
ARROW_BYTES = 130  # at most, of one end of an arrow


def write(t: Timeline, path: str | os.PathLike[str], cap_bytes: int = CAP_BYTES) -> Path:
    """Write the trace to a file, gzipped if its name ends with .gz. The cap is on the uncompressed text."""
    return files.write_chunks(path, chunks(t, cap_bytes))


def chunks(t: Timeline, cap_bytes: int = CAP_BYTES) -> Iterator[str]:
    """Yield the trace in chunks, so that a million spans are never in memory as text at once."""
    trace = _Trace(t, cap_bytes)
    yield '{"displayTimeUnit":"ns","traceEvents":[\n'
    yield ",\n".join(trace.names)
    yield from trace.spans()
    yield "".join(f",\n{event}" for event in (*trace.counters, *trace.arrows()))
    yield f'\n],"otherData":{trace.metadata(trace.left_out)}}}\n'


class _Trace:
    """The parts shared by all chunks: tracks, rendered names, and the selection of spans that fit."""

    def __init__(self, t: Timeline, cap_bytes: int) -> None:
        if cap_bytes < LEAST_CAP:
            raise ArgumentError(f"a trace of {cap_bytes} bytes has no room for spans; pass at least {LEAST_CAP}.")
        self.t, self.cap_bytes = t, cap_bytes
        self.track, tids = tracks.tracks(t)
        self.zero = min(0, *(int(c.min()) for c in (t.start_ns, *(k.at_ns for k in t.counters)) if len(c)), 0)
        self.names = list(_names(t, tids))
        self.heads = [f',\n{{"ph":"X","pid":{PID},"tid":{i + 1},"ts":' for i in range(len(tids))]
        self.tails = [_tail(w) for w in t.whats]
        self.flows = flows(t)
        self.counters, self.counts_left_out = _limit(list(self._counters()), cap_bytes // 4)
        used = sum(len(e) + 2 for e in (*self.names, *self.counters)) + len(self.metadata(len(t))) + 100
        budget = cap_bytes - used - 2 * ARROW_BYTES * len(self.flows)
        self.selected = tracks.earliest(t.start_ns, self._sizes(), budget)
        self.left_out = len(t) - int(self.selected.sum())

    def _sizes(self) -> Column:
        """Return the bytes of every span's event, which is all ASCII."""
        if not len(self.t):
            return np.zeros(0, np.int64)
        heads = np.array([len(h) for h in self.heads], np.int64)[self.track]
        tails = np.array([len(x) for x in self.tails], np.int64)[self.t.what]
        starts, lengths = (self.t.start_ns - self.zero) // 1000, self.t.elapsed_ns // 1000
        return heads + tails + tracks.digits(starts) + tracks.digits(lengths) + len('.000,"dur":.000')

    def spans(self) -> Iterator[str]:
        """Yield one event for every span that fits, by track, then time."""
        rows = np.flatnonzero(self.selected)
        rows = rows[np.lexsort((rows, self.track[rows]))]
        for first in range(0, len(rows), CHUNK):
            yield self._render(rows[first : first + CHUNK])

    def _render(self, rows: Column) -> str:
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
            for time, value in zip(counter.at_ns.tolist(), counter.values.tolist(), strict=True):
                if math.isfinite(value):  # NaN is a gap: JSON has none
                    yield f'{head}{self._us(time)},"args":{{"value":{value!r}}}}}'

    def arrows(self) -> Iterator[str]:
        """Yield arrows from the call on the host to the work on the device, if both fit."""
        for n, (source, target) in enumerate(self.flows):
            if self.selected[source] and self.selected[target]:
                for phase, i in (('"s"', source), ('"f","bp":"e"', target)):
                    yield (
                        f'{{"ph":{phase},"id":{n + 1},"name":"launch","cat":"launch","pid":{PID},'
                        f'"tid":{self.track[i] + 1},"ts":{self._us(int(self.t.start_ns[i]))}}}'
                    )

    def _us(self, ns: int) -> str:
        return "{}.{:03d}".format(*divmod(ns - self.zero, 1000))

    def metadata(self, left_out: int) -> str:
        """Return the metadata of the trace as a JSON object of strings."""
        t = self.t
        fields = {"exporter": "tritium", "name": t.name, "began": t.began}
        if (environment := t.environment) is not None:
            fields |= {
                "tritium": environment.tritium,
                "python": environment.python,
                "cpu": environment.hard.cpu,
                "commit": environment.commit or "",
            }
        if t.event_cost_ns is not None:
            fields["recording one span cost"] = f"{t.event_cost_ns:.0f} ns"
        if t.scope_cost_ns is not None:
            fields["recording one scope cost"] = f"{t.scope_cost_ns:.0f} ns"
        fields |= {f"counter {c.name}": c.absent for c in t.counters if c.absent}
        fields |= {f"note {i + 1}": note for i, note in enumerate(t.notes[:NOTES])}
        if left_out:
            fields["truncated"] = (
                f"the last {left_out} of {len(t)} spans are left out: the cap is {self.cap_bytes} bytes"
            )
        if self.counts_left_out:
            fields["counters truncated"] = f"the last {self.counts_left_out} values are left out"
        if t.dropped:
            fields["dropped"] = f"{t.dropped} spans did not fit while recording"
        shown = {
            json_text(k): json_text(v) for k, v in fields.items() if v
        }  # escaped names may be equal: each key occurs once
        return "{" + ",".join(f"{k}:{v}" for k, v in shown.items()) + "}"


def _names(t: Timeline, tids: tuple[str, ...]) -> Iterator[str]:
    def render(name: str, tid: int, args: str) -> str:
        return f'{{"ph":"M","pid":{PID},"tid":{tid},"name":"{name}","args":{{{args}}}}}'

    yield render("process_name", 0, f'"name":{json_text(t.name or "tritium")}')
    for i, name in enumerate(tids):
        yield render("thread_name", i + 1, f'"name":{json_text(name)}')
        yield render("thread_sort_index", i + 1, f'"sort_index":{i}')


def _tail(what: What) -> str:
    """Return the part of an event that is the same for every span of one kind."""
    words = {"kernel": what.kernel, "specs": what.detail, "device": "" if what.kind == "scope" else what.device}
    args = [f'"{k}":{json_text(v)}' for k, v in words.items() if v]
    args += [f'"{k}":{v}' for k, v in (("flops", what.flops), ("bytes", what.moved)) if v]
    inside = f',"args":{{{",".join(args)}}}' if args else ""
    return f',"name":{json_text(what.name)},"cat":{json_text(what.kind)}{inside}}}'


def _limit(events: list[str], budget: int) -> tuple[list[str], int]:
    fits = int(np.searchsorted(np.cumsum([len(e) + 2 for e in events]), budget, side="right"))
    return events[:fits], len(events) - fits


def flows(t: Timeline) -> list[tuple[int, int]]:
    """Return pairs (span of the call on a host's lane, span of its work on a device's lane), as far as they are known.

    They are the recorded ones where there are some. Else a device's lane has the device's name; the n-th call of one kind
    belongs to the n-th work of that kind, and if their numbers differ, there are no pairs of that kind.
    """
    if t.launches:
        return list(t.launches)
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
