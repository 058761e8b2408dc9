"""Random programs of views, writes and clones, beside the same program in NumPy: every tensor equals its model.

A clone is a copy in the model, whatever the tensors share. A write stays where the memory was, except the first one
after a clone; memory that was handed out is copied by a clone at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt

Model = np.ndarray[Any, Any]
Pair = tuple[tt.Tensor, Model]

steps = st.sampled_from((None, 1, 2, 3, -1, -2))
ends = st.none() | st.integers(-5, 5)
slices = st.builds(slice, ends, ends, steps)


# ---- views: a tensor and its model in, the same view of both out


def index(x: Any, m: Model, data: st.DataObject) -> tuple[Any, Any]:
    key = tuple(data.draw(slices if n == 0 else slices | st.integers(-n, n - 1)) for n in m.shape)
    key = key[: data.draw(st.integers(0, len(key)))]
    return x[key], m[(*key, ...)]  # NumPy gives a scalar, not a view, for a whole key without an ellipsis


def permute(x: Any, m: Model, data: st.DataObject) -> tuple[Any, Any]:
    order = tuple(data.draw(st.permutations(range(m.ndim))))
    return x.permute(order), m.transpose(order)


def transpose(x: Any, m: Model, data: st.DataObject) -> tuple[Any, Any]:
    if m.ndim < 2:
        return x, m
    a, b = data.draw(st.integers(-m.ndim, m.ndim - 1)), data.draw(st.integers(0, m.ndim - 1))
    return x.transpose(a, b), m.swapaxes(a, b)


def reshape(x: Any, m: Model, data: st.DataObject) -> tuple[Any, Any]:
    """A view where NumPy says it can be one, else a copy of both."""
    shapes = [(-1,), (1, *m.shape), (*m.shape, 1)]
    shapes += [(m.shape[0] // 2, 2, *m.shape[1:])] if m.ndim and m.shape[0] % 2 == 0 else []
    shapes += [(m.shape[0] * m.shape[1], *m.shape[2:])] if m.ndim > 1 else []
    new = data.draw(st.sampled_from(shapes)) if m.size else m.shape
    try:
        seen, shared = m.reshape(new, copy=False), True
    except ValueError:
        seen, shared = m.reshape(new, copy=True), False
    got = x.reshape(new)
    assert (got.storage is x.storage) == shared
    return got, seen


def expand_dims(x: Any, m: Model, data: st.DataObject) -> tuple[Any, Any]:
    if m.ndim > 4:
        return x, m
    axis = data.draw(st.integers(-m.ndim - 1, m.ndim))
    return x.expand_dims(axis=axis), np.expand_dims(m, axis)


def flip(x: Any, m: Model, data: st.DataObject) -> tuple[Any, Any]:
    axes = tuple(data.draw(st.lists(st.integers(0, m.ndim - 1), unique=True))) if m.ndim else ()
    return x.flip(axis=axes), np.flip(m, axes)


def broadcast(x: Any, m: Model, data: st.DataObject) -> tuple[Any, Any]:
    if m.ndim > 3:
        return x, m
    shape = (data.draw(st.integers(1, 3)), *(3 if n == 1 and data.draw(st.booleans()) else n for n in m.shape))
    return x.expand(*shape), np.broadcast_to(m, shape)


VIEWS: list[Callable[..., tuple[Any, Any]]] = [index, permute, transpose, reshape, expand_dims, flip, broadcast]


def repeats(m: Model) -> bool:
    """Whether two places of an array are one element."""
    return any(n > 1 and s == 0 for n, s in zip(m.shape, m.strides, strict=True))


# ---- writes


def add_number(x: Any, m: Model, other: Pair, data: st.DataObject) -> None:
    x += 2
    np.add(m, 2, out=m)


def fill(x: Any, m: Model, other: Pair, data: st.DataObject) -> None:
    value = float(data.draw(st.integers(-9, 9)))
    x[...] = value
    m[...] = value


def add_itself_turned(x: Any, m: Model, other: Pair, data: st.DataObject) -> None:
    axes = tuple(range(m.ndim))
    x += x.flip(axis=axes)
    np.add(m, np.flip(m, axes).copy(), out=m)


def multiply_into(x: Any, m: Model, other: Pair, data: st.DataObject) -> None:
    tt.multiply(x, 0.5, out=x)
    np.multiply(m, 0.5, out=m)


def take_from(x: Any, m: Model, other: Pair, data: st.DataObject) -> None:
    """Write another tensor here, which may be a view of the same memory."""
    y, n = other
    if n.shape != m.shape:
        if not n.size:
            return
        y, n = y[(0,) * n.ndim], n[(0,) * n.ndim]
    value = n.copy()
    x.copy_(y)
    m[...] = value


WRITES: list[Callable[..., None]] = [add_number, fill, add_itself_turned, multiply_into, take_from]


class World:
    """The tensors of one program and their models."""

    def __init__(self) -> None:
        data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        self.pairs: list[Pair] = [(tt.tensor(data), data.copy())]

    def look(self, pair: Pair, data: st.DataObject) -> None:
        view = data.draw(st.sampled_from(VIEWS))
        self.pairs.append(view(*pair, data))

    def write(self, pair: Pair, data: st.DataObject) -> None:
        x, m = pair
        if repeats(m) or not m.flags.writeable:
            return
        shared, before = x.sharers > 1, {id(y): y.storage.address for y, _ in self.pairs}
        act = data.draw(st.sampled_from(WRITES))
        act(x, m, data.draw(st.sampled_from(self.pairs)), data)
        for y, _ in self.pairs:
            if y.storage is not x.storage:
                assert y.storage.address == before[id(y)], "a write moved another tensor"
            elif not shared:
                assert y.storage.address == before[id(y)], "a write moved memory that nobody shared"
        if shared and m.size:
            assert x.storage.address != before[id(x)], "the first write after a clone must leave the shared memory"

    def clone(self, pair: Pair, data: st.DataObject) -> None:
        x, m = pair
        y = x.clone()
        handed_out = x.storage.exported or x.storage.imported
        copied = 2 * x.nbytes < x.storage.nbytes or 0 in x.strides  # sharing would keep far more than is seen
        assert (y.storage.address != x.storage.address) == bool(handed_out or copied)
        if copied:
            self.pairs.append((y, np.array(m, order="C")))
            return
        whole = np.empty_like(base_of(m))
        whole[...] = base_of(m)
        self.pairs.append((y, np.ndarray(m.shape, m.dtype, whole, offset(m), m.strides)))

    def hand_out(self, pair: Pair, data: st.DataObject) -> None:
        x, m = pair
        np.testing.assert_array_equal(x.numpy(), m)
        assert x.storage.exported
        assert x.sharers == 1

    def check(self) -> None:
        for x, m in self.pairs:
            assert x.shape == m.shape
            np.testing.assert_array_equal(x._host(), m)


def base_of(m: Model) -> Model:
    while isinstance(m.base, np.ndarray):
        m = m.base
    return m


def offset(m: Model) -> int:
    return int(m.ctypes.data - base_of(m).ctypes.data) if m.size else 0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_tensors_follow_their_numpy_models(data: st.DataObject) -> None:
    world = World()
    for _ in range(data.draw(st.integers(1, 14), label="length")):
        pair = data.draw(st.sampled_from(world.pairs))
        act = data.draw(
            st.sampled_from((world.look, world.look, world.write, world.write, world.clone, world.hand_out))
        )
        act(pair, data)
        world.check()


@pytest.fixture(scope="module")
def settled() -> None:
    """What other tests left in reference cycles must not go while bytes are counted."""
    gc.collect()


@pytest.mark.usefixtures("settled")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(("write x", "write y", "clone x", "clone y", "drop", "read")), max_size=12))
def test_counted_memory_follows_clones_and_drops(program: list[str]) -> None:
    start = tt.memory.stats()
    x = tt.zeros(100)
    y = x.clone()
    for act in program:
        if act == "write x":
            x += x
        elif act == "write y":
            y.zero_()
        elif act == "clone x":
            y = x.clone()
        elif act == "clone y":
            x = y.clone()
        elif act == "drop":
            x, y = y, y.clone()
        blocks = 1 if x.address == y.address else 2
        assert tt.memory.stats().current_bytes - start.current_bytes == 400 * blocks
        assert x.sharers == y.sharers == 3 - blocks
    del x, y
    assert tt.memory.stats().current_bytes == start.current_bytes
