"""Caches of keys and values on a GPU: rotary positions and what is written have the bits of the reference.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device. Which of both Triton
does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium.backends.values.device import HeadNorms
from tritium.ops import rms_norm, rope, update_cache
from triton_runs import INTERPRETED, PLACE, built, compiles, in_both_modes, kernels_of, passes, runs, spilled

torch = pytest.importorskip("torch", reason="caches on CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("caches on CUDA need Triton: pip install torch triton", allow_module_level=True)
from cuda_arrays import by_reference, halves, paged, there, unpaged  # noqa: E402


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels = kernels_of("attention.cache")


def drawn_writes(
    rng: np.random.Generator, slots: int, capacity: int, batch: int, tokens: int
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return a cache, values, random places inside it, and what the reference writes there."""
    cache = rng.standard_normal((slots, 2, capacity, 5)).astype(np.float16)
    values = rng.standard_normal((batch, tokens, 2, 5)).astype(np.float32)
    columns = [rng.integers(0, n, batch) for n in (slots, capacity - tokens + 1, tokens + 1)]
    places = np.stack(columns, 1).astype(np.int32)
    return cache, values, places, by_reference(update_cache, np.empty_like(cache), cache, values, places)


@runs
def test_half_of_a_cache_takes_some_heads_of_larger_values() -> None:
    rng = np.random.default_rng(8)
    k, v = (rng.standard_normal((2, 2, 9, 6)).astype(np.float16) for _ in range(2))
    values = rng.standard_normal((2, 3, 7, 6)).astype(np.float32)
    places = np.array([[1, 2, 3], [0, 8, 1]], np.int32)
    wants = [by_reference(update_cache, np.empty_like(k), k, values[:, :, 3:5], places), v]
    views = halves(k, v)
    kernels().write(views[0], there(values)[:, :, 3:5], there(places))
    for view, want in zip(views, wants, strict=True):
        np.testing.assert_array_equal(view.cpu().numpy(), want)


@runs
def test_both_halves_of_a_cache_are_written_at_once() -> None:
    rng = np.random.default_rng(9)
    both = rng.standard_normal((2, 4, 9, 6)).astype(np.float16)
    values = rng.standard_normal((2, 1, 7, 6)).astype(np.float32)
    places = np.array([[1, 2, 1], [0, 8, 1]], np.int32)
    want = by_reference(update_cache, np.empty_like(both), both, values[:, :, 3:], places)
    got = there(both)
    kernels().write(got, there(values)[:, :, 3:], there(places))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@runs
