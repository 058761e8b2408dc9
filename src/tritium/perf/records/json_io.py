"""Records and JSON: frozen dataclasses written as plain objects, and read back strictly.

Knows nothing of what is recorded. A key that is unknown, missing or of the wrong type is an error that names the place,
what was given, what is needed, and the nearest key there is. NaN and infinity are never written and never read.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from tritium.errors import FormatError, nearest
from tritium.perf import files

T = TypeVar("T")
MAX_DEPTH = 40
MAX_WHOLE = 1 << 1023  # a whole number above it may be no double


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


def dumps(value: Any, indent: int | None = None) -> str:
    """JSON text of a record."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


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

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except FormatError:
        raise
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        at = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise FormatError(f"{where}: not JSON{at}: {getattr(error, 'msg', error)}.") from None
    check(data, where)
    return data


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
    """A record of this class from a file that holds nothing else."""
    where = files.named(path)
    return read(cls, loads(files.decoded(files.read_bytes(path), where), where), where)


def read(cls: type[T], data: Any, where: str) -> T:
    """A record of this class from what JSON holds."""
    return typing.cast(T, _value(cls, data, where, 0))


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(kind: Any, data: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _too_deep(where)
    if kind is Any:
        return data
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(of, data, where, depth)
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, where, depth)
    if origin in (tuple, list):
        return _sequence(origin, of, data, where, depth)
    if origin in (dict, Mapping) or kind is dict:
        if not isinstance(data, dict):
            raise _wrong(where, data, "an object")
        inner = of[1] if of else Any
        return {
            k: _value(inner, v, f"{where}.{k if k.isprintable() else ascii(k)}", depth + 1) for k, v in data.items()
        }
    if origin is typing.Literal:
        if data not in of:
            raise FormatError(
                f"{where}: {data!r} is not one of {', '.join(map(str, of))}.{nearest(str(data), [str(o) for o in of])}"
            )
        return data
    return _scalar(kind, data, where)


def _scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        if abs(data) > MAX_WHOLE:
            raise _wrong(where, data, "a number a double can hold")
        return float(data)
    if kind is type(None) and data is None:
        return None
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise _wrong(where, data, NAMES.get(kind, str(kind)))
    return data


def _one_of(of: tuple[Any, ...], data: Any, where: str, depth: int) -> Any:
    if data is None and type(None) in of:
        return None
    rest = [k for k in of if k is not type(None)]
    for kind in rest[:-1]:
        try:
            return _value(kind, data, where, depth)
        except FormatError:
            continue
    return _value(rest[-1], data, where, depth)


def _sequence(origin: Any, of: tuple[Any, ...], data: Any, where: str, depth: int) -> Any:
    if not isinstance(data, list):
        raise _wrong(where, data, "an array")
    if origin is tuple and of and of[-1] is not Ellipsis:
        if len(data) != len(of):
            raise FormatError(f"{where}: {len(of)} values are needed, {len(data)} were given.")
        return tuple(_value(k, v, f"{where}[{i}]", depth + 1) for i, (k, v) in enumerate(zip(of, data, strict=True)))
    kind = of[0] if of else Any
    if kind is float and all(type(v) is float for v in data):  # raw samples: most of a file
        return origin(data)
    return origin(_value(kind, v, f"{where}[{i}]", depth + 1) for i, v in enumerate(data))


def _record(cls: Any, data: Any, where: str, depth: int) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, data, "an object")
    hints, fields = _hints(cls), {f.name: f for f in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            raise FormatError(f"{where}: unknown key {key!r}; there are {', '.join(fields)}.{nearest(key, fields)}")
    missing = [
        n for n, f in fields.items()
        if n not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    if missing:
        raise FormatError(f"{where}: {', '.join(missing)} missing.")
    return cls(**{k: _value(hints[k], v, f"{where}.{k}", depth + 1) for k, v in data.items()})


NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _wrong(where: str, data: Any, needed: str) -> FormatError:
    given = "null" if data is None else json.dumps(data)[:60]
    return FormatError(f"{where}: {needed} is needed, given {given}.")
