"""Random functions of awkward ops: sorting, indexing, scatters, writes, quantisation, several results, an op of the user's own.

The same seed gives the same function. Values are f32 of one shape, so that every op can follow every other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

import tritium as tt
from own_ops import registered
from tritium.buffer import host

Word = Callable[[Any, Any, Any], Any]  # of two values and a random number of this place: a value


@cache
def _numbers(size: int, k: int) -> Any:
    return tt.tensor([(k * 7 + 3 * i) % size for i in range(size)])


def _indices(x: Any, k: int) -> Any:
    """Return row numbers as a tensor that the function captures."""
    return _numbers(x.shape[0], k)


def _write_rows(x: Any, y: Any, k: int) -> Any:
    z = x.clone()
    z[_indices(x, k)[:1]] = y[:1]
    z[:, :: 1 + k % 2] *= 0.5
    return z


def _quantised(x: Any, y: Any, k: int) -> Any:
    codes, scale = (tt.quantize_int8 if k % 2 else tt.quantize_int4)(x, axis=0)[:2]
    return tt.dequantize(codes, scale.reshape(-1)) * 1.0


def _ordered(x: Any, y: Any, k: int) -> Any:
    return tt.take_along_axis(y, tt.argsort(x, axis=k % 2, descending=k % 3 == 0), axis=k % 2)


def _bins(x: Any, y: Any, k: int) -> Any:
    edges = tt.linspace(-1.0, 1.0, 7)
    return tt.searchsorted(edges, x.reshape(-1)).reshape(x.shape).to("f32") * 0.25


def _classes(x: Any, y: Any, k: int) -> Any:
    n = x.shape[1]
    return tt.one_hot(tt.argmax(x, axis=1), num_classes=n).to("f32") - y


AWKWARD: dict[str, Word] = {
    "sort": lambda x, y, k: tt.sort(x, axis=k % 2, descending=k % 3 == 0),
    "order": _ordered,
    "roll": lambda x, y, k: tt.roll(x, k % 5 - 2, axis=k % 2),
    "gather": lambda x, y, k: x[_indices(x, k)],
    "pairs": lambda x, y, k: x[_indices(x, k), _indices(x, k + 1) % x.shape[1]][:, None] + y,
    "write": _write_rows,
    "scatter": lambda x, y, k: tt.scatter(x, _indices(x, k), y, axis=0, mode="add"),
    "bins": _bins,
    "divmod": lambda x, y, k: tt.divmod(x, 0.75)[k % 2],
    "classes": _classes,
    "quantised": _quantised,
    "flat": lambda x, y, k: tt.concat([x[::-1], y.mT], axis=None)[: x.size].reshape(x.shape),
    "repeat": lambda x, y, k: tt.repeat(x, 2, axis=k % 2)[: x.shape[0], : x.shape[1]] + y,
    "half": lambda x, y, k: (x.to("f16") * 2.0 - y.to("f16")).to("f32"),
    "whole": lambda x, y, k: ((x * 8.0).to("i32") // 3 % 5).to("f32"),
    "steps": lambda x, y, k: x * tt.arange(x.shape[1], dtype=tt.f32) / x.shape[1],
    "power": lambda x, y, k: tt.abs(x) ** 1.5 - y,
}
PLAIN: dict[str, Word] = {
    "chain": lambda x, y, k: tt.tanh(x * 0.5 + y) - 0.25,
    "softmax": lambda x, y, k: tt.softmax(x) * y,
    "norm": lambda x, y, k: (x - x.mean(axis=-1, keepdims=True)) * 0.5,
    "product": lambda x, y, k: tt.clip(x @ (y.mT @ x) * 0.1, -2.0, 2.0),
    "where": lambda x, y, k: tt.where(x > y, x, -y),
    "total": lambda x, y, k: tt.clip(tt.cumulative_sum(x, axis=1), -4.0, 4.0),
    "view": lambda x, y, k: x[::-1] + y[:, ::-1],
}


def _own(x: tt.Spec, /) -> tt.Spec:
    """x rounded to quarters."""
    return x


def _round(x: Any, *, out: Any) -> None:
    np.floor(host(x) * np.float32(4), out=host(out))
    host(out)[...] *= np.float32(0.25)


@contextmanager
def words() -> Iterator[dict[str, Word]]:
    """Yield all words, an op with a kernel in Python among them."""
    with registered(_own, _round) as own:
        yield {**AWKWARD, **PLAIN, "own": lambda x, y, k: own(x)}


def function(seed: int, known: dict[str, Word]) -> tuple[str, Callable[[Any, Any], Any]]:
    """Return a random function of two tensors, and its words: awkward ones and plain ones in turn, more or less."""
    rng = random.Random(seed)
    names = [rng.choice(list(known if rng.random() < 0.6 else PLAIN)) for _ in range(rng.randint(2, 9))]
    if not any(n in AWKWARD or n == "own" for n in names):
        names[rng.randrange(len(names))] = rng.choice([*AWKWARD, "own"])
    plan = [(known[n], rng.randrange(1000), rng.randrange(1000), rng.randrange(1000)) for n in names]
    several = rng.random() < 0.3

    def fn(x: Any, y: Any) -> Any:
        values = [x, y]
        for word, i, j, k in plan:
            values.append(word(values[-1] if i % 3 else values[i % len(values)], values[j % len(values)], k))
        return (values[-1], values[-2], values[-1].max(axis=0)) if several else values[-1]

    return " ".join(names), fn


def operands(shape: tuple[int, int], seed: int) -> tuple[Any, Any]:
    return tt.clip(tt.randn(shape, seed=seed), -2.0, 2.0), tt.clip(tt.randn(shape, seed=seed + 1), -2.0, 2.0)
