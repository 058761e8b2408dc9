"""Recommendations: derived from the numbers, with the numbers, and silent where there are none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from made_results import changed, results
from tritium.perf.records.case import Context
from tritium.perf.records.run import Results, Series
from tritium.perf.tables.selection import Recommendation, device_selection_guide

CASES = {
    "matmul 64x64 f32": 1e-5, "matmul 1024x1024 f32": 1e-2, "matmul 1024x1024 f16": 1e-3, "add 64x64 f32": 1e-6,
    "bitlinear 64x64 f32": 1e-5, "bitlinear 1024x1024 f32": 1e-3,
}  # fmt: skip


def found(arms: dict[str, float], cases: dict[str, float] = CASES, **more: Any) -> Results:
    given = results(cases, arms=arms, **more)
    for case in cases:
        operation, shape, precision = case.split()
        context = Context(operation, tuple(map(int, shape.split("x"))), precision)
        given = changed(given, case, context=context)
    return given


def told(given: Results, use_case: str) -> Recommendation:
    return next(r for r in device_selection_guide(given).recommendations if r.use_case == use_case)


def slower(given: Results, case: str, arm: str, times: float) -> Results:
    run = given.of(case, arm)
    assert run is not None
    values = tuple(tuple(tuple(times * v for v in b) for b in g) for g in run.series[0].values)
    return changed(given, case, arm, series=(replace(run.series[0], values=values),))


def test_there_are_five_use_cases() -> None:
    names = [r.use_case for r in device_selection_guide(found({"tritium": 1.0})).recommendations]
    assert names == ["training", "batch inference", "latency", "memory-limited", "development"]


@pytest.mark.parametrize(
    ("arm", "case"), [("training", "matmul 1024x1024 f32"), ("batch inference", "bitlinear 1024x1024 f32")]
)
def test_the_faster_arm_of_the_largest_case_is_recommended_and_the_numbers_turn_it_around(arm: str, case: str) -> None:
    given = found({"tritium": 1.0, "numpy": 3.0})
    one = told(given, arm)
    assert one.arms == ("tritium",)
    assert one.cases == (case,)
    assert "numpy" in one.evidence
    assert "; 3.0" in one.evidence or "; 2.9" in one.evidence
    two = told(slower(given, case, "tritium", 10), arm)
    assert two.arms == ("numpy",)


def test_a_half_type_does_not_stand_for_training() -> None:
    given = slower(found({"tritium": 1.0, "numpy": 3.0}), "matmul 1024x1024 f16", "tritium", 100)
    assert told(given, "training").arms == ("tritium",)


def test_latency_goes_by_the_smallest_size_of_every_operation() -> None:
    given = found({"tritium": 1.0, "numpy": 2.0})
    assert set(told(given, "latency").cases) == {"matmul 64x64 f32", "add 64x64 f32", "bitlinear 64x64 f32"}
    for case in told(given, "latency").cases:
        given = slower(given, case, "tritium", 5)
    assert told(given, "latency").arms == ("numpy",)
    assert told(given, "training").arms == ("tritium",)


def test_of_two_types_of_one_size_the_first_measured_stands_for_it() -> None:
    cases = {"bitlinear 8x8 f32": 1e-5, "bitlinear 8x8 f16": 1e-5}
    assert told(found({"tritium": 1.0, "numpy": 3.0}, cases), "batch inference").cases == ("bitlinear 8x8 f32",)


def test_where_no_difference_is_shown_all_are_named_with_what_would_decide() -> None:
    given = found({"tritium": 1.0, "numpy": 1.0, "jax": 1.0, "torch": 3.0}, sd=0.05, canary_sd=0.01)
    one = told(replace(given, elapsed_s=300.0), "training")
    assert set(one.arms) == {"tritium", "numpy", "jax"}
    assert "; 1.02× jax (0.98…1.07): no difference is shown, more than 100 more processes" in one.evidence
    assert one.evidence.count("no difference is shown") == 1
    assert one.evidence.endswith("; 3.14× torch (3.03…3.26)")
    few = told(replace(found({"tritium": 1.0, "numpy": 1.08}, sd=0.15, seed=2), elapsed_s=300.0), "training")
    assert few.arms == ("tritium", "numpy")
    assert few.evidence.endswith(
        "; 1.13× numpy (0.99…1.29): no difference is shown, about 52 more processes (17 min) would decide"
    )


def test_contenders_that_differ_by_less_than_the_margin_are_both_named_and_it_is_decided() -> None:
    one = told(found({"tritium": 1.0, "numpy": 1.01, "torch": 3.0}, sd=0.002), "training")
    assert one.arms == ("tritium", "numpy")
    assert one.evidence.endswith("; they differ by less than 3 %; 3.00× torch (3.00…3.01)")


def test_what_is_said_to_be_faster_is_never_slower() -> None:
    for seed in range(10):
        given = found({"tritium": 1.0, "numpy": 1.05}, sd=0.1, seed=seed, generations=5, rounds=1)
        for use in ("training", "batch inference", "latency"):
            one = told(given, use)
            if len(one.arms) == 1:
                assert float(one.evidence.split("; ")[-1].split("×")[0]) > 1, one


def test_one_round_gives_a_ratio_without_an_interval() -> None:
    one = told(found({"tritium": 1.0, "numpy": 3.0}, generations=1, rounds=1), "training")
    assert one.arms == ("tritium",)
    assert "…" not in one.evidence
    assert one.evidence.endswith("× numpy")


def test_an_arm_that_failed_is_not_recommended() -> None:
    given = changed(found({"tritium": 3.0, "numpy": 1.0}), "matmul 1024x1024 f32", "numpy", status="crashed", series=())
    one = told(given, "training")
    assert one.arms == ("tritium",)
    assert "numpy did not complete all of it" in one.evidence


def test_what_was_not_measured_is_not_told() -> None:
    given = found({"tritium": 1.0, "numpy": 2.0}, {"add 64x64 f32": 1e-6})
    assert told(given, "training") == Recommendation("training", (), "no f32 matmul was measured", ())
    assert told(given, "memory-limited").arms == ()
    assert [use for use, _ in device_selection_guide(given).use_case_recommendations] == ["latency"]


def test_memory_goes_by_the_bytes_of_weights() -> None:
    given = found({"tritium": 1.0, "numpy": 0.1})
    case = "bitlinear 1024x1024 f32"
    given = changed(given, case, "tritium", facts={"bytes of weights": 262144})
    given = changed(given, case, "numpy", facts={"bytes of weights": 4194304})
    one = told(given, "memory-limited")
    assert one.arms == ("tritium",)
    assert one.evidence == "weights of 256 KiB for bitlinear 1024x1024 f32; numpy 4 MiB"


def test_memory_goes_by_resident_growth_where_no_weights_are_told() -> None:
    given = found({"tritium": 1.0, "numpy": 1.0}, {"add 64x64 f32": 1e-6})
    for arm, n in (("tritium", 9000.0), ("numpy", 3000.0)):
        wall = given.of("add 64x64 f32", arm).series  # type: ignore[union-attr]
        given = changed(given, "add 64x64 f32", arm, series=(*wall, Series("rss_bytes", "B", (((n,),),))))
    assert told(given, "memory-limited").arms == ("numpy",)


def first_calls(seconds: dict[str, float]) -> Results:
    given = found(dict.fromkeys(seconds, 1.0))
    for case in CASES:
        for arm, s in seconds.items():
            given = changed(given, case, arm, first_call_s=s)
    return given


def test_development_goes_by_the_first_calls() -> None:
    one = told(first_calls({"tritium": 0.1, "torch.compile": 3.0}), "development")
    assert one.arms == ("tritium",)
    assert "600 ms" in one.evidence
    assert "18 s" in one.evidence


def test_waiting_nobody_feels_decides_nothing() -> None:
    assert told(first_calls({"tritium": 1e-3, "numpy": 1e-5}), "development").arms == ("numpy", "tritium")


def test_an_arm_names_what_computes_there() -> None:
    given = found({"tritium": 1.0, "numpy": 2.0})
    runs = tuple(
        replace(r, context=replace(r.context, optimisation="avx2")) if r.arm == "tritium" else r for r in given
    )
    assert told(replace(given, runs=runs), "training").arms == ("tritium (avx2)",)


def test_with_one_arm_it_is_said_that_nothing_else_was_measured() -> None:
    assert told(found({"tritium": 1.0}), "training").evidence.endswith("nothing else was measured")


def test_the_guides_names_give_pairs() -> None:
    pairs = device_selection_guide(found({"tritium": 1.0, "numpy": 2.0})).use_case_recommendations
    assert ("training", "tritium") in pairs
    assert all(isinstance(use, str) and isinstance(arm, str) for use, arm in pairs)


def test_canaries_stand_for_no_use() -> None:
    for r in device_selection_guide(found({"tritium": 1.0, "numpy": 2.0})).recommendations:
        assert not any(case.startswith("canary") for case in r.cases)


@pytest.mark.parametrize("use", ["training", "batch inference", "latency", "development"])
def test_a_line_of_the_guide_stands_where_its_interval_decides_however_disturbed_the_run(use: str) -> None:
    given = (
        first_calls({"tritium": 1.0, "numpy": 3.0}) if use == "development" else found({"tritium": 1.0, "numpy": 3.0})
    )
    flags = ("45 rounds kept though other work broke in", "waited: the CPU time is 20% of the wall time")
    every = replace(given, runs=tuple(replace(r, flags=flags) for r in given))
    assert told(every, use) == told(given, use)
    assert told(every, use).arms == ("tritium",)
    wild = found({"tritium": 1.0, "numpy": 3.0}, canary_sd=0.3)
    assert use == "development" or told(wild, use).arms == ("tritium",)


def test_a_small_difference_whose_interval_reaches_beyond_the_margin_decides() -> None:
    one = told(found({"tritium": 1.0, "numpy": 1.03}, sd=0.02, seed=0), "training")
    assert one.arms == ("tritium",)
    ratio, low, high = map(float, re.findall(r"\d\.\d\d", one.evidence.split("; ")[1]))
    assert 1 < low < ratio < high
    assert high > 1.03


def test_a_wide_interval_that_is_on_one_side_decides() -> None:
    one = told(found({"tritium": 1.0, "numpy": 3.0}, sd=0.5, seed=1), "training")
    assert one.arms == ("tritium",)
    ratio, low, high = map(float, re.findall(r"\d\.\d\d", one.evidence.split("; ")[1]))
    assert low < ratio < high
    assert high / low > 1.5
