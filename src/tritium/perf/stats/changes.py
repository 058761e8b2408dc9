"""Change points of a history: E-divisive means, with permutations that follow from the data.

Values are logarithms, oldest first, so that a change is a ratio. Points are sought in windows that overlap by half, with a
loose test; each is then tested again, strictly, between its neighbours. Both tests allow for the choice of the best split.
They do not allow for values that depend on the ones before.
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

ORDERS = 5  # p equals alpha at this many hits among the permutations tried
HOPELESS = 4  # this many times as many hits end the test early: the rest cannot bring p below alpha
BLOCK = 500


@dataclass(frozen=True)
class Change:
    """A change of level at `index`. Levels are on the scale of the values."""

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
    """Return the changes of level in a series of logarithms; weights: certainty of each value, as 1 / width of its interval.

    p_strong is 0.003, not Otava's 0.001: five points cannot pass a stricter permutation test, and it has room (docs/measuring.md).
    """
    x = np.asarray(values, np.float64)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if x.ndim != 1 or x.shape != w.shape or not np.isfinite(x).all() or not (np.isfinite(w) & (w > 0)).all():
        raise ArgumentError("change_points: a 1-D array of finite values is needed, and as many weights above 0.")
    if window < 2 * least_points or least_points < 1:
        raise ArgumentError(
            f"change_points: a window of {window} has no room for {least_points} points on either side."
        )
    series = _Series(x, w, least_points)
    weak: set[int] = set()
    last = max(len(x) - window, 0)  # the newest points get a full window too
    for start in (*range(0, last, window // 2), last):
        weak |= _weak(series, start, min(start + window, len(x)), p_weak)
    strong = _strong(series, sorted(weak), p_strong, window)
    return _large(series, strong, p_strong, window, math.log1p(least_change))


@dataclass(frozen=True)
class _Series:
    values: Floats
    weights: Floats
    least: int
    tested: dict[tuple[int, int, float], tuple[int, float]] = field(default_factory=dict)

    def level(self, low: int, high: int) -> float:
        """Return the weighted mean of [low, high)."""
        return float(np.average(self.values[low:high], weights=self.weights[low:high]))

    def best(self, low: int, high: int, alpha: float) -> tuple[int, float]:
        """Return the best split of [low, high), and its permutation p: the share of orders that split as well."""
        key = low, high, alpha
        if key not in self.tested:
            self.tested[key] = _best(self.values[low:high], self.weights[low:high], self.least, alpha)
        split, p = self.tested[key]
        return low + split, p


def _weak(series: _Series, low: int, high: int, alpha: float) -> set[int]:
    """Return all splits of [low, high) that pass the loose test, recursively."""
    split, p = series.best(low, high, alpha)
    if p >= alpha:
        return set()
    return {split} | _weak(series, low, split, alpha) | _weak(series, split, high, alpha)


def _between(series: _Series, splits: Sequence[int], window: int) -> list[tuple[int, int, int]]:
    """Return each split with the stretch up to its neighbours, at most a window on either side."""
    ends = [0, *splits, len(series.values)]
    return [
        (split, max(a, split - window), min(b, split + window))
        for a, split, b in zip(ends, splits, ends[2:], strict=False)
    ]


def _strong(series: _Series, splits: list[int], alpha: float, window: int) -> list[int]:
    """Return the splits that pass the strict test; the least certain is dropped first, and its neighbours are tested again."""
    while splits:
        tested = [series.best(low, high, alpha) for _, low, high in _between(series, splits, window)]
        worst = max(range(len(splits)), key=lambda i: tested[i][1])
        if tested[worst][1] < alpha:
            moved = [split for split, _ in tested]
            return moved if all(a < b for a, b in pairwise(moved)) else splits
        splits = splits[:worst] + splits[worst + 1 :]
    return []


def _large(series: _Series, splits: list[int], alpha: float, window: int, least: float) -> list[Change]:
    """Return the changes that are large enough; the smallest is dropped first, and its neighbours are measured again."""
    while splits:
        stretches = _between(series, splits, window)
        steps = [series.level(split, high) - series.level(low, split) for split, low, high in stretches]
        smallest = min(range(len(splits)), key=lambda i: abs(steps[i]))
        if abs(steps[smallest]) >= least:
            return [
                Change(
                    split,
                    series.level(low, split),
                    series.level(split, high),
                    math.exp(step),
                    series.best(low, high, alpha)[1],
                )
                for (split, low, high), step in zip(stretches, steps, strict=True)
            ]
        splits = _strong(series, splits[:smallest] + splits[smallest + 1 :], alpha, window)
    return []


def _best(x: Floats, w: Floats, least: int, alpha: float) -> tuple[int, float]:
    """Return the split with the largest distance between its sides, and the share of orders that split as well."""
    n = len(x)
    if n < 2 * least or (x == x[0]).all():
        return 0, 1.0
    distances = _distances(x[None], w[None], least)[0]
    reach = float(distances.max()) * (1 - 1e-12)
    orders = math.ceil(ORDERS / alpha) - 1
    source, done, hits = bits(seed_of(x, w)), 0, 0
    while done < orders and hits < ORDERS * HOPELESS:
        rows = min(BLOCK, orders - done)
        order = np.argsort(source.random_raw(rows * n).reshape(rows, n), axis=1)
        hits += int((_distances(x[order], w[order], least).max(axis=1) >= reach).sum())
        done += rows
    return int(distances.argmax()) + least, (hits + 1) / (done + 1)


def _distances(x: Floats, w: Floats, least: int) -> Floats:
    """Return, for each row and split, the squared distance of the sides' means times their harmonic weight.

    That is the energy distance of exponent 2, the variant of E-divisive that compares means alone. Exponent 1 compares shapes
    too, and has less power: with 5 points and steps of 3 times the noise it detects 78 of 100, this one 94.
    """
    weight, total = np.cumsum(w, axis=1), np.cumsum(w * x, axis=1)
    inner = slice(least - 1, x.shape[1] - least)
    a, b = weight[:, inner], weight[:, -1:] - weight[:, inner]
    difference = total[:, inner] / a - (total[:, -1:] - total[:, inner]) / b
    return np.asarray(a * b / (a + b) * difference**2)
