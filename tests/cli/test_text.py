"""Output for people: plain and stable in a pipe, whole at 80 columns of a terminal, and text from files is never markup."""

from __future__ import annotations

import ast
import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tritium.cli import text as cli_text
from tritium.cli.text import Table, bar, echo, line_width, print_parts, progress, say, status, wrap

CELLS = Table(
    [["a [bold]b[/bold] :smile:", "1.25 GiB", "a text of many words that a narrow terminal must wrap " * 2], ["c", "12.50 MiB", "d"]],
    ["name", "bytes", "what it is"],
)  # fmt: skip
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def attach(name: str, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace sys.stdout or sys.stderr inside a test: pytest sets both again after the fixtures."""
    stream = Terminal()
    monkeypatch.setattr(sys, name, stream)
    return stream


def screen(text: str) -> list[str]:
    """Return the lines a terminal shows after this output, without the empty ones at the end."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b"):
            if part.endswith("A"):
                row -= int(part[2:-1] or 1)
            elif part.endswith("K"):
                lines[row] = "" if part == "\x1b[2K" else lines[row][:column]
        else:
            line = lines[row].ljust(column)
            lines[row], column = line[:column] + part + line[column + len(part) :], column + len(part)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


# ---- text


def test_a_style_is_seen_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    say("same", "bold green", end="")
    say("  [red]3[/red]")
    assert stdout.getvalue() == "\x1b[1;32msame\x1b[0m  [red]3[/red]\n"


def test_markup_in_a_styled_text_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    say("[red]3[/red] :smile: 12", "bold")
    assert stdout.getvalue() == "\x1b[1m[red]3[/red] :smile: 12\x1b[0m\n"


def test_a_long_word_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    say("word" * 40, "red")
    assert ESCAPES.sub("", stdout.getvalue()) == "word" * 40 + "\n"


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    say("different", "bold red")
    assert stdout.getvalue() == "\x1b[1mdifferent\x1b[0m\n"


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    say("different", "bold red")
    say("error", "red", err=True)
    assert capsys.readouterr() == ("different\n", "error\n")


def test_force_color_colours_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    say("different", "red")
    assert capsys.readouterr().out == "\x1b[31mdifferent\x1b[0m\n"


# ---- tables


def test_a_table_in_a_pipe_is_as_wide_as_its_cells(capsys: pytest.CaptureFixture[str]) -> None:
    print_parts(Table([["a", "1.5"], ["long name", ""]], ["name", "x"]), "", "end")
    assert capsys.readouterr().out == "name       x\n---------  ---\na          1.5\nlong name\n\nend\n"


