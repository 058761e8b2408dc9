"""A value that was not measured: one of nine reasons, and a sentence.

Unknown is never 0 and never NaN: it is this.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritium.errors import ArgumentError
from tritium.perf.words import nearest

REASONS = (
    "no_device", "no_driver", "no_permission", "unsupported", "window_too_short", "counter_stuck", "counter_reset",
    "shared_device", "virtual_machine",
)  # fmt: skip


@dataclass(frozen=True)
class Absent:
    """A value that was not measured."""

    code: str  # one of REASONS
    says: str  # for people
    source: str = ""  # the sensor or counter that would have told
    group: str = ""  # "cpu", "gpu", "machine": whose energy it would have been

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise ArgumentError(
                f"Absent: {self.code!r} is no reason.{nearest(self.code, REASONS)} {', '.join(REASONS)}."
            )

    @property
    def reason(self) -> str:
        return f"{self.code}: {self.says}"
