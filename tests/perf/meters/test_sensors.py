"""Sensors by imitation: trees of files, a driver's library, Apple's tools; and this machine as it is."""

from __future__ import annotations

import plistlib
import sys
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fake_pynvml import FakeError, FakePynvml
from tritium.perf.meters import apple as sensors_apple, nvidia as sensors_nvidia, sensors
from tritium.perf.meters.absent import REASONS, Absent
from tritium.perf.meters.nvidia import Nvml, NvmlError, nvidia, others, state
from tritium.perf.meters.probe import battery, probe
from tritium.perf.meters.sensors import Sensor, Watts, busy_s, rapl, temperature, thermal

INTEL = "vendor_id : GenuineIntel\nflags : fpu avx2\n"
VIRTUAL = "vendor_id : GenuineIntel\nflags : fpu hypervisor avx2\n"
ARM = "CPU implementer : 0x41\nFeatures : fp asimd\n"


def files(root: Path, tree: dict[str, Any]) -> Path:
    for name, value in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


def zone(name: str, said: str, microjoules: int = 5_000_000, reach: int | None = 262_143_328_850) -> dict[str, Any]:
    folder = f"class/powercap/{name}"
    tree: dict[str, Any] = {f"{folder}/name": said, f"{folder}/energy_uj": microjoules}
    return tree if reach is None else tree | {f"{folder}/max_energy_range_uj": reach}


def only(found: list[Sensor | Absent]) -> Sensor:
    (one,) = found
    assert isinstance(one, Sensor)
    return one


def reason(found: list[Sensor | Absent]) -> Absent:
    (one,) = found
    assert isinstance(one, Absent)
    assert one.code in REASONS
    return one


# ---- RAPL


def test_a_package_is_read_in_joules_with_its_range(tmp_path: Path) -> None:
    one = only(rapl(files(tmp_path, zone("intel-rapl:0", "package-0"))))
    assert (one.domain, one.scope, one.group, one.part_of) == ("package-0", "package", "cpu", "")
    assert one.read() == 5.0
    assert one.range_j == pytest.approx(262143.32885)
    files(tmp_path, zone("intel-rapl:0", "package-0", 7_500_000))
    assert one.read() == 7.5


def test_cores_are_part_of_their_package_and_memory_is_not(tmp_path: Path) -> None:
    tree = zone("intel-rapl:0", "package-0") | zone("intel-rapl:0:0", "core") | zone("intel-rapl:0:1", "dram")
    tree |= zone("intel-rapl:1", "package-1") | zone("intel-rapl:1:0", "dram") | zone("intel-rapl:2", "psys")
    found = {s.domain: s for s in rapl(files(tmp_path, tree)) if isinstance(s, Sensor)}
    assert found["package-0/core"].part_of == "package-0"
    assert [d for d, s in found.items() if s.group == "cpu" and not s.part_of] == [
        "package-0", "package-0/dram", "package-1", "package-1/dram",
    ]  # fmt: skip
    assert (found["psys"].scope, found["psys"].group) == ("machine", "machine")


def test_the_same_counter_shown_twice_is_read_once(tmp_path: Path) -> None:
    only(rapl(files(tmp_path, zone("intel-rapl:0", "package-0") | zone("intel-rapl-mmio:0", "package-0"))))


def test_a_counter_that_may_not_be_read_says_how_to_allow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, zone("intel-rapl:0", "package-0"))
    monkeypatch.setattr(sensors.os, "access", lambda path, mode: False)
    found = reason(rapl(tmp_path))
    assert found.code == "no_permission"
    assert "chmod a+r" in found.says


