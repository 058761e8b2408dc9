"""Parts of every command: types of options; text, tables and progress on a terminal; errors of files.

rich draws on a terminal, and is imported when it does; elsewhere everything is plain, stable text. rich gets `Text`, never
markup: text from files means nothing to it. NO_COLOR and FORCE_COLOR are honoured.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from tritium.errors import ArgumentError, SaveError
from tritium.escape import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from tritium.perf.suites.config import Options

VARIANT = click.Choice(["arm64", "multiply", "divide"])
VARIANT_HELP = "Variant the file does not name: I2_S of ARM builds, or the use of weight_scale."
TERNARISE_HELP = "Round the projections of a model not trained to be ternary."


def processes_option(least: int, text: str) -> Callable[[Any], Any]:
    """Return the option of the number of fresh processes; --generations is its former name."""
    return click.option("--processes", "--generations", "generations", type=click.IntRange(least), help=text)


def json_option(text: str = "Print JSON.", form: str | None = None) -> Callable[[Any], Any]:
    """Return the option --json of every command that prints facts: a flag `as_json`, or, of a command with formats, json as the
    value of its option `form` where that was not given."""
    if form is None:
        return click.option("--json", "as_json", is_flag=True, help=text)

    def choose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            context.default_map = {**(context.default_map or {}), form: "json"}

    return click.option("--json", is_flag=True, is_eager=True, expose_value=False, callback=choose, help=text)


def options_of_a_name(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a model that is given by its name on the Hugging Face hub: `revision`, `model_file` and `offline`."""
    for option in reversed((
        click.option("--revision", metavar="NAME", help="Branch, tag or commit of a model owner/repo."),
        click.option("--file", "model_file", metavar="NAME", help="Which file of a model owner/repo."),
        click.option("--offline", is_flag=True, help="Use models owner/repo from the cache alone."),
    )):  # fmt: skip
        command = option(command)
    return command


def located(
    model: str, revision: str | None = None, model_file: str | None = None, offline: bool = False, **more: Any
) -> Any:
    """Return where a model is, and its name, after fetching one that is given as owner/repo; say which file that is."""
    from tritium.models.hub import locate

    hear = lambda text: echo(f"[{shown(text)}]", err=True)
    return locate(model, revision=revision, file=model_file, offline=offline, hear=hear, **more)


def print_json(value: Any) -> None:
    """Print a record as JSON, in ASCII alone: a terminal obeys some other characters."""
    click.echo(json.dumps(value, indent=2, allow_nan=False, default=_as_json))


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


INTERRUPTED = 130  # the exit code that shells report of a program ended by Ctrl-C

NO_REPORT = click.option(
    "--report/--no-report", default=True, show_default=True, help="Write an HTML report next to the results."
)


INSTRUCTIONS = click.option(
    "--instructions", is_flag=True, help="Count instructions beside time: by the processor, else by valgrind (slow)."
)


def with_instructions(options: Options, counting: bool) -> Options:
    """Return the options of a measurement, with instructions among its metrics if they are counted."""
    return options.changed(metrics=(*options.plan.metrics, "instructions")) if counting else options


Report = Callable[[int, int, str], None]  # of progress: done, total, what is being done

GAP = 2  # spaces between columns
UNKNOWN_WIDTH, MIN_WIDTH = 80, 20  # columns of a terminal
HELP_ERRORS = getattr(click.exceptions, "NoArgsIsHelpError", ())  # from click 8.2 on; its message is a help page
RULE = re.compile(r"\s*-+(\s+-+)+\s*")  # below the heading of a table
COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")  # between two columns
MAX_FIGURE = 24  # a longer cell may be wrapped, even if it begins with a figure
FIGURE = re.compile(r"\s*[~<>≤≥±+−-]?\d")
DRAW_S = 0.1  # between two drawings of a bar
LINE_S = 5.0  # between lines of progress where no terminal shows a bar


# ---- types of options


