"""Every native kernel of every instruction set this CPU has, against the reference, at sizes that split over threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from at import EVERYTHING, at
from isas import BASES as ISAS, BUILT_BASES
from op_cases import by_op
from tritium import ops, recording
from tritium.backends.cpu.device import LIMITED
from tritium.buffer import native
from tritium.errors import ArgumentError, DTypeError
from tritium.op import OPS, Kind, Op, Spec, outputs
from tritium.ops import Sample
from tritium.testing import LAYOUTS, arrays, as_laid, assert_close, case_id, cases, expected, laid

pytestmark = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")

# Instruction sets that differ in integer products only share the kernels tested here; test_products has theirs.
NAMES = {ops.searchsorted: lambda a: "searchsorted_right" if a["side"] == "right" else "searchsorted",
         ops.gelu: lambda a: "gelu_tanh" if a["approximate"] == "tanh" else "gelu",
         ops.matmul: lambda a: "matmul" if a["algorithm"] == "blas" else f"matmul_{a['algorithm']}"}  # fmt: skip


def native_cases() -> list[tuple[Op, Sample]]:
    found = cases(Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE)
    mine = {o for o, _ in found if not o.packed and not o.name.startswith("quantize_")} | {ops.copy}
    return [(o, s) for o, s in found if o in mine and o is not ops.divmod]


def kernel_of(op: Op, attrs: dict[str, Any], isa: str) -> Any:
    return native.kernel(NAMES[op](attrs) if op in NAMES else op.name, isa)


def run(op: Op, data: list[Any], attrs: dict[str, Any], how: str, isa: str) -> Any:
    """The kernel's own result, or None where it does not take the call."""
    attrs = op.complete(attrs)
    specs = tuple(None if x is None else Spec(x.shape, tt.dtype.dtype(x.dtype)) for x in data)
    decision = op.decide(specs, attrs)
    kernel = kernel_of(op, attrs, isa)
    last = next((s.dtype.code for s in reversed(decision.inputs) if s is not None), None)
    same = all(s is None or s.dtype is d.dtype for s, d in zip(specs, decision.inputs, strict=True))
    limit = LIMITED.get(op, lambda accepts: accepts)
    if kernel is None or last not in kernel.dtypes or not same or not limit(lambda *_: True)(specs, attrs, ()):
        return None
    outs = tuple(tt.full(s.shape, 1, dtype=s.dtype) for s in outputs(decision.out))  # a kernel must write every element
    kernel(*(None if x is None else laid(x, how) for x in data), out=outs if len(outs) > 1 else outs[0], **attrs)
    return tuple(out.numpy() for out in outs) if len(outs) > 1 else outs[0].numpy()


@by_op(native_cases())
def test_samples_agree_on_every_isa(op: Op, sample: Sample) -> None:
    attrs, drawn = dict(sample.attrs), arrays(op, sample)
    plain = expected(op, drawn, attrs)
    for how in LAYOUTS:
        data = [as_laid(x, how) for x in drawn]
        want = expected(op, data, attrs) if how == "broadcast" else plain
        for isa in BUILT_BASES:
            with at(how, isa):
                got = run(op, data, attrs, how, isa)
                if got is not None:
                    assert_close(op, got, want, data, op.complete(attrs))


SHAPES = [(100_003,), (331, 307), (3, 70_001), (70_001, 3), (41, 43, 47)]
KINDS = (tt.f32, tt.f64, tt.f16, tt.bf16, tt.i8, tt.i32, tt.i64)


