"""Profile files: JSON, gzipped where the name ends in .gz; read strictly, written deterministically.

The reader trusts nothing: every column is checked for its length, type and range before it is used, and compressed
files are decompressed only up to a limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import FormatError, SaveError
from tritium.machine import files
from tritium.perf.records.environment import Environment
from tritium.perf.records.json_io import check_schema, dumps, loads, plain, read
from tritium.see.trace.timeline import Column, Counter, Floats, Samples, Timeline, What

SCHEMA = 1  # a reader refuses a higher one
KIND = "tritium profile"
MAX_BYTES = 512 << 20  # of the decompressed text
MAX_NS = 1 << 62
SPANS = ("what", "start_ns", "elapsed_ns", "lane")


@dataclass(frozen=True)
class Header:
    """All of a timeline except its columns; the file's "about"."""

    whats: tuple[What, ...]
    lanes: tuple[str, ...]
    elapsed_total_ns: int
    began: str
    name: str
    dropped: int
    event_cost_ns: float | None
    environment: Environment | None
    notes: tuple[str, ...]
    apart: int = 0
    scope_cost_ns: float | None = None
    after: tuple[tuple[int, int], ...] = ()
    began_ns: int = 0
    launches: tuple[tuple[int, int], ...] = ()


# ---- writing


def dump(t: Timeline) -> str:
    """Return the text of a profile: one column to a line."""
    if t.samples is not None and t.samples.process is not None:
        raise SaveError("profiles of several processes are not saved as one; keep their files and show them together.")
    # As it will be read back: an integer in a float field would become other bytes the second time.
    environment = None if t.environment is None else read(Environment, plain(t.environment), "environment")
    header = Header(
        t.whats, t.lanes, t.elapsed_total_ns, t.began, t.name, t.dropped, t.event_cost_ns, environment, t.notes, t.apart,
        t.scope_cost_ns, t.after, t.began_ns, t.launches,
    )  # fmt: skip
    parts = [
        f'"schema": {SCHEMA}',
        f'"kind": "{KIND}"',
        f'"about": {dumps(header)}',
        f'"spans": {_columns({name: getattr(t, name) for name in SPANS})}',
        f'"counters": [{",".join(_counter(c) for c in t.counters)}]',
        f'"samples": {"null" if t.samples is None else _samples(t.samples)}',
    ]
    return "{" + ",\n".join(parts) + "}\n"


def _columns(columns: dict[str, Any]) -> str:
    each = (f"{json.dumps(name)}: {json.dumps(values.tolist(), allow_nan=False)}" for name, values in columns.items())
    return "{" + ",\n".join(each) + "}"


def _counter(c: Counter) -> str:
    head = json.dumps(plain({"name": c.name, "unit": c.unit, "absent": c.absent}), ensure_ascii=False)
    return f"{head[:-1]}, {_columns({'at_ns': c.at_ns, 'values': c.values})[1:]}"


def _samples(s: Samples) -> str:
    head = json.dumps({"frames": s.frames, "stacks": s.stacks, "every_ns": s.every_ns}, ensure_ascii=False)
    return f"{head[:-1]}, {_columns({'at_ns': s.at_ns, 'lane': s.lane, 'stack': s.stack})[1:]}"


