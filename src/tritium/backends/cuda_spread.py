"""How the tiles of a product are dealt to the programs of a launch. Knows nothing of torch, of triton or of choices."""

from __future__ import annotations

PIECES = 4, 2  # that the tokens of a tile are cut into
FEWEST = 32  # tokens of a piece: of fewer, weights are fetched and decoded for longer than they are multiplied


def spread(number: int, tiles: int, steps: int, tokens: int, processors: int) -> tuple[int, int, int, int]:
    """(programs, how many share the columns of a tile, pieces that the tokens of those of the last round are cut into, tiles that
    are not cut so), where a tile is so many tokens and steps.

    number: 0 a program for each tile, below 0 so many for each, above 0 so many on each multiprocessor: these take tiles in turns,
    and where those of the last round are so few that every piece of them has a program of its own, each takes one piece.
    """
    if number <= 0:
        split = max(min(-number, steps), 1)
        return tiles * split, split, 1, tiles
    programs = min(number * processors, tiles)
    left = tiles % programs
    pieces = next((p for p in PIECES if left and left * p <= programs and tokens // p >= FEWEST), 1)
    return programs, 1, pieces, tiles if pieces == 1 else tiles - left
