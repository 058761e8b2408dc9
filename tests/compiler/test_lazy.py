"""lazy: written down now, computed once when asked, with the values of the time of writing."""

from __future__ import annotations

import numpy as np
import pytest

import tritium as tt
from tritium import buffer
from tritium.compiler import lazy as module
from tritium.errors import TraceError

A = tt.randn((4, 6), seed=1)
B = tt.randn((6, 4), seed=2)


def test_an_expression_computes_at_materialize() -> None:
    with tt.lazy():
        y = tt.relu(A @ B + 1.0)
    assert y.is_traced
    np.testing.assert_array_equal(y.materialize().numpy(), tt.relu(A @ B + 1.0).numpy())


def test_it_computes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    call = tt.Program.__call__
    monkeypatch.setattr(tt.Program, "__call__", lambda self, *a: (runs.append(1), call(self, *a))[1])
    with tt.lazy():
        y = tt.exp(A)
        z = y * 2.0
    first, second = y.materialize(), y.materialize()
    assert len(runs) == 1
    first += 1.0
    np.testing.assert_array_equal(second.numpy(), tt.exp(A).numpy())
    np.testing.assert_array_equal(z.materialize().numpy(), (tt.exp(A) * 2.0).numpy())
    assert len(runs) == 2


def test_a_later_write_is_not_seen() -> None:
    x = tt.ones(3)
    with tt.lazy():
        y = x * 2.0
    x += 10.0
    assert y.materialize().tolist() == [2, 2, 2]


def test_writes_inside_are_those_of_eager() -> None:
    with tt.lazy():
        y = A.clone()
        view = y[1:]
        y += 1.0
        view[0] = 5.0
    want = A.numpy().copy() + 1
    want[1] = 5
    np.testing.assert_array_equal(y.materialize().numpy(), want)


def test_it_may_materialize_inside() -> None:
    with tt.lazy():
        y = A + 1.0
        top = float(y.materialize().numpy().max())
        z = y - top
    assert float(z.materialize().max()) == 0


def test_a_function_as_an_expression() -> None:
    assert tt.lazy(lambda: tt.ones(2) + 1.0).materialize().tolist() == [2, 2]
    assert tt.lazy(tt.add, tt.ones(2), tt.ones(2)).materialize().tolist() == [2, 2]


def test_a_tensor_with_memory_is_its_own_value() -> None:
    assert A.materialize() is A


def test_reading_without_materialize_names_the_remedy() -> None:
    with tt.lazy():
        y = A + 1.0
    for read in (lambda: y.numpy(), lambda: float(y[0, 0]), lambda: y + 1.0):
        with pytest.raises(TraceError, match=r"call materialize\(\) on it first"):
            read()


def test_a_traced_tensor_that_is_not_lazy_has_no_value() -> None:
    with pytest.raises(TraceError, match="outside the traced function"):
        tt.trace(lambda x: x.materialize(), tt.Spec((2,)))


def test_lazy_does_not_nest() -> None:
    with tt.lazy(), pytest.raises(TraceError, match="recorded there already"), tt.lazy():
        pass


def test_equal_expressions_share_a_program() -> None:
    module._programs.clear()
    for seed in range(3):
        with tt.lazy():
            y = tt.tanh(tt.randn(5, seed=seed)) * 3.0
        y.materialize()
    x = tt.ones(5)
    for _ in range(3):
        with tt.lazy():
            z = tt.sqrt(x) * 3.0
        z.materialize()
    assert len(module._programs) <= 4


def test_a_constant_expression() -> None:
    with tt.lazy():
        y = tt.arange(3) * 2
    assert y.materialize().tolist() == [0, 2, 4]


def test_a_write_between_two_uses_is_seen_by_the_second() -> None:
    x, later = tt.ones(2), tt.lazy()
    with later:
        y = x + 1.0
    x += 10.0
    with later:
        z = x + 1.0
    assert (y.materialize().tolist(), z.materialize().tolist()) == ([2, 2], [12, 12])


@pytest.mark.skipif(buffer.native is None, reason="needs the native library: without it nothing fuses")
def test_a_chain_is_fused() -> None:
    before = tt.stats()["fusion"]["applied"]
    with tt.lazy():
        y = tt.relu(A * 2.0 + 1.0) - 0.25
    assert tt.stats()["fusion"]["applied"] == before
    np.testing.assert_array_equal(y.materialize().numpy(), (tt.relu(A * 2.0 + 1.0) - 0.25).numpy())
    assert tt.stats()["fusion"]["applied"] == before + 1
    with tt.lazy():
        y = tt.relu(A * 2.0 + 1.0) - 0.25
    with tt.profile(counters=None, ceilings=False) as profile:
        y.materialize()
    assert [(row.name, row.count) for row in profile.ops()] == [("fused multiply+add+relu+subtract", 1)]
