"""Pipeline: what a loop over the stages gives, from threads that always end."""

from __future__ import annotations

import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from tritium.errors import ArgumentError, PipelineError
from tritium.graph.graph import Trace, tracing
from tritium.op import interpreter

PATIENCE_S = 20  # how long a test waits before it calls a pipeline stuck


def double(x: int) -> int:
    return 2 * x


def inc(x: int) -> int:
    return x + 1


def alive() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("pipeline-")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not alive()


def in_time(act: Callable[[], Any]) -> Any:
    """What act gives or raises; a pipeline that is stuck fails the test instead of hanging it."""
    got: list[Any] = []

    def body() -> None:
        try:
            got.append((True, act()))
        except BaseException as error:
            got.append((False, error))

    t = threading.Thread(target=body, daemon=True)
    t.start()
    t.join(PATIENCE_S)
    assert got, "stuck"
    fine, value = got[0]
    if not fine:
        raise value
    return value


def test_results_come_in_order() -> None:
    assert tt.Pipeline([double, inc]).run(range(100)) == [2 * x + 1 for x in range(100)]


def test_one_stage_is_a_map() -> None:
    assert list(tt.Pipeline([str], depth=1)((1, 2, 3))) == ["1", "2", "3"]


def test_no_items_give_no_results() -> None:
    assert tt.Pipeline([double, inc]).run([]) == []


def test_none_is_an_item_like_any_other() -> None:
    assert tt.Pipeline([lambda x: x, lambda x: x]).run([None, 0, ()]) == [None, 0, ()]


def test_a_pipeline_runs_again() -> None:
    p = tt.Pipeline([double])
    assert p.run([1]) == [2]
    assert p.run([2]) == [4]


def test_two_runs_of_one_pipeline_do_not_mix() -> None:
    p = tt.Pipeline([double, inc])
    assert list(zip(p(range(20)), p(range(100, 120)), strict=True)) == [(2 * x + 1, 2 * x + 201) for x in range(20)]


def test_tensors_go_through() -> None:
    got = tt.Pipeline([lambda i: tt.full((3,), float(i)), lambda x: (x * 2.0).sum().item()]).run(range(4))
    assert got == [0, 6, 12, 18]


def test_stages_work_at_the_same_time() -> None:
    """Two stages meet at a barrier: in one thread neither would ever pass it."""
    meet = threading.Barrier(2)

    def first(x: int) -> int:
        if x == 1:
            meet.wait(PATIENCE_S)
        return x

    def second(x: int) -> int:
        if x == 0:
            meet.wait(PATIENCE_S)
        return x

    assert tt.Pipeline([first, second]).run(range(3)) == [0, 1, 2]


# ---- back-pressure


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_an_endless_source_is_read_only_as_far_as_depth_allows(depth: int) -> None:
    read = itertools.count()
    seen: list[int] = []

    def source() -> Iterator[int]:
        for i in read:
            seen.append(i)
            yield i

    results = tt.Pipeline([double, inc], depth=depth)(source())
    for n, r in enumerate(itertools.islice(results, 40), 1):
        assert r == 2 * (n - 1) + 1
        assert len(seen) <= n + 2 * (depth + 1)
    results.close()  # type: ignore[attr-defined]


def test_nothing_is_read_before_the_first_result_is_asked_for() -> None:
    source = iter(range(3))
    tt.Pipeline([double])(source)
    assert next(source) == 0


# ---- errors


def fail_at(n: int, error: BaseException) -> Callable[[int], int]:
    def risky(x: int) -> int:
        if x == n:
            raise error
        return x

    return risky


def test_an_error_names_stage_and_item_and_keeps_its_cause() -> None:
    cause = ValueError("bad pixel")
    with pytest.raises(PipelineError, match=r"stage 1 \(risky\) failed at item 3: ValueError: bad pixel") as caught:
        tt.Pipeline([lambda x: x, fail_at(3, cause), double]).run(range(10))
    assert caught.value.__cause__ is cause
    assert (caught.value.stage, caught.value.item) == (1, 3)


