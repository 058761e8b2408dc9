"""The weights that a description needs: their names in files, their shapes, and which of them are one product.

Knows nothing of tensors or files: `weights` makes modules of them, `prepacked` knows by them what belongs into a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tritium.families.config import Config
from tritium.families.description import Attention, DeltaNet, Dense, Description, Experts, Layer

EMBEDDING, NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
COPY, COPY_ERROR, COPY_NORM = f"{HEAD}.copy", f"{HEAD}.copy_error", f"{HEAD}.copy_norm"  # of a certified head

Order = np.ndarray[Any, np.dtype[np.intp]]


class Part(NamedTuple):
    """A matrix of a file, and which of its rows belong to a product, in which order."""

    name: str
    rows: int  # in the file
    order: Order | None = None  # of the rows that are taken; None: all as they are

    @property
    def selected_rows(self) -> int:
        """Return the number of rows that belong to the product."""
        return self.rows if self.order is None else len(self.order)


class Product(NamedTuple):
    """Matrices of one input that are multiplied as one, under the name that prepacked files have for it."""

    name: str
    parts: tuple[Part, ...]
    columns: int
    norm: str | None = None  # a norm of the input
    experts: int = 0  # each with such matrices; 0: there is but one of each

    @property
    def rows(self) -> int:
        return sum(part.selected_rows for part in self.parts)


class Plain(NamedTuple):
    """Plain numbers of a file, such as the weight of a norm or the matrix of a router."""

    name: str
    shape: tuple[int, ...]  # in the file
    suffix: str = ".weight"  # of its name in files
    order: Order | None = None  # of the rows that are taken; None: all as they are


@dataclass(frozen=True)
class LayerParts:
    """The weights of one layer by their place in it. A place with several products is one input with a norm for each."""

    products: dict[str, tuple[Product, ...]] = field(default_factory=dict)
    plain: dict[str, Plain] = field(default_factory=dict)

    def add(self, place: str, product: Product, norms: bool = False) -> None:
        """Add a product; with norms, one for each of its matrices with a norm of its own."""
        single = tuple(Product(p.name, (p,), product.columns, f"{p.name}.norm") for p in product.parts)
        self.products[place] = single if norms else (product,)


def layer_parts(layer: Layer, description: Description, hidden_size: int) -> LayerParts:
    """Return the weights of a layer; names are those within the layer."""
    norms = {
        "attention_norm": layer.norms.mixer, "mlp_norm": layer.norms.mlp,
        "attention_post_norm": layer.norms.mixer_post, "mlp_post_norm": layer.norms.mlp_post,
    }  # fmt: skip
    parts = LayerParts()
    parts.plain.update({place: Plain(name, (hidden_size,)) for place, name in norms.items() if name is not None})
    if isinstance(layer.mixer, Attention):
        _attention(layer.mixer, hidden_size, parts, description.projection_norms)
    else:
        _delta_net(layer.mixer, hidden_size, parts)
    if isinstance(layer.mlp, Dense):
        _dense(layer.mlp, hidden_size, parts, description.projection_norms)
    else:
        _experts(layer.mlp, hidden_size, parts)
    return parts


def take_rows(products: tuple[Product, ...], rows: Order) -> tuple[Product, ...]:
    """Return products with some of their rows, counted over all of them."""
    selection, start = [], 0
    for product in products:
        matrices = []
        for part in product.parts:
            own = rows[(rows >= start) & (rows < start + part.selected_rows)] - start
            start += part.selected_rows
            matrices.append(part._replace(order=own if part.order is None else part.order[own]))
        selection.append(product._replace(parts=tuple(matrices)))
    return tuple(selection)


def _attention(a: Attention, hidden_size: int, parts: LayerParts, norms: bool) -> None:
    rows, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    matrices = [Part("self_attn.q_proj", rows), Part("self_attn.k_proj", kv), Part("self_attn.v_proj", kv)]
    if a.gate:  # rows of each head are followed by those of its gate
        halves = np.arange(2 * rows).reshape(a.heads, 2, a.head_dim)
        q, gate = (Part("self_attn.q_proj", 2 * rows, halves[:, i].reshape(-1)) for i in (0, 1))
        matrices = [q, *matrices[1:], gate]
    parts.add("qkv", Product("self_attn.qkv", tuple(matrices), hidden_size), norms)
    parts.add("out", Product("self_attn.o", (Part("self_attn.o_proj", hidden_size),), rows), norms)
    if a.sub_norm:
        parts.plain["attention_sub_norm"] = Plain("self_attn.attn_sub_norm", (rows,))
    if a.qk_norm:
        parts.plain["q_norm"] = Plain("self_attn.q_norm", (a.head_dim,))
        parts.plain["k_norm"] = Plain("self_attn.k_norm", (a.head_dim,))


def _delta_net(d: DeltaNet, hidden_size: int, parts: LayerParts) -> None:
    keys, values = d.key_heads * d.key_dim, d.value_heads * d.value_dim
    name = "linear_attn"
    parts.add("qkv", Product(f"{name}.qkv", (Part(f"{name}.in_proj_qkv", 2 * keys + values),), hidden_size))
    parts.add("z", Product(f"{name}.z", (Part(f"{name}.in_proj_z", values),), hidden_size))
    parts.add("out", Product(f"{name}.o", (Part(f"{name}.out_proj", hidden_size),), values))
    parts.plain.update({
        "b": Plain(f"{name}.in_proj_b", (d.value_heads, hidden_size)),
        "a": Plain(f"{name}.in_proj_a", (d.value_heads, hidden_size)),
        "conv": Plain(f"{name}.conv1d", (2 * keys + values, 1, d.kernel)),
        "a_log": Plain(f"{name}.A_log", (d.value_heads,), ""),
        "dt_bias": Plain(f"{name}.dt_bias", (d.value_heads,), ""),
        "norm": Plain(f"{name}.norm", (d.value_dim,)),
    })  # fmt: skip


def _dense(m: Dense, hidden_size: int, parts: LayerParts, norms: bool) -> None:
    size = m.intermediate_size
    matrices = Part("mlp.gate_proj", size), Part("mlp.up_proj", size)
    parts.add("gate_up", Product("mlp.gate_up", matrices, hidden_size), norms)
    parts.add("down", Product("mlp.down", (Part("mlp.down_proj", hidden_size),), size), norms)
    if m.sub_norm:
        parts.plain["mlp_sub_norm"] = Plain("mlp.ffn_sub_norm", (size,))


def _experts(m: Experts, hidden_size: int, parts: LayerParts) -> None:
    size, name = m.intermediate_size, "mlp.experts"
    matrices = Part(f"{name}.gate_proj", size), Part(f"{name}.up_proj", size)
    parts.add("gate_up", Product(f"{name}.gate_up", matrices, hidden_size, experts=m.count))
    parts.add("down", Product(f"{name}.down", (Part(f"{name}.down_proj", hidden_size),), size, experts=m.count))
    parts.plain["router"] = Plain("mlp.gate", (m.count, hidden_size))


def of_expert(name: str, expert: int) -> str:
    """Return the name of one expert's matrix: mlp.experts.3.up_proj for mlp.experts.up_proj."""
    return name.replace("mlp.experts.", f"mlp.experts.{expert}.")


