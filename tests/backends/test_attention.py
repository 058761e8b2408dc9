"""The native kernels of a transformer's rows: the reference's values on every instruction set, the same bits in any batch
and chunk, caches written where they lie, and errors for places and indices that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from isas import BASES as ISAS, BUILT_BASES
from tritium import ops
from tritium.backends.reference import kernels as reference
from tritium.buffer import native
from tritium.errors import ArgumentError, BoundsError
from tritium.op import Op

pytestmark = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")

every_isa = pytest.mark.parametrize("isa", ISAS)
FLOATS = {"f32": tt.f32.numpy, "f16": tt.f16.numpy, "bf16": tt.bf16.numpy}
EPS = {"f32": 2**-23, "f16": 2**-10, "bf16": 2**-7}
floats = st.sampled_from(list(FLOATS))
few = settings(max_examples=40, deadline=None)


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = tt.get_num_threads()
    tt.set_num_threads(request.param)
    yield request.param
    tt.set_num_threads(before)


def draw(shape: tuple[int, ...], kind: str = "f32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(FLOATS[kind])


def strided(x: Any) -> tt.Tensor:
    """The same values in a view with gaps along its last axis and a turned first one."""
    wide = np.zeros((*x.shape, 2), x.dtype)
    wide[..., 1] = x[::-1]
    return tt.tensor(wide)[::-1, ..., 1]


def native_call(op: Op, isa: str, *xs: Any, **attrs: Any) -> Any:
    """What the kernel of an instruction set writes; arrays become tensors, tensors are taken as they are."""
    ts = [x if x is None or isinstance(x, tt.Tensor) else tt.tensor(x) for x in xs]
    said = op.decide(tuple(None if t is None else t.spec for t in ts), op.complete(attrs))
    out = tt.ones(said.out.shape, dtype=said.out.dtype)
    native.kernel(op.name, isa)(*ts, out=out, **(op.complete(attrs)))
    return out.numpy()


def expected(op: Op, out: Any, *xs: Any, **attrs: Any) -> Any:
    made = np.empty_like(out)
    reference.KERNELS[op](*xs, out=made, **(op.complete(attrs)))
    return made


def near(got: Any, want: Any, kind: str, ulps: float = 4) -> None:
    size = np.maximum(np.abs(want.astype(np.float64)), 0.25)
    rounding = EPS[kind] + 64 * 2**-23 if kind != "f32" else ulps * 16 * 2**-23
    assert np.all(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= rounding * size)


# ---- take

INDICES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


@every_isa
@pytest.mark.parametrize("kind", ["bool", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "u64"])
def test_take_moves_whole_slices_of_every_dtype(isa: str, kind: str) -> None:
    x = tt.tensor(np.arange(60).reshape(5, 4, 3)).to(kind)
    for axis, n in ((0, 5), (1, 4), (-1, 3)):
        chosen = np.random.default_rng(n).integers(-n, n, (2, 7)).astype(np.int32)
        np.testing.assert_array_equal(
            native_call(ops.take, isa, x, chosen, axis=axis), np.take(x.numpy(), chosen, axis)
        )


@every_isa
@pytest.mark.parametrize("kind", INDICES)
def test_take_reads_every_integer_as_an_index(isa: str, kind: str) -> None:
    x, chosen = draw((9, 4)), tt.tensor([0, 8, 3, 3]).to(kind)
    np.testing.assert_array_equal(native_call(ops.take, isa, x, chosen, axis=0), x[[0, 8, 3, 3]])


def test_take_reads_views_and_writes_them() -> None:
    x, chosen = draw((6, 5, 4)), np.array([5, 0, -1, 2])
    out = tt.zeros((4, 5, 4, 2))[..., 0]
    ops.take(strided(x), strided(chosen), axis=0, out=out)
    np.testing.assert_array_equal(out.numpy(), x[chosen])
    np.testing.assert_array_equal(
        ops.take(tt.tensor(x).mT, tt.tensor(chosen[:2] % 4), axis=1), x.swapaxes(1, 2)[:, [1, 0]]
    )


def test_take_of_nothing_is_empty() -> None:
    assert ops.take(tt.zeros((0, 3)), tt.tensor(np.zeros((0,), np.int64)), axis=0).shape == (0, 3)
    assert ops.take(tt.zeros((4, 0)), tt.tensor([1, 2]), axis=0).shape == (2, 0)


@pytest.mark.parametrize("index", [5, -6, 2**40])
def test_an_index_outside_the_axis_is_an_error_eager_replayed_and_compiled(index: int) -> None:
    x, good, bad = tt.tensor(draw((5, 3))), tt.tensor([0, 4]), tt.tensor([0, index])
    compiled = tt.compile(lambda x, i: ops.take(x + 1.0, i, axis=0) * 2.0)
    for fn in (lambda x, i: ops.take(x, i, axis=0), compiled):
        before = fn(x, good).numpy()
        for _ in range(2):
            with pytest.raises(BoundsError, match=rf"take: index {index} is outside an axis of size 5\."):
                fn(x, bad)
            np.testing.assert_array_equal(fn(x, good).numpy(), before)


# ---- linear


@every_isa
@few
@given(st.integers(0, 19), st.integers(0, 40), st.integers(0, 90), floats, floats, st.booleans(), st.booleans())
def test_linear_is_the_references(
    isa: str, m: int, n: int, k: int, x_kind: str, w_kind: str, bias: bool, gaps: bool
) -> None:
    x, w = draw((m, k), x_kind, 1), draw((n, k), w_kind, 2)
    b = draw((n,), seed=3) if bias else None
    got = native_call(ops.linear, isa, strided(x) if gaps else x, strided(w) if gaps else w, b)
    want = expected(ops.linear, got, x, w, b)
    size = expected(
        ops.linear, got.astype(np.float32), *(None if a is None else np.abs(a.astype(np.float32)) for a in (x, w, b))
    )
    slack = size * 2**-20 + (0 if x_kind == "f32" else np.abs(want.astype(np.float32)) * EPS[x_kind])
    assert np.all(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= slack + 1e-7)


@every_isa
@pytest.mark.parametrize("w_kind", FLOATS)
def test_a_row_of_linear_has_the_same_bits_in_any_batch(isa: str, w_kind: str, threads: int) -> None:
    for n, k in ((37, 2560), (130, 70), (5, 1031)):
        x, w, b = draw((140, k), seed=4), draw((n, k), w_kind, 5), draw((n,), seed=6)
        whole = native_call(ops.linear, isa, x, w, b)
        for rows in (1, 2, 3, 4, 5, 8, 9, 17, 128):
            np.testing.assert_array_equal(native_call(ops.linear, isa, x[:rows], w, b), whole[:rows])
        np.testing.assert_array_equal(native_call(ops.linear, isa, strided(x[:3]), strided(w), b), whole[:3])


# ---- rope


@every_isa
@few
@given(
    st.integers(0, 5), st.integers(0, 4), st.integers(1, 40), floats, st.booleans(), st.booleans(), st.integers(-1, 4)
)
def test_rope_has_the_references_bits(
    isa: str, tokens: int, heads: int, half: int, kind: str, interleaved: bool, gaps: bool, turned: int
) -> None:
    some = {"interleaved": interleaved, "heads": None if turned < 0 else min(turned, heads)}
    x, angle = draw((2, tokens, heads, 2 * half), kind, 1), draw((tokens, half), seed=2)
    cos, sin = np.cos(angle), np.sin(angle)
    got = native_call(ops.rope, isa, strided(x) if gaps else x, cos, strided(sin) if gaps and tokens else sin, **some)
    np.testing.assert_array_equal(got, expected(ops.rope, got, x, cos, sin, **some))


def test_rope_turns_a_slice_of_a_fused_projection(threads: int) -> None:
    qkv, angle = draw((1, 70, 96), seed=1), draw((70, 8), seed=2)
    cos, sin = np.cos(angle), np.sin(angle)
    got = ops.rope(tt.tensor(qkv)[..., 16:64].reshape(1, 70, 3, 16), tt.tensor(cos), tt.tensor(sin)).numpy()
    want = expected(ops.rope, got, qkv[..., 16:64].reshape(1, 70, 3, 16), cos, sin)
    np.testing.assert_array_equal(got, want)


def test_rope_passes_the_other_heads() -> None:
    x, angle = draw((2, 3, 4, 8), seed=1), draw((3, 4), seed=2)
    cos, sin = tt.tensor(np.cos(angle)), tt.tensor(np.sin(angle))
    every, some = ops.rope(tt.tensor(x), cos, sin).numpy(), ops.rope(tt.tensor(x), cos, sin, heads=3).numpy()
    np.testing.assert_array_equal(some[:, :, :3], every[:, :, :3])
    np.testing.assert_array_equal(some[:, :, 3:], x[:, :, 3:])
    for heads in (-1, 5):
        with pytest.raises(ArgumentError, match=f"rope: heads must be from 0 to the 4 heads of x .*, given {heads}"):
            ops.rope(tt.tensor(x), cos, sin, heads=heads)


@every_isa
@few
@given(st.integers(0, 3), st.integers(1, 3), st.integers(0, 9), st.integers(0, 9), floats, st.booleans(), st.booleans())
def test_rope_of_a_part_of_each_head_passes_the_rest(
    isa: str, tokens: int, heads: int, half: int, rest: int, kind: str, interleaved: bool, gaps: bool
) -> None:
    x, angle = draw((2, tokens, heads, 2 * half + rest), kind, 1), draw((tokens, half), seed=2)
    some = {"interleaved": interleaved, "heads": heads - 1}
    got = native_call(ops.rope, isa, strided(x) if gaps else x, np.cos(angle), np.sin(angle), size=2 * half, **some)
    want = x.copy()
    want[..., : 2 * half] = native_call(ops.rope, isa, x[..., : 2 * half], np.cos(angle), np.sin(angle), **some)
    np.testing.assert_array_equal(got, want)


def test_rope_refuses_a_part_that_is_odd_or_larger_than_a_head() -> None:
    x, angle = tt.zeros((2, 3, 1, 8)), tt.zeros((3, 2))
    for size in (-2, 3, 10):
        with pytest.raises(
            ArgumentError, match=f"rope: size must be even and from 0 to the last axis of x .*, given {size}"
        ):
            ops.rope(x, angle, angle, size=size)


# ---- update_cache


@every_isa
@few
@given(floats, floats, st.booleans(), st.integers(0, 3), st.integers(1, 9), st.randoms(use_true_random=False))
def test_update_cache_has_the_references_bits(
    isa: str, kind: str, values_kind: str, gaps: bool, batch: int, size: int, random: Any
) -> None:
    cache, values = draw((3, 2, 6, size), kind, 1), draw((batch, 4, 2, size), values_kind, 2)
    counts = [random.randint(0, 4) for _ in range(batch)]
    places = np.array([(random.randint(0, 2), random.randint(0, 6 - c), c) for c in counts], np.int32).reshape(batch, 3)
    given_values = strided(values) if gaps and batch else values
    got = native_call(ops.update_cache, isa, strided(cache) if gaps else cache, given_values, places)
    np.testing.assert_array_equal(got, expected(ops.update_cache, got, cache, values, places))


@pytest.mark.parametrize("kind", FLOATS)
def test_update_cache_writes_in_place_and_the_last_of_equals_wins(kind: str, threads: int) -> None:
    data, values = draw((2, 5, 300, 64), kind, 1), draw((3, 200, 5, 64), seed=2)
    places = np.array([(1, 20, 200), (1, 50, 200), (0, 0, 7)], np.int32)
    cache = tt.tensor(data)
    address = cache.address
    for _ in ("decided", "replayed"):
        assert ops.update_cache(cache, tt.tensor(values), tt.tensor(places), out=cache) is cache
        assert cache.address == address
        np.testing.assert_array_equal(cache.numpy(), expected(ops.update_cache, data, data, values, places))


def test_update_cache_may_read_its_values_from_the_cache() -> None:
    data = draw((2, 3, 3, 4), seed=1)
    cache, places = tt.tensor(data), np.array([(1, 0, 3), (0, 0, 3)], np.int32)
    ops.update_cache(cache, cache, tt.tensor(places), out=cache)
    np.testing.assert_array_equal(cache.numpy(), expected(ops.update_cache, data, data, data.copy(), places))


# ---- attention


def cached(
    batch: int, tokens: int, heads: int, shared: int, capacity: int, size: int, kind: str, q_kind: str, seed: int
) -> Any:
    rng = np.random.default_rng(seed)
    q = draw((batch, tokens, heads, size), q_kind, seed)
    k, v = (
        draw((batch + 1, shared, capacity, size), kind, seed + 1),
        draw((batch + 1, shared, capacity, size), kind, seed + 2),
    )
    counts = rng.integers(0, min(tokens, capacity) + 1, batch)
    places = [(rng.integers(0, batch + 1), rng.integers(0, capacity - c + 1), c) for c in counts]
    return q, k, v, np.array(places, np.int32).reshape(batch, 3)


@every_isa
@few
@given(
    st.integers(0, 3), st.integers(0, 9), st.sampled_from([(1, 1), (4, 2), (6, 1), (5, 5), (3, 1), (9, 1)]), st.integers(1, 150),
    st.sampled_from([1, 8, 16, 33, 64, 128]), floats, floats, st.booleans(), st.sampled_from([None, 0.25]),
)  # fmt: skip
def test_attention_is_the_references(
    isa: str, batch: int, tokens: int, heads: tuple[int, int], capacity: int, size: int, kind: str, q_kind: str, gaps: bool,
    scale: float | None,
) -> None:  # fmt: skip
    q, k, v, places = cached(batch, tokens, *heads, capacity, size, kind, q_kind, batch * 100 + tokens)
    xs = [strided(x) if gaps and x.size else x for x in (q, k, v)]
    got = native_call(ops.attention, isa, *xs, places, scale=scale)
    near(got, expected(ops.attention, got, q, k, v, places, scale=scale), q_kind)


@every_isa
def test_attention_without_places_is_of_the_last_tokens(isa: str) -> None:
    q, k, v = draw((2, 5, 4, 16)), draw((2, 2, 90, 16), seed=1), draw((2, 2, 90, 16), seed=2)
    got = native_call(ops.attention, isa, q, k, v, None)
    near(got, expected(ops.attention, got, q, k, v, None), "f32")


@every_isa
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(("heads", "shared", "size"), [(8, 2, 128), (3, 3, 64), (5, 1, 40), (6, 2, 20), (2, 1, 9)])
def test_a_query_has_the_same_bits_in_any_chunk_and_batch(
    isa: str, kind: str, heads: int, shared: int, size: int, threads: int
) -> None:
    tokens = 150
    q, k, v = (
        draw((1, tokens, heads, size)),
        draw((3, shared, 200, size), kind, 1),
        draw((3, shared, 200, size), kind, 2),
    )
    at = lambda start, n: np.array([(2, start, n)], np.int32)
    whole = native_call(ops.attention, isa, q, k, v, at(0, tokens))
    for start, n in ((0, 1), (1, 1), (63, 1), (64, 1), (149, 1), (0, 70), (70, 80), (31, 33), (60, 9)):
        got = native_call(ops.attention, isa, q[:, start : start + n], k, v, at(start, n))
        np.testing.assert_array_equal(got, whole[:, start : start + n])
    some = [3, 64, 127, 149]
    batched = native_call(ops.attention, isa, q[0, some][:, None], k, v, np.array([(2, t, 1) for t in some], np.int32))
    np.testing.assert_array_equal(batched[:, 0], whole[0, some])
    padded = native_call(ops.attention, isa, q[:, :100], k, v, at(0, 77))
    np.testing.assert_array_equal(padded[:, :77], whole[:, :77])
    assert not padded[:, 77:].any()


@every_isa
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_long_caches_are_shared_by_threads_without_changing_bits(isa: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v = draw((2, 1100, 4, 16)), draw((2, 2, 1100, 16), kind, 1), draw((2, 2, 1100, 16), kind, 2)
    whole = native_call(ops.attention, isa, q, k, v, None)
    near(whole[:, -20:], expected(ops.attention, whole[:, -20:], q[:, -20:], k, v, None), "f32", 16)
    before = tt.get_num_threads()
    for count in (1, 2, 3):
        tt.set_num_threads(count)
        for t in (510, 511, 512, 513, 1023, 1024, 1099, int(rng.integers(1100))):
            places = np.array([(0, t, 1), (1, t // 2, 1)], np.int32)
            got = native_call(ops.attention, isa, np.stack([q[0, t], q[1, t // 2]])[:, None], k, v, places)
            np.testing.assert_array_equal(got[:, 0], np.stack([whole[0, t], whole[1, t // 2]]))
        few = native_call(ops.attention, isa, q[:1, 500:512], k, v, np.array([(0, 500, 12)], np.int32))
        np.testing.assert_array_equal(few, whole[:1, 500:512])
    tt.set_num_threads(before)


@settings(max_examples=60)
@given(
    st.integers(1, 330), st.integers(1, 330), st.sampled_from([(8, 2), (5, 5), (4, 1)]), st.sampled_from([1, 2, 3, 7, 16, 24]),
    st.sampled_from([None, 1, 63, 64, 65, 200]), st.sampled_from(["f16", "bf16", "f32"]),
)  # fmt: skip
def test_a_part_of_a_prompt_has_the_bits_of_the_whole_on_any_number_of_threads(
    keys: int, tokens: int, heads: tuple[int, int], threads: int, window: int | None, kind: str
) -> None:
    """Parts of keys end at 64, 128, …; tasks of 8 and 16 tokens need not divide evenly among threads."""
    tokens, shape, isa = min(tokens, keys), (1, heads[1], keys, 16), BUILT_BASES[keys % len(BUILT_BASES)]
    q, k, v = draw((1, keys, heads[0], 16)), draw(shape, kind, 1), draw(shape, kind, 2)
    before = tt.get_num_threads()
    tt.set_num_threads(1)
    whole = native_call(ops.attention, isa, q, k, v, np.array([(0, 0, keys)], np.int32), window=window)
    tt.set_num_threads(threads)
    first = keys - tokens
    part = native_call(ops.attention, isa, q[:, first:], k, v, np.array([(0, first, tokens)], np.int32), window=window)
    tt.set_num_threads(before)
    np.testing.assert_array_equal(part, whole[:, first:])


@every_isa
@pytest.mark.parametrize("tokens", [17, 40, 130])
def test_a_prompt_has_the_same_bits_however_many_threads_divide_it(isa: str, tokens: int) -> None:
    q, k, v = draw((1, tokens, 8, 32)), draw((1, 2, 190, 32), "f16", 1), draw((1, 2, 190, 32), "f16", 2)
    places = np.array([(0, 60, tokens)], np.int32)
    before, found = tt.get_num_threads(), []
    for count in (1, 2, 5, 24):
        tt.set_num_threads(count)
        found.append(native_call(ops.attention, isa, q, k, v, places))
    tt.set_num_threads(before)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@every_isa
def test_what_a_query_does_not_see_cannot_harm_it(isa: str) -> None:
    q, k, v = draw((1, 20, 4, 32)), draw((1, 1, 128, 32), seed=1), draw((1, 1, 128, 32), seed=2)
    places = np.array([(0, 60, 20)], np.int32)
    want = native_call(ops.attention, isa, q, k, v, places)
    k[:, :, 71:], v[:, :, 71:] = np.nan, np.inf  # seen by queries 11 and later
    got = native_call(ops.attention, isa, q, k, v, places)
    np.testing.assert_array_equal(got[:, :11], want[:, :11])
    assert np.isnan(got[:, 11:]).all()


@every_isa
def test_scores_that_overflow_give_what_the_reference_gives(isa: str) -> None:
    q, k, v = np.ones((1, 1, 1, 8), np.float32), np.zeros((1, 1, 70, 8), np.float32), draw((1, 1, 70, 8))
    k[0, 0, :65] = -np.inf  # a whole block of nothing
    got = native_call(ops.attention, isa, q, k, v, None)
    near(got, expected(ops.attention, got, q, k, v, None), "f32")
    k[0, 0, 69] = np.inf
    assert np.isnan(native_call(ops.attention, isa, q, k, v, None)).all()


# ---- attention to a window


@every_isa
@few
@given(
    st.integers(0, 3), st.integers(0, 9), st.sampled_from([(1, 1), (4, 2), (6, 1), (9, 1)]), st.integers(1, 150),
    st.sampled_from([8, 33, 64]), floats, floats, st.booleans(), st.sampled_from([1, 2, 5, 63, 64, 65, 100, 2**31 - 1]),
)  # fmt: skip
def test_a_window_is_the_references(
    isa: str, batch: int, tokens: int, heads: tuple[int, int], capacity: int, size: int, kind: str, q_kind: str, gaps: bool,
    window: int,
) -> None:  # fmt: skip
    q, k, v, places = cached(batch, tokens, *heads, capacity, size, kind, q_kind, batch * 100 + tokens)
    xs = [strided(x) if gaps and x.size else x for x in (q, k, v)]
    got = native_call(ops.attention, isa, *xs, places, window=window)
    near(got, expected(ops.attention, got, q, k, v, places, window=window), q_kind)
    if window >= capacity:
        np.testing.assert_array_equal(got, native_call(ops.attention, isa, *xs, places))


@every_isa
@pytest.mark.parametrize("window", [1, 40, 64, 600])
def test_a_query_with_a_window_has_the_same_bits_in_any_chunk_and_batch(isa: str, window: int, threads: int) -> None:
    tokens = 1100
    q, k, v = draw((1, tokens, 4, 16)), draw((2, 2, tokens, 16), "f16", 1), draw((2, 2, tokens, 16), "f16", 2)
    at = lambda start, n: np.array([(1, start, n)], np.int32)
    whole = native_call(ops.attention, isa, q, k, v, at(0, tokens), window=window)
    for start, n in ((0, 1), (63, 2), (639, 1), (640, 1), (1099, 1), (500, 13), (1000, 100)):
        got = native_call(ops.attention, isa, q[:, start : start + n], k, v, at(start, n), window=window)
        np.testing.assert_array_equal(got, whole[:, start : start + n])
    some = [3, 64, 511, 1099]
    places = np.array([(1, t, 1) for t in some], np.int32)
    batched = native_call(ops.attention, isa, q[0, some][:, None], k, v, places, window=window)
    np.testing.assert_array_equal(batched[:, 0], whole[0, some])


@every_isa
def test_what_lies_before_a_window_cannot_harm_a_query(isa: str) -> None:
    q, k, v = draw((1, 20, 4, 32)), draw((1, 1, 128, 32), seed=1), draw((1, 1, 128, 32), seed=2)
    places = np.array([(0, 60, 20)], np.int32)
    want = native_call(ops.attention, isa, q, k, v, places, window=5)
    k[:, :, :66], v[:, :, :66] = np.nan, np.inf  # seen by queries 0 to 9
    got = native_call(ops.attention, isa, q, k, v, places, window=5)
    np.testing.assert_array_equal(got[:, 10:], want[:, 10:])
    assert np.isnan(got[:, :10]).all()


def test_a_window_is_a_number_of_keys() -> None:
    q, k = tt.zeros((1, 1, 1, 4)), tt.zeros((1, 1, 3, 4))
    for window in (0, -1, 2**31):
        with pytest.raises(ArgumentError, match="attention: window must be None or a number of keys, 1 or more"):
            ops.attention(q, k, k, window=window)


# ---- places that do not exist

BAD = [(3, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 5, 2), (0, 0, 4), (0, 0, -1)]


def given_faulty(place: tuple[int, int, int]) -> tuple[tt.Tensor, tt.Tensor]:
    return tt.tensor(np.array([(1, 0, 2), (2, 1, 1)], np.int32)), tt.tensor(np.array([(1, 0, 2), place], np.int32))


@pytest.mark.parametrize("place", BAD, ids=str)
def test_places_outside_the_cache_are_errors_and_nothing_is_written(place: tuple[int, int, int]) -> None:
    good, bad = given_faulty(place)
    data = draw((3, 2, 6, 8))
    cache, values = tt.tensor(data), tt.tensor(draw((2, 3, 2, 8), seed=1))
    said = rf"sequence 1 is at \(slot {place[0]}, start {place[1]}, count {place[2]}\), outside 3 slots of 6 tokens and the 3"
    ops.update_cache(cache, values, good)  # remembered
    for out in (None, cache):
        with pytest.raises(BoundsError, match="update_cache: " + said):
            ops.update_cache(cache, values, bad, out=out)
        np.testing.assert_array_equal(cache.numpy(), data)
    q = tt.tensor(draw((2, 3, 4, 8)))
    want = ops.attention(q, cache, cache, good).numpy()
    with pytest.raises(BoundsError, match="attention: " + said):
        ops.attention(q, cache, cache, bad)
    np.testing.assert_array_equal(ops.attention(q, cache, cache, good).numpy(), want)


@pytest.mark.parametrize("size", [8, 4096], ids=["small", "without the GIL"])
def test_a_program_stops_at_a_fault_and_runs_again_after_it(size: int) -> None:
    @tt.compile(donate=("cache", "other"))
    def step(cache: Any, other: Any, values: Any, places: Any) -> Any:
        ops.update_cache(cache, values, places, out=cache)
        other.add_(cache.sum())
        return cache.max()

    good, bad = given_faulty((0, 5, 2))
    data, values = draw((3, 2, 6, size)), tt.tensor(draw((2, 3, 2, size), seed=1))
    cache, other = tt.tensor(data), tt.zeros((3,))
    for _ in range(2):
        with pytest.raises(BoundsError, match="update_cache: sequence 1 "):
            step(cache, other, values, bad)
        np.testing.assert_array_equal(cache.numpy(), data)
        assert other.tolist() == [0, 0, 0]
    step(cache, other, values, good)
    assert other.tolist() == [cache.sum().item()] * 3
    np.testing.assert_array_equal(cache.numpy(), expected(ops.update_cache, data, data, values.numpy(), good.numpy()))


# ---- one program


def decode(k: Any, v: Any, x: Any, places: Any, cos: Any, sin: Any) -> Any:
    """A step of a transformer's attention: project, turn, remember, attend."""
    batch = x.shape[0]
    q = ops.rope(x[:, :64].reshape(batch, 1, 4, 16), cos, sin)
    new = ops.rope(x[:, 64:96].reshape(batch, 1, 2, 16), cos, sin)
    ops.update_cache(k, new, places, out=k)
    ops.update_cache(v, x[:, 96:].reshape(batch, 1, 2, 16), places, out=v)
    return ops.attention(q, k, v, places).reshape(batch, 64)


