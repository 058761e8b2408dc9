"""A quantiser and its dequantize as one native call: the bits of the pair, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.buffer import native
from tritium.errors import QuantError

pytestmark = pytest.mark.skipif(native is None, reason="fused calls are native")

PAIRS: dict[str, tuple[dict[str, Any], ...]] = {
    "quantize_int8": ({}, {"axis": 0}, {"group": 5}, {"symmetric": False}, {"symmetric": False, "group": 5}),
    "quantize_int4": ({}, {"axis": 0}, {"group": 5}, {"symmetric": False, "axis": 0}, {"symmetric": False, "group": 5}),
    "quantize_ternary": ({}, {"axis": 0}, {"group": 5}, {"dtype": "tern5"}),
}
CASES = [(name, options) for name, all_options in PAIRS.items() for options in all_options]


def pair(name: str, options: dict[str, Any], dtype: str = "f32") -> Any:
    group = getattr(tt, name).complete(options)["group"]

    def run(w: Any) -> Any:
        codes, scale, *zero = getattr(tt, name)(w, **options)
        return tt.dequantize(codes, scale, zero[0] if zero else None, group=group, dtype=dtype)

    return run


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
@settings(max_examples=8)
@given(st.integers(0, 5), st.integers(0, 70), st.integers(0, 99), st.sampled_from(["f32", "f16", "bf16", "f64"]))
def test_one_call_has_the_bits_of_the_pair(
    name: str, options: dict[str, Any], n: int, k: int, seed: int, dtype: str
) -> None:
    w = tt.randn((n, k), seed=seed) * 3 + 0.5
    fn = tt.compile(pair(name, options, dtype))
    want, got = pair(name, options, dtype)(w), fn(w)
    assert got.spec == want.spec
    np.testing.assert_array_equal(got.to("f64").numpy(), want.to("f64").numpy())
    assert fn.program(w).launches == 1
    turned = (tt.randn((k, n), seed=seed) * 3).T
    np.testing.assert_array_equal(fn(turned).to("f64").numpy(), pair(name, options, dtype)(turned).to("f64").numpy())


@settings(max_examples=20)
@given(
    st.sampled_from([(7,), (3, 8), (2, 3, 5)]), st.integers(0, 99), st.sampled_from([None, 3, -128]), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_given_scales_are_one_call_too(
    shape: tuple[int, ...], seed: int, zero: int | None, by_rows: bool, other: bool
) -> None:
    x = tt.randn(shape, seed=seed) * 20
    scale: Any = tt.full(shape[:-1], 0.1) if by_rows else 0.1
    zeros = zero if zero is None or not by_rows else tt.full(shape[:-1], zero, dtype="i32")
    back = scale * 2 if other else scale

    def run(x: Any) -> Any:
        return tt.dequantize(tt.quantize(x, scale, zeros), back, zeros)

    fn = tt.compile(run)
    np.testing.assert_array_equal(fn(x).numpy(), run(x).numpy())
    assert fn.program(x).launches == 1


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_one_call_refuses_what_the_pair_refuses(name: str, options: dict[str, Any]) -> None:
    w = np.ones((3, 12), np.float32)
    w[2, 7] = np.nan
    with pytest.raises(QuantError, match=rf"{name}: element \[2, 7\] is nan"):
        tt.compile(pair(name, options))(tt.tensor(w))


def reasons(fn: Any, *args: Any) -> str:
    return str(tt.compile(fn).explain(*args))


def test_what_is_not_the_pair_stays_two_calls_with_the_reason() -> None:
    w = tt.randn((4, 8), seed=1)

    def without_zero(w: Any) -> Any:
        return tt.dequantize(*tt.quantize_int8(w, symmetric=False)[:2])

    def read_elsewhere(w: Any) -> Any:
        q = tt.quantize(w, 0.1)
        return q, tt.dequantize(q, 0.1)

    for fn, reason in ((without_zero, "does not read the zero points"), (read_elsewhere, "read elsewhere")):
        assert reason in reasons(fn, w)
        got, want = tt.compile(fn)(w), fn(w)
        for a, b in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_quantise_nodes_run_in_a_native_program() -> None:
    def fn(x: Any) -> Any:
        return tt.quantize(tt.gelu(x) + 1.0, 0.05), tt.quantize_int8(x), tt.quantize_int4(x, symmetric=False)

    assert "runs as one native call" in reasons(fn, tt.randn((4, 8), seed=1))


def test_a_scale_of_each_token_is_fused_with_its_use() -> None:
    def fn(x: Any) -> Any:
        return tt.dequantize(*tt.quantize_activations(x)[:2])

    x = tt.randn((4, 3, 32), seed=1)
    compiled = tt.compile(fn)
    np.testing.assert_array_equal(compiled(x).numpy(), fn(x).numpy())
    assert compiled.program(x).launches == 1
