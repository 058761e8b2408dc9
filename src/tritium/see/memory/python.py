"""Python's own objects in addition to Tritium's tensors: tracemalloc over the same code.

Knows nothing of tensors: NumPy's arrays are in tracemalloc's figures, Tritium's pool is not.
"""

from __future__ import annotations

import os
import tracemalloc

from tritium.see.memory.records import PythonSite, PythonUse

MOST = 20  # lines of code that are recorded


class Traced:
    """A tracemalloc session: started unless one is running, and stopped only if started here."""

    def __init__(self) -> None:
        self._ours = False
        self._before: tracemalloc.Snapshot | None = None
        self._result: PythonUse | None = None

    def start(self) -> None:
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            tracemalloc.start()
        else:
            tracemalloc.reset_peak()
        self._before = tracemalloc.take_snapshot()

    def stop(self) -> None:
        self._result = self.use()
        self._before = None
        if self._ours:
            tracemalloc.stop()

    def use(self) -> PythonUse | None:
        """Return the growth of Python's memory since the start, the largest lines first; None before the start."""
        if self._before is None or not tracemalloc.is_tracing():
            return self._result
        current, peak = tracemalloc.get_traced_memory()
        ours = tracemalloc.Filter(False, os.path.dirname(tracemalloc.__file__) + "/tracemalloc.py")
        compared = (
            tracemalloc.take_snapshot().filter_traces([ours]).compare_to(self._before.filter_traces([ours]), "lineno")
        )
        grown = sorted((s for s in compared if s.size_diff > 0), key=lambda s: -s.size_diff)[:MOST]
        sites = (
            PythonSite(f"{s.traceback[0].filename}:{s.traceback[0].lineno}", s.size_diff, s.count_diff) for s in grown
        )
        return PythonUse(current, peak, tuple(sites))
