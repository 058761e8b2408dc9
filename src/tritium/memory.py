"""The memory API: statistics and settings of the pool, a tensor pool, a tensor cache, packing.

Knows nothing of graphs or perf. The pool itself is below, in buffer.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tritium import backends, dtype as dt, launch, ops
from tritium.buffer import ALIGNMENT, native
from tritium.errors import ArgumentError, DeviceError, PoolError
from tritium.layout import Shape
from tritium.pure import POOL
from tritium.tensor import Tensor

STATM = Path("/proc/self/statm")


def resident_bytes(statm: Path = STATM) -> int | None:
    """Return bytes of this process that are in memory now; None where the system does not report them."""
    if native is not None and statm == STATM:
        return int(native.memory_used()) or None
    try:
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class ClassStats(NamedTuple):
    """One size class of the pool; size 0 stands for the large blocks, which have any size."""

    size: int
    live: int
    free: int
    hits: int
    misses: int


@dataclass(frozen=True)
class Stats:
    """Statistics of the pool of CPU memory; `hidden_copies` counts copies where a view was not possible."""

    allocations: int
    frees: int
    live: int  # blocks alive now, whenever they were allocated
    hits: int
    misses: int
    current_bytes: int  # asked for and alive
    current_block_bytes: int  # the blocks those live in
    peak_bytes: int
    pooled_bytes: int  # idle, kept for reuse
    limit: int  # the most that is kept idle
    trims: int
    largest_free_bytes: int
    small_block_size: int
    large_block_threshold: int
    classes: tuple[ClassStats, ...]
    hidden_copies: int
    hidden_copy_bytes: int
    transfers: int
    transfer_bytes: int

    @property
    def hit_rate(self) -> float:
        """Return the share of allocations served from idle blocks; 0 before the first."""
        return self.hits / self.allocations if self.allocations else 0.0

    @property
    def utilization(self) -> float:
        """Return the share of all memory held (alive and idle) that is alive."""
        held = self.current_block_bytes + self.pooled_bytes
        return self.current_block_bytes / held if held else 0.0

    @property
    def overhead(self) -> float:
        """Return the share of the live blocks that was not requested (rounding up to size classes)."""
        return 1 - self.current_bytes / self.current_block_bytes if self.current_block_bytes else 0.0

    @property
    def fragmentation(self) -> float:
        """Return 1 - largest idle block / all idle bytes: 0 when idle memory is one piece."""
        return 1 - self.largest_free_bytes / self.pooled_bytes if self.pooled_bytes else 0.0


def stats() -> Stats:
    """Return the current statistics."""
    pool = native.pool_stats() if native is not None else _pure_stats()
    c = launch.counters
    large = {"size": 0, **pool["tiers"]["large"]} if "tiers" in pool else None  # the native pool's, of any size
    listed = [*pool["classes"], large] if large and (large["misses"] or large["live"]) else pool["classes"]
    classes = tuple(ClassStats(k["size"], k["live"], k["free"], k["hits"], k["misses"]) for k in listed)
    names = ("allocations", "frees", "hits", "misses", "current_bytes", "current_block_bytes", "peak_bytes", "pooled_bytes",
             "limit", "trims", "largest_free_bytes", "small_block_size", "large_block_threshold")  # fmt: skip
    return Stats(
        **{n: pool[n] for n in names},
        live=pool["live_blocks"],
        classes=classes,
        hidden_copies=c.hidden_copies,
        hidden_copy_bytes=c.hidden_copy_bytes,
        transfers=c.transfers,
        transfer_bytes=c.transfer_bytes,
    )


def _pure_stats() -> dict[str, Any]:
    with POOL.lock:
        classes = [{"size": n, "free": len(POOL.free.get(n, ())), **c} for n, c in sorted(POOL.classes.items())]
        return {
            "allocations": POOL.allocations, "frees": POOL.frees, "live_blocks": POOL.live_blocks, "hits": POOL.hits, "misses": POOL.misses,
            "current_bytes": POOL.current, "current_block_bytes": POOL.current_block_bytes, "peak_bytes": POOL.peak,
            "pooled_bytes": POOL.pooled, "limit": POOL.limit, "trims": POOL.trims, "classes": classes,
            "largest_free_bytes": max((n for n, b in POOL.free.items() if b), default=0),
            "small_block_size": POOL.small_block_size, "large_block_threshold": POOL.large_block_threshold,
        }  # fmt: skip


def reset() -> None:
    """Reset counters to 0 and the peak to the current value; what is alive stays counted as alive."""
    launch.counters.reset()
    if native is not None:
        native.pool_reset_stats()
    else:
        POOL.reset()


@dataclass(frozen=True)
class DeviceStats:
    """Statistics of the allocator of a device's own library; None where it has no such figure."""

    active_bytes: int | None = None
    peak_bytes: int | None = None
    cache_bytes: int | None = None
    limit_bytes: int | None = None


