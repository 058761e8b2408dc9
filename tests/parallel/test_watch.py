"""Signs of life: who gives none is lost, and of several the first that stopped; where the store is gone, so is rank 0."""

from __future__ import annotations

import weakref
from threading import Event, Timer

import pytest

from tritium.parallel import watch
from tritium.parallel.watch import BEAT_S, LOST_S, Watch


class Store:
    """A store of this process; `reachable` False raises as a lost connection does."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.reachable = True

    def _touch(self) -> None:
        if not self.reachable:
            raise RuntimeError("Connection reset by peer")

    def set(self, key: str, value: str) -> None:
        self._touch()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._touch()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self._touch()
        return all(key in self.values for key in keys)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(watch.threading.Thread, "start", lambda self: None)  # beats are counted by the test
    return clock


def beat(clock: Clock, watches: list[Watch], alive: set[int], count: int) -> None:
    for i in range(count):
        clock.now += BEAT_S
        for w in watches:
            if w.rank in alive:
                try:
                    w._beat(int(clock.now * 1000) + i)
                except RuntimeError:
                    continue


def test_a_rank_without_signs_of_life_is_lost(clock: Clock) -> None:
    store = Store()
    watches = [Watch(store, r, 3) for r in range(3)]
    beat(clock, watches, {0, 1, 2}, 20)
    assert [w.lost() for w in watches] == [[], [], []]
    beat(clock, watches, {0, 2}, int(LOST_S / BEAT_S) + 2)
    assert (watches[0].lost(), watches[2].lost()) == ([1], [1])
    assert watches[0].find_lost() == [1]


def test_when_the_store_is_gone_rank_0_is_and_who_was_silent_before(clock: Clock) -> None:
    store = Store()
    watches = [Watch(store, r, 4) for r in range(4)]
    beat(clock, watches, {0, 1, 2, 3}, 4)
    beat(clock, watches, {0, 2, 3}, int(LOST_S / BEAT_S))  # rank 1 is gone
    store.reachable = False  # and rank 0 with it, soon after
    beat(clock, watches, {2, 3}, int(LOST_S / BEAT_S) + 2)
    assert watches[2].lost() == [1, 0]
    assert watches[3].lost() == [1, 0]


def test_all_wait_for_a_rank_that_is_alive_and_for_no_other(clock: Clock) -> None:
    store = Store()
    watches = [Watch(store, r, 2) for r in range(2)]

    def give_up(ranks: list[int]) -> None:
        raise LookupError(ranks)

    beat(clock, watches, {0, 1}, 2)
    with pytest.raises(LookupError, match=r"\[1\]"):
        watches[0].wait_for_all("ready", 5.0, give_up)
    store.set("ready/1", "1")
    watches[0].wait_for_all("ready", 5.0, give_up)


def test_the_end_waits_for_a_thread_within_the_store_and_lets_go_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that Python's end finds in the store aborts the process."""
    entered, leave = Event(), Event()

    class Slow(Store):
        def set(self, key: str, value: str) -> None:
            entered.set()
            leave.wait(30)
            super().set(key, value)

    monkeypatch.setattr(watch, "BEAT_S", 0.001)
    store = Slow()
    held = weakref.ref(store)
    watched = Watch(store, 0, 2)
    assert entered.wait(30)
    Timer(0.1, leave.set).start()  # much longer than two beats
    watched.close()
    assert not watched._thread.is_alive()
    del store
    assert held() is None
