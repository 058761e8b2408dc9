"""compile: what it is called with, what it keeps, what it writes, and that it gives what the function gives."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import awkward
import programs
import tritium as tt
from op_cases import by_op
from tritium import buffer
from tritium.compiler.compile import MAX_PROGRAMS
from tritium.compiler.program import PASSES
from tritium.errors import ArgumentError, BoundsError, DeviceError, TraceError, VerifyError, ViewError
from tritium.op import Kind, Op
from tritium.ops import Sample
from tritium.testing import arrays, call, cases, laid, values

X = tt.randn((4, 8), seed=1)
W = tt.randn((8, 8), seed=2)


def same(a: Any, b: Any) -> None:
    for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (a, b)), strict=True):
        assert x.spec == y.spec
        np.testing.assert_array_equal(values(x), values(y))


# ---- every row, random programs


@by_op(cases(Kind.SOURCE, Kind.VIEW, Kind.MAP, Kind.REDUCE, Kind.CONTRACT, Kind.MOVE, Kind.FUSED))
def test_compiled_equals_eager(op: Op, sample: Sample) -> None:
    attrs = dict(sample.attrs)
    xs = [None if x is None else laid(x, "contiguous") for x in arrays(op, sample)]
    given = [x for x in xs if x is not None]

    def fn(*ts: Any) -> Any:
        left = iter(ts)
        return call(op, [None if x is None else next(left) for x in xs], attrs)

    compiled = tt.compile(fn, verify=True)
    eager = fn(*given)
    for _ in ("made", "kept"):
        same(compiled(*given), eager)


@settings(max_examples=60, deadline=None)
@given(programs.lines)
def test_random_programs_give_the_same_compiled_written_down_eager_and_in_numpy(code: list[programs.Line]) -> None:
    data = [np.arange(24, dtype=np.float32).reshape(4, 6) % 7 - 3, np.arange(6, dtype=np.float32) - 2]
    tensors = [tt.asarray(d.copy()) for d in data]

    def fn(*args: Any) -> Any:
        return programs.run(code, programs.OnTensors, *args)

    want = programs.run(code, programs.OnNumpy, *data)
    written = tt.trace(fn, *tensors)
    for got in (fn(*tensors), written(*tensors), tt.compile(fn)(*tensors)):
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g.numpy(), w)
    for t, d in zip(tensors, data, strict=True):
        np.testing.assert_array_equal(t.numpy(), d)


@pytest.mark.parametrize("how", ["transposed", "sliced", "reversed", "broadcast"])
def test_arguments_of_any_layout(how: str) -> None:
    x = laid(np.arange(12, dtype=np.float32).reshape(3, 4), how)

    def fn(x: Any) -> Any:
        return tt.relu(x * 2.0 - 3.0), x.reshape(-1) + 1.0, x.sum(axis=0)

    compiled = tt.compile(fn, verify=True)
    same(compiled(x), fn(x))
    same(compiled(x), fn(x))


# ---- arguments and results


def test_it_is_a_decorator_with_and_without_options() -> None:
    @tt.compile
    def plain(x: Any) -> Any:
        """Adds one."""
        return x + 1.0

    @tt.compile(verify=True)
    def checked(x: Any) -> Any:
        return x + 2.0

    assert (plain.__name__, plain.__doc__) == ("plain", "Adds one.")
    assert plain(tt.ones(2)).tolist() == [2, 2]
    assert checked(tt.ones(2)).tolist() == [3, 3]


def test_tensors_may_be_nested_and_named() -> None:
    @tt.compile
    def fn(pair: Any, *, state: Any, scale: float = 1.0) -> Any:
        return {"sum": pair[0] + pair[1] * scale, "state": [state["h"] * 2.0]}

    got = fn((tt.ones(2), tt.ones(2)), state={"h": tt.ones(3)}, scale=3.0)
    assert got["sum"].tolist() == [4, 4]
    assert got["state"][0].tolist() == [2, 2, 2]


def test_numbers_and_strings_are_part_of_the_program() -> None:
    @tt.compile
    def fn(x: Any, n: Any, how: str) -> Any:
        return x * n if how == "times" else x + n

    one = tt.ones(2)
    assert fn(one, 3, "times").tolist() == [3, 3]
    assert fn(one, 3, "plus").tolist() == [4, 4]
    assert fn(one, 3.0, "plus").tolist() == [4, 4]
    assert fn.cache_info().programs == 3


def test_a_method_is_compiled_for_its_object() -> None:
    class Layer:
        def __init__(self, w: float) -> None:
            self.w = tt.full((2,), w)

        @tt.compile
        def __call__(self, x: Any) -> Any:
            return x * self.w

    assert Layer(2.0)(tt.ones(2)).tolist() == [2, 2]
    assert Layer(5.0)(tt.ones(2)).tolist() == [5, 5]
    assert "calls written" in Layer(3.0).__call__.explain(tt.ones(2))


class Part:
    """A part of a model, with a way back to it."""

    def __init__(self, whole: Any) -> None:
        self.whole, self.w = whole, tt.ones(2)

    def apply(self, x: Any) -> Any:
        return x * self.w


class Slotted:
    """A part without a dict."""

    __slots__ = ("gain",)

    def __init__(self) -> None:
        self.gain = 1.0


class Whole:
    """A model whose compiled methods read tensors, numbers and parts of it."""

    def __init__(self) -> None:
        self.w, self.scale, self.flip, self.bias = tt.ones(2), 1.0, False, None
        self.part, self.slotted = Part(self), Slotted()
        self.parts, self.named, self.tied = [Part(self)], {"w": tt.ones(2)}, self.w
        self.calls = 0

    def scaled(self, x: Any) -> Any:
        return -x * self.scale if self.flip else x * self.scale

    def plain(self, x: Any) -> Any:
        y = self.part.apply(self.scaled(x) * self.w) * self.named["w"] * self.slotted.gain * self.tied
        for part in self.parts:
            y = part.apply(y)
        return y if self.bias is None else y + self.bias

    compiled = tt.compile(plain)

    def count(self) -> None:
        self.calls += 1


def run_by_argument(model: Any, x: Any) -> Any:
    return model.plain(x)


FORMS: dict[str, Any] = {
    "method": lambda model: model.compiled,
    "bound": lambda model: tt.compile(model.plain),
    "argument": lambda model: partial(tt.compile(run_by_argument), model),
}
CHANGES: list[Any] = [
    lambda m: setattr(m, "w", tt.full((2,), 3.0)),
    lambda m: setattr(m, "tied", tt.full((2,), 3.0)),
    lambda m: setattr(m, "scale", 5.0),
    lambda m: setattr(m, "flip", True),
    lambda m: setattr(m, "bias", tt.full((2,), 7.0)),
    lambda m: setattr(m.part, "w", tt.full((2,), 3.0)),
    lambda m: setattr(m, "part", setattr(part := Part(m), "w", tt.full((2,), 9.0)) or part),
    lambda m: setattr(m.slotted, "gain", 2.0),
    lambda m: m.parts.append(setattr(part := Part(m), "w", tt.full((2,), 4.0)) or part),
    lambda m: setattr(m.parts[0], "w", tt.full((2,), 6.0)),
    lambda m: m.named.update(w=tt.full((2,), 8.0)),
    lambda m: m.w.mul_(2.0),
    lambda m: m.parts.clear(),
]


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_method_reads_attributes_that_were_rebound(form: str) -> None:
    model, x = Whole(), tt.tensor([1.0, 2.0])
    run = FORMS[form](model)
    for change in CHANGES:
        run(x)
        change(model)
        assert run(x).tolist() == model.plain(x).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_attributes_that_a_method_does_not_read_compile_nothing_anew(form: str) -> None:
    model, x = Whole(), tt.ones(2)
    run = FORMS[form](model)
    compiled = run.func if isinstance(run, partial) else run
    compiled.cache_clear()
    for _ in range(5):
        run(x)
        model.count()
        model.scale = float("1.0")  # an equal number
        model.other = tt.ones(3)  # type: ignore[attr-defined]
    assert (compiled.cache_info().hits, compiled.cache_info().misses) == (4, 1)


class Equal(Whole):
    """A model that compares equal to others, and so has no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)


