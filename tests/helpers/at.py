"""Many cases in one test: a failure tells at which one it happened; and whether all of them are wanted.

Knows nothing of what is tested. A case of its own for pytest costs more than most of those that are tested here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

EVERYTHING = os.environ.get("TRITIUM_TESTS") == "all"  # else a fixed part of the largest products, with every row


@contextmanager
def at(*where: object) -> Iterator[None]:
    """Add to a failure inside where it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at {', '.join(map(str, where))}")
        raise
