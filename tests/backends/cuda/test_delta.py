"""The gated delta rule on a GPU: the values of the reference, the same bits in any chunk, states of others left alone.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device. Which of both Triton
does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from mixers import draw, gates
from tritium.backends.reference import kernels as reference
from tritium.ops import gated_delta_rule
from triton_runs import built, compiles, in_both_modes, kernels_of, passes, runs, spilled

torch = pytest.importorskip("torch", reason="kernels for CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("kernels for CUDA need Triton: pip install torch triton", allow_module_level=True)
from cuda_arrays import there  # noqa: E402

kernels = kernels_of("delta")


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


def operands(tokens: int, heads: tuple[int, int], sizes: tuple[int, int]) -> list[Any]:
    q, k = (draw((2, tokens, heads[0], sizes[0]), i) / 3 for i in (0, 1))
    return [q, k, draw((2, tokens, heads[1], sizes[1]), 2), *gates((2, tokens, heads[1]), 3)]


def run(state: Any, xs: list[Any], places: Any) -> tuple[Any, Any]:
    now = there(state.copy())
    y = kernels().delta_rule(now, *map(there, xs), there(places))
    return now.cpu().numpy(), y.cpu().numpy()


@runs
@pytest.mark.parametrize(
    ("heads", "sizes"), [((1, 1), (4, 5)), ((2, 4), (8, 70)), ((2, 2), (128, 128)), ((1, 2), (33, 1))]
)
def test_the_delta_rule_is_the_references(heads: tuple[int, int], sizes: tuple[int, int]) -> None:
    state, xs = draw((3, heads[1], *sizes), 9), operands(4, heads, sizes)
    places = np.array([(2, 3, 4), (0, 0, 2)], np.int32)
    want = np.empty_like(state), np.empty_like(xs[2])
    reference.KERNELS[gated_delta_rule](state, *xs, places, out=want)
    for got, expected in zip(run(state, xs, places), want, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)
    np.testing.assert_array_equal(run(state, xs, places)[0][1], state[1])


@runs
def test_tokens_give_the_same_bits_one_by_one() -> None:
    state, xs = draw((2, 2, 8, 16), 9), operands(3, (1, 2), (8, 16))
    whole, y = run(state, xs, np.array([(0, 0, 3), (1, 2, 3)], np.int32))
    for t in range(3):
        state, row = run(state, [x[:, t : t + 1] for x in xs], np.array([(0, t, 1), (1, 2 + t, 1)], np.int32))
        np.testing.assert_array_equal(row[:, 0], y[:, t])
    np.testing.assert_array_equal(state, whole)


@compiles
@pytest.mark.parametrize(("size", "columns"), [(128, 32), (64, 64), (256, 16)])
def test_the_kernel_is_built_without_spilling(size: int, columns: int) -> None:
    pointers = dict.fromkeys(("state", "q", "k", "v", "decay", "beta", "y"), "*fp32") | {"places": "*i32"}
    strides = dict.fromkeys(
        ("q_strides", "k_strides", "v_strides", "decay_strides", "beta_strides"), ("i32", "i32", "i32")
    )
    fixed = {"DK": size, "DV": 128, "PER": 3, "ROWS": size, "COLUMNS": columns, "EARLY": True}
    assert spilled(built(kernels().delta_kernel, pointers | strides, fixed, 90, num_warps=4)) == 0


@runs
def test_a_sequence_outside_changes_nothing() -> None:
    state, xs = draw((2, 2, 8, 16), 9), operands(3, (1, 2), (8, 16))
    after, y = run(state, xs, np.array([(2, 0, 3), (0, 0, 4)], np.int32))
    np.testing.assert_array_equal(after, state)
    assert not y.any()
