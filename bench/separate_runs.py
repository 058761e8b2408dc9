"""Separate runs of unchanged and of slower code: false alarms of the gate on a stored baseline, and whether its stated sensitivity holds.

    python bench/separate_runs.py [--pairs 2000] [--seed 0]    simulated machines, known truth
    python bench/separate_runs.py --files FOLDER               every ordered pair of result files of unchanged code in a folder

It calls `compare_stored` as regression-check does. In every pair one case is then made slower by what the gate says it would have
found, and judged again. Beside it stands what is usual elsewhere: medians as they are, by the rank-sum interval and Holm's correction.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from tritium.perf.gate.compare import Rules, compare_stored
from tritium.perf.gate.judge import Estimate, decide, levels
from tritium.perf.gate.regression import rules_of
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.run import Plan, Results, Run, Series, rounds_of
from tritium.perf.stats import estimates as stats
from tritium.perf.store import results as store
from tritium.perf.work.canary import COMPUTE, MEMORY, is_canary

HERE = Environment(Hard("cpu", "", 2, 2, "", "", "", 1), "", "", "", False, {}, "", 8.0, "", "", "", 0.0, None)
CASES, PROCESSES, ROUNDS, BATCHES = 10, 15, 2, 3
PROCESS_S = 8.0  # of a run
CALL_S, CLOCK_S, TEAM_S = 1e-3, 1.6e-6, 26e-6


@dataclass(frozen=True)
class State:
    """A state that a machine is in for a share of the time, for so many seconds on average, and what is slower by then (log)."""

    share: float
    seconds: float
    clock: float  # one core
    team: float  # all cores at once, beyond the clock
    hidden: float = 0.0  # cases of several threads, and no look at the machine tells
    drifts: float = 0.0  # sd of the share between runs


@dataclass(frozen=True)
class Machine:
    """How a machine behaves: sd of processes, of rounds and of the clock's drift between runs; its states."""

    name: str
    process: float
    rounds: float
    drift: float
    states: tuple[State, ...] = ()
    lucky: float = 0.0  # share of processes that take a third less time


MACHINES = (
    Machine("bare", 0.01, 0.003, 0.01),
    Machine(
        "two speeds", 0.05, 0.03, 0.01, (State(0.6, 2.0, 0.28, 0.0, drifts=0.1), State(0.5, 3.0, 0.0, 0.3, drifts=0.1))
    ),
    Machine("lucky processes", 0.03, 0.01, 0.01, lucky=0.1),
    Machine("drift", 0.03, 0.01, 0.08, (State(0.5, 120.0, 0.08, 0.05),)),
    Machine("a neighbour for seconds", 0.03, 0.02, 0.02, (State(0.25, 15.0, 0.1, 0.2, hidden=0.2),)),
)


class Program:
    """Cases of one version: how each follows one core and all of them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.clock = rng.uniform(0.3, 1.5, CASES)
        self.team = rng.uniform(0.3, 1.6, CASES) * (rng.random(CASES) < 0.6)


def one_run(machine: Machine, program: Program, rng: np.random.Generator) -> Results:
    """A run: processes one after the other, cases in random order in each; the machine's states go on meanwhile."""
    count = CASES + 2
    order = np.argsort(np.argsort(rng.random((PROCESSES, count))))
    seconds = (np.arange(PROCESSES)[:, None] + order / count) * PROCESS_S
    clock, team, hidden = (
        np.full(seconds.shape, rng.normal(0, machine.drift)),
        np.zeros(seconds.shape),
        np.zeros(seconds.shape),
    )
    for state in machine.states:
        inside = _inside(state, seconds, rng)
        clock += state.clock * inside
        team += state.team * inside
        hidden += state.hidden * inside
    runs = []
    for k in range(count):
        name = (*(f"case {i}" for i in range(CASES)), COMPUTE, MEMORY)[k]
        own, other = (program.clock[k], program.team[k]) if k < CASES else (1.0 if name == COMPUTE else 0.2, 0.0)
        log = (
            own * clock[:, k]
            + other * team[:, k]
            + hidden[:, k] * (other > 0)
            + rng.normal(0, machine.process, PROCESSES)
        )
        log -= 0.4 * (rng.random(PROCESSES) < machine.lucky)
        walls = CALL_S * np.exp(log[:, None, None] + rng.normal(0, machine.rounds, (PROCESSES, ROUNDS, BATCHES)))
        looks = [
            scale * np.exp(of[:, None, None] + rng.normal(0, 0.01, (PROCESSES, ROUNDS, 2)))
            for scale, of in ((CLOCK_S, clock[:, k]), (TEAM_S, clock[:, k] + team[:, k]))
        ]
        series = tuple(
            Series(metric, "s", tuple(tuple(tuple(map(float, b)) for b in g) for g in of))
            for metric, of in zip(("wall", "clock", "team"), (walls, *looks), strict=True)
        )
        runs.append(Run(name, "tritium", Context(name), Work(1), series=series))
    return Results(
        "bench", "simulated", "", "", Plan(), HERE, ("tritium",), tuple(runs), elapsed_s=PROCESSES * PROCESS_S
    )


