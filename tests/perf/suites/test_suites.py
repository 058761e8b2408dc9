"""Suites: every name has cases that can be made, every setting changes them, and what is left out is said."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tritium as tt
from made_results import results
from null import Null
from tritium import backends
from tritium.errors import ArgumentError
from tritium.perf.engine.worker import checked, resolve
from tritium.perf.records.run import PLANS, Plan, Run
from tritium.perf.suites import suites
from tritium.perf.suites.config import BenchmarkConfig, EnergyConfig, Options
from tritium.perf.suites.suites import SUITES, Grid, defaults
from tritium.perf.work import quantised, registry

GUIDES = {
    "comprehensive_performance_comparison": "comprehensive",
    "energy_efficiency_comparison": "energy",
    "quantization_performance": "quantization",
    "regression_performance_tests": "regression",
}
TINY = {"tensor_sizes": ((64, 64),), "data_types": ("f32",)}


def grid(
    suite: str, config: BenchmarkConfig, *, quick: bool = False, peers: tuple[str, ...] | None = None, **plan: Any
) -> Grid:
    return suites.grid(Options(suite, config, Plan(**plan), peers=peers, quick=quick))


def small(suite: str) -> BenchmarkConfig:
    return replace(defaults(suite, quick=True), **TINY)  # type: ignore[arg-type]


def names(suite: str, config: BenchmarkConfig, **more: Any) -> list[str]:
    return [case.name for case in grid(suite, config, peers=("none",), **more).cases]


@pytest.mark.parametrize(
    "name",
    ["comprehensive", "quantization", "energy", "workloads", "memory", "transfer", "layout", "dtype", "regression"],
)
def test_the_suites_of_the_guides_are_there(name: str) -> None:
    assert suites.suite_named(name).name == name


@pytest.mark.parametrize(("theirs", "ours"), GUIDES.items())
def test_the_guides_four_names_are_understood(theirs: str, ours: str) -> None:
    assert suites.suite_named(theirs) is SUITES[ours]


def test_a_name_that_is_no_suite_gets_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'quantization'"):
        suites.suite_named("quantisation")


def test_the_steps_of_the_suite_quantization_are_those_of_its_recipes() -> None:
    assert suites.STEPS == quantised.STEPS


@pytest.mark.parametrize("suite", ["compare", *SUITES])
@pytest.mark.parametrize("quick", [False, True])
def test_the_cases_of_a_suite_have_names_of_their_own_and_work(suite: str, quick: bool) -> None:
    found = grid(suite, defaults(suite, quick), quick=quick)
    named = [case.name for case in found.cases]
    assert named
    assert len(set(named)) == len(named)
    assert found.arms[0].name == "tritium"
    assert all(case.context.operation for case in found.cases)


@pytest.mark.parametrize(
    "suite", ["compare", *(pytest.param(name, marks=pytest.mark.slow) if name == "table" else name for name in SUITES)]
)
def test_every_case_of_a_suite_can_be_made_and_gives_the_right_answer(suite: str) -> None:
    for case in grid(suite, small(suite), peers=("none",)).cases:
        made = resolve(case.recipe.target)("tritium", **case.recipe.arguments)
        said = checked(made, made.call())
        assert said.get("status", "ok") == "ok", f"{case.name}: {said}"


def test_compare_has_the_operations_of_the_guide() -> None:
    operations = {case.context.operation for case in grid("compare", defaults("compare")).cases}
    assert operations == {"matmul", "add", "multiply", "quantize", "bitlinear"}


def test_quantization_has_schemes_of_every_width_and_granularity() -> None:
    kinds = {case.context.precision for case in grid("quantization", small("quantization")).cases}
    assert {
        "ternary",
        "ternary-channel",
        "ternary-g128",
        "int8",
        "int8-channel",
        "int8-asymmetric",
        "int4-g64",
        "fp16",
    } <= kinds


def test_comprehensive_has_all_its_parts() -> None:
    operations = {case.context.operation for case in grid("comprehensive", defaults("comprehensive")).cases}
    assert {
        "matmul",
        "quantize",
        "bitlinear",
        "relu",
        "gelu",
        "silu",
        "allocate",
        "transformer_layer",
        "batch_processing",
    } <= operations


def test_workloads_decode_one_and_several_sequences() -> None:
    batches = {c.context.batch for c in grid("workloads", small("workloads")).cases if c.context.operation == "decode"}
    assert batches == {1, suites.SEQUENCES}


def test_layouts_lie_in_memory_in_three_ways() -> None:
    assert names("layout", small("layout"))[:3] == [
        "add 64x64 f32",
        "add 64x64 f32 transposed",
        "add 64x64 f32 strided",
    ]


# ---- settings


def test_sizes_operations_and_types_make_the_grid() -> None:
    config = BenchmarkConfig(
        tensor_sizes=((32, 32), (64, 32)), operations=("add", "multiply"), data_types=("f32", "f16")
    )
    assert names("compare", config) == [
        f"{op} {size} {kind}" for op in ("add", "multiply") for size in ("32x32", "64x32") for kind in ("f32", "f16")
    ]


def test_the_guides_names_for_operations_are_understood() -> None:
    assert names("compare", BenchmarkConfig(operations=("swish",), tensor_sizes=((8, 8),), data_types=("f32",))) == [
        "silu 8x8 f32"
    ]


def test_f16_is_really_f16() -> None:
    (case,) = grid("compare", BenchmarkConfig(operations=("add",), tensor_sizes=((8, 8),), data_types=("f16",))).cases
    made = resolve(case.recipe.target)("numpy", **case.recipe.arguments)
    assert made.call().dtype == "float16"
    assert case.work.moved == 3 * 64 * 2


def test_a_device_that_is_not_here_is_a_note_with_the_reason() -> None:
    found = grid("compare", BenchmarkConfig(devices=("cpu", "cpu:9"), operations=("add",)), peers=("none",))
    assert [arm.name for arm in found.arms] == ["tritium"]
    assert any(note.startswith("device cpu:9 skipped: ") for note in found.notes)


def test_no_device_at_all_is_an_error_that_says_why() -> None:
    with pytest.raises(ArgumentError, match="none of the devices cpu:9 is here"):
        grid("compare", BenchmarkConfig(devices=("cpu:9",)))


def test_what_an_operation_refuses_is_one_note() -> None:
    found = grid("compare", BenchmarkConfig(operations=("add", "bitlinear"), data_types=("f64",)), peers=("none",))
    assert not any(case.context.operation == "bitlinear" for case in found.cases)
    assert len([note for note in found.notes if note.startswith("left out: bitlinear takes f32")]) == 1


def test_an_unknown_operation_gets_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"operations: 'matmull' is not an op\. Did you mean 'matmul'"):
        grid("compare", BenchmarkConfig(operations=("matmull",)))


def test_the_quantization_suite_has_steps_not_operations() -> None:
    with pytest.raises(ArgumentError, match="'add' is no step of this suite"):
        grid("quantization", replace(small("quantization"), operations=("add",)))
    found = grid("quantization", replace(small("quantization"), tensor_sizes=((64,), (64, 64))))
    assert "left out: 64: a matrix of weights has two sizes." in found.notes


def test_the_seed_and_the_threads_reach_every_recipe() -> None:
    for suite in ("compare", *SUITES):
        for case in grid(suite, small(suite), peers=("none",), threads=1, seed=7).cases:
            assert case.recipe.arguments["seed"] == 7, case.name
            assert case.recipe.arguments["threads"] == 1, case.name


# ---- arms


def arms(*peers: str) -> list[str]:
    return [arm.name for arm in suites.arms_of(["cpu"], peers, None)[0]]


def test_none_is_tritium_alone() -> None:
    assert arms("none") == ["tritium"]
    with pytest.raises(ArgumentError, match="none cannot be combined with others"):
        arms("none", "numpy")


def test_peers_come_after_tritium_in_the_order_asked() -> None:
    assert arms("reference", "numpy", "tritium") == ["tritium", "reference", "numpy"]


def test_all_has_numpy_and_the_reference_kernels() -> None:
    assert {"tritium", "numpy", "reference"} <= set(arms("all"))


def test_an_unknown_peer_gets_the_nearest_and_an_absent_one_is_a_note() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'numpy'"):
        arms("numpyy")
    found, notes = suites.arms_of(["cpu"], ["avx2", "neon", "jax", "mlx"], None)
    assert len(found) + len(notes) == 5
    assert all(notes)


def test_a_quick_run_leaves_out_what_starts_slowly() -> None:
    found = [arm.name for arm in grid("compare", defaults("compare", True), quick=True).arms]
    assert found[0] == "tritium"
    assert "numpy" in found
    assert "jax" not in found


def test_the_line_for_who_waits_names_cases_arms_and_processes() -> None:
    found = grid("regression", defaults("regression"))
    assert (
        found.summary(Plan(generations=15, rounds=3))
        == "5 cases on tritium, numpy: 15 fresh processes each, 3 rounds interleaved"
    )


def test_a_line_for_who_has_a_budget_names_the_time() -> None:
    found = grid("regression", defaults("regression")).summary(Plan(generations=28, rounds=3, budget_s=90))
    assert found == "5 cases on tritium, numpy: within 90 s, at most 28 fresh processes each, 3 rounds interleaved"


@pytest.mark.parametrize(
    ("more", "peers", "requested"),
    [
        ({}, None, ()),
        ({}, ("numpy",), ("numpy",)),
        ({}, ("np", "reference"), ("numpy", "reference")),
        ({"devices": ["cpu"]}, None, ("tritium",)),
        ({"devices": ["cpu", "far"]}, ("none",), ("tritium", "tritium:far")),
        (
            {"devices": ["cpu", "cpu:reference", "cuda"]},
            ("numpy",),
            ("tritium", "reference", "numpy"),
        ),  # cuda is not here
        ({"config": '{"devices": ["cpu", "far"]}'}, None, ("tritium", "tritium:far")),
        ({"config": '{"operations": ["add"]}'}, None, ()),
    ],
)
def test_contenders_are_requested_by_the_caller_or_a_file_and_not_because_they_are_here(
    more: dict[str, Any], peers: tuple[str, ...] | None, requested: tuple[str, ...], tmp_path: Path
) -> None:
    backends.register("far", Null)
    try:
        if "config" in more:
            (tmp_path / "bench.json").write_text(more["config"])
            more = {"config": tmp_path / "bench.json"}
        options = suites.options_of("compare", **more).changed(peers=peers, operations=("add",))
        assert suites.grid(options).requested == requested
    finally:
        backends.unregister("far")


# ---- metrics


def test_every_suite_reads_the_clock_and_memory_suites_read_memory() -> None:
    for suite in ("compare", *SUITES):
        assert suites.metrics(suite, PLANS["default"])[:2] == ("wall", "cpu")
    assert {"peak_bytes", "allocated_bytes", "rss_bytes"} <= set(suites.metrics("memory", PLANS["quick"]))
    assert "energy" in suites.metrics("energy", PLANS["quick"])
    assert "energy" not in suites.metrics("compare", PLANS["quick"])


def test_the_time_power_is_watched_is_spread_over_the_processes() -> None:
    plan = replace(PLANS["default"], generations=5)
    options = suites.energy_options(EnergyConfig(power_measurement_duration_s=10, nvidia_gpu=True), plan)
    assert options["power_measurement_duration_s"] == 2.0
    assert options["nvidia_gpu"] is True
    assert (
        suites.energy_options(EnergyConfig(power_measurement_duration_s=2), plan)["power_measurement_duration_s"] == 1.0
    )


# ---- the user's own


def test_a_users_benchmark_is_an_operation_once_its_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "own_for_suites.py"
    file.write_text(
        "import tritium as tt\nfrom tritium.perf.work.registry import benchmark\n\n"
        "@benchmark('own_for_suites')\ndef own(shape):\n    x = tt.randn(shape, seed=0)\n    yield lambda: x * x\n",
        encoding="utf-8",
    )
    config = BenchmarkConfig(operations=("own_for_suites",), tensor_sizes=((4, 4),), data_types=("f32",))
    with pytest.raises(ArgumentError, match=r"--load FILE\.py"):
        grid("compare", config)
    try:
        assert suites.load(file) == ["own_for_suites"]
        (case,) = grid("compare", config, peers=("none",)).cases
        assert resolve(case.recipe.target)("tritium", **case.recipe.arguments).call().shape == (4, 4)
    finally:
        registry._registered.pop("own_for_suites", None)


# ---- from Python


def test_a_comparison_from_python_measures_what_its_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def measure(cases: Any, arms: Any, plan: Any, **more: Any) -> None:
        asked.update(more, cases=[c.name for c in cases], arms=[a.name for a in arms], plan=plan)

    monkeypatch.setattr(importlib.import_module("tritium.perf.engine.measuring"), "measure", measure)
    config = BenchmarkConfig(
        operations=("add",),
        tensor_sizes=((8, 8),),
        data_types=("f32",),
        devices=("cpu",),
        measurement_iterations=4,
        timeout_s=3,
    )
    suites.run_comparison(config, peers=["numpy"], seed=5)
    assert (asked["cases"], asked["arms"]) == (["add 8x8 f32"], ["tritium", "numpy"])
    plan = asked["plan"]
    assert (plan.generations, plan.rounds, plan.timeout_s, plan.seed) == (4, 1, 3.0, 5)
    assert (asked["kind"], asked["suite"], asked["options"]) == ("compare", "compare", None)
    suites.run_comparison(suite="energy_efficiency_comparison", quick=True, energy=EnergyConfig(allow_estimates=True))
    assert (asked["kind"], asked["suite"]) == ("bench", "energy")
    assert asked["options"]["allow_estimates"] is True
    assert asked["plan"].generations == PLANS["quick"].generations


SHAPED = {
    "usual": {},
    "other sizes": {"tensor_sizes": ((96, 160), (32, 64))},
}


@pytest.mark.parametrize("changed", SHAPED)
@pytest.mark.parametrize("name", ["compare", *SUITES])
def test_the_cases_and_arms_of_earlier_results_are_made_again(name: str, changed: str) -> None:
    found = grid(name, replace(defaults(name), **SHAPED[changed]), peers=("numpy",))  # type: ignore[arg-type]
    runs = tuple(Run(c.name, a.name, c.context, c.work) for c in found.cases for a in found.arms)
    before = replace(results({}), suite=name, arms=tuple(a.name for a in found.arms), runs=runs)
    again = suites.like(before)
    assert {c.name for c in again.cases} == {c.name for c in found.cases}
    assert [a.name for a in again.arms] == list(before.arms)
    assert not again.notes


def test_a_case_that_cannot_be_made_again_is_said() -> None:
    again = suites.like(results({"add 64x64 f32": 1e-4, "mine": 1e-3}))
    assert [c.name for c in again.cases] == []
    assert "not measured again: add 64x64 f32, mine" in again.notes[0]


def test_temperature_is_not_read_where_the_energy_file_turns_it_off() -> None:
    assert "temperature" in suites.metrics("energy", Plan(), EnergyConfig())
    assert "temperature" not in suites.metrics("energy", Plan(), EnergyConfig(thermal_monitoring=False))


def test_what_another_program_measured_cannot_be_measured_again() -> None:
    with pytest.raises(ArgumentError, match="regression-check"):
        suites.like(results({"test_a": 1e-4}, arms={"pytest": 1.0}))


# ---- devices, batches, transfers


def test_kernels_of_the_cpu_are_devices_in_a_comparison() -> None:
    config = BenchmarkConfig(devices=["cpu", "cpu:reference"], operations=["add"])
    assert [arm.name for arm in grid("compare", config, peers=("none",)).arms] == ["tritium", "reference"]
    assert [arm.name for arm in grid("compare", config, peers=("reference",)).arms] == ["tritium", "reference"]
    with pytest.raises(ArgumentError, match="Did you mean 'cpu:portable'"):
        BenchmarkConfig(devices=["cpu:portabel"])


def test_an_absent_device_is_a_note_unless_it_is_the_only_one() -> None:
    config = BenchmarkConfig(devices=["cpu", "cuda"], operations=["add"])
    assert any(note.startswith("device cuda skipped: ") for note in grid("compare", config, peers=("none",)).notes)
    with pytest.raises(ArgumentError, match="none of the devices cuda is here"):
        grid("compare", replace(config, devices=["cuda"]), peers=("none",))  # type: ignore[arg-type]


def test_batches_take_the_place_of_rows_and_what_has_none_is_told() -> None:
    config = BenchmarkConfig(
        devices=["cpu"], operations=["matmul", "add"], tensor_sizes=[64, 128], data_types=["f32"], batch_sizes=[1, 8]
    )
    found = grid("compare", config, peers=("none",))
    assert [(c.name, c.context.batch) for c in found.cases] == [
        ("matmul 1x64 f32", 1), ("matmul 1x128 f32", 1), ("matmul 8x64 f32", 8), ("matmul 8x128 f32", 8),
        ("add 64x64 f32", None), ("add 128x128 f32", None),
    ]  # fmt: skip
    assert found.notes == ("measured without batch_sizes: add: they have no batch.",)


@pytest.mark.parametrize(
    ("transfer", "named"),
    [
        ("excluded", ["add 64x64 f32", "quantize 64x64 f32"]),
        ("included", ["add 64x64 f32, with transfer", "quantize 64x64 f32"]),
        ("both", ["add 64x64 f32", "add 64x64 f32, with transfer", "quantize 64x64 f32"]),
    ],
)
def test_transfers_are_cases_of_their_own(transfer: str, named: list[str]) -> None:
    config = BenchmarkConfig(
        devices=["cpu"], operations=["add", "quantize"], tensor_sizes=[64], data_types=["f32"], transfer=transfer
    )
    found = grid("compare", config, peers=("none",))
    assert [c.name for c in found.cases] == named
    assert bool(found.notes) == (transfer != "excluded")


@pytest.mark.parametrize("suite", ["quantization", "layout", "network", "table"])
def test_a_suite_without_batches_and_transfers_says_so(suite: str) -> None:
    plain = grid(suite, small(suite), peers=("none",))
    asked = grid(suite, replace(small(suite), batch_sizes=(2,), transfer="both"), peers=("none",))
    assert [c.name for c in asked.cases] == [c.name for c in plain.cases]
    assert {n.split(",")[0].split(":")[0] for n in asked.notes} >= {
        "measured without batch_sizes",
        "measured without transfer=both",
    }


def test_batches_and_transfers_of_earlier_results_are_made_again() -> None:
    config = replace(small("compare"), batch_sizes=(1, 4), transfer="both")
    found = grid("compare", config, peers=("none",))
    runs = tuple(Run(c.name, "tritium", c.context, c.work) for c in found.cases)
    again = suites.like(replace(results({}), suite="compare", arms=("tritium",), runs=runs))
    assert {(c.name, c.context) for c in again.cases} == {(c.name, c.context) for c in found.cases}
    assert not again.notes


def test_only_comparisons_and_transfers_are_measured_on_every_device() -> None:
    tt.register("other", Null)
    try:
        assert {name for name in ("compare", *SUITES) if "other" in defaults(name).devices} == {"compare", "transfer"}
        assert defaults("regression").devices == ("cpu",)
    finally:
        tt.unregister("other")


def test_devices_compared_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def measure(cases: Any, arms: Any, plan: Any, **more: Any) -> None:
        asked.update(cases=[c.name for c in cases], arms=[a.name for a in arms], plan=plan)

    monkeypatch.setattr(importlib.import_module("tritium.perf.engine.measuring"), "measure", measure)
    suites.compare_devices("matmul", [64], ["cpu", "cpu:reference"], batch_sizes=[2], transfer="included")
    assert asked["cases"] == ["matmul 2x64 f32, with transfer"]
    assert asked["arms"] == ["tritium", "reference"]
    assert asked["plan"].generations == PLANS["quick"].generations
