"""Speedscope files: balanced, in order, by the published schema, and harmless whatever the names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
from hypothesis import given, settings

from hostile import NAMES
from made_timelines import any_spans, decode, million, named, op
from tritium import escape
from tritium.see.trace import check as trace_check, speedscope
from tritium.see.trace.timeline import Samples, Timeline, timeline
from tritium.see.trace.tracks import CAP_BYTES


def written(t: Timeline, cap_bytes: int = CAP_BYTES) -> str:
    return "".join(speedscope.chunks(t, cap_bytes))


def loaded(t: Timeline, cap_bytes: int = CAP_BYTES) -> dict:
    data = json.loads(written(t, cap_bytes))
    assert not list(trace_check.speedscope(data))
    return data


def totals(data: dict, profile: int = 0) -> dict[str, int]:
    """The time of every frame of an evented profile, summed as speedscope does."""
    out: dict[str, int] = {}
    for event in data["profiles"][profile]["events"]:
        name = data["shared"]["frames"][event["frame"]]["name"]
        out[name] = out.get(name, 0) + (event["at"] if event["type"] == "C" else -event["at"])
    return out


@settings(max_examples=50)
@given(any_spans())
def test_every_file_passes_the_checker_even_where_spans_cross(t: Timeline) -> None:
    data = loaded(t)
    assert sum(len(p["events"]) for p in data["profiles"]) == 2 * len(t)


def test_the_time_of_every_name_is_the_timeline_s() -> None:
    t = decode()
    expected = {w.name: 0 for w in t.whats}
    for what, ns in zip(t.what.tolist(), t.elapsed_ns.tolist(), strict=True):
        expected[t.whats[what].name] += ns
    assert totals(loaded(t)) == expected


def test_a_lane_is_a_profile_in_nanoseconds_as_long_as_the_whole() -> None:
    t = timeline([(op(), 0, 5, 0), (op(), 2, 5, 1)], ["MainThread", "worker"], 100)
    profiles = loaded(t)["profiles"]
    assert [p["name"] for p in profiles] == ["MainThread", "worker"]
    assert {(p["unit"], p["startValue"], p["endValue"]) for p in profiles} == {("nanoseconds", 0, 100)}


def test_python_stacks_are_sampled_profiles_with_places() -> None:
    at = np.array([1000, 2000, 7000], np.int64)
    samples = Samples(
        ("main (app.py:3)", "inner (a b.py:12)", "<frozen>"), ((0,), (0, 1), (0, 2)), at, at * 0, np.array([0, 1, 1]), 1000
    )  # fmt: skip
    data = loaded(decode(samples=samples))
    sampled = data["profiles"][-1]
    assert (sampled["type"], sampled["name"], sampled["weights"]) == (
        "sampled",
        "MainThread: Python stacks",
        [1000, 1000, 5000],
    )
    frames = [[data["shared"]["frames"][f] for f in stack] for stack in sampled["samples"]]
    assert frames[1] == [{"name": "main", "file": "app.py", "line": 3}, {"name": "inner", "file": "a b.py", "line": 12}]


def test_an_empty_timeline_is_a_file_with_an_empty_profile() -> None:
    assert len(loaded(timeline([], ["main"], 0))["profiles"]) == 1


def test_the_file_is_shorter_than_its_cap_and_its_name_says_what_is_left_out() -> None:
    t = million(5000)
    data = loaded(t, cap_bytes=200_000)
    assert len(written(t, cap_bytes=200_000)) < 200_000
    kept = sum(len(p["events"]) for p in data["profiles"]) // 2
    assert data["name"] == f"profile (the last {5000 - kept} of 5000 spans are left out)"


def test_hostile_names_are_text_and_nothing_else() -> None:
    text = written(named(NAMES))
    assert text.isascii()
    assert not set("<>&") & set(text)
    data = json.loads(text)
    assert not list(trace_check.speedscope(data))
    assert {escape.visible(n) for n in NAMES} <= {f["name"] for f in data["shared"]["frames"]}


def test_the_same_timeline_gives_the_same_bytes_also_gzipped(tmp_path: Path) -> None:
    t = decode()
    first, second = (speedscope.write(t, tmp_path / f"{n}.json.gz").read_bytes() for n in "ab")
    assert first == second
    assert gzip.decompress(first).decode() == written(t)
