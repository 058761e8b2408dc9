"""The commands of the gate: regression-check, regression-test and selftest. They print and set exit codes.

tritium regression-check --baseline B --current C     a file of results beside an earlier one
tritium regression-test --baseline NAME               measure now, beside a stored baseline
tritium regression-test --against REV                 build another revision, measure both in turn
tritium regression-test --against REV --project .     the same for your own project and its build command
tritium selftest --aa                                 measure the gate itself on this machine
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.text import (
    INSTRUCTIONS,
    INTERRUPTED,
    NO_REPORT,
    bar,
    echo,
    file_errors,
    json_option,
    processes_option,
    progress,
    shown,
    with_instructions,
)
from tritium.errors import ArgumentError, BaselineError, TritiumError

if TYPE_CHECKING:
    from tritium.perf.gate.regression import Gated
    from tritium.perf.gate.verdict import Suite
    from tritium.perf.projects.project import Project
    from tritium.perf.records.run import Results
    from tritium.perf.suites.config import Options, RegressionConfig
    from tritium.perf.suites.suites import Grid

Command = Callable[..., Any]
FORMATS = ("text", "json", "markdown")
CODES = "Exit codes: 0 no regression, 1 regression or missing case, 2 usage or files, 3 no baseline, 4 inconclusive, 5 not comparable."


# ---- options


def share(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a share as a percentage; print how it was read."""
    if value is None:
        return None
    from tritium.perf.suites.config import fraction

    option = parameter.opts[0]
    try:
        part = fraction(value, option)
    except ArgumentError as error:
        raise click.UsageError(str(error), context) from None
    if not value.strip().endswith("%"):
        echo(f"{option} {value} is read as {100 * part:g} %", err=True)
    return f"{100 * part:.12g}%"


