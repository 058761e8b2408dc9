"""Kernels of a GPU in a profile: what ran on each stream, and the call that launched it.

Recorded by torch's profiler, which reads CUPTI; knows nothing of drawing. Its times are of the system clock, those of a
profile since its beginning.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tritium.errors import PackageError
from tritium.see.profile.op_table import CALLS, PARTS
from tritium.see.trace.timeline import Column, Timeline, What, ordered

WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace: what a GPU did
LAUNCHES = ("cuda_runtime", "cuda_driver")  # and the calls of the host that asked for it
DETAILS = ("grid", "block", "bytes")
NESTED = 64  # spans that may be open at once around a launch


class Work(NamedTuple):
    """A kernel or a copy on a stream; times in ns of the system clock."""

    name: str
    device: str
    stream: int
    start_ns: int
    elapsed_ns: int
    detail: str = ""
    launched_ns: int | None = None  # time of the call of CUDA that asked for it


class KernelRecorder:
    """Records the work of CUDA devices meanwhile; PackageError, with the reason, where that cannot be."""

    def __init__(self) -> None:
        self._torch = _torch()
        profiler = self._torch.profiler
        self._profiler = profiler.profile(activities=[profiler.ProfilerActivity.CUDA], acc_events=True)

    def start(self) -> None:
        self._torch.cuda.synchronize()  # work from before belongs to no call of the profile
        self._profiler.start()

    def stop(self) -> None:
        self._torch.cuda.synchronize()
        self._profiler.stop()

    def read(self) -> list[Work]:
        """Return what was recorded."""
        with tempfile.TemporaryDirectory(prefix="tritium-kernels-") as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            return read_trace(json.loads(path.read_bytes()))


def _torch() -> Any:
    """Return torch where it can record a GPU."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        raise PackageError("no kernels of a GPU can be recorded: torch is not installed: pip install torch.")
    torch = import_module("torch")
    if not torch.cuda.is_available():
        raise PackageError("no kernels of a GPU can be recorded: torch finds no CUDA device; leave --kernels out.")
    return torch


def read_trace(trace: Mapping[str, Any]) -> list[Work]:
    """Return the work of GPUs in a trace as torch's profiler writes it."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    events = [e for e in trace.get("traceEvents", ()) if e.get("ph") == "X"]
    launched = {
        e["args"]["correlation"]: base + _ns(e["ts"])
        for e in events
        if e.get("cat") in LAUNCHES and "correlation" in e.get("args", ())
    }
    return [_work(e, base, launched) for e in events if e.get("cat") in WORK]


def _ns(microseconds: float | str) -> int:
    return round(float(microseconds) * 1000)


def _work(event: Mapping[str, Any], base: int, launched: Mapping[Any, int]) -> Work:
    args = event.get("args", {})
    index = int(args.get("device", event.get("pid", 0)))
    detail = ", ".join(f"{key} {args[key]}" for key in DETAILS if key in args)
    return Work(
        str(event["name"]), "cuda" if index == 0 else f"cuda:{index}", int(args.get("stream", event.get("tid", 0))),
        base + _ns(event["ts"]), _ns(event.get("dur", 0)), detail, launched.get(args.get("correlation")),
    )  # fmt: skip


def add_kernels(t: Timeline, works: Iterable[Work], began_ns: int) -> Timeline:
    """Return the timeline with a lane for each stream, and the calls that launched its work. `began_ns`: of the system clock."""
    own = sorted((w for w in works if w.start_ns + w.elapsed_ns > began_ns), key=lambda w: w.start_ns)
    if not own:
        return t
    whats = {w: i for i, w in enumerate(t.whats)}
    what = [whats.setdefault(What(w.name, "kernel", device=w.device, detail=w.detail), len(whats)) for w in own]
    start = np.array([max(0, w.start_ns - began_ns) for w in own], np.int64)
    elapsed = np.array([w.elapsed_ns for w in own], np.int64)
    names, stream = _stream_lanes(own)
    threads = len(t.lanes) - t.apart
    shift = np.array([i if i < threads else i + len(names) for i in range(len(t.lanes))], np.int64)
    lanes = (*t.lanes[:threads], *names, *t.lanes[threads:])
    launches = _launches(t, [None if w.launched_ns is None else w.launched_ns - began_ns for w in own], start)
    added = ordered(
        tuple(whats), np.concatenate([t.what, np.array(what, np.int64)]), np.concatenate([t.start_ns, start]),
        np.concatenate([t.elapsed_ns, elapsed]), np.concatenate([shift[t.lane] if len(t) else t.lane, stream + threads]),
        lanes, max(t.elapsed_total_ns, int((start + elapsed).max())), after=t.after,
        launches=[(call, len(t) + work) for call, work in launches],
    )  # fmt: skip
    samples = None if t.samples is None else replace(t.samples, lane=shift[t.samples.lane])
    columns = {name: getattr(added, name) for name in ("whats", "what", "start_ns", "elapsed_ns", "lane", "lanes")}
    ends = {name: getattr(added, name) for name in ("elapsed_total_ns", "after", "launches")}
    return replace(t, **columns, **ends, samples=samples)


def _stream_lanes(works: Sequence[Work]) -> tuple[list[str], Column]:
    """Return the lanes of streams and the one of each work; work that begins before another of its stream ended is beside it."""
    ends: dict[tuple[str, int, int], int] = {}
    keys = []
    for w in works:
        place = 0
        while ends.get((w.device, w.stream, place), 0) > w.start_ns:
            place += 1
        keys.append((w.device, w.stream, place))
        ends[keys[-1]] = w.start_ns + w.elapsed_ns
    number = {key: i for i, key in enumerate(sorted(ends))}
    names = [f"{device} stream {stream}" + (f", beside {place}" if place else "") for device, stream, place in number]
    return names, np.array([number[key] for key in keys], np.int64)


def _launches(t: Timeline, launched: Sequence[int | None], start: Column) -> list[tuple[int, int]]:
    """Return pairs (row of a call, index of work): the innermost call of the one thread that was in one at the launch."""
    inside = t.kind(*CALLS, *PARTS)
    by_lane = [np.flatnonzero((t.lane == lane) & inside) for lane in np.unique(t.lane)]
    out = []
    for index, time in enumerate(launched):
        if time is None or time > start[index]:
            continue
        calls = [row for rows in by_lane if (row := _innermost(t, rows, time)) is not None]
        if len(calls) == 1:  # of several threads it is not known which one launched it
            out.append((calls[0], index))
    return out


def _innermost(t: Timeline, rows: Column, time: int) -> int | None:
    last = int(np.searchsorted(t.start_ns[rows], time, side="right")) - 1
    for i in range(last, max(-1, last - NESTED), -1):
        if t.end_ns[rows[i]] >= time:
            return int(rows[i])
    return None
