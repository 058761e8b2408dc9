"""The structure of arguments and results as values of JSON, and back.

Values that are no tensors are written as graphs write attributes: nothing is evaluated when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tritium.compiler import tree
from tritium.dtype import DType
from tritium.errors import ArgumentError, FormatError
from tritium.fragment import value_text
from tritium.graph.graph import Graph
from tritium.graph.text import parse_value

DEPTH = 32  # of containers in containers
MAX_PARTS = 1 << 16  # tensors, values and containers of one structure
VALUES = (bool, int, float, complex, str, type(None), DType)
CONTAINERS: dict[str, Any] = {"tuple": tuple, "list": list}
TENSOR = "tensor"
_PLACEHOLDER = np.empty(0, np.float32)  # flattened as a tensor


class CallStructure(NamedTuple):
    """The structure of the arguments and results of a saved function."""

    call: tree.Tree  # of (args, kwargs)
    result: tree.Tree
    parameters: tuple[str, ...]  # names of the arguments by position


def encode(structure: CallStructure) -> dict[str, Any]:
    """Return a structure as JSON holds it; raise for values and containers that no file holds."""
    for label, part in tree.call_labels(structure.call, structure.parameters):
        if isinstance(part, tree.Static) and type(part.value) not in VALUES:
            raise ArgumentError(
                f"save: the argument {label} is a {type(part.value).__name__}, which no file holds; save a call with tensors, "
                f"numbers, strings, dtypes and None, in tuples, lists and dicts."
            )
    return {
        "call": _encode(structure.call, "an argument"),
        "result": _encode(structure.result, "the result"),
        "parameters": list(structure.parameters),
    }


def _encode(part: tree.Tree, what: str, depth: int = 0) -> Any:
    if depth > DEPTH:
        raise ArgumentError(f"save: {what} is nested more than {DEPTH} deep; use fewer containers in each other.")
    if isinstance(part, tree.Leaf):
        return TENSOR
    if isinstance(part, tree.Static):
        _check_value(part.value, what)
        return {"value": value_text(part.value)}
    children = [_encode(c, what, depth + 1) for c in part.children]
    if isinstance(part.key, tuple):
        for name in part.key:
            _check_value(name, f"a key of a dict in {what}")
        return {"dict": [[value_text(name), child] for name, child in zip(part.key, children, strict=True)]}
    for name, kind in CONTAINERS.items():
        if part.key is kind:
            return {name: children}
    raise ArgumentError(
        f"save: {what} has a {part.key.__name__}, a class that a file does not hold; use a tuple, a list or a dict."
    )


def _check_value(value: Any, what: str) -> None:
    if type(value) not in VALUES:
        raise ArgumentError(
            f"save: {what} is a {type(value).__name__}, which no file holds; use tensors, numbers, strings, dtypes and None."
        )


def decode(data: Any) -> CallStructure:
    """Return the structure of what `encode` wrote; raise FormatError for anything else."""
    parameters = _list(_field(data, "parameters"), "names of parameters")
    if len(parameters) > MAX_PARTS or not all(isinstance(p, str) for p in parameters):
        raise FormatError("the names of parameters must be strings")
    call, result = (_decode(_field(data, name), [MAX_PARTS]) for name in ("call", "result"))
    if not (
        isinstance(call, tuple)
        and len(call) == 2
        and isinstance(call[0], tuple)
        and isinstance(call[1], dict)
        and all(isinstance(name, str) for name in call[1])
    ):
        raise FormatError("a call must be a tuple of arguments and a dict of named ones")
    return CallStructure(tree.flatten(call, []), tree.flatten(result, []), tuple(parameters))


def plain_structure(graph: Graph) -> CallStructure:
    """Return the structure of calls of a graph itself: tensors in, a tensor or a tuple of tensors out."""
    call: tuple[Any, dict[str, Any]] = (tuple(_PLACEHOLDER for _ in graph.inputs), {})
    result = _PLACEHOLDER if graph.single else tuple(_PLACEHOLDER for _ in graph.outputs)
    names = tuple(graph.names.get(n, f"argument {i}") for i, n in enumerate(graph.inputs))
    return CallStructure(tree.flatten(call, []), tree.flatten(result, []), names)


def count_tensors(part: tree.Tree) -> int:
    """Return the number of tensors in a structure."""
    return len(tree.leaf_positions(part))


def _field(data: Any, name: str) -> Any:
    if not isinstance(data, dict) or name not in data:
        raise FormatError(f"the structure of a call has no {name}")
    return data[name]


def _list(data: Any, what: str) -> Sequence[Any]:
    if not isinstance(data, list):
        raise FormatError(f"{what} must be a list, not {type(data).__name__}")
    return data


def _decode(data: Any, room: list[int], depth: int = 0) -> Any:
    """Return a value with a placeholder for each tensor. `room` counts the parts that may follow."""
    room[0] -= 1
    if depth > DEPTH or room[0] < 0:
        raise FormatError(f"a structure is nested more than {DEPTH} deep or has more than {MAX_PARTS} parts")
    if data == TENSOR:
        return _PLACEHOLDER
    if not isinstance(data, dict) or len(data) != 1:
        raise FormatError("a part of a structure must be a tensor, a value or a container")
    ((name, content),) = data.items()
    if name == "value":
        return _read_value(content)
    if name in CONTAINERS:
        return CONTAINERS[name](_decode(c, room, depth + 1) for c in _list(content, "a container"))
    if name != "dict":
        raise FormatError("a part of a structure is of an unknown kind")
    pairs = [_list(pair, "a pair of a dict") for pair in _list(content, "a dict")]
    if any(len(pair) != 2 for pair in pairs):
        raise FormatError("a pair of a dict must have a key and a value")
    value = {_read_value(key): _decode(part, room, depth + 1) for key, part in pairs}
    if len(value) != len(pairs):
        raise FormatError("a dict has a key twice")
    return value


def _read_value(text: Any) -> Any:
    value = parse_value(text) if isinstance(text, str) else None
    if not isinstance(text, str) or type(value) not in VALUES:
        raise FormatError("a value of a structure must be a number, a string, a dtype or None")
    return value
