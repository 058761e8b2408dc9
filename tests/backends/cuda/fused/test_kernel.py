"""A fused body as one Triton kernel computes what its rows do one by one, at every shape, stride and dtype.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device. Which of both Triton
does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from op_cases import by_op
from tritium import ops
from tritium.backends.cuda.fused import (
    code as cuda_fused_code,
    form as cuda_fused_form,
    kernel as cuda_fused,
    text as cuda_fused_text,
)
from tritium.backends.cuda.fused.code import WHOLE
from tritium.backends.cuda.fused.text import plan
from tritium.backends.fusion import UnfitError
from tritium.backends.reference.quantized import tokens
from tritium.compiler.fuse import fuse
from tritium.compiler.passes import simplify
from tritium.dtype import ALL, DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u64
from tritium.errors import DTypeError
from tritium.fragment import Fragment, Step
from tritium.layout import Layout
from tritium.op import OPS, Fuse, Kind, Op, Spec, outputs
from tritium.ops import Sample
from tritium.testing import arrays, assert_close, cases, expected, spec_of
from triton_runs import INTERPRETED, PLACE, built, compiles, in_both_modes, passes, registers, runs, spilled

torch = pytest.importorskip("torch", reason="fused kernels on CUDA need PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("fused kernels on CUDA need Triton: pip install torch triton", allow_module_level=True)


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


# ---- bodies and values


def bodies(fn: Any, *specs: Spec) -> list[Fragment]:
    """What the fuser makes of a function, for the kernels here."""
    graph = fuse(simplify(tt.trace(fn, *specs)).graph, cuda_fused.refuses).graph
    return [dict(n.attrs)["body"] for n in graph.order() if n.op is ops.fused]


def body_of(fn: Any, *specs: Spec) -> Fragment:
    (only,) = bodies(fn, *specs)
    return only


def one_row(op: Op, sample: Sample) -> tuple[Fragment, list[Any]]:
    """A sample of a row as a body of one step, and its operands as the row wants them."""
    data = arrays(op, sample)
    attrs = op.complete(dict(sample.attrs))
    decision = op.decide(tuple(spec_of(x) for x in data), attrs)
    given = [(x, s) for x, s in zip(data, decision.inputs, strict=True) if x is not None and s is not None]
    places = iter(range(len(given)))
    inputs = tuple(None if x is None else next(places) for x in data)
    n, out = len(given), decision.out
    steps = [Step(op, inputs, tuple(attrs.items()), out)]
    last = (n,)
    if not isinstance(out, Spec):
        steps += [Step(ops.item, (n,), (("index", k),), s) for k, s in enumerate(out)]
        last = tuple(range(n + 1, n + 1 + len(out)))
    return Fragment(tuple(s for _, s in given), tuple(steps), last), [torch_of(x, s) for x, s in given]


def torch_of(x: np.ndarray[Any, Any], spec: Spec) -> Any:
    from tritium.backends.torch.device import Torch

    host: Torch = tt.device("torch").backend
    return host.from_host(tt.tensor(x).to(spec.dtype).numpy(), spec.dtype).to(PLACE)


@runs
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([1.0, 8.0, 100.0]), st.sampled_from(["f32", "f16"]))
def test_silu_has_the_bits_of_the_reference(seed: int, size: float, dtype: str) -> None:
    """It stands between the quantisers of a network: in f32 a quarter of its results had other bits than on the CPU."""
    gate, up = ((tt.randn((3, 256), seed=seed + i) * size).to(dtype) for i in range(2))

    def fn(gate: Any, up: Any) -> Any:
        return tt.silu(gate) * up

    body = body_of(fn, gate.spec, up.spec)
    got = cuda_fused.maker(body.out, body)(*(torch_of(x.numpy(), x.spec) for x in (gate, up)))
    np.testing.assert_array_equal(got.cpu().numpy(), fn(gate, up).numpy())


def numpy_of(x: Any, spec: Spec) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tt.device("torch").backend.to_host(x.cpu(), spec.dtype)
    return found


def drawn(spec: Spec, rng: np.random.Generator, special: bool = False) -> Any:
    x = rng.standard_normal(spec.shape) * 3
    if special and spec.dtype.is_float and x.size:
        some = rng.integers(0, x.size, max(x.size // 4, 1))
        x.reshape(-1)[some] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, 1.5, -2.5], len(some))
    return torch_of(x.astype(np.float32), spec)


def one_by_one(body: Fragment, xs: list[Any]) -> list[Any]:
    """The steps by torch's own functions, on the host."""
    rows = tt.device("torch").backend.kernels[ops.fused]
    found = rows[-1].fn(body.out, body=body)(*(x.cpu() for x in xs))
    return list(found) if isinstance(found, tuple) else [found]


