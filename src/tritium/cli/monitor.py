"""The command that watches: monitor. It prints a line for each round, and sends alerts.

tritium monitor --every 1h --suite quick --warn 5% --critical 15%
tritium monitor --times 1 --file alerts.jsonl          one round, for cron: the state is kept between calls
tritium monitor --threshold 100ms --webhook URL        also where a call takes longer than that
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritium import escape, settings
from tritium.arguments import read_duration
from tritium.cli.text import echo, file_errors, json_option, processes_option, say, shown
from tritium.errors import ArgumentError, BaselineError

if TYPE_CHECKING:
    from tritium.perf.records.run import Results
    from tritium.see.monitor.alerts import Sink
    from tritium.see.monitor.monitor import Monitor, Round

LOOK = "5s"  # how often the machine itself is looked at for --port
CODES = "Exit codes: 0 stopped, or no open alert after --times; 1 open alerts; 2 usage or files, or no such baseline."


def read_by(read: Callable[[Any, str], float]) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """A callback that reads an option as files of settings are read."""

    def callback(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        if value is None or context.resilient_parsing:  # a shell completes the line
            return None
        try:
            return read(value, parameter.opts[0])
        except ArgumentError as error:
            raise click.UsageError(str(error), context) from None

    return callback


def _share(value: Any, where: str) -> float:
    from tritium.perf.suites.config import fraction

    share = fraction(value, where)
    if not str(value).strip().endswith("%"):
        echo(f"{where} {value} is read as {100 * share:g} %", err=True)
    return share


FILE_HERE = click.Path(exists=True, dir_okay=False)
FILE = click.Path(dir_okay=False)
SUITE = "Suite: quick, or one of tritium bench --list (default: the baseline's cases, else quick)."
BASELINE = "Results to judge by (default: the first good round, stored for the next start)."
COMMAND = "Program that reads each alert as JSON on stdin; run without a shell."


@click.command(epilog=CODES)
@click.option(
    "--every",
    default="1h",
    show_default=True,
    metavar="TIME",
    callback=read_by(read_duration),
    help="Time from round to round: 30s, 10min, 1h.",
)
@click.option("--suite", metavar="NAME", help=SUITE)
@click.option(
    "--load",
    multiple=True,
    type=FILE_HERE,
    metavar="FILE.py",
    help="Your own benchmarks (@tt.perf.benchmark); repeatable.",
)
@click.option(
    "--warn",
    default="5%",
    show_default=True,
    metavar="SHARE",
    callback=read_by(_share),
    help="Slowdown that is a warning.",
)
@click.option(
    "--critical",
    default="15%",
    show_default=True,
    metavar="SHARE",
    callback=read_by(_share),
    help="Slowdown that is critical.",
)
@click.option(
    "--threshold",
    metavar="TIME",
    callback=read_by(read_duration),
    help="A longer call is critical: 100ms.",
)
@click.option("--baseline", metavar="NAME|FILE", help=BASELINE)
@click.option("--times", type=click.IntRange(1), help="Number of rounds (default: until stopped).")
@processes_option(2, "Fresh processes per round.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: the baseline's, else all available).")
@click.option("--log", "to_log", is_flag=True, help="Log alerts to the Python logger tritium.")
@click.option("--file", "to_file", type=FILE, metavar="FILE", help="Append alerts to a file, one JSON object per line.")
@click.option("--command", "to_command", multiple=True, metavar="COMMAND", help=COMMAND)
@click.option("--webhook", "to_webhook", multiple=True, metavar="URL", help="POST alerts to this URL; repeatable.")
@click.option("--port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on 127.0.0.1; 0: any free port.")
@click.option("--history", is_flag=True, help="Add every round to tritium history.")
@click.option(
    "--state",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Folder of the baseline and open alerts.",
)
@click.option("--forget", is_flag=True, help="Start over: drop the baseline and open alerts.")
@json_option("Print each round as one line of JSON.")
def monitor(**options: Any) -> None:
    """Measure a suite periodically and alert on regressions.

    An alert is raised once, and cleared when the cause is gone. A round that fails is reported once, and the next one runs.
    Ctrl-C or SIGTERM stop it cleanly.
    """
    from tritium.machine import files
    from tritium.perf.suites.config import duration_text
    from tritium.see.monitor.monitor import QUICK

    folder = Path(options["state"]) if options["state"] else _folder(options["suite"] or options["baseline"] or QUICK)
    with file_errors(), files.lock(folder / ".lock", 0.2):
        watch = _monitor(options, folder)
        with _page(watch, options["port"]), _signals(watch):
            echo(f"watching: a round every {duration_text(options['every'])}; Ctrl-C ends it", err=True)
            try:
                worst = watch.run(options["times"], _tell_json if options["as_json"] else _tell)
            except KeyboardInterrupt:  # asked twice, or between two steps
                echo("stopped", err=True)
                return
    ended = options["times"] is not None and watch.rounds >= options["times"]
    if not ended:
        echo("stopped", err=True)
    sys.exit(1 if ended and worst != "ok" else 0)


def _folder(name: str) -> Path:
    return settings.data_dir() / "monitor" / escape.file_name(name)


def _monitor(options: dict[str, Any], folder: Path) -> Monitor:
    from tritium.perf.suites import config, suites
    from tritium.see.monitor.alerts import Desk
    from tritium.see.monitor.monitor import Monitor, measurement

    levels = config.alerts({"warning": options["warn"], "critical": options["critical"]}, "--warn and --critical")
    state, stored = folder / "alerts.json", folder / "baseline.json"
    sinks = _sinks(options)
    before = _baseline(options["baseline"])
    if options["forget"]:
        for path in (state, stored):
            path.unlink(missing_ok=True)
    own = [name for path in options["load"] for name in suites.load(path)]
    how = {name: options[name] for name in ("threads", "generations")}
    measure = measurement(options["suite"], before, own=own, **how)
    return Monitor(
        measure, Desk(sinks, state), every_s=options["every"], levels=levels, limit_s=options["threshold"], baseline=before,
        keep_baseline=stored, keep=_keep if options["history"] else None,
    )  # fmt: skip


def _sinks(options: dict[str, Any]) -> list[Sink]:
    from tritium.see.monitor.alerts import Command, File, Log, Webhook

    out: list[Sink] = []
    if options["to_file"]:
        out.append(File(Path(options["to_file"])))
    for line in options["to_command"]:
        try:
            out.append(Command(tuple(shlex.split(line))))
        except (ValueError, ArgumentError) as error:
            raise click.UsageError(f"--command: {error}") from None
    try:
        out += [Webhook(url) for url in options["to_webhook"]]
    except ArgumentError as error:
        raise click.UsageError(f"--{error}") from None
    return [Log(), *out] if options["to_log"] else out


def _baseline(name: str | None) -> Results | None:
    from tritium.perf.gate import regression

    if name is None:
        return None
    try:
        return regression.loaded(name)
    except (BaselineError, FileNotFoundError) as error:
        raise ArgumentError(f"--baseline: {regression.why_absent(name, error)}") from None


def _keep(results: Results) -> None:
    from tritium.perf.store.history import History

    with History() as history:
        history.add(results)


@contextmanager
def _page(watch: Monitor, port: int | None) -> Iterator[None]:
    """The page for Prometheus, where it was asked for."""
    if port is None:
        yield
        return
    from tritium.see.monitor.collector import Collector
    from tritium.see.monitor.endpoint import Endpoint

    with ExitStack() as stack:
        seen = stack.enter_context(Collector(LOOK, history=1))
        page = stack.enter_context(Endpoint(lambda: watch.page() + seen.export_metrics("prometheus"), port))
        echo(f"for Prometheus: {page.url}", err=True)
        yield


@contextmanager
def _signals(watch: Monitor) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask it to end; the old answers to them come back afterwards."""
    before = {number: signal.signal(number, watch.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_json(round_: Round) -> None:
    from tritium.perf.records import json_io as records

    click.echo(records.dumps(replace(round_, results=None), ascii_only=True))  # their samples are in the history


def _tell(round_: Round) -> None:
    rest = "" if round_.next_s is None else f"; the next in {round_.next_s:.0f} s"
    echo(shown(round_.line()) + rest)
    for alert in round_.alerts:
        say(f"  {alert.line()}", {"critical": "red", "warning": "yellow"}.get(alert.level, "green"))