def test_a_right_that_is_taken_away_later_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = only(rapl(files(tmp_path, zone("intel-rapl:0", "package-0"))))

    def refuse(self: Path, **_: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    found = one.read()
    assert isinstance(found, Absent)
    assert found.code == "no_permission"


def test_a_counter_that_tells_no_number_is_not_zero(tmp_path: Path) -> None:
    one = only(rapl(files(tmp_path, zone("intel-rapl:0", "package-0"))))
    (tmp_path / "class/powercap/intel-rapl:0/energy_uj").write_text("")
    assert isinstance(one.read(), Absent)


def test_a_range_that_is_not_told_is_not_known(tmp_path: Path) -> None:
    assert only(rapl(files(tmp_path, zone("intel-rapl:0", "package-0", reach=None)))).range_j is None


@pytest.mark.parametrize(
    ("cpuinfo", "code", "says"),
    [
        (VIRTUAL, "virtual_machine", "virtual machine"),
        (INTEL, "no_driver", "modprobe intel_rapl_msr"),
        (INTEL.replace("GenuineIntel", "AuthenticAMD"), "no_driver", "modprobe"),
        (ARM, "unsupported", "this processor"),
    ],
)
def test_without_a_counter_there_is_the_right_reason(tmp_path: Path, cpuinfo: str, code: str, says: str) -> None:
    found = reason(rapl(tmp_path, files(tmp_path / "proc", {"cpuinfo": cpuinfo})))
    assert found.code == code
    assert says in found.says
    assert found.group == "cpu"


def test_older_kernels_show_the_sockets_of_amd_elsewhere(tmp_path: Path) -> None:
    folder = "class/hwmon/hwmon3"
    tree = {f"{folder}/name": "amd_energy", f"{folder}/energy1_label": "Ecore000", f"{folder}/energy1_input": 1_000_000}
    tree |= {f"{folder}/energy65_label": "Esocket0", f"{folder}/energy65_input": 9_000_000}
    one = only(rapl(files(tmp_path, tree)))
    assert (one.domain, one.read()) == ("Esocket0", 9.0)


# ---- heat, load


def test_the_warmest_sensor_counts(tmp_path: Path) -> None:
    tree = {"class/hwmon/hwmon0/temp1_input": 41000, "class/thermal/thermal_zone0/temp": 55500}
    assert temperature(files(tmp_path, tree | {"class/thermal/thermal_zone1/temp": "broken"})) == 55.5


def test_no_temperature_is_not_zero_degrees(tmp_path: Path) -> None:
    found = temperature(tmp_path)
    assert isinstance(found, Absent)
    assert found.code == "no_device"
    assert thermal(tmp_path) == sensors.Thermal()


def test_throttle_events_and_clocks_are_read(tmp_path: Path) -> None:
    cpu = "devices/system/cpu"
    tree = {
        f"{cpu}/cpu0/thermal_throttle/core_throttle_count": 3,
        f"{cpu}/cpu1/thermal_throttle/core_throttle_count": 4,
    }
    tree |= {f"{cpu}/cpu0/cpufreq/scaling_cur_freq": 1_200_000, f"{cpu}/cpu1/cpufreq/scaling_cur_freq": 3_400_000}
    found = thermal(files(tmp_path, tree))
    assert (found.throttle_events, found.frequency_mhz, found.temperature_c) == (7, 3400.0, None)


def test_busy_time_leaves_out_idling_waiting_and_theft(tmp_path: Path) -> None:
    files(tmp_path, {"stat": "cpu  100 10 50 9999 500 20 20 777 0 0\ncpu0 1 1 1"})
    found = busy_s(tmp_path)
    assert found == pytest.approx(200 / sensors.os.sysconf("SC_CLK_TCK"))
    assert busy_s(tmp_path / "nowhere") is None


# ---- the battery


def supply(**more: Any) -> dict[str, Any]:
    tree = {"type": "Battery", "status": "Discharging", "power_now": 12_500_000, "energy_full": 50_000_000} | more
    return {f"class/power_supply/BAT0/{k}": v for k, v in tree.items() if v is not None}


def test_a_battery_tells_the_draw_and_what_it_holds(tmp_path: Path) -> None:
    one = only(battery(files(tmp_path, supply()), "linux"))
    assert (one.read(), one.unit, one.scope, one.capacity_wh) == (12.5, "W", "machine", 50.0)


def test_a_battery_may_tell_amperes_instead(tmp_path: Path) -> None:
    more = {"power_now": None, "energy_full": None, "current_now": -2_000_000, "voltage_now": 11_000_000}
    one = only(battery(files(tmp_path, supply(**more, charge_full=4_000_000, voltage_min_design=10_000_000)), "linux"))
    assert (one.read(), one.capacity_wh) == (22.0, 40.0)


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", ""])
def test_a_battery_on_mains_tells_no_draw(tmp_path: Path, status: str) -> None:
    found = only(battery(files(tmp_path, supply(status=status)), "linux")).read()
    assert isinstance(found, Absent)
    assert "only while it discharges" in found.says


def test_the_battery_of_a_mouse_is_not_the_machines(tmp_path: Path) -> None:
    assert reason(battery(files(tmp_path, supply(scope="Device")), "linux")).code == "no_device"


def test_a_battery_without_power_is_unsupported(tmp_path: Path) -> None:
    assert reason(battery(files(tmp_path, supply(power_now=None)), "linux")).code == "unsupported"


def test_without_a_battery_there_is_a_reason(tmp_path: Path) -> None:
    assert reason(battery(tmp_path, "linux")).says == "there is no battery"


# ---- NVIDIA


@dataclass
class Gpus:
    """What the driver would tell; an int among the values is an error of the library."""

    told: dict[str, Any] = field(default_factory=dict)
    number: int = 1

    def count(self) -> int:
        return self.number

    def __getattr__(self, name: str) -> Any:
        def ask(gpu: int) -> Any:
            value = self.told.get(name, NvmlError(3))
            if isinstance(value, NvmlError):
                raise value
            return value

        return ask


WHOLE = {
    "energy_mj": 123_456,
    "power_mw": 90_000,
    "temperature_c": 51,
    "clock_mhz": 1410,
    "slowdowns": 0x1,
    "processes": [],
}


def listed(folder: Path) -> Path:
    return files(
        folder, {"bus/pci/devices/0000:01:00.0/vendor": "0x10de", "bus/pci/devices/0000:01:00.0/class": "0x030200"}
    )


def gpus(folder: Path, told: dict[str, Any], number: int = 1) -> list[Sensor | Absent]:
    return nvidia(listed(folder), folder / "proc", lambda: Gpus(told, number))


def test_a_gpu_counts_millijoules(tmp_path: Path) -> None:
    one = only(gpus(tmp_path, WHOLE))
    assert (one.read(), one.unit, one.domain, one.scope, one.group) == (123.456, "J", "gpu-0", "device", "gpu")
    assert one.range_j is None


def test_an_older_gpu_has_a_gauge_of_watts(tmp_path: Path) -> None:
    one = only(gpus(tmp_path, {k: v for k, v in WHOLE.items() if k != "energy_mj"}))
    assert (one.read(), one.unit) == (90.0, "W")


def test_each_gpu_has_its_sensor(tmp_path: Path) -> None:
    assert [s.domain for s in gpus(tmp_path, WHOLE, 3) if isinstance(s, Sensor)] == ["gpu-0", "gpu-1", "gpu-2"]


@pytest.mark.parametrize(
    ("told", "number", "code"),
    [({}, 1, "unsupported"), ({"energy_mj": NvmlError(4)}, 1, "no_permission"), (WHOLE, 0, "no_device"),
     (WHOLE | {"partitioned": True}, 1, "shared_device"), ({"energy_mj": NvmlError(999)}, 1, "unsupported")],
)  # fmt: skip
def test_a_gpu_that_cannot_tell_says_why(tmp_path: Path, told: dict[str, Any], number: int, code: str) -> None:
    assert reason(gpus(tmp_path, told, number)).code == code


def test_a_gpu_without_a_driver_is_not_a_machine_without_a_gpu(tmp_path: Path) -> None:
    gone = Absent("no_driver", "libnvidia-ml is not installed", "NVML", "gpu")
    assert reason(nvidia(listed(tmp_path), tmp_path / "proc", lambda: gone)).code == "no_driver"
    assert reason(nvidia(tmp_path / "none", tmp_path / "proc", lambda: gone)).code == "no_device"


def test_a_gpu_that_only_the_driver_shows_counts_too(tmp_path: Path) -> None:
    assert only(nvidia(tmp_path, tmp_path, lambda: Gpus(WHOLE))).read() == 123.456


def test_the_driver_itself_lists_its_gpus(tmp_path: Path) -> None:
    gone = Absent("no_driver", "libnvidia-ml is not installed", "NVML", "gpu")
    files(tmp_path, {"driver/nvidia/gpus/0000:01:00.0/information": "Model: a GPU"})
    assert reason(nvidia(tmp_path, tmp_path, lambda: gone)).code == "no_driver"


def test_a_driver_that_does_not_count_its_gpus_says_why(tmp_path: Path) -> None:
    class Lost(Gpus):
        def count(self) -> int:
            raise NvmlError(18)

    assert reason(nvidia(tmp_path, tmp_path, Lost)).code == "no_driver"


def test_a_function_an_old_driver_lacks_is_unsupported() -> None:
    for library in (
        SimpleNamespace(nvmlInit=lambda: None, NVMLError=FakeError),
        FakePynvml({"nvmlDeviceGetCount": 13}),
    ):
        with pytest.raises(NvmlError) as caught:
            Nvml(library).count()
        assert caught.value.absent().says == "this driver is too old to report it"


def test_a_card_of_the_same_maker_that_is_no_gpu_does_not_count(tmp_path: Path) -> None:
    tree = {"bus/pci/devices/0000:01:00.1/vendor": "0x10de", "bus/pci/devices/0000:01:00.1/class": "0x040300"}
    gone = Absent("no_driver", "libnvidia-ml is not installed", "NVML", "gpu")
    assert reason(nvidia(files(tmp_path, tree), tmp_path / "proc", lambda: gone)).code == "no_device"


def test_a_gpu_lost_between_readings_is_told(tmp_path: Path) -> None:
    told: dict[str, Any] = dict(WHOLE)
    one = only(gpus(tmp_path, told))
    told["energy_mj"] = NvmlError(15)
    found = one.read()
    assert isinstance(found, Absent)
    assert (found.code, found.says) == ("no_device", "gpu-0: the GPU fell off the bus")


@pytest.mark.parametrize(
    ("mask", "says"), [(0x1, ()), (0x24, ("slowed by the power cap", "slowed by heat (by the driver)"))]
)
def test_the_driver_tells_why_a_gpu_is_slow(mask: int, says: tuple[str, ...]) -> None:
    found = state(Gpus(WHOLE | {"slowdowns": mask}), 0)
    assert (found.slowed, found.temperature_c, found.frequency_mhz) == (says, 51, 1410)


def test_a_state_that_is_not_told_is_not_known() -> None:
    assert state(Gpus({}), 0) == sensors.Thermal()


@pytest.mark.parametrize(
    ("processes", "known", "shared"),
    [([], [], False), ([7], [], False), ([7, 8], [], True), ([8], [8], True), ([8], [], False), ([8, 9], [], True)],
)
def test_others_on_the_gpu_are_seen(tmp_path: Path, processes: list[int], known: list[int], shared: bool) -> None:
    for pid in known:
        (tmp_path / str(pid)).mkdir()
    assert bool(others(Gpus({"processes": processes}), 0, tmp_path, me=7)) == shared


def test_the_library_is_called_with_its_own_types() -> None:
    nvml = Nvml(FakePynvml())
    assert nvml.count() == 2
    assert nvml.energy_mj(0) == 1 << 40
    assert [nvml.power_mw(0), nvml.temperature_c(0), nvml.clock_mhz(0), nvml.slowdowns(0)] == [70_000, 44, 1200, 8]
    assert nvml.partitioned(1)
    assert nvml.processes(0) == [11, 12]


def test_the_constants_and_functions_are_those_of_nvidia_ml_py() -> None:
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py: pip install nvidia-ml-py")
    assert (sensors_nvidia.GPU_SENSOR, sensors_nvidia.SM_CLOCK) == (pynvml.NVML_TEMPERATURE_GPU, pynvml.NVML_CLOCK_SM)
    assert pynvml.NVML_ERROR_LIBRARY_NOT_FOUND in sensors_nvidia.CODES
    assert pynvml.NVML_ERROR_FUNCTION_NOT_FOUND == sensors_nvidia.NO_FUNCTION
    assert issubclass(pynvml.NVMLError, Exception)
    assert all(callable(getattr(pynvml, name)) for name in (*FakePynvml.RESULTS, "nvmlInit"))


def test_a_library_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml({"nvmlInit": 9}))
    found = sensors_nvidia.opened.__wrapped__()
    assert isinstance(found, Absent)
    assert found.code == "no_driver"
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml({"nvmlInit": 12}))
    found = sensors_nvidia.opened.__wrapped__()
    assert isinstance(found, Absent)
    assert (found.code, found.says) == ("no_driver", "the driver's library (libnvidia-ml) is not installed")
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml())
    assert sensors_nvidia.opened.__wrapped__().count() == 2


