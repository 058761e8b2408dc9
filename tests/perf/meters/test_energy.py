"""Energy by known numbers: a clock and counters of our own, every rule and every reason of absence."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritium.perf.meters import energy
from tritium.perf.meters.absent import REASONS, Absent
from tritium.perf.meters.energy import Energy, Reading, battery_hours, spent, throttled, total
from tritium.perf.meters.meter import EnergyMeter
from tritium.perf.meters.sensors import Sensor, Thermal


@dataclass
class Clock:
    """Time as the test wants it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def counter(
    clock: Clock, watts: float = 50.0, *, period: float = 0.001, reach: float | None = None, start: float = 0.0,
    domain: str = "package-0", **fields: Any,
) -> Sensor:  # fmt: skip
    """A counter that moves every `period` seconds, and begins again at `reach`."""

    def read() -> float | Absent:
        value = start + watts * period * math.floor(clock.now / period + 1e-9)
        return value if reach is None else value % reach

    known: dict[str, Any] = {"source": "RAPL", "scope": "package", "group": "cpu", "range_j": reach}
    return Sensor(domain=domain, read=read, **(known | fields))


def meter(clock: Clock, *sensors: Sensor | Absent, **options: Any) -> EnergyMeter:
    given: dict[str, Any] = {
        "clock": clock, "sleep": clock.pass_by, "background": False, "thermal_monitoring": False, "idle_s": 0.0,
        "busy": lambda: None, "monitoring_interval_s": 0.01,
    }  # fmt: skip
    return EnergyMeter(sensors=sensors, **(given | options))


def readings(values: list[float | Absent], step_s: float = 0.1) -> list[Reading]:
    return [Reading(i * step_s, v) for i, v in enumerate(values)]


def rising(n: int, by: float = 1.0, start: float = 0.0) -> list[float | Absent]:
    return [start + by * i for i in range(n)]


PLAIN = Sensor("RAPL", "package-0", "package", "cpu", lambda: 0.0, range_j=1000.0)


# ---- one counter


def test_joules_are_the_difference_of_the_readings_with_what_was_seen_of_the_counter() -> None:
    found = spent(PLAIN, readings(rising(21, 2.0)))
    assert (found.joules, found.kind, found.reason) == (40.0, "measured", "")
    assert (found.resolution_j, found.n_updates) == (2.0, 20)
    assert found.update_period_s == pytest.approx(0.1)
    assert found.watts == pytest.approx(20.0)
    assert found.doubt_j == pytest.approx(2.0)


@given(start=st.floats(0, 999.9), steps=st.lists(st.floats(0.5, 4.0), min_size=12, max_size=60), reach=st.just(1000.0))
def test_a_counter_that_runs_over_anywhere_loses_nothing(start: float, steps: list[float], reach: float) -> None:
    at, values = start, [start]
    for step in steps:
        at = (at + step) % reach
        values.append(at)
    found = spent(PLAIN, readings([*values]))
    assert found.joules == pytest.approx(sum(steps), abs=1e-6)


@given(fell_at=st.integers(1, 29), start=st.floats(50, 600))
def test_a_counter_that_begins_anew_is_never_believed(fell_at: int, start: float) -> None:
    values = rising(fell_at, 1.0, start) + rising(30 - fell_at)
    found = spent(PLAIN, readings(values))
    assert (found.joules, found.reason) == (None, "counter_reset")


def test_a_counter_without_a_range_that_falls_was_reset() -> None:
    found = spent(replace(PLAIN, range_j=None), readings([*rising(15, 1.0, 990.0), *rising(15)]))
    assert found.reason == "counter_reset"


def test_of_two_readings_the_shorter_way_round_is_believed() -> None:
    assert spent(PLAIN, readings([999.0, 1.0], 2.0), least_updates=1).joules == 2.0
    assert spent(PLAIN, readings([400.0, 1.0], 2.0), least_updates=1).reason == "counter_reset"