THRESHOLD = "Slowdown that is a regression: 0.05 or 5% is 5 %; above 1 it is percent, 10.0 is 10 %. Default: 10 % (separate runs) or 3 %."
SENSITIVITY = (
    "Slowdown that must be found nine times in ten, such as 10%: otherwise exit code 4. Default: what is found is said."
)
LOOKS = "Looks of the sequential test: inconclusive cases are measured further."
CONFIG = "Settings in JSON; command-line options override them."
FILE = click.Path(dir_okay=False)
FILE_HERE = click.Path(exists=True, dir_okay=False)
GATE = (
    click.option("--threshold", callback=share, metavar="SHARE", help=THRESHOLD),
    click.option("--sensitivity", callback=share, metavar="SHARE", help=SENSITIVITY),
    click.option("--config", type=FILE_HERE, metavar="FILE", help=CONFIG),
    click.option("--output-format", "format", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format."),
    json_option("Print JSON: --output-format json.", "format"),
    click.option("--output-file", type=FILE, metavar="FILE", help="Write the output to a file; print a summary."),
    click.option("--verdict", type=FILE, metavar="FILE", default="verdict.json", show_default=True, help="Verdict file."),
    click.option("--allow-inconclusive", is_flag=True, help="Exit code 0 instead of 4."),
    click.option("--allow-not-comparable", is_flag=True, help="Exit code 0 instead of 5."),
    click.option("--allow-missing-baseline", is_flag=True, help="Exit code 0 instead of 3."),
    click.option("--comment", type=FILE, metavar="FILE", help="Write a short comment for a pull request (Markdown)."),
    click.option("--github", is_flag=True, help="Print GitHub annotations (default in a workflow)."),
    NO_REPORT,
)  # fmt: skip


def options_of_a_gate(command: Command) -> Command:
    """Add the options of both gates."""
    for option in reversed(GATE):
        command = option(command)
    return command


PROJECT = (
    click.option("--project", type=click.Path(file_okay=False), metavar="DIR", help="Your own project, in git."),
    click.option("--build", default="", metavar="CMD", help="Command that builds a revision, run in its own tree."),
    click.option("--command", multiple=True, metavar="CMD", help="Time this command in each tree; repeatable."),
    click.option("--path", multiple=True, metavar="DIR", help="Folder of a tree for PYTHONPATH (default: src and the tree)."),
)  # fmt: skip


BENCHMARK_FILES = click.option(
    "--load",
    multiple=True,
    type=FILE_HERE,
    metavar="FILE.py",
    help="Files of benchmarks (default: found in the project).",
)


def options_of_a_project(command: Command) -> Command:
    """Add the options of a project of anyone."""
    for option in reversed(PROJECT):
        command = option(command)
    return command


def project_of(
    folder: str, build: str, commands: tuple[str, ...], paths: tuple[str, ...], *, load: tuple[str, ...] = (),
    suite: str | None = None, options: Options | None = None,
) -> Project:  # fmt: skip
    """Return a project: its commands, the cases of a suite of Tritium, or the benchmarks in its files."""
    from tritium.perf.projects import project
    from tritium.perf.suites import suites

    cases = suites.grid(options).cases if suite is not None and options is not None else ()
    return project.project(Path(folder), build, commands, load, paths, cases)


def discovered(folder: str) -> list[str]:
    """Load the benchmarks of a project and return their names."""
    from tritium.perf.projects import discovery

    return discovery.load(Path(folder))


@dataclass(frozen=True)
class GateOptions:
    """Options of a verdict and its output; those of the measurement are in `Options`."""

    baseline: str = ""  # a file of results or a name; "": another revision is measured
    config: RegressionConfig | None = None
    threshold: str | None = None
    sensitivity: str | None = None
    looks: int = 3
    minutes: float = 10.0  # for further looks
    results: str | None = None
    update_baseline: bool = False
    format: str = "text"
    output_file: str | None = None
    verdict: str = "verdict.json"
    allow_inconclusive: bool = False
    allow_not_comparable: bool = False
    allow_missing_baseline: bool = False
    comment: str | None = None
    history: Path | None = None  # the folder of the runs; None: Tritium's own
    github: bool = False
    report: bool = True

    @property
    def aside(self) -> bool:
        """True if stdout is for a program, so that text for people goes to stderr."""
        return self.format != "text" and not self.output_file

    @property
    def updates(self) -> bool:
        """True if a pass becomes the baseline."""
        return self.update_baseline or (self.config is not None and self.config.auto_update_baseline)

    def allowed(self, suite: Suite) -> Suite:
        """Return the verdicts with exit code 0 for what is allowed."""
        from tritium.perf.gate.verdict import ALLOWED, allow

        return allow(suite, [name for name in ALLOWED if getattr(self, f"allow_{name.replace('-', '_')}")])


def gate_options(*, baseline: str | None, config: str | None, against: str | None = None, **values: Any) -> GateOptions:
    """Return the options of a gate: what the command line says, and the settings of a file."""
    from tritium.perf.suites.config import RegressionConfig

    settings = RegressionConfig.load(config) if config else None
    if against and baseline:
        raise click.UsageError("--baseline and --against were both given; choose one.")
    name = "" if against else _baseline(baseline, config, settings)
    return GateOptions(name, settings, **values)


# ---- commands


@click.command(name="regression-check", epilog=CODES)
@click.option(
    "--baseline",
    metavar="FILE|NAME",
    help="Earlier results or a baseline (default: baseline_file of --config).",
)
@click.option(
    "--current",
    required=True,
    type=click.Path(exists=True),
    metavar="FILE",
    help="Results to judge, of tritium or of another tool.",
)
@options_of_a_gate
def regression_check(current: str, **parameters: Any) -> None:
    """Compare two results files and fail on a regression.

    Both are of one machine, measured in separate runs. Canaries in both runs measure its drift, which is subtracted. Files of
    other tools are read too: see `tritium results convert --list`.
    """
    from tritium.perf.gate import regression

    gate = gate_options(**parameters)
    with file_errors():
        suite = regression.regression_check(
            gate.baseline, current, gate.threshold, config=gate.config, sensitivity=gate.sensitivity
        )
        now = regression.loaded(current)
    tell(replace(suite, command=_typed()), gate)
    _page(suite, now, gate)
    if gate.updates:
        _update(regression.Gated(suite, now), gate.baseline)
    sys.exit(gate.allowed(suite).exit_code)


@click.command(name="regression-test", epilog=CODES)
@click.option("--baseline", metavar="NAME|FILE", help="Baseline to compare with (default: baseline_file of --config).")
@click.option(
    "--against",
    metavar="REV",
    help="Build this git revision and the working tree, and compare both.",
)
@options_of_a_project
@click.option("--suite", metavar="NAME", help="Suite (default: the baseline's cases, else regression).")
@click.option(
    "--load",
    multiple=True,
    type=FILE_HERE,
    metavar="FILE.py",
    help="Your own benchmarks (@tt.perf.benchmark); repeatable.",
)
@processes_option(2, "Fresh processes per contender.")
@INSTRUCTIONS
@click.option("--thorough", is_flag=True, help="Twice the processes, to detect smaller differences.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: the baseline's, else all available).")
@click.option(
    "--looks",
    type=click.IntRange(1, 3),
    default=3,
    show_default=True,
    help=LOOKS,
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, 1440),
    default=10.0,
    show_default=True,
    help="Time of the looks after the first.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the results; a confirming run goes next to them.",
)
@click.option("--update-baseline", is_flag=True, help="Make this run the baseline if it passes.")
@options_of_a_gate
def regression_test(
    against: str | None, suite: str | None, load: tuple[str, ...], thorough: bool, generations: int | None,
    threads: int | None, project: str | None, build: str, command: tuple[str, ...], path: tuple[str, ...],
    instructions: bool, **parameters: Any,
) -> None:  # fmt: skip
    """Measure now and fail on a regression.

    Compares with a stored baseline or with another revision. What is slower is measured again in fresh processes before the
    gate fails. Both runs are added to the history.
    """
    from tritium.perf.gate import regression
    from tritium.perf.store.history import project_folder
    from tritium.perf.suites import suites

    gate = gate_options(against=against, **parameters)
    if (build or command or path) and not (project and against):
        raise click.UsageError(
            "--build, --command and --path are of two revisions of a project: give --project and --against."
        )
    if command and instructions:
        raise click.UsageError(
            "--instructions are counted in benchmarks, not in programs: leave it out with --command."
        )
    with file_errors():
        own = [name for file in load for name in suites.load(file)]
        if project and not against:
            own += discovered(project)
        options = suites.options_of(
            suite or "regression", thorough=thorough, own=own if against and not project else ()
        )
        options = with_instructions(options.changed(generations=generations, threads=threads), instructions)
        if against and project:
            chosen = project_of(project, build, command, path, load=load, suite=suite, options=options)
            gate = replace(gate, history=project_folder(chosen.root))
            tested: Gated | Suite = _against_project(against, chosen, options, gate)
        else:
            tested = _against(against, options, gate) if against else _stored(suite, options, gate)
    if not isinstance(tested, regression.Gated):
        tell(replace(tested, command=_typed()), gate)
        sys.exit(gate.allowed(tested).exit_code)
    try:
        tell(replace(tested.suite, command=_typed()), gate)
    finally:  # what was measured is kept, even where the verdict cannot be written
        _keep(tested, gate)
    _page(tested.suite, tested.results, gate, history=True)
    if not against and gate.updates:
        _update(tested, gate.baseline)
    if not tested.results.complete:
        echo("interrupted: the verdict is of what was measured until then.", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(gate.allowed(tested.suite).exit_code)


def _stored(suite: str | None, options: Options, gate: GateOptions) -> Gated | Suite:
    """Measured beside a baseline. One that is absent, or of another machine, is found out before anything is measured."""
    from tritium.perf.gate import regression
    from tritium.perf.gate.verdict import no_baseline

    name = gate.baseline
    try:
        before = regression.loaded(name)
        before = replace(before, name=before.name or name)  # a file has none of its own
    except (BaselineError, FileNotFoundError) as error:
        return no_baseline(name, regression.why_absent(name, error), paired=False)
    options, grid = regression.as_before(before, options, suite)
    unlike = regression.unlike(before, options.plan.threads)
    if unlike is not None:
        return replace(unlike, base=name, head="now")
    return _measured(options, grid, gate, baseline=before)


def _against(revision: str, options: Options, gate: GateOptions) -> Gated:
    from tritium.perf.gate import against
    from tritium.perf.suites import suites
    from tritium.see.profile.attribution import attributed

    grid = suites.grid(options)
    with against.revisions(revision, report=lambda text: echo(text, err=True)) as (base, head):
        both = replace(grid, arms=(base.arm(against.BASE), head.arm(against.HEAD)))
        tested = _measured(options, both, gate)
        reasons = attributed(tested.suite, both.cases, *both.arms, progress=_looking)
        notes = (*tested.suite.notes, *(f"{v.case}: {reason}" for v, reason in reasons))
    return replace(tested, suite=replace(tested.suite, base=f"{revision} (base)", notes=notes))


def _against_project(revision: str, project: Project, options: Options, gate: GateOptions) -> Gated:
    """Build two revisions of a project of anyone and measure both: what is committed there, and the working tree as it is."""
    from tritium.perf.gate import regression
    from tritium.perf.gate.verdict import BASE, HEAD
    from tritium.perf.revisions import git, trees

    commits = {BASE: git.commit_of(project.root, revision), HEAD: git.snapshot(project.root)}
    with trees.trees(project.root, project.build, lambda text: echo(shown(text), err=True)) as built:
        pair = {BASE: built.tree(commits[BASE], f"{revision} ({commits[BASE][:12]})")}
        same = commits[BASE] == commits[HEAD]  # then it is built twice all the same: both sides are to be alike
        pair[HEAD] = built.second(commits[HEAD]) if same else built.tree(commits[HEAD], "the working tree")
        with progress(project.summary(options.plan, len(pair))) as report:
            tested = regression.regression_test(
                project.cases, [project.arm(name, tree) for name, tree in pair.items()], plan=options.plan,
                threshold=gate.threshold, sensitivity=gate.sensitivity, config=gate.config, suite=project.name,
                extra_looks=gate.looks - 1, further_s=60 * gate.minutes,
                by=lambda cases, seed: project.measure(pair, options.plan, cases=cases, seed=seed, progress=report),
            )  # fmt: skip
    head = git.head(project.root)
    runs = [r and project.recorded(r, head, dirty=commits[HEAD] != head) for r in (tested.results, tested.confirmation)]
    named = replace(tested.suite, base=f"{revision} (base)")
    return replace(tested, suite=named, results=runs[0] or tested.results, confirmation=runs[1])


def _looking(case: str) -> None:
    echo(f"profiling both revisions: {shown(case)} …", err=True)


def _measured(options: Options, grid: Grid, gate: GateOptions, baseline: Results | None = None) -> Gated:
    from tritium.perf.gate import regression

    for note in grid.notes:
        echo(shown(note), err=True)
    with progress(grid.summary(options.plan)) as report:
        return regression.regression_test(
            grid.cases, grid.arms, baseline=baseline, plan=options.plan, threshold=gate.threshold, sensitivity=gate.sensitivity,
            config=gate.config, suite=options.suite, extra_looks=gate.looks - 1, further_s=60 * gate.minutes, notes=grid.notes,
            progress=report,
        )  # fmt: skip


def _keep(tested: Gated, gate: GateOptions) -> None:
    """Both runs go into the history, and into files where asked; a history that cannot be written is said, not fatal."""
    from tritium.perf.store import results as store
    from tritium.perf.store.history import History

    runs = [r for r in (tested.results, tested.confirmation) if r is not None]
    for results, suffix in zip(runs, ("", "-confirmation"), strict=False):
        if gate.results:
            place = Path(gate.results)
            store.save(results, place.with_name(f"{place.stem}{suffix}{place.suffix}"))
    try:
        with History(gate.history) as history:
            for results in runs:
                history.add(results)
    except (TritiumError, OSError) as error:
        echo(f"not kept in the history: {shown(str(error))}", err=True)


def _page(suite: Suite, results: Results, gate: GateOptions, *, history: bool = False) -> None:
    """The report beside the verdict; with the runs that are kept, where they can be read."""
    if not gate.report:
        return
    from tritium.cli.report import write_beside
    from tritium.perf.store.history import History

    verdicts = replace(gate.allowed(suite), command=_typed())
    try:
        history_store = History(gate.history) if history else None
    except (TritiumError, OSError):
        history_store = None  # said before: it could not be written either
    try:
        write_beside(Path(gate.verdict), results, verdicts=verdicts, history=history_store, err=gate.aside)
    finally:
        if history_store is not None:
            history_store.close()


def _update(tested: Gated, name: str) -> None:
    from tritium.perf.gate import regression

    with file_errors():
        echo(shown(regression.update_baseline(tested, name, requested=True)), err=True)


# ---- what both need


def _baseline(name: str | None, config: str | None, settings: RegressionConfig | None) -> str:
    """The baseline that was named, else the file's; a relative one beside the file of settings, or here."""
    if name:
        return name
    if settings is None or config is None:
        raise click.UsageError("--baseline is needed: a file of earlier results, or a name (tritium baseline list).")
    beside = Path(config).parent / settings.baseline_file
    return str(beside) if beside.exists() else settings.baseline_file


def _typed() -> str:
    return " ".join(["tritium", *sys.argv[1:]])


def tell(suite: Suite, gate: GateOptions) -> None:
    """Print the verdicts, and write verdict.json."""
    from tritium.perf.formats import github
    from tritium.perf.gate.page import markdown, page
    from tritium.perf.records import json_io as records
    from tritium.perf.store import results as store

    suite = gate.allowed(suite)
    text = records.dumps(suite, indent=2) + "\n"
    forms = {"text": lambda: page(suite) + "\n", "json": lambda: text, "markdown": lambda: markdown(suite)}
    if gate.output_file or gate.format == "text":
        echo(page(suite))
    else:
        click.echo(forms[gate.format]().rstrip("\n"))
    with file_errors():  # told first: a full disk does not hide what was found
        store.write_text(gate.verdict, text)
        if gate.comment:
            store.write_text(gate.comment, github.comment(suite))
        if gate.output_file:
            store.write_text(gate.output_file, forms[gate.format]())
    echo(f"written: {shown(str(gate.verdict))}", err=gate.aside)
    lines = github.publish(suite) or (github.annotated(suite) if gate.github else [])
    for line in lines:
        echo(line, err=gate.aside)


# ---- the gate itself


@click.command()
@click.option("--aa", is_flag=True, help="A/A test: measure the false alarms of equal code.")
@click.option("--suites", type=click.IntRange(1), default=5, show_default=True, help="Suites of five cases to run.")
@click.option(
    "--extra",
    type=click.FloatRange(0, 10),
    default=0.0,
    metavar="SHARE",
    help="Slow one case down by this share, such as 0.1, and count detections.",
)
@click.option("--journal", type=click.Path(dir_okay=False), help="Journal file, to continue from the next time.")  # fmt: skip
@click.option("--seed", type=int, default=0, help="Seed of the order.")
@processes_option(1, "Fresh processes per side (default: 15).")
@json_option("Print JSON with every suite.")
def selftest(
    aa: bool, suites: int, extra: float, journal: str | None, seed: int, generations: int | None, as_json: bool
) -> None:
    """Measure the false-alarm rate and the power of the gate.

    The noise floor of --aa is stored: no margin of a gate is below twice it. A suite takes about 15 seconds.
    """
    from tritium.perf.gate import selftest as test
    from tritium.perf.records import json_io as records

    if not aa and not extra:
        raise click.UsageError("Say what to test: --aa for false alarms, --extra 0.1 for what is found.")
    plan = replace(test.PLAN, generations=generations or test.PLAN.generations)
    path = Path(journal) if journal else None
    every: list[test.Trial] = []
    notes: list[str] = []
    margin = 0.0
    for extra_share in (*((0.0,) if aa else ()), *((extra,) if extra else ())):
        with bar("equal code" if not extra_share else f"{extra_share:.0%} extra work") as report:
            part = test.selftest(suites, plan, extra=extra_share, journal=path, seed=seed, progress=report)
        every += part.trials_with(extra_share)
        notes += part.notes
        margin = part.margin
    outcome = test.Selftest(tuple(every), margin, tuple(notes))
    if as_json:
        click.echo(records.dumps(outcome, indent=1))
    else:
        echo(outcome.page())
    if aa and len(outcome.trials_with(0.0)) >= test.ENOUGH and plan.generations >= test.PLAN.generations:
        echo(f"the noise floor is kept: no margin is below {2 * outcome.floor:.1%} from now on", err=as_json)
        test.keep(outcome, plan)
    elif aa:
        echo(
            f"the noise floor is not kept: it takes {test.ENOUGH} suites of {test.PLAN.generations} generations",
            err=as_json,
        )