@pytest.mark.parametrize("kind", [Whole, Equal])
def test_programs_keep_no_object_alive(kind: type[Whole]) -> None:
    Whole.compiled.cache_clear()
    x = tt.ones(2)
    first, second = kind(), kind()
    second.w = tt.full((2,), 2.0)
    second.tied = second.w
    assert (first.compiled(x).tolist(), second.compiled(x).tolist()) == ([1, 1], [4, 4])
    first.scale = 2.0
    assert first.compiled(x).tolist() == [2, 2]  # compiled again, under an equal key
    ends = [weakref.ref(first), weakref.ref(second), weakref.ref(first.part)]
    del first, second
    gc.collect()
    assert [end() for end in ends] == [None, None, None]
    assert Whole.compiled.cache_info().programs == 0


def test_an_object_that_is_an_argument_is_not_kept_alive() -> None:
    fn = tt.compile(run_by_argument)
    for _ in range(3):
        model = Whole()
        fn(model, tt.ones(2))
        end = weakref.ref(model)
        del model
        gc.collect()
        assert end() is None
    assert fn.cache_info().programs == 0


def fast_calls(compiled: Any, run: Any, *args: Any) -> int:
    """Return how many of three calls ran without a Python frame of the compiler."""
    before = compiled.hits
    for _ in range(3):
        run(*args)
    return int(compiled.hits - before)


@pytest.mark.skipif(buffer.native is None, reason="needs the native library")
@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_method_has_a_fast_path_for_each_object(form: str) -> None:
    Whole.compiled.cache_clear()
    x = tt.tensor([1.0, 2.0])
    models = [Whole(), Whole()]
    runs = [FORMS[form](m) for m in models]
    for change in [lambda m: None, *CHANGES]:
        for model, run in zip(models, runs, strict=True):
            change(model)
            compiled = run.func if hasattr(run, "func") else run
            assert run(x).tolist() == model.plain(x).tolist()
            assert fast_calls(compiled, run, x) == 3
            model.count()  # not read
            assert fast_calls(compiled, run, x) == 3


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, len(CHANGES) + 5)), max_size=5))
def test_random_changes_of_attributes_are_read(changes: list[tuple[int, int]]) -> None:
    x = tt.tensor([1.0, 2.0])
    models = [Whole(), Equal()]
    runs = [[form(m) for name, form in FORMS.items() if m is models[0] or name != "argument"] for m in models]
    more: list[Any] = [
        lambda m: setattr(m, "scale", -0.0),
        lambda m: setattr(m, "scale", 0.0),
        lambda m: setattr(m, "scale", 2),
        lambda m: setattr(m, "tied", m.w),
        lambda m: m.__dict__.update(bias=None),
        lambda m: setattr(m, "parts", [Part(m), Part(m)]),
    ]
    for which, change in changes:
        (*CHANGES, *more)[change](models[which])
        for model, forms in zip(models, runs, strict=True):
            want = model.plain(x)
            for run in (*forms, *forms):
                got = run(x)
                assert got.tolist() == want.tolist()
                assert tt.signbit(got).tolist() == tt.signbit(want).tolist()


