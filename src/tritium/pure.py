"""Storage, Array and Row in plain Python, for a build without a compiler. The native library has the same three.

NumPy owns the bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from math import prod
from types import MethodType
from typing import Any

import numpy as np

from tritium.dtype import DType
from tritium.errors import OutOfMemoryError, ShapeError, ViewError
from tritium.layout import Shape, in_tiles, is_contiguous, tiled_strides

ALIGNMENT = 64
MAX_DIMS = 32

Watcher = Callable[[str, int, int, bool], None]


class _Pool:
    """Free blocks by size, bounded, with exact counters."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.free: dict[int, list[np.ndarray[Any, Any]]] = {}
        self.classes: dict[int, dict[str, int]] = {}  # per block size: live, hits, misses
        self.small_block_size, self.large_block_threshold, self.limit = 64 << 10, 16 << 20, 256 << 20
        self.live_blocks = self.current = self.current_block_bytes = self.pooled = self.trims = 0
        self.memory_limit = self.set_limit = (
            0  # what live blocks are compared with; the configured part, which they keep
        )
        self.above = False  # live blocks were reported to be near the limit
        self.watcher: Watcher | None = None
        self.alarm: Callable[[int, int], None] | None = None
        self.trim_watcher: Callable[[int, int], None] | None = None
        self.set_memory(0)
        self.reset()

    def reset(self) -> None:
        with self.lock:
            self.allocations = self.frees = self.hits = self.misses = self.trims = 0
            self.peak, self.peak_pooled = self.current, self.pooled
            for counts in self.classes.values():
                counts["hits"] = counts["misses"] = 0

    @staticmethod
    def class_of(nbytes: int) -> int:
        """Return the block size that serves a request: 64-byte steps to 2 KiB, then 32 steps per doubling, 2 MiB at most."""
        if nbytes <= 2048:
            return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        step = min(1 << ((nbytes - 1).bit_length() - 6), 2 << 20)
        return -(-nbytes // step) * step

    def set_memory(self, limit: int) -> None:
        """Set what live blocks may hold; 0: no limit, and the memory of the machine is what they are compared with."""
        self.set_limit, self.memory_limit = limit, limit or _physical_memory()
        self.above = self.above and self.current_block_bytes > 0.9 * self.memory_limit

    def configure(self, small: int, large: int, limit: int, memory: int) -> None:
        with self.lock:
            self.small_block_size, self.large_block_threshold, self.limit = small, large, limit
            self.set_memory(memory)
            self.trim(limit)

    def _block_size(self, nbytes: int) -> int:
        """Return the size of the block that serves a request; a large one may be an idle block up to 5 % too large."""
        size = self.class_of(nbytes)
        if nbytes > self.large_block_threshold:
            fitting = (n for n, idle in self.free.items() if idle and nbytes <= n and (n - nbytes) * 20 <= n)
            return min(fitting, default=size)
        return size

    def take(self, nbytes: int) -> tuple[np.ndarray[Any, Any], int, bool]:
        with self.lock:
            if self.set_limit and self.current_block_bytes + nbytes > self.set_limit:
                raise self._refusal(nbytes)
            size = self._block_size(nbytes)
            blocks = self.free.get(size)
            reused = bool(blocks)
            block = blocks.pop() if blocks else self._new_block(size, nbytes)
            counts = self.classes.setdefault(size, {"live": 0, "hits": 0, "misses": 0})
            counts["live"] += 1
            counts["hits" if reused else "misses"] += 1
            if reused:
                self.pooled -= size
                self.hits += 1
            else:
                self.misses += 1
            self.allocations += 1
            self.live_blocks += 1
            self.current += nbytes
            self.current_block_bytes += size
            self.peak = max(self.peak, self.current)
            live, limit = self.current_block_bytes, self.memory_limit
            crossed = not self.above and 0 < 0.9 * limit < live
            self.above = self.above or crossed
        if crossed and self.alarm is not None:
            self.alarm(live, limit)
        return block, size, reused

    def _refusal(self, nbytes: int) -> OutOfMemoryError:
        bound = (
            f", and tensors may use {self.set_limit} (memory_limit of tt.memory.configure)" if self.set_limit else ""
        )
        return OutOfMemoryError(
            f"a tensor of {nbytes} bytes does not fit in memory: {self.current_block_bytes} bytes are in live tensors, "
            f"{self.pooled} idle in the pool{bound}. Free tensors (del), work in smaller batches, or use a smaller dtype."
        )

    def _new_block(self, size: int, nbytes: int) -> np.ndarray[Any, Any]:
        try:
            raw = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError:
            raise self._refusal(nbytes) from None
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]

    def give(self, block: np.ndarray[Any, Any], nbytes: int, keep: bool) -> None:
        size, released = block.size, 0
        with self.lock:
            self.classes[size]["live"] -= 1
            self.frees += 1
            self.live_blocks -= 1
            self.current -= nbytes
            self.current_block_bytes -= size
            self.above = self.above and self.current_block_bytes >= 0.8 * self.memory_limit
            if keep and size <= self.limit:
                if self.pooled + size > self.limit:  # blocks that lie idle make room for the one used last
                    released = self.trim(self.limit - size)
                self.free.setdefault(size, []).append(block)
                self.pooled += size
                self.peak_pooled = max(self.peak_pooled, self.pooled)
        if released and self.trim_watcher is not None:
            self.trim_watcher(1, released)

    def trim(self, keep: int = 0) -> int:
        released = 0
        with self.lock:
            for size in sorted(self.free, reverse=True):
                while self.free[size] and self.pooled > keep:
                    self.free[size].pop()
                    self.pooled -= size
                    released += size
            self.trims += 1
        return released


