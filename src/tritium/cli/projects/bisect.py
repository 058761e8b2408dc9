"""The command `bisect`: the commit that made a project slower. It prints and sets exit codes.

tritium bisect v1..main --project . --build 'make' --command './run'
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tritium.cli.regression import BENCHMARK_FILES, options_of_a_project, project_of, share
from tritium.cli.text import Table, echo, file_errors, json_option, print_json, print_parts, say, shown

if TYPE_CHECKING:
    from tritium.perf.projects.bisect import Bisection
    from tritium.perf.revisions.git import Commit

NOT_NAMED = 4  # inconclusive, as for a gate
CODES = "Exit codes: 0 the commit is named, 2 usage or build, 4 not decided."


@click.command(epilog=CODES)
@click.argument("revisions", metavar="GOOD..BAD")
@options_of_a_project
@BENCHMARK_FILES
@click.option("--case", metavar="NAME", help="Benchmark or command to follow, if there are several.")
@click.option("--threshold", callback=share, metavar="SHARE", help="Least slowdown that is searched (default: 3 %).")
@click.option(
    "--metric", type=click.Choice(["wall", "cpu"]), default="wall", show_default=True, help="Time that is compared."
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all available).")
@json_option()
def bisect(
    revisions: str, project: str | None, build: str, command: tuple[str, ...], path: tuple[str, ...], load: tuple[str, ...],
    case: str | None, threshold: str | None, metric: str, threads: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Find the commit that made a project slower.

    A binary search along the first parents: 64 commits take 8 builds. The commit in question runs side by side with both ends
    until it is certain which of them it is as fast as.
    """
    from tritium.perf.projects import bisect as search
    from tritium.perf.projects.probe import ProjectProbe, case_named
    from tritium.perf.revisions import git, trees
    from tritium.perf.suites.config import fraction

    if ".." not in revisions:
        raise click.UsageError(
            f"{revisions!r}: a range is needed, as v1..main: a fast revision, two dots, and a slow one."
        )
    with file_errors():
        chosen = project_of(project or ".", build, command, path, load=load)
        commits = git.commits(chosen.root, revisions)
        followed = case_named(chosen, case)
        with trees.trees(chosen.root, build, lambda text: echo(shown(text), err=True)) as every:
            probe = ProjectProbe(chosen, every, followed, threads, metric)
            echo(
                f"{len(commits)} commits, about {2 + max(len(commits) - 2, 0).bit_length()} builds: {shown(followed.name)}",
                err=True,
            )
            outcome = search.bisect(
                [c.hash for c in commits], probe, margin=fraction(threshold) if threshold else search.MARGIN,
                report=lambda text: echo(shown(text), err=True),
            )  # fmt: skip
    if as_json:
        print_json(outcome)
    else:
        _tell(outcome, {c.hash: c for c in commits})
    sys.exit(0 if outcome.culprit else NOT_NAMED)


def _tell(outcome: Bisection, commits: dict[str, Commit]) -> None:
    subjects = {name: shown(c.subject) for name, c in commits.items()}
    rows = [
        [t.commit[:10], t.side, "" if t.ratio is None else f"{100 * (t.ratio - 1):+.1f} %", str(t.rounds or ""), subjects[t.commit]]
        for t in outcome.tests
    ]  # fmt: skip
    print_parts(Table(rows, ["commit", "side", "to the good end", "rounds", "message"]))
    low, high = (100 * (v - 1) for v in outcome.interval)
    whole = f"{100 * (outcome.ratio - 1):+.1f} % ({low:+.1f} … {high:+.1f} %, 95 %)"
    echo()
    if outcome.culprit:
        commit = commits[outcome.culprit]
        say(f"{commit.hash} is the first slow commit: {whole}, {outcome.builds} builds", "bold")
        echo(f"{commit.created}  {shown(commit.subject)}")
        return
    say(f"not decided: {shown(outcome.reason)}. The ends differ by {whole}.", "yellow")
    for name in outcome.suspects:
        echo(f"  {name[:10]}  {shown(commits[name].subject)}")
