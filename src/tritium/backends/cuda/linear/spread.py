"""How the tiles of a product are cut and dealt to the programs of a launch. Knows nothing of torch, of triton or of choices."""

from __future__ import annotations

PIECES = 4, 2  # that the tokens of a tile are cut into
UNEVEN = 48, 80, 96, 144, 160, 192  # tokens of tiles of two tensors that are worth trying
FEWEST = 32  # tokens of a piece: of fewer, weights are fetched and decoded for longer than they are multiplied


def tensors(tokens: int) -> tuple[int, int]:
    """The tokens of a tile as those of its two tensors: the largest power of two, and the rest, which may be none."""
    widest = 1 << (tokens.bit_length() - 1)
    return widest, tokens - widest


def is_possible(tokens: int) -> bool:
    """Return True if a tile has one or two tensors of tokens, both powers of two and at least 16."""
    _, rest = tensors(tokens)
    return not rest or (rest >= 16 and rest == tensors(rest)[0])


def work(n: int, m: int, rows: int, tokens: int, number: int, processors: int) -> float:
    """How many sums one multiprocessor has to make, one after another, of tiles that are dealt by such a number, not below 0."""
    tiles = -(-n // rows) * -(-m // tokens)
    _, _, pieces, whole = spread(number, tiles, 1, tokens, processors)
    return rows * tokens * (-(-whole // processors) + (tiles > whole) / pieces)


def spread(number: int, tiles: int, steps: int, tokens: int, processors: int) -> tuple[int, int, int, int]:
    """(programs, how many share the columns of a tile, pieces that the tokens of those of the last round are cut into, tiles that
    are not cut so), where a tile is so many tokens and steps.

    number: 0 a program for each tile, below 0 so many for each, above 0 so many on each multiprocessor: these take tiles in turns,
    and where those of the last round are so few that every piece of them has a program of its own, each takes one piece. Tiles
    of two tensors have no pieces.
    """
    if number <= 0:
        split = max(min(-number, steps), 1)
        return tiles * split, split, 1, tiles
    programs = min(number * processors, tiles)
    left = 0 if tensors(tokens)[1] else tiles % programs
    pieces = next((p for p in PIECES if left and left * p <= programs and tokens // p >= FEWEST), 1)
    return programs, 1, pieces, tiles if pieces == 1 else tiles - left
