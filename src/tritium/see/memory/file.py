"""Files of memory records: JSON, read back strictly, and the events as CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritium import escape
from tritium.errors import ArgumentError, FormatError, SaveError
from tritium.machine.facts import digest
from tritium.machine.files import MAX_BYTES, decoded, named, read_bytes, write_bytes, write_text
from tritium.perf.records.json_io import check_schema, dumps, loads, plain, read
from tritium.see.memory import page
from tritium.see.memory.records import Event, Record

if TYPE_CHECKING:
    from tritium.see.reports.blocks import Block

SCHEMA = 1


@dataclass(frozen=True)
class Memory(Record):
    """The record of a memory tracker, written by `save` and read by `load`."""

    def report(self, top: int = 10) -> str:
        """Return the report for a terminal."""
        return page.text(self, top)

    def html(self) -> str:
        """Return the page: charts, and all that the report shows; one file that needs no network."""
        from tritium.see.memory import sections

        return sections.html(self)

    def blocks(self) -> tuple[Block, ...]:
        """Return charts and tables as the blocks of a report's section."""
        from tritium.see.memory import sections

        return sections.blocks(self)

    def _repr_html_(self) -> str:
        return page.html(self)


# ---- files


def as_dict(memory: Memory) -> dict[str, Any]:
    """Return the record as JSON content."""
    return dict(plain(memory))


def save(memory: Memory, path: str | os.PathLike[str]) -> Path:
    """Write the record as JSON with the hash of its content, one event per line."""
    body = as_dict(memory)
    raw = _text(body).encode("utf-8", "backslashreplace")
    if len(raw) > MAX_BYTES:
        raise SaveError(
            f"{named(path)}: not saved: {len(raw) >> 20} MiB, and at most {MAX_BYTES >> 20} MiB are read back. Track with a smaller "
            f"capacity= (the log has {len(memory.events)} events), or write the events alone: a name that ends in .csv."
        )
    _parse(raw, "this memory record")  # never write a file that cannot be read back
    return write_bytes(path, raw)


def save_events(memory: Memory, path: str | os.PathLike[str]) -> Path:
    """Write the events alone, as CSV."""
    return write_text(path, events_csv(memory.events))


def save_page(memory: Memory, path: str | os.PathLike[str]) -> Path:
    """Write the page, as HTML."""
    return write_text(path, memory.html())


WRITERS = {".json": save, ".csv": save_events, ".html": save_page}  # by suffix


def writer(path: str | os.PathLike[str]) -> Callable[[Memory, str | os.PathLike[str]], Path]:
    """Return the function that writes a file by its suffix; ArgumentError for an unknown one."""
    function = WRITERS.get(Path(path).suffix)
    if function is None:
        raise ArgumentError(f"{named(path)}: unknown suffix; known are {', '.join(WRITERS)}.")
    return function


def load(path: str | os.PathLike[str]) -> Memory:
    """Read what `save` wrote; FormatError says what is wrong with the file."""
    return _parse(read_bytes(path), named(path))


def _text(body: dict[str, Any]) -> str:
    head = ",\n".join(f"{dumps(k)}: {dumps(v)}" for k, v in body.items() if k != "events")
    events = ",\n".join(dumps(e) for e in body["events"])
    sha = digest(body)
    return f'{{"schema": {SCHEMA}, "sha256": "{sha}", "memory": {{\n{head},\n"events": [\n{events}\n]}}}}\n'


def _parse(raw: bytes, where: str) -> Memory:
    content = loads(decoded(raw, where), where)
    if not isinstance(content, dict) or not isinstance(content.get("memory"), dict):
        raise FormatError(f'{where}: not a memory record: an object with "schema", "sha256" and "memory" is needed.')
    check_schema(content.get("schema"), SCHEMA, where)
    if unknown := sorted(set(content) - {"schema", "sha256", "memory"}):
        raise FormatError(f"{where}: unknown key {unknown[0]!r} beside schema, sha256 and memory.")
    if content.get("sha256") != digest(content["memory"]):
        raise FormatError(f"{where}: damaged, or changed by hand: its content does not match its sha256.")
    return read(Memory, content["memory"], where)


COLUMNS = tuple(f.name for f in fields(Event))


def events_csv(events: Iterable[Event]) -> str:
    """Return one line per event, escaped so that no cell is read as a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for e in events:
        values = (getattr(e, name) for name in COLUMNS)
        writer.writerow([escape.csv(v) if isinstance(v, str) else int(v) for v in values])
    return out.getvalue()
