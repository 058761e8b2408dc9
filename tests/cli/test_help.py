"""Help: every command, at 80 columns, in whole sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from tritium import io
from tritium.cli.root import GROUPS, cli

WIDTH = 80


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield a command and all below it, each with its context and the words that call it."""
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, click.Context(inner, info_name=name, parent=context))


def root() -> click.Context:
    return click.Context(cli, info_name="tritium", terminal_width=WIDTH)


TREE = {words: (command, context) for words, command, context in walk(cli, root())}


@pytest.mark.parametrize("words", TREE)
def test_a_help_fits_80_columns_in_whole_sentences(words: str) -> None:
    command, context = TREE[words]
    lines = command.get_help(context).splitlines()
    body = [line for line in lines if not line.startswith("Usage:")]
    assert [line for line in body if line.rstrip().endswith("...")] == []
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("words", TREE)
def test_a_command_and_each_of_its_options_say_what_they_are_for(words: str) -> None:
    command, context = TREE[words]
    first = (command.help or "").split("\n\n")[0]
    assert re.search(r"[.]$", first), "the first paragraph is a sentence"
    options = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context))]
    assert len(records) == len(options)
    assert [name for name, text in records if not text] == []


def test_the_commands_are_listed_in_groups_each_once_on_a_line() -> None:
    text = cli.get_help(root())
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Options", "Run", "Files", "Measure", "See", "Machine"]
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == cli.list_commands(root())
    for name in listed:
        assert len(re.findall(rf"^  {name} +\S.*\.$", text, re.MULTILINE)) == 1


def test_the_formats_of_convert_are_those_of_the_table() -> None:
    command, context = TREE["tritium convert"]
    text = " ".join(command.get_help(context).split())
    assert f"Format to write: {', '.join(io.FORMATS)}." in text


def test_the_suites_of_bench_are_described_in_full() -> None:
    from tritium.perf.suites.suites import SUITES

    command, context = TREE["tritium bench"]
    text = " ".join(command.get_help(context).split())
    assert all(f"{suite.name} {suite.doc}" in text for suite in SUITES.values())
