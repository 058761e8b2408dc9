"""Packed dtypes: where each integer lies, what a packed tensor can do, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium import dtype as dt, ops
from tritium.backends.reference import packed, quantized
from tritium.errors import ArgumentError, DTypeError, QuantError, ShapeError
from tritium.op import Spec
from tritium.testing import values

SHAPES = [(5, 9), (70, 130), (1, 1), (7,), (2, 33, 65), (0, 4), (3, 0), (64, 64), (80, 64), (16, 17), (130, 192)]


def integers(t: dt.DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    low, high = t.values
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(np.int8)


def golden(n: int) -> Any:
    """The sequence of the format notes: t(i) = ((7 i + i // 5) mod 3) - 1."""
    i = np.arange(n)
    return (((7 * i + i // 5) % 3) - 1).astype(np.int8)


@pytest.mark.parametrize("t", dt.PACKED, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_and_unpacking_gives_the_integers_back(t: dt.DType, shape: tuple[int, ...]) -> None:
    want = integers(t, shape)
    w = tt.repack(tt.tensor(want), t)
    assert (w.dtype, w.shape) == (t, shape)
    np.testing.assert_array_equal(values(w), want)
    assert w.tolist() == want.tolist()


@pytest.mark.parametrize("t", dt.PACKED, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_fast_repack_writes_the_bytes_of_the_definition(t: dt.DType, shape: tuple[int, ...]) -> None:
    want = integers(t, shape, 1)
    w = tt.repack(tt.tensor(want), t)
    np.testing.assert_array_equal(tt.buffer.host(w), packed.pack(want, t).data)


@given(st.data())
def test_every_packing_of_ternary_weights_holds_the_same_integers(data: Any) -> None:
    shape = (data.draw(st.integers(1, 200)), data.draw(st.integers(1, 200)))
    want = integers(dt.tern2, shape, data.draw(st.integers(0, 999)))
    w = tt.repack(tt.tensor(want), dt.tern2)
    for t in data.draw(st.permutations(ops.TERNARY)):
        w = tt.repack(w, t)
        np.testing.assert_array_equal(values(w), want)


def test_tern2_is_two_bits_along_a_row_lowest_first() -> None:
    w = tt.repack(tt.tensor(golden(16).reshape(2, 8)), tt.tern2)
    codes = golden(16) + 1
    want = [int(sum(int(codes[4 * b + j]) << 2 * j for j in range(4))) for b in range(4)]
    assert tt.buffer.host(w).reshape(-1).tolist() == want


def test_tern5_is_five_trits_a_byte_lowest_first() -> None:
    w = tt.repack(tt.tensor(np.array([[1, -1, 0, 1, 0]], np.int8)), tt.tern5)
    assert tt.buffer.host(w).tolist() == [[2 + 0 * 3 + 1 * 9 + 2 * 27 + 1 * 81]]


@pytest.mark.parametrize(
    ("t", "shape", "nbytes"),
    [(dt.tern2, (4096, 4096), 4096 * 1024), (dt.tern2, (3, 9), 9), (dt.tern5, (10, 10), 20), (dt.i4, (4, 5), 12),
     (dt.tern2_r64, (65, 65), 4 * 1024), (dt.tern5_r80, (80, 64), 1024), (dt.tern2_r16, (16, 16), 64), (dt.tern2, (0, 5), 0),
     (dt.i8_r16, (17, 1), 2048), (dt.i4_r32, (32, 64), 1024)],
)  # fmt: skip
def test_nbytes_counts_the_bytes_really_kept(t: dt.DType, shape: tuple[int, ...], nbytes: int) -> None:
    w = tt.empty(shape, dtype=t)
    assert w.nbytes == Spec(shape, t).nbytes == w.storage.nbytes == nbytes


def test_rows_of_a_packed_matrix_can_be_looked_at() -> None:
    want = integers(dt.tern2, (6, 9))
    w = tt.repack(tt.tensor(want), dt.tern2)
    np.testing.assert_array_equal(values(w[2:5]), want[2:5])
    np.testing.assert_array_equal(values(w[::2]), want[::2])
    np.testing.assert_array_equal(values(w[3]), want[3])
    assert w[2:5].storage is w.storage
    q = tt.tensor(np.ones((2, 9), np.int8))
    np.testing.assert_array_equal(values(tt.integer_matmul(q, w[::2])), np.tile(want[::2].sum(1), (2, 1)))


@pytest.mark.parametrize(
    "look", [lambda w: w[:, 1:5], lambda w: w[:, 0], lambda w: w.T, lambda w: w.reshape(-1), lambda w: w[::-1]]
)
def test_views_that_would_cut_through_bytes_are_refused(look: Any) -> None:
    with pytest.raises(DTypeError, match=r"repack\(w, 'i8'\)|dequantize\(\)"):
        look(tt.repack(tt.tensor(integers(dt.tern2, (6, 9))), dt.tern2))


def test_tiles_are_looked_at_as_a_whole_only() -> None:
    w = tt.repack(tt.tensor(integers(dt.tern2, (2, 64, 64))), dt.tern2_r64)
    assert w[1].shape == (64, 64)
    with pytest.raises(DTypeError, match="whole matrices"):
        w[0][:32]


@pytest.mark.parametrize(
    "compute",
    [lambda w: w + 1, lambda w: w @ w, lambda w: tt.sum(w), lambda w: w.to("f32"), lambda w: tt.exp(w), lambda w: w == w,
     lambda w: tt.concat([w, w])],
)  # fmt: skip
def test_arithmetic_refuses_packed_elements_and_says_what_to_do(compute: Any) -> None:
    with pytest.raises(DTypeError, match=r"dequantize\(\)"):
        compute(tt.repack(tt.tensor(integers(dt.tern2, (4, 4))), dt.tern2))


@pytest.mark.parametrize("make", [lambda: tt.zeros((2, 2), dtype="tern2"), lambda: tt.ones((2, 4)).to("tern2")])
def test_plain_rows_do_not_write_packed_elements(make: Any) -> None:
    with pytest.raises(DTypeError, match=r"tritium\.quant"):
        make()


def test_a_value_outside_the_dtype_is_named() -> None:
    bad = np.zeros((3, 5), np.int8)
    bad[1, 3] = 2
    for t in (dt.tern2, dt.tern5, dt.tern2_r64):
        with pytest.raises(QuantError, match=r"element \[1, 3\] is 2"):
            tt.repack(tt.tensor(bad), t)


def test_repack_needs_room_for_every_value() -> None:
    with pytest.raises(DTypeError, match="too few values"):
        tt.repack(tt.repack(tt.tensor(integers(dt.i4, (2, 4))), dt.i4), dt.tern2)


def bytes_of(w: Any) -> Any:
    return tt.buffer.host(w)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("grain", ["tensor", "row", "group"])
@pytest.mark.parametrize("t", ops.WEIGHTS, ids=str)
def test_dequantize_gives_the_bits_of_the_reference(t: dt.DType, grain: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    n, k = 67, 131
    shape = {"tensor": (), "row": (n,), "group": (n, -(-k // 32))}[grain]
    w = tt.repack(tt.tensor(integers(t, (n, k))), t)
    scale = tt.tensor(rng.normal(size=shape).astype(np.float32))
    zero = tt.tensor(rng.integers(-9, 9, shape).astype(np.int32))
    group = 32 if grain == "group" else 0
    for of in (None, zero):
        made = tt.dequantize(w, scale, of, group, dtype=kind)
        right = np.empty((n, k), made.numpy().dtype)
        reference = quantized.KERNELS[ops.dequantize]
        plain = packed.decode(packed.seen(w)) if t.is_packed else w.numpy()
        reference(plain, scale.numpy(), None if of is None else of.numpy(), group=group, dtype=made.dtype, out=right)
        np.testing.assert_array_equal(made.numpy(), right)


@pytest.mark.parametrize("t", ops.TERNARY, ids=str)
def test_illegal_codes_are_found_where_they_are(t: dt.DType) -> None:
    w = tt.repack(tt.tensor(integers(t, (90, 130))), t)
    assert w.device.backend.first_illegal(w) == -1
    raw = bytes_of(w).reshape(-1)
    raw[37] = {dt.tern2: 0b11, dt.tern5: 243, dt.tern2_r64: 0b11, dt.tern2_r16: 0b11, dt.tern5_r80: 1}[t]
    found = w.device.backend.first_illegal(w)
    assert found == packed.first_illegal(packed.seen(w)) >= 0
    for use in (
        tt.quant.check_codes,
        lambda w: tt.repack(w, "i8"),
        lambda w: tt.repack(w, "tern5" if t is dt.tern2 else "tern2"),
        lambda w: tt.dequantize(w, tt.ones(())),
    ):
        with pytest.raises(QuantError, match="means no weight"):
            use(w)


def test_packed_tensors_are_copied_cloned_and_pickled() -> None:
    want = integers(dt.tern2, (6, 9))
    for t in (dt.tern2, dt.tern5, dt.tern2_r64):
        w = tt.repack(tt.tensor(want), t)
        for other in (w.clone(), tt.copy(w), copy.deepcopy(w), *(pickle.loads(pickle.dumps(w, p)) for p in (4, 5))):
            assert other.dtype is t
            np.testing.assert_array_equal(values(other), want)
        assert tt.pack([w, w])[1].tolist() == want.tolist()


def test_what_is_not_a_plain_array_is_not_handed_out() -> None:
    w = tt.repack(tt.tensor(integers(dt.tern2, (4, 4))), dt.tern2)
    with pytest.raises(DTypeError, match="packed"):
        w.numpy()
    with pytest.raises((BufferError, DTypeError), match=r"packed|plain"):
        memoryview(w) if tt.buffer.native is not None else w.numpy()
    with pytest.raises((BufferError, DTypeError), match=r"packed|plain"):
        w.__dlpack__()


def test_a_layout_that_leaves_its_storage_is_refused() -> None:
    if tt.buffer.native is None:
        pytest.skip("the plain Python Array does not check layouts")
    w = tt.empty((4, 8), dtype=tt.tern2)
    bad = [((5, 8), (8, 1), 0), ((4, 8), (8, 1), 4), ((4, 8), (8, 1), 2), ((4, 8), (6, 1), 0), ((4, 8), (8, 2), 0)]
    for shape, strides, offset in bad:
        with pytest.raises(ValueError, match="packed"):
            tt.Tensor(w.storage, dt.tern2, shape, strides, offset)


def test_integer_products_refuse_what_does_not_fit() -> None:
    w = tt.repack(tt.tensor(integers(dt.tern2, (4, 8))), dt.tern2)
    with pytest.raises(ShapeError, match="8 columns"):
        tt.integer_matmul(tt.zeros((2, 9), dtype="i8"), w)
    with pytest.raises(DTypeError, match="quantize_activations"):
        tt.integer_matmul(tt.zeros((2, 8)), w)
    with pytest.raises(ShapeError, match="scale must have shape"):
        tt.quantized_matmul(tt.zeros((2, 8)), w, tt.ones(3))
    with pytest.raises(ShapeError, match="bias"):
        tt.quantized_matmul(tt.zeros((2, 8)), w, tt.ones(4), tt.ones(3))
    with pytest.raises(DTypeError, match=r"tritium\.quant makes one"):
        tt.quantized_matmul(tt.zeros((2, 8)), tt.zeros((4, 8)), tt.ones(4))


@pytest.mark.parametrize("group", [None, "8", 1.5, 2**70, -1, True])
def test_a_group_that_is_no_number_of_columns_is_refused(group: Any) -> None:
    w = tt.repack(tt.tensor(integers(dt.tern2, (4, 8))), dt.tern2)
    with pytest.raises(ArgumentError, match="group must be"):
        tt.quantized_matmul(tt.zeros((2, 8)), w, tt.ones(()), None, group)
    if group is None:  # whole rows
        assert tt.quantize_ternary(tt.zeros((2, 8)), group=group)[0].shape == (2, 8)
        return
    with pytest.raises(ArgumentError, match="group must be"):
        tt.quantize_ternary(tt.zeros((2, 8)), group=group)


def test_a_group_wider_than_the_row_is_the_row() -> None:
    w = tt.randn((4, 8), seed=0)
    for group in (8, 9, 2**40):
        data, scale = tt.quantize_int4(w, group=group)
        assert scale.shape == (4, 1)
        np.testing.assert_array_equal(values(data), values(tt.quantize_int4(w, group=8)[0]))
        assert tt.dequantize(data, scale, None, group).shape == (4, 8)


def test_a_zero_point_must_be_an_integer() -> None:
    q = tt.tensor(integers(dt.i4, (4, 8)))
    with pytest.raises(DTypeError, match="integers"):
        tt.dequantize(q, tt.ones(()), tt.full((), 3.7))


@pytest.mark.parametrize(("t", "most"), [(dt.i8, 131_071), (dt.i4, 2_097_151), (dt.tern2, 16_777_215)], ids=str)
def test_more_columns_than_an_int32_sum_holds_are_refused(t: dt.DType, most: int) -> None:
    for k, fits in ((most, True), (most + 1, False)):
        call = (Spec((1, k), dt.i8), Spec((1, k), t))
        if fits:
            assert ops.integer_matmul.decide(call, {}).out == Spec((1, 1), dt.i32)
            continue
        with pytest.raises(ShapeError, match=f"up to {most} columns"):
            ops.integer_matmul.decide(call, {})
        with pytest.raises(ShapeError, match=f"up to {most} columns"):
            ops.quantized_matmul.decide((Spec((1, k)), Spec((1, k), t), Spec(()), None), {"group": 0})
        grouped = ops.quantized_matmul.decide(
            (Spec((1, k)), Spec((1, k), t), Spec((1, -(-k // 64))), None), {"group": 64}
        )
        assert grouped.out == Spec((1, 1))


@pytest.mark.parametrize("shape", [(64, 64), (128, 128), (65, 64), (200, 320), (130, 100), (63, 192)], ids=str)
def test_rows_become_tiles_whether_or_not_they_fill_them(shape: tuple[int, int]) -> None:
    want = integers(dt.tern2, shape)
    rows = tt.repack(tt.tensor(want), "tern2")
    tiles = tt.repack(rows, "tern2_r64")
    np.testing.assert_array_equal(values(tiles), want)
    assert bytes(tt.nn.as_bytes(tt.repack(tiles, "tern2")).numpy()) == bytes(tt.nn.as_bytes(rows).numpy())
