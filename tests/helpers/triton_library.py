"""CUDA's library of functions as Triton's interpreter can run it: NumPy's of the same names.

The interpreter has no functions of a device; with this in their place the rest of a kernel is run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_NAMES = {"acos": "arccos", "asin": "arcsin", "atan": "arctan", "acosh": "arccosh", "asinh": "arcsinh", "atanh": "arctanh",
          "atan2": "arctan2", "pow": "power"}  # fmt: skip
_OWN = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "normcdf": np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[np.float64]),
}


class Library:
    """Every function by its name; results have the dtype of the first argument."""

    def __getattr__(self, name: str) -> Any:
        fn = _OWN.get(name) or getattr(np, _NAMES.get(name, name))

        def run(*xs: Any) -> Any:
            from triton import language as tl
            from triton.runtime.interpreter import TensorHandle

            with np.errstate(all="ignore"):
                found = np.asarray(fn(*(x.handle.data for x in xs)), xs[0].handle.data.dtype)
            scalar = xs[0].type.scalar
            blocks = any(x.type.is_block() for x in xs)
            kind = tl.block_type(scalar, list(found.shape)) if blocks else scalar
            return tl.tensor(TensorHandle(found, scalar), kind)

        return run
