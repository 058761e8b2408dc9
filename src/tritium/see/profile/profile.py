"""Profiles: record what a program does, then query where the time went.

Recording is native; analysis is lazy.

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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from tritium import recording, settings
from tritium.arguments import checked, read_duration
from tritium.errors import ArgumentError, BusyError, TritiumError, nearest
from tritium.machine import files
from tritium.machine.facts import this_machine
from tritium.perf.records.environment import Environment, this_environment, this_machines_limits
from tritium.perf.records.json_io import utc_now
from tritium.perf.suites.config import duration_text
from tritium.see.profile import critical, file as profile_file, hotspots, op_table, page as profile_page, roofline
from tritium.see.profile.critical import CriticalPath
from tritium.see.profile.hotspots import Bottlenecks
from tritium.see.profile.kernels import KernelRecorder, add_kernels
from tritium.see.profile.op_table import By, OpRow
from tritium.see.profile.roofline import Roofline
from tritium.see.timelines.merge import merge
from tritium.see.trace import chrome, folded, sampler, spans, speedscope, tree
from tritium.see.trace.timeline import Column, Timeline, ordered
from tritium.see.trace.tree import Node
from tritium.threads import get_num_threads

if TYPE_CHECKING:
    from tritium.see.reports.sections import Section

LEAST_S = 0.0005  # between two samples: more often would measure the sampling


class Profile:
    """A recorded profile and its analyses."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    @property
    def timeline(self) -> Timeline:
        """Return everything recorded, in columns."""
        return self._timeline

    @property
    def name(self) -> str:
        return self.timeline.name

    @property
    def seconds(self) -> float:
        return self.timeline.elapsed_total_ns * 1e-9

    @property
    def overhead(self) -> float | None:
        """Return the share of the run that recording took: spans and scopes times the cost of each, measured at the start; None: unknown."""
        return profile_page.overhead(self.timeline)

    @cached_property
    def _own(self) -> Column:
        return tree.own_ns(self.timeline)

    @cached_property
    def _rows(self) -> tuple[OpRow, ...]:
        return hotspots.score_rows(op_table.rows(self.timeline, own=self._own))

    def ops(self, by: By = "kernel") -> tuple[OpRow, ...]:
        """Return the table of operations, the longest first; by="specs" separates shapes, by="name" merges kernels.

        by="layer" merges kernels and shapes, and separates the scopes and layers of compiled functions: `detail` names them.
        """
        if by == "kernel":
            return self._rows
        return hotspots.score_rows(op_table.rows(self.timeline, by=by, own=self._own))

    def scopes(self) -> tuple[OpRow, ...]:
        """Return the same figures for scopes and compiled programs."""
        return hotspots.score_rows(op_table.rows(self.timeline, kinds=op_table.PARTS, own=self._own))

    def get_average_time(self, name: str) -> float | None:
        """Return the mean seconds of the scopes of this name, else of the ops; None where nothing of the name was recorded."""
        for rows in (self.scopes(), self.ops(by="name")):
            for row in rows:
                if row.name == name:
                    return row.mean_ns / 1e9
        return None

    def tree(self) -> Node:
        """Return the call tree, with total and own times."""
        return tree.tree(self.timeline)

    def hotspots(self, n: int = 10) -> tuple[OpRow, ...]:
        """Return the rows with the most to gain, each with `score` (0 to 100) and `why`."""
        return hotspots.hotspots(self.ops(), n)

    def bottlenecks(self) -> Bottlenecks:
        """Return the bounds of the run (compute, memory, latency, overhead) and the few operations that take 80 %."""
        return hotspots.bottlenecks(self.timeline, self.ops())

    def critical_path(self) -> CriticalPath:
        """Return the longest chain of work in which each piece had to wait for the one before."""
        return critical.critical_path(self.timeline, own=self._own)

    def roofline(self) -> Roofline:
        """Return operations a byte and a second, beside this machine's ceilings."""
        return roofline.points(self.timeline, self.ops())

    def text(self, top: int = 15) -> str:
        """Return the page for a terminal."""
        return profile_page.text(self.timeline, self._rows, top, self._own)

    def markdown(self, top: int = 15) -> str:
        """Return the page for a pull request."""
        return profile_page.markdown(self.timeline, self._rows, top, self._own)

    def csv(self, guard: bool = True) -> str:
        """Return the table of operations, every number in full. `guard` keeps cells from being formulas."""
        return profile_page.csv(self.timeline, self._own, guard)

    def html(self) -> str:
        """Return the page: timeline, operations, critical path, gaps, flame graphs; one file that needs no network."""
        from tritium.see.profile import sections

        return sections.html(self)

    def parts(self) -> tuple[Section, ...]:
        """Return the sections of the page that a report has too: all that `text` shows, without the timeline."""
        from tritium.see.profile import sections

        return sections.parts(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile as JSON, compressed where the name ends in .gz; `tt.see.load_profile` reads it."""
        return profile_file.save(self.timeline, path)

    def export(self, path: str | os.PathLike[str], fmt: str | None = None) -> Path:
        """Write the profile for another program, in the format of the suffix or of `fmt`."""
        return export(self, path, fmt)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str | None:
        return profile_page.html(self.timeline, self._rows)

    def __repr__(self) -> str:
        t = self.timeline
        return f"<profile {t.name!r}: {len(t)} spans on {len(t.lanes)} lanes in {self.seconds:.3g} s>"


# ---- recording

STATES = {
    "new": "was not recorded yet", "recording": "is still being recorded", "halted": "is still being recorded",
    "ended": "was recorded", "failed": "could not begin",
}  # fmt: skip


class Recording(Profile):
    """A profile while it is recorded: a context manager. It can be analysed when the block has ended."""

    def __init__(
        self, name: str, *, stacks: Any, counters: Any, memory: bool, power: bool, capacity: int, limit: Any,
        nvtx: bool, kernels: bool, ceilings: bool,
    ) -> None:  # fmt: skip
        self._name, self._nvtx, self._ceilings = name, nvtx, ceilings
        self._kernels = KernelRecorder() if kernels else None
        self._stacks_ns, self._counters_ns = _parse_interval(stacks, "stacks"), _parse_interval(counters, "counters")
        self._limit_s = None if limit is None else read_duration(limit, "profile: limit")
        self._gauges = {"memory": memory, "power": power}
        if not isinstance(capacity, int) or capacity < 1:
            raise ArgumentError(f"profile: capacity={capacity!r}; a number of spans, 1 or more, is needed.")
        self._recorder = recording.Recorder(capacity)
        self._built: Timeline | None = None
        self._state = "new"
        self._notes: list[str] = []
        self._after = ExitStack()
        self._halting = threading.Lock()

    def start(self, *, alone: bool = True, launcher: sampler.Launcher | None = None) -> Recording:
        """Begin to record. alone=False: even while a profile of the program itself is recorded.

        `launcher`: what runs the program; its frames are left out of the sampled stacks.
        """
        global _current
        with _one_at_a_time:
            if alone and _current is not None:
                raise BusyError(
                    f"profile: {_current._name or 'another profile'} is being recorded; end it first. Parts of one profile "
                    "are separated with tt.scope(name)."
                )
            if self._state != "new":
                raise ArgumentError(f"profile: this one {STATES[self._state]}; make another with tt.profile().")
            if alone:
                _current = self
        try:
            self._begin(launcher)
        except BaseException:
            self._after.close()
            self._state = "failed"
            raise
        return self

    def _begin(self, launcher: sampler.Launcher | None) -> None:
        self._after.callback(self._forget)
        self._threads = get_num_threads()
        self._cost, self._scope_cost = recording.event_cost_ns(), recording.scope_cost_ns()
        self._beside = sampler.BackgroundSampler(
            stacks_ns=self._stacks_ns, counters_ns=self._counters_ns, at_limit=self._reach_limit,
            read=sampler.gauges(**self._gauges) if self._counters_ns else (),
            limit_ns=None if self._limit_s is None else int(self._limit_s * 1e9), launcher=launcher,
        )  # fmt: skip
        if self._nvtx:
            from tritium.see.trace import nvtx

            self._after.enter_context(nvtx.ranges(True))
        self._after.callback(self._beside.stop)
        if self._kernels is not None:
            self._kernels.start()
            self._after.callback(self._kernels.stop)
        self._after.callback(self._halt)  # registered last, so called first
        self._utc, self._utc_ns = utc_now(), time.time_ns()
        self._state = "recording"
        self._began_ns = time.perf_counter_ns()
        self._recorder.start()
        self._beside.start(self._began_ns)

    def _halt(self) -> None:
        """Stop recording; the first call sets the end time."""
        with self._halting:
            if self._state == "recording":
                self._left = recording.open_scopes()
                self._recorder.stop()
                self._named = recording.named_threads()
                self._ended_ns = time.perf_counter_ns()
                self._state = "halted"

    def _reach_limit(self) -> None:
        self._halt()
        self.note(f"recording stopped at its limit of {duration_text(self._limit_s or 0)}; the program went on")

    def note(self, text: str) -> None:
        """Add a sentence to the profile's notes; only before the timeline is first read."""
        self._notes.append(text)

    def stop(self) -> Profile:
        """End the recording, so that it can be analysed; a second call does nothing."""
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
        """Return everything recorded, in columns; built on first use."""
        if self._built is None:
            if self._state != "ended":
                raise ArgumentError(
                    f"profile: it {STATES[self._state]}; read it after the block `with tt.profile() as p:`."
                )
            self._built = self._build_timeline()
            if self._kernels is not None:
                self._built = add_kernels(self._built, self._kernels.read(), self._utc_ns)
                self._kernels = None
            del self._recorder, self._beside
        return self._built

    def __str__(self) -> str:
        return self.text() if self._state == "ended" else f"profile {self._name!r} {STATES[self._state]}"

    def _repr_html_(self) -> str | None:
        return super()._repr_html_() if self._state == "ended" else None  # until then a notebook shows the text

    def __repr__(self) -> str:
        """Return a text without building the timeline."""
        return f"<profile {self._name!r}: {STATES[self._state]}>" if self._built is None else super().__repr__()

    def _build_timeline(self) -> Timeline:
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
            samples=None if beside.stacks is None else beside.stacks.samples(began, lane_of, self._ended_ns),
            dropped=self._recorder.dropped, event_cost_ns=self._cost, environment=self._environment(),
            notes=tuple(self._collect_notes(beside, left, crossed)), apart=len(lanes) - real,
            scope_cost_ns=self._scope_cost, began_ns=self._utc_ns, after=spans.renumber(spans.handovers(recorded), first),
        )  # fmt: skip

    def _environment(self) -> Environment:
        environment = this_environment(self._threads, limits=False)
        if not self._ceilings:
            return environment
        try:
            return replace(environment, limits=this_machines_limits(min(self._threads, this_machine().usable)))
        except TritiumError as error:
            settings.log.warning("profile: without ceilings: %s", error)
            return environment

    def _collect_notes(self, beside: sampler.BackgroundSampler, left: int, crossed: int) -> list[str]:
        out = list(self._notes)
        if left:
            out.append(
                f"{left} scope{'s were' if left > 1 else ' was'} still open when the profile ended; shown up to there"
            )
        if crossed:
            out.append(
                f"{crossed} scopes overlapped on a thread, as with an await or a yield inside: they have lanes of their "
                "own, and no call is counted into them"
            )
        if beside.spent_ns:
            share = beside.spent_ns / max(1, self._ended_ns - self._began_ns)
            out.append(f"sampling stacks and counters took {100 * share:.2g} % of one core")
        if self._recorder.dropped:
            out.append(
                f"{self._recorder.dropped} spans did not fit and were dropped; give a larger capacity=, or a limit="
            )
        return out


