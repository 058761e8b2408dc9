"""How the tiles of a product are dealt to the programs of a launch. Knows nothing of torch, of triton or of choices."""

from __future__ import annotations

HANDED = 512  # columns that are multiplied in about the time in which the sums of a part of a tile are written and read


def spread(number: int, tiles: int, steps: int, columns: int, processors: int) -> tuple[int, int, int]:
    """(programs, parts that a tile is split into, tiles that are not split), where a tile is steps of so many columns.

    number: 0 a program for each tile, below 0 so many for each, above 0 so many on each multiprocessor: these take tiles in turns,
    and those of the last round, which are fewer than programs, are split where that ends it sooner.
    """
    if number <= 0:
        split = max(min(-number, steps), 1)
        return tiles * split, split, tiles if split == 1 else 0
    programs = min(number * processors, tiles)
    left = tiles % programs
    split = _split(programs // left, steps, columns) if left else 1
    return programs, split, tiles if split == 1 else tiles - left


def _split(most: int, steps: int, columns: int) -> int:
    """How many programs, up to so many, share each tile of the last round. More of them multiply for a shorter time, but what
    each found is written and read again."""

    def cost(parts: int) -> int:
        return -(-steps // parts) * columns + (parts * HANDED if parts > 1 else 0)

    return min(range(1, min(most, steps) + 1), key=cost)
