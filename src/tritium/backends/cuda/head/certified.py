"""The largest logit of a head of half floats through an int8 copy of it, in Triton kernels: bounds on all logits, and exact ones of
those that may be the largest.

`docs/certified.md` has the proof of the bounds. Nothing waits for the host and nothing is chosen there: where bounds say little, or
nothing, more rows of the head are read by the same launches, up to all of them.

1. `split_kernel` makes two int8 vectors of each token, the second of what the first lost, and the factors of its bounds.
2. `bounds_kernel` multiplies both with the copy. It leaves an upper bound of each logit, the largest of each block of rows, and the
   largest lower bound of all.
3. `read_kernel` reads the rows of the head whose upper bound reaches it, block by block, in the order of sums of `halves`.
4. `places_kernel` makes an index and a logit of the largest key.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.functions import nearest
from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.head.argmax import key_of, order, place_of, value_of
from tritium.backends.cuda.head.halves import COLUMNS, ROWS, row_sums
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.linear.plain import times
from tritium.backends.cuda.order import begin
from tritium.backends.reference import certified as reference

MOST, SMALLEST = tl.constexpr(reference.MOST), tl.constexpr(float(reference.SMALLEST))
INFINITE = tl.constexpr(0x7F800000)  # the bits of infinity
NONE = tl.constexpr(-(2**63))  # below every key
LONGEST = 1 << 14  # columns that a CTA of `split_kernel` holds
TOGETHER = 64  # tokens of one launch
READERS = 16  # tokens whose rows one CTA reads one after another
STAGES = 5  # parts of a row that are on their way together


class Tile(NamedTuple):
    """The tile of a CTA of `bounds_kernel`: rows of the copy, columns at a time, and how it is compiled."""

    rows: int
    columns: int
    warps: int
    stages: int


def tile_of(tokens: int) -> Tile:
    """Return the tile for so many tokens."""
    if tokens <= 8:
        return Tile(128, 128, 8, 5)
    return Tile(64, 128, 4, 6) if tokens <= 16 else Tile(128, 128, 8, 4)


@triton.jit
def _int8(v, inside):
    """Return a vector as integers up to 127, f32, and the scale that makes numbers of them."""
    largest = tl.maximum(tl.max(tl.where(inside, tl.abs(v), 0.0), 0), SMALLEST)
    return nearest(v * tl.div_rn(127.0, largest)).to(tl.float32), tl.div_rn(largest, 127.0)


@triton.jit
def _square(v):
    return tl.sum(v * v, 0)


@triton.jit(do_not_specialize=["TOKENS"])
def split_kernel(
    x, q, scale, factors, low, best, rows, TOKENS, K, least, near, far, lost_by, parts_by, reach_by,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write rows 2 t and 2 t + 1 of q [2 TOKENS, K] with their scales, and the factors [3, TOKENS] of token t: what errors and norms of
    rows are multiplied by to bound a distance, and their sum to bound a logit.

    A token that is not finite, or shorter than `least`, gets zeros, and an infinite bound. Counts and keys of the token are reset.
    """
    begin(EARLY)
    t = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    inside = o < K
    v = tl.load(x + t.to(tl.int64) * K + o, mask=inside, other=0.0)
    finite = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0) < INFINITE
    v = tl.where(finite, v, 0.0)
    first, first_scale = _int8(v, inside)
    second, second_scale = _int8(v - first * first_scale, inside)
    wide = v.to(tl.float64)
    y1 = first.to(tl.float64) * first_scale.to(tl.float64)
    y2 = second.to(tl.float64) * second_scale.to(tl.float64)
    length = tl.sqrt(_square(wide))
    lost = tl.sqrt(_square(wide - y1 - y2))
    parts = tl.sqrt(_square(y1)) + tl.sqrt(_square(y2))
    known = finite & (length >= least)
    to = q + t.to(tl.int64) * 2 * K + o
    tl.store(to, first.to(tl.int8), mask=inside)
    tl.store(to + K, second.to(tl.int8), mask=inside)
    tl.store(scale + 2 * t, first_scale)
    tl.store(scale + 2 * t + 1, second_scale)
    tl.store(factors + t, (length * near).to(tl.float32))
    tl.store(factors + TOKENS + t, (lost * lost_by + length * far + parts * parts_by).to(tl.float32))
    tl.store(factors + 2 * TOKENS + t, tl.where(known, length * reach_by, float("inf")).to(tl.float32))
    tl.store(low + t, -0x7FFFFFFF - 1)
    tl.store(best + t, NONE)
    tl.store(rows + t, 0)