_one_at_a_time = threading.Lock()
_current: Recording | None = None


def _reset_after_fork() -> None:
    """Reset the state in a forked process: the profile and the holders of the locks are the parent's."""
    global _one_at_a_time, _current
    _one_at_a_time = threading.Lock()
    if _current is not None:
        _current._halting = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_reset_after_fork)


def _parse_interval(interval: Any, option: str) -> int | None:
    """Return an interval in ns; None: never."""
    if interval is None:
        return None
    seconds = read_duration(interval, f"profile: {option}")
    if seconds < LEAST_S:
        raise ArgumentError(f"profile: {option}={interval!r} is too often; {duration_text(LEAST_S)} is the least.")
    return int(seconds * 1e9)


@checked
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
    kernels: bool = False,
    ceilings: bool = True,
) -> Recording:
    """Record every operation, compiled or not, every scope and every transfer: `with tt.profile() as p:`.

    stacks="10ms" also samples the Python stacks of all threads. counters: interval of reading the pool and the resident
    memory (memory) and watts (power); None: never. limit="30s" ends the recording by itself. capacity: spans that are
    recorded; those beyond are only counted. nvtx emits the same ranges for Nsight, where CUDA is available. kernels
    records what ran on each stream of a CUDA device too, by torch's profiler: calls return before their work is done. ceilings:
    compare with the ceilings of this machine, which are measured once (some seconds) and then stored.
    """
    return Recording(
        name, stacks=stacks, counters=counters, memory=memory, power=power, capacity=capacity, limit=limit, nvtx=nvtx,
        kernels=kernels, ceilings=ceilings,
    )  # fmt: skip


