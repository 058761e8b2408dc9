"""How bench/cuda.py takes times on a GPU: CUDA graphs replayed in turn, by events; and the host's own share of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from cuda_report import Samples, Taken

Call = Callable[[], Any]
LEAST_MS = 2.0  # of the device, for one value of a graph
LEAST_CALLS_MS = 20.0  # of calls: the first waits for the host, which is then ahead
WARM_MS = 40.0  # before the first value: clocks rise
LONG_US, SETTLE_MS = 20.0, 50.0  # of a call of any arm, from which on the clock settles before every value; how long
COLD_BYTES = 1 << 28  # of weights between two uses of the same: several times the second cache


@cache
def side() -> torch.cuda.Stream:
    """Where graphs are made. One for all: what kernels keep for each stream is then there before a capture."""
    return torch.cuda.Stream()


class Replay(NamedTuple):
    """Some calls as one graph."""

    graph: torch.cuda.CUDAGraph
    calls: int
    kept: Any = None  # what a replay reads must stay: a graph knows no more than its address

    def __call__(self) -> None:
        self.graph.replay()


def captured(calls: Sequence[Call]) -> Replay:
    """All calls in order as one graph. They run twice before: to compile, and to take what they keep."""
    stream, current = side(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in calls:
                call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    current.wait_stream(stream)
    return Replay(graph, len(calls), calls)


def tried(make: Callable[[], Replay]) -> Replay | str:
    """A graph, or why there is none."""
    try:
        return make()
    except Exception as error:  # a peer that refuses a size is one empty cell, not the end of the run
        torch.cuda.synchronize()
        return f"not run: {type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"


def device_ms(call: Call, times: int) -> float:
    """Milliseconds of the device for so many calls."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def in_turn(arms: Mapping[str, Replay | Call | str], rounds: int) -> dict[str, Taken]:
    """Microseconds of a call of each arm, by the device's events. Arms take turns, so that what drifts reaches all alike.

    Where a call of any arm is long, every arm runs untimed for a while before each of its values: long calls reach the limit of
    power, and the next would find the clock that they left.
    """
    found: dict[str, Taken] = {name: arm for name, arm in arms.items() if isinstance(arm, str)}
    ready = {name: arm for name, arm in arms.items() if not isinstance(arm, str)}
    calls = {name: arm.calls if isinstance(arm, Replay) else 1 for name, arm in ready.items()}
    once_ms: dict[str, float] = {}
    for name, arm in ready.items():
        device_ms(arm, max(1, math.ceil(WARM_MS / len(ready) / max(device_ms(arm, 3) / 3, 1e-3))))
        once_ms[name] = max(device_ms(arm, 3) / 3, 1e-3)
    settled = any(1e3 * once_ms[name] / calls[name] >= LONG_US for name in ready)
    values: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, arm in ready.items():
            if settled:
                device_ms(arm, math.ceil(SETTLE_MS / once_ms[name]))
            least = LEAST_MS if isinstance(arm, Replay) else LEAST_CALLS_MS
            times = max(1, math.ceil(least / once_ms[name]))
            values[name].append(1e3 * device_ms(arm, times) / (times * calls[name]))
    return found | {name: Samples(tuple(us)) for name, us in values.items()}


def host_in_turn(arms: Mapping[str, Call], rounds: int, calls: int = 200) -> dict[str, Taken]:
    """Microseconds of the host for a call of each arm. The device is idle at the start and its queue never full."""
    for call in arms.values():
        for _ in range(20):
            call()
    values: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, call in arms.items():
            torch.cuda.synchronize()
            start = perf_counter_ns()
            for _ in range(calls):
                call()
            values[name].append((perf_counter_ns() - start) / calls / 1e3)
    torch.cuda.synchronize()
    return {name: Samples(tuple(us)) for name, us in values.items()}


def copies(nbytes: int) -> int:
    """How many matrices of so many bytes make weights cold."""
    return max(1, -(-COLD_BYTES // nbytes))
