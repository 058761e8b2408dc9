"""Token embeddings from a table that stays quantised: rows are unpacked when they are looked up.

table = tt.nn.BitLinear(tt.quant.ternary(w, group=128))     # w: [vocab_size, hidden_size]
embedding = tt.nn.QuantEmbedding(table)
x = embedding(ids)                                          # f32 [..., hidden_size]
logits = table(x)                                           # a tied head: the same bytes
"""

from __future__ import annotations

from typing import Any

from tritium import ops
from tritium.arguments import checked_class
from tritium.nn.linear import QuantLinear
from tritium.tensor import Tensor


@checked_class
class QuantEmbedding:
    """Token embeddings: the row of a quantised table for each token, integers * scale, in f32, times a multiplier.

    The table is a QuantLinear, so that a tied output head shares its memory.
    """

    __slots__ = ("multiplier", "weight")

    def __init__(self, weight: QuantLinear, multiplier: float = 1.0) -> None:
        self.weight, self.multiplier = weight, multiplier

    def __call__(self, ids: Tensor) -> Tensor:
        table = self.weight.weight
        rows = ops.take_rows(table.data, table.scale, ids, table.group)
        return rows if self.multiplier == 1 else rows * self.multiplier

    def to(self, device: Any) -> QuantEmbedding:
        """Return the same module on another device."""
        return QuantEmbedding(self.weight.to(device), self.multiplier)

    def __repr__(self) -> str:
        rows, columns = self.weight.weight.shape
        return f"QuantEmbedding({rows} x {columns}, {self.weight.weight.scheme} {self.weight.weight.data.dtype})"
