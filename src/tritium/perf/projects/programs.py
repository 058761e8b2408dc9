"""Programs timed as a whole, side by side: each round runs every one once, in an order that is random and then reversed.

A run is a fresh process: wall time from before it is started until it has ended, CPU time and peak memory as the system
counts them for it and its children. The results are those of any measurement, so that verdicts, pages and histories apply to
programs too.
"""

from __future__ import annotations

import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tritium.errors import ArgumentError
from tritium.machine.facts import usable_threads
from tritium.perf.engine.measuring import Limits
from tritium.perf.engine.worker import TICKS_S, steal
from tritium.perf.records.case import Context
from tritium.perf.records.environment import command_line, this_environment
from tritium.perf.records.json_io import utc_now
from tritium.perf.records.run import GATING, Flag, Plan, Results, Run, Series, Status, Values, not_measured
from tritium.perf.work.canary import clock

Progress = Callable[[int, int, str], None]
Key = tuple[str, str]  # case and contender
LEAST_RUNS, MOST_RUNS = 15, 1500  # of a program; a gate needs 14
LEAST_S = 3.0  # of all runs of a program, where they are short
GROUPS = 15  # rounds are grouped like the fresh processes of other measurements
TIMEOUT_S = 600.0
TAIL = 300  # characters of a failed program's error output that are shown
SHELL_SIGNS = re.compile(r"[|&;<>()$`*?\[\]#~%!{}\n]|^\s*\w+=")
AUTO, NONE = "auto", "none"
METRICS = {"wall": "s", "cpu": "s", "user": "s", "system": "s", "rss_bytes": "B"}
HIDDEN = "its peak is below that of the process that started it, which the system counts until the program begins"
SOURCES = {"wall": "perf_counter", "rss_bytes": "wait4: ru_maxrss"}


@dataclass(frozen=True)
class Program:
    """A command to time, and what runs around it; commands are lines of a shell, or words."""

    command: str | tuple[str, ...]
    shell: str = AUTO  # auto: a shell where the line needs one; none; or the shell itself
    prepare: str = ""  # before every timed run
    conclude: str = ""  # after every timed run
    setup: str = ""  # once, before the first run
    cleanup: str = ""  # once, after the last run
    input: Path | None = None  # its standard input; None: nothing
    folder: Path | None = None  # where it runs; None: here
    variables: tuple[tuple[str, str], ...] = ()
    accepted: frozenset[int] | None = frozenset({0})  # exit codes; None: all
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.command if isinstance(self.command, str) else shlex.join(self.command)

    @property
    def words(self) -> list[str]:
        """Return the words that are executed."""
        if isinstance(self.command, str):
            return words_of(self.command, self.shell)
        return [*_shell(self.shell), self.text] if self.shell not in (AUTO, NONE) else list(self.command)


def _shell(shell: str) -> list[str]:
    words = shlex.split(shell)
    return [*words, "-c"] if len(words) == 1 else words


def words_of(line: str, shell: str = AUTO) -> list[str]:
    """Return the words that execute a command line: through a shell only where the line or the caller asks for one."""
    if not line.strip():
        raise ArgumentError("a command is empty; give a program and its arguments.")
    if shell == AUTO:
        shell = "sh" if SHELL_SIGNS.search(line) else NONE
    if shell != NONE:
        return [*_shell(shell), line]
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ArgumentError(
            f"the command {line!r} cannot be split into words: {error}. Quote it, or use a shell."
        ) from None


@dataclass(frozen=True)
class Outcome:
    """One run of a program."""

    wall: float
    user: float
    system: float
    rss_bytes: float
    code: int  # of its exit; negative: the signal that ended it
    output: str = ""  # the end of its error output, where it failed

    @property
    def cpu(self) -> float:
        return self.user + self.system


