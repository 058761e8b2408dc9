"""The command `time`: any programs, side by side. It prints and sets exit codes.

tritium time -- sort a.txt --vs sort -u a.txt       words as they are; --vs begins the next command
tritium time 'sort a.txt' 'sort -u a.txt'           each argument is a command line
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.regression import CODES, share
from tritium.cli.text import INTERRUPTED, echo, file_errors, json_option, progress, shown

if TYPE_CHECKING:
    from tritium.perf.gate.verdict import Suite
    from tritium.perf.projects.programs import Parameter, Program
    from tritium.perf.records.run import Results

VERSUS, CASE = "--vs", "time"
FILE = click.Path(dir_okay=False)
Words = tuple[str, ...]


class Commands(click.Command):
    """A command whose words after `--` are programs, with `--vs` between them."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Take the words after `--` out before options are read: they are not ours."""
        words: list[Words] = []
        if "--" in args:
            place = args.index("--")
            rest, args = args[place + 1 :], args[:place]
            begin = [-1, *(i for i, word in enumerate(rest) if word == VERSUS), len(rest)]
            words = [tuple(rest[a + 1 : b]) for a, b in pairwise(begin)]
        context.meta["words"] = words
        return super().parse_args(context, args)


@click.command(name="time", cls=Commands, epilog=f"With --threshold: {CODES[0].lower()}{CODES[1:]}")
@click.argument("lines", metavar="COMMAND", nargs=-1)
@click.option("-n", "--name", "names", multiple=True, metavar="NAME", help="Name of a command, in order; repeatable.")
@click.option("-r", "--runs", type=click.IntRange(1), help="Runs of each (default: 3 s of them, 15 to 1500).")
@click.option(
    "-m", "--min-runs", "least_runs", type=click.IntRange(1), default=15, show_default=True, help="Fewest runs of each."
)
@click.option(
    "-M", "--max-runs", "most_runs", type=click.IntRange(1), default=1500, show_default=True, help="Most runs of each."
)
@click.option(
    "-w", "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Runs of each that do not count."
)
@click.option("-s", "--setup", multiple=True, metavar="CMD", help="Once before each command; one for all, or one each.")
@click.option("-p", "--prepare", multiple=True, metavar="CMD", help="Before every run; one for all, or one each.")
@click.option("-C", "--conclude", multiple=True, metavar="CMD", help="After every run; one for all, or one each.")
@click.option(
    "-c", "--cleanup", multiple=True, metavar="CMD", help="Once after each command; one for all, or one each."
)
@click.option(
    "-P", "--parameter-scan", "scans", nargs=3, multiple=True, metavar="VAR MIN MAX", help="Replace {VAR} by numbers."
)
@click.option(
    "-D",
    "--parameter-step-size",
    "step",
    default="1",
    show_default=True,
    metavar="STEP",
    help="Step of --parameter-scan.",
)
@click.option(
    "-L", "--parameter-list", "lists", nargs=2, multiple=True, metavar="VAR A,B", help="Replace {VAR} by values."
)
@click.option(
    "-S", "--shell", default="auto", show_default=True, metavar="SHELL", help="auto, none, or a shell such as bash."
)
@click.option("-N", "without_shell", is_flag=True, help="Run without a shell: --shell none.")
@click.option("-i", "--ignore-failure", is_flag=True, help="Count runs that fail, whatever their exit code.")
@click.option(
    "--accept", multiple=True, type=int, metavar="CODE", help="Exit code that is no failure, beside 0; repeatable."
)
@click.option(
    "--input",
    "input_file",
    type=click.Path(exists=True, dir_okay=False),
    help="Standard input of every run (default: none).",
)
@click.option("--show-output", is_flag=True, help="Show what the programs print (on stderr).")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.001), default=600.0, show_default=True, help="Seconds of one run."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order.")
@click.option(
    "--threshold", callback=share, metavar="SHARE", help="Fail where a command is slower than the first by this share."
)
@click.option("--export-json", type=FILE, metavar="FILE", help="Write JSON as hyperfine does.")
@click.option("--export-markdown", type=FILE, metavar="FILE", help="Write a Markdown table.")
@click.option("--export-csv", type=FILE, metavar="FILE", help="Write CSV as hyperfine does.")
@click.option("--results", type=FILE, metavar="FILE", help="Write a results file, for report, history and compare.")
@json_option("Print JSON as hyperfine writes it.")
@click.pass_context
def time(context: click.Context, /, lines: Words, **options: Any) -> None:
    """Time any programs side by side.

    \b
    tritium time -- gzip -k9 a.txt --vs zstd -k19 a.txt
    tritium time --prepare 'sync' 'make -j1' 'make -j2'
    tritium time -P N 1 4 'make -j{N}'

    Rounds are interleaved: each runs every command once, in random order. Every command is compared with the first: the ratio
    of their times with its interval, and a verdict.
    """
    from tritium.perf.projects.programs import measure_programs
    from tritium.perf.projects.timing import as_json, judged, page

    programs = programs_of(context.meta["words"], lines, options)
    output: Any = sys.stderr.buffer if options["show_output"] else subprocess.DEVNULL
    with progress(f"{len(programs)} command{'s' * (len(programs) != 1)}, interleaved") as report:
        results = measure_programs(
            {(CASE, name): program for name, program in programs.items()}, output=output, progress=report,
            **{key: options[key] for key in ("runs", "least_runs", "most_runs", "warmup", "seed", "timeout_s")},
        )  # fmt: skip
    suite = judged(results, rules_of(options["threshold"]))
    if options["as_json"]:
        click.echo(as_json(results), nl=False)
    else:
        echo(page(results, suite))
    _write(results, suite, options)
    sys.exit(exit_code(results, suite, gates=options["threshold"] is not None))


