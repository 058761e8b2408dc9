"""The inputs of a report: results, verdicts, trends, a profile, tracked memory; and figures derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tritium import escape
from tritium.perf.gate.verdict import Suite, Verdict, half_width
from tritium.perf.records.run import Results, Run
from tritium.perf.tables import pages, tables
from tritium.perf.tables.pages import Findings
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
IMPORTED = "import"  # kind of results that another tool measured


@dataclass(frozen=True, eq=False)
class Inputs:
    """All inputs of a report. Only the results are required."""

    results: Results
    verdicts: Suite | None = None
    baseline: Results | None = None
    trends: Mapping[tuple[str, str], Trend] = field(default_factory=dict)  # by case and contender
    profile: Profile | None = None
    before: Profile | None = None  # the profile it is compared with
    memory: Memory | None = None  # of a tracked run
    selftest: Selftest | None = None
    no_history: str = ""  # why a requested history is empty
    sha256: str = ""  # stored in the results file; "": they came from no such file

    @property
    def imported(self) -> bool:
        """Return True if another tool measured: the plan, the command and the threads are unknown."""
        return self.results.kind == IMPORTED

    @cached_property
    def cases(self) -> tuple[str, ...]:
        return tuple(case for case in self.results.cases if not is_canary(case))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for run in self.results.runs if not is_canary(run.case))

    @cached_property
    def noise(self) -> str:
        """Return how noisy the machine was."""
        return tables.noise(self.results, self.comparisons)

    @cached_property
    def disturbed(self) -> frozenset[tuple[str, str]]:
        """Return the cells that other load disturbed unusually often."""
        return tables.disturbed_cells(self.results)

    def mark(self, case: str, *arms: str) -> str:
        """Return the mark of a row in which one of these cells was disturbed, "" for any other."""
        return tables.MARK if any((case, arm) in self.disturbed for arm in arms) else ""

    @cached_property
    def by_key(self) -> dict[tuple[str, str], Run]:
        return {run.key: run for run in reversed(self.results.runs)}

    def run_of(self, case: str, arm: str) -> Run | None:
        return self.by_key.get((case, arm))

    @cached_property
    def revisions(self) -> tuple[str, str] | None:
        """Return the contenders of the old and the new revision, where one measurement compares two."""
        verdicts = self.verdicts.verdicts if self.verdicts is not None else ()
        return next(((v.base_arm, v.arm) for v in verdicts if v.base_arm != v.arm), None)

    @property
    def first(self) -> str:
        """Return the contender that the others are compared with; of two revisions the new one."""
        if self.revisions is not None:
            return self.revisions[1]
        return self.results.arms[0] if self.results.arms else ""

    @cached_property
    def comparisons(self) -> dict[str, Suite]:
        """Return the comparison with each other contender; ratios are first / other. Empty for two revisions."""
        return {} if self.revisions is not None else tables.speedups(self.results)

    @cached_property
    def findings(self) -> Findings:
        """Return what the suite shows besides its comparison; the page has a section of crossovers."""
        return pages.findings_of(self.results, crossovers=False)

    @cached_property
    def time_verdicts(self) -> dict[tuple[str, str], Verdict]:
        """Return the time verdicts by case and other contender."""
        return {(v.case, arm): v for arm, s in self.comparisons.items() for v in s.verdicts if v.metric == "wall"}

    @cached_property
    def gate_verdicts(self) -> dict[str, tuple[Verdict, ...]]:
        """Return the gate's verdicts by case."""
        out: dict[str, list[Verdict]] = {}
        for v in self.verdicts.verdicts if self.verdicts is not None else ():
            out.setdefault(v.case, []).append(v)
        return {case: tuple(verdicts) for case, verdicts in out.items()}


def anchor(case: str) -> str:
    """Return the anchor of a case on the page."""
    return "case-" + escape.file_name(case)


def share(run: Run, results: Results) -> float | None:
    """Return the least time by the machine's ceilings, divided by the actual time; None where they are unknown."""
    limits, seconds = results.environment.limits, run.seconds
    if limits is None or not seconds or run.status != "ok" or not (run.work.flops or run.work.moved):
        return None
    least = limits.least_s(run.work.flops, run.work.moved, run.work.integer)
    return None if least is None else least / seconds


def half_widths(inputs: Inputs) -> list[float]:
    """Return half the interval of every time, as a share of it."""
    return [half_width(interval) for interval in tables.time_intervals(inputs.results)]
