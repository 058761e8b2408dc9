"""Parts of every command: types of options, sizes and counts for people, names from files, and errors of files.

Knows nothing of any command; `cli.terminal` prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tritium.errors import ArgumentError, SaveError
from tritium.escape import terminal

VARIANT = click.Choice(["arm64", "multiply", "divide"])
VARIANT_HELP = "Variant the file does not name: I2_S of ARM builds, or the use of weight_scale."
TERNARISE_HELP = "Round the projections of a model not trained to be ternary."
NO_REPORT = click.option(
    "--report/--no-report", default=True, show_default=True, help="Write an HTML report next to the results."
)


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


def shown(text: str) -> str:
    """Text from a file, safe for a terminal."""
    return terminal(text, 1000)


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
