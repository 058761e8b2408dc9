"""The ear of those who track memory: lines of code, names, and who hears what."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import tritium as tt
from tritium import buffer, launch
from tritium.see.memory import hub
from tritium.see.memory.hub import Raw


class Ear:
    """Who listens, and keeps all."""

    def __init__(self, sites: bool = True) -> None:
        self.sites = sites
        self.begun = 0
        self.heard: list[Raw] = []

    def begin(self) -> None:
        self.begun += 1

    def take(self, batch: object) -> None:
        self.heard += batch  # type: ignore[operator]


@pytest.fixture
def ear() -> Iterator[Ear]:
    found = Ear()
    hub.attach(found)
    yield found
    hub.detach(found)


def line() -> int:
    return sys._getframe(1).f_lineno


def test_an_event_has_the_line_of_the_user_who_caused_it(ear: Ear) -> None:
    x = tt.empty(100)
    here = line() - 1
    del x
    hub.drain()
    born, died = (r for r in ear.heard if r[0] in ("alloc", "free"))
    assert hub.site(*born[6:8]).endswith(f"test_hub.py:{here}")
    assert hub.site(*died[6:8]).endswith(f"test_hub.py:{here + 2}")


def test_a_call_through_our_own_files_is_told_of_the_line_outside(ear: Ear) -> None:
    tt.randn((3, 3), seed=1).softmax(axis=-1)
    here = line() - 1
    hub.drain()
    assert {hub.site(*r[6:8]).rpartition("/")[2] for r in ear.heard} == {f"test_hub.py:{here}"}


def test_without_sites_no_line_is_looked_for() -> None:
    ear = Ear(sites=False)
    hub.attach(ear)
    try:
        tt.empty(100)
        hub.drain()
    finally:
        hub.detach(ear)
    assert [r[6] for r in ear.heard if r[0] == "alloc"] == [None]
    assert hub.site(None, 0) == ""


def test_what_was_told_before_one_listens_or_after_is_not_heard(ear: Ear) -> None:
    x = tt.empty(100)
    second = Ear()
    hub.attach(second)
    y = tt.empty(200)
    hub.detach(second)
    del x, y
    assert [r[0] for r in second.heard] == ["alloc"]
    hub.drain()
    assert [r[0] for r in ear.heard] == ["alloc", "alloc", "free", "free"]


def test_nothing_watches_when_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(buffer, "watch", seen.append)
    one, two = Ear(), Ear()
    hub.attach(one)
    hub.attach(two)
    hub.detach(one)
    assert seen[-1] is not None
    hub.detach(two)
    assert seen[-1] is None
    assert launch.counters.heard is None


def test_a_full_queue_is_handed_on_by_the_event_that_fills_it(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "BATCH", 10)
    for _ in range(30):
        tt.empty(10)
    assert len(ear.heard) >= 50


def test_a_queue_filled_by_hand_is_handed_on_too(ear: Ear) -> None:
    for i in range(2 * hub.BATCH):
        tt.see.track_transfer(f"x{i}", 1, "cpu", "gpu")
    assert len(ear.heard) == 2 * hub.BATCH


def test_an_event_told_while_the_accounts_are_read_waits_its_turn(ear: Ear) -> None:
    def look() -> int:
        tt.empty(10)
        hub.drain(False)  # as a full queue does: it must not wait for itself
        return len(ear.heard)

    assert hub.read(look) == 0
    assert hub.read(lambda: len(ear.heard)) == 2


@pytest.mark.parametrize(
    ("op", "name"), [(None, ""), ("mine", "mine"), (tt.add, "add"), (SimpleNamespace(name=""), "simplenamespace")]
)
def test_ops_programs_and_words_have_names(op: object, name: str) -> None:
    assert hub.op_name(op) == name


def test_a_file_of_ours_is_named_by_its_package() -> None:
    code = hub.place.__code__
    assert hub.site(code, 0).startswith("tritium/see/memory/hub.py:")


def test_code_outside_of_where_we_are_keeps_its_whole_path(tmp_path: Path) -> None:
    code = compile("x = 1\n\ny = 2", str(tmp_path / "far.py"), "exec")
    last = max(start for start, _, at in code.co_lines() if at == 3)
    assert hub.site(code, last) == f"{tmp_path / 'far.py'}:3"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_does_not_wait_for_what_its_parent_held(ear: Ear) -> None:
    with hub._lock:
        child = os.fork()
        if child == 0:
            tt.empty(10)
            hub.drain()
            os._exit(7 if len(ear.heard) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_may_track_though_a_thread_of_its_parent_was_about_to() -> None:
    held, done = threading.Event(), threading.Event()

    def changes() -> None:
        with hub._changing:
            held.set()
            done.wait()

    thread = threading.Thread(target=changes)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a lock nobody gives back would be waited for without end
        own = Ear()
        hub.attach(own)
        tt.empty(10)
        hub.detach(own)
        os._exit(7 if len(own.heard) == 2 else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_ctrl_c_while_an_event_is_told_is_not_lost() -> None:
    def interrupted(*_: object) -> None:
        buffer.watch(None)
        raise KeyboardInterrupt

    def work() -> None:
        tt.empty(10)
        for _ in range(10_000):  # the next step of the program may be this
            pass

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as behind nohup
    buffer.watch(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_no_code_is_the_users_the_innermost_that_is_no_machinery_is_told(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = sys._getframe().f_code.co_filename
    monkeypatch.setitem(hub._origins, here, hub.COMMAND)
    tt.memory.pack([tt.ones(10)])
    hub.drain()
    assert "tritium/memory/packing.py" in {hub.site(*r[6:8]).partition(":")[0] for r in ear.heard}


def test_a_block_made_in_a_pool_of_threads_is_named_by_who_works_there() -> None:
    def work(n: int) -> tt.Tensor:
        return tt.ones(n)

    with ThreadPoolExecutor(1) as pool, tt.track_memory() as m:
        kept = list(pool.map(tt.ones, [1000]))  # no line of ours in that thread
        kept += list(pool.map(work, [2000]))
    sites = {e.nbytes: e.site for e in m.events if e.kind in ("alloc", "reuse")}
    assert "concurrent" not in "".join(sites.values())
    assert "test_hub.py:" in sites[8000]
    assert len(kept) == 2
