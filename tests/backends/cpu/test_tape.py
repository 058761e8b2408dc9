"""A tape has the bits of its steps run one by one, on every instruction set, whatever the shapes, strides and threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from at import at
from isas import BASES as ISAS, BUILT_BASES
from op_cases import by_op
from tape_cases import Body, by_tape, check, filled, same_bits
from tritium import ops
from tritium.backends.cpu import tape
from tritium.backends.cpu.tape_rows import MAX_KEPT_BYTES
from tritium.backends.reference.cast import cast
from tritium.buffer import native
from tritium.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32
from tritium.fragment import Fragment, Step
from tritium.op import Kind, Op, Spec
from tritium.ops import Sample
from tritium.testing import arrays, cases, spec_of

pytestmark = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = native.num_threads()
    native.set_num_threads(2)
    yield
    native.set_num_threads(before)


# ---- every elementwise row alone


def one_step(op: Op, sample: Sample) -> tuple[Fragment, list[Any]]:
    data = arrays(op, sample)
    attrs = op.complete(dict(sample.attrs))
    given_data = [x for x in data if x is not None]
    decision = op.decide(tuple(spec_of(x) for x in data), attrs)
    order = iter(range(len(given_data)))
    inputs = tuple(None if x is None else next(order) for x in data)
    ready = []
    for x, s in zip(data, decision.inputs, strict=True):
        if x is not None and s is not None:
            made = np.empty(x.shape, s.dtype.numpy)
            cast(x, out=made)
            ready.append(made)
    specs = tuple(Spec(x.shape, tt.dtype.dtype(x.dtype)) for x in ready)
    return Fragment(specs, (Step(op, inputs, tuple(attrs.items()), decision.out),), (len(specs),)), ready


UNFUSED = (ops.divmod, ops.dequantize, ops.quantize, ops.real, ops.imag, ops.conj)
KNOWN = {bool_, i8, i32, f16, bf16, f32}


def is_known(body: Fragment) -> bool:
    kinds = {s.dtype for s in body.inputs} | {body.spec(v).dtype for v in body.outputs}
    return not kinds - KNOWN or not kinds - {bool_, f64}


@by_op([c for c in cases(Kind.MAP) if c[0] not in UNFUSED])
def test_every_elementwise_row_has_the_bits_of_its_kernel(op: Op, sample: Sample) -> None:
    body, data = one_step(op, sample)
    known = is_known(body) and not (op is ops.nextafter and body.inputs[0].dtype in (f16, bf16))
    for isa in BUILT_BASES:
        with at(isa):
            if not known or not check(body, data, isa, "contiguous", "transposed", "sliced", "reversed"):
                assert isinstance(tape.tape_of(body), str)


# ---- chains

UNARY = [ops.abs, ops.negative, ops.square, ops.relu, ops.relu2, ops.sign, ops.ceil_, ops.floor, ops.trunc, ops.round]
FLOAT_UNARY = [ops.sqrt, ops.rsqrt, ops.reciprocal, ops.exp, ops.tanh, ops.sigmoid, ops.silu, ops.erf, ops.log]
BINARY = [ops.add, ops.subtract, ops.multiply, ops.maximum, ops.minimum]
FLOAT_BINARY = [ops.divide, ops.copysign, ops.pow, ops.atan2]
INT_BINARY = [ops.floor_divide, ops.remainder, ops.bitwise_and, ops.bitwise_xor, ops.bitwise_left_shift]
COMPARE = [ops.equal, ops.not_equal, ops.less, ops.less_equal, ops.greater, ops.greater_equal]
LOGIC = [ops.logical_and, ops.logical_or, ops.logical_xor]
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 0.5, 1.5, 2.5], np.float32)


class Chain:
    """A random fragment of one shape, and values for its inputs."""

    def __init__(self, seed: int, kinds: tuple[DType, ...], shape: tuple[int, ...], steps: int) -> None:
        self.rng, self.kinds, self.shape = random.Random(seed), kinds, shape
        self.draws = np.random.default_rng(seed)
        self.inputs = [Spec(self._broadcast(), self.rng.choice(kinds)) for _ in range(self.rng.randint(1, 5))]
        self.steps: list[Step] = []
        while len(self.steps) < steps or self.steps[-1].op is ops.const:
            self._grow()
        made = [v for v, s in enumerate(self.steps, len(self.inputs)) if s.op is not ops.const]
        rest = made[:-1] if len(made) > 1 else made
        outs = {made[-1], *self.rng.sample(rest, min(len(rest), self.rng.randint(0, 3)))}
        self.body = Fragment(
            tuple(self.inputs), tuple(self.steps), tuple(sorted(outs, key=lambda v: self.rng.random()))
        )
        self.data = [self._values(s) for s in self.inputs]

    def _broadcast(self) -> tuple[int, ...]:
        shape = tuple(1 if self.rng.random() < 0.2 else n for n in self.shape)
        return shape[self.rng.randint(0, len(shape)) if self.rng.random() < 0.2 else 0 :]

    def _values(self, spec: Spec) -> Any:
        if spec.dtype is bool_:
            return self.draws.integers(0, 2, spec.shape).astype(bool)
        if spec.dtype.is_integer:
            return self.draws.integers(-128, 128, spec.shape).astype(spec.dtype.numpy)
        x = self.draws.normal(0, 3, spec.shape).astype(np.float32)
        x = np.where(self.draws.random(spec.shape) < 0.1, self.draws.choice(SPECIAL, spec.shape), x)
        made = np.empty(spec.shape, spec.dtype.numpy)
        with np.errstate(over="ignore"):
            cast(np.asarray(x, np.float32), out=made)
        return made

    def _spec(self, v: int) -> Spec:
        return self.inputs[v] if v < len(self.inputs) else self.steps[v - len(self.inputs)].spec

    def _of(self, test: Any) -> int:
        """A value of a dtype that passes; a cast makes one where there is none."""
        found = [v for v in range(len(self.inputs) + len(self.steps)) if test(self._spec(v).dtype)]
        if found:
            return self.rng.choice(found[-6:])
        to = self.rng.choice([t for t in self.kinds if test(t)])
        return self._put(ops.astype, (self.rng.randrange(len(self.inputs)),), to, dtype=to, copy=True)

    def _put(self, op: Op, inputs: tuple[int | None, ...], t: DType, **attrs: Any) -> int:
        self.steps.append(Step(op, inputs, tuple(attrs.items()), Spec(() if op is ops.const else self.shape, t)))
        return len(self.inputs) + len(self.steps) - 1

    def _const(self, t: DType) -> int:
        value = (
            self.rng.random() < 0.5
            if t is bool_
            else self.rng.randint(-3, 3)
            if t.is_integer
            else self.rng.uniform(-3, 3)
        )
        return self._put(ops.const, (), t, value=value, dtype=t)

    def _grow(self) -> None:
        has_bool = bool_ in self.kinds
        pick = self.rng.random()
        if pick < 0.12 and has_bool:
            a, b = self._of(lambda t: t is bool_), self._of(lambda t: t is bool_)
            if pick < 0.03:
                self._put(ops.logical_not, (a,), bool_)
            else:
                self._put(self.rng.choice(LOGIC), (a, b), bool_)
        elif pick < 0.25:
            to = self.rng.choice(self.kinds)
            self._put(ops.astype, (self._of(lambda t: True),), to, dtype=to, copy=True)
        else:
            self._number(has_bool)

    def _number(self, has_bool: bool) -> None:
        a = self._of(lambda t: t is not bool_)
        kind = self._spec(a).dtype
        other = lambda: self._const(kind) if self.rng.random() < 0.25 else self._of(lambda t: t is kind)
        pick = self.rng.random()
        if pick < 0.35:
            self._put(self.rng.choice(UNARY + (FLOAT_UNARY if kind.is_float else [])), (a,), kind)
        elif pick < 0.75:
            pair = (a, other()) if self.rng.random() < 0.5 else (other(), a)
            self._put(self.rng.choice(BINARY + (FLOAT_BINARY if kind.is_float else INT_BINARY)), pair, kind)
        elif pick < 0.85:
            bounds = self.rng.choice([(other(), other()), (None, other()), (other(), None)])
            self._put(ops.clip, (a, *bounds), kind)
        elif has_bool:
            test = self._put(self.rng.choice(COMPARE), (a, other()), bool_)
            self._put(ops.where, (self.rng.choice([test, self._of(lambda t: t is bool_)]), a, other()), kind)


SHAPES = [(1,), (), (0, 3), (127,), (128,), (129,), (1031,), (3, 50), (7, 300), (5, 3, 4), (2, 129), (33, 1, 65)]
MIXES = [(f32,), (f32, bool_), (f16,), (bf16, f32), (f64, bool_), (f64,), (i32, i8), (f32, f16, bf16, i8, i32, bool_)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mix", MIXES, ids=lambda m: "-".join(map(str, m)))
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from(SHAPES), steps=st.integers(1, 20),
       how=st.sampled_from(["contiguous", "contiguous", "transposed", "sliced", "reversed"]))  # fmt: skip
def test_chains_have_the_bits_of_their_steps(
    isa: str, mix: tuple[DType, ...], seed: int, shape: tuple[int, ...], steps: int, how: str
) -> None:
    chain = Chain(seed, mix, shape, steps)
    check(chain.body, chain.data, isa, how)


# ---- rows


def softmax_by_hand(t: DType, shape: tuple[int, ...]) -> Fragment:
    b = Body(Spec(shape, t), Spec((*shape[:-1], 1), t))
    x = b(ops.multiply, 0, 1)
    e = b(ops.exp, b(ops.subtract, x, b(ops.max, x, axis=-1, keepdims=True)))
    return b.done(b(ops.divide, e, b(ops.sum, e, axis=-1, keepdims=True)), e)


def norm_after_residual(t: DType, shape: tuple[int, ...]) -> Fragment:
    b = Body(Spec(shape, t), Spec(shape, t), Spec(shape[-1:], t), Spec(shape[-1:], t))
    x = b(ops.add, 0, 1)
    y = b(ops.layer_norm, x, 2, 3, eps=1e-4)
    return b.done(x, b(ops.gelu, y))


def rms_by_hand(t: DType, shape: tuple[int, ...]) -> Fragment:
    b = Body(Spec(shape, t), Spec(shape[-1:], t), Spec((), t))
    mean = b(ops.mean, b(ops.square, 0), axis=len(shape) - 1)
    scale = b(ops.rsqrt, b(ops.add, mean, 2))
    wide = b(ops.expand_dims, scale, axis=-1)
    return b.done(b(ops.multiply, b(ops.multiply, 0, wide), 1), mean, wide)


def quantized(t: DType, shape: tuple[int, ...]) -> Fragment:
    b = Body(Spec(shape, t), Spec(shape[-1:], t))
    q = b(ops.quantize_activations, b(ops.rms_norm, b(ops.relu2, 0), 1, eps=1e-5))
    whole, scale, total = (b.item(q, i) for i in range(3))
    back = b(ops.astype, whole, dtype=f32, copy=True)
    half = b(ops.multiply, scale, 0.5)
    return b.done(whole, half, total, b(ops.multiply, back, b(ops.expand_dims, scale, axis=-1)))


def probabilities(t: DType, shape: tuple[int, ...]) -> Fragment:
    b = Body(Spec(shape, t), Spec(shape, bool_))
    x = b(ops.where, 1, 0, -30.0)
    return b.done(b(ops.softmax, x, axis=-1), b(ops.log_softmax, x, axis=-1), b(ops.min, x, axis=-1))


ROWS = [softmax_by_hand, norm_after_residual, rms_by_hand, quantized, probabilities]
ROW_SHAPES = [(16,), (3, 16), (5, 127), (2, 3, 128), (9, 129), (3, 1, 1000), (2, 5000), (0, 40), (300, 33)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize(
    ("make", "kind"),
    [(make, t) for make in ROWS for t in (f32, f64, f16, bf16) if make is not quantized or t is not f64],
    ids=lambda x: getattr(x, "__name__", None) or str(x),
)
def test_rows_have_the_bits_of_their_steps(make: Any, kind: DType, shape: tuple[int, ...], isa: str) -> None:
    body = make(kind, shape)
    rng = np.random.default_rng(len(shape))
    data = [
        rng.random(s.shape) < 0.7 if s.dtype is bool_ else np.asarray(rng.normal(0, 2, s.shape), s.dtype.numpy)
        for s in body.inputs
    ]
    if make is rms_by_hand:
        data[2] = np.asarray(np.abs(data[2]), kind.numpy)
    check(body, data, isa)
    for got, want in zip(by_tape(body, data, isa, "sliced"), by_tape(body, data, isa), strict=True):
        assert same_bits(got, want)


# ---- memory


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(300_007,), (611, 509), (100_003, 3)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, ...], threads: int) -> None:
    native.set_num_threads(threads)
    chain = Chain(7, (f32, f16, bool_), shape, 12)
    check(chain.body, chain.data, native.isa())


@pytest.mark.parametrize("seed", range(60))
def test_the_first_result_may_be_written_over_an_input_that_is_not_read_again(seed: int) -> None:
    chain = Chain(seed, MIXES[seed % len(MIXES)], [(1031,), (7, 300)][seed % 2], 1 + seed % 9)
    want = by_tape(chain.body, chain.data, native.isa())
    kernel, attrs = tape.native_call(chain.body)
    for i in range(len(chain.data)):
        if tape.overwrites(chain.body, i) and chain.inputs[i].dtype is chain.body.spec(chain.body.outputs[0]).dtype:
            xs = [tt.tensor(x) for x in chain.data]
            made = (xs[i], *(filled(chain.body.spec(v)) for v in chain.body.outputs[1:]))
            kernel(*xs, out=made if len(made) > 1 else made[0], **attrs)
            assert all(same_bits(m.numpy(), w) for m, w in zip(made, want, strict=True)), tape.listing(chain.body)


def test_an_input_that_is_read_after_the_first_result_is_stored_may_not_be_overwritten() -> None:
    b = Body(Spec((40,), f32), Spec((40,), f32))
    total = b(ops.add, 0, 1)
    body = b.done(total, b(ops.multiply, b(ops.exp, total), 0))
    assert not tape.overwrites(body, 0)
    assert tape.overwrites(body, 1)


def test_an_input_of_another_size_may_not_be_overwritten() -> None:
    b = Body(Spec((40,), f32), Spec((1,), f32), Spec((40,), f16))
    body = b.done(b(ops.add, b(ops.add, 0, 1), b(ops.astype, 2, dtype=f32, copy=True)))
    assert [tape.overwrites(body, i) for i in range(3)] == [True, False, False]


def test_rows_that_are_read_again_may_not_be_overwritten() -> None:
    b = Body(Spec((4, 64), f32))
    once = b.done(b(ops.softmax, 0, axis=-1))
    b(ops.multiply, 0, 1)
    assert tape.overwrites(once, 0)
    assert not tape.overwrites(b.done(1, 2), 0)


@pytest.mark.parametrize("how", [(1, 0), (0, 1)])
def test_results_may_lie_in_any_order(how: tuple[int, int]) -> None:
    b = Body(Spec((130, 70), f32), Spec((70,), f32))
    total = b(ops.add, 0, 1)
    body = b.done(b(ops.relu, total), b(ops.greater, total, 0))
    rng = np.random.default_rng(0)
    x, y = (rng.normal(0, 1, s.shape).astype(np.float32) for s in body.inputs)
    kernel, attrs = tape.native_call(body)
    wide = tuple(tt.zeros(tuple((130, 70)[d] for d in how), dtype=t).permute(*how) for t in (f32, bool_))
    kernel(tt.tensor(x), tt.tensor(y), out=wide, **attrs)
    assert same_bits(wide[0].numpy(), np.maximum(x + y, 0) + 0)
    assert same_bits(wide[1].numpy(), x + y > x)


# ---- what is refused


def body_of(op: Op, *inputs: Spec, **attrs: Any) -> Fragment:
    b = Body(*inputs)
    return b.done(b(op, *range(len(inputs)), **attrs))


def mixed() -> Fragment:
    b = Body(Spec((4,), f32))
    return b.done(b(ops.astype, 0, dtype=f64, copy=True))


def two_shapes() -> Fragment:
    b = Body(Spec((4,), f32), Spec((3, 4), f32))
    return b.done(b(ops.add, b(ops.exp, 0), 1))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (body_of(ops.add, Spec((4,), tt.i64), Spec((4,), tt.i64)), "i64"),
        (body_of(ops.nextafter, Spec((4,), f16), Spec((4,), f16)), "nextafter of f16"),
        (body_of(ops.pow, Spec((4,), i32), Spec((4,), i32)), "pow"),
        (mixed(), "do not mix"),
        (two_shapes(), "2 shapes"),
        (body_of(ops.matmul, Spec((4, 4), f32), Spec((4, 4), f32)), "matmul is not elementwise"),
        (body_of(ops.softmax, Spec((3, 8), f32), axis=-1), "16 to 65536"),
        (body_of(ops.softmax, Spec((3, 100_000), f32), axis=-1), "16 to 65536"),
        (body_of(ops.sum, Spec((32, 64), f32), axis=0), "not the last alone"),
        (body_of(ops.quantize_activations, Spec((32, 64), f64)), "f64"),
        (Fragment((), (), ()), "no inputs"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_refusal_says_why(body: Fragment, why: str) -> None:
    said = tape.tape_of(body)
    assert isinstance(said, str)
    assert why in said


def test_a_tape_can_be_read() -> None:
    b = Body(Spec((40,), f32), Spec((40,), bf16))
    total = b(ops.add, 0, b(ops.astype, 1, dtype=f32, copy=True))
    body = b.done(b(ops.multiply, b(ops.relu, total), total))
    assert str(tape.listing(body)).split("\n    ") == [
        "each:", "load.bf16 input1", "add.f32 input0, acc", "store.f32 slot0", "relu.f32 acc", "multiply.f32 acc, slot0",
        "store.f32 output0"]  # fmt: skip


def test_native_code_refuses_a_tape_that_makes_no_sense() -> None:
    scratch, source, result = (0, 0, f32.code, 0), (1, 0, f32.code, 0), (2, 0, f32.code, 0)
    part = (0, 0, 1, "", (-1,) * 6, f32.code, 0.0)
    for operands, code, parts in (
        ([scratch, result, source], [("load", f32.code, False, 1, -1)], [part]),
        ([scratch, source, result], [("launch", f32.code, False, 1, -1)], [part]),
        ([scratch, source, result], [("load", f32.code, False, 9, -1)], [part]),
        ([scratch, source, result], [], [part]),
        ([scratch, source, result], [("load", f32.code, False, 1, -1)], []),
    ):
        with pytest.raises(ValueError, match="it cannot run"):
            native.Tape(f32.code, False, operands, code, parts)


def test_a_tape_is_run_on_the_operands_it_was_made_for() -> None:
    kernel, attrs = tape.native_call(body_of(ops.add, Spec((4,), f32), Spec((4,), f32)))
    x = tt.ones(4)
    for given_inputs, out in (
        ((x,), x),
        ((x, x, x), x),
        ((x, tt.ones(4, dtype=f16)), x),
        ((x, x), tt.ones(4, dtype=f64)),
    ):
        with pytest.raises(TypeError, match="not those of its tape"):
            kernel(*given_inputs, out=out, **attrs)


# ---- tapes of several sizes


@pytest.mark.skipif(native is None, reason="there is no native library")
@pytest.mark.parametrize("make", ROWS, ids=lambda f: f.__name__)
def test_bodies_that_differ_in_sizes_have_one_tape(make: Any) -> None:
    one = tape.tape_of(make(f32, (5, 100)))
    assert tape.tape_of(make(f32, (7, 100))) is one
    assert tape.tape_of(make(f32, (7, 101))) is one
    assert tape.tape_of(make(f32, (1, 101))) is not one
    assert tape.tape_of(make(f32, (2, 7, 101))) is not one


def three_softmaxes(length: int) -> Fragment:
    b = Body(Spec((3, length), f32))
    x = b(ops.exp, b(ops.softmax, 0, axis=-1))
    y = b(ops.add, b(ops.softmax, x, axis=-1), x)
    return b.done(b(ops.add, b(ops.softmax, b(ops.sin, y), axis=-1), y))


def test_limits_of_rows_are_those_of_their_own_length() -> None:
    short = tape.listing(three_softmaxes(16))
    assert not isinstance(short, str)
    most = MAX_KEPT_BYTES // sum(t.nbytes for t in short.row_dtypes)
    assert most & (most - 1)  # the next power of 2 is too long
    for length, fits in ((15, False), (most, True), (most + 1, False), (65537, False)):
        listing = tape.listing(three_softmaxes(length))
        assert isinstance(listing, str) is not fits
        assert fits or str(length) in str(listing)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_body_of_other_sizes_has_the_listing_of_this_one(data: Any) -> None:
    lead = data.draw(st.lists(st.sampled_from([0, 1, 2, 16, 17, 40, 64, 1000]), max_size=2))
    shape = (*lead, data.draw(st.sampled_from([1, 2, 16, 17, 40, 64, 1000])))
    make = data.draw(st.sampled_from(ROWS))
    body = make(f32, shape)
    assert str(tape.listing(body)) == str(tape._listing(body))