def test_without_the_package_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = reason(nvidia(listed(tmp_path), tmp_path / "proc", sensors_nvidia.opened.__wrapped__))
    assert (found.code, found.says) == ("unsupported", "reading it needs nvidia-ml-py: pip install nvidia-ml-py")
    assert reason(nvidia(tmp_path / "none", tmp_path / "proc", lambda: found)).code == "no_device"


# ---- Apple


def test_a_machine_that_is_no_mac_has_no_apple_chip() -> None:
    assert reason(sensors_apple.apple("linux")).code == "no_device"


def test_the_channels_of_a_chip_become_sensors() -> None:
    told = {"CPU Energy": 5.0, "GPU Energy": 2.0, "ANE0": 0.1, "DRAM0": 1.0, "ECPU0": 0.7, "DIE_1_CPU Energy": 3.0}
    found = sensors_apple.apple("darwin", lambda: lambda: told)
    groups = {s.domain: s.group for s in found if isinstance(s, Sensor)}
    assert groups == {
        "CPU Energy": "cpu", "GPU Energy": "gpu", "ANE0": "machine", "DRAM0": "machine", "DIE_1_CPU Energy": "cpu",
    }  # fmt: skip
    assert all("not yet run on a Mac" in s.source for s in found)
    assert isinstance(found[0], Sensor)
    assert found[0].read() == 5.0
    del told["CPU Energy"]
    assert isinstance(found[0].read(), Absent)


