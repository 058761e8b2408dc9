"""The commands that profile: run a script, a module or a workload and show where the time went. They print.

tritium profile SCRIPT ARGS…          run a Python file as it would run alone, and profile it
tritium profile -m MODULE ARGS…       the same for a module
tritium profile --workload decode     the same for a workload of the benchmarks
tritium profile show FILE             the page of a profile that was written
tritium profile diff BEFORE AFTER     what changed between two profiles, and who did it
tritium profile check FILE            whether a trace is a good one, by strict rules
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium.arguments import read_duration
from tritium.cli.target import OURS, check_folders, check_outputs, make_workload, run_target
from tritium.cli.text import echo, json_option, print_json, say, shown
from tritium.errors import TritiumError, nearest

if TYPE_CHECKING:
    from tritium.see.profile.profile import Profile, Recording

FORMATS = click.Choice(["text", "json", "csv", "markdown"])
FILE = click.Path(exists=True, dir_okay=False)
NEW = click.Path(dir_okay=False)
KINDS = ("chrome", "speedscope", "flame", "folded")  # formats with an option of their own
LEAST_CALLS = 3  # of a workload
OUTPUT_HELP = "Write a file, by suffix (.html, .json.gz, .csv, .svg …); repeatable. Default: profile.json."


@dataclass(frozen=True)
class ProfileOptions:
    """The options of one profile."""

    module: bool
    workload: str | None
    candidate: str
    duration: str
    output: tuple[str, ...]
    stacks: str | None
    limit: str | None
    capacity: int
    nvtx: bool
    kernels: bool
    top: int
    to: str
    quiet: bool
    chrome: str | None
    speedscope: str | None
    flame: str | None
    folded: str | None


class Script(click.Command):
    """Command made of a script or a module and its own arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params = {"args": list(args)}  # all of them: --help and -- are the script's too
        return []


