"""The change of a case between two separate runs, of which one may have had the faster machine.

A process is one value: the median of its rounds, as a logarithm. Beside each round lie looks at the machine: the clock of a core;
all threads at once, since cores that share execution units or power slow each other down; how long threads waited for a CPU that
others had; and the memory canary of the process.
How closely a case follows them is estimated from its rounds in both runs, around what is usual, and their difference between the
runs is taken off. Where they moved further between the runs than within them, what is not known of that widens the interval.

The processes of a run are minutes of one machine, and the next run has other minutes. Most cases of a comparison are unchanged: how far
they lie apart, beyond what their processes tell, widens all intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median

import numpy as np

from tritium.perf.gate.judge import NEVER, Estimate, Tail, certainty, levels
from tritium.perf.gate.verdict import Rules
from tritium.perf.records.run import Results, Run
from tritium.perf.stats import estimates as stats
from tritium.perf.stats.resample import Floats
from tritium.perf.work.canary import COMPUTE, MEMORY, is_canary

OTHERS = ("numpy", "torch", "torch.compile", "jax", "mlx", "reference")  # contenders whose speed is not Tritium's
TIMES = ("wall", "cpu")  # metrics that follow the machine's speed
# How closely a case usually follows a look at the machine, and the sd of that: what is assumed before its rounds are seen.
CLOCK, SHARED, WAITING, MEMORY_SD = (1.0, 0.5), (0.5, 1.0), (1.0, 0.5), 0.5
# The share of a call's time that copying its bytes takes: up to the first it follows compute, from the second on memory.
FOLLOWS = (0.2, 1.0)
FLOOR = 0.004  # sd between unchanged runs without drift: where code and data lie
UNKNOWN = 0.03  # sd of the machine's own drift where nothing looked at it
FASTEST = 0.25  # share of the processes that have to agree with their centre
LEAST_SPREAD = 1e-4  # sd of rounds: equal values tell of a coarse clock, not of certainty
ENOUGH = 8  # cases needed before their own spread is used
NORMAL = NormalDist()


@dataclass(frozen=True)
class Rounds:
    """A metric of a run round by round: its logarithms, what was seen of the machine beside each, and their processes."""

    values: Floats
    looks: Floats  # by round and look
    wrong: Floats  # by round and look: half the distance of two looks at the same round
    process: Floats

    def centres(self, strength: Floats) -> Floats:
        """Return the value of each process, at the machine's speed where all looks are 0."""
        left = self.values - self.looks @ strength
        return np.array([np.median(left[self.process == p]) for p in np.unique(self.process)])


@dataclass(frozen=True)
class Shift:
    """A change of a series between two runs (log), at equal speed of the machine."""

    old: Floats  # of processes
    new: Floats
    drift: float  # of the machine's clock, between the runs
    unknown: float  # sd of what is not known of the machine
    unseen: bool  # nothing looked at the machine beside the rounds of both

    @property
    def log(self) -> float:
        return float(np.median(np.subtract.outer(self.new, self.old)))

    @property
    def tail(self) -> float:
        """Return the change of the fastest processes: a neighbour for half of a run moves the centre, and not these."""
        return _fastest(self.new) - _fastest(self.old)


def shift(old: Run, new: Run, metric: str, before: Results, after: Results) -> Shift | None:
    """Return how far a metric of a run moved; None where either has no value above 0."""
    looks = _looks(old, before, new, after) if metric in TIMES else []
    a, b = (_rounds(run, metric, looks, results) for run, results in ((old, before), (new, after)))
    if not len(a.values) or not len(b.values):
        return None
    strength, doubt = _strength(a, b, looks)
    drift = np.array([np.median(y) - np.median(x) for x, y in zip(a.looks.T, b.looks.T, strict=True)])
    centre = np.array([np.median(x) for x in a.looks.T])  # the old run's speed is the one both are shown at
    a, b = (replace(r, looks=r.looks - centre) for r in (a, b))
    beyond = np.maximum(np.abs(drift) - _common(a, b), 0) * np.array([sd for _, (_, sd) in looks])
    unknown = math.sqrt(max(float(drift @ doubt @ drift), float(beyond @ beyond))) if looks else UNKNOWN
    clock = float(drift[0]) if looks else 0.0
    return Shift(a.centres(strength), b.centres(strength), clock, math.hypot(unknown, FLOOR), not looks)


def _common(a: Rounds, b: Rounds) -> Floats:
    """Return the span of each look that both runs have: beyond it nothing shows how values follow the look."""
    (low, high), (other_low, other_high) = (np.quantile(r.looks, (0.05, 0.95), axis=0) for r in (a, b))
    return np.asarray(np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), 0))