def whole(body: Fragment, xs: list[Any]) -> list[Any]:
    found = cuda_fused.maker(body.out, body)(*xs)
    return list(found) if isinstance(found, tuple) else [found]


def agree(body: Fragment, xs: list[Any], ulps: float) -> None:
    for got, want, spec in zip(whole(body, xs), one_by_one(body, xs), outputs(body.out), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        g, w = numpy_of(got, spec), numpy_of(want, spec)
        if not ulps or not spec.dtype.is_float:
            np.testing.assert_array_equal(g, w)
            continue
        near = float(
            np.finfo(np.float32).eps if spec.dtype in (f32, f64) else 2.0**-10 if spec.dtype is f16 else 2.0**-7
        )
        g, w = g.astype(np.float64), w.astype(np.float64)
        np.testing.assert_allclose(g, w, rtol=near * ulps, atol=near * ulps)


# ---- rows of the table


# Those the fuser leaves alone, and those that read or give packed elements, which only the CPU fuses.
APART = {o for o in OPS.values() if o.kind is Kind.MAP and (o.fuses is Fuse.NONE or o.packed)}
TABLE = [(op, s) for op, s in cases(Kind.MAP, Kind.REDUCE) if (op.kind is Kind.MAP or op in WHOLE) and op not in APART]
LIKE_OTHERS = {f64, i8, i64}  # the interpreter computes them as it does f32 and i32


def untold(body: Fragment) -> bool:
    """What a run in the interpreter cannot tell: it cuts bf16 off instead of rounding, and is slow."""
    kinds = {s.dtype for s in (*body.inputs, *outputs(body.out))}
    return INTERPRETED and (bf16 in kinds or (len(kinds) == 1 and kinds <= LIKE_OTHERS))


@runs
@by_op(TABLE)
def test_a_row_of_the_table_agrees_with_the_reference(op: Op, sample: Sample) -> None:
    body, xs = one_row(op, sample)
    if untold(body):
        return
    if (why := cuda_fused.refuses(body)) is not None:
        assert re.search("no elements|integers|half|nextafter|axis|bools|shapes", why), why
        return
    data, attrs = arrays(op, sample), op.complete(dict(sample.attrs))
    got = tuple(numpy_of(g, s) for g, s in zip(whole(body, xs), outputs(body.out), strict=True))
    assert_close(op, got if len(got) > 1 else got[0], expected(op, data, dict(sample.attrs)), data, attrs)


def test_every_map_of_floats_is_taken_or_has_a_reason() -> None:
    refused = set()
    for op, sample in cases(Kind.MAP):
        specs = tuple(None if d is None else d.spec for d in sample.inputs)
        if op in APART or any(s is not None and not s.size for s in specs):
            continue
        attrs = op.complete(dict(sample.attrs))
        decision = op.decide(specs, attrs)
        given = tuple(s for s in decision.inputs if s is not None)
        places = iter(range(len(given)))
        step = Step(op, tuple(None if s is None else next(places) for s in specs), tuple(attrs.items()), decision.out)
        if cuda_fused.refuses(Fragment(given, (step,), (len(given),))) is not None:
            refused.add((op.name, str(given[0].dtype)))
    assert refused <= {("nextafter", "f16"), ("nextafter", "bf16"), *(("pow", t) for t in ("i8", "i32", "i64"))}


@compiles
def test_every_name_in_an_expr_is_a_function_that_is_written() -> None:
    from tritium.backends.cuda import functions as cuda_functions

    said = {n for row in OPS.values() for n in re.findall(r"([a-z]\w*)\(", row.expr or "")}
    assert said <= cuda_fused_code.FUNCTIONS
    assert all(hasattr(cuda_functions, n) for n in cuda_fused_code.FUNCTIONS)


BITS = {ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor, ops.bitwise_invert}
EXACT = [o for o in OPS.values() if o.kind is Kind.MAP and not o.ulps and o.expr and o.arity <= 2 and o not in BITS]


@runs
@pytest.mark.parametrize("op", EXACT, ids=lambda op: op.name)
@pytest.mark.parametrize("t", [f32, f16], ids=str)
def test_exact_rows_agree_at_nan_infinities_and_zeros(op: Op, t: Any) -> None:
    decision = op.decide((Spec((64,), t),) * op.arity, {})
    body = Fragment(decision.inputs, (Step(op, tuple(range(op.arity)), (), decision.out),), (op.arity,))
    rng = np.random.default_rng(5)
    xs = [drawn(s, rng, special=True) for s in body.inputs]
    got, want = whole(body, xs)[0], one_by_one(body, xs)[0]
    np.testing.assert_array_equal(numpy_of(got, body.out), numpy_of(want, body.out))


# ---- bodies


M, V, R, S = Spec((6, 24)), Spec((24,)), Spec((6, 1)), Spec(())


def rms(x: Any) -> Any:
    return x * tt.rsqrt(tt.mean(tt.square(x), axis=-1, keepdims=True) + 1e-5)


BODIES: list[tuple[str, Any, tuple[Spec, ...], float]] = [
    ("a chain", lambda x: tt.relu(x * 2.0 + 1.0), (M,), 0),
    ("a bias", lambda x, b: tt.relu(x + b), (M, V), 0),
    ("numbers of rows", lambda x, r: (x + r) * 3.0, (M, R), 0),
    ("one number", lambda x, s: (x + s) * 3.0, (M, S), 0),
    ("axes in between", lambda x, y: (x + y) * 2.0, (Spec((2, 3, 4, 5)), Spec((2, 1, 4, 1))), 0),
    ("outer sums", lambda x, y: (x + y) * 2.0, (Spec((7, 1)), Spec((1, 9))), 0),
    ("no axes", lambda x, y: (x + y) * 2.0, (S, S), 0),
    ("fewer than a block", lambda x: (x + 1.0) * 2.0, (Spec((1,)),), 0),
    ("more than a block", lambda x: (x + 1.0) * 2.0, (Spec((1031,)),), 0),
    ("casts", lambda x: (x.to("f16") * 2.0).to("f32") + 1.0, (M,), 0),
    ("casts to integers", lambda x: (x * 90.0).to("i8").to("f32") + x, (M,), 0),
    ("halves", lambda x, y: (x * y + 1.0) - x, (Spec((5, 7), f16),) * 2, 0),
    ("brain floats", lambda x, y: (x * y + 1.0) - x, (Spec((5, 7), bf16),) * 2, 0),
    ("doubles to halves", lambda x: ((x * 1.1).to("bf16") + 1.0) * 3.0, (Spec((5, 7), f64),), 0),
    ("integers", lambda x, y: (x // y) * y + x % y, (Spec((40,), i32),) * 2, 0),
    ("small integers wrap", lambda x: (x * x * x) + 100, (Spec((40,), i8),), 0),
    ("long integers", lambda x, y: (x - y) * 5, (Spec((40,), i64),) * 2, 0),
    ("a choice", lambda c, x: tt.where(c, x * 2.0, -x), (Spec((6, 24), bool_), M), 0),
    ("comparisons", lambda x, y: tt.where((x > y) & (x < 2.0), x, y) * 2.0, (M, M), 0),
    ("two results", lambda x: (x + 1.0, (x + 1.0) * 2.0), (M,), 0),
    ("functions", lambda x: tt.sigmoid(tt.exp(x * 0.1) + tt.sin(x)), (M,), 8),
    ("gelu", lambda x: tt.gelu(x * 0.5) + x, (M,), 8),
    ("gelu by tanh", lambda x: tt.gelu(x * 0.5, approximate="tanh") + x, (M,), 8),
    ("silu and a product", lambda x, y: tt.silu(x) * y, (Spec((6, 24), bf16),) * 2, 2),
    ("softmax with a mask", lambda x, m: tt.softmax(x * 0.125 + m), (M, M), 8),
    ("softmax by hand", lambda x: tt.exp(x - x.max(axis=-1, keepdims=True)), (M,), 8),
    ("log_softmax", lambda x: tt.log_softmax(x * 2.0), (M,), 16),
    ("rms_norm by hand", rms, (M,), 8),
    ("rms_norm and quantise", lambda x, w: tt.quantize_activations(tt.rms_norm(x, w)), (M, V), 4),
    ("layer_norm and gelu", lambda x, w, b: tt.gelu(tt.layer_norm(x, w, b)), (M, V, V), 16),
    ("half norms", lambda x, w: tt.rms_norm(x + 1.0, w), (Spec((6, 24), f16), Spec((24,), f16)), 2),
    ("sums of products", lambda x, y: (x * y).sum(axis=-1), (M, M), 16),
    ("sums of integers", lambda x: (x * 2).sum(axis=-1), (Spec((6, 24), i32),), 0),
    ("means without keepdims", lambda x: x - x.mean(axis=1)[:, None], (M,), 8),
    ("the least and largest", lambda x: x - x.max(axis=-1, keepdims=True) + x.min(axis=-1, keepdims=True), (M,), 0),
    ("several axes before rows", lambda x, w: tt.softmax(x + w), (Spec((2, 3, 5, 9)), Spec((3, 1, 9))), 8),
    ("one row", lambda x: tt.softmax(x * 2.0), (Spec((33,)),), 8),
    ("rows of one element", lambda x: (x * 2.0).sum(axis=-1), (Spec((7, 1)),), 8),
]


@runs
@pytest.mark.parametrize(("fn", "specs", "ulps"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES])
def test_a_body_agrees_with_its_rows_one_by_one(fn: Any, specs: tuple[Spec, ...], ulps: float) -> None:
    rng = np.random.default_rng(1)
    found = bodies(fn, *specs)
    assert found
    for body in found:
        cut = INTERPRETED and any(t.dtype is bf16 for s in body.steps for t in outputs(s.spec))
        agree(body, [drawn(s, rng) for s in body.inputs], 4 if cut else ulps)


@runs
@pytest.mark.parametrize(("fn", "specs", "ulps"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES])
def test_programs_that_are_full_need_no_masks(fn: Any, specs: tuple[Spec, ...], ulps: float) -> None:
    rng, power = np.random.default_rng(1), cuda_fused_form.power
    powers = [
        Spec(tuple(map(power, s.shape[:-1])) + tuple(n if n == 1 else 4 * power(n) for n in s.shape[-1:]), s.dtype)
        for s in specs
    ]
    for body in bodies(fn, *powers):
        is_full = max(s.size for s in powers) > 1
        assert bool(re.search(rf"\b({'|'.join(cuda_fused_text.MASKS)})\b", plan(body).source)) is not is_full
        cut = INTERPRETED and any(t.dtype is bf16 for s in body.steps for t in outputs(s.spec))
        agree(body, [drawn(s, rng) for s in body.inputs], 4 if cut else ulps)


@runs
@pytest.mark.parametrize(
    "name", ["softmax with a mask", "rms_norm and quantise", "layer_norm and gelu", "rms_norm by hand"]
)
def test_rows_too_long_to_be_kept_are_looped_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_fused_form, "KEPT", 8)
    monkeypatch.setattr(cuda_fused_form, "LOOP", 16)
    cuda_fused.planned.cache_clear()
    _, fn, specs, ulps = next(b for b in BODIES if b[0] == name)
    body = body_of(fn, *specs)
    assert "for start" in plan(body).source
    rng = np.random.default_rng(2)
    agree(body, [drawn(s, rng) for s in body.inputs], ulps)
    cuda_fused.planned.cache_clear()


@runs
def test_what_long_rows_share_is_read_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fn, _, ulps = next(b for b in BODIES if b[0] == "rms_norm and quantise")
    body = body_of(fn, Spec((8, 2048)), Spec((2048,)))
    before = plan(body)
    monkeypatch.setattr(cuda_fused_form, "HALF", 1024)
    monkeypatch.setattr(cuda_fused_form, "SMALL", 1024)
    monkeypatch.setattr(cuda_fused_form, "MANY", 8)
    cuda_fused.planned.cache_clear()
    after = plan(body)
    assert after.warps == before.warps // 2 > 0
    first_fold = after.source.index("tl.sum")
    assert before.source.index("tl.load(x1") < first_fold < after.source.index("tl.load(x1")
    rng = np.random.default_rng(4)
    agree(body, [drawn(s, rng) for s in body.inputs], ulps)
    cuda_fused.planned.cache_clear()


@runs
@pytest.mark.parametrize(
    ("t", "columns", "looped"),
    [(f32, 4096, 0), (f32, 3500, 0), (f32, 2560, 1024), (bf16, 4096, 1024), (bf16, 2560, 512)],
)
@pytest.mark.parametrize("fn", [tt.rms_norm, tt.layer_norm], ids=lambda f: f.name)
def test_many_long_rows_that_are_normed_leave_room_for_other_programs(
    fn: Any, t: DType, columns: int, looped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_fused_form, "MANY", 8)
    cuda_fused.planned.cache_clear()
    weights = [Spec((columns,), t)] * (fn.arity - 1)
    few, many = (body_of(lambda x, *w: fn(x * 2.0, *w), Spec((n, columns), t), *weights) for n in (7, 8))
    assert "for start" not in plan(few).source
    found = plan(many)
    assert ("for start" in found.source) is bool(looped)
    if looped:
        assert found.constants[2] == looped
        assert bool(re.search(r"\b(along|inside)\b", found.source)) is bool(columns % looped)
    else:
        assert (found.warps, found.registers) == (4, 128)
        assert found.source.index("tl.sum") < found.source.index("tl.load(x1")
    rng = np.random.default_rng(7)
    agree(many, [drawn(s, rng) for s in many.inputs], 2 if t is bf16 else 8)
    both = body_of(lambda x, y: tt.rms_norm(x + y), *[Spec((8, columns), t)] * 2)
    assert "for start" not in plan(both).source  # both would be read twice
    cuda_fused.planned.cache_clear()


@runs
@pytest.mark.parametrize("shape", [(8, 32), (7, 24), (1,), (1, 1)])  # programs that are full, and others
@pytest.mark.parametrize("row", [ops.softmax, ops.rms_norm, ops.layer_norm, ops.quantize_activations, ops.gelu])
def test_rows_of_one_element_each_are_folded_as_often_as_they_are_long(row: Op, shape: tuple[int, ...]) -> None:
    attrs = row.defaults | ({"axis": -1} if row is ops.softmax else {})
    (x, *rest) = [Spec(shape)] + [None] * (row.arity - 1)
    out = row.decide((x, *rest), attrs).out
    step = Step(row, (0, *rest), tuple(attrs.items()), out)
    several = () if isinstance(out, Spec) else out
    steps = (step, *(Step(ops.item, (1,), (("index", k),), s) for k, s in enumerate(several)))
    body = Fragment((Spec(shape),), steps, tuple(range(2, 2 + len(several))) or (1,))
    rng = np.random.default_rng(5)
    one = drawn(Spec((*shape[:-1], 1)), rng)
    for x in (one.expand(shape), one[:1].expand(shape), drawn(Spec(shape), rng)):
        agree(body, [x], 16)


@compiles
def test_two_programs_of_long_rows_fit_on_a_processor() -> None:
    rows = Spec((16384, 16384))
    body = body_of(lambda x, v: tt.quantize_activations(tt.rms_norm(x, v)), rows, Spec((16384,)))
    made = compiled(body)
    assert spilled(made) == 0
    assert 2 * registers(made) * 32 * plan(body).warps <= 1 << 16


@runs
def test_views_are_read_where_they_lie() -> None:
    body = body_of(lambda x, y: tt.relu(x + y) * 2.0, M, M)
    rng = np.random.default_rng(3)
    wide, tall = drawn(Spec((12, 48)), rng), drawn(Spec((24, 6)), rng)
    for x in (wide[::2, ::2], wide[:6, 1:25], tall.T, wide[:1, :24].expand(6, 24), wide[3:9, :24]):
        agree(body, [x, wide[:6, :24].contiguous()], 0)
        agree(body, [x, tall.T], 0)


@runs
def test_rows_of_views_are_folded_where_they_lie() -> None:
    body = body_of(lambda x, m: tt.softmax(x * 2.0 + m), M, M)
    rng = np.random.default_rng(3)
    tall, wide = drawn(Spec((24, 6)), rng), drawn(Spec((6, 30)), rng)
    agree(body, [tall.T, wide[:, 3:27]], 8)


@runs
def test_nan_in_a_row_reaches_its_maximum_and_its_scale() -> None:
    body = body_of(lambda x: tt.quantize_activations(tt.relu(x) + 0.0 * x), M)
    rng = np.random.default_rng(3)
    x = drawn(M, rng)
    x[2, 5], x[3, 1] = float("nan"), float("inf")
    agree(body, [x], 4)
    largest = body_of(lambda x: (x * 2.0).max(axis=-1), M)
    agree(largest, [x], 0)


@runs
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.integers(0, 3),
    st.sampled_from([f32, f16, i32]),
)
def test_operands_of_any_shape_that_broadcasts_agree(shape: list[int], ones: list[bool], drop: int, t: Any) -> None:
    first = Spec(tuple(shape), t)
    small = tuple(1 if one else n for n, one in zip(shape, ones, strict=False))[min(drop, len(shape)) :]
    rng = np.random.default_rng(4)
    for body in bodies(lambda x, y: (x + y) * y - x, first, Spec(small, t)):
        agree(body, [drawn(s, rng) for s in body.inputs], 0)


FOLDS = tuple(o for o in OPS.values() if o.fuses is Fuse.FOLD)


@runs
@by_op([(o, s) for o, s in TABLE if o in (*cuda_fused.SINGLE, *FOLDS)])
def test_a_single_row_runs_by_the_same_kernels(op: Op, sample: Sample) -> None:
    data, attrs = arrays(op, sample), op.complete(dict(sample.attrs))
    specs = tuple(spec_of(x) for x in data)
    decision = op.decide(specs, attrs)
    given = [None if x is None or s is None else torch_of(x, s) for x, s in zip(data, decision.inputs, strict=True)]
    otherwise = tt.device("torch" if INTERPRETED else "cuda").backend.kernels[op][-1].fn
    fn = cuda_fused.single(op, otherwise)(decision.out, **attrs)
    for _ in range(2):
        found = fn(*given)
        several = found if isinstance(found, tuple) else (found,)
        got = tuple(numpy_of(g, s) for g, s in zip(several, outputs(decision.out), strict=True))
        assert_close(op, got if len(got) > 1 else got[0], expected(op, data, dict(sample.attrs)), data, attrs)


@runs
@pytest.mark.parametrize("op", FOLDS, ids=lambda op: op.name)
def test_many_long_rows_are_folded_by_a_kernel_of_ours_and_others_by_torch(op: Op) -> None:
    from tritium.backends.cuda import rows as cuda_rows
    from tritium.backends.torch import rows as torch_rows
    from tritium.backends.torch.space import Space

    space = Space(torch.device(PLACE), lambda *_: None)
    space.on_host = False
    found = cuda_rows.kernels(space, torch_rows.kernels(space), True)[op]
    given = op.defaults | {"axis": -1}

    def name(shape: tuple[int, ...], axis: Any, strides: tuple[int, ...] | None = None, t: DType = f32) -> str:
        lies = None if strides is None else Layout(shape, strides, 0)
        asked = (Spec(shape, t),), given | {"axis": axis}, (lies,)
        chosen: str = next(k.name for k in found if k.accepts is None or k.accepts(*asked))
        return chosen

    for t in (f32, f16, bf16, f64):
        assert name((256, 65536), -1, (65536, 1), t) == "triton"
    assert name((64, 64, 4096), (2,)) == "triton"
    assert name((1 << 24, 1), 1) == "triton"
    assert name((4096, 4096), 1, (8192, 1)) == "triton"
    few = (((255, 1 << 17), -1), ((4096, 4095), -1))  # rows, elements
    for shape, axis in (*few, ((4096, 4096), 0), ((4096, 4096), None), ((4096, 4096), (0, 1)), ((), None)):
        assert name(shape, axis) == "torch"
    assert name((4096, 4096), -1, None, i32) == "torch"
    x = torch_of(np.random.default_rng(6).standard_normal((5, 3, 200)).astype(np.float32), Spec((5, 3, 200)))
    out = op.decide((Spec((5, 3, 200)),), given).out
    want = getattr(x.double(), {"max": "amax", "min": "amin"}.get(op.name, op.name))(-1).to(x.dtype)
    run = found[0].fn(out, **given)
    for y in (
        x,
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x.mT.contiguous().mT,
    ):  # the last lies column by column
        assert torch.allclose(run(y), want, rtol=1e-5, atol=1e-4)
    assert torch.equal(run(x), want)


@runs
@pytest.mark.parametrize("shape", [(6, 24), (3, 2560), (5, 33)], ids=str)
def test_a_norm_that_is_quantised_sums_squares_in_f64(shape: tuple[int, ...]) -> None:
    def fn(x: Any, w: Any) -> Any:
        return tt.quantize_activations(tt.rms_norm(x, w))

    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[-1:]))
    body = body_of(fn, Spec(shape), Spec(shape[-1:]))
    got = whole(body, [torch_of(a, s) for a, s in zip((x, w), body.inputs, strict=True)])
    mean = np.square(x.astype(np.float64)).mean(axis=-1, keepdims=True)
    scale = (1 / np.sqrt(mean + 1e-5)).astype(np.float32)
    for g, want, spec in zip(got, tokens(x * scale * w), outputs(body.out), strict=True):
        np.testing.assert_array_equal(numpy_of(g, spec), want)


