"""The critical path, where it is known: one lane, several, and lanes that wait for each other."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import tritium as tt
from made_profiles import ADD, MATMUL, SCOPE, made
from made_timelines import op
from tritium.errors import ArgumentError
from tritium.see.profile.critical import CriticalPath, critical_path, path_pieces
from tritium.see.profile.profile import load_profile
from tritium.see.trace.timeline import Timeline, What, timeline

A, B, C, D = (What(name) for name in "abcd")


def test_of_one_thread_it_is_the_busy_time() -> None:
    found = critical_path(made((MATMUL, 0, 100), (ADD, 500, 50), total=1000))
    assert (found.total_ns, found.share) == (150, 0.15)
    assert found.parts == (("matmul", 100), ("add", 50))


def test_nested_spans_count_once() -> None:
    found = critical_path(made((SCOPE, 0, 100), (MATMUL, 10, 60), total=100))
    assert found.total_ns == 100
    assert dict(found.parts) == {"step": 40, "matmul": 60}


def test_of_lanes_that_know_nothing_of_each_other_it_is_the_busiest() -> None:
    found = critical_path(made((A, 0, 100), (B, 0, 150, 1), (C, 200, 20, 1), total=300))
    assert (found.total_ns, found.lanes) == (170, ("thread 1",))
    assert "no dependency between lanes is known" in str(found)


def test_it_is_not_the_sum_of_all_durations() -> None:
    t = made(*((A, 0, 100, lane) for lane in range(8)), total=100)
    assert critical_path(t).total_ns == 100


def test_a_known_dependency_carries_the_path_to_the_other_lane() -> None:
    # a on lane 0, then b on lane 1 waited for it; c was short and d idle beside it.
    t = made((A, 0, 100), (C, 100, 10), (D, 0, 50, 1), (B, 100, 80, 1), total=200)
    a, b = 0, 3
    found = critical_path(t, after=[(a, b)])
    assert (found.total_ns, found.lanes) == (180, ("thread 0", "thread 1"))
    assert dict(found.parts) == {"a": 100, "b": 80}


def test_the_own_time_of_a_scope_is_work_of_its_lane_and_a_gap_is_not() -> None:
    t = made((A, 0, 100), (SCOPE, 0, 200, 1), (B, 100, 50, 1), total=200)
    found = critical_path(t, after=[(0, 2)])
    assert found.total_ns == 200
    assert critical_path(made((A, 0, 100), (B, 100, 50, 1), total=200), after=[(0, 1)]).total_ns == 150


def test_a_chain_over_three_lanes_adds_up() -> None:
    t = made((A, 0, 10), (B, 15, 10, 1), (C, 30, 10, 2), total=50)
    found = critical_path(t, after=[(0, 1), (1, 2)])
    assert (found.total_ns, found.lanes) == (30, ("thread 0", "thread 1", "thread 2"))


def test_a_dependency_that_cannot_be_is_refused() -> None:
    t = made((A, 0, 100), (B, 50, 10, 1), total=100)
    with pytest.raises(ArgumentError, match="cannot have waited"):
        critical_path(t, after=[(0, 1)])
    with pytest.raises(ArgumentError, match="7 is out of range"):
        critical_path(t, after=[(0, 7)])


def test_of_nothing_it_is_nothing() -> None:
    found = critical_path(made(total=10))
    assert (found.total_ns, found.share, str(found)) == (0, 0.0, "nothing was recorded")
    assert critical_path(made(total=0)).share == 0.0


def test_a_long_path_is_shown_in_a_few_lines() -> None:
    t = made(*((What(f"op{i}"), 10 * i, 10 - i % 3) for i in range(12)), total=200)
    said = critical_path(t).lines()
    assert len(said) == 1 + 5 + 1
    assert said[-1].endswith("7 more")


@st.composite
def lanes(draw: st.DrawFn) -> tuple[Timeline, list[tuple[int, int]]]:
    """Spans one after another on three lanes, and pairs of them that may depend on each other."""
    spans = []
    for lane in range(3):
        at = 0
        for _ in range(draw(st.integers(0, 5))):
            at += draw(st.integers(0, 20))
            length = draw(st.integers(1, 30))
            spans.append((What(draw(st.sampled_from("abc"))), at, length, lane))
            at += length
    t = made(*spans, total=500)
    pairs = [
        (i, j) for i in range(len(t)) for j in range(len(t)) if t.end_ns[i] <= t.start_ns[j] and t.lane[i] != t.lane[j]
    ]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=4)) if pairs else []
    return t, chosen


@given(lanes())
def test_it_lies_between_the_busiest_lane_and_the_run(given_lanes: tuple[Timeline, list[tuple[int, int]]]) -> None:
    t, after = given_lanes
    alone, found = critical_path(t), critical_path(t, after)
    assert alone.total_ns <= found.total_ns <= t.elapsed_total_ns
    assert sum(ns for _, ns in found.parts) == found.total_ns


@given(lanes())
def test_both_ways_of_computing_agree_where_nothing_is_known(
    given_lanes: tuple[Timeline, list[tuple[int, int]]],
) -> None:
    from tritium.see.profile.critical import _find_longest

    t, _ = given_lanes
    if len(t):
        assert sum(end - start for _, start, end in _find_longest(t, [])) == critical_path(t).total_ns


def test_handovers_that_were_recorded_are_dependencies() -> None:
    spans = ((A, 0, 50), (B, 60, 100, 1), (C, 170, 30, 2), (D, 50, 60))
    t = replace(made(*spans, total=300), after=())
    rows = {t.whats[w].name: i for i, w in enumerate(t.what.tolist())}
    linked = replace(t, after=((rows["a"], rows["b"]), (rows["b"], rows["c"])))
    assert critical_path(t).total_ns == 110
    found = critical_path(linked)
    assert (found.total_ns, found.lanes) == (180, ("thread 0", "thread 1", "thread 2"))
    assert dict(found.parts) == {"a": 50, "b": 100, "c": 30}


def load(n: int) -> int:
    time.sleep(0.001)
    return n


def run(n: int) -> int:
    time.sleep(0.004)
    return 2 * n


def save(n: int) -> int:
    time.sleep(0.001)
    return n


def test_the_critical_path_of_a_pipeline_crosses_its_threads(tmp_path: Path) -> None:
    with tt.profile(counters=None, ceilings=False) as p:
        assert tt.Pipeline([load, run, save])(range(6)) is not None
        assert tt.Pipeline([load, run, save]).run(range(6)) == [2 * n for n in range(6)]
    t = p.timeline
    names = [t.whats[w].name for w in t.what.tolist()]
    assert [names.count(name) for name in ("load", "run", "save")] == [6, 6, 6]
    assert {(names[a], names[b]) for a, b in t.after} == {("load", "run"), ("run", "save")}
    assert len(t.after) == 12
    path = p.critical_path()
    first = [names.index(name) for name in ("load", "run", "save")]
    busiest = max(int(t.elapsed_ns[t.lane == lane].sum()) for lane in set(t.lane.tolist()))
    assert path.known == 12
    assert len(set(path.lanes)) == 3
    assert path.total_ns > busiest
    assert path.total_ns >= sum(int(t.elapsed_ns[i]) for i in first)
    assert path.total_ns <= t.elapsed_total_ns
    assert "pipeline-0 → pipeline-1" in p.text()
    assert load_profile(p.save(tmp_path / "p.json")).critical_path() == path


def test_a_long_list_of_lanes_is_shortened() -> None:
    path = CriticalPath(10, ("a", "b") * 10, (("x", 10),), 20, 19, True)
    assert "a → b → a → b → a → b → … (19 handovers between 2 lanes)" in path.lines()[0]


def test_the_path_goes_from_a_call_to_its_work_on_a_device() -> None:
    call = op("matmul", device="gpu:0")
    spans = [(op("load"), 0, 30, 0), (call, 30, 10, 0), (call, 45, 100, 1)]
    t = timeline(spans, ("MainThread", "gpu:0 stream 0"), 150)
    path = critical_path(t)
    assert (path.total_ns, path.lanes, path.known) == (140, ("MainThread", "gpu:0 stream 0"), 1)
    assert path_pieces(t) == [(0, 0, 30), (0, 30, 40), (1, 45, 145)]
