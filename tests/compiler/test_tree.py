"""Trees of tensors: flat and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import tritium as tt
from tritium.compiler import tree
from tritium.errors import ArgumentError


class Pair(NamedTuple):
    a: object
    b: object


A, B = tt.ones(2), tt.zeros(3)


@pytest.mark.parametrize("value", [A, (A, B), [A, {"x": B, "y": (1, None)}], Pair(A, [B, "s"]), {"only": 3}, ()])
def test_there_and_back(value: object) -> None:
    leaves: list[object] = []
    shape = tree.flatten(value, leaves)
    back = tree.unflatten(shape, leaves)
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_tensors_are_told_by_place_and_the_rest_by_value() -> None:
    def key(value: object) -> object:
        return tree.key(tree.flatten(value, []))

    assert key((A, 1)) == key((B, 1))
    assert key((A, 1)) != key((A, 1.0))
    assert key((A, 0.0)) != key((A, -0.0))
    assert key([A]) != key((A,))
    assert key({"a": A}) != key({"b": A})


def test_arrays_are_leaves_too() -> None:
    leaves: list[object] = []
    tree.flatten({"a": np.ones(2), "b": [A]}, leaves)
    assert len(leaves) == 2


def test_what_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="bytearray"):
        tree.flatten((A, bytearray(2)), [])


def test_places_of_a_part() -> None:
    shape = tree.flatten((A, [B, {"k": A}], 3), [])
    assert isinstance(shape, tree.Branch)
    assert tree.leaf_positions(shape.children[1]) == [1, 2]
    assert tree.leaf_positions(shape.children[2]) == []
