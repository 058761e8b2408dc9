"""Triton's kernels on the CPU, by its own interpreter: import this before any module with kernels.

The interpreter takes a tensor of one element for a number, which NumPy refuses since 2.4, and rounds twice in fma.
"""

from __future__ import annotations

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("torch", reason="needs torch: pip install torch")
pytest.importorskip("triton", reason="needs triton: pip install torch triton")

import numpy as np
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patched(tensor, *args):  # type: ignore[no-untyped-def]
    _patch(tensor, *args)
    tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._patch_lang_tensor = _patched


def _fma(self, x, y, z):  # type: ignore[no-untyped-def]
    """Of f32 with one rounding, where the interpreter has two: f64 holds the product."""
    wide = np.float64 if z.data.dtype == np.float32 else z.data.dtype
    exact = x.data.astype(wide) * y.data.astype(wide) + z.data.astype(wide)
    return interpreter.TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)


interpreter.InterpreterBuilder.create_fma = _fma
