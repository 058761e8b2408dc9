"""How far equal code lay from equal on this machine: the noise floor that `tritium selftest --aa` found, kept in a file.

Knows nothing of how it is found. No margin of a gate is below twice the floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tritium import settings
from tritium.errors import FormatError
from tritium.machine.facts import this_machine
from tritium.perf import files
from tritium.perf.records import json_io as records

SCHEMA = 1


@dataclass(frozen=True)
class Noise:
    """What equal code looked like here."""

    floor: float  # 5 % of the cases of equal code lie further from equal than this share
    suites: int
    cases: int
    machine: str
    plan: str
    measured_at: str
    schema: int = SCHEMA


def path() -> Path:
    return settings.cache_dir() / f"noise-{this_machine().key}.json"


def keep(floor: float, *, suites: int, cases: int, plan: str) -> Path:
    """Write this machine's floor where the gates read it."""
    at = records.utc_now()
    found = Noise(floor, suites, cases, this_machine().key, plan, at)
    return files.write_text(path(), records.dumps(found, indent=1), parents=True)


def noise_floor() -> float:
    """This machine's, from the last selftest; 0 where there was none."""
    where = path()
    if not where.exists():
        return 0.0
    try:
        found = records.read(Noise, records.loads(where.read_bytes(), str(where)), str(where))
    except (FormatError, OSError) as error:
        settings.log.warning("%s; the noise floor is not used: run `tritium selftest --aa` again", error)
        return 0.0
    return found.floor if found.schema == SCHEMA and math.isfinite(found.floor) else 0.0
