"""The memory API: statistics and settings of the pool, a tensor pool, a tensor cache, packing.

Knows nothing of graphs or perf. The pool itself is below, in buffer.
"""

from __future__ import annotations

import collections
import math
import operator
import os
import re
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from tritium import backends, dtype as dt, launch, layout, ops
from tritium.buffer import ALIGNMENT, native
from tritium.errors import (
    ArgumentError,
    DeviceError,
    PoolError,
    checked,
    checked_class,
    checked_except,
    checked_record,
    shown,
)
from tritium.layout import Shape
from tritium.pure import POOL
from tritium.tensor import Tensor

STATM = Path("/proc/self/statm")
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_BYTES = 1 << 60


# ---- arguments


def _shown(value: Any) -> str:
    """Return a value as text for an error message."""
    return layout.count_text(value) if isinstance(value, int) else repr(value)[:60]


def _in_units(value: str, units: Mapping[str, float]) -> tuple[int, float, int] | None:
    """Return the digits of a number with a unit ("1.5 GB"), the unit's size, and the power of ten to divide by."""
    match = re.fullmatch(r"\s*([0-9]{1,30})(?:\.([0-9]{0,30}))?\s*([a-z]*)\s*", value, re.IGNORECASE | re.ASCII)
    if match is None or match[3].lower() not in units:
        return None
    decimals = match[2] or ""
    return int(match[1] + decimals), units[match[3].lower()], 10 ** len(decimals)


def _count(where: str, value: Any, least: int, most: int = MOST_BYTES) -> int:
    """Return an integer within a range."""
    try:
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise ArgumentError(
            f"{where}={_shown(value)} must be {'0 or more' if least == 0 else 'positive'}: an integer from {least} to {most}."
        )
    return number


@checked
def parse_bytes(where: str, value: Any, least: int = 0, most: int = MOST_BYTES) -> int:
    """Return bytes, from their number or text such as "1GB" (10**9) or "64 KiB" (1024 bytes each), within a range."""
    number: Any = value
    if isinstance(value, str) and (parts := _in_units(value, BYTES)) is not None:
        whole, rest = divmod(parts[0] * int(parts[1]), parts[2])
        number = None if rest else whole  # "0.5 B" is no size
    try:
        nbytes = operator.index(number) if not isinstance(number, bool) else None
    except TypeError:
        nbytes = None
    if nbytes is None:
        raise ArgumentError(
            f'{where}={_shown(value)} is not a size; give whole bytes as an integer, or text such as "64 KiB" or "1GB" '
            f"(units B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)."
        )
    if not least <= nbytes <= most:
        raise ArgumentError(
            f"{where}={_shown(value)} must be {'0 or more' if least == 0 else 'positive'}: from {least} to {most} bytes."
        )
    return nbytes


@checked
def parse_seconds(where: str, value: Any) -> float:
    """Return seconds above 0, from their number or text such as "1h", "5 min" or "250ms"."""
    number: Any = value
    if isinstance(value, str) and (parts := _in_units(value, SECONDS)) is not None:
        number = parts[0] / parts[2] * parts[1]
    try:
        seconds = float(number) if not isinstance(number, (bool, str, bytes)) else math.nan
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentError(
            f'{where}={_shown(value)} must be positive: seconds as a number, or text such as "1h", "5min" or "250ms" '
            f"(units ms, s, min, h, d)."
        )
    return seconds


# ---- statistics


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


