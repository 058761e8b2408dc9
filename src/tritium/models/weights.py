"""From the entries of a model file to the parts of a network: names, shapes, joined projections, tiles for this device.

Knows nothing of containers (io gives entries) or of how the parts are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from tritium import backends, dtype as dt, ops, quant
from tritium.backends import Device
from tritium.errors import ArgumentError
from tritium.escape import visible
from tritium.families import FAMILIES, description as d
from tritium.families.config import Config
from tritium.families.description import Layer
from tritium.families.rope import for_context
from tritium.functions import asarray
from tritium.interop import from_numpy
from tritium.io import Entry, Ternary
from tritium.io.dequantize import READABLE, dequantize
from tritium.io.model.entry import FLOATS as STORED
from tritium.io.reader import fault, forget
from tritium.io.ternary import rows_at_a_time
from tritium.models.parts import LayerParts, Part, Product, layer_parts, shapes_in_files
from tritium.nn.embedding import QuantEmbedding
from tritium.nn.linear import BitLinear, QuantLinear, unpacked
from tritium.nn.rope import RoPE
from tritium.nn.transformer import MLP, Attention, Block, Embedding, Head, Parallel, RMSNorm
from tritium.tensor import Tensor
from tritium.threads import get_num_threads

HEADS = ("f32", "f16", "bf16", "int8")
ROPE_TENSORS = frozenset(("rope_freqs", "rope_factors_long", "rope_factors_short"))  # read with the configuration
FLOATS = {"f32": dt.f32, "f16": dt.f16, "bf16": dt.bf16}


class Network(NamedTuple):
    """All parts of a decoder."""

    embedding: Embedding | QuantEmbedding
    ropes: tuple[RoPE, ...]  # the different position embeddings of its layers
    blocks: tuple[Block, ...]
    head: Head
    parts: tuple[LayerParts, ...]  # the names of each layer's weights

    @property
    def rope(self) -> RoPE:
        """Return the position embedding of the layers; the first where they have several."""
        return self.ropes[0]

    @property
    def device(self) -> Device:
        return self.embedding.weight.device

    def to(self, device: Any) -> Network:
        """Return the same on another device, its weights made ready there; a head that is the embedding stays so."""
        if backends.device(device) is self.device:
            return self
        embedding = self.embedding.to(device)
        tied = self.head.weight is self.embedding.weight
        table = embedding.weight if tied else self.head.weight.to(device)
        head = Head(self.head.norm.to(device), table, self.head.multiplier)
        ropes = tuple(rope.to(device) for rope in self.ropes)
        return Network(embedding, ropes, tuple(b.to(device) for b in self.blocks), head, self.parts)


class Source(NamedTuple):
    """Where parts come from: one call for each kind of weight. Names of products are those in prepacked files."""

    linear: Callable[
        [str, tuple[Part, ...], int, int, Tensor | None], QuantLinear
    ]  # (name, parts, rows, columns, norm)
    vector: Callable[[str, int], Tensor]
    embedding: Callable[[], Tensor | QuantLinear]
    head: Callable[[], Tensor | QuantLinear]


def assemble(config: Config, source: Source, context: int | None = None) -> Network:
    """Return the network of a configuration, its weights read through `source`; layers are read side by side.

    context: the most tokens it will be used with, where these are fewer than it was made for; LongRoPE depends on it."""
    description = config.description
    context = config.context if context is None else context
    ropes = tuple(RoPE(r.dims, r.theta, scaling=for_context(r.scaling, context)) for r in description.ropes)

    parts = tuple(layer_parts(layer, description, config.hidden_size) for layer in description.layers)

    def block(i: int) -> Block:
        return _Builder(source, config, f"model.layers.{i}", parts[i]).block(description.layers[i], ropes)

    with ThreadPoolExecutor(get_num_threads()) as pool:
        blocks = tuple(pool.map(block, range(config.layers)))
    last = RMSNorm(source.vector("model.norm.weight", config.hidden_size), config.eps)
    table, multiplier = source.embedding(), description.embedding_multiplier
    kind = QuantEmbedding if isinstance(table, QuantLinear) else Embedding
    embedding = kind(table, multiplier)  # type: ignore[arg-type]
    return Network(embedding, ropes, blocks, Head(last, source.head(), description.logits_multiplier), parts)


def placed(block: Block) -> dict[str, Any]:
    """Return the modules of a layer by their places, as `layer_parts` names them."""
    attention, mlp = block.attention, block.mlp
    return {
        "qkv": attention.qkv, "out": attention.out, "gate_up": mlp.gate_up, "down": mlp.down,
        "attention_norm": block.attention_norm, "mlp_norm": block.mlp_norm,
        "attention_post_norm": block.attention_post_norm, "mlp_post_norm": block.mlp_post_norm,
        "attention_sub_norm": attention.sub_norm, "mlp_sub_norm": mlp.sub_norm,
        "q_norm": attention.q_norm, "k_norm": attention.k_norm,
    }  # fmt: skip


class _Builder(NamedTuple):
    """Makes the modules of one layer from its weights."""

    source: Source
    config: Config
    prefix: str
    parts: LayerParts

    def block(self, layer: Layer, ropes: tuple[RoPE, ...]) -> Block:
        """Return the layer."""
        mixer, mlp = layer.mixer, layer.mlp
        assert isinstance(mixer, d.Attention)
        assert isinstance(mlp, d.Dense)
        rope = None if mixer.rope is None else self.config.description.ropes.index(mixer.rope)
        attention = Attention(
            self.linear("qkv"), self._one("out"), None if rope is None else ropes[rope], heads=mixer.heads,
            kv_heads=mixer.kv_heads, sub_norm=self.norm("attention_sub_norm"), head_dim=mixer.head_dim,
            q_norm=self.norm("q_norm"), k_norm=self.norm("k_norm"), gate=mixer.gate, window=mixer.window, scale=mixer.scale,
        )  # fmt: skip
        dense = MLP(self.linear("gate_up"), self._one("down"), mlp.activation, self.norm("mlp_sub_norm"), mlp.clamp)
        norms = {place: self.norm(place) for place in self.parts.vectors if place in Block._fields}
        residual = self.config.description.residual_multiplier
        return Block(attention=attention, mlp=dense, residual=residual, rope=rope, **norms)  # type: ignore[arg-type]

    def norm(self, place: str) -> RMSNorm | None:
        """Return a norm of the layer; None where it has none there."""
        vector = self.parts.vectors.get(place)
        if vector is None:
            return None
        return RMSNorm(self.source.vector(f"{self.prefix}.{vector.name}.weight", vector.size), self.config.eps)

    def linear(self, place: str) -> QuantLinear | Parallel:
        """Return the product of the layer at a place, or several of one input."""
        products = [self._product(product) for product in self.parts.products[place]]
        return products[0] if len(products) == 1 else Parallel(*products)

    def _one(self, place: str) -> QuantLinear:
        (product,) = self.parts.products[place]
        return self._product(product)

    def _product(self, p: Product) -> QuantLinear:
        norm = None if p.norm is None else self.source.vector(f"{self.prefix}.{p.norm}.weight", p.columns)
        parts = tuple(part._replace(name=f"{self.prefix}.{part.name}.weight") for part in p.parts)
        return self.source.linear(f"{self.prefix}.{p.name}", parts, p.rows, p.columns, norm)


def from_entries(
    entries: Mapping[str, Entry], config: Config, *, head: str | None, storage: dt.DType, copied: bool = False
) -> Source:
    """Weights of a file in any of the formats that `io` reads; `copied`: none of them on the memory of the file."""
    used, skipped = {name for name, _ in shapes_in_files(config)}, FAMILIES[config.family].skips
    unknown = sorted(
        n
        for n in set(entries) - used - ROPE_TENSORS
        if not n.endswith("rotary_emb.inv_freq") and not n.startswith(skipped)
    )
    if unknown:
        listed = ", ".join(visible(n) for n in unknown[:4])
        raise fault(
            "the model", f"{len(unknown)} weights that its configuration has no place for: {listed}", "none",
            "It is computed differently from what its configuration says, so it is not supported.",
        )  # fmt: skip

    def entry(name: str, shape: tuple[int, ...]) -> Entry:
        found = entries.get(name)
        if found is None:
            raise fault("the model", f"no weight {name!r}", f"one of shape {list(shape)}", "The file is incomplete.")
        if found.shape != shape:
            raise fault(found.where, f"shape {list(found.shape)}", f"{list(shape)} by the configuration")
        return found

    def linear(name: str, parts: tuple[Part, ...], rows: int, columns: int, norm: Tensor | None) -> BitLinear:
        stored = [entry(part.name, (part.rows, columns)) for part in parts]
        ternary = [_rows(e.ternary(), part.order) for e, part in zip(stored, parts, strict=True)]
        layer = BitLinear(join(ternary, storage), norm=norm, eps=config.eps)
        for e in stored:
            forget(e.raw())
        return layer

    @cache  # a tied head is the embedding itself, not a second one
    def table(name: str, unquantised: dt.DType = dt.f16) -> Tensor | QuantLinear:
        found = entry(name, (config.vocab_size, config.hidden_size))
        if found.role == "ternary":
            return BitLinear(join([found.ternary()], storage))
        return _floats(found.array(), copied) if found.stored in STORED else _unquantised(found, unquantised)

    def out() -> Tensor | QuantLinear:
        tied = "lm_head.weight" not in entries
        if tied and not config.tied:
            raise fault("the model", "no weight 'lm_head.weight'", "one, since tie_word_embeddings is false")
        name = "model.embed_tokens.weight" if tied else "lm_head.weight"
        exact = head == "f32" and name in entries and entries[name].stored in READABLE
        return make_head(table(name, dt.f32) if exact else table(name), head)

    def vector(name: str, size: int) -> Tensor:
        stored = entry(name, (size,))
        numbers = stored.float32()
        return asarray(numbers + np.float32(stored.shift) if stored.shift else numbers, device="cpu")

    return Source(linear, vector, lambda: table("model.embed_tokens.weight"), out)


def _rows(t: Ternary, order: np.ndarray[Any, Any] | None) -> Ternary:
    """Return some of the rows of a matrix; all for None."""
    if order is None:
        return t
    return Ternary(t.codes[order], (len(order), t.shape[1]), t.scale[order] if t.scale.ndim else t.scale, t.group)


def join(parts: list[Ternary], storage: dt.DType) -> quant.Quantized:
    """Projections of one input as one matrix; a scale for each row where theirs differ."""
    columns = parts[0].shape[1]
    group = parts[0].group
    if any(p.group != group for p in parts):  # a part may have fewer scales than the others: they are repeated
        group = gcd(*(p.group or columns for p in parts))
        spread = [p.scales(group) for p in parts]
        parts = [Ternary(p.codes, p.shape, np.ascontiguousarray(s), group) for p, s in zip(parts, spread, strict=True)]
    codes = np.concatenate([p.codes for p in parts]) if len(parts) > 1 else parts[0].codes
    data = unpacked(codes, (codes.shape[0], columns))
    scale = parts[0].scale
    if len(parts) > 1:
        rows = [p.scale if p.scale.ndim else np.full(p.shape[0], p.scale, np.float32) for p in parts]
        scale = np.concatenate(rows)
    made = quant.Quantized("ternary", data, asarray(scale, device="cpu"), None, group)
    return made if storage is dt.tern2 else replace(made, data=ops.repack(made.data, storage))


def _floats(a: np.ndarray[Any, Any], copied: bool) -> Tensor:
    """The numbers of a file where they are, or a copy; f64 as f32."""
    return from_numpy(a.astype(np.float32) if a.dtype == np.float64 else a.copy() if copied else a, device="cpu")


def _unquantised(entry: Entry, kind: dt.DType) -> Tensor:
    """A table that ggml quantised, a few rows at a time: as f16 it is half as large as its exact numbers in f32."""
    if entry.stored not in READABLE:
        raise fault(
            entry.where, f"a table of type {entry.stored}", f"F32, F16, BF16, {', '.join(READABLE)}",
            "Quantise the original again with such embeddings: llama-quantize --token-embedding-type f16 (and "
            "--output-tensor-type f16).",
        )  # fmt: skip
    n, k = entry.shape
    raw, out = entry.raw(), np.empty((n, k), kind.numpy)
    row = len(raw) // n
    for rows in rows_at_a_time(n, k):
        part = raw[rows.start * row : rows.stop * row]
        out[rows] = dequantize(entry.stored, part, (rows.stop - rows.start, k)).astype(kind.numpy)
    return from_numpy(out, device="cpu")


def make_head(table: Tensor | QuantLinear, head: str | None) -> Tensor | QuantLinear:
    """A table of the vocabulary as the product wants it; None: as it is stored."""
    if head is None:
        return table
    if head not in HEADS:
        raise ArgumentError(f"load: head {head!r} is unknown; use {', '.join(HEADS)}, or None for what the file has.")
    table = table.dequantize() if isinstance(table, QuantLinear) else table
    if head == "int8":
        return QuantLinear.from_float(table, "int8")
    return table if table.dtype is FLOATS[head] else table.to(FLOATS[head])
