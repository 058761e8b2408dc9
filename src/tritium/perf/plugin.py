"""The fixture `tritium_bench`: a call measured inside a pytest process with the batches of the engine, raw values kept.

Knows nothing of pytest itself: `tritium_pytest` is its door. One process is one generation: such times are shown, and fail a session
only where that is asked for. A gate of many processes is `tritium regression-test`.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import Any, NamedTuple

from tritium import escape
from tritium.errors import ArgumentError
from tritium.machine.facts import usable_threads
from tritium.machine.files import write_text
from tritium.perf.amounts import seconds_text
from tritium.perf.engine.measuring import WAITED, broken_into
from tritium.perf.engine.worker import TICKS_S, batch, calibrated, steal
from tritium.perf.formats import exports
from tritium.perf.projects import sessions
from tritium.perf.records.case import Context
from tritium.perf.records.environment import Environment, command_line, differences, this_environment
from tritium.perf.records.json_io import dumps, loads, plain, read, utc_now
from tritium.perf.records.run import STEADY, Flag, Plan, Results, Run, Series, Status, is_of_load, values_of
from tritium.perf.stats.estimates import describe, steady, unpaired
from tritium.perf.store.history import spread_of
from tritium.perf.store.results import save
from tritium.perf.suites.config import fraction
from tritium.perf.tables.table import Table
from tritium.perf.tables.tables import MARK, disturbed_cells
from tritium.perf.work.canary import COMPUTE, clock

ARM = "pytest"
LEAST_BATCH_S = 0.005
LEAST_ROUNDS = 5
WINDOW = 8
WARMUP_SHARE = 0.2  # of the budget
BESIDE = "other tests ran at the same time (xdist)"
CLOCK = "clock_s"  # the fact of a run with the time of the canary beside it
FOREIGN = ("cpu", "architecture", "cpus")  # what the files of others tell of their machine in the same words


class Timed(NamedTuple):
    """Seconds of a call, batch by batch."""

    wall: list[float]
    cpu: list[float]
    calls: int  # in a batch
    warmup: int = 0
    steady: bool = True
    first_s: float | None = None
    load: Load | None = None


class Load(NamedTuple):
    """The load of other work while batches were timed, and the speed of the CPU."""

    switches: int  # involuntary ones
    waits: int  # voluntary context switches: the process slept, or waited for a file
    stolen: float  # share of the time, by the hypervisor
    clock_s: float  # of a fixed piece of arithmetic, beside the batches


@contextmanager
def watched(loads: list[Load]) -> Iterator[None]:
    """Append the load during a block; the canary runs before the counters are read."""
    look = _look()
    clock_s = look()
    before, stolen, start = resource.getrusage(resource.RUSAGE_SELF), steal(), perf_counter_ns()
    yield
    spent_s = (perf_counter_ns() - start) / 1e9
    after, share = resource.getrusage(resource.RUSAGE_SELF), (steal() - stolen) / max(spent_s, TICKS_S)
    switches, waits = after.ru_nivcsw - before.ru_nivcsw, after.ru_nvcsw - before.ru_nvcsw
    loads.append(Load(switches, waits, share, (clock_s + look()) / 2))


@cache
def _look() -> Callable[[], float]:
    return clock()


class Stats:
    """The figures of pytest-benchmark: `stats["mean"]`, `stats.mean` and `stats.stats.mean` alike."""

    def __init__(self, data: Sequence[float], iterations: int) -> None:
        self.data, self.iterations = list(data), iterations
        self._figures = exports.benchmark_stats(data)

    def __getattr__(self, name: str) -> Any:
        figures = self.__dict__.get("_figures", {})
        if name in figures:
            return figures[name]
        raise AttributeError(f"there is no figure {name!r}; there are {', '.join(figures)}.")

    def __getitem__(self, name: str) -> Any:
        return self.as_dict()[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.as_dict().get(name, default)

    def as_dict(self) -> dict[str, Any]:
        return self._figures | {"data": self.data, "iterations": self.iterations}

    @property
    def stats(self) -> Stats:
        return self


class Bench:
    """The fixture `tritium_bench` of a test."""

    def __init__(
        self, name: str, fullname: str, *, param: str | None = None, params: Mapping[str, Any] | None = None,
        group: str | None = None, budget_s: float = 1.0, disabled: bool = False, beside: int = 1,
    ) -> None:  # fmt: skip
        self.name, self.fullname, self.param, self.params = name, fullname, param, params
        self.group, self.disabled, self.budget_s = group, disabled, budget_s
        self.extra_info: dict[str, Any] = {}
        self.stats: Stats | None = None
        self._flags = (BESIDE,) if beside != 1 else ()
        self._used = False
        self._timed: Timed | None = None

    @property
    def enabled(self) -> bool:
        return not self.disabled

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Measure `function(*args, **kwargs)` in calibrated batches, and return what it returns."""
        self._use()
        if self.disabled:
            return function(*args, **kwargs)
        with undisturbed():
            self._keep(timed(partial(function, *args, **kwargs) if args or kwargs else function, self.budget_s))
        return function(*args, **kwargs)

    def pedantic(
        self, target: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None, teardown: Callable[..., Any] | None = None, rounds: int = 1,
        warmup_rounds: int = 0, iterations: int = 1,
    ) -> Any:  # fmt: skip
        """Exactly so many rounds of so many calls; `setup` makes the arguments of a round, `teardown` gets them after it."""
        self._use()
        for name, value, least in (
            ("rounds", rounds, 1),
            ("warmup_rounds", warmup_rounds, 0),
            ("iterations", iterations, 1),
        ):
            if type(value) is not int or value < least:
                raise ArgumentError(f"pedantic: {name} is {value!r}; a whole number from {least} is needed.")
        if setup is not None and iterations > 1:
            raise ArgumentError(
                f"pedantic: {iterations} iterations and a setup: setup runs before a round. Ask for 1 iteration."
            )

        def arguments() -> tuple[Sequence[Any], Mapping[str, Any]]:
            prepared = setup() if setup is not None else None
            if prepared and (args or kwargs):
                raise ArgumentError("pedantic: args or kwargs were given, and setup returns them too. Give them once.")
            return prepared or (args, kwargs or {})

        def one(calls: int) -> tuple[Any, float, float]:
            chosen, named = arguments()
            call = partial(target, *chosen, **named)
            with undisturbed(collect=False):
                cpu, start = process_time_ns(), perf_counter_ns()
                for _ in range(calls):
                    result = call()
                wall, cpu = perf_counter_ns() - start, process_time_ns() - cpu
            if teardown is not None:
                teardown(*chosen, **named)
            return result, wall / calls / 1e9, cpu / calls / 1e9

        if self.disabled:
            return one(1)[0]
        gc.collect()
        for _ in range(warmup_rounds):
            one(iterations)
        loads = list[Load]()
        with watched(loads):
            samples = [one(iterations) for _ in range(rounds)]
        walls, cpus = [w for _, w, _ in samples], [c for _, _, c in samples]
        self._keep(Timed(walls, cpus, iterations, warmup_rounds, load=loads[0]))
        return samples[-1][0]

    def record(self, failure: str = "") -> str:
        """The run as JSON text, which any report can carry; `failure`: why the test did not pass."""
        if self._timed is None:
            raise ArgumentError(f"{self.fullname}: nothing was measured.")
        status: Status = "failed" if failure else "ok"
        return dumps(replace(self.run(self._timed), status=status, reason=failure))

    def run(self, t: Timed) -> Run:
        facts = {
            "name": self.name,
            "group": self.group,
            "params": self.params,
            "param": self.param,
            "extra_info": self.extra_info,
        } | ({} if t.load is None else {CLOCK: t.load.clock_s})
        series = [
            Series(metric, "s", (tuple((v,) for v in values),), source=source)
            for metric, values, source in (
                ("wall", t.wall, "perf_counter"),
                ("cpu", t.cpu, "process_time, all threads"),
            )
        ]
        flags = (*self._flags, *(() if t.steady else (Flag.UNSTEADY.value,)), *_disturbances(t))
        return Run(
            self.fullname, ARM, Context(self.name), iterations=t.calls, warmup=t.warmup, steady=t.steady, first_call_s=t.first_s,
            checked="not checked: the test checks", series=tuple(series), flags=flags, facts={"pytest": jsonable(facts)},
        )  # fmt: skip

    def _use(self) -> None:
        if self._used:
            raise ArgumentError(
                "tritium_bench measures once in a test, and did. Write another test, or parametrise this one."
            )
        self._used = True

    def _keep(self, t: Timed) -> None:
        self._timed, self.stats = t, Stats(t.wall, t.calls)


