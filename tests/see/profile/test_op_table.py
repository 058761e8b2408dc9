"""The table of operations: counts, times, rates, ceilings and what bounds a row, against timelines made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from made_profiles import ADD, LIMITS, MACHINE, MATMUL, PROGRAM, SCOPE, TINY, made
from made_timelines import nested
from tritium.errors import ArgumentError
from tritium.perf.records.environment import Level
from tritium.see.charts import charts
from tritium.see.profile import roofline
from tritium.see.profile.op_table import PARTS, rows
from tritium.see.trace.timeline import Timeline, What


def test_a_row_has_the_figures_of_its_calls() -> None:
    (row,) = rows(made(*((MATMUL, 1000 * i, 100 + i) for i in range(100))))
    taken = 100 + np.arange(100)
    assert (row.count, row.total_ns, row.min_ns, row.max_ns) == (100, taken.sum(), 100, 199)
    assert (row.mean_ns, row.p50_ns) == (taken.mean(), np.median(taken))
    assert (row.p95_ns, row.p99_ns) == tuple(np.quantile(taken, (0.95, 0.99)))


def test_what_calls_itself_is_counted_once_for_the_time_it_is_open() -> None:
    (row,) = rows(made((SCOPE, 0, 100), (SCOPE, 10, 90), (SCOPE, 20, 50), (SCOPE, 200, 30)), kinds=PARTS)
    assert (row.count, row.total_ns, row.own_ns) == (4, 130, 130)
    assert row.mean_ns == (100 + 90 + 50 + 30) / 4


def test_threads_that_are_in_a_scope_at_once_are_both_counted() -> None:
    (row,) = rows(made((SCOPE, 0, 100), (SCOPE, 0, 100, 1)), kinds=PARTS)
    assert row.total_ns == 200


@given(nested())
def test_no_row_is_open_longer_than_the_run_of_its_lanes(t: Timeline) -> None:
    for row in rows(t, kinds=("op",)):
        assert row.own_ns <= row.total_ns <= 2 * t.elapsed_total_ns


def test_rates_are_work_by_time() -> None:
    (row,) = rows(made((MATMUL, 0, 40_000), (MATMUL, 50_000, 40_000)))
    assert row.gflops == pytest.approx(2 * 2e6 / 80_000)  # FLOP a ns are GFLOP/s
    assert row.gbs == pytest.approx(2 * 10_000 / 80_000)
    assert row.intensity == 200


def test_the_share_of_a_ceiling_is_the_least_possible_time_to_the_actual() -> None:
    (row,) = rows(made((MATMUL, 0, 40_000)))
    assert row.least_ns == pytest.approx(20_000)
    assert row.ceiling_share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("what", "took", "bound"),
    [
        (MATMUL, 40_000, "compute"),
        (ADD, 300_000, "memory"),
        (TINY, 5_000, "latency"),
        (replace(TINY, read=16_000), 200, "memory"),
    ],
)
def test_a_row_is_bound_by_the_longer_of_arithmetic_and_bytes_or_by_the_call(what: What, took: int, bound: str) -> None:
    (row,) = rows(made((what, 0, took)))
    assert row.bound == bound


def test_int8_products_are_measured_against_their_own_ceiling() -> None:
    (row,) = rows(made((replace(MATMUL, integer=True), 0, 40_000)))
    assert row.least_ns == pytest.approx(5_000)
    assert row.integer


def test_a_scope_that_is_mostly_not_covered_by_calls_is_bound_by_overhead() -> None:
    t = made((SCOPE, 0, 1000), (ADD, 0, 100), (PROGRAM, 2000, 1000), (ADD, 2000, 900))
    assert {r.name: r.bound for r in rows(t, kinds=PARTS)} == {"step": "overhead", "f": ""}


@pytest.mark.parametrize(
    ("environment", "what", "why"),
    [
        (None, MATMUL, "were not measured"),
        (replace(MACHINE, limits=None), MATMUL, "were not measured"),
        (MACHINE, replace(MATMUL, device="cuda"), "the ceilings of cuda"),
        (MACHINE, replace(MATMUL, flops=0, read=0, written=0), "not counted"),
        (
            replace(MACHINE, limits=replace(LIMITS, levels=(Level("L1", None, None), Level("DRAM", None, 1e9)))),
            replace(ADD, flops=0),
            "could not be measured",
        ),
    ],
)
def test_a_ceiling_that_is_not_known_is_absent_with_the_reason(environment: object, what: What, why: str) -> None:
    (row,) = rows(made((what, 0, 1000), environment=environment))
    assert (row.least_ns, row.ceiling_share, row.bound) == (None, None, "")
    assert why in row.unknown


def test_rows_are_told_apart_by_kernel_by_specs_or_by_name_alone() -> None:
    other, shape = replace(MATMUL, kernel="numpy"), replace(MATMUL, detail="f32[1]")
    t = made((MATMUL, 0, 1), (other, 2, 1), (shape, 4, 1), (replace(MATMUL, device="mlx"), 6, 1))
    assert [len(rows(t, by=by)) for by in ("name", "kernel", "specs")] == [2, 3, 4]
    assert {r.kernel for r in rows(t, by="name")} == {"avx512, numpy", "avx512"}
    assert {r.detail for r in rows(t, by="kernel")} == {""}


def test_layers_are_told_apart_where_steps_have_names() -> None:
    specs = MATMUL.detail
    up, down = (replace(MATMUL, detail=f"{name}: {specs}") for name in ("mlp: 1/up", "mlp: 1/down"))
    wide = replace(up, detail="mlp: 1/up: f32[9,9] -> f32[9]", kernel="numpy")
    t = made((up, 0, 1), (wide, 2, 1), (down, 4, 1), (MATMUL, 6, 1), (MATMUL, 8, 1))
    assert {(r.detail, r.kernel, r.count) for r in rows(t, by="layer")} == {
        ("mlp: 1/up", "avx512, numpy", 2), ("mlp: 1/down", "avx512", 1), ("", "avx512", 2),
    }  # fmt: skip


def test_an_unknown_way_to_tell_rows_apart_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'specs'"):
        rows(made((ADD, 0, 1)), by="spec")  # type: ignore[arg-type]


def test_shares_are_of_the_time_of_all_lanes_in_use() -> None:
    t = made((ADD, 0, 500_000), (ADD, 0, 1_000_000, 1))
    assert rows(t)[0].share == pytest.approx(0.75)


def test_the_longest_come_first_and_an_empty_timeline_has_no_rows() -> None:
    assert [r.name for r in rows(made((ADD, 0, 5), (MATMUL, 9, 7)))] == ["matmul", "add"]
    assert rows(made()) == ()


@given(st.lists(st.tuples(st.sampled_from([MATMUL, ADD, TINY]), st.integers(1, 10**6)), max_size=30))
def test_rows_account_for_every_call_and_every_ns(calls: list[tuple[What, int]]) -> None:
    at, spans = 0, []
    for what, took in calls:
        spans.append((what, at, took))
        at += took
    found = rows(made(*spans, total=max(at, 1)))
    assert sum(r.count for r in found) == len(calls)
    assert sum(r.own_ns for r in found) == at
    assert sum(r.share for r in found) == pytest.approx(1 if calls else 0)


# ---- the roofline


def test_points_lie_where_work_and_time_put_them() -> None:
    found = roofline.points(made((MATMUL, 0, 40_000), (SCOPE, 0, 90_000)))
    (point,) = found.points
    assert (point.intensity, point.rate) == (200, pytest.approx(50e9))
    assert {(r.name, r.kind, r.rate) for r in found.roofs} == {
        ("f32", "flops", 100e9), ("int8", "int_ops", 400e9), ("L1", "bytes", 100e9), ("DRAM", "bytes", 10e9),
    }  # fmt: skip


def test_a_roof_that_was_not_measured_is_told() -> None:
    found = roofline.points(made((MATMUL, 0, 40_000), environment=None))
    assert (len(found.points), found.roofs) == (1, ())
    assert found.absent.startswith("not measured")


def test_what_neither_computes_nor_moves_is_no_point() -> None:
    assert roofline.points(made((replace(ADD, flops=0), 0, 9), (replace(ADD, device="cuda"), 20, 9))).points == ()


def test_the_plot_has_a_dot_for_each_point_and_a_line_for_each_roof() -> None:
    found = roofline.points(made((MATMUL, 0, 40_000), (ADD, 50_000, 300_000)))
    plot = roofline.plot(found, "a profile")
    assert [d.name for d in plot.points] == ["add", "matmul"]
    assert [(r.name, r.kind, r.main) for r in plot.roofs] == [
        ("f32", "compute", True), ("L1", "memory", False), ("DRAM", "memory", True),
    ]  # fmt: skip
    assert "33 % of its ceiling, memory" in plot.points[0].note
    whole = roofline.plot(roofline.points(made((replace(MATMUL, integer=True), 0, 40_000))), "x")
    assert (whole.unit, [r.name for r in whole.roofs][1]) == ("OP/s", "int8")
    assert charts.svg(plot).startswith("<svg")
