"""Monitoring of operations, on and off: what was counted since it began.

There is one monitoring in a process.

    tt.enable_monitoring()
    work()
    m = tt.get_tensor_metrics()
    print(m.operation_count, m.average_operation_time_ms, m.average_gflops, m.pool_hit_rate)
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from tritium.errors import ArgumentError
from tritium.perf.suites.config import count_from
from tritium.see.monitor.collector import Collector
from tritium.see.monitor.counters import OpCount, Operations
from tritium.see.monitor.metrics_file import Metrics


@dataclass(frozen=True)
class TensorMetrics:
    """What was counted since monitoring began. A figure is None where nothing of its kind happened."""

    operation_count: int
    total_ns: int
    flops: int
    by_op: tuple[OpCount, ...]  # the longest in total first
    seconds: float  # monitored
    pool_hit_rate: float | None
    program_hit_rate: float | None  # calls of compiled functions that found their program
    fusion_rate: float | None  # fusions applied of those found
    replays: int  # calls carried out again natively, as decided before
    hidden_copies: int
    dropped: int  # operations beyond the recorder's capacity: not in the counts
    cpu_share: float | None  # of one CPU, by the monitoring itself
    series: Metrics  # all of it over time

    @property
    def average_operation_time_ms(self) -> float | None:
        return self.total_ns / self.operation_count / 1e6 if self.operation_count else None

    @property
    def average_gflops(self) -> float | None:
        """1e9 operations of arithmetic a second, over the time of all operations."""
        return self.flops / self.total_ns if self.total_ns else None

    def export_metrics(self, to: str = "json") -> str:
        """The series as text: json, csv or prometheus."""
        return self.series.text(to)

    @staticmethod
    def enable_monitoring(interval: float | str = "1s", history: int = 3600) -> None:
        """As `tt.enable_monitoring`."""
        enable_monitoring(interval, history)

    @staticmethod
    def disable_monitoring() -> None:
        """As `tt.disable_monitoring`."""
        disable_monitoring()


_now: tuple[Collector, Operations] | None = None
_turn = threading.Lock()


def _begin_anew() -> None:
    """In a forked process: what was counted is the parent's, and so is whoever holds the lock."""
    global _turn, _now
    _turn, _now = threading.Lock(), None


os.register_at_fork(after_in_child=_begin_anew)


def enable_monitoring(interval: float | str = "1s", history: int = 3600, *, capacity: int = 1_000_000) -> None:
    """Count and time every operation of this process from now on; a look each interval. On already: goes on as it is."""
    global _now
    with _turn:
        if _now is not None and _now[0].running:
            return
        source = Operations(count_from(1)(history, "history"), capacity=count_from(1)(capacity, "capacity"))
        collector = Collector(interval, history, sources=[source])
        collector.start()
        _now = collector, source


def disable_monitoring() -> None:
    """Count no more; what was counted can be read until monitoring begins anew. Off already: nothing to do."""
    with _turn:
        if _now is not None:
            _now[0].stop()


def monitoring() -> bool:
    """Whether operations are counted now."""
    return _now is not None and _now[0].running


def get_tensor_metrics() -> TensorMetrics:
    """What was counted until now."""
    with _turn:
        if _now is None:
            raise ArgumentError("get_tensor_metrics: nothing was counted yet; call tt.enable_monitoring() first.")
        collector, source = _now
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
    )