def test_a_counter_that_does_not_move_under_load_is_stuck_and_not_zero() -> None:
    found = spent(PLAIN, readings([7.0] * 30))
    assert (found.joules, found.reason, found.n_updates) == (None, "counter_stuck", 0)
    assert str(found).startswith("not measured: counter_stuck: package-0 did not move")


@pytest.mark.parametrize(
    ("values", "step_s", "says"),
    [
        (rising(30), 0.01, "0.29 s were watched; 1 s are needed"),
        (rising(4), 1.0, "moved 3 times in 3 s; 10 are needed"),
        ([1.0], 1.0, "less than twice"),
        ([], 1.0, "less than twice"),
    ],
)
def test_a_window_has_a_second_and_ten_updates(values: list[float | Absent], step_s: float, says: str) -> None:
    found = spent(PLAIN, readings(values, step_s))
    assert (found.joules, found.reason) == (None, "window_too_short")
    assert says in found.says


def test_one_reading_that_failed_voids_the_window() -> None:
    gone = Absent("no_device", "the GPU fell off the bus")
    found = spent(PLAIN, readings([*rising(20), gone, *rising(20, 1.0, 21.0)]))
    assert (found.joules, found.reason) == (None, "no_device")


def test_a_gauge_of_watts_is_summed_over_time() -> None:
    gauge = replace(PLAIN, unit="W", range_j=None)
    found = spent(gauge, readings([10.0 + (i % 2) * 2 for i in range(21)]))
    assert found.joules == pytest.approx(22.0)
    assert found.resolution_j == pytest.approx(0.2)  # 2 W for a tenth of a second


def test_a_gauge_that_stands_still_is_stuck() -> None:
    assert spent(replace(PLAIN, unit="W"), readings([10.0] * 21)).reason == "counter_stuck"


# ---- totals


MEASURED = Energy(5.0, "RAPL", "package-0", "package", seconds=2.0, calls=10, n_updates=20, resolution_j=0.1)


def test_a_total_is_the_sum_of_its_parts() -> None:
    both = total(
        [replace(MEASURED, idle_baseline_w=1.0), replace(MEASURED, domain="dram", joules=1.5, idle_baseline_w=0.5)]
    )
    assert (both.joules, both.domain, both.idle_baseline_w) == (6.5, "package-0 + dram", 1.5)
    assert (both.per_call_j, both.calls_per_j) == (0.65, pytest.approx(10 / 6.5))


def test_a_total_is_nothing_unless_all_parts_were_measured() -> None:
    gap = replace(
        MEASURED, domain="package-1", joules=None, kind="not measured", reason="no_permission", says="not ours"
    )
    found = total([MEASURED, gap])
    assert (found.joules, found.kind, found.reason) == (None, "not measured", "no_permission")
    assert "package-1: not ours; the rest alone would be too little" in found.says


def test_an_idle_baseline_is_known_only_of_all_parts() -> None:
    assert total([replace(MEASURED, idle_baseline_w=1.0), MEASURED]).idle_baseline_w is None


@given(st.lists(st.one_of(st.none(), st.floats(0.001, 1e6)), min_size=1, max_size=6))
def test_no_total_hides_a_gap(joules: list[float | None]) -> None:
    parts = [
        replace(
            MEASURED, joules=j, kind="not measured" if j is None else "measured", reason="unsupported" * (j is None)
        )
        for j in joules
    ]
    found = total(parts)
    assert (found.joules is None) == (None in joules)
    assert found.joules is None or found.joules == pytest.approx(sum(j or 0 for j in joules))


def test_what_idling_costs_is_a_second_number() -> None:
    found = replace(MEASURED, idle_baseline_w=1.0)
    assert found.joules == 5.0
    assert found.above_idle_j == 3.0
    assert MEASURED.above_idle_j is None


def test_calls_for_a_degree_need_a_rise() -> None:
    warm = replace(MEASURED, temperature_before_c=50.0, temperature_after_c=54.0)
    assert warm.calls_per_degree == 2.5
    assert replace(warm, temperature_after_c=50.0).calls_per_degree is None
    assert MEASURED.calls_per_degree is None


