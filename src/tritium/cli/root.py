"""The command line: the only place that prints and sets exit codes.

tritium devices         devices here, and how to get the others
tritium ops             ops, and the kernels of each device
tritium inspect FILE    description of a model file
tritium convert IN OUT  conversion to another format, read back before it appears
tritium verify A B      comparison of the weights of two models
tritium ceilings        peak compute and memory bandwidth of this machine

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
    wrapped_errors,
)
from tritium.errors import ArgumentError, DeviceError, TritiumError, nearest
from tritium.machine.ceilings import Ceiling, Ceilings, as_dict, ceilings, scaled
from tritium.op import OPS, Kind, Op


class Later(NamedTuple):
    """A command of another module of this package: where it is, and the first paragraph of its help."""

    target: str  # "module:attribute"
    help: str


LATER = {
    "baseline": Later("history:baseline", "Manage named baselines. Every version is kept."),
    "bench": Later("bench:bench", "Measure one benchmark suite."),
    "bisect": Later("projects.bisect:bisect", "Find the commit that made a project slower."),
    "chat": Later(
        "model:chat",
        "Chat with a model. An empty line or Ctrl-D ends the conversation; /new starts another.",
    ),
    "compare": Later(
        "bench:compare",
        "Compare devices, kernels and other libraries, op by op.",
    ),
    "dashboard": Later("live.commands:dashboard", "Show Tritium's running processes on a local page."),
    "doctor": Later(
        "doctor:doctor",
        "Find out why something is slow or noisy on this machine.",
    ),
    "embed": Later("model:embed", "Embed the lines of a text file as vectors."),
    "generate": Later(
        "model:generate",
        "Generate text from a prompt. Without MODEL: the small one in the package, trained on the King James Bible.",
    ),
    "history": Later(
        "history:history",
        "Measure, list and publish histories.",
    ),
    "lm-eval": Later("model:lm_eval", "Run lm-eval on a model; options are those of lm_eval."),
    "memory": Later(
        "memory:memory",
        "Run a program and show what its memory is used for.",
    ),
    "models": Later("model:models", "List the model families, formats and known repositories."),
    "monitor": Later("monitor:monitor", "Measure a suite periodically and alert on regressions."),
    "perplexity": Later(
        "model:perplexity",
        "Perplexity of a model on a text file. Bits per byte and standard errors are printed too.",
    ),
    "prepack": Later(
        "model:prepack",
        "Write a model in the layout this machine's kernels read.",
    ),
    "profile": Later(
        "profile:profile",
        "Run a program and show where its time goes.",
    ),
    "regression-check": Later(
        "regression:regression_check",
        "Compare two results files and fail on a regression.",
    ),
    "regression-test": Later("regression:regression_test", "Measure now and fail on a regression."),
    "report": Later(
        "report:report",
        "Write an HTML report of a run. It holds charts, verdicts, environment and raw values, and needs no network.",
    ),
    "reproduce": Later("reproduce:reproduce", "List the measured tables, or measure one again."),
    "results": Later("results:results_group", "Show, convert and import results files."),
    "selftest": Later("regression:selftest", "Measure the false-alarm rate and the power of the gate."),
    "serve": Later(
        "model:serve",
        "Serve a model over the OpenAI API. Anthropic's too; Ctrl-C stops it.",
    ),
    "targets": Later("doctor:targets", "Measure the guides' performance targets on this machine."),
    "time": Later("projects.time:time", "Time any programs side by side."),
    "top": Later("live.commands:top", "Show Tritium's running processes in the terminal."),
    "tune": Later(
        "tune:tune",
        "Pick the fastest kernels and settings for this machine.",
    ),
}


GROUPS = {
    "Run": ("generate", "chat", "serve", "embed", "perplexity", "lm-eval"),
    "Files": ("models", "inspect", "convert", "verify", "prepack"),
    "Measure": (
        "compare", "bench", "time", "results", "baseline", "history", "bisect", "regression-test",
        "regression-check", "selftest", "monitor", "reproduce",
    ),
    "See": ("report", "profile", "memory", "top", "dashboard"),
    "Machine": ("devices", "ops", "doctor", "ceilings", "targets", "tune"),
}  # fmt: skip
"""The commands as `tritium --help` lists them; one that is in no group is listed under Other."""


class Commands(click.Group):
    """The commands; one of `LATER` is imported when it is used, and listed without that."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with wrapped_errors():
            return super().make_context(*args, **more)

    def invoke(self, context: click.Context) -> Any:
        with wrapped_errors():
            return super().invoke(context)

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*self.commands, *LATER})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in LATER:
            return super().get_command(context, name)
        module, _, attribute = LATER[name].target.partition(":")
        command: click.Command = getattr(import_module(f"tritium.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one that does not exist is refused with the nearest that does."""
        name = args[0]
        known = self.list_commands(context)
        if name not in known and not name.startswith("-"):
            context.fail(f"There is no command {name!r}.{nearest(name, known)}")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        later = {name: click.Command(name, help=row.help) for name, row in LATER.items()}
        commands = {**self.commands, **later}
        width = max(map(len, commands))
        other = sorted(commands.keys() - {name for names in GROUPS.values() for name in names})
        for group, names in {**GROUPS, "Other": tuple(other)}.items():
            rows = [(name.ljust(width), commands[name].get_short_help_str(formatter.width)) for name in names]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


class FormatOption(click.Option):
    """An option whose help lists the formats of `tritium.io`, which is imported when the help is printed."""

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        from tritium import io

        self.help = f"Format to write: {', '.join(io.FORMATS)}."
        return super().get_help_record(context)


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
@json_option()
def devices(as_json: bool) -> None:
    """List the devices: those here, and how to get the others."""
    listed = backends.devices()
    try:
        choice = backends.default_device()
    except DeviceError:  # the list is what helps against it
        if not as_json:
            _list_devices(listed, None)
        raise
    if as_json:
        rows = [d._asdict() for d in listed]
        click.echo(json.dumps({"default": str(choice.device), "why": choice.why, "devices": rows}, indent=2))
        return
    _list_devices(listed, choice)


def _list_devices(listed: list[backends.Found], choice: backends.Choice | None) -> None:
    for d in listed:
        if d.available:
            say(d.name, "bold", end="")
            echo(f"  (default: {choice.why})" if choice and d.name == str(choice.device) else "", column=len(d.name))
            for key, value in d.facts.items():
                echo(f"  {key:<10} {value}")
    for d in listed:
        if not d.available:
            echo(f"{d.name:<6} not available: {d.why}; {d.remedy}.")


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
@json_option()
@click.option("--markdown", is_flag=True, help="Print the page docs/ops.md.")
def ops_command(name: str | None, as_json: bool, markdown: bool) -> None:
    """List the ops and their kernels. With a NAME, all about one op."""
    if name is not None:
        if name not in OPS:
            raise click.UsageError(f"{name!r} is not an operation.{nearest(name, OPS)}")
        echo(describe(OPS[name]))
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

    for device, rows in (
        ("mlx", missing.MLX),
        ("torch, mps", missing.TORCH),
        ("mps, cuda", missing.ON_HOST),
        ("mps", missing.HEAD),
    ):
        yield from (f"| {device} | `{row.name}` | {why} |\n" for row, why in rows.items())


@cli.command(name="ceilings")
@json_option("Print JSON with every sample.")
@click.option("--refresh", is_flag=True, help="Measure again, even if stored.")
@click.option("--quick", is_flag=True, help="Fewer and shorter samples.")
def ceilings_command(as_json: bool, refresh: bool, quick: bool) -> None:
    """Measure this machine's peak compute and memory bandwidth.

    FLOP/s, int8 OP/s, and bytes per second of every cache and of memory. Measured once (a few seconds) and stored;
    benchmarks print their share of it.
    """
    measured = ceilings(refresh=refresh, quick=quick)
    if as_json:
        click.echo(json.dumps(as_dict(measured), indent=2, allow_nan=False))
    else:
        print_parts(*ceilings_parts(measured))


def ceilings_page(measured: Ceilings) -> str:
    """Return the ceilings as plain text."""
    return "\n".join(map(str, ceilings_parts(measured)))


def ceilings_parts(peaks: Ceilings) -> list[str | Table]:
    """Return the ceilings as tables: the best sample of each, and the spread of the others."""
    m = peaks.machine
    lines: list[str | Table] = [f"{m.cpu}, {m.usable} of {m.cpus} CPUs, {m.memory_gib:g} GiB, {m.system}"]
    for kind, title in (("f32", "compute, f32"), ("int8", "compute, int8"), ("bytes", "memory")):
        body: list[list[str]] = []
        absent: dict[str, str] = {}
        for name in dict.fromkeys(r.name for r in peaks.rows if r.kind == kind):
            rows = [peaks.of(name, n) for n in peaks.threads]
            if measured := [r for r in rows if r.samples]:
                body.append([name, measured[0].how, *map(_ceiling, rows)])
            absent |= {f"{name}, {r.threads} threads" if measured else name: r.absent for r in rows if r.absent}
        heads = [title, "by", *(f"{n} thread{'s' * (n > 1)}" for n in peaks.threads)]
        lines += ["", Table(body, heads)] if body else []
        lines += [f"{name}: not measured: {why}." for name, why in absent.items()]
    lines += [
        "",
        "The best sample, the median, and half the width of the middle half. Bytes are counted as STREAM does.",
    ]
    if peaks.disturbed:
        lines.append("Many samples differ widely: other work was running, and the truth may lie higher.")
    lines.append(
        f"Measured {peaks.measured_at} in {peaks.elapsed_s:g} s{', quickly' * peaks.quick}; --refresh measures again."
    )
    return lines + ([f"Kept in {peaks.path}"] if peaks.path else [])


def _ceiling(row: Ceiling) -> str:
    if not row.samples:
        return "-"
    middle = scaled(row.median, row.unit, like=row.best).split()[0]
    return f"{scaled(row.best, row.unit)} (median {middle} ±{row.spread / 2:.0%})"


# ---- model files


@cli.command()
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


@cli.command()
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


@cli.command()
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


def main() -> Any:
    """Errors raised on purpose are one line and exit code 2; anything else is a bug and shows its traceback."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does: what is half written is taken away
    try:
        cli(prog_name="tritium")
    except TritiumError as error:
        say(f"error: {error}", "red", err=True)
        sys.exit(2)
