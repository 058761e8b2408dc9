"""Profiles: record what a program does for a while, then ask where the time went.

Knows nothing of the command line. Recording goes on natively; analysis begins when it is asked for.

    with tt.profile("decode") as p:
        with tt.scope("attention"):
            y = layer(x)
    print(p)                                 the page: operations, hotspots, what bounds them, the call tree
    p.save("decode.json.gz")                 loads back: tt.see.load_profile
    p.export("decode.svg")                   a flame graph; also .trace.json, .speedscope.json, .folded, .csv, .md, .txt
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tritium import recording, settings
from tritium.errors import ArgumentError, BusyError, TritiumError, nearest
from tritium.machine.facts import this_machine
from tritium.perf import files
from tritium.perf.records.environment import Environment, this_environment, this_machines_limits
from tritium.perf.records.json_io import utc_now
from tritium.perf.suites.config import duration, duration_text
from tritium.see.profile import critical, file as profile_file, hotspots, op_table, page as profile_page, roofline
from tritium.see.profile.critical import CriticalPath
from tritium.see.profile.hotspots import Bottlenecks
from tritium.see.profile.op_table import By, OpRow
from tritium.see.profile.roofline import Roofline
from tritium.see.trace import chrome, folded, sampler, spans, speedscope, tree
from tritium.see.trace.timeline import Column, Timeline, ordered
from tritium.see.trace.tree import Node
from tritium.threads import get_num_threads

LEAST_S = 0.0005  # between two looks: more often would measure the looking


class Profile:
    """What was recorded, and what it shows."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    @property
    def timeline(self) -> Timeline:
        """All of it, in columns."""
        return self._timeline

    @property
    def name(self) -> str:
        return self.timeline.name

    @property
    def seconds(self) -> float:
        return self.timeline.elapsed_total_ns * 1e-9

    @property
    def overhead(self) -> float | None:
        """The share of the run that recording took: spans times what one costs, measured when it began; None: unknown."""
        return profile_page.overhead(self.timeline)

    @cached_property
    def _own(self) -> Column:
        return tree.own_ns(self.timeline)

    @cached_property
    def _rows(self) -> tuple[OpRow, ...]:
        return hotspots.scored(op_table.rows(self.timeline, own=self._own))

    def ops(self, by: By = "kernel") -> tuple[OpRow, ...]:
        """The table of operations, the longest first; by="specs" tells shapes apart, by="name" not even kernels."""
        if by == "kernel":
            return self._rows
        return hotspots.scored(op_table.rows(self.timeline, by=by, own=self._own))

    def scopes(self) -> tuple[OpRow, ...]:
        """The same figures of scopes and compiled programs."""
        return hotspots.scored(op_table.rows(self.timeline, kinds=op_table.PARTS, own=self._own))

    def tree(self) -> Node:
        """The call tree, with total and own times."""
        return tree.tree(self.timeline)

    def hotspots(self, n: int = 10) -> tuple[OpRow, ...]:
        """Where most could be gained: rows with `score` (0 to 100) and `why`."""
        return hotspots.hotspots(self.ops(), n)

    def bottlenecks(self) -> Bottlenecks:
        """What bounds the run: compute, memory, latency or overhead; and the few operations that take 80 %."""
        return hotspots.bottlenecks(self.timeline, self.ops())

    def critical_path(self) -> CriticalPath:
        """The longest chain of work in which each piece had to wait for the one before."""
        return critical.critical_path(self.timeline, own=self._own)

    def roofline(self) -> Roofline:
        """Operations a byte and a second, beside this machine's ceilings."""
        return roofline.points(self.timeline, self.ops())

    def text(self, top: int = 15) -> str:
        """The page for a terminal."""
        return profile_page.text(self.timeline, self._rows, top, self._own)

    def markdown(self, top: int = 15) -> str:
        """The page for a pull request."""
        return profile_page.markdown(self.timeline, self._rows, top, self._own)

    def csv(self, guard: bool = True) -> str:
        """The table of operations, every number in full. `guard` keeps cells from being formulas."""
        return profile_page.csv(self.timeline, self._own, guard)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all of it as JSON, packed where the name ends in .gz; `tt.see.load_profile` reads it."""
        return profile_file.save(self.timeline, path)

    def export(self, path: str | os.PathLike[str], fmt: str | None = None) -> Path:
        """Write it for another program; what it is follows from the suffix, or from `fmt`."""
        return export(self, path, fmt)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        t = self.timeline
        return f"<profile {t.name!r}: {len(t)} spans on {len(t.lanes)} lanes in {self.seconds:.3g} s>"


# ---- recording

STATES = {
    "new": "was not recorded yet", "recording": "is still being recorded", "halted": "is still being recorded",
    "ended": "was recorded", "failed": "could not begin",
}  # fmt: skip


class Recording(Profile):
    """A profile that is being made: a context manager. What it shows is there when the block has ended."""

    def __init__(
        self, name: str, *, stacks: Any, counters: Any, memory: bool, power: bool, capacity: int, limit: Any,
        nvtx: bool, ceilings: bool,
    ) -> None:  # fmt: skip
        self._name, self._nvtx, self._ceilings = name, nvtx, ceilings
        self._stacks_ns, self._counters_ns = _every(stacks, "stacks"), _every(counters, "counters")
        self._limit_s = None if limit is None else duration(limit, "profile: limit")
        self._asked = {"memory": memory, "power": power}
        if not isinstance(capacity, int) or capacity < 1:
            raise ArgumentError(f"profile: capacity={capacity!r}; a number of spans, 1 or more, is needed.")
        self._recorder = recording.Recorder(capacity)
        self._found: Timeline | None = None
        self._state = "new"
        self._notes: list[str] = []
        self._after = ExitStack()
        self._halting = threading.Lock()

    def start(self, *, alone: bool = True) -> Recording:
        """Begin to record. alone=False: beside a profile that the program may make of itself."""
        global _current
        with _one_at_a_time:
            if alone and _current is not None:
                raise BusyError(
                    f"profile: {_current._name or 'another profile'} is being recorded; end it first. Parts of one profile "
                    "are told apart with tt.scope(name)."
                )
            if self._state != "new":
                raise ArgumentError(f"profile: this one {STATES[self._state]}; make another with tt.profile().")
            if alone:
                _current = self
        try:
            self._begin()
        except BaseException:
            self._after.close()
            self._state = "failed"
            raise
        return self

    def _begin(self) -> None:
        self._after.callback(self._forget)
        self._threads = get_num_threads()
        self._cost = recording.event_cost_ns()
        self._beside = sampler.BackgroundSampler(
            stacks_ns=self._stacks_ns, counters_ns=self._counters_ns, at_limit=self._reach_limit,
            read=sampler.gauges(**self._asked) if self._counters_ns else (),
            limit_ns=None if self._limit_s is None else int(self._limit_s * 1e9),
        )  # fmt: skip
        if self._nvtx:
            from tritium.see.trace import nvtx

            self._after.enter_context(nvtx.ranges(True))
        self._after.callback(self._beside.stop)
        self._after.callback(self._halt)  # the last here is the first to be done
        self._utc = utc_now()
        self._state = "recording"
        self._began_ns = time.perf_counter_ns()
        self._recorder.start()
        self._beside.start(self._began_ns)

    def _halt(self) -> None:
        """Record no more; the first to call it says when."""
        with self._halting:
            if self._state == "recording":
                self._left = recording.open_scopes()
                self._recorder.stop()
                self._named = recording.named_threads()
                self._ended_ns = time.perf_counter_ns()
                self._state = "halted"

    def _reach_limit(self) -> None:
        self._halt()
        self.note(f"recording ended by itself after {duration_text(self._limit_s or 0)}, as asked; the program went on")

    def note(self, text: str) -> None:
        """A sentence that the profile keeps with what was recorded; to be said before it is looked at."""
        self._notes.append(text)

    def stop(self) -> Profile:
        """End it. What was recorded is there from then on; a second time does nothing."""
        if self._state in ("recording", "halted"):
            try:
                self._after.close()
            finally:
                self._state = "ended"
        return self

    def _forget(self) -> None:
        global _current
        with _one_at_a_time:
            if _current is self:
                _current = None

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is not None:
            self.note(f"the block ended with {kind.__name__}; what ran before it is here")

    @property
    def timeline(self) -> Timeline:
        """All of it, in columns; made when first asked for."""
        if self._found is None:
            if self._state != "ended":
                raise ArgumentError(
                    f"profile: it {STATES[self._state]}; ask after the block `with tt.profile() as p:`."
                )
            self._found = self._made()
            del self._recorder, self._beside
        return self._found

    def __str__(self) -> str:
        return self.text() if self._state == "ended" else f"profile {self._name!r} {STATES[self._state]}"

    def __repr__(self) -> str:
        """Of what is at hand: a timeline is not made to be shown so."""
        return f"<profile {self._name!r}: {STATES[self._state]}>" if self._found is None else super().__repr__()

    def _made(self) -> Timeline:
        beside, began = self._beside, self._began_ns
        recorded, times, left = spans.close_scopes(*self._recorder.read(), self._left, began, self._ended_ns)
        held = spans.Threads(self._named, beside.names)
        threads = held.holders(times[:, 2], times[:, 0])
        seen = []
        if beside.stacks is not None:
            beside.stacks.split_threads(held.holder)
            seen = beside.stacks.threads
        lanes, lane_of = spans.lanes([*threads[np.argsort(times[:, 0], kind="stable")].tolist(), *seen], held.names)
        whats, what = spans.number_events(recorded)
        start, elapsed = spans.clip_times(times[:, 0], times[:, 1], began)
        lane = np.fromiter(map(lane_of.__getitem__, threads.tolist()), np.int64, len(times))
        real = len(lanes)
        lane, lanes, crossed = spans.separate_scopes(whats, what, start, elapsed, lane, lanes)
        first = spans.order_outer_first(whats, what)
        return ordered(
            whats, what[first], start[first], elapsed[first], lane[first], lanes,
            self._ended_ns - began, began=self._utc, name=self._name,
            counters=tuple(track.counter(began) for track in beside.tracks),
            samples=None if beside.stacks is None else beside.stacks.samples(began, lane_of),
            dropped=self._recorder.dropped, event_cost_ns=self._cost, environment=self._environment(),
            notes=tuple(self._said(beside, left, crossed)), apart=len(lanes) - real,
        )  # fmt: skip

    def _environment(self) -> Environment:
        found = this_environment(self._threads, limits=False)
        if not self._ceilings:
            return found
        try:
            return replace(found, limits=this_machines_limits(min(self._threads, this_machine().usable)))
        except TritiumError as error:
            settings.log.warning("profile: without ceilings: %s", error)
            return found

    def _said(self, beside: sampler.BackgroundSampler, left: int, crossed: int) -> list[str]:
        out = list(self._notes)
        if left:
            out.append(
                f"{left} scope{'s were' if left > 1 else ' was'} still open when the profile ended; shown up to there"
            )
        if crossed:
            out.append(
                f"{crossed} scopes overlapped on a thread, as with an await or a yield inside: they stand on lanes of their "
                "own, and no call is counted into them"
            )
        if beside.spent_ns:
            share = beside.spent_ns / max(1, self._ended_ns - self._began_ns)
            out.append(f"looking at stacks and counters took {100 * share:.2g} % of one core")
        if self._recorder.dropped:
            out.append(
                f"{self._recorder.dropped} spans did not fit and were dropped; give a larger capacity=, or a limit="
            )
        return out


_one_at_a_time = threading.Lock()
_current: Recording | None = None


def _begin_anew() -> None:
    """In a forked process: the profile is the parent's, and so is whoever holds the locks."""
    global _one_at_a_time, _current
    _one_at_a_time = threading.Lock()
    if _current is not None:
        _current._halting = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_begin_anew)


