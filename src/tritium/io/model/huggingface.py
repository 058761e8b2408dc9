"""Safetensors files as a model: packed weights joined with their scales, interpreted by the configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.families.common import check_quantization
from tritium.io import codecs, safetensors
from tritium.io.model import names
from tritium.io.model.entry import FLOATS, Entry, ModelFile, role_of
from tritium.io.model.supported import transform_in_config
from tritium.io.reader import contained, fault, map_file
from tritium.io.ternary import Array, Ternary, as_matrix


def shards(path: Path, index: dict[str, Any], mapped: bool = True) -> dict[str, memoryview]:
    """Map the files an index.json names, or read them."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise fault(
            "model.safetensors.index.json", f"weight_map of type {type(weight_map).__name__}", "an object of file names"
        )
    return {name: map_file(contained(path, name), mapped) for name in sorted(set(weight_map.values()))}


def check_index(files: dict[str, safetensors.SafetensorsFile], index: dict[str, Any]) -> None:
    """Raise unless every tensor of the index is in the file the index names for it."""
    for tensor, name in index["weight_map"].items():
        if tensor not in files[name].tensors:
            raise fault(visible(name), f"no tensor {visible(tensor)!r}", "it, as model.safetensors.index.json says")


def read(
    path: Path,
    views: dict[str, memoryview],
    config: dict[str, Any],
    index: dict[str, Any] | None,
    variant: str | None,
    ternarise: bool,
) -> ModelFile:
    """Read the model in one or several safetensors files."""
    files: dict[str, safetensors.SafetensorsFile] = {}
    owner: dict[str, str] = {}
    for name, view in views.items():
        try:
            files[name] = safetensors.parse(view)
        except FormatError as error:
            raise FormatError(f"{visible(name)}: {error}") from None
        if files[name].metadata.get("format") == "tritium":
            raise fault(
                visible(name), "a prepacked model", "GGUF, or safetensors in a layout others read",
                "It is for running (tritium generate); convert, verify and inspect the file it was made from.",
            )  # fmt: skip
        for tensor in files[name].tensors:
            if tensor in owner:
                raise fault(
                    visible(name),
                    f"tensor {visible(tensor)!r}, which {visible(owner[tensor])} has too",
                    "each tensor once",
                )
            owner[tensor] = name
    if index:
        check_index(files, index)
    metadata = next(iter(files.values())).metadata
    config = (
        _config_in(metadata) or config
    )  # a single file written here carries its own; a config.json beside it may be another model's
    inverted, masters, beliefs = _meaning(config, variant)
    tensors = _Tensors(files, owner, config, inverted, masters or ternarise, names.arch_of(config))
    entries = {name: tensors.entry(name) for name in owner if not tensors.is_part(name)}
    if not any(e.stored == "HF packed" for e in entries.values()):
        beliefs = [b for b in beliefs if "weight_scale" not in b]
    if masters and any(e.role == "master" for e in entries.values()):
        beliefs.append(
            "the floats of its projections are masters of ternary weights: the configuration is that of a BitNet"
        )
    notes = {key: text for file in files.values() for key, text in file.metadata.items() if key != "config"}
    reason = transform_in_config(config, notes, owner) or _unread_quantization(config, entries)
    return ModelFile(
        path=path, container="safetensors", entries=entries, metadata=metadata, config=config, arch=names.arch_of(config),
        beliefs=tuple(beliefs), inverted=inverted,
    ).refuse(reason)  # fmt: skip


def _unread_quantization(config: dict[str, Any], entries: dict[str, Entry]) -> str:
    """Return why MLX's weights cannot be decoded as `scale * q + bias`; "" where they can, or there are none."""
    if not any(e.stored.startswith("MLX") for e in entries.values()):
        return ""
    try:
        check_quantization("quantization", config.get("quantization"))
    except FormatError as error:
        return str(error)
    return ""


