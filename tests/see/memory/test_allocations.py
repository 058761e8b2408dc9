"""Tracking memory: every event with its op, line and thread; exact figures; leaks and hidden copies found and named."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from null import Null
from tritium import memory
from tritium.errors import ArgumentError, SaveError
from tritium.see.memory import hub
from tritium.see.memory.allocations import MemoryTracker, track_allocation, track_deallocation, track_transfer
from tritium.see.memory.pressure import Reading

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def settled() -> None:
    """Nothing of another test dies while bytes are counted."""
    gc.collect()


@pytest.fixture
def other() -> Iterator[str]:
    tt.register("other", Null)
    yield "other"
    tt.unregister("other")


def line() -> int:
    return sys._getframe(1).f_lineno


# ---- bytes


def test_peak_net_and_allocations_are_those_of_the_pool() -> None:
    with tt.track_memory() as m, memory.usage() as pool:
        a = tt.ones((1000, 100))
        b = a + a
        del a
    assert m.net["cpu"] == pool.net_bytes == 400_000
    assert m.peak["cpu"] == pool.peak_bytes
    assert m.allocations == pool.allocations == 2
    assert m.current["cpu"] == memory.stats().current_bytes
    del b


Moves = st.lists(st.one_of(st.integers(0, 5000), st.sampled_from(["free", "clone", "write"])), max_size=25)


@given(Moves, st.integers(1, 60))
@settings(max_examples=25)
def test_any_sequence_of_allocations_clones_writes_and_frees_gives_the_pools_own_figures(
    moves: Any, capacity: int
) -> None:
    held: list[Any] = []
    with memory.usage() as pool, tt.track_memory(capacity=capacity) as m:
        for move in moves:
            if isinstance(move, int):
                held.append(tt.empty(move, dtype="u8"))
            elif held and move == "free":
                held.pop(0)
            elif held and move == "clone":
                held.append(held[0].clone())
            elif held:
                held[-1].zero_()
        stats = memory.stats()
        assert m.current["cpu"] == stats.current_bytes
        assert m.peak["cpu"] == stats.peak_bytes
        assert m.allocations == stats.allocations - pool.before.allocations
        at = m.live_at_peak()
        assert sum(a.nbytes for a in at.allocations) + at.earlier + at.missing == m.peak["cpu"]
    del held


def test_memory_from_before_is_counted_and_its_end_too() -> None:
    before = tt.empty(1000, dtype="u8")
    start = memory.stats().current_bytes
    with tt.track_memory() as m:
        del before
        x = tt.empty(300, dtype="u8")
    assert m.current["cpu"] == start - 1000 + 300
    assert m.net["cpu"] == -700
    del x


def test_memory_of_others_is_told_and_not_counted() -> None:
    data = np.ones(1000)
    with tt.track_memory() as m:
        x = tt.from_numpy(data)
        del x
    assert [(e.kind, e.nbytes) for e in m.events] == [("import", 8000), ("release", 8000)]
    assert m.net["cpu"] == 0
    assert m.leaks() == ()


def test_the_timeline_ends_at_the_current_bytes() -> None:
    with tt.track_memory() as m:
        a = tt.empty(1000, dtype="u8")
        b = tt.empty(500, dtype="u8")
        del a
    course = m.timeline()
    start = m.devices()[0].start
    assert course.values.tolist() == [start, start + 1000, start + 1500, start + 500]
    assert course.at_ns[0] == 0
    assert (course.unit, course.at_ns.dtype) == ("B", np.int64)
    assert (np.diff(course.at_ns) >= 0).all()
    del b


def test_a_device_is_shown_beside_its_limit() -> None:
    with tt.track_memory() as m:
        pass
    cpu = m.devices()[0]
    assert cpu.device == "cpu"
    if sys.platform == "linux":
        assert cpu.used is not None
        assert cpu.limit is not None
        assert 0 < cpu.used < cpu.limit


# ---- events


def test_every_event_has_kind_bytes_op_line_thread_and_device() -> None:
    x = tt.ones(1000)
    with tt.track_memory() as m:
        y = x + x
        here = line() - 1
        del y
    born, died = m.events
    assert (born.kind in ("alloc", "reuse"), born.nbytes, born.op, born.device) == (True, 4000, "add", "cpu")
    assert born.site.endswith(f"test_allocations.py:{here}")
    assert (died.kind, died.nbytes, died.address) == ("free", 4000, born.address)
    assert died.site.endswith(f"test_allocations.py:{here + 2}")
    assert {born.thread, died.thread} == {threading.current_thread().name}
    assert 0 <= born.at_ns <= died.at_ns


def test_reuse_and_copy_on_write_have_their_kinds() -> None:
    x = tt.zeros(5000)
    with tt.track_memory() as m:
        y = x.clone()
        y.zero_()
        del y
        z = tt.empty(5000)
    kinds = [e.kind for e in m.events]
    assert "cow" in kinds
    assert kinds[-1] == "reuse"
    del z


def test_a_call_that_is_replayed_keeps_its_op() -> None:
    x = tt.ones(1000)
    for _ in range(5):
        x.exp()
    with tt.track_memory() as m:
        for _ in range(20):
            x.exp()
    assert {e.op for e in m.events if e.kind != "free"} == {"exp"}
    assert m.allocations == 20


def test_threads_are_told_apart() -> None:
    def work() -> None:
        for _ in range(50):
            tt.empty(100, dtype="u8")

    with tt.track_memory() as m:
        threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert {e.thread for e in m.events} == {f"worker {i}" for i in range(4)}
    assert (m.allocations, m.net["cpu"]) == (200, 0)


def test_the_log_is_bounded_and_says_what_it_lost() -> None:
    with tt.track_memory(capacity=10) as m:
        for _ in range(50):
            tt.empty(100, dtype="u8")
    assert len(m.events) == 10
    assert m.dropped == 90
    assert m.allocations == 50
    assert "90 older ones" in m.report()


def test_events_are_filtered_by_kind_op_and_device() -> None:
    x = tt.ones(10)
    with tt.track_memory() as m:
        y, z = x + x, x.exp()
    assert {e.op for e in m.get_events(op="add")} == {"add"}
    assert m.get_events(kind="free") == ()
    assert m.get_events(device="nowhere") == ()
    assert len(m.get_events(device="cpu")) == len(m.events) >= 2
    del y, z


def test_trackers_inside_one_another_each_see_their_own_stretch() -> None:
    with tt.track_memory() as outer:
        a = tt.empty(1000, dtype="u8")
        with tt.track_memory() as inner:
            b = tt.empty(500, dtype="u8")
        c = tt.empty(100, dtype="u8")
    assert outer.net["cpu"] == 1600
    assert inner.net["cpu"] == 500
    assert [e.nbytes for e in inner.events] == [500]
    assert [e.nbytes for e in outer.events] == [1000, 500, 100]
    del a, b, c


def test_nothing_is_heard_before_the_start_or_after_the_end() -> None:
    m = MemoryTracker()
    x = tt.empty(10)
    m.set_tracking_enabled(True)
    assert m.enabled
    y = tt.empty(20)
    m.set_tracking_enabled(False)
    z = tt.empty(30)
    assert not m.enabled
    assert [e.nbytes for e in m.events] == [80]
    m.start()  # begins anew
    m.stop()
    assert m.events == ()
    del x, y, z


def test_a_bad_capacity_is_refused() -> None:
    with pytest.raises(ArgumentError, match="capacity is 0"):
        tt.track_memory(capacity=0)


# ---- lines of code and the peak


def test_the_lines_that_asked_for_most_come_first() -> None:
    x = tt.ones(1000)
    with tt.track_memory() as m:
        for _ in range(7):
            x.exp()
            here = line() - 1
        x + x
    first, second = m.top_sites(2)
    assert (first.op, first.count, first.nbytes, first.live) == ("exp", 7, 28000, 0)
    assert first.site.endswith(f":{here}")
    assert second.op == "add"


def test_what_is_alive_at_the_peak_is_listed_with_who_made_it() -> None:
    x = tt.ones(1000)
    with tt.track_memory() as m:
        a = x.exp()
        b = a.sum()
        c = x + a
        here = line() - 1
        del a, c
        d = b + b
    at = m.live_at_peak()
    assert [(a.op, a.nbytes) for a in at.allocations] == [("exp", 4000), ("add", 4000), ("sum", 4)]
    assert at.allocations[1].site.endswith(f":{here}")
    assert at.missing == 0
    assert not at.note
    del b, d


# ---- leaks


KEPT: list[Any] = []


def leaky() -> None:
    KEPT.append(tt.ones(1234) + 1)


@pytest.fixture
def emptied() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()


@pytest.mark.usefixtures("emptied")
def test_a_seeded_leak_is_found_and_named() -> None:
    with tt.track_memory("the run") as m:
        leaky()
    (leak,) = m.leaks()
    assert (leak.nbytes, leak.op, leak.device) == (4936, "add", "cpu")
    assert leak.site.endswith(f"test_allocations.py:{leaky.__code__.co_firstlineno + 1}")
    assert leak.age_ns > 0
    with pytest.raises(tt.see.LeakError, match=r"the run: 1 allocation.*\n.*4936 bytes\) by add at .*test_allocations"):
        m.assert_no_leaks()
    assert "Still alive at the end: 4.82 KiB" in m.report()


@pytest.mark.usefixtures("emptied")
def test_what_is_meant_to_stay_is_no_leak() -> None:
    with tt.track_memory() as m:
        leaky()
        kept = m.keep({"x": tt.ones(10)})
    assert len(m.leaks()) == 1
    assert m.leaks(keep=KEPT) == ()
    m.assert_no_leaks(keep=KEPT)
    del kept


def test_garbage_in_a_circle_is_no_leak() -> None:
    class Circle:
        def __init__(self) -> None:
            self.me, self.x = self, tt.ones(100)

    with tt.track_memory() as m:
        Circle()
    assert m.leaks() == ()


def test_leaks_are_told_while_it_still_runs() -> None:
    with tt.track_memory() as m:
        x = tt.ones(10)
        assert [a.nbytes for a in m.leaks()] == [40]
        del x
        assert m.leaks() == ()


# ---- hidden copies, transfers


def test_a_seeded_hidden_copy_is_found_and_named() -> None:
    x = tt.ones((300, 200))
    with tt.track_memory() as m:
        y = x.T.reshape(-1)
        here = line() - 1
    (hidden,) = m.get_events(kind="hidden")
    assert (hidden.op, hidden.nbytes) == ("reshape", 240_000)
    assert hidden.site.endswith(f":{here}")
    (advice,) = [a for a in m.advice() if a.kind == "hidden copies"]
    assert advice.potential_savings == 240_000
    assert f"reshape at {hidden.site} had to copy 234 KiB" in advice.description
    del y


def test_transfers_are_heard_with_their_way_and_rate(other: str) -> None:
    x = tt.ones(1000)
    with tt.track_memory() as m:
        for _ in range(3):
            y = x.to(other)
            here = line() - 1
            z = y.to("cpu")
    there, back = m.transfers
    assert (there.source, there.target, there.count, there.nbytes) == ("cpu", "other", 3, 12000)
    assert (back.source, back.count) == ("other", 3)
    assert there.rate
    first = m.get_events(kind="transfer")[0]
    assert (first.device, first.to) == ("cpu", "other")
    assert first.site.endswith(f":{here}")
    (advice,) = [a for a in m.advice() if a.kind == "round trips"]
    assert advice.potential_savings == 24000
    assert m.generate_optimizations(other) == (advice,)
    del y, z


# ---- manual tracking


def test_buffers_of_ones_own_are_tracked_by_hand() -> None:
    m = MemoryTracker("by hand")
    m.set_tracking_enabled(True)
    m.track_allocation("tensor_1", MIB, "gpu", "matmul")
    here = line() - 1
    m.track_allocation("tensor_2", MIB, "gpu", "matmul")
    m.track_transfer("tensor_1", MIB, "cpu", "gpu", "upload")
    m.track_deallocation("tensor_1", "gpu", "cleanup")
    m.track_deallocation("tensor_9", "gpu")
    m.set_tracking_enabled(False)
    assert (m.current["gpu"], m.peak["gpu"]) == (MIB, 2 * MIB)
    event = m.get_events(kind="manual")[0]
    assert (event.id, event.op, event.nbytes, event.device) == ("tensor_1", "matmul", MIB, "gpu")
    assert event.site.endswith(f":{here}")
    assert m.unknown_frees == ("tensor_9",)
    assert [leak.id for leak in m.leaks()] == ["tensor_2"]
    page = m.generate_report()
    assert "flagged: 1 buffer was freed" in page
    assert "tensor_9" in page


def test_the_report_tells_how_many_unknown_ids_it_does_not_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.see.memory.accounts.MOST_FLAGGED", 2)
    with tt.track_memory() as m:
        for i in range(5):
            m.track_deallocation(f"slip {i}")
    assert m.unknown_frees == ("slip 0", "slip 1")
    assert "note: 3 more ids were freed manually without an allocation" in m.report()


def test_the_system_is_asked_once_for_all_devices_and_not_while_the_accounts_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def readings() -> tuple[Reading, ...]:
        asked.append(hub._lock.locked())
        return (Reading("process", 10, 100),)

    monkeypatch.setattr("tritium.see.memory.pressure.readings", readings)
    with tt.track_memory() as m:
        for device in ("one", "two", "three"):
            m.track_allocation("x", 5, device)
        found = m.devices()
        assert asked == [False]
        assert (m.allocations, len(asked)) == (3, 1)
        m.record()
        assert asked == [False, False]
    assert [(d.device, d.used, d.limit) for d in found] == [
        ("cpu", 10, 100),
        ("one", None, None),
        ("two", None, None),
        ("three", None, None),
    ]


def test_everybody_who_tracks_hears_what_is_told_to_all() -> None:
    track_allocation("nobody", 5)
    with tt.track_memory() as one, tt.track_memory() as two:
        track_allocation("x", 5, "gpu")
        track_transfer("x", 5, "cpu", "gpu")
        track_deallocation("x", "gpu")
    for m in (one, two):
        assert [e.kind for e in m.events] == ["manual", "transfer", "free"]
        assert m.current["gpu"] == 0


def test_what_is_told_while_nothing_is_tracked_is_forgotten() -> None:
    m = MemoryTracker()
    m.track_allocation("x", 5)
    m.start()
    m.stop()
    assert m.events == ()


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.report(), lambda m: m.record(), lambda m: m.peak, lambda m: m.leaks(), lambda m: m.assert_no_leaks(),
        lambda m: m.advice(), lambda m: m.timeline(), lambda m: m.live_at_peak(),
    ],
)  # fmt: skip
def test_a_tracker_that_was_not_started_says_so(ask: Any) -> None:
    with pytest.raises(ArgumentError, match="nothing was tracked yet"):
        ask(tt.track_memory())


def test_an_id_allocated_twice_is_flagged_and_capacity_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.see.memory.accounts.MOST_FLAGGED", 1)
    with tt.track_memory() as m:
        for id in ("x", "x", "y", "y"):
            m.track_allocation(id, 5, "gpu")
    assert m.repeated_ids == m.record().repeated_ids == ("x",)
    page = m.report()
    assert "flagged: 1 buffer was allocated manually under an id that was alive" in page
    assert "1 more ids were allocated manually while alive" in page
    assert "capacity" not in page
    assert sum(a.nbytes for a in m.live_at_peak("gpu")) == m.peak["gpu"] == 10


def test_what_was_alive_at_the_peak_can_be_counted_and_gone_through() -> None:
    with tt.track_memory() as m:
        kept = [tt.empty(n, dtype="u8") for n in (100, 200)]
    at = m.live_at_peak()
    assert (len(at), [a.nbytes for a in at]) == (2, [200, 100])
    del kept


def test_a_file_of_a_suffix_that_tells_no_format_is_not_written(tmp_path: Path) -> None:
    with tt.track_memory() as m:
        pass
    for name in ("m.xyz", "m"):
        with pytest.raises(ArgumentError, match=r"unknown suffix; known are .json, .csv"):
            m.save(tmp_path / name)
    with pytest.raises(SaveError, match="No such file or directory"):
        m.save(tmp_path / "new" / "m.json")
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_was_read_back_tells_the_same_page(tmp_path: Path) -> None:
    with tt.track_memory("kept") as m:
        m.track_allocation("x", 5, "gpu")
    read = tt.see.load_memory(m.save(tmp_path / "m.json"))
    assert read.report(3).startswith("Memory of kept: ")
    assert read.report() == m.report()


@pytest.mark.parametrize(
    ("id", "nbytes", "says"), [("", 1, "id"), (3, 1, "id"), ("x", -1, "from 0"), ("x", 1.5, "from 0")]
)
def test_bad_ids_and_sizes_are_refused(id: Any, nbytes: Any, says: str) -> None:
    with tt.track_memory() as m, pytest.raises(ArgumentError, match=says):
        m.track_allocation(id, nbytes)


# ---- all of it


def test_a_record_of_what_ended_does_not_change() -> None:
    with tt.track_memory() as m:
        x = tt.ones(1000)
    first = m.record()
    y = tt.ones(100_000)
    assert m.record() == first
    assert (m.idle, m.fragmentation) == (first.idle, first.idle.fragmentation)
    assert m.as_dict()["devices"][0]["device"] == "cpu"
    del x, y


def test_pythons_own_objects_are_shown_on_demand() -> None:
    held: list[Any] = []
    with tt.track_memory(python=True) as m:
        held.append(bytearray(300_000))
        here = line() - 1
    use = m.python_memory()
    assert use is not None
    assert use.sites[0].site.endswith(f"test_allocations.py:{here}")
    assert use.sites[0].nbytes >= 300_000
    assert "Python's own objects" in m.report()
    with tt.track_memory() as plain:
        pass
    assert plain.python_memory() is None


def test_it_saves_all_or_the_events_alone(tmp_path: Path) -> None:
    with tt.track_memory("kept") as m:
        x = tt.ones(10)
    assert tt.see.load_memory(m.save(tmp_path / "m.json")) == m.record()
    assert (m.save(tmp_path / "m.csv")).read_text().startswith("kind,at_ns,nbytes")
    del x


def test_the_pressure_has_a_level() -> None:
    assert MemoryTracker().get_memory_pressure().level in ("low", "medium", "high", "critical")


def test_it_works_the_same_without_native_code() -> None:
    code = """
