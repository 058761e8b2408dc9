"""The MLX devices: every row × sample × layout agrees with the reference, ternary sums are exact, memory is MLX's own."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from op_cases import maps
from tritium import ops
from tritium.backends import Absent, Device, probes
from tritium.backends.mlx import device as mlx
from tritium.backends.values.device import Form, kernels_of
from tritium.errors import BoundsError, DeviceError, QuantError, install_command
from tritium.layout import Layout
from tritium.op import OPS, Kind, Op, Spec, Trait, outputs
from tritium.ops import Sample
from tritium.testing import (
    LAYOUTS,
    arrays,
    as_laid,
    assert_close,
    call,
    case_id,
    cases,
    check_backend,
    expected,
    laid,
    values,
)

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install mlx", exc_type=ImportError)
mlx_rows, mlx_space = (import_module(f"tritium.backends.mlx.{n}") for n in ("rows", "space"))

HERE = tt.device("mlx:cpu")
BACKEND: Any = HERE.backend
COMPUTING = [
    (o, s)
    for o, s in cases(Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE, Kind.FUSED)
    if o in BACKEND.kernels or o.lower
]
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-45, 3e38, -3e38], np.float32)


def there(x: Any, how: str = "contiguous") -> Any:
    """Values on MLX, in memory that is laid out in this way there."""
    if x is None:
        return None
    if how == "contiguous" or x.ndim == 0 or hasattr(x, "packed"):
        return laid(x, "contiguous").to(HERE)
    return _laid_there(x, how)


def _laid_there(x: Any, how: str) -> Any:
    every_other = tuple(slice(1, None, 2) for _ in x.shape)
    if how == "transposed":
        return tt.tensor(np.ascontiguousarray(x.T)).to(HERE).permute(*reversed(range(x.ndim)))
    if how == "sliced":
        wide = np.zeros(tuple(2 * n + 1 for n in x.shape), x.dtype)
        wide[every_other] = x
        return tt.tensor(wide).to(HERE)[every_other]
    if how == "reversed":
        return ops.flip(tt.tensor(np.flip(x).copy()).to(HERE))
    return ops.broadcast_to(tt.tensor(np.ascontiguousarray(x[:1])).to(HERE), x.shape)


def numpy(x: Any) -> Any:
    return tuple(values(t) for t in x) if isinstance(x, tuple) else values(x)


def test_the_conformance_kit_passes() -> None:
    assert check_backend("mlx") > 1000


def test_every_row_runs_is_lowered_or_says_why_not() -> None:
    free = {ops.const, ops.given, ops.item, ops.empty}
    rows = [o for o in OPS.values() if o.kind is not Kind.VIEW and o not in free]
    assert [o.name for o in rows if o not in BACKEND.kernels and o.lower is None and o not in BACKEND.missing] == []


ROWS = list(dict.fromkeys(o for o, _ in COMPUTING))


def samples(op: Op) -> list[tuple[Sample, dict[str, Any], list[Any]]]:
    return [(s, dict(s.attrs), arrays(op, s)) for o, s in COMPUTING if o is op]


def close(op: Op, got: Any, want: Any, data: list[Any], attrs: dict[str, Any]) -> None:
    """As the kit says, and finite where the reference is."""
    assert_close(op, got, want, data, op.complete(attrs))
    for g, w in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
        np.testing.assert_array_equal(np.isfinite(g.astype(np.float64)), np.isfinite(w.astype(np.float64)))


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("op", ROWS, ids=case_id)
def test_rows_agree_with_the_reference_in_every_layout(op: Op, how: str) -> None:
    for _, attrs, drawn in samples(op):
        data = [as_laid(x, how) for x in drawn]
        want = expected(op, data, attrs)
        for _ in ("decided", "replayed"):
            close(op, numpy(call(op, [there(x, how) for x in data], attrs)), want, data, attrs)


def room(like: tt.Tensor, strided: bool) -> tuple[Any, tt.Tensor]:
    """Memory for a result: (what it is part of, or None; the part)."""
    if not strided or like.dtype.is_packed:
        return None, tt.empty(like.shape, dtype=like.dtype, device=HERE)
    whole = tt.full((*like.shape, 2), 0, dtype=like.dtype, device=HERE)
    return whole, whole[..., 1]


@pytest.mark.parametrize("strided", [False, True], ids=["plain", "strided"])
@pytest.mark.parametrize("op", ROWS, ids=case_id)
def test_out_is_written_and_nothing_beside_it(op: Op, strided: bool) -> None:
    for _, attrs, data in samples(op):
        xs = [there(x) for x in data]
        want = call(op, xs, attrs)
        plain = want if isinstance(want, tuple) else (want,)
        rooms = [room(w, strided) for w in plain]
        outs = tuple(part for _, part in rooms)
        got = call(op, xs, attrs, out=outs if isinstance(want, tuple) else outs[0])
        for w, g, (whole, part) in zip(plain, got if isinstance(got, tuple) else (got,), rooms, strict=True):
            assert g is part
            np.testing.assert_array_equal(values(part), values(w))
            assert whole is None or not values(whole)[..., 0].any()


def keeps_its_spec(op: Op, sample: Sample) -> bool:
    specs = tuple(None if d is None else d.spec for d in sample.inputs)
    return op.decide(specs, op.complete(dict(sample.attrs))).out == specs[0]


@pytest.mark.parametrize("how", ["contiguous", "transposed", "sliced"])
@pytest.mark.parametrize("op", [o for o in ROWS if o.traits & Trait.IN_PLACE and o.inputs], ids=case_id)
def test_in_place_leaves_clones_as_they_were(op: Op, how: str) -> None:
    for sample, attrs, data in samples(op):
        if not keeps_its_spec(op, sample):
            continue
        xs = [there(x, how) for x in data]
        want = call(op, xs, attrs)
        before = xs[0].clone()
        got = getattr(xs[0], f"{op.name}_")(*xs[1:], **attrs)
        assert got is xs[0]
        np.testing.assert_array_equal(values(got), values(want))
        np.testing.assert_array_equal(values(before), data[0])


@pytest.mark.parametrize("op", maps(1, floats=True), ids=case_id)
def test_special_floats(op: Op) -> None:
    for kind in (tt.f32, tt.f64, tt.f16, tt.bf16):
        with np.errstate(all="ignore"):
            x = SPECIAL.astype(kind.numpy)
        close(op, values(op(there(x))), expected(op, [x], {}), [x], {})


@pytest.mark.parametrize("op", maps(2, floats=True), ids=case_id)
def test_special_pairs(op: Op) -> None:
    for kind in (tt.f32, tt.f64):
        x = SPECIAL.astype(kind.numpy)
        a, b = (np.ascontiguousarray(g) for g in np.meshgrid(x, x))
        close(op, values(op(there(a), there(b))), expected(op, [a, b], {}), [a, b], {})


@pytest.mark.parametrize("op", maps(1, floats=False) + maps(2, floats=False), ids=case_id)
def test_integer_extremes(op: Op) -> None:
    for kind in (*tt.dtype.SIGNED, *tt.dtype.UNSIGNED):
        info = tt.iinfo(kind)
        x = np.array([info.min, info.max, 0, 1, 3] + ([-1] if info.min else []), kind.numpy)
        data = [np.ascontiguousarray(g) for g in np.meshgrid(x, x)] if len(op.inputs) == 2 else [x]
        if op is tt.pow:
            data[1] = np.where(data[1] < 0, 2, data[1]).astype(kind.numpy)
        assert_close(op, numpy(op(*map(there, data))), expected(op, data, {}), data, {})


RANGES = {
    "exp": (-87, 88), "expm1": (-80, 80), "log": (1e-30, 1e4), "log1p": (-0.99, 1e4), "sin": (-1e4, 1e4), "cos": (-1e4, 1e4),
    "tan": (-100, 100), "sinh": (-80, 80), "tanh": (-10, 10), "asinh": (-1e4, 1e4), "atanh": (-0.9999, 0.9999),
    "erf": (-7, 7), "sigmoid": (-80, 80), "silu": (-80, 80),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_digits_are_kept_over_the_whole_range(name: str) -> None:
    rng, (low, high) = np.random.default_rng(1), RANGES[name]
    for kind in (tt.f32, tt.f64, tt.f16):
        x = np.concatenate(
            [rng.uniform(low, high, 1000), rng.uniform(0.01, 0.9, 1000) * 10.0 ** rng.integers(-5, 1, 1000)]
        )
        x = x.astype(kind.numpy)
        close(OPS[name], values(OPS[name](there(x))), expected(OPS[name], [x], {}), [x], {})


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "cumulative_sum", "var", "softmax"])
def test_long_axes_keep_their_digits(name: str) -> None:
    op, rng = OPS[name], np.random.default_rng(2)
    for shape, axis in (((700, 300), 0), ((3, 70001), 1)):
        x = rng.uniform(0.9, 1.1, shape).astype(np.float32)
        attrs = op.defaults | {"axis": axis}
        close(op, values(op(there(x), axis=axis)), expected(op, [x], attrs), [x], attrs)


# ---- views and writes


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_write_through_a_view_is_seen_by_the_whole(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    slices = []
    for n in shape:
        start = data.draw(st.integers(0, n - 1))
        slices.append(
            data.draw(st.sampled_from([start, slice(start, n, data.draw(st.integers(1, 3))), slice(None, None, -1)]))
        )
    axes = data.draw(st.permutations(range(whole[tuple(slices)].ndim)))
    x = there(whole)
    part = x[tuple(slices)].permute(*axes) if axes else x[tuple(slices)]
    kept = x.clone()
    part.copy_(there(-1 - np.arange(part.size, dtype=np.float32).reshape(part.shape)))
    want = whole.copy()
    want[(*slices, ...)].transpose(axes)[...] = -1 - np.arange(part.size).reshape(part.shape)
    np.testing.assert_array_equal(values(x), want)
    np.testing.assert_array_equal(values(kept), whole)


def test_a_plain_slice_is_found_and_nothing_else() -> None:
    assert mlx.plain_slice((4, 6), Layout((2, 3), (12, 2), 1)) == (slice(0, 3, 2), slice(1, 6, 2))
    assert mlx.plain_slice((4, 6), Layout((4,), (6,), 2)) == (slice(0, 4, 1), 2)
    assert mlx.plain_slice((4, 6), Layout((6, 4), (1, 6), 0)) is None
    assert mlx.plain_slice((4, 6), Layout((3,), (-1,), 5)) is None
    assert mlx.plain_slice((4, 6), Layout((5,), (7,), 0)) is None


# ---- what only values can tell


def test_an_index_outside_raises() -> None:
    x = there(np.arange(4, dtype=np.float32))
    with pytest.raises(BoundsError, match="take: an index is outside an axis of size 4"):
        ops.take(x, there(np.array([1, 9])))
    np.testing.assert_array_equal(values(x + x), [0, 2, 4, 6])


def test_an_integer_to_a_negative_power_raises() -> None:
    with pytest.raises(BoundsError, match="negative power"):
        ops.pow(there(np.array([2, 3])), there(np.array([1, -1])))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ops.quantize_ternary(there(np.array([[1.0, np.nan]], np.float32)))[1], "finite"),
        (lambda: ops.quantize_int8(there(np.array([[1.0, np.inf]], np.float32)))[1], "finite"),
        (lambda: ops.repack(there(np.array([[1, 2]], np.int8)), "tern2"), "holds -1 to 1"),
    ],
)
def test_what_cannot_be_quantised_raises_when_read(make: Any, text: str) -> None:
    with pytest.raises(QuantError, match=text):
        values(make())


def test_rows_sized_by_values_say_why_they_are_missing() -> None:
    with pytest.raises(DeviceError, match="size depends on values"):
        ops.nonzero(there(np.eye(2, dtype=np.float32)))


# ---- memory, waiting, compiling


def test_reading_shows_the_memory_of_mlx_itself() -> None:
    for kind in (tt.f32, tt.bf16, tt.dtype.bool_, tt.i64):
        value = mx.zeros((3, 2), dtype=getattr(mx, str(kind.long_name).replace("bool", "bool_")))
        seen = BACKEND.to_host(value, kind)
        assert seen.dtype == kind.numpy
        assert not seen.flags.writeable
        assert np.shares_memory(seen, BACKEND.to_host(value, kind))


def test_memory_is_told_trimmed_and_limited() -> None:
    x = tt.randn((256, 256), seed=0, device=HERE)
    BACKEND.settle([x])
    stats = BACKEND.memory_stats()
    assert stats.keys() == {"active_bytes", "peak_bytes", "cache_bytes", "limit_bytes"}
    assert stats["active_bytes"] >= x.nbytes
    assert stats["peak_bytes"] >= stats["active_bytes"]
    assert BACKEND.memory() == (BACKEND.memory_stats()["active_bytes"], stats["limit_bytes"])
    before = mx.get_memory_limit()
    try:
        BACKEND.limit(memory_bytes=before - 1)
        assert BACKEND.memory_stats()["limit_bytes"] == before - 1
    finally:
        BACKEND.limit(memory_bytes=before)
    del x
    assert BACKEND.trim() >= 0
    assert BACKEND.memory_stats()["cache_bytes"] == 0


def test_settling_computes_what_was_written_down() -> None:
    x = there(np.arange(6, dtype=np.float32))
    y = ops.exp(x) + 1
    BACKEND.settle([y])
    np.testing.assert_allclose(np.array(y.storage.value), np.exp(np.arange(6)) + 1, rtol=1e-6)


def test_a_result_may_be_read_by_another_thread_than_made_it() -> None:
    x = there(np.arange(6, dtype=np.float32))
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: ops.exp(x) + ops.take(x, there(np.array([n]))), range(6)))
        read = list(pool.map(values, [y for y in made for _ in range(3)]))
    for n, got in enumerate(read):
        np.testing.assert_allclose(got, np.exp(np.arange(6)) + n // 3, rtol=1e-6)
    np.testing.assert_array_equal(values(made[5]), read[-1])


def test_what_a_token_gives_does_not_depend_on_its_company() -> None:
    rng = np.random.default_rng(0)
    x, w = (there(rng.standard_normal(s).astype(np.float32)) for s in ((17, 130), (33, 130)))
    together = values(ops.linear(x, w))
    np.testing.assert_array_equal(together, np.stack([values(ops.linear(x[i], w)) for i in range(17)]))


needs_compile = pytest.mark.skipif(
    shutil.which("g++") is None or mlx.contracts(),
    reason="mx.compile makes C++ of a function for the CPU, and needs a g++ that rounds a product and a sum each",
)


@needs_compile
def test_a_function_over_values_is_compiled_by_mlx() -> None:
    run = BACKEND.compiled(lambda a, b: (mx.maximum(a * b, 0.0), a + b), Form(2, (), 2, list))
    product, total = run(mx.array([1.0, -2.0]), mx.array([3.0, 4.0]))
    assert product.tolist() == [3.0, 0.0]
    assert total.tolist() == [4.0, 2.0]


# ---- which units there are


def test_absence_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    found = probes.mlx_units()
    assert isinstance(found, Absent)
    assert found.why == "mlx is not installed"
    assert found.remedy.startswith(install_command("mlx"))


def test_the_gpu_comes_first_where_there_is_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert probes.mlx_units() == ("gpu", "cpu")
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert probes.mlx_units() == ("cpu",)


def test_the_gpu_refuses_f64_and_says_why() -> None:
    gpu = mlx.Mlx(Device("mlx", 0, "gpu"))
    with pytest.raises(DeviceError, match="no double precision"):
        gpu.new(Spec((2,), tt.f64))


def test_facts_name_the_version_the_unit_and_what_was_never_run() -> None:
    facts = BACKEND.describe()
    assert facts["mlx"] == mx.__version__
    assert facts["unit"].startswith("cpu")
    assert "not yet run on a Mac" in facts["Metal"]


# ---- what the GPU would do, as far as a CPU can tell


def test_the_rows_of_the_gpu_agree_when_the_cpu_carries_them_out() -> None:
    gpu = mlx.Mlx(HERE)
    gpu.xp = mlx_space.Space("gpu", gpu.doubt)
    gpu.kernels = kernels_of(mlx_rows.makers(gpu.xp), "mlx gpu")
    wrong = []
    for op, sample in COMPUTING:
        if op not in gpu.kernels or any(d is not None and d.spec.dtype is tt.f64 for d in sample.inputs):
            continue
        attrs, data = dict(sample.attrs), arrays(op, sample)
        want = expected(op, data, attrs)
        decision = op.decide(tuple(None if d is None else d.spec for d in sample.inputs), op.complete(attrs))
        ins = tuple(None if x is None else ops.astype(there(x), s.dtype) if not s.dtype.is_packed else there(x)
                    for x, s in zip(data, decision.inputs, strict=True))  # fmt: skip
        several = not isinstance(decision.out, Spec)
        outs = tuple(tt.empty(s.shape, dtype=s.dtype, device=HERE) for s in outputs(decision.out))
        try:
            gpu.run(gpu.kernels[op][0], outs if several else outs[0], ins, op.complete(attrs))
            close(op, numpy(outs if several else outs[0]), want, data, attrs)
        except Exception as error:
            wrong.append(f"{op.name} {case_id(sample)}: {error!r}")
    assert wrong == []


def test_the_last_of_equals_wins_in_any_order() -> None:
    for unit in ("cpu", "gpu"):
        put = mlx_space.Space(unit, BACKEND.doubt).put
        at = mx.array([1, 0, 1, 1])
        assert put(mx.zeros((3,)), at, mx.array([1.0, 2.0, 3.0, 4.0])).tolist() == [2.0, 4.0, 0.0]
        rows = put(mx.zeros((2, 2)), mx.array([0, 0]), mx.array([[1.0, 2.0], [3.0, 4.0]]))
        assert rows.tolist() == [[3.0, 4.0], [0.0, 0.0]]


def test_a_compiler_that_would_change_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (there(np.array(v, np.float32)) for v in ([1 + 2.0**-12] * 9, [1 + 2.0**-11] * 9))
    for forced in (True, mlx.contracts()):
        monkeypatch.setattr(mlx, "contracts", lambda forced=forced: forced)
        fn = tt.compile(lambda x, y: x * x - y)
        assert values(fn(a, b)).tolist() == [0.0] * 9
        assert ("mlx cannot use mx.compile here: g++ rounds a product and a sum once" in fn.explain(a, b)) == forced


@needs_compile
@pytest.mark.parametrize(
    "op", [ops.silu, ops.take, ops.scatter, ops.update_cache, ops.quantize_activations], ids=case_id
)
def test_rows_have_the_same_bits_within_a_compiled_function(op: Op) -> None:
    _, attrs, data = samples(op)[0]
    xs = [there(x) for x in data]
    want = call(op, xs, attrs)
    out = tuple(w.spec for w in want) if isinstance(want, tuple) else want.spec
    fn = BACKEND.ready(BACKEND.kernels[op][0], out, op.complete(attrs))
    BACKEND.tracing.append([])  # checks belong to the compiled function, whose values are not there yet
    try:
        got = BACKEND.compiled(fn, Form(len(xs), (), 1, list))(*(BACKEND.array(x) for x in xs))
    finally:
        BACKEND.tracing.pop()
    for g, w in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
        np.testing.assert_array_equal(BACKEND.to_host(g, w.dtype), values(w))


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert BACKEND.compiled(lambda x: x, Form(1, (), 1, list)) is None
