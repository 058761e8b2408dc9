"""Random indexing expressions: a base of any layout, a key of any mix of parts, and a value to write."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

DTYPES = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class Case(NamedTuple):
    """An expression: NumPy's base, key and value; `wrong` where parts of the key may be out of bounds."""

    base: Any
    key: Any
    value: Any


def lay_out(draw: random.Random, a: Any) -> Any:
    """Return a view of an array: transposed, turned around, or with steps."""
    for _ in range(draw.randrange(3)):
        which = draw.randrange(4)
        axis = draw.randrange(max(a.ndim, 1))
        if which == 0 and a.ndim > 1:
            a = a.transpose(draw.sample(range(a.ndim), a.ndim))
        elif which in (1, 2) and a.ndim:
            part = slice(None, None, -1) if which == 1 else slice(draw.randrange(2), None, draw.choice([1, 2]))
            a = a[(slice(None),) * axis + (part,)]
    return a


def draw_base(draw: random.Random) -> Any:
    shape = [draw.randint(0 if draw.random() < 0.15 else 1, 5) for _ in range(draw.randint(0, 4))]
    a = (np.arange(np.prod(shape, dtype=int)) % 120).astype(draw.choice(DTYPES)).reshape(shape)
    return lay_out(draw, a)


class KeyMaker:
    """A random key for one shape; index tensors of a key broadcast."""

    def __init__(self, draw: random.Random, shape: tuple[int, ...]) -> None:
        self.draw, self.shape, self.axis = draw, shape, 0
        self.wrong = draw.random() < 0.08
        self.block = [draw.randint(1, 3) for _ in range(draw.randint(0, 2))]

    def make(self) -> Any:
        parts: list[Any] = []
        while len(parts) < 8 and (self.axis < len(self.shape) or self.draw.random() < 0.2):
            part = self._part(... in [p for p in parts if p is ...])
            if part is KeyMaker:
                break
            parts.append(part)
            if self.draw.random() < 0.08:
                break
        return parts[0] if len(parts) == 1 and self.draw.random() < 0.7 else tuple(parts)

    def _part(self, has_ellipsis: bool) -> Any:
        which = self.draw.random()
        if which < 0.1:
            return None
        if which < 0.18 and not has_ellipsis:
            self.axis += self.draw.randint(0, len(self.shape) - self.axis) if self.axis <= len(self.shape) else 0
            return ...
        if which < 0.22:
            return self.draw.choice([True, False, np.bool_(True), np.array(False)])
        if self.axis >= len(self.shape):
            return 0 if self.wrong else KeyMaker
        if which < 0.38 and self.shape[self.axis]:
            return self.draw.choice([int, np.int64])(self._index())
        if which < 0.6 or not self.shape[self.axis]:
            ends = (self.draw.choice([None, self.draw.randint(-6, 6)]) for _ in range(2))
            self.axis += 1
            return slice(*ends, self.draw.choice([None, 1, 2, -1, -2, 3]))
        return self._tensor() if which < 0.85 else self._mask()

    def _index(self, moves: bool = True) -> int:
        size = self.shape[self.axis]
        over = self.wrong and self.draw.random() < 0.3
        self.axis += moves
        return self.draw.randint(-size - over, size - 1 + over)

    def _tensor(self) -> Any:
        shape = [n if self.draw.random() < 0.7 else 1 for n in self.block][self.draw.choice([0, 0, 0, 1]) :]
        values = [self._index(moves=False) for _ in range(int(np.prod(shape)))]
        index = np.array(values, np.int64).reshape(shape)
        self.axis += 1
        if self.draw.random() < 0.2:
            return index.tolist()
        signed = self.draw.choice(DTYPES[1:5])
        index = index.astype(signed if (index < 0).any() else self.draw.choice(DTYPES[1:9]))
        return lay_out(self.draw, index) if self.draw.random() < 0.3 else index

    def _mask(self) -> Any:
        ndim = self.draw.randint(1, min(2, len(self.shape) - self.axis))
        shape = list(self.shape[self.axis : self.axis + ndim])
        shape[-1] += self.wrong and self.draw.random() < 0.3
        mask = np.array([self.draw.random() < 0.4 for _ in range(int(np.prod(shape)))], bool).reshape(shape)
        self.axis += ndim
        return mask.tolist() if ndim == 1 and self.draw.random() < 0.2 else mask


def draw_value(draw: random.Random, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a number, or an array that mostly broadcasts to a shape; an element takes a number."""
    sizes = [n if draw.random() < 0.7 else 1 for n in shape][draw.choice([0, 0, 1]) :] if draw.random() < 0.6 else []
    if shape and draw.random() < 0.1:
        sizes = [1, *sizes]
    if shape and draw.random() < 0.05:
        sizes = [*sizes, 7]
    value = (np.arange(np.prod(sizes, dtype=int)) % 100).astype(dtype).reshape(sizes)
    return value.item() if not sizes and (not shape or draw.random() < 0.7) else value


def draw_case(seed: int) -> Case:
    draw = random.Random(seed)
    base = draw_base(draw)
    key = KeyMaker(draw, base.shape).make()
    try:
        shape = np.shape(base[key])
    except (IndexError, ValueError):
        shape = ()
    return Case(base, key, draw_value(draw, shape, base.dtype))


def written(case: Case) -> Any:
    """Return the base after base[key] = value, the last of several writes to one element in the order of the key."""
    places = np.arange(case.base.size).reshape(case.base.shape)[case.key]
    value = np.asarray(case.value, case.base.dtype)
    surplus = max(value.ndim - np.ndim(places), 0)
    wide = np.broadcast_to(value.reshape(value.shape[surplus:]), np.shape(places))
    flat = case.base.copy(order="C").reshape(-1)
    for place, number in zip(np.ravel(places), np.ravel(wide), strict=True):
        flat[place] = number
    return flat.reshape(case.base.shape)
