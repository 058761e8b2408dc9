"""What `tritium targets` found, as a record: every target with its outcome, the machine, and JSON of both that can be read back.

Knows nothing of pages. Only `measured` measures and asks for the time; a record that was read measures nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from tritium.errors import FormatError
from tritium.perf import files
from tritium.perf.records import json_io as records
from tritium.perf.records.environment import Environment, this_environment, this_machines_limits
from tritium.see.targets import targets
from tritium.see.targets.targets import Bench, Figure, Outcome, Reached, Target, Unit
from tritium.threads import get_num_threads

SCHEMA = 1
ABOUT = tuple(f.name for f in fields(Target) if f.name != "figure")  # of a target, whatever was measured


@dataclass(frozen=True)
class Row:
    """A target and what became of it, as JSON has it."""

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
    """The whole of the JSON."""

    schema: int
    threads: int
    created: str
    seconds: float
    environment: Environment
    targets: tuple[Row, ...]


@dataclass(frozen=True)
class Measured:
    """The targets as they were found on one machine at one time."""

    found: tuple[Reached, ...]
    environment: Environment
    created: str  # when it began, UTC
    seconds: float  # of timing, for each figure

    @property
    def command(self) -> str:
        """What to type to measure the same again."""
        return "tritium targets --quick" if self.seconds == targets.QUICK_S else "tritium targets"

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = tuple(
            Row(
                **{name: getattr(r.target, name) for name in ABOUT}, outcome=r.outcome, reason=r.reason, figure=r.figure
            )
            for r in self.found
        )
        env = self.environment
        told: dict[str, Any] = records.plain(File(SCHEMA, env.hard.threads, self.created, self.seconds, env, rows))
        return told

    def json(self) -> str:
        """What `tritium targets --json` prints."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"


def measured(*, seconds: float, progress: Callable[[int, int, str], None] | None = None) -> Measured:
    """Every target, measured here and now, and this machine."""
    threads, created = get_num_threads(), records.utc_now()
    before = this_environment(threads, limits=False)  # the load is that before the measurement
    found = targets.measure_targets(seconds=seconds, progress=progress)
    return Measured(found, replace(before, limits=this_machines_limits(threads)), created, seconds)


def load(path: str | os.PathLike[str]) -> Measured:
    """What `tritium targets --json` or `--output FILE.json` wrote, here or elsewhere."""
    where = files.named(path)
    data = records.loads(files.decoded(files.read_bytes(path), where), where)
    if not isinstance(data, dict) or not isinstance(data.get("targets"), list) or "schema" not in data:
        raise FormatError(
            f'{where}: not what tritium targets found: an object with "schema", "environment" and "targets" is needed. '
            "tritium targets --output FILE.json writes one."
        )
    records.check_schema(data["schema"], SCHEMA, where)
    if "environment" not in data:
        raise FormatError(f"{where}: it does not tell its machine. Measure again: tritium targets --output FILE.json.")
    file = records.read(File, data, where)
    if not file.targets:
        raise FormatError(f"{where}: there is no target in it. Measure again: tritium targets --output FILE.json.")
    if not file.seconds > 0:
        raise FormatError(f"{where}: {file.seconds} seconds for each figure; a time above 0 is needed.")
    found = tuple(_reached(row, f"{where}.targets[{i}]") for i, row in enumerate(file.targets))
    return Measured(found, file.environment, file.created, file.seconds)


def _reached(row: Row, where: str) -> Reached:
    if (row.figure is None) != (row.outcome == "not measured"):
        has = "no figure" if row.figure is None else "a figure"
        raise FormatError(f"{where}: {row.outcome!r} with {has}; only what was not measured has none.")
    if row.figure is not None and not row.figure.low <= row.figure.high:
        raise FormatError(
            f"{where}: an interval from {row.figure.low} to {row.figure.high}; it must begin below its end."
        )
    target = Target(**{name: getattr(row, name) for name in ABOUT}, figure=_read)
    return Reached(target, row.outcome, row.figure, row.reason)


def _read(bench: Bench, device: str) -> str:
    """The figure of a target from a file."""
    return "it was read from a file, which does not tell how to measure it"
