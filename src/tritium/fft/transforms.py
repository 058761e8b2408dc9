"""Transforms along one axis or several, their frequencies, and shifts of the frequency 0 to the middle.

Knows nothing of NumPy's transforms: one along an axis is one op, the rest is composed of ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tritium import dtype as dt, layout as lay, ops
from tritium.arguments import checked
from tritium.errors import ArgumentError, DTypeError
from tritium.functions import asarray
from tritium.tensor import Tensor


def _along(kind: str, x: Tensor, n: int | None, axis: int, norm: str) -> Tensor:
    if x.dtype.is_complex and not ops.TRANSFORMS[kind][0]:
        raise DTypeError(f"{kind}: real numbers are needed, given {x.spec}; use fft or ifft, or take real(x).")
    if n is None:
        size = x.shape[lay.axis_of(axis, x.ndim, kind)]
        n = 2 * (size - 1) if kind in ("irfft", "hfft") else size  # half of the frequencies stand for all
    return ops.transform(x, kind=kind, n=n, axis=axis, norm=norm)


@checked
def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the Fourier transform along an axis, of n points: the axis is cut or padded with zeros."""
    return _along("fft", x, n, axis, norm)


@checked
def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the inverse of `fft` along an axis."""
    return _along("ifft", x, n, axis, norm)


@checked
def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the Fourier transform of real numbers along an axis: the n // 2 + 1 frequencies that determine the others."""
    return _along("rfft", x, n, axis, norm)


@checked
def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the inverse of `rfft` along an axis: n real numbers, by default an even number of them."""
    return _along("irfft", x, n, axis, norm)


@checked
def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the Fourier transform, which is real, of a signal of Hermitian symmetry of which x is one half."""
    return _along("hfft", x, n, axis, norm)


@checked
def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the inverse of `hfft` along an axis."""
    return _along("ihfft", x, n, axis, norm)


def _sizes_and_axes(
    x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None, kind: str
) -> list[tuple[int | None, int]]:
    """Return the number of points (None: as many as there are) of each axis, in the order in which they are transformed."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    order = [lay.axis_of(int(a), x.ndim, kind) for a in axes]
    if len(set(order)) < len(order):
        raise ArgumentError(f"{kind}: axes {tuple(axes)} name an axis of {x.spec} twice.")
    sizes = [None] * len(order) if s is None else [int(n) for n in s]
    if len(sizes) != len(order):
        raise ArgumentError(f"{kind}: {len(sizes)} sizes for {len(order)} axes; give as many of each.")
    return list(zip(sizes, order, strict=True))


def _complex(x: Tensor) -> Tensor:
    """Return x as complex numbers: what a transform along no axis at all is."""
    return ops.astype(x, dt.complex_of(x.dtype))


@checked
def fftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Return the Fourier transform along several axes (None: all)."""
    pairs = _sizes_and_axes(x, s, axes, "fftn")
    x = x if pairs else _complex(x)
    for n, axis in reversed(pairs):
        x = _along("fft", x, n, axis, norm)
    return x


@checked
def ifftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Return the inverse of `fftn`."""
    pairs = _sizes_and_axes(x, s, axes, "ifftn")
    x = x if pairs else _complex(x)
    for n, axis in reversed(pairs):
        x = _along("ifft", x, n, axis, norm)
    return x


def _last(pairs: list[tuple[int | None, int]], x: Tensor, kind: str) -> tuple[int | None, int]:
    if not pairs:
        raise ArgumentError(f"{kind}: at least one axis is needed, given {x.spec} and no axis.")
    return pairs.pop()


@checked
def rfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Return the Fourier transform of real numbers along several axes: `rfft` along the last of them, then `fft`."""
    pairs = _sizes_and_axes(x, s, axes, "rfftn")
    n, axis = _last(pairs, x, "rfftn")
    x = _along("rfft", x, n, axis, norm)
    for n, axis in reversed(pairs):
        x = _along("fft", x, n, axis, norm)
    return x


@checked
def irfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Return the inverse of `rfftn`."""
    pairs = _sizes_and_axes(x, s, axes, "irfftn")
    last, end = _last(pairs, x, "irfftn")
    for n, axis in pairs:
        x = _along("ifft", x, n, axis, norm)
    return _along("irfft", x, last, end, norm)


def _frequencies(name: str, n: int, d: float, dtype: Any, device: Any) -> Tensor:
    kind = dt.f32 if dtype is None else dt.dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"{name}: frequencies are floats, given {kind}; use 'f32' or 'f64'.")
    if n < 1 or d == 0:
        raise ArgumentError(
            f"{name}: at least one point and a distance other than 0 are needed, given n={n} and d={d}."
        )
    return asarray(getattr(np.fft, name)(n, d), dtype=kind, device=device)


@checked
def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of `fft` of n points at a distance d."""
    return _frequencies("fftfreq", n, d, dtype, device)


@checked
def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of `rfft` of n points at a distance d."""
    return _frequencies("rfftfreq", n, d, dtype, device)


def _shifted(x: Tensor, axes: int | Sequence[int] | None, kind: str, sign: int) -> Tensor:
    along = (
        tuple(range(x.ndim))
        if axes is None
        else lay.axes_of(axes if isinstance(axes, int) else tuple(axes), x.ndim, kind)
    )
    shifts = tuple(sign * (x.shape[a] // 2) for a in along)
    return ops.roll(x, shifts, axis=along) if along else ops.copy(x)


@checked
def fftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Return x with the frequency 0 in the middle of the axes (None: of all)."""
    return _shifted(x, axes, "fftshift", 1)


@checked
def ifftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Return the inverse of `fftshift`."""
    return _shifted(x, axes, "ifftshift", -1)
