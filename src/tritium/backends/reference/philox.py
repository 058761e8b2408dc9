"""Random numbers as the reference draws them: Philox4x32-10, so that element i depends on the seed and on i alone.

Native kernels draw the same stream bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Arr = np.ndarray[Any, Any]


def blocks_of(seed: int, blocks: int) -> Arr:
    """Philox4x32-10: `blocks` rows of four 32-bit numbers; row i is the block of counter i under a 64-bit key."""
    mask = np.uint64(0xFFFFFFFF)
    index = np.arange(blocks, dtype=np.uint64)
    c = [index & mask, index >> np.uint64(32), np.zeros(blocks, np.uint64), np.zeros(blocks, np.uint64)]
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            p1 & mask,
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            p0 & mask,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1)


def _words(seed: int, count: int) -> Arr:
    """The first `count` 32-bit numbers of a seed's stream."""
    return blocks_of(seed, -(-count // 4)).reshape(-1)[:count]


def _doubles(seed: int, count: int) -> Arr:
    """The same stream as 64-bit numbers, the low word first."""
    w = _words(seed, 2 * count).reshape(-1, 2)
    return np.asarray(w[:, 0] | (w[:, 1] << np.uint64(32)))


def uniform(*, out: Arr, shape: Any, seed: int, dtype: Any = None) -> None:
    if out.dtype == np.float64:
        values = (_doubles(seed, out.size) >> np.uint64(11)) * 2.0**-53
    else:  # as many bits as the mantissa holds, so that rounding never gives 1
        bits = {np.dtype(np.float32): 24, np.dtype(np.float16): 11}.get(out.dtype, 8)
        values = (_words(seed, out.size) >> np.uint64(32 - bits)) * 2.0**-bits
    out[...] = values.reshape(out.shape).astype(out.dtype)


def normal(*, out: Arr, shape: Any, seed: int, dtype: Any = None) -> None:
    """Box-Muller on pairs: r = sqrt(-2 log u), then r cos 2 pi v and r sin 2 pi v."""
    pairs = -(-out.size // 2)
    if out.dtype == np.float64:
        d = _doubles(seed, 2 * pairs).reshape(-1, 2)
        u, v = ((d[:, 0] >> np.uint64(12)) + 0.5) * 2.0**-52, (d[:, 1] >> np.uint64(11)) * 2.0**-53
    else:
        w = _words(seed, 2 * pairs).reshape(-1, 2)
        u, v = (w[:, 0] + 0.5) * 2.0**-32, w[:, 1] * 2.0**-32
    radius = np.sqrt(-2 * np.log(u))
    quarter = np.floor(4 * v + 0.5)  # whole quarter turns apart, so that values near 0 keep their digits
    angle = 2 * math.pi * (v - quarter / 4)
    s, c = np.sin(angle), np.cos(angle)
    turned = [[c, -s, -c, s], [s, c, -s, -c]]
    which = quarter.astype(np.int64) % 4
    values = np.stack([radius * np.choose(which, t) for t in turned], axis=1).reshape(-1)[: out.size]
    out[...] = values.reshape(out.shape).astype(out.dtype)


def integers(*, out: Arr, low: int, high: int, shape: Any, seed: int, dtype: Any = None) -> None:
    drawn = _doubles(seed, out.size)
    values = drawn % np.uint64(high - low) if high - low < 2**64 else drawn
    out[...] = (values + np.uint64(low % 2**64)).astype(np.int64).reshape(out.shape).astype(out.dtype)
