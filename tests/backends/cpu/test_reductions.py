"""Reductions, clip, silu and one_hot on every instruction set, at sizes around their vectors and blocks, of extreme numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from isas import BASES as ISAS
from tritium import ops
from tritium.buffer import native
from tritium.op import Op

KINDS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
WHOLE = {"b8": np.bool_, "i8": np.int8, "i32": np.int32, "i64": np.int64}
EXTREMES = (0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, 3e38, 1.0)
SIZES = (1, 2, 3, 4, 5, 7, 8, 15, 33, 63, 4095, 4097, 66_001)

every_isa = pytest.mark.parametrize("isa", ISAS)


def run(isa: str, op: Op, *xs: Any, **attrs: Any) -> Any:
    """Return the result of the kernel of one instruction set, in memory that held something else."""
    tensors = [x if isinstance(x, tt.Tensor) else tt.tensor(x) for x in xs]
    spec = op.decide(tuple(t.spec for t in tensors), op.complete(attrs)).out
    out = tt.ones(spec.shape, dtype=spec.dtype)
    native.kernel(op.name, isa)(*tensors, out=out, **op.complete(attrs))
    return out.numpy()


def numbers(seed: int, shape: Any, kind: str, nan: bool = False) -> Any:
    """Return numbers with many extremes, perhaps with NaN."""
    rng = np.random.default_rng(seed)
    if kind in WHOLE:
        return rng.integers(-3, 4, shape).astype(WHOLE[kind])
    with np.errstate(all="ignore"):
        x = np.where(rng.random(shape) < 0.3, rng.choice(EXTREMES, shape), rng.standard_normal(shape)).astype(
            KINDS[kind]
        )
    if nan and x.size:
        x.reshape(-1)[rng.integers(x.size)] = np.nan
    return x


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1, ::-1],
    "sliced": lambda x: x[:, ::3],
}


@every_isa
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(1, 1), (3, 5), (9, 70), (70, 9), (17, 300), (300, 17), (2, 4100)]),
    kind=st.sampled_from([*KINDS, *WHOLE]),
    axis=st.sampled_from([None, 0, 1]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    nan=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_extremes_and_truths_as_numpy(
    isa: str, seed: int, shape: tuple[int, ...], kind: str, axis: Any, layout: str, nan: bool
) -> None:
    x = numbers(seed, shape, kind, nan)
    a, b = LAYOUTS[layout](x), LAYOUTS[layout](tt.tensor(x))
    for op, want in ((ops.any, np.any), (ops.all, np.all), (ops.max, np.max), (ops.min, np.min)):
        if kind != "b8" or op in (ops.any, ops.all):
            expected = want(a.astype(np.float64) if kind in KINDS else a, axis=axis)
            np.testing.assert_array_equal(run(isa, op, b, axis=axis).astype(expected.dtype), expected, op.name)


@every_isa
@pytest.mark.parametrize("kind", [*KINDS, *WHOLE])
def test_one_element_decides_any_and_all_wherever_it_is(isa: str, kind: str) -> None:
    dtype = (KINDS | WHOLE)[kind]
    for n in SIZES:
        for place in {0, n // 2, n - 1}:
            x = np.zeros(n, dtype) if kind in WHOLE else np.where(np.arange(n) % 2, dtype(0), dtype(-0.0))
            assert not run(isa, ops.any, x)
            x[place] = 1 if kind in WHOLE else np.nan
            assert run(isa, ops.any, x)
            x = np.ones(n, dtype)
            assert run(isa, ops.all, x)
            x[place] = 0 if kind in WHOLE else -0.0
            assert not run(isa, ops.all, x)


@every_isa
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_one_element_is_the_extreme_wherever_it_is(isa: str, kind: str) -> None:
    for n in SIZES:
        for place in {0, n // 2, n - 1}:
            for value in (np.inf, 5.0, np.nan, -5.0, -np.inf):
                x = np.linspace(-1, 1, n).astype(KINDS[kind])
                x[place] = value
                for op, want in ((ops.max, np.max), (ops.min, np.min)):
                    np.testing.assert_array_equal(run(isa, op, x), want(x))
                for op, want in ((ops.argmax, np.argmax), (ops.argmin, np.argmin)):
                    assert run(isa, op, x) == want(x)


@every_isa
def test_of_nothing_any_is_false_and_all_is_true(isa: str) -> None:
    x = np.zeros((0, 3), np.float32)
    np.testing.assert_array_equal(run(isa, ops.any, x, axis=0), [False] * 3)
    np.testing.assert_array_equal(run(isa, ops.all, x, axis=0), [True] * 3)
    assert run(isa, tt.prod, x) == 1


@every_isa
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_neither_overflows_nor_vanishes_on_the_way(isa: str, kind: str) -> None:
    rtol = {"f16": 1e-3, "bf16": 8e-3, "f32": 5e-7, "f64": 1e-12}[kind]
    for n in (1, 2, 3, 31, 32, 33, 63, 65, 400):
        x = np.exp(np.random.default_rng(n).uniform(-0.01, 0.01, n))
        x[: n // 2] *= 8
        x[n // 2 : n // 2 * 2] /= 8
        x = x.astype(KINDS[kind])
        want = float(np.prod(x.astype(np.float64)))
        np.testing.assert_allclose(float(run(isa, tt.prod, x)), want, rtol=rtol)
        np.testing.assert_allclose(
            run(isa, tt.prod, np.stack([x] * 9, axis=1), axis=0).astype(np.float64), [want] * 9, rtol=rtol
        )


def clipped(x: Any, low: Any, high: Any) -> Any:
    raised = np.where(x < low, low, x)
    result = np.where(raised > high, high, raised)
    return np.where(np.isnan(low) | np.isnan(high), np.nan, result).astype(x.dtype)


@every_isa
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(1, 1), (3, 5), (2, 35), (40, 33), (9, 4)]),
    bounds=st.tuples(*[st.sampled_from(["number", "row", "column", "whole", "strided"])] * 2),
    zeros=st.booleans(),
    nan=st.booleans(),
    kind=st.sampled_from(["f32", "f64"]),
)
@settings(max_examples=80, deadline=None)
def test_clip_has_the_bits_of_its_definition(
    isa: str, seed: int, shape: tuple[int, int], bounds: tuple[str, str], zeros: bool, nan: bool, kind: str
) -> None:
    def bound(i: int) -> Any:
        size = {"number": (), "row": shape[1:], "column": (shape[0], 1), "whole": shape, "strided": (2 * shape[1],)}[
            bounds[i]
        ]
        b = numbers(seed + i, size, kind, nan) if size else np.asarray(numbers(seed + i, (1,), kind, nan)[0])
        return b if zeros else np.where(b == 0, b.dtype.type(0.5), b)

    x, low, high = numbers(seed + 2, shape, kind, nan), bound(0), bound(1)
    views = [
        tt.tensor(b)[::2] if how == "strided" else tt.tensor(b) for b, how in zip((low, high), bounds, strict=True)
    ]
    low, high = (b[::2] if how == "strided" else b for b, how in zip((low, high), bounds, strict=True))
    got, want = run(isa, ops.clip, x, *views), clipped(x, low, high)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got) | np.isnan(got), np.signbit(want) | np.isnan(want))


@every_isa
def test_silu_of_an_element_does_not_depend_on_its_neighbours(isa: str) -> None:
    x = np.concatenate([numbers(1, 40, "f32", nan=True), np.linspace(-210, 210, 600, dtype=np.float32)])
    x[[3, 5, 7]] = np.inf, -np.inf, -0.0
    whole = run(isa, ops.silu, x)
    np.testing.assert_array_equal(whole[[3, 5, 7]], [np.inf, np.nan, -0.0])
    assert np.signbit(whole[7])
    for begin, n in ((0, 1), (1, 2), (2, 3), (3, 5), (630, 10), (5, 31)):
        np.testing.assert_array_equal(run(isa, ops.silu, x[begin : begin + n]), whole[begin : begin + n])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        np.testing.assert_allclose(whole, (wide / (1 + np.exp(-wide))).astype(np.float32), rtol=2e-7)


@pytest.mark.skipif(native is None, reason="needs the native library")
@pytest.mark.parametrize("dtype", [tt.bool, tt.i8, tt.f16, tt.f32, tt.f64, tt.complex128], ids=str)
def test_one_hot_of_many_indices(dtype: Any) -> None:
    for index, classes in ((np.int64, 4), (np.uint8, 200), (np.int8, 3)):
        x = np.random.default_rng(0).integers(0, min(classes, 100), (3, 2100)).astype(index)
        want = np.eye(classes)[x].astype(dtype.numpy)
        np.testing.assert_array_equal(tt.one_hot(tt.tensor(x), num_classes=classes, dtype=dtype).numpy(), want)
        np.testing.assert_array_equal(
            tt.one_hot(tt.tensor(x)[::-1, ::2], num_classes=classes, dtype=dtype).numpy(), want[::-1, ::2]
        )
        for view in (lambda y: y[:, :, ::2], lambda y: y[:, ::2], lambda y: y[::-1]):
            doubled = [n * (1 + (n != m)) for n, m in zip(want.shape, view(want).shape, strict=True)]
            out = view(tt.ones(doubled, dtype=dtype))
            tt.one_hot(tt.tensor(x), num_classes=classes, dtype=dtype, out=out)
            np.testing.assert_array_equal(out.numpy(), want)


@pytest.mark.skipif(native is None, reason="needs the native library")
def test_an_index_outside_of_one_hot_is_named_before_anything_is_written() -> None:
    x, out = np.zeros(5000, np.int64), tt.ones((5000, 4))
    x[4999] = 4
    with pytest.raises(tt.errors.BoundsError, match="one_hot: index 4 is outside"):
        tt.one_hot(tt.tensor(x), num_classes=4, out=out)
    assert (out == 1).all()


@pytest.mark.skipif(native is None, reason="needs the native library")
@pytest.mark.parametrize("k", [-300, -1, 0, 7])
def test_eye_of_many_rows_and_into_views(k: int) -> None:
    np.testing.assert_array_equal(tt.eye(301, 517, k=k).numpy(), np.eye(301, 517, k=k))
    for view in (lambda y: y[::2], lambda y: y[:, ::2], lambda y: y[:300, 3:503]):
        out = view(tt.ones((600, 1000)))
        tt.eye(*out.shape, k=k, out=out)
        np.testing.assert_array_equal(out.numpy(), np.eye(*out.shape, k=k))