class TierStats(NamedTuple):
    """The small, medium or large blocks of the pool: up to small_block_size, between, above large_block_threshold."""

    name: str
    live: int
    free: int
    hits: int
    misses: int
    live_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Stats:
    """Statistics of the pool of CPU memory; `hidden_copies` counts copies where a view was not possible.

    The difference of two, `after - before`, is a StatsChange.
    """

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
    tiers: tuple[TierStats, ...] = ()
    memory_limit: int | None = None  # of live blocks: as configured, else what this process may use; None: unknown
    resident_bytes: int | None = None  # of the whole process, as the system reports; None: it does not

    @property
    def hit_rate(self) -> float | None:
        """Return the share of allocations served from idle blocks; None before the first."""
        return _share(self.hits, self.hits + self.misses)

    @property
    def utilization(self) -> float | None:
        """Return the share of all memory held (alive and idle) that is alive; None if none is held."""
        return _share(self.current_block_bytes, self.current_block_bytes + self.pooled_bytes)

    @property
    def utilization_percent(self) -> float | None:
        """Return the live blocks as a percentage of memory_limit; None where that is unknown."""
        return 100 * self.current_block_bytes / self.memory_limit if self.memory_limit else None

    @property
    def overhead(self) -> float:
        """Return the share of the live blocks that was not requested (rounding up to size classes)."""
        return 1 - self.current_bytes / self.current_block_bytes if self.current_block_bytes else 0.0

    @property
    def fragmentation(self) -> float:
        """Return 1 - largest idle block / all idle bytes: 0 when idle memory is one piece."""
        return 1 - self.largest_free_bytes / self.pooled_bytes if self.pooled_bytes else 0.0

    def __sub__(self, before: Stats) -> StatsChange:
        if not isinstance(before, Stats):
            return NotImplemented
        return StatsChange(**{f.name: _change(self, before, f.name) for f in fields(StatsChange)})


@dataclass(frozen=True)
class StatsChange:
    """The change of the pool's statistics between two snapshots; negative where a figure fell or was reset."""

    allocations: int
    frees: int
    live: int
    hits: int
    misses: int
    current_bytes: int
    current_block_bytes: int
    pooled_bytes: int
    trims: int
    hidden_copies: int
    hidden_copy_bytes: int
    transfers: int
    transfer_bytes: int
    resident_bytes: int | None  # None: the system does not report it

    @property
    def hit_rate(self) -> float | None:
        """Return the share of the allocations in between served from idle blocks; None if there was none."""
        return _share(self.hits, self.hits + self.misses)


def _change(after: Stats, before: Stats, name: str) -> Any:
    values = getattr(after, name), getattr(before, name)
    return None if None in values else values[0] - values[1]


@checked
def stats() -> Stats:
    """Return the current statistics: a snapshot. `stats() - before` is the change since an earlier one."""
    pool = native.pool_stats() if native is not None else _pure_stats()
    c = launch.counters
    large = {"size": 0, **pool["tiers"]["large"]}  # of any size
    listed = [*pool["classes"], large] if large["misses"] or large["live"] or large["free"] else pool["classes"]
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
        tiers=tuple(TierStats(name, **pool["tiers"][name]) for name in TIERS),
        memory_limit=pool["memory_limit"] or None,
        resident_bytes=resident_bytes(),
    )


TIERS = ("small", "medium", "large")


def _pure_stats() -> dict[str, Any]:
    with POOL.lock:
        classes = [{"size": n, "free": len(POOL.free.get(n, ())), **c} for n, c in sorted(POOL.classes.items())]
        tiers = {name: dict.fromkeys(TierStats._fields[1:], 0) for name in TIERS}
        for c in classes:
            tier = tiers[TIERS[(c["size"] > POOL.small_block_size) + (c["size"] > POOL.large_block_threshold)]]
            sums = c | {"live_bytes": c["live"] * c["size"], "free_bytes": c["free"] * c["size"]}
            tier.update({name: n + sums[name] for name, n in tier.items()})
        classes = [c for c in classes if c["size"] <= POOL.large_block_threshold]
        return {
            "tiers": tiers, "memory_limit": POOL.memory_limit,
            "allocations": POOL.allocations, "frees": POOL.frees, "live_blocks": POOL.live_blocks, "hits": POOL.hits, "misses": POOL.misses,
            "current_bytes": POOL.current, "current_block_bytes": POOL.current_block_bytes, "peak_bytes": POOL.peak,
            "pooled_bytes": POOL.pooled, "limit": POOL.limit, "trims": POOL.trims, "classes": classes,
            "largest_free_bytes": max((n for n, b in POOL.free.items() if b), default=0),
            "small_block_size": POOL.small_block_size, "large_block_threshold": POOL.large_block_threshold,
        }  # fmt: skip


@checked
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


@checked
def device_stats(device: Any = None) -> DeviceStats | None:
    """Return memory of a device whose own library allocates it (mlx, mps); None: that library keeps no figures. The CPU's pool has
    `stats`."""
    figures = backends.device(device).backend.memory_stats()
    return None if figures is None else DeviceStats(**figures)


