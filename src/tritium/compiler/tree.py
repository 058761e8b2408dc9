"""Nested tuples, lists and dicts of tensors as one flat list, and back.

Knows nothing of graphs. What is not a tensor is part of the shape of the tree, by value where it can be hashed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tritium.errors import ArgumentError
from tritium.op import exact
from tritium.tensor import Tensor


class Leaf(NamedTuple):
    """Where a tensor stands in the list."""

    place: int


class Static(NamedTuple):
    """What is no tensor: a number, a string, None, any object. `key` tells it from others."""

    value: Any
    key: Any


class Branch(NamedTuple):
    """A container: how to make it again, what tells it from others, and what is in it."""

    make: Callable[[list[Any]], Any]
    key: Any
    children: tuple[Any, ...]


Tree = Leaf | Static | Branch


def flatten(value: Any, leaves: list[Any]) -> Tree:
    """The tree of a value; its tensors and arrays are added to `leaves`."""
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
    """A hashable stand-in of the tree's shape and of what is no tensor."""
    if isinstance(tree, Leaf):
        return None
    if isinstance(tree, Static):
        return tree.key
    return (tree.key, *(key(c) for c in tree.children))


def unflatten(tree: Tree, leaves: Any) -> Any:
    """The value again, with these tensors."""
    if isinstance(tree, Leaf):
        return leaves[tree.place]
    if isinstance(tree, Static):
        return tree.value
    return tree.make([unflatten(c, leaves) for c in tree.children])


def places(tree: Tree) -> list[int]:
    """The numbers of the tensors in a part of a tree."""
    if isinstance(tree, Leaf):
        return [tree.place]
    return [] if isinstance(tree, Static) else [i for c in tree.children for i in places(c)]
