"""Rows over a namespace: with NumPy as the library, every one agrees with the reference, so any library with the same functions does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt, ops
from tritium.backends.reference import packed
from tritium.backends.reference.cast import cast as numpy_cast, number
from tritium.backends.reference.packed import Packed
from tritium.backends.values import elements
from tritium.backends.values.namespace import cast, legal
from tritium.backends.values.packed import decode, encode
from tritium.backends.values.quantized import plain_dot
from tritium.errors import BoundsError, QuantError
from tritium.op import Op, Spec
from tritium.testing import _as, arrays, assert_close, cases, expected


class Space:
    """NumPy as a namespace. Doubts raise at once."""

    has_f64 = True

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)  # most are NumPy's own

    def dtype_of(self, x: Any) -> dt.DType:
        return dt.dtype(x.dtype)

    def astype(self, x: Any, t: dt.DType) -> Any:
        return x.astype(t.numpy)

    def view(self, x: Any, t: dt.DType) -> Any:
        return x.view(t.numpy)

    def array(self, data: Any) -> Any:
        return data.copy()

    def full(self, shape: Any, value: Any, t: dt.DType) -> Any:
        return np.broadcast_to(number(value, t), shape)

    def arange(self, n: int, t: dt.DType) -> Any:
        return np.arange(n, dtype=t.numpy)

    def sum(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return np.sum(x, axis=axis, keepdims=keepdims)

    def max(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return np.max(x, axis=axis, keepdims=keepdims)

    def min(self, x: Any, axis: Any, keepdims: bool = False) -> Any:
        return np.min(x, axis=axis, keepdims=keepdims)

    def cumsum(self, x: Any, axis: int) -> Any:
        return np.cumsum(x, axis, dtype=x.dtype)

    def cumprod(self, x: Any, axis: int) -> Any:
        return np.cumprod(x, axis, dtype=x.dtype)

    def pad(self, x: Any, after: Any, value: int) -> Any:
        return np.pad(x, [(0, n) for n in after], constant_values=value)

    def put(self, x: Any, at: Any, rows: Any) -> Any:
        made = x.copy()
        made[at] = rows
        return made

    def add_at(self, x: Any, at: Any, rows: Any) -> Any:
        made = x.copy()
        np.add.at(made, at, rows)
        return made

    def doubt(self, bad: Any, message: str, error: Any = BoundsError) -> None:
        if np.any(bad):
            raise error(message)

    def in_double(self, fn: Any) -> Any:
        return fn

    def ternary_dot(self, q: Any, w: Packed) -> None:
        return None


XP: Any = Space()
ROWS = elements.makers(XP)
CASES = [(o, s) for o, s in cases() if o in ROWS]


def run(op: Op, data: list[Any], attrs: dict[str, Any]) -> Any:
    """A row by its maker, as a backend calls it."""
    attrs = op.complete(attrs)
    specs = tuple(None if x is None else Spec(x.shape, getattr(x, "packed", None) or dt.dtype(x.dtype)) for x in data)
    decision = op.decide(specs, attrs)
    attrs = {k: v for k, v in attrs.items() if k != "device"}
    if not op.inputs and not op.variadic:
        attrs["dtype"] = decision.out.dtype
    with np.errstate(all="ignore"):
        made = ROWS[op](decision.out, **attrs)(*(_as(x, s) for x, s in zip(data, decision.inputs, strict=True)))
    return tuple(_plain(m) for m in made) if isinstance(made, tuple) and not isinstance(made, Packed) else _plain(made)


def _plain(x: Any) -> Any:
    return packed.decode(x) if isinstance(x, Packed) else np.asarray(x)


def test_every_row_agrees_with_the_reference() -> None:
    wrong = []
    for op, sample in CASES:
        attrs = dict(sample.attrs)
        data = arrays(op, sample)
        try:
            assert_close(op, run(op, data, attrs), expected(op, data, attrs), data, op.complete(attrs))
        except Exception as error:
            wrong.append(f"{op.name} {sample}: {error!r}")
    assert wrong == []
    assert len(CASES) > 150


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(dt.PACKED), st.lists(st.integers(0, 70), min_size=1, max_size=3), st.integers(0, 2**32))
def test_packing_is_that_of_the_definition(t: dt.DType, shape: list[int], seed: int) -> None:
    low, high = t.values
    data = np.random.default_rng(seed).integers(low, high + 1, shape).astype(np.int8)
    made = encode(XP, data, t, checked=True)
    want = packed.pack(data, t)
    np.testing.assert_array_equal(made.data, want.data)
    np.testing.assert_array_equal(decode(XP, want, checked=True), data)


@pytest.mark.parametrize("t", [t for t in dt.PACKED if t.is_ternary], ids=str)
def test_every_byte_reads_as_the_definition_reads_it(t: dt.DType) -> None:
    w = packed.pack(np.zeros((max(t.rows, 1), 256 * t.block), np.int8), t)
    w.data.reshape(-1)[:] = np.arange(w.data.size) % 256
    np.testing.assert_array_equal(decode(XP, w, checked=False) > 1, packed._values(w) > 1)
    with pytest.raises(QuantError, match="means no weight"):
        decode(XP, w, checked=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(-(2**63), 2**63 - 2), st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_integers_are_drawn_alike_for_every_span(low: int, span: int, seed: int) -> None:
    high = min(low + span, 2**63)
    attrs = {"low": low, "high": high, "shape": (9,), "seed": seed}
    np.testing.assert_array_equal(run(ops.random_integers, [], attrs), expected(ops.random_integers, [], attrs))


@st.composite
def keys(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any], tuple[Any, ...]]:
    """(shape, index arrays, key) of an index with at least one array; None, ints and slices of any step stand between."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    kinds = draw(
        st.permutations(
            [
                *("at" for _ in shape[:1]),
                *draw(
                    st.lists(st.sampled_from(["at", "int", "slice"]), min_size=len(shape) - 1, max_size=len(shape) - 1)
                ),
            ]
        )
    )
    block = draw(st.lists(st.integers(1, 3), max_size=2))
    indices, key = [], []
    for n, kind in zip(shape, kinds, strict=True):
        if draw(st.booleans()):
            key.append(None)
        if kind == "at":
            size = [draw(st.sampled_from([1, m])) for m in block[draw(st.integers(0, len(block))) :]]
            indices.append(
                np.array(
                    draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(size)), max_size=int(np.prod(size))))
                )
                .reshape(size)
                .astype(np.int64)
            )
            key.append("at")
        elif kind == "int":
            key.append(draw(st.integers(0, n - 1)))
        else:
            part = slice(
                *(draw(st.none() | st.integers(-n, n)) for _ in range(2)), draw(st.sampled_from([1, 2, -1, -2]))
            )
            key.append(part.indices(n))
    return shape, indices, tuple(key)


