"""quantize_ternary: the order of its sums, and every native kernel bit for bit against the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from isas import BASES as ISAS, BUILT_BASES
from tritium import ops
from tritium.backends.reference import packed, quantized
from tritium.buffer import host, native
from tritium.errors import QuantError
from tritium.ops import TERNARY
from tritium.testing import LAYOUTS, as_laid, laid, values

needs_native = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")
WAYS: list[dict[str, Any]] = [
    {"axis": None, "group": 0},
    {"axis": 0, "group": 0},
    *({"axis": None, "group": g} for g in (1, 4, 32, 100, 256, 2**40)),
]


def specs(shape: tuple[int, ...], attrs: dict[str, Any]) -> Any:
    return ops.quantize_ternary.decide((tt.Spec(shape),), attrs).out


def by_reference(w: Any, attrs: dict[str, Any]) -> tuple[bytes, bytes]:
    data, scale = packed.empty(w.shape, attrs["dtype"]), np.empty(specs(w.shape, attrs)[1].shape, np.float32)
    quantized.KERNELS[ops.quantize_ternary](w, out=(data, scale), **attrs)
    return data.data.tobytes(), scale.tobytes()


def by_kernel(isa: str, w: tt.Tensor, attrs: dict[str, Any]) -> tuple[bytes, bytes]:
    """The bytes of the codes, padding and all, and of the scales."""
    t, scale = specs(w.shape, attrs)
    out = (tt.empty(t.shape, dtype=t.dtype), tt.full(scale.shape, -1.0))
    native.kernel("quantize_ternary", isa)(w, out=out, **attrs)
    return host(out[0]).tobytes(), host(out[1]).tobytes()


def drawn(shape: tuple[int, int], seed: int, spread: float) -> Any:
    """Numbers of both signs, of sizes e^±spread, some of them zero."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape) * np.exp(rng.uniform(-spread, spread, shape))
    return np.where(rng.random(shape) < 0.1, 0, w).astype(np.float32)


@needs_native
@given(
    shape=st.tuples(st.integers(0, 90), st.one_of(st.integers(0, 90), st.integers(250, 600))),
    seed=st.integers(0, 2**32), spread=st.sampled_from([0.0, 3.0, 60.0]), way=st.sampled_from(WAYS),
    t=st.sampled_from(TERNARY), how=st.sampled_from(LAYOUTS),
)  # fmt: skip
def test_every_kernel_gives_the_bits_of_the_reference(
    shape: tuple[int, int], seed: int, spread: float, way: dict[str, Any], t: tt.DType, how: str
) -> None:
    w: Any = as_laid(drawn(shape, seed, spread), how)
    attrs = way | {"dtype": t}
    want = by_reference(w, attrs)
    for isa in BUILT_BASES:
        assert by_kernel(isa, laid(w, how), attrs) == want, isa


@needs_native
@pytest.mark.parametrize("isa", ISAS)
def test_numbers_at_half_a_scale_round_as_their_quotient_does(isa: str) -> None:
    a = np.ldexp(np.random.default_rng(0).uniform(1, 4, 20_000), np.arange(-16, 4).repeat(1000)).astype(np.float32)
    near = (3 * a).view(np.int32)[:, None] + np.arange(-4, 5, dtype=np.int32)
    w = np.stack([np.broadcast_to(a[:, None], near.shape), near.view(np.float32)], axis=2).reshape(-1, 2)
    attrs = {"axis": 0, "group": 0, "dtype": tt.tern2}
    for signed in (w, -w):  # rows [a, b]: a is half of the scale where b = 3 a
        assert by_kernel(isa, tt.tensor(signed), attrs) == by_reference(signed, attrs)
    assert 0.3 < values(tt.quantize_ternary(tt.tensor(w), axis=0)[0])[:, 0].mean() < 0.7


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("way", WAYS[:4], ids=str)
def test_threads_change_no_bit(isa: str, way: dict[str, Any]) -> None:
    w, attrs, before = drawn((700, 1030), 1, 3.0), way | {"dtype": tt.tern2}, tt.get_num_threads()
    want = by_reference(w, attrs)
    try:
        for count in (1, 2, 5):
            tt.set_num_threads(count)
            assert by_kernel(isa, tt.tensor(w), attrs) == want
    finally:
        tt.set_num_threads(before)


