"""Our own model file: weights as the kernels read them, so that a model is mapped instead of loaded.

It is a safetensors file: `__metadata__` holds the configuration and what each tensor is; side files of the tokenizer are
tensors of bytes named "file:…". Tiles suit one kind of machine; another repacks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tritium import dtype as dt, ops, quant
from tritium.backends import device
from tritium.buffer import host, in_bytes
from tritium.errors import ArgumentError, FormatError
from tritium.escape import visible
from tritium.families.config import Config
from tritium.functions import asarray
from tritium.interop import from_numpy
from tritium.io import safetensors
from tritium.io.reader import fault, map_file
from tritium.io.stream import Piece, Progress, appearing
from tritium.models.parts import (
    COPY,
    COPY_ERROR,
    COPY_NORM,
    EMBEDDING,
    HEAD,
    NORM,
    Plain,
    Product,
    names_in_prepacked,
)
from tritium.models.weights import Network, Source, placed, same_table
from tritium.nn.certified import NO_COPY, CertifiedHead, refusal
from tritium.nn.linear import BitLinear, QuantLinear
from tritium.nn.mixers import Experts
from tritium.nn.transformer import Parallel, RMSNorm
from tritium.op import Spec
from tritium.tensor import Tensor

FORMAT, VERSION = "tritium", "1"
LINE = 64  # bytes of a cache line
FILE = "file:"  # before the name of a side file
KINDS = {t.name: t for t in (*dt.FLOATS, dt.i8, *dt.PACKED)}
SCALES = {t.name: np.dtype(t.numpy) for t in quant.SCALE_DTYPES}


def is_prepacked(view: memoryview | bytes) -> bool:
    """Return True if the bytes of a file are one of ours, by the first words of its header."""
    return b'"__metadata__":{"format":"tritium"' in bytes(view[8:64])


# ---- writing


def linears(network: Network) -> dict[str, QuantLinear]:
    """Return every product with quantised weights, by the name it has in a file."""
    layers = {name: module for name, module in _modules(network) if isinstance(module, QuantLinear)}
    table, head = network.embedding.weight, network.head.weight
    if isinstance(table, QuantLinear):
        layers[EMBEDDING] = table
    if isinstance(head, QuantLinear) and not same_table(head, table):
        layers[HEAD] = head
    return layers


def experts(network: Network) -> dict[str, Experts]:
    """Return the matrices of all experts, by the names they have in a file."""
    return {name: module for name, module in _modules(network) if isinstance(module, Experts)}


def _modules(network: Network) -> Iterator[tuple[str, Any]]:
    """Yield every product, norm and tensor of the layers with its name in a file."""
    for i, (block, parts) in enumerate(zip(network.blocks, network.parts, strict=True)):
        modules = placed(block)
        for place, products in parts.products.items():
            module = modules[place]
            singles = module.parts if isinstance(module, Parallel) else (module,)
            yield from ((f"model.layers.{i}.{p.name}", part) for p, part in zip(products, singles, strict=True))
        yield from ((f"model.layers.{i}.{p.name}", modules[place]) for place, p in parts.plain.items())


def plain(network: Network) -> dict[str, Tensor]:
    """Return everything else: norms, the embedding, a float head of its own."""
    tensors, table = {NORM: network.head.norm.weight}, network.embedding.weight
    if isinstance(table, Tensor):
        tensors[EMBEDDING] = table
    for name, module in _modules(network):
        if isinstance(module, RMSNorm | Tensor):
            tensors[name] = module.weight if isinstance(module, RMSNorm) else module
        elif isinstance(module, BitLinear) and module.norm is not None:
            tensors[f"{name}.norm"] = module.norm
    head = network.head.weight
    if isinstance(head, Tensor) and head is not table:
        tensors[HEAD] = head
    return tensors


def nbytes(network: Network) -> int:
    """Return the bytes of all weights."""
    products: list[Any] = [*linears(network).values(), *experts(network).values()]
    copy = 0 if network.certified is None else network.certified.nbytes
    return sum(p.nbytes for p in (*products, *plain(network).values())) + copy


def save(
    network: Network, config: Config, files: Mapping[str, bytes], path: Path, *, name: str = "", overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:  # fmt: skip
    """Write the file; it appears whole or not at all."""
    descriptions: dict[str, Any] = {}
    pieces: list[Piece] = []
    layers = linears(network)
    weights: dict[str, Any] = {key: layer.weight for key, layer in layers.items()}
    stacks = experts(network)
    inputs = {key: product.activations for key, product in (layers | stacks).items()}
    tensors, certified = plain(network), network.certified
    if certified is not None:
        weights[COPY] = certified.copy.weight
        tensors |= {COPY_ERROR: certified.error, COPY_NORM: certified.norm}
    for key, w in (weights | stacks).items():
        descriptions[key] = {
            "dtype": w.data.dtype.name, "shape": list(w.shape), "group": w.group, "scale": w.scale.dtype.name,
            "activations": inputs.get(key, "token"),
        }  # fmt: skip
        pieces.append(_piece(f"{key}.weight", host(in_bytes(w.data)) if w.data.dtype.is_packed else host(w.data)))
        pieces.append(_piece(f"{key}.scale", host(w.scale)))
    for key, t in tensors.items():
        descriptions[key] = {"dtype": t.dtype.name, "shape": list(t.shape)}
        pieces.append(_piece(f"{key}.weight", host(t.contiguous())))
    pieces += [_piece(FILE + side, np.frombuffer(data, np.uint8)) for side, data in files.items()]
    pieces.sort(key=lambda p: p.nbytes % 64 != 0)  # whole cache lines first: they stay aligned
    metadata = {
        "format": FORMAT, "version": VERSION, "name": name, "config": json.dumps(config.as_dict()), "weights": json.dumps(descriptions),
    }  # fmt: skip
    with appearing(path, folder=False, overwrite=overwrite) as temporary, open(temporary, "wb") as file:
        safetensors.write(file, metadata, pieces, progress=progress, total=sum(p.nbytes for p in pieces))
    return path


def _piece(name: str, data: np.ndarray[Any, Any]) -> Piece:
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return Piece(name, raw.shape, "U8", raw.nbytes, lambda: [raw])


# ---- reading


class Prepacked:
    """An opened file: its configuration, its side files, and its weights where they lie."""

    def __init__(self, path: Path, mapped: bool = True) -> None:
        self.path, self._file = path, safetensors.parse(map_file(path, mapped))
        metadata = self._file.metadata
        if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
            actual = f"format {visible(metadata.get('format', 'none'))!r}, version {visible(metadata.get('version', 'none'))!r}"
            remedy = "Write it again from the original with this version: tritium prepack MODEL OUT."
            raise fault(visible(path.name), actual, f"format {FORMAT!r}, version {VERSION}", remedy)
        self.name = visible(metadata.get("name", path.stem))
        self.config = Config.from_dict(self._json("config"))
        self._descriptions = self._json("weights")
        if unknown := sorted(set(self._descriptions) - set(names_in_prepacked(self.config))):
            listed = ", ".join(map(visible, unknown[:4]))
            raise fault(visible(path.name), f"weights that its configuration has no place for: {listed}", "none")

    def _json(self, key: str) -> dict[str, Any]:
        try:
            value = json.loads(self._file.metadata.get(key, ""))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise fault(f"{visible(self.path.name)}, {key}", "no JSON object", "what this format keeps there")
        return value

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Return the side files by name, copied out of the mapping."""
        return {
            name.removeprefix(FILE): bytes(self._file.data(name))
            for name in self._file.tensors
            if name.startswith(FILE)
        }

    def tensor(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return a weight on the memory of the file."""
        description = self._descriptions.get(key)
        where = f"{visible(self.path.name)}, weight {visible(key)!r}"
        if (
            not isinstance(description, dict)
            or str(description.get("dtype")) not in KINDS
            or not isinstance(description.get("shape"), list)
        ):
            raise fault(where, "no dtype and shape", "both")
        stored_shape = tuple(description["shape"])
        if not all(isinstance(n, int) and 0 <= n <= 1 << 32 for n in stored_shape) or (
            shape is not None and stored_shape != shape
        ):
            raise fault(where, f"shape {visible(str(list(stored_shape)))}", f"{list(shape or ())} by the configuration")
        return self._mapped(f"{key}.weight", Spec(stored_shape, KINDS[description["dtype"]]), where)

    def _mapped(self, name: str, spec: Spec, where: str) -> Tensor:
        raw = np.frombuffer(self._file.data(name), np.uint8) if name in self._file.tensors else None
        if raw is None or raw.nbytes != spec.nbytes:
            raise fault(where, "nothing" if raw is None else f"{raw.nbytes} bytes", f"{spec.nbytes} bytes for {spec}")
        seen = from_numpy(raw, device="cpu")
        if raw.ctypes.data % (LINE if spec.dtype.is_packed else spec.dtype.nbytes):
            seen = seen.clone()  # our own files are aligned; kernels read tiles by whole lines
        return Tensor(seen.storage, spec.dtype, spec.shape, spec.strides, 0)

    def source(self) -> Source:
        """Return the weights as a network needs them."""

        def linear(p: Product, norm: Tensor | None) -> QuantLinear:
            return self._linear(p.name, (p.rows, p.columns), norm)

        def plain(p: Plain) -> Tensor | QuantLinear:
            scaled = len(p.shape) == 2 and self._is_scaled(p.name)
            return self._linear(p.name, p.shape) if scaled else self.tensor(p.name, p.shape).to(dt.f32)

        def experts(p: Product) -> Experts:
            shape = (p.experts, p.rows, p.columns)
            data, scale, group, activations = self._scaled(p.name, shape)
            base = quant.CANONICAL.get(data.dtype, data.dtype)
            here = data if data.dtype is device("cpu").backend.tiling(base) else ops.repack(data, base)
            scales = asarray(scale.reshape(*shape[:2], *((-1,) if group else ())), device="cpu")
            return Experts(here, scales, group, activations=activations)

        def stored(key: str) -> Tensor | QuantLinear:
            shape = (self.config.vocab_size, self.config.hidden_size)
            return self._linear(key, shape) if self._is_scaled(key) else self.tensor(key, shape)

        table = stored(EMBEDDING)
        return Source(
            linear, plain, lambda: table, lambda: stored(HEAD) if HEAD in self._descriptions else table, experts
        )

    def with_copy(self, network: Network) -> Network:
        """Return the network with the int8 copy of its head, where the file has one."""
        table, rows = network.head.weight, (self.config.vocab_size,)
        reason = refusal(table, True)
        if reason or COPY not in self._descriptions:
            return network._replace(uncertified=reason or NO_COPY)
        assert isinstance(table, Tensor)
        copy = self._linear(COPY, table.shape)
        error, norm = self.tensor(COPY_ERROR, rows), self.tensor(COPY_NORM, rows)
        floats = error.dtype is dt.f32 and norm.dtype is dt.f32
        if copy.weight.scheme != "i8" or copy.weight.group or copy.activations != "token" or not floats:
            needed = "int8 for tokens of int8, and f32 for its bounds"
            raise fault(f"{visible(self.path.name)}, weight {COPY!r}", f"{copy}", needed)
        try:
            head = CertifiedHead(table, copy, error, norm, network.head.multiplier)
        except ArgumentError as error:
            raise FormatError(f"{visible(self.path.name)}: {error}") from None
        return network._replace(certified=head)

    def _is_scaled(self, key: str) -> bool:
        """Return True if a weight is integers with scales."""
        description = self._descriptions.get(key)
        return isinstance(description, dict) and "group" in description

    def _scaled(self, key: str, shape: tuple[int, ...]) -> tuple[Tensor, np.ndarray[Any, Any], int, str]:
        """Return the integers of a weight, its scales in one row, the columns that share one (0: a row or all do), and how
        activations are quantised."""
        data = self.tensor(key, shape)
        where = f"{visible(self.path.name)}, weight {visible(key)!r}"
        group = self._descriptions[key].get("group", 0)
        raw = self._file.tensors.get(f"{key}.scale")
        kind = SCALES.get(str(self._descriptions[key].get("scale", "f32")))
        activations = self._descriptions[key].get("activations", "token")
        sized = kind is not None and isinstance(group, int) and group >= 0
        if raw is None or kind is None or not sized or raw.nbytes not in _scale_sizes(shape, group, kind.itemsize):
            raise fault(
                where, "no scale of the right size", f"one for {list(shape)} in groups of {visible(str(group))}"
            )
        if activations not in ops.ACTIVATIONS or (activations == "group" and not group):
            raise fault(where, f"activations {visible(str(activations))}", "'token', 'float', or in groups 'group'")
        scale = np.frombuffer(self._file.data(f"{key}.scale"), np.uint8).copy().view(kind)
        if not np.isfinite(scale).all():
            raise fault(where, "a scale that is no number", "finite scales")
        return data, scale, group, activations

    def _linear(self, key: str, shape: tuple[int, ...], norm: Tensor | None = None) -> QuantLinear:
        data, scale, group, activations = self._scaled(key, shape)
        scale = scale.reshape(shape[0], -1) if group else scale if scale.size > 1 else scale.reshape(())
        base = quant.CANONICAL.get(data.dtype, data.dtype)
        weight = quant.Quantized(
            "ternary" if base.is_ternary else base.name, data, asarray(scale, device="cpu"), None, group
        )
        if device("cpu").backend.tiling(base) is not data.dtype:
            weight = weight.plain().tiled()  # made on another kind of machine
        if base.is_ternary:
            return BitLinear(weight, norm=norm, eps=self.config.eps, activations=activations)
        return QuantLinear(weight, activations=activations)


def _scale_sizes(shape: tuple[int, ...], group: int, itemsize: int) -> set[int]:
    """Return the possible bytes of the scales of a matrix, or of a stack of them."""
    rows = prod(shape[:-1])
    numbers = {rows * -(-shape[-1] // group)} if group > 0 else {1, rows} if len(shape) == 2 else {rows}
    return {itemsize * n for n in numbers}
