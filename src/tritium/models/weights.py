"""From the entries of a model file to the parts of a network: names, shapes, joined projections, tiles for this device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Condition
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tritium import backends, dtype as dt, ops, quant
from tritium.backends import Device
from tritium.errors import ArgumentError, DeviceError
from tritium.escape import visible
from tritium.families import FAMILIES, description as d
from tritium.families.config import Config
from tritium.families.description import Layer
from tritium.families.hadamard import Hadamard
from tritium.families.rope import for_context
from tritium.functions import asarray
from tritium.interop import from_numpy
from tritium.io import Entry, Ternary
from tritium.io.dequantize import READABLE, dequantize
from tritium.io.model.entry import FLOATS as STORED
from tritium.io.peft import open_adapter
from tritium.io.reader import fault, forget
from tritium.io.ternary import rows_at_a_time, stack_rows
from tritium.models.parts import (
    HEAD,
    NORM,
    LayerParts,
    Part,
    Plain,
    Product,
    layer_parts,
    of_expert,
    shapes_in_files,
    take_rows,
)
from tritium.nn.adapters import PLACES, Adaptation, Adapters, Delta, Factor
from tritium.nn.certified import NO_COPY, OFF, CertifiedHead, certify, refusal
from tritium.nn.embedding import QuantEmbedding
from tritium.nn.linear import BitLinear, QuantLinear, unpacked
from tritium.nn.mixers import Experts, GatedDeltaNet, MoE, Router
from tritium.nn.rope import RoPE
from tritium.nn.rotation import RotatedEmbedding, RotatedLinear, Rotation
from tritium.nn.transformer import MLP, Attention, Block, Embedding, Head, Parallel, RMSNorm
from tritium.op import Spec
from tritium.parallel import Group, shares
from tritium.parallel.calls import Calls
from tritium.parallel.layers import GatheredHead, GatheredLinear, GatheredMoE, MergedEmbedding
from tritium.tensor import Tensor
from tritium.threads import get_num_threads

BLOCK_NORMS = ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm")
HeadDType = Literal["f32", "f16", "bf16", "int8"]
HEADS = get_args(HeadDType)
Storage = Literal["tern2", "tern5"]
STORAGES: dict[Storage, dt.DType] = {"tern2": dt.tern2, "tern5": dt.tern5}
ROPE_TENSORS = frozenset(("rope_freqs", "rope_factors_long", "rope_factors_short"))  # read with the configuration
FLOATS = {"f32": dt.f32, "f16": dt.f16, "bf16": dt.bf16}


class Divided(NamedTuple):
    """The part of a network that a rank holds, and the calls it shares with the others."""

    calls: Calls
    layers: tuple[Layer, ...]  # with its own heads and columns alone


class Network(NamedTuple):
    """All parts of a decoder, or those of one rank."""

    embedding: Embedding | QuantEmbedding | RotatedEmbedding | MergedEmbedding
    ropes: tuple[RoPE, ...]  # the different position embeddings of its layers
    blocks: tuple[Block, ...]
    head: Head
    parts: tuple[LayerParts, ...]  # the names of each layer's weights
    certified: CertifiedHead | None = None  # an int8 copy of the head with bounds, where one pays
    uncertified: str = ""  # why there is none
    divided: Divided | None = None  # over several processes
    adapters: Adapters | None = None  # that sequences choose among

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
        if self.divided is not None or isinstance(self.embedding, MergedEmbedding):
            raise DeviceError(
                f"parallel: ranks run on CPUs, and {backends.device(device)} was asked for; leave device out."
            )
        embedding = self.embedding.to(device)
        tied = self.head.weight is self.embedding.weight
        table: Tensor | QuantLinear = embedding.weight if tied else self.head.weight.to(device)
        head = Head(self.head.norm.to(device), table, self.head.multiplier)
        ropes = tuple(rope.to(device) for rope in self.ropes)
        adapters = None if self.adapters is None else self.adapters.to(device)
        there = Network(embedding, ropes, tuple(b.to(device) for b in self.blocks), head, self.parts, adapters=adapters)
        if self.certified is not None and isinstance(table, Tensor) and not refusal(table, True):
            return there._replace(certified=self.certified.to(device, table))
        stays_off = self.certified is None and self.uncertified in (OFF, NO_COPY)
        return there._replace(uncertified=self.uncertified) if stays_off else with_copy(there, None)


def _no_experts(product: Product) -> Experts:
    raise ArgumentError(f"assemble: this source has no experts, and {product.name!r} is of some.")


class Source(NamedTuple):
    """The source of a network's parts: one call for each kind of weight. Names are those of whole models, not within a layer."""

    linear: Callable[[Product, Tensor | None], QuantLinear]  # and the norm of its input
    plain: Callable[[Plain], Tensor | QuantLinear]  # floats, or a product where a file has such a matrix ternary
    embedding: Callable[[], Tensor | QuantLinear]
    head: Callable[[], Tensor | QuantLinear]
    experts: Callable[[Product], Experts] = _no_experts


