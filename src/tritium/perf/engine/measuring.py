"""Cases and arms in, results out: fresh processes, calibrated batches, equal warm-up, arms in random order beside each other.

Knows nothing of operations, statistics of verdicts or files' names, and never prints.

A generation starts one fresh worker process for each arm. Inside it the cases come in random order; for each case the arms
take turns, every arm once in a round, in an order that is random and then reversed, so that drift hits all alike. A worker
that is not at work is stopped. The number of calls in a batch and of batches before the first sample is found in the
first generation and then kept. A case that hangs, crashes or runs out of memory is one run with that status; its
worker is replaced and the suite goes on.

With a budget, a generation measures the cells that `dealing` names, and none is begun after the deadline. A contender whose calls
do not fit into the time is stopped: an outcome, not a failure.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tritium.arguments import checked
from tritium.errors import ArgumentError, SaveError
from tritium.machine.facts import digest, seconds_text, usable_threads
from tritium.perf.engine.dealing import CellName, deal, process_ratios, processes_needed
from tritium.perf.engine.process import START_S, GoneError, Process
from tritium.perf.records import json_io as records
from tritium.perf.records.case import Arm, Case, Work
from tritium.perf.records.environment import command_line, this_environment
from tritium.perf.records.run import LEAST_PROCESSES, PLANS, Flag, Plan, Results, Run, Series, Status, Values
from tritium.perf.stats.estimates import MODES, mvalue, steady
from tritium.perf.store import results as store
from tritium.perf.work.canary import canaries, is_canary
from tritium.perf.work.peers import PEERS

Progress = Callable[[int, int, str], None]
CLOCKS = {
    "wall": "perf_counter",
    "cpu": "process_time",
    "clock": "a fixed piece of arithmetic before and after the batches",
    "team": "the same on all threads at once",
    "waiting": "time of each thread in the queue for a CPU, as a share",
}
WAITED = 0.5  # CPU time below this share of the wall time: the process waited for most of it

ALIKE = 1.5  # arms whose calls differ by less get batches of the same number of calls
WARM_SHARE = 5  # a warm-up batch is this part of a timed one
WARM_CAP = 0.2  # of the time the samples of a case take
DOUBT = 2.0  # standard errors by which two windows may differ and still be alike
WINDOW, SLOW_WINDOW = 8, 3  # warm-up batches that are compared with those before
REPEATS = 0.2  # of the rounds may be repeated because something broke in
STOLEN = 0.05  # of the time of a round, by the hypervisor: more breaks it
SWITCHES = 3  # involuntary context switches a batch: more break a round
MAX_CANARY_RATIO = 1.15  # of the clock probes of two arms in a round: more breaks it
LEARNT = 20  # rounds from which on the machine's own rounds raise these limits
USUAL = 0.9  # share of its rounds that are not broken, however noisy the machine
CANARY_ROUNDS = 6
PADDING = 1 << 20  # bytes, at most, between memory that is taken anew
MEMORY_GENERATIONS = 3  # memory is read in the first ones only
ENERGY_S = 1.0
TOO_SLOW = 500  # times the fastest call of a case: a contender whose calls are long too is stopped
MOST_SHARE, MOST_CELLS = 0.25, 4  # of a budget, for one cell in one process: what so many cells would have
AFTER_S, AFTER_SHARE = 5.0, 0.1  # of a budget, at most, to compare the results, print them and write a page
CALLS_LEFT = 3  # of a long call after calibration: warm-up, one batch, memory


# ---- cells: one case on one arm while it is measured


@dataclass
class Cell:
    """Mutable; plain JSON in a journal."""

    status: Status = "ok"
    reason: str = ""
    checked: str = ""
    calls: int = 0
    each_s: float = 0.0
    warmup: int = 0
    steady: bool = True
    first_call_s: float | None = None
    make_s: float = 1e9
    facts: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] | None = None
    values: dict[str, list[list[list[float]]]] = field(default_factory=dict)  # metric, generation, round, batch
    series: dict[str, dict[str, Any]] = field(default_factory=dict)  # metric: unit, source, reason, details …
    rounds: int = 0
    broken: list[list[float]] = field(default_factory=list)  # wall times of rounds that were repeated
    kept: int = 0  # rounds that count though something broke in: the repeats were used up

    def add(self, metric: str, generation: int, rounds: list[list[float]]) -> None:
        """The rounds of a generation; generations in which it was not measured are empty."""
        series = self.values.setdefault(metric, [])
        series.extend([] for _ in range(generation - len(series)))
        series.append(rounds)

    def note(self, metric: str, generation: int, details: dict[str, Any]) -> None:
        """One value of a metric that is read once in a generation, or why there is none."""
        value = details.pop("value", None)
        if value is not None:
            self.add(metric, generation, [[value]])
        elif any(self.values.get(metric, ())):  # measured before, and not this time: the series keeps what it has
            self.series[metric].setdefault("absent", []).append(details.get("reason", ""))
            return
        self.series[metric] = self.series.get(metric, {}) | details


def run_of(case: Case, arm: Arm, cell: Cell, threads: int, ended: str = "ended") -> Run:
    """Return the run of a cell, as results hold it; `ended`: why one without a sample has none."""
    series = [*_clocks(cell), *(_other(m, details, cell) for m, details in cell.series.items())]
    status, reason = cell.status, cell.reason
    if status == "ok" and not series:
        status, reason = "interrupted", f"{ended} before the first sample"
    context = replace(
        case.context, threads=threads, optimisation=arm.optimisation or case.context.optimisation,
        device=arm.candidate.partition(":")[2] or case.context.device,
    )  # fmt: skip
    return Run(
        case.name, arm.name, context, Work(**cell.work) if cell.work else case.work, status, reason, cell.checked,
        cell.calls, cell.warmup, cell.steady, cell.first_call_s, tuple(series), tuple(_flags(cell, context.device)), cell.facts,
    )  # fmt: skip


def _clocks(cell: Cell) -> list[Series]:
    series = []
    for metric, source in CLOCKS.items():
        values = _frozen(cell.values.get(metric, []))
        if any(values):
            details = {"broken": cell.broken} if cell.broken and metric == "wall" else {}
            series.append(Series(metric, "1" if metric == "waiting" else "s", values, source=source, details=details))
    return series


def _other(metric: str, details: dict[str, Any], cell: Cell) -> Series:
    values = _frozen(cell.values.get(metric, []))
    known = {k: v for k, v in details.items() if k in ("unit", "source", "exact", "reason", "kind")}
    details = {k: v for k, v in details.items() if k not in known}
    if not any(values):
        values, known["kind"] = (), "not measured"
    else:
        known.pop("reason", None)
    return Series(metric, known.pop("unit", ""), values, details=details, **known)


def _flags(cell: Cell, device: str) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    flags = [] if cell.steady else [Flag.UNSTEADY.value]
    if cell.broken:
        flags.append(f"{len(cell.broken)} {Flag.REPEATED}: {Flag.DISTURBED}")
    if cell.kept:
        flags.append(f"{cell.kept} {Flag.KEPT}")
    wall, cpu = ([median(b) for g in cell.values.get(m, ()) for b in g if b] for m in ("wall", "cpu"))
    if len(wall) >= 8 and mvalue(wall) > MODES:
        flags.append(Flag.MODES.value)
    if wall and cpu and device == "cpu" and median(cpu) < WAITED * median(wall):
        flags.append(f"{Flag.WAITED}: the CPU time is {median(cpu) / median(wall):.0%} of the wall time")
    return flags


def _frozen(values: list[list[list[float]]]) -> Values:
    return tuple(tuple(tuple(b) for b in g) for g in values)


Cells = dict[CellName, Cell]


@checked
def measure(
    cases: Sequence[Case],
    arms: Sequence[Arm],
    plan: Plan = PLANS["default"],
    *,
    kind: str = "bench",
    suite: str = "",
    notes: Sequence[str] = (),
    command: str | None = None,
    progress: Progress | None = None,
    journal: Path | None = None,
    resume: bool = False,
    options: dict[str, Any] | None = None,
    spent_s: float = 0.0,
) -> Results:
    """Measure every case on every arm. Ctrl-C ends it early: what was measured until then is in the results.

    `journal` is a file to which each generation is written when it is done; with `resume` the ones in it are not measured
    again. `options` go to the energy meter. `spent_s` of the plan's budget are spent already.
    """
    threads = plan.threads or usable_threads()
    _check(cases, arms, plan, threads)
    began = time.monotonic()
    every = [*cases, *(canaries() if plan.canary else ())]
    bench = Bench(every, arms, plan, threads, progress, options or {}, spent_s)
    bench.report("looking at the machine")
    environment = this_environment(threads)
    created = records.utc_now()
    complete = True
    all_notes = list(notes)
    where = [environment.hard.key, environment.commit, environment.dirty, environment.tritium, environment.packages]
    what = [records.plain(x) for x in (plan, every, list(arms), options or {})]
    log = _opened(journal, digest([where, what, threads]), bench, resume, all_notes)
    try:
        while bench.choose():
            bench.generation(bench.done)
            if log is not None and not _journalled(log, bench, bench.done - 1, all_notes):
                log = None
    except KeyboardInterrupt:
        complete = False
        all_notes.append(f"interrupted in process {bench.done + 1} of {plan.generations}; the samples so far are kept")
    finally:
        bench.end()
        if log is not None:
            log.close()
    ended = "ended"
    if plan.budget_s is not None and complete:
        ended, plan = f"the {plan.budget_s:g} s of the run ended", replace(plan, generations=max(1, bench.done))
    runs = bench.runs(ended)
    if "instructions" in plan.metrics and complete:
        from tritium.perf.engine import callgrind  # of these measurements alone

        runs = callgrind.filled(runs, cases, arms)
    return Results(
        kind, suite, created, command if command is not None else command_line(), plan, environment,
        tuple(arm.name for arm in arms), runs, tuple(all_notes), complete, round(time.monotonic() - began, 3),
    )  # fmt: skip


def _opened(path: Path | None, key: str, bench: Bench, resume: bool, notes: list[str]) -> store.Journal | None:
    """The journal, and what it already holds put back; the key is of all that must be the same to go on."""
    if path is None:
        return None
    if resume and path.exists():
        entries, torn = store.Journal.read(path)
        if torn:
            notes.append("the journal ended in the middle of a record, which was measured again")
        plans = [r for r in entries if r.get("what") == "plan"]
        if not plans or plans[0].get("key") != key:
            raise ArgumentError(
                f"{path}: the journal is of another plan, suite, version or machine; resume with the same arguments, or delete it."
            )
        done = [r for r in entries if r.get("what") == "generation"]
        if done:
            bench.restore(done[-1])
            notes.append(f"resumed after {bench.done} of {bench.plan.generations} processes")
        return store.Journal(path)
    log = store.Journal(path, truncate=True)
    log.append({"what": "plan", "key": key})
    return log


def _journalled(log: store.Journal, bench: Bench, number: int, notes: list[str]) -> bool:
    """Return True if a process was written to the journal; otherwise measuring continues, and a note says what is lost by it."""
    try:
        log.append({"what": "generation", "number": number, "cells": bench.as_json()})
    except SaveError as error:
        log.close()
        notes.append(f"the journal ended after {number} processes, so that this run cannot be resumed: {error}")
        return False
    return True


class Limits:
    """The limits beyond which a round is broken: those of a quiet machine, or nine tenths of the rounds so far are below them.

    A machine whose rounds are all disturbed would break the repeats as often: only what is unusual there is measured again.
    """

    def __init__(self) -> None:
        self.seen: list[list[float]] = [[], [], []]  # in order: ratios of clock probes, stolen shares, switches a batch

    def broken(self, answers: Collection[dict[str, Any]], batches: int) -> bool:
        """Return True if a round was disturbed: by contenders on unequal cores, by the hypervisor, or by other load."""
        if not answers:
            return False
        looks = [max(s["clock"]) for s in answers]
        stolen, switches = (max(s[kind] for s in answers) for kind in ("stolen", "switches"))
        amounts, limits = (max(looks) / min(looks), stolen, switches / batches), (MAX_CANARY_RATIO, STOLEN, SWITCHES)
        over = False
        for amount, limit, seen in zip(amounts, limits, self.seen, strict=True):
            usual = seen[int(USUAL * len(seen))] if len(seen) >= LEARNT else limit
            over |= amount > max(limit, usual)
            insort(seen, amount)
        return over


def broken_into(stolen: float, switches: int, batches: int) -> bool:
    """Return True if the hypervisor or other load disturbed these batches."""
    return stolen > STOLEN or switches > SWITCHES * batches


def _check(cases: Sequence[Case], arms: Sequence[Arm], plan: Plan, threads: int) -> None:
    for what, names in (("case", [c.name for c in cases]), ("arm", [a.name for a in arms])):
        if not names:
            raise ArgumentError(f"measure: no {what} was given; at least one is needed.")
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise ArgumentError(f"measure: two {what}s are called {twice!r}; give each its own name.")
    for name in ("generations", "rounds", "batches"):
        if getattr(plan, name) < 1:
            raise ArgumentError(f"measure: {name} must be 1 or more, given {getattr(plan, name)}.")
    if not 1 <= threads <= usable_threads():
        raise ArgumentError(f"measure: {threads} threads were asked; this process may use 1 to {usable_threads()}.")


class Bench:
    """The state of one measurement."""

    def __init__(
        self, cases: Sequence[Case], arms: Sequence[Arm], plan: Plan, threads: int, progress: Progress | None,
        energy: dict[str, Any], spent_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.cases, self.arms, self.plan, self.threads, self.energy = list(cases), list(arms), plan, threads, energy
        self.progress = progress
        self.cells: Cells = {(c.name, a.name): Cell() for c in self.cases for a in self.arms}
        self.workers: dict[str, Process] = {}
        self.limits = Limits()
        self.done = 0
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.cpus = allowed[-threads:] if threads < len(allowed) else []
        budget_s = math.inf if plan.budget_s is None else plan.budget_s
        self.began = time.monotonic()
        self.deadline = self.began + budget_s - spent_s - min(AFTER_S, AFTER_SHARE * budget_s)
        self.most_s = budget_s * min(MOST_SHARE, MOST_CELLS / len(self.cells))
        self.share_s = budget_s / (LEAST_PROCESSES * len(self.cells))
        self.slow_s = min(plan.slow_s, self.share_s / (plan.rounds * plan.batches))  # longer calls are taken one by one
        self.start_s: dict[str, float] = {}  # of a process of each arm with its canaries, as last seen
        self.cell_s: dict[CellName, float] = {}  # of a cell in one process
        self.chosen: set[CellName] = set(self.cells)  # of this generation
        self.spent: dict[str, float] = {}  # seconds of each arm in the case at hand; inf: its worker is gone

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def report(self, what: str, done: int = 0) -> None:
        """Report progress: of the cells of all generations, or of the time until the deadline."""
        total = len(self.cases) * self.plan.generations
        if self.plan.budget_s is not None:
            done, total = (round(1000 * (t - self.began)) for t in (time.monotonic(), self.deadline))
        if self.progress is not None:
            self.progress(done, total, what)

    # ---- generations

    def choose(self) -> bool:
        """Choose the cells of the next generation; return False if there is none, or no time for one.

        Where verdicts of the plan may fail a gate, every cell needs all processes: later runs are compared with it.
        """
        if self.plan.budget_s is None or self.left_s() <= 0:
            return self.done < self.plan.generations and self.left_s() > 0
        needed: dict[CellName, int] = {}
        first: dict[str, str] = {}
        for case in (c.name for c in self.cases if not is_canary(c.name)):
            usable = {a.name: cell for a in self.arms if (cell := self.cells[case, a.name]).status == "ok"}
            walls = {arm: cell.values.get("wall", []) for arm, cell in usable.items()}
            for arm in [*walls][1:] or walls:
                first[case] = next(iter(walls))
                most = self.plan.generations - sum(map(bool, walls[arm]))
                ratios = process_ratios(walls[first[case]], walls[arm])
                needed[case, arm] = most if self.plan.gates else min(most, processes_needed(ratios))
        chosen = deal(needed, first, self.start_s, self.cell_s, self.left_s())
        self.chosen = chosen | {(c.name, arm) for c in self.cases if is_canary(c.name) for _, arm in chosen}
        return bool(chosen)

    def generation(self, number: int) -> None:
        """Every case on every arm, in fresh processes."""
        rng = random.Random(f"{self.plan.seed} {number}")
        cases = [c for c in self.cases if any((c.name, a.name) in self.chosen for a in self.arms)]
        order = rng.sample(cases, len(cases))
        last = f" of {self.plan.generations}" if self.plan.budget_s is None else ""
        self._start(self.arms, rng)
        for i, case in enumerate(order):
            if self.left_s() <= 0:
                break
            self.report(f"{case.name} (process {number + 1}{last})", number * len(order) + i)
            self._case(case, number, rng)
        self.end()
        self.done = number + 1

    def _start(self, arms: Sequence[Arm], rng: random.Random) -> None:
        """Workers start side by side; the first command waits for all."""
        started, began = [], time.monotonic()
        for arm in arms:
            if not any(self.cells[cell].status == "ok" for cell in self.chosen if cell[1] == arm.name):
                continue
            try:
                self.workers[arm.name] = Process(arm, threads=self.threads, cpus=self.cpus, rng=rng)
                started.append(arm)
            except (OSError, GoneError) as error:
                self._fail_all(arm, f"{arm.python} could not be started: {error}")
        for arm in started:
            try:
                self.workers[arm.name].wait_until_ready(min(START_S, max(0.0, self.left_s())))
            except (GoneError, TimeoutError) as gone:
                self.workers.pop(arm.name).kill()
                if isinstance(gone, GoneError) or self.left_s() > 0:
                    self._fail_all(arm, str(gone) or "the worker did not start in time")
        for arm in started:
            self.start_s[arm.name] = (time.monotonic() - began) / len(started)

    def end(self) -> None:
        """No worker outlives its generation."""
        while self.workers:
            name, worker = next(iter(self.workers.items()))
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C must not lose what the first one kept
                worker.kill()
                del self.workers[name]

    def _ask(self, case: Case, arm: Arm, rng: random.Random, **request: Any) -> dict[str, Any] | None:
        """A command to the worker of an arm; None when it has no answer. A worker that died is replaced."""
        worker, spent = self.workers.get(arm.name), self.spent.get(arm.name, 0.0)
        if worker is None or math.isinf(spent):
            return None
        timeout_s = case.timeout_s if case.timeout_s is not None else self.plan.timeout_s
        limit, began = min(timeout_s, self.most_s), time.monotonic()
        try:
            answer = worker.ask(min(limit - spent, self.left_s()), limit, case=case.name, **request)
        except GoneError as gone:
            del self.workers[arm.name]
            self.spent[arm.name] = math.inf
            if gone.status != "timed out" or (limit == timeout_s and self.left_s() > 0):
                self._fail(case, arm, gone.status, gone.reason)
            elif self.left_s() > 0:
                self._stop(case, arm, str(gone), limit - spent if request["do"] == "first" else 0.0)
            self._start([arm], rng)
            return None
        self.spent[arm.name] = spent + time.monotonic() - began
        if answer["status"] != "ok":
            self._fail(case, arm, answer["status"], answer["reason"])
            return None
        return answer

    def _fail_all(self, arm: Arm, reason: str) -> None:
        for case in self.cases:
            self._fail(case, arm, "failed", reason)

    def _fail(self, case: Case, arm: Arm, status: Status, reason: str) -> None:
        cell = self.cells[case.name, arm.name]
        if cell.status == "ok":
            cell.status, cell.reason = status, reason

    # ---- one case

    def _case(self, case: Case, number: int, rng: random.Random) -> None:
        self.spent.clear()
        arms = self._due(case, number)
        rng.shuffle(arms)
        arms = [a for a in arms if self._make(case, a, rng)]
        if any(self.cells[case.name, a.name].calls == 0 for a in arms):
            self._calibrate(case, arms, rng)
            self._stop_slow(case, arms)
        self._warm(case, arms, number, rng)
        self._rounds(case, arms, number, rng)
        for arm in self.arms:
            cell = self.cells[case.name, arm.name]
            if arm in arms and cell.status == "ok":
                self._other_metrics(case, arm, cell, number, rng)
            if arm in arms:
                self._ask(case, arm, rng, do="drop")
        for name, spent_s in self.spent.items():
            if is_canary(case.name):
                self.start_s[name] += min(spent_s, self.most_s)
            else:
                self.cell_s[case.name, name] = min(spent_s, self.most_s)

    def _due(self, case: Case, number: int) -> list[Arm]:
        """The arms of a case in a generation: very slow ones in every third only, unless a gate needs them all or a budget chooses."""
        every = self.plan.gates or self.plan.budget_s is not None or number % 3 == 0
        cells = [(arm, self.cells[case.name, arm.name]) for arm in self.arms if (case.name, arm.name) in self.chosen]
        return [arm for arm, cell in cells if cell.status == "ok" and (every or cell.each_s < 10 * self.plan.slow_s)]

    def _stop(self, case: Case, arm: Arm, why: str, call_s: float) -> None:
        """End an arm in a case because a call takes so long or longer, unless it has samples already."""
        cell = self.cells[case.name, arm.name]
        if not any(cell.values.get("wall", ())):
            self._fail(case, arm, "too slow", f"stopped: {why}")
            cell.each_s = call_s

    def _stop_slow(self, case: Case, arms: Sequence[Arm]) -> None:
        """Stop arms whose calls are long and very much slower than the fastest, or do not fit into what a cell may take.

        The shorter of two calls counts: one may be disturbed. Without a budget nothing is stopped.
        """
        cells = {a: self.cells[case.name, a.name] for a in arms if self.spent[a.name] < self.most_s}
        each_s = {arm: min(cell.each_s, cell.first_call_s or math.inf) for arm, cell in cells.items()}
        for arm, each in each_s.items() if self.plan.budget_s is not None else ():
            is_slow = each > self.slow_s and each > TOO_SLOW * min(each_s.values())
            if is_slow or CALLS_LEFT * each > self.most_s - self.spent[arm.name]:
                self._stop(case, arm, f"a call takes {seconds_text(each)}", each)

    def _make(self, case: Case, arm: Arm, rng: random.Random) -> bool:
        cell = self.cells[case.name, arm.name]
        answer = self._ask(
            case, arm, rng, do="make", target=case.recipe.target, arguments=dict(case.recipe.arguments),
            candidate=arm.candidate,
        )  # fmt: skip
        first = self._ask(case, arm, rng, do="first", check=not cell.checked) if answer is not None else None
        if answer is None or first is None:
            return False
        cell.make_s = min(cell.make_s, answer["make_s"])  # the first one imports
        if not cell.checked:
            cell.checked, cell.first_call_s, cell.facts = first["checked"], first["first_call_s"], answer["facts"]
            cell.work = answer.get("work")
        return True

    def _calibrate(self, case: Case, arms: Sequence[Arm], rng: random.Random) -> None:
        """Calls in a batch: one number for arms that are about as fast, each its own otherwise."""
        for arm in arms:
            cell = self.cells[case.name, arm.name]
            answer = self._ask(case, arm, rng, do="calibrate", least_s=self.plan.least_batch_s)
            if answer is not None:
                cell.calls, cell.each_s = self.plan.iterations or answer["calls"], answer["each_s"]
        for arm in arms:
            cell = self.cells[case.name, arm.name]
            others = [self.cells[case.name, a.name] for a in arms]
            alike = [c for c in others if max(c.each_s, cell.each_s) <= ALIKE * min(c.each_s, cell.each_s)]
            cell.calls = max(c.calls for c in alike)
            most = min(self.plan.rounds, CANARY_ROUNDS) if is_canary(case.name) else self.plan.rounds
            cell.rounds = 1 if cell.each_s > self.slow_s else most

    def _warm(self, case: Case, arms: Sequence[Arm], number: int, rng: random.Random) -> None:
        """The same number of batches for every arm: the most that any needed to become steady, found once.

        Where a call takes long, an arm has what it needed itself, and one call in the generations after the first.
        """
        arms = [a for a in arms if self.cells[case.name, a.name].status == "ok"]
        cells = {a.name: self.cells[case.name, a.name] for a in arms}
        warmup = max((c.warmup for c in cells.values()), default=0)
        seen: dict[str, list[float]] = {name: [] for name in cells}

        def more(arm: Arm, batches: int) -> bool:
            cell = cells[arm.name]
            calls = max(1, cell.calls // WARM_SHARE)
            answer = self._ask(case, arm, rng, do="batches", calls=calls, batches=batches, before=0, renew=0)
            seen[arm.name] += answer["wall"] if answer is not None else []
            return answer is not None

        if not warmup:
            warmup = self.plan.warmup_batches or 0
            for arm in arms if self.plan.warmup_batches is None else ():
                needed = self._until_steady(cells[arm.name], seen[arm.name], partial(more, arm))
                warmup = max(warmup, needed)
        for arm in arms:
            cell = cells[arm.name]
            due = max(bool(number), len(seen[arm.name])) if cell.each_s > self.slow_s else warmup
            if cell.status == "ok" and len(seen[arm.name]) < due:
                more(arm, due - len(seen[arm.name]))
            cell.warmup = max(cell.warmup, due)

    def _until_steady(self, cell: Cell, seen: list[float], more: Callable[[int], bool]) -> int:
        """Warm-up batches until two windows agree; the cell is marked when they never do."""
        each = cell.each_s * max(1, cell.calls // WARM_SHARE)
        window = WINDOW if each < self.plan.slow_s / WARM_SHARE else SLOW_WINDOW
        if 2 * window * each > self.share_s:  # too long to look for a steady state within the budget
            more(1)
            return len(seen)
        whole = self.plan.generations * cell.rounds * self._batches(cell) * cell.each_s * cell.calls
        most = max(2 * window, int(WARM_CAP * whole / max(each, 1e-9)))
        going = more(2 * window)
        while going and steady(seen, window=window, doubt=DOUBT) is None:
            if len(seen) + window > most:
                cell.steady = False
                break
            going = more(window)
        return len(seen)

    def _batches(self, cell: Cell) -> int:
        return 1 if cell.each_s > self.slow_s else self.plan.batches

    def _rounds(self, case: Case, arms: list[Arm], number: int, rng: random.Random) -> None:
        rng.shuffle(arms)
        samples: dict[str, dict[str, list[list[float]]]] = {a.name: {m: [] for m in CLOCKS} for a in arms}
        repeats = 0
        for turn in range(max((self.cells[case.name, a.name].rounds for a in arms), default=0)):
            arms = arms[::-1]  # A B, then B A: drift hits both alike
            while True:
                answers = self._round(case, [a for a in arms if self.cells[case.name, a.name].rounds > turn], rng)
                if not self.limits.broken(answers.values(), self.plan.batches):
                    break
                if repeats >= max(1, int(REPEATS * self.plan.rounds)):
                    for name in answers:
                        self.cells[case.name, name].kept += 1
                    break
                repeats += 1
                for name, s in answers.items():
                    self.cells[case.name, name].broken.append(s["wall"])
            for name, s in answers.items():
                for metric in CLOCKS:
                    if metric in s:  # one thread is no team
                        samples[name][metric].append(s[metric])
        for arm in self.arms:
            cell = self.cells[case.name, arm.name]
            for metric in CLOCKS:
                cell.add(metric, number, samples.get(arm.name, {}).get(metric, []))

    def _round(self, case: Case, arms: Sequence[Arm], rng: random.Random) -> dict[str, dict[str, Any]]:
        """Every arm once, each in memory of its own where the case is quickly made."""
        out = {}
        renew = all(self.cells[case.name, a.name].make_s < self.plan.renew_s for a in arms)
        for arm in arms:
            cell = self.cells[case.name, arm.name]
            if cell.status != "ok":
                continue
            before = 0 if cell.each_s > self.slow_s else 1 + cell.calls // 2  # another arm has had the caches since
            pad = rng.randrange(1, PADDING) if renew else 0
            answer = self._ask(
                case, arm, rng, do="batches", calls=cell.calls, batches=self._batches(cell), before=before, renew=pad
            )
            if answer is not None:
                out[arm.name] = answer
        return out

    # ---- other metrics

    def _other_metrics(self, case: Case, arm: Arm, cell: Cell, number: int, rng: random.Random) -> None:
        metrics = set(self.plan.metrics) - {"wall", "cpu"}
        if is_canary(case.name):
            return
        memory = metrics & {"peak_bytes", "allocated_bytes", "rss_bytes"}
        if memory and number < MEMORY_GENERATIONS:
            own = arm.candidate.partition(":")[0] not in PEERS
            answer = self._ask(case, arm, rng, do="memory", own=own)
            for name, value in (answer or {"memory": {}})["memory"].items():
                if name in memory:
                    details = {"unit": "B", "exact": name != "rss_bytes"}
                    cell.note(name, number, details | (value if isinstance(value, dict) else {"value": value}))
        counters = sorted(metrics - memory - {"energy"})
        if counters and cell.status == "ok":
            answer = self._ask(case, arm, rng, do="counters", metrics=counters, calls=cell.calls)
            for name, details in (answer or {"counters": {}})["counters"].items():
                cell.note(name, number, details)
        if "energy" in metrics and cell.status == "ok":
            least_s = self.energy.get("power_measurement_duration_s", ENERGY_S)
            meter = self.energy | {"device": case.context.device}
            answer = self._ask(case, arm, rng, do="energy", least_s=least_s, options=meter)
            if answer is not None:
                energy = answer["energy"]
                details = energy.pop("details") | {k: v for k, v in energy.items() if k != "metric"}
                cell.note("energy", number, details)

    # ---- what is kept

    def as_json(self) -> list[Any]:
        return [[case, arm, records.plain(cell)] for (case, arm), cell in self.cells.items()]

    def restore(self, record: dict[str, Any]) -> None:
        for case, arm, cell in record["cells"]:
            self.cells[case, arm] = records.read(Cell, cell, f"journal.{case}.{arm}")
        self.done = record["number"] + 1

    def runs(self, ended: str = "ended") -> tuple[Run, ...]:
        """The runs of all cells; `ended`: why those without a sample have none. What was stopped says how slow it is."""
        runs = []
        for case in self.cases:
            cells = {a: self.cells[case.name, a.name] for a in self.arms}
            timed = [(c.each_s, a.name) for a, c in cells.items() if c.status == "ok" and c.each_s]
            for arm, cell in cells.items():
                if cell.status == "too slow" and cell.each_s and timed:
                    least_s, fastest = min(timed)
                    cell.reason += f" ({cell.each_s / least_s:,.0f}× a call of {fastest})"
                runs.append(run_of(case, arm, cell, self.threads, ended))
        return tuple(runs)
