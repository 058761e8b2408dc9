"""Loops over data by the hundred and by the million: `python bench/dense.py --loops`.

Every turn of a loop calls with another index, slice or shape, which a memory of decisions by layout would not know. Each decade
of turns is timed in ten parts by the CPU time of the thread, so that a jump shows where it happens; what the process has taken
from the system since the ten-thousandth turn is memory that a longer loop would go on taking.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import Any, NamedTuple

import numpy as np
from results import Column, Entry, Figure, figure, ratio_of, value, write

import tritium as tt
from tritium.memory import resident_bytes

Turn = Callable[[int], Any]
ROWS, WIDTH = 1_000_000, 4
DECADES = (100, 1_000, 10_000, 100_000, 1_000_000)
PARTS = 10  # of a decade
SETTLED = 10_000  # turns after which memory may not grow


def turns(x: Any, index: Any) -> dict[str, Turn]:
    """Return the loops by name, for arrays of either library; turn i is the call with i."""

    def assign(i: int) -> None:
        x[i, 1] = 2.0

    return {
        "x[i]": lambda i: x[i],
        "x[i, 1]": lambda i: x[i, 1],
        "x[i, 1] = 2.0": assign,
        "x[:i]": lambda i: x[:i],
        "x[i:i + i % 1000] + 1": lambda i: x[i : i + i % 1000] + 1,
        "x[i:i + 8].sum()": lambda i: x[i : i + 8].sum(),
        "x[index + i % 1000]": lambda i: x[index[i % 1000]],
        "x[i].reshape(2, 2)": lambda i: x[i].reshape(2, 2),
    }


def taken() -> int:
    """Return the resident bytes of this process; 0 where the system does not say."""
    return resident_bytes() or 0


class Loop(NamedTuple):
    """What one loop took: ns of a turn in the parts of each decade, and bytes taken after SETTLED turns."""

    ns: dict[int, list[float]]
    grown: int


def run(turn: Turn, decades: Sequence[int] = DECADES) -> Loop:
    """Time a loop, decade by decade."""
    ns: dict[int, list[float]] = {}
    gc.collect()
    settled, done = taken(), 0
    for end in decades:
        bounds = [done + (end - done) * part // PARTS for part in range(PARTS + 1)]
        ns[end] = []
        for first, last in pairwise(bounds):
            began = thread_time_ns()
            for i in range(first, last):
                turn(i)
            ns[end].append((thread_time_ns() - began) / (last - first))
        done = end
        if end <= SETTLED:
            settled = taken()
    return Loop(ns, taken() - settled)


def measure(libraries: Sequence[str], decades: Sequence[int] = DECADES) -> dict[tuple[str, str], Loop]:
    """Run every loop in every library, by the names of both."""
    results: dict[tuple[str, str], Loop] = {}
    for library in libraries:
        rows = np.ones((max(decades[-1], 1000), WIDTH), np.float32)
        index = np.arange(8) + np.arange(1000)[:, None]
        arrays = (rows, list(index)) if library == "numpy" else (tt.asarray(rows), [tt.tensor(i) for i in index])
        for name, turn in turns(*arrays).items():
            results[name, library] = run(turn, decades)
    return {key: results[key] for key in sorted(results, key=lambda key: [*turns(None, None)].index(key[0]))}


def jump(loop: Loop) -> Figure:
    """Return the time of a turn in the last decade over that in the second: the first pays for what is done once."""
    decades = list(loop.ns)
    return ratio_of(figure(loop.ns[decades[-1]]), figure(loop.ns[decades[min(1, len(decades) - 1)]]))


def report(results: dict[tuple[str, str], Loop]) -> str:
    """Return the loops as a table of text."""
    decades = list(next(iter(results.values())).ns)
    lines = [f"{'loop':24}{'library':>10}" + "".join(f"{f'{end:,}':>12}" for end in decades) + f"{'jump':>8}{'MiB':>8}"]
    for (name, library), loop in results.items():
        cells = "".join(f"{median(loop.ns[end]):>12.0f}" for end in decades)
        lines.append(f"{name:24}{library:>10}{cells}{jump(loop).median:>8.2f}{loop.grown / 2**20:>8.1f}")
    return "\n".join(lines)


def write_results(path: Path, results: dict[tuple[str, str], Loop], threads: int) -> None:
    """Write the loops as a results file."""
    decades = list(next(iter(results.values())).ns)
    columns = [
        Column(f"to {end:,}", "ns", f"median time of a turn of the decade that ends with turn {end:,}")
        for end in decades
    ]
    columns.append(Column("jump", "×", "time of a turn in the last decade / that in the second", "ratio"))
    columns.append(Column("grown", "MiB", f"memory taken from the system after {SETTLED:,} turns"))
    rows = []
    for labels, loop in results.items():
        figures = {f"to {end:,}": figure(values) for end, values in loop.ns.items()}
        rows.append(Entry(labels, figures | {"jump": jump(loop), "grown": value(loop.grown / 2**20)}))
    write(path, "Loops over data", ("loop", "library"), columns, rows, threads=threads)
