"""The devices of MLX: Apple's GPU and its CPU, which share one memory, and on Linux the CPU alone.

MLX is lazy: a call writes down what to do, and reading or waiting does it. What needs Metal is not yet run on a Mac.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from tritium import dtype as dt
from tritium.backends import Device
from tritium.backends.values import elements, missing
from tritium.backends.values.device import Form, Memory, ValueBackend, kernels_of
from tritium.backends.values.namespace import Bound, Fitted
from tritium.buffer import Array
from tritium.dtype import DType
from tritium.errors import DeviceError, DTypeError
from tritium.layout import Layout, Shape, contiguous_strides
from tritium.op import Spec

_computing = threading.Lock()


_calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Future[Any]]] = SimpleQueue()


def _carry_out() -> None:
    while True:
        fn, args, answer = _calls.get()
        try:
            answer.set_result(fn(*args))
        except BaseException as error:
            answer.set_exception(error)


@cache
def _carrier() -> threading.Thread:
    thread = threading.Thread(target=_carry_out, name="tritium-mlx", daemon=True)
    thread.start()
    return thread


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_carrier.cache_clear)  # threads stay with the parent


def aside(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """fn(*args) in a thread that lasts as long as the process. MLX keeps what it compiled for each thread, and a thread that
    ends while the interpreter does would take the process down with it."""
    _carrier()
    answer: Future[Any] = Future()
    _calls.put((fn, args, answer))
    return answer.result()


def carried_out(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """fn(*args), which compiles: in the main thread, or aside."""
    return fn(*args) if threading.current_thread() is threading.main_thread() else aside(fn, args)


@cache
def contracts() -> bool:
    """Return True if what mx.compile makes for the CPU rounds a product and the sum behind it once: every other way rounds both.

    It leaves that to g++, which does so wherever the machine it compiles for has such an instruction, as all of ARM's do."""
    import mlx.core as mx

    def probe() -> bool:
        with mx.stream(mx.cpu):
            square, less = mx.full((64,), 1 + 2.0**-12), mx.full((64,), 1 + 2.0**-11)
            return bool(mx.any(mx.compile(lambda x, y: x * x - y)(square, less) != 0).item())

    return bool(carried_out(probe, ()))


