"""What outlives the code that made it: tensors reachable from what is meant to stay, and the error that names the rest.

Knows nothing of how memory is heard.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tritium import escape
from tritium.buffer import Array, Storage
from tritium.errors import TritiumError
from tritium.machine.facts import bytes_text, seconds_text
from tritium.see.memory.records import Allocation

MOST = 1_000_000  # objects that are looked at
LISTED = 20
OPAQUE = (type, ModuleType, FrameType, CodeType, BuiltinFunctionType, str, bytes, int, float, complex, type(None))


class LeakError(TritiumError, AssertionError):
    """Memory made inside a block was still alive when it ended."""


def tensors_in(root: Any) -> Iterator[tuple[str, Array]]:
    """Every tensor reachable from an object, with the way to it: "layers[0].weight"."""
    return ((path, x) for path, x in _held_by(root) if isinstance(x, Array))


def addresses(root: Any) -> set[int]:
    """Where the memory of everything reachable from an object lies."""
    return {at for _, x in _held_by(root) if (at := _address(x)) is not None}


def _address(x: Any) -> int | None:
    if isinstance(x, np.ndarray):
        return int(x.__array_interface__["data"][0])
    return getattr(x.storage if isinstance(x, Array) else x, "address", None)


def _held_by(root: Any) -> Iterator[tuple[str, Any]]:
    """Tensors, storages and arrays of NumPy reachable from an object. Each object is looked at once.

    Modules, classes and the globals of functions are not followed: everything is reachable through them.
    """
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("", root)]
    kept: list[Any] = []  # what gc hands out lives as long as we know it by its id
    while todo and len(seen) < MOST:
        path, x = todo.pop()
        if id(x) in seen or isinstance(x, OPAQUE):
            continue
        seen.add(id(x))
        kept.append(x)
        if isinstance(x, (Array, Storage, np.ndarray)):
            yield path.lstrip("."), x
        if not isinstance(x, (Array, Storage)):
            todo += reversed(list(_parts(path, x)))


def _parts(path: str, x: Any) -> Iterable[tuple[str, Any]]:
    """What an object holds, and how it is reached."""
    if isinstance(x, dict):
        return [(f"{path}[{escape.visible(repr(k), 60)}]", v) for k, v in x.items()]
    if isinstance(x, (list, tuple)):
        fields = getattr(type(x), "_fields", None)
        if fields is not None and len(fields) == len(x):
            return [(f"{path}.{name}", v) for name, v in zip(fields, x, strict=True)]
        return [(f"{path}[{i}]", v) for i, v in enumerate(x)]
    if isinstance(x, FunctionType):
        cells = [(name, c) for name, c in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)]
        return [(f"{path}.{n}", v) for n, v in (*cells, ("defaults", x.__defaults__), ("kwdefaults", x.__kwdefaults__))]
    if isinstance(x, np.ndarray):
        items = enumerate(x.flat) if x.dtype == object else ()
        return [(path, x.base), *((f"{path}[{i}]", v) for i, v in items)]
    named = getattr(x, "__dict__", None)
    if isinstance(named, dict):
        rest = [(path, v) for v in gc.get_referents(x) if v is not named and not isinstance(v, OPAQUE)]
        return [*((f"{path}.{k}", v) for k, v in named.items()), *rest]
    return [(path, v) for v in gc.get_referents(x)]


def described(a: Allocation) -> str:
    """One leak in words: size, op, line of code, age."""
    by = f" by {escape.terminal(a.op)}" if a.op else ""
    named = f" {escape.terminal(a.id)!r}" if a.id else ""
    on = "" if a.device == "cpu" else f" on {escape.terminal(a.device)}"
    where = escape.terminal(a.site) or "an unknown line"
    thread = "" if a.thread == "MainThread" else f", thread {escape.terminal(a.thread)}"
    return f"{bytes_text(a.nbytes)} ({a.nbytes} bytes){named}{by} at {where}{on}, alive for {seconds_text(a.age_ns / 1e9)}{thread}"


def complaint(leaks: Sequence[Allocation], what: str) -> str:
    """What leaked, the largest first."""
    total = sum(a.nbytes for a in leaks)
    one = len(leaks) == 1
    lines = [
        f"{what}: {len(leaks)} allocation{'' if one else 's'} ({bytes_text(total)}) {'is' if one else 'are'} still alive:"
    ]
    lines += [f"  {described(a)}" for a in leaks[:LISTED]]
    if len(leaks) > LISTED:
        lines.append(f"  … and {len(leaks) - LISTED} more")
    lines.append("Let go of them (del, clear the list or cache), or say that they are meant to stay: keep=….")
    return "\n".join(lines)