def _every(given: Any, what: str) -> int | None:
    """An interval in ns; None: never."""
    if given is None:
        return None
    seconds = duration(given, f"profile: {what}")
    if seconds < LEAST_S:
        raise ArgumentError(f"profile: {what}={given!r} is too often; {duration_text(LEAST_S)} is the least.")
    return int(seconds * 1e9)


def profile(
    name: str = "",
    *,
    stacks: str | float | None = None,
    counters: str | float | None = "100ms",
    memory: bool = True,
    power: bool = True,
    capacity: int = 1_000_000,
    limit: str | float | None = None,
    nvtx: bool = False,
    ceilings: bool = True,
) -> Recording:
    """`with tt.profile() as p:` records every operation, compiled or not, every scope and every transfer.

    stacks="10ms" also samples the Python stacks of all threads. counters reads the pool and the resident memory (memory)
    and watts (power) so often; None: never. limit="30s" ends the recording by itself. capacity: spans that are kept; what
    is beyond is counted. nvtx marks the same ranges for Nsight, where CUDA is. ceilings: compare with what this machine
    can do at most, which is measured once (some seconds) and then known.
    """
    return Recording(
        name, stacks=stacks, counters=counters, memory=memory, power=power, capacity=capacity, limit=limit, nvtx=nvtx,
        ceilings=ceilings,
    )  # fmt: skip


