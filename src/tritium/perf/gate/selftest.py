"""Self-test of the gate on this machine: its false-alarm rate on equal code, and the smallest slow-down it detects.

A/A: both contenders run the same code. With `extra` one case of the second contender has that much more work (rows, or
outputs of a layer), so that what must be detected is known.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tritium.errors import ArgumentError
from tritium.perf.gate import noise, regression
from tritium.perf.gate.selftest_cases import ARMS, SHAPES, cases
from tritium.perf.records import json_io as records
from tritium.perf.records.run import PLANS, Plan
from tritium.perf.stats import estimates as stats
from tritium.perf.store import results as store

Progress = Callable[[int, int, str], None]

ENOUGH = 5  # A/A suites needed for a noise floor
PLAN = replace(PLANS["default"], threads=1, metrics=("wall",))


@dataclass(frozen=True)
class Trial:
    """One suite: the case with extra work, and the gate's outcomes."""

    number: int
    slower: str  # "" in an A/A suite
    extra: float
    exit_code: int
    outcomes: dict[str, str]
    ratios: dict[str, float]
    widths: dict[str, float]  # half the 90 % interval, as a logarithm
    elapsed_s: float

    @property
    def alarm(self) -> bool:
        return self.exit_code == 1

    @property
    def detected(self) -> bool:
        return self.alarm and self.outcomes.get(self.slower) == "SLOWER"


@dataclass(frozen=True)
class Selftest:
    """All suites of a self-test."""

    trials: tuple[Trial, ...]
    margin: float
    notes: tuple[str, ...] = field(default=())

    def trials_with(self, extra: float) -> tuple[Trial, ...]:
        """Return the suites with this much extra work."""
        return tuple(t for t in self.trials if t.extra == extra)

    @property
    def false_alarms(self) -> tuple[int, int]:
        """Return the number of A/A suites that failed the gate, and the number of all of them."""
        quiet = self.trials_with(0.0)
        return sum(t.alarm for t in quiet), len(quiet)

    def share_of(self, outcome: str) -> tuple[int, int]:
        """Return the number of A/A cases with this outcome, and the number of all of them."""
        outcomes = [o for t in self.trials_with(0.0) for o in t.outcomes.values()]
        return outcomes.count(outcome), len(outcomes)

    def detected(self, extra: float) -> tuple[int, int]:
        """Return the number of suites whose extra work was detected, and the number of all of them."""
        trials = self.trials_with(extra)
        return sum(t.detected for t in trials), len(trials)

    @property
    def spread(self) -> float:
        """Return the standard deviation of an A/A log ratio about 0."""
        logs = [math.log(r) for t in self.trials_with(0.0) for r in t.ratios.values()]
        return math.sqrt(math.fsum(v * v for v in logs) / len(logs)) if logs else math.nan

    @property
    def floor(self) -> float:
        """Return the share beyond which 5 % of the cases of equal code are."""
        return math.expm1(1.96 * self.spread)

    @property
    def detected_nine_of_ten(self) -> float:
        """Return the slow-down detected nine times in ten: the margin plus what the spread may take away."""
        return (1 + self.margin) * math.exp(1.2816 * self.spread) - 1

    def page(self) -> str:
        """Return the summary for people."""
        lines = []
        alarms, quiet = self.false_alarms
        if quiet:
            low, high = stats.share_interval(alarms, quiet)
            lines += [
                f"equal code: {alarms} of {quiet} suites failed the gate ({low:.2%} … {high:.2%}, 95 %)",
                "  verdicts: " + ", ".join(
                    f"{self.share_of(o)[0] / self.share_of(o)[1]:.1%} {o}"
                    for o in ("EQUIVALENT", "CHANGED-SMALL", "INCONCLUSIVE", "SLOWER", "FASTER")
                    if self.share_of(o)[0]
                ),
                f"  noise floor ±{self.floor:.2%}; margin {self.margin:.1%}; a slow-down of {self.detected_nine_of_ten:.1%} is "
                "detected nine times in ten",
            ]  # fmt: skip
        for extra in sorted({t.extra for t in self.trials} - {0.0}):
            hits, count = self.detected(extra)
            low, high = stats.share_interval(hits, count)
            lines.append(
                f"{extra:.0%} extra work in one case: detected in {hits} of {count} suites ({low:.1%} … {high:.1%}, 95 %)"
            )
        times = [t.elapsed_s for t in self.trials]
        if times:
            lines.append(f"a suite of {len(SHAPES)} cases took {np.median(times):.1f} s (longest {max(times):.1f} s)")
        return "\n".join([*lines, *self.notes])


def selftest(
    suites: int, plan: Plan = PLAN, *, extra: float = 0.0, journal: Path | None = None, seed: int = 0,
    progress: Progress | None = None,
) -> Selftest:  # fmt: skip
    """Run suites through the gate; a journal stores each, so that the next call continues where this one ended."""
    if suites < 1 or not 0 <= extra < 10:
        raise ArgumentError(
            f"selftest: {suites} suites with {extra} extra work cannot be run; give 1 or more, and 0 to 10."
        )
    trials: list[Trial] = []
    if journal is not None and journal.exists():
        lines, _ = store.Journal.read(journal)
        trials = [records.read(Trial, r, str(journal)) for r in lines]
    log = store.Journal(journal) if journal is not None else None
    done = sum(t.extra == extra for t in trials)
    notes: tuple[str, ...] = ()
    try:
        for number in range(done, suites):
            if progress is not None:
                progress(number, suites, f"suite {number + 1} of {suites}")
            trial = _trial(number, plan, extra, seed)
            trials.append(trial)
            if log is not None:
                log.append(records.plain(trial))
    except KeyboardInterrupt:
        notes = (f"interrupted after {sum(t.extra == extra for t in trials)} of {suites} suites",)
    finally:
        if log is not None:
            log.close()
    margin = regression.rules_of(paired=True, known=noise.known()).margin("wall")
    return Selftest(tuple(trials), margin, notes)


def _trial(number: int, plan: Plan, extra: float, seed: int) -> Trial:
    """Run one suite through the whole gate, further looks and the confirmation included."""
    rng = random.Random(f"{seed} {extra} {number}")
    slower = rng.choice(list(SHAPES)) if extra else ""
    began = time.monotonic()
    seeded = replace(plan, seed=rng.randrange(1 << 30))
    gated = regression.regression_test(cases(slower, extra), ARMS, plan=seeded, suite="selftest")
    if not gated.results.complete:
        raise KeyboardInterrupt  # half a suite does not test the gate
    wall = [v for v in gated.suite.verdicts if v.metric == "wall"]
    return Trial(
        number, slower, extra, gated.suite.exit_code, {v.case: v.outcome for v in wall},
        {v.case: v.ratio for v in wall if v.ratio is not None},
        {v.case: math.log(v.interval90[1] / v.interval90[0]) / 2 for v in wall if v.interval90 is not None},
        round(time.monotonic() - began, 2),
    )  # fmt: skip


def keep(test: Selftest, plan: Plan = PLAN) -> Path:
    """Write this machine's noise floor to the file that the gates read."""
    quiet = test.trials_with(0.0)
    return noise.keep(test.floor, suites=len(quiet), cases=sum(len(t.ratios) for t in quiet), plan=plan.name)
