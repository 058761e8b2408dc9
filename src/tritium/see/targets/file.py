"""The record of `tritium targets`: every target with its outcome, the machine, and JSON of both that can be read back.

Only `measured` measures and reads the clock; loading a record measures nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from tritium.errors import FormatError
from tritium.machine import files
from tritium.perf.records import json_io as records
from tritium.perf.records.environment import Environment, this_environment, this_machines_limits
from tritium.see.targets import targets
from tritium.see.targets.targets import Bench, Figure, Outcome, Reached, Target, Unit
from tritium.threads import get_num_threads

SCHEMA = 1
TARGET_FIELDS = tuple(f.name for f in fields(Target) if f.name != "figure")  # fields of a target that are stored


@dataclass(frozen=True)
class Row:
    """A target and its outcome, as stored in JSON."""

    guide: str
    section: str
    what: str
    device: str
    asked: str
    limit: float
    unit: Unit
    lower: bool
    outcome: Outcome
    reason: str
    figure: Figure | None


@dataclass(frozen=True)
class File:
    """The content of the JSON file."""

    schema: int
    threads: int
    created: str
    seconds: float
    environment: Environment
    targets: tuple[Row, ...]


@dataclass(frozen=True)
class Measured:
    """The outcomes of all targets on one machine at one time."""

    results: tuple[Reached, ...]
    environment: Environment
    created: str  # start of the measurement, UTC
    seconds: float  # of timing for each figure

    @property
    def command(self) -> str:
        """Return the command that measures the same again."""
        return "tritium targets --quick" if self.seconds == targets.QUICK_S else "tritium targets"

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        rows = tuple(
            Row(
                **{name: getattr(r.target, name) for name in TARGET_FIELDS},
                outcome=r.outcome,
                reason=r.reason,
                figure=r.figure,
            )
            for r in self.results
        )
        env = self.environment
        content: dict[str, Any] = records.plain(File(SCHEMA, env.hard.threads, self.created, self.seconds, env, rows))
        return content

    def json(self) -> str:
        """Return the text that `tritium targets --json` prints."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"


def measured(*, seconds: float, progress: Callable[[int, int, str], None] | None = None) -> Measured:
    """Measure every target on this machine, and return the record."""
    threads, created = get_num_threads(), records.utc_now()
    before = this_environment(threads, limits=False)  # so that the load is the one before the measurement
    results = targets.measure_targets(seconds=seconds, progress=progress)
    return Measured(results, replace(before, limits=this_machines_limits(threads)), created, seconds)


def load(path: str | os.PathLike[str]) -> Measured:
    """Read a file written by `tritium targets --json` or `--output FILE.json`, on any machine."""
    where = files.named(path)
    data = records.loads(files.decoded(files.read_bytes(path), where), where)
    if not isinstance(data, dict) or not isinstance(data.get("targets"), list) or "schema" not in data:
        raise FormatError(
            f'{where}: not a record of tritium targets: an object with "schema", "environment" and "targets" is needed. '
            "tritium targets --output FILE.json writes one."
        )
    records.check_schema(data["schema"], SCHEMA, where)
    if "environment" not in data:
        raise FormatError(f"{where}: the environment is missing. Measure again: tritium targets --output FILE.json.")
    file = records.read(File, data, where)
    if not file.targets:
        raise FormatError(f"{where}: there is no target in it. Measure again: tritium targets --output FILE.json.")
    if not file.seconds > 0:
        raise FormatError(f"{where}: {file.seconds} seconds for each figure; a time above 0 is needed.")
    results = tuple(_parse_row(row, f"{where}.targets[{i}]") for i, row in enumerate(file.targets))
    return Measured(results, file.environment, file.created, file.seconds)


def _parse_row(row: Row, where: str) -> Reached:
    if (row.figure is None) != (row.outcome == "not measured"):
        has = "no figure" if row.figure is None else "a figure"
        raise FormatError(f"{where}: {row.outcome!r} with {has}; only what was not measured has none.")
    if row.figure is not None and not row.figure.low <= row.figure.high:
        raise FormatError(
            f"{where}: an interval from {row.figure.low} to {row.figure.high}; it must begin below its end."
        )
    target = Target(**{name: getattr(row, name) for name in TARGET_FIELDS}, figure=_refuse_to_measure)
    return Reached(target, row.outcome, row.figure, row.reason)


def _refuse_to_measure(bench: Bench, device: str) -> str:
    """Return the reason why a target from a file cannot be measured."""
    return "it was read from a file, which has no code to measure it"
