"""Layouts against NumPy's own strides: every view, or the exact reason why there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritium import layout as lay
from tritium.errors import BoundsError, ShapeError, ViewError
from tritium.layout import Layout, Shape

sizes = st.integers(0, 4)
shapes = st.lists(sizes, max_size=4).map(tuple)
steps = st.sampled_from((-3, -2, -1, 1, 2, 3, None))
ends = st.none() | st.integers(-6, 6)
slices = st.builds(slice, ends, ends, steps)


def memory(shape: Shape) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)


def seen(x: Layout, shape: Shape) -> np.ndarray[Any, Any]:
    """The elements a layout shows of the flat memory of a shape."""
    flat = np.append(memory(shape).reshape(-1), np.int16(-1))
    if 0 in x.shape:
        return np.empty(x.shape, np.int16)
    strides = tuple(2 * s for s in x.strides)
    return np.ndarray(x.shape, np.int16, flat, 2 * x.offset, strides)


@st.composite
def looked(draw: Any) -> tuple[Shape, Layout, np.ndarray[Any, Any]]:
    """A memory, a layout of it after some slicing and turning, and the same in NumPy."""
    shape = draw(shapes)
    x, model = lay.contiguous(shape), memory(shape)
    for _ in range(draw(st.integers(0, 2))):
        key = tuple(draw(slices) for _ in model.shape)
        x, model = lay.basic_index(x, lay.normal_key(key, x.shape)), model[key]
        order = tuple(draw(st.permutations(range(model.ndim))))
        x, model = lay.permute(x, order), model.transpose(order)
    return shape, x, model


@given(shapes)
def test_contiguous_strides_are_numpys(shape: Shape) -> None:
    strides = tuple(s // 2 for s in memory(shape).strides)
    if 0 not in shape:
        assert lay.contiguous_strides(shape) == strides
    assert lay.contiguous(shape).is_contiguous


@given(looked())
def test_is_contiguous_is_what_numpy_says(case: tuple[Shape, Layout, np.ndarray[Any, Any]]) -> None:
    _, x, model = case
    assert x.is_contiguous == model.flags.c_contiguous


@given(looked(), st.data())
def test_an_index_sees_what_numpy_sees(case: tuple[Shape, Layout, np.ndarray[Any, Any]], data: st.DataObject) -> None:
    shape, x, model = case
    parts = [data.draw(slices if n == 0 else slices | st.integers(-n, n - 1)) for n in model.shape]
    parts = parts[: data.draw(st.integers(0, len(parts)))]
    if data.draw(st.booleans()):
        parts.insert(data.draw(st.integers(0, len(parts))), None)
    if data.draw(st.booleans()):
        parts.append(Ellipsis)
    key = tuple(parts)
    np.testing.assert_array_equal(seen(lay.basic_index(x, lay.normal_key(key, x.shape)), shape), model[key])


@given(looked(), st.data())
def test_reshape_views_exactly_when_numpy_can(
    case: tuple[Shape, Layout, np.ndarray[Any, Any]], data: st.DataObject
) -> None:
    shape, x, model = case
    new = data.draw(st.sampled_from(factorings(model.size)))
    found = lay.reshape(x, new)
    try:
        want = model.reshape(new, copy=False)
    except ValueError:
        assert found is None
        with pytest.raises(ViewError, match=r"without moving elements; use \.reshape"):
            lay.view(x, new)
    else:
        assert found is not None
        assert found.shape == new
        np.testing.assert_array_equal(seen(found, shape), want)
        assert lay.view(x, new) == found


def factorings(size: int) -> list[Shape]:
    if size == 0:
        return [(0,), (0, 3), (2, 0), (0, 0, 1)]
    two = [(a, size // a) for a in range(1, size + 1) if size % a == 0]
    return [
        (size,),
        *two,
        *((a, 1, b) for a, b in two),
        *((c, size // a // c, a) for a, b in two for c in (1, 2) if b % c == 0),
    ]


@given(looked(), st.data())
def test_flip_and_moved_axes_see_what_numpy_sees(
    case: tuple[Shape, Layout, np.ndarray[Any, Any]], data: st.DataObject
) -> None:
    shape, x, model = case
    axes = tuple(data.draw(st.lists(st.integers(0, model.ndim - 1), unique=True))) if model.ndim else ()
    np.testing.assert_array_equal(seen(lay.flip(x, axes), shape), np.flip(model, axes))
    np.testing.assert_array_equal(seen(lay.flip(x, None), shape), np.flip(model))
    there = axes[::-1]
    np.testing.assert_array_equal(seen(lay.moveaxis(x, axes, there), shape), np.moveaxis(model, axes, there))


@given(looked(), st.lists(st.integers(1, 3), max_size=2).map(tuple))
def test_broadcast_and_new_axes_see_what_numpy_sees(
    case: tuple[Shape, Layout, np.ndarray[Any, Any]], lead: Shape
) -> None:
    shape, x, model = case
    wide, model = lay.expand_dims(x, -1), model[..., None]
    np.testing.assert_array_equal(seen(wide, shape), model)
    target = (*lead, *x.shape, 3)
    np.testing.assert_array_equal(seen(lay.broadcast_to(wide, target), shape), np.broadcast_to(model, target))
    np.testing.assert_array_equal(seen(lay.squeeze(wide, -1), shape), model[..., 0])


@given(st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=3))
def test_broadcast_shapes_is_numpys(given_shapes: list[Shape]) -> None:
    try:
        want = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(ShapeError):
            lay.broadcast_shapes(*given_shapes)
    else:
        assert lay.broadcast_shapes(*given_shapes) == want


def test_shapes_that_do_not_broadcast_are_named_with_axis_and_remedy() -> None:
    with pytest.raises(
        ShapeError, match=r"add: \[3,4\] and \[5\] do not broadcast: axis -1 has sizes 4 and 5.*x\[\.\.\., None\]"
    ):
        lay.broadcast_shapes((3, 4), (5,), what="add")


def test_a_gap_is_seen_even_before_an_empty_axis() -> None:
    assert lay.is_contiguous((0, 3), (1, 5))
    assert lay.is_contiguous((3, 0), (5, 7))


def test_repeated_memory_is_not_contiguous() -> None:
    assert not lay.is_contiguous((3,), (0,))
    assert lay.is_contiguous((1,), (0,))


FLAT = lay.contiguous((2, 3))
WRONG: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: lay.axis_of(2, 2, "sum"),
        BoundsError,
        r"sum: axis 2 does not exist in 2 dimension\(s\); valid are -2 to 1",
    ),
    (lambda: lay.axes_of((0, -2), 2, "sum"), ShapeError, "names an axis twice"),
    (lambda: lay.permute(FLAT, (0,)), ShapeError, "names 1 of 2 axes"),
    (lambda: lay.moveaxis(FLAT, 0, (0, 1)), ShapeError, "1 source axes but 2 destinations"),
    (lambda: lay.broadcast_to(FLAT, (3,)), ShapeError, r"\[2,3\] does not broadcast to \[3\]"),
    (lambda: lay.squeeze(FLAT, 0), ShapeError, "axis 0 of .2,3. has size 2"),
    (lambda: lay.matrix_transpose(lay.contiguous((3,))), ShapeError, r"at least 2 dimensions, given \[3\]"),
    (lambda: lay.infer_shape((2, 3), (4, -1)), ShapeError, r"\[2,3\] has 6 elements, which do not fill \[4,-1\]"),
    (lambda: lay.infer_shape((2, 3), (-1, -1)), ShapeError, "one may be -1"),
    (lambda: lay.infer_shape((0,), (0, -1)), ShapeError, "do not fill"),
    (lambda: lay.normal_key((0, 0, 0), (2, 3)), BoundsError, r"3 indices were given for \[2,3\]"),
    (lambda: lay.normal_key((..., ...), (2, 3)), BoundsError, "one ellipsis"),
    (lambda: lay.normal_key(2, (2, 3)), BoundsError, r"Index 2 is outside axis 0 of \[2,3\]"),
    (lambda: lay.normal_key(1.0, (2, 3)), BoundsError, "1.0 is not an index"),
    (lambda: lay.normal_key(True, (2, 3)), BoundsError, "True is not an index"),
]


@pytest.mark.parametrize(("act", "error", "says"), WRONG)
def test_a_wrong_layout_says_what_was_given_and_needed(act: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        act()


def test_sizes_that_are_not_known_print_as_question_marks() -> None:
    assert lay.text((None, 3)) == "[?,3]"
    assert lay.text(()) == "[]"
