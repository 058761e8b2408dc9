"""Words of the harness's messages.

Knows nothing else of the package: a worker may run in an older revision, whose helpers lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean x?" for the closest known word, else nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def bytes_text(count: float) -> str:
    """Return a number of bytes in three digits with the largest unit that is not above it."""
    power = next((p for p in (3, 2, 1) if count >= 1 << 10 * p), 0)
    value, unit = count / (1 << 10 * power), ("B", "KiB", "MiB", "GiB")[power]
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
