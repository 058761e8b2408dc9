"""The number of tokens to guess: from the measured cost of steps, and from how often guesses came true.

A step of n rows takes about as long as the next larger program; its time is measured whenever one runs, so the curve is that of this
machine, this model and this moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOW = 9  # times of a size that are remembered
STALE = 2048  # steps of other sizes after which the times of one are forgotten, so that it is tried again
FRESH = 2  # times that show what a size costs; the first, which may compile, is not among them
GAIN = 1.03  # tokens a second that a larger step must promise beside the smallest
FADE = 0.9  # of earlier guesses when a new one is counted
FIRST = 0.5  # share of guesses that come true, before any did


class Costs:
    """The cost curve: seconds of a step by the size of its program."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._size_of = [next(s for s in self.sizes if s >= rows) for rows in range(self.sizes[-1] + 1)]
        self._times: dict[int, deque[float]] = {}
        self._seen: dict[int, int] = {}  # the number of the last step of each size
        self._steps = self._checked = 0  # steps so far, and those when stale times were last forgotten

    def size(self, rows: int) -> int:
        """Return the smallest size that has so many rows."""
        return self._size_of[min(rows, self.sizes[-1])]

    def record(self, rows: int, seconds: float, steps: int = 1) -> None:
        """Count the time of a step, the last of `steps` since the one before. The first of each size is left out: it may have
        compiled."""
        size = self._size_of[rows]
        self._steps += steps
        times = self._times.get(size)
        if times is not None:
            times.append(seconds)
        elif size in self._seen:
            self._times[size] = deque([seconds], maxlen=WINDOW)
        self._seen[size] = self._steps
        if self._steps - self._checked >= STALE:
            self._checked = self._steps
            for other in [s for s, last in self._seen.items() if self._steps - last >= STALE]:
                self._times.pop(other, None)

    def known(self, size: int) -> bool:
        """Return True if the size was measured often enough to be judged."""
        return len(self._times.get(size, ())) >= FRESH

    def cost(self, size: int) -> float:
        """Return the seconds of a step: the least of the last ones, since what comes in between only adds; of an unknown size that
        of the next smaller known one, so that it is tried where that could pay."""
        for smaller in reversed(self.sizes[: self.sizes.index(size) + 1]):
            if smaller in self._times:
                return min(self._times[smaller])
        return 0.0

    @property
    def curve(self) -> dict[int, float]:
        """Return the seconds of a step for every size that was measured."""
        return {size: min(times) for size, times in sorted(self._times.items())}


@dataclass
class Trust:
    """The share of guesses of one kind that came true lately: of the first guess of each run of them, and of each after one that did."""

    hits: float = FIRST
    trials: float = 1.0

    @property
    def share(self) -> float:
        return self.hits / self.trials

    def count(self, hits: int, misses: int) -> None:
        """Count the guesses of one step; those after a miss are unknown and not counted."""
        trials = hits + misses
        if trials:
            fade = FADE**trials
            self.hits, self.trials = self.hits * fade + hits, self.trials * fade + trials


class Offer(NamedTuple):
    """The guesses that one sequence can offer: how many, and how likely each is after those before it."""

    guesses: int
    share: float


def choose(offers: Sequence[Offer], costs: Costs) -> list[int]:
    """Return how many guesses of each sequence to verify in the next step: those that promise the most tokens a second."""
    few = len(offers)
    base = costs.size(few)
    gains = sorted(
        ((offer.share**j, i) for i, offer in enumerate(offers) for j in range(1, offer.guesses + 1)), reverse=True
    )
    if not gains:
        return [0] * few
    first = costs.cost(base) or 1.0
    best, best_rate = min(base - few, len(gains)), 0.0
    for size in costs.sizes:
        if size < base:
            continue
        guesses = min(size - few, len(gains))
        expected = few + sum(gain for gain, _ in gains[:guesses])
        rate = expected / (costs.cost(size) or first)
        if rate > best_rate * (GAIN if best_rate else 1):
            best, best_rate = guesses, rate
        if guesses == len(gains) or not costs.known(size):
            break  # a larger size is judged when this one is known
    counts = [0] * few
    for _, i in gains[:best]:
        counts[i] += 1
    return counts


@dataclass
class SpeculationCounts:
    """Sums over the life of a speculator."""

    steps: int = 0  # in which something was guessed
    guessed: int = 0  # tokens that were verified
    accepted: int = 0  # of those, tokens that were picked
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)  # guessed and accepted, of lookup and draft