def test_without_the_library_the_tool_is_asked_and_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(sensors_apple.os, "geteuid", lambda: 501)
    assert reason(sensors_apple.apple("darwin", broken)).code == "no_permission"


def test_a_chip_without_energy_channels_is_unsupported() -> None:
    assert reason(sensors_apple.apple("darwin", lambda: dict)).code == "unsupported"


def test_powermetrics_is_read_in_watts() -> None:
    answer = plistlib.dumps({"processor": {"cpu_power": 4200.0, "gpu_power": 800.0, "combined_power": 5000}}) + b"\0"
    found = sensors_apple.powermetrics(lambda command: answer, root=True)
    assert [(s.domain, s.group, s.unit, s.read()) for s in found if isinstance(s, Sensor)] == [
        ("cpu_power", "cpu", "W", 4.2), ("gpu_power", "gpu", "W", 0.8),
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [b"", b"not a list", b"<plist></wrong>", plistlib.dumps([1]), plistlib.dumps({})])
def test_what_powermetrics_does_not_tell_is_not_invented(answer: bytes) -> None:
    assert reason(sensors_apple.powermetrics(lambda command: answer, root=True)).code == "unsupported"


class Foundation:
    """The part of CoreFoundation and IOReport that is used, with Python's objects for pointers."""

    def __init__(self, values: dict[str, tuple[int, str]]) -> None:
        self.values = values
        self.released = 0

    def __getattr__(self, name: str) -> Any:
        functions = {
            "CFStringCreateWithCString": lambda _, value, __: value,
            "CFDictionaryGetValue": lambda sample, key: sample,
            "CFArrayGetCount": len,
            "CFArrayGetValueAtIndex": lambda rows, i: rows[i],
            "CFStringGetCString": self._copy,
            "CFRelease": self._release,
            "IOReportCopyChannelsInGroup": lambda *_: "channels" if self.values else None,
            "IOReportCreateSubscription": lambda *_: "subscription",
            "IOReportCreateSamples": lambda *_: list(self.values.items()),
            "IOReportSimpleGetIntegerValue": lambda row, _: row[1][0],
            "IOReportChannelGetChannelName": lambda row: row[0],
            "IOReportChannelGetUnitLabel": lambda row: row[1][1],
        }

        class Function:
            restype = argtypes = None
            __call__ = staticmethod(functions[name])

        return Function()

    def _copy(self, string: str, out: Any, *_: Any) -> bool:
        out.value = string.encode()
        return True

    def _release(self, sample: Any) -> None:
        self.released += 1


