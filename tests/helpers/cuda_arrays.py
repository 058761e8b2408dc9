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


def paged(
    cache: Any, places: np.ndarray[Any, Any], block: int, rng: np.random.Generator
) -> tuple[Any, np.ndarray[Any, Any]]:
    """A cache [slots, heads, capacity, size] of torch in blocks, in any order and one more than needed, and places that name them.

    Slots outside the cache get blocks of the first."""
    slots, heads, capacity, size = cache.shape
    n = -(-capacity // block)
    padded = torch.nn.functional.pad(cache, (0, 0, 0, n * block - capacity))
    table = rng.permutation(slots * n + 1)[: slots * n].reshape(slots, n).astype(np.int32)
    pool = torch.full((slots * n + 1, heads, block, size), torch.nan, dtype=cache.dtype, device=cache.device)
    pool[torch.from_numpy(table).flatten().long().to(cache.device)] = (
        padded.reshape(slots, heads, n, block, size).transpose(1, 2).flatten(0, 1)
    )
    rows = table[np.clip(places[:, 0], 0, slots - 1)]
    return pool, np.concatenate([places, rows], 1).astype(np.int32)


def unpaged(pool: Any, places: np.ndarray[Any, Any], capacity: int) -> Any:
    """The tokens of each sequence of a paged cache [batch, heads, capacity, size]."""
    blocks = torch.from_numpy(places[:, 3:].astype(np.int64)).to(pool.device)
    return pool[blocks].transpose(1, 2).flatten(2, 3)[:, :, :capacity]


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
