"""The history of runs: one immutable file for each, and an index that finds series of a case over time.

The files are what counts: the index (SQLite) is healed from them whenever it is opened, and made anew when it is
damaged. The value of a run is the logarithm of its median, with the interval of the generations.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from tritium import settings
from tritium.errors import FormatError, SaveError, TritiumError
from tritium.escape import file_name, terminal, visible
from tritium.machine.facts import digest
from tritium.machine.files import named, network_filesystem, sweep, sync
from tritium.perf.records.json_io import plain
from tritium.perf.records.run import Results, Series, process_spread, rounds_of
from tritium.perf.stats import estimates as stats
from tritium.perf.store import results as store
from tritium.perf.store.trends import Point, Step, Trend, joined, steps, trend
from tritium.perf.work.canary import SIZES

T = TypeVar("T")
VERSION = 2  # of the index; each has its own file, made from the run files
BUSY_S = 30.0
TABLES = """
CREATE TABLE runs (
  id TEXT PRIMARY KEY, created TEXT NOT NULL, "commit" TEXT NOT NULL, suite TEXT NOT NULL, fingerprint TEXT NOT NULL,
  threads INTEGER NOT NULL, canary REAL, spread REAL NOT NULL, path TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL);
CREATE TABLE series (
  run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "case" TEXT NOT NULL, arm TEXT NOT NULL, metric TEXT NOT NULL,
  unit TEXT NOT NULL, log_median REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, n INTEGER NOT NULL, flags TEXT NOT NULL,
  PRIMARY KEY (run, "case", arm, metric));
