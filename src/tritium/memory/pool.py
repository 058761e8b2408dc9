"""A pool of tensors of one shape, dtype and device, lent and returned."""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tritium import backends, dtype as dt, ops
from tritium.arguments import checked_class, checked_except, parse_count
from tritium.errors import PoolError, shown
from tritium.layout import Shape
from tritium.memory.registry import POOLS, share
from tritium.tensor import Tensor


@dataclass(frozen=True)
class PoolStats:
    """Statistics of a TensorPool, since its start or its last `reset()`."""

    total_allocations: int  # tensors lent
    total_deallocations: int  # tensors returned
    pool_hits: int
    pool_misses: int
    current_memory_usage: int  # bytes lent out now
    peak_memory_usage: int
    pooled_bytes: int  # bytes waiting to be lent again
    lost: int = 0  # tensors lent and dropped without being returned
    evictions: int = 0  # idle tensors that made room for others

    @property
    def hit_rate(self) -> float | None:
        """Return the share of tensors that were idle ones; None before the first."""
        return share(self.pool_hits, self.pool_hits + self.pool_misses)

    @property
    def utilization(self) -> float | None:
        """Return the share of the pool's bytes that is lent out; None if it holds none."""
        return share(self.current_memory_usage, self.current_memory_usage + self.pooled_bytes)


class _Loan(weakref.ref[Tensor]):
    """A weak reference to a lent tensor: who drops it instead of returning it frees its memory."""

    __slots__ = ("key", "nbytes")
    key: int  # id of the tensor
    nbytes: int


@checked_class
class TensorPool:
    """Tensors of one shape, dtype and device lent again and again. Lent tensors hold whatever was there before.

    At most `max_size` tensors are idle; when there are more, one of the least recently used shape is freed. A lent tensor
    that is dropped instead of returned is freed and counted as lost.
    """

    def __init__(self, max_size: int = 100) -> None:
        self.max_size = parse_count("TensorPool: max_size", max_size, 0)
        self._lock = threading.RLock()  # a finalizer that returns a tensor may run inside any method
        self._free: OrderedDict[Hashable, deque[Tensor]] = OrderedDict()  # the least recently used key first
        self._lent: dict[int, _Loan] = {}
        self._dropped: deque[_Loan] = deque()
        self._idle = 0
        names = ("allocations", "returns", "hits", "misses", "current", "peak", "pooled", "lost", "evictions")
        self._counts = dict.fromkeys(names, 0)
        POOLS.add(self.get_stats, self._counts)

    @staticmethod
    def _key(shape: Shape, kind: dt.DType, device: backends.Device) -> Hashable:
        return (shape, kind, device)

    def get_or_create_tensor(self, shape: Any, dtype: Any = "f32", device: Any = None, *, zero: bool = False) -> Tensor:
        """Return a tensor of this shape, dtype and device: an idle one, else a new one. zero=True clears it."""
        size, kind = ops.size_of(shape), dt.dtype(dtype)
        target = backends.device_for(device, math.prod(size))
        with self._lock:
            reused = self._take(self._key(size, kind, target))
        tensor = reused if reused is not None else ops.empty(size, dtype=kind, device=target)
        with self._lock:
            self._settle()
            loan = _Loan(tensor, self._dropped.append)
            loan.key, loan.nbytes = id(tensor), tensor.nbytes
            self._lent[loan.key] = loan
            c = self._counts
            c["allocations"] += 1
            c["hits" if reused is not None else "misses"] += 1
            c["current"] += loan.nbytes
            c["peak"] = max(c["peak"], c["current"])
        return tensor.zero_() if zero else tensor

    @checked_except("tensor")
    def return_to_pool(self, tensor: Tensor, device: Any = None) -> None:
        """Give a lent tensor back. It must not be used afterwards; returning it twice is an error.

        A device, where it is named, must be the tensor's.
        """
        if not isinstance(tensor, Tensor):
            raise PoolError(f"return_to_pool: a tensor that this pool lent is needed, given {shown(tensor)}.")
        if device is not None and (named := backends.device(device)) != tensor.device:
            raise PoolError(
                f"return_to_pool: {tensor.spec} is on {tensor.device}, not on {named}; leave the device out."
            )
        with self._lock:
            self._settle()
            loan = self._lent.get(id(tensor))
            if loan is None or loan() is not tensor:
                raise PoolError(
                    f"return_to_pool: {tensor.spec} is not lent by this pool: it was returned already, or never came from it."
                )
            del self._lent[loan.key]
            c = self._counts
            c["returns"] += 1
            c["current"] -= loan.nbytes
            if self.max_size:
                self._keep(self._key(tensor.shape, tensor.dtype, tensor.device), tensor)

    def _take(self, key: Hashable) -> Tensor | None:
        """Return an idle tensor, no longer idle; None if there is none of this key."""
        idle = self._free.get(key)
        if not idle:
            return None
        tensor = idle.popleft()
        self._idle -= 1
        self._counts["pooled"] -= tensor.nbytes
        if idle:
            self._free.move_to_end(key)
        else:
            del self._free[key]
        return tensor

    def _keep(self, key: Hashable, tensor: Tensor) -> None:
        """Add an idle tensor; beyond the bound one of the least recently used key leaves."""
        self._free.setdefault(key, deque()).append(tensor)
        self._free.move_to_end(key)
        self._idle += 1
        self._counts["pooled"] += tensor.nbytes
        if self._idle > self.max_size:
            oldest = next(iter(self._free))
            self._take(oldest)
            self._counts["evictions"] += 1
            if oldest in self._free:
                self._free.move_to_end(oldest, last=False)  # losing a tensor is not a use

    def _settle(self) -> None:
        """Count the lent tensors that were dropped since."""
        while self._dropped:
            loan = self._dropped.popleft()
            if self._lent.get(loan.key) is loan:
                del self._lent[loan.key]
                self._counts["lost"] += 1
                self._counts["current"] -= loan.nbytes

    @contextmanager
    def borrow(self, shape: Any, dtype: Any = "f32", device: Any = None, *, zero: bool = False) -> Iterator[Tensor]:
        """Lend a tensor for a block: `with pool.borrow((64, 64)) as t:`."""
        t = self.get_or_create_tensor(shape, dtype, device, zero=zero)
        try:
            yield t
        finally:
            self.return_to_pool(t)

    def get_stats(self) -> PoolStats:
        """Return the current statistics."""
        with self._lock:
            self._settle()
            c = self._counts
            return PoolStats(
                c["allocations"], c["returns"], c["hits"], c["misses"], c["current"], c["peak"], c["pooled"], c["lost"],
                c["evictions"],
            )  # fmt: skip

    def reset(self) -> None:
        """Reset counters to 0 and the peak to the current value; what is lent and what is idle stay so."""
        with self._lock:
            self._settle()
            c = self._counts
            c.update(dict.fromkeys(("allocations", "returns", "hits", "misses", "lost", "evictions"), 0))
            c["peak"] = c["current"]

    def clear(self) -> None:
        """Forget the idle tensors."""
        with self._lock:
            self._free.clear()
            self._idle = self._counts["pooled"] = 0

    def __len__(self) -> int:
        return self._idle

    def __enter__(self) -> TensorPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
