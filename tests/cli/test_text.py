"""Output for people: plain and stable in a pipe, whole at 80 columns of a terminal, and text from files is never markup."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from tritium.cli.text import Table, bar, print_parts, progress, say, span, status

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


def test_a_long_line_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = attach("stdout", monkeypatch)
    say("word " * 40, "red")
    assert ESCAPES.sub("", stdout.getvalue()) == "word " * 40 + "\n"


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


@pytest.mark.parametrize(("seconds", "text"), [(42.2, "42 s"), (99.9, "100 s"), (200, "3 min")])
def test_a_span_is_for_people(seconds: float, text: str) -> None:
    assert span(seconds) == text
