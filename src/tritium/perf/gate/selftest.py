"""The gate measured on this machine: how often it cries wolf over equal code, and how small a slow-down it finds.

Knows nothing of the command line. A/A: both arms run the same code. With `extra` one case of the second arm has that much
more work (rows, or outputs of a layer), so that what must be found is known.
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

ENOUGH = 5  # A/A suites from which on a noise floor is believed
PLAN = replace(PLANS["default"], threads=1, metrics=("wall",))


@dataclass(frozen=True)
class Trial:
    """One suite: which case had extra work, and what the gate said."""

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
    def found(self) -> bool:
        return self.alarm and self.outcomes.get(self.slower) == "SLOWER"


@dataclass(frozen=True)
class Selftest:
    """All suites together."""

    trials: tuple[Trial, ...]
    margin: float
    notes: tuple[str, ...] = field(default=())

    def of(self, extra: float) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if t.extra == extra)

    @property
    def false_alarms(self) -> tuple[int, int]:
        """A/A suites that failed the gate, of all of them."""
        quiet = self.of(0.0)
        return sum(t.alarm for t in quiet), len(quiet)

    def share_of(self, outcome: str) -> tuple[int, int]:
        """Cases of A/A suites with this outcome, of all of them."""
        found = [o for t in self.of(0.0) for o in t.outcomes.values()]
        return found.count(outcome), len(found)

    def detected(self, extra: float) -> tuple[int, int]:
        found = self.of(extra)
        return sum(t.found for t in found), len(found)

    @property
    def spread(self) -> float:
        """The standard deviation of an A/A log ratio about 0."""
        logs = [math.log(r) for t in self.of(0.0) for r in t.ratios.values()]
        return math.sqrt(math.fsum(v * v for v in logs) / len(logs)) if logs else math.nan

    @property
    def floor(self) -> float:
        """Beyond it 5 % of the cases of equal code lie."""
        return math.expm1(1.96 * self.spread)

    @property
    def found_nine_of_ten(self) -> float:
        """The slow-down found nine times of ten: beyond the margin by what the spread may take away."""
        return (1 + self.margin) * math.exp(1.2816 * self.spread) - 1

    def page(self) -> str:
        """For people."""
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
                f"  noise floor ±{self.floor:.2%}; margin {self.margin:.1%}; a slow-down of {self.found_nine_of_ten:.1%} is "
                "found nine times of ten",
            ]  # fmt: skip
        for extra in sorted({t.extra for t in self.trials} - {0.0}):
            found, of = self.detected(extra)
            low, high = stats.share_interval(found, of)
            lines.append(
                f"{extra:.0%} extra work in one case: found in {found} of {of} suites ({low:.1%} … {high:.1%}, 95 %)"
            )
        times = [t.elapsed_s for t in self.trials]
        if times:
            lines.append(f"a suite of {len(SHAPES)} cases took {np.median(times):.1f} s (longest {max(times):.1f} s)")
        return "\n".join([*lines, *self.notes])


def selftest(
    suites: int, plan: Plan = PLAN, *, extra: float = 0.0, journal: Path | None = None, seed: int = 0,
    progress: Progress | None = None,
) -> Selftest:  # fmt: skip
    """Run that many suites through the gate; a journal keeps each, so that the next call goes on where this one ended."""
    if suites < 1 or not 0 <= extra < 10:
        raise ArgumentError(
            f"selftest: {suites} suites with {extra} extra work cannot be run; give 1 or more, and 0 to 10."
        )
    trials: list[Trial] = []
    if journal is not None and journal.exists():
        found, _ = store.Journal.read(journal)
        trials = [records.read(Trial, r, str(journal)) for r in found]
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
    margin = regression.rules_of(paired=True, noise_floor=noise.noise_floor()).margin("wall")
    return Selftest(tuple(trials), margin, notes)


def _trial(number: int, plan: Plan, extra: float, seed: int) -> Trial:
    """One suite through the whole gate: further looks and the confirmation included."""
    rng = random.Random(f"{seed} {extra} {number}")
    slower = rng.choice(list(SHAPES)) if extra else ""
    began = time.monotonic()
    asked = replace(plan, seed=rng.randrange(1 << 30))
    gated = regression.regression_test(cases(slower, extra), ARMS, plan=asked, suite="selftest")
    if not gated.results.complete:
        raise KeyboardInterrupt  # half a suite says nothing of the gate
    wall = [v for v in gated.suite.verdicts if v.metric == "wall"]
    return Trial(
        number, slower, extra, gated.suite.exit_code, {v.case: v.outcome for v in wall},
        {v.case: v.ratio for v in wall if v.ratio is not None},
        {v.case: math.log(v.interval90[1] / v.interval90[0]) / 2 for v in wall if v.interval90 is not None},
        round(time.monotonic() - began, 2),
    )  # fmt: skip


def keep(found: Selftest, plan: Plan = PLAN) -> Path:
    """Write this machine's noise floor where the gates read it."""
    quiet = found.of(0.0)
    return noise.keep(found.floor, suites=len(quiet), cases=sum(len(t.ratios) for t in quiet), plan=plan.name)
