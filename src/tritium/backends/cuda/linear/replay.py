"""Calls that launch the same kernels again: with the results of Triton's binder kept, the host spends a third of the time on them.

Knows nothing of which kernels there are. A call is run once with its launches recorded; a plan launches the compiled kernels with the
same arguments, but for its input and its result. Memory between its kernels is shared by all plans of a thread and stream, whose
launches follow each other. Nothing is replayed while a graph is captured: what a graph reads must be its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tritium.backends.cuda.gpu import capturing

ALIGNED = 16  # bytes; kernels are compiled for memory that begins at a multiple
MOST_TOKENS = 512  # of more, kernels run for longer than the host takes to launch them
MOST_PLANS = 8  # of one owner: batches come and go


class Launch(NamedTuple):
    """One launch: the compiled kernel, its grid and all of its arguments in order."""

    compiled: Any
    grid: tuple[int, ...]
    arguments: list[Any]


_state = threading.local()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **others: Any) -> None:
    """Launch a kernel of Triton's; others are its constants and options."""
    compiled = kernel[grid](*args, **others)
    recorded: list[Launch] | None = getattr(_state, "launches", None)
    if recorded is not None:
        names = kernel.arg_names[len(args) :]
        recorded.append(Launch(compiled, grid, [*args, *(others[name] for name in names)]))


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return memory for what one kernel hands to the next; in a recorded call it is that of the thread and stream."""
    if getattr(_state, "launches", None) is None:
        return torch.empty(shape, dtype=dtype, device=device)
    pool: dict[Any, torch.Tensor] = _state.__dict__.setdefault("pool", {})
    key, size = (_state.stream, _state.taken, dtype, device), math.prod(shape)
    _state.taken += 1
    if key not in pool or pool[key].numel() < size:
        pool[key] = torch.empty(size, dtype=dtype, device=device)
    return pool[key][:size].view(shape)


@contextmanager
def _recording(stream: int) -> Iterator[list[Launch]]:
    launches: list[Launch] = []
    _state.launches, _state.taken, _state.stream = launches, 0, stream
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
            self.first = out = call(x)
        source, target = x.data_ptr(), out.data_ptr()
        self.width, self.dtype = out.shape[-1], out.dtype
        self._steps: list[tuple[Any, list[Any], list[int], list[int], list[Any]]] = []
        self._alive = [a for one in launches for a in one.arguments]
        reads = 0
        for compiled, grid, arguments in launches:
            tensors = {i: a.data_ptr() for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)}
            boxes = [a for a in arguments if isinstance(getattr(a, "base", None), torch.Tensor)]
            inputs = [i for i, address in tensors.items() if address == source]
            results = [i for i, address in tensors.items() if address == target]
            runner = compiled[(*grid, 1, 1)[:3]]
            mine = [b for b in boxes if b.base.data_ptr() == target]
            numbers = [
                tensors.get(i, a) for i, a in enumerate(arguments)
            ]  # addresses, which a launcher takes as they are
            self._steps.append((runner, numbers, inputs, results, mine))
            reads += len(inputs)
        self.works = reads > 0 and bool(launches)

    def run(self, x: torch.Tensor, stream: int) -> torch.Tensor:
        """Launch all kernels on another input."""
        out = torch.empty((*x.shape[:-1], self.width), dtype=self.dtype, device=x.device)
        source, target = x.data_ptr(), out.data_ptr()
        for runner, arguments, inputs, results, boxes in self._steps:
            for i in inputs:
                arguments[i] = source
            for i in results:
                arguments[i] = target
            for box in boxes:
                box.base = out
            runner(*arguments, stream=stream)
        return out


class Plans:
    """The plans of one owner, by the shape and type of the input, the stream and the thread."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._call = call
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the call's result: by a plan where there is one, which the second call of a shape makes."""
        if x.numel() > MOST_TOKENS * x.shape[-1] or not self._can_replay(x):
            return self._call(x)
        stream = stream_of(x.device)
        key = (x.shape, x.dtype, stream, threading.get_ident())
        plan = self._plans.get(key)
        if plan is not None:
            return plan.run(x, stream) if plan.works else self._call(x)
        while len(self._plans) >= MOST_PLANS:
            self._plans.pop(next(iter(self._plans)))
        self._call(x)  # first: what is kept with the weights is made there
        plan = self._plans[key] = Plan(self._call, x)
        return plan.first.clone()

    @staticmethod
    def _can_replay(x: torch.Tensor) -> bool:
        here = x.is_cuda and x.is_contiguous() and x.numel() > 0 and x.data_ptr() % ALIGNED == 0
        return here and x.device.index == torch.cuda.current_device() and not capturing()
