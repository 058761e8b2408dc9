"""Signs of life of several processes: each writes one to a store every half second, and reads those of the others.

Rank 0 holds the store: where it does not answer, rank 0 is gone or stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

BEAT_S = 0.5  # between two signs of life
LOST_S = 2.5  # without one, after something failed: the process is gone or stopped
BUSY_S = 8.0  # while it reads a model: its threads may wait for a processor
ELASTIC = "TORCHELASTIC_RUN_ID"  # in the environment of what torchrun starts


class Watch:
    """A thread that gives signs of life of this rank and notes when it saw the last one of each other rank."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        self._store, self.rank, self.ranks = store, rank, ranks
        self._beats = [b""] * ranks
        self._answered = time.monotonic()  # when the store did
        self._seen = [self._answered] * ranks
        self._parent, self._orphaned = os.getppid(), False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tritium-ranks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._end.wait(BEAT_S):
            count += 1
            self._orphaned = self._orphaned or (ELASTIC in os.environ and os.getppid() != self._parent)
            try:
                self._beat(count)
            except RuntimeError:  # the store does not answer: from now on only the silence of rank 0 grows
                continue

    def _beat(self, count: int) -> None:
        self._store.set(f"alive/{self.rank}", str(count))
        beats = [b""] * self.ranks
        for r in range(self.ranks):
            if self._end.is_set():
                return
            if self._store.check([f"alive/{r}"]):
                beats[r] = self._store.get(f"alive/{r}")
        self._answered = time.monotonic()
        for r, beat in enumerate(beats):
            if beat != self._beats[r]:
                self._beats[r], self._seen[r] = beat, self._answered

    @property
    def orphaned(self) -> bool:
        """Return True if the process that started this one has ended."""
        return self._orphaned

    def lost(self, after_s: float = LOST_S) -> list[int]:
        """Return the ranks that have given no sign of life for so long, the longest silent first."""
        now = time.monotonic()
        answers = now - self._answered < after_s
        # Once rank 0 is gone nobody else can be seen: those are lost that had been silent before it was.
        until, limit = (now, after_s) if answers else (self._answered, after_s / 2)
        silent = {r: self._seen[r] for r in range(1, self.ranks) if r != self.rank and until - self._seen[r] > limit}
        if self.rank and now - self._seen[0] > after_s:
            silent[0] = self._seen[0]
        return sorted(silent, key=lambda r: silent[r])

    def find_lost(self) -> list[int]:
        """Return the ranks that are gone, after the time that it takes to know; none where all are there."""
        end = time.monotonic() + LOST_S + 2 * BEAT_S
        while time.monotonic() < end:
            if silent := self.lost():
                return silent
            time.sleep(BEAT_S / 5)
        return []

    def wait_for_all(self, name: str, limit_s: float, give_up: Callable[[list[int]], None]) -> None:
        """Wait until every rank has called this with the same name; `give_up` is called with the ranks that never will, or have
        not within the limit."""
        self._store.set(f"{name}/{self.rank}", "1")
        end = time.monotonic() + limit_s
        while late := [r for r in range(self.ranks) if not self._store.check([f"{name}/{r}"])]:
            if silent := [r for r in self.lost(BUSY_S) if r in late]:
                give_up(silent)
            if time.monotonic() > end:
                give_up(late)
            time.sleep(0.02)

    def close(self) -> None:
        """End the thread, and the store where this rank holds it.

        A thread that is still within the store while Python ends aborts the process: it is waited for as long as the store may take,
        and rank 0 closes the store, so that no other rank waits in it for a process that is ending.
        """
        self._end.set()
        self._thread.join(LOST_S + 2 * BEAT_S)
        if not self._thread.is_alive():
            self._store = None
