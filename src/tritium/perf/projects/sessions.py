"""Sessions of pytest over time: stored in the history of their project, named, and judged beside an earlier one.

A session is one process, so a difference counts only beyond the threshold, beyond twice the spread of the canary that ran
beside the tests, and with its whole interval.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritium.errors import ArgumentError, BaselineError, FormatError
from tritium.escape import terminal
from tritium.perf.formats import imports
from tritium.perf.records.run import Results, Run, values_of
from tritium.perf.stats.estimates import unpaired
from tritium.perf.store import baseline
from tritium.perf.store.history import History, project_folder

LAST = "last"
KIND = "pytest"
CONFIDENCE = 0.99  # of the interval that must be beyond the margin


@dataclass(frozen=True)
class Slow:
    """A test that became slower."""

    name: str
    ratio: float
    low: float
    high: float
    margin: float

    def __str__(self) -> str:
        size = f"{100 * (self.ratio - 1):+.1f} % ({100 * (self.low - 1):+.1f} … {100 * (self.high - 1):+.1f} %)"
        return f"SLOWER {terminal(self.name)}: {size}, more than {100 * self.margin:.3g} %"


def folder_of(root: Path, store: str | None) -> Path:
    """Return the folder of the sessions of a project."""
    return Path(store) if store else project_folder(root)


def earlier(name: str, root: Path, store: str | None = None) -> Results:
    """Return an earlier session: a file, `last`, the id of a stored run, or a baseline. ArgumentError says what there is."""
    if Path(name).is_file():
        return imports.load(name)
    if os.sep in name or name.endswith(".json"):
        raise ArgumentError(f"there is no file {name}.")
    folder = folder_of(root, store)
    if folder.is_dir():
        with History(folder) as history:
            ids = [run.id for run in history.runs() if run.suite == KIND]
            if name == LAST and ids:
                return history.load(max(ids))  # an id begins with the time of its measurement
            if name in ids:
                return history.load(name)
    if name == LAST:
        raise ArgumentError("no session is stored yet; --tritium-autosave stores one.")
    try:
        return baseline.load(name)
    except (BaselineError, FormatError) as error:
        raise ArgumentError(f"{name} is no file, no stored run of this project and no baseline: {error}") from None


def keep(session: Results, root: Path, store: str | None = None) -> str:
    """Store a session in the history of its project; return its id."""
    with History(folder_of(root, store)) as history:
        return history.add(session)


def slower(session: Results, before: Results, share: float, spread: float = 0.0) -> list[Slow]:
    """Return the tests that are slower than before for certain: by more than the share, and by more than the noise."""
    margin = max(share, 2 * spread)
    pairs = [(run, old) for run in session if (old := _match(run, before)) is not None]
    listed = []
    for run, old in pairs:
        was, now = ([[math.log(v)] for v in _values(r)] for r in (old, run))
        if not was or not now:
            continue
        judged = unpaired(was, now, (CONFIDENCE,))
        low, high = (math.exp(v) for v in judged.intervals[CONFIDENCE])
        if low > 1 + margin:
            listed.append(Slow(run.case, judged.ratio, low, high, margin))
    return sorted(listed, key=lambda s: -s.ratio)


def _match(run: Run, before: Results) -> Run | None:
    return (
        next((r for r in before if r.case == run.case and r.status == "ok" and r.seconds), None)
        if run.status == "ok"
        else None
    )


def _values(run: Run) -> Sequence[float]:
    wall = run.of("wall")
    return [v for v in values_of(wall) if v > 0] if wall is not None else []
