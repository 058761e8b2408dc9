"""torch as a device: every row agrees with the reference, integer sums are exact, and memory is shared only where it is said."""

from __future__ import annotations

import ctypes
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium import backends, buffer, dtype as dt, ops
from tritium.backends import Absent, probes
from tritium.backends.reference import attention, quantized
from tritium.backends.values import missing
from tritium.buffer import native
from tritium.errors import BoundsError, DeviceError, DTypeError, ExchangeError, QuantError, ViewError
from tritium.fragment import Fragment, Step
from tritium.op import OPS, Kind, Op, Spec
from tritium.testing import (
    LAYOUTS,
    _check_case,
    arrays,
    as_laid,
    assert_close,
    call,
    cases,
    check_backend,
    expected,
    laid,
    values,
)

torch = pytest.importorskip("torch", reason="the torch backend needs PyTorch: pip install torch")

ROWS = [row for row in OPS.values() if row.kind is Kind.MAP and row not in (ops.quantize, ops.dequantize, ops.item)]


def there(x: Any) -> tt.Tensor:
    return (x if isinstance(x, tt.Tensor) else tt.tensor(x)).to("torch")


def back(x: tt.Tensor) -> np.ndarray[Any, Any]:
    return x.to("cpu").numpy()


def several(found: Any) -> tuple[tt.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def where(x: tt.Tensor) -> int:
    """Which block of torch's memory a tensor is in."""
    return int(x.storage.value.untyped_storage().data_ptr())


# ---- the table


def test_every_sample_of_the_table_agrees_and_none_is_refused() -> None:
    assert check_backend("torch") == len(cases()) + 4


@pytest.mark.parametrize("turn", range(4))
def test_rows_read_views_and_repeat_themselves(turn: int) -> None:
    for i, (op, sample) in enumerate(cases()):
        how = LAYOUTS[1 + (i + turn) % 4]
        if (
            not sample.inputs
            or op.kind is Kind.VIEW
            or i % 4 != turn
            or (how == "broadcast" and op is ops.searchsorted)
        ):
            continue
        data = [as_laid(x, how) for x in arrays(op, sample)]
        attrs = op.complete(dict(sample.attrs))
        given = [None if x is None else laid(x, how, "torch") for x in data]
        want = expected(op, data, dict(sample.attrs))
        for _ in range(2):
            got = call(op, given, dict(sample.attrs))
            host = tuple(values(g) for g in got) if isinstance(got, tuple) else values(got)
            assert_close(op, host, want, data, attrs)


def test_results_are_memory_of_their_own_and_never_for_autograd() -> None:
    for op, sample in cases():
        if op.kind is Kind.VIEW:
            continue
        given = [None if x is None else there(laid(x, "contiguous")) for x in arrays(op, sample)]
        if op.kind is Kind.SOURCE:
            made = [*several(call(op, [], dict(sample.attrs), device="torch")) * 1]
            made += several(call(op, [], dict(sample.attrs), device="torch"))
        else:
            made = [*several(call(op, given, dict(sample.attrs))), *several(call(op, given, dict(sample.attrs)))]
        blocks = [where(x) for x in (*given, *made) if x is not None and x.size]
        assert len(set(blocks)) == len(blocks), op.name
        assert not any(x.storage.value.requires_grad for x in made if x.size), op.name


SPECIAL = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, -2.5, 3, 1e-3, -7.25, np.inf, -np.inf, np.nan, 100.0, -100.0, 1e-30]


def special(t: dt.DType) -> np.ndarray[Any, Any]:
    """The numbers at which functions break."""
    if t is dt.bool_:
        return np.array([True, False])
    if t.is_float:
        info = dt.finfo(t)
        with np.errstate(over="ignore"):
            return np.array([*SPECIAL, info.max, info.min, info.smallest_normal, info.eps]).astype(t.numpy)
    limits = dt.iinfo(t)
    return np.array([0, 1, 2, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 1, *([-1, -7] * (limits.min < 0))],
                    t.numpy)  # fmt: skip


@pytest.mark.parametrize("t", dt.ALL, ids=str)
def test_maps_agree_at_the_numbers_where_functions_break(t: dt.DType) -> None:
    data = special(t)
    for op in ROWS:
        for xs, attrs in _calls(op, data):
            specs = tuple(Spec(x.shape, dt.dtype(x.dtype)) for x in xs)
            try:
                op.decide(specs, op.complete(attrs))
            except DTypeError:
                continue  # not a row of this dtype
            got = call(op, [there(x) for x in xs], attrs)
            host = tuple(values(g) for g in got) if isinstance(got, tuple) else values(got)
            with np.errstate(all="ignore"):
                assert_close(op, host, expected(op, xs, attrs), xs, op.complete(attrs))


