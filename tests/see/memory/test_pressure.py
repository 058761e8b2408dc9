"""Pressure: real bytes over real limits, levels at the thresholds asked for, and callbacks when a level changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tritium as tt
from null import Null
from tritium.errors import ArgumentError, DeviceError
from tritium.see.memory import pressure as memory_pressure
from tritium.see.memory.pressure import Pressure, Reading, Thresholds, on_pressure, pressure, readings

GIB = 1 << 30


class Full(Null):
    """A device that tells of its memory."""

    used = 10 * GIB

    def memory(self) -> tuple[int, int]:
        return type(self).used, 100 * GIB


@pytest.fixture
def full() -> Iterator[type[Full]]:
    tt.register("full", Full)
    yield Full
    Full.used = 10 * GIB
    tt.unregister("full")


def machine(root: Path, **files: str) -> dict[str, Path]:
    """A made-up /proc and /sys/fs/cgroup."""
    given = {
        "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
        "proc/self/statm": "9 262144 0",
        **files,
    }
    for name, text in given.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return {"proc": root / "proc", "cgroups": root / "cgroup"}


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.0, "low"), (0.59, "low"), (0.6, "medium"), (0.8, "high"), (0.94, "high"), (0.95, "critical"), (2, "critical")],
)
def test_levels_begin_at_their_thresholds(share: float, level: str) -> None:
    assert Thresholds().level(share) == level


def test_the_process_and_the_machine_are_read(tmp_path: Path) -> None:
    process, whole = readings(**machine(tmp_path))
    assert (process.which, process.limit) == ("process", 16 * GIB)
    assert process.used > 0
    assert whole == Reading("machine", 8 * GIB, 16 * GIB)
    assert whole.share == 0.5


def test_a_control_group_counts_without_what_can_be_dropped(tmp_path: Path) -> None:
    made = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/user/job\n", "cgroup/user/job/memory.max": f"{4 * GIB}\n",
            "cgroup/user/job/memory.current": f"{3 * GIB}", "cgroup/user/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "cgroup/user/memory.max": "max\n", "cgroup/user/memory.current": "7",
        },
    )  # fmt: skip
    process, group, _ = readings(**made)
    assert group == Reading("cgroup", 2 * GIB, 4 * GIB)
    assert process.limit == 4 * GIB


def test_control_groups_of_version_one_are_read(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:memory:/box\n0::/\n", "cgroup/memory/box/memory.limit_in_bytes": f"{8 * GIB}",
        "cgroup/memory/box/memory.usage_in_bytes": f"{2 * GIB}", "cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "cgroup/memory/memory.usage_in_bytes": "1",
    }  # fmt: skip
    assert Reading("cgroup", 2 * GIB, 8 * GIB) in readings(**machine(tmp_path, **files))


def test_a_mount_shared_by_two_controllers_is_found(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "2:memory,hugetlb:/box\n", "cgroup/memory,hugetlb/box/memory.limit_in_bytes": f"{8 * GIB}",
        "cgroup/memory,hugetlb/box/memory.usage_in_bytes": f"{2 * GIB}",
    }  # fmt: skip
    assert Reading("cgroup", 2 * GIB, 8 * GIB) in readings(**machine(tmp_path, **files))


def test_what_the_system_does_not_tell_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(tmp_path, **{"proc/meminfo": "rubbish\n", "proc/self/statm": "", "proc/self/cgroup": "no\n"})
    assert readings(**made) == ()
    monkeypatch.setattr(memory_pressure, "readings", lambda: ())
    assert pressure().evidence.startswith("not measured: ")


def test_the_pressure_is_that_of_the_limit_closest_to_being_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Reading("process", 10, 100), Reading("cgroup", 85, 100), Reading("machine", 20, 100))
    monkeypatch.setattr(memory_pressure, "readings", lambda: found)
    p = pressure()
    assert (p.level, p.used, p.limit, p.which, p.share) == ("high", 85, 100, "cgroup", 0.85)
    assert p.evidence.startswith("its control group uses 85 B of 100 B (85%)")
    assert p.readings == found
    assert pressure(critical="85%").level == "critical"
    assert pressure(medium=0.9, high=0.95, critical=99).level == "low"


def test_idle_memory_is_part_of_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tt.ones(100_000)
    del x
    monkeypatch.setattr(memory_pressure, "readings", lambda: (Reading("process", 10, 100),))
    assert "are idle in the pool and can be released by memory.trim()" in pressure().evidence


def test_a_device_tells_of_its_own_memory(full: type[Full]) -> None:
    assert pressure("full") == Pressure(
        "full",
        "low",
        10 * GIB,
        100 * GIB,
        "full",
        "full 10 GiB of 100 GiB (10%)",
        (Reading("full", 10 * GIB, 100 * GIB),),
    )
    with pytest.raises(DeviceError, match="nowhere"):
        pressure("nowhere")


def test_thresholds_that_fall_are_refused() -> None:
    with pytest.raises(ArgumentError, match="must not fall"):
        pressure(medium=0.9)
    with pytest.raises(ArgumentError, match="high"):
        pressure(high="a lot")


def test_a_callback_hears_of_every_change_of_level_and_of_nothing_else(full: type[Full]) -> None:
    heard: list[tuple[str, str]] = []
    with on_pressure(lambda now, before: heard.append((before, now.level)), device="full") as watch:
        for used in (20, 70, 75, 99, 10):
            full.used = used * GIB
            watch.check()
    assert heard == [("low", "medium"), ("medium", "critical"), ("critical", "low")]
    assert watch.last.level == "low"


def test_a_thread_looks_by_itself_only_where_asked_to(full: type[Full]) -> None:
    before = threading.active_count()
    called = threading.Event()
    with on_pressure(lambda *_: called.set(), device="full", every="1ms"):
        assert threading.active_count() == before + 1
        full.used = 99 * GIB
        assert called.wait(10)
    assert threading.active_count() == before
    with on_pressure(print, device="full"):
        assert threading.active_count() == before


def test_a_callback_that_fails_in_a_thread_is_logged_and_called_again(
    full: type[Full], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    enough = threading.Event()

    def callback(now: Pressure, _: Any) -> None:
        seen.append(now.level)
        if len(seen) > 1:
            enough.set()
        full.used = 10 * GIB
        raise ValueError("mine")

    tt.settings.log.addHandler(caplog.handler)
    try:
        with on_pressure(callback, device="full", every="1ms"):
            full.used = 99 * GIB
            assert enough.wait(10)
    finally:
        tt.settings.log.removeHandler(caplog.handler)
    assert seen[:2] == ["critical", "low"]
    assert "the callback failed" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a function"):
        on_pressure(3)  # type: ignore[arg-type]


def test_this_machine_has_a_pressure() -> None:
    found = tt.see.pressure()
    assert found.limit == 0 or found.used > 0
    assert str(found).startswith(f"memory pressure of cpu is {found.level}: ")
