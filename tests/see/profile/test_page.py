"""The page of a profile: which ops its note on uncounted work is about comes from the op table."""

from __future__ import annotations

import pytest

from tritium import ops
from tritium.op import OPS, Trait
from tritium.see.profile.op_table import OpRow
from tritium.see.profile.page import TRANSCENDENTAL, UNCOUNTED, op_table


def a_row(name: str) -> OpRow:
    return OpRow(name, "", "cpu", "op", "", 1, 100, 100, 100.0, 100.0, 100.0, 100.0, 100, 100, 1.0, least_ns=50.0)


def test_the_transcendental_ops_are_those_of_the_table() -> None:
    assert {OPS[name] for name in TRANSCENDENTAL} == ops.rows_with(Trait.TRANSCENDENTAL)
    assert {"exp", "pow", "atan2", "logaddexp", "softmax", "gelu"} <= TRANSCENDENTAL
    assert not {"power", "logsumexp", "swiglu", "sqrt", "hypot", "add"} & TRANSCENDENTAL


@pytest.mark.parametrize(
    ("name", "noted"), [("pow", True), ("fused: add, exp", True), ("sqrt", False), ("power", False)]
)
def test_the_note_on_uncounted_work_is_about_transcendental_ops(name: str, noted: bool) -> None:
    table = op_table([a_row(name)], 5, "the run")
    assert table is not None
    assert (UNCOUNTED in table.below) is noted
