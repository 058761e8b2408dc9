"""Crossover sizes: the size from which another contender is faster, from the paired rounds of one measurement, with intervals.

Knows no device by name, measures nothing and stores nothing. A size counts for a contender only if the whole 95 % interval
of the ratio is on its side and the difference is at least 3 %; a crossing between two such sizes is interpolated on the straight
line between them on logarithmic axes. What the intervals do not show is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import Literal

from tritium.arguments import checked
from tritium.perf.gate.compare import compare_paired
from tritium.perf.gate.verdict import Verdict, told_apart
from tritium.perf.records.run import LEAST_PROCESSES, Results, Run
from tritium.perf.tables.table import Table
from tritium.perf.tables.tables import RULES, outcome_beside
from tritium.perf.work.canary import is_canary

Shape = tuple[int, ...]
Kind = Literal["crosses", "always", "partly", "several", "not shown"]
HEADS = ("case", "contenders", "sizes", "faster")


@dataclass(frozen=True)
class Point:
    """One size: the time of the second contender relative to the first."""

    shape: Shape
    size: float
    ratio: float
    interval: tuple[float, float] | None  # 95 %; None: one round has no interval
    side: int  # -1: the first contender is faster, 1: the second, 0: not shown


@dataclass(frozen=True)
class Crossover:
    """Two contenders over the sizes of one op."""

    case: str  # its cases' name without the size: "matmul f32", "matmul f32, batch 8", "matmul f32, with transfer"
    operation: str
    precision: str
    batch: int | None
    transfer: str
    arms: tuple[str, str]
    points: tuple[Point, ...]  # from the smallest
    unit: str  # of a size: "", or "elements" if more than one dimension differs
    kind: Kind
    small: str = ""  # the contender that is faster at small sizes; for "always" and "partly", the faster one
    large: str = ""  # the contender that is faster at large sizes
    size: float | None = None  # for "crosses": where they meet; else the smallest with a difference
    between: tuple[float, float] | None = None  # the two sizes around the crossing

    @property
    def range_text(self) -> str:
        """Return the smallest and the largest size."""
        return f"{_size_text(self.points[0].size)}…{_size_text(self.points[-1].size)}" + (
            f" {self.unit}" if self.unit else ""
        )

    @property
    def text(self) -> str:
        """Return the result as a sentence: "tritium:mlx from about 700 on (between 512 and 1024), tritium below"."""
        return SENTENCES[self.kind](self)

    def __str__(self) -> str:
        return f"{self.case}: {' and '.join(self.arms)}: {self.text}"


def _size_text(size: float) -> str:
    """Return a size as text."""
    return f"{size:,.0f}" if size >= 10_000 else f"{size:.0f}"


def _crosses(c: Crossover) -> str:
    """Return the sentence of a crossover."""
    assert c.size is not None
    assert c.between is not None
    low, high = map(_size_text, c.between)
    unit = f" {c.unit}" if c.unit else ""
    return f"{c.large} from about {float(f'{c.size:.2g}'):,.0f}{unit} on (between {low} and {high}), {c.small} below"


def _partly(c: Crossover) -> str:
    """Return the sentence of a difference at some sizes only."""
    sizes = ", ".join(_size_text(p.size) for p in c.points if p.side)
    return f"{c.small} at {sizes}; no difference is shown at the others"


def _several(c: Crossover) -> str:
    """Return the sentence of a faster contender that changes more than once."""
    named = {-1: c.arms[0], 1: c.arms[1], 0: "not shown"}
    return "changes more than once: " + ", ".join(f"{_size_text(p.size)} {named[p.side]}" for p in c.points)


SENTENCES: dict[Kind, Callable[[Crossover], str]] = {
    "crosses": _crosses,
    "always": lambda c: f"always {c.small}: no crossover in {c.range_text}",
    "partly": _partly,
    "several": _several,
    "not shown": lambda c: f"no difference is shown in {c.range_text}",
}


# ---- search


def meeting(low: float, low_ratio: float, high: float, high_ratio: float) -> float:
    """Return the size at which a ratio is 1, on the straight line between two sizes on logarithmic axes."""
    a, b = math.log(low_ratio), math.log(high_ratio)
    return math.exp(math.log(low) + (math.log(high) - math.log(low)) * a / (a - b))


@checked
def crossovers(results: Results, arms: Sequence[str] | None = None) -> tuple[Crossover, ...]:
    """Return the crossovers of every op, dtype, batch and pair of contenders with two sizes or more. `arms`: only these."""
    chosen = [arm for arm in results.arms if arms is None or arm in arms]
    shown = replace(results, runs=tuple(r for r in results.runs if not is_canary(r.case)))
    series = [runs for runs in _series(shown) if len({r.context.shape for r in runs}) > 1]
    if not series:
        return ()
    out: list[Crossover] = []
    for first, second in combinations(chosen, 2):
        verdicts = {v.case: v for v in compare_paired(shown, first, second, RULES).verdicts if v.metric == "wall"}
        out += [crossing for runs in series if (crossing := _crossover(runs, first, second, verdicts)) is not None]
    order = {title(runs[0]): i for i, runs in enumerate(series)}
    return tuple(sorted(out, key=lambda c: order[c.case]))


def title(run: Run) -> str:
    """Return the name of a case without its size, with its batch."""
    size = "x".join(map(str, run.context.shape))
    head, comma, tail = run.case.partition(",")
    words = [word for word in head.split() if word != size]
    batch = f", batch {run.context.batch}" if run.context.batch is not None else ""
    return " ".join(words) + batch + comma + tail


def _series(results: Results) -> list[list[Run]]:
    """Return one run of every case, grouped by everything except size."""
    runs: dict[str, Run] = {}
    for run in results.runs:
        if run.context.shape:
            runs.setdefault(run.case, run)
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs.values():
        groups.setdefault((title(run), len(run.context.shape)), []).append(run)
    return list(groups.values())


def _measure(shapes: Sequence[Shape]) -> tuple[dict[Shape, float], str]:
    """Return the size of each shape as one number: the dimension that differs, if it is one; else the number of elements."""
    axes = [i for i in range(len(shapes[0])) if len({s[i] for s in shapes}) > 1]
    if axes and all(len({s[i] for i in axes}) == 1 for s in shapes):
        return {s: float(s[axes[0]]) for s in shapes}, ""
    return {s: float(math.prod(s)) for s in shapes}, "elements"


def _crossover(runs: Sequence[Run], first: str, second: str, verdicts: dict[str, Verdict]) -> Crossover | None:
    """Return the crossover of two contenders over these runs; None with fewer than two comparable sizes."""
    judged = [(r.context.shape, v) for r in runs if (v := verdicts.get(r.case)) is not None and v.ratio]
    judged = [(shape, v) for shape, v in judged if v.outcome != "NOT COMPARABLE"]
    if len({shape for shape, _ in judged}) < 2:
        return None
    sizes, unit = _measure([shape for shape, _ in judged])
    points = [Point(s, sizes[s], v.ratio or 1.0, told_apart(v.interval95), _side(v)) for s, v in judged]
    arms, context = (first, second), runs[0].context
    unclassified = Crossover(
        title(runs[0]), context.operation, context.precision, context.batch, context.transfer, arms,
        tuple(sorted(points, key=lambda p: p.size)), unit, "not shown",
    )  # fmt: skip
    return _classify(unclassified)


def _side(v: Verdict) -> int:
    """Return which side a ratio is on. Many sizes are tested: chance alone moves some intervals off 1, by little."""
    if not v.ratio or max(v.ratio, 1 / v.ratio) < 1 + RULES.margin("wall"):
        return 0
    return {"FASTER": 1, "SLOWER": -1}.get(outcome_beside(v), 0)


def _classify(c: Crossover) -> Crossover:
    """Return the crossover with its kind, from the sides of the points in order of size."""
    decided = [p for p in c.points if p.side]
    if not decided:
        return c
    sides = [side for side, _ in groupby(p.side for p in decided)]
    named = {-1: c.arms[0], 1: c.arms[1]}
    if len(sides) > 2:
        return replace(c, kind="several")
    if len(sides) == 1:
        kind: Kind = "always" if len(decided) == len(c.points) else "partly"
        return replace(c, kind=kind, small=named[sides[0]], large=named[sides[0]], size=decided[0].size)
    turn = next(i for i, p in enumerate(decided) if p.side == sides[1])
    low, high = decided[turn - 1], decided[turn]
    return replace(
        c, kind="crosses", small=named[sides[0]], large=named[sides[1]],
        size=meeting(low.size, low.ratio, high.size, high.ratio), between=(low.size, high.size),
    )  # fmt: skip


# ---- for people


def notable(crossings: Sequence[Crossover], first: str) -> tuple[list[Crossover], list[str]]:
    """Return what a page shows: rows where the faster contender depends on the size, and sentences on the rest.

    Pairs without the first contender are shown only if they cross.
    """
    rows = [c for c in crossings if c.kind in ("crosses", "several") or (c.kind == "partly" and first in c.arms)]
    alike: dict[tuple[str, str], dict[str, list[str]]] = {}
    for c in crossings:
        if first in c.arms and c not in rows:
            alike.setdefault(c.arms, {}).setdefault(c.small, []).append(f"{c.case} ({c.range_text})")
    lines = []
    for arms, sides in alike.items():
        labels = (f"{arm} at every size" if arm else "no difference is shown" for arm in sides)
        parts = "; ".join(f"{label}: {', '.join(cases)}" for label, cases in zip(labels, sides.values(), strict=True))
        lines.append(f"{arms[0]} and {arms[1]}: {parts}.")
    return rows, lines


def table(results: Results) -> Table | None:
    """Return the table of all notable crossovers; None if no op has two sizes on two contenders."""
    crossings = crossovers(results)
    if not crossings:
        return None
    listed, lines = notable(crossings, results.arms[0])
    rows = tuple((c.case, " and ".join(c.arms), c.range_text, c.text) for c in listed)
    rule = "A contender is named if the whole 95 % interval of the ratio is on its side, by at least 3 %."
    if results.plan.generations < LEAST_PROCESSES:
        rule += f" {LEAST_PROCESSES} processes or more can show that; there were {results.plan.generations}."
    if not rows:
        rows = (("-", "-", "-", "no pair of contenders changes order with the size"),)
    return Table("Crossover sizes: the faster of two contenders", HEADS, rows, frozenset(), ("", *lines, rule))