def test_figures_of_what_was_not_measured_are_nothing() -> None:
    gone = energy.missing(Absent("no_device", "there is none", "RAPL", "cpu"))
    assert {gone.watts, gone.per_call_j, gone.calls_per_j, gone.above_idle_j, gone.doubt_j, gone.n_updates} == {None}


# ---- heat, batteries


@pytest.mark.parametrize(
    ("before", "after", "found", "says"),
    [
        (Thermal(), Thermal(), None, ""),
        (Thermal(throttle_events=4), Thermal(throttle_events=4), False, ""),
        (Thermal(throttle_events=4), Thermal(throttle_events=7), True, "3 thermal throttle events"),
        (Thermal(frequency_mhz=3500), Thermal(frequency_mhz=3400), False, ""),
        (Thermal(frequency_mhz=3500), Thermal(frequency_mhz=2800), True, "fell from 3500 to 2800 MHz"),
        (Thermal(slowed=()), Thermal(slowed=()), False, ""),
        (Thermal(slowed=()), Thermal(slowed=("slowed by the power cap",)), True, "slowed by the power cap"),
        (Thermal(throttle_events=1), Thermal(), None, ""),
    ],
)
def test_throttling_is_told_only_by_what_tells_it(
    before: Thermal, after: Thermal, found: bool | None, says: str
) -> None:
    slow, why = throttled(before, after)
    assert slow is found
    assert says in why


def test_battery_hours_come_from_the_measured_draw_of_the_machine() -> None:
    draw = replace(MEASURED, scope="machine", domain="battery BAT0", joules=40.0)
    assert battery_hours(50.0, draw) == 2.5


@pytest.mark.parametrize(
    ("capacity", "changed", "says"),
    [
        (None, {}, "does not tell how much it holds"),
        (50.0, {"scope": "package"}, "draw of the whole machine"),
        (50.0, {"kind": "estimate"}, "measured draw"),
        (50.0, {"joules": None, "kind": "not measured", "reason": "unsupported", "says": "on mains"}, "on mains"),
    ],
)
def test_battery_hours_are_not_guessed(capacity: float | None, changed: dict[str, Any], says: str) -> None:
    found = battery_hours(capacity, replace(MEASURED, **{"scope": "machine"} | changed))
    assert isinstance(found, Absent)
    assert says in found.reason


# ---- whole windows


def test_a_window_tells_joules_a_call_with_all_its_provenance() -> None:
    clock = Clock()
    found = meter(clock, counter(clock)).window(lambda: clock.pass_by(0.02))
    assert found["value"] == pytest.approx(50 * 0.02, rel=0.01)
    assert (found["metric"], found["unit"], found["kind"], found["reason"]) == ("energy", "J", "measured", "")
    told = found["details"]
    assert told["seconds"] >= 1
    assert told["n_updates"] >= 10
    names = ("source", "domain", "scope", "resolution_j", "update_period_s", "doubt_j", "calls_per_j", "watts")
    assert all(told[name] for name in names)
    json.dumps(found, allow_nan=False)


@given(watts=st.floats(0.1, 1000), period=st.floats(0.0005, 0.12), start=st.floats(0, 65_000))
def test_the_truth_lies_within_the_doubt(watts: float, period: float, start: float) -> None:
    clock = Clock()
    sensor = counter(clock, watts, period=period, reach=65_536.0, start=start)
    told = meter(clock, sensor).window(lambda: clock.pass_by(0.007))["details"]
    assert told["kind"] == "measured"
    assert abs(told["joules"] - watts * told["seconds"]) <= 1.2 * told["doubt_j"]


def test_a_window_goes_on_until_a_slow_counter_has_moved_ten_times() -> None:
    clock = Clock()
    found = meter(clock, counter(clock, period=0.25)).window(lambda: clock.pass_by(0.02))
    assert found["kind"] == "measured"
    assert 2.4 < found["details"]["seconds"] < 3
    assert found["details"]["update_period_s"] == pytest.approx(0.25, abs=0.03)


