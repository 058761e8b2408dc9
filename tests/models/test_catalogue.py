"""The list of models: families and formats of the code, repositories whose names and commands are right."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tritium.cli.root import cli
from tritium.families import BY_TYPE, FAMILIES
from tritium.io import FORMATS
from tritium.models import catalogue
from tritium.models.hub import is_name

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_families_are_those_that_load() -> None:
    rows = {row.name: row for row in catalogue.families()}
    assert set(rows) == set(FAMILIES)
    for row in rows.values():
        assert row.gguf
        assert row.classes
        assert all(BY_TYPE[kind].name == row.name for kind in row.model_types)


def test_formats_are_those_of_the_table_and_what_is_read_beside_them() -> None:
    rows = {row.name: row for row in catalogue.formats()}
    assert {name for name, row in rows.items() if row.written} == set(FORMATS)
    assert not rows["prepacked"].written


@pytest.mark.parametrize("row", catalogue.known(), ids=lambda row: row.repo)
def test_a_repository_has_a_name_and_a_command(row: catalogue.Known) -> None:
    assert is_name(row.repo)
    words = row.command.split()
    command = cli.get_command(click.Context(cli), words[1])
    assert command is not None
    command.make_parser(click.Context(command)).parse_args(words[2:])  # the options exist
    assert row.gigabytes is None or 0 < row.gigabytes < 100
    assert row.runs == any(row.architecture in family.model_types for family in catalogue.families())


def test_models_that_chat_within_a_memory_are_one_of_each_and_the_smallest_first() -> None:
    every = catalogue.chats_within(1 << 60)
    sizes = [row.gigabytes for row in every if row.gigabytes is not None]
    assert sizes == sorted(sizes)
    assert len(sizes) == len(every) == len({(row.architecture, row.parameters) for row in every}) >= 4
    assert all(row.runs and row.use == "chat" for row in every)
    for row, size in zip(every, sizes, strict=True):
        assert row in catalogue.chats_within(int(size * 1.5e9) + 1)
        assert row not in catalogue.chats_within(int(size * 1.5e9) - 1)
    # Of three repositories with the same model the first that is listed: its GGUF file.
    assert [row.repo for row in every if "bitnet" in row.repo] == ["microsoft/bitnet-b1.58-2B-4T-gguf"]
    assert catalogue.chats_within(0) == []


def test_a_repository_is_listed_once() -> None:
    repos = [row.repo.lower() for row in catalogue.known()]
    assert len(repos) == len(set(repos))


def test_the_page_has_the_table() -> None:
    assert catalogue.table() in PAGE.read_text(encoding="utf-8"), (
        "python -c 'from tritium.models.catalogue import table; print(table())'"
    )
