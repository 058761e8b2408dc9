"""Ternary products of a GPU for a race: which cases and candidates, cold weights, graphs of many launches, every result looked at.

Knows nothing of how a race is run or kept. Torch and the kernels are imported when there is something to race.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tritium import io
from tritium.backends import Absent, probes
from tritium.backends.cuda.linear import choice as cuda_tuned
from tritium.backends.cuda.linear.choice import Case, Choice
from tritium.errors import TuneError, install_command
from tritium.io.reader import map_file
from tritium.machine import tuned
from tritium.models import prepacked
from tritium.models.load import read_config

Size = tuple[int, int]  # rows and columns of weights

SIZES: tuple[Size, ...] = ((3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912))  # layers of the reference model
BATCHES, QUICK_BATCHES = (1, 8, 32, 128, 512), (1, 32)
MOST, QUICK_MOST = 20, 9  # candidates of a case
COLD = 2  # times the second cache: what a graph touches before it comes to the same weights again
LAUNCHES = 8  # of a graph, at least
SAMPLE_S = 0.002
COMPILE_S = 90.0  # for all candidates of a race
JOBS = min(os.cpu_count() or 1, 8)  # that compile at a time


# ---- what is raced


def absence() -> str:
    """Why there is nothing to race; empty: there is."""
    found = probes.cuda_units()
    if isinstance(found, Absent):
        return f"there is no GPU of CUDA: {found.why}"
    if find_spec("triton") is None:
        return f"Triton is not installed; {install_command('cuda')}"
    return "" if gpu() else "GPUs of several names look alike here; show one with CUDA_VISIBLE_DEVICES"


def _place() -> Any:
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def _asked() -> tuple[tuple[int, int], int]:
    """(capability, processors), as a choice is asked for."""
    from tritium.backends.cuda.gpu import gpu as gpu_of

    found = gpu_of(_place())
    return found.capability if found.has_gluon else (0, 0), found.processors


def gpu() -> str:
    """The GPU, with the versions of what makes its kernels: what was tuned belongs to these."""
    return tuned.gpu(*_asked())


def cases(quick: bool, sizes: Sequence[Size] = (), batches: Sequence[int] = ()) -> list[Case]:
    """The sizes and batches given, else those of the reference model and, unless it is to be quick, all that were tuned before."""
    some = batches or (QUICK_BATCHES if quick else BATCHES)
    found = [Case(n, k, m) for n, k in sizes or SIZES for m in some]
    before = () if quick or sizes or batches else cuda_tuned.kept_cases(gpu())
    return list(dict.fromkeys([*found, *before]))


def sizes_of(path: str | Path) -> tuple[Size, ...]:
    """The ternary layers of a model as the runtime joins them; its weights are not read."""
    path = Path(path)
    packed = path.is_file() and prepacked.is_prepacked(map_file(path))
    c = prepacked.Prepacked(path).config if packed else read_config(io.open(path))
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return tuple(
        dict.fromkeys(
            [
                (q + 2 * kv, c.hidden_size),
                (c.hidden_size, q),
                (2 * c.intermediate_size, c.hidden_size),
                (c.hidden_size, c.intermediate_size),
            ]
        )
    )


def candidates(case: Case, quick: bool) -> tuple[str, ...]:
    """As `str` writes them, the shipped one first."""
    return tuple(map(str, cuda_tuned.shortlist(case, *_asked(), QUICK_MOST if quick else MOST)))


# ---- how it is measured


class Replay:
    """Some calls as one CUDA graph, and what each of them gives. A graph names memory by its address, so the calls, and with
    them all they hold, stay for as long as it."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        import torch

        self._calls = calls
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for call in calls:  # what they keep must be there before
                call()
        stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self.results = [call() for call in calls]
        current.wait_stream(stream)

    def seconds(self, times: int) -> float:
        """Of the device, for so many replays."""
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(times):
            self._graph.replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3


