"""Pictures instead of piles of numbers: profiles, memory, monitoring, doctor, targets, reports.

`perf` measures, `see` shows: nothing in perf imports it.
"""

from importlib import import_module
from typing import Any

# Loaded when first used.
_NAMES = {
    "doctor.diagnosis": "Diagnosis diagnose",
    "targets.targets": "TARGETS measure_targets",
    "monitor.collector": "Collector MetricsCollector",
    "monitor.sources": "Source",
    "monitor.tensor_metrics": "TensorMetrics",
    "monitor.metrics_file": "Column Metrics load_metrics",
    "monitor.endpoint": "Endpoint",
    "monitor.alerts": "Desk",
    "monitor.monitor": "Monitor",
    "live.publisher": "publish",
    "live.viewer": "Viewer",
    "memory.file": "Memory",
    "memory.allocations": "MemoryTracker load_memory track_allocation track_deallocation track_memory track_transfer",
    "memory.leaks": "LeakError",
    "memory.pressure": "Pressure on_pressure pressure",
    "reports.report": "Report report generate_comprehensive_report generate_executive_summary generate_html_report "
    "generate_memory_analysis generate_performance_analysis",
    "reports.training": "training_page",
    "trace.timeline": "Timeline What",
    "profile.hotspots": "BottleneckAnalyzer",
    "profile.profile": "Profile load_profile merge_profiles start_session stop_session",
    "profile.attribution": "attribute attributed",
    "profile.diff": "diff",
}
_LATE = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_LATE)


def __getattr__(name: str) -> Any:
    if name in _LATE:
        value = globals()[name] = getattr(import_module(f"tritium.see.{_LATE[name]}"), name)
        return value
    raise AttributeError(f"module 'tritium.see' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
