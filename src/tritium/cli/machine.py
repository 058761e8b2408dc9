"""`tritium doctor` and `tritium targets`: what stands in the way of speed here, and how far the guides' targets are reached.

Knows nothing of what is looked at or how it is measured.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from typing import Any

import click

from tritium.cli.target import check_folders, check_outputs, check_target, run_target
from tritium.cli.text import Table, bar, echo, json_option, print_parts, say, shown

FILE, THERE = click.Path(dir_okay=False), click.Path(exists=True, dir_okay=False)
COLOURS: dict[Any, str] = {"problem": "red", "warning": "yellow", "note": "cyan"}
MISSED = {"pass": "green", "not reached": "yellow", "undecided": "yellow"}


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@json_option("Print JSON; the script's output goes to stderr.")
@click.option("--strict", is_flag=True, help="Exit code 1 on a warning or a problem.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]...")
def doctor(module: str | None, as_json: bool, strict: bool, target: tuple[str, ...]) -> None:
    """Find out why something is slow or noisy on this machine.

    Checks the machine, Tritium's settings and, with a SCRIPT, what that does. Every finding has evidence, measured now, and a
    remedy; checks that could not run are named. Options go before SCRIPT, its arguments after it. It runs once, inside this
    process; its exit code is returned.
    """
    from tritium.see.doctor.diagnosis import diagnose

    codes = [0]  # of the script, when it ended
    if module is None and not target:
        diagnosis = diagnose()
    else:
        script, args = (None, target) if module is not None else (target[0], target[1:])
        check_target(script, module)
        aside = redirect_stdout(sys.stderr) if as_json else nullcontext()
        with aside:
            diagnosis = diagnose(lambda: _kept(codes, run_target(script, module, args)), module or script or "")
    if as_json:
        click.echo(json.dumps(diagnosis.as_dict(), indent=2, allow_nan=False))
    else:
        for line, severity in diagnosis.lines():
            head = severity or ""
            say(
                line[: len(head)],
                f"bold {COLOURS[severity]}" if severity in COLOURS else "bold" if head else "",
                end="",
            )
            echo(line[len(head) :], column=len(head))
    raise SystemExit(codes[-1] or int(strict and not diagnosis.ok))


def _kept(codes: list[int], code: int) -> int:
    codes.append(code)
    return code


@click.command()
@json_option("Print JSON with intervals and sources.")
@click.option("--quick", is_flag=True, help="0.1 s per figure instead of 0.5 s.")
@click.option("--strict", is_flag=True, help="Exit code 1 if a target is not reached.")
@click.option("--output", type=FILE, metavar="FILE", help="Also write a file: .html, .md, .txt or .json.")
@click.option("--input", "source", type=THERE, metavar="FILE", help="Show a file that --output or --json wrote.")
def targets(as_json: bool, quick: bool, strict: bool, output: str | None, source: str | None) -> None:
    """Measure the guides' performance targets on this machine.

    The targets are the guides', for their own libraries and machines; what this machine's ceilings allow is shown beside
    them. A target that cannot be measured has a reason. Ceilings are measured once (a few seconds) and then read from a file.
    With --input nothing is measured: outcomes and machine are those of the file.
    """
    from tritium.see.reports.report import form_of
    from tritium.see.targets import file as targets_file, page as targets_page
    from tritium.see.targets.targets import HEADS, QUICK_S, SECONDS, rows, summary

    if source is not None and quick:
        raise click.UsageError("--quick is of a measurement, and --input measures nothing: leave one of them out.")
    if output is not None:
        form_of(output, what="targets")  # before anything is measured
        check_outputs([output], inputs=[source] if source is not None else [])
        check_folders([output])
    if source is not None:
        measured = targets_file.load(source)
    else:
        with bar("measuring") as progress:
            measured = targets_file.measured(seconds=QUICK_S if quick else SECONDS, progress=progress)
    outcomes = measured.results
    written = (
        None if output is None else targets_page.save(measured, output)
    )  # before anyone can stop reading what is printed
    if as_json:
        click.echo(measured.json(), nl=False)
    else:
        body = [[shown(cell) for cell in row] for row in rows(outcomes)]
        print_parts(Table(body, HEADS, [MISSED.get(reached.outcome, "") for reached in outcomes]), "")
        for line in summary(outcomes):
            echo(shown(line))
    if written is not None:
        echo(f"written: {shown(str(written))}", err=as_json)
    if strict and any(r.outcome == "not reached" for r in outcomes):
        raise SystemExit(1)
