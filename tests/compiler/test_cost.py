"""The cost model stands on what was measured."""

from __future__ import annotations

import tritium as tt
from tritium import ops
from tritium.compiler import cost
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


def test_a_table_is_read_only_where_it_is_asked() -> None:
    table, places = tt.Spec((50_000, 64)), tt.Spec((3,), tt.i64)
    cost = tt.take.cost(tt.Spec((3, 64)), table, places, axis=0)
    assert (cost.read, cost.written) == (3 * 64 * 4 + 24, 3 * 64 * 4)


def test_a_cache_is_written_only_where_tokens_go() -> None:
    cache, values, places = tt.Spec((1, 4, 1024, 64), tt.f16), tt.Spec((1, 1, 4, 64)), tt.Spec((1, 3), tt.i32)
    cost = tt.update_cache.cost(cache, cache, values, places)
    assert (cost.read, cost.written) == (4 * 64 * 4 + 12, 4 * 64 * 2)


def test_the_work_of_attention_over_a_part_of_a_cache_is_told_by_values() -> None:
    q, k = tt.Spec((1, 1, 4, 64)), tt.Spec((1, 4, 1024, 64))
    assert tt.attention.tells_cost((q, k, k, None))
    assert not tt.attention.tells_cost((q, k, k, tt.Spec((1, 3), tt.i32)))
