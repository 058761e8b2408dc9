"""Devices by size from a comparison: stored where it shows a faster one, refused where it shows nothing of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tritium as tt
from made_results import run
from null import Null
from tritium import backends
from tritium.cli.root import cli
from tritium.errors import ArgumentError
from tritium.machine import tuned
from tritium.perf.records.case import Context
from tritium.perf.records.environment import this_environment
from tritium.perf.records.run import Plan, Results
from tritium.perf.store import results as store
from tritium.perf.tune import devices, file as tune_file

COSTS = {"cpu": {64: 1.0, 256: 8.0, 1024: 90.0}, "other": {64: 3.0, 256: 4.0, 1024: 10.0}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITIUM_TUNED", "")
    monkeypatch.delenv("TRITIUM_DEVICE", raising=False)
    backends.retuned()
    tt.register("other", Null)
    yield
    tt.unregister("other")
    monkeypatch.undo()
    backends.retuned()


def compared(
    costs: Mapping[str, Mapping[int, float]] = COSTS, *, op: str = "matmul", transfer: str = "", generations: int = 15, **more: Any
) -> Results:  # fmt: skip
    rng = np.random.default_rng(1)
    runs = []
    for name, times in costs.items():
        arm = "tritium" if name == "cpu" else f"tritium:{name}"
        for n, us in times.items():
            made = run(f"{op} {n}x{n} f32", arm, us * 1e-6, rng, sd=0.005, generations=generations)
            runs.append(replace(made, context=Context(op, (n, n), "f32", name, transfer=transfer)))
    arms = tuple(dict.fromkeys(r.arm for r in runs))
    here = this_environment(2, limits=False)
    plan = Plan(generations=generations)
    return replace(Results("compare", "compare", "2026-01-31T12:00:00Z", "", plan, here, arms, tuple(runs)), **more)


def test_the_device_of_each_size_is_the_one_that_was_faster_there(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = devices.keep_devices(compared())
    assert kept == {"device/matmul/4096": "cpu", "device/matmul/65536": "other", "device/matmul/1048576": "other"}
    why = tune_file.choices()["device/matmul/1048576"].why
    assert re.match(r"(8\.9|9\.0)\d times \(\d\.\d+ … \d\.\d+\) as fast as 'cpu' at the size ", why)
    assert "of matmul 1024x1024 f32, compared 2026-01-31 without transfers" in why
    assert tt.zeros((1024, 1024)).device == "cpu"  # nobody asked for it
    monkeypatch.setenv("TRITIUM_DEVICE", "auto")
    backends.forget()
    assert [str(tt.zeros((n, n)).device) for n in (64, 255, 256, 1024)] == ["cpu", "cpu", "other", "other"]
    assert str(tt.default_device().device) == "other"


def test_devices_are_kept_where_the_intervals_decide_however_disturbed_the_run() -> None:
    flags = ("45 rounds kept though other work broke in",)
    given = compared()
    assert devices.keep_devices(replace(given, runs=tuple(replace(r, flags=flags) for r in given))) == {
        "device/matmul/4096": "cpu", "device/matmul/65536": "other", "device/matmul/1048576": "other",
    }  # fmt: skip


def test_a_later_comparison_replaces_that_of_the_same_op_only() -> None:
    devices.keep_devices(compared())
    devices.keep_devices(compared(op="add"))
    equal = {"cpu": {128: 5.0, 512: 50.0}, "other": {128: 5.0, 512: 50.0}}
    assert set(devices.keep_devices(compared(equal)).values()) == {"cpu"}
    kept = tune_file.choices()
    assert {n for n in kept if n.startswith("device/matmul")} == {"device/matmul/16384", "device/matmul/262144"}
    assert kept["device/add/1048576"].value == "other"
    assert tuned.DEVICE not in kept  # at the largest product nothing is clearly faster


@pytest.mark.parametrize(
    ("results", "says"),
    [
        (lambda: compared(transfer="included"), "no op was measured on the CPU and another device"),
        (lambda: compared({"other": COSTS["other"]}), "no op was measured on the CPU and another device"),
        (lambda: compared(op="custom"), "no op was measured"),
        (lambda: compared(generations=3), "3 processes show no difference; 6 or more"),
        (lambda: elsewhere(compared()), "belong to another machine (cpu: another CPU; here"),
    ],
)  # fmt: skip
def test_what_shows_nothing_of_this_machine_is_refused(results: Any, says: str) -> None:
    with pytest.raises(ArgumentError) as error:
        devices.keep_devices(results())
    assert says in str(error.value)
    assert not tune_file.choices()


def elsewhere(results: Results) -> Results:
    environment = results.environment
    return replace(results, environment=replace(environment, hard=replace(environment.hard, cpu="another CPU")))


def test_the_command_stores_the_devices_of_a_file(tmp_path: Path) -> None:
    file = store.save(compared(), tmp_path / "results.json")
    done = CliRunner().invoke(cli, ["tune", "--from", str(file)])
    assert done.exit_code == 0, done.output
    assert "65,536" in done.output
    assert "TRITIUM_DEVICE=auto follows it" in done.output
    again = CliRunner().invoke(cli, ["tune", "--from", str(file), "--json"])
    assert json.loads(again.output)["device/matmul/65536"] == "other"
    assert "do not go together" in CliRunner().invoke(cli, ["tune", "--from", str(file), "--clear"]).output
