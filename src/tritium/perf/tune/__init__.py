"""Races between configurations: stored for the runtime, explained, and measured again.

Its functions are called by the name of this package: `tt.perf.tune.explain(…)`.
"""

from tritium.batching.batches import advise_batch
from tritium.perf.tune.devices import keep_devices
from tritium.perf.tune.file import Candidate, Tuning
from tritium.perf.tune.racing import (
    Drift,
    clear,
    drift_of,
    explain,
    get_optimal_config,
    history,
    latest,
    race,
    race_batches,
    revalidate,
    run,
    tune,
    tune_batch,
)

__all__ = [
    "Candidate",
    "Drift",
    "Tuning",
    "advise_batch",
    "clear",
    "drift_of",
    "explain",
    "get_optimal_config",
    "history",
    "keep_devices",
    "latest",
    "race",
    "race_batches",
    "revalidate",
    "run",
    "tune",
    "tune_batch",
]
