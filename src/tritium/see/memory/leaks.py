"""Memory leaks: tensors reachable from objects that are meant to stay, and the error that lists the others."""

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

MOST = 1_000_000  # objects that are visited
LISTED = 20
OPAQUE = (type, ModuleType, FrameType, CodeType, BuiltinFunctionType, str, bytes, int, float, complex, type(None))


class LeakError(TritiumError, AssertionError):
    """An error for memory allocated inside a block that was still alive at its end."""


def tensors_in(root: Any) -> Iterator[tuple[str, Array]]:
    """Iterate over the tensors reachable from an object, each with its path: "layers[0].weight"."""
    return ((path, x) for path, x in _reachable(root) if isinstance(x, Array))


def addresses(root: Any) -> set[int]:
    """Return the addresses of the memory reachable from an object."""
    return {address for _, x in _reachable(root) if (address := _address(x)) is not None}


def _address(x: Any) -> int | None:
    if isinstance(x, np.ndarray):
        return int(x.__array_interface__["data"][0])
    return getattr(x.storage if isinstance(x, Array) else x, "address", None)


def _reachable(root: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the tensors, storages and NumPy arrays reachable from an object. Each object is visited once.

    Modules, classes and the globals of functions are not followed: everything is reachable through them.
    """
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("", root)]
    references: list[Any] = []  # keeps objects from gc alive, so that their ids stay unique
    while todo and len(seen) < MOST:
        path, x = todo.pop()
        if id(x) in seen or isinstance(x, OPAQUE):
            continue
        seen.add(id(x))
        references.append(x)
        if isinstance(x, (Array, Storage, np.ndarray)):
            yield path.lstrip("."), x
        if not isinstance(x, (Array, Storage)):
            todo += reversed(list(_children(path, x)))


def _children(path: str, x: Any) -> Iterable[tuple[str, Any]]:
    """Return the objects an object refers to, each with its path."""
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
    attributes = getattr(x, "__dict__", None)
    if isinstance(attributes, dict):
        rest = [(path, v) for v in gc.get_referents(x) if v is not attributes and not isinstance(v, OPAQUE)]
        return [*((f"{path}.{k}", v) for k, v in attributes.items()), *rest]
    return [(path, v) for v in gc.get_referents(x)]


def describe(a: Allocation) -> str:
    """Return the text for one leak: size, op, line of code, age."""
    by = f" by {escape.terminal(a.op)}" if a.op else ""
    named = f" {escape.terminal(a.id)!r}" if a.id else ""
    on = "" if a.device == "cpu" else f" on {escape.terminal(a.device)}"
    where = escape.terminal(a.site) or "an unknown line"
    thread = "" if a.thread == "MainThread" else f", thread {escape.terminal(a.thread)}"
    return f"{bytes_text(a.nbytes)} ({a.nbytes} bytes){named}{by} at {where}{on}, alive for {seconds_text(a.age_ns / 1e9)}{thread}"


def complaint(leaks: Sequence[Allocation], what: str) -> str:
    """Return the error text that lists the leaks, in their order."""
    total = sum(a.nbytes for a in leaks)
    one = len(leaks) == 1
    lines = [
        f"{what}: {len(leaks)} allocation{'' if one else 's'} ({bytes_text(total)}) {'is' if one else 'are'} still alive:"
    ]
    lines += [f"  {describe(a)}" for a in leaks[:LISTED]]
    if len(leaks) > LISTED:
        lines.append(f"  … and {len(leaks) - LISTED} more")
    lines.append("Release them (del, clear the list or cache), or declare that they are meant to stay: keep=….")
    return "\n".join(lines)
