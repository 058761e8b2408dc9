"""Every row × sample × layout: eager, traced, in place and with out= agree with the reference."""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest

import tritium as tt
from at import at
from op_cases import COMPUTING, IN_PLACE, SPECIAL, TRACED, blank, by_op, extremes, maps, numpy, out_cases
from tritium.backends.reference import kernels as reference
from tritium.op import OPS, Kind, Op, Spec, read_parameters
from tritium.ops import Sample
from tritium.testing import (
    LAYOUTS,
    NOT_CALLED,
    arrays,
    as_laid,
    assert_close,
    call,
    case_id,
    cases,
    expected,
    laid,
    values,
)


def place(x: Any, how: str) -> Any:
    return None if x is None else laid(x, how)


@by_op(COMPUTING)
def test_eager_agrees_with_the_reference(op: Op, sample: Sample) -> None:
    attrs, drawn = dict(sample.attrs), arrays(op, sample)
    plain = expected(op, drawn, attrs)
    for how in LAYOUTS:
        data = [as_laid(x, how) for x in drawn]
        want = expected(op, data, attrs) if how == "broadcast" else plain
        for again in ("decided", "replayed"):
            with at(how, again):
                got = call(op, [place(x, how) for x in data], attrs)
                assert_close(op, numpy(got), want, data, op.complete(attrs))


@by_op(cases(Kind.SOURCE))
def test_sources_agree_with_the_reference(op: Op, sample: Sample) -> None:
    attrs = dict(sample.attrs)
    assert_close(op, op(**attrs).numpy(), expected(op, [], attrs), [], attrs)


@by_op(TRACED)
def test_traced_equals_eager(op: Op, sample: Sample) -> None:
    attrs = dict(sample.attrs)
    xs = [place(x, "contiguous") for x in arrays(op, sample)]
    given = [x for x in xs if x is not None]

    def fn(*ts: Any) -> Any:
        left = iter(ts)
        return call(op, [None if x is None else next(left) for x in xs], attrs)

    graph = tt.trace(fn, *(x.spec for x in given))
    eager, traced = fn(*given), graph(*given)
    for e, t in zip(*((r if isinstance(r, tuple) else (r,)) for r in (eager, traced)), strict=True):
        assert e.spec == t.spec
        np.testing.assert_array_equal(values(e), values(t))


@by_op(out_cases())
def test_out_keeps_the_buffer(op: Op, sample: Sample) -> None:
    attrs = dict(sample.attrs)
    data = arrays(op, sample)
    xs = [place(x, "contiguous") for x in data]
    want = call(op, xs, attrs)
    plain = want if isinstance(want, tuple) else (want,)
    for strided in (False, True):
        outs = [blank(w, strided) for w in plain]
        places = [o.address for o in outs]
        with at("strided" if strided else "plain"):
            got = call(op, xs, attrs, out=tuple(outs) if isinstance(want, tuple) else outs[0])
            for o, w, address, g in zip(outs, plain, places, got if isinstance(got, tuple) else (got,), strict=True):
                assert g is o
                assert o.address == address
                if op.kind is Kind.CONTRACT:  # a product into strided memory may sum in another order
                    assert_close(op, values(o), values(w), data, op.complete(attrs))
                else:
                    np.testing.assert_array_equal(values(o), values(w))


@by_op(IN_PLACE)
def test_in_place_writes_where_the_input_was(op: Op, sample: Sample) -> None:
    attrs = dict(sample.attrs)
    data = arrays(op, sample)
    for how in ("contiguous", "transposed", "sliced"):
        with at(how):
            xs = [place(x, how) for x in data]
            want = call(op, xs, attrs).numpy()  # its own memory, also where the result is a clone
            address = xs[0].address
            got = getattr(xs[0], f"{op.name}_")(*xs[1:], **attrs)
            assert got is xs[0]
            assert got.address == address
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("op", maps(1, floats=True), ids=case_id)
def test_special_floats(op: Op) -> None:
    for kind in (tt.f32, tt.f64, tt.f16, tt.bf16):
        with np.errstate(all="ignore"):
            x = SPECIAL.astype(kind.numpy)
        assert_close(op, op(tt.tensor(x)).numpy(), expected(op, [x], {}), [x], {})


@pytest.mark.parametrize("op", maps(2, floats=True), ids=case_id)
def test_special_pairs(op: Op) -> None:
    for kind in (tt.f32, tt.f64):
        x = SPECIAL.astype(kind.numpy)
        a, b = (np.ascontiguousarray(g) for g in np.meshgrid(x, x))
        assert_close(op, op(tt.tensor(a), tt.tensor(b)).numpy(), expected(op, [a, b], {}), [a, b], {})


@pytest.mark.parametrize("op", maps(1, floats=False) + maps(2, floats=False), ids=case_id)
def test_integer_extremes(op: Op) -> None:
    for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        data = extremes(op, name)
        with at(name):
            assert_close(op, numpy(op(*map(tt.tensor, data))), expected(op, data, {}), data, {})


def test_every_row_has_a_definition_and_a_sample() -> None:
    assert reference.missing() == []
    assert [o.name for o in OPS.values() if o not in NOT_CALLED and not o.samples] == []


def test_every_row_costs_something_it_can_name() -> None:
    for op, sample in cases():
        specs = tuple(None if d is None else d.spec for d in sample.inputs)
        attrs = op.complete(dict(sample.attrs))
        decision = op.decide(specs, attrs)
        if op.kind is not Kind.DYNAMIC:
            cost = op.cost(decision.out, *decision.inputs, **attrs)
            assert min(cost) >= 0
            if op.kind is Kind.VIEW:
                assert cost == (0, 0, 0)


def test_expressions_say_what_the_rows_do() -> None:
    from scalar import NAMES

    for op, sample in cases(Kind.MAP):
        if op.expr is None or any(d is None for d in sample.inputs):
            continue
        data = arrays(op, sample)
        if any(x.dtype.itemsize == 2 for x in data):
            continue
        with np.errstate(all="ignore"):
            text = op.expr.format(*(f"x{i}" for i in range(len(data))))
            got = np.asarray(eval(text, NAMES, {f"x{i}": x for i, x in enumerate(data)}))
        want = expected(op, data, dict(sample.attrs))
        np.testing.assert_allclose(got.astype(want.dtype), want, rtol=1e-5, atol=1e-6, err_msg=op.name)


def test_specs_print_as_people_write_them() -> None:
    assert str(Spec((3, 4), tt.f32)) == "f32[3,4]"
    assert str(Spec((), tt.i8)) == "i8[]"


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_after_one_zero_towards_the_other_comes_the_other(kind: str) -> None:
    x, y = tt.tensor([0.0, -0.0, 0.0, -0.0], dtype=kind), tt.tensor([0.0, 0.0, -0.0, -0.0], dtype=kind)
    assert tt.signbit(tt.nextafter(x, y)).tolist() == [False, False, True, True]


def several(a: Any, b: Any = None, /, c: int = 1, *rest: Any, d: int, e: str = "x") -> None: ...


def test_parameters_of_a_rule_are_those_of_its_signature() -> None:
    others = several, partial(several, 1, d=2), wraps(several)(lambda *args: None)
    for rule in (*(op.rule for op in OPS.values()), *others):
        expected = [(p.name, p.kind, p.default) for p in inspect.signature(rule).parameters.values()]
        assert list(read_parameters(rule)) == expected
