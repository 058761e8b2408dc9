"""The fixture `no_leaks`: a test whose tensors outlive it fails with the op, the line and the size of each.

Does not import pytest: `tritium_pytest` registers the fixture.
"""

from __future__ import annotations

from typing import Any

from tritium.see.memory.allocations import MemoryTracker
from tritium.see.memory.leaks import complaint


class NoLeaks(MemoryTracker):
    """The value of the fixture `no_leaks`: the tracker of a test's memory. `no_leaks.keep(x)`: x is meant to stay."""

    def complaint(self, held: Any = None) -> str:
        """Return the error text for the leaks; "" without any. `held`: objects the pytest session still holds."""
        leaks = self.leaks(held)
        self.stop()
        return complaint(leaks, self.name) if leaks else ""
