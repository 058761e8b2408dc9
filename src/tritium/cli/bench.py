"""The commands that measure: compare, and bench with its suites. They print, show progress, and write results and a page.

tritium compare [--quick]      operations x sizes x types x devices, Tritium beside every library that is here
tritium bench SUITE            one suite of cases; `tritium bench --list` tells which
tritium bench model [MODEL]    tokens a second of a model
tritium bench serve URL [URL]  latencies and throughput of a model server, or of two
tritium bench project          the benchmarks of the project in this folder
tritium bench all              every suite, one after the other
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import tritium
from tritium.arguments import duration_text, read_duration
from tritium.cli.text import (
    INSTRUCTIONS,
    INTERRUPTED,
    NO_REPORT,
    Counts,
    Sizes,
    Table,
    Words,
    bar,
    echo,
    json_option,
    page_width,
    print_json,
    print_parts,
    processes_option,
    progress,
    say,
    shown,
    status,
    with_instructions,
)
from tritium.errors import ArgumentError, SaveError, install_command, nearest

if TYPE_CHECKING:
    from tritium.perf.records.run import Results, Run
    from tritium.perf.suites.config import Options

Command = Callable[..., Any]
MODEL_DOC = "tokens per second of a model: prefill, decode, time to first token, memory"
SERVE_DOC = "a model server over HTTP: first token, between tokens, throughput, goodput"
ALL_DOC = "every suite, one after the other"
MOST_NAMED = 8  # failed cells in one message


# ---- options


FILE = click.Path(exists=True, dir_okay=False)
FORMATS = click.Choice(["text", "json", "csv", "markdown"])
PEERS_HELP = "Libraries to compare with: numpy, torch, jax, mlx …; all; none. Default: installed ones."
DEVICES_HELP = (
    "Devices: cpu, mlx, torch, mps …; cpu:portable, cpu:avx2 … and cpu:reference pick CPU kernels; repeatable. "
    "Default: all here for compare, the default device for most suites."
)
TRANSFER_HELP = "Time host-device transfers too; both: a case of each. Default: excluded."
CONFIG_HELP = "Settings in JSON; command-line options override them."
MINUTES_HELP = "Time of the whole command, dealt to what is undecided. Default: 1 for compare --quick, else none."


def options_of_measuring(command: Command) -> Command:
    """Add the options of every measurement."""
    for option in reversed((
        click.option("--quick", is_flag=True, help="Fewer cases, processes and rounds; never gates."),
        click.option("--thorough", is_flag=True, help="Twice the processes, to detect smaller differences."),
        click.option("--minutes", type=click.FloatRange(0, min_open=True), help=MINUTES_HELP),
        click.option("--config", type=FILE, metavar="FILE", help=CONFIG_HELP),
        click.option("--devices", type=Words(), multiple=True, metavar="A,B", help=DEVICES_HELP),
        click.option("--peers", type=Words(), metavar="A,B", help=PEERS_HELP),
        click.option("--operations", type=Words(), metavar="A,B", help="Ops: matmul, add, softmax, bitlinear …"),
        click.option("--sizes", "tensor_sizes", type=Sizes(), metavar="N,MxK", help="Sizes; 256 is 256x256."),
        click.option("--batches", "batch_sizes", type=Counts(), metavar="N,M", help="Batch sizes, instead of those in --sizes."),
        click.option("--dtypes", "data_types", type=Words(), metavar="A,B", help="Dtypes: f32, f16, bf16, f64."),
        click.option("--transfer", type=click.Choice(["excluded", "included", "both"]), help=TRANSFER_HELP),
        click.option("--load", multiple=True, type=FILE, metavar="FILE.py", help="Your own benchmarks (@tt.perf.benchmark); repeatable."),
        click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all available)."),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of inputs and order."),
        processes_option(1, "Fresh processes per contender."),
        INSTRUCTIONS,
        click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Results file."),
        click.option("--resume", is_flag=True, help="Continue an interrupted run of the same command."),
        click.option("--on", metavar="ADDRESS", help="Measure on a Dask cluster: tcp://host:port, or local:N workers here."),
        click.option("--format", type=FORMATS, default="text", show_default=True, help="Output format."),
        json_option("Print JSON: --format json.", "format"),
        NO_REPORT,
    )):  # fmt: skip
        command = option(command)
    return command


def options_of(
    suite: str, *, quick: bool, thorough: bool, config: str | None, load: tuple[str, ...], devices: tuple[tuple[str, ...], ...],
    output: str | None, instructions: bool, on: str | None = None, minutes: float | None = None, **values: Any,
) -> Options:  # fmt: skip
    """Return the options of a suite as the command line, a file and the suite itself have them, in this order."""
    from tritium.perf.suites import suites

    if quick and thorough:
        raise click.UsageError("--quick and --thorough were both given; choose one.")
    path = output_path(suite, output, config)
    if on and (load or suite == suites.PROJECT.name):
        raise click.UsageError(
            "--on measures what every machine has: your own benchmarks are files of this one. Leave one out."
        )
    own = [name for file in load for name in suites.load(file)]
    if suite == suites.PROJECT.name:
        own = own_project(bool(own))
    named = [name for group in devices for name in group] or None  # of every time the option was given
    status("looking for devices and libraries …")
    try:
        options = suites.options_of(
            suite, quick=quick, thorough=thorough, config=config, devices=named, own=own, minutes=minutes
        )
        return with_instructions(options.changed(output=path, **values), instructions)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from None
    finally:
        status("")


def own_project(loaded: bool) -> list[str]:
    """Load the benchmarks of the project in this folder, unless files were named; the suite has all that are loaded."""
    from tritium.perf.projects import discovery

    if not loaded:
        names, files = discovery.load(Path.cwd()), len(discovery.files(Path.cwd()))
        echo(f"{len(names)} benchmark{'s' * (len(names) != 1)} in {files} file{'s' * (files != 1)}", err=True)
    return []


def output_path(suite: str, output: str | None, config: str | None) -> Path:
    """Return the path of the results: never that of the configuration, never in a folder that does not exist."""
    path = Path(output or ("results.json" if suite == "compare" else f"{suite}_results.json"))
    if config and path.exists() and path.samefile(config):
        raise click.UsageError(f"{shown(str(path))} is the configuration; give another name with --output.")
    if not path.absolute().parent.is_dir():
        raise click.UsageError(
            f"--output: there is no folder {shown(str(path.parent))}; make it, or name another file."
        )
    return path


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Read a duration as files of settings have it."""

    return read_duration(value, parameter.opts[0]) if value else None