def test_an_object_in_the_place_of_another_has_its_own_program() -> None:
    compiled = Whole.compiled
    compiled.cache_clear()
    x = tt.ones(2)
    for i in range(20):  # ids are used again
        model = Whole()
        model.scale = float(i)
        assert model.compiled(x).tolist() == model.compiled(x).tolist() == [i, i]
        model.__dict__.clear()  # no way back from its part
    del model
    assert not compiled.methods
    assert compiled.cache_info().programs == 0


def test_a_part_that_has_ended_is_not_taken_for_none() -> None:
    class Holder:
        def __init__(self) -> None:
            self.one = self.two = Part(None)

        @tt.compile
        def run(self, x: Any) -> Any:
            return x * 2.0 if self.two is None else self.two.apply(x)

    holder = Holder()
    assert holder.run(tt.ones(2)).tolist() == [1, 1]
    holder.two = None  # type: ignore[assignment]
    assert holder.run(tt.ones(2)).tolist() == [2, 2]
    holder.one = None  # type: ignore[assignment]
    assert holder.run(tt.ones(2)).tolist() == [2, 2]


def test_the_fast_paths_of_many_objects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.compiler.compile.MAX_PROGRAMS", 64)
    Whole.compiled.cache_clear()
    models = [Whole() for _ in range(70)]
    for model in models:
        model.compiled(tt.ones(2))
    assert len(Whole.compiled.methods) <= 64


def test_objects_without_weak_references_or_with_other_arguments_are_called() -> None:
    class Bare:
        __slots__ = ("gain",)

        @tt.compile
        def run(self, x: Any, times: int = 1, *, plus: Any = 0.0) -> Any:
            return x * self.gain * times + plus

    bare = Bare()
    bare.gain = 3.0
    x = tt.ones(2)
    for _ in range(2):
        assert bare.run(x).tolist() == [3, 3]
        assert bare.run(x, 2).tolist() == [6, 6]
        assert bare.run(x, plus=tt.ones(2)).tolist() == [4, 4]
        assert Bare.run(bare, x).tolist() == [3, 3]
    assert str(inspect.signature(bare.run)) == "(x: 'Any', times: 'int' = 1, *, plus: 'Any' = 0.0) -> 'Any'"
    assert bare.run.__self__ is bare
    assert bare.run.__name__ == "run"
    assert repr(bare.run).startswith("<compiled method run of <")
    assert tt.compile(bare.run)(x).tolist() == [3, 3]


def test_a_compiled_method_of_a_method_reads_rebound_attributes() -> None:
    model, x = Whole(), tt.ones(2)
    again = tt.compile(model.compiled)
    assert again(x).tolist() == [1, 1]
    model.scale = 4.0
    assert again(x).tolist() == [4, 4]
    end = weakref.ref(model)
    model.again = again  # type: ignore[attr-defined]
    del model, again
    gc.collect()
    assert end() is None


def test_equal_values_share_a_program() -> None:
    @dataclass(frozen=True)
    class Config:
        factor: float

    fn = tt.compile(lambda x, config: x * config.factor)
    for _ in range(3):
        assert fn(tt.ones(2), Config(3.0)).tolist() == [3, 3]
    assert fn.cache_info().misses == 1


def test_a_method_runs_many_inputs_and_inside_another_trace() -> None:
    model, x = Whole(), tt.ones(2)
    model.scale = 3.0
    assert [y.tolist() for y in model.compiled.run_many([x, x * 2.0])] == [[3, 3], [6, 6]]
    assert tt.compile(lambda y: model.compiled(y) + 1.0)(x).tolist() == [4, 4]
    assert "calls written" in model.compiled.explain(x)


def test_numpy_arrays_are_arguments() -> None:
    assert tt.compile(lambda x: x + 1.0)(np.ones(3, np.float32)).tolist() == [2, 2, 2]


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(ArgumentError, match="type set is neither a tensor nor hashable"):
        tt.compile(lambda x, s: x)(tt.ones(2), {1, 2})


def test_no_tensor_is_no_result() -> None:
    with pytest.raises(TraceError, match="returned no tensor"):
        tt.compile(lambda x: 3)(tt.ones(2))


def test_results_are_the_callers_own() -> None:
    fn = tt.compile(lambda x: (x, x.mT, x + 0.5, x + 0.5))
    x = tt.ones((2, 2))
    same_as, turned, a, b = fn(
        x,
    )
    a += 1.0
    same_as += 5.0
    assert x.tolist() == [[1, 1], [1, 1]]
    assert turned.tolist() == [[1, 1], [1, 1]]
    assert b.tolist() == [[1.5, 1.5], [1.5, 1.5]]


def test_a_result_of_one_call_stays_when_the_next_comes() -> None:
    fn = tt.compile(lambda x: tt.relu(x * 2.0) @ W)
    first = fn(X)
    kept = first.numpy().copy()
    fn(X * 3.0)
    np.testing.assert_array_equal(first.numpy(), kept)


