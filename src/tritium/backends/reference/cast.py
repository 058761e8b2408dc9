"""Casts of elements from one dtype to another, in NumPy: the same on every CPU, each rounded once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Arr = np.ndarray[Any, Any]

HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def cast(x: Arr, *, out: Arr, dtype: Any = None, copy: bool = True) -> None:
    """Floats become integers by truncation, held to the range of the integer; NaN becomes 0. The same on every CPU."""
    if out.dtype.kind in "iu" and (x.dtype.kind == "f" or x.dtype in HALF):
        info = np.iinfo(out.dtype)
        y = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
        low, high = float(info.min), float(info.max)
        inside = np.clip(y, low, np.nextafter(high + 1, 0) if high >= 2**53 else high)
        result = np.asarray(inside.astype(out.dtype))
        out[...] = np.where(y >= high, info.max, result).astype(out.dtype)
    elif out.dtype.kind == "b":
        np.not_equal(x, 0, out=out)
    elif x.dtype == np.float64 and out.dtype == HALF[1]:
        out[...] = _odd(x).astype(out.dtype)
    else:
        out[...] = x.astype(out.dtype)


def _odd(x: Arr) -> Arr:
    """f64 as f32 rounded to odd, so that rounding once more, to bf16, is as if it were the first time."""
    near = x.astype(np.float32)
    down = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    return np.asarray((down.view(np.uint32) | (near != x)).astype(np.uint32).view(np.float32))


def number(value: bool | int | float | complex, kind: Any) -> Arr:
    """A Python number as a 0-d array of a DType."""
    exact = np.empty((), kind.numpy)
    cast(np.asarray(parsed(value, kind)), out=exact)
    return exact


def parsed(value: Any, kind: Any) -> Any:
    """A Python number as one of the kind that a float or complex DType stores; integers stay what they are."""
    if kind.is_complex:
        return complex(value)
    return float(value) if kind.is_float else value
