"""Monitoring of operations, on and off: counts since it was enabled.

There is one monitor in a process.

    tt.enable_monitoring()
    work()
    m = tt.get_tensor_metrics()
    print(m.operation_count, m.average_operation_time_ms, m.average_gflops, m.pool_hit_rate)
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from tritium.arguments import checked
from tritium.errors import ArgumentError
from tritium.perf.suites.config import count_from
from tritium.see.monitor.collector import Collector
from tritium.see.monitor.counters import OpCount, Operations
from tritium.see.monitor.metrics_file import Metrics


@dataclass(frozen=True)
class TensorMetrics:
    """Counts since monitoring was enabled. A figure is None where nothing of its kind happened."""

    operation_count: int
    total_ns: int
    flops: int
    by_op: tuple[OpCount, ...]  # the longest in total first
    seconds: float  # monitored
    pool_hit_rate: float | None
    program_hit_rate: float | None  # calls of compiled functions with a cached program
    fusion_rate: float | None  # fusions applied of those found
    replays: int  # calls replayed natively from a cached decision
    hidden_copies: int
    dropped: int  # operations beyond the recorder's capacity: not in the counts
    cpu_share: float | None  # of one CPU, by the monitoring itself
    series: Metrics  # the figures over time
    tensor_pool_hit_rate: float | None = None  # of all TensorPools
    tensor_pool_utilization: float | None = None  # bytes lent of those they hold
    cache_hit_rate: float | None = None  # of all TensorCaches
    cache_utilization: float | None = None  # entries of those they may hold
    pool_utilization: float | None = None  # live blocks of all those the pool holds

    @property
    def average_operation_time_ms(self) -> float | None:
        return self.total_ns / self.operation_count / 1e6 if self.operation_count else None

    @property
    def average_gflops(self) -> float | None:
        """Return 1e9 floating-point operations a second, over the time of all operations."""
        return self.flops / self.total_ns if self.total_ns else None

    def export_metrics(self, to: str = "json") -> str:
        """Return the series as text: json, csv or prometheus."""
        return self.series.text(to)

    @staticmethod
    def enable_monitoring(interval: float | str = "1s", history: int = 3600) -> None:
        """Do the same as `tt.enable_monitoring`."""
        enable_monitoring(interval, history)

    @staticmethod
    def disable_monitoring() -> None:
        """Do the same as `tt.disable_monitoring`."""
        disable_monitoring()


MEMORY_RATES = (
    "tensor_pool_hit_rate", "tensor_pool_utilization", "cache_hit_rate", "cache_utilization", "pool_utilization",
)  # fmt: skip
_active: tuple[Collector, Operations] | None = None
_lock = threading.Lock()


def _reset_after_fork() -> None:
    """Reset the state in a forked process: the counts and the holder of the lock are the parent's."""
    global _lock, _active
    _lock, _active = threading.Lock(), None


os.register_at_fork(after_in_child=_reset_after_fork)


@checked
def enable_monitoring(interval: float | str = "1s", history: int = 3600, *, capacity: int = 1_000_000) -> None:
    """Count and time every operation of this process from now on, polled each interval. No effect where already on."""
    global _active
    with _lock:
        if _active is not None and _active[0].running:
            return
        source = Operations(count_from(1)(history, "history"), capacity=count_from(1)(capacity, "capacity"))
        collector = Collector(interval, history, sources=[source])
        collector.start()
        _active = collector, source


@checked
def disable_monitoring() -> None:
    """Stop counting; the counts can be read until monitoring is enabled again. No effect where already off."""
    with _lock:
        if _active is not None:
            _active[0].stop()


def monitoring() -> bool:
    """Return True if operations are being counted."""
    return _active is not None and _active[0].running


@checked
def get_tensor_metrics() -> TensorMetrics:
    """Return the counts so far."""
    with _lock:
        if _active is None:
            raise ArgumentError("get_tensor_metrics: nothing was counted yet; call tt.enable_monitoring() first.")
        collector, source = _active
        if collector.running:
            collector.flush()
    by_op = source.counted()
    return TensorMetrics(
        operation_count=sum(c.count for c in by_op),
        total_ns=sum(c.total_ns for c in by_op),
        flops=sum(c.flops for c in by_op),
        by_op=by_op,
        seconds=source.seconds,
        pool_hit_rate=source.rate("pool_hit_rate"),
        program_hit_rate=source.rate("program_hit_rate"),
        fusion_rate=source.rate("fusion_rate"),
        replays=int(source.rate("replays") or 0),
        hidden_copies=int(source.rate("hidden_copies") or 0),
        dropped=source.dropped,
        cpu_share=collector.cpu_share,
        series=collector.metrics(),
        **{name: source.rate(name) for name in MEMORY_RATES},
    )