def test_captured_weights_are_read_at_each_call() -> None:
    w = tt.ones(3)
    fn = tt.compile(lambda x: x * w)
    assert fn(tt.ones(3)).tolist() == [1, 1, 1]
    w *= 4.0
    assert fn(tt.ones(3)).tolist() == [4, 4, 4]


def test_a_constant_may_be_the_result() -> None:
    fn = tt.compile(lambda x: (tt.zeros(2), tt.full((), 3.0), x))
    zeros, three, _ = fn(tt.ones(1))
    assert zeros.tolist() == [0, 0]
    assert three.item() == 3


def test_inside_another_trace_it_is_written_down_there() -> None:
    inner = tt.compile(lambda x: x * 2.0)
    graph = tt.trace(lambda x: inner(x) + 1.0, tt.Spec((2,)))
    assert [n.op.name for n in graph.order()] == ["given", "const", "multiply", "const", "add"]


def test_tensors_of_two_devices_are_refused() -> None:
    from null import Null

    tt.register("elsewhere", Null)
    try:
        there = tt.ones(2, device="elsewhere")
        with pytest.raises(DeviceError, match="move one with"):
            tt.compile(lambda a, b: a + b)(tt.ones(2), there)
        assert tt.compile(lambda a: tt.relu(a * 2.0 - 3.0) + 1.0)(there).to("cpu").tolist() == [1, 1]
    finally:
        tt.unregister("elsewhere")


# ---- what is kept


def test_one_program_for_each_kind_of_arguments() -> None:
    fn = tt.compile(lambda x: x + 1.0)
    for x in (tt.ones(2), tt.zeros(2), tt.ones(3), tt.ones(3, dtype="f64"), tt.ones((3, 2))[:, 0]):
        fn(x)
    info = fn.cache_info()
    assert (info.hits, info.misses, info.programs) == (1, 4, 4)


def test_the_dict_of_programs_is_bounded() -> None:
    fn = tt.compile(lambda x: x + 1.0, disable="sizes")
    for n in range(1, MAX_PROGRAMS + 16):
        fn(tt.ones(n))
    assert fn.cache_info().programs == fn.cache_info().limit == MAX_PROGRAMS
    fn.cache_clear()
    assert fn.cache_info() == (0, 0, 0, MAX_PROGRAMS)


def test_clearing_lets_captured_tensors_go() -> None:
    w = tt.ones(1000)
    gone = weakref.ref(w)
    holder = [w]
    fn = tt.compile(lambda x: x * holder[0])
    fn(tt.ones(1000))
    del w
    holder.clear()
    assert gone() is not None
    fn.cache_clear()
    gc.collect()
    assert gone() is None


