"""The commands of what is kept: baseline and history. They print.

tritium baseline create | list | show | promote     results kept under a name
tritium history [CASE]                              runs of this machine over time, and where they changed
tritium history run | machines | site | badge       in `cli.projects.history`
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.text import (
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
from tritium.errors import nearest

if TYPE_CHECKING:
    from tritium.perf.records.run import Results
    from tritium.perf.store.history import History


# ---- baselines


@click.group()
def baseline() -> None:
    """Manage named baselines. Every version is kept."""


@baseline.command(name="create")
@click.argument("name")
@click.argument("results", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--description", default="", help="Description, for people.")
@click.option(
    "--suite",
    default="regression",
    show_default=True,
    metavar="NAME",
    help="Suite to measure if RESULTS is not given.",
)
@processes_option(2, "Fresh processes per contender.")
@click.option("--thorough", is_flag=True, help="Twice the processes.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all available).")
@click.option("--release", is_flag=True, help="Mark as a release, which history compares with.")
@click.option("--force", is_flag=True, help="Add a version if the name exists.")
@json_option()
def create(
    name: str, results: str | None, description: str, release: bool, force: bool, as_json: bool, **parameters: Any
) -> None:
    """Store RESULTS under NAME.

    RESULTS is a file of tritium compare or bench; without it, a suite is measured now.
    """
    from tritium.perf.store import baseline as baselines, results as store

    baselines.check_name(name)
    with file_errors():
        measured = store.load(results) if results else _measure(**parameters)
        version = baselines.create(name, measured, description, force=force, release=release)
    if as_json:
        print_json(version)
    else:
        echo(f"{shown(version.label)}: {version.runs} runs, measured {shown(version.created)}")
    if not measured.plan.gates:
        text = "these are quick results: what is compared with them is inconclusive. Measure without --quick."
        say(text, "yellow", err=True)


def _measure(suite: str, thorough: bool, **values: Any) -> Results:
    from tritium.perf.suites import suites

    options = suites.options_of(suite, thorough=thorough).changed(**values)
    grid = suites.grid(options)
    with progress(grid.summary(options.plan)) as report:
        return suites.measure(options, grid, kind="baseline", progress=report)


@baseline.command(name="list")
@json_option()
def list_baselines(as_json: bool) -> None:
    """List the newest version of every baseline."""
    from tritium.perf.store import baseline as baselines

    versions = baselines.list()
    if as_json:
        print_json(versions)
        return
    echo(
        baselines.page(versions)
        if versions
        else "no baselines yet; make one: tritium baseline create NAME results.json"
    )


@baseline.command()
@click.argument("name")
@json_option()
def show(name: str, as_json: bool) -> None:
    """List the versions of a baseline, oldest first."""
    from tritium.perf.store import baseline as baselines

    versions = baselines.show(name)
    if as_json:
        print_json(versions)
    else:
        echo(baselines.page(versions))


@baseline.command()
@click.argument("name")
@click.option("--to", default="stable", show_default=True, help="The other name.")
@click.option("--release", is_flag=True, help="Mark as a release.")
@json_option()
def promote(name: str, to: str, release: bool, as_json: bool) -> None:
    """Store NAME or NAME@VERSION under another name too."""
    from tritium.perf.store import baseline as baselines

    with file_errors():
        version = baselines.promote(name, to, release=release)
    if as_json:
        print_json(version)
    else:
        echo(f"{shown(version.label)}: promoted from {shown(name)}")


# ---- history


LATER = {"run": "run", "machines": "machines", "site": "site", "badge": "badge"}
DOCS = {
    "run": "Measure many revisions of a project.",
    "machines": "Show one case on all machines, side by side.",
    "site": "Write pages of all histories into a folder.",
    "badge": "Write a badge (SVG): the last level against the best of 90 days.",
}


class Histories(click.Group):
    """`history run …` and others; `history CASE` and `history` alone show what is stored."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Take everything that is no command of the group for the arguments of `show`."""
        if not args or (args[0] not in (*LATER, "show") and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        return super().parse_args(context, args)

    def list_commands(self, context: click.Context) -> list[str]:
        return ["show", *LATER]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in LATER:
            return super().get_command(context, name)
        from importlib import import_module

        command: click.Command = getattr(import_module("tritium.cli.projects.history"), LATER[name])
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([("[show] [CASE]", "List the stored runs, or one case over time."), *DOCS.items()])


@click.group(cls=Histories, context_settings={"help_option_names": ["-h", "--help"]})
def history() -> None:
    """Measure, list and publish histories.

    Without a command, list the stored runs. With a CASE: its values over time, where they changed, and against the last release.
    """


@history.command(name="show")
@click.argument("case", required=False)
@click.option("--metric", default="wall", show_default=True, help="Metric.")
@click.option("--arm", help="Contender (default: tritium, or the one there is).")
@click.option("--add", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Add a results file first.")
@click.option("--rebuild", is_flag=True, help="Rebuild the index from the run files.")
@click.option(
    "--project", type=click.Path(file_okay=False), metavar="DIR", help="History of this project (default: Tritium's)."
)
@click.option("--store", type=click.Path(file_okay=False), metavar="DIR", help="Folder of the history.")
@json_option()
def show_history(
    case: str | None, metric: str, arm: str | None, add: str | None, rebuild: bool, project: str | None, store: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """List the stored runs. With a CASE: its values over time, where they changed, and against the last release."""
    from tritium.perf.store import results

    with file_errors(), opened(store, project) as history_store:
        if add:
            echo(f"kept as {history_store.add(results.load(add))}", err=True)
        if rebuild:
            echo(f"{history_store.rebuild()} runs indexed", err=True)
        for name, why in history_store.unreadable.items():
            echo(f"left out: {shown(name)}: {shown(why)}", err=True)
        if case is None:
            _list_runs(history_store, as_json)
        else:
            _show_case(history_store, case, metric, arm_of(history_store, case, arm), as_json)


def opened(store: str | None, project: str | None) -> History:
    """Return a history: in a folder, of a project, or Tritium's own on this machine."""
    from tritium.perf.revisions.trees import project_root
    from tritium.perf.store.history import History, project_folder

    folder = Path(store) if store else project_folder(project_root(project)) if project else None
    return History(folder)


def arm_of(history: History, case: str, arm: str | None) -> str:
    """Return the contender that was named; else tritium, or the first that the case has."""
    if arm is not None:
        return arm
    arms = [a for c, _, a in history.cases() if c == case]
    return "tritium" if "tritium" in arms or not arms else arms[0]


def _list_runs(history: History, as_json: bool) -> None:
    from tritium.perf.records import json_io as records
    from tritium.perf.work.canary import is_canary

    runs = history.runs()
    if as_json:
        rows = [records.plain({**vars(r), "path": str(r.path)}) for r in runs]
        click.echo(records.dumps(rows, indent=2, ascii_only=True))
        return
    if not runs:
        echo("no runs yet; tritium regression-test keeps its own, tritium history --add results.json any other.")
        return
    body = [[r.created, shown(r.commit[:10]), shown(r.suite), r.fingerprint, r.id] for r in runs]
    print_parts(Table(body, ["measured", "commit", "suite", "machine", "run"]))
    cases = sorted({case for case, _, _ in history.cases() if not is_canary(case)})
    many = f"{len(runs)} run{'s' * (len(runs) != 1)} of {len(cases)} case{'s' * (len(cases) != 1)}"
    echo(f"\n{many}; one over time: tritium history '{shown(cases[0]) if cases else 'CASE'}'")


def _show_case(history: History, case: str, metric: str, arm: str, as_json: bool) -> None:
    from tritium.perf.gate.page import amount
    from tritium.perf.records import json_io as records
    from tritium.perf.store import baseline as baselines, trends

    trend = history.trend(case, metric, arm, baselines.last_release())
    if trend is None:
        known = history.cases()
        names = sorted({c for c, _, _ in known})
        if case not in names:
            raise click.UsageError(
                f"no run has a case {shown(case)!r}.{shown(nearest(case, names))} `tritium history` lists the runs."
            )
        there = ", ".join(f"{m} on {a}" for c, m, a in known if c == case)
        raise click.UsageError(f"{shown(case)}: there is no {shown(metric)} on {shown(arm)}; there is {shown(there)}.")
    if as_json:
        click.echo(records.dumps(trend, indent=2, ascii_only=True))
        return
    steps, busy = {s.index: s for s in trend.steps}, trends.disturbed(trend.points)
    body = []
    for i, p in enumerate(trend.points):
        low, high = (amount(math.exp(end), p.unit) for end in (p.low, p.high))
        note = f"{100 * (steps[i].ratio - 1):+.1f} %" if i in steps else ""
        if i in busy:
            note = f"{note} !".lstrip()
        body.append([p.created, shown(p.commit[:10]), *map(shown, (amount(p.value, p.unit), f"{low} … {high}")), note])
    print_parts(Table(body, ["measured", "commit", shown(metric), "95 %", "changed"]))
    echo()
    for line in trends.describe(trend):
        echo(shown(line))
    if busy:
        echo("!: other load disturbed this run more than usual in this history.")
