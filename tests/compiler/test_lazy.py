"""lazy: written down now, computed once when asked, with the values of the time of writing."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import programs
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


READS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda y: y.numpy().tolist(),
    "np.asarray": lambda y: np.asarray(y).tolist(),
    "dlpack": lambda y: np.from_dlpack(y).tolist(),
    "tolist": lambda y: y.tolist(),
    "item": lambda y: [y[0, 0].item(), float(y[0, 1]), int(y[1, 0]), bool(y[0, 0] == 2)],
    "format": lambda y: [repr(y), str(y), f"{y[0, 0]:.1f}"],
    "iteration": lambda y: [[float(x) for x in row] for row in y],
    "if": lambda y: 1 if y.sum() > 3 else 2,
    "in": lambda y: 2.0 in y,
    "arithmetic": lambda y: (y + 1.0).tolist(),
    "mask": lambda y: y[y > 2].tolist(),
    "nonzero": lambda y: [x.tolist() for x in tt.nonzero(y - 2)],
    "index": lambda y: y[:, tt.asarray([1, 0])].tolist(),
    "numpy's function": lambda y: float(np.sum(y)),
    "compiled": lambda y: tt.compile(lambda a: a * 2)(y).tolist(),
    "captured": lambda y: tt.compile(lambda a: a + y)(tt.ones((2, 2))).tolist(),
    "mapped": lambda y: tt.vmap(lambda a: a * y)(tt.ones(3)).tolist(),
    "einsum": lambda y: tt.einsum("ij,jk->ik", y, y).tolist(),
    "stack": lambda y: tt.stack([y, y]).tolist(),
    "to": lambda y: y.to("f16").to("cpu").tolist(),
    "pickle": lambda y: pickle.loads(pickle.dumps(y)).tolist(),
    "copy": lambda y: copy.deepcopy(y).tolist(),
    "device": lambda y: str(y.device),
    "run_many": lambda y: [x.tolist() for x in tt.compile(lambda a: a + 1).run_many([y, y])],
    "batches": lambda y: tt.process_in_batches(lambda b: b * 2, y, 1).tolist(),
}


@pytest.mark.parametrize("name", READS)
def test_a_value_that_is_read_is_computed(name: str) -> None:
    x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    read = READS[name]
    want = read(x + 1.0)
    later = tt.lazy()
    with later:
        y = x + 1.0
    assert read(y) == want
    with later:
        z = x + 1.0
        got = read(z)
        assert (got.tolist() if isinstance(got, tt.Tensor) else got) == want
    assert y.is_traced


@given(programs.lines, st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_random_programs_with_reads_between_are_numpys(code: list[programs.Line], choice: Any) -> None:
    class Words(programs.OnTensors):
        @staticmethod
        def clip(x: Any) -> Any:
            if choice.random() < 0.1:
                x.sum().item()
            return tt.clip(x, -8.0, 8.0)

    data = [np.arange(24, dtype=np.float32).reshape(4, 6) % 7 - 3, np.ones((4, 6), np.float32)]
    want = programs.run(code, programs.OnNumpy, *data)
    with tt.lazy():
        results = programs.run(code, Words, *(tt.asarray(a.copy()) for a in data))
    pairs = list(zip(results, want, strict=True))
    choice.shuffle(pairs)
    for x, y in pairs:
        np.testing.assert_array_equal(x.numpy(), y)
    # Writes after the block are seen by all views of the memory, as in NumPy.
    made, array = results[-2], want[-2]
    view, part = made[1:], array[1:]
    made += 1.0
    array += 1.0
    view[0] = 5.0
    part[0] = 5.0
    for x, y in (*pairs, (view, part)):
        if np.shares_memory(y, array) or y is part:
            np.testing.assert_array_equal(x.numpy(), y)


def launches(fn: Callable[[], Any]) -> list[str]:
    """The ops that a function runs."""
    names: list[str] = []
    watcher = tt.watch(lambda launched, *_: names.append(launched.op.name))
    try:
        fn()
    finally:
        tt.unwatch(watcher)
    return names


def test_a_part_that_two_tensors_share_is_computed_once() -> None:
    with tt.lazy():
        part = tt.cumulative_sum(A, axis=0)
        y, z = tt.exp(part), part.sum(axis=0)
        del part
    assert launches(lambda: y.numpy()).count("cumulative_sum") == 1
    assert launches(lambda: z.numpy()).count("cumulative_sum") == 0
    np.testing.assert_allclose(z.numpy(), tt.cumulative_sum(A, axis=0).sum(axis=0).numpy(), rtol=1e-6)


def test_a_tensor_on_the_way_to_another_is_computed_with_it() -> None:
    with tt.lazy():
        x = tt.cumulative_sum(A, axis=0)
        y = x + 1.0
    assert launches(lambda: y.numpy()).count("cumulative_sum") == 1
    assert set(launches(lambda: (x.numpy(), y.numpy(), float(x[0, 0]), float(x[1, 1])))) <= {"copy"}


def test_values_that_no_tensor_reads_any_more_are_dropped() -> None:
    later = tt.lazy()
    x = tt.ones(1 << 16)
    with later:
        for _ in range(5):
            x = x + 1.0
            float(x[0])
    assert len(later.trace.values) <= 2
    assert x[0].item() == 6


def test_the_address_of_a_lazy_tensor_asks_for_its_own_memory() -> None:
    with tt.lazy():
        y = A + 1.0
    with pytest.raises(TraceError, match=r"it is lazy: call materialize\(\) first"):
        _ = y.data_ptr


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


def test_tensors_of_an_expression_are_released_without_a_search_for_garbage() -> None:
    x, later = tt.ones((3, 3)), tt.lazy()
    gc.disable()
    try:
        with later:
            y = tt.tanh(x @ A[:3, :3]) + 1.0
        y.materialize()
        ends = [weakref.ref(x), weakref.ref(y), weakref.ref(y.storage.cell)]
        del x, y, later
        assert [end() for end in ends] == [None] * 3
    finally:
        gc.enable()


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