def test_several_threads_run_one_program() -> None:
    fn = tt.compile(lambda x: tt.softmax(tt.gelu(x @ W + 1.0) * 2.0) @ W.mT)
    xs = [tt.randn((16, 8), seed=i) for i in range(8)]
    want = [fn(x).numpy().copy() for x in xs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(100):
            if not np.array_equal(fn(xs[i]).numpy(), want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- donated arguments


def test_a_donated_argument_is_written_in_place() -> None:
    @tt.compile(donate="cache", verify=True)
    def step(cache: Any, x: Any, at: int) -> Any:
        cache[at] = x * 2.0
        return cache.sum(axis=0)

    cache = tt.zeros((3, 400))
    place = cache.data_ptr
    for i in range(3):
        got = step(cache, tt.full((400,), float(i + 1)), i)
    assert got.tolist() == [12] * 400
    assert cache[:, 0].tolist() == [2, 4, 6]
    assert cache.data_ptr == place
    assert step.program(cache, tt.ones(400), 0).arena_bytes < cache.nbytes


def test_a_donated_argument_may_be_returned() -> None:
    def fn(c: Any) -> Any:
        c += 1.0
        return c

    x = tt.zeros(3)
    got = tt.compile(fn, donate=0)(x)
    assert got is x
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("strided", [False, True])
def test_donated_writes_are_those_of_eager(strided: bool) -> None:
    def fn(c: Any, x: Any) -> Any:
        before = c * 1.0
        c[1:] = c[:-1] + x
        view = c.mT
        view[0] = 7.0
        c *= 2.0
        return before, view + 0.0, c[0]

    base = tt.arange(24, dtype="f32").reshape(4, 6)
    mine, theirs = ((b.mT if strided else b) for b in (base.clone(), base.clone()))
    x = tt.ones(mine.shape[1])
    same(tt.compile(fn, donate=("c",))(mine, x), fn(theirs, x))
    same(mine, theirs)


def test_what_is_not_donated_stays() -> None:
    def fn(a: Any, b: Any) -> Any:
        a += 1.0
        return tt.relu(b - 5.0)

    a, b = tt.zeros(3), tt.full((3,), 7.0)
    assert tt.compile(fn, donate="a")(a, b).tolist() == [2, 2, 2]
    assert (a.tolist(), b.tolist()) == ([1, 1, 1], [7, 7, 7])


def _written_then_read_at(c: tt.Tensor, at: tt.Tensor) -> tt.Tensor:
    c[:2] = c[1:] * 3.0
    c += 1.0
    return tt.take(c, at)


def test_an_error_after_a_donated_argument_was_written_says_so_or_leaves_it() -> None:
    c, kept = tt.ones(3), [1.0, 1.0, 1.0]
    with pytest.raises(BoundsError, match="index 99 is outside") as caught:
        tt.compile(_written_then_read_at, donate="c")(c, tt.tensor([99]))
    assert "A donated argument was written before that and keeps it" in str(caught.value) or c.tolist() == kept


def test_an_error_before_anything_was_written_leaves_the_donated_argument() -> None:
    def fn(c: tt.Tensor, at: tt.Tensor) -> tt.Tensor:
        row = tt.take(c, at)
        c += tt.sum(row)
        return row

    c = tt.ones(3)
    with pytest.raises(BoundsError) as caught:
        tt.compile(fn, donate="c")(c, tt.tensor([99]))
    assert "donated" not in str(caught.value)
    assert c.tolist() == [1.0, 1.0, 1.0]


def test_a_donated_argument_that_is_not_written_stays() -> None:
    a = tt.full((3,), 7.0)
    tt.compile(lambda a: tt.relu(a * 2.0), donate=0)(a)
    assert a.tolist() == [7, 7, 7]


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_donating_what_another_argument_shares_is_refused(device: str) -> None:
    if device == "torch":
        pytest.importorskip("torch", reason="memory of a device needs PyTorch: pip install torch")

    def fn(a: Any, b: Any) -> Any:
        a += 1.0
        return a * b

    base = tt.ones(4, device=device)
    compiled = tt.compile(fn, donate="a")
    assert compiled(base[:3], base[1:].clone()).tolist() == [2, 2, 2]
    with pytest.raises(ArgumentError, match=r"donated argument 0 .* shares memory with argument 1"):
        compiled(base[:3], base[1:])
    held = tt.compile(lambda a: a.add_(1.0) * base.sum(), donate="a")
    with pytest.raises(ArgumentError, match="shares memory with a tensor that the function captured"):
        held(base[:3])


def test_a_donated_argument_that_repeats_its_memory_is_refused_as_in_eager() -> None:
    with pytest.raises(ViewError, match="it was expanded"):
        tt.compile(lambda a: a.add_(1.0), donate=0)(tt.broadcast_to(tt.ones(3), (2, 3)))


@pytest.mark.parametrize(
    ("donate", "says"),
    [
        ("nothing", "is not a parameter; there are a, b"),
        (5, "numbered 0 to 1"),
        (1.5, "donate must be an integer or a string"),
    ],
)
def test_a_wrong_donation_is_refused(donate: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.compile(lambda a, b: a + b, donate=donate)


def test_writing_without_donate_names_the_remedy() -> None:
    def fn(x: Any) -> Any:
        x += 1.0
        return x

    with pytest.raises(TraceError, match=r"compile\(fn, donate=…\)"):
        tt.compile(fn)(tt.ones(2))


def swap(a: Any, b: Any) -> Any:
    old = a.clone()
    a[...] = b
    b[...] = old
    return a, old


DONATED: list[Any] = [
    lambda a: (a.add_(1.0), a.clone()),
    lambda a: (a.add_(1.0).clone(), a),
    lambda a: (a.add_(1.0), a - 0.0, +a, a * 1.0, a.reshape(a.shape)),
    lambda a: (a.reshape(-1).add_(1.0), a + 0.5),
    lambda a: (a.clone().reshape(-1).add_(1.0), a.mT.add_(1.0)),
    lambda a: (a[:1].clone().add_(1.0), a[1:].zero_()),
    lambda a: a.mT.clone().reshape(-1).mul_(2.0),
]


@pytest.mark.parametrize("how", ["plain", "turned", "part", "wide"])
@pytest.mark.parametrize("fn", DONATED)
def test_results_are_as_independent_as_in_eager(fn: Any, how: str) -> None:
    def make() -> Any:
        x = tt.arange(24, dtype="f32").reshape(4, 6)
        return {
            "plain": x,
            "turned": x.mT,
            "part": tt.arange(200, dtype="f32").reshape(20, 10)[:4, :6],
            "wide": x[:, :5],
        }[how]

    compiled = tt.compile(fn, donate=0)
    mine, theirs = make(), make()
    for _ in range(2):  # what the first call gave must not change with the second
        got, want = compiled(mine), fn(theirs)
        same(got, want)
        same(mine, theirs)
        held = [
            (g, w.numpy().copy())
            for g, w in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True)
        ]
        compiled(mine), fn(theirs)
        for g, w in held:
            if g is not mine:
                np.testing.assert_array_equal(g.numpy(), w)


def test_swapping_two_donated_arguments() -> None:
    mine, theirs = (tt.ones(3), tt.zeros(3)), (tt.ones(3), tt.zeros(3))
    got = tt.compile(swap, donate=("a", "b"))(*mine)
    same(got, swap(*theirs))
    same(mine, theirs)
    assert got[0] is mine[0]


def test_a_clone_of_a_repeated_view_can_be_written() -> None:
    def fn(x: Any) -> Any:
        y = tt.broadcast_to(x, (2, 3)).clone()
        y += 1.0
        return y

    same(tt.compile(fn)(tt.ones(3)), fn(tt.ones(3)))


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0,)])
def test_views_of_nothing(shape: tuple[int, ...]) -> None:
    def fn(x: Any) -> Any:
        y = x + 1.0
        return y[..., 1:], y[1:], tt.broadcast_to(y, (2, *shape)).clone() * 2.0, y.sum(axis=0)

    same(tt.compile(fn)(tt.zeros(shape)), fn(tt.zeros(shape)))


