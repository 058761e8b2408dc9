"""Disable Python's garbage collector while something must not be interrupted by it.

Knows nothing of why. Several threads may disable it at once: it is enabled again when the last of them is done.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_waiting = 0  # number of blocks that have disabled it
_was_on = False


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection in the block and restore it afterwards."""
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
                gc.enable()