def save(t: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write a profile; a name that ends in .gz compresses it."""
    text = dump(t)
    size = len(text.encode("utf-8", "backslashreplace"))
    if size > MAX_BYTES:
        raise SaveError(
            f"{files.named(path)}: not saved: {size >> 20} MiB of text, and at most {MAX_BYTES >> 20} MiB are read back. Record with a "
            f"smaller capacity= (it has {len(t.what)} spans), or a limit=."
        )
    return files.write_chunks(path, [text])


# ---- reading


def load(path: str | os.PathLike[str]) -> Timeline:
    """Read a profile, or raise FormatError saying what is wrong with the file."""
    where = files.named(path)
    try:
        raw = files.read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        raise FormatError(
            f"{where}: there is no such file; p.save(path) and `tritium profile` write profiles."
        ) from None
    return parse(files.unpacked(raw, MAX_BYTES, where), where)


def parse(raw: bytes, where: str) -> Timeline:
    """Return the timeline in the text of a file, every part of it checked."""
    data = loads(files.decoded(raw, where), where)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise FormatError(f'{where}: not a profile of tritium: an object with "kind": "{KIND}" is needed.')
    check_schema(data.get("schema"), SCHEMA, where)
    _check_keys(data, ("schema", "kind", "about", "spans", "counters", "samples"), where)
    header = read(Header, data["about"], f"{where}: about")
    _check_header(header, where)
    spans = _read_spans(data["spans"], header, f"{where}: spans")
    if not isinstance(data["counters"], list):
        raise FormatError(f"{where}: counters: an array is needed.")
    counters = tuple(_read_counter(c, f"{where}: counters[{i}]") for i, c in enumerate(data["counters"]))
    samples = data["samples"]
    _check_after(header, spans, where)
    return Timeline(
        header.whats, *spans, header.lanes, header.elapsed_total_ns, header.began, header.name, counters,
        None if samples is None else _read_samples(samples, len(header.lanes), f"{where}: samples"), header.dropped,
        header.event_cost_ns, header.environment, header.notes, header.apart,
        header.scope_cost_ns, header.after, header.began_ns, header.launches,
    )  # fmt: skip


def _check_header(header: Header, where: str) -> None:
    """Raise FormatError for a number out of range."""
    counts = [(name, getattr(header, name)) for name in ("elapsed_total_ns", "dropped", "began_ns")]
    counts += [
        (f"whats[{i}].{f}", getattr(w, f)) for i, w in enumerate(header.whats) for f in ("flops", "read", "written")
    ]
    for name, value in counts:
        if not 0 <= value < MAX_NS:
            raise FormatError(f"{where}: about.{name}: a whole number from 0 to 2^62 is needed, given {value}.")
    if not 0 <= header.apart <= len(header.lanes):
        raise FormatError(f"{where}: about.apart: {header.apart} of {len(header.lanes)} lanes cannot be.")
    for name in ("event_cost_ns", "scope_cost_ns"):
        if (cost := getattr(header, name)) is not None and cost < 0:
            raise FormatError(f"{where}: about.{name}: {cost} is below 0.")


def _check_after(header: Header, spans: Sequence[Column], where: str) -> None:
    """Raise FormatError unless a handover is from a span to one that began when it had ended, and a launch to a later one."""
    _, start, elapsed, _ = spans
    for i, (early, late) in enumerate(header.after):
        known = 0 <= early < len(start) and 0 <= late < len(start)
        if not known or start[early] + elapsed[early] > start[late]:
            raise FormatError(f"{where}: about.after[{i}]: span {late} cannot have waited for span {early}.")
    for i, (call, work) in enumerate(header.launches):
        known = 0 <= call < len(start) and 0 <= work < len(start)
        if not known or start[call] > start[work]:
            raise FormatError(f"{where}: about.launches[{i}]: span {call} cannot have launched span {work}.")


def _check_keys(data: Any, needed: tuple[str, ...], where: str) -> None:
    """Raise FormatError unless data is an object with exactly these keys."""
    if not isinstance(data, dict):
        raise FormatError(f"{where}: an object is needed.")
    if set(data) != set(needed):
        wrong = sorted(set(data) ^ set(needed))[0]
        raise FormatError(
            f"{where}: {wrong!r} is {'unknown' if wrong in data else 'missing'}; it has {', '.join(needed)}."
        )


def _read_integers(data: Any, where: str, below: int = MAX_NS) -> Column:
    """Return a column of integers from 0 up to a limit."""
    if not isinstance(data, list) or not all(type(v) is int for v in data):
        raise FormatError(f"{where}: an array of whole numbers is needed.")
    if data and not 0 <= min(data) <= max(data) < below:
        raise FormatError(f"{where}: numbers from 0 to {below - 1} are needed, given {min(data)} to {max(data)}.")
    return np.array(data, np.int64)


def _check_lengths(columns: dict[str, Any], where: str) -> None:
    """Raise FormatError unless all columns have the same length."""
    lengths = {name: len(c) for name, c in columns.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise FormatError(f"{where}: the columns must have the same length: {sizes}.")


def _read_spans(data: Any, header: Header, where: str) -> tuple[Column, Column, Column, Column]:
    _check_keys(data, SPANS, where)
    limits = {"what": len(header.whats), "lane": len(header.lanes)}
    columns = {name: _read_integers(data[name], f"{where}.{name}", limits.get(name, MAX_NS)) for name in SPANS}
    _check_lengths(columns, where)
    what, start, elapsed, lane = columns.values()
    if len(start):
        if int(start.max()) + int(elapsed.max()) >= MAX_NS:
            raise FormatError(f"{where}: a span ends after more than 2^62 ns.")
        order = np.lexsort((-elapsed, start, lane))
        if not all((c[order] == c).all() for c in (lane, start, elapsed)):
            raise FormatError(f"{where}: spans must be ordered by lane, then start, then the longer first.")
    return what, start, elapsed, lane


def _read_counter(data: Any, where: str) -> Counter:
    _check_keys(data, ("name", "unit", "absent", "at_ns", "values"), where)
    texts = [read(str, data[key], f"{where}.{key}") for key in ("name", "unit", "absent")]
    times, values = _read_integers(data["at_ns"], f"{where}.at_ns"), _read_floats(data["values"], f"{where}.values")
    _check_lengths({"at_ns": times, "values": values}, where)
    if (np.diff(times) < 0).any():
        raise FormatError(f"{where}.at_ns: times must not decrease.")
    return Counter(texts[0], texts[1], times, values, texts[2])


def _read_floats(data: Any, where: str) -> Floats:
    if not isinstance(data, list) or not all(type(v) is float or type(v) is int for v in data):
        raise FormatError(f"{where}: an array of numbers is needed.")
    values = np.array(data, np.float64)
    if not np.isfinite(values).all():
        raise FormatError(f"{where}: a number is too large.")
    return values


def _read_samples(data: Any, lanes: int, where: str) -> Samples:
    _check_keys(data, ("frames", "stacks", "every_ns", "at_ns", "lane", "stack"), where)
    frames = read(tuple[str, ...], data["frames"], f"{where}.frames")
    stacks = data["stacks"]
    if not isinstance(stacks, list):
        raise FormatError(f"{where}.stacks: an array of arrays is needed.")
    stack_frames = tuple(
        tuple(_read_integers(s, f"{where}.stacks[{i}]", len(frames)).tolist()) for i, s in enumerate(stacks)
    )
    interval_ns = read(int, data["every_ns"], f"{where}.every_ns")
    if not 0 < interval_ns < MAX_NS:
        raise FormatError(f"{where}.every_ns: a whole number above 0 is needed, given {interval_ns}.")
    limits = {"at_ns": MAX_NS, "lane": lanes, "stack": len(stack_frames)}
    columns = {name: _read_integers(data[name], f"{where}.{name}", most) for name, most in limits.items()}
    _check_lengths(columns, where)
    return Samples(frames, stack_frames, columns["at_ns"], columns["lane"], columns["stack"], interval_ns)