# ---- commands


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True))
@options_of_measuring
@click.pass_context
def compare(context: click.Context, /, files: tuple[str, ...], **parameters: Any) -> None:
    """Compare devices, kernels and other libraries, op by op.

    \b
    tritium compare --devices cpu,mlx,torch --peers none      devices
    tritium compare --devices cpu,cpu:portable,cpu:reference  CPU kernels
    tritium compare --batches 1,8,32 --transfer both          batches, transfers

    Every result is checked before it is timed. Contenders take turns in fresh processes, so that other load on the machine
    affects all alike. Ctrl-C keeps what was measured; --resume continues.

    With FILES of results, also of other tools, the first is compared with the others, and nothing is measured or judged.
    """
    if not files:
        measured("compare", parameters)
        return
    from tritium.cli.results import compare_files

    used = [name for name in parameters if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if used:
        option = next(p.opts[0] for p in context.command.params if p.name == used[0])
        raise click.UsageError(f"files are compared as they are; {option} is for a measurement.")
    compare_files(files)


class Suites(click.Group):
    """`bench NAME`: a suite by its name or the guides' name for it."""

    def list_commands(self, context: click.Context) -> list[str]:
        from tritium.perf.suites.suites import SUITES

        return ["model", "serve", "project", "all", *SUITES]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        from tritium.perf.suites import suites

        if name == "model":
            from tritium.cli.model import bench_model

            return bench_model
        if name == "serve":
            return bench_serve
        if name == "all":
            return bench_all
        if name == suites.PROJECT.name:
            return suite_command(name)
        if name not in suites.NAMES:
            known = ["model", "serve", "project", "all", *suites.NAMES]
            raise click.UsageError(
                f"{name!r} is not a suite.{nearest(name, known)} There are {', '.join(self.list_commands(context))}."
            )
        return suite_command(suites.NAMES[name])

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Suites"):
            formatter.write_dl([(name, doc) for name, doc, _ in listing()])


def listing() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the name, the description and other names of every suite."""
    from tritium.perf.suites.suites import PROJECT, SUITES

    rows = [(s.name, s.doc, s.aliases) for s in SUITES.values()]
    return [
        *rows,
        ("model", MODEL_DOC, ()),
        ("serve", SERVE_DOC, ()),
        (PROJECT.name, PROJECT.doc, ()),
        ("all", ALL_DOC, ()),
    ]


@click.group(cls=Suites, invoke_without_command=True)
@click.option("--list", "listed", is_flag=True, help="List the suites.")
@json_option("Print JSON: the suites.")
@click.pass_context
def bench(context: click.Context, listed: bool, as_json: bool) -> None:
    """Measure one benchmark suite."""
    if listed or context.invoked_subcommand is None:
        if as_json:
            keys = ("name", "description", "aliases")
            print_json([dict(zip(keys, suite, strict=True)) for suite in listing()])
            context.exit(0)
        rows = [[name, doc, ", ".join(aliases)] for name, doc, aliases in listing()]
        print_parts(Table(rows, ["suite", "what it measures", "also called"]))
        if not listed:
            echo("\nRun one: tritium bench NAME [--quick]")
        context.exit(0)


def suite_command(name: str) -> click.Command:
    """The command of one suite."""
    from tritium.perf.suites.suites import suite_named

    def run(**parameters: Any) -> None:
        measured(name, parameters)

    command = options_of_measuring(run)
    if name == "energy":
        for option in (
            click.option(
                "--duration",
                "power_measurement_duration_s",
                callback=seconds,
                help="Time to sample power per case, such as 10s.",
            ),
            click.option(
                "--tdp", "tdp_w", type=click.FloatRange(1, 2000), help="Watts of the processor, for estimates."
            ),
            click.option(
                "--allow-estimates", is_flag=True, default=None, help="Estimate energy where no sensor measures it."
            ),
        ):
            command = option(command)
    doc = suite_named(name).doc
    return click.command(name, help=f"{doc[0].upper()}{doc[1:]}.")(command)


@click.command(name="all")
@click.option("--quick", is_flag=True, help="Fewer cases, processes and rounds; never gates.")
@click.option("--thorough", is_flag=True, help="Twice the processes, to detect smaller differences.")
@click.option("--suites", "chosen", type=Words(), metavar="A,B", help="Only these suites.")
@click.option("--peers", type=Words(), metavar="A,B", help=PEERS_HELP)
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all available).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of inputs and order.")
@processes_option(1, "Fresh processes per contender.")
@click.option(
    "--folder", type=click.Path(file_okay=False), default=".", show_default=True, help="Folder of results and pages."
)
@click.option("--resume", is_flag=True, help="Continue: suites whose results are there are not measured again.")
@json_option("Print JSON: the exit code of each suite, and its results file.")
@INSTRUCTIONS
@NO_REPORT
def bench_all(chosen: tuple[str, ...] | None, folder: str, resume: bool, as_json: bool, **parameters: Any) -> None:
    """Measure every suite, one after the other.

    Each suite has its results file and its page, as if it had been measured alone. A suite that fails does not stop the others.
    """
    from tritium.perf.suites.suites import NAMES, SUITES

    for name in chosen or ():
        if name not in NAMES:
            raise click.UsageError(
                f"--suites: {name!r} is not a suite.{nearest(name, NAMES)} There are {', '.join(SUITES)}."
            )
    names = list(dict.fromkeys(NAMES[name] for name in chosen)) if chosen else list(SUITES)
    Path(folder).mkdir(parents=True, exist_ok=True)
    codes: dict[str, int] = {}
    rest = {"config": None, "load": (), "devices": (), "format": "json" if as_json else "text"}
    for i, name in enumerate(names, 1):
        path = Path(folder) / f"{name}_results.json"
        say(f"{name} ({i} of {len(names)})", "bold", err=as_json)
        if resume and path.exists():
            echo(f"measured before: {shown(str(path))}", err=as_json)
            continue
        codes[name] = measured_code(name, {**parameters, **rest, "output": str(path), "resume": resume}, quiet=as_json)
        if codes[name] == INTERRUPTED:
            break
    failed = [name for name, code in codes.items() if code]
    if as_json:
        print_json(
            [{"suite": n, "exit_code": c, "results": str(Path(folder) / f"{n}_results.json")} for n, c in codes.items()]
        )
    else:
        failures = f"; with failures: {', '.join(failed)}" if failed else ""
        echo(f"\n{len(codes)} of {len(names)} suites measured{failures}.")
    sys.exit(max(codes.values(), default=0))


# ---- one measurement


def measured(suite: str, parameters: dict[str, Any]) -> None:
    """Measure, print, write; exit with the code of `measured_code` where it is not 0."""
    if code := measured_code(suite, parameters):
        sys.exit(code)


def measured_code(suite: str, parameters: dict[str, Any], *, quiet: bool = False) -> int:
    """Measure, print, write; return 130 when it was interrupted, else the code of `perf.gate.verdict` for measurements.

    `quiet`: the table is in the files alone.
    """
    from tritium.perf.gate.verdict import NOTHING_MEASURED, failed_cells, measurement_exit_code

    options, began = None, time.monotonic()
    try:
        options = options_of(suite, **parameters)
        results, requested = _measure(options, parameters.get("on"), began)
    except KeyboardInterrupt:
        status("")
        if options is None:
            echo("interrupted; nothing was measured.", err=True)
            return INTERRUPTED
        left = f"; --resume goes on from {shown(options.journal.name)}" if options.journal.exists() else ""
        echo(f"interrupted; {shown(options.output.name)} was not written{left}.", err=True)
        return INTERRUPTED
    code = measurement_exit_code(results, requested)
    _after(options, results, code) if quiet else _print(options, results, code)
    if not results.complete:
        return INTERRUPTED
    is_narrowed = any(parameters.get(name) for name in ("devices", "config", "on"))
    if suite == "compare" and options.format == "text" and not is_narrowed and (more := tritium.backends.installable()):
        echo(f"also measured when installed: {', '.join(more)} ({install_command(*more.values())})")
    if failures := _failures(results, failed_cells(results, requested)):
        say(f"error: {failures}; the reasons are above.", "red", err=True)
    if code == NOTHING_MEASURED:
        say("error: nothing could be measured; the reasons are above.", "red", err=True)
    return code


def _failures(results: Results, failed: Sequence[Run]) -> str:
    """Return a sentence on failed cells, "" where none did: "1 of 4 cells failed: add 64x64 f32 [numpy] crashed"."""
    from tritium.perf.work.canary import is_canary

    if not failed:
        return ""
    cells = sum(not is_canary(run.case) for run in results)
    listed = ", ".join(shown(f"{run.case} [{run.arm}] {run.status}") for run in failed[:MOST_NAMED])
    more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
    return f"{len(failed)} of {cells} cells failed: {listed}{more}"


def _measure(options: Options, on: str | None, began: float) -> tuple[Results, tuple[str, ...]]:
    """Return what was measured and saved, and the contenders that were requested by name."""
    from tritium.perf.suites import suites

    grid = suites.grid(options)
    if not grid.cases:
        raise ArgumentError(f"{options.suite}: no case is left to measure. {' '.join(grid.notes)}")
    for note in grid.notes:
        echo(shown(note), err=True)
    journal = options.journal
    if options.resume and not journal.exists():
        echo(f"nothing to resume: there is no {shown(journal.name)}; measuring from the start.", err=True)
    with progress(grid.summary(options.plan)) as report:
        if on:
            from tritium.perf.suites import cluster

            with cluster.connected(on) as machines:
                results = cluster.measure(options, grid, machines, progress=report, journal=journal)
        else:
            spent_s = time.monotonic() - began
            results = suites.measure(options, grid, progress=report, journal=journal, spent_s=spent_s)
    _save(results, options.output)
    if results.complete:
        journal.unlink(missing_ok=True)
    return results, grid.requested


def _save(results: Results, path: Path) -> None:
    """Save the results; on a full disk or in a read-only folder, in a new folder of the temporary one.

    Others may write to the temporary folder: only a new folder with rights for its owner alone holds no link of theirs.
    """
    import tempfile

    from tritium.perf.store import results as store

    try:
        store.save(results, path)
    except SaveError as error:
        try:
            other = Path(tempfile.mkdtemp(prefix="tritium-")) / path.name
            store.save(results, other)
        except OSError:
            raise SaveError(f"{error} The temporary folder does not take them either; --resume continues.") from None
        raise SaveError(f"{error} The results are in {other}.") from None


# ---- what is printed


def _print(options: Options, results: Results, code: int) -> None:
    from tritium.perf.tables import pages

    if options.format in ("json", "csv"):
        from tritium.see.reports.export import export_results

        click.echo(export_results(results, options.format), nl=False)
    elif options.format == "markdown":
        click.echo(pages.markdown(results))
    else:
        echo(pages.page(results, page_width(), crossovers=not options.report))
    _after(options, results, code)


def _after(options: Options, results: Results, code: int) -> None:
    """Print what was written and what to try next; on stderr where stdout is for a program."""
    aside = options.format != "text"
    output = options.output
    if not results.complete:
        again = " ".join(["tritium", *sys.argv[1:], *([] if options.resume else ["--resume"])])
        echo(f"{results.notes[-1]}.", err=True)
        echo(f"written: {shown(str(output))}; go on with: {shown(again)}", err=True)
        return
    echo(f"written: {shown(str(output))} ({duration_text(results.elapsed_s)})", err=aside)
    if options.report:
        from tritium.cli.report import write_beside  # a page needs much more than the results

        write_beside(output, results, err=aside)
    echo(f"next: {_next(options, code)}", err=aside)


def _next(options: Options, code: int) -> str:
    name = shown(str(options.output))
    if code:
        return f"measure again when every cell runs: {name} has cells without a time, so it is no baseline to propose"
    if options.quick:
        full = "tritium compare" if options.suite == "compare" else f"tritium bench {options.suite}"
        return f"{full} measures longer, and its results can gate; tritium bench --list tells what else there is"
    return (
        f"tritium baseline create NAME {name}, then later tritium regression-check --baseline {name} --current NEW.json"
    )


# ---- servers


class Rates(click.ParamType):  # type: ignore[type-arg]
    """Request rates: numbers above 0, or inf, separated by commas."""

    name = "RATE,…"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[float, ...]:
        """Return the rates."""
        if isinstance(value, tuple):
            return value
        try:
            rates = tuple(float(part) for part in value.split(","))
        except ValueError:
            rates = ()
        if not rates or not all(rate > 0 for rate in rates):
            self.fail(
                f"{value!r} are no rates; needed are numbers above 0, or inf, separated by commas.", parameter, context
            )
        return rates


@click.command(name="serve")
@click.argument("urls", nargs=-1, required=True, metavar="URL [URL]")
@click.option(
    "--rates", type=Rates(), default="1,4,inf", show_default=True, help="Requests per second; inf: all at once."
)
@click.option("--requests", type=click.IntRange(1), default=20, show_default=True, help="Requests of a round.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds at each rate.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=64, show_default=True, help="Most requests at the same time."
)
@click.option("-p", "--words", type=click.IntRange(1), default=128, show_default=True, help="Words of a prompt.")
@click.option("-n", "--tokens", type=click.IntRange(1), default=64, show_default=True, help="Most tokens of an answer.")
@click.option(
    "--shared", type=click.IntRange(0), default=0, show_default=True, help="Words that all prompts begin with."
)
@click.option("--chat", is_flag=True, help="Measure chats instead of completions.")
@click.option("--ignore-eos", is_flag=True, help="Ask for answers that go on after the model's end (not OpenAI's).")
@click.option("--slo-first", metavar="TIME", help="A good answer begins within this time, as 500ms.")
@click.option("--slo-between", metavar="TIME", help="A good answer has at most this time per token.")
@click.option("--model", help="Model to ask for (default: the first that the server lists).")
@click.option("--api-key", envvar="TRITIUM_API_KEY", help="API key of the server; or set TRITIUM_API_KEY.")
@click.option(
    "--margin",
    type=click.FloatRange(0.001, 1),
    default=0.05,
    show_default=True,
    help="Share below which two are equivalent.",
)
@json_option("Print JSON with every request.")
def bench_serve(
    urls: tuple[str, ...], slo_first: str | None, slo_between: str | None, as_json: bool, **options: Any
) -> None:
    """Latency, throughput and goodput of a model server.

    Any server of OpenAI's API. Two are measured in turn and judged by the rules of the gate; exit code 1: the second is slower.
    """
    from tritium.perf.gate.serving import Workload, measure
    from tritium.perf.gate.verdict import FAILED_CELLS, INCONCLUSIVE, REGRESSION

    if len(urls) > 2:
        raise click.UsageError(f"one server or two are measured, given {len(urls)}.")
    shape = {name: options.pop(name) for name in ("words", "tokens", "shared", "chat", "ignore_eos")}
    first, between = (None if t is None else read_duration(t) for t in (slo_first, slo_between))
    with bar("measuring") as progress:
        report = measure(
            urls, workload=Workload(**shape, first_s=first, between_s=between), progress=progress, **options
        )
    if as_json:
        print_json(report.as_dict())
    else:
        echo(report.page())
    outcomes = [c.judged for c in report.comparisons]
    if any(j.outcome == "SLOWER" for j in outcomes):
        raise SystemExit(REGRESSION)
    if report.failed:
        raise SystemExit(FAILED_CELLS)
    if any(not j.passes for j in outcomes):
        raise SystemExit(INCONCLUSIVE)
