"""The rotation in a configuration: signs survive as digits, and what is no rotation is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritium.errors import FormatError
from tritium.families.hadamard import read_hadamard
from tritium.io.model.supported import _signs


@given(st.lists(st.sampled_from([1, -1]), min_size=1, max_size=70))
def test_signs_survive(signs: list[int]) -> None:
    (pair,) = _signs([len(signs)], signs) or []
    rotation = read_hadamard({"hadamard_block": 1, "hadamard_signs": (tuple(pair),), "hadamard_names": ("a",)})
    assert rotation is not None
    assert rotation.signs_of(len(signs)) == signs


def test_without_a_block_there_is_no_rotation() -> None:
    assert read_hadamard({}) is None


def test_signs_of_a_width_that_has_none_are_refused() -> None:
    rotation = read_hadamard({"hadamard_block": 8, "hadamard_signs": ((8, "f0"),)})
    assert rotation is not None
    with pytest.raises(FormatError, match=r"hadamard_signs: found \[8\], needed signs for inputs of 16"):
        rotation.signs_of(16)
    plain = read_hadamard({"hadamard_block": 8})
    assert plain is not None
    assert plain.signs_of(16) is None


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"hadamard_block": 12}, "hadamard_block"),
        ({"hadamard_block": "8"}, "hadamard_block"),
        ({"hadamard_signs": ((8, "xyz"),)}, "hadamard_signs"),
        ({"hadamard_signs": ((8, "fff0"),)}, "hadamard_signs"),
        ({"hadamard_signs": ("f",)}, "hadamard_signs"),
        ({"hadamard_names": (1,)}, "hadamard_names"),
        ({"hadamard_inverse": 1}, "hadamard_inverse"),
    ],
)
def test_what_is_no_rotation_is_refused_by_name(more: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError, match=field):
        read_hadamard({"hadamard_block": 8} | more)
