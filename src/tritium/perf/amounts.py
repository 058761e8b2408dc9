"""Amounts as text: times, bytes, joules, counts and rates, three digits with the unit that suits; shares; counted nouns."""

from __future__ import annotations

from tritium.machine.facts import (
    TIMES as TIMES,
    bytes_text as bytes_text,
    scaled as scaled,
    seconds_text as seconds_text,
)

UNITS = ("B", "FLOP", "OP")


def count_text(n: float) -> str:
    return scaled(n, ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")))


def joules_text(j: float) -> str:
    return scaled(j, ((1, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ")))


def rate_text(per_s: float, item: str) -> str:
    """12.3 GB/s; 1.2 k tokens/s."""
    unit = item if item in UNITS else f" {item}s"
    letters = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
    return scaled(per_s, tuple((one, f"{letter}{unit}/s".strip()) for one, letter in letters))


def many(count: int, noun: str) -> str:
    """1 case, 2 cases, 3 processes."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:,} {noun}{ending}"


def verb(count: int, one: str, more: str) -> str:
    """1 is, 2 are; 1 has, 2 have."""
    return one if count == 1 else more


def percent(part: float, places: int = 0) -> str:
    """A share as tables write it: 9 %, <1 %."""
    least = 0.01 / 10**places
    return f"{100 * part:.{places}f} %" if part >= least or not part else f"<{100 * least:g} %"