def big(shape: tuple[int, ...], kind: tt.DType, low: float, high: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if kind.is_float:
        return rng.uniform(low, high, shape).astype(kind.numpy)
    return rng.integers(int(low), max(int(high), int(low) + 1), shape).astype(kind.numpy)


def wide_rows() -> Iterator[Op]:
    for op in OPS.values():
        quantising = op.name.startswith("quantize_") or op in (
            ops.quantize,
            ops.dequantize,
        )  # test_products and test_quant have them
        if (
            op.kind in (Kind.MAP, Kind.REDUCE)
            and op.inputs
            and not quantising
            and op not in (ops.astype, ops.divmod, ops.where, ops.attention, ops.quantized_attention, ops.transform)
        ):
            yield op


LAID = dict(zip(SHAPES, ("contiguous", "sliced", "transposed", "reversed", "contiguous"), strict=True))


once = lru_cache(maxsize=len(SHAPES) * len(KINDS))  # the instruction sets of one row come one after another


@once
def wide_call(op: Op, shape: tuple[int, ...], kind: tt.DType) -> tuple[list[Any], dict[str, Any]]:
    first = op.samples[0].inputs[0]
    assert first is not None
    data = [big(shape, kind, first.low, first.high, i) for i in range(len(op.inputs) - len(op.optional))]
    data += [None] * len(op.optional)
    if op.name in ("prod", "cumulative_prod") and kind.is_float:
        data = [(np.sign(x) * 2.0 ** np.sign(x)).astype(kind.numpy) for x in data]
    return data, {"axis": -1} if "axis" in op.params else {}


@once
def wide_result(op: Op, shape: tuple[int, ...], kind: tt.DType) -> Any:
    return expected(op, *wide_call(op, shape, kind))


def wide_part(op: Op, isa: str) -> list[tuple[tuple[int, ...], tt.DType]]:
    """Shapes and dtypes for a row: each dtype with one shape and each shape with some dtypes, others for another row or
    instruction set. TRITIUM_TESTS=all: each with each."""
    pairs = list(product(SHAPES, KINDS))
    if EVERYTHING:
        return pairs
    first = crc32(op.name.encode()) + ISAS.index(isa)
    return [(s, k) for s, k in pairs if (SHAPES.index(s) + KINDS.index(k) + first) % len(SHAPES) == 0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", list(wide_rows()), ids=case_id)
def test_large_odd_sizes_agree_on_every_isa(op: Op, isa: str) -> None:
    for shape, kind in wide_part(op, isa):
        data, attrs = wide_call(op, shape, kind)
        try:
            got = run(op, data, attrs, LAID[shape], isa)
        except DTypeError:
            continue
        if got is not None:
            with at(shape, kind):
                assert_close(op, got, wide_result(op, shape, kind), data, op.complete(attrs))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2), -1])
@pytest.mark.parametrize("name", [o.name for o in OPS.values() if "keepdims" in o.params])
def test_reductions_over_every_axis(name: str, axis: Any, isa: str) -> None:
    op = OPS[name]
    if isinstance(axis, tuple) and name.startswith("arg"):
        axis = 2
    x = big((37, 65, 33), tt.f32, -1, 1, 0)
    x = np.where(x > 0, 1, -1).astype(np.float32) if name == "prod" else x
    for how in ("contiguous", "transposed", "sliced"):
        got = run(op, [x], {"axis": axis, "keepdims": True}, how, isa)
        assert_close(
            op,
            got,
            expected(op, [x], {"axis": axis, "keepdims": True}),
            [x],
            op.defaults | {"axis": axis, "keepdims": True},
        )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [tt.f32, tt.f64, tt.f16, tt.bf16, tt.i8, tt.i32, tt.i64], ids=str)
@pytest.mark.parametrize("shapes", [((1, 257), (257, 130)), ((65, 300), (300, 1)), ((129, 513), (513, 67)), ((3, 17, 40), (40, 33)),
                                    ((2, 1, 5, 64), (3, 64, 9)), ((200, 200), (200, 200))], ids=str)  # fmt: skip
def test_products_of_odd_sizes(shapes: Any, kind: tt.DType, isa: str) -> None:
    a, b = (big(s, kind, -2, 2, i) for i, s in enumerate(shapes))
    want = expected(ops.matmul, [a, b], {})
    layouts = ("contiguous", "transposed", "sliced")
    first = shapes[0][-1] + ISAS.index(isa)  # each algorithm with one layout, another one for another shape
    for i, algorithm in enumerate(ops.ALGORITHMS):
        for how in layouts if EVERYTHING else (layouts[(first + i) % 3],):
            with at(algorithm, how):
                got = run(ops.matmul, [a, b], {"algorithm": algorithm}, how, isa)
                assert_close(ops.matmul, got, want, [a, b], {"algorithm": "blas"})


def test_a_product_reads_nothing_of_its_result() -> None:
    a, b = tt.ones((64, 64)), tt.ones((64, 64))
    out = tt.full((64, 64), float("nan"))
    tt.matmul(a, b, out=out)
    assert bool(tt.all(out == 64))


