"""The change between two results of one process each, as most other tools write them.

The values of one process say how well its own median is known, and nothing of how far the next process would be from it:
memory is placed elsewhere, the clock has changed. So a spread between processes is assumed, the same that two runs
without canaries get, and a note says so.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from tritium.perf.gate.judge import Estimate, levels
from tritium.perf.gate.separate import UNKNOWN
from tritium.perf.gate.verdict import Rules
from tritium.perf.records.run import Series

OF_MEDIAN = math.sqrt(math.pi / 2)  # sd of a median relative to that of a mean
QUARTILES = 1.349  # distance of the quartiles of a normal distribution, in sd
ASSUMED = (
    f"files of one process do not tell how far processes differ: a standard deviation of {100 * UNKNOWN:g} % between the two runs "
    "is assumed"
)


def has_one_process(before: Series, after: Series) -> bool:
    """Return True if a side has no second process that would tell the spread between them."""
    return min(len(before.values), len(after.values)) < 2


def samples(series: Series) -> int:
    """Return the number of rounds with values; of a summary, the number of samples it stands for."""
    counted = sum(1 for process in series.values for batches in process if batches)
    stated = series.details.get("samples")
    return max(counted, stated) if isinstance(stated, int) else counted


def median_sd(series: Series) -> float:
    """Return the standard deviation of a series' median relative to it, as far as its values or its summary tell."""
    flat, n = np.asarray(series.flat), max(samples(series), 1)
    if len(flat) > 1:
        low, high = np.quantile(flat, (0.25, 0.75))
        spread = (high - low) / QUARTILES
    else:
        stated = series.details.get("stdev")
        spread = float(stated) if isinstance(stated, int | float) else 0.0
    middle = series.median or 0.0
    return OF_MEDIAN * float(spread) / middle / math.sqrt(n) if middle > 0 else 0.0


def estimate(before: Series, after: Series, rules: Rules, tests: int) -> tuple[Estimate, dict[str, Any]]:
    """Return how far the median moved, with what the values know and what is assumed; both have a median above 0."""
    old, new = before.median or math.nan, after.median or math.nan
    log, sd = math.log(new / old), math.hypot(median_sd(before), median_sd(after), UNKNOWN)
    normal = NormalDist()
    wide = {c: normal.inv_cdf((1 + c) / 2) * sd for c in levels(rules, tests)}
    p = 2 * normal.cdf(-abs(log) / sd)
    figures = {"raw_ratio": new / old, "old": old, "new": new}
    return Estimate(log, {c: (log - w, log + w) for c, w in wide.items()}, p, sd, 1, UNKNOWN), figures