@triton.jit(do_not_specialize=["TOKENS"])
def bounds_kernel(
    w, q, row_scale, error, norm, scale, factors, upper, highest, low, TOKENS, N, K, multiplier,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, TIMES: tl.constexpr, BYTES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Compute upper [TOKENS, N], highest [blocks of BN rows, TOKENS] and, as ordered integers, low [TOKENS].

    BM: rows of q, two for each token. TIMES: logits have a multiplier. EVEN: BK divides K.
    """
    begin(EARLY)
    block = tl.program_id(0)
    rn = block * BN + tl.arange(0, BN)
    rm = tl.arange(0, BM)
    rk = tl.arange(0, BK)
    near = tl.minimum(rn, N - 1)
    from_w = w + near.to(tl.int64)[:, None] * K + rk[None, :]
    from_q = q + tl.minimum(rm, 2 * TOKENS - 1)[None, :] * K + rk[:, None]
    acc = tl.zeros((BN, BM), tl.int32)
    for k in range(0, K, BK):
        if EVEN:
            acc = times(tl.load(from_w + k), tl.load(from_q + k), acc, BYTES)
        else:
            a = tl.load(from_w + k, mask=(k + rk < K)[None, :], other=0)
            b = tl.load(from_q + k, mask=(k + rk < K)[:, None], other=0)
            acc = times(a, b, acc, BYTES)
    by = tl.load(row_scale + near)[:, None] * tl.load(scale + rm, mask=rm < 2 * TOKENS, other=0.0)[None, :]
    centre = tl.sum(tl.reshape(acc.to(tl.float32) * by, (BN, BM // 2, 2)), 2)
    if TIMES:
        centre = centre * multiplier
    t = tl.arange(0, BM // 2)
    meant = t < TOKENS
    lost, length = tl.load(error + near)[:, None], tl.load(norm + near)[:, None]
    a = tl.load(factors + t, mask=meant, other=0.0)[None, :]
    b = tl.load(factors + TOKENS + t, mask=meant, other=0.0)[None, :]
    reach = tl.load(factors + 2 * TOKENS + t, mask=meant, other=0.0)[None, :]
    distance = lost * a + length * b
    known = (lost + length) * reach < MOST
    there = (rn < N)[:, None]
    above = tl.where(there, tl.where(known, centre + distance, float("inf")), float("-inf"))
    below = tl.where(there & known, centre - distance, float("-inf"))
    tl.store(upper + t[None, :].to(tl.int64) * N + rn[:, None], above, mask=there & meant[None, :])
    tl.store(highest + block * TOKENS + t, tl.max(above, 0), mask=meant)
    tl.atomic_max(low + t, order(tl.max(below, 0)), mask=meant, sem="relaxed")


@triton.jit(do_not_specialize=["TOKENS"])
def read_kernel(
    x, w, upper, highest, low, best, rows, TOKENS, N, K, multiplier,
    BN: tl.constexpr, TM: tl.constexpr, EACH: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, TIMES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Raise best [TOKENS] to the largest key of the rows of a block that may have it, and rows [TOKENS] by their number.

    A CTA takes BN rows and TM tokens, one by one; of rows EACH together.
    """
    begin(EARLY)
    block = tl.program_id(0)
    tokens = tl.program_id(1) * TM + tl.arange(0, TM)
    meant = tokens < TOKENS
    high = order(tl.load(highest + block * TOKENS + tokens, mask=meant, other=0.0))
    floors = tl.load(low + tokens, mask=meant, other=0)
    hit = meant & (high >= floors)
    t = -1
    for _ in range(tl.sum(hit.to(tl.int32), 0)):
        t = tl.min(tl.where(hit & (tokens > t), tokens, TOKENS), 0)
        rn = block * BN + tl.arange(0, BN)
        there = rn < N
        above = tl.load(upper + t.to(tl.int64) * N + rn, mask=there, other=0.0)
        chosen = there & (order(above) >= tl.load(low + t))
        number = tl.cumsum(chosen.to(tl.int32), 0)
        count = tl.sum(chosen.to(tl.int32), 0)
        for first in range(0, count, EACH):
            numbers = first + 1 + tl.arange(0, EACH)
            match = chosen[None, :] & (number[None, :] == numbers[:, None])
            row = tl.max(tl.where(match, rn[None, :], -1), 1)
            from_w = w + row.to(tl.int64)[:, None] * K
            logit = row_sums(from_w, (row >= 0)[:, None], x, t, TOKENS, K, 1, EACH, BK, STAGES, SOME=True)[0]
            if TIMES:
                logit = logit * multiplier
            tl.atomic_max(best + t, tl.max(tl.where(row >= 0, key_of(logit, row), NONE), 0), sem="relaxed")
        tl.atomic_add(rows + t, count, sem="relaxed")


@triton.jit(do_not_specialize=["TOKENS"])
def places_kernel(best, index, value, TOKENS, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Write the index and the value of each key."""
    begin(EARLY)
    t = tl.arange(0, BLOCK)
    key = tl.load(best + t, mask=t < TOKENS, other=0)
    tl.store(index + t, place_of(key), mask=t < TOKENS)
    tl.store(value + t, value_of(key), mask=t < TOKENS)


class Copy(NamedTuple):
    """An int8 copy of a table [v, k]: a scale for each row, what the row lost and its length, no less than they are."""

    weight: torch.Tensor
    scale: torch.Tensor
    error: torch.Tensor
    norm: torch.Tensor


class Bounds(NamedTuple):
    """Results of `bounds_kernel` and `split_kernel` for n tokens."""

    tile: Tile
    upper: torch.Tensor  # [n, v], of each logit
    highest: torch.Tensor  # [blocks, n], the largest of each block of rows
    low: torch.Tensor  # [n], the largest lower bound as an ordered integer
    best: torch.Tensor  # [n], below every key
    rows: torch.Tensor  # [n], zero


def largest(
    x: torch.Tensor, table: torch.Tensor, copy: Copy, multiplier: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return for each token of x [n, k] the index and the value of the largest logit, and how many rows of the table were read.

    The logits are those of `halves` with table [v, k], times the multiplier.
    """
    parts = [_some(part.contiguous(), table, copy, multiplier) for part in x.split(TOGETHER)]
    return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))  # type: ignore[return-value]


