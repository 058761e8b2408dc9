"""Made-up measurements of known truth: the log ratios of two arms under several kinds of noise.

A value is ln(new / old) of one round. Both arms have noise of their own in each process and in each round; the machine
has noise in time, which both arms meet in the order in which they happen to run. `sd` is that of a generation's value
(the mean of its rounds) under the default plan of three rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = tuple[int, ...]
Unit = Callable[[Generator, Shape], Floats]  # noise of mean 0 and sd 1

ROUNDS = 3


def normal(rng: Generator, shape: Shape) -> Floats:
    return rng.standard_normal(shape)


def log_normal(rng: Generator, shape: Shape) -> Floats:
    """A long tail to the slow side."""
    s = 0.8
    return (np.exp(s * rng.standard_normal(shape)) - np.exp(s * s / 2)) / np.sqrt(np.expm1(s * s) * np.exp(s * s))


def bimodal(rng: Generator, shape: Shape) -> Floats:
    """Three of ten are slow, by some four times the noise around them."""
    gap, around = 2.0, 0.4
    return (gap * (rng.random(shape) < 0.3) - 0.3 * gap + around * rng.standard_normal(shape)) / np.sqrt(
        0.21 * gap**2 + around**2
    )


@dataclass(frozen=True)
class Family:
    """How each arm's processes and rounds vary, and how the machine does in time, in multiples of sd."""

    name: str
    old: Unit = normal
    new: Unit = normal
    drift: float = 0.0  # from the first generation to the last
    wander: float = 0.0  # sd of what follows from the moment before
    rho: float = 0.9
    moods: float = 0.0  # how much of an arm's own luck each process has from the one before


FAMILIES = (
    Family("normal"),
    Family("log-normal", log_normal, log_normal),
    Family("bimodal", bimodal, bimodal),
    Family("drifting", drift=20.0),
    Family("autocorrelated", wander=2.0),
)
UNLIKE = Family("unlike arms", normal, log_normal)
MOODY = Family("arms with moods", moods=0.5)


def log_ratios(
    rng: Generator,
    family: Family,
    tests: int,
    plan: tuple[int, int],
    sd: float,
    effect: float = 0.0,
    share: float = 0.25,
) -> Floats:
    """tests x generations x rounds; `effect` is a logarithm, `share` the part of a generation's variance its rounds make."""
    generations, rounds = plan
    whole, parts = (tests, generations, 1), (tests, generations, rounds)
    arm = sd / np.sqrt(2)
    between, within = arm * np.sqrt(1 - share), arm * np.sqrt(share * ROUNDS)
    ratio = effect + between * _lasting(family.new(rng, whole) - family.old(rng, whole), family.moods)
    ratio = ratio + within * (family.new(rng, parts) - family.old(rng, parts))
    if family.drift or family.wander:
        ratio = ratio + sd * _machine(rng, family, parts)
    return ratio


def _lasting(values: Floats, moods: float) -> Floats:
    """The same spread, but each generation has a share of the one before."""
    for g in range(1, values.shape[1] if moods else 0):
        values[:, g] = moods * values[:, g - 1] + np.sqrt(1 - moods**2) * values[:, g]
    return values


def _machine(rng: Generator, family: Family, shape: Shape) -> Floats:
    """New less old of what the machine did in the two moments of a round, whose order is drawn."""
    tests, generations, rounds = shape
    moments = generations * rounds * 2
    speed = np.linspace(0, family.drift, moments) + np.zeros((tests, 1))
    if family.wander:
        step = family.wander * np.sqrt(1 - family.rho**2)
        now = family.wander * rng.standard_normal(tests)
        for k in range(moments):
            now = family.rho * now + step * rng.standard_normal(tests)
            speed[:, k] += now
    pairs = speed.reshape(tests, generations, rounds, 2)
    first = rng.random((tests, generations, rounds)) < 0.5
    return np.where(first, 1.0, -1.0) * (pairs[..., 0] - pairs[..., 1])