def timed(call: Callable[[], Any], budget_s: float) -> Timed:
    """Batches of a call as the engine's workers make them: calibrated, warmed up until steady, then timed."""
    start = perf_counter_ns()
    call()
    first = (perf_counter_ns() - start) / 1e9
    calls, _ = calibrated(call, None, LEAST_BATCH_S)
    begun = perf_counter_ns()

    def spent(share: float) -> bool:
        return perf_counter_ns() - begun >= share * budget_s * 1e9

    warm, settled = list[float](), None
    while settled is None and not spent(WARMUP_SHARE):
        warm.append(batch(call, None, calls)[0] / calls / 1e9)
        settled = steady(warm, WINDOW) if len(warm) % WINDOW == 0 else None
    samples, loads = list[tuple[int, int]](), list[Load]()
    with watched(loads):
        while len(samples) < LEAST_ROUNDS or not spent(1):
            samples.append(batch(call, None, calls))
    walls, cpus = ([pair[i] / calls / 1e9 for pair in samples] for i in (0, 1))
    is_steady = settled is not None or steady(walls, WINDOW) is not None
    return Timed(walls, cpus, calls, len(warm), is_steady, first, loads[0])


def _disturbances(t: Timed) -> list[str]:
    """Return the flags of what other load did, in the words of the engine; a call that sleeps or waits for a file is none."""
    if t.load is None:
        return []
    flags = []
    if broken_into(t.load.stolen, t.load.switches, len(t.wall)):
        flags.append(Flag.DISTURBED.value)
    share = median(t.cpu) / max(median(t.wall), 1e-9)
    if share < WAITED and t.load.switches > t.load.waits:
        flags.append(f"{Flag.WAITED}: the CPU time is {share:.0%} of the wall time")
    return flags