def test_a_tool_that_stops_telling_is_told() -> None:
    answers = iter([plistlib.dumps({"processor": {"cpu_power": 4200.0}}), plistlib.dumps({})])
    one = only(sensors_apple.powermetrics(lambda command: next(answers), root=True))
    found = one.read()
    assert isinstance(found, Absent)
    assert found.code == "unsupported"


def test_a_tool_that_is_not_there_is_told() -> None:
    def missing(command: list[str]) -> bytes:
        raise FileNotFoundError(command[0])

    assert reason(sensors_apple.battery_of_macos(missing)).code == "unsupported"
    assert reason(sensors_apple.powermetrics(missing, root=True)).code == "unsupported"
    assert (
        reason(sensors_apple.powermetrics(sensors_apple._ran, root=True)).code == "unsupported"
        or sys.platform == "darwin"
    )


def test_a_mac_asks_its_own_tools_for_everything(tmp_path: Path) -> None:
    if sys.platform == "darwin":
        pytest.skip("the tools are there")
    found = probe(system="darwin", root=tmp_path, proc=tmp_path)
    assert [s.group for s in found] == ["cpu", "machine"]
    assert {s.code for s in found if isinstance(s, Absent)} <= {"no_permission", "unsupported"}


def test_channels_are_read_in_their_units_and_given_back() -> None:
    now = [0.0]
    system = Foundation({"CPU Energy": (1500, "mJ"), "GPU Energy": (2_000_000_000, "nJ"), "Residency": (3, "ticks")})
    channels = sensors_apple.Channels(system, system, lambda: now[0])
    assert channels.read() == {"CPU Energy": 1.5, "GPU Energy": 2.0}
    system.values["CPU Energy"] = (2500, "mJ")
    assert channels.read()["CPU Energy"] == 1.5  # asked at the same moment
    now[0] = 1.0
    assert channels.read()["CPU Energy"] == 2.5
    assert system.released == 2


