"""Recording: every call leaves its span, eager, replayed, compiled or node by node; nothing is kept that nobody asked for."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from null import Null
from tritium import buffer, launch, ops, recording
from tritium.buffer import native
from tritium.errors import ArgumentError, BoundsError, ShapeError
from tritium.launch import Launched, Ran
from tritium.recording import Recorder, Scope

needs_native = pytest.mark.skipif(native is None, reason="needs the native library; this is a pure-Python build")


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    assert not recording.active


def names(whats: list[Any]) -> list[str]:
    return [w.op.name if isinstance(w, Launched) and w.op is not None else w.name for w in whats]


def recorded(fn: Callable[[], Any]) -> tuple[list[Any], Any]:
    with Recorder() as r:
        fn()
    return r.read()


def rows() -> dict[str, Callable[[], Any]]:
    """Calls of one row each: a function without arguments, so that a compiled one captures what it reads."""
    x, y = tt.randn((8, 16), seed=0), tt.randn((8, 16), seed=1)
    w = tt.randn((16, 4), seed=2)
    packed, scale = tt.quantize_ternary(tt.randn((32, 16), seed=3))
    return {
        "add": lambda: tt.add(x, y),
        "multiply": lambda: tt.multiply(x, 2.5),
        "matmul": lambda: tt.matmul(x, w),
        "softmax": lambda: tt.softmax(x, axis=-1),
        "sum": lambda: tt.sum(x, axis=0, keepdims=True),
        "quantized_matmul": lambda: tt.quantized_matmul(x, packed, scale),
    }


# ---- what is recorded


def test_every_call_leaves_a_span_with_its_row_kernel_specs_and_cost() -> None:
    a = tt.ones((3, 4))
    (add, total), times = recorded(lambda: (tt.add(a, a), tt.sum(a)))
    assert (add.op, add.device, add.inputs, add.out) == (ops.add, a.device, (a.spec, a.spec), a.spec)
    assert add.kernel in [k.name for k in a.device.backend.kernels[ops.add]]
    assert add.cost == ops.add.cost(a.spec, a.spec, a.spec)
    assert total.op is ops.sum
    assert times.shape == (2, 3)
    assert times.dtype == np.int64


def test_times_are_those_of_perf_counter_and_the_thread_is_its_own() -> None:
    a = tt.ones(100)
    before = time.perf_counter_ns()
    _, times = recorded(lambda: [tt.add(a, a) for _ in range(20)])
    after = time.perf_counter_ns()
    start, elapsed, thread = times.T
    assert (start >= before).all()
    assert (start + elapsed <= after).all()
    assert (elapsed >= 0).all()
    assert (start[1:] >= start[:-1] + elapsed[:-1]).all()
    assert set(thread.tolist()) == {threading.get_ident()}


@needs_native
def test_the_native_clock_is_pythons_own() -> None:
    for _ in range(1000):
        before, here, after = time.perf_counter_ns(), native.now_ns(), time.perf_counter_ns()
        assert before <= here <= after


@pytest.mark.parametrize("row", rows())
def test_a_compiled_call_says_what_the_eager_one_says(row: str) -> None:
    fn = rows()[row]
    eager, _ = recorded(fn)
    run = tt.compile(fn)
    run()
    compiled, _ = recorded(run)
    assert names(eager) == [row]
    assert len(compiled) == 2
    assert eager[0] in compiled
    assert Ran("<lambda>", 1) in compiled


@pytest.mark.parametrize("row", rows())
def test_all_calls_alike_say_so_with_one_object(row: str) -> None:
    fn = rows()[row]
    whats, _ = recorded(lambda: [fn() for _ in range(5)])
    assert names(whats) == [row] * 5
    assert len({id(w) for w in whats}) == 1


def test_of_too_many_kinds_of_calls_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_known", {})
    monkeypatch.setattr(launch, "_KNOWN_LIMIT", 3)
    spec = (((2,), tt.f32),)
    told = lambda kernel: launch.launched(ops.add, kernel, tt.device("cpu"), spec * 2, spec, {})
    a, b, c = (told(kernel) for kernel in "abc")
    assert told("d").kernel == "d"
    assert [told(k) is x for k, x in (("b", b), ("c", c))] == [True, True]
    assert told("a") is not a
    assert told("a") == a
    assert len(launch._known) == 3


def test_calls_that_differ_in_an_attribute_are_told_apart() -> None:
    x = tt.ones((4, 4))
    whats, _ = recorded(lambda: [tt.sum(x, axis=0), tt.sum(x, axis=1), tt.full((2,), 1), tt.full((2,), 1.0)])
    assert len({id(w) for w in whats}) == 4


@needs_native
def test_native_replay_goes_on_while_someone_records() -> None:
    a = tt.ones((4, 7))
    recorded(lambda: tt.add(a, a))  # the first call of a shape is described by Python
    hits = ops.add.hits
    whats, _ = recorded(lambda: [tt.add(a, a) for _ in range(10)])
    assert ops.add.hits == hits + 10
    assert names(whats) == ["add"] * 10


def block(x: Any, w: Any) -> Any:
    return tt.softmax(tt.matmul(tt.relu(x), w) + 1.0, axis=-1)


def arguments() -> tuple[tt.Tensor, tt.Tensor]:
    return tt.randn((64, 64), seed=0), tt.randn((64, 64), seed=1)


def within(inner: Any, outer: Any) -> bool:
    return bool(outer[0] <= inner[0] and inner[0] + inner[1] <= outer[0] + outer[1])


@pytest.mark.parametrize("size", [4, 64, 300])  # the last releases the GIL
def test_a_program_leaves_one_span_and_inside_it_one_for_each_step(size: int) -> None:
    run = tt.compile(block)
    x, w = tt.randn((size, size), seed=0), tt.randn((size, size), seed=1)
    run(x, w)
    whats, times = recorded(lambda: run(x, w))
    (whole,) = [i for i, what in enumerate(whats) if isinstance(what, Ran)]
    program = run.program(x, w)
    assert whats[whole] == Ran("block", program.launches)
    inner = [i for i in range(len(whats)) if i != whole]
    assert len(inner) == program.launches
    assert all(within(times[i], times[whole]) for i in inner)
    assert all(times[i][0] + times[i][1] <= times[j][0] for i, j in pairwise(inner))
    if program.steps is not None:
        assert [whats[i].cost for i in inner] == [c.cost for c in program.steps.calls]


def test_a_program_run_node_by_node_leaves_the_same_spans() -> None:
    run, given = tt.compile(block), arguments()
    run(*given)
    native_ones, _ = recorded(lambda: run(*given))
    watcher = launch.watch(lambda event: None)
    try:
        by_node, _ = recorded(lambda: run(*given))
    finally:
        launch.unwatch(watcher)
    assert sorted(names(native_ones)) == sorted(names(by_node))
    assert {id(w) for w in native_ones if isinstance(w, Launched)} == {
        id(w) for w in by_node if isinstance(w, Launched)
    }


def test_a_compiled_function_that_has_no_name_is_recorded_all_the_same() -> None:
    class Doubled:
        def __call__(self, x: tt.Tensor) -> tt.Tensor:
            return x + x

    run = tt.compile(Doubled())
    whats, _ = recorded(lambda: run(tt.ones(3)))
    assert Ran("function", 1) in whats


NAMES = """
import tritium as tt
from tritium import recording
from tritium.launch import Launched
x = tt.ones((3, 4))
with recording.Recorder() as r:
    for _ in range(2):
        y = tt.softmax(tt.add(x, 1.0) @ tt.ones((4, 2)), axis=-1)
        tt.sum(y.T, axis=0), tt.nonzero(y), y.numpy()