def test_f32_sums_are_as_exact_as_f64_ones() -> None:
    x = np.random.default_rng(0).uniform(0, 1, 10_000_000).astype(np.float32)
    assert abs(float(tt.sum(tt.from_numpy(x))) / x.sum(dtype=np.float64) - 1) < 1e-7


def test_variance_survives_a_large_mean() -> None:
    x = (1e6 + np.random.default_rng(0).normal(size=(8, 4096))).astype(np.float64)
    np.testing.assert_allclose(tt.var(tt.from_numpy(x), axis=1).numpy(), x.var(axis=1), rtol=1e-12)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    before = tt.get_num_threads()
    x = tt.randn((517, 1031), seed=1)
    results = []
    try:
        for n in (1, 2, 3):
            tt.set_num_threads(n)
            results.append(
                [
                    tt.sum(x).item(),
                    tt.softmax(x).numpy().copy(),
                    tt.gelu(x).numpy().copy(),
                    tt.mean(x, axis=0).numpy().copy(),
                ]
            )
    finally:
        tt.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_replay_is_counted_and_forgotten() -> None:
    x = tt.ones((3, 5))
    tt.add(x, x)
    before = tt.add.hits
    tt.add(x, x)
    assert tt.add.hits == before + 1
    tt.add.forget()
    assert tt.add.replays == 0


def test_a_replayed_scalar_that_does_not_fit_is_still_an_error() -> None:
    x = tt.ones((4,), dtype="i8")
    tt.add(x, 1)
    tt.add(x, 2)
    with pytest.raises(OverflowError, match="300 is outside i8"):
        tt.add(x, 300)


def acceleration(**env: str) -> subprocess.CompletedProcess[str]:
    code = "import tritium as tt; print(tt.ones(3).acceleration_backend)"
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, check=True
    )


def test_a_forced_isa_is_used_and_a_bad_one_is_told() -> None:
    for isa in BUILT_BASES:
        assert acceleration(TRITIUM_ISA=isa).stdout.strip() == isa
    assert "TRITIUM_ISA=mmx is not available" in acceleration(TRITIUM_ISA="mmx", TRITIUM_LOG="warning").stderr


# ---- calls of several tensors


def test_a_call_of_several_tensors_is_remembered_once_however_they_are_given() -> None:
    x, y = tt.ones((2, 5)), tt.zeros((2, 5))
    ops.stack.forget()
    wanted = [[[1.0] * 5, [0.0] * 5]] * 2
    calls = (lambda: ops.stack([x, y], axis=1), lambda: ops.stack((x, y), axis=1), lambda: ops.stack(x, y, axis=1))
    assert calls[0]().tolist() == wanted
    before = ops.stack.hits
    assert all(call().tolist() == wanted for call in calls)
    assert (ops.stack.hits, ops.stack.replays) == (before + 3, 1)


def test_calls_of_several_tensors_are_told_apart_by_number_shape_dtype_and_axis() -> None:
    x = tt.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    joins: list[tuple[list[tt.Tensor], int]] = [
        ([x, x], 0), ([x, x], 1), ([x, x], -1), ([x, x, x], 0), ([x[:1], x], 0), ([x.T, x.T], 0), ([x], 0),
        ([x.to("i32"), x.to("i32")], 0),
    ]  # fmt: skip
    for _ in range(2):
        for parts, axis in joins:
            wanted = np.concatenate([p.numpy() for p in parts], axis)
            np.testing.assert_array_equal(ops.concat(parts, axis=axis).numpy(), wanted, strict=True)


def test_a_replayed_call_of_several_tensors_writes_to_out_and_never_over_an_input() -> None:
    x, y, out = tt.ones((1, 4)), tt.zeros((1, 4)), tt.empty((2, 4))
    for _ in range(3):
        assert ops.concat([x, y], out=out) is out
        assert out.tolist() == [[1] * 4, [0] * 4]
    whole = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    for wanted in ([[3, 4], [1, 2]], [[1, 2], [3, 4]]):
        ops.concat([whole[1:], whole[:1]], out=whole)
        assert whole.tolist() == wanted


def test_more_tensors_than_native_code_remembers_are_still_joined() -> None:
    parts = [tt.full((2,), float(i)) for i in range(20)]
    for _ in range(2):
        assert ops.concat(parts).tolist() == [float(i) for i in range(20) for _ in range(2)]