def test_a_window_ends_though_the_counter_is_too_slow() -> None:
    clock = Clock()
    found = meter(clock, counter(clock, period=2.0)).window(lambda: clock.pass_by(0.02))
    assert found["reason"].startswith("window_too_short: package-0 moved 2 times")
    assert clock.now < 7


def test_a_window_waits_for_the_slower_of_two_counters() -> None:
    clock = Clock()
    found = meter(clock, counter(clock), counter(clock, period=0.3, domain="package-1")).window(
        lambda: clock.pass_by(0.02)
    )
    assert found["kind"] == "measured"
    assert found["details"]["seconds"] > 2.9


def test_a_slow_battery_does_not_hold_up_the_processor() -> None:
    clock = Clock()
    battery = counter(clock, period=0.7, domain="battery BAT0", group="machine", scope="machine")
    found = meter(clock, counter(clock), battery).window(lambda: clock.pass_by(0.02))
    assert found["kind"] == "measured"
    assert clock.now < 1.2
    assert [d["kind"] for d in found["details"]["domains"]] == ["measured", "not measured"]


def test_the_duration_of_the_configuration_is_kept() -> None:
    clock = Clock()
    found = meter(clock, counter(clock), power_measurement_duration_s=3.0).window(
        lambda: clock.pass_by(0.1), least_s=1.0
    )
    assert found["details"]["seconds"] >= 3.0


def test_short_calls_are_made_many_at_a_time() -> None:
    clock, looks = Clock(), 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return clock.now

    one = meter(clock, counter(clock))
    one.clock = look
    found = one.window(lambda: clock.pass_by(1e-6))
    assert found["value"] == pytest.approx(50e-6, rel=0.01)
    assert looks < 5000 < found["details"]["calls"]


def test_a_result_is_waited_for() -> None:
    clock = Clock()
    found = meter(clock, counter(clock)).window(lambda: 0.05, wait=clock.pass_by)
    assert found["value"] == pytest.approx(2.5, rel=0.02)


def test_parts_of_a_package_are_told_but_not_added_to_it() -> None:
    clock = Clock()
    core = counter(clock, 30.0, domain="package-0/core", part_of="package-0")
    memory = counter(clock, 10.0, domain="package-0/dram")
    found = meter(clock, counter(clock), core, memory).window(lambda: clock.pass_by(0.01))
    assert found["details"]["watts"] == pytest.approx(60.0, rel=0.01)
    assert found["details"]["domain"] == "package-0 + package-0/dram"
    assert len(found["details"]["domains"]) == 3


def test_a_gpu_case_is_told_the_joules_of_the_gpu() -> None:
    clock = Clock()
    gpu = counter(clock, 300.0, period=0.1, domain="gpu-0", group="gpu", scope="device", source="NVML")
    found = meter(clock, counter(clock), gpu, device="cuda:0").window(lambda: clock.pass_by(0.02))
    assert found["source"] == "NVML"
    assert found["details"]["watts"] == pytest.approx(300.0, rel=0.1)


def test_the_idle_baseline_is_measured_once_and_not_taken_off() -> None:
    clock = Clock()
    busy = [5.0]

    def read() -> float:
        return read_at(clock.now)

    spans: list[tuple[float, float]] = []  # until when, at which watts

    def read_at(now: float) -> float:
        joules, begun = 0.0, 0.0
        for until, watts in [*spans, (math.inf, busy[0])]:
            joules += watts * max(0.0, min(now, until) - begun)
            begun = min(now, until)
        return joules

    sensor = replace(counter(clock), read=read)
    one = meter(clock, sensor, idle_s=1.0)
    assert one.idle() == {"package-0": pytest.approx(5.0)}
    spans.append((clock.now, 5.0))
    busy[0] = 20.0
    before = clock.now
    found = one.window(lambda: clock.pass_by(0.02))["details"]
    assert clock.now - before < 1.2
    assert found["watts"] == pytest.approx(20.0, rel=0.01)
    assert found["above_idle_j"] == pytest.approx(15.0 * found["seconds"], rel=0.02)