def test_a_table_on_a_terminal_fits_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    print_parts(CELLS)
    lines = ESCAPES.sub("", stdout.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert "1.25 GiB" in lines[2]
    assert "[bold]b[/bold] :smile:" in lines[2]
    assert "…" not in stdout.getvalue()
    words = " ".join(line[36:].strip() for line in lines[2:])
    assert words.split() == [*CELLS.rows[0][2].split(), "d"]


def test_a_colour_of_a_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    print_parts(Table([["a"], ["b"]], ["x"], ["", "yellow"]))
    assert "\x1b[33mb" in stdout.getvalue()
    assert "\x1b[33ma" not in stdout.getvalue()


def test_a_table_without_rows_has_its_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    print_parts(Table([], ["name", "x"]))
    assert ESCAPES.sub("", stdout.getvalue()).split()[:2] == ["name", "x"]


def test_a_forced_colour_does_not_wrap_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_parts(CELLS)
    assert len(capsys.readouterr().out.splitlines()) == 4


WORDS = st.lists(st.text("abc[]/:", min_size=1, max_size=9), max_size=20).map(" ".join)


@given(st.lists(st.tuples(WORDS, st.floats(0, 1e6).map("{:.3g} ms".format), WORDS), min_size=1, max_size=5))
def test_whatever_the_words_no_character_is_lost_at_80_columns(rows: list[tuple[str, str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stream = Terminal()
        patch.setattr(sys, "stdout", stream)
        print_parts(Table(rows, ["a", "b", "c"]))
    text = ESCAPES.sub("", stream.getvalue())
    assert max(map(len, text.splitlines())) <= 80
    assert all(figure in text for _, figure, _ in rows)
    body = "".join(text.splitlines()[2:]).replace(" ", "")
    assert sorted(body) == sorted("".join(map("".join, rows)).replace(" ", ""))


# ---- progress


def test_a_bar_is_drawn_without_a_thread_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = attach("stderr", monkeypatch)
    import threading

    threads = threading.active_count()
    with bar("reading [b]x[/b]") as report:
        assert "reading [b]x[/b]" in screen(stderr.getvalue())[-1]
        assert report is not None
        report(1, 4, "file [b]y[/b]")
        line = screen(stderr.getvalue())[-1]
        assert threading.active_count() == threads
    assert line.startswith(" 25 %")
    assert "file [b]y[/b]" in line
    assert screen(stderr.getvalue()) == []


def test_a_bar_does_not_exceed_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = attach("stderr", monkeypatch)
    with bar("x") as report:
        assert report is not None
        report(1, 4, "word " * 60)
        assert len(screen(stderr.getvalue())) == 1
        assert len(screen(stderr.getvalue())[0]) <= 80


def test_a_bar_that_is_updated_often_is_drawn_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = attach("stderr", monkeypatch)
    with bar("x") as report:
        assert report is not None
        for done in range(1000):
            report(done, 1000, "y")
    assert stderr.getvalue().count("\x1b[2K") < 100


def test_what_is_printed_meanwhile_goes_to_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = attach("stderr", monkeypatch)
    with progress("2 cases"):
        sys.stdout.write("{}\n")
    assert "{}" not in stderr.getvalue()
    assert screen(stderr.getvalue()) == ["2 cases"]
    assert capsys.readouterr().out == "{}\n"


def test_nothing_is_drawn_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("x") as report:
        assert report is None
    status("y")
    assert capsys.readouterr() == ("", "")


def test_a_pipe_needs_no_rich() -> None:
    code = "import sys; from tritium.cli import text as t; t.print_parts(t.Table([['a']], ['b'])); t.say('x', 'red')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit('rich' in sys.modules)"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "b\n-\na\nx\n")


# ---- lines that fit a terminal

PROSE = st.lists(st.text("abc.,é:", min_size=1, max_size=19), min_size=1, max_size=60).map(" ".join)
WIDTHS = pytest.mark.parametrize("width", [80, 120])
NOTE = "note: " + "the machine was busy while this was measured, so look at the intervals before the medians " * 3


@WIDTHS
@given(text=st.lists(PROSE, max_size=3).map("\n".join), column=st.integers(0, 20))
def test_wrapped_lines_fit_and_keep_their_words(width: int, text: str, column: int) -> None:
    lines = wrap(text, width, column).split("\n")
    assert " ".join(lines).split() == text.split()
    assert len(lines[0]) + column <= width or " " not in lines[0].strip()
    assert all(len(line) <= width for line in lines[1:])
    assert wrap(text, None) == text
    if column + max(map(len, text.split("\n"))) <= width:
        assert "\n".join(lines) == text


@WIDTHS
def test_a_note_goes_on_indented_and_a_guide_below_its_last_column(width: int) -> None:
    first, *more = wrap(NOTE, width).split("\n")
    assert first.startswith("note: the machine")
    assert more
    assert all(line.startswith("  ") and line[2] != " " for line in more)
    guide = wrap(f"  small matrices  tritium: {NOTE}", width).split("\n")
    assert all(line.startswith(" " * len("  small matrices  ") + line.strip()[0]) for line in guide[1:])


@pytest.mark.parametrize("text", ["/a/path/" + "x" * 200, "written: /a/path/" + "x" * 200])
def test_a_path_longer_than_a_line_stays_whole(text: str) -> None:
    assert "/a/path/" + "x" * 200 in wrap(text, 80)


def test_the_rows_of_a_table_are_not_broken_and_the_note_below_it_is() -> None:
    table = str(Table([["a case", "1 " * 60, "b"], ["c", "2", "d"]], ["name", "figures", "more"]))
    lines = wrap(f"{NOTE}\n\n{table}\n{NOTE}", 80).split("\n")
    assert all(row in lines for row in table.split("\n"))
    assert all(len(line) <= 80 for line in lines if line not in table.split("\n"))
    assert lines[-1] != NOTE


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("120", 120), ("0", 80), ("many", 80), ("", 80)])
def test_the_width_is_the_terminals_and_80_where_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert line_width(Terminal()) == width  # it has no descriptor to ask
    assert line_width(io.StringIO()) is None


@WIDTHS
@pytest.mark.parametrize("print_text", [echo, say, print_parts, lambda text: say(text, "yellow")])
def test_everything_that_prints_wraps_on_a_terminal_and_not_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, width: int, print_text: Callable[[str], None]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = attach("stdout", monkeypatch)
    print_text(NOTE)
    lines = ESCAPES.sub("", stream.getvalue()).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == NOTE.strip()
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stdout", plain)
    print_text(NOTE)
    assert plain.getvalue() == NOTE + "\n"


@WIDTHS
@pytest.mark.parametrize(
    "args",
    [
        ["report", "--input", "a file that is not there " * 8 + ".json"],
        ["bench", "no such suite"],
        ["compare", "--sizes", "a size that is none " * 10],
        ["--an-option-that-is-none" + " and more words" * 12],
    ],
)
def test_errors_fit_a_terminal_of_80_and_of_120_columns(width: int, args: list[str]) -> None:
    """In a real terminal: click prints its own errors, the command's own come from main."""
    printed = on_a_terminal(args, width)
    assert "rror: " in printed
    assert max(map(len, printed.splitlines())) <= width


def on_a_terminal(args: list[str], width: int) -> str:
    """Return what a command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    env = os.environ | {"COLUMNS": str(width), "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-m", "tritium", *args], stdout=theirs, stderr=theirs, env=env):
        os.close(theirs)
        printed = b""
        try:
            while part := os.read(ours, 1 << 16):
                printed += part
        except OSError:  # the other side is closed
            pass
    os.close(ours)
    return ESCAPES.sub("", printed.decode()).replace("\r", "")


RAW = ("dumps(", "markdown(", "export_results(", ".json(", "nl=False", "forms[")


def test_commands_print_text_for_people_by_the_function_that_wraps_it() -> None:
    """click.echo is for machines: JSON, CSV, Markdown, and text that streams."""
    for path in Path(cli_text.__file__).parent.glob("*.py"):
        source = path.read_text()
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        for call in calls:
            if ast.unparse(call.func) == "click.echo" and path.name != "text.py":
                text = ast.get_source_segment(source, call) or ""
                assert any(word in text for word in RAW), f"{path.name}:{call.lineno}: {text}"
