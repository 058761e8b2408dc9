"""`tritium reproduce`: the measured tables of docs/speed.md listed, or one of them measured again on this machine.

Knows nothing of how anything is measured: it runs a script of the checkout's bench/ folder, and no shell.

tritium reproduce                the tables, with their machines and commands
tritium reproduce dense          measures that table again, writes dense.json, and shows both
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tritium.arguments import duration_text
from tritium.cli.text import Table, echo, json_option, shown
from tritium.errors import ArgumentError, nearest

if TYPE_CHECKING:
    from tritium.perf.records.speed import Column, Figure, Need, SpeedTable

RESULTS, BENCH = Path("docs", "results"), Path("bench")
CHECKOUT = "the results files and the scripts that make them are in a checkout of Tritium, not in the installed package"


@click.command()
@click.argument("name", required=False)
@click.option(
    "--project",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="A checkout of Tritium (default: this folder or one above it).",
)
@click.option("--overwrite", is_flag=True, help="Replace ./NAME.json if it exists.")
@json_option("Print JSON: the tables, or the recorded and the new one.")
def reproduce(name: str | None, project: str | None, overwrite: bool, as_json: bool) -> None:
    """List the measured tables, or measure one again.

    The new figures of table NAME go to ./NAME.json; the file of the checkout is never changed. Where the machines differ, only ratios
    within one machine compare.
    """
    from tritium.perf.records import json_io as records, speed

    folder = find_checkout(project)
    paths = {path.stem: path for path in sorted((folder / RESULTS).glob("*.json"))}
    if name is None:
        tables = [speed.load(path) for path in paths.values()]
        if as_json:
            click.echo(records.dumps(tables, indent=2, ascii_only=True))
        else:
            echo(listing(tables))
        return
    if name not in paths:
        raise ArgumentError(f"there is no table {name!r}; there are {', '.join(paths)}.{nearest(name, paths)}")
    old = speed.load(paths[name])
    target = Path(f"{name}.json")
    check_target_file(target, paths[name], overwrite)
    if lacks := missing(old):
        raise ArgumentError(f"{name} cannot be measured here:\n" + "\n".join(f"  {line}" for line in lacks))
    for line in absent_peers(old):
        echo(f"note: {shown(line)}", err=True)
    run_script(folder, old, target)
    new = speed.load(target)
    if as_json:
        click.echo(records.dumps({"recorded": old, "here": new}, indent=2, ascii_only=True))
    else:
        echo(comparison(old, new))
    echo(f"\nwritten: {shown(str(target))}", err=as_json)


# ---- the checkout


def find_checkout(project: str | None) -> Path:
    """Return the checkout to use; ArgumentError says what to do where there is none."""
    if project is not None:
        if not is_checkout(Path(project)):
            raise ArgumentError(
                f"--project {shown(project)}: there is no {RESULTS.as_posix()} beside bench/; {CHECKOUT}."
            )
        return Path(project).resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if is_checkout(folder):
            return folder
    raise ArgumentError(
        f"no checkout here or above {shown(str(here))}: {CHECKOUT}. Change into one, or name it with --project DIR."
    )


def is_checkout(folder: Path) -> bool:
    return (folder / RESULTS).is_dir() and (folder / BENCH / "results.py").is_file()


def script_of(folder: Path, table: SpeedTable) -> Path:
    """Return the script of a table; ArgumentError where it is no file of the checkout's bench/ folder."""
    script = folder / table.command[0]
    home = (folder / BENCH).resolve()
    if not script.is_file() or script.resolve().parent != home:
        raise ArgumentError(f"{shown(table.command[0])} is no script of {shown(str(home))}; update the checkout.")
    return script.resolve()


def check_target_file(target: Path, committed: Path, overwrite: bool) -> None:
    """Refuse to write over the committed file, or over any file that was not given up."""
    if target.resolve() == committed.resolve():
        raise ArgumentError(f"./{target} is the committed results file; run the command in another folder.")
    if target.exists() and not overwrite:
        raise ArgumentError(f"./{target} exists already; --overwrite replaces it.")


# ---- what is there


