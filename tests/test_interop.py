"""To and from everyone else: the same memory where it can be, a copy where it must."""

from __future__ import annotations

import array as plain_array
import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium import buffer
from tritium.dtype import ALL, DType
from tritium.errors import ArgumentError, DTypeError, ViewError

needs_native = pytest.mark.skipif(buffer.native is None, reason="the buffer protocol needs the native library")
NUMPY_OWN = [t for t in ALL if t is not tt.bf16]


def counted(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


# ---- NumPy


@pytest.mark.parametrize("t", ALL, ids=str)
def test_numpy_sees_the_same_memory(t: DType) -> None:
    x = tt.zeros((2, 3), dtype=t)
    seen = x.numpy()
    assert seen.dtype == t.numpy
    assert seen.ctypes.data == x.address
    seen[0, 1] = 1
    assert x[0, 1].item() == 1
    x[1] = True
    assert seen.astype(int).tolist() == [[0, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("t", ALL, ids=str)
def test_a_tensor_sees_numpys_memory(t: DType) -> None:
    data = np.zeros((2, 3), t.numpy)
    x = tt.from_numpy(data)
    assert x.dtype is t
    assert x.address == data.ctypes.data
    data[1, 2] = 1
    assert x[1, 2].item() == 1
    x[0] = True
    assert data[0].astype(int).tolist() == [1, 1, 1]


def test_strided_views_cross_without_a_copy() -> None:
    data = counted(4, 6)
    for part in (data.T, data[::2, ::-3], data[1:, 2], data[..., None]):
        x = tt.from_numpy(part)
        assert x.address == part.ctypes.data
        assert x.tolist() == part.tolist()
    y = tt.tensor(data)[::-1, 1::2].T
    assert y.numpy().ctypes.data == y.address
    np.testing.assert_array_equal(y.numpy(), data[::-1, 1::2].T)


@given(
    st.lists(st.tuples(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from((1, 2, -1, -3))), min_size=2, max_size=2)
)
def test_any_slice_goes_there_and_back(parts: list[tuple[int, int, int]]) -> None:
    part = counted(5, 4)[tuple(slice(*p) for p in parts)]
    np.testing.assert_array_equal(tt.from_numpy(part).numpy(), part)


def test_memory_lives_as_long_as_someone_looks() -> None:
    x = tt.from_numpy(counted(1000))
    y = tt.tensor(counted(1000)).numpy()
    churn = [tt.full(1000, -1.0) for _ in range(20)] + [np.full(1000, -1.0, np.float32) for _ in range(20)]
    assert x[999].item() == y[999] == 999
    assert len(churn) == 40


def test_a_read_only_array_cannot_be_written() -> None:
    data = counted(3)
    data.flags.writeable = False
    x = tt.from_numpy(data)
    assert (x + 1).tolist() == [1, 2, 3]
    for write in (lambda: x.add_(1), lambda: x.zero_(), lambda: x[:1].copy_(5)):
        with pytest.raises(ViewError, match="read-only"):
            write()
    y = x.clone()
    y += 1
    assert y.tolist() == [1, 2, 3]
    assert x.tolist() == [0, 1, 2]
    assert not x.numpy().flags.writeable


ODD: list[tuple[str, Any]] = [
    ("byte order", lambda: counted(3, dtype=">f4")),
    ("stride", lambda: np.ndarray((3,), np.int32, bytearray(range(20)), strides=(6,))),
    ("address", lambda: np.ndarray((3,), np.int32, bytearray(range(20)), offset=1)),
    ("emptiness", lambda: np.empty((0, 3))),
]


@pytest.mark.parametrize("make", [m for _, m in ODD], ids=[n for n, _ in ODD])
def test_odd_memory_is_copied(make: Any) -> None:
    data = make()
    x = tt.from_numpy(data)
    assert x.tolist() == data.tolist()
    assert not x.storage.imported


def test_a_copy_is_made_when_asked() -> None:
    data = counted(3)
    x = tt.from_numpy(data, copy=True)
    data[0] = 9
    assert x.tolist() == [0, 1, 2]


def test_dtypes_without_a_row_are_refused() -> None:
    for data in (np.zeros(2, np.clongdouble), np.array(["a"]), np.zeros(2, "M8[s]")):
        with pytest.raises(DTypeError, match="is not a dtype"):
            tt.asarray(data)


def test_array_protocol() -> None:
    x = tt.tensor([1.0, 2.0])
    assert np.asarray(x).ctypes.data == x.address
    assert np.array(x).ctypes.data != x.address
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.asarray(x, copy=False).ctypes.data == x.address
    assert x.__array__(copy=True).ctypes.data != x.address
    assert x.__array__(np.int8).tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"f32\[2\] cannot be seen as float64 without a copy"):
        x.__array__(np.float64, copy=False)


def test_numpy_functions_take_tensors() -> None:
    assert np.sum(np.asarray(tt.ones((2, 3)))) == 6
    np.testing.assert_array_equal(tt.arange(3), [0, 1, 2])


def test_numpy_on_the_left_gives_a_tensor() -> None:
    left, right = counted(3), tt.tensor([10.0, 20.0, 30.0])
    for got, want in [
        (left + right, [10, 21, 32]),
        (left - right, [-10, -19, -28]),
        (right - left, [10, 19, 28]),
        (np.float32(1) - right, [-9, -19, -29]),
        (left[:, None] * right, np.outer(left, right.numpy()).tolist()),
    ]:
        assert isinstance(got, tt.Tensor)
        assert got.tolist() == want
    assert (left < right).dtype is tt.bool


def test_tolist_is_nested_python_numbers() -> None:
    assert tt.tensor([[1, 2]]).tolist() == [[1, 2]]
    assert type(tt.tensor([1.5], dtype="bf16").tolist()[0]) is float


# ---- buffers


def test_anything_with_a_buffer_becomes_a_tensor() -> None:
    values = plain_array.array("i", [1, 2, 3])
    x = tt.asarray(memoryview(values))
    values[0] = 9
    assert x.dtype is tt.i32
    assert x.tolist() == [9, 2, 3]


@needs_native
@pytest.mark.parametrize("t", NUMPY_OWN, ids=str)
def test_memoryview_sees_the_same_memory(t: DType) -> None:
    x = tt.zeros((2, 3), dtype=t)
    seen = memoryview(x)
    assert seen.shape == (2, 3)
    assert seen.itemsize == t.nbytes
    assert np.dtype(seen.format) == t.numpy
    x[1, 2] = True
    assert np.asarray(seen)[1, 2] == 1
    assert not seen.readonly


@needs_native
def test_a_memoryview_counts_as_handing_memory_out() -> None:
    x = tt.ones(3)
    y = x.clone()
    seen = memoryview(x)
    seen[0] = 5.0
    assert y.tolist() == [1, 1, 1]
    assert x.tolist() == [5, 1, 1]
    assert x.clone().address != x.address


@needs_native
def test_strides_and_read_only_reach_a_memoryview() -> None:
    assert memoryview(tt.tensor(counted(3, 4)).T).strides == (4, 16)
    data = counted(3)
    data.flags.writeable = False
    assert memoryview(tt.from_numpy(data)).readonly


@needs_native
def test_bf16_has_no_buffer_and_says_so() -> None:
    with pytest.raises(BufferError, match="bf16"):
        memoryview(tt.ones(3, dtype="bf16"))


# ---- DLPack


@pytest.mark.parametrize("t", NUMPY_OWN, ids=str)
def test_dlpack_out_to_numpy_shares(t: DType) -> None:
    x = tt.zeros((2, 3), dtype=t)
    seen = np.from_dlpack(x)
    x[0, 1] = True
    assert seen.dtype == t.numpy
    assert seen.astype(int).tolist() == [[0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("t", NUMPY_OWN, ids=str)
def test_dlpack_in_from_numpy_shares(t: DType) -> None:
    data = np.zeros((2, 3), t.numpy)[:, ::2]
    x = tt.from_dlpack(data)
    data[0, 1] = 1
    assert x.dtype is t
    assert x.tolist()[0][1] == 1
    assert x.address == data.ctypes.data


def test_dlpack_keeps_strides() -> None:
    data = counted(3, 4)
    np.testing.assert_array_equal(np.from_dlpack(tt.tensor(data).T[::2]), data.T[::2])


def test_dlpack_to_ourselves() -> None:
    x = tt.tensor(counted(3))
    y = tt.from_dlpack(x)
    y += 1
    assert x.tolist() == [1, 2, 3]


def test_dlpack_copies_when_asked() -> None:
    x = tt.tensor(counted(3))
    y = tt.from_dlpack(x, copy=True)
    y += 1
    assert x.tolist() == [0, 1, 2]
    assert np.from_dlpack(x, copy=True).ctypes.data != x.address


def test_dlpack_counts_as_handing_memory_out() -> None:
    x = tt.ones(3)
    y = x.clone()
    seen = np.from_dlpack(x)
    x[0] = 5.0
    assert seen[0] == 5
    assert y.tolist() == [1, 1, 1]


def test_dlpack_says_where_the_memory_is() -> None:
    x = tt.ones(3)
    assert tuple(x.__dlpack_device__()) == (1, 0)
    with pytest.raises(ArgumentError, match="stream"):
        x.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"f32\[3\] is on the CPU"):
        x.__dlpack__(dl_device=(2, 0))


def test_bf16_leaves_through_dlpack_or_says_why_not() -> None:
    x = tt.tensor([1.0, 2.5], dtype="bf16")
    if buffer.native is None:
        with pytest.raises(BufferError, match=r"bf16.*native build"):
            x.__dlpack__()
    else:
        assert tt.from_dlpack(x).tolist() == [1, 2.5]
        assert tt.from_dlpack(x).dtype is tt.bf16


def test_bf16_crosses_to_numpy_as_ml_dtypes() -> None:
    x = tt.tensor([1.0, 2.5], dtype="bf16")
    assert x.numpy().dtype == ml_dtypes.bfloat16
    data = np.array([3, 4], ml_dtypes.bfloat16)
    y = tt.asarray(data)
    y += 1
    assert data.astype(float).tolist() == [4, 5]


def test_the_namespace_is_the_package() -> None:
    x = tt.ones(1)
    assert x.__array_namespace__() is tt
    assert x.__array_namespace__(api_version="2024.12") is tt
    with pytest.raises(DTypeError, match=r"'1999\.12'.*2024\.12"):
        x.__array_namespace__(api_version="1999.12")


# ---- copies and pickles


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("t", ALL, ids=str)
def test_a_pickle_brings_back_the_same_tensor(t: DType, protocol: int) -> None:
    x = tt.tensor(np.array([[0, 1, 1], [1, 0, 1]])).to(t).T
    y = pickle.loads(pickle.dumps(x, protocol))
    assert y.spec == x.spec
    assert y.device is x.device
    assert y.tolist() == x.tolist()
    y[0] = True
    assert y.tolist()[0] == [1, 1]
    assert x.tolist()[0] == [0, 1]


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_small_shapes_are_pickled(shape: tuple[int, ...], protocol: int) -> None:
    assert pickle.loads(pickle.dumps(tt.ones(shape), protocol)).shape == shape


def test_buffers_out_of_band_are_the_same_memory() -> None:
    x = tt.tensor(counted(1000))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 500
    assert len(buffers) == 1
    y = pickle.loads(data, buffers=buffers)
    assert y.address == x.address
    y[0] = 9.0
    assert x[0].item() == 9


def test_buffers_that_travelled_are_looked_at_in_place() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(tt.tensor(counted(5)), protocol=5, buffer_callback=buffers.append)
    arrived = [bytearray(b.raw()) for b in buffers]
    y = pickle.loads(data, buffers=arrived)
    y[0] = 1.0
    assert np.frombuffer(arrived[0], np.float32)[0] == 1


def test_a_pickle_does_not_see_later_writes_to_a_clone() -> None:
    x = tt.ones(4)
    y = x.clone()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    y.copy_(5.0)
    del y
    churn = [tt.full(4, 7.0) for _ in range(8)]
    assert pickle.loads(data, buffers=buffers).tolist() == [1, 1, 1, 1]
    assert len(churn) == 8


def test_buffers_out_of_band_outlive_their_tensor() -> None:
    x = tt.tensor(counted(1000))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    del x
    churn = [tt.full(1000, -1.0) for _ in range(20)]
    assert pickle.loads(data, buffers=buffers)[999].item() == 999
    assert len(churn) == 20


def test_nested_objects_keep_one_tensor_one() -> None:
    x = tt.ones(2)
    a, b = pickle.loads(pickle.dumps([x, x]))
    assert a is b
    c, d = copy.deepcopy([x, x])
    assert c is d
    assert c is not x


def test_a_copy_shares_until_written_and_a_deep_copy_never() -> None:
    x = tt.ones(3)
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    assert shallow.address == x.address != deep.address
    x += 1
    assert shallow.tolist() == deep.tolist() == [1, 1, 1]


def test_pickles_go_through_files() -> None:
    file = io.BytesIO()
    pickle.dump({"w": tt.tensor([1, 2])}, file)
    file.seek(0)
    assert pickle.load(file)["w"].tolist() == [1, 2]


# ---- torch and mlx, where installed


def test_torch_shares_memory_both_ways() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    x = tt.from_torch(theirs.T)
    x += 1
    assert theirs.flatten().tolist() == [1, 2, 3, 4, 5, 6]
    seen = x.torch()
    seen[0, 0] = 9
    assert x[0, 0].item() == 9
    assert tuple(seen.stride()) == x.strides


def test_torch_dtypes_are_known_by_both() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"):
        theirs = getattr(torch, name)
        assert tt.zeros(2, dtype=theirs).torch().dtype is theirs


def test_torch_gradients_are_left_behind() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert tt.from_torch(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


@needs_native
def test_torch_bfloat16_crosses() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert tt.tensor([1.5], dtype="bf16").torch().dtype is torch.bfloat16
    assert tt.from_torch(torch.tensor([2.5], dtype=torch.bfloat16)).dtype is tt.bf16


def test_mlx_arrays_cross_both_ways() -> None:
    mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
    assert tt.asarray(mx.array([1.0, 2.0])).tolist() == [1, 2]
    assert mx.array(tt.tensor([3.0, 4.0]).numpy()).tolist() == [3, 4]


# ---- NumPy's functions

NOT_COMPARED = {"empty_like", "save", "savez", "savez_compressed", "savetxt", "array2string", "array_repr", "array_str"}
MODULES = (np, np.linalg, np.fft)
FUNCTIONS = {
    f"{module.__name__}.{name}": fn
    for module in MODULES
    for name, fn in sorted(vars(module).items())
    if callable(fn) and (hasattr(fn, "_implementation") or isinstance(fn, np.ufunc)) and name not in NOT_COMPARED
}
FORMS: list[Any] = [
    lambda fn, x, y: fn(x),
    lambda fn, x, y: fn(x, y),
    lambda fn, x, y: fn(x, 1),
    lambda fn, x, y: fn(x, 0, 1),
    lambda fn, x, y: fn(x, axis=0),
    lambda fn, x, y: fn(x, y > 0, y),
    lambda fn, x, y: fn(x > 0, x, y),
    lambda fn, x, y: fn(x, (3, 3)),
    lambda fn, x, y: fn([x, y]),
    lambda fn, x, y: fn((x, y), axis=1),
    lambda fn, x, y: fn("ij,jk->ik", x, y),
]
OUT_FORMS: list[Any] = [lambda fn, x, y: fn(x, out=y), lambda fn, x, y: fn(x, x, out=y)]


def compare(value: Any, want: Any) -> None:
    """Compare results, which may be nested, in type and value."""
    assert type(value) is type(want)
    if isinstance(want, (list, tuple)):
        assert len(value) == len(want)
        for a, b in zip(value, want, strict=True):
            compare(a, b)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert value.dtype == want.dtype
        np.testing.assert_array_equal(value, want)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_numpy_takes_tensors_as_arrays(name: str) -> None:
    """Whatever NumPy does with the array, also what it writes or raises, it does with the tensor."""
    fn = FUNCTIONS[name]
    source = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0], [2.0, 1.0, 5.0]], np.float32)
    forms = FORMS + OUT_FORMS
    if isinstance(fn, np.ufunc):  # whose out must be an array, also by position
        forms = forms[:1] if fn.nin == 1 else forms[1:3]
    for form in forms:
        ours, arrays = [(source.copy(), source.T.copy()) for _ in range(2)]
        try:
            with np.errstate(all="ignore"):
                want = form(fn, *arrays)
        except Exception:
            continue
        x, y = (tt.asarray(a) for a in ours)
        with np.errstate(all="ignore"):
            value = form(fn, x, y)
        compare(value, want)
        for a, b in zip(ours, arrays, strict=True):
            np.testing.assert_array_equal(a, b)


def test_operators_between_arrays_and_tensors_give_tensors() -> None:
    a, x = np.ones((2, 2), np.float32), tt.ones((2, 2))
    for value in (a + x, x + a, a @ x, a * x, a < x, 2.0 - x):
        assert type(value) is tt.Tensor


def test_out_of_a_ufunc_is_the_array_of_a_tensor() -> None:
    x = tt.ones(2)
    np.add(x, x, out=x.numpy())
    assert x.tolist() == [2, 2]
    with pytest.raises(TypeError, match="must be of ArrayType"):
        np.add(x, x, out=x)  # type: ignore[call-overload]


def test_a_function_of_numpy_needs_values() -> None:
    with pytest.raises(tt.errors.TraceError, match=r"np\.mean: the value of a traced tensor f32\[2\]"):
        tt.compile(lambda x: np.mean(x))(tt.ones(2))


def test_an_array_of_another_library_decides() -> None:
    class Other:
        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
            return func.__name__

    assert np.concatenate([tt.ones(2), Other()]) == "concatenate"  # type: ignore[call-overload, comparison-overlap]


@pytest.mark.parametrize(
    "show", [np.asarray, lambda x: x.numpy(), lambda x: np.from_dlpack(x), lambda x: x[1:].numpy()]
)
def test_an_array_over_imported_memory_outlives_the_tensor(show: Callable[[tt.Tensor], Any]) -> None:
    class Owned(np.ndarray):
        """An array that weak references can follow."""

    data = np.arange(240.0).reshape(60, 4).view(Owned)
    owner, seen = weakref.ref(data), show(tt.from_numpy(data))
    del data
    gc.collect()
    assert owner() is not None
    assert seen[-1, -1] == 239.0
    del seen
    gc.collect()
    assert owner() is None