class Words(click.ParamType):  # type: ignore[type-arg]
    """Names parted by commas."""

    name = "names"

    def convert(self, value: Any, param: Any, context: Any) -> tuple[str, ...]:
        names = tuple(word.strip() for word in value.split(",")) if isinstance(value, str) else tuple(value)
        if not all(names):
            self.fail(f"{value!r}: names parted by commas are needed.", param, context)
        return names


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


# ---- lines of text


def wrap(text: str, width: int | None, column: int = 0) -> str:
    """Return a text whose lines fit the width, broken between words; tables, and words longer than a line, stay whole.

    Lines go on indented by two, or below their last column where that begins in the left half. `column` is where the first
    line begins. Without a width the text is unchanged.
    """
    if width is None:
        return text
    lines = text.split("\n")
    rows = _table_rows(lines)
    parts = [
        line if i in rows else _wrap_line(line, max(width, MIN_WIDTH), 0 if i else column)
        for i, line in enumerate(lines)
    ]
    return "\n".join(parts)


def _table_rows(lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines that belong to tables: a heading, the rule below it, and rows with columns."""
    rows: set[int] = set()
    for i, line in enumerate(lines):
        if i and RULE.fullmatch(line):
            rows |= {i - 1, i}
        elif i - 1 in rows and i not in rows and COLUMNS.search(line):
            rows.add(i)
    return rows


def _wrap_line(line: str, width: int, column: int) -> str:
    if column + len(line) <= width:
        return line
    from textwrap import wrap as broken  # for a terminal only

    lead = len(line) - len(line.lstrip())
    ends = [match.end() for match in COLUMNS.finditer(line) if column + match.end() <= width // 2]
    indent = column + ends[-1] if ends else lead + GAP
    parts = broken(
        line, width, initial_indent=" " * column, subsequent_indent=" " * indent, expand_tabs=False, replace_whitespace=False,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(parts)[column:]


def line_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal that a stream writes to, 80 where they are unknown; None for a file or a pipe."""
    if not stream.isatty():
        return None
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):  # no such descriptor, or COLUMNS is no number
        columns = 0
    return columns if columns > 0 else UNKNOWN_WIDTH


def echo(text: str = "", *, err: bool = False, nl: bool = True, column: int = 0) -> None:
    """Print text for people: a terminal gets lines that fit it, a pipe the text as it is."""
    click.echo(wrap(text, line_width(sys.stderr if err else sys.stdout), column), err=err, nl=nl)


@contextmanager
def wrapped_errors() -> Iterator[None]:
    """Wrap the message of an error that click prints."""
    try:
        yield
    except click.ClickException as error:
        width = line_width(sys.stderr)
        if width is not None and not isinstance(error, HELP_ERRORS):
            text = wrap(error.format_message(), width, len("Error: "))
            error.format_message = lambda: text  # type: ignore[method-assign]
        raise


