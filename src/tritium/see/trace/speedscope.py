"""Export of a timeline as a speedscope file (https://www.speedscope.app): an evented profile per track, sampled ones for stacks.

Times are whole ns. Beyond the cap the spans that began last are left out, and the file's name says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tritium import escape
from tritium.escape import json_text
from tritium.machine import files
from tritium.see.trace import tracks
from tritium.see.trace.timeline import Column, Samples, Timeline
from tritium.see.trace.tracks import CAP_BYTES, Mask

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
CHUNK = 16384  # events rendered at a time
PLACE = re.compile(r"(?P<name>.*) \((?P<file>.*):(?P<line>\d{1,9})\)", re.DOTALL)  # a Python frame


def write(t: Timeline, path: str | os.PathLike[str], cap_bytes: int = CAP_BYTES) -> Path:
    """Write the file, gzipped if its name ends with .gz."""
    return files.write_chunks(path, chunks(t, cap_bytes))


def chunks(t: Timeline, cap_bytes: int = CAP_BYTES) -> Iterator[str]:
    """Yield the file in chunks."""
    known: dict[str, int] = {}
    frame = np.array([known.setdefault(w.name, len(known)) for w in t.whats], np.int64)
    frames = [f'{{"name":{json_text(name)}}}' for name in known]
    selected = _select(t, cap_bytes)
    left_out = len(t) - int(selected.sum())
    title = escape.visible(t.name or "profile") + (
        f" (the last {left_out} of {len(t)} spans are left out)" if left_out else ""
    )
    yield f'{{"$schema":"{SCHEMA}","exporter":"tritium","name":{json_text(title, None)},"activeProfileIndex":0,\n"profiles":[\n'
    any_profile = False
    for piece in _evented(t, frame, selected):
        any_profile = True
        yield piece
    if t.samples is not None and len(t.samples.at_ns):
        yield from _sampled(t, t.samples, len(frames), not any_profile)
        frames += [_python_frame(name) for name in t.samples.frames]
        any_profile = True
    if not any_profile:  # speedscope shows nothing of a file without a profile, not even its name
        yield _evented_head(t, t.name or "profile") + "]}"
    yield f'\n],\n"shared":{{"frames":[{",".join(frames)}]}}}}\n'


def _select(t: Timeline, cap_bytes: int) -> Mask:
    most = 2 * (len('{"type":"O","frame":,"at":},\n') + len(str(len(t.whats))) + len(str(_bounds(t)[1])))
    return tracks.earliest(t.start_ns, np.full(len(t), most, np.int64), max(0, cap_bytes - 200 * len(t.whats)))


def _bounds(t: Timeline) -> tuple[int, int]:
    """Return the start and end of the profile, between which all spans and samples are."""
    starts, ends = [0], [t.elapsed_total_ns]
    if len(t):
        starts.append(int(t.start_ns.min()))
        ends.append(int(t.end_ns.max()))
    return min(starts), max(ends)


def _evented_head(t: Timeline, name: str) -> str:
    start, end = _bounds(t)
    return (
        f'{{"type":"evented","name":{json_text(name)},"unit":"nanoseconds","startValue":{start},"endValue":{end},'
        '"events":[\n'
    )


def _evented(t: Timeline, frame: Column, selected: Mask) -> Iterator[str]:
    """Yield one profile for every track with spans: balanced open and close events, in order of time."""
    track, named = tracks.tracks(t)
    before = ""
    for i in np.unique(track[selected]).tolist():
        rows = np.flatnonzero(selected & (track == i))
        yield before + _evented_head(t, named[i])
        yield from _events(t.start_ns[rows], t.end_ns[rows], frame[t.what[rows]])
        yield "\n]}"
        before = ",\n"


def _events(starts: Column, ends: Column, frames: Column) -> Iterator[str]:
    open_: list[tuple[int, int]] = []
    out: list[str] = []
    comma = ""
    for start, end, frame in zip(starts.tolist(), ends.tolist(), frames.tolist(), strict=True):
        while open_ and open_[-1][0] <= start:
            time, closed = open_.pop()
            out.append(f'{{"type":"C","frame":{closed},"at":{time}}}')
        out.append(f'{{"type":"O","frame":{frame},"at":{start}}}')
        open_.append((end, frame))
        if len(out) >= CHUNK:
            yield comma + ",\n".join(out)
            out, comma = [], ",\n"
    out += [f'{{"type":"C","frame":{closed},"at":{time}}}' for time, closed in reversed(open_)]
    yield comma + ",\n".join(out)


def _sampled(t: Timeline, samples: Samples, first_frame: int, first: bool) -> Iterator[str]:
    """Yield one sampled profile for every lane with Python stacks."""
    before = "" if first else ",\n"
    for lane in np.unique(samples.lane).tolist():
        rows = np.flatnonzero(samples.lane == lane)
        stacks = [tuple(first_frame + f for f in samples.stacks[s]) for s in samples.stack[rows].tolist()]
        yield before + _sampled_profile(f"{t.lanes[lane]}: Python stacks", stacks, samples.weight_ns[rows])
        before = ",\n"


def _sampled_profile(name: str, stacks: list[tuple[int, ...]], weight_ns: Column) -> str:
    listed = ",".join("[" + ",".join(map(str, stack)) + "]" for stack in stacks)
    weights = ",".join(map(str, weight_ns.tolist()))
    return (
        f'{{"type":"sampled","name":{json_text(name)},"unit":"nanoseconds","startValue":0,'
        f'"endValue":{int(weight_ns.sum())},"samples":[{listed}],"weights":[{weights}]}}'
    )


def _python_frame(name: str) -> str:
    match = PLACE.fullmatch(name)
    if match is None:
        return f'{{"name":{json_text(name)}}}'
    return f'{{"name":{json_text(match["name"])},"file":{json_text(match["file"])},"line":{int(match["line"])}}}'
