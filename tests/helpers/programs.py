"""Random programs that run on tensors and on NumPy alike: maps, reductions, products, views, writes, several results.

All values are small whole numbers, so that every order of summing gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import tritium as tt

Line = tuple[int, int, int]
lines = st.lists(
    st.tuples(st.integers(0, 18), st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=250
)

SHAPE = (4, 6)
W = np.arange(24, dtype=np.float32).reshape(SHAPE) % 5 - 2


class OnTensors:
    """The words of a program for tritium."""

    captured = tt.asarray(W.copy())
    maximum, floor, where, negative = tt.maximum, tt.floor, tt.where, tt.negative

    @staticmethod
    def copy(x: Any) -> Any:
        return x.clone()

    @staticmethod
    def clip(x: Any) -> Any:
        return tt.clip(x, -8.0, 8.0)

    @staticmethod
    def relu(x: Any) -> Any:
        return tt.relu(x)

    @staticmethod
    def turn(x: Any) -> Any:
        return x.mT if x.ndim > 1 else x

    @staticmethod
    def zeros(shape: Any) -> Any:
        return tt.zeros(shape)


class OnNumpy:
    """The same words for NumPy."""

    captured = W
    maximum, floor, where, negative = np.maximum, np.floor, np.where, np.negative

    @staticmethod
    def copy(x: Any) -> Any:
        return x.copy()

    @staticmethod
    def clip(x: Any) -> Any:
        return np.clip(x, np.float32(-8), np.float32(8))

    @staticmethod
    def relu(x: Any) -> Any:
        return np.where(x <= 0, np.float32(0), x)

    @staticmethod
    def turn(x: Any) -> Any:
        return np.swapaxes(x, -1, -2) if x.ndim > 1 else x

    @staticmethod
    def zeros(shape: Any) -> Any:
        return np.zeros(shape, np.float32)


def fits(a: Any, b: Any) -> bool:
    try:
        return len(np.broadcast_shapes(a.shape, b.shape)) <= 3
    except ValueError:
        return False


def run(code: list[Line], on: Any, *args: Any) -> tuple[Any, ...]:
    """The results of a program: its last few values. Arguments are read, never written."""
    values = [*args, on.captured]
    made = [on.copy(args[0]), on.zeros(SHAPE)]  # what may be written, views of it too
    values += made
    for what, i, j in code:
        x, y, z = values[i % len(values)], values[j % len(values)], made[i % len(made)]
        if what <= 7:
            values.append(_map(what, x, y if fits(x, y) else x, on))
        elif what <= 10:
            values.append(_shrink(what, x, on))
        elif what == 11:
            square = x.ndim == y.ndim == 2 and x.shape[1] == y.shape[1]
            values.append(on.clip(x @ on.turn(y)) if square else on.clip(x + x))
        elif what <= 14:
            view = _view(what, z if j % 2 else x, j, on)
            values.append(view)
            if j % 2:
                made.append(view)
        elif what == 15:
            values.append(on.copy(x))
            made.append(values[-1])
        else:
            _write(what, z, y, on)
    return (*(values[-1 - k] for k in range(min(4, len(values)))), made[0], made[1])


def _map(what: int, x: Any, y: Any, on: Any) -> Any:
    if what == 0:
        return on.clip(x + y)
    if what == 1:
        return on.clip(x - y)
    if what == 2:
        return on.clip(x * y)
    if what == 3:
        return on.maximum(x, y)
    if what == 4:
        return on.relu(on.clip(x * 2.0 - 1.0))
    if what == 5:
        return on.where(x > y, x, y * -1.0)
    return -on.floor(x * 0.5) if what == 6 else abs(on.negative(-x)) * 1.0 - 0.0


def _shrink(what: int, x: Any, on: Any) -> Any:
    if not x.ndim or 0 in x.shape:
        return on.clip(x + 1.0)
    if what == 8:
        return on.clip(x - x.max(axis=-1, keepdims=True))
    return on.clip(x.sum(axis=-1)) if what == 9 else on.clip(on.relu(x + 1.0).sum(axis=0))


def _view(what: int, x: Any, j: int, on: Any) -> Any:
    if what == 12:
        return on.turn(x)
    if what == 13 and x.ndim and x.shape[0] > 1:
        return x[1:] if j % 3 else x[::-1]
    return x[..., None] if x.ndim < 3 and j % 3 == 0 else x[...]


def _write(what: int, z: Any, y: Any, on: Any) -> None:
    if what == 16:
        z += 1.0
    elif what == 17 and fits(z, y) and np.broadcast_shapes(z.shape, y.shape) == tuple(z.shape):
        z[...] = on.clip(y)
    elif z.ndim and z.shape[0]:
        z[0] = 2.0