def test_the_window_tells_how_long_the_battery_would_last() -> None:
    clock = Clock()
    battery = Sensor(
        "power_supply",
        "battery BAT0",
        "machine",
        "machine",
        lambda: 10 + 0.01 * math.sin(clock.now),
        "W",
        capacity_wh=50.0,
    )
    found = meter(clock, counter(clock), battery).window(lambda: clock.pass_by(0.02))
    assert found["details"]["battery_hours"] == pytest.approx(5.0, rel=0.01)


def test_a_battery_on_mains_tells_no_hours() -> None:
    clock = Clock()
    mains = Absent("unsupported", "battery BAT0 is charging", "power_supply", "machine")
    battery = Sensor("power_supply", "battery BAT0", "machine", "machine", lambda: mains, "W", capacity_wh=50.0)
    found = meter(clock, counter(clock), battery).window(lambda: clock.pass_by(0.02))["details"]
    assert found["battery_hours"] is None
    assert found["battery_says"] == "unsupported: battery BAT0 is charging"


def test_the_state_of_a_device_is_asked_of_the_device() -> None:
    clock = Clock()
    states = iter([Thermal(40.0, slowed=()), Thermal(60.0, slowed=("slowed by heat (by the driver)",))])
    gpu = counter(clock, group="gpu", scope="device", state=lambda: next(states))
    found = meter(clock, gpu, device="cuda", thermal_monitoring=True).window(lambda: clock.pass_by(0.05))["details"]
    assert (found["temperature_before_c"], found["temperature_after_c"]) == (40.0, 60.0)
    assert found["throttled"] is True
    assert found["calls_per_degree"] == found["calls"] / 20


@pytest.mark.slow
def test_a_thread_reads_on_while_one_long_call_runs() -> None:
    import time

    begun = time.perf_counter()
    sensor = Sensor("RAPL", "package-0", "package", "cpu", lambda: 20 * (time.perf_counter() - begun))
    one = EnergyMeter(sensors=[sensor], idle_s=0, thermal_monitoring=False, busy=lambda: None)
    found = one.window(lambda: time.sleep(1.1))
    assert found["details"]["calls"] == 1
    assert found["details"]["n_updates"] >= 10
    assert found["value"] == pytest.approx(20 * found["details"]["seconds"], rel=0.02)


# ---- what is not measured


def stuck(clock: Clock) -> Sensor:
    return replace(counter(clock), read=lambda: 3.0)


def reset(clock: Clock) -> Sensor:
    return replace(counter(clock), read=lambda: 50 * (clock.now % 0.5), range_j=262143.0)


def in_use(clock: Clock) -> Sensor:
    return counter(clock, others=lambda: "2 other processes computed on gpu-0")


REASON: dict[str, Callable[[Clock], Sensor | Absent]] = {
    "no_device": lambda clock: Absent("no_device", "there is none", "RAPL", "cpu"),
    "no_driver": lambda clock: Absent("no_driver", "modprobe", "RAPL", "cpu"),
    "no_permission": lambda clock: Absent("no_permission", "chmod", "RAPL", "cpu"),
    "unsupported": lambda clock: Absent("unsupported", "not this one", "RAPL", "cpu"),
    "virtual_machine": lambda clock: Absent("virtual_machine", "no counters", "RAPL", "cpu"),
    "window_too_short": lambda clock: counter(clock, period=3.0),
    "counter_stuck": stuck,
    "counter_reset": reset,
    "shared_device": in_use,
}


def test_there_is_a_case_for_every_reason() -> None:
    assert set(REASON) == set(REASONS)


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_gives_no_number_and_says_itself(code: str) -> None:
    clock = Clock()
    found = meter(clock, REASON[code](clock)).window(lambda: clock.pass_by(0.02))
    assert (found["value"], found["kind"]) == (None, "not measured")
    assert found["reason"].startswith(f"{code}: ")
    told = found["details"]
    assert {told[name] for name in ("joules", "watts", "per_call_j", "calls_per_j", "above_idle_j")} == {None}
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("code", [c for c in REASONS if c != "no_device"])
def test_one_package_that_is_not_measured_leaves_no_total(code: str) -> None:
    clock = Clock()
    found = meter(clock, counter(clock, domain="package-1"), REASON[code](clock)).window(lambda: clock.pass_by(0.02))
    assert found["value"] is None
    assert found["reason"].startswith(f"{code}: ")