def device_stats(device: Any = None) -> DeviceStats | None:
    """Return memory of a device whose own library allocates it (mlx, mps); None: that library keeps no figures. The CPU's pool has
    `stats`."""
    figures = backends.device(device).backend.memory_stats()
    return None if figures is None else DeviceStats(**figures)


def limit(device: Any, *, memory_bytes: int | None = None, cache_bytes: int | None = None) -> None:
    """Set limits of the allocator of a device's own library: bytes in use, and bytes kept for later."""
    for name, nbytes in (("memory_bytes", memory_bytes), ("cache_bytes", cache_bytes)):
        if nbytes is not None and nbytes < 0:
            raise ArgumentError(f"limit: {name}={nbytes} must be 0 or more.")
    backends.device(device).backend.limit(memory_bytes=memory_bytes, cache_bytes=cache_bytes)


def trim(keep_bytes: int = 0, *, device: Any = "cpu") -> int:
    """Give idle memory back to the system until at most `keep_bytes` are kept; the bytes released. A device whose own library
    allocates gives back all it keeps."""
    if keep_bytes < 0:
        raise ArgumentError(f"trim: keep_bytes={keep_bytes} must be 0 or more.")
    there = backends.device(device)
    if there.type != "cpu":
        return there.backend.trim()
    return int(native.pool_trim(keep_bytes) if native is not None else POOL.trim(keep_bytes))


def configure(
    *, small_block_size: int | None = None, large_block_threshold: int | None = None, limit: int | None = None
) -> None:
    """Set the largest small block, the smallest large block, and the most idle bytes the pool keeps."""
    now = stats()
    small = now.small_block_size if small_block_size is None else small_block_size
    large = now.large_block_threshold if large_block_threshold is None else large_block_threshold
    idle_limit = now.limit if limit is None else limit
    if not 0 < small <= large or idle_limit < 0:
        raise ArgumentError(
            f"configure: needs 0 < small_block_size <= large_block_threshold and limit >= 0, given {small}, {large}, {idle_limit}."
        )
    if native is not None:
        native.pool_configure(small_block_size=small, large_block_threshold=large, limit=idle_limit)
    else:
        POOL.small_block_size, POOL.large_block_threshold, POOL.limit = small, large, idle_limit
        POOL.trim(idle_limit)


@dataclass
class Usage:
    """Memory use of a block of code."""

    before: Stats
    after: Stats
    peak_bytes: int = 0

    @property
    def net_bytes(self) -> int:
        """Return bytes alive at the end that were not at the start."""
        return self.after.current_bytes - self.before.current_bytes

    @property
    def peak_above_start(self) -> int:
        return self.peak_bytes - self.before.current_bytes

    @property
    def allocations(self) -> int:
        return self.after.allocations - self.before.allocations


@contextmanager
def usage() -> Iterator[Usage]:
    """Measure memory use: `with usage() as m:` … then m.before, m.after, m.peak_bytes, m.net_bytes, m.allocations."""
    start = stats()
    seen = Usage(start, start)
    outer = _swap_peak(start.current_bytes)
    try:
        yield seen
    finally:
        seen.after = stats()
        seen.peak_bytes = seen.after.peak_bytes
        _swap_peak(max(outer, seen.peak_bytes))


def _swap_peak(peak: int) -> int:
    """Set the recorded peak and return the old one."""
    if native is not None:
        return int(native.pool_swap_peak(peak))
    with POOL.lock:
        POOL.peak, old = max(peak, POOL.current), POOL.peak
    return old


# ---- tensors lent and returned


@dataclass(frozen=True)
class PoolStats:
    """Statistics of a TensorPool."""

    total_allocations: int
    total_deallocations: int
    pool_hits: int
    pool_misses: int
    current_memory_usage: int  # bytes lent out now
    peak_memory_usage: int
    pooled_bytes: int  # bytes waiting to be lent again

    @property
    def hit_rate(self) -> float:
        return self.pool_hits / self.total_allocations if self.total_allocations else 0.0


