"""Tensor: making one, looking into it, writing where it lies, and what it says when something does not fit."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium.errors import ArgumentError, BoundsError, DeviceError, DTypeError, ShapeError, ViewError

slices = st.builds(
    slice, st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5), st.sampled_from((None, 1, 2, -1, -2))
)


def counted(*shape: int, dtype: str = "f32") -> tt.Tensor:
    return tt.tensor(model(*shape), dtype=dtype)


def model(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def same(x: tt.Tensor, want: Any) -> None:
    np.testing.assert_array_equal(x.numpy(), want)


# ---- making


MADE: list[tuple[Any, str, Any]] = [
    (lambda: tt.tensor([[1, 2], [3, 4]]), "i64", [[1, 2], [3, 4]]),
    (lambda: tt.tensor([1.5, 2]), "f32", [1.5, 2]),
    (lambda: tt.tensor([True, False]), "bool", [True, False]),
    (lambda: tt.tensor([]), "f32", []),
    (lambda: tt.tensor(3), "i64", 3),
    (lambda: tt.tensor(2.5, dtype="bf16"), "bf16", 2.5),
    (lambda: tt.tensor([1, 2], dtype="f16"), "f16", [1, 2]),
    (lambda: tt.tensor([1.9, -1.9], dtype="i8"), "i8", [1, -1]),
    (lambda: tt.asarray([tt.ones(2), tt.zeros(2)]), "f32", [[1, 1], [0, 0]]),
    (lambda: tt.asarray(bytearray(b"\x01\x02")), "u8", [1, 2]),
    (lambda: tt.zeros((2, 1)), "f32", [[0], [0]]),
    (lambda: tt.ones(2, dtype="bool"), "bool", [True, True]),
    (lambda: tt.full((2,), 7), "i64", [7, 7]),
    (lambda: tt.arange(3), "i64", [0, 1, 2]),
    (lambda: tt.arange(0.0, 1.0, 0.5), "f32", [0, 0.5]),
    (lambda: tt.linspace(0, 1, 3), "f32", [0, 0.5, 1]),
    (lambda: tt.eye(2, dtype="i32"), "i32", [[1, 0], [0, 1]]),
    (lambda: tt.ones_like(tt.zeros(2, dtype="u8")), "u8", [1, 1]),
    (lambda: tt.full_like(tt.zeros(2), 3.0), "f32", [3, 3]),
]


@pytest.mark.parametrize(("make", "dtype", "values"), MADE)
def test_a_new_tensor_has_the_dtype_and_values_asked_for(make: Any, dtype: str, values: Any) -> None:
    x = make()
    assert x.dtype == dtype
    assert x.device == "cpu"
    same(x, values)


def test_tensor_copies_its_data() -> None:
    data = model(3)
    x = tt.tensor(data)
    data[0] = 9
    assert x.tolist() == [0, 1, 2]


def test_asarray_looks_at_a_numpy_array() -> None:
    data = model(3)
    x = tt.asarray(data)
    data[0] = 9
    assert x.tolist() == [9, 1, 2]


def test_asarray_of_a_tensor_is_that_tensor() -> None:
    x = tt.ones(3)
    assert tt.asarray(x) is x
    assert tt.asarray(x, copy=True).address != x.address


def test_empty_has_shape_and_dtype() -> None:
    assert tt.empty((3, 0), dtype="i16").spec == tt.Spec((3, 0), tt.i16)


def test_memory_of_a_new_tensor_is_aligned_to_64_bytes() -> None:
    assert all(tt.empty(n, dtype="i8").address % 64 == 0 for n in (0, 1, 63, 65, 1000, 5000, 100_000))


NOT_MADE: list[tuple[Any, type[Exception], str]] = [
    (lambda: tt.tensor([[1], [1, 2]]), ShapeError, "ragged"),
    (lambda: tt.tensor(["a"]), DTypeError, "numbers or bools"),
    (lambda: tt.tensor(object()), ArgumentError, "object is neither an array"),
    (lambda: tt.tensor([300], dtype="i8"), OverflowError, r"300 is outside i8 \(-128 to 127\)"),
    (lambda: tt.tensor(-1, dtype="u8"), OverflowError, r"-1 is outside u8 \(0 to 255\)"),
    (lambda: tt.zeros((2, -1)), ShapeError, r"\(2, -1\) is not a shape"),
    (lambda: tt.zeros((1,) * 33), ShapeError, "33 dimensions.*at most 32"),
    (lambda: tt.zeros(2, dtype="f33"), DTypeError, "'f33' is not a dtype"),
    (lambda: tt.zeros(2, device="cpux"), DeviceError, "'cpux' is not a device.*Valid here: cpu"),
    (lambda: tt.asarray([1], copy=False), ArgumentError, "cannot become a tensor without a copy"),
    (
        lambda: tt.asarray(tt.ones(2), dtype="i8", copy=False),
        ArgumentError,
        r"f32\[2\] cannot become i8 without a copy",
    ),
    (lambda: tt.arange(1, 2, 0), ArgumentError, "step is 0"),
    (lambda: tt.rand(3, seed=-1), ArgumentError, "seed=-1"),
    (lambda: tt.rand(3, seed=1, dtype="i8"), DTypeError, "randint"),
]


@pytest.mark.parametrize(("make", "error", "says"), NOT_MADE)
def test_what_cannot_be_made_is_explained(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_a_seed_gives_the_same_numbers_again() -> None:
    assert tt.rand(5, seed=3).tolist() == tt.rand(5, seed=3).tolist() != tt.rand(5, seed=4).tolist()


def test_without_a_seed_numbers_differ() -> None:
    assert tt.randn(8).tolist() != tt.randn(8).tolist()


def test_randint_stays_inside() -> None:
    assert set(tt.randint(-1, 2, 200, seed=1).tolist()) == {-1, 0, 1}


# ---- what it says of itself


def test_repr_shows_values_dtype_shape_and_device() -> None:
    text = repr(tt.tensor([[1.0, 2.5]]))
    assert text == "Tensor([[1. , 2.5]], dtype=f32, shape=(1, 2), device='cpu')"


def test_repr_of_many_values_is_short() -> None:
    assert len(repr(tt.zeros((1000, 1000)))) < 1000


def test_a_traced_tensor_says_so() -> None:
    seen: list[str] = []

    def note(x: Any) -> Any:
        seen.append(repr(x))
        return x

    tt.trace(note, tt.Spec((2,), tt.i8))
    assert seen == ["Tensor(traced, dtype=i8, shape=(2,))"]


def test_sizes() -> None:
    x = tt.zeros((2, 3), dtype="i16")
    assert (x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == (2, 6, 12, 2, 2)
    assert x.strides == (3, 1)
    assert x.layout.is_contiguous
    assert x.is_contiguous()
    assert not x.T.is_contiguous()


def test_acceleration_backend_names_a_kernel_of_add() -> None:
    x = tt.ones(3)
    assert x.acceleration_backend in [k.name for k in x.device.backend.kernels[tt.add]]


def test_one_element_becomes_a_python_number() -> None:
    assert type(tt.tensor([True]).item()) is bool
    assert type(tt.tensor(3).item()) is int
    assert type(tt.tensor(1.5, dtype="bf16").item()) is float
    assert (int(tt.tensor(3.7)), float(tt.tensor(2)), complex(tt.tensor(1.0))) == (3, 2.0, 1 + 0j)
    assert f"{tt.tensor(1.25):.1f}" == "1.2"
    assert [10, 20][tt.tensor(1)] == 20


@pytest.mark.parametrize("act", [bool, int, float, tt.Tensor.item])
def test_many_elements_are_not_one_number(act: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"one element is needed, given f32\[2\]; index one, or use all\(\) or any\(\)"
    ):
        act(tt.ones(2))


def test_a_float_is_not_an_index() -> None:
    with pytest.raises(DTypeError, match=r"given f32\[\]"):
        operator.index(tt.tensor(1.0))


def test_iteration_gives_views_and_in_looks_at_values() -> None:
    x = counted(3, 2)
    for row in x:
        row += 10
    assert x.tolist() == [[10, 11], [12, 13], [14, 15]]
    assert 13 in x
    assert 3 not in x
    with pytest.raises(ArgumentError, match="0-d"):
        len(tt.tensor(1))


def test_equality_is_element_by_element_and_hash_is_identity() -> None:
    x = tt.tensor([1, 2])
    assert (x == 1).tolist() == [True, False]
    assert (x != x).tolist() == [False, False]
    assert x != "text"
    assert len({x, x.clone()}) == 2


# ---- indexing


@given(st.data())
def test_basic_indexing_is_numpys(data: st.DataObject) -> None:
    x, m = counted(3, 4, 2), model(3, 4, 2)
    key = tuple(data.draw(slices | st.integers(-n, n - 1)) for n in m.shape[: data.draw(st.integers(0, 3))])
    key = data.draw(st.sampled_from((key, (*key, ...), (None, *key), (*key, ..., None))))
    same(x[key], m[key])
    assert x[key].storage is x.storage


@given(st.data())
def test_integer_tensors_index_as_numpys_do(data: st.DataObject) -> None:
    x, m = counted(3, 4, 2), model(3, 4, 2)
    shape = data.draw(st.sampled_from(((), (2,), (2, 1), (0,))))
    parts: list[Any] = []
    for n in m.shape[: data.draw(st.integers(1, 3))]:
        part = data.draw(slices | st.integers(-n, n - 1) | st.just("at"))
        if part == "at":
            part = np.array(
                data.draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))),
                int,
            ).reshape(shape)
        parts.append(part)
    if data.draw(st.booleans()):
        parts.insert(data.draw(st.integers(0, len(parts))), None)
    key = tuple(parts)
    ours = tuple(tt.asarray(p) if isinstance(p, np.ndarray) else p for p in parts)
    same(x[ours], m[key])
    value = data.draw(st.sampled_from((7.0, -1.0)))
    x[ours] = value
    m[key] = value
    same(x, m)


@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_masks_read_and_write_as_numpys_do(bits: list[bool]) -> None:
    x, m = counted(2, 3), model(2, 3)
    mask = np.array(bits).reshape(2, 3)
    same(x[tt.asarray(mask)], m[mask])
    x[tt.asarray(mask)] = 5.0
    m[mask] = 5.0
    same(x, m)
    x[tt.asarray(mask)] = tt.arange(int(mask.sum()), dtype="f32")
    m[mask] = np.arange(mask.sum())
    same(x, m)


@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.booleans(),
    st.sampled_from((tt.asarray, np.asarray, np.bool_, bool)),
    st.sampled_from((7.0, np.float32(2), [5.0], "own")),
)
def test_a_mask_without_axes_reads_and_writes_as_numpys_does(
    shape: list[int], bit: bool, kind: Any, value: Any
) -> None:
    x, m = counted(*shape), model(*shape)
    mask = kind(bit)
    same(x[mask], m[bit])
    x[mask] = x[mask] * 2 if value == "own" else value
    m[bit] = m[bit] * 2 if value == "own" else value
    same(x, m)


def test_a_bool_is_a_mask_also_after_the_number_it_equals() -> None:
    x = counted(3)
    for _ in range(3):
        assert x[1].shape == ()
        assert x[True].shape == (1, 3)
        assert x[0].shape == ()
        assert x[False].shape == (0, 3)
    assert x[True, 0].shape == (1,)


def test_sizes_passed_one_by_one_are_named_as_a_tuple() -> None:
    calls: list[tuple[Any, str]] = [
        (lambda: tt.zeros(2, 3), r"zeros: 3 is not a dtype; the shape is one tuple: zeros\(\(2, 3\)\)"),
        (lambda: tt.zeros(2, 0), r"zeros\(\(2, 0\)\)"),
        (lambda: tt.ones(2, 3, 4), r"ones\(\(2, 3, 4\)\)"),
        (lambda: tt.empty((2, 3), 4), r"empty\(\(2, 3, 4\)\)"),
        (lambda: tt.full(2, 3, 4), r"full\(\(2, 3\), 4\)"),
        (lambda: tt.rand(2, np.int64(3)), r"rand\(\(2, 3\)\)"),
        (lambda: tt.randn(2, 3), r"randn\(\(2, 3\)\)"),
    ]
    for call, text in calls:
        with pytest.raises(DTypeError, match=text):
            call()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tt.full(2, 1.5, dtype="i8"), "full: 1.5 cannot be stored in i8 .* that holds it.$"),
        (lambda: tt.arange(3, dtype="bool"), r"arange: bool has no arithmetic; .*\.to\('bool'\)\.$"),
        (lambda: tt.zeros(2, dtype="tern2"), "full: tern2 is packed"),
    ],
)
def test_an_error_of_an_op_without_operands_ends_without_an_empty_list_of_them(call: Any, text: str) -> None:
    with pytest.raises(DTypeError, match=text):
        call()


def test_a_mask_of_rows_takes_rows() -> None:
    x = counted(3, 2)
    assert x[[True, False, True]].tolist() == [[0, 1], [4, 5]]
    x[tt.tensor([True, False, True])] = [[7, 8], [9, 10]]
    assert x.tolist() == [[7, 8], [2, 3], [9, 10]]


def test_lists_and_numpy_arrays_are_indices_and_values() -> None:
    x = counted(4)
    assert x[[3, 0]].tolist() == [3, 0]
    assert x[np.array([1])].tolist() == [1]
    assert x[np.int64(2)].item() == 2
    x[1:3] = [8, 9]
    x[[0, 3]] = np.array([5, 6], np.float32)
    assert x.tolist() == [5, 8, 9, 6]


def test_index_assignment_broadcasts() -> None:
    x = tt.zeros((2, 3))
    x[:, 1:] = tt.tensor([[1.0], [2.0]])
    assert x.tolist() == [[0, 1, 1], [0, 2, 2]]


def test_slice_takes_a_part_of_one_dimension() -> None:
    x = counted(3, 4)
    same(x.slice(1, 1, 3), model(3, 4)[:, 1:3])
    same(x.slice(dim=-2, start=2), model(3, 4)[2:])


NO_INDEX: list[tuple[Any, type[Exception], str]] = [
    (lambda x: x[3], BoundsError, r"Index 3 is outside axis 0 of \[3,4\], which has size 3"),
    (lambda x: x[0, 0, 0], BoundsError, r"3 indices were given for \[3,4\]"),
    (lambda x: x["at"], BoundsError, "'at' is not an index; use integers"),
    (lambda x: x[tt.tensor([1.0])], BoundsError, r"integers or bools, given f32\[1\]; cast with \.to\('i64'\)"),
    (lambda x: x[tt.tensor([0, 3])], BoundsError, "index 3 is outside an axis of size 3"),
    (lambda x: x[tt.tensor([True, False])], BoundsError, r"mask bool\[2\] must have the leading sizes of f32\[3,4\]"),
    (
        lambda x: x[:, tt.ones(3, dtype="bool")],
        BoundsError,
        r"mask bool\[3\] must have the sizes \[4\] of the axes of f32\[3,4\]",
    ),
    (lambda x: x[0, tt.tensor([1, -5])], BoundsError, r"index -5 is outside an axis of size 4: axis 1 of \[3,4\]"),
    (lambda x: operator.setitem(x, 0, tt.ones(3)), ShapeError, r"\[3\].*\[4\]"),
    (
        lambda x: operator.setitem(x, [0, 1], tt.ones((3, 3))),
        ShapeError,
        r"f32\[3,3\] does not broadcast to the \[2,4\]|do not broadcast",
    ),
]


@pytest.mark.parametrize(("act", "error", "says"), NO_INDEX)
def test_a_wrong_index_says_which_and_of_what(act: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        act(counted(3, 4))


# ---- views under the names people know


VIEWS: list[tuple[Any, Any]] = [
    (lambda x: x.view(4, 6), lambda m: m.reshape(4, 6)),
    (lambda x: x.view((4, -1)), lambda m: m.reshape(4, 6)),
    (lambda x: x.reshape(-1), lambda m: m.reshape(-1)),
    (lambda x: x.flatten(), lambda m: m.reshape(-1)),
    (lambda x: x.transpose(0, 2), lambda m: m.swapaxes(0, 2)),
    (lambda x: x.transpose(), lambda m: m.swapaxes(-1, -2)),
    (lambda x: x.permute(2, 0, 1), lambda m: m.transpose(2, 0, 1)),
    (lambda x: x.permute((1, 2, 0)), lambda m: m.transpose(1, 2, 0)),
    (lambda x: x[0].T, lambda m: m[0].T),
    (lambda x: x.mT, lambda m: m.swapaxes(-1, -2)),
    (lambda x: x[:, :1].expand(-1, 5, -1), lambda m: np.broadcast_to(m[:, :1], (2, 5, 4))),
    (lambda x: x.squeeze(), lambda m: m),
    (lambda x: x.expand_dims(axis=1), lambda m: m[:, None]),
    (lambda x: x.flip(axis=0), lambda m: m[::-1]),
    (lambda x: x.moveaxis(0, -1), lambda m: np.moveaxis(m, 0, -1)),
]


@pytest.mark.parametrize(("look", "want"), VIEWS)
def test_a_view_shares_the_storage(look: Any, want: Any) -> None:
    x = counted(2, 3, 4)
    y = look(x)
    assert y.storage is x.storage
    same(y, want(model(2, 3, 4)))


def test_reshape_copies_only_when_it_must() -> None:
    x = counted(2, 3)
    assert x.reshape(3, 2).storage is x.storage
    assert x.T.reshape(6).storage is not x.storage
    assert tt.reshape(x, (6,), copy=True).storage is not x.storage


def test_view_refuses_to_copy() -> None:
    with pytest.raises(
        ViewError, match=r"view: \[3,2\] with strides \(1, 3\) cannot be seen as \[6\].*\.contiguous\(\)"
    ):
        counted(2, 3).T.view(6)
    with pytest.raises(ViewError):
        tt.reshape(counted(2, 3).T, (6,), copy=False)


def test_contiguous_is_itself_or_a_copy() -> None:
    x = counted(2, 3)
    assert x.contiguous() is x
    assert x.T.contiguous().strides == (2, 1)


def test_T_is_for_matrices() -> None:
    with pytest.raises(ArgumentError, match=r"T needs 2 dimensions, given f32\[3\]; use mT"):
        _ = tt.ones(3).T


def test_expand_cannot_keep_an_axis_that_is_not_there() -> None:
    with pytest.raises(ShapeError, match=r"\[-1,3\].*f32\[3\]"):
        tt.ones(3).expand(-1, 3)


# ---- in place


IN_PLACE: list[tuple[Any, Any]] = [
    (lambda x: x.add_(2), lambda m: m + 2),
    (lambda x: x.mul_(x), lambda m: m * m),
    (lambda x: x.relu_(), lambda m: np.maximum(m, 0)),
    (lambda x: x.sub_(1.5), lambda m: m - 1.5),
    (lambda x: x.div_(2), lambda m: m / 2),
    (lambda x: x.neg_(), lambda m: -m),
    (lambda x: x.clamp_(1, 3), lambda m: np.clip(m, 1, 3)),
    (lambda x: x.zero_(), np.zeros_like),
    (lambda x: x.fill_(4), lambda m: np.full_like(m, 4)),
    (lambda x: x.copy_(tt.ones(3)), np.ones_like),
    (lambda x: operator.iadd(x, x), lambda m: m + m),
    (lambda x: operator.isub(x, 1), lambda m: m - 1),
    (lambda x: operator.imul(x, 3), lambda m: m * 3),
    (lambda x: operator.itruediv(x, 2), lambda m: m / 2),
    (lambda x: operator.ifloordiv(x, 2), lambda m: m // 2),
    (lambda x: operator.imod(x, 2), lambda m: m % 2),
    (lambda x: operator.ipow(x, 2), lambda m: m**2),
    (lambda x: operator.imatmul(x, tt.eye(3) * 2), lambda m: 2 * m),
]


@pytest.mark.parametrize(("act", "want"), IN_PLACE)
def test_writing_in_place_keeps_object_and_address(act: Any, want: Any) -> None:
    x = counted(2, 3)
    address = x.address
    assert act(x) is x
    assert x.address == address
    same(x, want(model(2, 3)))


def test_a_write_through_a_view_is_seen_by_the_base() -> None:
    x = counted(3, 4)
    x.T[1].mul_(10)
    m = model(3, 4)
    m[:, 1] *= 10
    same(x, m)


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64])
def test_x_plus_its_own_transpose_in_place(n: int) -> None:
    x = counted(n, n)
    x += x.T
    same(x, model(n, n) + model(n, n).T)


@pytest.mark.parametrize("shift", [1, 2, 5])
def test_overlapping_parts_are_read_before_they_are_written(shift: int) -> None:
    x, m = counted(12), model(12)
    x[shift:] = x[:-shift]
    m[shift:] = m[:-shift].copy()
    same(x, m)
    x[:-shift] += x[shift:]
    m[:-shift] = m[:-shift] + m[shift:]
    same(x, m)
    x[::-1].copy_(x)
    same(x, m[::-1])


def test_softmax_into_its_own_transpose() -> None:
    x = counted(3, 3)
    want = tt.softmax(x).numpy().copy()
    tt.softmax(x, out=x.T)
    same(x.T, want)


def test_out_is_returned_and_written() -> None:
    out = tt.empty(3)
    assert tt.add(tt.ones(3), 1, out=out) is out
    assert out.tolist() == [2, 2, 2]


def test_out_takes_a_tuple_for_several_results() -> None:
    q, r = tt.empty(2), tt.empty(2)
    got = tt.divmod(tt.tensor([7.0, -7.0]), 2, out=(q, r))
    assert got[0] is q
    assert got[1] is r
    assert (q.tolist(), r.tolist()) == ([3, -4], [1, 1])


def test_a_float_result_is_stored_in_a_wider_or_narrower_float() -> None:
    for kind in ("f16", "bf16", "f64"):
        out = tt.empty(2, dtype=kind)
        assert tt.divide(tt.tensor([1.0, 3.0]), 2, out=out).tolist() == [0.5, 1.5]


def test_a_float64_operand_is_added_in_float64_before_storing() -> None:
    x = tt.ones(1)
    x += tt.tensor([2.0**-30], dtype="f64")
    x -= 1
    assert x.item() == 0
    y = tt.tensor([1.0])
    y += tt.tensor([2.0**-24 + 2.0**-40], dtype="f64")  # rounds up only when the sum is exact
    assert y.item() == 1 + 2.0**-23


NOT_WRITTEN: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: tt.ones(3, dtype="i64").add_(1.5),
        DTypeError,
        r"add: the result is f32, which cannot be stored in i64.*x\.to\('f32'\)",
    ),
    (lambda: tt.ones(3, dtype="i64").div_(2), DTypeError, "f32.*i64"),
    (lambda: tt.ones(3, dtype="bool").copy_(tt.ones(3)), DTypeError, "f32.*bool"),
    (lambda: operator.setitem(tt.ones(3, dtype="i64"), 0, 1.5), DTypeError, r"1\.5 cannot be stored in i64"),
    (lambda: tt.ones(3).add_(tt.ones((2, 3))), ShapeError, r"add: the result has shape \[2,3\], but out is f32\[3\]"),
    (lambda: tt.exp(tt.ones(3), out=tt.ones(2)), ShapeError, r"exp: the result has shape \[3\], but out is f32\[2\]"),
    (lambda: tt.exp(tt.ones(3), out=np.ones(3)), ArgumentError, "out must be a tensor, given ndarray"),
    (lambda: tt.ones(1).expand(3).add_(1), ViewError, r"f32\[3\] repeats its memory.*contiguous"),
    (
        lambda: tt.divmod(tt.ones(3), 2, out=tt.ones(3)),
        ArgumentError,
        "out must be a tuple of 2 tensors, given one tensor",
    ),
    (lambda: tt.divmod(tt.ones(3), 2, out=(tt.ones(3),)), ArgumentError, "a tuple of 2 tensors, given a tuple of 1"),
    (lambda: tt.add(tt.ones(3), 2, out=(tt.ones(3),)), ArgumentError, "out must be one tensor, given a tuple of 1"),
    (lambda: tt.nonzero(tt.ones(3), out=tt.ones(3)), ArgumentError, "depends on values, so out= cannot be used"),
    (lambda: tt.flip(tt.ones(3), out=tt.ones(3)), ArgumentError, "a view has no out="),
]


@pytest.mark.parametrize(("act", "error", "says"), NOT_WRITTEN)
def test_a_write_that_does_not_fit_names_both_sides(act: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        act()


def test_a_refused_write_leaves_the_tensor_alone() -> None:
    x = tt.tensor([1, 2])
    with pytest.raises(DTypeError):
        x += 0.5
    assert x.tolist() == [1, 2]


# ---- clones


def test_a_clone_shares_memory_until_the_first_write() -> None:
    x = counted(4)
    y = x.clone()
    assert y.address == x.address
    assert (x.sharers, y.sharers) == (2, 2)
    here = x.address
    y += 1
    assert y.address != here == x.address
    assert (x.sharers, y.sharers) == (1, 1)
    assert x.tolist() == [0, 1, 2, 3]
    assert y.tolist() == [1, 2, 3, 4]


def test_writing_the_original_leaves_the_clone_alone() -> None:
    x = counted(4)
    y = x.clone()
    x[0] = 9.0
    assert y.tolist() == [0, 1, 2, 3]
    assert x.tolist() == [9, 1, 2, 3]


def test_views_move_with_their_tensor_at_the_first_write() -> None:
    x = counted(4)
    part, y = x[1:], x.clone()
    x[1] = 9.0
    assert part.tolist() == [9, 2, 3]
    assert y.tolist() == [0, 1, 2, 3]


def test_handing_memory_out_ends_the_sharing() -> None:
    for ask in (tt.Tensor.numpy, lambda x: x.data_ptr, np.asarray):
        x = counted(4)
        y = x.clone()
        ask(x)
        assert x.sharers == y.sharers == 1
        assert x.clone().address != x.address


def test_data_ptr_is_the_address() -> None:
    x = counted(4)
    assert x.data_ptr == x.address
    assert x[1:].data_ptr == x.address + 4


# ---- moving and casting


def test_to_takes_dtype_and_device_in_any_order() -> None:
    x = counted(2)
    assert (
        x.to("f16").dtype
        is x.to(tt.f16, "cpu").dtype
        is x.to("cpu", "f16").dtype
        is x.to(dtype=float).to("half").dtype
        is tt.f16
    )
    assert x.to("cpu") is x
    assert x.to("f32") is x
    assert x.to(copy=True) is not x
    assert x.to_device("cpu") is x


def test_astype_copies_unless_told_not_to() -> None:
    x = counted(2)
    assert tt.astype(x, "f32").address != x.address
    assert tt.astype(x, "f32", copy=False) is x


# ---- calls that cannot be


def ones(*shape: int, dtype: str = "f32") -> tt.Tensor:
    return tt.ones(shape, dtype=dtype)


NO_CALL: list[tuple[Any, type[Exception], str]] = [
    (lambda: ones(3, 4) + ones(5), ShapeError, r"add: \[3,4\] and \[5\] do not broadcast"),
    (lambda: ones(3, 4) @ ones(3, 4), ShapeError, r"f32\[3,4\] @ f32\[3,4\] has 4 against 3\. Transpose one with \.T"),
    (lambda: tt.concat([ones(2, 3), ones(2, 4)]), ShapeError, r"concat: f32\[2,3\] and f32\[2,4\]"),
    (lambda: tt.stack([ones(2), ones(3)]), ShapeError, r"stack: f32\[2\] and f32\[3\].*use concat"),
    (
        lambda: tt.max(ones(0)),
        ShapeError,
        r"max: f32\[0\] has no elements, .* at least one is needed\. Look at the size first",
    ),
    (lambda: tt.min(ones(2, 0), axis=-1), ShapeError, r"min: f32\[2,0\] has no elements along axis 1,"),
    (lambda: tt.argmax(ones(0, 0), axis=1), ShapeError, r"argmax: f32\[0,0\] has no elements along axis 1,"),
    (lambda: tt.max(ones(3, 0, 0), axis=(0, 2)), ShapeError, r"max: f32\[3,0,0\] has no elements along axis 2,"),
    (
        lambda: ones(2, dtype="u64") + ones(2, dtype="i8"),
        DTypeError,
        r"add: u64 and i8.*\.to\(dtype\).*Given u64\[2\], i8\[2\]",
    ),
    (
        lambda: ones(2, dtype="bool") + ones(2, dtype="bool"),
        DTypeError,
        r"add: bool has no arithmetic; use logical_and",
    ),
    (lambda: ones(2) & ones(2), DTypeError, "bitwise_and: bits of f32"),
    (lambda: ones(2) << 1, DTypeError, "integer dtype is needed, not f32"),
    (lambda: ones(2, dtype="i64") ** -1, BoundsError, r"negative power.*x\.to\('f32'\)"),
    (
        lambda: ones(2, dtype="i8") + 300,
        OverflowError,
        r"300 is outside i8 \(-128 to 127\); cast to a wider dtype",
    ),
    (lambda: ones(2, dtype="u8") * -1, OverflowError, "-1 is outside u8"),
    (lambda: tt.sum(ones(3), dim=0), ArgumentError, "sum: unknown argument 'dim'. Did you mean 'axis'"),
    (lambda: ones(3).sum(keepdim=True), ArgumentError, "Did you mean 'keepdims'"),
    (lambda: tt.softmax(ones(3), axes=0), ArgumentError, "Did you mean 'axis'.*Signature: softmax"),
    (lambda: tt.add(ones(3)), ArgumentError, "add: missing x2. Signature: add"),
    (lambda: tt.add(ones(3), 1, 2), ArgumentError, "add: takes 2 positional arguments, 3 were given"),
    (lambda: tt.reshape(ones(3)), TypeError, "shape"),
    (
        lambda: tt.add(ones(3), "x"),
        ArgumentError,
        r"str is not a tensor or a number; make a tensor with tritium\.tensor",
    ),
    (lambda: tt.add(ones(3), [1, 2, 3]), ArgumentError, "list is not a tensor"),
    (lambda: tt.concat([]), ArgumentError, "at least one tensor"),
    (lambda: tt.sum(ones(3), axis=1), BoundsError, r"sum: axis 1 does not exist in 1 dimension\(s\)"),
    (lambda: ones(2).to("gpu"), DeviceError, "'gpu' is not available"),
]


@pytest.mark.parametrize(("act", "error", "says"), NO_CALL)
def test_a_call_that_cannot_be_says_what_was_given_and_what_to_do(act: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        act()


def test_the_same_wrong_call_fails_the_same_way_twice() -> None:
    said = []
    for _ in range(3):
        with pytest.raises(ShapeError) as caught:
            ones(3) + ones(4)
        said.append(str(caught.value))
    assert len(set(said)) == 1


# ---- operators


BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


@pytest.mark.parametrize("act", BINARY)
def test_operators_take_tensors_numbers_and_numpy_on_either_side(act: Any) -> None:
    m = np.array([1.0, 2.0, 3.0], np.float32)
    x = tt.tensor(m)
    for left, right, want in [
        (x, x, act(m, m)),
        (x, 2, act(m, 2)),
        (2, x, act(2, m)),
        (x, m[::-1], act(m, m[::-1])),
        (m[::-1], x, act(m[::-1], m)),
    ]:
        got = act(left, right)
        assert isinstance(got, tt.Tensor)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("act", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_bit_operators(act: Any) -> None:
    m = np.array([5, 6, 7])
    same(act(tt.tensor(m), 3), act(m, 3))
    same(act(3, tt.tensor(m)), act(3, m))


def test_unary_operators() -> None:
    x = tt.tensor([-2, 3])
    assert ((-x).tolist(), (+x).tolist(), abs(x).tolist(), (~x).tolist()) == ([2, -3], [-2, 3], [2, 3], [1, -4])


def test_matmul_operator_reads_transposed_views() -> None:
    a, b = model(3, 4), model(5, 4)
    same(tt.tensor(a) @ tt.tensor(b).T, a @ b.T)
    same(np.eye(3, dtype=np.float32) @ tt.tensor(a), a)


def test_divmod_gives_both() -> None:
    q, r = divmod(tt.tensor([7, -7]), 2)
    assert (q.tolist(), r.tolist()) == ([3, -4], [1, 1])
    assert divmod(7, tt.tensor([2]))[0].tolist() == [3]


@given(st.integers(-(2**40), 2**40), st.integers(-(2**20), 2**20))
def test_integer_arithmetic_is_exact(a: int, b: int) -> None:
    x, y = tt.tensor(a), tt.tensor(b)
    assert (x + y).item() == a + b
    assert (x * y).item() == a * b
    assert (x - b).item() == a - b
    if b:
        assert (x // y).item() == a // b
        assert (x % y).item() == a % b


def test_operands_given_by_name_are_operands_every_time() -> None:
    x = tt.zeros((3,), dtype="i8")
    assert [tt.clip(x, min=56).tolist() for _ in range(3)] == [[56, 56, 56]] * 3
    assert [tt.clip(x, max=-3).tolist() for _ in range(3)] == [[-3, -3, -3]] * 3
    assert [tt.add(x, x2=4).tolist() for _ in range(3)] == [[4, 4, 4]] * 3


def test_lists_of_integers_around_2_to_the_63_stay_exact() -> None:
    big = 2**63 + 1
    assert tt.asarray([big, 3], dtype="u64").tolist() == [big, 3]
    assert tt.asarray([[big], [0]]).dtype is tt.u64
    assert tt.asarray([-1, big], dtype="f64").tolist() == [-1.0, 2.0**63]
    with pytest.raises(OverflowError, match="-1 is outside u64"):
        tt.asarray([-1, big])


def test_a_mask_of_size_0_picks_nothing() -> None:
    x = tt.ones((3, 4))
    none = tt.zeros((0,), dtype="bool")
    assert x[none].shape == (0, 4)
    x[none] = 7.0
    assert x.tolist() == [[1.0] * 4] * 3
    with pytest.raises(BoundsError, match=r"mask bool\[3,1\] must have the leading sizes of f32\[3,4\]"):
        x[tt.ones((3, 1), dtype="bool")] = 0.0


def test_floor_division_with_one_infinity_is_the_quotient() -> None:
    a = tt.asarray([np.inf, -np.inf, 1.0, -1.0, np.inf])
    b = tt.asarray([2.0, 2.0, -np.inf, np.inf, np.inf])
    for got in (a // b, divmod(a, b)[0]):
        np.testing.assert_array_equal(got.numpy(), [np.inf, -np.inf, -0.0, -0.0, np.nan])
        assert np.signbit(got.numpy()[2:4]).all()


# ---- NumPy's values where a number or an array may stand


@pytest.mark.parametrize("view", [lambda a: tt.reshape(a, (3, 2)), tt.flip, tt.matrix_transpose, lambda a: tt.squeeze(a[None]),
                                  lambda a: tt.broadcast_to(a, (4, 2, 3))])  # fmt: skip
def test_a_view_may_be_taken_of_a_numpy_array(view: Any) -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert view(data).tolist() == view(tt.tensor(data)).tolist()


def test_numpy_values_can_be_assigned() -> None:
    x = tt.zeros(3)
    x[:2] = np.ones(2, np.float32)
    x[2] = np.float32(2)
    assert x.tolist() == [1, 1, 2]
    x.fill_(np.int64(3))
    assert x.tolist() == [3, 3, 3]


def test_numpy_integers_are_integers() -> None:
    three = np.int64(3)
    assert tt.zeros((three, 2)).shape == (3, 2)
    assert tt.arange(three).dtype is tt.i64
    assert tt.full((2,), three).dtype is tt.i64
    assert tt.ones((2, 3)).sum(axis=np.int64(1)).tolist() == [3, 3]


def test_lists_are_assigned_in_the_dtype_of_the_tensor() -> None:
    x, m = tt.zeros(3, dtype="u8"), tt.zeros(2, dtype="bool")
    x[:2], m[:] = [1, 2], [0, 1]
    assert (x.tolist(), m.tolist()) == ([1, 2, 0], [False, True])
    with pytest.raises(OverflowError, match="300 is outside u8"):
        x[0] = [300]


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_nan_sorts_last(kind: str) -> None:
    nan, inf = float("nan"), float("inf")
    x = tt.tensor([1, nan, 3, -inf, inf, nan, 0], dtype=kind)
    assert str(tt.sort(x).tolist()) == str([-inf, 0.0, 1.0, 3.0, inf, nan, nan])
    assert tt.searchsorted(tt.tensor([1, 2, nan], dtype=kind), tt.tensor([nan], dtype=kind)).tolist() == [2]


@pytest.mark.parametrize(
    ("x", "number"), [(tt.zeros(1, dtype="bf16"), 1 + 2**-8 + 2**-40), (tt.ones(1), 2**60 + 2**36 + 1)]
)
def test_the_first_call_and_the_replayed_one_round_a_number_alike(x: tt.Tensor, number: float) -> None:
    assert len({(x + number).item() for _ in range(3)}) == 1


def test_truth_of_a_number_is_whether_it_is_not_zero() -> None:
    x = tt.ones(2)
    assert tt.logical_and(x, 2).tolist() == [True, True]
    assert tt.where(0.5, x, 0).tolist() == [1, 1]


def test_none_where_a_tensor_belongs_is_explained() -> None:
    with pytest.raises(ArgumentError, match="add: x2 is None"):
        tt.ones(2) + None


def test_a_list_is_compared_with_by_making_it_a_tensor() -> None:
    with pytest.raises(ArgumentError, match=r"make a tensor with tritium\.tensor"):
        tt.ones(2) == [1, 1]  # noqa: B015


def test_a_clone_of_a_small_part_does_not_keep_the_whole() -> None:
    whole = tt.zeros((100, 100))
    assert whole[0].clone().storage.nbytes == 400
    assert tt.ones(3).expand(4, 3).clone().add_(1).tolist() == [[2, 2, 2]] * 4


def test_without_a_copy_means_without_a_copy() -> None:
    for data in (np.zeros(3), np.zeros(3, ">f4")):
        with pytest.raises(ArgumentError, match="copy=False"):
            tt.asarray(data, dtype="f32", copy=False)


def test_shapes_beyond_memory_addresses_are_refused() -> None:
    with pytest.raises(ShapeError, match="more than can be addressed"):
        tt.zeros((2**40, 2**40))


@pytest.mark.skipif(tt.buffer.native is None, reason="needs the native library; plain Python reads no raw memory")
def test_a_sequence_that_changes_while_it_is_read_is_no_danger() -> None:
    class Clearing:
        def __index__(self) -> int:
            sizes.clear()
            return 1

    sizes: list[Any] = [Clearing(), *range(10**6, 10**6 + 20)]
    with pytest.raises(ValueError):  # noqa: PT011  (native and pure refuse it in other words)
        tt.Tensor(tt.ones(3).storage, tt.f32, sizes, (1,) * 21, 0)


def test_a_product_of_shapes_that_do_not_fit_names_both() -> None:
    for a, b, says in (
        ((2, 3), (4, 5), r"f32\[2,3\] @ f32\[4,5\] has 3 against 4"),
        ((7, 2, 3), (4, 5), r"f32\[7,2,3\] @ f32\[4,5\] has 3 against 4"),
        ((2, 4, 3), (3, 3, 5), r"f32\[2,4,3\] @ f32\[3,3,5\]: leading axes: \[2\] and \[3\] do not broadcast"),
    ):
        with pytest.raises(ShapeError, match=says):
            tt.matmul(tt.ones(a), tt.ones(b))


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))
def test_a_bias_is_added_to_every_row(rows: int, inner: int, width: int) -> None:
    x, w, b = model(rows, inner), model(inner, width), model(width)
    same(tt.tensor(x) @ tt.tensor(w) + tt.tensor(b), x @ w + b)
    same(tt.tensor(x @ w).add_(tt.tensor(b)), x @ w + b)
    same(tt.compile(lambda x, w, b: x @ w + b)(tt.tensor(x), tt.tensor(w), tt.tensor(b)), x @ w + b)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "swish", "sigmoid", "softmax"])
def test_activations_are_functions_and_methods(name: str) -> None:
    x = tt.randn((3, 7), seed=1)
    result = getattr(tt, name)(x)
    assert getattr(x, name)().tolist() == result.tolist() == getattr(x.clone(), f"{name}_")().tolist()
    assert result.tolist() != x.tolist()


def test_softmax_of_large_logits_is_finite() -> None:
    for large in (200.0, 1e4, 3e38):  # exp(-100) is a denormal number, not 0
        rows = tt.softmax(tt.tensor([[large, large, -large], [0.0, -large, -large]])).numpy()
        np.testing.assert_array_equal(rows, [[0.5, 0.5, 0], [1, 0, 0]])
