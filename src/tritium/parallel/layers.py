"""Modules of which each rank holds a part: products, experts, the embedding, the output head. Their results are whole on every rank.

They exchange numbers when they are called, so they are called, not traced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium.interop import from_numpy
from tritium.nn.linear import QuantLinear
from tritium.nn.mixers import Experts, Router, gated
from tritium.nn.transformer import Head, RMSNorm
from tritium.parallel.group import Group
from tritium.tensor import Tensor


def gather(group: Group, x: Tensor, sizes: list[int]) -> Tensor:
    """Return the columns of all ranks side by side."""
    return x if group.ranks == 1 else from_numpy(group.gather(x.contiguous().numpy(), sizes), device="cpu")


class GatheredLinear(QuantLinear):
    """A product of which each rank has some rows, of an input of which each rank has some columns: the input is gathered, normalised
    where a sub-norm belongs before it, multiplied, and the result is gathered."""

    __slots__ = ("group", "layer", "read", "sub_norm", "written")

    def __init__(
        self, layer: QuantLinear, group: Group, read: list[int], written: list[int], sub_norm: RMSNorm | None
    ) -> None:
        for name in QuantLinear.__slots__:
            setattr(self, name, getattr(layer, name))
        self.layer, self.group, self.read, self.written, self.sub_norm = layer, group, read, written, sub_norm

    @property
    def in_features(self) -> int:
        """Return the columns of this rank."""
        return self.read[self.group.rank]

    def __call__(self, x: Tensor, /, *, out: Tensor | None = None) -> Tensor:
        """Return the whole result for this rank's columns of the input."""
        whole = gather(self.group, x, self.read)
        y = self.layer(whole if self.sub_norm is None else self.sub_norm(whole))
        return gather(self.group, y, self.written)

    forward = __call__


class GatheredMoE:
    """A mixture of experts of which each rank has some columns of every expert; see `nn.MoE`, whose sums these are."""

    __slots__ = ("activation", "down", "gate_up", "group", "limit", "read", "router", "written")

    def __init__(
        self, router: Router, gate_up: Experts, down: Experts, *, activation: str, limit: float | None, group: Group, read: list[int],
        written: list[int],
    ) -> None:  # fmt: skip
        self.router, self.gate_up, self.down, self.activation, self.limit = router, gate_up, down, activation, limit
        self.group, self.read, self.written = group, read, written

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for tokens x [..., hidden_size]."""
        experts, weights = self.router(x)
        both, size = self.gate_up(x, experts), self.read[self.group.rank]
        inner = gather(self.group, gated(both[..., :size], both[..., size:], self.activation, self.limit), self.read)
        y = self.down(inner, experts)
        total = y[..., 0, :] * weights[..., :1]
        for i in range(1, self.router.active):
            total = total + y[..., i, :] * weights[..., i : i + 1]
        return gather(self.group, total, self.written)


class MergedEmbedding:
    """Token embeddings of which each rank has some rows: a row is read by the rank that has it."""

    __slots__ = ("group", "inner", "rows")

    def __init__(self, inner: Any, rows: range, group: Group) -> None:
        self.inner, self.rows, self.group = inner, rows, group

    @property
    def weight(self) -> Any:
        """Return this rank's rows of the table."""
        return self.inner.weight

    def __call__(self, ids: Tensor) -> Tensor:
        indices = ids.numpy().astype(np.int64) - self.rows.start
        own = (indices >= 0) & (indices < len(self.rows))
        rows = self.inner(from_numpy(np.where(own, indices, 0), device="cpu")).numpy()
        return from_numpy(self.group.merge(np.where(own[..., None], rows, np.float32(0))), device="cpu")


class GatheredHead(Head):
    """An output head of which each rank has some words: the logits are gathered."""

    __slots__ = ("group", "written")

    def __init__(
        self, norm: RMSNorm, weight: Tensor | QuantLinear, multiplier: float, group: Group, written: list[int]
    ) -> None:
        super().__init__(norm, weight, multiplier)
        self.group, self.written = group, written

    def __call__(self, x: Tensor) -> Tensor:
        return gather(self.group, super().__call__(x), self.written)
