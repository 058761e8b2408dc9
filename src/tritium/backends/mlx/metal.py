"""The exact ternary product as a Metal kernel: int8 activations, tern2 weights, int32 sums. Not yet run on a Mac.

Where it is not used, `refusal` says why; MLX's own product of quantised weights then stands in.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np

from tritium.backends.reference import packed
from tritium.dtype import tern2

NOT_RUN = "not yet run on a Mac"
THREADS = 32  # a SIMD group: its threads share a sum
ROWS = 4  # weight rows of a SIMD group: each byte of activations that is read meets so many of weights
LINE = 16  # columns that a thread takes at a time: one 32-bit word of codes

# Every SIMD group makes ROWS results of one token. A thread reads a word of 16 codes and the 16 activations it meets, and
# adds activation * (code - 1) in int; simd_sum joins the threads. Integers do not round, so the order does not matter.
# K is a multiple of 16 here; a row of weights is K / 16 words.
SOURCE = """
    const uint lane = thread_index_in_simdgroup;
    const uint first = threadgroup_position_in_grid.x * ROWS;
    const uint token = threadgroup_position_in_grid.y;
    const uint words = K / 16;
    const device char* x = (const device char*)q + size_t(token) * K;
    int sums[ROWS];
    for (uint r = 0; r < ROWS; ++r) {
        sums[r] = 0;
    }
    for (uint i = lane; i < words; i += 32) {
        char values[16];
        for (uint j = 0; j < 16; ++j) {
            values[j] = x[i * 16 + j];
        }
        for (uint r = 0; r < ROWS; ++r) {
            if (first + r >= N) {
                break;
            }
            const uint codes = w[size_t(first + r) * words + i];
            int sum = 0;
            for (uint j = 0; j < 16; ++j) {
                sum += int(values[j]) * (int((codes >> (2 * j)) & 3u) - 1);
            }
            sums[r] += sum;
        }
    }
    for (uint r = 0; r < ROWS; ++r) {
        const int total = simd_sum(sums[r]);
        if (lane == 0 && first + r < N) {
            out[size_t(token) * N + first + r] = total;
        }
    }
"""


def absence() -> str:
    """Return why there is no Metal kernel here; empty: there is one."""
    return "" if mx.metal.is_available() else "MLX here has no Metal: its GPU kernels need macOS on Apple silicon"


def fits(q: tuple[int, ...], data: tuple[int, ...]) -> bool:
    """Return True if the kernel takes such operands: rows of whole words, and sizes that its 32-bit counters hold."""
    return q[1] % LINE == 0 and data[1] * 4 == q[1] and max(q[0], data[0]) < 2**31


@lru_cache(maxsize=1)
def refusal() -> str:
    """Return why the kernel is not used here; empty: it is. It is tried once against NumPy before anything trusts it."""
    if absence():
        return absence()
    rng = np.random.default_rng(0)
    q, w = rng.integers(-128, 128, (3, 1040)).astype(np.int8), rng.integers(-1, 2, (9, 1040)).astype(np.int8)
    try:
        with mx.stream(mx.gpu):
            sums = np.array(ternary_dot(mx.array(q), mx.array(packed.pack(w, tern2).data)))
    except Exception as error:  # whatever Metal's compiler or driver says, there is another way to the same sums
        return f"the kernel of ternary products does not run here: {error}"
    right = np.array_equal(sums, q.astype(np.int32) @ w.T.astype(np.int32))
    return "" if right else "the kernel of ternary products is wrong on this machine"


@lru_cache(maxsize=1)
def _kernel() -> Any:
    return mx.fast.metal_kernel(name="tritium_ternary_dot", input_names=["q", "w"], output_names=["out"], source=SOURCE)


def ternary_dot(q: Any, data: Any) -> Any:
    """q [M, K] of int8 times the tern2 bytes [N, K / 4], as int32 [M, N]."""
    (m, k), n = q.shape, data.shape[0]
    (sums,) = _kernel()(
        inputs=[q, data.view(mx.uint32)],
        template=[("K", k), ("N", n), ("ROWS", ROWS)],
        grid=(-(-n // ROWS) * THREADS, m, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(m, n)],
        output_dtypes=[mx.int32],
    )
    return sums
