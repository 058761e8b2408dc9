"""Baselines: results kept under a name, to compare later ones with; every version stays.

A version is a results file with all raw values, the environment and the commit:
`baselines/NAME/v0001.json`. It is never changed; the highest number is what the name stands for.
"""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tritium import settings
from tritium.errors import ArgumentError, BaselineError, FormatError, TritiumError, nearest
from tritium.escape import terminal
from tritium.perf.records.run import Results
from tritium.perf.store import results as store
from tritium.perf.work.canary import is_canary

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILE = re.compile(r"v(\d{4,9})\.json")
WINDOWS = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
RULE = "letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"
Rows = builtins.list[tuple[str, ...]]
RELEASE = "release"  # the kind of a baseline that marks a release


@dataclass(frozen=True)
class Version:
    """One kept version of a baseline."""

    name: str
    number: int
    path: Path
    created: str  # when it was measured
    commit: str
    suite: str
    description: str
    release: bool
    runs: int
    fault: str = ""  # why the file cannot be read

    @property
    def label(self) -> str:
        return f"{self.name}@{self.number}"


def folder() -> Path:
    return settings.data_dir() / "baselines"


def create(
    name: str,
    results: Results,
    description: str = "",
    *,
    force: bool = False,
    release: bool = False,
    root: Path | None = None,
) -> Version:
    """Keep results under a name. A name that is taken needs `force`: a version is added, the older ones stay."""
    check_name(name)
    if not results.complete:
        raise ArgumentError(f"baseline {name}: these results were interrupted; measure to the end, or resume, first.")
    cells = [run for run in results if not is_canary(run.case)]
    if not any(run.status == "ok" for run in cells):
        raise ArgumentError(
            f"baseline {name}: no case of these results was measured ({len(cells)} failed or skipped); a baseline needs"
            " at least one. Measure again where the cases run."
        )
    return _add(name, results, description, force, release, root or folder())


def list(root: Path | None = None) -> tuple[Version, ...]:
    """The newest version of every baseline, by name."""
    place = root or folder()
    return tuple(_version(name, numbers[-1], place) for name, numbers in sorted(_names(place).items()))


def show(name: str, root: Path | None = None) -> tuple[Version, ...]:
    """Every version of a baseline, oldest first."""
    place = root or folder()
    return tuple(_version(name, number, place) for number in _numbers(name, place))


def promote(name: str, to: str = "stable", *, release: bool = False, root: Path | None = None) -> Version:
    """Keep what one name stands for under another one too, as its newest version."""
    check_name(to)
    if name.partition("@")[0] == to:
        raise ArgumentError(f"baseline {to}: it cannot be promoted to itself; name another one.")
    results = load(name, root)
    place = root or folder()
    label = name if "@" in name else f"{name}@{_numbers(name, place)[-1]}"
    note = f"promoted from {label}"
    return _add(to, replace(results, notes=(*results.notes, note)), results.description, True, release, place)


def load(name: str | os.PathLike[str], root: Path | None = None) -> Results:
    """The results a name, NAME@VERSION or a path stands for. A path has a separator in it or ends in .json."""
    text = os.fspath(name)
    if os.sep in text or text.endswith(".json"):
        return store.load(text)
    place = root or folder()
    known, _, number_text = text.partition("@")
    numbers = _numbers(known, place)
    number = int(number_text) if number_text.isdecimal() else None if number_text or text.endswith("@") else numbers[-1]
    if number not in numbers:
        raise BaselineError(
            f"baseline {known}: there is no version {number_text!r}; there are {', '.join(map(str, numbers))}."
        )
    try:
        return store.load(_file(place, known, number))
    except FormatError as error:
        older = [f"{known}@{n}" for n in numbers if n != number]
        raise FormatError(f"{error} Other versions are kept: {', '.join(older)}." if older else str(error)) from None


def last_release(root: Path | None = None) -> Results | None:
    """The release measured last; None where no baseline is marked as one."""
    place = root or folder()
    every = [v for name in _names(place) for v in show(name, place) if v.release]
    newest = max(every, key=lambda v: (v.created, v.number), default=None)
    return store.load(newest.path) if newest else None


def check_name(name: str) -> None:
    """A name must be a safe file name everywhere."""
    reason = ""
    if not NAME.fullmatch(name):
        reason = f"a name is made of {RULE}"
    elif name.endswith((".", ".json")):
        reason = "a name ends neither in '.' nor in '.json', which is how a path ends"
    elif WINDOWS.fullmatch(name):
        reason = "Windows keeps this name for a device"
    if reason:
        raise ArgumentError(f"baseline {name[:80]!r}: {reason}.")


def page(versions: Iterable[Version]) -> str:
    """Versions as a table a person reads."""
    rows: Rows = [("name", "measured", "commit", "runs", "suite", "what it is")]
    for v in versions:
        what = v.fault or " ".join(filter(None, ["release" if v.release else "", v.description]))
        runs = "" if v.fault else str(v.runs)
        rows.append(tuple(map(terminal, (v.label, v.created, v.commit[:10], runs, v.suite, what))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _add(name: str, results: Results, description: str, force: bool, release: bool, place: Path) -> Version:
    with store.lock(place / ".lock"):
        names = _names(place)
        twin = next((n for n in names if n.lower() == name.lower() and n != name), None)
        if twin is not None:
            raise ArgumentError(f"baseline {name}: there is one called {twin}, which some systems cannot tell from it.")
        numbers = names.get(name, ())
        if numbers and not force:
            raise ArgumentError(
                f"baseline {name} exists (version {numbers[-1]}). Choose another name, or say force=True (--force) to add a version."
            )
        number = numbers[-1] + 1 if numbers else 1
        kind = RELEASE if release else "baseline"
        stored = replace(results, kind=kind, name=name, description=description)
        path = store.save(stored, _file(place, name, number))
    return _described(name, number, path, stored)


def _file(place: Path, name: str, number: int) -> Path:
    return place / name / f"v{number:04}.json"


def _names(place: Path) -> dict[str, tuple[int, ...]]:
    """The baselines there are, with the numbers of their versions."""
    if not place.is_dir():
        return {}
    names = {p.name: tuple(sorted(_counted(p))) for p in place.iterdir() if NAME.fullmatch(p.name) and p.is_dir()}
    return {name: numbers for name, numbers in names.items() if numbers}


def _counted(path: Path) -> Iterable[int]:
    return (int(m[1]) for m in (FILE.fullmatch(f.name) for f in path.iterdir()) if m)


def _numbers(name: str, place: Path) -> tuple[int, ...]:
    names = _names(place)
    if name in names:
        return names[name]
    check_name(name)
    there = f"there are {', '.join(sorted(names))}" if names else f"there are none in {place}"
    raise BaselineError(
        f"no baseline is called {name!r}; {there}.{nearest(name, names)} Make one with `tritium baseline create {name}`."
    )


def _version(name: str, number: int, place: Path) -> Version:
    path = _file(place, name, number)
    try:
        return _described(name, number, path, store.load(path))
    except (TritiumError, OSError) as error:
        return Version(name, number, path, "", "", "", "", False, 0, str(error))


def _described(name: str, number: int, path: Path, results: Results) -> Version:
    environment = results.environment
    return Version(
        name, number, path, results.created, environment.commit, results.suite, results.description,
        results.kind == RELEASE, len(results.runs),
    )  # fmt: skip
