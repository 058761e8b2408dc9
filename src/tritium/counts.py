"""stats: a snapshot of every counter of the runtime."""

from __future__ import annotations

import time
from typing import Any

from tritium import launch, memory
from tritium.arguments import checked
from tritium.compiler import compile as compiled, program


def share(part: float, whole: float) -> float | None:
    """Return a share; None of nothing."""
    return part / whole if whole else None


POOL = (
    "hits", "misses", "hit_rate", "current_bytes", "peak_bytes", "pooled_bytes", "utilization", "utilization_percent",
    "resident_bytes",
)  # fmt: skip


@checked
def stats() -> dict[str, dict[str, Any]]:
    """Return counts since the start of the process (a pool's since its reset): pool, TensorPools, TensorCaches, copies,
    transfers, programs, fusions.

    Rates are between 0 and 1, or None where nothing of their kind happened. Subtract two snapshots for the rates between
    them.
    """
    pool = memory.stats()
    known = [c.cache_info() for c in list(compiled.instances)]
    hits, misses = (sum(getattr(c, name) for c in known) for name in ("hits", "misses"))
    counters = program.counters
    return {
        "clock": {"monotonic_s": time.monotonic()},
        "pool": {name: getattr(pool, name) for name in POOL},
        **memory.shared_stats(),
        "copies": {"hidden": launch.counters.hidden_copies, "hidden_bytes": launch.counters.hidden_copy_bytes},
        "transfers": {
            "count": launch.counters.transfers,
            "bytes": launch.counters.transfer_bytes,
            "ns": launch.counters.transfer_ns,
        },
        "programs": {
            "made": counters.programs,
            "kept": sum(c.programs for c in known),
            "hits": hits,
            "misses": misses,
            "hit_rate": share(hits, hits + misses),
        },
        "fusion": {
            "found": counters.fusions_found,
            "applied": counters.fusions_applied,
            "success_rate": share(counters.fusions_applied, counters.fusions_found),
        },
    }
