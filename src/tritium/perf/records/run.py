"""Results of a measurement: every raw value with its unit, the work, the context, the machine. Frozen, and plain JSON.

Figures a reader wants (median, rates, % of a ceiling) are computed from the raw values when asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from statistics import median, quantiles
from typing import Any, Literal

from tritium import escape
from tritium.arguments import checked_class
from tritium.machine.facts import seconds_text
from tritium.perf.records.case import Context, Work
from tritium.perf.records.environment import Environment

SCHEMA = 1  # a reader refuses a higher one

Status = Literal["ok", "failed", "wrong", "timed out", "crashed", "out of memory", "skipped", "too slow", "interrupted"]
EXCUSED = ("skipped", "too slow")  # no time, and no failure
Kind = Literal["measured", "estimate", "not measured"]
Values = tuple[tuple[tuple[float, ...], ...], ...]  # generation, round, batch


@dataclass(frozen=True)
class Series:
    """The raw values of one metric, or why there are none."""

    metric: str  # "wall", "cpu", "peak_bytes", "energy" …
    unit: str  # "s", "B", "J", "1"
    values: Values = ()
    kind: Kind = "measured"
    reason: str = ""  # of "not measured"
    source: str = ""  # the clock, counter or sensor
    exact: bool = False  # the same work gives the same value: compared exactly
    details: dict[str, Any] = field(
        default_factory=dict
    )  # of a sensor: domain, scope, resolution, updates, idle watts …

    @cached_property
    def flat(self) -> tuple[float, ...]:
        return tuple(v for generation in self.values for rounds in generation for v in rounds)

    @cached_property
    def median(self) -> float | None:
        flat = self.flat
        return median(flat) if flat else None


def not_measured(metric: str, unit: str, reason: str, source: str = "") -> Series:
    return Series(metric, unit, (), "not measured", reason, source)


class Flag(StrEnum):
    """A warning about a cell. In a file it is a text that begins with this, after the number of rounds where they are counted."""

    UNSTEADY = "no steady state"
    MODES = "several modes"
    REPEATED = "rounds repeated"
    KEPT = "rounds kept though other work broke in"
    DISTURBED = "other work or the hypervisor broke in"  # into every round
    WAITED = "waited"  # for a CPU, most of the time


FLAG_TEXT = re.compile(rf"(?:(\d+) )?({'|'.join(Flag)})")


def flag_counts(flags: Iterable[str]) -> dict[Flag, int]:
    """Return the flags among these texts with the rounds they count, 0 where they count none; texts of other tools are left out."""
    counts: dict[Flag, int] = {}
    for match in filter(None, map(FLAG_TEXT.match, flags)):
        flag = Flag(match[2])
        counts[flag] = counts.get(flag, 0) + int(match[1] or 0)
    return counts


def disturbed_rounds(flags: Iterable[str], rounds: int) -> tuple[int, int]:
    """Return the rounds that other load disturbed, and all that were timed: those that count and those that were repeated."""
    counts = flag_counts(flags)
    repeated = counts.get(Flag.REPEATED, 0)
    whole = counts.keys() & {Flag.DISTURBED, Flag.WAITED}
    return rounds + repeated if whole else repeated + counts.get(Flag.KEPT, 0), rounds + repeated


def is_of_load(flag: str) -> bool:
    """Return True if the text of a flag says that other load disturbed rounds, which is usual on some machines."""
    return disturbed_rounds([flag], 1)[0] > 0


@dataclass(frozen=True)
class Run:
    """One case on one contender."""

    case: str
    arm: str
    context: Context
    work: Work = field(default_factory=Work)
    status: Status = "ok"
    reason: str = ""
    checked: str = ""  # how the answer was checked before it was timed; "not checked: why"
    iterations: int = 0  # calls in a batch
    warmup: int = 0  # batches before the first sample
    steady: bool = True
    first_call_s: float | None = None
    series: tuple[Series, ...] = ()
    flags: tuple[str, ...] = ()  # texts of Flag, or of other tools
    facts: dict[str, Any] = field(default_factory=dict)  # facts of the case: kernel, bytes stored, error in dB …

    @property
    def key(self) -> tuple[str, str]:
        return self.case, self.arm

    def of(self, metric: str) -> Series | None:
        """The series of a metric, measured or not; None where nobody asked for it."""
        return next((s for s in self.series if s.metric == metric), None)

    @property
    def seconds(self) -> float | None:
        """The median wall time of a call."""
        wall = self.of("wall")
        return wall.median if wall else None

    @property
    def disturbed_rounds(self) -> tuple[int, int]:
        """The rounds that other load disturbed, and all that were timed."""
        wall = self.of("wall")
        return disturbed_rounds(self.flags, sum(map(len, wall.values)) if wall else 0)

    @property
    def items_per_s(self) -> float | None:
        return self.work.items / self.seconds if self.seconds else None

    @property
    def gflops(self) -> float | None:
        """1e9 operations a second; int8 operations where the work is integer."""
        return self.work.flops / self.seconds / 1e9 if self.seconds and self.work.flops else None

    @property
    def gbs(self) -> float | None:
        """1e9 bytes a second, each byte counted once."""
        return self.work.moved / self.seconds / 1e9 if self.seconds and self.work.moved else None


@checked_class
@dataclass(frozen=True)
class Plan:
    """Amount and rules of a measurement."""

    name: str = "default"
    generations: int = 15  # fresh processes; with a budget, at most
    rounds: int = 8  # in each generation: every arm once, in random order
    batches: int = 3  # in a row, of one arm in one round; their median is the value of the round
    least_batch_s: float = 0.001
    timeout_s: float = 60.0  # of one case on one arm, in one generation
    warmup_batches: int | None = None  # None: until two windows agree
    iterations: int | None = None  # calls in a batch; None: calibrated
    seed: int = 0
    threads: int | None = None  # None: all this process may use
    metrics: tuple[str, ...] = ("wall", "cpu", "peak_bytes")
    renew_s: float = 0.005  # a case made in less is made again, in other memory, for every round
    slow_s: float = 0.1  # an arm with longer calls gets one batch a round and one round a generation
    canary: bool = True  # measure, in every worker, work that no version changes
    gates: bool = True  # whether verdicts of it may fail a gate
    budget_s: float | None = None  # of the whole run, dealt to what is undecided; None: every case in every process


STEADY = 0.05  # half-width of an interval, and spread of canaries, above which a machine is noisy
GATING = 14  # fewer processes than this reach no p that a suite needs
LEAST_PROCESSES = 6  # fewer have no 95 % interval
IMPORTED = "imported"  # the plan of results that another tool measured
PLANS = {
    "quick": Plan("quick", generations=8, rounds=3, gates=False),
    "default": Plan(),
    "thorough": Plan("thorough", generations=28),
}


@dataclass(frozen=True)
class Machine:
    """One of several machines that measured parts of a suite."""

    name: str
    environment: Environment
    cases: tuple[str, ...]  # that it measured


@dataclass(frozen=True)
class Results:
    """A whole measurement: what results.json holds."""

    kind: str  # "compare", "bench", "regression", "baseline" …
    suite: str
    created: str  # UTC, ISO 8601
    command: str
    plan: Plan
    environment: Environment
    arms: tuple[str, ...]  # in the order they were asked for; the first is what the others are compared with
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()  # what was left out and why
    complete: bool = True  # False: interrupted, the rest of the runs is there
    elapsed_s: float = 0.0
    name: str = ""  # of a baseline
    description: str = ""
    committed: str = ""  # when the measured revision was committed; "": it is as new as the measurement
    schema: int = SCHEMA
    machines: tuple[Machine, ...] = ()  # of a measurement over several; the first measured in `environment`

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.case for run in self.runs))

    @property
    def process_s(self) -> float:
        """Seconds for a process of every contender, all cases in it; 0 where the file does not say."""
        processes = max((len(s.values) for run in self.runs for s in run.series), default=0)
        return self.elapsed_s / processes if processes else 0.0

    def of(self, case: str, arm: str) -> Run | None:
        return next((r for r in self.runs if r.case == case and r.arm == arm), None)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def _repr_html_(self) -> str:
        """Return the median time of each case and contender for a notebook."""
        rows = [[case, *(_time_text(self.of(case, arm)) for arm in self.arms)] for case in self.cases]
        notes = (*self.notes, *(() if self.complete else ("It was interrupted.",)))
        return escape.html_table(
            ["case", *self.arms], rows, title=f"{self.kind} {self.suite}", right=self.arms, below=notes
        )


def _time_text(run: Run | None) -> str:
    """Return the median time of a run, or why there is none."""
    if run is None:
        return ""
    return run.status if run.seconds is None else seconds_text(run.seconds)


def rounds_of(series: Series) -> tuple[tuple[float, ...], ...]:
    """The value of each round of each generation: the median of its batches."""
    return tuple(tuple(median(batches) for batches in generation if batches) for generation in series.values)


def values_of(series: Series) -> list[float]:
    """The values of all rounds in the order of time."""
    return list(chain.from_iterable(rounds_of(series)))


def process_spread(run: Run) -> float:
    """Return half the distance from the 10th to the 90th percentile of the processes' medians, relative to their median."""
    wall = run.of("wall")
    each = [median(rounds) for rounds in rounds_of(wall) if rounds] if wall is not None else []
    if len(each) < 2 or median(each) <= 0:
        return 0.0
    tenths = quantiles(each, n=10, method="inclusive")
    return (tenths[-1] - tenths[0]) / 2 / median(each)
