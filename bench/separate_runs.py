"""Separate runs of unchanged and of slower code: how often the gate on a stored baseline passes, fails and abstains.

    python bench/separate_runs.py [--pairs 200] [--seed 0]     simulated machines, known truth
    python bench/separate_runs.py --files FOLDER               every two result files of unchanged code in a folder

Knows nothing of how the drift is found: it calls `compare_stored` as regression-check does. Beside it stands what is usual
elsewhere: medians as they are, with no regard to what the machine did in between.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritium.perf.gate.compare import Rules, compare_stored
from tritium.perf.gate.judge import Estimate, decide, levels
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment, Hard
from tritium.perf.records.run import Plan, Results, Run, Series, rounds_of
from tritium.perf.stats import estimates as stats
from tritium.perf.store import results as store
from tritium.perf.work.canary import COMPUTE, MEMORY, is_canary

RULES = Rules(margins={"wall": 0.05}, paired=False, metrics=("wall",))
HERE = Environment(Hard("cpu", "", 2, 2, "", "", "", 1), "", "", "", False, {}, "", 8.0, "", "", "", 0.0, None)
COPY_S_PER_BYTE = 4e-11
CLOCK_S, SHARED = 1.4e-6, 1.5
SLOWER = "half"
SHARES = {"compute a": 0.0, "compute b": 0.05, SLOWER: 0.5, "memory a": 0.9, "memory b": 1.5}  # of 1 ms spent copying


@dataclass(frozen=True)
class Machine:
    """How a machine behaves: sd of its drift between runs, of processes; the share of time in which other work takes part of
    a batch, and that in which a neighbour has half of the core and everything takes half as long again.
    """

    name: str
    compute: float
    memory: float
    process: float
    busy: float
    shared: float


MACHINES = (
    Machine("quiet, same day", 0.003, 0.01, 0.005, 0.0, 0.0),
    Machine("quiet, other day", 0.02, 0.03, 0.005, 0.0, 0.0),
    Machine("shared", 0.02, 0.04, 0.01, 0.1, 0.4),
    Machine("shared and busy", 0.03, 0.06, 0.015, 0.5, 0.6),
)


def one_run(machine: Machine, rng: np.random.Generator, slower: float = 1.0, generations: int = 15) -> Results:
    """A run on a machine that drifted; the memory's drift reaches a case by the time it spends with memory, about."""
    compute, memory = np.exp(rng.normal(0, [machine.compute, machine.memory]))
    memory *= compute  # what lies in a cache follows the core
    runs = []
    shape = (generations, 8)
    for case, share in {COMPUTE: 0.0, MEMORY: 1.0, **SHARES}.items():
        follows = min(max(share * rng.normal(1, 0.1), 0), 1)
        level = 1e-3 * compute ** (1 - follows) * memory**follows * (slower if case == SLOWER else 1.0)
        levels_of = rng.normal(0, machine.process, (generations, 1, 1))
        hit = (rng.random((*shape, 3)) < machine.busy) * rng.exponential(0.15, (*shape, 3))
        state = np.where(rng.random(shape) < machine.shared, SHARED, 1.0)
        values = level * np.exp(levels_of + rng.normal(0, 0.003, (*shape, 3))) * (1 + hit) * state[..., None]
        looks = CLOCK_S * compute * state[..., None] * np.exp(rng.normal(0, 0.002, (*shape, 2)))
        nbytes = int(share * 1e-3 / COPY_S_PER_BYTE)
        series = tuple(
            Series(metric, "s", tuple(tuple(tuple(map(float, b)) for b in g) for g in of))
            for metric, of in (("wall", values), ("clock", looks))
        )
        runs.append(Run(case, "tritium", Context(case), Work(1, nbytes // 2, nbytes // 2), series=series))
    return Results("bench", "simulated", "", "", Plan(), HERE, ("tritium",), tuple(runs))


def plain_medians(old: Results, new: Results) -> int:
    """The exit code of a gate that takes medians as they are: rank-sum interval, Holm, the same margins."""
    estimates = []
    for run in old:
        other = new.of(*run.key)
        if other is None or is_canary(run.case):
            continue
        a, b = ([np.log(g) for g in rounds_of(r.series[0])] for r in (run, other))
        found = stats.unpaired(a, b, levels(RULES))
        estimates.append(Estimate(found.difference, found.intervals, found.p, 0.0, len(a)))
    judged = decide(estimates, [RULES.margin("wall")] * len(estimates), RULES)
    return 1 if any(j.outcome == "SLOWER" for j in judged) else 4 if any(not j.passes for j in judged) else 0


def shares(codes: Iterable[int]) -> str:
    """Exit codes 0, 1 and the rest, in percent."""
    found = Counter(codes)
    every = sum(found.values())
    rest = every - found[0] - found[1]
    return " | ".join(f"{100 * n / every:.1f} %" for n in (found[0], found[1], rest))


def simulate(pairs: int, seed: int) -> list[str]:
    """A table: machine by machine, unchanged and 10 % slower, by this gate and by medians."""
    lines = ["| machine | code | gate | exit 0 | exit 1 | exit 4 or 5 |", "|---|---|---|---|---|---|"]
    for number, machine in enumerate(MACHINES):
        for code, factor in (("unchanged", 1.0), ("10 % slower in one case", 1.1)):
            rng = np.random.default_rng([seed, number])
            made = [(one_run(machine, rng), one_run(machine, rng, factor)) for _ in range(pairs)]
            ours = shares(compare_stored(a, b, RULES).exit_code for a, b in made)
            lines.append(f"| {machine.name} | {code} | fastest fifth, clock | {ours} |")
            lines.append(
                f"| {machine.name} | {code} | medians as they are | {shares(plain_medians(a, b) for a, b in made)} |"
            )
    return lines


def judge_files(folder: Path) -> list[str]:
    """Every two results of a folder, each way round."""
    runs = [store.load(path) for path in sorted(folder.glob("*.json"))]
    codes = [compare_stored(a, b, RULES).exit_code for a, b in itertools.permutations(runs, 2)]
    medians = [plain_medians(a, b) for a, b in itertools.permutations(runs, 2)]
    return [
        f"{len(runs)} runs, {len(codes)} pairs: exit 0 | 1 | others",
        f"fastest fifth, clock: {shares(codes)}",
        f"medians: {shares(medians)}",
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--files", type=Path)
    asked = options.parse_args()
    lines = judge_files(asked.files) if asked.files else simulate(asked.pairs, asked.seed)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
