"""Memory by reference count: Storage, Array and the pool beneath them, native where built, plain Python otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import update_wrapper
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from tritium import pure, settings
from tritium.dtype import u8
from tritium.layout import in_tiles

native: Any = None
native_absence = ""
if settings.pure():
    native_absence = "TRITIUM_PURE is set"
else:
    try:
        native = importlib.import_module("tritium._native")
    except ImportError as error:
        native_absence = f"this is a pure-Python build ({error})"

if TYPE_CHECKING or native is None:
    from tritium.pure import (
        Array as Array,
        BoundCaller as BoundCaller,
        Caller as Caller,
        Held as Held,
        Row as Row,
        Storage as Storage,
        acting as acting,
        carry_out as carry_out,
    )
else:
    Storage, Held, Array = native.Storage, native.Held, native.Array
    Row, Caller, BoundCaller = native.Row, native.Caller, native.BoundCaller
    acting, carry_out = native.acting, native.carry_out


def _warn_near_limit(live: int, limit: int) -> None:
    settings.log.warning(
        "tensors hold %d bytes, %.1f %% of their memory limit of %d bytes; free tensors (del), work in smaller batches, or "
        "raise memory_limit of tt.memory.configure.",
        live, 100 * live / limit, limit,
    )  # fmt: skip


def _log_own_trims(trims: int, released: int) -> None:
    if (log := settings.listener("memory")) is not None:
        log.debug(
            "the pool gave %d idle bytes back by itself, in %d trims: it was at its limit, or memory was short",
            released, trims,
        )  # fmt: skip


if native is None:
    pure.POOL.alarm, pure.POOL.trim_watcher = _warn_near_limit, _log_own_trims
else:
    native.set_pool_alarm(_warn_near_limit)
    native.set_pool_trim_watcher(_log_own_trims)

_is_contiguous: Any = vars(Array)["is_contiguous"].__get__  # of tensors it is a method
_Function = TypeVar("_Function", bound=Callable[..., Any])


def quick(name: str) -> Callable[[_Function], _Function]:
    """Return a decorator: plain calls of the function are carried out by native code, as its shortcut of this name does."""

    def decorate(function: _Function) -> _Function:
        shortcut: Any = function if native is None else native.Quick(name, function)
        return cast(_Function, shortcut if native is None else update_wrapper(shortcut, function))

    return decorate


ALIGNMENT = pure.ALIGNMENT
MAX_DIMS = pure.MAX_DIMS


class _ArrayInterface:
    """The array interface through which NumPy views memory; it keeps the storage alive meanwhile."""

    __slots__ = ("__array_interface__", "storage")

    def __init__(self, storage: Any, interface: dict[str, Any]) -> None:
        self.storage, self.__array_interface__ = storage, interface


def host(a: Array) -> np.ndarray[Any, Any]:
    """Return the array's elements as a NumPy view. For kernels: it does not count as handing memory out.

    Of a packed dtype these are bytes: rows of bytes, or one axis of bytes for all tiles of a matrix.
    """
    if a.dtype.is_packed:
        a = in_bytes(a)
    kind, step = a.dtype.numpy, a.dtype.nbytes
    if a.size == 0:
        return np.empty(a.shape, kind)
    memory = getattr(a.storage, "memory", None)
    if memory is not None and _is_contiguous(a):
        return np.ndarray(a.shape, kind, memory, a.offset * step)
    strides = tuple(s * step for s in a.strides)
    if memory is not None:
        return np.ndarray(a.shape, kind, memory, a.offset * step, strides)
    plain = kind.str if kind.kind != "V" else "<u2"
    address, writable = a.address, a.storage.writable
    face = {"data": (address, not writable), "shape": a.shape, "strides": strides, "typestr": plain, "version": 3}
    seen = np.asarray(_ArrayInterface(a.storage, face))
    return seen if plain == kind.str else seen.view(kind)


def in_bytes(a: Array) -> Array:
    """Return a packed array as an array of its bytes."""
    t = a.dtype
    lead = max(a.ndim - (2 if t.rows > 1 else 1), 0)
    inner = pure.span(t, prod(in_tiles(a.shape[lead:], t.rows, t.block)))
    strides = tuple(pure.span(t, s) for s in a.strides[:lead])
    return Array(a.storage, u8, (*a.shape[:lead], inner), (*strides, 1), pure.span(t, a.offset))


def overlap(a: Array, b: Array) -> int:
    """Return how two arrays overlap. 0: disjoint memory; 1: the same elements in the same places; 2: anything else."""
    ours = native is not None and isinstance(a.storage, Storage) and isinstance(b.storage, Storage)
    if ours and a.dtype.code >= 0 and b.dtype.code >= 0:
        return int(native.overlap(a, b))
    if not (isinstance(a.storage, Held) or isinstance(b.storage, Held)):
        return pure.overlap(a, b)
    if a.storage is b.storage:
        return pure.overlap(_from(a, 0), _from(b, 0))
    seen = all(isinstance(x.storage, Held) and x.storage.fixed for x in (a, b))  # two views of one memory of the user's
    return pure.overlap(*(_from(x, x.storage.begin) for x in (a, b))) if seen else 0


def shares_with_others(a: Array) -> bool:
    """Return True if arrays of other storages may overlap an array: not where a device allocated its memory."""
    return not isinstance(a.storage, Held) or a.storage.fixed


def _from(a: Array, begin: int) -> Array:
    """Return the same layout at another start address: enough to compute an overlap."""
    return pure.Array(pure.Place(begin), a.dtype, a.shape, a.strides, a.offset)


def watch(watcher: pure.Watcher | None) -> None:
    """Call `watcher(kind, address, nbytes, reused)` at every "alloc", "free", "copy" (on write), and at every "wrap" and
    "unwrap" of memory someone else owns."""
    if native is None:
        pure.POOL.watcher = watcher
    else:
        native.set_buffer_watcher(watcher)
