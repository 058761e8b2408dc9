"""One-liners: what they unpack to, their intervals, and floors."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

import tritium as tt
from tritium.errors import ArgumentError, FormatError, PerformanceError, VerifyError
from tritium.machine.facts import this_machine
from tritium.perf import aliases
from tritium.perf.records.case import Case, Context, Made, Recipe, Work
from tritium.perf.records.run import Run, Series
from tritium.perf.suites import quick

SHORT = 0.02
CASE = Case("a case", Recipe("nowhere:nothing"), Context("a case"), Work(flops=1000))


def fixed(*seconds: float) -> quick.Timed:
    return quick.Timed("a case", seconds, Work(flops=10**9, read=10**9), 1, "the same values")


def test_a_product_unpacks_to_time_and_rate() -> None:
    us, gflops = found = tt.perf.matmul(64, seconds=SHORT)
    assert gflops == pytest.approx(2 * 64**3 / us / 1e3)
    assert len(found.samples) >= quick.LEAST
    low, high = found.interval
    assert low <= found.seconds <= high


@pytest.mark.slow
def test_the_guides_functions_unpack_to_their_tuples() -> None:
    for found in (
        aliases.benchmark_element_wise((8, 8), seconds=SHORT),
        quick.benchmark_reduction((8, 8), seconds=SHORT),
        quick.benchmark_device_transfer((8, 8), seconds=SHORT),
        quick.benchmark_memory_allocation(seconds=SHORT),
        quick.benchmark_quantization((8, 8), seconds=SHORT),
        quick.benchmark_matmul_with_size((8, 16, 4), seconds=SHORT),
        quick.benchmark_elementwise("multiply", (8, 8), seconds=SHORT),
        quick.benchmark_with_dtype("tern2", 64, seconds=SHORT),
        aliases.benchmark_contiguous(shape=(8, 8), seconds=SHORT),
        quick.benchmark_strided(shape=(8, 8), seconds=SHORT),
        quick.benchmark_dispatch(seconds=SHORT),
    ):
        first, second = found
        assert first > 0
        assert second > 0
        assert "95 %" in str(found)


def test_every_one_liner_is_reached_from_perf() -> None:
    for name in ("matmul", "benchmark_memory_allocation", "assert_performance", "timed", "benchmark"):
        assert callable(getattr(tt.perf, name))


def test_workloads_can_be_timed_too() -> None:
    assert quick.timed("decode", (8, 64), seconds=SHORT).work.item == "token"


def test_a_call_that_gives_a_wrong_answer_is_not_timed() -> None:
    wrong = Made(lambda: [1.0], answer=lambda r: r, expected=lambda: [2.0])
    with pytest.raises(VerifyError, match="it was not timed"):
        quick.measured(CASE, wrong)


def test_results_are_waited_for_and_the_case_is_closed() -> None:
    waited, closed = [], []
    made = Made(lambda: 1, wait=waited.append, close=lambda: closed.append(True))
    found = quick.measured(CASE, made, seconds=SHORT)
    assert len(waited) > found.calls * len(found.samples)
    assert closed == [True]


def test_what_an_operation_refuses_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="not i8"):
        quick.timed("gelu", (8, 8), "i8")


def test_a_layout_that_is_unknown_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="layout"):
        quick.timed("add", (8, 8), layout="diagonal")


def test_gflops_come_from_seconds_and_shape() -> None:
    assert quick.calculate_gflops(1e-3, (100, 200, 300)) == pytest.approx(2 * 100 * 200 * 300 / 1e6)


def test_figures_carry_their_units() -> None:
    found = fixed(*[0.002] * 7)
    assert (found.ms, found.us, found.ns) == pytest.approx((2, 2000, 2e6))
    assert (found.gflops, found.gbs, found.throughput) == pytest.approx((500, 500, 500))
    assert str(found).startswith("a case: 2 ms (2 … 2, 95 % within this process)  7 samples  500 GFLOP/s")


# ---- floors


def test_a_speed_above_the_floor_passes() -> None:
    assert tt.perf.assert_performance(fixed(*[0.002] * 7), at_least=500).outcome == "passed"
    assert tt.perf.assert_performance(460.0, at_least=500, tolerance=0.1).outcome == "passed"


def test_a_speed_below_the_floor_raises() -> None:
    with pytest.raises(PerformanceError, match="at least 450 is required"):
        tt.perf.assert_performance(fixed(*[0.004] * 7), at_least=500)
    with pytest.raises(PerformanceError):
        tt.perf.assert_performance(440.0, at_least=500)


def test_a_floor_inside_the_interval_is_inconclusive(caplog: pytest.LogCaptureFixture) -> None:
    wide = fixed(0.002, 0.0021, 0.0025, 0.0019, 0.0028, 0.0022, 0.0024)
    with caplog.at_level(logging.WARNING, "tritium"):
        assert tt.perf.assert_performance(wide, at_least=500).outcome == "inconclusive"
    assert "inconclusive" in caplog.text


def test_a_run_has_its_interval_too() -> None:
    values = tuple(((0.002,), (0.002,)) for _ in range(4))
    run = Run("c", "tritium", Context("c"), Work(flops=10**9), series=(Series("wall", "s", values),))
    assert tt.perf.assert_performance(run, at_least=500).measured == pytest.approx(500)
    with pytest.raises(PerformanceError, match="crashed"):
        tt.perf.assert_performance(Run("c", "a", Context("c"), Work(flops=1), "crashed", "SIGSEGV"), at_least=1)


def test_other_rates_have_floors() -> None:
    assert tt.perf.assert_performance(fixed(*[0.002] * 7), at_least=400, metric="gbs").outcome == "passed"
    with pytest.raises(ArgumentError, match="no rate"):
        tt.perf.assert_performance(fixed(*[0.002] * 7), at_least=1, metric="wall")
    with pytest.raises(ArgumentError, match="has no gflops"):
        tt.perf.assert_performance(quick.Timed("c", (1.0,) * 7, Work(), 1, ""), at_least=1)


def test_floors_can_stand_in_a_file_by_machine(tmp_path: Path) -> None:
    file = tmp_path / "floors.json"
    file.write_text(json.dumps({this_machine().key: {"a case": 500}, "other": {"a case": 1e9}}))
    assert tt.perf.assert_performance(fixed(*[0.002] * 7), floors=file).least == 450
    assert tt.perf.assert_performance(fixed(*[0.002] * 7), floors=file, name="another").outcome == "no floor"
    with pytest.raises(PerformanceError):
        tt.perf.assert_performance(fixed(*[0.02] * 7), floors=file)


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', "{", None])
def test_a_bad_file_of_floors_is_explained(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "floors.json"
    file.write_text(text or json.dumps({this_machine().key: {"a case": -1}}))
    with pytest.raises(FormatError, match=r"floors\.json"):
        tt.perf.assert_performance(fixed(*[0.002] * 7), floors=file)


def test_a_floor_must_be_given() -> None:
    with pytest.raises(ArgumentError, match="no floor was given"):
        tt.perf.assert_performance(1.0)
    with pytest.raises(ArgumentError, match="tolerance"):
        tt.perf.assert_performance(1.0, at_least=1, tolerance=10)


@pytest.mark.parametrize(
    ("measured", "floor"), [(math.nan, 500), (100.0, math.nan), (100.0, -5), (100.0, 0), (math.inf, 5)]
)
def test_what_is_no_number_does_not_pass_a_floor(measured: float, floor: float) -> None:
    with pytest.raises(ArgumentError, match="numbers are compared"):
        quick.assert_performance(measured, floor)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ArgumentError, match="a time above 0"):
        quick.matmul(8, seconds=seconds)
    with pytest.raises(ArgumentError, match="a time above 0"):
        quick.calculate_gflops(seconds, (8, 8))


def test_both_sides_of_dispatch_say_whose_they_are() -> None:
    said = str(quick.benchmark_dispatch(seconds=SHORT)).splitlines()
    assert [line.partition(":")[0] for line in said] == ["add 8 f32, tritium", "add 8 f32, numpy"]
