"""Gluon kernels of attention in NumPy, one CTA after another: what they compute, without a GPU and without Triton.

Layouts say which thread has what, and are ignored, but for the lanes that shuffles and tensor cores name. Every load and store is held
to the memory it was given.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

PACKAGE = "tritium.backends.cuda.attention"


class Value:
    """A tensor or a number of a kernel."""

    type = SimpleNamespace(layout=None)

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> Any:
        return self.data.dtype.type

    def to(self, dtype: Any, bitcast: bool = False) -> Value:
        return Value(self.data.view(dtype) if bitcast else self.data.astype(dtype))

    def reshape(self, shape: Any) -> Value:
        return Value(self.data.reshape(shape))

    def permute(self, axes: Any) -> Value:
        return Value(self.data.transpose(axes))

    def __bool__(self) -> bool:
        return bool(self.data)

    def __index__(self) -> int:
        return int(self.data)


def _raw(x: Any) -> Any:
    return x.data if isinstance(x, Value) else x


def _operator(name: str) -> Any:
    def apply(a: Value, b: Any) -> Any:
        if isinstance(b, Pointer):
            return NotImplemented
        return Value(getattr(np.ndarray, name)(np.asarray(a.data), np.asarray(_raw(b))))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor"):
    setattr(Value, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(Value, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(f"__{_name}__"))
Value.__hash__ = None  # type: ignore[assignment]


class Pointer:
    """Elements of an array by their offsets."""

    def __init__(self, memory: Any, offset: Any = 0) -> None:
        self.memory, self.offset = memory, np.asarray(offset, np.int64)
        self.dtype = SimpleNamespace(element_ty=memory.dtype.type)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offset + _raw(other))

    def to(self, dtype: Any) -> Value:
        return Value(self.offset)

    def cells(self, mask: Any) -> tuple[Any, Any]:
        """Return offsets that are inside the memory, and which of them are meant."""
        offset, meant = np.broadcast_arrays(self.offset, True if mask is None else _raw(mask))
        assert ((offset >= 0) & (offset < self.memory.size))[meant].all(), "outside the memory"
        return np.where(meant, offset, 0), meant


class Shared:
    """Shared memory, and views of it; what nobody has written is not a number."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def reshape(self, shape: Any) -> Shared:
        view = self.data.view()
        view.shape = shape  # raises where it would be a copy
        return Shared(view)

    def permute(self, axes: Any) -> Shared:
        return Shared(self.data.transpose(axes))

    def index(self, i: int) -> Shared:
        return Shared(self.data[i])

    def slice(self, start: int, length: int) -> Shared:
        return Shared(self.data[start : start + length])

    def load(self, layout: Any) -> Value:
        return Value(self.data.copy())

    def store(self, x: Value) -> None:
        self.data[...] = x.data


