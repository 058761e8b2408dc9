"""Results files: what is written is read back, and what contradicts itself is refused with the place."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from speed_tables import speed_table
from tritium.errors import FormatError
from tritium.perf.records import speed
from tritium.perf.records.speed import Entry, Figure, Host


def test_a_table_is_read_back_as_it_was(tmp_path: Path) -> None:
    table = speed_table()
    path = speed.save(table, tmp_path / "small.json")
    assert speed.load(path) == table
    assert sum(line.startswith("  {") and "labels" in line for line in path.read_text().splitlines()) == len(table.rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": ()}, "begins with 'nothing'"),
        ({"command": ("rm", "-rf")}, "begins with 'rm'; a script is needed"),
        ({"command": ("bench/../x.py",)}, "a script is needed"),
        ({"name": "../x"}, "small letters"),
        ({"rows": ()}, "no figures"),
        ({"labels": ("case", "numpy")}, "same name"),
        ({"labels": ("case",)}, "2 labels; 1 are needed"),
        ({"rows": (Entry(("a", "1"), {"tea": Figure(1.0)}),)}, "figures of tea"),
        ({"rows": (Entry(("a", "1"), {}),) * 2}, "two rows with these labels"),
        ({"rows": (Entry(("a", "1"), {"numpy": Figure(1.0, 0.5)}),)}, "both of its ends"),
        ({"rows": (Entry(("a", "1"), {"numpy": Figure(1.0, 2.0, 3.0)}),)}, "outside of its interval"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        speed.save(speed_table(**changes), tmp_path / "small.json")
    assert not (tmp_path / "small.json").exists()


def test_a_file_with_a_foreign_command_is_refused(tmp_path: Path) -> None:
    path = speed.save(speed_table(), tmp_path / "small.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"command": ["/bin/sh", "-c", "true"]}))
    with pytest.raises(FormatError, match="a script is needed"):
        speed.load(path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 99}', "{"])
def test_what_is_no_results_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"small\.json"):
        speed.load(path)


def test_the_spread_of_a_figure_is_half_of_its_interval() -> None:
    assert Figure(10.0, 8.0, 14.0).spread == pytest.approx(0.3)
    assert Figure(10.0).spread is None
    assert Figure(0.0, 0.0, 0.0).spread == 0
    assert Figure(0.0, 0.0, 1.0).spread == math.inf


def test_machines_are_the_same_by_what_speed_depends_on() -> None:
    here = Host("A CPU", 16, 2, load=0.1)
    assert here.same(replace(here, load=3.0))
    assert not here.same(replace(here, usable=16))
    assert not here.same(replace(here, gpus=("H200",)))
    assert here.text == "A CPU, 16 CPUs (2 used)"
