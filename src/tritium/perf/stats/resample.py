"""The base of the statistics: draws that follow from the data, Walsh averages, and the quantiles of three distributions.

The draws come from raw bits of PCG64 seeded by SHA-256 of the data: the same data produce the same draws with every
version of NumPy, on every machine.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from itertools import accumulate
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NORMAL = NormalDist()
LISTED = 1000  # values up to which all pairs are enumerated
EXACT_RANKS = 200  # values up to which the signed-rank distribution is counted, not approximated


def seed_of(*data: Floats) -> int:
    """Return the SHA-256 of the raw values and of their grouping."""
    digest = sha256()
    for values in data:
        digest.update(len(values).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(values, "<f8").tobytes())
    return int.from_bytes(digest.digest(), "little")


def bits(seed: int) -> np.random.PCG64:
    """Return a generator of random bits with this seed."""
    return np.random.PCG64(seed)


def draws(source: np.random.PCG64, rows: int, n: int) -> NDArray[np.intp]:
    """Return rows x n indices below n, drawn with replacement."""
    raw = source.random_raw(rows * n) >> np.uint64(32)
    return ((raw * np.uint64(n)) >> np.uint64(32)).astype(np.intp).reshape(rows, n)


@cache
def _pairs(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(n)


def walsh(x: Floats) -> Floats:
    """Return the averages of every two values and of each with itself, along the last axis, unsorted."""
    first, second = _pairs(x.shape[-1])
    return (x[..., first] + x[..., second]) / 2


def ranked_walsh(x: Floats, ranks: tuple[int, ...]) -> list[float]:
    """Return the Walsh averages of these ranks (from 0); by bisection instead of enumeration if they are many."""
    if len(x) <= LISTED:
        averages = np.partition(walsh(x), sorted(set(ranks)))
        return [float(averages[r]) for r in ranks]
    values, indices = np.sort(x), np.arange(len(x))

    def below(middle: float) -> int:
        """Return the number of pairs i <= j with x[i] + x[j] <= 2 middle."""
        return int(np.maximum(np.searchsorted(values, 2 * middle - values, "right") - indices, 0).sum())

    return [_bisect(below, r, float(values[0]), float(values[-1])) for r in ranks]


def ranked_differences(a: Floats, b: Floats, ranks: tuple[int, ...]) -> list[float]:
    """Return the differences b - a of these ranks (from 0), in the same way."""
    if len(a) * len(b) <= LISTED**2:
        differences = np.partition(np.subtract.outer(b, a).ravel(), sorted(set(ranks)))
        return [float(differences[r]) for r in ranks]
    values, others = np.sort(b), np.sort(a)

    def below(middle: float) -> int:
        """Return the number of differences b - a <= middle."""
        return int(np.searchsorted(values, others + middle, "right").sum())

    low, high = float(values[0] - others[-1]), float(values[-1] - others[0])
    return [_bisect(below, r, low, high) for r in ranks]


def _bisect(below: Callable[[float], int], rank: int, low: float, high: float) -> float:
    """Return the smallest number with more than `rank` values at or below it, between the smallest and the largest of them."""
    if below(low) > rank:
        return low
    while (middle := low + (high - low) / 2) not in (low, high):
        low, high = (low, middle) if below(middle) > rank else (middle, high)
    return high


@cache
def signed_rank_tail(n: int, share: float) -> int:
    """Return the most Walsh averages that may be cut at each end so that each tail has at most probability `share`."""
    pairs = n * (n + 1) // 2
    if n > EXACT_RANKS:
        sd = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(0, math.floor(pairs / 2 + NORMAL.inv_cdf(share) * sd))
    chance = np.zeros(pairs + 1)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        chance[rank:] += chance[:-rank].copy()
        chance /= 2
    return int(np.searchsorted(np.cumsum(chance), share * (1 + 1e-12), "right"))


@cache
def _rank_sums(n: int, m: int) -> list[Any]:
    """Return the chances of at most 0, 1, 2 … of the n x m differences being negative, without a shift."""
    # Ways of each Mann-Whitney count: the coefficients of a Gaussian binomial, in integers.
    ways: list[Any] = [0] * (n * m + 1)
    ways[0] = 1
    for k in range(1, n + 1):
        for index in range(n * m, m + k - 1, -1):
            ways[index] -= ways[index - m - k]
        for index in range(k, n * m + 1):
            ways[index] += ways[index - k]
    total = math.comb(n + m, n)
    return [below / total for below in accumulate(ways)]


def _are_many(n: int, m: int) -> bool:
    return n * m > EXACT_RANKS * EXACT_RANKS // 4


@cache
def rank_sum_tail(n: int, m: int, share: float) -> int:
    """Return the most of the n x m differences that may be cut at each end so that each tail has at most probability `share`."""
    if _are_many(n, m):
        return max(0, math.floor(n * m / 2 + NORMAL.inv_cdf(share) * math.sqrt(n * m * (n + m + 1) / 12)))
    return min(bisect_right(_rank_sums(n, m), share * (1 + 1e-12)), n * m)


def rank_sum_share(n: int, m: int, count: float) -> float:
    """Return the probability that at most so many of the n x m differences are negative, without a shift."""
    if _are_many(n, m):
        return NORMAL.cdf((count - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12))
    return float(_rank_sums(n, m)[math.floor(count)])


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    h = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            h *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return h


def beta_share(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def student_beyond(t: float, df: float) -> float:
    """Return the probability that Student's t is further from 0 than t, on either side."""
    return 1.0 if t == 0 else beta_share(df / 2, 0.5, df / (df + t * t))


@cache
def student_quantile(share: float, df: float) -> float:
    """Return the value that Student's t exceeds with probability 1 - share; share above one half."""
    low, high = 0.0, 1.0
    while student_beyond(high, df) / 2 > 1 - share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if student_beyond(middle, df) / 2 > 1 - share:
            low = middle
        else:
            high = middle
    return (low + high) / 2
