"""Pytrees: nested tuples, lists and dicts of tensors as one flat list, and back.

Other values are part of the structure of the tree. They must be hashable, unless they are objects that are told apart by identity:
a key refers to those weakly, so that it keeps none alive.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from tritium import buffer
from tritium.buffer import BoundCaller, Caller, Row
from tritium.dtype import DType
from tritium.errors import ArgumentError
from tritium.graph.number import KINDS, Number
from tritium.interop import is_foreign
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
    if isinstance(value, (Tensor, np.ndarray)) or is_foreign(value):
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


def weak(value: Any) -> Identity | None:
    """Return a weak reference to an object; None for a plain value, or one that allows none."""
    return None if isinstance(value, (*SIMPLE, *OPAQUE)) else _weak_key(value)


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


def is_alive(key: Any) -> bool:
    """Return False for a key of an object that has ended: no call can have it again."""
    if isinstance(key, Identity):
        return key() is not None
    return all(map(is_alive, key)) if isinstance(key, tuple) else True


def numbers(tree: Tree) -> list[Any]:
    """Return the Python numbers of a tree, in order: those that a program could take as arguments."""
    if isinstance(tree, Static):
        return [tree.value] if type(tree.value) in KINDS else []
    return [] if isinstance(tree, Leaf) else [x for c in tree.children for x in numbers(c)]


def with_numbers(tree: Tree, values: Mapping[int, Any], position: int = 0) -> Tree:
    """Return the tree with other values in place of the numbers at these positions; the key has only their types."""
    if not values or isinstance(tree, Leaf):
        return tree
    if isinstance(tree, Static):
        kind = type(tree.value)
        return Static(values[position], (Number, kind)) if kind in KINDS and position in values else tree
    children = []
    for child in tree.children:
        children.append(with_numbers(child, values, position))
        position += len(numbers(child))
    return tree._replace(children=tuple(children))


def labels(tree: Tree, prefix: str) -> Iterator[tuple[str, Leaf | Static]]:
    """Yield the tensors and values of a tree with their names in Python: x, x[0], options['scale'], state.step."""
    if not isinstance(tree, Branch):
        yield prefix, tree
        return
    fields = getattr(tree.key, "_fields", None)
    names = tree.key if isinstance(tree.key, tuple) else range(len(tree.children))
    for i, (name, child) in enumerate(zip(names, tree.children, strict=True)):
        yield from labels(child, f"{prefix}.{fields[i]}" if fields else f"{prefix}[{name!r}]")


def call_labels(call: Tree, parameters: Sequence[str]) -> Iterator[tuple[str, Leaf | Static]]:
    """Yield the tensors and values of a call, named by the parameters of its function; the last one may be "*rest"."""
    assert isinstance(call, Branch)
    args, kwargs = call.children
    for i, child in enumerate(args.children):
        name = parameters[min(i, len(parameters) - 1)] if parameters else f"argument {i}"
        if name.startswith("*"):
            name = f"{name[1:]}[{i - len(parameters) + 1}]"
        yield from labels(child, name)
    for name, child in zip(kwargs.key, kwargs.children, strict=True):
        yield from labels(child, str(name))


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
        if isinstance(self.value, Identity):
            return value is not None and value is self.value()  # None: the object has ended
        return value is self.value or (isinstance(value, SIMPLE) and exact(value) == exact(self.value))


def owner(fn: Any) -> list[Any]:
    """Return the object whose attributes a bound method or a callable object reads; none for a function."""
    if isinstance(fn, (MethodType, BoundCaller)):
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


def guarded(program: Any, roots: list[Any], checks: tuple[Guards, ...], forget: Callable[[int], None]) -> Any:
    """Return a native callable that runs a program while `holds` is True for every root, and else returns None.

    It keeps no root alive; `forget` is called with the id of one that ends. None: there is no native library, or a root
    allows no weak references.
    """
    if buffer.native is None:
        return None
    listed: list[tuple[str, int, Any, Any]] = []
    for root, guards_of_root in zip(roots, checks, strict=True):
        weak = _weak_reference(root, forget)
        if weak is None:
            return None
        listed.append(("root", -1, weak, None))
        _list_checks(root, guards_of_root, listed)
    return buffer.native.Guarded(program, tuple(listed))


def _weak_reference(value: Any, forget: Callable[[int], None]) -> weakref.ref[Any] | None:
    number = id(value)
    try:
        return weakref.ref(value, lambda _: forget(number))
    except TypeError:
        return None


def _list_checks(value: Any, checks: Guards, listed: list[tuple[str, int, Any, Any]]) -> None:
    """Append the checks of a value, each with the number of the one that it begins at."""
    parent = len(listed) - 1
    for (how, name), expected in checks.items():
        kind = "slot" if how == "attribute" and name in _slots(_kind(value)) else how
        is_last = isinstance(expected, Expected)
        listed.append((kind, parent, name, (expected.value,) if is_last else None))
        if not is_last:
            _list_checks(_part(value, how, name), expected, listed)


def changed(root: Any, checks: Guards, prefix: str) -> str:
    """Return the attribute or item that is no longer as a traced function read it; "" if all are."""
    for (how, name), expected in checks.items():
        value = _part(root, how, name)
        label = (
            f"{prefix}.{name}" if how == "attribute" else f"{prefix}[{name!r}]" if how == "item" else f"len({prefix})"
        )
        if isinstance(expected, Expected):
            if not expected.is_met(value):
                return label
        elif inner := changed(value, expected, label):
            return inner
    return ""


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


# ---- names of captured tensors


def captured_names(fn: Any, objects: Mapping[str, Any], tensors: Iterable[int]) -> dict[int, str]:
    """Return by id() the names under which a function reaches tensors: variables, and attributes of objects and arguments."""
    searched = set(tensors)
    names: dict[int, str] = {}
    roots = dict(objects)
    for function in _functions(fn):
        roots |= {k: v for k, v in _variables(function).items() if k not in roots}
    for label, root in roots.items():
        for node in _nodes(root) if len(names) < len(searched) else ():
            if id(node.value) in searched and id(node.value) not in names:
                names[id(node.value)] = _path(node, label)
    return names


def _functions(fn: Any) -> Iterator[Any]:
    """Yield a function and the functions it may call, by their names or as free variables: first those that are near."""
    waiting, seen = deque([fn]), set[int]()
    while waiting:
        current = waiting.popleft()
        for wrapper in ("func", "fn", "__func__", "__wrapped__"):
            current = getattr(current, wrapper, current)
        if id(current) in seen or getattr(current, "__code__", None) is None:
            continue
        seen.add(id(current))
        yield current
        waiting += [v for v in _variables(current).values() if isinstance(v, (FunctionType, Caller))]


def _variables(fn: Any) -> dict[str, Any]:
    """Return the free variables of a function, and the globals that it names."""
    variables = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    codes = [fn.__code__, *(c for c in fn.__code__.co_consts if isinstance(c, CodeType))]
    known = fn.__globals__
    return variables | {n: known[n] for code in codes for n in code.co_names if n in known and n not in variables}


def _path(node: Node, root: str) -> str:
    steps = []
    last: Node | None = node
    while last is not None and last.parent is not None:
        how, name = last.step
        steps.append(f".{name}" if how == "attribute" else f"[{name!r}]")
        last = last.parent
    return root + "".join(reversed(steps))
