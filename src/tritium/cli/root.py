"""The command line: the only place that prints and sets exit codes.

tritium devices         what is here, what is not, why, and how to get it
tritium ops             the table, and which device has which kernel
tritium inspect FILE    what a model file is, what is believed of it and why
tritium convert IN OUT  one format made into another, read back before it appears
tritium verify A B      whether two models hold the same weights
tritium ceilings        what this machine can do at most, measured

The other commands are in the modules that `LATER` names; each is imported when its command is used.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

import tritium as tt
from tritium import backends
from tritium.cli.terminal import Table, bar, print_parts, say
from tritium.cli.text import VARIANT, VARIANT_HELP, amount, shown, size
from tritium.errors import DeviceError, TritiumError, nearest
from tritium.machine.ceilings import Ceiling, Ceilings, as_dict, ceilings, scaled
from tritium.op import OPS, Kind, Op


class Later(NamedTuple):
    """A command of another module of this package: where it is, and the first paragraph of its help."""

    target: str  # "module:attribute"
    help: str


LATER = {
    "baseline": Later("history:baseline", "Results kept under a name, to judge later ones by. Every version is kept."),
    "bench": Later("bench:bench", "Measure one suite, with raw samples, intervals and what was not measured."),
    "chat": Later(
        "model:chat",
        "A conversation with MODEL in the form it was made for. An empty line or Ctrl-D ends it; /new begins another.",
    ),
    "compare": Later(
        "bench:compare",
        "Compare Tritium's devices and kernels, beside the libraries installed here, operation by operation.",
    ),
    "doctor": Later(
        "doctor:doctor",
        "Why it is slow or unsteady here: the machine, how Tritium is set up, and with a SCRIPT what that does.",
    ),
    "generate": Later(
        "model:generate",
        "What MODEL writes after a prompt. Without MODEL: the small one in the package, trained on the King James Bible.",
    ),
    "history": Later(
        "history:history",
        "Runs kept on this machine. With a CASE: its values over time, where they changed, and against the last release.",
    ),
    "memory": Later(
        "memory:memory",
        "Where memory goes: peak, lines of code, what is alive at the peak and at the end, and what would save some.",
    ),
    "monitor": Later(
        "monitor:monitor", "Measure a suite again and again; tell once when something got slower, worse, or well again."
    ),
    "perplexity": Later(
        "model:perplexity",
        "How well a model foretells the text in FILE: perplexity and bits per byte, with their standard errors.",
    ),
    "prepack": Later(
        "model:prepack",
        "Write MODEL as OUT, a file with the weights as this machine's kernels read them: it is ready at once.",
    ),
    "profile": Later(
        "profile:profile",
        "Run a program and show where its time goes: operations, hotspots, what bounds them, the call tree.",
    ),
    "regression-check": Later(
        "regression:regression_check",
        "Judge results beside earlier ones of the same machine, measured in separate runs.",
    ),
    "regression-test": Later(
        "regression:regression_test", "Measure now, and judge it beside a stored baseline or beside another revision."
    ),
    "report": Later(
        "report:report",
        "One page of everything known of a run: charts, verdicts, environment, raw values. It needs no network.",
    ),
    "reproduce": Later("reproduce:reproduce", "List the measured tables, or measure one again."),
    "results": Later("results:results_group", "Show, convert and import files of results."),
    "selftest": Later(
        "regression:selftest", "How often the gate cries wolf on this machine, and how small a slow-down it finds."
    ),
    "serve": Later(
        "model:serve",
        "Serve MODEL to programs that speak OpenAI's protocol: completions and chat, streamed or whole. Ctrl-C ends it.",
    ),
    "targets": Later(
        "doctor:targets", "The guides' performance targets, measured here beside what this machine's ceilings allow."
    ),
    "tune": Later(
        "tune:tune",
        "Race the kernels, tiles, storage, batch, threads and devices this machine has, and keep what is clearly faster.",
    ),
}


class Commands(click.Group):
    """The commands; one of `LATER` is imported when it is used, and listed without that."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*self.commands, *LATER})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in LATER:
            return super().get_command(context, name)
        module, _, attribute = LATER[name].target.partition(":")
        command: click.Command = getattr(import_module(f"tritium.cli.{module}"), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        later = {name: click.Command(name, help=row.help) for name, row in LATER.items()}
        click.Group(commands={**self.commands, **later}).format_commands(context, formatter)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
            say(d.name, "bold", end="")
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
    print_parts(Table(body, ["op", "kind", "kernels, best first", "what it does"]))


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
    return "".join([*parts, *_missing_rows()]).rstrip() + "\n"


def _missing_rows() -> Iterator[str]:
    yield (
        "## devices\n\nEvery row runs on `cpu`. On `mlx` and `torch` it runs too, or is made of other rows, but for these, which "
        "raise an error\nwith the reason (f64 exists neither on `mlx:gpu` nor on `mps`):\n\n| device | op | why |\n|---|---|---|\n"
    )
    from tritium.backends.values import missing  # of this page alone

    for device, rows in (("mlx", missing.MLX), ("torch, mps", missing.TORCH)):
        yield from (f"| {device} | `{row.name}` | {why} |\n" for row, why in rows.items())


@cli.command(name="ceilings")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every sample included.")
@click.option("--refresh", is_flag=True, help="Measure again, whatever is kept.")
@click.option("--quick", is_flag=True, help="Be satisfied with fewer, shorter samples.")
def ceilings_command(as_json: bool, refresh: bool, quick: bool) -> None:
    """What this machine can do at most: FLOP/s, int8 OP/s, and bytes a second of every cache and of memory.

    Measured once (a few seconds) and kept; benchmarks print their share of it.
    """
    found = ceilings(refresh=refresh, quick=quick)
    if as_json:
        click.echo(json.dumps(as_dict(found), indent=2, allow_nan=False))
    else:
        print_parts(*ceilings_parts(found))


def ceilings_page(found: Ceilings) -> str:
    """Return the ceilings as plain text."""
    return "\n".join(map(str, ceilings_parts(found)))


def ceilings_parts(found: Ceilings) -> list[str | Table]:
    """Return the ceilings as tables: the best sample of each, and the spread of the others."""
    m = found.machine
    lines: list[str | Table] = [f"{m.cpu}, {m.usable} of {m.cpus} CPUs, {m.memory_gib:g} GiB, {m.system}"]
    for kind, title in (("f32", "compute, f32"), ("int8", "compute, int8"), ("bytes", "memory")):
        body: list[list[str]] = []
        absent: dict[str, str] = {}
        for name in dict.fromkeys(r.name for r in found.rows if r.kind == kind):
            rows = [found.of(name, n) for n in found.threads]
            if measured := [r for r in rows if r.samples]:
                body.append([name, measured[0].how, *map(_ceiling, rows)])
            absent |= {f"{name}, {r.threads} threads" if measured else name: r.absent for r in rows if r.absent}
        heads = [title, "by", *(f"{n} thread{'s' * (n > 1)}" for n in found.threads)]
        lines += ["", Table(body, heads)] if body else []
        lines += [f"{name}: not measured: {why}." for name, why in absent.items()]
    lines += [
        "",
        "The best sample, the median, and half the width of the middle half. Bytes are counted as STREAM does.",
    ]
    if found.disturbed:
        lines.append("Many samples differ widely: other work was running, and the truth may lie higher.")
    lines.append(
        f"Measured {found.measured_at} in {found.elapsed_s:g} s{', quickly' * found.quick}; --refresh measures again."
    )
    return lines + ([f"Kept in {found.path}"] if found.path else [])


def _ceiling(row: Ceiling) -> str:
    if not row.samples:
        return "-"
    middle = scaled(row.median, row.unit, like=row.best).split()[0]
    return f"{scaled(row.best, row.unit)} (median {middle} ±{row.spread / 2:.0%})"


# ---- model files


@cli.command()
@click.argument("file", type=click.Path())
@click.option("--variant", type=VARIANT, help=VARIANT_HELP)
@click.option("--deep", is_flag=True, help="Decode every ternary weight: counts zeros and finds damage.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every tensor.")
def inspect(file: str, variant: str | None, deep: bool, as_json: bool) -> None:
    """What a model FILE (or directory) is: tensors, types, scales, what is believed of it and why, and what looks wrong."""
    from tritium import io

    r = io.inspect(file, variant=variant, deep=deep)
    if as_json:
        click.echo(json.dumps(r.as_dict(), indent=2))
        return
    say(shown(Path(r.path).name), "bold", end="")
    click.echo("  " + " · ".join(x for x in (r.container, r.architecture, size(r.nbytes)) if x))
    ternary = (
        f", {amount(r.ternary_weights)} of them ternary in {r.bits_per_weight:.2f} bits each"
        if r.ternary_weights
        else ""
    )
    click.echo(f"{amount(r.weights)} weights{ternary}\n")
    heads = ["tensor", "count", "shape", "stored", "bytes", "scale", *(["zeros"] if deep else [])]
    print_parts(Table([_tensor_row(k, deep) for k in r.kinds], heads))
    if r.beliefs or r.warnings:
        click.echo()
    for text in r.beliefs:
        click.echo(f"believed  {shown(text)}")
    for text in r.warnings:
        say(f"warning   {shown(text)}", "yellow")


def _tensor_row(k: Any, deep: bool) -> list[str]:
    scale = "" if k.scale_low is None else f"{k.scale_low:.4g}"
    if k.scale_high is not None and k.scale_high != k.scale_low:
        scale += f" … {k.scale_high:.4g}"
    zeros = [] if not deep else ["" if k.zeros is None else f"{100 * k.zeros:.1f} %"]
    shape = "×".join(map(str, k.shape)) or "one"
    return [shown(k.pattern), f"{k.count:>5}", shape, shown(k.stored), f"{size(k.nbytes):>9}", scale, *zeros]


@cli.command()
@click.argument("source", metavar="IN", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@click.option("--to", required=True, metavar="FORMAT", help="i2_s, tq1_0, tq2_0, q2_0, hf, mlx, f32, f16 or bf16.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
@click.option("--variant", type=VARIANT, help=VARIANT_HELP)
@click.option("--ternarise", is_flag=True, help="Round the projections of a model that was not trained to be ternary.")
def convert(source: str, target: str, to: str, overwrite: bool, variant: str | None, ternarise: bool) -> None:
    """Write the model IN as OUT in another format. OUT appears only when it was read back equal; IN is never touched."""
    from tritium import io

    with bar("converting") as progress:
        r = io.convert(
            source, target, to=to, overwrite=overwrite, variant=variant, ternarise=ternarise, progress=progress
        )
    say(shown(r.path.name), "bold", end="")
    click.echo(
        f"  {r.to} · {r.tensors} tensors, {r.ternary} ternary · {size(r.source_bytes)} → {size(r.bytes)} · read back equal"
    )
    for text in r.warnings:
        say(f"warning  {shown(text)}", "yellow")


@cli.command()
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option(
    "--rtol",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Let scales and plain numbers differ by this share of themselves.",
)
@click.option("--variant", type=VARIANT, help=VARIANT_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(a: str, b: str, rtol: float, variant: str | None, as_json: bool) -> None:
    """Whether models A and B hold the same weights. Exit code 0: the same, 1: not, 2: a file that cannot be read."""
    from tritium import io

    with bar("comparing") as progress:
        v = io.verify(a, b, rtol=rtol, variant=variant, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(v), indent=2))
    elif v.same:
        within = f", scales within {v.scale_error:.2g}" if v.scale_error else ""
        say("same", "bold green", end="")
        click.echo(f"  {v.tensors} tensors, {v.ternary} ternary, {amount(v.values)} weights{within}")
    else:
        say("different", "bold red", end="")
        click.echo(f"  {shown(v.difference)}")
    for text in () if as_json else v.notes:
        click.echo(f"note  {shown(text)}")
    if not v.same:
        sys.exit(1)


def main() -> Any:
    """Errors raised on purpose are one line and exit code 2; anything else is a bug and shows its traceback."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does: what is half written is taken away
    try:
        cli(prog_name="tritium")
    except TritiumError as error:
        say(f"error: {error}", "red", err=True)
        sys.exit(2)
