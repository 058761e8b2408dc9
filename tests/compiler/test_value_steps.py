"""Graphs as functions of a library's values: every row gives what it gives by itself, and what is not listed runs as before."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import programs
import tritium as tt
from tritium import ops
from tritium.compiler.foreign import ForeignProgram
from tritium.compiler.value_steps import ValueSteps
from tritium.errors import BoundsError
from tritium.op import Kind, Op
from tritium.ops import Sample
from tritium.testing import arrays, call, case_id, cases, values

torch = pytest.importorskip("torch", reason="values of a library: pip install torch")


@pytest.fixture(autouse=True, scope="module")
def _calling() -> Any:
    """torch on the CPU as a device whose compiler carries the calls out as they are."""
    backend = type(tt.device("torch").backend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "compiler", "calls one after another")
        patch.setattr(backend, "compiled", lambda self, run, form: run)
        yield


def there(x: Any) -> Any:
    return tt.asarray(x).to("torch")


def program(fn: Callable[..., Any], *xs: Any) -> ForeignProgram:
    return ForeignProgram(tt.trace(fn, *xs), tt.device("torch").backend)


def steps(made: ForeignProgram) -> ValueSteps | None:
    assert made._listed, "it was not called"
    return made._listed[0]


def same(a: Any, b: Any) -> None:
    for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (a, b)), strict=True):
        assert x.spec == y.spec
        np.testing.assert_array_equal(values(x), values(y))


ROWS = cases(Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE, Kind.FUSED)


def of_row(op: Op, sample: Sample) -> tuple[Callable[..., Any], list[Any]]:
    """A function that is one call of a row, and its arguments."""
    xs = [None if x is None else there(x) for x in arrays(op, sample)]

    def fn(*ts: Any) -> Any:
        left = iter(ts)
        return call(op, [None if x is None else next(left) for x in xs], dict(sample.attrs))

    return fn, [x for x in xs if x is not None]


@pytest.mark.parametrize(("op", "sample"), ROWS, ids=case_id)
def test_every_row(op: Op, sample: Sample) -> None:
    fn, given = of_row(op, sample)
    same(program(fn, *given)(*given), fn(*given))


def test_nearly_every_row_is_listed() -> None:
    unlisted = set()
    for op, sample in ROWS:
        fn, given = of_row(op, sample)
        made = program(fn, *given)
        made(*given)
        if steps(made) is None and all(x.size for x in given):
            unlisted.add(op)
    assert unlisted == {ops.update_cache, ops.quantize_ternary, ops.quantize_int4, ops.repack}


@settings(max_examples=60, deadline=None)
@given(programs.lines)
def test_random_programs(code: list[programs.Line]) -> None:
    data = [np.arange(24, dtype=np.float32).reshape(4, 6) % 7 - 3, np.arange(6, dtype=np.float32) - 2]
    tensors = [there(d.copy()) for d in data]

    class Words(programs.OnTensors):
        captured = there(programs.W.copy())
        nothing = there(np.zeros(programs.SHAPE, np.float32))  # tt.zeros is a source, which is not listed
        zeros = staticmethod(lambda shape: Words.nothing.clone())

    made = program(lambda *args: programs.run(code, Words, *args), *tensors)
    for got, want in zip(made(*tensors), programs.run(code, programs.OnNumpy, *data), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


VIEWS = {
    "whole": lambda x: x.reshape(6, 4) * 2,
    "turned": lambda x: x.mT + 1,
    "part": lambda x: (x[1:, ::2] * 3).sum(axis=0),
    "backwards": lambda x: x[::-1] - x,
    "repeated": lambda x: tt.broadcast_to(x[:1], (4, 6)) + x,
    "of a view": lambda x: x.mT[1:3].reshape(2, 4) @ x,
    "of a result": lambda x: (x * 2).mT[2:] @ (x + 1),
    "a result": lambda x: ((x + 1).mT, (x + 1).reshape(-1)),
}


@pytest.mark.parametrize("fn", VIEWS.values(), ids=list(VIEWS))
@pytest.mark.parametrize("how", ["plain", "turned", "part"])
def test_views_of_arguments_that_lie_in_any_way(fn: Callable[[Any], Any], how: str) -> None:
    wide = there(np.arange(200, dtype=np.float32).reshape(20, 10))
    x = {"plain": wide[:12, :2].clone().reshape(4, 6), "turned": wide[:6, :4].mT, "part": wide[3:7, 2:8]}[how]
    made = program(fn, x)
    for _ in range(2):
        same(made(x), fn(x))
    assert steps(made) is not None


def test_an_operand_that_is_left_out_and_several_results() -> None:
    x = there(np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4))
    made = program(lambda x: tt.quantize_activations(tt.clip(x, None, 2.0)), x)
    same(made(x), tt.quantize_activations(tt.clip(x, None, 2.0)))
    assert steps(made) is not None


def test_what_is_doubtful_is_told() -> None:
    x, rows = there(np.arange(12, dtype=np.float32).reshape(3, 4)), there(np.array([0, 2]))
    made = program(lambda x, i, j: x[i, j] * 2, x, rows, rows)
    with pytest.raises(BoundsError, match="outside an axis of size 4"):
        made(x, rows, there(np.array([1, 9])))
    assert made(x, rows, there(np.array([1, 3]))).tolist() == [2, 22]
    assert steps(made) is not None
    assert made._doubts


def test_each_thread_is_told_of_its_own_doubts() -> None:
    x, rows = there(np.arange(12, dtype=np.float32).reshape(3, 4)), there(np.array([0, 2]))
    good, bad = there(np.array([1, 3])), there(np.array([1, 9]))
    made = program(lambda x, i, j: x[i, j] * 2, x, rows, rows)
    made(x, rows, good)

    def told(k: int) -> list[bool]:
        found = []
        for n in range(100):
            try:
                made(x, rows, bad if (n + k) % 2 else good)
                found.append(False)
            except BoundsError:
                found.append(True)
        return found

    with ThreadPoolExecutor(8) as pool:
        for k, found in enumerate(pool.map(told, range(8))):
            assert found == [bool((n + k) % 2) for n in range(100)]


def test_values_are_let_go_when_nobody_reads_them_any_more() -> None:
    x = there(np.ones(8, dtype=np.float32))
    made = program(lambda x: ((x + 1) * 2 - x).sum(), x)
    made(x)
    listed = steps(made)
    assert listed is not None
    kept: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def watched(fn: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            alive.append(sum(r() is not None for r in kept))
            found = fn(*values)
            kept.append(weakref.ref(found))
            return found

        return run

    looked = listed._replace(steps=[s._replace(fn=watched(s.fn)) for s in listed.steps])
    assert looked.run(_operands(made, x))[0].item() == 24.0
    assert alive == [0, 1, 1, 1]


def _operands(made: ForeignProgram, *xs: Any) -> list[Any]:
    return [*map(made._argument, xs, made._specs), *made._inside.values()]


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: x + tt.arange(3, device="torch"), np.ones(3, np.float32)),
        (lambda x: tt.concat([x, x]), np.ones((0, 3), np.float32)),
        (lambda x: x.mT.reshape(-1) + 1, np.ones((2, 3), np.float32)),
    ],
    ids=["what is made of nothing", "no elements", "a reshape that is a copy"],
)
def test_what_is_not_listed_runs_node_by_node(fn: Callable[[Any], Any], x: Any) -> None:
    made = program(fn, there(x))
    same(made(there(x)), fn(there(x)))
    assert steps(made) is None
