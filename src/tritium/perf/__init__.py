"""Numbers one can trust: cases, meters, interleaved measurement, statistics, verdicts, history.

Knows nothing of the command line. `tt.perf.measure` never prints; nothing here invents a number.
"""

from importlib import import_module
from typing import Any

# Loaded when first used: a worker process imports only what it needs.
_LATE = {
    "Arm": "case", "Case": "case", "Made": "case", "Recipe": "case", "UnsupportedError": "case",
    "Context": "context", "PLANS": "run", "Plan": "run", "Results": "run", "Run": "run", "Series": "run", "Work": "context",
    "Environment": "environment", "this_environment": "environment",
    "measure": "measuring", "benchmark": "registry", "cases": "rows", "traced": "rows",
    "Rules": "verdict", "Verdict": "verdict", "compare_paired": "compare", "compare_stored": "compare",
    "create_baseline": "regression", "regression_check": "regression", "run_regression_tests": "regression",
    "export_metrics": "exports", "export_results": "pages", "load": "imports",
    "Crossover": "crossover", "crossovers": "crossover",
    "BenchmarkConfig": "config", "EnergyConfig": "config", "RegressionConfig": "config",
    "SUITES": "suites", "compare_devices": "suites", "run_comparison": "suites", "device_selection_guide": "selection", "page": "pages",
    **dict.fromkeys((
        "assert_performance", "benchmark_contiguous", "benchmark_device_transfer", "benchmark_dispatch", "benchmark_element_wise",
        "benchmark_elementwise", "benchmark_matmul", "benchmark_matmul_with_size", "benchmark_memory_allocation",
        "benchmark_quantization", "benchmark_reduction", "benchmark_strided", "benchmark_with_dtype", "calculate_gflops",
        "matmul", "timed",
    ), "quick"),
    "advise_batch": "tune", "get_optimal_config": "tune",
}  # fmt: skip

_MODULES = ("tune",)  # whose functions are called by their module: tt.perf.tune.explain(…)

__all__ = sorted(_LATE)


def __getattr__(name: str) -> Any:
    if name in _LATE:
        value = globals()[name] = getattr(import_module(f"tritium.perf.{_LATE[name]}"), name)
        return value
    if name in _MODULES:
        return import_module(f"tritium.perf.{name}")
    raise AttributeError(f"module 'tritium.perf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE, *_MODULES})
