"""Right answers in wide numbers, by definition: what a layer with integer weights must give.

Knows nothing of candidates: NumPy alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Data = np.ndarray[Any, Any]


def wide(x: Data) -> Data:
    return x.astype(np.int64) if x.dtype.kind in "iub" else x.astype(np.float64)


def floats(integers: Data, scale: Data) -> Data:
    """The float matrix these integers and scales stand for."""
    if scale.ndim == 2:
        scale = np.repeat(scale, integers.shape[1] // scale.shape[1], axis=1)
    return integers * (scale[:, None] if scale.ndim == 1 else scale)


def quantised_product(x: Data, w: Data, scale: Data) -> Data:
    """What a layer with int8 activations gives: tokens rounded to 127 steps in f32, whole sums, then the scales."""
    single = x.astype(np.float32)
    largest = np.maximum(np.abs(single).max(axis=-1, keepdims=True), np.float32(1e-5))
    q = np.rint(single * (np.float32(127) / largest)).astype(np.float64)
    return np.asarray(q @ floats(w, scale.astype(np.float64)).T * (largest / np.float32(127)).astype(np.float64))