def _multiply(a: list[Any], b: list[Any], c: list[Any]) -> tuple[Value, ...]:
    """mma.m16n8k16 of each warp, by the fragments that `many` describes."""
    g, t = np.arange(32) // 4, np.arange(32) % 4
    left, right, sums = np.zeros((4, 16, 16)), np.zeros((4, 16, 8)), np.zeros((4, 16, 8))
    for i in range(8):
        left[:, g + i % 2 * 8, t + i // 2 * 4] = a[i]
    for i in range(4):
        right[:, t + i * 4, g] = b[i]
        sums[:, g + i // 2 * 8, 2 * t + i % 2] = c[i]
    sums += left @ right
    return tuple(Value(sums[:, g + i // 2 * 8, 2 * t + i % 2]) for i in range(4))


def _inline(asm: str, constraints: str, args: Any, **options: Any) -> Any:
    values = [_raw(a) for a in args]
    if asm.startswith("mma."):
        whole = [np.broadcast_to(v, (4, 32)) for v in values]
        return _multiply(whole[:8], whole[8:12], whole[12:])
    if asm.startswith("mul.rn.f32"):
        return Value((values[0] * values[1]).astype(np.float32))
    if asm.startswith("cvt.f64.f16"):
        return Value(values[0].view(np.float16).astype(np.float64))
    assert "shfl.sync.idx.b32" in asm
    rows = values[0].reshape(-1, 32)
    return Value(
        np.take_along_axis(rows, np.broadcast_to(values[1], values[0].shape).reshape(-1, 32), 1).reshape(
            values[0].shape
        )
    )


class Language(ModuleType):
    """The part of gluon.language that kernels of attention use, for the CTA at `place` of a grid."""

    float16, float32, float64, int16, int32, int64 = np.float16, np.float32, np.float64, np.int16, np.int32, np.int64
    static_range = staticmethod(builtins.range)
    inline_asm_elementwise = staticmethod(_inline)
    place: tuple[int, ...] = (0, 0)
    grid: tuple[int, ...] = (1, 1)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Layout"):
            return lambda *args: None
        raise AttributeError(name)

    constexpr = staticmethod(lambda x: x)
    num_warps = staticmethod(lambda: 4)
    arange = staticmethod(lambda start, end, layout: Value(np.arange(start, end, dtype=np.int32)))
    expand_dims = staticmethod(lambda x, axis: Value(np.expand_dims(x.data, axis)))
    convert_layout = staticmethod(lambda x, layout, assert_trivial=False: x)
    reshape = staticmethod(lambda x, shape: x.reshape(shape))
    join = staticmethod(lambda a, b: Value(np.stack(np.broadcast_arrays(a.data, b.data), -1)))
    split = staticmethod(lambda x: (Value(x.data[..., 0]), Value(x.data[..., 1])))
    broadcast = staticmethod(lambda a, b: tuple(map(Value, np.broadcast_arrays(a.data, b.data))))
    zeros = staticmethod(lambda shape, dtype, layout: Value(np.zeros(shape, dtype)))
    full = staticmethod(lambda shape, value, dtype, layout: Value(np.full(shape, value, dtype)))
    to_tensor = staticmethod(lambda x: Value(x))
    exp = staticmethod(lambda x: Value(np.exp(x.data)))
    sum = staticmethod(lambda x, axis: Value(x.data.sum(axis, dtype=x.data.dtype)))
    max = staticmethod(lambda x, axis: Value(x.data.max(axis)))
    where = staticmethod(lambda c, a, b: Value(np.where(_raw(c), _raw(a), _raw(b))))
    minimum = staticmethod(lambda a, b: Value(np.minimum(_raw(a), _raw(b))))
    maximum = staticmethod(lambda a, b: Value(np.maximum(_raw(a), _raw(b))))
    allocate_shared_memory = staticmethod(lambda dtype, shape, layout: Shared(np.full(shape, np.nan, dtype)))

    def program_id(self, axis: int) -> Value:
        return Value(np.int32(self.place[axis]))

    def num_programs(self, axis: int) -> int:
        return self.grid[axis]

    @staticmethod
    def load(x: Pointer, mask: Any = None, other: Any = 0, cache_modifier: str = "") -> Value:
        cells, meant = x.cells(mask)
        return Value(np.where(meant, x.memory[cells], np.asarray(other, x.memory.dtype)))

    @staticmethod
    def store(x: Pointer, value: Any, mask: Any = None, cache_modifier: str = "") -> None:
        cells, meant = x.cells(mask)
        x.memory[cells[meant]] = np.broadcast_to(_raw(value), cells.shape)[meant]

    @staticmethod
    def atomic_add(x: Pointer, value: int, sem: str) -> Value:
        old = x.memory[x.offset].copy()
        x.memory[x.offset] += value
        return Value(old)


class Kernels:
    """The modules of attention over `Language`: `kernels.many.decode_many` and so on."""

    def __init__(self) -> None:
        self.language = Language("triton.experimental.gluon.language")
        gluon = ModuleType("triton.experimental.gluon")
        gluon.__dict__.update(jit=lambda fn: fn, language=self.language)
        triton = ModuleType("triton")
        triton.__dict__.update(next_power_of_2=lambda n: 1 << (n - 1).bit_length())
        gemv = ModuleType("tritium.backends.cuda.linear.gemv")
        nothing = dict.fromkeys(("ask", "barrier", "may_start", "wait_for_inputs"), lambda *args: None)
        gemv.__dict__.update(nothing)
        fakes: dict[str, ModuleType] = {
            "triton": triton, "triton.experimental": ModuleType("triton.experimental"), gluon.__name__: gluon,
            self.language.__name__: self.language, gemv.__name__: gemv,
        }  # fmt: skip
        own = [f"{PACKAGE}.{name}" for name in ("shares", "decode", "many")]
        before = {name: sys.modules.pop(name, None) for name in (*fakes, *own)}
        package = import_module(PACKAGE)
        attributes = {name: getattr(package, name) for name in ("shares", "decode", "many") if hasattr(package, name)}
        sys.modules.update(fakes)
        try:
            self.shares, self.decode, self.many = (import_module(name) for name in own)
        finally:
            for name, module in before.items():
                sys.modules.pop(name, None)
                if module is not None:
                    sys.modules[name] = module
            package.__dict__.update(attributes)
        for module in (self.shares, self.decode, self.many):
            module.__dict__["range"] = _range

    def launch(self, kernel: Any, grid: tuple[int, int], rng: np.random.Generator, *args: Any, **options: Any) -> None:
        """Run all CTAs of a grid, in any order."""
        self.language.grid = grid
        for place in rng.permutation(list(product(*map(range, grid)))):
            self.language.place = tuple(place)
            kernel(*args, **options)


def _range(*limits: Any) -> Iterator[Value]:
    return (Value(np.int32(i)) for i in builtins.range(*map(int, limits)))
