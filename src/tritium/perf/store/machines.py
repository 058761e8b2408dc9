"""One case on several machines, side by side: each in its own units, by commit.

The runs of another machine come into a history as files.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritium.perf.store.history import History
from tritium.perf.store.trends import Point, Trend, trend


@dataclass(frozen=True)
class Machine:
    """A machine that runs in a history are from."""

    fingerprint: str
    cpu: str
    threads: int
    runs: int
    changes: int

    @property
    def label(self) -> str:
        return f"{self.cpu.replace('(R)', '').replace('(TM)', '').strip()[:32]} {self.fingerprint[:4]}"


@dataclass(frozen=True)
class Row:
    """One commit, or one run without a commit: the value of each machine; None: not measured there."""

    commit: str
    created: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Beside:
    """A case on all machines."""

    case: str
    metric: str
    arm: str
    unit: str
    machines: tuple[Machine, ...]
    rows: tuple[Row, ...]


def by_machine(history: History, case: str, metric: str, arm: str) -> dict[str, Trend]:
    """Return the trend of a case on each machine, by fingerprint; the machine with the newest run first."""
    points = history.series(case, metric, arm, every=True)
    newest = {p.fingerprint: p.created for p in points}
    order = sorted(newest, key=lambda f: newest[f], reverse=True)
    return {f: trend([p for p in points if p.fingerprint == f], metric) for f in order}


def machine_of(history: History, fingerprint: str, points: tuple[Point, ...], changes: int) -> Machine:
    """Return a machine as its newest run describes it."""
    hard = history.load(points[-1].run).environment.hard
    return Machine(fingerprint, hard.cpu, hard.threads, len(points), changes)


def beside(history: History, case: str, metric: str, arm: str) -> Beside:
    """Return a case on all machines, oldest commit first; the newest run of a commit counts."""
    trends = by_machine(history, case, metric, arm)
    machines = tuple(machine_of(history, f, t.points, len(t.steps)) for f, t in trends.items())
    values: dict[str, dict[str, Point]] = {}
    for fingerprint, t in trends.items():
        for p in t.points:
            values.setdefault(p.commit or p.created, {})[fingerprint] = p
    rows = []
    for each in sorted(values.values(), key=lambda points: min(p.created for p in points.values())):
        first = next(iter(each.values()))
        rows.append(Row(first.commit, first.created, tuple(each[f].value if f in each else None for f in trends)))
    unit = next((t.points[-1].unit for t in trends.values()), "")
    return Beside(case, metric, arm, unit, machines, tuple(rows))
