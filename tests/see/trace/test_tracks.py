"""Tracks: nothing on them crosses, and the earliest spans fit first."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from made_timelines import any_spans, decode, nested, op
from tritium.see.trace import tracks
from tritium.see.trace.timeline import Timeline, timeline


def crossing(t: Timeline, track: np.ndarray) -> bool:
    rows = list(zip(track.tolist(), t.start_ns.tolist(), t.end_ns.tolist(), strict=True))
    return any(a[0] == b[0] and a[1] < b[1] < a[2] < b[2] for a in rows for b in rows)


@given(any_spans())
def test_no_two_spans_of_a_track_cross(t: Timeline) -> None:
    track, named = tracks.tracks(t)
    assert not crossing(t, track)
    assert len(set(named)) == len(named)
    assert track.max(initial=0) < len(named)


@given(nested())
def test_nested_spans_stay_on_their_lane(t: Timeline) -> None:
    track, named = tracks.tracks(t)
    assert np.array_equal(track, t.lane)
    assert named == t.lanes


def test_a_track_that_was_added_says_whose_it_is() -> None:
    t = timeline([(op("a"), 0, 10, 0), (op("b"), 5, 10, 0), (op("c"), 7, 10, 0)], ["main"], 20)
    track, named = tracks.tracks(t)
    assert track.tolist() == [0, 1, 2]
    assert named == ("main", "main (2)", "main (3)")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=20), st.integers(0, 60))
def test_what_is_left_out_began_no_earlier_than_what_is_kept(spans: list[tuple[int, int]], budget: int) -> None:
    start, size = (np.array([s[i] for s in spans], np.int64) for i in (0, 1))
    kept = tracks.earliest(start, size, budget)
    assert size[kept].sum() <= budget
    if not kept.all():
        assert start[kept].max(initial=-1) <= start[~kept].min()


@given(st.lists(st.integers(0, 10**17)))
def test_digits_are_counted(values: list[int]) -> None:
    assert tracks.digits(np.array(values, np.int64)).tolist() == [len(str(v)) for v in values]


def test_a_made_decode_is_nested() -> None:
    t = decode()
    assert np.array_equal(tracks.tracks(t)[0], t.lane)
