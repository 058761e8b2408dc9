"""pow: whole powers and the square root have shortcuts, whose bits do not depend on what is computed beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt

EXTREMES = [0.0, -0.0, 1, -1, 2, -2, 3.5, np.inf, -np.inf, np.nan, 1e-300, 1e300, 5e-324, 1e-30, 1e30, -1e-40]
POWERS = [0.0, -0.0, 1, -1, 2, -2, 3, -3, 4, -4, 5, 64, -64, 65, 0.5, -0.5, 1.5, np.inf, -np.inf, np.nan]


def bits(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.view(f"u{a.dtype.itemsize}")


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_extreme_powers_are_those_of_numpy(kind: str) -> None:
    with np.errstate(all="ignore"):
        x, y = (v.ravel().astype(kind) for v in np.meshgrid(EXTREMES, POWERS))
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(kind)
        got = tt.pow(tt.asarray(x), tt.asarray(y)).numpy()
        near = np.abs(got.astype(np.float64) - want) <= 4 * np.spacing(np.abs(want)).astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want)) | near
    assert same.all(), list(zip(x[~same], y[~same], got[~same], want[~same], strict=True))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@settings(max_examples=30)
@given(st.sampled_from(["f4", "f8", "f2"]), st.integers(1, 600), st.integers(0, 999), st.sampled_from(POWERS))
def test_an_element_has_its_bits_whatever_is_beside_it(kind: str, n: int, seed: int, power: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) * 3).astype(kind)
    y = rng.choice(np.asarray([*POWERS, 0.3, -7.25]), n).astype(kind)
    y[rng.random(n) < 0.5] = power
    beside = tt.pow(tt.asarray(x), tt.asarray(y)).numpy()
    alone = tt.pow(tt.asarray(x), tt.full(n, float(power), dtype=tt.asarray(x).dtype)).numpy()
    equal = y == np.asarray(power, kind)
    np.testing.assert_array_equal(bits(beside)[equal], bits(alone)[equal])
    compiled = tt.compile(lambda v: tt.pow(v * 1.0, power) + 0.0)
    eager = (tt.pow(tt.asarray(x) * 1.0, power) + 0.0).numpy()
    np.testing.assert_array_equal(bits(compiled(tt.asarray(x)).numpy()), bits(eager))
    out = tt.tensor(x)
    tt.pow(out, power, out=out)
    np.testing.assert_array_equal(bits(out.numpy()), bits(tt.pow(tt.asarray(x), power).numpy()))
