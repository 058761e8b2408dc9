"""Random sizes of products: what bench/cuda.py --random-shapes and bench/cuda_sweep.py measure."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

COLUMNS = 64  # n and k are multiples of it
LEAST, MOST = 1024, 32768
CLASSES = (1, 1), (2, 31), (32, 512), (513, 2048), (2049, 8192)  # of tokens; an equal number of draws from each


class Draw(NamedTuple):
    """One product: n rows, k columns, m tokens."""

    n: int
    k: int
    m: int

    @property
    def group(self) -> tuple[int, int]:
        """The class of its tokens."""
        return next(c for c in CLASSES if c[0] <= self.m <= c[1])


def _log_uniform(random: np.random.Generator, low: int, high: int) -> int:
    """Return an integer from low to high, log-uniform."""
    return min(int(math.exp(random.uniform(math.log(low), math.log(high + 1)))), high)


def draw_size(random: np.random.Generator) -> int:
    """Return a multiple of 64 from 1,024 to 32,768, log-uniform."""
    return _log_uniform(random, LEAST // COLUMNS, MOST // COLUMNS) * COLUMNS


def draws(count: int, seed: int) -> list[Draw]:
    """Return so many products: n, k and the tokens within their class log-uniform, classes in turn."""
    random = np.random.default_rng(seed)
    return [
        Draw(draw_size(random), draw_size(random), _log_uniform(random, *CLASSES[i % len(CLASSES)]))
        for i in range(count)
    ]
