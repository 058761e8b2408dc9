"""`tritium memory`: a script, a module or a workload run with its memory tracked, and a page of what was seen.

The exit code of the script is ours.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import click

from tritium.cli.target import check_folders, check_outputs, check_target, make_workload, run_target
from tritium.cli.text import echo, json_option, shown

CALLS = 3  # of a workload


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, no_args_is_help=True
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option("--workload", metavar="NAME", help="Run a workload: prefill, decode, batch_processing …")
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Rows per table.")
@click.option(
    "--output",
    multiple=True,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a page (.html), everything (.json) or the events (.csv); repeatable.",
)
@click.option("--capacity", type=click.IntRange(1), default=100_000, show_default=True, help="Events the log holds.")
@click.option("--leaks", is_flag=True, help="Exit code 1 if tensors outlive a script that succeeded.")
@click.option("--python", is_flag=True, help="Track Python objects too (tracemalloc; slow).")
@json_option("Print JSON with every event; the script's output goes to stderr.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]...")
def memory(
    module: str | None, workload: str | None, top: int, output: tuple[str, ...], capacity: int, leaks: bool, python: bool,
    as_json: bool, target: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a program and show what its memory is used for.

    Runs SCRIPT with its ARGS inside this process, as python would, and then prints the peak, the lines of code, the tensors
    alive at the peak and at the end, and what would save memory. Its exit code is returned.
    """
    from tritium.perf.records import json_io as records
    from tritium.see.memory import page as memory_page
    from tritium.see.memory.allocations import track_memory
    from tritium.see.memory.file import writer

    own = module is not None or workload is not None
    script = None if own or not target else target[0]
    if script is not None and script.startswith("-"):
        raise click.NoSuchOption(script)
    check_target(script, module, workload)
    files = [(path, writer(path), Path(path).absolute()) for path in output]  # a script may go to another folder
    check_outputs(output, script)
    check_folders(output)
    name = workload or module or script or ""
    aside = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with aside, track_memory(name, capacity=capacity, python=python) as m:
        code = _work(workload) if workload is not None else run_target(script, module, target if own else target[1:])
    record = m.record()
    if as_json:
        click.echo(records.dumps(record, indent=2, ascii_only=True))
    else:
        echo(memory_page.text(record, top), nl=False)
    for path, write, place in files:
        write(record, place)
        echo(f"written: {shown(path)}", err=True)
    raise SystemExit(code or int(leaks and bool(record.leaks)))


def _work(name: str) -> int:
    _, call = make_workload(name)
    for _ in range(CALLS):
        call()
    return 0
