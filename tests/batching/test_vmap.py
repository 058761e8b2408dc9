"""vmap: the results of a loop over the samples, stacked; nested, compiled and lazy too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.errors import ArgumentError, ShapeError, TraceError

W = tt.asarray((np.arange(12, dtype=np.float32) % 5 - 2).reshape(3, 4))

# Functions of two samples of shapes (3,) and (2, 3). Their values are small whole numbers: every order of sums is exact.
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "elementwise": lambda a, b: tt.relu(a * 2 - b) + 1,
    "product": lambda a, b: a @ W,
    "products": lambda a, b: b @ a,
    "sums": lambda a, b: (a.sum(), b.sum(axis=0), b.max(axis=-1, keepdims=True)),
    "views": lambda a, b: {"t": b.T, "r": b.reshape(3, 2)[1:], "e": tt.expand_dims(a, axis=-1), "f": a[::-1]},
    "moves": lambda a, b: [tt.concat([a, b[0]]), tt.stack([b[1], a], axis=-1), tt.roll(b, 1, axis=0)],
    "order": lambda a, b: (tt.sort(a), tt.argmax(b, axis=1), tt.cumulative_sum(a, axis=0)),
    "writes": lambda a, b: written(a, b),
    "where": lambda a, b: tt.where(b > a, b, -a),
    "indices": lambda a, b: tt.take(b, tt.asarray([2, 0]), axis=1),
    "shared": lambda a, b: (W.sum(axis=0), a + 1),
}


def written(a: Any, b: Any) -> Any:
    c = b.clone()
    c[1] = a * 3
    c += 1
    return c


class Case(NamedTuple):
    """Arguments of a mapped function, and its axes."""

    in_axes: tuple[int | None, int | None]
    args: tuple[tt.Tensor, tt.Tensor]
    n: int


@st.composite
def mapped_arguments(draw: Any) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    n = draw(st.integers(1, 4))
    axes = draw(
        st.tuples(st.none() | st.integers(-2, 1), st.none() | st.integers(-3, 2)).filter(lambda a: a != (None, None))
    )
    args = []
    for shape, axis in zip(((3,), (2, 3)), axes, strict=True):
        full = list(shape)
        if axis is not None:
            full.insert(axis % (len(shape) + 1), n)
        args.append(tt.asarray(rng.integers(-4, 5, full).astype(np.float32)))
    return Case(axes, (args[0], args[1]), n)


def flat(result: Any) -> list[Any]:
    if isinstance(result, dict):
        result = list(result.values())
    return [x for part in result for x in flat(part)] if isinstance(result, (tuple, list)) else [result]


def loop(fn: Callable[..., Any], case: Case) -> list[Any]:
    """What vmap stands for: call fn with each sample, and stack the results."""
    results = []
    for i in range(case.n):
        pairs = zip(case.args, case.in_axes, strict=True)
        results.append(flat(fn(*(x if a is None else tt.asarray(np.take(x.numpy(), i, axis=a)) for x, a in pairs))))
    return [np.stack([r.numpy() for r in column]) for column in zip(*results, strict=True)]


@given(case=mapped_arguments(), name=st.sampled_from(sorted(FUNCTIONS)), out_axis=st.integers(-1, 0))
@settings(max_examples=60)
def test_results_are_those_of_a_loop(case: Case, name: str, out_axis: int) -> None:
    fn = FUNCTIONS[name]
    mapped = tt.vmap(fn, in_axes=case.in_axes, out_axes=out_axis)
    wanted = [np.moveaxis(x, 0, out_axis) for x in loop(fn, case)]
    for got in (mapped(*case.args), tt.compile(mapped)(*case.args)):
        for x, y in zip(flat(got), wanted, strict=True):
            np.testing.assert_array_equal(x.numpy(), y, strict=True)


def test_vmap_is_nested_and_reads_the_samples_of_the_outer_function() -> None:
    x, y = tt.arange(6.0).reshape(2, 3), tt.arange(8.0).reshape(4, 2)
    table = tt.vmap(lambda a: tt.vmap(lambda b: tt.vmap(lambda c: a * b[0] + c)(b))(y))(x)
    wanted = x.numpy()[:, None, None] * y.numpy()[:, 0, None, None] + y.numpy()[:, :, None]
    np.testing.assert_array_equal(table.numpy(), wanted)
    outer = tt.compile(tt.vmap(lambda a: tt.vmap(lambda b, a: a[:2] + b, in_axes=(0, None))(y, a)))
    np.testing.assert_array_equal(outer(x).numpy(), x.numpy()[:, None, :2] + y.numpy())


def test_an_outer_sample_is_read_as_it_is_at_that_moment() -> None:
    def fn(a: Any) -> Any:
        total = a.clone()
        before = tt.vmap(lambda b: b + total)(W.T)
        total += 100
        return before, tt.vmap(lambda b: b + total)(W.T)

    x = tt.arange(6.0).reshape(2, 3)
    before, after = tt.vmap(fn)(x)
    np.testing.assert_array_equal(before.numpy(), W.numpy().T + x.numpy()[:, None])
    np.testing.assert_array_equal(after.numpy(), before.numpy() + 100)


def test_axes_have_the_structure_of_arguments_and_results() -> None:
    params = {"w": tt.ones((3, 5)), "b": (tt.arange(5.0), tt.ones(3))}
    axes = {"w": 1, "b": (0, None)}
    fn = tt.vmap(lambda p, x: {"y": p["w"] * x, "z": (p["b"][0], p["b"][1])}, (axes, None), {"y": 1, "z": (0, None)})
    result = fn(params, tt.full((3,), 2.0))
    assert result["y"].shape == (3, 5)
    assert result["z"][0].tolist() == [0, 1, 2, 3, 4]
    assert result["z"][1].tolist() == [1, 1, 1]


def test_numbers_arrays_and_keywords() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    fn = tt.vmap(lambda a, k, *, shift: a * k + shift)
    np.testing.assert_array_equal(fn(x, 2, shift=tt.arange(3.0)).numpy(), x * 2 + np.arange(3)[:, None])
    assert tt.vmap(lambda a: a.sum())(x[:0]).shape == (0,)
    assert tt.vmap(lambda a: (a, "label"))(x)[1] == "label"


def test_a_mapped_function_is_lazy_and_takes_compiled_functions() -> None:
    x = tt.arange(6.0).reshape(3, 2)
    inner = tt.compile(lambda a: a * 2)
    with tt.lazy():
        y = tt.vmap(inner)(x)
    assert y.materialize().tolist() == (x * 2).tolist() == tt.vmap(inner)(x).tolist()


def test_every_sample_has_its_own_results() -> None:
    x = tt.zeros((2, 3))
    y = tt.vmap(lambda a: a)(x)
    y += 1
    assert x.tolist() == [[0] * 3] * 2


X = tt.ones((5, 3))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: tt.vmap(3), ArgumentError, "a function is needed, given int"),
        (lambda: tt.vmap(abs, in_axes="0"), ArgumentError, "in_axes must be an int, None"),
        (lambda: tt.vmap(abs, in_axes=True), ArgumentError, "in_axes must be an int, None"),
        (lambda: tt.vmap(abs, out_axes=0.5), ArgumentError, "out_axes must be an int, None"),
        (lambda: tt.vmap(abs, in_axes=(0.5,))(X), ArgumentError, "0.5 for argument 0, a tensor; give an int"),
        (lambda: tt.vmap(tt.add)(X, X[:3]), ShapeError, r"5 for argument 0 \(f32\[5,3\]\) along axis 0 and 3 for argument 1"),
        (lambda: tt.vmap(tt.abs, 2)(X), ShapeError, "axis 2 of argument 0, which has 2 dimensions"),
        (lambda: tt.vmap(tt.abs)(tt.ones(())), ShapeError, "axis 0 of argument 0, which has 0 dimensions; it has none"),
        (lambda: tt.vmap(tt.abs, out_axes=2)(X), ShapeError, "axis 2 of the result"),
        (lambda: tt.vmap(tt.abs, in_axes=(0, 1))(X), ArgumentError, "in_axes has 2 axes, but 1 positional"),
        (lambda: tt.vmap(tt.abs, in_axes=None)(X), ArgumentError, "no argument is mapped"),
        (lambda: tt.vmap(lambda d: d["a"], ({"b": 0},))({"a": X}), ArgumentError, "argument 0, which is a dict of 1"),
        (lambda: tt.vmap(lambda d: d[0], ((0, 0),))([X]), ArgumentError, "argument 0, which is a list of 1"),
        (lambda: tt.vmap(tt.abs, out_axes=None)(X), ArgumentError, "the result, which differs from sample to sample"),
        (lambda: tt.vmap(lambda a: None)(X), TraceError, "returned None; return a tensor"),
        (lambda: tt.vmap(lambda a: a[a > 0])(X), TraceError, "the size of the result depends on values"),
        (lambda: tt.vmap(lambda a: a.add_(1))(X), TraceError, "writes to an argument"),
        (lambda: tt.vmap(tt.rms_norm)(X, X), TraceError, "cannot be mapped: %2 = rms_norm: weight"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_an_inner_function_does_not_write_what_all_its_samples_share() -> None:
    def fn(a: Any) -> Any:
        shared = a.clone()
        return tt.vmap(lambda b: shared.add_(b))(W.T)

    with pytest.raises(TraceError, match="writes to a tensor from outside"):
        tt.vmap(fn)(X)
