"""Adapters as PEFT's files: adapter_config.json and adapter_model.safetensors in a folder, which PEFT reads and writes too.

Knows nothing of training. What a file says is checked before memory is spent; fields whose meaning the layers do not have are
refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tritium.errors import ArgumentError, FormatError, MissingFileError
from tritium.io import safetensors
from tritium.io.stream import Piece
from tritium.machine.files import read_bytes, replacing
from tritium.torch.adapters import LoraLinear, PackedLinear, add_adapters, lora_linears, pack_linears, remove_adapters

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
MOST_CONFIG, MOST_WEIGHTS = 1 << 20, 8 << 30  # bytes
MOST_RANK = 1 << 16
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
KINDS = {dtype: name for name, dtype in FLOATS.items()}
PLAIN: dict[str, tuple[Any, ...]] = {  # fields that must say nothing: what they ask for is another arithmetic
    "use_dora": (False, None), "lora_bias": (False, None), "fan_in_fan_out": (False, None), "bias": ("none", None), "alpha_pattern": ({}, None),
    "rank_pattern": ({}, None), "modules_to_save": (None, []), "layer_replication": (None, []), "trainable_token_indices": (None, []),
    "alora_invocation_tokens": (None, []), "target_parameters": (None, []), "use_qalora": (False, None), "use_bdlora": (False, None),
}  # fmt: skip


def save_adapters(
    model: nn.Module, folder: str | Path, *, base: str | None = None, task: str | None = "CAUSAL_LM"
) -> None:
    """Write the adapters of a model as PEFT does. The folder appears whole or not at all; `base` is the name of the model they belong to,
    `task` PEFT's task type: None for a model that is none of transformers."""
    layers = lora_linears(model)
    if not layers:
        raise ArgumentError("save_adapters: the model has no adapter; add_adapters first.")
    first = next(iter(layers.values()))
    if len({(m.rank, m.alpha, m.rank_stabilised) for m in layers.values()}) > 1:
        raise ArgumentError("save_adapters: adapters differ in rank or alpha; a file has one of each.")
    config = {
        "peft_type": "LORA", "task_type": task, "base_model_name_or_path": base, "r": first.rank, "lora_alpha": first.alpha,
        "lora_dropout": first.dropout.p, "target_modules": sorted(layers), "use_rslora": first.rank_stabilised, "bias": "none",
        "fan_in_fan_out": False, "init_lora_weights": True, "inference_mode": True, "modules_to_save": None,
    }  # fmt: skip
    pieces = [
        _piece(f"{PREFIX}{name}.lora_{part}.weight", getattr(layer, f"lora_{part}").weight)
        for name, layer in sorted(layers.items())
        for part in "AB"
    ]
    with replacing(Path(folder), folder=True) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        with (temporary / WEIGHTS).open("xb") as file:
            safetensors.write(file, {"format": "pt"}, pieces)


def _piece(name: str, weight: torch.Tensor) -> Piece:
    flat = weight.detach().cpu().contiguous()
    bytes_ = flat.view(torch.uint8).reshape(-1).numpy()
    return Piece(name, tuple(flat.shape), KINDS[flat.dtype], bytes_.nbytes, lambda: [bytes_])


def read_config(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json, checked: LoRA's, with rank and alpha, and nothing else than these layers compute."""
    path = folder / CONFIG
    if not path.is_file():
        raise MissingFileError(f"load_adapters: there is no {CONFIG} in {folder}; PEFT's save_pretrained writes one.")
    try:
        config = json.loads(read_bytes(path, MOST_CONFIG))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"load_adapters: {path} is no JSON: {str(error)[:100]}.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise FormatError(f"load_adapters: {path} has peft_type {str(kind)[:40]!r}; only 'LORA' is read.")
    for name, values in PLAIN.items():
        if config.get(name) not in values:
            raise FormatError(
                f"load_adapters: {path} has {name} = {str(config[name])[:60]}, which these layers do not compute; train without it, "
                "or merge in PEFT."
            )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MOST_RANK:
        raise FormatError(f"load_adapters: {path} has r = {str(rank)[:40]}; a rank from 1 to {MOST_RANK} is needed.")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not np.isfinite(alpha):
        raise FormatError(f"load_adapters: {path} has lora_alpha = {str(alpha)[:40]}; a number is needed.")
    return config


def load_adapters(model: nn.Module, folder: str | Path, *, trainable: bool = False) -> nn.Module:
    """Give a ternary model the adapters of a PEFT folder, in the place of any it has; its weights are packed and frozen.

    `trainable` continues their training; otherwise they are frozen too.
    """
    folder = Path(folder)
    config = read_config(folder)
    if not (folder / WEIGHTS).is_file():
        raise MissingFileError(
            f"load_adapters: there is no {WEIGHTS} in {folder}; adapters in .bin files are not read."
        )
    file = safetensors.parse(read_bytes(folder / WEIGHTS, MOST_WEIGHTS))
    remove_adapters(model)
    pack_linears(model)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, PackedLinear)}
    pairs = _pairs(file, layers, config["r"], folder / WEIGHTS)
    kinds = {file.tensors[name].dtype for pair in pairs.values() for name in pair}
    dtype = FLOATS[kinds.pop()] if len(kinds) == 1 else torch.float32
    dropout = config.get("lora_dropout", 0.0)
    add_adapters(
        model, rank=config["r"], alpha=config["lora_alpha"], targets=list(pairs), dtype=dtype,
        rank_stabilised=bool(config.get("use_rslora")),
        dropout=dropout if isinstance(dropout, int | float) and 0 <= dropout <= 1 else 0.0,
    )  # fmt: skip
    for name, layer in lora_linears(model).items():
        _fill(layer, file, pairs[name])
        layer.lora_A.requires_grad_(trainable)
        layer.lora_B.requires_grad_(trainable)
    return model


def _pairs(file: Any, layers: Mapping[str, PackedLinear], rank: int, path: Path) -> dict[str, tuple[str, str]]:
    """Return the names of A and B of each layer; raise for a layer that the model does not have, another shape, or half a pair."""
    names: dict[str, dict[str, str]] = {}
    for key, tensor in file.tensors.items():
        name, dot, part = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        if not dot or part not in ("A", "B") or name not in layers:
            raise FormatError(
                f"load_adapters: {path} has the tensor {key[:120]!r}, and the model no ternary layer of that name; these are "
                f"{', '.join(list(layers)[:4])}, …."
            )
        base = layers[name]
        needed = (rank, base.in_features) if part == "A" else (base.out_features, rank)
        if tensor.shape != needed or tensor.dtype not in FLOATS:
            raise FormatError(
                f"load_adapters: {key[:120]} is {tensor.dtype}{list(tensor.shape)}; the layer needs floats of {list(needed)}."
            )
        names.setdefault(name, {})[part] = key
    for name, parts in names.items():
        if len(parts) < 2:
            raise FormatError(f"load_adapters: {path} has only one of lora_A and lora_B for {name}.")
    if not names:
        raise FormatError(f"load_adapters: {path} has no tensor.")
    return {name: (parts["A"], parts["B"]) for name, parts in names.items()}


@torch.no_grad()
def _fill(layer: LoraLinear, file: Any, names: tuple[str, str]) -> None:
    for module, name in zip((layer.lora_A, layer.lora_B), names, strict=True):
        tensor = file.tensors[name]
        flat = torch.frombuffer(bytearray(file.data(name)), dtype=FLOATS[tensor.dtype])
        module.weight.copy_(flat.view(tensor.shape))
