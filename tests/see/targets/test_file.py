"""What `tritium targets` found as a record: JSON that is whole and reads back, and files that are refused with what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_results import ENVIRONMENT
from tritium.errors import FormatError
from tritium.see.targets import file as targets_file, targets
from tritium.see.targets.file import Measured, load
from tritium.see.targets.targets import Bench, Figure, Reached, Target, measure_targets

FASTER = Target("000", "a table", "a call", "cpu", "< 1 ms", 1e-3, "s", True, lambda bench, device: "")
MEASURED = Measured(
    (Reached(FASTER, "pass", Figure(1e-4, 0.9e-4, 1.1e-4, 5e-5, "made up")), Reached(FASTER, "not measured", reason="no GPU")),
    ENVIRONMENT, "2026-01-02T03:04:05Z", 0.5,
)  # fmt: skip


def written(tmp_path: Path, change: Any = None) -> Path:
    data = MEASURED.as_dict()
    if change is not None:
        change(data)
    path = tmp_path / "targets.json"
    path.write_text(json.dumps(data))
    return path


def test_json_is_plain_and_whole() -> None:
    told = json.loads(MEASURED.json())
    assert (told["schema"], told["threads"], told["created"]) == (1, 2, "2026-01-02T03:04:05Z")
    assert told["environment"]["hard"]["cpu"] == ENVIRONMENT.hard.cpu
    first, second = told["targets"]
    assert (first["section"], first["figure"]["value"]) == ("a table", 1e-4)
    assert (second["outcome"], second["reason"], second["figure"]) == ("not measured", "no GPU", None)


def test_what_was_written_reads_back_as_the_same(tmp_path: Path) -> None:
    found = load(written(tmp_path))
    assert found.json() == MEASURED.json()
    assert found.environment == ENVIRONMENT
    assert [r.figure for r in found.results] == [r.figure for r in MEASURED.results]


def test_a_target_from_a_file_is_not_measured_again_but_says_so(tmp_path: Path) -> None:
    target = load(written(tmp_path)).results[0].target
    assert "read from a file" in str(target.figure(Bench(0.01), "cpu"))
    (again,) = measure_targets((target,))
    assert again.outcome == "not measured"


def test_the_machine_is_told_as_it_was_before_and_with_its_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    limits = object()

    def environment(threads: int, limits: bool) -> Any:
        order.append("environment")
        return ENVIRONMENT

    def measured(**given: Any) -> Any:
        order.append(f"targets for {given['seconds']}")
        return MEASURED.results

    monkeypatch.setattr(targets_file, "this_environment", environment)
    monkeypatch.setattr(targets_file, "this_machines_limits", lambda threads: limits)
    monkeypatch.setattr(targets, "measure_targets", measured)
    found = targets_file.measured(seconds=0.25)
    assert order == ["environment", "targets for 0.25"]
    assert found.environment.limits is limits
    assert (found.results, found.seconds) == (MEASURED.results, 0.25)
    assert found.created.endswith("Z")


def test_the_command_is_the_one_that_measures_as_long() -> None:
    assert MEASURED.command == "tritium targets"
    assert replace(MEASURED, seconds=targets.QUICK_S).command == "tritium targets --quick"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"), (b"\xff\xfe", "not UTF-8"), (b"{", "not JSON"), (b"[]", "not a record of tritium targets"),
        (b'{"schema": 1, "results": {}}', "tritium targets --output FILE.json writes one"),
        (b'{"schema": 1, "targets": {}}', "not a record of tritium targets"),
        (b'{"schema": 1, "threads": 2, "targets": []}', "the environment is missing"),
        (b'{"schema": 9, "targets": []}', "a newer tritium"), (b'{"schema": "1", "targets": []}', "its schema is"),
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=said) as error:
        load(path)
    assert str(path) in str(error.value)


def _without_targets(data: Any) -> None:
    data["targets"] = []


def _another_outcome(data: Any) -> None:
    data["targets"][0]["outcome"] = "passed"


def _no_figure(data: Any) -> None:
    data["targets"][0]["figure"] = None


def _a_figure(data: Any) -> None:
    data["targets"][1]["figure"] = data["targets"][0]["figure"]


def _text_for_a_number(data: Any) -> None:
    data["targets"][0]["figure"]["low"] = "little"


def _an_end_before_its_beginning(data: Any) -> None:
    data["targets"][0]["figure"] |= {"low": 2.0, "high": 1.0}


def _no_time(data: Any) -> None:
    data["seconds"] = -1


def _another_unit(data: Any) -> None:
    data["targets"][0]["unit"] = "parsec"


def _another_key(data: Any) -> None:
    data["environment"]["owner"] = "me"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_targets, "there is no target in it"), (_another_outcome, "'passed' is not one of pass, not reached"),
        (_no_figure, r"targets\[0\]: 'pass' with no figure"), (_a_figure, r"targets\[1\]: 'not measured' with a figure"),
        (_text_for_a_number, "low: a number is needed"), (_another_unit, "'parsec' is not one of s"),
        (_another_key, "environment: unknown key 'owner'"),
        (_an_end_before_its_beginning, r"targets\[0\]: an interval from 2.0 to 1.0"),
        (_no_time, "-1.0 seconds for each figure"),
    ],
)  # fmt: skip
def test_what_is_wrong_inside_is_named_with_its_place(tmp_path: Path, change: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        load(written(tmp_path, change))
