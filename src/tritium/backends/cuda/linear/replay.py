"""Calls that launch the same kernels again, natively: with all parameters packed, the host spends little on them.

A call is run once with its launches recorded; a plan launches the compiled kernels with the same arguments, but for its
input and its result: by `cuda.launcher`, or where that is not available by what Triton compiled, with the results of
its binder cached. Memory between its kernels is shared by all plans of a thread and stream, whose launches run in
order. Nothing is replayed while a graph is captured: a graph must own what it reads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tritium.backends.cuda.gpu import capturing, make_apart
from tritium.backends.cuda.launcher import Launch, prepared

ALIGNED = 16  # bytes; kernels are compiled for memory that begins at a multiple
MOST_TOKENS = 512  # of more, kernels run for longer than the host takes to launch them
MOST_PLANS = 8  # of one owner: batches come and go


_state = threading.local()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **others: Any) -> None:
    """Launch a Triton kernel; others are its constants and options."""
    compiled = kernel[grid](*args, **others)
    recorded: list[Launch] | None = getattr(_state, "launches", None)
    if recorded is not None:
        names = kernel.arg_names[len(args) :]
        recorded.append(Launch(compiled, grid, [*args, *(others[name] for name in names)]))


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return memory for what one kernel passes to the next.

    In a recorded call it is that of the thread and stream, made apart: torch may be about to capture a graph, whose
    memory it takes back.
    """
    if getattr(_state, "launches", None) is None:
        return torch.empty(shape, dtype=dtype, device=device)
    pool: dict[Any, torch.Tensor] = _state.__dict__.setdefault("pool", {})
    key, size = (_state.stream, _state.count, dtype, device), math.prod(shape)
    _state.count += 1
    if key not in pool or pool[key].numel() < size:
        pool[key] = make_apart(lambda: torch.empty(size, dtype=dtype, device=device), device)
        if device.type == "cuda":
            pool[key].record_stream(torch.cuda.current_stream(device))
    return pool[key][:size].view(shape)


@contextmanager
def _recording(stream: int) -> Iterator[list[Launch]]:
    launches: list[Launch] = []
    _state.launches, _state.count, _state.stream = launches, 0, stream
    try:
        yield launches
    finally:
        _state.launches = None


def stream_of(device: torch.device) -> int:
    """Return the current stream of a GPU as a number."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


class Plan:
    """The launches of one call, for other inputs of the same shape and type."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
        with _recording(stream_of(x.device)) as launches:
            out = call(x)
        source, target = x.data_ptr(), out.data_ptr()
        self.first: torch.Tensor | None = out  # the caller takes it: memory of a graph must not be cached
        self.shape, self.dtype, self.device = out.shape, out.dtype, out.device
        used = [getattr(a, "base", a) for one in launches for a in one.arguments]
        addresses = {a.data_ptr(): a for a in used if isinstance(a, torch.Tensor)}
        self.works = source in addresses
        self._alive = [a for address, a in addresses.items() if self.works and address not in (source, target)]
        self.native: Any = prepared(launches, source, target, x.device.index) if self.works and x.is_cuda else None
        self._again = _Relaunch(launches, source, target) if self.works and self.native is None else None

    def run(self, x: torch.Tensor, stream: int) -> torch.Tensor:
        """Launch all kernels on another input."""
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if self._again is None:
            self.native.launch(x.data_ptr(), out.data_ptr(), stream)
        else:
            self._again(x.data_ptr(), out, stream)
        return out


class _Relaunch:
    """Launches through Triton, with the results of its binder cached."""

    def __init__(self, launches: list[Launch], source: int, target: int) -> None:
        self._steps: list[tuple[Any, list[Any], list[int], list[int], list[Any]]] = []
        for compiled, grid, arguments in launches:
            tensors = {i: a.data_ptr() for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)}
            boxes = [a for a in arguments if isinstance(getattr(a, "base", None), torch.Tensor)]
            inputs = [i for i, address in tensors.items() if address == source]
            results = [i for i, address in tensors.items() if address == target]
            mine = [b for b in boxes if b.base.data_ptr() == target]
            for box in mine:
                box.base = None
            numbers = [
                tensors.get(i, a) for i, a in enumerate(arguments)
            ]  # addresses, which a launcher takes as they are
            self._steps.append((compiled[(*grid, 1, 1)[:3]], numbers, inputs, results, mine))

    def __call__(self, source: int, out: torch.Tensor, stream: int) -> None:
        for runner, arguments, inputs, results, boxes in self._steps:
            for i in inputs:
                arguments[i] = source
            for i in results:
                arguments[i] = out.data_ptr()
            for box in boxes:
                box.base = out
            runner(*arguments, stream=stream)
            for box in boxes:
                box.base = None


class Plans:
    """The plans of one owner, by the shape and type of the input, the stream and the thread."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._call = call
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self.native: dict[
            tuple[Any, ...], tuple[Any, ...]
        ] = {}  # of those that need no Triton, as `launcher.quick` takes them

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the call's result: by a plan where there is one; the second call of a shape makes it."""
        if x.numel() > MOST_TOKENS * x.shape[-1] or not self._can_replay(x):
            return self._call(x)
        stream = stream_of(x.device)
        key = (x.shape, x.dtype, stream, threading.get_ident())
        plan = self._plans.get(key)
        if plan is not None:
            return plan.run(x, stream) if plan.works else self._call(x)
        while len(self._plans) >= MOST_PLANS:
            oldest = next(iter(self._plans))
            self._plans.pop(oldest)
            self.native.pop(oldest, None)
        self._call(x)  # first: this caches the layouts of the weights
        plan = self._plans[key] = Plan(self._call, x)
        first, plan.first = plan.first, None
        assert first is not None
        if plan.native is not None:
            self.native[key] = plan.native, tuple(plan.shape), first.stride(), plan.dtype
        return first

    @staticmethod
    def _can_replay(x: torch.Tensor) -> bool:
        here = x.is_cuda and x.is_contiguous() and x.numel() > 0 and x.data_ptr() % ALIGNED == 0
        return here and x.device.index == torch.cuda.current_device() and not capturing()
