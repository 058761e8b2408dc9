"""Guesses by lookup: what followed the last tokens the last time they occurred in the sequence."""

from __future__ import annotations

from collections.abc import Sequence

SIZES = (4, 2)  # last tokens that are looked up, most first


class Lookup:
    """The n-grams of one sequence, which only grows, and where each was last followed by another token."""

    def __init__(self) -> None:
        self._positions: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in SIZES)
        self._done = 0  # tokens whose n-grams before them are known

    def guess(self, tokens: Sequence[int], most: int) -> tuple[list[int], int]:
        """Return up to `most` tokens that may follow, and how many of the last tokens they followed before; 0 where none is known.

        Where the earlier occurrence reaches up to the end, the sequence repeats itself, and so does the guess."""
        self._learn(tokens)
        for size, positions in zip(SIZES, self._positions, strict=True):
            position = positions.get(tuple(tokens[-size:]))
            if position is not None and len(tokens) >= size:
                period = len(tokens) - position
                if period >= most:
                    return list(tokens[position : position + most]), size
                cycle = list(tokens[position:])
                return (cycle * (most // period + 1))[:most], size
        return [], 0

    def _learn(self, tokens: Sequence[int]) -> None:
        stop = len(tokens)
        for size, positions in zip(SIZES, self._positions, strict=True):
            start = max(self._done, size)
            if start < stop:  # in one call: there is no Python frame for each token
                shifted = (tokens[start - size + k : stop - size + k] for k in range(size))
                positions.update(zip(zip(*shifted, strict=True), range(start, stop), strict=True))
        self._done = max(self._done, stop)
