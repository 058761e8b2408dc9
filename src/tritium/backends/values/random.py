"""Random numbers over values of a library: the stream of `backends.reference.philox` bit for bit.

Everything is done in i64, whose products and sums wrap as those of 64 bits without sign do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tritium import dtype as dt, ops
from tritium.backends.values.namespace import Namespace, Value, cast
from tritium.dtype import DType
from tritium.op import Op, Spec

Fn = Callable[..., Any]
MASK = 0xFFFFFFFF


def _words(xp: Namespace, seed: int, count: int) -> Value:
    """The first `count` 32-bit numbers of a seed's stream, as i64."""
    blocks = -(-count // 4)
    index = xp.arange(blocks, dt.i64)
    none = xp.full((blocks,), 0, dt.i64)
    c = [index & MASK, index >> 32, none, none]
    k0, k1 = seed & MASK, (seed >> 32) & MASK
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [_high(p1) ^ c[1] ^ k0, p1 & MASK, _high(p0) ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return xp.reshape(xp.stack(c, -1), (4 * blocks,))[:count]


def _high(p: Value) -> Value:
    """The upper half; the sign that the shift brings in is taken off."""
    return (p >> 32) & MASK


def _pairs(xp: Namespace, seed: int, count: int) -> tuple[Value, Value]:
    """The low and the high words of `count` 64-bit numbers."""
    w = xp.reshape(_words(xp, seed, 2 * count), (count, 2))
    return w[:, 0], w[:, 1]


def _top(low: Value, high: Value, bits: int) -> Value:
    """The upper `bits` bits (33 to 63) of 64-bit numbers."""
    return (high << (bits - 32)) | (low >> (64 - bits))


def _uniform(xp: Namespace, out: Spec, seed: int) -> Value:
    if out.dtype is dt.f64:
        values = xp.astype(_top(*_pairs(xp, seed, out.size), 53), dt.f64) * 2.0**-53
    else:  # as many bits as the mantissa holds, so that rounding never gives 1
        bits = {dt.f32: 24, dt.f16: 11}.get(out.dtype, 8)
        values = xp.astype(_words(xp, seed, out.size) >> (32 - bits), dt.f32) * 2.0**-bits
    return xp.reshape(xp.astype(values, out.dtype), out.shape)


def _normal(xp: Namespace, out: Spec, seed: int) -> Value:
    """Box-Muller on pairs, in f64 as the reference does."""
    pairs = -(-out.size // 2)
    if out.dtype is dt.f64:
        low, high = _pairs(xp, seed, 2 * pairs)
        first, second = (
            xp.reshape(xp.astype(_top(low, high, bits), dt.f64), (pairs, 2))[:, i] for i, bits in ((0, 52), (1, 53))
        )
        u, v = (first + 0.5) * 2.0**-52, second * 2.0**-53
    else:
        first, second = (xp.astype(w, dt.f64) for w in _pairs(xp, seed, pairs))
        u, v = (first + 0.5) * 2.0**-32, second * 2.0**-32
    radius = xp.sqrt(-2.0 * xp.log(u))
    quarter = xp.trunc(4 * v + 0.5)  # whole quarter turns apart, so that values near 0 keep their digits
    angle = 2 * math.pi * (v - quarter / 4)
    s, c = xp.sin(angle), xp.cos(angle)
    which = xp.astype(quarter, dt.i32) % 4
    turned = ((c, -s, -c, s), (s, c, -s, -c))
    values = xp.stack([radius * _choose(xp, which, t) for t in turned], -1)
    return xp.reshape(cast(xp, xp.reshape(values, (2 * pairs,))[: out.size], out.dtype), out.shape)


def _choose(xp: Namespace, which: Value, choices: tuple[Value, ...]) -> Value:
    result = choices[3]
    for i in (2, 1, 0):
        result = xp.where(which == i, choices[i], result)
    return result


def _integers(xp: Namespace, out: Spec, seed: int, low: int, high: int) -> Value:
    words = _pairs(xp, seed, out.size)
    values = _modulo(xp, *words, high - low) + _signed(low)
    return xp.reshape(xp.astype(values, out.dtype), out.shape)


def _signed(n: int) -> int:
    """An integer as 64 bits with sign show it."""
    return (n + 2**63) % 2**64 - 2**63


def _modulo(xp: Namespace, low: Value, high: Value, span: int) -> Value:
    """(high * 2**32 + low) % span for 64 bits without sign."""
    whole = (high << 32) | low
    if span & (span - 1) == 0:
        return whole & _signed(span - 1)
    if span < 2**31:  # what is left of high, times 2**32, has no sign yet
        return (((high % span) << 32) + low) % span
    if span < 2**62:
        left = high % span
        for bit in range(31, -1, -1):
            left = (left << 1) | ((low >> bit) & 1)
            left = xp.where(left >= span, left - span, left)
        return left
    flip = xp.full((), -(2**63), dt.i64)
    limit = xp.full((), _signed(span - 2**63), dt.i64)  # compared with both signs turned
    for _ in range(3):  # it fits at most three times
        whole = xp.where((whole ^ flip) >= limit, whole - xp.full((), _signed(span), dt.i64), whole)
    return whole


def makers(xp: Namespace) -> dict[Op, Fn]:
    """The rows that draw."""

    def uniform(out: Spec, shape: Any, seed: int, dtype: DType | None = None) -> Fn:
        return lambda: _uniform(xp, out, seed)

    def normal(out: Spec, shape: Any, seed: int, dtype: DType | None = None) -> Fn:
        return xp.in_double(lambda: _normal(xp, out, seed))

    def integers(out: Spec, low: int, high: int, shape: Any, seed: int, dtype: DType | None = None) -> Fn:
        return lambda: _integers(xp, out, seed, low, high)

    return {ops.random_uniform: uniform, ops.random_normal: normal, ops.random_integers: integers}
