"""The names a row's `expr` may use, in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_PLAIN = "exp expm1 log log1p log2 log10 sin cos tan sinh cosh tanh sqrt floor ceil trunc rint sign hypot copysign logaddexp isinf isfinite"
NAMES: dict[str, Any] = {
    name: getattr(np, name) for name in (*_PLAIN.split(), "maximum", "minimum", "where", "signbit")
}
NAMES |= {"abs": np.abs, "pow": np.power, "atan2": np.arctan2, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan}
NAMES |= {"asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh}
NAMES["erf"] = lambda x: np.asarray(np.frompyfunc(math.erf, 1, 1)(x), float)
