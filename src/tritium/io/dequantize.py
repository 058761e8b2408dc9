"""Dequantise the ggml types that embeddings of ternary models come in to fp32.

Knows nothing of ternary layouts. Types not in the table are rejected by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tritium.io import ggml
from tritium.io.reader import fault
from tritium.io.ternary import Array


def _q8_0(blocks: Array) -> Array:
    """Dequantise blocks of 32 values: fp16 d, int8 q; d·q."""
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return d * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Array) -> Array:
    """Dequantise blocks of 32 values: fp16 d, 16 bytes with the first half in the low nibbles; d·(q - 8)."""
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    q = blocks[:, 2:]
    return d * (np.concatenate([q & 15, q >> 4], axis=1).astype(np.float32) - 8)


def _q6_k(blocks: Array) -> Array:
    """Dequantise blocks of 256 values: low nibbles ql[128], high pairs qh[64], 16 int8 scales, fp16 d; d·scale·(q - 32)."""
    n = len(blocks)
    ql, qh = blocks[:, :128].reshape(n, 2, 1, 64), blocks[:, 128:192].reshape(n, 2, 1, 32)
    low = (ql >> np.array([0, 4], np.uint8)[:, None]) & 15  # [n, 2, nibble, 64]
    high = (qh >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3  # [n, 2, 4, 32]
    q = (low.reshape(n, 2, 4, 32) | high << 4).astype(np.int8) - np.int8(32)
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32)
    d = blocks[:, 208:210].copy().view("<f2").astype(np.float32)
    return (d * scale)[:, :, None] * q.reshape(n, 16, 16)


_DECODERS: dict[str, Any] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q6_K": _q6_k}
READABLE = tuple(_DECODERS)


def dequantize(kind: str, raw: memoryview, shape: tuple[int, ...]) -> Array:
    """Return the elements of a quantised tensor as fp32."""
    decode = _DECODERS.get(kind)
    if decode is None:
        raise fault(
            f"type {kind}", "a tensor of it", f"F32, F16, BF16, {', '.join(_DECODERS)} or a ternary type",
            "GGUF to GGUF carries it over unread; for other targets start from the original checkpoint.",
        )  # fmt: skip
    size = ggml.BY_NAME[kind].size
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, size) if len(raw) else np.empty((0, size), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        values: Array = decode(blocks).reshape(shape)
    return values