def _physical_memory() -> int:
    """Return the bytes of the machine's memory; 0 where the system does not report them."""
    try:
        return max(os.sysconf("SC_PHYS_PAGES"), 0) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


POOL = _Pool()


class _Block:
    __slots__ = ("handles", "memory", "nbytes", "owner")

    def __init__(self, memory: np.ndarray[Any, Any], nbytes: int, owner: Any) -> None:
        self.memory, self.nbytes, self.owner, self.handles = memory, nbytes, owner, 0


class Storage:
    """The handle shared by a tensor and all its views; copy-on-write lives here."""

    __slots__ = ("__weakref__", "_block", "exported", "imported", "writable")
    device: Any = None  # set once by backends: every storage of this class is on the CPU

    def __init__(self, nbytes: int) -> None:
        self.exported, self.imported, self.writable = False, False, True
        memory, _, reused = POOL.take(nbytes)
        self._hold(_Block(memory, nbytes, None))
        _tell("alloc", self, reused)

    @classmethod
    def wrap(cls, address: int, nbytes: int, owner: Any, writable: bool) -> Storage:
        """Wrap memory of another owner; `owner` is kept alive as long as it is in use."""
        import ctypes

        self = cls.__new__(cls)
        raw: Any = b""
        if nbytes:
            raw = (ctypes.c_ubyte * nbytes).from_address(address)
            raw.owner = owner  # NumPy arrays over this memory may outlive every handle
        self.exported, self.imported, self.writable = False, True, writable
        memory = np.frombuffer(raw, np.uint8)
        memory.flags.writeable = writable and nbytes > 0
        self._hold(_Block(memory, nbytes, owner))
        _tell("wrap", self, False)
        return self

    def _hold(self, block: _Block) -> None:
        with POOL.lock:
            block.handles += 1
        self._block = block

    def _drop(self) -> None:
        block = self._block
        with POOL.lock:
            block.handles -= 1
            last = block.handles == 0
        if last and self.imported:
            _tell("unwrap", self, False)
        elif last:
            _tell("free", self, False)
            # Someone may still look at exported memory: it is not reused, NumPy counts those references.
            POOL.give(block.memory, block.nbytes, keep=not self.exported)

    def __del__(self) -> None:
        if hasattr(self, "_block"):
            self._drop()

    @property
    def nbytes(self) -> int:
        return self._block.nbytes

    @property
    def address(self) -> int:
        return int(self._block.memory.ctypes.data)

    @property
    def memory(self) -> np.ndarray[Any, Any]:
        return self._block.memory

    @property
    def sharers(self) -> int:
        return self._block.handles

    def clone(self) -> Storage:
        """Return a handle that shares the bytes until either side writes."""
        if self.exported or self.imported:
            new = type(self)(self.nbytes)
            new._block.memory[: self.nbytes] = self._block.memory[: self.nbytes]
            return new
        new = type(self).__new__(type(self))
        new.exported, new.imported, new.writable = False, False, True
        new._hold(self._block)
        return new

    def own(self) -> int:
        """Prepare for a write: copy shared bytes, so that this handle owns them."""
        if not self.writable:
            raise ViewError("This tensor looks at read-only memory; write to a copy: x.clone().")
        if self._block.handles > 1:
            memory, _, reused = POOL.take(self.nbytes)
            memory[: self.nbytes] = self._block.memory[: self.nbytes]
            nbytes = self.nbytes
            self._drop()
            self._hold(_Block(memory, nbytes, None))
            _tell("copy", self, reused)
        return self.address

    def export(self) -> int:
        """Own the bytes and record that code outside may now write to them."""
        if self.writable:
            self.own()
        self.exported = True
        return self.address


class Held:
    """The storage of a device whose own library keeps the memory: that library's value, and the shape it has. A write puts
    another value in its place, unless others see the memory (`fixed`)."""

    __slots__ = ("__weakref__", "_handles", "device", "fixed", "nbytes", "shape", "value", "writable")

    def __init__(self, device: Any, nbytes: int, value: Any = None, shape: Shape | None = None) -> None:
        self.device, self.nbytes, self.value, self.shape = device, nbytes, value, shape
        self.writable, self.fixed = True, False
        self._handles = [1]

    def __del__(self) -> None:
        self._handles[0] -= 1

    def put(self, value: Any, shape: Shape) -> None:
        """Hold another value, of this shape."""
        self.leave()
        self.value, self.shape = value, shape

    def share(self) -> Any:
        """Return another handle of the same value, counted as a sharer."""
        handle = type(self)(self.device, self.nbytes, self.value, self.shape)
        handle._handles = self._handles
        handle._handles[0] += 1
        return handle

    def leave(self) -> None:
        """Stop sharing: the value is this handle's own from now on."""
        self._handles[0] -= 1
        self._handles = [1]

    @property
    def sharers(self) -> int:
        return self._handles[0]


