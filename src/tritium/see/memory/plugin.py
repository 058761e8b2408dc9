"""The fixture `no_leaks`: a test whose tensors outlive it fails, and is told which op made them, at which line, how large.

Knows nothing of pytest itself: `tritium_pytest` is its door.
"""

from __future__ import annotations

from typing import Any

from tritium.see.memory.allocations import MemoryTracker
from tritium.see.memory.leaks import complaint


class NoLeaks(MemoryTracker):
    """What a test gets as `no_leaks`: the tracker of its memory. `no_leaks.keep(x)`: x is meant to stay."""

    def complaint(self, held: Any = None) -> str:
        """What leaked in words; "" where nothing did. `held`: what the session itself still holds."""
        found = self.leaks(held)
        self.stop()
        return complaint(found, self.name) if found else ""
