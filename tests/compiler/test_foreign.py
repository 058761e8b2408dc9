"""Graphs run by a device's own library: every op gives what it gives by itself, what is not listed runs as before, and
arguments become what they should, whichever of them lies in another."""

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
from op_cases import by_op
from tritium import ops
from tritium.compiler.foreign import ForeignProgram, ValueSteps
from tritium.errors import BoundsError
from tritium.op import Kind, Op
from tritium.ops import Sample
from tritium.testing import arrays, call, cases, values

torch = pytest.importorskip("torch", reason="a device that keeps values of a library needs PyTorch: pip install torch")


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


@by_op(ROWS)
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
    assert unlisted == {ops.update_cache, ops.quantize, ops.quantize_ternary, ops.quantize_int4, ops.repack}


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


# ---- what arguments become


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch on the CPU as a device that writes donated arguments where they lie; nothing is captured."""
    backend = type(tt.device("torch").backend)
    for name, value in (
        ("compiler", "calls one after another"), ("writes_arguments", True), ("compiled", lambda self, run, form: run),
    ):  # fmt: skip
        monkeypatch.setattr(backend, name, value)


def own() -> list[Any]:
    return [tt.tensor(v, device="torch") for v in ([1.0, 2.0], [3.0, 4.0])]


def views() -> list[Any]:
    return list(tt.tensor([[1.0, 2.0], [3.0, 4.0]], device="torch"))


def shared() -> list[Any]:
    made = own()
    for x in made:
        x.torch()  # someone else looks at their memory
    return made


def swapped(a: Any, b: Any) -> Any:
    old = a.clone()
    ops.copy(b, out=a)
    ops.copy(old, out=b)
    return a.sum()


def moved_on(a: Any, b: Any) -> Any:
    new = a + 1
    ops.copy(a, out=b)
    ops.copy(new, out=a)
    return b.sum()


def replaced(a: Any, b: Any) -> Any:
    old = a.clone()
    a += b
    return old


@pytest.mark.usefixtures("writing")
@pytest.mark.parametrize("make", [own, views, shared])
@pytest.mark.parametrize("fn", [swapped, moved_on, replaced])
def test_arguments_become_what_others_were(fn: Callable[..., Any], make: Callable[[], list[Any]]) -> None:
    wanted, given = own(), make()
    want = fn(*wanted)
    compiled = tt.compile(fn, donate=("a", "b"))
    got = compiled(*given)
    assert compiled.program(*given).foreign is not None
    assert [x.tolist() for x in (got, *given)] == [x.tolist() for x in (want, *wanted)]


@pytest.mark.usefixtures("writing")
def test_a_view_of_what_an_argument_was_is_read_before_it_is_written_over() -> None:
    def fn(buffer: Any) -> Any:
        old = buffer.clone()
        buffer += 1
        return old.reshape(2, 3) * buffer.reshape(2, 3)

    wanted, given = (tt.asarray(np.arange(6, dtype=np.float32), device="torch") for _ in range(2))
    want = fn(wanted)
    assert tt.compile(fn, donate="buffer")(given).tolist() == want.tolist()
    assert given.tolist() == wanted.tolist()


@pytest.mark.usefixtures("writing")
def test_the_compiler_is_told_how_much_comes_out_and_how_many_calls_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(type(tt.device("torch").backend), "compiled", lambda self, run, form: told.append(form) or run)
    x, y = (tt.ones((8, 4), device="torch") for _ in range(2))
    tt.compile(lambda x, y: tt.softmax(x @ y.T, axis=0)).program(x, y)
    tt.compile(lambda x: x.sum(axis=0)).program(x)
    assert [(form.nbytes, form.calls) for form in told] == [(8 * 8 * 4, 2), (4 * 4, 1)]


def in_rows(a: Any, b: Any) -> Any:
    a[...] = a + b
    return a[:1], a.sum(), a


def twice(a: Any, b: Any) -> Any:
    new = a + b + 1
    ops.copy(new, out=a)
    ops.copy(new, out=b)
    return new, new * 2


def crossed(a: Any, b: Any) -> Any:
    old = a.clone()
    ops.copy(b, out=a)
    ops.copy(old, out=b)
    return old, a + b


@pytest.mark.usefixtures("writing")
@pytest.mark.parametrize("fn", [in_rows, twice, crossed])
def test_call_by_call_no_memory_is_shared(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.backends.cuda.graph import Captures

    def as_it_is(self: Any, run: Any, form: Any) -> Any:
        made = Captures(None, run, form)  # type: ignore[arg-type]  # nothing is captured
        return lambda *values: made._as_it_is(values)

    monkeypatch.setattr(type(tt.device("torch").backend), "compiled", as_it_is)
    wanted, given = own(), own()
    want, got = fn(*wanted), tt.compile(fn, donate=("a", "b"))(*given)
    kept = [x for x in (*given, *got) if not any(x is y for y in given)] + given
    assert [x.tolist() for x in (*got, *given)] == [x.tolist() for x in (*want, *wanted)]
    for x in kept:
        before = [(y, y.tolist()) for y in kept if y is not x]
        x.add_(1.0)
        assert all(y.tolist() == was for y, was in before)
