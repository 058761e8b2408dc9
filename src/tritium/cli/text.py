"""What the commands share: kinds of options, and how sizes, counts, tables, names from files and progress look on a terminal.

Knows nothing of any command.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from tritium.errors import ArgumentError, SaveError
from tritium.escape import terminal

VARIANT = click.Choice(["arm64", "multiply", "divide"])
VARIANT_HELP = "What the file cannot tell: I2_S written by ARM builds, or what weight_scale does."
NO_REPORT = click.option(
    "--report/--no-report", default=True, show_default=True, help="Write a page beside the results."
)
LINE_S = 5.0  # between lines of progress where nobody watches a terminal


# ---- kinds of options


class Words(click.ParamType):  # type: ignore[type-arg]
    """Names parted by commas."""

    name = "names"

    def convert(self, value: Any, param: Any, context: Any) -> tuple[str, ...]:
        found = tuple(word.strip() for word in value.split(",")) if isinstance(value, str) else tuple(value)
        if not all(found):
            self.fail(f"{value!r}: names parted by commas are needed.", param, context)
        return found


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """Sizes parted by commas: 256 is 256x256."""

    name = "sizes"

    def convert(self, value: Any, param: Any, context: Any) -> tuple[tuple[int, ...], ...]:
        if not isinstance(value, str):
            return tuple(value)
        out = []
        for word in value.split(","):
            if not re.fullmatch(r"\s*[0-9]{1,7}(\s*[x×]\s*[0-9]{1,7}){0,3}\s*", word):
                self.fail(f"{word.strip()!r} is not a size; write 256 (256x256), 64x128 or 8x64x64.", param, context)
            numbers = tuple(int(n) for n in re.findall("[0-9]+", word))
            if 0 in numbers:
                self.fail(f"{word.strip()!r}: every size must be 1 or more.", param, context)
            out.append(numbers * 2 if len(numbers) == 1 else numbers)
        return tuple(out)


class Counts(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers from 1 on, parted by commas."""

    name = "counts"

    def convert(self, value: Any, param: Any, context: Any) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        if not re.fullmatch(r"\s*[1-9][0-9]{0,6}(\s*,\s*[1-9][0-9]{0,6})*\s*", value):
            self.fail(f"{value!r}: whole numbers from 1 on, parted by commas, are needed: 1,8,32.", param, context)
        return tuple(int(word) for word in value.split(","))


# ---- what is printed


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


def status(text: str) -> None:
    """What is being done, on a line that the next one takes away; nothing where nobody watches."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{shown(text)}" if text else "\r\x1b[K", nl=False, err=True)


@contextmanager
def progress(told: str) -> Iterator[Callable[[int, int, str], None]]:
    """A live line on a terminal, a line every few seconds elsewhere; both on stderr."""
    began = last = time.monotonic()
    click.echo(told, err=True)
    status("looking at the machine; its ceilings are measured once …")

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        left = f", about {span((now - began) * (total - done) / done)} left" if done and now - began > 3 else ""
        line = f"{100 * done // max(total, 1):3d} %  {what}{left}"
        if sys.stderr.isatty():
            status(line[: shutil.get_terminal_size().columns - 1])
        elif now - last >= LINE_S or not done:
            last = now
            click.echo(shown(line), err=True)

    try:
        yield report
    finally:
        status("")


def span(seconds: float) -> str:
    """Seconds for people: 42 s, 3 min."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


# ---- errors


@contextmanager
def file_errors() -> Iterator[None]:
    """What the system says of a file is one line and exit code 2."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise ArgumentError(f"{name}{error.strerror or error}. Check the path and its permissions.") from None