def _calls(op: Op, data: np.ndarray[Any, Any]) -> list[tuple[list[Any], dict[str, Any]]]:
    if op is ops.astype:
        return [([data], {"dtype": u}) for u in dt.ALL]
    if op is ops.where:
        return [([np.arange(data.size) % 2 == 0, data, data[::-1].copy()], {})]
    if op in (ops.maximum, ops.minimum, ops.clip):  # which of two zeros is larger is not said
        data = data[~((data == 0) & np.signbit(data.astype(np.float64)))]
    if op is ops.clip:
        return [([data[:, None], data[None, :], data[1]], {})]
    if op.arity == 1:
        return [([data], {})]
    other = data[data >= 0] if op is ops.pow and dt.dtype(data.dtype).is_integer else data
    return [([data[:, None], other[None, :]], {})]


@pytest.mark.parametrize("t", [dt.f32, dt.f64, dt.f16, dt.bf16, dt.i8, dt.u8], ids=str)
def test_maps_agree_on_many_elements(t: dt.DType) -> None:
    """torch has other code for long arrays, some of it less exact."""
    rng = np.random.default_rng(1)
    for op in ROWS:
        if op.arity > 2 or op is ops.astype:
            continue
        draw = op.samples[0].inputs[0]
        drawn = [rng.uniform(draw.low, draw.high, 3001) for _ in range(op.arity)]
        if not t.is_float:
            limits = dt.iinfo(t)
            drawn = [np.clip(np.trunc(x * 40), limits.min, limits.max) for x in drawn]
        xs = [x.astype(t.numpy) for x in drawn]
        if op is ops.pow and not t.is_float:
            xs[1] = np.abs(xs[1]) % 7
        try:
            got = call(op, [there(x) for x in xs], {})
        except DTypeError:
            continue
        host = tuple(values(g) for g in got) if isinstance(got, tuple) else values(got)
        with np.errstate(all="ignore"):
            assert_close(op, host, expected(op, xs, {}), xs, dict(op.defaults))


@pytest.mark.parametrize("t", [dt.f32, dt.f16, dt.bf16], ids=str)
@pytest.mark.parametrize("middle", [0, 100])
def test_reductions_of_long_rows_agree(t: dt.DType, middle: int) -> None:
    x = (np.random.default_rng(2).normal(size=(5, 4003)) + middle).astype(t.numpy)
    for op in (
        ops.sum,
        ops.mean,
        ops.max,
        ops.var,
        ops.std,
        ops.argmax,
        ops.cumulative_sum,
        ops.softmax,
        ops.log_softmax,
    ):
        for axis in (0, 1):
            got = values(op(there(x), axis=axis))
            assert_close(op, got, expected(op, [x], {"axis": axis}), [x], op.defaults | {"axis": axis})
    for op, more in ((ops.layer_norm, [x[0], x[1]]), (ops.rms_norm, [x[0]])):
        got = values(op(there(x), *(there(m) for m in more)))
        assert_close(op, got, expected(op, [x, *more], {}), [x, *more], dict(op.defaults))


@pytest.mark.parametrize("t", [dt.u16, dt.u32, dt.u64], ids=str)
def test_unsigned_integers_wrap_order_and_move_as_numpy_does(t: dt.DType) -> None:
    data = special(t)
    x, top = there(data), dt.iinfo(t).max
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(back(x + x), data + data)
        np.testing.assert_array_equal(back(x * x), data * data)
        np.testing.assert_array_equal(back(ops.sum(x)), data.sum(dtype=np.uint64))
        np.testing.assert_array_equal(back(ops.cumulative_sum(x, dtype=t)), np.cumsum(data, dtype=data.dtype))
    np.testing.assert_array_equal(back(ops.sort(x, descending=True)), np.sort(data)[::-1])
    np.testing.assert_array_equal(back(ops.max(x)), top)
    np.testing.assert_array_equal(back(ops.argmax(x)), data.argmax())
    np.testing.assert_array_equal(back(x[there(np.array([5, -1]))]), data[[5, -1]])
    np.testing.assert_array_equal(back(ops.take(there(np.arange(200.0)), there(data[:5]))), data[:5].astype(np.float64))
    np.testing.assert_array_equal(back(tt.full((2,), top, dtype=t, device="torch")), np.full(2, top, data.dtype))
    np.testing.assert_array_equal(back(tt.arange(5, dtype=t, device="torch")), np.arange(5, dtype=data.dtype))
    np.testing.assert_array_equal(back(ops.concat([x, x])), np.concatenate([data, data]))
    np.testing.assert_array_equal(back(ops.masked(x, x > 2)), data[data > 2])
    np.testing.assert_array_equal(back(ops.nonzero(x)[0]), np.nonzero(data)[0])
    x[1:3] = 9
    assert back(x)[1:3].tolist() == [9, 9]


