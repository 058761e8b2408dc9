"""Gaps of a timeline: what was waited for, by evidence; and that no time is lost or invented."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings

from made_timelines import nested, op, scope
from tritium.see.timelines.gaps import UNKNOWN, find_gaps, gap_lines, sum_gaps
from tritium.see.trace.timeline import Samples, Timeline, timeline

US = 1_000
LOAD, RUN = scope("load"), scope("run")


def test_a_stage_waits_for_the_item_of_the_stage_before() -> None:
    spans = [(LOAD, 0, 5 * US, 0), (LOAD, 5 * US, 50 * US, 0), (RUN, 6 * US, 10 * US, 1), (RUN, 57 * US, 10 * US, 1)]
    t = timeline(spans, ("a", "b"), 70 * US, after=[(0, 2), (1, 3)])
    waits, wakes = find_gaps(t)
    assert (waits.kind, waits.lane, waits.start_ns, waits.end_ns) == ("item", 1, 16 * US, 55 * US)
    assert waits.reason == "waits for an item of load on a"
    assert (wakes.kind, wakes.start_ns, wakes.end_ns) == ("wake", 55 * US, 57 * US)


def test_a_stage_waits_for_room_before_the_stage_after() -> None:
    spans = [(LOAD, 10 * i * US, 10 * US, 0) for i in range(3)]  # two items wait while the second stage is busy
    spans += [(LOAD, 101 * US, 10 * US, 0)]
    spans += [
        (RUN, 11 * US, 89 * US, 1),
        (RUN, 100 * US, 5 * US, 1),
        (RUN, 106 * US, 4 * US, 1),
        (RUN, 112 * US, US, 1),
    ]
    t = timeline(spans, ("a", "b"), 120 * US, after=[(i, i + 4) for i in range(4)])
    first = find_gaps(t)[0]
    assert (first.kind, first.start_ns, first.end_ns) == ("room", 30 * US, 100 * US)
    assert first.reason == "waits for room: 2 items wait for run on b"


def test_work_of_a_device_waits_for_its_call() -> None:
    call = op("matmul", device="gpu:0")
    spans = [(call, 0, US, 0), (call, 20 * US, US, 0), (call, 2 * US, 3 * US, 1), (call, 25 * US, 3 * US, 1)]
    t = timeline(spans, ("MainThread", "gpu:0 stream 0"), 30 * US)
    waits = [g for g in find_gaps(t) if g.lane == 1]
    assert [(g.kind, g.start_ns, g.end_ns) for g in waits] == [("launch", 5 * US, 20 * US), ("wake", 20 * US, 25 * US)]
    assert waits[0].reason == "waits for the call of matmul on MainThread"


def test_a_call_that_goes_on_has_not_launched_yet() -> None:
    call = op("matmul", device="gpu:0")
    spans = [(call, 0, US, 0), (call, 20 * US, 9 * US, 0), (call, 2 * US, 3 * US, 1), (call, 25 * US, 3 * US, 1)]
    t = timeline(spans, ("MainThread", "gpu:0 stream 0"), 30 * US)
    assert [g.reason for g in find_gaps(t) if g.lane == 1] == [
        "waits for the call of matmul on MainThread",
        "within the call of matmul on MainThread, before its launch",
    ]


def test_what_the_samples_show_is_named_and_the_rest_is_not() -> None:
    spans = [(op(), 0, 10 * US, 0), (op(), 50 * US, 10 * US, 0), (op(), 90 * US, 10 * US, 0)]
    times = np.array([20 * US, 30 * US, 40 * US], np.int64)
    zeros = np.zeros(3, np.int64)
    samples = Samples(("main (a.py:1)", "read (a.py:7)"), ((0, 1),), times, zeros, zeros, 10 * US)
    t = timeline(spans, ("MainThread",), 100 * US, samples=samples)
    assert [(g.kind, g.reason) for g in find_gaps(t)] == [("python", "in read (a.py:7)"), ("unknown", UNKNOWN)]
    assert "sampled stacks" not in "\n".join(gap_lines(t, sum_gaps(find_gaps(t))))
    without = timeline(spans, ("MainThread",), 100 * US)
    assert "sampled stacks" in gap_lines(without, sum_gaps(find_gaps(without)))[-1]


def test_gaps_are_summed_by_lane_and_reason() -> None:
    t = timeline([(op(), 100 * i * US, 40 * US, 0) for i in range(5)], ("MainThread",), 500 * US)
    (wait,) = sum_gaps(find_gaps(t))
    assert (wait.gaps, wait.total_ns, wait.longest.elapsed_ns) == (4, 240 * US, 60 * US)
    assert gap_lines(t, [wait])[0].split() == [
        "240",
        "µs",
        "MainThread:",
        *UNKNOWN.split(),
        "(4",
        "gaps,",
        "the",
        "longest",
        "60",
        "µs)",
    ]


@settings(max_examples=60, deadline=None)
@given(nested())
def test_gaps_and_spans_fill_each_lane_between_its_first_span_and_its_last(t: Timeline) -> None:
    gaps = find_gaps(t, least_ns=1)
    assert all(a.lane < b.lane or a.end_ns <= b.start_ns for a, b in pairwise(gaps))
    for lane in np.unique(t.lane).tolist():
        rows = np.flatnonzero(t.lane == lane)
        covered = np.zeros(int(t.end_ns[rows].max()), bool)
        for i in rows.tolist():
            covered[t.start_ns[i] : t.end_ns[i]] = True
        for gap in gaps:
            if gap.lane == lane:
                assert not covered[gap.start_ns : gap.end_ns].any()
                covered[gap.start_ns : gap.end_ns] = True
        assert covered[int(t.start_ns[rows].min()) :].all()