print(*(w.op.name for w in r.read()[0] if isinstance(w, Launched)))
"""


def test_a_pure_build_records_the_same_calls() -> None:
    found = []
    for pure in ("", "1"):
        variables = os.environ | {"TRITIUM_PURE": pure}
        done = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, timeout=60, env=variables)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1]
    assert found[0] == ["full", "add", "full", "matmul", "softmax", "sum", "nonzero"][1:] * 2


def test_a_view_leaves_no_span() -> None:
    x = tt.ones((3, 4))
    assert recorded(lambda: (x.T, x[1:], tt.reshape(x, (12,))))[0] == []


def test_a_row_whose_size_depends_on_values_leaves_a_span() -> None:
    x = tt.tensor([0.0, 1.0, 2.0])
    (what,), _ = recorded(lambda: tt.nonzero(x))
    assert (what.op, what.inputs) == (ops.nonzero, (x.spec,))
    assert what.cost.read == x.nbytes


def test_a_watcher_hears_of_rows_whose_size_depends_on_values() -> None:
    heard: list[Any] = []
    watcher = tt.watch(heard.append)
    try:
        tt.nonzero(tt.ones(3))
    finally:
        tt.unwatch(watcher)
    assert "nonzero" in [e.op.name for e in heard]


def test_a_transfer_leaves_a_span() -> None:
    tt.register("elsewhere", Null)
    try:
        x = tt.ones((2, 3))
        (what,), _ = recorded(lambda: x.to("elsewhere"))
        assert (what.op, what.kernel, what.out) == (None, "cpu->elsewhere", x.spec)
        assert what.cost == tt.Cost(0, 24, 24)
    finally:
        tt.unregister("elsewhere")


def test_a_call_that_fails_leaves_no_span() -> None:
    x, bad = tt.ones(3), tt.tensor([7])

    def fails() -> None:
        for _ in range(2):
            with pytest.raises((BoundsError, IndexError)):
                tt.take(x, bad, axis=0)

    assert recorded(fails)[0] == []


def test_results_are_the_same_while_someone_records() -> None:
    run, given = tt.compile(block), arguments()
    want, eager = run(*given).numpy().copy(), block(*given).numpy().copy()
    with Recorder():
        np.testing.assert_array_equal(run(*given).numpy(), want)
        np.testing.assert_array_equal(block(*given).numpy(), eager)


def test_writing_into_out_is_recorded_too() -> None:
    a, to = tt.ones(5), tt.zeros(5)
    whats, _ = recorded(lambda: [tt.add(a, a, out=to) for _ in range(3)])
    assert names(whats) == ["add"] * 3


# ---- recorders


def test_nothing_is_kept_while_nobody_records() -> None:
    r = Recorder()
    tt.add(tt.ones(2), 1)
    with tt.scope("unheard"):
        recording.add("what", time.perf_counter_ns(), 1)
    assert r.read()[0] == []


def test_what_no_longer_fits_is_counted() -> None:
    a = tt.ones(2)
    with Recorder(capacity=3) as r:
        for _ in range(10):
            tt.add(a, a)
    assert len(r.read()[0]) == 3
    assert r.dropped == 7


def test_taking_makes_room() -> None:
    with Recorder(capacity=2) as r:
        for i in range(3):
            recording.add(i, time.perf_counter_ns(), 5)
        assert r.take()[0] == [0, 1]
        recording.add(3, time.perf_counter_ns(), 7)
        whats, times = r.take()
    assert whats == [3]
    assert times[0][1] == 7
    assert r.take()[0] == []
    assert r.dropped == 1


def test_each_of_several_recorders_sees_all_since_its_own_start() -> None:
    first, second = Recorder(), Recorder(capacity=2)

    def add(i: int) -> None:
        recording.add(i, time.perf_counter_ns(), 0)

    add(0)
    first.start()
    add(1)
    second.start()
    add(2)
    assert first.take()[0] == [1, 2]
    add(3)
    first.stop()
    add(4)
    second.stop()
    add(5)
    assert first.read()[0] == [3]
    assert second.read()[0] == [2, 3]
    assert (first.dropped, second.dropped) == (0, 1)


def test_what_began_before_a_recorder_is_not_its_own() -> None:
    with Recorder() as r:
        recording.add("old", time.perf_counter_ns() - 10**9, 10**9)
        assert r.read()[0] == []


def test_starting_and_stopping_twice_changes_nothing() -> None:
    r = Recorder()
    for _ in range(2):
        r.start()
    recording.add("once", time.perf_counter_ns(), 0)
    for _ in range(2):
        r.stop()
    recording.add("late", time.perf_counter_ns(), 0)
    assert r.read()[0] == ["once"]


def test_a_recorder_may_be_started_again() -> None:
    r = Recorder()
    for i in range(3):
        with r:
            recording.add(i, time.perf_counter_ns(), 0)
    assert r.read()[0] == [0, 1, 2]


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "many", 10**12])
def test_a_capacity_that_is_none_is_refused(capacity: Any) -> None:
    with pytest.raises(ArgumentError, match="capacity"):
        Recorder(capacity)


class Thing:
    """Something with a weak reference."""


def test_nothing_is_held_once_it_was_taken() -> None:
    r = Recorder()
    with r:
        things = [Thing() for _ in range(10)]
        seen = [weakref.ref(t) for t in things]
        for t in things:
            recording.add(t, time.perf_counter_ns(), 0)
        del t, things
        assert all(s() is not None for s in seen)
        r.take()
        assert all(s() is None for s in seen)


def test_nothing_is_held_by_a_recorder_that_is_gone() -> None:
    thing = Thing()
    count = sys.getrefcount(thing)
    for _ in range(3):
        with Recorder() as r:
            recording.add(thing, time.perf_counter_ns(), 0)
            r.read()
            assert sys.getrefcount(thing) == count + 1
    del r
    gc.collect()
    assert sys.getrefcount(thing) == count


def test_a_recorder_that_is_let_go_stops() -> None:
    r = Recorder()
    r.start()
    assert recording.active
    del r
    gc.collect()
    assert not recording.active
    if native is not None:
        thing = Thing()
        count = sys.getrefcount(thing)
        recording.add(thing, time.perf_counter_ns(), 0)
        assert sys.getrefcount(thing) == count


def test_tensors_are_not_held() -> None:
    x = tt.ones((100, 100))
    with Recorder() as r:
        y = tt.add(x, x)
        seen = weakref.ref(y)
        del y
        assert seen() is None
        assert names(r.read()[0]) == ["add"]


def test_threads_record_side_by_side() -> None:
    def work(i: int) -> None:
        mine = tt.full((200, 200), float(i))  # large enough that the GIL is released
        for _ in range(20):
            with tt.scope(f"thread {i}"):
                tt.add(mine, mine)
        idents[i] = threading.get_ident()

    idents: dict[int, int] = {}
    tt.add(tt.ones((200, 200)), tt.ones((200, 200)))
    with Recorder() as r:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    whats, times = r.read()
    found = names(whats)
    assert found.count("add") == 80
    for i in range(4):
        mine = {n for n, row in zip(found, times, strict=True) if row[2] == idents[i]}
        assert {f"thread {i}", "add"} <= mine or len(set(idents.values())) < 4  # an identity may be used again


def test_threads_may_start_and_stop_recorders_at_once() -> None:
    a = tt.ones(3)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(50):
            with Recorder(capacity=1000) as r:
                tt.add(a, a)
            mine = [w for w, row in zip(*r.read(), strict=True) if row[2] == threading.get_ident()]
            if names(mine) != ["add"]:
                wrong.append(str(names(mine)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_records_only_what_it_asks_for() -> None:
    a = tt.ones(3)
    with Recorder() as r:
        tt.add(a, a)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                tt.add(a, a)
                quiet = not recording.active and names(r.read()[0]) == ["add"]
                own, _ = recorded(lambda: tt.add(a, a))
                r.stop()
                code = 0 if quiet and names(own) == ["add"] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        tt.add(a, a)
    assert names(r.read()[0]) == ["add", "add"]


ENDING = """
import threading, time
import tritium as tt
from tritium import recording
r = recording.Recorder()
r.start()
a = tt.ones((300, 300))
def work():
    while True:
        with tt.scope("work"):
            tt.add(a, a)