def test_a_fused_call_of_unsigned_integers_says_why_it_does_not_run() -> None:
    spec = Spec((3,), dt.u32)
    body = Fragment((spec,), (Step(ops.add, (0, 0), (), spec),), (1,))
    with pytest.raises(DeviceError, match="one row at a time"):
        ops.fused([there(np.ones(3, np.uint32))], body=body)


def test_searching_and_sorting_know_nan() -> None:
    sorted_, given = np.array([-1.0, 0.0, 2.0, np.nan]), np.array([np.nan, -3.0, 2.0, np.inf])
    for side in ("left", "right"):
        found = back(ops.searchsorted(there(sorted_), there(given), side=side))
        np.testing.assert_array_equal(found, np.searchsorted(sorted_, given, side=side))
    x = np.array([1.0, np.nan, -0.0, 0.0, -2.0])
    np.testing.assert_array_equal(back(ops.argsort(there(x))), np.argsort(x, kind="stable"))


def test_no_axes_reduce_each_element_alone() -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(back(ops.sum(there(x), axis=())), x)
    np.testing.assert_array_equal(back(ops.prod_(there(x), axis=())), x)
    np.testing.assert_array_equal(back(ops.max(there(x), axis=())), x)
    np.testing.assert_array_equal(back(ops.var(there(x), axis=())), np.zeros_like(x))


# ---- exact integer products

EXTREMES = st.sampled_from([-128, -127, -1, 0, 1, 126, 127])


@st.composite
def products(draw: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dt.DType]:
    t = draw(st.sampled_from((dt.i8, *dt.PACKED)))
    lead = draw(st.lists(st.integers(0, 4), max_size=3))
    k, n = draw(st.integers(0, 300)), draw(st.integers(0, 100))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    low, high = t.values if t.is_packed else (-128, 127)
    q = rng.integers(-128, 128, (*lead, k)).astype(np.int8)
    w = rng.integers(low, high + 1, (n, k)).astype(np.int8)
    if draw(st.booleans()):
        q[...] = draw(EXTREMES)
    if draw(st.booleans()):
        w[...] = np.clip(draw(EXTREMES), low, high)
    return q, w, t


def _weights(w: np.ndarray[Any, Any], t: dt.DType) -> tt.Tensor:
    made = there(w)
    return made if t is dt.i8 else ops.repack(made, t)


@given(products())
@settings(max_examples=80)
def test_integer_sums_are_exact(drawn: Any) -> None:
    q, w, t = drawn
    got = ops.integer_matmul(there(q), _weights(w, t))
    assert got.dtype is dt.i32
    np.testing.assert_array_equal(back(got), np.matmul(q.astype(np.int64), w.T.astype(np.int64)))


