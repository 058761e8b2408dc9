"""Calls that native code carries out without a Python frame: each answers as the Python function behind it does."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import buffer, dtype as dt
from tritium.errors import TritiumError
from tritium.tensor import Tensor, rows

if buffer.native is None:
    pytest.skip("the pure build calls Python functions only", allow_module_level=True)

METHODS = ["clone", "is_contiguous", "item", "numpy", "permute", "reshape", "swapaxes", "tolist", "transpose", "view"]
FUNCTIONS = ["asarray", "empty_like", "from_numpy", "ones", "ones_like", "tensor", "zeros", "zeros_like"]
LAYOUTS = [
    lambda a: a, lambda a: a.T, lambda a: a[::-1], lambda a: a[..., ::2], lambda a: a[:, 1:2], lambda a: a[0], lambda a: a[:0],
    lambda a: a[1, 1], lambda a: np.broadcast_to(a[:1], a.shape), lambda a: a.astype(a.dtype.newbyteorder()), lambda a: a[None],
]  # fmt: skip


def arrays() -> Iterator[np.ndarray[Any, Any]]:
    """Yield arrays of every dtype in layouts plain and odd."""
    for kind in (*dt.ALL, *dt.COMPLEX):
        base = (np.arange(12).reshape(3, 4) - 3).astype(kind.numpy)
        yield from (layout(base) for layout in LAYOUTS)


def answer(function: Any, *args: Any) -> Any:
    """Return what a call gives or raises, in a form that can be compared."""
    try:
        return plain(function(*args))
    except (TritiumError, TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


def steps(value: Any) -> list[int]:
    """Return the strides of the axes along which there is a step."""
    return [s for n, s in zip(value.shape, value.strides, strict=True) if n > 1]


def plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        data = np.asarray(value.numpy())
        return (
            value.dtype.name,
            value.shape,
            steps(value),
            data.tobytes(),
            value.storage.writable,
            value.storage.imported,
        )
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, steps(value), value.tobytes(), value.flags.writeable
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return type(value).__name__, repr(value)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_answers_as_its_python_function(name: str) -> None:
    quick = vars(Tensor)[name]
    for data in arrays():
        for args in [(), (-1,), (0, 1), (1, 0), (4, 3), ((2, 6),), (2, -1), (1, 0, 2), (5,), (-1, -1), ("x",), (1.0,)]:
            one, two = tt.asarray(data), tt.asarray(data)
            assert answer(quick, one, *args) == answer(quick.function, two, *args), (data, args)


@pytest.mark.parametrize("name", ["asarray", "from_numpy", "tensor", "zeros_like", "ones_like"])
def test_a_function_of_arrays_answers_as_its_python_function(name: str) -> None:
    quick = getattr(tt, name)
    for data in arrays():
        given_ = tt.tensor(np.array(data)) if name.endswith("_like") else data
        assert answer(quick, given_) == answer(quick.function, given_), data


@pytest.mark.parametrize("name", ["zeros", "ones", "asarray", "tensor", "zeros_like", "from_numpy"])
def test_any_argument_is_answered_as_by_the_python_function(name: str) -> None:
    quick = getattr(tt, name)
    listed = [3, (2, 3), (), [2, 3], (0, 2), -1, (2, -1), 2**62, (2**40, 2**40), "x", None, 2.0, True, (True, 2), [[1, 2.5], [3, 4]],
              [], [1, [2]], np.float32(1), range(3)]  # fmt: skip
    for value in listed:
        assert answer(quick, value) == answer(quick.function, value), value


@given(st.lists(st.integers(0, 4), min_size=0, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_lists_slices_and_axes_of_any_shape_agree(shape: list[int], random: Any) -> None:
    x = tt.tensor(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape))
    order = list(range(len(shape)))
    random.shuffle(order)
    y = x.permute(*order) if order else x
    assert y.tolist() == y.numpy().tolist() == np.transpose(x.numpy(), order).tolist()
    if shape:
        assert [r.tolist() for r in y] == y.numpy().tolist()
        assert len(y) == y.shape[0]
        assert plain(rows(y)) == plain(rows.__wrapped__(y))  # type: ignore[attr-defined]


def test_of_real_numbers_a_clone_is_returned_that_shares_until_a_write() -> None:
    x = tt.arange(1000, dtype="f32")
    for same in (tt.positive(x), tt.real(x), tt.conj(x), x.real):
        assert same.storage.address == x.storage.address
        assert same is not x
        same += 1
        assert same[0].item() == 1.0
        assert x[0].item() == 0.0
    view = x[::100]
    copied = tt.positive(view)
    assert copied.storage.nbytes == view.nbytes
    assert copied.tolist() == view.tolist()
    assert tt.real(tt.asarray(np.array([1 + 2j]))).tolist() == [1.0]


def test_an_array_is_seen_in_place_and_keeps_its_memory() -> None:
    x = tt.zeros((2, 3))
    seen = x.numpy()
    assert seen.base is x
    assert seen.flags.writeable
    seen[1, 2] = 5
    assert x[1, 2].item() == 5.0
    clone = x.clone()  # memory that was handed out is copied
    seen[0, 0] = 7
    assert x[0, 0].item() == 7.0
    assert clone[0, 0].item() == 0.0
    data = np.zeros(3, np.float32)
    data.flags.writeable = False
    with pytest.raises(TritiumError, match="read-only"):
        tt.asarray(data)[0] = 1


def test_a_quick_function_looks_like_its_function() -> None:
    for name in FUNCTIONS:
        function = getattr(tt, name)
        assert function.__name__ == name
        assert function.__doc__
        assert inspect.signature(function).parameters
        assert pickle.loads(pickle.dumps(function)) is function
        assert repr(function).startswith("<quick ")
    assert Tensor.clone.__doc__
    assert tt.ones(2).clone.__self__.shape == (2,)
    with pytest.raises(ValueError, match="no shortcut 'nothing'"):
        buffer.native.Quick("nothing", len)


def test_calls_are_pythons_while_someone_watches_or_traces() -> None:
    events: list[Any] = []
    tt.watch(events.append)
    try:
        tt.zeros(3)
        tt.positive(tt.ones(2))
    finally:
        tt.unwatch(events.append)
    assert [event.op.name for event in events] == ["full", "full", "positive"]
    graph = tt.trace(lambda x: x.reshape(6).clone() + tt.zeros(6), tt.Spec((2, 3)))
    assert "reshape(" in str(graph)


def test_native_code_creates_only_where_the_cpu_is_the_default_for_any_size() -> None:
    assert tt.zeros(3).device.type == "cpu"
    assert tt.zeros.function is not tt.zeros
    calls: list[Any] = []
    shortcut = buffer.native.Quick("zeros", lambda *args: calls.append(args))
    assert shortcut(3).shape == (3,)
    assert not calls
    tt.set_default_device("cpu")
    try:
        shortcut(3)
        assert calls == [(3,)]  # until a call of Python has found out where tensors are made
    finally:
        tt.set_default_device(None)
    tt.asarray(1.0)
    tt.from_numpy.function(np.zeros(1))  # type: ignore[attr-defined]
    assert shortcut(3).shape == (3,)
    assert len(calls) == 1
