"""Dequantise the ggml types that embeddings and dense weights come in to fp32, in bounded memory.

Types not in the table are rejected by name: Q8_1 and Q8_K hold activations and are in no file, IQ1_S to IQ3_S need tables
of 256 to 2048 vectors and are not used for embeddings.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tritium.io import ggml
from tritium.io.reader import fault, product
from tritium.io.ternary import CHUNK, Array

_NIBBLES = np.array([0, 4], np.uint8)[:, None]
_PAIRS = np.array([0, 2, 4, 6], np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]
_NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice the number


def _f16(blocks: Array, start: int) -> Array:
    """Return the fp16 number at a byte of each block, as fp32 [n, 1]."""
    return blocks[:, start : start + 2].copy().view("<f2").astype(np.float32)


def _nibbles(data: Array, width: int) -> Array:
    """Return the nibbles of runs of `width` bytes, the low ones of a run first: uint8 [n, 2 * bytes]."""
    n = len(data)
    return (data.reshape(n, -1, 1, width) >> _NIBBLES & np.uint8(15)).reshape(n, -1)


def _fields(data: Array, shifts: Array, mask: int) -> Array:
    """Return the fields of runs of 32 bytes at each shift, one shift after another: uint8 [n, fields * bytes]."""
    n = len(data)
    return (data.reshape(n, -1, 1, 32) >> shifts & np.uint8(mask)).reshape(n, -1)


def _scaled(scale: Array, q: Array, minimum: Array | None = None) -> Array:
    """Return scale·q - minimum, where each of the s scales of a block belongs to an s-th of its values."""
    y = scale[:, :, None] * q.reshape(len(q), scale.shape[1], -1).astype(np.float32)
    return y if minimum is None else y - minimum[:, :, None]


def _q8_0(blocks: Array) -> Array:
    """Dequantise 32 values: fp16 d, int8 q; d·q."""
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: Array) -> Array:
    """Dequantise 32 values: fp16 d, 16 bytes with the first half in the low nibbles; d·(q - 8)."""
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:], 16).astype(np.float32) - 8)


def _q4_1(blocks: Array) -> Array:
    """Dequantise 32 values: fp16 d and m, nibbles; d·q + m."""
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:], 16).astype(np.float32) + _f16(blocks, 2)


def _five(low: Array, high: Array) -> Array:
    """Return 5-bit numbers from the bytes of their low nibbles and the 4 bytes of their highest bits."""
    return _nibbles(low, 16) | np.unpackbits(high, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Array) -> Array:
    """Dequantise 32 values: fp16 d, 32 high bits, nibbles; d·(q - 16)."""
    return _f16(blocks, 0) * (_five(blocks[:, 6:], blocks[:, 2:6]).astype(np.float32) - 16)


def _q5_1(blocks: Array) -> Array:
    """Dequantise 32 values: fp16 d and m, 32 high bits, nibbles; d·q + m."""
    return _f16(blocks, 0) * _five(blocks[:, 8:], blocks[:, 4:8]).astype(np.float32) + _f16(blocks, 2)


def _q2_k(blocks: Array) -> Array:
    """Dequantise 256 values: 16 bytes of 4-bit scale and minimum, pairs of bits, fp16 d and dmin."""
    scales = blocks[:, :16]
    d, m = _f16(blocks, 80) * (scales & 15).astype(np.float32), _f16(blocks, 82) * (scales >> 4).astype(np.float32)
    return _scaled(d, _fields(blocks[:, 16:80], _PAIRS, 3), m)


def _q3_k(blocks: Array) -> Array:
    """Dequantise 256 values: inverted third bits, pairs of bits, 16 6-bit scales, fp16 d; d·(scale - 32)·q."""
    high = _fields(blocks[:, :32], _BITS, 1) ^ np.uint8(1)
    q = _fields(blocks[:, 32:96], _PAIRS, 3).astype(np.int8) - (high << np.uint8(2)).astype(np.int8)
    low, top = blocks[:, 96:104], blocks[:, 104:108]
    scale = _nibbles(low, 8) | (top[:, None] >> _PAIRS & np.uint8(3)).reshape(-1, 16) << np.uint8(4)
    return _scaled(_f16(blocks, 108) * (scale.astype(np.float32) - 32), q)


def _scales_of_eight(packed: Array) -> tuple[Array, Array]:
    """Return the 8 scales and 8 minima that Q4_K and Q5_K store as 6 bits each in 12 bytes, as fp32."""
    a, b, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([a & 63, rest & 15 | a >> 2 & 48], axis=1)
    minimum = np.concatenate([b & 63, rest >> 4 | b >> 2 & 48], axis=1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _q4_k(blocks: Array) -> Array:
    """Dequantise 256 values: fp16 d and dmin, 6-bit scales and minima, nibbles; d·scale·q - dmin·minimum."""
    scale, minimum = _scales_of_eight(blocks[:, 4:16])
    return _scaled(_f16(blocks, 0) * scale, _nibbles(blocks[:, 16:], 32), _f16(blocks, 2) * minimum)


def _q5_k(blocks: Array) -> Array:
    """Dequantise 256 values: as Q4_K, with 32 bytes of high bits before the nibbles."""
    scale, minimum = _scales_of_eight(blocks[:, 4:16])
    q = _nibbles(blocks[:, 48:], 32) | _fields(blocks[:, 16:48], _BITS, 1) << np.uint8(4)
    return _scaled(_f16(blocks, 0) * scale, q, _f16(blocks, 2) * minimum)


def _q6_k(blocks: Array) -> Array:
    """Dequantise 256 values: low nibbles, high pairs, 16 int8 scales, fp16 d; d·scale·(q - 32)."""
    q = _nibbles(blocks[:, :128], 64) | _fields(blocks[:, 128:192], _PAIRS, 3) << np.uint8(4)
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(_f16(blocks, 208) * scale, q.astype(np.int8) - np.int8(32))


def _iq4_nl(blocks: Array) -> Array:
    """Dequantise 32 values: fp16 d, nibbles that index 16 levels; d·level."""
    return _f16(blocks, 0) * _NON_LINEAR[_nibbles(blocks[:, 2:], 16)]


def _iq4_xs(blocks: Array) -> Array:
    """Dequantise 256 values: fp16 d, 8 6-bit scales, nibbles that index 16 levels; d·(scale - 32)·level."""
    high = blocks[:, 2:4].copy().view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    low = (blocks[:, 4:8, None] >> _NIBBLES[:, 0] & np.uint8(15)).reshape(-1, 8)
    scale = (low | high.astype(np.uint8) << np.uint8(4)).astype(np.float32) - 32
    return _scaled(_f16(blocks, 0) * scale, _NON_LINEAR[_nibbles(blocks[:, 8:], 16)])


def _mxfp4(blocks: Array) -> Array:
    """Dequantise 32 values: an exponent of 2 in 8 bits, nibbles in E2M1."""
    e = blocks[:, :1].astype(np.uint32)
    half = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23)).view(np.float32)
    return half * _E2M1[_nibbles(blocks[:, 1:], 16)]


def _nvfp4(blocks: Array) -> Array:
    """Dequantise 64 values: four scales in unsigned E4M3, nibbles in E2M1; 0x7F, no number, is 0."""
    x = blocks[:, :4]
    exponent, mantissa = (x >> 3 & 15).astype(np.int32), (x & 7).astype(np.float32)
    scale = np.where(exponent == 0, np.ldexp(mantissa, -10), np.ldexp(mantissa + 8, exponent - 11))
    scale[(x == 0x7F)] = 0
    return _scaled(scale.astype(np.float32), _E2M1[_nibbles(blocks[:, 4:], 8)])


def _q1_0(blocks: Array) -> Array:
    """Dequantise 128 values: fp16 d, a bit each; d or -d."""
    d = _f16(blocks, 0)
    return np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little"), d, -d)


_DECODERS: dict[str, Callable[[Array], Array]] = {
    "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k,
    "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4, "NVFP4": _nvfp4, "Q1_0": _q1_0,
}  # fmt: skip
READABLE = tuple(_DECODERS)


def dequantize(kind: str, raw: memoryview, shape: tuple[int, ...]) -> Array:
    """Return the elements of a quantised tensor as fp32; beyond the result, the memory of CHUNK values at a time is used."""
    decode = _DECODERS.get(kind)
    if decode is None:
        raise fault(
            f"type {kind}", "a tensor of it", f"F32, F16, BF16, {', '.join(_DECODERS)} or a ternary type",
            "GGUF to GGUF carries it over unread; for other targets start from the original checkpoint.",
        )  # fmt: skip
    size, width = ggml.BY_NAME[kind].size, ggml.BY_NAME[kind].block
    count = product(shape, kind)
    if count % width or len(raw) != count // width * size:
        raise fault(f"{kind} data", f"{len(raw)} bytes", f"{count // width * size} bytes for whole blocks of {width}")
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, size) if len(raw) else np.empty((0, size), np.uint8)
    values = np.empty((len(blocks), width), np.float32)
    step = max(CHUNK // 8 // width, 1)  # a decoder has up to eight temporaries
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(0, len(blocks), step):
            part = decode(blocks[i : i + step])
            values[i : i + step] = part.reshape(-1, width)
    return values.reshape(shape)
