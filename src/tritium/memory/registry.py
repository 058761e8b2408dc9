"""The counters of all tensor pools and tensor caches of this process, and their sums."""

from __future__ import annotations

import collections
import threading
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from tritium.arguments import checked


class _Registry:
    """The counters of all instances of a class; those of dropped instances stay in the sums."""

    def __init__(self, lasting: tuple[str, ...]) -> None:
        self.lasting = lasting  # counters that outlive their instance; the others are figures of what it holds
        self._lock = threading.RLock()
        self._numbers = count()
        self._live: dict[int, tuple[dict[str, int], weakref.WeakMethod[Callable[[], Any]]]] = {}
        self._dropped: deque[int] = deque()  # a finalizer runs anywhere, also inside `sums`: it only appends here
        self._past = dict.fromkeys(lasting, 0)

    def add(self, update: Callable[[], Any], counts: dict[str, int]) -> None:
        """Add the counters of an instance, and its method that brings them up to date."""
        number = next(self._numbers)
        with self._lock:
            self._live[number] = counts, weakref.WeakMethod(update)
        instance = update.__self__  # type: ignore[attr-defined]
        weakref.finalize(instance, self._dropped.append, number).atexit = False

    def sums(self) -> dict[str, int]:
        """Return the sum of each counter, and the number of instances."""
        with self._lock:
            for _, reference in list(self._live.values()):
                if (update := reference()) is not None:
                    update()
                    del update
            while self._dropped:
                counts, _ = self._live.pop(self._dropped.popleft())
                for name in self.lasting:
                    self._past[name] += counts[name]
            live = [counts for counts, _ in self._live.values()]
            names = dict.fromkeys(name for counts in live for name in counts) or dict.fromkeys(self.lasting)
            return {"instances": len(live)} | {
                name: self._past.get(name, 0) + sum(counts[name] for counts in live) for name in names
            }


POOLS = _Registry(("allocations", "returns", "lost", "hits", "misses"))
CACHES = _Registry(("hits", "misses", "evictions", "expirations"))


def share(part: float, whole: float) -> float | None:
    """Return a share; None of nothing."""
    return part / whole if whole else None


@checked
def shared_stats() -> dict[str, dict[str, Any]]:
    """Return the sums of all TensorPools and of all TensorCaches of this process, as `tt.stats()` has them."""
    pools, caches = (collections.Counter(registry.sums()) for registry in (POOLS, CACHES))
    held = pools["current"] + pools["pooled"]
    return {
        "tensor_pools": {
            "pools": pools["instances"], "hits": pools["hits"], "misses": pools["misses"], "lost": pools["lost"],
            "hit_rate": share(pools["hits"], pools["hits"] + pools["misses"]), "lent_bytes": pools["current"],
            "idle_bytes": pools["pooled"], "utilization": share(pools["current"], held),
        },
        "caches": {
            "caches": caches["instances"], "hits": caches["hits"], "misses": caches["misses"],
            "hit_rate": share(caches["hits"], caches["hits"] + caches["misses"]), "size": caches["size"],
            "max_size": caches["max_size"], "nbytes": caches["nbytes"], "evictions": caches["evictions"],
            "expirations": caches["expirations"], "utilization": share(caches["size"], caches["max_size"]),
        },
    }  # fmt: skip
