"""Measurements over time as one table, and its text: JSON, CSV and Prometheus, each read back exactly.

A value is a number, or `Absent` with the reason; nothing is rounded. Prometheus text holds the last row, as a scrape
does; the other two hold everything.
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
from tritium.arguments import checked
from tritium.errors import ArgumentError, FormatError, nearest
from tritium.machine import files
from tritium.perf.formats.telemetry import BASE_UNITS, Family, Sample, exposition
from tritium.perf.meters.absent import Absent
from tritium.perf.records import json_io as records
from tritium.perf.records.case import Context

T = TypeVar("T")
SCHEMA = 1  # a reader refuses a higher one
Value = float | Absent
UNITS = BASE_UNITS | {"%": "percent", "MHz": "megahertz", "1": "", "GFLOP/s": "gflops_per_second"}


@dataclass(frozen=True)
class Column:
    """A quantity that is polled."""

    name: str  # "rss", "cpu_process" …
    unit: str  # "B", "%", "°C", "W", "s", "1"


class Row(NamedTuple):
    """The values of all columns at one time."""

    at_s: float  # since the table began
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Operation:
    """One operation that a program reported itself: its duration and context."""

    at_s: float
    elapsed_s: float
    context: Context
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Metrics:
    """A table of measurements over time, and the operations reported meanwhile."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    began: str = ""  # UTC, ISO 8601
    interval_s: float = 0.0
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()  # caveats: the cost of collecting, rows that were dropped

    def __post_init__(self) -> None:
        names = [c.name for c in self.columns]
        if duplicate := next((n for n in names if names.count(n) > 1), None):
            raise ArgumentError(f"metrics: two columns are called {duplicate!r}; give each its own name.")
        bad_row = next((r for r in self.rows if len(r.values) != len(names)), None)
        if bad_row is not None:
            raise ArgumentError(f"metrics: a row has {len(bad_row.values)} values for {len(names)} columns.")
        times = [
            self.interval_s,
            *(r.at_s for r in self.rows),
            *(x for o in self.operations for x in (o.at_s, o.elapsed_s)),
        ]
        if not all(map(math.isfinite, times)) or not all(_is_valid(v) for r in self.rows for v in r.values):
            raise ArgumentError("metrics: a number is infinite or NaN; use Absent with the reason instead.")

    def of(self, name: str) -> tuple[Value, ...]:
        """Return a column over time."""
        names = [c.name for c in self.columns]
        if name not in names:
            raise ArgumentError(
                f"metrics: no column is called {name!r}.{nearest(name, names)} There are {', '.join(names)}."
            )
        index = names.index(name)
        return tuple(row.values[index] for row in self.rows)

    @property
    def last(self) -> dict[str, Value]:
        """Return the newest row by name; empty before the first."""
        return dict(zip((c.name for c in self.columns), self.rows[-1].values, strict=True)) if self.rows else {}

    def text(self, to: str = "json") -> str:
        """Return the table in one of FORMATS."""
        return FORMATS[_check_format(to)].write(self)

    def save(self, path: str | os.PathLike[str], to: str | None = None) -> Path:
        """Write the table; the format follows the suffix (.json, .csv, .prom) unless given."""
        return files.write_text(path, self.text(to or _format_of_suffix(path)), parents=True)


def _is_valid(value: Value) -> bool:
    return isinstance(value, Absent) or math.isfinite(value)


def _check_format(to: str) -> str:
    if to not in FORMATS:
        raise ArgumentError(f"there is no format {to!r}; there are {', '.join(FORMATS)}.{nearest(to, FORMATS)}")
    return to


def _format_of_suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    match = next((name for name, fmt in FORMATS.items() if suffix in fmt.suffixes), None)
    if match is None:
        ends = ", ".join(s for fmt in FORMATS.values() for s in fmt.suffixes)
        raise ArgumentError(f"{files.named(path)}: the name must end in one of {ends}, or give to=.")
    return match


