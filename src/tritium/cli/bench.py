"""The commands that measure: compare, and bench with its suites. They print, show progress, and write results and a page.

tritium compare [--quick]      operations x sizes x types x devices, Tritium beside every library that is here
tritium bench SUITE            one suite of cases; `tritium bench --list` tells which
tritium bench model [MODEL]    tokens a second of a model
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.report import NO_REPORT, write_beside
from tritium.cli.text import Counts, Sizes, Words, progress, shown, span, status, table
from tritium.errors import ArgumentError, SaveError, nearest

if TYPE_CHECKING:
    from tritium.perf.records.run import Plan, Results
    from tritium.perf.suites.config import BenchmarkConfig, EnergyConfig

Command = Callable[..., Any]
INTERRUPTED = 130
MOST_NAMED = 8  # failed cells in one message


# ---- options


FILE = click.Path(exists=True, dir_okay=False)
FORMATS = click.Choice(["text", "json", "csv", "markdown"])
PEERS_HELP = "Who stands beside: numpy, torch, jax, mlx, portable, reference …; all; none. Default: what is installed."
DEVICES_HELP = (
    "Devices of Tritium: cpu, mlx, torch, mps …; cpu:portable, cpu:avx2 … and cpu:reference are the CPU with other kernels. "
    "May be repeated. Default: all that are here; of most suites of bench, the default device."
)
TRANSFER_HELP = "Whether inputs and results travel inside the clock; both: a case of each. Default: excluded."
CONFIG_HELP = "Settings in JSON; options of the command line come first."


def options_of_measuring(command: Command) -> Command:
    """What every measurement can be asked."""
    for option in reversed((
        click.option("--quick", is_flag=True, help="Fewer cases, processes and rounds: shows intervals, never gates."),
        click.option("--thorough", is_flag=True, help="About twice the processes: finds smaller differences."),
        click.option("--config", type=FILE, metavar="FILE", help=CONFIG_HELP),
        click.option("--devices", type=Words(), multiple=True, metavar="A,B", help=DEVICES_HELP),
        click.option("--peers", type=Words(), metavar="A,B", help=PEERS_HELP),
        click.option("--operations", type=Words(), metavar="A,B", help="matmul, add, softmax, bitlinear …"),
        click.option("--sizes", type=Sizes(), metavar="N,MxK", help="256 is 256x256."),
        click.option("--batches", type=Counts(), metavar="N,M", help="Rows or sequences in place of those of the sizes."),
        click.option("--dtypes", type=Words(), metavar="A,B", help="f32, f16, bf16, f64."),
        click.option("--transfer", type=click.Choice(["excluded", "included", "both"]), help=TRANSFER_HELP),
        click.option("--load", multiple=True, type=FILE, metavar="FILE.py", help="Benchmarks of your own (@tt.perf.benchmark)."),
        click.option("--threads", type=click.IntRange(1), help="Default: all CPUs this process may use."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of the inputs and of the order."),
        click.option("--generations", type=click.IntRange(1), help="Fresh processes for each arm."),
        click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Where the results are written."),
        click.option("--resume", is_flag=True, help="Go on where an interrupted run of the same command ended."),
        click.option("--format", "to", type=FORMATS, default="text", show_default=True, help="What is printed."),
        NO_REPORT,
    )):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """The options of one measurement."""

    quick: bool
    thorough: bool
    config: str | None
    devices: tuple[tuple[str, ...], ...]  # of every time the option was given
    peers: tuple[str, ...] | None
    operations: tuple[str, ...] | None
    sizes: tuple[tuple[int, ...], ...] | None
    batches: tuple[int, ...] | None
    dtypes: tuple[str, ...] | None
    transfer: str | None
    load: tuple[str, ...]
    threads: int | None
    seed: int
    generations: int | None
    output: str | None
    resume: bool
    to: str
    report: bool = True
    allow_estimates: bool = False
    tdp: float | None = None
    duration: str | None = None


# ---- commands


@click.command()
@options_of_measuring
def compare(**options: Any) -> None:
    """Compare Tritium's devices and kernels, beside the libraries installed here, operation by operation.

    \b
    tritium compare --devices cpu,mlx,torch --peers none     the devices of this machine
    tritium compare --devices cpu,cpu:portable,cpu:reference kernels of the CPU
    tritium compare --batches 1,8,32 --transfer both         rows at a time; with and without transfers

    Every answer is checked before it is timed. Arms take turns in fresh processes, so that what the machine does meanwhile
    hits all alike. Ctrl-C keeps what was measured; --resume goes on.
    """
    measured("compare", Asked(**options))


class Suites(click.Group):
    """`bench NAME`: a suite by its name or the guides' name for it."""

    def list_commands(self, context: click.Context) -> list[str]:
        from tritium.perf.suites.suites import SUITES

        return ["model", *SUITES]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        from tritium.perf.suites import suites

        if name == "model":
            from tritium.cli.model import bench_model

            return bench_model
        if name not in suites.NAMES:
            known = ["model", *suites.NAMES]
            raise click.UsageError(
                f"{name!r} is not a suite.{nearest(name, known)} There are {', '.join(self.list_commands(context))}."
            )
        return suite_command(suites.NAMES[name])


