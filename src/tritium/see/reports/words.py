"""Numbers in sentences: nouns and verbs that agree with their count, shares, threads.

Knows nothing of results.
"""

from __future__ import annotations

from tritium.perf.records.environment import Hard


def many(count: int, noun: str) -> str:
    """1 case, 2 cases, 3 processes."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:,} {noun}{ending}"


def threads_text(hard: Hard) -> str:
    """How many threads measured; nothing where nobody tells."""
    return many(hard.threads, "thread") if hard.threads else ""


def verb(count: int, one: str, more: str) -> str:
    """1 is, 2 are; 1 has, 2 have."""
    return one if count == 1 else more


def percent(part: float, places: int = 0) -> str:
    """A share as tables write it: 9 %, <1 %."""
    least = 0.01 / 10**places
    return f"{100 * part:.{places}f} %" if part >= least or not part else f"<{100 * least:g} %"