import tritium as tt
kept = []
with tt.track_memory() as m:
    x = tt.ones(1000)
    kept.append(x.reshape(10, 100).T.reshape(-1))
    del x
(leak,) = m.leaks()
print(leak.op, leak.nbytes, leak.site, m.peak["cpu"], m.get_events(kind="hidden")[0].op, m.advice()[0].kind)
"""
    env = os.environ | {"TRITIUM_PURE": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=env)
    assert done.stdout.split() == ["copy", "4000", "<string>:6", "8000", "reshape", "hidden", "copies"]


def test_a_tracker_that_is_never_stopped_does_not_disturb_the_end() -> None:
    code = "import tritium as tt; tt.see.MemoryTracker().start(); x = tt.ones(10); print('end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("end\n", "")


@pytest.mark.parametrize("kind", ["typo", "allocs", "", 3, ["alloc"]])
def test_an_unknown_kind_of_event_is_refused(kind: Any) -> None:
    with tt.track_memory() as m:
        tt.ones(3)
    with pytest.raises(ArgumentError, match="is no kind of event; there are alloc, reuse, cow, free"):
        m.get_events(kind=kind)
    with pytest.raises(ArgumentError, match="give the name of an op"):
        m.get_events(op=3)  # type: ignore[arg-type]
    assert len(m.get_events(kind="alloc") + m.get_events(kind="reuse")) == 1


def test_garbage_of_before_is_not_freed_inside() -> None:
    gc.disable()
    try:
        cycle: list[Any] = [tt.zeros((64, 64))]
        cycle.append(cycle)
        del cycle
        with tt.track_memory() as m:
            kept = tt.zeros((8, 8))
        assert m.net["cpu"] == kept.nbytes
    finally:
        gc.enable()
