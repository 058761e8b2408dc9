"""What the readers make of a system's files: machines that are not there, described in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritium.machine import tuned
from tritium.machine.facts import this_machine
from tritium.perf.meters.absent import Absent
from tritium.see.doctor import readings
from tritium.see.doctor.readings import READERS, Readings


def write(path: Path, text: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(text))


def test_a_reading_is_taken_once_and_only_when_asked_for() -> None:
    taken: list[str] = []
    of = Readings({"a": lambda of: taken.append("a") or 1, "b": lambda of: taken.append("b") or of["a"] + 1})
    assert taken == []
    assert (of["b"], of["b"], of["a"]) == (2, 2, 1)
    assert taken == ["b", "a"]


def test_governors_are_counted(tmp_path: Path) -> None:
    for cpu, name in enumerate(("performance", "powersave", "powersave")):
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", name)
    assert readings.read_governors(tmp_path) == {"performance": 1, "powersave": 2}
    assert isinstance(readings.read_governors(tmp_path / "none"), Absent)


@pytest.mark.parametrize(
    ("file", "text", "on"),
    [("intel_pstate/no_turbo", "0", True), ("intel_pstate/no_turbo", "1", False), ("cpufreq/boost", "1", True), ("cpufreq/boost", "0", False)],
)  # fmt: skip
def test_turbo_is_read_where_either_driver_tells(tmp_path: Path, file: str, text: str, on: bool) -> None:
    write(tmp_path / "devices/system/cpu" / file, text)
    assert readings.read_turbo(tmp_path) is on


def test_turbo_is_unknown_where_no_driver_tells(tmp_path: Path) -> None:
    assert isinstance(readings.read_turbo(tmp_path), Absent)


def cgroup(tmp_path: Path, lines: str) -> tuple[Path, Path]:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self/cgroup", lines)
    return proc, mount


def test_the_smallest_quota_of_all_groups_counts(tmp_path: Path) -> None:
    proc, mount = cgroup(tmp_path, "0::/a/b\n")
    write(mount / "a/b/cpu.max", "max 100000")
    write(mount / "a/cpu.max", "150000 100000")
    write(mount / "cpu.max", "400000 100000")
    assert readings.read_quota(proc, mount) == 1.5


def test_a_quota_of_version_1_is_read(tmp_path: Path) -> None:
    proc, mount = cgroup(tmp_path, "3:cpu,cpuacct:/x\n2:memory:/y\n")
    write(mount / "cpu,cpuacct/x/cpu.cfs_quota_us", "200000")
    write(mount / "cpu,cpuacct/x/cpu.cfs_period_us", "100000")
    assert readings.read_quota(proc, mount) == 2.0


@pytest.mark.parametrize("text", ["max 100000", "-1 100000", "", "rubbish", "100000"])
def test_no_quota_is_none(tmp_path: Path, text: str) -> None:
    proc, mount = cgroup(tmp_path, "0::/\n")
    write(mount / "cpu.max", text)
    assert readings.read_quota(proc, mount) is None


def test_without_cgroups_the_quota_is_unknown(tmp_path: Path) -> None:
    assert isinstance(readings.read_quota(tmp_path, tmp_path), Absent)


@given(st.text(max_size=200) | st.text(max_size=50).map(lambda name: f"0::/{name}"))
def test_any_cgroup_file_is_read_or_ignored(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        proc = Path(name)
        (proc / "self").mkdir()
        (proc / "self/cgroup").write_bytes(text.encode("utf-8", "surrogatepass"))
        found = readings.read_quota(proc, proc / "nowhere")
        assert found is None or isinstance(found, (float, Absent))


def test_a_group_above_the_root_that_is_seen_is_the_root(tmp_path: Path) -> None:
    proc, mount = cgroup(tmp_path, "0::/../job\n")
    write(mount / "job/cpu.max", "150000 100000")
    write(tmp_path / "job/cpu.max", "50000 100000")  # outside of the mount
    assert readings.read_quota(proc, mount) == 1.5


def test_periods_without_cpu_time_are_counted(tmp_path: Path) -> None:
    proc, mount = cgroup(tmp_path, "0::/a\n")
    write(mount / "a/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 4\n")
    assert readings.read_throttled(proc, mount) == 4
    assert readings.read_throttled(tmp_path, mount) == 0


def test_siblings_are_found_inside_and_outside(tmp_path: Path) -> None:
    for cpu, core in enumerate((0, 1, 0, 1)):
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/topology/core_id", core)
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", 0)
    both = readings.read_siblings(tmp_path, frozenset({0, 1, 2}))
    assert isinstance(both, readings.Siblings)
    assert both.shared == ((0, 2),)
    assert both.outside == (3,)
    assert isinstance(readings.read_siblings(tmp_path / "none", frozenset({0})), Absent)


def test_a_watch_knows_what_others_used(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    seen = readings.watch_machine(tmp_path, tmp_path / "proc", 0.002)
    assert (seen.busy, seen.stolen) == (None, None)
    of = Readings(READERS | {"watch": lambda of: seen})
    assert isinstance(of["others"], Absent)
    assert isinstance(of["stolen"], Absent)
    assert isinstance(of["heat before"], Absent)
    assert of["timings"] == seen.timings
    assert min(seen.timings) > 0


def test_stolen_time_is_the_eighth_number(tmp_path: Path) -> None:
    write(tmp_path / "stat", "cpu  1 2 3 4 5 6 7 500 0 0\ncpu0 1\n")
    import os

    assert readings.read_steal_s(tmp_path) == 500 / os.sysconf("SC_CLK_TCK")
    assert readings.read_steal_s(tmp_path / "none") is None


# ---- Tritium's own


def test_threads_are_told_with_the_variables_that_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = readings.read_threads(Readings(READERS))
    assert found.variables["OMP_NUM_THREADS"] == "3"
    assert found.usable == this_machine().usable
    assert all(name.partition(" ")[0] != "tritium" for name, _ in found.pools)


def test_ceilings_are_not_measured_by_asking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    assert readings.read_ceilings(Readings(READERS)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_tuned_file_is_absent_void_or_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    of = Readings(READERS)
    assert readings.read_tuned_file(of).state == "absent"
    path = tuned.path()
    path.write_text("{}")
    assert readings.read_tuned_file(of).state == "void"
    from dataclasses import asdict

    body = {
        "machine": asdict(this_machine()), "build": tuned.build(), "version": tuned.version(),
        "choices": {"storage": {"value": "tern2", "why": "faster", "exact": True}},
        "tunings": [{"created": "2026-01-02T03:04:05.000+00:00"}],
    }  # fmt: skip
    path.write_text(json.dumps(tuned.document(body)))
    found = readings.read_tuned_file(of)
    assert (found.state, found.choices, found.last) == ("kept", 1, "2026-01-02")
    path.write_text(json.dumps(tuned.document(body | {"version": "another"})))
    assert "another version" in readings.read_tuned_file(of).why


def test_nothing_tuned_cannot_drift(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    assert isinstance(Readings(READERS)["drift"], Absent)