@needs_native
def test_scales_may_lie_apart() -> None:
    w = tt.tensor(drawn((6, 40), 2, 1.0))
    for way, apart in ((WAYS[1], tt.zeros((12,))[1::2]), (WAYS[4], tt.zeros((4, 12)).T[::2, ::2])):
        attrs = way | {"dtype": tt.tern2}
        data, scale = tt.quantize_ternary(w, **attrs)
        out = (tt.empty(w.shape, dtype=tt.tern2), apart)
        native.kernel("quantize_ternary")(w, out=out, **attrs)
        np.testing.assert_array_equal(host(out[0]), host(data))
        np.testing.assert_array_equal(apart.numpy(), scale.numpy())


def in_order(x: list[float]) -> float:
    """The sum as it is defined, one addition after the other."""
    total = 0.0
    for i in range(0, len(x), 256):
        part = x[i : i + 256] + [0.0] * (256 - len(x[i : i + 256]))
        while len(part) > 1:
            half = len(part) // 2
            part = [a + b for a, b in zip(part[:half], part[half:], strict=True)]
        total += part[0]
    return total


@given(k=st.one_of(st.integers(0, 20), st.integers(200, 1100)), seed=st.integers(0, 2**32))
def test_sums_keep_their_order_whatever_the_layout(k: int, seed: int) -> None:
    x = np.abs(drawn((3, k), seed, 60.0)).astype(np.float64)
    want = [in_order(row) for row in x.tolist()]
    assert quantized._sum(x).tolist() == quantized._sum(np.asfortranarray(x)).tolist() == want
    np.testing.assert_allclose(want, [math.fsum(row) for row in x], rtol=1e-14)


@pytest.mark.parametrize(("bad", "said"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
@pytest.mark.parametrize("way", WAYS[:4], ids=str)
def test_the_first_number_that_is_not_finite_is_named(bad: float, said: str, way: dict[str, Any]) -> None:
    good = drawn((9, 300), 3, 1.0)
    w = good.copy()
    w[4, 299], w[4, 258], w[7, 0] = 1.0, bad, np.inf
    attrs = way | {"dtype": tt.tern2}
    with pytest.raises(QuantError) as reference:
        by_reference(w, attrs)
    assert str(reference.value).startswith(f"quantize_ternary: element [4, 258] is {said};")
    compiled = tt.compile(lambda x: tt.quantize_ternary(x, **attrs))
    for f in (lambda x: tt.quantize_ternary(x, **attrs), compiled):
        for _ in ("decided", "replayed"):
            f(tt.tensor(good))
            for how in ("contiguous", "transposed"):
                with pytest.raises(QuantError) as error:
                    f(laid(w, how))
                assert str(error.value) == str(reference.value)


@needs_native
def test_a_refused_matrix_leaves_the_results_alone() -> None:
    w, out = np.full((3, 8), np.nan, np.float32), (tt.repack(tt.ones((3, 8), dtype="i8"), tt.tern2), tt.full((3,), 7.0))
    with pytest.raises(QuantError):
        native.kernel("quantize_ternary")(tt.tensor(w), out=out, axis=0, group=0, dtype=tt.tern2)
    assert tt.repack(out[0], tt.i8).tolist() == [[1] * 8] * 3
    assert out[1].tolist() == [7.0] * 3


@needs_native
def test_a_program_quantises_without_python() -> None:
    f = tt.compile(lambda x: tt.quantize_ternary(x * 2, axis=0))
    x = tt.tensor(drawn((5, 70), 4, 1.0))
    for got, want in zip(f(x), tt.quantize_ternary(x * 2, axis=0), strict=True):
        np.testing.assert_array_equal(host(got), host(want))
    before = f.hits
    f(x)
    assert f.hits == before + 1  # the native program ran it


@needs_native
def test_a_call_of_several_results_is_replayed() -> None:
    x = tt.tensor(drawn((5, 70), 5, 1.0))
    first = tt.quantize_ternary(x, group=32)
    before = tt.quantize_ternary.hits
    again = tt.quantize_ternary(x, group=32)
    assert tt.quantize_ternary.hits == before + 1
    assert isinstance(again, tuple)
    assert [t.spec for t in again] == [t.spec for t in first]
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(host(a), host(b))
    into = (tt.empty((5, 70), dtype=tt.tern2), tt.empty((5, 3)))
    assert tt.quantize_ternary(x, group=32, out=into) == into  # memory of the caller's is for Python
    np.testing.assert_array_equal(into[1].numpy(), first[1].numpy())
