"""The commands of the live view: top in the terminal, dashboard on a page. They print until stopped.

TRITIUM_LIVE=1 tritium serve     a process that publishes its figures
tritium top                      tokens, ops, memory and requests of all that publish, once a second
tritium dashboard                the same on a page of this machine
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from tritium.arguments import read_duration
from tritium.cli.text import Table, echo, json_option, print_parts, shown, size

if TYPE_CHECKING:
    from tritium.see.live.viewer import Row, View

HEADS = ["pid", "program", "CPU", "memory", "tokens/s", "prefill/s", "ops/s", "requests", "busiest ops"]
HOME = "\x1b[H\x1b[J"  # to the top left, and the rest of the screen away


def _interval(context: click.Context, parameter: click.Parameter, value: str) -> float:
    return read_duration(value, parameter.opts[0])


@click.command()
@click.option(
    "--every", default="1s", show_default=True, metavar="TIME", callback=_interval, help="Time between two looks."
)
@click.option("--times", type=click.IntRange(1), help="Number of looks (default: until stopped).")
@json_option("Print each look as one line of JSON.")
def top(every: float, times: int | None, as_json: bool) -> None:
    """Show Tritium's running processes in the terminal.

    Tokens, ops, memory and requests, as they run. A process publishes when TRITIUM_LIVE=1 is set, or inside
    `with tt.see.publish():`. Nothing leaves the machine.
    """
    from tritium.perf.records import json_io as records
    from tritium.see.live.viewer import Viewer

    viewer, pause = Viewer(), threading.Event()
    screen = sys.stdout.isatty() and not as_json
    looks = 0
    try:
        while True:
            view = viewer.look()
            looks += 1
            if as_json:
                click.echo(records.dumps(view, ascii_only=True))
            else:
                if screen:
                    click.echo(HOME, nl=False)
                _show(view)
            if looks == times or pause.wait(every):
                return
    except KeyboardInterrupt:
        return


def _show(view: View) -> None:
    """Print the machine, then a line for each process."""
    from tritium.see.live.dashboard import NOBODY

    known = [f"{s.name.replace('_', ' ')} {size(int(s.value)) if s.unit == 'B' else f'{s.value:.3g} {s.unit}'}"
             for s in view.machine if s.value is not None]  # fmt: skip
    if view.joules is not None:
        known.append(f"{view.joules:.3g} J so far")
    if view.tokens_per_joule is not None:
        known.append(f"{view.tokens_per_joule:.3g} tokens/J")
    if not any(s.unit == "W" and s.value is not None for s in view.machine):
        known.append("energy not measured")
    echo(" · ".join(known))
    if not view.processes:
        echo(NOBODY)
    else:
        print_parts(Table([_cells(row) for row in view.processes], HEADS))
    for fault in view.faults:
        echo(shown(fault))


def _cells(row: Row) -> list[str]:
    busiest = ", ".join(f"{name} {_rate(calls)}" for name, calls in row.top_ops[:3])
    cpu = "-" if row.cpu_percent is None else f"{row.cpu_percent:.0f} %"
    failed = f", {row.requests_failed} failed" if row.requests_failed else ""
    requests = (
        f"{row.running} run, {row.waiting} wait{failed}" if row.running or row.waiting or row.requests_done else ""
    )
    return [
        str(row.pid), shown(row.name), cpu, size(row.rss), _rate(row.tokens_per_s), _rate(row.prefill_per_s),
        _rate(row.ops_per_s), requests, shown(busiest),
    ]  # fmt: skip


def _rate(value: float | None) -> str:
    """Return a rate in at most four digits."""
    if value is None:
        return "-"
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= scale:
            return f"{value / (1e3 if unit == ' k' else scale):.3g}{unit}"
    return f"{value:.4g}"


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 (default: any free one).")
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser.")
def dashboard(port: int, opens: bool) -> None:
    """Show Tritium's running processes on a local page.

    The page needs no network and is served on 127.0.0.1 alone; /metrics is the same as OpenMetrics. Ctrl-C stops it.
    """
    from tritium.see.live.dashboard import dashboard as served
    from tritium.see.live.viewer import Viewer

    ended = threading.Event()
    with served(Viewer(), port) as endpoint:
        address = f"http://{endpoint.host}:{endpoint.port}/"
        echo(f"dashboard: {address} (Ctrl-C stops it)")
        if opens:
            _open(address)
        try:
            ended.wait()
        except KeyboardInterrupt:
            echo("stopped", err=True)


def _open(address: str) -> Any:
    import webbrowser

    return webbrowser.open(address)