Look = tuple[str, tuple[float, float]]


def _looks(old: Run, before: Results, new: Run, after: Results) -> list[Look]:
    """Return the looks at the machine that both runs have, with how strongly this case usually follows each."""
    sides = ((old, before), (new, after))
    out: list[Look] = []
    for name, usual in (("clock", CLOCK), ("team", SHARED), ("waiting", WAITING)):
        if all(_is_beside(run, name) for run, _ in sides):
            out.append((name, usual))
    if not out and all(_canary(results, COMPUTE, run.arm) for run, results in sides):
        out.append((COMPUTE, CLOCK))
    share = min(memory_share(run, results) for run, results in sides)
    if out and share > 0:
        out.append((MEMORY, (share, MEMORY_SD)))
    return out


def _is_beside(run: Run, name: str) -> bool:
    """Return True if every round of a run has this look beside it."""
    wall, looks = run.of("wall"), run.of(name)
    return wall is not None and looks is not None and [len(g) for g in wall.values] == [len(g) for g in looks.values]


def _rounds(run: Run, metric: str, looks: Sequence[Look], results: Results) -> Rounds:
    """Return the rounds of a metric that have a value and all looks."""
    series = run.of(metric)
    values, seen, process = list[float](), list[list[tuple[float, float]]](), list[int]()
    for g, rounds in enumerate(series.values if series is not None else ()):
        for r, batches in enumerate(rounds):
            value = median(batches) if batches else 0.0
            row = [_look(run, name, g, r, results) for name, _ in looks]
            if value > 0 and None not in row:
                values.append(math.log(value))
                seen.append([v for v in row if v is not None])
                process.append(g)
    array = np.array(seen, np.float64).reshape(len(values), len(looks), 2)
    for k, (name, _) in enumerate(looks):
        if k and name != "waiting":
            array[:, k] -= array[:, 0]  # of speed beside the clock only what the clock does not tell
    return Rounds(np.array(values), array[..., 0], array[..., 1], np.array(process))


def _look(run: Run, name: str, process: int, number: int, results: Results) -> tuple[float, float] | None:
    """Return how much longer, as a logarithm, work takes by the looks at the machine beside a round, and how far these disagree.

    None where there is none.
    """
    if is_canary(name):
        seconds = _canary(results, name, run.arm).get(process, 0.0)
        return (math.log(seconds), 0.0) if seconds > 0 else None
    series = run.of(name)
    rounds = series.values[process] if series is not None and process < len(series.values) else ()
    each = rounds[number] if number < len(rounds) else ()
    if name == "waiting":
        return (-math.log1p(-median(each)), 0.0) if each and 0 <= median(each) < 1 else None
    return (math.log(median(each)), math.log(each[-1] / each[0]) / 2) if each and min(each) > 0 else None


def _canary(results: Results, name: str, arm: str) -> dict[int, float]:
    """Return the median of a canary by process: of this contender, or of the first that has it."""
    runs = [r for r in results if r.case == name and (series := r.of("wall")) is not None and series.flat]
    series = next((r.of("wall") for r in sorted(runs, key=lambda r: r.arm != arm)), None)
    each = enumerate(series.values if series is not None else ())
    return {g: median([v for batches in rounds for v in batches]) for g, rounds in each if any(rounds)}


def _strength(old: Rounds, new: Rounds, looks: Sequence[Look]) -> tuple[Floats, Floats]:
    """Return how strongly values follow the looks, and the covariance of that: a regression around what is usual.

    Looks that disagree about one round are partly wrong, which would make what follows them seem to follow less; what that adds
    to their spread is taken off. A canary was not beside the rounds: what is usual stands.
    """
    if not looks:
        return np.zeros(0), np.zeros((0, 0))
    centred = [(r.values - r.values.mean(), r.looks - r.looks.mean(axis=0)) for r in (old, new)]
    y, x = (np.concatenate(part) for part in zip(*centred, strict=True))
    wrong = np.concatenate([old.wrong, new.wrong])
    beside = np.array([not is_canary(name) for name, _ in looks], np.float64)
    processes = len(np.unique(old.process)) + len(np.unique(new.process))
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    free = max(processes - 2 - len(looks), 1)  # rounds of one process count as one: they are alike
    noise = max(float(left @ left) / free, LEAST_SPREAD**2 * len(left) / processes)
    most_wrong = 1 + 2 * math.sqrt(2 / len(y))  # of the spread of what disagrees, itself estimated from so many rounds
    both = np.outer(beside, beside)
    half = np.linalg.cholesky(x.T @ x * both + LEAST_SPREAD**2 * np.eye(len(looks)))
    back = np.linalg.inv(half)
    share, axes = np.linalg.eigh(back @ (most_wrong * wrong.T @ wrong * both) @ back.T)
    right = np.maximum(1 - share, 0)  # by axis, the share of the looks' spread that is not an error
    known = half @ (axes * right**2) @ axes.T @ half.T / noise
    seen = half @ (axes * right) @ axes.T @ back @ (x.T @ y * beside) / noise
    usual, weight = np.array([mean for _, (mean, _) in looks]), np.diag([1 / sd**2 for _, (_, sd) in looks])
    doubt = np.linalg.inv(known + weight)
    return doubt @ (seen + weight @ usual), doubt