# ---- what is refused


@pytest.mark.parametrize(
    ("fn", "specs", "why"),
    [
        (lambda x, w: tt.relu(x @ w), (M, Spec((24, 6))), "neither elementwise"),
        (lambda x: tt.softmax(x * 2.0, axis=0), (M,), "along axis"),
        (lambda x: (x * 2.0).sum(axis=-1), (Spec((2, 1 << 20)),), "too few"),
        (lambda x, y: (x**y) + 1, (Spec((8,), i32),) * 2, "negative powers"),
        (lambda x: (x + 1.0) * 2.0, (Spec((0, 3)),), "no elements"),
    ],
)
def test_what_has_no_kernel_is_refused_with_a_reason(fn: Any, specs: tuple[Spec, ...], why: str) -> None:
    graph = fuse(simplify(tt.trace(fn, *specs)).graph, lambda body: None).graph
    (body,) = [dict(n.attrs)["body"] for n in graph.order() if n.op is ops.fused] or [None]
    if body is None:
        pytest.skip("the fuser leaves it alone")
    assert why in (cuda_fused.refuses(body) or "")
    with pytest.raises(UnfitError, match=why):
        plan(body)


def test_what_is_refused_runs_as_before() -> None:
    body = Fragment((M,), (Step(ops.softmax, (0,), (("axis", 0),), M),), (1,))
    said = cuda_fused.fused(lambda out, body: "as before")(body.out, body=body)
    assert said == "as before"