def assemble(config: Config, source: Source, context: int | None = None, group: Group | None = None) -> Network:
    """Return the network of a configuration, its weights read through `source`; layers are read side by side.

    context: the most tokens it will be used with, where these are fewer than it was made for; LongRoPE depends on it.
    group: the processes that share it; this one reads its own part."""
    description = config.description
    context = config.context if context is None else context
    ropes = tuple(RoPE(r.dims, r.theta, scaling=for_context(r.scaling, context)) for r in description.ropes)

    parts = tuple(layer_parts(layer, description, config.hidden_size) for layer in description.layers)

    own = None if group is None else _shares(config, group)

    def block(i: int) -> Block:
        prefix = f"model.layers.{i}"
        if group is None or own is None:
            return _Builder(source, config, prefix, parts[i]).block(description.layers[i], ropes)
        return _SharedBuilder(source, config, prefix, parts[i], own[i], group).block(own[i].layer, ropes)

    # Tables first: they are the largest matrices, and what reading one takes for a while has left before the others are there.
    rows, multiplier = source.embedding(), description.embedding_multiplier
    plain = QuantEmbedding(rows, multiplier) if isinstance(rows, QuantLinear) else Embedding(rows, multiplier)
    embedding, table = _rotated_tables(config, plain, source.head())
    last = RMSNorm(source.plain(Plain(NORM, (config.hidden_size,))), config.eps)
    # Ranks agree about each matrix while they read, so they read in the same order.
    blocks = read_layers(block, config.layers, get_num_threads() if group is None else 1)
    if group is None or own is None:
        return Network(embedding, ropes, blocks, Head(last, table, description.logits_multiplier), parts)
    words, sizes = shares.part(config.vocab_size, group.rank, group.ranks), shares.parts(config.vocab_size, group.ranks)
    head = GatheredHead(last, table, description.logits_multiplier, group, sizes)
    divided = Divided(Calls(group), tuple(share.layer for share in own))
    reason = "each rank has a part of it"
    return Network(MergedEmbedding(embedding, words, group), ropes, blocks, head, parts, None, reason, divided)


