"""What a call does and how a person finds it again: its work, and the words it is filtered by.

Knows nothing of measuring.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What one call does: arithmetic, bytes that must be moved at least once, and items a person counts."""

    flops: int = 0
    read: int = 0
    written: int = 0
    integer: bool = False  # the arithmetic is int8 products
    items: float = 1
    item: str = "call"  # "token", "element" …

    @property
    def moved(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class Context:
    """What was run, in the words a person filters by."""

    operation: str
    shape: tuple[int, ...] = ()
    precision: str = "f32"
    device: str = "cpu"
    batch: int | None = None
    sequence_length: int | None = None
    parameters: int | None = None
    optimisation: str = ""  # "avx512vnni", "portable", "numpy", "torch.compile" …
    threads: int = 1
    transfer: str = ""  # "included": inputs go to the device and the result comes back inside the clock
