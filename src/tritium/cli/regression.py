"""The commands of the gate: regression-check and regression-test. They print and set exit codes.

tritium regression-check --baseline B --current C     a file of results beside an earlier one
tritium regression-test --baseline NAME               measure now, beside a stored baseline
tritium regression-test --against REV                 build another revision, measure both in turn
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.report import NO_REPORT, write_beside
from tritium.cli.text import file_errors, progress, shown
from tritium.errors import ArgumentError, BaselineError, TritiumError

if TYPE_CHECKING:
    from tritium.perf.gate.regression import Gated
    from tritium.perf.gate.verdict import Suite
    from tritium.perf.records.run import Plan, Results
    from tritium.perf.suites.config import RegressionConfig
    from tritium.perf.suites.suites import Grid

Command = Callable[..., Any]
INTERRUPTED = 130
FORMATS = ("text", "json", "markdown")
CODES = "Exit codes: 0 no regression, 1 regression or missing case, 2 usage or files, 3 no baseline, 4 inconclusive, 5 not comparable."


# ---- options


def share(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """A threshold as a percentage; how it was read is said."""
    from tritium.perf.suites.config import fraction

    if value is None:
        return None
    try:
        found = fraction(value, "--threshold")
    except ArgumentError as error:
        raise click.UsageError(str(error), context) from None
    if not value.strip().endswith("%"):
        click.echo(f"--threshold {value} is read as {100 * found:g} %", err=True)
    return f"{100 * found:.12g}%"


THRESHOLD = (
    "Slower by this much is a regression: 0.05 or 5% is 5 %; above 1 it is percent, 10.0 is 10 %. "
    "Default: 10 % for separate runs, 3 % side by side."
)
LOOKS = "Planned moments of testing; what is inconclusive is measured on for the next."
CONFIG = "Settings in JSON (baseline_file, regression_threshold, minimum_samples …); options come first."
FILE = click.Path(dir_okay=False)
FILE_HERE = click.Path(exists=True, dir_okay=False)
GATE = (
    click.option("--threshold", callback=share, metavar="SHARE", help=THRESHOLD),
    click.option("--config", type=FILE_HERE, metavar="FILE", help=CONFIG),
    click.option("--output-format", "to", type=click.Choice(FORMATS), default="text", show_default=True, help="Of the report."),
    click.option("--output-file", type=FILE, metavar="FILE", help="Write the report here; a short page is printed still."),
    click.option("--verdict", type=FILE, metavar="FILE", default="verdict.json", show_default=True, help="Always written."),
    click.option("--allow-inconclusive", is_flag=True, help="Exit code 0 instead of 4."),
    click.option("--allow-not-comparable", is_flag=True, help="Exit code 0 instead of 5."),
    click.option("--allow-missing-baseline", is_flag=True, help="Exit code 0 instead of 3."),
    click.option("--github", is_flag=True, help="Print annotations for GitHub; a workflow gets them unasked."),
    NO_REPORT,
)  # fmt: skip


def options_of_a_gate(command: Command) -> Command:
    """How a verdict is reached and told, the same for both gates."""
    for option in reversed(GATE):
        command = option(command)
    return command


TELLING = (
    "to",
    "output_file",
    "verdict",
    "allow_inconclusive",
    "allow_not_comparable",
    "allow_missing_baseline",
    "github",
    "report",
)


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """How to tell it, and the rest."""
    return {k: options[k] for k in TELLING}, {k: v for k, v in options.items() if k not in TELLING}


# ---- commands


@click.command(name="regression-check", epilog=CODES)
@click.option(
    "--baseline",
    metavar="FILE|NAME",
    help="Earlier results: a file, or a baseline's name. Default: baseline_file of --config.",
)
@click.option(
    "--current",
    required=True,
    type=FILE_HERE,
    metavar="FILE",
    help="The results to judge.",
)
@options_of_a_gate
def regression_check(
    baseline: str | None, current: str, config: str | None, threshold: str | None, **telling: Any
) -> None:
    """Judge results beside earlier ones of the same machine, measured in separate runs.

    What the machine itself did in between is measured by canaries in both runs and taken out.
    """
    from tritium.perf.gate import regression

    settings = _settings(config)
    name = _baseline(baseline, config, settings)
    with file_errors():
        suite = regression.regression_check(name, current, threshold, config=settings)
        now = regression.loaded(current)
    tell(replace(suite, command=_typed()), leave=False, **telling)
    _page(suite, now, telling)
    if settings is not None and settings.auto_update_baseline:
        _update(regression.Gated(suite, now), name)
    sys.exit(_allowed(suite, telling).exit_code)


@click.command(name="regression-test", epilog=CODES)
@click.option("--baseline", metavar="NAME|FILE", help="Compare with this baseline. Default: baseline_file of --config.")
@click.option(
    "--against",
    metavar="REV",
    help="Build this git revision of tritium and the working tree, and measure both in turn.",
)
@click.option("--suite", metavar="NAME", help="What to measure; default: the baseline's own cases, else regression.")
@click.option(
    "--load", multiple=True, type=FILE_HERE, metavar="FILE.py", help="Benchmarks of your own (@tt.perf.benchmark)."
)
@click.option("--generations", type=click.IntRange(2), help="Fresh processes for each arm.")
@click.option("--thorough", is_flag=True, help="About twice the processes: finds smaller differences.")
@click.option("--threads", type=click.IntRange(1), help="Default: the baseline's; else all CPUs this process may use.")
@click.option(
    "--looks",
    type=click.IntRange(1, 3),
    default=3,
    show_default=True,
    help=LOOKS,
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write what was measured here; a confirmation beside it.",
)
@click.option("--update-baseline", is_flag=True, help="On a pass, and only then, this run becomes the baseline.")
@options_of_a_gate
def regression_test(**options: Any) -> None:
    """Measure now, and judge it beside a stored baseline or beside another revision.

    What is slower is measured once more with fresh processes before the gate fails. Both runs are kept in the history.
    """
    from tritium.perf.gate import regression

    telling, asked = split(options)
    settings = _settings(asked["config"])
    against = asked["against"]
    if against and asked["baseline"]:
        raise click.UsageError("--baseline and --against were both given; choose one.")
    name = "" if against else _baseline(asked["baseline"], asked["config"], settings)
    with file_errors():
        tested = _against(against, settings, asked) if against else _stored(name, settings, asked)
    if not isinstance(tested, regression.Gated):
        tell(replace(tested, command=_typed()), **telling)
        return
    try:
        tell(replace(tested.suite, command=_typed()), leave=False, **telling)
    finally:  # what was measured is kept, even where the verdict cannot be written
        _keep(tested, asked["results"])
    _page(tested.suite, tested.results, telling, history=True)
    if not against and (asked["update_baseline"] or (settings is not None and settings.auto_update_baseline)):
        _update(tested, name)
    if not tested.results.complete:
        click.echo("interrupted: the verdict is of what was measured until then.", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(_allowed(tested.suite, telling).exit_code)


def _stored(name: str, settings: RegressionConfig | None, asked: dict[str, Any]) -> Gated | Suite:
    """Measured beside a baseline. One that is absent, or of another machine, is found out before anything is measured."""
    from tritium.perf.gate import regression
    from tritium.perf.gate.verdict import no_baseline
    from tritium.perf.suites import suites

    try:
        before = regression.loaded(name)
        before = replace(before, name=before.name or name)  # a file has none of its own
    except (BaselineError, FileNotFoundError) as error:
        return no_baseline(name, regression.why_absent(name, error), paired=False)
    for path in asked["load"]:
        suites.load(path)
    suite, grid, plan = regression.as_before(before, plan_of(asked), asked["suite"])
    unlike = regression.unlike(before, plan.threads)
    if unlike is not None:
        return replace(unlike, base=name, head="now")
    return _measured(suite, grid, plan, settings, asked, baseline=before)


def _against(revision: str, settings: RegressionConfig | None, asked: dict[str, Any]) -> Gated:
    from tritium.perf.gate import against
    from tritium.perf.suites import suites
    from tritium.see.profile.attribution import attributed

    suite = asked["suite"] or "regression"
    plan, usual = plan_of(asked, suite), suites.defaults(suite)
    own = tuple(name for path in asked["load"] for name in suites.load(path))
    grid = suites.grid(suite, replace(usual, operations=(*usual.operations, *own)), threads=plan.threads)
    with against.revisions(revision, said=lambda text: click.echo(text, err=True)) as (base, head):
        both = replace(grid, arms=(base.arm(against.BASE), head.arm(against.HEAD)))
        tested = _measured(suite, both, plan, settings, asked)
        found = attributed(tested.suite, both.cases, *both.arms, progress=_looking)
        notes = (*tested.suite.notes, *(f"{v.case}: {said}" for v, said in found))
    return replace(tested, suite=replace(tested.suite, base=f"{revision} (base)", notes=notes))


def _looking(case: str) -> None:
    click.echo(f"profiling both revisions: {shown(case)} …", err=True)


def _measured(
    suite: str, grid: Grid, plan: Plan, settings: RegressionConfig | None, asked: dict[str, Any], baseline: Results | None = None
) -> Gated:  # fmt: skip
    from tritium.perf.gate import regression

    for note in grid.notes:
        click.echo(shown(note), err=True)
    with progress(grid.told(plan)) as report:
        return regression.regression_test(
            grid.cases, grid.arms, baseline=baseline, plan=plan, threshold=asked["threshold"], config=settings, suite=suite,
            extra_looks=asked["looks"] - 1, notes=grid.notes, progress=report,
        )  # fmt: skip


def plan_of(asked: dict[str, Any], suite: str = "regression") -> Plan:
    """The plan that --generations, --thorough and --threads ask for, with the metrics of a suite."""
    from tritium.perf.records.run import PLANS
    from tritium.perf.suites import suites

    plan = PLANS["thorough" if asked["thorough"] else "default"]
    plan = replace(plan, threads=asked["threads"], metrics=suites.metrics(suite, plan))
    return replace(plan, generations=asked["generations"]) if asked["generations"] else plan


def _keep(tested: Gated, path: str | None) -> None:
    """Both runs go into the history, and into files where asked; a history that cannot be written is said, not fatal."""
    from tritium.perf.store import results as store
    from tritium.perf.store.history import History

    runs = [r for r in (tested.results, tested.confirmation) if r is not None]
    for results, suffix in zip(runs, ("", "-confirmation"), strict=False):
        if path:
            place = Path(path)
            store.save(results, place.with_name(f"{place.stem}{suffix}{place.suffix}"))
    try:
        with History() as history:
            for results in runs:
                history.add(results)
    except (TritiumError, OSError) as error:
        click.echo(f"not kept in the history: {shown(str(error))}", err=True)


def _page(suite: Suite, results: Results, telling: dict[str, Any], *, history: bool = False) -> None:
    """The report beside the verdict; with the runs that are kept, where they can be read."""
    from tritium.perf.store.history import History

    if not telling["report"]:
        return
    place, said = Path(telling["verdict"]), replace(_allowed(suite, telling), command=_typed())
    aside = telling["to"] != "text" and not telling["output_file"]
    try:
        kept = History() if history else None
    except (TritiumError, OSError):
        kept = None  # said before: it could not be written either
    try:
        write_beside(place, results, verdicts=said, history=kept, err=aside)
    finally:
        if kept is not None:
            kept.close()


def _update(tested: Gated, name: str) -> None:
    from tritium.perf.gate import regression

    with file_errors():
        click.echo(shown(regression.update_baseline(tested, name, asked=True)), err=True)


# ---- what both need


def _settings(path: str | None) -> RegressionConfig | None:
    from tritium.perf.suites.config import RegressionConfig

    return RegressionConfig.load(path) if path else None


def _baseline(given: str | None, config: str | None, settings: RegressionConfig | None) -> str:
    """The baseline that was named, else the file's; a relative one beside the file of settings, or here."""
    if given:
        return given
    if settings is None or config is None:
        raise click.UsageError("--baseline is needed: a file of earlier results, or a name (tritium baseline list).")
    beside = Path(config).parent / settings.baseline_file
    return str(beside) if beside.exists() else settings.baseline_file