threading.Thread(target=work, daemon=True).start()
with tt.scope("open"):
    tt.add(a, a)
    time.sleep(0.05)
"""


def test_a_process_may_end_while_it_records() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_span_has_a_cost_that_is_measured() -> None:
    with Recorder() as r:
        assert 1 < recording.event_cost_ns() < 1e6
        assert recording.scope_cost_ns() is None  # the scopes of the measurement would be kept
    assert r.read()[0] == []
    assert 1 < (recording.scope_cost_ns() or 0) < 1e6


# ---- scopes


def test_a_scope_lies_around_what_ran_in_it() -> None:
    a = tt.ones(10)

    def work() -> None:
        with tt.scope("outer"):
            tt.add(a, a)
            with tt.scope("inner"):
                tt.multiply(a, a)

    whats, times = recorded(work)
    at = {name: times[i] for i, name in enumerate(names(whats))}
    assert within(at["add"], at["outer"])
    assert within(at["inner"], at["outer"])
    assert within(at["multiply"], at["inner"])
    assert not within(at["add"], at["inner"])


def test_a_scope_over_a_function_times_every_call() -> None:
    @tt.scope("work")
    def work(x: int, *, twice: bool = False) -> int:
        """Says something."""
        return 2 * x if twice else x

    whats, _ = recorded(lambda: [work(1), work(2, twice=True)])
    assert whats == [Scope("work")] * 2
    assert work(3, twice=True) == 6
    assert (work.__name__, work.__doc__) == ("work", "Says something.")


def test_a_scope_that_is_left_by_an_error_is_kept() -> None:
    @tt.scope("function")
    def fails() -> None:
        with tt.scope("block"):
            raise ValueError("on purpose")

    def work() -> None:
        with pytest.raises(ValueError, match="on purpose"):
            fails()

    assert recorded(work)[0] == [Scope("block"), Scope("function")]


def test_one_scope_may_be_entered_again_inside_itself() -> None:
    s = tt.scope("again")

    def work() -> None:
        with s, s:
            time.sleep(0.001)
        with s:
            pass

    whats, times = recorded(work)
    assert whats == [Scope("again")] * 3
    assert within(times[0], times[1])
    assert times[2][0] >= times[1][0] + times[1][1]


def test_one_scope_may_be_entered_by_several_threads_at_once() -> None:
    s, together = tt.scope("shared"), threading.Barrier(4)

    def work() -> None:
        for _ in range(10):
            with s:
                together.wait(10)

    with Recorder() as r:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    whats, times = r.read()
    assert whats == [Scope("shared")] * 40
    for ident in set(times[:, 2].tolist()):
        mine = times[times[:, 2] == ident]
        mine = mine[np.argsort(mine[:, 0])]
        assert (mine[1:, 0] >= mine[:-1, 0] + mine[:-1, 1]).all()


def test_a_scope_entered_before_a_recorder_began_is_not_kept() -> None:
    r = Recorder()
    with tt.scope("before"):
        r.start()
        with tt.scope("inside"):
            pass
    r.stop()
    assert r.read()[0] == [Scope("inside")]


def test_a_scope_left_after_a_recorder_ended_is_not_kept() -> None:
    r, s = Recorder(), tt.scope("cut")
    r.start()
    with s:
        r.stop()
        with s:
            pass
    assert r.read()[0] == []
    assert not recording._open


def test_scopes_left_crosswise_leave_nothing_behind() -> None:
    a, b = tt.scope("a"), tt.scope("b")
    with Recorder() as r:
        a.__enter__()
        b.__enter__()
        a.__exit__(None, None, None)
        b.__exit__(None, None, None)
    assert r.read()[0] == [Scope("a"), Scope("b")]
    assert not recording._open


def test_a_scope_over_what_pauses_is_refused() -> None:
    async def later() -> None:
        await asyncio.sleep(0)

    def some() -> Iterator[int]:
        yield 1

    for fn in (later, some, 3):
        with pytest.raises(ArgumentError, match="no plain function"):
            tt.scope("x")(fn)  # type: ignore[type-var]


def test_a_scope_needs_a_name() -> None:
    with pytest.raises(ArgumentError, match="a name is needed"):
        tt.scope(3)  # type: ignore[arg-type]


# ---- who is carried out


@pytest.fixture
def actors() -> Iterator[list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []
    buffer.watch(lambda kind, address, nbytes, reused: seen.append((kind, recording.acting())))
    yield seen
    buffer.watch(None)


def test_an_allocation_belongs_to_the_row_that_made_it(actors: list[tuple[str, Any]]) -> None:
    a = tt.ones(3)
    actors.clear()
    kept = [tt.add(a, a) for _ in range(3)]  # one or more of them replayed
    assert actors == [("alloc", ops.add)] * 3
    assert recording.acting() is None
    del kept


def test_an_allocation_outside_any_row_belongs_to_nobody(actors: list[tuple[str, Any]]) -> None:
    kept = buffer.Storage(64)
    assert actors == [("alloc", None)]
    del kept


def test_an_allocation_of_a_program_belongs_to_it(actors: list[tuple[str, Any]]) -> None:
    run, given = tt.compile(block), arguments()
    run(*given)
    actors.clear()
    kept = run(*given)
    made = {actor for kind, actor in actors if kind == "alloc"}
    assert run.program(*given).ran in made
    assert recording.acting() is None
    del kept


def test_after_an_error_nobody_is_carried_out(actors: list[tuple[str, Any]]) -> None:
    with pytest.raises(ShapeError):
        tt.add(tt.ones(3), tt.ones(4))
    assert recording.acting() is None


def test_nobody_is_named_while_nobody_watches_memory() -> None:
    found: list[Any] = []
    watcher = tt.watch(lambda event: found.append(recording.acting()))
    try:
        tt.add(tt.ones(3), 1)
    finally:
        tt.unwatch(watcher)
    assert set(found) == {None}


def test_each_thread_carries_out_its_own(actors: list[tuple[str, Any]]) -> None:
    a = tt.ones((200, 200))
    tt.add(a, a)
    tt.multiply(a, a)
    actors.clear()
    threads = [threading.Thread(target=lambda op=op: [op(a, a) for _ in range(20)]) for op in (ops.add, ops.multiply)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    made = [actor for kind, actor in actors if kind == "alloc"]
    assert made.count(ops.add) == made.count(ops.multiply) == 20


@needs_native
def test_a_native_program_refuses_to_be_told_of_other_steps_than_its_own() -> None:
    with pytest.raises(ValueError, match="about is a tuple"):
        native.Program([], [], b"", 0, [], [], [], about=(1, 2))


# ---- any order of it all


ACTS = st.lists(
    st.tuples(st.sampled_from(["start", "stop", "read", "take", "op", "add", "scope"]), st.integers(0, 2)), max_size=30
)


@given(ACTS)
def test_any_order_of_starts_stops_and_calls_keeps_what_it_should(acts: list[tuple[str, int]]) -> None:
    a = tt.ones(2)
    recorders = [Recorder(capacity=c) for c in (2, 5, 1000)]
    running, kept, dropped = [False] * 3, [[], [], []], [0, 0, 0]  # type: ignore[var-annotated]

    def expect(name: str) -> None:
        for i, capacity in enumerate((2, 5, 1000)):
            if running[i] and len(kept[i]) < capacity:
                kept[i].append(name)
            elif running[i]:
                dropped[i] += 1

    for act, i in acts:
        if act in ("start", "stop"):
            getattr(recorders[i], act)()
            running[i] = act == "start"
        elif act in ("read", "take"):
            whats, times = getattr(recorders[i], act)()
            assert names(whats) == kept[i]
            assert times.shape == (len(whats), 3)
            if act == "take":
                kept[i] = []
        elif act == "op":
            tt.add(a, a)
            expect("add")
        elif act == "add":
            recording.add(Scope("mine"), time.perf_counter_ns(), 0)
            expect("mine")
        else:
            with tt.scope("scope"):
                tt.add(a, a)
            expect("add")
            expect("scope")
    for i, r in enumerate(recorders):
        r.stop()
        assert names(r.read()[0]) == kept[i]
        assert r.dropped == dropped[i]
