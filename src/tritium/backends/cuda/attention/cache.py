"""Writes of new tokens to KV caches by Triton kernels: norm and rotate heads, write them to their places, check those places.

The place of each sequence is read on the device: nothing waits for the host. Rows of places with more than three
columns hold the blocks of a sequence in a paged cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin
from tritium.backends.values.device import HeadNorms

PLACE = 3  # slot, start and count of a sequence; what stands behind them in its row are its blocks


class Room(NamedTuple):
    """The room of a cache: slots or blocks, tokens of one sequence, and tokens of a block, 0 where it is not paged."""

    slots: int
    capacity: int
    block: int


def room(cache: torch.Tensor, places: torch.Tensor | None) -> Room:
    """Return what a cache [slots, heads, capacity, size], or of paged places [blocks, heads, block, size], has room for."""
    slots, _, tokens, _ = cache.shape
    blocks = 0 if places is None else places.shape[1] - PLACE
    return Room(slots, blocks * tokens, tokens) if blocks else Room(slots, tokens, 0)


# ---- writing


@triton.jit
def write_kernel(
    cache, values, places, row, batch, tokens, slots, capacity, c_slot, c_head, c_token, v_batch, v_token, v_head, v_item,
    SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, BATCH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write cache[slot, h, start + t] = values[b, t, h] for t < count; of several sequences at one place the last
    wins. BLOCK: position p is p % BLOCK of block p // BLOCK of the sequence, whose number is in its row of places.
    """
    begin(EARLY)
    b, t, h = tl.program_id(0) // tokens, tl.program_id(0) % tokens, tl.program_id(1)
    own = places + b * row
    slot, start, count = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    inside = (slot >= 0) & (start >= 0) & (count <= tokens) & (start <= capacity - count)
    o = tl.arange(0, BATCH)
    later = (o > b) & (o < batch)
    o_slot = tl.load(places + o * row, mask=later, other=-1)
    o_start = tl.load(places + o * row + 1, mask=later, other=0)
    o_count = tl.load(places + o * row + 2, mask=later, other=0)
    position = start + t
    covered = tl.sum(
        (later & (o_slot == slot) & (o_start <= position) & (position < o_start + o_count)).to(tl.int32), 0
    )
    written = inside & (t < count) & (covered == 0)
    line, within = slot, position
    if BLOCK:
        line, within = tl.load(own + 3 + position // BLOCK, mask=written, other=0), position % BLOCK
    if written & (line >= 0) & (line < slots):
        d = tl.arange(0, WIDE)
        x = tl.load(
            values + b.to(tl.int64) * v_batch + t.to(tl.int64) * v_token + h * v_head + d * v_item, mask=d < SIZE
        )
        to = cache + line.to(tl.int64) * c_slot + h.to(tl.int64) * c_head + within.to(tl.int64) * c_token + d
        tl.store(to, x.to(cache.dtype.element_ty), mask=d < SIZE)


def write(cache: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
    """Run `update_cache` on the cache in place, whose heads are contiguous. Sequences outside of it write nothing."""
    _, heads, _, size = cache.shape
    slots, capacity, block = room(cache, places)
    batch, tokens = values.shape[:2]
    if not (batch and tokens and heads and size and capacity):
        return
    write_kernel[(batch * tokens, heads)](
        cache, values, places.contiguous(), places.shape[1], batch, tokens, slots, capacity, *cache.stride()[:3], *values.stride(),
        SIZE=size, WIDE=triton.next_power_of_2(size), BLOCK=block, BATCH=triton.next_power_of_2(batch), num_warps=1,
        **gpu(cache.device).starting,
    )  # fmt: skip


# ---- norms of heads


@triton.jit
def norm_kernel(
    x, of_q, of_k, out, every, q_heads, k_heads, x_batch, x_head, SIZE: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    Q_EPS: tl.constexpr, K_EPS: tl.constexpr, Q_WEIGHT: tl.constexpr, K_WEIGHT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute out [batch, every, SIZE]: the heads of Q and K by their root mean square, step by step as `rms_norm`, those of V as they are.

    A CTA takes ROWS heads.
    """
    begin(EARLY)
    b, h, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    there = (h < every)[:, None] & (d < SIZE)[None, :]
    is_q, is_k = (h < q_heads)[:, None], ((h >= q_heads) & (h < q_heads + k_heads))[:, None]
    v = tl.load(x + b * x_batch + h[:, None] * x_head + d[None, :], mask=there, other=0.0)
    wide = v.to(tl.float64)
    each = tl.full((), 1.0, tl.float64) / SIZE
    eps = tl.where(is_q, tl.full((), Q_EPS, tl.float64), tl.full((), K_EPS, tl.float64))
    mean = tl.sum(wide * wide, 1)[:, None] * each + eps
    weight = tl.full((ROWS, WIDE), 1.0, tl.float32)
    if Q_WEIGHT:
        weight = tl.where(is_q, tl.load(of_q + d, mask=d < SIZE, other=0.0)[None, :], weight)
    if K_WEIGHT:
        weight = tl.where(is_k, tl.load(of_k + d, mask=d < SIZE, other=0.0)[None, :], weight)
    normed = v * tl.rsqrt(mean).to(tl.float32) * weight
    y = tl.where(is_q | is_k, normed, v)
    tl.store(out + (b * every + h[:, None]) * SIZE + d[None, :], y, mask=there)


NORM_ROWS = 4  # heads of a CTA: one for each of its warps


def norm(x: torch.Tensor, norms: HeadNorms[torch.Tensor], shared: int) -> torch.Tensor:
    """Return the heads [batch, 1, heads + 2 kv heads, size] of Q, K and V, in f32, those of Q and K normalised."""
    batch, _, every, size = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    of_q, of_k = (out if w is None else w.contiguous() for w in norms[:2])
    norm_kernel[(batch, triton.cdiv(every, NORM_ROWS))](
        x, of_q, of_k, out, every, every - 2 * shared, shared, x.stride(0), x.stride(2), SIZE=size, WIDE=triton.next_power_of_2(size),
        ROWS=NORM_ROWS, Q_EPS=norms.q_eps, K_EPS=norms.k_eps, Q_WEIGHT=norms.of_q is not None, K_WEIGHT=norms.of_k is not None,
        num_warps=4, enable_fp_fusion=False, **gpu(x.device).starting,
    )  # fmt: skip
    return out


# ---- rotary positions


@triton.jit
def rope_kernel(
    x, cos, sin, out, tokens, turned, x_batch, x_token, x_head, c_batch, c_token, s_batch, s_token, o_batch, o_token, o_head,
    HALF: tl.constexpr, WIDE: tl.constexpr, APART: tl.constexpr, STEP: tl.constexpr, REST: tl.constexpr, MORE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Rotate pairs (i * STEP, i * STEP + APART) of one head by their angles, each product and sum rounded.

    REST elements behind them are copied; MORE is the power of two that holds them.
    """
    begin(EARLY)
    b, t, h = (tl.program_id(0) // tokens).to(tl.int64), (tl.program_id(0) % tokens).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, WIDE)
    fits = i < HALF
    one = x + b * x_batch + t * x_token + h * x_head + i * STEP
    to = out + b * o_batch + t * o_token + h * o_head + i * STEP
    a, z = tl.load(one, mask=fits), tl.load(one + APART, mask=fits)
    if h < turned:
        c = tl.load(cos + b * c_batch + t * c_token + i, mask=fits)
        s = tl.load(sin + b * s_batch + t * s_token + i, mask=fits)
        wide_a, wide_z = a.to(tl.float32), z.to(tl.float32)
        tl.store(to, (wide_a * c - wide_z * s).to(out.dtype.element_ty), mask=fits)
        tl.store(to + APART, (wide_z * c + wide_a * s).to(out.dtype.element_ty), mask=fits)
    else:
        tl.store(to, a.to(out.dtype.element_ty), mask=fits)
        tl.store(to + APART, z.to(out.dtype.element_ty), mask=fits)
    if REST:
        j = tl.arange(0, MORE)
        passed = tl.load(x + b * x_batch + t * x_token + h * x_head + 2 * HALF + j, mask=j < REST)
        tl.store(
            out + b * o_batch + t * o_token + h * o_head + 2 * HALF + j, passed.to(out.dtype.element_ty), mask=j < REST
        )


def rope(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    dtype: torch.dtype,
    interleaved: bool,
    heads: int | None = None,
    size: int | None = None,
) -> torch.Tensor:
    """Return the result of the op `rope` for x [batch, tokens, heads, D].

    Only the first `heads` are rotated, and of each the first `size` elements; the others are copied.
    """
    batch, tokens, all_heads, whole = x.shape
    size = whole if size is None else size
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if not out.numel():
        return out
    if not size:
        return out.copy_(x)
    half = size // 2
    cos, sin = (v.float().expand(batch, tokens, half) for v in (cos, sin))
    x, cos, sin = (v if v.stride(-1) == 1 else v.contiguous() for v in (x, cos, sin))
    rope_kernel[(batch * tokens, all_heads)](
        x, cos, sin, out, tokens, all_heads if heads is None else heads, *x.stride()[:3], *cos.stride()[:2], *sin.stride()[:2],
        *out.stride()[:3], HALF=half, WIDE=triton.next_power_of_2(half), APART=1 if interleaved else half,
        STEP=2 if interleaved else 1, REST=whole - size,
        MORE=triton.next_power_of_2(max(whole - size, 1)), num_warps=1, enable_fp_fusion=False, **gpu(x.device).starting,
    )  # fmt: skip
    return out


# ---- sequences outside the cache


@triton.jit
def outside_kernel(
    places, bad, row, slots, capacity, tokens, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr
):
    """Find out whether one sequence, or one of the blocks that it needs, is outside the cache. COLUMNS: of blocks, or more."""
    begin(EARLY)
    own = places + tl.program_id(0) * row
    slot, start, count = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    wrong = (slot < 0) | (start < 0) | (count < 0) | (count > tokens) | (start > capacity - count)
    if BLOCK:
        first = tl.arange(0, COLUMNS) * BLOCK
        block = tl.load(own + 3 + tl.arange(0, COLUMNS), mask=(first < start + count) & (first < capacity), other=0)
        wrong |= tl.max(((block < 0) | (block >= slots)).to(tl.int32), 0) > 0
    else:
        wrong |= slot >= slots
    tl.store(bad + tl.program_id(0), wrong)


def outside(cache: torch.Tensor, places: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return which sequences, with so many tokens at most, are outside the cache, as bools."""
    batch, columns = places.shape
    slots, capacity, block = room(cache, places)
    bad = torch.empty(batch, dtype=torch.bool, device=places.device)
    if batch:
        outside_kernel[(batch,)](
            places.contiguous(), bad, columns, slots, capacity, tokens, BLOCK=block,
            COLUMNS=triton.next_power_of_2(max(columns - PLACE, 1)), num_warps=1, **gpu(places.device).starting,
        )  # fmt: skip
    return bad


fix_cache_keys(globals())
