"""Records and JSON: frozen dataclasses written as plain objects, and read back strictly.

A key that is unknown, missing or of the wrong type is an error that names the place, what was given, what is needed,
and the nearest key there is. NaN and infinity are never written and never read.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from tritium.errors import FormatError, nearest
from tritium.machine import files

T = TypeVar("T")
MAX_DEPTH = 40
MAX_CONTAINERS = 1 << 23  # arrays and objects: each takes up to 72 bytes, but only 2 characters of a file


def utc_now(timespec: str = "seconds") -> str:
    """This moment as records have it: UTC, ISO 8601, with Z."""
    return datetime.now(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """A record as JSON has it: objects, arrays, numbers, text, null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (str, int)):
        return value
    if not isinstance(value, float):
        if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a number of NumPy's
            return plain(value.item())
        raise TypeError(f"a {type(value).__name__} cannot be recorded; make it text, a number, an array or an object.")
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be recorded; record that it was not measured, and why.")
    return float(value)


def dumps(value: Any, indent: int | None = None, *, ascii_only: bool = False) -> str:
    """JSON text of a record; in ASCII alone for a terminal, which obeys some other characters."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=ascii_only)


def loads(text: str | bytes, where: str) -> Any:
    """JSON as Python has it; twice the same key, NaN and nesting without end are refused."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in items:
            if key in out:
                raise FormatError(f"{where}: the key {key!r} stands there twice.")
            out[key] = value
        return out

    def constant(name: str) -> Any:
        raise FormatError(f"{where}: {name} is not JSON; write null and a reason.")

    if (containers := _containers(text)) > MAX_CONTAINERS:
        raise FormatError(f"{where}: {containers:,} arrays and objects; at most {MAX_CONTAINERS:,} are read.")
    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except FormatError:
        raise
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        place = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise FormatError(f"{where}: not JSON{place}: {getattr(error, 'msg', error)}.") from None
    check(data, where)
    return data


def _containers(text: str | bytes) -> int:
    """Return at most how many arrays and objects a JSON text has, before any is made."""
    return text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")


def check(data: Any, where: str) -> None:
    """Neither nested too deep nor a number beyond a double's: Python reads 1e999 as infinity."""
    level, depth = [data], 0
    while level:
        inner: list[Any] = []
        for value in level:
            for v in value.values() if type(value) is dict else value if type(value) is list else (value,):
                if type(v) is float:
                    if v - v != 0:
                        raise FormatError(f"{where}: a number is too large; write null and a reason.")
                elif type(v) is dict or type(v) is list:
                    inner.append(v)
        level, depth = inner, depth + 1
        if depth > MAX_DEPTH:
            raise _too_deep(where)


def _too_deep(where: str) -> FormatError:
    return FormatError(f"{where}: nested more than {MAX_DEPTH} deep.")


def check_schema(schema: Any, most: int, where: str) -> None:
    """Refuse what a newer tritium wrote: what it added may change what the rest means."""
    if type(schema) is not int or schema < 1:
        raise FormatError(f"{where}: its schema is {schema!r}; a whole number from 1 to {most} is needed.")
    if schema > most:
        raise FormatError(
            f"{where}: written by a newer tritium (schema {schema}; this one reads up to {most}). Update tritium to read it."
        )


def load(cls: type[T], path: str | os.PathLike[str]) -> T:
    """Return a record of this class from a file that holds nothing else."""
    where = files.named(path)
    return read(cls, loads(files.decoded(files.read_bytes(path), where), where), where)


def read(cls: type[T], data: Any, where: str) -> T:
    """Return a record of this class from decoded JSON; raise FormatError with the place of what does not fit."""
    try:
        record = msgspec.convert(data, cls)
    except RecursionError:
        raise _too_deep(where) from None
    except UnicodeEncodeError:  # msgspec looks keys up as UTF-8
        raise FormatError(f"{where}: holds half a character (a lone surrogate); write whole ones.") from None
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:  # raised by the record's own __post_init__
            raise error.__cause__ from None
        raise _fault(cls, data, where) from None
    if isinstance(data, dict | list):
        _check_keys(record, data, where, 0)
    return record


def _check_keys(value: Any, data: Any, where: str, depth: int) -> None:
    """Refuse keys that are no fields, which msgspec skips in a dataclass, and records nested too deep."""
    if depth > MAX_DEPTH:
        raise _too_deep(where)
    if isinstance(data, list):
        for i, item in enumerate(data):
            if type(item) is dict or type(item) is list:
                _check_keys(value[i], item, f"{where}[{i}]", depth + 1)
        return
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None and not fields.keys() >= data.keys():
        raise _unknown_key(data, fields, where)
    for key, item in data.items():
        if type(item) is dict or type(item) is list:
            _check_keys(value[key] if fields is None else getattr(value, key), item, f"{where}.{key}", depth + 1)


def _unknown_key(data: Any, fields: Any, where: str) -> FormatError:
    key = next(key for key in data if key not in fields)
    return FormatError(f"{where}: unknown key {key!r}; there are {', '.join(fields)}.{nearest(key, fields)}")


# ---- errors: msgspec names neither the keys of an object nor the value; the smallest part that does not fit has both


def _fault(kind: Any, data: Any, where: str) -> FormatError:
    """Return the error of the first and smallest part of the data that is not of its kind."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _fault([part for part in parts if part is not type(None)][-1], data, where)
    if dataclasses.is_dataclass(kind):
        return _record_fault(kind, data, where)
    if origin in (tuple, list):
        if not isinstance(data, list):
            return _wrong(where, data, "an array")
        if origin is list or parts[-1] is Ellipsis:
            parts = parts[:1] * len(data)
        if len(data) != len(parts):
            return FormatError(f"{where}: {len(parts)} values are needed, {len(data)} were given.")
        return _first_fault((k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(parts, data, strict=True)))
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            return _wrong(where, data, "an object")
        return _first_fault((parts[1], v, f"{where}.{k if k.isprintable() else ascii(k)}") for k, v in data.items())
    if origin is typing.Literal:
        names = [str(part) for part in parts]
        return FormatError(f"{where}: {data!r} is not one of {', '.join(names)}.{nearest(str(data), names)}")
    if kind is float and type(data) is int:
        return _wrong(where, data, "a number a double can hold")
    return _wrong(where, data, NAMES.get(kind, str(kind)))


def _record_fault(cls: Any, data: Any, where: str) -> FormatError:
    if not isinstance(data, dict):
        return _wrong(where, data, "an object")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if not fields.keys() >= data.keys():
        return _unknown_key(data, fields, where)
    missing = [
        n for n, f in fields.items()
        if n not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    if missing:
        return FormatError(f"{where}: {', '.join(missing)} missing.")
    hints = typing.get_type_hints(cls)
    return _first_fault((hints[k], v, f"{where}.{k}") for k, v in data.items())


def _first_fault(parts: Iterable[tuple[Any, Any, str]]) -> FormatError:
    for kind, data, where in parts:
        try:
            msgspec.convert(data, kind)
        except msgspec.ValidationError:
            return _fault(kind, data, where)
    raise AssertionError("no part is at fault in a record that cannot be read")


NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _wrong(where: str, data: Any, needed: str) -> FormatError:
    value = "null" if data is None else json.dumps(data)[:60]
    return FormatError(f"{where}: {needed} is needed, given {value}.")
