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
