"""Looks from beside: stacks, gauges, watts from joules, bounds, and the thread that looks."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from tritium.perf.meters.absent import Absent
from tritium.perf.meters.sensors import Sensor
from tritium.see.trace import sampler
from tritium.see.trace.sampler import (
    OTHER,
    OUTER,
    BackgroundSampler,
    Gauge,
    Launcher,
    Stacks,
    Track,
    power_gauges,
    shorten,
)


def here() -> FrameType:
    return sys._getframe(1)


def deep(n: int) -> FrameType:
    return sys._getframe() if n == 0 else deep(n - 1)


def test_a_stack_is_the_functions_outermost_first() -> None:
    stacks, line = Stacks(10), here().f_lineno + 1
    stacks.look(100, {1: here()})
    found = stacks.samples(40, {1: 0})
    (stack,) = found.stacks
    last = found.frames[stack[-1]]
    assert last.startswith("test_a_stack_is_the_functions_outermost_first (")
    assert last.endswith(f"test_sampler.py:{line})")
    assert (found.at_ns.tolist(), found.lane.tolist(), found.stack.tolist(), found.every_ns) == ([60], [0], [0], 10)


def test_equal_stacks_are_kept_once() -> None:
    stacks, frame = Stacks(10), here()
    for at in range(5):
        stacks.look(at, {1: frame, 2: frame})
    found = stacks.samples(0, {1: 0, 2: 1})
    assert (len(found.stacks), len(found.at_ns)) == (1, 10)
    assert stacks.threads == [1, 2]


def test_the_thread_that_looks_is_left_out() -> None:
    stacks = Stacks(10)
    stacks.look(0, {1: here(), 2: here()}, without=(2,))
    assert stacks.threads == [1]


def test_a_deep_stack_keeps_its_inner_frames() -> None:
    stacks = Stacks(10)
    stacks.look(0, {1: deep(500)})
    found = stacks.samples(0, {1: 0})
    names = [found.frames[i] for i in found.stacks[0]]
    assert len(names) == sampler.MOST_DEPTH
    assert names[0] == OUTER
    assert names[-1].startswith("deep (")


def test_when_it_is_full_every_second_moment_goes_and_the_next_are_rarer() -> None:
    stacks, frame = Stacks(10, most_moments=8), here()
    for at in range(8):
        stacks.look(at, {1: frame})
    found = stacks.samples(0, {1: 0})
    assert (found.at_ns.tolist(), found.every_ns) == ([0, 2, 4, 6], 20)


def test_too_many_distinct_stacks_become_one() -> None:
    stacks = Stacks(10, most_stacks=3)
    for depth in range(8):
        stacks.look(depth, {1: deep(depth)})
    found = stacks.samples(0, {1: 0})
    assert len(found.stacks) == 4
    assert [found.frames[i] for i in found.stacks[-1]] == [OTHER]


def test_paths_are_shown_without_the_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert shorten(threading.__file__) == "threading.py"
    assert shorten("/somewhere/else/c.py") == "c.py"
    assert shorten("<string>") == "<string>"


# ---- gauges


def test_a_track_keeps_what_was_read_on_the_clock_of_the_profile() -> None:
    values = iter([1.0, 2.0])
    track = Track(Gauge("pool", "B", lambda: next(values)))
    track.look(150)
    track.look(250)
    counter = track.counter(100)
    assert (counter.at_ns.tolist(), counter.values.tolist(), counter.absent) == ([50, 150], [1.0, 2.0], "")


def test_a_full_track_reads_half_as_often() -> None:
    track = Track(Gauge("x", "B", lambda: 1.0), most=4)
    for at in range(8):
        track.look(at)
    assert track.counter(0).at_ns.tolist() == [0, 4]


def test_an_absent_quantity_says_why_and_is_not_zero() -> None:
    track = Track(Gauge("power", "W", lambda: Absent("no_driver", "load it")))
    track.look(0)
    counter = track.counter(0)
    assert len(counter.values) == 0
    assert counter.absent == "not measured: no_driver: load it"
    assert "too short" in Track(Gauge("power", "W", lambda: 1.0)).counter(0).absent


def test_a_reason_that_passes_does_not_end_the_looking() -> None:
    said = iter(
        [Absent("window_too_short", "once"), 5.0, Absent("counter_reset", "anew"), Absent("counter_stuck", "x"), 7.0]
    )
    track = Track(Gauge("power", "W", lambda: next(said)))
    for at in range(5):
        track.look(at)
    assert (track.counter(0).at_ns.tolist(), track.counter(0).values.tolist()) == ([1, 4], [5.0, 7.0])


def test_a_gauge_that_raises_is_absent_with_its_error() -> None:
    def broken() -> float:
        raise OSError("the driver\x1b is gone")

    track = Track(Gauge("power", "W", broken))
    track.look(0)
    track.look(1)
    found = track.counter(0)
    assert len(found.values) == 0
    assert found.absent.startswith("not measured: unsupported: OSError: the driver")
    assert "\x1b" not in found.absent


def test_a_counter_of_joules_that_begins_anew_is_no_megawatts() -> None:
    read = iter([1000.0, 1010.0, 5.0, 12.0])
    (gauge,) = power_gauges([Sensor("RAPL", "package-0", "package", "cpu", lambda: next(read), range_j=262_143.0)])
    times = iter([0.0, 0.1, 0.2, 0.3])
    gauge.read.clock = lambda: next(times)  # type: ignore[attr-defined]
    track = Track(gauge)
    for at in range(4):
        track.look(at)
    assert track.counter(0).values.tolist() == pytest.approx([100.0, 70.0])


def test_parts_of_a_domain_are_not_added_to_it() -> None:
    whole = Sensor("RAPL", "package-0", "package", "cpu", lambda: 1.0)
    part = Sensor("RAPL", "package-0/core", "package", "cpu", lambda: 1.0, part_of="package-0")
    assert [g.name for g in power_gauges([whole, part])] == ["power"]
    assert [g.name for g in power_gauges([whole, whole])] == ["power package-0"] * 2


def test_without_a_sensor_the_reason_that_helps_most_is_told() -> None:
    (gauge,) = power_gauges([Absent("no_device", "there is no battery"), Absent("virtual_machine", "hidden here")])
    assert str(gauge.read()) == str(Absent("virtual_machine", "hidden here"))
    (none,) = power_gauges([])
    assert isinstance(none.read(), Absent)


# ---- the thread


def busy_until(done: threading.Event) -> None:
    while not done.wait(0.001):
        pass


def test_it_samples_other_threads_by_name_until_it_is_stopped() -> None:
    done = threading.Event()
    worker = threading.Thread(target=busy_until, args=(done,), name="a worker")
    worker.start()
    beside = BackgroundSampler(stacks_ns=1_000_000)
    beside.start(time.perf_counter_ns())
    assert beside.stacks is not None
    deadline = time.monotonic() + 20
    while worker.ident not in beside.stacks.threads and time.monotonic() < deadline:
        time.sleep(0.005)
    beside.stop()
    done.set()
    worker.join()
    assert beside.names[worker.ident or 0] == "a worker"
    found = beside.stacks.samples(0, {ident: i for i, ident in enumerate(beside.stacks.threads)})
    assert any(name.startswith("busy_until (") for name in found.frames)
    assert not any("_look_at_stacks" in name for name in found.frames)
    assert beside.spent_ns > 0


def test_nothing_to_look_at_starts_no_thread() -> None:
    before = threading.active_count()
    beside = BackgroundSampler()
    beside.start(0)
    assert threading.active_count() == before
    beside.stop()


def test_the_limit_is_told_once_and_ends_the_looking() -> None:
    told: list[int] = []
    reached = threading.Event()

    def at_limit() -> None:
        told.append(1)
        reached.set()

    beside = BackgroundSampler(
        limit_ns=1, at_limit=at_limit, counters_ns=1_000_000, read=[Gauge("x", "B", lambda: 1.0)]
    )
    beside.start(time.perf_counter_ns())
    assert reached.wait(20)
    beside.stop()
    readings = len(beside.tracks[0].counter(0).at_ns)
    assert told == [1]
    assert readings == 1  # that of the start


def test_a_thread_that_cannot_begin_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    beside = BackgroundSampler(stacks_ns=1_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            beside.start(time.perf_counter_ns())
    beside.stop()


def test_stacks_begin_below_the_launcher() -> None:
    stacks = Stacks(1000)
    launched = Stacks(1000, launcher=Launcher(test_stacks_begin_below_the_launcher.__code__, frozenset()))
    frame = sys._getframe()

    def program() -> None:
        for taken in (stacks, launched):
            taken.look(1, {1: sys._getframe()})

    program()
    whole, below = (s.samples(0, {1: 0}) for s in (stacks, launched))
    outer = [f for f in (whole.frames[i] for i in whole.stacks[0]) if "program" not in f]
    assert len(outer) > 2
    assert [below.frames[i].split(" ")[0] for i in below.stacks[0]] == [f"{frame.f_code.co_name}.<locals>.program"]
    files = frozenset({__file__})
    none = Stacks(1000, launcher=Launcher(frame.f_code, files))
    (lambda: none.look(1, {1: sys._getframe()}))()
    assert none.samples(0, {1: 0}).stacks == ((),)  # frames of the launcher's own files are left out too
