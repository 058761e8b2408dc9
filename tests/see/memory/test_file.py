"""Memory records on the disk: read back as they were, refused when anything is wrong, harmless as CSV."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hostile import NAMES
from memories import record
from tritium import escape
from tritium.errors import FormatError, SaveError
from tritium.machine.facts import digest
from tritium.see.memory import file as memory_file
from tritium.see.memory.file import load, save


def test_a_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    assert load(save(record(), tmp_path / "m.json")) == record()


def test_every_hostile_name_is_read_back_as_it_was(tmp_path: Path) -> None:
    everything = "\n".join(NAMES)
    assert load(save(record(everything), tmp_path / "m.json")) == record(everything)


def test_what_would_be_too_large_to_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_file, "MAX_BYTES", 1000)
    with pytest.raises(SaveError, match="smaller capacity="):
        save(record(), tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


@given(st.text())
def test_any_text_survives_csv_and_begins_no_formula(name: str) -> None:
    events = record(name).events
    rows = list(csv.reader(io.StringIO(memory_file.events_csv(events))))
    assert tuple(rows[0]) == memory_file.COLUMNS
    assert [escape.from_csv(row[memory_file.COLUMNS.index("op")]) for row in rows[1:]] == [e.op for e in events]
    assert [int(row[memory_file.COLUMNS.index("nbytes")]) for row in rows[1:]] == [e.nbytes for e in events]


def test_no_cell_is_a_formula() -> None:
    for name in NAMES:
        for row in list(csv.reader(io.StringIO(memory_file.events_csv(record(name).events))))[1:]:
            assert not [cell for cell in row if cell.lstrip().startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠"))]


def broken(tmp_path: Path, change: Any, seal: bool = True) -> Path:
    found = json.loads(save(record(), tmp_path / "m.json").read_text())
    change(found)
    if seal and isinstance(found.get("memory"), dict):
        found["sha256"] = digest(found["memory"])
    (tmp_path / "m.json").write_text(json.dumps(found))
    return tmp_path / "m.json"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("memory"), "not a memory record"),
        (lambda d: d.update(schema=0), "schema is 0"),
        (lambda d: d.update(schema=True), "schema is True"),
        (lambda d: d.update(schema=99), "newer tritium"),
        (lambda d: d.update(more=1), "unknown key 'more'"),
        (lambda d: d["memory"].update(colour=1), "unknown key 'colour'"),
        (lambda d: d["memory"].pop("events"), "events missing"),
        (lambda d: d["memory"].update(dropped="3"), "dropped: a whole number"),
        (lambda d: d["memory"]["events"][0].update(kind="explode"), "'explode' is not one of"),
        (lambda d: d["memory"]["pressure"].update(level="fine"), "'fine' is not one of"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        load(broken(tmp_path, change))


def test_a_file_changed_by_hand_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="sha256"):
        load(broken(tmp_path, lambda d: d["memory"].update(dropped=4), seal=False))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"memory": {}, "memory": {}}', '{"memory": NaN}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(FormatError):
        load(tmp_path / "m.json")
