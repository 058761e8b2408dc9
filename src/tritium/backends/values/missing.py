"""Rows that a device does not have, and why: known without its library, so that the page of operations can tell."""

from __future__ import annotations

from tritium import ops
from tritium.op import Op

_BY_VALUES = (
    "MLX has no arrays whose size depends on values; where(mask, x, 0), or a sum over the mask, keeps the shape"
)

_QUANTIZED = "KV caches of integers are kept on the host; keep keys and values as f16 or bf16 here"

_WHOLE_HEAD = "a head is read as a whole here; CUDA with Triton reads one of half floats through an int8 copy"

ON_HOST: dict[Op, str] = {
    ops.factorize: "linear algebra is computed by LAPACK on the host",
    ops.transform: "Fourier transforms are computed by NumPy on the host",
    ops.distinct: "distinct elements are found by NumPy on the host",
    ops.update_quantized_cache: _QUANTIZED,
    ops.quantized_attention: _QUANTIZED,
}
HEAD: dict[Op, str] = {ops.bounded_argmax: _WHOLE_HEAD}
MLX: dict[Op, str] = {ops.nonzero: _BY_VALUES, ops.masked: _BY_VALUES, **HEAD, **ON_HOST}
TORCH: dict[Op, str] = {ops.fused: "torch computes with u16, u32 and u64 one row at a time"}
GPU: dict[Op, str] = TORCH | ON_HOST | HEAD
