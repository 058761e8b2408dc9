"""The certified head: its bounds hold the logits of the whole head, whose bits single rows have."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from heads import HEADS, INPUTS, head_of, input_of
from tritium import ops
from tritium.backends.reference.certified import KERNELS
from tritium.backends.reference.packed import seen
from tritium.buffer import native
from tritium.errors import ArgumentError, ShapeError
from tritium.models.bounds import Bounded
from tritium.nn.certified import Bounds, CertifiedHead, certify, refusal
from tritium.nn.linear import QuantLinear

if native is None:
    pytest.skip("without the native library sums have no fixed order", allow_module_level=True)


def within(head: CertifiedHead, x: np.ndarray) -> Any:
    both, logits = head.approximate(tt.asarray(x))
    return head.bounds(head.lengths(both).numpy(), logits.numpy())


@settings(max_examples=int(os.environ.get("TRITIUM_CERTIFIED_HEADS", "60")))
@given(
    st.sampled_from(HEADS), st.sampled_from(INPUTS), st.sampled_from(["f32", "f16", "bf16"]), st.integers(1, 70),
    st.sampled_from([1, 15, 64, 200, 1100]), st.sampled_from([1.0, 0.37, -2.5, 1e-3]), st.integers(0, 10**6),
)  # fmt: skip
def test_bounds_hold_the_logits_of_the_whole_head(
    kind: str, of: str, dtype: str, vocab: int, width: int, multiplier: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    head = certify(tt.asarray(head_of(kind, vocab, width, rng)).to(dtype), multiplier)
    x = np.stack([input_of(of, width, rng), input_of("normal", width, rng)])
    if head is None:
        assert kind == "not finite" or dtype == "f16"  # the largest numbers are infinite there
        return
    whole = head.whole(x)
    for bounds, row in zip(within(head, x), whole, strict=True):
        if bounds is not None:
            assert np.isfinite(row).all()
            assert (bounds.lower <= row).all()
            assert (row <= bounds.upper).all()
            check_few_distances(bounds, row)


def check_few_distances(bounds: Bounds, row: np.ndarray) -> None:
    """Bounds of few rows are those of all, and leave the same rows to be read."""
    ids = np.arange(0, row.size, 3)
    np.testing.assert_array_equal(bounds.some(ids), bounds.distance[ids])
    assert bounds.distance.max() <= bounds.most
    asked: list[list[int]] = []

    def read(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.tolist())
        return np.asarray(row[rows])

    def whole() -> np.ndarray:
        asked.append([])
        return row

    found = [Bounded(bounds.centre, d, read, whole).largest() for d in (bounds, bounds.distance)]
    assert found == [(int(row.argmax()), float(row.max()))] * 2
    assert asked[0] == asked[1]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("multiplier", [1.0, 0.3])
def test_rows_have_the_bits_of_the_whole_head(dtype: str, multiplier: float) -> None:
    rng = np.random.default_rng(1)
    head = certify(tt.asarray(rng.normal(size=(301, 1100)).astype(np.float32)).to(dtype), multiplier)
    assert head is not None
    x = rng.normal(size=(11, 1100)).astype(np.float32)
    whole, alone = head.whole(x), [head.whole(row[None])[0] for row in x]
    np.testing.assert_array_equal(whole, alone)
    for count in (1, 2, 16, 17, 100, 301):
        ids = np.sort(rng.choice(301, count, replace=False))
        np.testing.assert_array_equal(head.read(x[3], ids), whole[3, ids])


def test_bounds_of_usual_numbers_are_near() -> None:
    rng = np.random.default_rng(2)
    head = certify(tt.asarray(rng.normal(size=(400, 640)).astype(np.float32)).to("f16"))
    assert head is not None
    x = rng.normal(size=(3, 640)).astype(np.float32)
    for bounds, row in zip(within(head, x), head.whole(x), strict=True):
        assert (bounds.upper - bounds.lower).max() < row.std()
        assert bounds.upper.shape == bounds.lower.shape == (400,)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_bounds_are_reached_by_what_the_copy_lost(dtype: str) -> None:
    """An input that lies along the error of a row: its logit is as far from the copy's as a bound of lengths allows."""
    rng = np.random.default_rng(9)
    head = certify(tt.asarray(rng.normal(size=(50, 300)).astype(np.float32)).to(dtype))
    assert head is not None
    x = (head.table.to("f32") - head.copy.dequantize()).numpy() * np.float32(1000)
    for i, (bounds, row) in enumerate(zip(within(head, x), head.whole(x), strict=True)):
        away = abs(float(row[i]) - float(bounds.centre[i]))
        assert 0.95 * bounds.distance[i] < away <= bounds.distance[i]


@pytest.mark.parametrize("of", ["nan", "infinite", "zero", "tiny"])
def test_nothing_bounds_the_logits_of_such_inputs(of: str) -> None:
    rng = np.random.default_rng(3)
    head = certify(tt.asarray(rng.normal(size=(20, 32)).astype(np.float32)))
    assert head is not None
    assert within(head, np.stack([input_of(of, 32, rng), input_of("normal", 32, rng)]))[0] is None


def test_logits_near_the_largest_number_are_not_bounded() -> None:
    head = certify(tt.asarray(np.full((4, 8), 1e18, np.float32)))
    assert head is not None
    assert within(head, np.full((1, 8), 2e19, np.float32)) == [None]
    assert within(head, np.full((1, 8), 1e17, np.float32))[0] is not None


