"""A model of the time of the kernel `wgmma` on Hopper, with constants that were fitted to measurements.

A CTA has a start (its launch, the first stages, its results), and steps at a constant rate for each tile; what tiles,
parts and rounds cost beyond that is the same for all tiles. `bench/cuda_sweep.py` measures, `bench/cuda_fit.py` fits,
`cuda.linear.measured` holds the result.
"""

from __future__ import annotations

from typing import NamedTuple

from tritium.backends.cuda.linear.measured import COSTS, FEW_TOKENS, TILE_TIMES
from tritium.backends.cuda.linear.spread import spread

RESULTS = 1024  # in which the results of a tile are counted


class Tile(NamedTuple):
    """A product of n rows, m tokens and so many bytes of each row of weights, and the tile that it is divided into."""

    n: int
    m: int
    row_bytes: int
    rows: int
    tokens: int
    step: int
    turns: int
    beside: bool  # two CTAs fit on a multiprocessor
    number: int  # how tiles are dealt, as `spread` takes it

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.rows, self.tokens, self.step, self.turns


class Terms(NamedTuple):
    """The terms of a tile's time: sequential steps, with two CTAs on each multiprocessor or one, and the count of
    each cost.
    """

    steps: float
    doubled: bool
    costs: dict[str, float]


def terms(t: Tile, processors: int) -> Terms:
    """Return the terms of a tile on a GPU of so many multiprocessors."""
    steps, tiles = -(-t.row_bytes // t.step), -(-t.n // t.rows) * -(-t.m // t.tokens)
    results = t.rows * t.tokens / RESULTS
    dealt = spread(t.number, tiles, steps, t.tokens, processors)
    costs = {"weight": t.n * t.row_bytes * 1e-6, "result": t.n * t.m * 2e-6}  # MB
    if t.number > 0:
        rounds = -(-dealt.whole // dealt.programs)
        along = rounds * steps + 0.0
        late = dealt.pieces > 1 or dealt.parts > 1
        if dealt.pieces > 1:
            along += steps / dealt.pieces
            costs["piece"] = 1.0
        if dealt.parts > 1:
            along += -(-steps // dealt.parts)
            costs |= {"late": 1.0, "late_results": results, "late_parts": (dealt.parts - 1) * results}
        costs |= {"stay": rounds - 1 + late, "stay_results": (rounds - 1 + late) * results}
        return Terms(along, False, costs)
    jobs = tiles * dealt.split
    doubled = t.beside and jobs > processors
    rounds = -(-jobs // (2 * processors if doubled else processors))
    costs |= {"round": rounds - 1.0, "round_results": (rounds - 1) * results, "doubled": float(doubled)}
    if dealt.split > 1:
        costs |= {"part": 1.0, "part_results": results, "parts": (dealt.split - 1) * results}
    return Terms(rounds * float(-(-steps // dealt.split)), doubled, costs)


def tile_us(t: Tile, processors: int) -> float | None:
    """Return the time of a tile in µs, or None where none like it was measured."""
    known = TILE_TIMES.get(t.key)
    if known is None:
        return None
    parts = terms(t, processors)
    step = known.doubled if parts.doubled else known.step
    return known.start + parts.steps * step + sum(COSTS[name] * count for name, count in parts.costs.items())


def few_tokens_us(n: int, k: int) -> float:
    """Return the time of `fragments` for 9 to 16 tokens, in µs: it grows with the weights, and with the columns of a row."""
    return FEW_TOKENS.start + FEW_TOKENS.weight * (n * k / 4e6) + FEW_TOKENS.columns * (k / 1e3)
