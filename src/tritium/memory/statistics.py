"""Statistics of the pool of CPU memory and of the allocators of other devices, and the memory use of a block of code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from tritium import backends, escape, launch
from tritium.arguments import checked
from tritium.buffer import native
from tritium.memory.registry import share
from tritium.pure import POOL

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
        return share(self.hits, self.hits + self.misses)

    @property
    def utilization(self) -> float | None:
        """Return the share of all memory held (alive and idle) that is alive; None if none is held."""
        return share(self.current_block_bytes, self.current_block_bytes + self.pooled_bytes)

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

    def _repr_html_(self) -> str:
        """Return the statistics for a notebook."""
        return _html(self, "Memory pool")


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
        return share(self.hits, self.hits + self.misses)

    def _repr_html_(self) -> str:
        """Return the change for a notebook."""
        return _html(self, "Change of the memory pool")


def _html(stats: Stats | StatsChange, title: str) -> str:
    """Return statistics as a table, without those that are tables themselves."""
    values = [(f.name, getattr(stats, f.name)) for f in fields(stats)]
    rows = [[name, "" if v is None else f"{v:,}"] for name, v in values if not isinstance(v, tuple)]
    return escape.html_table(["figure", "value"], rows, title=title, right=("value",))


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
