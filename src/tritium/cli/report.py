"""The command that makes a report of results, and what other commands need to write one beside theirs. It prints.

tritium report                                          # of ./results.json
tritium report --input results.json --output report.html
tritium report --input results.json --charts charts --format png
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.text import echo, shown
from tritium.errors import ArgumentError, FormatError, SaveError, TritiumError

if TYPE_CHECKING:
    from tritium.perf.gate.verdict import Suite
    from tritium.perf.records.run import Results
    from tritium.see.reports.report import Report

FILE = click.Path(dir_okay=False)
FORMS = ("html", "markdown", "text", "json")
PICTURES = ("svg", "png")
DEFAULT = "results.json"  # what tritium compare writes
SUFFIXES = {"html": ".html", "markdown": ".md", "text": ".txt", "json": ".json"}


@click.command()
@click.argument("file", required=False, type=FILE)
@click.option(
    "--input",
    "source",
    type=FILE,
    metavar="FILE",
    help="Results of tritium, pytest-benchmark, pyperf or llama-bench (default: ./results.json).",
)
@click.option("--output", type=FILE, metavar="FILE", help="Output file (default: report.html; text, markdown: stdout).")
@click.option(
    "--format",
    "to",
    type=click.Choice([*FORMS, *PICTURES]),
    help="Format (default: by suffix); svg and png are for --charts.",
)
@click.option("--verdict", type=FILE, metavar="FILE", help="verdict.json of a regression gate.")
@click.option("--baseline", metavar="FILE|NAME", help="Earlier results to judge by, unless --verdict is given.")
@click.option("--profile", type=FILE, metavar="FILE", help="A file of tritium profile --output.")
@click.option("--before", type=FILE, metavar="FILE", help="An earlier profile to compare with.")
@click.option("--memory", type=FILE, metavar="FILE", help="A file of tritium memory --output.")
@click.option("--selftest", type=FILE, metavar="FILE", help="Output of tritium selftest --aa --json.")
@click.option("--history", is_flag=True, help="Include the stored runs of this machine.")
@click.option(
    "--charts",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write every chart to DIR, as SVG or PNG.",
)
@click.option("--from", "kind", metavar="FORMAT", help="Format of the input (default: detected).")
def report(
    file: str | None, source: str | None, output: str | None, to: str | None, charts: str | None, **options: Any
) -> None:
    """Write an HTML report of a run. It holds charts, verdicts, environment and raw values, and needs no network.

    The page holds its data; the same input gives the same bytes.
    """
    if file is not None and source is not None:
        raise click.UsageError("results were given twice, as FILE and with --input; leave one of them out.")
    source = file if file is not None else source
    if source is None:
        source = DEFAULT
        if not Path(source).is_file():
            raise click.UsageError(
                f"there is no ./{DEFAULT} here: measure first (tritium compare --quick), or name a file: tritium report FILE."
            )
    picture = to if to in PICTURES else None
    if picture and not charts:
        raise click.UsageError(f"--format {picture} is of charts: name a folder with --charts DIR.")
    if options["before"] and not options["profile"]:
        raise click.UsageError("--before is an earlier profile: give the later one with --profile FILE.")
    form = None if picture else to
    page = _made(source, options)
    if charts:
        written = page.charts(charts, picture or "svg")
        echo(f"written: {len(written)} charts in {shown(charts)}", err=form == "text")
        if output is None and form is None:
            return
    if output is None and form in ("text", "markdown"):
        if form == "text":
            echo(page.text(), nl=False)
        else:
            click.echo(page.markdown(), nl=False)
        return
    path = Path(output or f"report{SUFFIXES[form or 'html']}")
    if path.exists() and path.samefile(source):
        raise click.UsageError(f"{shown(str(path))} is the input; give another name with --output.")
    echo(f"written: {shown(str(page.save(path, form)))}")


def _made(source: str, options: dict[str, Any]) -> Report:
    """Every file is read before anything is written."""
    from tritium.perf.formats import imports
    from tritium.perf.gate import regression
    from tritium.see.reports import report as reports

    results = _read(source, lambda path: imports.load(path, options["kind"]))
    facts: dict[str, Any] = {"sha256": _hash(source)}
    for name, read in READERS.items():
        if options[name] is not None:
            facts["verdicts" if name == "verdict" else name] = _read(options[name], read)
    if options["baseline"] is not None:
        facts["baseline"] = _read(options["baseline"], regression.loaded)
    if not options["history"]:
        return reports.report(results, **facts)
    from tritium.perf.store.history import History

    with History() as history:
        return reports.report(results, history=history, **facts)


def _read(path: str, read: Callable[[str], Any]) -> Any:
    """Read a file; a missing one is an error of one line, like everything else wrong with it."""
    try:
        return read(path)
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {shown(path)}.") from None
    except SaveError:
        raise
    except OSError as error:
        raise ArgumentError(f"{shown(path)}: cannot be read: {error.strerror or error}.") from None


def _hash(path: str) -> str:
    """The hash that a file of results has in it; nothing for a file of others."""
    from tritium.perf.store import results as store

    if not Path(path).is_file():  # a pipe was read to its end
        return ""
    try:
        return store.load_with_digest(path)[1]
    except FormatError:
        return ""


def _verdict(path: str) -> Suite:
    from tritium.perf.gate.verdict import Suite
    from tritium.perf.records import json_io as records

    return records.load(Suite, path)


def _selftest(path: str) -> Any:
    from tritium.perf.gate.selftest import Selftest
    from tritium.perf.records import json_io as records

    return records.load(Selftest, path)


def _profile(path: str) -> Any:
    from tritium.see.profile.profile import load_profile

    return load_profile(path)


def _memory(path: str) -> Any:
    from tritium.see.memory import file as memory_file

    return memory_file.load(path)


READERS: dict[str, Callable[[str], Any]] = {
    "verdict": _verdict, "selftest": _selftest, "profile": _profile, "before": _profile, "memory": _memory,
}  # fmt: skip


# ---- beside the results of other commands


def name_beside(path: Path) -> Path:
    """results.json: report.html; memory_results.json: memory_report.html; verdict.json: regression_report.html; x.json: x_report.html."""
    stem = path.stem
    if stem == "verdict":
        return path.with_name("regression_report.html")
    name = f"{stem.removesuffix('results')}report" if stem.endswith("results") else f"{stem}_report"
    return path.with_name(f"{name}.html")


def write_beside(path: Path, results: Results, *, err: bool = False, **facts: Any) -> None:
    """A page next to the file `path`, and a line that names it. A page that cannot be written changes nothing else."""
    from tritium.see.reports import report as reports

    if not path.is_file() or Path("/dev") in path.absolute().parents:
        return  # a pipe or a device has nothing beside it
    try:
        place = reports.report(results, sha256=_hash(str(path)), **facts).save(name_beside(path))
    except (TritiumError, OSError) as error:
        echo(f"no report was written: {shown(str(error))}", err=True)
        return
    echo(f"written: {shown(str(place))}", err=err)
