"""Strict validation of Chrome traces, speedscope files and folded stacks; every fault has its position.

Stricter than the viewers, which draw what they can: spans of a thread must nest, times must not decrease, and every
thread must have a name. Speedscope's rules are those of its published schema
(https://www.speedscope.app/file-format-schema.json) and the requirements of its description.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from tritium import escape
from tritium.errors import FormatError
from tritium.machine import files
from tritium.perf.records import json_io as records
from tritium.see.trace.speedscope import SCHEMA

MOST = 100  # faults that are listed
PHASES = "MXCsf"
NAMED = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}
UNITS = ("none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes")
FOLDED = re.compile(r"(?P<stack>\S.*?) (?P<first>\d+)(?: (?P<second>\d+))?")

Place = tuple[int, int]  # pid, tid
Events = list[tuple[int, dict[str, Any]]]  # index in the trace, and the event
Faults = Iterator[str]


class Checked(NamedTuple):
    """The kind of a file and its faults; a file without faults is valid."""

    kind: str  # "chrome trace", "speedscope", "folded stacks"
    faults: tuple[str, ...]
    spans: int  # number of the items named by `counted`
    counted: str = "span"  # "sample" in a file that has only samples, "line" of folded stacks


def check(path: str | os.PathLike[str]) -> Checked:
    """Read a file, detect its format, and check it; FormatError if it is none of the three."""
    where = files.named(path)
    content = files.decoded(files.unpacked(files.read_bytes(path), files.MAX_BYTES, where), where)
    if not content.lstrip().startswith(("{", "[")):
        return Checked("folded stacks", _limit(folded(content)), len(content.splitlines()), "line")
    data = records.loads(content, where)
    if isinstance(data, dict) and data.get("$schema") == SCHEMA:
        return Checked("speedscope", _limit(speedscope(data)), *_counts(_list(data.get("profiles"))))
    if isinstance(data, dict) and "traceEvents" in data:
        events = _list(data["traceEvents"])
        return Checked(
            "chrome trace", _limit(chrome(data)), sum(isinstance(e, dict) and e.get("ph") == "X" for e in events)
        )
    raise FormatError(f"{where}: neither a Chrome trace (an object with traceEvents) nor a speedscope file ($schema).")


def _counts(profiles: list[Any]) -> tuple[int, str]:
    """Return the number of spans, or of samples in a file without spans, and which of them it is."""
    each = [p for p in profiles if isinstance(p, dict)]
    opened = sum(isinstance(e, dict) and e.get("type") == "O" for p in each for e in _list(p.get("events")))
    samples = sum(len(_list(p.get("samples"))) for p in each)
    return (samples, "sample") if samples and not opened else (opened, "span")


def _limit(faults: Faults) -> tuple[str, ...]:
    listed = tuple(islice(faults, MOST + 1))
    return listed if len(listed) <= MOST else (*listed[:MOST], "… and more")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    """Return True for text without lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


Rule = tuple[Callable[[Any], bool], str]
NUMBER: Rule = (_is_number, "a finite number")
WHOLE: Rule = (_is_whole, "a whole number")
TEXT: Rule = (_is_text, "text")
OBJECT: Rule = (lambda v: isinstance(v, dict), "an object")
LIST: Rule = (lambda v: isinstance(v, list), "a list")


def _check_fields(where: str, value: Any, needed: dict[str, Rule], allowed: dict[str, Rule] | None = None) -> Faults:
    """Yield the fields of an object that are missing or of the wrong type."""
    if not isinstance(value, dict):
        yield f"{where}: an object is needed"
        return
    for key, (fits, words) in needed.items():
        if key not in value:
            yield f"{where}: {key} is missing"
        elif not fits(value[key]):
            yield f"{where}.{key}: {words} is needed"
    for key, (fits, words) in (allowed or {}).items():
        if key in value and not fits(value[key]):
            yield f"{where}.{key}: {words} is needed"


# ---- Chrome traces

FIELDS: dict[str, dict[str, Rule]] = {
    "M": {"name": TEXT, "pid": WHOLE, "args": OBJECT},
    "X": {"name": TEXT, "pid": WHOLE, "tid": WHOLE, "ts": NUMBER, "dur": NUMBER},
    "C": {"name": TEXT, "pid": WHOLE, "ts": NUMBER, "args": OBJECT},
    "s": {"name": TEXT, "cat": TEXT, "id": WHOLE, "pid": WHOLE, "tid": WHOLE, "ts": NUMBER},
    "f": {"name": TEXT, "cat": TEXT, "id": WHOLE, "pid": WHOLE, "tid": WHOLE, "ts": NUMBER, "bp": TEXT},
}
OPTIONAL: dict[str, Rule] = {"cat": TEXT, "tid": WHOLE, "args": OBJECT}