def _typed() -> str:
    return " ".join(["tritium", *sys.argv[1:]])


def _allowed(suite: Suite, telling: dict[str, Any]) -> Suite:
    from tritium.perf.gate.verdict import ALLOWED, allow

    return allow(suite, [name for name in ALLOWED if telling[f"allow_{name.replace('-', '_')}"]])


def tell(suite: Suite, *, leave: bool = True, **telling: Any) -> None:
    """Write verdict.json, print, and leave with the exit code."""
    from tritium.perf.formats import github
    from tritium.perf.gate.page import markdown, page
    from tritium.perf.records import json_io as records
    from tritium.perf.store import results as store

    suite = _allowed(suite, telling)
    text = records.dumps(suite, indent=2) + "\n"
    made = {"text": lambda: page(suite) + "\n", "json": lambda: text, "markdown": lambda: markdown(suite)}
    click.echo(page(suite) if telling["output_file"] else made[telling["to"]]().rstrip("\n"))
    with file_errors():  # told first: a full disk does not hide what was found
        store.write_text(telling["verdict"], text)
        if telling["output_file"]:
            store.write_text(telling["output_file"], made[telling["to"]]())
    aside = telling["to"] != "text" and not telling["output_file"]
    click.echo(f"written: {shown(str(telling['verdict']))}", err=aside)
    lines = github.publish(suite) or (github.annotated(suite) if telling["github"] else [])
    for line in lines:
        click.echo(line, err=aside)
    if leave:
        sys.exit(suite.exit_code)