def read_layers(block: Callable[[int], Block], layers: int, threads: int) -> tuple[Block, ...]:
    """Return the blocks of all layers, read by several threads: of the layers that are left at most half at a time, so that what
    reading them takes for a while fits where the others will be."""
    left, running, turn = layers, 0, Condition()

    def one(i: int) -> Block:
        nonlocal left, running
        with turn:
            turn.wait_for(lambda: running < max(1, (left + 1) // 2))
            running += 1
        try:
            return block(i)
        finally:
            with turn:
                running, left = running - 1, left - 1
                turn.notify_all()

    with ThreadPoolExecutor(threads) as pool:
        return tuple(pool.map(one, range(layers)))


def _shares(config: Config, group: Group) -> tuple[shares.Share, ...]:
    """Return this rank's part of every layer; raise where there are more ranks than the model can be divided into."""
    description, hidden_size = config.description, config.hidden_size
    shares.check(description, hidden_size, config.vocab_size, group.ranks)
    return tuple(shares.share_layer(layer, hidden_size, group.rank, group.ranks) for layer in description.layers)


def with_copy(network: Network, certified: bool | None) -> Network:
    """Return a network whose float head is read through an int8 copy: if `certified`, or by default (None) if it pays."""
    table = network.head.weight
    if network.divided is not None and not certified:
        return network
    if network.divided is not None:
        raise ArgumentError(
            "load: certified=True was given, and of a head over several processes each has a part; leave it out."
        )
    if certified is not False and network.certified is not None:
        return network
    reason = OFF if certified is False else refusal(table, bool(certified))
    head = None
    if not reason:
        assert isinstance(table, Tensor)
        head = certify(table, network.head.multiplier, threads=get_num_threads())
        reason = "" if head is not None else "a number of the table is not finite"
    if certified and head is None:
        raise ArgumentError(f"load: certified=True cannot be: {reason}. Leave it out.")
    return network._replace(certified=head, uncertified=reason)


MOST_RANKS = 1 << 12  # of all adapters of a model together: every request pays for all of them


def read_adapters(network: Network, folders: Mapping[str, str | Path]) -> Adapters:
    """Return the adapters of PEFT's folders, by name, for a network; raise before any is read where one does not fit."""
    if network.divided is not None:
        raise ArgumentError(
            "adapters: each process has a part of this model; load it without parallel= to add adapters."
        )
    wrong = [name for name in folders if not isinstance(name, str) or not name or visible(name) != name]
    if wrong or not folders:
        raise ArgumentError(f"adapters: names of at least one printable character are needed, given {str(wrong)[:80]}.")
    shapes = {
        f"model.layers.{i}.{part.name}": (part.rows, product.columns)
        for i, layer in enumerate(network.parts)
        for place, products in _adaptable(network.blocks[i], layer).items()
        for product in products
        for part in product.parts
    }
    files = {name: open_adapter(folder, shapes) for name, folder in folders.items()}
    ranks = sum(file.rank for file in files.values())
    if ranks > MOST_RANKS:
        raise ArgumentError(f"adapters: their ranks are {ranks} together; a model takes at most {MOST_RANKS}.")
    stored = [(file.scaling, {layer: (a, b) for layer, a, b in file.arrays()}) for file in files.values()]
    layers = tuple(
        {
            place: adaptation
            for place, products in _adaptable(network.blocks[i], layer).items()
            if (adaptation := _adaptation(f"model.layers.{i}.", products, stored, network.device)) is not None
        }
        for i, layer in enumerate(network.parts)
    )
    return Adapters(tuple(files), layers)


def _adaptable(block: Block, layer: LayerParts) -> dict[str, tuple[Product, ...]]:
    """Return the products of a layer that may have adapters: those of attention and of a dense MLP."""
    modules = {"attention": isinstance(block.attention, Attention), "mlp": isinstance(block.mlp, MLP)}
    return {place: layer.products[place] for place, owner in PLACES.items() if modules[owner]}


def _adaptation(
    prefix: str, products: tuple[Product, ...], stored: list[tuple[float, dict[str, Any]]], device: Device
) -> Adaptation | None:  # fmt: skip
    """Return the adapters of one product; None where none has a matrix for it."""
    parts = [part for product in products for part in product.parts]
    down, deltas, count = list[np.ndarray[Any, Any]](), list[Delta](), 0
    for number, (scaling, layers) in enumerate(stored, 1):
        spans: dict[str, tuple[int, int]] = {}
        first = count
        for name in dict.fromkeys(part.name for part in parts if prefix + part.name in layers):
            a = layers[prefix + name][0]
            down.append(np.asarray(a, np.float32))
            spans[name] = count - first, count - first + len(a)
            count += len(a)
        if spans:
            rows = tuple(_factor(part, layers, prefix, spans, device) for part in parts)
            deltas.append(Delta(number, scaling, first, count, rows))
    if not deltas:
        return None
    return Adaptation(asarray(np.concatenate(down)).to(device=device), tuple(deltas))


def _factor(
    part: Part, layers: dict[str, Any], prefix: str, spans: dict[str, tuple[int, int]], device: Device
) -> Factor | int:
    if part.name not in spans:
        return part.selected_rows
    b = np.array(layers[prefix + part.name][1], np.float32)
    return Factor(asarray(b if part.order is None else b[part.order]).to(device=device), *spans[part.name])


def _rotated_tables(
    config: Config, embedding: Embedding | QuantEmbedding, table: Tensor | QuantLinear
) -> tuple[Embedding | QuantEmbedding | RotatedEmbedding, Tensor | QuantLinear]:
    """Return the embedding and the head of a model with folded weights, each rotated where its table is folded."""
    hadamard = config.description.hadamard
    if hadamard is None:
        return embedding, table
    tied = table is embedding.weight
    # A tied head has the rows that the table stands for.
    folded = hadamard.inverse if tied else f"{HEAD}.weight" in hadamard.names
    rotation = _rotation(hadamard, config.hidden_size)
    looked_up = RotatedEmbedding(embedding, rotation) if hadamard.inverse else embedding
    return looked_up, rotated(table, rotation) if folded else table


def same_table(head: QuantLinear, table: Tensor | QuantLinear) -> bool:
    """Return True if a head is the embedding, or reads its memory after a rotation."""
    if head is table or not isinstance(head, RotatedLinear) or not isinstance(table, QuantLinear):
        return head is table
    return head.weight.data.storage.address == table.weight.data.storage.address


def rotation_of(config: Config, names: list[str], width: int) -> Rotation | None:
    """Return the rotation of an input of weights of these names; None where they are not folded."""
    hadamard = config.description.hadamard
    if hadamard is None or not any(name in hadamard.names for name in names):
        return None
    if not all(name in hadamard.names for name in names):
        raise fault(
            "the model", f"a rotation of some of {', '.join(map(visible, names))}", "of all of one input or of none"
        )
    return _rotation(hadamard, width)


def _rotation(hadamard: Hadamard, width: int) -> Rotation:
    if width % hadamard.block:
        raise fault("the model", f"a rotation in blocks of {hadamard.block}", f"blocks that divide {width} columns")
    signs = hadamard.signs_of(width)
    numbers = None if signs is None else asarray(np.array(signs, np.float32), device="cpu")
    return Rotation(block=hadamard.block, signs=numbers)


def rotated(layer: Tensor | QuantLinear, rotation: Rotation) -> RotatedLinear:
    """Return a layer that rotates its input; raise where its weights are not ternary."""
    if not isinstance(layer, BitLinear):
        raise fault("the model", "folded weights that are not ternary", "ternary ones", "It is not supported.")
    return RotatedLinear.from_layer(layer, rotation)


def placed(block: Block) -> dict[str, Any]:
    """Return the modules and tensors of a layer by their places, as `layer_parts` names them."""
    mixer, mlp = block.attention, block.mlp
    modules = {place: getattr(block, place) for place in BLOCK_NORMS}
    if isinstance(mixer, Attention):
        modules |= {"attention_sub_norm": mixer.sub_norm, "q_norm": mixer.q_norm, "k_norm": mixer.k_norm}
    else:
        modules |= {place: getattr(mixer, place) for place in ("z", "b", "a", "a_log", "dt_bias", "norm")}
        modules["conv"] = ops.expand_dims(mixer.conv.T, 1).contiguous()
    modules |= {"qkv": mixer.qkv, "out": mixer.out, "gate_up": mlp.gate_up, "down": mlp.down}
    return modules | ({"mlp_sub_norm": mlp.sub_norm} if isinstance(mlp, MLP) else {"router": mlp.router.weight})


@dataclass(frozen=True)
class _Builder:
    """Makes the modules of one layer from its weights."""

    source: Source
    config: Config
    prefix: str
    parts: LayerParts

    def block(self, layer: Layer, ropes: tuple[RoPE, ...]) -> Block:
        """Return the layer."""
        description = self.config.description
        rope = layer.mixer.rope if isinstance(layer.mixer, d.Attention) else None
        index = None if rope is None else description.ropes.index(rope)
        mixer: Attention | GatedDeltaNet
        if isinstance(layer.mixer, d.Attention):
            mixer = self.attention(layer.mixer, None if index is None else ropes[index])
        else:
            mixer = self.delta_net(layer.mixer)
        mlp = self.mlp(layer.mlp) if isinstance(layer.mlp, d.Dense) else self.moe(layer.mlp)
        norms: dict[str, Any] = {place: self.norm(place) for place in BLOCK_NORMS}
        return Block(attention=mixer, mlp=mlp, residual=description.residual_multiplier, rope=index, **norms)

    def attention(self, a: d.Attention, rope: RoPE | None) -> Attention:
        """Return the attention of the layer."""
        out, sub_norm = self.output("out", "attention_sub_norm")
        return Attention(
            self.linear("qkv"), out, rope, heads=a.heads, kv_heads=a.kv_heads, head_dim=a.head_dim,
            sub_norm=sub_norm, q_norm=self.norm("q_norm"), k_norm=self.norm("k_norm"), gate=a.gate,
            window=a.window, scale=a.scale,
        )  # fmt: skip

    def delta_net(self, n: d.DeltaNet) -> GatedDeltaNet:
        """Return the gated delta net of the layer."""
        norm = self.norm("norm")
        assert norm is not None
        if rotation_of(self.config, [f"{self.prefix}.linear_attn.in_proj_{k}.weight" for k in "ab"], n.value_dim):
            raise fault(
                "the model", "a rotation of the small projections of delta nets", "none", "It is not supported."
            )
        plain = {place: self.plain(place) for place in ("b", "a", "conv", "a_log", "dt_bias")}
        conv = plain.pop("conv").reshape(-1, n.kernel)
        qkv, z, (out, _) = self._one("qkv"), self._one("z"), self.output("out", "")
        return GatedDeltaNet(
            qkv, z, conv=conv, norm=norm, out=out, heads=n.value_heads, key_heads=n.key_heads, **plain
        )  # fmt: skip

    def mlp(self, m: d.Dense) -> MLP:
        """Return the MLP of the layer."""
        gate_up, (down, sub_norm) = self.linear("gate_up"), self.output("down", "mlp_sub_norm")
        return MLP(gate_up, down, m.activation, sub_norm, m.clamp)

    def moe(self, m: d.Experts) -> MoE | GatheredMoE:
        """Return the mixture of experts of the layer."""
        return MoE(*self.experts(m), activation=m.activation, limit=m.clamp)

    def experts(self, m: d.Experts) -> tuple[Router, Experts, Experts]:
        """Return the router of the layer and the matrices of its experts."""
        router = Router(
            self.plain("router"), active=m.active, gate=m.scoring, normalise=m.normalise, scale=m.scaling
        )  # fmt: skip
        gate_up, down = (self.source.experts(self._named(self.products(p)[0])) for p in ("gate_up", "down"))
        return router, gate_up, down

    def products(self, place: str) -> tuple[Product, ...]:
        """Return the products of the layer at a place."""
        return self.parts.products[place]

    def output(self, place: str, norm: str) -> tuple[QuantLinear, RMSNorm | None]:
        """Return the last product of a mixer or an MLP, and the norm before it."""
        return self._one(place), self.norm(norm)

    def plain(self, place: str) -> Any:
        """Return plain numbers of the layer."""
        p = self.parts.plain[place]
        return self.source.plain(p._replace(name=f"{self.prefix}.{p.name}"))

    def norm(self, place: str) -> RMSNorm | None:
        """Return a norm of the layer; None where it has none there."""
        return RMSNorm(self.plain(place), self.config.eps) if place in self.parts.plain else None

    def linear(self, place: str) -> QuantLinear | Parallel:
        """Return the product of the layer at a place, or several of one input."""
        products = [self._product(product) for product in self.products(place)]
        return products[0] if len(products) == 1 else Parallel(*products)

    def _one(self, place: str) -> QuantLinear:
        (product,) = self.products(place)
        return self._product(product)

    def _product(self, p: Product) -> QuantLinear:
        rotation = rotation_of(self.config, [f"{self.prefix}.{part.name}.weight" for part in p.parts], p.columns)
        layer = self._plain_product(p)
        return layer if rotation is None else rotated(layer, rotation)

    def _plain_product(self, p: Product) -> QuantLinear:
        norm = None if p.norm is None else self.source.plain(Plain(f"{self.prefix}.{p.norm}", (p.columns,)))
        assert norm is None or isinstance(norm, Tensor)
        return self.source.linear(self._named(p), norm)

    def _named(self, p: Product) -> Product:
        """Return a product with the names of the whole model."""
        parts = tuple(part._replace(name=f"{self.prefix}.{part.name}") for part in p.parts)
        return p._replace(name=f"{self.prefix}.{p.name}", parts=parts)


@dataclass(frozen=True)
class _SharedBuilder(_Builder):
    """Makes one rank's modules of a layer."""

    share: shares.Share
    group: Group

    def products(self, place: str) -> tuple[Product, ...]:
        """Return this rank's rows of the products at a place."""
        return take_rows(super().products(place), self.share.rows[place])

    def plain(self, place: str) -> Any:
        """Return plain numbers, or this rank's rows of them."""
        p = self.parts.plain[place]
        return self.source.plain(p._replace(name=f"{self.prefix}.{p.name}", order=self.share.plain.get(place)))

    def output(self, place: str, norm: str) -> tuple[QuantLinear, RMSNorm | None]:
        """Return the last product of a mixer or an MLP, which gathers what it reads and writes; the norm is in between."""
        read = self.share.mixed if place == "out" else self.share.gated
        return GatheredLinear(self._one(place), self.group, read, self._written, self.norm(norm)), None

    def moe(self, m: d.Experts) -> GatheredMoE:
        """Return this rank's columns of the experts of the layer."""
        return GatheredMoE(
            *self.experts(m), activation=m.activation, limit=m.clamp, group=self.group, read=self.share.gated, written=self._written
        )  # fmt: skip

    @property
    def _written(self) -> list[int]:
        return shares.parts(self.config.hidden_size, self.group.ranks)


def from_entries(
    entries: Mapping[str, Entry], config: Config, *, head: str | None, storage: dt.DType, copied: bool = False,
    activations: str | None = None, rounded: bool = False, group: Group | None = None,
) -> Source:  # fmt: skip
    """Return the weights of a file in any of the formats that `io` reads; `copied`: none of them on the memory of the file.
    activations: as of `BitLinear`; None: what suits the weights. rounded: its weights were dense, so that nothing was trained with
    int8 tokens: the scale of a matrix is repeated for groups of columns, by which activations are quantised too.
    group: the processes that share the model."""
    check_names(entries, config)
    words = shares.part(config.vocab_size, *((0, 1) if group is None else (group.rank, group.ranks)))
    regroup = rounded and not config.description.trained_int8 and activations in (None, "group")

    entry = partial(_entry_of_shape, entries)

    def linear(p: Product, norm: Tensor | None) -> BitLinear:
        stored = [entry(f"{part.name}.weight", (part.rows, p.columns)) for part in p.parts]
        ternary = _agreed([_rows(e, part.order) for e, part in zip(stored, p.parts, strict=True)], group)
        weight = join(ternary, storage, usual_group(p.columns) if regroup else 0)
        del ternary  # else in memory while the weights are tiled
        how = activations or default_activations(config, weight.group)
        return BitLinear(weight, norm=norm, eps=config.eps, activations=how)

    def matrix(stored: Entry, order: np.ndarray[Any, Any] | None) -> BitLinear:
        weight = join(_agreed([_rows(stored, order)], group), storage)
        return BitLinear(weight, activations=activations or default_activations(config, weight.group))

    def experts(p: Product) -> Experts:
        parts = _agreed([_of_experts(entries, entry, part, p) for part in p.parts], group)
        columns = usual_group(p.columns) if regroup else 0
        how = activations or default_activations(config, columns or max(t.group for t in parts))
        return join_experts(parts, p.experts, columns, activations=how)

    @cache  # a tied head is the embedding itself, not a second one
    def table(name: str, unquantised: dt.DType = dt.f16) -> Tensor | QuantLinear:
        tensor_entry = entry(name, (config.vocab_size, config.hidden_size))
        if tensor_entry.role == "ternary":
            return matrix(tensor_entry, None if group is None else np.array(words))
        if tensor_entry.stored in STORED:
            return _floats(tensor_entry.array()[words.start : words.stop], copied)
        return _unquantised(tensor_entry, unquantised, words)

    def out() -> Tensor | QuantLinear:
        tied = "lm_head.weight" not in entries
        if tied and not config.tied:
            raise fault("the model", "no weight 'lm_head.weight'", "one, since tie_word_embeddings is false")
        name = "model.embed_tokens.weight" if tied else "lm_head.weight"
        exact = head == "f32" and name in entries and entries[name].stored in READABLE
        return make_head(table(name, dt.f32) if exact else table(name), head)

    def plain(p: Plain) -> Tensor | QuantLinear:
        name = p.name + p.suffix
        flat = (p.shape[0], *(n for n in p.shape[1:] if n != 1))  # GGUF leaves out sides of 1
        stored = entry(name, flat if name in entries and entries[name].shape == flat else p.shape)
        if len(flat) == 2 and stored.role == "ternary":
            return matrix(stored, p.order)
        numbers = stored.float32() if p.order is None else stored.float32()[p.order]
        return asarray(numbers + np.float32(stored.shift) if stored.shift else numbers, device="cpu")

    return Source(linear, plain, lambda: table("model.embed_tokens.weight"), out, experts)


def _entry_of_shape(entries: Mapping[str, Entry], name: str, shape: tuple[int, ...]) -> Entry:
    """Return a weight; raise where it is not there, or has another shape."""
    entry = entries.get(name)
    if entry is None:
        raise fault("the model", f"no weight {name!r}", f"one of shape {list(shape)}", "The file is incomplete.")
    if entry.shape != shape:
        raise fault(entry.where, f"shape {list(entry.shape)}", f"{list(shape)} by the configuration")
    return entry


def default_activations(config: Config, group: int) -> str:
    """Return how the input of a product is quantised: by token where a model was trained so or its weights have no groups of
    columns, else by group, which loses less."""
    return config.description.activations(group)[0]


def usual_group(columns: int) -> int:
    """Return the widest of the usual groups that divides a number of columns; 0 where none does."""
    return next((group for group in (128, 64, 32) if columns % group == 0), 0)


def check_names(entries: Mapping[str, Entry], config: Config) -> None:
    """Raise for weights that the configuration has no place for: something else is computed with them."""
    used = {name for stacked in (False, True) for name, _ in shapes_in_files(config, stacked=stacked)}
    beyond = range(config.layers, config.layers + config.description.extra_layers)
    skipped = (*FAMILIES[config.family].skips, *(f"{kind}.{i}." for i in beyond for kind in ("blk", "model.layers")))
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


def _of_experts(
    entries: Mapping[str, Entry], entry: Callable[[str, tuple[int, ...]], Entry], part: Part, p: Product
) -> Ternary:
    """Return the matrices of all experts below each other, from one tensor or from one for each."""
    if f"{part.name}.weight" in entries:
        stack = entry(f"{part.name}.weight", (p.experts, part.rows, p.columns))
        if part.order is None:
            return _rows(stack, None)
        return stack_rows([_rows(stack, e * part.rows + part.order) for e in range(p.experts)])
    each = [entry(f"{of_expert(part.name, e)}.weight", (part.rows, p.columns)) for e in range(p.experts)]
    return stack_rows([_rows(e, part.order) for e in each])


def _rows(entry: Entry, order: np.ndarray[Any, Any] | None) -> Ternary:
    """Return some of the rows of a matrix; all for None. What was read of the file leaves the memory."""
    rows = entry.ternary() if order is None else entry.ternary_rows(order)
    forget(entry.raw())
    return rows


def _agreed(parts: list[Ternary], group: Group | None) -> list[Ternary]:
    """Return one rank's matrices with the groups of columns that all ranks' need: sums of groups are added as floats, and their number
    decides the bits."""
    if group is None or not parts:
        return parts
    columns = parts[0].shape[1]
    narrowest = group.least(min(t.group or columns for t in parts))
    return parts if narrowest == columns else [t.regrouped(narrowest) for t in parts]


def join(parts: list[Ternary], storage: dt.DType, group: int = 0) -> quant.Quantized:
    """Return projections of one input as one matrix; a scale for each row where theirs differ, in f16 if it is of a group and f16
    holds it, as files have it. group: the scales of weights without groups are repeated for groups of so many columns."""
    whole = _in_groups(stack_rows(parts), group)
    weights = quant.Quantized(
        "ternary", unpacked(whole.codes, whole.shape), asarray(_stored_scale(whole), device="cpu"), None, whole.group
    )
    return weights if storage is dt.tern2 else replace(weights, data=ops.repack(weights.data, storage))


def _in_groups(t: Ternary, group: int) -> Ternary:
    """Return weights whose scales, where they have no groups, are repeated for groups of so many columns; 0: as they are."""
    if not group or t.group:
        return t
    return replace(t, scale=np.ascontiguousarray(t.scales(group)), group=group)


def _stored_scale(t: Ternary) -> np.ndarray[Any, Any]:
    """Return the scales of weights as they are kept: those of groups in f16 if it holds them."""
    if not t.group:
        return t.scale
    with np.errstate(over="ignore"):
        half = t.scale.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), t.scale) else t.scale