def test_a_device_that_is_not_there_takes_nothing_from_the_total() -> None:
    clock = Clock()
    found = meter(clock, counter(clock), REASON["no_device"](clock)).window(lambda: clock.pass_by(0.02))
    assert found["kind"] == "measured"


def test_nothing_is_called_where_nothing_can_be_measured() -> None:
    clock = Clock()
    meter(clock, REASON["virtual_machine"](clock)).window(lambda: pytest.fail("called for nothing"))


@pytest.mark.parametrize(("others_s", "kind"), [(0.0, "measured"), (0.04, "measured"), (3.0, "not measured")])
def test_a_processor_that_others_used_is_shared(others_s: float, kind: str) -> None:
    clock = Clock()
    seen = iter([0.0, others_s])
    found = meter(clock, counter(clock), busy=lambda: next(seen)).window(lambda: clock.pass_by(0.02))
    assert found["kind"] == kind
    assert kind == "measured" or "other processes had" in found["reason"]


def test_a_device_of_which_nobody_tells_is_not_measured() -> None:
    clock = Clock()
    found = meter(clock, counter(clock), device="mlx").window(lambda: clock.pass_by(0.02))
    assert found["reason"] == "no_device: no sensor of this device is known here"


def test_a_counter_that_falls_below_any_range_was_reset() -> None:
    assert (
        spent(replace(PLAIN, range_j=10.0), readings([*rising(15, 1.0, 100.0), *rising(15)])).reason == "counter_reset"
    )


# ---- estimates


def test_an_estimate_is_given_only_when_allowed_and_is_named_so() -> None:
    clock = Clock()
    gone = REASON["virtual_machine"](clock)
    told = meter(clock, gone, allow_estimates=True, tdp_w=65.0).window(lambda: clock.pass_by(0.02))
    assert told["kind"] == "estimate"
    assert told["source"].startswith("estimate: ")
    assert "65 W given; not measured: no counters" in told["reason"]
    assert told["details"]["scope"] == "process"
    assert told["details"]["n_updates"] is None


def test_an_estimate_is_processor_seconds_at_the_watts_given() -> None:
    class Spent:
        cpu_s, spent_s = 3.0, 2.0

    gone = energy.missing(Absent("no_device", "none", "RAPL", "cpu"))
    found = energy.estimate(Spent(), 4, 80.0, 10, gone)  # type: ignore[arg-type]
    assert (found.joules, found.per_call_j, found.kind) == (60.0, 6.0, "estimate")
    assert "(estimate)" in str(found)


def test_without_watts_there_is_not_even_an_estimate() -> None:
    clock = Clock()
    told = meter(clock, REASON["no_device"](clock), allow_estimates=True).window(lambda: clock.pass_by(0.02))
    assert (told["value"], told["kind"]) == (None, "not measured")
    assert "give --tdp" in told["reason"]


def test_a_measurement_goes_before_an_estimate() -> None:
    clock = Clock()
    told = meter(clock, counter(clock), allow_estimates=True, tdp_w=65.0).window(lambda: clock.pass_by(0.02))
    assert told["kind"] == "measured"


def test_a_gpu_is_never_estimated_from_processor_seconds() -> None:
    clock = Clock()
    gone = Absent("no_device", "there is no NVIDIA GPU", "NVML", "gpu")
    told = meter(clock, gone, device="cuda", allow_estimates=True, tdp_w=65.0).window(lambda: clock.pass_by(0.02))
    assert told["kind"] == "not measured"


# ---- this machine


def test_this_machine_measures_or_says_why() -> None:
    found = EnergyMeter(idle_s=0.2).window(lambda: sum(range(1000)))
    assert (found["value"] is None) == (found["kind"] == "not measured")
    assert found["value"] or found["reason"].partition(":")[0] in REASONS
    if not os.path.exists("/sys/class/powercap/intel-rapl:0"):
        assert found["value"] is None