class TensorPool:
    """Tensors of one shape, dtype and device lent again and again. Lent tensors hold whatever was there before."""

    def __init__(self, max_size: int = 100) -> None:
        if max_size < 0:
            raise ArgumentError(f"TensorPool: max_size={max_size} must be 0 or more.")
        self.max_size = max_size
        self._lock = threading.Lock()
        self._free: dict[Hashable, deque[Tensor]] = {}
        self._lent: dict[int, Tensor] = {}
        self._idle = 0
        self._counts = dict.fromkeys(("allocations", "returns", "hits", "misses", "current", "peak", "pooled"), 0)

    @staticmethod
    def _key(shape: Shape, kind: dt.DType, device: backends.Device) -> Hashable:
        return (shape, kind, device)

    def get_or_create_tensor(self, shape: Any, dtype: Any = "f32", device: Any = None, *, zero: bool = False) -> Tensor:
        """Return a tensor of this shape, dtype and device: an idle one, else a new one. zero=True clears it."""
        size, kind, there = ops.size_of(shape), dt.dtype(dtype), backends.device(device)
        with self._lock:
            idle = self._free.get(self._key(size, kind, there))
            reused = idle.popleft() if idle else None
            c = self._counts
            c["allocations"] += 1
            c["hits" if reused is not None else "misses"] += 1
            if reused is not None:
                self._idle -= 1
                c["pooled"] -= reused.nbytes
        out = reused if reused is not None else ops.empty(size, dtype=kind, device=there)
        with self._lock:
            self._lent[id(out)] = out
            c["current"] += out.nbytes
            c["peak"] = max(c["peak"], c["current"])
        return out.zero_() if zero else out

    def return_to_pool(self, tensor: Tensor) -> None:
        """Give a lent tensor back. It must not be used afterwards; returning it twice is an error."""
        with self._lock:
            if self._lent.pop(id(tensor), None) is None:
                raise PoolError(
                    f"return_to_pool: {tensor.spec} is not lent by this pool: it was returned already, or never came from it."
                )
            c = self._counts
            c["returns"] += 1
            c["current"] -= tensor.nbytes
            if self._idle < self.max_size:
                key = self._key(tensor.shape, tensor.dtype, tensor.device)
                self._free.setdefault(key, deque()).append(tensor)
                self._idle += 1
                c["pooled"] += tensor.nbytes

    @contextmanager
    def borrow(self, shape: Any, dtype: Any = "f32", device: Any = None, *, zero: bool = False) -> Iterator[Tensor]:
        """Lend a tensor for a block: `with pool.borrow((64, 64)) as t:`."""
        t = self.get_or_create_tensor(shape, dtype, device, zero=zero)
        try:
            yield t
        finally:
            self.return_to_pool(t)

    def get_stats(self) -> PoolStats:
        with self._lock:
            c = self._counts
            return PoolStats(
                c["allocations"], c["returns"], c["hits"], c["misses"], c["current"], c["peak"], c["pooled"]
            )

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


# ---- results kept


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
    def hit_rate(self) -> float:
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0


@dataclass
class _Entry:
    value: Any
    nbytes: int
    expires: float


@dataclass
class TensorCache:
    """Values by key, the least recently used leaving first; bounded in number, bytes and age. Thread-safe."""

    max_size: int = 100
    ttl: float | None = 3600.0  # seconds; None keeps forever
    max_bytes: int | None = None
    clock: Callable[[], float] = time.monotonic
    _entries: OrderedDict[Hashable, _Entry] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _pending: dict[Hashable, threading.RLock] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if (
            self.max_size < 1
            or (self.ttl is not None and self.ttl <= 0)
            or (self.max_bytes is not None and self.max_bytes < 1)
        ):
            raise ArgumentError(
                "TensorCache: max_size, ttl and max_bytes must be positive (ttl and max_bytes may be None)."
            )
        self._nbytes = self._hits = self._misses = self._evictions = self._expirations = 0

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a value; it becomes the most recently used. One larger than max_bytes is not kept."""
        size = int(getattr(value, "nbytes", 0))
        with self._lock:
            self._drop(key)
            if self.max_bytes is not None and size > self.max_bytes:
                return
            expires = float("inf") if self.ttl is None else self.clock() + self.ttl
            self._entries[key] = _Entry(value, size, expires)
            self._nbytes += size
            self._shrink()

    def get(self, key: Hashable, default: Any = None) -> Any:
        """Return the value, made the most recently used; `default` when absent or expired."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and self.clock() >= entry.expires:
                self._drop(key)
                self._expirations += 1
                entry = None
            if entry is None:
                self._misses += 1
                return default
            self._entries.move_to_end(key)
            self._hits += 1
            return entry.value

    def get_or_compute(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the value, computed once even when several threads ask for it at the same time."""
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
            self._expirations += len(old)
            return len(old)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(len(self._entries), self.max_size, self._nbytes, self.max_bytes, self._hits, self._misses,
                              self._evictions, self._expirations)  # fmt: skip

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            entry = self._entries.get(key)
            return entry is not None and self.clock() < entry.expires

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= entry.nbytes

    def _shrink(self) -> None:
        while len(self._entries) > self.max_size or (self.max_bytes is not None and self._nbytes > self.max_bytes):
            self._drop(next(iter(self._entries)))
            self._evictions += 1


# ---- many small tensors in one buffer


def pack(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copy the tensors one after another into one buffer, each at a 64-byte boundary: views of it."""
    sources = list(tensors)
    if not sources:
        return []
    places = {t.device for t in sources}
    if len(places) > 1:
        raise DeviceError(f"pack: tensors are on {', '.join(map(str, places))}; move them to one device first.")
    starts, end = [], 0
    for t in sources:
        starts.append(end)
        end += -(-t.nbytes // ALIGNMENT) * ALIGNMENT
    storage = sources[0].device.backend.allocate(end)
    out = []
    for t, start in zip(sources, starts, strict=True):
        part = Tensor(storage, t.dtype, t.shape, t.spec.strides, start // t.dtype.nbytes * t.dtype.rows * t.dtype.block)
        out.append(ops.copy(t, out=part))
    return out
