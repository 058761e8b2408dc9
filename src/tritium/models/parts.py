"""The weights that a description needs: their names in files, their shapes, and which of them are one product.

Knows nothing of tensors or files: `weights` makes modules of them, `prepacked` knows by them what belongs into a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tritium.families.config import Config
from tritium.families.description import Attention, Dense, Description, Layer

EMBEDDING, NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"


class Part(NamedTuple):
    """A matrix of a file, and which of its rows belong to a product: all, or a half of each head."""

    name: str
    rows: int  # in the file
    heads: int = 0  # whose rows are halved; 0: all rows are taken
    second: bool = False  # the second half

    @property
    def order(self) -> np.ndarray[tuple[int], np.dtype[np.intp]] | None:
        """Return the rows that are taken; None for all."""
        if not self.heads:
            return None
        return np.arange(self.rows).reshape(self.heads, 2, -1)[:, int(self.second)].reshape(-1)

    @property
    def taken(self) -> int:
        return self.rows // 2 if self.heads else self.rows


class Product(NamedTuple):
    """Matrices of one input that are multiplied as one, under the name that prepacked files have for it."""

    name: str
    parts: tuple[Part, ...]
    columns: int
    norm: str | None = None  # a norm of the input

    @property
    def rows(self) -> int:
        return sum(part.taken for part in self.parts)


class Vector(NamedTuple):
    """A vector of a file, such as the weight of a norm."""

    name: str
    size: int


class LayerParts(NamedTuple):
    """The weights of one layer by their place in it. A place with several products is one input with a norm for each."""

    products: dict[str, tuple[Product, ...]]
    vectors: dict[str, Vector]


def layer_parts(layer: Layer, description: Description, hidden_size: int) -> LayerParts:
    """Return the weights of a layer; names are those within the layer."""
    norms = {
        "attention_norm": layer.norms.mixer, "mlp_norm": layer.norms.mlp,
        "attention_post_norm": layer.norms.mixer_post, "mlp_post_norm": layer.norms.mlp_post,
    }  # fmt: skip
    vectors = {place: Vector(name, hidden_size) for place, name in norms.items() if name is not None}
    products: dict[str, Product] = {}
    if isinstance(layer.mixer, Attention):
        _attention(layer.mixer, hidden_size, products, vectors)
    if isinstance(layer.mlp, Dense):
        _dense(layer.mlp, hidden_size, products, vectors)
    return LayerParts({place: _split(p, description.projection_norms) for place, p in products.items()}, vectors)


def _attention(a: Attention, hidden_size: int, products: dict[str, Product], vectors: dict[str, Vector]) -> None:
    rows, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    q = Part("self_attn.q_proj", rows * (1 + a.gate), a.heads if a.gate else 0)
    parts = (q, Part("self_attn.k_proj", kv), Part("self_attn.v_proj", kv))
    products["qkv"] = Product("self_attn.qkv", (*parts, q._replace(second=True)) if a.gate else parts, hidden_size)
    products["out"] = Product("self_attn.o", (Part("self_attn.o_proj", hidden_size),), rows)
    if a.sub_norm:
        vectors["attention_sub_norm"] = Vector("self_attn.attn_sub_norm", rows)
    if a.qk_norm:
        vectors["q_norm"] = Vector("self_attn.q_norm", a.head_dim)
        vectors["k_norm"] = Vector("self_attn.k_norm", a.head_dim)


def _dense(m: Dense, hidden_size: int, products: dict[str, Product], vectors: dict[str, Vector]) -> None:
    size = m.intermediate_size
    products["gate_up"] = Product("mlp.gate_up", (Part("mlp.gate_proj", size), Part("mlp.up_proj", size)), hidden_size)
    products["down"] = Product("mlp.down", (Part("mlp.down_proj", hidden_size),), size)
    if m.sub_norm:
        vectors["mlp_sub_norm"] = Vector("mlp.ffn_sub_norm", size)


def _split(product: Product, norms: bool) -> tuple[Product, ...]:
    """Return a product as it is, or one for each matrix with a norm of its own."""
    if not norms:
        return (product,)
    return tuple(Product(part.name, (part,), product.columns, f"{part.name}.norm") for part in product.parts)


def shapes_in_files(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names, in Hugging Face's files, and the shapes of all weights that a configuration has a place for."""
    table = (config.vocab_size, config.hidden_size)
    yield from ((f"{EMBEDDING}.weight", table), (f"{NORM}.weight", table[1:]), (f"{HEAD}.weight", table))
    for i, layer in enumerate(config.description.layers):
        parts = layer_parts(layer, config.description, config.hidden_size)
        for product in (p for products in parts.products.values() for p in products):
            for part in dict.fromkeys((part.name, part.rows) for part in product.parts):
                yield f"model.layers.{i}.{part[0]}.weight", (part[1], product.columns)
            if product.norm is not None:
                yield f"model.layers.{i}.{product.norm}.weight", (product.columns,)
        yield from ((f"model.layers.{i}.{v.name}.weight", (v.size,)) for v in parts.vectors.values())


def names_in_prepacked(config: Config) -> Iterator[str]:
    """Yield the names, in prepacked files, of all weights that a configuration has a place for."""
    yield from (EMBEDDING, NORM, HEAD)
    for i, layer in enumerate(config.description.layers):
        parts = layer_parts(layer, config.description, config.hidden_size)
        for product in (p for products in parts.products.values() for p in products):
            yield f"model.layers.{i}.{product.name}"
            if product.norm is not None:
                yield f"model.layers.{i}.{product.norm}"
        yield from (f"model.layers.{i}.{vector.name}" for vector in parts.vectors.values())
