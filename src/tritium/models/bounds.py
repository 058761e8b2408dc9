"""The logits that can decide the next token, where each is known only by two bounds; and one draw by Gumbel-max.

A token is decided by few of a vocabulary's logits: those that could be the largest, among the k largest, or the winner of a draw.
`docs/certified.md` has the proofs.

A draw with temperature T takes the token of the largest (logit - best) / T + g, where g is the token's Gumbel number: made from a
uniform number that depends on the seed of the draw and on the token alone, so that any subset of the tokens can be asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tritium import dtype as dt, ops
from tritium.nn.certified import MANY

Array = np.ndarray[Any, np.dtype[Any]]
RARE = 6.0  # a Gumbel number above this is rare: 1 in 400
SMALL = math.exp(-RARE) * (1 + 1e-9)  # uniform numbers of all that are
ROUNDING = 2.0**-20  # more than f32 sums of two numbers lose of these
SLACK = 1e-6  # more than rounding can make of a difference of two keys


class Distances(Protocol):
    """Distances of logits from their numbers, computed for those that are asked for."""

    @property
    def distance(self) -> Array:
        """Return all, f32 [vocab]."""

    @property
    def most(self) -> float:
        """Return a number that none exceeds."""

    def some(self, ids: Array) -> Array:
        """Return those of some tokens."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """A row of logits of which each is only known to be within a distance of a number, f32 [vocab]; all are finite.

    It is to be used before the next step: what it is made of may be written over then."""

    centre: Array
    distances: Array | Distances
    read: Callable[[Array], Array]  # the logits of some tokens as they are
    whole: Callable[[], Array]  # all of them

    @property
    def distance(self) -> Array:
        """Return how far from its number each logit may be."""
        return self.distances if isinstance(self.distances, np.ndarray) else self.distances.distance

    @property
    def size(self) -> int:
        """Return the number of logits."""
        return self.centre.size

    @cached_property
    def lower(self) -> Array:
        """Return what each logit is at least."""
        return np.asarray(self.centre - self.distance)

    @cached_property
    def upper(self) -> Array:
        """Return what each logit is at most."""
        return np.asarray(self.centre + self.distance)

    def largest(self) -> tuple[int, float]:
        """Return the token of the largest logit, the lowest among equals, and that logit."""
        ids = self._rivals(int(self.centre.argmax()))
        if is_many(ids, self.size):
            row = self.whole()
            return int(row.argmax()), float(row.max())
        logits = self.read(ids)
        first = int(logits.argmax())
        return int(ids[first]), float(logits[first])

    def _rivals(self, token: int) -> Array:
        """Return all tokens whose logit may reach what that of a token is at least."""
        if isinstance(self.distances, np.ndarray):
            return np.flatnonzero(self.upper >= self.centre[token] - self.distances[token])
        least = self.centre[token] - self.distances.some(np.array([token]))[0]
        # Of few tokens distances are needed: those that would reach it with the largest of all, rounding included.
        most = self.distances.most
        floor = float(least) - most - ROUNDING * (abs(float(least)) + most)
        ids = np.flatnonzero(self.centre >= np.nextafter(np.float32(floor), np.float32(-np.inf)))
        return np.asarray(ids[self.centre[ids] + self.distances.some(ids) >= least])


def is_many(ids: Array, count: int) -> bool:
    """Return True if the whole head is read rather than these rows of it."""
    return ids.size * MANY > count


def may_be_largest(lower: Array, upper: Array) -> Array:
    """Return every token that may have the largest logit, or share it."""
    return np.flatnonzero(upper >= lower.max())


def may_be_among(lower: Array, upper: Array, k: int) -> Array:
    """Return every token that may be among the k of the largest logits."""
    if k >= upper.size:
        return np.arange(upper.size)
    return np.flatnonzero(upper >= np.partition(lower, lower.size - k)[lower.size - k])


def may_be_drawn(lower: Array, upper: Array, temperature: float, uniform: Array, margin: float = -math.inf) -> Array:
    """Return every token that may be drawn, and all that may have the largest logit, which a draw is relative to.

    margin: tokens whose logit is less than the largest plus this cannot be drawn."""
    best = may_be_largest(lower, upper)
    if margin == -math.inf:
        return np.union1d(best, _reach(lower, upper, temperature, uniform, None))
    low, high = float(lower.max()), float(upper.max())
    # Differences of two bounds are rounded as those of the logits will be, and rounding keeps order.
    ids = np.flatnonzero(upper.astype(np.float64) - low >= margin)
    sure = lower[ids].astype(np.float64) - high >= margin
    return np.union1d(best, ids[_reach(lower[ids], upper[ids], temperature, uniform[ids], sure)])


def _reach(lower: Array, upper: Array, temperature: float, uniform: Array, sure: Array | None) -> Array:
    """Return the positions of all whose key may reach the best key of those that take part for sure (None: all do)."""
    if sure is not None and not sure.any():
        return np.arange(lower.size)
    base = float(lower.max())
    # Two keys that are likely large: of the largest logit and of the largest Gumbel number.
    low, random = (lower, uniform) if sure is None else (np.where(sure, lower, -np.inf), np.where(sure, uniform, 1.0))
    two = [low.argmax(), random.argmin()]
    with np.errstate(over="ignore"):
        some = float((_scaled(lower[two], base, temperature) + gumbel(uniform[two])).max())
        # Any other either has a logit near the largest or a rare Gumbel number: -log1p(-u) >= u.
        near = np.float32(base + (some - RARE - SLACK) * temperature)
        ids = np.flatnonzero((upper >= np.nextafter(near, np.float32(-np.inf))) | (uniform <= SMALL))
        noise = gumbel(uniform[ids])
        keys = _scaled(lower[ids], base, temperature) + noise
        if sure is not None:
            keys = keys[sure[ids]]
        least = max(some, float(keys.max(initial=-np.inf))) - SLACK
        return ids[_scaled(upper[ids], base, temperature) + noise >= least]


def draw(logits: Array, temperature: float, uniform: Array) -> int:
    """Return the position of the largest key, the first among equals. The largest logit must be finite."""
    ids = _reach(logits, logits, temperature, uniform, None)
    best = float(logits.max())
    with np.errstate(over="ignore"):
        keys = _scaled(logits[ids], best, temperature) + gumbel(uniform[ids])
    near = ids[keys >= keys.max() - SLACK]
    if near.size == 1:
        return int(near[0])
    # NumPy may compute the same logarithm in two ways, by its place in an array; keys that are compared are made in one.
    exact = [_key(float(logits[i]), best, temperature, float(uniform[i])) for i in near]
    return int(near[exact.index(max(exact))])


def _key(logit: float, best: float, temperature: float, uniform: float) -> float:
    difference = logit - best
    scaled = difference / temperature if temperature >= 1e-300 or not difference else -math.inf
    return scaled - math.log(-math.log1p(-uniform))


def _scaled(logits: Array, base: float, temperature: float) -> Array:
    return np.asarray((logits.astype(np.float64) - base) / temperature)


def uniforms(seed: int, count: int) -> Array:
    """Return a uniform number in (0, 1) for each token: the same on every machine."""
    return ops.random_uniform((count,), seed=seed, dtype=dt.f64, device="cpu").numpy() + 2.0**-54


def gumbel(uniform: Array) -> Array:
    """Return Gumbel numbers; the smaller the uniform number, the larger."""
    return np.asarray(-np.log(-np.log1p(-uniform)))
