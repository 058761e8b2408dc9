"""Meters: what they tell, per call; what they cannot tell, with the reason; and the counters of an imitated kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tritium as tt
from tritium.errors import ArgumentError
from tritium.perf.meters import counters, meter
from tritium.perf.meters.absent import REASONS, Absent
from tritium.perf.meters.counters import Counter, Kernel, attributes, why_not
from tritium.perf.meters.meter import METERS, Difference, Level, Meter, memory, meters


def test_every_meter_is_one_and_says_its_unit_and_source() -> None:
    for name, one in zip(METERS, meters(list(METERS)), strict=True):
        assert isinstance(one, Meter)
        assert one.metric == name
        assert one.unit
        assert one.source


def test_an_unknown_meter_is_refused_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"no meter 'instruction'\. Did you mean 'instructions'"):
        meters(["wall", "instruction"])


def test_a_reason_is_one_of_nine() -> None:
    assert len(REASONS) == 9
    with pytest.raises(ArgumentError, match="Did you mean 'no_device'"):
        Absent("no_devise", "?")


def test_a_reason_is_told_with_its_word() -> None:
    assert Absent("no_driver", "load it").reason == "no_driver: load it"


def test_a_value_is_per_call() -> None:
    readings = iter([3.0, 11.0])
    one = Difference("x", "1", "a test", lambda: next(readings))
    one.start()
    assert one.stop(4) == 2.0


@pytest.mark.parametrize("order", [(0.0, None), (None, 0.0)])
def test_one_reading_that_is_absent_makes_the_value_absent(order: tuple[float | None, float | None]) -> None:
    gone = Absent("no_device", "there is none")
    readings: Iterator[float | Absent] = iter([gone if v is None else v for v in order])
    one = Difference("x", "1", "a test", lambda: next(readings))
    one.start()
    assert one.stop(4) is gone


def test_a_level_is_not_divided_by_the_calls() -> None:
    one = Level("temperature", "°C", "a test", lambda: 50.0)
    one.start()
    assert one.stop(1000) == 50.0


def test_the_clocks_tell_time_spent() -> None:
    wall, cpu = meters(["wall", "cpu"])
    wall.start()
    cpu.start()
    np.sort(np.random.default_rng(0).random(300_000))
    spent, worked = wall.stop(1), cpu.stop(1)
    assert isinstance(spent, float)
    assert isinstance(worked, float)
    assert spent > 0
    assert worked > 0


def test_meters_load_nothing_before_they_are_asked() -> None:
    code = "import sys, tritium.perf.meters.meter; print(*[m for m in sys.modules if m.startswith('tritium.perf')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    meters = ["tritium.perf.meters", "tritium.perf.meters.absent", "tritium.perf.meters.meter", "tritium.perf.words"]
    assert sorted(done.stdout.split()) == ["tritium.perf", *meters]


# ---- memory


def test_the_pool_is_told_to_the_byte() -> None:
    a = tt.ones((256, 1024))
    found = memory(lambda: a + a)
    assert found["peak_bytes"] == found["allocated_bytes"] == a.nbytes


def test_what_is_freed_on_the_way_counts_for_the_peak_only() -> None:
    a = tt.ones((256, 1024))
    found = memory(lambda: ((a + a) + (a * a)).sum())
    assert isinstance(found["peak_bytes"], int)
    assert found["peak_bytes"] >= 2 * a.nbytes
    assert found["allocated_bytes"] == 4


@pytest.mark.skipif(sys.platform != "linux", reason="the resident peak is reset through /proc")
def test_the_resident_peak_is_of_this_call() -> None:
    big = 96 << 20
    first = memory(lambda: np.ones(big, np.uint8).sum())
    if isinstance(first["rss_bytes"], Absent):
        pytest.skip("this system does not let a process reset its peak")
    assert 0.9 * big < first["rss_bytes"] < 1.5 * big
    after = memory(lambda: None)["rss_bytes"]
    assert not isinstance(after, Absent)
    assert after < big / 4  # not the peak of the call before


def test_a_peak_that_cannot_be_reset_is_told_only_when_it_rose(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([100, 130, 130, 130])
    monkeypatch.setattr(meter, "_clear_peak", lambda: False)
    monkeypatch.setattr(meter, "_largest", lambda: next(peaks))
    assert memory(lambda: None)["rss_bytes"] == 30
    found = memory(lambda: None)["rss_bytes"]
    assert isinstance(found, Absent)
    assert found.code == "unsupported"


def test_files_that_do_not_tell_are_not_read_as_zero(tmp_path: Path) -> None:
    assert meter._peak(tmp_path / "status") is None
    (tmp_path / "status").write_text("VmHWM:\tmany kB\n")
    assert meter._peak(tmp_path / "status") is None
    (tmp_path / "status").write_text("VmHWM:\t     12 kB\n")
    assert meter._peak(tmp_path / "status") == 12288
    assert not meter._clear_peak(tmp_path / "nowhere" / "clear_refs")


# ---- counters


class Counted(Kernel):
    """A kernel with threads and counters of our own: (count, wanted, ran) of each."""

    def __init__(self, threads: dict[int, list[tuple[int, int, int]]], error: int = 0) -> None:
        self.rows, self.error, self.closed = {t: list(r) for t, r in threads.items()}, error, list[int]()

    def threads(self) -> list[int]:
        return [*self.rows]

    def open(self, attribute: bytes, thread: int) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if not self.rows[thread]:
            raise ProcessLookupError(errno.ESRCH, "it ended")
        return thread

    def read(self, fd: int) -> tuple[int, int, int]:
        return self.rows[fd].pop(0)

    def close(self, fd: int) -> None:
        self.closed.append(fd)


linux = pytest.mark.skipif(sys.platform != "linux", reason="the counters are Linux's")


@linux
def test_a_counter_adds_all_threads_up() -> None:
    kernel = Counted({7: [(100, 10, 10), (500, 20, 20)], 8: [(0, 0, 0), (200, 5, 5)], 9: []})
    one = Counter("instructions", kernel)
    one.start()
    assert one.stop(3) == 200.0
    del one
    assert kernel.closed == [7, 8]


@linux
def test_a_counter_that_took_turns_is_scaled_to_the_whole_time() -> None:
    one = Counter("cycles", Counted({7: [(0, 0, 0), (100, 40, 10)]}))
    one.start()
    assert one.stop(1) == 400.0


@linux
def test_a_counter_that_never_ran_is_not_zero() -> None:
    one = Counter("cycles", Counted({7: [(0, 0, 0), (0, 40, 0)]}))
    one.start()
    found = one.stop(1)
    assert isinstance(found, Absent)
    assert found.code == "shared_device"


@linux
def test_a_thread_that_slept_adds_nothing() -> None:
    one = Counter("cycles", Counted({7: [(5, 9, 9), (5, 9, 9)]}))
    one.start()
    assert one.stop(1) == 0.0


@linux
def test_a_refused_counter_says_why_every_time() -> None:
    one = Counter("instructions", Counted({7: []}, errno.ENOSYS))
    one.start()
    found = one.stop(1)
    assert isinstance(found, Absent)
    assert found.code == "no_driver"


@pytest.mark.parametrize(
    ("number", "paranoid", "cpuinfo", "code", "says"),
    [
        (errno.EACCES, "4", "", "no_permission", "kernel.perf_event_paranoid is 4; as root: sysctl"),
        (errno.EPERM, "2", "", "no_permission", "seccomp"),
        (errno.EPERM, None, "", "no_permission", "seccomp"),
        (errno.ENOENT, "2", "flags : fpu hypervisor", "virtual_machine", "no performance counters"),
        (errno.ENOENT, "2", "flags : fpu", "no_device", "no performance counters"),
        (errno.EOPNOTSUPP, "2", "flags : fpu", "no_device", "no performance counters"),
        (errno.ENOSYS, "2", "", "no_driver", "without perf events"),
        (errno.EINVAL, "2", "", "unsupported", "Invalid argument"),
    ],
)
def test_a_refusal_has_a_reason(
    tmp_path: Path, number: int, paranoid: str | None, cpuinfo: str, code: str, says: str
) -> None:
    if paranoid is not None:
        (tmp_path / "paranoid").write_text(paranoid + "\n")
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    found = why_not(OSError(number, os.strerror(number)), tmp_path / "paranoid", tmp_path / "cpuinfo")
    assert found.code == code
    assert says in found.says


def test_another_system_has_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters.sys, "platform", "darwin")
    found = Counter("cycles", Counted({7: [(0, 0, 0)]})).stop(1)
    assert isinstance(found, Absent)
    assert found.code == "unsupported"


def test_an_unknown_counter_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'cycles'"):
        Counter("cycle")


def test_the_record_given_to_the_kernel_is_laid_out_as_it_reads_it() -> None:
    raw = attributes("instructions")
    words = [int.from_bytes(raw[i : i + 8], sys.byteorder) for i in range(0, len(raw), 8)]
    assert len(raw) == counters.SIZE == int.from_bytes(raw[4:8], sys.byteorder)
    assert words[1] == 1  # config: instructions
    assert words[4] == 0b11  # read_format: both times
    assert words[5] == 0b1100010  # inherit, exclude_kernel, exclude_hv; not disabled


@linux
def test_this_machine_counts_instructions_or_says_why() -> None:
    one = Counter("instructions")
    one.start()
    sum(range(100_000))
    found = one.stop(1)
    assert found.code in REASONS if isinstance(found, Absent) else found > 100_000
