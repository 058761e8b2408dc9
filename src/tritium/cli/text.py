"""What the commands share: how sizes, counts, tables and names from files look on a terminal.

Knows nothing of any command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tritium.escape import terminal

VARIANT = click.Choice(["arm64", "multiply", "divide"])
VARIANT_HELP = "What the file cannot tell: I2_S written by ARM builds, or what weight_scale does."


def size(n: int) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n = n / 1024  # type: ignore[assignment]
    return f"{n:.2f} GiB"


def amount(n: int) -> str:
    """A count for people: 2.41 B, 3.15 M, 812."""
    for unit, one in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if n >= one:
            return f"{n / one:.2f} {unit}"
    return str(n)


def table(rows: list[list[str]], heads: list[str]) -> str:
    """A plain text table, columns aligned."""
    widths = [max(len(r[i]) for r in [heads, *rows]) for i in range(len(heads))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [heads, *rows]]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def shown(text: str) -> str:
    """Text from a file, safe for a terminal."""
    return terminal(text, 1000)


@contextmanager
def bar(label: str) -> Iterator[Any]:
    """A progress bar on stderr for a callback(done, total, what); nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(
        length=1000, label=label, file=sys.stderr, item_show_func=lambda x: x and shown(x)[:40]
    ) as progress:

        def report(done: int, total: int, what: str) -> None:
            progress.update(1000 * done // max(total, 1) - progress.pos, what)

        yield report
