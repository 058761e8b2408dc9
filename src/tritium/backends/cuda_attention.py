"""Attention over caches of keys and values by Triton kernels: f64 inside, rounded once, so that bits do not depend on the device.

Knows nothing of storages, tensors of ours or graphs. Where the tokens of a sequence lie is read on the device: nothing waits for
the host, and a CUDA graph of it serves any length.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tritium.backends.cuda_ternary import gpu

KEYS = 32  # that a program looks at together
ROWS = 16  # queries of one kv head that it takes, at least: what a product of f64 needs
MOST_ROWS = 64
PROGRAMS = 264  # two for each multiprocessor of a large GPU


def _early(x: torch.Tensor) -> dict[str, bool]:
    """Where that is asked for, and the GPU can hold a kernel back until the one before it is done, it is started before that."""
    return {"EARLY": True, "launch_pdl": True} if gpu(x.device).early else {"EARLY": False}


# ---- writing


@triton.jit
def write_kernel(
    cache, values, places, batch, tokens, slots, capacity, c_slot, c_head, c_token, v_batch, v_token, v_head, v_item,
    SIZE: tl.constexpr, WIDE: tl.constexpr, BATCH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """cache[slot, h, start + t] = values[b, t, h] for t < count; of several sequences at one place the last is written."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    b, t, h = tl.program_id(0) // tokens, tl.program_id(0) % tokens, tl.program_id(1)
    slot, start, count = tl.load(places + b * 3), tl.load(places + b * 3 + 1), tl.load(places + b * 3 + 2)
    inside = (slot >= 0) & (slot < slots) & (start >= 0) & (count <= tokens) & (start <= capacity - count)
    o = tl.arange(0, BATCH)
    later = (o > b) & (o < batch)
    o_slot = tl.load(places + o * 3, mask=later, other=-1)
    o_start = tl.load(places + o * 3 + 1, mask=later, other=0)
    o_count = tl.load(places + o * 3 + 2, mask=later, other=0)
    at = start + t
    covered = tl.sum((later & (o_slot == slot) & (o_start <= at) & (at < o_start + o_count)).to(tl.int32), 0)
    if inside & (t < count) & (covered == 0):
        d = tl.arange(0, WIDE)
        x = tl.load(
            values + b.to(tl.int64) * v_batch + t.to(tl.int64) * v_token + h * v_head + d * v_item, mask=d < SIZE
        )
        to = cache + slot.to(tl.int64) * c_slot + h.to(tl.int64) * c_head + at.to(tl.int64) * c_token + d
        tl.store(to, x.to(cache.dtype.element_ty), mask=d < SIZE)


