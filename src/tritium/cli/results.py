"""The commands for files of results: show, convert and import. They print.

tritium results show FILE                a table of what was measured, whoever measured it
tritium results convert IN --to FORMAT   the same results for another program
tritium results import FILE -o OUT       results of another tool as a file of ours
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click

from tritium.cli.text import Table, echo, file_errors, json_option, print_json, print_parts, shown
from tritium.errors import ArgumentError

FILE = click.Path(exists=True)  # criterion writes a folder
FROM_HELP = "Format of FILE (default: detected); results convert --list names them."


@click.group(name="results")
def results_group() -> None:
    """Show, convert and import results files."""


@results_group.command()
@click.argument("file", type=FILE)
@click.option("--from", "source", metavar="FORMAT", help=FROM_HELP)
@json_option("Print JSON: results as tritium stores them.")
def show(file: str, source: str | None, as_json: bool) -> None:
    """Show results as a table.

    FILE may be of tritium or of any tool that `tritium results convert --list` reads.
    """
    from tritium.perf.formats import imports
    from tritium.perf.tables import pages

    results = imports.load(file, source)
    if as_json:
        from tritium.perf.formats import exports

        click.echo(exports.export_metrics(results, "json"), nl=False)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
    echo(pages.page(results, width))


@results_group.command()
@click.argument("file", metavar="IN", type=FILE, required=False)
@click.option("--to", metavar="FORMAT", help="Format to write; see --list.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Output file (default: stdout).")
@click.option("--from", "source", metavar="FORMAT", help=FROM_HELP)
@click.option("--no-guard", is_flag=True, help="CSV: do not escape names that look like formulas.")
@click.option("--list", "listing", is_flag=True, help="List the formats.")
@json_option("Print JSON: the list of formats, or what was written.")
def convert(
    file: str | None,
    to: str | None,
    output: str | None,
    source: str | None,
    no_guard: bool,
    listing: bool,
    as_json: bool,
) -> None:
    """Convert results to another tool's format. Nothing is rounded; names are escaped as the format needs."""
    from tritium.machine import files
    from tritium.perf.formats import exports, imports

    if listing:
        if as_json:
            writes = {name: f.what for name, f in exports.FORMATS.items()}
            print_json({"writes": writes, "reads": {name: f.what for name, f in imports.FORMATS.items()}})
            return
        print_parts(Table([[k, f.what] for k, f in exports.FORMATS.items()], ["writes", ""]), "")
        print_parts(Table([[k, f.what] for k, f in imports.FORMATS.items()], ["reads", ""]))
        return
    if file is None or to is None:
        raise click.UsageError(
            "IN and --to FORMAT are needed, as in: tritium results convert results.json --to csv -o results.csv"
        )
    text = exports.export_metrics(imports.load(file, source), to, guard=not no_guard)
    if output is None:
        click.echo(text, nl=False)
        return
    path = files.write_text(output, text)
    if as_json:
        print_json({"path": str(path), "format": to})
    else:
        echo(f"written: {shown(str(path))}")


@results_group.command(name="import")
@click.argument("file", type=FILE)
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="Results file to write.")
@click.option("--from", "source", metavar="FORMAT", help=FROM_HELP)
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists.")
@json_option()
def import_command(file: str, output: str, source: str | None, overwrite: bool, as_json: bool) -> None:
    """Import results of other tools.

    FILE is of pytest-benchmark, pyperf, asv, criterion (its folder), Google Benchmark, hyperfine, NVBench, llama-bench, k6 or
    locust; what is made can be shown, compared and converted.
    """
    from pathlib import Path

    from tritium.perf.formats import imports
    from tritium.perf.store import results as store

    if Path(output).exists() and not overwrite:
        raise ArgumentError(f"{shown(output)} is there already; --overwrite replaces it.")
    results = imports.load(file, source)
    path = store.save(results, output)
    if as_json:
        origin = results.suite or results.kind
        print_json({"path": str(path), "runs": len(results.runs), "from": origin, "notes": list(results.notes)})
        return
    echo(f"written: {shown(str(path))}, {len(results.runs)} runs from {results.suite or results.kind}")
    for note in results.notes:
        echo(f"note: {shown(note)}")


def compare_files(files: Sequence[str]) -> None:
    """Print how each file of results differs from the first one; `tritium compare` with files does this."""
    from tritium.perf.gate import page, regression

    if len(files) < 2:
        raise click.UsageError("two files or more are compared with the first; one was given.")
    with file_errors():
        for i, file in enumerate(files[1:]):
            suite = regression.regression_check(files[0], file)
            echo("\n" * bool(i) + page.differences(suite))
