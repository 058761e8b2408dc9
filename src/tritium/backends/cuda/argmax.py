"""Where the largest of each long row stands, by Triton kernels: pieces of rows side by side, then the pieces of each row.

Knows nothing of rows of operations, of axes or of tensors of ours. Everything is captured by CUDA graphs: nothing waits for the
device, and only results and the keys of pieces are allocated.

An element is a key of 64 bits with a sign: above, 32 bits that are ordered as the floats are, with NaN over all of them; below,
how far it stands before place 2**31 - 1. So the largest key is the first of the largest, as np.argmax says.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.order import begin

LEAST = 1024  # elements of a piece; longer ones are a multiple of it
BLOCK = 4096  # that a program looks at together in a longer piece: each of its threads has several loads on the way
EACH = 2  # programs on a multiprocessor, for few rows


@triton.jit
def _place(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def pieces_kernel(x, made, size, stride, length, WHOLE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """made[row, part] = the largest key of elements part * length … of a row of x. WHOLE: a row is one part, and its place is
    made."""
    begin(EARLY)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = part.to(tl.int64) * length
    end = tl.minimum(first + length, size)
    best = tl.full([BLOCK], -(2**63), tl.int64)
    for at in range(first, end, BLOCK):
        i = at + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + i, mask=i < end, other=float("-inf")).to(tl.float32)
        bits = (v + 0.0).to(tl.int32, bitcast=True)  # -0 is +0
        ordered = tl.where(v != v, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))
        best = tl.maximum(best, (ordered.to(tl.int64) << 32) + (0x7FFFFFFF - i))
    key = tl.max(best, 0)
    tl.store(made + row * tl.num_programs(1) + part, _place(key) if WHOLE else key)


@triton.jit
def places_kernel(keys, out, parts, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """out[row] = the place that the largest of a row's keys names."""
    begin(EARLY)
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    found = tl.load(keys + row * parts + c, mask=c < parts, other=-(2**63))
    tl.store(out + row, _place(tl.max(found, 0)))


def argmax(x: torch.Tensor) -> torch.Tensor:
    """The places, in int64, of the largest along the last axis of f32, f16 or bf16, which has 1 to 2**31 - 1 elements: the first
    of equals, of NaN where there is one."""
    size = x.shape[-1]
    flat = x.reshape(-1, size)
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    rows = flat.shape[0]
    out = torch.empty(x.shape[:-1], dtype=torch.int64, device=x.device)
    if not rows:
        return out
    found = gpu(x.device)
    length = piece(size, rows, EACH * found.processors)
    parts, block = triton.cdiv(size, length), LEAST if length == LEAST else BLOCK
    whole = parts == 1
    made = out if whole else torch.empty((rows, parts), dtype=torch.int64, device=x.device)
    with current(x):
        pieces_kernel[(rows, parts)](
            flat, made, size, flat.stride(0) if rows > 1 else size, length, WHOLE=whole, BLOCK=block,
            num_warps=8, **found.starting,
        )  # fmt: skip
        if not whole:
            room = triton.next_power_of_2(parts)
            places_kernel[(rows,)](made, out, parts, BLOCK=room, num_warps=1 if room <= 128 else 4, **found.starting)
    return out


def piece(size: int, rows: int, programs: int) -> int:
    """How many elements of each row one program takes, so that about so many programs share all rows."""
    blocks = triton.cdiv(size, LEAST)
    wanted = min(max(programs // rows, 1), blocks)
    return int(triton.cdiv(blocks, wanted)) * LEAST