def join_experts(parts: list[Ternary], count: int, group: int = 0, *, activations: str = "token") -> Experts:
    """Return matrices of experts, each kind below each other, as one tensor [experts, rows of all kinds, columns]. group: as of
    `join`."""
    kinds = [[t.take(np.arange(t.shape[0]).reshape(count, -1)[e]) for t in parts] for e in range(count)]
    whole = _in_groups(stack_rows([t for kind in kinds for t in kind]), group)
    if not whole.scale.ndim:
        whole = replace(whole, scale=np.full(whole.shape[0], whole.scale, np.float32))
    flat = unpacked(whole.codes, whole.shape)
    rows, columns = whole.shape[0] // count, whole.shape[1]
    data = Tensor(
        flat.storage, dt.tern2, (count, rows, columns), Spec((count, rows, columns), dt.tern2).strides, flat.offset
    )
    scale = asarray(_stored_scale(whole).reshape(count, rows, *whole.scale.shape[1:]), device="cpu")
    return Experts(data, scale, whole.group, activations=activations)


def _floats(a: np.ndarray[Any, Any], copied: bool) -> Tensor:
    """Return the numbers of a file where they are, or a copy; f64 as f32."""
    return from_numpy(a.astype(np.float32) if a.dtype == np.float64 else a.copy() if copied else a, device="cpu")