@click.group(cls=Suites, invoke_without_command=True)
@click.option("--list", "listed", is_flag=True, help="The suites, and what each measures.")
@click.pass_context
def bench(context: click.Context, listed: bool) -> None:
    """Measure one suite, with raw samples, intervals and what was not measured."""
    if listed or context.invoked_subcommand is None:
        from tritium.perf.suites.suites import SUITES

        rows = [[s.name, s.doc, ", ".join(s.aliases)] for s in SUITES.values()]
        rows.append(["model", "tokens a second of a model: prefill, decode, first token, memory", ""])
        click.echo(table(rows, ["suite", "what it measures", "also called"]))
        if not listed:
            click.echo("\nRun one: tritium bench NAME [--quick]")
        context.exit(0)


def suite_command(name: str) -> click.Command:
    """The command of one suite."""
    from tritium.perf.suites.suites import SUITES

    def run(**options: Any) -> None:
        measured(name, Asked(**options))

    made = options_of_measuring(run)
    if name == "energy":
        for option in (
            click.option("--duration", help="How long power is watched for each case, as 10s."),
            click.option("--tdp", type=click.FloatRange(1, 2000), help="Watts of the processor, for estimates."),
            click.option("--allow-estimates", is_flag=True, help="Where nothing is measured, estimate, and say so."),
        ):
            made = option(made)
    return click.command(name, help=SUITES[name].doc[0].upper() + SUITES[name].doc[1:] + ".")(made)


# ---- one measurement


def measured(suite: str, asked: Asked) -> None:
    """Measure, print, write; exit with 130 when it was interrupted, else as perf.verdict has it for measurements."""
    from tritium.perf.gate.verdict import NOTHING_MEASURED, measurement_exit_code

    try:
        results = _measure(suite, asked)
    except KeyboardInterrupt:
        status("")
        output = _output(suite, asked)
        journal = _journal(output)
        left = f"; --resume goes on from {shown(journal.name)}" if journal.exists() else ""
        click.echo(f"interrupted; {shown(output.name)} was not written{left}.", err=True)
        sys.exit(INTERRUPTED)
    _print(suite, asked, results)
    if not results.complete:
        sys.exit(INTERRUPTED)
    code = measurement_exit_code(results)
    if failures := _failures(results):
        click.secho(f"error: {failures}; the reasons stand above.", fg="red", err=True)
    if code == NOTHING_MEASURED:
        click.secho("error: nothing could be measured; the reasons stand above.", fg="red", err=True)
    if code:
        sys.exit(code)


def _failures(results: Results) -> str:
    """Which cells failed, "" where none did: "1 of 4 cells failed: add 64x64 f32 [numpy] crashed"."""
    from tritium.perf.gate.verdict import failed_cells
    from tritium.perf.work.canary import is_canary

    failed = failed_cells(results)
    if not failed:
        return ""
    cells = sum(not is_canary(run.case) for run in results)
    listed = ", ".join(shown(f"{run.case} [{run.arm}] {run.status}") for run in failed[:MOST_NAMED])
    more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
    return f"{len(failed)} of {cells} cells failed: {listed}{more}"


def _measure(suite: str, asked: Asked) -> Results:
    from tritium.perf.engine.measuring import measure
    from tritium.perf.suites import suites

    output = _output(suite, asked)
    own = [name for path in asked.load for name in suites.load(path)]
    config, energy = _configs(suite, asked)
    if own and asked.operations is None and not asked.config:
        config = replace(config, operations=(*config.operations, *own))
    plan = _plan(suite, config, asked, energy)
    grid = suites.grid(suite, config, quick=asked.quick, peers=asked.peers, threads=plan.threads, seed=asked.seed)
    if not grid.cases:
        raise ArgumentError(f"{suite}: no case is left to measure. {' '.join(grid.notes)}")
    for note in grid.notes:
        click.echo(shown(note), err=True)
    journal = _journal(output)
    if asked.resume and not journal.exists():
        click.echo(f"nothing to resume: there is no {shown(journal.name)}; measuring from the start.", err=True)
    with progress(grid.told(plan)) as report:
        results = measure(
            grid.cases, grid.arms, plan, kind="compare" if suite == "compare" else "bench", suite=suite,
            notes=grid.notes, progress=report, journal=journal, resume=asked.resume,
            options=suites.energy_options(energy, plan) if energy is not None else None,
        )  # fmt: skip
    _save(results, output)
    if results.complete:
        journal.unlink(missing_ok=True)
    return results