def _some(
    x: torch.Tensor, table: torch.Tensor, copy: Copy, multiplier: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the same of few tokens."""
    n, device = x.shape[0], gpu(x.device)
    index, value = torch.empty(n, dtype=torch.int64, device=x.device), torch.empty(n, device=x.device)
    with current(x):
        bounds = bound(x, copy, multiplier)
        read(x, table, bounds, multiplier)
        places_kernel[(1,)](
            bounds.best, index, value, n, BLOCK=triton.next_power_of_2(n), num_warps=1, **device.starting
        )
    return index, value, bounds.rows


def bound(x: torch.Tensor, copy: Copy, multiplier: float) -> Bounds:
    """Return bounds on the logits of n tokens, at most TOGETHER."""
    (n, k), v, place, device = x.shape, copy.weight.shape[0], x.device, gpu(x.device)
    tile = tile_of(n)
    blocks = triton.cdiv(v, tile.rows)
    q = torch.empty((2 * n, k), dtype=torch.int8, device=place)
    scales, factors = torch.empty(2 * n, device=place), torch.empty((3, n), device=place)
    bounds = Bounds(
        tile, torch.empty((n, v), device=place), torch.empty((blocks, n), device=place),
        *(torch.empty(n, dtype=t, device=place) for t in (torch.int32, torch.int64, torch.int32)),
    )  # fmt: skip
    split_kernel[(n,)](
        x, q, scales, factors, bounds.low, bounds.best, bounds.rows, n, k, *reference.factors(k, multiplier),
        BLOCK=triton.next_power_of_2(k), num_warps=8, enable_fp_fusion=False, **device.starting,
    )  # fmt: skip
    bounds_kernel[(blocks,)](
        copy.weight, q, copy.scale, copy.error, copy.norm, scales, factors, bounds.upper, bounds.highest, bounds.low, n, v, k,
        multiplier, BN=tile.rows, BM=max(16, 2 * triton.next_power_of_2(n)), BK=tile.columns, EVEN=k % tile.columns == 0,
        TIMES=multiplier != 1, BYTES=device.bytes, num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
        **device.starting,
    )  # fmt: skip
    return bounds


def read(x: torch.Tensor, table: torch.Tensor, bounds: Bounds, multiplier: float) -> None:
    """Raise the keys of tokens to those of their largest logits, and count the rows that were read."""
    (n, k), v, tile = x.shape, table.shape[0], bounds.tile
    together = min(triton.next_power_of_2(n), READERS)
    read_kernel[(triton.cdiv(v, tile.rows), triton.cdiv(n, together))](
        x, table, bounds.upper, bounds.highest, bounds.low, bounds.best, bounds.rows, n, v, k, multiplier, BN=tile.rows, TM=together,
        EACH=ROWS, BK=COLUMNS, STAGES=STAGES, TIMES=multiplier != 1, num_warps=4, enable_fp_fusion=False, **gpu(x.device).starting,
    )  # fmt: skip


fix_cache_keys(globals())
