"""The certified head of one session: logits within bounds while bounds are enough, the whole head where they are not.

One thread at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium.models.bounds import Bounded
from tritium.nn.certified import TOGETHER, Bounds, CertifiedHead

Array = np.ndarray[Any, np.dtype[Any]]
LONGEST_REST = 64  # steps after which bounds are tried again, where they were not enough several times


class Certified:
    """The certified head of a session: bounds where they are likely enough, else it rests and has the whole head read."""

    def __init__(self, head: CertifiedHead) -> None:
        self.head = head
        self._memory: list[Array] = []  # of bounds, written over by each step
        self._rest = self._failures = self._count = self._fallen = 0

    def rests(self, count: int) -> bool:
        """Return True if the whole head is to be read for the next step of `count` sequences.

        It is after a step whose bounds were not enough for half of the sequences: for 1, 2, 4, … steps, until they are again."""
        if self._count:
            self._failures = self._failures + 1 if 2 * self._fallen >= self._count else 0
            self._rest = min(1 << self._failures >> 1, LONGEST_REST)
            self._count = self._fallen = 0
        if self._rest:
            self._rest -= 1
            self.head.count(resting=count)
            return True
        return False

    def bounded(self, both: Array, logits: Array, lengths: Array, count: int) -> list[Array | Bounded]:
        """Return for each of the first `count` sequences its logits within bounds; all of them where nothing bounds them."""
        x, self._count, known = both[:count], count, dict[int, Array]()
        bounds = self.head.bounds(lengths, logits[:count], self._memory)
        return [self._row(x, i, b, known) for i, b in enumerate(bounds)]

    def decided(self, rows: Array) -> None:
        """Record how many rows could decide each token of a step that a kernel decided: where they were many, it read the whole head."""
        self._count = rows.size
        self._fallen = self.head.count_read(rows.tolist())

    def _row(self, x: Array, i: int, bounds: Bounds | None, known: dict[int, Array]) -> Array | Bounded:
        def read(ids: Array) -> Array:
            self.head.count(rows=ids.size)
            return self.head.read(x[i], ids)

        def whole() -> Array:
            first = i // TOGETHER * TOGETHER
            if first not in known:
                known[first] = self.head.whole(x[first : first + TOGETHER])
            self._fallen += 1
            self.head.count(whole=1, decided=-1)
            return known[first][i - first]

        self.head.count(decided=1)
        return whole() if bounds is None else Bounded(bounds.centre, bounds, read, whole)