# ---- kernels


def test_bodies_that_differ_in_sizes_share_a_kernel() -> None:
    def fn(x: Any, b: Any) -> Any:
        return tt.relu(x + b)

    first, second = (plan(body_of(fn, Spec((n, n)), Spec((n,)))) for n in (32, 64))
    assert first.source == second.source
    assert first.sizes != second.sizes


def test_large_bodies_count_in_64_bits() -> None:
    def fn(x: Any) -> Any:
        return tt.relu(x + 1.0)

    small, large = (plan(body_of(fn, Spec((n,)))).source for n in (1 << 20, 1 << 32))
    assert "int64" in large
    assert "int64" not in small


COMPILED: list[tuple[str, Any, tuple[Spec, ...], str]] = [
    ("a chain", lambda x: tt.relu(x * 2.0 + 1.0), (Spec((1 << 20,)),), r"ld\.global\.v4\.b32"),
    ("a bias", lambda x, b: tt.relu(x + b), (Spec((512, 4096)), Spec((4096,))), r"ld\.global\.v4\.b32"),
    ("rows of 1000", lambda x: tt.softmax(x * 2.0), (Spec((512, 1000)),), r"ld\.global\.v4\.b32"),
    ("long rows", lambda x: tt.softmax(x * 2.0), (Spec((512, 1 << 16)),), r"ld\.global\.v4\.b32"),
    (
        "norm and quantise",
        lambda x, w: tt.quantize_activations(tt.rms_norm(x, w)),
        (Spec((64, 2560)), Spec((2560,))),
        "NaN",
    ),
    ("layer_norm", lambda x, w: tt.relu(tt.layer_norm(x, w, w)), (Spec((64, 768), bf16), Spec((768,), bf16)), "f64"),
    ("gelu", lambda x: tt.gelu(x) + 1.0, (Spec((1 << 20,)),), r"rcp\.approx\.ftz\.f32"),
    ("functions", lambda x: tt.gelu(x) + tt.sin(x) * tt.exp(x) + tt.erf(x), (Spec((1 << 20,)),), "fma"),
    ("doubles", lambda x: tt.sqrt(x * 2.0) / (x + 1.0), (Spec((1 << 10,), f64),), r"sqrt\.rn\.f64"),
    ("quotients", lambda x: tt.sqrt(x * 2.0) / (x + 1.0), (Spec((1 << 10,)),), r"div\.rn\.f32"),
    ("integers", lambda x, y: (x // y) + (x % y), (Spec((1 << 10,), i32),) * 2, "div"),
    ("casts", lambda x: (x * 90.0).to("i8").to("f32") + x, (Spec((1 << 10,)),), "cvt"),
    ("remainders", lambda x, y: (x // y) + (x % y), (Spec((1 << 10,)),) * 2, "f32"),
]


def ptx(made: Any) -> str:
    return str(made.asm["ptx"])


def compiled(body: Fragment, strides: Any = None) -> Any:
    """Its kernel for Hopper, started early, with instructions of that GPU."""
    p = plan(body, strides)
    fn = cuda_fused.kernel(p.source)
    short = {"bool": "i1", "f16": "fp16", "f32": "fp32", "f64": "fp64"}
    kinds = ["*" + short.get(str(s.dtype), str(s.dtype)) for s in (*body.inputs, *outputs(body.out))]
    kinds += ["constexpr" if n == 1 else "i32" for n in p.sizes] + ["constexpr"] * (len(p.constants) + 2)
    numbers = (*p.sizes, *p.constants, True, True)
    first = len(kinds) - len(numbers)
    names = fn.arg_names
    fixed = {names[first + i]: n for i, n in enumerate(numbers) if kinds[first + i] == "constexpr"}
    even = [names[i] for i in range(len(kinds)) if i < first or (kinds[i] == "i32" and numbers[i - first] % 16 == 0)]
    types = dict(zip(names, kinds, strict=True))
    return built(fn, types, fixed, 90, even, num_warps=p.warps, **cuda_fused.OPTIONS)


@compiles
@pytest.mark.parametrize(("fn", "specs", "holds"), [c[1:] for c in COMPILED], ids=[c[0] for c in COMPILED])
def test_a_body_compiles_for_hopper(fn: Any, specs: tuple[Spec, ...], holds: str) -> None:
    assert re.search(holds, ptx(compiled(body_of(fn, *specs))))


@compiles
@pytest.mark.parametrize("t", [f32, bf16], ids=str)
def test_whole_lines_are_read_of_an_operand_that_lies_column_by_column(t: DType) -> None:
    body = body_of(lambda x, y: tt.relu(x + y), *[Spec((4096, 4096), t)] * 2)
    for strides, turns in ((((4096, 1), (4096, 1)), False), (((4096, 1), (1, 4096)), True), (((1, 4096),) * 2, True)):
        made = compiled(body, strides)
        assert "ld.global.v4" in ptx(made)
        assert not re.search(r"ld\.global\.[bus]", ptx(made))
        assert (made.metadata.shared > 0) is turns


@compiles
@pytest.mark.parametrize("t", [f32, f64, f16, i32, i8, u64, bool_], ids=str)
def test_every_row_compiles_for_hopper(t: Any) -> None:
    """All rows that take a dtype, as one body of as many results."""
    steps: list[Step] = []
    for op in OPS.values():
        if op.kind is not Kind.MAP or op in APART or op is ops.astype or op.arity > 2 or op.arity < 1:
            continue
        try:
            decision = op.decide((Spec((64,), t),) * op.arity, op.defaults)
        except DTypeError:
            continue
        step = Step(op, tuple(range(op.arity)), tuple(op.defaults.items()), decision.out)
        fits = all(s is not None and s.dtype is t for s in decision.inputs)
        if fits and cuda_fused.refuses(Fragment((Spec((64,), t),) * op.arity, (step,), (op.arity,))) is None:
            steps.append(step)
    steps += [
        Step(ops.astype, (0,), (("dtype", to), ("copy", True)), Spec((64,), to)) for to in ALL if not to.is_packed
    ]
    body = Fragment((Spec((64,), t),) * 2, tuple(steps), tuple(range(2, 2 + len(steps))))
    assert len(steps) > 15
    assert "st.global" in ptx(compiled(body))


@compiles
def test_products_and_sums_are_rounded_apart() -> None:
    assert "fma" not in ptx(compiled(body_of(lambda x, y: (x * y + x) * y - x, Spec((1 << 20,)), Spec((1 << 20,)))))