def test_many_inputs_in_the_functions_own_form() -> None:
    named = tt.compile(lambda x, s: {"a": x * s})
    xs = [tt.full((2,), float(i)) for i in range(3)]
    assert [r["a"].tolist() for r in named.run_many([(x, 3.0) for x in xs])] == [[0, 0], [3, 3], [6, 6]]
    assert [r.tolist() for r in tt.compile(lambda x: x + 1.0).run_many([np.ones(2, "f4"), tt.ones(3)])] == [
        [2, 2],
        [2, 2, 2],
    ]


def test_what_follows_a_star_may_be_donated() -> None:
    def fn(*xs: Any) -> Any:
        xs[1].add_(1.0)
        return xs[0] + xs[1]

    a, b = tt.ones(2), tt.ones(2)
    assert tt.compile(fn, donate="xs")(a, b).tolist() == [3, 3]
    assert tt.compile(fn, donate=1)(a, b).tolist() == [4, 4]
    assert b.tolist() == [3, 3]


def test_threads_share_more_programs_than_are_kept() -> None:
    fn = tt.compile(lambda x: x + 1.0)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        try:
            for i in range(300):
                n = 1 + (i * 7 + seed * 13) % 90
                if fn(tt.zeros(n)).tolist() != [1.0] * n:
                    wrong.append(n)
                if i % 100 == 50 and seed == 0:
                    fn.cache_clear()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_verify_passes_reductions_over_strided_memory() -> None:
    x = tt.randn((1000, 17), seed=5).mT
    tt.compile(lambda x: tt.exp(x) * x.sum(axis=-1, keepdims=True), verify=True)(x)


def test_a_graph_is_a_function_too() -> None:
    inner = tt.trace(lambda x: tt.relu(x * 2.0) @ W.mT, X)
    same(tt.compile(inner)(X), inner(X))
    same(tt.compile(lambda x: inner(x) + 1.0)(X), inner(X) + 1.0)


def test_a_copy_of_a_compiled_function_is_compiled_anew() -> None:
    fn = tt.compile(lambda c: c.add_(1.0), donate=0)
    for other in (copy.copy(fn), copy.deepcopy(fn)):
        c = tt.zeros(2)
        assert other(c).tolist() == [1, 1]
        assert other.cache_info().programs == 1


def test_writes_to_parts_of_nothing() -> None:
    def fn(x: Any) -> Any:
        y = x + 1.0
        y[:, 1:] = 2.0
        return y

    x = tt.zeros((0, 8))
    same(tt.trace(fn, x)(x), fn(x))
    same(tt.compile(fn, verify=True)(x), fn(x))


def test_one_result_of_several_beside_a_row_number() -> None:
    def fn(x: Any) -> Any:
        m = x.max(axis=-1, keepdims=True)
        q, _, _ = tt.quantize_activations(m)
        return q, x - m

    same(tt.compile(fn)(X), fn(X))


# ---- try_fuse


@pytest.mark.skipif(buffer.native is None, reason="needs the native library: without it nothing fuses")
def test_try_fuse_runs_a_chain_as_one_call() -> None:
    got = tt.try_fuse(["add", "multiply", "relu"], [X, X, X])
    assert got is not None
    same(got, tt.relu((X + X) * X))


def test_try_fuse_of_what_does_not_fuse_is_none() -> None:
    assert tt.try_fuse([("sort", {}), "relu"], [X]) is None
    assert tt.try_fuse(["relu"], [X]) is None