def test_an_error_of_the_source_says_so() -> None:
    def source() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("disk gone")

    with pytest.raises(PipelineError, match="the source failed at item 2: OSError: disk gone") as caught:
        tt.Pipeline([double]).run(source())
    assert caught.value.stage is None
    assert isinstance(caught.value.__cause__, OSError)


def test_results_before_an_error_are_given_first() -> None:
    got: list[int] = []
    with pytest.raises(PipelineError):
        got.extend(tt.Pipeline([fail_at(5, ValueError()), double, inc])(range(10)))
    assert got == [2 * x + 1 for x in range(5)]


def test_the_earliest_item_that_fails_is_the_one_reported() -> None:
    with pytest.raises(PipelineError, match=r"stage 1 .* item 2"):
        tt.Pipeline([fail_at(3, ValueError()), fail_at(2, KeyError())], depth=4).run(range(9))


@pytest.mark.parametrize("error", [StopIteration(), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_any_exception_of_a_stage_is_carried(error: BaseException) -> None:
    with pytest.raises(PipelineError) as caught:
        tt.Pipeline([inc, fail_at(2, error)]).run(itertools.count())
    assert caught.value.__cause__ is error


def test_an_error_stops_an_endless_source() -> None:
    with pytest.raises(PipelineError, match="item 7"):
        in_time(lambda: tt.Pipeline([double, inc, fail_at(15, ValueError())]).run(itertools.count()))


def test_what_comes_before_a_failed_stage_ends_while_the_rest_goes_on() -> None:
    def last(x: int) -> bool:
        until = time.monotonic() + PATIENCE_S
        while any(t.name == "pipeline-0" for t in alive()) and time.monotonic() < until:
            time.sleep(0.001)
        return not any(t.name == "pipeline-0" for t in alive())

    results = tt.Pipeline([inc, fail_at(2, ValueError()), last])(itertools.count())
    assert next(results)
    with pytest.raises(PipelineError, match="stage 1"):
        next(results)


# ---- leaving early


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_breaking_out_of_the_loop_ends_the_threads(taken: int) -> None:
    def leave() -> None:
        for n, _ in enumerate(tt.Pipeline([double, inc, double])(itertools.count())):
            if n == taken:
                break

    in_time(leave)
    assert not alive()


def test_an_exception_in_the_loop_ends_the_threads() -> None:
    def leave() -> None:
        for _ in tt.Pipeline([double, inc])(itertools.count()):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        in_time(leave)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signal to a thread on this system")
def test_ctrl_c_while_waiting_ends_the_threads() -> None:
    """The signal comes while the consumer waits for a stage that is still at work; it must be heard at once."""
    release = threading.Event()
    heard: list[bool] = []

    def handler(*_: object) -> None:
        release.set()
        raise KeyboardInterrupt

    def interrupt(x: int) -> int:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        heard.append(release.wait(PATIENCE_S))
        return x

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            tt.Pipeline([inc, interrupt, double]).run(itertools.count())
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [True]
    assert not alive()


def test_a_loop_dropped_in_a_reference_cycle_ends_its_threads() -> None:
    def make() -> None:
        results = tt.Pipeline([double, inc])(itertools.count())
        next(results)
        cycle: list[Any] = [results]
        cycle.append(cycle)

    in_time(make)
    gc.collect()
    assert not alive()


def test_a_stage_waiting_for_a_slow_source_is_woken_by_leaving() -> None:
    gate = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        assert gate.wait(PATIENCE_S)
        yield 2

    results = tt.Pipeline([double, inc])(source())
    assert next(results) == 3
    threading.Timer(0.02, gate.set).start()
    in_time(results.close)  # type: ignore[attr-defined]


def test_an_item_is_dropped_as_soon_as_it_has_passed() -> None:
    import weakref

    class Big:
        pass

    refs: list[weakref.ref[Big]] = []

    def make(_: int) -> Big:
        big = Big()
        refs.append(weakref.ref(big))
        return big

    def earlier_ones_alive(big: Big) -> int:
        here = next(i for i, r in enumerate(refs) if r() is big)
        return sum(r() is not None for r in refs[:here])

    assert tt.Pipeline([make, earlier_ones_alive]).run(range(5)) == [0] * 5


# ---- random runs: the same as a loop, whatever fails and wherever the consumer leaves


class OopsError(Exception):
    pass


@settings(max_examples=250)
@given(st.data())
def test_a_pipeline_gives_what_a_loop_gives(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 12), "items")
    stages = data.draw(st.integers(1, 4), "stages")
    depth = data.draw(st.integers(1, 3), "depth")
    places = st.tuples(st.integers(-1, stages - 1), st.integers(0, 12))
    broken = data.draw(st.sets(places, max_size=3), "broken")
    slow = data.draw(st.sets(places, max_size=3), "slow")
    leave = data.draw(st.none() | st.integers(1, 12), "leave")

    def visit(k: int, x: int) -> int:
        if (k, x) in slow:
            time.sleep(0.001)
        if (k, x) in broken:
            raise OopsError(k, x)
        return x

    def source() -> Iterator[int]:
        for i in range(n):
            yield visit(-1, i)

    def consume(results: Iterator[int]) -> tuple[list[int], Any]:
        got: list[int] = []
        try:
            for r in results:
                got.append(r)
                if len(got) == leave:
                    break
        except PipelineError as error:
            return got, (error.stage, error.item, error.__cause__.args if error.__cause__ else None)
        return got, None

    def loop() -> tuple[list[int], Any]:
        got: list[int] = []
        for x in range(n):
            for k in range(-1, stages):
                if (k, x) in broken:
                    return got, (None if k < 0 else k, x, (k, x))
            got.append(x)
            if len(got) == leave:
                break
        return got, None

    p = tt.Pipeline([lambda x, k=k: visit(k, x) for k in range(stages)], depth=depth)
    assert in_time(lambda: consume(p(source()))) == loop()
    assert not alive()


# ---- surroundings


def test_stages_see_the_callers_context() -> None:
    var: ContextVar[str] = ContextVar("var", default="none")
    var.set("mine")
    assert tt.Pipeline([lambda _: var.get(), lambda x: (x, var.get())]).run([0]) == [("mine", "mine")]


def test_stages_record_when_the_caller_is_tracing() -> None:
    with tracing(Trace()) as trace:
        assert tt.Pipeline([lambda _: interpreter.get()]).run([0]) == [trace]
    assert tt.Pipeline([lambda _: interpreter.get()]).run([0]) == [None]


def test_stats_count_items_and_times_of_each_stage() -> None:
    p = tt.Pipeline([double, lambda x: time.sleep(0.005) or x])
    assert [s.items for s in p.stats()] == [0, 0]
    p.run(range(6))
    first, second = p.stats()
    assert (first.name, first.items, second.items) == ("double", 6, 6)
    assert second.busy_s >= 6 * 0.005
    assert first.waiting_out_s > 0
    assert first.waiting_s == first.waiting_in_s + first.waiting_out_s
    assert p.stats().slowest == second


def test_stats_print_as_a_table_that_names_the_stage_that_bounds() -> None:
    p = tt.Pipeline([double, lambda x: time.sleep(0.005)])
    p.run([1])
    lines = str(p.stats()).splitlines()
    assert lines[0].split() == ["stage", "items", "busy", "wait", "in", "wait", "out"]
    assert [line.endswith("bounds the pipeline") for line in lines] == [False, False, True]


def test_an_item_that_failed_is_not_counted() -> None:
    p = tt.Pipeline([fail_at(2, ValueError())])
    with pytest.raises(PipelineError):
        p.run(range(5))
    assert p.stats()[0].items == 2


@pytest.mark.parametrize(
    ("stages", "depth", "says"),
    [
        ([], 2, "no stages"),
        ([double, 3], 2, "stage 1 is 3, which cannot be called"),
        (double, 2, "not a list of stages"),
        (7, 2, "not a list of stages"),
        ([double], 0, "depth must be 1 or more.*given 0"),
        ([double], -1, "depth"),
        ([double], 1.5, "depth"),
        ([double], True, "depth"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused(stages: Any, depth: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.Pipeline(stages, depth=depth)


def test_items_must_be_a_source() -> None:
    with pytest.raises(ArgumentError, match="int is not a list, generator or other source"):
        tt.Pipeline([double])(3)  # type: ignore[arg-type]