def start_session(name: str = "", **options: Any) -> Recording:
    """Begin a profile that `stop_session` ends; the options are those of `profile`."""
    return profile(name, **options).start()


def stop_session() -> Profile:
    """End the profile that is being recorded, and give it."""
    running = _current
    if running is None:
        raise ArgumentError("stop_session: nothing is being recorded; start_session() begins.")
    return running.stop()


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile that `save` wrote."""
    return Profile(profile_file.load(path))


class timed:  # noqa: N801 (reads as a verb: with timed("x") as t)
    """`with tt.timed("x") as t:` … then t.seconds. Needs no profile; inside one it is a scope of that name."""

    def __init__(self, name: str = "timed") -> None:
        self.name = name
        self.elapsed_ns: int | None = None
        self._start: int | None = None
        self._scope = recording.scope(name)

    def __enter__(self) -> timed:
        self._scope.__enter__()
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *error: Any) -> None:
        self.elapsed_ns = time.perf_counter_ns() - (self._start or 0)
        self._scope.__exit__(*error)

    @property
    def seconds(self) -> float:
        """Of the block; while it runs, so far."""
        if self._start is None:
            raise ArgumentError(
                f"timed: {self.name!r} was not timed yet; ask inside or after the block `with tt.timed() as t:`."
            )
        elapsed = self.elapsed_ns if self.elapsed_ns is not None else time.perf_counter_ns() - self._start
        return elapsed * 1e-9

    def __repr__(self) -> str:
        told = "was not timed yet" if self._start is None else f"{self.seconds:.6g} s"
        return f"<timed {self.name!r}: {told}>"


# ---- for other programs


def _chrome(p: Profile, path: Path) -> Path:
    return chrome.write(p.timeline, path)


def _speedscope(p: Profile, path: Path) -> Path:
    return speedscope.write(p.timeline, path)


def _folded(p: Profile, path: Path) -> Path:
    return files.write_text(path, folded.text(p.timeline))


def _flame(p: Profile, path: Path) -> Path:
    from tritium.see.trace import flame

    return files.write_text(path, flame.svg(p.tree(), p.name or "profile"))


def _roofline(p: Profile, path: Path) -> Path:
    from tritium.see.charts import charts

    return files.write_text(path, charts.svg(roofline.picture(p.roofline(), p.name or "profile")))


def _stacks(p: Profile, path: Path) -> Path:
    from tritium.see.trace import flame

    if p.timeline.samples is None:
        raise ArgumentError('export: no Python stacks were sampled; record with stacks="10ms".')
    return files.write_text(
        path, flame.svg(folded.build_sample_tree(p.timeline.samples), f"{p.name or 'profile'}: Python stacks")
    )


Writer = Callable[[Profile, Path], Path]
FORMATS: dict[str, tuple[tuple[str, ...], Writer]] = {  # the longest suffix that fits decides
    "json": ((".json", ".json.gz"), lambda p, path: p.save(path)),
    "csv": ((".csv",), lambda p, path: files.write_text(path, p.csv())),
    "markdown": ((".md",), lambda p, path: files.write_text(path, p.markdown())),
    "text": ((".txt",), lambda p, path: files.write_text(path, p.text() + "\n")),
    "chrome": ((".trace.json", ".trace.json.gz", ".trace"), _chrome),
    "speedscope": ((".speedscope.json", ".speedscope.json.gz", ".speedscope"), _speedscope),
    "folded": ((".folded",), _folded),
    "flame": ((".svg",), _flame),
    "stacks": ((".stacks.svg",), _stacks),
    "roofline": ((".roofline.svg",), _roofline),
}


def export(p: Profile, path: str | os.PathLike[str], fmt: str | None = None) -> Path:
    """Write a profile in the format of that name, or the one the suffix tells."""
    if fmt is not None and fmt not in FORMATS:
        raise ArgumentError(
            f"export: there is no format {fmt!r}; there are {', '.join(FORMATS)}.{nearest(fmt, FORMATS)}"
        )
    name = os.fspath(path).lower()
    fits = {s: f for f, (suffixes, _) in FORMATS.items() for s in suffixes if name.endswith(s)}
    chosen = fmt or (fits[max(fits, key=len)] if fits else None)
    if chosen is None:
        known = ", ".join(s for suffixes, _ in FORMATS.values() for s in suffixes)
        raise ArgumentError(
            f"export: {files.named(path)} has no suffix that tells a format; there are {known}. Or give fmt=."
        )
    return FORMATS[chosen][1](p, Path(path))
