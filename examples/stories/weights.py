"""Reads the weights and the vocabulary of SmolLM2-135M-Instruct from its GGUF file. Needs no GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import tritium as tt


def read_weights(path: str | Path, device: str) -> tuple[dict[str, torch.Tensor], list[str], list[str]]:
    """Return the weights in bf16, the tokens and the merges of SmolLM2's GGUF file."""
    file = tt.io.open(path)
    weights = {
        name: torch.from_numpy(np.array(entry.float32())).to(device, torch.bfloat16)
        for name, entry in file.named.items()
    }
    lists = (list(file.metadata[f"tokenizer.ggml.{name}"]) for name in ("tokens", "merges"))
    return weights, *lists
