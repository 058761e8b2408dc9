"""Many revisions of a project measured in one go: what the history has already is not measured again.

Revisions are interleaved in groups, so that drift of the machine moves neighbours alike. Every revision becomes a run of
its own in the history, dated by its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tritium.errors import ArgumentError, BuildError
from tritium.machine.facts import usable_threads
from tritium.perf.projects.project import Project
from tritium.perf.records.environment import this_environment
from tritium.perf.records.run import PLANS, Plan, Results
from tritium.perf.revisions.git import Commit
from tritium.perf.revisions.trees import Tree, trees

if TYPE_CHECKING:
    from tritium.perf.engine.measuring import Progress
    from tritium.perf.store.history import History

ARM = "project"  # the contender of a revision in the history
TOGETHER = 8  # revisions that are interleaved


@dataclass(frozen=True)
class Measured:
    """The revisions of a range: measured, known before, or failed."""

    runs: dict[str, str]  # commit: the run in the history
    known: tuple[Commit, ...]  # measured before on this machine
    failures: dict[str, str]  # commit: why it could not be built or measured
    complete: bool = True


def chosen(commits: Sequence[Commit], most: int | None) -> tuple[Commit, ...]:
    """Return at most so many commits, evenly spaced, with the first and the last."""
    if most is not None and most < 2:
        raise ArgumentError(f"--most is {most}; 2 or more revisions make a history.")
    if most is None or len(commits) <= most:
        return tuple(commits)
    places = {round(i * (len(commits) - 1) / (most - 1)) for i in range(most)}
    return tuple(commits[i] for i in sorted(places))


def known(
    history: History, project: Project, commits: Sequence[Commit], threads: int | None = None
) -> tuple[Commit, ...]:
    """Return the commits whose every case the history has from this machine."""
    machine = this_environment(threads or usable_threads(), limits=False).hard.key
    present: set[str] | None = None
    for case in project.cases:
        points = {p.commit for p in history.series(case.name, "wall", ARM) if p.fingerprint == machine}
        present = points if present is None else present & points
    return tuple(c for c in commits if present and c.hash in present)


def run_range(
    project: Project, commits: Sequence[Commit], history: History, plan: Plan = PLANS["default"], *, again: bool = False,
    together: int = TOGETHER, report: Callable[[str], None] = lambda _: None, progress: Progress | None = None,
) -> Measured:  # fmt: skip
    """Measure the commits that the history lacks, in groups, and keep each as a run. A build that fails is told and left out."""
    before = () if again else known(history, project, commits, plan.threads)
    missing = [c for c in commits if c not in before]
    runs: dict[str, str] = {}
    failures: dict[str, str] = {}
    complete = True
    with trees(project.root, project.build, report) as every:
        for group in _groups(missing, together):
            built: dict[str, Tree] = {}
            for commit in group:
                try:
                    built[commit.hash] = every.tree(commit.hash, f"{commit.short} {commit.subject}"[:60])
                except BuildError as error:
                    failures[commit.hash] = str(error)
            results = project.measure(built, plan, kind="history", progress=progress) if built else None
            for commit in group:
                if results is not None and commit.hash in built:
                    _keep(project, results, commit, history, runs, failures)
                every.release(commit.hash)
            complete = results is None or results.complete
            if not complete:
                break
    return Measured(runs, before, failures, complete)


def _groups(commits: Sequence[Commit], size: int) -> Iterator[Sequence[Commit]]:
    """Yield groups of about equal size, in order."""
    count = -(-len(commits) // max(size, 1))
    for i in range(count):
        yield commits[i * len(commits) // count : (i + 1) * len(commits) // count]


def _keep(
    project: Project, results: Results, commit: Commit, history: History, runs: dict[str, str], failures: dict[str, str]
) -> None:
    own = revision_of(project, results, commit)
    if any(run.status == "ok" for run in own):
        runs[commit.hash] = history.add(own)
        return
    reasons = [run.reason or run.status for run in own]
    failures[commit.hash] = reasons[0] if reasons else "nothing was measured"


def revision_of(project: Project, results: Results, commit: Commit) -> Results:
    """Return what was measured of one revision, as if it had been measured alone."""
    runs = tuple(replace(run, arm=ARM) for run in results if run.arm == commit.hash)
    alone = replace(results, arms=(ARM,), runs=runs)
    return project.recorded(alone, commit.hash, committed=commit.created)