class Contest:
    """One case on a GPU, called with a candidate: seconds of one product. Results of other bits than those of the integers
    make it fail, whichever launch of a graph gave them."""

    def __init__(self, case: Case, names: Sequence[str]) -> None:
        import torch

        from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights

        torch.cuda.empty_cache()
        place = _place()
        random = torch.Generator(place).manual_seed(0)
        x = torch.randn((case.m, case.k), device=place, generator=random)
        self._tokens = {tiled: cuda_ternary.quantise(x, tiled=tiled) for tiled in (False, True)}
        self._scale = torch.full((), 0.02, device=place)
        q, of_tokens = self._tokens[False].q[:, : case.k].double(), self._tokens[False].scale
        touched = case.n * cuda_tuned.wide(case.k) // 4 + case.n * case.m * 4
        self._weights, self._right = [], []
        for _ in range(max(LAUNCHES, math.ceil(COLD * _cache_bytes() / touched))):
            codes = torch.randint(-1, 2, (case.n, case.k), dtype=torch.int8, device=place, generator=random)
            self._weights.append(cuda_weights.ternary_of(codes))
            self._right.append((q @ codes.double().t()).float() * (of_tokens * self._scale)[:, None])
        self._ready: dict[str, tuple[Replay, int]] = {}
        self._choices = {name: c for name in names if (c := cuda_tuned.parsed(name)) is not None}
        self._refused = self._compiled()

    def _product(self, c: Choice, at: int) -> Any:
        from tritium.backends.cuda.linear import ternary as cuda_ternary

        tokens = self._tokens[c.kernel == "fragments"]
        return cuda_ternary.product(tokens, self._weights[at], self._scale, choice=c)

    def _compiled(self) -> dict[str, str]:
        """The kernels of all candidates, several at a time; of those that are not there, why."""

        def once(name: str) -> str:
            try:
                self._product(self._choices[name], 0)
            except Exception as error:  # one that cannot be built has failed, the others race
                return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".strip(": ")
            return ""

        first, *rest = self._choices  # what all share is made by the first
        refused = {first: once(first)}
        with ThreadPoolExecutor(JOBS) as pool:
            jobs = {name: pool.submit(once, name) for name in rest}
            wait(jobs.values(), COMPILE_S)
            pool.shutdown(cancel_futures=True)
        late = f"it was not compiled within {COMPILE_S:g} s"
        refused |= {name: late if job.cancelled() else job.result() for name, job in jobs.items()}
        return {name: why for name, why in refused.items() if why}

    def __call__(self, name: str) -> float:
        if name in self._refused:
            raise TuneError(self._refused[name])
        if name not in self._ready:
            self._ready[name] = self._proved(self._choices[name])
        replay, times = self._ready[name]
        return self._looked_at(replay, times) / times / len(self._weights)

    def _proved(self, c: Choice) -> tuple[Replay, int]:
        """A graph over all weights, every result of it right; replays of a sample."""
        replay = Replay([lambda at=at: self._product(c, at) for at in range(len(self._weights))])  # type: ignore[misc]
        return replay, max(1, math.ceil(SAMPLE_S / self._looked_at(replay, 1)))

    def _looked_at(self, replay: Replay, times: int) -> float:
        """The seconds of some replays; before them results are filled with NaN, after them compared bit by bit."""
        import torch

        for y in replay.results:
            y.fill_(math.nan)
        took = replay.seconds(times)
        bits = torch.int32
        wrong = torch.stack(
            [(y.view(bits) != right.view(bits)).sum() for y, right in zip(replay.results, self._right, strict=True)]
        )
        if count := int(wrong.sum()):
            total = sum(y.numel() for y in replay.results)
            launches = int((wrong > 0).sum())
            raise TuneError(f"{count} of {total} results have other bits, in {launches} of {len(self._right)} launches")
        return took


def _cache_bytes() -> int:
    """Of the cache that all multiprocessors share."""
    import torch

    return int(torch.cuda.get_device_properties(_place()).L2_cache_size)