def _unquantised(entry: Entry, kind: dt.DType, own: range) -> Tensor:
    """Dequantise some rows of a table of ggml, a few at a time: as f16 it is half as large as its exact numbers in f32."""
    if entry.stored not in READABLE:
        raise fault(
            entry.where, f"a table of type {entry.stored}", f"F32, F16, BF16, {', '.join(READABLE)}",
            "Quantise the original again with such embeddings: llama-quantize --token-embedding-type f16 (and "
            "--output-tensor-type f16).",
        )  # fmt: skip
    n, k = entry.shape
    raw, out = entry.raw(), np.empty((len(own), k), kind.numpy)
    row = len(raw) // n
    for rows in rows_at_a_time(len(own), k):
        part = raw[(own.start + rows.start) * row : (own.start + rows.stop) * row]
        out[rows] = dequantize(entry.stored, part, (rows.stop - rows.start, k)).astype(kind.numpy)
        forget(part)
    return from_numpy(out, device="cpu")


def make_head(table: Tensor | QuantLinear, head: str | None) -> Tensor | QuantLinear:
    """Return a table of the vocabulary as the product needs it; None: as it is stored."""
    if head is None:
        return table
    if head not in HEADS:
        raise ArgumentError(f"load: head {head!r} is unknown; use {', '.join(HEADS)}, or None for what the file has.")
    table = table.dequantize() if isinstance(table, QuantLinear) else table
    if head == "int8":
        return QuantLinear.from_float(table, "int8")
    return table if table.dtype is FLOATS[head] else table.to(FLOATS[head])