def memory_share(run: Run, results: Results) -> float:
    """Return how much a case follows the memory canary, 0 to 1, from the share of its time that copying its bytes takes."""
    canary = next((r for r in results if r.case == MEMORY and r.work.moved and r.seconds), None)
    limits = results.environment.limits
    core = next((v.nbytes or 0.0 for v in limits.levels if v.name == "L2"), 0.0) if limits is not None else 0.0
    if canary is None or not canary.seconds or not run.seconds or run.work.moved <= core:
        return 0.0
    share = run.work.moved * canary.seconds / canary.work.moved / run.seconds
    low, high = FOLLOWS
    return min(max((share - low) / (high - low), 0.0), 1.0)


def _fastest(values: Floats) -> float:
    count = max(round(FASTEST * len(values)), 1)
    return float(np.partition(values, count - 1)[:count].mean())


def spread(shifts: Iterable[Shift], usual: float = 1.0) -> float:
    """Return how much further unchanged cases lie apart than their processes tell, at least what is usual on this machine.

    Most cases of a comparison are unchanged, so the middle half of them counts.
    """
    scores = [s.log / math.hypot(_own_sd(s), s.unknown) for s in shifts]
    if len(scores) < ENOUGH:
        return usual
    middle = median(scores)
    return max(usual, 1.4826 * median(abs(v - middle) for v in scores))


def _own_sd(s: Shift) -> float:
    low, high = stats.shift(s.old, s.new, [0.95])[1][0.95]
    return max((high - low) / 2 / NORMAL.inv_cdf(0.975), 1e-9)


def estimate(s: Shift, rules: Rules, tests: int, wider: float) -> Estimate:
    """Return the estimate of a case beyond the drift of the machine, with intervals widened by what is not known of it."""
    intervals, sd = {}, 0.0
    for confidence, (low, high) in stats.shift(s.old, s.new, levels(rules, tests))[1].items():
        z = NORMAL.inv_cdf((1 + confidence) / 2)
        below, above = (wider * math.hypot(part, z * s.unknown) for part in (s.log - low, high - s.log))
        intervals[confidence] = s.log - below, s.log + above
        sd = max(sd, (below if s.log > 0 else above) / z)
    # Ranks alone do not know of the machine; a normal sd alone would trust tails that were never seen.
    p = max(stats.rank_sum_p(s.old, s.new), 2 * NORMAL.cdf(-abs(s.log) / sd))
    if 2 / math.comb(len(s.old) + len(s.new), len(s.old)) > 1 - certainty(rules, tests):
        intervals[certainty(rules, tests)] = NEVER
    n = min(len(s.old), len(s.new))
    tail = Tail(s.tail, math.hypot(_tail_sd(s.old), _tail_sd(s.new)))
    return Estimate(s.log, intervals, p, wider * _own_sd(s) * math.sqrt(n), n, wider * s.unknown, tail)


def _tail_sd(values: Floats) -> float:
    """Return the sd of the fastest processes' mean by the jackknife."""
    n = len(values)
    if n < 2:
        return UNKNOWN
    left = np.array([_fastest(np.delete(values, i)) for i in range(n)])
    return math.sqrt((n - 1) / n * float(((left - left.mean()) ** 2).sum()))


def geomean(estimates: Iterable[Estimate]) -> tuple[float, tuple[float, float]] | None:
    """Return the geometric mean of ratios and its 95 % interval, as if they were independent."""
    known = list(estimates)
    if not known:
        return None
    n, log = len(known), sum(e.log for e in known) / len(known)
    half = math.sqrt(sum(((e.intervals[0.95][1] - e.intervals[0.95][0]) / 2) ** 2 for e in known)) / n
    return math.exp(log), (math.exp(log - half), math.exp(log + half))