def chrome(data: Any) -> Faults:
    """Yield the faults of a Chrome trace, passed as parsed JSON."""
    yield from _check_fields("the trace", data, {"traceEvents": LIST}, {"otherData": OBJECT})
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        return
    if data.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        yield "the trace.displayTimeUnit: ms or ns is needed"
    good: dict[str, Events] = {phase: [] for phase in PHASES}
    for i, event in enumerate(data["traceEvents"]):
        phase = event.get("ph") if isinstance(event, dict) else None
        if not isinstance(phase, str) or phase not in good:
            yield f"traceEvents[{i}].ph: one of {', '.join(PHASES)} is needed"
            continue
        faults = list(_check_fields(f"traceEvents[{i}]", event, FIELDS[phase], OPTIONAL))
        yield from faults
        if not faults:
            good[phase].append((i, event))
    yield from _check_nesting(good["X"])
    yield from _check_names(good["M"], good["X"])
    yield from _check_counters(good["C"])
    yield from _check_arrows(good["s"], good["f"], good["X"])


def _ns(us: float) -> int:
    """Return a time in whole ns: sums of µs as floats would not compare exactly."""
    return round(us * 1000)


def _check_nesting(spans: Events) -> Faults:
    """Check on every thread that times do not decrease, and that a span that begins inside another ends inside it."""
    open_: dict[Place, list[int]] = {}
    last: dict[Place, int] = {}
    for i, event in spans:
        place = (event["pid"], event["tid"])
        start, length = _ns(event["ts"]), _ns(event["dur"])
        if start < 0 or length < 0:
            yield f"traceEvents[{i}]: ts and dur must not be negative"
            continue
        if start < last.get(place, 0):
            yield f"traceEvents[{i}].ts: earlier than the span before it on thread {place[1]}"
            continue
        last[place] = start
        ends = open_.setdefault(place, [])
        while ends and ends[-1] <= start:
            ends.pop()
        if ends and start + length > ends[-1]:
            yield f"traceEvents[{i}]: ends {start + length - ends[-1]} ns after the span it began in, on thread {place[1]}"
            continue
        ends.append(start + length)


def _check_names(metadata: Events, spans: Events) -> Faults:
    """Check that metadata is well-formed, and that every process and thread with spans has a name."""
    threads: set[Place] = set()
    processes: set[int] = set()
    for i, event in metadata:
        key = NAMED.get(event["name"])
        if key is None:
            yield f"traceEvents[{i}].name: one of {', '.join(NAMED)} is needed"
        elif not (_is_text if key == "name" else _is_whole)(event["args"].get(key)):
            yield f"traceEvents[{i}].args.{key}: {'text' if key == 'name' else 'a whole number'} is needed"
        elif event["name"] == "process_name":
            processes.add(event["pid"])
        elif event["name"] == "thread_name":
            threads.add((event["pid"], event.get("tid", 0)))
    used = {(event["pid"], event["tid"]) for _, event in spans}
    for pid, tid in sorted(used - threads):
        yield f"thread {tid} of process {pid} has spans and no thread_name"
    for pid in sorted({pid for pid, _ in used} - processes):
        yield f"process {pid} has spans and no process_name"


def _check_counters(counters: Events) -> Faults:
    last: dict[tuple[int, str], int] = {}
    for i, event in counters:
        if not event["args"] or not all(map(_is_number, event["args"].values())):
            yield f"traceEvents[{i}].args: a counter needs numbers, at least one"
        key, time = (event["pid"], event["name"]), _ns(event["ts"])
        if time < last.get(key, 0):
            yield f"traceEvents[{i}].ts: earlier than the value before it, or negative"
        last[key] = time


def _check_arrows(starts: Events, ends: Events, spans: Events) -> Faults:
    """Check that every arrow has two ends, each at the start of a span, and does not point back in time."""
    tails: dict[tuple[str, int], int] = {}
    begins = {(e["pid"], e["tid"], _ns(e["ts"])) for _, e in spans} if starts or ends else set()
    for i, event in (*starts, *ends):
        if (event["pid"], event["tid"], _ns(event["ts"])) not in begins:
            yield f"traceEvents[{i}]: an arrow must begin or end where a span begins"
    for i, event in starts:
        key = (event["cat"], event["id"])
        if key in tails:
            yield f"traceEvents[{i}].id: another arrow has it too"
        tails[key] = _ns(event["ts"])
    for i, event in ends:
        start = tails.pop((event["cat"], event["id"]), None)
        if start is None:
            yield f"traceEvents[{i}].id: no arrow began with it"
        elif _ns(event["ts"]) < start:
            yield f"traceEvents[{i}].ts: an arrow points back in time"
    yield from (f"arrow {number} of {escape.visible(cat)} ends nowhere" for cat, number in sorted(tails))


