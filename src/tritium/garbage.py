"""Python's collection of garbage, put off while something must not be interrupted by it.

Knows nothing of why. Several threads may ask at once: it goes on when the last of them is done.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_waiting = 0  # who has put it off
_was_on = False


@contextmanager
def no_collections() -> Iterator[None]:
    """Meanwhile nothing is collected; afterwards it is as before."""
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