def joined_parts(rng: np.random.Generator, count: int, base: list[int], axis: int | None, is_new: bool) -> list[Any]:
    """Return arrays that can be joined: views with negative, permuted and repeated strides, some of them empty."""
    dtype = rng.choice(["f4", "f8", "f2", "i1", "i8", "u2", "?"])
    parts = []
    for _ in range(count):
        shape = list(base)
        if not is_new and axis is not None:
            shape[axis] = int(rng.integers(4))
        elif not is_new:
            shape = rng.integers(0, 4, rng.integers(4)).tolist()
        whole = (rng.random([2 * n + 1 for n in reversed(shape)]) * 9).astype(dtype).T
        part = whole[tuple(slice(n, 0, -1) if rng.random() < 0.5 else slice(0, 2 * n, 2) for n in shape)]
        repeats = part.size and rng.random() < 0.2
        parts.append(np.broadcast_to(part.flat[0], part.shape) if repeats else np.asarray(part))
    return parts


@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 40),
    base=st.lists(st.integers(0, 3), max_size=4),
    axis=st.none() | st.integers(-5, 4),
)
@settings(max_examples=50)
@pytest.mark.parametrize("is_new", [False, True])
def test_tensors_joined_by_any_number_are_numpys(
    is_new: bool, seed: int, count: int, base: list[int], axis: int | None
) -> None:
    axes = len(base) + is_new
    axis = (0 if axis is None else axis % (2 * axes) - axes) if is_new or (axis is not None and axes) else None
    arrays = joined_parts(np.random.default_rng(seed), count, base, axis, is_new)
    tensors = [tt.asarray(a) for a in arrays]
    call, reference = (ops.stack, np.stack) if is_new else (ops.concat, np.concatenate)
    wanted: Any = reference(arrays, axis=axis)  # type: ignore[call-overload]
    results = [call(tensors, axis=axis) for _ in range(2)]
    strided = tt.empty((*wanted.shape, 2), tensors[0].dtype)[..., 0]
    results += [call(tensors, axis=axis, out=strided)]
    if count < 4:
        results += [tt.compile(lambda *xs: call(xs, axis=axis))(*tensors)]
    for result in results:
        np.testing.assert_array_equal(result.numpy(), wanted, strict=True)


def test_joined_tensors_that_do_not_fit_are_named_after_calls_that_did() -> None:
    for _ in range(2):
        ops.concat([tt.ones((2, 3))] * 20, axis=1)
        ops.stack([tt.ones((2, 3))] * 20, axis=2)
        with pytest.raises(tt.errors.ShapeError, match="equal sizes"):
            ops.concat([tt.ones((2, 3))] * 20 + [tt.ones((3, 3))], axis=1)
        with pytest.raises(tt.errors.ShapeError, match="same shape"):
            ops.stack([tt.ones((2, 3))] * 20 + [tt.ones((3, 3))], axis=2)
        with pytest.raises(tt.errors.TritiumError, match="axis 1"):
            ops.concat([tt.ones(3)] * 20, axis=1)
        with pytest.raises(tt.errors.TritiumError, match="dimensions"):
            ops.stack([tt.ones((1,) * 32)] * 20, axis=2)
    assert ops.concat([tt.ones(2), tt.ones(2, dtype="f64")] * 10, axis=0).dtype is tt.f64


def test_joined_tensors_may_overlap_their_result_and_are_recorded() -> None:
    whole = tt.arange(40.0)
    ops.concat([whole[i : i + 1] for i in range(39, -1, -1)], out=whole)
    assert whole.tolist() == [float(i) for i in range(39, -1, -1)]
    parts = [tt.ones(2)] * 20
    ops.stack(parts)
    with recording.Recorder() as recorder:
        for _ in range(3):
            ops.stack(parts)
    assert [what.op for what in recorder.read()[0]] == [ops.stack] * 3


def test_several_tensors_may_not_be_none_nor_missing_after_a_call_was_remembered() -> None:
    x = tt.ones((2,))
    for _ in range(2):
        ops.concat([x, x])
        with pytest.raises(ArgumentError, match="is None"):
            ops.concat([x, None])
        with pytest.raises(ArgumentError, match="at least one"):
            ops.concat([])


def test_the_blas_library_is_named_with_its_version() -> None:
    facts = next(d for d in tt.devices() if d.name == "cpu").facts
    assert re.match(r"\w+ .*\d+\.\d+", facts["blas"]), facts["blas"]
    assert facts["threads"] == str(tt.get_num_threads())
