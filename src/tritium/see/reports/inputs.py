"""What a report is made from: results, verdicts, trends, a profile, tracked memory; and what is derived of them.

Knows nothing of how a page looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tritium import escape
from tritium.perf.gate.verdict import Suite, Verdict
from tritium.perf.records.run import Results, Run
from tritium.perf.tables import tables
from tritium.perf.work.canary import is_canary
from tritium.see.reports.blocks import Tone

if TYPE_CHECKING:
    from tritium.perf.gate.selftest import Selftest
    from tritium.perf.store.trends import Trend
    from tritium.see.memory.file import Memory
    from tritium.see.profile.profile import Profile

TONES: dict[str, Tone] = {
    "SLOWER": "bad", "MISSING": "bad", "NOT COMPARABLE": "unsure", "INCONCLUSIVE": "unsure", "CHANGED-SMALL": "unsure",
    "FASTER": "good", "EQUIVALENT": "fine",
}  # fmt: skip
WORDS = {
    "SLOWER": "slower", "MISSING": "missing", "NOT COMPARABLE": "not comparable", "INCONCLUSIVE": "inconclusive",
    "CHANGED-SMALL": "changed a little", "FASTER": "faster", "EQUIVALENT": "equivalent",
}  # fmt: skip
IMPORTED = "import"  # kind of results that others measured
FALSE_SHARE = 0.05  # of coloured differences that may be none: Benjamini-Hochberg


@dataclass(frozen=True, eq=False)
class Given:
    """Everything a report may tell of. Only the results must be there."""

    results: Results
    verdicts: Suite | None = None
    baseline: Results | None = None
    trends: Mapping[tuple[str, str], Trend] = field(default_factory=dict)  # of a case on an arm
    profile: Profile | None = None
    before: Profile | None = None  # the profile it is compared with
    memory: Memory | None = None  # of a tracked run
    selftest: Selftest | None = None
    no_history: str = ""  # why a history that was asked for shows nothing
    sha256: str = ""  # in the file of the results; "": they came from no such file

    @property
    def imported(self) -> bool:
        """Measured by others: the plan, the command and the threads are not known."""
        return self.results.kind == IMPORTED

    @cached_property
    def cases(self) -> tuple[str, ...]:
        return tuple(case for case in self.results.cases if not is_canary(case))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for run in self.results.runs if not is_canary(run.case))

    @cached_property
    def by_key(self) -> dict[tuple[str, str], Run]:
        return {run.key: run for run in reversed(self.results.runs)}

    def of(self, case: str, arm: str) -> Run | None:
        return self.by_key.get((case, arm))

    @cached_property
    def revisions(self) -> tuple[str, str] | None:
        """The arms of the old and the new revision, where the verdicts are of two in one measurement."""
        judged = self.verdicts.verdicts if self.verdicts is not None else ()
        return next(((v.base_arm, v.arm) for v in judged if v.base_arm != v.arm), None)

    @property
    def first(self) -> str:
        """The arm the page speaks of: the one the others stand beside; of two revisions the new one."""
        if self.revisions is not None:
            return self.revisions[1]
        return self.results.arms[0] if self.results.arms else ""

    @cached_property
    def beside(self) -> dict[str, Suite]:
        """For each other arm, how the first compares with it; ratios are first / other. None where arms are revisions."""
        return {} if self.revisions is not None else tables.speedups(self.results)

    @cached_property
    def against(self) -> dict[tuple[str, str], Verdict]:
        """The verdict of a case beside another arm."""
        return {(v.case, arm): v for arm, s in self.beside.items() for v in s.verdicts if v.metric == "wall"}

    @cached_property
    def judged(self) -> dict[str, tuple[Verdict, ...]]:
        """The gate's verdicts of each case."""
        out: dict[str, list[Verdict]] = {}
        for v in self.verdicts.verdicts if self.verdicts is not None else ():
            out.setdefault(v.case, []).append(v)
        return {case: tuple(found) for case, found in out.items()}


def anchor(case: str) -> str:
    """The place of a case on the page."""
    return "case-" + escape.file_name(case)


def standing(v: Verdict | None) -> str:
    """How the first arm stands beside another: an outcome by its interval and by the share of false differences allowed."""
    if v is None or v.ratio is None:
        return "MISSING" if v is not None and v.outcome == "MISSING" else ""
    between = tables.told_apart(v.interval95)
    if between is None or between[0] <= 1 <= between[1] or (v.q is not None and v.q > FALSE_SHARE):
        return "INCONCLUSIVE"
    return "FASTER" if v.ratio < 1 else "SLOWER"


def share(run: Run, results: Results) -> float | None:
    """The least time the machine's ceilings allow to the time it took; None where they are not known."""
    limits, seconds = results.environment.limits, run.seconds
    if limits is None or not seconds or run.status != "ok" or not (run.work.flops or run.work.moved):
        return None
    least = limits.least_s(run.work.flops, run.work.moved, run.work.integer)
    return None if least is None else least / seconds


def half_widths(given: Given) -> list[float]:
    """Half the interval of every time, as a share of it."""
    walls = [wall for run in given.runs if (wall := run.of("wall")) is not None and wall.median]
    found = [(wall.median, tables.time_interval(wall)) for wall in walls]
    return [(between[1] - between[0]) / 2 / middle for middle, between in found if between is not None and middle]
