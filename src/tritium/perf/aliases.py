"""Names of `tt.perf` that exist because the guides spell them so, beside those used here.

Knows nothing of measuring: each is another name, or two calls, of `perf.suites.quick`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritium.arguments import checked
from tritium.perf.suites.quick import Both, benchmark_elementwise, matmul, timed

benchmark_matmul = matmul
benchmark_contiguous = benchmark_elementwise  # memory is row-major by default


@checked
def benchmark_element_wise(
    shape: Sequence[int] = (1000, 1000), dtype: Any = "f32", device: Any = None, *, seconds: float = 0.5
) -> Both:
    """Adding and multiplying: (µs, µs)."""
    first, second = (timed(name, shape, dtype, device, seconds=seconds) for name in ("add", "multiply"))
    return Both(first, second)
