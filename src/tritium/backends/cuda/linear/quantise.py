"""Tokens to int8 in one Triton kernel: what `quantized.tokens` does to a row, after an optional root-mean-square norm.

Every float step is one rounding: kernels are built without fused multiply-add.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritium.backends.cuda.functions import nearest
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import ask, begin, let_next_start, wait

INFINITE = tl.constexpr(
    0x7F800000
)  # the bits of infinity: those of every NaN are larger, those of every number smaller
MOST = tl.constexpr(0x7FFFFFFF)  # all bits but the sign
SMALLEST = tl.constexpr(1e-5)  # quantized.TINY


@triton.jit
def _row(x, weight, column, K, inverse, NORM: tl.constexpr):
    """Load part of a row as f32, normed."""
    inside = column < K
    v = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    if NORM > 0:
        v = v * inverse
    if NORM == 2:
        v = v * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    return v


@triton.jit
def _inverse(squares, K: tl.constexpr, EPS: tl.constexpr):
    """Return 1 / sqrt(mean + eps): f64 to the end, then f32."""
    mean = squares * (tl.full((), 1.0, tl.float64) / K) + EPS
    return tl.rsqrt(mean).to(tl.float32)


@triton.jit
def _place(row, column, KP, TILED: tl.constexpr):
    """Return the offsets of columns of a row.

    TILED: eight rows side by side in pieces of 64 bytes, as `cuda.linear.fragments` reads them best.
    """
    if TILED:
        return row // 8 * 8 * KP + column // 64 * 512 + row % 8 * 64 + column % 64
    return row * KP + column


@triton.jit
def tokens(
    x, weight, q, scale, total, KP, K: tl.constexpr,
    EPS: tl.constexpr, BLOCK: tl.constexpr, PASSES: tl.constexpr, NORM: tl.constexpr, TILED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute q [M, KP], scale [M], total [M] of x [M, K]; columns from K to KP become 0.

    NORM: 0 none, 1 plain, 2 weighted. One CTA takes a row, in PASSES pieces; when it is one piece, it is read once.
    """
    row = tl.program_id(0).to(tl.int64)
    let_next_start(EARLY)
    if NORM == 2:
        ask(weight, K, BLOCK, EARLY)
    wait(EARLY)
    x += row * K
    o = tl.arange(0, BLOCK)
    if PASSES == 1:  # loaded together: neither waits for the other
        v = tl.load(x + o, mask=o < K, other=0.0).to(tl.float32)
        if NORM == 2:
            by = tl.load(weight + o, mask=o < K, other=0.0).to(tl.float32)
    inverse = tl.full((), 1.0, tl.float32)
    if NORM > 0:
        squares = tl.full((), 0.0, tl.float64)
        for i in tl.static_range(PASSES):
            if PASSES == 1:
                wide = v.to(tl.float64)
            else:
                wide = tl.load(x + i * BLOCK + o, mask=i * BLOCK + o < K, other=0.0).to(tl.float64)
            squares += tl.sum(wide * wide, 0)
        inverse = _inverse(squares, K, EPS)
    if PASSES == 1 and NORM > 0:
        v = v * inverse
        if NORM == 2:
            v = v * by
    bits = tl.full((), 0, tl.int32)
    for i in tl.static_range(PASSES):
        if PASSES > 1:
            v = _row(x, weight, i * BLOCK + o, K, inverse, NORM)
        bits = tl.maximum(bits, tl.max(v.to(tl.int32, bitcast=True) & MOST, 0))
    whole = bits < INFINITE
    largest = tl.where(whole, bits, 0).to(tl.float32, bitcast=True)
    largest = tl.maximum(largest, SMALLEST)
    steps = tl.div_rn(127.0, largest)
    added = tl.full((), 0, tl.int32)
    for i in tl.static_range(PASSES):
        if PASSES > 1:
            v = _row(x, weight, i * BLOCK + o, K, inverse, NORM)
        near = tl.where(whole, v, 0.0) * steps
        n = nearest(near)
        tl.store(q + _place(row, i * BLOCK + o, KP, TILED), n.to(tl.int8), mask=i * BLOCK + o < KP)
        added += tl.sum(n, 0)
    tl.store(scale + row, tl.where(whole, tl.div_rn(largest, 127.0), float("nan")))
    tl.store(total + row, added)


@triton.jit
def groups(
    x, weight, q, scale, KP, APART, K: tl.constexpr,
    EPS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, NORM: tl.constexpr, ACROSS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute q [M, KP] of x [M, K], with a scale for each GROUP of columns, [M, KP / GROUP]; columns from K to KP
    become 0.

    ACROSS: those of a group are beside each other, and of the next APART behind them.

    One CTA takes BLOCK columns of a row, by the steps of `tokens` for each group; with a norm, all columns.
    """
    row = tl.program_id(0).to(tl.int64)
    let_next_start(EARLY)
    if NORM == 2:
        ask(weight, K, BLOCK, EARLY)
    wait(EARLY)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * K + o, mask=o < K, other=0.0).to(tl.float32)
    if NORM > 0:
        wide = v.to(tl.float64)
        v = v * _inverse(tl.sum(wide * wide, 0), K, EPS)
    if NORM == 2:
        v = v * tl.load(weight + o, mask=o < K, other=0.0).to(tl.float32)
    v = tl.reshape(v, (BLOCK // GROUP, GROUP))
    bits = tl.max(v.to(tl.int32, bitcast=True) & MOST, 1)
    whole = bits < INFINITE
    largest = tl.maximum(tl.where(whole, bits, 0).to(tl.float32, bitcast=True), SMALLEST)
    n = nearest(tl.where(whole[:, None], v, 0.0) * tl.div_rn(127.0, largest)[:, None])
    tl.store(q + row * KP + o, tl.reshape(n, (BLOCK,)).to(tl.int8), mask=o < KP)
    group = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    of_group = tl.where(whole, tl.div_rn(largest, 127.0), float("nan"))
    place = group * APART + row if ACROSS else row * (KP // GROUP) + group
    tl.store(scale + place, of_group, mask=group < KP // GROUP)


@triton.jit
def sums(
    q, total, K, KP, padded,
    BLOCK: tl.constexpr, PASSES: tl.constexpr, COPY: tl.constexpr, TILED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute total [M] of q [M, K]; COPY: also padded [M, KP] with zeros behind column K, TILED as by `tokens`."""
    row = tl.program_id(0).to(tl.int64)
    begin(EARLY)
    o = tl.arange(0, BLOCK)
    added = tl.full((), 0, tl.int32)
    for i in tl.static_range(PASSES):
        column = i * BLOCK + o
        v = tl.load(q + row * K + column, mask=column < K, other=0)
        added += tl.sum(v.to(tl.int32), 0)
        if COPY:
            tl.store(padded + _place(row, column, KP, TILED), v, mask=column < KP)
    tl.store(total + row, added)


fix_cache_keys(globals())
