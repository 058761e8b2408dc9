"""x[key]: views of plain keys that native code computes, and calls of shapes never seen before, beside NumPy and the plain path."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
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
    for wrong in (True, 3, -4, (0, 4), (0, 0, 0), (..., ...), "a", 1.0, slice(0, 2, 0), 2**70):
        with pytest.raises((TritiumError, ValueError, TypeError)) as error:
            _ = x[wrong] if wrong is not True else x[(True, 0)]
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