@checked
def start_session(name: str = "", **options: Any) -> Recording:
    """Begin a profile that `stop_session` ends; the options are those of `profile`."""
    return profile(name, **options).start()


@checked
def stop_session() -> Profile:
    """End the profile that is being recorded, and return it."""
    running = _current
    if running is None:
        raise ArgumentError("stop_session: nothing is being recorded; start_session() begins.")
    return running.stop()


@checked
def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile that `save` wrote."""
    return Profile(profile_file.load(path))


@checked
def merge_profiles(profiles: Sequence[Profile], name: str = "") -> Profile:
    """Return one profile with the lanes of several processes that ran at the same time, on one clock."""
    return Profile(merge([p.timeline for p in profiles], name))


class timed:  # noqa: N801 (reads as a verb: with timed("x") as t)
    """A timer: `with tt.timed("x") as t:` … then t.seconds. Needs no profile; inside one it is a scope of that name."""

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
        """Return the duration of the block; while it runs, so far."""
        if self._start is None:
            raise ArgumentError(
                f"timed: {self.name!r} was not timed yet; read it inside or after the block `with tt.timed() as t:`."
            )
        elapsed = self.elapsed_ns if self.elapsed_ns is not None else time.perf_counter_ns() - self._start
        return elapsed * 1e-9

    def __repr__(self) -> str:
        state = "was not timed yet" if self._start is None else f"{self.seconds:.6g} s"
        return f"<timed {self.name!r}: {state}>"


# ---- for other programs


def _chrome(p: Profile, path: Path) -> Path:
    return chrome.write(p.timeline, path)


def _speedscope(p: Profile, path: Path) -> Path:
    return speedscope.write(p.timeline, path)


def _folded(p: Profile, path: Path) -> Path:
    return files.write_text(path, folded.text(p.timeline))


def _flame(p: Profile, path: Path) -> Path:
    from tritium.see.profile.sections import wholes
    from tritium.see.trace import flame

    root = p.tree()
    return files.write_text(path, flame.svg(root, p.name or "profile", wholes=wholes(p.timeline, root)))


def _roofline(p: Profile, path: Path) -> Path:
    from tritium.see.charts import charts

    return files.write_text(path, charts.svg(roofline.plot(p.roofline(), p.name or "profile")))


def _stacks(p: Profile, path: Path) -> Path:
    from tritium.see.trace import flame

    if p.timeline.samples is None:
        raise ArgumentError('export: no Python stacks were sampled; record with stacks="10ms".')
    return files.write_text(
        path, flame.svg(folded.build_sample_tree(p.timeline.samples), f"{p.name or 'profile'}: Python stacks")
    )


def _timeline(p: Profile, path: Path) -> Path:
    from tritium.see.trace import lane_chart

    stretches = lane_chart.join([lane_chart.Stretch(*piece) for piece in critical.path_pieces(p.timeline)])
    return files.write_text(
        path, lane_chart.svg(p.timeline, p.name or "profile", stretches, f"{p.critical_path().lines()[0]}.")
    )


Writer = Callable[[Profile, Path], Path]
FORMATS: dict[str, tuple[tuple[str, ...], Writer]] = {  # the longest matching suffix decides
    "json": ((".json", ".json.gz"), lambda p, path: p.save(path)),
    "csv": ((".csv",), lambda p, path: files.write_text(path, p.csv())),
    "markdown": ((".md",), lambda p, path: files.write_text(path, p.markdown())),
    "html": ((".html", ".htm"), lambda p, path: files.write_text(path, p.html())),
    "text": ((".txt",), lambda p, path: files.write_text(path, p.text() + "\n")),
    "chrome": ((".trace.json", ".trace.json.gz", ".trace"), _chrome),
    "speedscope": ((".speedscope.json", ".speedscope.json.gz", ".speedscope"), _speedscope),
    "folded": ((".folded",), _folded),
    "flame": ((".svg",), _flame),
    "stacks": ((".stacks.svg",), _stacks),
    "roofline": ((".roofline.svg",), _roofline),
    "timeline": ((".timeline.svg",), _timeline),
}


def export(p: Profile, path: str | os.PathLike[str], fmt: str | None = None) -> Path:
    """Write a profile in the format of that name, or that of the suffix."""
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
            f"export: {files.named(path)} has no suffix of a known format; there are {known}. Or give fmt=."
        )
    return FORMATS[chosen][1](p, Path(path))
