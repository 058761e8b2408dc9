"""Layers of neural networks: `linear` (products with quantised weights), `rope` (positions) and `transformer` (its modules).

Knows nothing of models or files.
"""

from tritium.nn.linear import BitLinear, QuantLinear, as_bytes, unpacked
from tritium.nn.rope import RoPE
from tritium.nn.transformer import MLP, Attention, Block, Embedding, Head, KVCache, Parallel, RMSNorm

__all__ = [
    "MLP", "Attention", "BitLinear", "Block", "Embedding", "Head", "KVCache", "Parallel", "QuantLinear", "RMSNorm", "RoPE",
    "as_bytes", "unpacked",
]  # fmt: skip
