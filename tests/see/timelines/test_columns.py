"""The columns of a timeline's page: what a browser reads is what was recorded, and everything is bounded."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from hostile import NAMES
from made_timelines import named, nested, op, scope
from tritium.see.timelines import columns
from tritium.see.timelines.columns import content, packed, place
from tritium.see.timelines.gaps import find_gaps
from tritium.see.trace.timeline import Timeline, timeline


def unpacked(table: dict[str, Any]) -> dict[str, list[int]]:
    """Return the columns as the script of the page reads them."""
    raw = np.frombuffer(gzip.decompress(base64.b64decode(table["gzip"])), np.uint8)
    out, at, n = {}, 0, table["length"]
    for name, planes in table["columns"]:
        values = np.zeros(n, np.int64)
        for k in range(planes):
            values += raw[at : at + n].astype(np.int64) << (8 * k)
            at += n
        out[name] = values.tolist()
    assert at == len(raw)
    return out


@settings(max_examples=60, deadline=None)
@given(nested(lanes=3))
def test_every_span_is_in_the_columns_at_its_time(t: Timeline) -> None:
    body = content(t, find_gaps(t), [])
    spans = unpacked(body["spans"])
    kept = sorted(zip(spans["start"], spans["elapsed"], spans["what"], strict=True))
    assert kept == sorted(zip(t.start_ns.tolist(), t.elapsed_ns.tolist(), t.what.tolist(), strict=True))
    ends: dict[tuple[int, int], int] = {}
    for row, level, start, elapsed in zip(*(spans[k] for k in ("row", "level", "start", "elapsed")), strict=True):
        assert start >= ends.get((row, level), 0)  # disjoint and in order: a browser bisects them
        ends[row, level] = start + elapsed
        assert level < body["rows"][row][1]


def test_of_too_many_spans_the_longest_stay_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_SPANS", 10)
    spans = [(scope("all"), 0, 10_000, 0), *((op(), 100 * i, 10 + i, 0) for i in range(50))]
    t = timeline(spans, ("MainThread",), 10_000)
    placed = place(t)
    assert placed.left_out == 41
    assert sorted(placed.timeline.elapsed_ns.tolist()) == [*range(51, 60), 10_000]
    assert content(t, [], [])["leftOut"] == 41


def test_calls_on_a_device_have_rows_of_their_own() -> None:
    spans = [(scope("step"), 0, 100, 0), (op("matmul", device="cuda:0"), 10, 50, 0), (op("add"), 70, 10, 0)]
    rows = place(timeline(spans, ("MainThread",), 100)).rows
    assert [(r.name, r.levels) for r in rows] == [("MainThread", 2), ("cuda:0, called by MainThread", 1)]


def test_a_device_with_lanes_of_its_own_keeps_them() -> None:
    call = op("matmul", device="cuda:0")
    rows = place(timeline([(call, 0, 5, 0), (call, 10, 50, 1)], ("MainThread", "cuda:0 stream 0"), 100)).rows
    assert [r.name for r in rows] == ["MainThread", "cuda:0 stream 0"]


def test_the_path_is_joined_where_it_touches() -> None:
    t = timeline([(op(), 0, 50, 0), (op(), 50, 50, 0), (op(), 0, 10, 1)], ("a", "b"), 100)
    table = unpacked(content(t, [], [(0, 0, 50), (0, 50, 100), (1, 0, 10)])["path"])
    assert list(zip(table["row"], table["start"], table["elapsed"], strict=True)) == [(0, 0, 100), (1, 0, 10)]


def test_texts_are_visible_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "TEXT_CHARS", 5000)
    t = named(NAMES[:200])
    monkeypatch.setattr(columns._Texts.__init__, "__defaults__", (5000,))
    body = content(t, find_gaps(t), [])
    texts = [w[i] for w in body["whats"] for i in (0, 2, 3, 4)] + [r[0] for r in body["rows"]]
    assert sum(map(len, texts)) <= 5000
    assert all(c.isprintable() for text in texts for c in text)
    assert json.loads(gzip.decompress(base64.b64decode(packed(body))))["total"] == body["total"]


def test_a_sample_counts_from_the_one_before_to_its_own_moment() -> None:
    t = named(["a", "b", "c"])
    table = unpacked(content(t, [], [])["samples"]["table"])
    found = sorted(zip(table["row"], table["start"], table["elapsed"], strict=True))
    assert found == [(0, 0, 1000), (1, 1000, 1000), (2, 2000, 1000)]