def run_once(program: Program, output: IO[bytes] | int = subprocess.DEVNULL, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run a program once and time it. TimeoutError: it was ended, with all it had started."""
    words, variables = program.words, os.environ | dict(program.variables)
    path = _executable(words[0], program.folder, variables.get("PATH"))
    expired, children = threading.Event(), list[int]()

    def end() -> None:
        expired.set()
        _kill(*children)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    with open(program.input or os.devnull, "rb") as source, tempfile.TemporaryFile() as errors, _inside(program.folder):
        actions = _files(source, output, errors)
        timer.start()
        started = time.perf_counter_ns()
        try:
            # Not by subprocess.Popen, which takes half a millisecond more, all of it in the time of the program.
            children.append(os.posix_spawn(path, words, variables, file_actions=actions, setpgroup=0))
            _, status, usage = os.wait4(children[0], 0)
            wall = (time.perf_counter_ns() - started) / 1e9
        except BaseException:
            for child in children:
                _kill(child)
                os.waitpid(child, 0)
            raise
        finally:
            timer.cancel()
        _kill(children[0])  # what it left behind would disturb the next one
        if expired.is_set():
            raise TimeoutError(f"it took more than {timeout_s:g} s and was ended")
        code = os.waitstatus_to_exitcode(status)
        tail = _tail(errors) if code else ""
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Outcome(wall, usage.ru_utime, usage.ru_stime, float(peak), code, tail)


def _executable(name: str, folder: Path | None, path: str | None) -> str:
    """Return the path of a program as the shell finds it; ArgumentError where there is none."""
    place = (folder or Path.cwd()) / name if os.sep in name else None
    program = (
        (str(place) if os.access(place, os.X_OK) else None) if place is not None else shutil.which(name, path=path)
    )
    if program is None:
        raise ArgumentError(
            f"there is no program {name!r} here; check its name, or run it through a shell: --shell sh."
        )
    return program


def _files(source: IO[bytes], output: IO[bytes] | int, errors: IO[bytes]) -> list[tuple[Any, ...]]:
    """Return what a program gets as its standard input, output and error output."""
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, source.fileno(), 0)]
    if isinstance(output, int):  # nobody wants it: only the errors are kept, to say why a program failed
        actions.append((os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0o666))
        return [*actions, (os.POSIX_SPAWN_DUP2, errors.fileno(), 2)]
    return [*actions, *((os.POSIX_SPAWN_DUP2, output.fileno(), i) for i in (1, 2))]


@contextmanager
def _inside(folder: Path | None) -> Iterator[None]:
    """Work in a folder meanwhile: what is spawned begins there."""
    if folder is None:
        yield
        return
    before = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def own_peak() -> float:
    """Return the peak memory of this process: a child's is not known below it (Linux counts it until the child executes)."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def _kill(*groups: int) -> None:
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
    return file.read().decode("utf-8", "replace").strip()


def beside(program: Program, line: str, what: str) -> None:
    """Run a command that belongs to a program and is not timed; ArgumentError if it fails."""
    if not line:
        return
    helper = replace(program, command=line, shell="sh", input=None)
    outcome = run_once(helper)
    if outcome.code:
        tail = f": {outcome.output}" if outcome.output else ""
        raise ArgumentError(f"--{what} {line!r} ended with exit code {outcome.code}{tail}. It has to succeed.")


# ---- measuring


@dataclass
class _Cell:
    """The runs of one program."""

    program: Program
    status: Status = "ok"
    reason: str = ""
    groups: list[list[Outcome]] = field(default_factory=list)
    clocks: list[list[tuple[float, float]]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    broken: int = 0  # rounds that other load disturbed
    first_s: float | None = None

    def fail(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason


def measure_programs(
    programs: Mapping[Key, Program], *, runs: int | None = None, groups: int = GROUPS, least_runs: int = LEAST_RUNS, most_runs: int = MOST_RUNS,
    warmup: int = 1, seed: int = 0, kind: str = "time", suite: str = "programs", timeout_s: float = TIMEOUT_S,
    output: IO[bytes] | int = subprocess.DEVNULL, notes: Sequence[str] = (), progress: Progress | None = None,
) -> Results:  # fmt: skip
    """Time programs side by side, by case and contender. Ctrl-C ends it early: the rounds until then are kept.

    Without `runs` there are as many as fit into three seconds, but at least 15 and at most 1,500 of each.
    """
    if not programs:
        raise ArgumentError("time: no command was given; at least one is needed.")
    _check_counts(
        runs=(runs, 1), groups=(groups, 1), least_runs=(least_runs, 1), most_runs=(most_runs, 1), warmup=(warmup, 0)
    )
    began, created = time.monotonic(), utc_now()
    cells = {key: _Cell(program) for key, program in programs.items()}
    environment = this_environment(usable_threads(), limits=False)
    rng, complete, extra = random.Random(f"programs {seed}"), True, list(notes)
    rounds = 1
    try:
        with _around(cells):
            first = _warm(cells, max(warmup, int(runs is None)), timeout_s, output)
            groups, rounds = _planned(runs, groups, first, least_runs, most_runs)
            _measure(cells, groups, rounds, rng, timeout_s, output, progress)
    except KeyboardInterrupt:
        complete = False
        extra.append("interrupted; the rounds so far are kept")
    extra += _notes(cells)
    plan = Plan(
        "programs", groups, math.ceil(rounds / groups), 1, 0.0, timeout_s, warmup, 1, seed, metrics=tuple(METRICS), canary=False,
        gates=groups >= GATING,
    )  # fmt: skip
    arms = tuple(dict.fromkeys(arm for _, arm in programs))
    listed = tuple(_run(case, arm, cell, environment.hard.threads, warmup) for (case, arm), cell in cells.items())
    return Results(
        kind, suite, created, command_line(), plan, environment, arms, listed, tuple(extra), complete,
        round(time.monotonic() - began, 3),
    )  # fmt: skip


def _check_counts(**counts: tuple[int | None, int]) -> None:
    for name, (value, least) in counts.items():
        if value is not None and value < least:
            raise ArgumentError(f"time: {name} is {value}; {least} or more are needed.")


@contextmanager
def _around(cells: Mapping[Key, _Cell]) -> Iterator[None]:
    """Run the setup of every program before, and its cleanup after."""
    ready: list[Program] = []
    try:
        for cell in cells.values():
            beside(cell.program, cell.program.setup, "setup")
            ready.append(cell.program)
        yield
    finally:
        for program in ready:
            beside(program, program.cleanup, "cleanup")


def _attempt(cell: _Cell, timeout_s: float, output: IO[bytes] | int) -> Outcome | None:
    """Run a program with what is before and after it; None if it failed, and then it is not run again."""
    program = cell.program
    beside(program, program.prepare, "prepare")
    try:
        outcome = run_once(program, output, timeout_s)
    except TimeoutError as error:
        cell.fail("timed out", str(error))
        return None
    beside(program, program.conclude, "conclude")
    cell.codes.append(outcome.code)
    if program.accepted is not None and outcome.code not in program.accepted:
        how = f"exit code {outcome.code}" if outcome.code >= 0 else f"signal {-outcome.code}"
        tail = f"; it said: {outcome.output}" if outcome.output else ""
        cell.fail("failed" if outcome.code >= 0 else "crashed", f"it ended with {how}{tail}")
        return None
    return outcome


def _warm(cells: Mapping[Key, _Cell], warmup: int, timeout_s: float, output: IO[bytes] | int) -> float:
    """Run every program without counting it; return the seconds of the slowest's first run."""
    firsts = []
    for cell in cells.values():
        for _ in range(warmup):
            outcome = _attempt(cell, timeout_s, output) if cell.status == "ok" else None
            if outcome is not None and cell.first_s is None:
                cell.first_s = outcome.wall
        cell.codes.clear()
        if cell.first_s is not None:
            firsts.append(cell.first_s)
    return max(firsts, default=0.0)


def _planned(runs: int | None, groups: int, first_s: float, least_runs: int, most_runs: int) -> tuple[int, int]:
    """Return the groups of rounds, and all rounds."""
    if runs is None:
        runs = min(max(least_runs, math.ceil(LEAST_S / max(first_s, 1e-4))), most_runs)
    return min(runs, groups), runs


def _measure(
    cells: Mapping[Key, _Cell], groups: int, rounds: int, rng: random.Random, timeout_s: float, output: IO[bytes] | int,
    progress: Progress | None,
) -> None:  # fmt: skip
    look, limits, order = clock(), Limits(), list(cells)
    rng.shuffle(order)
    for group in range(groups):
        for cell in cells.values():
            cell.groups.append([])
            cell.clocks.append([])
        for turn in range(group * rounds // groups, (group + 1) * rounds // groups):
            if progress is not None:
                progress(turn, rounds, f"round {turn + 1} of {rounds}")
            if not any(cell.status == "ok" for cell in cells.values()):
                return
            order.reverse()
            if turn % 2 == 0:  # a pair of rounds has each order once; pairs differ
                rng.shuffle(order)
            _round(cells, [key for key in order if cells[key].status == "ok"], look, limits, timeout_s, output)


def _round(
    cells: Mapping[Key, _Cell],
    order: Sequence[Key],
    look: Callable[[], float],
    limits: Limits,
    timeout_s: float,
    output: IO[bytes] | int,
) -> None:
    """Run every program once; all results of a round count, or none does."""
    outcomes: dict[Key, tuple[Outcome, tuple[float, float]]] = {}
    stolen, began, before = steal(), time.monotonic(), look()
    for key in order:
        outcome = _attempt(cells[key], timeout_s, output)
        after = look()
        if outcome is not None:
            outcomes[key] = outcome, (before, after)
        before = after
    share = (steal() - stolen) / max(time.monotonic() - began, TICKS_S)
    disturbed = limits.broken([{"clock": p, "stolen": share, "switches": 0} for _, p in outcomes.values()], 1)
    for key, (outcome, pair) in outcomes.items():
        cells[key].groups[-1].append(outcome)
        cells[key].clocks[-1].append(pair)
        cells[key].broken += disturbed


def _run(case: str, arm: str, cell: _Cell, threads: int, warmup: int) -> Run:
    status, reason = cell.status, cell.reason
    if status == "ok" and not any(cell.groups):
        status, reason = "interrupted", "ended before the first sample"
    series = []
    for metric, unit in METRICS.items():
        values: Values = tuple(tuple((getattr(o, metric),) for o in group) for group in cell.groups)
        source = SOURCES.get(metric, "wait4")
        if any(values) and metric == "rss_bytes" and min(v for g in values for (v,) in g) <= own_peak():
            series.append(not_measured(metric, unit, HIDDEN, source))
        elif any(values):
            series.append(Series(metric, unit, values, source=source))
    if any(cell.clocks):
        series.append(
            Series("clock", "s", tuple(tuple(group) for group in cell.clocks), source="canary before and after")
        )
    flags = (f"{cell.broken} {Flag.KEPT}",) if cell.broken else ()
    program = cell.program
    facts = {"command": program.text, "words": program.words, "exit_codes": sorted(set(cell.codes)), **program.facts}
    return Run(
        case, arm, Context(case, threads=threads), status=status, reason=reason, checked="not checked: only its exit code",
        iterations=1, warmup=warmup, first_call_s=cell.first_s, series=tuple(series), flags=flags, facts=facts,
    )  # fmt: skip


def _notes(cells: Mapping[Key, _Cell]) -> list[str]:
    notes = []
    through = {
        c.program.words[0]
        for c in cells.values()
        if c.program.words[-1:] == [c.program.text] and len(c.program.words) > 1
    }
    if through:
        notes.append(
            f"run through {', '.join(sorted(through))}, whose start is in the times; --shell none runs a program itself"
        )
    walls = [o.wall for c in cells.values() for group in c.groups for o in group]
    if walls and min(walls) < 0.002:
        notes.append("some runs took less than 2 ms: much of that is the start of a process")
    if any(c for cell in cells.values() for c in cell.codes):
        notes.append("some runs ended with an exit code that is not 0, and count because failures are ignored")
    return notes


# ---- parameters


@dataclass(frozen=True)
class Parameter:
    """Values that take the place of {name} in a command."""

    name: str
    values: tuple[str, ...]


def scan(name: str, low: str, high: str, step: str = "1") -> Parameter:
    """Return the values from low to high, both included, with as many decimals as low and step have."""
    places = max(len(v.partition(".")[2]) for v in (low, step))
    first, last, width = (_number(name, v) for v in (low, high, step))
    count = math.floor((last - first) / width + 1e-9) if width else -1
    if not 0 <= count < 1000:
        raise ArgumentError(f"parameter {name}: from {low} to {high} by {step} are no 1 to 1,000 values.")
    return Parameter(name, tuple(f"{first + i * width:.{places}f}" for i in range(count + 1)))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentError(f"parameter {name}: {text!r} is not a number.")
    return value


def substituted(line: str, values: Mapping[str, str]) -> str:
    """Return a line with {name} replaced by its value."""
    for name, value in values.items():
        line = line.replace(f"{{{name}}}", value)
    return line


def combinations(parameters: Sequence[Parameter]) -> list[dict[str, str]]:
    """Return every combination of the values of the parameters."""
    every: list[dict[str, str]] = [{}]
    for parameter in parameters:
        every = [{**one, parameter.name: value} for one in every for value in parameter.values]
    if len(every) > 1000:
        raise ArgumentError(f"the parameters make {len(every)} commands; at most 1,000 are timed.")
    return every
