"""Commands of histories of revisions: history run, machines, site and badge. They print.

tritium history run v1..main --project . --command './run'     measure many revisions; those measured before are kept
tritium history machines CASE                                  one case on all machines, side by side
tritium history site FOLDER                                    pages of all histories
tritium history badge FILE.svg                                 a picture of the last change
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.history import arm_of, opened
from tritium.cli.regression import BENCHMARK_FILES, options_of_a_project, project_of
from tritium.cli.text import (
    INTERRUPTED,
    Table,
    echo,
    file_errors,
    json_option,
    print_json,
    print_parts,
    processes_option,
    progress,
    say,
    shown,
)

if TYPE_CHECKING:
    from tritium.perf.projects.span import Measured
    from tritium.perf.revisions.git import Commit
    from tritium.perf.store.history import History

STORE = click.option(
    "--store",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder of the history (default: the user's, or the project's).",
)
PROJECT = click.option(
    "--project", type=click.Path(file_okay=False), metavar="DIR", help="History of this project (default: Tritium's)."
)


@click.command()
@click.argument("revisions", metavar="A..B")
@options_of_a_project
@BENCHMARK_FILES
@click.option("--suite", metavar="NAME", help="A suite of Tritium, for a checkout of Tritium.")
@click.option("--most", type=click.IntRange(2), metavar="N", help="At most N revisions, evenly spaced.")
@click.option(
    "--together", type=click.IntRange(1), default=8, show_default=True, help="Revisions that are interleaved."
)
@processes_option(2, "Fresh processes per revision.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all available).")
@click.option("--again", is_flag=True, help="Measure revisions that the history has, too.")
@STORE
@json_option()
def run(
    revisions: str, project: str | None, build: str, command: tuple[str, ...], path: tuple[str, ...], load: tuple[str, ...],
    suite: str | None, most: int | None, together: int, generations: int | None, threads: int | None, again: bool,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure many revisions of a project.

    A..B is A and every commit after it up to B, along the first parents. Those that the history has from this machine are not
    measured again, so that a second call fills in what is missing.
    """
    from tritium.perf.projects.span import chosen, run_range
    from tritium.perf.revisions import git
    from tritium.perf.suites import suites

    with file_errors():
        options = suites.options_of(suite or "regression", devices=["cpu"]).changed(
            generations=generations, threads=threads
        )
        own = project_of(project or ".", build, command, path, load=load, suite=suite, options=options)
        commits = git.commits(own.root, revisions)
        picked = chosen(commits, most)
        with opened(store, project or ".") as history, progress(own.summary(options.plan, len(picked))) as report:
            measured = run_range(
                own, picked, history, options.plan, again=again, together=together, progress=report,
                report=lambda text: echo(shown(text), err=True),
            )  # fmt: skip
            steps = [] if as_json else _changes(history, [c.name for c in own.cases], {c.hash: c for c in commits})
    if as_json:
        print_json(measured)
    else:
        _tell(measured, len(picked), {c.hash: c for c in commits})
        print_parts(Table(steps, ["changed", "case", "from", "message"])) if steps else echo(
            "no change point in these histories"
        )
    sys.exit(INTERRUPTED if not measured.complete else 0 if measured.runs or measured.known else 2)


def _tell(measured: Measured, count: int, commits: dict[str, Commit]) -> None:
    echo(f"{len(measured.runs)} of {count} revisions measured, {len(measured.known)} were known")
    for name, why in measured.failures.items():
        say(f"left out: {name[:10]} {shown(commits[name].subject)}: {shown(why)}", "yellow")


def _changes(history: History, cases: list[str], commits: dict[str, Commit]) -> list[list[str]]:
    """Return a row for each change point of the cases, the largest first."""
    from tritium.perf.projects.span import ARM

    steps = [(step, case) for case in cases for step in history.changes(case, "wall", ARM)]
    subjects = {name: shown(c.subject) for name, c in commits.items()}
    steps.sort(key=lambda pair: -abs(math.log(pair[0].ratio)))
    return [
        [f"{100 * (s.ratio - 1):+.1f} %", shown(case), s.point.commit[:10], subjects.get(s.point.commit, "")]
        for s, case in steps
    ]  # fmt: skip


@click.command()
@click.argument("case")
@click.option("--metric", default="wall", show_default=True, help="Metric.")
@click.option("--arm", help="Contender (default: the one there is).")
@PROJECT
@STORE
@json_option()
def machines(case: str, metric: str, arm: str | None, project: str | None, store: str | None, as_json: bool) -> None:
    """Show one case on all machines, side by side.

    Runs of other machines are files: copy them into the history with --add, or into its folder.
    """
    from tritium.perf.gate.page import amount
    from tritium.perf.store.machines import beside

    with file_errors(), opened(store, project) as history:
        table = beside(history, case, metric, arm_of(history, case, arm))
    if as_json:
        print_json(table)
        return
    rows = [
        [shown(row.commit[:10]), row.created[:16].replace("T", " "), *("" if v is None else amount(v, table.unit) for v in row.values)]
        for row in table.rows
    ]  # fmt: skip
    print_parts(Table(rows, ["commit", "when", *(shown(m.label) for m in table.machines)]))
    for m in table.machines:
        echo(f"{shown(m.label)}: {shown(m.cpu)}, {m.threads} threads, {m.runs} runs, {m.changes} change points")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--title", help="Title of the site (default: the project's name).")
@PROJECT
@STORE
@click.option("--metric", "metrics", multiple=True, default=("wall",), show_default=True, help="Metric; repeatable.")
@json_option()
def site(
    folder: str, title: str | None, project: str | None, store: str | None, metrics: tuple[str, ...], as_json: bool
) -> None:
    """Write pages of all histories into a folder.

    It holds an overview, a page for every case, badges and the data; it works from a file, from any web server and from GitHub
    Pages, and needs no network.
    """
    from tritium.see.histories.site import write_site

    name = title or (Path(project).resolve().name if project else "Tritium")
    with file_errors(), opened(store, project) as history:
        written = write_site(history, Path(folder), name, metrics)
    if as_json:
        print_json({"folder": folder, "pages": written.pages, "cases": written.cases, "bytes": written.size})
    else:
        echo(
            f"written: {shown(str(Path(folder) / 'index.html'))}, {written.pages} pages of {written.cases} histories, "
            f"{written.size / 1e6:.1f} MB"
        )


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--case", metavar="NAME", help="Case (default: all of them together).")
@click.option("--metric", default="wall", show_default=True, help="Metric.")
@click.option("--arm", help="Contender (default: the one there is).")
@click.option("--label", default="performance", show_default=True, help="Text on the left.")
@PROJECT
@STORE
@json_option()
def badge(file: str, **options: Any) -> None:
    """Write a badge (SVG): the last level against the best of 90 days."""
    from tritium.machine.files import write_text
    from tritium.see.histories.badge import overall, state_of, svg

    with file_errors(), opened(options["store"], options["project"]) as history:
        if options["case"]:
            arm = arm_of(history, options["case"], options["arm"])
            trend = history.trend(options["case"], options["metric"], arm)
            state = state_of(trend)
        else:
            state = overall(history, options["metric"])
        write_text(file, svg(options["label"], state.text, state.tone), parents=True)
    if options["as_json"]:
        print_json({"path": file, "text": state.text, "tone": state.tone})
    else:
        echo(f"written: {shown(file)}: {options['label']} {state.text}")
