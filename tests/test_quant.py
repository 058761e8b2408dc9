"""Quantisation: the formulas, their edges, and what the quality row says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import quant
from tritium.errors import ArgumentError, QuantError, ShapeError
from tritium.testing import values


def weights(n: int, k: int, seed: int = 0, size: float = 0.02) -> Any:
    return (np.random.default_rng(seed).standard_normal((n, k)) * size).astype(np.float32)


def absmean(w: Any) -> tuple[Any, Any]:
    g = np.float32(max(np.abs(w).astype(np.float64).mean(), 1e-5))
    return np.clip(np.rint(w / g), -1, 1), g


def test_ternary_is_absmean_over_the_tensor() -> None:
    w = weights(7, 33)
    q = quant.ternary(tt.tensor(w))
    t, g = absmean(w)
    np.testing.assert_array_equal(values(q.data), t)
    assert q.scale is not None
    assert q.scale.item() == g
    np.testing.assert_array_equal(q.dequantize().numpy(), t * g)


def test_ternary_per_channel_and_per_group_take_their_own_means() -> None:
    w = weights(5, 10) * np.float32([[1], [10], [100], [1e-3], [0]])
    rows, groups = quant.ternary(tt.tensor(w), axis=0), quant.ternary(tt.tensor(w), group=4)
    for n in range(5):
        t, g = absmean(w[n])
        np.testing.assert_array_equal(values(rows.data)[n], t)
        assert rows.scale.numpy()[n] == g  # type: ignore[union-attr]
        for i, part in enumerate((slice(0, 4), slice(4, 8), slice(8, 10))):
            t, g = absmean(w[n, part])
            np.testing.assert_array_equal(values(groups.data)[n, part], t)
            assert groups.scale.numpy()[n, i] == g  # type: ignore[union-attr]


def test_ties_round_to_even() -> None:
    w = np.float32([[1.0, 0.5, -0.5, 1.5, 0, -3, 2, 0.5]])  # their mean size is 1.125; 0.5625 is half of it
    w[0, 1] = 0.5625
    g = np.abs(w.astype(np.float64)).mean()
    tie = np.float32([[g * 0 + 1.0] * 4 + [0.5, -0.5, 1.5, 0.5 + 0.5]])
    q = quant.from_integers(np.rint(tie / 1.0).clip(-1, 1))
    assert values(q.data).tolist() == [[1, 1, 1, 1, 0, 0, 1, 1]]
    half = np.float32([[2.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]])  # mean 1
    assert values(quant.ternary(half * np.float32([[1, 1, 1, 1, 0.5, 0.5, 1.5, 1.5]])).data)[0, 4:].tolist() == [
        0,
        0,
        1,
        1,
    ]


@pytest.mark.parametrize("make", [quant.ternary, quant.int8, quant.int4, lambda w: quant.int8(w, symmetric=False)])
def test_zeros_stay_zeros(make: Any) -> None:
    q = make(tt.zeros((3, 8)))
    np.testing.assert_array_equal(q.dequantize().numpy(), np.zeros((3, 8)))


@pytest.mark.parametrize("value", [0.37, -2.5, 1e-30, 1e30])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_constant_tensor_comes_back(value: float, symmetric: bool) -> None:
    q = quant.int8(np.full((3, 5), value, np.float32), symmetric=symmetric)
    np.testing.assert_allclose(q.dequantize().numpy(), np.float32(value), rtol=1e-6)


def test_a_constant_tensor_is_exact_in_ternary() -> None:
    q = quant.ternary(np.full((3, 5), -0.7, np.float32))
    np.testing.assert_allclose(q.dequantize().numpy(), np.float32(-0.7), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [quant.ternary, quant.int8, quant.int4, quant.fp16], ids=lambda f: f.__name__)
def test_a_number_that_is_none_is_named(make: Any, bad: float) -> None:
    w = weights(4, 6)
    w[2, 5] = bad
    with pytest.raises(QuantError, match=r"\[2, 5\]"):
        make(w)


def test_activations_name_a_number_that_is_none() -> None:
    x = weights(4, 6)
    x[3, 1] = np.nan
    with pytest.raises(QuantError, match=r"\[3, 1\] is nan"):
        quant.activations(tt.tensor(x))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (3, 7), (1, 129)])
def test_odd_and_empty_shapes_work(shape: tuple[int, int]) -> None:
    w = weights(*shape)
    for name, make in quant.SCHEMES.items():
        q = make(tt.tensor(w))
        assert q.dequantize().shape == shape, name
        assert q.matmul(tt.zeros((2, shape[1]))).shape == (2, shape[0]), name


def test_int8_error_is_at_most_half_a_step() -> None:
    w = weights(20, 50)
    q = quant.int8(w, axis=0)
    step = np.abs(w).max(axis=1) / 127
    assert (np.abs(q.dequantize().numpy() - w).max(axis=1) <= step * 0.5001).all()


def test_asymmetric_int8_uses_all_levels_and_keeps_zero() -> None:
    w = np.abs(weights(20, 50)) + 0.01
    w[0, 0] = 0
    both = [quant.int8(w, symmetric=s) for s in (True, False)]
    errors = [np.abs(q.dequantize().numpy() - w).max() for q in both]
    assert errors[1] < 0.6 * errors[0]
    assert both[1].dequantize().numpy()[0, 0] == 0
    assert both[1].nbytes == 1000 + 4 + 4


@pytest.mark.parametrize("axis", [None, 0])
def test_products_with_zero_points_are_exact_integers(axis: int | None) -> None:
    w, x = np.abs(weights(9, 33)), weights(4, 33, seed=3, size=1)
    q = quant.int8(w, axis=axis, symmetric=False)
    a = quant.activations(tt.tensor(x))
    zero = np.broadcast_to(q.zero.numpy(), (9,)) if axis is None else q.zero.numpy()  # type: ignore[union-attr]
    sums = a.q.numpy().astype(np.int64) @ (values(q.data).astype(np.int64) - zero[:, None]).T
    want = sums.astype(np.float32) * (a.scale.numpy()[:, None] * q.scale.numpy())  # type: ignore[union-attr]
    np.testing.assert_array_equal(q.matmul(tt.tensor(x)).numpy(), want)
    np.testing.assert_allclose(want, x @ q.dequantize().numpy().T, rtol=0.05, atol=0.01)


def test_finer_scales_lose_less_on_skewed_rows() -> None:
    w = weights(16, 256) * np.float32(10.0 ** np.linspace(-2, 1, 16))[:, None]
    errors = [quant.int8(w, axis=a).quality(w).sqnr_db for a in (None, 0)]
    assert errors[1] > errors[0] + 5


def test_int4_takes_two_values_a_byte() -> None:
    q = quant.int4(weights(8, 64), group=32)
    assert q.data.nbytes == 8 * 32
    assert q.nbytes == 8 * 32 + 8 * 2 * 4
    assert values(q.data).min() >= -8
    assert values(q.data).max() <= 7


def shared(w: Any, group: int) -> Any:
    """[rows, groups, columns] of a matrix, short groups filled up with zeros, which every scheme holds."""
    n, k = w.shape
    step = min(group or k, k)
    padded = np.zeros((n, -(-k // step) * step), np.float32)
    padded[:, :k] = w
    return padded.reshape(n, -1, step)


@given(
    st.integers(1, 6), st.integers(1, 70), st.integers(0, 999), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    st.sampled_from(["auto", None, 0, 1, 7, 64]), st.booleans(), st.sampled_from([-1.0, 0.0, 2.0]),
)  # fmt: skip
def test_int4_restores_each_number_within_half_a_step(
    n: int, k: int, seed: int, size: float, group: Any, symmetric: bool, shift: float
) -> None:
    w = weights(n, k, seed, size) + np.float32(shift * size)
    q = quant.int4(w, group=group, symmetric=symmetric)
    columns = 64 if group == "auto" else group or 0
    assert q.group == columns
    assert q.scale is not None
    assert q.scale.shape == ((n, -(-k // columns)) if columns else (n,))
    codes = values(q.data)
    assert codes.min() >= -8
    assert codes.max() <= 7
    parts, error = shared(w, columns), shared(q.dequantize().numpy() - w, columns)
    step = q.scale.numpy().reshape(n, -1)
    high, low = np.maximum(parts.max(-1), 0), np.minimum(parts.min(-1), 0)
    tiny = np.finfo(np.float32).tiny
    want = np.maximum(high / np.float32(7), -low / np.float32(8)) if symmetric else (high - low) / np.float32(15)
    np.testing.assert_allclose(step, np.where(want > 0, np.maximum(want, tiny), 1), rtol=1e-6)
    bound = 0.5 if symmetric else 1.0  # the zero point is rounded too, and ends may be held
    assert (np.abs(error) <= step[..., None] * np.float32(bound * 1.001)).all()
    again = quant.int4(q.dequantize(), group=group, symmetric=symmetric)
    if symmetric:
        np.testing.assert_allclose(again.dequantize().numpy(), q.dequantize().numpy(), rtol=1e-5, atol=0)


def test_int4_uses_all_16_levels() -> None:
    down = np.float32([[-8, 7, 3, -1]])
    assert values(quant.int4(down).data).tolist() == [[-8, 7, 3, -1]]
    up = quant.int4(np.float32([[7, -3.5, 0, 1]]))
    assert up.scale is not None
    assert up.scale.item() == 1
    positive = np.linspace(0, 15, 16, dtype=np.float32)[None]
    q = quant.int4(positive, symmetric=False)
    assert values(q.data).tolist() == [list(range(-8, 8))]
    np.testing.assert_array_equal(q.dequantize().numpy(), positive)


def test_int4_shares_scales_by_rows_or_groups() -> None:
    w = weights(6, 130)
    for rows in ({"axis": 0}, {"axis": -2}, {"group": 0}, {"group": None}, {"axis": 0, "group": None}):
        q = quant.int4(w, **rows)  # type: ignore[arg-type]
        assert q.scale is not None
        assert (q.scale.shape, q.group) == ((6,), 0), rows
        assert q.matmul(tt.ones((2, 130))).shape == (2, 6)
    for wrong in (
        {"axis": 1},
        {"axis": 0, "group": 8},
        {"group": -1},
        {"group": "64"},
        {"group": 2.0},
        {"axis": True},
        {"symmetric": 1},
    ):
        with pytest.raises(ArgumentError, match="int4: "):
            quant.int4(w, **wrong)  # type: ignore[arg-type]
    assert quant.int8(w, group=None).dequantize().shape == w.shape


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("options", [{"axis": 0}, {"group": 8}], ids=["rows", "groups"])
def test_products_of_int4_are_those_of_its_floats(symmetric: bool, options: Any) -> None:
    w, x = weights(9, 33) + np.float32(0.01), weights(4, 33, seed=3, size=1)
    q = quant.int4(w, symmetric=symmetric, **options)
    want = x @ q.dequantize().numpy().T
    np.testing.assert_allclose(q.matmul(tt.tensor(x)).numpy(), want, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("value", [0.37, -2.5, 1e-30, -1e30, 0.0])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_constant_tensor_comes_back_from_int4(value: float, symmetric: bool) -> None:
    q = quant.int4(np.full((3, 5), value, np.float32), symmetric=symmetric)
    np.testing.assert_allclose(q.dequantize().numpy(), np.float32(value), rtol=1e-6)


# ---- with scales that are given


@given(
    st.sampled_from([(), (7,), (3, 8), (2, 3, 5), (2, 1, 2, 2, 2, 3)]), st.integers(0, 999), st.sampled_from([0.004, 0.1, 3.0]),
    st.sampled_from([None, -128, 0, 5, 127]),
)  # fmt: skip
def test_quantize_rounds_by_the_scale_and_holds_to_the_range(
    shape: tuple[int, ...], seed: int, scale: float, zero: int | None
) -> None:
    x = np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)
    q = tt.quantize(tt.tensor(x), scale, zero)
    assert q.dtype is tt.i8
    want = np.clip(np.rint(x / np.float32(scale)) + (zero or 0), -128, 127)
    np.testing.assert_array_equal(q.numpy(), want)
    back = tt.dequantize(q, scale, zero)
    np.testing.assert_array_equal(back.numpy(), (want.astype(np.float32) - np.float32(zero or 0)) * np.float32(scale))


def test_quantize_takes_a_scale_for_each_row_or_group() -> None:
    x, scale = weights(4, 10, size=1), np.float32([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(tt.quantize(tt.tensor(x), scale).numpy(), np.rint(x / scale[:, None]))
    groups = np.repeat(scale[:, None], 3, axis=1) * np.float32([1, 2, 3])
    q = tt.quantize(tt.tensor(x), groups, group=4, dtype="i4")
    np.testing.assert_array_equal(values(q), np.clip(np.rint(x / np.repeat(groups, 4, axis=1)[:, :10]), -8, 7))
    q, scale, zero = tt.quantize_int8(tt.tensor(x), axis=0, symmetric=False)
    np.testing.assert_array_equal(tt.quantize(tt.tensor(x), scale, zero).numpy(), q.numpy())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (1, 2, 1, 2, 3, 7)], ids=str)
def test_quantize_refuses_what_has_no_integer(shape: tuple[int, ...], compiled: bool) -> None:
    run = tt.compile(lambda x, s: tt.quantize(x, s)) if compiled else tt.quantize
    x = np.zeros(shape, np.float32)
    place = tuple(n - 1 for n in shape)
    for bad in (np.nan, -np.inf):
        x[place] = bad
        with pytest.raises(QuantError, match=rf"quantize: element \[{', '.join(map(str, place))}\] is {bad}"):
            run(tt.tensor(x), tt.tensor(0.1))
    for scale in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(QuantError, match=f"a scale is {scale:g}"):
            run(tt.zeros(shape), tt.tensor(scale, dtype="f32"))


def test_quantize_explains_wrong_operands() -> None:
    x = tt.ones((3, 4))
    with pytest.raises(QuantError, match="a zero point is 200"):
        tt.quantize(x, 0.1, 200)
    with pytest.raises(ShapeError, match="scale must have shape"):
        tt.quantize(x, tt.ones(4))
    with pytest.raises(tt.errors.DTypeError, match="i8 or i4"):
        tt.quantize(x, 0.1, dtype="i32")
    with pytest.raises(tt.errors.DTypeError, match="zero must be integers"):
        tt.quantize(x, 0.1, 0.5)
    with pytest.raises(ShapeError, match="matrix"):
        tt.quantize(tt.ones(4), 0.1, dtype="i4")


def test_fp16_is_real_half_storage() -> None:
    w = weights(4, 6)
    q = quant.fp16(w)
    assert q.nbytes == w.nbytes // 2
    np.testing.assert_array_equal(q.dequantize().numpy(), w.astype(np.float16).astype(np.float32))
    with pytest.raises(QuantError, match="65504"):
        quant.fp16(w * 1e9)


def pinned(x: Any) -> tuple[Any, Any]:
    amax = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.float32(1e-5))
    q = np.rint((x * (np.float32(127) / amax)).astype(np.float32))
    return q.astype(np.int8), (amax / np.float32(127))[..., 0]


@given(st.integers(1, 9), st.integers(1, 300), st.integers(0, 999), st.sampled_from([1e-9, 1e-3, 1.0, 1e20]))
def test_activations_are_rounded_as_pinned(m: int, k: int, seed: int, size: float) -> None:
    x = weights(m, k, seed, size)
    got = quant.activations(tt.tensor(x))
    q, scale = pinned(x)
    np.testing.assert_array_equal(got.q.numpy(), q)
    np.testing.assert_array_equal(got.scale.numpy(), scale)
    np.testing.assert_array_equal(got.sum.numpy(), q.sum(axis=-1, dtype=np.int32))


@given(st.integers(1, 3), st.integers(0, 200), st.integers(1, 90), st.integers(0, 2**32))
@settings(max_examples=25)
def test_groups_of_activations_are_rounded_like_tokens(m: int, k: int, group: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)
    got = quant.activations(tt.tensor(x), group=group)
    assert got.q.shape == (m, k)
    assert got.scale.shape == got.sum.shape == (m, -(-k // min(group, max(k, 1))))
    for i, at in enumerate(range(0, k, group)):
        part = quant.activations(tt.tensor(np.ascontiguousarray(x[:, at : at + group])))
        np.testing.assert_array_equal(got.q.numpy()[:, at : at + group], part.q.numpy())
        np.testing.assert_array_equal(got.scale.numpy()[:, i], part.scale.numpy())
        np.testing.assert_array_equal(got.sum.numpy()[:, i], part.sum.numpy())


def test_scales_may_be_half_floats() -> None:
    w = weights(6, 100)
    full, half = quant.ternary(w, group=16), quant.ternary(w, group=16, scale_dtype="f16")
    assert half.scale is not None
    assert full.scale is not None
    assert half.nbytes == full.nbytes - 2 * half.scale.size
    np.testing.assert_array_equal(half.scale.numpy(), full.scale.numpy().astype(np.float16))
    np.testing.assert_array_equal(values(half.data), values(full.data))
    wide = quant.from_integers(values(half.data), half.scale.numpy().astype(np.float32), group=16)
    same = quant.from_integers(values(half.data), half.scale.numpy(), group=16)
    assert same.scale is not None
    assert same.scale.dtype is tt.f16
    x = tt.randn((3, 100), seed=0)
    for kind in ("token", "group"):
        got = same.matmul(x, activations=kind)
        np.testing.assert_array_equal(got.numpy(), wide.matmul(x, activations=kind).numpy())
        np.testing.assert_array_equal(got.numpy(), half.tiled().matmul(x, activations=kind).numpy())
    np.testing.assert_array_equal(same.dequantize().numpy(), wide.dequantize().numpy())
    with pytest.raises(ArgumentError, match="scale_dtype must be f32 or f16"):
        quant.ternary(w, scale_dtype="bf16")
    with pytest.raises(QuantError, match="infinite in f16"):
        quant.ternary(w * np.float32(1e7), scale_dtype="f16")
    with pytest.raises(ArgumentError, match="needs symmetric integers"):
        quant.int8(w, symmetric=False).matmul(x, activations="float")


def test_a_token_with_nan_gives_nan_and_leaves_the_others_alone() -> None:
    x = weights(3, 64, size=1)
    x[1, 7] = np.inf
    layer = tt.nn.BitLinear.from_ternary(np.ones((5, 64), np.int8))
    y = layer(tt.tensor(x)).numpy()
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_quality_of_a_perfect_copy_is_infinite() -> None:
    w = np.float32([[1, -1, 0, 1]]) * 0.5
    row = quant.from_integers([[1, -1, 0, 1]], 0.5).quality(w)
    assert row.sqnr_db == math.inf
    assert row.mse == row.max_error == 0
    assert row.cosine == pytest.approx(1)


def test_the_quality_row_agrees_with_its_definitions() -> None:
    w = weights(12, 40)
    q = quant.ternary(w, group=8)
    row = q.quality(w)
    near = q.dequantize().numpy().astype(np.float64)
    assert row.bytes_before == w.nbytes
    assert row.bytes_after == 12 * 10 + 12 * 5 * 4 == q.nbytes
    assert row.mse == pytest.approx(((near - w) ** 2).mean())
    assert row.max_error == pytest.approx(np.abs(near - w).max())
    assert row.sqnr_db == pytest.approx(10 * math.log10((w.astype(float) ** 2).sum() / ((near - w) ** 2).sum()))
    assert row.cosine == pytest.approx((near * w).sum() / np.linalg.norm(near) / np.linalg.norm(w))
    assert 0 < row.matmul_error < 1


def row(scheme: str, size: int, error: float, interval: tuple[float, float]) -> quant.Quality:
    floats = dict.fromkeys(
        ("bits", "mse", "sqnr_db", "cosine", "max_error", "quantize_ms", "dequantize_ms", "matmul_ms"), 1.0
    )
    return quant.Quality(
        scheme, bytes_before=1, bytes_after=size, matmul_error=error, matmul_interval_ms=interval, **floats
    )


def test_a_scheme_is_best_unless_another_is_as_small_as_close_and_as_fast() -> None:
    small, other = row("small", 10, 0.5, (1, 2)), row("other", 20, 0.5, (1.5, 2.5))
    assert quant._dominates(small, other)  # as fast: the intervals overlap
    assert not quant._dominates(other, small)
    fast = row("fast", 20, 0.5, (0.1, 0.2))
    assert not quant._dominates(small, fast)  # larger, and faster
    assert quant._dominates(fast, other)  # only faster
    assert not quant._dominates(small, small)


def test_pareto_marks_what_no_other_scheme_beats() -> None:
    table = quant.pareto(weights(64, 128))
    assert [q.bytes_after for q in table] == sorted(q.bytes_after for q in table)
    assert {q.scheme for q in table} == set(quant.SCHEMES)
    for q in table:
        assert q.best is not any(quant._dominates(other, q) for other in table)
        low, high = q.matmul_interval_ms
        assert 0 < low <= q.matmul_ms <= high
    assert min(table, key=lambda q: q.matmul_error).best
    head, *lines = str(table).splitlines()
    assert head.split()[0] == "scheme"
    assert "95 % interval" in head
    assert len(lines) == len(table)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_an_interval_encloses_its_median(times: list[float]) -> None:
    timing = quant._timing(times)
    assert min(times) <= timing.low <= timing.median <= timing.high <= max(times)
    if len(times) == 25:
        assert [timing.low, timing.high] == [sorted(times)[7], sorted(times)[17]]  # ranks 8 and 18 of 25


def test_unknown_schemes_and_shapes_are_explained() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'ternary'"):
        quant.quality(weights(2, 2), "ternery")
    with pytest.raises(ShapeError, match="matrix"):
        quant.ternary(np.zeros(3, np.float32))
    with pytest.raises(ArgumentError, match="group"):
        quant.ternary(weights(2, 2), axis=0, group=2)
    with pytest.raises(QuantError, match="whole numbers"):
        quant.from_integers([[0.5, 1]])
    with pytest.raises(QuantError, match="NaN, or infinite"):
        quant.from_integers([[0, 1]], math.nan)


def test_pareto_lists_what_cannot_hold_the_tensor_with_the_reason() -> None:
    table = quant.pareto(weights(8, 16, size=1e6))
    assert {q.scheme for q in table} == set(quant.SCHEMES) - {"fp16"}
    assert list(table.refused) == ["fp16"]
    assert "65504" in table.refused["fp16"]
    assert str(table).splitlines()[-1].startswith("fp16: not possible: quant.fp16: element [")
    assert quant.pareto(weights(8, 16)).refused == {}
    bad = weights(8, 16)
    bad[1, 2] = np.nan
    with pytest.raises(QuantError, match=r"\[1, 2\]"):
        quant.pareto(bad)
    with pytest.raises(ArgumentError, match="dict of strings and functions"):
        quant.pareto(weights(8, 16), schemes=["int8"])  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["ternary", "int8-asymmetric", "fp16"])
def test_whole_numbers_as_activations_give_floats(scheme: str) -> None:
    y = quant.SCHEMES[scheme](tt.tensor(weights(5, 7))).matmul(tt.ones((2, 7), dtype="i32"))
    assert y.dtype == "f32"
    assert np.abs(y.numpy()).max() > 0


def test_quality_takes_arrays_and_refuses_other_tokens() -> None:
    w = weights(5, 7)
    assert quant.quality(w, x=weights(3, 7)).matmul_error > 0
    for x in (weights(3, 8), np.ones(7, np.float32), np.ones((0, 7), np.float32)):
        with pytest.raises(ShapeError, match="tokens"):
            quant.quality(w, x=x)


@given(st.floats(0.0625, 64, width=32), st.integers(0, 2**31))
def test_scaled_signs_are_ternary_and_normal_values_are_not(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    signs = (rng.integers(-1, 2, (20, 20)) * np.float32(scale)).astype(np.float32)
    signs[0, 0] = scale
    told = quant.scale_of(signs)
    assert told is not None
    assert told.scale == float(np.float32(scale))
    assert told.zeros == float((signs == 0).mean())
    assert quant.scale_of(rng.standard_normal((20, 20)).astype(np.float32)) is None
    assert quant.scale_of(np.zeros((20, 20), np.float32)) == (0.0, 1.0)
    assert quant.scale_of(np.full((20, 20), np.nan, np.float32)) is None
