"""A memory record in a file: kept as JSON, read back strictly, its events as CSV.

Knows nothing of how it was heard.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tritium import escape
from tritium.errors import ArgumentError, FormatError, SaveError
from tritium.machine.facts import digest
from tritium.perf.files import MAX_BYTES, decoded, named, read_bytes, write_bytes, write_text
from tritium.perf.records.json_io import check_schema, dumps, loads, plain, read
from tritium.see.memory import page
from tritium.see.memory.records import Event, Record

SCHEMA = 1


@dataclass(frozen=True)
class Memory(Record):
    """What a memory tracker saw, kept by `save` and read back by `load`."""

    def report(self, top: int = 10) -> str:
        """A page for a terminal."""
        return page.text(self, top)


# ---- files


def as_dict(memory: Memory) -> dict[str, Any]:
    """All of it as JSON has it."""
    return dict(plain(memory))


def save(memory: Memory, path: str | os.PathLike[str]) -> Path:
    """Write it as JSON with the hash of its content, one event to a line."""
    body = as_dict(memory)
    raw = _text(body).encode("utf-8", "backslashreplace")
    if len(raw) > MAX_BYTES:
        raise SaveError(
            f"{named(path)}: not saved: {len(raw) >> 20} MiB, and at most {MAX_BYTES >> 20} MiB are read back. Track with a smaller "
            f"capacity= (the log has {len(memory.events)} events), or write the events alone: a name that ends in .csv."
        )
    _loaded(raw, "this memory record")  # nothing is written that could not be read
    return write_bytes(path, raw)


def save_events(memory: Memory, path: str | os.PathLike[str]) -> Path:
    """Write the events alone, as CSV."""
    return write_text(path, events_csv(memory.events))


WRITERS = {".json": save, ".csv": save_events}  # by suffix


def writer(path: str | os.PathLike[str]) -> Callable[[Memory, str | os.PathLike[str]], Path]:
    """What writes a file of such a name; ArgumentError where nothing does."""
    found = WRITERS.get(Path(path).suffix)
    if found is None:
        raise ArgumentError(f"{named(path)}: the suffix tells no format; there are {', '.join(WRITERS)}.")
    return found


def load(path: str | os.PathLike[str]) -> Memory:
    """Read what `save` wrote, or say what is wrong with the file."""
    return _loaded(read_bytes(path), named(path))


def _text(body: dict[str, Any]) -> str:
    head = ",\n".join(f"{dumps(k)}: {dumps(v)}" for k, v in body.items() if k != "events")
    events = ",\n".join(dumps(e) for e in body["events"])
    sha = digest(body)
    return f'{{"schema": {SCHEMA}, "sha256": "{sha}", "memory": {{\n{head},\n"events": [\n{events}\n]}}}}\n'


def _loaded(raw: bytes, where: str) -> Memory:
    found = loads(decoded(raw, where), where)
    if not isinstance(found, dict) or not isinstance(found.get("memory"), dict):
        raise FormatError(f'{where}: no memory record: an object with "schema", "sha256" and "memory" is needed.')
    check_schema(found.get("schema"), SCHEMA, where)
    if unknown := sorted(set(found) - {"schema", "sha256", "memory"}):
        raise FormatError(f"{where}: unknown key {unknown[0]!r} beside schema, sha256 and memory.")
    if found.get("sha256") != digest(found["memory"]):
        raise FormatError(f"{where}: damaged, or changed by hand: its content is not what its sha256 stands for.")
    return read(Memory, found["memory"], where)


COLUMNS = tuple(f.name for f in fields(Event))


def events_csv(events: Iterable[Event]) -> str:
    """One line an event; no cell is taken for a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for e in events:
        values = (getattr(e, name) for name in COLUMNS)
        writer.writerow([escape.csv(v) if isinstance(v, str) else int(v) for v in values])
    return out.getvalue()
