"""The memory API: statistics and settings of the pool, a tensor pool, a tensor cache, packing.

The pool itself is below, in buffer.
"""

from tritium.arguments import BYTES, GIB, KIB, MIB, MOST_BYTES, SECONDS, TIB, parse_bytes, parse_seconds
from tritium.buffer import ALIGNMENT
from tritium.memory.cache import CacheStats, TensorCache
from tritium.memory.config import MemoryPoolConfig, configuration, configure, limit, trim
from tritium.memory.packing import pack
from tritium.memory.pool import PoolStats, TensorPool
from tritium.memory.registry import CACHES, POOLS, shared_stats
from tritium.memory.statistics import (
    STATM,
    TIERS,
    ClassStats,
    DeviceStats,
    Stats,
    StatsChange,
    TierStats,
    Usage,
    device_stats,
    reset,
    resident_bytes,
    stats,
    usage,
)

__all__ = [
    "ALIGNMENT", "BYTES", "CACHES", "GIB", "KIB", "MIB", "MOST_BYTES", "POOLS", "SECONDS", "STATM", "TIB", "TIERS", "CacheStats",
    "ClassStats", "DeviceStats", "MemoryPoolConfig", "PoolStats", "Stats", "StatsChange", "TensorCache", "TensorPool",
    "TierStats", "Usage", "configuration", "configure", "device_stats", "limit", "pack", "parse_bytes",
    "parse_seconds", "reset", "resident_bytes", "shared_stats", "stats", "trim", "usage",
]  # fmt: skip
