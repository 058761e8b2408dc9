"""Layers of neural networks: `linear` (products with quantised weights), `embedding` and `transformer` (its modules).

Knows nothing of models or files.
"""

from tritium.nn.embedding import QuantEmbedding
from tritium.nn.linear import BitLinear, QuantLinear, as_bytes, unpacked
from tritium.nn.transformer import MLP, Attention, Block, Embedding, Head, KVCache, RMSNorm, RoPE

__all__ = [
    "MLP", "Attention", "BitLinear", "Block", "Embedding", "Head", "KVCache", "QuantEmbedding", "QuantLinear", "RMSNorm", "RoPE",
    "as_bytes", "unpacked",
]  # fmt: skip
