"""Chrome traces: strictly nested, exact to the ns, capped, and harmless whatever the names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from device_timelines import on_device
from hostile import NAMES
from made_timelines import any_spans, decode, million, named, nested, op
from tritium import escape
from tritium.errors import ArgumentError
from tritium.see.trace import check as trace_check, chrome
from tritium.see.trace.timeline import Counter, Timeline, timeline
from tritium.see.trace.tracks import CAP_BYTES


def written(t: Timeline, cap_bytes: int = CAP_BYTES) -> str:
    return "".join(chrome.chunks(t, cap_bytes))


def loaded(t: Timeline, cap_bytes: int = CAP_BYTES) -> dict:
    data = json.loads(written(t, cap_bytes))
    assert not list(trace_check.chrome(data))
    return data


def spans(data: dict) -> list[dict]:
    return [e for e in data["traceEvents"] if e["ph"] == "X"]


@settings(max_examples=50)
@given(any_spans())
def test_every_trace_passes_the_checker_even_where_spans_cross(t: Timeline) -> None:
    assert len(spans(loaded(t))) == len(t)


@settings(max_examples=50)
@given(nested())
def test_times_are_exact_to_the_nanosecond(t: Timeline) -> None:
    found = [(e["tid"] - 1, round(e["ts"] * 1000), round(e["dur"] * 1000), e["name"]) for e in spans(loaded(t))]
    rows = zip(t.lane.tolist(), t.start_ns.tolist(), t.elapsed_ns.tolist(), t.what.tolist(), strict=True)
    assert found == [(lane, start, length, t.whats[what].name) for lane, start, length, what in rows]


def test_a_time_is_written_with_three_decimals_and_never_rounded() -> None:
    text = written(timeline([(op(), 123_456_789_012_345, 1_001, 0)], ["main"], 1))
    assert '"ts":123456789012.345,"dur":1.001' in text


def test_a_span_says_kernel_specs_and_work() -> None:
    (event,) = spans(loaded(timeline([(op(), 5, 10, 0)], ["main"], 20)))
    assert event["args"] == {
        "kernel": "tile", "specs": "f32[8,512] -> f32[8,512]", "device": "cpu", "flops": 1000, "bytes": 96,
    }  # fmt: skip
    assert (event["cat"], event["pid"], event["tid"]) == ("op", 1, 1)


def test_threads_and_the_process_have_their_names() -> None:
    t = timeline([(op(), 0, 1, 0), (op(), 0, 1, 1)], ["MainThread", "worker"], 9, name="decode")
    told = {(e["name"], e["tid"]): e["args"] for e in loaded(t)["traceEvents"] if e["ph"] == "M"}
    assert told["process_name", 0] == {"name": "decode"}
    assert told["thread_name", 2] == {"name": "worker"}
    assert told["thread_sort_index", 2] == {"sort_index": 1}


def test_counters_are_numbers_and_a_gap_is_left_out() -> None:
    at = np.array([0, 1500, 3000], np.int64)
    power = Counter("power", "W", at[:0], at[:0] * 1.0, "not measured: no sensor")
    t = decode(counters=(Counter("pool", "B", at, np.array([1.0, np.nan, 3.5])), power))
    data = loaded(t)
    found = [(e["name"], e["ts"], e["args"]) for e in data["traceEvents"] if e["ph"] == "C"]
    assert found == [("pool (B)", 0, {"value": 1.0}), ("pool (B)", 3, {"value": 3.5})]
    assert data["otherData"]["counter power"] == "not measured: no sensor"


def test_the_trace_is_shorter_than_its_cap_and_says_what_it_left_out() -> None:
    t = million(5000)
    cap = 200_000
    text = written(t, cap)
    kept = spans(loaded(t, cap_bytes=cap))
    assert len(text) <= cap
    assert 0 < len(kept) < len(t)
    assert json.loads(text)["otherData"]["truncated"].startswith(f"the last {len(t) - len(kept)} of 5000 spans")
    gone_from = np.sort(t.start_ns)[len(kept)]
    assert all(round(e["ts"] * 1000) < gone_from for e in kept)


def test_counters_do_not_push_all_spans_out() -> None:
    at = np.arange(20_000, dtype=np.int64)
    t = decode(counters=(Counter("pool", "B", at, at * 1.0),))
    data = loaded(t, cap_bytes=200_000)
    assert len(spans(data)) == len(t)
    assert "counters truncated" in data["otherData"]
    assert len(written(t, 200_000)) <= 200_000


def test_a_cap_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least"):
        written(decode(), 10)


def test_an_empty_timeline_is_a_trace() -> None:
    assert spans(loaded(timeline([], [], 0))) == []


def test_what_began_before_the_profile_is_at_zero_not_before() -> None:
    t = timeline([(op("a"), -500, 100, 0), (op("b"), 0, 100, 0)], ["main"], 500)
    assert [e["ts"] for e in spans(loaded(t))] == [0, 0.5]


def test_arrows_lead_from_a_call_to_its_work_on_the_device() -> None:
    arrows = [e for e in loaded(on_device())["traceEvents"] if e["ph"] in "sf"]
    assert [(e["ph"], e["tid"], e["ts"]) for e in arrows[:2]] == [("s", 1, 0), ("f", 2, 0.05)]
    assert len(arrows) == 6


def test_no_arrow_is_drawn_where_calls_and_work_cannot_be_matched() -> None:
    assert chrome.flows(on_device(works=2)) == []
    assert chrome.flows(decode()) == []


def test_hostile_names_are_text_and_nothing_else() -> None:
    text = written(named(NAMES))
    assert text.isascii()
    assert not set("<>&") & set(text)
    data = json.loads(text)
    assert not list(trace_check.chrome(data))
    assert {e["name"] for e in spans(data)} == {escape.visible(n) for n in NAMES}


def test_the_same_timeline_gives_the_same_bytes_also_gzipped(tmp_path: Path) -> None:
    t = decode()
    first, second = (chrome.write(t, tmp_path / f"{n}.json.gz").read_bytes() for n in "ab")
    assert first == second
    assert gzip.decompress(first).decode() == written(t) == chrome.write(t, tmp_path / "c.json").read_text()
