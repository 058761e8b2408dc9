"""Native kernels beside NumPy: complex numbers, whole powers, divmod, one_hot, functions of floats; replayed kernels of NumPy."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import buffer

needs_native = pytest.mark.skipif(buffer.native is None, reason="needs the native library")
EXTREMES = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, -1e30]
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def complex_array(seed: int, shape: tuple[int, ...], kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((2, *shape))
    odd = rng.random((2, *shape)) < 0.2
    parts = np.where(odd, rng.choice(EXTREMES, (2, *shape)), parts)
    result = np.empty(shape, kind)
    result.real, result.imag = parts
    return result


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T if x.ndim == 2 else x,
    "reversed": lambda x: x[::-1],
    "sliced": lambda x: x[..., ::2],
}


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(), (0,), (1,), (7,), (3, 5), (2, 1, 4), (33, 9), (0, 3)]),
    kind=st.sampled_from(["complex64", "complex128"]),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
@settings(max_examples=60, deadline=None)
def test_elementwise_as_numpy(seed: int, shape: tuple[int, ...], kind: str, layout: str) -> None:
    view = LAYOUTS[layout] if shape else LAYOUTS["contiguous"]
    a, b = complex_array(seed, shape, kind), complex_array(seed + 1, shape, kind)
    x, y = view(tt.tensor(a)), view(tt.tensor(b))
    a, b = view(a), view(b)
    with np.errstate(all="ignore"):
        for name in ("add", "subtract", "equal", "not_equal"):
            np.testing.assert_array_equal(getattr(tt, name)(x, y).numpy(), getattr(np, name)(a, b))
        for name in ("negative", "conj", "real", "imag", "positive"):
            np.testing.assert_array_equal(getattr(tt, name)(x).numpy(), getattr(np, name)(a))
        near = {"rtol": 1e-6 if kind == "complex64" else 1e-14, "atol": 0}
        np.testing.assert_allclose(tt.abs(x).numpy(), np.abs(a), **near)
        calm = np.nan_to_num(a, nan=1, posinf=3, neginf=-3), np.nan_to_num(b, nan=2, posinf=5, neginf=-5)
        calm = tuple(np.clip(c.real, -1e9, 1e9) + 1j * np.clip(c.imag, -1e9, 1e9) + (1 + 1j) for c in calm)
        calm = tuple(np.asarray(c, kind) for c in calm)
        left, right = map(tt.tensor, calm)
        scale = np.abs(calm[0]) * np.abs(calm[1]) * near["rtol"]
        assert (np.abs((left * right).numpy() - calm[0] * calm[1]) <= scale * 4).all()
        quotient = calm[0] / calm[1]
        assert (np.abs((left / right).numpy() - quotient) <= np.abs(quotient) * near["rtol"] * 4).all()


@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["complex64", "complex128"]))
@settings(max_examples=30, deadline=None)
def test_moves_and_indices_as_numpy(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    a, b = complex_array(seed, (4, 6), kind), complex_array(seed + 1, (4, 6), kind)
    x, y = tt.tensor(a), tt.tensor(b)
    rows, mask = rng.integers(-4, 4, 5), rng.random((4, 6)) < 0.5
    same = np.testing.assert_array_equal
    same(x[tt.tensor(rows)].numpy(), a[rows])
    same(x[tt.tensor(mask)].numpy(), a[mask])
    same(tt.concat([x, y.T.reshape(4, 6)], axis=1).numpy(), np.concatenate([a, b.T.reshape(4, 6)], axis=1))
    same(tt.stack([x, y], axis=1).numpy(), np.stack([a, b], axis=1))
    same(tt.where(tt.tensor(mask), x, y).numpy(), np.where(mask, a, b))
    same(tt.roll(x, (1, -2), axis=(0, 1)).numpy(), np.roll(a, (1, -2), (0, 1)))
    same(tt.tril(x, k=1).numpy(), np.tril(a, 1))
    same(x.T.contiguous().numpy(), a.T)
    same(tt.expand_dims(x, axis=0).expand(3, 4, 6).contiguous().numpy(), np.broadcast_to(a, (3, 4, 6)))
    for value in (2.5, 3, 1 - 2j, True):
        c, z = a.copy(), x.clone()
        c[rows], z[tt.tensor(rows)] = value, value
        c[0, ::2], z[0, ::2] = value, value
        c[mask], z[tt.tensor(mask)] = value, value
        same(z.numpy(), c)
        with np.errstate(all="ignore"):
            same((x + value).numpy(), a + value)
    c, z = a.copy(), x.clone()
    c[1], z[1] = np.arange(6, dtype=np.float32), tt.arange(6, dtype="f32")
    same(z.numpy(), c)
    assert str(z[1, 2].item()) == str(c[1, 2].item())


@pytest.mark.parametrize("source", ["bool", "i8", "u64", "f16", "bf16", "f32", "f64", "c64", "c128"])
def test_casts_as_numpy(source: str) -> None:
    x = tt.tensor(np.array([[0, 1, 2, 0], [3, 0, 1, 5]])).to(source)
    for view in (x, x.T, x[:, ::-2]):
        for target in ("c64", "c128", "bool"):
            expected = view.numpy().astype(tt.dtype.dtype(target).numpy)
            np.testing.assert_array_equal(view.to(target).numpy(), expected)
    for target in ("c64", "c128"):
        assert tt.full((2, 2), 3, dtype=target).numpy().tolist() == [[3, 3], [3, 3]]
        assert tt.full((2,), 1 - 1j, dtype=target).numpy().tolist() == [1 - 1j] * 2
        assert tt.zeros((2,), dtype=target).numpy().tolist() == [0, 0]


@needs_native
def test_calls_of_complex_numbers_are_replayed_whatever_the_shape() -> None:
    x = tt.ones((3,), dtype="c64")
    for call in (lambda v: v + v, lambda v: v * 2j, tt.conj, tt.real, tt.abs, tt.exp):
        call(x)
        hits = [op.hits for op in (tt.add, tt.multiply, tt.conj, tt.real, tt.abs, tt.exp)]
        call(tt.ones((2, 5), dtype="c64"))
        assert sum(op.hits for op in (tt.add, tt.multiply, tt.conj, tt.real, tt.abs, tt.exp)) == sum(hits) + 1


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(INTEGERS),
    shape=st.sampled_from([((), ()), ((0,), (1,)), ((300,), (300,)), ((4, 1), (5,)), ((3, 4), ())]),
)
@settings(max_examples=60, deadline=None)
def test_whole_powers_wrap_as_numpys(seed: int, kind: str, shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng, numpy_kind = np.random.default_rng(seed), tt.dtype.dtype(kind).numpy
    limits = np.iinfo(numpy_kind)
    a = rng.integers(limits.min, limits.max, shape[0], numpy_kind, endpoint=True)
    b = rng.integers(0, limits.max if seed % 2 else 7, shape[1], numpy_kind, endpoint=True)
    a, b = np.asarray(a, numpy_kind), np.asarray(b, numpy_kind)
    np.testing.assert_array_equal(tt.pow(tt.tensor(a), tt.tensor(b)).numpy(), np.power(a, b))
    np.testing.assert_array_equal((tt.tensor(a) ** 3).numpy(), np.power(a, np.asarray(3, numpy_kind)))


def test_a_negative_power_of_integers_is_refused_before_anything_is_written() -> None:
    x, out = tt.tensor([[1, 2, 3]]), tt.tensor([[7, 7, 7]])
    for powers in (tt.tensor([[2], [1], [-1]]), -1, tt.tensor([0, 0, -5])[::-1]):
        for _ in range(2):
            with pytest.raises(tt.errors.BoundsError, match="an integer to a negative power is not an integer"):
                tt.pow(x, powers)
    with pytest.raises(tt.errors.BoundsError):
        tt.pow(x, tt.tensor([[1, 1, -1]]), out=out)
    assert out.tolist() == [[7, 7, 7]]
    program = tt.compile(lambda a, b: tt.pow(a, b) + 1)
    assert program(x, tt.tensor([[2, 2, 2]])).tolist() == [[2, 5, 10]]
    with pytest.raises(tt.errors.BoundsError, match="negative power"):
        program(x, tt.tensor([[2, 2, -2]]))


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["f16", "f32", "f64", "i8", "i32", "i64", "u8"]),
    shapes=st.sampled_from([((), ()), ((9,), (9,)), ((3, 1), (4,)), ((0,), ()), ((300,), (300,))]),
)
@settings(max_examples=50, deadline=None)
def test_divmod_is_floor_divide_and_remainder(seed: int, kind: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(seed)
    x, y = (tt.tensor(np.asarray(rng.integers(-9 if kind[0] != "u" else 0, 99, s))).to(kind) for s in shapes)
    quotient, rest = tt.divmod(x, y)
    np.testing.assert_array_equal(quotient.numpy(), tt.floor_divide(x, y).numpy())
    np.testing.assert_array_equal(rest.numpy(), tt.remainder(x, y).numpy())
    pair = tt.compile(tt.divmod)(x, y)
    np.testing.assert_array_equal(pair[0].numpy(), quotient.numpy())
    np.testing.assert_array_equal(pair[1].numpy(), rest.numpy())


@needs_native
def test_calls_of_kernels_in_python_are_replayed() -> None:
    x = tt.tensor(np.arange(6, dtype=np.uint16))
    for call, expected in ((lambda v: v + v, [0, 2, 4]), (lambda v: v * 3, [0, 3, 6]), (lambda v: v.sum(axis=0), 3)):
        call(x[:3])
        rows = (tt.add, tt.multiply, tt.sum)
        hits = sum(op.hits for op in rows)
        assert call(x[:3]).tolist() == expected
        assert sum(op.hits for op in rows) == hits + 1
    with pytest.raises(tt.errors.TritiumError, match="65536"):
        x + 65536
    assert (x + 65535).tolist() == [65535, 0, 1, 2, 3, 4]


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(INTEGERS),
    shape=st.sampled_from([(), (0,), (5,), (3, 4), (2, 0, 3)]),
    result=st.sampled_from([None, "bool", "i8", "f16", "f64", "c128"]),
)
@settings(max_examples=40, deadline=None)
def test_one_hot_as_the_definition(seed: int, kind: str, shape: tuple[int, ...], result: str | None) -> None:
    rng = np.random.default_rng(seed)
    indices = rng.integers(0 if kind[0] == "u" else -6, 6, shape)
    x = tt.tensor(np.asarray(indices)).to(kind)
    view = x[::-1] if shape else x
    expected = (indices[::-1] if shape else indices)[..., None] % 6 == np.arange(6)
    hot = tt.one_hot(view, num_classes=6, **({} if result is None else {"dtype": result}))
    np.testing.assert_array_equal(hot.numpy(), expected.astype(hot.numpy().dtype))
    if indices.size:
        with pytest.raises(tt.errors.BoundsError, match="one_hot: index 6 is outside an axis of size 6"):
            tt.one_hot(tt.full(shape, 6, dtype=kind), num_classes=6)


@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["f16", "f32", "f64", "i8", "i16", "i32", "i64"]))
@settings(max_examples=40, deadline=None)
def test_clip_by_numbers_and_sign_as_numpy(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-9, 9, (5, 7)).astype(tt.dtype.dtype(kind).numpy)
    low, high = sorted(rng.integers(-9, 9, 2).tolist())
    if kind[0] == "f":
        a[0, :4] = np.nan, np.inf, -np.inf, -0.0
    for x, b in ((tt.tensor(a), a), (tt.tensor(a).T, a.T), (tt.tensor(a)[::-2, 1:], a[::-2, 1:])):
        np.testing.assert_array_equal(tt.clip(x, low, high).numpy(), np.clip(b, low, high))
        np.testing.assert_array_equal(tt.sign(x).numpy(), np.sign(b))
        if kind[0] == "f":
            assert np.isnan(tt.clip(x, float("nan"), 1.0).numpy()).all()


@pytest.mark.parametrize("k", [2**53, 2**63, 2**64 - 1, 2**70, -(2**53), -(2**63) - 1, -(2**70)])
def test_a_diagonal_outside_of_every_matrix_is_empty(k: int) -> None:
    x = tt.ones((2, 3))
    above, below = (x.tolist(), tt.zeros((2, 3)).tolist()) if k > 0 else (tt.zeros((2, 3)).tolist(), x.tolist())
    for _ in range(2):  # as it is decided, and as it is remembered
        assert not tt.eye(3, 4, k=k).any().item()
        assert tt.tril(x, k=k).tolist() == above
        assert tt.triu(x, k=k).tolist() == below
    with pytest.raises(tt.errors.ArgumentError, match="is no diagonal"):
        tt.triu(x, k=0.5)


ULPS = {"log": 2, "sin": 2, "cos": 2, "log2": 2, "log10": 2, "log1p": 2, "expm1": 2, "sinh": 3, "cosh": 2, "asinh": 2, "acosh": 3,
        "atanh": 2, "tan": 3, "asin": 2, "acos": 2, "atan": 3}  # fmt: skip


FLOATS = int(os.environ.get("TRITIUM_TEST_FLOATS", "3000"))  # of each kind; .ci/long asks for many more


@pytest.mark.parametrize(("name", "ulps"), ULPS.items())
def test_floats_of_any_size_are_exact_to_a_few_ulps_whatever_stands_beside_them(name: str, ulps: int) -> None:
    rng = np.random.default_rng(7)
    near = (1 + rng.standard_normal(FLOATS) * 10.0 ** rng.uniform(-7, 0, FLOATS)).astype(np.float32)
    x = np.concatenate([near, near - 1, rng.uniform(-1e5, 1e5, FLOATS).astype(np.float32)])
    x = np.concatenate(
        [x, rng.integers(0, 2**32, FLOATS, dtype=np.uint32).view(np.float32), np.float32([0, -0.0, 1, -1])]
    )
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.float64))
        result = getattr(tt, name)(tt.tensor(x)).numpy()
        want = exact.astype(np.float32)
        gap = np.abs(result.astype(np.float64) - exact) / np.spacing(np.maximum(np.abs(want), np.float32(1.2e-38)))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(result[~finite], want[~finite])
    assert gap[finite].max() <= (4 if buffer.native is None else ulps)  # NumPy's own are good to 4
    np.testing.assert_array_equal(np.signbit(result[finite]), np.signbit(exact[finite]))
    alone = getattr(tt, name)(tt.tensor(x[::-1].copy())).numpy()[::-1]
    np.testing.assert_array_equal(alone, result)


def test_angles_of_any_floats_are_within_three_ulps() -> None:
    rng = np.random.default_rng(9)
    ends = np.float32([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 1e-38])
    x, y = (np.concatenate([rng.standard_normal(FLOATS), 10.0 ** rng.uniform(-44, 38, FLOATS)]) for _ in range(2))
    pairs = np.array(np.meshgrid(ends, ends), np.float32).reshape(2, -1)
    x, y = np.concatenate([x, pairs[0]]).astype(np.float32), np.concatenate([y, pairs[1]]).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.arctan2(y.astype(np.float64), x.astype(np.float64))
        result = tt.atan2(tt.tensor(y), tt.tensor(x)).numpy()
    gap = np.abs(result - exact) / np.spacing(np.maximum(np.abs(exact), 1.2e-38).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(exact[number]))
    assert gap[number].max() <= 3


def test_powers_of_floats_are_within_two_ulps() -> None:
    rng = np.random.default_rng(8)
    x = np.concatenate([rng.uniform(0, 4, FLOATS), 10.0 ** rng.uniform(-38, 38, FLOATS)]).astype(np.float32)
    y = (rng.standard_normal(2 * FLOATS) * 10.0 ** rng.uniform(-3, 4, 2 * FLOATS)).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        want = exact.astype(np.float32)
        result = tt.pow(tt.tensor(x), tt.tensor(y)).numpy()
        gap = np.abs(result - exact) / np.spacing(np.maximum(np.abs(want), np.float32(1.2e-38)))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(result[~finite], want[~finite])
    assert gap[finite].max() <= 2