def _configs(suite: str, asked: Asked) -> tuple[BenchmarkConfig, EnergyConfig | None]:
    """What the file and the options ask for; the energy suite has its own file."""
    from tritium.perf.suites import suites
    from tritium.perf.suites.config import BenchmarkConfig, EnergyConfig, duration

    base, energy = suites.defaults(suite, asked.quick), None
    if suite == "energy":
        energy = EnergyConfig.load(asked.config) if asked.config else EnergyConfig()
        more: dict[str, Any] = {"allow_estimates": True} if asked.allow_estimates else {}
        more |= {"tdp_w": asked.tdp} if asked.tdp else {}
        more |= {"power_measurement_duration_s": duration(asked.duration, "--duration")} if asked.duration else {}
        energy = replace(energy, **more)
    elif asked.config:
        base = BenchmarkConfig.load(asked.config)
    given: dict[str, Any] = {
        "devices": [d for given in asked.devices for d in given] or None, "operations": asked.operations,
        "tensor_sizes": asked.sizes, "data_types": asked.dtypes, "batch_sizes": asked.batches, "transfer": asked.transfer,
    }  # fmt: skip
    try:
        return replace(base, **{k: v for k, v in given.items() if v is not None}), energy
    except ArgumentError as error:
        raise click.UsageError(str(error)) from None


def _plan(suite: str, config: BenchmarkConfig, asked: Asked, energy: EnergyConfig | None) -> Plan:
    from tritium.perf.records.run import PLANS
    from tritium.perf.suites import suites

    if asked.quick and asked.thorough:
        raise click.UsageError("--quick and --thorough were both given; choose one.")
    plan = PLANS["quick" if asked.quick else "thorough" if asked.thorough else "default"]
    if asked.config and suite != "energy":
        plan = config.plan(plan)
    plan = replace(plan, seed=asked.seed, threads=asked.threads, metrics=suites.metrics(suite, plan, energy))
    return plan if asked.generations is None else replace(plan, generations=asked.generations)


def _output(suite: str, asked: Asked) -> Path:
    """Where the results go: never over the file that says what to measure, never into a folder that is not there."""
    path = Path(asked.output or ("results.json" if suite == "compare" else f"{suite}_results.json"))
    if asked.config and path.exists() and path.samefile(asked.config):
        raise click.UsageError(f"{shown(str(path))} is the configuration; give another name with --output.")
    if not path.absolute().parent.is_dir():
        raise click.UsageError(
            f"--output: there is no folder {shown(str(path.parent))}; make it, or name another file."
        )
    return path


def _journal(output: Path) -> Path:
    return output.with_name(f"{output.name}.journal")


def _save(results: Results, path: Path) -> None:
    """What was measured is not lost to a full disk: then it goes to the temporary folder."""
    import tempfile

    from tritium.perf.store import results as store

    try:
        store.save(results, path)
    except SaveError as error:
        other = Path(tempfile.gettempdir()) / f"tritium-{int(time.time())}-{path.name}"
        store.save(results, other)
        raise SaveError(f"{error} The results are in {other}.") from None


# ---- what is printed


def _print(suite: str, asked: Asked, results: Results) -> None:
    from tritium.perf.tables import pages
    from tritium.see.reports.export import export_results

    if asked.to in ("json", "csv"):
        click.echo(export_results(results, asked.to), nl=False)
    elif asked.to == "markdown":
        click.echo(pages.markdown(results))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
        click.echo(pages.page(results, width))
    _after(suite, asked, results)


def _after(suite: str, asked: Asked, results: Results) -> None:
    """What was written, and what to try next; on stderr where stdout is for a program."""
    aside = asked.to != "text"
    output = _output(suite, asked)
    if not results.complete:
        again = " ".join(["tritium", *sys.argv[1:], *([] if asked.resume else ["--resume"])])
        click.echo(f"{results.notes[-1]}.", err=True)
        click.echo(f"written: {shown(str(output))}; go on with: {shown(again)}", err=True)
        return
    click.echo(f"written: {shown(str(output))} ({span(results.elapsed_s)})", err=aside)
    if asked.report:
        write_beside(output, results, err=aside)
    click.echo(f"next: {_next(suite, asked, results, output)}", err=aside)


def _next(suite: str, asked: Asked, results: Results, output: Path) -> str:
    from tritium.perf.gate.verdict import measurement_exit_code

    name = shown(str(output))
    if measurement_exit_code(results):
        return f"measure again when every cell runs: {name} has cells without a time, so it is no baseline to propose"
    if asked.quick:
        full = "tritium compare" if suite == "compare" else f"tritium bench {suite}"
        return f"{full} measures longer, and its results can gate; tritium bench --list tells what else there is"
    return (
        f"tritium baseline create NAME {name}, then later tritium regression-check --baseline {name} --current NEW.json"
    )