def shapes_in_files(config: Config, *, stacked: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names, in Hugging Face's files, and the shapes of all weights that a configuration has a place for.

    stacked: the experts of a layer are one tensor, as in GGUF."""
    table = (config.vocab_size, config.hidden_size)
    yield from ((f"{EMBEDDING}.weight", table), (f"{NORM}.weight", table[1:]), (f"{HEAD}.weight", table))
    for i, layer in enumerate(config.description.layers):
        parts = layer_parts(layer, config.description, config.hidden_size)
        for product in (p for products in parts.products.values() for p in products):
            for name, rows in dict.fromkeys((part.name, part.rows) for part in product.parts):
                if stacked and product.experts:
                    yield f"model.layers.{i}.{name}.weight", (product.experts, rows, product.columns)
                    continue
                names = [of_expert(name, e) for e in range(product.experts)] or [name]
                yield from ((f"model.layers.{i}.{n}.weight", (rows, product.columns)) for n in names)
            if product.norm is not None:
                yield f"model.layers.{i}.{product.norm}.weight", (product.columns,)
        yield from ((f"model.layers.{i}.{p.name}{p.suffix}", p.shape) for p in parts.plain.values())


def names_in_prepacked(config: Config) -> Iterator[str]:
    """Yield the names, in prepacked files, of all weights that a configuration has a place for."""
    yield from (EMBEDDING, NORM, HEAD, COPY, COPY_ERROR, COPY_NORM)
    for i, layer in enumerate(config.description.layers):
        parts = layer_parts(layer, config.description, config.hidden_size)
        for product in (p for products in parts.products.values() for p in products):
            yield f"model.layers.{i}.{product.name}"
            if product.norm is not None:
                yield f"model.layers.{i}.{product.norm}"
        yield from (f"model.layers.{i}.{p.name}" for p in parts.plain.values())