CREATE INDEX of_case ON series ("case", arm, metric);
"""
POINTS = """
SELECT r.id, r.created, r."commit", r.fingerprint, r.threads, r.canary, s.unit, s.log_median, s.low, s.high, s.n, s.flags, r.spread
FROM series s JOIN runs r ON r.id = s.run WHERE s."case" = ? AND s.metric = ? AND s.arm = ? ORDER BY r.created, r.id
"""


@dataclass(frozen=True)
class Kept:
    """A run in the history."""

    id: str
    created: str
    commit: str
    suite: str
    fingerprint: str
    threads: int
    sha256: str
    path: Path


def project_folder(root: Path) -> Path:
    """Return the folder of the history of a project: its name, and a hash of its path, because names repeat."""
    return settings.data_dir() / "projects" / file_name(root.name) / digest(str(root.resolve()))[:12]


class History:
    """Runs kept in a folder. Open it, add to it, ask it; close it, or use it in a `with`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or settings.data_dir() / "history"
        self.files = self.folder / "runs"
        self.index = self.folder / f"index-{VERSION}.sqlite"
        self.unreadable: dict[str, str] = {}  # run files that were left out, and why
        if kind := network_filesystem(self.folder):
            raise SaveError(
                f"{named(self.folder)} lies on a network file system ({kind}), where SQLite's index can be damaged. "
                "Set TRITIUM_DATA to a local folder."
            )
        with store.lock(self.folder / ".lock", BUSY_S):
            self._make_folders()
            self._data = self._opened()
            self.heal()

    def add(self, results: Results) -> str:
        """Keep results for good, and index them. Gives the run's id; the same results twice are one run."""
        _check_text(results)
        sha = digest(plain(results))
        name = f"{_moment(results.created):%Y%m%dT%H%M%SZ}-{sha[:16]}"
        path = store.save(results, self.files / f"{name}.json")
        self._attempt(lambda: self._insert(name, path, results, sha))
        return name

    def heal(self) -> int:
        """Index the files that are not, and forget those that are gone. Gives how many changed."""
        sweep(self.files)
        known = {row[0] for row in self._query("SELECT path FROM runs")}
        there = {p.name: p for p in self.files.glob("*.json")}  # after the index: a file is there before its row
        removed = known - there.keys()
        if removed:
            with self._writing() as data:
                data.executemany("DELETE FROM runs WHERE path = ?", [(name,) for name in removed])
        missing = sorted(there.keys() - known)
        added = sum(self._found(there[name]) for name in missing)
        return len(removed) + added

    def rebuild(self) -> int:
        """Make the index anew from the files. Gives the number of runs."""
        with store.lock(self.folder / ".lock", BUSY_S):
            self.unreadable.clear()
            with self._writing() as data:
                data.execute("DELETE FROM runs")
            return self.heal()

    def runs(self) -> tuple[Kept, ...]:
        """Every run, oldest first."""
        rows = self._query(
            'SELECT id, created, "commit", suite, fingerprint, threads, sha256, path FROM runs ORDER BY created, id'
        )
        return tuple(
            Kept(run, created, commit, suite, fingerprint, threads, sha, self.files / name)
            for run, created, commit, suite, fingerprint, threads, sha, name in rows
        )

    def load(self, run: str) -> Results:
        """The results of a run."""
        return store.load(self.files / f"{Path(run).name}.json")

    def cases(self) -> tuple[tuple[str, str, str], ...]:
        """Every case, metric and arm there is a series of."""
        rows = self._query('SELECT DISTINCT "case", metric, arm FROM series ORDER BY 1, 3, 2')
        return tuple((case, metric, arm) for case, metric, arm in rows)

    def series(
        self, case: str, metric: str = "wall", arm: str = "tritium", *, every: bool = False
    ) -> tuple[Point, ...]:
        """A metric over time, oldest first, at the number of threads of the newest run; `every`: at any number of threads."""
        rows = self._query(POINTS, case, metric, arm)
        points = [replace(Point(*row), flags=tuple(flags.splitlines()), spread=spread) for *row, flags, spread in rows]
        return tuple(p for p in points if every or p.threads == points[-1].threads)

    def changes(self, case: str, metric: str = "wall", arm: str = "tritium") -> tuple[Step, ...]:
        """Return the changes of level of a metric."""
        points = self.series(case, metric, arm)
        return steps(joined(points, metric)) if points else ()

    def trend(
        self, case: str, metric: str = "wall", arm: str = "tritium", release: Results | None = None
    ) -> Trend | None:
        """Return a metric beside its best and beside a release; None where there is no such series."""
        points = self.series(case, metric, arm)
        return trend(points, metric, point_of(release, case, metric, arm) if release else None) if points else None

    def close(self) -> None:
        self._data.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the index

    def _make_folders(self) -> None:
        try:
            self.files.mkdir(parents=True, exist_ok=True)
            for folder in (self.folder, self.folder.parent):
                sync(folder)
        except OSError as error:
            raise SaveError(f"{named(self.folder)}: the history cannot be kept here: {error.strerror}.") from error

    def _opened(self) -> sqlite3.Connection:
        """The index, whole and of this version; otherwise a new one, and the old one is put aside."""
        data: sqlite3.Connection | None = None
        try:
            data = self._connected()
            version = data.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not data.execute("SELECT 1 FROM sqlite_master").fetchone():
                _create(data)
                return data
            state = data.execute("PRAGMA quick_check(1)").fetchone()[0]
            if version == VERSION and state == "ok":
                return data
            reason = f"its version is {version}, not {VERSION}" if version != VERSION else state
        except sqlite3.OperationalError as error:  # full, read-only, busy: not the index's fault
            if data is not None:
                data.close()
            raise SaveError(f"{named(self.index)}: the history cannot be opened: {error}.") from error
        except sqlite3.DatabaseError as error:
            reason = str(error)
        if data is not None:
            data.close()
        self._put_aside(reason)
        fresh = self._connected()
        _create(fresh)
        return fresh

    def _connected(self) -> sqlite3.Connection:
        data = sqlite3.connect(self.index, timeout=BUSY_S, isolation_level=None)
        try:
            data.execute("PRAGMA journal_mode = WAL").fetchone()
            data.execute("PRAGMA synchronous = FULL")
            data.execute("PRAGMA fullfsync = ON")
            data.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            data.close()
            raise
        return data

    def _put_aside(self, reason: str) -> None:
        aside = self.index.with_name(f"{self.index.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}.aside")
        settings.log.warning(
            "%s: made anew from the run files, because %s; the old one is %s.", self.index, reason, aside
        )
        for ending in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self.index}{ending}")
        os.replace(self.index, aside)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or nothing."""
        self._data.execute("BEGIN IMMEDIATE")
        try:
            yield self._data
            self._data.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._data.execute("ROLLBACK")
            raise

    def _query(self, question: str, *arguments: str) -> list[Any]:
        try:
            return self._data.execute(question, arguments).fetchall()
        except UnicodeEncodeError:  # no run has such a name: `add` refuses it
            return []
        except sqlite3.Error as error:
            raise FormatError(
                f"{named(self.index)}: {error}. Delete it: it is made anew from the run files."
            ) from error

    def _attempt(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except sqlite3.Error as error:
            raise SaveError(
                f"{named(self.index)}: not indexed: {error}; the run file is kept, and is indexed when the history is next opened."
            ) from error

    def _found(self, path: Path) -> bool:
        """Index a file that a crash, or another folder, left here; one that cannot be read is named and left out."""
        try:
            results, sha = store.load_with_digest(path)
            _check_text(results)
            self._insert(path.stem, path, results, sha)
        except (TritiumError, OSError) as error:
            settings.log.warning("left out of the history: %s", error)
            self.unreadable[path.name] = str(error)
            return False
        return True

    def _insert(self, name: str, path: Path, results: Results, sha: str) -> None:
        environment = results.environment
        row = (
            name, f"{_moment(results.committed or results.created):%Y-%m-%dT%H:%M:%SZ}", environment.commit, results.suite,
            environment.hard.key,
            environment.hard.threads, canary_of(results), spread_of(results), path.name, sha,
        )  # fmt: skip
        with self._writing() as data:
            new = data.execute(f"INSERT OR IGNORE INTO runs VALUES ({', '.join('?' * len(row))})", row)
            if new.rowcount:
                data.executemany(
                    "INSERT OR IGNORE INTO series VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _rows(name, results)
                )


def value_of(series: Series | None) -> tuple[float, float, float, int] | None:
    """The log median, its interval and how many values made it; None where there is nothing with a logarithm."""
    if series is None or series.kind != "measured":
        return None
    rounds = [g for g in rounds_of(series) if g]
    values = [median(g) for g in rounds] if len(rounds) > 1 else list(rounds[0]) if rounds else []
    if not values or min(values) <= 0:
        return None
    logs = [math.log(v) for v in values]
    low, high = stats.walsh_interval(logs)
    middle = median(logs)
    return middle, min(low, middle), max(high, middle), len(logs)


def point_of(results: Results, case: str, metric: str, arm: str) -> Point | None:
    """Return the point of a case in results that need not be in the history; None where they have none."""
    run = results.of(case, arm)
    value = value_of(run.of(metric)) if run is not None and run.status == "ok" else None
    if run is None or value is None:
        return None
    environment, unit = results.environment, next(s.unit for s in run.series if s.metric == metric)
    moment = f"{_moment(results.committed or results.created):%Y-%m-%dT%H:%M:%SZ}"
    return Point(
        f"{results.name} {moment}",
        moment,
        environment.commit,
        environment.hard.key,
        environment.hard.threads,
        canary_of(results),
        unit,
        *value,
        run.flags,
        spread_of(results),
    )


def canary_of(results: Results) -> float | None:
    """The machine's own speed in a run: the mean log median time of the canaries, each over all arms."""
    medians: dict[str, list[float]] = {name: [] for name in SIZES}
    for run in results:
        value = value_of(run.of("wall")) if run.case in medians and run.status == "ok" else None
        if value is not None:
            medians[run.case].append(value[0])
    return math.fsum(map(median, medians.values())) / len(medians) if all(medians.values()) else None


