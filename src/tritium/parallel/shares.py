"""The rows of each weight that a rank holds: its heads of attention, its columns of an MLP, its part of what is added to a layer.

Every matrix is divided by rows: a row of a product depends on no other, so its bits are those of one process, whatever norms,
rotations or scales the input has. Results are gathered before the next product reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritium.errors import ArgumentError
from tritium.families.description import Attention, DeltaNet, Dense, Description, Experts, Layer

Order = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Share:
    """One rank's part of a layer."""

    layer: Layer  # with its own heads and columns alone
    rows: dict[str, Order]  # of the products at each place
    plain: dict[str, Order]  # of plain numbers that are divided
    mixed: list[int]  # columns of each rank that its mixer computes
    gated: list[int]  # and of its MLP


def part(size: int, rank: int, ranks: int) -> range:
    """Return one rank's part of a number of rows."""
    return range(size * rank // ranks, size * (rank + 1) // ranks)


def parts(size: int, ranks: int) -> list[int]:
    """Return the sizes of all ranks' parts."""
    return [len(part(size, r, ranks)) for r in range(ranks)]


def heads_of(heads: int, kv_heads: int, rank: int, ranks: int) -> tuple[range, range]:
    """Return the heads of a rank and the KV heads that they read: whole groups, or a part of the heads of one KV head."""
    each = heads // kv_heads
    if ranks <= kv_heads:
        own = part(kv_heads, rank, ranks)
        return range(own.start * each, own.stop * each), own
    head = rank * kv_heads // ranks
    sharing = [r for r in range(ranks) if r * kv_heads // ranks == head]
    some = part(each, sharing.index(rank), len(sharing))
    return range(head * each + some.start, head * each + some.stop), range(head, head + 1)


def check(description: Description, hidden_size: int, vocab_size: int, ranks: int) -> None:
    """Raise where a model has too few heads, columns or words to give each rank some."""
    sizes = {"hidden_size": hidden_size, "vocab_size": vocab_size}
    for layer in description.layers:
        mixer, mlp = layer.mixer, layer.mlp
        key, heads = (
            ("num_attention_heads", mixer.heads)
            if isinstance(mixer, Attention)
            else ("linear_num_value_heads", mixer.value_heads)
        )
        sizes |= {key: heads, "intermediate_size": mlp.intermediate_size}
    name, least = min(sizes.items(), key=lambda item: item[1])
    if ranks > least:
        raise ArgumentError(
            f"parallel: {ranks} ranks were given, and the model has {name} {least}; use at most {least} ranks."
        )


def _elements(start: int, items: range, size: int) -> Order:
    """Return the rows of some items of `size` rows each, the first of which begins at `start`."""
    return np.arange(start + items.start * size, start + items.stop * size)


def _joined(pieces: Iterable[Order]) -> Order:
    return np.concatenate(list(pieces))


def share_layer(layer: Layer, hidden_size: int, rank: int, ranks: int) -> Share:
    """Return one rank's part of a layer."""
    hidden = _elements(0, part(hidden_size, rank, ranks), 1)
    rows, plain = {"out": hidden, "down": hidden}, dict[str, Order]()
    mixer: Attention | DeltaNet
    if isinstance(layer.mixer, Attention):
        mixer, mixed = _attention(layer.mixer, rows, rank, ranks)
    else:
        mixer, mixed = _delta_net(layer.mixer, rows, plain, rank, ranks)
    size = layer.mlp.intermediate_size
    own = part(size, rank, ranks)
    rows["gate_up"] = _joined(_elements(start, own, 1) for start in (0, size))
    mlp: Dense | Experts = replace(layer.mlp, intermediate_size=len(own))
    return Share(replace(layer, mixer=mixer, mlp=mlp), rows, plain, mixed, parts(size, ranks))


def _attention(a: Attention, rows: dict[str, Order], rank: int, ranks: int) -> tuple[Attention, list[int]]:
    heads, kv = heads_of(a.heads, a.kv_heads, rank, ranks)
    starts = [(0, heads), (a.heads, kv), (a.heads + a.kv_heads, kv)]
    if a.gate:
        starts.append((a.heads + 2 * a.kv_heads, heads))
    rows["qkv"] = _joined(_elements(start * a.head_dim, own, a.head_dim) for start, own in starts)
    counts = [len(heads_of(a.heads, a.kv_heads, r, ranks)[0]) for r in range(ranks)]
    return replace(a, heads=len(heads), kv_heads=len(kv)), [n * a.head_dim for n in counts]


def _delta_net(
    n: DeltaNet, rows: dict[str, Order], plain: dict[str, Order], rank: int, ranks: int
) -> tuple[DeltaNet, list[int]]:
    values, keys = heads_of(n.value_heads, n.key_heads, rank, ranks)
    width = n.key_heads * n.key_dim
    qkv = _joined(
        (_elements(0, keys, n.key_dim), _elements(width, keys, n.key_dim), _elements(2 * width, values, n.value_dim))
    )
    rows |= {"qkv": qkv, "z": _elements(0, values, n.value_dim)}
    plain |= {place: _elements(0, values, 1) for place in ("b", "a", "a_log", "dt_bias")} | {"conv": qkv}
    counts = [len(heads_of(n.value_heads, n.key_heads, r, ranks)[0]) for r in range(ranks)]
    return replace(n, value_heads=len(values), key_heads=len(keys)), [c * n.value_dim for c in counts]
