"""The commands, and what `tritium` does before and after one: the table of all, help, errors.

Each command is in the module that `LATER` names, which is imported when it is used. The runtime is imported when a command runs: help and
completion do without it.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

import tritium
from tritium.cli.text import say, wrapped_errors
from tritium.errors import TritiumError, nearest


class Later(NamedTuple):
    """A command of another module of this package: where it is, and the first paragraph of its help."""

    target: str  # "module:attribute"
    help: str


LATER = {
    "baseline": Later("history:baseline", "Manage named baselines. Every version is kept."),
    "bench": Later("bench:bench", "Measure one benchmark suite."),
    "bisect": Later("projects.bisect:bisect", "Find the commit that made a project slower."),
    "ceilings": Later("machine:ceilings_command", "Measure this machine's peak compute and memory bandwidth."),
    "chat": Later(
        "model:chat",
        "Chat with a model. An empty line or Ctrl-D ends the conversation; /new starts another.",
    ),
    "compare": Later(
        "bench:compare",
        "Compare devices, kernels and other libraries, op by op.",
    ),
    "convert": Later("files:convert", "Convert the model IN to another format."),
    "dashboard": Later("live.commands:dashboard", "Show Tritium's running processes on a local page."),
    "devices": Later("machine:devices", "List the devices: those here, and how to get the others."),
    "doctor": Later(
        "machine:doctor",
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
    "inspect": Later("files:inspect", "Describe a model file or directory, or a model owner/repo."),
    "lm-eval": Later("model:lm_eval", "Run lm-eval on a model; options are those of lm_eval."),
    "memory": Later(
        "memory:memory",
        "Run a program and show what its memory is used for.",
    ),
    "models": Later("model:models", "List the model families, formats and known repositories."),
    "monitor": Later("monitor:monitor", "Measure a suite periodically and alert on regressions."),
    "ops": Later("machine:ops_command", "List the ops and their kernels. With a NAME, all about one op."),
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
    "reproduce": Later("projects.reproduce:reproduce", "List the measured tables, or measure one again."),
    "results": Later("results:results_group", "Show, convert and import results files."),
    "selftest": Later("regression:selftest", "Measure the false-alarm rate and the power of the gate."),
    "serve": Later(
        "model:serve",
        "Serve a model over the OpenAI API. Anthropic's too; Ctrl-C stops it.",
    ),
    "targets": Later("machine:targets", "Measure the guides' performance targets on this machine."),
    "time": Later("projects.time:time", "Time any programs side by side."),
    "top": Later("live.commands:top", "Show Tritium's running processes in the terminal."),
    "tune": Later(
        "tune:tune",
        "Pick the fastest kernels and settings for this machine.",
    ),
    "verify": Later("files:verify", "Check that models A and B hold the same weights."),
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
        tritium._load()
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

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command by the table, without an import of any."""
        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=LATER[name].help if name in LATER else None) for name in names]
        return commands + click.Command.shell_complete(self, context, incomplete)

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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tritium.__version__, prog_name="tritium")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log to stderr at this level."
)
def cli(log_level: str | None) -> None:
    """Run, compile and measure ternary (1.58-bit, BitNet) networks."""
    if log_level:
        import logging

        logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")


def main() -> Any:
    """Errors raised on purpose are one line and exit code 2; anything else is a bug and shows its traceback."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does: what is half written is taken away
    try:
        cli(prog_name="tritium")
    except TritiumError as error:
        say(f"error: {error}", "red", err=True)
        sys.exit(2)