# ---- JSON: by columns, absent values as ranges with one reason


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
    """Return the whole table as JSON, one column to a line."""
    columns = [_pack(c, [row.values[i] for row in metrics.rows]) for i, c in enumerate(metrics.columns)]
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
    """Return JSON on one line, without characters that a terminal or a page interprets."""
    text = json.dumps(records.plain(value), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _pack(column: Column, values: Sequence[Value]) -> _Column:
    """Return a column with its absent values as ranges."""
    gaps, start = [], 0
    for why, run in groupby(values, lambda v: v if isinstance(v, Absent) else None):
        stop = start + sum(1 for _ in run)
        if isinstance(why, Absent):
            gaps.append(_Gap(start, stop, why))
        start = stop
    plain = tuple(None if isinstance(v, Absent) else float(v) for v in values)
    return _Column(column.name, column.unit, plain, tuple(gaps))


def from_json(text: str, where: str) -> Metrics:
    """Return the table of a JSON text."""
    data = records.loads(text, where)
    if not isinstance(data, dict) or set(data) != {"schema", "metrics"}:
        raise FormatError(f'{where}: not metrics of tritium: an object with "schema" and "metrics" is needed.')
    records.check_schema(data["schema"], SCHEMA, where)
    table = _read(_Table, data["metrics"], where)
    series = [_unpack(c, len(table.at_s), where) for c in table.columns]
    values = zip(*series, strict=True) if series else iter([()] * len(table.at_s))
    rows = tuple(Row(time_s, tuple(v)) for time_s, v in zip(table.at_s, values, strict=True))
    columns = tuple(Column(c.name, c.unit) for c in table.columns)
    return _build_metrics(where, columns=columns, rows=rows, began=table.began, interval_s=table.interval_s,
                 operations=table.operations, notes=table.notes)  # fmt: skip


def _unpack(column: _Column, rows: int, where: str) -> list[Value]:
    """Return the values of a column, checked."""
    place = f"{where}: column {escape.visible(column.name)}"
    if len(column.values) != rows:
        raise FormatError(f"{place}: {len(column.values)} values for {rows} rows.")
    out: list[Value | None] = list(column.values)
    for gap in column.absent:
        if not 0 <= gap.start < gap.stop <= rows or any(v is not None for v in out[gap.start : gap.stop]):
            raise FormatError(
                f"{place}: rows {gap.start} to {gap.stop} are listed as absent, but have values or do not exist."
            )
        out[gap.start : gap.stop] = [gap.why] * (gap.stop - gap.start)
    if None in out:
        raise FormatError(f"{place}: row {out.index(None)} has neither a value nor a reason.")
    return [v for v in out if v is not None]


def _read(kind: type[T], data: Any, where: str) -> T:
    """Return a record of a file; an unknown reason of absence raises FormatError."""
    try:
        return records.read(kind, data, where)
    except ArgumentError as error:
        raise FormatError(f"{where}: {error}") from None


def _build_metrics(where: str, **parts: Any) -> Metrics:
    """Return the table of a file; an invalid one raises FormatError."""
    try:
        return Metrics(**parts)
    except ArgumentError as error:
        raise FormatError(f"{where}: {error}") from None


# ---- CSV: a line for the header, for each column and note, then for each row and operation

ABSENT = "not measured: "
CONTEXT = tuple(f.name for f in fields(Context))
BEFORE, AFTER = ("kind", "about", "at_s"), ("elapsed_s", "shapes", *CONTEXT)


def csv(metrics: Metrics) -> str:
    """Return the table as CSV: numbers in full, absent values as text with the reason, no cell a formula."""
    out = io.StringIO()
    rows = csv_text.writer(out, quoting=csv_text.QUOTE_NONNUMERIC)
    rows.writerow([*BEFORE, *(escape.csv(f"{c.name} [{c.unit}]") for c in metrics.columns), *AFTER])
    empty, none = [""] * len(metrics.columns), [""] * len(AFTER)
    head = {"schema": SCHEMA, "began": metrics.began, "interval_s": metrics.interval_s}
    header = [
        ("about", head),
        *(("column", [c.name, c.unit]) for c in metrics.columns),
        *(("note", n) for n in metrics.notes),
    ]
    for kind, content in header:
        rows.writerow([kind, escape.csv(_ascii(content)), "", *empty, *none])
    for row in metrics.rows:
        rows.writerow(["row", "", row.at_s, *map(_cell, row.values), *none])
    for operation in metrics.operations:
        context = [escape.csv(_ascii(getattr(operation.context, name))) for name in CONTEXT]
        rows.writerow(
            [
                "operation",
                "",
                operation.at_s,
                *empty,
                operation.elapsed_s,
                escape.csv(_ascii(operation.shapes)),
                *context,
            ]
        )
    return out.getvalue()


def _cell(value: Value) -> float | str:
    return escape.csv(ABSENT + _ascii(asdict(value))) if isinstance(value, Absent) else float(value)


@dataclass(frozen=True)
class _Head:
    schema: int
    began: str
    interval_s: float


def from_csv(text: str, where: str) -> Metrics:
    """Return the table of a CSV text."""
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
            parts["operation"].append(_read_operation(line[2], line[inner.stop :], place))
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
    return _build_metrics(
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


def _read_operation(time_s: str, cells: Sequence[str], place: str) -> Operation:
    elapsed, shapes, *context_cells = cells
    context = {
        name: records.loads(escape.from_csv(cell), place) for name, cell in zip(CONTEXT, context_cells, strict=True)
    }
    data = {"at_s": _number(time_s, place), "elapsed_s": _number(elapsed, place), "context": context,
            "shapes": records.loads(escape.from_csv(shapes), place)}  # fmt: skip
    return records.read(Operation, data, place)


# ---- Prometheus: the last row

INFO, COLUMN, NOTE, TIME, MISSING = (
    f"tritium_sample_{name}" for name in ("info", "column_info", "note", "seconds", "absent")
)  # fmt: skip
HELP = {
    INFO: "Start and interval of collecting.",
    COLUMN: "The columns, in order.",
    NOTE: "Caveats of the table.",
    TIME: "Time of the row, in seconds since the start.",
    MISSING: "Columns without a value, and the reason.",
}
SAMPLE = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def prometheus(metrics: Metrics) -> str:
    """Return the last row: a family of samples for each column, and the absent ones with the reason."""
    families: dict[str, tuple[str, list[Sample]]] = {name: (help_text, []) for name, help_text in HELP.items()}

    def add(name: str, value: float, /, **labels: str) -> None:
        escaped = {k: escape.csv(v, guard=False) for k, v in labels.items()}  # `_sample` reads them back as they were
        families[name][1].append(Sample(value, escaped))

    add(INFO, 1, began=metrics.began, interval_s=repr(metrics.interval_s), schema=str(SCHEMA))
    for i, column in enumerate(metrics.columns):
        add(COLUMN, i, column=column.name, unit=column.unit)
    for i, note in enumerate(metrics.notes):
        add(NOTE, i, note=note)
    if metrics.rows:
        add(TIME, metrics.rows[-1].at_s)
        for column, value in zip(metrics.columns, metrics.rows[-1].values, strict=True):
            if isinstance(value, Absent):
                add(MISSING, 1, column=column.name, **asdict(value))
            else:
                name = _family(column)
                families.setdefault(name, (f"{column.name} in {column.unit}", []))
                add(name, value, column=column.name)
    return exposition(Family(name, help_text, samples) for name, (help_text, samples) in families.items())


def _family(column: Column) -> str:
    """Return a family's name: tritium_sample_value_rss_bytes; columns of equal family differ in their label."""
    unit = UNITS.get(column.unit, column.unit)
    words = column.name.removesuffix(f"_{unit}") if unit else column.name
    return escape.prometheus_name("_".join(filter(None, ("tritium_sample_value", words, unit))))


def from_prometheus(text: str, where: str) -> Metrics:
    """Return the table of a Prometheus text, which has at most one row."""
    info: dict[str, str] = {}
    columns: list[tuple[float, Column]] = []
    notes: list[tuple[float, str]] = []
    time_s: float | None = None
    values: dict[str, Value] = {}
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
        elif name == TIME:
            time_s = value
        else:
            column = _label(labels, "column", place)
            reason = {k: v for k, v in labels.items() if k != "column"}
            values[column] = _read(Absent, reason, place) if name == MISSING else value
    if not info:
        raise FormatError(f"{where}: not metrics of tritium: {INFO} is missing.")
    schema = _label(info, "schema", where)
    records.check_schema(int(schema) if schema.isdecimal() and len(schema) < 9 else schema, SCHEMA, where)
    ordered = tuple(column for _, column in sorted(columns, key=lambda pair: pair[0]))
    if missing := [c.name for c in ordered if time_s is not None and c.name not in values]:
        raise FormatError(f"{where}: the column {escape.visible(missing[0])!r} has neither a value nor a reason.")
    rows = () if time_s is None else (Row(time_s, tuple(values[c.name] for c in ordered)),)
    ordered_notes = tuple(note for _, note in sorted(notes, key=lambda pair: pair[0]))
    interval = _number(_label(info, "interval_s", where), where)
    return _build_metrics(
        where, columns=ordered, rows=rows, began=_label(info, "began", where), interval_s=interval, notes=ordered_notes
    )


def _sample(line: str, place: str) -> tuple[str, dict[str, str], float]:
    """Return the name, labels and value of a line."""
    match = SAMPLE.fullmatch(line)
    if match is None:
        raise FormatError(f"{place}: no sample of Prometheus: {escape.visible(line, 60)}")
    labels, end = {}, 0
    label_text = match[2] or ""
    for label in LABEL.finditer(label_text):
        if label.start() != end:
            break
        labels[label[1]] = escape.from_csv(re.sub(r"\\(.)", r"\1", label[2]))
        end = label.end()
    if end != len(label_text):
        raise FormatError(f"{place}: its labels cannot be read: {escape.visible(label_text, 60)}")
    return match[1], labels, _number(match[3], place)


def _label(labels: Mapping[str, str], name: str, place: str) -> str:
    if name not in labels:
        raise FormatError(f"{place}: the label {name!r} is missing.")
    return labels[name]


# ---- all of them


@dataclass(frozen=True)
class Format:
    """The writer and the reader of a text format."""

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
    """Return the table of a text, in whichever format it is."""
    match = next((fmt for fmt in FORMATS.values() if text.lstrip("\ufeff \t\r\n").startswith(fmt.begins)), None)
    if match is None:
        raise FormatError(f"{where}: neither JSON, CSV nor Prometheus text of tritium's metrics.")
    return match.read(text, where)


@checked
def load(path: str | os.PathLike[str]) -> Metrics:
    """Return a table that `save` wrote."""
    where = files.named(path)
    return loads(files.decoded(files.read_bytes(path), where), where)


load_metrics = load  # its name in `tt.see`
