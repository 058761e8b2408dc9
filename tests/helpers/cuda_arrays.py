"""For tests of kernels: arrays there, by the reference and as halves of one; what is called of torch, and what is launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tritium.backends.reference import kernels as reference
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


class Calls(TorchDispatchMode):
    """The names of torch's operations that are called meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(fn.overloadpacket.__name__)
        return fn(*args, **(kwargs or {}))


class Launches:
    """In place of a kernel, or of several: the grids it was launched with. Nothing runs."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.grids.append(grid)
        return lambda *xs, **options: None
