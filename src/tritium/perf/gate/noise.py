"""The noise floor of this machine: how far equal code was from equal in `tritium selftest --aa`, stored in a file.

No margin of a gate is below twice the floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tritium import settings
from tritium.errors import FormatError
from tritium.machine import files
from tritium.machine.facts import this_machine
from tritium.perf.records import json_io as records

SCHEMA = 1


@dataclass(frozen=True)
class Noise:
    """The noise floor of a machine, and the self-test it comes from."""

    floor: float  # 5 % of the cases of equal code differ by more than this share
    suites: int
    cases: int
    machine: str
    plan: str
    measured_at: str
    separate: float = 1.0  # how much further separate runs of equal code lie apart than their processes tell
    schema: int = SCHEMA


QUIET = Noise(0.0, 0, 0, "", "", "")  # of a machine that was not tested


def path() -> Path:
    """Return the file of this machine's noise floor."""
    return settings.cache_dir() / f"noise-{this_machine().key}.json"


def keep(floor: float, *, suites: int, cases: int, plan: str) -> Path:
    """Write this machine's noise floor to the file that the gates read."""
    measured = Noise(floor, suites, cases, this_machine().key, plan, records.utc_now())
    return files.write_text(path(), records.dumps(measured, indent=1), parents=True)


def known() -> Noise:
    """Return this machine's noise as the last self-test measured it; that of a quiet one without a test."""
    file = path()
    if not file.exists():
        return QUIET
    try:
        stored = records.read(Noise, records.loads(file.read_bytes(), str(file)), str(file))
    except (FormatError, OSError) as error:
        settings.log.warning(
            "%s; what is known of this machine's noise is not used: run `tritium selftest --aa` again", error
        )
        return QUIET
    return stored if stored.schema == SCHEMA and math.isfinite(stored.floor) and stored.separate >= 1 else QUIET