def _config_in(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration that a single file written here has in its header; {} where there is none."""
    text = metadata.get("config", "{}")
    if len(text) > 1 << 20:
        raise fault("safetensors metadata 'config'", f"{len(text)} characters", f"at most {1 << 20}")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise fault("safetensors metadata 'config'", "text that is not JSON", "a JSON object") from None
    return config if isinstance(config, dict) else {}


def _quantization(config: dict[str, Any]) -> dict[str, Any]:
    fields = config.get("quantization_config")
    return fields if isinstance(fields, dict) else {}


def _meaning(config: dict[str, Any], variant: str | None) -> tuple[bool | None, bool, list[str]]:
    """Return True if weight_scale divides (None: unknown), True if floats are masters, and the reasons."""
    quant = _quantization(config)
    method, linear = quant.get("quant_method"), quant.get("linear_class")
    arch = names.arch_of(config)
    masters = (
        method == "bitnet" or config.get("weight_bits") == 1 or (arch is not None and arch.gguf.startswith("bitnet"))
    )
    beliefs: list[str] = []
    if variant in ("multiply", "divide"):
        return variant == "divide", masters, [*beliefs, f"weight_scale is read to {variant}: requested"]
    if method != "bitnet":
        return None, masters, beliefs
    if linear == "autobitlinear":
        return False, masters, [*beliefs, "weight_scale multiplies: linear_class is 'autobitlinear'"]
    reason = f"is {visible(str(linear))!r}" if linear else "is missing, and 'bitlinear' is its default"
    return True, masters, [*beliefs, f"weight_scale divides: linear_class {reason}"]


@dataclass(frozen=True)
class _Tensors:
    """The tensors of a model's files, joined into entries."""

    files: dict[str, safetensors.SafetensorsFile]
    owner: dict[str, str]
    config: dict[str, Any]
    inverted: bool | None
    masters: bool
    arch: names.Arch | None

    def array(self, name: str) -> Array:
        return self.files[self.owner[name]].array(name)

    def info(self, name: str) -> safetensors.SafetensorsTensor:
        return self.files[self.owner[name]].tensors[name]

    def is_part(self, name: str) -> bool:
        """Return True if a tensor is a scale or bias of a packed weight, and so part of that weight's entry."""
        stem, _, kind = name.rpartition(".")
        weight = f"{stem}.weight" if stem else "weight"
        packed = self.info(weight).dtype if weight in self.owner else ""
        return (kind == "weight_scale" and packed == "U8") or (kind in ("scales", "biases") and packed == "U32")

    def entry(self, name: str) -> Entry:
        t = self.info(name)
        stem = name.removesuffix("weight")
        file = self.files[self.owner[name]]
        build: Callable[[str, safetensors.SafetensorsTensor], dict[str, Any]] = self._plain
        if name.endswith("weight") and len(t.shape) >= 2:
            packed = f"{stem}weight_scale" in self.owner or self.inverted is not None
            if t.dtype == "U8" and len(t.shape) == 2 and packed:
                build = self._packed
            elif t.dtype == "U32" and f"{stem}scales" in self.owner and f"{stem}biases" in self.owner:
                build = self._affine
        fields = {"nbytes": t.nbytes} | build(stem, t)
        fields |= {"arch": self.arch, "shift": names.norm_shift(name, self.arch)}
        return Entry(name=name, offset=t.offset, file=self.owner[name], raw=lambda: file.data(name), **fields)

    def _plain(self, stem: str, t: safetensors.SafetensorsTensor) -> dict[str, Any]:
        excluded = _quantization(self.config).get("modules_to_not_convert")
        skipped = isinstance(excluded, list) and any(isinstance(m, str) and m in t.name for m in excluded)
        role = "plain" if skipped else role_of(t.name, t.shape, t.dtype, self.masters, self.arch)
        return {"shape": t.shape, "stored": t.dtype, "numbers": lambda: self.array(t.name), "role": role}

    def _packed(self, stem: str, t: safetensors.SafetensorsTensor) -> dict[str, Any]:
        shape, scale = (4 * t.shape[0], t.shape[1]), f"{stem}weight_scale"

        def read(rows: slice | None = None) -> Ternary:
            if scale not in self.owner:
                raise fault("hf packing", f"no tensor {visible(scale)!r}", "a weight_scale beside the packed weight")
            if self.inverted is None:
                raise fault(
                    "hf packing", "no quantization_config that defines weight_scale", "linear_class in config.json",
                    "Pass variant='multiply' (mean|W|, as microsoft's 2B-4T) or variant='divide' (1/mean|W|, as Falcon).",
                )  # fmt: skip
            packed, stored = self.array(t.name), self._scale(scale)
            if rows is None:
                return codecs.hf.decode(packed, shape, stored, inverted=self.inverted)
            return codecs.hf.decode_rows(packed, shape, rows, stored, inverted=self.inverted)

        fields = {"shape": shape, "stored": "HF packed", "role": "ternary", "decode": read, "decode_rows": read}
        if scale in self.owner:
            fields |= {"scale": lambda: self._scale(scale), "nbytes": t.nbytes + self.info(scale).nbytes}
        return fields

    def _scale(self, name: str) -> Array:
        if self.info(name).dtype not in FLOATS:
            raise fault(f"tensor {visible(name)!r}", self.info(name).dtype, f"one of {', '.join(FLOATS)}")
        return self.array(name).astype(np.float32)

    def _affine(self, stem: str, t: safetensors.SafetensorsTensor) -> dict[str, Any]:
        scales, biases = f"{stem}scales", f"{stem}biases"
        *lead, words = t.shape
        columns = self.info(scales).shape[-1] if self.info(scales).shape else 0
        group, bits = self._grouping(stem.removesuffix("."), words, columns)
        k = words * 32 // bits
        size = t.nbytes + self.info(scales).nbytes + self.info(biases).nbytes
        fields: dict[str, Any] = {"shape": (*lead, k), "nbytes": size}
        if bits != 2:
            why = "Of MLX's formats only 2-bit ternary is read; convert from the original checkpoint."
            return fields | {"stored": f"MLX {bits}-bit", "refused": why}

        def read(rows: slice | None = None) -> Ternary:
            both = (self._scale(name) for name in (scales, biases))
            s, b = (x.reshape(as_matrix(x.shape)) if x.ndim == len(lead) + 1 else x for x in both)
            packed, shape = self.array(t.name), as_matrix((*lead, k))
            if rows is None:
                return codecs.mlx.decode(packed, shape, s, b, group)
            some = packed.reshape(shape[0], -1)[rows]
            return codecs.mlx.decode(some, (len(some), k), s[rows], b[rows], group)

        return fields | {
            "stored": f"MLX 2-bit g{group}",
            "role": "ternary",
            "decode": read,
            "decode_rows": read,
            "scale": lambda: self._scale(scales),
        }

    def _grouping(self, module: str, words: int, columns: int) -> tuple[int, int]:
        """Return (group size, bits) of a layer, from the configuration, or from the shapes for 2 bits."""
        quantization = self.config.get("quantization")
        quantization = quantization if isinstance(quantization, dict) else {}
        own = quantization.get(module)
        quantization = own if isinstance(own, dict) else quantization
        group, bits = quantization.get("group_size"), quantization.get("bits", 2)
        if not isinstance(bits, int) or bits not in (2, 3, 4, 6, 8):
            raise fault("config.json, quantization", f"bits {visible(repr(bits))}", "2, 3, 4, 6 or 8")
        if not isinstance(group, int) or not own:
            # a model may mix group sizes; the shapes imply them as well, and cannot be out of date
            group = words * 32 // bits // columns if columns else 0
        return group, bits
