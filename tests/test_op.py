"""Keys of attributes, the same in native code and in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.op import exact, plain_exact

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.just(tt.f32),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.tuples(inner, inner)),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_keys_of_attributes_are_the_same_in_both_builds(value: Any) -> None:
    key = exact(value)
    assert repr(key) == repr(plain_exact(value))
    assert hash(key) == hash(plain_exact(value))


def test_keys_of_attributes_keep_numbers_apart() -> None:
    keys = {exact(v) for v in (0, 0.0, -0.0, False, 1, 1.0, True, (1,), (1.0,), "1", None, np.float64(1), float("nan"))}
    assert len(keys) == 12  # a NumPy float is a float
    assert exact([1, (2,)]) == exact((1, [2]))
    assert exact(float("nan")) == exact(float("nan"))
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(RecursionError):
        exact(deep)
    while deep:
        (deep,) = deep
