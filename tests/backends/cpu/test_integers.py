"""Integers of every size, with and without a sign, have native kernels whose results are those of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import buffer, ops

KINDS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
BINARY = (
    "add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder", "bitwise_and", "bitwise_or",
    "bitwise_xor", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
)  # fmt: skip
UNARY = ("abs", "negative", "positive", "square", "sign", "bitwise_invert")


def pairs(kind: str) -> tuple[Any, Any]:
    """Every pair of extreme values, and random ones beside small divisors."""
    info, rng = np.iinfo(kind), np.random.default_rng(0)
    extremes = np.array([info.min, info.max, info.max - 1, 0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64], kind)
    a = np.concatenate([np.repeat(extremes, len(extremes)), rng.integers(info.min, info.max, 300, kind, True)])
    return a, np.concatenate([np.tile(extremes, len(extremes)), rng.integers(0, 9, 300).astype(kind)])


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_and_comparisons_are_those_of_numpy(kind: str) -> None:
    a, b = pairs(kind)
    with np.errstate(all="ignore"):
        for name in BINARY:
            y = getattr(tt, name)(tt.asarray(a), tt.asarray(b)).numpy()
            np.testing.assert_array_equal(y, getattr(np, name)(a, b), err_msg=name, strict=True)
        for name in UNARY:
            y = getattr(tt, name)(tt.asarray(a)).numpy()
            np.testing.assert_array_equal(y, getattr(np, name)(a), err_msg=name, strict=True)
    np.testing.assert_array_equal(tt.clip(tt.asarray(a), 3, 9).numpy(), np.clip(a, 3, 9))


@pytest.mark.parametrize("kind", KINDS)
def test_shifts_by_the_width_or_more_leave_the_sign(kind: str) -> None:
    a, b = pairs(kind)
    within = (b >= 0) & (b < 8 * a.itemsize)
    counts = np.where(within, b, 0).astype(kind)
    left = np.where(within, np.left_shift(a, counts), 0)
    right = np.where(within, np.right_shift(a, counts), np.where(a < 0, -1, 0).astype(kind))
    np.testing.assert_array_equal(tt.bitwise_left_shift(tt.asarray(a), tt.asarray(b)).numpy(), left)
    np.testing.assert_array_equal(tt.bitwise_right_shift(tt.asarray(a), tt.asarray(b)).numpy(), right)


@pytest.mark.skipif(not buffer.native, reason="the pure build has no native kernels")
@pytest.mark.parametrize("kind", KINDS)
def test_no_integer_goes_through_numpy(kind: str) -> None:
    x = tt.asarray(np.zeros(8, kind))
    names = dict.fromkeys((*BINARY, "bitwise_left_shift", "bitwise_right_shift"), 2) | dict.fromkeys(UNARY, 1)
    backend = tt.device("cpu").backend
    kernels = {
        name: backend.choose(getattr(ops, name), (x.spec,) * arity, {}, (x.layout,) * arity).name
        for name, arity in names.items()
    }
    assert {name: kernel for name, kernel in kernels.items() if "numpy" in kernel or "reference" in kernel} == {}


@pytest.mark.parametrize("kind", [*KINDS, "f2", "f4", "f8"])
def test_sorting_and_searching_are_those_of_numpy(kind: str) -> None:
    rng = np.random.default_rng(1)
    a = pairs(kind)[0] if kind[0] != "f" else rng.standard_normal(500).astype(kind)
    if kind[0] == "f":
        a[::7], a[::11], a[::13], a[3], a[5] = np.nan, 0.0, -0.0, np.inf, -np.inf
    x, order = tt.asarray(a), np.argsort(a, kind="stable")
    np.testing.assert_array_equal(tt.sort(x).numpy().view(f"u{a.itemsize}"), a[order].view(f"u{a.itemsize}"))
    np.testing.assert_array_equal(tt.argsort(x).numpy(), order)
    for side in ("left", "right"):
        found = tt.searchsorted(tt.sort(x), x, side=side).numpy()
        np.testing.assert_array_equal(found, np.searchsorted(np.sort(a), a, side=side))
