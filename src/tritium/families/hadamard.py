"""Weights folded with a signed Hadamard transform, as Ternary-Bonsai-2 has them: whose input is rotated before the product.

The fields are written by the reader of GGUF's `prism.hadamard` keys; no config.json has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritium.families.fields import read_count, read_flag, refused

FIELDS = frozenset(("hadamard_block", "hadamard_signs", "hadamard_names", "hadamard_inverse", "hadamard_grouped"))


@dataclass(frozen=True)
class Hadamard:
    """A rotation H (s * x) of inputs in blocks, and which weights it is folded into."""

    block: int
    signs: tuple[
        tuple[int, str], ...
    ]  # for each width the signs, 1 for minus, as hexadecimal digits; none: all are plus
    names: frozenset[str]  # of folded weights
    inverse: bool  # rows of the embedding are rotated and have to be rotated back
    grouped: bool  # columns of a delta net's output projection are in the order of key heads

    def signs_of(self, width: int) -> list[int] | None:
        """Return the signs, 1 and -1, of an input of this width; None where all are 1."""
        if not self.signs:
            return None
        digits = dict(self.signs).get(width)
        if digits is None:
            raise refused("hadamard_signs", [w for w, _ in self.signs], f"signs for inputs of {width}")
        bits = bin(int(digits, 16) | 1 << width)[3:]
        return [-1 if bit == "1" else 1 for bit in bits]


def read_hadamard(own: Mapping[str, Any]) -> Hadamard | None:
    """Return the rotation of a configuration; None where it has none."""
    if own.get("hadamard_block") is None:
        return None
    block = read_count(own, "hadamard_block")
    signs, names = own.get("hadamard_signs") or (), own.get("hadamard_names") or ()
    if block & (block - 1):
        raise refused("hadamard_block", block, "a power of two")
    if not isinstance(signs, tuple) or not all(_is_signs(entry) for entry in signs):
        raise refused("hadamard_signs", type(signs).__name__, "pairs of a width and hexadecimal digits")
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise refused("hadamard_names", type(names).__name__, "names of weights")
    inverse, grouped = read_flag(own, "hadamard_inverse"), read_flag(own, "hadamard_grouped")
    return Hadamard(block, tuple((w, d) for w, d in signs), frozenset(names), inverse, grouped)


def _is_signs(entry: Any) -> bool:
    if not isinstance(entry, tuple) or len(entry) != 2:
        return False
    width, digits = entry
    whole = isinstance(width, int) and not isinstance(width, bool) and width > 0 and isinstance(digits, str)
    return whole and len(digits) <= width // 4 + 1 and all(c in "0123456789abcdef" for c in digits) and bool(digits)
