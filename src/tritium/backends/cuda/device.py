"""The CUDA backend: torch for memory and dense ops, Triton for Tritium's kernels, CUDA graphs for programs.

Work is queued on torch's current stream; a deferred check of values computed by a program is raised where the
host next waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tritium import dtype as dt, ops
from tritium.backends import Device, Kernel
from tritium.backends.cuda import rows as cuda_rows
from tritium.backends.cuda.graph import Graphs, in_graph, in_own_graph
from tritium.backends.torch.device import Block, Torch
from tritium.backends.torch.space import Space, Value
from tritium.backends.values.device import Form, HeadNorms, is_whole
from tritium.buffer import Array
from tritium.dtype import DType
from tritium.errors import DeviceError, OutOfMemoryError
from tritium.fragment import Fragment
from tritium.layout import Shape
from tritium.op import Spec

PINNED = 1 << 28  # bytes of a transfer for which pinned memory is taken; it is kept for the next one


class CudaSpace(Space):
    """torch on a GPU. Constants are cached there: nothing may come from the host while a graph is captured."""

    def __init__(self, device: torch.device, doubt: Callable[..., None]) -> None:
        super().__init__(device, doubt)
        self._constants: dict[Any, Value] = {}
        self.tracing: Callable[[], Any] = lambda: None  # the checks of the program that is being captured

    def array(self, data: np.ndarray[Any, Any]) -> Value:
        if data.nbytes > 4096:
            return super().array(data)
        key = (data.dtype, data.shape, data.tobytes())
        constant = self._constants.get(key)
        if constant is None:
            if len(self._constants) >= 1024 and not torch.cuda.is_current_stream_capturing():
                self._constants.clear()
            constant = self._constants[key] = super().array(data)
        return constant


class Cuda(Torch):
    """One GPU."""

    compiler = "CUDA graphs"
    writes_arguments = True
    runs_ahead = True

    def __init__(self, device: Device) -> None:
        super().__init__(device, f"cuda:{device.index}", CudaSpace)
        space: Any = self.space
        space.tracing = lambda: self.tracing[-1] if self.tracing else None
        self.graphs = Graphs(self.place)
        self.has_triton = find_spec("triton") is not None
        self.kernels = cuda_rows.kernels(self.space, self.kernels, self.has_triton)
        self._writes_cache = self.kernels[ops.update_cache][0]
        self._held: list[tuple[torch.cuda.Event, Value]] = []
        self._holding = Lock()

    # -- values in and out, by way of pinned memory

    def from_host(self, data: np.ndarray[Any, Any], t: DType) -> Value:
        self.space.twin(dt.dtype(data.dtype))
        here = np.ascontiguousarray(data)
        with torch.inference_mode(False):  # tensors of that mode have no version counter
            there = self.blank(here.shape, t if t.is_packed else dt.dtype(here.dtype))
            pinned = _pinned(here)
            there.view(pinned.dtype).copy_(pinned, non_blocking=True)
        return there

    def upload(self, data: np.ndarray[Any, Any], to: Array) -> None:
        """Write into the existing memory if no clone shares it, so that graphs captured for it stay valid."""
        stored: Block = to.storage
        if stored.value is None or stored.sharers > 1 or to.dtype.is_packed or not to.size or not is_whole(to):
            super().upload(data, to)
            return
        pinned = _pinned(np.ascontiguousarray(data))
        stored.value.view(pinned.dtype).view(pinned.shape).copy_(pinned, non_blocking=True)

    def to_host(self, value: Value, t: DType) -> np.ndarray[Any, Any]:
        value = value.contiguous()
        here = torch.empty(value.shape, dtype=value.dtype, pin_memory=0 < value.nbytes <= PINNED)
        here.copy_(value, non_blocking=True)
        self.synchronize()
        return self._as_numpy(here, t)

    def bring(self, a: Array) -> Callable[[], np.ndarray[Any, Any]]:
        value = self.value(a)
        here = torch.empty(value.shape, dtype=value.dtype, pin_memory=0 < value.nbytes <= PINNED)
        by_kernel = self._write_pinned(value, here)
        if not by_kernel:
            here.copy_(value, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.place))
        if by_kernel:
            self._hold(done, here)

        t = a.dtype  # the array itself is released: a graph reuses its memory only when nobody holds it

        def there() -> np.ndarray[Any, Any]:
            done.synchronize()
            self.graphs.judge()
            return self._as_numpy(here, t)

        return there

    def _write_pinned(self, value: Value, here: Value) -> bool:
        """Write a small value to pinned memory by a kernel; return False where that is not possible.

        Not during a capture: it would not be known how long the memory is needed.
        """
        if not self.has_triton or torch.cuda.is_current_stream_capturing():
            return False
        from tritium.backends.cuda import doubts as cuda_doubts

        small = cuda_doubts.can_write_pinned(value)
        if small:
            cuda_doubts.write_pinned(value, here)
        return small

    def _hold(self, done: torch.cuda.Event, here: Value) -> None:
        """Keep pinned memory until it is written, even if nobody reads it.

        torch does not know of Triton's kernels and would hand the memory out again.
        """
        with self._holding:
            self._held.append((done, here))
            self._held = [pair for pair in self._held if not pair[0].query()]

    @staticmethod
    def _as_numpy(here: Value, t: DType) -> np.ndarray[Any, Any]:
        """Return a tensor of the host as a NumPy array."""
        return here.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t is dt.bf16 else here.numpy()

    def blank(self, shape: Shape, t: DType) -> Value:
        try:
            return super().blank(shape, t)
        except torch.OutOfMemoryError as error:
            raise self.no_room(_asked(error)) from None

    def is_true(self, value: Value) -> bool:
        result = bool(value.any())
        self.graphs.judge()
        return result

    # -- calls

    def run(self, kernel: Kernel, out: Any, ins: tuple[Array | None, ...], attrs: Mapping[str, Any]) -> None:
        self.on_device(super().run, kernel, out, ins, attrs)

    def on_device(self, fn: Callable[..., Any], *args: Any) -> Any:
        with torch.cuda.device(self.place):
            try:
                return fn(*args)
            except torch.OutOfMemoryError as error:
                raise self.no_room(_asked(error)) from None

    @property
    def writes_places(self) -> bool:
        return self.has_triton

    @property
    def pages_caches(self) -> bool:  # type: ignore[override]
        return self.has_triton

    def write_places(self, cache: Value, values: Value, places: Value) -> None:
        cuda_rows.write_places(self.space, cache, values, places)

    def takes_new(self, x: Spec, cache: Spec, places: Spec, interleaved: bool) -> bool:
        return self.has_triton and cuda_rows.takes_new(self.space, x, cache, places, interleaved)

    def attend_new(
        self, x: Array, cos: Array, sin: Array, cache: Array, places: Array, scale: float | None, settled: bool,
        norms: HeadNorms[Array] | None = None,
    ) -> Value:  # fmt: skip
        """Run rope, cache update and attention of new tokens as one launch, the norms of heads as one before it.

        What is settled in a program is settled on the device only where its kernels are one graph, which starts when
        all work before it has ended.
        """
        before = cache.storage.value
        value = cache.storage.alone()
        settled &= value is before  # a fresh copy is not settled
        value = value.reshape(cache.shape)
        operands = (*(self.array(a) for a in (x, cos, sin)), value, self.array(places))
        there = None if norms is None else norms.map(self.array)
        return self.on_device(cuda_rows.attend_new, self.space, *operands, scale, settled and in_own_graph(), there)

    def refuses(self, body: Fragment) -> str | None:
        if not self.has_triton:
            return "Triton is not installed; pip install triton"
        return cuda_rows.refuses(body)

    def any_of(self, bad: list[Any]) -> Any:
        """Return None inside a graph, which reports its deferred checks itself."""
        return None if in_graph() else super().any_of(bad)

    def compiled(self, run: Callable[..., Any], form: Form) -> Callable[..., Any] | None:
        return self.graphs.program(run, form)

    # -- waiting

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.place).synchronize()
        self.graphs.judge()

    def timer(self) -> Callable[[], int]:
        """Start a timer of CUDA events on the current stream; what the host does meanwhile does not count."""
        stream = torch.cuda.current_stream(self.place)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(stream)

        def stop() -> int:
            last.record(stream)
            last.synchronize()
            self.graphs.judge()
            return round(first.elapsed_time(last) * 1e6)

        return stop

    # -- memory

    def memory_stats(self) -> dict[str, int]:
        stats = torch.cuda.memory_stats(self.place)
        active, reserved = stats.get("allocated_bytes.all.current", 0), stats.get("reserved_bytes.all.current", 0)
        return {
            "active_bytes": active,
            "peak_bytes": stats.get("allocated_bytes.all.peak", 0),
            "cache_bytes": reserved - active,
            "limit_bytes": int(self._fraction * self._there),
        }

    _fraction = 1.0

    @property
    def _there(self) -> int:
        return int(torch.cuda.get_device_properties(self.place).total_memory)

    def trim(self) -> int:
        before = torch.cuda.memory_reserved(self.place)
        torch.cuda.empty_cache()
        return int(before - torch.cuda.memory_reserved(self.place))

    def limit(self, *, memory_bytes: int | None = None, cache_bytes: int | None = None) -> None:
        if cache_bytes is not None:
            raise DeviceError(f"{self.device}: torch bounds all of its memory, not its cache; give memory_bytes.")
        if memory_bytes is not None:
            self._fraction = min(memory_bytes / self._there, 1.0)
            torch.cuda.set_per_process_memory_fraction(self._fraction, self.place)

    @cached_property
    def capacity(self) -> int:
        return self._there

    def memory(self) -> tuple[int, int]:
        free, there = torch.cuda.mem_get_info(self.place)
        return there - free, there

    def no_room(self, amount: str) -> OutOfMemoryError:
        """Return an error that says what was asked, what is free and what to try."""
        free, there = torch.cuda.mem_get_info(self.place)
        held = self.memory_stats()
        gib = 2**30
        return OutOfMemoryError(
            f"{self.device} has no room for {amount}: {free / gib:.2f} of {there / gib:.2f} GiB are free, {held['active_bytes'] / gib:.2f} "
            f"are held by tensors here and {held['cache_bytes'] / gib:.2f} kept for reuse (limit {held['limit_bytes'] / gib:.2f}). Try "
            f"smaller batches or a shorter context, drop tensors, tritium.memory.trim(device={str(self.device)!r}), or see with "
            f"nvidia-smi who else is there."
        )

    # -- facts

    def describe(self) -> dict[str, str]:
        properties = torch.cuda.get_device_properties(self.place)
        facts = {
            "gpu": f"{properties.name}, {properties.multi_processor_count} multiprocessors, capability {properties.major}.{properties.minor}",
            "memory": f"{properties.total_memory / 2**30:.1f} GiB",
            "torch": torch.__version__,
        }
        if torch.version.hip is not None:
            facts["tested"] = f"ROCm {torch.version.hip}: not yet run"
        if self.has_triton:
            with suppress(ImportError):
                facts["triton"] = str(__import__("triton").__version__)
        by = cuda_rows.product_words(self.place) if self.has_triton else "torch, since Triton is not installed"
        return facts | {"kernels": f"{len(self.kernels)} rows; ternary products by {by}"}


def _asked(error: Exception) -> str:
    """Return how much torch tried to allocate, from its message."""
    return str(error).partition("Tried to allocate ")[2].partition(". ")[0] or "more than there is"


def _pinned(data: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a copy of a NumPy array, bf16 as its bits, in pinned memory unless it is too large for that."""
    plain = data.view(np.int16) if data.dtype == ml_dtypes.bfloat16 else data
    if not plain.flags.writeable:
        plain = plain.copy()
    seen = torch.from_numpy(plain)
    return torch.empty(seen.shape, dtype=seen.dtype, pin_memory=0 < seen.nbytes <= PINNED).copy_(seen)
