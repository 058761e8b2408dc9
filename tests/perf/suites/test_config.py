"""The three files a person writes: the guide's own load unchanged, every key counts, and mistakes are explained."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from config_texts import BENCHMARK, ENERGY, REGRESSION
from tritium.arguments import parse_seconds, read_duration
from tritium.errors import ArgumentError, FormatError
from tritium.perf.records.run import PLANS
from tritium.perf.suites.config import (
    Alerts,
    BenchmarkConfig,
    Config,
    EnergyConfig,
    RegressionConfig,
    duration_text,
    fraction,
)

FILES: dict[type[Config], str] = {BenchmarkConfig: BENCHMARK, EnergyConfig: ENERGY, RegressionConfig: REGRESSION}


def written(folder: Path, text: str, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(cls: type[Config], folder: Path, text: str) -> str:
    with pytest.raises(FormatError) as error:
        cls.load(written(folder, text))
    assert str(error.value).startswith("config.json: ")
    return str(error.value)


@pytest.mark.parametrize("cls", FILES)
def test_the_file_of_the_guide_loads_unchanged_and_holds_the_defaults(cls: type[Config], tmp_path: Path) -> None:
    found = cls.load(written(tmp_path, FILES[cls]))
    if isinstance(found, BenchmarkConfig):
        assert found == BenchmarkConfig(devices=("cpu", "metal", "mlx"))
    else:
        assert found == cls()


@pytest.mark.parametrize("cls", FILES)
def test_what_is_saved_reads_back_the_same(cls: type[Config], tmp_path: Path) -> None:
    found = cls.load(written(tmp_path, FILES[cls]))
    assert cls.load(found.save(tmp_path / "again.json")) == found
    assert cls.load(cls().save(tmp_path / "again.json")) == cls()


def test_saving_the_guides_file_writes_the_guides_file(tmp_path: Path) -> None:
    for cls, text in FILES.items():
        again = json.loads(cls.load(written(tmp_path, text)).dumps())
        assert {k: v for k, v in again.items() if k in json.loads(text)} == json.loads(text)


OTHER: dict[str, Any] = {
    "tensor_sizes": ([[3, 5]], ((3, 5),)),
    "warmup_iterations": (0, 0),
    "measurement_iterations": (7, 7),
    "operations": (["softmax"], ("softmax",)),
    "devices": (["mlx"], ("mlx",)),
    "data_types": (["float64"], ("f64",)),
    "timeout": ("2min", 120.0),
    "batch_sizes": ([1, 8, 8], (1, 8)),
    "transfer": ("both", "both"),
    "monitoring_interval": ("20ms", 0.02),
    "power_measurement_duration": (3, 3.0),
    "thermal_monitoring": (False, False),
    "battery_monitoring": (False, False),
    "device_specific_monitoring.apple_silicon": (False, False),
    "device_specific_monitoring.intel_cpu": (False, False),
    "device_specific_monitoring.nvidia_gpu": (True, True),
    "allow_estimates": (True, True),
    "tdp_w": (65, 65.0),
    "baseline_file": ("b.json", "b.json"),
    "regression_threshold": ("10%", 0.1),
    "minimum_samples": (30, 30),
    "confidence_level": (0.99, 0.99),
    "alert_thresholds": ({"critical": 0.5}, Alerts(0.05, 0.5)),
    "auto_update_baseline": (True, True),
}


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls in FILES for name in cls.KEYS])
def test_every_key_changes_the_field_it_names_and_no_other(cls: type[Config], name: str, tmp_path: Path) -> None:
    value, expected = OTHER[name]
    top, _, inner = name.partition(".")
    found = cls.load(written(tmp_path, json.dumps({top: {inner: value} if inner else value})))
    changed = {f.name for f in fields(found) if getattr(found, f.name) != getattr(cls(), f.name)}  # type: ignore[arg-type]
    assert changed == {cls.KEYS[name].field}
    assert getattr(found, cls.KEYS[name].field) == expected


def test_every_field_has_a_key() -> None:
    for cls in FILES:
        assert {f.name for f in fields(cls)} == {key.field for key in cls.KEYS.values()}  # type: ignore[arg-type]


# ---- what a benchmark file does to a plan


def test_warm_up_rounds_and_timeout_reach_the_plan() -> None:
    plan = BenchmarkConfig(warmup_iterations=4, measurement_iterations=30, timeout_s=7).plan()
    assert (plan.warmup_batches, plan.generations, plan.rounds, plan.timeout_s) == (4, 15, 2, 7.0)


@given(st.integers(1, 400), st.sampled_from(list(PLANS)))
def test_at_least_the_rounds_asked_for_are_measured_and_less_than_one_more_for_each_process(n: int, name: str) -> None:
    plan = BenchmarkConfig(measurement_iterations=n).plan(PLANS[name])
    assert n <= plan.generations * plan.rounds < n + plan.generations
    assert plan.generations <= PLANS[name].generations
    assert plan.gates == PLANS[name].gates


def test_devices_that_are_not_here_are_skipped_with_the_reason() -> None:
    here, notes = BenchmarkConfig(devices=("cpu", "cpu:7")).usable_devices()
    assert here == ("cpu",)
    assert len(notes) == 1
    assert notes[0].startswith("device cpu:7 skipped: ")


# ---- mistakes


@pytest.mark.parametrize(
    ("cls", "text", "said"),
    [
        (BenchmarkConfig, '{"tensor_size": [[64, 64]]}', "Did you mean 'tensor_sizes'?"),
        (BenchmarkConfig, '{"timeout": "30 parsecs"}', "there are ns, us, ms, s, min, h and d. Did you mean 'secs'?"),
        (BenchmarkConfig, '{"timeout": "soon"}', "'soon' is not a duration"),
        (BenchmarkConfig, '{"timeout": 0}', "a duration above 0 is needed"),
        (BenchmarkConfig, '{"timeout": true}', "a duration above 0 is needed"),
        (BenchmarkConfig, '{"timeout": "1s", "timeout": "2s"}', "the key 'timeout' stands there twice"),
        (BenchmarkConfig, '{"data_types": ["f31"]}', "Did you mean 'f32'?"),
        (BenchmarkConfig, '{"data_types": ["int8"]}', "tritium bench quantization"),
        (BenchmarkConfig, '{"devices": ["cpuu"]}', "Did you mean 'cpu'?"),
        (BenchmarkConfig, '{"devices": "cpu"}', "a list of names is needed"),
        (BenchmarkConfig, '{"devices": []}', "at least one name is needed"),
        (BenchmarkConfig, '{"operations": [3]}', "operations[0]: text is needed"),
        (BenchmarkConfig, '{"tensor_sizes": [[64, -1]]}', "tensor_sizes[0]: an integer, at least 1"),
        (BenchmarkConfig, '{"tensor_sizes": [[]]}', "a size of 1 to 4 numbers"),
        (BenchmarkConfig, '{"tensor_sizes": ["64"]}', "a size such as [64, 64]"),
        (BenchmarkConfig, '{"tensor_sizes": []}', "at least one size"),
        (BenchmarkConfig, '{"tensor_sizes": 64}', "a list of sizes"),
        (BenchmarkConfig, '{"warmup_iterations": -1}', "at least 0"),
        (BenchmarkConfig, '{"warmup_iterations": true}', "an integer"),
        (BenchmarkConfig, '{"measurement_iterations": 0}', "at least 1"),
        (BenchmarkConfig, "[1]", "an object with tensor_sizes"),
        (BenchmarkConfig, '{"timeout": NaN}', "NaN is not JSON"),
        (BenchmarkConfig, "{", "not JSON (line 1, column 2)"),
        (BenchmarkConfig, ENERGY, "this is an energy file"),
        (BenchmarkConfig, ENERGY, "tritium bench energy --config"),
        (BenchmarkConfig, REGRESSION, "this is a regression file"),
        (EnergyConfig, BENCHMARK, "this is a benchmark file"),
        (RegressionConfig, '{"schema": 1, "sha256": "", "results": {}}', "this is a file of results"),
        (EnergyConfig, '{"monitoring_interval": "fast"}', "monitoring_interval: 'fast' is not a duration"),
        (EnergyConfig, '{"thermal_monitoring": 1}', "true or false"),
        (EnergyConfig, '{"device_specific_monitoring": {"intel_gpu": true}}', "Did you mean 'device_specific_monitoring.intel_cpu'"),
        (EnergyConfig, '{"device_specific_monitoring": true}', "an object is needed"),
        (EnergyConfig, '{"tdp_w": 0}', "watts above 0"),
        (RegressionConfig, '{"confidence_level": 95}', "0.5 to below 1"),
        (RegressionConfig, '{"regression_threshold": "much"}', "a share above 0"),
        (RegressionConfig, '{"regression_threshold": 0}', "a share above 0"),
        (RegressionConfig, '{"alert_thresholds": {"warnings": 0.1}}', "Did you mean 'warning'?"),
        (RegressionConfig, '{"alert_thresholds": {"warning": 0.2}}', "must not be above critical"),
        (RegressionConfig, '{"alert_thresholds": 0.2}', "an object with warning and critical"),
        (RegressionConfig, '{"baseline_file": ""}', "text is needed"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained(cls: type[Config], text: str, said: str, tmp_path: Path) -> None:
    assert said in refused(cls, tmp_path, text)


def test_an_object_made_in_python_keeps_the_same_rules() -> None:
    assert BenchmarkConfig(timeout_s="30s", tensor_sizes=[512, (2, 3)]).tensor_sizes == ((512, 512), (2, 3))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="timeout: a duration above 0"):
        BenchmarkConfig(timeout_s=-1)
    with pytest.raises(ArgumentError, match="warning"):
        replace(RegressionConfig(), alert_thresholds=Alerts(0.3, 0.1))


def test_a_file_too_large_to_be_settings_is_refused_unread(tmp_path: Path) -> None:
    assert "larger than 1 MiB" in refused(BenchmarkConfig, tmp_path, " " * (1 << 20) + "{}")


# ---- durations and shares


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("30s", 30),
        ("100ms", 0.1),
        ("2min", 120),
        ("1.5 h", 5400),
        (3, 3),
        (0.5, 0.5),
        ("250us", 0.00025),
        ("7", 7),
        ("1 d", 86400),
        (".5s", 0.5),
        ("1e-3 s", 0.001),
        (np.float32(2), 2),
    ],
)
def test_durations(given: Any, seconds: float) -> None:
    assert read_duration(given) == pytest.approx(seconds, rel=1e-12)
    assert parse_seconds("ttl", given) == read_duration(given)


@given(st.floats(1e-9, 1e7))
def test_a_duration_written_reads_back_the_same(seconds: float) -> None:
    assert read_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("given", "share"),
    [(0.05, 0.05), (10.0, 0.1), ("5%", 0.05), ("0.5%", 0.005), ("15", 0.15), ("100%", 1.0), (1.0, 1.0)],
)
def test_shares(given: Any, share: float) -> None:
    assert fraction(given) == pytest.approx(share)
    assert fraction(fraction(given)) == pytest.approx(share)  # a record is read again when it is made


@pytest.mark.parametrize("given", [150, "150%", -1, "-5", "nan", float("nan"), float("inf"), True, None])
def test_what_is_no_share_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="at most 100 %"):
        fraction(given)
