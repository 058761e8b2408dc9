"""What the benchmarks share: a timed loop, the CPUs a run is confined to, and the machine in words."""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat, zip_longest
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from tritium.backends.cpu.device import processor

Call = Callable[[], Any]
SETTLE_NS = 2_000_000
REST_S = 0.04  # OpenBLAS keeps its threads spinning for some 30 ms after a call, OpenMP for a few
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def timed(call: Call, loops: int, clock: Callable[[], int] = perf_counter_ns) -> int:
    start = clock()
    for _ in repeat(None, loops):
        call()
    return clock() - start


def in_turns(names: Iterable[str], pairs: int) -> Iterator[str]:
    """Yield names in pairs of rounds: in a random order, the same in every run, and in its reverse."""
    shuffle, names = random.Random(0).shuffle, list(names)
    for _ in range(pairs):
        order = list(names)
        shuffle(order)
        yield from order + order[::-1]


def cpus() -> list[int]:
    """The CPUs this process may use, one of each core before their siblings; none where that cannot be told."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), []).append(cpu)
    return [cpu for group in zip_longest(*cores.values()) for cpu in group if cpu is not None]


def machine() -> str:
    return f"{processor()}, {os.cpu_count()} CPUs, {platform.system()}"
