"""Our own model file: weights as the kernels read them, so that a model is mapped instead of loaded.

Knows nothing of other formats. It is a safetensors file: `__metadata__` holds the configuration and what each tensor is;
side files of the tokenizer are tensors of bytes named "file:…". Tiles suit one kind of machine; another repacks them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tritium import dtype as dt, quant
from tritium.backends import device
from tritium.buffer import host, in_bytes
from tritium.escape import visible
from tritium.families.config import Config
from tritium.functions import asarray
from tritium.interop import from_numpy
from tritium.io import safetensors
from tritium.io.reader import fault, map_file
from tritium.io.stream import Piece, Progress, appearing
from tritium.models.parts import EMBEDDING, HEAD, NORM, Part, names_in_prepacked
from tritium.models.weights import Network, Source, placed
from tritium.nn.linear import BitLinear, QuantLinear
from tritium.nn.transformer import Parallel
from tritium.op import Spec
from tritium.tensor import Tensor

FORMAT, VERSION = "tritium", "1"
LINE = 64  # bytes of a cache line
FILE = "file:"  # before the name of a side file
KINDS = {t.name: t for t in (*dt.FLOATS, dt.i8, *dt.PACKED)}


def is_prepacked(view: memoryview | bytes) -> bool:
    """Whether the bytes of a file are one of ours, by the first words of its header."""
    return b'"__metadata__":{"format":"tritium"' in bytes(view[8:64])


# ---- writing


def linears(network: Network) -> dict[str, QuantLinear]:
    """Return every product with quantised weights, by the name it has in a file."""
    layers: dict[str, QuantLinear] = {}
    for i, (block, parts) in enumerate(zip(network.blocks, network.parts, strict=True)):
        modules = placed(block)
        for place, products in parts.products.items():
            module = modules[place]
            singles = module.parts if isinstance(module, Parallel) else (module,)
            layers |= {f"model.layers.{i}.{p.name}": layer for p, layer in zip(products, singles, strict=True)}
    table, head = network.embedding.weight, network.head.weight
    if isinstance(table, QuantLinear):
        layers[EMBEDDING] = table
    if isinstance(head, QuantLinear) and head is not table:
        layers[HEAD] = head
    return layers


def plain(network: Network) -> dict[str, Tensor]:
    """Return everything else: norms, the embedding, a float head of its own."""
    tensors, table = {NORM: network.head.norm.weight}, network.embedding.weight
    if isinstance(table, Tensor):
        tensors[EMBEDDING] = table
    for i, (block, parts) in enumerate(zip(network.blocks, network.parts, strict=True)):
        modules = placed(block)
        tensors |= {f"model.layers.{i}.{v.name}": modules[place].weight for place, v in parts.vectors.items()}
    for name, layer in linears(network).items():
        if isinstance(layer, BitLinear) and layer.norm is not None:
            tensors[f"{name}.norm"] = layer.norm
    head = network.head.weight
    if isinstance(head, Tensor) and head is not table:
        tensors[HEAD] = head
    return tensors


def nbytes(network: Network) -> int:
    """Bytes of all weights."""
    return sum(q.nbytes for q in linears(network).values()) + sum(t.nbytes for t in plain(network).values())


def save(
    network: Network, config: Config, files: Mapping[str, bytes], path: Path, *, name: str = "", overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:  # fmt: skip
    """Write the file; it appears whole or not at all."""
    about: dict[str, Any] = {}
    pieces: list[Piece] = []
    for key, layer in linears(network).items():
        w = layer.weight
        about[key] = {"dtype": w.data.dtype.name, "shape": list(w.shape), "group": w.group}
        pieces.append(_piece(f"{key}.weight", host(in_bytes(w.data)) if w.data.dtype.is_packed else host(w.data)))
        pieces.append(_piece(f"{key}.scale", host(layer.weight.scale)))  # type: ignore[arg-type]
    for key, t in plain(network).items():
        about[key] = {"dtype": t.dtype.name, "shape": list(t.shape)}
        pieces.append(_piece(f"{key}.weight", host(t.contiguous())))
    pieces += [_piece(FILE + side, np.frombuffer(data, np.uint8)) for side, data in files.items()]
    pieces.sort(key=lambda p: p.nbytes % 64 != 0)  # whole cache lines first: they stay aligned
    metadata = {
        "format": FORMAT, "version": VERSION, "name": name, "config": json.dumps(config.as_dict()), "weights": json.dumps(about),
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
        said = self._file.metadata
        if said.get("format") != FORMAT or said.get("version") != VERSION:
            found = f"format {visible(said.get('format', 'none'))!r}, version {visible(said.get('version', 'none'))!r}"
            remedy = "Write it again from the original with this version: tritium prepack MODEL OUT."
            raise fault(visible(path.name), found, f"format {FORMAT!r}, version {VERSION}", remedy)
        self.name = visible(said.get("name", path.stem))
        self.config = Config.from_dict(self._json("config"))
        self._about = self._json("weights")
        if unknown := sorted(set(self._about) - set(names_in_prepacked(self.config))):
            listed = ", ".join(map(visible, unknown[:4]))
            raise fault(visible(path.name), f"weights that its configuration has no place for: {listed}", "none")

    def _json(self, key: str) -> dict[str, Any]:
        try:
            found = json.loads(self._file.metadata.get(key, ""))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise fault(f"{visible(self.path.name)}, {key}", "no JSON object", "what this format keeps there")
        return found

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Side files by name, copied out of the mapping."""
        return {
            name.removeprefix(FILE): bytes(self._file.data(name))
            for name in self._file.tensors
            if name.startswith(FILE)
        }

    def tensor(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """A weight on the memory of the file."""
        about = self._about.get(key)
        where = f"{visible(self.path.name)}, weight {visible(key)!r}"
        if (
            not isinstance(about, dict)
            or str(about.get("dtype")) not in KINDS
            or not isinstance(about.get("shape"), list)
        ):
            raise fault(where, "no dtype and shape", "both")
        found = tuple(about["shape"])
        if not all(isinstance(n, int) and 0 <= n <= 1 << 32 for n in found) or (shape is not None and found != shape):
            raise fault(where, f"shape {visible(str(list(found)))}", f"{list(shape or ())} by the configuration")
        return self._mapped(f"{key}.weight", Spec(found, KINDS[about["dtype"]]), where)

    def _mapped(self, name: str, spec: Spec, where: str) -> Tensor:
        raw = np.frombuffer(self._file.data(name), np.uint8) if name in self._file.tensors else None
        if raw is None or raw.nbytes != spec.nbytes:
            raise fault(where, "nothing" if raw is None else f"{raw.nbytes} bytes", f"{spec.nbytes} bytes for {spec}")
        seen = from_numpy(raw, device="cpu")
        if raw.ctypes.data % (LINE if spec.dtype.is_packed else spec.dtype.nbytes):
            seen = seen.clone()  # our own files are aligned; kernels read tiles by whole lines
        return Tensor(seen.storage, spec.dtype, spec.shape, spec.strides, 0)

    def source(self) -> Source:
        """The weights as a network wants them."""

        def linear(name: str, parts: tuple[Part, ...], rows: int, columns: int, norm: Tensor | None) -> QuantLinear:
            return self._linear(name, (rows, columns), norm)

        def vector(name: str, size: int) -> Tensor:
            return self.tensor(name.removesuffix(".weight"), (size,)).to(dt.f32)

        def stored(key: str) -> Tensor | QuantLinear:
            about, shape = self._about.get(key), (self.config.vocab_size, self.config.hidden_size)
            scaled = isinstance(about, dict) and "group" in about
            return self._linear(key, shape) if scaled else self.tensor(key, shape)

        table = stored(EMBEDDING)
        return Source(linear, vector, lambda: table, lambda: stored(HEAD) if HEAD in self._about else table)

    def _linear(self, key: str, shape: tuple[int, int], norm: Tensor | None = None) -> QuantLinear:
        data = self.tensor(key, shape)
        where = f"{visible(self.path.name)}, weight {visible(key)!r}"
        group = self._about[key].get("group", 0)
        raw = self._file.tensors.get(f"{key}.scale")
        if raw is None or not isinstance(group, int) or group < 0 or raw.nbytes not in _scale_sizes(shape, group):
            raise fault(
                where, "no scale of the right size", f"one for {list(shape)} in groups of {visible(str(group))}"
            )
        scale = np.frombuffer(self._file.data(f"{key}.scale"), np.uint8).copy().view(np.float32)
        if not np.isfinite(scale).all():
            raise fault(where, "a scale that is no number", "finite scales")
        scale = scale.reshape(shape[0], -1) if group else scale if scale.size > 1 else scale.reshape(())
        base = quant.CANONICAL.get(data.dtype, data.dtype)
        weight = quant.Quantized(
            "ternary" if base.is_ternary else base.name, data, asarray(scale, device="cpu"), None, group
        )
        if device("cpu").backend.tiling(base) is not data.dtype:
            weight = weight.plain().tiled()  # made on another kind of machine
        return BitLinear(weight, norm=norm, eps=self.config.eps) if base.is_ternary else QuantLinear(weight)


def _scale_sizes(shape: tuple[int, int], group: int) -> set[int]:
    return {4 * shape[0] * -(-shape[1] // group)} if group > 0 else {4, 4 * shape[0]}