def test_a_system_without_the_group_has_no_channels() -> None:
    with pytest.raises(RuntimeError, match="Energy Model"):
        sensors_apple.Channels(Foundation({}), Foundation({}))


def mac_battery(**more: Any) -> bytes:
    tree = {"ExternalConnected": False, "InstantAmperage": 2**64 - 1000, "Voltage": 12_000, "AppleRawMaxCapacity": 4000}
    return plistlib.dumps([{k: v for k, v in (tree | more).items() if v is not None}])


def test_the_battery_of_a_mac_tells_the_draw() -> None:
    one = only(sensors_apple.battery_of_macos(lambda command: mac_battery()))
    assert (one.read(), one.capacity_wh) == (12.0, 48.0)


@pytest.mark.parametrize("more", [{"ExternalConnected": True}, {"Voltage": None}])
def test_a_mac_on_mains_tells_no_draw(more: dict[str, Any]) -> None:
    assert isinstance(only(sensors_apple.battery_of_macos(lambda command: mac_battery(**more))).read(), Absent)


def test_a_mac_without_a_battery_says_so() -> None:
    assert reason(sensors_apple.battery_of_macos(lambda command: b"")).code == "no_device"


# ---- all of them


def test_each_toggle_turns_its_probe_off_and_says_so(tmp_path: Path) -> None:
    root = files(tmp_path, zone("intel-rapl:0", "package-0") | supply())
    all_on = probe(root=root, proc=root / "proc", system="linux")
    assert [type(s) for s in all_on] == [Sensor, Absent, Sensor]
    for key in ("intel_cpu", "nvidia_gpu", "battery_monitoring"):
        found = probe(root=root, proc=root / "proc", system="linux", **{key: False})
        assert [s.says for s in found if isinstance(s, Absent) and key in s.says] == [f"turned off by {key}"]


