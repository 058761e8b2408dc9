"""Rows that a device does not have, and why: known without its library, so that the page of operations can tell.

Knows nothing of kernels.
"""

from __future__ import annotations

from tritium import ops
from tritium.op import Op

_BY_VALUES = (
    "MLX has no arrays whose size depends on values; where(mask, x, 0), or a sum over the mask, keeps the shape"
)

MLX: dict[Op, str] = {ops.nonzero: _BY_VALUES, ops.masked: _BY_VALUES}
TORCH: dict[Op, str] = {ops.fused: "torch computes with u16, u32 and u64 one row at a time"}
