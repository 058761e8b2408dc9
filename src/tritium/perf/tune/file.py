"""What races found, and the file per machine that keeps it: every time measured, and the choices the runtime follows.

Knows nothing of racing. `tritium.machine.tuned` says what makes a file valid and is what the runtime reads it with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from tritium import backends, settings
from tritium.errors import BusyError, FormatError
from tritium.machine import tuned
from tritium.machine.facts import this_machine
from tritium.perf import files
from tritium.perf.records import json_io as records
from tritium.perf.stats import estimates as stats

MOST_OF_A_KEY = 10  # races kept of one name, shape, dtype and device
MOST = 2000
ADDRESS = " at 0x"  # a text with an address in it means nothing in another process

Status = Literal["best", "not told apart", "slower", "dropped", "failed"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Candidate:
    """One configuration: every time measured, in seconds a call, or why there is none."""

    config: str  # as Python writes it
    seconds: tuple[float, ...]
    status: Status
    reason: str = ""
    calls: int = 1  # in one sample

    @property
    def median(self) -> float:
        return median(self.seconds) if self.seconds else float("inf")

    @property
    def interval(self) -> Interval:
        return median_interval(self.seconds)


@dataclass(frozen=True)
class Tuning:
    """One race: what ran, how it ended, when."""

    op: str
    shape: str
    dtype: str
    device: str
    candidates: tuple[Candidate, ...]  # in the order they were given
    source: str  # "wall clock", or "seconds the function returned"
    rounds: int
    created: str  # UTC
    elapsed_s: float
    note: str = ""  # what a reader must know: the budget ended it

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.op, self.shape, self.dtype, self.device

    @property
    def best(self) -> Candidate | None:
        return next((c for c in self.candidates if c.status == "best"), None)

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """Those that ran to the end, the best first."""
        ran = (c for c in self.candidates if c.seconds and c.status != "failed")
        return tuple(sorted(ran, key=lambda c: (c.status != "best", c.median)))

    def of(self, config: Any) -> Candidate | None:
        return next((c for c in self.candidates if c.config == repr(config)), None)


def median_interval(seconds: Sequence[float]) -> Interval:
    """The 95 % interval of the median; of what never ran, without end."""
    return stats.median_interval(seconds) if seconds else (float("inf"), float("inf"))


# ---- the file

_here: list[Tuning] = []  # of this process alone: their configurations have addresses, or the file could not be written


def tunings() -> tuple[Tuning, ...]:
    """Every race that is kept, the oldest first."""
    machine = this_machine()
    body = tuned.read_file(tuned.path(machine), machine)
    return tuple(sorted([*(_tunings(body) if body else ()), *_here], key=lambda t: t.created))


def choices() -> dict[str, tuned.Choice]:
    """Every choice that is kept, whether the runtime follows it or not."""
    machine = this_machine()
    body = tuned.read_file(tuned.path(machine), machine)
    return {name: tuned.Choice(**c) for name, c in body["choices"].items()} if body else {}


def _tunings(body: Mapping[str, Any]) -> list[Tuning]:
    try:
        return [records.read(Tuning, t, f"tuned[{i}]") for i, t in enumerate(body["tunings"])]
    except FormatError as error:
        settings.log.warning("tuned: the races kept are not used: %s", error)
        return []


def add(tuning: Tuning, found: Mapping[str, tuned.Choice | None] | None = None) -> None:
    """Keep a race, and what the runtime is to choose by it; None takes a choice back."""
    if any(ADDRESS in c.config for c in tuning.candidates):
        _here.append(tuning)
        return

    def changed(body: dict[str, Any]) -> None:
        kept = [t for t in _tunings(body) if t.key != tuning.key]
        same = [t for t in _tunings(body) if t.key == tuning.key]
        listed = sorted([*kept, *same[1 - MOST_OF_A_KEY :], tuning], key=lambda t: t.created)[-MOST:]
        body["tunings"] = [records.plain(t) for t in listed]
        _chosen(body, found or {})

    try:
        _change(changed)
    except (OSError, BusyError) as error:
        _here.append(tuning)
        settings.log.warning("tuned: %s; it will be tuned again in the next process", error)


def choose(found: Mapping[str, tuned.Choice | None]) -> None:
    """Keep choices that several races together make; None takes one back."""
    try:
        _change(lambda body: _chosen(body, found))
    except (OSError, BusyError) as error:
        settings.log.warning("tuned: %s; it will be tuned again in the next process", error)


def _chosen(body: dict[str, Any], found: Mapping[str, tuned.Choice | None]) -> None:
    for name, choice in found.items():
        body["choices"].pop(name, None)
        if choice is not None:
            body["choices"][name] = asdict(choice)


def remove(op: str | None = None) -> int:
    """Forget the races of a name and what was chosen by them, or all; how many races went."""
    gone = [t for t in _here if op is None or belongs(t.op, op)]
    _here[:] = [t for t in _here if t not in gone]
    count = len(gone)

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
    """Whether a race or a choice is of a name, or below it: kernel/add is below kernel."""
    return name == op or name.startswith(f"{op}/")


def _change(change: Callable[[dict[str, Any]], None]) -> None:
    """Read, change and write the file while nobody else does; the runtime of this process then reads it anew."""
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
