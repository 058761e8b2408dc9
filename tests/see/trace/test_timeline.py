"""Timelines: what they refuse, and how their spans are ordered."""

from __future__ import annotations

import numpy as np
import pytest

from made_profiles import ADD, MATMUL, SCOPE, made
from tritium.errors import ArgumentError
from tritium.see.trace.timeline import ordered, timeline


def test_spans_are_ordered_by_lane_then_start_then_the_longer_first() -> None:
    t = made((ADD, 5, 1, 1), (MATMUL, 9, 1), (MATMUL, 2, 3), (SCOPE, 2, 8))
    rows = zip(t.lane, t.start_ns, t.elapsed_ns, strict=True)
    assert [tuple(map(int, r)) for r in rows] == [(0, 2, 8), (0, 2, 3), (0, 9, 1), (1, 5, 1)]


def test_one_what_stands_for_all_its_calls() -> None:
    t = made((ADD, 0, 1), (ADD, 2, 1), (MATMUL, 4, 1))
    assert (len(t), len(t.whats)) == (3, 2)
    assert t.kind("op").all()
    assert not t.kind("scope").any()


def test_ends_are_starts_and_lengths() -> None:
    assert made((ADD, 3, 4)).end_ns.tolist() == [7]


def test_a_timeline_may_be_empty() -> None:
    t = made()
    assert len(t) == 0
    assert len(t.kind("op")) == 0


def test_a_span_needs_a_lane_and_a_length() -> None:
    with pytest.raises(ArgumentError, match="without a name"):
        timeline([(ADD, 0, 1, 2)], ["one"], 10)
    with pytest.raises(ArgumentError, match="negative length"):
        timeline([(ADD, 0, -1, 0)], ["one"], 10)


def test_columns_must_be_of_one_length() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ArgumentError, match="one length"):
        ordered([ADD], one, one, two, one, ["a"], 1)
