"""The load format `tritium` of vLLM: weights from any file that `tritium.io` reads, one tensor at a time.

Knows nothing of how vLLM multiplies them. The folder has a config.json, as vLLM needs it, and the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from tritium import io
from tritium.errors import ArgumentError, FormatError
from tritium.io.model import experts
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.reader import forget
from tritium.models.load import read_config
from tritium.vllm.method import TernaryConfig

TABLES = ("model.embed_tokens.weight", "lm_head.weight")


class FileLoader(BaseModelLoader):
    """Loads GGUF files and whatever else `tritium.io` opens."""

    def download_model(self, model_config: Any) -> None:
        """Do nothing: the model is a folder here."""

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """Load a model, after its quantisation has learnt from the file what scales and tables it has."""
        config = vllm_config.quant_config
        if not isinstance(config, TernaryConfig):
            raise ArgumentError(
                "load_format 'tritium' was given without quantization='tritium', by which its weights are multiplied."
            )
        found = opened(model_config.model)
        learn(config, found)
        self._found, self._group = found, config.group
        return super().load_model(vllm_config, model_config, prefix)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Load the weights of the file into a model."""
        model.load_weights(tensors(self._found, self._group))


def opened(folder: str) -> ModelFile:
    """Open the one model file of a folder."""
    path = Path(folder)
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if len(files) > 1:
        raise FormatError(f"{path.name}: found {len(files)} GGUF files, needed one.")
    return io.open(files[0] if files else path)


def _ternary(found: ModelFile) -> Iterator[io.Ternary]:
    for entry in found.entries.values():
        if entry.role == "ternary":
            yield entry.ternary()
            forget(entry.raw())


def learn(config: TernaryConfig, found: ModelFile) -> None:
    """Set the groups, the tables and the activations of a quantisation as a file has them."""
    if experts.has_stacks(found.entries.values()):
        raise FormatError(
            f"{found.path.name}: found a mixture of experts, needed dense layers; it is not supported in vLLM."
        )
    checked = read_config(found)
    groups = {t.group for t in _ternary(found)} - {0}
    named = found.named
    config.group = min(groups, default=0)
    config.tables = named[TABLES[0]].role == "ternary"
    config.activations = checked.description.activations(config.group)[0]


def tensors(found: ModelFile, group: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a file by Hugging Face's names: integers and scales, for groups of so many columns, of ternary ones, numbers
    of the others."""
    for name, entry in found.named.items():
        if entry.role == "ternary":
            t = entry.ternary()
            scale = t.regrouped(group).scale
            yield name, torch.from_numpy(t.values())
            rows = scale if scale.ndim else np.full(t.shape[0], scale, np.float32)
            yield f"{name.removesuffix('.weight')}.weight_scale", torch.from_numpy(np.ascontiguousarray(rows))
        else:
            yield name, _numbers(entry)


def _numbers(entry: Entry) -> torch.Tensor:
    numbers = entry.float32()
    return torch.from_numpy(np.array(numbers + np.float32(entry.shift) if entry.shift else numbers))
