"""Layers of neural networks: `linear` (products with quantised weights), `embedding`, `rope` (positions), `transformer` (its modules)
and `mixers` (those of hybrid and sparse ones).
"""

from tritium.nn.embedding import QuantEmbedding
from tritium.nn.linear import BitLinear, QuantLinear, as_bytes, unpacked
from tritium.nn.mixers import DeltaState, Experts, GatedDeltaNet, MoE, Router, Routing, gated, project
from tritium.nn.rope import RoPE
from tritium.nn.rotation import RotatedEmbedding, RotatedLinear, Rotation
from tritium.nn.transformer import MLP, Attention, Block, Embedding, Head, KVCache, Parallel, QuantizedKVCache, RMSNorm

__all__ = [
    "MLP", "Attention", "BitLinear", "Block", "DeltaState", "Embedding", "Experts", "GatedDeltaNet", "Head", "KVCache", "MoE",
    "Parallel", "QuantEmbedding", "QuantLinear", "QuantizedKVCache", "RMSNorm", "RoPE", "RotatedEmbedding", "RotatedLinear", "Rotation",
    "Router", "Routing", "as_bytes", "gated", "project", "unpacked",
]  # fmt: skip