def _inside(state: State, seconds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """1 where the machine is in the state: drawn anew after a time, else as it was."""
    share = float(np.clip(rng.normal(state.share, state.drifts), 0, 1))
    order = np.argsort(seconds.ravel())
    out, last, inside = np.zeros(seconds.size), -math.inf, False
    for i in order:
        now = seconds.ravel()[i]
        if rng.random() > math.exp(-(now - last) / state.seconds):
            inside = rng.random() < share
        out[i], last = inside, now
    return out.reshape(seconds.shape)


def slowed(results: Results, case: str, arm: str, factor: float) -> Results:
    """The same run with one case slower."""

    def series(s: Series) -> Series:
        if s.metric != "wall":
            return s
        return replace(s, values=tuple(tuple(tuple(v * factor for v in b) for b in g) for g in s.values))

    return replace(
        results,
        runs=tuple(replace(r, series=tuple(map(series, r.series))) if r.key == (case, arm) else r for r in results),
    )


def medians(old: Results, new: Results, rules: Rules) -> bool:
    """True for an alarm of a gate that takes medians as they are: rank-sum interval, Holm, the same margins."""
    pairs = [
        (run, other) for run in old
        if not is_canary(run.case) and (other := new.of(*run.key)) is not None and run.status == other.status == "ok"
    ]  # fmt: skip
    estimates = []
    for run, other in pairs:
        a, b = ([np.log(g) for g in rounds_of(wall) if g] for r in (run, other) if (wall := r.of("wall")) is not None)
        found = stats.unpaired(a, b, levels(rules, len(pairs)))
        estimates.append(Estimate(found.difference, found.intervals, found.p, 0.0, len(a)))
    return any(j.outcome == "SLOWER" for j in decide(estimates, [rules.margin("wall")] * len(estimates), rules))


@dataclass(frozen=True)
class Judged:
    """A pair of unchanged runs: alarms of both gates, the stated sensitivity, and whether a slow-down of that size is found."""

    alarm: bool
    medians: bool
    sensitivity: float
    usual: float
    found: bool


def judged(old: Results, new: Results, rng: np.random.Generator) -> Judged:
    rules = rules_of(paired=False)
    suite = compare_stored(old, new, rules)
    sensitivity = suite.sensitivity if suite.sensitivity is not None else math.inf
    timed = [v for v in suite.verdicts if v.metric == "wall"]
    chosen = timed[rng.integers(len(timed))]
    own = chosen.sensitivity if chosen.sensitivity is not None else math.inf
    again = compare_stored(old, slowed(new, chosen.case, chosen.arm, 1 + own), rules) if math.isfinite(own) else None
    found = again is not None and any(
        v.outcome == "SLOWER" for v in again.verdicts if (v.case, v.arm) == (chosen.case, chosen.arm)
    )
    usual = suite.usual_sensitivity if suite.usual_sensitivity is not None else math.inf
    return Judged(suite.exit_code == 1, medians(old, new, rules), sensitivity, usual, found)


def simulated(machine: Machine, pairs: int, seed: int) -> list[Judged]:
    rng = np.random.default_rng([seed, MACHINES.index(machine)])
    out = []
    for _ in range(pairs):
        program = Program(rng)
        out.append(judged(one_run(machine, program, rng), one_run(machine, program, rng), rng))
    return out


HEAD = [
    "| machine | pairs | alarms | of medians | sensitivity at the median: of any case / of half of them | slow-downs of that size found |",
    "|---|---|---|---|---|---|",
]


def row(name: str, every: list[Judged]) -> str:
    """A line of the table, with exact intervals of the shares."""

    def share(hits: Iterable[bool]) -> str:
        count = sum(hits)
        low, high = stats.share_interval(count, len(every))
        return f"{100 * count / len(every):.1f} % ({100 * low:.1f} … {100 * high:.1f})"

    finds = f"{100 * median(j.sensitivity for j in every):.0f} % / {100 * median(j.usual for j in every):.0f} %"
    alarms, others, found = (
        share(j.alarm for j in every),
        share(j.medians for j in every),
        share(j.found for j in every),
    )
    return f"| {name} | {len(every)} | {alarms} | {others} | {finds} | {found} |"


def judge_files(folder: Path) -> list[str]:
    """Every two results of a folder, each way round."""
    runs = [store.load(path) for path in sorted(folder.glob("*.json"))]
    rng = np.random.default_rng(0)
    every = [judged(a, b, rng) for a, b in itertools.permutations(runs, 2)]
    return [*HEAD, row(f"{len(runs)} runs of {folder.name}", every)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=2000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--files", type=Path)
    asked = options.parse_args()
    if asked.files:
        lines = judge_files(asked.files)
    else:
        with ProcessPoolExecutor() as pool:
            every = pool.map(partial(simulated, pairs=asked.pairs, seed=asked.seed), MACHINES)
            lines = [*HEAD, *(row(machine.name, of) for machine, of in zip(MACHINES, every, strict=True))]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
