"""A device that keeps values, for tests: its library is NumPy, its kernels the reference's, and nothing is ever written in place.

What MLX and torch need of the core is tried on it where neither is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tritium import dtype as dt
from tritium.backends import Device, Kernel
from tritium.backends.reference import kernels as reference, packed
from tritium.backends.values.device import Memory, ValueBackend
from tritium.dtype import DType
from tritium.layout import Layout, Shape
from tritium.op import Op, Spec

LEFT_OUT = ("cumulative_prod", "silu")


def maker(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of the reference as one that gives its result."""

    def make(out: Any, **attrs: Any) -> Callable[..., Any]:
        def empty(s: Spec) -> Any:
            return packed.empty(s.shape, s.dtype) if s.dtype.is_packed else np.empty(s.shape, s.dtype.numpy)

        def call(*values: Any) -> Any:
            made = empty(out) if isinstance(out, Spec) else tuple(empty(s) for s in out)
            fn(*values, out=made, **attrs)
            return made

        return call

    return make


class Block(Memory):
    """Its values can be counted."""

    __slots__ = ()


class Valued(ValueBackend):
    """Values of NumPy that nobody writes."""

    storage = Block
    compiler = "the tests"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.kernels = {
            row: [Kernel("valued", maker(fn))] for row, fn in reference.KERNELS.items() if row.name not in LEFT_OUT
        }
        self.missing = {row: "the tests leave it out" for row in reference.KERNELS if row.name in LEFT_OUT}
        self.dynamic: dict[Op, Any] = dict(reference.DYNAMIC)
        self.compilations = self.settled = 0

    def blank(self, shape: Shape, t: DType) -> Any:
        return np.zeros(shape, t.numpy)

    def reshape(self, value: Any, shape: Shape) -> Any:
        return value.reshape(shape)

    def strided(self, value: Any, layout: Layout) -> Any:
        flat = np.ascontiguousarray(value).reshape(-1)
        steps = tuple(s * flat.itemsize for s in layout.strides)
        return np.ndarray(layout.shape, flat.dtype, flat, layout.offset * flat.itemsize, steps)

    def updated(self, value: Any, layout: Layout, part: Any) -> Any:
        new = np.array(value, order="C")
        self.strided(new, layout)[...] = part
        return new

    def to_host(self, value: Any, t: DType) -> np.ndarray[Any, Any]:
        return np.asarray(value)

    def from_host(self, data: np.ndarray[Any, Any], t: DType) -> Any:
        return np.array(data, dtype=None if data.dtype == t.numpy else t.numpy)

    def is_true(self, value: Any) -> bool:
        return bool(np.any(value))

    def dtype_of(self, value: Any) -> DType:
        return dt.dtype(value.dtype)

    def settle(self, arrays: Any) -> None:
        self.settled += len(arrays)

    def compiled(self, run: Callable[..., Any], form: Any) -> Callable[..., Any]:
        self.compilations += 1
        return run