def write(cache: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
    """What `update_cache` says, into a contiguous cache itself. Sequences outside of it write nothing."""
    slots, heads, capacity, size = cache.shape
    batch, tokens = values.shape[:2]
    if not (batch and tokens and heads and size):
        return
    write_kernel[(batch * tokens, heads)](
        cache, values, places.contiguous(), batch, tokens, slots, capacity, *cache.stride()[:3], *values.stride(), SIZE=size,
        WIDE=triton.next_power_of_2(size), BATCH=triton.next_power_of_2(batch), num_warps=1, **_early(cache),
    )  # fmt: skip


# ---- rotary positions


@triton.jit
def rope_kernel(
    x, cos, sin, out, tokens, x_batch, x_token, x_head, c_batch, c_token, s_batch, s_token, o_batch, o_token, o_head,
    HALF: tl.constexpr, WIDE: tl.constexpr, APART: tl.constexpr, STEP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Pairs (i * STEP, i * STEP + APART) of one head turned by their angles, each product and sum rounded."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    b, t, h = (tl.program_id(0) // tokens).to(tl.int64), (tl.program_id(0) % tokens).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, WIDE)
    fits = i < HALF
    c = tl.load(cos + b * c_batch + t * c_token + i, mask=fits)
    s = tl.load(sin + b * s_batch + t * s_token + i, mask=fits)
    one = x + b * x_batch + t * x_token + h * x_head + i * STEP
    a, z = tl.load(one, mask=fits).to(tl.float32), tl.load(one + APART, mask=fits).to(tl.float32)
    to = out + b * o_batch + t * o_token + h * o_head + i * STEP
    tl.store(to, (a * c - z * s).to(out.dtype.element_ty), mask=fits)
    tl.store(to + APART, (z * c + a * s).to(out.dtype.element_ty), mask=fits)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype, interleaved: bool) -> torch.Tensor:
    """What the row `rope` says, for x [batch, tokens, heads, size]."""
    batch, tokens, heads, size = x.shape
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if not out.numel():
        return out
    half = size // 2
    cos, sin = (v.float().expand(batch, tokens, half) for v in (cos, sin))
    x, cos, sin = (v if v.stride(-1) == 1 else v.contiguous() for v in (x, cos, sin))
    rope_kernel[(batch * tokens, heads)](
        x, cos, sin, out, tokens, *x.stride()[:3], *cos.stride()[:2], *sin.stride()[:2], *out.stride()[:3], HALF=half,
        WIDE=triton.next_power_of_2(half), APART=1 if interleaved else half, STEP=2 if interleaved else 1, num_warps=1,
        enable_fp_fusion=False, **_early(x),
    )  # fmt: skip
    return out


# ---- which sequences lie outside


@triton.jit
def outside_kernel(places, bad, batch, slots, capacity, tokens, BATCH: tl.constexpr):
    o = tl.arange(0, BATCH)
    meant = o < batch
    slot = tl.load(places + o * 3, mask=meant, other=0)
    start = tl.load(places + o * 3 + 1, mask=meant, other=0)
    count = tl.load(places + o * 3 + 2, mask=meant, other=0)
    wrong = (slot < 0) | (slot >= slots) | (start < 0) | (count < 0) | (count > tokens) | (start > capacity - count)
    tl.store(bad + o, wrong, mask=meant)


def outside(places: torch.Tensor, slots: int, capacity: int, tokens: int) -> torch.Tensor:
    """Which sequences are not inside the cache, as bools."""
    batch = places.shape[0]
    bad = torch.empty(batch, dtype=torch.bool, device=places.device)
    if batch:
        block = triton.next_power_of_2(batch)
        outside_kernel[(1,)](places.contiguous(), bad, batch, slots, capacity, tokens, BATCH=block, num_warps=1)
    return bad


# ---- attention
# Pairs of elements come as words of 32 bits: from loads of 16 bits Triton cannot make operands of a product of f64.


@triton.jit
def _wide(half, BRAIN: tl.constexpr):
    """The half float in the low bits of a word, as f64."""
    if BRAIN:
        x = (half << 16).to(tl.float32, bitcast=True)
    else:
        special = (half & 0x7C00) == 0x7C00
        size = (half & 0x7FFF) << 13
        size = tl.where(special, size | 0x7F800000, size)
        x = size.to(tl.float32, bitcast=True) * tl.where(
            special, 1.0, 5.192296858534828e33
        )  # 2**112, between the biases
        x = tl.where((half & 0x8000) != 0, -x, x)
    return x.to(tl.float64)


@triton.jit
def _pairs(base, at, there, SINGLE: tl.constexpr, BRAIN: tl.constexpr):
    """Elements 2i and 2i + 1 as f64; `at` counts words of two halves, or pairs of singles."""
    if SINGLE:
        one = tl.load(base + 2 * at, mask=there, other=0.0).to(tl.float64)
        two = tl.load(base + 2 * at + 1, mask=there, other=0.0).to(tl.float64)
    else:
        word = tl.load(base + at, mask=there, other=0)
        one, two = _wide(word & 0xFFFF, BRAIN), _wide((word >> 16) & 0xFFFF, BRAIN)
    return one, two


@triton.jit
def part_kernel(
    q, k, v, places, part, tops, totals, tokens, slots, capacity, per, q_batch, q_token, q_head, k_slot, k_head, k_token,
    v_slot, v_head, v_token, PAIRS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PARTS: tl.constexpr, PLACED: tl.constexpr, SINGLE: tl.constexpr, BRAIN: tl.constexpr, FACTOR: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A share of the keys for some queries of one kv head: sums of values and of weights, both against the largest score."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    blocks = tl.cdiv(tokens * per, ROWS)
    b, block, g, p = tl.program_id(0) // blocks, tl.program_id(0) % blocks, tl.program_id(1), tl.program_id(2)
    if PLACED:
        slot, start, count = tl.load(places + b * 3), tl.load(places + b * 3 + 1), tl.load(places + b * 3 + 2)
        inside = (slot >= 0) & (slot < slots) & (start >= 0) & (count <= tokens) & (start <= capacity - count)
        slot, start, count = tl.where(inside, slot, 0), tl.where(inside, start, 0), tl.where(inside, count, 0)
    else:
        slot, start, count = b, capacity - tokens, tokens
    row = block * ROWS + tl.arange(0, ROWS)
    token, head = row // per, g * per + row % per
    live = (token < count) & (row < tokens * per)
    d = tl.arange(0, WIDE)
    fits = d < PAIRS
    line = token.to(tl.int64)[:, None] * q_token + head[:, None] * q_head + 2 * d[None, :]
    meant = live[:, None] & fits[None, :]
    one = tl.load(q + b.to(tl.int64) * q_batch + line, mask=meant, other=0.0).to(tl.float64) * FACTOR
    two = tl.load(q + b.to(tl.int64) * q_batch + line + 1, mask=meant, other=0.0).to(tl.float64) * FACTOR
    last = tl.minimum(start + (block * ROWS + ROWS - 1) // per + 1, start + count)  # keys that any of them sees
    last = tl.where(block * ROWS // per < count, last, 0)
    share = tl.cdiv(tl.cdiv(last, PARTS), KEYS) * KEYS
    first, end = p * share, tl.minimum(p * share + share, last)
    k_base = k + slot.to(tl.int64) * k_slot + g.to(tl.int64) * k_head
    v_base = v + slot.to(tl.int64) * v_slot + g.to(tl.int64) * v_head
    top = tl.full((ROWS,), float("-inf"), tl.float64)
    total = tl.zeros((ROWS,), tl.float64)
    mixed_one = tl.zeros((ROWS, WIDE), tl.float64)
    mixed_two = tl.zeros((ROWS, WIDE), tl.float64)
    for at in range(first, end, KEYS):
        key = at + tl.arange(0, KEYS)
        there = key < end
        k_one, k_two = _pairs(
            k_base + key.to(tl.int64)[None, :] * k_token, d[:, None], there[None, :] & fits[:, None], SINGLE, BRAIN
        )
        v_one, v_two = _pairs(  # asked for together: neither waits for the other
            v_base + key.to(tl.int64)[:, None] * v_token, d[None, :], there[:, None] & fits[None, :], SINGLE, BRAIN
        )
        scores = tl.dot(one, k_one, out_dtype=tl.float64)
        scores = tl.dot(two, k_two, scores, out_dtype=tl.float64)
        sees = there[None, :] & (key[None, :] <= (start + token)[:, None]) & live[:, None]
        scores = tl.where(sees, scores, float("-inf"))
        most = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(most == float("-inf"), 0.0, most)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(top - base)
        total = total * fade + tl.sum(weights, 1)
        mixed_one = tl.dot(weights, v_one, mixed_one * fade[:, None], out_dtype=tl.float64)
        mixed_two = tl.dot(weights, v_two, mixed_two * fade[:, None], out_dtype=tl.float64)
        top = most
    to = ((tl.program_id(0).to(tl.int64) * tl.num_programs(1) + g) * PARTS + p) * ROWS + tl.arange(0, ROWS)
    asked = row < tokens * per
    tl.store(tops + to, top, mask=asked)
    tl.store(totals + to, total, mask=asked)
    if end > first:
        tl.store(part + to[:, None] * (2 * WIDE) + 2 * d[None, :], mixed_one, mask=asked[:, None])
        tl.store(part + to[:, None] * (2 * WIDE) + 2 * d[None, :] + 1, mixed_two, mask=asked[:, None])


@triton.jit
def join_kernel(
    part, tops, totals, out, tokens, per, o_batch, o_token, o_head, SIZE: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The shares of all keys become the attention of one query."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    blocks = tl.cdiv(tokens * per, ROWS)
    b, r, g = tl.program_id(0) // (tokens * per), tl.program_id(0) % (tokens * per), tl.program_id(1)
    p, d = tl.arange(0, PARTS), tl.arange(0, WIDE)
    of = (b * blocks + r // ROWS).to(tl.int64) * tl.num_programs(1) + g
    line = (of * PARTS + p) * ROWS + r % ROWS
    top = tl.load(tops + line)
    most = tl.max(top, 0)
    fade = tl.exp(top - tl.where(most == float("-inf"), 0.0, most))
    totals_of = tl.load(totals + line)
    total = tl.sum(totals_of * fade, 0)
    shares = tl.load(
        part + line[:, None] * WIDE + d[None, :]
    )  # asked for before it is known which of them were written
    mixed = tl.sum(tl.where((totals_of != 0.0)[:, None], shares * fade[:, None], 0.0), 0)
    y = tl.where(total == 0.0, 0.0, mixed / total)
    to = out + b.to(tl.int64) * o_batch + (r // per).to(tl.int64) * o_token + (g * per + r % per) * o_head + d
    tl.store(to, y.to(out.dtype.element_ty), mask=d < SIZE)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor | None, factor: float
) -> torch.Tensor:
    """softmax(q kᵀ factor) v for q [batch, tokens, heads, size] over caches [slots, kv heads, capacity, size]."""
    batch, tokens, heads, size = q.shape
    slots, shared, capacity, _ = k.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    if not capacity:
        return out.zero_()
    single = k.dtype not in _HALVES or v.dtype is not k.dtype or size % 2 == 1
    caches = [_words(x, single) for x in (k, v)]
    q = q.float()
    if size % 2:
        q = torch.nn.functional.pad(q, (0, 1))
    q = q if q.stride(-1) == 1 else q.contiguous()
    per, wide = heads // shared, max(triton.next_power_of_2((size + 1) // 2), 16)
    rows = min(max(triton.next_power_of_2(tokens * per), ROWS), MOST_ROWS)
    blocks = triton.cdiv(tokens * per, rows)
    parts = triton.next_power_of_2(max(1, min(PROGRAMS // (batch * blocks * shared), triton.cdiv(capacity, KEYS), 32)))
    lines = batch * blocks * shared * parts * rows
    space = torch.empty(lines * (2 * wide + 2), dtype=torch.float64, device=q.device)
    tops, totals, part = space[:lines], space[lines : 2 * lines], space[2 * lines :]
    given: Any = q if places is None else places.contiguous()
    part_kernel[(batch * blocks, shared, parts)](
        q, *caches, given, part, tops, totals, tokens, slots, capacity, per, *q.stride()[:3], *caches[0].stride()[:3],
        *caches[1].stride()[:3], PAIRS=(size + 1) // 2, WIDE=wide, ROWS=rows, KEYS=KEYS, PARTS=parts, PLACED=places is not None,
        SINGLE=single, BRAIN=k.dtype is torch.bfloat16, FACTOR=factor, num_warps=4, **_early(q),
    )  # fmt: skip
    join_kernel[(batch * tokens * per, shared)](
        part, tops, totals, out, tokens, per, *out.stride()[:3], SIZE=size, WIDE=2 * wide, ROWS=rows, PARTS=parts, num_warps=4,
        **_early(q),
    )  # fmt: skip
    return out


_HALVES = (torch.float16, torch.bfloat16)


def _words(x: torch.Tensor, single: bool) -> torch.Tensor:
    """A cache as the kernel reads it: f32, or words of two halves."""
    if single:
        x = torch.nn.functional.pad(x.float(), (0, x.shape[-1] % 2))
        return x if x.stride(-1) == 1 else x.contiguous()
    even = x.stride(-1) == 1 and x.data_ptr() % 4 == 0 and not any(s % 2 for s in x.stride()[:-1])
    return (x if even else x.contiguous()).view(torch.int32)
