"""The distribution of the tiles of a product over the CTAs of a launch."""

from __future__ import annotations

from typing import NamedTuple

PIECES = 4, 2  # that the tokens of a tile are cut into
UNEVEN = 48, 80, 96, 144, 160, 192  # tokens of tiles of two tensors that are worth trying
FEWEST = 32  # tokens of a piece: of fewer, weights are fetched and decoded for longer than they are multiplied
TENSORS = 2  # of a tile, at most
ALONG = 3  # the number for persistent CTAs, one on each multiprocessor, and share the tiles of the last round
MOST_PARTS = 8  # of such a tile: sums of more are added for longer than columns are saved


def tensors(tokens: int) -> tuple[int, ...]:
    """Return the tokens of a tile as those of its tensors: powers of two, the largest first."""
    return tuple(1 << i for i in reversed(range(tokens.bit_length())) if tokens >> i & 1)


def is_possible(tokens: int) -> bool:
    """Return True if a tile has no more tensors of tokens than the kernel takes, of at least 16 each."""
    parts = tensors(tokens)
    return 0 < len(parts) <= TENSORS and parts[-1] >= 16


class Spread(NamedTuple):
    """A distribution of tiles: programs, the CTAs; split, how many share the columns of each tile.

    Tiles behind the first `whole`, those of the last round, have either `pieces` of their tokens or `parts` that share
    their columns.
    """

    programs: int
    split: int
    pieces: int
    whole: int
    parts: int = 1


def spread(number: int, tiles: int, steps: int, tokens: int, processors: int) -> Spread:
    """Return how tiles of so many tokens and steps are distributed.

    number: 0 a CTA for each tile, below 0 so many for each, above 0 so many on each multiprocessor: these take tiles in
    turns, and where those of the last round are so few that every piece of them has a CTA of its own, each takes one
    piece. Tiles of two tensors have no pieces. ALONG: one on each multiprocessor, and as many as there are for each
    tile of the last round share its columns.
    """
    if number <= 0:
        split = max(min(-number, steps), 1)
        return Spread(tiles * split, split, 1, tiles)
    programs = min((1 if number == ALONG else number) * processors, tiles)
    left = tiles % programs
    if number == ALONG:
        parts = min(programs // left, MOST_PARTS, steps // 2) if left else 1
        return Spread(programs, 1, 1, tiles - left, parts) if parts > 1 else Spread(programs, 1, 1, tiles)
    if len(tensors(tokens)) > 1:
        left = 0
    pieces = next((p for p in PIECES if left and left * p <= programs and tokens // p >= FEWEST), 1)
    return Spread(programs, 1, pieces, tiles if pieces == 1 else tiles - left)
