"""Reading back the CSV files that Tritium writes, also after a spreadsheet saved them again.

Knows nothing of other formats; `exports.COLUMNS` says what a column holds.
"""

from __future__ import annotations

import csv as csv_text
import io
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from tritium import escape
from tritium.errors import FormatError
from tritium.perf.formats import exports
from tritium.perf.formats.exports import COLUMNS, RECORDS
from tritium.perf.formats.fields import MAX_RUNS, count_of, number_of
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.json_io import loads, plain, read
from tritium.perf.records.run import Results, Run, Series


def looks_like_csv(data: Any) -> bool:
    return isinstance(data, str) and data.replace('"', "").startswith("created,suite,case,")


def csv(text: Any, where: str) -> Results:
    """Read a CSV file that `exports.csv` wrote, also after a spreadsheet saved it again."""
    rows = _rows(text, where)
    heads = next(rows, [])
    known = {c.head: c for c in COLUMNS}
    missing = [c.head for c in COLUMNS if c.head not in heads and _is_required(c)]
    if missing:
        raise FormatError(f"{where}: not a CSV file of tritium: the columns {', '.join(missing[:5])} are missing.")
    runs: dict[tuple[str, str], Run] = {}
    first: dict[str, dict[str, Any]] = {}
    for number, cells in enumerate(rows, 2):
        if not cells:
            continue
        line = f"{where}: line {number}"
        if len(cells) != len(heads):
            raise FormatError(f"{line}: {len(cells)} cells; the head has {len(heads)}.")
        table = _table(dict(zip(heads, cells, strict=True)), known, line)
        first = first or table
        _add(runs, table, line)
    if not first:
        raise FormatError(f"{where}: no row below the head.")
    hard = read(Hard, first["hard"], where)
    environment = read(Environment, first["environment"] | {"hard": plain(hard)}, where)
    fields = first["results"] | {
        "plan": first["plan"],
        "environment": plain(environment),
        "arms": [],
        "runs": [],
    }
    arms = tuple(dict.fromkeys(arm for _, arm in runs))
    return replace(read(Results, fields, where), arms=arms, runs=tuple(runs.values()))


def _is_required(column: exports.Column) -> bool:
    """Return True if a file without this column cannot be read: a later version may have more fields than the writer's."""
    if column.record not in RECORDS:
        return column.record == "values"
    field = next(f for f in fields(RECORDS[column.record]) if f.name == column.field)
    return column.record != "statistics" and field.default is MISSING and field.default_factory is MISSING


def _rows(text: str, where: str) -> typing.Iterator[list[str]]:
    before = csv_text.field_size_limit(max(len(text), 1 << 17))  # the raw values of a series are one cell
    try:
        yield from csv_text.reader(io.StringIO(text, newline=""), strict=True)
    except csv_text.Error as error:
        raise FormatError(f"{where}: not CSV: {error}.") from None
    finally:
        csv_text.field_size_limit(before)


def _table(cells: dict[str, str], known: Mapping[str, exports.Column], where: str) -> dict[str, dict[str, Any]]:
    """Return the cells of a line as the records they belong to; unknown columns are ignored."""
    out: dict[str, dict[str, Any]] = {record: {} for record in RECORDS}
    for head, cell in cells.items():
        column = known.get(head)
        if column is None or column.record in ("statistics", "rates"):
            continue
        if column.record == "values":
            out["series"]["values"] = _raw_values(escape.from_csv(cell), f"{where}, {head}")
            continue
        hint = typing.get_type_hints(RECORDS[column.record])[column.field]
        out[column.record][column.field] = _from_cell(cell, hint, f"{where}, {head}")
    return out


def _from_cell(cell: str, hint: Any, where: str) -> Any:
    """Return the value of a cell by the type of its field."""
    text = escape.from_csv(cell)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if text == "":
            return None
        hint = next(k for k in arguments if k is not type(None))
    if hint is str or typing.get_origin(hint) is typing.Literal:
        return text
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if hint in (int, float):
        return _parse_number(text, hint, where)
    if hint == tuple[int, ...]:
        return [_parse_number(part, int, where) for part in text.split("x")] if text else []
    return loads(text, where) if text else ([] if typing.get_origin(hint) is tuple else {})


def _parse_number(text: str, kind: type, where: str) -> float | int:
    try:
        number = float(text)
    except ValueError:
        raise FormatError(f"{where}: {escape.visible(text, 40)!r} is not a number.") from None
    return count_of({"": number}, "", where) if kind is int else number_of(number, where)


def _raw_values(text: str, where: str) -> list[list[list[float]]]:
    """Return raw values by process, round and batch."""
    if not text:
        return []
    return [
        [[float(_parse_number(v, float, where)) for v in batches.split()] for batches in rounds.split("/")]
        for rounds in text.split("|")
    ]


def _add(runs: dict[tuple[str, str], Run], table: dict[str, dict[str, Any]], where: str) -> None:
    """Add the series of a line to its run."""
    series = (read(Series, table["series"], where),) if table["series"]["metric"] else ()
    key = (table["run"]["case"], table["run"]["arm"])
    if key not in runs:
        if len(runs) >= MAX_RUNS:
            raise FormatError(f"{where}: more than {MAX_RUNS} runs.")
        runs[key] = read(Run, table["run"] | {"context": table["context"], "work": table["work"], "series": []}, where)
    runs[key] = replace(runs[key], series=(*runs[key].series, *series))
