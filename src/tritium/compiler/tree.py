"""Pytrees: nested tuples, lists and dicts of tensors as one flat list, and back.

Knows nothing of graphs. Other values are part of the structure of the tree. They must be hashable, unless they are objects that are
told apart by identity: a key refers to those weakly, so that it keeps none alive.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from tritium.buffer import Caller, Row
from tritium.dtype import DType
from tritium.errors import ArgumentError
from tritium.op import exact
from tritium.tensor import Tensor


class Leaf(NamedTuple):
    """A tensor: its position in the flat list."""

    position: int


class Identity(weakref.ref[Any]):
    """A weak key of an object: equal to other keys of the same object only."""

    __slots__ = ("number",)

    def __init__(self, value: Any) -> None:
        super().__init__(value)  # type: ignore[call-arg]
        self.number = id(value)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        # Two keys of an object that has ended are equal too, so that its entries can be dropped.
        return isinstance(other, Identity) and self.number == other.number and self() is other()


class Instance(NamedTuple):
    """The object that a method is called on: whatever its class says about equality, it is told apart by identity."""

    value: Any


class Static(NamedTuple):
    """A value that is no tensor: a number, a string, None, any object. `key` distinguishes it from others."""

    value: Any
    key: Any


class Branch(NamedTuple):
    """A container: its constructor, the key that distinguishes it from others, and its children."""

    make: Callable[[list[Any]], Any]
    key: Any
    children: tuple[Any, ...]


Tree = Leaf | Static | Branch


def flatten(value: Any, leaves: list[Any]) -> Tree:
    """Return the tree of a value, and append its tensors and arrays to `leaves`."""
    try:
        return _flatten(value, leaves)
    except RecursionError:
        raise ArgumentError(
            "compile: an argument is nested too deeply; give tensors in fewer lists or dicts."
        ) from None


def _flatten(value: Any, leaves: list[Any]) -> Tree:
    if isinstance(value, (Tensor, np.ndarray)):
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    if isinstance(value, Instance):
        if isinstance(value.value, (Tensor, np.ndarray, tuple, list, dict)):
            return _flatten(value.value, leaves)
        return Static(value.value, _weak_key(value.value) or _key(value.value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        kind = type(value)
        return Branch(lambda xs: kind(*xs), kind, tuple(_flatten(v, leaves) for v in value))
    if isinstance(value, (tuple, list)):
        make: Callable[[list[Any]], Any] = tuple if isinstance(value, tuple) else list
        return Branch(make, type(value), tuple(_flatten(v, leaves) for v in value))
    if isinstance(value, dict):
        names = tuple(value)
        return Branch(
            lambda xs: dict(zip(names, xs, strict=True)), names, tuple(_flatten(v, leaves) for v in value.values())
        )
    return Static(value, _key(value))


def _key(value: Any) -> Any:
    kind: Any = type(value)
    plain: Any = object
    if kind.__eq__ is plain.__eq__ and kind.__hash__ is plain.__hash__:
        weak = _weak_key(value)
        if weak is not None:
            return weak
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            f"compile: an argument of type {type(value).__name__} is neither a tensor nor hashable, so calls with "
            f"different values could not be told apart; pass tensors, numbers, strings or tuples of them."
        ) from None
    return exact(value)


def _weak_key(value: Any) -> Identity | None:
    """Return a key that does not keep an object alive; None for one that allows no weak references."""
    try:
        return Identity(value)
    except TypeError:
        return None


def objects(tree: Tree) -> Iterator[Any]:
    """Yield the values of a tree that its key refers to weakly."""
    if isinstance(tree, Static) and isinstance(tree.key, Identity):
        yield tree.value
    elif isinstance(tree, Branch):
        for child in tree.children:
            yield from objects(child)


def key(tree: Tree) -> Any:
    """Return a hashable key of the structure of a tree and of its values that are no tensors."""
    if isinstance(tree, Leaf):
        return None
    if isinstance(tree, Static):
        return tree.key
    return (tree.key, *(key(c) for c in tree.children))


def unflatten(tree: Tree, leaves: Any) -> Any:
    """Return the value of a tree with these tensors as leaves."""
    if isinstance(tree, Leaf):
        return leaves[tree.position]
    if isinstance(tree, Static):
        return tree.value
    return tree.make([unflatten(c, leaves) for c in tree.children])


def leaf_positions(tree: Tree) -> list[int]:
    """Return the positions of all tensors in a tree."""
    if isinstance(tree, Leaf):
        return [tree.position]
    return [] if isinstance(tree, Static) else [i for c in tree.children for i in leaf_positions(c)]


# ---- attributes of objects that a traced function reads

SIMPLE = (bool, int, float, complex, str, bytes, type(None), DType)
OPAQUE = (Caller, Row, ModuleType, FunctionType, MethodType, type, np.ndarray)  # not searched for attributes
MAX_NODES = 50_000  # that are searched in one object
MAX_ITEMS = 64  # of a list or dict whose numbers and strings are compared one by one
MISSING = object()

Guards = dict[
    tuple[str, Any], Any
]  # ("attribute" | "item" | "length", name): the value then, or guards of its own parts


class Node(NamedTuple):
    """A value that can be reached from an object."""

    parent: Node | None
    step: tuple[str, Any]  # how it is reached from its parent
    label: str  # the name of the last attribute on the way
    value: Any


class Expected(NamedTuple):
    """A value as it was while a function was traced."""

    value: Any

    def is_met(self, value: Any) -> bool:
        expected = self.value() if isinstance(self.value, Identity) else self.value
        return value is expected or (isinstance(value, SIMPLE) and exact(value) == exact(expected))


def owner(fn: Any) -> list[Any]:
    """Return the object whose attributes a bound method or a callable object reads; none for a function."""
    if isinstance(fn, MethodType):
        return [fn.__self__]
    return [] if isinstance(fn, OPAQUE) or not hasattr(fn, "__dict__") else [fn]


def guards(root: Any, fn: Any, captured: Iterable[Tensor]) -> Guards:
    """Return what a traced function read of an object: captured tensors, and by their names numbers, strings and parts."""
    tensors = {id(x) for x in captured}
    nodes = list(_nodes(root))
    names = _names_read(fn, {type(n.value) for n in nodes})
    checks: Guards = {}
    for node in nodes:
        if node.parent is None:
            continue
        if isinstance(node.value, (list, dict)) and node.label in names:
            _add(checks, Node(node, ("length", None), node.label, len(node.value)))
        elif id(node.value) in tensors or (node.label in names and isinstance(node.value, (*SIMPLE, Identity))):
            _add(checks, node)
    return checks


def _add(checks: Guards, node: Node) -> None:
    steps = []
    last: Node | None = node
    while last is not None and last.parent is not None:
        steps.append(last.step)
        last = last.parent
    for step in reversed(steps[1:]):
        checks = checks.setdefault(step, {})
    checks[steps[0]] = Expected(node.value)


def holds(root: Any, checks: Guards) -> bool:
    """Return True if an object still has the values that a traced function read."""
    for (how, name), expected in checks.items():
        value = _part(root, how, name)
        if not (expected.is_met(value) if isinstance(expected, Expected) else holds(value, expected)):
            return False
    return True


def _part(value: Any, how: str, name: Any) -> Any:
    if how == "attribute":
        return (
            getattr(value, "__dict__", {}).get(name, MISSING)
            if name not in _slots(_kind(value))
            else getattr(value, name, MISSING)
        )
    if how == "length":
        return len(value) if isinstance(value, (list, dict)) else MISSING
    if isinstance(value, dict):
        return value.get(name, MISSING)
    return value[name] if isinstance(value, (list, tuple)) and name < len(value) else MISSING


def _kind(value: Any) -> Any:
    return type(value)


@cache
def _slots(kind: Any) -> tuple[str, ...]:
    """Return the attributes of objects of a class that are not in their __dict__."""
    names = [n for k in kind.__mro__ if "__slots__" in vars(k) for n in _as_tuple(vars(k)["__slots__"])]
    return tuple(n for n in names if n not in ("__dict__", "__weakref__") and not n.startswith("__"))


def _as_tuple(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _nodes(root: Any) -> Iterator[Node]:
    """Yield what can be reached from an object: first what is near. A part met again is given as its identity."""
    waiting = deque([Node(None, ("", None), "", root)])
    seen: set[int] = set()
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node = waiting.popleft()
        value = node.value
        if isinstance(value, (Tensor, *SIMPLE, *OPAQUE)):
            yield node
            continue
        if id(value) in seen:
            weak = _weak_key(value)
            if weak is not None:
                yield node._replace(value=weak)
            continue
        seen.add(id(value))
        yield node
        waiting += [Node(node, step, label or node.label, part) for step, label, part in _parts(value)]


def _parts(value: Any) -> Iterator[tuple[tuple[str, Any], str, Any]]:
    """Yield the attributes or items of a value; of a long list or dict only those that are objects or tensors."""
    if isinstance(value, (list, tuple, dict)):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        yield from ((("item", k), "", v) for k, v in items if len(items) <= MAX_ITEMS or not isinstance(v, SIMPLE))
    if isinstance(value, (list, tuple)):
        return
    yield from ((("attribute", name), name, v) for name, v in getattr(value, "__dict__", {}).items())
    for name in _slots(_kind(value)):
        if (part := getattr(value, name, MISSING)) is not MISSING:
            yield ("attribute", name), name, part


def _names_read(fn: Any, kinds: set[type]) -> set[str]:
    """Return the names that a function loads, and the functions and methods of these classes that it may call."""
    waiting: list[Any] = [fn]  # the method __call__ of a callable object is among those of its class
    methods: dict[str, list[Any]] = {}
    for kind in {k for cls in kinds for k in cls.__mro__ if k.__module__ != "builtins"}:
        for name, method in vars(kind).items():
            methods.setdefault(name, []).append(method)
    waiting += methods.get("__call__", [])
    names: set[str] = set()
    codes: set[CodeType] = set()
    while waiting:
        current = waiting.pop()
        for wrapper in ("fget", "func", "fn", "__func__", "__wrapped__"):
            current = getattr(current, wrapper, current)
        code = current if isinstance(current, CodeType) else getattr(current, "__code__", None)
        if code is None or code in codes:
            continue
        codes.add(code)
        waiting += [c for c in code.co_consts if isinstance(c, CodeType)]
        loaded = {
            *code.co_names,
            *(c for c in code.co_consts if isinstance(c, str) and c.isidentifier()),
        }  # getattr(self, "w")
        names |= loaded
        known = getattr(current, "__globals__", {})
        waiting += [m for name in loaded for m in methods.get(name, ())]
        waiting += [f for name in code.co_names if isinstance(f := known.get(name), FunctionType)]
    return names
