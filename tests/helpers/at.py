"""Many cases in one test: a failure tells at which one it happened; and whether all of them are wanted.

A case of its own for pytest costs more than most of those that are tested here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

AMOUNT = os.environ.get("TRITIUM_TESTS", "")  # how much is tried: "", "rest" or "all", as conftest says
if AMOUNT not in ("", "rest", "all"):
    raise ValueError(f"TRITIUM_TESTS={AMOUNT}: it is rest, all, or not set.")
EVERYTHING = AMOUNT == "all"  # else a fixed part of the largest products, with every row


def teams(batches: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of a batch and a number of threads: each of both, the largest batch once. TRITIUM_TESTS=all: each with each."""
    threads = (1, 2, 3, 7)
    if EVERYTHING:
        return list(product(batches, threads))
    return [(batches[0], 7), *((batch, threads[1 + i % 3]) for i, batch in enumerate(batches))]


@contextmanager
def at(*where: object) -> Iterator[None]:
    """Add to a failure inside where it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at {', '.join(map(str, where))}")
        raise
