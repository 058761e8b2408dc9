"""From the entries of a model file to the parts of a network: names, shapes, joined projections, tiles for this device.

Knows nothing of containers (io gives entries) or of how the parts are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tritium import backends, dtype as dt, ops, quant
from tritium.backends import Device
from tritium.errors import ArgumentError
from tritium.escape import visible
from tritium.functions import asarray
from tritium.interop import from_numpy
from tritium.io import Entry, Ternary
from tritium.io.dequantize import READABLE, dequantize
from tritium.io.model.entry import FLOATS as STORED
from tritium.io.reader import fault, forget
from tritium.io.ternary import rows_at_a_time
from tritium.models.config import Config
from tritium.nn.linear import BitLinear, QuantLinear, unpacked
from tritium.nn.transformer import MLP, Attention, Block, Embedding, Head, RMSNorm, RoPE
from tritium.tensor import Tensor
from tritium.threads import get_num_threads

HEADS = ("f32", "f16", "bf16", "int8")
FLOATS = {"f32": dt.f32, "f16": dt.f16, "bf16": dt.bf16}


class Network(NamedTuple):
    """All parts of a decoder."""

    embedding: Embedding
    rope: RoPE
    blocks: tuple[Block, ...]
    head: Head

    @property
    def device(self) -> Device:
        return self.embedding.weight.device

    def to(self, device: Any) -> Network:
        """The same on another device, its weights made ready there; a head that is the embedding stays so."""
        if backends.device(device) is self.device:
            return self
        embedding = self.embedding.to(device)
        tied = self.head.weight is self.embedding.weight
        head = Head(self.head.norm.to(device), embedding.weight) if tied else self.head.to(device)
        return Network(embedding, self.rope.to(device), tuple(b.to(device) for b in self.blocks), head)


class Source(NamedTuple):
    """Where parts come from: one call for each kind of weight."""

    linear: Callable[[str, tuple[str, ...], int, int], QuantLinear]  # (joined name, names, rows, columns)
    vector: Callable[[str, int], Tensor]
    embedding: Callable[[], Tensor]
    head: Callable[[], Tensor | QuantLinear]


def assemble(config: Config, source: Source) -> Network:
    """The network of a configuration, its weights read through `source`; layers are read side by side."""
    rope = RoPE(config.head_dim, config.rope_theta, scaling=dict(config.scaling))

    def block(i: int) -> Block:
        at = f"model.layers.{i}"

        def norm(name: str, size: int) -> RMSNorm:
            return RMSNorm(source.vector(f"{at}.{name}.weight", size), config.eps)

        def joined(name: str, parts: tuple[str, ...], rows: int, columns: int) -> QuantLinear:
            return source.linear(f"{at}.{name}", tuple(f"{at}.{p}.weight" for p in parts), rows, columns)

        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention = Attention(
            joined("self_attn.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), q + 2 * kv, config.hidden_size),
            joined("self_attn.o", ("self_attn.o_proj",), config.hidden_size, q), rope, heads=config.heads, kv_heads=config.kv_heads,
            sub_norm=norm("self_attn.attn_sub_norm", q) if config.sub_norms else None,
        )  # fmt: skip
        mlp = MLP(
            joined("mlp.gate_up", ("mlp.gate_proj", "mlp.up_proj"), 2 * config.intermediate_size, config.hidden_size),
            joined("mlp.down", ("mlp.down_proj",), config.hidden_size, config.intermediate_size), config.activation,
            norm("mlp.ffn_sub_norm", config.intermediate_size) if config.sub_norms else None,
        )  # fmt: skip
        return Block(
            norm("input_layernorm", config.hidden_size),
            attention,
            norm("post_attention_layernorm", config.hidden_size),
            mlp,
        )

    with ThreadPoolExecutor(get_num_threads()) as pool:
        blocks = tuple(pool.map(block, range(config.layers)))
    last = RMSNorm(source.vector("model.norm.weight", config.hidden_size), config.eps)
    return Network(Embedding(source.embedding()), rope, blocks, Head(last, source.head()))


def from_entries(
    entries: Mapping[str, Entry], config: Config, *, head: str | None, storage: dt.DType, copied: bool = False
) -> Source:
    """Weights of a file in any of the formats that `io` reads; `copied`: none of them on the memory of the file."""
    used = set(_names(config))
    unknown = sorted(n for n in set(entries) - used - {"rope_freqs"} if not n.endswith("rotary_emb.inv_freq"))
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

    def linear(joined: str, names: tuple[str, ...], rows: int, columns: int) -> BitLinear:
        found = [entry(n, (*_part_rows(n, config), columns)) for n in names]
        made = BitLinear(join([e.ternary() for e in found], storage))
        for e in found:
            forget(e.raw())
        return made

    @cache  # a tied head is the embedding itself, not a second one
    def table(name: str, unquantised: dt.DType = dt.f16) -> Tensor:
        found = entry(name, (config.vocab_size, config.hidden_size))
        return _floats(found.array(), copied) if found.stored in STORED else _unquantised(found, unquantised)

    def out() -> Tensor | QuantLinear:
        tied = "lm_head.weight" not in entries
        if tied and not config.tied:
            raise fault("the model", "no weight 'lm_head.weight'", "one, since tie_word_embeddings is false")
        name = "model.embed_tokens.weight" if tied else "lm_head.weight"
        exact = head == "f32" and name in entries and entries[name].stored not in STORED
        return make_head(table(name, dt.f32) if exact else table(name), head)

    def vector(name: str, size: int) -> Tensor:
        return asarray(entry(name, (size,)).float32(), device="cpu")

    return Source(linear, vector, lambda: table("model.embed_tokens.weight"), out)


def _names(config: Config) -> Iterator[str]:
    yield from ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    inside = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    ]
    inside += ["mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    inside += ["self_attn.attn_sub_norm", "mlp.ffn_sub_norm"] if config.sub_norms else []
    yield from (f"model.layers.{i}.{name}.weight" for i in range(config.layers) for name in inside)


def _part_rows(name: str, config: Config) -> tuple[int]:
    part = name.split(".")[-2]
    rows = {
        "q_proj": config.heads * config.head_dim,
        "gate_proj": config.intermediate_size,
        "up_proj": config.intermediate_size,
    }
    return (
        rows.get(part, config.hidden_size if part in ("o_proj", "down_proj") else config.kv_heads * config.head_dim),
    )


def join(parts: list[Ternary], storage: dt.DType) -> quant.Quantized:
    """Projections of one input as one matrix; a scale for each row where theirs differ."""
    group = parts[0].group
    if any(p.group != group for p in parts):
        raise ArgumentError(f"join: projections of one input have groups of {[p.group for p in parts]} columns.")
    codes = np.concatenate([p.codes for p in parts]) if len(parts) > 1 else parts[0].codes
    data = unpacked(codes, (codes.shape[0], parts[0].shape[1]))
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


def make_head(table: Tensor, head: str | None) -> Tensor | QuantLinear:
    """A table of the vocabulary as the product wants it; None: as it is stored."""
    if head is None:
        return table
    if head not in HEADS:
        raise ArgumentError(f"load: head {head!r} is unknown; use {', '.join(HEADS)}, or None for what the file has.")
    if head == "int8":
        return QuantLinear.from_float(table, "int8")
    return table if table.dtype is FLOATS[head] else table.to(FLOATS[head])
