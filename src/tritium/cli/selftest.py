"""The command that measures the gate itself: tritium selftest --aa."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tritium.cli.text import bar


@click.command()
@click.option("--aa", is_flag=True, help="Measure equal code against itself: the false alarms of this machine.")
@click.option("--suites", type=click.IntRange(1), default=5, show_default=True, help="Suites of five cases to run.")
@click.option(
    "--extra",
    type=click.FloatRange(0, 10),
    default=0.0,
    metavar="SHARE",
    help="Give one case so much more work, as 0.1, and count how often it is found.",
)
@click.option("--journal", type=click.Path(dir_okay=False), help="Keep every suite here, and go on from there the next time.")  # fmt: skip
@click.option("--seed", type=int, default=0, help="Of the order of everything.")
@click.option("--generations", type=click.IntRange(1), help="Fresh processes of each side; default: 15.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every suite included.")
def selftest(
    aa: bool, suites: int, extra: float, journal: str | None, seed: int, generations: int | None, as_json: bool
) -> None:
    """How often the gate cries wolf on this machine, and how small a slow-down it finds.

    The noise floor found with --aa is kept: from then on no margin of a gate is below twice it. A suite takes some 15 seconds.
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
    for share in (*((0.0,) if aa else ()), *((extra,) if extra else ())):
        with bar("equal code" if not share else f"{share:.0%} extra work") as progress:
            part = test.selftest(suites, plan, extra=share, journal=path, seed=seed, progress=progress)
        every += part.of(share)
        notes += part.notes
        margin = part.margin
    found = test.Selftest(tuple(every), margin, tuple(notes))
    click.echo(records.dumps(found, indent=1) if as_json else found.page())
    if aa and len(found.of(0.0)) >= test.ENOUGH and plan.generations >= test.PLAN.generations:
        click.echo(f"the noise floor is kept: no margin is below {2 * found.floor:.1%} from now on", err=as_json)
        test.keep(found, plan)
    elif aa:
        click.echo(
            f"the noise floor is not kept: it takes {test.ENOUGH} suites of {test.PLAN.generations} generations",
            err=as_json,
        )
