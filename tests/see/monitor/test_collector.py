"""The collector: bounded, and it survives what it looks at."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tritium as tt
from collected import Clock, codes
from tritium.errors import ArgumentError
from tritium.perf.meters.absent import Absent
from tritium.perf.records.case import Context
from tritium.see.monitor import metrics_file
from tritium.see.monitor.collector import Collector
from tritium.see.monitor.metrics_file import Column, Value
from tritium.see.monitor.sources import Memory, Source


class Fake(Source):
    """A source of given answers, the last one for ever; an exception is raised."""

    def __init__(self, *answers: Any, name: str = "x") -> None:
        self.columns = (Column(name, "1"),)
        self.answers, self.log = list(answers), list[str]()

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")

    def read(self) -> Sequence[Value]:
        self.log.append("read")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, list) else [answer]


def wait_for(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


def test_a_collector_of_this_machine_gives_numbers_or_reasons_for_everything() -> None:
    seen = Collector("1s")
    seen.flush()
    row = seen.flush()
    assert len(row.values) == len(seen.columns)
    assert all(isinstance(v, (float, Absent)) for v in row.values)
    assert isinstance(seen.metrics().last["rss"], float)


def test_rows_are_taken_in_the_background_from_start_to_stop() -> None:
    source = Fake(1.0)
    with Collector("2ms", sources=[source]) as seen:
        assert seen.running
        wait_for(lambda: seen.looks >= 3)
    assert not seen.running
    taken = seen.looks
    assert source.log[0] == "start"
    assert source.log[-1] == "stop"
    assert source.log.count("read") == taken
    assert [row.values for row in seen.rows] == [(1.0,)] * taken
    assert sorted(row.at_s for row in seen.rows) == [row.at_s for row in seen.rows]


def test_a_stop_takes_a_last_row() -> None:
    with Collector("1h", sources=[Fake(1.0)]) as seen:
        pass
    assert len(seen.rows) == 1


def test_starting_twice_is_starting_once_and_it_goes_on_after_a_stop() -> None:
    source = Fake(1.0)
    seen = Collector("1h", sources=[source])
    assert seen.start_collection() is seen.start()
    seen.stop_collection()
    seen.stop()
    assert source.log == ["start", "read", "stop"]
    with seen:
        pass
    assert seen.looks == 2


def test_only_the_newest_rows_are_kept_and_that_is_said() -> None:
    seen = Collector("1s", 3, sources=[Fake(*map(float, range(6)))])
    for _ in range(5):
        seen.flush()
    found = seen.metrics()
    assert found.of("x") == (2.0, 3.0, 4.0)
    assert found.notes == ("the oldest 2 rows were dropped",)


@pytest.mark.parametrize("bad", [ValueError("broken\nsensor"), [1.0, 2.0], [float("nan")], [None]])
def test_a_source_that_fails_is_absent_and_the_others_go_on(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen = Collector("1s", sources=[Fake(bad, bad, 5.0), Fake(1.0, name="y")])
    with caplog.at_level(logging.WARNING, "tritium"):
        rows = [seen.flush() for _ in range(3)]
    for row in rows[:2]:
        assert codes(row.values) == ["unsupported", 1.0]
    assert rows[2].values == (5.0, 1.0)
    assert len(caplog.records) <= 1, "what stays broken is told once"


def test_a_source_that_cannot_start_does_not_keep_the_others_from_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Fake):
        def start(self) -> None:
            raise OSError("no such device")

    with (
        caplog.at_level(logging.WARNING, "tritium"),
        Collector("1h", sources=[Broken(1.0), Fake(2.0, name="y")]) as seen,
    ):
        pass
    assert seen.rows[0].values == (1.0, 2.0)
    assert "no such device" in caplog.text


def test_what_collecting_costs_is_measured_and_told() -> None:
    clock, used = Clock(), iter([1.0, 1.5])
    ended = threading.Event()

    class Passing(Fake):
        def read(self) -> Sequence[Value]:
            clock.now += 10
            ended.set()
            return [1.0]

    seen = Collector("1s", sources=[Passing(0.0)], clock=clock, cpu=lambda: next(used, 1.5))
    seen._run(ended_after_one(ended))
    assert seen.cpu_share == pytest.approx(0.05)
    assert seen.metrics().notes == ("collecting took 5 % of one CPU",)


def ended_after_one(ended: threading.Event) -> Any:
    class Once:
        """Lets one look happen."""

        def wait(self, _: float) -> bool:
            return ended.is_set()

        def is_set(self) -> bool:
            return False

    return Once()


def test_moments_that_were_missed_are_not_made_up_for() -> None:
    clock, waits = Clock(), list[float]()

    class Slow(Fake):
        def read(self) -> Sequence[Value]:
            clock.now += 3.5
            return [1.0]

    class Waits:
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            clock.now += seconds
            return len(waits) > 3

        def is_set(self) -> bool:
            return False

    Collector("1s", sources=[Slow(1.0)], clock=clock)._run(Waits())  # type: ignore[arg-type]
    assert waits == pytest.approx([1.0, 0.5, 0.5, 0.5])


def test_an_operation_of_the_callers_own_is_kept_with_its_context() -> None:
    seen = Collector("1s", 2, sources=[])
    context = Context("matmul", (32, 512), "f32", batch=32, sequence_length=512, parameters=10**6, optimisation="O2")
    for elapsed in (0.5, 4.2e-07):
        made = seen.collect_operation_metrics("matmul", "cpu", elapsed, [(32, 512), (512, 512)], context)
    plain = seen.collect_operation_metrics("add", elapsed_s=1e-6, shapes=[(3,)])
    found = metrics_file.loads(seen.export_metrics("csv"))
    assert found.operations == (made, plain)
    assert plain.context.shape == (3,)
    assert "the oldest 1 operations were dropped" in found.notes


@pytest.mark.parametrize("elapsed", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(elapsed: float) -> None:
    with pytest.raises(ArgumentError, match="seconds, 0 or more"):
        Collector(sources=[]).collect_operation_metrics("x", "cpu", elapsed)


@pytest.mark.parametrize("to", ["json", "csv", "prometheus"])
def test_an_export_loads_back(to: str) -> None:
    seen = Collector("250ms", sources=[Fake(7.5), Fake(Absent("no_device", "none", "s", "g"), name="y")])
    seen.flush()
    assert metrics_file.loads(seen.export_metrics(to)) == seen.metrics()


def test_bad_settings_are_refused() -> None:
    for interval in (0, "1us", "soon"):
        with pytest.raises(ArgumentError, match="interval"):
            Collector(interval)
    with pytest.raises(ArgumentError, match="history"):
        Collector(history=0)
    with pytest.raises(ArgumentError, match="two columns"):
        Collector(sources=[Fake(1.0), Fake(1.0)])


def test_threads_that_flush_at_once_take_whole_rows() -> None:
    with Collector("1ms", sources=[Fake(1.0), Memory()]) as seen:
        threads = [threading.Thread(target=lambda: [seen.flush() for _ in range(50)]) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert seen.looks >= 200
    assert all(len(row.values) == 4 for row in seen.rows)


def test_the_guides_name_is_the_same_class() -> None:
    assert tt.see.MetricsCollector is tt.see.Collector is Collector
