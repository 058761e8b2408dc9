"""Names that are a few rows in a row, against NumPy's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import buffer, dtype as dt, functions
from tritium.backends.reference import philox
from tritium.dtype import ALL
from tritium.errors import ArgumentError, DTypeError, ShapeError, TraceError


def model(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(-5, 5, shape).astype(np.float32)


def same(got: Any, want: Any) -> None:
    if isinstance(want, (tuple, list)):
        for g, w in zip(got, want, strict=True):
            same(g, w)
        return
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


X, Y = model(3, 4), model(3, 4)
x, y = tt.tensor(X), tt.tensor(Y)

AS_NUMPY: list[tuple[str, Any, Any]] = [
    (
        "broadcast_arrays",
        lambda: tt.broadcast_arrays(x, x[:1, :1], x[0]),
        lambda: np.broadcast_arrays(X, X[:1, :1], X[0]),
    ),
    ("meshgrid", lambda: tt.meshgrid(x[0], x[:, 0], x[1]), lambda: np.meshgrid(X[0], X[:, 0], X[1])),
    (
        "meshgrid ij",
        lambda: tt.meshgrid(x[0], x[:, 0], indexing="ij"),
        lambda: np.meshgrid(X[0], X[:, 0], indexing="ij"),
    ),
    ("unstack", lambda: tt.unstack(x, axis=1), lambda: list(X.T)),
    ("split", lambda: tt.split(x, 2, axis=1), lambda: np.split(X, 2, axis=1)),
    ("split sizes", lambda: tt.split(x, [1, 0, 2]), lambda: [X[:1], X[1:1], X[1:]]),
    ("repeat", lambda: tt.repeat(x, 2), lambda: np.repeat(X, 2)),
    ("repeat axis", lambda: tt.repeat(x, 3, axis=-1), lambda: np.repeat(X, 3, axis=-1)),
    ("repeat each", lambda: tt.repeat(x, tt.tensor([0, 2, 1]), axis=0), lambda: np.repeat(X, [0, 2, 1], axis=0)),
    ("tile", lambda: tt.tile(x, (2, 3)), lambda: np.tile(X, (2, 3))),
    ("tile longer", lambda: tt.tile(x, (2, 1, 3)), lambda: np.tile(X, (2, 1, 3))),
    ("tile shorter", lambda: tt.tile(x, (2,)), lambda: np.tile(X, (2,))),
    ("tile none", lambda: tt.tile(x, (0, 1)), lambda: np.tile(X, (0, 1))),
    ("vecdot", lambda: tt.vecdot(x, y), lambda: np.vecdot(X, Y)),
    ("vecdot axis", lambda: tt.vecdot(x, y, axis=-2), lambda: np.vecdot(X, Y, axis=-2)),
    ("vecdot broadcast", lambda: tt.vecdot(x, y[0]), lambda: np.vecdot(X, Y[0])),
    ("tensordot", lambda: tt.tensordot(x, y), lambda: np.tensordot(X, Y)),
    ("tensordot 1", lambda: tt.tensordot(x, y.T, axes=1), lambda: np.tensordot(X, Y.T, axes=1)),
    ("tensordot 0", lambda: tt.tensordot(x, y, axes=0), lambda: np.tensordot(X, Y, axes=0)),
    ("tensordot pairs", lambda: tt.tensordot(x, y, axes=((0,), (0,))), lambda: np.tensordot(X, Y, axes=((0,), (0,)))),
    ("diff", lambda: tt.diff(x), lambda: np.diff(X)),
    ("diff n", lambda: tt.diff(x, n=2, axis=0), lambda: np.diff(X, n=2, axis=0)),
    ("diff ends", lambda: tt.diff(x, prepend=x[:, :1], append=x), lambda: np.diff(X, prepend=X[:, :1], append=X)),
    ("searchsorted", lambda: tt.searchsorted(tt.arange(5), x), lambda: np.searchsorted(np.arange(5), X)),
    (
        "searchsorted by",
        lambda: tt.searchsorted(tt.tensor([3, 1, 2]), x, sorter=tt.tensor([1, 2, 0]), side="right"),
        lambda: np.searchsorted([1, 2, 3], X, side="right"),
    ),
    ("swish", lambda: tt.swish(x), lambda: X / (1 + np.exp(-X))),
]


@pytest.mark.parametrize(("got", "want"), [c[1:] for c in AS_NUMPY], ids=[c[0] for c in AS_NUMPY])
def test_a_function_gives_what_numpys_gives(got: Any, want: Any) -> None:
    same(got(), want())


@pytest.mark.parametrize(
    "parts", [lambda t: tt.split(t, 2, axis=1), lambda t: tt.unstack(t), lambda t: tt.broadcast_arrays(t, t)]
)
def test_parts_are_views(parts: Any) -> None:
    assert all(p.storage is x.storage for p in parts(x))


def test_meshgrid_does_not_share_memory() -> None:
    first, second = tt.meshgrid(x[0], x[:, 0])
    first += 1
    assert first.storage is not second.storage
    assert x.tolist() == X.tolist()


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: tt.split(x, 3, axis=1), ShapeError, r"axis 1 of f32\[3,4\] does not divide into 3 equal parts"),
    (lambda: tt.split(x, [1, 1]), ShapeError, r"sizes \(1, 1\) do not add up to the 3 of axis 0"),
    (lambda: tt.meshgrid(x[0], indexing="yx"), ArgumentError, "use 'xy' or 'ij'"),
    (lambda: tt.meshgrid(x[0], tt.arange(3)), DTypeError, "one dtype"),
    (lambda: tt.vecdot(x, y, axis=0), ShapeError, "must be negative"),
    (lambda: tt.vecdot(x, y[:, :2]), ShapeError, r"differ: f32\[3,4\] and f32\[3,2\]"),
    (lambda: tt.tensordot(x, y, axes=3), ShapeError, "axes=3 but the tensors have 2 and 2"),
    (lambda: tt.tensordot(x, y, axes=1), ShapeError, "differ in size"),
    (lambda: tt.repeat(x, tt.tensor([1, 2]), axis=0), ShapeError, "2 repeats for axis 0"),
    (lambda: tt.searchsorted(x, y), ShapeError, r"one dimension, given f32\[3,4\]"),
    (lambda: tt.randint(3, 3, 2, seed=1), ArgumentError, r"\[3, 3\) is empty"),
]


@pytest.mark.parametrize(("act", "error", "says"), WRONG)
def test_what_does_not_fit_is_named(act: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        act()


@given(st.integers(0, 2**63 - 1), st.sampled_from(("f16", "bf16", "f32", "f64")))
def test_uniform_numbers_lie_in_0_to_1(seed: int, kind: str) -> None:
    u = tt.rand(64, seed=seed, dtype=kind)
    assert u.dtype == kind
    assert tt.all(u >= 0)
    assert tt.all(u < 1)


def test_random_numbers_have_the_right_spread() -> None:
    u, n = tt.rand(100_000, seed=1), tt.randn(100_000, seed=2)
    assert abs(u.mean().item() - 0.5) < 0.01
    assert abs(u.var().item() - 1 / 12) < 0.01
    assert abs(n.mean().item()) < 0.02
    assert abs(n.var().item() - 1) < 0.03


def test_a_seed_gives_known_bits() -> None:
    """Philox4x32-10 with key 0 and counter 0 begins with these words (Random123's known answers)."""
    words = philox.blocks_of(0, 1).tolist()[0]
    assert [hex(w) for w in words] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert tt.rand(1, seed=0).item() == (0x6627E8D5 >> 8) * 2.0**-24


def test_a_longer_draw_begins_with_the_shorter() -> None:
    assert tt.rand(10, seed=5).tolist() == tt.rand(100, seed=5)[:10].tolist()


def test_functions_can_be_traced() -> None:
    def fn(t: Any) -> Any:
        a, b = tt.split(t, 2, axis=1)
        return tt.tensordot(a, b.T, axes=1) + tt.vecdot(a, b) + tt.tile(tt.diff(t), (1, 1))[:, :3]

    same(tt.trace(fn, x)(x), fn(x).numpy())


def test_the_inspection_interface_answers() -> None:
    info = tt.__array_namespace_info__()
    assert info.default_device() == "cpu"
    assert "cpu" in [str(d) for d in info.devices()]
    assert info.default_dtypes()["real floating"] is tt.f32
    assert info.capabilities()["max dimensions"] == tt.buffer.MAX_DIMS
    assert set(info.dtypes(kind="signed integer")) == {"int8", "int16", "int32", "int64"}


def test_tile_takes_integers_of_any_kind_and_says_what_it_needs() -> None:
    x = tt.arange(4)
    assert tt.tile(x, (np.int64(2),)).tolist() == tt.tile(x, np.int64(2)).tolist() == [0, 1, 2, 3] * 2
    assert tt.tile(tt.zeros((0,)), 2**40).shape == (0,)
    with pytest.raises(ArgumentError, match="tile: repetitions are 0 or more, given -1"):
        tt.tile(x, (2, -1))
    with pytest.raises(ArgumentError, match="tile: repetitions are integers"):
        tt.tile(x, 1.5)


def test_random_numbers_are_gaussian_and_follow_their_seed() -> None:
    """The shares below fixed points are those of the normal distribution: a right mean and variance alone would not show it."""
    draws = tt.randn(100_000, seed=3).numpy()
    shares = [float((draws < point).mean()) for point in (-2.0, -1.0, 0.0, 1.0, 2.0)]
    np.testing.assert_allclose(shares, [0.02275, 0.15866, 0.5, 0.84134, 0.97725], atol=0.01)
    assert len(np.unique(draws)) > 90_000
    assert tt.randn(5, seed=3).tolist() == tt.randn(5, seed=3).tolist() != tt.randn(5, seed=4).tolist()


# ---- distinct elements


@pytest.mark.parametrize("t", [*dt.ALL, *dt.COMPLEX], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (30,), (4, 5)])
def test_distinct_elements_are_those_of_numpy(t: dt.DType, shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(7).integers(0, 2 if t is dt.bool_ else 6, shape).astype(t.numpy)
    x = tt.asarray(data)
    values, indices, inverse, counts = tt.unique_all(x)
    want = np.unique(data.astype(np.float32) if t is dt.bf16 else data, return_index=True, return_counts=True)
    assert values.dtype is t
    assert values.tolist() == want[0].tolist()
    assert (indices.tolist(), counts.tolist()) == (want[1].tolist(), want[2].tolist())
    assert inverse.shape == shape
    np.testing.assert_array_equal(values.numpy()[inverse.numpy()], data)
    np.testing.assert_array_equal(tt.unique_values(x[..., ::-1] if shape else x).numpy(), values.numpy())
    assert tt.unique_counts(x).counts.tolist() == counts.tolist()
    assert tt.unique_inverse(x).inverse_indices.tolist() == inverse.tolist()


def test_each_nan_is_distinct_and_zeros_are_equal() -> None:
    values, counts = tt.unique_counts(tt.tensor([tt.nan, 0.0, 1.0, -0.0, tt.nan]))
    assert counts.tolist() == [2, 1, 1, 1]
    assert values.tolist()[:2] == [0.0, 1.0]
    with pytest.raises(TraceError, match="depends on values"):
        tt.trace(tt.unique_values, tt.Spec((3,)))


def test_full_takes_a_tensor_of_one_number() -> None:
    assert tt.full((2,), tt.tensor(3)).dtype is tt.i64
    assert tt.full((2,), tt.tensor(1.5), dtype="f64").tolist() == [1.5, 1.5]
    assert tt.full((2,), np.float32(2.5)).tolist() == [2.5, 2.5]
    with pytest.raises(ArgumentError, match="fill_value must be a number"):
        tt.full((2,), tt.ones(2))


# ---- conversions in native code: those of the path in NumPy


_NUMBERS = st.one_of(
    st.floats(allow_nan=True), st.integers(-(2**70), 2**70), st.integers(-5, 5), st.booleans(), st.sampled_from([2**53 + 1, 2**24 + 1])
)  # fmt: skip


def _lists(shape: list[int], numbers: Any) -> Any:
    strategy = numbers
    for n in reversed(shape):
        strategy = st.lists(strategy, min_size=n, max_size=n)
    return strategy


_NESTED = st.lists(st.integers(0, 3), min_size=1, max_size=3).flatmap(
    lambda shape: st.sampled_from([_NUMBERS, st.booleans(), st.integers(-200, 200), st.floats(width=32)]).flatmap(
        lambda numbers: _lists(shape, numbers)
    )
)


@settings(max_examples=80)
@given(_NESTED, st.sampled_from([None, *ALL]))
def test_lists_become_what_numpy_makes_of_them(data: list[Any], kind: Any) -> None:
    def outcome(make: Any) -> Any:
        try:
            with np.errstate(all="ignore"):
                result = make()
        except tt.errors.TritiumError as error:
            return str(error)
        return str(result.spec), result.numpy().tobytes()

    slow = outcome(lambda: functions._as(functions._of_sequence(data, kind, None), kind, None, None))
    assert outcome(lambda: tt.tensor(data, dtype=kind)) == slow


def test_ragged_and_changing_lists_are_refused_in_words() -> None:
    for data in ([[1, 2], [3]], [[1], 2], [1, [2]], [[[1]], [2]]):
        with pytest.raises(ShapeError, match="ragged"):
            tt.tensor(data)
    with pytest.raises(DTypeError, match="numbers"):
        tt.tensor([1, "a"])


@pytest.mark.parametrize("kind", ALL)
def test_items_are_numbers_of_python(kind: Any) -> None:
    for value in (0, 1, 77):
        one = tt.full((1, 1), bool(value) if kind is tt.bool else value, dtype=kind)
        item = one.item()
        assert item == (bool(value) if kind is tt.bool else value)
        assert type(item) is (bool if kind is tt.bool else float if kind.is_float else int)
    if kind.is_float:
        for value in (-0.0, float("inf"), float("nan"), 0.1):
            one = tt.full((), value, dtype=kind)
            assert np.array_equal(np.float64(one.item()), one.numpy().astype(np.float64), equal_nan=True)
    elif kind is not tt.bool:
        for value in (tt.iinfo(kind).min, tt.iinfo(kind).max):
            assert tt.full((3,), value, dtype=kind)[1].item() == value


@pytest.mark.skipif(buffer.native is None, reason="calls are replayed by native code")
def test_numbers_that_vary_share_one_record() -> None:
    tt.full((3, 7), 0.5)
    replays, hits = tt.full.replays, tt.full.hits
    for value in (1.5, -0.0, float("inf"), 1e-300):
        assert tt.full((3, 7), value).tolist() == np.full((3, 7), value, np.float32).tolist()
    assert (tt.full.replays, tt.full.hits) == (replays, hits + 4)
    tt.full((2,), 1, dtype="i8")
    assert tt.full((2,), -128, dtype="i8").tolist() == [-128, -128]
    with pytest.raises(tt.errors.TritiumError, match="128"):
        tt.full((2,), 128, dtype="i8")
    assert [tt.full((2,), value).dtype for value in (3, 3.0, True)] == [tt.i64, tt.f32, tt.bool]


@pytest.mark.skipif(buffer.native is None, reason="calls are replayed by native code")
@pytest.mark.parametrize("name", ["rand", "randn", "randint"])
def test_seeds_share_one_record_and_keep_their_numbers(name: str) -> None:
    leading = (0, 1000) if name == "randint" else ()
    draw = getattr(tt, name)
    first = draw(*leading, (5,), seed=1)
    row = (
        tt.ops.random_integers
        if name == "randint"
        else getattr(tt.ops, f"random_{'normal' if name == 'randn' else 'uniform'}")
    )
    replays, hits = row.replays, row.hits
    again = [draw(*leading, (5,), seed=s).tolist() for s in (2, 2**62, 1)]
    assert (row.replays, row.hits) == (replays, hits + 3)
    assert again[2] == first.tolist()
    assert again[0] != again[2] != again[1]
    reference = np.empty(5, first.dtype.numpy)
    attrs = {"low": 0, "high": 1000} if leading else {}
    philox_row = {"rand": philox.uniform, "randn": philox.normal, "randint": philox.integers}[name]
    philox_row(out=reference, shape=(5,), seed=2**62, dtype=first.dtype, **attrs)
    np.testing.assert_allclose(again[1], reference, rtol=1e-6)
    assert draw(*leading, (50,)).tolist() != draw(*leading, (50,)).tolist()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_repeat_is_numpys(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    plain = (np.arange(np.prod(shape, dtype=int)) % 50).reshape(shape)
    plain = plain.astype(data.draw(st.sampled_from(["bool", "i1", "f2", "i4", "f8"])))
    plain = plain.T if data.draw(st.booleans()) else plain[::-1]
    axis = data.draw(st.one_of(st.none(), st.integers(-plain.ndim, plain.ndim - 1)))
    slices = plain.size if axis is None else plain.shape[axis]
    many = st.lists(st.integers(0, 3), min_size=slices, max_size=slices).map(lambda n: np.array(n, np.int32))
    repeats = data.draw(st.one_of(st.integers(0, 3), many, st.just(np.array([2]))))
    expected = np.repeat(plain, repeats, axis)
    for times in (repeats, tt.asarray(repeats), np.asarray(repeats).tolist()):
        result = tt.repeat(tt.asarray(plain), times, axis=axis)
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(
    ("low", "high"), [(-(2**63), 2**63), (-(2**63), 2**63 - 1), (0, 2**63), (-(2**63), -(2**63) + 1)]
)
def test_random_integers_of_the_widest_ranges(low: int, high: int) -> None:
    reference = np.empty(50, np.int64)
    philox.integers(out=reference, low=low, high=high, shape=(50,), seed=3)
    assert tt.randint(low, high, 50, seed=3).tolist() == reference.tolist()