@settings(max_examples=200, deadline=None)
@given(keys())
def test_any_index_reads_and_writes_what_numpy_does(named: Any) -> None:
    shape, indices, key = named
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    got, want = (fn(ops.gather, [x, *indices], {"key": key}) for fn in (run, expected))
    np.testing.assert_array_equal(got, want)
    for value in (np.float32(-1), -1 - np.arange(want.size, dtype=np.float32).reshape(want.shape)):
        written = [fn(ops.put, [x, np.asarray(value), *indices], {"key": key}) for fn in (run, expected)]
        np.testing.assert_array_equal(*written)


FLOATS = [
    0.0,
    -0.0,
    0.5,
    -1.5,
    127.4,
    -129.0,
    3e9,
    -3e9,
    9.3e18,
    -1e19,
    2e19,
    1e300,
    np.inf,
    -np.inf,
    np.nan,
    1 + 2**-11 + 2**-40,
]


@pytest.mark.parametrize("source", [t for t in dt.ALL if t.is_float], ids=str)
@pytest.mark.parametrize("target", dt.ALL, ids=str)
def test_casts_are_those_of_the_definition(source: dt.DType, target: dt.DType) -> None:
    with np.errstate(all="ignore"):
        x = np.array(FLOATS).astype(source.numpy)
        want = np.empty(x.shape, target.numpy)
        numpy_cast(x, out=want)
        got = np.asarray(cast(XP, x, target))
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_an_index_outside_is_doubted_and_held_inside() -> None:
    class Later(Space):
        def doubt(self, bad: Any, message: str, error: Any = BoundsError) -> None:
            self.told = (list(bad), message)

    xp: Any = Later()
    assert list(legal(xp, np.array([-4, -3, 0, 2, 3]), 3, "take")) == [0, 0, 0, 2, 2]
    assert xp.told == ([True, False, False, False, True], "take: an index is outside an axis of size 3.")


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.sampled_from([1, 8, 128]), st.integers(1, 300_000), st.booleans())
def test_products_are_split_where_f32_would_round(m: int, n: int, most: int, k: int, extreme: bool) -> None:
    k = min(k, (2**31 - 1) // (128 * most), 140_000)
    rng = np.random.default_rng(k)
    q = np.full((m, k), -128, np.int8) if extreme else rng.integers(-128, 128, (m, k)).astype(np.int8)
    t = (
        np.full((n, k), -most, np.int16)
        if extreme
        else rng.integers(-most, most + (most < 128), (n, k)).astype(np.int16)
    )
    np.testing.assert_array_equal(plain_dot(XP, q, t, most), q.astype(np.int64) @ t.T.astype(np.int64))


def test_a_cache_is_written_window_by_window() -> None:
    cache = np.zeros((2, 1, 4, 1), np.float32)
    new = np.arange(1, 7, dtype=np.float32).reshape(2, 3, 1, 1)
    for places in ([(0, 0, 3), (1, 1, 3)], [(0, 3, 1), (0, 3, 1)], [(1, 4, 0), (1, 2, 2)], [(0, 0, 0), (0, 0, 2)]):
        data = [cache, new, np.array(places, np.int32)]
        np.testing.assert_array_equal(run(ops.update_cache, data, {}), expected(ops.update_cache, data, {}))
    with pytest.raises(BoundsError, match="outside 2 slots of 4 tokens"):
        run(ops.update_cache, [cache, new, np.array([(0, 2, 3), (1, 0, 1)], np.int32)], {})


def test_what_nobody_wrote_in_a_cache_does_not_reach_attention() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((1, 2, 2, 4), (2, 1, 5, 4), (2, 1, 5, 4)))
    places = np.array([(1, 1, 1)], np.int32)
    want = expected(ops.attention, [q, k, v, places], {})
    k[:, :, 2:], v[:, :, 2:], k[0], v[0] = np.nan, np.inf, np.nan, np.nan
    got = run(ops.attention, [q, k, v, places], {})
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert not got[0, 1].any()
