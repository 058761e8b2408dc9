"""sort, argsort, topk and searchsorted: the bits of the reference for every dtype, layout and special value."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.backends.reference import kernels as reference
from tritium.buffer import native

KINDS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16]
SHAPES = [(0,), (1,), (7,), (40,), (41,), (300,), (0, 3), (3, 0), (3, 130), (130, 9), (70, 33), (2, 3, 5), (4, 50, 6)]


def bits(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")


def drawn(kind: Any, shape: tuple[int, ...], seed: int, *, special: bool = True) -> np.ndarray[Any, Any]:
    """Return values with equals among them; of floats also NaN of both signs, infinities and zeros of both signs."""
    rng, dtype = np.random.default_rng(seed), np.dtype(kind)
    n = int(np.prod(shape))
    if dtype.kind in "iu":
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if seed % 2 else (0, 5)
        return rng.integers(low, high, n, endpoint=True, dtype=dtype).reshape(shape)
    values = (rng.standard_normal(n) * 3).astype(np.float32)
    values = (np.round(values) if seed % 2 else values).astype(dtype)
    if special:
        for number in (np.nan, np.inf, -np.inf, -0.0, 0.0):
            values[rng.random(n) < 0.1] = number
        turned = bits(values).copy()
        turned[rng.random(n) < 0.05] |= turned.dtype.type(1 << (8 * dtype.itemsize - 1))
        values = turned.view(dtype)
    return values.reshape(shape)


def laid_out(a: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    return {"rows": a, "turned": a.T, "backwards": a[::-1], "apart": np.repeat(a, 2, axis=-1)[..., ::2]}[layout]


LAYOUTS = st.sampled_from(["rows", "turned", "backwards", "apart"])
arrays = st.builds(
    lambda kind, shape, seed, layout, special: laid_out(drawn(kind, shape, seed, special=special), layout),
    st.sampled_from(KINDS), st.sampled_from(SHAPES), st.integers(0, 999), LAYOUTS, st.booleans(),
)  # fmt: skip


@settings(max_examples=80)
@given(arrays, st.integers(-3, 2), st.booleans())
def test_sorts_are_those_of_the_reference(a: np.ndarray[Any, Any], axis: int, descending: bool) -> None:
    axis = axis % a.ndim
    x = tt.asarray(a)
    order = reference.argsort(a, axis=axis, descending=descending, stable=True)
    np.testing.assert_array_equal(tt.argsort(x, axis=axis, descending=descending).numpy(), order)
    result = tt.sort(x, axis=axis, descending=descending)
    assert result.spec == x.spec
    np.testing.assert_array_equal(bits(result.numpy()), bits(np.take_along_axis(a, order, axis)))


@settings(max_examples=60)
@given(arrays, st.integers(-3, 2), st.booleans(), st.integers(0, 400))
def test_topk_is_the_beginning_of_the_sorted(a: np.ndarray[Any, Any], axis: int, largest: bool, k: int) -> None:
    axis = axis % a.ndim
    k %= a.shape[axis] + 1
    values, indices = tt.topk(tt.asarray(a), k, axis=axis, largest=largest)
    order = reference.argsort(a, axis=axis, descending=largest, stable=True)
    order = np.take(order, np.arange(k), axis=axis)
    assert indices.dtype is tt.i64
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(bits(values.numpy()), bits(np.take_along_axis(a, order, axis)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("n", [600, 9001])
def test_topk_of_lines_of_any_pattern_is_the_beginning_of_the_sorted(kind: Any, n: int) -> None:
    rising = np.sort(drawn(kind, (n,), 1, special=False).astype("f8")).astype(kind)
    lines = np.stack([rising, rising[::-1], rising * 0, drawn(kind, (n,), 4), drawn(kind, (n,), 5)])
    if np.dtype(kind).kind not in "iu":
        lines = np.concatenate([lines, np.where(np.arange(n) % 50 > 0, np.nan, lines[3:]).astype(kind)])
    for axis, a in ((1, lines), (0, np.ascontiguousarray(lines.T))):
        for largest in (False, True):
            order = reference.argsort(a, axis=axis, descending=largest, stable=True)
            for k in (1, 5, 16, 17, 18, 400, n // 4, n // 3, n):
                first = np.take(order, np.arange(k), axis=axis)
                values, indices = tt.topk(tt.asarray(a), k, axis=axis, largest=largest)
                np.testing.assert_array_equal(indices.numpy(), first)
                np.testing.assert_array_equal(bits(values.numpy()), bits(np.take_along_axis(a, first, axis)))


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.integers(0, 200), arrays, st.integers(0, 99), st.sampled_from(["left", "right"]))
def test_searches_are_those_of_numpy(kind: Any, n: int, like: np.ndarray[Any, Any], seed: int, side: Any) -> None:
    wanted = drawn(kind, like.shape, seed)[..., ::-1]
    order = reference.argsort(sorted_ := drawn(kind, (n,), seed + 1), axis=0, descending=False, stable=True)
    haystack = np.repeat(sorted_[order], 2)[::2]
    wide = [a.astype(np.float32) if a.dtype == ml_dtypes.bfloat16 else a for a in (haystack, wanted)]
    result = tt.searchsorted(tt.asarray(haystack), tt.asarray(wanted), side=side)
    np.testing.assert_array_equal(result.numpy(), np.searchsorted(wide[0], wide[1], side=side))


@pytest.mark.skipif(native is None, reason="one thread sorts there")
@pytest.mark.parametrize("kind", ["f4", "i8", "u1", "i2"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_several_threads_sort_one_long_line_alike(kind: str, threads: int) -> None:
    a = drawn(kind, (300_001,), 3)
    x, before = tt.asarray(a), tt.get_num_threads()
    tt.set_num_threads(threads)
    try:
        for descending in (False, True):
            order = reference.argsort(a, axis=0, descending=descending, stable=True)
            np.testing.assert_array_equal(tt.argsort(x, descending=descending).numpy(), order)
            np.testing.assert_array_equal(bits(tt.sort(x, descending=descending).numpy()), bits(a[order]))
    finally:
        tt.set_num_threads(before)


@pytest.mark.parametrize("kind", ["u4", "i8", "f4", "f8"])
@pytest.mark.parametrize("n", [127, 129, 1000, 20_000])
def test_lines_of_any_pattern_are_sorted(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    rising = np.arange(n)
    patterns = [
        rising, rising[::-1], np.minimum(rising, rising[::-1]), rising % 2, rising * 0 + 7, rng.integers(0, 3, n),
        np.where(rising % 16 == 8, rising, rising[::-1]), rng.permutation(n), np.sort(rng.integers(0, n, n)) // 9,
    ]  # fmt: skip
    for values in patterns:
        a = values.astype(kind)
        np.testing.assert_array_equal(tt.sort(tt.asarray(a)).numpy(), np.sort(a))
        np.testing.assert_array_equal(tt.sort(tt.asarray(a), descending=True).numpy(), np.sort(a)[::-1])


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "f2"])
@pytest.mark.parametrize("n", [41, 3000, 131_071, 140_001])
def test_short_numbers_are_sorted_by_counting_where_there_are_many(kind: str, n: int) -> None:
    a = (
        np.random.default_rng(n)
        .integers(0, 2**16, n)
        .astype("u2")
        .view("u1" if kind[1] == "1" else "u2")[:n]
        .view(kind)
    )
    expected = np.sort(a)
    np.testing.assert_array_equal(tt.sort(tt.tensor(a)).numpy(), expected)
    if kind != "f2":  # of equal ones, -0 and NaN, the order stays
        np.testing.assert_array_equal(tt.sort(tt.tensor(a), descending=True).numpy(), expected[::-1])


@pytest.mark.skipif(native is None, reason="calls are replayed by native code")
def test_such_calls_run_natively_and_are_replayed() -> None:
    x = tt.randn((3, 5), seed=0)
    for op, call in (
        (tt.sort, lambda: tt.sort(x, axis=0)), (tt.argsort, lambda: tt.argsort(x)), (tt.topk, lambda: tt.topk(x, 2)),
        (tt.ops.searchsorted, lambda: tt.searchsorted(x[0], x, side="right")),
    ):  # fmt: skip
        call()
        before = op.hits
        call()
        assert op.hits == before + 1


def test_topk_says_what_cannot_be_chosen() -> None:
    x = tt.ones((2, 3))
    for k in (-1, 4):
        with pytest.raises(tt.errors.ArgumentError, match=r"of the 3 elements along axis 1 .*give 0 to 3"):
            tt.topk(x, k)
    with pytest.raises(tt.errors.TritiumError, match="axis 2"):
        tt.topk(x, 1, axis=2)
    with pytest.raises(tt.errors.DTypeError, match="bool"):
        tt.topk(x > 0, 1)
    with pytest.raises(tt.errors.TritiumError, match="k"):
        tt.topk(x, 1.5)  # type: ignore[arg-type]


def test_topk_traces_and_compiles() -> None:
    x = tt.randn((4, 9), seed=1)

    def best(v: Any) -> Any:
        values, indices = tt.topk(v * 2, 3, axis=0)
        return values + 1, indices

    for one, other in zip(tt.compile(best)(x), best(x), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