def say(text: str, style: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a text, in a style of rich's ("bold red") where colours are shown."""
    stream = sys.stderr if err else sys.stdout
    text = wrap(text, line_width(stream))
    if not style or not _is_styled(stream):
        click.echo(text + end, nl=False, err=err)
        return
    from rich.text import Text

    _console(stream).print(Text(text, style), end=end, soft_wrap=True)


def _is_styled(stream: TextIO) -> bool:
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _console(stream: TextIO, width: int | None = None) -> Console:
    """Return a console that writes to the stream: what rich adds to text on its own account is off."""
    from rich.console import Console

    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


# ---- tables


class Table(NamedTuple):
    """Rows of text below headings; `styles` has a style for each row."""

    rows: Sequence[Sequence[str]]
    heads: Sequence[str]
    styles: Sequence[str] = ()

    def __str__(self) -> str:
        """Return the table as plain text, as wide as its cells."""
        widths = self.widths()
        lines = [
            (" " * GAP).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (self.heads, *self.rows)
        ]
        return "\n".join([lines[0], (" " * GAP).join("-" * width for width in widths), *lines[1:]])

    def widths(self, limit: int | None = None) -> list[int]:
        """Return the widths of the columns; with a limit, the widest are narrowed, down to their longest word."""
        columns = list(zip(self.heads, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        floors = [_floor(head, cells) for head, *cells in columns]
        excess = 0 if limit is None else sum(widths) + GAP * (len(widths) - 1) - limit
        while excess > 0 and (free := [i for i, width in enumerate(widths) if width > floors[i]]):
            widths[max(free, key=widths.__getitem__)] -= 1
            excess -= 1
        return widths


def _floor(head: str, cells: Sequence[str]) -> int:
    """Return the least width of a column: figures stay on one line, text is wrapped between words."""
    width = max(map(len, (head, *cells)))
    if width <= MAX_FIGURE and all(FIGURE.match(cell) for cell in cells if cell.strip("- ")):
        return width
    return max((len(word) for cell in (head, *cells) for word in cell.split()), default=0)


def print_parts(*parts: str | Table, err: bool = False) -> None:
    """Print texts and tables; a terminal gets tables that fit its width."""
    stream = sys.stderr if err else sys.stdout
    for part in parts:
        if isinstance(part, Table) and _is_styled(stream):
            _draw_table(part, stream)
        else:
            echo(str(part), err=err)


def _draw_table(table: Table, stream: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Drawing
    from rich.text import Text

    console = _console(stream, None if stream.isatty() else sum(table.widths()) + GAP * len(table.heads))
    drawing = Drawing(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for head, column in zip(table.heads, table.widths(console.width), strict=True):
        drawing.add_column(Text(head), width=column, overflow="fold")
    for i, row in enumerate(table.rows):
        drawing.add_row(*map(Text, row), style=table.styles[i] if table.styles else None)
    console.print(drawing, crop=False)


# ---- progress, on stderr


def status(text: str) -> None:
    """Show what is being done on a line that the next status replaces; nothing where no terminal is."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{shown(text)}" if text else "\r\x1b[K", nl=False, err=True)


@contextmanager
def bar(label: str) -> Iterator[Report | None]:
    """Draw a progress bar while something is done; None, which reports nothing, where no terminal is."""
    if not sys.stderr.isatty():
        yield None
        return
    with _drawn(label) as report:
        yield report


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """Print the title, then draw a progress bar; where no terminal is, print a line every few seconds."""
    echo(title, err=True)
    if sys.stderr.isatty():
        with _drawn("looking at the machine; its ceilings are measured once …") as report:
            yield report
        return
    last, left = time.monotonic(), _time_left()

    def report_line(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_S or not done:
            last = now
            click.echo(shown(f"{100 * done // max(total, 1):3d} %  {what}{left(done, total, now)}"), err=True)

    yield report_line


@contextmanager
def _drawn(label: str) -> Iterator[Report]:
    """Draw a bar that is removed at the end. No thread of rich's redraws it: that would disturb what is being measured."""
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (
        TextColumn("{task.percentage:3.0f} %", markup=False),
        BarColumn(bar_width=20, complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
        text,
    )
    left, last = _time_left(), 0.0
    with Progress(
        *columns, console=_console(sys.stderr), auto_refresh=False, transient=True, redirect_stdout=False
    ) as drawing:
        task = drawing.add_task(label)
        drawing.refresh()

        def report(done: int, total: int, what: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < DRAW_S and done < total:
                return
            last = now
            line = shown(f"{what}{left(done, total, now)}")
            drawing.update(task, completed=done, total=max(total, 1), description=line, refresh=True)

        yield report


def _time_left() -> Callable[[int, int, float], str]:
    """Return a function that says how long the rest takes, once a few seconds have shown the speed."""
    start = time.monotonic()

    from tritium.arguments import duration_text  # help does without it

    def left(done: int, total: int, now: float) -> str:
        elapsed = now - start
        return f", about {duration_text(elapsed * (total - done) / done)} left" if done and elapsed > 3 else ""

    return left


def page_width() -> int:
    """Return the columns a page of text may fill: the terminal's, and 200 where it is piped."""
    return line_width(sys.stdout) or 200


# ---- errors


@contextmanager
def file_errors() -> Iterator[None]:
    """Turn errors of the file system into one line and exit code 2."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise ArgumentError(f"{name}{error.strerror or error}. Check the path and its permissions.") from None
