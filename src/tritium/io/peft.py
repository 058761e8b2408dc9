"""Adapters as PEFT writes them: adapter_config.json and adapter_model.safetensors in a folder.

What a file says is checked before memory is spent; fields that ask for another arithmetic than plain or rank-stabilised LoRA are
refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritium.errors import FormatError, MissingFileError
from tritium.escape import visible
from tritium.io import safetensors
from tritium.io.reader import map_file
from tritium.machine.files import read_bytes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
MOST_CONFIG, MOST_WEIGHTS = 1 << 20, 8 << 30  # bytes
MOST_RANK = 1 << 16
FLOATS = ("F32", "F16", "BF16", "F64")
PLAIN: dict[str, tuple[Any, ...]] = {  # fields that must say nothing: what they ask for is another arithmetic
    "use_dora": (False, None), "lora_bias": (False, None), "fan_in_fan_out": (False, None), "bias": ("none", None), "alpha_pattern": ({}, None),
    "rank_pattern": ({}, None), "modules_to_save": (None, []), "layer_replication": (None, []), "trainable_token_indices": (None, []),
    "alora_invocation_tokens": (None, []), "target_parameters": (None, []), "use_qalora": (False, None), "use_bdlora": (False, None),
}  # fmt: skip


@dataclass(frozen=True)
class AdapterFile:
    """An opened folder: its configuration, and for each layer the names of its A and B, whose shapes are those of the layer."""

    config: dict[str, Any]
    tensors: safetensors.SafetensorsFile
    pairs: dict[str, tuple[str, str]]

    @property
    def rank(self) -> int:
        return int(self.config["r"])

    @property
    def scaling(self) -> float:
        """Return the factor of B A: alpha / rank, or alpha / √rank where it is rank-stabilised."""
        return float(self.config["lora_alpha"]) / (math.sqrt(self.rank) if self.config.get("use_rslora") else self.rank)

    def arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Yield the name of each layer and its A [rank, columns] and B [rows, rank]; raise where a number is not finite."""
        for layer, names in self.pairs.items():
            a, b = (self.tensors.array(name) for name in names)
            for name, array in zip(names, (a, b), strict=True):
                if not np.isfinite(array.astype(np.float32)).all():
                    raise FormatError(
                        f"{visible(name)}: found a number that is not finite; the adapter was not trained well."
                    )
            yield layer, a, b


def open_adapter(folder: str | Path, shapes: Mapping[str, tuple[int, int]]) -> AdapterFile:
    """Open a folder for a model whose layers have these names and shapes [rows, columns]; its weights are mapped, not read."""
    folder = Path(folder)
    config = read_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        raise MissingFileError(f"adapter: there is no {WEIGHTS} in {folder}; adapters in .bin files are not read.")
    if path.stat().st_size > MOST_WEIGHTS:
        raise FormatError(f"adapter: {path} has {path.stat().st_size} bytes; an adapter has at most {MOST_WEIGHTS}.")
    tensors = safetensors.parse(map_file(path))
    return AdapterFile(config, tensors, _pairs(tensors, shapes, config["r"], path))


def read_config(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json, checked: LoRA's, with rank and alpha, and nothing else than these layers compute."""
    path = folder / CONFIG
    if not path.is_file():
        raise MissingFileError(f"adapter: there is no {CONFIG} in {folder}; PEFT's save_pretrained writes one.")
    try:
        config = json.loads(read_bytes(path, MOST_CONFIG))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"adapter: {path} is no JSON: {str(error)[:100]}.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise FormatError(f"adapter: {path} has peft_type {str(kind)[:40]!r}; only 'LORA' is read.")
    for name, values in PLAIN.items():
        if config.get(name) not in values:
            raise FormatError(
                f"adapter: {path} has {name} = {str(config[name])[:60]}, which these layers do not compute; train without it, "
                "or merge in PEFT."
            )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MOST_RANK:
        raise FormatError(f"adapter: {path} has r = {str(rank)[:40]}; a rank from 1 to {MOST_RANK} is needed.")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not np.isfinite(alpha):
        raise FormatError(f"adapter: {path} has lora_alpha = {str(alpha)[:40]}; a number is needed.")
    return config


def _pairs(
    file: safetensors.SafetensorsFile, shapes: Mapping[str, tuple[int, int]], rank: int, path: Path
) -> dict[str, tuple[str, str]]:
    """Return the names of A and B of each layer; raise for a layer that the model does not have, another shape, or half a pair."""
    names: dict[str, dict[str, str]] = {}
    for key, tensor in file.tensors.items():
        name, dot, part = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        if not dot or part not in ("A", "B") or name not in shapes:
            raise FormatError(
                f"adapter: {path} has the tensor {key[:120]!r}, and the model no ternary layer of that name; these are "
                f"{', '.join(list(shapes)[:4])}, …."
            )
        rows, columns = shapes[name]
        needed = (rank, columns) if part == "A" else (rows, rank)
        if tensor.shape != needed or tensor.dtype not in FLOATS:
            raise FormatError(
                f"adapter: {key[:120]} is {tensor.dtype}{list(tensor.shape)}; the layer needs floats of {list(needed)}."
            )
        names.setdefault(name, {})[part] = key
    for name, parts in names.items():
        if len(parts) < 2:
            raise FormatError(f"adapter: {path} has only one of lora_A and lora_B for {name}.")
    if not names:
        raise FormatError(f"adapter: {path} has no tensor.")
    return {name: (parts["A"], parts["B"]) for name, parts in names.items()}
