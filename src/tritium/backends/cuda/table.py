"""Rows of a quantised table by index in one Triton kernel, which unpacks and scales them and reports what is wrong with them.

Nothing waits for the host; an index out of range reads nothing, and its row is zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tritium import dtype as dt
from tritium.backends.cuda.gpu import current, gpu
from tritium.backends.cuda.keys import fix_cache_keys
from tritium.backends.cuda.order import begin
from tritium.dtype import DType

COLUMNS = 1024  # of a row that a CTA takes, at most


class Code(NamedTuple):
    """Fields of a byte, from its lowest bits on: integers are (field ^ flip) - less."""

    bits: int
    flip: int
    less: int


CODES = {
    dt.tern2: Code(2, 0, 1),
    dt.tern2_r64: Code(2, 0, 1),
    dt.i4: Code(4, 8, 8),
    dt.i4_r32: Code(4, 0, 8),
    dt.i8: Code(8, 128, 128),
    dt.i8_r16: Code(8, 0, 128),
}


@triton.jit
def table_kernel(
    table, scale, indices, out, outside, damaged, size, step, K, line, GROUPS, GROUP,
    COLUMNS: tl.constexpr, LANES: tl.constexpr, BITS: tl.constexpr, FLIP: tl.constexpr, LESS: tl.constexpr, MOST: tl.constexpr,
    SCALED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write out[i] = table[indices[i step]] * scale, COLUMNS of one row a CTA; negative indices count from the end.

    line: bytes of a row, or of a row of tiles where LANES is not 0: there LANES rows lie side by side, four columns of each and then the next
    four, and a byte has a field of each of 8 / BITS rows, LANES apart. outside[i]: whether an index is out of range; damaged: whether one of
    the CTA's integers is above MOST. SCALED: 0 one scale, 1 one for each row, 2 one for each GROUP of columns.
    """
    FIELDS: tl.constexpr = 8 // BITS
    begin(EARLY)
    i, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = block * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.load(indices + i * step).to(tl.int64)
    there = (row >= -size) & (row < size)
    row = tl.where(there, tl.where(row < 0, row + size, row), 0)
    inside = there & (c < K)
    if LANES:
        within = (row % (LANES * FIELDS)).to(tl.int32)
        place = row // (LANES * FIELDS) * line + c // 4 * (4 * LANES) + within % LANES * 4 + c % 4
        field = within // LANES
    else:
        place = row * line + c // FIELDS
        field = c % FIELDS
    byte = tl.load(table + place, mask=inside, other=0).to(tl.int32)
    integer = (((byte >> (field * BITS)) & ((1 << BITS) - 1)) ^ FLIP) - LESS
    by = scale
    if SCALED == 1:
        by = scale + row
    elif SCALED == 2:
        by = scale + row * GROUPS + c // GROUP
    steps = tl.load(by, mask=inside, other=0.0).to(tl.float32) if SCALED == 2 else tl.load(by).to(tl.float32)
    y = tl.where(inside, integer.to(tl.float32) * steps, 0.0)
    tl.store(out + i * K + c, y, mask=c < K)
    tl.store(damaged + i * tl.num_programs(1) + block, tl.max((inside & (integer > MOST)).to(tl.int32), 0) != 0)
    if block == 0:
        tl.store(outside + i, there == 0)


def reads(kind: DType) -> bool:
    """Return True if the kernel unpacks a dtype."""
    return kind in CODES


def take_rows(
    table: torch.Tensor, kind: DType, shape: tuple[int, int], scale: torch.Tensor, indices: torch.Tensor, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows [*indices, k] in f32 by int32 or int64 indices, flags of indices out of range, and of codes that mean nothing.

    table: the bytes of a matrix of a dtype with this shape. scale: one, one for each row, or one for each group of columns of each row.
    """
    (n, k), flat = shape, indices.reshape(-1)  # of a column it stays a view
    count, code = flat.numel(), CODES[kind]
    out = torch.empty((*indices.shape, k), dtype=torch.float32, device=table.device)
    columns = min(triton.next_power_of_2(max(k, 1)), COLUMNS)
    blocks = triton.cdiv(k, columns)
    outside = torch.empty(count, dtype=torch.bool, device=table.device)
    damaged = torch.empty(count * blocks, dtype=torch.bool, device=table.device)
    if not (n and k):  # of no rows each index is outside; of rows of nothing none is read
        return out.zero_(), outside.fill_(k > 0), damaged.fill_(False)
    if count:
        lanes = kind.rows * code.bits // 8 if kind.rows > 1 else 0
        table, scale = table.contiguous().view(torch.uint8), scale.contiguous()
        with current(table):
            table_kernel[(count, blocks)](
                table, scale, flat, out, outside, damaged, n, flat.stride(0), k, table.numel() // -(-n // kind.rows),
                scale.shape[-1] if scale.ndim else 1, max(min(group, k), 1), COLUMNS=columns, LANES=lanes, BITS=code.bits, FLIP=code.flip,
                LESS=code.less, MOST=kind.values[1] if kind.is_packed else 127, SCALED=scale.ndim, num_warps=max(columns // 256, 1),
                **gpu(table.device).starting,
            )  # fmt: skip
    return out, outside, damaged


fix_cache_keys(globals())
