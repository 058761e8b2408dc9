"""Adapters of small random matrices, written as PEFT does, for the layers of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tiny

SHAPES = {f"model.layers.{i}.{name}": shape for i in range(tiny.LAYERS) for name, shape in tiny.PROJECTIONS.items()}


def write(
    folder: Path, shapes: Mapping[str, tuple[int, int]] = SHAPES, *, rank: int = 3, seed: int = 0, ends: tuple[str, ...] = ("",),
    size: float = 0.3, kind: Any = np.float32, changes: Mapping[str, Any] | None = None, **config: Any,
) -> Path:  # fmt: skip
    """Write adapters for the layers whose names have one of these ends; `changes` are other tensors by name, None for none."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for name, (rows, columns) in shapes.items():
        if name.endswith(ends):
            for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                key = f"base_model.model.{name}.lora_{part}.weight"
                tensors[key] = (rng.normal(size=shape) * size / np.sqrt(shape[1])).astype(kind)
    tensors |= changes or {}
    folder.mkdir()
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"]} | config
    (folder / "adapter_config.json").write_text(json.dumps(about))
    tiny.save(folder / "adapter_model.safetensors", {k: v for k, v in tensors.items() if v is not None})
    return folder
