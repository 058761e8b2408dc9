"""Attention, its cache and rotary positions on a GPU give the bits of the reference; what was never written is not read.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device. Which of both Triton
does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritium.backends import reference
from tritium.backends.attention import factor_of
from tritium.ops import attention, rope, update_cache
from triton_runs import INTERPRETED, MODE, PLACE, passes

torch = pytest.importorskip("torch", reason="attention on CUDA needs PyTorch: pip install 'tritium[cuda]'")
if importlib.util.find_spec("triton") is None:
    pytest.skip("attention on CUDA needs Triton: pip install 'tritium[cuda]'", allow_module_level=True)

runs = pytest.mark.skipif(
    not INTERPRETED and not (MODE and torch.cuda.is_available()), reason="runs in Triton's interpreter, and on CUDA"
)


@pytest.mark.skipif(bool(MODE), reason="this is such a run")
@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


def kernels() -> Any:
    if INTERPRETED:
        import interpreted  # noqa: F401  a tensor of one element is a number
    from tritium.backends import cuda_attention

    return cuda_attention


def there(x: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x)).to(PLACE)


def by_reference(row: Any, out: np.ndarray[Any, Any], *xs: Any, **attrs: Any) -> np.ndarray[Any, Any]:
    reference.KERNELS[row](*xs, out=out, **attrs)
    return out


sizes = {
    "batch": st.integers(1, 3), "tokens": st.integers(1, 5), "per": st.integers(1, 4), "shared": st.integers(1, 2),
    "size": st.sampled_from([2, 7, 16, 33]), "capacity": st.integers(6, 90), "seed": st.integers(0, 2**32),
    "half": st.booleans(), "placed": st.booleans(),
}  # fmt: skip


@runs
@settings(max_examples=25 if INTERPRETED else 150, deadline=None)
@given(**sizes)
def test_attention_has_the_bits_of_the_reference(
    batch: int, tokens: int, per: int, shared: int, size: int, capacity: int, seed: int, half: bool, placed: bool
) -> None:
    rng = np.random.default_rng(seed)
    kind = np.float16 if half else np.float32
    slots = batch + 1 if placed else batch
    q = rng.standard_normal((batch, tokens, per * shared, size)).astype(np.float32)
    k, v = (rng.standard_normal((slots, shared, capacity, size)).astype(kind) for _ in range(2))
    places = None
    if placed:
        start = rng.integers(0, capacity - tokens + 1, batch)
        count = rng.integers(0, tokens + 1, batch)
        places = np.stack([rng.permutation(slots)[:batch], start, count], 1).astype(np.int32)
        for slot, first, n in places:
            k[slot, :, first + n :] = v[slot, :, first + n :] = np.nan  # nobody has written there
    want = by_reference(attention, np.empty_like(q), q, k, v, places, scale=None)
    given = None if places is None else there(places)
    got = kernels().attend(there(q), there(k), there(v), given, factor_of(size, None))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@runs
@settings(max_examples=20 if INTERPRETED else 100, deadline=None)
@given(batch=st.integers(1, 4), tokens=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_the_last_of_several_sequences_is_written(batch: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = rng.standard_normal((2, 2, 9, 5)).astype(np.float16)
    values = rng.standard_normal((batch, tokens, 2, 5)).astype(np.float32)
    columns = [rng.integers(0, n, batch) for n in (2, 9 - tokens + 1, tokens + 1)]
    places = np.stack(columns, 1).astype(np.int32)
    want = by_reference(update_cache, np.empty_like(cache), cache, values, places)
    got = there(cache)
    kernels().write(got, there(values), there(places))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@runs
def test_sequences_outside_are_found_and_write_nothing() -> None:
    places = there(np.array([[0, 0, 1], [2, 0, 1], [0, 8, 2], [-1, 0, 0], [0, -1, 1], [1, 0, 3]], np.int32))
    assert kernels().outside(places, 2, 9, 2).tolist() == [False, True, True, True, True, True]
    cache = torch.zeros(2, 1, 9, 4, device=PLACE)
    kernels().write(cache, torch.ones(6, 2, 1, 4, device=PLACE), places)
    assert cache.sum().item() == 4


@runs
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 5, 10), (2, 3, 4, 16), (2, 2, 1, 6)])
def test_rope_has_the_bits_of_the_reference(shape: tuple[int, ...], interleaved: bool) -> None:
    rng = np.random.default_rng(3)
    wide = rng.standard_normal((*shape[:2], shape[2] * shape[3] + 7)).astype(np.float32)
    x = wide[..., 3 : 3 + shape[2] * shape[3]].reshape(shape)
    cos, sin = (rng.standard_normal((*shape[:2], shape[3] // 2)).astype(np.float32) for _ in range(2))
    want = by_reference(rope, np.empty(shape, np.float32), x, cos, sin, interleaved=interleaved)
    part = there(wide)[..., 3 : 3 + shape[2] * shape[3]].unflatten(-1, shape[2:])
    got = kernels().rope(part, there(cos), there(sin), torch.float32, interleaved)
    np.testing.assert_array_equal(got.cpu().numpy(), want)
