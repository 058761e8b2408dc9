"""The structure of arguments and results as JSON: what is written is read back, and anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.compiler import tree
from tritium.compiler.saved.structure import CallStructure, count_tensors, decode, encode
from tritium.errors import ArgumentError, FormatError

VALUES = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=6)
VALUES |= st.complex_numbers() | st.sampled_from([tt.f32, tt.bool, tt.tern2])
KEYS = st.text(max_size=3) | st.integers(-3, 3) | st.booleans() | st.none()
NESTED = st.recursive(
    VALUES | st.just(np.zeros(1)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def call_tree(*args: Any, **kwargs: Any) -> tree.Tree:
    return tree.flatten((args, kwargs), [])


@settings(max_examples=60, deadline=None)
@given(st.lists(NESTED, max_size=3), st.dictionaries(st.text(max_size=3), NESTED, max_size=2), NESTED)
def test_a_structure_is_read_back(args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
    structure = CallStructure(tree.flatten((tuple(args), kwargs), []), tree.flatten(result, []), ("a", "*rest"))
    again = decode(json.loads(json.dumps(encode(structure))))
    assert again.parameters == structure.parameters
    for one, other in ((again.call, structure.call), (again.result, structure.result)):
        assert tree.key(one) == tree.key(other)
        assert tree.leaf_positions(one) == tree.leaf_positions(other)
        assert count_tensors(one) == count_tensors(other)
        assert repr(tree.unflatten(one, range(99))) == repr(tree.unflatten(other, range(99)))


def test_deep_structures_are_refused_on_both_sides() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ArgumentError, match="nested more than 32 deep"):
        encode(CallStructure(call_tree(deep), tree.flatten(deep, []), ("x",)))
    text: Any = "tensor"
    for _ in range(40):
        text = {"list": [text]}
    with pytest.raises(FormatError, match="nested more than 32 deep"):
        decode({"call": {"tuple": []}, "result": text, "parameters": []})


GOOD = encode(CallStructure(call_tree(1), tree.flatten(np.zeros(1), []), ()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("call", "tensor"), ("call", {"tuple": [{"list": []}, {"dict": []}]}), ("call", {"tuple": [{"tuple": []}]}),
        ("call", {"tuple": [{"tuple": []}, {"dict": [["1", "tensor"]]}]}), ("result", None), ("result", {"value": "f32[2]"}),
        ("result", {"value": "1 2"}), ("result", {"value": 3}), ("result", {"set": []}), ("result", {"list": "tensor"}),
        ("result", {"dict": [["'a'"]]}), ("result", {"dict": [["'a'", "tensor"], ["'a'", "tensor"]]}),
        ("result", {"value": "__import__('os')"}), ("result", {"tuple": [], "list": []}), ("parameters", [1]),
        ("parameters", "x"), ("result", {"value": "(1, 2)"}),
    ],
)  # fmt: skip
def test_anything_else_is_refused(field: str, value: Any) -> None:
    decode(GOOD)
    with pytest.raises(FormatError):
        decode(GOOD | {field: value})
    with pytest.raises(FormatError):
        decode({k: v for k, v in GOOD.items() if k != field})
