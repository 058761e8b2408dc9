"""The probe of a bisection for a project: its commits built in trees of their own, and measured side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tritium.errors import ArgumentError, BuildError, nearest
from tritium.perf.projects.project import Project
from tritium.perf.records.case import Case
from tritium.perf.records.run import Plan, Results
from tritium.perf.revisions.trees import Trees

RUNS = 5  # of a program in a round; the fastest counts, because other load only ever makes a run slower


def case_named(project: Project, name: str | None) -> Case:
    """Return the case of a project that is searched: the one that was named, or the only one."""
    names = [case.name for case in project.cases]
    if name is None and len(names) == 1:
        return project.cases[0]
    if name not in names:
        known = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        hint = nearest(name, names) if name is not None else " Name one with --case."
        raise ArgumentError(f"bisect follows one case, and {len(names)} can be measured: {known}.{hint}")
    return project.cases[names.index(name)]


@dataclass
class ProjectProbe:
    """Commits of a project, for `bisect`."""

    project: Project
    trees: Trees
    case: Case
    threads: int | None = None
    metric: str = "wall"  # or "cpu", which other load disturbs less

    def prepare(self, commit: str) -> None:
        """Check out and build a commit."""
        self.trees.tree(commit)

    def release(self, commit: str) -> None:
        """Remove the tree of a commit."""
        self.trees.release(commit)

    def measure(self, commits: Sequence[str], rounds: int, look: int) -> list[list[float]]:
        """Return the log seconds of each commit, round by round; BuildError where one of them does not run."""
        plan = Plan(
            "bisect", rounds, 2, 3, iterations=rounds * RUNS if self.project.programs else None, threads=self.threads,
            metrics=("wall", "cpu"), canary=False,
        )  # fmt: skip
        built = {commit: self.trees.tree(commit) for commit in commits}
        results = self.project.measure(built, plan, cases=[self.case], seed=1000 * look, kind="bisect")
        if not results.complete:
            raise KeyboardInterrupt
        columns = [self._logs(results, commit) for commit in commits]
        return [list(row) for row in zip(*columns, strict=False)]

    def _logs(self, results: Results, commit: str) -> list[float]:
        run = results.of(self.case.name, commit)
        series = run.of(self.metric) if run is not None and run.status == "ok" else None
        if run is None or series is None:
            why = f"{run.status}: {run.reason}" if run is not None else "nothing was measured"
            raise BuildError(f"{commit[:12]}: {self.case.name} does not run: {why}")
        return [math.log(min(v for batches in process for v in batches)) for process in series.values if process]