def _tell(kind: str, storage: Storage, reused: bool) -> None:
    if POOL.watcher is not None:
        POOL.watcher(kind, storage.address, storage.nbytes, reused)


class Array:
    """Plain strided memory: a storage, a dtype and a layout in elements."""

    __slots__ = ("__weakref__", "dtype", "offset", "shape", "storage", "strides")

    def __init__(self, storage: Any, dtype: DType, shape: Shape, strides: Shape, offset: int) -> None:
        if len(shape) > MAX_DIMS:
            raise ShapeError(f"{len(shape)} dimensions were asked; at most {MAX_DIMS} are possible.")
        self.storage, self.dtype, self.shape, self.strides, self.offset = storage, dtype, shape, strides, offset

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return span(self.dtype, prod(in_tiles(self.shape, self.dtype.rows, self.dtype.block)))

    def number(self) -> bool | int | float | None:
        """Return None: native code alone reads one element without a NumPy view."""
        return None

    @property
    def is_contiguous(self) -> bool:
        if self.dtype.is_packed:
            return self.strides == tiled_strides(self.shape, self.dtype.rows, self.dtype.block)
        return is_contiguous(self.shape, self.strides)

    @property
    def address(self) -> int:
        return int(self.storage.address) + span(self.dtype, self.offset)


class Place:
    """A storage of which only the address matters."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address


def span(t: DType, elements: int) -> int:
    """Return the bytes of `elements` elements, a multiple of whole tiles."""
    return elements // (t.rows * t.block) * t.nbytes


def overlap(a: Array, b: Array) -> int:
    """Return how two arrays overlap. 0: disjoint memory; 1: the same elements in the same places; 2: anything else."""
    if a.size == 0 or b.size == 0:
        return 0
    if (a.address, a.shape, a.strides, a.dtype) == (b.address, b.shape, b.strides, b.dtype):
        return 1
    (a0, a1), (b0, b1) = _range(a), _range(b)
    return 2 if a0 < b1 and b0 < a1 else 0


def _range(a: Array) -> tuple[int, int]:
    low = high = a.address
    if a.dtype.is_packed:  # whole rows or tiles, one after the other
        lead = a.ndim - (2 if a.dtype.rows > 1 else 1)
        reach = sum((n - 1) * s for n, s in zip(a.shape[:lead], a.strides[:lead], strict=True))
        inner = prod(in_tiles(a.shape[max(lead, 0) :], a.dtype.rows, a.dtype.block))
        return low, low + span(a.dtype, reach + inner)
    for n, s in zip(a.shape, a.strides, strict=True):
        reach = (n - 1) * s * a.dtype.nbytes
        low, high = (low, high + reach) if reach > 0 else (low + reach, high)
    return low, high + a.dtype.nbytes


_thread = threading.local()


def acting() -> Any:
    """Return what this thread runs: an op, or the name of a program. Tracked while memory is watched; else None."""
    return getattr(_thread, "acting", None)


def carry_out(what: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call fn(*args, **kwargs), with `what` as the result of acting() meanwhile."""
    if POOL.watcher is None:
        return fn(*args, **kwargs)
    before, _thread.acting = acting(), what
    try:
        return fn(*args, **kwargs)
    finally:
        _thread.acting = before


class Row:
    """The base of Op: a call goes to `call`. The native one replays calls it has seen before."""

    __slots__ = ("arity", "indexes", "inplace", "keeps", "varies", "varies_place")
    indexes: int
    hits = 0
    replays = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if POOL.watcher is not None:
            return carry_out(self, self.call, *args, **kwargs)  # type: ignore[attr-defined]
        return self.call(*args, **kwargs)  # type: ignore[attr-defined]

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        """Bind an op stored in a class as a method of it."""
        return self if tensor is None else MethodType(self, tensor)

    def remember(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no replay without native code."""

    def remember_there(self, *_: Any) -> None:
        """Do nothing: there is no replay without native code."""

    def remember_view(self, *_: Any) -> None:
        """Do nothing: there is no replay without native code."""

    def forget(self) -> None:
        """Do nothing: nothing was remembered."""


class Caller:
    """The base of Compiled: a call goes to `call`. The native one tries its program first."""

    hits = 0
    ready: Any = None
    methods: dict[int, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)  # type: ignore[attr-defined]


class BoundCaller:
    """A Caller as the method of an object: a call goes to `call`. The native one tries its program for the object first."""

    def __init__(self, func: Any, instance: Any, /) -> None:
        self.func, self.__self__ = func, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)  # type: ignore[attr-defined]