# ---- speedscope

PROFILE: dict[str, Rule] = {"type": TEXT, "name": TEXT, "unit": TEXT, "startValue": NUMBER, "endValue": NUMBER}
LISTS = {"evented": ("events",), "sampled": ("samples", "weights")}


def speedscope(data: Any) -> Faults:
    """Yield the faults of a speedscope file, passed as parsed JSON."""
    top: dict[str, Rule] = {"$schema": (lambda v: v == SCHEMA, SCHEMA), "shared": OBJECT, "profiles": LIST}
    faults = list(_check_fields("the file", data, top, {"name": TEXT, "exporter": TEXT, "activeProfileIndex": WHOLE}))
    yield from faults
    if faults:
        return
    yield from _check_fields("shared", data["shared"], {"frames": LIST})
    frames = _list(data["shared"].get("frames"))
    for i, frame in enumerate(frames):
        yield from _check_fields(
            f"shared.frames[{i}]", frame, {"name": TEXT}, {"file": TEXT, "line": NUMBER, "col": NUMBER}
        )
    if not data["profiles"]:
        yield "the file.profiles: at least one is needed"
    elif not 0 <= data.get("activeProfileIndex", 0) < len(data["profiles"]):
        yield "the file.activeProfileIndex: there is no such profile"
    for i, profile in enumerate(data["profiles"]):
        yield from _check_profile(f"profiles[{i}]", profile, len(frames))


def _check_profile(where: str, profile: Any, frames: int) -> Faults:
    faults = list(_check_fields(where, profile, PROFILE))
    if not faults and profile["type"] not in LISTS:
        faults.append(f"{where}.type: evented or sampled is needed")
    if not faults:
        faults += _check_fields(where, profile, dict.fromkeys(LISTS[profile["type"]], LIST))
        if profile["unit"] not in UNITS:
            faults.append(f"{where}.unit: one of {', '.join(UNITS)} is needed")
        if profile["endValue"] < profile["startValue"]:
            faults.append(f"{where}.endValue: smaller than startValue")
    yield from faults
    if not faults:
        yield from (_check_evented if profile["type"] == "evented" else _check_sampled)(where, profile, frames)


def _is_index(value: Any, count: int) -> bool:
    return _is_whole(value) and 0 <= value < count


def _check_evented(where: str, profile: dict[str, Any], frames: int) -> Faults:
    """Check that frames are opened and closed in order, at times that do not decrease and are inside the profile."""
    last, open_ = profile["startValue"], []
    for i, event in enumerate(profile["events"]):
        place = f"{where}.events[{i}]"
        faults = list(_check_fields(place, event, {"type": TEXT, "at": NUMBER, "frame": NUMBER}))
        yield from faults
        if faults:
            continue
        if not _is_index(event["frame"], frames):
            yield f"{place}.frame: there is no such frame"
        if not last <= event["at"] <= profile["endValue"]:
            yield f"{place}.at: earlier than the event before it, or outside the profile"
        last = max(last, event["at"])
        if event["type"] == "O":
            open_.append(event["frame"])
        elif event["type"] != "C":
            yield f"{place}.type: O or C is needed"
        elif not open_ or open_.pop() != event["frame"]:
            yield f"{place}: closes a frame that is not the one opened last"
    if open_:
        yield f"{where}.events: {len(open_)} frames are never closed"


def _check_sampled(where: str, profile: dict[str, Any], frames: int) -> Faults:
    """Check that there are as many weights as samples, none negative, and that all frames exist."""
    if len(profile["samples"]) != len(profile["weights"]):
        yield f"{where}.weights: as many are needed as there are samples"
    for i, stack in enumerate(profile["samples"]):
        if not isinstance(stack, list) or not all(_is_index(f, frames) for f in stack):
            yield f"{where}.samples[{i}]: a list of frames there are is needed"
    for i, weight in enumerate(profile["weights"]):
        if not _is_number(weight) or weight < 0:
            yield f"{where}.weights[{i}]: a finite number, not negative, is needed"


# ---- folded stacks


def folded(content: str) -> Faults:
    """Yield the faults of folded stacks: lines of a stack, a space and one or two numbers; no frame without a name."""
    columns: set[bool] = set()
    for i, line in enumerate(content.removesuffix("\n").split("\n") if content else (), 1):
        match = FOLDED.fullmatch(line)
        if match is None or not all(match["stack"].split(";")):
            yield f"line {i}: a;b;c and one number, or two, are needed"
        else:
            columns.add(match["second"] is not None)
    if len(columns) > 1:
        yield "some lines have one number, others two"