@given(products(), st.integers(0, 70), st.sampled_from((dt.f32, dt.f16, dt.bf16)), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_quantised_products_have_the_bits_of_the_reference(
    drawn: Any, group: int, t: dt.DType, by_group: bool, half: bool
) -> None:
    q, w, packing = drawn
    k, n = w.shape[1], w.shape[0]
    if packing is dt.i8_r16 or not k:
        group = 0
    rng = np.random.default_rng(k)
    x = (q * rng.uniform(0.1, 3, q.shape)).astype(t.numpy)
    scale = rng.uniform(0.5, 2, (n, -(-k // group)) if group else (n,)).astype(np.float16 if half else np.float32)
    bias = rng.uniform(-2, 2, n).astype(np.float32)
    how = {"group": group, "activations": "group" if group and by_group else "token"}
    got = ops.quantized_matmul(there(x), _weights(w, packing), there(scale), there(bias), **how)
    want = np.empty((*q.shape[:-1], n), t.numpy)
    with np.errstate(over="ignore"):
        quantized.KERNELS[ops.quantized_matmul](x, w, scale, bias, **how, out=want)
    np.testing.assert_array_equal(back(got).view(f"u{t.nbytes}"), want.view(f"u{t.nbytes}"))


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("k", [1, 2, 40])
@pytest.mark.parametrize("n", [1, 3])
def test_integer_sums_of_views_are_exact(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(m * k * n)
    q, w = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (n, k)).astype(np.int8)
    for how in LAYOUTS:
        a, b = as_laid(q, how), as_laid(w, how)
        assert a is not None
        assert b is not None
        got = ops.integer_matmul(laid(a, how, "torch"), laid(b, how, "torch"))
        np.testing.assert_array_equal(back(got), a.astype(np.int64) @ b.T.astype(np.int64), err_msg=how)


@pytest.mark.parametrize("most", [1, 8, 128])
def test_products_by_floats_split_what_f32_cannot_hold(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.backends.torch import products as torch_products

    monkeypatch.setattr(torch_products, "int8_is_exact", lambda: False)
    t = {1: dt.tern2, 8: dt.i4, 128: dt.i8}[most]
    k = 2**24 // (128 * most) + 77
    q, w = np.full((2, k), -128, np.int8), np.full((3, k), -most, np.int8)
    q[1], w[1] = 127, most - 1 if most > 1 else 1
    got = back(ops.integer_matmul(there(q), _weights(w, t)))
    np.testing.assert_array_equal(got, np.matmul(q.astype(np.int64), w.T.astype(np.int64)))


def test_weights_written_later_are_unpacked_anew() -> None:
    w = np.ones((8, 12), np.int8)
    q = there(np.ones((1, 12), np.int8))
    kept = _weights(w, dt.tern2)
    assert back(ops.integer_matmul(q, kept)).tolist() == [[12] * 8]
    ops.copy(_weights(-w[:3], dt.tern2), out=kept[:3])
    assert back(ops.integer_matmul(q, kept)).tolist() == [[-12] * 3 + [12] * 5]
    ops.copy(_weights(0 * w, dt.tern2), out=kept)
    assert back(ops.integer_matmul(q, kept)).tolist() == [[0] * 8]
    ctypes.memset(kept.data_ptr, 0b10101010, kept.nbytes)  # by someone whom nobody hears
    assert back(ops.integer_matmul(q, kept)).tolist() == [[12] * 8]
    ctypes.memset(kept.data_ptr, 0, kept.nbytes)
    assert back(ops.integer_matmul(q, kept)).tolist() == [[-12] * 8]


def test_products_stay_exact_and_wide_under_autocast() -> None:
    rng = np.random.default_rng(0)
    q, w = rng.integers(-128, 128, (5, 999)).astype(np.int8), rng.integers(-1, 2, (7, 999)).astype(np.int8)
    x, y = rng.normal(size=(4, 30)).astype(np.float32), rng.normal(size=(30, 6)).astype(np.float32)
    plain = ops.matmul(there(x), there(y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ops.integer_matmul(there(q), _weights(w, dt.tern2))
        product = ops.matmul(there(x), there(y))
    np.testing.assert_array_equal(back(got), q.astype(np.int64) @ w.T.astype(np.int64))
    np.testing.assert_array_equal(back(product), back(plain))


# ---- memory: views, clones, writes


def test_writes_through_views_are_seen_by_their_base_and_not_by_clones() -> None:
    want = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = there(want)
    before = x.clone()
    x[1:3, ::2] = -1
    x.T[5] = 7
    ops.flip(x)[0, 0] = 99
    want2 = want.copy()
    want2[1:3, ::2] = -1
    want2[:, 5] = 7
    want2[-1, -1] = 99
    np.testing.assert_array_equal(back(x), want2)
    np.testing.assert_array_equal(back(before), want)


def test_a_part_is_written_in_place_while_nobody_shares_it() -> None:
    x = there(np.zeros((3, 4)))
    block = where(x)
    x[1] = 5
    assert where(x) == block
    other = x.clone()
    assert x.sharers == 2
    assert where(other) == block
    x[2] = 6
    assert x.sharers == 1
    assert where(x) != where(other)
    assert back(other)[2].tolist() == [0.0] * 4


KEYS = (np.s_[::-1], np.s_[1:], np.s_[:, ::2], np.s_[:, ::-2], np.s_[...])
DEEDS = st.tuples(
    st.sampled_from(["look", "turn", "fill", "add", "into", "clone", "hand", "copy"]),
    st.integers(0, 99),
    st.integers(0, 4),
)


@given(st.lists(DEEDS, max_size=14))
@settings(max_examples=150)
def test_views_clones_and_writes_in_any_order_are_as_numpys(deeds: list[tuple[str, int, int]]) -> None:
    first = np.arange(12, dtype=np.float32).reshape(3, 4)
    pairs: list[tuple[tt.Tensor, Any]] = [(there(first), first.copy())]
    for deed, which, how in deeds:
        x, a = pairs[which % len(pairs)]
        match deed:
            case "look":
                pairs.append((x[KEYS[how]], a[KEYS[how]]))
            case "turn":
                pairs.append((x.T, a.T))
            case "fill":
                x[KEYS[how]] = which
                a[KEYS[how]] = which
            case "add":
                x += how
                a += how
            case "into":
                ops.multiply(x, x, out=x)
                a *= a
                np.copyto(a, a % 1000)
                ops.remainder(x, 1000.0, out=x)
            case "clone":
                pairs.append((x.clone(), a.copy()))
            case "copy":
                ops.copy(ops.flip(x), out=x)
                a[...] = np.flip(a).copy()
            case "hand" if min(x.strides) >= 0 and x.size:
                x.torch()[KEYS[2 if how % 2 else 4]] = -how
                a[KEYS[2 if how % 2 else 4]] = -how
    for x, a in pairs:
        np.testing.assert_array_equal(back(x), a)


def test_reversed_parts_are_read_and_written() -> None:
    want = np.arange(10.0)
    x = there(want)
    x[8:2:-3] = there(np.array([1.0, 2.0]))
    want[8:2:-3] = [1.0, 2.0]
    np.testing.assert_array_equal(back(x), want)
    np.testing.assert_array_equal(back(x[::-2] + 1), want[::-2] + 1)


def test_out_and_in_place_calls_write_where_they_are_told() -> None:
    x, y = there(np.ones((2, 3))), there(np.zeros((2, 3)))
    seen = y.T
    assert ops.add(x, x, out=y) is y
    assert back(seen).tolist() == [[2.0, 2.0]] * 3
    y += x
    y[0] *= 10
    assert back(y).tolist() == [[30.0] * 3, [3.0] * 3]
    ops.add(y[0], y[1], out=y[1])
    assert back(y)[1].tolist() == [33.0] * 3


def test_memory_of_the_user_is_compared_where_no_address_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.arange(8.0)
    first, last, other = (tt.device("torch").backend.adopt(t) for t in (whole[:5], whole[3:], torch.ones(5)))
    monkeypatch.setattr(tt.device("torch").backend.space, "on_host", False)
    assert buffer.overlap(first, last) == 2
    assert buffer.overlap(first, first) == 1
    assert buffer.overlap(first, other) == 0


def test_overlapping_copies_read_before_they_write() -> None:
    x = there(np.arange(8))
    x[1:] = x[:-1]
    assert back(x).tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("shared", [False, True])
def test_a_cache_is_updated_where_it_lies(shared: bool) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(3, 2, 6, 4)).astype(np.float16)
    new, places = rng.normal(size=(2, 3, 2, 4)).astype(np.float32), np.array([[2, 1, 3], [0, 5, 1]], np.int32)
    cache = there(data)
    block, before = where(cache), cache.clone() if shared else None
    want = np.empty_like(data)
    attention.KERNELS[ops.update_cache](data, new, places, out=want)
    for _ in range(2):
        ops.update_cache(cache, there(new), there(places), out=cache)
        np.testing.assert_array_equal(back(cache), want)
    assert (where(cache) == block) is not shared
    if before is not None:
        np.testing.assert_array_equal(back(before), data)
    with pytest.raises(BoundsError, match="outside 3 slots of 6 tokens"):
        ops.update_cache(cache, there(new), there(np.array([[0, 0, 3], [0, 5, 2]], np.int32)), out=cache)
    np.testing.assert_array_equal(back(cache), want)


def test_attention_does_not_read_what_is_not_filled() -> None:
    k = np.full((2, 1, 8, 4), np.nan, np.float32)
    k[1, :, :3] = 1
    q = np.ones((1, 1, 2, 4), np.float32)
    got = back(ops.attention(there(q), there(k), there(k), there(np.array([[1, 2, 1]], np.int32))))
    np.testing.assert_array_equal(got, np.ones_like(q))


def test_empty_tensors_pass_through() -> None:
    x = tt.empty((0, 3), device="torch")
    assert (x + 1).shape == (0, 3)
    assert ops.sum(x).item() == 0.0
    assert ops.matmul(x, tt.ones((3, 2), device="torch")).shape == (0, 2)
    x[:, 1] = 5
    assert back(x).size == 0


def test_memory_given_to_numpy_is_a_copy() -> None:
    x = there(np.zeros(3))
    seen = x.numpy()
    x[0] = 5
    assert seen[0] == 0.0


def test_a_pickled_tensor_comes_back_on_the_device() -> None:
    x = there(np.arange(6.0).reshape(2, 3))
    again = pickle.loads(pickle.dumps(x))
    assert again.device == "torch"
    np.testing.assert_array_equal(back(again), back(x))


# ---- torch's own tensors


def test_a_torch_tensor_comes_in_without_a_copy_and_both_see_writes() -> None:
    t = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    x = tt.from_torch(t, device="torch")
    x[0, 0] = 50
    assert t[0, 0] == 50
    t[1, 2] = -7
    assert back(x)[1, 2] == -7
    ops.add(x, x, out=x)
    assert t[0, 0] == 100
    assert x.data_ptr == t.data_ptr()
    later = tt.from_torch(t[1:], device="torch")
    later[0, 1:] = 8
    assert t[1].tolist() == [6, 8, 8]
    np.testing.assert_array_equal(back(later.T), t[1:].T.numpy())


def test_strided_torch_tensors_keep_their_strides() -> None:
    t = torch.arange(24, dtype=torch.float32).reshape(4, 6)[1:, ::2].T
    x = tt.from_torch(t, device="torch")
    assert x.strides == tuple(t.stride())
    np.testing.assert_array_equal(back(x), t.numpy())
    x[1] = -1
    assert t[1].tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(back(x + 1), t.numpy() + 1)
    expanded = tt.from_torch(torch.ones(3, 1).expand(3, 4), device="torch")
    np.testing.assert_array_equal(back(expanded), np.ones((3, 4)))


def test_clones_of_a_users_tensor_are_copies() -> None:
    t = torch.zeros(3)
    copy = tt.from_torch(t, device="torch").clone()
    t[0] = 1
    assert back(copy)[0] == 0


def test_a_tensor_goes_out_as_torch_on_the_same_memory() -> None:
    x = there(np.arange(6, dtype=np.float32).reshape(2, 3))
    shared = x.clone()
    seen = x.T[1:].torch()
    seen[0, 0] = 40
    assert back(x)[0, 1] == 40
    assert back(shared)[0, 1] == 1
    x[1, 1] = 41
    assert seen[0, 1] == 41
    ops.multiply(x, x, out=x)
    assert seen[0, 1] == 41 * 41
    with pytest.raises(ViewError, match="reversed"):
        ops.flip(x).torch()


def test_gradients_stay_with_torch() -> None:
    t = torch.ones(3, requires_grad=True)
    x = tt.from_torch(t, device="torch")
    y = x * 2
    assert not y.torch().requires_grad
    leaf = y.torch().requires_grad_()
    (leaf * leaf).sum().backward()
    assert leaf.grad.tolist() == [4.0] * 3
    assert not (y + y).storage.value.requires_grad


def test_memory_made_in_inference_mode_can_be_written_and_given_out_later() -> None:
    with torch.inference_mode():
        x = there(np.zeros(4, np.float32)) + 1
    x[1] = 5
    given = x.torch()
    given.requires_grad_()
    assert (given * given).sum().item() == 28
    assert back(x).tolist() == [1, 5, 1, 1]


def test_torchs_defaults_change_nothing() -> None:
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        x = there(np.array([1, 2], np.int64))
        assert (x / 3).dtype is dt.f32
        assert tt.zeros((2,), device="torch").storage.value.dtype is torch.float32
        assert ops.mean(x).dtype is dt.f32
    finally:
        torch.set_default_dtype(kind)


def test_tensors_that_are_not_plain_numbers_are_refused() -> None:
    for t in (torch.zeros(2, dtype=torch.complex32), torch.eye(2).to_sparse()):
        with pytest.raises(DTypeError):
            tt.from_torch(t, device="torch")
    with pytest.raises(DTypeError, match="packed"):
        _weights(np.ones((2, 4), np.int8), dt.tern2).torch()


# ---- complex numbers


COMPLEX_CALLS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: [x + y, x - y, x * y, x / y, x**y, -x, abs(x), x == y, x != y, x * 2j + 1, 1 / x],
    lambda x, y: [
        f(x) for f in (tt.exp, tt.log, tt.sqrt, tt.sin, tt.tanh, tt.acos, tt.log1p, tt.sign, tt.square, tt.positive)
    ],
    lambda x, y: [x.real, x.imag, x.conj(), abs(x).real, abs(x).imag, abs(x).conj(), tt.isfinite(x), tt.logical_not(x)],
    lambda x, y: [x.sum(axis=0), x.mean(), x.all(), x.any(axis=1), tt.count_nonzero(x), tt.cumulative_sum(x, axis=1)],
    lambda x, y: [
        x.T @ y,
        tt.where(abs(x) > 1, x, y),
        tt.concat([x, y]),
        tt.stack([x, y]),
        tt.roll(x, 1),
        x[::-1, ::2] + 1,
    ],
    lambda x, y: [x.to("c128"), x.to("bool"), abs(x).to("c64"), tt.full((2,), 1j, dtype="c64", device=x.device)],
    lambda x, y: [tt.linalg.inv(x.T @ y), tt.fft.fft(x), tt.fft.irfft(x), tt.unique_values(abs(x))],
    lambda x, y: [tt.compile(lambda p, q: (p * q + 1j) * p + tt.abs(q))(x, y)],
]


@pytest.mark.parametrize("calls", COMPLEX_CALLS)
def test_complex_numbers_agree_with_the_cpu(calls: Callable[[Any, Any], Any]) -> None:
    rng = np.random.default_rng(6)
    x, y = ((rng.normal(size=(4, 4)) + 1j * rng.normal(size=(4, 4))).astype(np.complex64) for _ in range(2))
    for got, want in zip(calls(there(x), there(y)), calls(tt.asarray(x), tt.asarray(y)), strict=True):
        assert got.spec == want.spec
        assert got.device == "torch"
        np.testing.assert_allclose(back(got), want.numpy(), rtol=2e-4, atol=1e-5)


def test_complex_tensors_share_memory_with_torch() -> None:
    t = torch.tensor([1 + 2j, 3.0])
    for x in (tt.from_torch(t), tt.from_torch(t, device="torch")):
        x[0] = 9j
        assert t[0].item() == 9j
        x[0] = 1 + 2j
        assert x.torch().tolist() == [1 + 2j, 3]
    with pytest.raises(ExchangeError, match="resolve_conj"):
        tt.from_torch(t.conj())
    with pytest.raises(DeviceError, match=r"round has no kernel on torch for c64\[2\].*cpu"):
        tt.round(tt.from_torch(t, device="torch"))


def test_a_device_without_complex_numbers_refuses_them(behind: str) -> None:
    for make in (
        lambda: tt.tensor([1j]).to(behind),
        lambda: tt.zeros((2,), dtype="c64", device=behind),
        lambda: tt.ones((2,), device=behind) * 1j,
    ):
        with pytest.raises(DeviceError, match=r"behind stores no complex numbers, given c64.*real\(x\) and imag\(x\)"):
            make()


# ---- errors that depend on values


def test_illegal_values_raise_at_once_on_the_cpu() -> None:
    x = there(np.arange(5.0))
    for bad in (5, -6):
        with pytest.raises(BoundsError, match="outside an axis of size 5"):
            ops.take(x, there(np.array([0, bad])))
    with pytest.raises(BoundsError, match="negative power"):
        ops.pow(there(np.array([2, 3])), there(np.array([1, -1])))
    with pytest.raises(QuantError, match="finite"):
        ops.quantize_int8(there(np.array([[1.0, np.nan]], np.float32)))
    with pytest.raises(QuantError, match="holds -1 to 1"):
        ops.repack(there(np.array([[5]], np.int8)), dt.tern2)


def test_integers_divided_by_zero_or_minus_one_neither_trap_nor_raise() -> None:
    for t in (np.int8, np.int32, np.int64):
        low = np.iinfo(t).min
        x, y = np.array([low, low, 7, -7], t), np.array([-1, 0, 0, 2], t)
        assert back(ops.floor_divide(there(x), there(y))).tolist() == [low, 0, 0, -4]
        assert back(ops.remainder(there(x), there(y))).tolist() == [0, 0, 0, 1]


# ---- a device that runs behind and has no f64, as mps: played by the CPU


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from tritium.backends.torch import device as torch_device, space as torch_space

    monkeypatch.setattr(torch_space, "traits", lambda device: (device.index is None, device.index is None))
    tt.register("behind", lambda device: torch_device.Torch(device, "cpu:0"))
    yield "behind"
    tt.unregister("behind")


def test_without_f64_every_other_sample_agrees(behind: str) -> None:
    device, agreed = backends.device(behind), 0
    for op, sample in cases():
        if op in (ops.gelu, ops.erf) and sample.inputs[0].spec.dtype is dt.f32:
            continue  # torch's f32 is 20 ulps off on some CPUs; how far mps is, nobody has measured here
        needs_f64 = (
            any(d is not None and d.spec.dtype is dt.f64 for d in sample.inputs)
            or dt.f64 in dict(sample.attrs).values()
        )
        runs = not needs_f64 and op not in missing.ON_HOST | missing.HEAD
        assert _check_case(op, sample, device) == runs, (op.name, sample)
        agreed += 1
    assert agreed > 1000


def test_where_the_device_runs_behind_a_check_waits_for_it(behind: str) -> None:
    x = tt.tensor(np.arange(5.0, dtype=np.float32)).to(behind)
    with pytest.raises(BoundsError, match="outside an axis of size 5"):
        ops.take(x, tt.tensor(np.array([0, 9])).to(behind))
    with pytest.raises(DeviceError, match="no address"):
        _ = x.data_ptr
    np.testing.assert_array_equal(back(pickle.loads(pickle.dumps(x, protocol=5))), back(x))


def test_what_has_not_been_run_on_a_mac_says_so(behind: str) -> None:
    assert backends.device(behind).backend.describe()["tested"] == "not yet run on a Mac"


def test_the_allocator_of_mps_is_asked_through_torch(behind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"current_allocated_memory": 30, "driver_allocated_memory": 100, "recommended_max_memory": 400}
    for name, value in figures.items():
        monkeypatch.setattr(torch.mps, name, lambda value=value: value)
    asked: list[float] = []
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", asked.append)
    monkeypatch.setattr(
        torch.mps, "empty_cache", lambda: monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 40)
    )
    backend = backends.device(behind).backend
    monkeypatch.setattr(backend, "place", torch.device("mps"))
    assert tt.memory.device_stats(behind) == tt.memory.DeviceStats(active_bytes=30, cache_bytes=70, limit_bytes=400)
    assert backend.memory() == (100, 400)
    assert backend.trim() == 60
    backend.limit(memory_bytes=100)
    assert asked == [0.25]
    with pytest.raises(DeviceError, match="not its cache"):
        backend.limit(cache_bytes=1)


# ---- the device itself


def test_the_device_tells_what_it_is() -> None:
    device = backends.device("torch")
    assert device is backends.device("torch:cpu")
    facts = device.backend.describe()
    assert facts["torch"] == torch.__version__
    assert facts["unit"] == "cpu"
    assert int(facts["threads"]) > 0


def test_torchs_cpu_has_no_allocator_to_ask() -> None:
    backend = backends.device("torch").backend
    assert backend.memory_stats() is None
    assert backend.memory() is None
    assert backend.trim() == 0
    with pytest.raises(DeviceError, match="no limits"):
        backend.limit(memory_bytes=1 << 30)


def test_work_can_be_waited_for_and_timed() -> None:
    backend = backends.device("torch").backend
    stop = backend.timer()
    x = there(np.ones(10)) + 1
    backend.settle([x])
    assert stop() > 0


def test_absence_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.torch_units() == ("cpu",)
    if not torch.backends.mps.is_available():
        found = probes.mps_units()
        assert isinstance(found, Absent)
        assert "mps" in found.why
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(probes.platform, "system", lambda: "Darwin")
    for ask in (probes.torch_units, probes.mps_units):
        absent = ask()
        assert isinstance(absent, Absent)
        assert absent.why == "PyTorch is not installed"
        assert absent.remedy == "pip install torch"


def test_a_damaged_torch_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise OSError("libtorch.so: wrong ELF class")

    monkeypatch.setattr(probes.importlib, "import_module", fails)
    found = probes.torch_units()
    assert isinstance(found, Absent)
    assert "wrong ELF class" in found.why


@pytest.mark.parametrize(
    ("system", "built", "why"),
    [("Linux", False, "not macOS"), ("Darwin", False, "built without mps"), ("Darwin", True, "macOS 14")],
)
def test_why_there_is_no_mps(system: str, built: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
    monkeypatch.setattr(probes.platform, "system", lambda: system)
    found = probes.mps_units()
    assert isinstance(found, Absent)
    assert why in found.why


def test_compiled_functions_give_memory_of_their_own() -> None:
    @tt.compile
    def f(x: tt.Tensor) -> Any:
        y = tt.relu(x) * 2 + 1
        return y, y.T, x

    x = there(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    for _ in range(3):
        y, turned, same = f(x)
        want = np.arange(6.0).reshape(2, 3) * 2 + 1
        np.testing.assert_array_equal(back(y), want)
        np.testing.assert_array_equal(back(turned), want.T)
        copy = y.clone()
        y[0] = -5
        np.testing.assert_array_equal(back(copy), want)
        np.testing.assert_array_equal(back(x), np.arange(6.0).reshape(2, 3))
        assert same.shape == x.shape


# ---- views that are read again


@pytest.mark.skipif(native is None, reason="replaying is native")
def test_a_view_that_is_read_again_is_made_once_and_goes_with_its_value() -> None:
    x = there(np.ones((3, 4), np.float32))
    turned, value = x.T, x.storage.value
    seen = []
    for _ in range(4):
        turned + 1.0
        seen.append(getattr(value, "seen", (None, None))[1])
    assert seen[-1] is seen[-2] is not None
    alive = weakref.ref(value)
    gc.disable()
    try:
        del x, turned, value, seen
        assert alive() is None
    finally:
        gc.enable()


def test_a_view_that_is_kept_shows_what_is_written_later() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = there(data.copy())
    looks = (lambda v: v.T, lambda v: v[1:], lambda v: v[:, ::2], lambda v: v[::-1])
    views = [look(x) for look in looks]
    for n in range(3):
        for look, view in zip(looks, views, strict=True):
            for _ in range(4):
                assert (view * 2.0).tolist() == (look(data + n) * 2).tolist()
        x += 1.0
    shared = x.torch()
    for n in range(3):
        for look, view in zip(looks, views, strict=True):
            assert (view * 2.0).tolist() == (look(data + 3 + n) * 2).tolist()
        shared += 1
