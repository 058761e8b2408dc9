"""Products with weights of half floats on a GPU agree with the reference, and a token's bits do not depend on its company.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium.ops import linear
from tritium.testing import assert_close, expected
from triton_runs import INTERPRETED, PLACE, in_both_modes, kernels_of, passes, runs

torch = pytest.importorskip("torch", reason="products on CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("products on CUDA need Triton: pip install torch triton", allow_module_level=True)

HALVES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels = kernels_of("head.halves")


def there(x: np.ndarray[Any, Any]) -> Any:
    if x.dtype == HALVES["bf16"]:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(PLACE)
    return torch.from_numpy(x).to(PLACE)


def operands(m: int, n: int, k: int, kind: str, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    x, w, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n, k), (n,)))
    return x, w.astype(HALVES[kind]), bias


@runs
@settings(max_examples=12 if INTERPRETED else 60, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 30), st.integers(1, 600), st.sampled_from(sorted(HALVES)), st.booleans(), st.integers(0, 9)
)  # fmt: skip
def test_any_size_agrees_with_the_reference(m: int, n: int, k: int, kind: str, biased: bool, seed: int) -> None:
    x, w, bias = operands(m, n, k, kind, seed)
    module = kernels()
    assert module.takes(there(x), there(w)) == (m <= module.MOST)
    given = [x, w, bias if biased else None]
    got = module.linear(there(x), there(w), there(bias) if biased else None, torch.float32).cpu().numpy()
    assert_close(linear, got, expected(linear, given, {}), given, {})


@runs
@pytest.mark.parametrize("kind", sorted(HALVES))
def test_a_token_has_the_same_bits_in_any_company(kind: str) -> None:
    x, w, bias = (there(a) for a in operands(19, 21, 700, kind))
    module = kernels()
    together = module.linear(x, w, bias, torch.float32)
    for count in (1, 2, 3, 4, 8, 9):
        assert torch.equal(module.linear(x[:count], w, bias, torch.float32), together[:count])
        assert torch.equal(module.linear(x[-count:], w, bias, torch.float32), together[-count:])


@runs
def test_halves_and_more_axes_come_and_go() -> None:
    x, w, _ = (there(a) for a in operands(6, 9, 33, "f16"))
    wide = kernels().linear(x.view(2, 3, 33), w, None, torch.float32)
    assert wide.shape == (2, 3, 9)
    halves = kernels().linear(x.view(2, 3, 33), w, None, torch.float16)
    assert torch.equal(halves, wide.to(torch.float16))


@runs
def test_what_is_not_taken() -> None:
    x, w, _ = (there(a) for a in operands(3, 8, 16, "f16"))
    module = kernels()
    assert module.takes(x, w)
    assert not module.takes(x, w.float())
    assert not module.takes(x[:0], w)
    assert not module.takes(x, w[:0])
    assert not module.takes(x[:, :8], w[:, ::2])
    assert not module.takes(x[:, :0], w[:, :0])
