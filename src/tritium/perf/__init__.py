"""Numbers one can trust: cases, meters, interleaved measurement, statistics, verdicts, history.

`tt.perf.measure` never prints; nothing here invents a number.
"""

from importlib import import_module
from typing import Any

# Loaded when first used: a worker process imports only what it needs.
_NAMES = {
    "records.case": "Arm Case Context Made Recipe UnsupportedError Work",
    "records.run": "PLANS Plan Results Run Series",
    "records.environment": "Environment this_environment",
    "engine.measuring": "measure",
    "work.registry": "benchmark",
    "work.rows": "cases traced",
    "gate.verdict": "Rules Verdict",
    "gate.compare": "compare_paired compare_stored",
    "gate.regression": "create_baseline regression_check run_regression_tests",
    "formats.exports": "export_metrics",
    "tables.pages": "page",
    "formats.imports": "load",
    "tables.crossover": "Crossover crossovers",
    "suites.config": "BenchmarkConfig EnergyConfig RegressionConfig",
    "suites.suites": "SUITES compare_devices run_comparison",
    "tables.selection": "device_selection_guide",
    "suites.quick": "assert_performance benchmark_device_transfer benchmark_dispatch benchmark_elementwise "
    "benchmark_matmul_with_size benchmark_memory_allocation benchmark_quantization benchmark_reduction benchmark_strided "
    "benchmark_with_dtype calculate_gflops matmul timed",
    "aliases": "benchmark_contiguous benchmark_element_wise benchmark_matmul",
    "tune.racing": "advise_batch get_optimal_config",
}
_LATE = {name: f"tritium.perf.{module}" for module, names in _NAMES.items() for name in names.split()}
# One of its formats is the report of tritium.see, which is above this package: known here by its name alone.
_LATE["export_results"] = "tritium.see.reports.export"

_MODULES = ("tune",)  # whose functions are called by their module: tt.perf.tune.explain(…)

__all__ = sorted(_LATE)


def __getattr__(name: str) -> Any:
    if name in _LATE:
        value = globals()[name] = getattr(import_module(_LATE[name]), name)
        return value
    if name in _MODULES:
        return import_module(f"tritium.perf.{name}")
    raise AttributeError(f"module 'tritium.perf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE, *_MODULES})
