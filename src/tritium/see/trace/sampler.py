"""Background sampling while a program runs: Python stacks, and quantities over time, on the clock of the spans.

The stacks are those of the interpreter (`sys._current_frames`), taken when it releases the GIL: a native call that holds the
GIL is seen when it ends, by a late sample that counts as the time since the one before. Memory is bounded: when full, every
second sample is dropped and the sampling interval doubles.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

from tritium import escape
from tritium.memory import stats
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.probe import probe
from tritium.perf.meters.sensors import Sensor, Watts, resident
from tritium.see.trace.timeline import Counter, Samples

MOST_MOMENTS = 50_000  # samples; each has a stack of every thread
MOST_STACKS = 20_000  # distinct ones
MOST_DEPTH = 128
MOST_READINGS = 20_000  # of a counter
OTHER = "(other stacks)"
OUTER = "(outer frames left out)"

Reading = float | Absent
PASSING = ("window_too_short", "counter_reset", "counter_stuck")  # reasons that may not apply to a later reading


# ---- Python stacks


class Launcher(NamedTuple):
    """A function that started the program and is no part of it, and the files whose frames lie directly below it."""

    code: CodeType
    files: frozenset[str]


class Stacks:
    """Sampled stacks of all threads, each distinct one stored once. They begin below the launcher, where there is one."""

    def __init__(
        self, every_ns: int, *, most_moments: int = MOST_MOMENTS, most_stacks: int = MOST_STACKS,
        launcher: Launcher | None = None,
    ) -> None:  # fmt: skip
        self.every_ns, self.launcher = every_ns, launcher
        self.most_moments, self.most_stacks = most_moments, most_stacks
        self._frames: dict[str, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._known: dict[tuple[CodeType, int], int] = {}
        self._moments: list[tuple[int, list[tuple[int, int]]]] = []  # time, and (thread, stack) of each thread

    def look(self, at_ns: int, frames: Mapping[int, FrameType], without: Collection[int] = ()) -> None:
        """Record the stacks of one moment, except those of sampler threads."""
        stacks = [(ident, self._stack(frame)) for ident, frame in frames.items() if ident not in without]
        self._moments.append((at_ns, stacks))
        if len(self._moments) >= self.most_moments:
            self._moments = self._moments[::2]
            self.every_ns *= 2

    def _stack(self, frame: FrameType | None) -> int:
        places: list[tuple[CodeType, int]] = []  # innermost first
        begins = 0  # the number of frames that are not the launcher's
        while frame is not None and len(places) < MOST_DEPTH - 1:
            if self.launcher is not None and frame.f_code is self.launcher.code:
                del places[begins:]
                frame = None
                break
            places.append((frame.f_code, frame.f_lineno or 0))
            if self.launcher is not None and frame.f_code.co_filename not in self.launcher.files:
                begins = len(places)
            frame = frame.f_back
        outer = () if frame is None else (self._frame(OUTER),)
        stack = (*outer, *(self._place(code, line) for code, line in reversed(places)))
        if stack not in self._stacks and len(self._stacks) >= self.most_stacks:
            stack = (self._frame(OTHER),)
        return self._stacks.setdefault(stack, len(self._stacks))

    def _place(self, code: CodeType, line: int) -> int:
        index = self._known.get((code, line))
        if index is None:
            name = f"{code.co_qualname} ({shorten(code.co_filename)}:{line})"
            index = self._known[code, line] = self._frame(name)
        return index

    def _frame(self, name: str) -> int:
        return self._frames.setdefault(name, len(self._frames))

    @property
    def threads(self) -> list[int]:
        """Return the identities of the sampled threads, in order."""
        return list(dict.fromkeys(ident for _, stacks in self._moments for ident, _ in stacks))

    def split_threads(self, holder: Callable[[int, int], int]) -> None:
        """Separate threads that had the same identity one after another: `holder` returns the thread by identity and time."""
        self._moments = [
            (time, [(holder(ident, time), stack) for ident, stack in stacks]) for time, stacks in self._moments
        ]

    def samples(self, began_ns: int, lane_of: Mapping[int, int], ended_ns: int | None = None) -> Samples:
        """Return all samples, on the lanes of the timeline; one taken while recording stopped counts up to its end."""
        rows = [
            (min(time, ended_ns or time) - began_ns, lane_of[ident], stack)
            for time, stacks in self._moments
            for ident, stack in stacks
        ]
        columns = np.array(rows, np.int64).reshape(-1, 3)
        return Samples(
            tuple(self._frames), tuple(self._stacks), columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy(),
            self.every_ns,
        )  # fmt: skip


@cache
def shorten(file: str) -> str:
    """Return a path relative to the working directory or to an entry of sys.path, without folders of this machine."""
    for root in (os.getcwd(), *sorted(filter(None, sys.path), key=len, reverse=True)):
        try:
            inside = Path(file).relative_to(root)
        except ValueError:
            continue
        return inside.as_posix()
    return file if file.startswith("<") else Path(file).name


# ---- quantities over time


@dataclass(frozen=True)
class Gauge:
    """A quantity that can be read at any time."""

    name: str
    unit: str
    read: Callable[[], Reading]


class Track:
    """The readings of one gauge."""

    def __init__(self, gauge: Gauge, most: int = MOST_READINGS) -> None:
        self.gauge, self.most = gauge, most
        self._at: list[int] = []
        self._values: list[float] = []
        self._why, self._finished = "", False  # reason for the last absent reading, and if it is permanent
        self._reads, self._stride = 0, 1

    def look(self, at_ns: int) -> None:
        due = self._reads % self._stride == 0
        self._reads += 1
        if self._finished or not due:
            return
        value = self._read()
        if isinstance(value, Absent):
            self._why, self._finished = f"not measured: {value.reason}", value.code not in PASSING
        else:
            self._at.append(at_ns)
            self._values.append(float(value))
            if len(self._at) >= self.most:
                self._at, self._values = self._at[::2], self._values[::2]
                self._stride *= 2

    def _read(self) -> Reading:
        try:
            return self.gauge.read()
        except Exception as error:  # a failing gauge must not end the profile
            return Absent("unsupported", escape.visible(f"{type(error).__name__}: {error}"))

    def counter(self, began_ns: int) -> Counter:
        """Return the readings, or the reason why there are none."""
        times = np.array(self._at, np.int64) - began_ns
        absent = "" if self._at else self._why or "not measured: window_too_short: the profile was too short to read it"
        return Counter(self.gauge.name, self.gauge.unit, np.maximum(times, 0), np.array(self._values), absent)


def pool_bytes() -> float:
    return stats().current_bytes


def gauges(*, memory: bool, power: bool) -> list[Gauge]:
    """Return the gauges that are read while recording."""
    result = [Gauge("pool", "B", pool_bytes), Gauge("rss", "B", resident)] if memory else []
    return [*result, *power_gauges(probe())] if power else result


def power_gauges(sensors: Sequence[Sensor | Absent]) -> list[Gauge]:
    """Return a gauge for each domain that is not part of another; without any, one with the reason."""
    present = [s for s in sensors if isinstance(s, Sensor) and not s.part_of]
    if present:
        several = len(present) > 1
        return [Gauge(f"power {s.domain}" if several else "power", "W", Watts(s)) for s in present]
    absent = [s for s in sensors if isinstance(s, Absent)]
    first = next((a for a in absent if a.code != "no_device"), absent[0] if absent else None)
    reason = first or Absent("no_device", "no power sensor is known on this machine")
    return [Gauge("power", "W", lambda: reason)]


# ---- the sampling thread


_sampler_threads: set[int] = set()  # threads of all samplers: not part of the program


class BackgroundSampler:
    """A sampler of stacks and gauges in a thread of its own, with an optional time limit."""

    def __init__(
        self, *, stacks_ns: int | None = None, counters_ns: int | None = None, read: Sequence[Gauge] = (),
        limit_ns: int | None = None, at_limit: Callable[[], None] | None = None, launcher: Launcher | None = None,
    ) -> None:  # fmt: skip
        self.stacks = Stacks(stacks_ns, launcher=launcher) if stacks_ns else None
        self.tracks = [Track(g) for g in read] if counters_ns else []
        self.counters_ns, self.limit_ns, self.at_limit = counters_ns, limit_ns, at_limit
        self.names: dict[int, str] = {}
        self.spent_ns = 0  # CPU time of sampling
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, began_ns: int) -> None:
        """Start sampling; without anything to sample, no thread is started."""
        self.learn_names()
        self.read_gauges()
        due = {
            self._sample_stacks: self.stacks.every_ns if self.stacks else None,
            self.read_gauges: self.counters_ns if self.tracks else None,
            self._reach_limit: self.limit_ns,
        }
        plan = {act: began_ns + every for act, every in due.items() if every}
        if plan:
            thread = threading.Thread(target=self._run, args=(plan,), daemon=True, name="tritium profile")
            thread.start()
            self._thread = thread  # set only once started, so that stop() joins no other

    def stop(self) -> None:
        early = self._ended.is_set()  # by the limit: later readings do not belong to the profile
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.learn_names()
        if not early:
            self.read_gauges()

    def learn_names(self) -> None:
        """Record the names of the running threads.

        A thread that started and ended between two samples, and entered no scope, has no name.
        """
        self.names |= {t.ident: t.name for t in threading.enumerate() if t.ident is not None}

    def read_gauges(self) -> None:
        now = time.perf_counter_ns()
        for track in self.tracks:
            track.look(now)

    def _run(self, plan: dict[Callable[[], None], int]) -> None:
        _sampler_threads.add(threading.get_ident())
        try:
            self._loop(plan)
        finally:
            _sampler_threads.discard(threading.get_ident())

    def _loop(self, plan: dict[Callable[[], None], int]) -> None:
        while plan:
            act = min(plan, key=lambda a: plan[a])
            if self._ended.wait(max(0, plan[act] - time.perf_counter_ns()) * 1e-9):
                return
            before = time.thread_time_ns()
            act()
            self.learn_names()
            self.spent_ns += time.thread_time_ns() - before
            every = self._every(act)
            if every is None:
                del plan[act]
            else:
                plan[act] = max(plan[act] + every, time.perf_counter_ns())  # missed samples are not caught up

    def _every(self, act: Callable[[], None]) -> int | None:
        if act == self._sample_stacks and self.stacks is not None:
            return self.stacks.every_ns
        return self.counters_ns if act == self.read_gauges else None

    def _sample_stacks(self) -> None:
        if self.stacks is not None:
            self.stacks.look(time.perf_counter_ns(), sys._current_frames(), tuple(_sampler_threads))

    def _reach_limit(self) -> None:
        if self.at_limit is not None:
            self.at_limit()
        self._ended.set()
