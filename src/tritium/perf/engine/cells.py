"""One case on one arm while it is measured: what was found so far, and the run that is made of it in the end.

Knows nothing of processes or plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from tritium.perf.records.case import Arm, Case
from tritium.perf.records.context import Work
from tritium.perf.records.run import Run, Series, Status, Values
from tritium.perf.stats.estimates import MODES, mvalue

CLOCKS = {
    "wall": "perf_counter",
    "cpu": "process_time",
    "clock": "a fixed piece of arithmetic before and after the batches",
}
WAITED = 0.5  # CPU time below this share of the wall time: the process waited for most of it


@dataclass
class Cell:
    """Mutable; plain JSON in a journal."""

    status: Status = "ok"
    reason: str = ""
    checked: str = ""
    calls: int = 0
    each_s: float = 0.0
    warmup: int = 0
    steady: bool = True
    first_call_s: float | None = None
    make_s: float = 1e9
    facts: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] | None = None
    values: dict[str, list[list[list[float]]]] = field(default_factory=dict)  # metric, generation, round, batch
    series: dict[str, dict[str, Any]] = field(default_factory=dict)  # metric: unit, source, reason, details …
    rounds: int = 0
    broken: list[list[float]] = field(default_factory=list)  # wall times of rounds that were repeated
    kept: int = 0  # rounds that count though something broke in: the repeats were used up

    def add(self, metric: str, generation: int, rounds: list[list[float]]) -> None:
        """The rounds of a generation; generations in which it was not measured are empty."""
        of = self.values.setdefault(metric, [])
        of.extend([] for _ in range(generation - len(of)))
        of.append(rounds)

    def note(self, metric: str, generation: int, about: dict[str, Any]) -> None:
        """One value of a metric that is read once in a generation, or why there is none."""
        value = about.pop("value", None)
        if value is not None:
            self.add(metric, generation, [[value]])
        elif any(self.values.get(metric, ())):  # measured before, and not this time: the series keeps what it has
            self.series[metric].setdefault("absent", []).append(about.get("reason", ""))
            return
        self.series[metric] = self.series.get(metric, {}) | about


def run_of(case: Case, arm: Arm, cell: Cell, threads: int) -> Run:
    """What is kept of a cell."""
    series = [*_clocks(cell), *(_other(m, about, cell) for m, about in cell.series.items())]
    status, reason = cell.status, cell.reason
    if status == "ok" and not series:
        status, reason = "interrupted", "ended before the first sample"
    context = replace(
        case.context, threads=threads, optimisation=arm.optimisation or case.context.optimisation,
        device=arm.candidate.partition(":")[2] or case.context.device,
    )  # fmt: skip
    return Run(
        case.name, arm.name, context, Work(**cell.work) if cell.work else case.work, status, reason, cell.checked,
        cell.calls, cell.warmup, cell.steady, cell.first_call_s, tuple(series), tuple(_flags(cell, context.device)), cell.facts,
    )  # fmt: skip


def _clocks(cell: Cell) -> list[Series]:
    found = []
    for metric, source in CLOCKS.items():
        values = _frozen(cell.values.get(metric, []))
        if any(values):
            details = {"broken": cell.broken} if cell.broken and metric == "wall" else {}
            found.append(Series(metric, "s", values, source=source, details=details))
    return found


def _other(metric: str, about: dict[str, Any], cell: Cell) -> Series:
    values = _frozen(cell.values.get(metric, []))
    known = {k: v for k, v in about.items() if k in ("unit", "source", "exact", "reason", "kind")}
    details = {k: v for k, v in about.items() if k not in known}
    if not any(values):
        values, known["kind"] = (), "not measured"
    else:
        known.pop("reason", None)
    return Series(metric, known.pop("unit", ""), values, details=details, **known)


def _flags(cell: Cell, device: str) -> list[str]:
    """What a reader must know before believing the numbers."""
    flags = [] if cell.steady else ["no steady state"]
    if cell.broken:
        flags.append(f"{len(cell.broken)} rounds repeated: other work or the hypervisor broke in")
    if cell.kept:
        flags.append(f"{cell.kept} rounds kept though other work broke in")
    wall, cpu = ([median(b) for g in cell.values.get(m, ()) for b in g if b] for m in ("wall", "cpu"))
    if len(wall) >= 8 and mvalue(wall) > MODES:
        flags.append("several modes")
    if wall and cpu and device == "cpu" and median(cpu) < WAITED * median(wall):
        flags.append(f"waited: the CPU time is {median(cpu) / median(wall):.0%} of the wall time")
    return flags


def _frozen(values: list[list[list[float]]]) -> Values:
    return tuple(tuple(tuple(b) for b in g) for g in values)