def missing(table: SpeedTable) -> list[str]:
    """Return a line for everything the command needs and this machine does not have."""
    return [f"{shown(need.name)} is missing: {shown(need.remedy)}" for need in table.needs if not has(need)]


def has(need: Need) -> bool:
    if need.kind == "module":
        return importlib.util.find_spec(need.name) is not None
    if need.kind == "file":
        return os.path.exists(need.name) or shutil.which(need.name) is not None
    from tritium.perf.records.environment import gpus

    return bool(gpus())


def absent_peers(table: SpeedTable) -> Iterator[str]:
    """Yield a line for each library that was compared and is not installed: its columns will be empty."""
    for peer in ("numpy", "torch", "jax", "mlx", "transformers"):
        if peer in table.versions and importlib.util.find_spec(peer) is None:
            yield f"{peer} is not installed: its figures will be missing; pip install {peer}"


def run_script(folder: Path, old: SpeedTable, target: Path) -> None:
    """Run the recorded command with this Python; the script writes the results file."""
    script = script_of(folder, old)
    command = [sys.executable, str(script), *old.command[1:], "--results", str(target)]
    took = f"; it took {duration_text(60 * old.minutes)} when it was recorded" if old.minutes is not None else ""
    echo(f"running: python {shown(shlex.join(old.command))}{took}", err=True)
    before = target.stat().st_mtime_ns if target.exists() else None
    code = subprocess.run(command, check=False).returncode
    if not target.exists() or target.stat().st_mtime_ns == before:
        raise ArgumentError(
            f"{shown(old.command[0])} ended with exit code {code} and wrote no figures; its messages are above."
        )
    if code:
        echo(f"note: {shown(old.command[0])} ended with exit code {code}; its messages are above", err=True)


# ---- text


def listing(tables: list[SpeedTable]) -> str:
    """Return what there is to reproduce, one block a table."""
    lines = []
    for one in tables:
        took = "duration not recorded" if one.minutes is None else f"about {duration_text(60 * one.minutes)}"
        lines += [
            f"{one.name}: {shown(one.title)}",
            f"  {shown(one.machine.text)}; {shown(one.date) or 'date not recorded'}; {took}",
            f"  python {shown(shlex.join(one.command))}",
        ]
    return "\n".join([*lines, "", "tritium reproduce NAME measures one of them again here."])


def comparison(old: SpeedTable, new: SpeedTable) -> str:
    """Return both runs side by side. On another machine only ratios are compared."""
    same = old.machine.same(new.machine)
    columns = {column.name: column for column in old.columns if column.name in {c.name for c in new.columns}}
    rows = []
    for entry in old.rows:
        again = new.entry(entry.labels)
        for name, figure in entry.figures.items():
            if again is None or name not in again.figures or name not in columns:
                continue
            other, column = again.figures[name], columns[name]
            comparable = (same or column.kind == "ratio") and figure.median
            changed = f"{other.median / figure.median:.2f}" if comparable else ""
            rows.append(
                [*map(shown, entry.labels), shown(title(column)), figure_text(figure), figure_text(other), changed]
            )
    head = [f"recorded: {place(old)}", f"here:     {place(new)}"]
    if not same:
        head.append("The machines differ: times do not compare, only ratios within one machine (×) do.")
    if not rows:
        return "\n".join([*head, "", "The runs have no figure in common: the script names its rows otherwise today."])
    left = sum(len(entry.figures) for entry in old.rows) - len(rows)
    body = str(Table(rows, [*map(shown, old.labels), "figure", "recorded", "here", "here / recorded"]))
    return "\n".join([*head, "", body, *([f"{left} recorded figures have no counterpart here."] if left else [])])


def place(one: SpeedTable) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    return shown("; ".join(filter(None, [one.machine.text, versions, one.date or "date not recorded"])))


def title(column: Column) -> str:
    return column.name if column.unit in ("", "×") else f"{column.name}, {column.unit}"


def figure_text(figure: Figure) -> str:
    """Return a median with its interval, or that there is none."""
    interval = "" if figure.low is None or figure.high is None else f" ({figure.low:.3g} … {figure.high:.3g})"
    return f"{figure.median:.3g}{interval or ' (no interval)'}"
