"""Commands about model files.

tritium inspect FILE    description of a model file
tritium convert IN OUT  conversion to another format, read back before it appears
tritium verify A B      comparison of the weights of two models
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tritium.cli.text import (
    TERNARISE_HELP,
    VARIANT,
    VARIANT_HELP,
    Table,
    amount,
    bar,
    echo,
    json_option,
    located,
    options_of_a_name,
    print_json,
    print_parts,
    say,
    shown,
    size,
)
from tritium.errors import ArgumentError


class FormatOption(click.Option):
    """An option whose help lists the formats of `tritium.io`, which is imported when the help is printed."""

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        from tritium import io

        self.help = f"Format to write: {', '.join(io.FORMATS)}."
        return super().get_help_record(context)


@click.command()
@click.argument("file", type=click.Path())
@click.option("--variant", type=VARIANT, help=VARIANT_HELP)
@click.option("--deep", is_flag=True, help="Decode every ternary weight: count zeros, find damage.")
@options_of_a_name
@json_option("Print JSON with every tensor.")
def inspect(file: str, variant: str | None, deep: bool, as_json: bool, **name: Any) -> None:
    """Describe a model file or directory, or a model owner/repo.

    Tensors, types, scales, what was inferred and why, and what looks wrong.
    """
    from tritium import io

    r = io.inspect(located(file, **name).path, variant=variant, deep=deep)
    if as_json:
        click.echo(json.dumps(r.as_dict(), indent=2))
        return
    say(shown(Path(r.path).name), "bold", end="")
    facts = " · ".join(x for x in (r.container, r.architecture, size(r.nbytes)) if x)
    echo(f"  {facts}", column=len(shown(Path(r.path).name)))
    ternary = (
        f", {amount(r.ternary_weights)} of them ternary in {r.bits_per_weight:.2f} bits each"
        if r.ternary_weights
        else ""
    )
    echo(f"{amount(r.weights)} weights{ternary}\n")
    heads = ["tensor", "count", "shape", "stored", "bytes", "scale", *(["zeros"] if deep else [])]
    print_parts(Table([_tensor_row(k, deep) for k in r.kinds], heads))
    if r.beliefs or r.warnings:
        echo()
    for text in r.beliefs:
        echo(f"believed  {shown(text)}")
    for text in r.warnings:
        say(f"warning   {shown(text)}", "yellow")


def _tensor_row(k: Any, deep: bool) -> list[str]:
    scale = "" if k.scale_low is None else f"{k.scale_low:.4g}"
    if k.scale_high is not None and k.scale_high != k.scale_low:
        scale += f" … {k.scale_high:.4g}"
    zeros = [] if not deep else ["" if k.zeros is None else f"{100 * k.zeros:.1f} %"]
    shape = "×".join(map(str, k.shape)) or "one"
    return [shown(k.pattern), f"{k.count:>5}", shape, shown(k.stored), f"{size(k.nbytes):>9}", scale, *zeros]


@click.command()
@click.argument("source", metavar="IN", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@click.option("--to", cls=FormatOption, required=True, metavar="FORMAT")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--variant", type=VARIANT, help=VARIANT_HELP)
@click.option("--ternarise", is_flag=True, help=TERNARISE_HELP)
@options_of_a_name
@json_option()
def convert(
    source: str, target: str, to: str, overwrite: bool, variant: str | None, ternarise: bool, as_json: bool, **name: Any
) -> None:
    """Convert the model IN to another format.

    OUT appears only after it was read back equal; IN is never changed.
    """
    from tritium import io

    path = located(source, **name).path
    with bar("converting") as progress:
        r = io.convert(
            path, target, to=to, overwrite=overwrite, variant=variant, ternarise=ternarise, progress=progress
        )
    if as_json:
        print_json(r)
        return
    say(shown(r.path.name), "bold", end="")
    echo(
        f"  {r.to} · {r.tensors} tensors, {r.ternary} ternary · {size(r.source_bytes)} → {size(r.bytes)} · read back equal",
        column=len(shown(r.path.name)),
    )
    for text in r.warnings:
        say(f"warning  {shown(text)}", "yellow")


@click.command()
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option(
    "--rtol",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Relative tolerance for scales and unquantised values.",
)
@click.option("--variant", type=VARIANT, help=VARIANT_HELP)
@options_of_a_name
@json_option()
def verify(a: str, b: str, rtol: float, variant: str | None, as_json: bool, **name: Any) -> None:
    """Check that models A and B hold the same weights.

    Of two models owner/repo, neither --revision nor --file can say which is meant: give the path of one.

    Exit code 0: the same, 1: different, 2: a file cannot be read.
    """
    from tritium import io

    first, second = _two_models(a, b, name)
    with bar("comparing") as progress:
        v = io.verify(first, second, rtol=rtol, variant=variant, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(v), indent=2))
    elif v.same:
        within = f", scales within {v.scale_error:.2g}" if v.scale_error else ""
        say("same", "bold green", end="")
        echo(f"  {v.tensors} tensors, {v.ternary} ternary, {amount(v.values)} weights{within}", column=len("same"))
    else:
        say("different", "bold red", end="")
        echo(f"  {shown(v.difference)}", column=len("different"))
    for text in () if as_json else v.notes:
        echo(f"note  {shown(text)}")
    if not v.same:
        sys.exit(1)


def _two_models(a: str, b: str, name: dict[str, Any]) -> tuple[Path, Path]:
    """Return the paths of two models; the options of a name go to the one that is given by name."""
    from tritium.models.hub import is_name

    by_name = [is_name(model) for model in (a, b)]
    if all(by_name) and (name["revision"] or name["model_file"]):
        raise ArgumentError(
            "verify: --revision and --file are of one model, given two by name; give the path of one of them."
        )
    paths = [
        located(m, **(name if named or not any(by_name) else {})).path for m, named in zip((a, b), by_name, strict=True)
    ]
    return paths[0], paths[1]