@checked
def limit(device: Any, *, memory_bytes: int | str | None = None, cache_bytes: int | str | None = None) -> None:
    """Set limits of the allocator of a device's own library: bytes in use, and bytes kept for later."""
    named = {"memory_bytes": memory_bytes, "cache_bytes": cache_bytes}
    sizes = {name: None if n is None else parse_bytes(f"limit: {name}", n) for name, n in named.items()}
    backends.device(device).backend.limit(**sizes)


@checked
def trim(keep_bytes: int | str = 0, *, device: Any = "cpu") -> int:
    """Give idle memory back to the system until at most `keep_bytes` are kept; the bytes released. A device whose own library
    allocates gives back all it keeps."""
    keep = parse_bytes("trim: keep_bytes", keep_bytes)
    there = backends.device(device)
    if there.type != "cpu":
        return there.backend.trim()
    return int(native.pool_trim(keep) if native is not None else POOL.trim(keep))


# ---- configuration


@checked_record
@dataclass(frozen=True)
class MemoryPoolConfig:
    """The configuration of the pool of CPU memory, checked. Sizes are bytes, or text such as "64 KiB" or "1GB"."""

    small_block_size: int = 64 * KIB  # blocks up to it are small ones in the statistics
    large_block_threshold: int = 16 * MIB  # requests above it get blocks by best fit, not of a size class
    limit: int | None = None  # idle bytes at most; None: 1 GiB, or an eighth of the memory this process may use
    memory_limit: int | None = None  # bytes of live blocks at most; None: no limit of their own
    mlx_integration: bool = False  # the limit of idle bytes also holds for MLX's allocator

    def __post_init__(self) -> None:
        large = parse_bytes("large_block_threshold", self.large_block_threshold, 1, 64 * GIB)
        sizes = {"large_block_threshold": large}
        sizes["small_block_size"] = parse_bytes("small_block_size", self.small_block_size, 1, 64 * GIB)
        if sizes["small_block_size"] > large:
            raise ArgumentError(
                f"small_block_size={_shown(self.small_block_size)} must be positive and at most large_block_threshold: from 1 "
                f"to {large} bytes."
            )
        if self.limit is not None:
            sizes["limit"] = parse_bytes("limit", self.limit)
        if self.memory_limit is not None:
            sizes["memory_limit"] = parse_bytes("memory_limit", self.memory_limit, 1)
        if not isinstance(self.mlx_integration, bool):
            raise ArgumentError(f"mlx_integration={_shown(self.mlx_integration)} must be True or False.")
        for name, nbytes in sizes.items():
            object.__setattr__(self, name, nbytes)

    def with_small_block_size(self, nbytes: int | str) -> MemoryPoolConfig:
        """Return the same configuration with another bound of small blocks."""
        return self._with(small_block_size=nbytes)

    def with_large_block_threshold(self, nbytes: int | str) -> MemoryPoolConfig:
        """Return the same configuration with another bound of large blocks."""
        return self._with(large_block_threshold=nbytes)

    def with_limit(self, nbytes: int | str | None) -> MemoryPoolConfig:
        """Return the same configuration with another limit of idle bytes."""
        return self._with(limit=nbytes)

    def with_memory_limit(self, nbytes: int | str | None) -> MemoryPoolConfig:
        """Return the same configuration with another limit of live bytes."""
        return self._with(memory_limit=nbytes)

    def with_mlx_integration(self, enabled: bool = True) -> MemoryPoolConfig:
        """Return the same configuration with the limit of idle bytes applied to MLX's allocator, or not."""
        return self._with(mlx_integration=enabled)

    def _with(self, **values: Any) -> MemoryPoolConfig:
        return replace(self, **values)


_default_limit: int = native.pool_stats()["limit"] if native is not None else POOL.limit
_config = MemoryPoolConfig(limit=_default_limit)
_configuring = threading.Lock()


@checked
def configuration() -> MemoryPoolConfig:
    """Return the configuration in use: `configure(configuration())` changes nothing."""
    return _config


