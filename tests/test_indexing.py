"""x[key]: views of plain keys that native code computes, and calls of shapes never seen before, beside NumPy and the plain path."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from index_cases import draw_case, written
from lent import Lent, libraries
from tritium import buffer, layout as lay, ops
from tritium.errors import BoundsError, TritiumError
from tritium.recording import Recorder

NATIVE = pytest.mark.skipif(buffer.native is None, reason="replay is native code's")
SIZES = st.lists(st.integers(0, 5), max_size=4)
NUMBERS = st.one_of(
    st.none(), st.integers(-8, 8), st.sampled_from([2**31, -(2**31), 2**63 - 1, -(2**63), 2**70, -(2**70)])
)
STEPS = NUMBERS.filter(lambda n: n != 0)
PARTS = st.one_of(st.integers(-5, 4), st.builds(slice, NUMBERS, NUMBERS, STEPS), st.none(), st.just(...))


@settings(max_examples=400, deadline=None)
@given(shape=SIZES, key=st.one_of(PARTS, st.lists(PARTS, max_size=6).map(tuple)))
def test_a_plain_key_reads_what_numpy_reads(shape: list[int], key: Any) -> None:
    data = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    x = tt.asarray(data.copy())
    try:
        expected = data[key]
    except IndexError:
        with pytest.raises(BoundsError):
            x[key]
        return
    part = x[key]
    np.testing.assert_array_equal(part.numpy(), expected)
    if expected.ndim:
        assert part.shape == expected.shape
    seen = lay.basic_index(x.layout, lay.normal_key(key, x.shape))
    assert (part.shape, part.strides, part.offset) == (seen.shape, seen.strides, seen.offset)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_view_of_a_view_shares_memory(data: st.DataObject) -> None:
    plain = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    x = tt.asarray(plain)
    for _ in range(3):
        key = data.draw(st.builds(slice, st.integers(-7, 7), st.integers(-7, 7), st.sampled_from([1, 2, -1, -3])))
        x, plain = x[..., key], plain[..., key]
    np.testing.assert_array_equal(x.numpy(), plain)
    x += 1
    np.testing.assert_array_equal(x.numpy(), plain)


def test_keys_of_other_types_mean_the_same() -> None:
    class Index:
        def __index__(self) -> int:
            return 2

    x = tt.asarray(np.arange(12).reshape(3, 4))
    for key in (np.int64(2), Index(), slice(Index(), None), tt.asarray(2)):
        np.testing.assert_array_equal(x[key].numpy(), x.numpy()[2 if not isinstance(key, slice) else slice(2, None)])
    np.testing.assert_array_equal(x[True, 0].numpy(), x.numpy()[True, 0])
    for wrong in (3, -4, (0, 4), (0, 0, 0), (..., ...), "a", 1.0, slice(0, 2, 0), 2**70):
        with pytest.raises((TritiumError, ValueError, TypeError)) as error:
            x[wrong]
        assert isinstance(error.value, TritiumError) or isinstance(wrong, slice)


def test_packed_weights_keep_their_rule() -> None:
    w = tt.repack(tt.asarray(np.ones((4, 64), np.int8)), "tern2")
    assert w[1:3].shape == (2, 64)
    with pytest.raises(TritiumError, match="can be looked at"):
        w[:, ::2]


@NATIVE
def test_rows_need_no_memory_of_earlier_calls() -> None:
    x = tt.asarray(np.arange(3 * 5000, dtype=np.float32).reshape(5000, 3))
    before = type(x).__getitem__.replays
    assert all(float(row[0]) == 3 * i for i, row in enumerate(x))
    assert type(x).__getitem__.replays == before


@NATIVE
def test_what_is_used_stays_remembered_among_thousands_of_other_calls() -> None:
    ops.sum.forget()
    x = tt.ones((3, 7))
    for i in range(5000):
        tt.sum(x)
        tt.sum(tt.ones((i % 2500 + 1, 2)))
    hits = ops.sum.hits
    tt.sum(x)
    assert ops.sum.hits == hits + 1
    assert ops.sum.replays <= 1024


@NATIVE
@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(
        st.sampled_from([(), (1,), (3,), (4, 1), (4, 3), (2, 1, 3), (2, 4, 3), (0,), (0, 3), (5,)]),
        min_size=2,
        max_size=2,
    ),
    dtypes=st.lists(st.sampled_from(["f32", "i32", "f64", "u8"]), min_size=2, max_size=2),
    turned=st.booleans(),
)
def test_an_element_wise_call_of_any_shapes_is_numpys(
    shapes: list[tuple[int, ...]], dtypes: list[str], turned: bool
) -> None:
    tt.add(tt.ones((2, 2), dtype=dtypes[0]), tt.ones((2, 2), dtype=dtypes[1]))
    a, b = (np.arange(np.prod(s, dtype=int)).reshape(s) + 1 for s in shapes)
    x, y = (tt.asarray(v.T if turned else v).to(t) for v, t in zip((a, b), dtypes, strict=True))
    try:
        expected = (a.T if turned else a) + (b.T if turned else b)
    except ValueError:
        with pytest.raises(TritiumError):
            x + y
        return
    result = x + y
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.numpy(), expected)
    out = tt.zeros(expected.shape, dtype=result.dtype)
    assert tt.add(x, y, out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected)


@NATIVE
def test_new_shapes_of_a_known_kind_are_replayed() -> None:
    tt.ones((2, 3)) * 2.5
    hits, records = ops.multiply.hits, ops.multiply.replays
    for n in random.Random(0).sample(range(10, 4000), 300):
        assert (tt.ones((n,)) * 2.5).shape == (n,)
    assert ops.multiply.hits == hits + 300
    assert ops.multiply.replays == records


@NATIVE
def test_recorded_spans_of_new_shapes_say_the_shape() -> None:
    tt.ones((2, 3)) * 2.0
    with Recorder() as recorder:
        tt.ones((11, 13)) * 2.0
    whats, _ = recorder.read()
    assert [what.out.shape for what in whats if what.op is ops.multiply] == [(11, 13)]


def as_key(draw: random.Random, key: Any) -> Any:
    """Return a key with most of its arrays as tensors."""
    parts = key if isinstance(key, tuple) else (key,)
    own = [tt.asarray(p) if isinstance(p, np.ndarray) and draw.random() < 0.75 else p for p in parts]
    return tuple(own) if isinstance(key, tuple) else own[0]


def check_read(x: Any, key: Any, case: Any, what: str) -> None:
    try:
        expected = case.base[case.key]
    except (IndexError, ValueError):
        with pytest.raises(TritiumError):
            x[key]
        return
    result = x[key]
    assert (result.shape, result.numpy().dtype) == (expected.shape, expected.dtype), what
    np.testing.assert_array_equal(result.numpy(), expected, err_msg=what)


def check_write(x: Any, key: Any, value: Any, case: Any, what: str) -> None:
    copy = case.base.copy()
    try:
        copy[case.key] = case.value
        expected = written(case)
    except (IndexError, ValueError, TypeError):
        if np.size(case.value) and case.base.size:  # NumPy has other rules for what holds nothing
            with pytest.raises(TritiumError):
                x[key] = value
        expected = case.base
    else:
        x[key] = value
    np.testing.assert_array_equal(x.numpy(), expected, err_msg=what)


EXPRESSIONS = int(os.environ.get("TRITIUM_INDEX_EXPRESSIONS", "400"))
FIRST = int(os.environ.get("TRITIUM_INDEX_SEED", "0")) * 1_000_000


@pytest.mark.parametrize("native", [pytest.param(True, marks=NATIVE), False])
def test_random_expressions_read_and_write_what_numpy_does(native: bool) -> None:
    """On the way of native code, and on that of Python, which serves other devices, watched calls and mistakes."""
    if buffer.native is not None:
        buffer.native.set_fast(native)
    try:
        for seed in range(FIRST, FIRST + EXPRESSIONS):
            case, draw = draw_case(seed), random.Random(seed)
            key = as_key(draw, case.key)
            what = f"seed {seed}: {case.base.dtype}{case.base.shape}[{case.key}] = {np.shape(case.value)}"
            check_read(tt.asarray(case.base.copy(order="K")), key, case, what)
            check_read(tt.asarray(case.base), key, case, what)
            value = tt.asarray(case.value) if isinstance(case.value, np.ndarray) and draw.random() < 0.8 else case.value
            check_write(tt.asarray(case.base.copy(order="K")), key, value, case, what)
    finally:
        if buffer.native is not None:
            buffer.native.set_fast(True)


def lend(value: Any) -> Any:
    """Return an array as one of another library."""
    return Lent(value) if isinstance(value, np.ndarray) else value


def test_random_expressions_take_arrays_of_other_libraries_as_keys_and_values() -> None:
    for seed in range(FIRST, FIRST + EXPRESSIONS // 4):
        case = draw_case(seed)
        key = tuple(map(lend, case.key)) if isinstance(case.key, tuple) else lend(case.key)
        what = f"seed {seed}: {case.base.dtype}{case.base.shape}[{case.key}] = {np.shape(case.value)}"
        check_read(tt.asarray(case.base.copy(order="K")), key, case, what)
        check_write(tt.asarray(case.base.copy(order="K")), key, lend(case.value), case, what)


@pytest.mark.parametrize("foreign", libraries())
def test_arrays_of_other_libraries_are_keys(foreign: Any, request: pytest.FixtureRequest) -> None:
    if "parameter" in request.node.name:
        pytest.skip("a parameter holds no integers")
    x = tt.arange(12).reshape(3, 4)
    rows, columns, mask = (np.array(v) for v in ([[2], [0]], [1, 3], [True, False, True]))
    for key in ((rows,), (mask,), (slice(None), columns), (rows, columns), (..., columns, None), (mask, 1)):
        other = tuple(foreign(k) if isinstance(k, np.ndarray) else k for k in key)
        np.testing.assert_array_equal(x[other].numpy(), x.numpy()[key])
        if all(k is not mask for k in key):  # the size of what a mask selects is not known in a trace
            np.testing.assert_array_equal(tt.trace(lambda v, other=other: v[other], x)(x).numpy(), x.numpy()[key])
    assert x[foreign(np.array(1))].tolist() == [4, 5, 6, 7]
    with pytest.raises(BoundsError, match=r"must hold integers or bools, given f32\[1\]"):
        x[foreign(np.ones(1, np.float32))]
    with pytest.raises(BoundsError, match="index 7 is outside an axis of size 3"):
        x[foreign(np.array([7]))]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"])
def test_an_index_of_any_integers_at_the_ends_of_its_range(dtype: str) -> None:
    x = tt.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    info = np.iinfo(dtype)
    for wrong in {info.max, max(info.min, -(2**63))} - {0}:
        index = np.array([1, wrong], dtype)
        for key in (index, (slice(None), index), (0, index), (index, 1)):
            for read in (lambda key=key: x[key], lambda key=key: x.__setitem__(key, 0.0)):
                with pytest.raises(BoundsError, match=f"index {wrong} is outside an axis of size [34]: axis [01] of"):
                    read()
        with pytest.raises(BoundsError, match=f"take: index {wrong} is outside an axis of size 3"):
            tt.take(x, tt.asarray(index), axis=0)
    np.testing.assert_array_equal(x.numpy(), np.arange(12).reshape(3, 4))  # nothing was written


def test_a_value_of_another_dtype_is_stored_where_its_kind_allows() -> None:
    plain = np.zeros((4, 5), np.float32)
    x = tt.zeros((4, 5))
    for key in ([0, 2], (slice(None), [1, 1]), 3, (slice(1, 3), -1), np.eye(4, 5, dtype=bool), (..., 0)):
        for value in (np.int8(3), np.arange(5, dtype=np.int64)[-1:], np.float64([0.5]), True, 2):
            plain[key] = value
            x[key] = tt.asarray(value) if isinstance(value, np.ndarray) else value
            np.testing.assert_array_equal(x.numpy(), plain)
    whole = tt.zeros(4, dtype="i32")
    for key in ([0, 1], slice(2), 0, tt.asarray(np.array([True, False, True, True]))):
        for value in (1.5, tt.asarray(np.float32([0.5]))):
            with pytest.raises(TritiumError):
                whole[key] = value
    assert whole.tolist() == [0, 0, 0, 0]


def test_a_write_reads_its_operands_before_it_changes_them() -> None:
    x, plain = tt.arange(6), np.arange(6)
    x[[0, 1, 2]], plain[[0, 1, 2]] = x[3:], plain[3:]
    np.testing.assert_array_equal(x.numpy(), plain)
    x[[3, 4, 5]], plain[[3, 4, 5]] = x[2:5], plain[2:5].copy()
    np.testing.assert_array_equal(x.numpy(), plain)
    x[1:], plain[1:] = x[:-1], plain[:-1].copy()
    np.testing.assert_array_equal(x.numpy(), plain)
    y = tt.asarray(np.array([2, 0, 1, 1]))
    y[y] = 3
    assert y.tolist() == [3, 3, 3, 1]
    mask = tt.asarray(np.array([True, False, True]))
    mask[mask] = False
    assert mask.tolist() == [False, False, False]


def test_a_write_by_an_index_does_not_reach_a_clone_or_read_only_memory() -> None:
    x = tt.arange(4)
    clone = x.clone()
    x[[0, 1]] = 7
    x[x > 6] += 1
    assert (x.tolist(), clone.tolist()) == ([8, 8, 2, 3], [0, 1, 2, 3])
    data = np.arange(4)
    data.flags.writeable = False
    for key in ([0], 0, slice(2), np.array([True, False, True, False])):
        with pytest.raises(TritiumError):
            tt.asarray(data)[key] = 1
    with pytest.raises(TritiumError, match="repeats its memory"):
        tt.broadcast_to(tt.zeros(3), (2, 3))[[0]] = 1.0


@NATIVE
def test_indexed_calls_need_no_memory_of_earlier_calls() -> None:
    x = tt.asarray(np.arange(64, dtype=np.float32))
    getter, setter = type(x).__getitem__, type(x).__setitem__
    rows = (getter, setter, ops.take, ops.take_along_axis, ops.nonzero)
    before = [row.replays for row in rows], [row.known.copy() for row in (ops.gather, *rows[2:])]
    for n in range(1, 64):
        index = tt.asarray(np.arange(n))
        assert x[index].shape == x[:n].shape == (n,)
        x[index] = x[:n]
        x[:n] = float(n)
        x[x > n] = 0.0
        assert tt.take(x, index).shape == tt.take(x[None], index, axis=1)[0].shape == (n,)
        assert tt.take_along_axis(x, index).shape == tt.take_along_axis(x, index, axis=0).shape == (n,)
        assert tt.nonzero(x[:n])[0].ndim == 1
    assert ([row.replays for row in rows], [row.known for row in (ops.gather, *rows[2:])]) == before


@NATIVE
def test_large_indices_masks_and_rolls_are_numpys() -> None:
    """Beyond the sizes at which work is split over threads and chunks."""
    rng = np.random.default_rng(0)
    for dtype in ("u1", "f2", "f4", "f8"):
        plain = rng.integers(0, 100, (70, 901)).astype(dtype)
        rows, columns = rng.integers(-70, 70, 3000), rng.integers(-901, 901, 3000)
        mask = rng.random((70, 901)) < 0.5
        x, r, c, m = (tt.asarray(v) for v in (plain, rows, columns, mask))
        for key, own in (((rows,), (r,)), ((..., columns), (..., c)), ((rows, columns), (r, c)), ((mask,), (m,))):
            np.testing.assert_array_equal(x[own].numpy(), plain[key])
        np.testing.assert_array_equal(x[:, m[0], None].numpy(), plain[:, mask[0], None])
        np.testing.assert_array_equal(x.T[c, r].numpy(), plain.T[columns, rows])
        for result, expected in zip(tt.nonzero(x.T), np.nonzero(plain.T), strict=True):
            np.testing.assert_array_equal(result.numpy(), expected)
        for shift, axis in ((5, None), (-7, 0), ((3, -901 * 3 + 1), (0, 1)), ((1, 2), (-1, 0)), (10**6, 1)):
            np.testing.assert_array_equal(tt.roll(x, shift, axis=axis).numpy(), np.roll(plain, shift, axis))
            np.testing.assert_array_equal(tt.roll(x.T, shift, axis=axis).numpy(), np.roll(plain.T, shift, axis))
        order = rng.integers(-901, 901, (70, 1300))
        taken = tt.take_along_axis(x, tt.asarray(order), axis=1).numpy()
        np.testing.assert_array_equal(taken, np.take_along_axis(plain, order, 1))
        x[r, c], plain[rows, columns] = 3, 3
        x[:, c[:901]], plain[:, columns[:901]] = x.clone()[:, ::-1], plain[:, ::-1].copy()
        np.testing.assert_array_equal(x.numpy(), plain)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_scatter_sets_and_adds_as_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from(["bool", "i1", "u2", "i4", "u8", "f2", "f4", "f8"]))
    indices = np.array(data.draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), max_size=9)), np.int32)
    plain = (np.arange(np.prod(shape)) % 100).astype(dtype).reshape(shape)
    along = axis % len(shape)
    where = (*shape[:along], len(indices), *shape[along + 1 :])
    values = (np.arange(np.prod(where)) * 7 % 90).astype(dtype).reshape(where)
    turned = data.draw(st.booleans())
    x = tt.asarray(plain if not turned else np.asfortranarray(plain))
    key = (slice(None),) * along + (indices,)
    for mode in ("set", "add"):
        expected = plain.copy()
        if mode == "add":
            np.add.at(expected, key, values)
        else:
            for i, n in enumerate(indices):
                expected[(slice(None),) * along + (n,)] = values[(slice(None),) * along + (i,)]
        result = tt.scatter(x, tt.asarray(indices), tt.asarray(values), axis=axis, mode=mode)
        np.testing.assert_array_equal(result.numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), plain)
