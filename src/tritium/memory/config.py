"""Settings of the pool of CPU memory and limits of the allocators of other devices."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from tritium import backends, settings
from tritium.arguments import GIB, KIB, MIB, checked, checked_except, checked_record, parse_bytes
from tritium.buffer import native
from tritium.errors import ArgumentError, shown
from tritium.pure import POOL


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
        released = there.backend.trim()
    else:
        released = int(native.pool_trim(keep) if native is not None else POOL.trim(keep))
    if (log := settings.listener("memory")) is not None:
        log.debug("trim of %s: %d bytes released, at most %d bytes stay idle", there, released, keep)
    return released


# ---- configuration of the pool


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
                f"small_block_size={shown(self.small_block_size)} must be positive and at most large_block_threshold: from 1 "
                f"to {large} bytes."
            )
        if self.limit is not None:
            sizes["limit"] = parse_bytes("limit", self.limit)
        if self.memory_limit is not None:
            sizes["memory_limit"] = parse_bytes("memory_limit", self.memory_limit, 1)
        if not isinstance(self.mlx_integration, bool):
            raise ArgumentError(f"mlx_integration={shown(self.mlx_integration)} must be True or False.")
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
            f'configure: a MemoryPoolConfig is needed, given {shown(config)}; single values by name, as in limit="1GB".'
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
