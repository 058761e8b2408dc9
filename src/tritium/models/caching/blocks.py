"""The blocks of a paged KV cache: which are free, and which each slot has.

A sequence takes a block when it grows into it, so memory is taken by what sequences hold and not by the longest there may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tritium.errors import OutOfMemoryError

BLOCK = 64  # tokens of a block: what kernels for one token a sequence take together

Numbers = np.ndarray[Any, np.dtype[np.int32]]


def blocks_for(tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    return -(-tokens // BLOCK)


class Blocks:
    """The blocks of all layers of a session: `count` of them, for slots of at most `capacity` tokens."""

    def __init__(self, slots: int, capacity: int, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))  # the last is taken first
        self._table = np.zeros((slots, blocks_for(capacity)), np.int32)
        self._held = [0] * slots

    @property
    def free(self) -> int:
        """Return how many blocks nobody has."""
        return len(self._free)

    @property
    def columns(self) -> int:
        """Return how many blocks a slot has at most."""
        return self._table.shape[1]

    def room(self, slot: int) -> int:
        """Return how many tokens the blocks of a slot hold."""
        return self._held[slot] * BLOCK

    def missing(self, ends: Mapping[int, int]) -> int:
        """Return how many blocks slots lack to hold so many tokens each."""
        held = self._held
        short = [
            (slot, end) for slot, end in ends.items() if end > held[slot] * BLOCK
        ]  # mostly none: a step looks at all slots
        return sum(blocks_for(end) - held[slot] for slot, end in short)

    def hold(self, ends: Mapping[int, int]) -> None:
        """Give slots the blocks to hold so many tokens each; raise, and give none, where there are too few."""
        missing = self.missing(ends)
        if not missing:
            return
        if missing > self.free:
            raise OutOfMemoryError(
                f"The KV cache is full: of blocks of {BLOCK} tokens {missing} more are needed, and {self.free} of {self.count} are free. "
                f"End or truncate other sequences, or make a session with a larger pool (now pool={self.count * BLOCK} tokens)."
            )
        for slot, end in ends.items():
            for i in range(self._held[slot], blocks_for(end)):
                self._table[slot, i] = self._free.pop()
                self._held[slot] = i + 1

    def release(self, slot: int, tokens: int) -> None:
        """Take back the blocks of a slot that its first tokens do not need."""
        count = blocks_for(tokens)
        for i in range(self._held[slot] - 1, count - 1, -1):
            self._free.append(int(self._table[slot, i]))
        self._held[slot] = min(self._held[slot], count)

    def rows(self, slots: Any) -> Numbers:
        """Return the blocks of slots [n, columns]; what is behind those that a slot has is not meant."""
        return self._table[slots]
