"""A thread that publishes the figures of this process once a second, for `tritium top` and `tritium dashboard`.

Off unless asked for: TRITIUM_LIVE=1 in the environment, or `with tt.see.publish():`. Counters that the runtime keeps anyway
are read; no op is recorded, so a call costs what it cost before.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tritium import memory, settings
from tritium.arguments import checked_class, read_duration
from tritium.errors import ArgumentError, SaveError
from tritium.machine import tuned
from tritium.op import OPS, Kind
from tritium.see.live import snapshot
from tritium.see.live.snapshot import Snapshot

LEAST_S = 0.05
MOST_OPS = 32  # in a file, the most called first


@checked_class
class publish:  # noqa: N801 (called like a function, used in a `with`)
    """Publish the figures of this process, from now on or in a `with`, until `stop`."""

    def __init__(self, interval: float | str = "1s") -> None:
        self.interval_s = read_duration(interval, "interval")
        if self.interval_s < LEAST_S:
            raise ArgumentError(f"interval: at least {LEAST_S:g} s are needed, given {interval!r}.")
        self.folder: Path = snapshot.folder(make=True)
        self.spent_s = 0.0
        self._started_s = time.time()
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tritium live")
        self._write()
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """End it, and remove the file. A second time does nothing."""
        self._ended.set()
        if os.getpid() == self._pid:  # a forked process has no thread, and the file is its parent's
            with suppress(RuntimeError):
                self._thread.join(5.0)
            snapshot.remove(self._pid, self.folder)
        atexit.unregister(self.stop)

    def __enter__(self) -> publish:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._ended.wait(self.interval_s):
            try:
                self._write()
            except OSError as error:
                settings.log.warning("live: %s; nothing more is published.", error)
                return

    def _write(self) -> None:
        before = time.thread_time()
        figures = take(self._started_s, self.interval_s, self.spent_s)
        snapshot.write(figures, self.folder)
        self.spent_s += time.thread_time() - before


def take(started_s: float, interval_s: float, spent_s: float = 0.0) -> Snapshot:
    """Return the figures of this process now."""
    pool = memory.stats()
    calls = {name: row.hits for name, row in OPS.items() if row.kind is not Kind.VIEW and row.hits}
    busiest = dict(sorted(calls.items(), key=lambda item: -item[1])[:MOST_OPS])
    return Snapshot(
        os.getpid(), snapshot.program_name(sys.argv), tuned.version(), started_s, time.time(), interval_s,
        time.process_time(), memory.resident_bytes() or 0, pool.current_bytes, pool.pooled_bytes, pool.peak_bytes, busiest,
        publish_s=spent_s, **_tokens(), **_requests(),
    )  # fmt: skip


def _tokens() -> dict[str, int]:
    """Return the tokens of all models of this process; a process without one has not imported them."""
    counters: Any = getattr(
        sys.modules.get("tritium.models.session"), "counters", None
    )  # None while it is imported, too
    return {} if counters is None else {"prefill_tokens": counters.prefill, "decode_tokens": counters.decode}


def _requests() -> dict[str, int]:
    """Return the requests of all servers of this process."""
    scheduler: Any = sys.modules.get("tritium.serve.scheduler")
    counters = getattr(scheduler, "counters", None)
    if counters is None:
        return {}
    known = list(scheduler.schedulers)
    return {
        "requests_done": counters.done, "requests_failed": counters.failed,
        "running": sum(s.running for s in known), "waiting": sum(s.waiting for s in known),
    }  # fmt: skip


def start() -> None:
    """Publish until the process ends, as TRITIUM_LIVE asks; what prevents it is logged."""
    try:
        publish()
    except (SaveError, OSError) as error:
        settings.log.warning("TRITIUM_LIVE: %s", error)
