"""The cost model stands on what was measured."""

from __future__ import annotations

import tritium as tt
from tritium import cost, ops
from tritium.op import Cost


def test_the_model_is_this_machines() -> None:
    m = cost.model(1)
    found = tt.ceilings(quick=True)
    peak = found.peak("f32", 1)
    assert peak is not None
    assert m.flops == peak.best
    assert m.levels[-1].rate == found.of("DRAM read", 1).best
    assert 0 < m.call_s < 1e-3


def test_levels_grow_and_the_last_holds_all() -> None:
    levels = cost.model(1).levels
    assert [v.nbytes for v in levels] == sorted(v.nbytes for v in levels)
    assert cost.model(1).rate(10**15) == levels[-1].rate


def test_integer_products_are_held_to_the_integer_peak() -> None:
    work = Cost(10**12, 1, 1)
    m = cost.model(cost.threads())
    assert cost.seconds(ops.quantized_matmul, work) == m.seconds(work, integer=True)
    assert cost.seconds(ops.matmul, work) == m.seconds(work)
