"""Measurements over time as one table, and its text: JSON, CSV and Prometheus, each read back exactly.

Knows nothing of how they were collected. A value is a number, or `Absent` with the reason; nothing is rounded. Prometheus
text holds the last row, as a scrape does; the other two hold everything.
"""

from __future__ import annotations

import csv as csv_text
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tritium import escape
from tritium.errors import ArgumentError, FormatError, nearest
from tritium.perf import files
from tritium.perf.formats.exports import BASE_UNITS, Family, Sample, exposition
from tritium.perf.meters.absent import Absent
from tritium.perf.records import json_io as records
from tritium.perf.records.case import Context

T = TypeVar("T")
SCHEMA = 1  # a reader refuses a higher one
Value = float | Absent
UNITS = BASE_UNITS | {"%": "percent", "MHz": "megahertz", "1": "", "GFLOP/s": "gflops_per_second"}


@dataclass(frozen=True)
class Column:
    """What is read again and again."""

    name: str  # "rss", "cpu_process" …
    unit: str  # "B", "%", "°C", "W", "s", "1"


class Row(NamedTuple):
    """What all columns said at one moment."""

    at_s: float  # since the table began
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Operation:
    """One operation a program told of itself: how long it took, and what was run."""

    at_s: float
    elapsed_s: float
    context: Context
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Metrics:
    """A table of measurements over time, and the operations told meanwhile."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    began: str = ""  # UTC, ISO 8601
    interval_s: float = 0.0
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()  # what must be known to read it: what collecting cost, what was left out

    def __post_init__(self) -> None:
        known = [c.name for c in self.columns]
        if twice := next((n for n in known if known.count(n) > 1), None):
            raise ArgumentError(f"metrics: two columns are called {twice!r}; give each its own name.")
        wrong = next((r for r in self.rows if len(r.values) != len(known)), None)
        if wrong is not None:
            raise ArgumentError(f"metrics: a row has {len(wrong.values)} values for {len(known)} columns.")
        times = [
            self.interval_s,
            *(r.at_s for r in self.rows),
            *(x for o in self.operations for x in (o.at_s, o.elapsed_s)),
        ]
        if not all(map(math.isfinite, times)) or not all(_known(v) for r in self.rows for v in r.values):
            raise ArgumentError("metrics: a number is infinite or no number; say Absent with the reason instead.")

    def of(self, name: str) -> tuple[Value, ...]:
        """A column over time."""
        known = [c.name for c in self.columns]
        if name not in known:
            raise ArgumentError(
                f"metrics: no column is called {name!r}.{nearest(name, known)} There are {', '.join(known)}."
            )
        at = known.index(name)
        return tuple(row.values[at] for row in self.rows)

    @property
    def last(self) -> dict[str, Value]:
        """The newest row by name; empty before the first."""
        return dict(zip((c.name for c in self.columns), self.rows[-1].values, strict=True)) if self.rows else {}

    def text(self, to: str = "json") -> str:
        """The table in one of FORMATS."""
        return FORMATS[_format(to)].write(self)

    def save(self, path: str | os.PathLike[str], to: str | None = None) -> Path:
        """Write it; the format by the end of the name (.json, .csv, .prom) unless it is given."""
        return files.write_text(path, self.text(to or _by_suffix(path)), parents=True)


def _known(value: Value) -> bool:
    return isinstance(value, Absent) or math.isfinite(value)


def _format(to: str) -> str:
    if to not in FORMATS:
        raise ArgumentError(f"there is no format {to!r}; there are {', '.join(FORMATS)}.{nearest(to, FORMATS)}")
    return to


def _by_suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    found = next((name for name, how in FORMATS.items() if suffix in how.suffixes), None)
    if found is None:
        ends = ", ".join(s for how in FORMATS.values() for s in how.suffixes)
        raise ArgumentError(f"{files.named(path)}: the name must end in one of {ends}, or give to=.")
    return found


# ---- JSON: by columns, absent values as stretches with one reason


@dataclass(frozen=True)
class _Gap:
    """Rows from `start` up to `stop` in which a column has no value."""

    start: int
    stop: int
    why: Absent


@dataclass(frozen=True)
class _Column:
    name: str
    unit: str
    values: tuple[float | None, ...]
    absent: tuple[_Gap, ...]


@dataclass(frozen=True)
class _Table:
    began: str
    interval_s: float
    notes: tuple[str, ...]
    at_s: tuple[float, ...]
    columns: tuple[_Column, ...]
    operations: tuple[Operation, ...]


def json_text(metrics: Metrics) -> str:
    """Everything, one column to a line."""
    columns = [_packed(c, [row.values[i] for row in metrics.rows]) for i, c in enumerate(metrics.columns)]
    head = {
        "began": metrics.began,
        "interval_s": metrics.interval_s,
        "notes": metrics.notes,
        "at_s": [r.at_s for r in metrics.rows],
    }
    lines = [f"{json.dumps(k)}: {_ascii(v)}" for k, v in head.items()]
    listed = {"columns": columns, "operations": metrics.operations}
    lines += [f"{json.dumps(k)}: [\n" + ",\n".join(map(_ascii, v)) + "\n]" for k, v in listed.items()]
    return f'{{"schema": {SCHEMA}, "metrics": {{\n' + ",\n".join(lines) + "\n}}\n"


def _ascii(value: Any) -> str:
    """JSON on one line that no terminal or page obeys."""
    text = json.dumps(records.plain(value), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _packed(column: Column, values: Sequence[Value]) -> _Column:
    gaps, at = [], 0
    for why, stretch in groupby(values, lambda v: v if isinstance(v, Absent) else None):
        stop = at + sum(1 for _ in stretch)
        if isinstance(why, Absent):
            gaps.append(_Gap(at, stop, why))
        at = stop
    plain = tuple(None if isinstance(v, Absent) else float(v) for v in values)
    return _Column(column.name, column.unit, plain, tuple(gaps))


def from_json(text: str, where: str) -> Metrics:
    found = records.loads(text, where)
    if not isinstance(found, dict) or set(found) != {"schema", "metrics"}:
        raise FormatError(f'{where}: not metrics of tritium: an object with "schema" and "metrics" is needed.')
    records.check_schema(found["schema"], SCHEMA, where)
    table = _read(_Table, found["metrics"], where)
    columns = [_unpacked(c, len(table.at_s), where) for c in table.columns]
    values = zip(*columns, strict=True) if columns else iter([()] * len(table.at_s))
    rows = tuple(Row(at, tuple(v)) for at, v in zip(table.at_s, values, strict=True))
    about = tuple(Column(c.name, c.unit) for c in table.columns)
    return _made(where, columns=about, rows=rows, began=table.began, interval_s=table.interval_s,
                 operations=table.operations, notes=table.notes)  # fmt: skip


def _unpacked(column: _Column, rows: int, where: str) -> list[Value]:
    place = f"{where}: column {escape.visible(column.name)}"
    if len(column.values) != rows:
        raise FormatError(f"{place}: {len(column.values)} values for {rows} moments.")
    out: list[Value | None] = list(column.values)
    for gap in column.absent:
        if not 0 <= gap.start < gap.stop <= rows or any(v is not None for v in out[gap.start : gap.stop]):
            raise FormatError(f"{place}: rows {gap.start} to {gap.stop} are said to be absent, and are not.")
        out[gap.start : gap.stop] = [gap.why] * (gap.stop - gap.start)
    if None in out:
        raise FormatError(f"{place}: row {out.index(None)} has neither a value nor a reason.")
    return [v for v in out if v is not None]


def _read(kind: type[T], data: Any, where: str) -> T:
    """A record of a file; a reason of absence that there is not is said of the file."""
    try:
        return records.read(kind, data, where)
    except ArgumentError as error:
        raise FormatError(f"{where}: {error}") from None


def _made(where: str, **parts: Any) -> Metrics:
    """A table of what a file holds; what cannot be one is said of the file."""
    try:
        return Metrics(**parts)
    except ArgumentError as error:
        raise FormatError(f"{where}: {error}") from None


# ---- CSV: a line for what the table is, for each column and note, then for each row and operation

ABSENT = "not measured: "
CONTEXT = tuple(f.name for f in fields(Context))
BEFORE, AFTER = ("kind", "about", "at_s"), ("elapsed_s", "shapes", *CONTEXT)


def csv(metrics: Metrics) -> str:
    """Numbers as numbers in full, absent values as text with the reason; no cell is a formula."""
    out = io.StringIO()
    rows = csv_text.writer(out, quoting=csv_text.QUOTE_NONNUMERIC)
    rows.writerow([*BEFORE, *(escape.csv(f"{c.name} [{c.unit}]") for c in metrics.columns), *AFTER])
    empty, none = [""] * len(metrics.columns), [""] * len(AFTER)
    head = {"schema": SCHEMA, "began": metrics.began, "interval_s": metrics.interval_s}
    told = [
        ("about", head),
        *(("column", [c.name, c.unit]) for c in metrics.columns),
        *(("note", n) for n in metrics.notes),
    ]
    for kind, about in told:
        rows.writerow([kind, escape.csv(_ascii(about)), "", *empty, *none])
    for row in metrics.rows:
        rows.writerow(["row", "", row.at_s, *map(_cell, row.values), *none])
    for done in metrics.operations:
        context = [escape.csv(_ascii(getattr(done.context, name))) for name in CONTEXT]
        rows.writerow(["operation", "", done.at_s, *empty, done.elapsed_s, escape.csv(_ascii(done.shapes)), *context])
    return out.getvalue()


def _cell(value: Value) -> float | str:
    return escape.csv(ABSENT + _ascii(asdict(value))) if isinstance(value, Absent) else float(value)


@dataclass(frozen=True)
class _Head:
    schema: int
    began: str
    interval_s: float


def from_csv(text: str, where: str) -> Metrics:
    try:
        lines = list(csv_text.reader(io.StringIO(text, newline="")))
    except csv_text.Error as error:
        raise FormatError(f"{where}: not CSV: {error}.") from None
    width = len(lines[0]) if lines else 0
    inner = slice(len(BEFORE), width - len(AFTER))
    parts: dict[str, list[Any]] = {kind: [] for kind in ("about", "column", "note", "row", "operation")}
    for number, line in enumerate(lines[1:], 2):
        place = f"{where}: line {number}"
        if len(line) != width or width < len(BEFORE) + len(AFTER) or line[0] not in parts:
            raise FormatError(f"{place}: {width} cells of the kind {', '.join(parts)} are needed, given {len(line)}.")
        if line[0] == "row":
            values = tuple(_from_cell(cell, place) for cell in line[inner])
            parts["row"].append(Row(_number(line[2], place), values))
        elif line[0] == "operation":
            parts["operation"].append(_operation(line[2], line[inner.stop :], place))
        else:
            kind = {"about": _Head, "column": tuple[str, str], "note": str}[line[0]]
            parts[line[0]].append(_read(kind, records.loads(escape.from_csv(line[1]), place), place))
    if len(parts["about"]) != 1:
        raise FormatError(
            f"{where}: not metrics of tritium: one line of the kind about is needed, {len(parts['about'])} are there."
        )
    (head,) = parts["about"]
    records.check_schema(head.schema, SCHEMA, where)
    columns = tuple(Column(*pair) for pair in parts["column"])
    return _made(
        where, columns=columns, rows=tuple(parts["row"]), began=head.began, interval_s=head.interval_s,
        operations=tuple(parts["operation"]), notes=tuple(parts["note"]),
    )  # fmt: skip


def _number(cell: str, place: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise FormatError(f"{place}: {cell[:60]!r} is no number.") from None


def _from_cell(cell: str, place: str) -> Value:
    plain = escape.from_csv(cell)
    if plain.startswith(ABSENT):
        return _read(Absent, records.loads(plain.removeprefix(ABSENT), place), place)
    return _number(plain, place)


def _operation(at: str, cells: Sequence[str], place: str) -> Operation:
    elapsed, shapes, *told = cells
    context = {name: records.loads(escape.from_csv(cell), place) for name, cell in zip(CONTEXT, told, strict=True)}
    data = {"at_s": _number(at, place), "elapsed_s": _number(elapsed, place), "context": context,
            "shapes": records.loads(escape.from_csv(shapes), place)}  # fmt: skip
    return records.read(Operation, data, place)


# ---- Prometheus: the last row

INFO, COLUMN, NOTE, AT, GONE = (
    f"tritium_sample_{name}" for name in ("info", "column_info", "note", "seconds", "absent")
)  # fmt: skip
HELP = {
    INFO: "When collecting began, and how often a row is taken.",
    COLUMN: "The columns, in order.",
    NOTE: "What must be known to read them.",
    AT: "When the row was taken, in seconds since the beginning.",
    GONE: "Columns without a value, and why.",
}
SAMPLE = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def prometheus(metrics: Metrics) -> str:
    """The last row, a family of samples for each column, and what is absent with the reason."""
    families: dict[str, tuple[str, list[Sample]]] = {name: (says, []) for name, says in HELP.items()}

    def add(name: str, value: float, /, **labels: str) -> None:
        told = {k: escape.csv(v, guard=False) for k, v in labels.items()}  # `_sample` reads them back as they were
        families[name][1].append(Sample(value, told))

    add(INFO, 1, began=metrics.began, interval_s=repr(metrics.interval_s), schema=str(SCHEMA))
    for i, column in enumerate(metrics.columns):
        add(COLUMN, i, column=column.name, unit=column.unit)
    for i, note in enumerate(metrics.notes):
        add(NOTE, i, note=note)
    if metrics.rows:
        add(AT, metrics.rows[-1].at_s)
        for column, value in zip(metrics.columns, metrics.rows[-1].values, strict=True):
            if isinstance(value, Absent):
                add(GONE, 1, column=column.name, **asdict(value))
            else:
                name = _family(column)
                families.setdefault(name, (f"{column.name} in {column.unit}", []))
                add(name, value, column=column.name)
    return exposition(Family(name, says, samples) for name, (says, samples) in families.items())


def _family(column: Column) -> str:
    """tritium_sample_value_rss_bytes; columns whose names meet are told apart by their label."""
    unit = UNITS.get(column.unit, column.unit)
    words = column.name.removesuffix(f"_{unit}") if unit else column.name
    return escape.prometheus_name("_".join(filter(None, ("tritium_sample_value", words, unit))))


def from_prometheus(text: str, where: str) -> Metrics:
    info: dict[str, str] = {}
    columns: list[tuple[float, Column]] = []
    notes: list[tuple[float, str]] = []
    at: float | None = None
    found: dict[str, Value] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        place = f"{where}: line {number}"
        name, labels, value = _sample(line, place)
        if name == INFO:
            info = labels
        elif name == COLUMN:
            columns.append((value, Column(_label(labels, "column", place), _label(labels, "unit", place))))
        elif name == NOTE:
            notes.append((value, _label(labels, "note", place)))
        elif name == AT:
            at = value
        else:
            column = _label(labels, "column", place)
            said = {k: v for k, v in labels.items() if k != "column"}
            found[column] = _read(Absent, said, place) if name == GONE else value
    if not info:
        raise FormatError(f"{where}: not metrics of tritium: {INFO} is missing.")
    schema = _label(info, "schema", where)
    records.check_schema(int(schema) if schema.isdecimal() and len(schema) < 9 else schema, SCHEMA, where)
    ordered = tuple(column for _, column in sorted(columns, key=lambda pair: pair[0]))
    if lost := [c.name for c in ordered if at is not None and c.name not in found]:
        raise FormatError(f"{where}: the column {escape.visible(lost[0])!r} has neither a value nor a reason.")
    rows = () if at is None else (Row(at, tuple(found[c.name] for c in ordered)),)
    told = tuple(note for _, note in sorted(notes, key=lambda pair: pair[0]))
    interval = _number(_label(info, "interval_s", where), where)
    return _made(where, columns=ordered, rows=rows, began=_label(info, "began", where), interval_s=interval, notes=told)


def _sample(line: str, place: str) -> tuple[str, dict[str, str], float]:
    found = SAMPLE.fullmatch(line)
    if found is None:
        raise FormatError(f"{place}: no sample of Prometheus: {escape.visible(line, 60)}")
    labels, end = {}, 0
    inside = found[2] or ""
    for label in LABEL.finditer(inside):
        if label.start() != end:
            break
        labels[label[1]] = escape.from_csv(re.sub(r"\\(.)", r"\1", label[2]))
        end = label.end()
    if end != len(inside):
        raise FormatError(f"{place}: its labels cannot be read: {escape.visible(inside, 60)}")
    return found[1], labels, _number(found[3], place)


def _label(labels: Mapping[str, str], name: str, place: str) -> str:
    if name not in labels:
        raise FormatError(f"{place}: the label {name!r} is missing.")
    return labels[name]


# ---- all of them


@dataclass(frozen=True)
class Format:
    """How a table is written and read."""

    write: Callable[[Metrics], str]
    read: Callable[[str, str], Metrics]
    begins: tuple[str, ...]  # of its text
    suffixes: tuple[str, ...]


FORMATS = {
    "json": Format(json_text, from_json, ("{",), (".json",)),
    "csv": Format(csv, from_csv, ('"kind"', "kind"), (".csv",)),
    "prometheus": Format(prometheus, from_prometheus, ("#", "tritium_"), (".prom", ".txt")),
}


def loads(text: str, where: str = "metrics") -> Metrics:
    """A table from its text, whichever format that is."""
    found = next((how for how in FORMATS.values() if text.lstrip("\ufeff \t\r\n").startswith(how.begins)), None)
    if found is None:
        raise FormatError(f"{where}: neither JSON, CSV nor Prometheus text of tritium's metrics.")
    return found.read(text, where)


def load(path: str | os.PathLike[str]) -> Metrics:
    """A table that `save` wrote."""
    where = files.named(path)
    return loads(files.decoded(files.read_bytes(path), where), where)


load_metrics = load  # its name in `tt.see`
