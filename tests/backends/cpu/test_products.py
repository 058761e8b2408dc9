"""Every native product kernel of every instruction set here: the same int32 sums as plain integers, the same float bits
as the reference, for any batch, size, layout and number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from at import EVERYTHING, teams
from isas import ISAS
from product_cases import BY_CODE, draw, layouts, packed
from tritium import dtype as dt, ops
from tritium.backends.cpu import device as cpu
from tritium.backends.reference import quantized
from tritium.buffer import native
from tritium.tensor import Tensor

pytestmark = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")


class Found(NamedTuple):
    """A kernel, by the instruction set asked for and its place in the list, and the weights it is given."""

    isa: str
    place: int
    label: str
    t: dt.DType

    def kernel(self, name: str) -> Any:
        return native.kernels(name, self.isa)[self.place]


def found(name: str) -> list[Found]:
    """Each kernel with each dtype of weights it takes: those for tiles, and the plain ones that read everything."""
    out: dict[Any, Found] = {}
    for isa in native.isas() if native is not None else []:
        for place, k in enumerate(native.kernels(name, isa)):
            for code in k.dtypes:
                label = f"{k.isa}{'' if min(k.dtypes) >= dt.tern2_r64.code else '-plain'}"
                out.setdefault((label, code), Found(isa, place, label, BY_CODE[code]))
    return list(out.values())


SUMS = found("integer_matmul")
every_kernel = pytest.mark.parametrize("how", SUMS, ids=[f"{f.label}-{f.t}" for f in SUMS])
SIZES = [(1, 1), (1, 64), (3, 5), (17, 63), (33, 65), (64, 64), (65, 129), (81, 200), (160, 257), (331, 1000)]
BATCHES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 65, 100, 127, 129]


def dot(q: Any, w: Any) -> Any:
    """Plain integers; 64 bits wide, so that nothing can wrap unseen."""
    exact = quantized.dot(q, w).astype(np.int64)
    assert np.abs(exact).max(initial=0) < 2**31
    return exact


def sums(how: Found, q: Tensor, w: Tensor) -> Any:
    out = tt.full((*q.shape[:-1], w.shape[0]), 77, dtype="i32")
    how.kernel("integer_matmul")(q, w, out=out)
    return out.numpy()


@every_kernel
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sums_are_exact_for_every_batch(size: tuple[int, int], how: Found) -> None:
    n, k = size
    w = draw(how.t, (n, k), n + k)
    weights = packed(w, how.t)
    q = draw(dt.i8, (max(BATCHES), k), k)
    want = dot(q, w)
    for m in BATCHES[:: 2 if n > 300 and not EVERYTHING else 1]:
        np.testing.assert_array_equal(sums(how, tt.tensor(q[:m]), weights), want[:m], err_msg=f"batch {m}")


@every_kernel
@pytest.mark.parametrize("m", [200, 511, 600])
def test_sums_are_exact_for_large_batches(m: int, how: Found) -> None:
    w, q = draw(how.t, (97, 321), m), draw(dt.i8, (m, 321), m)
    np.testing.assert_array_equal(sums(how, tt.tensor(q), packed(w, how.t)), dot(q, w))


@every_kernel
@pytest.mark.parametrize("k", [705, 1400, 3300])
def test_sums_over_long_rows_are_exact_for_many_tokens(k: int, how: Found) -> None:
    """Kernels for many tokens cut long rows into chunks, unpack the weights of each once, and add to the sums of those before."""
    w, q = draw(how.t, (150, k), k), draw(dt.i8, (115, k), k + 1)
    np.testing.assert_array_equal(sums(how, tt.tensor(q), packed(w, how.t)), dot(q, w))


@every_kernel
@pytest.mark.parametrize("k", [64, 4099, 65_536])
def test_extreme_values_do_not_wrap(k: int, how: Found) -> None:
    low, high = how.t.values if how.t.is_packed else (-128, 127)
    rows = np.array([[low] * k, [high] * k, [0] * k, [low, high] * (k // 2) + [high] * (k % 2)], np.int8)
    for m in (1, 5, 33):
        for value in (127, -128):
            q = np.full((m, k), value, np.int8)
            np.testing.assert_array_equal(sums(how, tt.tensor(q), packed(rows, how.t)), dot(q, rows))


@every_kernel
def test_threads_do_not_change_the_sums(how: Found) -> None:
    before = tt.get_num_threads()
    w = draw(how.t, (700, 1100), 5)
    weights = packed(w, how.t)
    try:
        for m, threads in teams((1, 3, 18, 70)):
            q = draw(dt.i8, (m, 1100), m)
            tt.set_num_threads(threads)
            np.testing.assert_array_equal(sums(how, tt.tensor(q), weights), dot(q, w), err_msg=f"{threads} threads")
    finally:
        tt.set_num_threads(before)


@given(st.data())
@settings(max_examples=60)
def test_any_size_is_exact_on_every_kernel(data: Any) -> None:
    n, k, m = (data.draw(st.integers(1, top)) for top in (300, 700, 70))
    seed = data.draw(st.integers(0, 9999))
    for how in SUMS:
        w, q = draw(how.t, (n, k), seed), draw(dt.i8, (m, k), seed + 1)
        np.testing.assert_array_equal(
            sums(how, tt.tensor(q), packed(w, how.t)), dot(q, w), err_msg=f"{how.label} {how.t}"
        )


NAMES = {"token": "quantized_matmul", "group": "quantized_matmul_group"}


def floats(
    how: Found, x: Tensor, w: Tensor, scale: Any, bias: Any, group: int, out: Any, activations: str = "token"
) -> Any:
    made = scale if isinstance(scale, Tensor) else tt.tensor(scale)
    bias = None if bias is None else tt.tensor(bias)
    how.kernel(NAMES[activations])(x, w, made, bias, out=out, group=group, activations=activations)
    return out.numpy()


def expected(x: Any, w: Any, scale: Any, bias: Any, group: int, activations: str = "token") -> Any:
    out = np.empty((*x.shape[:-1], w.shape[0]), x.dtype)
    ops_kernel = quantized.KERNELS[ops.quantized_matmul]
    ops_kernel(x, w, scale, bias, group=group, activations=activations, out=out)
    return out


def scales(n: int, k: int, group: int, seed: int, per_row: bool) -> Any:
    rng = np.random.default_rng(seed)
    shape = (n, -(-k // group)) if group else (n,) if per_row else ()
    return np.asarray(rng.uniform(0.01, 2, shape), np.float32)


@every_kernel
@pytest.mark.parametrize(("n", "k", "group"), [(70, 130, 0), (37, 200, 64), (90, 384, 128), (64, 64, 0)])
def test_results_have_the_bits_of_the_reference(n: int, k: int, group: int, how: Found) -> None:
    rng = np.random.default_rng(n)
    w = draw(how.t, (n, k), k)
    weights = packed(w, how.t)
    bias = rng.standard_normal(n).astype(np.float32)
    for m in (1, 2, 5, 9, 40, 130):
        x = rng.standard_normal((m, k)).astype(np.float32)
        for per_row, b in ((False, None), (True, bias)):
            scale = scales(n, k, group, m, per_row)
            got = floats(how, tt.tensor(x), weights, scale, b, group, tt.empty((m, n)))
            np.testing.assert_array_equal(got.view(np.int32), expected(x, w, scale, b, group).view(np.int32))


# Of groups: multiples of 16 and others, a last one that is short, blocks of columns that are, one group, and one too long.
GROUPS = [(70, 1100, 48), (260, 2600, 32), (33, 1000, 80), (65, 100, 128), (81, 2048, 128), (5, 1500, 1040), (3, 40, 7),
          (130, 1000, 20), (17, 64, 62), (9, 70, 1), (65, 1300, 50)]  # fmt: skip


def takes(how: Found, n: int, k: int, group: int) -> bool:
    specs = (tt.Spec((1, k)), tt.Spec((n, k), how.t), tt.Spec((n, -(-k // group))), None)
    return how.label.endswith("-plain") or cpu.short_groups(lambda *call: True)(specs, {"group": group}, ())


@cache
def grouped(low: int, high: int, n: int, k: int, group: int, activations: str, half: bool) -> tuple[Any, ...]:
    """Operands of a product with groups, and its results by the reference."""
    rng = np.random.default_rng(n * k + group)
    w = rng.integers(low, high + 1, (n, k)).astype(np.int8)
    x = rng.standard_normal((40, k)).astype(np.float32) * np.exp(rng.uniform(-3, 3, (40, k))).astype(np.float32)
    scale = rng.uniform(0.01, 2, (n, -(-k // group))).astype(np.float16 if half else np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    return x, w, scale, bias, expected(x, w, scale, bias, group, activations)


@every_kernel
@pytest.mark.parametrize("activations", ["token", "group"])
def test_groups_of_any_size_have_the_bits_of_the_reference(activations: str, how: Found) -> None:
    low, high = how.t.values if how.t.is_packed else (-128, 127)
    for i, (n, k, group) in enumerate(GROUPS):
        if not takes(how, n, k, group):
            continue
        for half in (False, True) if EVERYTHING else (bool(i % 2) == (activations == "token"),):
            x, w, scale, bias, want = grouped(low, high, n, k, group, activations, half)
            weights = packed(w, how.t)
            by_columns = tt.tensor(np.ascontiguousarray(scale.T)).T
            for m in (1, 3, 9, 40) if i < 2 else (1 + i, 33):
                made = by_columns if (m + half) % 2 else tt.tensor(scale)
                got = floats(how, tt.tensor(x[:m]), weights, made, bias, group, tt.empty((m, n)), activations)
                np.testing.assert_array_equal(got.view(np.int32), want[:m].view(np.int32), err_msg=f"{group} {m}")


@pytest.mark.parametrize("group", [1, 7, 20, 50, 100])
def test_no_group_falls_to_the_plain_kernel(group: int) -> None:
    t = np.eye(70, 130, dtype=np.int8)
    plain = tt.nn.BitLinear.from_ternary(t, scale=0.5)
    scale = np.full((70, -(-130 // group)), 0.5, np.float32)
    for activations in ("token", "group"):
        layer = tt.nn.BitLinear.from_ternary(t, scale=scale, group=group, activations=activations)
        for tokens in (1, 4, 40):
            assert layer.kernel(tokens) == plain.kernel(tokens)


@cache
def whole_units(low: int, high: int, k: int, group: int, activations: str) -> tuple[Any, ...]:
    """Operands of a product with groups and many tokens, and its results by the reference."""
    rng = np.random.default_rng(k)
    w = rng.integers(low, high + 1, (70, k)).astype(np.int8)
    x = rng.standard_normal((33 if k > 20000 else 75, k)).astype(np.float32)
    scale = rng.uniform(0.01, 2, (70, -(-k // group))).astype(np.float16)
    return x, w, scale, expected(x, w, scale, None, group, activations)


@every_kernel
@pytest.mark.parametrize(("k", "group"), [(2200, 128), (1300, 512), (20544, 1024)])
def test_groups_of_whole_units_have_the_bits_of_the_reference(k: int, group: int, how: Found) -> None:
    """For every rest of tokens that tiles leave, rows that are no whole strips, a short last group, and rows longer than are unpacked."""
    low, high = how.t.values if how.t.is_packed else (-128, 127)
    if not takes(how, 70, k, group):
        pytest.skip("its groups are shorter")
    for activations in ("token", "group"):
        x, w, scale, want = whole_units(low, high, k, group, activations)
        weights = packed(w, how.t)
        for m in (33,) if k > 20000 else (24, 31, 40, 58, 75):
            got = floats(how, tt.tensor(x[:m]), weights, tt.tensor(scale), None, group, tt.empty((m, 70)), activations)
            np.testing.assert_array_equal(got.view(np.int32), want[:m].view(np.int32), err_msg=f"{m} {activations}")


@every_kernel
def test_threads_do_not_change_the_bits_of_groups(how: Found) -> None:
    before = tt.get_num_threads()
    low, high = how.t.values if how.t.is_packed else (-128, 127)
    x, w, scale, bias, want = grouped(low, high, 300, 3200, 64, "group", True)
    weights = packed(w, how.t)
    try:
        for m, threads in teams((1, 2, 17, 40)):
            tt.set_num_threads(threads)
            got = floats(how, tt.tensor(x[:m]), weights, scale, bias, 64, tt.empty((m, 300)), "group")
            np.testing.assert_array_equal(got, want[:m], err_msg=f"{m} tokens, {threads} threads")
    finally:
        tt.set_num_threads(before)


@every_kernel
def test_a_product_may_be_split_between_blocks(how: Found) -> None:
    low, high = how.t.values if how.t.is_packed else (-128, 127)
    x, w, scale, _, _ = grouped(low, high, 40, 2500, 64, "group", True)
    for m in (1, 5, 40):
        total = None
        for at in range(0, 2500, 1024):
            columns, groups = slice(at, at + 1024), slice(at // 64, at // 64 + 16)
            part, weights = np.ascontiguousarray(x[:m, columns]), packed(np.ascontiguousarray(w[:, columns]), how.t)
            got = floats(how, tt.tensor(part), weights, scale[:, groups], None, 64, tt.empty((m, 40)), "group")
            total = got.copy() if total is None else total + got
        whole = floats(how, tt.tensor(x[:m]), packed(w, how.t), scale, None, 64, tt.empty((m, 40)), "group")
        np.testing.assert_array_equal(total, whole)


@every_kernel
def test_the_largest_sums_of_groups_are_exact(how: Found) -> None:
    low, high = how.t.values if how.t.is_packed else (-128, 127)
    w = np.repeat(np.array([[low] * 1024, [high] * 1024, [low, high] * 512], np.int8), 16, axis=0)
    x = np.tile(np.float32([[1], [-1]]), (20, 1024))
    for group in (16, 64, 256, 384, 400, 512):
        scale = np.full((48, -(-1024 // group)), 65504, np.float16)
        columns = tt.tensor(np.ascontiguousarray(scale.T)).T
        for activations in ("token", "group"):
            want = expected(x, w, scale, None, group, activations)
            for tokens in (slice(0, 40), slice(0, 1), slice(1, 2)):
                out = tt.empty((len(x[tokens]), 48))
                got = floats(how, tt.tensor(x[tokens]), packed(w, how.t), columns, None, group, out, activations)
                np.testing.assert_array_equal(got, want[tokens])


# Of the smallest and the largest that a type has, and of zeros, signs and what is not finite.
EDGES = {np.float16: (6e-8, 5e-5, 0.02, 65504), np.float32: (1e-45, 3e-38, 0.02, 1e32)}


@given(st.data())
@settings(max_examples=30)
def test_one_token_has_the_bits_of_the_reference_at_the_edges_of_scales(data: Any) -> None:
    n, tiles, groups = (data.draw(st.sampled_from(c)) for c in ((64, 80, 150), (1, 3, 4, 8, 24, 25, 32), (1, 5, 9)))
    group, half = 16 * tiles, data.draw(st.sampled_from((np.float16, np.float32)))
    rng = np.random.default_rng(data.draw(st.integers(0, 9999)))
    k = group * groups - data.draw(st.sampled_from((0, 5, 15)))
    scale = (
        rng.choice(np.array(EDGES[half]), (n, groups))
        * rng.uniform(0.5, 1, (n, groups))
        * rng.choice([-1, 0, 1, 1], (n, groups))
    )
    if data.draw(st.booleans()):
        scale[rng.integers(n), rng.integers(groups)] = data.draw(st.sampled_from((np.inf, -np.inf, np.nan)))
    x = rng.standard_normal((1, k)).astype(np.float32) * np.float32(data.draw(st.sampled_from((1, 1e-9, 1e30))))
    columns = tt.tensor(np.ascontiguousarray(scale.astype(half).T)).T
    for how in SUMS:
        low, high = how.t.values if how.t.is_packed else (-128, 127)
        w = rng.integers(low, high + 1, (n, k)).astype(np.int8)
        for activations in ("token", "group"):
            if not takes(how, n, k, group):
                continue
            with np.errstate(all="ignore"):
                want = expected(x, w, scale.astype(half), None, group, activations)
            got = floats(how, tt.tensor(x), packed(w, how.t), columns, None, group, tt.empty((1, n)), activations)
            np.testing.assert_array_equal(got, want, err_msg=f"{how.label} {how.t} {activations}")
            assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any()


@every_kernel
def test_a_group_that_is_not_finite_makes_its_token_nan(how: Found) -> None:
    x = np.ones((3, 256), np.float32)
    x[1, 200] = np.inf
    w, scale = draw(how.t, (9, 256), 3), np.full((9, 4), 0.5, np.float32)
    got = floats(how, tt.tensor(x), packed(w, how.t), scale, None, 64, tt.empty((3, 9)), "group")
    assert np.isnan(got[1]).all()
    assert np.array_equal(got[0], expected(x[:1], w, scale, None, 64, "group")[0])
    assert np.array_equal(got[0], got[2])


@every_kernel
def test_views_in_and_out_are_read_and_written_in_place(how: Found) -> None:
    rng = np.random.default_rng(3)
    w, scale = draw(how.t, (35, 77), 1), np.float32(0.25)
    for m in (1, 6, 20):
        x = rng.standard_normal((m, 77)).astype(np.float32)
        want = expected(x, w, scale, None, 0)
        for name, view in layouts(x):
            base = tt.zeros((2 * m, 3 * 35))
            out = base[::2, ::3]
            got = floats(how, view, packed(w, how.t), scale, None, 0, out)
            np.testing.assert_array_equal(got, want, err_msg=name)
            assert not base.numpy()[1::2].any()
            assert not base.numpy()[:, 1::3].any()


@every_kernel
@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_half_floats_are_rounded_once(half: str, how: Found) -> None:
    kind = dt.dtype(half)
    x = np.random.default_rng(4).standard_normal((7, 90)).astype(kind.numpy)
    w, scale = draw(how.t, (33, 90), 2), np.float32(0.125)
    got = floats(how, tt.tensor(x), packed(w, how.t), scale, None, 0, tt.empty((7, 33), dtype=kind))
    np.testing.assert_array_equal(got.view(np.uint16), expected(x, w, scale, None, 0).view(np.uint16))


@every_kernel
def test_nothing_to_sum_gives_the_bias_and_nobody_gives_nothing(how: Found) -> None:
    bias = np.arange(5, dtype=np.float32)
    none = packed(np.zeros((5, 0), np.int8), how.t)
    got = floats(how, tt.zeros((3, 0)), none, np.float32(1), bias, 0, tt.full((3, 5), 9.0))
    np.testing.assert_array_equal(got, np.tile(bias, (3, 1)))
    some = packed(draw(how.t, (5, 8), 0), how.t)
    assert floats(how, tt.zeros((0, 8)), some, np.float32(1), bias, 0, tt.empty((0, 5))).shape == (0, 5)


QUANTISERS = [
    (i, k) for i in (native.isas() if native is not None else []) for k in native.kernels("quantize_activations", i)
]


@pytest.mark.parametrize(("isa", "k"), QUANTISERS, ids=[f"{i}-{k.isa}" for i, k in QUANTISERS])
def test_every_quantiser_rounds_as_pinned(isa: str, k: Any) -> None:
    rng = np.random.default_rng(0)
    for m, n in [(1, 1), (3, 7), (5, 64), (2, 65), (9, 1000), (4, 0)]:
        x = rng.standard_normal((m, n)).astype(np.float32)
        x *= np.float32(10.0 ** rng.uniform(-30, 30, (m, 1)))
        if n > 2:
            x[0, n // 2] = np.nan
            x[-1, 1] = np.inf if m > 1 else x[-1, 1]
        outs = (tt.empty((m, n), dtype="i8"), tt.empty((m,)), tt.empty((m,), dtype="i32"))
        k(tt.tensor(x), out=outs)
        with np.errstate(invalid="ignore", over="ignore"):
            want = quantized.tokens(x)
        for got, w in zip(outs, want, strict=True):
            np.testing.assert_array_equal(got.numpy(), w)


def test_ties_of_activations_round_to_even_on_every_kernel() -> None:
    x = np.float32([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    for _, k in QUANTISERS:
        outs = (tt.empty((1, 8), dtype="i8"), tt.empty((1,)), tt.empty((1,), dtype="i32"))
        k(tt.tensor(x), out=outs)
        assert outs[0].tolist() == [[127, 0, 2, 2, 0, -2, -2, 126]], k


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_forces_a_kernel(isa: str) -> None:
    code = (
        "import numpy as np, tritium as tt\n"
        "layer = tt.nn.BitLinear.from_ternary(np.eye(70, 130, dtype=np.int8))\n"
        "print(layer.kernel(), layer(tt.ones((1, 130))).numpy().sum(), tt.devices()[0].facts['isa'])"
    )
    env = {**os.environ, "TRITIUM_ISA": isa}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    name, total, facts = done.stdout.split(maxsplit=2)
    is_base = (
        isa == "avx512" and "avx512bw" in native.isas()
    )  # of all that AVX-512 has; its tiles are read without VNNI
    want = "avx512bw" if is_base else isa
    assert (name, float(total)) == (want, 70.0)
    assert facts.startswith(isa)