class Mlx(ValueBackend):
    """One unit. Every call runs on its stream, which all threads share: a result may be read by another than made it."""

    storage = Memory
    compiler = "mx.compile"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        import mlx.core as mx

        from tritium.backends.mlx import metal as mlx_metal, rows as mlx_rows, space as mlx_space

        self.mx, self._space, self._update, self._metal = mx, mlx_space, elements.update, mlx_metal
        self.unit = mx.gpu if device.unit == "gpu" else mx.cpu
        self.xp = mlx_space.Space(device.unit, self.doubt, self._at_hand)
        self.has_f64 = self.xp.has_f64
        makers = {row: self._on_stream(maker) for row, maker in mlx_rows.makers(self.xp).items()}
        self.kernels = kernels_of(makers, f"mlx {device.unit}")
        self.missing = missing.MLX

    @property
    def stream(self) -> Any:
        return self._space.stream_of(self.unit)

    # -- values

    def blank(self, shape: Shape, t: DType) -> Any:
        self._check(t)
        return self.mx.zeros(shape, dtype=self._space.TO_MLX[dt.u8 if t.is_packed else t], stream=self.stream)

    def reshape(self, value: Any, shape: Shape) -> Any:
        return self.mx.reshape(value, shape, stream=self.stream)

    def strided(self, value: Any, layout: Layout) -> Any:
        flat = self.mx.contiguous(value, stream=self.stream)  # itself, unless MLX laid it out in another way
        return self.mx.as_strided(flat, layout.shape, layout.strides, layout.offset, stream=self.stream)

    def updated(self, value: Any, layout: Layout, part: Any) -> Any:
        with self.mx.stream(self.stream):
            key = plain_slice(tuple(value.shape), layout)
            if key is None:
                return self._update(self.xp, value, layout, part)
            copy = value.__copy__()
            copy[key] = part
            return copy

    def to_host(self, value: Any, t: DType) -> np.ndarray[Any, Any]:
        self._compute([value])
        return self._space.to_numpy(value, t, self.stream)

    def from_host(self, data: np.ndarray[Any, Any], t: DType) -> Any:
        self._check(t)
        return self._space.to_mlx(data, t, self.stream)

    def is_true(self, value: Any) -> bool:
        result = self.mx.any(value, stream=self.stream)
        self._compute([result])
        return bool(result.item())

    def dtype_of(self, value: Any) -> DType:
        t = self._space.FROM_MLX.get(value.dtype)
        if t is None:
            raise DTypeError(f"An MLX array of {value.dtype} has no dtype here; cast it first: a.astype(mx.float32).")
        return t

    def adopt(self, value: Any) -> Array:
        """An array on an MLX array itself, which is computed first: another thread could not."""
        array = super().adopt(value.__copy__())  # m[0] = 1 changes the user's object, not the one held
        self._compute([array.storage.value])
        return array

    def handed(self, a: Array) -> Any:
        return self.value(a).__copy__()

    def exported(self, a: Array) -> Any:
        """The host's view of the memory, to read only: clones and other arrays of MLX may be on it. Of bf16, which NumPy does not
        export, a copy."""
        if a.dtype is dt.bf16:
            value = self.value(a)
            return self.mx.where(self.mx.array(True), value, value, stream=self.stream)
        data = self.download(a)
        data.flags.writeable = False
        return data

    def _compute(self, values: Sequence[Any]) -> None:
        """Carry out what was written down: by one thread at a time, since they may share some of it."""
        with _computing:
            self.mx.eval(values)

    def _at_hand(self, value: Any) -> np.ndarray[Any, Any] | None:
        if self.tracing:
            return None
        self._compute([value])
        return np.array(value, copy=False)

    def new(self, spec: Spec) -> Array:
        self._check(spec.dtype)
        return super().new(spec)

    def _check(self, t: DType) -> None:
        if t is dt.f64 and self.unit != self.mx.cpu:
            raise DeviceError(
                f"{self.device} has no f64: Metal has no double precision. Use .to('f32'), or the device 'mlx:cpu' or 'cpu'."
            )

    # -- calls

    def _on_stream(self, maker: Callable[..., Any]) -> Callable[..., Any]:
        """Return a maker whose functions run on the stream of this unit, whatever the default of MLX is: its own functions take the
        stream as an argument, others are called within it."""

        def make(out: Any, **attrs: Any) -> Callable[..., Any]:
            with self.mx.stream(self.stream):
                return self._streamed(maker(out, **attrs))

        return make

    def _streamed(self, fn: Any) -> Callable[..., Any]:
        if isinstance(fn, Fitted):
            return Fitted(self.xp, lambda *specs: self._streamed(fn.choose(*specs)))
        called = fn if isinstance(fn, Bound) else Bound(fn)
        if isinstance(called.fn, (type(self.mx.add), type(self.mx.array.astype))):
            return replace(called, named={**called.named, "stream": self.stream})
        return self._within(fn)

    def _within(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        mx, stream = self.mx, self.stream

        def run(*xs: Any) -> Any:
            with mx.stream(stream):
                return fn(*xs)

        return run

    def compiled(self, run: Callable[..., Any], form: Form) -> Callable[..., Any] | None:
        """By mx.compile, which for the CPU makes C++ of the function and calls g++: without it, or where that would change bits,
        there is none."""
        if self.unit == self.mx.cpu:
            if shutil.which("g++") is None:
                self.why_not_compiled = "it needs g++"
                return None
            if contracts():
                self.why_not_compiled = "g++ rounds a product and a sum once on this machine, which changes bits"
                return None
        compiled = self._within(self.mx.compile(run))
        return lambda *xs: carried_out(compiled, xs)

    def tiling(self, t: DType) -> DType:
        """Ternary weights as MLX's own 2-bit layout, which tern2 is; the others row by row, which costs least to unpack."""
        return dt.tern2 if t.is_ternary else dt.i8 if t is dt.i8_r16 else dt.i4 if t is dt.i4_r32 else t

    # -- waiting and memory

    def synchronize(self) -> None:
        self.mx.synchronize(self.stream)

    def settle(self, arrays: Sequence[Array]) -> None:
        self._compute([v for a in arrays if (v := a.storage.value) is not None])

    def memory(self) -> tuple[int, int]:
        return self.mx.get_active_memory(), self.mx.get_memory_limit()

    def memory_stats(self) -> dict[str, int]:
        return {
            "active_bytes": self.mx.get_active_memory(),
            "peak_bytes": self.mx.get_peak_memory(),
            "cache_bytes": self.mx.get_cache_memory(),
            "limit_bytes": self.mx.get_memory_limit(),
        }

    def trim(self) -> int:
        before = self.mx.get_cache_memory()
        self.mx.clear_cache()
        return int(before - self.mx.get_cache_memory())

    def limit(self, *, memory_bytes: int | None = None, cache_bytes: int | None = None) -> None:
        """Bounds of MLX, for all its units: they share one memory."""
        if memory_bytes is not None:
            self.mx.set_memory_limit(memory_bytes)
        if cache_bytes is not None:
            self.mx.set_cache_limit(cache_bytes)

    def describe(self) -> dict[str, str]:
        info = self.mx.device_info(self.unit)
        facts = {"mlx": self.mx.__version__, "unit": f"{self.device.unit}, {info.get('device_name', 'unknown')}"}
        refused = self._metal.refusal()
        kernel = f"none: {refused}" if refused else "exact ternary products by a kernel that agreed with NumPy here"
        facts["Metal"] = f"{kernel}; what needs Metal is {self._metal.NOT_RUN}"
        facts["kernels"] = f"{len(self.kernels)} rows; missing: {', '.join(op.name for op in self.missing)}"
        facts["memory"] = f"{self.mx.get_memory_limit() / 2**30:.1f} GiB at most, shared with the host"
        return facts


def plain_slice(shape: Shape, layout: Layout) -> tuple[Any, ...] | None:
    """The key of ints and slices by which a value of a shape shows a layout of its row-by-row memory; None: there is none."""
    key: list[Any] = []
    d, offset = 0, layout.offset
    for n, stride in zip(shape, contiguous_strides(shape), strict=True):
        start, offset = divmod(offset, stride) if stride else (0, offset)
        size, step = (layout.shape[d], layout.strides[d]) if d < len(layout.shape) else (0, 0)
        fits = d < len(layout.shape) and size > 1 and step > 0 and step % stride == 0
        if fits and start + (size - 1) * (step // stride) < n:
            key.append(slice(start, start + (size - 1) * (step // stride) + 1, step // stride))
            d += 1
        elif fits or start >= n:
            return None
        elif d < len(layout.shape) and size == 1:
            key.append(slice(start, start + 1))
            d += 1
        else:
            key.append(start)
    return tuple(key) if d == len(layout.shape) and not offset else None