def spread_of(results: Results) -> float:
    """Return the spread of the worst canary of a run between processes; 0 where none ran."""
    return max((process_spread(run) for run in results if run.case in SIZES and run.status == "ok"), default=0.0)


def _rows(name: str, results: Results) -> Iterable[tuple[str, str, str, str, str, float, float, float, int, str]]:
    for run in results:
        if run.status != "ok":
            continue
        flags = "\n".join(flag.encode(errors="replace").decode().replace("\n", " ") for flag in run.flags)
        for series in run.series:
            if (value := value_of(series)) is not None:
                yield name, run.case, run.arm, series.metric, series.unit, *value, flags


def _create(data: sqlite3.Connection) -> None:
    with closing(data.cursor()) as cursor:
        cursor.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")


def _check_text(results: Results) -> None:
    """Refuse names that the index cannot hold: a JSON file can write half of a surrogate pair, UTF-8 cannot."""
    names = [results.environment.commit, results.suite, results.environment.hard.key]
    names += [n for r in results for n in (r.case, r.arm, *(t for s in r.series for t in (s.metric, s.unit)))]
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise FormatError(f"results with the name {visible(name)!r}: the history needs whole characters.") from None


def _moment(created: str) -> datetime:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        raise FormatError(
            f"results of {terminal(created[:40])!r}: a time such as 2026-01-31T12:00:00Z is needed."
        ) from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