def rules_of(threshold: str | None) -> Any:
    """Return the rules for programs: their wall time is judged."""
    from tritium.perf.gate import noise, regression

    rules = regression.rules_of(threshold, paired=True, known=noise.known())
    return replace(rules, metrics=("wall",))


def exit_code(results: Results, suite: Suite, *, gates: bool) -> int:
    """Return the exit code: of the gate where there is one, else whether everything ran."""
    from tritium.perf.gate.verdict import measurement_exit_code

    if not results.complete:
        return INTERRUPTED
    failed = measurement_exit_code(results)
    return failed or (suite.exit_code if gates and len(results.arms) > 1 else 0)


def programs_of(words: list[Words], lines: Words, options: dict[str, Any]) -> dict[str, Program]:
    """Return the programs by name: commands times the values of the parameters."""
    from tritium.perf.projects.programs import Program, combinations, substituted

    commands: list[str | Words] = [*lines, *words]
    if not commands or not all(commands):
        raise click.UsageError(
            "a command is needed: tritium time -- PROGRAM ARGUMENT … [--vs PROGRAM …], or 'a command line'."
        )
    accepted = None if options["ignore_failure"] else frozenset({0, *options["accept"]})
    shell = "none" if options["without_shell"] else options["shell"]
    source = Path(options["input_file"]).resolve() if options["input_file"] else None
    values = combinations(_parameters(options))
    around = {name: _each(name, options[name], len(commands)) for name in ("setup", "prepare", "conclude", "cleanup")}
    names = _names(options["names"], len(commands), len(values))
    programs: dict[str, Program] = {}
    for i, command in enumerate(commands):
        for j, one in enumerate(values):
            replaced = (
                substituted(command, one) if isinstance(command, str) else tuple(substituted(w, one) for w in command)
            )
            lines_around: dict[str, Any] = {name: substituted(each[i], one) for name, each in around.items()}
            facts = {"parameters": one} if one else {}
            program = Program(replaced, shell, **lines_around, input=source, accepted=accepted, facts=facts)
            name = names.get((i, j), program.text)
            programs[f"{name} ({i + 1})" if name in programs else name] = program
    return programs


def _names(names: Words, commands: int, combinations: int) -> dict[tuple[int, int], str]:
    """Return the names that were given, by command and combination: one for each, in order."""
    count = commands * combinations
    if len(names) > count:
        raise click.UsageError(f"--name was given {len(names)} times for {count} commands.")
    return {divmod(k, combinations): name for k, name in enumerate(names)}


def _each(option: str, values: Words, count: int) -> Words:
    """Return the value of an option for each command: one for all, or one each."""
    if len(values) not in (0, 1, count):
        raise click.UsageError(
            f"--{option} was given {len(values)} times for {count} commands; give it once, or once for each."
        )
    return values if len(values) == count else (values or ("",)) * count


def _parameters(options: dict[str, Any]) -> list[Parameter]:
    from tritium.perf.projects.programs import Parameter, scan

    listed = [scan(name, low, high, options["step"]) for name, low, high in options["scans"]]
    listed += [Parameter(name, tuple(values.split(","))) for name, values in options["lists"]]
    names = [p.name for p in listed]
    if len(set(names)) < len(names):
        raise click.UsageError(f"a parameter was given twice: {', '.join(names)}.")
    return listed


def _write(results: Results, suite: Suite, options: dict[str, Any]) -> None:
    from tritium.machine.files import write_text
    from tritium.perf.projects.timing import as_csv, as_json, as_markdown
    from tritium.perf.store import results as store

    texts: dict[str, Callable[[], str]] = {
        "export_json": lambda: as_json(results), "export_markdown": lambda: as_markdown(results, suite),
        "export_csv": lambda: as_csv(results),
    }  # fmt: skip
    with file_errors():
        for option, text in texts.items():
            if options[option]:
                write_text(options[option], text())
                echo(f"written: {shown(options[option])}", err=True)
        if options["results"]:
            store.save(results, options["results"])
            echo(f"written: {shown(options['results'])}", err=True)
