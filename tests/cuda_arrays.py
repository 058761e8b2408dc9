"""Arrays for tests of kernels over caches: there, by the reference, and as halves of one. Knows nothing of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tritium.backends import reference
from triton_runs import PLACE


def there(x: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x)).to(PLACE)


def by_reference(row: Any, out: np.ndarray[Any, Any], *xs: Any, **attrs: Any) -> np.ndarray[Any, Any]:
    reference.KERNELS[row](*xs, out=out, **(row.defaults | attrs))
    return out


def halves(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Two caches as views of one tensor [slots, 2 * kv heads, capacity, size]."""
    both = there(np.concatenate([x, y], 1))
    return both[:, : x.shape[1]], both[:, x.shape[1] :]