def test_a_toggle_of_the_other_system_says_nothing_here(tmp_path: Path) -> None:
    on, off = (probe(root=tmp_path, proc=tmp_path, system="linux", apple_silicon=on) for on in (True, False))
    assert on == off


def test_this_machine_tells_of_every_kind_of_sensor() -> None:
    found = probe()
    assert {s.group for s in found} == {"cpu", "gpu", "machine"}
    assert all(s.code in REASONS and s.says for s in found if isinstance(s, Absent))
    for s in found:
        if isinstance(s, Sensor):
            value = s.read()
            assert isinstance(value, Absent) or value >= 0


# ---- watts


def joules(*values: float | Absent, **more: Any) -> Sensor:
    found = iter(values)
    return Sensor("RAPL", "package-0", "package", "cpu", lambda: next(found), **more)


def watts(sensor: Sensor, *steps: float) -> list[Any]:
    """What each look says: a number, or the code of why there is none."""
    times = accumulate((0.0, *steps))
    look = Watts(sensor, lambda: next(times))
    found = [look() for _ in range(len(steps) + 1)]
    return [v.code if isinstance(v, Absent) else v for v in found]


def test_power_is_what_a_counter_gained_in_the_time_since_it_last_moved() -> None:
    assert watts(joules(10, 20, 20, 40), 1, 1, 1) == ["window_too_short", 10.0, "window_too_short", 10.0]


def test_a_counter_that_runs_over_goes_on() -> None:
    assert watts(joules(85, 95, 5, range_j=100), 1, 1) == ["window_too_short", 10.0, 10.0]


def test_a_counter_that_begins_anew_is_absent_once() -> None:
    assert watts(joules(85, 95, 5, 6), 1, 1, 1) == ["window_too_short", 10.0, "counter_reset", 1.0]
    assert watts(joules(1, 2, 0.5, range_j=1000), 1, 1) == ["window_too_short", 1.0, "counter_reset"]
    assert watts(joules(95, 5, range_j=100), 1) == ["window_too_short", "counter_reset"], "nothing to judge it by"


def test_a_counter_that_does_not_move_for_long_is_stuck_and_not_0_w() -> None:
    assert watts(joules(5, 5, 6), 20, 1) == ["window_too_short", "counter_stuck", pytest.approx(1 / 21)]


def test_a_gauge_of_watts_is_taken_as_it_is() -> None:
    assert watts(joules(12.5, unit="W")) == [12.5]
    assert watts(joules(Absent("no_permission", "x"))) == ["no_permission"]


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_no_counter_gives_watts_below_zero(values: list[float]) -> None:
    for reach in (None, 2e6):
        found = watts(joules(*values, range_j=reach), *[1.0] * (len(values) - 1))
        assert all(isinstance(v, str) or v >= 0 for v in found)
