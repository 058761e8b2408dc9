"""tritium.fft beside numpy.fft: values, dtypes, sizes that cut and pad, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.errors import TritiumError

ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn")
norms = st.sampled_from(["backward", "ortho", "forward"])
seeds = st.integers(0, 2**32)


def numbers(shape: tuple[int, ...], name: str, wide: bool, seed: int, real: bool = False) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if real or name in ("rfft", "ihfft", "rfftn"):
        return rng.normal(size=shape).astype("float64" if wide else "float32")
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype("complex128" if wide else "complex64")


def same(got: tt.Tensor, want: np.ndarray[Any, Any]) -> None:
    assert got.numpy().dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


@given(
    st.sampled_from(ONE),
    st.none() | st.integers(1, 9),
    st.sampled_from([0, 1, -1]),
    norms,
    st.booleans(),
    st.booleans(),
    seeds,
)
@settings(max_examples=30)
def test_along_one_axis(name: str, n: Any, axis: int, norm: str, wide: bool, real: bool, seed: int) -> None:
    a = numbers((4, 5), name, wide, seed, real)
    kind = "complex128" if wide else "complex64"
    want = getattr(np.fft, name)(a.astype(kind) if name in ("irfft", "hfft") else a, n=n, axis=axis, norm=norm)
    same(getattr(tt.fft, name)(tt.asarray(a), n=n, axis=axis, norm=norm), want)
    same(getattr(tt.fft, name)(tt.asarray(a[::-1])[::-1], n=n, axis=axis, norm=norm), want)


@given(
    st.sampled_from(SEVERAL),
    st.sampled_from([None, (0,), (2, 0), (0, 1, 2), (-1, 1)]),
    st.booleans(),
    norms,
    st.booleans(),
    seeds,
)
@settings(max_examples=20)
def test_along_several_axes(name: str, axes: Any, sized: bool, norm: str, wide: bool, seed: int) -> None:
    a = numbers((3, 4, 5), name, wide, seed)
    s = tuple(3 + i for i in range(3 if axes is None else len(axes))) if sized else None
    named = tuple(range(3)) if axes is None else axes
    want = getattr(np.fft, name)(a, s=s, axes=named, norm=norm)
    np.testing.assert_allclose(
        getattr(tt.fft, name)(tt.asarray(a), s=s, axes=axes, norm=norm).numpy(), want, rtol=1e-4, atol=1e-5
    )


@given(st.integers(1, 12), st.sampled_from([1.0, 0.25, -2.0]), seeds)
@settings(max_examples=15)
def test_frequencies_and_shifts(n: int, d: float, seed: int) -> None:
    same(tt.fft.fftfreq(n, d=d, dtype="f64"), np.fft.fftfreq(n, d))
    same(tt.fft.rfftfreq(n, d=d), np.fft.rfftfreq(n, d).astype(np.float32))
    a = numbers((n, 3), "fft", True, seed)
    for name in ("fftshift", "ifftshift"):
        for axes in (None, 0, (1,), (0, -1)):
            same(getattr(tt.fft, name)(tt.asarray(a), axes=axes), getattr(np.fft, name)(a, axes=axes))
    same(tt.fft.ifftshift(tt.fft.fftshift(tt.asarray(a))), a)


@pytest.mark.parametrize("t", ["i32", "f16", "bf16"])
def test_integers_and_halves_are_transformed_in_f32(t: str) -> None:
    assert tt.fft.fft(tt.ones((4,), dtype=t)).dtype is tt.c64
    assert tt.fft.fft(tt.ones((4,), dtype=t)).tolist() == [4, 0, 0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: tt.fft.rfft(x * 1j), "rfft: real numbers are needed, given c64.*use fft"),
        (lambda x: tt.fft.fft(x, norm="none"), "norm='none' is unknown"),
        (lambda x: tt.fft.fft(x, n=0), "at least one point"),
        (lambda x: tt.fft.fft(x[:, :0]), "at least one point"),
        (lambda x: tt.fft.irfft(x[:, :1]), "at least one point"),
        (lambda x: tt.fft.fft(x, axis=2), "axis"),
        (lambda x: tt.fft.fftn(x, axes=(0, 0)), "twice"),
        (lambda x: tt.fft.fftn(x, s=(2,), axes=(0, 1)), "1 sizes for 2 axes"),
        (lambda x: tt.fft.rfftn(x, axes=()), "at least one axis"),
        (lambda x: tt.fft.fftfreq(0), "at least one point"),
        (lambda x: tt.fft.fftfreq(4, dtype="i32"), "frequencies are floats"),
        (lambda x: tt.fft.fft(tt.ones(())), "axis"),
    ],
)
def test_what_has_no_transform_is_refused(call: Any, words: str) -> None:
    with pytest.raises(TritiumError, match=words):
        call(tt.ones((2, 4)))
