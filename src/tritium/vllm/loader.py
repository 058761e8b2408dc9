"""The load format `tritium` of vLLM: weights from any file that `tritium.io` reads, of each weight the rows of this rank.

The folder has a config.json, as vLLM needs it, and the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size, get_tp_group
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from tritium import io
from tritium.errors import ArgumentError, FormatError
from tritium.io.model import experts
from tritium.io.model.entry import ModelFile
from tritium.models.load import read_config
from tritium.vllm.method import TernaryConfig
from tritium.vllm.rows import narrowest, tensors

TABLES = ("model.embed_tokens.weight", "lm_head.weight")


NO_GROUPS = 1 << 30  # more columns than a weight has


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
        file = opened(model_config.model)
        learn(config, file)
        self._file, self._group = file, config.group
        return super().load_model(vllm_config, model_config, prefix)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Load the weights of the file into a model."""
        model.load_weights(tensors(self._file, self._group))


def opened(folder: str) -> ModelFile:
    """Open the one model file of a folder."""
    path = Path(folder)
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if len(files) > 1:
        raise FormatError(f"{path.name}: found {len(files)} GGUF files, needed one.")
    return io.open(files[0] if files else path)


def learn(config: TernaryConfig, file: ModelFile) -> None:
    """Set the groups, the tables and the activations of a quantisation as a file has them; each rank reads its part of every weight."""
    if experts.has_stacks(file.entries.values()):
        raise FormatError(
            f"{file.path.name}: found a mixture of experts, needed dense layers; it is not supported in vLLM."
        )
    checked = read_config(file)
    ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
    own = narrowest(file, rank, ranks)
    if ranks > 1:  # a part may need fewer groups than the whole; their number decides the bits
        least = torch.tensor(own or NO_GROUPS)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, get_tp_group().cpu_group)
        own = 0 if least == NO_GROUPS else int(least)
    config.group = own
    config.tables = file.named[TABLES[0]].role == "ternary"
    config.activations = checked.description.activations(config.group)[0]
