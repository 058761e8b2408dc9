"""The constants of the model of product times, fitted to what bench/cuda_sweep.py measured; printed as Python.

Needs SciPy.

    python bench/cuda_fit.py sweep.json [more.json …]

Least squares of relative errors without negative constants; candidates near the fastest of their case count most, since the
model must rank these. Shapes are left out in turn, a fifth at a time, to say how much slower the model's choice is than the fastest
candidate on shapes it has not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tritium.backends.cuda.linear.choice import Case, Choice, is_beside, parsed, words
from tritium.backends.cuda.linear.model import Tile, terms
from tritium.backends.cuda.linear.spread import UNEVEN

PROCESSORS = 132
FOLDS = 5
STEEP = 3  # how fast the weight of a candidate falls with its distance from the fastest
DIGITS = 4


class Row(NamedTuple):
    """One time: the case it belongs to, the fastest of that case, and how often each constant is paid."""

    case: int
    fold: int
    name: str
    us: float
    best: float
    terms: dict[Any, float]


def tile_of(case: Case, c: Choice) -> Tile:
    rows, tokens, step, turns = (c.get(name) for name in ("rows", "tokens", "bytes", "turns"))
    return Tile(case.n, case.m, words(case) * 4, rows, tokens, step, turns, is_beside(c), c.get("spread"))


def is_candidate(c: Choice) -> bool:
    """Return True if the chooser would try such a tile: files may hold others."""
    known = {16, 32, 64, 128, *UNEVEN}
    return c.get("tokens") in known and c.get("spread") != 2 and (c.get("bytes") > 32 or c.get("rows") == 256)


def rows_of(records: list[dict[str, Any]]) -> list[Row]:
    """Return the times of tiles; folds are those of shapes."""
    shapes: dict[tuple[int, int], int] = {}
    rows = []
    for i, record in enumerate(records):
        case = Case(record["n"], record["k"], record["m"])
        fold = shapes.setdefault((case.n, case.k), len(shapes)) % FOLDS
        timed = {name: us for name, us in record["us"].items() if name.startswith("wgmma")}
        for name, us in timed.items():
            choice = parsed(name)
            if choice is None or not is_candidate(choice):
                continue
            tile = tile_of(case, choice)
            found = terms(tile, PROCESSORS)
            paid: dict[Any, float] = {
                ("start", tile.key): 1.0,
                ("doubled" if found.doubled else "step", tile.key): found.steps,
            }
            rows.append(Row(i, fold, name, us, min(timed.values()), paid | found.costs))
    return rows


def fit(rows: list[Row]) -> dict[Any, float]:
    from scipy.optimize import nnls

    names = sorted({name for row in rows for name in row.terms}, key=str)
    at = {name: i for i, name in enumerate(names)}
    a = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        for name, count in row.terms.items():
            a[i, at[name]] = count
    us, best = np.array([row.us for row in rows]), np.array([row.best for row in rows])
    by = (best / us) ** STEEP / us
    weights = by
    for _ in range(4):
        constants, _ = nnls(a * weights[:, None], us * weights)
        errors = np.abs(a @ constants - us) / us
        weights = by / np.sqrt(np.maximum(1, errors / 0.05))  # what is far off pulls less
    return dict(zip(names, constants, strict=True))


def predicted(row: Row, constants: dict[Any, float]) -> float:
    return sum(constants.get(name, 1e3) * count for name, count in row.terms.items())


def losses(rows: list[Row], constants: dict[Any, float]) -> list[float]:
    """Return for each case how many times the fastest candidate the chosen one takes."""
    by_case: dict[int, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    chosen = [min(of_case, key=lambda row: predicted(row, constants)) for of_case in by_case.values()]
    return [row.us / row.best for row in chosen]


def printed(constants: dict[Any, float], rows: list[Row]) -> str:
    """Return the constants as `cuda.linear.measured` has them. Tiles of few measurements are left out."""
    tiles = sorted({name[1] for name in constants if isinstance(name, tuple)})
    counted = {tile: sum(("start", tile) in row.terms for row in rows) for tile in tiles}
    lines = ["TILE_TIMES = {"]
    for tile in tiles:
        step, doubled = (constants.get((kind, tile)) for kind in ("step", "doubled"))
        step = step or (doubled or 0.0) / 2
        if counted[tile] >= 8:
            numbers = (constants["start", tile], step, doubled or 2 * step)
            lines.append(f"    {tile}: TileTime({', '.join(f'{number:.{DIGITS}g}' for number in numbers)}),")
    costs = {name: float(f"{value:.{DIGITS}g}") for name, value in constants.items() if isinstance(name, str)}
    return "\n".join([*lines, "}", f"COSTS = {costs}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    rows = rows_of([record for path in parser.parse_args().files for record in json.loads(path.read_text())])
    print(printed(fit(rows), rows))
    unseen = [
        loss
        for fold in range(FOLDS)
        for loss in losses([r for r in rows if r.fold == fold], fit([r for r in rows if r.fold != fold]))
    ]
    middle, late, most = np.quantile(unseen, [0.5, 0.9, 1.0])
    print(f"# {len(rows)} times of {len(unseen)} cases; the choice takes {middle:.3f} times the fastest in the middle,")
    print(
        f"# {np.mean(unseen):.3f} on average, {late:.3f} at the 90th percentile and {most:.2f} at most, on shapes left out."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
