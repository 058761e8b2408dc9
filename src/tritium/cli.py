"""The command line: the only place that prints and sets exit codes.

tritium devices         what is here, what is not, why, and how to get it
tritium ops             the table, and which device has which kernel
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

import tritium as tt
from tritium import backends
from tritium.errors import DeviceError, TritiumError, nearest
from tritium.op import OPS, Kind, Op


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tt.__version__, prog_name="tritium")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log to stderr at this level."
)
def cli(log_level: str | None) -> None:
    """Run, compile and measure ternary (1.58-bit, BitNet) networks."""
    if log_level:
        import logging

        logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def devices(as_json: bool) -> None:
    """What is here with its facts; what is not, why, and how to get it."""
    found = backends.devices()
    try:
        choice = backends.default_device()
    except DeviceError:  # the list is what helps against it
        if not as_json:
            _list_devices(found, None)
        raise
    if as_json:
        rows = [d._asdict() for d in found]
        click.echo(json.dumps({"default": str(choice.device), "why": choice.why, "devices": rows}, indent=2))
        return
    _list_devices(found, choice)


def _list_devices(found: list[backends.Found], choice: backends.Choice | None) -> None:
    for d in found:
        if d.available:
            click.secho(f"{d.name}", bold=True, nl=False)
            click.echo(f"  (default: {choice.why})" if choice and d.name == str(choice.device) else "")
            for key, value in d.facts.items():
                click.echo(f"  {key:<10} {value}")
    for d in found:
        if not d.available:
            click.echo(f"{d.name:<6} not available: {d.why}; {d.remedy}.")


def kernels_of(row: Op) -> dict[str, list[str]]:
    """For each device here, the kernels of a row, best first."""
    out = {}
    for d in backends.devices():
        if not d.available:
            continue
        backend = backends.device(d.name).backend
        if row.kind is Kind.VIEW:
            out[d.name] = ["view"]
        elif row in backend.dynamic:
            out[d.name] = ["numpy"]
        else:
            names = dict.fromkeys(k.name for k in backend.kernels.get(row, ()))
            out[d.name] = list(names) or (["lowered"] if row.lower else [])
    return out


def table(rows: list[list[str]], heads: list[str]) -> str:
    """A plain text table, columns aligned."""
    widths = [max(len(r[i]) for r in [heads, *rows]) for i in range(len(heads))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [heads, *rows]]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


@cli.command(name="ops")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print the page docs/ops.md.")
def ops_command(name: str | None, as_json: bool, markdown: bool) -> None:
    """The table of operations, and which device has which kernel. With a NAME, all about one row."""
    if name is not None:
        if name not in OPS:
            raise click.UsageError(f"{name!r} is not an operation.{nearest(name, OPS)}")
        click.echo(describe(OPS[name]))
        return
    if markdown:
        click.echo(ops_page(), nl=False)
        return
    listed = list(OPS.values())
    if as_json:
        rows = [
            {"name": o.name, "kind": o.kind.value, "doc": o.doc, "ulps": o.ulps, "kernels": kernels_of(o)}
            for o in listed
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    body = [[o.name, o.kind.value, _kernels(o), o.doc.splitlines()[0]] for o in listed]
    click.echo(table(body, ["op", "kind", "kernels, best first", "what it does"]))


def _kernels(row: Op) -> str:
    return "; ".join(f"{device}: {', '.join(names) or 'none'}" for device, names in kernels_of(row).items())


def describe(row: Op) -> str:
    """All a row says of itself."""
    lines = [f"{row.name}{row.__signature__}", f"  {row.doc}", "", f"kind     {row.kind.value}"]
    lines.append(f"kernels  {_kernels(row)}")
    lines.append(f"ulps     {row.ulps:g} (0: exactly the reference)")
    if row.expr:
        lines.append(f"expr     {row.expr}")
    if row.lower:
        lines.append("lower    yes: runs on any device that has the rows it is made of")
    if row.traits:
        lines.append(f"traits   {str(row.traits).removeprefix('Trait.').replace('|', ', ').lower()}")
    lines.append(f"samples  {len(row.samples)}")
    return "\n".join(lines)


def ops_page() -> str:
    """docs/ops.md: the table for people; a test keeps the file equal to this."""
    head = (
        "# Operations\n\n"
        "Generated by `tritium ops --markdown` from `src/tritium/ops.py`. Every row runs eagerly and in graphs, on views, in place "
        "where it says so, and with `out=`.\n"
        "`exact` rows equal the reference (NumPy) bit for bit; for the others the number is the distance allowed, in units of the "
        "last place.\n\n"
    )
    parts = [head]
    for kind in Kind:
        rows = [o for o in OPS.values() if o.kind is kind]
        parts.append(f"## {kind.value}\n\n| op | what it does | exactness | in place |\n|---|---|---|---|\n")
        for o in rows:
            exact = "exact" if not o.ulps else f"{o.ulps:g} ulp"
            signature = f"`{o.name}{o.__signature__}`".replace("|", "\\|")
            parts.append(f"| {signature} | {o.doc.splitlines()[0]} | {exact} | {'yes' if o.inplace else ''} |\n")
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def main() -> Any:
    """Errors raised on purpose are one line and exit code 2; anything else is a bug and shows its traceback."""
    try:
        cli(prog_name="tritium")
    except TritiumError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
