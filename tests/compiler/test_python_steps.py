"""Native programs in which some steps are kernels in Python: every kind of memory, errors, threads, spans."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import programs
import tritium as tt
from own_ops import registered
from tritium import buffer, launch, ops, recording
from tritium.compiler.explain import generate_execution_plan
from tritium.compiler.program import Program
from tritium.op import Kind, Trait

pytestmark = pytest.mark.skipif(buffer.native is None, reason="needs the native library")

X = tt.randn((16, 32), seed=1)
W = tt.randn((32, 32), seed=2)


def program(fn: Any, *args: Any) -> Program:
    return tt.compile(fn).program(*args)


def _doubled(x: tt.Spec, /, *, by: float = 2.0) -> tt.Spec:
    """x * by."""
    return x


def _double(x: Any, *, out: Any, by: float) -> None:
    np.multiply(buffer.host(x), x.dtype.numpy.type(by), out=buffer.host(out))


def _halves(x: tt.Spec, y: tt.Spec | None = None, /) -> tuple[tt.Spec, tt.Spec]:
    """x / 2, and x / 2 + y."""
    return x, x


def _halve(x: Any, y: Any, *, out: Any) -> None:
    np.divide(buffer.host(x), 2, out=buffer.host(out[0]))
    np.add(buffer.host(out[0]), 0 if y is None else buffer.host(y), out=buffer.host(out[1]))


def test_the_steps_around_one_in_python_stay_native(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []

    def kernel(x: Any, *, out: Any, by: float) -> None:
        calls.append((x.shape, by))
        _double(x, out=out, by=by)

    with registered(_doubled, kernel) as doubled, caplog.at_level("WARNING", logger="tritium"):
        fn = tt.compile(lambda x, w: tt.softmax(doubled(x @ w + 1.0, by=3.0)) @ w)
        want = tt.softmax(doubled(X @ W + 1.0, by=3.0)) @ W
        p = fn.program(X, W)
        calls.clear()
        for _ in range(3):
            np.testing.assert_array_equal(fn(X, W).numpy(), want.numpy())
        assert calls == [((16, 32), 3.0)] * 3
        assert p.native.runs == 3
        assert p.native.python_steps == 1
        assert p.native.steps == p.launches == 4
        assert "with steps in Python:\n  _doubled of f32[16,32] has no kernel" in p.explain()
        assert [s.kernel for s in generate_execution_plan(p).steps].count("own") == 1
        program(lambda x: doubled(x) + 1.0, X)
    assert [r.getMessage() for r in caplog.records if "_doubled" in r.getMessage()] == [
        "compile: _doubled is called from Python in <lambda>, between native steps: _doubled of f32[16,32] has no kernel "
        "that runs without Python"
    ]


@pytest.mark.parametrize("kind", [tt.f32, tt.f16, tt.bf16, tt.f64, tt.i32, tt.u8, tt.i64])
def test_a_step_in_python_reads_memory_of_every_kind(kind: tt.DType) -> None:
    x = tt.arange(24).reshape(4, 6).to(kind)
    with registered(_doubled, _double) as doubled:

        def fn(v: Any) -> Any:
            captured = doubled(x[::-1, ::2])  # a view of a captured tensor
            constant = doubled(tt.full((), 3, dtype=kind))
            argument = doubled(v.mT)
            arena = doubled((v + v)[1:, ::-1])
            spread = doubled((v[0, 0] + v[0, 1]).expand(3, 2))
            empty = doubled(v[:0] + v[:0])
            return captured, constant, argument, arena, spread, empty, doubled(doubled(v[2, 3]))

        c = tt.compile(fn)
        for v in (x, x + x, (x + x)[::-1]):
            for want, got in zip(fn(v), c(v), strict=True):
                assert want.spec == got.spec
                assert want.tolist() == got.tolist()
        assert c.program(x).native.python_steps >= 6


def test_a_step_in_python_has_several_results_and_optional_operands() -> None:
    with registered(_halves, _halve) as halves:
        fn = tt.compile(lambda x, y: (*halves(x + 1.0, y), *halves(tt.exp(y), None)))
        x, y = tt.randn((5, 3), seed=1), tt.randn((5, 3), seed=2)
        for want, got in zip((*halves(x + 1.0, y), *halves(tt.exp(y), None)), fn(x, y), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())
        assert fn.program(x, y).native.python_steps == 2


def test_packed_weights_go_through_a_step_in_python() -> None:
    for kind in (tt.tern2, tt.tern5, tt.i4):
        w = tt.repack(tt.tensor([[1, -1, 0, 1, 1], [0, 0, -1, 1, 0], [1, 1, 1, 0, -1]], dtype=tt.i8), kind)
        fn = tt.compile(lambda v, kind=kind: tt.repack(tt.repack(tt.repack(v, tt.i8), kind), tt.i8))
        assert fn(w).tolist() == tt.repack(w, tt.i8).tolist()
        assert fn.program(w).native is not None


def test_an_op_that_only_lowers_to_others_is_a_step() -> None:
    with registered(_doubled, None, lower=lambda x, by: x * by + 0.0) as doubled:
        fn = tt.compile(lambda x: tt.exp(doubled(tt.exp(x), by=0.5)))
        for x in (X, X.to("f16")):
            np.testing.assert_array_equal(fn(x).numpy(), tt.exp(doubled(tt.exp(x), by=0.5)).numpy())
            assert fn.program(x).native.python_steps == 1


def test_an_error_of_a_step_in_python_reaches_the_caller() -> None:
    class OddError(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one, two)

    def kernel(x: Any, *, out: Any, by: float) -> None:
        if buffer.host(x).max() > 50:
            raise OddError("too", "large")
        _double(x, out=out, by=by)

    with registered(_doubled, kernel) as doubled:
        fn = tt.compile(lambda x: doubled(x + 1.0) - 1.0)
        assert fn(tt.ones(3)).tolist() == [3.0, 3.0, 3.0]
        with pytest.raises(OddError) as caught:
            fn(tt.full((3,), 99.0))
        assert not hasattr(caught.value, "__notes__")
        assert fn(tt.ones(3)).tolist() == [3.0, 3.0, 3.0]

        def write(cache: Any) -> Any:
            cache += 1.0
            return doubled(cache)

        written = tt.compile(write, donate=0)
        assert written(tt.ones(3)).tolist() == [4.0, 4.0, 4.0]
        with pytest.raises(OddError) as caught:
            written(tt.full((3,), 99.0))
        assert "A donated argument was written before" in caught.value.__notes__[0]


def test_a_step_in_python_that_has_no_memory_says_so() -> None:
    def kernel(x: Any, *, out: Any, by: float) -> None:
        raise MemoryError("no room")

    with registered(_doubled, kernel) as doubled:
        program(lambda x: doubled(x), X)
        with pytest.raises(tt.errors.OutOfMemoryError, match=r"_doubled: a temporary array .* \(no room\)"):
            tt.compile(lambda x: doubled(x))(X)


def test_memory_that_a_step_in_python_shares_or_replaces_is_followed() -> None:
    clones: list[Any] = []

    def kernel(x: Any, *, out: Any, by: float) -> None:
        clones.append(x.clone())
        clones.append(out.clone())  # the next write gives `out` a block of its own
        ops.multiply(x, by, out=out)

    with registered(_doubled, kernel) as doubled:

        def fn(x: Any) -> Any:
            y = tt.exp(x)
            return tt.exp(doubled(y)), doubled(x), y

        got = tt.compile(fn)(X)
        np.testing.assert_array_equal(got[1].numpy(), X.numpy() * 2)
        np.testing.assert_array_equal(got[0].numpy(), tt.exp(tt.exp(X) * 2.0).numpy())
        np.testing.assert_array_equal(got[2].numpy(), tt.exp(X).numpy())


def test_a_step_in_python_may_call_its_own_program() -> None:
    depth = [0]

    def kernel(x: Any, *, out: Any, by: float) -> None:
        if depth[0] < 3:
            depth[0] += 1
            inner = fn(tt.tensor(buffer.host(x).copy()))
            depth[0] -= 1
            buffer.host(out)[...] = inner.numpy()
        else:
            _double(x, out=out, by=by)

    with registered(_doubled, kernel) as doubled:
        fn = tt.compile(lambda x: doubled(x + 1.0) * 2.0 + x)
        values = [X.numpy()]
        for _ in range(3):
            values.append(values[-1] + np.float32(1))
        result = (values[3] + np.float32(1)) * np.float32(2)
        for v in reversed(values):
            result = result * np.float32(2) + v
        np.testing.assert_array_equal(fn(X).numpy(), result)


def test_threads_share_a_program_with_a_step_in_python() -> None:
    with registered(_doubled, _double) as doubled, ThreadPoolExecutor(4) as pool:
        fn = tt.compile(lambda x: tt.exp(doubled(x @ W)) + 1.0)
        inputs = [tt.randn((64, 32), seed=i) for i in range(24)]
        want = [(tt.exp(doubled(x @ W)) + 1.0).numpy() for x in inputs]
        for got, expected in zip(pool.map(fn, inputs * 3), want * 3, strict=True):
            np.testing.assert_array_equal(got.numpy(), expected)


def test_a_step_in_python_leaves_one_span() -> None:
    with registered(_doubled, _double) as doubled:
        fn = tt.compile(lambda x: tt.exp(doubled(tt.exp(x))))
        fn(X)
        with recording.Recorder() as recorder:
            fn(X)
        whats, times = recorder.read()
    assert [getattr(w.op, "name", "") for w in whats if isinstance(w, launch.Launched)] == ["exp", "_doubled", "exp"]
    start, elapsed = int(times[0][0]), int(times[0][1])
    assert all(start <= t[0] and t[0] + t[1] <= start + elapsed for t in times[1:].tolist())


def _own_floor(x: tt.Spec, /) -> tt.Spec:
    """x rounded down."""
    return x


def _round_down(x: Any, *, out: Any) -> None:
    np.floor(buffer.host(x), out=buffer.host(out))


@settings(max_examples=25, deadline=None)
@given(programs.lines)
def test_random_programs_with_steps_in_python_equal_numpy(code: list[programs.Line]) -> None:
    data = [np.arange(24, dtype=np.float32).reshape(4, 6) % 7 - 3, np.arange(6, dtype=np.float32) - 2]
    with (
        registered(_doubled, _double) as doubled,
        registered(_own_floor, _round_down, Kind.MAP, traits=Trait.IN_PLACE) as floor,
    ):

        class Words(programs.OnTensors):
            @staticmethod
            def floor(x: Any) -> Any:
                return floor(x)

            @staticmethod
            def negative(x: Any) -> Any:
                return doubled(x, by=-1.0)

        fn = tt.compile(lambda *args: programs.run(code, Words, *args))
        got = fn(*(tt.asarray(d.copy()) for d in data))
        for g, w in zip(got, programs.run(code, programs.OnNumpy, *data), strict=True):
            np.testing.assert_array_equal(g.numpy(), w)
