"""The choice of experts on a GPU: the elements and indices of the reference, NaN and equal scores too.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import ops
from triton_runs import INTERPRETED, built, compiles, in_both_modes, kernels_of, passes, runs, spilled

torch = pytest.importorskip("torch", reason="kernels for CUDA need PyTorch: pip install torch triton")
if find_spec("triton") is None:
    pytest.skip("kernels for CUDA need Triton: pip install torch triton", allow_module_level=True)
from cuda_arrays import by_reference, there  # noqa: E402

kernels = kernels_of("experts.routing")


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


def scores(shape: tuple[int, ...], seed: int) -> Any:
    """Numbers of which many are equal, with both zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    some = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e-40, 3.0], np.float32)
    return np.where(rng.random(shape) < 0.5, rng.choice(some, shape), rng.standard_normal(shape)).astype(np.float32)


@runs
@settings(max_examples=10 if INTERPRETED else 60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 300), st.integers(1, 9))
def test_the_largest_are_those_of_the_reference(rows: int, size: int, k: int) -> None:
    x, k = scores((rows, size), size), min(k, size)
    want = np.empty((rows, k), np.float32), np.empty((rows, k), np.int64)
    by_reference(ops.topk, want, x, k=k)
    values, indices = kernels().topk(there(x), k)
    np.testing.assert_array_equal(indices.cpu().numpy(), want[1])
    np.testing.assert_array_equal(values.cpu().numpy().view(np.int32), want[0].view(np.int32))


@runs
@settings(max_examples=10 if INTERPRETED else 60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 20), st.sampled_from([np.int32, np.int64]))
def test_short_rows_are_sorted(rows: int, size: int, kind: Any) -> None:
    x = np.random.default_rng(size).integers(-4, 300, (rows, size)).astype(kind)
    np.testing.assert_array_equal(kernels().sort(there(x)).cpu().numpy(), np.sort(x))


@runs
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_elements_are_taken_along_rows(kind: Any) -> None:
    x = scores((70, 9), 1)
    indices = np.random.default_rng(2).integers(-9, 9, (70, 4)).astype(kind)
    found, outside = kernels().along(there(x), there(indices))
    np.testing.assert_array_equal(found.cpu().numpy(), np.take_along_axis(x, indices, -1))
    assert not bool(outside.any())
    for bad in (9, -10):
        indices[69, 3] = bad
        assert bool(kernels().along(there(x), there(indices))[1].any())


@compiles
def test_kernels_are_built_without_spilling() -> None:
    k = kernels()
    pointers = {"x": "*fp32", "values": "*fp32", "indices": "*i64", "out": "*fp32", "outside": "*i1"}
    for kernel, fixed, warps in (
        (k.topk_kernel, {"BLOCK": 256}, 1),
        (k.sort_kernel, {"BLOCK": 8, "TOGETHER": 16}, 4),
        (k.along_kernel, {"BLOCK": 256}, 2),
    ):
        kinds = {name: kind for name, kind in pointers.items() if name in kernel.arg_names}
        kinds |= {"x": "*i64", "out": "*i64"} if kernel is k.sort_kernel else {}
        assert spilled(built(kernel, kinds, fixed | {"EARLY": True}, 90, num_warps=warps)) == 0
