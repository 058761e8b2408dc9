"""LoRA beside the products of a network: each sequence of a batch has its own adapter, or none.

Where sequence i chose adapter n, a product is y + scaling B_n (A_n x). The A of all adapters are one matrix; of its result each
sequence keeps the columns of its adapter, and the others are zeros, which add nothing: so numbers do not depend on which other
adapters there are, nor on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from tritium import ops
from tritium.nn.transformer import Block, Linear
from tritium.tensor import Tensor

PLACES = {
    "qkv": "attention",
    "out": "attention",
    "gate_up": "mlp",
    "down": "mlp",
}  # where a block has the product of a place


class Factor(NamedTuple):
    """B of one matrix [rows, rank], and which columns of A x it takes, counted within its adapter."""

    weight: Tensor
    first: int
    last: int


class Delta(NamedTuple):
    """The share of one adapter in a product: for each matrix a factor, or the number of rows that it leaves alone."""

    number: int  # from 1 on; 0 is none
    scaling: float
    first: int  # its columns of A x
    last: int
    rows: tuple[Factor | int, ...]


class Adaptation(NamedTuple):
    """All adapters of one product: their A [ranks, columns] as one matrix, and what each adds."""

    down: Tensor
    deltas: tuple[Delta, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all matrices."""
        factors = [f for d in self.deltas for f in d.rows if isinstance(f, Factor)]
        return self.down.nbytes + sum(f.weight.nbytes for f in factors)

    def to(self, device: Any) -> Adaptation:
        """Return the same on another device."""
        moved = [
            d._replace(
                rows=tuple(
                    f._replace(weight=f.weight.to(device=device)) if isinstance(f, Factor) else f for f in d.rows
                )
            )
            for d in self.deltas
        ]
        return Adaptation(self.down.to(device=device), tuple(moved))


class AdaptedLinear:
    """A product with the adapters of the sequences that it is called for."""

    __slots__ = ("adaptation", "chosen", "layer")

    def __init__(self, layer: Linear, adaptation: Adaptation, chosen: Tensor) -> None:
        self.layer, self.adaptation, self.chosen = layer, adaptation, chosen

    @property
    def in_features(self) -> int:
        return self.layer.in_features

    @property
    def out_features(self) -> int:
        return self.layer.out_features

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product of tokens x [batch, tokens, columns]."""
        y, inner = self.layer(x), ops.linear(x, self.adaptation.down)
        chosen = self.chosen.reshape(-1, 1, 1)
        for delta in self.adaptation.deltas:
            own = inner[..., delta.first : delta.last] * delta.scaling
            y = y + self._added(ops.where(chosen == delta.number, own, 0.0), delta)
        return y

    def _added(self, own: Tensor, delta: Delta) -> Tensor:
        parts = [
            ops.linear(own[..., f.first : f.last], f.weight)
            if isinstance(f, Factor)
            else ops.full((*own.shape[:-1], f), 0.0, device=self.adaptation.down.device)
            for f in delta.rows
        ]
        return parts[0] if len(parts) == 1 else ops.concat(*parts, axis=-1)


class Adapters(NamedTuple):
    """The adapters of a network by name; number n is that of `names[n - 1]`."""

    names: tuple[str, ...]
    layers: tuple[Mapping[str, Adaptation], ...]  # by the place of the product in each layer

    def bind(self, blocks: Sequence[Block], chosen: Tensor) -> list[Block]:
        """Return the layers with the adapters that sequences chose, by number [batch]."""
        return [_bound(block, places, chosen) for block, places in zip(blocks, self.layers, strict=True)]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all matrices."""
        return sum(a.nbytes for places in self.layers for a in places.values())

    def to(self, device: Any) -> Adapters:
        """Return the same on another device."""
        return self._replace(layers=tuple({k: a.to(device) for k, a in places.items()} for places in self.layers))


def _bound(block: Block, places: Mapping[str, Adaptation], chosen: Tensor) -> Block:
    """Return a layer whose products have their adapters; its weights are the same memory."""
    modules = {name: copy(getattr(block, name)) for name in {PLACES[place] for place in places}}
    for place, adaptation in places.items():
        module = modules[PLACES[place]]
        setattr(module, place, AdaptedLinear(getattr(module, place), adaptation, chosen))
    return block._replace(**modules)
