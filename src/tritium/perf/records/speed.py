"""A table of measured figures as a file: rows of figures with intervals, the machine, versions and the command that made it.

docs/results/NAME.json holds one such table; `bench/results.py` writes them, `bench/speed.py` fills docs/speed.md with
them, and `tritium reproduce` runs their commands again.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tritium.errors import FormatError
from tritium.machine import files
from tritium.perf.records import json_io

SCHEMA = 1
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SCRIPT = re.compile(r"bench/[a-z0-9_]+\.py")
MEASURED = "raw samples"
PRINTED = "from the printed table of the run; no raw samples"


@dataclass(frozen=True)
class Figure:
    """One cell: a median with its interval, and the values it comes from."""

    median: float
    low: float | None = None  # of the interval; None: the interval was not recorded
    high: float | None = None
    samples: tuple[float, ...] = ()
    processes: int | None = None  # fresh processes that measured it

    @property
    def spread(self) -> float | None:
        """Return half of the interval as a share of the median; None where no interval was recorded."""
        if self.low is None or self.high is None:
            return None
        width = self.high - self.low
        return width / (2 * abs(self.median)) if self.median else 0.0 if not width else math.inf


@dataclass(frozen=True)
class Column:
    """The name, unit and meaning of one column of figures."""

    name: str
    unit: str  # "µs", "tokens/s", "×", "%"; "" for a count
    meaning: str
    kind: Literal["value", "ratio"] = "value"  # a ratio compares within one machine
    interval: str = "95 %"  # what low and high are


@dataclass(frozen=True)
class Entry:
    """One row: the labels that name it, and its figures by column; a column may be absent."""

    labels: tuple[str, ...]
    figures: dict[str, Figure]


@dataclass(frozen=True)
class Host:
    """The machine of a run, as far as speed depends on it."""

    cpu: str
    cpus: int | None = None
    usable: int | None = None  # CPUs the process may use
    memory_gib: float | None = None
    system: str = ""
    gpus: tuple[str, ...] = ()
    virtual: str = ""
    load: float | None = None  # of the last minute, when the run ended

    @property
    def text(self) -> str:
        """Return the machine in words."""
        parts = [self.cpu, *self.gpus]
        if self.cpus is not None:
            parts.insert(
                1, f"{self.cpus} CPUs" + (f" ({self.usable} used)" if self.usable not in (None, self.cpus) else "")
            )
        return ", ".join(parts)

    def same(self, other: Host) -> bool:
        """Return True if times of both machines may be compared."""
        return (self.cpu, self.cpus, self.usable, self.gpus) == (other.cpu, other.cpus, other.usable, other.gpus)


@dataclass(frozen=True)
class Need:
    """A requirement of a command, and how to meet it."""

    kind: Literal["module", "gpu", "file"]
    name: str  # of the Python module or of the file
    remedy: str


@dataclass(frozen=True)
class SpeedTable:
    """A whole results file."""

    name: str
    title: str
    recorded: str  # MEASURED, or how the figures came here without raw samples
    date: str  # UTC, ISO 8601; "" where it was not recorded
    command: tuple[str, ...]  # a script of bench/ and its arguments
    minutes: float | None  # how long the run took, roughly
    machine: Host
    versions: dict[str, str]
    labels: tuple[str, ...]  # names of the columns that name a row
    columns: tuple[Column, ...]
    rows: tuple[Entry, ...]
    needs: tuple[Need, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    schema: int = SCHEMA

    def entry(self, labels: tuple[str, ...]) -> Entry | None:
        """Return the row of these labels."""
        return next((row for row in self.rows if row.labels == labels), None)


def load(path: str | os.PathLike[str]) -> SpeedTable:
    """Read a results file; FormatError says what is wrong with it."""
    where = files.named(path)
    data = json_io.loads(files.decoded(files.read_bytes(path), where), where)
    if not isinstance(data, dict):
        raise FormatError(f"{where}: a results file is a JSON object; this is none.")
    json_io.check_schema(data.get("schema"), SCHEMA, where)
    table = json_io.read(SpeedTable, data, where)
    check(table, where)
    return table


def save(table: SpeedTable, path: str | os.PathLike[str]) -> Path:
    """Write a results file, one row a line, so that two runs are easy to compare."""
    check(table, files.named(path))
    document = json_io.plain(table)
    rows = document.pop("rows")
    head = json_io.dumps(document, indent=1).removesuffix("\n}")
    lines = ",\n".join("  " + json_io.dumps(row) for row in rows)
    return files.write_text(path, f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


def check(table: SpeedTable, where: str) -> None:
    """Raise FormatError if parts of a table contradict each other, or its command is no script of bench/."""
    if not NAME.fullmatch(table.name):
        raise FormatError(f"{where}: the name {table.name!r} is not made of small letters, digits and hyphens.")
    if not table.command or not SCRIPT.fullmatch(table.command[0]):
        first = table.command[0] if table.command else "nothing"
        raise FormatError(f"{where}: the command begins with {first!r}; a script is needed, as bench/dense.py.")
    if not table.rows or not table.columns:
        raise FormatError(f"{where}: there are no figures; at least one row and one column are needed.")
    names = [column.name for column in table.columns]
    if len({*names, *table.labels}) < len(names) + len(table.labels):
        raise FormatError(f"{where}: two columns have the same name: {', '.join((*table.labels, *names))}.")
    seen: set[tuple[str, ...]] = set()
    for row in table.rows:
        here = f"{where}, row {' / '.join(row.labels)}"
        if len(row.labels) != len(table.labels):
            raise FormatError(f"{here}: {len(row.labels)} labels; {len(table.labels)} are needed.")
        if row.labels in seen:
            raise FormatError(f"{here}: there are two rows with these labels; every row needs labels of its own.")
        seen.add(row.labels)
        if unknown := sorted(set(row.figures) - set(names)):
            raise FormatError(f"{here}: figures of {', '.join(unknown)}; the columns are {', '.join(names)}.")
        for name, figure in row.figures.items():
            _check_figure(figure, f"{here}, {name}")


def _check_figure(figure: Figure, where: str) -> None:
    if (figure.low is None) != (figure.high is None):
        raise FormatError(f"{where}: an interval needs both of its ends.")
    if figure.low is not None and figure.high is not None and not figure.low <= figure.median <= figure.high:
        raise FormatError(f"{where}: {figure.median} is outside of its interval {figure.low} … {figure.high}.")
