"""Sources of a collector: every value is a sensor's or absent with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

import tritium as tt
from collected import Clock, codes
from fake_pynvml import FakePynvml
from tritium.perf.meters import nvidia as sensors_nvidia
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.nvidia import NvmlError
from tritium.perf.meters.sensors import Sensor
from tritium.see.monitor.sources import Gpus, Heat, Memory, Power, Processor


def test_the_cpu_shares_are_of_the_time_between_two_looks() -> None:
    clock, used = Clock(), {"cpu": 1.0, "busy": 50.0}
    source = Processor(cpu=lambda: used["cpu"], busy=lambda: used["busy"], clock=clock, cpus=4)
    source.start()
    clock.now += 2
    used |= {"cpu": 4.0, "busy": 54.0}
    assert source.read() == (150.0, 50.0)
    clock.now += 1
    assert source.read() == (0.0, 0.0)


def test_the_share_of_the_machine_is_over_ten_ticks_and_held_in_between() -> None:
    clock, used = Clock(), {"busy": 50.0}
    source = Processor(cpu=lambda: 0.0, busy=lambda: used["busy"], clock=clock, cpus=2)
    source.start()
    clock.now += 0.02
    used["busy"] += 0.05  # ticks of the time before, too
    soon = source.read()[1]
    assert isinstance(soon, Absent)
    assert soon.code == "window_too_short"
    clock.now += 0.08001
    used["busy"] += 0.05
    first = source.read()[1]
    assert first == pytest.approx(50, abs=0.1)
    clock.now += 0.02
    used["busy"] += 0.04
    assert source.read()[1] == first


@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.integers(0, 30)), min_size=1, max_size=20))
def test_no_share_of_the_machine_is_above_100(steps: list[tuple[float, int]]) -> None:
    clock, used = Clock(), {"busy": 0.0}
    source = Processor(cpu=lambda: 0.0, busy=lambda: used["busy"], clock=clock, cpus=1)
    source.start()
    for seconds, ticks in steps:
        clock.now += seconds
        used["busy"] += ticks / 100
        found = source.read()[1]
        assert isinstance(found, Absent) or 0 <= found <= 100


def test_a_share_needs_two_looks() -> None:
    first = Processor(cpu=lambda: 1.0, busy=lambda: 1.0, clock=Clock()).read()
    assert [v.code for v in first if isinstance(v, Absent)] == ["window_too_short"] * 2


def test_a_system_that_does_not_tell_the_machines_cpu_time_is_no_zero() -> None:
    clock = Clock()
    source = Processor(cpu=lambda: clock.now, busy=lambda: None, clock=clock)
    source.start()
    clock.now += 1
    process, machine = source.read()
    assert process == 100.0
    assert isinstance(machine, Absent)
    assert machine.code == "unsupported"


def test_memory_is_that_of_this_process_and_of_the_pool() -> None:
    kept = tt.ones(1000)
    rss, pool, idle = Memory().read()
    assert isinstance(rss, float)
    assert rss > 1 << 20
    assert isinstance(pool, float)
    assert pool >= kept.nbytes
    assert isinstance(idle, float)


def test_resident_memory_that_cannot_be_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.memory.resident_bytes", lambda: None)
    found = Memory().read()[0]
    assert isinstance(found, Absent)
    assert "does not tell the resident memory" in found.says


def test_the_temperature_is_looked_for_once_in_a_second() -> None:
    clock, found = Clock(), iter([40.0, 41.0])
    source = Heat(lambda: next(found), clock)
    seen = []
    for step in (0.0, 0.5, 0.6):
        clock.now += step
        seen += source.read()
    assert seen == [40.0, 40.0, 41.0]


def test_each_counter_of_joules_is_differenced_by_itself() -> None:
    clock, found = Clock(), iter([10.0, 500.0, 20.0, 501.0])
    counters = [Sensor("RAPL", f"package-{i}", "package", "cpu", lambda: next(found)) for i in range(2)]
    source = Power(counters, clock)
    assert codes(source.read()) == ["window_too_short"] * 2
    clock.now += 1
    assert source.read() == [10.0, 1.0]


def test_a_gauge_of_watts_is_told_as_it_is_and_a_lacking_one_with_its_reason() -> None:
    lacking = Absent("virtual_machine", "no counter", "RAPL", "cpu")
    gauge = Sensor("power_supply", "battery", "machine", "machine", lambda: 12.5, "W")
    source = Power([lacking, gauge, gauge])
    assert [c.name for c in source.columns] == ["power_cpu", "power_battery", "power_battery_2"]
    assert source.read() == [lacking, 12.5, 12.5]


class Nvml:
    """Two GPUs, the second of which tells little."""

    def count(self) -> int:
        return 2

    def busy_percent(self, gpu: int) -> int:
        if gpu:
            raise NvmlError(3)
        return 87

    def memory_bytes(self, gpu: int) -> int:
        return 1 << 30

    def temperature_c(self, gpu: int) -> int:
        return 60

    def clock_mhz(self, gpu: int) -> int:
        return 1500


def test_every_gpu_has_its_columns_and_what_it_does_not_tell_is_absent() -> None:
    source = Gpus(Nvml)
    assert [c.name for c in source.columns[:4]] == ["gpu-0_busy", "gpu-0_memory", "gpu-0_temperature", "gpu-0_clock"]
    assert codes(source.read()) == [87, 1 << 30, 60, 1500, "unsupported", 1 << 30, 60, 1500]


def test_the_drivers_own_structures_are_read() -> None:
    nvml = sensors_nvidia.Nvml(FakePynvml())
    assert (nvml.busy_percent(0), nvml.memory_bytes(0)) == (42, 40 << 30)


def test_without_a_gpu_one_column_says_why() -> None:
    why = Absent("no_driver", "not installed", "NVML", "gpu")
    source = Gpus(lambda: why)
    assert ([c.name for c in source.columns], source.read()) == (["gpu_busy"], [why])


def test_a_driver_without_a_gpu_or_that_cannot_count_says_so() -> None:
    class Empty(Nvml):
        def count(self) -> int:
            return 0

    class Broken(Nvml):
        def count(self) -> int:
            raise NvmlError(9)

    assert [codes(Gpus(kind).read()) for kind in (Empty, Broken)] == [["no_device"], ["no_driver"]]
