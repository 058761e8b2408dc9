"""Programs of a device's own compiler: what arguments become, whichever of them lies in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import ops

torch = pytest.importorskip("torch", reason="a device that stands for CUDA needs PyTorch: pip install torch")


@pytest.fixture(autouse=True)
def _writing(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("make", [own, views, shared])
@pytest.mark.parametrize("fn", [swapped, moved_on, replaced])
def test_arguments_become_what_others_were(fn: Callable[..., Any], make: Callable[[], list[Any]]) -> None:
    wanted, given = own(), make()
    want = fn(*wanted)
    compiled = tt.compile(fn, donate=("a", "b"))
    got = compiled(*given)
    assert compiled.program(*given).foreign is not None
    assert [x.tolist() for x in (got, *given)] == [x.tolist() for x in (want, *wanted)]


def test_a_view_of_what_an_argument_was_is_read_before_it_is_written_over() -> None:
    def fn(buffer: Any) -> Any:
        old = buffer.clone()
        buffer += 1
        return old.reshape(2, 3) * buffer.reshape(2, 3)

    wanted, given = (tt.asarray(np.arange(6, dtype=np.float32), device="torch") for _ in range(2))
    want = fn(wanted)
    assert tt.compile(fn, donate="buffer")(given).tolist() == want.tolist()
    assert given.tolist() == wanted.tolist()


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
