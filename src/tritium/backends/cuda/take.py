"""Rows of a table by index in one Triton kernel, which copies bits and reports indices out of range.

Nothing waits for the host; an index out of range reads nothing, and its row is zeros.
"""

from __future__ import annotations

from math import prod

import torch
import triton
import triton.language as tl

from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin

COLUMNS = 256  # words of a row that a CTA copies, at most
WORDS = 512  # that it copies of all its rows
_AS_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def take_kernel(
    table, indices, out, outside, size, count, step, width, blocks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write out[i] = table[indices[i step]], rows of `width` words.

    outside[j]: whether any of the ROWS indices from j ROWS on is out of range. One CTA takes COLUMNS of some rows;
    negative indices count from the end.
    """
    begin(EARLY)
    part, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    i = part.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = block.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    meant = i < count
    row = tl.load(indices + i * step, mask=meant, other=0).to(tl.int64)
    there = meant & (row >= -size) & (row < size)
    row = tl.where(row < 0, row + size, row)
    along = (c < width)[None, :]
    words = tl.load(table + row[:, None] * width + c[None, :], mask=there[:, None] & along, other=0)
    tl.store(out + i[:, None] * width + c[None, :], words, mask=meant[:, None] & along)
    if block == 0:
        tl.store(outside + part, tl.max((meant & (there == 0)).to(tl.int32), 0) != 0)


def take(x: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows [*indices, ...] of x [n, ...] by int32 or int64 indices, and flags of indices out of range."""
    x, flat = x.contiguous(), indices.reshape(-1)  # of a column it stays a view
    n, items, count = x.shape[0], prod(x.shape[1:]), flat.numel()
    out = torch.empty((*indices.shape, *x.shape[1:]), dtype=x.dtype, device=x.device)
    word = _word(x, items)
    width = items * x.element_size() // word.itemsize
    columns = min(triton.next_power_of_2(max(width, 1)), COLUMNS)
    rows = min(triton.next_power_of_2(max(count, 1)), WORDS // columns)
    parts, blocks = triton.cdiv(count, rows), max(triton.cdiv(width, columns), 1)
    outside = torch.empty(parts, dtype=torch.bool, device=x.device)
    if count:
        words = out.view(-1).view(word)
        with current(x):
            take_kernel[(parts * blocks,)](
                x.view(-1).view(word) if x.numel() else words, flat, words, outside, n, count, flat.stride(0), width, blocks,
                ROWS=rows, COLUMNS=columns, num_warps=2, **gpu(x.device).starting,
            )  # fmt: skip
    return out, outside


def _word(x: torch.Tensor, items: int) -> torch.dtype:
    """Return the widest integer dtype that divides rows of so many items at their addresses."""
    reach = items * x.element_size() | x.storage_offset() * x.element_size() | x.data_ptr() | max(_AS_WORDS)
    return _AS_WORDS[reach & -reach]


fix_cache_keys(globals())
