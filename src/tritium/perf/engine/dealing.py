"""Time dealt to what is undecided: which cells the next processes measure, from the ratios so far, the costs and the time left.

A cell is a case on a contender, named by both; a comparison is a cell beside that of the first contender. It needs three processes
for an interval of any use, six for one of 95 %, and then as many as decide it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from tritium.perf.records.run import LEAST_PROCESSES
from tritium.perf.stats.estimates import walsh_interval

CellName = tuple[str, str]  # of the case, of the contender
FIRST_PASS = 3  # processes that every comparison gets before any gets more
MARGIN = math.log(1.03)  # nearer to 1, a ratio shows no difference that matters
WIDER = 2  # an interval is looked at after every process: it decides only if one so many times as wide does


def process_ratios(
    first: Sequence[Sequence[Sequence[float]]], other: Sequence[Sequence[Sequence[float]]]
) -> list[float]:
    """Return the log ratio of each process that both measured: the median over its rounds."""
    ratios = []
    for ours, theirs in zip(first, other, strict=False):
        rounds = [(median(a), median(b)) for a, b in zip(ours, theirs, strict=False) if a and b]
        if logs := [math.log(b / a) for a, b in rounds if a > 0 and b > 0]:
            ratios.append(median(logs))
    return ratios


def processes_needed(ratios: Sequence[float]) -> int:
    """Return how many more processes a comparison needs, from the log ratio of each so far; 0: it is decided.

    It is decided if its 95 % interval, widened, excludes 1 or lies within the margin.
    """
    n = len(ratios)
    for least in (FIRST_PASS, LEAST_PROCESSES):
        if n < least:
            return least - n
    low, high = walsh_interval(ratios)
    centre, half = abs(low + high) / 2, WIDER * (high - low) / 2
    room = max(centre, MARGIN - centre)
    return 0 if half <= room else max(1, math.ceil(n * (half / room) ** 2) - n)


def seconds_of(
    processes: Mapping[CellName, int], start_s: Mapping[str, float], cell_s: Mapping[CellName, float]
) -> float:
    """Return the seconds of so many processes of each cell: of starting each contender, and of the cells."""
    starts: dict[str, int] = {}
    for (_, arm), n in processes.items():
        starts[arm] = max(starts.get(arm, 0), n)
    cells = sum(n * cell_s.get(cell, 0.0) for cell, n in processes.items())
    return cells + sum(n * start_s.get(arm, 0.0) for arm, n in starts.items())


def deal(
    needed: Mapping[CellName, int], first: Mapping[str, str], start_s: Mapping[str, float], cell_s: Mapping[CellName, float],
    left_s: float,
) -> set[CellName]:  # fmt: skip
    """Return the cells to measure in the next processes: those of the comparisons that take the least time to decide.

    `needed` has the processes that each comparison needs, `first` the contender that those of a case are compared with, the others
    what a process and a cell take. A comparison gets a process if one is left after all that those before it need.
    """
    planned: dict[CellName, int] = {}
    dealt: set[CellName] = set()
    both = {cell: {cell, (cell[0], first[cell[0]])} for cell, n in needed.items() if n > 0}
    for cell in sorted(both, key=lambda c: needed[c] * sum(cell_s.get(part, 0.0) for part in both[c])):
        once = planned | {part: max(1, planned.get(part, 0)) for part in both[cell]}
        if seconds_of(once, start_s, cell_s) <= left_s:
            planned |= {part: max(needed[cell], planned.get(part, 0)) for part in both[cell]}
            dealt |= both[cell]
    return dealt
