"""A history in, the places where its level changed out: E-divisive means with permutations that follow from the data.

Knows nothing of runs, commits or files. Values are logarithms, oldest first, so that a change is a ratio. Points are sought in
windows that overlap by half, loosely; each one found is then tested again, strictly, between its neighbours. Both tests allow
for the choice of the best place. They do not allow for values that depend on the ones before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from tritium.errors import ArgumentError
from tritium.perf.stats.resample import Floats, bits, seed_of

ORDERS = 5  # a share of alpha is so many of the orders tried
HOPELESS = 4  # and so many times as many end the trial: the rest cannot bring it below alpha
BLOCK = 500


@dataclass(frozen=True)
class Change:
    """From `index` on the level is another. Levels are on the scale of the values."""

    index: int
    before: float
    after: float
    ratio: float  # after to before: exp of the difference
    p: float


def change_points(
    values: ArrayLike,
    weights: ArrayLike | None = None,
    p_weak: float = 0.01,
    p_strong: float = 0.003,
    window: int = 50,
    least_change: float = 0.02,
    least_points: int = 3,
) -> list[Change]:
    """The changes of level in a series of logarithms; weights: how sure each value is, as 1 / width of its interval.

    p_strong is 0.003, not Otava's 0.001: five points cannot pass a stricter test of orders, and it has room (docs/measuring.md).
    """
    x = np.asarray(values, np.float64)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if x.ndim != 1 or x.shape != w.shape or not np.isfinite(x).all() or not (np.isfinite(w) & (w > 0)).all():
        raise ArgumentError("change_points: one row of finite values is needed, and as many weights above 0.")
    if window < 2 * least_points or least_points < 1:
        raise ArgumentError(
            f"change_points: a window of {window} has no room for {least_points} points on either side."
        )
    series = _Series(x, w, least_points)
    weak: set[int] = set()
    last = max(len(x) - window, 0)  # the newest points are sought in a whole window too
    for start in (*range(0, last, window // 2), last):
        weak |= _weak(series, start, min(start + window, len(x)), p_weak)
    found = _strong(series, sorted(weak), p_strong, window)
    return _large(series, found, p_strong, window, math.log1p(least_change))


@dataclass(frozen=True)
class _Series:
    values: Floats
    weights: Floats
    least: int
    tested: dict[tuple[int, int, float], tuple[int, float]] = field(default_factory=dict)

    def level(self, low: int, high: int) -> float:
        return float(np.average(self.values[low:high], weights=self.weights[low:high]))

    def best(self, low: int, high: int, alpha: float) -> tuple[int, float]:
        """Where [low, high) parts best, and the chance that no order of its values parts it worse."""
        key = low, high, alpha
        if key not in self.tested:
            self.tested[key] = _best(self.values[low:high], self.weights[low:high], self.least, alpha)
        place, p = self.tested[key]
        return low + place, p


def _weak(series: _Series, low: int, high: int, alpha: float) -> set[int]:
    """Split as long as the parts differ."""
    place, p = series.best(low, high, alpha)
    if p >= alpha:
        return set()
    return {place} | _weak(series, low, place, alpha) | _weak(series, place, high, alpha)


def _between(series: _Series, places: Sequence[int], window: int) -> list[tuple[int, int, int]]:
    """Each place with the stretch up to its neighbours, at most a window on either side."""
    ends = [0, *places, len(series.values)]
    return [(at, max(a, at - window), min(b, at + window)) for a, at, b in zip(ends, places, ends[2:], strict=False)]


def _strong(series: _Series, places: list[int], alpha: float, window: int) -> list[int]:
    """The places that pass the strict test; the least certain one goes first, and its neighbours are tested anew."""
    while places:
        tested = [series.best(low, high, alpha) for _, low, high in _between(series, places, window)]
        worst = max(range(len(places)), key=lambda i: tested[i][1])
        if tested[worst][1] < alpha:
            moved = [place for place, _ in tested]
            return moved if all(a < b for a, b in pairwise(moved)) else places
        places = places[:worst] + places[worst + 1 :]
    return []


def _large(series: _Series, places: list[int], alpha: float, window: int, least: float) -> list[Change]:
    """The changes that are large enough; the smallest one goes first, and its neighbours are measured anew."""
    while places:
        stretches = _between(series, places, window)
        steps = [series.level(at, high) - series.level(low, at) for at, low, high in stretches]
        smallest = min(range(len(places)), key=lambda i: abs(steps[i]))
        if abs(steps[smallest]) >= least:
            return [
                Change(
                    at, series.level(low, at), series.level(at, high), math.exp(step), series.best(low, high, alpha)[1]
                )
                for (at, low, high), step in zip(stretches, steps, strict=True)
            ]
        places = _strong(series, places[:smallest] + places[smallest + 1 :], alpha, window)
    return []


def _best(x: Floats, w: Floats, least: int, alpha: float) -> tuple[int, float]:
    """The split of the largest distance between its sides, and the share of orders that split as well."""
    n = len(x)
    if n < 2 * least or (x == x[0]).all():
        return 0, 1.0
    here = _distances(x[None], w[None], least)[0]
    reach = float(here.max()) * (1 - 1e-12)
    orders = math.ceil(ORDERS / alpha) - 1
    source, done, hits = bits(seed_of(x, w)), 0, 0
    while done < orders and hits < ORDERS * HOPELESS:
        rows = min(BLOCK, orders - done)
        order = np.argsort(source.random_raw(rows * n).reshape(rows, n), axis=1)
        hits += int((_distances(x[order], w[order], least).max(axis=1) >= reach).sum())
        done += rows
    return int(here.argmax()) + least, (hits + 1) / (done + 1)


def _distances(x: Floats, w: Floats, least: int) -> Floats:
    """For each row and each place of a split: the squared distance of the sides' means, times their harmonic weight.

    That is the energy distance of exponent 2, the one of E-divisive that looks at means alone. Exponent 1 looks at shapes
    too, and pays for it: where this finds 94 of 100 steps of 3 times the noise from 5 points, that finds 78.
    """
    weight, total = np.cumsum(w, axis=1), np.cumsum(w * x, axis=1)
    kept = slice(least - 1, x.shape[1] - least)
    a, b = weight[:, kept], weight[:, -1:] - weight[:, kept]
    apart = total[:, kept] / a - (total[:, -1:] - total[:, kept]) / b
    return np.asarray(a * b / (a + b) * apart**2)
