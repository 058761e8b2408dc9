"""Ternary products on a GPU for a race: cases and candidates, cold weights, graphs of many launches, every result checked.

Torch and the kernels are imported when there is something to race.
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
from tritium.io.reader import read_start
from tritium.machine import tuned
from tritium.models import prepacked
from tritium.models.load import read_config

Size = tuple[int, int]  # rows and columns of weights

SIZES: tuple[Size, ...] = ((3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912))  # layers of the reference model
BATCHES, QUICK_BATCHES = (1, 8, 32, 128, 512), (1, 32)
MOST, QUICK_MOST = 20, 9  # candidates of a case
COLD = 2  # times the L2 cache: what a graph touches before it reaches the same weights again
LAUNCHES = 8  # of a graph, at least
SAMPLE_S = 0.002
COMPILE_S = 90.0  # for all candidates of a race
JOBS = min(os.cpu_count() or 1, 8)  # compiled in parallel


# ---- cases and candidates


def absence() -> str:
    """Return why there is nothing to race, or ""."""
    units = probes.cuda_units()
    if isinstance(units, Absent):
        return f"there is no GPU of CUDA: {units.why}"
    if find_spec("triton") is None:
        return f"Triton is not installed; {install_command('cuda')}"
    return (
        "" if gpu() else "GPUs with different names have the same properties here; select one with CUDA_VISIBLE_DEVICES"
    )


def _torch_device() -> Any:
    """Return the current CUDA device of Torch."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def _gpu_properties() -> tuple[tuple[int, int], int]:
    """Return (capability, processors) as the choice of a kernel reads them."""
    from tritium.backends.cuda.gpu import gpu as gpu_of

    properties = gpu_of(_torch_device())
    return properties.capability if properties.has_gluon else (0, 0), properties.processors


def gpu() -> str:
    """Return the GPU with the versions of its compilers: tuning is valid for these only."""
    return tuned.gpu(*_gpu_properties())


def cases(quick: bool, sizes: Sequence[Size] = (), batches: Sequence[int] = ()) -> list[Case]:
    """Return the cases of these sizes and batches; by default the reference model's and, unless quick, all tuned before."""
    counts = batches or (QUICK_BATCHES if quick else BATCHES)
    requested = [Case(n, k, m) for n, k in sizes or SIZES for m in counts]
    before = () if quick or sizes or batches else cuda_tuned.tuned_cases(gpu())
    return list(dict.fromkeys([*requested, *before]))


def sizes_of(path: str | Path) -> tuple[Size, ...]:
    """Return the sizes of a model's ternary layers as the runtime fuses them; its weights are not read."""
    path = Path(path)
    packed = path.is_file() and prepacked.is_prepacked(read_start(path, 64))
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
    """Return the candidates as text, the shipped one first."""
    return tuple(map(str, cuda_tuned.shortlist(case, *_gpu_properties(), QUICK_MOST if quick else MOST)))


# ---- measurement


class Replay:
    """Several calls as one CUDA graph, and the result of each.

    A graph refers to memory by address, so the calls, and everything they hold, stay alive as long as it does.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        import torch

        self._calls = calls
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for call in calls:  # what they cache must exist before the capture
                call()
        stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self.results = [call() for call in calls]
        current.wait_stream(stream)

    def seconds(self, times: int) -> float:
        """Return the device time of so many replays."""
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(times):
            self._graph.replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3


class Contest:
    """One case on a GPU; called with a candidate it returns the seconds of one product.

    A result with other bits than the integer product fails the candidate, whichever launch of a graph returned it.
    """

    def __init__(self, case: Case, names: Sequence[str]) -> None:
        import torch

        from tritium.backends.cuda.linear import ternary as cuda_ternary, weights as cuda_weights

        torch.cuda.empty_cache()
        device = _torch_device()
        random = torch.Generator(device).manual_seed(0)
        x = torch.randn((case.m, case.k), device=device, generator=random)
        self._tokens = {tiled: cuda_ternary.quantise(x, tiled=tiled) for tiled in (False, True)}
        self._scale = torch.full((), 0.02, device=device)
        q, of_tokens = self._tokens[False].q[:, : case.k].double(), self._tokens[False].scale
        touched = case.n * cuda_tuned.wide(case.k) // 4 + case.n * case.m * 4
        self._weights, self._right = [], []
        for _ in range(max(LAUNCHES, math.ceil(COLD * _cache_bytes() / touched))):
            codes = torch.randint(-1, 2, (case.n, case.k), dtype=torch.int8, device=device, generator=random)
            self._weights.append(cuda_weights.ternary_of(codes))
            self._right.append((q @ codes.double().t()).float() * (of_tokens * self._scale)[:, None])
        self._ready: dict[str, tuple[Replay, int]] = {}
        self._choices = {name: c for name in names if (c := cuda_tuned.parsed(name)) is not None}
        self._refused = self._compiled()

    def _product(self, c: Choice, index: int) -> Any:
        """Return the product with one of the weights."""
        from tritium.backends.cuda.linear import ternary as cuda_ternary

        tokens = self._tokens[c.kernel == "fragments"]
        return cuda_ternary.product(tokens, self._weights[index], self._scale, choice=c)

    def _compiled(self) -> dict[str, str]:
        """Compile the kernels of all candidates, several at a time; return why some are missing."""

        def once(name: str) -> str:
            try:
                self._product(self._choices[name], 0)
            except Exception as error:  # a candidate that does not compile has failed; the others race
                return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".strip(": ")
            return ""

        first, *rest = self._choices  # the first builds what all share
        refused = {first: once(first)}
        with ThreadPoolExecutor(JOBS) as pool:
            jobs = {name: pool.submit(once, name) for name in rest}
            wait(jobs.values(), COMPILE_S)
            pool.shutdown(cancel_futures=True)
        late = f"it was not compiled within {COMPILE_S:g} s"
        refused |= {name: late if job.cancelled() else job.result() for name, job in jobs.items()}
        return {name: reason for name, reason in refused.items() if reason}

    def __call__(self, name: str) -> float:
        if name in self._refused:
            raise TuneError(self._refused[name])
        if name not in self._ready:
            self._ready[name] = self._proved(self._choices[name])
        replay, times = self._ready[name]
        return self._looked_at(replay, times) / times / len(self._weights)

    def _proved(self, c: Choice) -> tuple[Replay, int]:
        """Return a graph over all weights with every result verified, and the number of replays in a sample."""
        replay = Replay([lambda index=index: self._product(c, index) for index in range(len(self._weights))])  # type: ignore[misc]
        return replay, max(1, math.ceil(SAMPLE_S / self._looked_at(replay, 1)))

    def _looked_at(self, replay: Replay, times: int) -> float:
        """Return the seconds of some replays; results are filled with NaN before and compared bit by bit after."""
        import torch

        for y in replay.results:
            y.fill_(math.nan)
        seconds = replay.seconds(times)
        bits = torch.int32
        mismatches = torch.stack(
            [(y.view(bits) != right.view(bits)).sum() for y, right in zip(replay.results, self._right, strict=True)]
        )
        if count := int(mismatches.sum()):
            total = sum(y.numel() for y in replay.results)
            launches = int((mismatches > 0).sum())
            raise TuneError(
                f"{count} of {total} results have different bits, in {launches} of {len(self._right)} launches"
            )
        return seconds


def _cache_bytes() -> int:
    """Return the size of the L2 cache."""
    import torch

    return int(torch.cuda.get_device_properties(_torch_device()).L2_cache_size)