@settings(max_examples=20 if INTERPRETED else 100, deadline=None)
@given(batch=st.integers(1, 4), tokens=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_the_last_of_several_sequences_is_written(batch: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache, values, places, want = drawn_writes(rng, 2, 9, batch, tokens)
    got = there(cache)
    kernels().write(got, there(values), there(places))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@runs
def test_sequences_outside_are_found_and_write_nothing() -> None:
    places = there(np.array([[0, 0, 1], [2, 0, 1], [0, 8, 2], [-1, 0, 0], [0, -1, 1], [1, 0, 3]], np.int32))
    cache = torch.zeros(2, 1, 9, 4, device=PLACE)
    assert kernels().outside(cache, places, 2).tolist() == [False, True, True, True, True, True]
    kernels().write(cache, torch.ones(6, 2, 1, 4, device=PLACE), places)
    assert cache.sum().item() == 4


@runs
@settings(max_examples=10 if INTERPRETED else 50, deadline=None)
@given(batch=st.integers(1, 4), tokens=st.integers(1, 4), block=st.sampled_from([1, 2, 4]), seed=st.integers(0, 2**32))
def test_blocks_are_written_as_slots_are(batch: int, tokens: int, block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache, values, places, want = drawn_writes(rng, 3, 8, batch, tokens)
    pool, rows = paged(there(cache), places, block, rng)
    assert not kernels().outside(pool, there(rows), tokens).any()
    kernels().write(pool, there(values), there(rows))
    np.testing.assert_array_equal(unpaged(pool, rows, 8).cpu().numpy(), want[places[:, 0]])


@runs
def test_blocks_outside_a_cache_are_found_and_not_written() -> None:
    places = [[0, 0, 1, 1, 0], [9, 3, 1, 0, 9], [1, 4, 1, 3, 9], [2, 3, 2, 9, 2], [3, 7, 2, 2, 3], [-1, 0, 1, 0, 0]]
    cache, given_places = torch.zeros(4, 1, 4, 4, device=PLACE), there(np.array(places, np.int32))
    assert kernels().outside(cache, given_places, 2).tolist() == [False, False, True, True, True, True]
    kernels().write(cache, torch.ones(6, 2, 1, 4, device=PLACE), given_places)
    assert cache.sum((1, 2, 3)).tolist() == [4, 4, 4, 0]


@runs
@pytest.mark.parametrize(("batch", "heads", "shared", "size"), [(1, 4, 2, 128), (3, 3, 1, 20), (2, 1, 1, 7)])
def test_norms_of_heads_have_the_bits_of_the_reference(batch: int, heads: int, shared: int, size: int) -> None:
    rng = np.random.default_rng(size)
    wide = rng.standard_normal((batch, 1, heads + 2 * shared, size + 3)).astype(np.float32)
    x, of_q, of_k = wide[..., :size], *rng.standard_normal((2, size)).astype(np.float32)
    x[0, 0, 0, :2] = [0.0, 3e-20]
    x[-1, 0, heads] = 0.0
    for weights in ((of_q, of_k), (None, of_k), (None, None)):
        want = x.copy()
        for part, w, eps in ((slice(heads), weights[0], 1e-6), (slice(heads, heads + shared), weights[1], 1e-5)):
            want[:, :, part] = by_reference(rms_norm, np.empty_like(x[:, :, part]), x[:, :, part], w, eps=eps)
        norms = HeadNorms(*(None if w is None else there(w) for w in weights), 1e-6, 1e-5)
        got = kernels().norm(there(wide)[..., :size], norms, shared)
        np.testing.assert_array_equal(got.cpu().numpy(), want)


@compiles
def test_norms_of_heads_compile() -> None:
    given_ = dict.fromkeys(("x", "of_q", "of_k", "out"), "*fp32")
    fixed = {
        "SIZE": 128,
        "WIDE": 128,
        "ROWS": 4,
        "Q_EPS": 1e-6,
        "K_EPS": 1e-6,
        "Q_WEIGHT": True,
        "K_WEIGHT": True,
        "EARLY": True,
    }
    assert spilled(built(kernels().norm_kernel, given_, fixed, 90, num_warps=4, enable_fp_fusion=False)) == 0


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


@runs
@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_leaves_the_other_heads_alone(interleaved: bool, kind: Any) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 3, 5, 16)).astype(np.float32)
    x[0, 0, 4, :3] = [np.inf, -0.0, np.nan]
    cos, sin = (rng.standard_normal((2, 3, 8)).astype(np.float32) for _ in range(2))
    turned = by_reference(rope, np.empty((2, 3, 3, 16), kind), x[:, :, :3], cos, sin, interleaved=interleaved)
    to = torch.from_numpy(turned).dtype
    got = kernels().rope(there(x), there(cos), there(sin), to, interleaved, 3).cpu().numpy()
    np.testing.assert_array_equal(got[:, :, :3], turned)
    np.testing.assert_array_equal(got[:, :, 3:], x[:, :, 3:].astype(kind))
    assert np.signbit(got[0, 0, 4, 1])
    for heads, want in ((0, x), (5, None)):
        whole = kernels().rope(there(x), there(cos), there(sin), torch.float32, interleaved, heads)
        if want is None:
            want = kernels().rope(there(x), there(cos), there(sin), torch.float32, interleaved).cpu().numpy()
        np.testing.assert_array_equal(whole.cpu().numpy(), want)


@runs
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [0, 2, 12, 15])
def test_rope_of_a_part_of_each_head_passes_the_rest(size: int, interleaved: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 5, 15)).astype(np.float32)
    cos, sin = (rng.standard_normal((2, 3, size // 2)).astype(np.float32) for _ in range(2))
    some = {"interleaved": interleaved, "heads": 4, "size": size // 2 * 2}
    want = by_reference(rope, np.empty_like(x), x, cos, sin, **some)
    got = kernels().rope(there(x), there(cos), there(sin), torch.float32, interleaved, 4, size // 2 * 2)
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@compiles
@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("to", ["fp32", "fp16"])
def test_rope_compiles_for_every_kind_of_heads(kind: str, to: str) -> None:
    """The interpreter lets a name change its type, which a compiler does not."""
    kernel = kernels().rope_kernel
    given_ = {"x": f"*{kind}", "cos": "*fp32", "sin": "*fp32", "out": f"*{to}"}
    fixed = {"HALF": 64, "WIDE": 64, "APART": 64, "STEP": 1, "REST": 0, "MORE": 1, "EARLY": True}
    assert spilled(built(kernel, given_, fixed, 90, num_warps=1)) == 0
