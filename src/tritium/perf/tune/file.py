"""Records of races, and the file per machine that stores them: every time measured, and the choices the runtime follows.

`tritium.machine.tuned` defines when a file is valid and reads it for the runtime.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from tritium import backends, settings
from tritium.errors import BusyError, FormatError
from tritium.machine import files, tuned
from tritium.machine.facts import this_machine
from tritium.perf.records import json_io as records
from tritium.perf.stats import estimates as stats

MOST_OF_A_KEY = 10  # races stored per name, shape, dtype and device
MOST = 2000
ADDRESS = " at 0x"  # a repr with an address is meaningless in another process

Status = Literal["best", "not told apart", "slower", "dropped", "failed"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Candidate:
    """One configuration: every time measured, in seconds per call, or the reason for having none."""

    config: str  # its repr
    seconds: tuple[float, ...]
    status: Status
    reason: str = ""
    calls: int = 1  # in one sample

    @property
    def median(self) -> float:
        """Return the median time of a call; infinite if it never ran."""
        return median(self.seconds) if self.seconds else float("inf")

    @property
    def interval(self) -> Interval:
        """Return the 95 % interval of the median."""
        return median_interval(self.seconds)


@dataclass(frozen=True)
class Tuning:
    """The record of one race: candidates, outcome, time."""

    op: str
    shape: str
    dtype: str
    device: str
    candidates: tuple[Candidate, ...]  # in the order of the call
    source: str  # "wall clock", or "seconds the function returned"
    rounds: int
    created: str  # UTC
    elapsed_s: float
    note: str = ""  # a remark, as that the budget ended it

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what identifies a race: op, shape, dtype, device."""
        return self.op, self.shape, self.dtype, self.device

    @property
    def best(self) -> Candidate | None:
        """Return the winner; None if nothing ran."""
        return next((c for c in self.candidates if c.status == "best"), None)

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """Return the candidates that ran to the end, the best first."""
        ran = (c for c in self.candidates if c.seconds and c.status != "failed")
        return tuple(sorted(ran, key=lambda c: (c.status != "best", c.median)))

    def of(self, config: Any) -> Candidate | None:
        """Return the candidate of a configuration."""
        return next((c for c in self.candidates if c.config == repr(config)), None)


def median_interval(seconds: Sequence[float]) -> Interval:
    """Return the 95 % interval of the median; infinite if it never ran."""
    return stats.median_interval(seconds) if seconds else (float("inf"), float("inf"))


# ---- the file

_unsaved: list[Tuning] = []  # of this process only: configurations with addresses, or the file could not be written


def tunings() -> tuple[Tuning, ...]:
    """Return every stored race, the oldest first."""
    machine = this_machine()
    body = tuned.read_file(tuned.path(machine), machine)
    return tuple(sorted([*(_tunings(body) if body else ()), *_unsaved], key=lambda t: t.created))


def choices() -> dict[str, tuned.Choice]:
    """Return every stored choice, also those that the runtime does not follow."""
    machine = this_machine()
    body = tuned.read_file(tuned.path(machine), machine)
    return {name: tuned.Choice(**c) for name, c in body["choices"].items()} if body else {}


def _tunings(body: Mapping[str, Any]) -> list[Tuning]:
    """Return the races of a file's body; none if they are invalid."""
    try:
        return [records.read(Tuning, t, f"tuned[{i}]") for i, t in enumerate(body["tunings"])]
    except FormatError as error:
        settings.log.warning("tuned: the stored races are not used: %s", error)
        return []


def add(tuning: Tuning, new_choices: Mapping[str, tuned.Choice | None] | None = None) -> None:
    """Store a race and the choices made by it; None deletes a choice."""
    if any(ADDRESS in c.config for c in tuning.candidates):
        _unsaved.append(tuning)
        return

    def changed(body: dict[str, Any]) -> None:
        others = [t for t in _tunings(body) if t.key != tuning.key]
        same = [t for t in _tunings(body) if t.key == tuning.key]
        listed = sorted([*others, *same[1 - MOST_OF_A_KEY :], tuning], key=lambda t: t.created)[-MOST:]
        body["tunings"] = [records.plain(t) for t in listed]
        _set_choices(body, new_choices or {})

    try:
        _change(changed)
    except (OSError, BusyError) as error:
        _unsaved.append(tuning)
        settings.log.warning("tuned: %s; it will be tuned again in the next process", error)


def choose(new_choices: Mapping[str, tuned.Choice | None]) -> None:
    """Store choices that several races make together; None deletes one."""
    try:
        _change(lambda body: _set_choices(body, new_choices))
    except (OSError, BusyError) as error:
        settings.log.warning("tuned: %s; it will be tuned again in the next process", error)


def _set_choices(body: dict[str, Any], new_choices: Mapping[str, tuned.Choice | None]) -> None:
    """Write choices into a file's body; None deletes one."""
    for name, choice in new_choices.items():
        body["choices"].pop(name, None)
        if choice is not None:
            body["choices"][name] = asdict(choice)


def remove(op: str | None = None) -> int:
    """Delete the races of a name and the choices made by them, or all; return the number of races deleted."""
    deleted = [t for t in _unsaved if op is None or belongs(t.op, op)]
    _unsaved[:] = [t for t in _unsaved if t not in deleted]
    count = len(deleted)

    def changed(body: dict[str, Any]) -> None:
        nonlocal count
        every = _tunings(body)
        left = [t for t in every if op is not None and not belongs(t.op, op)]
        count += len(every) - len(left)
        body["tunings"] = [records.plain(t) for t in left]
        body["choices"] = {n: c for n, c in body["choices"].items() if op is not None and not belongs(n, op)}

    _change(changed)
    return count


def belongs(name: str, op: str) -> bool:
    """Return True if a race or a choice has a name, or is below it: kernel/add is below kernel."""
    return name == op or name.startswith(f"{op}/")


def _change(change: Callable[[dict[str, Any]], None]) -> None:
    """Read, change and write the file under a lock; the runtime of this process then reads it again."""
    machine = this_machine()
    path = tuned.path(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.lock(path.with_suffix(".lock")):
        body = tuned.read_file(path, machine) or {
            "machine": asdict(machine), "build": tuned.build(), "version": tuned.version(), "choices": {}, "tunings": [],
        }  # fmt: skip
        change(body)
        files.write_text(path, json.dumps(tuned.document(body), allow_nan=False, ensure_ascii=False))
    backends.retuned()
