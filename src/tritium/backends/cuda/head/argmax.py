"""Argmax of long rows by Triton kernels: blocks of a row in parallel, then a reduction over the blocks of each row.

Everything can be captured by CUDA graphs: nothing waits for the device, and only results and the keys of blocks
are allocated.

An element is a signed 64-bit key: the upper 32 bits are ordered as the floats are, with NaN above all of them; the
lower ones are 2**31 - 1 minus the index. So the largest key is the first of the largest elements, as in np.argmax.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin

LEAST = 1024  # elements of a piece; longer ones are a multiple of it
BLOCK = 4096  # that a CTA takes together in a longer piece: each of its threads has several loads in flight
EACH = 2  # CTAs on a multiprocessor, for few rows


@triton.jit
def order(v):
    """Return int32 in the order of floats, with NaN above all of them; -0 and +0 are equal."""
    bits = (v + 0.0).to(tl.int32, bitcast=True)  # -0 is +0
    return tl.where(v != v, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def key_of(v, i):
    """Return the key of element i of a row."""
    return (order(v).to(tl.int64) << 32) + (0x7FFFFFFF - i)


@triton.jit
def place_of(key):
    """Return the index in a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """Return the element of a key."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pieces_kernel(x, out, size, stride, length, WHOLE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Write to out[row, part] the largest key of elements part * length … of a row of x.

    WHOLE: a row is one part, and out gets the index instead of the key.
    """
    begin(EARLY)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = part.to(tl.int64) * length
    end = tl.minimum(first + length, size)
    best = tl.full([BLOCK], -(2**63), tl.int64)
    for start in range(first, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + i, mask=i < end, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, key_of(v, i))
    key = tl.max(best, 0)
    tl.store(out + row * tl.num_programs(1) + part, place_of(key) if WHOLE else key)


@triton.jit
def places_kernel(keys, out, parts, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Write to out[row] the index in the largest of a row's keys."""
    begin(EARLY)
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    loaded = tl.load(keys + row * parts + c, mask=c < parts, other=-(2**63))
    tl.store(out + row, place_of(tl.max(loaded, 0)))


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Return the indices, as int64, of the largest elements along the last axis of f32, f16 or bf16.

    The axis has 1 to 2**31 - 1 elements. Of equal elements the first counts; NaN counts as the largest.
    """
    size = x.shape[-1]
    flat = x.reshape(-1, size)
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    rows = flat.shape[0]
    out = torch.empty(x.shape[:-1], dtype=torch.int64, device=x.device)
    if not rows:
        return out
    device = gpu(x.device)
    length = piece(size, rows, EACH * device.processors)
    parts, block = triton.cdiv(size, length), LEAST if length == LEAST else BLOCK
    whole = parts == 1
    keys = out if whole else torch.empty((rows, parts), dtype=torch.int64, device=x.device)
    with current(x):
        pieces_kernel[(rows, parts)](
            flat, keys, size, flat.stride(0) if rows > 1 else size, length, WHOLE=whole, BLOCK=block,
            num_warps=8, **device.starting,
        )  # fmt: skip
        if not whole:
            room = triton.next_power_of_2(parts)
            places_kernel[(rows,)](keys, out, parts, BLOCK=room, num_warps=1 if room <= 128 else 4, **device.starting)
    return out


def piece(size: int, rows: int, programs: int) -> int:
    """Return the elements of a row that one CTA takes, so that about `programs` CTAs share all rows."""
    blocks = triton.cdiv(size, LEAST)
    pieces = min(max(programs // rows, 1), blocks)
    return int(triton.cdiv(blocks, pieces)) * LEAST


fix_cache_keys(globals())
