"""Networks of each family in torch: the classes of transformers, and trees of modules for the families that it does not have."""

from __future__ import annotations

from typing import Any

import torch

from tritium.families.config import Config
from tritium.io.model import names
from tritium.models.parts import shapes_in_files
from tritium.torch import BitLinear

CLASSES = {  # of transformers; of them, vLLM's registry has all but BitNet's, and it has MiniCPM's
    "bitnet": ("BitNetConfig", "BitNetForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
}


def made(name: str, fields: dict[str, Any]) -> Any:
    """Return a model of transformers by a configuration."""
    import transformers

    config, model_class = (getattr(transformers, n) for n in CLASSES[name])
    own = {k: v for k, v in fields.items() if k != "model_type"}
    return model_class(config(**own, attn_implementation="eager")).float().eval()


def modules(config: dict[str, Any], **options: Any) -> Any:
    """Return a tree of modules that has the names and shapes of a family's files, ternary where they are; it cannot be run."""
    torch.manual_seed(0)
    root, arch = torch.nn.Module(), names.arch_of(config)
    for name, shape in shapes_in_files(Config.from_hf(config)):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        *path, last = name.removesuffix(".weight").split(".")
        owner = root
        for step in path:
            if step not in dict(owner.named_children()):
                owner.add_module(step, torch.nn.Module())
            owner = owner.get_submodule(step)
        if names.is_linear(name, arch):
            layer: Any = BitLinear(shape[1], shape[0], **options)
        else:
            layer = torch.nn.Module()
            start = torch.randn(shape) * (0.2 if len(shape) == 1 else shape[-1] ** -0.5) + float(len(shape) == 1)
            layer.weight = torch.nn.Parameter(start)
        owner.add_module(last, layer)
    return root
