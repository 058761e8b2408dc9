"""The gate measured on this machine: how often it cries wolf over equal code, and how small a slow-down it finds.

Knows nothing of the command line. A/A: both arms run the same code. With `extra` one case of the second arm has that much
more work (rows, or outputs of a layer), so that what must be found is known.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tritium import settings
from tritium.errors import ArgumentError, FormatError
from tritium.machine import this_machine
from tritium.perf import files, records, stats, store
from tritium.perf.case import Arm, Case, Made, Recipe
from tritium.perf.context import Context
from tritium.perf.run import Plan
from tritium.perf.verdict import Rules, Suite

SCHEMA = 1
Progress = Callable[[int, int, str], None]
Gate = Callable[[Sequence[Case], Sequence[Arm], Plan, Rules], Suite]

# Operation: rows and columns. Extra work is more rows; of `bitlinear`, more outputs.
SHAPES = {
    "matmul": (200, 256),
    "add": (500, 512),
    "softmax": (200, 512),
    "rms_norm": (100, 2560),
    "bitlinear": (1000, 1024),
}


def work(candidate: str, *, operation: str, extra: float) -> Made:
    """The recipe: one operation of Tritium, with more of it for the arm "head"."""
    import tritium as tt

    rows, columns = SHAPES[operation]
    rows = round(rows * (1 + (extra if candidate == "head" else 0)))
    rng = np.random.default_rng(0)

    def random_tensor(*shape: int) -> Any:
        return tt.from_numpy(rng.random(shape, np.float32) - 0.5)

    if operation == "bitlinear":
        layer, x = tt.nn.BitLinear.from_float(rng.random((rows, columns), np.float32) - 0.5), random_tensor(4, columns)
        return Made(lambda: layer(x))
    a = random_tensor(rows, columns)
    if operation == "matmul":
        b = random_tensor(columns, columns)
        return Made(lambda: tt.matmul(a, b))
    if operation == "add":
        c = random_tensor(rows, columns)
        return Made(lambda: tt.add(a, c))
    function = {"softmax": tt.softmax, "rms_norm": tt.rms_norm}[operation]
    return Made(lambda: function(a))


def cases(slower: str = "", extra: float = 0.0) -> list[Case]:
    """The suite: five operations, one of them with extra work in the second arm."""
    return [
        Case(
            name, Recipe("tritium.perf.selftest:work", {"operation": name, "extra": extra if name == slower else 0.0}),
            Context(name, shape),
        )
        for name, shape in SHAPES.items()
    ]  # fmt: skip


ARMS = (Arm("base", "base"), Arm("head", "head"))


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
class Noise:
    """What equal code looked like here."""

    floor: float  # 5 % of the cases of equal code lie further from equal than this share
    suites: int
    cases: int
    machine: str
    plan: str
    measured_at: str
    schema: int = SCHEMA


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

    @property
    def wrong_verdicts(self) -> int:
        """Cases of A/A suites that were called SLOWER or FASTER."""
        return sum(o in ("SLOWER", "FASTER") for t in self.of(0.0) for o in t.outcomes.values())

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
    def smallest_detectable(self) -> float:
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
                f"  noise floor ±{self.floor:.2%}; margin {self.margin:.1%}; a slow-down of {self.smallest_detectable:.1%} is "
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
    gate: Gate, suites: int, plan: Plan, rules: Rules, *, extra: float = 0.0, journal: Path | None = None, seed: int = 0,
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
            trial = _trial(gate, number, plan, rules, extra, seed)
            trials.append(trial)
            if log is not None:
                log.append(records.plain(trial))
    except KeyboardInterrupt:
        notes = (f"interrupted after {sum(t.extra == extra for t in trials)} of {suites} suites",)
    finally:
        if log is not None:
            log.close()
    return Selftest(tuple(trials), rules.margin("wall"), notes)


def _trial(gate: Gate, number: int, plan: Plan, rules: Rules, extra: float, seed: int) -> Trial:
    rng = random.Random(f"{seed} {extra} {number}")
    slower = rng.choice(list(SHAPES)) if extra else ""
    began = time.monotonic()
    suite = gate(cases(slower, extra), ARMS, plan_with(plan, rng.randrange(1 << 30)), rules)
    wall = [v for v in suite.verdicts if v.metric == "wall"]
    return Trial(
        number, slower, extra, suite.exit_code, {v.case: v.outcome for v in wall},
        {v.case: v.ratio for v in wall if v.ratio is not None},
        {v.case: math.log(v.interval90[1] / v.interval90[0]) / 2 for v in wall if v.interval90 is not None},
        round(time.monotonic() - began, 2),
    )  # fmt: skip


def plan_with(plan: Plan, seed: int) -> Plan:
    from dataclasses import replace

    return replace(plan, seed=seed)


# ---- what is kept of it


def noise_file() -> Path:
    return settings.cache_dir() / f"noise-{this_machine().key}.json"


def keep(found: Selftest, plan: Plan) -> Path:
    """Write this machine's noise floor where the gates read it."""
    quiet = found.of(0.0)
    noise = Noise(
        found.floor, len(quiet), sum(len(t.ratios) for t in quiet), this_machine().key, plan.name,
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )  # fmt: skip
    return files.write_text(noise_file(), records.dumps(noise, indent=1), parents=True)


def noise_floor() -> float:
    """This machine's, from the last selftest; 0 where there was none."""
    path = noise_file()
    if not path.exists():
        return 0.0
    try:
        found = records.read(Noise, records.loads(path.read_bytes(), str(path)), str(path))
    except (FormatError, OSError) as error:
        settings.log.warning("%s; the noise floor is not used: run `tritium selftest --aa` again", error)
        return 0.0
    return found.floor if found.schema == SCHEMA and math.isfinite(found.floor) else 0.0
