"""The choice of experts by Triton kernels: the largest scores of each token, their numbers in order, and the scores at them.

Each is one launch, where torch sorts whole rows, and checks and clamps indices one operation after another. Nothing waits for the
device.

A score is a signed 64-bit key as in `cuda.head.argmax`: above the order of the floats, with NaN above all; below, how early its index is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin

LOWEST = tl.constexpr(-(2**63))


@triton.jit
def topk_kernel(x, values, indices, SIZE, K, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Write the K largest of a row of x [rows, SIZE] and their indices, the largest first; of equal ones the first comes first."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    begin(EARLY)
    v = tl.load(x + row * SIZE + i, mask=i < SIZE, other=0.0).to(tl.float32)
    bits = (v + 0.0).to(tl.int32, bitcast=True)  # -0 is +0
    ordered = tl.where(v != v, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    key = tl.where(i < SIZE, (ordered.to(tl.int64) << 32) + (0x7FFFFFFF - i), LOWEST)
    for j in range(K):
        best = tl.max(key, 0)
        index = 0x7FFFFFFF - (best & 0x7FFFFFFF)
        tl.store(indices + row * K + j, index)
        tl.store(values + row * K + j, tl.load(x + row * SIZE + index))
        key = tl.where(key == best, LOWEST, key)


@triton.jit
def sort_kernel(x, out, ROWS, SIZE, TOGETHER: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Sort rows of integers x [ROWS, SIZE]: each element goes where as many are smaller, or equal and before it."""
    row = tl.program_id(0).to(tl.int64) * TOGETHER + tl.arange(0, TOGETHER)
    i = tl.arange(0, BLOCK)
    inside = (row < ROWS)[:, None] & (i < SIZE)[None, :]
    begin(EARLY)
    v = tl.load(x + row[:, None] * SIZE + i[None, :], mask=inside, other=0)
    smaller = (v[:, None, :] < v[:, :, None]) | (
        (v[:, None, :] == v[:, :, None]) & (i[None, :] < i[:, None])[None, :, :]
    )
    place = tl.sum((smaller & (i < SIZE)[None, None, :]).to(tl.int32), 2)
    tl.store(out + row[:, None] * SIZE + place, v, mask=inside)


@triton.jit
def along_kernel(x, indices, out, outside, COUNT, SIZE, K, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Write the elements of x [rows, SIZE] at indices [rows, K]; negative ones count from the end. COUNT: rows times K."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin(EARLY)
    index = tl.load(indices + o, mask=o < COUNT, other=0).to(tl.int64)
    bad = (index < -SIZE) | (index >= SIZE)
    index = tl.where(index < 0, index + SIZE, index)
    index = tl.minimum(tl.maximum(index, 0), SIZE - 1)
    tl.store(out + o, tl.load(x + o // K * SIZE + index, mask=o < COUNT), mask=o < COUNT)
    tl.store(outside + tl.program_id(0), tl.max((bad & (o < COUNT)).to(tl.int32), 0) > 0)


def topk(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest elements of each row of x [..., size], and their indices as int64."""
    *lead, size = x.shape
    x = x.contiguous()
    values, indices = (torch.empty((*lead, k), dtype=t, device=x.device) for t in (x.dtype, torch.int64))
    block = triton.next_power_of_2(size)
    with current(x):
        topk_kernel[(x.numel() // size,)](
            x, values, indices, size, k, BLOCK=block, num_warps=1 if block <= 512 else 4, **gpu(x.device).starting
        )
    return values, indices


def sort(x: torch.Tensor) -> torch.Tensor:
    """Return short rows of integers x [..., size], sorted."""
    x, size = x.contiguous(), x.shape[-1]
    out, rows, block = torch.empty_like(x), x.numel() // size, triton.next_power_of_2(size)
    together = max(1024 // (block * block), 1)
    with current(x):
        sort_kernel[(triton.cdiv(rows, together),)](
            x, out, rows, size, TOGETHER=together, BLOCK=block, num_warps=4, **gpu(x.device).starting
        )
    return out


def along(x: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements of x [..., size] at indices [..., k] of its last axis, and flags that show indices out of range."""
    x, indices = x.contiguous(), indices.contiguous()
    count, block = indices.numel(), 256
    out = torch.empty(indices.shape, dtype=x.dtype, device=x.device)
    outside = torch.empty(triton.cdiv(count, block), dtype=torch.bool, device=x.device)
    with current(x):
        along_kernel[(outside.numel(),)](
            x, indices, out, outside, count, x.shape[-1], indices.shape[-1], BLOCK=block, num_warps=2,
            **gpu(x.device).starting,
        )  # fmt: skip
    return out, outside


fix_cache_keys(globals())
