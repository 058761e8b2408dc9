"""Steps on memory: what is copied, what is written in place, and whose memory a result is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tritium as tt
from own_ops import registered
from tritium import buffer
from tritium.buffer import host
from tritium.compiler.passes import simplify
from tritium.compiler.steps import Steps, UnableError, build
from tritium.layout import contiguous

pytestmark = pytest.mark.skipif(buffer.native is None, reason="needs the native library")

CPU = tt.device("cpu").backend
V = tt.Spec((64,))
M = tt.Spec((8, 8))


def steps(fn: Any, *specs: tt.Spec, donate: tuple[int, ...] = ()) -> Steps:
    graph = simplify(tt.trace(fn, *specs, donate=donate)).graph
    return build(graph, CPU, tuple(contiguous(s.shape) for s in specs))


def rows(s: Steps) -> list[str]:
    return [c.op.name for c in s.calls]


def where(s: Steps) -> list[str]:
    return [r.value.memory.where for r in s.results]


def test_views_cost_nothing() -> None:
    s = steps(lambda x: (x.mT[1:], x.reshape(64)), M)
    assert rows(s) == []
    assert where(s) == ["argument", "argument"]


def test_a_view_that_cannot_be_is_one_copy() -> None:
    assert rows(steps(lambda x: x.mT.reshape(64), M)) == ["copy"]


def test_parts_are_joined_by_copies_into_them() -> None:
    s = steps(lambda x, y: tt.concat([x, y, x], axis=1), M, M)
    assert rows(s) == ["copy"] * 3
    assert len({id(c.outputs[0].memory) for c in s.calls}) == 1
    assert rows(steps(lambda x, y: tt.stack([x, y], axis=-1), M, M)) == ["copy"] * 2


def test_a_write_to_a_temporary_is_in_place() -> None:
    def fn(x: Any) -> Any:
        y = x * 2.0
        y[0] = 1.0
        return y

    s = steps(fn, M)
    assert rows(s) == ["multiply", "copy"]
    assert s.calls[0].outputs[0].memory is s.calls[1].outputs[0].memory


def test_a_write_to_what_is_read_later_makes_a_copy_first() -> None:
    def fn(x: Any) -> Any:
        y = x * 2.0
        z = y.clone()
        z[0] = 1.0
        return y, z

    assert rows(steps(fn, M)) == ["multiply", "copy", "copy"]


def test_a_row_that_may_writes_over_what_nobody_reads_any_more() -> None:
    s = steps(lambda x: tt.exp(tt.cumulative_sum(x, axis=0)), V)
    assert s.calls[1].outputs[0].memory is s.calls[1].inputs[0].memory  # type: ignore[union-attr]
    assert s.plan.naive_bytes == 0  # the sums are made where the result will be


def test_an_argument_is_never_written() -> None:
    s = steps(lambda x: tt.exp(x), V)
    assert s.calls[0].outputs[0].memory.where == "result"


def test_a_donated_argument_is_written_where_it_is() -> None:
    def fn(c: Any, x: Any) -> Any:
        c[0] = x
        c[1] = x
        return c.sum(axis=0)

    s = steps(fn, M, tt.Spec((8,)), donate=(0,))
    assert [c.outputs[0].memory.where for c in s.calls] == ["argument", "argument", "result"]


def test_old_contents_that_are_a_result_are_kept_aside() -> None:
    def fn(c: Any) -> Any:
        old = c * 1.0
        c += 1.0
        return old

    s = steps(fn, V, donate=(0,))
    assert rows(s) == ["add", "copy", "copy"]
    assert where(s) == ["result"]


def test_equal_constants_are_kept_once() -> None:
    s = steps(lambda x, y: (x * 2.0, y * 2.0, x + 3.0), V, M)
    assert len(s.constants) == 12  # two of four bytes, eight apart


def test_a_constant_result_is_a_copy() -> None:
    s = steps(lambda x: (tt.full((), 2.0) * 3.0, x), V)
    assert where(s) == ["result", "argument"]


def test_two_results_of_one_memory_share_it_until_they_are_written() -> None:
    s = steps(lambda x: (y := tt.exp(x), y.mT), M)
    assert s.results[0].value.memory is s.results[1].value.memory


def test_what_has_no_native_kernel_is_a_step_in_python() -> None:
    with registered(_twice, lambda x, *, out: np.multiply(host(x), 2, out=host(out))) as twice:
        s = steps(lambda x: tt.exp(twice(tt.exp(x))), V)
        assert rows(s) == ["exp", "_twice", "exp"]
        assert list(s.python) == [1]
        assert "_twice of f32[64] has no kernel that runs without Python" in s.python[1]


def test_what_has_no_kernel_at_all_is_told() -> None:
    with registered(_twice, None) as twice, pytest.raises(UnableError, match="twice of f32"):
        steps(lambda x: twice(x), V)


def _twice(x: tt.Spec, /) -> tt.Spec:
    """2 * x."""
    return x


def test_inputs_of_any_shape_are_joined_flat_by_copies() -> None:
    s = steps(lambda x, y: tt.concat([x.mT, y, x[::-1, 1:]], axis=None), M, V)
    assert rows(s) == ["copy", "copy", "copy"]
    assert not s.python
