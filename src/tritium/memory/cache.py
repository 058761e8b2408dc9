"""A cache of values by key, bounded in number, bytes and age.

Knows nothing of tensors but their size in bytes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from tritium.arguments import checked_class, checked_except, parse_bytes, parse_count, parse_seconds
from tritium.errors import ArgumentError, shown
from tritium.memory.registry import CACHES, share


@dataclass(frozen=True)
class CacheStats:
    """Statistics of a TensorCache."""

    size: int
    max_size: int
    nbytes: int
    max_bytes: int | None
    hits: int
    misses: int
    evictions: int
    expirations: int

    @property
    def hit_rate(self) -> float | None:
        """Return the share of lookups that returned a value; None before the first."""
        return share(self.hits, self.hits + self.misses)

    @property
    def utilization(self) -> float:
        """Return the share of its bound that is in use: of the number or of the bytes, whichever is closer to it."""
        by_bytes = self.nbytes / self.max_bytes if self.max_bytes else 0.0
        return max(self.size / self.max_size, by_bytes)


@dataclass
class _Entry:
    value: Any
    nbytes: int
    expires: float


@checked_class
@dataclass
class TensorCache:
    """Values by key, the least recently used leaving first; bounded in number, bytes and age. Thread-safe."""

    max_size: int = 100
    ttl: float | str | None = 3600.0  # seconds, or text such as "1h"; None keeps forever
    max_bytes: int | str | None = None  # or text such as "1GB"; None: no bound
    clock: Callable[[], float] = time.monotonic
    _entries: OrderedDict[Hashable, _Entry] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _pending: dict[Hashable, threading.RLock] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.max_size = parse_count("TensorCache: max_size", self.max_size, 1)
        self._ttl = math.inf if self.ttl is None else parse_seconds("TensorCache: ttl", self.ttl)
        self._most_bytes = None if self.max_bytes is None else parse_bytes("TensorCache: max_bytes", self.max_bytes, 1)
        self.ttl, self.max_bytes = None if self.ttl is None else self._ttl, self._most_bytes
        if not callable(self.clock):
            raise ArgumentError(f"TensorCache: clock={shown(self.clock)} must be a function that returns seconds.")
        names = ("nbytes", "hits", "misses", "evictions", "expirations", "size")
        self._counts = dict.fromkeys(names, 0) | {"max_size": self.max_size}
        CACHES.add(self.stats, self._counts)

    @checked_except("key")
    def put(self, key: Hashable, value: Any) -> None:
        """Keep a value; it becomes the most recently used. One larger than max_bytes is not kept."""
        _check_key(key)
        size = int(getattr(value, "nbytes", 0))
        with self._lock:
            self._drop(key)
            if self._most_bytes is not None and size > self._most_bytes:
                return
            self._entries[key] = _Entry(value, size, self.clock() + self._ttl)
            self._counts["nbytes"] += size
            self._counts["size"] += 1
            self._shrink()

    @checked_except("key")
    def get(self, key: Hashable, default: Any = None) -> Any:
        """Return the value, made the most recently used; `default` when absent or expired."""
        _check_key(key)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and self.clock() >= entry.expires:
                self._drop(key)
                self._counts["expirations"] += 1
                entry = None
            if entry is None:
                self._counts["misses"] += 1
                return default
            self._entries.move_to_end(key)
            self._counts["hits"] += 1
            return entry.value

    @checked_except("key")
    def get_or_compute(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the value, computed once even when several threads ask for it at the same time."""
        _check_key(key)
        if not callable(compute):
            raise ArgumentError(f"get_or_compute: a function without arguments is needed, given {shown(compute)}.")
        absent = object()
        with self._lock:
            lock = self._pending.setdefault(key, threading.RLock())
            if lock._is_owned():  # type: ignore[attr-defined]
                raise ArgumentError(f"get_or_compute: computing {key!r} asks for {key!r} itself.")
        try:
            with lock:
                value = self.get(key, absent)
                if value is absent:
                    value = compute()
                    self.put(key, value)
        finally:
            with self._lock:
                self._pending.pop(key, None)
        return value

    def cleanup(self) -> int:
        """Remove expired entries and return their number."""
        with self._lock:
            now = self.clock()
            old = [k for k, entry in self._entries.items() if now >= entry.expires]
            for key in old:
                self._drop(key)
            self._counts["expirations"] += len(old)
            return len(old)

    def clear(self) -> None:
        """Forget all values; the counters stay."""
        with self._lock:
            self._entries.clear()
            self._counts["nbytes"] = self._counts["size"] = 0

    def stats(self) -> CacheStats:
        """Return the current statistics."""
        with self._lock:
            c = self._counts
            return CacheStats(len(self._entries), self.max_size, c["nbytes"], self._most_bytes, c["hits"], c["misses"],
                              c["evictions"], c["expirations"])  # fmt: skip

    def reset(self) -> None:
        """Reset counters to 0; the values stay."""
        with self._lock:
            self._counts.update(dict.fromkeys(("hits", "misses", "evictions", "expirations"), 0))

    def __len__(self) -> int:
        return len(self._entries)

    @checked_except("key")
    def __contains__(self, key: Hashable) -> bool:
        _check_key(key)
        with self._lock:
            entry = self._entries.get(key)
            return entry is not None and self.clock() < entry.expires

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._counts["nbytes"] -= entry.nbytes
            self._counts["size"] -= 1

    def _shrink(self) -> None:
        most = math.inf if self._most_bytes is None else self._most_bytes
        while len(self._entries) > self.max_size or self._counts["nbytes"] > most:
            self._drop(next(iter(self._entries)))
            self._counts["evictions"] += 1


def _check_key(key: Any) -> None:
    try:
        hash(key)
    except TypeError as error:
        raise ArgumentError(
            f"TensorCache: {shown(key)} cannot be a key ({error}); use text, numbers or tuples of them."
        ) from None