def test_a_table_with_a_number_that_is_not_finite_is_not_certified() -> None:
    for wrong in (np.nan, np.inf, -np.inf, 3e38):  # the square of the last is not
        w = np.zeros((9, 40), np.float32)
        w[7, 3] = wrong
        assert certify(tt.asarray(w)) is None


def test_what_does_not_pay_is_refused() -> None:
    table = tt.asarray(np.zeros((64, 32), np.float16))
    assert "would save 0 MB" in refusal(table)
    assert refusal(table, True) == ""
    assert "int8 already" in refusal(QuantLinear.from_float(table, "int8"), True)


@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_other_devices_read_the_whole_head(name: str) -> None:
    pytest.importorskip(name if name == "torch" else "mlx.core")
    table = tt.asarray(np.zeros((64, 32), np.float16), device=name)
    assert refusal(table, True) == f"{table.device} reads the whole head"


@pytest.mark.parametrize("multiplier", [1.0, -0.3])
def test_the_op_finds_the_largest_of_the_whole_head(multiplier: float) -> None:
    """Rows that are equal, an input along a row, one without a direction and one that is no number."""
    rng = np.random.default_rng(12)
    w = rng.normal(size=(400, 96)).astype(np.float16)
    w[[30, 399]] = w[9]
    head = certify(tt.asarray(w), multiplier)
    assert head is not None
    x = np.stack([rng.normal(size=96), w[9] / multiplier, np.zeros(96), np.full(96, np.nan)]).astype(np.float32)
    index, value, rows = (t.numpy() for t in head.largest(tt.asarray(x)))
    logits = x @ w.astype(np.float32).T * np.float32(multiplier)
    assert index.tolist() == logits.argmax(axis=1).tolist()
    assert index[1] == 9
    np.testing.assert_allclose(value, logits.max(axis=1), rtol=1e-5)
    assert rows.tolist()[1:] == [3, 400, 400]
    assert rows[0] < 100
    head.count_read(rows.tolist())
    assert (head.statistics.decided, head.statistics.whole, head.statistics.rows) == (2, 2, 3 + rows[0])


@settings(max_examples=int(os.environ.get("TRITIUM_CERTIFIED_HEADS", "60")))
@given(
    st.sampled_from(HEADS), st.lists(st.sampled_from(INPUTS), min_size=1, max_size=11), st.sampled_from(["f32", "f16", "bf16"]),
    st.sampled_from([1, 7, 70, 513, 20_000]), st.sampled_from([1, 15, 64, 200]), st.sampled_from([1.0, 0.37, -2.5, 1e-3]),
    st.sampled_from([1, 3, 16]), st.integers(0, 10**6),
)  # fmt: skip
def test_the_kernel_picks_the_token_and_the_bits_of_the_whole_head(
    kind: str, of: list[str], dtype: str, vocab: int, width: int, multiplier: float, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    head = certify(tt.asarray(head_of(kind, vocab, width, rng)).to(dtype), multiplier)
    if head is None:
        return
    x = np.stack([input_of(each, width, rng) for each in of])
    before = tt.get_num_threads()
    tt.set_num_threads(threads)
    index, value, rows = (t.numpy() for t in head.largest(tt.asarray(x)))
    tt.set_num_threads(before)
    whole = head.whole(x)
    assert index.tolist() == whole.argmax(axis=1).tolist()
    np.testing.assert_array_equal(value, whole[np.arange(len(x)), index])
    assert (rows >= 1).all()
    assert (rows <= vocab).all()


def test_the_kernel_takes_views_and_bounds_of_the_reference() -> None:
    """Strides of any kind, and rows that are read as many as the reference reads."""
    rng = np.random.default_rng(5)
    w, x = rng.normal(size=(900, 48)).astype(np.float32), rng.normal(size=(6, 96)).astype(np.float32)
    head = certify(tt.asarray(w))
    assert head is not None
    weight, each = head.copy.weight, [tt.asarray(np.repeat(t.numpy(), 2))[::2] for t in (head.error, head.norm)]
    found = ops.bounded_argmax(tt.asarray(x)[::2, ::2], head.table, weight.data, weight.scale, *each)
    plain = [np.empty(3, np.int64), np.empty(3, np.float32), np.empty(3, np.int32)]
    copy = [head.table.numpy(), seen(weight.data), weight.scale.numpy(), head.error.numpy(), head.norm.numpy()]
    KERNELS[ops.bounded_argmax](x[::2, ::2], *copy, multiplier=1.0, out=tuple(plain))
    assert found[0].tolist() == plain[0].tolist()
    assert found[2].tolist() == plain[2].tolist()


def test_a_copy_of_another_shape_or_a_bound_that_is_no_length_is_an_error() -> None:
    head = certify(tt.asarray(np.ones((6, 8), np.float32)))
    other = certify(tt.asarray(np.ones((6, 9), np.float32)))
    assert head is not None
    assert other is not None
    with pytest.raises(ShapeError, match="a copy of shape"):
        CertifiedHead(head.table, other.copy, head.error, head.norm)
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ArgumentError, match="negative or not finite"):
            CertifiedHead(head.table, head.copy, head.error, head.norm * wrong)


def test_statistics_are_counted() -> None:
    head = certify(tt.asarray(np.ones((6, 8), np.float32)))
    assert head is not None
    assert str(head.statistics) == "no token yet"
    head.count(decided=3, rows=12)
    head.count(whole=1, resting=2)
    assert head.statistics.tokens == 6
    assert str(head.statistics) == "3 of 6 tokens decided by bounds, 4 rows each; 3 read the whole head"
