"""Pictures instead of piles of numbers: profiles, memory, monitoring, doctor, targets, reports.

Knows nothing of the command line. `perf` measures, `see` shows: nothing in perf imports it.
"""

from importlib import import_module
from typing import Any

# Loaded when first used.
_LATE: dict[str, str] = {
    "Diagnosis": "doctor", "diagnose": "doctor", "TARGETS": "targets", "measure_targets": "targets",
    "Collector": "collector", "MetricsCollector": "collector", "Source": "collector", "TensorMetrics": "counters",
    "Column": "metrics_file", "Metrics": "metrics_file", "load_metrics": "metrics_file",
    "Endpoint": "endpoint", "Desk": "alerts", "Monitor": "monitor",
    "Memory": "memory_file", "MemoryTracker": "allocations", "load_memory": "allocations", "track_allocation": "allocations",
    "track_deallocation": "allocations", "track_memory": "allocations", "track_transfer": "allocations",
    "LeakError": "leaks", "Pressure": "memory_pressure", "on_pressure": "memory_pressure", "pressure": "memory_pressure",
    "Report": "reports", "report": "reports", "generate_comprehensive_report": "reports", "generate_executive_summary": "reports",
    "generate_html_report": "reports", "generate_memory_analysis": "reports", "generate_performance_analysis": "reports",
    "Timeline": "timeline", "What": "timeline",
    "BottleneckAnalyzer": "hotspots", "Profile": "profile", "attribute": "attribution", "attributed": "attribution",
    "diff": "profile_diff", "load_profile": "profile", "start_session": "profile", "stop_session": "profile",
}  # fmt: skip

__all__ = sorted(_LATE)


def __getattr__(name: str) -> Any:
    if name in _LATE:
        value = globals()[name] = getattr(import_module(f"tritium.see.{_LATE[name]}"), name)
        return value
    raise AttributeError(f"module 'tritium.see' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
