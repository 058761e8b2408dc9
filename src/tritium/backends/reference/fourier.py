"""Discrete Fourier transforms along one axis, in NumPy: f32 in f32, f64 in f64."""

from __future__ import annotations

from typing import Any

import numpy as np

Arr = np.ndarray[Any, Any]


def transform(x: Arr, *, out: Arr, kind: str, n: int, axis: int, norm: str) -> None:
    out[...] = getattr(np.fft, kind)(x, n=n, axis=axis, norm=norm)