@contextmanager
def undisturbed(collect: bool = True) -> Iterator[None]:
    """No garbage collection and no tracer (coverage, a debugger) in between; both are as before afterwards."""
    tracer, profiler, collects = sys.gettrace(), sys.getprofile(), gc.isenabled()
    if collect:
        gc.collect()
    sys.settrace(None)
    sys.setprofile(None)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        sys.setprofile(profiler)
        sys.settrace(tracer)


def jsonable(value: Any) -> Any:
    """Return extra_info or parameters of a test as JSON holds them; other objects by their repr."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    return [jsonable(v) for v in value] if isinstance(value, (list, tuple)) else repr(value)[:1000]


# ---- at the end of a session


class Ending(NamedTuple):
    """The lines to print at the end of a session, and the tests that became slower."""

    lines: list[str]
    slower: list[sessions.Slow]


def finish(
    records: Sequence[str], *, json: str | None = None, results: str | None = None, compare: str | None = None,
    compare_fail: str | None = None, autosave: bool = False, store: str | None = None, root: Path | None = None,
) -> Ending:  # fmt: skip
    """Write what was asked for and compare with an earlier session."""
    session = gathered(records)
    root = root or Path.cwd()
    lines = []
    for path, write in ((json, _save_as_pytest_benchmark), (results, save)):
        if path:
            write(session, path)
            lines.append(f"written: {escape.terminal(path, None)}")
    if not session.runs:
        return Ending(lines, [])
    before = sessions.earlier(compare, root, store) if compare else None
    slower: list[sessions.Slow] = []
    if before is not None and compare_fail is not None:
        slower, judged = _judged(session, before, compare_fail)
        lines = [*judged, *lines]
    if autosave:
        lines.append(f"stored as {sessions.keep(session, root, store)}; --tritium-compare last compares with it")
    return Ending([*page(session, before, gates=compare_fail is not None), *lines], slower)


def _judged(session: Results, before: Results, limit: str) -> tuple[list[sessions.Slow], list[str]]:
    """Return the tests that are slower, and the lines that say so."""
    if _unlike(before, session.environment):
        return [], ["nothing was judged: the machines are not alike"]
    spread = _spread(session, before)
    share = fraction(limit, "--tritium-compare-fail")
    slower = sessions.slower(session, before, share, spread)
    lines = [str(test) for test in slower] or [f"no test is slower by more than {100 * max(share, 2 * spread):.3g} %"]
    if 2 * spread > share:
        lines.append(
            f"the margin is {200 * spread:.3g} % and not {100 * share:.3g} %: twice the spread of the canary beside the tests"
        )
    return slower, lines


def _save_as_pytest_benchmark(results: Results, path: str) -> None:
    write_text(path, exports.pytest_benchmark(results), parents=True)


def gathered(records: Sequence[str]) -> Results:
    """The runs of a session, as results."""
    runs = tuple(read(Run, loads(text, "a report"), "a report") for text in records)
    rounds = max((len(s.values[0]) for r in runs for s in r.series), default=1)
    plan = Plan(ARM, 1, rounds, 1, LEAST_BATCH_S, metrics=("wall", "cpu"), gates=False)
    return Results(
        "pytest", ARM, utc_now(), command_line(), plan,
        this_environment(usable_threads(), limits=False), (ARM,), runs, ("one process: shows intervals, gates nothing",),
    )  # fmt: skip


def with_canary(results: Results) -> Results:
    """Return the results and the canary that ran beside each test: a process for each, since it looked once for each."""
    facts = [run.facts.get("pytest") for run in results]
    looks = [f[CLOCK] for f in facts if isinstance(f, dict) and isinstance(f.get(CLOCK), float) and f[CLOCK] > 0]
    wall = Series("wall", "s", tuple(((look,),) for look in looks))
    canary = Run(COMPUTE, ARM, Context(COMPUTE), series=(wall,))
    return replace(results, runs=(*results.runs, canary)) if looks else results


def _spread(*sessions: Results) -> float:
    """Return the spread of the canary beside the tests, of the session in which it was wider."""
    return max(spread_of(with_canary(session)) for session in sessions)


def noise_lines(*sessions: Results) -> list[str]:
    """Return what a machine whose own speed changed during a session does not show; nothing for a steady one."""
    spread = _spread(*sessions)
    if spread <= STEADY:
        return []
    moved = f"This machine is noisy: its speed moved by ±{100 * spread:.0f} % from test to test"
    return [f"{moved}; differences below {200 * spread:.0f} % between two sessions decide nothing.", ""]


def page(results: Results, earlier: Results | None = None, *, gates: bool = False) -> list[str]:
    """A table of the session, and how it compares with an earlier one; first, what a noisy machine does not show."""
    disturbed = disturbed_cells(results)
    forbids = _unlike(earlier, results.environment) if earlier is not None else ""
    heads = ("test", "median", "95 %", "batches", "calls", *(("was", "now / was") if earlier is not None else ()))
    rows = []
    for run in sorted(results.runs, key=lambda r: str(r.facts["pytest"].get("group") or "")):
        s = describe(run.series[0].flat)
        group = run.facts["pytest"].get("group")
        name = f"{group}: {run.facts['pytest']['name']}" if group else run.case
        between = f"{seconds_text(s.interval[0])} … {seconds_text(s.interval[1])}"
        cells = (
            name if run.status == "ok" else f"{name} ({run.reason})",
            seconds_text(s.median) + MARK * (run.key in disturbed),
            between,
            str(s.n),
            str(run.iterations),
        )
        rows.append((*cells, *(_beside(run, earlier, forbids) if earlier is not None else ())))
    below = [f"not compared: {escape.terminal(forbids, None)}"] if forbids else []
    if earlier is not None and not forbids:
        one = (
            "of one process each" if gates else "of one process each, so it gates nothing: tritium regression-test does"
        )
        below.append(f"now / was: 1.10 is 10 % slower; {one}.")
    if disturbed:
        below.append("!: other load took time from this test, more than from the others.")
    flags = {f for run in results for f in run.flags if run.key in disturbed or not is_of_load(f)}
    below += sorted(map(escape.terminal, flags))
    table = Table("", heads, tuple(rows), frozenset(heads[1:]), tuple(below)).text().splitlines()
    return [*noise_lines(results, *([] if forbids or earlier is None else [earlier])), *table]


def _beside(run: Run, earlier: Results, forbids: str) -> tuple[str, str]:
    before = next((r for r in earlier if r.case == run.case and r.status == "ok" and r.seconds), None)
    if before is None or before.seconds is None or run.status != "ok":
        return "-", "new" if before is None else "-"
    wall = before.of("wall")
    if forbids or wall is None:
        return seconds_text(before.seconds), "-"
    was, now = ([[math.log(v)] for v in values_of(s)] for s in (wall, run.series[0]))
    u = unpaired(was, now, (0.95,))
    low, high = (math.exp(v) for v in u.intervals[0.95])
    ratio = f"{u.ratio:.3f} ({low:.3f} … {high:.3f})"
    if run.seconds is not None and not low <= run.seconds / before.seconds <= high:
        ratio += (
            f", medians {run.seconds / before.seconds:.2f}: several modes"  # or the two columns would contradict it
        )
    return seconds_text(before.seconds), ratio


def _unlike(earlier: Results, now: Environment) -> str:
    """Return why the machines are not alike; files of other tools are compared only in the fields they have."""
    hard, _ = differences(earlier.environment, now)
    differing = {k: v for k, v in hard.items() if earlier.kind != "import" or (k in FOREIGN and v[0] not in ("", "0"))}
    return "; ".join(f"{name} was {a}, is {b}" for name, (a, b) in differing.items())


# ---- for pytest-benchmark's own files


def machine() -> dict[str, Any]:
    """Return what makes machines unlike for Tritium: stable from run to run, since pytest-benchmark warns if it differs."""
    return {k: v for k, v in plain(this_environment(usable_threads(), limits=False).hard).items() if v}


def surroundings() -> dict[str, Any]:
    """The whole environment, as our own files have it."""
    machine: dict[str, Any] = json.loads(dumps(this_environment(usable_threads(), limits=False)))
    return machine
