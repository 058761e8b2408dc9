"""Families of decoders: one file each, and here one line each.

Knows nothing of files, tensors or weights: a family says which names, fields and keys it has, and describes a decoder.
"""

from tritium.families.bitnet import BITNET
from tritium.families.family import Arch, Family, Parameters
from tritium.families.gemma3 import GEMMA3
from tritium.families.llama import LLAMA
from tritium.families.maple import MAPLE
from tritium.families.minicpm import MINICPM
from tritium.families.qwen3 import QWEN3
from tritium.families.qwen3_5 import QWEN3_5

FAMILIES: dict[str, Family] = {family.name: family for family in (
    BITNET,
    LLAMA,
    QWEN3,
    MINICPM,
    GEMMA3,
    MAPLE,
    QWEN3_5,
)}  # fmt: skip
BY_TYPE = {model_type: family for family in FAMILIES.values() for model_type in family.model_types}
ARCHS = {arch.gguf: arch for family in FAMILIES.values() for arch in family.archs}
BY_ARCH = {arch.gguf: family for family in FAMILIES.values() for arch in family.archs}

__all__ = ["ARCHS", "BY_ARCH", "BY_TYPE", "FAMILIES", "Arch", "Family", "Parameters"]
