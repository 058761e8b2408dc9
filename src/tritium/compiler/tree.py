"""Pytrees: nested tuples, lists and dicts of tensors as one flat list, and back.

Knows nothing of graphs. Other values are part of the structure of the tree and must be hashable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tritium.errors import ArgumentError
from tritium.op import exact
from tritium.tensor import Tensor


class Leaf(NamedTuple):
    """A tensor: its position in the flat list."""

    position: int


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
    if isinstance(value, (Tensor, np.ndarray)):
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        kind = type(value)
        return Branch(lambda xs: kind(*xs), kind, tuple(flatten(v, leaves) for v in value))
    if isinstance(value, (tuple, list)):
        make: Callable[[list[Any]], Any] = tuple if isinstance(value, tuple) else list
        return Branch(make, type(value), tuple(flatten(v, leaves) for v in value))
    if isinstance(value, dict):
        names = tuple(value)
        return Branch(
            lambda xs: dict(zip(names, xs, strict=True)), names, tuple(flatten(v, leaves) for v in value.values())
        )
    return Static(value, _key(value))


def _key(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            f"compile: an argument of type {type(value).__name__} is neither a tensor nor hashable, so calls with "
            f"different values could not be told apart; pass tensors, numbers, strings or tuples of them."
        ) from None
    return exact(value)


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