@pytest.mark.parametrize(
    ("rows", "operands", "says"),
    [("add", [X], "a list of ops"), ([], [X], "at least one op"), (["add", "relu"], [X, X, X], "read 2 operands, 3")],
)
def test_try_fuse_of_too_much_or_nothing_is_refused(rows: Any, operands: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.try_fuse(rows, operands)


def test_try_fuse_raises_on_wrong_shapes() -> None:
    with pytest.raises(tt.errors.ShapeError):
        tt.try_fuse(["add", "relu"], [tt.ones(3), tt.ones(4)])


def test_try_fuse_of_an_unknown_row_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'matmul'"):
        tt.try_fuse(["matmull", "add"], [X, W, X])


def test_a_wrong_program_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium import ops
    from tritium.compiler import passes

    monkeypatch.setitem(passes.RULES, ops.exp, ("wrong", lambda r, n: n.inputs[0]))
    with pytest.raises(VerifyError, match="differs from the ops as written"):
        tt.compile(lambda x: tt.exp(x + 1.0) * 2.0, verify=True)(X)


# ---- passes that are disabled


@settings(max_examples=12, deadline=None)
@given(programs.lines, st.sets(st.sampled_from(list(PASSES))))
def test_programs_without_some_passes_give_the_same_bits(code: list[programs.Line], disable: set[str]) -> None:
    data = [np.arange(24, dtype=np.float32).reshape(4, 6) % 7 - 3, np.arange(6, dtype=np.float32) - 2]
    fn = tt.compile(lambda *args: programs.run(code, programs.OnTensors, *args), disable=disable, verify=True)
    got = fn(*(tt.asarray(d.copy()) for d in data))
    for g, w in zip(got, programs.run(code, programs.OnNumpy, *data), strict=True):
        np.testing.assert_array_equal(g.numpy(), w)


def test_a_disabled_pass_is_left_out_and_named() -> None:
    def fn(x: Any) -> Any:
        y = tt.exp(x * 1.0) + 1.0
        return tt.softmax(y.sum(axis=0) * tt.cumulative_sum(y, axis=1))

    x = tt.randn((16, 16), seed=1)
    whole = tt.compile(fn).program(x)
    for name in PASSES:
        p = tt.compile(disable=name)(fn).program(x)
        assert f"disabled: {name}" in p.explain()
        assert p(x).tolist() == whole(x).tolist()
    assert "disabled" not in whole.explain()
    unfused = tt.compile(fn, disable=["fuse"]).program(x)
    assert not unfused.opportunities
    assert unfused.launches > whole.launches or buffer.native is None
    assert not any(n.applied for n in tt.compile(fn, disable=("rules", "fuse")).program(x).notes)
    assert tt.compile(fn, disable="native").program(x).native is None
    spread = tt.compile(fn, disable=("place", "fuse")).program(x)
    assert spread.arena_bytes == spread.naive_bytes
    assert tt.compile(fn, disable="native").program(x).why_not_native == "the pass native is disabled"
    assert copy.copy(tt.compile(fn, disable="fuse")).disabled == {"fuse"}


@pytest.mark.parametrize("disable", ["fusion", ["rules", "ordr"], 3, [3], None])
def test_an_unknown_pass_is_refused_with_the_known_ones(disable: Any) -> None:
    for make in (lambda: tt.compile(abs, disable=disable), lambda: tt.compile(disable=disable)):
        with pytest.raises(
            ArgumentError, match=r"compile.*(rules, patterns, attention, fuse, order, place, native|disable)"
        ):
            make()


# ---- random functions of awkward ops


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRITIUM_RANDOM_FUNCTIONS", "30"))))
def test_random_functions_of_awkward_ops_give_the_bits_of_eager_calls(seed: int) -> None:
    with awkward.words() as words:
        names, fn = awkward.function(seed, words)
        x, y = awkward.operands([(2, 4), (5, 3), (17, 9), (1, 1)][seed % 4], seed)
        compiled = tt.compile(fn, verify=seed % 4 == 1)
        for _ in range(2):
            same(fn(x, y), compiled(x, y))
        same(fn(y[::-1], x[:, ::-1]), compiled(y[::-1], x[:, ::-1]))
        assert compiled.program(x, y).native is not None or buffer.native is None, names


# ---- memory of deleted models


class Deleted:
    """A model with parts that refer to it, compiled in several ways and deleted."""

    def __init__(self) -> None:
        self.weights = [tt.randn((32, 32), seed=i) for i in range(3)]
        self.part = Part(self)
        self.again = tt.compile(self.run)

    @tt.compile
    def run(self, x: Any) -> Any:
        for w in self.weights:
            x = tt.relu(x @ w) + 1.0
        return tt.softmax(x)


def compile_and_delete(own: Any, x: Any) -> None:
    model = Deleted()
    other = tt.compile(lambda v: own(v @ model.weights[0]) + model.weights[1][0])
    for fn in (model.run, model.again, other, tt.compile(model.run)):
        fn(x), fn(x)
        fn.run_many([x, x])


class Captured:
    def __init__(self) -> None:
        self.weight = tt.randn((4, 4), seed=1)

    @tt.compile
    def run(self, x: tt.Tensor) -> tt.Tensor:
        return x @ self.weight + 1.0


def test_tensors_of_a_deleted_function_are_released_without_a_search_for_garbage() -> None:
    gc.disable()
    try:
        held, x, model = [tt.randn((4, 4), seed=1)], tt.ones((2, 4)), Captured()
        fn = tt.compile(lambda x: tt.tanh(x @ held[0]))
        fn(x), fn(x), model.run(x), model.run(x)
        ends = [weakref.ref(held[0]), weakref.ref(model.weight), weakref.ref(model)]
        del fn, model
        held.clear()
        assert [end() for end in ends] == [None] * 3
    finally:
        gc.enable()


def test_memory_of_deleted_models_returns() -> None:
    count = int(os.environ.get("TRITIUM_DELETED_MODELS", "4"))
    x = tt.ones((4, 32))
    with awkward.words() as words:
        own = partial(words["own"], y=None, k=0)
        for _ in range(3):
            compile_and_delete(own, x)
        gc.collect()
        before, tensors = sys.getallocatedblocks(), tt.memory.stats().current_bytes
        for _ in range(count):
            compile_and_delete(own, x)
        gc.collect()
        grown = sys.getallocatedblocks() - before
    assert tt.memory.stats().current_bytes == tensors
    assert not Deleted.run.methods
    assert Deleted.run.cache_info().programs == 0
    assert not any(type(o) is Deleted for o in gc.get_objects())
    assert grown < 6000  # objects of Python, however many models there were; four of them have more


# ---- the log of recompiles


def recompiles(caplog: pytest.LogCaptureFixture, *calls: Callable[[], Any]) -> list[str]:
    with caplog.at_level(logging.INFO, "tritium.recompiles"):
        for call in calls:
            call()
    return [r.getMessage() for r in caplog.records if r.name == "tritium.recompiles"]


def test_a_recompile_is_logged_with_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    @tt.compile
    def scaled(x: Any, state: Any, *rest: Any, flag: bool = False) -> Any:
        return x * 2 + state["a"] if flag else x * 2

    x = tt.ones((4, 4))
    messages = recompiles(
        caplog,
        lambda: scaled(x, {"a": x}),
        lambda: scaled(x, {"a": x}),
        lambda: scaled(x[:2], {"a": x}),
        lambda: scaled(x.T, {"a": x}),
        lambda: scaled(x, {"a": x}, x),
        lambda: scaled(x, {"a": x}, flag=True),
        lambda: scaled(x.to("f16"), {"a": x}),
    )
    assert messages == [
        "scaled: compiled again, 2 programs: x changed from f32[4,4] to f32[2,4]",
        "scaled: compiled again, 3 programs: x changed from f32[2,4] to f32[4,4] with strides (1, 4)",
        "scaled: compiled again, 4 programs: rest[0] changed from no argument to f32[4,4]",
        "scaled: compiled again, 5 programs: flag changed from no argument to True",
        "scaled: compiled again, 6 programs: x changed from f32[4,4] with strides (1, 4) to f16[4,4]",
    ]


def test_a_rebound_attribute_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Scale:
        def __init__(self) -> None:
            self.parts, self.factor = [tt.ones(3)], 2.0

        @tt.compile
        def run(self, v: Any) -> Any:
            return v * self.parts[0] * self.factor

    scale, v = Scale(), tt.ones(3)

    def rebind() -> None:
        scale.parts[0], scale.factor = tt.zeros(3), 2.0

    def change() -> None:
        scale.factor = 3.0

    calls = (lambda: scale.run(v), change, lambda: scale.run(v), rebind, lambda: scale.run(v), lambda: scale.run(v))
    messages = recompiles(caplog, *calls)
    assert messages[0] == "run: compiled again, 1 programs: self.factor was rebound"
    assert messages[1] in (
        "run: compiled again, 1 programs: self.factor was rebound",
        "run: compiled again, 1 programs: self.parts[0] was rebound",
    )
    assert len(messages) == 2


def test_numbers_are_logged_as_arguments_or_constants(caplog: pytest.LogCaptureFixture) -> None:
    rate = tt.compile(lambda x, rate: x * rate)
    rows = tt.compile(lambda x, n: x[:n])
    x = tt.ones(9)
    messages = recompiles(
        caplog, *(lambda i=i: rate(x, i / 2) for i in range(9)), *(lambda i=i: rows(x, i) for i in range(5))
    )
    assert "<lambda>: compiled again, 4 programs: rate changed from 1.0 to any float" in messages
    assert "<lambda>: n has a program for each value: it is an index or a size" in messages
    assert messages[-1] == "<lambda>: compiled again, 5 programs: n changed from 3 to 4"


def test_a_function_with_too_many_programs_warns_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritium.compiler.compile.MAX_PROGRAMS", 8)
    grow = tt.compile(lambda x: x + 1, disable="sizes")
    for i in range(11):
        grow(tt.ones(i + 1))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "x changed from f32[8] to f32[9]" in warnings[0]
    assert grow.cache_info().programs == grow.cache_info().limit == 8


def test_a_program_that_calls_go_on_using_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritium.compiler.compile.MAX_PROGRAMS", 4)
    grow = tt.compile(lambda x: x + 1, disable="sizes")
    often = tt.ones(100)
    for i in range(12):
        for _ in range(3):
            grow(often)  # the first looks into the cache, the others need not
        grow(tt.ones(i + 1))
    assert grow.cache_info().misses == 13


# ---- lengths that vary


def attend(x: tt.Tensor, cache: tt.Tensor) -> tuple[tt.Tensor, tt.Tensor]:
    """A block of attention over a cache that grows by the rows of x, with a mask."""
    seen = tt.concat([cache, tt.rms_norm(x, W[0])], axis=0)
    n, m = x.shape[0], seen.shape[0]
    q, k = ((y @ W).reshape((-1, 2, 4)).permute_dims((1, 0, 2)) for y in (x, seen))
    scores = tt.where(tt.tril(tt.ones((n, m)), k=m - n) > 0, q @ tt.matrix_transpose(k) * 0.5, -1e9)
    rows = tt.softmax(scores, axis=-1) @ k
    y = x + rows.permute_dims((1, 0, 2)).reshape((n, 8)) @ W
    return y + tt.silu(y @ W) * (y @ W), seen


def test_every_length_has_the_bits_of_eager() -> None:
    compiled = tt.compile(attend)
    for n in (*range(1, 20), 33, 64, 100):
        x = tt.randn((n, 8), seed=n)
        same(compiled(x, X), attend(x, X))
    mine = theirs = X[:0]
    for i in range(25):
        x = tt.randn((1, 8), seed=i)
        (a, mine), (b, theirs) = compiled(x, mine), attend(x, theirs)
        same(a, b)


def test_a_loop_that_was_written_out_has_the_bits_of_eager() -> None:
    def recur(x: tt.Tensor) -> tuple[tt.Tensor, tt.Tensor]:
        h = c = tt.zeros((1, 4))
        for t in range(x.shape[0]):
            z = x[t][None] @ W + tt.concat([h, c], axis=1) @ W + W[1]
            c = tt.sigmoid(z[:, :4]) * c + tt.tanh(z[:, 4:])
            h = tt.sigmoid(z[:, -4:]) * tt.tanh(c)
        return h, c

    x = tt.randn((30, 8), seed=5)
    compiled = tt.compile(recur, verify=True)
    same(compiled(x), recur(x))
