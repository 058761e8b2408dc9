"""Adapters as PEFT's files: adapter_config.json and adapter_model.safetensors in a folder, which PEFT reads and writes too.

What a file says is checked before memory is spent; fields whose meaning the layers do not have are refused by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tritium.errors import ArgumentError
from tritium.io import safetensors
from tritium.io.peft import CONFIG, PREFIX, WEIGHTS, open_adapter, read_config
from tritium.io.stream import Piece
from tritium.machine.files import replacing
from tritium.torch.adapters import LoraLinear, PackedLinear, add_adapters, lora_linears, pack_linears, remove_adapters

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
KINDS = {dtype: name for name, dtype in FLOATS.items()}


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


def load_adapters(model: nn.Module, folder: str | Path, *, trainable: bool = False) -> nn.Module:
    """Give a ternary model the adapters of a PEFT folder, in the place of any it has; its weights are packed and frozen.

    `trainable` continues their training; otherwise they are frozen too.
    """
    read_config(Path(folder))
    remove_adapters(model)
    pack_linears(model)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, PackedLinear)}
    adapter = open_adapter(folder, {n: (m.out_features, m.in_features) for n, m in layers.items()})
    config, file, pairs = adapter.config, adapter.tensors, adapter.pairs
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


@torch.no_grad()
def _fill(layer: LoraLinear, file: Any, names: tuple[str, str]) -> None:
    for module, name in zip((layer.lora_A, layer.lora_B), names, strict=True):
        tensor = file.tensors[name]
        flat = torch.frombuffer(bytearray(file.data(name)), dtype=FLOATS[tensor.dtype])
        module.weight.copy_(flat.view(tensor.shape))