def decode_arguments(batch: int, kind: str) -> list[tt.Tensor]:
    angle = draw((batch, 1, 8), seed=5)
    places = np.array([(b, 3 * b, 1) for b in range(batch)], np.int32)
    arrays = (
        draw((4, 2, 40, 16), kind, 1), draw((4, 2, 40, 16), kind, 2), draw((batch, 128), seed=3), places,
        np.cos(angle), np.sin(angle),
    )  # fmt: skip
    return [tt.tensor(a) for a in arrays]


@pytest.mark.parametrize("kind", FLOATS)
def test_a_decode_step_is_one_program_that_writes_its_caches_where_they_lie(kind: str) -> None:
    eager, compiled = decode_arguments(3, kind), decode_arguments(3, kind)
    want = decode(*eager)
    step = tt.compile(decode, donate=("k", "v"))
    addresses = [compiled[0].address, compiled[1].address]
    program = step.program(*compiled)
    assert [c.op.name for c in program.steps.calls].count("copy") == 0, program.explain()
    for c in program.steps.calls:
        if c.op is ops.update_cache:
            assert c.outputs[0].memory.where == "argument"
            assert c.outputs[0].memory is c.inputs[0].memory
    np.testing.assert_array_equal(step(*compiled).numpy(), want.numpy())
    assert [compiled[0].address, compiled[1].address] == addresses
    for mine, theirs in zip(compiled[:2], eager[:2], strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_two_writes_to_a_donated_cache_are_both_in_place() -> None:
    def twice(cache: Any, values: Any, first: Any, second: Any) -> Any:
        ops.update_cache(cache, values, first, out=cache)
        ops.update_cache(cache, values * 2.0, second, out=cache)
        return cache.sum()

    data, values = draw((2, 1, 4, 8)), draw((1, 2, 1, 8), seed=1)
    at = [np.array([p], np.int32) for p in ((0, 0, 2), (1, 1, 2))]
    cache = tt.tensor(data)
    compiled = tt.compile(twice, donate="cache")
    args = (tt.tensor(values), *map(tt.tensor, at))
    assert [c.op.name for c in compiled.program(cache, *args).steps.calls].count("copy") == 0
    compiled(cache, *args)
    once = expected(ops.update_cache, data, data, values, at[0])
    np.testing.assert_array_equal(cache.numpy(), expected(ops.update_cache, data, once, values * 2, at[1]))


def test_the_fuser_leaves_rope_alone() -> None:
    x, angle = draw((1, 3, 2, 8)), draw((3, 4), seed=1)
    fn = lambda x, c, s: ops.rope(x * 2.0, c, s) + 1.0
    args = [tt.tensor(a) for a in (x, np.cos(angle), np.sin(angle))]
    np.testing.assert_array_equal(tt.compile(fn)(*args).numpy(), fn(*args).numpy())
