"""Disable Python's garbage collector while something must not be interrupted by it.

Several threads may disable it at once: it is enabled again when the last of them is done.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_waiting = 0  # number of blocks that have disabled it
_was_on = False
_MANY = 10_000  # objects that are worth keeping from a collection


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection in the block and restore it afterwards.

    A block that leaves many objects behind, such as the graph of a long function, leaves them as old ones: enabled again, the collector
    would visit each of them at once, a tenth of the time it took to make them."""
    global _waiting, _was_on
    with _lock:
        if not _waiting:
            _was_on = gc.isenabled()
            gc.disable()
        _waiting += 1
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            if not _waiting and _was_on:
                if (
                    gc.get_count()[0] > _MANY and not gc.get_freeze_count()
                ):  # objects that the program froze stay frozen
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