@checked_except(
    "config", "small_block_size", "large_block_threshold", "limit", "memory_limit", "mlx_integration"
)  # sizes are text too
def configure(
    config: MemoryPoolConfig | None = None, *, small_block_size: int | str | None = None,
    large_block_threshold: int | str | None = None, limit: int | str | None = None,
    memory_limit: int | str | None = None, mlx_integration: bool | None = None,
) -> None:  # fmt: skip
    """Configure the pool: as `config` says (default: as it is), with the values that are named instead of its own.

    These are the largest small block, the smallest large block, the most idle bytes the pool keeps, and the most bytes
    of live blocks. Sizes are bytes, or text such as "64 KiB" or "1GB".
    """
    global _config
    if config is not None and not isinstance(config, MemoryPoolConfig):
        raise ArgumentError(
            f'configure: a MemoryPoolConfig is needed, given {_shown(config)}; single values by name, as in limit="1GB".'
        )
    values: dict[str, Any] = {
        "small_block_size": small_block_size, "large_block_threshold": large_block_threshold, "limit": limit,
        "memory_limit": memory_limit, "mlx_integration": mlx_integration,
    }  # fmt: skip
    with _configuring:
        base = _config if config is None else config
        new = replace(base, **{name: value for name, value in values.items() if value is not None})
        idle_limit = _default_limit if new.limit is None else new.limit
        if new.mlx_integration:  # first: it raises where there is no MLX
            backends.device("mlx").backend.limit(cache_bytes=idle_limit)
        if native is not None:
            native.pool_configure(new.small_block_size, new.large_block_threshold, idle_limit, new.memory_limit or 0)
        else:
            POOL.configure(new.small_block_size, new.large_block_threshold, idle_limit, new.memory_limit or 0)
        _config = replace(new, limit=idle_limit)


# ---- memory of a block of code


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


@checked
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


# ---- counters of all pools and caches


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


def _share(part: float, whole: float) -> float | None:
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
            "hit_rate": _share(pools["hits"], pools["hits"] + pools["misses"]), "lent_bytes": pools["current"],
            "idle_bytes": pools["pooled"], "utilization": _share(pools["current"], held),
        },
        "caches": {
            "caches": caches["instances"], "hits": caches["hits"], "misses": caches["misses"],
            "hit_rate": _share(caches["hits"], caches["hits"] + caches["misses"]), "size": caches["size"],
            "max_size": caches["max_size"], "nbytes": caches["nbytes"], "evictions": caches["evictions"],
            "expirations": caches["expirations"], "utilization": _share(caches["size"], caches["max_size"]),
        },
    }  # fmt: skip


# ---- tensors lent and returned


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
        return _share(self.pool_hits, self.pool_hits + self.pool_misses)

    @property
    def utilization(self) -> float | None:
        """Return the share of the pool's bytes that is lent out; None if it holds none."""
        return _share(self.current_memory_usage, self.current_memory_usage + self.pooled_bytes)


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
        self.max_size = _count("TensorPool: max_size", max_size, 0)
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
            raise PoolError(f"return_to_pool: a tensor that this pool lent is needed, given {_shown(tensor)}.")
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
    def hit_rate(self) -> float | None:
        """Return the share of lookups that returned a value; None before the first."""
        return _share(self.hits, self.hits + self.misses)

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
        self.max_size = _count("TensorCache: max_size", self.max_size, 1)
        self._ttl = math.inf if self.ttl is None else parse_seconds("TensorCache: ttl", self.ttl)
        self._most_bytes = None if self.max_bytes is None else parse_bytes("TensorCache: max_bytes", self.max_bytes, 1)
        self.ttl, self.max_bytes = None if self.ttl is None else self._ttl, self._most_bytes
        if not callable(self.clock):
            raise ArgumentError(f"TensorCache: clock={_shown(self.clock)} must be a function that returns seconds.")
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
            raise ArgumentError(f"get_or_compute: a function without arguments is needed, given {_shown(compute)}.")
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
            f"TensorCache: {_shown(key)} cannot be a key ({error}); use text, numbers or tuples of them."
        ) from None


# ---- many small tensors in one buffer


@checked_except("tensors")
def pack(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copy the tensors one after another into one buffer, each at a 64-byte boundary: views of it."""
    sources = list(tensors) if isinstance(tensors, Iterable) else [tensors]
    for t in sources:
        if not isinstance(t, Tensor):
            raise ArgumentError(
                f"pack: a list of tensors is needed, given {_shown(t)}; tt.asarray makes a tensor of another array."
            )
    if not sources:
        return []
    if wrong := [t for t in sources if not isinstance(t, Tensor)]:
        raise ArgumentError(f"pack: tensors are needed, given {shown(wrong[0])}; make one with tritium.asarray(…).")
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