class Profiles(click.Group):
    """`profile NAME`: one of the commands, else a script (or, with -m, a module)."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = None if ctx.params.get("module") else super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        if not ctx.params.get("module") and not ctx.params.get("workload") and not Path(cmd_name).exists():
            commands, close = ", ".join(self.commands), nearest(cmd_name, self.commands)
            raise click.UsageError(
                f"there is no file {shown(cmd_name)}; give a script, -m MODULE, or one of {commands}.{close}", ctx
            )

        def run(args: list[str]) -> None:
            script, module = (None, cmd_name) if ctx.obj.module else (cmd_name, None)
            profiled(lambda: run_target(script, module, args), ctx.obj, cmd_name, script)

        return Script(cmd_name, callback=run, add_help_option=False)


@click.group(cls=Profiles, invoke_without_command=True, subcommand_metavar="SCRIPT [ARGS]… | COMMAND …")
@click.option("-m", "module", is_flag=True, help="Run a module, as python -m does.")
@click.option(
    "--workload", metavar="NAME", help="Run a workload: prefill, decode, batch_processing; or 'decode 8x256x1024'."
)
@click.option(
    "--candidate",
    default="tritium",
    show_default=True,
    metavar="NAME",
    help="Implementation: tritium, tritium.compile …",
)
@click.option("--duration", default="1s", show_default=True, help="Time to run the workload.")
@click.option(
    "--output",
    multiple=True,
    type=NEW,
    metavar="FILE",
    help=OUTPUT_HELP,
)
@click.option("--stacks", metavar="TIME", help="Interval of sampling Python stacks, such as 10ms.")
@click.option("--limit", metavar="TIME", help="Stop recording after this time, such as 30s.")
@click.option("--capacity", type=click.IntRange(1), default=1_000_000, show_default=True, help="Spans to record.")
@click.option("--nvtx", is_flag=True, help="Emit NVTX ranges for Nsight (CUDA).")
@click.option("--kernels", is_flag=True, help="Record GPU kernels by stream (CUDA, torch).")
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Ops to show.")
@click.option("--format", "to", type=FORMATS, default="text", show_default=True, help="Output format.")
@json_option("Print JSON: --format json.", "to")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
@click.option("--chrome", type=NEW, metavar="FILE", help="Also write a Chrome trace, for Perfetto.")
@click.option("--speedscope", type=NEW, metavar="FILE", help="Also write a speedscope file.")
@click.option("--flame", type=NEW, metavar="FILE.svg", help="Also write a flame graph.")
@click.option("--folded", type=NEW, metavar="FILE", help="Also write folded stacks.")
@click.pass_context
def profile(ctx: click.Context, /, **options: Any) -> None:  # fmt: skip
    """Run a program and show where its time goes.

    Shows ops, hotspots, what bounds them, and the call tree. Options go before SCRIPT, its arguments after it; its exit code is
    returned.
    """
    profile_options = ctx.obj = ProfileOptions(**options)
    if ctx.invoked_subcommand is not None:
        if profile_options.workload is not None:
            raise click.UsageError(f"--workload and {shown(ctx.invoked_subcommand)} were both given; choose one.")
        return
    if profile_options.workload is None:
        raise click.UsageError(
            "what shall be profiled? Give a script, -m MODULE or --workload NAME, as in: tritium profile script.py"
        )
    profiled(_workload(profile_options), profile_options, profile_options.workload)


# ---- one profile

Program = Callable[[], int]  # gives its exit code


def _workload(options: ProfileOptions) -> Program:
    """A workload of the benchmarks, made and called once before it is profiled."""
    from tritium.recording import scope

    seconds = read_duration(options.duration, "--duration")
    name, call = make_workload(options.workload or "", options.candidate)
    call()

    def run() -> int:
        until, calls = time.perf_counter() + seconds, 0
        while calls < LEAST_CALLS or time.perf_counter() < until:
            with scope(name):
                call()
            calls += 1
        return 0

    return run


def profiled(program: Program, options: ProfileOptions, name: str, script: str | None = None) -> None:
    """Run, write, print; then end as the program ended. A copy that it forked ends without a word: the profile is ours."""
    from tritium.see.profile.profile import profile as recording
    from tritium.see.trace.sampler import Launcher

    outputs = _outputs(options, script)
    p = recording(
        Path(name).name, stacks=options.stacks, limit=options.limit, capacity=options.capacity, nvtx=options.nvtx,
        kernels=options.kernels,
    )  # fmt: skip
    here = os.getpid()
    launcher = Launcher(profiled.__code__, frozenset((__file__, *OURS)))
    p.start(alone=False, launcher=launcher)  # the program may profile itself too
    try:
        code = program()
    finally:
        if os.getpid() == here:
            p.stop()
    if os.getpid() != here:
        sys.exit(code)
    if code:
        p.note(f"the program ended with exit code {code}; what ran before it is here")
    _write(p, options, outputs)
    sys.exit(code)


def _outputs(options: ProfileOptions, script: str | None) -> list[tuple[str, str | None]]:
    """The files that are asked for, each with its format (None: by its suffix); refused before anything runs."""
    from tritium.see.profile.profile import FORMATS as WRITERS

    listed: list[tuple[str, str | None]] = [(path, None) for path in options.output or ("profile.json",)]
    listed += [(path, kind) for kind in KINDS if (path := getattr(options, kind)) is not None]
    known = tuple(s for suffixes, _ in WRITERS.values() for s in suffixes)
    check_outputs([path for path, _ in listed], script)
    check_folders(path for path, _ in listed)
    for path, kind in listed:
        if kind is None and not path.lower().endswith(known):
            raise click.UsageError(f"--output {shown(path)}: the suffix tells no format; there are {', '.join(known)}.")
    return listed


def _write(p: Recording, options: ProfileOptions, outputs: list[tuple[str, str | None]]) -> None:
    """All files, whatever becomes of one; then the page."""
    written, failed = [], []
    for path, kind in outputs:
        try:
            written.append(shown(str(p.export(path, kind))))
        except TritiumError as error:
            failed.append(str(error))
    sys.stdout.flush()
    if not options.quiet:
        _print(p, options.to, options.top)
    aside = options.to != "text" or options.quiet
    if written:
        echo(f"{'' if aside else chr(10)}written: {', '.join(written)}", err=aside)
    if failed:
        raise TritiumError(" ".join(failed))


def _print(p: Profile, to: str, top: int) -> None:
    from tritium.see.profile.file import dump

    pages: dict[str, Callable[[], str]] = {
        "json": lambda: dump(p.timeline), "csv": p.csv, "markdown": lambda: p.markdown(top), "text": lambda: p.text(top) + "\n",
    }  # fmt: skip
    (echo if to == "text" else click.echo)(pages[to](), nl=False)


# ---- files


@profile.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Ops to show.")
@click.option("--format", "to", type=FORMATS, default="text", show_default=True, help="Output format.")
@json_option("Print JSON: --format json.", "to")
@click.option("--output", multiple=True, type=NEW, metavar="FILE", help="Write a file instead, by suffix; repeatable.")
def show(files: tuple[str, ...], top: int, to: str, output: tuple[str, ...]) -> None:
    """Show a saved profile or convert it.

    Several files are the processes of one run, on one clock.
    """
    from tritium.see.profile.profile import load_profile, merge_profiles

    check_outputs(output, inputs=files)
    loaded = merge_profiles([load_profile(file) for file in files])
    for path in output:
        echo(f"written: {shown(str(loaded.export(path)))}")
    if not output:
        _print(loaded, to, top)


@profile.command()
@click.argument("before", type=FILE, nargs=1)
@click.argument("after", type=FILE, nargs=1)
@click.option(
    "--also-before", multiple=True, type=FILE, metavar="FILE", help="Another repetition of BEFORE; repeatable."
)
@click.option("--also-after", multiple=True, type=FILE, metavar="FILE", help="Another repetition of AFTER; repeatable.")
@click.option("--per", metavar="SCOPE", help="Normalise by the number of times this scope was entered.")
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Ops to show.")
@click.option(
    "--format",
    "to",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@json_option("Print JSON: --format json.", "to")
@click.option("--flame", type=NEW, metavar="FILE.svg", help="Also write a differential flame graph.")
@click.option("--folded", type=NEW, metavar="FILE", help="Also write two-column stacks, as difffolded.pl does.")
def diff(
    before: str, after: str, also_before: tuple[str, ...], also_after: tuple[str, ...], per: str | None, top: int, to: str,
    flame: str | None, folded: str | None,
) -> None:  # fmt: skip
    """Compare two profiles, op by op.

    Each change has its size and its confidence.
    """
    from tritium.machine.files import write_text
    from tritium.perf.records import json_io as records
    from tritium.see.profile.diff import diff as compared
    from tritium.see.profile.profile import load_profile
    from tritium.see.trace.flame_diff import diff_svg
    from tritium.see.trace.folded import two_column

    outputs = [path for path in (flame, folded) if path is not None]
    check_outputs(outputs, inputs=(before, after, *also_before, *also_after))
    old = [load_profile(f) for f in (before, *also_before)]
    new = [load_profile(f) for f in (after, *also_after)]
    difference = compared(old, new, per=per)
    if to == "json":
        click.echo(records.dumps(difference, indent=2, ascii_only=True))
    elif to == "markdown":
        click.echo(difference.markdown(top))
    else:
        echo(difference.text(top))
    title = f"{Path(before).name} → {Path(after).name}"
    files: tuple[tuple[str | None, Callable[[], str]], ...] = (
        (flame, lambda: diff_svg(old[0].tree(), new[0].tree(), title)),
        (folded, lambda: two_column(old[0].timeline, new[0].timeline)),
    )
    for path, drawn in files:
        if path is not None:
            echo(f"written: {shown(str(write_text(path, drawn())))}", err=to == "json")


@profile.command()
@click.argument("file", type=FILE)
@json_option()
def check(file: str, as_json: bool) -> None:
    """Validate a Chrome trace, speedscope file or folded stacks.

    Exit code 0: valid, 1: not.
    """
    from tritium.see.trace.check import check as checked

    result = checked(file)
    if as_json:
        print_json({"file": file, "valid": not result.faults, **result._asdict()})
        sys.exit(1 if result.faults else 0)
    for fault in result.faults:
        echo(shown(fault))
    if result.faults:
        faults = len(result.faults)
        say(f"{shown(file)}: no good {result.kind}: {faults} fault{'s' * (faults != 1)}", "red")
        sys.exit(1)
    echo(f"{shown(file)}: a good {result.kind}, {result.spans} {result.counted}{'s' * (result.spans != 1)}")
